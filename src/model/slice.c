/* SPDX-License-Identifier: MIT
 *
 * Stage files: which tensors of a model they hold and where, and their bytes, on demand or into a file. The header is
 * written out by hand, in the order of the source, so that it depends on the model and the window alone.
 */
#include "model/slice.h"

#include "base/io.h"
#include "model/gguf_scan.h"
#include "model/ident.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE_BYTES   (2u << 20)
#define DEFAULT_ALIGN 32u
#define GGUF_VERSION  3u
#define N_OWN_KEYS    4u

enum { TYPE_U8 = 0, TYPE_U32 = 4, TYPE_STRING = 8, TYPE_ARRAY = 9 }; /* of GGUF values */

/* --- which tensors --- */

/* What decides which tensors a window needs. */
struct wants {
    const struct hparams *h;
    struct model_window w;
};

struct source {
    const struct gguf *g;
    struct slice_label label;
    const uint8_t *list; /* of all the model's tensors; NULL: not known */
    size_t list_len;
    struct buf made;            /* the list, where it was made here */
    struct ident_tensor *lines; /* of a stage file's list */
    size_t n_lines;
    uint8_t id[DIGEST_BYTES];
};

static enum err_code wanted(const struct wants *w, const char *name, bool *out, struct err *e)
{
    enum model_part part;
    enum err_code rc = model_part_of(w->h, name, &part, e);
    if (rc == OK)
        *out = model_window_use(&w->w, part, (uint32_t)gguf_block_of(name)) != MODEL_ABSENT;
    return rc;
}

/* Is the tensor in the model, of which the source may be a part? */
static bool source_has(const void *ctx, const char *name)
{
    const struct source *s = ctx;
    return s->lines ? ident_find(s->lines, s->n_lines, name) != NULL : gguf_tensor_find(s->g, name) != NULL;
}

static enum err_code lacks(const struct source *s, const struct wants *w, const char *what, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "%s lacks %s, which a stage file of [%u,%u) must have", gguf_path(s->g), what,
                   w->w.first, w->w.end);
}

/* Nothing of a listed model may be missing; of another each block must have something, and both ends what they need. */
static enum err_code complete(const struct source *s, const struct wants *w, struct err *e)
{
    char name[IDENT_NAME_SIZE];
    bool want = false;
    for (size_t i = 0; i < s->n_lines; i++) {
        enum err_code rc = wanted(w, ident_name(&s->lines[i], name), &want, e);
        if (rc != OK)
            return rc;
        if (want && !gguf_tensor_find(s->g, name))
            return lacks(s, w, name, e);
    }
    uint8_t *seen = calloc(w->h->n_block, 1);
    if (!seen)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < gguf_n_tensors(s->g); i++) {
        int32_t block = gguf_tensor_at(s->g, i)->block;
        if (block >= 0 && (uint32_t)block < w->h->n_block)
            seen[block] = 1;
    }
    uint32_t b = w->w.first;
    while (b < w->w.end && seen[b])
        b++;
    free(seen);
    if (b < w->w.end) {
        snprintf(name, sizeof name, "block %u", b);
        return lacks(s, w, name, e);
    }
    if (model_window_use(&w->w, MODEL_TABLE, 0) != MODEL_ABSENT && !gguf_tensor_find(s->g, "token_embd.weight"))
        return lacks(s, w, "token_embd.weight", e);
    if (model_window_use(&w->w, MODEL_HEAD, 0) != MODEL_ABSENT && !gguf_tensor_find(s->g, "output_norm.weight"))
        return lacks(s, w, "output_norm.weight", e);
    return OK;
}

/* --- the source --- */

static enum err_code source_read(struct source *s, const struct gguf *g, const struct index *x, struct err *e)
{
    *s = (struct source){.g = g};
    enum err_code rc = slice_label_read(g, &s->label, e);
    if (rc != OK)
        return rc;
    if (s->label.has_id) {
        rc = gguf_arr_u8(g, IDENT_KEY_TENSORS, &s->list, &s->list_len, e);
        if (rc == OK)
            rc = ident_read(s->list, s->list_len, &s->lines, &s->n_lines, e);
        memcpy(s->id, s->label.model_id, DIGEST_BYTES);
    } else if (x && !s->label.stage_file) {
        rc = ident_put_all(&s->made, g, (const uint8_t(*)[DIGEST_BYTES])x->tensor_digest, e);
        s->list = s->made.data;
        s->list_len = s->made.len;
        memcpy(s->id, x->model_id, DIGEST_BYTES);
    }
    return rc;
}

