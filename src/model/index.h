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
 * with name, type, shape and digest; so a split file and its whole have one id. */
enum err_code index_compute(const struct gguf *g, index_progress *progress, void *ctx, struct index *out,
                            struct err *e) KV_MUST_USE;

/* As index_compute, but remembers the result in Kvasir's cache folder, keyed by each file's device, inode, size, mtime
 * and ctime; a cache that cannot be read or written is only logged. Files that changed within the last seconds are not
 * remembered: their stamps might not show the next change. progress is not called on a hit. */
enum err_code index_cached(const struct gguf *g, index_progress *progress, void *ctx, struct index *out,
                           struct err *e) KV_MUST_USE;

/* Canonical JSON (*.kvi): model id, metadata summary, tensors {name,type,shape,file,offset,size,blake2b}, per-block
 * sizes. */
struct hparams;
struct model_sizes;
enum err_code index_write(const struct gguf *g, const struct hparams *h, const struct model_sizes *s,
                          const struct index *x, struct buf *out, struct err *e) KV_MUST_USE;

#endif
