/* SPDX-License-Identifier: MIT
 *
 * A small HTTP(S) client on libcurl, for commands and threads of their own: one request at a time, blocking, the body
 * handed over as it comes. A struct http_client keeps its connections open from call to call.
 */
#ifndef KVASIR_HTTP_CLIENT_H
#define KVASIR_HTTP_CLIENT_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define HTTP_HOST_SIZE 256

/* A response's status and headers, while on_head runs. */
struct http_head;
unsigned http_head_status(const struct http_head *h);
/* The header's value without spaces around it, the first when there are several; NULL: not there. */
const char *http_head_get(const struct http_head *h, const char *name);
/* Who answered: another URL than the one asked for after a redirect. */
const char *http_head_url(const struct http_head *h);
/* Seconds that Retry-After asks for, given as a number or a date; 0: not there. */
uint32_t http_head_retry_s(const struct http_head *h);

struct http_call {
    const char *method; /* NULL: GET, or POST with a body */
    const char *url;
    const char *bearer; /* token for the Authorization header (printable, else ERR_ARG); NULL: none. Never logged */
    const char *type;   /* of the body */
    const void *body;   /* NULL: none */
    size_t body_len;
    const char *const *headers; /* further ones, "Name: value" (printable, else ERR_ARG); n_headers of them */
    uint32_t n_headers;
    uint32_t connect_ms; /* 0: 5000 */
    uint32_t idle_ms;    /* give up when nothing comes for so long; 0: 60000 */
    uint32_t
        floor_b_s; /* ... or, on average over such a time, fewer bytes of the body a second; 0: no matter how few */
    uint32_t chunk_bytes;  /* about how much on_data gets at most; 0: as libcurl likes */
    uint32_t window_bytes; /* so many may be on their way at most; 0: as the system likes */
    /* Go where redirects lead (5 at most; from https to https only). The token stays with its host. */
    bool follow;
    /* The body must be the file's own bytes: no coding is asked for, and a 2xx with one is refused (ERR_PROTOCOL). */
    bool plain;
    void *ctx;
    /* Once, before the body, of the response that counts (not of redirects); false: stop (ERR_CANCELLED). May be NULL.
     */
    bool (*on_head)(void *ctx, const struct http_head *h);
    /* Part of the response body, whatever the status; false: stop (ERR_CANCELLED). May be NULL. */
    bool (*on_data)(void *ctx, const void *data, size_t len);
    /* Asked several times a second; true: stop (ERR_CANCELLED). May be NULL. */
    bool (*cancelled)(void *ctx);
};

/* *status: of the response. OK whatever the status is. ERR_IO (no connection, reset), ERR_TIMEOUT, ERR_CANCELLED,
 * ERR_ARG (URL, token), ERR_AUTH (TLS certificate), ERR_PROTOCOL. The text names the host, never the token. Any thread.
 */
enum err_code http_call(const struct http_call *call, unsigned *status, struct err *e) KV_MUST_USE;

/* The same over connections that stay open. One thread at a time. */
struct http_client;
enum err_code http_client_new(struct http_client **out, struct err *e) KV_MUST_USE;
void http_client_free(struct http_client *c); /* NULL is fine */
enum err_code http_client_call(struct http_client *c, const struct http_call *call, unsigned *status,
                               struct err *e) KV_MUST_USE;
uint64_t http_client_requests(const struct http_client *c); /* how many it has sent, redirected ones too */

/* "host:port" of an http or https URL, without a user or password that may be in it. ERR_ARG. */
enum err_code http_url_host(const char *url, char out[HTTP_HOST_SIZE], struct err *e) KV_MUST_USE;
/* Same scheme, host and port? */
bool http_url_same_site(const char *a, const char *b);

#endif
