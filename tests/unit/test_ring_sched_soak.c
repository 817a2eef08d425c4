/* SPDX-License-Identifier: MIT
 *
 * Long random runs of the scheduler over a simulated ring: three ranks that keep the tokens of every slot and refuse
 * what does not continue them, as stages do. Conversations go on, share their beginnings, are cancelled; steps and
 * ranks fail. Every token must be the one that computing its whole sequence from scratch gives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "lib/sched_rig.h"

#define SOAK_REQUESTS 300u
#define SOAK_CTX      160u
#define N_RANKS       3u
#define N_CHECKPOINTS 3u

/* What a rank holds of a slot. */
struct rank_slot {
    int32_t tokens[SOAK_CTX];
    uint32_t n;
    uint32_t checkpoint[N_CHECKPOINTS];
    uint64_t seed;
};

struct soak {
    struct rig r;
    bool faults; /* steps and ranks fail */
    struct rank_slot rank[N_RANKS][MAX_SLOTS];
    struct sent *flight; /* [max_steps], in order */
    uint32_t n_flight;
    struct client *c; /* [SOAK_REQUESTS] */
    struct soak_plan {
        int32_t prompt[SOAK_CTX];
        uint32_t n, n_predict;
        bool submitted, cancelled;
    } *plan;
    uint64_t seed, n_sent_tok, n_sent_decode, n_begun_at, n_stale;
};

static uint32_t draw(struct soak *k, uint32_t n)
{
    k->seed = hash_mix64(k->seed + 0x9e3779b97f4a7c15ull);
    return (uint32_t)(k->seed >> 33) % n;
}

static uint64_t hash_of(const int32_t *tokens, uint32_t n)
{
    uint64_t h = HASH_PREFIX_EMPTY;
    for (uint32_t i = 0; i < n; i++)
        h = hash_prefix(h, tokens[i]);
    return h;
}

/* The model. Texts end about every fifty tokens. */
static int32_t next_token(uint64_t hash, uint64_t seed)
{
    uint64_t x = hash_mix64(hash ^ hash_mix64(seed));
    return x % 50 == 0 ? 999 : (int32_t)((x >> 20) % 998);
}

/* --- a rank -------------------------------------------------------------------------------------- */

static uint32_t reach(const struct soak *k, const struct rank_slot *sl, uint32_t pos)
{
    uint32_t best = 0;
    if (pos == sl->n || !k->r.lim.bounded_rewind)
        return pos;
    for (uint32_t i = 0; i < N_CHECKPOINTS; i++) {
        if (sl->checkpoint[i] <= pos && sl->checkpoint[i] > best)
            best = sl->checkpoint[i];
    }
    return best;
}

static bool fits(const struct soak *k, const struct rank_slot *sl, const struct batch_entry *en)
{
    if (en->flags & BATCH_RESET)
        return en->pos == 0 && en->prefix_hash == HASH_PREFIX_EMPTY;
    bool here = en->flags & BATCH_TRUNCATE ? en->pos <= sl->n : en->pos == sl->n;
    return here && reach(k, sl, en->pos) == en->pos && hash_of(sl->tokens, en->pos) == en->prefix_hash;
}

static void take_back(struct rank_slot *sl, uint32_t pos)
{
    sl->n = pos;
    for (uint32_t i = 0; i < N_CHECKPOINTS; i++) {
        if (sl->checkpoint[i] > pos)
            sl->checkpoint[i] = 0;
    }
}

static void keep(struct rank_slot *sl)
{
    uint32_t *c = sl->checkpoint;
    for (uint32_t i = 0; i < N_CHECKPOINTS; i++) {
        if (sl->checkpoint[i] == sl->n)
            return;
        if (sl->checkpoint[i] < *c)
            c = &sl->checkpoint[i];
    }
    if (sl->n > 0)
        *c = sl->n;
}

/* Runs a step on one rank. false: it does not fit, nothing was done. */
static bool run_on(struct soak *k, uint32_t rank, const struct sent *st)
{
    const int32_t *t = st->tokens;
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        if (!fits(k, &k->rank[rank][st->entries[i].slot], &st->entries[i]))
            return false;
    }
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        const struct batch_entry *en = &st->entries[i];
        struct rank_slot *sl = &k->rank[rank][en->slot];
        take_back(sl, en->pos);
        if (en->flags & BATCH_CHECKPOINT)
            keep(sl);
        memcpy(sl->tokens + sl->n, t, en->n_tok * sizeof *t);
        sl->n += en->n_tok;
        t += en->n_tok;
    }
    return true;
}

