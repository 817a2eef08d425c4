/* SPDX-License-Identifier: MIT
 *
 * The files of the cache: how they are named, found, locked and removed. What has another name, is a link or no regular
 * file is left alone.
 */
#include "shard/cache_impl.h"

#include "base/io.h"
#include "base/parse.h"
#include "base/text.h"
#include "model/hparams.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_BYTES 512u /* of st_blocks */
#define LOCK_TRIES  100

static const char *const suffixes[CACHE_KIND_COUNT] = {
    [CACHE_WHOLE] = ".gguf",
    [CACHE_PARTIAL] = ".gguf.part",
    [CACHE_JOURNAL] = ".gguf.part.journal",
    [CACHE_LOCK] = ".gguf.lock",
};

/* --- names --- */

enum err_code cache_folder(char out[PATH_MAX], struct err *e)
{
    char dir[PATH_MAX];
    enum err_code rc = io_cache_dir(dir, e);
    if (rc == OK && snprintf(out, PATH_MAX, "%s/shards", dir) >= PATH_MAX)
        rc = err_set(e, ERR_ARG, "the path of the cache folder is too long");
    return rc;
}

static enum err_code model_folder(const struct cache_key *k, char out[PATH_MAX], struct err *e)
{
    char dir[PATH_MAX], id[DIGEST_HEX_SIZE];
    enum err_code rc = cache_folder(dir, e);
    if (rc == OK && snprintf(out, PATH_MAX, "%s/%s", dir, digest_hex(k->model_id, id)) >= PATH_MAX)
        rc = err_set(e, ERR_ARG, "the path of the cache folder is too long");
    return rc;
}

enum err_code cache_path(const struct cache_key *k, enum cache_kind kind, char out[PATH_MAX], struct err *e)
{
    char dir[PATH_MAX];
    enum err_code rc = model_folder(k, dir, e);
    if (rc == OK && snprintf(out, PATH_MAX, "%s/%u-%u%s", dir, k->first, k->end, suffixes[kind]) >= PATH_MAX)
        rc = err_set(e, ERR_ARG, "the path of the cache folder is too long");
    return rc;
}

/* Decimal, as %u writes it. */
static const char *read_number(const char *p, uint32_t *out)
{
    uint32_t v = 0;
    const char *const begin = p;
    for (; *p >= '0' && *p <= '9' && p - begin < 5; p++)
        v = v * 10 + (uint32_t)(*p - '0');
    *out = v;
    return p == begin || (*begin == '0' && p - begin > 1) ? NULL : p;
}

bool cache_name_read(const char *name, struct cache_key *k, enum cache_kind *kind)
{
    const char *p = read_number(name, &k->first);
    p = p && *p == '-' ? read_number(p + 1, &k->end) : NULL;
    if (!p || k->first >= k->end || k->end > HPARAMS_MAX_BLOCKS)
        return false;
    for (*kind = 0; *kind < CACHE_KIND_COUNT; ++*kind)
        if (strcmp(p, suffixes[*kind]) == 0)
            return true;
    return false;
}

/* --- locks --- */

/* Opens the lock file, with its folder; the folder may go in between, with the last file of another process. */
static enum err_code lock_open(const struct cache_key *k, const char *path, int *fd, struct err *e)
{
    char dir[PATH_MAX];
    enum err_code rc = model_folder(k, dir, e);
    for (int tries = 0; tries < LOCK_TRIES && rc == OK; tries++) {
        rc = io_mkdirs(dir, 0700, e);
        if (rc != OK)
            break;
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (*fd >= 0)
            return OK;
        if (errno != ENOENT)
            rc = err_set_os(e, ERR_IO, errno, "cannot create %s", path);
    }
    return rc == OK ? err_set(e, ERR_BUSY, "others keep removing %s", dir) : rc;
}

enum err_code cache_lock(const struct cache_key *k, int *fd, struct err *e)
{
    char path[PATH_MAX];
    enum err_code rc = cache_path(k, CACHE_LOCK, path, e);
    for (int tries = 0; tries < LOCK_TRIES && rc == OK; tries++) {
        struct stat mine, named;
        int lock;
        rc = lock_open(k, path, &lock, e);
        if (rc != OK)
            return rc;
        if (flock(lock, LOCK_EX | LOCK_NB) != 0)
            rc = errno == EWOULDBLOCK ? err_set(e, ERR_BUSY, "%.*s is being pulled or removed by another process",
                                                (int)(strlen(path) - strlen(".lock")), path)
                                      : err_set_os(e, ERR_IO, errno, "cannot lock %s", path);
        else if (fstat(lock, &mine) == 0 && lstat(path, &named) == 0 && mine.st_dev == named.st_dev &&
                 mine.st_ino == named.st_ino) { /* else who had it before removed it */
            *fd = lock;
            return OK;
        }
        close(lock);
    }
    return rc == OK ? err_set(e, ERR_BUSY, "others keep locking %s", path) : rc;
}

