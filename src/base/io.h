/* SPDX-License-Identifier: MIT
 *
 * Files: whole reads, atomic replacement, mapped ranges, folders. Blocking; thread-safe (no global state).
 */
#ifndef KVASIR_BASE_IO_H
#define KVASIR_BASE_IO_H

#include "base/buf.h"

#include <limits.h>

/* Appends the file's bytes to out, nothing on failure. ERR_NOT_FOUND, ERR_IO, ERR_LIMIT (larger than max), ERR_NOMEM.
 */
enum err_code io_read_file(const char *path, size_t max, struct buf *out, struct err *e) KV_MUST_USE;

/* Writes all of data. false: not all of it, errno says why. */
bool io_write_full(int fd, const void *data, size_t len) KV_MUST_USE;

/* A file that replaces the one at path as a whole: it grows under a temporary name beside it, and readers see the old
 * content or the new, never a part. Each begin is followed by one commit or one abort. */
struct io_atomic {
    int fd;           /* to write to */
    const char *path; /* borrowed until then */
    char tmp[PATH_MAX];
};
/* mode: permission bits, for example 0600, less the umask. ERR_ARG (path too long), ERR_IO. */
enum err_code io_atomic_begin(struct io_atomic *f, const char *path, unsigned mode, struct err *e) KV_MUST_USE;
/* Puts it in its place, on the disk. ERR_IO; then nothing is left of it, and the old content stays, unless all that
 * failed was syncing the folder. */
enum err_code io_atomic_commit(struct io_atomic *f, struct err *e) KV_MUST_USE;
void io_atomic_abort(struct io_atomic *f);

/* The whole of it for data at hand. */
enum err_code io_write_file(const char *path, const void *data, size_t len, unsigned mode, struct err *e) KV_MUST_USE;

/* rename(2) within a folder, lasting: the folder is synced. ERR_IO. */
enum err_code io_rename(const char *from, const char *to, struct err *e) KV_MUST_USE;
/* Makes it last that there is a file of this name. File systems that cannot sync a folder are believed. ERR_IO. */
enum err_code io_sync_folder_of(const char *path, struct err *e) KV_MUST_USE;

/* Reads exactly len bytes at offset. ERR_FORMAT when the file ends before. */
enum err_code io_pread_full(int fd, void *data, size_t len, uint64_t offset, struct err *e) KV_MUST_USE;

/* mkdir -p. ERR_IO, also where something else than a folder is in the way. */
enum err_code io_mkdirs(const char *path, unsigned mode, struct err *e) KV_MUST_USE;

/* For a name that somebody else may have been first to take: ERR_AUTH unless it is a folder of this user's that nobody
 * else can write into. ERR_IO. */
enum err_code io_own_folder(const char *path, struct err *e) KV_MUST_USE;

/* Kvasir's cache folder ($KVASIR_HOME, $XDG_CACHE_HOME/kvasir, $HOME/.cache/kvasir), created; works without HOME: then
 * /var/tmp/kvasir-UID, which must be ours alone (io_own_folder). */
enum err_code io_cache_dir(char out[PATH_MAX], struct err *e) KV_MUST_USE;

/* A read-only private mapping of [offset, offset + len) of a file; data points at `offset` itself. */
struct io_map {
    const uint8_t *data;
    size_t len;
    void *base; /* page-aligned, what was mapped */
    size_t base_len;
};
enum err_code io_map_range(int fd, uint64_t offset, size_t len, struct io_map *out, struct err *e) KV_MUST_USE;
void io_unmap(struct io_map *m);

/* Makes the pages of [p, p + len) of the mapping resident now, rather than one by one when touched. Best effort. */
void io_map_fetch(const struct io_map *m, const void *p, size_t len);

/* Resident set of this process in bytes (VmRSS), 0 when unknown. */
uint64_t io_resident_bytes(void);

/* Memory that programs could take now without swapping (MemAvailable), 0 when unknown. */
uint64_t io_available_bytes(void);

#endif
