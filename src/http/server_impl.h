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
    char *path, *query;
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
    struct http_source source; /* what comes after them */
    uint64_t source_pos;       /* read so far */
    uint8_t *piece;            /* [HTTP_PIECE_BYTES], of which [piece_pos, piece_len) waits */
    size_t piece_pos, piece_len;
    uint64_t ahead_pos;     /* of source: up to which the disk was told to read */
    uint64_t disk_since_ns; /* the next bytes are on their way from the disk; 0: they are not */
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
    bool head_seen;   /* the head was looked at, or cannot be: lws reads it */
    bool dirty, dead, cut;
    uint64_t deadline_ns; /* of the state; 0: none */
    int unsent;           /* bytes in the socket that the client had not taken when it was last looked at */
    uint64_t began_ns;    /* the request's first byte */
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
    bool loopback;
    pthread_t thread;
    atomic_bool stop, woken;
    bool accept_paused; /* out of descriptors: again at the next tick */
    uint32_t n_conns;
    struct http_conn *conns, *dirty, *dead;
    struct http_conn *resting; /* those that wait for the disk: the dirty ones of the next turn */
    bool disk_blind;           /* the file system does not tell what is in memory */
    uint8_t *head;             /* [max_head + 1] what a connection has in its socket */
    uint64_t date_s;
    char date[40];
    uint8_t scratch[LWS_PRE + SERVER_IO_BYTES];
};

/* --- server.c --- */
void conn_mark_dirty(struct http_conn *c); /* the loop will look at it before it waits again */
void conn_cut(struct http_conn *c);        /* to be closed at once, when the loop looks at it */
/* The kernel resets a connection whose client has confirmed nothing for so long, as when its machine is gone. 0: never;
 * it also resets one whose client takes a little at a time (its window never fits all that is next), so a body that is
 * more than the socket holds is left to the loop's own deadline. */
void conn_set_patience(const struct http_conn *c, uint32_t ms);

/* --- server_head.c: lws's callback; requests come out of it --- */
int server_lws_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len);
void request_free(struct http_request *r);

/* The name of one of the methods that are served, NULL when it is none. */
const char *head_method(const char *p, size_t n);

/* --- server_check.c --- */
enum head_state { HEAD_PART, HEAD_WHOLE, HEAD_BAD };
struct head_fault {
    unsigned status;
    const char *text;
};
/* Of the n bytes that have come; *f is filled in when they are bad. */
enum head_state head_check(const void *data, size_t n, size_t max, struct head_fault *f);
bool head_token_char(unsigned char c);

/* --- server_reply.c --- */
/* A response of the server itself, after which the connection ends. */
void reply_refuse(struct http_request *r, unsigned status, const char *text);
/* The same in one piece, for connections that lws cannot write to yet. r: NULL when its head did not come. */
void reply_raw(struct http_server *s, int fd, const char *peer, const struct http_request *r, uint64_t took_ns,
               unsigned status, const char *text);
/* Tells of what lws refused in its own way. */
void reply_told(struct http_server *s, const char *peer, unsigned status, const char *text);
/* Sends what the socket takes. */
void reply_flush(struct http_conn *c);
size_t reply_queued(const struct http_request *r);
/* Is there more to come of a body that is produced while it is sent? */
bool reply_has_more(const struct http_request *r);

#endif
