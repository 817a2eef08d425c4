/* SPDX-License-Identifier: MIT
 *
 * Who waits for whom: prompts and decoding sequences in one step, prompts among each other, entries that take turns,
 * how sequences are spread over the steps in flight, and what somebody is told who has to come back later.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/sched_rig.h"

#include <unistd.h>

static struct rig ring_of(uint32_t n_ranks, uint32_t n_slots)
{
    return rig_new(n_slots, MAX_CTX, MAX_BATCH, n_ranks, 64);
}

/* How many tokens of the request are in the step. */
static uint32_t tokens_of(const struct sent *st, uint64_t id)
{
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        if (st->entries[i].request_id == id)
            return st->entries[i].n_tok;
    }
    return 0;
}

/* --- prompts ------------------------------------------------------------------------------------- */

static void test_one_rank_takes_all_that_fits(void **state)
{
    (void)state;
    struct rig r = ring_of(1, 2);
    struct client c;
    struct sent st;
    must_submit(&r, &c, 1, 1200, 1);
    static const uint32_t want[] = {512, 512, 176};
    for (int i = 0; i < 3; i++) {
        assert_true(compose(&r, &st));
        assert_int_equal(st.b.n_tok, want[i]);
        give_back(&r, &st, 3);
    }
    assert_int_equal(c.n_ends, 1);
    sched_free(r.s);
}

/* The time a prompt takes to pass all ranks, in that of one token at one rank: a rank begins a chunk when it is done
 * with the one before and the rank before it with this one. */
static uint64_t prompt_time(uint32_t n_ranks, uint32_t n)
{
    struct rig r = ring_of(n_ranks, 1);
    struct client c;
    struct sent st;
    uint64_t done[16] = {0}, ids[16] = {0};
    uint32_t sent = 0, n_steps = 0;
    must_submit(&r, &c, 1, n, 1);
    while (sent < n) {
        if (!compose(&r, &st)) { /* the oldest is back */
            assert_int_equal(sched_result(r.s, ids[(n_steps - n_ranks) % n_ranks], NULL, 0, NULL), OK);
            continue;
        }
        ids[n_steps++ % n_ranks] = st.id;
        sent += st.b.n_tok;
        uint64_t at = 0;
        for (uint32_t i = 0; i < n_ranks; i++)
            at = done[i] = (at > done[i] ? at : done[i]) + st.b.n_tok + SCHED_STEP_COST;
    }
    sched_free(r.s);
    return done[n_ranks - 1];
}

static void test_prompt_fills_the_ring(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_ranks, n;
        double least;
    } cases[] = {{2, 1024, 1.75}, {2, 4096, 1.85}, {4, 1024, 3.1}, {8, 1024, 5}, {8, 4096, 6.2}, {3, 40, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double alone = (double)prompt_time(1, cases[i].n) * cases[i].n_ranks;
        double gain = alone / (double)prompt_time(cases[i].n_ranks, cases[i].n);
        if (gain < cases[i].least)
            fail_msg("%u ranks take a prompt of %u tokens %.2f times as fast as one", cases[i].n_ranks, cases[i].n,
                     gain);
    }
}

/* Somebody reads a long text while another waits for the next words. */
static void test_long_prompt_does_not_starve_decoding(void **state)
{
    (void)state;
    for (uint32_t limit = 0; limit <= 20; limit += 20) {
        struct rig r = rig_of((struct sched_limits){.n_slots = 2,
                                                    .n_ctx = MAX_CTX,
                                                    .n_batch = MAX_BATCH,
                                                    .max_steps = 2,
                                                    .max_waiting = 4,
                                                    .n_prefill = limit});
        struct client c[2];
        struct sent st[2];
        uint32_t n_steps = 0, most = limit ? limit : SCHED_DEFAULT_PREFILL;
        must_submit(&r, &c[0], 1, 2, 150);
        assert_true(compose(&r, &st[0]));
        give_back(&r, &st[0], 3);
        must_submit(&r, &c[1], 2, 2000, 1);
        assert_true(compose(&r, &st[0]));
        while (compose(&r, &st[1])) {
            assert_true(tokens_of(&st[0], 2) <= most && tokens_of(&st[1], 2) <= most);
            assert_int_equal(tokens_of(&st[0], 1) + tokens_of(&st[1], 1), 1); /* it is always under way */
            give_back(&r, &st[0], 3);
            st[0] = st[1];
            st[0].b.entries = st[0].entries;
            st[0].b.tokens = st[0].tokens;
            n_steps++;
        }
        assert_int_equal(counts(&r).n_prompt_tok, 2002);
        assert_true(n_steps <= 2000 / most + 3); /* nor does decoding starve the prompt */
        assert_true(c[0].n_out >= n_steps / 2);
        sched_free(r.s);
    }
}

