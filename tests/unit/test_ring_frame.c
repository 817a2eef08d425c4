/* SPDX-License-Identifier: MIT
 *
 * Frames: fixed bytes, round trips, and every refusal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "ring/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CAP_ENTRIES 8u
#define CAP_TOK     16u
#define N_EMBD      3u

static const struct frame_limits limits = {.n_slots = 8, .n_ctx = 100, .n_vocab = 1000, .n_ranks = 4};

/* A batch with its arrays. */
struct room {
    struct batch b;
    struct batch_entry entries[CAP_ENTRIES];
    int32_t tokens[CAP_TOK];
    float rows[CAP_TOK * N_EMBD];
    struct batch_result results[CAP_ENTRIES];
};

static struct batch *room_batch(struct room *r)
{
    memset(r, 0, sizeof *r);
    r->b = (struct batch){.cap_entries = CAP_ENTRIES,
                          .cap_tok = CAP_TOK,
                          .n_embd = N_EMBD,
                          .entries = r->entries,
                          .tokens = r->tokens,
                          .rows = r->rows,
                          .results = r->results};
    return &r->b;
}

/* Two entries, three tokens. */
static struct batch *room_step(struct room *r)
{
    struct batch *b = room_batch(r);
    b->n_entries = 2;
    b->n_tok = 3;
    b->entries[0] = (struct batch_entry){.request_id = 0x1122334455667788,
                                         .prefix_hash = 0x99aabbccddeeff00,
                                         .slot = 1,
                                         .pos = 0,
                                         .n_tok = 2,
                                         .flags = BATCH_RESET};
    b->entries[1] = (struct batch_entry){
        .request_id = 2, .prefix_hash = 3, .slot = 4, .pos = 5, .n_tok = 1, .flags = BATCH_SAMPLE | BATCH_TRUNCATE};
    b->tokens[0] = 1;
    b->tokens[1] = 2;
    b->tokens[2] = 999;
    for (uint32_t i = 0; i < 3 * N_EMBD; i++)
        b->rows[i] = 1.0f + (float)i;
    return b;
}

static const uint8_t golden_step[] =
    {
        'K',  'F',  2,    2,    116,  0,    0,    0,    7,    0,    0,    0,    0,    0,
        0,    0,    0,    0,    0,    0,    0,    0,    0,    0,             /* header, step 7 */
        2,    0,    0,    0,    3,    0,    0,    0,    3,    0,    0,    0, /* counts */
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb,
        0xaa, 0x99, 0,    0,    0,    0,    1,    0,    2,    0,    2,    0,    0,    0, /* entry 0 */
        2,    0,    0,    0,    0,    0,    0,    0,    3,    0,    0,    0,    0,    0,
        0,    0,    5,    0,    0,    0,    4,    0,    5,    0,    1,    0,    0,    0,
        1,    0,    0,    0,    2,    0,    0,    0,    0xe7, 3,    0,    0, /* tokens */
        0,    0,    0x80, 0x3f, 0,    0,    0,    0x40, 0,    0,    0x40, 0x40, 0,    0,
        0x80, 0x40, 0,    0,    0xa0, 0x40, 0,    0,    0xc0, 0x40, 0,    0,    0xe0, 0x40,
        0,    0,    0,    0x41, 0,    0,    0x10, 0x41, /* rows 1.0 .. 9.0 */
};

static const uint8_t *payload_of(const struct buf *b)
{
    return b->data + FRAME_HEADER_BYTES;
}

static size_t payload_len(const struct buf *b)
{
    return b->len - FRAME_HEADER_BYTES;
}

/* The header of a frame made here fits it. */
static struct frame_header header_of(const struct buf *b)
{
    struct frame_header h;
    struct err e;
    assert_true(b->len >= FRAME_HEADER_BYTES);
    assert_int_equal(frame_header_get(b->data, &h, &e), OK);
    assert_int_equal(h.length, payload_len(b));
    return h;
}

/* --- header --- */

