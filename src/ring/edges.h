/* SPDX-License-Identifier: MIT
 *
 * A node's two links kept alive: listens for the edges that the neighbour dials, dials the others again and again,
 * replaces a link when its peer comes back, closes dead ones. Owns the links and one keeper thread.
 */
#ifndef KVASIR_RING_EDGES_H
#define KVASIR_RING_EDGES_H

#include "ring/link.h"

struct edges;

enum edges_end { EDGES_PREDECESSOR, EDGES_SUCCESSOR, EDGES_END_COUNT };

struct edges_config {
    const struct manifest *m; /* borrowed until edges_stop; more than one rank */
    uint32_t rank;
    const struct key_secret *secret; /* borrowed until edges_stop */
    const char *listen_addr;         /* NULL: listen_fd; needed only when a neighbour dials */
    int listen_fd;                   /* -1: none; taken over */
    struct link_options link;
    uint32_t retry_ms; /* first pause between dials, doubled up to 2 s; 0: 100 */
    void *ctx;
    /* A frame from the predecessor, by the link of that generation, on its reader thread; must return soon. None comes
     * by a link that has been replaced or dropped. An error drops the link, and the peer is told. */
    enum err_code (*on_frame)(void *ctx, struct edges *x, uint64_t generation, const struct frame_header *h,
                              const uint8_t *payload, struct err *e);
    /* The link of that generation came up at an end, or went down (code and text say why). Any thread; holds no lock;
     * must not call edges_stop. Two of these may overtake one another: what is true now, edges_generation says. */
    void (*on_state)(void *ctx, enum edges_end end, uint64_t generation, bool up, enum err_code code, const char *text);
};

/* ERR_ARG (no way to listen although a neighbour dials), ERR_IO, ERR_NOMEM. Callbacks may run before it returns; none
 * runs after it has failed. */
enum err_code edges_start(const struct edges_config *config, struct edges **out, struct err *e) KV_MUST_USE;
/* Says BYE with code and text, closes everything, joins. No callback runs after it. NULL is fine. */
void edges_stop(struct edges *x, enum err_code code, const char *text);

/* Whole frames to the successor. Any thread; does not block. ERR_CLOSED while there is no link; else as link_send. */
enum err_code edges_send(struct edges *x, const void *frames, size_t len, struct err *e) KV_MUST_USE;

/* Tells the peer at that end why, and drops the link: it violated the protocol, or the stream to it cannot go on.
 * generation: only this link, not the one that may have replaced it; 0: whichever is up. Any thread; on_state runs on
 * it. */
void edges_drop(struct edges *x, enum edges_end end, uint64_t generation, enum err_code code, const char *text);

/* Number of the link that is up at this end, never used twice; 0 while it is down. lost, when not NULL: why the one
 * before it went down (code never OK; untouched when there was none). Any thread. */
uint64_t edges_generation(struct edges *x, enum edges_end end, struct err *lost);
/* Sum over all links this end has had; never less than before. */
void edges_stats(struct edges *x, enum edges_end end, struct link_stats *out);
uint16_t edges_port(const struct edges *x); /* 0 when it does not listen */

#endif
