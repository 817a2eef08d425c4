/* SPDX-License-Identifier: MIT
 *
 * A list of device buffers that live and end together, and placing tensors in as few of them as a device allows.
 */
#ifndef KVASIR_ENGINE_BUFFERS_H
#define KVASIR_ENGINE_BUFFERS_H

#include "base/err.h"

#include <ggml-backend.h>
#include <stddef.h>

struct buffers {
    ggml_backend_buffer_t *item;
    size_t n, cap;
};

/* Takes buf over, also on failure: ERR_NOMEM. */
enum err_code buffers_keep(struct buffers *b, ggml_backend_buffer_t buf, struct err *e) KV_MUST_USE;

/* Gives n tensors memory of a type, in their order. ERR_NOMEM says how many bytes there were not. */
enum err_code buffers_place(struct buffers *b, ggml_backend_buffer_type_t type, enum ggml_backend_buffer_usage usage,
                            struct ggml_tensor *const *t, size_t n, struct err *e) KV_MUST_USE;

/* Asks for large pages where the memory is the CPU's and was not written yet: the hardware then walks its page tables
 * less, which is worth some percent of the speed. Only whole pages inside the buffer, so that nothing beyond it grows;
 * the kernel may say no. buffers_place has done so. */
void buffers_large_pages(ggml_backend_buffer_t buf);

uint64_t buffers_bytes(const struct buffers *b);
void buffers_free(struct buffers *b);

#endif
