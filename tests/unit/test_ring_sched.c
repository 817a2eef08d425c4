/* SPDX-License-Identifier: MIT
 *
 * The scheduler alone: what steps it composes, how requests end, what it makes of failures and of results that do not
 * fit. What it reuses is in test_ring_sched_reuse.c, how it is fair in test_ring_sched_fair.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "lib/sched_rig.h"

/* --- composing
 * --------------------------------------------------------------------------------------------------------- */

static void test_nothing_to_do(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 16, 8, 2, 4);
    struct sent st;
    assert_false(compose(&r, &st));
    assert_int_equal(st.n_starts, 0);
    assert_int_equal(counts(&r).n_steps, 0);
    assert_int_equal(counts(&r).oldest_step_ns, 0);
    sched_free(r.s);
    sched_free(NULL);
}

static void test_first_step(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 16, 8, 2, 4);
    struct client c;
    struct sent st;
    must_submit(&r, &c, 7, 3, 4);
    assert_true(compose(&r, &st));
    assert_int_equal(st.n_starts, 1);
    assert_int_equal(st.starts[0].request_id, 7);
    assert_int_equal(st.sampling[0].seed, 7);
    assert_int_equal(st.b.n_entries, 1);
    assert_int_equal(st.b.n_tok, 3);
    assert_int_equal(st.entries[0].request_id, 7);
    assert_int_equal(st.entries[0].slot, st.starts[0].slot);
    assert_int_equal(st.entries[0].pos, 0);
    assert_int_equal(st.entries[0].flags, BATCH_RESET | BATCH_SAMPLE);
    assert_true(st.entries[0].prefix_hash == HASH_PREFIX_EMPTY);
    assert_int_equal(st.tokens[2], 7 * 31 + 2);
    struct sent none;
    assert_false(compose(&r, &none)); /* its token is not back */
    give_back(&r, &st, 5);
    assert_int_equal(c.n_out, 1);
    assert_true(compose(&r, &st));
    assert_int_equal(st.n_starts, 0);
    assert_int_equal(st.entries[0].pos, 3);
    assert_int_equal(st.entries[0].flags, BATCH_SAMPLE);
    assert_int_equal(st.tokens[0], 5);
    sched_free(r.s);
}

static void test_order_of_arrival(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 16, 8, 3, 8);
    struct client c[4];
    struct sent st;
    for (uint64_t i = 0; i < 4; i++)
        must_submit(&r, &c[i], 10 + i, 2, 1);
    assert_int_equal(counts(&r).n_waiting, 4);
    for (uint64_t i = 0; i < 4; i++) {
        assert_true(compose(&r, &st));
        assert_int_equal(st.entries[0].request_id, 10 + i);
        give_back(&r, &st, 1);
        assert_int_equal(c[i].n_ends, 1);
    }
    assert_false(compose(&r, &st));
    sched_free(r.s);
}

/* faults.md 13, 14: with as many steps as ranks, the sequences are spread over all of them. */
static void test_spread_over_steps(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 32, 64, 4, 8);
    struct client c[8];
    struct sent st[4], none;
    for (uint64_t i = 0; i < 8; i++)
        must_submit(&r, &c[i], i + 1, 2, 20);
    assert_true(compose(&r, &st[0]));
    assert_int_equal(st[0].b.n_entries, 8);
    give_back(&r, &st[0], 3);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 4; i++) {
            if (round > 0)
                give_back(&r, &st[i], 3);
            assert_true(compose(&r, &st[i]));
            assert_int_equal(st[i].b.n_entries, 2);
        }
        assert_int_equal(counts(&r).n_steps, 4);
        assert_false(compose(&r, &none));
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(c[i].n_out, 5);
    sched_free(r.s);
}

