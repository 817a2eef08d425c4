/* SPDX-License-Identifier: MIT
 *
 * Files: whole reads, atomic writes, mapped ranges, folders. Blocking; thread-safe (no global state).
 */
#ifndef KVASIR_BASE_IO_H
#define KVASIR_BASE_IO_H

#include "base/buf.h"

#include <limits.h>

/* Appends the file's bytes to out. ERR_NOT_FOUND, ERR_IO, ERR_LIMIT (larger than max), ERR_NOMEM. */
enum err_code io_read_file(const char *path, size_t max, struct buf *out, struct err *e) KV_MUST_USE;

/* Writes to a temporary name beside path, fsyncs, renames: readers see the old or the new content, never a part.
 * mode: permission bits, for example 0600. */
enum err_code io_write_file(const char *path, const void *data, size_t len, unsigned mode, struct err *e) KV_MUST_USE;

/* Reads exactly len bytes at offset. ERR_FORMAT when the file ends before. */
enum err_code io_pread_full(int fd, void *data, size_t len, uint64_t offset, struct err *e) KV_MUST_USE;

/* mkdir -p. */
enum err_code io_mkdirs(const char *path, unsigned mode, struct err *e) KV_MUST_USE;

/* Kvasir's cache folder ($KVASIR_HOME, $XDG_CACHE_HOME/kvasir, $HOME/.cache/kvasir), created; works without HOME
 * (then /var/tmp/kvasir-UID). */
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