static void header_has_fixed_bytes(void **state)
{
    (void)state;
    static const uint8_t want[FRAME_HEADER_BYTES] = {'K', 'F', 2, 5,    0x78, 0x56, 0x34, 0x02, 8,    7,    6,    5,
                                                     4,   3,   2, 0x81, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
    struct frame_header h = {
        .type = FRAME_PROBE, .length = 0x02345678, .step_id = 0x8102030405060708, .request_id = 0x1112131415161718};
    struct frame_header back;
    uint8_t got[FRAME_HEADER_BYTES];
    struct err e;
    frame_header_put(got, &h);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(frame_header_get(got, &back, &e), OK);
    assert_int_equal(back.type, FRAME_PROBE);
    assert_int_equal(back.length, 0x02345678);
    assert_true(back.step_id == h.step_id && back.request_id == h.request_id);
}

static void header_refused(size_t at, uint8_t value, enum err_code code, const char *part)
{
    struct frame_header h = {.type = FRAME_STEP}, out = {.length = 77};
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct err e;
    frame_header_put(bytes, &h);
    bytes[at] = value;
    assert_int_equal(frame_header_get(bytes, &out, &e), code);
    assert_non_null(strstr(e.msg, part));
    assert_int_equal(out.length, 77);
}

static void header_refuses_strangers(void **state)
{
    (void)state;
    header_refused(0, 'G', ERR_PROTOCOL, "frame magic is 0x4647, not 0x464b");
    header_refused(1, 0, ERR_PROTOCOL, "magic");
    header_refused(2, 1, ERR_PROTOCOL, "frame version is 1, I speak 2");
    header_refused(3, 0, ERR_PROTOCOL, "frame type is 0");
    header_refused(3, FRAME_TYPE_COUNT, ERR_PROTOCOL, "frame type is 11, I know 1 to 10");
    header_refused(3, 255, ERR_PROTOCOL, "frame type is 255");
    header_refused(7, 0xff, ERR_LIMIT, "at most 67108864");
}

static void header_length_limit_is_exact(void **state)
{
    (void)state;
    struct frame_header h = {.type = FRAME_STEP, .length = FRAME_MAX_PAYLOAD}, out;
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct err e;
    frame_header_put(bytes, &h);
    assert_int_equal(frame_header_get(bytes, &out, &e), OK);
    h.length++;
    frame_header_put(bytes, &h);
    assert_int_equal(frame_header_get(bytes, &out, &e), ERR_LIMIT);
}

/* --- words --- */

static void words_are_swapped_on_demand(void **state)
{
    (void)state;
    const uint8_t in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, want[8] = {4, 3, 2, 1, 8, 7, 6, 5};
    uint8_t out[10] = {0};
    frame_words_copy(out + 1, in, 2, true);
    assert_memory_equal(out + 1, want, 8);
    frame_words_copy(out + 1, in, 2, false);
    assert_memory_equal(out + 1, in, 8);
    assert_int_equal(out[0] | out[9], 0);
    frame_words_copy(NULL, NULL, 0, true);
}

/* --- step --- */

static void step_has_fixed_bytes(void **state)
{
    (void)state;
    struct room r;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_step_put(&out, 7, room_step(&r), true, &e), OK);
    assert_int_equal(out.len, sizeof golden_step);
    assert_memory_equal(out.data, golden_step, sizeof golden_step);
    buf_free(&out);
}

static void step_is_read_back(void **state)
{
    (void)state;
    struct room r, got;
    struct err e;
    struct batch *b = room_step(&r), *g = room_batch(&got);
    g->n_results = 5;
    assert_int_equal(
        frame_step_get(golden_step + FRAME_HEADER_BYTES, sizeof golden_step - FRAME_HEADER_BYTES, &limits, true, g, &e),
        OK);
    assert_int_equal(g->n_entries, 2);
    assert_int_equal(g->n_tok, 3);
    assert_int_equal(g->n_results, 0);
    assert_memory_equal(g->entries, b->entries, 2 * sizeof b->entries[0]);
    assert_memory_equal(g->tokens, b->tokens, 3 * sizeof b->tokens[0]);
    assert_memory_equal(g->rows, b->rows, sizeof b->rows[0] * 3 * N_EMBD);
}

static void step_without_rows_has_width_0(void **state)
{
    (void)state;
    struct room r, got;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_step_put(&out, 9, room_step(&r), false, &e), OK);
    assert_int_equal(out.len, sizeof golden_step - sizeof(float) * 3 * N_EMBD);
    assert_int_equal(header_of(&out).step_id, 9);
    assert_int_equal(le_get_u32(payload_of(&out) + 8), 0);
    assert_int_equal(frame_step_get(payload_of(&out), payload_len(&out), &limits, false, room_batch(&got), &e), OK);
    assert_int_equal(got.b.n_tok, 3);
    assert_int_equal(frame_step_get(payload_of(&out), payload_len(&out), &limits, true, room_batch(&got), &e),
                     ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "0 floats, mine 3"));
    buf_free(&out);
}

