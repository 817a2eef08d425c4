/* SPDX-License-Identifier: MIT
 *
 * What the engine knows of a model family: which tensors a block has and how its graph is built. One file per family
 * (arch_NAME.c) and one line in arch.c, see docs/families.md. Block indexes are absolute: a window may begin anywhere.
 */
#ifndef KVASIR_ENGINE_ARCH_H
#define KVASIR_ENGINE_ARCH_H

#include "engine/graph.h"
#include "engine/weights.h"
#include "model/hparams.h"

/* The weights of one block. Families use the members they have; the rest is NULL. Shapes in ggml order, E = n_embd,
 * H = heads, Hk = key/value heads, D = head size, F = n_ff, X = experts, Fx = width of one, Fs = of the shared ones;
 * recurrent blocks: C = channels of the convolution, K = its taps, V = value elements, Hv = value heads. */
struct arch_block {
    struct ggml_tensor *attn_norm;                /* [E] */
    struct ggml_tensor *attn_qkv, *attn_qkv_b;    /* [E, (H+2*Hk)*D] or [E, C] */
    struct ggml_tensor *attn_q, *attn_k, *attn_v; /* [E, H*D], [E, Hk*D], [E, Hk*Dv] */
    struct ggml_tensor *attn_q_b, *attn_k_b, *attn_v_b;
    struct ggml_tensor *attn_q_norm, *attn_k_norm;    /* [D] */
    struct ggml_tensor *attn_out, *attn_out_b;        /* [H*Dv, E], [E] */
    struct ggml_tensor *attn_sinks;                   /* [H] */
    struct ggml_tensor *attn_post_norm;               /* [E]: after attention (gemma3) */
    struct ggml_tensor *ffn_norm;                     /* [E]: before the feed-forward, whatever the file calls it */
    struct ggml_tensor *ffn_gate, *ffn_up, *ffn_down; /* [E, F], [E, F] (without gate: [E, 2*F]), [F, E] */
    struct ggml_tensor *ffn_gate_b, *ffn_up_b, *ffn_down_b;
    struct ggml_tensor *ffn_post_norm; /* [E]: after the feed-forward (gemma3) */

    struct ggml_tensor *router, *router_b;                     /* [E, X], [X] */
    struct ggml_tensor *router_bias;                           /* [X]: for choosing only */
    struct ggml_tensor *exps_gate, *exps_up, *exps_down;       /* [E, Fx, X], [E, Fx, X], [Fx, E, X] */
    struct ggml_tensor *exps_gate_up;                          /* [E, 2*Fx, X] instead of the first two */
    struct ggml_tensor *exps_gate_b, *exps_up_b, *exps_down_b; /* [Fx, X], [Fx, X], [E, X] */
    struct ggml_tensor *shared_gate, *shared_up, *shared_down; /* [E, Fs], [E, Fs], [Fs, E] */
    struct ggml_tensor *shared_router;                         /* [E] */

    struct ggml_tensor *delta_z;                  /* [E, V] */
    struct ggml_tensor *delta_conv;               /* [K, C] */
    struct ggml_tensor *delta_a, *delta_dt;       /* [Hv], [Hv] */
    struct ggml_tensor *delta_alpha, *delta_beta; /* [E, Hv] */
    struct ggml_tensor *delta_norm, *delta_out;   /* [state], [V, E] */
};

struct arch {
    const char *name; /* general.architecture */

    /* Can this engine run a model with these hyper-parameters? ERR_UNSUPPORTED says what it cannot do. NULL: yes. */
    enum err_code (*check)(const struct hparams *h, struct err *e);

    /* Declares the tensors of block il, a NextN block's too; errors are sticky in w. */
    void (*declare)(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b);

    /* Adds block il to the graph: x is [E, n_tok] f32 (the residual stream), so is what is returned. */
    struct ggml_tensor *(*build)(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x);

    bool scaled_embeddings; /* token embeddings are multiplied by sqrt(n_embd) */
};

/* The family of this name; ERR_UNSUPPORTED lists those there are. */
enum err_code arch_find(const char *name, const struct arch **out, struct err *e) KV_MUST_USE;

/* Declares "blk.IL.PART": a matrix [ne0, ne1], experts' matrices [ne0, ne1, n], or a tensor [ne0] or [ne0, ne1] used
 * element by element. */
struct ggml_tensor *arch_matrix(struct weights *w, uint32_t il, const char *part, int64_t ne0, int64_t ne1);
struct ggml_tensor *arch_experts(struct weights *w, uint32_t il, const char *part, int64_t ne0, int64_t ne1, int64_t n);
struct ggml_tensor *arch_vector(struct weights *w, uint32_t il, const char *part, int64_t ne0);
struct ggml_tensor *arch_declare(struct weights *w, uint32_t il, const char *part, struct weight_spec spec);

/* The same for tensors that may be missing: NULL then. */
struct ggml_tensor *arch_opt_vector(struct weights *w, uint32_t il, const char *part, int64_t ne0);

extern const struct arch arch_llama, arch_qwen2, arch_qwen3, arch_qwen3moe, arch_qwen35, arch_qwen35moe, arch_gemma3,
    arch_phi3, arch_gpt_oss, arch_glm4moe;

#endif
