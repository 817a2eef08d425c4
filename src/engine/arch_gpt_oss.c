/* SPDX-License-Identifier: MIT
 *
 * gpt-oss: experts in every block, biases everywhere, attention sinks, a sliding window in every other block. The norm
 * before the feed-forward is called post_attention_norm. The router takes the best by logit, then their softmax.
 */
#include "engine/dense.h"

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    int64_t e = h->n_embd, n = h->n_expert, f = h->n_ff_exp ? h->n_ff_exp : h->n_ff[il];
    struct weight_spec wide = {.use = WEIGHT_ELEMENT, .ne = {f, n}}, back = {.use = WEIGHT_ELEMENT, .ne = {e, n}};
    dense_declare(w, h, il, b, "post_attention_norm.weight");
    b->attn_sinks = arch_vector(w, il, "attn_sinks.weight", h->n_head[il]);
    b->router_b = arch_vector(w, il, "ffn_gate_inp.bias", n);
    b->exps_gate_b = arch_declare(w, il, "ffn_gate_exps.bias", wide);
    b->exps_up_b = arch_declare(w, il, "ffn_up_exps.bias", wide);
    b->exps_down_b = arch_declare(w, il, "ffn_down_exps.bias", back);
}

static enum err_code check(const struct hparams *h, struct err *e)
{
    if (h->n_expert == 0)
        return err_set(e, ERR_UNSUPPORTED, "a gpt-oss model without experts: the key gpt-oss.expert_count is 0");
    return OK;
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    struct attn_form attn = {.rope = graph_rope_of(g->h, il, GGML_ROPE_TYPE_NEOX)};
    struct ffn_moe_form ffn = {.act = FFN_SWIGLU_OAI, .gating = GATING_SOFTMAX_SELECTED};
    return dense_build(g, il, b, x, &attn, &ffn);
}

const struct arch arch_gpt_oss = {.name = "gpt-oss", .check = check, .declare = declare, .build = build};
