/* SPDX-License-Identifier: MIT
 *
 * The gated delta net (Yang, Kautz, Hatamizadeh 2024) as Qwen 3.5 has it: a short convolution, then per value head a
 * matrix of fixed size that forgets, is corrected by each token, and is read by the query. architectures.md B.5.
 */
#ifndef KVASIR_ENGINE_DELTA_H
#define KVASIR_ENGINE_DELTA_H

#include "engine/arch.h"

/* Declares attn_norm and the tensors of the mixer. */
void delta_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b);

/* a = the normed input [E, n_tok] -> [E, n_tok], before the residual, in the last block only what leaves; moves each
 * entry's state on. */
struct ggml_tensor *delta_build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *a);

#endif
