/* SPDX-License-Identifier: MIT
 *
 * What the ring needs of a loaded window. The ring never sees the engine: the node command puts the engine's functions
 * here, tests put a fake. All functions are called on the node's compute thread only.
 */
#ifndef KVASIR_RING_STAGE_H
#define KVASIR_RING_STAGE_H

#include "base/err.h"
#include "batch/batch.h"

struct ring_stage {
    void *ctx; /* borrowed; must outlive the node */

    /* Runs the window over the batch. First rank: reads b->tokens. Others: read b->rows. All but the last write
     * b->rows; the last fills b->results for the entries flagged BATCH_SAMPLE. ERR_STALE when an entry does not
     * continue what this stage holds of its slot. */
    enum err_code (*step)(void *ctx, struct batch *b, struct err *e);

    /* Sampling parameters of the request that will use a slot next (last rank only; NULL elsewhere is fine). */
    enum err_code (*sampling)(void *ctx, uint32_t slot, const struct batch_sampling *s, struct err *e);

    /* Of the whole model; the scheduler on rank 0 goes by it. */
    bool bounded_rewind;    /* a slot goes back (BATCH_TRUNCATE) only to its checkpoints and to 0 */
    uint32_t n_checkpoints; /* that all stages keep of a slot then */
};

#endif
