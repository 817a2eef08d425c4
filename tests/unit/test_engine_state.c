/* SPDX-License-Identifier: MIT
 *
 * What slots remember in models that are not plain attention: going back to checkpoints in hybrid models, windows
 * that wrap around, quantized caches, sequences of different lengths in one step, NextN blocks. Some models are
 * fixtures outside the repository: skipped where they are absent.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/golden.h"
#include "lib/stage_run.h"
#include "lib/test_util.h"
#include "model/slice.h"

#include <stdio.h>
#include <unistd.h>

static struct gguf *open_fixture(const char *stem)
{
    char name[128], path[PATH_MAX];
    struct err e;
    struct gguf *g;
    snprintf(name, sizeof name, "%s.gguf", stem);
    if (access(test_data(name, path), R_OK) != 0) {
        snprintf(name, sizeof name, "fixtures/%s.gguf", stem);
        if (!test_have_shared(name))
            skip();
        test_shared(name, path);
    }
    assert_int_equal(gguf_open(path, &g, &e), OK);
    return g;
}

static void open_run(struct run *r, const struct gguf *g, const struct stage_params *p)
{
    struct err e;
    if (run_open(r, g, p, &e) != OK)
        fail_msg("%s", e.msg);
}

/* Feeds ids; the logits of the last one. */
static const float *feed(struct run *r, uint32_t slot, const int32_t *ids, uint32_t n, uint32_t flags)
{
    struct err e;
    if (run_feed(r, slot, ids, n, flags | BATCH_SAMPLE, &e) != OK)
        fail_msg("%s", e.msg);
    assert_non_null(run_logits(r, 0));
    return run_logits(r, 0);
}

/* The slot goes on at pos, whose prefix is ids[0..pos). */
static void go_back(struct run *r, uint32_t slot, const int32_t *ids, uint32_t pos)
{
    r->pos[slot] = pos;
    r->hash[slot] = HASH_PREFIX_EMPTY;
    for (uint32_t i = 0; i < pos; i++)
        r->hash[slot] = hash_prefix(r->hash[slot], ids[i]);
}

