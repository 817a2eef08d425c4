/* SPDX-License-Identifier: MIT */
#include "engine/graph.h"

struct ggml_tensor *graph_rms_norm(struct graph *g, struct ggml_tensor *x, struct ggml_tensor *w)
{
    return ggml_mul(g->ctx, ggml_rms_norm(g->ctx, x, g->h->rms_eps), w);
}

struct ggml_tensor *graph_linear(struct graph *g, struct ggml_tensor *w, struct ggml_tensor *b, struct ggml_tensor *x)
{
    struct ggml_tensor *y = ggml_mul_mat(g->ctx, w, x);
    return b ? ggml_add(g->ctx, y, b) : y;
}

struct ggml_tensor *graph_rope(struct graph *g, struct ggml_tensor *x, int mode)
{
    const struct hparams *h = g->h;
    return ggml_rope_ext(g->ctx, x, g->pos, g->rope_factors, (int)h->n_rot, mode, (int)h->n_ctx_train, h->rope_base,
                         h->rope_scale, 0.0f, 1.0f, 32.0f, 1.0f);
}

/* One entry's rows of q against its slot's cells. tok0: its first token in the batch. -> [Dv * H, n_tok] */
static struct ggml_tensor *attend(struct graph *g, uint32_t i, uint32_t tok0, struct ggml_tensor *q,
                                  struct ggml_tensor *kc, struct ggml_tensor *vc, float scale)
{
    const struct graph_entry *en = &g->entries[i];
    int64_t d = q->ne[0], heads = q->ne[1], dv = g->h->head_dim_v, hk = kc->ne[0] / d;
    size_t cell0 = (size_t)en->slot * g->kv->n_ctx;

    struct ggml_tensor *qe = ggml_view_3d(g->ctx, q, d, heads, en->n_tok, q->nb[1], q->nb[2], tok0 * q->nb[2]);
    qe = ggml_permute(g->ctx, qe, 0, 2, 1, 3); /* [D, n_tok, H] */
    struct ggml_tensor *ke = ggml_view_3d(g->ctx, kc, d, en->n_kv, hk, kc->nb[1], (size_t)d * kc->nb[0],
                                          cell0 * kc->nb[1]); /* [D, n_kv, Hk] */
    struct ggml_tensor *ve = ggml_view_3d(g->ctx, vc, dv, en->n_kv, hk, vc->nb[1], (size_t)dv * vc->nb[0],
                                          cell0 * vc->nb[1]); /* [Dv, n_kv, Hk] */
    struct ggml_tensor *o =
        ggml_flash_attn_ext(g->ctx, qe, ke, ve, g->masks[i], scale, 0.0f, 0.0f); /* [Dv, H, n_tok] */
    ggml_prec_set_acc(o, GGML_PREC_F32);
    return ggml_reshape_2d(g->ctx, o, dv * heads, en->n_tok);
}

struct ggml_tensor *graph_attention(struct graph *g, uint32_t il, struct ggml_tensor *q, struct ggml_tensor *k,
                                    struct ggml_tensor *v, float scale)
{
    struct ggml_tensor *kc = g->kv->k[il - g->kv->first], *vc = g->kv->v[il - g->kv->first];
    /* The stores come before the reads only by their order in the graph. */
    ggml_build_forward_expand(g->gf, q);
    ggml_build_forward_expand(
        g->gf, ggml_set_rows(g->ctx, kc, ggml_reshape_2d(g->ctx, k, k->ne[0] * k->ne[1], g->n_tok), g->cells));
    ggml_build_forward_expand(
        g->gf, ggml_set_rows(g->ctx, vc, ggml_reshape_2d(g->ctx, v, v->ne[0] * v->ne[1], g->n_tok), g->cells));

    struct ggml_tensor *out = NULL;
    uint32_t tok0 = 0;
    for (uint32_t i = 0; i < g->n_entries; i++) {
        struct ggml_tensor *o = attend(g, i, tok0, q, kc, vc, scale);
        out = out ? ggml_concat(g->ctx, out, o, 1) : o;
        tok0 += g->entries[i].n_tok;
    }
    return out;
}

struct ggml_tensor *graph_swiglu(struct graph *g, const struct graph_ffn *f, struct ggml_tensor *x)
{
    struct ggml_tensor *up = graph_linear(g, f->up, f->up_b, x);
    struct ggml_tensor *gate = graph_linear(g, f->gate, f->gate_b, x);
    return graph_linear(g, f->down, f->down_b, ggml_swiglu_split(g->ctx, gate, up));
}

size_t graph_nodes_per_block(uint32_t n_entries)
{
    return 48 + 8 * (size_t)n_entries;
}
