/* SPDX-License-Identifier: MIT
 *
 * Frames as a link would receive them: headers and payloads one after the other. What is accepted must be encoded to
 * the same bytes again and obey the limits.
 */
#include "lib/fuzz.h"
#include "ring/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CAP_ENTRIES 4u
#define CAP_TOK     8u
#define N_EMBD      2u

static const struct frame_limits limits = {.n_slots = 16, .n_ctx = 64, .n_vocab = 300, .n_ranks = 4};

/* The frame of `len` payload bytes at p was accepted and encoded again into out. */
static void must_equal(const struct buf *out, const uint8_t *p, size_t len)
{
    MUST(out->len == FRAME_HEADER_BYTES + len);
    MUST(memcmp(out->data + FRAME_HEADER_BYTES, p, len) == 0);
}

static void step(const uint8_t *p, size_t len, bool want_rows, struct buf *out)
{
    struct batch_entry entries[CAP_ENTRIES];
    struct batch_result results[CAP_ENTRIES];
    int32_t tokens[CAP_TOK];
    float rows[CAP_TOK * N_EMBD];
    struct err e;
    struct batch b = {.cap_entries = CAP_ENTRIES,
                      .cap_tok = CAP_TOK,
                      .n_embd = N_EMBD,
                      .entries = entries,
                      .tokens = tokens,
                      .rows = rows,
                      .results = results};
    if (frame_step_get(p, len, &limits, want_rows, &b, &e) != OK)
        return;
    MUST(b.n_entries >= 1 && b.n_entries <= CAP_ENTRIES && b.n_tok >= b.n_entries && b.n_tok <= CAP_TOK);
    for (uint32_t i = 0; i < b.n_entries; i++)
        MUST(entries[i].slot < limits.n_slots && entries[i].pos + entries[i].n_tok <= limits.n_ctx);
    for (uint32_t i = 0; i < b.n_tok; i++)
        MUST(tokens[i] >= 0 && (uint32_t)tokens[i] < limits.n_vocab);
    MUST(frame_step_put(out, 0, &b, want_rows, &e) == OK);
    must_equal(out, p, len);
}

static void result(const uint8_t *p, size_t len, struct buf *out)
{
    struct batch_result results[CAP_ENTRIES];
    struct batch b = {.cap_entries = CAP_ENTRIES, .results = results};
    struct err e;
    if (frame_result_get(p, len, &limits, &b, &e) != OK)
        return;
    MUST(b.n_results <= CAP_ENTRIES);
    for (uint32_t i = 0; i < b.n_results; i++)
        MUST(results[i].n_top <= BATCH_MAX_TOP && results[i].slot < limits.n_slots);
    MUST(frame_result_put(out, 0, &b, &e) == OK);
    must_equal(out, p, len);
}

static void request(const uint8_t *p, size_t len, struct buf *out)
{
    struct batch_sampling s;
    uint32_t slot;
    struct err e;
    if (frame_request_get(p, len, &limits, &slot, &s, &e) != OK)
        return;
    MUST(slot < limits.n_slots && s.n_top <= BATCH_MAX_TOP && s.n_bias <= BATCH_MAX_BIAS);
    MUST(frame_request_put(out, 0, slot, &s, &e) == OK);
    must_equal(out, p, len);
}

static void probe(const uint8_t *p, size_t len, struct buf *out)
{
    static struct frame_probe q;
    struct err e;
    if (frame_probe_get(p, len, &limits, &q, &e) != OK)
        return;
    MUST(q.n_rows == limits.n_ranks);
    MUST(frame_probe_put(out, &q, &e) == OK);
    must_equal(out, p, len);
}

static void submit(const uint8_t *p, size_t len, struct buf *out)
{
    struct sched_request r;
    int32_t *ids;
    struct err e;
    if (frame_submit_get(p, len, &limits, &r, &ids, &e) != OK)
        return;
    MUST(frame_submit_check(&limits, &r, &e) == OK);
    MUST(frame_submit_put(out, 0, &r, &e) == OK);
    must_equal(out, p, len);
    free(ids);
}

