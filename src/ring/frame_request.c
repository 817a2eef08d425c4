/* SPDX-License-Identifier: MIT
 *
 * Encoders and decoders of the frames that carry requests (docs/protocol.md): sampling parameters for the last rank,
 * whole requests on their way to rank 0, tokens and ends on their way back. Pure functions.
 */
#include "base/text.h"
#include "ring/frame_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLING_FIXED_BYTES 44u
#define BIAS_BYTES           8u
#define REQUEST_FIXED_BYTES  4u
#define SUBMIT_FIXED_BYTES   12u
#define EVENTS_FIXED_BYTES   4u
#define EVENT_TOKEN          1u
#define EVENT_END            2u
#define EVENT_TOKEN_BYTES    24u /* without likeliest tokens */
#define EVENT_END_BYTES      16u /* without text */
#define N_REASONS            5u

_Static_assert(SCHED_STOP == 0 && SCHED_LENGTH == 1 && SCHED_CONTEXT == 2 && SCHED_CANCELLED == 3 && SCHED_FAILED == 4,
               "reasons travel as these numbers");

/* --- sampling parameters --- */

/* What is wrong with them, NULL when nothing is. */
static const char *sampling_fault(const struct batch_sampling *s, uint32_t n_vocab)
{
    if (!isfinite(s->temperature) || !isfinite(s->top_p) || !isfinite(s->min_p) || !isfinite(s->repeat_penalty) ||
        !isfinite(s->frequency_penalty) || !isfinite(s->presence_penalty))
        return "a sampling parameter is not a finite number";
    for (uint32_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].token < 0 || (uint32_t)s->bias[i].token >= n_vocab)
            return "a bias is for a token outside the vocabulary";
        if (isnan(s->bias[i].bias) || s->bias[i].bias == INFINITY)
            return "a bias is neither a finite number nor minus infinity";
    }
    return NULL;
}

static enum err_code sampling_counts_check(const struct batch_sampling *s, struct err *e)
{
    if (s->n_top > BATCH_MAX_TOP)
        return err_set(e, ERR_LIMIT, "%u likeliest tokens were asked for, at most %u are allowed", (unsigned)s->n_top,
                       BATCH_MAX_TOP);
    if (s->n_bias > BATCH_MAX_BIAS)
        return err_set(e, ERR_LIMIT, "%u biases, at most %u are allowed", (unsigned)s->n_bias, BATCH_MAX_BIAS);
    return OK;
}

static enum err_code sampling_check(const struct batch_sampling *s, uint32_t n_vocab, enum err_code code, struct err *e)
{
    enum err_code rc = sampling_counts_check(s, e);
    if (rc != OK)
        return rc;
    const char *fault = sampling_fault(s, n_vocab);
    return fault ? err_set(e, code, "a request: %s", fault) : OK;
}

static uint32_t sampling_bytes(const struct batch_sampling *s)
{
    return SAMPLING_FIXED_BYTES + s->n_bias * BIAS_BYTES;
}

static void sampling_put(struct buf *out, const struct batch_sampling *s)
{
    buf_put_u64(out, s->seed);
    buf_put_f32(out, s->temperature);
    buf_put_f32(out, s->top_p);
    buf_put_f32(out, s->min_p);
    buf_put_f32(out, s->repeat_penalty);
    buf_put_f32(out, s->frequency_penalty);
    buf_put_f32(out, s->presence_penalty);
    buf_put_u32(out, (uint32_t)s->top_k);
    buf_put_u32(out, s->penalty_last_n);
    buf_put_u16(out, (uint16_t)s->n_top);
    buf_put_u16(out, (uint16_t)s->n_bias);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        buf_put_u32(out, (uint32_t)s->bias[i].token);
        buf_put_f32(out, s->bias[i].bias);
    }
}

/* A cursor that ran short is the caller's to notice. */
static enum err_code sampling_read(struct cursor *c, struct batch_sampling *s, struct err *e)
{
    memset(s, 0, sizeof *s);
    s->seed = cursor_u64(c);
    s->temperature = cursor_f32(c);
    s->top_p = cursor_f32(c);
    s->min_p = cursor_f32(c);
    s->repeat_penalty = cursor_f32(c);
    s->frequency_penalty = cursor_f32(c);
    s->presence_penalty = cursor_f32(c);
    s->top_k = (int32_t)cursor_u32(c);
    s->penalty_last_n = cursor_u32(c);
    s->n_top = cursor_u16(c);
    s->n_bias = cursor_u16(c);
    enum err_code rc = sampling_counts_check(s, e);
    for (uint32_t i = 0; rc == OK && i < s->n_bias; i++) {
        s->bias[i].token = (int32_t)cursor_u32(c);
        s->bias[i].bias = cursor_f32(c);
    }
    return rc;
}

