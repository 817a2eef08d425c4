/* SPDX-License-Identifier: MIT
 *
 * An HTTP/1.1 server on libwebsockets: one thread for all connections, no thread per request. It reads a request's head
 * and body within limits, hands it over, and sends a response, whole or in parts. It knows nothing of what is served.
 * What it cannot take it answers itself, with a status and a sentence; on_request then does not hear of it, on_refused
 * does. Request bodies need a content-length (chunks: 411). A client that closes its sending side before
 * its response is complete counts as gone.
 *
 * Unless said otherwise functions are called on the server's own thread (the loop), which runs all callbacks.
 */
#ifndef KVASIR_HTTP_SERVER_H
#define KVASIR_HTTP_SERVER_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

struct http_server;
struct http_request; /* from on_request until on_gone */

/* A request that the server answered itself. */
struct http_refusal {
    unsigned status;
    const char *text;             /* why, a sentence */
    const char *peer;             /* "127.0.0.1:5123" */
    const struct http_request *r; /* method, path and headers; NULL when its head was not understood or never came */
    uint64_t took_ns;             /* since its first byte */
    /* To be filled in; what stays empty is the sentence as text/plain. Freed by the server. */
    const char *type;
    struct buf headers, body;
};

struct http_config {
    const char *addr;         /* "host:port"; port 0: any */
    uint32_t max_connections; /* 0: 256; more are refused with 503 */
    uint32_t max_body;        /* bytes; 0: 8 MiB; more: 413 */
    uint32_t max_head;        /* bytes of request line and headers, at most 32 KiB; 0: 16 KiB; more: 431 */
    uint32_t head_ms;         /* for a whole request (head and body) to arrive; 0: 10000; then 408 */
    uint32_t idle_ms;         /* kept-alive connections without a request, clients that take nothing at all; 0: 30000 */
    uint32_t max_queued;      /* bytes of http_write that may wait for a slow client; 0: 1 MiB; then it is cut off */
    void *ctx;
    /* A whole request. Respond now or later; may be never (the connection stays until the client goes). */
    void (*on_request)(void *ctx, struct http_request *r);
    /* Exactly once for each request handed over, last: its response is out (done), or the client went away before. */
    void (*on_gone)(void *ctx, struct http_request *r, bool done);
    /* Once for each request that was not handed over and not given up by the client. May be NULL. */
    void (*on_refused)(void *ctx, struct http_refusal *x);
    /* After http_wake, and at least every 100 ms. */
    void (*on_wake)(void *ctx);
};

/* ERR_ARG (address), ERR_IO (in use: says so), ERR_NOMEM. Any thread; callbacks may come before it returns. */
enum err_code http_start(const struct http_config *config, struct http_server **out, struct err *e) KV_MUST_USE;
/* Closes every connection, joins the thread; on_gone runs for open requests. Any thread but the loop. NULL is fine. */
void http_stop(struct http_server *s);
uint16_t http_port(const struct http_server *s);
/* Makes on_wake run soon. Any thread; cheap; calls may be merged. */
void http_wake(struct http_server *s);

/* --- the request; strings live as long as it --- */
const char *http_method(const struct http_request *r); /* "GET", "POST", "OPTIONS", "DELETE", ... */
const char *http_path(const struct http_request *r);   /* "/v1/models", decoded, without the query */
const char *http_query(const struct http_request *r);  /* "a=1&b=2", decoded; "" when there is none */
/* A header's value, name in lower case with or without the colon; NULL when it is not there. */
const char *http_header(const struct http_request *r, const char *name);
const void *http_body(const struct http_request *r, size_t *len);
const char *http_peer(const struct http_request *r); /* "127.0.0.1:5123" */
/* Does the server listen on an address that only this machine reaches? */
bool http_only_local(const struct http_request *r);
uint64_t http_received_ns(const struct http_request *r); /* when its last byte had arrived */
void http_set_user(struct http_request *r, void *user);
void *http_user(const struct http_request *r);

/* --- the response, from within any callback; after http_respond or http_end nothing more may be written. on_gone never
 * runs inside these --- */
struct http_reply {
    unsigned status;
    const char *type;    /* content type; NULL: none */
    const char *headers; /* further lines "Name: value\r\n..."; NULL: none */
};
/* Whole: with a content-length. body is copied. */
void http_respond(struct http_request *r, const struct http_reply *reply, const void *body, size_t len);
/* In parts (chunked); they are sent when the callback returns, what was written in one callback together. */
void http_begin(struct http_request *r, const struct http_reply *reply);
void http_write(struct http_request *r, const void *data, size_t len);
void http_end(struct http_request *r);
/* Of a body that is produced while it is sent: whenever the client takes more, read is asked for the next piece, of at
 * most HTTP_PIECE_BYTES; one piece waits for a slow client. false: the connection is cut, so that nobody takes half a
 * body for a whole one. A HEAD request gets the head alone. ctx lives until on_gone. */
#define HTTP_PIECE_BYTES ((size_t)256 << 10)
struct http_place {
    int fd;
    uint64_t at, len; /* bytes [at, at + len) of the file */
};
struct http_source {
    uint64_t length; /* of the body */
    void *ctx;
    bool (*read)(void *ctx, uint64_t offset, void *data, size_t len);
    /* Where the bytes from offset on lie in a file, as far as they do: they go into the socket without being copied,
     * once the disk has read them; others are served meanwhile. It is asked before each piece; false, or NULL: read is
     * asked. */
    bool (*place)(void *ctx, uint64_t offset, struct http_place *out);
    void (*sent)(void *ctx, size_t len); /* so much more has gone into the socket; may be NULL */
};
void http_send(struct http_request *r, const struct http_reply *reply, const struct http_source *source);
size_t http_queued(const struct http_request *r);   /* bytes that wait for the client */
unsigned http_status(const struct http_request *r); /* of the response; 0: none yet */

#endif
