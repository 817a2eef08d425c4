/* SPDX-License-Identifier: MIT
 *
 * A walk over the raw header of one GGUF file before ggml's reader sees it. It decides what is refused and says why,
 * with the name and the byte: ggml aborts on some malformed headers, takes quadratic time or much memory for others,
 * and tells its reasons only to a log. What passes here is small enough and well-formed. Pure function.
 */
#ifndef KVASIR_MODEL_GGUF_SCAN_H
#define KVASIR_MODEL_GGUF_SCAN_H

#include "base/err.h"

#include <stddef.h>

/* Far beyond any real model; ggml compares each name with all before it. */
#define GGUF_SCAN_MAX_KEYS         8192u
#define GGUF_SCAN_MAX_TENSORS      16384u
#define GGUF_SCAN_MAX_STRINGS      (1u << 22) /* in one array */
#define GGUF_SCAN_MAX_HEADER_BYTES (512u << 20)
#define GGUF_SCAN_MAX_ALIGNMENT    65536u
#define GGUF_SCAN_MAX_BYTES        (GGUF_SCAN_MAX_HEADER_BYTES + GGUF_SCAN_MAX_ALIGNMENT) /* no more is looked at */
#define GGUF_SCAN_MAX_NAME         63u                                                    /* bytes of a tensor's name */

/* A tensor type as the file numbers it: elements and bytes of one block; both 0 for a type that does not exist. */
struct gguf_scan_type {
    uint32_t n_elements, n_bytes;
};
typedef struct gguf_scan_type (*gguf_scan_type_fn)(uint32_t type);

/* data: the first len bytes of a file of file_len bytes. need NULL: all of it, or at least GGUF_SCAN_MAX_BYTES. Else
 * *need: 0: the header is in it; or how many bytes to look at instead to know more (more than len, at most twice that
 * or what is certainly or likely needed, never more than the file has). ERR_FORMAT, ERR_LIMIT, ERR_UNSUPPORTED
 * (version), ERR_NOMEM; the message does not name the file. */
enum err_code gguf_scan(const void *data, size_t len, uint64_t file_len, gguf_scan_type_fn types, uint64_t *need,
                        struct err *e) KV_MUST_USE;

#endif
