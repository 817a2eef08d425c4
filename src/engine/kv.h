/* SPDX-License-Identifier: MIT
 *
 * The key/value cache of one window: for each attention block two tensors of cells, a plane of n_ctx cells per sequence
 * slot. Cell c of slot s is row s * n_ctx + c; a token's cell is its position. Owned by the stage; compute thread only.
 */
#ifndef KVASIR_ENGINE_KV_H
#define KVASIR_ENGINE_KV_H

#include "engine/backend.h"
#include "model/hparams.h"

#include <ggml.h>

enum kv_type { KV_F32, KV_F16, KV_TYPE_COUNT };

struct kv {
    uint32_t first, end, n_ctx, n_slots;
    struct ggml_context *ctx;
    ggml_backend_buffer_t buf;
    struct ggml_tensor **k, **v; /* [end - first], each [n_head_kv * head_dim, n_ctx * n_slots] */
};

/* ERR_NOMEM says how many bytes were asked for. Cells are zeroed: a masked cell must not hold a NaN. */
enum err_code kv_init(struct kv *kv, const struct backend *b, const struct hparams *h, uint32_t first, uint32_t end,
                      uint32_t n_ctx, uint32_t n_slots, enum kv_type type, struct err *e) KV_MUST_USE;
void kv_fini(struct kv *kv);
uint64_t kv_bytes(const struct kv *kv);

enum err_code kv_parse_type(const char *text, enum kv_type *out, struct err *e) KV_MUST_USE;
const char *kv_type_name(enum kv_type t);
uint32_t kv_type_bytes(enum kv_type t); /* bytes of an element */

#endif
