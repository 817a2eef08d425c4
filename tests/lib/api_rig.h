/* SPDX-License-Identifier: MIT
 *
 * Rings in one process that serve the API at every rank: a model of the test data cut into stages, real links, real
 * HTTP. A stage can be made to wait after so many steps, the last one to fail; it keeps its logits. What does not
 * succeed fails the test. For the tests test_api*.c, which are built with it.
 */
#ifndef KVASIR_TESTS_API_RIG_H
#define KVASIR_TESTS_API_RIG_H

#include "api/api.h"
#include "engine/stage.h"

#include <pthread.h>
#include <stdatomic.h>

#define API_RIG_RANKS 3
#define API_RIG_CTX   512u
#define API_RIG_MS    60000u

struct api_rig {
    uint32_t n;
    struct gguf *g;
    struct tok *tok;
    struct chat chat;
    bool has_chat;
    struct manifest m;
    struct manifest_rank rows[API_RIG_RANKS];
    struct key_secret key[API_RIG_RANKS];
    struct api_rig_stage {
        struct api_rig *rig;
        struct stage *stage;
        bool last;
    } stage[API_RIG_RANKS];
    struct node *node[API_RIG_RANKS];
    struct api *api[API_RIG_RANKS];
    int fd[API_RIG_RANKS];       /* listening, until a node takes it over */
    struct api_config config;    /* what all ranks share; may be changed before api_rig_start */
    uint32_t max_waiting;        /* of the nodes; 0: the default */
    atomic_uint held_rank;       /* whose stage api_rig_hold and api_rig_allow are about; the last one */
    atomic_int steps_left;       /* of it, then it waits; -1: it never does */
    atomic_int fail_code;        /* the next step of the last stage fails with it */
    float *logits;               /* [n_logits][n_vocab] of all samples since they were cleared */
    size_t n_logits, cap_logits; /* guarded by mutex */
    pthread_mutex_t mutex;
};

/* n ranks of the model tests/data/NAME.gguf, not started. */
struct api_rig *api_rig_new(const char *name, uint32_t n, uint32_t n_slots);
void api_rig_start(struct api_rig *r, uint32_t i); /* stage, node and API */
void api_rig_stop(struct api_rig *r, uint32_t i);
void api_rig_ready(struct api_rig *r); /* every rank knows that the ring is whole */
struct api_rig *api_rig_up(const char *name, uint32_t n, uint32_t n_slots);
void api_rig_free(struct api_rig *r);
uint16_t api_rig_port(const struct api_rig *r, uint32_t i);
/* The stage of held_rank does n steps more (of which one may be a part of a prompt) and then waits, and the ring with
 * it, as long as the test needs: what a test looks at meanwhile cannot be over before it looks. Without it a text of
 * so many tokens is over whenever the machine is fast, or the test's own thread slow. */
void api_rig_allow(struct api_rig *r, unsigned n);
void api_rig_hold(struct api_rig *r); /* not one step more than the one it is at */
void api_rig_release(struct api_rig *r);
/* Waits until nothing runs, nothing waits and no step is on its way. */
void api_rig_idle(struct api_rig *r);
/* Waits until rank 0 has n requests, of which n_active or more have a slot. */
void api_rig_until(struct api_rig *r, uint32_t n, uint32_t n_active);

#endif
