/* SPDX-License-Identifier: MIT
 *
 * Pull: the stage file of a window, made from a remote model of which only the window's bytes are fetched: several
 * connections, neighbouring tensors in one request, each tensor's digest checked as it lands.
 *
 * While it is fetched it is OUT.part beside the destination, with OUT.part.journal: what is fetched, from a file of
 * which length and ETag, and how far each piece has come. A pull that was killed goes on where it was: what lies there
 * is digested again rather than believed. At the end it is synced and renamed, so that OUT is whole or not there. Two
 * pulls of the same OUT exclude each other (ERR_BUSY).
 */
#ifndef KVASIR_SHARD_PULL_H
#define KVASIR_SHARD_PULL_H

#include "shard/remote.h"

#define PULL_MAX_LOCAL 64u

struct pull_progress {
    uint64_t done_bytes, total_bytes; /* of the stage file */
    uint64_t received_bytes;          /* from the network, now */
    uint64_t bytes_per_s;             /* lately */
    uint64_t eta_s;                   /* UINT64_MAX: not known */
};

struct pull_request {
    uint32_t first, end;      /* end 0: the model's last */
    const char *out;          /* path of the stage file */
    const uint8_t *model_id;  /* the wanted model; NULL: any */
    bool need_index;          /* refuse to fetch what cannot be verified */
    const char *const *local; /* GGUF files that may hold tensors of the same model: taken from there, digest checked */
    uint32_t n_local;
    uint32_t n_connections; /* 0: 4 */
    uint64_t rate;          /* bytes per second at most; 0: no limit */
    uint32_t stall_ms;      /* cache_pull: wait no longer for a process that does nothing; 0: 300000 */
    void *ctx;
    /* A few times a second, on the calling thread; false: stop (what has come stays for the next time). May be NULL. */
    bool (*progress)(void *ctx, const struct pull_progress *p);
};

struct pull_result {
    uint8_t model_id[DIGEST_BYTES]; /* zero when unverified */
    bool verified;                  /* each tensor against the index */
    uint64_t size;                  /* of the stage file */
    uint64_t received_bytes, local_bytes, resumed_bytes;
    uint64_t n_requests;
};

/* Errors: as remote_open and slice_plan; ERR_MISMATCH: another model, or every origin gave wrong bytes (names tensor
 * and origins); ERR_LIMIT: too little free space, said before anything is fetched (or no index though need_index);
 * ERR_ARG: out is a folder or the like; ERR_IO: disk full, folder not writable; ERR_BUSY; ERR_CANCELLED. Blocking;
 * starts and joins its own threads; memory below 64 MiB, whatever the sizes and the number of connections. */
enum err_code pull_window(struct remote *r, const struct pull_request *q, struct pull_result *out,
                          struct err *e) KV_MUST_USE;

#endif
