/* SPDX-License-Identifier: MIT */
#include "engine/attn.h"

#include <math.h>

void attn_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    int64_t e = h->n_embd, heads = h->n_head[il], kv = h->n_head_kv[il];
    int64_t q = heads * h->head_dim_k, k = kv * h->head_dim_k, v = kv * h->head_dim_v, o = heads * h->head_dim_v;
    b->attn_norm = arch_vector(w, il, "attn_norm.weight", e);
    b->attn_qkv = arch_declare(w, il, "attn_qkv.weight",
                               (struct weight_spec){.use = WEIGHT_MUL_MAT, .optional = true, .ne = {e, q + k + v}});
    if (b->attn_qkv) {
        b->attn_qkv_b = arch_opt_vector(w, il, "attn_qkv.bias", q + k + v);
    } else {
        b->attn_q = arch_matrix(w, il, "attn_q.weight", e, q);
        b->attn_q_b = arch_opt_vector(w, il, "attn_q.bias", q);
        b->attn_k = arch_matrix(w, il, "attn_k.weight", e, k);
        b->attn_k_b = arch_opt_vector(w, il, "attn_k.bias", k);
        b->attn_v = arch_matrix(w, il, "attn_v.weight", e, v);
        b->attn_v_b = arch_opt_vector(w, il, "attn_v.bias", v);
    }
    b->attn_out = arch_matrix(w, il, "attn_output.weight", o, e);
    b->attn_out_b = arch_opt_vector(w, il, "attn_output.bias", e);
}

void attn_declare_head_norms(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    b->attn_q_norm = arch_vector(w, il, "attn_q_norm.weight", h->head_dim_k);
    b->attn_k_norm = arch_vector(w, il, "attn_k_norm.weight", h->head_dim_k);
}

struct qkv {
    struct ggml_tensor *q, *k, *v; /* [D, heads, n_tok] */
    struct ggml_tensor *gate;      /* [D * H, n_tok] or NULL */
};

/* n heads of d elements that begin at element at of each column of x, columns stride elements apart per head. */
static struct ggml_tensor *heads_of(struct graph *g, struct ggml_tensor *x, int64_t d, int64_t n, int64_t stride,
                                    int64_t at)
{
    size_t size = ggml_element_size(x);
    return ggml_view_3d(g->ctx, x, d, n, g->n_tok, (size_t)stride * size, x->nb[1], (size_t)at * size);
}

static struct qkv project(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *a, bool gated)
{
    const struct hparams *h = g->h;
    int64_t d = h->head_dim_k, dv = h->head_dim_v, heads = h->n_head[il], kv = h->n_head_kv[il];
    struct qkv r = {0};
    if (b->attn_qkv) {
        struct ggml_tensor *x = graph_linear(g, b->attn_qkv, b->attn_qkv_b, a);
        r.q = heads_of(g, x, d, heads, d, 0);
        r.k = heads_of(g, x, d, kv, d, heads * d);
        r.v = ggml_cont(g->ctx, heads_of(g, x, dv, kv, dv, (heads + kv) * d));
        return r;
    }
    struct ggml_tensor *q = graph_linear(g, b->attn_q, b->attn_q_b, a);
    struct ggml_tensor *k = graph_linear(g, b->attn_k, b->attn_k_b, a);
    struct ggml_tensor *v = graph_linear(g, b->attn_v, b->attn_v_b, a);
    if (gated) {
        r.q = heads_of(g, q, d, heads, 2 * d, 0);
        r.gate = ggml_cont_2d(g->ctx, heads_of(g, q, d, heads, 2 * d, d), d * heads, g->n_tok);
    } else {
        r.q = ggml_reshape_3d(g->ctx, q, d, heads, g->n_tok);
    }
    r.k = ggml_reshape_3d(g->ctx, k, d, kv, g->n_tok);
    r.v = ggml_reshape_3d(g->ctx, v, dv, kv, g->n_tok);
    return r;
}

struct ggml_tensor *attn_build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *a,
                               const struct attn_form *form)
{
    struct qkv x = project(g, il, b, a, form->gated);
    if (b->attn_q_norm)
        x.q = graph_rms_norm(g, x.q, b->attn_q_norm);
    if (b->attn_k_norm)
        x.k = graph_rms_norm(g, x.k, b->attn_k_norm);
    x.q = graph_rope(g, x.q, &form->rope);
    x.k = graph_rope(g, x.k, &form->rope);
    float scale = form->scale > 0 ? form->scale : 1.0f / sqrtf((float)g->h->head_dim_k);
    struct ggml_tensor *o = graph_attention(g, il, x.q, x.k, x.v, scale, b->attn_sinks);
    if (x.gate)
        o = ggml_mul(g->ctx, o, ggml_sigmoid(g->ctx, x.gate));
    return graph_linear(g, b->attn_out, b->attn_out_b, graph_leaving(g, il, o));
}
