/* SPDX-License-Identifier: MIT
 *
 * What cache.c and cache_files.c share: the names of the cache's files, and their locks.
 */
#ifndef KVASIR_SHARD_CACHE_IMPL_H
#define KVASIR_SHARD_CACHE_IMPL_H

#include "shard/cache.h"

#include <sys/stat.h>

enum cache_kind { CACHE_WHOLE, CACHE_PARTIAL, CACHE_JOURNAL, CACHE_LOCK, CACHE_KIND_COUNT };

/* Which window of which model. */
struct cache_key {
    uint8_t model_id[DIGEST_BYTES];
    uint32_t first, end;
};

/* ERR_IO, ERR_ARG (path too long). */
enum err_code cache_path(const struct cache_key *k, enum cache_kind kind, char out[PATH_MAX],
                         struct err *e) KV_MUST_USE;
/* "3-17.gguf" and what lies beside it; the folder's name is not looked at. false: none of ours. */
bool cache_name_read(const char *name, struct cache_key *k, enum cache_kind *kind);

/* Folder and lock file are made where they are not there. ERR_BUSY: another has it. */
enum err_code cache_lock(const struct cache_key *k, int *fd, struct err *e) KV_MUST_USE;
/* The lock file goes, and the model's folder, when nothing else is left. */
void cache_unlock(const struct cache_key *k, int fd);
/* Now. fd: of the lock file, -1: not open. */
void cache_mark_used(const struct cache_key *k, int fd);

/* How many bytes of a part file have come, about. */
uint64_t cache_come(const struct stat *part);

/* Whole and partial ones, without names; model_id NULL: of all models. */
enum err_code cache_scan(const uint8_t *model_id, struct cache_item **out, size_t *n, struct err *e) KV_MUST_USE;

#endif
