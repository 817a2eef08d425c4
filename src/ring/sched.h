/* SPDX-License-Identifier: MIT
 *
 * The scheduler of rank 0: which sequences a step carries. Pure bookkeeping: no threads, no I/O; the node's compute
 * thread owns it.
 *
 * Requests wait for a slot in the order they came, the nodes where they entered taking turns. A slot keeps its tokens
 * when its request has ended; a new one takes the free slot that shares the longest prefix with its prompt, and only
 * the rest is computed. Sequences that have a token ready are spread evenly over the steps in flight, so that all ranks
 * are busy, and go first. Prompts fill what room a step has left, in turns, in chunks that follow each other down the
 * ring without waiting.
 *
 * How long a chunk is. A prompt of n tokens in chunks of c passes S ranks in the time of n/c + S - 1 chunks: smaller
 * chunks fill and drain the ring faster, but each step costs about as much as step_cost tokens before it has any. The
 * sum is least at c = sqrt(n * step_cost / (S - 1)); one rank takes all that fits. While sequences decode, a
 * step carries at most n_prefill tokens of prompts, since a decoded token waits for one step ahead of it at every rank.
 * The weights are read for the decoded tokens anyway, so that small chunks cost little more then.
 *
 * Stale ranks. When a rank answers ERR_STALE (it restarted and holds nothing), what the slots hold is forgotten and the
 * requests in the step begin anew from their tokens so far, once each; the same random numbers are drawn again.
 */
#ifndef KVASIR_RING_SCHED_H
#define KVASIR_RING_SCHED_H

#include "base/err.h"
#include "batch/batch.h"

#include <stddef.h>

enum sched_reason { SCHED_STOP, SCHED_LENGTH, SCHED_CONTEXT, SCHED_CANCELLED, SCHED_FAILED };
#define SCHED_N_REASONS 5u
const char *sched_reason_name(enum sched_reason r); /* "stop", "length", "context", "cancelled", "failed" */

/* A request. The arrays are copied by sched_submit. Callbacks run on the thread that calls the sched_* function which
 * brings them about, must return soon and call none of these functions. */
struct sched_request {
    const int32_t *tokens; /* the prompt; at least one */
    uint32_t n_tokens;
    uint32_t n_predict; /* most tokens to generate, at least 1 */
    const int32_t *eog; /* tokens that end the text (they are not passed to on_token) */
    uint32_t n_eog;
    struct batch_sampling sampling;
    void *ctx;
    void (*on_token)(void *ctx, uint64_t id, const struct batch_result *r);
    /* Exactly once, last. err: OK unless the reason is SCHED_FAILED; text: one line. */
    void (*on_end)(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text);
};

#define SCHED_STEP_COST       4u
#define SCHED_DEFAULT_PREFILL 64u

struct sched_limits {
    uint32_t n_slots, n_ctx, n_vocab, n_batch;
    uint32_t max_steps;   /* in flight; the number of ranks keeps all of them busy */
    uint32_t max_waiting; /* requests beyond those that the slots can take */
    uint32_t n_prefill;   /* most tokens of prompts in a step while sequences decode; 0: SCHED_DEFAULT_PREFILL */
    uint32_t step_cost;   /* of reading the weights, in tokens of a prompt; 0: SCHED_STEP_COST, as on CPUs */
    bool bounded_rewind;  /* slots cannot go back to every position: models with recurrent blocks or sliding windows */
    uint32_t n_checkpoints; /* per slot, of such models: what the stages keep */
};

struct sched; /* opaque */

enum err_code sched_new(const struct sched_limits *lim, struct sched **out, struct err *e) KV_MUST_USE;
void sched_free(struct sched *s); /* ends what is left as SCHED_CANCELLED */

/* ERR_ARG (empty prompt, token outside the vocabulary), ERR_LIMIT (prompt does not fit the context), ERR_BUSY (too many
 * waiting; says how many), ERR_NOMEM. id: never 0, chosen by the caller, unique; id >> 48 tells the entries apart that
 * take turns. No callback ran when it fails. */
enum err_code sched_submit(struct sched *s, uint64_t id, const struct sched_request *r, struct err *e) KV_MUST_USE;
/* Ends the request now; its slot is free again once nothing of it is in flight. false: no such request. */
bool sched_cancel(struct sched *s, uint64_t id);

/* A request begins, or begins anew, with this step: the last rank must know its sampling parameters before it. */
struct sched_start {
    uint64_t request_id;
    uint32_t slot;
    const struct batch_sampling *sampling; /* valid until the next call */
};

/* Fills b (entries, tokens) with the next step, if there is one to send now: true. starts: at least n_slots of room;
 * *n_starts of them (at most BATCH_MAX_ENTRIES) are requests whose first step this is. step_id: to be given back. */
bool sched_compose(struct sched *s, struct batch *b, struct sched_start *starts, uint32_t *n_starts, uint64_t *step_id);

/* A step came back with its results. ERR_PROTOCOL: results that do not fit what was sent (the step is then failed);
 * an unknown step (one that failed before) is ignored. Steps come back in the order they were made: older ones still in
 * flight got lost and fail. */
enum err_code sched_result(struct sched *s, uint64_t step_id, const struct batch_result *r, uint32_t n,
                           struct err *e) KV_MUST_USE;

/* A step failed on its way: the requests in it end as SCHED_FAILED; on ERR_STALE those that did not yet begin anew. */
void sched_fail_step(struct sched *s, uint64_t step_id, enum err_code code, const char *text);
/* Everything that has a slot ends as SCHED_FAILED and nothing is in flight any more (the ring broke). Waiting requests
 * wait on. */
void sched_fail_all(struct sched *s, enum err_code code, const char *text);
/* Those that wait end as SCHED_FAILED (the ring stays broken). */
void sched_fail_waiting(struct sched *s, enum err_code code, const char *text);

struct sched_counts {
    uint32_t n_waiting, n_active, n_steps;
    uint64_t oldest_step_ns; /* when the oldest step in flight was composed; 0: none */
    uint64_t n_prompt_tok;   /* of prompts, computed (twice where a request began anew) */
    uint64_t n_reused_tok;   /* of prompts, not computed, since a slot held them */
    uint64_t n_out_tok;
    uint64_t n_refused;                /* with ERR_BUSY */
    uint64_t n_retried;                /* began anew on ERR_STALE */
    uint64_t n_ended[SCHED_N_REASONS]; /* by reason */
    uint32_t us_per_tok;               /* lately, from a sequence's step to its token; 0: not known yet */
    uint32_t retry_ms; /* about the time between two ends of requests: who was refused may try again then */
};
void sched_count(const struct sched *s, struct sched_counts *out);

#endif
