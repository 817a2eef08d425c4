/* SPDX-License-Identifier: MIT */
#include "model/hparams.h"

#include "base/text.h"
#include "model/ident.h"

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

/* *out keeps its value when the key is missing. */
static enum err_code opt_u32(struct keys *k, const char *suffix, uint32_t min, uint32_t max, uint32_t *out,
                             struct err *e)
{
    return gguf_has(k->g, key_of(k, suffix)) ? need_u32(k, suffix, min, max, out, e) : OK;
}

/* An integer per block: a scalar, an array[block_count], or (when optional) the fallback's values. */
static enum err_code per_block(struct keys *k, const char *suffix, uint32_t n_all, uint32_t min, uint32_t max,
                               const uint32_t *fallback, uint32_t *out, struct err *e)
{
    if (fallback && !gguf_has(k->g, key_of(k, suffix))) {
        memcpy(out, fallback, n_all * sizeof *out);
        return OK;
    }
    enum err_code rc = gguf_u32_per_block(k->g, key_of(k, suffix), n_all, out, e);
    for (uint32_t i = 0; rc == OK && i < n_all; i++)
        rc = in_range(k, suffix, out[i], min, max, e);
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

static enum err_code opt_f32(struct keys *k, const char *suffix, float min, float max, float *out, struct err *e)
{
    enum err_code rc = gguf_opt_f32(k->g, key_of(k, suffix), out, e);
    if (rc == OK && !(*out >= min && *out <= max))
        rc = err_set(e, ERR_RANGE, "the key %s is %g; it must be in %g..%g", key_of(k, suffix), (double)*out,
                     (double)min, (double)max);
    return rc;
}

static enum err_code rope_scaling_parse(const char *text, enum rope_scaling *out, struct err *e)
{
    static const char *const names[] = {
        [ROPE_SCALING_NONE] = "none",
        [ROPE_SCALING_LINEAR] = "linear",
        [ROPE_SCALING_YARN] = "yarn",
        [ROPE_SCALING_LONGROPE] = "longrope",
    };
    char shown[40];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum rope_scaling)i;
            return OK;
        }
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "RoPE scaling of type '%s' is not supported (known: none, linear, yarn, longrope)",
                   text_clean(text, strlen(text), shown, sizeof shown));
}

static enum err_code read_rope(struct keys *k, struct hparams *h, struct err *e)
{
    const char *scaling = "linear";
    float factor = 0;
    h->n_rot = h->head_dim_k;
    h->rope_base = 10000.0f;
    h->rope_scale = 1.0f;
    h->rope_attn_factor = 1.0f;
    h->n_ctx_orig = h->n_ctx_train;
    enum err_code rc = opt_u32(k, "rope.dimension_count", 0, h->head_dim_k, &h->n_rot, e);
    if (rc == OK)
        rc = gguf_opt_f32(k->g, key_of(k, "rope.freq_base"), &h->rope_base, e);
    h->rope_base_window = strcmp(h->arch, "gpt-oss") == 0 ? h->rope_base : 10000.0f;
    if (rc == OK)
        rc = gguf_opt_f32(k->g, key_of(k, "rope.freq_base_swa"), &h->rope_base_window, e);
    if (rc == OK)
        rc = gguf_opt_str(k->g, key_of(k, "rope.scaling.type"), &scaling, e);
    if (rc == OK)
        rc = gguf_opt_f32(k->g, key_of(k, "rope.scale_linear"), &factor, e);
    if (rc == OK)
        rc = gguf_opt_f32(k->g, key_of(k, "rope.scaling.factor"), &factor, e);
    if (rc == OK)
        rc = opt_f32(k, "rope.scaling.attn_factor", 0.0f, 100.0f, &h->rope_attn_factor, e);
    if (rc == OK)
        rc = opt_u32(k, "rope.scaling.original_context_length", 1, 1u << 24, &h->n_ctx_orig, e);
    if (rc != OK)
        return rc;
    if (h->n_rot == 0 || h->n_rot % 2 != 0 || !(h->rope_base > 0) || !(h->rope_base_window > 0))
        return err_set(e, ERR_RANGE, "RoPE over %u dimensions with base %g (window %g) makes no sense", h->n_rot,
                       (double)h->rope_base, (double)h->rope_base_window);
    if (!(factor >= 0) || (factor > 0 && !isfinite(1.0f / factor)))
        return err_set(e, ERR_RANGE, "the key %s is %g; it must be 0 or a number above 0",
                       key_of(k, "rope.scaling.factor"), (double)factor);
    rc = rope_scaling_parse(scaling, &h->rope_scaling, e);
    if (factor != 0 && (h->rope_scaling == ROPE_SCALING_LINEAR || h->rope_scaling == ROPE_SCALING_YARN))
        h->rope_scale = 1.0f / factor;
    return rc;
}