static void test_short_prompt_does_not_wait_for_a_long_one(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 1; n_ranks <= 3; n_ranks++) {
        struct rig r = ring_of(n_ranks, 4);
        struct client c[2];
        struct sent st;
        must_submit(&r, &c[0], 1, 4000, 1);
        assert_true(compose(&r, &st));
        give_back(&r, &st, 3);
        must_submit(&r, &c[1], 2, 10, 1);
        assert_true(compose(&r, &st));
        assert_int_equal(tokens_of(&st, 2), 10);
        assert_true(tokens_of(&st, 1) > 0); /* which goes on meanwhile */
        give_back(&r, &st, 3);
        assert_int_equal(c[1].n_ends, 1);
        assert_int_equal(c[0].n_ends, 0);
        sched_free(r.s);

        r = ring_of(n_ranks, 4); /* nor when both come at once */
        must_submit(&r, &c[0], 1, 4000, 1);
        must_submit(&r, &c[1], 2, 10, 1);
        assert_true(compose(&r, &st));
        assert_int_equal(tokens_of(&st, 2), 10);
        sched_free(r.s);
    }
}

/* Where a step holds fewer prompts than there are, they take turns. */
static void test_prompts_take_turns(void **state)
{
    (void)state;
    struct rig r = rig_new(5, 200, 32, 1, 8);
    struct client c[5];
    struct sent st;
    uint32_t got[6] = {0};
    for (uint64_t i = 1; i <= 5; i++)
        must_submit(&r, &c[i - 1], i, 100, 1);
    for (uint32_t step = 1; step <= 12; step++) {
        uint32_t least = 100, most = 0;
        assert_true(compose(&r, &st));
        assert_int_equal(st.b.n_tok, 32);
        for (uint64_t i = 1; i <= 5; i++) {
            got[i] += tokens_of(&st, i);
            least = got[i] < least ? got[i] : least;
            most = got[i] > most ? got[i] : most;
        }
        assert_true(most - least <= 32);
        give_back(&r, &st, 3);
    }
    sched_free(r.s);
}

/* --- entries ------------------------------------------------------------------------------------- */

#define AT(entry, n) ((uint64_t)(entry) << 48 | (n))

static void test_entries_take_turns(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 16, 8, 1, 16);
    struct client c[9];
    struct sent st;
    static const uint64_t asked[] = {AT(0, 1), AT(0, 2), AT(0, 3),     AT(0, 4),
                                     AT(7, 1), AT(7, 2), AT(65535, 1), AT(3, 1)};
    static const uint64_t served[] = {AT(3, 1), AT(7, 1), AT(65535, 1), AT(0, 1),
                                      AT(7, 2), AT(0, 2), AT(0, 3),     AT(0, 4)};
    for (uint32_t i = 0; i < 8; i++)
        must_submit(&r, &c[i], asked[i], 2, 1);
    for (uint32_t i = 0; i < 8; i++) {
        assert_true(compose(&r, &st));
        assert_true(st.entries[0].request_id == served[i]);
        give_back(&r, &st, 3);
    }
    assert_false(compose(&r, &st));
    sched_free(r.s);
}

/* --- spreading ----------------------------------------------------------------------------------- */

struct flight {
    struct sent st[8];
    uint32_t first, n;
};