static void source_fini(struct source *s)
{
    buf_free(&s->made);
    free(s->lines);
}

/* --- the header --- */

static void put_string(struct buf *b, const char *text)
{
    size_t n = strlen(text);
    buf_put_u64(b, n);
    buf_put(b, text, n);
}

static void put_u32_key(struct buf *b, const char *key, uint32_t v)
{
    put_string(b, key);
    buf_put_u32(b, TYPE_U32);
    buf_put_u32(b, v);
}

/* The canonical bytes of a value are those GGUF itself has. */
static enum err_code put_keys(struct slice *out, const struct source *s, struct err *e)
{
    struct buf *b = &out->head;
    for (size_t i = 0; i < gguf_n_kv(s->g); i++) {
        if (!ident_key_counts(gguf_key(s->g, i)))
            continue;
        put_string(b, gguf_key(s->g, i));
        enum err_code rc = gguf_value_bytes(s->g, i, b, e);
        if (rc != OK)
            return rc;
    }
    put_u32_key(b, IDENT_KEY_FIRST, out->first);
    put_u32_key(b, IDENT_KEY_END, out->end);
    if (s->list) {
        char hex[DIGEST_HEX_SIZE];
        put_string(b, IDENT_KEY_ID);
        buf_put_u32(b, TYPE_STRING);
        put_string(b, digest_hex(s->id, hex));
        put_string(b, IDENT_KEY_TENSORS);
        buf_put_u32(b, TYPE_ARRAY);
        buf_put_u32(b, TYPE_U8);
        buf_put_u64(b, s->list_len);
        buf_put(b, s->list, s->list_len);
    }
    return OK;
}

static uint64_t aligned(uint64_t v, uint32_t align)
{
    return (v + align - 1) / align * align;
}

/* The tensors' lines and their places; `at` counts from the first tensor until the header's length is known. */
static void put_tensors(struct slice *out, uint32_t align)
{
    uint64_t at = 0;
    for (size_t i = 0; i < out->n; i++) {
        const struct gguf_tensor *t = out->pieces[i].src;
        uint32_t dims = 4;
        while (dims > 1 && t->ne[dims - 1] == 1)
            dims--;
        put_string(&out->head, t->name);
        buf_put_u32(&out->head, dims);
        for (uint32_t k = 0; k < dims; k++)
            buf_put_u64(&out->head, (uint64_t)t->ne[k]);
        buf_put_u32(&out->head, (uint32_t)t->type);
        buf_put_u64(&out->head, at);
        out->pieces[i].at = at;
        out->tensor_bytes += t->size;
        at += aligned(t->size, align);
    }
    while (out->head.len % align && !out->head.failed)
        buf_put_u8(&out->head, 0);
    for (size_t i = 0; i < out->n; i++)
        out->pieces[i].at += out->head.len;
    out->size = out->head.len + at;
}

static enum err_code put_head(struct slice *out, const struct source *s, struct err *e)
{
    uint32_t align = DEFAULT_ALIGN;
    uint64_t n_kv = s->list ? N_OWN_KEYS : N_OWN_KEYS - 2;
    enum err_code rc = gguf_opt_u32(s->g, "general.alignment", &align, e);
    if (rc != OK)
        return rc;
    for (size_t i = 0; i < gguf_n_kv(s->g); i++)
        n_kv += ident_key_counts(gguf_key(s->g, i));
    if (n_kv > GGUF_SCAN_MAX_KEYS || out->n > GGUF_SCAN_MAX_TENSORS)
        return err_set(e, ERR_LIMIT, "%s: %llu keys and %zu tensors are too many for a stage file", gguf_path(s->g),
                       (unsigned long long)n_kv, out->n);
    buf_puts(&out->head, "GGUF");
    buf_put_u32(&out->head, GGUF_VERSION);
    buf_put_u64(&out->head, out->n);
    buf_put_u64(&out->head, n_kv);
    rc = put_keys(out, s, e);
    if (rc != OK)
        return rc;
    put_tensors(out, align);
    return out->head.failed ? err_set(e, ERR_NOMEM, "out of memory for a header of %zu bytes", out->head.len) : OK;
}

/* --- the plan --- */