static void step_rows_keep_every_bit(void **state)
{
    (void)state;
    static const uint32_t bits[3] = {0x7fc12345, 0x80000000, 0xff800000}; /* NaN with payload, -0, -inf */
    struct room r, got;
    struct buf out = {0};
    struct err e;
    struct batch *b = room_step(&r);
    memcpy(b->rows, bits, sizeof bits);
    assert_int_equal(frame_step_put(&out, 1, b, true, &e), OK);
    assert_int_equal(frame_step_get(payload_of(&out), payload_len(&out), &limits, true, room_batch(&got), &e), OK);
    assert_memory_equal(got.rows, bits, sizeof bits);
    buf_free(&out);
}

/* Frames follow each other in one buffer, and a cleared buffer is used again as it is. */
static void steps_append_and_reuse_memory(void **state)
{
    (void)state;
    struct room r;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_step_put(&out, 7, room_step(&r), true, &e), OK);
    assert_int_equal(frame_step_put(&out, 7, room_step(&r), true, &e), OK);
    assert_int_equal(out.len, 2 * sizeof golden_step);
    assert_memory_equal(out.data + sizeof golden_step, golden_step, sizeof golden_step);
    const uint8_t *data = out.data;
    size_t cap = out.cap;
    for (int i = 0; i < 100; i++) {
        buf_clear(&out);
        assert_int_equal(frame_step_put(&out, 7, room_step(&r), true, &e), OK);
    }
    assert_ptr_equal(out.data, data);
    assert_int_equal(out.cap, cap);
    buf_free(&out);
}

static uint32_t below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(hash_mix64((*seed)++) % n);
}

static void random_step(struct room *r, uint64_t *seed)
{
    struct batch *b = room_batch(r);
    b->n_entries = 1 + below(seed, CAP_ENTRIES);
    for (uint32_t i = 0; i < b->n_entries; i++) {
        struct batch_entry *t = &b->entries[i];
        t->n_tok = 1 + below(seed, CAP_TOK / CAP_ENTRIES);
        t->slot = (i + 3) % limits.n_slots;
        t->flags = below(seed, BATCH_FLAGS_KNOWN + 1);
        t->pos = t->flags & BATCH_RESET ? 0 : below(seed, limits.n_ctx - t->n_tok + 1);
        t->request_id = hash_mix64((*seed)++);
        t->prefix_hash = hash_mix64((*seed)++);
        b->n_tok += t->n_tok;
    }
    for (uint32_t i = 0; i < b->n_tok; i++)
        b->tokens[i] = (int32_t)below(seed, limits.n_vocab);
    for (uint32_t i = 0; i < b->n_tok * N_EMBD; i++)
        b->rows[i] = (float)hash_uniform(*seed, i);
}

static void random_steps_are_read_back(void **state)
{
    (void)state;
    struct room r, got;
    struct buf out = {0};
    struct err e;
    uint64_t seed = 1;
    for (int i = 0; i < 1000; i++) {
        random_step(&r, &seed);
        buf_clear(&out);
        assert_int_equal(frame_step_put(&out, seed, &r.b, true, &e), OK);
        assert_true(header_of(&out).step_id == seed);
        assert_int_equal(frame_step_get(payload_of(&out), payload_len(&out), &limits, true, room_batch(&got), &e), OK);
        assert_int_equal(got.b.n_entries, r.b.n_entries);
        assert_int_equal(got.b.n_tok, r.b.n_tok);
        assert_memory_equal(got.entries, r.entries, sizeof r.entries);
        assert_memory_equal(got.tokens, r.tokens, sizeof r.tokens);
        assert_memory_equal(got.rows, r.rows, sizeof r.rows);
    }
    buf_free(&out);
}

