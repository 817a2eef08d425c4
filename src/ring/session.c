/* SPDX-License-Identifier: MIT
 *
 * Records and the frames in them. The reader opens each record in place, in the buffer that the socket filled, and
 * hands out a frame that lies wholly in one record without copying it; only a frame that spans records is put together.
 */
#include "ring/session.h"

#include <stdlib.h>
#include <string.h>

#define RECORD_WIRE_MAX (SESSION_RECORD_MAX + SESSION_RECORD_EXTRA)
#define IN_CAP          ((size_t)2 * RECORD_WIRE_MAX)

void session_init(struct session *s, enum seal_cipher cipher, const uint8_t tx[SEAL_KEY_BYTES],
                  const uint8_t rx[SEAL_KEY_BYTES])
{
    seal_key_init(&s->tx, cipher, tx);
    seal_key_init(&s->rx, cipher, rx);
}

void session_wipe(struct session *s)
{
    seal_key_wipe(&s->tx);
    seal_key_wipe(&s->rx);
}

size_t session_wire_bytes(size_t n)
{
    size_t records = n / SESSION_RECORD_MAX + (n % SESSION_RECORD_MAX != 0);
    return n + records * SESSION_RECORD_EXTRA;
}

void session_seal(struct session *s, const void *data, size_t len, uint8_t *out)
{
    le_put_u32(out, (uint32_t)(len + SEAL_TAG_BYTES));
    seal_put(&s->tx, out, SESSION_HEAD_BYTES, data, len, out + SESSION_HEAD_BYTES);
}

enum err_code session_reader_init(struct session_reader *r, struct session *s, struct err *e)
{
    uint8_t *in = malloc(IN_CAP);
    if (!in)
        return err_set(e, ERR_NOMEM, "no memory for a session's receive buffer");
    *r = (struct session_reader){.session = s, .in = in};
    return OK;
}

void session_reader_fini(struct session_reader *r)
{
    free(r->in);
    buf_free(&r->frame);
    *r = (struct session_reader){0};
}

uint8_t *session_reader_room(struct session_reader *r, size_t *n)
{
    /* Everything opened was taken by session_reader_next, so only the start of a sealed record can be left. It moves to
     * the front when a whole record might not fit behind it. */
    if (r->in_pos == r->in_len) {
        r->in_pos = r->in_len = 0;
    } else if (IN_CAP - r->in_pos < RECORD_WIRE_MAX || r->in_len == IN_CAP) {
        memmove(r->in, r->in + r->in_pos, r->in_len - r->in_pos);
        r->in_len -= r->in_pos;
        r->in_pos = 0;
    }
    *n = IN_CAP - r->in_len;
    return r->in + r->in_len;
}

void session_reader_got(struct session_reader *r, size_t n)
{
    r->in_len += n;
}

/* Opens the next whole record, if one is here. */
static enum err_code open_record(struct session_reader *r, bool *opened, struct err *e)
{
    uint8_t *head = r->in + r->in_pos;
    const size_t have = r->in_len - r->in_pos;
    *opened = false;
    if (have < SESSION_HEAD_BYTES)
        return OK;
    const uint32_t len = le_get_u32(head);
    if (len <= SEAL_TAG_BYTES || len > SESSION_RECORD_MAX + SEAL_TAG_BYTES)
        return err_set(e, ERR_LIMIT, "record of %u bytes: %u to %u are allowed", len, SEAL_TAG_BYTES + 1,
                       SESSION_RECORD_MAX + SEAL_TAG_BYTES);
    if (have - SESSION_HEAD_BYTES < len)
        return OK;
    uint8_t *body = head + SESSION_HEAD_BYTES;
    enum err_code rc = seal_get(&r->session->rx, head, SESSION_HEAD_BYTES, body, len, body, e);
    if (rc != OK)
        return rc;
    r->in_pos += SESSION_HEAD_BYTES + len;
    r->plain = body;
    r->plain_left = len - SEAL_TAG_BYTES;
    *opened = true;
    return OK;
}

/* A frame that lies wholly in the open record. *found stays false when it does not. */
static enum err_code take_whole(struct session_reader *r, bool *found, struct frame_header *h, const uint8_t **payload,
                                struct err *e)
{
    struct frame_header head;
    if (r->plain_left < FRAME_HEADER_BYTES)
        return OK;
    enum err_code rc = frame_header_get(r->plain, &head, e);
    if (rc != OK || r->plain_left - FRAME_HEADER_BYTES < head.length)
        return rc;
    *h = head;
    *payload = r->plain + FRAME_HEADER_BYTES;
    *found = true;
    r->plain += FRAME_HEADER_BYTES + head.length;
    r->plain_left -= FRAME_HEADER_BYTES + head.length;
    return OK;
}

/* Moves bytes of the open record to the frame being put together until that has `want`. */
static enum err_code gather(struct session_reader *r, size_t want, struct err *e)
{
    size_t n = want - r->frame.len;
    if (n > r->plain_left)
        n = r->plain_left;
    if (!buf_reserve(&r->frame, want - r->frame.len))
        return err_set(e, ERR_NOMEM, "no memory for a frame of %zu bytes", want);
    buf_put(&r->frame, r->plain, n);
    r->plain += n;
    r->plain_left -= n;
    return OK;
}

static enum err_code take_spanning(struct session_reader *r, bool *found, struct frame_header *h,
                                   const uint8_t **payload, struct err *e)
{
    struct frame_header head;
    enum err_code rc = OK;
    if (r->frame.len < FRAME_HEADER_BYTES)
        rc = gather(r, FRAME_HEADER_BYTES, e);
    if (rc != OK || r->frame.len < FRAME_HEADER_BYTES)
        return rc;
    rc = frame_header_get(r->frame.data, &head, e);
    if (rc == OK)
        rc = gather(r, FRAME_HEADER_BYTES + (size_t)head.length, e);
    if (rc != OK || r->frame.len < FRAME_HEADER_BYTES + (size_t)head.length)
        return rc;
    *h = head;
    *payload = r->frame.data + FRAME_HEADER_BYTES;
    *found = true;
    r->frame_given = true;
    return OK;
}

static enum err_code next_frame(struct session_reader *r, bool *found, struct frame_header *h, const uint8_t **payload,
                                struct err *e)
{
    for (;;) {
        enum err_code rc = OK;
        bool opened;
        if (r->frame.len == 0)
            rc = take_whole(r, found, h, payload, e);
        if (rc == OK && !*found && r->plain_left > 0)
            rc = take_spanning(r, found, h, payload, e);
        if (rc != OK || *found)
            return rc;
        rc = open_record(r, &opened, e);
        if (rc != OK || !opened)
            return rc;
    }
}

enum err_code session_reader_next(struct session_reader *r, bool *found, struct frame_header *h,
                                  const uint8_t **payload, struct err *e)
{
    *found = false;
    if (r->frame_given) {
        buf_clear(&r->frame);
        r->frame_given = false;
    }
    if (r->err.code == OK) {
        struct err first;
        if (next_frame(r, found, h, payload, &first) == OK)
            return OK;
        r->err = first;
        *found = false;
    }
    if (e)
        *e = r->err;
    return r->err.code;
}

bool session_reader_partial(const struct session_reader *r)
{
    return r->in_len > r->in_pos || r->plain_left > 0 || (r->frame.len > 0 && !r->frame_given);
}
