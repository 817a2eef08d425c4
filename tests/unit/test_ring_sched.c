/* SPDX-License-Identifier: MIT
 *
 * The scheduler alone: what steps it composes, how requests end, and that a ring without a model, which checks every
 * entry as a rank would, gets from it each sequence whole and in order whatever happens on the way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "ring/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS 64
#define MAX_CTX   64
#define MAX_BATCH 256
#define N_VOCAB   1000u

/* --- who asks ------------------------------------------------------------------------------------ */

struct client {
    uint64_t id;
    int32_t out[MAX_CTX + 8];
    uint32_t n_out, n_ends;
    enum sched_reason reason;
    enum err_code code;
    char text[128];
};

static void on_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct client *c = ctx;
    assert_int_equal(id, c->id);
    assert_int_equal(c->n_ends, 0);
    assert_true(r->logprob <= 0);
    assert_true(c->n_out < MAX_CTX + 8);
    c->out[c->n_out++] = r->token;
}

static void on_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct client *c = ctx;
    assert_int_equal(id, c->id);
    assert_non_null(text);
    c->n_ends++;
    c->reason = reason;
    c->code = code;
    snprintf(c->text, sizeof c->text, "%s", text);
}

/* --- a scheduler and the steps it made ----------------------------------------------------------- */

struct sent {
    uint64_t id;
    struct batch b;
    struct batch_entry entries[MAX_SLOTS];
    int32_t tokens[MAX_BATCH];
    struct sched_start starts[MAX_SLOTS];
    struct batch_sampling sampling[MAX_SLOTS]; /* of starts */
    uint32_t n_starts;
};

struct rig {
    struct sched *s;
    struct sched_limits lim;
};

static struct rig rig_new(uint32_t n_slots, uint32_t n_ctx, uint32_t n_batch, uint32_t max_steps, uint32_t max_waiting)
{
    struct rig r = {.lim = {.n_slots = n_slots,
                            .n_ctx = n_ctx,
                            .n_vocab = N_VOCAB,
                            .n_batch = n_batch,
                            .max_steps = max_steps,
                            .max_waiting = max_waiting}};
    assert_int_equal(sched_new(&r.lim, &r.s, NULL), OK);
    return r;
}

static bool compose(struct rig *r, struct sent *st)
{
    memset(st, 0, sizeof *st);
    st->b = (struct batch){
        .cap_entries = r->lim.n_slots, .cap_tok = r->lim.n_batch, .entries = st->entries, .tokens = st->tokens};
    if (!sched_compose(r->s, &st->b, st->starts, &st->n_starts, &st->id))
        return false;
    for (uint32_t i = 0; i < st->n_starts; i++)
        st->sampling[i] = *st->starts[i].sampling;
    return true;
}

static enum err_code submit(struct rig *r, struct client *c, uint64_t id, const int32_t *prompt, uint32_t n,
                            uint32_t n_predict, struct err *e)
{
    static const int32_t eog[] = {998, 999};
    *c = (struct client){.id = id};
    struct sched_request q = {.tokens = prompt,
                              .n_tokens = n,
                              .n_predict = n_predict,
                              .eog = eog,
                              .n_eog = 2,
                              .sampling = {.seed = id},
                              .ctx = c,
                              .on_token = on_token,
                              .on_end = on_end};
    return sched_submit(r->s, id, &q, e);
}

static void must_submit(struct rig *r, struct client *c, uint64_t id, uint32_t n, uint32_t n_predict)
{
    int32_t prompt[MAX_CTX];
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)((id * 31 + i) % 900);
    assert_int_equal(submit(r, c, id, prompt, n, n_predict, NULL), OK);
}

/* The results that fit a step, all with one token. */
static uint32_t answer(const struct sent *st, int32_t token, struct batch_result *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        const struct batch_entry *en = &st->entries[i];
        if (en->flags & BATCH_SAMPLE)
            out[n++] = (struct batch_result){.request_id = en->request_id,
                                             .slot = en->slot,
                                             .pos = en->pos + en->n_tok,
                                             .token = token,
                                             .logprob = -1};
    }
    return n;
}

static void give_back(struct rig *r, const struct sent *st, int32_t token)
{
    struct batch_result res[MAX_SLOTS];
    uint32_t n = answer(st, token, res);
    assert_int_equal(sched_result(r->s, st->id, res, n, NULL), OK);
}