static enum err_code read_experts(struct keys *k, struct hparams *h, struct err *e)
{
    uint32_t gating = GATING_UNSET, n_shared = 0;
    enum err_code rc = opt_u32(k, "expert_count", 0, 65536, &h->n_expert, e);
    if (rc == OK && h->n_expert == 0)
        return opt_u32(k, "expert_used_count", 0, 0, &h->n_expert_used, e);
    if (rc == OK)
        rc = need_u32(k, "expert_used_count", 1, h->n_expert, &h->n_expert_used, e);
    if (rc == OK)
        rc = opt_u32(k, "expert_feed_forward_length", 1, 1u << 24, &h->n_ff_exp, e);
    if (rc == OK)
        rc = opt_u32(k, "expert_shared_count", 0, 65536, &n_shared, e);
    if (rc == OK)
        rc = opt_u32(k, "expert_shared_feed_forward_length", 0, 1u << 24, &h->n_ff_shared, e);
    if (rc == OK)
        rc = opt_u32(k, "leading_dense_block_count", 0, h->n_block, &h->n_dense_lead, e);
    if (rc == OK)
        rc = opt_f32(k, "expert_weights_scale", 0.0f, 1e6f, &h->expert_scale, e);
    if (rc == OK)
        rc = gguf_opt_bool(k->g, key_of(k, "expert_weights_norm"), &h->expert_norm, e);
    if (rc == OK)
        rc = opt_u32(k, "expert_gating_func", 0, GATING_SOFTMAX_SELECTED, &gating, e);
    h->gating = (enum gating)gating;
    if (h->n_ff_shared == 0 && (uint64_t)n_shared * h->n_ff_exp <= 1u << 24)
        h->n_ff_shared = n_shared * h->n_ff_exp;
    return rc;
}

static enum err_code read_recurrent(struct keys *k, struct hparams *h, uint32_t n_all, struct err *e)
{
    uint32_t interval = 4, inner = 0;
    enum err_code rc = need_u32(k, "ssm.conv_kernel", 2, 64, &h->ssm.conv, e);
    if (rc == OK)
        rc = need_u32(k, "ssm.state_size", 1, 1024, &h->ssm.state, e);
    if (rc == OK)
        rc = need_u32(k, "ssm.group_count", 1, 4096, &h->ssm.n_key, e);
    if (rc == OK)
        rc = need_u32(k, "ssm.time_step_rank", 1, 4096, &h->ssm.n_value, e);
    if (rc == OK)
        rc = need_u32(k, "ssm.inner_size", 1, 1u << 22, &inner, e);
    if (rc == OK)
        rc = opt_u32(k, "full_attention_interval", 1, HPARAMS_MAX_BLOCKS, &interval, e);
    if (rc != OK)
        return rc;
    if (inner != h->ssm.state * h->ssm.n_value)
        return err_set(e, ERR_RANGE, "the key %s is %u; %u value heads of %u elements are %u",
                       key_of(k, "ssm.inner_size"), inner, h->ssm.n_value, h->ssm.state, h->ssm.state * h->ssm.n_value);
    if (h->ssm.n_value % h->ssm.n_key != 0)
        return err_set(e, ERR_RANGE, "%u value heads cannot share %u key heads evenly", h->ssm.n_value, h->ssm.n_key);
    for (uint32_t i = 0; i < h->n_block; i++)
        h->kind[i] = (i + 1) % interval ? BLOCK_RECURRENT : BLOCK_FULL;
    if (!gguf_has(k->g, key_of(k, "attention.recurrent_layers")))
        return OK;
    uint32_t *given = calloc(n_all, sizeof *given);
    if (!given)
        return err_set(e, ERR_NOMEM, "out of memory");
    rc = gguf_u32_per_block(k->g, key_of(k, "attention.recurrent_layers"), n_all, given, e);
    for (uint32_t i = 0; rc == OK && i < h->n_block; i++)
        h->kind[i] = given[i] ? BLOCK_RECURRENT : BLOCK_FULL;
    free(given);
    return rc;
}

