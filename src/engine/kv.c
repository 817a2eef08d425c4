/* SPDX-License-Identifier: MIT */
#include "engine/kv.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (1ull << 42)
#define ROUND     256u /* windows are rounded up to this many cells, as attention reads them */

static const struct {
    const char *name;
    enum ggml_type type;
    uint32_t bytes32;
} types[KV_TYPE_COUNT] = {
    [KV_F32] = {"f32", GGML_TYPE_F32, 128},
    [KV_F16] = {"f16", GGML_TYPE_F16, 64},
    [KV_Q8_0] = {"q8_0", GGML_TYPE_Q8_0, 34},
    [KV_Q4_0] = {"q4_0", GGML_TYPE_Q4_0, 18},
};

enum err_code kv_parse_type(const char *text, enum kv_type *out, struct err *e)
{
    for (int i = 0; i < KV_TYPE_COUNT; i++) {
        if (strcmp(text, types[i].name) == 0) {
            *out = (enum kv_type)i;
            return OK;
        }
    }
    return err_set(e, ERR_ARG, "cache type '%s' is not one of: f32 f16 q8_0 q4_0", text);
}

const char *kv_type_name(enum kv_type t)
{
    return types[t].name;
}

uint32_t kv_type_bytes32(enum kv_type t)
{
    return types[t].bytes32;
}

uint32_t kv_window_cells(uint32_t n_window, uint32_t n_ctx, uint32_t n_batch)
{
    uint64_t n = ((uint64_t)n_window + n_batch + ROUND - 1) / ROUND * ROUND;
    return n < n_ctx ? (uint32_t)n : n_ctx;
}

static bool alloc_lists(struct kv *kv, uint32_t n)
{
    kv->k = calloc(n, sizeof(struct ggml_tensor *));
    kv->v = calloc(n, sizeof(struct ggml_tensor *));
    kv->conv = calloc(n, sizeof(struct ggml_tensor *));
    kv->delta = calloc(n, sizeof(struct ggml_tensor *));
    kv->on_cpu = calloc(n, sizeof *kv->on_cpu);
    kv->ctx = ggml_init(
        (struct ggml_init_params){.mem_size = (2 * (size_t)n + 1) * ggml_tensor_overhead(), .no_alloc = true});
    return kv->k && kv->v && kv->conv && kv->delta && kv->on_cpu && kv->ctx;
}

/* The tensors of block il. Returns their bytes. */
static uint64_t make_block(struct kv *kv, const struct hparams *h, uint32_t il, enum ggml_type type)
{
    uint32_t i = il - kv->first;
    if (h->kind[il] == BLOCK_RECURRENT) {
        int64_t state = h->ssm.state;
        kv->conv[i] = ggml_new_tensor_2d(kv->ctx, GGML_TYPE_F32, (int64_t)(h->ssm.conv - 1) * hparams_conv_channels(h),
                                         kv->n_slots);
        kv->delta[i] = ggml_new_tensor_2d(kv->ctx, GGML_TYPE_F32, state * state * h->ssm.n_value, kv->n_slots);
        return ggml_nbytes(kv->conv[i]) + ggml_nbytes(kv->delta[i]);
    }
    int64_t cells = (int64_t)kv->n_cells[kv_view_of(h, il)] * kv->n_slots, heads = h->n_head_kv[il];
    kv->has[kv_view_of(h, il)] = true;
    kv->k[i] = ggml_new_tensor_2d(kv->ctx, type, heads * h->head_dim_k, cells);
    kv->v[i] = ggml_new_tensor_2d(kv->ctx, type, heads * h->head_dim_v, cells);
    return ggml_nbytes(kv->k[i]) + ggml_nbytes(kv->v[i]);
}

static enum err_code too_large(const struct kv *kv, uint64_t bytes, const char *more, struct err *e)
{
    return err_set(
        e, ERR_NOMEM,
        "out of memory for the key/value cache: %llu bytes%s for %u slots of %u positions; ask for a smaller "
        "context or fewer slots",
        (unsigned long long)bytes, more, kv->n_slots, kv->n_cells[KV_VIEW_FULL]);
}

