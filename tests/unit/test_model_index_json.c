/* SPDX-License-Identifier: MIT
 *
 * Indexes as text: what is written is read back and is the index of its model, whole, split or a stage; every way a
 * text can be wrong is refused with a sentence; a changed byte of the model is found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "base/text.h"
#include "lib/test_util.h"
#include "model/hparams.h"
#include "model/index.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WHOLE "llama-spm-q4_0.gguf"
#define SPLIT "llama-spm-q4_0-00001-of-00003.gguf"

/* --- helpers --- */

static struct gguf *opened(const char *path)
{
    struct gguf *g;
    struct err e;
    if (gguf_open(path, &g, &e) != OK)
        fail_msg("%s", e.msg);
    return g;
}

static struct gguf *opened_data(const char *name)
{
    char path[PATH_MAX];
    return opened(test_data(name, path));
}

/* Appends the text of g's index; digests from x, or computed. */
static void text_of(const struct gguf *g, const struct index *given, struct buf *out)
{
    struct hparams h;
    struct model_sizes s;
    struct index x = {0};
    struct err e;
    assert_int_equal(hparams_read(g, &h, &e), OK);
    assert_int_equal(model_sizes_read(g, &h, &s, &e), OK);
    if (!given && index_compute(g, NULL, NULL, &x, &e) != OK)
        fail_msg("%s", e.msg);
    if (index_write(g, &h, &s, given ? given : &x, out, &e) != OK)
        fail_msg("%s", e.msg);
    index_fini(&x);
    model_sizes_fini(&s);
    hparams_fini(&h);
}

static void read_text(struct buf *text, struct index_file *f)
{
    struct err e;
    if (index_read(text->data, text->len, f, &e) != OK)
        fail_msg("%s", e.msg);
}

/* Replaces the first `from` behind the first `after` ("" for the beginning). */
static void replace(const struct buf *in, const char *after, const char *from, const char *to, struct buf *out)
{
    const char *text = (const char *)in->data;
    const char *p = *after ? memmem(text, in->len, after, strlen(after)) : text;
    assert_non_null(p);
    const char *q = memmem(p, in->len - (size_t)(p - text), from, strlen(from));
    if (!q)
        fail_msg("there is no %s behind %s", from, after);
    buf_clear(out);
    buf_put(out, text, (size_t)(q - text));
    buf_puts(out, to);
    q += strlen(from);
    buf_put(out, q, in->len - (size_t)(q - text));
}

static void refused(const struct buf *b, enum err_code code, const char *says)
{
    struct index_file f = {0};
    struct err e = {0};
    uint8_t *exact = malloc(b->len ? b->len : 1); /* of exactly this length: reading on is seen by the sanitizer */
    assert_non_null(exact);
    if (b->len)
        memcpy(exact, b->data, b->len);
    enum err_code rc = index_read(exact, b->len, &f, &e);
    free(exact);
    if (rc != code || !strstr(e.msg, says))
        fail_msg("wanted %s with \"%s\", got %s: %s", err_name(code), says, err_name(rc), rc == OK ? "" : e.msg);
    assert_true(text_printable(e.msg, strlen(e.msg)));
    assert_null(f.tensors);
}

