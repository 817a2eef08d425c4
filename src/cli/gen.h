/* SPDX-License-Identifier: MIT
 *
 * One generation on a node of this process: hands the request in, and carries the tokens from the compute thread to the
 * main thread, which waits on an eventfd among its other descriptors.
 */
#ifndef KVASIR_CLI_GEN_H
#define KVASIR_CLI_GEN_H

#include "ring/node.h"
#include "tok/tok.h"

#include <pthread.h>

struct gen {
    int event_fd; /* readable when there is something to take */
    uint64_t id;
    pthread_mutex_t mutex; /* guards what follows */
    int32_t *tokens;       /* [cap] */
    uint32_t n, n_taken, cap;
    bool ended;
    enum sched_reason reason;
    struct err err;             /* with SCHED_FAILED */
    uint64_t first_ns, last_ns; /* when the first and the latest token came */
};

/* g must stay where it is until gen_fini. eog: from t. t may be NULL (nothing ends the text). */
enum err_code gen_start(struct gen *g, struct node *node, const struct tok *t, const struct tok_ids *prompt,
                        uint32_t n_predict, const struct batch_sampling *sampling, struct err *e) KV_MUST_USE;
/* The next token: true; false when there is none now. *ended: the generation is over and all was taken. Clears the
 * event. */
bool gen_take(struct gen *g, int32_t *token, bool *ended);
/* After the node has stopped or the generation has ended. */
void gen_fini(struct gen *g);

#endif
