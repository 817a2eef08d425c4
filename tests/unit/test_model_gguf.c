/* SPDX-License-Identifier: MIT
 *
 * Opening models that are not as they should be: each is refused with a code and one line that says what and where;
 * and every getter against every type of value.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "lib/test_util.h"
#include "model/gguf.h"
#include "model/gguf_scan.h"
#include "model/hparams.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- helpers --------------------------------------------------------------------------------------------------------
 */

static const char *corpus(const char *name, char out[PATH_MAX])
{
    char rel[128];
    snprintf(rel, sizeof rel, "../fuzz/corpus/gguf/%s", name);
    return test_data(rel, out);
}

static void one_line(const struct err *e)
{
    assert_true(strlen(e->msg) > 10);
    assert_true(text_printable(e->msg, strlen(e->msg)));
}

/* Opening fails with this code and a message that holds this text. */
static void refused(const char *path, enum err_code code, const char *says)
{
    struct gguf *g = NULL;
    struct err e = {0};
    enum err_code rc = gguf_open(path, &g, &e);
    if (rc != code || !strstr(e.msg, says))
        fail_msg("%s: %s: %s", path, err_name(rc), rc == OK ? "opened" : e.msg);
    assert_int_equal(e.code, rc);
    assert_null(g);
    one_line(&e);
}

static void refused_corpus(const char *name, enum err_code code, const char *says)
{
    char path[PATH_MAX];
    refused(corpus(name, path), code, says);
}

static struct gguf *opened(const char *path)
{
    struct gguf *g = NULL;
    struct err e = {0};
    if (gguf_open(path, &g, &e) != OK)
        fail_msg("%s", e.msg);
    return g;
}

static void read_data(const char *name, struct buf *out)
{
    char path[PATH_MAX];
    struct err e;
    assert_int_equal(io_read_file(test_data(name, path), 16u << 20, out, &e), OK);
}

static void write_scratch(const char *name, const void *data, size_t len, char path[PATH_MAX])
{
    struct err e = {0};
    if (io_write_file(test_scratch(name, path), data, len, 0600, &e) != OK)
        fail_msg("%s", e.msg);
}

static void put_string(struct buf *b, const char *s)
{
    buf_put_u64(b, strlen(s));
    buf_puts(b, s);
}

static void put_header(struct buf *b, uint64_t n_tensors, uint64_t n_keys)
{
    buf_puts(b, "GGUF");
    buf_put_u32(b, 3);
    buf_put_u64(b, n_tensors);
    buf_put_u64(b, n_keys);
}

static void put_tensor(struct buf *b, const char *name, uint64_t ne0, uint64_t offset)
{
    put_string(b, name);
    buf_put_u32(b, 1);
    buf_put_u64(b, ne0);
    buf_put_u32(b, 0); /* f32 */
    buf_put_u64(b, offset);
}

/* --- what is not a model
 * ---------------------------------------------------------------------------------------------- */

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    refused("/nowhere/at/all.gguf", ERR_NOT_FOUND, "/nowhere/at/all.gguf");
    refused(KV_TEST_DATA, ERR_ARG, "not a regular file");
    refused("/dev/null", ERR_ARG, "not a regular file");
    write_scratch("empty.gguf", "", 0, path);
    refused(path, ERR_FORMAT, "empty");
    unlink(path);
}

static void a_fifo_does_not_make_it_wait(void **state)
{
    (void)state;
    char path[PATH_MAX];
    unlink(test_scratch("fifo.gguf", path));
    assert_int_equal(mkfifo(path, 0600), 0);
    refused(path, ERR_ARG, "not a regular file");
    unlink(path);
}

static void an_unreadable_file_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    if (geteuid() == 0)
        skip(); /* root reads everything */
    write_scratch("secret.gguf", "GGUF", 4, path);
    assert_int_equal(chmod(path, 0), 0);
    refused(path, ERR_IO, "Permission denied");
    unlink(path);
}

