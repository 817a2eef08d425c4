/* SPDX-License-Identifier: MIT
 *
 * Rings at work (lib/ring_rig.h): right answers at every size and under load, all stages busy at once, stages that
 * fail, ranks that leave and come back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "lib/ring_rig.h"
#include "lib/test_util.h"
#include "ring/node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- what is asked of a ring --------------------------------------------------------------------- */

static void test_every_size_gives_the_same(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 5, 8};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct rig *r = rig_up(sizes[k], 6, 16);
        struct ask *a[24];
        for (uint32_t i = 0; i < 24; i++)
            a[i] = ask_send(r, 100 + i, 1 + i * 7 % 150, 1 + i * 5 % 40);
        for (uint32_t i = 0; i < 24; i++)
            ask_done(a[i]);
        struct node_stats s;
        node_stats_get(r->node[0], &s);
        assert_int_equal(s.sched.n_active + s.sched.n_waiting + s.sched.n_steps, 0);
        for (uint32_t i = 1; i < sizes[k]; i++) {
            struct node_stats o;
            node_stats_get(r->node[i], &o);
            assert_int_equal(o.n_steps, s.n_steps);
            assert_int_equal(o.n_tok, s.n_tok);
            assert_true(o.predecessor.bytes_in > 0 && o.successor.bytes_out > 0);
        }
        rig_free(r);
    }
}

/* faults.md 13 and 14: right answers do not show that only one stage works at a time. */
static void test_all_stages_work_at_once(void **state)
{
    (void)state;
    struct rig *r = rig_new(4, 8, 32);
    struct ask *a[8];
    for (uint32_t i = 0; i < 4; i++) {
        r->fake[i].meter = &r->meter;
        atomic_store(&r->fake[i].sleep_us, 10000);
        rig_start(r, i, &r->m);
    }
    rig_ready(r);
    for (uint32_t i = 0; i < 8; i++)
        a[i] = ask_send(r, i, 2, 24);
    for (uint32_t i = 0; i < 8; i++)
        ask_done(a[i]);
    assert_int_equal(r->meter.most, 4);
    rig_free(r);
}

/* One long prompt alone: its chunks keep several stages busy. */
static void test_prompt_chunks_overlap(void **state)
{
    (void)state;
    struct rig *r = rig_new(3, 1, 8);
    for (uint32_t i = 0; i < 3; i++) {
        r->fake[i].meter = &r->meter;
        atomic_store(&r->fake[i].sleep_us, 10000);
        rig_start(r, i, &r->m);
    }
    rig_ready(r);
    ask_done(ask_send(r, 5, 200, 2));
    assert_int_equal(r->meter.most, 3);
    rig_free(r);
}

static void test_context_end(void **state)
{
    (void)state;
    struct rig *r = rig_up(3, 2, 64);
    struct ask *a = ask_send(r, 1, RIG_CTX - 5, 100);
    ask_ends(a, SCHED_CONTEXT);
    assert_int_equal(a->n_out, 6);
    ask_free(a);
    struct ask *b = ask_new(1, 1, 1);
    struct err e;
    b->n_prompt = RIG_CTX;
    assert_int_equal(ask_submit(b, r->node[0], &e), ERR_LIMIT);
    assert_int_equal(ask_submit(b, r->node[1], &e), ERR_LIMIT);
    ask_free(b);
    rig_free(r);
}

static void test_cancel(void **state)
{
    (void)state;
    struct rig *r = rig_up(3, 1, 16);
    atomic_store(&r->fake[1].sleep_us, 5000);
    struct ask *running = ask_send(r, 1, 4, 200), *waiting = ask_send(r, 2, 4, 5), *next = ask_send(r, 3, 40, 5);
    ask_wait(running, 3);
    atomic_store(&r->fake[1].hold, true); /* none of them goes on meanwhile */
    assert_true(node_cancel(r->node[0], waiting->id));
    assert_true(node_cancel(r->node[0], running->id));
    assert_false(node_cancel(r->node[0], running->id));
    assert_false(node_cancel(r->node[1], next->id));
    ask_ends(running, SCHED_CANCELLED);
    ask_ends(waiting, SCHED_CANCELLED);
    assert_true(running->n_out >= 3);
    assert_int_equal(waiting->n_out, 0);
    atomic_store(&r->fake[1].hold, false);
    ask_done(next); /* the slot goes to it */
    ask_free(running);
    ask_free(waiting);
    rig_free(r);
}

