/* SPDX-License-Identifier: MIT */
#include "engine/nextn.h"

static void declare_block(struct weights *w, const struct hparams *h, const struct arch *arch, uint32_t il)
{
    int64_t e = h->n_embd, v = h->n_vocab;
    struct weight_spec table = {.use = WEIGHT_GET_ROWS, .optional = true, .ne = {e, v}};
    struct weight_spec head = {.use = WEIGHT_MUL_MAT, .optional = true, .ne = {e, v}};
    struct arch_block b = {0};
    arch->declare(w, h, il, &b);
    arch_matrix(w, il, "nextn.eh_proj.weight", 2 * e, e);
    arch_vector(w, il, "nextn.enorm.weight", e);
    arch_vector(w, il, "nextn.hnorm.weight", e);
    arch_opt_vector(w, il, "nextn.shared_head_norm.weight", e);
    arch_declare(w, il, "nextn.shared_head_head.weight", head);
    if (!arch_declare(w, il, "nextn.embed_tokens.weight", table)) {
        table.optional = false;
        weights_declare(w, "token_embd.weight", table);
    }
}

void nextn_declare(struct weights *w, const struct hparams *h, const struct arch *arch)
{
    for (uint32_t i = 0; i < h->n_nextn; i++)
        declare_block(w, h, arch, h->n_block + i);
}