static void test_prompt_chunks_follow_each_other(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 32, 4, 3, 4);
    struct client c;
    struct sent st[3], none;
    must_submit(&r, &c, 1, 10, 2);
    uint64_t hash = HASH_PREFIX_EMPTY;
    uint32_t pos = 0;
    static const uint32_t lens[] = {4, 4, 2};
    for (int i = 0; i < 3; i++) { /* nothing came back meanwhile */
        assert_true(compose(&r, &st[i]));
        assert_int_equal(st[i].b.n_entries, 1);
        assert_int_equal(st[i].entries[0].n_tok, lens[i]);
        assert_int_equal(st[i].entries[0].pos, pos);
        assert_true(st[i].entries[0].prefix_hash == hash);
        assert_int_equal(st[i].entries[0].flags, (i == 0 ? BATCH_RESET : 0) | (i == 2 ? BATCH_SAMPLE : 0));
        assert_int_equal(st[i].n_starts, i == 0);
        for (uint32_t k = 0; k < lens[i]; k++)
            hash = hash_prefix(hash, st[i].tokens[k]);
        pos += lens[i];
    }
    assert_false(compose(&r, &none));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c.n_out, 0);
        give_back(&r, &st[i], 9);
    }
    assert_int_equal(c.n_out, 1);
    assert_int_equal(counts(&r).n_prompt_tok, 10);
    assert_int_equal(counts(&r).n_out_tok, 1);
    sched_free(r.s);
}

static void test_decoding_goes_before_prompts(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 32, 4, 1, 4);
    struct client c[2];
    struct sent st;
    must_submit(&r, &c[0], 1, 2, 20);
    assert_true(compose(&r, &st));
    give_back(&r, &st, 3);
    must_submit(&r, &c[1], 2, 12, 5);
    for (int i = 0; i < 4; i++) {
        assert_true(compose(&r, &st));
        assert_int_equal(st.b.n_entries, 2);
        assert_int_equal(st.entries[0].request_id, 1);
        assert_int_equal(st.entries[0].n_tok, 1);
        assert_int_equal(st.entries[1].request_id, 2);
        assert_int_equal(st.entries[1].n_tok, 3);
        give_back(&r, &st, 3);
    }
    assert_int_equal(c[0].n_out, 5);
    assert_int_equal(c[1].n_out, 1);
    sched_free(r.s);
}

/* Sampling parameters travel with the step that begins the slot, so that they cannot get lost when another step fails.
 */
static void test_start_comes_with_its_first_step(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 32, 4, 2, 4);
    struct client c[2];
    struct sent st[2];
    must_submit(&r, &c[0], 1, 4, 2);
    must_submit(&r, &c[1], 2, 4, 2);
    assert_true(compose(&r, &st[0]));
    assert_int_equal(st[0].n_starts, 1);
    assert_int_equal(st[0].starts[0].request_id, 1);
    sched_fail_step(r.s, st[0].id, ERR_IO, "gone");
    assert_true(compose(&r, &st[1]));
    assert_int_equal(st[1].n_starts, 1);
    assert_int_equal(st[1].starts[0].request_id, 2);
    assert_int_equal(st[1].sampling[0].seed, 2);
    sched_free(r.s);
}

static void test_step_has_at_most_the_entries_a_frame_holds(void **state)
{
    (void)state;
    enum { N = BATCH_MAX_ENTRIES + 10 };
    struct sched_limits lim = {
        .n_slots = N, .n_ctx = 4, .n_vocab = N_VOCAB, .n_batch = 1000, .max_steps = 1, .max_waiting = N};
    struct sched *s;
    assert_int_equal(sched_new(&lim, &s, NULL), OK);
    struct client *c = calloc(N, sizeof *c);
    struct rig r = {.s = s, .lim = lim};
    for (uint64_t i = 0; i < N; i++)
        must_submit(&r, &c[i], i + 1, 1, 1);
    struct batch b = {.cap_entries = N,
                      .cap_tok = 1000,
                      .entries = calloc(N, sizeof *b.entries),
                      .tokens = calloc(1000, sizeof *b.tokens)};
    struct sched_start *starts = calloc(N, sizeof *starts);
    uint32_t n_starts;
    uint64_t id;
    assert_true(sched_compose(s, &b, starts, &n_starts, &id));
    assert_int_equal(b.n_entries, BATCH_MAX_ENTRIES);
    assert_int_equal(n_starts, BATCH_MAX_ENTRIES);
    sched_fail_step(s, id, ERR_DEVICE, "to be rid of it");
    assert_true(sched_compose(s, &b, starts, &n_starts, &id));
    assert_int_equal(b.n_entries, 10);
    sched_free(s);
    free(b.entries);
    free(b.tokens);
    free(starts);
    free(c);
}

