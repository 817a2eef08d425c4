/* SPDX-License-Identifier: MIT
 *
 * The stage's interface: limits, stale entries, reset and truncation; and that batching, chunking, threads and the type
 * of the cache change the numbers as little as they may.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/golden.h"
#include "lib/stage_run.h"
#include "lib/test_util.h"

#include <math.h>

static struct gguf *model; /* llama-spm-f32: 6 blocks, 608 tokens */

static int open_model(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    return gguf_open(test_data("llama-spm-f32.gguf", path), &model, &e) == OK ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    gguf_close(model);
    return 0;
}

static void must_open(struct run *r, const struct stage_params *p)
{
    struct err e;
    if (run_open(r, model, p, &e) != OK)
        fail_msg("%s", e.msg);
}

static void must_feed(struct run *r, uint32_t slot, const int32_t *ids, uint32_t n, uint32_t flags)
{
    struct err e;
    if (run_feed(r, slot, ids, n, flags, &e) != OK)
        fail_msg("%s", e.msg);
}

static void must_step(struct run *r)
{
    struct err e;
    if (run_step(r, &e) != OK)
        fail_msg("%s", e.msg);
}

static void not_open(struct stage_params p, enum err_code code, const char *says)
{
    struct stage *st = NULL;
    struct err e = {0};
    enum err_code rc = stage_open(model, &p, &st, &e);
    if (rc != code || !strstr(e.msg, says))
        fail_msg("%s: %s", err_name(rc), e.msg);
    assert_null(st);
}

/* --- opening
 * ---------------------------------------------------------------------------------------------------------- */

static void windows_out_of_range_are_refused(void **state)
{
    (void)state;
    struct stage_params p = run_params();
    p.end = 7;
    not_open(p, ERR_RANGE, "[0,7) is not within the model's 6 blocks");
    p.first = 6;
    p.end = 0;
    not_open(p, ERR_RANGE, "[6,6)");
    p.first = 3;
    p.end = 3;
    not_open(p, ERR_RANGE, "[3,3)");
    p.first = 4;
    p.end = 2;
    not_open(p, ERR_RANGE, "[4,2)");
    p.first = UINT32_MAX;
    p.end = 1;
    not_open(p, ERR_RANGE, "is not within");
}

static void parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    struct stage_params ok = run_params(), p = ok;
    p.n_ctx = 0;
    not_open(p, ERR_RANGE, "context of 0");
    p.n_ctx = UINT32_MAX;
    not_open(p, ERR_RANGE, "context of 4294967295");
    p = ok;
    p.n_slots = 0;
    not_open(p, ERR_RANGE, "0 slots");
    p.n_slots = 100000;
    not_open(p, ERR_RANGE, "100000 slots");
    p = ok;
    p.n_batch = BATCH_MAX_TOK + 1;
    not_open(p, ERR_RANGE, "4097 tokens");
    p = ok;
    p.n_threads = 0;
    not_open(p, ERR_ARG, "0 compute threads");
    p.n_threads = 100000;
    not_open(p, ERR_ARG, "100000 compute threads");
    p = ok;
    p.device = "abacus";
    not_open(p, ERR_NOT_FOUND, "no device 'abacus'");
    p = ok;
    p.kv_type = KV_TYPE_COUNT;
    not_open(p, ERR_ARG, "cache");
}

static void a_cache_beyond_all_memory_is_refused(void **state)
{
    (void)state;
    struct stage_params p = run_params();
    p.n_ctx = 1u << 24;
    p.n_slots = 256; /* 6 blocks x 2 x 2^32 cells x 128 bytes */
    not_open(p, ERR_NOMEM, "key/value cache");
}

static void a_model_in_memory_is_refused(void **state)
{
    (void)state;
    struct buf b = {0};
    struct gguf *g;
    struct stage *st = NULL;
    struct err e;
    char path[PATH_MAX];
    struct stage_params p = run_params();
    assert_int_equal(io_read_file(test_data("llama-spm-f32.gguf", path), 4u << 20, &b, &e), OK);
    assert_int_equal(gguf_open_mem(b.data, b.len, &g, &e), OK);
    assert_int_equal(stage_open(g, &p, &st, &e), ERR_ARG);
    gguf_close(g);
    buf_free(&b);
}

/* --- steps that must not be
 * --------------------------------------------------------------------------------------------- */

