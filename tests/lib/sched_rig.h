/* SPDX-License-Identifier: MIT
 *
 * A scheduler, who asks it, and the steps it made: for the tests test_ring_sched*.c. Include after <cmocka.h>.
 */
#ifndef KVASIR_TESTS_SCHED_RIG_H
#define KVASIR_TESTS_SCHED_RIG_H

#include "ring/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS 64
#define MAX_CTX   5000
#define MAX_OUT   200
#define MAX_BATCH 512
#define N_VOCAB   1000u

/* --- who asks ------------------------------------------------------------------------------------ */

struct client {
    uint64_t id;
    int32_t out[MAX_OUT];
    uint32_t n_out, n_ends;
    enum sched_reason reason;
    enum err_code code;
    char text[128];
};

static inline void on_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct client *c = ctx;
    assert_int_equal(id, c->id);
    assert_int_equal(c->n_ends, 0);
    assert_true(r->logprob <= 0);
    assert_true(c->n_out < MAX_OUT);
    c->out[c->n_out++] = r->token;
}

static inline void on_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
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

static inline struct rig rig_of(struct sched_limits lim)
{
    struct rig r = {.lim = lim};
    assert_true(lim.n_slots <= MAX_SLOTS && lim.n_batch <= MAX_BATCH && lim.n_ctx <= MAX_CTX);
    r.lim.n_vocab = N_VOCAB;
    assert_int_equal(sched_new(&r.lim, &r.s, NULL), OK);
    return r;
}

static inline struct rig rig_new(uint32_t n_slots, uint32_t n_ctx, uint32_t n_batch, uint32_t max_steps,
                                 uint32_t max_waiting)
{
    return rig_of((struct sched_limits){
        .n_slots = n_slots, .n_ctx = n_ctx, .n_batch = n_batch, .max_steps = max_steps, .max_waiting = max_waiting});
}

static inline bool compose(struct rig *r, struct sent *st)
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

static inline enum err_code submit(struct rig *r, struct client *c, uint64_t id, const int32_t *prompt, uint32_t n,
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

static inline void must_submit(struct rig *r, struct client *c, uint64_t id, uint32_t n, uint32_t n_predict)
{
    int32_t prompt[MAX_CTX];
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)((id * 31 + i) % 900);
    assert_int_equal(submit(r, c, id, prompt, n, n_predict, NULL), OK);
}

/* The results that fit a step, all with one token. */
static inline uint32_t answer(const struct sent *st, int32_t token, struct batch_result *out)
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

static inline void give_back(struct rig *r, const struct sent *st, int32_t token)
{
    struct batch_result res[MAX_SLOTS];
    uint32_t n = answer(st, token, res);
    assert_int_equal(sched_result(r->s, st->id, res, n, NULL), OK);
}

static inline struct sched_counts counts(const struct rig *r)
{
    struct sched_counts k;
    sched_count(r->s, &k);
    return k;
}

#endif