/* --- how requests end
 * --------------------------------------------------------------------------------------------------- */

static void test_end_of_generation(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 16, 8, 1, 4);
    struct client c;
    struct sent st;
    must_submit(&r, &c, 1, 2, 10);
    assert_true(compose(&r, &st));
    give_back(&r, &st, 4);
    assert_true(compose(&r, &st));
    give_back(&r, &st, 999);
    assert_int_equal(c.n_ends, 1);
    assert_int_equal(c.reason, SCHED_STOP);
    assert_int_equal(c.code, OK);
    assert_int_equal(c.n_out, 1); /* the end is not part of the text */
    assert_false(compose(&r, &st));

    must_submit(&r, &c, 2, 2, 10); /* at once */
    assert_true(compose(&r, &st));
    give_back(&r, &st, 998);
    assert_int_equal(c.n_ends, 1);
    assert_int_equal(c.reason, SCHED_STOP);
    assert_int_equal(c.n_out, 0);
    sched_free(r.s);
}

static void test_length(void **state)
{
    (void)state;
    for (uint32_t want = 1; want <= 3; want++) {
        struct rig r = rig_new(1, 16, 8, 1, 4);
        struct client c;
        struct sent st;
        must_submit(&r, &c, 1, 2, want);
        for (uint32_t i = 0; i < want; i++) {
            assert_int_equal(c.n_ends, 0);
            assert_true(compose(&r, &st));
            give_back(&r, &st, 4);
        }
        assert_int_equal(c.n_ends, 1);
        assert_int_equal(c.reason, SCHED_LENGTH);
        assert_int_equal(c.n_out, want);
        assert_false(compose(&r, &st));
        sched_free(r.s);
    }
}

static void test_context_end(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 8, 8, 1, 4);
    struct client c;
    struct sent st;
    must_submit(&r, &c, 1, 5, 100);
    uint32_t steps = 0;
    while (compose(&r, &st)) {
        const struct batch_entry *en = &st.entries[0];
        assert_true(en->pos + en->n_tok <= 8);
        give_back(&r, &st, 4);
        steps++;
    }
    assert_int_equal(c.n_ends, 1);
    assert_int_equal(c.reason, SCHED_CONTEXT);
    assert_int_equal(steps, 4);   /* positions 5, 6 and 7 are used */
    assert_int_equal(c.n_out, 4); /* the last token has no position any more but is part of the text */
    sched_free(r.s);
}

static void test_bad_requests(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 8, 8, 1, 4);
    struct client c;
    struct sent st;
    struct err e;
    int32_t prompt[9] = {0};
    assert_int_equal(submit(&r, &c, 1, prompt, 0, 1, &e), ERR_ARG);
    assert_int_equal(submit(&r, &c, 1, prompt, 1, 0, &e), ERR_ARG);
    assert_int_equal(submit(&r, &c, 1, prompt, 8, 1, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "8 tokens"));
    assert_non_null(strstr(e.msg, "at most 7"));
    assert_int_equal(submit(&r, &c, 1, prompt, UINT32_MAX, 1, &e), ERR_LIMIT); /* none of them is read */
    prompt[1] = (int32_t)N_VOCAB;
    assert_int_equal(submit(&r, &c, 1, prompt, 2, 1, &e), ERR_ARG);
    prompt[1] = -1;
    assert_int_equal(submit(&r, &c, 1, prompt, 2, 1, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "-1"));
    assert_int_equal(c.n_ends, 0);
    assert_false(compose(&r, &st));
    prompt[1] = 0;
    assert_int_equal(submit(&r, &c, 1, prompt, 7, 1, &e), OK);
    sched_free(r.s);
}