/* A device fails: the step's slots hold what they held before it, or nothing. */
static void lose(struct soak *k, uint32_t rank, const struct sent *st)
{
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        const struct batch_entry *en = &st->entries[i];
        take_back(&k->rank[rank][en->slot], k->r.lim.bounded_rewind ? 0 : en->pos);
    }
}

static void restart(struct soak *k, uint32_t rank)
{
    for (uint32_t i = 0; i < MAX_SLOTS; i++)
        take_back(&k->rank[rank][i], 0);
}

static uint32_t sample(const struct soak *k, const struct sent *st, struct batch_result *res)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        const struct batch_entry *en = &st->entries[i];
        const struct rank_slot *sl = &k->rank[N_RANKS - 1][en->slot];
        if (en->flags & BATCH_SAMPLE)
            res[n++] = (struct batch_result){.request_id = en->request_id,
                                             .slot = en->slot,
                                             .pos = sl->n,
                                             .token = next_token(hash_of(sl->tokens, sl->n), sl->seed),
                                             .logprob = -0.5f};
    }
    return n;
}

/* --- the ring ------------------------------------------------------------------------------------ */

static void check_step(struct soak *k, const struct sent *st)
{
    bool seen[MAX_SLOTS] = {false};
    uint32_t n_tok = 0, n_begun = 0;
    assert_true(st->b.n_entries > 0 && st->b.n_entries <= k->r.lim.n_slots);
    assert_true(st->b.n_tok <= k->r.lim.n_batch);
    for (uint32_t i = 0; i < st->b.n_entries; i++) {
        const struct batch_entry *en = &st->entries[i];
        assert_true(en->slot < k->r.lim.n_slots && !seen[en->slot] && en->n_tok > 0);
        assert_true(en->pos + en->n_tok <= k->r.lim.n_ctx);
        seen[en->slot] = true;
        n_tok += en->n_tok;
        if (en->flags & (BATCH_RESET | BATCH_TRUNCATE)) {
            assert_true(n_begun < st->n_starts);
            assert_int_equal(st->starts[n_begun].slot, en->slot);
            assert_int_equal(st->starts[n_begun].request_id, en->request_id);
            n_begun++;
            k->n_begun_at += en->pos;
        }
        k->n_sent_decode += !(en->flags & (BATCH_RESET | BATCH_TRUNCATE)) && en->pos >= k->plan[en->request_id - 1].n;
        for (uint32_t f = 0; f < k->n_flight; f++) { /* two requests never share a slot in flight */
            for (uint32_t j = 0; j < k->flight[f].b.n_entries; j++) {
                const struct batch_entry *o = &k->flight[f].entries[j];
                if (o->slot == en->slot)
                    assert_int_equal(o->request_id, en->request_id);
            }
        }
    }
    assert_int_equal(n_tok, st->b.n_tok);
    assert_int_equal(n_begun, st->n_starts);
    k->n_sent_tok += n_tok;
}

/* The oldest step in flight goes around. A stage that fails itself and one that finds a stale slot end it. */
static void go_around(struct soak *k)
{
    struct batch_result res[MAX_SLOTS];
    struct sent *st = malloc(sizeof *st);
    assert_non_null(st);
    *st = k->flight[0];
    memmove(k->flight, k->flight + 1, --k->n_flight * sizeof *k->flight);
    for (uint32_t i = 0; i < k->n_flight; i++) { /* copies point into themselves */
        k->flight[i].b.entries = k->flight[i].entries;
        k->flight[i].b.tokens = k->flight[i].tokens;
    }
    for (uint32_t i = 0; i < st->n_starts; i++)
        k->rank[N_RANKS - 1][st->starts[i].slot].seed = st->sampling[i].seed;
    uint32_t bad = k->faults && draw(k, 60) == 0 ? draw(k, N_RANKS) : N_RANKS;
    for (uint32_t i = 0; i < N_RANKS; i++) {
        bool good = run_on(k, i, st);
        assert_true(good || k->faults);
        k->n_stale += !good;
        if (good && i == bad)
            lose(k, i, st);
        if (good && i != bad)
            continue;
        sched_fail_step(k->r.s, st->id, good ? ERR_DEVICE : ERR_STALE, good ? "device" : "stale");
        free(st);
        return;
    }
    uint32_t n = sample(k, st, res);
    assert_int_equal(sched_result(k->r.s, st->id, res, n, NULL), OK);
    free(st);
}

/* --- requests ------------------------------------------------------------------------------------ */

