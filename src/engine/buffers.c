/* SPDX-License-Identifier: MIT */
#include "engine/buffers.h"

#include <ggml-alloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LARGE_PAGE  ((uintptr_t)2 << 20)
#define CHUNK_BYTES ((size_t)1 << 30) /* a buffer grows no larger, unless one tensor needs it */

enum err_code buffers_keep(struct buffers *b, ggml_backend_buffer_t buf, struct err *e)
{
    if (b->n == b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 16;
        ggml_backend_buffer_t *p = realloc(b->item, cap * sizeof(ggml_backend_buffer_t));
        if (!p) {
            ggml_backend_buffer_free(buf);
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        b->item = p;
        b->cap = cap;
    }
    b->item[b->n++] = buf;
    return OK;
}

void buffers_large_pages(ggml_backend_buffer_t buf)
{
    ggml_backend_dev_t dev = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buf));
    if (!dev || ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU)
        return;
    uintptr_t base = (uintptr_t)ggml_backend_buffer_get_base(buf), end = base + ggml_backend_buffer_get_size(buf);
    base = (base + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    end = end / LARGE_PAGE * LARGE_PAGE;
    if (end > base)
        (void)madvise((void *)base, end - base, MADV_HUGEPAGE);
}

/* What a tensor takes, up to where the next one may begin. */
static size_t room(ggml_backend_buffer_type_t type, const struct ggml_tensor *t)
{
    size_t align = ggml_backend_buft_get_alignment(type), size = ggml_backend_buft_get_alloc_size(type, t);
    return (size + align - 1) / align * align;
}

enum err_code buffers_place(struct buffers *b, ggml_backend_buffer_type_t type, enum ggml_backend_buffer_usage usage,
                            struct ggml_tensor *const *t, size_t n, struct err *e)
{
    size_t max = ggml_backend_buft_get_max_size(type);
    if (max > CHUNK_BYTES)
        max = CHUNK_BYTES;
    for (size_t i = 0; i < n;) {
        size_t end = i + 1, size = room(type, t[i]);
        while (end < n && size < max && room(type, t[end]) <= max - size)
            size += room(type, t[end++]);
        ggml_backend_buffer_t buf = ggml_backend_buft_alloc_buffer(type, size);
        if (!buf)
            return err_set(e, ERR_NOMEM, "out of memory: there are no %zu bytes of %s", size,
                           ggml_backend_buft_name(type));
        enum err_code rc = buffers_keep(b, buf, e);
        if (rc != OK)
            return rc;
        ggml_backend_buffer_set_usage(buf, usage);
        buffers_large_pages(buf);
        struct ggml_tallocr at = ggml_tallocr_new(buf);
        for (; i < end; i++) {
            if (ggml_tallocr_alloc(&at, t[i]) != GGML_STATUS_SUCCESS)
                return err_set(e, ERR_DEVICE, "cannot place tensor %s in %s", t[i]->name, ggml_backend_buft_name(type));
        }
    }
    return OK;
}

uint64_t buffers_bytes(const struct buffers *b)
{
    uint64_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += ggml_backend_buffer_get_size(b->item[i]);
    return n;
}

void buffers_free(struct buffers *b)
{
    for (size_t i = 0; i < b->n; i++)
        ggml_backend_buffer_free(b->item[i]);
    free(b->item);
    *b = (struct buffers){0};
}