/* The prepared step is refused, computes nothing, and the slot goes on as if it had not been. */
static void not_step(struct run *r, enum err_code code, const char *says)
{
    struct err e = {0};
    uint32_t held[4];
    for (uint32_t s = 0; s < 4; s++)
        held[s] = stage_slot_tokens(r->st, s);
    enum err_code rc = stage_step(r->st, &r->b, &e);
    if (rc != code || !strstr(e.msg, says))
        fail_msg("%s: %s", err_name(rc), rc == OK ? "it ran" : e.msg);
    for (uint32_t s = 0; s < 4; s++)
        assert_int_equal(stage_slot_tokens(r->st, s), held[s]);
}

static struct batch_entry *one(struct run *r, uint32_t n)
{
    int32_t ids[RUN_MAX_TOK];
    run_ids(ids, n, r->info->n_vocab, 9);
    run_begin(r);
    return run_add(r, 0, ids, n, BATCH_SAMPLE);
}

static void counts_out_of_range_are_refused(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    p.n_batch = 8;
    must_open(&r, &p);
    run_begin(&r);
    not_step(&r, ERR_LIMIT, "a step of 0 tokens");
    one(&r, 9);
    not_step(&r, ERR_LIMIT, "a step of 9 tokens");
    one(&r, 4);
    r.b.n_entries = 0;
    not_step(&r, ERR_LIMIT, "a step of 0 sequences");
    r.b.n_entries = 5;
    not_step(&r, ERR_LIMIT, "a step of 5 sequences");
    one(&r, 4)->n_tok = 0;
    not_step(&r, ERR_RANGE, "an entry of 0 tokens");
    one(&r, 4)->n_tok = UINT32_MAX;
    not_step(&r, ERR_RANGE, "an entry of 4294967295 tokens");
    one(&r, 4)->n_tok = 3;
    not_step(&r, ERR_RANGE, "do not add up");
    one(&r, 4);
    r.b.n_embd = 63;
    not_step(&r, ERR_MISMATCH, "rows of 63 values, this model has 64");
    run_close(&r);
}

static void slots_out_of_range_or_twice_are_refused(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    int32_t ids[] = {5, 6};
    must_open(&r, &p);
    one(&r, 1)->slot = 4;
    not_step(&r, ERR_RANGE, "slot 4 of 4");
    one(&r, 1)->slot = UINT32_MAX;
    not_step(&r, ERR_RANGE, "slot 4294967295 of 4");
    run_begin(&r);
    run_add(&r, 2, ids, 2, 0);
    run_add(&r, 2, ids, 2, 0);
    not_step(&r, ERR_RANGE, "slot 2 is twice");
    struct batch_sampling s = {.top_p = 1, .repeat_penalty = 1};
    struct err e;
    assert_int_equal(stage_sampling(r.st, 4, &s, &e), ERR_RANGE);
    s.top_p = 2;
    assert_int_equal(stage_sampling(r.st, 0, &s, &e), ERR_ARG);
    assert_int_equal(stage_slot_tokens(r.st, 4), 0);
    run_close(&r);
}

static void unknown_flags_are_refused(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    must_open(&r, &p);
    one(&r, 1)->flags = 1u << 7;
    not_step(&r, ERR_RANGE, "flags");
    run_close(&r);
}

static void tokens_out_of_the_vocabulary_are_refused(void **state)
{
    (void)state;
    struct stage_params p = run_params();
    for (int middle = 0; middle < 2; middle++) { /* every stage looks: penalties and hashes come from them */
        struct run r;
        p.first = middle ? 2 : 0;
        p.end = middle ? 4 : 0;
        must_open(&r, &p);
        one(&r, 3);
        r.b.tokens[2] = 608;
        not_step(&r, ERR_RANGE, "token 608 is not in the vocabulary of 608");
        r.b.tokens[2] = -1;
        not_step(&r, ERR_RANGE, "token -1");
        run_close(&r);
    }
}

