/* SPDX-License-Identifier: MIT
 *
 * Encoders and decoders of frames (docs/protocol.md, "Frames"): header, steps, results, failures; requests are in
 * frame_request.c, probes in frame_probe.c. Encoders make room once and append; a buffer that the
 * caller clears and reuses therefore allocates nothing in steady state. Decoders check every count against a limit and
 * against the bytes that are there before they use it, and check everything before they store anything. Whether rows
 * hold finite numbers is the engine's business. Pure functions.
 */
#include "base/text.h"
#include "plan/manifest.h"
#include "ring/frame_impl.h"

#include <math.h>
#include <string.h>

#define STEP_FIXED_BYTES   12u
#define STEP_ENTRY_BYTES   28u
#define RESULT_FIXED_BYTES 4u
#define RESULT_ENTRY_BYTES 24u
#define FAIL_FIXED_BYTES   10u
#define FAIL_MAX_TEXT      255u
#define FLAGS_KNOWN        ((uint32_t)BATCH_FLAGS_KNOWN)

_Static_assert(sizeof(float) == 4 && sizeof(int32_t) == 4, "tokens and rows travel as 32-bit words");
_Static_assert(MANIFEST_MAX_SLOTS == BATCH_MAX_SLOTS && MANIFEST_MAX_BATCH == BATCH_MAX_TOK &&
                   MANIFEST_MAX_EMBD == BATCH_MAX_EMBD && MANIFEST_MAX_RANKS == FRAME_MAX_RANKS,
               "a manifest that passes its check can be served");
_Static_assert(MANIFEST_MAX_STEP_BYTES + STEP_FIXED_BYTES + BATCH_MAX_ENTRIES * STEP_ENTRY_BYTES + BATCH_MAX_TOK * 4 <=
                   FRAME_MAX_PAYLOAD,
               "the rows of a full step fit into a frame");

void frame_header_put(uint8_t out[FRAME_HEADER_BYTES], const struct frame_header *h)
{
    le_put_u16(out, FRAME_MAGIC);
    out[2] = FRAME_VERSION;
    out[3] = (uint8_t)h->type;
    le_put_u32(out + 4, h->length);
    le_put_u64(out + 8, h->step_id);
    le_put_u64(out + 16, h->request_id);
}

enum err_code frame_header_get(const uint8_t in[FRAME_HEADER_BYTES], struct frame_header *out, struct err *e)
{
    uint32_t magic = le_get_u16(in), length = le_get_u32(in + 4);
    if (magic != FRAME_MAGIC)
        return err_set(e, ERR_PROTOCOL, "frame magic is 0x%04x, not 0x%04x", (unsigned)magic, FRAME_MAGIC);
    if (in[2] != FRAME_VERSION)
        return err_set(e, ERR_PROTOCOL, "frame version is %u, I speak %u", (unsigned)in[2], FRAME_VERSION);
    if (in[3] == 0 || in[3] >= FRAME_TYPE_COUNT)
        return err_set(e, ERR_PROTOCOL, "frame type is %u, I know 1 to %u", (unsigned)in[3],
                       (unsigned)FRAME_TYPE_COUNT - 1);
    if (length > FRAME_MAX_PAYLOAD)
        return err_set(e, ERR_LIMIT, "frame of %u bytes, at most %u are allowed", (unsigned)length, FRAME_MAX_PAYLOAD);
    *out = (struct frame_header){
        .type = (enum frame_type)in[3],
        .length = length,
        .step_id = le_get_u64(in + 8),
        .request_id = le_get_u64(in + 16),
    };
    return OK;
}

void frame_words_copy(void *dst, const void *src, size_t n, bool swap)
{
    if (n == 0)
        return;
    if (!swap) {
        memcpy(dst, src, n * 4);
        return;
    }
    uint8_t *d = dst;
    const uint8_t *s = src;
    for (size_t i = 0; i < n; i++, d += 4, s += 4) {
        uint8_t w[4] = {s[3], s[2], s[1], s[0]};
        memcpy(d, w, 4);
    }
}

enum err_code frame_begin(struct buf *out, const struct frame_header *h, struct err *e)
{
    if (!buf_reserve(out, (size_t)FRAME_HEADER_BYTES + h->length))
        return err_set(e, ERR_NOMEM, "out of memory for a frame of %u bytes", (unsigned)h->length);
    frame_header_put(out->data + out->len, h);
    out->len += FRAME_HEADER_BYTES;
    return OK;
}

void frame_put_words(struct buf *out, const void *words, size_t n)
{
    frame_words_copy(out->data + out->len, words, n, FRAME_HOST_SWAPS);
    out->len += n * 4;
}

