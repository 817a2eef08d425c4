/* SPDX-License-Identifier: MIT
 *
 * The sampler against distributions worked out by hand: each parameter alone, their order, errors, and repetition.
 * Draws are counter-based, so the statistical checks below always see the same numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "engine/sampler.h"
#include "lib/test_util.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_VOCAB 8

/* Everything off, temperature 1. */
static struct batch_sampling plain(void)
{
    return (struct batch_sampling){
        .seed = 7, .temperature = 1.0f, .top_p = 1.0f, .repeat_penalty = 1.0f, .penalty_last_n = 64};
}

/* Logits whose softmax is prob[]; a probability of 0 becomes -infinity. */
static void logits_of(const double *prob, size_t n, float *logits)
{
    for (size_t i = 0; i < n; i++)
        logits[i] = prob[i] > 0 ? (float)log(prob[i]) : -INFINITY;
}

static struct sampler *make(uint32_t n)
{
    struct sampler *s = NULL;
    struct err e;
    assert_int_equal(sampler_new(n, &s, &e), OK);
    return s;
}

static int32_t draw_one(struct sampler *s, const struct batch_sampling *p, const float *logits, const int32_t *history,
                        size_t n_history, uint32_t pos)
{
    struct batch_result r = {.token = -1, .logprob = 1};
    struct err e = {0};
    if (sampler_draw(s, p, logits, history, n_history, pos, &r, &e) != OK)
        fail_msg("%s", e.msg);
    assert_true(r.logprob <= 0);
    return r.token;
}

/* Draws n times at positions 0, 1, ... and compares the counts with n * expected by Pearson's statistic. With at most 7
 * degrees of freedom a right sampler exceeds 35 about once in 10^5 seeds; the seed is fixed. */
