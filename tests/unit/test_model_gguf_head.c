/* SPDX-License-Identifier: MIT
 *
 * Models opened from headers alone: how much of a file to get, asked again and again, ends at the whole header in few
 * steps; what is opened so has every tensor where the files have it; headers that lie are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/io.h"
#include "lib/test_util.h"
#include "model/gguf.h"
#include "model/gguf_scan.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 8

/* --- helpers --- */

static void put_string(struct buf *b, const char *s)
{
    buf_put_u64(b, strlen(s));
    buf_puts(b, s);
}

/* Asks until the header is there, beginning with `first` bytes. Returns how many times bytes were got. */
static unsigned get_head(const struct buf *file, uint64_t size, size_t first, size_t *len)
{
    unsigned n = 1;
    *len = first < size ? first : (size_t)size;
    for (;;) {
        uint64_t need = 1;
        struct err e;
        uint8_t *head = malloc(*len ? *len : 1); /* of exactly this length: reading on is seen by the sanitizer */
        assert_non_null(head);
        memcpy(head, file->data, *len);
        if (gguf_head_need(head, *len, size, &need, &e) != OK)
            fail_msg("%s", e.msg);
        free(head);
        if (need == 0)
            return n;
        assert_true(need > *len && need <= size && need <= file->len);
        *len = (size_t)need;
        n++;
    }
}

static void same_tensors(const struct gguf *a, const struct gguf *b)
{
    assert_int_equal(gguf_n_tensors(a), gguf_n_tensors(b));
    assert_int_equal(gguf_n_kv(a), gguf_n_kv(b));
    assert_int_equal(gguf_n_files(a), gguf_n_files(b));
    for (size_t i = 0; i < gguf_n_tensors(a); i++) {
        const struct gguf_tensor *x = gguf_tensor_at(a, i), *y = gguf_tensor_at(b, i);
        assert_string_equal(x->name, y->name);
        assert_memory_equal(x->ne, y->ne, sizeof x->ne);
        assert_true(x->type == y->type && x->file == y->file && x->block == y->block);
        assert_true(x->offset == y->offset && x->size == y->size);
    }
    for (size_t i = 0; i < gguf_n_kv(a); i++) {
        struct buf x = {0}, y = {0};
        struct err e;
        assert_string_equal(gguf_key(a, i), gguf_key(b, i));
        assert_int_equal(gguf_value_bytes(a, i, &x, &e), OK);
        assert_int_equal(gguf_value_bytes(b, i, &y, &e), OK);
        assert_true(x.len == y.len && memcmp(x.data, y.data, x.len) == 0);
        buf_free(&x);
        buf_free(&y);
    }
}

static void heads_of(const struct gguf *g, struct gguf_part parts[MAX_PARTS], struct buf files[MAX_PARTS])
{
    assert_true(gguf_n_files(g) <= MAX_PARTS);
    for (uint32_t i = 0; i < gguf_n_files(g); i++) {
        struct err e;
        size_t len;
        files[i] = (struct buf){0};
        if (io_read_file(gguf_file_path(g, i), 64u << 20, &files[i], &e) != OK)
            fail_msg("%s", e.msg);
        get_head(&files[i], files[i].len, 1000, &len);
        parts[i] = (struct gguf_part){
            .name = gguf_file_path(g, i), .head = files[i].data, .head_len = len, .file_size = files[i].len};
    }
}

static bool is_gguf(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".gguf") == 0 && (!strstr(name, "-of-") || strstr(name, "-00001-of-"));
}

static size_t each_of(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    for (struct dirent *f; (f = readdir(d));) {
        char path[PATH_MAX];
        struct gguf *whole, *heads;
        struct gguf_part parts[MAX_PARTS];
        struct buf files[MAX_PARTS];
        struct err e;
        if (!is_gguf(f->d_name))
            continue;
        assert_true(snprintf(path, sizeof path, "%s/%s", dir, f->d_name) < (int)sizeof path);
        if (gguf_open(path, &whole, &e) != OK)
            fail_msg("%s", e.msg);
        heads_of(whole, parts, files);
        if (gguf_open_heads(parts, gguf_n_files(whole), &heads, &e) != OK)
            fail_msg("%s", e.msg);
        same_tensors(whole, heads);
        assert_int_equal(gguf_fd(heads, 0), -1);
        assert_string_equal(gguf_path(heads), path);
        for (uint32_t i = 0; i < gguf_n_files(whole); i++) {
            assert_int_equal(gguf_file_size(heads, i), files[i].len);
            buf_free(&files[i]);
        }
        gguf_close(heads);
        gguf_close(whole);
        n++;
    }
    closedir(d);
    return n;
}