static void launch(struct rig *r, struct flight *f)
{
    for (; f->n < r->lim.max_steps; f->n++) {
        struct sent *st = &f->st[(f->first + f->n) % r->lim.max_steps];
        if (!compose(r, st))
            return;
    }
}

static void land(struct rig *r, struct flight *f, int32_t token)
{
    assert_true(f->n > 0);
    give_back(r, &f->st[f->first], token);
    f->first = f->first + 1 < r->lim.max_steps ? f->first + 1 : 0;
    f->n--;
    launch(r, f);
}

/* The entries of the fullest and the emptiest step in flight. */
static void extremes(const struct rig *r, const struct flight *f, uint32_t *most, uint32_t *least)
{
    *most = 0;
    *least = UINT32_MAX;
    for (uint32_t i = 0; i < f->n; i++) {
        uint32_t n = f->st[(f->first + i) % r->lim.max_steps].b.n_entries;
        *most = n > *most ? n : *most;
        *least = n < *least ? n : *least;
    }
}

/* faults.md 13, 14: every number of sequences is spread as evenly as it can be. */
static void test_any_number_is_spread(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 20; n++) {
        struct rig r = ring_of(8, 20);
        struct flight *f = calloc(1, sizeof *f);
        struct client c[20];
        assert_non_null(f);
        for (uint64_t i = 1; i <= n; i++)
            must_submit(&r, &c[i - 1], i, 1, 100);
        launch(&r, f);
        for (int i = 0; i < 40; i++)
            land(&r, f, 3);
        uint32_t most, least;
        extremes(&r, f, &most, &least);
        assert_int_equal(f->n, n < 8 ? n : 8);
        assert_int_equal(most, (n + 7) / 8);
        assert_int_equal(least, n < 8 ? 1 : n / 8);
        sched_free(r.s);
        free(f);
    }
}

/* All sequences of two steps end at once; the others spread out again. */
static void test_spread_again_when_sequences_end(void **state)
{
    (void)state;
    struct rig r = ring_of(4, 16);
    struct flight *f = calloc(1, sizeof *f);
    struct client c[16];
    uint32_t most, least;
    assert_non_null(f);
    for (uint64_t i = 1; i <= 16; i++)
        must_submit(&r, &c[i - 1], i, 1, 150);
    launch(&r, f);
    for (int i = 0; i < 12; i++)
        land(&r, f, 3);
    extremes(&r, f, &most, &least);
    assert_int_equal(most, 4);
    assert_int_equal(least, 4);
    land(&r, f, 999);
    land(&r, f, 999);
    assert_int_equal(counts(&r).n_active, 8);
    for (int i = 0; i < 12; i++)
        land(&r, f, 3);
    extremes(&r, f, &most, &least);
    assert_int_equal(f->n, 4);
    assert_int_equal(most, 2);
    assert_int_equal(least, 2);
    for (uint64_t i = 17; i <= 20; i++) /* and some join */
        must_submit(&r, &c[i - 17], i, 1, 150);
    for (int i = 0; i < 20; i++)
        land(&r, f, 3);
    extremes(&r, f, &most, &least);
    assert_int_equal(most, 3);
    assert_int_equal(least, 3);
    sched_free(r.s);
    free(f);
}

/* Nobody is passed over: with more sequences than fit, all go on at the same pace. */
static void test_decoding_sequences_take_turns(void **state)
{
    (void)state;
    struct rig r = rig_new(7, 300, 3, 1, 8);
    struct client c[7];
    struct sent st;
    for (uint64_t i = 1; i <= 7; i++)
        must_submit(&r, &c[i - 1], i, 1, 150);
    for (int step = 0; step < 150; step++) {
        assert_true(compose(&r, &st));
        give_back(&r, &st, 3);
    }
    uint32_t least = UINT32_MAX, most = 0;
    for (int i = 0; i < 7; i++) {
        least = c[i].n_out < least ? c[i].n_out : least;
        most = c[i].n_out > most ? c[i].n_out : most;
    }
    assert_true(least >= 60 && most - least <= 4);
    sched_free(r.s);
}