/* What a request got is the beginning of what it must get, whole unless somebody ended it. */
static void check_client(const struct soak *k, uint32_t i)
{
    const struct soak_plan *p = &k->plan[i];
    const struct client *c = &k->c[i];
    uint64_t hash = hash_of(p->prompt, p->n);
    uint32_t n = 0;
    enum sched_reason reason = SCHED_LENGTH;
    for (;; n++) {
        int32_t token = next_token(hash, c->id);
        if (token >= 998) {
            reason = SCHED_STOP;
            break;
        }
        if (n < c->n_out)
            assert_int_equal(c->out[n], token);
        hash = hash_prefix(hash, token);
        if (n + 1 == p->n_predict || p->n + n >= k->r.lim.n_ctx) {
            reason = n + 1 == p->n_predict ? SCHED_LENGTH : SCHED_CONTEXT;
            n++;
            break;
        }
    }
    assert_int_equal(c->n_ends, 1);
    if (c->reason == SCHED_CANCELLED || c->reason == SCHED_FAILED) {
        assert_true(c->n_out <= n);
        assert_int_equal(c->code == OK, c->reason == SCHED_CANCELLED);
        assert_true(c->reason == SCHED_CANCELLED || k->faults);
    } else {
        assert_int_equal(c->n_out, n);
        assert_int_equal(c->reason, reason);
        assert_int_equal(c->code, OK);
    }
    assert_true(!p->cancelled || c->reason == SCHED_CANCELLED);
}

/* A prompt of its own, one that begins like an earlier one, or the next turn of a conversation. */
static void invent(struct soak *k, uint32_t i)
{
    struct soak_plan *p = &k->plan[i];
    uint32_t kind = i ? draw(k, 3) : 0, max = k->r.lim.n_ctx - 1;
    p->n = 0;
    if (kind > 0) {
        const struct soak_plan *old = &k->plan[i - 1 - draw(k, i < 8 ? i : 8)];
        const struct client *c = &k->c[old - k->plan];
        p->n = kind == 1 ? 1 + draw(k, old->n) : old->n;
        memcpy(p->prompt, old->prompt, p->n * sizeof *p->prompt);
        for (uint32_t t = 0; kind == 2 && t < c->n_out && p->n < max; t++)
            p->prompt[p->n++] = c->out[t];
    }
    uint32_t more = draw(k, 1 + (i % 4 == 0 ? max : max / 4));
    for (more += p->n == 0; more > 0 && p->n < max; more--)
        p->prompt[p->n++] = (int32_t)draw(k, N_VOCAB);
    p->n_predict = 1 + draw(k, 20);
}

static void ask(struct soak *k, uint32_t i)
{
    struct soak_plan *p = &k->plan[i];
    invent(k, i);
    p->submitted = submit(&k->r, &k->c[i], i + 1, p->prompt, p->n, p->n_predict, NULL) == OK;
}

static void disturb(struct soak *k, uint32_t n_asked)
{
    if (n_asked > 0 && draw(k, 40) == 0) {
        uint32_t i = draw(k, n_asked);
        bool running = k->c[i].n_ends == 0;
        assert_int_equal(sched_cancel(k->r.s, i + 1), running);
        k->plan[i].cancelled |= running;
    }
    if (!k->faults)
        return;
    if (draw(k, 400) == 0) {
        sched_fail_all(k->r.s, ERR_CLOSED, "broken");
        for (; k->n_flight > 0; k->n_flight--) { /* each got lost somewhere */
            uint32_t far = draw(k, N_RANKS + 1);
            for (uint32_t i = 0; i < far && run_on(k, i, &k->flight[0]); i++)
                continue;
            memmove(k->flight, k->flight + 1, (k->n_flight - 1) * sizeof *k->flight);
        }
    }
    if (draw(k, 300) == 0)
        restart(k, draw(k, N_RANKS));
}