/* --- tests --- */

static void every_fixture_opens_from_its_headers(void **state)
{
    (void)state;
    char dir[PATH_MAX];
    assert_true(each_of(test_data("", dir)) > 5);
    if (test_have_shared("fixtures/README.md"))
        assert_true(each_of(test_shared("fixtures", dir)) > 5);
}

static void no_byte_of_the_header_is_left_out(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct buf file = {0};
    struct err e;
    struct gguf *g;
    uint64_t need;
    assert_int_equal(io_read_file(test_data("llama-tied-f32.gguf", path), 16u << 20, &file, &e), OK);
    assert_int_equal(gguf_open_mem(file.data, file.len, &g, &e), OK);
    size_t data = (size_t)gguf_tensor_at(g, 0)->offset;
    gguf_close(g);
    for (size_t len = 0; len <= data; len++) {
        need = 0;
        assert_int_equal(gguf_head_need(file.data, len, file.len, &need, &e), OK);
        if (len < data)
            assert_true(need > len && need <= file.len);
        else
            assert_int_equal(need, 0);
    }
    struct gguf_part part = {.name = "cut", .head = file.data, .head_len = data - 1, .file_size = file.len};
    assert_int_equal(gguf_open_heads(&part, 1, &g, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "cut"));
    part.head_len = data;
    assert_int_equal(gguf_open_heads(&part, 1, &g, &e), OK);
    gguf_close(g);
    part.file_size = file.len / 2; /* as a server might claim */
    assert_int_equal(gguf_open_heads(&part, 1, &g, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "truncated"));
    assert_int_equal(gguf_open_heads(&part, 0, &g, &e), ERR_ARG);
    buf_free(&file);
}

