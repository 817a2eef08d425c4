/* SPDX-License-Identifier: MIT
 *
 * GLM-4.5 and its kin: some leading dense blocks, then experts chosen by a biased sigmoid, and shared ones beside them.
 * RoPE over half of a head. The norm before the feed-forward is called post_attention_norm. The biggest size also
 * norms query and key heads.
 */
#include "engine/dense.h"

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    dense_declare(w, h, il, b, "post_attention_norm.weight");
    b->attn_q_norm = arch_opt_vector(w, il, "attn_q_norm.weight", h->head_dim_k);
    b->attn_k_norm = arch_opt_vector(w, il, "attn_k_norm.weight", h->head_dim_k);
    if (b->router)
        b->router_bias = arch_opt_vector(w, il, "exp_probs_b.bias", h->n_expert);
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    const struct hparams *h = g->h;
    struct attn_form attn = {.rope = graph_rope_of(h, il, GGML_ROPE_TYPE_NEOX)};
    struct ffn_moe_form ffn = {
        .gating = h->gating ? h->gating : GATING_SIGMOID, .norm = h->expert_norm, .scale = h->expert_scale};
    return dense_build(g, il, b, x, &attn, &ffn);
}

const struct arch arch_glm4moe = {.name = "glm4moe", .declare = declare, .build = build};