/* Every slot can still be had, and nothing else is left. */
static void check_end(struct soak *k)
{
    struct sched_counts n = counts(&k->r);
    uint64_t ended = 0, n_out = 0;
    for (uint32_t i = 0; i < SCHED_N_REASONS; i++)
        ended += n.n_ended[i];
    for (uint32_t i = 0; i < SOAK_REQUESTS; i++) {
        check_client(k, i);
        n_out += k->c[i].n_out;
    }
    assert_int_equal(n.n_steps, 0);
    assert_int_equal(ended, SOAK_REQUESTS);
    assert_int_equal(n.n_out_tok, n_out);
    assert_true(n.n_reused_tok >= k->n_begun_at); /* some ended before anything of them was sent */
    if (!k->faults)
        assert_int_equal(n.n_prompt_tok + k->n_sent_decode, k->n_sent_tok);
    struct client c[MAX_SLOTS];
    struct sent *st = malloc(sizeof *st);
    assert_non_null(st);
    for (uint32_t i = 0; i < k->r.lim.n_slots && i < k->r.lim.max_waiting; i++)
        must_submit(&k->r, &c[i], SOAK_REQUESTS + 1 + i, 1, 1);
    assert_true(compose(&k->r, st));
    assert_int_equal(counts(&k->r).n_waiting, 0);
    sched_free(k->r.s);
    free(st);
}

struct totals {
    uint64_t n_reused, n_retried, n_stale;
};

static void soak(uint64_t seed, bool bounded, bool faults, struct totals *sum)
{
    struct soak *k = calloc(1, sizeof *k);
    assert_non_null(k);
    k->seed = seed;
    k->faults = faults;
    uint32_t n_slots = 1 + draw(k, 6), max_steps = 1 + draw(k, 5);
    k->r = rig_of((struct sched_limits){.n_slots = n_slots,
                                        .n_ctx = draw(k, 3) ? SOAK_CTX : 24,
                                        .n_batch = draw(k, 2) ? 1 + draw(k, 12) : 64,
                                        .max_steps = max_steps,
                                        .max_waiting = 6,
                                        .n_prefill = draw(k, 20),
                                        .bounded_rewind = bounded,
                                        .n_checkpoints = N_CHECKPOINTS});
    k->flight = calloc(max_steps + 1, sizeof *k->flight);
    k->c = calloc(SOAK_REQUESTS, sizeof *k->c);
    k->plan = calloc(SOAK_REQUESTS, sizeof *k->plan);
    assert_true(k->flight && k->c && k->plan);
    uint32_t next = 0, idle = 0;
    while (idle < 3) {
        uint32_t what = draw(k, 10);
        if (what < 2 && next < SOAK_REQUESTS) {
            ask(k, next);
            next += k->plan[next].submitted;
        } else if (what < 6) {
            struct sent *st = &k->flight[k->n_flight];
            if (compose(&k->r, st)) {
                check_step(k, st);
                k->n_flight++;
                assert_true(k->n_flight <= max_steps);
            }
        } else if (k->n_flight > 0) {
            go_around(k);
        }
        disturb(k, next);
        struct sched_counts n = counts(&k->r);
        bool over = next == SOAK_REQUESTS && n.n_waiting == 0 && n.n_active == 0 && k->n_flight == 0;
        idle = over ? idle + 1 : 0;
    }
    struct sched_counts n = counts(&k->r);
    sum->n_reused += n.n_reused_tok;
    sum->n_retried += n.n_retried;
    sum->n_stale += k->n_stale;
    check_end(k);
    free(k->flight);
    free(k->c);
    free(k->plan);
    free(k);
}

static struct totals soaks(bool bounded, bool faults)
{
    struct totals sum = {0};
    for (uint64_t seed = 1; seed <= 8; seed++)
        soak(seed * 1000, bounded, faults, &sum);
    if (sum.n_reused < 2000)
        fail_msg("only %llu tokens were reused", (unsigned long long)sum.n_reused);
    return sum;
}

/* Nothing fails: then no rank ever finds a slot stale, so that what the scheduler believes of the ranks is right. */
static void test_ranks_hold_what_is_believed(void **state)
{
    (void)state;
    assert_int_equal(soaks(false, false).n_retried, 0);
}

static void test_ranks_hold_what_is_believed_with_checkpoints(void **state)
{
    (void)state;
    assert_int_equal(soaks(true, false).n_retried, 0);
}

/* faults.md 16: whatever happens to ranks, no text is ever wrong. */
static void test_no_wrong_text_when_ranks_fail(void **state)
{
    (void)state;
    struct totals t = soaks(false, true);
    assert_true(t.n_stale > 0 && t.n_retried > 0);
}

static void test_no_wrong_text_when_ranks_with_checkpoints_fail(void **state)
{
    (void)state;
    struct totals t = soaks(true, true);
    assert_true(t.n_stale > 0 && t.n_retried > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_hold_what_is_believed),
        cmocka_unit_test(test_ranks_hold_what_is_believed_with_checkpoints),
        cmocka_unit_test(test_no_wrong_text_when_ranks_fail),
        cmocka_unit_test(test_no_wrong_text_when_ranks_with_checkpoints_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
