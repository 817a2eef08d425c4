/* SPDX-License-Identifier: MIT
 *
 * Requests that enter at any rank of a ring (lib/ring_rig.h): the same tokens as anywhere, refusals, cancelling, and
 * what becomes of them when ranks are lost; the state of the ring as each rank knows it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "lib/ring_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct rig *up(uint32_t n, uint32_t n_slots, uint32_t n_batch)
{
    struct rig *r = rig_up(n, n_slots, n_batch);
    for (uint32_t i = 0; i < n; i++)
        rig_ready_at(r, i);
    return r;
}

static struct sched_counts counts_of(struct rig *r)
{
    struct node_stats s;
    node_stats_get(r->node[0], &s);
    return s.sched;
}

/* Until rank 0 works on nothing: no slot is stuck. */
static void idle(struct rig *r)
{
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    struct sched_counts k = counts_of(r);
    while (k.n_active + k.n_waiting + k.n_steps > 0 && clock_now_ns() < deadline) {
        usleep(500);
        k = counts_of(r);
    }
    assert_int_equal(k.n_active + k.n_waiting + k.n_steps, 0);
}

static void held(struct rig *r, uint32_t rank)
{
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (!atomic_load(&r->fake[rank].holding) && clock_now_ns() < deadline)
        usleep(500);
    assert_true(atomic_load(&r->fake[rank].holding));
}

/* A node's own requests have all ended, each once. */
static void all_ended(struct rig *r, uint32_t rank, uint64_t n)
{
    struct node_stats s;
    uint64_t sum = 0;
    node_stats_get(r->node[rank], &s);
    for (uint32_t i = 0; i < ENTRY_REASONS; i++)
        sum += s.requests.n_ended[i];
    assert_int_equal(s.requests.n_submitted, n);
    assert_int_equal(sum, n);
}

/* --- all is well --------------------------------------------------------------------------------- */

static void test_every_rank_of_every_size(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 8};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct rig *r = up(sizes[k], 6, 16);
        struct ask *a[24];
        for (uint32_t i = 0; i < 24; i++)
            a[i] = ask_send_at(r, i % sizes[k], 100 + i, 1 + i * 7 % 150, 1 + i * 5 % 40);
        for (uint32_t i = 0; i < 24; i++) {
            assert_int_equal(a[i]->id >> 48, i % sizes[k]);
            ask_done(a[i]);
        }
        for (uint32_t i = 0; i < sizes[k]; i++)
            all_ended(r, i, 24 / sizes[k]);
        idle(r);
        rig_free(r);
    }
}

static void test_tokens_of_a_request_are_counted(void **state)
{
    (void)state;
    struct rig *r = up(3, 2, 16);
    struct node_stats s;
    ask_done(ask_send_at(r, 2, 1, 5, 7));
    ask_done(ask_send_at(r, 2, 2, 5, 4));
    node_stats_get(r->node[2], &s);
    assert_int_equal(s.requests.n_tok, 11);
    assert_int_equal(s.requests.n_ended[SCHED_LENGTH], 2);
    node_stats_get(r->node[1], &s);
    assert_int_equal(s.requests.n_submitted, 0);
    rig_free(r);
}

/* The end tokens travel too. */
static void test_end_token(void **state)
{
    (void)state;
    struct rig *r = up(3, 2, 16);
    struct ask *a = ask_new(3, 4, 20);
    int32_t want[20];
    struct err e;
    rig_expected(a->prompt, 4, 3, 20, want);
    uint32_t first = 0;
    while (want[first] != want[9])
        first++;
    struct sched_request q = {.tokens = a->prompt,
                              .n_tokens = 4,
                              .n_predict = 20,
                              .eog = &want[9],
                              .n_eog = 1,
                              .sampling = {.seed = 3, .top_p = 1},
                              .ctx = a,
                              .on_token = ask_on_token,
                              .on_end = ask_on_end};
    assert_int_equal(node_submit(r->node[1], &q, &a->id, &e), OK);
    ask_ends(a, SCHED_STOP);
    assert_int_equal(a->n_out, first);
    ask_free(a);
    rig_free(r);
}

