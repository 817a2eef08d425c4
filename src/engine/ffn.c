/* SPDX-License-Identifier: MIT */
#include "engine/ffn.h"

#define NORM_FLOOR 6.103515625e-5f /* the smallest normal f16: keeps the division of weights by their sum finite */

void ffn_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    int64_t e = h->n_embd, f = h->n_ff[il];
    b->ffn_gate = arch_matrix(w, il, "ffn_gate.weight", e, f);
    b->ffn_gate_b = arch_opt_vector(w, il, "ffn_gate.bias", f);
    b->ffn_up = arch_matrix(w, il, "ffn_up.weight", e, f);
    b->ffn_up_b = arch_opt_vector(w, il, "ffn_up.bias", f);
    b->ffn_down = arch_matrix(w, il, "ffn_down.weight", f, e);
    b->ffn_down_b = arch_opt_vector(w, il, "ffn_down.bias", e);
}

static struct ggml_tensor *activate(struct graph *g, struct ggml_tensor *gate, struct ggml_tensor *up, enum ffn_act act)
{
    switch (act) {
    case FFN_GEGLU:
        return ggml_geglu_split(g->ctx, gate, up);
    case FFN_SWIGLU_OAI:
        return ggml_swiglu_oai(g->ctx, gate, up, 1.702f, 7.0f);
    default:
        return ggml_swiglu_split(g->ctx, gate, up);
    }
}

/* The two halves of the rows of x [2 * F, ..]. */
static struct ggml_tensor *half(struct graph *g, struct ggml_tensor *x, int which)
{
    int64_t f = x->ne[0] / 2;
    return ggml_view_3d(g->ctx, x, f, x->ne[1], x->ne[2], x->nb[1], x->nb[2], (size_t)(which * f) * x->nb[0]);
}

struct ggml_tensor *ffn_build(struct graph *g, const struct arch_block *b, struct ggml_tensor *x, enum ffn_act act)
{
    struct ggml_tensor *up = graph_linear(g, b->ffn_up, b->ffn_up_b, x), *gate;
    if (b->ffn_gate) {
        gate = graph_linear(g, b->ffn_gate, b->ffn_gate_b, x);
    } else {
        gate = half(g, up, 0);
        up = half(g, up, 1);
    }
    return graph_linear(g, b->ffn_down, b->ffn_down_b, activate(g, gate, up, act));
}

/* --- experts ------------------------------------------------------------------------------------------------------ */

void ffn_declare_moe(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    int64_t e = h->n_embd, n = h->n_expert, fs = h->n_ff_shared;
    int64_t f = h->n_ff_exp ? h->n_ff_exp : h->n_ff[il];
    b->router = arch_matrix(w, il, "ffn_gate_inp.weight", e, n);
    b->exps_gate_up =
        arch_declare(w, il, "ffn_gate_up_exps.weight",
                     (struct weight_spec){.use = WEIGHT_MUL_MAT_ID, .optional = true, .ne = {e, 2 * f, n}});
    if (!b->exps_gate_up) {
        b->exps_gate = arch_experts(w, il, "ffn_gate_exps.weight", e, f, n);
        b->exps_up = arch_experts(w, il, "ffn_up_exps.weight", e, f, n);
    }
    b->exps_down = arch_experts(w, il, "ffn_down_exps.weight", f, e, n);
    if (fs > 0) {
        b->shared_gate = arch_matrix(w, il, "ffn_gate_shexp.weight", e, fs);
        b->shared_up = arch_matrix(w, il, "ffn_up_shexp.weight", e, fs);
        b->shared_down = arch_matrix(w, il, "ffn_down_shexp.weight", fs, e);
    }
}

struct choice {
    struct ggml_tensor *ids;     /* [used, n_tok] i32 */
    struct ggml_tensor *weights; /* [1, used, n_tok] */
};