static void test_too_many_waiting(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 8, 8, 1, 2);
    struct client c[4];
    struct sent st;
    struct err e;
    int32_t prompt[] = {1};
    for (uint64_t i = 1; i <= 3; i++) /* one for the slot, two to wait */
        must_submit(&r, &c[i - 1], i, 1, 1);
    assert_int_equal(submit(&r, &c[3], 4, prompt, 1, 1, &e), ERR_BUSY);
    assert_int_equal(c[3].n_ends, 0);
    assert_true(compose(&r, &st)); /* the slot is given away: nothing new for those who wait */
    assert_int_equal(submit(&r, &c[3], 4, prompt, 1, 1, &e), ERR_BUSY);
    assert_true(sched_cancel(r.s, 2));
    must_submit(&r, &c[3], 4, 1, 1);
    sched_free(r.s);
}

static void test_free_ends_everything(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 8, 8, 1, 8);
    struct client c[3];
    struct sent st;
    for (uint64_t i = 0; i < 3; i++)
        must_submit(&r, &c[i], i + 1, 1, 4);
    assert_true(compose(&r, &st));
    sched_free(r.s);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c[i].n_ends, 1);
        assert_int_equal(c[i].reason, SCHED_CANCELLED);
    }
}

static void test_reason_names(void **state)
{
    (void)state;
    assert_string_equal(sched_reason_name(SCHED_STOP), "stop");
    assert_string_equal(sched_reason_name(SCHED_LENGTH), "length");
    assert_string_equal(sched_reason_name(SCHED_CONTEXT), "context");
    assert_string_equal(sched_reason_name(SCHED_CANCELLED), "cancelled");
    assert_string_equal(sched_reason_name(SCHED_FAILED), "failed");
}

/* --- cancelling
 * --------------------------------------------------------------------------------------------------------- */

static void test_cancel_waiting(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 8, 8, 1, 8);
    struct client c[5];
    struct sent st;
    for (uint64_t i = 0; i < 5; i++)
        must_submit(&r, &c[i], i + 1, 1, 1);
    assert_true(compose(&r, &st));
    assert_true(sched_cancel(r.s, 3)); /* from the middle */
    assert_true(sched_cancel(r.s, 5)); /* the last */
    assert_true(sched_cancel(r.s, 2)); /* the first */
    assert_false(sched_cancel(r.s, 2));
    assert_false(sched_cancel(r.s, 77));
    assert_int_equal(counts(&r).n_waiting, 1);
    give_back(&r, &st, 1);
    must_submit(&r, &c[4], 6, 1, 1); /* the list's end is in order */
    assert_true(compose(&r, &st));
    assert_int_equal(st.entries[0].request_id, 4);
    give_back(&r, &st, 1);
    assert_true(compose(&r, &st));
    assert_int_equal(st.entries[0].request_id, 6);
    assert_int_equal(c[1].n_ends, 1);
    assert_int_equal(c[1].reason, SCHED_CANCELLED);
    sched_free(r.s);
}