/* As a model of 122 billion parameters has it. */
static void a_header_of_real_size_comes_in_few_pieces(void **state)
{
    (void)state;
    enum { TOKENS = 250000, MERGES = 247000, TENSORS = 900 };
    struct buf b = {0};
    char text[64];
    size_t len;
    buf_puts(&b, "GGUF");
    buf_put_u32(&b, 3);
    buf_put_u64(&b, TENSORS);
    buf_put_u64(&b, 3);
    for (int list = 0; list < 3; list++) {
        static const char *const names[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
                                            "tokenizer.ggml.merges"};
        uint64_t n = list == 2 ? MERGES : TOKENS;
        put_string(&b, names[list]);
        buf_put_u32(&b, 9);
        buf_put_u32(&b, list == 1 ? 5 : 8);
        buf_put_u64(&b, n);
        for (uint64_t i = 0; i < n; i++) {
            snprintf(text, sizeof text, "%s%.*s", list == 2 ? "a b" : "", (int)(1 + i / 20000), "abcdefghijklmnopqrst");
            if (list == 1)
                buf_put_u32(&b, 1);
            else
                put_string(&b, text);
        }
    }
    for (uint64_t i = 0; i < TENSORS; i++) {
        snprintf(text, sizeof text, "blk.%u.ffn_gate_exps.weight", (unsigned)i);
        put_string(&b, text);
        buf_put_u32(&b, 3);
        buf_put_u64(&b, 1024);
        buf_put_u64(&b, 1024);
        buf_put_u64(&b, 16);
        buf_put_u32(&b, 0);
        buf_put_u64(&b, i << 26);
    }
    size_t header = b.len;
    uint64_t size = header + ((uint64_t)TENSORS << 26) + 64;
    assert_non_null(buf_reserve(&b, 2 * header)); /* bytes behind it may be asked for */
    memset(b.data + b.len, 0, 2 * header);
    b.len += 2 * header;
    unsigned n = get_head(&b, size, 65536, &len);
    assert_true(n <= 7);
    assert_true(len <= 2 * header);
    struct gguf *g;
    struct err e;
    struct gguf_part part = {.name = "far.gguf", .head = b.data, .head_len = len, .file_size = size};
    if (gguf_open_heads(&part, 1, &g, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(gguf_tensor_at(g, TENSORS - 1)->size, 1u << 26);
    gguf_close(g);
    buf_free(&b);
}

static void a_header_that_cannot_be_is_refused_at_once(void **state)
{
    (void)state;
    struct buf b = {0};
    struct err e;
    uint64_t need;
    buf_puts(&b, "GGUF");
    buf_put_u32(&b, 3);
    buf_put_u64(&b, 1);
    buf_put_u64(&b, 1);
    buf_put_u64(&b, 1u << 20); /* a key's name */
    assert_int_equal(gguf_head_need(b.data, b.len, 1u << 20, &need, &e), ERR_FORMAT);
    assert_int_equal(gguf_head_need(b.data, b.len, 1u << 30, &need, &e), OK); /* it may be there: look */
    assert_int_equal(need, 32 + (1u << 20));
    b.len -= 8;
    put_string(&b, "key");
    buf_put_u32(&b, 8);
    buf_put_u64(&b, 1u << 30);
    assert_int_equal(gguf_head_need(b.data, b.len, UINT64_MAX, &need, &e), OK);
    assert_int_equal(need, GGUF_SCAN_MAX_BYTES);
    assert_non_null(buf_reserve(&b, GGUF_SCAN_MAX_BYTES));
    memset(b.data + b.len, 0, GGUF_SCAN_MAX_BYTES);
    assert_int_equal(gguf_head_need(b.data, GGUF_SCAN_MAX_BYTES, UINT64_MAX, &need, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "larger than"));
    memcpy(b.data, "HTML", 4);
    assert_int_equal(gguf_head_need(b.data, 100, 1u << 30, &need, &e), ERR_FORMAT);
    assert_int_equal(gguf_head_need(b.data, 3, 3, &need, &e), ERR_FORMAT);
    buf_free(&b);
}

static void parts_must_be_of_one_model(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g, *h;
    struct gguf_part parts[MAX_PARTS], swapped[2];
    struct buf files[MAX_PARTS];
    struct err e;
    assert_int_equal(gguf_open(test_data("llama-spm-q4_0-00002-of-00003.gguf", path), &g, &e), OK);
    heads_of(g, parts, files);
    assert_int_equal(gguf_open_heads(parts, 2, &h, &e), ERR_FORMAT);
    swapped[0] = parts[1];
    swapped[1] = parts[0];
    assert_int_equal(gguf_open_heads(swapped, 2, &h, &e), ERR_FORMAT);
    assert_int_equal(gguf_open_heads(parts, 1, &h, &e), ERR_FORMAT);
    for (int i = 0; i < 3; i++)
        buf_free(&files[i]);
    gguf_close(g);
}

static void split_names_are_taken_apart(void **state)
{
    (void)state;
    size_t prefix;
    uint32_t part, count;
    assert_true(gguf_split_name("/a/b-00002-of-00003.gguf", &prefix, &part, &count));
    assert_true(prefix == 4 && part == 2 && count == 3);
    static const char *const no[] = {"b.gguf",
                                     "b-00004-of-00003.gguf",
                                     "b-00000-of-00003.gguf",
                                     "b-0001-of-00003.gguf",
                                     "b-00001-of-00003.ggufx",
                                     "b-00001-of-99999.gguf",
                                     "",
                                     "-00001-of-00000.gguf"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        assert_false(gguf_split_name(no[i], &prefix, &part, &count));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_opens_from_its_headers),
        cmocka_unit_test(no_byte_of_the_header_is_left_out),
        cmocka_unit_test(a_header_of_real_size_comes_in_few_pieces),
        cmocka_unit_test(a_header_that_cannot_be_is_refused_at_once),
        cmocka_unit_test(parts_must_be_of_one_model),
        cmocka_unit_test(split_names_are_taken_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
