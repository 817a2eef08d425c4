/* SPDX-License-Identifier: MIT
 *
 * Server-sent events (WHATWG HTML, section 9.2.6) as they come off the network, in pieces of any size: finds the data
 * of each event. Names, ids and retry times are of no use here and left out. No I/O; one thread.
 */
#ifndef KVASIR_HTTP_SSE_H
#define KVASIR_HTTP_SSE_H

#include "base/buf.h"

#define SSE_MAX_EVENT (4u << 20) /* bytes of one event, and of one line */

/* {.ctx, .on_event} begins; sse_fini frees. */
struct sse {
    void *ctx;
    /* The data lines of one event, joined by \n, NUL-terminated; valid during the call. false: nothing more is wanted.
     */
    bool (*on_event)(void *ctx, const char *data, size_t len);
    /* private */
    struct buf line, data;
    size_t n_seen;           /* bytes, up to the length of a byte order mark */
    bool after_cr, has_data; /* the last byte was \r; the event has a data line */
};

/* ERR_CANCELLED: on_event said false. ERR_LIMIT, ERR_NOMEM. After an error nothing more may be fed. An event that the
 * stream ends in is none: it may be cut off. */
enum err_code sse_feed(struct sse *s, const void *bytes, size_t n, struct err *e) KV_MUST_USE;
void sse_fini(struct sse *s);

#endif
