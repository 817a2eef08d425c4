/* SPDX-License-Identifier: MIT */
#include "model/hparams.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct keys {
    const struct gguf *g;
    const char *arch;
    char text[128];
};

static const char *key_of(struct keys *k, const char *suffix)
{
    snprintf(k->text, sizeof k->text, "%s.%s", k->arch, suffix);
    return k->text;
}

static enum err_code in_range(struct keys *k, const char *suffix, uint32_t v, uint32_t min, uint32_t max, struct err *e)
{
    if (v < min || v > max)
        return err_set(e, ERR_RANGE, "the key %s is %u; it must be in %u..%u", key_of(k, suffix), v, min, max);
    return OK;
}

static enum err_code need_u32(struct keys *k, const char *suffix, uint32_t min, uint32_t max, uint32_t *out,
                              struct err *e)
{
    enum err_code rc = gguf_u32(k->g, key_of(k, suffix), out, e);
    return rc == OK ? in_range(k, suffix, *out, min, max, e) : rc;
}

static enum err_code opt_u32(struct keys *k, const char *suffix, uint32_t min, uint32_t max, uint32_t *out,
                             struct err *e)
{
    enum err_code rc = gguf_opt_u32(k->g, key_of(k, suffix), out, e);
    return rc == OK ? in_range(k, suffix, *out, min, max, e) : rc;
}

/* An integer per block: a scalar, an array[block_count], or (when optional) the fallback's values. */
static enum err_code per_block(struct keys *k, const char *suffix, uint32_t n_all, uint32_t max,
                               const uint32_t *fallback, uint32_t *out, struct err *e)
{
    if (fallback && !gguf_has(k->g, key_of(k, suffix))) {
        memcpy(out, fallback, n_all * sizeof *out);
        return OK;
    }
    enum err_code rc = gguf_u32_per_block(k->g, key_of(k, suffix), n_all, out, e);
    for (uint32_t i = 0; rc == OK && i < n_all; i++)
        rc = in_range(k, suffix, out[i], 1, max, e);
    return rc;
}

static enum err_code read_vocab(struct keys *k, struct hparams *h, struct err *e)
{
    const struct gguf_tensor *embd = gguf_tensor_find(k->g, "token_embd.weight");
    const struct gguf_tensor *head = gguf_tensor_find(k->g, "output.weight");
    size_t n = 0;
    if (gguf_has(k->g, "tokenizer.ggml.tokens")) {
        enum err_code rc = gguf_arr_strs(k->g, "tokenizer.ggml.tokens", 0, &n, e);
        if (rc != OK)
            return rc;
    } else if (embd || head) {
        n = (size_t)(embd ? embd : head)->ne[1];
    } else {
        uint32_t v = 0;
        enum err_code rc = need_u32(k, "vocab_size", 1, 1u << 24, &v, e);
        if (rc != OK)
            return rc;
        n = v;
    }
    if (n == 0 || n > 1u << 24)
        return err_set(e, ERR_RANGE, "the vocabulary has %zu tokens; it must have 1..%u", n, 1u << 24);
    h->n_vocab = (uint32_t)n;
    return OK;
}

static enum err_code read_rope(struct keys *k, struct hparams *h, struct err *e)
{
    const char *scaling = "linear";
    float factor = 0;
    h->n_rot = h->head_dim_k;
    h->rope_base = 10000.0f;
    h->rope_scale = 1.0f;
    enum err_code rc = opt_u32(k, "rope.dimension_count", 0, h->head_dim_k, &h->n_rot, e);
    if (rc == OK)
        rc = gguf_opt_f32(k->g, key_of(k, "rope.freq_base"), &h->rope_base, e);
    if (rc == OK)
        rc = gguf_opt_str(k->g, key_of(k, "rope.scaling.type"), &scaling, e);
    if (rc == OK)
        rc = gguf_opt_f32(k->g, key_of(k, "rope.scale_linear"), &factor, e);
    if (rc == OK)
        rc = gguf_opt_f32(k->g, key_of(k, "rope.scaling.factor"), &factor, e);
    if (rc != OK)
        return rc;
    if (h->n_rot == 0 || h->n_rot % 2 != 0 || h->rope_base <= 0)
        return err_set(e, ERR_RANGE, "RoPE over %u dimensions with base %g makes no sense", h->n_rot,
                       (double)h->rope_base);
    if (factor < 0 || (factor > 0 && !isfinite(1.0f / factor)))
        return err_set(e, ERR_RANGE, "the key %s is %g; it must be 0 or a number above 0",
                       key_of(k, "rope.scaling.factor"), (double)factor);
    if (strcmp(scaling, "linear") == 0) {
        if (factor != 0)
            h->rope_scale = 1.0f / factor;
    } else if (strcmp(scaling, "none") != 0) {
        char shown[40];
        return err_set(e, ERR_UNSUPPORTED, "RoPE scaling of type '%s' is not supported yet (known: none, linear)",
                       text_clean(scaling, strlen(scaling), shown, sizeof shown));
    }
    return OK;
}

static enum err_code read_all(struct keys *k, struct hparams *h, struct err *e)
{
    uint32_t n_all = 0;
    enum err_code rc = need_u32(k, "block_count", 1, HPARAMS_MAX_BLOCKS, &n_all, e);
    if (rc == OK)
        rc = opt_u32(k, "nextn_predict_layers", 0, n_all - 1, &h->n_nextn, e);
    if (rc == OK)
        rc = need_u32(k, "embedding_length", 1, 65536, &h->n_embd, e);
    if (rc == OK)
        rc = need_u32(k, "context_length", 1, 1u << 24, &h->n_ctx_train, e);
    if (rc == OK)
        rc = gguf_f32(k->g, key_of(k, "attention.layer_norm_rms_epsilon"), &h->rms_eps, e);
    if (rc == OK && (h->rms_eps < 0 || h->rms_eps > 1))
        rc = err_set(e, ERR_RANGE, "the key %s is %g; it must be in 0..1",
                     key_of(k, "attention.layer_norm_rms_epsilon"), (double)h->rms_eps);
    if (rc != OK)
        return rc;

