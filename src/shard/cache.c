/* SPDX-License-Identifier: MIT
 *
 * What the cache gives: a stage file that is there, one that another process is fetching, or a new one. The file with
 * the right name is looked at before it is believed.
 */
#include "shard/cache.h"

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "model/hparams.h"
#include "model/slice.h"
#include "shard/cache_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS  100u
#define STALL_MS 300000u /* who holds a lock marks it every second, except while the file is synced at its end */

static struct cache_key key_of(const struct cache_item *i)
{
    struct cache_key k = {.first = i->first, .end = i->end};
    memcpy(k.model_id, i->model_id, DIGEST_BYTES);
    return k;
}

/* --- is a file what its name says? --- */

static enum err_code compare_head(const struct gguf *g, const struct slice *s, struct err *e)
{
    if (gguf_file_size(g, 0) != s->size)
        return err_set(e, ERR_MISMATCH, "%s has %llu bytes, not %llu", gguf_path(g),
                       (unsigned long long)gguf_file_size(g, 0), (unsigned long long)s->size);
    uint8_t *head = malloc(s->head.len);
    if (!head)
        return err_set(e, ERR_NOMEM, "out of memory for a header of %zu bytes", s->head.len);
    enum err_code rc = io_pread_full(gguf_fd(g, 0), head, s->head.len, 0, e);
    if (rc == OK && memcmp(head, s->head.data, s->head.len) != 0)
        rc = err_set(e, ERR_MISMATCH, "%s: its header is not that of its window", gguf_path(g));
    free(head);
    return rc;
}

/* Errors that tell that a file is not what it was when it was written. Others may pass: it cannot be read now, or is of
 * a family that only another version knows. */
static enum err_code as_mismatch(enum err_code rc)
{
    return rc == ERR_FORMAT || rc == ERR_RANGE || rc == ERR_LIMIT || rc == ERR_UNSUPPORTED ? ERR_MISMATCH : rc;
}

/* Which model and window it is of follows from the metadata and the list of tensors; these decide about every byte of
 * the header, and the size. */
static enum err_code check_open(const struct gguf *g, const struct cache_key *k, struct err *e)
{
    struct slice_label l;
    struct hparams h;
    struct slice s;
    enum err_code rc = as_mismatch(slice_label_read(g, &l, e));
    if (rc == OK && (!l.stage_file || !l.has_id || l.first != k->first || l.end != k->end ||
                     memcmp(l.model_id, k->model_id, DIGEST_BYTES) != 0))
        rc = err_set(e, ERR_MISMATCH, "%s is of another model or window than its name says", gguf_path(g));
    if (rc == OK)
        rc = hparams_read(g, &h, e);
    if (rc != OK)
        return rc;
    rc = as_mismatch(slice_plan(g, &h, k->first, k->end, NULL, &s, e));
    hparams_fini(&h);
    if (rc == OK) {
        rc = as_mismatch(compare_head(g, &s, e));
        slice_fini(&s);
    }
    return rc == ERR_NOT_FOUND ? ERR_MISMATCH : rc; /* a tensor */
}

/* ERR_MISMATCH: it can never become right. */
static enum err_code check(const char *path, const struct cache_key *k, struct err *e)
{
    struct gguf *g;
    enum err_code rc = as_mismatch(gguf_open(path, &g, e));
    if (rc != OK)
        return rc;
    rc = check_open(g, k, e);
    gguf_close(g);
    return rc;
}

/* Removes it, unless somebody put a right one there in between. */
static void remove_wrong(const char *path, const struct cache_key *k)
{
    struct err e;
    int fd;
    if (cache_lock(k, &fd, NULL) != OK)
        return;
    if (check(path, k, &e) == ERR_MISMATCH) {
        if (unlink(path) == 0)
            log_warn("cache", "removed a file that is not what it should be: %s", e.msg);
        else
            log_warn("cache", "not used, and to be removed: %s", e.msg);
    }
    cache_unlock(k, fd);
}

static bool usable(const struct cache_item *i)
{
    const struct cache_key k = key_of(i);
    struct err e;
    const enum err_code rc = check(i->path, &k, &e);
    if (rc == ERR_MISMATCH)
        remove_wrong(i->path, &k);
    else if (rc != OK && rc != ERR_NOT_FOUND)
        log_warn("cache", "%s is not used: %s", i->path, e.msg);
    return rc == OK;
}

/* --- finding --- */