/* --- tests --- */

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    static const char *const models[] = {WHOLE, SPLIT, "gemma3-f32.gguf", "llama-tied-f32.gguf", "qwen35moe-f32.gguf"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct gguf *g = opened_data(models[i]);
        struct buf text = {0}, again = {0};
        struct index_file f;
        struct index x;
        struct err e;
        text_of(g, NULL, &text);
        read_text(&text, &f);
        assert_int_equal(f.n_tensors, gguf_n_tensors(g));
        assert_int_equal(f.n_files, gguf_n_files(g));
        assert_int_equal(f.files[f.n_files - 1].size, gguf_file_size(g, (uint32_t)f.n_files - 1));
        for (size_t k = 0; k < f.n_tensors; k++) {
            const struct gguf_tensor *t = gguf_tensor_find(g, f.tensors[k].name);
            assert_non_null(t);
            assert_true(t->offset == f.tensors[k].offset && t->size == f.tensors[k].size);
            assert_true(t->file == f.tensors[k].file && t->type == f.tensors[k].type);
            assert_memory_equal(t->ne, f.tensors[k].ne, sizeof t->ne);
        }
        if (index_match(&f, g, &x, &e) != OK)
            fail_msg("%s", e.msg);
        assert_memory_equal(x.model_id, f.model_id, DIGEST_BYTES);
        text_of(g, &x, &again);
        assert_int_equal(text.len, again.len);
        assert_memory_equal(text.data, again.data, text.len);
        assert_int_equal(index_verify(g, &x, NULL, NULL, &e), OK);
        index_fini(&x);
        index_file_fini(&f);
        buf_free(&text);
        buf_free(&again);
        gguf_close(g);
    }
}

