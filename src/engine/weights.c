/* SPDX-License-Identifier: MIT
 *
 * Where each weight lives. Mapped tensors: the window's tensors of a file are sorted by offset and mapped in as few
 * ranges as leave no large hole. Repacked tensors and those of another device: copied once through the page cache,
 * whose pages are given back.
 */
#include "engine/weights.h"

#include "base/io.h"
#include "base/log.h"
#include "engine/buffers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOLE_BYTES (1u << 20)  /* tensors further apart than this are mapped apart */
#define SHORT_ROW  64          /* shorter rows are not repacked: ggml's AMX kernel is wrong for 32 from 32 tokens on */
#define HOST_ALIGN 32          /* what ggml's CPU buffers ask of a pointer */
#define PART_BYTES (16u << 20) /* of a tensor on its way to a device */

struct weight {
    const struct gguf_tensor *src;
    struct ggml_tensor *t;
    enum weight_use use;
    ggml_backend_buffer_type_t buft; /* NULL: mapped from the file */
    bool on_device;                  /* besides the CPU */
};

struct weights {
    const struct gguf *g;
    struct ggml_context *ctx;
    struct weight *w;
    size_t n, cap;
    struct io_map *maps;
    size_t n_maps, cap_maps;
    struct buffers bufs;
    uint64_t bytes, repacked, on_device;
    struct err err;
    enum err_code rc; /* sticky, while declaring */
};

enum err_code weights_new(const struct gguf *g, size_t n_max, struct weights **out, struct err *e)
{
    struct weights *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "out of memory");
    w->g = g;
    w->cap = n_max;
    w->w = calloc(n_max, sizeof *w->w);
    w->ctx = ggml_init((struct ggml_init_params){.mem_size = (n_max + 1) * ggml_tensor_overhead(), .no_alloc = true});
    if (!w->w || !w->ctx) {
        weights_free(w);
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", n_max);
    }
    *out = w;
    return OK;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    buffers_free(&w->bufs);
    for (size_t i = 0; i < w->n_maps; i++)
        io_unmap(&w->maps[i]);
    if (w->ctx)
        ggml_free(w->ctx);
    free(w->maps);
    free(w->w);
    free(w);
}

uint64_t weights_bytes(const struct weights *w)
{
    return w->bytes;
}

uint64_t weights_repacked_bytes(const struct weights *w)
{
    return w->repacked;
}

uint64_t weights_device_bytes(const struct weights *w)
{
    return w->on_device;
}

uint64_t weights_bytes_before(const struct weights *w, uint32_t end)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->n; i++)
        bytes += w->w[i].use != WEIGHT_GET_ROWS && devices_on_main(end, w->w[i].src->block) ? w->w[i].src->size : 0;
    return bytes;
}

/* --- declaring ---------------------------------------------------------------------------------------------------- */

static const char *shape_text(const int64_t *ne, char out[64])
{
    int n = snprintf(out, 64, "[%" PRId64 ", %" PRId64, ne[0], ne[1]);
    if ((ne[2] != 1 || ne[3] != 1) && n > 0 && n < 64)
        n += snprintf(out + n, 64 - (size_t)n, ", %" PRId64 ", %" PRId64, ne[2], ne[3]);
    if (n > 0 && n < 63)
        memcpy(out + n, "]", 2);
    return out;
}

static enum err_code spec_check(const struct gguf_tensor *t, const struct weight_spec *s, struct err *e)
{
    int64_t want[4] = {s->ne[0], s->ne[1] ? s->ne[1] : 1, s->ne[2] ? s->ne[2] : 1, 1};
    char a[64], b[64];
    if (memcmp(want, t->ne, sizeof want) != 0)
        return err_set(e, ERR_FORMAT, "tensor %s has the shape %s, this model needs %s", t->name, shape_text(t->ne, a),
                       shape_text(want, b));
    if (s->use == WEIGHT_ELEMENT && t->type != GGML_TYPE_F32)
        return err_set(e, ERR_FORMAT, "tensor %s is of type %s, f32 is needed", t->name,
                       ggml_type_name((enum ggml_type)t->type));
    return OK;
}

