/* SPDX-License-Identifier: MIT
 *
 * What pull.c, pull_jobs.c and pull_journal.c share: a pull at work. The calling thread owns it; workers take jobs and
 * pieces from it, each piece belongs to one of them at a time.
 */
#ifndef KVASIR_SHARD_PULL_IMPL_H
#define KVASIR_SHARD_PULL_IMPL_H

#include "crypto/digest.h"
#include "model/slice.h"
#include "shard/pull.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#define PULL_MAX_CONNECTIONS 64u

/* --- the part file and its journal --- */

struct pull_journal {
    int part_fd, fd; /* -1: closed */
    char part[PATH_MAX], path[PATH_MAX];
    bool resumed; /* it holds what an earlier pull fetched */
};

/* Opens OUT.part (locked against other pulls, of `size` bytes) and its journal. key: what it depends on; another one
 * begins anew. landed [n]: how many bytes of each piece are there. ERR_BUSY, ERR_IO, ERR_LIMIT (space). */
enum err_code pull_journal_open(struct pull_journal *j, const char *out, uint64_t size, const uint8_t key[DIGEST_BYTES],
                                size_t n, uint64_t *landed, struct err *e) KV_MUST_USE;
/* Piece i has come so far. Any thread. */
enum err_code pull_journal_put(struct pull_journal *j, size_t i, uint64_t landed, struct err *e) KV_MUST_USE;
/* The part becomes out, durably; the journal goes. */
enum err_code pull_journal_finish(struct pull_journal *j, const char *out, struct err *e) KV_MUST_USE;
void pull_journal_close(struct pull_journal *j); /* what came stays */

/* pwrite of all of it. */
enum err_code pull_pwrite(int fd, const void *data, size_t len, uint64_t at, const char *path,
                          struct err *e) KV_MUST_USE;

/* --- a pull --- */

struct pull_piece {
    uint64_t landed;            /* its first bytes are in the part file */
    uint64_t noted;             /* ... and so many are in the journal */
    struct digest_state *state; /* of what has landed; NULL: nothing has, or it has no digest to compare with */
    bool done;
    bool old;         /* some of it came from an earlier pull */
    uint32_t from;    /* set of origins that gave it */
    uint32_t n_wrong; /* its bytes were not what the index says */
};

struct pull_job {
    uint32_t file;
    uint64_t at, end;
    size_t first, n; /* of pull.order */
};

struct pull {
    struct remote *r;
    const struct pull_request *q;
    struct slice s;
    struct pull_piece *pieces; /* [s.n] */
    size_t *order;             /* [s.n] pieces by file and offset */
    struct pull_job *jobs;
    size_t n_jobs;
    atomic_size_t next; /* job or piece to take */
    struct gguf *local[PULL_MAX_LOCAL];
    uint32_t n_local;
    struct pull_journal journal;
    atomic_bool stop;
    atomic_ullong done_bytes, local_bytes, resumed_bytes; /* done: of tensors, landed */

    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint32_t n_running;
    struct remote_reader *readers[PULL_MAX_CONNECTIONS];
    bool failed;
    struct err err;     /* the first error */
    char wrong[200];    /* "tensor from host, ...", those that were not what the index says */
    uint64_t bucket_ns; /* --rate: the time up to which bytes are paid for */
};

/* The first error counts; all stop. */
void pull_fail(struct pull *p, const struct err *e);

/* By workers: what an earlier pull left is digested, what lies in local files is taken. */
void pull_take_old(struct pull *p);
/* By workers: one job after the other is fetched. */
void pull_fetch(struct pull *p);
/* Of all pieces that are not done. ERR_NOMEM. */
enum err_code pull_make_jobs(struct pull *p, struct err *e) KV_MUST_USE;

#endif
