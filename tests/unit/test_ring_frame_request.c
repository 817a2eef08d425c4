/* SPDX-License-Identifier: MIT
 *
 * Frames that carry requests, what becomes of them, and the state of the ring: fixed bytes, round trips, every refusal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ring/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ID(rank, n) ((uint64_t)(rank) << 48 | (n))

static const struct frame_limits limits = {.n_slots = 8, .n_ctx = 100, .n_vocab = 1000, .n_ranks = 4};

static const uint8_t *payload_of(const struct buf *b)
{
    return b->data + FRAME_HEADER_BYTES;
}

static size_t payload_len(const struct buf *b)
{
    return b->len - FRAME_HEADER_BYTES;
}

static struct frame_header header_at(const struct buf *b, size_t at)
{
    struct frame_header h;
    struct err e;
    assert_true(b->len >= at + FRAME_HEADER_BYTES);
    assert_int_equal(frame_header_get(b->data + at, &h, &e), OK);
    assert_true(at + FRAME_HEADER_BYTES + h.length <= b->len);
    return h;
}

/* The frame at the beginning is the only one. */
static struct frame_header header_of(const struct buf *b)
{
    struct frame_header h = header_at(b, 0);
    assert_int_equal(h.length, payload_len(b));
    return h;
}

/* The first n bytes, where reading behind them is noticed. */
static uint8_t *cut(const struct buf *b, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, payload_of(b), n);
    return copy;
}

static void says(const struct err *e, const char *part)
{
    if (!strstr(e->msg, part))
        fail_msg("%s lacks: %s", e->msg, part);
}

/* --- request --- */

static const uint8_t golden_request[] = {
    'K',  'F',  2,    4,    64, 0, 0,    0,    0, 0, 0,    0,    0, 0, 0, 0, 0x2a, 0, 0, 0, 0, 0, 0, 0, /* header */
    3,    0,    0,    0,                                                                                /* slot */
    8,    7,    6,    5,    4,  3, 2,    1,                                                             /* seed */
    0,    0,    0,    0x3f, 0,  0, 0x40, 0x3f, 0, 0, 0x80, 0x3e, /* temperature, top_p, min_p */
    0,    0,    0xc0, 0x3f, 0,  0, 0x80, 0xbf, 0, 0, 0,    0x40, /* penalties */
    0xff, 0xff, 0xff, 0xff, 64, 0, 0,    0,    5, 0, 2,    0,    /* top_k, last_n, n_top, n_bias */
    7,    0,    0,    0,    0,  0, 0x80, 0xff,                   /* token 7: -inf */
    0xe7, 3,    0,    0,    0,  0, 0x80, 0x3f,                   /* token 999: 1.0 */
};

static const struct batch_sampling golden_sampling = {.seed = 0x0102030405060708,
                                                      .temperature = 0.5f,
                                                      .top_p = 0.75f,
                                                      .min_p = 0.25f,
                                                      .repeat_penalty = 1.5f,
                                                      .frequency_penalty = -1.0f,
                                                      .presence_penalty = 2.0f,
                                                      .top_k = -1,
                                                      .penalty_last_n = 64,
                                                      .n_top = 5,
                                                      .n_bias = 2,
                                                      .bias = {{7, -INFINITY}, {999, 1.0f}}};

static void request_has_fixed_bytes(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e;
    struct batch_sampling s;
    uint32_t slot;
    assert_int_equal(frame_request_put(&out, 42, 3, &golden_sampling, &e), OK);
    assert_int_equal(out.len, sizeof golden_request);
    assert_memory_equal(out.data, golden_request, sizeof golden_request);
    assert_int_equal(header_of(&out).request_id, 42);
    assert_int_equal(frame_request_get(payload_of(&out), payload_len(&out), &limits, &slot, &s, &e), OK);
    assert_int_equal(slot, 3);
    assert_memory_equal(&s, &golden_sampling, sizeof s);
    buf_free(&out);
}