static void test_back_pressure(void **state)
{
    (void)state;
    struct rig *r = rig_new(2, 1, 16);
    r->config.max_waiting = 2;
    for (uint32_t i = 0; i < 2; i++)
        rig_start(r, i, &r->m);
    rig_ready(r);
    atomic_store(&r->fake[1].hold, true);
    struct ask *a = ask_send(r, 1, 2, 4), *more = ask_new(4, 2, 4);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (!atomic_load(&r->fake[1].holding) && clock_now_ns() < deadline)
        usleep(500);
    struct ask *b = ask_send(r, 2, 2, 4), *c = ask_send(r, 3, 2, 4);
    struct err e;
    assert_int_equal(ask_submit(more, r->node[0], &e), ERR_BUSY);
    assert_int_equal(more->n_ends, 0);
    atomic_store(&r->fake[1].hold, false);
    ask_done(a);
    assert_int_equal(ask_submit(more, r->node[0], &e), OK); /* given away already or not: the slot counts */
    ask_done(b);
    ask_done(c);
    ask_done(more);
    rig_free(r);
}

/* Hundreds of requests begin with one step while a rank is busy: their parameters all get through. */
static void test_many_begin_at_once(void **state)
{
    (void)state;
    enum { N = 360 };
    struct rig *r = rig_new(3, N, 1024);
    r->config.max_waiting = N;
    for (uint32_t i = 0; i < 3; i++)
        rig_start(r, i, &r->m);
    rig_ready(r);
    struct ask **a = calloc(N, sizeof(struct ask *));
    atomic_store(&r->fake[1].hold, true);
    for (uint32_t i = 0; i < N; i++)
        a[i] = ask_send(r, i, 1 + i % 3, 3);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (!atomic_load(&r->fake[1].holding) && clock_now_ns() < deadline)
        usleep(500);
    atomic_store(&r->fake[1].hold, false);
    for (uint32_t i = 0; i < N; i++)
        ask_done(a[i]);
    free(a);
    assert_int_equal(atomic_load(&r->n_lost), 0);
    rig_free(r);
}

struct submitter {
    struct rig *r;
    pthread_t thread;
    uint32_t from, n_good;
};

static void *submit_some(void *arg)
{
    struct submitter *s = arg;
    for (uint32_t i = 0; i < 20; i++) {
        struct ask *a = ask_new(s->from + i, 1 + i, 6);
        struct err e;
        int32_t want[8];
        while (ask_submit(a, s->r->node[0], &e) == ERR_BUSY)
            usleep(500);
        if (i % 4 == 3)
            (void)!node_cancel(s->r->node[0], a->id);
        ask_wait(a, UINT32_MAX);
        rig_expected(a->prompt, a->n_prompt, a->seed, 6, want);
        s->n_good += a->n_ends == 1 && (a->reason == SCHED_LENGTH || (i % 4 == 3 && a->reason == SCHED_CANCELLED)) &&
                     memcmp(a->out, want, a->n_out * sizeof *want) == 0;
        ask_free(a);
    }
    return NULL;
}

static void test_submit_from_several_threads(void **state)
{
    (void)state;
    struct rig *r = rig_up(3, 3, 16);
    struct submitter s[6];
    for (uint32_t i = 0; i < 6; i++) {
        s[i] = (struct submitter){.r = r, .from = 1000 * i};
        assert_int_equal(pthread_create(&s[i].thread, NULL, submit_some, &s[i]), 0);
    }
    for (uint32_t i = 0; i < 6; i++) {
        pthread_join(s[i].thread, NULL);
        assert_int_equal(s[i].n_good, 20);
    }
    rig_free(r);
}

