/* SPDX-License-Identifier: MIT
 *
 * The dense Qwen3 family: dense blocks (dense.h) whose query and key heads are normed before RoPE, which turns halves
 * against each other. Heads times head size often differs from n_embd.
 */
#include "engine/dense.h"

static enum err_code check(const struct gguf *g, const struct hparams *h, struct err *e)
{
    (void)g;
    return dense_check(h, e);
}

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    dense_declare(w, h, il, b);
    b->attn_q_norm = arch_need(w, il, "attn_q_norm.weight", false, h->head_dim_k, 0);
    b->attn_k_norm = arch_need(w, il, "attn_k_norm.weight", false, h->head_dim_k, 0);
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    return dense_build(g, il, b, x, GGML_ROPE_TYPE_NEOX);
}

const struct arch arch_qwen3 = {.name = "qwen3", .check = check, .declare = declare, .build = build};