static void other_peoples_odd_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum err_code code;
        const char *says;
    } odd[] = {
        {"gridcore-bad-version.bin", ERR_UNSUPPORTED, "version"},
        {"gridcore-huge-counts.bin", ERR_FORMAT, "more than its 24 bytes can hold"},
        {"gridcore-kv-huge-strlen.bin", ERR_FORMAT, "key"},
        {"gridcore-tensor-huge-dims.bin", ERR_FORMAT, "tensor"},
        {"ollama-test.gguf", ERR_FORMAT, "too short"},
        {"ggufmodelbuilder-test.gguf", ERR_FORMAT, "not a GGUF file"},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char name[128], path[PATH_MAX];
        snprintf(name, sizeof name, "odd-gguf/%s", odd[i].name);
        if (!test_have_shared(name))
            skip();
        refused(test_shared(name, path), odd[i].code, odd[i].says);
    }
}

static void a_bare_vocabulary_lacks_hyper_parameters(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct hparams h;
    struct err e;
    if (!test_have_shared("odd-gguf/gridcore-vocab-bpe-qwen2.gguf"))
        skip();
    struct gguf *g = opened(test_shared("odd-gguf/gridcore-vocab-bpe-qwen2.gguf", path));
    assert_int_equal(hparams_read(g, &h, &e), ERR_NOT_FOUND);
    one_line(&e);
    gguf_close(g);
}

/* --- malformed headers
 * ------------------------------------------------------------------------------------------------ */

static void each_broken_header_says_what_and_where(void **state)
{
    (void)state;
    refused_corpus("other-magic", ERR_FORMAT, "not \"GGUF\"");
    refused_corpus("version-1", ERR_UNSUPPORTED, "version 1 is not supported");
    refused_corpus("version-4", ERR_UNSUPPORTED, "version 4 is not supported");
    refused_corpus("big-endian", ERR_UNSUPPORTED, "big-endian");
    refused_corpus("counts-huge", ERR_FORMAT, "tensors");
    refused_corpus("counts-negative", ERR_FORMAT, "tensors");
    refused_corpus("key-twice", ERR_FORMAT, "key a is there twice, first at byte 24");
    refused_corpus("key-empty", ERR_FORMAT, "key number 0 has no name");
    refused_corpus("key-not-utf8", ERR_FORMAT, "not printable");
    refused_corpus("value-type-13", ERR_FORMAT, "key a is of the unknown type 13");
    refused_corpus("array-of-arrays", ERR_FORMAT, "key a is an array of the unknown type 9");
    refused_corpus("array-huge", ERR_FORMAT, "more than the file has left");
    refused_corpus("array-strings-huge", ERR_LIMIT, "strings; at most");
    refused_corpus("string-huge", ERR_FORMAT, "string of 18446744073709551615 bytes");
    refused_corpus("align-string", ERR_FORMAT, "general.alignment is not of type u32");
    refused_corpus("align-array", ERR_FORMAT, "general.alignment is not of type u32");
    refused_corpus("align-zero", ERR_FORMAT, "general.alignment is 0, not a power of two");
    refused_corpus("align-3", ERR_FORMAT, "general.alignment is 3, not a power of two");
    refused_corpus("align-2g", ERR_FORMAT, "general.alignment is 2147483648");
    refused_corpus("llama-cut-header", ERR_FORMAT, "the file ");
}

static void each_broken_tensor_says_what_and_where(void **state)
{
    (void)state;
    refused_corpus("tensor-twice", ERR_FORMAT, "tensor t is there twice");
    refused_corpus("dims-5", ERR_FORMAT, "tensor t has 5 dimensions");
    refused_corpus("dims-zero", ERR_FORMAT, "dimension 0 is 0");
    refused_corpus("dims-overflow", ERR_FORMAT, "tensor t has an impossible shape");
    refused_corpus("dims-negative", ERR_FORMAT, "tensor t has an impossible shape");
    refused_corpus("dims-bytes-overflow", ERR_FORMAT, "tensor t has an impossible shape");
    refused_corpus("type-unknown", ERR_FORMAT, "tensor t is of the unknown type 99");
    refused_corpus("type-removed", ERR_FORMAT, "tensor t is of the unknown type 4");
    refused_corpus("type-block", ERR_FORMAT, "rows of 33 elements, not a multiple of its type's 32");
    refused_corpus("offset-wrong", ERR_FORMAT, "tensor t begins at byte 64 of the data; the one before it ends at 0");
    refused_corpus("offset-overflow", ERR_FORMAT, "tensor t begins at byte 18446744073709551600");
    refused_corpus("name-64", ERR_LIMIT, "64 bytes; at most 63");
    refused_corpus("name-control", ERR_FORMAT, "tensor 'a??[31m' is not printable");
    refused_corpus("name-nul", ERR_FORMAT, "not printable");
    refused_corpus("llama-cut-data", ERR_FORMAT, "truncated: tensor blk.0.ffn_down.weight");
}

