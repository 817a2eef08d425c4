/* SPDX-License-Identifier: MIT
 *
 * Even plans: first the smallest possible bound on a window's cost (bisection over the bound, with a greedy test),
 * then, by dynamic programming over block boundaries, the most even plan within that bound.
 */
#include "plan/plan.h"

#include "base/parse.h"
#include "base/text.h"
#include "plan/manifest.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_TEXT_SIZE 32

typedef unsigned __int128 wide; /* sums of squares of byte counts */

/* sum[i]: cost of the blocks before i; the head belongs to the last block. Ends at sum[n_block]. */
static enum err_code costs_sum(const struct model_sizes *s, uint64_t **out, struct err *e)
{
    uint64_t *sum = calloc((size_t)s->n_block + 1, sizeof *sum);
    if (!sum)
        return err_set(e, ERR_NOMEM, "out of memory for %u blocks", s->n_block);
    for (uint32_t i = 0; i < s->n_block; i++) {
        uint64_t cost = s->block_bytes[i], head = i + 1 == s->n_block ? s->head_bytes : 0;
        if (__builtin_add_overflow(cost, head, &cost) || __builtin_add_overflow(sum[i], cost, &sum[i + 1])) {
            free(sum);
            return err_set(e, ERR_RANGE, "the blocks' sizes add up to more than 2^64 bytes");
        }
    }
    *out = sum;
    return OK;
}

/* Can n blocks be cut into at most n_ranks windows of at most `bound` each? Fewer windows can always be cut further. */
static bool fits(const uint64_t *sum, uint32_t n, uint32_t n_ranks, uint64_t bound)
{
    uint32_t used = 0, first = 0;
    while (first < n) {
        uint32_t end = first;
        while (end < n && sum[end + 1] - sum[first] <= bound)
            end++;
        if (end == first || ++used > n_ranks)
            return false;
        first = end;
    }
    return true;
}

static uint64_t smallest_bound(const uint64_t *sum, uint32_t n, uint32_t n_ranks)
{
    uint64_t lo = 0, hi = sum[n]; /* hi always fits */
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (fits(sum, n, n_ranks, mid))
            hi = mid;
        else
            lo = mid + 1;
    }
    return hi;
}

/* best[i]: least sum of squares of cutting [i, n) into k + 1 windows within the bound, given next[] for k; cut[i]: the
 * earliest first cut that reaches it, 0 where there is none. */
static void even_row(const uint64_t *sum, uint32_t n, uint64_t bound, const wide *next, const uint32_t *next_cut,
                     wide *best, uint32_t *cut)
{
    for (uint32_t i = 0; i < n; i++) {
        cut[i] = 0;
        for (uint32_t end = i + 1; end < n && sum[end] - sum[i] <= bound; end++) {
            if (next_cut[end] == 0)
                continue;
            wide cost = sum[end] - sum[i], total = cost * cost + next[end];
            if (cut[i] == 0 || total < best[i]) {
                best[i] = total;
                cut[i] = end;
            }
        }
    }
}

static void windows_fill(const struct model_sizes *s, const uint64_t *sum, uint32_t n_ranks, struct plan_window *out)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        out[r].cost = sum[out[r].end] - sum[out[r].first];
        out[r].bytes = model_sizes_window(s, out[r].first, out[r].end);
    }
}

/* cuts: [n_ranks][n], row r for the plans of [i, n) on ranks r .. n_ranks - 1. */
static void even_search(const uint64_t *sum, uint32_t n, uint32_t n_ranks, uint32_t *cuts, wide *best, wide *next,
                        struct plan_window *out)
{
    uint64_t bound = smallest_bound(sum, n, n_ranks);
    for (uint32_t i = 0; i < n; i++) {
        wide cost = sum[n] - sum[i];
        next[i] = cost * cost;
        cuts[(size_t)(n_ranks - 1) * n + i] = cost <= bound ? n : 0;
    }
    for (uint32_t r = n_ranks - 1; r-- > 0;) {
        uint32_t *row = cuts + (size_t)r * n;
        even_row(sum, n, bound, next, row + n, best, row);
        wide *swap = best;
        best = next;
        next = swap;
    }
    for (uint32_t r = 0, first = 0; r < n_ranks; r++) {
        out[r].first = first;
        out[r].end = first = cuts[(size_t)r * n + first];
    }
}

