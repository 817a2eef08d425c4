/* SPDX-License-Identifier: MIT
 *
 * A server of src/http with a few paths, and raw sockets that talk to it. Fails the test that runs when something takes
 * longer than WEB_WAIT_MS or does not come. Linked into tests/unit/test_http_*.c only.
 */
#ifndef KVASIR_TESTS_WEB_RIG_H
#define KVASIR_TESTS_WEB_RIG_H

#include "base/buf.h"
#include "http/server.h"

#include <pthread.h>

#define WEB_WAIT_MS 60000u
#define HOST        "Host: x\r\n"

/* What is served: /hello, /echo (the body), /head (a header back), /query (the query back), /stream (parts that the
 * test hands in), /never, /flood (as much as goes), /big (3 MiB at once), /huge (24 MiB, more than socket buffers
 * take), /made/N (N bytes made while they are sent, web_made), /broken/N (the same, but the last piece fails), /file/N
 * (the first N bytes of file_fd). */
struct web {
    struct http_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n_requests, n_done, n_cut, n_wakes;
    uint64_t n_made;             /* bytes of /made */
    unsigned n_refused, refused; /* by the server itself; the last one's status */
    bool own_refusals;           /* they are answered with x/y and the status in brackets */
    struct http_request *stream; /* loop only */
    char part[256];
    bool end, flood;
    int file_fd; /* the test's; set before it is asked for */
};

extern char web_big[3u << 20]; /* what /big is answered with */

/* config.addr may be NULL; ctx and the callbacks are set here. A server whose patience the test does not set has as
 * much as the test. web_stop also joins: counters are final then. */
void web_start(struct web *a, struct http_config config);
void web_stop(struct web *a);

/* Until *value is at least `least`; its value now. */
void web_wait(struct web *a, const unsigned *value, unsigned least);
unsigned web_now(struct web *a, const unsigned *value);

/* A part of /stream, and its end. */
void web_part(struct web *a, const char *text, bool end);

/* Byte i of /made. */
uint8_t web_made(uint64_t i);

int web_dial(const struct web *a);
void web_say_n(int fd, const void *text, size_t n);
void web_say(int fd, const char *text);

/* Reads until `end` has come, or to the end of the connection when it is NULL. */
void web_hear(int fd, struct buf *got, const char *end);

/* Says text on a connection of its own and checks that the answer, to its end, has `want` in it; NULL: any. */
void web_ask(struct web *a, const char *text, size_t n, const char *want);

#endif
