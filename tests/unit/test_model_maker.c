/* SPDX-License-Identifier: MIT
 *
 * The model maker, seen through the checked GGUF layer: sound models are sound, broken ones are broken where they were
 * meant to be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/maker.h"
#include "lib/test_util.h"
#include "model/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Makes p's model and opens it; the file is gone afterwards, the open gguf keeps it. */
static struct gguf *made(const struct maker_params *p)
{
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct err e = {0};
    enum err_code rc = maker_write(test_scratch("maker.gguf", path), p, &e);
    if (rc == OK)
        rc = gguf_open(path, &g, &e);
    unlink(path);
    if (rc != OK)
        print_message("%s\n", e.msg);
    assert_int_equal(rc, OK);
    return g;
}

static void bytes_of(const struct maker_params *p, struct buf *out)
{
    char path[PATH_MAX];
    struct err e = {0};
    assert_int_equal(maker_write(test_scratch("maker.gguf", path), p, &e), OK);
    assert_int_equal(io_read_file(path, 64u << 20, out, &e), OK);
    unlink(path);
}

static void shape_and_keys_are_as_asked(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct err e = {0};
    uint32_t v;
    size_t n;
    p.n_block = 3;
    p.n_vocab = 700;
    struct gguf *g = made(&p);
    assert_int_equal(gguf_n_tensors(g), 3 + 3 * 9);
    assert_int_equal(gguf_u32(g, "llama.block_count", &v, &e), OK);
    assert_int_equal(v, 3);
    assert_int_equal(gguf_arr_strs(g, "tokenizer.ggml.tokens", 700, &n, &e), OK);
    const struct gguf_tensor *t = gguf_tensor_find(g, "blk.2.attn_k.weight");
    assert_non_null(t);
    assert_int_equal(t->ne[0], 64);
    assert_int_equal(t->ne[1], 32);
    gguf_close(g);
}

static void tied_model_has_no_output_matrix(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    p.tied = true;
    p.with_rope_freqs = true;
    struct gguf *g = made(&p);
    assert_null(gguf_tensor_find(g, "output.weight"));
    assert_non_null(gguf_tensor_find(g, "rope_freqs.weight"));
    gguf_close(g);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void pieces_are_unique_and_printable(void **state)
{
    (void)state;
    enum { N = 30000 };
    char(*piece)[MAKER_PIECE_BYTES] = calloc(N, sizeof *piece);
    assert_non_null(piece);
    for (uint32_t i = 0; i < N; i++)
        maker_piece(i, piece[i]);
    assert_string_equal(piece[3 + 0x41], "<0x41>");
    qsort(piece, N, sizeof *piece, by_text);
    for (uint32_t i = 1; i < N; i++)
        assert_string_not_equal(piece[i - 1], piece[i]);
    for (uint32_t i = 0; i < N; i++)
        for (const char *c = strncmp(piece[i], "\xe2\x96\x81", 3) == 0 ? piece[i] + 3 : piece[i]; *c; c++)
            assert_true(*c > ' ' && *c < 127);
    free(piece);
}

static void bytes_depend_on_the_seed_only(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct buf a = {0}, b = {0}, c = {0};
    p.n_block = 2;
    p.n_threads = 1;
    bytes_of(&p, &a);
    p.n_threads = 5;
    bytes_of(&p, &b);
    p.seed = 2;
    bytes_of(&p, &c);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    assert_int_equal(a.len, c.len);
    assert_memory_not_equal(a.data, c.data, a.len);
    buf_free(&a);
    buf_free(&b);
    buf_free(&c);
}

static void weights_have_the_intended_deviation(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct buf b = {0};
    double sum = 0, squares = 0;
    size_t n = (size_t)p.n_embd * p.n_ff;
    struct gguf *g = made(&p);
    struct gguf_tensor t = *gguf_tensor_find(g, "blk.0.ffn_up.weight");
    gguf_close(g);
    bytes_of(&p, &b);
    struct cursor c = cursor_of(b.data + t.offset, t.size);
    for (size_t i = 0; i < n; i++) {
        double v = (double)cursor_f32(&c);
        sum += v;
        squares += v * v;
    }
    assert_true(fabs(sum / (double)n) < 0.01);
    assert_true(fabs(sqrt(squares / (double)n) * 8 - 1) < 0.05); /* 1/sqrt(64) */
    buf_free(&b);
}

static void every_type_can_be_written(void **state)
{
    (void)state;
    static const char *const names[] = {"f32",  "f16",  "bf16", "q4_0", "q4_1", "q5_0", "q5_1",
                                        "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct maker_params p = maker_small();
        struct err e = {0};
        p.n_block = 1;
        p.n_vocab = 300;
        p.n_embd = 256;
        p.n_ff = 256;
        p.head_dim = 64;
        assert_int_equal(maker_type(names[i], &p.type, &e), OK);
        struct gguf *g = made(&p);
        assert_int_equal(gguf_tensor_find(g, "token_embd.weight")->type, p.type);
        gguf_close(g);
    }
}

static void impossible_shapes_are_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e = {0};
    struct maker_params p = maker_small();
    test_scratch("maker.gguf", path);
    p.n_head_kv = 3;
    assert_int_equal(maker_write(path, &p, &e), ERR_ARG);
    p = maker_small();
    p.n_embd = 48;
    assert_int_equal(maker_type("q8_0", &p.type, &e), OK);
    assert_int_equal(maker_write(path, &p, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "multiple of 32"));
    assert_int_equal(access(path, F_OK), -1);
}

static void a_fault_that_hits_nothing_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e = {0};
    struct maker_params p = maker_small();
    test_scratch("maker.gguf", path);
    p.broken_drop = "blk.6.ffn_up.weight";
    assert_int_equal(maker_write(path, &p, &e), ERR_ARG);
    p = maker_small();
    p.broken_retype = "no.such";
    assert_int_equal(maker_write(path, &p, &e), ERR_ARG);
}

static void faults_are_where_they_were_ordered(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct err e = {0};
    uint32_t v;
    p.broken_drop = "blk.2.ffn_up.weight";
    p.broken_reshape = "blk.1.attn_q.weight";
    p.broken_ne[0] = 32;
    p.broken_ne[1] = 16;
    p.broken_key = "llama.block_count";
    p.broken_key_how = MAKER_KEY_STRING;
    struct gguf *g = made(&p);
    assert_null(gguf_tensor_find(g, "blk.2.ffn_up.weight"));
    assert_int_equal(gguf_tensor_find(g, "blk.1.attn_q.weight")->ne[1], 16);
    assert_int_equal(gguf_u32(g, "llama.block_count", &v, &e), ERR_FORMAT);
    gguf_close(g);
}

static void cut_file_does_not_open(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct maker_params p = maker_small();
    struct gguf *g = NULL;
    struct err e = {0};
    p.broken_cut = 4096;
    assert_int_equal(maker_write(test_scratch("maker.gguf", path), &p, &e), OK);
    assert_int_equal(gguf_open(path, &g, &e), ERR_FORMAT);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shape_and_keys_are_as_asked),         cmocka_unit_test(tied_model_has_no_output_matrix),
        cmocka_unit_test(pieces_are_unique_and_printable),     cmocka_unit_test(bytes_depend_on_the_seed_only),
        cmocka_unit_test(weights_have_the_intended_deviation), cmocka_unit_test(every_type_can_be_written),
        cmocka_unit_test(impossible_shapes_are_refused),       cmocka_unit_test(a_fault_that_hits_nothing_is_refused),
        cmocka_unit_test(faults_are_where_they_were_ordered),  cmocka_unit_test(cut_file_does_not_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
