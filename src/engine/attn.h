/* SPDX-License-Identifier: MIT
 *
 * Grouped-query attention as the families have it: separate or fused projections, biases, normed heads, an output gate.
 */
#ifndef KVASIR_ENGINE_ATTN_H
#define KVASIR_ENGINE_ATTN_H

#include "engine/arch.h"

/* Declares attn_norm, the projections (three, or attn_qkv where the file has that), attn_output and what biases there
 * are. */
void attn_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b);

/* Declares the norms of query and key heads. */
void attn_declare_head_norms(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b);

struct attn_form {
    struct graph_rope rope;
    float scale; /* of the scores; 0: 1/sqrt(D) */
    bool gated;  /* attn_q holds, head by head, a query and a gate: the output is multiplied by sigmoid(gate) */
};

/* a = the normed input [E, n_tok] -> Wo attention(rope(q), rope(k), v) (+ bias) [E, n_tok], before any residual; in the
 * last block only what leaves. */
struct ggml_tensor *attn_build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *a,
                               const struct attn_form *form);

#endif
