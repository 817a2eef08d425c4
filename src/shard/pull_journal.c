/* SPDX-License-Identifier: MIT
 *
 * OUT.part and OUT.part.journal: how a pull survives being killed. The journal is a head (what is being made, and on
 * which boot of the machine) and for each piece how many of its bytes were written; an entry is written after the bytes
 * it speaks of. Plain writes, no mapping: a full disk is then an error and not a signal.
 */
#include "shard/pull_impl.h"

#include "base/buf.h"
#include "base/io.h"
#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define HEAD_BYTES (8 + DIGEST_BYTES + 8) /* magic, key, number of pieces */

static const char magic[8] = {'K', 'V', 'P', 'U', 'L', 'L', '0', '1'};

enum err_code pull_pwrite(int fd, const void *data, size_t len, uint64_t at, const char *path, struct err *e)
{
    const uint8_t *p = data;
    while (len > 0) {
        const ssize_t n = pwrite(fd, p, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set_os(e, ERR_IO, n < 0 ? errno : ENOSPC,
                              "cannot write %s (what has come stays there: the same command goes on with it)", path);
        p += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return OK;
}

/* Opens the part and locks it. The name may be moved away between the two, by a pull that just ended. */
static enum err_code part_open(struct pull_journal *j, struct err *e)
{
    for (int tries = 0; tries < 100; tries++) {
        struct stat mine, named;
        const int fd = open(j->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0)
            return err_set_os(e, ERR_IO, errno, "cannot create %s", j->part);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            const int os = errno;
            close(fd);
            return os == EWOULDBLOCK ? err_set(e, ERR_BUSY, "another pull is writing %s", j->part)
                                     : err_set_os(e, ERR_IO, os, "cannot lock %s", j->part);
        }
        if (fstat(fd, &mine) == 0 && stat(j->part, &named) == 0 && mine.st_dev == named.st_dev &&
            mine.st_ino == named.st_ino) {
            if (!S_ISREG(mine.st_mode)) {
                close(fd);
                return err_set(e, ERR_IO, "%s is not a regular file", j->part);
            }
            j->part_fd = fd;
            return OK;
        }
        close(fd);
    }
    return err_set(e, ERR_BUSY, "other pulls are writing %s", j->part);
}

static bool journal_fits(struct pull_journal *j, uint64_t size, const uint8_t key[DIGEST_BYTES], size_t n,
                         uint64_t *landed)
{
    struct stat st;
    const size_t len = HEAD_BYTES + 8 * n;
    uint8_t *data = malloc(len);
    bool ok = data && fstat(j->part_fd, &st) == 0 && (uint64_t)st.st_size == size && fstat(j->fd, &st) == 0 &&
              (uint64_t)st.st_size == len && io_pread_full(j->fd, data, len, 0, NULL) == OK &&
              memcmp(data, magic, 8) == 0 && memcmp(data + 8, key, DIGEST_BYTES) == 0 &&
              le_get_u64(data + 8 + DIGEST_BYTES) == n;
    for (size_t i = 0; ok && i < n; i++)
        landed[i] = le_get_u64(data + HEAD_BYTES + 8 * i);
    free(data);
    return ok;
}

/* Nothing is there yet: the part as one hole, the journal with zeros. */
static enum err_code begin_anew(struct pull_journal *j, uint64_t size, const uint8_t key[DIGEST_BYTES], size_t n,
                                struct err *e)
{
    if (ftruncate(j->fd, 0) != 0 || ftruncate(j->part_fd, 0) != 0 || ftruncate(j->part_fd, (off_t)size) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot make %s a file of %llu bytes", j->part, (unsigned long long)size);
    struct buf b = {0};
    buf_put(&b, magic, sizeof magic);
    buf_put(&b, key, DIGEST_BYTES);
    buf_put_u64(&b, n);
    for (size_t i = 0; i < n; i++)
        buf_put_u64(&b, 0);
    enum err_code rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory for %zu pieces", n)
                                : pull_pwrite(j->fd, b.data, b.len, 0, j->path, e);
    buf_free(&b);
    return rc;
}

static enum err_code space_check(const struct pull_journal *j, uint64_t size, struct err *e)
{
    struct statvfs fs;
    struct stat st;
    char need[16], have[16];
    if (fstatvfs(j->part_fd, &fs) != 0 || fstat(j->part_fd, &st) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot find out how much space there is for %s", j->part);
    const uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize, here = (uint64_t)st.st_blocks * 512;
    if (here < size && left < size - here)
        return err_set(e, ERR_LIMIT, "%s needs %s; its file system has only %s left", j->part,
                       parse_fmt_bytes(size - here, need), parse_fmt_bytes(left, have));
    return OK;
}

enum err_code pull_journal_open(struct pull_journal *j, const char *out, uint64_t size, const uint8_t key[DIGEST_BYTES],
                                size_t n, uint64_t *landed, struct err *e)
{
    *j = (struct pull_journal){.part_fd = -1, .fd = -1};
    const int len = snprintf(j->path, sizeof j->path, "%s.part.journal", out);
    if (len < 0 || len >= (int)sizeof j->path)
        return err_set(e, ERR_ARG, "the path %.100s... is too long", out);
    snprintf(j->part, sizeof j->part, "%.*s", len - 8, j->path);
    struct stat st;
    if (stat(out, &st) == 0 && !S_ISREG(st.st_mode)) /* said now, not when all of it has come */
        return err_set(e, ERR_ARG, "%s is %s: a pull makes a file of its own", out,
                       S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    enum err_code rc = part_open(j, e);
    if (rc == OK) {
        j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (j->fd < 0)
            rc = err_set_os(e, ERR_IO, errno, "cannot create %s", j->path);
    }
    memset(landed, 0, n * sizeof *landed);
    j->resumed = rc == OK && journal_fits(j, size, key, n, landed);
    if (rc == OK && !j->resumed) {
        memset(landed, 0, n * sizeof *landed);
        if (ftruncate(j->part_fd, 0) != 0) /* what another pull left is not in the way */
            rc = err_set_os(e, ERR_IO, errno, "cannot write %s", j->part);
    }
    if (rc == OK)
        rc = space_check(j, size, e);
    if (rc == OK && !j->resumed)
        rc = begin_anew(j, size, key, n, e);
    if (rc != OK && !j->resumed && j->part_fd >= 0 && fstat(j->part_fd, &st) == 0 && st.st_blocks == 0) {
        unlink(j->part); /* an empty one helps nobody */
        unlink(j->path);
    }
    if (rc != OK)
        pull_journal_close(j);
    return rc;
}

enum err_code pull_journal_put(struct pull_journal *j, size_t i, uint64_t landed, struct err *e)
{
    uint8_t v[8];
    le_put_u64(v, landed);
    return pull_pwrite(j->fd, v, sizeof v, HEAD_BYTES + 8 * (uint64_t)i, j->path, e);
}

enum err_code pull_journal_finish(struct pull_journal *j, const char *out, struct err *e)
{
    if (fsync(j->part_fd) != 0) {
        const int os = errno;
        unlink(j->path); /* what reads well now may not be on the disk: nothing of it is believed again */
        return err_set_os(e, ERR_IO, os, "cannot write %s; all of it has to come again", j->part);
    }
    enum err_code rc = io_rename(j->part, out, e);
    if (rc == OK)
        unlink(j->path); /* were it left behind it would not fit: its part is gone */
    return rc;
}

void pull_journal_close(struct pull_journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    if (j->part_fd >= 0)
        close(j->part_fd);
    j->fd = j->part_fd = -1;
}