/* The golden step with one 32-bit word of its payload changed; on failure the batch is as it was. */
static void step_refused(size_t at, uint32_t word, enum err_code code, const char *part)
{
    uint8_t p[sizeof golden_step - FRAME_HEADER_BYTES];
    struct room got, was;
    struct err e;
    memcpy(p, golden_step + FRAME_HEADER_BYTES, sizeof p);
    le_put_u32(p + at, word);
    room_batch(&got);
    got.b.n_entries = 1;
    got.b.n_tok = 1;
    memset(got.tokens, 0x55, sizeof got.tokens);
    was = got;
    assert_int_equal(frame_step_get(p, sizeof p, &limits, true, &got.b, &e), code);
    if (!strstr(e.msg, part))
        fail_msg("%s lacks: %s", e.msg, part);
    assert_null(strchr(e.msg, '\n'));
    assert_memory_equal(&got, &was, sizeof got);
}

static void step_refuses_bad_counts(void **state)
{
    (void)state;
    step_refused(0, 0x00010002, ERR_PROTOCOL, "reserved field is 0x1");
    step_refused(0, 0, ERR_PROTOCOL, "without entries");
    step_refused(0, 9, ERR_LIMIT, "9 entries, at most 8");
    step_refused(0, 0xffff, ERR_LIMIT, "65535 entries, at most 8");
    step_refused(0, 3, ERR_FORMAT, "cut short");
    step_refused(4, 17, ERR_LIMIT, "17 tokens, at most 16");
    step_refused(4, 0xffffffff, ERR_LIMIT, "4294967295 tokens, at most 16");
    step_refused(4, 2, ERR_FORMAT, "too many");
    step_refused(8, 4, ERR_MISMATCH, "4 floats, mine 3");
    step_refused(8, 0xffffffff, ERR_MISMATCH, "4294967295 floats, mine 3");
}

static void step_refuses_bad_entries(void **state)
{
    (void)state;
    const size_t e0 = 12, e1 = 12 + 28;
    step_refused(e0 + 20, 8, ERR_PROTOCOL, "step entry 0: slot 8, the ring has 8");
    step_refused(e1 + 20, 0x00010001, ERR_PROTOCOL, "step entry 1: slot 1 is there twice");
    step_refused(e1 + 20, 0x00100004, ERR_PROTOCOL, "flags 0x10, I know 0xf");
    step_refused(e1 + 20, 0x80000004, ERR_PROTOCOL, "flags 0x8000");
    step_refused(e1 + 20, 0x00020004, ERR_PROTOCOL, "step entry 1 resets its slot but begins at position 5");
    step_refused(e1 + 16, 100, ERR_PROTOCOL, "position 100 + 1 tokens exceed the context of 100");
    step_refused(e1 + 16, 0xffffffff, ERR_PROTOCOL, "exceed the context");
    step_refused(e1 + 24, 0, ERR_PROTOCOL, "step entry 1 has no tokens");
    step_refused(e1 + 24, 2, ERR_PROTOCOL, "have 4 tokens, the step says 3");
    step_refused(e1 + 24, 0xffffffff, ERR_PROTOCOL, "exceed the context");
}

/* Counts whose sum is right only modulo 2^32. */
static void step_adds_up_in_64_bits(void **state)
{
    (void)state;
    struct frame_limits wide = {.n_slots = 8, .n_ctx = UINT32_MAX, .n_vocab = 1000};
    uint8_t p[sizeof golden_step - FRAME_HEADER_BYTES];
    struct room got;
    struct err e;
    memcpy(p, golden_step + FRAME_HEADER_BYTES, sizeof p);
    le_put_u32(p + 12 + 24, 0xfffffffe);
    le_put_u32(p + 40 + 24, 5);
    assert_int_equal(frame_step_get(p, sizeof p, &wide, true, room_batch(&got), &e), ERR_PROTOCOL);
    assert_non_null(strstr(e.msg, "have 4294967299 tokens"));
}

static void step_refuses_bad_tokens(void **state)
{
    (void)state;
    const size_t t0 = 12 + 56;
    step_refused(t0, 1000, ERR_PROTOCOL, "step token 0 is 1000, the vocabulary has 1000");
    step_refused(t0 + 8, 0xffffffff, ERR_PROTOCOL, "step token 2 is -1");
}

