/* SPDX-License-Identifier: MIT
 *
 * A node in its ring: takes steps from the predecessor, runs its stage over them, passes them on; rank 0 also composes
 * the steps and ends the requests. One compute thread runs the stage and nothing else; links have their own threads
 * (edges.h), so that a link never waits for compute. A ring of one node has no links.
 *
 * Requests enter at any node. Frames travel only downstream: steps and sampling parameters from rank 0 to the last
 * rank, results from there to rank 0, probes all the way around; a request from where it entered on to rank 0, its
 * tokens from rank 0 on to where it entered. The latter do not wait for the compute threads that they pass. A step that
 * a rank cannot compute goes on as FRAME_FAIL; so does the news of a lost predecessor.
 */
#ifndef KVASIR_RING_NODE_H
#define KVASIR_RING_NODE_H

#include "ring/entry.h"
#include "ring/stage.h"

#define NODE_STALL_MS 120000u

struct node;

enum node_event_type {
    NODE_READY, /* rank 0: a probe went all the way around */
    NODE_LOST,  /* the ring is broken; code and text say where. It is joined again as soon as the neighbours are back */
};
struct node_event {
    enum node_event_type type;
    enum err_code code;
    const char *text;
};

struct node_config {
    const struct manifest *m; /* borrowed until node_stop */
    uint32_t rank;
    const struct key_secret *secret; /* borrowed until node_stop; NULL in a ring of one */
    struct ring_stage stage;
    const char *listen_addr; /* see edges.h */
    int listen_fd;           /* -1: none */
    struct link_options link;
    uint32_t max_steps;   /* in flight; 0: the number of ranks, at least 1 */
    uint32_t max_waiting; /* requests beyond those in the slots; 0: 64 */
    uint32_t n_prefill;   /* most tokens of prompts in a step while others decode; 0: SCHED_DEFAULT_PREFILL */
    uint32_t step_cost;   /* see sched.h: how short the chunks of prompts are; 0: SCHED_STEP_COST */
    uint32_t stall_ms; /* requests fail when nothing came back, or the ring was broken, for so long; 0: NODE_STALL_MS */
    void *ctx;
    void (*on_event)(void *ctx, const struct node_event *ev); /* may be NULL; compute thread; must not call node_stop */
};

/* ERR_ARG, ERR_IO (listening), ERR_NOMEM. */
enum err_code node_start(const struct node_config *config, struct node **out, struct err *e) KV_MUST_USE;
/* Ends every request (SCHED_CANCELLED), says BYE to the neighbours, joins all threads. NULL is fine. */
void node_stop(struct node *n);

/* Is the ring whole, so that a request may enter here? Rank 0 knows it by a probe that came around, the others by what
 * the latest probe said; a ring of one always is. It is not while this rank's stage has not come back for stall_ms.
 * Waits for it until the deadline; ERR_TIMEOUT says what is missing. */
enum err_code node_wait_ready(struct node *n, uint64_t deadline_ns, struct err *e) KV_MUST_USE;
bool node_is_ready(struct node *n);

/* Hands a request in, on any rank. ERR_ARG, ERR_LIMIT, ERR_BUSY, ERR_NOMEM as sched_submit; ERR_CLOSED on other ranks
 * than 0 while the ring is not whole (on rank 0 it waits for that, at most stall_ms, and then ends as SCHED_FAILED with
 * ERR_CLOSED). On other ranks rank 0 may still refuse it: it then ends as SCHED_FAILED with one of these codes. *id is
 * written before the first callback can run.
 *
 * The request's callbacks run on the compute thread on rank 0, elsewhere on a link's thread, which reads nothing
 * meanwhile: they must return soon. on_end may also run in node_cancel and node_stop, on the thread that calls them.
 * They must not call node functions. Any thread. */
enum err_code node_submit(struct node *n, const struct sched_request *r, uint64_t *id, struct err *e) KV_MUST_USE;
/* on_end has run when it returns; nothing more comes of the request. false: it has ended already, or is not of this
 * node. */
bool node_cancel(struct node *n, uint64_t id);

struct node_stats {
    uint64_t n_steps, n_tok; /* that this stage ran */
    uint64_t busy_ns;        /* inside the stage */
    struct link_stats predecessor, successor;
    struct sched_counts sched;   /* rank 0 */
    struct entry_stats requests; /* that entered at this node */
};
void node_stats_get(struct node *n, struct node_stats *out); /* any thread */

/* The whole ring as this node knows it: each rank by what it wrote into the latest probe that came by here. */
struct node_ring {
    bool ready;      /* as node_is_ready */
    uint64_t age_ms; /* of the rest; UINT64_MAX: no probe has come by */
    uint32_t n_ranks;
    struct frame_counts counts;
    struct frame_row rows[FRAME_MAX_RANKS];
};
void node_ring_state(struct node *n, struct node_ring *out); /* any thread */
uint16_t node_port(const struct node *n);

#endif