static void test_cancel_in_flight(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 32, 4, 4, 8);
    struct client c[2];
    struct sent st[3], none;
    must_submit(&r, &c[0], 1, 10, 5);
    must_submit(&r, &c[1], 2, 1, 1);
    for (int i = 0; i < 3; i++)
        assert_true(compose(&r, &st[i]));
    assert_true(sched_cancel(r.s, 1));
    assert_int_equal(c[0].n_ends, 1);
    assert_false(sched_cancel(r.s, 1));
    for (int i = 0; i < 3; i++) { /* the slot is free when the last of its chunks is back, not before */
        assert_false(compose(&r, &none));
        give_back(&r, &st[i], 6);
    }
    assert_int_equal(c[0].n_out, 0);
    assert_true(compose(&r, &st[0]));
    assert_int_equal(st[0].entries[0].request_id, 2);
    assert_int_equal(st[0].entries[0].flags, BATCH_RESET | BATCH_SAMPLE);
    sched_free(r.s);
}

static void test_cancel_ready(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 32, 4, 4, 8);
    struct client c[2];
    struct sent st;
    must_submit(&r, &c[0], 1, 1, 5);
    assert_true(compose(&r, &st));
    give_back(&r, &st, 6);
    assert_true(sched_cancel(r.s, 1)); /* its token is here, no step has taken it yet */
    assert_int_equal(c[0].n_ends, 1);
    assert_int_equal(c[0].n_out, 1);
    assert_false(compose(&r, &st));
    must_submit(&r, &c[1], 2, 1, 1);
    assert_true(compose(&r, &st));
    assert_int_equal(st.entries[0].request_id, 2);
    give_back(&r, &st, 6);
    assert_false(sched_cancel(r.s, 2)); /* has ended */
    assert_int_equal(c[1].n_ends, 1);
    sched_free(r.s);
}

/* --- failures
 * ----------------------------------------------------------------------------------------------------------- */

static void test_fail_step(void **state)
{
    (void)state;
    struct rig r = rig_new(4, 32, 8, 2, 8);
    struct client c[4];
    struct sent st, two[2];
    for (uint64_t i = 0; i < 4; i++)
        must_submit(&r, &c[i], i + 1, 2, 5);
    assert_true(compose(&r, &st));
    give_back(&r, &st, 3);
    assert_true(compose(&r, &two[0]));
    assert_true(compose(&r, &two[1]));
    assert_int_equal(two[0].b.n_entries, 2);
    sched_fail_step(r.s, two[0].id, ERR_DEVICE, "it overheated");
    sched_fail_step(r.s, two[0].id, ERR_STALE, "again");
    sched_fail_step(r.s, 4711, ERR_STALE, "no such step");
    for (uint32_t i = 0; i < 2; i++) {
        struct client *hit = &c[two[0].entries[i].request_id - 1], *spared = &c[two[1].entries[i].request_id - 1];
        assert_int_equal(hit->n_ends, 1);
        assert_int_equal(hit->reason, SCHED_FAILED);
        assert_int_equal(hit->code, ERR_DEVICE);
        assert_string_equal(hit->text, "it overheated");
        assert_int_equal(spared->n_ends, 0);
    }
    give_back(&r, &two[0], 3); /* too late: nobody minds */
    give_back(&r, &two[1], 3);
    assert_int_equal(counts(&r).n_active, 2);
    assert_int_equal(counts(&r).n_out_tok, 6);
    sched_free(r.s);
}

static void test_fail_one_of_several_chunks(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 32, 4, 3, 8);
    struct client c[2];
    struct sent st[3], none;
    must_submit(&r, &c[0], 1, 10, 5);
    must_submit(&r, &c[1], 2, 1, 1);
    for (int i = 0; i < 3; i++)
        assert_true(compose(&r, &st[i]));
    sched_fail_step(r.s, st[0].id, ERR_DEVICE, "broken");
    assert_int_equal(c[0].n_ends, 1);
    assert_false(compose(&r, &none)); /* two of its chunks are still out */
    sched_fail_step(r.s, st[1].id, ERR_STALE, "of course");
    sched_fail_step(r.s, st[2].id, ERR_STALE, "of course");
    assert_int_equal(c[0].n_ends, 1);
    assert_int_equal(c[0].code, ERR_DEVICE);
    assert_true(compose(&r, &st[0]));
    assert_int_equal(st[0].entries[0].request_id, 2);
    assert_int_equal(c[1].n_ends, 0);
    sched_free(r.s);
}