static void step_refuses_every_cut(void **state)
{
    (void)state;
    const uint8_t *p = golden_step + FRAME_HEADER_BYTES;
    size_t len = sizeof golden_step - FRAME_HEADER_BYTES;
    struct room got;
    struct err e;
    for (size_t n = 0; n < len; n++) {
        uint8_t *copy = malloc(n ? n : 1); /* so that ASan sees a read past the end */
        memcpy(copy, p, n);
        assert_int_equal(frame_step_get(copy, n, &limits, true, room_batch(&got), &e), ERR_FORMAT);
        free(copy);
    }
    uint8_t more[sizeof golden_step] = {0};
    memcpy(more, p, len);
    assert_int_equal(frame_step_get(more, len + 1, &limits, true, room_batch(&got), &e), ERR_FORMAT);
    assert_int_equal(frame_step_get(NULL, 0, &limits, true, room_batch(&got), &e), ERR_FORMAT);
}

static void step_limits_are_no_larger_than_a_batch(void **state)
{
    (void)state;
    struct frame_limits wide = {.n_slots = UINT32_MAX, .n_ctx = UINT32_MAX, .n_vocab = UINT32_MAX};
    uint8_t p[sizeof golden_step - FRAME_HEADER_BYTES];
    struct room got;
    struct err e;
    memcpy(p, golden_step + FRAME_HEADER_BYTES, sizeof p);
    le_put_u16(p + 12 + 20, 1024);
    assert_int_equal(frame_step_get(p, sizeof p, &wide, true, room_batch(&got), &e), ERR_PROTOCOL);
    assert_non_null(strstr(e.msg, "the ring has 1024"));
    memcpy(p, golden_step + FRAME_HEADER_BYTES, sizeof p);
    le_put_u32(p + 12 + 56, 0x80000000);
    assert_int_equal(frame_step_get(p, sizeof p, &wide, true, room_batch(&got), &e), ERR_PROTOCOL);
}

static void step_not_sent(struct batch *b, bool with_rows, enum err_code code)
{
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_step_put(&out, 1, b, with_rows, &e), code);
    assert_int_equal(out.len, 0);
    buf_free(&out);
}

static void step_that_would_be_refused_is_not_sent(void **state)
{
    (void)state;
    struct room r;
    room_step(&r)->n_entries = 0;
    step_not_sent(&r.b, true, ERR_ARG);
    room_step(&r)->n_tok = 4;
    step_not_sent(&r.b, true, ERR_ARG);
    room_step(&r)->entries[0].slot = BATCH_MAX_SLOTS;
    step_not_sent(&r.b, true, ERR_ARG);
    room_step(&r)->entries[0].flags = 16;
    step_not_sent(&r.b, true, ERR_ARG);
    room_step(&r)->entries[1].n_tok = 0;
    step_not_sent(&r.b, true, ERR_ARG);
    room_step(&r)->n_entries = BATCH_MAX_ENTRIES + 1;
    step_not_sent(&r.b, true, ERR_ARG);
    room_step(&r)->n_embd = 0;
    step_not_sent(&r.b, true, ERR_ARG);
    room_step(&r)->n_embd = BATCH_MAX_EMBD + 1;
    step_not_sent(&r.b, true, ERR_ARG);
}

static void step_larger_than_a_frame_is_not_sent(void **state)
{
    (void)state;
    struct room r;
    struct batch *b = room_step(&r);
    b->n_entries = 1;
    b->entries[0].n_tok = b->n_tok = BATCH_MAX_TOK;
    b->n_embd = BATCH_MAX_EMBD; /* refused before a row is read */
    step_not_sent(b, true, ERR_LIMIT);
}

/* --- result --- */

static const uint8_t golden_result[] = {
    'K', 'F', 2, 3, 52, 0, 0, 0, 7, 0, 0,   0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0, 0, 2, 0,
    0,   0,   9, 0, 0,  0, 0, 0, 0, 0, 100, 0, 0, 0, 1, 0, 0, 0, 0xe7, 3, 0, 0, 0, 0, 0, 0xbf, /* -0.5 */
    8,   0,   0, 0, 0,  0, 0, 0, 1, 0, 0,   0, 2, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0, 0,
};

static struct batch *room_results(struct room *r)
{
    struct batch *b = room_batch(r);
    b->n_results = 2;
    b->results[0] = (struct batch_result){.request_id = 9, .slot = 1, .pos = 100, .token = 999, .logprob = -0.5f};
    b->results[1] = (struct batch_result){.request_id = 8, .slot = 2, .pos = 1, .token = 0, .logprob = 0};
    return b;
}

