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
#include "ring/sched.h"

#define FRAME_MAGIC        0x464bu /* "KF" */
#define FRAME_VERSION      2u
#define FRAME_HEADER_BYTES 24u
/* The largest payload: a step of BATCH_MAX_TOK rows of BATCH_MAX_EMBD floats would be 1 GiB; nobody needs that. */
#define FRAME_MAX_PAYLOAD    (64u << 20)
#define FRAME_MAX_RANKS      256u
#define FRAME_MAX_EOG        1024u /* tokens that end a request's text */
#define FRAME_MAX_EVENTS     1024u /* in one frame */
#define FRAME_MAX_EVENT_TEXT 200u

enum frame_type {
    FRAME_HEARTBEAT = 1, /* empty; both ways on every link */
    FRAME_STEP = 2,      /* batch entries, tokens, rows; downstream */
    FRAME_RESULT = 3,    /* batch results; from the last rank over the closing edge to rank 0 */
    FRAME_REQUEST = 4,   /* slot and sampling parameters; from rank 0 to the last rank */
    FRAME_PROBE = 5,   /* rank 0 sends it around; it knows that the ring is whole when it returns, all know its state */
    FRAME_FAIL = 6,    /* a rank could not compute a step: code, rank, text; travels on to rank 0 */
    FRAME_BYE = 7,     /* the sender leaves: code and text; last frame of a link */
    FRAME_SUBMIT = 8,  /* a request; from the rank where it entered on to rank 0 */
    FRAME_CANCEL = 9,  /* that request is over; on to rank 0 */
    FRAME_EVENTS = 10, /* tokens and ends of requests; from rank 0 to the ranks where they entered */
    FRAME_TYPE_COUNT
};

/* Offsets: 0 u16 magic, 2 u8 version, 3 u8 type, 4 u32 length of the payload, 8 u64 step id, 16 u64 request id. */
struct frame_header {
    enum frame_type type;
    uint32_t length;
    uint64_t step_id;
    uint64_t request_id;
};

/* A request's id says where it entered. */
static inline uint32_t frame_entry_rank(uint64_t request_id)
{
    return (uint32_t)(request_id >> 48);
}

void frame_header_put(uint8_t out[FRAME_HEADER_BYTES], const struct frame_header *h);
/* ERR_PROTOCOL names what is wrong and both values (magic, version, type); ERR_LIMIT for the length. */
enum err_code frame_header_get(const uint8_t in[FRAME_HEADER_BYTES], struct frame_header *out,
                               struct err *e) KV_MUST_USE;

/* Errors of the decoders below: ERR_FORMAT (cut short, or bytes left over, with the offset), ERR_LIMIT (a count over
 * its limit), ERR_MISMATCH (row width, number of ranks), ERR_PROTOCOL (any other value). On failure nothing was written
 * to the out-parameters. The encoders append a whole frame or nothing: ERR_NOMEM, ERR_LIMIT (payload too large),
 * ERR_ARG (would be refused). The payloads, byte by byte, are in docs/protocol.md. */
struct frame_limits {
    uint32_t n_slots, n_ctx, n_vocab, n_ranks;
};

/* Copies n 32-bit words between host and wire order: reverses the bytes of each when swap (big-endian hosts). */
void frame_words_copy(void *dst, const void *src, size_t n, bool swap);

/* Put: with_rows says whether b->rows travel (not from the last rank). Appends to out, header included. */
enum err_code frame_step_put(struct buf *out, uint64_t step_id, const struct batch *b, bool with_rows,
                             struct err *e) KV_MUST_USE;
/* Fills b within its capacities (ERR_LIMIT beyond). n_embd must equal b->n_embd when want_rows, else 0. Checks that the
 * entries' n_tok add up, flags are known, slots < n_slots, pos + n_tok <= n_ctx, tokens in [0, n_vocab), no slot
 * twice, no entry without tokens, a reset only at position 0. Rows may hold any bits. Sets n_results to 0. */
enum err_code frame_step_get(const void *payload, size_t len, const struct frame_limits *lim, bool want_rows,
                             struct batch *b, struct err *e) KV_MUST_USE;

/* n may be 0: the step is done and nobody wanted a sample. Log-probabilities are finite, pos <= n_ctx. */
enum err_code frame_result_put(struct buf *out, uint64_t step_id, const struct batch *b, struct err *e) KV_MUST_USE;
enum err_code frame_result_get(const void *payload, size_t len, const struct frame_limits *lim, struct batch *b,
                               struct err *e) KV_MUST_USE;