static void sound_small_files_open(void **state)
{
    (void)state;
    static const char *const good[] = {"no-keys",         "every-type", "every-array", "llama",  "llama-v2",
                                       "llama-per-block", "align-64",   "name-63",     "dims-0", "value-nul"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char path[PATH_MAX];
        gguf_close(opened(corpus(good[i], path)));
    }
}

static void too_many_keys_or_tensors_are_refused_at_once(void **state)
{
    (void)state;
    struct buf b = {0};
    struct gguf *g = NULL;
    struct err e;
    char name[32];
    put_header(&b, 0, GGUF_SCAN_MAX_KEYS + 1);
    for (unsigned i = 0; i <= GGUF_SCAN_MAX_KEYS; i++) {
        snprintf(name, sizeof name, "key.%u", i);
        put_string(&b, name);
        buf_put_u32(&b, 0);
        buf_put_u8(&b, 1);
    }
    assert_int_equal(gguf_open_mem(b.data, b.len, &g, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "8193 keys; at most 8192"));
    buf_clear(&b);
    put_header(&b, 1u << 20, 0);
    for (unsigned i = 0; i < 1u << 20; i++) {
        snprintf(name, sizeof name, "t%u", i);
        put_tensor(&b, name, 8, 32ull * i);
    }
    assert_int_equal(gguf_open_mem(b.data, b.len, &g, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "1048576 tensors"));
    buf_free(&b);
}

/* --- truncation
 * ------------------------------------------------------------------------------------------------------- */

/* The end of the last tensor: a file may end there, before the padding. */
static uint64_t data_end(const struct gguf *g)
{
    uint64_t end = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        end = t->offset + t->size > end ? t->offset + t->size : end;
    }
    return end;
}

static void a_model_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct buf b = {0};
    char path[PATH_MAX];
    read_data("llama-spm-q8_0.gguf", &b);
    struct gguf *g = opened(test_data("llama-spm-q8_0.gguf", path));
    uint64_t end = data_end(g);
    gguf_close(g);
    write_scratch("cut.gguf", b.data, b.len, path);
    for (size_t i = 0; i <= 220; i++) {
        /* every length near both ends, others spread; always shorter than before */
        size_t len = i < 60 ? b.len - i : i > 180 ? 220 - i : b.len / 200 * (200 - i);
        struct err e = {0};
        uint8_t *copy = malloc(len ? len : 1); /* of just this size, so that ASan sees a byte too far */
        memcpy(copy, b.data, len);
        enum err_code rc = gguf_open_mem(copy, len, &g, &e);
        if ((rc == OK) != (len >= end))
            fail_msg("%zu of %zu bytes: %s %s", len, b.len, err_name(rc), rc == OK ? "" : e.msg);
        if (rc == OK)
            gguf_close(g);
        else
            one_line(&e);
        free(copy);
        assert_int_equal(truncate(path, (off_t)len), 0);
        enum err_code from_file = gguf_open(path, &g, &e);
        assert_int_equal(from_file, rc);
        if (rc == OK)
            gguf_close(g);
    }
    unlink(path);
    buf_free(&b);
}

/* --- getters
 * ---------------------------------------------------------------------------------------------------------- */

static bool is_integer(const char *key)
{
    return key[2] == 'u' || key[2] == 'i';
}