static void result_has_fixed_bytes(void **state)
{
    (void)state;
    struct room r, got;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_result_put(&out, 7, room_results(&r), &e), OK);
    assert_int_equal(out.len, sizeof golden_result);
    assert_memory_equal(out.data, golden_result, sizeof golden_result);
    assert_int_equal(frame_result_get(payload_of(&out), payload_len(&out), &limits, room_batch(&got), &e), OK);
    assert_int_equal(got.b.n_results, 2);
    assert_memory_equal(got.results, r.results, 2 * sizeof r.results[0]);
    buf_free(&out);
}

static void result_may_be_empty(void **state)
{
    (void)state;
    struct room r, got;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_result_put(&out, 7, room_batch(&r), &e), OK);
    assert_int_equal(out.len, FRAME_HEADER_BYTES + 4);
    room_batch(&got)->n_results = 3;
    assert_int_equal(frame_result_get(payload_of(&out), payload_len(&out), &limits, &got.b, &e), OK);
    assert_int_equal(got.b.n_results, 0);
    buf_free(&out);
}

/* Two results, the first with two of the likeliest tokens. */
static struct batch *room_tops(struct room *r)
{
    struct batch *b = room_results(r);
    b->results[0].n_top = 2;
    b->results[0].top[0] = (struct batch_top){999, -0.5f};
    b->results[0].top[1] = (struct batch_top){7, -1.25f};
    return b;
}

static void result_carries_the_likeliest_tokens(void **state)
{
    (void)state;
    struct room r, got;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_result_put(&out, 7, room_tops(&r), &e), OK);
    assert_int_equal(out.len, sizeof golden_result + 16);
    assert_int_equal(frame_result_get(payload_of(&out), payload_len(&out), &limits, room_batch(&got), &e), OK);
    assert_memory_equal(got.results, r.results, 2 * sizeof r.results[0]);
    for (size_t n = 0; n < payload_len(&out); n++) {
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, payload_of(&out), n);
        assert_int_equal(frame_result_get(copy, n, &limits, room_batch(&got), &e), ERR_FORMAT);
        free(copy);
    }
    le_put_u32(out.data + FRAME_HEADER_BYTES + 4 + 24 + 8, 1000);
    assert_int_equal(frame_result_get(payload_of(&out), payload_len(&out), &limits, room_batch(&got), &e),
                     ERR_PROTOCOL);
    assert_non_null(strstr(e.msg, "token 1000"));
    le_put_u32(out.data + FRAME_HEADER_BYTES + 4 + 24 + 8, 7);
    le_put_u32(out.data + FRAME_HEADER_BYTES + 4 + 24 + 12, 0x7fc00000);
    assert_int_equal(frame_result_get(payload_of(&out), payload_len(&out), &limits, room_batch(&got), &e),
                     ERR_PROTOCOL);
    assert_int_equal(got.b.n_results, 0);
    buf_free(&out);
}

static void result_refused(size_t at, uint32_t word, enum err_code code, const char *part)
{
    uint8_t p[sizeof golden_result - FRAME_HEADER_BYTES];
    struct room got, was;
    struct err e;
    memcpy(p, golden_result + FRAME_HEADER_BYTES, sizeof p);
    le_put_u32(p + at, word);
    room_batch(&got);
    was = got;
    assert_int_equal(frame_result_get(p, sizeof p, &limits, &got.b, &e), code);
    if (!strstr(e.msg, part))
        fail_msg("%s lacks: %s", e.msg, part);
    assert_memory_equal(&got, &was, sizeof got);
}

static void result_refuses_bad_values(void **state)
{
    (void)state;
    const size_t r1 = 4 + 24;
    result_refused(0, 0x00050002, ERR_PROTOCOL, "reserved field is 0x5");
    result_refused(0, 9, ERR_LIMIT, "9 results, at most 8");
    result_refused(0, 3, ERR_FORMAT, "cut short");
    result_refused(0, 1, ERR_FORMAT, "24 bytes too many");
    result_refused(r1 + 8, 101, ERR_PROTOCOL, "result 1: position 101, the context has 100");
    result_refused(r1 + 12, 8, ERR_PROTOCOL, "result 1: slot 8, the ring has 8");
    result_refused(r1 + 12, 0x00010002, ERR_FORMAT, "cut short"); /* a likeliest token that is not there */
    result_refused(r1 + 12, 0x00150002, ERR_LIMIT, "result 1: 21 likeliest tokens, at most 20");
    result_refused(r1 + 16, 1000, ERR_PROTOCOL, "result 1: token 1000, the vocabulary has 1000");
    result_refused(r1 + 16, 0xffffffff, ERR_PROTOCOL, "result 1: token -1");
    result_refused(r1 + 20, 0x7fc00000, ERR_PROTOCOL, "result 1: the log-probability is not a finite number");
    result_refused(r1 + 20, 0xff800000, ERR_PROTOCOL, "not a finite number");
}