static void request_refused(size_t at, uint32_t word, enum err_code code, const char *part)
{
    uint8_t p[sizeof golden_request - FRAME_HEADER_BYTES];
    struct batch_sampling s = {.seed = 1};
    uint32_t slot = 99;
    struct err e;
    memcpy(p, golden_request + FRAME_HEADER_BYTES, sizeof p);
    le_put_u32(p + at, word);
    assert_int_equal(frame_request_get(p, sizeof p, &limits, &slot, &s, &e), code);
    says(&e, part);
    assert_int_equal(slot, 99);
    assert_int_equal(s.seed, 1);
}

static void request_refuses_bad_values(void **state)
{
    (void)state;
    request_refused(0, 8, ERR_PROTOCOL, "slot 8, the ring has 8");
    request_refused(0, 0x00010003, ERR_PROTOCOL, "reserved field is 0x1");
    for (size_t i = 0; i < 6; i++) {
        request_refused(12 + 4 * i, 0x7fc00000, ERR_PROTOCOL, "not a finite number");
        request_refused(12 + 4 * i, 0x7f800000, ERR_PROTOCOL, "not a finite number");
    }
    request_refused(44, 0x00020015, ERR_LIMIT, "21 likeliest tokens were asked for, at most 20");
    request_refused(44, 0x00810005, ERR_LIMIT, "129 biases, at most 128");
    request_refused(44, 0x00030005, ERR_FORMAT, "cut short");
    request_refused(44, 0x00010005, ERR_FORMAT, "8 bytes too many");
    request_refused(48, 1000, ERR_PROTOCOL, "outside the vocabulary");
    request_refused(56, 0xffffffff, ERR_PROTOCOL, "outside the vocabulary");
    request_refused(60, 0x7f800000, ERR_PROTOCOL, "neither a finite number nor minus infinity");
    request_refused(60, 0x7fc00000, ERR_PROTOCOL, "neither a finite number nor minus infinity");
}

static void request_refuses_other_lengths(void **state)
{
    (void)state;
    struct batch_sampling s;
    uint32_t slot;
    struct err e;
    uint8_t p[sizeof golden_request] = {0};
    memcpy(p, golden_request + FRAME_HEADER_BYTES, sizeof golden_request - FRAME_HEADER_BYTES);
    for (size_t n = 0; n < sizeof p; n++)
        if (n != sizeof golden_request - FRAME_HEADER_BYTES)
            assert_int_equal(frame_request_get(p, n, &limits, &slot, &s, &e), ERR_FORMAT);
}

static void request_that_would_be_refused_is_not_sent(void **state)
{
    (void)state;
    struct batch_sampling s = golden_sampling;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_request_put(&out, 1, BATCH_MAX_SLOTS, &s, &e), ERR_ARG);
    s.min_p = INFINITY;
    assert_int_equal(frame_request_put(&out, 1, 0, &s, &e), ERR_ARG);
    s = golden_sampling;
    s.bias[1].bias = NAN;
    assert_int_equal(frame_request_put(&out, 1, 0, &s, &e), ERR_ARG);
    s.n_bias = BATCH_MAX_BIAS + 1;
    assert_int_equal(frame_request_put(&out, 1, 0, &s, &e), ERR_LIMIT);
    s = golden_sampling;
    s.n_top = BATCH_MAX_TOP + 1;
    assert_int_equal(frame_request_put(&out, 1, 0, &s, &e), ERR_LIMIT);
    assert_int_equal(out.len, 0);
    buf_free(&out);
}

/* --- submit, cancel --- */

static const int32_t prompt[] = {1, 999, 0}, eog[] = {2, 3};

static struct sched_request golden_submit(void)
{
    return (struct sched_request){
        .tokens = prompt, .n_tokens = 3, .n_predict = 17, .eog = eog, .n_eog = 2, .sampling = golden_sampling};
}

