/* SPDX-License-Identifier: MIT
 *
 * BPE: a piece of the text begins as one symbol per byte; then, again and again, of all neighbours that a merge names
 * the pair with the lowest rank becomes one symbol, the leftmost of equals first (architectures.md E).
 *
 * Symbols are token ids, so that a merge is a look-up by two numbers. A merge whose parts or whole are no tokens can
 * never lead to one (the original tokenizers refuse such a file) and is left out. Short pieces, nearly all, are
 * scanned; in long ones a queue holds the possible merges, which costs O(n log n).
 */
#include "tok/bpe.h"

#include "base/hash.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define MERGES      "tokenizer.ggml.merges"
#define MAX_MERGES  (1u << 28)
#define SHORT_PIECE 64u /* bytes */
#define NONE        UINT32_MAX
#define NO_RANK     UINT32_MAX

struct pair {
    int32_t left, right; /* left -1: an empty slot */
    uint32_t rank;
    int32_t whole;
};

struct bpe {
    struct pretok *pretok;
    bool whole_pieces;
    int32_t letter_id[256]; /* the token of each byte's letter, -1 where there is none */
    struct pair *slot;      /* [mask + 1], open addressing */
    size_t mask;
};

/* A symbol of a piece, and the merge with the next one. */
struct bpe_node {
    int32_t id; /* -1: a byte without a token */
    uint32_t rank;
    int32_t whole;       /* what that merge makes */
    uint32_t prev, next; /* in long pieces; NONE at the ends; prev of a merged one: itself */
};

/* --- bytes and letters --- */

/* Printable bytes are their own letters; the other 68, in order, are U+0100 and following. */
static bool is_own_letter(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* Bytes below b that are not their own letters; b up to 256. */
static unsigned n_foreign_below(unsigned b)
{
    if (b <= 0x21)
        return b;
    if (b <= 0x7f)
        return 0x21;
    if (b <= 0xa1)
        return 0x21 + b - 0x7f;
    return b <= 0xad ? 0x21 + 0x22 : 0x21 + 0x22 + 1;
}

static unsigned letter_of(unsigned b)
{
    return is_own_letter(b) ? b : 0x100 + n_foreign_below(b);
}

/* The byte that a letter stands for, -1 for other characters. */
static int byte_of(uint32_t letter)
{
    if (letter < 0x100)
        return is_own_letter(letter) ? (int)letter : -1;
    if (letter >= 0x100 + 68)
        return -1;
    unsigned n = letter - 0x100; /* the inverse of n_foreign_below */
    if (n < 0x21)
        return (int)n;
    return n < 0x21 + 0x22 ? (int)(0x7f + n - 0x21) : 0xad;
}

/* All letters are below U+0800: one or two bytes. Returns how many. */
static size_t write_letter(unsigned b, uint8_t out[2])
{
    unsigned letter = letter_of(b);
    if (letter < 0x80) {
        out[0] = (uint8_t)letter;
        return 1;
    }
    out[0] = (uint8_t)(0xc0 | letter >> 6);
    out[1] = (uint8_t)(0x80 | (letter & 0x3f));
    return 2;
}

void bpe_put_bytes(struct buf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint32_t rune = 0;
        size_t n = text_utf8(text + i, len - i, &rune);
        int byte = n ? byte_of(rune) : -1;
        if (byte >= 0)
            buf_put_u8(out, (uint8_t)byte);
        else
            buf_put(out, text + i, n ? n : 1);
        i += n ? n : 1;
    }
}

/* --- merges --- */

static struct pair *slot_of(const struct bpe *b, uint64_t seed, int32_t left, int32_t right)
{
    uint64_t h = hash_mix64(seed ^ ((uint64_t)(uint32_t)left << 32 | (uint32_t)right));
    for (size_t i = (size_t)h & b->mask;; i = (i + 1) & b->mask) {
        struct pair *p = &b->slot[i];
        if (p->left < 0 || (p->left == left && p->right == right))
            return p;
    }
}

static void add_merge(const struct tok *t, struct bpe *b, const char *left, const char *right, struct buf *whole,
                      uint32_t rank)
{
    size_t n_left = strlen(left), n_right = strlen(right);
    buf_clear(whole);
    buf_put(whole, left, n_left);
    buf_put(whole, right, n_right);
    struct pair p = {.left = vocab_find(t, (const uint8_t *)left, n_left),
                     .right = vocab_find(t, (const uint8_t *)right, n_right),
                     .rank = rank,
                     .whole = vocab_find(t, whole->data, whole->len)};
    if (p.left < 0 || p.right < 0 || p.whole < 0 || t->guarded[p.whole])
        return;
    struct pair *slot = slot_of(b, t->hash_seed, p.left, p.right);
    if (slot->left < 0) /* of equal ones the first counts */
        *slot = p;
}