static void each_getter_refuses_each_other_type(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    struct gguf *g = opened(corpus("every-type", path));
    assert_int_equal(gguf_n_kv(g), 12);
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const char *key = gguf_key(g, i), *s = NULL;
        bool is_str = strcmp(key, "a.str") == 0, is_bool = strcmp(key, "a.bool") == 0, b = false;
        bool is_float = strcmp(key, "a.f32") == 0, is_double = strcmp(key, "a.f64") == 0;
        uint32_t u = 7;
        int32_t v = 7;
        float f = 7;
        size_t n = 0;
        const float *fs;
        const int32_t *is;
        enum err_code rc = gguf_u32(g, key, &u, &e);
        assert_int_equal(rc, !is_integer(key)                              ? ERR_FORMAT
                             : strstr("a.i8 a.i16 a.i32 a.i64 a.u64", key) ? ERR_RANGE
                                                                           : OK);
        assert_true(rc == OK || u == 7);
        assert_true(rc == OK || strstr(e.msg, key));
        rc = gguf_i32(g, key, &v, &e);
        assert_int_equal(rc, !is_integer(key) ? ERR_FORMAT : strstr("a.u32 a.u64 a.i64", key) ? ERR_RANGE : OK);
        assert_true(rc == OK || v == 7);
        rc = gguf_f32(g, key, &f, &e);
        assert_int_equal(rc, is_float ? OK : is_double ? ERR_RANGE : ERR_FORMAT);
        assert_int_equal(gguf_bool(g, key, &b, &e), is_bool ? OK : ERR_FORMAT);
        assert_int_equal(gguf_str(g, key, &s, &e), is_str ? OK : ERR_FORMAT);
        assert_int_equal(gguf_opt_str(g, key, &s, &e), is_str ? OK : ERR_FORMAT);
        assert_int_equal(gguf_arr_len(g, key, &n, &e), ERR_FORMAT);
        assert_int_equal(gguf_arr_strs(g, key, 0, &n, &e), ERR_FORMAT);
        assert_int_equal(gguf_arr_f32(g, key, 0, &fs, &n, &e), ERR_FORMAT);
        assert_int_equal(gguf_arr_i32(g, key, 0, &is, &n, &e), ERR_FORMAT);
        assert_null(gguf_arr_str_at(g, key, 0));
    }
    gguf_close(g);
}

static void array_getters_refuse_each_other_type(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    struct gguf *g = opened(corpus("every-array", path));
    size_t n_f32 = 0, n_i32 = 0, n_str = 0;
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const char *key = gguf_key(g, i), *s;
        const float *fs;
        const int32_t *is;
        uint32_t u;
        int32_t v;
        float f;
        bool b;
        size_t n;
        assert_int_equal(gguf_u32(g, key, &u, &e), ERR_FORMAT);
        assert_int_equal(gguf_i32(g, key, &v, &e), ERR_FORMAT);
        assert_int_equal(gguf_f32(g, key, &f, &e), ERR_FORMAT);
        assert_int_equal(gguf_bool(g, key, &b, &e), ERR_FORMAT);
        assert_int_equal(gguf_str(g, key, &s, &e), ERR_FORMAT);
        assert_non_null(strstr(e.msg, "array"));
        n_f32 += gguf_arr_f32(g, key, 0, &fs, &n, &e) == OK;
        n_i32 += gguf_arr_i32(g, key, 0, &is, &n, &e) == OK;
        n_str += gguf_arr_strs(g, key, 0, &n, &e) == OK;
        assert_int_equal(gguf_arr_len(g, key, &n, &e), OK);
        assert_int_equal(n, strcmp(key, "a.none") == 0 ? 0 : 3);
        assert_int_equal(gguf_arr_strs(g, key, 4, &n, &e), ERR_FORMAT);
        assert_null(gguf_arr_str_at(g, key, 3));
    }
    assert_int_equal(n_f32, 2); /* with the empty one */
    assert_int_equal(n_i32, 2); /* i32 and u32 */
    assert_int_equal(n_str, 1);
    gguf_close(g);
}

static void missing_keys_are_not_found_and_defaults_stay(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    struct gguf *g = opened(corpus("every-type", path));
    uint32_t u = 11, per[2];
    const char *s = "default";
    assert_false(gguf_has(g, "nobody"));
    assert_int_equal(gguf_u32(g, "nobody", &u, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "nobody"));
    assert_int_equal(gguf_opt_u32(g, "nobody", &u, &e), OK);
    assert_int_equal(u, 11);
    assert_int_equal(gguf_opt_str(g, "nobody", &s, &e), OK);
    assert_string_equal(s, "default");
    assert_int_equal(gguf_u32_per_block(g, "nobody", 2, per, &e), ERR_NOT_FOUND);
    assert_int_equal(gguf_u32_per_block(g, "a.u8", 2, per, &e), OK);
    assert_int_equal(per[1], 200);
    assert_null(gguf_key(g, 12));
    assert_null(gguf_tensor_find(g, "nothing"));
    gguf_close(g);
}

