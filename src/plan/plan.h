/* SPDX-License-Identifier: MIT
 *
 * Dividing a model's blocks into windows: evenly, or as the user lists them. A window's cost is the bytes its rank
 * reads for one token when it decodes: those of its blocks and, on the last rank, the head. Looking up an embedding row
 * costs next to nothing, so the table counts as memory only. Pure functions: the same input gives the same windows
 * anywhere.
 */
#ifndef KVASIR_PLAN_PLAN_H
#define KVASIR_PLAN_PLAN_H

#include "model/hparams.h"

struct plan_window {
    uint32_t first, end; /* [first, end) */
    uint64_t cost;       /* bytes read per token */
    uint64_t bytes;      /* tensor bytes that must be loaded (model_sizes_window) */
};

/* n_ranks windows in out[n_ranks], at least one block each, whose largest cost is as small as it can be; among those
 * the least sum of squared costs; among those the earliest cuts. ERR_ARG for no blocks; ERR_RANGE for no ranks, or more
 * than there are blocks or a manifest can list; ERR_NOMEM. */
enum err_code plan_even(const struct model_sizes *s, uint32_t n_ranks, struct plan_window *out,
                        struct err *e) KV_MUST_USE;

/* "0:2,2:5" into out[cap]. ERR_ARG when it is not such a list, ERR_RANGE for a window beyond the last block, ERR_LIMIT
 * for more than cap windows, ERR_MISMATCH for a gap, an overlap, or blocks left over. */
enum err_code plan_layers(const char *text, const struct model_sizes *s, struct plan_window *out, uint32_t cap,
                          uint32_t *n_out, struct err *e) KV_MUST_USE;

/* Bytes of keys, values and recurrent states of [first, end) for n_slots sequences of n_ctx positions; UINT64_MAX when
 * it is more than that. window_cells: positions that blocks with a sliding window keep; bytes32: bytes of 32 cached
 * elements. */
struct plan_cache {
    uint32_t n_ctx, n_slots, window_cells, bytes32;
};
uint64_t plan_kv_bytes(const struct hparams *h, uint32_t first, uint32_t end, const struct plan_cache *c);

#endif