/* Which block keeps what: by the absolute index, so that a window gets the same answer as the whole model. */
static enum err_code read_kinds(struct keys *k, struct hparams *h, uint32_t n_all, struct err *e)
{
    bool gemma = strcmp(h->arch, "gemma3") == 0, oss = strcmp(h->arch, "gpt-oss") == 0;
    uint32_t period = gemma ? 6 : 2;
    if (strncmp(h->arch, "qwen35", 6) == 0)
        return read_recurrent(k, h, n_all, e);
    if (!gemma && !oss)
        return OK; /* the others have no window, or one that is ignored */
    enum err_code rc = oss ? need_u32(k, "attention.sliding_window", 1, 1u << 24, &h->n_window, e)
                           : opt_u32(k, "attention.sliding_window", 0, 1u << 24, &h->n_window, e);
    if (rc == OK && gemma && gguf_has(k->g, key_of(k, "attention.sliding_window_pattern")))
        rc = opt_u32(k, "attention.sliding_window_pattern", 1, HPARAMS_MAX_BLOCKS, &period, e);
    for (uint32_t i = 0; rc == OK && h->n_window > 0 && i < h->n_block; i++)
        h->kind[i] = i % period < period - 1 ? BLOCK_WINDOW : BLOCK_FULL;
    return rc;
}

bool hparams_bounded_rewind(const struct hparams *h)
{
    for (uint32_t i = 0; i < h->n_block; i++) {
        if (h->kind[i] != BLOCK_FULL)
            return true;
    }
    return false;
}

uint32_t hparams_conv_channels(const struct hparams *h)
{
    return h->ssm.state * (2 * h->ssm.n_key + h->ssm.n_value);
}

static enum err_code read_heads(struct keys *k, struct hparams *h, uint32_t n_all, struct err *e)
{
    /* the widths of a model whose blocks all have experts need not be there */
    static const uint32_t none[HPARAMS_MAX_BLOCKS];
    bool recurrent = h->ssm.state > 0;
    if (!h->n_head || !h->n_head_kv || !h->n_ff || !h->kind)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = per_block(k, "attention.head_count", n_all, 1, 4096, NULL, h->n_head, e);
    if (rc == OK)
        rc = per_block(k, "attention.head_count_kv", n_all, recurrent ? 0 : 1, 4096, h->n_head, h->n_head_kv, e);
    if (rc == OK)
        rc = per_block(k, "feed_forward_length", n_all, h->n_expert ? 0 : 1, 1u << 24, h->n_expert ? none : NULL,
                       h->n_ff, e);
    uint32_t first = rc == OK && h->n_head[0] > 0 ? h->n_head[0] : 1;
    for (uint32_t i = 0; rc == OK && i < n_all; i++) {
        if (h->kind[i] != BLOCK_RECURRENT && (h->n_head_kv[i] == 0 || h->n_head[i] % h->n_head_kv[i] != 0))
            rc = err_set(e, ERR_RANGE, "block %u: %u heads cannot share %u key/value heads evenly", i, h->n_head[i],
                         h->n_head_kv[i]);
    }
    if (rc != OK)
        return rc;
    if (!gguf_has(k->g, key_of(k, "attention.key_length")) && h->n_embd % first != 0)
        return err_set(e, ERR_RANGE, "the embedding length %u is not a multiple of the %u heads, and %s is missing",
                       h->n_embd, first, key_of(k, "attention.key_length"));
    h->head_dim_k = h->head_dim_v = h->n_embd / first;
    rc = opt_u32(k, "attention.key_length", 1, 4096, &h->head_dim_k, e);
    return rc == OK ? opt_u32(k, "attention.value_length", 1, 4096, &h->head_dim_v, e) : rc;
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
    h->kind = calloc(n_all, sizeof *h->kind);
    if (!h->kind)
        return err_set(e, ERR_NOMEM, "out of memory");
    rc = read_experts(k, h, e);
    if (rc == OK)
        rc = read_kinds(k, h, n_all, e);
    if (rc == OK)
        rc = read_heads(k, h, n_all, e);
    if (rc == OK)
        rc = opt_f32(k, "final_logit_softcapping", 0.0f, 1e6f, &h->logit_softcap, e);
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
    free(h->kind);
    *h = (struct hparams){0};
}

