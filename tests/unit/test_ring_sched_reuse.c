/* SPDX-License-Identifier: MIT
 *
 * What the scheduler does not compute again: which slot a prompt gets, where it goes on there, checkpoints of models
 * that cannot go back everywhere, and what is forgotten when a rank turns out to hold nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "lib/sched_rig.h"

/* A prompt made of runs: n tokens that only depend on what they are called. */
struct prompt {
    int32_t tokens[MAX_CTX];
    uint32_t n;
};

static void say(struct prompt *p, uint32_t name, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        p->tokens[p->n++] = (int32_t)(hash_mix64(name * 10000ull + i) % 900);
}

static struct prompt of(uint32_t name, uint32_t n)
{
    struct prompt p = {.n = 0};
    say(&p, name, n);
    return p;
}

static void ask(struct rig *r, struct client *c, uint64_t id, const struct prompt *p, uint32_t n_predict)
{
    assert_int_equal(submit(r, c, id, p->tokens, p->n, n_predict, NULL), OK);
}

/* Runs everything to its end; the tokens are all the same. first: the entry each request begins with, by id. */
static void finish(struct rig *r, int32_t token, struct batch_entry *first)
{
    struct sent st;
    while (compose(r, &st)) {
        for (uint32_t i = 0; first && i < st.b.n_entries; i++) {
            const struct batch_entry *en = &st.entries[i];
            if (en->flags & (BATCH_RESET | BATCH_TRUNCATE))
                first[en->request_id] = *en;
        }
        give_back(r, &st, token);
    }
}

static struct rig bounded(uint32_t n_slots, uint32_t n_checkpoints)
{
    return rig_of((struct sched_limits){.n_slots = n_slots,
                                        .n_ctx = MAX_CTX,
                                        .n_batch = MAX_BATCH,
                                        .max_steps = 1,
                                        .max_waiting = 16,
                                        .bounded_rewind = true,
                                        .n_checkpoints = n_checkpoints});
}

/* --- any position -------------------------------------------------------------------------------- */

static void test_next_turn_goes_on(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 100, 64, 1, 4);
    struct client c;
    struct batch_entry first[3];
    struct prompt p = of(1, 20);
    ask(&r, &c, 1, &p, 5);
    finish(&r, 7, first);
    assert_int_equal(first[1].flags & BATCH_RESET, BATCH_RESET);
    for (int i = 0; i < 5; i++)
        p.tokens[p.n++] = 7;
    say(&p, 2, 10);
    ask(&r, &c, 2, &p, 5);
    struct sent st;
    assert_true(compose(&r, &st));
    assert_int_equal(st.n_starts, 1); /* its parameters are new, whatever the slot holds */
    assert_int_equal(st.starts[0].request_id, 2);
    assert_int_equal(st.sampling[0].seed, 2);
    assert_int_equal(st.entries[0].slot, first[1].slot);
    assert_int_equal(st.entries[0].flags, BATCH_TRUNCATE | BATCH_SAMPLE);
    assert_int_equal(st.entries[0].pos, 24); /* the last token of the answer was never sent */
    assert_int_equal(st.entries[0].n_tok, 11);
    uint64_t hash = HASH_PREFIX_EMPTY;
    for (uint32_t i = 0; i < 24; i++)
        hash = hash_prefix(hash, p.tokens[i]);
    assert_true(st.entries[0].prefix_hash == hash);
    assert_memory_equal(st.tokens, p.tokens + 24, 11 * sizeof *st.tokens);
    give_back(&r, &st, 8);
    assert_int_equal(counts(&r).n_reused_tok, 24);
    assert_int_equal(counts(&r).n_prompt_tok, 20 + 11);
    sched_free(r.s);
}

static void test_same_prompt_computes_one_token(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 100, 64, 1, 4);
    struct client c;
    struct batch_entry first[3];
    struct prompt p = of(1, 20);
    ask(&r, &c, 1, &p, 5);
    finish(&r, 7, NULL);
    ask(&r, &c, 2, &p, 5);
    finish(&r, 7, first);
    assert_int_equal(first[2].pos, 19);
    assert_int_equal(first[2].n_tok, 1);
    assert_int_equal(c.n_out, 5);
    sched_free(r.s);
}

