/* SPDX-License-Identifier: MIT
 *
 * Rings in one process that serve the API at every rank: a model of the test data cut into stages, real links, real
 * HTTP. Stages can be made to wait, to be slow or to fail, and the last one keeps its logits. What does not succeed
 * fails the test. For the tests test_api*.c, which are built with it.
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
    atomic_bool hold;            /* the last stage waits while it is set */
    atomic_uint sleep_us;        /* of the last stage, each step */
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
/* Waits until nothing runs and nothing waits anywhere. */
void api_rig_idle(struct api_rig *r);

#endif