static void submit_has_fixed_bytes(void **state)
{
    (void)state;
    static const uint8_t counts[] = {17, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0};
    static const uint8_t ids[] = {2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0xe7, 3, 0, 0, 0, 0, 0, 0};
    struct sched_request r = golden_submit(), back;
    struct buf out = {0};
    struct err e;
    int32_t *owned;
    const size_t n_sampling = sizeof golden_request - FRAME_HEADER_BYTES - 4;
    assert_int_equal(frame_submit_check(&limits, &r, &e), OK);
    assert_int_equal(frame_submit_put(&out, ID(2, 5), &r, &e), OK);
    struct frame_header h = header_of(&out);
    assert_int_equal(h.type, FRAME_SUBMIT);
    assert_true(h.request_id == ID(2, 5) && frame_entry_rank(h.request_id) == 2);
    assert_int_equal(payload_len(&out), sizeof counts + n_sampling + sizeof ids);
    assert_memory_equal(payload_of(&out), counts, sizeof counts);
    assert_memory_equal(payload_of(&out) + sizeof counts, golden_request + FRAME_HEADER_BYTES + 4, n_sampling);
    assert_memory_equal(payload_of(&out) + sizeof counts + n_sampling, ids, sizeof ids);
    assert_int_equal(frame_submit_get(payload_of(&out), payload_len(&out), &limits, &back, &owned, &e), OK);
    assert_int_equal(back.n_predict, 17);
    assert_int_equal(back.n_tokens, 3);
    assert_memory_equal(back.tokens, prompt, sizeof prompt);
    assert_int_equal(back.n_eog, 2);
    assert_memory_equal(back.eog, eog, sizeof eog);
    assert_memory_equal(&back.sampling, &golden_sampling, sizeof golden_sampling);
    assert_null(back.ctx);
    free(owned);
    buf_free(&out);
}

static void submit_without_anything_optional(void **state)
{
    (void)state;
    struct sched_request r = {.tokens = prompt, .n_tokens = 1, .n_predict = 1}, back;
    struct buf out = {0};
    struct err e;
    int32_t *owned;
    assert_int_equal(frame_submit_put(&out, ID(1, 1), &r, &e), OK);
    assert_int_equal(payload_len(&out), 12 + 44 + 4);
    assert_int_equal(frame_submit_get(payload_of(&out), payload_len(&out), &limits, &back, &owned, &e), OK);
    assert_int_equal(back.n_eog, 0);
    free(owned);
    buf_free(&out);
}

static void submit_refuses_every_cut(void **state)
{
    (void)state;
    struct sched_request r = golden_submit(), back;
    struct buf out = {0};
    struct err e;
    int32_t *owned = NULL;
    assert_int_equal(frame_submit_put(&out, ID(2, 5), &r, &e), OK);
    for (size_t n = 0; n < payload_len(&out); n++) {
        uint8_t *copy = cut(&out, n);
        assert_int_equal(frame_submit_get(copy, n, &limits, &back, &owned, &e), ERR_FORMAT);
        free(copy);
    }
    buf_put_u8(&out, 0);
    assert_int_equal(frame_submit_get(payload_of(&out), payload_len(&out), &limits, &back, &owned, &e), ERR_FORMAT);
    assert_null(owned);
    buf_free(&out);
}

static void submit_refused(size_t at, uint32_t word, enum err_code code, const char *part)
{
    struct sched_request r = golden_submit(), back = {.n_predict = 1};
    struct buf out = {0};
    struct err e;
    int32_t *owned = NULL;
    assert_int_equal(frame_submit_put(&out, ID(2, 5), &r, &e), OK);
    le_put_u32(out.data + FRAME_HEADER_BYTES + at, word);
    assert_int_equal(frame_submit_get(payload_of(&out), payload_len(&out), &limits, &back, &owned, &e), code);
    says(&e, part);
    assert_null(owned);
    assert_int_equal(back.n_predict, 1);
    buf_free(&out);
}

static void submit_refuses_bad_values(void **state)
{
    (void)state;
    const size_t ids = 12 + 60;
    submit_refused(0, 0, ERR_PROTOCOL, "at least one prompt token");
    submit_refused(4, 0, ERR_PROTOCOL, "at least one prompt token");
    submit_refused(4, 100, ERR_LIMIT, "the prompt has 100 tokens");
    submit_refused(4, 0xffffffff, ERR_LIMIT, "at most 99 fit");
    submit_refused(4, 4, ERR_FORMAT, "cut short");
    submit_refused(4, 2, ERR_FORMAT, "4 bytes too many");
    submit_refused(8, 1025, ERR_LIMIT, "1025 tokens end the text, at most 1024");
    submit_refused(8, 0x00010002, ERR_PROTOCOL, "reserved field is 0x1");
    submit_refused(20, 0x7fc00000, ERR_PROTOCOL, "not a finite number");
    submit_refused(12 + 40, 0x00020015, ERR_LIMIT, "21 likeliest tokens");
    submit_refused(ids, 1000, ERR_PROTOCOL, "token 1000 is not in the vocabulary");
    submit_refused(ids + 16, 0xffffffff, ERR_PROTOCOL, "token -1 is not in the vocabulary");
}