static void result_refuses_every_cut(void **state)
{
    (void)state;
    struct room got;
    struct err e;
    for (size_t n = 0; n < sizeof golden_result - FRAME_HEADER_BYTES; n++) {
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, golden_result + FRAME_HEADER_BYTES, n);
        assert_int_equal(frame_result_get(copy, n, &limits, room_batch(&got), &e), ERR_FORMAT);
        free(copy);
    }
}

static void result_that_would_be_refused_is_not_sent(void **state)
{
    (void)state;
    struct room r;
    struct buf out = {0};
    struct err e;
    room_results(&r)->results[1].logprob = NAN;
    assert_int_equal(frame_result_put(&out, 1, &r.b, &e), ERR_ARG);
    room_results(&r)->results[0].token = -1;
    assert_int_equal(frame_result_put(&out, 1, &r.b, &e), ERR_ARG);
    room_results(&r)->results[0].slot = BATCH_MAX_SLOTS;
    assert_int_equal(frame_result_put(&out, 1, &r.b, &e), ERR_ARG);
    room_tops(&r)->results[0].n_top = BATCH_MAX_TOP + 1;
    assert_int_equal(frame_result_put(&out, 1, &r.b, &e), ERR_ARG);
    room_tops(&r)->results[0].top[1].logprob = -INFINITY;
    assert_int_equal(frame_result_put(&out, 1, &r.b, &e), ERR_ARG);
    room_tops(&r)->results[0].top[1].token = -1;
    assert_int_equal(frame_result_put(&out, 1, &r.b, &e), ERR_ARG);
    room_results(&r)->n_results = BATCH_MAX_ENTRIES + 1;
    assert_int_equal(frame_result_put(&out, 1, &r.b, &e), ERR_ARG);
    assert_int_equal(out.len, 0);
    buf_free(&out);
}

/* --- the small ones --- */

static void heartbeat_is_a_header(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_heartbeat_put(&out, &e), OK);
    assert_int_equal(out.len, FRAME_HEADER_BYTES);
    assert_int_equal(header_of(&out).type, FRAME_HEARTBEAT);
    buf_free(&out);
}

/* --- failures --- */

static void fail_is_read_back(void **state)
{
    (void)state;
    static const uint8_t want[] = {0xf1, 0xff, 0xff, 0xff, 2, 0, 0, 0, 4, 0, 'b', 'u', 's', 'y'};
    struct frame_fail f = {.code = ERR_BUSY, .rank = 2, .text = "busy"}, back;
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_fail_put(&out, FRAME_FAIL, 11, &f, &e), OK);
    struct frame_header h = header_of(&out);
    assert_int_equal(h.type, FRAME_FAIL);
    assert_int_equal(h.step_id, 11);
    assert_int_equal(payload_len(&out), sizeof want);
    assert_memory_equal(payload_of(&out), want, sizeof want);
    assert_int_equal(frame_fail_get(payload_of(&out), sizeof want, &back, &e), OK);
    assert_int_equal(back.code, ERR_BUSY);
    assert_int_equal(back.rank, 2);
    assert_string_equal(back.text, "busy");
    for (size_t n = 0; n < sizeof want; n++)
        assert_int_equal(frame_fail_get(payload_of(&out), n, &back, &e), ERR_FORMAT);
    buf_free(&out);
}

static void bye_may_say_ok(void **state)
{
    (void)state;
    struct frame_fail f = {.code = OK, .rank = 1, .text = "done"}, back = {.code = ERR_IO};
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_fail_put(&out, FRAME_FAIL, 0, &f, &e), ERR_ARG);
    assert_int_equal(frame_fail_put(&out, FRAME_PROBE, 0, &f, &e), ERR_ARG);
    assert_int_equal(out.len, 0);
    assert_int_equal(frame_fail_put(&out, FRAME_BYE, 0, &f, &e), OK);
    assert_int_equal(header_of(&out).type, FRAME_BYE);
    assert_int_equal(frame_fail_get(payload_of(&out), payload_len(&out), &back, &e), OK);
    assert_int_equal(back.code, OK);
    buf_free(&out);
}

