/* SPDX-License-Identifier: MIT */
#include "engine/slot.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum err_code slots_init(struct slots *s, const struct slots_params *p, const struct hparams *h, const struct kv *kv,
                         struct err *e)
{
    struct slots x = {.n = p->n_slots, .n_ctx = p->n_ctx, .slack = UINT32_MAX, .saved_bytes = kv_saved_bytes(kv)};
    for (uint32_t il = 0; il < h->n_block; il++) {
        x.recurrent |= h->kind[il] == BLOCK_RECURRENT;
        if (h->kind[il] == BLOCK_WINDOW && kv->n_cells[KV_VIEW_WINDOW] < p->n_ctx)
            x.slack = kv->n_cells[KV_VIEW_WINDOW] - h->n_window;
    }
    x.n_checkpoints = x.recurrent || x.slack != UINT32_MAX ? p->n_checkpoints : 0;
    x.slot = calloc(p->n_slots, sizeof *x.slot);
    bool ok = x.slot != NULL;
    for (uint32_t i = 0; ok && i < p->n_slots; i++) {
        struct slot *sl = &x.slot[i];
        sl->tokens = malloc(p->n_ctx * sizeof *sl->tokens);
        sl->hash = malloc(((size_t)p->n_ctx + 1) * sizeof *sl->hash);
        sl->checkpoints = calloc(x.n_checkpoints + 1u, sizeof *sl->checkpoints);
        ok = sl->tokens && sl->hash && sl->checkpoints;
        if (ok)
            sl->hash[0] = HASH_PREFIX_EMPTY;
        sl->sampling = (struct batch_sampling){.top_p = 1, .repeat_penalty = 1};
    }
    if (!ok) {
        slots_fini(&x);
        return err_set(e, ERR_NOMEM, "out of memory for %u slots", p->n_slots);
    }
    *s = x;
    return OK;
}

void slots_fini(struct slots *s)
{
    for (uint32_t i = 0; s->slot && i < s->n; i++) {
        struct slot *sl = &s->slot[i];
        for (uint32_t k = 0; sl->checkpoints && k < s->n_checkpoints; k++)
            free(sl->checkpoints[k].data);
        free(sl->checkpoints);
        free(sl->tokens);
        free(sl->hash);
    }
    free(s->slot);
    *s = (struct slots){0};
}

/* Without the help of a checkpoint. */
static bool can_cut(const struct slots *s, const struct slot *sl, uint32_t pos)
{
    return pos == sl->n || (!s->recurrent && sl->top - pos <= s->slack);
}

uint32_t slots_reach(const struct slots *s, uint32_t slot, uint32_t pos)
{
    const struct slot *sl = &s->slot[slot];
    uint32_t best = 0;
    if (pos > sl->n)
        pos = sl->n;
    if (can_cut(s, sl, pos))
        return pos;
    for (uint32_t i = 0; i < s->n_checkpoints; i++) {
        uint32_t p = sl->checkpoints[i].pos;
        if (p <= pos && p > best)
            best = p;
    }
    return best;
}

static void forget_after(struct slots *s, struct slot *sl, uint32_t pos)
{
    for (uint32_t i = 0; i < s->n_checkpoints; i++) {
        if (sl->checkpoints[i].pos > pos)
            sl->checkpoints[i].pos = 0;
    }
}

void slots_rewind(struct slots *s, struct kv *kv, uint32_t slot, uint32_t pos)
{
    struct slot *sl = &s->slot[slot];
    if (pos == 0) {
        kv_clear_slot(kv, slot);
        sl->top = 0;
    } else if (!can_cut(s, sl, pos)) {
        for (uint32_t i = 0; i < s->n_checkpoints; i++) {
            if (sl->checkpoints[i].pos == pos)
                kv_restore_slot(kv, slot, sl->checkpoints[i].data);
        }
        sl->top = pos;
    }
    sl->n = pos;
    forget_after(s, sl, pos);
}

enum err_code slots_checkpoint(struct slots *s, const struct kv *kv, uint32_t slot, struct err *e)
{
    struct slot *sl = &s->slot[slot];
    struct slot_checkpoint *c = NULL;
    if (s->n_checkpoints == 0 || sl->n == 0)
        return OK; /* every position, or the beginning, can be reached anyway */
    for (uint32_t i = 0; i < s->n_checkpoints; i++) {
        if (sl->checkpoints[i].pos == sl->n)
            return OK;
        if (!c || sl->checkpoints[i].pos < c->pos)
            c = &sl->checkpoints[i];
    }
    if (!c->data)
        c->data = malloc(s->saved_bytes + 1);
    if (!c->data)
        return err_set(e, ERR_NOMEM, "out of memory for a checkpoint of %zu bytes", s->saved_bytes);
    kv_save_slot(kv, slot, c->data);
    c->pos = sl->n;
    return OK;
}

void slots_append(struct slots *s, uint32_t slot, const int32_t *tokens, uint32_t n)
{
    struct slot *sl = &s->slot[slot];
    for (uint32_t k = 0; k < n; k++, sl->n++) {
        sl->tokens[sl->n] = tokens[k];
        sl->hash[sl->n + 1] = hash_prefix(sl->hash[sl->n], tokens[k]);
    }
    if (sl->n > sl->top)
        sl->top = sl->n;
}

void slots_lose(struct slots *s, struct kv *kv, uint32_t slot, uint32_t pos)
{
    struct slot *sl = &s->slot[slot];
    if (s->recurrent ||
        s->slack != UINT32_MAX) /* the state has moved on, or cells of a window have been written over */
        slots_rewind(s, kv, slot, 0);
    else
        sl->n = pos;
}
