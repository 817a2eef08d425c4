/* SPDX-License-Identifier: MIT
 *
 * Models that are wrong in one place: opening a stage refuses each with a code and one line that names it, and what
 * only shows while computing is an error of the step. Never an abort.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "base/text.h"
#include "lib/maker.h"
#include "lib/stage_run.h"
#include "lib/test_util.h"

#include <ggml.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static struct maker_params tiny(void)
{
    struct maker_params p = maker_small();
    p.n_block = 3;
    return p;
}

/* The bytes of p's model. */
static void made(const struct maker_params *p, struct buf *out)
{
    char path[PATH_MAX];
    struct err e = {0};
    if (maker_write(test_scratch("bad.gguf", path), p, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(io_read_file(path, 64u << 20, out, &e), OK);
    unlink(path);
}

/* Opens bytes as a file; the file is gone afterwards, g keeps it. */
static enum err_code open_bytes(const struct buf *b, struct gguf **g, struct err *e)
{
    char path[PATH_MAX];
    assert_int_equal(io_write_file(test_scratch("bad.gguf", path), b->data, b->len, 0600, e), OK);
    enum err_code rc = gguf_open(path, g, e);
    unlink(path);
    return rc;
}

/* Opens the model and the window of it. */
static enum err_code try_window(const struct buf *b, uint32_t first, uint32_t end, struct run *r, struct err *e)
{
    struct gguf *g = NULL;
    struct stage_params sp = run_params();
    sp.first = first;
    sp.end = end;
    enum err_code rc = open_bytes(b, &g, e);
    if (rc == OK)
        rc = run_open(r, g, &sp, e);
    gguf_close(g);
    return rc;
}

static void must_window(const struct buf *b, uint32_t first, uint32_t end, struct run *r)
{
    struct err e = {0};
    if (try_window(b, first, end, r, &e) != OK)
        fail_msg("%s", e.msg);
}

static void expect_bytes(const struct buf *b, enum err_code code, const char *says)
{
    struct run r;
    struct err e = {0};
    enum err_code rc = try_window(b, 0, 0, &r, &e);
    if (rc != code || (rc != OK && !strstr(e.msg, says)))
        fail_msg("%s, expected %s '%s': %s", err_name(rc), err_name(code), says, e.msg);
    if (rc == OK)
        run_close(&r);
    else
        assert_true(text_printable(e.msg, strlen(e.msg)));
}

static void expect(const struct maker_params *p, enum err_code code, const char *says)
{
    struct buf b = {0};
    made(p, &b);
    expect_bytes(&b, code, says);
    buf_free(&b);
}

static const char *const every_kind[] = {"token_embd.weight",        "output_norm.weight",    "blk.1.attn_norm.weight",
                                         "blk.1.attn_q.weight",      "blk.1.attn_k.weight",   "blk.1.attn_v.weight",
                                         "blk.1.attn_output.weight", "blk.1.ffn_norm.weight", "blk.1.ffn_gate.weight",
                                         "blk.1.ffn_up.weight",      "blk.1.ffn_down.weight", "output.weight"};
#define N_KINDS (sizeof every_kind / sizeof *every_kind)

static bool is_norm(const char *name)
{
    return strstr(name, "norm") != NULL;
}

static void a_sound_model_opens(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    expect(&p, OK, "");
}

static void each_missing_tensor_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i + 1 < N_KINDS; i++) { /* without output.weight the head is tied */
        struct maker_params p = tiny();
        p.broken_drop = every_kind[i];
        expect(&p, ERR_NOT_FOUND, every_kind[i]);
    }
}

static void a_window_needs_only_its_own_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *drop;
        uint32_t first, end;
        enum err_code code;
    } cases[] = {{"blk.1.ffn_up.weight", 0, 1, OK}, {"blk.1.ffn_up.weight", 1, 2, ERR_NOT_FOUND},
                 {"blk.1.ffn_up.weight", 2, 3, OK}, {"token_embd.weight", 1, 3, OK},
                 {"output_norm.weight", 0, 2, OK},  {"output_norm.weight", 2, 3, ERR_NOT_FOUND}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_params p = tiny();
        struct buf b = {0};
        struct run r;
        struct err e;
        p.broken_drop = cases[i].drop;
        made(&p, &b);
        enum err_code rc = try_window(&b, cases[i].first, cases[i].end, &r, &e);
        assert_int_equal(rc, cases[i].code);
        if (rc == OK)
            run_close(&r);
        buf_free(&b);
    }
}