static float *copy_row(const struct run *r, const float *row)
{
    float *c = malloc(r->info->n_vocab * sizeof *c);
    memcpy(c, row, r->info->n_vocab * sizeof *c);
    return c;
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

/* Prompt, checkpoint, one continuation, back to the checkpoint, another continuation: as if the first had not been. */
static void a_hybrid_slot_goes_back_to_a_checkpoint(void **state)
{
    const char *stem = *state;
    struct gguf *g = open_fixture(stem);
    struct stage_params p = run_params();
    struct run r, fresh;
    int32_t ids[60], other[60];
    struct err e;
    open_run(&r, g, &p);
    open_run(&fresh, g, &p);
    run_ids(ids, 60, r.info->n_vocab, 1);
    memcpy(other, ids, 20 * sizeof *ids);
    run_ids(other + 20, 40, r.info->n_vocab, 2);

    feed(&fresh, 1, other, 20, BATCH_RESET);
    const float *want = feed(&fresh, 1, other + 20, 40, 0);

    feed(&r, 1, ids, 20, BATCH_RESET);
    feed(&r, 1, ids + 20, 40, BATCH_CHECKPOINT);
    assert_int_equal(stage_reach(r.st, 1, 60), 60);
    assert_int_equal(stage_reach(r.st, 1, 59), 20);
    assert_int_equal(stage_reach(r.st, 1, 19), 0);

    go_back(&r, 1, ids, 40); /* no checkpoint there: refused, and nothing is lost */
    assert_int_equal(run_feed(&r, 1, other + 20, 4, BATCH_TRUNCATE | BATCH_SAMPLE, &e), ERR_STALE);
    assert_non_null(strstr(e.msg, "only to 20"));
    assert_int_equal(stage_slot_tokens(r.st, 1), 60);

    for (int again = 0; again < 2; again++) { /* a checkpoint can be used more than once */
        go_back(&r, 1, ids, 20);
        const float *got = feed(&r, 1, other + 20, 40, BATCH_TRUNCATE);
        assert_memory_equal(got, want, r.info->n_vocab * sizeof *got);
    }
    run_close(&fresh);
    run_close(&r);
    gguf_close(g);
}

static void the_earliest_checkpoint_makes_room(void **state)
{
    (void)state;
    struct gguf *g = open_fixture("qwen35-f32");
    struct stage_params p = run_params();
    p.n_checkpoints = 2;
    struct run r;
    int32_t ids[50];
    open_run(&r, g, &p);
    run_ids(ids, 50, r.info->n_vocab, 3);
    for (uint32_t at = 0; at < 50; at += 10)
        feed(&r, 0, ids + at, 10, BATCH_CHECKPOINT | (at ? 0 : BATCH_RESET));
    assert_int_equal(stage_reach(r.st, 0, 49), 40);
    assert_int_equal(stage_reach(r.st, 0, 39), 30);
    assert_int_equal(stage_reach(r.st, 0, 29), 0);
    go_back(&r, 0, ids, 30);
    feed(&r, 0, ids, 5, BATCH_TRUNCATE); /* what was kept later is of another text now */
    assert_int_equal(stage_reach(r.st, 0, 34), 30);
    feed(&r, 0, ids, 5, BATCH_RESET);
    assert_int_equal(stage_reach(r.st, 0, 4), 0);
    run_close(&r);
    gguf_close(g);
}

/* A window of attention blocks alone answers as the others do. */
static void every_window_of_a_hybrid_model_reaches_the_same(void **state)
{
    (void)state;
    struct gguf *g = open_fixture("qwen35-f32");
    struct err e;
    for (uint32_t first = 2; first < 4; first++) { /* block 2 is recurrent, block 3 is not */
        struct stage_params p = run_params();
        p.first = first;
        p.end = first + 1;
        struct run r;
        int32_t ids[20];
        open_run(&r, g, &p);
        run_ids(ids, 20, r.info->n_vocab, 4);
        assert_int_equal(run_feed(&r, 0, ids, 10, BATCH_RESET, &e), OK);
        assert_int_equal(run_feed(&r, 0, ids + 10, 10, BATCH_CHECKPOINT, &e), OK);
        assert_int_equal(stage_reach(r.st, 0, 15), 10);
        run_close(&r);
    }
    gguf_close(g);
}

static void plain_attention_goes_back_anywhere(void **state)
{
    (void)state;
    struct gguf *g = open_fixture("qwen3-f32");
    struct stage_params p = run_params();
    struct run r;
    int32_t ids[20];
    open_run(&r, g, &p);
    run_ids(ids, 20, r.info->n_vocab, 5);
    feed(&r, 0, ids, 20, BATCH_RESET);
    for (uint32_t pos = 0; pos <= 20; pos++)
        assert_int_equal(stage_reach(r.st, 0, pos), pos);
    assert_int_equal(stage_reach(r.st, 0, 21), 20);
    assert_int_equal(stage_reach(r.st, 99, 3), 0);
    run_close(&r);
    gguf_close(g);
}

/* --- sliding windows ---------------------------------------------------------------------------------------------- */

/* With small steps the cells of window blocks are used again and again; the result is that of a cache of full size. */
static void a_window_wraps_around(void **state)
{
    const char *stem = *state;
    struct gguf *g = open_fixture(stem);
    struct stage_params small = run_params(), large = run_params();
    small.n_batch = 24;
    small.n_slots = large.n_slots = 2;
    struct run r, full;
    int32_t ids[420];
    open_run(&r, g, &small);
    open_run(&full, g, &large);
    assert_true(r.info->kv_bytes < full.info->kv_bytes);
    run_ids(ids, 420, r.info->n_vocab, 6);
    for (uint32_t at = 0; at < 420; at += 20) {
        const float *a = feed(&r, 1, ids + at, 20, at ? 0 : BATCH_RESET);
        const float *b = feed(&full, 1, ids + at, 20, at ? 0 : BATCH_RESET);
        double nmse = golden_nmse_logits(a, b, r.info->n_vocab);
        if (!(nmse <= 1e-6))
            fail_msg("%s: position %u: %g", stem, at + 20, nmse);
    }
    run_close(&full);
    run_close(&r);
    gguf_close(g);
}

/* As far as no needed cell was written over a slot goes back freely; further only to a checkpoint. */
static void a_window_goes_back_as_far_as_its_cells_are_there(void **state)
{
    const char *stem = *state;
    struct gguf *g = open_fixture(stem);
    struct stage_params p = run_params();
    p.n_batch = 24;
    p.n_slots = 2;
    struct run r, fresh;
    int32_t ids[460];
    open_run(&r, g, &p);
    open_run(&fresh, g, &p);
    run_ids(ids, 460, r.info->n_vocab, 7);
    for (uint32_t at = 0; at < 440; at += 20)
        feed(&r, 0, ids + at, 20, at == 0 ? BATCH_RESET : at == 100 ? BATCH_CHECKPOINT : 0);
    uint32_t slack = 256 - 16; /* cells less the window of both fixtures */
    assert_int_equal(stage_reach(r.st, 0, 440 - slack), 440 - slack);
    assert_int_equal(stage_reach(r.st, 0, 440 - slack - 1), 100);

    static const uint32_t to[] = {400, 440 - 256 + 16, 100};
    for (size_t i = 0; i < 3; i++) { /* each further back than the one before */
        for (uint32_t at = 0; at < to[i]; at += 20)
            feed(&fresh, 0, ids + at, to[i] - at < 20 ? to[i] - at : 20, at == 0 ? BATCH_RESET : 0);
        const float *want = feed(&fresh, 0, ids + 440, 20, 0);
        go_back(&r, 0, ids, to[i]);
        const float *got = feed(&r, 0, ids + 440, 20, BATCH_TRUNCATE);
        assert_true(golden_nmse_logits(got, want, r.info->n_vocab) <= 1e-9);
    }
    run_close(&fresh);
    run_close(&r);
    gguf_close(g);
}

/* --- several sequences -------------------------------------------------------------------------------------------- */

static void sequences_of_different_lengths_share_a_step(void **state)
{
    const char *stem = *state;
    struct gguf *g = open_fixture(stem);
    struct stage_params p = run_params();
    struct run r;
    struct err e;
    static const uint32_t len[3] = {37, 1, 12};
    int32_t ids[3][40];
    float *want[3][2];
    open_run(&r, g, &p);
    for (uint32_t k = 0; k < 3; k++) { /* alone */
        run_ids(ids[k], 40, r.info->n_vocab, 10 + k);
        want[k][0] = copy_row(&r, feed(&r, 0, ids[k], len[k], BATCH_RESET));
        want[k][1] = copy_row(&r, feed(&r, 0, ids[k] + len[k], 1, 0));
    }
    for (uint32_t step = 0; step < 2; step++) { /* together, in another order of slots */
        run_begin(&r);
        for (uint32_t k = 0; k < 3; k++)
            run_add(&r, 3 - k, ids[k] + (step ? len[k] : 0), step ? 1 : len[k],
                    BATCH_SAMPLE | (step ? 0 : BATCH_RESET));
        assert_int_equal(run_step(&r, &e), OK);
        for (uint32_t k = 0; k < 3; k++)
            assert_true(golden_nmse_logits(run_logits(&r, k), want[k][step], r.info->n_vocab) <= 1e-6);
    }
    for (uint32_t k = 0; k < 3; k++) {
        free(want[k][0]);
        free(want[k][1]);
    }
    run_close(&r);
    gguf_close(g);
}

/* Steps of all lengths one after the other: what a step gives does not depend on which steps were before it. (Inputs of
 * a graph once overlapped when its memory was laid out for a step of another length.) */
static void lengths_of_steps_do_not_disturb_each_other(void **state)
{
    const char *stem = *state;
    struct gguf *g = open_fixture(stem);
    struct stage_params p = run_params();
    struct err e;
    p.first = 2;
    p.end = 4;
    p.n_slots = 1;
    struct run used;
    int32_t ids[64];
    open_run(&used, g, &p);
    run_ids(ids, 64, used.info->n_vocab, 40);
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t a = 1 + (uint32_t)(hash_mix64(round) % 31), b = 1 + (uint32_t)(hash_mix64(round + 1000) % 31);
        struct run fresh, *both[2] = {&used, &fresh};
        size_t row = used.info->n_embd;
        open_run(&fresh, g, &p);
        for (int k = 0; k < 2; k++) {
            for (size_t i = 0; i < (a + b) * row; i++)
                both[k]->b.rows[i] = (float)hash_uniform(round, i) - 0.5f;
            assert_int_equal(run_feed(both[k], 0, ids, a, BATCH_RESET, &e), OK);
            for (size_t i = 0; i < b * row; i++)
                both[k]->b.rows[i] = (float)hash_uniform(round + 100, i) - 0.5f;
            assert_int_equal(run_feed(both[k], 0, ids + a, b, 0, &e), OK);
        }
        if (memcmp(used.b.rows, fresh.b.rows, b * row * sizeof(float)) != 0)
            fail_msg("%s: steps of %u and %u tokens after others differ from the same in a new stage", stem, a, b);
        run_close(&fresh);
    }
    run_close(&used);
    gguf_close(g);
}