static void submit_check_names_what_is_wrong(void **state)
{
    (void)state;
    static const int32_t strange[] = {1, -1};
    struct sched_request r = golden_submit();
    struct err e;
    r.n_predict = 0;
    assert_int_equal(frame_submit_check(&limits, &r, &e), ERR_ARG);
    r = golden_submit();
    r.n_tokens = 100;
    assert_int_equal(frame_submit_check(&limits, &r, &e), ERR_LIMIT);
    r = golden_submit();
    r.tokens = strange;
    r.n_tokens = 2;
    assert_int_equal(frame_submit_check(&limits, &r, &e), ERR_ARG);
    r = golden_submit();
    r.eog = strange;
    assert_int_equal(frame_submit_check(&limits, &r, &e), ERR_ARG);
    r.n_eog = FRAME_MAX_EOG + 1;
    assert_int_equal(frame_submit_check(&limits, &r, &e), ERR_LIMIT);
    r = golden_submit();
    r.sampling.top_p = NAN;
    assert_int_equal(frame_submit_check(&limits, &r, &e), ERR_ARG);
    r.sampling.n_bias = BATCH_MAX_BIAS + 1;
    assert_int_equal(frame_submit_check(&limits, &r, &e), ERR_LIMIT);
}

static void submit_larger_than_a_frame_is_not_sent(void **state)
{
    (void)state;
    struct sched_request r = golden_submit();
    struct buf out = {0};
    struct err e;
    r.n_tokens = FRAME_MAX_PAYLOAD / 4; /* refused before a token is read */
    assert_int_equal(frame_submit_put(&out, ID(1, 1), &r, &e), ERR_LIMIT);
    assert_int_equal(out.len, 0);
}

static void cancel_is_a_header(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_cancel_put(&out, ID(3, 9), &e), OK);
    struct frame_header h = header_of(&out);
    assert_int_equal(h.type, FRAME_CANCEL);
    assert_int_equal(h.length, 0);
    assert_true(h.request_id == ID(3, 9));
    buf_free(&out);
}

/* --- events --- */

static const uint8_t golden_events[] = {
    'K',  'F',  2, 10, 88, 0, 0,    0,    0, 0, 0, 0, 0,  0, 0,    0,    0,    0,    0,   0,   0,   0,
    0,    0,    3, 0,  0,  0,                                         /* three */
    5,    0,    0, 0,  0,  0, 2,    0,    1, 0, 6, 0, 41, 0, 0,    0, /* token, slot 6 */
    0xe7, 3,    0, 0,  0,  0, 0,    0xbf,                             /* 999, -0.5 */
    6,    0,    0, 0,  0,  0, 1,    0,    1, 2, 0, 0, 1,  0, 0,    0, /* with two */
    1,    0,    0, 0,  0,  0, 0x80, 0xbf, 1, 0, 0, 0, 0,  0, 0x80, 0xbf, 2,    0,    0,   0,   0,   0,
    0,    0xc0, 5, 0,  0,  0, 0,    0,    2, 0, 2, 4, 4,  0, 0xf1, 0xff, 0xff, 0xff, 'f', 'u', 'l', 'l',
};

static const struct frame_event golden_event[] = {
    {.request_id = ID(2, 5), .token = {.request_id = ID(2, 5), .slot = 6, .pos = 41, .token = 999, .logprob = -0.5f}},
    {.request_id = ID(1, 6),
     .token = {.request_id = ID(1, 6),
               .slot = 0,
               .pos = 1,
               .token = 1,
               .logprob = -1,
               .n_top = 2,
               .top = {{1, -1}, {2, -2}}}},
    {.request_id = ID(2, 5), .is_end = true, .reason = SCHED_FAILED, .code = ERR_BUSY, .text = "full"},
};