/* --- FRAME_STEP --- */

static enum err_code step_check_own(const struct batch *b, struct err *e)
{
    uint64_t sum = 0;
    if (b->n_entries == 0 || b->n_entries > BATCH_MAX_ENTRIES)
        return err_set(e, ERR_ARG, "a step of %u entries, 1 to %u are allowed", (unsigned)b->n_entries,
                       BATCH_MAX_ENTRIES);
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *t = &b->entries[i];
        if (t->slot >= BATCH_MAX_SLOTS || t->flags & ~FLAGS_KNOWN || t->n_tok == 0)
            return err_set(e, ERR_ARG, "step entry %u: slot %u, flags 0x%x, %u tokens cannot be sent", (unsigned)i,
                           (unsigned)t->slot, (unsigned)t->flags, (unsigned)t->n_tok);
        sum += t->n_tok;
    }
    if (sum != b->n_tok || sum > BATCH_MAX_TOK)
        return err_set(e, ERR_ARG, "the entries of a step have %llu tokens, the step %u, at most %u are allowed",
                       (unsigned long long)sum, (unsigned)b->n_tok, BATCH_MAX_TOK);
    return OK;
}

enum err_code frame_step_put(struct buf *out, uint64_t step_id, const struct batch *b, bool with_rows, struct err *e)
{
    enum err_code rc = step_check_own(b, e);
    if (rc != OK)
        return rc;
    uint32_t n_embd = with_rows ? b->n_embd : 0;
    if (with_rows && (n_embd == 0 || n_embd > BATCH_MAX_EMBD))
        return err_set(e, ERR_ARG, "rows of %u floats, 1 to %u are allowed", (unsigned)n_embd, BATCH_MAX_EMBD);
    uint64_t n_row_words = (uint64_t)b->n_tok * n_embd;
    uint64_t length = STEP_FIXED_BYTES + (uint64_t)b->n_entries * STEP_ENTRY_BYTES + (b->n_tok + n_row_words) * 4;
    if (length > FRAME_MAX_PAYLOAD)
        return err_set(e, ERR_LIMIT, "a step of %u rows of %u floats is %llu bytes, a frame has at most %u",
                       (unsigned)b->n_tok, (unsigned)n_embd, (unsigned long long)length, FRAME_MAX_PAYLOAD);
    struct frame_header h = {.type = FRAME_STEP, .length = (uint32_t)length, .step_id = step_id};
    rc = frame_begin(out, &h, e);
    if (rc != OK)
        return rc;
    buf_put_u16(out, (uint16_t)b->n_entries);
    buf_put_u16(out, 0);
    buf_put_u32(out, b->n_tok);
    buf_put_u32(out, n_embd);
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *t = &b->entries[i];
        buf_put_u64(out, t->request_id);
        buf_put_u64(out, t->prefix_hash);
        buf_put_u32(out, t->pos);
        buf_put_u16(out, (uint16_t)t->slot);
        buf_put_u16(out, (uint16_t)t->flags);
        buf_put_u32(out, t->n_tok);
    }
    frame_put_words(out, b->tokens, b->n_tok);
    frame_put_words(out, b->rows, (size_t)n_row_words);
    return OK;
}

static struct batch_entry entry_read(struct cursor *c)
{
    struct batch_entry t;
    t.request_id = cursor_u64(c);
    t.prefix_hash = cursor_u64(c);
    t.pos = cursor_u32(c);
    t.slot = cursor_u16(c);
    t.flags = cursor_u16(c);
    t.n_tok = cursor_u32(c);
    return t;
}

enum err_code frame_slot_check(const char *what, uint32_t i, uint32_t slot, const struct frame_limits *lim,
                               struct err *e)
{
    uint32_t n = lim->n_slots < BATCH_MAX_SLOTS ? lim->n_slots : BATCH_MAX_SLOTS;
    if (slot >= n)
        return err_set(e, ERR_PROTOCOL, "%s %u: slot %u, the ring has %u", what, (unsigned)i, (unsigned)slot,
                       (unsigned)n);
    return OK;
}

