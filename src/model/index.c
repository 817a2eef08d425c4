/* SPDX-License-Identifier: MIT
 *
 * Digests of tensors, the model id, its cache and the *.kvi text (docs/manifest.md has each encoding byte by byte).
 * Tensors are read with pread in pieces, in the order they lie in the files: the page cache may hold a file, this
 * process never does. A cache is believed only when its checksum fits and the files' stamps are the same.
 */
#include "model/index.h"

#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "model/hparams.h"

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
static const char id_label[] = "kvasir model id 1";

void index_fini(struct index *x)
{
    free(x->tensor_digest);
    *x = (struct index){0};
}

/* --- orders --- */

struct ordered {
    const struct gguf_tensor *t;
    const char *key;
    size_t at; /* number of the tensor or key in the gguf */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ordered *)a)->key, ((const struct ordered *)b)->key);
}

static int by_place(const void *a, const void *b)
{
    const struct gguf_tensor *x = ((const struct ordered *)a)->t, *y = ((const struct ordered *)b)->t;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static enum err_code tensors_ordered(const struct gguf *g, int (*order)(const void *, const void *),
                                     struct ordered **out, struct err *e)
{
    size_t n = gguf_n_tensors(g);
    struct ordered *v = calloc(n ? n : 1, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        v[i].t = gguf_tensor_at(g, i);
        v[i].key = v[i].t->name;
        v[i].at = i;
    }
    qsort(v, n, sizeof *v, order);
    *out = v;
    return OK;
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
    struct ordered *v = NULL;
    enum err_code rc = tensors_ordered(r->g, by_place, &v, e);
    for (size_t i = 0; rc == OK && i < x->n_tensors; i++)
        rc = tensor_digest(r, v[i].t, x->tensor_digest[v[i].at], e);
    if (rc == OK)
        rc = tell(r, e);
    free(v);
    return rc;
}

/* --- the model id --- */

static void put_u64(struct digest_state *d, uint64_t v)
{
    uint8_t p[8];
    le_put_u64(p, v);
    digest_put(d, p, sizeof p);
}

static void put_sized(struct digest_state *d, const void *data, size_t len)
{
    put_u64(d, len);
    digest_put(d, data, len);
}

/* How the file was cut is no part of what the model is. */
static bool key_counts(const char *key)
{
    return strncmp(key, "split.", 6) != 0 && strncmp(key, "kvasir.", 7) != 0;
}

static enum err_code put_metadata(struct digest_state *d, const struct gguf *g, struct err *e)
{
    size_t n = 0, n_kv = gguf_n_kv(g);
    struct buf value = {0};
    struct ordered *keys = calloc(n_kv ? n_kv : 1, sizeof *keys);
    if (!keys)
        return err_set(e, ERR_NOMEM, "out of memory for %zu keys", n_kv);
    for (size_t i = 0; i < n_kv; i++)
        if (key_counts(gguf_key(g, i)))
            keys[n++] = (struct ordered){.key = gguf_key(g, i), .at = i};
    qsort(keys, n, sizeof *keys, by_name);
    put_u64(d, n);
    enum err_code rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        buf_clear(&value);
        rc = gguf_value_bytes(g, keys[i].at, &value, e);
        if (rc != OK)
            break;
        put_sized(d, keys[i].key, strlen(keys[i].key));
        put_sized(d, value.data, value.len);
    }
    buf_free(&value);
    free(keys);
    return rc;
}

static enum err_code put_tensors(struct digest_state *d, const struct gguf *g, const struct index *x, struct err *e)
{
    struct ordered *v = NULL;
    enum err_code rc = tensors_ordered(g, by_name, &v, e);
    if (rc != OK)
        return rc;
    put_u64(d, x->n_tensors);
    for (size_t i = 0; i < x->n_tensors; i++) {
        const struct gguf_tensor *t = v[i].t;
        put_sized(d, t->name, strlen(t->name));
        put_u64(d, (uint64_t)t->type);
        for (int k = 0; k < 4; k++)
            put_u64(d, (uint64_t)t->ne[k]);
        digest_put(d, x->tensor_digest[v[i].at], DIGEST_BYTES);
    }
    free(v);
    return OK;
}