struct got {
    uint32_t n;
    struct frame_event ev[4];
    struct frame_events again; /* put together anew from the parts */
};

static void take(void *ctx, const struct frame_event *ev, const uint8_t *bytes, size_t len)
{
    struct got *g = ctx;
    if (g->n < 4)
        g->ev[g->n] = *ev;
    g->n++;
    frame_events_add_raw(&g->again, bytes, len);
}

static void put_golden(struct frame_events *w)
{
    for (uint32_t i = 0; i < 3; i++)
        frame_events_add(w, &golden_event[i]);
    frame_events_end(w);
}

static void events_have_fixed_bytes(void **state)
{
    (void)state;
    struct frame_events w = {0};
    struct got g = {0};
    struct err e;
    put_golden(&w);
    assert_int_equal(w.out.len, sizeof golden_events);
    assert_memory_equal(w.out.data, golden_events, sizeof golden_events);
    assert_int_equal(header_of(&w.out).type, FRAME_EVENTS);
    assert_int_equal(frame_events_get(payload_of(&w.out), payload_len(&w.out), &limits, take, &g, &e), OK);
    assert_int_equal(g.n, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(g.ev[i].request_id == golden_event[i].request_id);
        assert_int_equal(g.ev[i].is_end, golden_event[i].is_end);
        if (g.ev[i].is_end) {
            assert_int_equal(g.ev[i].reason, golden_event[i].reason);
            assert_int_equal(g.ev[i].code, golden_event[i].code);
            assert_string_equal(g.ev[i].text, golden_event[i].text);
        } else {
            assert_memory_equal(&g.ev[i].token, &golden_event[i].token, sizeof g.ev[i].token);
        }
    }
    frame_events_end(&g.again);
    assert_int_equal(g.again.out.len, sizeof golden_events);
    assert_memory_equal(g.again.out.data, golden_events, sizeof golden_events);
    buf_free(&g.again.out);
    buf_free(&w.out);
}

/* What a decoded token costs on the way to where its request entered. */
static void a_token_is_small(void **state)
{
    (void)state;
    struct frame_events w = {0};
    frame_events_add(&w, &golden_event[0]);
    frame_events_end(&w);
    assert_int_equal(w.out.len, FRAME_HEADER_BYTES + 4 + 24);
    buf_free(&w.out);
}

static void no_events_are_no_frame(void **state)
{
    (void)state;
    struct frame_events w = {0};
    frame_events_end(&w);
    assert_int_equal(w.out.len, 0);
    put_golden(&w);
    frame_events_clear(&w);
    frame_events_end(&w);
    assert_int_equal(w.out.len, 0);
    buf_free(&w.out);
}

static void count_events(void *ctx, const struct frame_event *ev, const uint8_t *bytes, size_t len)
{
    uint64_t *n = ctx;
    (void)bytes;
    (void)len;
    assert_true(ev->request_id == ID(1, *n));
    ++*n;
}

static void many_events_take_several_frames(void **state)
{
    (void)state;
    struct frame_events w = {0};
    struct err e;
    uint64_t n = 0;
    for (uint64_t i = 0; i < 2 * FRAME_MAX_EVENTS + 3; i++)
        frame_events_add(&w, &(struct frame_event){.request_id = ID(1, i), .is_end = true, .reason = SCHED_STOP});
    frame_events_end(&w);
    uint32_t n_frames = 0;
    for (size_t at = 0; at < w.out.len; n_frames++) {
        struct frame_header h = header_at(&w.out, at);
        at += FRAME_HEADER_BYTES;
        assert_int_equal(frame_events_get(w.out.data + at, h.length, &limits, count_events, &n, &e), OK);
        at += h.length;
    }
    assert_int_equal(n_frames, 3);
    assert_int_equal(n, 2 * FRAME_MAX_EVENTS + 3);
    buf_free(&w.out);
}

