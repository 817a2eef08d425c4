/* SPDX-License-Identifier: MIT
 *
 * A model on web servers: its places, its headers, its index, and which origin is asked. What goes over the wire is in
 * remote_http.c.
 */
#include "shard/remote.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "shard/remote_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS       5000u
#define IDLE_MS          30000u
#define N_RETRIES        4u
#define FIRST_BYTES      (4u << 10)  /* of a file, asked for at first: no header worth the name is smaller */
#define SMALL_STEPS      3u          /* so many requests go on in small steps */
#define LARGE_STEPS      6u          /* from that request on it goes on in large ones */
#define MAX_HEAD_BYTES   (32u << 20) /* an index that says a header is longer is not believed */
#define MAX_URL          4096u
#define CHUNK_BYTES      (512u << 10) /* of a body, handed over at once */
#define WINDOW_BYTES     (2u << 20)   /* on the way: what a killed pull loses of each connection */
#define ALL_CHUNK_BYTES  (8u << 20)   /* of all readers */
#define ALL_WINDOW_BYTES (24u << 20)
#define WHERE_SIZE       256 /* of the place of an index, for messages */

/* --- places --- */

/* Part i of n of the split model that url is a part of; n 1: url itself. suffix goes behind the path. */
static char *part_url(const char *url, uint32_t i, uint32_t n, const char *suffix)
{
    struct buf b = {0};
    char path[MAX_URL], *out = NULL;
    size_t prefix = 0;
    uint32_t part, count;
    const size_t len = strcspn(url, "?#");
    const char *query = url[len] == '?' ? url + len : "";
    snprintf(path, sizeof path, "%.*s", (int)len, url);
    if (n > 1 && gguf_split_name(path, &prefix, &part, &count))
        buf_printf(&b, "%.*s-%05u-of-%05u.gguf", (int)prefix, path, i + 1, count);
    else
        buf_puts(&b, path);
    buf_puts(&b, suffix);
    buf_printf(&b, "%.*s", (int)strcspn(query, "#"), query);
    if (!b.failed)
        out = strdup(buf_str(&b));
    buf_free(&b);
    return out;
}

static char *name_of(const char *url)
{
    const size_t len = strcspn(url, "?#");
    const char *slash = memrchr(url, '/', len);
    const char *name = slash ? slash + 1 : url;
    const size_t n = (size_t)(url + len - name);
    char *out = malloc(n + 1);
    if (out)
        text_clean(name, n, out, n + 1);
    return out;
}

/* How many files the model at url consists of. */
static enum err_code count_parts(const char *url, uint32_t *n, struct err *e)
{
    char path[MAX_URL];
    size_t prefix;
    uint32_t part;
    const size_t len = strcspn(url, "?#");
    if (strlen(url) >= MAX_URL - 32)
        return err_set(e, ERR_ARG, "a URL has at most %u bytes", MAX_URL - 32);
    if (!text_printable(url, strlen(url)) || strchr(url, ' '))
        return err_set(e, ERR_ARG, "a URL has no spaces or control characters in it");
    snprintf(path, sizeof path, "%.*s", (int)len, url);
    if (!gguf_split_name(path, &prefix, &part, n))
        *n = 1;
    return OK;
}

static enum err_code add_origin(struct remote *r, const char *url, struct err *e)
{
    struct remote_origin *o = &r->origins[r->n_origins];
    uint32_t n;
    enum err_code rc = http_url_host(url, o->host, e);
    if (rc == OK)
        rc = count_parts(url, &n, e);
    if (rc != OK)
        return rc;
    if (r->n_origins == 0)
        r->n_files = n;
    if (n != r->n_files)
        return err_set(e, ERR_ARG, "the URLs are of the same files: %s has %u of them, %s has %u", r->origins[0].host,
                       r->n_files, o->host, n);
    o->places = calloc(n, sizeof *o->places);
    r->n_origins++;
    for (uint32_t i = 0; o->places && i < n; i++)
        if (!(o->places[i].url = part_url(url, i, n, "")))
            return err_set(e, ERR_NOMEM, "out of memory");
    return o->places ? OK : err_set(e, ERR_NOMEM, "out of memory");
}

