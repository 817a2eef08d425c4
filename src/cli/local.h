/* SPDX-License-Identifier: MIT
 *
 * A ring of node processes on this machine: keys, listening sockets, manifest in a private folder that goes when they
 * are read, the children and what they report. The sockets are opened here and inherited, so that no port can be taken
 * in between. Main thread only.
 */
#ifndef KVASIR_CLI_LOCAL_H
#define KVASIR_CLI_LOCAL_H

#include "base/buf.h"
#include "cli/progress.h"
#include "cli/rank.h"
#include "cli/serve.h"
#include "cli/source.h"
#include "shard/pull.h"

#include <limits.h>
#include <poll.h>
#include <sys/types.h>

struct local_child {
    pid_t pid;                /* 0: not started, or already waited for */
    int status_fd, stderr_fd; /* -1: closed */
    struct buf status_in, stderr_in;
    bool began;         /* it has read its key and the manifest */
    bool loaded;        /* its stage is loaded and it listens */
    bool whole;         /* rank 0: a probe went around */
    uint16_t http_port; /* of its API; 0: not yet */
    bool exited;
    int exit_status;    /* as waitpid gives it */
    char last_log[256]; /* its last line on stderr */
    float rate;         /* rank 0: tokens/s of its warm-up; 0: none yet */
    struct {            /* its window, while and after it is pulled */
        uint64_t told_ns, done_bytes, total_bytes, bytes_per_s;
    } pull;
    struct rank_report report;
};

struct local_ring {
    const char *model;                   /* path; borrowed; NULL: at source's origins */
    const struct source_options *source; /* borrowed; may be NULL with a model */
    struct rank_options options;
    struct manifest m;
    struct key_secret *secrets; /* [n_ranks] */
    struct key_public signer;
    int *listen_fds;           /* [n_ranks], -1: handed over */
    char dir[PATH_MAX];        /* "": not made yet, or no longer needed */
    struct local_child *child; /* [n_ranks] */
    bool stopping;             /* local_stop has begun */
    uint32_t warmup;           /* tokens rank 0 generates once the ring is whole */
    bool http;                 /* each rank serves the API on 127.0.0.1 */
    uint32_t http_port;        /* of rank 0, the others follow; 0: any */
    struct serve_options serve;
};

/* Takes the manifest over (also on failure) and completes it: ids, keys, ports; writes it. */
enum err_code local_make(struct local_ring *l, struct manifest *m, const uint8_t model_id[DIGEST_BYTES],
                         struct err *e) KV_MUST_USE;
/* Starts `kvasir node` for a rank. */
enum err_code local_spawn(struct local_ring *l, uint32_t rank, struct err *e) KV_MUST_USE;

/* The children's pipes for poll(2): at most 2 * n_ranks; returns how many. local_read takes what poll found. Lines on
 * stderr go to ours, "rank 1: " before them. */
uint32_t local_poll(const struct local_ring *l, struct pollfd *fds);
void local_read(struct local_ring *l, const struct pollfd *fds, uint32_t n);

/* What a command that waits looks at besides its children. */
struct local_wait {
    int signal_fd; /* signals_open */
    int event_fd;  /* readable when there is news of another kind; -1: none */
    int signal;    /* the one that came, once ERR_CANCELLED was returned */
};
/* Waits until something happens, at most ms, and reads what the children said; l may be NULL: no children.
 * ERR_CANCELLED: a signal; ERR_CLOSED: a child ended, as local_explain says; ERR_IO. */
enum err_code local_wait(struct local_ring *l, struct local_wait *w, int ms, struct err *e) KV_MUST_USE;

/* What the children have of their windows is added to *p; when one of them last said so, 0: never. l may be {0}. */
uint64_t local_pulls(const struct local_ring *l, struct pull_progress *p);
/* Shows that while there is something to pull, else how many ranks are ready; returns the same. */
uint64_t local_show_start(const struct local_ring *l, struct progress *line);

/* A child that has ended although nobody asked it to; -1: none. */
int local_dead(const struct local_ring *l);
/* ERR_CLOSED: "rank 1 ended: ERR_IO: ..." as it said itself, else "rank 1 ended (signal 9); its last line: ..." */
enum err_code local_explain(const struct local_ring *l, uint32_t rank, struct err *e);

/* SIGTERM to all, reads their last reports, SIGKILL after the deadline, waits. */
void local_stop(struct local_ring *l);
void local_fini(struct local_ring *l); /* stops, removes the folder, wipes the keys */

#endif
