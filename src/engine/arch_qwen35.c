/* SPDX-License-Identifier: MIT
 *
 * Qwen 3.5, dense and with experts: most blocks mix with a gated delta net, every full_attention_interval-th with
 * attention whose output is gated. RoPE over the first dimensions of a head: the sections of the multi-axis form all
 * carry the text position, so that it equals the plain one. The norm before the feed-forward is called
 * post_attention_norm. Blocks with experts also have a shared one, weighted by a gate of its own.
 */
#include "engine/delta.h"
#include "engine/dense.h"

static enum err_code check(const struct hparams *h, struct err *e)
{
    if (h->head_dim_k != h->head_dim_v)
        return err_set(e, ERR_UNSUPPORTED, "%s needs keys and values of one size, not %u and %u", h->arch,
                       h->head_dim_k, h->head_dim_v);
    return OK;
}

/* Queries come with their gates, head by head. */
static void declare_attention(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    int64_t e = h->n_embd, q = (int64_t)h->n_head[il] * h->head_dim_k, k = (int64_t)h->n_head_kv[il] * h->head_dim_k;
    b->attn_norm = arch_vector(w, il, "attn_norm.weight", e);
    b->attn_q = arch_matrix(w, il, "attn_q.weight", e, 2 * q);
    b->attn_k = arch_matrix(w, il, "attn_k.weight", e, k);
    b->attn_v = arch_matrix(w, il, "attn_v.weight", e, k);
    b->attn_out = arch_matrix(w, il, "attn_output.weight", q, e);
    attn_declare_head_norms(w, h, il, b);
}

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    if (h->kind[il] == BLOCK_RECURRENT)
        delta_declare(w, h, il, b);
    else
        declare_attention(w, h, il, b);
    b->ffn_norm = arch_vector(w, il, "post_attention_norm.weight", h->n_embd);
    if (h->n_expert == 0) {
        ffn_declare(w, h, il, b);
        return;
    }
    ffn_declare_moe(w, h, il, b);
    if (b->shared_up)
        b->shared_router = arch_matrix(w, il, "ffn_gate_inp_shexp.weight", h->n_embd, 1);
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    struct attn_form attn = {.rope = graph_rope_of(g->h, il, GGML_ROPE_TYPE_NEOX), .gated = true};
    struct ffn_moe_form ffn = {.gating = GATING_SOFTMAX, .norm = true};
    if (g->h->kind[il] != BLOCK_RECURRENT)
        return dense_build(g, il, b, x, &attn, &ffn);
    return dense_finish(g, il, b, x, delta_build(g, il, b, graph_rms_norm(g, x, b->attn_norm)), &ffn);
}

const struct arch arch_qwen35 = {.name = "qwen35", .check = check, .declare = declare, .build = build};
const struct arch arch_qwen35moe = {.name = "qwen35moe", .check = check, .declare = declare, .build = build};
