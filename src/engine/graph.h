/* SPDX-License-Identifier: MIT
 *
 * The pieces that block graphs are built from: norms, rotary positions, attention over the slots' caches. Shapes in
 * ggml order (first dimension fastest). Formulas: RMSNorm (Zhang and Sennrich 2019), RoPE (Su et al. 2021), YaRN (Peng
 * et al. 2023), grouped-query attention (Ainslie et al. 2023). Compute thread only.
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
    uint32_t n_cells[KV_VIEWS]; /* cells attention looks at, rounded up so that graphs can be used again */
    uint32_t n_group; /* entries from this one on that are attended in one operation: alike, in neighbouring slots; 0:
                         it belongs to one before */
};

/* What attention over one kind of cache needs to know of the step. */
struct graph_view {
    struct ggml_tensor *cells; /* [n_tok] i64: row of each token in the cache tensors */
    struct ggml_tensor *mask;  /* f16, 0 or -inf: of each group [n_cells, n_tok * n_group]. One tensor for all: the
                                  allocator has room for 256 holes, and each mask of its own left one */
    size_t *mask_at;           /* [n_entries], of each group's first: where its mask begins, bytes */
};

/* One graph under construction. Tensors live in ctx; inputs are filled by the stage before each compute. */
struct graph {
    const struct hparams *h;
    struct kv *kv;
    struct ggml_context *ctx;
    struct ggml_cgraph *gf;
    uint32_t n_tok, n_entries;
    const struct graph_entry *entries;
    struct ggml_tensor *pos; /* [n_tok] i32 */
    struct graph_view view[KV_VIEWS];
    struct ggml_tensor *rope_factors; /* [n_rot/2] f32 divisors of the frequencies, or NULL */
    struct ggml_tensor *out_ids;      /* [n_out] i32: the tokens whose rows leave the model, or NULL: all do */
};

/* w * x / sqrt(mean(x^2) + eps), over the first dimension. */
struct ggml_tensor *graph_rms_norm(struct graph *g, struct ggml_tensor *x, struct ggml_tensor *w);

/* W x (+ b). W [in, out], x [in, n_tok] -> [out, n_tok]; b [out] or NULL. */
struct ggml_tensor *graph_linear(struct graph *g, struct ggml_tensor *w, struct ggml_tensor *b, struct ggml_tensor *x);

/* How a block turns its queries and keys. */
struct graph_rope {
    int mode; /* GGML_ROPE_TYPE_NORMAL: neighbouring pairs, _NEOX: halves */
    float base, scale;
    bool yarn;
};

/* As the hyper-parameters say for block il: base and scaling of its kind. */
struct graph_rope graph_rope_of(const struct hparams *h, uint32_t il, int mode);

/* Rotates the first n_rot elements of each head. x [D, heads, n_tok]. */
struct ggml_tensor *graph_rope(struct graph *g, struct ggml_tensor *x, const struct graph_rope *r);

/* Stores k [D, Hk, n_tok] and v [Dv, Hk, n_tok] in block il's cells, then for each entry softmax(scale * q k^T + mask)
 * v over its own slot. q [D, H, n_tok] -> [Dv * H, n_tok]. sinks [H] or NULL: logits that join only the softmax's
 * denominator. */
struct ggml_tensor *graph_attention(struct graph *g, uint32_t il, struct ggml_tensor *q, struct ggml_tensor *k,
                                    struct ggml_tensor *v, float scale, struct ggml_tensor *sinks);

/* Columns [tok0, tok0 + n) of x [.., n_tok], as a view. */
struct ggml_tensor *graph_columns(struct graph *g, struct ggml_tensor *x, uint32_t tok0, uint32_t n);

/* The columns of x [.., n_tok] that are still needed behind block il's mixing of positions: in the model's last block
 * those that leave. */
struct ggml_tensor *graph_leaving(struct graph *g, uint32_t il, struct ggml_tensor *x);

/* An upper bound of the nodes that one block needs for n_entries entries. */
size_t graph_nodes_per_block(const struct hparams *h, uint32_t n_entries);

#endif