static enum err_code entry_check(const struct batch_entry *t, uint32_t i, const struct frame_limits *lim, struct err *e)
{
    enum err_code rc = frame_slot_check("step entry", i, t->slot, lim, e);
    if (rc != OK)
        return rc;
    if (t->flags & ~FLAGS_KNOWN)
        return err_set(e, ERR_PROTOCOL, "step entry %u: flags 0x%x, I know 0x%x", (unsigned)i, (unsigned)t->flags,
                       (unsigned)BATCH_FLAGS_KNOWN);
    if (t->n_tok == 0)
        return err_set(e, ERR_PROTOCOL, "step entry %u has no tokens", (unsigned)i);
    if ((uint64_t)t->pos + t->n_tok > lim->n_ctx)
        return err_set(e, ERR_PROTOCOL, "step entry %u: position %u + %u tokens exceed the context of %u", (unsigned)i,
                       (unsigned)t->pos, (unsigned)t->n_tok, (unsigned)lim->n_ctx);
    if (t->flags & BATCH_RESET && t->pos != 0)
        return err_set(e, ERR_PROTOCOL, "step entry %u resets its slot but begins at position %u", (unsigned)i,
                       (unsigned)t->pos);
    return OK;
}

/* The n entries that begin at bytes; n_tok is what they must add up to. */
static enum err_code entries_check(const uint8_t *bytes, uint32_t n, uint32_t n_tok, const struct frame_limits *lim,
                                   struct err *e)
{
    struct cursor c = cursor_of(bytes, (size_t)n * STEP_ENTRY_BYTES);
    uint64_t seen[BATCH_MAX_SLOTS / 64] = {0}, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct batch_entry t = entry_read(&c);
        enum err_code rc = entry_check(&t, i, lim, e);
        if (rc != OK)
            return rc;
        uint64_t bit = 1ull << (t.slot % 64);
        if (seen[t.slot / 64] & bit)
            return err_set(e, ERR_PROTOCOL, "step entry %u: slot %u is there twice", (unsigned)i, (unsigned)t.slot);
        seen[t.slot / 64] |= bit;
        sum += t.n_tok;
    }
    if (sum != n_tok)
        return err_set(e, ERR_PROTOCOL, "the entries of a step have %llu tokens, the step says %u",
                       (unsigned long long)sum, (unsigned)n_tok);
    return OK;
}

static enum err_code tokens_check(const uint8_t *bytes, uint32_t n, uint32_t n_vocab, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = le_get_u32(bytes + 4 * (size_t)i);
        if (token >= n_vocab || token > INT32_MAX)
            return err_set(e, ERR_PROTOCOL, "step token %u is %d, the vocabulary has %u", (unsigned)i, (int)token,
                           (unsigned)n_vocab);
    }
    return OK;
}

static enum err_code step_counts_check(uint32_t n_entries, uint32_t n_tok, uint32_t n_embd, bool want_rows,
                                       const struct batch *b, struct err *e)
{
    uint32_t max_entries = b->cap_entries < BATCH_MAX_ENTRIES ? b->cap_entries : BATCH_MAX_ENTRIES;
    uint32_t max_tok = b->cap_tok < BATCH_MAX_TOK ? b->cap_tok : BATCH_MAX_TOK;
    uint32_t embd = want_rows ? b->n_embd : 0;
    if (n_entries > max_entries)
        return err_set(e, ERR_LIMIT, "a step of %u entries, at most %u are allowed", (unsigned)n_entries,
                       (unsigned)max_entries);
    if (n_tok > max_tok)
        return err_set(e, ERR_LIMIT, "a step of %u tokens, at most %u are allowed", (unsigned)n_tok, (unsigned)max_tok);
    if (n_entries == 0)
        return err_set(e, ERR_PROTOCOL, "a step without entries");
    if (n_embd != embd)
        return err_set(e, ERR_MISMATCH, "a step's rows have %u floats, mine %u", (unsigned)n_embd, (unsigned)embd);
    return OK;
}

enum err_code frame_step_get(const void *payload, size_t len, const struct frame_limits *lim, bool want_rows,
                             struct batch *b, struct err *e)
{
    struct cursor c = cursor_of(payload, len);
    uint32_t n_entries = cursor_u16(&c), reserved = cursor_u16(&c), n_tok = cursor_u32(&c), n_embd = cursor_u32(&c);
    if (c.short_read)
        return cursor_finish(&c, "step", e);
    if (reserved != 0)
        return err_set(e, ERR_PROTOCOL, "a step's reserved field is 0x%x, not 0", (unsigned)reserved);
    enum err_code rc = step_counts_check(n_entries, n_tok, n_embd, want_rows, b, e);
    if (rc != OK)
        return rc;
    /* The products stay below 2^30: n_entries, n_tok and n_embd are within the batch's own bounds now. */
    size_t n_row_words = (size_t)n_tok * n_embd;
    const uint8_t *entries = cursor_bytes(&c, (size_t)n_entries * STEP_ENTRY_BYTES);
    const uint8_t *tokens = cursor_bytes(&c, (size_t)n_tok * 4);
    const uint8_t *rows = cursor_bytes(&c, n_row_words * 4);
    rc = cursor_finish(&c, "step", e);
    if (rc == OK)
        rc = entries_check(entries, n_entries, n_tok, lim, e);
    if (rc == OK)
        rc = tokens_check(tokens, n_tok, lim->n_vocab, e);
    if (rc != OK)
        return rc;
    struct cursor ec = cursor_of(entries, (size_t)n_entries * STEP_ENTRY_BYTES);
    for (uint32_t i = 0; i < n_entries; i++)
        b->entries[i] = entry_read(&ec);
    frame_words_copy(b->tokens, tokens, n_tok, FRAME_HOST_SWAPS);
    frame_words_copy(b->rows, rows, n_row_words, FRAME_HOST_SWAPS);
    b->n_entries = n_entries;
    b->n_tok = n_tok;
    b->n_results = 0;
    return OK;
}

