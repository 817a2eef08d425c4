/* SPDX-License-Identifier: MIT
 *
 * What lies in the folder: which files are models, which have changed. Names come from listing it, so nothing else can
 * be asked for.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "shard/origin_impl.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_NAMES   65536u
#define IDLE_STAGES 4u /* planned slices that are kept though nobody reads them */

/* --- stamps -------------------------------------------------------------------------------------- */

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same_content(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && same_time(&a->st_mtim, &b->st_mtim);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && same_content(a, b) &&
           same_time(&a->st_ctim, &b->st_ctim);
}

/* A file whose name is gone has another ctime, but its bytes; else a new ctime means that it was written to. */
bool origin_file_same(const struct origin_model *m, uint32_t file)
{
    struct stat now;
    const struct stat *seen = &m->files[file].seen;
    return fstat(gguf_fd(m->g, file), &now) == 0 && same_content(&now, seen) &&
           (same_time(&now.st_ctim, &seen->st_ctim) || now.st_nlink < seen->st_nlink);
}

void origin_etag(const struct buf *from, char out[ORIGIN_ETAG_SIZE])
{
    uint8_t digest[DIGEST_BYTES];
    char hex[DIGEST_HEX_SIZE];
    digest_of(from->data, from->len, digest);
    snprintf(out, ORIGIN_ETAG_SIZE, "\"%.32s\"", digest_hex(digest, hex));
}

static bool file_etag(struct origin_file *f)
{
    struct buf text = {0};
    buf_puts(&text, "file");
    buf_put_u64(&text, (uint64_t)f->seen.st_dev);
    buf_put_u64(&text, (uint64_t)f->seen.st_ino);
    buf_put_u64(&text, (uint64_t)f->seen.st_size);
    buf_put_u64(&text, (uint64_t)f->seen.st_mtim.tv_sec);
    buf_put_u64(&text, (uint64_t)f->seen.st_mtim.tv_nsec);
    buf_put_u64(&text, (uint64_t)f->seen.st_ctim.tv_sec);
    buf_put_u64(&text, (uint64_t)f->seen.st_ctim.tv_nsec);
    const bool ok = !text.failed;
    origin_etag(&text, f->etag);
    buf_free(&text);
    return ok;
}

/* --- models -------------------------------------------------------------------------------------- */

struct origin_model *origin_hold(struct origin_model *m)
{
    atomic_fetch_add(&m->refs, 1);
    return m;
}

static void stage_free(struct origin_stage *s)
{
    slice_fini(&s->slice);
    free(s);
}

void origin_drop(struct origin_model *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    for (struct origin_stage *s = m->stages, *next; s; s = next) {
        next = s->next;
        stage_free(s);
    }
    for (uint32_t i = 0; m->files && i < m->n_files; i++)
        free(m->files[i].name);
    free(m->files);
    index_fini(&m->x);
    buf_free(&m->kvi);
    if (m->has_hparams)
        hparams_fini(&m->h);
    gguf_close(m->g);
    free(m);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static enum err_code take_files(struct origin_model *m, struct err *e)
{
    m->n_files = gguf_n_files(m->g);
    m->files = calloc(m->n_files, sizeof *m->files);
    for (uint32_t i = 0; i < m->n_files && m->files; i++) {
        struct origin_file *f = &m->files[i];
        f->name = strdup(base_name(gguf_file_path(m->g, i)));
        if (fstat(gguf_fd(m->g, i), &f->seen) != 0)
            return err_set_os(e, ERR_IO, errno, "%s", gguf_file_path(m->g, i));
        if (!f->name || !file_etag(f))
            return err_set(e, ERR_NOMEM, "out of memory");
        m->bytes += (uint64_t)f->seen.st_size;
    }
    return m->files ? OK : err_set(e, ERR_NOMEM, "out of memory");
}

static enum err_code model_open(struct origin *o, const char *name, struct origin_model **out, struct err *e)
{
    char path[PATH_MAX];
    const char *title = "";
    struct origin_model *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "out of memory");
    m->o = o;
    atomic_init(&m->refs, 1);
    atomic_init(&m->listed, true);
    enum err_code rc = snprintf(path, sizeof path, "%s/%s", o->dir, name) >= (int)sizeof path
                           ? err_set(e, ERR_ARG, "the path is too long")
                           : gguf_open(path, &m->g, e);
    if (rc == OK)
        rc = take_files(m, e);
    if (rc != OK) {
        origin_drop(m);
        return rc;
    }
    struct err why;
    m->has_hparams = hparams_read(m->g, &m->h, &why) == OK;
    if (!m->has_hparams) {
        snprintf(m->why, sizeof m->why, "%s", why.msg);
        atomic_store(&m->state, ORIGIN_INDEX_NONE);
    }
    if (gguf_opt_str(m->g, "general.name", &title, NULL) == OK && title)
        text_clean(title, strlen(title), m->title, sizeof m->title);
    *out = m;
    return OK;
}