/* A step takes longer than a neighbour may be silent: it is alive, and its links say so. */
static void test_slow_rank(void **state)
{
    (void)state;
    unsigned n_lost = 1;
    for (int attempt = 0; attempt < 3 && n_lost > 0; attempt++) { /* the machine itself may have stood still */
        struct rig *r = rig_new(3, 4, 16);
        r->config.link = (struct link_options){.heartbeat_ms = 30, .death_ms = 600};
        for (uint32_t i = 0; i < 3; i++)
            rig_start(r, i, &r->m);
        rig_ready(r);
        atomic_store(&r->fake[1].sleep_us, 900000);
        struct ask *a = ask_send(r, 1, 2, 1), *b = ask_send(r, 2, 2, 1);
        ask_wait(a, UINT32_MAX);
        ask_wait(b, UINT32_MAX);
        n_lost = atomic_load(&r->n_lost);
        ask_ends(a, n_lost == 0 ? SCHED_LENGTH : a->reason);
        ask_ends(b, n_lost == 0 ? SCHED_LENGTH : b->reason);
        ask_free(a);
        ask_free(b);
        rig_free(r);
    }
    assert_int_equal(n_lost, 0);
}

/* --- failures of stages -------------------------------------------------------------------------- */

static void fail_at(uint32_t n_ranks, uint32_t rank, enum err_code code)
{
    struct rig *r = rig_up(n_ranks, 6, 64);
    struct ask *a[6];
    char named[32];
    for (uint32_t i = 0; i < n_ranks; i++)
        atomic_store(&r->fake[i].sleep_us, 3000); /* so that none of them ends before one fails */
    for (uint32_t i = 0; i < 6; i++)
        a[i] = ask_send(r, i, 3, 150);
    for (uint32_t i = 0; i < 6; i++)
        ask_wait(a[i], 4); /* spread over the steps by now */
    atomic_store(&r->fake[rank].fail_code, (int)code);
    atomic_store(&r->fake[rank].fail_request, a[2]->id);
    ask_wait(a[2], UINT32_MAX);
    atomic_store(&r->fake[rank].fail_request, 0);
    for (uint32_t i = 0; i < n_ranks; i++)
        atomic_store(&r->fake[i].sleep_us, 0);
    ask_ends(a[2], SCHED_FAILED);
    assert_int_equal(a[2]->code, code);
    snprintf(named, sizeof named, "rank %u: request", rank);
    if (!strstr(a[2]->text, rank == 0 ? "is not to my taste" : named))
        fail_msg("'%s' does not say what happened", a[2]->text);
    uint32_t n_failed = 0;
    for (uint32_t i = 0; i < 6; i++) { /* those in the same step fail with it, no others */
        ask_wait(a[i], UINT32_MAX);
        n_failed += a[i]->reason == SCHED_FAILED;
        ask_ends(a[i], a[i]->reason == SCHED_FAILED ? SCHED_FAILED : SCHED_LENGTH);
        ask_free(a[i]);
    }
    assert_true(n_failed >= 1 && n_failed <= (6 + n_ranks - 1) / n_ranks);
    assert_int_equal(atomic_load(&r->fake[rank].n_fails), 1);
    assert_int_equal(atomic_load(&r->n_lost), 0); /* the ring as such is well */
    rig_serves(r, 500);
    rig_free(r);
}

static void test_stage_fails(void **state)
{
    (void)state;
    fail_at(1, 0, ERR_NUMERIC);
    fail_at(3, 0, ERR_DEVICE);
    fail_at(3, 1, ERR_NOMEM);
    fail_at(3, 2, ERR_NUMERIC);
    fail_at(6, 3, ERR_LIMIT);
}