/* Tokens pass a rank whose compute thread is busy. */
static void test_compute_does_not_delay_tokens(void **state)
{
    (void)state;
    struct rig *r = up(3, 2, 8);
    struct ask *a = ask_send_at(r, 2, 1, 2, 1), *b = ask_new(2, 2, 4);
    struct err e;
    ask_done(a);
    atomic_store(&r->fake[2].hold, true); /* the last rank itself is where it enters */
    assert_int_equal(ask_submit(b, r->node[2], &e), OK);
    held(r, 2);
    /* Its step is held there; its news are not. */
    struct ask *bad = ask_new(9, 2, 4);
    struct sched_request q = {
        .tokens = bad->prompt, .n_tokens = 2, .n_predict = 1, .ctx = bad, .sampling = {.top_p = 1}};
    q.on_token = ask_on_token;
    q.on_end = ask_on_end;
    assert_int_equal(node_submit(r->node[1], &q, &bad->id, &e), OK);
    assert_true(node_cancel(r->node[2], b->id));
    ask_ends(b, SCHED_CANCELLED);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (counts_of(r).n_active + counts_of(r).n_waiting != 1 && clock_now_ns() < deadline)
        usleep(500); /* the cancellation has passed, though the rank is held */
    assert_int_equal(counts_of(r).n_active + counts_of(r).n_waiting, 1);
    atomic_store(&r->fake[2].hold, false);
    ask_wait(bad, UINT32_MAX);
    assert_int_equal(bad->reason, SCHED_LENGTH);
    ask_free(bad);
    ask_free(b);
    idle(r);
    rig_free(r);
}

/* --- refusals ------------------------------------------------------------------------------------ */

static void test_refused_at_once(void **state)
{
    (void)state;
    struct rig *r = up(3, 2, 16);
    struct err e;
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct ask *a = ask_new(1, 4, 4);
        a->n_prompt = RIG_CTX;
        assert_int_equal(ask_submit(a, r->node[rank], &e), ERR_LIMIT);
        a->n_prompt = 0;
        assert_int_equal(ask_submit(a, r->node[rank], &e), ERR_ARG);
        a->n_prompt = 4;
        a->prompt[3] = (int32_t)RIG_VOCAB;
        assert_int_equal(ask_submit(a, r->node[rank], &e), ERR_ARG);
        a->prompt[3] = 1;
        a->n_predict = 0;
        assert_int_equal(ask_submit(a, r->node[rank], &e), ERR_ARG);
        struct sched_request q = {.tokens = a->prompt, .n_tokens = 4, .n_predict = 1};
        q.sampling.n_top = BATCH_MAX_TOP + 1;
        assert_int_equal(node_submit(r->node[rank], &q, &a->id, &e), ERR_LIMIT);
        q.sampling.n_top = 0;
        q.sampling.n_bias = BATCH_MAX_BIAS + 1;
        assert_int_equal(node_submit(r->node[rank], &q, &a->id, &e), ERR_LIMIT);
        assert_int_equal(a->id, 0);
        assert_int_equal(a->n_ends, 0);
        ask_free(a);
        all_ended(r, rank, 0);
    }
    rig_free(r);
}

/* Rank 0 is full: a request from elsewhere ends with its ERR_BUSY, and only that one. */
static void test_full(void **state)
{
    (void)state;
    struct rig *r = rig_new(3, 1, 16);
    r->config.max_waiting = 2;
    for (uint32_t i = 0; i < 3; i++)
        rig_start(r, i, &r->m);
    for (uint32_t i = 0; i < 3; i++)
        rig_ready_at(r, i);
    atomic_store(&r->fake[1].hold, true);
    struct ask *a[3], *more[3];
    a[0] = ask_send_at(r, 2, 1, 2, 4);
    held(r, 1);
    a[1] = ask_send_at(r, 1, 2, 2, 4);
    a[2] = ask_send_at(r, 2, 3, 2, 4);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (counts_of(r).n_waiting < 2 && clock_now_ns() < deadline)
        usleep(500);
    for (uint32_t i = 1; i < 3; i++) {
        more[i] = ask_send_at(r, i, 4, 2, 4);
        ask_ends(more[i], SCHED_FAILED);
        assert_int_equal(more[i]->code, ERR_BUSY);
        assert_non_null(strstr(more[i]->text, "waiting"));
        ask_free(more[i]);
    }
    atomic_store(&r->fake[1].hold, false);
    for (uint32_t i = 0; i < 3; i++)
        ask_done(a[i]);
    idle(r);
    rig_free(r);
}