enum err_code kv_init(struct kv *kv, const struct hparams *h, const struct kv_params *p, struct err *e)
{
    if ((unsigned)p->type >= KV_TYPE_COUNT)
        return err_set(e, ERR_ARG, "there is no cache type number %u", (unsigned)p->type);
    enum ggml_type type = types[p->type].type;
    if (h->head_dim_k % ggml_blck_size(type) != 0 || h->head_dim_v % ggml_blck_size(type) != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "a cache of type %s needs heads of a multiple of %d elements; this model's keys have %u, its "
                       "values %u: use f16",
                       types[p->type].name, (int)ggml_blck_size(type), h->head_dim_k, h->head_dim_v);
    struct kv x = {.first = p->first, .end = p->end, .n_slots = p->n_slots};
    x.n_cells[KV_VIEW_FULL] = p->n_ctx;
    x.n_cells[KV_VIEW_WINDOW] = kv_window_cells(h->n_window, p->n_ctx, p->n_batch);
    if (!alloc_lists(&x, p->end - p->first)) {
        kv_fini(&x);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    uint64_t bytes = 0;
    for (uint32_t il = p->first; il < p->end && bytes <= MAX_BYTES; il++)
        bytes += make_block(&x, h, il, type);
    if (bytes > MAX_BYTES) { /* ggml adds sizes up without looking */
        enum err_code rc = too_large(&x, bytes, " and more", e);
        kv_fini(&x);
        return rc;
    }
    *kv = x;
    return OK;
}

/* The tensors of block first + i: NULL where it has none. */
#define N_PARTS 4
static struct ggml_tensor *part_of(const struct kv *kv, uint32_t i, int part)
{
    struct ggml_tensor *const t[N_PARTS] = {kv->k[i], kv->v[i], kv->conv[i], kv->delta[i]};
    return t[part];
}

uint64_t kv_bytes_before(const struct kv *kv, uint32_t end)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < kv->end - kv->first; i++) {
        for (int p = 0; p < N_PARTS; p++) {
            struct ggml_tensor *t = part_of(kv, i, p);
            bytes += t && kv->first + i < end ? ggml_nbytes(t) : 0;
        }
    }
    return bytes;
}

static const struct ggml_tensor *root_of(const struct ggml_tensor *t)
{
    while (t->view_src)
        t = t->view_src;
    return t;
}

static bool touches(const struct kv *kv, uint32_t i, const struct ggml_tensor *node)
{
    for (int p = 0; p < N_PARTS; p++) {
        const struct ggml_tensor *t = part_of(kv, i, p);
        bool touched = t && root_of(node) == t;
        for (int k = 0; t && k < GGML_MAX_SRC; k++)
            touched |= node->src[k] && root_of(node->src[k]) == t;
        if (touched)
            return true;
    }
    return false;
}

void kv_probe(struct kv *kv, const struct devices *d, struct ggml_cgraph *gf)
{
    for (int n = 0; n < ggml_graph_n_nodes(gf); n++) {
        struct ggml_tensor *node = ggml_graph_node(gf, n);
        if (ggml_backend_dev_supports_op(d->main.dev, node))
            continue;
        for (uint32_t i = 0; i < kv->end - kv->first; i++) {
            if (kv->on_cpu[i] || !devices_on_main(d->end, (int)(kv->first + i)) || !touches(kv, i, node))
                continue;
            kv->on_cpu[i] = true;
            log_debug("kv", "block %u: %s cannot %s, its state stays with the CPU", kv->first + i,
                      ggml_backend_dev_name(d->main.dev), ggml_op_desc(node));
        }
    }
}

static enum err_code alloc_on(struct kv *kv, const struct devices *d, bool main, struct err *e)
{
    const struct backend *b = main ? &d->main : &d->beside;
    struct buffers *bufs = main ? &kv->main : &kv->cpu;
    uint32_t n_blocks = kv->end - kv->first;
    struct ggml_tensor **list = malloc((size_t)n_blocks * N_PARTS * sizeof(struct ggml_tensor *));
    uint64_t bytes = 0;
    size_t n = 0;
    if (!list)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n_blocks; i++) {
        if ((devices_on_main(d->end, (int)(kv->first + i)) && !kv->on_cpu[i]) != main)
            continue;
        for (int p = 0; p < N_PARTS; p++) {
            struct ggml_tensor *t = part_of(kv, i, p);
            if (t) {
                list[n++] = t;
                bytes += ggml_nbytes(t);
            }
        }
    }
    enum err_code rc =
        buffers_place(bufs, ggml_backend_dev_buffer_type(b->dev), GGML_BACKEND_BUFFER_USAGE_ANY, list, n, e);
    free(list);
    if (rc != OK)
        return too_large(kv, bytes, devices_split(d) ? " of one device" : "", e);
    for (size_t i = 0; i < bufs->n; i++)
        ggml_backend_buffer_clear(bufs->item[i], 0);
    return OK;
}