/* --- FRAME_RESULT --- */

void frame_sample_put(struct buf *out, const struct batch_result *r)
{
    buf_put_u32(out, (uint32_t)r->token);
    buf_put_f32(out, r->logprob);
    for (uint32_t i = 0; i < r->n_top; i++) {
        buf_put_u32(out, (uint32_t)r->top[i].token);
        buf_put_f32(out, r->top[i].logprob);
    }
}

void frame_sample_read(struct cursor *c, struct batch_result *r)
{
    r->token = (int32_t)cursor_u32(c);
    r->logprob = cursor_f32(c);
    for (uint32_t i = 0; i < r->n_top; i++) {
        r->top[i].token = (int32_t)cursor_u32(c);
        r->top[i].logprob = cursor_f32(c);
    }
}

bool frame_sample_sendable(const struct batch_result *r)
{
    if (r->slot >= BATCH_MAX_SLOTS || r->token < 0 || !isfinite(r->logprob) || r->n_top > BATCH_MAX_TOP)
        return false;
    for (uint32_t i = 0; i < r->n_top; i++) {
        if (r->top[i].token < 0 || !isfinite(r->top[i].logprob))
            return false;
    }
    return true;
}

static enum err_code sample_token_check(const char *what, uint32_t i, int32_t token, float logprob,
                                        const struct frame_limits *lim, struct err *e)
{
    if (token < 0 || (uint32_t)token >= lim->n_vocab)
        return err_set(e, ERR_PROTOCOL, "%s %u: token %d, the vocabulary has %u", what, (unsigned)i, (int)token,
                       (unsigned)lim->n_vocab);
    if (!isfinite(logprob))
        return err_set(e, ERR_PROTOCOL, "%s %u: the log-probability is not a finite number", what, (unsigned)i);
    return OK;
}

enum err_code frame_sample_check(const char *what, uint32_t i, const struct batch_result *r,
                                 const struct frame_limits *lim, struct err *e)
{
    enum err_code rc = frame_slot_check(what, i, r->slot, lim, e);
    if (rc == OK)
        rc = sample_token_check(what, i, r->token, r->logprob, lim, e);
    for (uint32_t k = 0; rc == OK && k < r->n_top; k++)
        rc = sample_token_check(what, i, r->top[k].token, r->top[k].logprob, lim, e);
    /* The token after the last position of a full context is reported too, though it cannot be fed back. */
    if (rc == OK && r->pos > lim->n_ctx)
        rc = err_set(e, ERR_PROTOCOL, "%s %u: position %u, the context has %u", what, (unsigned)i, (unsigned)r->pos,
                     (unsigned)lim->n_ctx);
    return rc;
}

enum err_code frame_result_put(struct buf *out, uint64_t step_id, const struct batch *b, struct err *e)
{
    uint32_t length = RESULT_FIXED_BYTES;
    if (b->n_results > BATCH_MAX_ENTRIES)
        return err_set(e, ERR_ARG, "%u results, at most %u are allowed", (unsigned)b->n_results, BATCH_MAX_ENTRIES);
    for (uint32_t i = 0; i < b->n_results; i++) {
        const struct batch_result *r = &b->results[i];
        if (!frame_sample_sendable(r))
            return err_set(e, ERR_ARG, "result %u: slot %u, token %d, logprob %g, %u more cannot be sent", (unsigned)i,
                           (unsigned)r->slot, (int)r->token, (double)r->logprob, (unsigned)r->n_top);
        length += RESULT_ENTRY_BYTES + r->n_top * FRAME_TOP_BYTES;
    }
    struct frame_header h = {.type = FRAME_RESULT, .length = length, .step_id = step_id};
    enum err_code rc = frame_begin(out, &h, e);
    if (rc != OK)
        return rc;
    buf_put_u16(out, (uint16_t)b->n_results);
    buf_put_u16(out, 0);
    for (uint32_t i = 0; i < b->n_results; i++) {
        const struct batch_result *r = &b->results[i];
        buf_put_u64(out, r->request_id);
        buf_put_u32(out, r->pos);
        buf_put_u16(out, (uint16_t)r->slot);
        buf_put_u16(out, (uint16_t)r->n_top);
        frame_sample_put(out, r);
    }
    return OK;
}

