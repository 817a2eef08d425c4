/* SPDX-License-Identifier: MIT
 *
 * The sampling chain. Candidates are {logit, id} pairs in scratch memory of the sampler; a total order (larger logit,
 * then lower id) makes every step deterministic. Nothing sorts the whole vocabulary: top-k keeps a heap of k, top-p
 * pops a heap until the mass is reached. Sums are in double.
 */
#include "engine/sampler.h"

#include "base/hash.h"
#include "engine/logits.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

struct cand {
    float logit;
    int32_t id;
};

struct sampler {
    uint32_t n_vocab;
    struct cand *cand; /* [n_vocab] */
    struct shift {
        uint32_t count; /* occurrences in the penalty window */
        float bias;
    } *shift; /* [n_vocab]; all zero between calls */
};

enum err_code sampler_new(uint32_t n_vocab, struct sampler **out, struct err *e)
{
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return err_set(e, ERR_ARG, "a sampler needs 1 to %d tokens in the vocabulary, not %u", INT32_MAX, n_vocab);
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for a sampler");
    s->n_vocab = n_vocab;
    s->cand = calloc(n_vocab, sizeof *s->cand);
    s->shift = calloc(n_vocab, sizeof *s->shift);
    if (!s->cand || !s->shift) {
        sampler_free(s);
        return err_set(e, ERR_NOMEM, "no memory to sample from %u tokens", n_vocab);
    }
    *out = s;
    return OK;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->cand);
    free(s->shift);
    free(s);
}

static enum err_code lists_check(const struct batch_sampling *p, uint32_t n_vocab, struct err *e)
{
    if (p->n_top > BATCH_MAX_TOP)
        return err_set(e, ERR_ARG, "n_top is %u; at most %u likeliest tokens can be reported", p->n_top, BATCH_MAX_TOP);
    if (p->n_bias > BATCH_MAX_BIAS)
        return err_set(e, ERR_ARG, "n_bias is %u; at most %u tokens can have a bias", p->n_bias, BATCH_MAX_BIAS);
    for (uint32_t i = 0; i < p->n_bias; i++) {
        const struct batch_bias *b = &p->bias[i];
        if (b->token < 0 || (uint32_t)b->token >= n_vocab)
            return err_set(e, ERR_ARG, "bias of token %d, which is not in the vocabulary of %u", b->token, n_vocab);
        if (!(b->bias < INFINITY))
            return err_set(e, ERR_ARG, "the bias of token %d is %g; it must be a number, or -infinity to never draw it",
                           b->token, (double)b->bias);
    }
    return OK;
}

enum err_code sampler_check(const struct batch_sampling *p, uint32_t n_vocab, struct err *e)
{
    /* Written so that NaN fails each comparison. */
    if (!(p->temperature <= 100.0f && p->temperature >= -FLT_MAX))
        return err_set(e, ERR_ARG, "temperature is %g; it must be at most 100 (0 or less: greedy)",
                       (double)p->temperature);
    if (!(p->top_p > 0.0f && p->top_p <= 1.0f))
        return err_set(e, ERR_ARG, "top_p is %g; it must be above 0 and at most 1 (1: off)", (double)p->top_p);
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return err_set(e, ERR_ARG, "min_p is %g; it must be 0 to 1 (0: off)", (double)p->min_p);
    if (!(p->repeat_penalty > 0.0f && p->repeat_penalty <= 10.0f))
        return err_set(e, ERR_ARG, "repeat_penalty is %g; it must be above 0 and at most 10 (1: off)",
                       (double)p->repeat_penalty);
    if (!(p->frequency_penalty >= -10.0f && p->frequency_penalty <= 10.0f))
        return err_set(e, ERR_ARG, "frequency_penalty is %g; it must be -10 to 10 (0: off)",
                       (double)p->frequency_penalty);
    if (!(p->presence_penalty >= -10.0f && p->presence_penalty <= 10.0f))
        return err_set(e, ERR_ARG, "presence_penalty is %g; it must be -10 to 10 (0: off)",
                       (double)p->presence_penalty);
    return lists_check(p, n_vocab, e);
}

/* --- biases and penalties --- */

/* The tokens the penalties look at: the last penalty_last_n of the history, none when all penalties are off. */
static size_t penalty_window(const struct batch_sampling *p, size_t n_history)
{
    if (p->repeat_penalty == 1.0f && p->frequency_penalty == 0.0f && p->presence_penalty == 0.0f)
        return 0;
    return n_history < p->penalty_last_n ? n_history : p->penalty_last_n;
}

static float in_range(double x)
{
    return (float)fmin(fmax(x, -(double)FLT_MAX), (double)FLT_MAX);
}