enum err_code cache_find(const uint8_t model_id[DIGEST_BYTES], uint32_t first, uint32_t end, char path[PATH_MAX],
                         struct err *e)
{
    struct cache_item *items = NULL;
    size_t n = 0;
    char id[DIGEST_HEX_SIZE];
    if (first >= end)
        return err_set(e, ERR_ARG, "the window [%u,%u) is empty", first, end);
    enum err_code rc = cache_scan(model_id, &items, &n, e);
    if (rc != OK)
        return rc;
    for (;;) {
        struct cache_item *best = NULL;
        for (size_t i = 0; i < n; i++) {
            struct cache_item *x = &items[i];
            if (!x->partial && x->first <= first && x->end >= end && (!best || x->size < best->size))
                best = x;
        }
        if (!best) {
            rc = err_set(e, ERR_NOT_FOUND, "no stage file in the cache holds the blocks [%u,%u) of the model %s", first,
                         end, digest_hex(model_id, id));
            break;
        }
        if (usable(best)) {
            const struct cache_key k = key_of(best);
            cache_mark_used(&k, -1);
            memcpy(path, best->path, PATH_MAX);
            break;
        }
        best->partial = true; /* not again */
    }
    free(items);
    return rc;
}

enum err_code cache_reject(const char *path, const char *why, struct err *e)
{
    struct cache_key k;
    enum cache_kind kind;
    char own[PATH_MAX], id[DIGEST_HEX_SIZE];
    const char *name = strrchr(path, '/'), *folder = name;
    while (folder && folder > path && folder[-1] != '/')
        folder--;
    if (!name || (size_t)(name - folder) != sizeof id - 1 || !cache_name_read(name + 1, &k, &kind) ||
        kind != CACHE_WHOLE)
        return err_set(e, ERR_ARG, "%s is not a file of the cache", path);
    snprintf(id, sizeof id, "%s", folder);
    if (digest_parse(id, k.model_id, NULL) != OK || cache_path(&k, kind, own, NULL) != OK || strcmp(own, path) != 0)
        return err_set(e, ERR_ARG, "%s is not a file of the cache", path);
    int fd;
    enum err_code rc = cache_lock(&k, &fd, e);
    if (rc != OK)
        return rc;
    if (unlink(path) == 0)
        log_warn("cache", "removed %s: %s", path, why);
    else if (errno != ENOENT)
        rc = err_set_os(e, ERR_IO, errno, "cannot remove %s", path);
    cache_unlock(&k, fd);
    return rc;
}

/* --- waiting for another --- */

/* How far the other one is, as its part file shows it; false: stop. */
static bool tell_waiting(const struct cache_key *k, const struct pull_request *q)
{
    struct pull_progress p = {.eta_s = UINT64_MAX};
    char part[PATH_MAX];
    struct stat st;
    if (!q->progress)
        return true;
    if (cache_path(k, CACHE_PARTIAL, part, NULL) == OK && stat(part, &st) == 0) {
        p.total_bytes = (uint64_t)st.st_size;
        p.done_bytes = cache_come(&st);
    }
    return q->progress(q->ctx, &p);
}

/* The lock, as soon as nobody else has it. */
static enum err_code lock_wait(const struct cache_key *k, const struct pull_request *q, int *fd, struct err *e)
{
    const struct timespec pause = {.tv_nsec = (long)(POLL_MS * CLOCK_NS_PER_MS)};
    const uint32_t stall_ms = q->stall_ms ? q->stall_ms : STALL_MS;
    uint64_t deadline = clock_deadline_ms(stall_ms);
    struct timespec seen = {0};
    char path[PATH_MAX];
    enum err_code rc = cache_path(k, CACHE_LOCK, path, e);
    bool told = false;
    while (rc == OK && (rc = cache_lock(k, fd, e)) == ERR_BUSY) {
        struct stat st;
        if (!told)
            log_info("cache", "another process is at work on %s: waiting for it", path);
        told = true;
        if (!tell_waiting(k, q))
            return err_set(e, ERR_CANCELLED, "waiting for another process that pulls blocks [%u,%u) was stopped",
                           k->first, k->end);
        if (stat(path, &st) != 0) { /* it is done */
            deadline = clock_deadline_ms(stall_ms);
        } else if (st.st_mtim.tv_sec != seen.tv_sec || st.st_mtim.tv_nsec != seen.tv_nsec) {
            seen = st.st_mtim;
            deadline = clock_deadline_ms(stall_ms);
        } else if (clock_now_ns() > deadline) {
            return err_set(e, ERR_TIMEOUT, "another process holds %s and has done nothing for %g seconds", path,
                           stall_ms / 1000.0);
        }
        nanosleep(&pause, NULL);
        rc = OK;
    }
    return rc;
}

/* --- pulling --- */

struct pulling {
    const struct pull_request *q;
    struct cache_key key;
    int lock;
    uint64_t marked_ns;
};