static void events_refuse_every_cut(void **state)
{
    (void)state;
    struct frame_events w = {0};
    struct got g = {0};
    struct err e;
    put_golden(&w);
    for (size_t n = 0; n < payload_len(&w.out); n++) {
        uint8_t *copy = cut(&w.out, n);
        assert_int_equal(frame_events_get(copy, n, &limits, take, &g, &e), ERR_FORMAT);
        free(copy);
    }
    buf_put_u8(&w.out, 0);
    assert_int_equal(frame_events_get(payload_of(&w.out), payload_len(&w.out), &limits, take, &g, &e), ERR_FORMAT);
    assert_int_equal(g.n, 0); /* nothing was handed out before all was checked */
    buf_free(&w.out);
}

static void events_refused(size_t at, uint32_t word, enum err_code code, const char *part)
{
    uint8_t p[sizeof golden_events - FRAME_HEADER_BYTES];
    struct got g = {0};
    struct err e;
    memcpy(p, golden_events + FRAME_HEADER_BYTES, sizeof p);
    le_put_u32(p + at, word);
    assert_int_equal(frame_events_get(p, sizeof p, &limits, take, &g, &e), code);
    says(&e, part);
    assert_int_equal(g.n, 0);
}

static void events_refuse_bad_values(void **state)
{
    (void)state;
    const size_t second = 4 + 24, third = second + 24 + 16;
    events_refused(0, 0, ERR_LIMIT, "0 events in a frame, 1 to 1024");
    events_refused(0, 1025, ERR_LIMIT, "1025 events in a frame");
    events_refused(0, 0x00010003, ERR_PROTOCOL, "reserved field of events is 0x1");
    events_refused(0, 2, ERR_FORMAT, "20 bytes too many");
    events_refused(4 + 4, 0x00000000, ERR_PROTOCOL, "event 0: its request entered at rank 0");
    events_refused(4 + 4, 0x00040000, ERR_PROTOCOL, "entered at rank 4, the ring has 4");
    events_refused(4 + 8, 0x00060003, ERR_PROTOCOL, "event 0 is of kind 3");
    events_refused(4 + 8, 0x00060000, ERR_PROTOCOL, "event 0 is of kind 0");
    events_refused(4 + 8, 0x00061501, ERR_LIMIT, "event 0: 21 likeliest tokens, at most 20");
    events_refused(4 + 8, 0x00080001, ERR_PROTOCOL, "event 0: slot 8, the ring has 8");
    events_refused(4 + 12, 101, ERR_PROTOCOL, "event 0: position 101");
    events_refused(4 + 16, 1000, ERR_PROTOCOL, "event 0: token 1000");
    events_refused(4 + 20, 0x7fc00000, ERR_PROTOCOL, "event 0: the log-probability");
    events_refused(second + 24, 0xffffffff, ERR_PROTOCOL, "event 1: token -1");
    events_refused(second + 28, 0xff800000, ERR_PROTOCOL, "event 1: the log-probability");
    events_refused(third + 8, 0x00040502, ERR_PROTOCOL, "event 2: an end for reason 5");
    events_refused(third + 8, 0x00040302, ERR_PROTOCOL, "event 2: an end for reason 3 with code -15");
    events_refused(third + 12, 0, ERR_PROTOCOL, "event 2: an end for reason 4 with code 0");
    events_refused(third + 8, 0x00c90402, ERR_LIMIT, "event 2: a text of 201 bytes, at most 200");
}

static void an_unknown_code_is_a_protocol_error(void **state)
{
    (void)state;
    uint8_t p[sizeof golden_events - FRAME_HEADER_BYTES];
    struct got g = {0};
    struct err e;
    memcpy(p, golden_events + FRAME_HEADER_BYTES, sizeof p);
    le_put_u32(p + sizeof p - 8, 12345);
    p[sizeof p - 1] = '\n';
    assert_int_equal(frame_events_get(p, sizeof p, &limits, take, &g, &e), OK);
    assert_int_equal(g.ev[2].code, ERR_PROTOCOL);
    assert_string_equal(g.ev[2].text, "ful?");
    buf_free(&g.again.out);
}