static void each_wrong_shape_is_named(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{64, 65}, {32, 64}, {64, 0}, {1, 1}, {128, 512}};
    for (size_t i = 0; i < N_KINDS; i++) {
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct maker_params p = tiny();
            if (is_norm(every_kind[i]) && shapes[k][1] == 0)
                continue; /* that is its shape */
            p.broken_reshape = every_kind[i];
            p.broken_ne[0] = shapes[k][0];
            p.broken_ne[1] = shapes[k][1];
            expect(&p, ERR_FORMAT, every_kind[i]);
        }
    }
}

static void norms_must_be_f32(void **state)
{
    (void)state;
    static const int types[] = {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};
    for (size_t i = 0; i < N_KINDS; i++) {
        for (size_t k = 0; k < sizeof types / sizeof *types && is_norm(every_kind[i]); k++) {
            struct maker_params p = tiny();
            p.broken_retype = every_kind[i];
            p.broken_type = types[k];
            expect(&p, ERR_FORMAT, "f32 is needed");
        }
    }
}

static void mixed_types_of_matrices_are_fine(void **state)
{
    (void)state;
    static const int types[] = {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1};
    for (size_t i = 0; i < N_KINDS; i++) {
        if (is_norm(every_kind[i]))
            continue;
        struct maker_params p = tiny();
        p.broken_retype = every_kind[i];
        p.broken_type = types[i % (sizeof types / sizeof *types)];
        expect(&p, OK, "");
    }
}

static void hyper_parameters_that_contradict_the_tensors_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        enum err_code code;
        const char *says;
    } cases[] = {
        {"llama.embedding_length", 32, ERR_FORMAT, "token_embd.weight"},
        {"llama.attention.head_count", 8, ERR_FORMAT, "attn_q.weight"},
        {"llama.attention.head_count_kv", 4, ERR_FORMAT, "attn_k.weight"},
        {"llama.attention.key_length", 32, ERR_FORMAT, "attn_q.weight"},
        {"llama.attention.value_length", 8, ERR_FORMAT, "attn_v.weight"},
        {"llama.feed_forward_length", 256, ERR_FORMAT, "ffn_"},
        {"llama.block_count", 4, ERR_NOT_FOUND, "blk.3."},
        {"llama.expert_count", 8, ERR_NOT_FOUND, "llama.expert_used_count"},
        {"llama.nextn_predict_layers", 4, ERR_RANGE, "llama.nextn_predict_layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_params p = tiny();
        p.broken_key = cases[i].key;
        p.broken_key_how = MAKER_KEY_U32;
        p.broken_u32 = cases[i].value;
        expect(&p, cases[i].code, cases[i].says);
    }
}

static void fewer_blocks_than_tensors_are_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.broken_key = "llama.block_count";
    p.broken_key_how = MAKER_KEY_U32;
    p.broken_u32 = 2; /* else it would run, without its last block, and write something else */
    expect(&p, ERR_FORMAT, "blk.2.");
}

static void an_odd_head_that_fits_nothing_is_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.broken_key = "llama.attention.key_length";
    p.broken_key_how = MAKER_KEY_U32;
    p.broken_u32 = 15;
    expect(&p, ERR_RANGE, "rope.dimension_count"); /* 16 of 15 */
}

/* A vocabulary and a table of different lengths. */
static void a_table_that_does_not_fit_the_vocabulary_is_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.broken_reshape = "token_embd.weight";
    p.broken_ne[0] = 64;
    p.broken_ne[1] = 511;
    expect(&p, ERR_FORMAT, "[64, 511], this model needs [64, 512]");
    p.broken_reshape = "output.weight";
    expect(&p, ERR_FORMAT, "output.weight");
}

static void an_unknown_family_is_refused(void **state)
{
    (void)state;
    struct buf b = {0};
    struct maker_params p = tiny();
    made(&p, &b);
    /* every "llama" of the metadata becomes "lluma": a family nobody knows, complete with its keys */
    size_t n = 0;
    for (uint8_t *at = b.data; (at = memmem(at, 4096 - (size_t)(at - b.data), "llama", 5)); n++)
        at[2] = 'u';
    assert_true(n > 10);
    expect_bytes(&b, ERR_UNSUPPORTED, "architecture 'lluma' cannot be run (known: llama");
    buf_free(&b);
    p.broken_key = "general.architecture";
    p.broken_key_how = MAKER_KEY_STRING;
    expect(&p, ERR_NOT_FOUND, "wrong.block_count");
}

static void rope_that_is_not_known_is_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.broken_key = "llama.rope.scaling.type";
    p.broken_key_how = MAKER_KEY_STRING;
    expect(&p, ERR_UNSUPPORTED, "RoPE scaling of type 'wrong'");
}

