/* SPDX-License-Identifier: MIT
 *
 * The cache of pulled stage files: shards/MODEL_ID/FIRST-END.gguf in Kvasir's cache folder, MODEL_ID in hex. Files
 * there are whole and verified (pull renames them into place), may be read by any number of processes and removed at
 * any time: who has one mapped keeps its bytes. A lock beside each file lets one process fetch it while others wait for
 * it.
 */
#ifndef KVASIR_SHARD_CACHE_H
#define KVASIR_SHARD_CACHE_H

#include "shard/pull.h"

#include <limits.h>

struct cache_item {
    uint8_t model_id[DIGEST_BYTES];
    uint32_t first, end;
    uint64_t size;
    int64_t used_s; /* last use, seconds since 1970 */
    bool partial;   /* a pull that did not end: OUT.part */
    char name[64];  /* general.name of the model, "" when unknown */
    char path[PATH_MAX];
};

/* All of them, by model and window; free(*out). ERR_IO, ERR_NOMEM. */
enum err_code cache_list(struct cache_item **out, size_t *n, struct err *e) KV_MUST_USE;

/* A stage file that holds [first, end) or more of it: the smallest. Marks it as used. ERR_NOT_FOUND. */
enum err_code cache_find(const uint8_t model_id[DIGEST_BYTES], uint32_t first, uint32_t end, char path[PATH_MAX],
                         struct err *e) KV_MUST_USE;

/* As cache_find, else pulls the window into the cache, taking what other stage files of the model hold from there;
 * while another process does so, waits for it. q: out, model_id, local and need_index are filled in here; the remote
 * must have an index. *result: zeros when nothing was pulled. */
enum err_code cache_pull(struct remote *r, struct pull_request *q, char path[PATH_MAX], struct pull_result *result,
                         struct err *e) KV_MUST_USE;

/* Removes stage files (and partial ones, unless a pull is at work on them: ERR_BUSY). */
enum err_code cache_remove(const struct cache_item *item, struct err *e) KV_MUST_USE;

/* Removes the longest unused ones until at most max_bytes are left, and partial ones older than max_partial_s.
 * *removed, *bytes: how many, how large. */
enum err_code cache_gc(uint64_t max_bytes, int64_t max_partial_s, size_t *removed, uint64_t *bytes,
                       struct err *e) KV_MUST_USE;

#endif
