/* SPDX-License-Identifier: MIT
 *
 * A node's inbox: frames on their way from the predecessor's link to the compute thread, in the order in which they
 * came, and what wakes that thread. As many as there are letters can wait; they are made once and used again. Any
 * thread may put, wake and close; one thread takes.
 */
#ifndef KVASIR_RING_INBOX_H
#define KVASIR_RING_INBOX_H

#include "base/buf.h"
#include "ring/frame.h"

struct letter {
    struct frame_header h;
    uint64_t generation; /* of the link it came by (edges.h) */
    struct buf payload;
    struct letter *next; /* private */
};

struct inbox; /* opaque */

/* ERR_NOMEM. */
enum err_code inbox_new(uint32_t n_letters, struct inbox **out, struct err *e) KV_MUST_USE;
/* NULL is fine. */
void inbox_free(struct inbox *in);

/* Copies a frame; h->length bytes of payload. A probe that comes right behind another that still waits, by the same
 * link and with the same flags, takes its place: it says all that the other did, and more lately. So probes cannot
 * fill the inbox of a rank that computes for long. ERR_LIMIT: all letters wait already; ERR_NOMEM. */
enum err_code inbox_put(struct inbox *in, uint64_t generation, const struct frame_header *h, const uint8_t *payload,
                        struct err *e) KV_MUST_USE;

/* The next inbox_take returns at once, also without a letter. */
void inbox_wake(struct inbox *in);
/* inbox_take returns false from now on. */
void inbox_close(struct inbox *in);
bool inbox_is_closed(struct inbox *in);

/* The next letter in *out, or NULL when none came before the deadline (0: does not wait) or inbox_wake; false once the
 * inbox is closed. Each letter goes back by inbox_give_back. */
bool inbox_take(struct inbox *in, uint64_t deadline_ns, struct letter **out);
void inbox_give_back(struct inbox *in, struct letter *l); /* NULL is fine */

#endif