/* What the last rank refuses is told where the request entered. */
static void test_refused_parameters(void **state)
{
    (void)state;
    struct rig *r = up(3, 4, 32);
    struct ask *good = ask_send_at(r, 1, 1, 2, 100), *bad = ask_new(2, 2, 10);
    struct sched_request q = {.tokens = bad->prompt,
                              .n_tokens = 2,
                              .n_predict = 10,
                              .sampling = {.top_p = 1.5f},
                              .ctx = bad,
                              .on_token = ask_on_token,
                              .on_end = ask_on_end};
    struct err e;
    ask_wait(good, 2);
    assert_int_equal(node_submit(r->node[2], &q, &bad->id, &e), OK);
    ask_wait(bad, UINT32_MAX);
    assert_int_equal(bad->reason, SCHED_FAILED);
    assert_int_equal(bad->code, ERR_RANGE);
    assert_non_null(strstr(bad->text, "top_p"));
    ask_wait(good, UINT32_MAX);
    ask_free(bad);
    ask_free(good);
    idle(r);
    rig_free(r);
}

static void test_not_before_the_ring_is_whole(void **state)
{
    (void)state;
    struct rig *r = rig_new(3, 2, 16);
    struct ask *a = ask_new(1, 2, 3);
    struct err e;
    rig_start(r, 0, &r->m);
    rig_start(r, 1, &r->m);
    assert_int_equal(node_wait_ready(r->node[1], clock_deadline_ms(100), &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "rank 1 waits in vain"));
    assert_int_equal(ask_submit(a, r->node[1], &e), ERR_CLOSED);
    assert_int_equal(a->n_ends, 0);
    rig_start(r, 2, &r->m);
    rig_ready_at(r, 1);
    assert_int_equal(ask_submit(a, r->node[1], &e), OK);
    ask_done(a);
    rig_free(r);
}

/* --- cancelling ---------------------------------------------------------------------------------- */

/* At each moment: at once, while it waits, in its prompt, after each token, at its end. Afterwards nothing is left. */
static void test_cancel_at_each_moment(void **state)
{
    (void)state;
    struct rig *r = up(3, 1, 8);
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t rank = round % 3, n_wait = round / 3 % 12;
        bool queued = round % 4 == 3;
        struct ask *before = queued ? ask_send_at(r, (rank + 1) % 3, 7, 20, 6) : NULL;
        struct ask *a = ask_send_at(r, rank, round, 1 + round, 10);
        if (n_wait > 0 && !queued)
            ask_wait(a, n_wait - 1);
        bool found = node_cancel(r->node[rank], a->id);
        assert_int_equal(a->n_ends, 1); /* when it returns, nothing more comes */
        uint32_t n_out = a->n_out;
        assert_false(node_cancel(r->node[rank], a->id));
        assert_false(node_cancel(r->node[(rank + 1) % 3], a->id));
        ask_ends(a, found ? SCHED_CANCELLED : SCHED_LENGTH);
        if (before)
            ask_done(before);
        ask_done(ask_send_at(r, rank, round, 3, 2)); /* the slot is free */
        assert_int_equal(a->n_out, n_out);
        assert_int_equal(a->n_ends, 1);
        ask_free(a);
    }
    idle(r);
    rig_free(r);
}

struct submitter {
    struct rig *r;
    pthread_t thread;
    uint32_t rank, from, n_good;
};

static void *submit_some(void *arg)
{
    struct submitter *s = arg;
    for (uint32_t i = 0; i < 20; i++) {
        struct ask *a;
        int32_t want[8];
        for (;;) {
            struct err e;
            a = ask_new(s->from + i, 1 + i, 6);
            if (ask_submit(a, s->r->node[s->rank], &e) != OK) {
                ask_free(a);
                usleep(500);
                continue;
            }
            if (i % 4 == 3)
                (void)!node_cancel(s->r->node[s->rank], a->id);
            ask_wait(a, UINT32_MAX);
            if (a->reason != SCHED_FAILED || a->code != ERR_BUSY)
                break;
            ask_free(a);
        }
        rig_expected(a->prompt, a->n_prompt, a->seed, 6, want);
        s->n_good += a->n_ends == 1 && (a->reason == SCHED_LENGTH || (i % 4 == 3 && a->reason == SCHED_CANCELLED)) &&
                     memcmp(a->out, want, a->n_out * sizeof *want) == 0;
        ask_free(a);
    }
    return NULL;
}

