/* SPDX-License-Identifier: MIT
 *
 * Ids to text: the bytes of one token, and the stream that lets only whole UTF-8 characters out. What is not UTF-8 is
 * replaced by one U+FFFD per maximal subpart (The Unicode Standard, section 3.9): the longest start of a well-formed
 * character, or a single byte.
 */
#include "tok/bpe.h"
#include "tok/vocab.h"

#include <string.h>

/* --- one token --- */

/* Token texts of SentencePiece write U+2581 for a space. */
static void put_unescaped(struct buf *out, const char *text, size_t len)
{
    static const char space[] = "\xe2\x96\x81";
    for (size_t i = 0; i < len;) {
        const char *next = memmem(text + i, len - i, space, 3);
        size_t run = next ? (size_t)(next - text) - i : len - i;
        buf_put(out, text + i, run);
        if (next)
            buf_put_u8(out, ' ');
        i += run + (next ? 3 : 0);
    }
}

enum err_code tok_piece(const struct tok *t, int32_t id, bool with_special, struct buf *out, struct err *e)
{
    if (id < 0 || (uint32_t)id >= t->n)
        return err_set(e, ERR_RANGE, "token %d is not in the vocabulary of %u", id, t->n);
    size_t before = out->len;
    uint32_t len;
    const char *text = vocab_text(t, id, &len);
    switch (t->type[id]) {
    case VOCAB_CONTROL:
    case VOCAB_UNKNOWN:
        if (with_special)
            buf_put(out, text, len);
        break;
    case VOCAB_USER_DEFINED:
        buf_put(out, text, len);
        break;
    case VOCAB_BYTE:
        buf_put_u8(out, (uint8_t)vocab_byte(t, id));
        break;
    default:
        if (t->bpe)
            bpe_put_bytes(out, text, len);
        else
            put_unescaped(out, text, len);
        break;
    }
    if (out->failed) {
        out->len = before;
        return err_set(e, ERR_NOMEM, "no memory for the text of token %d", id);
    }
    return OK;
}

/* --- UTF-8, byte by byte (The Unicode Standard, table 3-7) --- */

/* Length of the character that begins with this byte, 0 for a byte that begins none. */
static unsigned char_len(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 2;
    if (lead >= 0xe0 && lead <= 0xef)
        return 3;
    return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

/* Can b come after the n bytes of an incomplete character? The second byte rules out overlong forms, surrogates and
 * values above U+10FFFF. */
static bool may_follow(const uint8_t *begun, unsigned n, uint8_t b)
{
    uint8_t low = 0x80, high = 0xbf;
    if (n == 1 && begun[0] == 0xe0)
        low = 0xa0;
    if (n == 1 && begun[0] == 0xed)
        high = 0x9f;
    if (n == 1 && begun[0] == 0xf0)
        low = 0x90;
    if (n == 1 && begun[0] == 0xf4)
        high = 0x8f;
    return b >= low && b <= high;
}

static void put_replacement(struct buf *out)
{
    buf_puts(out, "\xef\xbf\xbd");
}

static void put_byte(struct tok_stream *s, uint8_t b, struct buf *out)
{
    if (s->n_held > 0 && !may_follow(s->held, s->n_held, b)) {
        put_replacement(out);
        s->n_held = 0;
    }
    if (s->n_held == 0 && char_len(b) == 0) {
        put_replacement(out);
        return;
    }
    s->held[s->n_held++] = b;
    if (s->n_held == char_len(s->held[0])) {
        buf_put(out, s->held, s->n_held);
        s->n_held = 0;
    }
}

/* --- the stream --- */

void tok_stream_init(struct tok_stream *s, const struct tok *t, bool continuation, bool with_special)
{
    *s = (struct tok_stream){.t = t, .at_start = !continuation, .with_special = with_special};
}

enum err_code tok_stream_put(struct tok_stream *s, int32_t id, struct buf *out, struct err *e)
{
    struct buf piece = {0};
    struct tok_stream before = *s;
    size_t len_before = out->len;
    enum err_code rc = tok_piece(s->t, id, s->with_special, &piece, e);
    if (rc != OK)
        goto done;
    size_t i = 0;
    if (piece.len > 0 && s->at_start) {
        /* User-defined tokens are literal: no space was put before them. */
        if (s->t->add_space_prefix && s->t->type[id] != VOCAB_USER_DEFINED && piece.data[0] == ' ')
            i = 1;
        s->at_start = false;
    }
    for (; i < piece.len; i++)
        put_byte(s, piece.data[i], out);
    if (out->failed) {
        *s = before;
        out->len = len_before;
        rc = err_set(e, ERR_NOMEM, "no memory for the text of token %d", id);
    }
done:
    buf_free(&piece);
    return rc;
}

enum err_code tok_stream_end(struct tok_stream *s, struct buf *out, struct err *e)
{
    if (s->n_held > 0)
        put_replacement(out);
    if (out->failed)
        return err_set(e, ERR_NOMEM, "no memory for the end of a text");
    s->n_held = 0;
    return OK;
}