static enum err_code choose(struct slice *out, const struct source *s, const struct wants *w, const struct index *x,
                            struct err *e)
{
    size_t n = gguf_n_tensors(s->g);
    out->pieces = calloc(n ? n : 1, sizeof *out->pieces);
    if (!out->pieces)
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(s->g, i);
        bool want = false;
        enum err_code rc = wanted(w, t->name, &want, e);
        if (rc != OK)
            return rc;
        if (!want)
            continue;
        const struct ident_tensor *line = s->lines ? ident_find(s->lines, s->n_lines, t->name) : NULL;
        out->pieces[out->n++] = (struct slice_piece){.src = t,
                                                     .digest = line ? line->digest
                                                               : x  ? x->tensor_digest[i]
                                                                    : NULL};
    }
    return OK;
}

enum err_code slice_plan(const struct gguf *g, const struct hparams *h, uint32_t first, uint32_t end,
                         const struct index *x, struct slice *out, struct err *e)
{
    struct source s;
    struct slice plan = {.first = first, .end = end};
    struct wants w = {.h = h};
    if (first >= end || end > h->n_block)
        return err_set(e, ERR_RANGE, "the window [%u,%u) is not within the model's %u blocks", first, end, h->n_block);
    if (x && x->n_tensors != gguf_n_tensors(g))
        return err_set(e, ERR_ARG, "an index of %zu tensors, %s has %zu", x->n_tensors, gguf_path(g),
                       gguf_n_tensors(g));
    enum err_code rc = source_read(&s, g, x, e);
    model_window_init(&w.w, h, first, end, source_has, &s);
    if (rc == OK && s.label.stage_file && (first < s.label.first || end > s.label.end))
        rc = err_set(e, ERR_NOT_FOUND, "%s is a stage file of [%u,%u): it does not hold all of [%u,%u)", gguf_path(g),
                     s.label.first, s.label.end, first, end);
    if (rc == OK)
        rc = complete(&s, &w, e);
    if (rc == OK)
        rc = choose(&plan, &s, &w, x, e);
    if (rc == OK)
        rc = put_head(&plan, &s, e);
    source_fini(&s);
    if (rc != OK) {
        slice_fini(&plan);
        return rc;
    }
    *out = plan;
    return OK;
}

void slice_fini(struct slice *s)
{
    buf_free(&s->head);
    free(s->pieces);
    *s = (struct slice){0};
}

/* --- bytes --- */

/* The last piece that begins at or before `offset`; offset is not within the header. */
static const struct slice_piece *piece_at(const struct slice *s, uint64_t offset)
{
    size_t lo = 0, hi = s->n;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->pieces[mid].at <= offset)
            lo = mid;
        else
            hi = mid;
    }
    return &s->pieces[lo];
}

enum err_code slice_read(const struct gguf *g, const struct slice *s, uint64_t offset, void *data, size_t len,
                         struct err *e)
{
    uint8_t *p = data;
    if (offset > s->size || len > s->size - offset)
        return err_set(e, ERR_ARG, "bytes %llu to %llu of a stage file of %llu", (unsigned long long)offset,
                       (unsigned long long)offset + len, (unsigned long long)s->size);
    if (offset < s->head.len) {
        size_t n = len < s->head.len - offset ? len : (size_t)(s->head.len - offset);
        memcpy(p, s->head.data + offset, n);
        p += n;
        offset += n;
        len -= n;
    }
    while (len > 0) {
        const struct slice_piece *piece = piece_at(s, offset);
        uint64_t from = offset - piece->at;
        uint64_t next = piece + 1 < s->pieces + s->n ? piece[1].at : s->size;
        uint64_t left = from < piece->src->size ? piece->src->size - from : next - offset;
        size_t n = len < left ? len : (size_t)left;
        if (from >= piece->src->size) {
            memset(p, 0, n);
        } else {
            enum err_code rc = io_pread_full(gguf_fd(g, piece->src->file), p, n, piece->src->offset + from, e);
            if (rc != OK) {
                err_prefix(e, "%s: tensor %s", gguf_file_path(g, piece->src->file), piece->src->name);
                return rc;
            }
        }
        p += n;
        offset += n;
        len -= n;
    }
    return OK;
}

bool slice_place(const struct slice *s, uint64_t offset, uint32_t *file, uint64_t *at, uint64_t *len)
{
    if (offset < s->head.len || offset >= s->size)
        return false;
    const struct slice_piece *p = piece_at(s, offset);
    uint64_t from = offset - p->at;
    if (from >= p->src->size)
        return false;
    *file = p->src->file;
    *at = p->src->offset + from;
    *len = p->src->size - from;
    return true;
}