    h->n_block = n_all - h->n_nextn;
    h->n_head = calloc(n_all, sizeof *h->n_head);
    h->n_head_kv = calloc(n_all, sizeof *h->n_head_kv);
    h->n_ff = calloc(n_all, sizeof *h->n_ff);
    if (!h->n_head || !h->n_head_kv || !h->n_ff)
        return err_set(e, ERR_NOMEM, "out of memory");
    rc = per_block(k, "attention.head_count", n_all, 4096, NULL, h->n_head, e);
    if (rc == OK)
        rc = per_block(k, "attention.head_count_kv", n_all, 4096, h->n_head, h->n_head_kv, e);
    if (rc == OK)
        rc = per_block(k, "feed_forward_length", n_all, 1u << 24, NULL, h->n_ff, e);
    for (uint32_t i = 0; rc == OK && i < n_all; i++) {
        if (h->n_head[i] % h->n_head_kv[i] != 0)
            rc = err_set(e, ERR_RANGE, "block %u: %u heads cannot share %u key/value heads evenly", i, h->n_head[i],
                         h->n_head_kv[i]);
    }
    if (rc != OK)
        return rc;

    bool explicit_dim = gguf_has(k->g, key_of(k, "attention.key_length"));
    if (!explicit_dim && h->n_embd % h->n_head[0] != 0)
        return err_set(e, ERR_RANGE, "the embedding length %u is not a multiple of the %u heads, and %s is missing",
                       h->n_embd, h->n_head[0], key_of(k, "attention.key_length"));
    h->head_dim_k = h->head_dim_v = h->n_embd / h->n_head[0];
    rc = opt_u32(k, "attention.key_length", 1, 4096, &h->head_dim_k, e);
    if (rc == OK)
        rc = opt_u32(k, "attention.value_length", 1, 4096, &h->head_dim_v, e);
    if (rc == OK)
        rc = opt_u32(k, "expert_count", 0, 65536, &h->n_expert, e);
    if (rc == OK)
        rc = opt_u32(k, "expert_used_count", 0, h->n_expert, &h->n_expert_used, e);
    if (rc == OK)
        rc = read_rope(k, h, e);
    return rc == OK ? read_vocab(k, h, e) : rc;
}

enum err_code hparams_read(const struct gguf *g, struct hparams *out, struct err *e)
{
    struct hparams h = {0};
    const char *arch;
    enum err_code rc = gguf_str(g, "general.architecture", &arch, e);
    if (rc != OK)
        return rc;
    char shown[40];
    if (!arch[0] || strlen(arch) >= sizeof h.arch || !text_printable(arch, strlen(arch)))
        return err_set(e, ERR_UNSUPPORTED, "the architecture '%s' is not known",
                       text_clean(arch, strlen(arch), shown, sizeof shown));
    snprintf(h.arch, sizeof h.arch, "%s", arch);
    struct keys k = {.g = g, .arch = h.arch};
    rc = read_all(&k, &h, e);
    if (rc != OK) {
        hparams_fini(&h);
        return rc;
    }
    *out = h;
    return OK;
}

void hparams_fini(struct hparams *h)
{
    free(h->n_head);
    free(h->n_head_kv);
    free(h->n_ff);
    *h = (struct hparams){0};
}

enum err_code model_sizes_read(const struct gguf *g, const struct hparams *h, struct model_sizes *out, struct err *e)
{
    struct model_sizes s = {.n_block = h->n_block, .tied = true};
    s.block_bytes = calloc(h->n_block, sizeof *s.block_bytes);
    if (!s.block_bytes)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (t->block >= 0) {
            uint32_t b = (uint32_t)t->block;
            if (b >= h->n_block + h->n_nextn) {
                free(s.block_bytes);
                return err_set(e, ERR_FORMAT, "tensor %s is of a block the model does not have (it has %u)", t->name,
                               h->n_block + h->n_nextn);
            }
            if (b < h->n_block)
                s.block_bytes[b] += t->size;
            else
                s.nextn_bytes += t->size;
        } else if (strcmp(t->name, "token_embd.weight") == 0) {
            s.embd_bytes = t->size;
        } else if (strncmp(t->name, "output", 6) == 0) {
            s.head_bytes += t->size;
            if (strcmp(t->name, "output.weight") == 0)
                s.tied = false;
        } else if (strncmp(t->name, "rope_", 5) == 0) {
            s.global_bytes += t->size;
        }
    }
    if (s.tied)
        s.head_bytes += s.embd_bytes;
    *out = s;
    return OK;
}

void model_sizes_fini(struct model_sizes *s)
{
    free(s->block_bytes);
    *s = (struct model_sizes){0};
}

uint64_t model_sizes_window(const struct model_sizes *s, uint32_t first, uint32_t end)
{
    uint64_t total = s->global_bytes;
    for (uint32_t b = first; b < end && b < s->n_block; b++)
        total += s->block_bytes[b];
    if (first == 0)
        total += s->embd_bytes;
    if (end == s->n_block)
        total += s->head_bytes;
    if (first == 0 && end == s->n_block && s->tied)
        total -= s->embd_bytes; /* one tensor, both uses */
    return total;
}