static void test_longest_prefix_wins(void **state)
{
    (void)state;
    struct rig r = rig_new(3, 100, 64, 1, 4);
    struct client c;
    struct batch_entry first[6];
    struct prompt a = of(1, 20), b = of(1, 20), other = of(5, 20), ask_a = of(1, 20), ask_b = of(1, 20);
    say(&a, 2, 10);
    say(&b, 3, 10);
    say(&ask_a, 2, 10);
    say(&ask_a, 4, 5);
    say(&ask_b, 3, 9);
    say(&ask_b, 6, 5);
    struct client one, two;
    ask(&r, &c, 1, &a, 1);
    ask(&r, &one, 2, &b, 1); /* at the same time: another slot */
    ask(&r, &two, 3, &other, 1);
    finish(&r, 7, first);
    ask(&r, &c, 4, &ask_b, 1);
    ask(&r, &one, 5, &ask_a, 1);
    finish(&r, 7, first);
    assert_int_equal(first[4].slot, first[2].slot);
    assert_int_equal(first[4].pos, 29);
    assert_int_equal(first[5].slot, first[1].slot);
    assert_int_equal(first[5].pos, 30);
    sched_free(r.s);
}

static void test_slot_not_used_for_longest_is_taken(void **state)
{
    (void)state;
    struct rig r = rig_new(3, 100, 64, 1, 4);
    struct client c;
    struct batch_entry first[8] = {0};
    struct prompt p[6];
    for (uint32_t i = 0; i < 6; i++)
        p[i] = of(10 + i, 10);
    for (uint64_t i = 0; i < 3; i++) { /* one after the other: empty slots come first */
        ask(&r, &c, i + 1, &p[i], 1);
        finish(&r, 7, first);
    }
    assert_true(first[1].slot != first[2].slot && first[1].slot != first[3].slot && first[2].slot != first[3].slot);
    ask(&r, &c, 4, &p[0], 1); /* the first one is used again */
    finish(&r, 7, first);
    assert_int_equal(first[4].slot, first[1].slot);
    ask(&r, &c, 5, &p[3], 1);
    finish(&r, 7, first);
    assert_int_equal(first[5].slot, first[2].slot);
    ask(&r, &c, 6, &p[4], 1);
    finish(&r, 7, first);
    assert_int_equal(first[6].slot, first[3].slot);
    sched_free(r.s);
}

/* A long conversation and a new one begin with the same few tokens. */
static void test_small_prefix_does_not_cost_a_conversation(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 200, 64, 1, 4);
    struct client c;
    struct batch_entry first[4];
    struct prompt a = of(1, 5), b = of(1, 5);
    say(&a, 2, 100);
    say(&b, 3, 20);
    ask(&r, &c, 1, &a, 1);
    finish(&r, 7, first);
    ask(&r, &c, 2, &b, 1);
    finish(&r, 7, first);
    assert_true(first[2].slot != first[1].slot);
    ask(&r, &c, 3, &a, 1);
    finish(&r, 7, first);
    assert_int_equal(first[3].pos, 104);
    sched_free(r.s);
}

static void test_busy_slot_is_left_alone(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 100, 64, 2, 4);
    struct client c[2];
    struct sent st[2];
    struct prompt p = of(1, 20);
    ask(&r, &c[0], 1, &p, 5);
    assert_true(compose(&r, &st[0]));
    ask(&r, &c[1], 2, &p, 5);
    assert_true(compose(&r, &st[1]));
    assert_true(st[0].entries[0].slot != st[1].entries[0].slot);
    assert_int_equal(st[1].entries[0].flags & BATCH_RESET, BATCH_RESET);
    assert_int_equal(counts(&r).n_reused_tok, 0);
    sched_free(r.s);
}

/* What was sent of a cancelled request is there, no more. */
static void test_cancelled_prompt_is_reused_as_far_as_sent(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 100, 8, 1, 4);
    struct client c;
    struct sent st;
    struct prompt p = of(1, 30);
    ask(&r, &c, 1, &p, 5);
    assert_true(compose(&r, &st));
    assert_true(sched_cancel(r.s, 1));
    give_back(&r, &st, 7);
    ask(&r, &c, 2, &p, 5);
    assert_true(compose(&r, &st));
    assert_int_equal(st.entries[0].flags, BATCH_TRUNCATE);
    assert_int_equal(st.entries[0].pos, 8);
    assert_true(sched_cancel(r.s, 2));
    give_back(&r, &st, 7);
    ask(&r, &c, 3, &p, 5); /* cancelled before anything of it was sent: nothing changes */
    assert_true(sched_cancel(r.s, 3));
    ask(&r, &c, 4, &p, 5);
    assert_true(compose(&r, &st));
    assert_int_equal(st.entries[0].pos, 16);
    sched_free(r.s);
}