/* --- FRAME_REQUEST --- */

enum err_code frame_request_put(struct buf *out, uint64_t request_id, uint32_t slot, const struct batch_sampling *s,
                                struct err *e)
{
    enum err_code rc = sampling_check(s, INT32_MAX, ERR_ARG, e);
    if (rc != OK)
        return rc;
    if (slot >= BATCH_MAX_SLOTS)
        return err_set(e, ERR_ARG, "slot %u, at most %u are allowed", (unsigned)slot, BATCH_MAX_SLOTS);
    struct frame_header h = {
        .type = FRAME_REQUEST, .length = REQUEST_FIXED_BYTES + sampling_bytes(s), .request_id = request_id};
    rc = frame_begin(out, &h, e);
    if (rc != OK)
        return rc;
    buf_put_u16(out, (uint16_t)slot);
    buf_put_u16(out, 0);
    sampling_put(out, s);
    return OK;
}

enum err_code frame_request_get(const void *payload, size_t len, const struct frame_limits *lim, uint32_t *slot,
                                struct batch_sampling *s, struct err *e)
{
    struct cursor c = cursor_of(payload, len);
    uint32_t to = cursor_u16(&c), reserved = cursor_u16(&c);
    struct batch_sampling got;
    enum err_code rc = sampling_read(&c, &got, e);
    if (rc == OK)
        rc = cursor_finish(&c, "request", e);
    if (rc == OK)
        rc = frame_slot_check("request", 0, to, lim, e);
    if (rc != OK)
        return rc;
    if (reserved != 0)
        return err_set(e, ERR_PROTOCOL, "a request's reserved field is 0x%x, not 0", (unsigned)reserved);
    rc = sampling_check(&got, lim->n_vocab, ERR_PROTOCOL, e);
    if (rc != OK)
        return rc;
    *slot = to;
    *s = got;
    return OK;
}

/* --- FRAME_SUBMIT, FRAME_CANCEL --- */

static enum err_code submit_counts_check(const struct frame_limits *lim, uint32_t n_predict, uint32_t n_tokens,
                                         uint32_t n_eog, enum err_code code, struct err *e)
{
    if (n_tokens == 0 || n_predict == 0)
        return err_set(e, code, "a request needs at least one prompt token and one token to generate");
    if (n_tokens >= lim->n_ctx)
        return err_set(e, ERR_LIMIT, "the prompt has %u tokens; with a context of %u at most %u fit",
                       (unsigned)n_tokens, (unsigned)lim->n_ctx, (unsigned)lim->n_ctx - 1);
    if (n_eog > FRAME_MAX_EOG)
        return err_set(e, ERR_LIMIT, "%u tokens end the text, at most %u are allowed", (unsigned)n_eog, FRAME_MAX_EOG);
    return OK;
}

static enum err_code submit_tokens_check(const int32_t *id, uint32_t n, uint32_t n_vocab, enum err_code code,
                                         struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        if (id[i] < 0 || (uint32_t)id[i] >= n_vocab)
            return err_set(e, code, "token %d is not in the vocabulary of %u", (int)id[i], (unsigned)n_vocab);
    }
    return OK;
}

enum err_code frame_submit_check(const struct frame_limits *lim, const struct sched_request *r, struct err *e)
{
    enum err_code rc = submit_counts_check(lim, r->n_predict, r->n_tokens, r->n_eog, ERR_ARG, e);
    if (rc == OK)
        rc = submit_tokens_check(r->tokens, r->n_tokens, lim->n_vocab, ERR_ARG, e);
    if (rc == OK)
        rc = submit_tokens_check(r->eog, r->n_eog, lim->n_vocab, ERR_ARG, e);
    return rc == OK ? sampling_check(&r->sampling, lim->n_vocab, ERR_ARG, e) : rc;
}

enum err_code frame_submit_put(struct buf *out, uint64_t request_id, const struct sched_request *r, struct err *e)
{
    uint64_t length =
        (uint64_t)SUBMIT_FIXED_BYTES + sampling_bytes(&r->sampling) + 4ull * r->n_eog + 4ull * r->n_tokens;
    if (length > FRAME_MAX_PAYLOAD)
        return err_set(e, ERR_LIMIT, "a prompt of %u tokens is %llu bytes, a frame has at most %u",
                       (unsigned)r->n_tokens, (unsigned long long)length, FRAME_MAX_PAYLOAD);
    struct frame_header h = {.type = FRAME_SUBMIT, .length = (uint32_t)length, .request_id = request_id};
    enum err_code rc = frame_begin(out, &h, e);
    if (rc != OK)
        return rc;
    buf_put_u32(out, r->n_predict);
    buf_put_u32(out, r->n_tokens);
    buf_put_u16(out, (uint16_t)r->n_eog);
    buf_put_u16(out, 0);
    sampling_put(out, &r->sampling);
    frame_put_words(out, r->eog, r->n_eog);
    frame_put_words(out, r->tokens, r->n_tokens);
    return OK;
}

