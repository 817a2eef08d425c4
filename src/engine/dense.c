/* SPDX-License-Identifier: MIT */
#include "engine/dense.h"

void dense_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b, const char *ffn_norm)
{
    attn_declare(w, h, il, b);
    b->ffn_norm = arch_vector(w, il, ffn_norm, h->n_embd);
    if (h->n_expert > 0 && il >= h->n_dense_lead)
        ffn_declare_moe(w, h, il, b);
    else
        ffn_declare(w, h, il, b);
}

struct ggml_tensor *dense_finish(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x,
                                 struct ggml_tensor *mixed, const struct ffn_moe_form *ffn)
{
    struct ggml_tensor *y = ggml_add(g->ctx, graph_leaving(g, il, x), mixed);
    struct ggml_tensor *n = graph_rms_norm(g, y, b->ffn_norm);
    return ggml_add(g->ctx, y, b->router ? ffn_build_moe(g, b, n, ffn) : ffn_build(g, b, n, ffn->act));
}

struct ggml_tensor *dense_build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x,
                                const struct attn_form *attn, const struct ffn_moe_form *ffn)
{
    struct ggml_tensor *mixed = attn_build(g, il, b, graph_rms_norm(g, x, b->attn_norm), attn);
    return dense_finish(g, il, b, x, mixed, ffn);
}