/* The logit of token i after its bias and the penalties; what is finite stays finite. */
static float shifted(const struct sampler *s, const struct batch_sampling *p, const float *logits, uint32_t i)
{
    const struct shift *h = &s->shift[i];
    float raw = logits[i];
    if (h->bias != 0.0f && raw != -INFINITY && h->bias != -INFINITY)
        raw = in_range((double)raw + (double)h->bias);
    else if (h->bias == -INFINITY)
        raw = -INFINITY;
    if (h->count == 0 || raw == -INFINITY)
        return raw;
    double x = raw > 0.0f ? (double)raw / (double)p->repeat_penalty : (double)raw * (double)p->repeat_penalty;
    x -= (double)h->count * (double)p->frequency_penalty + (double)p->presence_penalty;
    return in_range(x);
}

static void shift_all(struct sampler *s, const struct batch_sampling *p, const int32_t *window, size_t n_window)
{
    for (size_t i = 0; i < n_window; i++)
        s->shift[window[i]].count++;
    for (uint32_t i = 0; i < p->n_bias; i++) {
        struct shift *h = &s->shift[p->bias[i].token];
        if (h->bias == -INFINITY || p->bias[i].bias == -INFINITY)
            h->bias = -INFINITY;
        else
            h->bias = in_range((double)h->bias + (double)p->bias[i].bias);
    }
}

static void shift_none(struct sampler *s, const struct batch_sampling *p, const int32_t *window, size_t n_window)
{
    for (size_t i = 0; i < n_window; i++)
        s->shift[window[i]].count = 0;
    for (uint32_t i = 0; i < p->n_bias; i++)
        s->shift[p->bias[i].token].bias = 0;
}

/* --- candidates --- */

static bool better(struct cand a, struct cand b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* A binary heap whose root is the worst (min) or the best candidate. */
static bool above(struct cand a, struct cand b, bool root_worst)
{
    return root_worst ? better(b, a) : better(a, b);
}

static void sift_down(struct cand *h, size_t n, size_t i, bool root_worst)
{
    struct cand x = h[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && above(h[child + 1], h[child], root_worst))
            child++;
        if (!above(h[child], x, root_worst))
            break;
        h[i] = h[child];
        i = child;
    }
    h[i] = x;
}

static void heapify(struct cand *h, size_t n, bool root_worst)
{
    for (size_t i = n / 2; i-- > 0;)
        sift_down(h, n, i, root_worst);
}

/* Moves the root behind the heap's new end, as heapsort does. */
static void pop(struct cand *h, size_t n, bool root_worst)
{
    struct cand root = h[0];
    h[0] = h[n - 1];
    h[n - 1] = root;
    sift_down(h, n - 1, 0, root_worst);
}

/* All tokens that are possible at all, in the order of their ids. */
static size_t fill_all(struct sampler *s, const struct batch_sampling *p, const float *logits)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        float x = shifted(s, p, logits, i);
        if (x > -INFINITY)
            s->cand[n++] = (struct cand){x, (int32_t)i};
    }
    return n;
}

/* The k best, best first; p NULL: of the raw logits. */
static size_t fill_top_k(struct sampler *s, const struct batch_sampling *p, const float *logits, size_t k)
{
    struct cand *c = s->cand;
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        struct cand x = {p ? shifted(s, p, logits, i) : logits[i], (int32_t)i};
        if (x.logit == -INFINITY)
            continue;
        if (n < k) {
            c[n++] = x;
            if (n == k)
                heapify(c, n, true);
        } else if (better(x, c[0])) {
            c[0] = x;
            sift_down(c, n, 0, true);
        }
    }
    if (n < k)
        heapify(c, n, true);
    for (size_t left = n; left > 1; left--)
        pop(c, left, true);
    return n;
}

static float max_logit(const struct cand *c, size_t n)
{
    float max = c[0].logit;
    for (size_t i = 1; i < n; i++)
        max = c[i].logit > max ? c[i].logit : max;
    return max;
}

/* Keeps the smallest set of best candidates that has at least the share top_p of the mass, best first. */
static size_t cut_top_p(struct cand *c, size_t n, bool sorted, double top_p)
{
    float max = max_logit(c, n);
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        total += exp((double)c[i].logit - (double)max);
    size_t kept = 0;
    if (sorted) {
        while (kept < n && (kept == 0 || sum < top_p * total))
            sum += exp((double)c[kept++].logit - (double)max);
        return kept;
    }
    heapify(c, n, false);
    while (kept < n && (kept == 0 || sum < top_p * total)) {
        sum += exp((double)c[0].logit - (double)max);
        pop(c, n - kept, false);
        kept++;
    }
    /* The best now lie at the array's end, best last. Bring them to the front, best first. */
    for (size_t i = 0, j = n; i < kept && i + 1 < j; i++) {
        struct cand t = c[i];
        c[i] = c[--j];
        c[j] = t;
    }
    return kept;
}

/* Keeps candidates at least min_p times as probable as the best one; the order stays. */
static size_t cut_min_p(struct cand *c, size_t n, double min_p)
{
    double least = (double)max_logit(c, n) + log(min_p);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if ((double)c[i].logit >= least)
            c[kept++] = c[i];
    return kept;
}