static void test_many_from_three_entries(void **state)
{
    (void)state;
    struct rig *r = rig_new(4, 3, 16);
    struct submitter s[9];
    r->config.max_waiting = 3;
    for (uint32_t i = 0; i < 4; i++)
        rig_start(r, i, &r->m);
    for (uint32_t i = 0; i < 4; i++)
        rig_ready_at(r, i);
    for (uint32_t i = 0; i < 9; i++) {
        s[i] = (struct submitter){.r = r, .from = 1000 * i, .rank = 1 + i % 3};
        assert_int_equal(pthread_create(&s[i].thread, NULL, submit_some, &s[i]), 0);
    }
    for (uint32_t i = 0; i < 9; i++) {
        pthread_join(s[i].thread, NULL);
        assert_int_equal(s[i].n_good, 20);
    }
    idle(r);
    rig_free(r);
}

/* --- losses (faults.md 15, 16, 18) --------------------------------------------------------------- */

static void slow(struct rig *r, uint32_t us)
{
    for (uint32_t i = 0; i < r->n; i++)
        atomic_store(&r->fake[i].sleep_us, us);
}

/* The node where requests entered goes: rank 0 computes for it no more, and drops what of it waits. */
static void test_entry_node_goes(void **state)
{
    (void)state;
    for (uint32_t rank = 1; rank < 4; rank++) {
        struct rig *r = up(4, 2, 16);
        struct ask *a[5], *mine;
        slow(r, 2000);
        for (uint32_t i = 0; i < 5; i++)
            a[i] = ask_send_at(r, rank, i, 3, 240); /* three of them wait */
        ask_wait(a[0], 3);
        mine = ask_send(r, 9, 3, 4);
        rig_stop(r, rank);
        for (uint32_t i = 0; i < 5; i++) {
            assert_int_equal(a[i]->n_ends, 1);
            ask_ends(a[i], a[i]->reason == SCHED_FAILED ? SCHED_FAILED : SCHED_CANCELLED);
            ask_free(a[i]);
        }
        uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
        while (counts_of(r).n_active + counts_of(r).n_waiting > 1 && clock_now_ns() < deadline)
            usleep(500);
        slow(r, 0);
        rig_start(r, rank, &r->m);
        ask_wait(mine, UINT32_MAX); /* waited for the ring, or had a slot already */
        ask_ends(mine, mine->reason == SCHED_LENGTH ? SCHED_LENGTH : SCHED_FAILED);
        ask_free(mine);
        idle(r);
        rig_ready_at(r, rank);
        ask_done(ask_send_at(r, rank, 5, 3, 8));
        rig_free(r);
    }
}

/* Any rank goes: every request ends wherever it entered, soon, and the ring works again when the rank is back. */
static void lose(uint32_t n_ranks, uint32_t gone)
{
    struct rig *r = up(n_ranks, 4, 32);
    struct ask *a[12];
    slow(r, 2000);
    for (uint32_t i = 0; i < 12; i++)
        a[i] = ask_send_at(r, i % n_ranks, i, 3, 240);
    uint32_t n_running = 0;
    while (n_running == 0) {
        usleep(1000);
        for (uint32_t i = 0; i < 12; i++) {
            pthread_mutex_lock(&a[i]->mutex);
            n_running += a[i]->n_out >= 2;
            pthread_mutex_unlock(&a[i]->mutex);
        }
    }
    uint64_t t0 = clock_now_ns();
    rig_stop(r, gone);
    for (uint32_t i = 0; i < 12; i++) {
        if (i % n_ranks == 0 && gone != 0)
            continue; /* rank 0's own may wait for the ring to come back */
        ask_wait(a[i], UINT32_MAX);
        if (a[i]->reason == SCHED_FAILED)
            assert_true(a[i]->text[0] != 0);
        else
            assert_int_equal(i % n_ranks, gone);
    }
    assert_true(clock_now_ns() - t0 < RIG_DEATH_MS / 2 * CLOCK_NS_PER_MS); /* told, not by silence */
    slow(r, 0);
    rig_start(r, gone, &r->m);
    for (uint32_t i = 0; i < n_ranks; i++)
        rig_ready_at(r, i);
    for (uint32_t i = 0; i < 12; i++) {
        ask_wait(a[i], UINT32_MAX);
        ask_ends(a[i], a[i]->reason);
        ask_free(a[i]);
    }
    idle(r);
    for (uint32_t i = 0; i < n_ranks; i++)
        ask_done(ask_send_at(r, i, 50 + i, 4, 8));
    rig_free(r);
}

