/* SPDX-License-Identifier: MIT
 *
 * What each sequence slot of a stage holds: its tokens, the hash of every prefix, and how far it can be taken back.
 *
 * Attention over all positions can forget its last positions at will. A recurrent state cannot, and the cells of a
 * sliding window only as far as they have not been written over. For models with such blocks checkpoints are kept:
 * copies of the slot's state at chosen positions, to which it can return. Which positions can be reached depends only
 * on the model and on the steps so far, not on the window, so that all ranks of a ring agree.
 *
 * Owned by the stage; compute thread only.
 */
#ifndef KVASIR_ENGINE_SLOT_H
#define KVASIR_ENGINE_SLOT_H

#include "batch/batch.h"
#include "engine/kv.h"

#include <stddef.h>

struct slot_checkpoint {
    uint32_t pos;  /* 0: not in use */
    uint8_t *data; /* [saved_bytes], made when first used */
};

struct slot {
    int32_t *tokens; /* [n_ctx] */
    uint64_t *hash;  /* [n_ctx + 1]: of the first i tokens */
    uint32_t n;
    uint32_t top; /* the most it has held since its windows were whole: cells of older positions are gone */
    struct slot_checkpoint *checkpoints; /* [n_checkpoints] */
    struct batch_sampling sampling;
};

struct slots {
    uint32_t n, n_ctx, n_checkpoints;
    bool recurrent; /* does the model have recurrent blocks? */
    uint32_t slack; /* positions a slot can go back before a window of the model is cut */
    size_t saved_bytes;
    struct slot *slot; /* [n] */
};

struct slots_params {
    uint32_t n_slots, n_ctx, n_checkpoints;
};

/* ERR_NOMEM. kv tells how much a checkpoint holds. */
enum err_code slots_init(struct slots *s, const struct slots_params *p, const struct hparams *h, const struct kv *kv,
                         struct err *e) KV_MUST_USE;
void slots_fini(struct slots *s);

/* The largest position at most pos that the slot can be taken back to. */
uint32_t slots_reach(const struct slots *s, uint32_t slot, uint32_t pos);

/* Takes the slot back to pos, which slots_reach gave. */
void slots_rewind(struct slots *s, struct kv *kv, uint32_t slot, uint32_t pos);

/* Keeps the present state as a checkpoint, in place of the earliest when there are n_checkpoints already; ERR_NOMEM. */
enum err_code slots_checkpoint(struct slots *s, const struct kv *kv, uint32_t slot, struct err *e) KV_MUST_USE;

/* The slot now also holds these tokens. */
void slots_append(struct slots *s, uint32_t slot, const int32_t *tokens, uint32_t n);

/* A step over the slot failed half-way: it holds what it held up to pos, or nothing where that is lost. */
void slots_lose(struct slots *s, struct kv *kv, uint32_t slot, uint32_t pos);

#endif
