/* SPDX-License-Identifier: MIT
 *
 * Feed-forward layers: gated linear units (Shazeer 2020), dense or as a mixture of experts (Shazeer et al. 2017) of
 * which each token uses a few, with shared experts beside them where a family has these.
 */
#ifndef KVASIR_ENGINE_FFN_H
#define KVASIR_ENGINE_FFN_H

#include "engine/arch.h"

enum ffn_act {
    FFN_SWIGLU,     /* silu(gate) * up */
    FFN_GEGLU,      /* gelu(gate) * up, the tanh form of gelu */
    FFN_SWIGLU_OAI, /* g = min(gate, 7), u = clamp(up, -7, 7): g sigmoid(1.702 g) (1 + u) */
};

/* Declares ffn_gate, ffn_up, ffn_down of width F with what biases there are. */
void ffn_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b);

/* Wd (act(Wg x, Wu x)); without a gate Wu yields both, the gate first. x [E, n_tok] -> [E, n_tok]. */
struct ggml_tensor *ffn_build(struct graph *g, const struct arch_block *b, struct ggml_tensor *x, enum ffn_act act);

/* Declares router and experts, merged gate_up where the file has that; shared experts where n_ff_shared > 0. */
void ffn_declare_moe(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b);

struct ffn_moe_form {
    enum ffn_act act;
    enum gating gating;
    bool norm;   /* weights of the used experts are divided by their sum */
    float scale; /* of the weights; 0: none */
};

/* sum over the used experts j of w_j Wd_j act(Wg_j x, Wu_j x), plus the shared ones. x [E, n_tok] -> [E, n_tok]. */
struct ggml_tensor *ffn_build_moe(struct graph *g, const struct arch_block *b, struct ggml_tensor *x,
                                  const struct ffn_moe_form *form);

#endif
