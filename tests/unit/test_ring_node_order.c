/* SPDX-License-Identifier: MIT
 *
 * Frames at the wrong time, in the wrong order, for the wrong slot, request or step, and twice: what the last rank of a
 * ring of two makes of them. The test plays rank 0: it is who it says it is, and sends what it likes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/thread.h"
#include "lib/ring_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_SLOTS  4u
#define N_BATCH  8u
#define N_CAUGHT 1024u

static const struct link_options patient = {.death_ms = RIG_DEATH_MS};
static const struct frame_limits limits = {.n_slots = N_SLOTS, .n_ctx = RIG_CTX, .n_vocab = RIG_VOCAB, .n_ranks = 2};

/* What rank 1 sent. */
struct caught {
    struct frame_header h;
    uint8_t payload[512];
};

struct boss {
    struct rig *r;
    struct link_listener *listener;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct link *down, *closing; /* edge 0 to rank 1; edge 1, by which rank 1 sends */
    unsigned n_caught, n_taken, n_bye;
    struct caught caught[N_CAUGHT]; /* all but probes */
    struct frame_fail bye;
};

static void on_closing_frame(void *ctx, const struct frame_header *h, const uint8_t *payload)
{
    struct boss *b = ctx;
    if (h->type == FRAME_PROBE || h->type == FRAME_BYE || h->length > sizeof b->caught[0].payload)
        return;
    pthread_mutex_lock(&b->mutex);
    struct caught *c = &b->caught[b->n_caught++ % N_CAUGHT];
    c->h = *h;
    if (h->length > 0)
        memcpy(c->payload, payload, h->length);
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->mutex);
}

/* Rank 1 sends nothing upstream but a goodbye. */
static void on_down_frame(void *ctx, const struct frame_header *h, const uint8_t *payload)
{
    struct boss *b = ctx;
    struct frame_fail f;
    if (h->type != FRAME_BYE || frame_fail_get(payload, h->length, &f, NULL) != OK)
        return;
    pthread_mutex_lock(&b->mutex);
    b->bye = f;
    b->n_bye++;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->mutex);
}

static void on_link_down(void *ctx, enum err_code code, const char *text)
{
    (void)ctx;
    (void)code;
    (void)text;
}

static enum err_code wanted(void *ctx, uint32_t edge, struct handshake_hello *mine, struct key_public *expected,
                            struct err *e)
{
    struct boss *b = ctx;
    return handshake_hello_of(&b->r->m, 0, edge, mine, expected, e);
}

static void on_link(void *ctx, uint32_t edge, struct link *l)
{
    struct boss *b = ctx;
    struct link_callbacks cb = {.ctx = b, .on_frame = on_closing_frame, .on_down = on_link_down};
    (void)edge;
    pthread_mutex_lock(&b->mutex);
    bool first = b->closing == NULL;
    if (first)
        b->closing = l;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->mutex);
    if (!first || link_start(l, &cb, &patient, NULL) != OK)
        link_close(first ? NULL : l);
}

static void put(struct boss *b, struct buf *frames)
{
    struct err e;
    if (link_send(b->down, frames->data, frames->len, &e) != OK)
        fail_msg("%s", e.msg);
    buf_free(frames);
}

static void send_probe(struct boss *b, bool ready)
{
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_probe_put(&out, &(struct frame_probe){.nonce = 1, .ready = ready, .n_rows = 2}, &e), OK);
    put(b, &out);
}