/* --- models of several files
 * ------------------------------------------------------------------------------------------- */

#define PART "split-0000%d-of-00003.gguf"

static struct buf part_bytes(int i)
{
    struct buf b = {0};
    char name[64];
    snprintf(name, sizeof name, "llama-spm-q4_0-0000%d-of-00003.gguf", i);
    read_data(name, &b);
    return b;
}

/* Writes the three parts; part i gets the bytes of part from[i], 0: is not there. Returns the path of the first. */
static void put_parts(const int from[3], char path[PATH_MAX])
{
    char name[64], p[PATH_MAX];
    for (int i = 3; i >= 1; i--) {
        snprintf(name, sizeof name, PART, i);
        unlink(test_scratch(name, p));
        if (from[i - 1]) {
            struct buf b = part_bytes(from[i - 1]);
            write_scratch(name, b.data, b.len, p);
            buf_free(&b);
        }
    }
    memcpy(path, p, PATH_MAX);
}

static void a_split_model_opens_from_any_part(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *whole = opened(test_data("llama-spm-q4_0.gguf", path));
    for (int i = 1; i <= 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "llama-spm-q4_0-0000%d-of-00003.gguf", i);
        struct gguf *g = opened(test_data(name, path));
        assert_int_equal(gguf_n_files(g), 3);
        assert_int_equal(gguf_n_tensors(g), gguf_n_tensors(whole));
        gguf_close(g);
    }
    gguf_close(whole);
}

static void parts_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    char path[PATH_MAX], foreign[PATH_MAX], single[PATH_MAX];
    put_parts((int[]){1, 2, 3}, path);
    gguf_close(opened(path));
    put_parts((int[]){1, 0, 3}, path);
    refused(path, ERR_NOT_FOUND, "split-00002-of-00003.gguf");
    put_parts((int[]){1, 3, 2}, path);
    refused(path, ERR_FORMAT, "part 3, its name says part 2");
    put_parts((int[]){1, 2, 2}, path);
    refused(path, ERR_FORMAT, "is also in");
    put_parts((int[]){1, 2, 3}, path);
    /* a whole model in place of a part */
    struct buf b = {0};
    read_data("llama-tied-f32.gguf", &b);
    write_scratch("split-00002-of-00003.gguf", b.data, b.len, foreign);
    refused(path, ERR_FORMAT, "split-00002-of-00003.gguf");
    buf_free(&b);
    put_parts((int[]){1, 2, 3}, path);
    b = part_bytes(1); /* a part under the name of a whole model */
    write_scratch("single.gguf", b.data, b.len, single);
    refused(single, ERR_FORMAT, "one of 3 files");
    buf_free(&b);
    unlink(single);
    put_parts((int[]){0, 0, 0}, path);
}

/* --- size
 * -------------------------------------------------------------------------------------------------------------- */

/* A vocabulary of 248 k tokens with as many merges, and 900 tensors of no data to speak of. */
static void a_header_of_real_size_opens_quickly(void **state)
{
    (void)state;
    struct buf b = {0};
    char name[48];
    const uint32_t n_tok = 248320, n_tensors = 900;
    put_header(&b, n_tensors, 2);
    for (int k = 0; k < 2; k++) {
        put_string(&b, k ? "tokenizer.ggml.merges" : "tokenizer.ggml.tokens");
        buf_put_u32(&b, 9);
        buf_put_u32(&b, 8);
        buf_put_u64(&b, n_tok);
        for (uint32_t i = 0; i < n_tok; i++) {
            snprintf(name, sizeof name, k ? "tok %u" : "token%u", i);
            put_string(&b, name);
        }
    }
    for (uint32_t i = 0; i < n_tensors; i++) {
        snprintf(name, sizeof name, "blk.%u.some_long_tensor_name_%u.weight", i / 18, i % 18);
        put_tensor(&b, name, 8, 32ull * i);
    }
    while (b.len % 32)
        buf_put_u8(&b, 0);
    memset(buf_reserve(&b, (size_t)32 * n_tensors), 0, (size_t)32 * n_tensors);
    b.len += (size_t)32 * n_tensors;
    assert_false(b.failed);

    char path[PATH_MAX];
    write_scratch("large.gguf", b.data, b.len, path);
    uint64_t begin = clock_now_ns();
    struct gguf *g = opened(path);
    double ms = (double)(clock_now_ns() - begin) / 1e6;
    assert_int_equal(gguf_n_tensors(g), n_tensors);
    const char *last = gguf_arr_str_at(g, "tokenizer.ggml.tokens", n_tok - 1);
    assert_string_equal(last, "token248319");
    gguf_close(g);
    unlink(path);
    buf_free(&b);
    print_message("%u tokens, %u tensors: %.0f ms\n", n_tok, n_tensors, ms);
    assert_true(ms < 20000); /* quadratic would be minutes */
}