/* faults.md 16: a rank that forgot a slot says so and does not compute on. The request begins anew, which nobody can
 * tell from its text; where that does not help either, it fails. */
static void test_stale_slot(void **state)
{
    (void)state;
    struct rig *r = rig_up(3, 2, 32);
    atomic_store(&r->fake[1].sleep_us, 5000); /* it does not end before the test comes to it */
    struct ask *a = ask_send(r, 1, 5, 200);
    struct node_stats s;
    ask_wait(a, 3);
    atomic_store(&r->fake[1].hold, true);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (!atomic_load(&r->fake[1].holding) && clock_now_ns() < deadline)
        usleep(500);
    memset(r->fake[1].slot, 0, sizeof r->fake[1].slot);
    atomic_store(&r->fake[1].sleep_us, 0);
    atomic_store(&r->fake[1].hold, false);
    ask_done(a);
    node_stats_get(r->node[0], &s);
    assert_int_equal(s.sched.n_retried, 1);

    atomic_store(&r->fake[1].sleep_us, 5000);
    a = ask_send(r, 2, 5, 200);
    ask_wait(a, 3);
    atomic_store(&r->fake[1].fail_code, ERR_STALE);
    atomic_store(&r->fake[1].fail_request, a->id);
    ask_ends(a, SCHED_FAILED);
    atomic_store(&r->fake[1].sleep_us, 0);
    assert_int_equal(a->code, ERR_STALE);
    assert_non_null(strstr(a->text, "rank 1"));
    assert_int_equal(atomic_load(&r->fake[1].n_fails), 2);
    ask_free(a);
    rig_serves(r, 7);
    rig_free(r);
}

/* The turns of a conversation, on a real ring: each goes on where the last one ended. */
static void test_turns_of_a_conversation(void **state)
{
    (void)state;
    struct rig *r = rig_up(3, 3, 32);
    struct ask *a = ask_send(r, 1, 20, 10), *b;
    ask_ends(a, SCHED_LENGTH);
    for (uint32_t turn = 1; turn <= 4; turn++) {
        struct err e;
        struct node_stats s;
        b = ask_new(1 + turn, 4, 10);
        memmove(b->prompt + a->n_prompt + a->n_out, b->prompt, 4 * sizeof *b->prompt);
        memcpy(b->prompt, a->prompt, a->n_prompt * sizeof *b->prompt);
        memcpy(b->prompt + a->n_prompt, a->out, a->n_out * sizeof *b->prompt);
        b->n_prompt = a->n_prompt + a->n_out + 4;
        node_stats_get(r->node[0], &s);
        uint64_t before = s.sched.n_reused_tok;
        if (ask_submit(b, r->node[0], &e) != OK)
            fail_msg("%s", e.msg);
        ask_ends(b, SCHED_LENGTH);
        node_stats_get(r->node[0], &s);
        assert_int_equal(s.sched.n_reused_tok - before, a->n_prompt + a->n_out - 1); /* the last was never sent */
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(atomic_load(&r->fake[i].n_cuts), turn);
        ask_free(a);
        a = b;
    }
    ask_free(a);
    rig_free(r);
}

/* One request with parameters that the last rank refuses ends alone. */
static void test_refused_parameters(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        struct rig *r = rig_up(n, 4, 32);
        struct ask *good = ask_send(r, 1, 2, 100), *bad = ask_new(2, 2, 10);
        ask_wait(good, 2);
        struct sched_request q = {.tokens = bad->prompt,
                                  .n_tokens = 2,
                                  .n_predict = 10,
                                  .sampling = {.top_p = 1.5f},
                                  .ctx = bad,
                                  .on_token = ask_on_token,
                                  .on_end = ask_on_end};
        struct err e;
        assert_int_equal(node_submit(r->node[0], &q, &bad->id, &e), OK);
        ask_wait(bad, UINT32_MAX);
        assert_int_equal(bad->n_out, 0);
        assert_int_equal(bad->reason, SCHED_FAILED);
        assert_int_equal(bad->code, ERR_RANGE);
        assert_non_null(strstr(bad->text, "top_p"));
        ask_wait(good, UINT32_MAX);
        assert_int_equal(atomic_load(&r->n_lost), 0);
        ask_free(bad);
        ask_free(good);
        rig_serves(r, 9); /* the slot too */
        rig_free(r);
    }
}