static void test_fail_all(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 32, 8, 2, 8);
    struct client c[3];
    struct sent st[2];
    for (uint64_t i = 0; i < 3; i++)
        must_submit(&r, &c[i], i + 1, 2, 5);
    assert_true(compose(&r, &st[0]));
    sched_fail_all(r.s, ERR_CLOSED, "rank 2 is gone");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c[i].n_ends, 1);
        assert_int_equal(c[i].reason, SCHED_FAILED);
        assert_int_equal(c[i].code, ERR_CLOSED);
        assert_string_equal(c[i].text, "rank 2 is gone");
    }
    assert_int_equal(c[2].n_ends, 0);
    assert_int_equal(counts(&r).n_steps, 0);
    assert_int_equal(counts(&r).n_active, 0);
    assert_int_equal(counts(&r).n_waiting, 1);
    assert_true(compose(&r, &st[1])); /* what waited goes on, from scratch, under a new step id */
    assert_int_equal(st[1].entries[0].request_id, 3);
    assert_true(st[1].entries[0].flags & BATCH_RESET);
    assert_true(st[1].id != st[0].id);
    give_back(&r, &st[0], 4); /* from before: ignored */
    assert_int_equal(c[2].n_out, 0);
    give_back(&r, &st[1], 4);
    assert_int_equal(c[2].n_out, 1);
    sched_free(r.s);
}

static void test_fail_waiting(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 32, 8, 1, 8);
    struct client c[4];
    struct sent st;
    must_submit(&r, &c[0], 1, 2, 5);
    assert_true(compose(&r, &st));
    for (uint64_t i = 1; i < 4; i++)
        must_submit(&r, &c[i], i + 1, 2, 5);
    sched_fail_waiting(r.s, ERR_CLOSED, "it takes too long");
    for (int i = 1; i < 4; i++) {
        assert_int_equal(c[i].n_ends, 1);
        assert_int_equal(c[i].reason, SCHED_FAILED);
        assert_int_equal(c[i].code, ERR_CLOSED);
        assert_string_equal(c[i].text, "it takes too long");
    }
    assert_int_equal(counts(&r).n_waiting, 0);
    assert_int_equal(c[0].n_ends, 0); /* has a slot */
    give_back(&r, &st, 4);
    assert_int_equal(c[0].n_out, 1);
    must_submit(&r, &c[1], 9, 2, 5); /* and one may wait again */
    assert_int_equal(counts(&r).n_waiting, 1);
    sched_fail_waiting(r.s, ERR_CLOSED, "");
    sched_fail_waiting(r.s, ERR_CLOSED, "");
    sched_free(r.s);
}

/* --- results that do not fit
 * --------------------------------------------------------------------------------------------- */

enum misfit { TOO_FEW, TOO_MANY, SWAPPED, SLOT, REQUEST, POS, NEGATIVE, BEYOND, MISFIT_COUNT };

/* Makes two good results wrong in one way; returns how many there are now. */
static uint32_t spoil(enum misfit kind, struct batch_result *res, uint32_t n)
{
    struct batch_result first = res[0];
    res[1].slot = kind == SLOT ? 2 : res[1].slot;
    res[1].request_id = kind == REQUEST ? 3 : res[1].request_id;
    res[1].pos += kind == POS;
    res[1].token = kind == NEGATIVE ? -1 : kind == BEYOND ? (int32_t)N_VOCAB : res[1].token;
    if (kind == SWAPPED) {
        res[0] = res[1];
        res[1] = first;
    }
    res[2] = first;
    return kind == TOO_FEW ? n - 1 : kind == TOO_MANY ? n + 1 : n;
}