static void test_a_rank_goes(void **state)
{
    (void)state;
    lose(2, 0);
    lose(2, 1);
    for (uint32_t gone = 0; gone < 4; gone++)
        lose(4, gone);
}

/* A step that never comes back: told where the request entered, though the rank between is stuck. */
static void test_stall(void **state)
{
    (void)state;
    struct rig *r = rig_new(3, 2, 32);
    r->config.stall_ms = 1500;
    for (uint32_t i = 0; i < 3; i++)
        rig_start(r, i, &r->m);
    for (uint32_t i = 0; i < 3; i++)
        rig_ready_at(r, i);
    atomic_store(&r->fake[1].hold, true);
    struct ask *a = ask_send_at(r, 2, 1, 2, 5);
    ask_ends(a, SCHED_FAILED);
    assert_int_equal(a->code, ERR_TIMEOUT);
    atomic_store(&r->fake[1].hold, false);
    ask_free(a);
    rig_ready_at(r, 0);
    rig_ready_at(r, 2);
    rig_serves(r, 3);
    rig_free(r);
}

/* A rank that has not heard of the latest loss yet is ready; when it has, it refuses. */
static struct ask *send_when_whole(struct rig *r, uint32_t rank, uint32_t seed)
{
    struct ask *a = ask_new(seed, 3, 200);
    struct err e = {0};
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    do {
        rig_ready_at(r, rank);
        if (ask_submit(a, r->node[rank], &e) == OK)
            return a;
    } while (e.code == ERR_CLOSED && clock_now_ns() < deadline);
    fail_msg("rank %u: %s", rank, e.msg);
    return a;
}

static void test_ranks_come_and_go_all_the_time(void **state)
{
    (void)state;
    struct rig *r = up(4, 4, 32);
    for (uint32_t round = 0; round < 12; round++) {
        struct ask *a[6];
        for (uint32_t i = 0; i < 4; i++)
            rig_ready_at(r, i);
        for (uint32_t i = 0; i < 6; i++)
            a[i] = send_when_whole(r, i % 4, round * 10 + i);
        if (round % 2 == 0)
            ask_wait(a[0], 1 + round);
        rig_stop(r, round % 4);
        if (round % 3 == 0)
            rig_stop(r, (round + 1) % 4);
        for (uint32_t i = 0; i < 4; i++) {
            if (!r->node[i])
                rig_start(r, i, &r->m);
        }
        for (uint32_t i = 0; i < 6; i++) {
            ask_wait(a[i], UINT32_MAX);
            ask_ends(a[i], a[i]->reason);
            ask_free(a[i]);
        }
        idle(r);
    }
    rig_free(r);
}

static void test_stop_while_requests_run(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 3; first++) {
        struct rig *r = up(3, 2, 32);
        struct ask *a[6];
        for (uint32_t i = 0; i < 6; i++)
            a[i] = ask_send_at(r, i % 3, i, 100, 150);
        for (uint32_t i = 0; i < 3; i++)
            rig_stop(r, (first + i) % 3);
        for (uint32_t i = 0; i < 6; i++) {
            assert_int_equal(a[i]->n_ends, 1);
            assert_true(a[i]->reason == SCHED_CANCELLED || a[i]->reason == SCHED_FAILED);
            ask_free(a[i]);
        }
        rig_free(r);
    }
}