static void fail_text_of_255_bytes_passes(void **state)
{
    (void)state;
    struct frame_fail f = {.code = ERR_IO}, back;
    struct buf out = {0};
    struct err e;
    memset(f.text, 'x', sizeof f.text); /* no NUL: cut to 255 */
    assert_int_equal(frame_fail_put(&out, FRAME_FAIL, 0, &f, &e), OK);
    assert_int_equal(payload_len(&out), 10 + 255);
    assert_int_equal(frame_fail_get(payload_of(&out), payload_len(&out), &back, &e), OK);
    assert_int_equal(strlen(back.text), 255);
    buf_puts(&out, "x");
    le_put_u16(out.data + FRAME_HEADER_BYTES + 8, 256);
    assert_int_equal(frame_fail_get(payload_of(&out), payload_len(&out), &back, &e), ERR_LIMIT);
    buf_free(&out);
}

static void fail_of_unknown_code_is_a_protocol_error(void **state)
{
    (void)state;
    static const uint8_t p[] = {0x18, 0xfc, 0xff, 0xff, 0, 0, 0, 0, 0, 0};
    struct frame_fail back;
    struct err e;
    assert_int_equal(frame_fail_get(p, sizeof p, &back, &e), OK);
    assert_int_equal(back.code, ERR_PROTOCOL);
    assert_string_equal(back.text, "");
}

static void fail_text_is_cleaned(void **state)
{
    (void)state;
    /* newline, escape, DEL, NUL; "ä"; overlong '/'; surrogate; C1; U+1F600; above U+10FFFF; cut character */
    static const char text[] =
        "a\n\x1b\x7f\0\xc3\xa4\xc0\xaf\xed\xa0\x80\xc2\x85\xf0\x9f\x98\x80\xf4\x90\x80\x80\xe2\x82";
    struct frame_fail back;
    struct buf out = {0};
    struct err e;
    buf_put_u32(&out, (uint32_t)ERR_IO);
    buf_put_u32(&out, 0);
    buf_put_u16(&out, sizeof text - 1);
    buf_put(&out, text, sizeof text - 1);
    assert_int_equal(frame_fail_get(out.data, out.len, &back, &e), OK);
    assert_string_equal(back.text, "a????\xc3\xa4?????"
                                   "?\xf0\x9f\x98\x80??????");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_has_fixed_bytes),
        cmocka_unit_test(header_refuses_strangers),
        cmocka_unit_test(header_length_limit_is_exact),
        cmocka_unit_test(words_are_swapped_on_demand),
        cmocka_unit_test(step_has_fixed_bytes),
        cmocka_unit_test(step_is_read_back),
        cmocka_unit_test(step_without_rows_has_width_0),
        cmocka_unit_test(step_rows_keep_every_bit),
        cmocka_unit_test(steps_append_and_reuse_memory),
        cmocka_unit_test(random_steps_are_read_back),
        cmocka_unit_test(step_refuses_bad_counts),
        cmocka_unit_test(step_refuses_bad_entries),
        cmocka_unit_test(step_adds_up_in_64_bits),
        cmocka_unit_test(step_refuses_bad_tokens),
        cmocka_unit_test(step_refuses_every_cut),
        cmocka_unit_test(step_limits_are_no_larger_than_a_batch),
        cmocka_unit_test(step_that_would_be_refused_is_not_sent),
        cmocka_unit_test(step_larger_than_a_frame_is_not_sent),
        cmocka_unit_test(result_has_fixed_bytes),
        cmocka_unit_test(result_may_be_empty),
        cmocka_unit_test(result_carries_the_likeliest_tokens),
        cmocka_unit_test(result_refuses_bad_values),
        cmocka_unit_test(result_refuses_every_cut),
        cmocka_unit_test(result_that_would_be_refused_is_not_sent),
        cmocka_unit_test(heartbeat_is_a_header),
        cmocka_unit_test(fail_is_read_back),
        cmocka_unit_test(bye_may_say_ok),
        cmocka_unit_test(fail_text_of_255_bytes_passes),
        cmocka_unit_test(fail_of_unknown_code_is_a_protocol_error),
        cmocka_unit_test(fail_text_is_cleaned),
    };
    return cmocka_run_group_tests_name("ring_frame", tests, NULL, NULL);
}