static enum err_code result_read(struct cursor *c, uint32_t i, struct batch_result *r, struct err *e)
{
    r->request_id = cursor_u64(c);
    r->pos = cursor_u32(c);
    r->slot = cursor_u16(c);
    r->n_top = cursor_u16(c);
    if (r->n_top > BATCH_MAX_TOP)
        return err_set(e, ERR_LIMIT, "result %u: %u likeliest tokens, at most %u are allowed", (unsigned)i,
                       (unsigned)r->n_top, BATCH_MAX_TOP);
    frame_sample_read(c, r);
    return OK;
}

enum err_code frame_result_get(const void *payload, size_t len, const struct frame_limits *lim, struct batch *b,
                               struct err *e)
{
    struct cursor c = cursor_of(payload, len);
    uint32_t max = b->cap_entries < BATCH_MAX_ENTRIES ? b->cap_entries : BATCH_MAX_ENTRIES;
    uint32_t n = cursor_u16(&c), reserved = cursor_u16(&c);
    if (c.short_read)
        return cursor_finish(&c, "result", e);
    if (reserved != 0)
        return err_set(e, ERR_PROTOCOL, "a result's reserved field is 0x%x, not 0", (unsigned)reserved);
    if (n > max)
        return err_set(e, ERR_LIMIT, "%u results, at most %u are allowed", (unsigned)n, (unsigned)max);
    struct cursor again = c;
    struct batch_result r;
    for (uint32_t i = 0; i < n; i++) {
        enum err_code rc = result_read(&c, i, &r, e);
        if (c.short_read)
            return cursor_finish(&c, "result", e);
        if (rc == OK)
            rc = frame_sample_check("result", i, &r, lim, e);
        if (rc != OK)
            return rc;
    }
    enum err_code rc = cursor_finish(&c, "result", e);
    for (uint32_t i = 0; rc == OK && i < n; i++)
        rc = result_read(&again, i, &b->results[i], e);
    if (rc == OK)
        b->n_results = n;
    return rc;
}

/* --- FRAME_HEARTBEAT --- */

enum err_code frame_heartbeat_put(struct buf *out, struct err *e)
{
    struct frame_header h = {.type = FRAME_HEARTBEAT};
    return frame_begin(out, &h, e);
}

/* --- FRAME_FAIL, FRAME_BYE --- */

enum err_code frame_fail_put(struct buf *out, enum frame_type type, uint64_t step_id, const struct frame_fail *f,
                             struct err *e)
{
    if (type != FRAME_FAIL && type != FRAME_BYE)
        return err_set(e, ERR_ARG, "frame type %d carries no failure", (int)type);
    if (type == FRAME_FAIL && f->code == OK)
        return err_set(e, ERR_ARG, "a failure with the code for success");
    size_t n = strnlen(f->text, FAIL_MAX_TEXT);
    struct frame_header h = {.type = type, .length = FAIL_FIXED_BYTES + (uint32_t)n, .step_id = step_id};
    enum err_code rc = frame_begin(out, &h, e);
    if (rc != OK)
        return rc;
    buf_put_u32(out, (uint32_t)f->code);
    buf_put_u32(out, f->rank);
    buf_put_u16(out, (uint16_t)n);
    buf_put(out, f->text, n);
    return OK;
}

enum err_code frame_fail_get(const void *payload, size_t len, struct frame_fail *out, struct err *e)
{
    struct cursor c = cursor_of(payload, len);
    int32_t code = (int32_t)cursor_u32(&c);
    uint32_t rank = cursor_u32(&c), n = cursor_u16(&c);
    if (!c.short_read && n > FAIL_MAX_TEXT)
        return err_set(e, ERR_LIMIT, "a failure's text of %u bytes, at most %u are allowed", (unsigned)n,
                       FAIL_MAX_TEXT);
    const uint8_t *text = cursor_bytes(&c, n);
    enum err_code rc = cursor_finish(&c, "failure", e);
    if (rc != OK)
        return rc;
    *out = (struct frame_fail){.code = err_known(code) ? (enum err_code)code : ERR_PROTOCOL, .rank = rank};
    text_clean(text, n, out->text, sizeof out->text);
    return OK;
}