static struct sched_counts counts(const struct rig *r)
{
    struct sched_counts k;
    sched_count(r->s, &k);
    return k;
}

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
        .n_slots = N, .n_ctx = 4, .n_vocab = N_VOCAB, .n_batch = 1000, .max_steps = 2, .max_waiting = N};
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
    must_submit(&r, &c[0], 1, 1, 1);
    must_submit(&r, &c[1], 2, 1, 1);
    assert_int_equal(submit(&r, &c[2], 3, prompt, 1, 1, &e), ERR_BUSY);
    assert_int_equal(c[2].n_ends, 0);
    assert_true(compose(&r, &st)); /* one has a slot now */
    must_submit(&r, &c[2], 3, 1, 1);
    assert_int_equal(submit(&r, &c[3], 4, prompt, 1, 1, &e), ERR_BUSY);
    assert_true(sched_cancel(r.s, 2)); /* and so has one that waited */
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
    sched_fail_step(r.s, two[0].id, ERR_STALE, "slot 1 holds something else");
    sched_fail_step(r.s, two[0].id, ERR_STALE, "again");
    sched_fail_step(r.s, 4711, ERR_STALE, "no such step");
    for (uint32_t i = 0; i < 2; i++) {
        struct client *hit = &c[two[0].entries[i].request_id - 1], *spared = &c[two[1].entries[i].request_id - 1];
        assert_int_equal(hit->n_ends, 1);
        assert_int_equal(hit->reason, SCHED_FAILED);
        assert_int_equal(hit->code, ERR_STALE);
        assert_string_equal(hit->text, "slot 1 holds something else");
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

/* --- a long random run
 * ---------------------------------------------------------------------------------------------------- */

#define SOAK_REQUESTS 400

/* What the last rank would hold of a slot. */
struct held {
    uint64_t request_id, hash;
    uint32_t n;
};

struct soak {
    struct rig r;
    struct held held[MAX_SLOTS];
    struct sent *flight; /* [max_steps], in order */
    uint32_t n_flight;
    struct client *c; /* [SOAK_REQUESTS] */
    struct soak_plan {
        int32_t prompt[MAX_CTX];
        uint32_t n, n_predict;
        bool submitted, cancelled;
    } *plan;
    uint64_t seed;
};

static uint32_t draw(struct soak *k, uint32_t n)
{
    k->seed = hash_mix64(k->seed + 0x9e3779b97f4a7c15ull);
    return (uint32_t)(k->seed >> 33) % n;
}

static int32_t next_token(uint64_t hash)
{
    return (int32_t)(hash_mix64(hash) % N_VOCAB);
}

/* Computes a step as a rank would. false: stale. */
static bool compute(struct soak *k, const struct sent *st, struct batch_result *res, uint32_t *n_res)
{
    const int32_t *t = st->tokens;
    bool good = true;
    *n_res = 0;
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        const struct batch_entry *en = &st->entries[i];
        struct held *h = &k->held[en->slot];
        if (en->flags & BATCH_RESET)
            *h = (struct held){.request_id = en->request_id, .hash = HASH_PREFIX_EMPTY};
        bool fits = h->request_id == en->request_id && h->n == en->pos && h->hash == en->prefix_hash;
        good &= fits;
        for (uint32_t j = 0; j < en->n_tok; j++, t++) {
            if (fits)
                h->hash = hash_prefix(h->hash, *t);
        }
        if (!fits)
            continue;
        h->n += en->n_tok;
        if (en->flags & BATCH_SAMPLE)
            res[(*n_res)++] = (struct batch_result){.request_id = en->request_id,
                                                    .slot = en->slot,
                                                    .pos = h->n,
                                                    .token = next_token(h->hash),
                                                    .logprob = -0.5f};
    }
    return good;
}

static void check_step(struct soak *k, const struct sent *st)
{
    bool seen[MAX_SLOTS] = {false};
    uint32_t n_tok = 0, n_reset = 0;
    assert_true(st->b.n_entries > 0 && st->b.n_entries <= k->r.lim.n_slots);
    assert_true(st->b.n_tok <= k->r.lim.n_batch);
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        const struct batch_entry *en = &st->entries[i];
        assert_true(en->slot < k->r.lim.n_slots && !seen[en->slot] && en->n_tok > 0);
        assert_true(en->pos + en->n_tok <= k->r.lim.n_ctx);
        seen[en->slot] = true;
        n_tok += en->n_tok;
        n_reset += (en->flags & BATCH_RESET) != 0;
        for (uint32_t f = 0; f < k->n_flight; f++) { /* two requests never share a slot in flight */
            for (uint32_t j = 0; j < k->flight[f].b.n_entries; j++) {
                const struct batch_entry *o = &k->flight[f].entries[j];
                if (o->slot == en->slot)
                    assert_int_equal(o->request_id, en->request_id);
            }
        }
    }
    assert_int_equal(n_tok, st->b.n_tok);
    assert_int_equal(n_reset, st->n_starts);
}