static void a_long_text_is_cut(void **state)
{
    (void)state;
    struct frame_event ev = {.request_id = ID(1, 1), .is_end = true, .reason = SCHED_FAILED, .code = ERR_IO};
    struct frame_events w = {0};
    struct got g = {0};
    struct err e;
    memset(ev.text, 'x', sizeof ev.text); /* no NUL */
    frame_events_add(&w, &ev);
    frame_events_end(&w);
    assert_int_equal(frame_events_get(payload_of(&w.out), payload_len(&w.out), &limits, take, &g, &e), OK);
    assert_int_equal(strlen(g.ev[0].text), FRAME_MAX_EVENT_TEXT);
    buf_free(&g.again.out);
    buf_free(&w.out);
}

/* --- probe --- */

static struct frame_probe golden_probe(void)
{
    struct frame_probe p = {.nonce = 0x0102030405060708,
                            .hops = 3,
                            .ready = true,
                            .counts = {.n_waiting = 1,
                                       .n_active = 2,
                                       .n_steps = 3,
                                       .us_per_tok = 4,
                                       .retry_ms = 5,
                                       .n_prompt_tok = 6,
                                       .n_out_tok = 7,
                                       .n_reused_tok = 8,
                                       .n_refused = 9},
                            .n_rows = 4};
    for (uint32_t i = 0; i < 4; i++)
        p.rows[i] = (struct frame_row){10 + i, 20 + i, 30 + i, 40 + i, 50 + i, 60 + i};
    return p;
}

static void probe_goes_around(void **state)
{
    (void)state;
    static const uint8_t begin[] = {8, 7, 6, 5, 4, 3, 2, 1, 3, 0, 0, 0, 1, 0, 4, 0, 1, 0, 0, 0, 2, 0,
                                    0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0,
                                    0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0};
    struct frame_probe p = golden_probe(), back = {0};
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_probe_put(&out, &p, &e), OK);
    assert_int_equal(header_of(&out).type, FRAME_PROBE);
    assert_int_equal(payload_len(&out), 72 + 4 * 48);
    assert_memory_equal(payload_of(&out), begin, sizeof begin);
    assert_int_equal(le_get_u64(payload_of(&out) + 72 + 48 + 40), 61);
    assert_int_equal(frame_probe_get(payload_of(&out), payload_len(&out), &limits, &back, &e), OK);
    assert_memory_equal(&back, &p, sizeof p);
    for (size_t n = 0; n < payload_len(&out); n++) {
        uint8_t *copy = cut(&out, n);
        assert_int_equal(frame_probe_get(copy, n, &limits, &back, &e), ERR_FORMAT);
        free(copy);
    }
    buf_puts(&out, "x");
    assert_int_equal(frame_probe_get(payload_of(&out), payload_len(&out), &limits, &back, &e), ERR_FORMAT);
    buf_free(&out);
}

static void probe_refused(size_t at, uint32_t word, enum err_code code, const char *part)
{
    struct frame_probe p = golden_probe(), back = {.nonce = 1};
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_probe_put(&out, &p, &e), OK);
    le_put_u32(out.data + FRAME_HEADER_BYTES + at, word);
    assert_int_equal(frame_probe_get(payload_of(&out), payload_len(&out), &limits, &back, &e), code);
    says(&e, part);
    assert_int_equal(back.nonce, 1);
    buf_free(&out);
}

static void probe_refuses_bad_values(void **state)
{
    (void)state;
    struct frame_probe p = golden_probe();
    struct buf out = {0};
    struct err e;
    probe_refused(12, 0x00030001, ERR_MISMATCH, "a probe of 3 ranks, the ring has 4");
    probe_refused(12, 0xffff0001, ERR_MISMATCH, "a probe of 65535 ranks");
    probe_refused(12, 0x00040003, ERR_PROTOCOL, "flags 0x3");
    probe_refused(36, 1, ERR_PROTOCOL, "reserved field of 0x1");
    p.n_rows = 0;
    assert_int_equal(frame_probe_put(&out, &p, &e), ERR_ARG);
    p.n_rows = FRAME_MAX_RANKS + 1;
    assert_int_equal(frame_probe_put(&out, &p, &e), ERR_ARG);
    assert_int_equal(out.len, 0);
}

/* --- out of memory --- */