/* --- when to come back --------------------------------------------------------------------------- */

static void test_refusal_says_how_many_wait(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 16, 8, 1, 3);
    struct client c[5];
    struct sent st;
    struct err e;
    int32_t prompt[] = {1};
    must_submit(&r, &c[0], 1, 1, 1);
    assert_true(compose(&r, &st)); /* it has the slot */
    for (uint64_t i = 2; i <= 4; i++)
        must_submit(&r, &c[i - 1], i, 1, 1);
    assert_int_equal(submit(&r, &c[4], 5, prompt, 1, 1, &e), ERR_BUSY);
    assert_non_null(strstr(e.msg, "3 requests are waiting"));
    assert_non_null(strstr(e.msg, "about 1 s"));
    assert_int_equal(counts(&r).n_refused, 1);
    sched_free(r.s);
}

/* Slots are given away when a step is composed: how many requests are let in must not depend on when that is. */
static void test_free_slots_count_as_room(void **state)
{
    (void)state;
    for (uint32_t given = 0; given <= 3; given++) {
        struct rig r = rig_new(2, 16, 8, 2, 1);
        struct client c[5];
        struct sent st[3];
        struct err e;
        uint32_t n_sent = 0;
        int32_t prompt[] = {1};
        for (uint64_t i = 1; i <= 3; i++) {
            must_submit(&r, &c[i - 1], i, 1, 1);
            if (i <= given && compose(&r, &st[n_sent]))
                n_sent++;
        }
        assert_int_equal(submit(&r, &c[3], 4, prompt, 1, 1, &e), ERR_BUSY);
        assert_int_equal(counts(&r).n_active + counts(&r).n_waiting, 3);
        if (n_sent > 0) {
            assert_true(sched_cancel(r.s, 1)); /* its slot is not free before the step is back */
            assert_int_equal(submit(&r, &c[3], 5, prompt, 1, 1, &e), ERR_BUSY);
            give_back(&r, &st[0], 1);
            must_submit(&r, &c[4], 6, 1, 1);
        }
        sched_free(r.s);
    }
}

static void test_pace_is_measured(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 300, 8, 1, 3);
    struct client c;
    struct sent st;
    assert_int_equal(counts(&r).us_per_tok, 0);
    assert_int_equal(counts(&r).retry_ms, 1000);
    must_submit(&r, &c, 1, 1, 190);
    for (int i = 0; i < 190; i++) {
        assert_true(compose(&r, &st));
        if (i < 5)
            usleep(20000);
        give_back(&r, &st, 3);
        if (i == 4)
            assert_true(counts(&r).us_per_tok >= 20000);
    }
    assert_int_equal(c.n_ends, 1);
    assert_int_equal(counts(&r).n_ended[SCHED_LENGTH], 1);
    must_submit(&r, &c, 2, 1, 190); /* 190 tokens, of 20 ms each */
    for (int i = 0; i < 60; i++) {
        assert_true(compose(&r, &st));
        usleep(20000);
        give_back(&r, &st, 3);
    }
    assert_true(counts(&r).retry_ms >= 190 * 20 * 9 / 10);
    assert_true(counts(&r).retry_ms <= 60000);
    sched_free(r.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_takes_all_that_fits),
        cmocka_unit_test(test_prompt_fills_the_ring),
        cmocka_unit_test(test_long_prompt_does_not_starve_decoding),
        cmocka_unit_test(test_short_prompt_does_not_wait_for_a_long_one),
        cmocka_unit_test(test_prompts_take_turns),
        cmocka_unit_test(test_entries_take_turns),
        cmocka_unit_test(test_any_number_is_spread),
        cmocka_unit_test(test_spread_again_when_sequences_end),
        cmocka_unit_test(test_decoding_sequences_take_turns),
        cmocka_unit_test(test_refusal_says_how_many_wait),
        cmocka_unit_test(test_free_slots_count_as_room),
        cmocka_unit_test(test_pace_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
