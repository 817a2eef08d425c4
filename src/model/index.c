/* SPDX-License-Identifier: MIT
 *
 * Digests of tensors, computed and compared, and their cache (docs/manifest.md has its encoding byte by byte).
 * Tensors are read with pread in pieces, in the order they lie in the files: the page cache may hold a file, this
 * process never does. A cache is believed only when its checksum fits and the files' stamps are the same.
 */
#include "model/index.h"

#include "base/io.h"
#include "base/log.h"
#include "model/ident.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define PIECE_BYTES     (2u << 20)
#define PROGRESS_BYTES  (64u << 20)
#define CACHE_MAX_BYTES (64u << 20)
#define CACHE_FIXED     (8 + 8 + DIGEST_BYTES) /* magic, count, model id; then the digests and a checksum */
#define STAMP_WORDS     7

/* Changes when the model id's encoding does: old caches are then not found valid. */
static const char cache_magic[8] = {'K', 'V', 'I', 'N', 'D', 'E', 'X', '1'};

void index_fini(struct index *x)
{
    free(x->tensor_digest);
    *x = (struct index){0};
}

/* --- digests --- */

struct reader {
    const struct gguf *g;
    index_progress *progress;
    void *ctx;
    uint64_t done, total, told;
    uint8_t *piece; /* [PIECE_BYTES] */
};

static enum err_code tell(struct reader *r, struct err *e)
{
    r->told = r->done;
    if (r->progress && !r->progress(r->ctx, r->done, r->total))
        return err_set(e, ERR_CANCELLED, "the index was stopped after %llu of %llu bytes", (unsigned long long)r->done,
                       (unsigned long long)r->total);
    return OK;
}

static enum err_code tensor_digest(struct reader *r, const struct gguf_tensor *t, uint8_t out[DIGEST_BYTES],
                                   struct err *e)
{
    struct digest_state d;
    digest_begin(&d);
    for (uint64_t at = 0; at < t->size;) {
        size_t n = t->size - at < PIECE_BYTES ? (size_t)(t->size - at) : PIECE_BYTES;
        enum err_code rc = io_pread_full(gguf_fd(r->g, t->file), r->piece, n, t->offset + at, e);
        if (rc != OK) {
            err_prefix(e, "%s: tensor %s", gguf_file_path(r->g, t->file), t->name);
            return rc;
        }
        digest_put(&d, r->piece, n);
        at += n;
        r->done += n;
        if (r->done - r->told >= PROGRESS_BYTES && (rc = tell(r, e)) != OK)
            return rc;
    }
    digest_end(&d, out);
    return OK;
}

static enum err_code digests_read(struct reader *r, struct index *x, struct err *e)
{
    struct ident_ref *v = NULL;
    enum err_code rc = ident_by_place(r->g, &v, e);
    for (size_t i = 0; rc == OK && i < x->n_tensors; i++)
        rc = tensor_digest(r, v[i].t, x->tensor_digest[v[i].at], e);
    if (rc == OK)
        rc = tell(r, e);
    free(v);
    return rc;
}

/* Of a stage file it stays zero: the tensors it has are not all. */
static enum err_code model_id(const struct gguf *g, struct index *x, struct err *e)
{
    struct buf list = {0};
    if (gguf_has(g, IDENT_KEY_FIRST))
        return OK;
    enum err_code rc = ident_put_all(&list, g, (const uint8_t(*)[DIGEST_BYTES])x->tensor_digest, e);
    if (rc == OK)
        rc = ident_model_id(g, list.data, list.len, x->model_id, e);
    buf_free(&list);
    return rc;
}

static enum err_code index_alloc(const struct gguf *g, struct index *x, struct err *e)
{
    *x = (struct index){.n_tensors = gguf_n_tensors(g)};
    x->tensor_digest = calloc(x->n_tensors ? x->n_tensors : 1, sizeof *x->tensor_digest);
    return x->tensor_digest ? OK : err_set(e, ERR_NOMEM, "out of memory for %zu digests", x->n_tensors);
}