/* --- only checkpoints ---------------------------------------------------------------------------- */

static void test_whole_slot_needs_no_checkpoint(void **state)
{
    (void)state;
    struct rig r = bounded(1, 0);
    struct client c;
    struct batch_entry first[4];
    struct prompt p = of(1, 50);
    ask(&r, &c, 1, &p, 1);
    finish(&r, 7, NULL);
    say(&p, 2, 5);
    ask(&r, &c, 2, &p, 1);
    finish(&r, 7, first);
    assert_int_equal(first[2].pos, 50);
    p.n = 30; /* but back it cannot go */
    ask(&r, &c, 3, &p, 1);
    finish(&r, 7, first);
    assert_int_equal(first[3].flags & BATCH_RESET, BATCH_RESET);
    sched_free(r.s);
}

/* An answer whose first tokens the next turn leaves out: it goes on from the checkpoint short of the prompt's end. */
static void test_checkpoint_at_the_end_of_the_prompt(void **state)
{
    (void)state;
    struct rig r = bounded(1, 2);
    struct client c;
    struct sent st;
    struct batch_entry first[3];
    struct prompt p = of(1, 100);
    ask(&r, &c, 1, &p, 20);
    assert_true(compose(&r, &st));
    assert_int_equal(st.entries[0].n_tok, 92);
    assert_int_equal(st.entries[0].flags, BATCH_RESET);
    give_back(&r, &st, 7);
    assert_true(compose(&r, &st));
    assert_int_equal(st.entries[0].pos, 92);
    assert_int_equal(st.entries[0].n_tok, 8);
    assert_int_equal(st.entries[0].flags, BATCH_CHECKPOINT | BATCH_SAMPLE);
    give_back(&r, &st, 7);
    finish(&r, 7, NULL);
    p.n = 96;
    say(&p, 9, 30);
    ask(&r, &c, 2, &p, 1);
    finish(&r, 7, first);
    assert_int_equal(first[2].flags & (BATCH_TRUNCATE | BATCH_RESET), BATCH_TRUNCATE);
    assert_int_equal(first[2].pos, 92);
    sched_free(r.s);
}

/* Many conversations with one system prompt: the second shows where they part, the third need not compute it. */
static void test_checkpoint_where_prompts_part(void **state)
{
    (void)state;
    struct rig r = bounded(1, 3);
    struct client c;
    struct batch_entry first[6];
    for (uint32_t i = 1; i <= 5; i++) {
        struct prompt p = of(1, 200);
        say(&p, 10 + i, 60);
        ask(&r, &c, i, &p, 3);
        finish(&r, 7, first);
    }
    assert_int_equal(first[2].pos, 0);
    for (int i = 3; i <= 5; i++)
        assert_int_equal(first[i].pos, 200);
    assert_int_equal(counts(&r).n_reused_tok, 3 * 200);
    sched_free(r.s);
}

/* The stages replace the earliest checkpoint; who believes otherwise goes back to one that is gone. */
static void test_earliest_checkpoint_is_replaced(void **state)
{
    (void)state;
    struct rig r = bounded(1, 2);
    struct client c;
    struct batch_entry first[8] = {0};
    struct prompt p = of(1, 100);
    for (uint32_t turn = 1; turn <= 3; turn++) { /* checkpoints at 92, 192, 292: the first is out */
        ask(&r, &c, turn, &p, 1);
        finish(&r, 7, first);
        assert_int_equal(first[turn].pos, (turn - 1) * 100);
        say(&p, 1 + turn, 100);
    }
    p.n = 250;
    p.tokens[249] = 901;
    ask(&r, &c, 4, &p, 1);
    finish(&r, 7, first);
    assert_int_equal(first[4].pos, 192);
    p.n = 120;
    p.tokens[119] = 901;
    ask(&r, &c, 5, &p, 1);
    finish(&r, 7, first);
    assert_int_equal(first[5].pos, 0);
    sched_free(r.s);
}

/* --- stale ranks --------------------------------------------------------------------------------- */

