/* SPDX-License-Identifier: MIT
 *
 * What the ranks hold of a slot, as rank 0 knows it: the tokens sent there, and the positions to which the slot can be
 * taken back without computing anew. Says what engine/slot.h will say on every rank, from the steps alone, but for two
 * things: failed steps, after which nothing is known to be held, and windows, which it never counts on being whole.
 */
#ifndef KVASIR_RING_HELD_H
#define KVASIR_RING_HELD_H

#include "base/err.h"

#include <stddef.h>

struct held {
    int32_t *tokens; /* [n_ctx]; those from n on belong to the owner */
    uint32_t n;
    uint64_t hash;         /* of tokens[0, n) */
    uint64_t used;         /* when it was last in use: larger is later; 0: nothing is held */
    bool bounded;          /* not every position can be gone back to: only checkpoints */
    uint32_t *checkpoints; /* [n_checkpoints]: positions; 0: not in use */
    uint32_t n_checkpoints;
};

bool held_init(struct held *h, uint32_t n_ctx, bool bounded, uint32_t n_checkpoints); /* false: out of memory */
void held_fini(struct held *h);

/* How many of the first n tokens of a are also the first of b. */
uint32_t held_common(const int32_t *a, const int32_t *b, uint32_t n);

/* The largest position at most pos, which is at most n, that the slot can be taken back to. */
uint32_t held_reach(const struct held *h, uint32_t pos);
/* Takes it back to pos, which held_reach gave. */
void held_cut(struct held *h, uint32_t pos);
/* A checkpoint at n, in place of the earliest when there are n_checkpoints already. */
void held_checkpoint(struct held *h);
/* tokens[n] is sent, too. */
void held_extend(struct held *h);
void held_forget(struct held *h);

#endif
