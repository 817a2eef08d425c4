/* SPDX-License-Identifier: MIT
 *
 * One stage and a batch to feed it with, for tests of the engine. In a header, because the test library does not link
 * the engine. The next entry always continues the slot: its position and prefix hash are kept here.
 */
#ifndef KVASIR_TESTS_STAGE_RUN_H
#define KVASIR_TESTS_STAGE_RUN_H

#include "base/hash.h"
#include "engine/stage.h"

#include <stdlib.h>
#include <string.h>

#define RUN_MAX_ENTRIES 16
#define RUN_MAX_TOK     512

struct run {
    struct stage *st;
    const struct stage_info *info;
    struct batch b;
    struct batch_entry entry[RUN_MAX_ENTRIES];
    struct batch_result result[RUN_MAX_ENTRIES];
    uint32_t pos[RUN_MAX_ENTRIES]; /* of each slot */
    uint64_t hash[RUN_MAX_ENTRIES];
};

static inline struct stage_params run_params(void)
{
    return (struct stage_params){.n_ctx = 512, .n_slots = 4, .n_batch = RUN_MAX_TOK, .n_threads = 1, .kv_type = KV_F32};
}

static inline enum err_code run_open(struct run *r, const struct gguf *g, const struct stage_params *p, struct err *e)
{
    memset(r, 0, sizeof *r);
    enum err_code rc = stage_open(g, p, &r->st, e);
    if (rc != OK)
        return rc;
    r->info = stage_info(r->st);
    r->b = (struct batch){.cap_entries = RUN_MAX_ENTRIES,
                          .cap_tok = RUN_MAX_TOK,
                          .entries = r->entry,
                          .results = r->result,
                          .n_embd = r->info->n_embd};
    r->b.tokens = calloc(RUN_MAX_TOK, sizeof *r->b.tokens);
    r->b.rows = calloc((size_t)RUN_MAX_TOK * r->info->n_embd, sizeof *r->b.rows);
    for (int i = 0; i < RUN_MAX_ENTRIES; i++)
        r->hash[i] = HASH_PREFIX_EMPTY;
    return OK;
}

static inline void run_close(struct run *r)
{
    stage_close(r->st);
    free(r->b.tokens);
    free(r->b.rows);
    r->b.tokens = NULL;
    r->b.rows = NULL;
}

/* Begins a step without entries. */
static inline void run_begin(struct run *r)
{
    r->b.n_entries = r->b.n_tok = 0;
}

/* Adds an entry of n tokens that goes on where the slot is; with BATCH_RESET from the start. */
static inline struct batch_entry *run_add(struct run *r, uint32_t slot, const int32_t *ids, uint32_t n, uint32_t flags)
{
    struct batch_entry *en = &r->entry[r->b.n_entries++];
    if (flags & BATCH_RESET) {
        r->pos[slot] = 0;
        r->hash[slot] = HASH_PREFIX_EMPTY;
    }
    *en = (struct batch_entry){.request_id = 100 + slot,
                               .slot = slot,
                               .pos = r->pos[slot],
                               .prefix_hash = r->hash[slot],
                               .n_tok = n,
                               .flags = flags};
    memcpy(r->b.tokens + r->b.n_tok, ids, n * sizeof *ids);
    r->b.n_tok += n;
    return en;
}

/* Runs the step; after success the slots go on behind it. */
static inline enum err_code run_step(struct run *r, struct err *e)
{
    enum err_code rc = stage_step(r->st, &r->b, e);
    const int32_t *t = r->b.tokens;
    for (uint32_t i = 0; rc == OK && i < r->b.n_entries; i++) {
        const struct batch_entry *en = &r->entry[i];
        for (uint32_t k = 0; k < en->n_tok; k++)
            r->hash[en->slot] = hash_prefix(r->hash[en->slot], *t++);
        r->pos[en->slot] = en->pos + en->n_tok;
    }
    return rc;
}

/* One entry, one step. */
static inline enum err_code run_feed(struct run *r, uint32_t slot, const int32_t *ids, uint32_t n, uint32_t flags,
                                     struct err *e)
{
    run_begin(r);
    run_add(r, slot, ids, n, flags);
    return run_step(r, e);
}

/* Logits of row i of the last step, NULL where there are none. */
static inline const float *run_logits(const struct run *r, uint32_t i)
{
    uint32_t n = 0;
    const float *l = stage_logits(r->st, &n);
    return l && i < n ? l + (size_t)i * r->info->n_vocab : NULL;
}

/* n token ids, the same for the same seed. */
static inline void run_ids(int32_t *ids, size_t n, uint32_t n_vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(hash_mix64(seed * 1000003u + i) % n_vocab);
}

#endif