/* --- parts and windows --- */

enum err_code model_part_of(const struct hparams *h, const char *name, enum model_part *out, struct err *e)
{
    int32_t block = gguf_block_of(name);
    uint32_t n = h->n_block + h->n_nextn;
    if (block >= 0 && (uint32_t)block >= n)
        return err_set(e, ERR_FORMAT, "tensor %s is of a block the model does not have (it has %u)", name, n);
    if (block >= 0)
        *out = (uint32_t)block < h->n_block ? MODEL_BLOCK : MODEL_NEXTN;
    else if (strcmp(name, "token_embd.weight") == 0)
        *out = MODEL_TABLE;
    else if (strncmp(name, "token_", 6) == 0)
        *out = MODEL_EMBD;
    else if (strncmp(name, "output", 6) == 0)
        *out = MODEL_HEAD;
    else
        *out = MODEL_GLOBAL;
    return OK;
}

void model_window_init(struct model_window *w, const struct hparams *h, uint32_t first, uint32_t end, model_has *has,
                       const void *ctx)
{
    *w = (struct model_window){.first = first, .end = end, .n_block = h->n_block, .tied = !has(ctx, "output.weight")};
    for (uint32_t i = 0; i < h->n_nextn && !w->nextn_table; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.nextn.embed_tokens.weight", h->n_block + i);
        w->nextn_table = !has(ctx, name);
    }
}

enum model_use model_window_use(const struct model_window *w, enum model_part part, uint32_t block)
{
    const bool first = w->first == 0, last = w->end == w->n_block;
    switch (part) {
    case MODEL_BLOCK:
        return block >= w->first && block < w->end ? MODEL_LOADED : MODEL_ABSENT;
    case MODEL_TABLE:
        if (first || (last && w->tied))
            return MODEL_LOADED;
        return last && w->nextn_table ? MODEL_CARRIED : MODEL_ABSENT;
    case MODEL_EMBD:
        return first ? MODEL_LOADED : MODEL_ABSENT;
    case MODEL_HEAD:
        return last ? MODEL_LOADED : MODEL_ABSENT;
    case MODEL_NEXTN:
        return last ? MODEL_CARRIED : MODEL_ABSENT;
    case MODEL_GLOBAL:
        break;
    }
    return MODEL_LOADED;
}

/* --- sizes --- */

static enum err_code sizes_add(struct model_sizes *s, const struct hparams *h, const char *name, uint64_t size,
                               uint64_t *total, struct err *e)
{
    enum model_part part;
    enum err_code rc = model_part_of(h, name, &part, e);
    if (rc != OK)
        return rc;
    if (__builtin_add_overflow(*total, size, total) || *total > INT64_MAX)
        return err_set(e, ERR_RANGE, "the tensors up to %s add up to more than 2^63 bytes", name);
    switch (part) {
    case MODEL_BLOCK:
        s->block_bytes[gguf_block_of(name)] += size;
        break;
    case MODEL_TABLE:
        s->table_bytes += size;
        s->embd_bytes += size;
        break;
    case MODEL_EMBD:
        s->embd_bytes += size;
        break;
    case MODEL_HEAD:
        s->head_bytes += size;
        break;
    case MODEL_NEXTN:
        s->nextn_bytes += size;
        break;
    case MODEL_GLOBAL:
        s->global_bytes += size;
        break;
    }
    return OK;
}