static void rope_factors_of_the_wrong_length_are_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.with_rope_freqs = true;
    expect(&p, OK, "");
    p.broken_reshape = "rope_freqs.weight";
    p.broken_ne[0] = 7;
    expect(&p, ERR_FORMAT, "rope_freqs.weight");
}

static void a_cut_file_is_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.broken_cut = 40000;
    expect(&p, ERR_FORMAT, "truncated: tensor");
}

/* --- values
 * ----------------------------------------------------------------------------------------------------------- */

/* Every f32 of this tensor becomes v. */
static void fill(struct buf *b, const char *name, float v)
{
    struct gguf *g = NULL;
    struct err e;
    assert_int_equal(gguf_open_mem(b->data, b->len, &g, &e), OK);
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    assert_non_null(t);
    for (uint64_t i = 0; i + 4 <= t->size; i += 4)
        memcpy(b->data + t->offset + i, &v, 4);
    gguf_close(g);
}

static void values_that_are_no_numbers_fail_the_step(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    const int32_t ids[] = {300, 301, 302, 303, 304};
    for (size_t i = 0; i < N_KINDS; i++) {
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            struct maker_params p = tiny();
            struct buf b = {0};
            struct run r;
            struct err e = {0};
            made(&p, &b);
            fill(&b, every_kind[i], bad[k]);
            must_window(&b, 0, 0, &r);
            enum err_code rc = run_feed(&r, 0, ids, 5, BATCH_SAMPLE, &e);
            bool finite = isfinite(bad[k]) || strstr(every_kind[i], "attn_q") || strstr(every_kind[i], "attn_k");
            if (rc != ERR_NUMERIC && !(rc == OK && finite))
                fail_msg("%s = %g: %s", every_kind[i], (double)bad[k], err_name(rc));
            if (rc != OK) {
                assert_int_equal(stage_slot_tokens(r.st, 0), 0);
                assert_int_equal(r.b.n_results, 0);
            }
            run_close(&r);

            /* the window of the middle block says so at its own boundary */
            must_window(&b, 1, 2, &r);
            run_begin(&r);
            run_add(&r, 0, ids, 5, 0);
            for (size_t x = 0; x < 5 * 64; x++)
                r.b.rows[x] = (float)(x % 7) - 3.0f;
            rc = run_step(&r, &e);
            bool here = strncmp(every_kind[i], "blk.1.", 6) == 0;
            if (rc != (here && !finite ? ERR_NUMERIC : OK) && !(here && finite && rc == ERR_NUMERIC))
                fail_msg("%s = %g in the middle: %s", every_kind[i], (double)bad[k], err_name(rc));
            run_close(&r);
            buf_free(&b);
        }
    }
}

/* --- types
 * ------------------------------------------------------------------------------------------------------------ */

static void put_tensor(struct buf *head, struct buf *data, const char *name, int type, uint64_t ne0, uint64_t ne1)
{
    buf_put_u64(head, strlen(name));
    buf_puts(head, name);
    buf_put_u32(head, 2);
    buf_put_u64(head, ne0);
    buf_put_u64(head, ne1);
    buf_put_u32(head, (uint32_t)type);
    buf_put_u64(head, data->len);
    size_t n = (size_t)ne1 * ggml_row_size((enum ggml_type)type, (int64_t)ne0);
    for (n = (n + 31) / 32 * 32; n > 0; n -= 32)
        buf_put(data, (const uint8_t[32]){0}, 32);
}

static void put_u32_key(struct buf *b, const char *key, uint32_t v)
{
    buf_put_u64(b, strlen(key));
    buf_puts(b, key);
    buf_put_u32(b, 4);
    buf_put_u32(b, v);
}

