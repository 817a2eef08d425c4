/* SPDX-License-Identifier: MIT
 *
 * How two nodes become sure of each other (docs/protocol.md, Handshake): mutual authentication by the Ed25519 keys of
 * the manifest over ephemeral X25519, and a comparison of everything both must agree on. A state machine without I/O:
 * whoever owns the socket moves the bytes (link.h does). A struct belongs to one thread; nothing blocks.
 */
#ifndef KVASIR_RING_HANDSHAKE_H
#define KVASIR_RING_HANDSHAKE_H

#include "crypto/digest.h"
#include "crypto/key.h"
#include "crypto/seal.h"
#include "plan/manifest.h"
#include "ring/session.h"

#define HANDSHAKE_VERSION    1u
#define HANDSHAKE_HEAD_BYTES 16u
#define HANDSHAKE_BODY_MAX   384u /* checked against the real messages at compile time */

/* What one end says about itself and the ring. Everything but rank, peer_rank and the window must be equal. */
struct handshake_hello {
    uint8_t ring_id[DIGEST_BYTES];
    uint8_t model_id[DIGEST_BYTES];
    uint64_t epoch;
    uint32_t n_ranks;
    uint32_t edge;       /* from rank `edge` to rank (edge + 1) % n_ranks */
    uint32_t rank;       /* the sender's; it is the predecessor when rank == edge */
    uint32_t peer_rank;  /* whom the sender expects */
    uint32_t first, end; /* the sender's window */
    uint32_t n_blocks, n_embd, n_vocab, n_ctx, n_slots, n_batch;
    uint32_t wire; /* enum manifest_wire */
};

/* What the node of `rank` says on `edge`, and the key that its peer there must have. ERR_ARG when the edge is not one
 * of that rank's two, or the ring has one rank. */
enum err_code handshake_hello_of(const struct manifest *m, uint32_t rank, uint32_t edge, struct handshake_hello *out,
                                 struct key_public *peer, struct err *e) KV_MUST_USE;

/* Compares; ERR_MISMATCH with one message that names the difference and both values, from my point of view:
 * "window gap: predecessor ends at 20, I begin at 21". Pure. */
enum err_code handshake_check(const struct handshake_hello *mine, const struct handshake_hello *theirs,
                              struct err *e) KV_MUST_USE;

/* The hello as it travels: the fields in the order of the struct, little-endian. Pure; getting checks nothing but
 * sizes. */
#define HANDSHAKE_HELLO_BYTES (2 * DIGEST_BYTES + 8 + 13 * 4)
void handshake_hello_put(const struct handshake_hello *h, uint8_t out[HANDSHAKE_HELLO_BYTES]);
void handshake_hello_get(const uint8_t in[HANDSHAKE_HELLO_BYTES], struct handshake_hello *out);

/* Asks whoever listens about the edge that a dialer wants: fill mine and expected, or refuse by an error, whose message
 * the dialer is told. */
typedef enum err_code (*handshake_edge_fn)(void *ctx, uint32_t edge, struct handshake_hello *mine,
                                           struct key_public *expected, struct err *e);

enum handshake_state {
    HANDSHAKE_WAIT,   /* for handshake_want bytes from the peer */
    HANDSHAKE_DONE,   /* out still has to be sent, then the session begins */
    HANDSHAKE_FAILED, /* out, if any, tells the peer why; err says it here */
};

struct handshake {
    enum handshake_state state;
    struct err err;
    struct handshake_hello mine, theirs;                    /* theirs: once DONE */
    uint8_t out[HANDSHAKE_HEAD_BYTES + HANDSHAKE_BODY_MAX]; /* to send; the owner sets out_len = 0 once it is sent */
    size_t out_len;
    /* private */
    bool dialer, have_keys;
    uint8_t stage;
    const struct key_secret *secret;
    struct key_public expected;
    handshake_edge_fn edge_fn;
    void *edge_ctx;
    struct seal_ephemeral eph;
    struct seal_key tx, rx; /* of the handshake's own messages */
    uint8_t master[SEAL_KEY_BYTES];
    uint8_t transcript[DIGEST_BYTES];
    unsigned my_ciphers, their_ciphers;
    uint8_t in[HANDSHAKE_HEAD_BYTES + HANDSHAKE_BODY_MAX];
    size_t in_len, in_want;
};

/* Both borrow secret until the end. The dialer has its first message in out at once. */
void handshake_dial(struct handshake *h, const struct key_secret *secret, const struct handshake_hello *mine,
                    const struct key_public *expected);
void handshake_listen(struct handshake *h, const struct key_secret *secret, handshake_edge_fn edge_fn, void *edge_ctx);

/* How many bytes the machine takes next; never read more from the socket, what follows may be the session's. 0 unless
 * it waits. */
size_t handshake_want(const struct handshake *h);
/* Gives it up to that many bytes. A change of state and new bytes in out may follow. */
void handshake_input(struct handshake *h, const void *data, size_t len);

/* The session, once DONE. */
void handshake_session(const struct handshake *h, struct session *out);
void handshake_wipe(struct handshake *h);

/* For logs and statistics: "chacha20-poly1305" or "aes-256-gcm". */
const char *handshake_cipher_name(const struct handshake *h);

#endif
