/* SPDX-License-Identifier: MIT
 *
 * The encrypted stream after the handshake (docs/protocol.md, Session): records of at most 64 KiB, and the frames that
 * lie in them one after the other, a frame over as many records as it needs. No I/O. One thread may seal while another
 * reads; nothing else is shared.
 */
#ifndef KVASIR_RING_SESSION_H
#define KVASIR_RING_SESSION_H

#include "base/buf.h"
#include "crypto/seal.h"
#include "ring/frame.h"

#define SESSION_HEAD_BYTES   4u     /* u32 length of what follows, tag included */
#define SESSION_RECORD_MAX   65536u /* bytes of content */
#define SESSION_RECORD_EXTRA (SESSION_HEAD_BYTES + SEAL_TAG_BYTES)

struct session {
    struct seal_key tx, rx;
};
void session_init(struct session *s, enum seal_cipher cipher, const uint8_t tx[SEAL_KEY_BYTES],
                  const uint8_t rx[SEAL_KEY_BYTES]);
void session_wipe(struct session *s);

/* Bytes on the wire of n bytes of content. */
size_t session_wire_bytes(size_t n);

/* One record of 1 <= len <= SESSION_RECORD_MAX bytes; out has room for len + SESSION_RECORD_EXTRA, all of it written.
 */
void session_seal(struct session *s, const void *data, size_t len, uint8_t *out);

/* Turns received bytes into frames. */
struct session_reader {
    struct session *session; /* borrowed */
    uint8_t *in;             /* owned; two whole records fit */
    size_t in_pos, in_len;
    const uint8_t *plain; /* what is left of the record opened last, inside `in` */
    size_t plain_left;
    struct buf frame; /* a frame that spans records */
    bool frame_given; /* the frame was handed out and is dropped at the next call */
    struct err err;   /* sticky */
};
enum err_code session_reader_init(struct session_reader *r, struct session *s, struct err *e) KV_MUST_USE;
void session_reader_fini(struct session_reader *r);

/* Where the next bytes from the socket go, at least one byte; then say how many came. */
uint8_t *session_reader_room(struct session_reader *r, size_t *n);
void session_reader_got(struct session_reader *r, size_t n);

/* The next frame: *found says whether there is one; payload stays valid until the next call of any reader function.
 * ERR_PROTOCOL, ERR_LIMIT (a length), ERR_AUTH (a record was changed, replayed, left out), ERR_NOMEM; the reader then
 * stays failed. */
enum err_code session_reader_next(struct session_reader *r, bool *found, struct frame_header *h,
                                  const uint8_t **payload, struct err *e) KV_MUST_USE;

/* Is a frame or record only half here? Says whether the peer ended in the middle of one. */
bool session_reader_partial(const struct session_reader *r);

#endif
