/* SPDX-License-Identifier: MIT
 *
 * What most dense families share: a pre-norm block of grouped-query attention and a SwiGLU feed-forward. Families
 * differ in the kind of RoPE and in which of the optional tensors they have. With a = RMS(x; attn_norm), n = RMS(y;
 * ffn_norm): y = x + Wo attention(rope(Wq a), rope(Wk a), Wv a),  z = y + Wd (silu(Wg n) * (Wu n)) each matrix with its
 * bias where there is one; where attn_q_norm and attn_k_norm are there, each head of q and k passes through RMS before
 * RoPE.
 */
#ifndef KVASIR_ENGINE_DENSE_H
#define KVASIR_ENGINE_DENSE_H

#include "engine/arch.h"

/* Declares the tensors of a block: the standard ones, biases as optional ones. */
void dense_declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b);

/* x [E, n_tok] -> [E, n_tok]; rope: GGML_ROPE_TYPE_NORMAL or _NEOX. */
struct ggml_tensor *dense_build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x,
                                int rope);

/* ERR_UNSUPPORTED for experts and NextN blocks, which the dense families of today do not run. */
enum err_code dense_check(const struct hparams *h, struct err *e) KV_MUST_USE;

#endif
