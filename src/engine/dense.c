/* SPDX-License-Identifier: MIT */
#include "engine/dense.h"

#include <math.h>

enum err_code dense_check(const struct hparams *h, struct err *e)
{
    if (h->n_expert > 0)
        return err_set(e, ERR_UNSUPPORTED, "%s models with experts (%u here) cannot be run yet", h->arch, h->n_expert);
    if (h->n_nextn > 0)
        return err_set(e, ERR_UNSUPPORTED, "%s models with NextN blocks cannot be run yet", h->arch);
    return OK;
}

void dense_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    int64_t e = h->n_embd, f = h->n_ff[il];
    int64_t q = (int64_t)h->n_head[il] * h->head_dim_k, k = (int64_t)h->n_head_kv[il] * h->head_dim_k;
    int64_t v = (int64_t)h->n_head_kv[il] * h->head_dim_v, o = (int64_t)h->n_head[il] * h->head_dim_v;
    *b = (struct arch_block){
        .attn_norm = arch_need(w, il, "attn_norm.weight", false, e, 0),
        .attn_q = arch_need(w, il, "attn_q.weight", false, e, q),
        .attn_q_b = arch_need(w, il, "attn_q.bias", true, q, 0),
        .attn_k = arch_need(w, il, "attn_k.weight", false, e, k),
        .attn_k_b = arch_need(w, il, "attn_k.bias", true, k, 0),
        .attn_v = arch_need(w, il, "attn_v.weight", false, e, v),
        .attn_v_b = arch_need(w, il, "attn_v.bias", true, v, 0),
        .attn_out = arch_need(w, il, "attn_output.weight", false, o, e),
        .attn_out_b = arch_need(w, il, "attn_output.bias", true, e, 0),
        .ffn_norm = arch_need(w, il, "ffn_norm.weight", false, e, 0),
        .ffn_gate = arch_need(w, il, "ffn_gate.weight", false, e, f),
        .ffn_gate_b = arch_need(w, il, "ffn_gate.bias", true, f, 0),
        .ffn_up = arch_need(w, il, "ffn_up.weight", false, e, f),
        .ffn_up_b = arch_need(w, il, "ffn_up.bias", true, f, 0),
        .ffn_down = arch_need(w, il, "ffn_down.weight", false, f, e),
        .ffn_down_b = arch_need(w, il, "ffn_down.bias", true, e, 0),
    };
}

struct ggml_tensor *dense_build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x,
                                int rope)
{
    const struct hparams *h = g->h;
    int64_t d = h->head_dim_k, heads = h->n_head[il], hk = h->n_head_kv[il];
    struct ggml_tensor *a = graph_rms_norm(g, x, b->attn_norm);
    struct ggml_tensor *q = ggml_reshape_3d(g->ctx, graph_linear(g, b->attn_q, b->attn_q_b, a), d, heads, g->n_tok);
    struct ggml_tensor *k = ggml_reshape_3d(g->ctx, graph_linear(g, b->attn_k, b->attn_k_b, a), d, hk, g->n_tok);
    struct ggml_tensor *v =
        ggml_reshape_3d(g->ctx, graph_linear(g, b->attn_v, b->attn_v_b, a), h->head_dim_v, hk, g->n_tok);
    if (b->attn_q_norm)
        q = graph_rms_norm(g, q, b->attn_q_norm);
    if (b->attn_k_norm)
        k = graph_rms_norm(g, k, b->attn_k_norm);
    q = graph_rope(g, q, rope);
    k = graph_rope(g, k, rope);
    struct ggml_tensor *o = graph_attention(g, il, q, k, v, 1.0f / sqrtf((float)d));
    struct ggml_tensor *y = ggml_add(g->ctx, x, graph_linear(g, b->attn_out, b->attn_out_b, o));
    struct graph_ffn ffn = {.gate = b->ffn_gate,
                            .gate_b = b->ffn_gate_b,
                            .up = b->ffn_up,
                            .up_b = b->ffn_up_b,
                            .down = b->ffn_down,
                            .down_b = b->ffn_down_b};
    return ggml_add(g->ctx, y, graph_swiglu(g, &ffn, graph_rms_norm(g, y, b->ffn_norm)));
}