enum err_code plan_even(const struct model_sizes *s, uint32_t n_ranks, struct plan_window *out, struct err *e)
{
    uint32_t n = s->n_block;
    uint64_t *sum = NULL;
    if (n == 0)
        return err_set(e, ERR_ARG, "the model has no blocks");
    if (n_ranks == 0 || n_ranks > MANIFEST_MAX_RANKS)
        return err_set(e, ERR_RANGE, "%u ranks, 1 to %u are allowed", n_ranks, MANIFEST_MAX_RANKS);
    if (n_ranks > n)
        return err_set(e, ERR_RANGE, "%u ranks, but the model has only %u blocks: each rank needs at least one",
                       n_ranks, n);
    enum err_code rc = costs_sum(s, &sum, e);
    if (rc != OK)
        return rc;
    uint32_t *cuts = calloc((size_t)n_ranks * n, sizeof *cuts);
    wide *best = calloc(2 * (size_t)n, sizeof *best);
    if (cuts && best) {
        even_search(sum, n, n_ranks, cuts, best, best + n, out);
        windows_fill(s, sum, n_ranks, out);
    } else {
        rc = err_set(e, ERR_NOMEM, "out of memory for a plan of %u ranks", n_ranks);
    }
    free(best);
    free(cuts);
    free(sum);
    return rc;
}

/* Number `rank` of the list, which begins at p and is n bytes long; it must begin where the one before ended. */
static enum err_code window_read(const char *p, size_t n, uint32_t rank, uint32_t at, uint32_t n_block,
                                 struct plan_window *out, struct err *e)
{
    char text[WINDOW_TEXT_SIZE];
    uint32_t first, end;
    text_clean(p, n, text, sizeof text);
    if (n >= sizeof text)
        return err_set(e, ERR_ARG, "window %u: \"%s...\" is not first:end", rank, text);
    enum err_code rc = parse_window(text, &first, &end, e);
    if (rc != OK) {
        err_prefix(e, "window %u", rank);
        return rc;
    }
    if (end > n_block)
        return err_set(e, ERR_RANGE, "window %u: %u:%u ends after the model's %u blocks", rank, first, end, n_block);
    if (first != at && rank == 0)
        return err_set(e, ERR_MISMATCH, "window gap: the first window begins at %u, not at 0", first);
    if (first != at)
        return err_set(e, ERR_MISMATCH, "window %s: window %u ends at %u, window %u begins at %u",
                       first > at ? "gap" : "overlap", rank - 1, at, rank, first);
    out->first = first;
    out->end = end;
    return OK;
}

static enum err_code layers_read(const char *text, uint32_t n_block, struct plan_window *w, uint32_t cap, uint32_t *n,
                                 struct err *e)
{
    uint32_t at = 0, i = 0;
    for (const char *p = text;; i++) {
        size_t len = strcspn(p, ",");
        if (i == cap)
            return err_set(e, ERR_LIMIT, "more than the %u windows that are allowed", cap);
        enum err_code rc = window_read(p, len, i, at, n_block, &w[i], e);
        if (rc != OK)
            return rc;
        at = w[i].end;
        if (p[len] == 0)
            break;
        p += len + 1;
    }
    if (at != n_block)
        return err_set(e, ERR_MISMATCH, "window gap: the last window ends at %u, the model has %u blocks", at, n_block);
    *n = i + 1;
    return OK;
}

enum err_code plan_layers(const char *text, const struct model_sizes *s, struct plan_window *out, uint32_t cap,
                          uint32_t *n_out, struct err *e)
{
    uint32_t max = cap < MANIFEST_MAX_RANKS ? cap : MANIFEST_MAX_RANKS, n = 0;
    uint64_t *sum = NULL;
    if (max == 0)
        return err_set(e, ERR_LIMIT, "no room for windows");
    struct plan_window *w = calloc(max, sizeof *w);
    enum err_code rc = w ? costs_sum(s, &sum, e) : err_set(e, ERR_NOMEM, "out of memory for %u windows", max);
    if (rc == OK)
        rc = layers_read(text, s->n_block, w, max, &n, e);
    if (rc == OK) {
        windows_fill(s, sum, n, w);
        memcpy(out, w, n * sizeof *w);
        *n_out = n;
    }
    free(sum);
    free(w);
    return rc;
}

/* What block b keeps for one sequence. Each factor product stays far below 2^128. */
static wide block_state_bytes(const struct hparams *h, uint32_t b, const struct plan_cache *c)
{
    if (h->kind[b] == BLOCK_RECURRENT) {
        wide delta = (wide)h->ssm.state * h->ssm.state * h->ssm.n_value;
        return (delta + (wide)(h->ssm.conv - 1) * hparams_conv_channels(h)) * sizeof(float);
    }
    wide row = (wide)h->n_head_kv[b] * ((uint64_t)h->head_dim_k + h->head_dim_v);
    return row * (h->kind[b] == BLOCK_WINDOW ? c->window_cells : c->n_ctx) * c->bytes32 / 32;
}

uint64_t plan_kv_bytes(const struct hparams *h, uint32_t first, uint32_t end, const struct plan_cache *c)
{
    wide total = 0;
    for (uint32_t b = first; b < end && b < h->n_block; b++)
        total += block_state_bytes(h, b, c);
    if (total > UINT64_MAX)
        return UINT64_MAX;
    total *= c->n_slots;
    return total > UINT64_MAX ? UINT64_MAX : (uint64_t)total;
}
