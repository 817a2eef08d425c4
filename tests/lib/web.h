/* SPDX-License-Identifier: MIT
 *
 * An HTTP client for tests that sees what really comes: raw bytes, chunk by chunk, connections it can drop at any
 * moment. One request a connection. Single thread each.
 */
#ifndef KVASIR_TESTS_WEB_H
#define KVASIR_TESTS_WEB_H

#include "base/buf.h"

struct web {
    int fd; /* -1: closed */
    unsigned status;
    struct buf raw;  /* all that came */
    struct buf body; /* without chunks; complete after web_end */
    size_t body_at;  /* in raw; 0: the head is not here yet */
    bool chunked;
};

/* Sends a request; body NULL: none. headers: further lines, may be NULL. false: no connection. */
bool web_send(struct web *w, uint16_t port, const char *method, const char *path, const char *headers,
              const char *body);
/* Reads until the text has come in the body (or the head), the end, or the time is over: was it there? */
bool web_until(struct web *w, const char *text, uint32_t ms);
/* Reads until the connection ends; fills body and status. false: time over, or not a whole response. */
bool web_end(struct web *w, uint32_t ms);
/* A header's value from the response's head, NULL when it is not there. Static storage. */
const char *web_header(struct web *w, const char *name);
const char *web_body(struct web *w);
void web_drop(struct web *w); /* closes the connection at once, with a reset */
void web_free(struct web *w);

/* All of it; *w has the response. false as above. */
bool web_call(struct web *w, uint16_t port, const char *method, const char *path, const char *headers,
              const char *body);

/* The same with these bytes instead of a request of ours. */
bool web_raw(struct web *w, uint16_t port, const void *text, size_t n);

#endif
