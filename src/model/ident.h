/* SPDX-License-Identifier: MIT
 *
 * What a model is: the canonical list of its tensors with their digests, and the model id, the digest of metadata and
 * list (docs/manifest.md, "Model id"). For the other files of this room. Pure functions.
 */
#ifndef KVASIR_MODEL_IDENT_H
#define KVASIR_MODEL_IDENT_H

#include "base/buf.h"
#include "crypto/digest.h"
#include "model/gguf.h"

#define IDENT_MAX_TENSORS (1u << 20)

/* Keys of stage files (slice.h). */
#define IDENT_KEY_FIRST   "kvasir.window.first"
#define IDENT_KEY_END     "kvasir.window.end"
#define IDENT_KEY_ID      "kvasir.model.id"
#define IDENT_KEY_TENSORS "kvasir.model.tensors"

/* A tensor of a model and its number in it. */
struct ident_ref {
    const struct gguf_tensor *t;
    size_t at;
};
/* All tensors of g, sorted by name or by file and offset; free(*out). */
enum err_code ident_by_name(const struct gguf *g, struct ident_ref **out, struct err *e) KV_MUST_USE;
enum err_code ident_by_place(const struct gguf *g, struct ident_ref **out, struct err *e) KV_MUST_USE;

/* A line of the list. name is not NUL-terminated where it was read from one. */
struct ident_tensor {
    const char *name;
    size_t name_len;
    int type;
    int64_t ne[4];
    const uint8_t *digest; /* [DIGEST_BYTES] */
};
/* Appends the count, with which a list begins, and a line. Lines must come sorted by name. */
void ident_put_count(struct buf *list, uint64_t n);
void ident_put(struct buf *list, const struct ident_tensor *t);
/* Appends the whole list of g; digests in its order. */
enum err_code ident_put_all(struct buf *list, const struct gguf *g, const uint8_t (*digests)[DIGEST_BYTES],
                            struct err *e) KV_MUST_USE;

/* Takes a list apart; the lines point into data; free(*out). ERR_FORMAT with the offset: cut off, not sorted, a shape
 * or a type that cannot be; ERR_LIMIT; ERR_NOMEM. */
enum err_code ident_read(const void *data, size_t len, struct ident_tensor **out, size_t *n, struct err *e) KV_MUST_USE;
#define IDENT_NAME_SIZE 64
const char *ident_name(const struct ident_tensor *t, char out[IDENT_NAME_SIZE]); /* NUL-terminated; returns out */
/* The line of this name; NULL when there is none. */
const struct ident_tensor *ident_find(const struct ident_tensor *lines, size_t n, const char *name);

/* Does the key say what the model is, rather than how it was cut (split.*, kvasir.*)? */
bool ident_key_counts(const char *key);

/* The id of the model with g's metadata and this list. */
enum err_code ident_model_id(const struct gguf *g, const void *list, size_t len, uint8_t out[DIGEST_BYTES],
                             struct err *e) KV_MUST_USE;

#endif