static struct boss *boss_new(void)
{
    struct boss *b = calloc(1, sizeof *b);
    struct handshake_hello mine;
    struct key_public expected;
    struct err e;
    assert_non_null(b);
    pthread_mutex_init(&b->mutex, NULL);
    thread_cond_init(&b->cond);
    b->r = rig_new(2, N_SLOTS, N_BATCH);
    struct link_listener_config c = {.secret = &b->r->key[0], .ctx = b, .edge = wanted, .on_link = on_link};
    assert_int_equal(link_listen(NULL, b->r->fd[0], &c, &b->listener, &e), OK);
    b->r->fd[0] = -1;
    rig_start(b->r, 1, &b->r->m);
    assert_int_equal(handshake_hello_of(&b->r->m, 0, 0, &mine, &expected, &e), OK);
    struct link_dial_config d = {.addr = b->r->rows[1].addr,
                                 .deadline_ns = clock_deadline_ms(RIG_WAIT_MS),
                                 .secret = &b->r->key[0],
                                 .mine = &mine,
                                 .expected = &expected};
    struct link_callbacks cb = {.ctx = b, .on_frame = on_down_frame, .on_down = on_link_down};
    if (link_dial(&d, &b->down, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(link_start(b->down, &cb, &patient, &e), OK);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (!node_is_ready(b->r->node[1]) && clock_now_ns() < deadline) { /* its other link may still be on its way */
        send_probe(b, true);
        usleep(5000);
    }
    assert_true(node_is_ready(b->r->node[1]));
    return b;
}

static void boss_free(struct boss *b)
{
    rig_free(b->r);
    link_listener_close(b->listener);
    link_close(b->down);
    link_close(b->closing);
    pthread_cond_destroy(&b->cond);
    pthread_mutex_destroy(&b->mutex);
    free(b);
}

/* The next frame from rank 1, of that type. */
static struct caught next(struct boss *b, enum frame_type type)
{
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    bool in_time = true;
    pthread_mutex_lock(&b->mutex);
    while (b->n_caught == b->n_taken && in_time)
        in_time = thread_cond_wait(&b->cond, &b->mutex, deadline);
    struct caught c = b->caught[b->n_taken % N_CAUGHT];
    b->n_taken += in_time;
    pthread_mutex_unlock(&b->mutex);
    if (!in_time || c.h.type != type)
        fail_msg("a frame of type %d came, not %d", in_time ? (int)c.h.type : 0, (int)type);
    return c;
}

static void send_request(struct boss *b, uint64_t id, uint32_t slot, uint64_t seed)
{
    struct buf out = {0};
    struct err e;
    assert_int_equal(frame_request_put(&out, id, slot, &(struct batch_sampling){.seed = seed, .top_p = 1}, &e), OK);
    put(b, &out);
}

/* One token at pos; its prefix are the tokens 0 to pos - 1. */
static void send_step(struct boss *b, uint64_t step, uint64_t id, uint32_t slot, uint32_t pos)
{
    struct batch_entry en = {
        .request_id = id, .slot = slot, .pos = pos, .n_tok = 1, .flags = BATCH_SAMPLE | (pos ? 0 : BATCH_RESET)};
    int32_t token = (int32_t)pos;
    float row[RIG_EMBD] = {0};
    struct batch x = {.n_entries = 1, .n_tok = 1, .n_embd = RIG_EMBD, .entries = &en, .tokens = &token, .rows = row};
    struct buf out = {0};
    struct err e;
    en.prefix_hash = HASH_PREFIX_EMPTY;
    for (uint32_t i = 0; i < pos; i++)
        en.prefix_hash = hash_prefix(en.prefix_hash, (int32_t)i);
    assert_int_equal(frame_step_put(&out, step, &x, true, &e), OK);
    put(b, &out);
}

/* The one result of a step. */
static struct batch_result result_of(struct boss *b, uint64_t step)
{
    struct batch_result r[N_SLOTS];
    struct batch x = {.cap_entries = N_SLOTS, .results = r};
    struct caught c = next(b, FRAME_RESULT);
    struct err e;
    assert_int_equal(c.h.step_id, step);
    assert_int_equal(frame_result_get(c.payload, c.h.length, &limits, &x, &e), OK);
    assert_int_equal(x.n_results, 1);
    return r[0];
}

static void expect_fail(struct boss *b, uint64_t step, enum err_code code)
{
    struct caught c = next(b, FRAME_FAIL);
    struct frame_fail f;
    struct err e;
    assert_int_equal(c.h.step_id, step);
    assert_int_equal(frame_fail_get(c.payload, c.h.length, &f, &e), OK);
    if (f.code != code)
        fail_msg("%s", f.text);
    assert_int_equal(f.rank, 1);
}

/* Rank 1 takes nothing more from this predecessor, and says why. */
static void expect_bye(struct boss *b, enum err_code code)
{
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    bool in_time = true;
    pthread_mutex_lock(&b->mutex);
    while (b->n_bye == 0 && in_time)
        in_time = thread_cond_wait(&b->cond, &b->mutex, deadline);
    pthread_mutex_unlock(&b->mutex);
    assert_true(in_time);
    if (b->bye.code != code)
        fail_msg("%s: %s", err_name(b->bye.code), b->bye.text);
    assert_int_equal(b->bye.rank, 1);
}

/* --- steps --------------------------------------------------------------------------------------- */

static void test_a_step_that_comes_twice_is_stale(void **state)
{
    (void)state;
    struct boss *b = boss_new();
    send_request(b, 1, 0, 5);
    send_step(b, 1, 1, 0, 0);
    struct batch_result first = result_of(b, 1);
    assert_int_equal(first.pos, 1);
    send_step(b, 1, 1, 0, 0); /* begins the slot anew: the same again */
    assert_int_equal(result_of(b, 1).token, first.token);
    send_step(b, 2, 1, 0, 1);
    struct batch_result second = result_of(b, 2);
    send_step(b, 2, 1, 0, 1); /* goes on where the slot no longer ends */
    expect_fail(b, 2, ERR_STALE);
    send_step(b, 3, 1, 0, 2); /* and nothing was computed by it */
    assert_int_equal(result_of(b, 3).pos, 3);
    assert_int_equal(second.pos, 2);
    boss_free(b);
}

/* Ids are numbers of 64 bits that rank 1 only gives back: also 2^32 and what follows, and the largest. */
static void test_steps_are_answered_by_their_ids_whatever_these_are(void **state)
{
    (void)state;
    static const uint64_t ids[] = {9, 3, UINT32_MAX, 1ull << 32, (1ull << 32) + 1, UINT64_MAX, 0};
    struct boss *b = boss_new();
    send_request(b, UINT64_MAX >> 16, 1, 5);
    for (uint32_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        send_step(b, ids[i], UINT64_MAX >> 16, 1, i);
        struct batch_result r = result_of(b, ids[i]);
        assert_int_equal(r.request_id, UINT64_MAX >> 16);
        assert_int_equal(r.pos, i + 1);
    }
    boss_free(b);
}

static void test_a_step_on_a_slot_that_holds_nothing_is_stale(void **state)
{
    (void)state;
    struct boss *b = boss_new();
    send_request(b, 1, 0, 5);
    send_step(b, 1, 1, 0, 3);
    expect_fail(b, 1, ERR_STALE);
    send_step(b, 2, 1, 0, 0);
    assert_int_equal(result_of(b, 2).pos, 1);
    boss_free(b);
}

/* A token must never be drawn with another request's parameters. */
static void test_a_step_without_its_own_parameters_is_stale(void **state)
{
    (void)state;
    struct boss *b = boss_new();
    send_step(b, 1, 1, 0, 0); /* never announced */
    expect_fail(b, 1, ERR_STALE);
    send_request(b, 1, 0, 5);
    send_request(b, 2, 1, 6);
    send_step(b, 2, 1, 1, 0); /* the other's slot */
    expect_fail(b, 2, ERR_STALE);
    send_step(b, 3, 2, 1, 0);
    assert_int_equal(result_of(b, 3).request_id, 2);
    send_request(b, 3, 1, 7); /* takes the slot over */
    send_step(b, 4, 2, 1, 1);
    expect_fail(b, 4, ERR_STALE);
    send_step(b, 5, 3, 1, 0);
    assert_int_equal(result_of(b, 5).request_id, 3);
    boss_free(b);
}

/* Of a step for no slot, with a token of no vocabulary, with rows of no use nothing is computed. */
static void test_steps_that_cannot_be_end_the_link(void **state)
{
    (void)state;
    static const struct {
        size_t at; /* in the payload: fixed part of 12 bytes, entry of 28, token of 4 */
        uint8_t value;
        enum err_code code;
    } rows[] = {
        {12 + 20, N_SLOTS, ERR_PROTOCOL}, /* slot */
        {12 + 17, 1, ERR_PROTOCOL},       /* position 256: beyond the context */
        {12 + 22, 0x40, ERR_PROTOCOL},    /* flags */
        {4, 2, ERR_FORMAT},               /* two tokens, of which one came */
        {4, N_BATCH + 1, ERR_LIMIT},      /* tokens */
        {0, N_SLOTS + 1, ERR_LIMIT},      /* entries */
        {8, RIG_EMBD / 2, ERR_MISMATCH},  /* width of a row */
        {12 + 28 + 1, 0xff, ERR_PROTOCOL} /* token */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct boss *b = boss_new();
        struct batch_entry en = {.request_id = 1, .prefix_hash = HASH_PREFIX_EMPTY, .n_tok = 1};
        int32_t token = 1;
        float row[RIG_EMBD] = {0};
        struct batch x = {
            .n_entries = 1, .n_tok = 1, .n_embd = RIG_EMBD, .entries = &en, .tokens = &token, .rows = row};
        struct buf out = {0};
        struct err e;
        assert_int_equal(frame_step_put(&out, 1, &x, true, &e), OK);
        out.data[FRAME_HEADER_BYTES + rows[i].at] = rows[i].value;
        put(b, &out);
        expect_bye(b, rows[i].code);
        struct node_stats s;
        node_stats_get(b->r->node[1], &s);
        assert_int_equal(s.n_steps, 0);
        boss_free(b);
    }
}

/* --- frames that this rank does not take --------------------------------------------------------- */

enum stray {
    STRAY_RESULT,
    STRAY_SUBMIT_OF_ITS_OWN,
    STRAY_CANCEL_OF_RANK_0,
    STRAY_EVENT_OF_RANK_0,
    STRAY_FAIL_OF_NOTHING
};

static void put_stray(struct buf *out, enum stray which)
{
    struct batch_result res = {.request_id = 1, .pos = 1, .token = 1};
    struct batch x = {.n_results = 1, .results = &res};
    int32_t token = 1;
    struct sched_request q = {.tokens = &token, .n_tokens = 1, .n_predict = 1};
    struct frame_events w = {0};
    struct err e;
    switch (which) {
    case STRAY_RESULT:
        assert_int_equal(frame_result_put(out, 1, &x, &e), OK);
        break;
    case STRAY_SUBMIT_OF_ITS_OWN: /* it has been all the way around */
        assert_int_equal(frame_submit_put(out, 1ull << 48 | 1, &q, &e), OK);
        break;
    case STRAY_CANCEL_OF_RANK_0:
        assert_int_equal(frame_cancel_put(out, 1, &e), OK);
        break;
    case STRAY_EVENT_OF_RANK_0:
        frame_events_add(&w, &(struct frame_event){.request_id = 1, .is_end = true, .reason = SCHED_STOP});
        frame_events_end(&w);
        buf_put(out, w.out.data, w.out.len);
        buf_free(&w.out);
        break;
    case STRAY_FAIL_OF_NOTHING:
        assert_int_equal(frame_fail_put(out, FRAME_FAIL, 1, &(struct frame_fail){.code = ERR_IO}, &e), OK);
        memset(out->data + FRAME_HEADER_BYTES, 0, 4); /* the code for success */
        break;
    }
}

static void test_frames_that_have_no_business_here_end_the_link(void **state)
{
    (void)state;
    for (int i = STRAY_RESULT; i <= STRAY_FAIL_OF_NOTHING; i++) {
        struct boss *b = boss_new();
        struct buf out = {0};
        put_stray(&out, (enum stray)i);
        put(b, &out);
        expect_bye(b, ERR_PROTOCOL);
        boss_free(b);
    }
}

/* --- requests that entered at this rank ---------------------------------------------------------- */

static void send_token(struct boss *b, uint64_t id, uint32_t pos)
{
    struct frame_events w = {0};
    frame_events_add(&w, &(struct frame_event){.request_id = id,
                                               .token = {.request_id = id, .pos = pos, .token = 7, .logprob = -1}});
    frame_events_end(&w);
    put(b, &w.out);
}

static void send_end(struct boss *b, uint64_t id, enum sched_reason reason, enum err_code code)
{
    struct frame_events w = {0};
    frame_events_add(&w, &(struct frame_event){.request_id = id, .is_end = true, .reason = reason, .code = code});
    frame_events_end(&w);
    put(b, &w.out);
}

/* A frame that has passed says that all before it were handled: the news of requests are taken on the link's thread. */
static void settle(struct boss *b)
{
    struct ask *a = ask_send_at(b->r, 1, 99, 2, 2);
    assert_int_equal(next(b, FRAME_SUBMIT).h.request_id, a->id);
    send_end(b, a->id, SCHED_STOP, OK);
    ask_wait(a, UINT32_MAX);
    ask_free(a);
}

static void test_news_of_a_request_that_ended_are_ignored(void **state)
{
    (void)state;
    struct boss *b = boss_new();
    struct ask *a = ask_send_at(b->r, 1, 1, 3, 5);
    assert_int_equal(next(b, FRAME_SUBMIT).h.request_id, a->id);
    send_token(b, a->id, 3);
    send_end(b, a->id, SCHED_STOP, OK);
    send_end(b, a->id, SCHED_FAILED, ERR_IO);
    send_token(b, a->id, 4);
    send_token(b, a->id + 1000, 4); /* of no request */
    settle(b);
    ask_wait(a, UINT32_MAX);
    assert_int_equal(a->n_ends, 1);
    assert_int_equal(a->n_out, 1);
    assert_int_equal(a->reason, SCHED_STOP);
    assert_int_equal(b->n_bye, 0);
    ask_free(a);
    boss_free(b);
}

/* Cancelled while it is on its way: rank 0 hears both, in this order, and what it said meanwhile reaches nobody. */
static void test_a_request_cancelled_on_its_way(void **state)
{
    (void)state;
    struct boss *b = boss_new();
    struct ask *a = ask_send_at(b->r, 1, 1, 3, 5);
    assert_true(node_cancel(b->r->node[1], a->id));
    assert_int_equal(a->n_ends, 1);
    assert_int_equal(next(b, FRAME_SUBMIT).h.request_id, a->id);
    assert_int_equal(next(b, FRAME_CANCEL).h.request_id, a->id);
    send_token(b, a->id, 3);
    send_end(b, a->id, SCHED_FAILED, ERR_BUSY);
    settle(b);
    assert_int_equal(a->n_ends, 1);
    assert_int_equal(a->n_out, 0);
    ask_free(a);
    boss_free(b);
}

/* The loss that passes ends hundreds of requests, each once, and rank 0 hears of each; then the ring is whole again. */
static void test_a_loss_that_passes_ends_all_requests(void **state)
{
    (void)state;
    enum { N = 400 };
    struct boss *b = boss_new();
    struct ask **a = calloc(N, sizeof(struct ask *));
    struct buf out = {0};
    struct err e;
    assert_non_null(a);
    for (uint32_t i = 0; i < N; i++) {
        a[i] = ask_send_at(b->r, 1, i, 2, 5);
        assert_int_equal(next(b, FRAME_SUBMIT).h.request_id, a[i]->id);
    }
    struct frame_fail f = {.code = ERR_TIMEOUT, .rank = 0, .text = "a cable broke"};
    assert_int_equal(frame_fail_put(&out, FRAME_FAIL, 0, &f, &e), OK);
    put(b, &out);
    assert_int_equal(next(b, FRAME_FAIL).h.step_id, 0); /* on to rank 0, before what follows from it */
    for (uint32_t i = 0; i < N; i++)
        (void)next(b, FRAME_CANCEL);
    for (uint32_t i = 0; i < N; i++) {
        ask_wait(a[i], UINT32_MAX);
        assert_int_equal(a[i]->n_ends, 1);
        assert_int_equal(a[i]->code, ERR_TIMEOUT);
        assert_string_equal(a[i]->text, "a cable broke");
        ask_free(a[i]);
    }
    free(a);
    struct ask *late = ask_new(1, 2, 2);
    assert_int_equal(ask_submit(late, b->r->node[1], &e), ERR_CLOSED);
    ask_free(late);
    send_probe(b, false);
    send_probe(b, true);
    rig_ready_at(b->r, 1);
    settle(b);
    boss_free(b);
}

/* Whatever broke the ring, it was not the request: it must not read as a refusal of it (429, 400). */
static void test_the_code_of_a_loss_is_not_the_requests(void **state)
{
    (void)state;
    static const enum err_code codes[] = {ERR_BUSY, ERR_LIMIT, ERR_ARG, ERR_AUTH};
    struct boss *b = boss_new();
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct frame_fail f = {.code = codes[i], .rank = 0, .text = "something broke"};
        struct buf out = {0};
        struct err e;
        struct ask *a = ask_send_at(b->r, 1, 1, 3, 5);
        assert_int_equal(next(b, FRAME_SUBMIT).h.request_id, a->id);
        assert_int_equal(frame_fail_put(&out, FRAME_FAIL, 0, &f, &e), OK);
        put(b, &out);
        struct caught c = next(b, FRAME_FAIL); /* goes on as it came */
        assert_int_equal(frame_fail_get(c.payload, c.h.length, &f, &e), OK);
        assert_int_equal(f.code, codes[i]);
        (void)next(b, FRAME_CANCEL);
        ask_ends(a, SCHED_FAILED);
        assert_int_equal(a->code, ERR_CLOSED);
        assert_string_equal(a->text, "something broke");
        ask_free(a);
        send_probe(b, true);
        rig_ready_at(b->r, 1);
    }
    boss_free(b);
}

int main(int argc, char **argv)
{
    if (!rig_begin(argc, argv))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_that_comes_twice_is_stale),
        cmocka_unit_test(test_steps_are_answered_by_their_ids_whatever_these_are),
        cmocka_unit_test(test_a_step_on_a_slot_that_holds_nothing_is_stale),
        cmocka_unit_test(test_a_step_without_its_own_parameters_is_stale),
        cmocka_unit_test(test_steps_that_cannot_be_end_the_link),
        cmocka_unit_test(test_frames_that_have_no_business_here_end_the_link),
        cmocka_unit_test(test_news_of_a_request_that_ended_are_ignored),
        cmocka_unit_test(test_a_request_cancelled_on_its_way),
        cmocka_unit_test(test_a_loss_that_passes_ends_all_requests),
        cmocka_unit_test(test_the_code_of_a_loss_is_not_the_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