/* --- quantized caches --------------------------------------------------------------------------------------------- */

static void quantized_caches_stay_close(void **state)
{
    const char *stem = *state;
    static const struct {
        enum kv_type type;
        double limit;
    } kinds[] = {{KV_F16, 1e-4}, {KV_Q8_0, 2e-3}, {KV_Q4_0, 0.25}};
    struct gguf *g = open_fixture(stem);
    struct stage_params p = run_params();
    struct run exact, r;
    int32_t ids[64];
    open_run(&exact, g, &p);
    run_ids(ids, 64, exact.info->n_vocab, 20);
    feed(&exact, 0, ids, 48, BATCH_RESET);
    const float *want = feed(&exact, 0, ids + 48, 16, 0);
    uint64_t bytes = exact.info->kv_bytes;
    for (size_t i = 0; i < 3; i++) {
        p.kv_type = kinds[i].type;
        open_run(&r, g, &p);
        assert_true(r.info->kv_bytes < bytes);
        bytes = r.info->kv_bytes;
        feed(&r, 0, ids, 48, BATCH_RESET);
        double nmse = golden_nmse_logits(feed(&r, 0, ids + 48, 16, 0), want, r.info->n_vocab);
        if (!(nmse > 0 && nmse <= kinds[i].limit))
            fail_msg("%s with a cache of %s: %g", stem, kv_type_name(kinds[i].type), nmse);
        run_close(&r);
    }
    run_close(&exact);
    gguf_close(g);
}

