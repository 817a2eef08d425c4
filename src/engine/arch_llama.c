/* SPDX-License-Identifier: MIT
 *
 * The llama family (Llama 2 and 3, Mistral, SmolLM, ...): dense blocks (dense.h). Query and key rows were permuted when
 * the GGUF was made, so that RoPE turns neighbouring pairs.
 */
#include "engine/dense.h"

static enum err_code check(const struct gguf *g, const struct hparams *h, struct err *e)
{
    (void)g;
    return dense_check(h, e);
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    return dense_build(g, il, b, x, GGML_ROPE_TYPE_NORMAL);
}

const struct arch arch_llama = {.name = "llama", .check = check, .declare = dense_declare, .build = build};