static void return_oldest(struct soak *k)
{
    struct batch_result res[MAX_SLOTS];
    uint32_t n;
    struct sent st = k->flight[0];
    bool good = compute(k, &st, res, &n);
    memmove(k->flight, k->flight + 1, --k->n_flight * sizeof *k->flight);
    for (uint32_t i = 0; i < k->n_flight; i++) { /* copies point into themselves */
        k->flight[i].b.entries = k->flight[i].entries;
        k->flight[i].b.tokens = k->flight[i].tokens;
    }
    if (!good)
        sched_fail_step(k->r.s, st.id, ERR_STALE, "stale");
    else if (draw(k, 60) == 0)
        sched_fail_step(k->r.s, st.id, ERR_DEVICE, "device");
    else
        assert_int_equal(sched_result(k->r.s, st.id, res, n, NULL), OK);
}

/* What a request got is the beginning of what it must get, whole unless somebody ended it. */
static void check_client(const struct soak *k, uint32_t i)
{
    const struct soak_plan *p = &k->plan[i];
    const struct client *c = &k->c[i];
    uint64_t hash = HASH_PREFIX_EMPTY;
    for (uint32_t t = 0; t < p->n; t++)
        hash = hash_prefix(hash, p->prompt[t]);
    uint32_t n = 0;
    enum sched_reason reason = SCHED_LENGTH;
    for (;; n++) {
        int32_t token = next_token(hash);
        if (token >= 998) {
            reason = SCHED_STOP;
            break;
        }
        if (n < c->n_out)
            assert_int_equal(c->out[n], token);
        hash = hash_prefix(hash, token);
        if (n + 1 == p->n_predict || p->n + n >= k->r.lim.n_ctx) {
            reason = n + 1 == p->n_predict ? SCHED_LENGTH : SCHED_CONTEXT;
            n++;
            break;
        }
    }
    assert_int_equal(c->n_ends, 1);
    if (c->reason == SCHED_CANCELLED || c->reason == SCHED_FAILED) {
        assert_true(c->n_out <= n);
        assert_int_equal(c->code == OK, c->reason == SCHED_CANCELLED);
    } else {
        assert_int_equal(c->n_out, n);
        assert_int_equal(c->reason, reason);
        assert_int_equal(c->code, OK);
    }
    assert_true(!p->cancelled || c->reason == SCHED_CANCELLED);
}

static void soak_submit(struct soak *k, uint32_t i)
{
    struct soak_plan *p = &k->plan[i];
    p->n = 1 + draw(k, k->r.lim.n_ctx - 1);
    p->n_predict = 1 + draw(k, 20);
    for (uint32_t t = 0; t < p->n; t++)
        p->prompt[t] = (int32_t)draw(k, N_VOCAB);
    p->submitted = submit(&k->r, &k->c[i], i + 1, p->prompt, p->n, p->n_predict, NULL) == OK;
}

static void soak(uint64_t seed)
{
    struct soak k = {.seed = seed};
    uint32_t n_slots = 1 + draw(&k, 6), max_steps = 1 + draw(&k, 5);
    k.r = rig_new(n_slots, 24, 1 + draw(&k, 12), max_steps, 6);
    k.flight = calloc(max_steps + 1, sizeof *k.flight);
    k.c = calloc(SOAK_REQUESTS, sizeof *k.c);
    k.plan = calloc(SOAK_REQUESTS, sizeof *k.plan);
    uint32_t next = 0, idle = 0;
    while (idle < 3) {
        uint32_t what = draw(&k, 10);
        if (what < 3 && next < SOAK_REQUESTS) {
            soak_submit(&k, next);
            next += k.plan[next].submitted;
        } else if (what < 7) {
            struct sent *st = &k.flight[k.n_flight];
            if (compose(&k.r, st)) {
                check_step(&k, st);
                k.n_flight++;
                assert_true(k.n_flight <= max_steps);
            }
        } else if (k.n_flight > 0) {
            return_oldest(&k);
        }
        if (next > 0 && draw(&k, 40) == 0) {
            uint32_t i = draw(&k, next);
            bool running = k.c[i].n_ends == 0;
            assert_int_equal(sched_cancel(k.r.s, i + 1), running);
            k.plan[i].cancelled |= running;
        }
        if (draw(&k, 400) == 0) {
            sched_fail_all(k.r.s, ERR_CLOSED, "broken");
            k.n_flight = 0;
        }
        struct sched_counts n = counts(&k.r);
        bool over = next == SOAK_REQUESTS && n.n_waiting == 0 && n.n_active == 0 && k.n_flight == 0;
        idle = over ? idle + 1 : 0;
    }
    assert_int_equal(counts(&k.r).n_steps, 0);
    for (uint32_t i = 0; i < SOAK_REQUESTS; i++)
        check_client(&k, i);
    sched_free(k.r.s);
    free(k.flight);
    free(k.c);
    free(k.plan);
}

static void test_soak(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++)
        soak(seed);
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
        cmocka_unit_test(test_results_that_do_not_fit),
        cmocka_unit_test(test_results_of_a_step_without_samples),
        cmocka_unit_test(test_overtaken_step_is_lost),
        cmocka_unit_test(test_soak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