/* All parameters are finite (a bias may be -inf); their ranges are the sampler's business. */
enum err_code frame_request_put(struct buf *out, uint64_t request_id, uint32_t slot, const struct batch_sampling *s,
                                struct err *e) KV_MUST_USE;
enum err_code frame_request_get(const void *payload, size_t len, const struct frame_limits *lim, uint32_t *slot,
                                struct batch_sampling *s, struct err *e) KV_MUST_USE;

/* Could a request be handed in anywhere in this ring? ERR_ARG (no prompt, nothing to generate, a token outside the
 * vocabulary, a parameter that is not a number), ERR_LIMIT (prompt, stop tokens, tokens to report, biases). */
enum err_code frame_submit_check(const struct frame_limits *lim, const struct sched_request *r,
                                 struct err *e) KV_MUST_USE;
/* r has passed frame_submit_check. Its ctx and callbacks do not travel. */
enum err_code frame_submit_put(struct buf *out, uint64_t request_id, const struct sched_request *r,
                               struct err *e) KV_MUST_USE;
/* r->tokens and r->eog point into *ids, which the caller frees; ctx and callbacks are NULL. ERR_NOMEM. */
enum err_code frame_submit_get(const void *payload, size_t len, const struct frame_limits *lim, struct sched_request *r,
                               int32_t **ids, struct err *e) KV_MUST_USE;

/* No payload: the header has the request's id. */
enum err_code frame_cancel_put(struct buf *out, uint64_t request_id, struct err *e) KV_MUST_USE;

/* A token of a request, or its end. */
struct frame_event {
    uint64_t request_id;
    bool is_end;
    struct batch_result token; /* has the same request id */
    enum sched_reason reason;
    enum err_code code; /* not OK exactly when the reason is SCHED_FAILED */
    char text[FRAME_MAX_EVENT_TEXT + 1];
};
/* Frames of events as they are being written: whole ones lie in out after frame_events_end. {0} is empty;
 * buf_free(&out) ends it. Out of memory shows in out.failed. */
struct frame_events {
    struct buf out;
    size_t begin; /* of the frame that is open */
    uint32_t n;   /* events in it; 0: none is open */
};
/* A token's n_top is within its limit, as frame_result_get leaves it; of a text goes what the limit lets. */
void frame_events_add(struct frame_events *w, const struct frame_event *ev);
void frame_events_add_raw(struct frame_events *w, const void *event, size_t len); /* as frame_events_get gave it */
void frame_events_end(struct frame_events *w);
void frame_events_clear(struct frame_events *w); /* keeps the memory */
/* Checks all events, then calls fn for each of them, in order. bytes: the event as it travels. */
typedef void frame_event_fn(void *ctx, const struct frame_event *ev, const uint8_t *bytes, size_t len);
enum err_code frame_events_get(const void *payload, size_t len, const struct frame_limits *lim, frame_event_fn *fn,
                               void *ctx, struct err *e) KV_MUST_USE;

/* What a rank says of itself. Since its process began. */
struct frame_row {
    uint64_t n_steps, n_tok, busy_ns; /* steps and tokens computed, time inside the stage */
    uint64_t bytes_in, bytes_out;     /* from the predecessor, to the successor, on the wire */
    uint64_t rss_bytes;
};
/* What rank 0 says of the requests. */
struct frame_counts {
    uint32_t n_waiting, n_active, n_steps; /* without a slot, with one, steps in flight */
    uint32_t us_per_tok, retry_ms;         /* see sched_counts */
    uint64_t n_prompt_tok, n_out_tok, n_reused_tok, n_refused;
};
struct frame_probe {
    uint64_t nonce;
    uint32_t hops; /* edges passed */
    bool ready;    /* the probe before came around */
    struct frame_counts counts;
    uint32_t n_rows; /* ranks of the ring */
    struct frame_row rows[FRAME_MAX_RANKS];
};
enum err_code frame_probe_put(struct buf *out, const struct frame_probe *p, struct err *e) KV_MUST_USE;
enum err_code frame_probe_get(const void *payload, size_t len, const struct frame_limits *lim, struct frame_probe *out,
                              struct err *e) KV_MUST_USE;

/* FRAME_FAIL and FRAME_BYE. Text of at most 255 bytes. Unknown codes become ERR_PROTOCOL; control characters and bytes
 * that are not UTF-8 become '?'. The code may be OK (a BYE in order); a receiver of FAIL with OK treats it as
 * ERR_PROTOCOL. */
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