enum err_code frame_submit_get(const void *payload, size_t len, const struct frame_limits *lim, struct sched_request *r,
                               int32_t **ids, struct err *e)
{
    struct cursor c = cursor_of(payload, len);
    struct sched_request got = {0};
    got.n_predict = cursor_u32(&c);
    got.n_tokens = cursor_u32(&c);
    got.n_eog = cursor_u16(&c);
    uint32_t reserved = cursor_u16(&c);
    enum err_code rc = sampling_read(&c, &got.sampling, e);
    if (rc == OK && c.short_read)
        rc = cursor_finish(&c, "request", e);
    if (rc == OK && reserved != 0)
        rc = err_set(e, ERR_PROTOCOL, "a request's reserved field is 0x%x, not 0", (unsigned)reserved);
    if (rc == OK)
        rc = submit_counts_check(lim, got.n_predict, got.n_tokens, got.n_eog, ERR_PROTOCOL, e);
    if (rc != OK)
        return rc;
    size_t n = (size_t)got.n_eog + got.n_tokens;
    const uint8_t *words = cursor_bytes(&c, n * 4);
    rc = cursor_finish(&c, "request", e);
    if (rc != OK)
        return rc;
    int32_t *id = malloc(n * sizeof *id);
    if (!id)
        return err_set(e, ERR_NOMEM, "out of memory for a request of %u tokens", (unsigned)got.n_tokens);
    frame_words_copy(id, words, n, FRAME_HOST_SWAPS);
    rc = submit_tokens_check(id, (uint32_t)n, lim->n_vocab, ERR_PROTOCOL, e);
    if (rc == OK)
        rc = sampling_check(&got.sampling, lim->n_vocab, ERR_PROTOCOL, e);
    if (rc != OK) {
        free(id);
        return rc;
    }
    got.eog = id;
    got.tokens = id + got.n_eog;
    *r = got;
    *ids = id;
    return OK;
}

enum err_code frame_cancel_put(struct buf *out, uint64_t request_id, struct err *e)
{
    return frame_begin(out, &(struct frame_header){.type = FRAME_CANCEL, .request_id = request_id}, e);
}

/* --- FRAME_EVENTS --- */

/* Room for one more event of that size, in this frame or the next. false: out of memory. */
static bool events_room(struct frame_events *w, size_t len)
{
    if (w->n == FRAME_MAX_EVENTS)
        frame_events_end(w);
    bool begins = w->n == 0;
    if (!buf_reserve(&w->out, len + (begins ? FRAME_HEADER_BYTES + EVENTS_FIXED_BYTES : 0)))
        return false;
    if (begins) {
        w->begin = w->out.len;
        w->out.len += FRAME_HEADER_BYTES + EVENTS_FIXED_BYTES; /* written at the end */
    }
    w->n++;
    return true;
}

void frame_events_add(struct frame_events *w, const struct frame_event *ev)
{
    size_t n_text = ev->is_end ? strnlen(ev->text, FRAME_MAX_EVENT_TEXT) : 0;
    size_t n_top = ev->token.n_top;
    if (!events_room(w, ev->is_end ? EVENT_END_BYTES + n_text : EVENT_TOKEN_BYTES + n_top * FRAME_TOP_BYTES))
        return;
    buf_put_u64(&w->out, ev->request_id);
    buf_put_u8(&w->out, ev->is_end ? EVENT_END : EVENT_TOKEN);
    if (ev->is_end) {
        buf_put_u8(&w->out, (uint8_t)ev->reason);
        buf_put_u16(&w->out, (uint16_t)n_text);
        buf_put_u32(&w->out, (uint32_t)ev->code);
        buf_put(&w->out, ev->text, n_text);
        return;
    }
    buf_put_u8(&w->out, (uint8_t)n_top);
    buf_put_u16(&w->out, (uint16_t)ev->token.slot);
    buf_put_u32(&w->out, ev->token.pos);
    frame_sample_put(&w->out, &ev->token);
}

void frame_events_add_raw(struct frame_events *w, const void *event, size_t len)
{
    if (events_room(w, len))
        buf_put(&w->out, event, len);
}