static enum err_code wrong_step(void *ctx, struct batch *b, struct err *e)
{
    (void)ctx;
    (void)e;
    b->n_results = 1;
    b->results[0] =
        (struct batch_result){.request_id = b->entries[0].request_id, .pos = 1, .token = (int32_t)RIG_VOCAB};
    return OK;
}

/* In a ring of one there is no neighbour to blame for results that cannot be. */
static void test_results_of_its_own_that_do_not_fit(void **state)
{
    (void)state;
    struct rig *r = rig_new(1, 2, 16);
    struct node_config c = {.m = &r->m, .stage = {.step = wrong_step}, .listen_fd = -1};
    struct ask *a = ask_new(1, 1, 3);
    struct node *n;
    struct err e;
    assert_int_equal(node_start(&c, &n, &e), OK);
    for (int i = 0; i < 2; i++) { /* and it goes on */
        a->n_ends = 0;
        assert_int_equal(ask_submit(a, n, &e), OK);
        ask_ends(a, SCHED_FAILED);
        assert_int_equal(a->code, ERR_PROTOCOL);
    }
    node_stop(n);
    ask_free(a);
    rig_free(r);
}

/* A step that never comes back: the requests end, although probes still go around. */
static void test_stall(void **state)
{
    (void)state;
    struct rig *r = rig_new(2, 2, 32);
    r->config.stall_ms = 1500;
    for (uint32_t i = 0; i < 2; i++)
        rig_start(r, i, &r->m);
    rig_ready(r);
    atomic_store(&r->fake[1].hold, true);
    struct ask *a = ask_send(r, 1, 2, 5);
    ask_ends(a, SCHED_FAILED);
    assert_int_equal(a->code, ERR_TIMEOUT);
    assert_false(node_is_ready(r->node[0]));
    atomic_store(&r->fake[1].hold, false);
    rig_ready(r);
    ask_free(a);
    rig_serves(r, 3);
    rig_free(r);
}

/* faults.md 17: the thread that would notice is the one that hangs. */
static void test_not_ready_while_the_stage_hangs(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct rig *r = rig_new(2, 2, 32);
        struct err e;
        r->config.stall_ms = 1500;
        for (uint32_t i = 0; i < 2; i++)
            rig_start(r, i, &r->m);
        for (uint32_t i = 0; i < 2; i++)
            rig_ready_at(r, i);
        atomic_store(&r->fake[rank].hold, true);
        struct ask *a = ask_send(r, 1, 2, 5);
        uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
        while (node_is_ready(r->node[rank]) && clock_now_ns() < deadline)
            usleep(1000);
        assert_false(node_is_ready(r->node[rank]));
        assert_int_equal(node_wait_ready(r->node[rank], 0, &e), ERR_TIMEOUT);
        if (!strstr(e.msg, "at work on one step for more than 1 s"))
            fail_msg("%s", e.msg);
        atomic_store(&r->fake[rank].hold, false);
        ask_wait(a, UINT32_MAX); /* went on, or failed as one that stalls */
        rig_ready_at(r, rank);
        ask_free(a);
        rig_free(r);
    }
}

/* --- neighbours come and go ---------------------------------------------------------------------- */

static void wait_atomic(atomic_uint *x, unsigned n)
{
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (atomic_load(x) < n && clock_now_ns() < deadline)
        usleep(500);
    assert_int_equal(atomic_load(x), n);
}