static enum err_code add_files(struct remote *r, struct err *e)
{
    r->files = calloc(r->n_files, sizeof *r->files);
    for (uint32_t i = 0; r->files && i < r->n_files; i++) {
        r->files[i].head_need = FIRST_BYTES;
        if (!(r->files[i].name = name_of(r->origins[0].places[i].url)))
            return err_set(e, ERR_NOMEM, "out of memory");
    }
    return r->files ? OK : err_set(e, ERR_NOMEM, "out of memory");
}

/* --- which origin --- */

/* The first that may be asked and was not yet (`tried` is a set of bits); those that were down lately come last.
 * n_origins: none. */
static uint32_t pick(const struct remote *r, uint32_t tried)
{
    const uint64_t now = clock_now_ns();
    uint32_t second = r->n_origins;
    for (uint32_t i = 0; i < r->n_origins; i++) {
        const struct remote_origin *o = &r->origins[i];
        if ((tried >> i & 1) || atomic_load(&o->distrusted))
            continue;
        if (atomic_load(&o->down_until_ns) <= now)
            return i;
        if (second == r->n_origins)
            second = i;
    }
    return second;
}

static enum err_code ask_some(struct remote_reader *x, struct remote_want *w, struct err *e)
{
    struct remote *r = x->r;
    struct err mine;
    enum err_code rc = err_set(&mine, ERR_MISMATCH, "no origin is left: each sent wrong bytes");
    for (uint32_t tried = 0;;) {
        const uint32_t i = pick(r, tried);
        if (i == r->n_origins)
            break;
        tried |= 1u << i;
        const uint32_t next = pick(r, tried);
        uint32_t down_ms = 0;
        rc = remote_ask(x, i, w, next < r->n_origins, &down_ms, &mine);
        if (rc == OK || rc == ERR_CANCELLED || rc == ERR_NOMEM)
            break;
        atomic_store(&r->origins[i].down_until_ns,
                     down_ms == UINT32_MAX ? UINT64_MAX : clock_now_ns() + down_ms * CLOCK_NS_PER_MS);
        if (next < r->n_origins)
            log_warn("pull", "%s; asking %s instead", mine.msg, r->origins[next].host);
    }
    if (rc != OK && e)
        *e = mine;
    return rc;
}

enum err_code remote_read(struct remote_reader *x, uint32_t file, uint64_t offset, uint64_t len,
                          bool (*put)(void *ctx, const void *data, size_t len), void *ctx, uint32_t *origin,
                          struct err *e)
{
    const struct remote *r = x->r;
    const struct remote_file *f = file < r->n_files ? &r->files[file] : NULL;
    if (!f || offset > f->size || len > f->size - offset)
        return err_set(e, ERR_ARG, "bytes are asked for that are not in the file");
    struct remote_want w = {.file = file, .at = offset, .end = offset + len, .put = put, .ctx = ctx, .origin = origin};
    const bool of_one = (f->head_from & (f->head_from - 1)) == 0; /* else nobody could be blamed for them */
    if (offset < f->head.len && len > 0 && of_one && !atomic_load(&r->origins[f->head_origin].distrusted)) {
        const uint64_t left = f->head.len - offset, n = left < len ? left : len; /* came with the header */
        *origin = f->head_origin;
        if (!put(ctx, f->head.data + offset, (size_t)n))
            return err_set(e, ERR_CANCELLED, "reading was stopped");
        w.at += n;
    }
    return ask_some(x, &w, e);
}

bool remote_distrust(struct remote *r, uint32_t origin)
{
    if (origin < r->n_origins)
        atomic_store(&r->origins[origin].distrusted, true);
    return pick(r, 0) < r->n_origins;
}

/* --- headers --- */

static bool put_head(void *ctx, const void *data, size_t len)
{
    struct remote_file *f = ctx;
    f->head_from |= 1u << f->head_origin;
    buf_put(&f->head, data, len);
    return !f->head.failed;
}

/* Where to stop the next time. need is at least twice what is here, which is much when little is missing: at first the
 * steps are smaller, as what is got in vain counts; at last larger, as requests do. */
static uint64_t next_end(const struct remote_file *f)
{
    uint64_t end = f->head_need;
    if (end <= 2 * f->head.len && f->n_steps <= SMALL_STEPS)
        end = f->head.len + f->head.len / 2;
    else if (f->n_steps >= LARGE_STEPS && end < 4 * f->head.len)
        end = 4 * f->head.len;
    return end < f->size ? end : f->size;
}