/* The candidate in whose share of the mass the number u of [0, 1) falls. */
static int32_t draw(const struct cand *c, size_t n, double temperature, double u)
{
    double max = (double)max_logit(c, n), total = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        total += exp(((double)c[i].logit - max) / temperature);
    int32_t last = c[0].id;
    for (size_t i = 0; i < n; i++) {
        double share = exp(((double)c[i].logit - max) / temperature);
        sum += share;
        if (sum > u * total)
            return c[i].id;
        if (share > 0)
            last = c[i].id;
    }
    return last; /* u * total was rounded up to the total */
}

/* -1: no token is left. */
static int32_t pick_random(struct sampler *s, const struct batch_sampling *p, const float *logits, double u)
{
    size_t n;
    bool sorted = p->top_k > 0 && (uint32_t)p->top_k < s->n_vocab;
    if (sorted)
        n = fill_top_k(s, p, logits, (size_t)p->top_k);
    else
        n = fill_all(s, p, logits);
    if (n == 0)
        return -1;
    if (p->top_p < 1.0f)
        n = cut_top_p(s->cand, n, sorted, (double)p->top_p);
    if (p->min_p > 0.0f)
        n = cut_min_p(s->cand, n, (double)p->min_p);
    return draw(s->cand, n, (double)p->temperature, u);
}

/* The first token with the largest logit. raw: nothing shifts any, so that it is known to be raw_max. */
static int32_t pick_greedy(const struct sampler *s, const struct batch_sampling *p, const float *logits, bool raw,
                           float raw_max)
{
    for (uint32_t i = 0; raw && i < s->n_vocab; i++) {
        if (logits[i] == raw_max)
            return (int32_t)i;
    }
    int32_t best = -1;
    float max = -INFINITY;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        float x = shifted(s, p, logits, i);
        if (x > max) {
            max = x;
            best = (int32_t)i;
        }
    }
    return best;
}

/* --- the whole --- */

/* Finds the largest raw logit; refuses what is not a number one can sample from. */
static enum err_code scan(const struct sampler *s, const float *logits, uint32_t pos, float *max, struct err *e)
{
    *max = logits_max(logits, s->n_vocab);
    if (*max == -INFINITY)
        return err_set(e, ERR_NUMERIC, "all logits at position %u are -infinity; at least one must be finite", pos);
    for (uint32_t i = 0; isnan(*max) && i < s->n_vocab; i++) {
        if (!(logits[i] < INFINITY))
            return err_set(e, ERR_NUMERIC, "the logit of token %u at position %u is %s; it must be finite", i, pos,
                           isnan(logits[i]) ? "not a number" : "+infinity");
    }
    return OK;
}

/* What to subtract from a raw logit to get the token's log probability. */
static double log_total(const struct sampler *s, const float *logits, float max)
{
    return (double)max + log(logits_sum_exp(logits, s->n_vocab, max));
}

static void report(struct sampler *s, uint32_t n_top, const float *logits, float max, int32_t token,
                   struct batch_result *out)
{
    double total = log_total(s, logits, max);
    uint32_t n = n_top < s->n_vocab ? n_top : s->n_vocab;
    out->token = token;
    out->logprob = (float)((double)logits[token] - total);
    out->n_top = n ? (uint32_t)fill_top_k(s, NULL, logits, n) : 0;
    for (uint32_t i = 0; i < out->n_top; i++)
        out->top[i] = (struct batch_top){s->cand[i].id, (float)((double)s->cand[i].logit - total)};
}

enum err_code sampler_draw(struct sampler *s, const struct batch_sampling *p, const float *logits,
                           const int32_t *history, size_t n_history, uint32_t pos, struct batch_result *out,
                           struct err *e)
{
    float max = 0;
    enum err_code rc = sampler_check(p, s->n_vocab, e);
    if (rc == OK)
        rc = scan(s, logits, pos, &max, e);
    if (rc != OK)
        return rc;

    size_t n_window = penalty_window(p, n_history);
    const int32_t *window = n_window ? history + (n_history - n_window) : NULL;
    for (size_t i = 0; i < n_window; i++)
        if (window[i] < 0 || (uint32_t)window[i] >= s->n_vocab)
            return err_set(e, ERR_RANGE, "token %d of the history is not in the vocabulary of %u", window[i],
                           s->n_vocab);

    shift_all(s, p, window, n_window);
    int32_t id = p->temperature <= 0.0f ? pick_greedy(s, p, logits, n_window == 0 && p->n_bias == 0, max)
                                        : pick_random(s, p, logits, hash_uniform(p->seed, pos));
    shift_none(s, p, window, n_window);
    if (id < 0)
        return err_set(e, ERR_ARG, "the request's biases leave no token for position %u", pos);
    report(s, p->n_top, logits, max, id, out);
    return OK;
}