static void the_index_of_the_whole_is_that_of_the_split(void **state)
{
    (void)state;
    struct gguf *whole = opened_data(WHOLE), *split = opened_data(SPLIT);
    struct buf text = {0};
    struct index_file f;
    struct index x;
    struct err e;
    text_of(whole, NULL, &text);
    read_text(&text, &f);
    if (index_match(&f, split, &x, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(index_verify(split, &x, NULL, NULL, &e), OK);
    index_fini(&x);
    index_file_fini(&f);
    buf_free(&text);
    gguf_close(whole);
    gguf_close(split);
}

static void each_wrong_text_says_what_and_where(void **state)
{
    (void)state;
    static const struct {
        const char *after, *from, *to;
        enum err_code code;
        const char *says;
    } wrong[] = {
        {"", "{", "[", ERR_FORMAT, "not JSON"},
        {"", "\"kvasir_index\":1", "\"kvasir_index\":2", ERR_UNSUPPORTED, "version 2"},
        {"", "\"kvasir_index\":1", "\"kvasir_index\":\"1\"", ERR_FORMAT, "kvasir_index"},
        {"", "\"kvasir_index\":1,", "", ERR_FORMAT, "no \"kvasir_index\""},
        {"", "\"tied\":", "\"tide\":", ERR_FORMAT, "\"tide\" is not known"},
        {"", "\"tied\":", "\"tied\":false,\"tied\":", ERR_FORMAT, "\"tied\" is there twice"},
        {"", "\"tied\":false", "\"tied\":0", ERR_FORMAT, "tied is not a bool"},
        {"", ",\"n_embd\":64", "", ERR_FORMAT, "\"n_embd\" is missing"},
        {"", "\"n_embd\":64", "\"n_embd\":6.4e1", ERR_FORMAT, "n_embd is not a whole number"},
        {"", "\"n_embd\":64", "\"n_embd\":-64", ERR_RANGE, "n_embd is not in"},
        {"", "\"n_embd\":64", "\"n_embd\":NaN", ERR_FORMAT, "not JSON"},
        {"", "\"n_embd\":64", "\"n_embd\":99999999999999999999", ERR_FORMAT, "n_embd"},
        {"", "\"n_embd\":64", "\"n_embd\":4294967296", ERR_RANGE, "n_embd is not in 0..4294967295"},
        {"", "\"n_block\":", "\"n_block\":1", ERR_FORMAT, "one for each block"},
        {"", "\"n_block\":", "\"n_block\":99999", ERR_RANGE, "n_block is not in 0..1024"},
        {"", "\"block_bytes\":[", "\"block_bytes\":[[],", ERR_FORMAT, "block_bytes"},
        {"", "\"arch\":\"llama\"", "\"arch\":7", ERR_FORMAT, "arch is not a text"},
        {"", "\"model_id\":\"", "\"model_id\":\"a", ERR_FORMAT, "model_id is not a digest"},
        {"", "\"files\":[", "\"files\":[1,", ERR_FORMAT, "files[0]: not an object"},
        {"", "\"files\":[{", "\"files\":[],\"x\":[{", ERR_FORMAT, "\"x\" is not known"},
        {"files", "\"name\":\"llama", "\"name\":\"../llama", ERR_FORMAT, "without folders"},
        {"files", "\"name\":\"llama-spm-q4_0.gguf", "\"name\":\"..", ERR_FORMAT, "without folders"},
        {"files", "\"name\":\"llama", "\"name\":\"\\u0000llama", ERR_FORMAT, "control characters"},
        {"files", "\"name\":\"llama-spm-q4_0.gguf", "\"name\":\"", ERR_FORMAT, "name is not a text of 1"},
        {"tensors", "\"file\":0", "\"file\":1", ERR_RANGE, "tensors[0]: file is not in 0..0"},
        {"tensors", "\"blake2b\":\"", "\"blake2b\":\"A", ERR_FORMAT, "tensors[0]: blake2b"},
        {"tensors", "\"offset\":", "\"offset\":999999", ERR_RANGE, "beyond its file"},
        {"tensors", "\"offset\":", "\"offset\":90071992547409", ERR_RANGE, "tensors[0]"},
        {"tensors", "\"size\":", "\"size\":1", ERR_FORMAT, "by type and shape it is"},
        {"tensors", "\"shape\":[", "\"shape\":[0,", ERR_FORMAT, "tensors[0]"},
        {"tensors", "\"shape\":[", "\"shape\":[9007199254740991,9007199254740991,", ERR_FORMAT, "no tensor of this"},
        {"tensors", "\"shape\":[", "\"shape\":[1,1,1,1,", ERR_FORMAT, "1 to 4 numbers"},
        {"tensors", "\"shape\":[64]", "\"shape\":[64,1]", ERR_FORMAT, "ends with a 1"},
        {"tensors", "\"type\":", "\"type\":9", ERR_FORMAT, "tensors[0]"},
        {"tensors", "\"type\":", "\"type\":4294967295", ERR_RANGE, "type is not in"},
        {"tensors", "\"name\":\"blk.0", "\"name\":\"zlk.0", ERR_FORMAT, "not in the order of the names"},
        {"tensors", "\"name\":\"blk.0.attn_norm.weight", "\"name\":\"blk.0.attn_k.weight", ERR_FORMAT,
         "is there twice"},
        {"tensors", "\"name\":\"blk.0", "\"name\":\"blk.0000000000000000000000000000000000000000000000000000000",
         ERR_FORMAT, "1 to 63 bytes"},
        {"tensors", "}", ",\"more\":1}", ERR_FORMAT, "tensors[0]: the field \"more\" is not known"},
        {"", "\"tensors\":[", "\"tensors\":[null,", ERR_FORMAT, "tensors[0]: not an object"},
        {"", "\"tied\":false}", "\"tied\":false}}", ERR_FORMAT, "not JSON"},
    };
    struct gguf *g = opened_data(WHOLE);
    struct buf text = {0}, b = {0};
    text_of(g, NULL, &text);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        replace(&text, wrong[i].after, wrong[i].from, wrong[i].to, &b);
        refused(&b, wrong[i].code, wrong[i].says);
    }
    buf_clear(&b);
    refused(&b, ERR_FORMAT, "empty");
    buf_free(&b);
    buf_free(&text);
    gguf_close(g);
}

static void a_text_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct gguf *g = opened_data(WHOLE);
    struct buf text = {0};
    text_of(g, NULL, &text);
    for (size_t n = 0; n < text.len; n += 1 + n / 50) {
        struct buf cut = {.data = text.data, .len = n};
        refused(&cut, ERR_FORMAT, n ? "not JSON" : "empty");
    }
    buf_free(&text);
    gguf_close(g);
}

static void a_text_that_is_too_long_is_not_looked_at(void **state)
{
    (void)state;
    struct index_file f;
    struct err e;
    assert_int_equal(index_read("{}", INDEX_MAX_TEXT + 1, &f, &e), ERR_LIMIT);
}

