/* SPDX-License-Identifier: MIT
 *
 * Phi-3 and Phi-4: queries, keys and values in one matrix, gate and up in another. Long contexts use other RoPE
 * factors (stage.c chooses by the context that was asked for, so every rank must be asked for the same).
 */
#include "engine/dense.h"

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    int64_t e = h->n_embd, f = h->n_ff[il];
    attn_declare(w, h, il, b);
    b->ffn_norm = arch_vector(w, il, "ffn_norm.weight", e);
    b->ffn_up = arch_matrix(w, il, "ffn_up.weight", e, 2 * f);
    b->ffn_down = arch_matrix(w, il, "ffn_down.weight", f, e);
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    struct attn_form attn = {.rope = graph_rope_of(g->h, il, GGML_ROPE_TYPE_NEOX)};
    return dense_build(g, il, b, x, &attn, &(struct ffn_moe_form){.act = FFN_SWIGLU});
}

const struct arch arch_phi3 = {.name = "phi3", .declare = declare, .build = build};
