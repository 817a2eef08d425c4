/* SPDX-License-Identifier: MIT
 *
 * Cutting special tokens out of a text. The rule is "longest text first": every place where the longest special token
 * stands is cut out, then the next shorter one in what is left, and so on (architectures.md E).
 *
 * Doing just that would walk the text once per token, and some vocabularies have thousands. Instead each place of the
 * text enters a queue with the longest token found there; a place that turns out to be overlapped on its right comes
 * back with a shorter one. What was taken before is never shorter than what is asked about, so an overlap shows at the
 * first or the last byte.
 */
#include "tok/vocab.h"

#include <stdlib.h>
#include <string.h>

/* What is known of each byte of the text: how far the span it is in is trusted, and whether a token covers it. */
enum { TRUST_CONTENT = 0, TRUST_PLAIN = 1, TRUST_TEMPLATE = 2, TRUST_MASK = 3, TAKEN = 4 };

struct splitter {
    const struct tok *t;
    const uint8_t *text;
    uint32_t len;
    uint8_t *mark; /* [len] */
    struct queue queue;
    struct vocab_cut *cut;
    size_t n_cuts, cap_cuts;
};

/* May this token stand at pos? Each byte under it has to be trusted enough, so that no message completes a token that
 * a template begins. */
static bool is_wanted(const struct splitter *s, uint32_t pos, const struct vocab_special *x)
{
    uint8_t need = x->in_content ? TRUST_CONTENT : x->in_plain_text ? TRUST_PLAIN : TRUST_TEMPLATE;
    for (uint32_t i = 0; need > TRUST_CONTENT && i < x->len; i++)
        if ((s->mark[pos + i] & TRUST_MASK) < need)
            return false;
    return true;
}

/* The longest special token at pos, at most max bytes long. */
static const struct vocab_special *longest_at(const struct splitter *sp, uint32_t pos, size_t max)
{
    const struct tok *t = sp->t;
    const uint8_t *p = sp->text + pos;
    const struct vocab_special *best = NULL;
    size_t first = t->special_first[p[0]], end = t->special_first[p[0] + 1];
    for (size_t depth = 1; first < end && depth <= max; depth++) {
        /* All of [first, end) begin with p[0 .. depth); those that end here come first. */
        for (; first < end && t->special[first].len == depth; first++) {
            const struct vocab_special *s = &t->special[first];
            if ((!best || best->len < depth) && is_wanted(sp, pos, s))
                best = s;
        }
        if (depth == max)
            break;
        size_t low = first, high = end; /* the first whose next byte is not below p[depth] */
        while (low < high) {
            size_t mid = low + (high - low) / 2;
            if (t->special[mid].text[depth] < p[depth])
                low = mid + 1;
            else
                high = mid;
        }
        first = low;
        for (high = end; low < high;) { /* the first whose next byte is above it */
            size_t mid = low + (high - low) / 2;
            if (t->special[mid].text[depth] <= p[depth])
                low = mid + 1;
            else
                high = mid;
        }
        end = low;
    }
    return best;
}

static int by_pos(const void *pa, const void *pb)
{
    const struct vocab_cut *a = pa, *b = pb;
    return a->pos < b->pos ? -1 : a->pos > b->pos;
}

static bool enqueue(struct splitter *s, uint32_t pos, size_t max)
{
    const struct vocab_special *x = longest_at(s, pos, max);
    return !x || queue_push(&s->queue, (struct queue_item){(double)x->len, pos, x->len});
}

static bool take(struct splitter *s, uint32_t pos, uint32_t len)
{
    if (s->n_cuts == s->cap_cuts) {
        size_t cap = s->cap_cuts ? s->cap_cuts * 2 : 16;
        struct vocab_cut *p = realloc(s->cut, cap * sizeof *p);
        if (!p)
            return false;
        s->cut = p;
        s->cap_cuts = cap;
    }
    const struct vocab_special *x = longest_at(s, pos, len);
    s->cut[s->n_cuts++] = (struct vocab_cut){pos, len, x};
    for (uint32_t i = 0; i < len; i++)
        s->mark[pos + i] |= TAKEN;
    return true;
}

/* The token queued for this place ends in what another one took: the place comes back with the longest one that ends
 * before that. */
static bool shorten(struct splitter *s, uint32_t pos, uint32_t len)
{
    while (s->mark[pos + len - 1] & TAKEN)
        len--;
    return enqueue(s, pos, len);
}

static bool split(struct splitter *s)
{
    for (uint32_t pos = 0; pos < s->len; pos++)
        if (s->t->special_first[s->text[pos]] < s->t->special_first[s->text[pos] + 1] && !enqueue(s, pos, s->len - pos))
            return false;
    struct queue_item x;
    while (queue_pop(&s->queue, &x)) {
        if (s->mark[x.pos] & TAKEN)
            continue;
        bool ok = s->mark[x.pos + x.len - 1] & TAKEN ? shorten(s, x.pos, x.len) : take(s, x.pos, x.len);
        if (!ok)
            return false;
    }
    return true;
}

static void mark_trust(uint8_t *mark, const struct tok_span *span, size_t n_spans)
{
    for (size_t i = 0; i < n_spans; mark += span[i].len, i++)
        if (span[i].flags & TOK_PARSE_SPECIAL)
            memset(mark, TRUST_TEMPLATE, span[i].len);
        else if (!(span[i].flags & TOK_CONTENT))
            memset(mark, TRUST_PLAIN, span[i].len);
}

enum err_code special_split(const struct tok *t, const uint8_t *text, const struct tok_span *span, size_t n_spans,
                            struct vocab_cut **out, size_t *n, struct err *e)
{
    struct splitter s = {.t = t, .text = text};
    for (size_t i = 0; i < n_spans; i++)
        s.len += (uint32_t)span[i].len;
    if (s.len > 0 && t->n_special > 0) {
        s.mark = calloc(s.len, 1);
        if (s.mark)
            mark_trust(s.mark, span, n_spans);
        if (!s.mark || !split(&s)) {
            free(s.mark);
            free(s.cut);
            queue_free(&s.queue);
            return err_set(e, ERR_NOMEM, "no memory to look for special tokens in %u bytes", s.len);
        }
        free(s.mark);
        queue_free(&s.queue);
        if (s.n_cuts > 1)
            qsort(s.cut, s.n_cuts, sizeof *s.cut, by_pos);
    }
    *out = s.cut;
    *n = s.n_cuts;
    return OK;
}