struct writer {
    const struct gguf *g;
    const struct slice *s;
    struct io_atomic out;
    uint64_t done;
    uint8_t *piece; /* [PIECE_BYTES] */
    index_progress *progress;
    void *ctx;
};

static enum err_code put(struct writer *w, const void *data, size_t len, struct err *e)
{
    if (!io_write_full(w->out.fd, data, len))
        return err_set_os(e, ERR_IO, errno, "cannot write %s after %llu of %llu bytes", w->out.path,
                          (unsigned long long)w->done, (unsigned long long)w->s->size);
    w->done += len;
    if (w->progress && !w->progress(w->ctx, w->done, w->s->size))
        return err_set(e, ERR_CANCELLED, "writing %s was stopped after %llu of %llu bytes", w->out.path,
                       (unsigned long long)w->done, (unsigned long long)w->s->size);
    return OK;
}

/* A tensor and the zeros behind it, up to `end`. */
static enum err_code put_piece(struct writer *w, const struct slice_piece *p, uint64_t end, struct err *e)
{
    struct digest_state d;
    uint8_t have[DIGEST_BYTES];
    uint64_t tensor_end = p->at + p->src->size;
    digest_begin(&d);
    while (w->done < end) {
        uint64_t left = (w->done < tensor_end ? tensor_end : end) - w->done;
        size_t n = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        bool tensor = w->done < tensor_end;
        enum err_code rc = slice_read(w->g, w->s, w->done, w->piece, n, e);
        if (rc == OK && tensor && p->digest)
            digest_put(&d, w->piece, n);
        if (rc == OK)
            rc = put(w, w->piece, n, e);
        if (rc != OK)
            return rc;
    }
    if (!p->digest)
        return OK;
    digest_end(&d, have);
    if (memcmp(have, p->digest, DIGEST_BYTES) != 0)
        return err_set(e, ERR_MISMATCH, "%s: the bytes of tensor %s are not those of the index",
                       gguf_file_path(w->g, p->src->file), p->src->name);
    return OK;
}

static enum err_code put_all(struct writer *w, struct err *e)
{
    const struct slice *s = w->s;
    enum err_code rc = put(w, s->head.data, s->head.len, e);
    for (size_t i = 0; i < s->n && rc == OK; i++)
        rc = put_piece(w, &s->pieces[i], i + 1 < s->n ? s->pieces[i + 1].at : s->size, e);
    return rc;
}

/* The name of a part of a split model would make readers look for the others; and the source must stay. */
static enum err_code path_check(const struct gguf *g, const char *path, struct err *e)
{
    size_t prefix;
    uint32_t part, count;
    struct stat out, in;
    if (gguf_split_name(path, &prefix, &part, &count))
        return err_set(e, ERR_ARG, "%s is the name of a part of a split model; a stage file needs another", path);
    if (stat(path, &out) != 0)
        return OK;
    if (!S_ISREG(out.st_mode))
        return err_set(e, ERR_ARG, "%s is there and is not a regular file", path);
    for (uint32_t i = 0; i < gguf_n_files(g); i++)
        if (fstat(gguf_fd(g, i), &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return err_set(e, ERR_ARG, "%s is the model itself; a stage file needs another name", path);
    return OK;
}

enum err_code slice_write(const struct gguf *g, const struct slice *s, const char *path, index_progress *progress,
                          void *ctx, struct err *e)
{
    struct writer w = {.g = g, .s = s, .progress = progress, .ctx = ctx};
    if (gguf_fd(g, 0) < 0)
        return err_set(e, ERR_ARG, "%s: a stage file is made of files", gguf_path(g));
    enum err_code rc = path_check(g, path, e);
    if (rc != OK)
        return rc;
    w.piece = malloc(PIECE_BYTES);
    if (!w.piece)
        return err_set(e, ERR_NOMEM, "out of memory for %u bytes", PIECE_BYTES);
    rc = io_atomic_begin(&w.out, path, 0644, e);
    if (rc == OK) {
        rc = put_all(&w, e);
        if (rc == OK)
            rc = io_atomic_commit(&w.out, e);
        else
            io_atomic_abort(&w.out);
    }
    free(w.piece);
    return rc;
}