static void a_cache_type_that_does_not_fit_the_heads_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    struct gguf *g;
    struct run r;
    struct stage_params p = run_params();
    p.kv_type = KV_Q8_0;
    assert_int_equal(gguf_open(test_data("llama-spm-f32.gguf", path), &g, &e), OK);
    assert_int_equal(run_open(&r, g, &p, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "q8_0"));
    assert_non_null(strstr(e.msg, "have 16"));
    gguf_close(g);
}

/* --- NextN -------------------------------------------------------------------------------------------------------- */

static void nextn_blocks_are_loaded_on_request(void **state)
{
    (void)state;
    struct gguf *g = open_fixture("qwen35moe-f32");
    struct stage_params p = run_params();
    struct run plain, r;
    uint64_t bytes = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        bytes += gguf_tensor_at(g, i)->block == 8 ? gguf_tensor_at(g, i)->size : 0;
    assert_true(bytes > 0);
    open_run(&plain, g, &p);
    assert_int_equal(plain.info->n_block, 8);
    assert_int_equal(plain.info->n_nextn, 1);
    assert_int_equal(plain.info->nextn_bytes, 0);
    p.nextn = true;
    open_run(&r, g, &p);
    assert_int_equal(r.info->nextn_bytes, bytes); /* the table is there for the first stage's sake */
    assert_int_equal(r.info->weight_bytes, plain.info->weight_bytes + bytes);
    int32_t ids[16];
    run_ids(ids, 16, r.info->n_vocab, 30);
    const float *a = feed(&plain, 0, ids, 16, BATCH_RESET), *b = feed(&r, 0, ids, 16, BATCH_RESET);
    assert_memory_equal(a, b, r.info->n_vocab * sizeof *a);
    run_close(&r);
    run_close(&plain);

    p.first = 4; /* the last stage of a ring needs the embedding table as well */
    open_run(&r, g, &p);
    assert_int_equal(r.info->nextn_bytes, bytes + gguf_tensor_find(g, "token_embd.weight")->size);
    run_close(&r);
    p.first = 0;
    p.end = 4; /* on other stages there is nothing to load */
    open_run(&r, g, &p);
    assert_int_equal(r.info->nextn_bytes, 0);
    run_close(&r);
    gguf_close(g);
}

