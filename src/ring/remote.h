/* SPDX-License-Identifier: MIT
 *
 * Rank 0's side of requests that entered at other ranks: hands them to the scheduler and collects what becomes of them
 * into FRAME_EVENTS, one frame for all events of a step. All functions are called with the lock that guards the
 * scheduler held.
 */
#ifndef KVASIR_RING_REMOTE_H
#define KVASIR_RING_REMOTE_H

#include "ring/entry.h"

struct remote;

/* max: requests that the scheduler may have at once, with and without a slot. own: gets what is for rank 0's own
 * requests. Both borrowed. */
enum err_code remote_new(struct sched *s, struct entry *own, uint32_t max, struct remote **out,
                         struct err *e) KV_MUST_USE;
/* After sched_free. NULL is fine. */
void remote_free(struct remote *rm);

/* A request of this node, with its own callbacks: errors as entry_add and sched_submit. */
enum err_code remote_submit_own(struct remote *rm, const struct sched_request *r, uint64_t *id,
                                struct err *e) KV_MUST_USE;

/* FRAME_SUBMIT and FRAME_CANCEL came. A request that cannot be taken ends, which is an event; the errors are those of a
 * frame that breaks the rules. */
enum err_code remote_submit(struct remote *rm, uint64_t id, const uint8_t *payload, size_t len,
                            const struct frame_limits *lim, bool ready, struct err *e) KV_MUST_USE;
void remote_cancel(struct remote *rm, uint64_t id);

/* The ring broke: nobody knows who still waits for them. */
void remote_fail_all(struct remote *rm, enum err_code code, const char *text);

/* Sends the events on their way. ERR_CLOSED: the successor is gone, and the requests with it; other codes: the stream
 * to it has a hole and must end. Either way they are forgotten. */
enum err_code remote_flush(struct remote *rm, struct edges *x, struct err *e) KV_MUST_USE;

#endif
