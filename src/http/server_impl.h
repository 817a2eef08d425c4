/* SPDX-License-Identifier: MIT
 *
 * What the files of the server share: the connection and the request. A connection reads a request (lws parses it),
 * hands it over, sends the response, and begins anew or ends. All of it belongs to the loop's thread.
 */
#ifndef KVASIR_HTTP_SERVER_IMPL_H
#define KVASIR_HTTP_SERVER_IMPL_H

#include "base/buf.h"
#include "http/server.h"

#include <libwebsockets.h>
#include <pthread.h>
#include <stdatomic.h>

#define SERVER_IO_BYTES   16384u          /* read and written at a time */
#define SERVER_PILE_BYTES ((size_t)65536) /* of a response that are put together before they are sent */

enum conn_state {
    CONN_IDLE,    /* no byte of a request yet */
    CONN_READING, /* a part of one */
    CONN_BUSY,    /* a whole one, until its response is out */
    CONN_ENDING,  /* nothing more to say: what the client still sends is thrown away until it has closed too */
};

struct http_request {
    struct http_conn *conn;
    const char *method;
    char *path;
    struct buf headers; /* "name\0value\0" for each */
    struct buf body;
    uint64_t length; /* of the body, as announced */
    uint64_t received_ns;
    void *user;
    unsigned refuse; /* a status: answered by the server itself */
    const char *refuse_text;
    bool http10, head_only; /* HTTP/1.0; HEAD: no body in the response */
    bool keep;              /* the connection may carry another request */
    bool expect_continue;
    bool whole, handed; /* arrived; known to the user of the server */
    unsigned status;    /* of the response; 0: not begun */
    bool chunked, ended;
    struct buf out; /* response bytes from out_pos wait */
    size_t out_pos;
};

struct http_conn {
    struct http_server *s;
    struct http_conn *prev, *next;            /* of the server's connections */
    struct http_conn *next_dirty, *next_dead; /* of lists that the loop works off */
    struct lws *wsi;                          /* NULL: lws has closed it */
    int fd;
    enum conn_state state;
    uint32_t armed;   /* epoll events that are waited for */
    bool leftover;    /* lws has read beyond the request, and is held back */
    bool replay;      /* lws reads such bytes */
    bool half_closed; /* the client sends nothing more */
    bool dirty, dead, cut;
    uint64_t deadline_ns; /* of the state; 0: none */
    struct http_request *r;
    char peer[64];
};

struct http_server {
    struct http_config config;
    struct lws_context *lws;
    struct lws_vhost *vhost;
    lws_log_cx_t log; /* of its own: lws counts its users, with no lock around it */
    int listen_fd, epoll_fd, wake_fd;
    uint16_t port;
    pthread_t thread;
    atomic_bool stop, woken;
    bool accept_paused; /* out of descriptors: again at the next tick */
    uint32_t n_conns;
    struct http_conn *conns, *dirty, *dead;
    uint64_t date_s;
    char date[40];
    uint8_t scratch[LWS_PRE + SERVER_IO_BYTES];
};

/* --- server.c --- */
void conn_mark_dirty(struct http_conn *c); /* the loop will look at it before it waits again */
void conn_cut(struct http_conn *c);        /* to be closed at once, when the loop looks at it */

/* --- server_head.c: lws's callback; requests come out of it --- */
int server_lws_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len);
void request_free(struct http_request *r);

/* --- server_reply.c --- */
/* A response of the server itself, after which the connection ends. */
void reply_refuse(struct http_request *r, unsigned status, const char *text);
/* The same in one piece, for connections that lws cannot write to yet. */
void reply_raw(int fd, unsigned status, const char *text);
/* Sends what the socket takes. */
void reply_flush(struct http_conn *c);
size_t reply_queued(const struct http_request *r);

#endif