/* The header's bytes up to `end`, and whether that is all of it. */
static enum err_code head_step(struct remote_reader *x, uint32_t file, uint64_t end, struct err *e)
{
    struct remote_file *f = &x->r->files[file];
    struct remote_want w = {
        .file = file, .at = f->head.len, .end = end, .put = put_head, .ctx = f, .origin = &f->head_origin};
    enum err_code rc = ask_some(x, &w, e);
    if (f->head.failed)
        return err_set(e, ERR_NOMEM, "out of memory for the header of %s", f->name);
    if (rc != OK)
        return rc;
    f->n_steps++;
    rc = gguf_head_need(f->head.data, f->head.len, f->size, &f->head_need, e);
    return rc == OK ? OK : err_prefix(e, "%s at %s", f->name, x->r->origins[f->head_origin].host);
}

/* How long the file's header is by the index, when there is one: up to its first tensor. Only a hint: the index may be
 * of another model. 0: not known. */
static uint64_t head_by_index(const struct remote *r, uint32_t file)
{
    const struct index_file *x = &r->index_file;
    if (!r->has_index_file || x->n_files != r->n_files)
        return 0;
    uint64_t first = x->files[file].size;
    for (size_t i = 0; i < x->n_tensors; i++)
        if (x->tensors[i].file == file && x->tensors[i].offset < first)
            first = x->tensors[i].offset;
    return first <= MAX_HEAD_BYTES ? first : 0;
}

static enum err_code fetch_head(struct remote_reader *x, uint32_t file, struct err *e)
{
    const struct remote_file *f = &x->r->files[file];
    const uint64_t by_index = head_by_index(x->r, file);
    enum err_code rc = OK;
    if (f->head_need > 0 && by_index > f->head.len)
        rc = head_step(x, file, by_index, e);
    else if (f->n_steps == 0)
        rc = head_step(x, file, FIRST_BYTES, e);
    while (rc == OK && f->head_need > 0)
        rc = head_step(x, file, next_end(f), e);
    return rc;
}

static enum err_code open_heads(struct remote *r, struct err *e)
{
    struct gguf_part *parts = calloc(r->n_files ? r->n_files : 1, sizeof *parts);
    if (!parts)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < r->n_files; i++) {
        const struct remote_file *f = &r->files[i];
        parts[i] =
            (struct gguf_part){.name = f->name, .head = f->head.data, .head_len = f->head.len, .file_size = f->size};
    }
    enum err_code rc = gguf_open_heads(parts, r->n_files, &r->g, e);
    free(parts);
    return rc;
}

/* --- the index --- */

static bool looks_like_json(const struct buf *b)
{
    size_t i = 0;
    while (i < b->len && strchr(" \t\r\n", b->data[i]))
        i++;
    return i < b->len && b->data[i] == '{';
}

/* from: where it was found. */
static enum err_code read_index(struct remote *r, const struct buf *json, const char *from, char where[WHERE_SIZE],
                                struct err *e)
{
    snprintf(where, WHERE_SIZE, "%.*s", WHERE_SIZE - 1, from);
    enum err_code rc = index_read(json->data, json->len, &r->index_file, e);
    r->has_index_file = rc == OK;
    return rc == OK ? OK : err_prefix(e, "the index at %s", where);
}

static enum err_code match_index(struct remote *r, const char *where, struct err *e)
{
    enum err_code rc = index_match(&r->index_file, r->g, &r->index, e);
    r->has_index = rc == OK;
    return rc == OK ? OK : err_prefix(e, "the index at %s", where);
}

static enum err_code named_index(struct remote_reader *x, const char *index, struct buf *json, char where[WHERE_SIZE],
                                 struct err *e)
{
    struct remote *r = x->r;
    bool with_token = false;
    char host[HTTP_HOST_SIZE];
    if (!strstr(index, "://")) {
        enum err_code rc = io_read_file(index, INDEX_MAX_TEXT, json, e);
        return rc == OK ? read_index(r, json, index, where, e) : rc;
    }
    for (uint32_t i = 0; i < r->n_origins; i++)
        with_token |= http_url_same_site(index, r->origins[i].places[0].url);
    enum err_code rc = http_url_host(index, host, e);
    if (rc == OK)
        rc = remote_get(x, index, with_token, INDEX_MAX_TEXT, json, e);
    return rc == OK ? read_index(r, json, host, where, e) : rc;
}

