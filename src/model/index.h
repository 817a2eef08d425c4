/* SPDX-License-Identifier: MIT
 *
 * The index of a model: BLAKE2b-256 of every tensor and the model id, which identifies a model by its content and never
 * by name or size. Computing it reads the files once.
 */
#ifndef KVASIR_MODEL_INDEX_H
#define KVASIR_MODEL_INDEX_H

#include "base/buf.h"
#include "crypto/digest.h"
#include "model/gguf.h"

struct index {
    uint8_t model_id[DIGEST_BYTES];
    size_t n_tensors;
    uint8_t (*tensor_digest)[DIGEST_BYTES]; /* [n_tensors], in the order of the gguf */
};
void index_fini(struct index *x);

/* Called now and then with the bytes done and in all; return false to stop (ERR_CANCELLED). */
typedef bool index_progress(void *ctx, uint64_t done, uint64_t total);

/* Reads every tensor of g through pread. The model id is the digest of a canonical encoding (docs/manifest.md): the
 * metadata keys sorted (without split.* and kvasir.*), each with its value bytes, then the tensors sorted by name, each
 * with name, type, shape and digest; so a split file and its whole have one id. Of a stage file the id is zero: see
 * slice_model_id. */
enum err_code index_compute(const struct gguf *g, index_progress *progress, void *ctx, struct index *out,
                            struct err *e) KV_MUST_USE;

/* As index_compute, but remembers the result in Kvasir's cache folder, keyed by each file's device, inode, size, mtime
 * and ctime; a cache that cannot be read or written is only logged. Files that changed within the last seconds are not
 * remembered: their stamps might not show the next change. progress is not called on a hit. */
enum err_code index_cached(const struct gguf *g, index_progress *progress, void *ctx, struct index *out,
                           struct err *e) KV_MUST_USE;

/* Of a model, not of a stage file (ERR_ARG). Canonical JSON (*.kvi): model id, metadata summary, tensors
 * {name,type,shape,file,offset,size,blake2b}, per-block sizes. */
struct hparams;
struct model_sizes;
enum err_code index_write(const struct gguf *g, const struct hparams *h, const struct model_sizes *s,
                          const struct index *x, struct buf *out, struct err *e) KV_MUST_USE;

/* An index read back from its JSON: from a file or a server, so everything in it is checked. */
struct index_tensor {
    const char *name;
    int64_t ne[4];
    int type;
    uint32_t file;
    uint64_t offset, size;
    uint8_t digest[DIGEST_BYTES];
};
struct index_file {
    uint8_t model_id[DIGEST_BYTES];
    size_t n_files, n_tensors;
    struct index_part {
        const char *name; /* without folders */
        uint64_t size;
    } *files;
    struct index_tensor *tensors; /* sorted by name */
    void *text;                   /* owns the strings */
};
#define INDEX_MAX_TEXT (16u << 20) /* bytes of a longer one are not looked at; about 4 MB are usual at most */
/* ERR_FORMAT and ERR_RANGE say at which tensor or field; ERR_UNSUPPORTED for another version; ERR_LIMIT; ERR_NOMEM. */
enum err_code index_read(const void *json, size_t len, struct index_file *out, struct err *e) KV_MUST_USE;
void index_file_fini(struct index_file *f);

/* The digests of f in g's order, when f is the index of g: same tensors, shapes, types, and the model id follows from
 * g's metadata and the digests. Offsets and file names may differ (another split); a stage file (slice.h) has some of
 * the tensors. ERR_MISMATCH says what differs. */
enum err_code index_match(const struct index_file *f, const struct gguf *g, struct index *out,
                          struct err *e) KV_MUST_USE;

/* Reads g's tensors and compares each with x. ERR_MISMATCH names the first tensor that differs and its file. */
enum err_code index_verify(const struct gguf *g, const struct index *x, index_progress *progress, void *ctx,
                           struct err *e) KV_MUST_USE;

#endif
