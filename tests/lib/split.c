/* SPDX-License-Identifier: MIT */
#include "lib/split.h"

#include <ggml.h>
#include <gguf.h>
#include <limits.h>
#include <stdio.h>

/* Tensors [from, to) of the whole, with all metadata if it is the first. */
static bool write_part(const struct gguf_context *whole, struct ggml_context *data, const char *path, uint32_t no,
                       uint32_t n_parts, int64_t from, int64_t to)
{
    struct gguf_context *part = gguf_init_empty();
    if (!part)
        return false;
    if (no == 0)
        gguf_set_kv(part, whole);
    gguf_set_val_u16(part, "split.no", (uint16_t)no);
    gguf_set_val_u16(part, "split.count", (uint16_t)n_parts);
    gguf_set_val_i32(part, "split.tensors.count", (int32_t)gguf_get_n_tensors(whole));
    for (int64_t i = from; i < to; i++)
        gguf_add_tensor(part, ggml_get_tensor(data, gguf_get_tensor_name(whole, i)));
    const bool ok = gguf_write_to_file(part, path, false);
    gguf_free(part);
    return ok;
}

enum err_code split_gguf(const char *path, const char *stem, uint32_t n_parts, struct err *e)
{
    struct ggml_context *data = NULL;
    struct gguf_context *whole = gguf_init_from_file(path, (struct gguf_init_params){.no_alloc = false, .ctx = &data});
    char out[PATH_MAX];
    enum err_code rc = OK;
    if (!whole)
        return err_set(e, ERR_FORMAT, "%s cannot be read", path);
    const int64_t n = gguf_get_n_tensors(whole);
    for (uint32_t i = 0; i < n_parts && rc == OK; i++) {
        if (snprintf(out, sizeof out, "%s-%05u-of-%05u.gguf", stem, i + 1, n_parts) >= (int)sizeof out)
            rc = err_set(e, ERR_ARG, "the path is too long");
        else if (!write_part(whole, data, out, i, n_parts, n * i / n_parts, n * (i + 1) / n_parts))
            rc = err_set(e, ERR_IO, "cannot write %s", out);
    }
    gguf_free(whole);
    ggml_free(data);
    return rc;
}
