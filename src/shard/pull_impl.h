/* SPDX-License-Identifier: MIT
 *
 * What pull.c, pull_jobs.c and pull_journal.c share: a pull at work. The calling thread owns it; workers take jobs and
 * pieces from it, each piece belongs to one of them at a time.
 */
#ifndef KVASIR_SHARD_PULL_IMPL_H
#define KVASIR_SHARD_PULL_IMPL_H

#include "crypto/digest4.h"
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

/* --- digests on the way ---
 * A worker hands what it received to one thread, which takes from up to four workers at once: so digests cost a third
 * of what they would cost each worker. */

#define PULL_BUFFER_BYTES (256u << 10) /* of a buffer, at most */
#define PULL_LANES_BYTES  (8u << 20)   /* of all buffers: with many connections each is smaller */
#define PULL_N_BUFFERS    4u
#define PULL_PAGE_BYTES   4096u

struct pull_lane {      /* a worker's */
    struct digest4 *to; /* what is in the buffers belongs to it */
    uint32_t size;      /* of a buffer: whole pages */
    uint8_t *buf[PULL_N_BUFFERS];
    size_t len[PULL_N_BUFFERS];
    bool ready[PULL_N_BUFFERS]; /* under the hasher's lock: it is the hasher's */
    uint32_t put, take;         /* buffer that is filled, that is hashed next */
};

struct pull_hasher {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t thread;
    struct pull_lane *lanes[PULL_MAX_CONNECTIONS];
    uint32_t turn;       /* whose comes first: all get their turns */
    uint32_t n_flushing; /* lanes that wait for all that is theirs */
    uint32_t buffer_bytes;
    bool end, runs;
};

/* For so many lanes (1..PULL_MAX_CONNECTIONS). */
enum err_code pull_hasher_start(struct pull_hasher *h, uint32_t n_lanes, struct err *e) KV_MUST_USE;
void pull_hasher_stop(struct pull_hasher *h);            /* all lanes are closed */
struct pull_lane *pull_lane_open(struct pull_hasher *h); /* NULL: out of memory */
void pull_lane_close(struct pull_hasher *h, struct pull_lane *l);
/* What is in the buffer buf[put] is digested, and another one is buf[put], empty. All until a flush is of one stream.
 */
void pull_lane_hand_over(struct pull_hasher *h, struct pull_lane *l, struct digest4 *to);
/* Waits until all that was handed over is digested. */
void pull_lane_flush(struct pull_hasher *h, struct pull_lane *l);

/* --- a pull --- */

struct pull_piece {
    uint64_t landed;       /* its first bytes are in the part file */
    uint64_t noted;        /* ... and so many are in the journal */
    struct digest4 *state; /* of what has landed; NULL: nothing has, or it has no digest to compare with */
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
    struct pull_hasher hasher;
    atomic_bool stop;
    atomic_ullong done_bytes, local_bytes, resumed_bytes; /* done: of tensors, landed */

    pthread_mutex_t disk; /* one writes at a time: the kernel lets others spin meanwhile */

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