static void check_distribution(const struct batch_sampling *p, const float *logits, const double *expected,
                               const int32_t *history, size_t n_history)
{
    struct sampler *s = make(N_VOCAB);
    uint32_t count[N_VOCAB] = {0}, n = test_sanitized() ? 50000 : 100000;
    for (uint32_t pos = 0; pos < n; pos++)
        count[draw_one(s, p, logits, history, n_history, pos)]++;
    double chi2 = 0;
    for (size_t i = 0; i < N_VOCAB; i++) {
        double want = expected[i] * n;
        if (want == 0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        chi2 += (count[i] - want) * (count[i] - want) / want;
    }
    if (chi2 > 35)
        fail_msg("chi square is %g", chi2);
    sampler_free(s);
}

static const double prob[N_VOCAB] = {0.05, 0.30, 0.02, 0.25, 0.08, 0.20, 0.10, 0};

static void plain_softmax(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    check_distribution(&p, logits, prob, NULL, 0);
}

static void top_k_keeps_the_k_best(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.top_k = 3; /* 0.30 + 0.25 + 0.20 = 0.75 */
    const double want[N_VOCAB] = {0, 0.30 / 0.75, 0, 0.25 / 0.75, 0, 0.20 / 0.75, 0, 0};
    check_distribution(&p, logits, want, NULL, 0);
}

static void top_k_ties_keep_the_lower_ids(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {1, 2, 1, 1, 1, 2, 1, 1};
    struct batch_sampling p = plain();
    p.top_k = 3;
    double total = 2 * exp(1) + 1;
    const double want[N_VOCAB] = {1 / total, exp(1) / total, 0, 0, 0, exp(1) / total, 0, 0};
    check_distribution(&p, logits, want, NULL, 0);
}

static void top_p_keeps_the_smallest_prefix(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.top_p = 0.6f; /* 0.30 + 0.25 = 0.55 is not enough: a third one */
    const double want[N_VOCAB] = {0, 0.30 / 0.75, 0, 0.25 / 0.75, 0, 0.20 / 0.75, 0, 0};
    check_distribution(&p, logits, want, NULL, 0);
}

static void top_p_keeps_at_least_one(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.top_p = 1e-6f;
    const double want[N_VOCAB] = {0, 1};
    check_distribution(&p, logits, want, NULL, 0);
}

/* After top-k 3 the shares are 0.40, 0.33, 0.27: 0.72 is reached by two. Of the whole, 0.55 would not reach it. */
static void top_p_counts_what_top_k_left(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.top_k = 3;
    p.top_p = 0.72f;
    const double want[N_VOCAB] = {0, 0.30 / 0.55, 0, 0.25 / 0.55, 0, 0, 0, 0};
    check_distribution(&p, logits, want, NULL, 0);
}

static void min_p_is_relative_to_the_best(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.min_p = 0.3f; /* 0.30 * 0.3 = 0.09 */
    const double want[N_VOCAB] = {0, 0.30 / 0.85, 0, 0.25 / 0.85, 0, 0.20 / 0.85, 0.10 / 0.85, 0};
    check_distribution(&p, logits, want, NULL, 0);
}

static void temperature_flattens(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.temperature = 2;
    double want[N_VOCAB], total = 0;
    for (size_t i = 0; i < N_VOCAB; i++)
        total += sqrt(prob[i]);
    for (size_t i = 0; i < N_VOCAB; i++)
        want[i] = sqrt(prob[i]) / total;
    check_distribution(&p, logits, want, NULL, 0);
}

/* At temperature 2 the best two would hold less than half of the mass; truncation sees temperature 1 and keeps two. */
static void temperature_comes_after_truncation(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.temperature = 2;
    p.top_p = 0.54f;
    double a = sqrt(0.30), b = sqrt(0.25);
    const double want[N_VOCAB] = {0, a / (a + b), 0, b / (a + b), 0, 0, 0, 0};
    check_distribution(&p, logits, want, NULL, 0);
}

static void tiny_temperature_is_the_maximum(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.temperature = 1e-38f;
    const double want[N_VOCAB] = {0, 1};
    check_distribution(&p, logits, want, NULL, 0);
}

/* Logits 2 and -2 under a repeat penalty of 2: 1 and -4. Untouched ones stay. */
static void repeat_penalty_divides_or_multiplies(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {2, -2, 0.5f, -0.5f, -9, -9, -9, -9};
    const float after[N_VOCAB] = {1, -4, 0.5f, -0.5f, -9, -9, -9, -9};
    const int32_t history[] = {0, 1, 0};
    double want[N_VOCAB], total = 0;
    for (size_t i = 0; i < N_VOCAB; i++)
        total += want[i] = exp((double)after[i]);
    for (size_t i = 0; i < N_VOCAB; i++)
        want[i] /= total;
    struct batch_sampling p = plain();
    p.repeat_penalty = 2;
    check_distribution(&p, logits, want, history, 3);
}

/* Token 0 three times, token 1 once: 0.5 per occurrence and 0.25 once. */
static void frequency_and_presence_subtract(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {1, 1, 1, 0, 0, 0, 0, 0};
    const float after[N_VOCAB] = {1 - 1.75f, 1 - 0.75f, 1, 0, 0, 0, 0, 0};
    const int32_t history[] = {0, 1, 0, 0};
    double want[N_VOCAB], total = 0;
    for (size_t i = 0; i < N_VOCAB; i++)
        total += want[i] = exp((double)after[i]);
    for (size_t i = 0; i < N_VOCAB; i++)
        want[i] /= total;
    struct batch_sampling p = plain();
    p.frequency_penalty = 0.5f;
    p.presence_penalty = 0.25f;
    check_distribution(&p, logits, want, history, 4);
}

static void penalties_look_back_only_so_far(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {5, 4, 3, 0, 0, 0, 0, 0};
    const int32_t history[] = {0, 1, 2, 3};
    struct batch_sampling p = plain();
    p.temperature = 0;
    p.presence_penalty = 10;
    struct sampler *s = make(N_VOCAB);
    p.penalty_last_n = 0;
    assert_int_equal(draw_one(s, &p, logits, history, 4, 9), 0);
    p.penalty_last_n = 3; /* tokens 1, 2, 3 */
    assert_int_equal(draw_one(s, &p, logits, history, 4, 9), 0);
    p.penalty_last_n = 4;
    assert_int_equal(draw_one(s, &p, logits, history, 4, 9), 4);
    p.penalty_last_n = UINT32_MAX;
    assert_int_equal(draw_one(s, &p, logits, history, 4, 9), 4);
    assert_int_equal(draw_one(s, &p, logits, history, 1, 9), 1);
    assert_int_equal(draw_one(s, &p, logits, NULL, 0, 9), 0); /* nothing is left over from earlier calls */
    sampler_free(s);
}

static void penalties_change_what_top_k_keeps(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {5, 4, 3, 0, 0, 0, 0, 0};
    const int32_t history[] = {0};
    struct batch_sampling p = plain();
    p.top_k = 1;
    p.presence_penalty = 1.5f;
    const double want[N_VOCAB] = {0, 1};
    check_distribution(&p, logits, want, history, 1);
}

static void penalties_keep_huge_logits_finite(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {0, -FLT_MAX, 0, FLT_MAX, 0, 0, 0, -INFINITY};
    const int32_t history[] = {3, 1, 7};
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    p.repeat_penalty = 0.5f;
    assert_int_equal(draw_one(s, &p, logits, history, 3, 1), 3);
    p.repeat_penalty = 10;
    assert_int_equal(draw_one(s, &p, logits, history, 3, 1), 3);
    sampler_free(s);
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {-1, 3, 2, 3, 3, -INFINITY, 0, 3};
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    const float temperatures[] = {0, -0.0f, -1, -FLT_MAX};
    for (size_t i = 0; i < sizeof temperatures / sizeof *temperatures; i++) {
        p.temperature = temperatures[i];
        p.seed = i;
        assert_int_equal(draw_one(s, &p, logits, NULL, 0, (uint32_t)i), 1);
    }
    sampler_free(s);
}

static void greedy_of_very_negative_logits(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {-INFINITY, -FLT_MAX,  -INFINITY, -FLT_MAX,
                                   -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    p.temperature = 0;
    assert_int_equal(draw_one(s, &p, logits, NULL, 0, 0), 1);
    sampler_free(s);
}

static void logprob_is_of_the_raw_logits(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    struct batch_result r = {0};
    logits_of(prob, N_VOCAB, logits);
    for (size_t i = 0; i < N_VOCAB; i++)
        logits[i] += 100; /* a shift changes nothing */
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    struct err e;
    const int32_t history[] = {1};
    p.temperature = 0;
    p.presence_penalty = 5;
    assert_int_equal(sampler_draw(s, &p, logits, history, 1, 0, &r, &e), OK);
    assert_int_equal(r.token, 3);
    assert_true(fabs((double)r.logprob - log(0.25)) < 1e-4);
    p = plain();
    p.top_k = 1;
    p.temperature = 50;
    assert_int_equal(sampler_draw(s, &p, logits, NULL, 0, 0, &r, &e), OK);
    assert_int_equal(r.token, 1);
    assert_true(fabs((double)r.logprob - log(0.30)) < 1e-4);
    sampler_free(s);
}

static void logits_without_a_number_are_refused(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY};
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    for (int greedy = 0; greedy < 2; greedy++) {
        p.temperature = greedy ? 0.0f : 1.0f;
        for (size_t i = 0; i < 2; i++) {
            float logits[N_VOCAB] = {0};
            struct batch_result r = {.token = -7, .logprob = 9};
            struct err e = {0};
            logits[N_VOCAB - 1] = bad[i];
            assert_int_equal(sampler_draw(s, &p, logits, NULL, 0, 33, &r, &e), ERR_NUMERIC);
            assert_int_equal(r.token, -7);
            assert_true(r.logprob == 9.0f);
            assert_non_null(strstr(e.msg, "token 7"));
            assert_non_null(strstr(e.msg, "position 33"));
        }
        float logits[N_VOCAB];
        struct batch_result r = {.token = -7};
        for (size_t i = 0; i < N_VOCAB; i++)
            logits[i] = -INFINITY;
        assert_int_equal(sampler_draw(s, &p, logits, NULL, 0, 0, &r, NULL), ERR_NUMERIC);
        logits[4] = -3;
        assert_int_equal(draw_one(s, &p, logits, NULL, 0, 0), 4);
    }
    sampler_free(s);
}

static void history_outside_the_vocabulary_is_refused(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {5, 4, 3, 0, 0, 0, 0, 0};
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    struct batch_result r = {.token = -7};
    int32_t history[] = {0, -1, N_VOCAB, 1};
    struct err e;
    p.temperature = 0;
    p.presence_penalty = 10;
    assert_int_equal(sampler_draw(s, &p, logits, history, 4, 0, &r, &e), ERR_RANGE);
    assert_int_equal(sampler_draw(s, &p, logits, history, 3, 0, &r, &e), ERR_RANGE);
    assert_int_equal(r.token, -7);
    assert_int_equal(draw_one(s, &p, logits, history, 1, 0), 1);
    p.penalty_last_n = 1; /* the bad ones are out of sight; nothing of the failed calls is left */
    assert_int_equal(draw_one(s, &p, logits, history, 4, 0), 0);
    sampler_free(s);
}

static void logits_are_not_changed(void **state)
{
    (void)state;
    float logits[N_VOCAB], before[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    memcpy(before, logits, sizeof logits);
    const int32_t history[] = {1, 3};
    struct batch_sampling p = plain();
    p.repeat_penalty = 1.5f;
    p.top_k = 4;
    p.top_p = 0.9f;
    p.min_p = 0.01f;
    p.temperature = 0.7f;
    struct sampler *s = make(N_VOCAB);
    draw_one(s, &p, logits, history, 2, 5);
    assert_memory_equal(logits, before, sizeof logits);
    sampler_free(s);
}

/* Another sampler, in another order, draws the same token at the same position; another seed does not always. */
static void replay_draws_the_same(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    int32_t first[200];
    struct sampler *s = make(N_VOCAB);
    for (uint32_t pos = 0; pos < 200; pos++)
        first[pos] = draw_one(s, &p, logits, NULL, 0, pos);
    sampler_free(s);
    s = make(N_VOCAB);
    for (uint32_t pos = 200; pos-- > 0;)
        assert_int_equal(draw_one(s, &p, logits, NULL, 0, pos), first[pos]);
    p.seed++;
    size_t n_other = 0;
    for (uint32_t pos = 0; pos < 200; pos++)
        n_other += draw_one(s, &p, logits, NULL, 0, pos) != first[pos];
    assert_true(n_other > 100);
    sampler_free(s);
}

static int by_logit(const void *pa, const void *pb, void *arg)
{
    const float *logits = arg;
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    if (logits[a] != logits[b])
        return logits[a] < logits[b] ? 1 : -1;
    return a < b ? -1 : 1;
}

/* The same chain by sorting everything: what the partial selections have to agree with. */
static int32_t draw_by_sorting(const struct batch_sampling *p, float *logits, uint32_t n_vocab, uint32_t pos)
{
    int32_t *id = calloc(n_vocab, sizeof *id);
    size_t n = n_vocab, i = 0;
    for (uint32_t k = 0; k < n_vocab; k++)
        id[k] = (int32_t)k;
    qsort_r(id, n, sizeof *id, by_logit, logits);
    if (p->top_k > 0 && (size_t)p->top_k < n)
        n = (size_t)p->top_k;
    double max = (double)logits[id[0]], total = 0, sum = 0;
    for (i = 0; i < n; i++)
        total += exp((double)logits[id[i]] - max);
    for (i = 0; i < n && (i == 0 || sum < (double)p->top_p * total); i++)
        sum += exp((double)logits[id[i]] - max);
    n = p->top_p < 1.0f ? i : n;
    while (p->min_p > 0 && (double)logits[id[n - 1]] < max + log((double)p->min_p))
        n--;
    for (i = 0, total = 0; i < n; i++)
        total += exp(((double)logits[id[i]] - max) / (double)p->temperature);
    double u = hash_uniform(p->seed, pos) * total;
    for (i = 0, sum = 0; i + 1 < n; i++)
        if ((sum += exp(((double)logits[id[i]] - max) / (double)p->temperature)) > u)
            break;
    int32_t token = id[i];
    free(id);
    return token;
}

static void large_vocabularies_agree_with_a_full_sort(void **state)
{
    (void)state;
    enum { n_vocab = 5003 };
    float *logits = calloc(n_vocab, sizeof *logits);
    struct sampler *s = make(n_vocab);
    struct batch_sampling p = plain();
    const int32_t top_ks[] = {0, 1, 40, 5002, 9000};
    const float top_ps[] = {0.3f, 0.95f, 0.9999f};
    const float min_ps[] = {0, 0.05f};
    uint32_t pos = 0;
    for (uint64_t seed = 0; seed < 3; seed++) {
        for (uint32_t i = 0; i < n_vocab; i++) /* few distinct values: many ties */
            logits[i] = (float)floor(40 * hash_uniform(seed, i)) * 0.25f;
        for (size_t a = 0; a < 5; a++)
            for (size_t b = 0; b < 3; b++)
                for (size_t c = 0; c < 2; c++) {
                    p.top_k = top_ks[a];
                    p.top_p = top_ps[b];
                    p.min_p = min_ps[c];
                    p.temperature = 0.8f;
                    for (int k = 0; k < 4; k++, pos++)
                        assert_int_equal(draw_one(s, &p, logits, NULL, 0, pos),
                                         draw_by_sorting(&p, logits, n_vocab, pos));
                }
    }
    free(logits);
    sampler_free(s);
}

static void parameters_are_checked(void **state)
{
    (void)state;
    struct err e;
    struct batch_sampling p = plain();
    assert_int_equal(sampler_check(&p, N_VOCAB, &e), OK);
#define BAD(field, value)                                                                                              \
    do {                                                                                                               \
        p = plain();                                                                                                   \
        p.field = (value);                                                                                             \
        assert_int_equal(sampler_check(&p, N_VOCAB, &e), ERR_ARG);                                                     \
        assert_non_null(strstr(e.msg, #field));                                                                        \
    } while (0)
#define GOOD(field, value)                                                                                             \
    do {                                                                                                               \
        p = plain();                                                                                                   \
        p.field = (value);                                                                                             \
        assert_int_equal(sampler_check(&p, N_VOCAB, &e), OK);                                                          \
    } while (0)
    BAD(temperature, NAN);
    BAD(temperature, 100.5f);
    BAD(temperature, INFINITY);
    BAD(temperature, -INFINITY);
    GOOD(temperature, -3);
    GOOD(temperature, 100);
    BAD(top_p, 0);
    BAD(top_p, 1.01f);
    BAD(top_p, NAN);
    GOOD(top_p, 1e-9f);
    BAD(min_p, -0.1f);
    BAD(min_p, 1.1f);
    BAD(min_p, NAN);
    GOOD(min_p, 1);
    BAD(repeat_penalty, 0);
    BAD(repeat_penalty, 10.1f);
    BAD(repeat_penalty, NAN);
    GOOD(repeat_penalty, 10);
    BAD(frequency_penalty, -10.1f);
    BAD(frequency_penalty, 10.1f);
    BAD(frequency_penalty, NAN);
    BAD(presence_penalty, -10.1f);
    BAD(presence_penalty, 10.1f);
    BAD(presence_penalty, NAN);
    GOOD(top_k, -1);
    GOOD(top_k, INT32_MAX);
#undef BAD
#undef GOOD
}

static void drawing_checks_the_parameters_too(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {0};
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    struct batch_result r = {.token = -7};
    p.top_p = 0;
    assert_int_equal(sampler_draw(s, &p, logits, NULL, 0, 0, &r, NULL), ERR_ARG);
    assert_int_equal(r.token, -7);
    sampler_free(s);
}

/* --- biases, and the likeliest tokens --- */

static void bias_shifts_the_distribution(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    logits_of(prob, N_VOCAB, logits);
    struct batch_sampling p = plain();
    p.n_bias = 4; /* twice on the same token: they add up to ln 3 */
    p.bias[0] = (struct batch_bias){1, (float)log(1.5)};
    p.bias[1] = (struct batch_bias){1, (float)log(2)};
    p.bias[2] = (struct batch_bias){3, -INFINITY};
    p.bias[3] = (struct batch_bias){7, 50}; /* what is impossible stays so */
    double total = 1 + 2 * 0.30 - 0.25;
    const double want[N_VOCAB] = {0.05 / total, 0.90 / total, 0.02 / total, 0,
                                  0.08 / total, 0.20 / total, 0.10 / total};
    check_distribution(&p, logits, want, NULL, 0);
}

static void bias_comes_before_penalties_and_truncation(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {5, 4, 3, 0, 0, 0, 0, 0};
    const int32_t history[] = {4};
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    p.n_bias = 1;
    p.bias[0] = (struct batch_bias){4, 8};
    p.top_k = 1;
    assert_int_equal(draw_one(s, &p, logits, history, 1, 0), 4);
    p.repeat_penalty = 1.5f; /* (0 + 8) / 1.5 is above 5 */
    assert_int_equal(draw_one(s, &p, logits, history, 1, 0), 4);
    p.repeat_penalty = 2; /* (0 + 8) / 2 is not; 0 / 2 + 8 would be */
    assert_int_equal(draw_one(s, &p, logits, history, 1, 0), 0);
    p.n_bias = 0; /* nothing is left over */
    p.repeat_penalty = 1;
    assert_int_equal(draw_one(s, &p, logits, history, 1, 0), 0);
    sampler_free(s);
}

static void bias_counts_under_greedy(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {5, 4, 3, 0, 0, 0, 0, 0};
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    p.temperature = 0;
    p.n_bias = 2;
    p.bias[0] = (struct batch_bias){0, -INFINITY};
    p.bias[1] = (struct batch_bias){2, 2};
    assert_int_equal(draw_one(s, &p, logits, NULL, 0, 0), 2);
    p.bias[1] = (struct batch_bias){0, 100}; /* never is never */
    assert_int_equal(draw_one(s, &p, logits, NULL, 0, 0), 1);
    p.bias[0] = (struct batch_bias){1, FLT_MAX};
    p.bias[1] = (struct batch_bias){1, FLT_MAX};
    assert_int_equal(draw_one(s, &p, logits, NULL, 0, 0), 1);
    sampler_free(s);
}

static void biases_that_leave_nothing(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {-INFINITY, 1, 2, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    struct sampler *s = make(N_VOCAB);
    for (int greedy = 0; greedy < 2; greedy++) {
        struct batch_sampling p = plain();
        struct batch_result r = {.token = -7};
        struct err e;
        p.temperature = greedy ? 0.0f : 1.0f;
        p.n_bias = 2;
        p.bias[0] = (struct batch_bias){1, -INFINITY};
        p.bias[1] = (struct batch_bias){2, -INFINITY};
        assert_int_equal(sampler_draw(s, &p, logits, NULL, 0, 5, &r, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "position 5"));
        assert_int_equal(r.token, -7);
        p.n_bias = 0;
        draw_one(s, &p, logits, NULL, 0, 5);
    }
    sampler_free(s);
}

/* Of the raw logits, whatever biases, penalties and truncation make of them. */
static void likeliest_tokens_best_first(void **state)
{
    (void)state;
    const float logits[N_VOCAB] = {1, 3, 2, 3, -INFINITY, 2, 0, 3};
    const int32_t best[] = {1, 3, 7, 2, 5, 0, 6}; /* the lower id first among equals */
    const int32_t history[] = {1, 1, 3};
    double total = 3 * exp(3) + 2 * exp(2) + exp(1) + 1;
    struct batch_sampling p = plain();
    struct sampler *s = make(N_VOCAB);
    struct err e;
    p.presence_penalty = 5;
    p.top_k = 1;
    p.n_bias = 1;
    p.bias[0] = (struct batch_bias){6, 90};
    for (uint32_t n = 0; n <= BATCH_MAX_TOP; n++) {
        struct batch_result r = {.request_id = 77, .slot = 3, .pos = 9, .n_top = 99};
        p.n_top = n;
        assert_int_equal(sampler_draw(s, &p, logits, history, 3, 0, &r, &e), OK);
        assert_int_equal(r.token, 6);
        assert_true(fabs((double)r.logprob + log(total)) < 1e-5);
        assert_int_equal(r.n_top, n < 7 ? n : 7); /* one is impossible */
        for (uint32_t i = 0; i < r.n_top; i++) {
            assert_int_equal(r.top[i].token, best[i]);
            assert_true(fabs((double)r.top[i].logprob - ((double)logits[best[i]] - log(total))) < 1e-5);
        }
        assert_true(r.request_id == 77 && r.slot == 3 && r.pos == 9);
    }
    sampler_free(s);
}

static void lists_are_checked(void **state)
{
    (void)state;
    struct err e;
    struct batch_sampling p = plain();
    p.n_top = BATCH_MAX_TOP;
    p.n_bias = BATCH_MAX_BIAS;
    for (uint32_t i = 0; i < p.n_bias; i++)
        p.bias[i] = (struct batch_bias){(int32_t)(i % N_VOCAB), -INFINITY};
    assert_int_equal(sampler_check(&p, N_VOCAB, &e), OK);
    p.n_top++;
    assert_int_equal(sampler_check(&p, N_VOCAB, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "n_top"));
    p.n_top = 0;
    p.n_bias++; /* nothing beyond the array is read */
    assert_int_equal(sampler_check(&p, N_VOCAB, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "n_bias"));
    p.n_bias = 2;
    const struct batch_bias bad[] = {{-1, 0}, {N_VOCAB, 0}, {3, NAN}, {3, INFINITY}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p.bias[1] = bad[i];
        assert_int_equal(sampler_check(&p, N_VOCAB, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "bias of token"));
    }
}

static void an_empty_vocabulary_is_refused(void **state)
{
    (void)state;
    struct sampler *s = NULL;
    struct err e;
    assert_int_equal(sampler_new(0, &s, &e), ERR_ARG);
    assert_null(s);
    sampler_free(NULL);
}

static void a_vocabulary_of_one(void **state)
{
    (void)state;
    const float logits[1] = {-4};
    struct batch_sampling p = plain();
    struct sampler *s = make(1);
    p.top_k = 1;
    p.top_p = 0.5f;
    assert_int_equal(draw_one(s, &p, logits, NULL, 0, 0), 0);
    p.temperature = 0;
    assert_int_equal(draw_one(s, &p, logits, NULL, 0, 0), 0);
    sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_softmax),
        cmocka_unit_test(top_k_keeps_the_k_best),
        cmocka_unit_test(top_k_ties_keep_the_lower_ids),
        cmocka_unit_test(top_p_keeps_the_smallest_prefix),
        cmocka_unit_test(top_p_keeps_at_least_one),
        cmocka_unit_test(top_p_counts_what_top_k_left),
        cmocka_unit_test(min_p_is_relative_to_the_best),
        cmocka_unit_test(temperature_flattens),
        cmocka_unit_test(temperature_comes_after_truncation),
        cmocka_unit_test(tiny_temperature_is_the_maximum),
        cmocka_unit_test(repeat_penalty_divides_or_multiplies),
        cmocka_unit_test(frequency_and_presence_subtract),
        cmocka_unit_test(penalties_look_back_only_so_far),
        cmocka_unit_test(penalties_change_what_top_k_keeps),
        cmocka_unit_test(penalties_keep_huge_logits_finite),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(greedy_of_very_negative_logits),
        cmocka_unit_test(logprob_is_of_the_raw_logits),
        cmocka_unit_test(logits_without_a_number_are_refused),
        cmocka_unit_test(history_outside_the_vocabulary_is_refused),
        cmocka_unit_test(logits_are_not_changed),
        cmocka_unit_test(replay_draws_the_same),
        cmocka_unit_test(large_vocabularies_agree_with_a_full_sort),
        cmocka_unit_test(parameters_are_checked),
        cmocka_unit_test(drawing_checks_the_parameters_too),
        cmocka_unit_test(bias_shifts_the_distribution),
        cmocka_unit_test(bias_comes_before_penalties_and_truncation),
        cmocka_unit_test(bias_counts_under_greedy),
        cmocka_unit_test(biases_that_leave_nothing),
        cmocka_unit_test(likeliest_tokens_best_first),
        cmocka_unit_test(lists_are_checked),
        cmocka_unit_test(an_empty_vocabulary_is_refused),
        cmocka_unit_test(a_vocabulary_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
