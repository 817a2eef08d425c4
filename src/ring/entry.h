/* SPDX-License-Identifier: MIT
 *
 * The requests that entered at this node, until they end. On rank 0 the scheduler works on them in this process; from
 * any other rank they travel on to rank 0 as FRAME_SUBMIT, and what becomes of them comes back as FRAME_EVENTS.
 * Whatever happens to the ring, each of them ends exactly once. Any thread may call these functions; a request's
 * callbacks run inside of them, so they must call none.
 */
#ifndef KVASIR_RING_ENTRY_H
#define KVASIR_RING_ENTRY_H

#include "ring/edges.h"
#include "ring/sched.h"

#define ENTRY_MAX_REQUESTS 4096u
#define ENTRY_REASONS      ((uint32_t)SCHED_FAILED + 1)

struct entry;

struct entry_config {
    uint32_t rank;
    struct frame_limits lim;
    size_t max_unheard; /* bytes of prompts on their way, about which rank 0 has said nothing yet; one may always be */
};

/* Since the node began. */
struct entry_stats {
    uint64_t n_submitted; /* of these, running: the rest of n_ended */
    uint64_t n_ended[ENTRY_REASONS];
    uint64_t n_tok; /* generated */
};

enum err_code entry_new(const struct entry_config *config, struct entry **out, struct err *e) KV_MUST_USE;
/* What is left ends as SCHED_CANCELLED. NULL is fine. */
void entry_free(struct entry *en);
void entry_stats_get(struct entry *en, struct entry_stats *out);

/* --- rank 0: the caller talks to the scheduler --- */

/* A new request and its id; end it by entry_end, or undo this when the scheduler refused it. ERR_NOMEM. */
enum err_code entry_add(struct entry *en, const struct sched_request *r, uint64_t *id, struct err *e) KV_MUST_USE;
void entry_undo(struct entry *en, uint64_t id);
/* Unknown ids are ignored. */
void entry_token(struct entry *en, uint64_t id, const struct batch_result *r);
void entry_end(struct entry *en, uint64_t id, enum sched_reason reason, enum err_code code, const char *text);

/* --- other ranks --- */

/* The ring is whole: requests may enter. */
void entry_open(struct entry *en);
/* It is not: all requests end as SCHED_FAILED (code is not OK), rank 0 hears of it if it can be reached, and none may
 * enter. */
void entry_break(struct entry *en, enum err_code code, const char *text);

/* ERR_CLOSED (the ring is not whole), ERR_ARG and ERR_LIMIT (frame_submit_check), ERR_BUSY, ERR_NOMEM: nothing entered.
 * *id is written before the first callback can run. What rank 0 refuses ends as SCHED_FAILED with its code. */
enum err_code entry_submit(struct entry *en, struct edges *x, const struct sched_request *r, uint64_t *id,
                           struct err *e) KV_MUST_USE;
/* Ends the request now and tells rank 0. false: no such request. */
bool entry_cancel(struct entry *en, uint64_t id);

/* FRAME_EVENTS came: takes those of this rank's requests, sends the others on. ERR_PROTOCOL and the codes of
 * frame_events_get. */
enum err_code entry_events(struct entry *en, struct edges *x, const uint8_t *payload, size_t len,
                           struct err *e) KV_MUST_USE;

#endif
