/* SPDX-License-Identifier: MIT
 *
 * Frames that wait for the compute thread: their order, how many there may be, and what wakes who waits for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "ring/inbox.h"

#include <pthread.h>
#include <string.h>

#define LONG_MS 30000u

static struct inbox *inbox_of(uint32_t n)
{
    struct inbox *in = NULL;
    struct err e;
    assert_int_equal(inbox_new(n, &in, &e), OK);
    return in;
}

static enum err_code put(struct inbox *in, uint64_t generation, enum frame_type type, uint64_t step,
                         const void *payload, size_t len)
{
    struct frame_header h = {.type = type, .length = (uint32_t)len, .step_id = step};
    struct err e;
    enum err_code rc = inbox_put(in, generation, &h, payload, &e);
    if (rc != OK)
        assert_int_equal(e.code, rc);
    return rc;
}

static enum err_code put_probe(struct inbox *in, uint64_t generation, uint64_t nonce, bool ready)
{
    struct frame_probe p = {.nonce = nonce, .ready = ready, .n_rows = 2};
    struct buf b = {0};
    struct err e;
    struct frame_header h;
    assert_int_equal(frame_probe_put(&b, &p, &e), OK);
    assert_int_equal(frame_header_get(b.data, &h, &e), OK);
    enum err_code rc = inbox_put(in, generation, &h, b.data + FRAME_HEADER_BYTES, &e);
    buf_free(&b);
    return rc;
}

/* The next letter, which must be there. */
static struct letter *next(struct inbox *in)
{
    struct letter *l = NULL;
    assert_true(inbox_take(in, 0, &l));
    assert_non_null(l);
    return l;
}

static void expect_probe(struct inbox *in, uint64_t nonce, bool ready)
{
    struct letter *l = next(in);
    struct frame_probe p;
    struct err e;
    assert_int_equal(l->h.type, FRAME_PROBE);
    assert_int_equal(frame_probe_get(l->payload.data, l->payload.len, &(struct frame_limits){.n_ranks = 2}, &p, &e),
                     OK);
    assert_int_equal(p.nonce, nonce);
    assert_int_equal(p.ready, ready);
    inbox_give_back(in, l);
}

static void expect_empty(struct inbox *in)
{
    struct letter *l;
    assert_true(inbox_take(in, 0, &l));
    assert_null(l);
}

static void test_letters_come_in_order_and_are_used_again(void **state)
{
    (void)state;
    struct inbox *in = inbox_of(3);
    for (uint64_t i = 1; i < 50; i += 2) {
        assert_int_equal(put(in, i, FRAME_STEP, i, "abc", 3), OK);
        assert_int_equal(put(in, i, FRAME_RESULT, i + 1, NULL, 0), OK);
        struct letter *l = next(in);
        assert_int_equal(l->h.type, FRAME_STEP);
        assert_int_equal(l->h.step_id, i);
        assert_int_equal(l->generation, i);
        assert_int_equal(l->payload.len, 3);
        assert_memory_equal(l->payload.data, "abc", 3);
        inbox_give_back(in, l);
        l = next(in);
        assert_int_equal(l->h.step_id, i + 1);
        assert_int_equal(l->payload.len, 0);
        inbox_give_back(in, l);
        inbox_give_back(in, NULL);
    }
    expect_empty(in);
    inbox_free(in);
}

static void test_a_full_inbox_takes_no_more(void **state)
{
    (void)state;
    struct inbox *in = inbox_of(2);
    assert_int_equal(put(in, 1, FRAME_STEP, 1, "a", 1), OK);
    assert_int_equal(put(in, 1, FRAME_STEP, 2, "b", 1), OK);
    assert_int_equal(put(in, 1, FRAME_STEP, 3, "c", 1), ERR_LIMIT);
    struct letter *l = next(in); /* in hand, it still counts */
    assert_int_equal(put(in, 1, FRAME_STEP, 3, "c", 1), ERR_LIMIT);
    inbox_give_back(in, l);
    assert_int_equal(put(in, 1, FRAME_STEP, 3, "c", 1), OK);
    inbox_free(in); /* with letters in it */
    inbox_free(NULL);
}