/* Each encoder appends a whole frame or nothing, says so, and the buffer stays failed until it is cleared. */
static void without_memory_nothing_is_appended(void **state)
{
    (void)state;
    const struct frame_fail f = {.code = ERR_IO};
    const int32_t token = 1;
    const struct sched_request r = {.tokens = &token, .n_tokens = 1, .n_predict = 1};
    struct batch_entry en = {.request_id = 1, .n_tok = 1, .flags = BATCH_RESET};
    struct batch_result res = {.request_id = 1, .token = 1};
    int32_t tokens = 1;
    float row = 0;
    struct batch x = {.n_entries = 1,
                      .n_tok = 1,
                      .n_embd = 1,
                      .n_results = 1,
                      .entries = &en,
                      .tokens = &tokens,
                      .rows = &row,
                      .results = &res};
    struct buf b = {.failed = true};
    struct err e;
    assert_int_equal(frame_step_put(&b, 1, &x, true, &e), ERR_NOMEM);
    says(&e, "out of memory");
    assert_int_equal(frame_result_put(&b, 1, &x, &e), ERR_NOMEM);
    assert_int_equal(frame_request_put(&b, 1, 0, &golden_sampling, &e), ERR_NOMEM);
    assert_int_equal(frame_submit_put(&b, ID(1, 1), &r, &e), ERR_NOMEM);
    assert_int_equal(frame_cancel_put(&b, ID(1, 1), &e), ERR_NOMEM);
    assert_int_equal(frame_probe_put(&b, &(struct frame_probe){.n_rows = 2}, &e), ERR_NOMEM);
    assert_int_equal(frame_fail_put(&b, FRAME_FAIL, 1, &f, &e), ERR_NOMEM);
    assert_int_equal(frame_heartbeat_put(&b, &e), ERR_NOMEM);
    assert_true(b.failed && b.len == 0 && !b.data);
    buf_clear(&b);
    assert_int_equal(frame_cancel_put(&b, ID(1, 1), &e), OK);
    buf_free(&b);
}

/* Events that are missing make the whole stream one with a hole: what follows is not written either. */
static void without_memory_events_stay_failed(void **state)
{
    (void)state;
    struct frame_events w = {0};
    struct frame_event ev = {.request_id = ID(1, 1), .is_end = true, .reason = SCHED_STOP};
    frame_events_add(&w, &ev);
    size_t len = w.out.len;
    w.out.failed = true;
    frame_events_add(&w, &ev);
    frame_events_add_raw(&w, "abc", 3);
    frame_events_end(&w);
    assert_true(w.out.failed);
    assert_int_equal(w.out.len, len);
    frame_events_clear(&w);
    assert_false(w.out.failed);
    frame_events_add(&w, &ev);
    frame_events_end(&w);
    assert_int_equal(w.out.len, len);
    assert_int_equal(header_of(&w.out).type, FRAME_EVENTS);
    buf_free(&w.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_has_fixed_bytes),
        cmocka_unit_test(request_refuses_bad_values),
        cmocka_unit_test(request_refuses_other_lengths),
        cmocka_unit_test(request_that_would_be_refused_is_not_sent),
        cmocka_unit_test(submit_has_fixed_bytes),
        cmocka_unit_test(submit_without_anything_optional),
        cmocka_unit_test(submit_refuses_every_cut),
        cmocka_unit_test(submit_refuses_bad_values),
        cmocka_unit_test(submit_check_names_what_is_wrong),
        cmocka_unit_test(submit_larger_than_a_frame_is_not_sent),
        cmocka_unit_test(cancel_is_a_header),
        cmocka_unit_test(events_have_fixed_bytes),
        cmocka_unit_test(a_token_is_small),
        cmocka_unit_test(no_events_are_no_frame),
        cmocka_unit_test(many_events_take_several_frames),
        cmocka_unit_test(events_refuse_every_cut),
        cmocka_unit_test(events_refuse_bad_values),
        cmocka_unit_test(an_unknown_code_is_a_protocol_error),
        cmocka_unit_test(a_long_text_is_cut),
        cmocka_unit_test(probe_goes_around),
        cmocka_unit_test(probe_refuses_bad_values),
        cmocka_unit_test(without_memory_nothing_is_appended),
        cmocka_unit_test(without_memory_events_stay_failed),
    };
    return cmocka_run_group_tests_name("ring_frame_request", tests, NULL, NULL);
}