/* faults.md 16: a worker restarts in the middle of a request. */
static void test_stale_request_begins_anew_once(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 100, 64, 2, 4);
    struct client c;
    struct sent st;
    struct prompt p = of(1, 10);
    ask(&r, &c, 1, &p, 20);
    for (int i = 0; i < 3; i++) {
        assert_true(compose(&r, &st));
        give_back(&r, &st, 40 + i);
    }
    assert_true(compose(&r, &st));
    sched_fail_step(r.s, st.id, ERR_STALE, "slot 0 holds 0 tokens");
    assert_int_equal(c.n_ends, 0);
    assert_true(compose(&r, &st));
    assert_int_equal(st.n_starts, 1);
    assert_int_equal(st.entries[0].flags, BATCH_RESET | BATCH_SAMPLE);
    assert_int_equal(st.entries[0].n_tok, 13); /* with what it had got */
    assert_int_equal(st.tokens[12], 42);
    give_back(&r, &st, 43);
    assert_int_equal(c.n_out, 4);
    assert_int_equal(c.out[3], 43);
    assert_true(compose(&r, &st)); /* goes on token by token */
    assert_int_equal(st.b.n_tok, 1);
    assert_int_equal(st.entries[0].pos, 13);
    assert_int_equal(counts(&r).n_retried, 1);
    sched_fail_step(r.s, st.id, ERR_STALE, "slot 0 holds 0 tokens");
    assert_int_equal(c.n_ends, 1);
    assert_int_equal(c.code, ERR_STALE);
    assert_false(compose(&r, &st));
    sched_free(r.s);
}

static void test_begins_anew_only_when_nothing_of_it_is_in_flight(void **state)
{
    (void)state;
    struct rig r = rig_new(1, 100, 4, 3, 4);
    struct client c;
    struct sent st[3], none;
    struct prompt p = of(1, 12);
    ask(&r, &c, 1, &p, 20);
    for (int i = 0; i < 3; i++)
        assert_true(compose(&r, &st[i]));
    sched_fail_step(r.s, st[0].id, ERR_STALE, "stale");
    assert_false(compose(&r, &none));
    sched_fail_step(r.s, st[1].id, ERR_STALE, "what follows is stale, too"); /* is not another failure */
    assert_false(compose(&r, &none));
    give_back(&r, &st[2], 7); /* whatever this is, it is not a token of the request */
    assert_int_equal(c.n_out, 0);
    assert_int_equal(c.n_ends, 0);
    assert_true(compose(&r, &st[0]));
    assert_int_equal(st[0].entries[0].flags, BATCH_RESET);
    assert_int_equal(counts(&r).n_retried, 1);
    assert_true(sched_cancel(r.s, 1));
    sched_free(r.s);
}

static void test_stale_rank_makes_other_slots_forgotten(void **state)
{
    (void)state;
    struct rig r = rig_new(3, 100, 64, 1, 4);
    struct client c, keeps;
    struct sent st;
    struct batch_entry first[5];
    struct prompt a = of(1, 20), b = of(2, 20);
    ask(&r, &c, 1, &a, 1);
    finish(&r, 7, first);
    ask(&r, &keeps, 2, &b, 30);
    assert_true(compose(&r, &st));
    give_back(&r, &st, 7);
    assert_true(compose(&r, &st));
    sched_fail_step(r.s, st.id, ERR_STALE, "stale");
    ask(&r, &c, 3, &a, 1);
    finish(&r, 7, first);
    assert_int_equal(first[3].flags & BATCH_RESET, BATCH_RESET);
    assert_int_equal(keeps.n_out, 30);
    assert_int_equal(counts(&r).n_reused_tok, 0);
    sched_free(r.s);
}

/* A prompt that has its slot already, but no step has carried anything of it. */
static void test_stale_rank_makes_a_prompt_begin_at_its_beginning(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 100, 4, 1, 4);
    struct client c, other;
    struct sent st;
    struct batch_entry first[4] = {0};
    struct prompt a = of(1, 20), b = of(2, 20);
    ask(&r, &c, 1, &a, 1);
    finish(&r, 7, NULL);
    ask(&r, &other, 2, &b, 1);
    ask(&r, &c, 3, &a, 1);
    assert_true(compose(&r, &st));
    assert_int_equal(st.b.n_entries, 1);
    assert_int_equal(st.entries[0].request_id, 2);
    sched_fail_step(r.s, st.id, ERR_STALE, "stale");
    finish(&r, 7, first);
    assert_int_equal(first[3].flags & BATCH_RESET, BATCH_RESET);
    assert_int_equal(other.reason, SCHED_LENGTH);
    sched_free(r.s);
}

