/* SPDX-License-Identifier: MIT
 *
 * What a file says it is, and whether that is so: a stage file carries the list of all tensors of its model, from which
 * and from its metadata the model id follows.
 */
#include "model/hparams.h"
#include "model/ident.h"
#include "model/slice.h"

#include <stdlib.h>
#include <string.h>

static enum err_code window_read(const struct gguf *g, struct slice_label *out, struct err *e)
{
    struct err why;
    if (gguf_u32(g, IDENT_KEY_FIRST, &out->first, &why) != OK || gguf_u32(g, IDENT_KEY_END, &out->end, &why) != OK)
        return err_set(e, ERR_FORMAT, "%s: its window: %s", gguf_path(g), why.msg);
    if (out->first >= out->end || out->end > HPARAMS_MAX_BLOCKS)
        return err_set(e, ERR_FORMAT, "%s: its window is [%u,%u), which cannot be", gguf_path(g), out->first, out->end);
    return OK;
}

/* Each of the file's tensors must be on its list. */
static enum err_code tensors_check(const struct gguf *g, const struct ident_tensor *lines, size_t n, struct err *e)
{
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const struct ident_tensor *line = ident_find(lines, n, t->name);
        if (!line || line->type != t->type || memcmp(line->ne, t->ne, sizeof t->ne) != 0)
            return err_set(e, ERR_FORMAT, "%s: tensor %s is %s its list of the model's tensors", gguf_path(g), t->name,
                           line ? "not as in" : "not in");
    }
    return OK;
}

/* The list, checked, with the id that follows from it. *lines is to be freed. */
static enum err_code list_read(const struct gguf *g, struct ident_tensor **lines, size_t *n, uint8_t id[DIGEST_BYTES],
                               struct err *e)
{
    const uint8_t *list;
    const char *text;
    size_t len;
    uint8_t said[DIGEST_BYTES];
    struct err why;
    enum err_code rc = gguf_arr_u8(g, IDENT_KEY_TENSORS, &list, &len, e);
    if (rc == OK)
        rc = ident_read(list, len, lines, n, e);
    if (rc != OK) {
        err_prefix(e, "%s", gguf_path(g));
        return rc;
    }
    if (gguf_str(g, IDENT_KEY_ID, &text, &why) != OK || digest_parse(text, said, &why) != OK)
        rc = err_set(e, ERR_FORMAT, "%s: its model id: %s", gguf_path(g), why.msg);
    if (rc == OK)
        rc = ident_model_id(g, list, len, id, e);
    if (rc == OK && memcmp(said, id, DIGEST_BYTES) != 0)
        rc = err_set(e, ERR_FORMAT, "%s: its model id does not follow from its metadata and list of tensors",
                     gguf_path(g));
    if (rc == OK)
        rc = tensors_check(g, *lines, *n, e);
    if (rc != OK)
        free(*lines);
    return rc;
}

enum err_code slice_label_read(const struct gguf *g, struct slice_label *out, struct err *e)
{
    struct slice_label l = {0};
    enum err_code rc = OK;
    if (gguf_has(g, IDENT_KEY_FIRST) || gguf_has(g, IDENT_KEY_END)) {
        l.stage_file = true;
        rc = window_read(g, &l, e);
        if (rc == OK && gguf_has(g, IDENT_KEY_TENSORS)) {
            struct ident_tensor *lines;
            size_t n;
            rc = list_read(g, &lines, &n, l.model_id, e);
            if (rc == OK)
                free(lines);
            l.has_id = true;
        }
    }
    if (rc == OK)
        *out = l;
    return rc;
}

enum err_code slice_index(const struct gguf *g, struct index *out, struct err *e)
{
    struct ident_tensor *lines;
    size_t n;
    struct index x = {.n_tensors = gguf_n_tensors(g)};
    if (!gguf_has(g, IDENT_KEY_TENSORS))
        return err_set(e, ERR_NOT_FOUND, "%s has no list of its model's tensors: it was made without digests",
                       gguf_path(g));
    enum err_code rc = list_read(g, &lines, &n, x.model_id, e);
    if (rc != OK)
        return rc;
    x.tensor_digest = calloc(x.n_tensors ? x.n_tensors : 1, sizeof *x.tensor_digest);
    for (size_t i = 0; x.tensor_digest && i < x.n_tensors; i++)
        memcpy(x.tensor_digest[i], ident_find(lines, n, gguf_tensor_at(g, i)->name)->digest, DIGEST_BYTES);
    free(lines);
    if (!x.tensor_digest)
        return err_set(e, ERR_NOMEM, "out of memory for %zu digests", x.n_tensors);
    *out = x;
    return OK;
}

/* The digests of a stage file's bytes, as the list has them? */
static enum err_code stage_verify(const struct gguf *g, index_progress *progress, void *ctx, uint8_t id[DIGEST_BYTES],
                                  struct err *e)
{
    struct index want, have;
    enum err_code rc = slice_index(g, &want, e);
    if (rc != OK)
        return rc;
    rc = index_cached(g, progress, ctx, &have, e);
    if (rc == OK) {
        for (size_t i = 0; i < want.n_tensors && rc == OK; i++)
            if (memcmp(want.tensor_digest[i], have.tensor_digest[i], DIGEST_BYTES) != 0)
                rc = err_set(e, ERR_MISMATCH, "%s: the bytes of tensor %s are not those of its model", gguf_path(g),
                             gguf_tensor_at(g, i)->name);
        index_fini(&have);
    }
    if (rc == OK)
        memcpy(id, want.model_id, DIGEST_BYTES);
    index_fini(&want);
    return rc;
}

enum err_code slice_model_id(const struct gguf *g, index_progress *progress, void *ctx, uint8_t id[DIGEST_BYTES],
                             struct err *e)
{
    struct slice_label l;
    struct index x;
    enum err_code rc = slice_label_read(g, &l, e);
    if (rc == OK && l.stage_file)
        return stage_verify(g, progress, ctx, id, e);
    if (rc == OK)
        rc = index_cached(g, progress, ctx, &x, e);
    if (rc != OK)
        return rc;
    memcpy(id, x.model_id, DIGEST_BYTES);
    index_fini(&x);
    return OK;
}
