/* SPDX-License-Identifier: MIT */
#include "ring/held.h"

#include "base/hash.h"

#include <stdlib.h>

bool held_init(struct held *h, uint32_t n_ctx, bool bounded, uint32_t n_checkpoints)
{
    *h = (struct held){.bounded = bounded, .n_checkpoints = bounded ? n_checkpoints : 0, .hash = HASH_PREFIX_EMPTY};
    h->tokens = malloc(n_ctx * sizeof *h->tokens);
    h->checkpoints = calloc(h->n_checkpoints + 1u, sizeof *h->checkpoints);
    return h->tokens && h->checkpoints;
}

void held_fini(struct held *h)
{
    free(h->tokens);
    free(h->checkpoints);
    *h = (struct held){0};
}

uint32_t held_common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

uint32_t held_reach(const struct held *h, uint32_t pos)
{
    if (pos == h->n || !h->bounded)
        return pos;
    uint32_t best = 0;
    for (uint32_t i = 0; i < h->n_checkpoints; i++) {
        uint32_t p = h->checkpoints[i];
        if (p <= pos && p > best)
            best = p;
    }
    return best;
}

void held_cut(struct held *h, uint32_t pos)
{
    if (pos != h->n) {
        h->hash = HASH_PREFIX_EMPTY;
        for (uint32_t i = 0; i < pos; i++)
            h->hash = hash_prefix(h->hash, h->tokens[i]);
    }
    h->n = pos;
    for (uint32_t i = 0; i < h->n_checkpoints; i++) {
        if (h->checkpoints[i] > pos)
            h->checkpoints[i] = 0;
    }
}

void held_checkpoint(struct held *h)
{
    if (h->n_checkpoints == 0 || h->n == 0)
        return;
    uint32_t *c = &h->checkpoints[0];
    for (uint32_t i = 0; i < h->n_checkpoints; i++) {
        if (h->checkpoints[i] == h->n)
            return;
        if (h->checkpoints[i] < *c)
            c = &h->checkpoints[i];
    }
    *c = h->n;
}

void held_extend(struct held *h)
{
    h->hash = hash_prefix(h->hash, h->tokens[h->n]);
    h->n++;
}

void held_forget(struct held *h)
{
    held_cut(h, 0);
    h->used = 0;
}
