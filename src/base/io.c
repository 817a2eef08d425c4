/* SPDX-License-Identifier: MIT */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum err_code io_read_file(const char *path, size_t max, struct buf *out, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set_os(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "cannot open %s", path);
    enum err_code rc = OK;
    size_t before = out->len, total = 0;
    for (;;) {
        uint8_t *p = buf_reserve(out, 65536);
        if (!p) {
            rc = err_set(e, ERR_NOMEM, "out of memory reading %s", path);
            break;
        }
        ssize_t n = read(fd, p, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = err_set_os(e, ERR_IO, errno, "cannot read %s", path);
            break;
        }
        if (n == 0)
            break;
        total += (size_t)n;
        if (total > max) {
            rc = err_set(e, ERR_LIMIT, "%s is larger than the %zu bytes allowed here", path, max);
            break;
        }
        out->len += (size_t)n;
    }
    close(fd);
    if (rc != OK)
        out->len = before;
    return rc;
}

/* --- writing --- */

bool io_write_full(int fd, const void *data, size_t len)
{
    const uint8_t *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n < 0 ? errno : EIO;
            return false;
        }
        p += n;
        len -= (size_t)n;
    }
    return true;
}

enum err_code io_sync_folder_of(const char *path, struct err *e)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(dir, sizeof dir, ".");
    else if (snprintf(dir, sizeof dir, "%.*s", (int)(slash == path ? 1 : slash - path), path) >= (int)sizeof dir)
        return err_set(e, ERR_ARG, "path too long: %s", path);
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) /* one may write into it, but not look: then nobody can sync it */
        return OK;
    int os = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (os == 0 || (fd >= 0 && (os == EINVAL || os == EROFS || os == ENOTSUP)))
        return OK;
    return err_set_os(e, ERR_IO, os, "cannot sync the folder of %s", path);
}

enum err_code io_rename(const char *from, const char *to, struct err *e)
{
    if (rename(from, to) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot give %s its name %s", from, to);
    return io_sync_folder_of(to, e);
}

enum err_code io_atomic_begin(struct io_atomic *f, const char *path, unsigned mode, struct err *e)
{
    f->path = path;
    f->fd = -1;
    for (int tries = 0; f->fd < 0 && tries < 100; tries++) { /* not mkstemp, which knows neither mode nor umask */
        uint64_t any;
        if (getentropy(&any, sizeof any) != 0)
            return err_set_os(e, ERR_IO, errno, "cannot create %s", path);
        if (snprintf(f->tmp, sizeof f->tmp, "%s.tmp-%016llx", path, (unsigned long long)any) >= (int)sizeof f->tmp)
            return err_set(e, ERR_ARG, "path too long: %s", path);
        f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, (mode_t)mode);
        if (f->fd < 0 && errno != EEXIST)
            break;
    }
    return f->fd >= 0 ? OK : err_set_os(e, ERR_IO, errno, "cannot create %s", path);
}

enum err_code io_atomic_commit(struct io_atomic *f, struct err *e)
{
    int os = fsync(f->fd) != 0 ? errno : 0;
    if (close(f->fd) != 0 && os == 0)
        os = errno;
    f->fd = -1;
    if (os == 0 && rename(f->tmp, f->path) != 0)
        os = errno;
    if (os == 0)
        return io_sync_folder_of(f->path, e);
    unlink(f->tmp);
    return err_set_os(e, ERR_IO, os, "cannot write %s", f->path);
}

void io_atomic_abort(struct io_atomic *f)
{
    close(f->fd);
    f->fd = -1;
    unlink(f->tmp);
}

enum err_code io_write_file(const char *path, const void *data, size_t len, unsigned mode, struct err *e)
{
    struct io_atomic f;
    enum err_code rc = io_atomic_begin(&f, path, mode, e);
    if (rc != OK)
        return rc;
    if (!io_write_full(f.fd, data, len)) {
        rc = err_set_os(e, ERR_IO, errno, "cannot write %s", path);
        io_atomic_abort(&f);
        return rc;
    }
    return io_atomic_commit(&f, e);
}

/* --- reading in place --- */

