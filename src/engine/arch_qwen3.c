/* SPDX-License-Identifier: MIT
 *
 * Qwen 3: query and key heads are normed before RoPE, which turns halves against each other. Heads times head size
 * often differs from n_embd.
 */
#include "engine/dense.h"

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    dense_declare(w, h, il, b, "ffn_norm.weight");
    attn_declare_head_norms(w, h, il, b);
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    struct attn_form attn = {.rope = graph_rope_of(g->h, il, GGML_ROPE_TYPE_NEOX)};
    return dense_build(g, il, b, x, &attn, &(struct ffn_moe_form){.gating = GATING_SOFTMAX, .norm = true});
}

const struct arch arch_qwen3 = {.name = "qwen3", .declare = declare, .build = build};
const struct arch arch_qwen3moe = {.name = "qwen3moe", .declare = declare, .build = build};
