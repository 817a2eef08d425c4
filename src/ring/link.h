/* SPDX-License-Identifier: MIT
 *
 * A link: one live, authenticated, encrypted connection to a neighbour, with heartbeats. It is made by link_dial or by
 * a listener, does nothing until link_start attaches its callbacks (frames that arrive before wait in the socket), and
 * ends by link_close. A link has a reader thread, which runs the callbacks, and a writer thread, which sends what the
 * socket did not take at once, and the heartbeats.
 */
#ifndef KVASIR_RING_LINK_H
#define KVASIR_RING_LINK_H

#include "ring/frame.h"
#include "ring/handshake.h"

#define LINK_HEARTBEAT_MS 500u
#define LINK_DEATH_MS     3000u
#define LINK_HANDSHAKE_MS 5000u
#define LINK_QUEUE_BYTES  (16u << 20)
#define LINK_LINGER_MS    250u
#define LINK_MAX_PENDING  16u

struct link;

/* 0 anywhere means the default. */
struct link_options {
    uint32_t heartbeat_ms; /* something is sent at least so often */
    uint32_t death_ms;     /* the link is down after so long without a byte from the peer; > heartbeat_ms */
    uint32_t queue_bytes;  /* what may wait for the socket; one frame may always wait, whatever its size */
    uint32_t linger_ms;    /* how long link_close tries to bring out what is queued */
};

/* Both run on the reader thread, may call link_send and link_bye, must not call link_close, and must return soon: while
 * they run nothing is read. */
struct link_callbacks {
    void *ctx;
    /* Every frame but heartbeats; payload (h->length bytes, any alignment) is valid during the call. FRAME_BYE comes
     * here too, then on_down follows. */
    void (*on_frame)(void *ctx, const struct frame_header *h, const uint8_t *payload);
    /* The link is down, for good; called exactly once, after the last on_frame, unless link_close ended the link
     * before. code and text: what the peer's FRAME_BYE said (also OK), or ERR_CLOSED, ERR_TIMEOUT, ERR_PROTOCOL,
     * ERR_LIMIT, ERR_AUTH, ERR_FORMAT, ERR_NOMEM, ERR_IO. text is one line. */
    void (*on_down)(void *ctx, enum err_code code, const char *text);
};

/* Dials, authenticates, compares, all until the deadline; may be repeated. Errors: as net_tcp_connect; ERR_AUTH (the
 * peer is not `expected`), ERR_MISMATCH, ERR_PROTOCOL, ERR_UNSUPPORTED (version); what the peer refused with has its
 * code and "refused by the peer: " before its text. */
struct link_dial_config {
    const char *addr; /* "host:port" */
    uint64_t deadline_ns;
    const struct key_secret *secret;
    const struct handshake_hello *mine;
    const struct key_public *expected;
};
enum err_code link_dial(const struct link_dial_config *config, struct link **out, struct err *e) KV_MUST_USE;

/* Attaches the callbacks (copied) and starts the threads. opt may be NULL. On failure no callback was or will be called
 * and the link still has to be closed. */
enum err_code link_start(struct link *l, const struct link_callbacks *cb, const struct link_options *opt,
                         struct err *e) KV_MUST_USE;

/* Sends whole frames as frame_*_put made them. Any thread; does not block. ERR_BUSY: the queue is full, nothing of it
 * was taken; ERR_CLOSED: the link is down or not started (on_down says or said why); ERR_ARG, ERR_PROTOCOL, ERR_LIMIT:
 * these are not whole, good frames; ERR_NOMEM: and the link goes down. OK does not mean that it arrived. */
enum err_code link_send(struct link *l, const void *frames, size_t len, struct err *e) KV_MUST_USE;

/* Sends FRAME_BYE, after which link_send gives ERR_CLOSED. The link still has to be closed, which brings it out. */
void link_bye(struct link *l, enum err_code code, uint32_t rank, const char *text);

/* Ends the link and frees it: brings out what is queued (at most linger_ms), joins the threads. No callback runs after
 * it has returned. Any thread but the link's own; hold no lock that a callback takes. NULL is fine. */
void link_close(struct link *l);

/* What the peer said of itself; the edge. Valid until link_close. */
const struct handshake_hello *link_peer(const struct link *l);
uint32_t link_edge(const struct link *l);
const char *link_cipher_name(const struct link *l);
bool link_is_down(const struct link *l);

struct link_stats {
    uint64_t frames_in, frames_out; /* heartbeats included */
    uint64_t bytes_in, bytes_out;   /* on the wire, without TCP's own */
};
void link_stats_get(const struct link *l, struct link_stats *out); /* any thread */

/* Serves all edges of a node on one listening socket. Handshakes run side by side, at most LINK_MAX_PENDING, each with
 * its own deadline; when that many are open, the one that said least for longest makes room. */
struct link_listener;
struct link_listener_config {
    const struct key_secret *secret; /* copied, wiped at the end */
    void *ctx;
    /* On the listener's thread. edge: see handshake.h. on_link: an edge's peer has arrived; the receiver owns the link,
     * must link_start or link_close it, and must return soon. A second link for one edge is possible (the peer came
     * back before this end noticed that the old link is dead). */
    handshake_edge_fn edge;
    void (*on_link)(void *ctx, uint32_t edge, struct link *l);
    uint32_t handshake_ms; /* 0: LINK_HANDSHAKE_MS */
};
/* Listens on addr (net_addr.h, NET_LISTEN), or, when addr is NULL, on the inherited listening socket fd, which it takes
 * over (closed by it, also on failure). */
enum err_code link_listen(const char *addr, int fd, const struct link_listener_config *config,
                          struct link_listener **out, struct err *e) KV_MUST_USE;
uint16_t link_listener_port(const struct link_listener *l);
/* Stops, joins; links already handed out live on. No callback runs after it. Any thread but its own. NULL is fine. */
void link_listener_close(struct link_listener *l);

#endif
