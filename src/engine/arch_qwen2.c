/* SPDX-License-Identifier: MIT
 *
 * Qwen 2 and 2.5: dense, with biases on queries, keys and values; RoPE turns halves against each other.
 */
#include "engine/dense.h"

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    dense_declare(w, h, il, b, "ffn_norm.weight");
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    struct attn_form attn = {.rope = graph_rope_of(g->h, il, GGML_ROPE_TYPE_NEOX)};
    return dense_build(g, il, b, x, &attn, &(struct ffn_moe_form){.act = FFN_SWIGLU});
}

const struct arch arch_qwen2 = {.name = "qwen2", .declare = declare, .build = build};
