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

struct graph_rope graph_rope_of(const struct hparams *h, uint32_t il, int mode)
{
    bool window = h->kind[il] == BLOCK_WINDOW;
    return (struct graph_rope){.mode = mode,
                               .base = window ? h->rope_base_window : h->rope_base,
                               .scale = h->rope_scale,
                               .yarn = h->rope_scaling == ROPE_SCALING_YARN};
}

struct ggml_tensor *graph_rope(struct graph *g, struct ggml_tensor *x, const struct graph_rope *r)
{
    const struct hparams *h = g->h;
    return ggml_rope_ext(g->ctx, x, g->pos, g->rope_factors, (int)h->n_rot, r->mode, (int)h->n_ctx_orig, r->base,
                         r->scale, r->yarn ? 1.0f : 0.0f, h->rope_attn_factor, 32.0f, 1.0f);
}

struct ggml_tensor *graph_columns(struct graph *g, struct ggml_tensor *x, uint32_t tok0, uint32_t n)
{
    if (tok0 == 0 && n == x->ne[1])
        return x;
    return ggml_view_2d(g->ctx, x, x->ne[0], n, x->nb[1], tok0 * x->nb[1]);
}

/* The rows of q of entry i's group against the slots' cells. tok0: its first token in the batch. -> [Dv * H, n_tok] */
static struct ggml_tensor *attend(struct graph *g, uint32_t il, uint32_t i, uint32_t tok0, struct ggml_tensor *q,
                                  float scale, struct ggml_tensor *sinks)
{
    const struct graph_entry *en = &g->entries[i];
    struct ggml_tensor *kc = g->kv->k[il - g->kv->first], *vc = g->kv->v[il - g->kv->first];
    enum kv_view view = kv_view_of(g->h, il);
    int64_t d = q->ne[0], heads = q->ne[1], dv = g->h->head_dim_v, hk = g->h->n_head_kv[il];
    int64_t n = en->n_cells[view], n_tok = en->n_tok, group = en->n_group;
    size_t cells = g->kv->n_cells[view], cell0 = (size_t)en->slot * cells;

    struct ggml_tensor *qe =
        ggml_view_4d(g->ctx, q, d, heads, n_tok, group, q->nb[1], q->nb[2], (size_t)n_tok * q->nb[2], tok0 * q->nb[2]);
    qe = ggml_permute(g->ctx, qe, 0, 2, 1, 3); /* [D, n_tok, H, group] */
    struct ggml_tensor *ke = ggml_view_4d(g->ctx, kc, d, n, hk, group, kc->nb[1], ggml_row_size(kc->type, d),
                                          cells * kc->nb[1], cell0 * kc->nb[1]); /* [D, n, Hk, group] */
    struct ggml_tensor *ve = ggml_view_4d(g->ctx, vc, dv, n, hk, group, vc->nb[1], ggml_row_size(vc->type, dv),
                                          cells * vc->nb[1], cell0 * vc->nb[1]); /* [Dv, n, Hk, group] */
    struct ggml_tensor *m = g->view[view].mask;
    const size_t row = (size_t)n * ggml_element_size(m), rows = row * (size_t)n_tok;
    struct ggml_tensor *mask = ggml_view_4d(g->ctx, m, n, n_tok, 1, group, row, rows, rows,
                                            g->view[view].mask_at[i]); /* [n, n_tok, 1, group] */
    struct ggml_tensor *o =
        ggml_flash_attn_ext(g->ctx, qe, ke, ve, mask, scale, 0.0f, 0.0f); /* [Dv, H, n_tok, group] */
    if (sinks)
        ggml_flash_attn_ext_add_sinks(o, sinks);
    ggml_prec_set_acc(o, GGML_PREC_F32);
    return ggml_reshape_2d(g->ctx, o, dv * heads, n_tok * group);
}

struct ggml_tensor *graph_attention(struct graph *g, uint32_t il, struct ggml_tensor *q, struct ggml_tensor *k,
                                    struct ggml_tensor *v, float scale, struct ggml_tensor *sinks)
{
    struct ggml_tensor *kc = g->kv->k[il - g->kv->first], *vc = g->kv->v[il - g->kv->first];
    struct ggml_tensor *cells = g->view[kv_view_of(g->h, il)].cells;
    /* The stores come before the reads only by their order in the graph. */
    ggml_build_forward_expand(g->gf, q);
    ggml_build_forward_expand(
        g->gf, ggml_set_rows(g->ctx, kc, ggml_reshape_2d(g->ctx, k, k->ne[0] * k->ne[1], g->n_tok), cells));
    ggml_build_forward_expand(
        g->gf, ggml_set_rows(g->ctx, vc, ggml_reshape_2d(g->ctx, v, v->ne[0] * v->ne[1], g->n_tok), cells));

    struct ggml_tensor *out = NULL;
    uint32_t tok0 = 0;
    for (uint32_t i = 0; i < g->n_entries; i += g->entries[i].n_group) {
        struct ggml_tensor *o = attend(g, il, i, tok0, q, scale, sinks);
        out = out ? ggml_concat(g->ctx, out, o, 1) : o;
        tok0 += g->entries[i].n_tok * g->entries[i].n_group;
    }
    return out;
}

struct ggml_tensor *graph_leaving(struct graph *g, uint32_t il, struct ggml_tensor *x)
{
    return g->out_ids && il + 1 == g->h->n_block ? ggml_get_rows(g->ctx, x, g->out_ids) : x;
}

size_t graph_nodes_per_block(const struct hparams *h, uint32_t n_entries)
{
    size_t per_entry = h->ssm.state ? 40 : 10;
    return 80 + 3 * (size_t)h->n_expert_used + per_entry * n_entries;
}
