/* SPDX-License-Identifier: MIT
 *
 * The hyper-parameters every family shares, read from A.* keys of the metadata (A = general.architecture) and checked,
 * and the size of each part of a model. Plain data. Block indexes are absolute.
 */
#ifndef KVASIR_MODEL_HPARAMS_H
#define KVASIR_MODEL_HPARAMS_H

#include "model/gguf.h"

#include <stdbool.h>

#define HPARAMS_MAX_BLOCKS 1024u

/* What state a block keeps. */
enum block_kind {
    BLOCK_FULL,      /* attention over all positions */
    BLOCK_WINDOW,    /* attention over the last n_window positions */
    BLOCK_RECURRENT, /* gated delta net: a state of fixed size */
};

enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN, ROPE_SCALING_LONGROPE };

/* How a router's logits become weights; the numbers are those of the key expert_gating_func. */
enum gating {
    GATING_UNSET = 0,
    GATING_SOFTMAX = 1,          /* softmax over all experts, then the best */
    GATING_SIGMOID = 2,          /* sigmoid of each */
    GATING_SOFTMAX_SELECTED = 3, /* the best by logit, then softmax over these */
};

struct hparams {
    char arch[32];
    uint32_t n_block; /* trunk blocks: block_count less the NextN blocks */
    uint32_t n_nextn;
    uint32_t n_embd;
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t head_dim_k, head_dim_v; /* elements of one head's key / value */
    uint32_t n_rot;                  /* leading elements of a head that RoPE turns */
    float rope_base, rope_scale;     /* rope_scale: 1/factor for linear and YaRN scaling, else 1 */
    float rope_base_window;          /* of BLOCK_WINDOW blocks */
    enum rope_scaling rope_scaling;
    float rope_attn_factor; /* of YaRN and LongRoPE */
    uint32_t n_ctx_orig;    /* context before scaling */
    float rms_eps;
    float logit_softcap; /* 0: none */

    uint32_t n_expert, n_expert_used; /* 0: no experts */
    uint32_t n_ff_exp, n_ff_shared;   /* width of an expert, of all shared experts together; 0: key missing */
    uint32_t n_dense_lead;            /* blocks before this one have no experts */
    float expert_scale;               /* 0: unset */
    bool expert_norm;                 /* weights of the used experts sum to 1 */
    enum gating gating;

    uint32_t n_window; /* of BLOCK_WINDOW blocks */

    /* of BLOCK_RECURRENT blocks; 0 where there are none */
    struct {
        uint32_t conv;    /* taps of the convolution */
        uint32_t state;   /* elements of one head's key and value */
        uint32_t n_key;   /* key heads */
        uint32_t n_value; /* value heads */
    } ssm;

    /* [n_block + n_nextn], indexed by absolute block; n_head_kv and n_ff may be 0 where a block has none */
    uint32_t *n_head, *n_head_kv, *n_ff;
    uint8_t *kind; /* enum block_kind */
};

/* Does any block keep state that cannot be cut back to every earlier position? */
bool hparams_bounded_rewind(const struct hparams *h);

/* Channels of the convolution of a recurrent block: queries, keys and values side by side. */
uint32_t hparams_conv_channels(const struct hparams *h);

/* ERR_NOT_FOUND, ERR_FORMAT, ERR_RANGE name the key. Does not ask whether the family is known. */
enum err_code hparams_read(const struct gguf *g, struct hparams *out, struct err *e) KV_MUST_USE;
void hparams_fini(struct hparams *h);

/* What a tensor is, by its name. */
enum model_part {
    MODEL_BLOCK,  /* of a trunk block */
    MODEL_TABLE,  /* token_embd.weight */
    MODEL_EMBD,   /* what else belongs to the embedding */
    MODEL_HEAD,   /* output norm and head */
    MODEL_NEXTN,  /* of a NextN block */
    MODEL_GLOBAL, /* any other: rope factors */
};
/* ERR_FORMAT: of a block that the model does not have. */
enum err_code model_part_of(const struct hparams *h, const char *name, enum model_part *out, struct err *e) KV_MUST_USE;

/* Which of a model's tensors the window [first, end) has: the one rule for stage files, plans and memory. */
struct model_window {
    uint32_t first, end, n_block;
    bool tied;        /* there is no head of its own: the table is used again */
    bool nextn_table; /* a NextN block has no table of its own: the model's is used again */
};
/* has: is there a tensor of this name in the model? */
typedef bool model_has(const void *ctx, const char *name);
void model_window_init(struct model_window *w, const struct hparams *h, uint32_t first, uint32_t end, model_has *has,
                       const void *ctx);

enum model_use {
    MODEL_ABSENT,  /* not in the window's stage file */
    MODEL_LOADED,  /* in it, and in memory */
    MODEL_CARRIED, /* in it, but not in memory: for NextN blocks, which no step runs yet */
};
/* block: of MODEL_BLOCK. */
enum model_use model_window_use(const struct model_window *w, enum model_part part, uint32_t block);

/* Bytes of tensors per part, for plans and `kvasir index`. */
struct model_sizes {
    uint32_t n_block;
    uint64_t *block_bytes; /* [n_block] trunk blocks */
    uint64_t embd_bytes;   /* token embedding: on the first rank */
    uint64_t table_bytes;  /* of these, token_embd.weight */
    uint64_t head_bytes;   /* what the last rank adds: output norm and head, or norm and table when tied */
    uint64_t global_bytes; /* tensors every rank needs (rope factors) */
    uint64_t nextn_bytes;  /* NextN blocks: in the last stage file, in no memory yet */
    bool tied, nextn_table;
};
/* Of a stage file with the list of all tensors (slice.h): of the whole model. Of one without: of what it has, tied not
 * being known. ERR_FORMAT; ERR_RANGE: more than 2^63 bytes; ERR_NOMEM. */
enum err_code model_sizes_read(const struct gguf *g, const struct hparams *h, struct model_sizes *out,
                               struct err *e) KV_MUST_USE;
void model_sizes_fini(struct model_sizes *s);

/* Tensor bytes of the window [first, end): in memory, and in its stage file. */
uint64_t model_sizes_window(const struct model_sizes *s, uint32_t first, uint32_t end);
uint64_t model_sizes_stage_file(const struct model_sizes *s, uint32_t first, uint32_t end);

#endif