static bool is_there(const struct cache_key *k, enum cache_kind kind)
{
    char path[PATH_MAX];
    struct stat st;
    return cache_path(k, kind, path, NULL) == OK && lstat(path, &st) == 0;
}

static void drop(const struct cache_key *k, enum cache_kind kind)
{
    char path[PATH_MAX];
    if (cache_path(k, kind, path, NULL) == OK)
        unlink(path);
}

void cache_unlock(const struct cache_key *k, int fd)
{
    char dir[PATH_MAX];
    const bool partial = is_there(k, CACHE_PARTIAL), last = !partial && !is_there(k, CACHE_WHOLE);
    if (!partial)
        drop(k, CACHE_JOURNAL);
    if (last)
        drop(k, CACHE_LOCK);
    close(fd);
    if (last && model_folder(k, dir, NULL) == OK)
        rmdir(dir); /* stays when there is something in it */
}

void cache_mark_used(const struct cache_key *k, int fd)
{
    char path[PATH_MAX];
    if (fd >= 0) {
        futimens(fd, NULL);
        return;
    }
    if (cache_path(k, CACHE_LOCK, path, NULL) != OK || utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW) == 0 ||
        errno != ENOENT)
        return; /* a cache that cannot be written can still be read */
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
}

/* --- what is there --- */

uint64_t cache_come(const struct stat *part)
{
    const uint64_t size = (uint64_t)part->st_size, on_disk = (uint64_t)part->st_blocks * BLOCK_BYTES;
    return on_disk < size ? on_disk : size;
}

struct visitor {
    enum err_code (*visit)(struct visitor *v, int dir_fd, const char *name, const struct cache_key *k,
                           enum cache_kind kind, struct err *e);
    struct cache_item *items;
    size_t n, cap;
};

/* All files of ours in the folder of a model. */
static enum err_code walk_model(struct visitor *v, const char *shards, const char *id, struct err *e)
{
    struct cache_key k;
    char path[PATH_MAX];
    enum cache_kind kind;
    enum err_code rc = OK;
    if (digest_parse(id, k.model_id, NULL) != OK)
        return OK;
    if (snprintf(path, sizeof path, "%s/%s", shards, id) >= (int)sizeof path)
        return err_set(e, ERR_ARG, "the path of the cache folder is too long");
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        const int os = errno;
        if (fd >= 0)
            close(fd);
        return os == ENOENT || os == ENOTDIR || os == ELOOP
                   ? OK
                   : err_set_os(e, ERR_IO, os, "cannot read the folder %s", path);
    }
    for (struct dirent *x; rc == OK && (x = readdir(d));)
        if (cache_name_read(x->d_name, &k, &kind))
            rc = v->visit(v, fd, x->d_name, &k, kind, e);
    closedir(d);
    return rc;
}

static enum err_code walk(struct visitor *v, const uint8_t *model_id, struct err *e)
{
    char path[PATH_MAX], id[DIGEST_HEX_SIZE];
    enum err_code rc = cache_folder(path, e);
    if (rc != OK)
        return rc;
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? OK : err_set_os(e, ERR_IO, errno, "cannot read the folder %s", path);
    if (model_id)
        rc = walk_model(v, path, digest_hex(model_id, id), e);
    for (struct dirent *x; rc == OK && !model_id && (x = readdir(d));)
        rc = walk_model(v, path, x->d_name, e);
    closedir(d);
    return rc;
}

static enum err_code add_item(struct visitor *v, int dir_fd, const char *name, const struct cache_key *k,
                              enum cache_kind kind, struct err *e)
{
    struct stat st, lock;
    char lock_name[64];
    if (kind != CACHE_WHOLE && kind != CACHE_PARTIAL)
        return OK;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return OK;
    if (v->n == v->cap) {
        const size_t cap = v->cap ? 2 * v->cap : 16;
        struct cache_item *items = realloc(v->items, cap * sizeof *items);
        if (!items)
            return err_set(e, ERR_NOMEM, "out of memory for %zu files of the cache", cap);
        v->items = items;
        v->cap = cap;
    }
    struct cache_item *i = &v->items[v->n];
    *i = (struct cache_item){.first = k->first,
                             .end = k->end,
                             .size = (uint64_t)st.st_size,
                             .used_s = st.st_mtim.tv_sec,
                             .partial = kind == CACHE_PARTIAL};
    memcpy(i->model_id, k->model_id, DIGEST_BYTES);
    if (i->partial)
        i->size = cache_come(&st);
    snprintf(lock_name, sizeof lock_name, "%u-%u%s", k->first, k->end, suffixes[CACHE_LOCK]);
    if (fstatat(dir_fd, lock_name, &lock, AT_SYMLINK_NOFOLLOW) == 0 && lock.st_mtim.tv_sec > i->used_s)
        i->used_s = lock.st_mtim.tv_sec;
    enum err_code rc = cache_path(k, kind, i->path, e);
    v->n += rc == OK;
    return rc;
}

