/* SPDX-License-Identifier: MIT
 *
 * The cache of pulled stage files: shards/MODEL_ID/FIRST-END.gguf in Kvasir's cache folder, MODEL_ID in hex. Files
 * there are whole and verified (pull renames them into place), may be read by any number of processes and removed at
 * any time: who has one open or mapped keeps its bytes; who only has its name, and finds nothing there, asks again.
 *
 * Beside each lies FIRST-END.gguf.lock. Who pulls or removes the file holds it (flock), so that one process fetches
 * while others wait; one that dies lets go of it. Its mtime is when the file was last used: that of the file itself
 * stays as it is, so that digests which are remembered by a file's stamps stay valid.
 */
#ifndef KVASIR_SHARD_CACHE_H
#define KVASIR_SHARD_CACHE_H

#include "shard/pull.h"

#include <limits.h>

struct cache_item {
    uint8_t model_id[DIGEST_BYTES];
    uint32_t first, end;
    uint64_t size;  /* of a partial one: what has come */
    int64_t used_s; /* last use, seconds since 1970 */
    bool partial;   /* a pull that did not end, or is at work */
    char name[64];  /* general.name of the model, "" when unknown */
    char path[PATH_MAX];
};

/* "DIR/shards": where it is. Need not be there. */
enum err_code cache_folder(char out[PATH_MAX], struct err *e) KV_MUST_USE;

/* All of them, by model and window; free(*out). Other files in the folder are not looked at. ERR_IO, ERR_NOMEM. */
enum err_code cache_list(struct cache_item **out, size_t *n, struct err *e) KV_MUST_USE;

/* A stage file that holds [first, end) or more of it: the smallest. Marks it as used. Looks at headers and sizes; a
 * file that is not what its name says is removed, with a warning. ERR_NOT_FOUND. */
enum err_code cache_find(const uint8_t model_id[DIGEST_BYTES], uint32_t first, uint32_t end, char path[PATH_MAX],
                         struct err *e) KV_MUST_USE;

/* As cache_find, else pulls the window into the cache, taking what other stage files of the model there hold, and then
 * q->local. q: out and need_index are not looked at; the remote must have an index (ERR_LIMIT). While another process
 * pulls the same window, waits for it; q->progress is called then, too, with what that one has. *result: zeros when
 * nothing was pulled. Errors as pull_window; ERR_TIMEOUT: the other process has done nothing for q->stall_ms. */
enum err_code cache_pull(struct remote *r, const struct pull_request *q, char path[PATH_MAX],
                         struct pull_result *result, struct err *e) KV_MUST_USE;

/* A file that cache_find or cache_pull named turned out to be wrong when its tensors were read: removed, with a
 * warning. ERR_ARG: it is none of the cache's; ERR_BUSY. */
enum err_code cache_reject(const char *path, const char *why, struct err *e) KV_MUST_USE;

/* ERR_BUSY: a pull is at work on it. Fine when it is gone already. */
enum err_code cache_remove(const struct cache_item *item, struct err *e) KV_MUST_USE;

/* Removes partial ones that nobody touched for partial_s seconds, then the longest unused ones, partial or whole, until
 * at most max_bytes are left; what a pull is at work on stays. *removed, *bytes: how many, how large. */
enum err_code cache_gc(uint64_t max_bytes, int64_t partial_s, size_t *removed, uint64_t *bytes,
                       struct err *e) KV_MUST_USE;

#endif
