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

static bool is_wanted(const struct vocab_special *s, unsigned flags)
{
    if (flags & TOK_PARSE_SPECIAL)
        return true;
    return flags & TOK_CONTENT ? s->in_content : s->in_plain_text;
}

/* The longest special token at p, at most max bytes long. */
static const struct vocab_special *longest_at(const struct tok *t, const uint8_t *p, size_t max, unsigned flags)
{
    const struct vocab_special *best = NULL;
    size_t first = t->special_first[p[0]], end = t->special_first[p[0] + 1];
    for (size_t depth = 1; first < end && depth <= max; depth++) {
        /* All of [first, end) begin with p[0 .. depth); those that end here come first. */
        for (; first < end && t->special[first].len == depth; first++) {
            const struct vocab_special *s = &t->special[first];
            if (is_wanted(s, flags) && (!best || best->len < depth))
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

struct splitter {
    const struct tok *t;
    const uint8_t *text;
    uint32_t len;
    unsigned flags;
    uint8_t *taken; /* [len] */
    struct queue queue;
    struct vocab_cut *cut;
    size_t n_cuts, cap_cuts;
};

static bool enqueue(struct splitter *s, uint32_t pos, size_t max)
{
    const struct vocab_special *x = longest_at(s->t, s->text + pos, max, s->flags);
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
    const struct vocab_special *x = longest_at(s->t, s->text + pos, len, s->flags);
    s->cut[s->n_cuts++] = (struct vocab_cut){pos, len, x};
    memset(s->taken + pos, 1, len);
    return true;
}

static bool split(struct splitter *s)
{
    for (uint32_t pos = 0; pos < s->len; pos++)
        if (s->t->special_first[s->text[pos]] < s->t->special_first[s->text[pos] + 1] && !enqueue(s, pos, s->len - pos))
            return false;
    struct queue_item x;
    while (queue_pop(&s->queue, &x)) {
        if (s->taken[x.pos])
            continue;
        bool ok = s->taken[x.pos + x.len - 1] ? enqueue(s, x.pos, x.len - 1) : take(s, x.pos, x.len);
        if (!ok)
            return false;
    }
    return true;
}

enum err_code special_split(const struct tok *t, const uint8_t *text, uint32_t len, unsigned flags,
                            struct vocab_cut **out, size_t *n, struct err *e)
{
    struct splitter s = {.t = t, .text = text, .len = len, .flags = flags};
    if (len > 0 && t->n_special > 0) {
        s.taken = calloc(len, 1);
        if (!s.taken || !split(&s)) {
            free(s.taken);
            free(s.cut);
            queue_free(&s.queue);
            return err_set(e, ERR_NOMEM, "no memory to look for special tokens in %u bytes", len);
        }
        free(s.taken);
        queue_free(&s.queue);
        if (s.n_cuts > 1)
            qsort(s.cut, s.n_cuts, sizeof *s.cut, by_pos);
    }
    *out = s.cut;
    *n = s.n_cuts;
    return OK;
}
