/* SPDX-License-Identifier: MIT */
#include "http/sse.h"

#include <string.h>

#define BOM     "\xef\xbb\xbf"
#define BOM_LEN 3u

void sse_fini(struct sse *s)
{
    buf_free(&s->line);
    buf_free(&s->data);
}

/* The event is complete. One without data is none. */
static enum err_code end_event(struct sse *s, struct err *e)
{
    bool go_on = true;
    if (s->has_data && s->data.len > 0) {
        const char *text = buf_str(&s->data);
        if (s->data.failed)
            return err_set(e, ERR_NOMEM, "out of memory for an event of %zu bytes", s->data.len);
        go_on = s->on_event(s->ctx, text, s->data.len);
    }
    buf_clear(&s->data);
    s->has_data = false;
    return go_on ? OK : err_set(e, ERR_CANCELLED, "the reader has enough");
}

/* "name: value", "name:value", "name"; a comment has no name. */
static enum err_code end_line(struct sse *s, struct err *e)
{
    const uint8_t *p = s->line.data;
    size_t n = s->line.len;
    if (n == 0)
        return end_event(s, e);
    const uint8_t *colon = memchr(p, ':', n);
    size_t n_name = colon ? (size_t)(colon - p) : n;
    if (n_name == 4 && memcmp(p, "data", 4) == 0) {
        size_t at = colon ? n_name + 1 : n;
        if (at < n && p[at] == ' ')
            at++;
        if (s->data.len + (n - at) > SSE_MAX_EVENT)
            return err_set(e, ERR_LIMIT, "an event has more than %u bytes", SSE_MAX_EVENT);
        if (s->has_data)
            buf_put_u8(&s->data, '\n');
        buf_put(&s->data, p + at, n - at);
        s->has_data = true;
    }
    buf_clear(&s->line);
    return s->data.failed ? err_set(e, ERR_NOMEM, "out of memory for an event") : OK;
}

static enum err_code add(struct sse *s, const uint8_t *p, size_t n, struct err *e)
{
    if (n > SSE_MAX_EVENT - s->line.len)
        return err_set(e, ERR_LIMIT, "a line of the event stream has more than %u bytes", SSE_MAX_EVENT);
    buf_put(&s->line, p, n);
    return s->line.failed ? err_set(e, ERR_NOMEM, "out of memory for an event") : OK;
}

/* The stream may begin with a byte order mark, itself in pieces. */
static void drop_bom(struct sse *s, size_t n)
{
    size_t before = s->n_seen;
    s->n_seen = before + n < BOM_LEN ? before + n : BOM_LEN;
    if (before < BOM_LEN && s->line.len == BOM_LEN && memcmp(s->line.data, BOM, BOM_LEN) == 0)
        buf_clear(&s->line);
}

enum err_code sse_feed(struct sse *s, const void *bytes, size_t n, struct err *e)
{
    const uint8_t *p = bytes, *end = p + n;
    enum err_code rc = OK;
    while (rc == OK && p < end) {
        if (s->after_cr && *p == '\n') { /* the second half of a line end */
            s->after_cr = false;
            p++;
            continue;
        }
        s->after_cr = false;
        const uint8_t *stop = p;
        /* The first bytes one by one, for the byte order mark. */
        const uint8_t *limit = s->n_seen < BOM_LEN ? p + 1 : end;
        while (stop < limit && *stop != '\n' && *stop != '\r')
            stop++;
        rc = add(s, p, (size_t)(stop - p), e);
        bool at_end = stop < limit;
        if (rc == OK)
            drop_bom(s, (size_t)(stop - p) + at_end);
        p = stop;
        if (rc == OK && at_end) {
            s->after_cr = *p++ == '\r';
            rc = end_line(s, e);
        }
    }
    return rc;
}
