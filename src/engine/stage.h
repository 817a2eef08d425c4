/* SPDX-License-Identifier: MIT
 *
 * A stage: one loaded window [first, end) of a model with its caches, ready to run steps. The first stage looks tokens
 * up, the last one norms, projects and samples; a stage may be both. Knows nothing of rings.
 *
 * A struct stage belongs to one thread (the compute thread); stage_info may be read by others after stage_open.
 */
#ifndef KVASIR_ENGINE_STAGE_H
#define KVASIR_ENGINE_STAGE_H

#include "batch/batch.h"
#include "engine/kv.h"
#include "model/gguf.h"

#define STAGE_DEFAULT_BATCH       512u
#define STAGE_DEFAULT_CHECKPOINTS 3u

struct stage; /* opaque */

struct stage_params {
    uint32_t first, end; /* window; end 0: to the last block */
    uint32_t n_ctx;      /* positions per slot */
    uint32_t n_slots;    /* sequences at once */
    uint32_t n_batch;    /* most tokens of one step; 0: STAGE_DEFAULT_BATCH, at most BATCH_MAX_TOK */
    uint32_t n_threads;
    enum kv_type kv_type;
    const char *device;     /* as for backend_open, or "auto": the best GPU with room for the window, else the CPU.
                               NULL: "cpu" */
    uint32_t device_layers; /* the first so many blocks of the window on the device, the others, and the head with
                               them, on the CPU; 0, or as many as there are: all of it on the device */
    uint64_t device_bytes;  /* take no more of the device's memory for weights and caches; 0: what is free */
    bool no_repack;         /* keep weights as they are in the file */
    bool no_head;           /* a window that ends with the last block gives its boundary instead of logits */
    bool nextn;             /* the last stage also loads the NextN blocks of the model, which no step runs yet */
    uint32_t n_checkpoints; /* per slot, of models that need them; 0: STAGE_DEFAULT_CHECKPOINTS */
    bool all_logits;        /* the last stage keeps the logits of every token of a step, not only the sampled ones */
};

struct stage_info {
    uint32_t first, end, n_block, n_embd, n_vocab;
    uint32_t n_nextn;
    uint64_t weight_bytes, repacked_bytes, kv_bytes, compute_bytes;
    uint64_t nextn_bytes; /* of weight_bytes, those only the NextN blocks need */
    const char *device;   /* its name, ggml's; of the devices besides the CPU the rest is 0 for a stage on the CPU */
    uint32_t n_device_blocks, n_device_states; /* blocks whose weights, whose caches are meant for it, lie on it */
    uint64_t device_weight_bytes, device_kv_bytes, device_compute_bytes; /* of the sums above */
    uint32_t n_splits; /* parts of the largest step's graph that run on one device each */
};

/* Loads the window. g may be closed afterwards. ERR_RANGE (window, context), ERR_UNSUPPORTED (family, device, type),
 * ERR_NOT_FOUND / ERR_FORMAT (tensors, keys), ERR_NOMEM (says what would fit), ERR_IO, ERR_DEVICE. */
enum err_code stage_open(const struct gguf *g, const struct stage_params *p, struct stage **out,
                         struct err *e) KV_MUST_USE;
void stage_close(struct stage *s);
const struct stage_info *stage_info(const struct stage *s);

/* Sampling parameters of the sequence that uses the slot next (last stage; elsewhere checked and ignored). */
enum err_code stage_sampling(struct stage *s, uint32_t slot, const struct batch_sampling *p, struct err *e) KV_MUST_USE;

/* Runs the window over b: first stage from b->tokens, others from b->rows; all but the last write b->rows, the last
 * fills b->results for entries flagged BATCH_SAMPLE. b->tokens is needed on every stage.
 * ERR_STALE: an entry does not continue what the slot holds (position or prefix hash), or goes back to a position that
 * stage_reach would not give; nothing was computed.
 * ERR_RANGE / ERR_LIMIT: slots, positions, tokens or counts out of their limits; nothing was computed.
 * ERR_DEVICE / ERR_NUMERIC: computing failed; the slots of this step hold only what they held before it, or nothing in
 * models with recurrent blocks or sliding windows.
 * Allocates nothing while the form of the steps stays the same. */
enum err_code stage_step(struct stage *s, struct batch *b, struct err *e) KV_MUST_USE;

/* Logits of the last step on the last stage: [n_vocab, *n_rows], one row per sampled entry in order (per token with
 * all_logits). Valid until the next step. NULL elsewhere. */
const float *stage_logits(const struct stage *s, uint32_t *n_rows);

/* The largest position at most pos that BATCH_TRUNCATE can take the slot back to: pos itself for most models; in models
 * with recurrent blocks or sliding windows that of a checkpoint (BATCH_CHECKPOINT) or 0. All ranks give the same. */
uint32_t stage_reach(const struct stage *s, uint32_t slot, uint32_t pos);

/* Tokens the slot holds. */
uint32_t stage_slot_tokens(const struct stage *s, uint32_t slot);

#endif