/* Beside the model, at the first origin that has one. OK without one when somebody says that there is none; an origin
 * that is about to have it (ERR_BUSY) is not passed over. */
static enum err_code found_index(struct remote_reader *x, struct buf *json, char where[WHERE_SIZE], struct err *e)
{
    struct remote *r = x->r;
    struct err mine, bad = {.code = OK};
    bool nobody = false;
    for (uint32_t i = 0; i < r->n_origins; i++) {
        if (atomic_load(&r->origins[i].distrusted) || atomic_load(&r->origins[i].down_until_ns) > clock_now_ns())
            continue;
        char *url = part_url(r->origins[i].places[0].url, 0, r->n_files, ".kvi");
        enum err_code rc =
            url ? remote_get(x, url, true, INDEX_MAX_TEXT, json, &mine) : err_set(&mine, ERR_NOMEM, "out of memory");
        free(url);
        if (rc == OK && looks_like_json(json))
            return read_index(r, json, r->origins[i].host, where, e);
        nobody |= rc == OK || rc == ERR_NOT_FOUND; /* OK: a page that says so, as some servers have it */
        if (rc != OK && rc != ERR_NOT_FOUND && (bad.code == OK || rc == ERR_BUSY))
            bad = mine;
        if (rc == ERR_CANCELLED || rc == ERR_NOMEM)
            break;
    }
    if (bad.code == OK || (nobody && (bad.code == ERR_IO || bad.code == ERR_TIMEOUT)))
        return OK;
    if (e)
        *e = bad;
    return bad.code;
}

/* The text of the index, if there is one. where: it was found there. */
static enum err_code get_index(struct remote_reader *x, const char *index, char where[WHERE_SIZE], struct err *e)
{
    struct buf json = {0};
    enum err_code rc = index ? named_index(x, index, &json, where, e) : found_index(x, &json, where, e);
    buf_free(&json);
    return rc;
}

/* --- opening --- */

static void index_forget(struct remote *r)
{
    if (r->has_index)
        index_fini(&r->index);
    if (r->has_index_file)
        index_file_fini(&r->index_file);
    r->has_index = r->has_index_file = false;
}

/* Forgets what came from an origin that sent something else than the model. */
static void forget(struct remote *r)
{
    gguf_close(r->g);
    r->g = NULL;
    index_forget(r);
    for (uint32_t i = 0; i < r->n_files; i++) {
        struct remote_file *f = &r->files[i];
        buf_clear(&f->head);
        f->head_need = FIRST_BYTES;
        f->n_steps = f->head_from = 0;
        f->size_known = false;
        for (uint32_t k = 0; k < r->n_origins; k++) {
            struct remote_place *p = &r->origins[k].places[i];
            p->known = p->strong = false;
            p->stamp[0] = 0;
        }
    }
}

/* The first bytes, which tell whether there is a model; its index, which tells how long its headers are; the headers.
 * *from: who gave what was read last. */
static enum err_code open_once(struct remote_reader *x, const char *index, uint32_t *from, struct err *e)
{
    struct remote *r = x->r;
    char where[WHERE_SIZE] = "";
    enum err_code rc = head_step(x, 0, FIRST_BYTES, e);
    *from = r->files[0].head_origin;
    if (rc == OK && !r->no_index)
        rc = get_index(x, index, where, e);
    for (uint32_t i = 0; i < r->n_files && rc == OK; i++) {
        rc = fetch_head(x, i, e);
        *from = r->files[i].head_origin;
    }
    if (rc == OK)
        rc = open_heads(r, e);
    return rc == OK && r->has_index_file ? match_index(r, where, e) : rc;
}

static enum err_code open_all(struct remote *r, const char *index, struct err *e)
{
    struct remote_reader *x;
    uint32_t from = 0;
    enum err_code rc = remote_reader_new(r, &x, e);
    if (rc != OK)
        return rc;
    for (;;) {
        struct err mine;
        rc = open_once(x, index, &from, &mine);
        const bool content = rc == ERR_FORMAT || rc == ERR_MISMATCH || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT;
        if (rc != OK && e)
            *e = mine;
        /* One that is blamed already gave nothing: all have been asked and refused it. */
        if (!content || atomic_load(&r->origins[from].distrusted) || !remote_distrust(r, from))
            break;
        log_warn("pull", "%s; asking another origin", mine.msg);
        forget(r);
    }
    remote_reader_free(x);
    return rc;
}