/* NVFP4 files scale whole matrices by a number in a tensor of its own: without it the result would be wrong. */
static enum err_code sidecar_check(const struct gguf *g, const char *name, struct err *e)
{
    static const char suffix[] = ".weight";
    char scale[80];
    size_t n = strlen(name), m = sizeof suffix - 1;
    if (n <= m || n >= sizeof scale || strcmp(name + n - m, suffix) != 0)
        return OK;
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(n - m), name);
    if (!gguf_tensor_find(g, scale))
        return OK;
    return err_set(e, ERR_UNSUPPORTED, "tensor %s has a scale of its own (%s), which this engine does not apply", name,
                   scale);
}

struct ggml_tensor *weights_declare(struct weights *w, const char *name, struct weight_spec spec)
{
    bool counted = false;
    if (w->rc != OK)
        return NULL;
    for (size_t i = w->n; i-- > 0;) {
        if (strcmp(w->w[i].src->name, name) == 0) {
            if (w->w[i].use == spec.use)
                return w->w[i].t;
            counted = true;
        }
    }
    const struct gguf_tensor *src = gguf_tensor_find(w->g, name);
    if (!src) {
        if (!spec.optional)
            w->rc = err_set(&w->err, ERR_NOT_FOUND, "the model lacks the tensor %s", name);
        return NULL;
    }
    w->rc = spec_check(src, &spec, &w->err);
    if (w->rc == OK)
        w->rc = sidecar_check(w->g, name, &w->err);
    if (w->rc == OK && w->n == w->cap)
        w->rc = err_set(&w->err, ERR_INTERNAL, "more than %zu tensors declared", w->cap);
    if (w->rc != OK)
        return NULL;
    struct ggml_tensor *t = ggml_new_tensor(w->ctx, (enum ggml_type)src->type, GGML_MAX_DIMS, src->ne);
    ggml_set_name(t, name);
    w->w[w->n++] = (struct weight){.src = src, .t = t, .use = spec.use};
    if (!counted)
        w->bytes += src->size;
    return t;
}

/* --- placing ------------------------------------------------------------------------------------------------------ */

/* Would the device run the op this weight is for, were the weight in a buffer of this type? The op is a dummy with
 * the weight as it is and an activation of one row. */
static bool op_supported(const struct weight *w, ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft)
{
    struct ggml_context *ctx =
        ggml_init((struct ggml_init_params){.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true});
    if (!ctx)
        return false;
    struct ggml_tensor *t = ggml_dup_tensor(ctx, w->t), *op;
    if (w->use == WEIGHT_GET_ROWS) {
        op = ggml_get_rows(ctx, t, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1));
    } else if (w->use == WEIGHT_MUL_MAT_ID) {
        op = ggml_mul_mat_id(ctx, t, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, w->t->ne[0], 1, 1),
                             ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, 1));
    } else {
        struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, w->t->ne[0], 1);
        op = w->use == WEIGHT_MUL_MAT ? ggml_mul_mat(ctx, t, x) : ggml_add(ctx, t, t);
    }
    t->buffer = ggml_backend_buft_alloc_buffer(buft, 0);
    bool ok = t->buffer && ggml_backend_dev_supports_op(dev, op);
    if (t->buffer)
        ggml_backend_buffer_free(t->buffer);
    ggml_free(ctx);
    return ok;
}

/* Integers and types for intermediate results are no weights; ggml says that it supports some of them, and aborts. */
static bool is_weight_type(enum ggml_type t)
{
    return t == GGML_TYPE_F32 || ggml_get_type_traits(t)->to_float != NULL;
}

static enum err_code choose(struct weight *w, const struct devices *d, bool repack, struct err *e)
{
    const struct backend *b = devices_cpu(d);
    bool known = is_weight_type(w->t->type);
    if (known && devices_split(d) && w->use != WEIGHT_GET_ROWS && devices_on_main(d->end, w->src->block)) {
        ggml_backend_buffer_type_t there = ggml_backend_dev_buffer_type(d->main.dev);
        if (op_supported(w, d->main.dev, there)) {
            w->buft = there;
            w->on_device = true;
            return OK;
        }
        log_debug("weights", "%s (%s) stays with the CPU", w->src->name, ggml_type_name(w->t->type));
    }
    bool matrix = w->use == WEIGHT_MUL_MAT || w->use == WEIGHT_MUL_MAT_ID;
    repack = repack && matrix && w->t->ne[0] >= SHORT_ROW;
    for (size_t i = 0; known && repack && b->extra && b->extra[i]; i++) {
        if (op_supported(w, b->dev, b->extra[i])) {
            w->buft = b->extra[i];
            return OK;
        }
    }
    ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(b->dev);
    if (!known || !op_supported(w, b->dev, plain))
        return err_set(e, ERR_UNSUPPORTED, "the device %s cannot compute with tensor %s of type %s",
                       ggml_backend_dev_name(b->dev), w->src->name, ggml_type_name(w->t->type));
    w->buft = w->src->offset % HOST_ALIGN == 0 ? NULL : plain;
    return OK;
}

