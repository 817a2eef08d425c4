/* SPDX-License-Identifier: MIT
 *
 * Gemma 3: norms before and after attention and feed-forward, GeGLU, embeddings times sqrt(n_embd), five blocks with a
 * sliding window for each that sees everything. Window blocks have a RoPE base of their own and no scaling.
 */
#include "engine/dense.h"

#include <math.h>

#define BLOCKS_27B 62 /* this size alone scales its scores by the width of a head as if heads filled n_embd */

static void declare(struct weights *w, const struct hparams *h, uint32_t il, struct arch_block *b)
{
    dense_declare(w, h, il, b, "ffn_norm.weight");
    attn_declare_head_norms(w, h, il, b);
    b->attn_post_norm = arch_vector(w, il, "post_attention_norm.weight", h->n_embd);
    b->ffn_post_norm = arch_vector(w, il, "post_ffw_norm.weight", h->n_embd);
}

static struct ggml_tensor *build(struct graph *g, uint32_t il, const struct arch_block *b, struct ggml_tensor *x)
{
    const struct hparams *h = g->h;
    struct attn_form attn = {.rope = graph_rope_of(h, il, GGML_ROPE_TYPE_NEOX)};
    if (h->kind[il] == BLOCK_WINDOW)
        attn.rope.scale = 1.0f;
    if (h->n_block == BLOCKS_27B)
        attn.scale = 1.0f / sqrtf((float)h->n_embd / (float)h->n_head[il]);
    struct ggml_tensor *y = attn_build(g, il, b, graph_rms_norm(g, x, b->attn_norm), &attn);
    y = ggml_add(g->ctx, graph_leaving(g, il, x), graph_rms_norm(g, y, b->attn_post_norm));
    struct ggml_tensor *z = ffn_build(g, b, graph_rms_norm(g, y, b->ffn_norm), FFN_GEGLU);
    return ggml_add(g->ctx, y, graph_rms_norm(g, z, b->ffn_post_norm));
}

const struct arch arch_gemma3 = {.name = "gemma3", .declare = declare, .build = build, .scaled_embeddings = true};
