/* SPDX-License-Identifier: MIT
 *
 * The hyper-parameters every family shares, read from A.* keys of the metadata (A = general.architecture) and checked,
 * and the size of each part of a model. Plain data. Block indexes are absolute.
 */
#ifndef KVASIR_MODEL_HPARAMS_H
#define KVASIR_MODEL_HPARAMS_H

#include "model/gguf.h"

#define HPARAMS_MAX_BLOCKS 1024u

struct hparams {
    char arch[32];
    uint32_t n_block; /* trunk blocks: block_count less the NextN blocks */
    uint32_t n_nextn;
    uint32_t n_embd;
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t head_dim_k, head_dim_v; /* elements of one head's key / value */
    uint32_t n_rot;                  /* leading elements of a head that RoPE turns */
    float rope_base, rope_scale;     /* rope_scale: 1/factor for linear scaling, else 1 */
    float rms_eps;
    uint32_t n_expert, n_expert_used;
    uint32_t *n_head;    /* [n_block] */
    uint32_t *n_head_kv; /* [n_block] */
    uint32_t *n_ff;      /* [n_block] */
};

/* ERR_NOT_FOUND, ERR_FORMAT, ERR_RANGE name the key. Does not ask whether the family is known. */
enum err_code hparams_read(const struct gguf *g, struct hparams *out, struct err *e) KV_MUST_USE;
void hparams_fini(struct hparams *h);

/* Bytes of tensors per part, for plans and `kvasir index`. */
struct model_sizes {
    uint32_t n_block;
    uint64_t *block_bytes; /* [n_block] trunk blocks */
    uint64_t embd_bytes;   /* token_embd: on the first rank */
    uint64_t head_bytes;   /* what the last rank adds: output norm and head, or norm and token_embd when tied */
    uint64_t global_bytes; /* tensors every rank needs (rope factors) */
    uint64_t nextn_bytes;  /* NextN blocks: on no rank yet */
    bool tied;
};
enum err_code model_sizes_read(const struct gguf *g, const struct hparams *h, struct model_sizes *out,
                               struct err *e) KV_MUST_USE;
void model_sizes_fini(struct model_sizes *s);

/* Tensor bytes of the window [first, end). */
uint64_t model_sizes_window(const struct model_sizes *s, uint32_t first, uint32_t end);

#endif