static void lose(uint32_t n_ranks, uint32_t rank)
{
    struct rig *r = rig_up(n_ranks, 4, 32);
    struct ask *a[6];
    for (uint32_t i = 0; i < n_ranks; i++)
        atomic_store(&r->fake[i].sleep_us, 2000);
    for (uint32_t i = 0; i < 6; i++) /* two of them wait for a slot */
        a[i] = ask_send(r, i, 3, 240);
    for (uint32_t i = 0; i < 4; i++)
        ask_wait(a[i], 2);
    uint64_t t0 = clock_now_ns();
    rig_stop(r, rank);
    for (uint32_t i = 0; i < 4; i++) {
        ask_ends(a[i], SCHED_FAILED);
        assert_true(a[i]->text[0] != 0);
    }
    assert_true(clock_now_ns() - t0 < RIG_DEATH_MS / 2 * CLOCK_NS_PER_MS); /* told, not by silence */
    assert_false(node_is_ready(r->node[0]));
    assert_int_equal(a[4]->n_ends + a[5]->n_ends, 0);
    wait_atomic(&r->n_lost, 1);

    rig_start(r, rank, &r->m); /* it remembers nothing */
    rig_ready(r);
    wait_atomic(&r->n_ready, 2);
    for (uint32_t i = 0; i < n_ranks; i++)
        atomic_store(&r->fake[i].sleep_us, 0);
    ask_done(a[4]);
    ask_done(a[5]);
    rig_serves(r, 70);
    for (uint32_t i = 0; i < 4; i++)
        ask_free(a[i]);
    rig_free(r);
}

struct witness {
    struct ask *a;
    struct node *node;
    bool ready_at_end;
};

static void end_seen(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct witness *w = ctx;
    w->ready_at_end = node_is_ready(w->node);
    ask_on_end(w->a, id, reason, code, text);
}

static void token_seen(void *ctx, uint64_t id, const struct batch_result *r)
{
    ask_on_token(((struct witness *)ctx)->a, id, r);
}

/* Who hears that a request ended with the ring finds the ring broken: rank 0 learns of the loss by a step that it
 * cannot send. */
static void test_not_ready_when_requests_end(void **state)
{
    (void)state;
    struct rig *r = rig_up(2, 4, 32);
    struct ask *a = ask_new(1, 2, 5);
    struct witness w = {.a = a, .node = r->node[0]};
    const struct sched_request q = {.tokens = a->prompt,
                                    .n_tokens = a->n_prompt,
                                    .n_predict = a->n_predict,
                                    .sampling = {.seed = a->seed, .top_p = 1},
                                    .ctx = &w,
                                    .on_token = token_seen,
                                    .on_end = end_seen};
    struct err e;
    atomic_store(&r->fake[0].hold, true);
    assert_int_equal(node_submit(r->node[0], &q, &a->id, &e), OK);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (!atomic_load(&r->fake[0].holding) && clock_now_ns() < deadline)
        usleep(500);
    rig_stop(r, 1);
    usleep(50000); /* until its links' thread has noticed; where it has not, the step goes nowhere, as well */
    atomic_store(&r->fake[0].hold, false);
    ask_wait(a, UINT32_MAX);
    assert_int_equal(a->reason, SCHED_FAILED);
    assert_int_equal(a->code, ERR_CLOSED);
    assert_true(a->text[0] != 0);
    assert_false(w.ready_at_end);
    ask_free(a);
    rig_free(r);
}

static void test_a_rank_leaves_and_comes_back(void **state)
{
    (void)state;
    lose(2, 1);
    lose(3, 1);
    lose(4, 2);
    lose(4, 3);
    lose(4, 1);
}

/* The ring breaks with hundreds of requests in slots and hundreds that wait: the former end, each once, the latter wait
 * for the ring, but not for ever. */