static enum err_code model_id(const struct gguf *g, struct index *x, struct err *e)
{
    struct digest_state d;
    digest_begin(&d);
    put_sized(&d, id_label, sizeof id_label - 1);
    enum err_code rc = put_metadata(&d, g, e);
    if (rc == OK)
        rc = put_tensors(&d, g, x, e);
    if (rc == OK)
        digest_end(&d, x->model_id);
    return rc;
}

static enum err_code index_alloc(const struct gguf *g, struct index *x, struct err *e)
{
    *x = (struct index){.n_tensors = gguf_n_tensors(g)};
    x->tensor_digest = calloc(x->n_tensors ? x->n_tensors : 1, sizeof *x->tensor_digest);
    return x->tensor_digest ? OK : err_set(e, ERR_NOMEM, "out of memory for %zu digests", x->n_tensors);
}

enum err_code index_compute(const struct gguf *g, index_progress *progress, void *ctx, struct index *out, struct err *e)
{
    struct index x = {0};
    struct reader r = {.g = g, .progress = progress, .ctx = ctx};
    if (gguf_n_files(g) == 0 || gguf_fd(g, 0) < 0)
        return err_set(e, ERR_ARG, "%s: an index is made of files", gguf_path(g));
    enum err_code rc = index_alloc(g, &x, e);
    if (rc != OK)
        return rc;
    for (size_t i = 0; i < x.n_tensors; i++)
        r.total += gguf_tensor_at(g, i)->size;
    r.piece = malloc(PIECE_BYTES);
    if (!r.piece)
        rc = err_set(e, ERR_NOMEM, "out of memory for %u bytes", PIECE_BYTES);
    if (rc == OK)
        rc = digests_read(&r, &x, e);
    if (rc == OK)
        rc = model_id(g, &x, e);
    free(r.piece);
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
        for (size_t k = 0; k < STAMP_WORDS; k++)
            put_u64(&d, words[k]);
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

/* --- the *.kvi text --- */

static void put_key(struct buf *out, const char *before, const char *key)
{
    buf_printf(out, "%s\"%s\":", before, key);
}

static void put_numbers_u32(struct buf *out, const uint32_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%u", i ? "," : "[", v[i]);
    buf_puts(out, n ? "]" : "[]");
}

static void put_numbers_u64(struct buf *out, const uint64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%llu", i ? "," : "[", (unsigned long long)v[i]);
    buf_puts(out, n ? "]" : "[]");
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static enum err_code put_text(struct buf *out, const char *what, const char *s, struct err *e)
{
    char clean[80];
    if (!text_valid(s, strlen(s)))
        return err_set(e, ERR_FORMAT, "%s \"%s\" is not UTF-8", what, text_clean(s, strlen(s), clean, sizeof clean));
    text_put_json(out, s, strlen(s));
    return OK;
}

static enum err_code put_files(struct buf *out, const struct gguf *g, struct err *e)
{
    put_key(out, ",", "files");
    buf_puts(out, "[");
    for (uint32_t i = 0; i < gguf_n_files(g); i++) {
        put_key(out, i ? ",{" : "{", "name");
        enum err_code rc = put_text(out, "the file name", base_name(gguf_file_path(g, i)), e);
        if (rc != OK)
            return rc;
        buf_printf(out, ",\"size\":%llu}", (unsigned long long)gguf_file_size(g, i));
    }
    buf_puts(out, "]");
    return OK;
}

static enum err_code put_tensor_list(struct buf *out, const struct gguf *g, const struct index *x, struct err *e)
{
    char hex[DIGEST_HEX_SIZE];
    struct ordered *v = NULL;
    enum err_code rc = tensors_ordered(g, by_name, &v, e);
    put_key(out, ",", "tensors");
    buf_puts(out, "[");
    for (size_t i = 0; i < x->n_tensors && rc == OK; i++) {
        const struct gguf_tensor *t = v[i].t;
        size_t dims = 4;
        buf_printf(out, "%s{\"blake2b\":\"%s\",\"file\":%u,\"name\":", i ? "," : "",
                   digest_hex(x->tensor_digest[v[i].at], hex), t->file);
        rc = put_text(out, "the tensor name", t->name, e);
        buf_printf(out, ",\"offset\":%llu,\"shape\":[", (unsigned long long)t->offset);
        while (dims > 1 && t->ne[dims - 1] == 1)
            dims--;
        for (size_t k = 0; k < dims; k++)
            buf_printf(out, "%s%lld", k ? "," : "", (long long)t->ne[k]);
        buf_printf(out, "],\"size\":%llu,\"type\":%d}", (unsigned long long)t->size, t->type);
    }
    buf_puts(out, "]");
    free(v);
    return rc;
}

/* The keys from head_dim_k to nextn_bytes, sorted. */
static void put_middle(struct buf *out, const struct hparams *h, const struct model_sizes *s, const struct index *x)
{
    char hex[DIGEST_HEX_SIZE];
    buf_printf(out, ",\"global_bytes\":%llu,\"head_bytes\":%llu", (unsigned long long)s->global_bytes,
               (unsigned long long)s->head_bytes);
    buf_printf(out, ",\"head_dim_k\":%u,\"head_dim_v\":%u,\"kvasir_index\":1,\"model_id\":\"%s\"", h->head_dim_k,
               h->head_dim_v, digest_hex(x->model_id, hex));
    buf_printf(out, ",\"n_block\":%u,\"n_ctx_train\":%u,\"n_embd\":%u,\"n_expert\":%u,\"n_expert_used\":%u", h->n_block,
               h->n_ctx_train, h->n_embd, h->n_expert, h->n_expert_used);
    put_key(out, ",", "n_ff");
    put_numbers_u32(out, h->n_ff, h->n_block);
    put_key(out, ",", "n_head");
    put_numbers_u32(out, h->n_head, h->n_block);
    put_key(out, ",", "n_head_kv");
    put_numbers_u32(out, h->n_head_kv, h->n_block);
    buf_printf(out, ",\"n_nextn\":%u,\"n_vocab\":%u", h->n_nextn, h->n_vocab);
}

enum err_code index_write(const struct gguf *g, const struct hparams *h, const struct model_sizes *s,
                          const struct index *x, struct buf *out, struct err *e)
{
    const char *name = "";
    size_t mark = out->len;
    if (x->n_tensors != gguf_n_tensors(g))
        return err_set(e, ERR_ARG, "an index of %zu tensors, the model has %zu", x->n_tensors, gguf_n_tensors(g));
    enum err_code rc = gguf_opt_str(g, "general.name", &name, e);
    if (rc != OK)
        return rc;
    put_key(out, "{", "arch");
    rc = put_text(out, "the architecture", h->arch, e);
    put_key(out, ",", "block_bytes");
    put_numbers_u64(out, s->block_bytes, s->n_block);
    buf_printf(out, ",\"embd_bytes\":%llu", (unsigned long long)s->embd_bytes);
    if (rc == OK)
        rc = put_files(out, g, e);
    put_middle(out, h, s, x);
    put_key(out, ",", "name");
    if (rc == OK)
        rc = put_text(out, "the model's name", name, e);
    buf_printf(out, ",\"nextn_bytes\":%llu", (unsigned long long)s->nextn_bytes);
    if (rc == OK)
        rc = put_tensor_list(out, g, x, e);
    buf_printf(out, ",\"tied\":%s}", s->tied ? "true" : "false");
    if (rc == OK && out->failed)
        rc = err_set(e, ERR_NOMEM, "out of memory for the index's text");
    if (rc != OK && out->len > mark)
        out->len = mark;
    return rc;
}