enum err_code remote_open(const struct remote_config *c, struct remote **out, struct err *e)
{
    if (c->n_urls < 1 || c->n_urls > REMOTE_MAX_ORIGINS)
        return err_set(e, ERR_ARG, "a model is read from 1 to %u URLs", REMOTE_MAX_ORIGINS);
    struct remote *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "out of memory");
    pthread_mutex_init(&r->lock, NULL);
    r->connect_ms = c->connect_ms ? c->connect_ms : CONNECT_MS;
    r->idle_ms = c->idle_ms ? c->idle_ms : IDLE_MS;
    r->n_retries = c->n_retries ? c->n_retries : N_RETRIES;
    remote_share(r, 1);
    r->no_index = c->no_index;
    r->no_wait = c->no_wait;
    r->ctx = c->ctx;
    r->cancelled = c->cancelled;
    enum err_code rc = OK;
    if (c->bearer && !(r->bearer = strdup(c->bearer)))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < c->n_urls && rc == OK; i++)
        rc = add_origin(r, c->urls[i], e);
    if (rc == OK)
        rc = add_files(r, e);
    if (rc == OK)
        rc = open_all(r, c->index, e);
    if (rc != OK) {
        remote_close(r);
        return rc;
    }
    *out = r;
    return OK;
}

static void files_free(struct remote *r)
{
    for (uint32_t i = 0; i < r->n_files && r->files; i++) {
        buf_free(&r->files[i].head);
        free(r->files[i].name);
    }
    free(r->files);
    for (uint32_t k = 0; k < r->n_origins; k++) {
        for (uint32_t i = 0; i < r->n_files && r->origins[k].places; i++) {
            free(r->origins[k].places[i].url);
            free(r->origins[k].places[i].direct);
        }
        free(r->origins[k].places);
    }
}

void remote_close(struct remote *r)
{
    if (!r)
        return;
    gguf_close(r->g);
    index_forget(r);
    files_free(r);
    if (r->bearer)
        explicit_bzero(r->bearer, strlen(r->bearer));
    free(r->bearer);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* --- readers, and what is known --- */

static uint32_t share(uint32_t all, uint32_t n, uint32_t most)
{
    return n > 0 && all / n < most ? all / n : most;
}

void remote_share(struct remote *r, uint32_t n_readers)
{
    r->chunk_bytes = share(ALL_CHUNK_BYTES, n_readers, CHUNK_BYTES);
    r->window_bytes = share(ALL_WINDOW_BYTES, n_readers, WINDOW_BYTES);
}

enum err_code remote_reader_new(struct remote *r, struct remote_reader **out, struct err *e)
{
    struct remote_reader *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "out of memory");
    x->r = r;
    x->random = hash_mix64(clock_now_ns() ^ (uint64_t)(uintptr_t)x);
    enum err_code rc = http_client_new(&x->client, e);
    if (rc != OK) {
        free(x);
        return rc;
    }
    *out = x;
    return OK;
}

void remote_reader_free(struct remote_reader *x)
{
    if (!x)
        return;
    http_client_free(x->client);
    free(x);
}

void remote_reader_stop(struct remote_reader *x)
{
    atomic_store(&x->stop, true);
}

const struct gguf *remote_gguf(const struct remote *r)
{
    return r->g;
}

const struct index *remote_index(const struct remote *r)
{
    return r->has_index ? &r->index : NULL;
}

const struct index_file *remote_index_file(const struct remote *r)
{
    return r->has_index ? &r->index_file : NULL;
}

const char *remote_origin_host(const struct remote *r, uint32_t origin)
{
    return origin < r->n_origins ? r->origins[origin].host : "";
}

const char *remote_stamp(const struct remote *r, uint32_t file)
{
    return file < r->n_files ? r->origins[r->files[file].head_origin].places[file].stamp : "";
}

void remote_count(const struct remote *r, struct remote_counts *out)
{
    *out = (struct remote_counts){.n_requests = atomic_load(&r->n_requests), .body_bytes = atomic_load(&r->body_bytes)};
}