/* A vocabulary is read text by text: with thousands of keys before it, each must still be found at once. */
static void many_keys_do_not_make_an_array_slow(void **state)
{
    (void)state;
    enum { n_keys = GGUF_SCAN_MAX_KEYS, n_texts = 500000 };
    struct buf b = {0};
    char path[PATH_MAX], key[32];
    put_header(&b, 0, n_keys);
    for (uint32_t i = 0; i + 1 < n_keys; i++) {
        snprintf(key, sizeof key, "tokenizer.ggml.token.%u", (i * 5003) % (n_keys - 1)); /* in no order */
        put_string(&b, key);
        buf_put_u32(&b, 4);
        buf_put_u32(&b, i);
    }
    put_string(&b, "tokenizer.ggml.tokens");
    buf_put_u32(&b, 9);
    buf_put_u32(&b, 8);
    buf_put_u64(&b, n_texts);
    for (uint32_t i = 0; i < n_texts; i++)
        buf_put_u64(&b, 0);
    assert_false(b.failed);
    write_scratch("keys.gguf", b.data, b.len, path);
    buf_free(&b);
    struct gguf *g = opened(path);
    unlink(path);
    uint64_t begin = clock_now_ns();
    for (uint32_t i = 0; i < n_texts; i++)
        assert_non_null(gguf_arr_str_at(g, "tokenizer.ggml.tokens", i));
    double ms = (double)(clock_now_ns() - begin) / 1e6;
    for (uint32_t i = 0; i + 1 < n_keys; i += 77) {
        uint32_t v = 0;
        struct err e;
        snprintf(key, sizeof key, "tokenizer.ggml.token.%u", (i * 5003) % (n_keys - 1));
        assert_int_equal(gguf_u32(g, key, &v, &e), OK);
        assert_int_equal(v, i);
    }
    assert_false(gguf_has(g, "tokenizer.ggml.token."));
    gguf_close(g);
    print_message("%u texts behind %u keys: %.0f ms\n", n_texts, n_keys, ms);
    assert_true(ms < 20000); /* going through the keys takes minutes */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(a_fifo_does_not_make_it_wait),
        cmocka_unit_test(an_unreadable_file_is_refused),
        cmocka_unit_test(other_peoples_odd_files_are_refused),
        cmocka_unit_test(a_bare_vocabulary_lacks_hyper_parameters),
        cmocka_unit_test(each_broken_header_says_what_and_where),
        cmocka_unit_test(each_broken_tensor_says_what_and_where),
        cmocka_unit_test(sound_small_files_open),
        cmocka_unit_test(too_many_keys_or_tensors_are_refused_at_once),
        cmocka_unit_test(a_model_cut_anywhere_is_refused),
        cmocka_unit_test(each_getter_refuses_each_other_type),
        cmocka_unit_test(array_getters_refuse_each_other_type),
        cmocka_unit_test(missing_keys_are_not_found_and_defaults_stay),
        cmocka_unit_test(a_split_model_opens_from_any_part),
        cmocka_unit_test(parts_that_do_not_belong_together_are_refused),
        cmocka_unit_test(a_header_of_real_size_opens_quickly),
        cmocka_unit_test(many_keys_do_not_make_an_array_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
