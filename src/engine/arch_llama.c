/* SPDX-License-Identifier: MIT
 *
 * The llama family (Llama 2 and 3, Mistral, SmolLM; Mixtral with experts). Query and key rows were permuted when the
 * GGUF was made, so that RoPE turns neighbouring pairs.
 */
#include "engine/dense.h"

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    dense_declare(w, h, il, b, "ffn_norm.weight");
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    struct attn_form attn = {.rope = graph_rope_of(g->h, il, GGML_ROPE_TYPE_NORMAL)};
    return dense_build(g, il, b, x, &attn, &(struct ffn_moe_form){.gating = GATING_SOFTMAX, .norm = true});
}

const struct arch arch_llama = {.name = "llama", .declare = declare, .build = build};
