/* SPDX-License-Identifier: MIT
 *
 * The block most families share: pre-norm attention, then a pre-norm feed-forward, dense or of experts. With
 * a = RMS(x; attn_norm), n = RMS(y; ffn_norm): y = x + attention(a), z = y + ffn(n).
 */
#ifndef KVASIR_ENGINE_DENSE_H
#define KVASIR_ENGINE_DENSE_H

#include "engine/attn.h"
#include "engine/ffn.h"

/* Declares attention, ffn_norm (under the name given) and a feed-forward: of experts where the model has them and the
 * block is not one of the dense leading ones. */
void dense_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b, const char *ffn_norm);

/* The second half of a block: y = x + mixed, z = y + ffn(RMS(y; ffn_norm)). x [E, n_tok]: what came into the block;
 * mixed: what its mixer gave, before the residual. */
struct ggml_tensor *dense_finish(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x,
                                 struct ggml_tensor *mixed, const struct ffn_moe_form *ffn);

/* The whole block with attention as its mixer: x [E, n_tok] -> [E, n_tok]. */
struct ggml_tensor *dense_build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x,
                                const struct attn_form *attn, const struct ffn_moe_form *ffn);

#endif
