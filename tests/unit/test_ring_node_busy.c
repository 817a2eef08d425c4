/* SPDX-License-Identifier: MIT
 *
 * A ring of eight with a stage that sleeps instead of computing: do all ranks have something to do at the same time?
 * Sleeping needs no CPU, so that this says something about the ring on a busy machine with few cores, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "lib/ring_rig.h"

#define RANKS    8u
#define STREAMS  16u
#define SLEEP_US 20000u
#define N_OUT    24u

struct reading {
    uint64_t at, busy[RANKS];
};

static struct reading read_ranks(struct rig *r)
{
    struct reading x = {.at = clock_now_ns()};
    for (uint32_t i = 0; i < RANKS; i++) {
        struct node_stats s;
        node_stats_get(r->node[i], &s);
        x.busy[i] = s.busy_ns;
    }
    return x;
}

/* Runs n streams and gives the busy share of the idlest rank between their first and their last third. */
static double idlest(struct rig *r, uint32_t n)
{
    struct ask *a[STREAMS];
    for (uint32_t i = 0; i < n; i++)
        a[i] = ask_send(r, 100 + i, 3, N_OUT);
    for (uint32_t i = 0; i < n; i++)
        ask_wait(a[i], N_OUT / 3);
    struct reading x = read_ranks(r);
    ask_wait(a[0], N_OUT * 2 / 3);
    struct reading y = read_ranks(r);
    double least = 1;
    for (uint32_t i = 0; i < RANKS; i++) {
        double share = (double)(y.busy[i] - x.busy[i]) / (double)(y.at - x.at);
        least = share < least ? share : least;
    }
    for (uint32_t i = 0; i < n; i++)
        ask_done(a[i]);
    return least;
}

static struct rig *sleepers(void)
{
    struct rig *r = rig_new(RANKS, STREAMS, 64);
    for (uint32_t i = 0; i < RANKS; i++) {
        r->fake[i].meter = &r->meter;
        atomic_store(&r->fake[i].sleep_us, SLEEP_US);
        rig_start(r, i, &r->m);
    }
    rig_ready(r);
    return r;
}

/* faults.md 13, 14: one request at a time circulated, whatever the settings said; all answers were right. */
static void test_all_ranks_are_busy_at_the_same_time(void **state)
{
    (void)state;
    struct rig *r = sleepers();
    double share = 0;
    for (int attempt = 0; attempt < 6 && share < 0.9; attempt++) { /* the machine may have other things to do */
        double now = idlest(r, STREAMS);
        share = now > share ? now : share;
    }
    assert_int_equal(r->meter.most, RANKS);
    if (share < 0.75) /* half as many streams do not reach 0.5; a machine that is busy itself wakes the ranks late */
        fail_msg("a rank was busy for %.1f %% of the time only", share * 100);
    rig_free(r);
}

/* And it can be told: half as many streams as ranks keep half of the ranks busy. */
static void test_few_streams_leave_ranks_idle(void **state)
{
    (void)state;
    struct rig *r = sleepers();
    double share = idlest(r, RANKS / 2);
    assert_true(r->meter.most >= RANKS / 4 && r->meter.most <= RANKS / 2);
    assert_true(share < 0.75);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ranks_are_busy_at_the_same_time),
        cmocka_unit_test(test_few_streams_leave_ranks_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