/* Are all its files in the folder as they were? */
static bool model_is_current(const struct origin *o, const struct origin_model *m)
{
    for (uint32_t i = 0; i < m->n_files; i++) {
        struct stat now;
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", o->dir, m->files[i].name) >= (int)sizeof path ||
            stat(path, &now) != 0 || !same_file(&now, &m->files[i].seen))
            return false;
    }
    return true;
}

/* --- the list ------------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Could it be a model, and the first file of it? */
static bool is_candidate(const char *name)
{
    const size_t n = strlen(name);
    size_t prefix;
    uint32_t part, count;
    if (name[0] == '.' || n < 6 || strcmp(name + n - 5, ".gguf") != 0 || !text_printable(name, n))
        return false;
    return !gguf_split_name(name, &prefix, &part, &count) || part == 1;
}

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

static bool read_names(const struct origin *o, char ***out, size_t *n_out)
{
    static struct log_limit limit;
    size_t n = 0, cap = 0;
    char **names = NULL;
    uint32_t dropped;
    bool ok = true;
    DIR *d = opendir(o->dir);
    if (!d) {
        const int os = errno;
        if (log_limit_pass(&limit, 1, "folder", &dropped))
            log_warn("origin", "cannot list %s: %s", o->dir, strerror(os));
        return false;
    }
    for (const struct dirent *x; ok && n < MAX_NAMES && (x = readdir(d));) {
        if (!is_candidate(x->d_name))
            continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 64;
            char **more = realloc(names, cap * sizeof *names);
            ok = more != NULL;
            names = more ? more : names;
        }
        ok = ok && (names[n] = strdup(x->d_name)) != NULL;
        n += ok;
    }
    closedir(d);
    if (!ok) {
        free_names(names, n);
        return false;
    }
    if (n > 0)
        qsort(names, n, sizeof *names, by_name);
    *out = names;
    *n_out = n;
    return true;
}

