/* SPDX-License-Identifier: MIT
 *
 * Frames: what travels inside a session (docs/protocol.md). Fixed little-endian header with explicit offsets, then a
 * payload whose form depends on the type. Decoders take a bounds-checked cursor and refuse unknown types, flags, counts
 * over their limits, and bytes left over. Pure functions.
 */
#ifndef KVASIR_RING_FRAME_H
#define KVASIR_RING_FRAME_H

#include "base/buf.h"
#include "batch/batch.h"

#define FRAME_MAGIC        0x464bu /* "KF" */
#define FRAME_VERSION      1u
#define FRAME_HEADER_BYTES 24u
/* The largest payload: a step of BATCH_MAX_TOK rows of BATCH_MAX_EMBD floats would be 1 GiB; nobody needs that. */
#define FRAME_MAX_PAYLOAD (64u << 20)

enum frame_type {
    FRAME_HEARTBEAT = 1, /* empty; both ways on every link */
    FRAME_STEP = 2,      /* batch entries, tokens, rows; downstream */
    FRAME_RESULT = 3,    /* batch results; from the last rank over the closing edge to rank 0 */
    FRAME_REQUEST = 4,   /* slot and sampling parameters; from rank 0 to the last rank */
    FRAME_PROBE = 5,     /* u64 nonce, u32 hops; rank 0 sends it around and knows the ring is whole when it returns */
    FRAME_FAIL = 6,      /* a rank could not compute a step: code, rank, text; travels on to rank 0 */
    FRAME_BYE = 7,       /* the sender leaves: code and text; last frame of a link */
    FRAME_TYPE_COUNT
};

/* Offsets: 0 u16 magic, 2 u8 version, 3 u8 type, 4 u32 length of the payload, 8 u64 step id, 16 u64 request id. */
struct frame_header {
    enum frame_type type;
    uint32_t length;
    uint64_t step_id;
    uint64_t request_id;
};

void frame_header_put(uint8_t out[FRAME_HEADER_BYTES], const struct frame_header *h);
/* ERR_PROTOCOL names what is wrong and both values (magic, version, type); ERR_LIMIT for the length. */
enum err_code frame_header_get(const uint8_t in[FRAME_HEADER_BYTES], struct frame_header *out,
                               struct err *e) KV_MUST_USE;

/* Errors of the decoders below: ERR_FORMAT (cut short, or bytes left over, with the offset), ERR_LIMIT (a count over
 * its limit), ERR_MISMATCH (row width), ERR_PROTOCOL (any other value). On failure nothing was written to the
 * out-parameters. The encoders append a whole frame or nothing: ERR_NOMEM, ERR_LIMIT (payload too large), ERR_ARG
 * (would be refused). */

/* Copies n 32-bit words between host and wire order: reverses the bytes of each when swap (big-endian hosts). */
void frame_words_copy(void *dst, const void *src, size_t n, bool swap);

/* FRAME_STEP payload: u16 n_entries, u16 reserved 0, u32 n_tok, u32 n_embd (0: no rows), entries (u64 request id,
 * u64 prefix hash, u32 pos, u16 slot, u16 flags, u32 n_tok = 28 bytes), i32 tokens[n_tok], f32 rows[n_tok][n_embd].
 * Put: with_rows says whether b->rows travel (not from the last rank). Appends to out, header included. */
enum err_code frame_step_put(struct buf *out, uint64_t step_id, const struct batch *b, bool with_rows,
                             struct err *e) KV_MUST_USE;
/* Fills b within its capacities (ERR_LIMIT beyond). n_embd must equal b->n_embd when want_rows, else 0. Checks that the
 * entries' n_tok add up, flags are known, slots < n_slots, pos + n_tok <= n_ctx, tokens in [0, n_vocab), no slot
 * twice, no entry without tokens, a reset only at position 0. Rows may hold any bits. Sets n_results to 0. */
struct frame_limits {
    uint32_t n_slots, n_ctx, n_vocab;
};
enum err_code frame_step_get(const void *payload, size_t len, const struct frame_limits *lim, bool want_rows,
                             struct batch *b, struct err *e) KV_MUST_USE;

/* FRAME_RESULT payload: u16 n, u16 reserved 0, then n times u64 request id, u32 pos, u16 slot, u16 reserved 0,
 * i32 token, f32 logprob. n may be 0: the step is done and nobody wanted a sample. logprob is finite, pos <= n_ctx. */
enum err_code frame_result_put(struct buf *out, uint64_t step_id, const struct batch *b, struct err *e) KV_MUST_USE;
enum err_code frame_result_get(const void *payload, size_t len, const struct frame_limits *lim, struct batch *b,
                               struct err *e) KV_MUST_USE;

/* FRAME_REQUEST payload: u16 slot, u16 reserved 0, then the fields of struct batch_sampling in order (u64, f32 x 6,
 * i32, u32). All are finite; their ranges are the sampler's business. */
enum err_code frame_request_put(struct buf *out, uint64_t request_id, uint32_t slot, const struct batch_sampling *s,
                                struct err *e) KV_MUST_USE;
enum err_code frame_request_get(const void *payload, size_t len, const struct frame_limits *lim, uint32_t *slot,
                                struct batch_sampling *s, struct err *e) KV_MUST_USE;

struct frame_probe {
    uint64_t nonce;
    uint32_t hops; /* edges passed */
};
enum err_code frame_probe_put(struct buf *out, const struct frame_probe *p, struct err *e) KV_MUST_USE;
enum err_code frame_probe_get(const void *payload, size_t len, struct frame_probe *out, struct err *e) KV_MUST_USE;

/* FRAME_FAIL and FRAME_BYE payload: i32 code, u32 rank, u16 length of text (at most 255), UTF-8 text. Unknown codes
 * become ERR_PROTOCOL; control characters and bytes that are not UTF-8 become '?'. The code may be OK (a BYE in order);
 * a receiver of FAIL with OK treats it as ERR_PROTOCOL. */
struct frame_fail {
    enum err_code code;
    uint32_t rank;
    char text[256];
};
enum err_code frame_fail_put(struct buf *out, enum frame_type type, uint64_t step_id, const struct frame_fail *f,
                             struct err *e) KV_MUST_USE;
enum err_code frame_fail_get(const void *payload, size_t len, struct frame_fail *out, struct err *e) KV_MUST_USE;

enum err_code frame_heartbeat_put(struct buf *out, struct err *e) KV_MUST_USE;

#endif