/* The last stage file of a model with NextN blocks has all that they need. */
static void nextn_blocks_come_with_the_last_stage_file(void **state)
{
    (void)state;
    struct gguf *g = open_fixture("qwen35moe-f32"), *file;
    struct hparams h;
    struct slice s;
    struct err e;
    struct stage_params p = run_params();
    struct run whole, r;
    char path[PATH_MAX];
    assert_int_equal(hparams_read(g, &h, &e), OK);
    p.first = 4;
    p.end = h.n_block;
    p.nextn = true;
    assert_int_equal(slice_plan(g, &h, p.first, p.end, NULL, &s, &e), OK);
    assert_int_equal(slice_write(g, &s, test_scratch("last.gguf", path), NULL, NULL, &e), OK);
    assert_int_equal(gguf_open(path, &file, &e), OK);
    unlink(path);
    open_run(&whole, g, &p);
    open_run(&r, file, &p);
    assert_int_equal(r.info->weight_bytes, whole.info->weight_bytes);
    assert_int_equal(r.info->nextn_bytes, whole.info->nextn_bytes);
    assert_int_equal(r.info->weight_bytes, s.tensor_bytes); /* and nothing else */
    run_close(&r);
    run_close(&whole);
    struct model_sizes sizes;
    assert_int_equal(model_sizes_read(file, &h, &sizes, &e), OK);
    p.nextn = false; /* as ranks are: what a plan reckons with */
    open_run(&r, file, &p);
    assert_int_equal(r.info->weight_bytes, model_sizes_window(&sizes, p.first, p.end));
    assert_int_equal(s.tensor_bytes, model_sizes_stage_file(&sizes, p.first, p.end));
    assert_true(r.info->weight_bytes < s.tensor_bytes);
    run_close(&r);
    model_sizes_fini(&sizes);
    slice_fini(&s);
    hparams_fini(&h);
    gguf_close(file);
    gguf_close(g);
}

#define WITH(fn, stem) ((struct CMUnitTest){#fn " " stem, fn, NULL, NULL, (void *)(uintptr_t)(stem)})

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(a_hybrid_slot_goes_back_to_a_checkpoint, "qwen35-f32"),
        WITH(a_hybrid_slot_goes_back_to_a_checkpoint, "qwen35moe-f32"),
        WITH(a_hybrid_slot_goes_back_to_a_checkpoint, "qwen35moe-q4_0"),
        cmocka_unit_test(the_earliest_checkpoint_makes_room),
        cmocka_unit_test(every_window_of_a_hybrid_model_reaches_the_same),
        cmocka_unit_test(plain_attention_goes_back_anywhere),
        WITH(a_window_wraps_around, "gemma3-f32"),
        WITH(a_window_wraps_around, "gpt-oss-mxfp4"),
        WITH(a_window_goes_back_as_far_as_its_cells_are_there, "gemma3-f32"),
        WITH(a_window_goes_back_as_far_as_its_cells_are_there, "gpt-oss-mxfp4"),
        WITH(sequences_of_different_lengths_share_a_step, "qwen2-f32"),
        WITH(sequences_of_different_lengths_share_a_step, "qwen3moe-f32"),
        WITH(sequences_of_different_lengths_share_a_step, "qwen35moe-f32"),
        WITH(sequences_of_different_lengths_share_a_step, "gemma3-f32"),
        WITH(lengths_of_steps_do_not_disturb_each_other, "qwen3-f32"),
        WITH(lengths_of_steps_do_not_disturb_each_other, "qwen35moe-f32"),
        WITH(lengths_of_steps_do_not_disturb_each_other, "gemma3-f32"),
        WITH(quantized_caches_stay_close, "qwen3-f32"),
        WITH(quantized_caches_stay_close, "qwen35-f32"),
        WITH(quantized_caches_stay_close, "gemma3-f32"),
        cmocka_unit_test(a_cache_type_that_does_not_fit_the_heads_is_refused),
        cmocka_unit_test(nextn_blocks_are_loaded_on_request),
        cmocka_unit_test(nextn_blocks_come_with_the_last_stage_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