static enum err_code keep_buffer(struct weights *w, ggml_backend_buffer_t buf, struct err *e)
{
    ggml_backend_buffer_set_usage(buf, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    return buffers_keep(&w->bufs, buf, e);
}

static int by_place(const void *a, const void *b)
{
    const struct weight *x = a, *y = b;
    if (x->src->file != y->src->file)
        return x->src->file < y->src->file ? -1 : 1;
    return x->src->offset < y->src->offset ? -1 : x->src->offset > y->src->offset;
}

/* Maps bytes [offset, offset + len) of a file, which hold w->w[first .. last], and binds these tensors to the map. */
static enum err_code map_run(struct weights *w, const struct backend *b, size_t first, size_t last, size_t len,
                             struct err *e)
{
    const struct gguf_tensor *a = w->w[first].src;
    size_t biggest = 0;
    if (w->n_maps == w->cap_maps) {
        size_t cap = w->cap_maps ? w->cap_maps * 2 : 16;
        struct io_map *p = realloc(w->maps, cap * sizeof *p);
        if (!p)
            return err_set(e, ERR_NOMEM, "out of memory");
        w->maps = p;
        w->cap_maps = cap;
    }
    struct io_map *m = &w->maps[w->n_maps];
    enum err_code rc = io_map_range(gguf_fd(w->g, a->file), a->offset, len, m, e);
    if (rc != OK) {
        err_prefix(e, "%s", gguf_file_path(w->g, a->file));
        return rc;
    }
    w->n_maps++;
    for (size_t i = first; i <= last; i++)
        biggest = w->w[i].src->size > biggest ? w->w[i].src->size : biggest;
    ggml_backend_buffer_t buf = ggml_backend_dev_buffer_from_host_ptr(b->dev, (void *)(uintptr_t)m->data, len, biggest);
    if (!buf)
        return err_set(e, ERR_DEVICE, "the device %s cannot use mapped memory", ggml_backend_dev_name(b->dev));
    rc = keep_buffer(w, buf, e);
    for (size_t i = first; rc == OK && i <= last; i++) {
        const uint8_t *p = m->data + (w->w[i].src->offset - a->offset);
        if (ggml_backend_tensor_alloc(buf, w->w[i].t, (void *)(uintptr_t)p) != GGML_STATUS_SUCCESS)
            rc = err_set(e, ERR_DEVICE, "cannot place tensor %s", w->w[i].src->name);
        else if (w->w[i].use != WEIGHT_GET_ROWS) /* of a table only the rows in use become resident */
            io_map_fetch(m, p, (size_t)w->w[i].src->size);
    }
    return rc;
}

static enum err_code map_all(struct weights *w, const struct backend *b, struct err *e)
{
    for (size_t i = 0; i < w->n;) {
        if (w->w[i].buft) {
            i++;
            continue;
        }
        const struct gguf_tensor *a = w->w[i].src;
        uint64_t end = a->offset + a->size;
        size_t last = i;
        while (last + 1 < w->n && !w->w[last + 1].buft && w->w[last + 1].src->file == a->file &&
               w->w[last + 1].src->offset <= end + HOLE_BYTES) {
            const struct gguf_tensor *t = w->w[++last].src;
            end = t->offset + t->size > end ? t->offset + t->size : end;
        }
        enum err_code rc = map_run(w, b, i, last, (size_t)(end - a->offset), e);
        if (rc != OK)
            return rc;
        i = last + 1;
    }
    return OK;
}

/* Copies one tensor to its place. The whole tensor must be handed over at once; it is mapped for that, and the mapping
 * ends right after, so at most one tensor is resident twice. */
static enum err_code copy_one(struct weights *w, const struct weight *t, struct err *e)
{
    struct io_map m;
    enum err_code rc = io_map_range(gguf_fd(w->g, t->src->file), t->src->offset, (size_t)t->src->size, &m, e);
    if (rc != OK) {
        err_prefix(e, "%s", gguf_file_path(w->g, t->src->file));
        return rc;
    }
    ggml_backend_tensor_set(t->t, m.data, 0, (size_t)t->src->size);
    io_unmap(&m);
    w->repacked += t->src->size;
    return OK;
}

static bool is_copied(const struct weight *t)
{
    return t->buft && !t->on_device;
}

/* Copies what is neither mapped nor on the device: the tensors of each buffer type into as few buffers as it allows. */
static enum err_code copy_all(struct weights *w, struct err *e)
{
    struct ggml_tensor **list = malloc((w->n + 1) * sizeof(struct ggml_tensor *));
    enum err_code rc = list ? OK : err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == OK && i < w->n; i++) {
        size_t n = 0;
        if (!is_copied(&w->w[i]))
            continue;
        if (!w->w[i].t->buffer) { /* the first one of its type takes the others along */
            for (size_t k = i; k < w->n; k++) {
                if (is_copied(&w->w[k]) && w->w[k].buft == w->w[i].buft)
                    list[n++] = w->w[k].t;
            }
            rc = buffers_place(&w->bufs, w->w[i].buft, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, list, n, e);
        }
        if (rc == OK)
            rc = copy_one(w, &w->w[i], e);
    }
    free(list);
    return rc;
}