static struct origin_model *find_first(const struct origin *o, const char *name)
{
    for (size_t lo = 0, hi = o->n_models; lo < hi;) {
        const size_t mid = (lo + hi) / 2;
        const int c = strcmp(name, o->models[mid]->files[0].name);
        if (c == 0)
            return o->models[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static void take_out(struct origin_model *m)
{
    atomic_store(&m->listed, false);
    origin_drop(m);
}

static bool known_bad(const struct origin *o, const char *name, const struct stat *now)
{
    for (size_t i = 0; i < o->n_bad; i++)
        if (strcmp(o->bad[i].name, name) == 0 && same_file(&o->bad[i].seen, now))
            return true;
    return false;
}

static void remember_bad(struct origin_bad *bad, size_t *n, const char *name, const struct stat *now)
{
    bad[*n] = (struct origin_bad){.name = strdup(name), .seen = *now};
    *n += bad[*n].name != NULL;
}

static void free_bad(struct origin_bad *bad, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(bad[i].name);
    free(bad);
}

/* What the file of this name is now: the model as before, or opened; NULL: none. */
static struct origin_model *look_at(struct origin *o, const char *name, struct origin_bad *bad, size_t *n_bad)
{
    char path[PATH_MAX];
    struct stat now;
    struct err e;
    struct origin_model *m = find_first(o, name), *was = m;
    if (m && model_is_current(o, m))
        return origin_hold(m);
    if (snprintf(path, sizeof path, "%s/%s", o->dir, name) >= (int)sizeof path || stat(path, &now) != 0 ||
        !S_ISREG(now.st_mode))
        return NULL;
    if (known_bad(o, name, &now)) {
        remember_bad(bad, n_bad, name, &now);
        return NULL;
    }
    if (model_open(o, name, &m, &e) != OK) {
        log_warn("origin", "not served: %s", e.msg);
        /* A split model may lack a part that is on its way, which does not show in the first one. */
        size_t prefix;
        uint32_t part, count;
        if (!gguf_split_name(name, &prefix, &part, &count))
            remember_bad(bad, n_bad, name, &now);
        return NULL;
    }
    m->sent_bytes = was ? was->sent_bytes : 0;
    log_info("origin", "serving %s, %u files, %llu bytes", name, m->n_files, (unsigned long long)m->bytes);
    if (atomic_load(&m->state) == ORIGIN_INDEX_WAITS)
        origin_index_want(m);
    return m;
}

void origin_scan(struct origin *o)
{
    const uint64_t now = clock_now_ns();
    char **names;
    size_t n_names, n = 0, n_bad = 0;
    if (o->scanned_ns && now - o->scanned_ns < CLOCK_NS_PER_S)
        return;
    o->scanned_ns = now;
    if (!read_names(o, &names, &n_names))
        return;
    struct origin_model **models = calloc(n_names + 1, sizeof *models);
    struct origin_bad *bad = calloc(n_names + 1, sizeof *bad);
    for (size_t i = 0; models && bad && i < n_names; i++) {
        models[n] = look_at(o, names[i], bad, &n_bad);
        n += models[n] != NULL;
    }
    free_names(names, n_names);
    if (!models || !bad) {
        free(models);
        free(bad);
        return;
    }
    for (size_t i = 0, k = 0; i < o->n_models; i++) { /* both are sorted */
        while (k < n && strcmp(models[k]->files[0].name, o->models[i]->files[0].name) < 0)
            k++;
        if (k < n && models[k] == o->models[i])
            origin_drop(o->models[i]); /* the new list holds it too */
        else
            take_out(o->models[i]);
    }
    free(o->models);
    free_bad(o->bad, o->n_bad);
    o->models = models;
    o->n_models = n;
    o->bad = bad;
    o->n_bad = n_bad;
    origin_recount(o);
}

void origin_recount(struct origin *o)
{
    uint32_t n = 0;
    for (size_t i = 0; i < o->n_models; i++)
        n += atomic_load(&o->models[i]->state) == ORIGIN_INDEX_READY;
    atomic_store(&o->n_listed, (unsigned)o->n_models);
    atomic_store(&o->n_indexed, n);
}

void origin_free_list(struct origin *o)
{
    for (size_t i = 0; i < o->n_models; i++)
        take_out(o->models[i]);
    free(o->models);
    free_bad(o->bad, o->n_bad);
    o->models = NULL;
    o->n_models = 0;
}

struct origin_model *origin_find(const struct origin *o, const char *name, size_t len, uint32_t *file)
{
    for (size_t i = 0; i < o->n_models; i++) {
        struct origin_model *m = o->models[i];
        for (uint32_t k = 0; k < m->n_files; k++) {
            if (strlen(m->files[k].name) == len && memcmp(m->files[k].name, name, len) == 0) {
                *file = k;
                return m;
            }
        }
    }
    return NULL;
}

/* --- stage files --------------------------------------------------------------------------------- */

static void forget_idle(struct origin_model *m)
{
    uint32_t n = 0;
    for (struct origin_stage **at = &m->stages; *at;) { /* the newest come first */
        struct origin_stage *s = *at;
        if (s->refs == 0 && n >= IDLE_STAGES) {
            *at = s->next;
            stage_free(s);
            continue;
        }
        n += s->refs == 0;
        at = &s->next;
    }
}

enum err_code origin_stage_of(struct origin_model *m, uint32_t first, uint32_t end, struct origin_stage **out,
                              struct err *e)
{
    char hex[DIGEST_HEX_SIZE];
    struct buf text = {0};
    for (struct origin_stage *s = m->stages; s; s = s->next) {
        if (s->slice.first == first && s->slice.end == end) {
            s->refs++;
            *out = s;
            return OK;
        }
    }
    struct origin_stage *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "out of memory");
    const enum err_code rc = slice_plan(m->g, &m->h, first, end, m->stage_file ? NULL : &m->x, &s->slice, e);
    if (rc != OK) {
        free(s);
        return rc;
    }
    buf_printf(&text, "stage 1 %s %u %u", digest_hex(m->id, hex), first, end);
    origin_etag(&text, s->etag);
    buf_free(&text);
    s->refs = 1;
    s->next = m->stages;
    m->stages = s;
    forget_idle(m);
    *out = s;
    return OK;
}

void origin_stage_drop(struct origin_model *m, struct origin_stage *s)
{
    if (!s)
        return;
    s->refs--;
    forget_idle(m);
}