static enum err_code reader_init(struct reader *r, const struct gguf *g, index_progress *progress, void *ctx,
                                 struct err *e)
{
    *r = (struct reader){.g = g, .progress = progress, .ctx = ctx};
    if (gguf_n_files(g) == 0 || gguf_fd(g, 0) < 0)
        return err_set(e, ERR_ARG, "%s: an index is made of files", gguf_path(g));
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        r->total += gguf_tensor_at(g, i)->size;
    r->piece = malloc(PIECE_BYTES);
    return r->piece ? OK : err_set(e, ERR_NOMEM, "out of memory for %u bytes", PIECE_BYTES);
}

static void reader_fini(struct reader *r)
{
    free(r->piece);
}

enum err_code index_compute(const struct gguf *g, index_progress *progress, void *ctx, struct index *out, struct err *e)
{
    struct index x = {0};
    struct reader r;
    enum err_code rc = reader_init(&r, g, progress, ctx, e);
    if (rc == OK)
        rc = index_alloc(g, &x, e);
    if (rc == OK)
        rc = digests_read(&r, &x, e);
    if (rc == OK)
        rc = model_id(g, &x, e);
    reader_fini(&r);
    if (rc != OK) {
        index_fini(&x);
        return rc;
    }
    *out = x;
    return OK;
}

/* --- comparing --- */

enum err_code index_verify(const struct gguf *g, const struct index *x, index_progress *progress, void *ctx,
                           struct err *e)
{
    struct reader r;
    struct ident_ref *v = NULL;
    if (x->n_tensors != gguf_n_tensors(g))
        return err_set(e, ERR_ARG, "an index of %zu tensors, %s has %zu", x->n_tensors, gguf_path(g),
                       gguf_n_tensors(g));
    enum err_code rc = reader_init(&r, g, progress, ctx, e);
    if (rc == OK)
        rc = ident_by_place(g, &v, e);
    for (size_t i = 0; i < x->n_tensors && rc == OK; i++) {
        uint8_t d[DIGEST_BYTES];
        rc = tensor_digest(&r, v[i].t, d, e);
        if (rc == OK && memcmp(d, x->tensor_digest[v[i].at], DIGEST_BYTES) != 0)
            rc = err_set(e, ERR_MISMATCH, "%s: the bytes of tensor %s are not those of the index",
                         gguf_file_path(g, v[i].t->file), v[i].t->name);
    }
    if (rc == OK)
        rc = tell(&r, e);
    free(v);
    reader_fini(&r);
    return rc;
}