enum err_code io_pread_full(int fd, void *data, size_t len, uint64_t offset, struct err *e)
{
    uint8_t *p = data;
    while (len > 0) {
        ssize_t n = pread(fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_os(e, ERR_IO, errno, "read failed at byte %llu", (unsigned long long)offset);
        if (n == 0)
            return err_set_at(e, ERR_FORMAT, (int64_t)offset, "the file ends %zu bytes early", len);
        p += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return OK;
}

/* --- folders --- */

enum err_code io_mkdirs(const char *path, unsigned mode, struct err *e)
{
    char tmp[PATH_MAX];
    struct stat st;
    if (snprintf(tmp, sizeof tmp, "%s", path) >= (int)sizeof tmp)
        return err_set(e, ERR_ARG, "path too long: %s", path);
    for (char *p = tmp[0] ? tmp + 1 : tmp;; p++) {
        if (*p != '/' && *p != 0)
            continue;
        char c = *p;
        *p = 0;
        if (mkdir(tmp, mode) != 0 && errno != EEXIST)
            return err_set_os(e, ERR_IO, errno, "cannot create the folder %s", tmp);
        *p = c;
        if (c == 0)
            break;
    }
    /* One that is gone again was removed by somebody else meanwhile. */
    if (stat(tmp, &st) == 0 ? !S_ISDIR(st.st_mode) : lstat(tmp, &st) == 0)
        return err_set_os(e, ERR_IO, ENOTDIR, "cannot create the folder %s", tmp);
    return OK;
}

enum err_code io_own_folder(const char *path, struct err *e)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot look at the folder %s", path);
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return err_set(e, ERR_AUTH, "%s is not a folder that only you can write into: remove it, or set KVASIR_HOME",
                       path);
    return OK;
}

enum err_code io_cache_dir(char out[PATH_MAX], struct err *e)
{
    const char *own = getenv("KVASIR_HOME"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool shared = false;
    int n;
    if (own && own[0]) {
        n = snprintf(out, PATH_MAX, "%s", own);
    } else if (xdg && xdg[0] == '/') {
        n = snprintf(out, PATH_MAX, "%s/kvasir", xdg);
    } else if (home && home[0] == '/') {
        n = snprintf(out, PATH_MAX, "%s/.cache/kvasir", home);
    } else {
        n = snprintf(out, PATH_MAX, "/var/tmp/kvasir-%u", (unsigned)geteuid());
        shared = true;
    }
    if (n >= PATH_MAX)
        return err_set(e, ERR_ARG, "the path of the cache folder is too long");
    enum err_code rc = io_mkdirs(out, 0700, e);
    return rc == OK && shared ? io_own_folder(out, e) : rc;
}

/* --- mappings --- */

enum err_code io_map_range(int fd, uint64_t offset, size_t len, struct io_map *out, struct err *e)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t start = offset / page * page;
    size_t lead = (size_t)(offset - start);
    if (len == 0 || len > SIZE_MAX - lead)
        return err_set(e, ERR_ARG, "cannot map %zu bytes", len);
    void *p = mmap(NULL, len + lead, PROT_READ, MAP_PRIVATE, fd, (off_t)start);
    if (p == MAP_FAILED)
        return err_set_os(e, ERR_IO, errno, "cannot map %zu bytes at byte %llu", len, (unsigned long long)offset);
    *out = (struct io_map){.data = (const uint8_t *)p + lead, .len = len, .base = p, .base_len = len + lead};
    return OK;
}

void io_unmap(struct io_map *m)
{
    if (m->base)
        munmap(m->base, m->base_len);
    *m = (struct io_map){0};
}

void io_map_fetch(const struct io_map *m, const void *p, size_t len)
{
#ifdef MADV_POPULATE_READ
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)p / page * page, end = (uintptr_t)p + len;
    uintptr_t lo = (uintptr_t)m->base, hi = lo + m->base_len;
    if (begin >= lo && end <= hi)
        madvise((void *)begin, end - begin, MADV_POPULATE_READ); /* a kernel before 5.14 reads them later */
#else
    (void)m, (void)p, (void)len;
#endif
}

/* --- memory --- */

/* The number of kB behind a word in a file of /proc, in bytes; 0 when it is not there. */
static uint64_t proc_kb(const char *path, const char *word)
{
    char text[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    const char *p = strstr(text, word);
    return p ? strtoull(p + strlen(word), NULL, 10) * 1024 : 0;
}

uint64_t io_resident_bytes(void)
{
    return proc_kb("/proc/self/status", "VmRSS:");
}

uint64_t io_available_bytes(void)
{
    return proc_kb("/proc/meminfo", "MemAvailable:");
}