/* Shows those who wait that somebody is at work. */
static bool on_progress(void *ctx, const struct pull_progress *p)
{
    struct pulling *x = ctx;
    const uint64_t now = clock_now_ns();
    if (now - x->marked_ns > CLOCK_NS_PER_S) {
        x->marked_ns = now;
        cache_mark_used(&x->key, x->lock);
    }
    return x->q->progress ? x->q->progress(x->q->ctx, p) : true;
}

static uint32_t overlap(const struct cache_item *i, const struct cache_key *k)
{
    const uint32_t first = i->first > k->first ? i->first : k->first, end = i->end < k->end ? i->end : k->end;
    return first < end ? end - first : 0;
}

/* Puts those first that have most of the window; the others may have what several windows need. */
static void order_sources(struct cache_item *items, size_t n, const struct cache_key *k)
{
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && overlap(&items[j], k) > overlap(&items[j - 1], k); j--) {
            const struct cache_item x = items[j];
            items[j] = items[j - 1];
            items[j - 1] = x;
        }
}

static enum err_code pull_here(struct remote *r, struct pulling *x, const char *path, struct pull_result *result,
                               struct err *e)
{
    const char *local[PULL_MAX_LOCAL];
    struct pull_request mine = *x->q;
    struct cache_item *items = NULL;
    size_t n = 0;
    enum err_code rc = cache_scan(x->key.model_id, &items, &n, e);
    if (rc != OK)
        return rc;
    mine.first = x->key.first;
    mine.end = x->key.end;
    mine.out = path;
    mine.model_id = x->key.model_id;
    mine.need_index = true;
    mine.local = local;
    mine.n_local = 0;
    mine.ctx = x;
    mine.progress = on_progress;
    order_sources(items, n, &x->key);
    for (size_t i = 0; i < n && mine.n_local < PULL_MAX_LOCAL; i++)
        if (!items[i].partial && usable(&items[i]))
            local[mine.n_local++] = items[i].path;
    for (uint32_t i = 0; i < x->q->n_local && mine.n_local < PULL_MAX_LOCAL; i++)
        local[mine.n_local++] = x->q->local[i];
    rc = pull_window(r, &mine, result, e);
    free(items);
    return rc;
}

static enum err_code wanted(const struct remote *r, const struct pull_request *q, struct cache_key *k, struct err *e)
{
    const struct index *x = remote_index(r);
    char want[DIGEST_HEX_SIZE], have[DIGEST_HEX_SIZE];
    struct hparams h;
    if (!x)
        return err_set(e, ERR_LIMIT,
                       "there is no index of the model: what cannot be verified is not kept in the cache");
    if (q->model_id && memcmp(q->model_id, x->model_id, DIGEST_BYTES) != 0)
        return err_set(e, ERR_MISMATCH, "the model there is another: its id is %s, not %s",
                       digest_hex(x->model_id, have), digest_hex(q->model_id, want));
    enum err_code rc = hparams_read(remote_gguf(r), &h, e);
    if (rc != OK)
        return rc;
    *k = (struct cache_key){.first = q->first, .end = q->end ? q->end : h.n_block};
    memcpy(k->model_id, x->model_id, DIGEST_BYTES);
    if (k->first >= k->end || k->end > h.n_block)
        rc = err_set(e, ERR_RANGE, "the window [%u,%u) is not within the model's %u blocks", k->first, k->end,
                     h.n_block);
    hparams_fini(&h);
    return rc;
}

/* Pulls it while nobody else does, unless another has done so before. */
static enum err_code find_or_pull(struct remote *r, struct pulling *x, char path[PATH_MAX], struct pull_result *result,
                                  struct err *e)
{
    enum err_code rc = lock_wait(&x->key, x->q, &x->lock, e);
    if (rc != OK)
        return rc;
    rc = cache_find(x->key.model_id, x->key.first, x->key.end, path, e);
    if (rc == ERR_NOT_FOUND) {
        cache_mark_used(&x->key, x->lock);
        rc = cache_path(&x->key, CACHE_WHOLE, path, e);
        if (rc == OK)
            rc = pull_here(r, x, path, result, e);
        if (rc == OK)
            cache_mark_used(&x->key, x->lock);
    }
    cache_unlock(&x->key, x->lock);
    return rc;
}

enum err_code cache_pull(struct remote *r, const struct pull_request *q, char path[PATH_MAX],
                         struct pull_result *result, struct err *e)
{
    struct pulling x = {.q = q, .lock = -1};
    struct pull_result got = {0};
    char found[PATH_MAX];
    enum err_code rc = wanted(r, q, &x.key, e);
    if (rc != OK)
        return rc;
    rc = cache_find(x.key.model_id, x.key.first, x.key.end, found, e);
    if (rc == ERR_NOT_FOUND)
        rc = find_or_pull(r, &x, found, &got, e);
    if (rc != OK)
        return rc;
    memcpy(path, found, PATH_MAX);
    *result = got;
    return OK;
}
