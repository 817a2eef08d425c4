/* SPDX-License-Identifier: MIT
 *
 * The access log of an HTTP server: a JSON line for each request when it is over. Who asked for what, what came of it
 * and how long it took; no query, header or body, so nothing secret. Whoever serves says when, on the server's loop,
 * which a log that nobody reads must not stop: lines are lost then, with a warning.
 */
#ifndef KVASIR_HTTP_ACCESS_H
#define KVASIR_HTTP_ACCESS_H

#include "base/buf.h"

struct http_access {
    const char *peer, *method, *path; /* "": not understood */
    unsigned status;                  /* 499: the client went away first */
    uint64_t ns;                      /* from the request's last byte to the answer's; refused: from its first byte */
    const char *id;                   /* of the request; NULL: it has none */
    const struct buf *more;           /* further members, each with a comma before it; NULL: none */
};

/* path: a file that is appended to, "-" for the standard error. *fd is the caller's to close. ERR_IO. */
enum err_code http_access_open(const char *path, int *fd, struct err *e) KV_MUST_USE;
/* fd -1: nowhere. */
void http_access_write(int fd, const struct http_access *l);

#endif