static void a_full_context_is_a_limit(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    int32_t ids[20];
    p.n_ctx = 16;
    must_open(&r, &p);
    run_ids(ids, 20, 608, 1);
    one(&r, 17);
    not_step(&r, ERR_LIMIT, "beyond the context of 16");
    must_feed(&r, 0, ids, 16, BATCH_SAMPLE);
    assert_int_equal(r.result[0].pos, 16); /* it was sampled, but there is no room for it */
    one(&r, 1);
    not_step(&r, ERR_LIMIT, "beyond the context of 16");
    one(&r, 1)->pos = UINT32_MAX;
    not_step(&r, ERR_LIMIT, "beyond the context of 16");
    must_feed(&r, 0, ids, 1, BATCH_RESET);
    assert_int_equal(stage_slot_tokens(r.st, 0), 1);
    run_close(&r);
}

static void a_step_elsewhere_than_the_slot_is_stale(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    int32_t ids[] = {10, 11, 12};
    must_open(&r, &p);
    must_feed(&r, 0, ids, 3, 0);
    one(&r, 1)->pos = 2;
    not_step(&r, ERR_STALE, "holds 3 tokens, the step goes on at 2");
    one(&r, 1)->pos = 4;
    not_step(&r, ERR_STALE, "holds 3 tokens, the step goes on at 4");
    one(&r, 1)->prefix_hash ^= 1;
    not_step(&r, ERR_STALE, "other tokens before position 3");
    struct batch_entry *en = one(&r, 1);
    en->flags |= BATCH_TRUNCATE;
    en->pos = 4;
    not_step(&r, ERR_STALE, "holds 3 tokens");
    en = one(&r, 1);
    en->flags |= BATCH_TRUNCATE;
    en->pos = 1; /* right, but the hash is that of three tokens */
    not_step(&r, ERR_STALE, "other tokens before position 1");
    en = one(&r, 1);
    en->flags |= BATCH_RESET;
    not_step(&r, ERR_RANGE, "begins at position 0, not 3");
    en = one(&r, 1);
    en->flags |= BATCH_RESET;
    en->pos = 0; /* with the hash of three tokens */
    not_step(&r, ERR_STALE, "other tokens");
    must_feed(&r, 0, ids, 1, 0); /* nothing of that did harm */
    run_close(&r);
}

static void rows_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    p.first = 2;
    must_open(&r, &p);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        one(&r, 3);
        for (size_t k = 0; k < 3 * 64; k++)
            r.b.rows[k] = 0.5f;
        r.b.rows[2 * 64 + 63] = bad[i];
        not_step(&r, ERR_NUMERIC, "token 2");
    }
    run_close(&r);
}

/* Finite, but so large that the squares are not: an error or a result, never an abort. */
static void huge_rows_do_no_harm(void **state)
{
    (void)state;
    static const float huge[] = {3e38f, -3e38f, 1e20f, 1e-45f};
    struct stage_params p = run_params();
    p.first = 2;
    for (int head = 0; head < 2; head++) {
        p.no_head = !head;
        for (size_t i = 0; i < 4; i++) {
            struct run r;
            struct err e = {0};
            must_open(&r, &p);
            one(&r, 3);
            for (size_t k = 0; k < 3 * 64; k++)
                r.b.rows[k] = k % 3 ? huge[i] : -huge[i];
            enum err_code rc = stage_step(r.st, &r.b, &e);
            assert_true(rc == OK || rc == ERR_NUMERIC);
            assert_int_equal(stage_slot_tokens(r.st, 0), rc == OK ? 3 : 0);
            run_close(&r);
        }
    }
}

/* --- what changes nothing
 * ------------------------------------------------------------------------------------------------ */

static void copy_logits(const struct run *r, uint32_t row, float *out)
{
    const float *l = run_logits(r, row);
    assert_non_null(l);
    memcpy(out, l, 608 * sizeof *out);
}

static void truncation_goes_back_to_what_was(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    int32_t ids[20], other[5];
    float first[608], again[608];
    must_open(&r, &p);
    run_ids(ids, 20, 608, 1);
    run_ids(other, 5, 608, 2);
    must_feed(&r, 0, ids, 12, 0);
    uint64_t hash12 = r.hash[0];
    must_feed(&r, 0, ids + 12, 5, BATCH_SAMPLE);
    copy_logits(&r, 0, first);
    r.pos[0] = 12;
    r.hash[0] = hash12;
    must_feed(&r, 0, other, 5, BATCH_TRUNCATE);
    assert_int_equal(stage_slot_tokens(r.st, 0), 17);
    r.pos[0] = 12;
    r.hash[0] = hash12;
    must_feed(&r, 0, ids + 12, 5, BATCH_TRUNCATE | BATCH_SAMPLE);
    copy_logits(&r, 0, again);
    assert_memory_equal(first, again, sizeof first);
    run_close(&r);
}