enum err_code kv_alloc(struct kv *kv, const struct devices *d, struct err *e)
{
    enum err_code rc = alloc_on(kv, d, true, e);
    return rc == OK && devices_split(d) ? alloc_on(kv, d, false, e) : rc;
}

void kv_fini(struct kv *kv)
{
    buffers_free(&kv->main);
    buffers_free(&kv->cpu);
    if (kv->ctx)
        ggml_free(kv->ctx);
    free(kv->k);
    free(kv->v);
    free(kv->conv);
    free(kv->delta);
    free(kv->on_cpu);
    *kv = (struct kv){0};
}

uint64_t kv_bytes(const struct kv *kv)
{
    return buffers_bytes(&kv->main) + buffers_bytes(&kv->cpu);
}

/* --- what cannot be cut back -------------------------------------------------------------------------------------- */

/* The slot's part of a tensor that holds the present, not a history; t NULL: this tensor has none. */
struct part {
    struct ggml_tensor *t;
    size_t offset, size;
};

static bool nth_part(const struct kv *kv, uint32_t slot, size_t n, struct part *out)
{
    uint32_t i = (uint32_t)(n / 2);
    if (i >= kv->end - kv->first)
        return false;
    struct ggml_tensor *t = n % 2 ? kv->delta[i] : kv->conv[i];
    size_t rows = 1;
    if (!t && kv->n_cells[KV_VIEW_WINDOW] < kv->n_cells[KV_VIEW_FULL]) {
        t = n % 2 ? kv->v[i] : kv->k[i];
        rows = kv->n_cells[KV_VIEW_WINDOW];
        if (t->ne[1] != (int64_t)rows * kv->n_slots)
            t = NULL; /* over all positions: older ones stay where they are */
    }
    *out = (struct part){.t = t, .offset = t ? slot * rows * t->nb[1] : 0, .size = t ? rows * t->nb[1] : 0};
    return true;
}

/* Not every device can fill memory by itself. */
static void zero(struct ggml_tensor *t, size_t offset, size_t size)
{
    static const uint8_t zeros[1u << 16];
    if (ggml_backend_buffer_is_host(t->buffer)) {
        ggml_backend_tensor_memset(t, 0, offset, size);
        return;
    }
    for (size_t n; size > 0; offset += n, size -= n) {
        n = size < sizeof zeros ? size : sizeof zeros;
        ggml_backend_tensor_set(t, zeros, offset, n);
    }
}

void kv_clear_slot(struct kv *kv, uint32_t slot)
{
    struct part p;
    for (size_t n = 0; nth_part(kv, slot, n, &p); n++) {
        if (p.t && (kv->conv[n / 2] == p.t || kv->delta[n / 2] == p.t))
            zero(p.t, p.offset, p.size);
    }
}

size_t kv_saved_bytes(const struct kv *kv)
{
    struct part p;
    size_t bytes = 0;
    for (size_t n = 0; nth_part(kv, 0, n, &p); n++)
        bytes += p.size;
    return bytes;
}

void kv_save_slot(const struct kv *kv, uint32_t slot, uint8_t *data)
{
    struct part p;
    for (size_t n = 0; nth_part(kv, slot, n, &p); n++, data += p.size) {
        if (p.t)
            ggml_backend_tensor_get(p.t, data, p.offset, p.size);
    }
}

void kv_restore_slot(struct kv *kv, uint32_t slot, const uint8_t *data)
{
    struct part p;
    for (size_t n = 0; nth_part(kv, slot, n, &p); n++, data += p.size) {
        if (p.t)
            ggml_backend_tensor_set(p.t, data, p.offset, p.size);
    }
}