static enum err_code load_merges(const struct tok *t, struct bpe *b, const struct gguf *g, struct err *e)
{
    size_t n, n_slots = 64;
    enum err_code rc = gguf_arr_strs(g, MERGES, 0, &n, e);
    if (rc != OK)
        return rc;
    if (n > MAX_MERGES)
        return err_set(e, ERR_LIMIT, MERGES " has %zu entries; at most %u are supported", n, MAX_MERGES);
    while (n_slots < n * 2)
        n_slots *= 2;
    b->mask = n_slots - 1;
    b->slot = malloc(n_slots * sizeof *b->slot);
    if (!b->slot)
        return err_set(e, ERR_NOMEM, "no memory for %zu merges", n);
    memset(b->slot, 0xff, n_slots * sizeof *b->slot);
    struct buf left = {0}, whole = {0};
    for (size_t i = 0; rc == OK && i < n; i++) {
        const char *s = gguf_arr_str_at(g, MERGES, i);
        if (!s || !*s)
            continue; /* the last line of a merges.txt */
        const char *space = strchr(s + 1, ' ');
        if (!space || !space[1]) {
            rc = err_set(e, ERR_FORMAT, MERGES ": entry %zu is not two texts with a space between them", i);
            break;
        }
        buf_clear(&left);
        buf_put(&left, s, (size_t)(space - s));
        add_merge(t, b, buf_str(&left), space + 1, &whole, (uint32_t)i);
        if (left.failed || whole.failed)
            rc = err_set(e, ERR_NOMEM, "no memory for merge %zu", i);
    }
    buf_free(&left);
    buf_free(&whole);
    return rc;
}

enum err_code bpe_new(const struct tok *t, const struct gguf *g, struct pretok *pretok, struct bpe **out, struct err *e)
{
    struct bpe *b = calloc(1, sizeof *b);
    if (!b) {
        pretok_free(pretok);
        return err_set(e, ERR_NOMEM, "no memory for a tokenizer");
    }
    b->pretok = pretok;
    b->whole_pieces = pretok_traits(pretok).whole_pieces;
    for (unsigned c = 0; c < 256; c++) {
        uint8_t letter[2];
        size_t n = write_letter(c, letter);
        b->letter_id[c] = vocab_find(t, letter, n);
    }
    enum err_code rc = load_merges(t, b, g, e);
    if (rc != OK) {
        bpe_free(b);
        return rc;
    }
    *out = b;
    return OK;
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    pretok_free(b->pretok);
    free(b->slot);
    free(b);
}

/* --- pieces --- */

void bpe_scratch_free(struct bpe_scratch *s)
{
    buf_free(&s->text);
    buf_free(&s->letters);
    pretok_scratch_free(&s->pieces);
    free(s->node);
    queue_free(&s->queue);
    *s = (struct bpe_scratch){0};
}

/* Notes the merge of a node with the one whose id is `right`. */
static void look_up(const struct tok *t, struct bpe_node *x, int32_t right)
{
    x->rank = NO_RANK;
    if (x->id < 0 || right < 0)
        return;
    const struct pair *p = slot_of(t->bpe, t->hash_seed, x->id, right);
    if (p->left < 0)
        return;
    x->rank = p->rank;
    x->whole = p->whole;
}

/* Merges n nodes side by side; returns how many are left. */
static uint32_t merge_short(const struct tok *t, struct bpe_node *x, uint32_t n)
{
    for (uint32_t i = 0; i + 1 < n; i++)
        look_up(t, &x[i], x[i + 1].id);
    x[n - 1].rank = NO_RANK;
    for (;;) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < n; i++)
            if (x[i].rank < x[best].rank)
                best = i;
        if (x[best].rank == NO_RANK)
            return n;
        x[best].id = x[best].whole;
        n--;
        memmove(&x[best + 1], &x[best + 2], (n - best - 1) * sizeof *x);
        if (best + 1 < n)
            look_up(t, &x[best], x[best + 1].id);
        else
            x[best].rank = NO_RANK;
        if (best > 0)
            look_up(t, &x[best - 1], x[best].id);
    }
}

/* Queues the merge of node i with the next one, if there is one. */
static bool consider(const struct tok *t, struct bpe_scratch *s, uint32_t i)
{
    if (i == NONE)
        return true;
    struct bpe_node *x = &s->node[i];
    x->rank = NO_RANK;
    if (x->next != NONE)
        look_up(t, x, s->node[x->next].id);
    return x->rank == NO_RANK || queue_push(&s->queue, (struct queue_item){-(double)x->rank, i, 0});
}

