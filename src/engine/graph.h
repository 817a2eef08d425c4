/* SPDX-License-Identifier: MIT
 *
 * The pieces that block graphs are built from: norms, rotary positions, attention over the slots' caches, feed-forward.
 * Shapes in ggml order (first dimension fastest). Formulas: RMSNorm (Zhang and Sennrich 2019), RoPE (Su et al. 2021),
 * grouped-query attention (Ainslie et al. 2023), SwiGLU (Shazeer 2020). Compute thread only.
 */
#ifndef KVASIR_ENGINE_GRAPH_H
#define KVASIR_ENGINE_GRAPH_H

#include "batch/batch.h"
#include "engine/kv.h"
#include "model/hparams.h"

#include <ggml.h>

/* The part of the batch that decides the graph's form: one per entry. */
struct graph_entry {
    uint32_t slot, n_tok;
    uint32_t n_kv; /* cells attention looks at, rounded up so that graphs can be used again */
};

/* One graph under construction. Tensors live in ctx; inputs are filled by the stage before each compute. */
struct graph {
    const struct hparams *h;
    struct kv *kv;
    struct ggml_context *ctx;
    struct ggml_cgraph *gf;
    uint32_t n_tok, n_entries;
    const struct graph_entry *entries;
    struct ggml_tensor *pos;          /* [n_tok] i32 */
    struct ggml_tensor *cells;        /* [n_tok] i64: row of each token in the cache tensors */
    struct ggml_tensor **masks;       /* [n_entries], each [n_kv, n_tok of the entry] f16: 0 or -inf */
    struct ggml_tensor *rope_factors; /* [n_rot/2] f32 divisors of the frequencies, or NULL */
};

/* w * x / sqrt(mean(x^2) + eps), over the first dimension. */
struct ggml_tensor *graph_rms_norm(struct graph *g, struct ggml_tensor *x, struct ggml_tensor *w);

/* W x (+ b). W [in, out], x [in, n_tok] -> [out, n_tok]; b [out] or NULL. */
struct ggml_tensor *graph_linear(struct graph *g, struct ggml_tensor *w, struct ggml_tensor *b, struct ggml_tensor *x);

/* Rotates the first n_rot elements of each head. x [D, heads, n_tok]; mode GGML_ROPE_TYPE_NORMAL or _NEOX. */
struct ggml_tensor *graph_rope(struct graph *g, struct ggml_tensor *x, int mode);

/* Stores k [D, Hk, n_tok] and v [Dv, Hk, n_tok] in block il's cells, then for each entry softmax(scale * q k^T + mask)
 * v over its own slot. q [D, H, n_tok] -> [Dv * H, n_tok]. */
struct ggml_tensor *graph_attention(struct graph *g, uint32_t il, struct ggml_tensor *q, struct ggml_tensor *k,
                                    struct ggml_tensor *v, float scale);

/* Wd (silu(Wg x) * (Wu x)). x [E, n_tok] -> [E, n_tok]. Biases may be NULL. */
struct graph_ffn {
    struct ggml_tensor *gate, *gate_b, *up, *up_b, *down, *down_b;
};
struct ggml_tensor *graph_swiglu(struct graph *g, const struct graph_ffn *f, struct ggml_tensor *x);

/* An upper bound of the nodes that a block with n_entries entries needs. */
size_t graph_nodes_per_block(uint32_t n_entries);

#endif