/* A rank that computes for minutes gets a probe each second; they must not fill its inbox. */
static void test_probes_that_wait_are_one(void **state)
{
    (void)state;
    struct inbox *in = inbox_of(4);
    assert_int_equal(put(in, 1, FRAME_STEP, 1, "a", 1), OK);
    for (uint64_t nonce = 1; nonce <= 1000; nonce++)
        assert_int_equal(put_probe(in, 1, nonce, true), OK);
    assert_int_equal(put(in, 1, FRAME_STEP, 2, "b", 1), OK);
    assert_int_equal(put_probe(in, 1, 1001, true), OK); /* not past a step */
    struct letter *l = next(in);
    assert_int_equal(l->h.step_id, 1);
    inbox_give_back(in, l);
    expect_probe(in, 1000, true);
    l = next(in);
    assert_int_equal(l->h.step_id, 2);
    inbox_give_back(in, l);
    expect_probe(in, 1001, true);
    expect_empty(in);
    inbox_free(in);
}

/* That the ring was not whole is news, whatever comes after it. */
static void test_a_probe_that_says_something_else_is_kept(void **state)
{
    (void)state;
    struct inbox *in = inbox_of(8);
    assert_int_equal(put_probe(in, 1, 1, true), OK);
    assert_int_equal(put_probe(in, 1, 2, false), OK);
    assert_int_equal(put_probe(in, 1, 3, true), OK);
    assert_int_equal(put_probe(in, 2, 4, true), OK); /* by another link */
    assert_int_equal(put(in, 2, FRAME_PROBE, 0, "short", 5), OK);
    assert_int_equal(put(in, 2, FRAME_PROBE, 0, "short", 5), OK);
    expect_probe(in, 1, true);
    expect_probe(in, 2, false);
    expect_probe(in, 3, true);
    expect_probe(in, 4, true);
    inbox_give_back(in, next(in));
    inbox_give_back(in, next(in));
    expect_empty(in);
    inbox_free(in);
}

struct waiter {
    struct inbox *in;
    pthread_t thread;
    bool open;
    struct letter *got;
};

static void *wait_for_letter(void *arg)
{
    struct waiter *w = arg;
    w->open = inbox_take(w->in, clock_deadline_ms(LONG_MS), &w->got);
    return NULL;
}

static struct waiter *begin(struct waiter *w)
{
    w->in = inbox_of(2);
    assert_int_equal(pthread_create(&w->thread, NULL, wait_for_letter, w), 0);
    return w;
}

static void test_who_waits_is_woken(void **state)
{
    (void)state;
    struct waiter w;
    uint64_t t0 = clock_now_ns();
    assert_int_equal(put(begin(&w)->in, 1, FRAME_STEP, 1, "a", 1), OK);
    pthread_join(w.thread, NULL);
    assert_true(w.open && w.got);
    inbox_free(w.in);

    inbox_wake(begin(&w)->in); /* before or while it waits: it is the same */
    pthread_join(w.thread, NULL);
    assert_true(w.open && !w.got);
    inbox_free(w.in);

    inbox_close(begin(&w)->in);
    pthread_join(w.thread, NULL);
    assert_false(w.open);
    assert_null(w.got);
    assert_true(inbox_is_closed(w.in));
    inbox_free(w.in);
    assert_true(clock_now_ns() - t0 < (uint64_t)LONG_MS * CLOCK_NS_PER_MS);
}

static void test_a_wake_counts_once(void **state)
{
    (void)state;
    struct inbox *in = inbox_of(2);
    struct letter *l;
    inbox_wake(in);
    inbox_wake(in);
    assert_true(inbox_take(in, clock_deadline_ms(LONG_MS), &l)); /* at once */
    assert_null(l);
    assert_true(inbox_take(in, clock_deadline_ms(5), &l)); /* until its deadline */
    assert_null(l);
    inbox_free(in);
}

static void test_nothing_is_taken_from_a_closed_one(void **state)
{
    (void)state;
    struct inbox *in = inbox_of(2);
    struct letter *l;
    assert_int_equal(put(in, 1, FRAME_STEP, 1, "a", 1), OK);
    inbox_close(in);
    assert_false(inbox_take(in, clock_deadline_ms(LONG_MS), &l));
    assert_null(l);
    inbox_free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_letters_come_in_order_and_are_used_again),
        cmocka_unit_test(test_a_full_inbox_takes_no_more),
        cmocka_unit_test(test_probes_that_wait_are_one),
        cmocka_unit_test(test_a_probe_that_says_something_else_is_kept),
        cmocka_unit_test(test_who_waits_is_woken),
        cmocka_unit_test(test_a_wake_counts_once),
        cmocka_unit_test(test_nothing_is_taken_from_a_closed_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