/* The tensors of a model: those of the file, or those it lists. */
struct listing {
    const struct gguf *g;
    struct ident_tensor *lines; /* NULL: those of the file */
    size_t n_lines;
};

static bool listing_has(const void *ctx, const char *name)
{
    const struct listing *l = ctx;
    return l->lines ? ident_find(l->lines, l->n_lines, name) != NULL : gguf_tensor_find(l->g, name) != NULL;
}

static enum err_code listing_read(struct listing *l, const struct gguf *g, struct err *e)
{
    const uint8_t *list;
    size_t len;
    *l = (struct listing){.g = g};
    if (!gguf_has(g, IDENT_KEY_FIRST) || !gguf_has(g, IDENT_KEY_TENSORS))
        return OK;
    enum err_code rc = gguf_arr_u8(g, IDENT_KEY_TENSORS, &list, &len, e);
    return rc == OK ? ident_read(list, len, &l->lines, &l->n_lines, e) : rc;
}

static enum err_code sizes_sum(struct model_sizes *s, const struct listing *l, const struct hparams *h, struct err *e)
{
    uint64_t total = 0;
    enum err_code rc = OK;
    for (size_t i = 0; l->lines && i < l->n_lines && rc == OK; i++) {
        char name[IDENT_NAME_SIZE];
        uint64_t size = 0;
        if (gguf_tensor_bytes(l->lines[i].type, l->lines[i].ne, &size))
            rc = sizes_add(s, h, ident_name(&l->lines[i], name), size, &total, e);
    }
    for (size_t i = 0; !l->lines && i < gguf_n_tensors(l->g) && rc == OK; i++)
        rc = sizes_add(s, h, gguf_tensor_at(l->g, i)->name, gguf_tensor_at(l->g, i)->size, &total, e);
    return rc;
}

enum err_code model_sizes_read(const struct gguf *g, const struct hparams *h, struct model_sizes *out, struct err *e)
{
    struct model_sizes s = {.n_block = h->n_block};
    struct model_window whole;
    struct listing l;
    enum err_code rc = listing_read(&l, g, e);
    if (rc != OK)
        return rc;
    s.block_bytes = calloc(h->n_block, sizeof *s.block_bytes);
    rc = s.block_bytes ? sizes_sum(&s, &l, h, e) : err_set(e, ERR_NOMEM, "out of memory");
    model_window_init(&whole, h, 0, h->n_block, listing_has, &l);
    free(l.lines);
    if (rc != OK) {
        free(s.block_bytes);
        return rc;
    }
    s.tied = whole.tied;
    s.nextn_table = whole.nextn_table;
    if (s.tied)
        s.head_bytes += s.table_bytes;
    *out = s;
    return OK;
}

void model_sizes_fini(struct model_sizes *s)
{
    free(s->block_bytes);
    *s = (struct model_sizes){0};
}

static uint64_t sizes_of_window(const struct model_sizes *s, uint32_t first, uint32_t end, bool carried)
{
    const struct {
        enum model_part part;
        uint64_t bytes;
    } once[] = {{MODEL_TABLE, s->table_bytes},
                {MODEL_EMBD, s->embd_bytes - s->table_bytes},
                {MODEL_HEAD, s->head_bytes - (s->tied ? s->table_bytes : 0)},
                {MODEL_NEXTN, s->nextn_bytes},
                {MODEL_GLOBAL, s->global_bytes}};
    const struct model_window w = {
        .first = first, .end = end, .n_block = s->n_block, .tied = s->tied, .nextn_table = s->nextn_table};
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) {
        enum model_use use = model_window_use(&w, once[i].part, 0);
        total += use == MODEL_LOADED || (carried && use == MODEL_CARRIED) ? once[i].bytes : 0;
    }
    for (uint32_t b = first; b < end && b < s->n_block; b++)
        total += s->block_bytes[b];
    return total;
}

uint64_t model_sizes_window(const struct model_sizes *s, uint32_t first, uint32_t end)
{
    return sizes_of_window(s, first, end, false);
}

uint64_t model_sizes_stage_file(const struct model_sizes *s, uint32_t first, uint32_t end)
{
    return sizes_of_window(s, first, end, true);
}
