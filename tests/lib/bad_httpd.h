/* SPDX-License-Identifier: MIT
 *
 * A web server for tests, on loopback, that serves files with ranges and misbehaves when it is told to. A thread for
 * each connection, which is kept alive. It counts what it is asked for and what it sends. Calls from any thread.
 */
#ifndef KVASIR_TESTS_BAD_HTTPD_H
#define KVASIR_TESTS_BAD_HTTPD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bad_how {
    BAD_NOT,           /* an ordinary server: nothing is wrong */
    BAD_IGNORE_RANGE,  /* 200 and all of it */
    BAD_GZIP,          /* content-encoding: gzip */
    BAD_RANGE,         /* content-range says other bytes, n later */
    BAD_RANGE_STAR,    /* content-range does not say how long the file is */
    BAD_LENGTH,        /* content-range says a file n bytes longer */
    BAD_TOO_MUCH,      /* n bytes more than were asked for, and says so */
    BAD_CUT,           /* closes the connection after n bytes of the body */
    BAD_HANG,          /* n bytes of the body, then nothing more; the connection stays open */
    BAD_DRIBBLE,       /* n bytes of the body, then a byte every 20 ms */
    BAD_SLOW,          /* n bytes a second */
    BAD_STATUS,        /* status n, with retry_after unless it is 0 */
    BAD_FLIP,          /* byte n of the file has another lowest bit */
    BAD_NEW_ETAG,      /* another ETag; If-Range does not fit any more: 200 and all of it */
    BAD_NEW_ETAG_206,  /* another ETag, and yet 206 */
    BAD_WEAK_ETAG,     /* W/"..." */
    BAD_GZIP_ETAG,     /* "...-gzip" */
    BAD_NO_ETAG,       /* none, and no Last-Modified */
    BAD_REDIRECT,      /* 302 to `location` */
    BAD_REDIRECT_LOOP, /* 302 to itself */
    BAD_SILENT,        /* takes the request, and closes the connection */
};

struct bad_rule {
    const char *path; /* of which file; NULL: of all */
    enum bad_how how;
    uint32_t retry_after; /* seconds */
    uint64_t n;           /* see above */
    uint32_t skip, times; /* the first `skip` requests go well, then `times` do not; times 0: none does again */
    uint64_t only_at;     /* only requests of ranges that hold this byte of the file; UINT64_MAX or 0: of any */
    const char *location; /* borrowed */
};

#define BAD_MAX_FILES 16
#define BAD_MAX_RULES 8

struct bad_httpd; /* opaque */

/* Ends the program when there is no socket or thread. */
struct bad_httpd *bad_start(void);
void bad_stop(struct bad_httpd *s); /* ends all connections at once */
uint16_t bad_port(const struct bad_httpd *s);

/* path: with the slash, without a query (which is not looked at). data is borrowed. */
void bad_file(struct bad_httpd *s, const char *path, const void *data, size_t len, const char *etag);
/* The file's bytes come from fd (which is borrowed) instead. */
void bad_file_fd(struct bad_httpd *s, const char *path, int fd, uint64_t len, const char *etag);
void bad_rule(struct bad_httpd *s, const struct bad_rule *r); /* the first that fits a request counts */
void bad_clear(struct bad_httpd *s);                          /* no rules any more */
/* Only requests with this bearer token; NULL: any. Others: 401. */
void bad_token(struct bad_httpd *s, const char *token);

struct bad_counts {
    uint32_t n_requests, n_connections;
    uint32_t n_with_token; /* requests with an Authorization header */
    uint32_t n_if_range;
    uint64_t body_bytes; /* handed to sockets */
};
struct bad_counts bad_count(struct bad_httpd *s);
void bad_count_again(struct bad_httpd *s); /* from 0 */

#endif