void frame_events_end(struct frame_events *w)
{
    if (w->n == 0)
        return;
    uint8_t *at = w->out.data + w->begin;
    size_t length = w->out.len - w->begin - FRAME_HEADER_BYTES;
    frame_header_put(at, &(struct frame_header){.type = FRAME_EVENTS, .length = (uint32_t)length});
    le_put_u16(at + FRAME_HEADER_BYTES, (uint16_t)w->n);
    le_put_u16(at + FRAME_HEADER_BYTES + 2, 0);
    w->n = 0;
}

void frame_events_clear(struct frame_events *w)
{
    buf_clear(&w->out);
    w->n = 0;
}

static enum err_code token_read(struct cursor *c, uint32_t i, uint32_t n_top, uint32_t slot,
                                const struct frame_limits *lim, struct frame_event *ev, struct err *e)
{
    if (n_top > BATCH_MAX_TOP)
        return err_set(e, ERR_LIMIT, "event %u: %u likeliest tokens, at most %u are allowed", (unsigned)i,
                       (unsigned)n_top, BATCH_MAX_TOP);
    ev->token = (struct batch_result){.request_id = ev->request_id, .slot = slot, .n_top = n_top};
    ev->token.pos = cursor_u32(c);
    frame_sample_read(c, &ev->token);
    return c->short_read ? cursor_finish(c, "event", e) : frame_sample_check("event", i, &ev->token, lim, e);
}

static enum err_code end_read(struct cursor *c, uint32_t i, uint32_t reason, uint32_t n_text, struct frame_event *ev,
                              struct err *e)
{
    if (n_text > FRAME_MAX_EVENT_TEXT)
        return err_set(e, ERR_LIMIT, "event %u: a text of %u bytes, at most %u are allowed", (unsigned)i,
                       (unsigned)n_text, FRAME_MAX_EVENT_TEXT);
    int32_t code = (int32_t)cursor_u32(c);
    const uint8_t *text = cursor_bytes(c, n_text);
    if (c->short_read)
        return cursor_finish(c, "event", e);
    if (reason >= N_REASONS || (reason == SCHED_FAILED) != (code != OK))
        return err_set(e, ERR_PROTOCOL, "event %u: an end for reason %u with code %d", (unsigned)i, (unsigned)reason,
                       (int)code);
    ev->reason = (enum sched_reason)reason;
    ev->code = err_known(code) ? (enum err_code)code : ERR_PROTOCOL;
    text_clean(text, n_text, ev->text, sizeof ev->text);
    return OK;
}

static enum err_code event_read(struct cursor *c, uint32_t i, const struct frame_limits *lim, struct frame_event *ev,
                                struct err *e)
{
    ev->request_id = cursor_u64(c);
    uint32_t kind = cursor_u8(c), a = cursor_u8(c), b = cursor_u16(c), rank = frame_entry_rank(ev->request_id);
    if (c->short_read)
        return cursor_finish(c, "event", e);
    if (rank == 0 || rank >= lim->n_ranks)
        return err_set(e, ERR_PROTOCOL, "event %u: its request entered at rank %u, the ring has %u", (unsigned)i,
                       (unsigned)rank, (unsigned)lim->n_ranks);
    if (kind != EVENT_TOKEN && kind != EVENT_END)
        return err_set(e, ERR_PROTOCOL, "event %u is of kind %u, I know %u and %u", (unsigned)i, (unsigned)kind,
                       EVENT_TOKEN, EVENT_END);
    ev->is_end = kind == EVENT_END;
    return ev->is_end ? end_read(c, i, a, b, ev, e) : token_read(c, i, a, b, lim, ev, e);
}

enum err_code frame_events_get(const void *payload, size_t len, const struct frame_limits *lim, frame_event_fn *fn,
                               void *ctx, struct err *e)
{
    struct cursor c = cursor_of(payload, len);
    struct frame_event ev;
    uint32_t n = cursor_u16(&c), reserved = cursor_u16(&c);
    if (c.short_read)
        return cursor_finish(&c, "event", e);
    if (n == 0 || n > FRAME_MAX_EVENTS)
        return err_set(e, ERR_LIMIT, "%u events in a frame, 1 to %u are allowed", (unsigned)n, FRAME_MAX_EVENTS);
    if (reserved != 0)
        return err_set(e, ERR_PROTOCOL, "the reserved field of events is 0x%x, not 0", (unsigned)reserved);
    struct cursor again = c;
    for (uint32_t i = 0; i < n; i++) {
        enum err_code rc = event_read(&c, i, lim, &ev, e);
        if (rc != OK)
            return rc;
    }
    enum err_code rc = cursor_finish(&c, "event", e);
    for (uint32_t i = 0; rc == OK && i < n; i++) {
        size_t at = again.pos;
        rc = event_read(&again, i, lim, &ev, e);
        if (rc == OK)
            fn(ctx, &ev, again.data + at, again.pos - at);
    }
    return rc;
}