static void test_many_wait_when_the_ring_breaks(void **state)
{
    (void)state;
    enum { N = 400, SLOTS = 100 };
    struct rig *r = rig_new(2, SLOTS, 128);
    r->config.max_waiting = N;
    r->config.stall_ms = 3000;
    for (uint32_t i = 0; i < 2; i++)
        rig_start(r, i, &r->m);
    rig_ready(r);
    struct ask **a = calloc(N, sizeof(struct ask *));
    assert_non_null(a);
    atomic_store(&r->fake[1].hold, true);
    for (uint32_t i = 0; i < N; i++)
        a[i] = ask_send(r, i, 1, 200);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (!atomic_load(&r->fake[1].holding) && clock_now_ns() < deadline)
        usleep(500);
    atomic_store(&r->fake[1].sleep_us, 20000); /* so that none is done before the rank is gone */
    atomic_store(&r->fake[1].hold, false);
    rig_stop(r, 1);
    atomic_store(&r->fake[1].sleep_us, 0);
    uint32_t n_in_vain = 0;
    for (uint32_t i = 0; i < N; i++) {
        ask_ends(a[i], SCHED_FAILED);
        n_in_vain += strstr(a[i]->text, "not been whole") != NULL;
        ask_free(a[i]);
    }
    /* Those whose turn never came: more than there are slots for, but not the one that was held. */
    assert_in_range(n_in_vain, N - SLOTS, N - 1);
    free(a);
    struct node_stats s;
    node_stats_get(r->node[0], &s);
    assert_int_equal(s.sched.n_active + s.sched.n_waiting + s.sched.n_steps, 0);
    rig_start(r, 1, &r->m);
    rig_ready(r);
    rig_serves(r, 9);
    rig_free(r);
}

/* Rank 0 comes back: the others find it again and its new requests go around. */
static void test_rank_zero_comes_back(void **state)
{
    (void)state;
    struct rig *r = rig_up(3, 4, 32);
    struct ask *a = ask_send(r, 1, 3, 250);
    ask_wait(a, 2);
    rig_stop(r, 0);
    ask_ends(a, a->reason == SCHED_CONTEXT ? SCHED_CONTEXT : SCHED_CANCELLED);
    ask_free(a);
    rig_start(r, 0, &r->m);
    rig_ready(r);
    rig_serves(r, 70);
    rig_free(r);
}

static void test_ranks_come_and_go_all_the_time(void **state)
{
    (void)state;
    struct rig *r = rig_up(4, 4, 32);
    for (uint32_t round = 0; round < 10; round++) {
        struct ask *a[3];
        for (uint32_t i = 0; i < 3; i++)
            a[i] = ask_send(r, round * 10 + i, 3, 200);
        if (round % 2 == 0)
            ask_wait(a[0], 1 + round);
        uint32_t victim = 1 + round % 3;
        rig_stop(r, victim);
        if (round % 3 == 0)
            rig_stop(r, 1 + (round + 1) % 3);
        for (uint32_t i = 1; i < 4; i++) {
            if (!r->node[i])
                rig_start(r, i, &r->m);
        }
        for (uint32_t i = 0; i < 3; i++) {
            ask_wait(a[i], UINT32_MAX); /* failed, or waited and then went around whole */
            ask_ends(a[i], a[i]->reason == SCHED_LENGTH ? SCHED_LENGTH : SCHED_FAILED);
            ask_free(a[i]);
        }
        rig_ready(r);
        rig_serves(r, 4000 + round);
    }
    rig_free(r);
}

static void test_stop_while_requests_run(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 4; first++) {
        struct rig *r = rig_up(4, 3, 32);
        struct ask *a[6];
        for (uint32_t i = 0; i < 6; i++)
            a[i] = ask_send(r, i, 100, 150);
        if (first % 2)
            ask_wait(a[0], 1);
        uint64_t t0 = clock_now_ns();
        for (uint32_t i = 0; i < 4; i++)
            rig_stop(r, (first + i) % 4);
        assert_true(clock_now_ns() - t0 < 10 * CLOCK_NS_PER_S);
        for (uint32_t i = 0; i < 6; i++) {
            assert_int_equal(a[i]->n_ends, 1);
            assert_true(a[i]->reason == SCHED_CANCELLED || a[i]->reason == SCHED_FAILED);
            ask_free(a[i]);
        }
        rig_free(r);
    }
}

