/* SPDX-License-Identifier: MIT */
#include "engine/delta.h"

void delta_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    int64_t e = h->n_embd, c = hparams_conv_channels(h), hv = h->ssm.n_value, v = hv * h->ssm.state;
    b->attn_norm = arch_vector(w, il, "attn_norm.weight", e);
    b->attn_qkv = arch_matrix(w, il, "attn_qkv.weight", e, c);
    b->delta_z = arch_matrix(w, il, "attn_gate.weight", e, v);
    b->delta_conv =
        arch_declare(w, il, "ssm_conv1d.weight", (struct weight_spec){.use = WEIGHT_ELEMENT, .ne = {h->ssm.conv, c}});
    b->delta_a = arch_vector(w, il, "ssm_a", hv);
    b->delta_dt = arch_vector(w, il, "ssm_dt.bias", hv);
    b->delta_alpha = arch_matrix(w, il, "ssm_alpha.weight", e, hv);
    b->delta_beta = arch_matrix(w, il, "ssm_beta.weight", e, hv);
    b->delta_norm = arch_vector(w, il, "ssm_norm.weight", h->ssm.state);
    b->delta_out = arch_matrix(w, il, "ssm_out.weight", v, e);
}

/* The slot's plane of a state tensor, with the given shape. */
static struct ggml_tensor *plane(struct graph *g, struct ggml_tensor *state, uint32_t slot, int64_t ne0, int64_t ne1,
                                 int64_t ne2)
{
    size_t row = (size_t)ne0 * sizeof(float);
    return ggml_view_3d(g->ctx, state, ne0, ne1, ne2, row, row * (size_t)ne1, slot * state->nb[1]);
}

/* The convolution over the entry's columns of u [C, n] with the slot's last taps - 1 columns before them. -> [C, n] */
static struct ggml_tensor *convolve(struct graph *g, const struct arch_block *b, struct ggml_tensor *state,
                                    uint32_t slot, struct ggml_tensor *u)
{
    int64_t past = g->h->ssm.conv - 1, c = u->ne[0], n = u->ne[1];
    struct ggml_tensor *before = plane(g, state, slot, past, c, 1);
    struct ggml_tensor *x = ggml_concat(g->ctx, before, ggml_transpose(g->ctx, u), 0); /* [past + n, C] */
    struct ggml_tensor *tail = ggml_view_2d(g->ctx, x, past, c, x->nb[1], (size_t)n * x->nb[0]);
    ggml_build_forward_expand(g->gf, ggml_cpy(g->ctx, tail, plane(g, state, slot, past, c, 1)));
    x = ggml_ssm_conv(g->ctx, ggml_reshape_3d(g->ctx, x, past + n, c, 1), b->delta_conv); /* [C, n, 1] */
    return ggml_silu(g->ctx, x);
}

struct gates {
    struct ggml_tensor *decay, *beta; /* [Hv, n_tok] */
};

/* One entry: c [C, n] after the convolution. -> [state, Hv, n] */
static struct ggml_tensor *rule(struct graph *g, struct ggml_tensor *state, uint32_t slot, struct ggml_tensor *c,
                                struct ggml_tensor *decay, struct ggml_tensor *beta)
{
    const struct hparams *h = g->h;
    int64_t d = h->ssm.state, hk = h->ssm.n_key, hv = h->ssm.n_value, n = c->ne[1];
    size_t head = (size_t)d * sizeof(float);
    struct ggml_tensor *q = ggml_view_4d(g->ctx, c, d, hk, n, 1, head, c->nb[1], c->nb[2], 0);
    struct ggml_tensor *k = ggml_view_4d(g->ctx, c, d, hk, n, 1, head, c->nb[1], c->nb[2], (size_t)hk * head);
    struct ggml_tensor *v = ggml_view_4d(g->ctx, c, d, hv, n, 1, head, c->nb[1], c->nb[2], (size_t)(2 * hk) * head);
    q = ggml_l2_norm(g->ctx, q, h->rms_eps);
    k = ggml_l2_norm(g->ctx, k, h->rms_eps);
    decay = ggml_reshape_4d(g->ctx, decay, 1, hv, n, 1);
    beta = ggml_reshape_4d(g->ctx, beta, 1, hv, n, 1);
    struct ggml_tensor *o = ggml_gated_delta_net(g->ctx, q, k, v, decay, beta, plane(g, state, slot, d, d, hv), 1);
    /* what it computed, then the new state */
    struct ggml_tensor *out = ggml_view_3d(g->ctx, o, d, hv, n, head, head * (size_t)hv, 0);
    struct ggml_tensor *next = ggml_view_3d(g->ctx, o, d, d, hv, head, head * (size_t)d, head * (size_t)(hv * n));
    ggml_build_forward_expand(g->gf, ggml_cpy(g->ctx, next, plane(g, state, slot, d, d, hv)));
    return out;
}

struct ggml_tensor *delta_build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *a)
{
    const struct hparams *h = g->h;
    struct ggml_tensor *conv = g->kv->conv[il - g->kv->first], *state = g->kv->delta[il - g->kv->first];
    struct ggml_tensor *u = graph_linear(g, b->attn_qkv, NULL, a); /* [C, n_tok] */
    struct ggml_tensor *z = graph_linear(g, b->delta_z, NULL, a);  /* [V, n_tok] */
    struct ggml_tensor *beta = ggml_sigmoid(g->ctx, graph_linear(g, b->delta_beta, NULL, a));
    struct ggml_tensor *dt = ggml_softplus(g->ctx, graph_linear(g, b->delta_alpha, b->delta_dt, a));
    struct ggml_tensor *decay = ggml_mul(g->ctx, dt, b->delta_a); /* [Hv, n_tok], never above zero */

    struct ggml_tensor *out = NULL;
    uint32_t tok0 = 0;
    for (uint32_t i = 0; i < g->n_entries; i++) {
        uint32_t n = g->entries[i].n_tok, slot = g->entries[i].slot;
        struct ggml_tensor *c = convolve(g, b, conv, slot, graph_columns(g, u, tok0, n));
        struct ggml_tensor *o =
            rule(g, state, slot, c, graph_columns(g, decay, tok0, n), graph_columns(g, beta, tok0, n));
        out = out ? ggml_concat(g->ctx, out, o, 2) : o;
        tok0 += n;
    }
    z = ggml_reshape_3d(g->ctx, z, h->ssm.state, h->ssm.n_value, g->n_tok);
    out = ggml_mul(g->ctx, graph_rms_norm(g, out, b->delta_norm), ggml_silu(g->ctx, z));
    out = ggml_reshape_2d(g->ctx, out, (int64_t)h->ssm.state * h->ssm.n_value, g->n_tok);
    return graph_linear(g, b->delta_out, NULL, graph_leaving(g, il, out));
}
