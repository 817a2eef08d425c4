/* SPDX-License-Identifier: MIT
 *
 * What the engine knows of a model family: which tensors a block has and how its graph is built. One file per family
 * (arch_NAME.c) and one line in arch.c. Block indexes are absolute: a window may begin anywhere.
 */
#ifndef KVASIR_ENGINE_ARCH_H
#define KVASIR_ENGINE_ARCH_H

#include "engine/graph.h"
#include "engine/weights.h"
#include "model/hparams.h"

/* The weights of one block. Families use the members they have; the rest is NULL. Shapes in ggml order, E = n_embd,
 * H = heads, Hk = key/value heads, D = head size, F = n_ff. */
struct arch_block {
    struct ggml_tensor *attn_norm;                /* [E] */
    struct ggml_tensor *attn_q, *attn_k, *attn_v; /* [E, H*D], [E, Hk*D], [E, Hk*Dv] */
    struct ggml_tensor *attn_q_b, *attn_k_b, *attn_v_b;
    struct ggml_tensor *attn_q_norm, *attn_k_norm;    /* [D] */
    struct ggml_tensor *attn_out, *attn_out_b;        /* [H*Dv, E], [E] */
    struct ggml_tensor *ffn_norm;                     /* [E] */
    struct ggml_tensor *ffn_gate, *ffn_up, *ffn_down; /* [E, F], [E, F], [F, E] */
    struct ggml_tensor *ffn_gate_b, *ffn_up_b, *ffn_down_b;
};

struct arch {
    const char *name; /* general.architecture */

    /* Can this engine run a model with these hyper-parameters? ERR_UNSUPPORTED says what it cannot do. */
    enum err_code (*check)(const struct gguf *g, const struct hparams *h, struct err *e);

    /* Declares the tensors of block il; errors are sticky in w. */
    void (*declare)(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b);

    /* Adds block il to the graph: x is [E, n_tok] f32 (the residual stream), so is what is returned. */
    struct ggml_tensor *(*build)(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x);
};

/* The family of this name; ERR_UNSUPPORTED lists those there are. */
enum err_code arch_find(const char *name, const struct arch **out, struct err *e) KV_MUST_USE;

/* Declares "blk.IL.PART" for a family: a matrix [ne0, ne1], or with ne1 = 0 a vector used element by element. */
struct ggml_tensor *arch_need(struct weights *w, uint32_t il, const char *part, bool optional, int64_t ne0,
                              int64_t ne1);

extern const struct arch arch_llama, arch_qwen3;

#endif