/* The same in a linked list. Merged nodes are unlinked; the first one stays the first. */
static bool merge_long(const struct tok *t, struct bpe_scratch *s, uint32_t n)
{
    struct bpe_node *x = s->node;
    queue_clear(&s->queue);
    for (uint32_t i = 0; i < n; i++) {
        x[i].prev = i ? i - 1 : NONE;
        x[i].next = i + 1 < n ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!consider(t, s, i))
            return false;
    struct queue_item top;
    while (queue_pop(&s->queue, &top)) {
        struct bpe_node *a = &x[top.pos];
        /* An earlier merge may have changed or taken this node; its rank says so, for a rank belongs to one pair. */
        if (a->rank == NO_RANK || (double)a->rank != -top.key)
            continue;
        struct bpe_node *b = &x[a->next];
        a->id = a->whole;
        a->next = b->next;
        b->rank = NO_RANK;
        if (a->next != NONE)
            x[a->next].prev = top.pos;
        if (!consider(t, s, a->prev) || !consider(t, s, top.pos))
            return false;
    }
    return true;
}

static bool push_id(const struct tok *t, int32_t id, struct tok_ids *out)
{
    if (id < 0)
        id = t->unk;
    return id < 0 || tok_ids_push(out, id);
}

/* The token that the whole piece is, -1 when it is none. */
static int32_t find_whole(const struct tok *t, struct bpe_scratch *s, const uint8_t *piece, uint32_t len)
{
    if (len > t->max_len) /* letters are not fewer than bytes */
        return -1;
    buf_clear(&s->letters);
    uint8_t *p = buf_reserve(&s->letters, (size_t)len * 2);
    if (!p)
        return -1; /* merging needs more memory, and will say so */
    size_t n = 0;
    for (uint32_t i = 0; i < len; i++)
        n += write_letter(piece[i], p + n);
    int32_t id = vocab_find(t, p, n);
    return id >= 0 && t->guarded[id] ? -1 : id;
}

static bool reserve_nodes(struct bpe_scratch *s, size_t n)
{
    if (n <= s->cap_nodes)
        return true;
    size_t cap = n < SHORT_PIECE ? SHORT_PIECE : n;
    struct bpe_node *p = cap <= SIZE_MAX / sizeof *p ? realloc(s->node, cap * sizeof *p) : NULL;
    if (!p)
        return false;
    s->node = p;
    s->cap_nodes = cap;
    return true;
}

static bool encode_piece(const struct tok *t, struct bpe_scratch *s, const uint8_t *piece, uint32_t len,
                         struct tok_ids *out)
{
    const struct bpe *b = t->bpe;
    int32_t whole = b->whole_pieces ? find_whole(t, s, piece, len) : -1;
    if (whole >= 0)
        return tok_ids_push(out, whole);
    if (!reserve_nodes(s, len))
        return false;
    for (uint32_t i = 0; i < len; i++)
        s->node[i].id = b->letter_id[piece[i]];
    if (len <= SHORT_PIECE) {
        uint32_t n = merge_short(t, s->node, len);
        for (uint32_t i = 0; i < n; i++)
            if (!push_id(t, s->node[i].id, out))
                return false;
        return true;
    }
    if (!merge_long(t, s, len))
        return false;
    for (uint32_t i = 0; i != NONE; i = s->node[i].next)
        if (!push_id(t, s->node[i].id, out))
            return false;
    return true;
}

/* The text with U+FFFD in place of each byte that is not UTF-8. */
static bool mend(struct buf *out, const uint8_t *text, size_t len)
{
    buf_clear(out);
    for (size_t i = 0; i < len;) {
        uint32_t rune;
        size_t n = text_utf8(text + i, len - i, &rune);
        if (n)
            buf_put(out, text + i, n);
        else
            buf_puts(out, "\xef\xbf\xbd");
        i += n ? n : 1;
    }
    return !out->failed;
}

enum err_code bpe_encode(const struct tok *t, struct bpe_scratch *s, const uint8_t *text, uint32_t len,
                         struct tok_ids *out, struct err *e)
{
    if (len == 0)
        return OK;
    if (!text_valid(text, len)) {
        if (!mend(&s->text, text, len))
            return err_set(e, ERR_NOMEM, "no memory to tokenize %u bytes", len);
        text = s->text.data;
        len = (uint32_t)s->text.len;
    }
    enum err_code rc = pretok_split(t->bpe->pretok, text, len, &s->pieces, e);
    if (rc != OK)
        return rc;
    uint32_t start = 0;
    for (size_t i = 0; i < s->pieces.now.n; i++) {
        uint32_t end = s->pieces.now.end[i];
        if (!encode_piece(t, s, text + start, end - start, out))
            return err_set(e, ERR_NOMEM, "no memory for the tokens of %u bytes", len);
        start = end;
    }
    return OK;
}