static void a_reset_slot_is_as_new(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    int32_t ids[40], other[60];
    float first[608], again[608];
    must_open(&r, &p);
    run_ids(ids, 40, 608, 1);
    run_ids(other, 60, 608, 2);
    must_feed(&r, 1, ids, 40, BATCH_SAMPLE);
    copy_logits(&r, 0, first);
    must_feed(&r, 1, other, 60, BATCH_RESET);
    must_feed(&r, 1, ids, 40, BATCH_RESET | BATCH_SAMPLE);
    copy_logits(&r, 0, again);
    assert_memory_equal(first, again, sizeof first);
    run_close(&r);
}

/* Three sequences of different lengths in one step, then one token of each: as each alone. */
static void sequences_in_one_step_do_not_see_each_other(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    static const uint32_t len[] = {5, 33, 17};
    int32_t ids[3][40];
    float alone[3][2][608];
    must_open(&r, &p);
    for (uint32_t s = 0; s < 3; s++) {
        run_ids(ids[s], 40, 608, s + 1);
        must_feed(&r, 3, ids[s], len[s], BATCH_RESET | BATCH_SAMPLE);
        copy_logits(&r, 0, alone[s][0]);
        must_feed(&r, 3, ids[s] + len[s], 1, BATCH_SAMPLE);
        copy_logits(&r, 0, alone[s][1]);
    }
    for (int part = 0; part < 2; part++) {
        run_begin(&r);
        for (uint32_t s = 0; s < 3; s++)
            run_add(&r, s, part ? ids[s] + len[s] : ids[s], part ? 1 : len[s], BATCH_SAMPLE);
        must_step(&r);
        assert_int_equal(r.b.n_results, 3);
        for (uint32_t s = 0; s < 3; s++) {
            double nmse = golden_nmse_logits(run_logits(&r, s), alone[s][part], 608);
            assert_int_equal(r.result[s].slot, s);
            assert_int_equal(r.result[s].request_id, 100 + s);
            assert_int_equal(r.result[s].pos, len[s] + (uint32_t)part);
            if (nmse > 1e-9)
                fail_msg("sequence %u: NMSE %g", s, nmse);
        }
    }
    run_close(&r);
}

/* The same step twice, with the sequences in other slots: the same shapes, so the same bits. */
static void the_slot_does_not_change_a_bit(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    int32_t a[20], c[20];
    float first[2][608], again[608];
    must_open(&r, &p);
    run_ids(a, 20, 608, 1);
    run_ids(c, 20, 608, 2);
    for (uint32_t shift = 0; shift < 3; shift++) {
        run_begin(&r);
        run_add(&r, shift, a, 20, BATCH_RESET | BATCH_SAMPLE);
        run_add(&r, shift + 1, c, 20, BATCH_RESET | BATCH_SAMPLE);
        must_step(&r);
        for (uint32_t s = 0; s < 2; s++) {
            copy_logits(&r, s, shift ? again : first[s]);
            if (shift)
                assert_memory_equal(again, first[s], sizeof again);
        }
    }
    run_close(&r);
}

static void only_who_wants_a_sample_gets_one(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    int32_t ids[8];
    uint32_t rows;
    must_open(&r, &p);
    run_ids(ids, 8, 608, 1);
    run_begin(&r);
    run_add(&r, 0, ids, 3, 0);
    run_add(&r, 1, ids, 4, BATCH_SAMPLE);
    run_add(&r, 2, ids, 5, 0);
    must_step(&r);
    assert_int_equal(r.b.n_results, 1);
    assert_int_equal(r.result[0].slot, 1);
    assert_non_null(stage_logits(r.st, &rows));
    assert_int_equal(rows, 1);
    run_begin(&r);
    assert_int_equal(run_step(&r, NULL), ERR_LIMIT); /* a step that is refused has none, nor those before it */
    assert_null(stage_logits(r.st, &rows));
    must_feed(&r, 0, ids, 3, 0);
    assert_int_equal(r.b.n_results, 0);
    assert_null(stage_logits(r.st, &rows));
    run_close(&r);
}

