/* SPDX-License-Identifier: MIT */
#include "engine/kv.h"

#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (1ull << 42)

static const struct {
    const char *name;
    enum ggml_type type;
    uint32_t bytes;
} types[KV_TYPE_COUNT] = {
    [KV_F32] = {"f32", GGML_TYPE_F32, 4},
    [KV_F16] = {"f16", GGML_TYPE_F16, 2},
};

enum err_code kv_parse_type(const char *text, enum kv_type *out, struct err *e)
{
    for (int i = 0; i < KV_TYPE_COUNT; i++) {
        if (strcmp(text, types[i].name) == 0) {
            *out = (enum kv_type)i;
            return OK;
        }
    }
    return err_set(e, ERR_ARG, "cache type '%s' is not one of: f32 f16", text);
}

const char *kv_type_name(enum kv_type t)
{
    return types[t].name;
}

uint32_t kv_type_bytes(enum kv_type t)
{
    return types[t].bytes;
}

enum err_code kv_init(struct kv *kv, const struct backend *b, const struct hparams *h, uint32_t first, uint32_t end,
                      uint32_t n_ctx, uint32_t n_slots, enum kv_type type, struct err *e)
{
    uint32_t n = end - first;
    if ((unsigned)type >= KV_TYPE_COUNT)
        return err_set(e, ERR_ARG, "there is no cache type number %u", (unsigned)type);
    struct kv x = {.first = first, .end = end, .n_ctx = n_ctx, .n_slots = n_slots};
    x.k = calloc(n, sizeof(struct ggml_tensor *));
    x.v = calloc(n, sizeof(struct ggml_tensor *));
    x.ctx = ggml_init(
        (struct ggml_init_params){.mem_size = (2 * (size_t)n + 1) * ggml_tensor_overhead(), .no_alloc = true});
    if (!x.k || !x.v || !x.ctx) {
        kv_fini(&x);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    int64_t cells = (int64_t)n_ctx * n_slots;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n && bytes <= MAX_BYTES; i++) {
        uint32_t heads = h->n_head_kv[first + i];
        x.k[i] = ggml_new_tensor_2d(x.ctx, types[type].type, (int64_t)heads * h->head_dim_k, cells);
        x.v[i] = ggml_new_tensor_2d(x.ctx, types[type].type, (int64_t)heads * h->head_dim_v, cells);
        bytes += ggml_nbytes(x.k[i]) + ggml_nbytes(x.v[i]);
    }
    if (bytes <= MAX_BYTES) /* ggml adds sizes up without looking */
        x.buf = ggml_backend_alloc_ctx_tensors(x.ctx, b->be);
    if (!x.buf) {
        kv_fini(&x);
        return err_set(
            e, ERR_NOMEM,
            "out of memory for the key/value cache: %llu bytes%s for %u slots of %u positions; ask for a smaller "
            "context or fewer slots",
            (unsigned long long)bytes, bytes > MAX_BYTES ? " and more" : "", n_slots, n_ctx);
    }
    ggml_backend_buffer_clear(x.buf, 0);
    *kv = x;
    return OK;
}

void kv_fini(struct kv *kv)
{
    if (kv->buf)
        ggml_backend_buffer_free(kv->buf);
    if (kv->ctx)
        ggml_free(kv->ctx);
    free(kv->k);
    free(kv->v);
    *kv = (struct kv){0};
}

uint64_t kv_bytes(const struct kv *kv)
{
    return kv->buf ? ggml_backend_buffer_get_size(kv->buf) : 0;
}