static void test_start_and_stop_many_times(void **state)
{
    (void)state;
    uint32_t n = test_sanitized() ? 60 : 200;
    for (uint32_t i = 0; i < n; i++) {
        struct rig *r = rig_new(1 + i % 4, 2, 16);
        for (uint32_t k = 0; k < r->n; k++)
            rig_start(r, k, &r->m);
        if (i % 3 == 0) {
            rig_ready(r);
            ask_done(ask_send(r, i, 3, 3));
        }
        for (uint32_t k = 0; k < r->n; k++)
            rig_stop(r, (i + k) % r->n);
        rig_free(r);
    }
}

static void test_bad_configurations(void **state)
{
    (void)state;
    struct rig *r = rig_new(2, 2, 16);
    struct node *n;
    struct err e;
    struct node_config c = {.m = &r->m, .rank = 2, .secret = &r->key[0], .listen_fd = -1};
    assert_int_equal(node_start(&c, &n, &e), ERR_ARG);
    c.rank = 1;
    assert_int_equal(node_start(&c, &n, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "listen"));
    c.listen_addr = r->rows[0].addr; /* taken: this process listens there */
    assert_int_equal(node_start(&c, &n, &e), ERR_IO);
    node_stop(NULL);
    rig_free(r);
}

/* faults.md 17: ready means that a probe went all the way around; both links of rank 0 do not say so. */
static void test_not_ready_without_a_probe(void **state)
{
    (void)state;
    struct rig *r = rig_new(4, 2, 16);
    struct err e;
    rig_start(r, 0, &r->m);
    rig_start(r, 1, &r->m);
    assert_int_equal(node_wait_ready(r->node[0], clock_deadline_ms(200), &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "its predecessor, rank 3, is not linked"));
    rig_start(r, 3, &r->m);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    do { /* until only rank 2 is missing */
        assert_int_equal(node_wait_ready(r->node[0], clock_deadline_ms(100), &e), ERR_TIMEOUT);
    } while (!strstr(e.msg, "no probe came around") && clock_now_ns() < deadline);
    assert_non_null(strstr(e.msg, "rank 0 waits in vain: no probe came around"));
    assert_int_equal(node_wait_ready(r->node[0], clock_deadline_ms(300), &e), ERR_TIMEOUT);
    assert_false(node_is_ready(r->node[0]));
    struct ask *a = ask_send(r, 1, 2, 3);
    assert_int_equal(a->n_ends, 0);
    rig_start(r, 2, &r->m);
    rig_ready(r);
    ask_done(a); /* it waited for the ring */
    rig_free(r);
}

int main(int argc, char **argv)
{
    if (!rig_begin(argc, argv))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_size_gives_the_same),
        cmocka_unit_test(test_all_stages_work_at_once),
        cmocka_unit_test(test_prompt_chunks_overlap),
        cmocka_unit_test(test_context_end),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_many_begin_at_once),
        cmocka_unit_test(test_submit_from_several_threads),
        cmocka_unit_test(test_slow_rank),
        cmocka_unit_test(test_stage_fails),
        cmocka_unit_test(test_stale_slot),
        cmocka_unit_test(test_turns_of_a_conversation),
        cmocka_unit_test(test_refused_parameters),
        cmocka_unit_test(test_results_of_its_own_that_do_not_fit),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_not_ready_while_the_stage_hangs),
        cmocka_unit_test(test_not_ready_when_requests_end),
        cmocka_unit_test(test_a_rank_leaves_and_comes_back),
        cmocka_unit_test(test_many_wait_when_the_ring_breaks),
        cmocka_unit_test(test_rank_zero_comes_back),
        cmocka_unit_test(test_ranks_come_and_go_all_the_time),
        cmocka_unit_test(test_stop_while_requests_run),
        cmocka_unit_test(test_start_and_stop_many_times),
        cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_not_ready_without_a_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
