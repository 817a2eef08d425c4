/* SPDX-License-Identifier: MIT
 *
 * Whole rings in one process over loopback sockets, with a stage that computes by arithmetic: it carries positions,
 * rows and history through all blocks, so that a step that is lost, doubled, mixed up or sampled with another request's
 * parameters changes the tokens. What they must be is known without any ring. Everything here fails the test when it
 * does not succeed. For the tests test_ring_node*.c, which are built with it.
 */
#ifndef KVASIR_TESTS_RING_RIG_H
#define KVASIR_TESTS_RING_RIG_H

#include "ring/node.h"

#include <pthread.h>
#include <stdatomic.h>

#define RIG_MAX_RANKS 8
#define RIG_BLOCKS    8
#define RIG_EMBD      8
#define RIG_VOCAB     1000u
#define RIG_CTX       256u
#define RIG_MAX_SLOTS 400
#define RIG_WAIT_MS   30000u
#define RIG_DEATH_MS  20000u /* of links: longer than a slow machine stands still */

/* After the first so many positions. */
struct rig_state {
    uint64_t prefix; /* of the tokens */
    uint64_t looked; /* hash over what the last block gave out */
};

/* How many stages are inside step() at the same time. */
struct rig_meter {
    pthread_mutex_t mutex;
    uint32_t inside, most;
};

struct rig_fake {
    uint32_t rank, n_ranks, first, end, n_slots;
    struct rig_slot {
        uint64_t seed;
        uint32_t n;
        struct rig_state at[RIG_CTX + 1];
    } slot[RIG_MAX_SLOTS];
    struct rig_meter *meter;
    atomic_uint sleep_us;
    atomic_uint_least64_t fail_request; /* a step with this request fails here */
    atomic_int fail_code;
    atomic_uint n_fails, n_resets, n_cuts; /* slots begun anew, cut back */
    atomic_bool hold;                      /* step() waits while it is set */
    atomic_bool holding;
};

struct rig {
    uint32_t n;
    struct manifest m;
    struct manifest_rank rows[RIG_MAX_RANKS];
    struct key_secret key[RIG_MAX_RANKS];
    struct rig_fake fake[RIG_MAX_RANKS];
    struct node *node[RIG_MAX_RANKS];
    int fd[RIG_MAX_RANKS];     /* listening, until a node takes it over */
    struct node_config config; /* what all nodes share */
    struct rig_meter meter;
    atomic_uint n_ready, n_lost;
};

/* A request and what came of it. */
struct ask {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint64_t id, seed;
    int32_t prompt[RIG_CTX];
    uint32_t n_prompt, n_predict;
    int32_t out[RIG_CTX];
    uint32_t n_out, n_ends;
    enum sched_reason reason;
    enum err_code code;
    char text[400];
};

/* First of all in main: argv[1] chooses tests by name, nothing hangs for more than ten minutes, and only errors are
 * logged unless KVASIR_LOG says more (tests that read the log raise it). false: no library of keys. */
bool rig_begin(int argc, char **argv);

/* What a request must get: n_out tokens. */
void rig_expected(const int32_t *prompt, uint32_t n, uint64_t seed, uint32_t n_out, int32_t *out);

/* n ranks with keys, windows and listening sockets, not started. Their links die after RIG_DEATH_MS of silence. */
struct rig *rig_new(uint32_t n, uint32_t n_slots, uint32_t n_batch);
/* Starts a rank by what manifest m says of it: a fresh process as far as its state goes. */
void rig_start(struct rig *r, uint32_t i, const struct manifest *m);
void rig_stop(struct rig *r, uint32_t i);
void rig_ready(struct rig *r);                                      /* waits until rank 0 knows that it is whole */
void rig_ready_at(struct rig *r, uint32_t i);                       /* until that rank does */
struct rig *rig_up(uint32_t n, uint32_t n_slots, uint32_t n_batch); /* all of it */
void rig_free(struct rig *r);
void rig_serves(struct rig *r, uint32_t seed); /* it answers as it should */

struct ask *ask_new(uint32_t seed, uint32_t n_prompt, uint32_t n_predict);
void ask_free(struct ask *a);
enum err_code ask_submit(struct ask *a, struct node *n, struct err *e);
struct ask *ask_send(struct rig *r, uint32_t seed, uint32_t n_prompt, uint32_t n_predict); /* both; must succeed */
struct ask *ask_send_at(struct rig *r, uint32_t rank, uint32_t seed, uint32_t n_prompt, uint32_t n_predict);
void ask_wait(struct ask *a, uint32_t n); /* for n tokens or the end */
/* Waits for the end: for that reason, and the tokens are the right ones. */
void ask_ends(struct ask *a, enum sched_reason reason);
void ask_done(struct ask *a); /* ends by its length; frees it */
/* Callbacks of a request of one's own; ctx is the struct ask. */
void ask_on_token(void *ctx, uint64_t id, const struct batch_result *r);
void ask_on_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text);

#endif
