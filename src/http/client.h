/* SPDX-License-Identifier: MIT
 *
 * A small HTTP(S) client on libcurl, for commands: one request at a time, blocking, the body handed over as it comes.
 */
#ifndef KVASIR_HTTP_CLIENT_H
#define KVASIR_HTTP_CLIENT_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct http_call {
    const char *method; /* NULL: GET, or POST with a body */
    const char *url;
    const char *bearer; /* token for the Authorization header (printable, else ERR_ARG); NULL: none. Never logged */
    const char *type;   /* of the body */
    const void *body;   /* NULL: none */
    size_t body_len;
    uint32_t connect_ms; /* 0: 5000 */
    uint32_t idle_ms;    /* give up when nothing comes for so long; 0: 60000 */
    void *ctx;
    /* Part of the response body, whatever the status; false: stop (ERR_CANCELLED). May be NULL. */
    bool (*on_data)(void *ctx, const void *data, size_t len);
    /* Asked several times a second; true: stop (ERR_CANCELLED). May be NULL. */
    bool (*cancelled)(void *ctx);
};

/* *status: of the response. OK whatever the status is. ERR_IO (no connection, reset), ERR_TIMEOUT, ERR_CANCELLED,
 * ERR_ARG (URL, token), ERR_AUTH (TLS certificate). The text names the host, never the token. Any thread. */
enum err_code http_call(const struct http_call *call, unsigned *status, struct err *e) KV_MUST_USE;

#endif
