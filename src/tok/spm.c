/* SPDX-License-Identifier: MIT
 *
 * SentencePiece's BPE: a fragment is cut into characters; then, again and again, of all neighbours whose concatenation
 * is a token the pair with the best score becomes one symbol, the leftmost of equals first (architectures.md E).
 *
 * A queue holds the possible merges. Merging touches only the two neighbourhoods of the new symbol, so that n
 * characters cost O(n log n); entries that an earlier merge made wrong are recognised by their length when they come
 * up. A character that is no token becomes its bytes. A byte that is not UTF-8 counts as a character of its own.
 */
#include "base/text.h"
#include "tok/vocab.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct spm_symbol {
    uint32_t pos, len;   /* in the escaped text; len 0: merged into its left neighbour */
    uint32_t prev, next; /* NONE at the ends */
};

void spm_scratch_free(struct spm_scratch *s)
{
    buf_free(&s->text);
    free(s->symbol);
    queue_free(&s->queue);
    *s = (struct spm_scratch){0};
}

/* Spaces as the vocabulary writes them, U+2581. */
static bool escape(struct buf *b, const uint8_t *text, size_t len, bool space_first)
{
    static const char space[] = "\xe2\x96\x81";
    buf_clear(b);
    if (space_first)
        buf_puts(b, space);
    for (size_t i = 0; i < len;) {
        const uint8_t *end = memchr(text + i, ' ', len - i);
        size_t run = end ? (size_t)(end - text) - i : len - i;
        buf_put(b, text + i, run);
        if (end)
            buf_puts(b, space);
        i += run + (end ? 1 : 0);
    }
    return !b->failed;
}

/* Length of the character at p; a byte that begins none stands alone. */
static uint32_t next_char(const uint8_t *p, uint32_t left)
{
    uint32_t rune;
    size_t n = text_utf8(p, left, &rune);
    return n ? (uint32_t)n : 1;
}

/* Cuts the escaped text into characters. */
static bool cut(struct spm_scratch *s, uint32_t *n_symbols)
{
    uint32_t n = 0, len = (uint32_t)s->text.len;
    for (uint32_t pos = 0; pos < len; n++)
        pos += next_char(s->text.data + pos, len - pos);
    if (n > s->cap_symbols) {
        struct spm_symbol *p = realloc(s->symbol, n * sizeof *p);
        if (!p)
            return false;
        s->symbol = p;
        s->cap_symbols = n;
    }
    for (uint32_t i = 0, pos = 0; i < n; i++) {
        uint32_t step = next_char(s->text.data + pos, len - pos);
        s->symbol[i] = (struct spm_symbol){pos, step, i ? i - 1 : NONE, i + 1 < n ? i + 1 : NONE};
        pos += step;
    }
    *n_symbols = n;
    return true;
}

/* The token that these bytes may become here. */
static int32_t find(const struct tok *t, const struct spm_scratch *s, const uint8_t *text, uint32_t len)
{
    int32_t id = vocab_find(t, text, len);
    return id >= 0 && s->content && t->guarded[id] ? -1 : id;
}

/* Queues the merge of symbol `left` with the next one if it makes a token. */
static bool consider(const struct tok *t, struct spm_scratch *s, uint32_t left)
{
    if (left == NONE || s->symbol[left].next == NONE)
        return true;
    const struct spm_symbol *a = &s->symbol[left], *b = &s->symbol[a->next];
    int32_t id = find(t, s, s->text.data + a->pos, a->len + b->len);
    return id < 0 || queue_push(&s->queue, (struct queue_item){(double)t->score[id], left, a->len + b->len});
}

static bool merge_all(const struct tok *t, struct spm_scratch *s, uint32_t n_symbols)
{
    queue_clear(&s->queue);
    for (uint32_t i = 0; i < n_symbols; i++)
        if (!consider(t, s, i))
            return false;
    struct queue_item x;
    while (queue_pop(&s->queue, &x)) {
        struct spm_symbol *a = &s->symbol[x.pos];
        if (a->len == 0 || a->next == NONE)
            continue;
        struct spm_symbol *b = &s->symbol[a->next];
        if (a->len + b->len != x.len)
            continue;
        a->len = x.len;
        a->next = b->next;
        b->len = 0;
        if (a->next != NONE)
            s->symbol[a->next].prev = x.pos;
        if (!consider(t, s, a->prev) || !consider(t, s, x.pos))
            return false;
    }
    return true;
}

/* A symbol that is no token: its bytes, or one unknown token where a byte has none. */
static bool push_bytes(const struct tok *t, const uint8_t *p, uint32_t len, struct tok_ids *out)
{
    for (uint32_t i = 0; i < len; i++)
        if (t->byte_id[p[i]] < 0)
            return t->unk < 0 || tok_ids_push(out, t->unk);
    for (uint32_t i = 0; i < len; i++)
        if (!tok_ids_push(out, t->byte_id[p[i]]))
            return false;
    return true;
}

enum err_code spm_encode(const struct tok *t, struct spm_scratch *s, const uint8_t *text, size_t len, bool space_first,
                         struct tok_ids *out, struct err *e)
{
    uint32_t n;
    if (len == 0)
        return OK;
    if (!escape(&s->text, text, len, space_first) || !cut(s, &n) || !merge_all(t, s, n))
        return err_set(e, ERR_NOMEM, "no memory to tokenize %zu bytes", len);
    for (uint32_t i = 0; i != NONE; i = s->symbol[i].next) {
        const uint8_t *p = s->text.data + s->symbol[i].pos;
        int32_t id = find(t, s, p, s->symbol[i].len);
        if (!(id >= 0 ? tok_ids_push(out, id) : push_bytes(t, p, s->symbol[i].len, out)))
            return err_set(e, ERR_NOMEM, "no memory for the tokens of %zu bytes", len);
    }
    return OK;
}