/* A chunk after one that failed is stale for a reason that says nothing about other slots. */
static void test_what_follows_a_failure_makes_nothing_forgotten(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 100, 4, 2, 4);
    struct client c;
    struct sent st[2];
    struct batch_entry first[4];
    struct prompt a = of(1, 20), b = of(2, 20);
    ask(&r, &c, 1, &a, 1);
    finish(&r, 7, NULL);
    ask(&r, &c, 2, &b, 1);
    assert_true(compose(&r, &st[0]));
    assert_true(compose(&r, &st[1]));
    sched_fail_step(r.s, st[0].id, ERR_DEVICE, "broken");
    sched_fail_step(r.s, st[1].id, ERR_STALE, "of course");
    ask(&r, &c, 3, &a, 1);
    finish(&r, 7, first);
    assert_int_equal(first[3].pos, 19);
    sched_free(r.s);
}

/* What the ranks hold of a slot after a step over it failed is not known; of others it is. */
static void test_failed_slot_is_forgotten_others_are_not(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 100, 64, 1, 4);
    struct client c;
    struct sent st;
    struct batch_entry first[6];
    struct prompt a = of(1, 20), b = of(2, 20);
    ask(&r, &c, 1, &a, 1);
    finish(&r, 7, NULL);
    ask(&r, &c, 2, &b, 1);
    assert_true(compose(&r, &st));
    sched_fail_step(r.s, st.id, ERR_DEVICE, "broken");
    assert_int_equal(c.reason, SCHED_FAILED);
    ask(&r, &c, 3, &b, 1);
    finish(&r, 7, first);
    assert_int_equal(first[3].flags & BATCH_RESET, BATCH_RESET);
    ask(&r, &c, 4, &a, 1);
    finish(&r, 7, first);
    assert_int_equal(first[4].pos, 19);
    sched_free(r.s);
}

static void test_broken_ring_keeps_what_was_at_rest(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 100, 64, 2, 4);
    struct client c, lost;
    struct sent st;
    struct batch_entry first[6] = {0};
    struct prompt a = of(1, 20), b = of(2, 20);
    ask(&r, &c, 1, &a, 1);
    finish(&r, 7, NULL);
    ask(&r, &lost, 2, &b, 5);
    assert_true(compose(&r, &st));
    sched_fail_all(r.s, ERR_CLOSED, "rank 2 is gone");
    assert_int_equal(lost.reason, SCHED_FAILED);
    ask(&r, &c, 3, &a, 1);
    ask(&r, &lost, 4, &b, 1);
    finish(&r, 7, first);
    assert_int_equal(first[3].pos, 19);
    assert_int_equal(first[4].flags & BATCH_RESET, BATCH_RESET);
    sched_free(r.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_turn_goes_on),
        cmocka_unit_test(test_same_prompt_computes_one_token),
        cmocka_unit_test(test_longest_prefix_wins),
        cmocka_unit_test(test_slot_not_used_for_longest_is_taken),
        cmocka_unit_test(test_small_prefix_does_not_cost_a_conversation),
        cmocka_unit_test(test_busy_slot_is_left_alone),
        cmocka_unit_test(test_cancelled_prompt_is_reused_as_far_as_sent),
        cmocka_unit_test(test_whole_slot_needs_no_checkpoint),
        cmocka_unit_test(test_checkpoint_at_the_end_of_the_prompt),
        cmocka_unit_test(test_checkpoint_where_prompts_part),
        cmocka_unit_test(test_earliest_checkpoint_is_replaced),
        cmocka_unit_test(test_stale_request_begins_anew_once),
        cmocka_unit_test(test_begins_anew_only_when_nothing_of_it_is_in_flight),
        cmocka_unit_test(test_stale_rank_makes_other_slots_forgotten),
        cmocka_unit_test(test_stale_rank_makes_a_prompt_begin_at_its_beginning),
        cmocka_unit_test(test_what_follows_a_failure_makes_nothing_forgotten),
        cmocka_unit_test(test_failed_slot_is_forgotten_others_are_not),
        cmocka_unit_test(test_broken_ring_keeps_what_was_at_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
