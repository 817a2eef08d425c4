/* SPDX-License-Identifier: MIT
 *
 * Stage files: an ordinary GGUF v3 that holds the tensors of one window of a model and nothing else, with the whole
 * metadata (tokenizer included). What a stage file contains depends on the model and the window alone, so the same
 * bytes come out wherever it is made, also out of another stage file that holds a larger window.
 *
 * Which tensors: those of the window's blocks; on the first rank the embedding; on the last the output norm, the head
 * and the NextN blocks, and the embedding where it is the head (tied) or NextN blocks have none of their own; on every
 * rank what all need (rope factors). Tensors keep their
 * names and their order. Metadata keeps its order, without split.* and kvasir.*; then come kvasir.window.first and .end
 * (u32), kvasir.model.id (text, hex) and kvasir.model.tensors (array of u8: the canonical list of all the model's
 * tensors with digests, docs/manifest.md). From these the model id can be computed again: a stage file proves by itself
 * which model it is of. The last two are missing when the source's digests were not known.
 */
#ifndef KVASIR_MODEL_SLICE_H
#define KVASIR_MODEL_SLICE_H

#include "base/buf.h"
#include "model/gguf.h"
#include "model/hparams.h"
#include "model/index.h"

struct slice_piece {
    const struct gguf_tensor *src;
    const uint8_t *digest; /* [DIGEST_BYTES] in the index, or in g when that is a stage file; NULL: not known */
    uint64_t at;           /* where its src->size bytes begin in the stage file */
};

struct slice {
    uint32_t first, end;
    struct buf head; /* everything before the first tensor, padding included */
    size_t n;
    struct slice_piece *pieces; /* [n], by rising `at`; bytes between them are zero */
    uint64_t size;              /* of the stage file */
    uint64_t tensor_bytes;      /* without padding */
};

/* What a stage file of [first, end) looks like; no tensor is read. g must outlive out. x: of g, in its order (then it
 * must outlive out), or NULL when digests are not known; not needed when g is itself a stage file with its list. g may
 * have been opened from headers alone. ERR_RANGE (window), ERR_NOT_FOUND (g is
 * itself a stage file and lacks a tensor), ERR_FORMAT, ERR_NOMEM. */
enum err_code slice_plan(const struct gguf *g, const struct hparams *h, uint32_t first, uint32_t end,
                         const struct index *x, struct slice *out, struct err *e) KV_MUST_USE;
void slice_fini(struct slice *s);

/* Bytes [offset, offset + len) of the stage file, read from g's files. ERR_ARG beyond its end; as io_pread_full. */
enum err_code slice_read(const struct gguf *g, const struct slice *s, uint64_t offset, void *data, size_t len,
                         struct err *e) KV_MUST_USE;

/* Where the bytes of the stage file from offset on lie in g's files, as far as they do: those of one tensor. false:
 * they are of the header or padding, or beyond the end. */
bool slice_place(const struct slice *s, uint64_t offset, uint32_t *file, uint64_t *at, uint64_t *len);

/* Writes the stage file through a temporary name; digests, where known, are checked on the way: ERR_MISMATCH names the
 * tensor. ERR_CANCELLED when progress says so. ERR_ARG: path is g's own file, or has the name of a part of a split
 * model. Nothing is left behind when it fails. */
enum err_code slice_write(const struct gguf *g, const struct slice *s, const char *path, index_progress *progress,
                          void *ctx, struct err *e) KV_MUST_USE;

/* What a file says it is. */
struct slice_label {
    bool stage_file;     /* else all of a model */
    uint32_t first, end; /* of a stage file */
    bool has_id;
    uint8_t model_id[DIGEST_BYTES]; /* computed again from its list of tensors, never only believed */
};
/* ERR_FORMAT: its id does not follow from its metadata and list. */
enum err_code slice_label_read(const struct gguf *g, struct slice_label *out, struct err *e) KV_MUST_USE;

/* The digests of a stage file's own tensors, in g's order, from its list. ERR_NOT_FOUND when it has none. */
enum err_code slice_index(const struct gguf *g, struct index *out, struct err *e) KV_MUST_USE;

/* The id of the model that g is, or is a stage file of; the bytes of all of g's tensors were looked at, now or when
 * index_cached did. ERR_MISMATCH names a tensor of a stage file that is not the model's; ERR_NOT_FOUND: a stage file
 * without its list, which can be of any model. */
enum err_code slice_model_id(const struct gguf *g, index_progress *progress, void *ctx, uint8_t id[DIGEST_BYTES],
                             struct err *e) KV_MUST_USE;

#endif