/* Writes a tensor that lies on the device, in parts where the device takes them, so that the process never holds more
 * of it than a part. */
static enum err_code upload_one(struct weights *w, const struct backend *b, const struct weight *t, struct err *e)
{
    size_t size = (size_t)t->src->size, part = b->plain ? PART_BYTES : size;
    for (size_t done = 0; done < size;) {
        size_t n = size - done < part ? size - done : part;
        struct io_map m;
        enum err_code rc = io_map_range(gguf_fd(w->g, t->src->file), t->src->offset + done, n, &m, e);
        if (rc != OK) {
            err_prefix(e, "%s", gguf_file_path(w->g, t->src->file));
            return rc;
        }
        io_map_fetch(&m, m.data, n);
        ggml_backend_tensor_set(t->t, m.data, done, n);
        io_unmap(&m);
        done += n;
    }
    w->on_device += size;
    return OK;
}

static enum err_code upload_all(struct weights *w, const struct devices *d, struct err *e)
{
    size_t n = 0;
    struct ggml_tensor **list = malloc((w->n + 1) * sizeof(struct ggml_tensor *));
    if (!list)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < w->n; i++) {
        if (w->w[i].on_device)
            list[n++] = w->w[i].t;
    }
    enum err_code rc = buffers_place(&w->bufs, ggml_backend_dev_buffer_type(d->main.dev),
                                     GGML_BACKEND_BUFFER_USAGE_WEIGHTS, list, n, e);
    free(list);
    for (size_t i = 0; rc == OK && i < w->n; i++) {
        if (w->w[i].on_device)
            rc = upload_one(w, &d->main, &w->w[i], e);
    }
    return rc;
}

enum err_code weights_load(struct weights *w, const struct devices *d, bool repack, struct err *e)
{
    if (w->rc != OK) {
        if (e)
            *e = w->err;
        return w->rc;
    }
    for (size_t i = 0; i < w->n; i++) {
        if (gguf_fd(w->g, w->w[i].src->file) < 0)
            return err_set(e, ERR_ARG, "a stage needs its model in files");
        enum err_code rc = choose(&w->w[i], d, repack, e);
        if (rc != OK)
            return rc;
    }
    qsort(w->w, w->n, sizeof *w->w, by_place);
    enum err_code rc = map_all(w, devices_cpu(d), e);
    if (rc == OK)
        rc = copy_all(w, e);
    if (rc == OK && devices_split(d))
        rc = upload_all(w, d, e);
    if (rc == OK)
        log_debug("weights", "tensors=%zu bytes=%" PRIu64 " repacked=%" PRIu64 " on_device=%" PRIu64 " maps=%zu", w->n,
                  w->bytes, w->repacked, w->on_device, w->n_maps);
    w->g = NULL;
    return rc;
}