static int by_window(const void *a, const void *b)
{
    const struct cache_item *x = a, *y = b;
    const int ids = memcmp(x->model_id, y->model_id, DIGEST_BYTES);
    if (ids)
        return ids;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return (int)x->partial - (int)y->partial;
}

enum err_code cache_scan(const uint8_t *model_id, struct cache_item **out, size_t *n, struct err *e)
{
    struct visitor v = {.visit = add_item};
    enum err_code rc = walk(&v, model_id, e);
    if (rc != OK) {
        free(v.items);
        return rc;
    }
    if (v.n > 0)
        qsort(v.items, v.n, sizeof *v.items, by_window);
    *out = v.items;
    *n = v.n;
    return OK;
}

static void read_name(struct cache_item *i)
{
    struct gguf *g;
    const char *name = NULL;
    if (gguf_open(i->path, &g, NULL) != OK)
        return;
    if (gguf_opt_str(g, "general.name", &name, NULL) == OK && name)
        text_clean(name, strlen(name), i->name, sizeof i->name);
    gguf_close(g);
}

enum err_code cache_list(struct cache_item **out, size_t *n, struct err *e)
{
    enum err_code rc = cache_scan(NULL, out, n, e);
    for (size_t i = 0; rc == OK && i < *n; i++) {
        struct cache_item *x = *out + i;
        if (i > 0 && x[-1].name[0] && memcmp(x->model_id, x[-1].model_id, DIGEST_BYTES) == 0)
            memcpy(x->name, x[-1].name, sizeof x->name);
        else
            read_name(x);
    }
    return rc;
}

/* --- what goes --- */

enum err_code cache_remove(const struct cache_item *item, struct err *e)
{
    struct cache_key k = {.first = item->first, .end = item->end};
    char path[PATH_MAX];
    int fd;
    memcpy(k.model_id, item->model_id, DIGEST_BYTES);
    enum err_code rc = cache_path(&k, item->partial ? CACHE_PARTIAL : CACHE_WHOLE, path, e);
    if (rc == OK)
        rc = cache_lock(&k, &fd, e);
    if (rc != OK)
        return rc;
    if (unlink(path) != 0 && errno != ENOENT)
        rc = err_set_os(e, ERR_IO, errno, "cannot remove %s", path);
    cache_unlock(&k, fd);
    return rc;
}

/* Locks and journals of files that are gone. */
static enum err_code sweep(struct visitor *v, int dir_fd, const char *name, const struct cache_key *k,
                           enum cache_kind kind, struct err *e)
{
    (void)v, (void)dir_fd, (void)name, (void)e;
    int fd;
    if ((kind == CACHE_LOCK || kind == CACHE_JOURNAL) && !is_there(k, CACHE_WHOLE) && !is_there(k, CACHE_PARTIAL) &&
        cache_lock(k, &fd, NULL) == OK)
        cache_unlock(k, fd);
    return OK;
}

static int by_use(const void *a, const void *b)
{
    const struct cache_item *x = a, *y = b;
    if (x->used_s != y->used_s)
        return x->used_s < y->used_s ? -1 : 1;
    return by_window(a, b);
}

enum err_code cache_gc(uint64_t max_bytes, int64_t partial_s, size_t *removed, uint64_t *bytes, struct err *e)
{
    struct visitor v = {.visit = sweep};
    struct cache_item *items = NULL;
    size_t n = 0;
    uint64_t left = 0;
    const int64_t now = time(NULL);
    enum err_code rc = cache_scan(NULL, &items, &n, e), failed = OK;
    if (rc != OK)
        return rc;
    *removed = 0;
    *bytes = 0;
    if (n > 0)
        qsort(items, n, sizeof *items, by_use);
    for (size_t i = 0; i < n; i++)
        left += items[i].size;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < n; i++) {
            struct cache_item *x = &items[i];
            const bool old = x->partial && now - x->used_s >= partial_s;
            if (x->path[0] == 0 || !(pass == 0 ? old : left > max_bytes))
                continue;
            struct err why;
            rc = cache_remove(x, &why);
            x->path[0] = 0; /* it was its turn */
            if (rc == OK) {
                ++*removed;
                *bytes += x->size;
                left -= x->size;
            } else if (rc != ERR_BUSY && failed == OK) {
                failed = rc;
                if (e)
                    *e = why;
            }
        }
    free(items);
    rc = walk(&v, NULL, failed == OK ? e : NULL);
    return failed == OK ? rc : failed;
}