static struct choice choose(struct graph *g, const struct arch_block *b, struct ggml_tensor *x,
                            const struct ffn_moe_form *form)
{
    int64_t n = g->h->n_expert, used = g->h->n_expert_used, n_tok = x->ne[1];
    struct ggml_tensor *logits = graph_linear(g, b->router, b->router_b, x), *p = logits; /* [X, n_tok] */
    if (form->gating == GATING_SOFTMAX)
        p = ggml_soft_max(g->ctx, logits);
    else if (form->gating == GATING_SIGMOID)
        p = ggml_sigmoid(g->ctx, logits);
    struct ggml_tensor *score = b->router_bias ? ggml_add(g->ctx, p, b->router_bias) : p;
    struct ggml_tensor *ids = ggml_argsort_top_k(g->ctx, score, (int)used);
    struct ggml_tensor *w = ggml_get_rows(g->ctx, ggml_reshape_3d(g->ctx, p, 1, n, n_tok), ids); /* [1, used, n_tok] */
    w = ggml_reshape_2d(g->ctx, w, used, n_tok);
    if (form->gating == GATING_SOFTMAX_SELECTED)
        w = ggml_soft_max(g->ctx, w);
    if (form->norm) {
        struct ggml_tensor *sum = ggml_clamp(g->ctx, ggml_sum_rows(g->ctx, w), NORM_FLOOR, 3.0e38f);
        w = ggml_div(g->ctx, w, sum);
    }
    if (form->scale != 0.0f && form->scale != 1.0f)
        w = ggml_scale(g->ctx, w, form->scale);
    return (struct choice){.ids = ids, .weights = ggml_reshape_3d(g->ctx, w, 1, used, n_tok)};
}

static struct ggml_tensor *expert_linear(struct graph *g, struct ggml_tensor *w, struct ggml_tensor *bias,
                                         struct ggml_tensor *x, struct ggml_tensor *ids)
{
    struct ggml_tensor *y = ggml_mul_mat_id(g->ctx, w, x, ids);
    return bias ? ggml_add_id(g->ctx, y, bias, ids) : y;
}

static struct ggml_tensor *shared(struct graph *g, const struct arch_block *b, struct ggml_tensor *x, enum ffn_act act)
{
    struct ggml_tensor *up = graph_linear(g, b->shared_up, NULL, x);
    struct ggml_tensor *gate = graph_linear(g, b->shared_gate, NULL, x);
    struct ggml_tensor *y = graph_linear(g, b->shared_down, NULL, activate(g, gate, up, act));
    if (b->shared_router) /* [1, n_tok] */
        y = ggml_mul(g->ctx, y, ggml_sigmoid(g->ctx, graph_linear(g, b->shared_router, NULL, x)));
    return y;
}

struct ggml_tensor *ffn_build_moe(struct graph *g, const struct arch_block *b, struct ggml_tensor *x,
                                  const struct ffn_moe_form *form)
{
    int64_t e = x->ne[0], n_tok = x->ne[1];
    struct choice c = choose(g, b, x, form);
    struct ggml_tensor *in = ggml_reshape_3d(g->ctx, x, e, 1, n_tok), *gate, *up;
    if (b->exps_gate_up) {
        struct ggml_tensor *both = expert_linear(g, b->exps_gate_up, NULL, in, c.ids);
        gate = half(g, both, 0);
        up = half(g, both, 1);
    } else {
        up = expert_linear(g, b->exps_up, b->exps_up_b, in, c.ids);
        gate = expert_linear(g, b->exps_gate, b->exps_gate_b, in, c.ids);
    }
    struct ggml_tensor *y = expert_linear(g, b->exps_down, b->exps_down_b, activate(g, gate, up, form->act), c.ids);
    y = ggml_mul(g->ctx, y, c.weights); /* [E, used, n_tok] */
    ggml_build_forward_expand(g->gf, y);
    struct ggml_tensor *sum = NULL;
    for (uint32_t i = 0; i < g->h->n_expert_used; i++) {
        struct ggml_tensor *one = ggml_view_2d(g->ctx, y, e, n_tok, y->nb[2], i * y->nb[1]);
        sum = sum ? ggml_add(g->ctx, sum, one) : one;
    }
    if (g->h->n_expert_used == 1)
        sum = ggml_cont(g->ctx, sum);
    return b->shared_up ? ggml_add(g->ctx, sum, shared(g, b, x, form->act)) : sum;
}