/* Ids of a node that starts again are new ones. */
static void test_ids_are_not_used_again(void **state)
{
    (void)state;
    struct rig *r = up(2, 2, 16);
    uint64_t seen[6];
    for (uint32_t i = 0; i < 6; i++) {
        struct ask *a = ask_send_at(r, i % 2, i, 2, 1);
        seen[i] = a->id;
        ask_done(a);
        for (uint32_t k = 0; k < i; k++)
            assert_true(seen[k] != seen[i]);
        if (i % 2 == 1) {
            rig_stop(r, 0);
            rig_stop(r, 1);
            rig_start(r, 0, &r->m);
            rig_start(r, 1, &r->m);
            rig_ready_at(r, 0);
            rig_ready_at(r, 1);
        }
    }
    rig_free(r);
}

/* --- the state of the ring ----------------------------------------------------------------------- */

/* Every rank knows what every rank has done. */
static void test_state_of_the_ring(void **state)
{
    (void)state;
    struct rig *r = up(3, 2, 16);
    struct node_stats s[3];
    for (uint32_t i = 0; i < 3; i++)
        ask_done(ask_send_at(r, i, i, 5, 6));
    for (uint32_t i = 0; i < 3; i++)
        node_stats_get(r->node[i], &s[i]);
    for (uint32_t i = 0; i < 3; i++) {
        struct node_ring v;
        uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
        bool all;
        do { /* until a probe has brought the latest */
            node_ring_state(r->node[i], &v);
            all = v.counts.n_out_tok == 18;
            for (uint32_t k = 0; k < 3; k++)
                all = all && v.rows[k].n_tok == s[k].n_tok;
            usleep(all ? 0 : 10000);
        } while (!all && clock_now_ns() < deadline);
        assert_true(all);
        assert_true(v.ready);
        assert_int_equal(v.n_ranks, 3);
        assert_true(v.age_ms < 10000);
        assert_int_equal(v.counts.n_active + v.counts.n_waiting, 0);
        for (uint32_t k = 0; k < 3; k++) {
            assert_int_equal(v.rows[k].n_steps, s[k].n_steps);
            assert_true(v.rows[k].bytes_in > 0 && v.rows[k].bytes_out > 0 && v.rows[k].rss_bytes > 0);
        }
    }
    rig_stop(r, 2);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while ((node_is_ready(r->node[0]) || node_is_ready(r->node[1])) && clock_now_ns() < deadline)
        usleep(1000);
    struct node_ring v;
    node_ring_state(r->node[1], &v);
    assert_false(v.ready);
    rig_free(r);
}

static void test_state_of_a_ring_of_one(void **state)
{
    (void)state;
    struct rig *r = up(1, 2, 16);
    struct node_ring v;
    ask_done(ask_send(r, 1, 5, 6));
    node_ring_state(r->node[0], &v);
    assert_true(v.ready);
    assert_int_equal(v.n_ranks, 1);
    assert_int_equal(v.age_ms, 0);
    assert_int_equal(v.counts.n_out_tok, 6);
    assert_int_equal(v.rows[0].n_tok, 10);
    rig_free(r);
}

static void test_no_state_before_a_probe(void **state)
{
    (void)state;
    struct rig *r = rig_new(2, 2, 16);
    struct node_ring v;
    rig_start(r, 1, &r->m);
    node_ring_state(r->node[1], &v);
    assert_false(v.ready);
    assert_true(v.age_ms == UINT64_MAX);
    rig_free(r);
}

int main(int argc, char **argv)
{
    if (!rig_begin(argc, argv))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_of_every_size),
        cmocka_unit_test(test_tokens_of_a_request_are_counted),
        cmocka_unit_test(test_end_token),
        cmocka_unit_test(test_compute_does_not_delay_tokens),
        cmocka_unit_test(test_refused_at_once),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_refused_parameters),
        cmocka_unit_test(test_not_before_the_ring_is_whole),
        cmocka_unit_test(test_cancel_at_each_moment),
        cmocka_unit_test(test_many_from_three_entries),
        cmocka_unit_test(test_entry_node_goes),
        cmocka_unit_test(test_a_rank_goes),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_ranks_come_and_go_all_the_time),
        cmocka_unit_test(test_stop_while_requests_run),
        cmocka_unit_test(test_ids_are_not_used_again),
        cmocka_unit_test(test_state_of_the_ring),
        cmocka_unit_test(test_state_of_a_ring_of_one),
        cmocka_unit_test(test_no_state_before_a_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