struct seen {
    struct frame_events raw, written;
    bool dirty; /* a text was cleaned, or a code is unknown: it is not written as it came */
};

static void see(void *ctx, const struct frame_event *ev, const uint8_t *bytes, size_t len)
{
    struct seen *s = ctx;
    uint32_t rank = frame_entry_rank(ev->request_id);
    MUST(rank > 0 && rank < limits.n_ranks);
    if (ev->is_end) {
        MUST(err_known(ev->code) && strlen(ev->text) <= FRAME_MAX_EVENT_TEXT);
        MUST((ev->reason == SCHED_FAILED) == (ev->code != OK));
        s->dirty |= memchr(ev->text, '?', sizeof ev->text) != NULL || ev->code == ERR_PROTOCOL;
    } else {
        MUST(ev->token.n_top <= BATCH_MAX_TOP && ev->token.token >= 0 && isfinite(ev->token.logprob));
    }
    frame_events_add_raw(&s->raw, bytes, len);
    frame_events_add(&s->written, ev);
}

static void events(const uint8_t *p, size_t len)
{
    struct seen s = {0};
    struct err e;
    if (frame_events_get(p, len, &limits, see, &s, &e) == OK) {
        frame_events_end(&s.raw);
        frame_events_end(&s.written);
        must_equal(&s.raw.out, p, len);
        if (!s.dirty)
            must_equal(&s.written.out, p, len);
    } else {
        MUST(s.raw.n == 0);
    }
    buf_free(&s.raw.out);
    buf_free(&s.written.out);
}

/* The text may have been cleaned: cleaning it again must change nothing. */
static void failure(const uint8_t *p, size_t len, struct buf *out)
{
    struct frame_fail f, again;
    struct err e;
    if (frame_fail_get(p, len, &f, &e) != OK)
        return;
    MUST(err_known(f.code) && strlen(f.text) < sizeof f.text);
    MUST(frame_fail_put(out, FRAME_BYE, 0, &f, &e) == OK);
    MUST(frame_fail_get(out->data + FRAME_HEADER_BYTES, out->len - FRAME_HEADER_BYTES, &again, &e) == OK);
    MUST(again.code == f.code && again.rank == f.rank && strcmp(again.text, f.text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf out = {0};
    while (size >= FRAME_HEADER_BYTES) {
        struct frame_header h;
        struct err e;
        uint8_t again[FRAME_HEADER_BYTES];
        if (frame_header_get(data, &h, &e) != OK)
            break;
        MUST(h.length <= FRAME_MAX_PAYLOAD && h.type > 0 && h.type < FRAME_TYPE_COUNT);
        frame_header_put(again, &h);
        MUST(memcmp(again, data, FRAME_HEADER_BYTES) == 0);
        data += FRAME_HEADER_BYTES;
        size -= FRAME_HEADER_BYTES;
        size_t len = h.length < size ? h.length : size;
        buf_clear(&out);
        switch (h.type) {
        case FRAME_STEP:
            step(data, len, h.request_id != 0, &out); /* unused in a step: chooses here */
            break;
        case FRAME_RESULT:
            result(data, len, &out);
            break;
        case FRAME_REQUEST:
            request(data, len, &out);
            break;
        case FRAME_PROBE:
            probe(data, len, &out);
            break;
        case FRAME_FAIL:
        case FRAME_BYE:
            failure(data, len, &out);
            break;
        case FRAME_SUBMIT:
            submit(data, len, &out);
            break;
        case FRAME_EVENTS:
            events(data, len);
            break;
        case FRAME_CANCEL:
        case FRAME_HEARTBEAT:
        case FRAME_TYPE_COUNT:
            break;
        }
        data += len;
        size -= len;
    }
    buf_free(&out);
    return 0;
}