static void test_results_that_do_not_fit(void **state)
{
    (void)state;
    for (int kind = 0; kind < MISFIT_COUNT; kind++) {
        struct rig r = rig_new(3, 32, 8, 2, 8);
        struct client c[3];
        struct sent st;
        struct err e;
        struct batch_result res[MAX_SLOTS + 1] = {0};
        must_submit(&r, &c[0], 1, 2, 5);
        must_submit(&r, &c[1], 2, 2, 5);
        assert_true(compose(&r, &st));
        must_submit(&r, &c[2], 3, 2, 5);
        struct sent other;
        assert_true(compose(&r, &other));
        uint32_t n = answer(&st, 3, res);
        assert_int_equal(n, 2);
        n = spoil((enum misfit)kind, res, n);
        assert_int_equal(sched_result(r.s, st.id, res, n, &e), ERR_PROTOCOL);
        assert_true(e.msg[0] != 0);
        for (int i = 0; i < 2; i++) { /* none of the good results was taken either */
            assert_int_equal(c[i].n_out, 0);
            assert_int_equal(c[i].n_ends, 1);
            assert_int_equal(c[i].reason, SCHED_FAILED);
            assert_int_equal(c[i].code, ERR_PROTOCOL);
        }
        assert_int_equal(c[2].n_ends, 0);
        give_back(&r, &other, 3);
        assert_int_equal(c[2].n_out, 1);
        sched_free(r.s);
    }
}

static void test_results_of_a_step_without_samples(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 32, 4, 1, 8);
    struct client c;
    struct sent st;
    must_submit(&r, &c, 1, 6, 5);
    assert_true(compose(&r, &st));
    assert_int_equal(sched_result(r.s, st.id, NULL, 0, NULL), OK);
    assert_int_equal(sched_result(r.s, st.id, NULL, 0, NULL), OK); /* unknown now */
    assert_true(compose(&r, &st));
    assert_int_equal(st.entries[0].pos, 4);
    sched_free(r.s);
}

/* A ring returns steps in the order they were sent. One that was overtaken got lost: its requests must not hang. */
static void test_overtaken_step_is_lost(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 32, 8, 2, 8);
    struct client c[2];
    struct sent st[2];
    must_submit(&r, &c[0], 1, 2, 5);
    assert_true(compose(&r, &st[0]));
    must_submit(&r, &c[1], 2, 2, 5);
    assert_true(compose(&r, &st[1]));
    give_back(&r, &st[1], 3);
    assert_int_equal(c[1].n_out, 1);
    assert_int_equal(c[1].n_ends, 0);
    assert_int_equal(c[0].n_ends, 1);
    assert_int_equal(c[0].reason, SCHED_FAILED);
    assert_int_equal(c[0].code, ERR_PROTOCOL);
    give_back(&r, &st[0], 3);
    assert_int_equal(c[0].n_out, 0);
    sched_free(r.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_first_step),
        cmocka_unit_test(test_order_of_arrival),
        cmocka_unit_test(test_spread_over_steps),
        cmocka_unit_test(test_prompt_chunks_follow_each_other),
        cmocka_unit_test(test_decoding_goes_before_prompts),
        cmocka_unit_test(test_start_comes_with_its_first_step),
        cmocka_unit_test(test_step_has_at_most_the_entries_a_frame_holds),
        cmocka_unit_test(test_end_of_generation),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_context_end),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_too_many_waiting),
        cmocka_unit_test(test_free_ends_everything),
        cmocka_unit_test(test_reason_names),
        cmocka_unit_test(test_cancel_waiting),
        cmocka_unit_test(test_cancel_in_flight),
        cmocka_unit_test(test_cancel_ready),
        cmocka_unit_test(test_fail_step),
        cmocka_unit_test(test_fail_one_of_several_chunks),
        cmocka_unit_test(test_fail_all),
        cmocka_unit_test(test_fail_waiting),
        cmocka_unit_test(test_results_that_do_not_fit),
        cmocka_unit_test(test_results_of_a_step_without_samples),
        cmocka_unit_test(test_overtaken_step_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