/* A model of one block, 256 wide, all zeros, whose table, head and matrices are of the types given. */
static void typed_model(struct buf *b, int embd, int head, int matrix)
{
    struct buf keys = {0}, infos = {0}, data = {0};
    buf_puts(&keys, "\x14" /* length of the next */);
    buf_put(&keys, (const uint8_t[7]){0}, 7);
    buf_puts(&keys, "general.architecture");
    buf_put_u32(&keys, 8);
    buf_put_u64(&keys, 5);
    buf_puts(&keys, "llama");
    put_u32_key(&keys, "llama.block_count", 1);
    put_u32_key(&keys, "llama.embedding_length", 256);
    put_u32_key(&keys, "llama.context_length", 64);
    put_u32_key(&keys, "llama.feed_forward_length", 256);
    put_u32_key(&keys, "llama.attention.head_count", 4);
    static const char eps[] = "llama.attention.layer_norm_rms_epsilon";
    buf_put_u64(&keys, sizeof eps - 1);
    buf_puts(&keys, eps);
    buf_put_u32(&keys, 6);
    buf_put_f32(&keys, 1e-5f);
    put_tensor(&infos, &data, "token_embd.weight", embd, 256, 32);
    put_tensor(&infos, &data, "output.weight", head, 256, 32);
    put_tensor(&infos, &data, "output_norm.weight", GGML_TYPE_F32, 256, 1);
    put_tensor(&infos, &data, "blk.0.attn_norm.weight", GGML_TYPE_F32, 256, 1);
    put_tensor(&infos, &data, "blk.0.ffn_norm.weight", GGML_TYPE_F32, 256, 1);
    static const char *const m[] = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
    for (size_t i = 0; i < 7; i++) {
        char name[40];
        snprintf(name, sizeof name, "blk.0.%s.weight", m[i]);
        put_tensor(&infos, &data, name, matrix, 256, 256);
    }
    buf_puts(b, "GGUF");
    buf_put_u32(b, 3);
    buf_put_u64(b, 12);
    buf_put_u64(b, 7);
    buf_put(b, keys.data, keys.len);
    buf_put(b, infos.data, infos.len);
    while (b->len % 32)
        buf_put_u8(b, 0);
    buf_put(b, data.data, data.len);
    assert_false(b->failed);
    buf_free(&keys);
    buf_free(&infos);
    buf_free(&data);
}

/* Opens and runs, or is refused as not supported; *ran counts. */
static void run_or_refuse(const char *what, int type, const struct buf *b, size_t *ran)
{
    struct run r;
    struct err e = {0};
    const int32_t ids[] = {1, 2, 3};
    enum err_code rc = try_window(b, 0, 0, &r, &e);
    if (rc == OK) {
        rc = run_feed(&r, 0, ids, 3, BATCH_SAMPLE, &e);
        if (rc == OK)
            rc = run_feed(&r, 0, ids, 1, BATCH_SAMPLE, &e);
        run_close(&r);
        if (rc != OK)
            fail_msg("%s of type %s: %s", what, ggml_type_name((enum ggml_type)type), e.msg);
        ++*ran;
    } else if (rc != ERR_UNSUPPORTED || !strstr(e.msg, ggml_type_name((enum ggml_type)type))) {
        fail_msg("%s of type %s: %s", what, ggml_type_name((enum ggml_type)type), e.msg);
    }
}

static void every_type_there_is_runs_or_is_refused(void **state)
{
    (void)state;
    size_t tables = 0, heads = 0, matrices = 0;
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        struct buf b = {0};
        if (ggml_blck_size((enum ggml_type)t) == 0)
            continue;
        typed_model(&b, t, GGML_TYPE_F32, GGML_TYPE_F32);
        run_or_refuse("a table", t, &b, &tables);
        buf_clear(&b);
        typed_model(&b, GGML_TYPE_F32, t, GGML_TYPE_F32);
        run_or_refuse("a head", t, &b, &heads);
        buf_clear(&b);
        typed_model(&b, GGML_TYPE_F32, GGML_TYPE_F32, t);
        run_or_refuse("matrices", t, &b, &matrices);
        buf_free(&b);
    }
    assert_true(tables >= 14 && heads >= 14 && matrices >= 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_model_opens),
        cmocka_unit_test(each_missing_tensor_is_named),
        cmocka_unit_test(a_window_needs_only_its_own_tensors),
        cmocka_unit_test(each_wrong_shape_is_named),
        cmocka_unit_test(norms_must_be_f32),
        cmocka_unit_test(mixed_types_of_matrices_are_fine),
        cmocka_unit_test(hyper_parameters_that_contradict_the_tensors_are_refused),
        cmocka_unit_test(fewer_blocks_than_tensors_are_refused),
        cmocka_unit_test(an_odd_head_that_fits_nothing_is_refused),
        cmocka_unit_test(a_table_that_does_not_fit_the_vocabulary_is_refused),
        cmocka_unit_test(an_unknown_family_is_refused),
        cmocka_unit_test(rope_that_is_not_known_is_refused),
        cmocka_unit_test(rope_factors_of_the_wrong_length_are_refused),
        cmocka_unit_test(a_cut_file_is_refused),
        cmocka_unit_test(values_that_are_no_numbers_fail_the_step),
        cmocka_unit_test(every_type_there_is_runs_or_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