static void another_model_does_not_match(void **state)
{
    (void)state;
    struct gguf *g = opened_data(WHOLE), *q8 = opened_data("llama-spm-q8_0.gguf"),
                *gemma = opened_data("gemma3-f32.gguf");
    struct buf text = {0}, b = {0};
    struct index_file f;
    struct index x;
    struct err e;
    text_of(g, NULL, &text);
    read_text(&text, &f);
    assert_int_equal(index_match(&f, q8, &x, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "another type"));
    assert_int_equal(index_match(&f, gemma, &x, &e), ERR_MISMATCH);
    index_file_fini(&f);

    replace(&text, "tensors", "blake2b\":\"", "blake2b\":\"0", &b); /* one digit in, the last one out */
    size_t at = (size_t)((char *)memmem(b.data, b.len, "blake2b\":\"0", 11) - (char *)b.data) + 10 + 64;
    memmove(b.data + at, b.data + at + 1, b.len - at - 1);
    b.len--;
    read_text(&b, &f);
    assert_int_equal(index_match(&f, g, &x, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "does not follow"));
    index_file_fini(&f);
    buf_free(&b);
    buf_free(&text);
    gguf_close(gemma);
    gguf_close(q8);
    gguf_close(g);
}

static void an_index_with_more_tensors_is_not_the_models(void **state)
{
    (void)state;
    struct gguf *g = opened_data("llama-spm-f32.gguf"), *tied = opened_data("llama-tied-f32.gguf");
    struct buf text = {0};
    struct index_file f;
    struct index x;
    struct err e;
    text_of(g, NULL, &text);
    read_text(&text, &f);
    assert_int_equal(index_match(&f, tied, &x, &e), ERR_MISMATCH);
    index_file_fini(&f);
    buf_free(&text);
    gguf_close(tied);
    gguf_close(g);
}

static void a_flipped_byte_is_found(void **state)
{
    (void)state;
    char path[PATH_MAX], from[PATH_MAX];
    struct buf file = {0};
    struct err e;
    struct index x;
    struct gguf *g = opened_data(WHOLE);
    assert_int_equal(index_compute(g, NULL, NULL, &x, &e), OK);
    const struct gguf_tensor *t = gguf_tensor_at(g, 5);
    assert_int_equal(io_read_file(test_data(WHOLE, from), 16u << 20, &file, &e), OK);
    file.data[t->offset + t->size - 1] ^= 1;
    assert_int_equal(io_write_file(test_scratch("flipped.gguf", path), file.data, file.len, 0644, &e), OK);
    struct gguf *bad = opened(path);
    assert_int_equal(index_verify(bad, &x, NULL, NULL, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, t->name));
    assert_non_null(strstr(e.msg, path));
    gguf_close(bad);
    unlink(path);
    buf_free(&file);
    index_fini(&x);
    gguf_close(g);
}

static bool stop_at_once(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    (void)done;
    (void)total;
    return false;
}

static void verifying_can_be_stopped(void **state)
{
    (void)state;
    struct gguf *g = opened_data(WHOLE);
    struct index x;
    struct err e;
    assert_int_equal(index_compute(g, NULL, NULL, &x, &e), OK);
    assert_int_equal(index_verify(g, &x, stop_at_once, NULL, &e), ERR_CANCELLED);
    x.n_tensors--;
    assert_int_equal(index_verify(g, &x, NULL, NULL, &e), ERR_ARG);
    index_fini(&x);
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(the_index_of_the_whole_is_that_of_the_split),
        cmocka_unit_test(each_wrong_text_says_what_and_where),
        cmocka_unit_test(a_text_cut_anywhere_is_refused),
        cmocka_unit_test(a_text_that_is_too_long_is_not_looked_at),
        cmocka_unit_test(another_model_does_not_match),
        cmocka_unit_test(an_index_with_more_tensors_is_not_the_models),
        cmocka_unit_test(a_flipped_byte_is_found),
        cmocka_unit_test(verifying_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