static const struct index_tensor *file_find(const struct index_file *f, const char *name)
{
    size_t lo = 0, hi = f->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int d = strcmp(f->tensors[mid].name, name);
        if (d == 0)
            return &f->tensors[mid];
        if (d < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* The digests of g's tensors, each of which must be in f. */
static enum err_code match_tensors(const struct index_file *f, const struct gguf *g, struct index *x, struct err *e)
{
    for (size_t i = 0; i < x->n_tensors; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const struct index_tensor *o = file_find(f, t->name);
        if (!o)
            return err_set(e, ERR_MISMATCH, "the index does not have the tensor %s of %s", t->name, gguf_path(g));
        if (o->type != t->type || memcmp(o->ne, t->ne, sizeof o->ne) != 0)
            return err_set(e, ERR_MISMATCH, "the index has tensor %s of another %s than %s", t->name,
                           o->type != t->type ? "type" : "shape", gguf_path(g));
        memcpy(x->tensor_digest[i], o->digest, DIGEST_BYTES);
    }
    return OK;
}

/* Does the model id of f follow from g's metadata and all of f's tensors? */
static enum err_code match_id(const struct index_file *f, const struct gguf *g, struct index *x, struct err *e)
{
    struct buf list = {0};
    ident_put_count(&list, f->n_tensors);
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct index_tensor *o = &f->tensors[i];
        struct ident_tensor line = {.name = o->name, .name_len = strlen(o->name), .type = o->type, .digest = o->digest};
        memcpy(line.ne, o->ne, sizeof line.ne);
        ident_put(&list, &line);
    }
    enum err_code rc = list.failed ? err_set(e, ERR_NOMEM, "out of memory for the list of tensors")
                                   : ident_model_id(g, list.data, list.len, x->model_id, e);
    buf_free(&list);
    if (rc == OK && memcmp(x->model_id, f->model_id, DIGEST_BYTES) != 0)
        rc = err_set(e, ERR_MISMATCH,
                     "the index's model id does not follow from its digests and the metadata of %s: it is of another "
                     "model, or one of them was changed",
                     gguf_path(g));
    return rc;
}

enum err_code index_match(const struct index_file *f, const struct gguf *g, struct index *out, struct err *e)
{
    struct index x;
    enum err_code rc = index_alloc(g, &x, e);
    if (rc != OK)
        return rc;
    rc = match_tensors(f, g, &x, e);
    if (rc == OK && x.n_tensors != f->n_tensors && !gguf_has(g, IDENT_KEY_FIRST))
        rc = err_set(e, ERR_MISMATCH, "the index has %zu tensors, %s only %zu of them", f->n_tensors, gguf_path(g),
                     x.n_tensors);
    if (rc == OK)
        rc = match_id(f, g, &x, e);
    if (rc != OK) {
        index_fini(&x);
        return rc;
    }
    *out = x;
    return OK;
}

/* --- the cache --- */

/* What says that the files are the same: a digest, and how long ago the youngest of them changed. */
struct stamp {
    uint8_t digest[DIGEST_BYTES];
    int64_t youngest_s; /* seconds since the epoch */
};

static enum err_code stamp_read(const struct gguf *g, struct stamp *out, struct err *e)
{
    struct digest_state d;
    digest_begin(&d);
    out->youngest_s = INT64_MIN;
    for (uint32_t i = 0; i < gguf_n_files(g); i++) {
        struct stat st;
        if (fstat(gguf_fd(g, i), &st) != 0)
            return err_set_os(e, ERR_IO, errno, "cannot stat %s", gguf_file_path(g, i));
        const uint64_t words[STAMP_WORDS] = {(uint64_t)st.st_dev,          (uint64_t)st.st_ino,
                                             (uint64_t)st.st_size,         (uint64_t)st.st_mtim.tv_sec,
                                             (uint64_t)st.st_mtim.tv_nsec, (uint64_t)st.st_ctim.tv_sec,
                                             (uint64_t)st.st_ctim.tv_nsec};
        for (size_t k = 0; k < STAMP_WORDS; k++) {
            uint8_t le[8];
            le_put_u64(le, words[k]);
            digest_put(&d, le, sizeof le);
        }
        if (st.st_ctim.tv_sec > out->youngest_s)
            out->youngest_s = st.st_ctim.tv_sec;
        if (st.st_mtim.tv_sec > out->youngest_s)
            out->youngest_s = st.st_mtim.tv_sec;
    }
    digest_end(&d, out->digest);
    return OK;
}

static enum err_code cache_path(const struct stamp *s, char out[PATH_MAX], struct err *e)
{
    char dir[PATH_MAX], hex[DIGEST_HEX_SIZE];
    enum err_code rc = io_cache_dir(dir, e);
    if (rc == OK && snprintf(out, PATH_MAX, "%s/index", dir) >= PATH_MAX)
        rc = err_set(e, ERR_ARG, "the path of the cache folder is too long");
    if (rc == OK)
        rc = io_mkdirs(out, 0700, e);
    if (rc == OK && snprintf(out, PATH_MAX, "%s/index/%s", dir, digest_hex(s->digest, hex)) >= PATH_MAX)
        rc = err_set(e, ERR_ARG, "the path of the cache folder is too long");
    return rc;
}

static enum err_code cache_decode(const struct buf *b, struct index *x, struct err *e)
{
    uint8_t sum[DIGEST_BYTES];
    size_t want = CACHE_FIXED + x->n_tensors * DIGEST_BYTES + DIGEST_BYTES;
    if (b->len != want)
        return err_set(e, ERR_FORMAT, "%zu bytes, not %zu", b->len, want);
    if (memcmp(b->data, cache_magic, sizeof cache_magic) != 0)
        return err_set(e, ERR_FORMAT, "not an index of this version");
    if (le_get_u64(b->data + 8) != x->n_tensors)
        return err_set(e, ERR_FORMAT, "%llu tensors, not %zu", (unsigned long long)le_get_u64(b->data + 8),
                       x->n_tensors);
    digest_of(b->data, want - DIGEST_BYTES, sum);
    if (memcmp(sum, b->data + want - DIGEST_BYTES, DIGEST_BYTES) != 0)
        return err_set(e, ERR_FORMAT, "the checksum does not fit");
    memcpy(x->model_id, b->data + 16, DIGEST_BYTES);
    memcpy(x->tensor_digest, b->data + CACHE_FIXED, x->n_tensors * DIGEST_BYTES);
    return OK;
}

static enum err_code cache_load(const struct gguf *g, const char *path, struct index *out, struct err *e)
{
    struct buf b = {0};
    struct index x = {0};
    enum err_code rc = io_read_file(path, CACHE_MAX_BYTES, &b, e);
    if (rc == OK)
        rc = index_alloc(g, &x, e);
    if (rc == OK)
        rc = cache_decode(&b, &x, e);
    buf_free(&b);
    if (rc != OK) {
        index_fini(&x);
        return rc;
    }
    *out = x;
    return OK;
}

static enum err_code cache_save(const char *path, const struct index *x, struct err *e)
{
    struct buf b = {0};
    uint8_t sum[DIGEST_BYTES];
    buf_put(&b, cache_magic, sizeof cache_magic);
    buf_put_u64(&b, x->n_tensors);
    buf_put(&b, x->model_id, DIGEST_BYTES);
    buf_put(&b, x->tensor_digest, x->n_tensors * DIGEST_BYTES);
    if (b.failed) {
        buf_free(&b);
        return err_set(e, ERR_NOMEM, "out of memory for the cache");
    }
    digest_of(b.data, b.len, sum);
    buf_put(&b, sum, DIGEST_BYTES);
    enum err_code rc =
        b.failed ? err_set(e, ERR_NOMEM, "out of memory for the cache") : io_write_file(path, b.data, b.len, 0600, e);
    buf_free(&b);
    return rc;
}

/* A file may be written again within the tick of its file system's clock, which changes no stamp: results for files
 * that young are not kept. 2 s is the coarsest clock in use (FAT). */
static bool settled(const struct stamp *s)
{
    struct timespec now;
    return clock_gettime(CLOCK_REALTIME, &now) == 0 && (int64_t)now.tv_sec - s->youngest_s > 2;
}

static bool stamps_equal(const struct stamp *a, const struct stamp *b)
{
    return memcmp(a->digest, b->digest, DIGEST_BYTES) == 0;
}

enum err_code index_cached(const struct gguf *g, index_progress *progress, void *ctx, struct index *out, struct err *e)
{
    char path[PATH_MAX];
    struct stamp before, after;
    struct err why;
    if (gguf_n_files(g) == 0 || gguf_fd(g, 0) < 0)
        return index_compute(g, progress, ctx, out, e);
    enum err_code rc = stamp_read(g, &before, e);
    if (rc != OK)
        return rc;
    bool usable = cache_path(&before, path, &why) == OK;
    if (!usable)
        log_warn("index", "no cache: %s", why.msg);
    if (usable) {
        rc = cache_load(g, path, out, &why);
        if (rc == OK)
            return OK;
        if (rc != ERR_NOT_FOUND)
            log_warn("index", "made again: %s: %s", path, why.msg);
    }
    struct index x;
    rc = index_compute(g, progress, ctx, &x, e);
    if (rc != OK)
        return rc;
    bool same = stamp_read(g, &after, &why) == OK && stamps_equal(&before, &after);
    if (!same)
        log_warn("index", "not cached: %s changed meanwhile", gguf_path(g));
    else if (usable && settled(&after) && cache_save(path, &x, &why) != OK)
        log_warn("index", "not cached: %s", why.msg);
    *out = x;
    return OK;
}