static void a_prompt_in_chunks_is_the_prompt(void **state)
{
    (void)state;
    struct run r;
    struct stage_params p = run_params();
    int32_t ids[300];
    float whole[608];
    must_open(&r, &p);
    run_ids(ids, 300, 608, 3);
    must_feed(&r, 0, ids, 300, BATCH_SAMPLE);
    copy_logits(&r, 0, whole);
    static const uint32_t chunk[] = {1, 7, 64, 255, 256, 299};
    for (size_t c = 0; c < sizeof chunk / sizeof *chunk; c++) {
        for (uint32_t at = 0; at < 300; at += chunk[c]) {
            uint32_t n = 300 - at < chunk[c] ? 300 - at : chunk[c];
            must_feed(&r, 1, ids + at, n, (at == 0 ? BATCH_RESET : 0) | (at + n == 300 ? BATCH_SAMPLE : 0));
        }
        double nmse = golden_nmse_logits(run_logits(&r, 0), whole, 608);
        if (nmse > 1e-9)
            fail_msg("chunks of %u: NMSE %g", chunk[c], nmse);
    }
    run_close(&r);
}

/* Logits after a prompt and 20 single tokens. */
static void logits_with(const struct stage_params *p, float *out)
{
    struct run r;
    int32_t ids[120];
    must_open(&r, p);
    run_ids(ids, 120, 608, 4);
    must_feed(&r, 0, ids, 100, 0);
    for (int i = 100; i < 120; i++)
        must_feed(&r, 0, ids + i, 1, BATCH_SAMPLE);
    copy_logits(&r, 0, out);
    run_close(&r);
}

static void an_f16_cache_is_close(void **state)
{
    (void)state;
    struct stage_params p = run_params();
    float f32[608], f16[608];
    logits_with(&p, f32);
    p.kv_type = KV_F16;
    logits_with(&p, f16);
    double nmse = golden_nmse_logits(f16, f32, 608);
    assert_true(nmse <= 1e-4);
    assert_true(nmse > 0); /* else it was not used */
}

static void two_threads_compute_the_same(void **state)
{
    (void)state;
    struct stage_params p = run_params();
    float one_thread[608], two[608];
    logits_with(&p, one_thread);
    p.n_threads = 2;
    logits_with(&p, two);
    assert_true(golden_nmse_logits(two, one_thread, 608) <= 1e-9);
}

static void a_context_of_any_size_works(void **state)
{
    (void)state;
    static const uint32_t n_ctx[] = {120, 121, 255, 256, 257, 300};
    struct stage_params p = run_params();
    float ref[608], out[608];
    logits_with(&p, ref);
    for (size_t i = 0; i < sizeof n_ctx / sizeof *n_ctx; i++) {
        p.n_ctx = n_ctx[i];
        logits_with(&p, out);
        assert_true(golden_nmse_logits(out, ref, 608) <= 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_out_of_range_are_refused),
        cmocka_unit_test(parameters_out_of_range_are_refused),
        cmocka_unit_test(a_cache_beyond_all_memory_is_refused),
        cmocka_unit_test(a_model_in_memory_is_refused),
        cmocka_unit_test(counts_out_of_range_are_refused),
        cmocka_unit_test(slots_out_of_range_or_twice_are_refused),
        cmocka_unit_test(unknown_flags_are_refused),
        cmocka_unit_test(tokens_out_of_the_vocabulary_are_refused),
        cmocka_unit_test(a_full_context_is_a_limit),
        cmocka_unit_test(a_step_elsewhere_than_the_slot_is_stale),
        cmocka_unit_test(rows_that_are_no_numbers_are_refused),
        cmocka_unit_test(huge_rows_do_no_harm),
        cmocka_unit_test(truncation_goes_back_to_what_was),
        cmocka_unit_test(a_reset_slot_is_as_new),
        cmocka_unit_test(sequences_in_one_step_do_not_see_each_other),
        cmocka_unit_test(the_slot_does_not_change_a_bit),
        cmocka_unit_test(only_who_wants_a_sample_gets_one),
        cmocka_unit_test(a_prompt_in_chunks_is_the_prompt),
        cmocka_unit_test(an_f16_cache_is_close),
        cmocka_unit_test(two_threads_compute_the_same),
        cmocka_unit_test(a_context_of_any_size_works),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
