/* SPDX-License-Identifier: MIT
 *
 * Sending what has a length and an ETag: preconditions (RFC 9110 §13), one range (§14), HEAD. A request for several
 * ranges is answered with the whole, which §14.2 allows; one that is malformed or lies beyond the end with 416.
 */
#include "shard/origin_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Digits to a number that saturates; false: none. */
static bool take_number(const char **s, uint64_t *out)
{
    const char *p = *s;
    uint64_t n = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        const uint64_t digit = (uint64_t)(*p - '0');
        n = n > (UINT64_MAX - digit) / 10 ? UINT64_MAX : n * 10 + digit;
    }
    if (p == *s)
        return false;
    *s = p;
    *out = n;
    return true;
}

static const char *skip_blanks(const char *s)
{
    return s + strspn(s, " \t");
}

enum origin_range origin_range_parse(const char *text, uint64_t size, uint64_t *first, uint64_t *len)
{
    uint64_t a = 0, b = UINT64_MAX;
    if (!text || strncasecmp(text, "bytes=", 6) != 0 || strchr(text, ','))
        return ORIGIN_RANGE_NONE;
    const char *s = skip_blanks(text + 6);
    const bool suffix = *s == '-';
    if (!suffix && !take_number(&s, &a))
        return ORIGIN_RANGE_BAD;
    if (*s++ != '-')
        return ORIGIN_RANGE_BAD;
    const bool has_end = take_number(&s, &b);
    if (*skip_blanks(s) || (suffix && !has_end) || (!suffix && b < a))
        return ORIGIN_RANGE_BAD;
    if (suffix) {
        if (b == 0 || size == 0)
            return ORIGIN_RANGE_BAD;
        *len = b < size ? b : size;
        *first = size - *len;
        return ORIGIN_RANGE_PART;
    }
    if (a >= size)
        return ORIGIN_RANGE_BAD;
    *first = a;
    *len = b < size ? b - a + 1 : size - a;
    return ORIGIN_RANGE_PART;
}

/* --- preconditions ------------------------------------------------------------------------------- */

/* Does a list of ETags have this one? weak: W/ does not count. */
static bool etag_listed(const char *list, const char *etag, bool weak)
{
    const size_t n = strlen(etag);
    const char *s = list;
    for (;;) {
        s += strspn(s, " \t,");
        if (!*s)
            return false;
        if (*s == '*')
            return true;
        const bool is_weak = strncmp(s, "W/", 2) == 0;
        s += is_weak ? 2 : 0;
        const char *close = *s == '"' ? strchr(s + 1, '"') : NULL;
        if (!close)
            return false;
        const size_t len = (size_t)(close - s) + 1;
        if (len == n && memcmp(s, etag, n) == 0 && (weak || !is_weak))
            return true;
        s = close + 1;
    }
}

static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

static void put_date(time_t t, char out[40])
{
    struct tm tm;
    if (!gmtime_r(&t, &tm)) {
        out[0] = 0;
        return;
    }
    snprintf(out, 40, "%.3s, %02u %.3s %04u %02u:%02u:%02u GMT", days + 3 * (size_t)tm.tm_wday,
             (unsigned)tm.tm_mday % 100, months + 3 * (size_t)tm.tm_mon, (unsigned)(tm.tm_year + 1900) % 10000,
             (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
}

/* A date of the one form that is written today (§5.6.7); -1: it is none. */
static time_t read_date(const char *s)
{
    char again[40];
    struct tm tm = {0};
    const char *end = s ? strptime(s, "%a, %d %b %Y %H:%M:%S GMT", &tm) : NULL;
    if (!end || *end)
        return -1;
    const time_t t = timegm(&tm);
    put_date(t, again);
    return strcmp(again, s) == 0 ? t : -1; /* the very form, and the right day of the week */
}

/* §13.2.2 as far as it goes for files: 0: go on, else 304 or 412. */
static unsigned precondition(const struct http_request *r, const struct origin_body *b)
{
    const char *match = http_header(r, "if-match"), *none = http_header(r, "if-none-match");
    const time_t unmodified = read_date(http_header(r, "if-unmodified-since"));
    const time_t modified = read_date(http_header(r, "if-modified-since"));
    if (match ? !etag_listed(match, b->etag, false) : unmodified >= 0 && b->mtime > unmodified)
        return 412;
    if (none ? etag_listed(none, b->etag, true) : modified >= 0 && b->mtime > 0 && b->mtime <= modified)
        return 304;
    return 0;
}

/* Is a range of this state wanted, or the whole when it is another? A date must be the very one, and so old that no
 * second change can have had the same (§8.8.2.2). */
static bool if_range(const struct http_request *r, const struct origin_body *b)
{
    const char *text = http_header(r, "if-range");
    if (!text)
        return true;
    if (*text == '"')
        return strcmp(text, b->etag) == 0;
    const time_t t = read_date(text);
    return t >= 0 && t == b->mtime && time(NULL) - t >= 1;
}

/* --- sending ------------------------------------------------------------------------------------- */

static bool read_range(void *ctx, uint64_t offset, void *data, size_t len)
{
    struct origin_exchange *x = ctx;
    return x->read(x, x->offset + offset, data, len);
}

static bool place_range(void *ctx, uint64_t offset, struct http_place *out)
{
    struct origin_exchange *x = ctx;
    return x->place && x->place(x, x->offset + offset, out);
}

static void on_sent(void *ctx, size_t len)
{
    struct origin_exchange *x = ctx;
    atomic_fetch_add(&x->o->body_bytes, len);
    x->model->sent_bytes += len;
    x->sent_bytes += len;
}

void origin_send(struct origin_exchange *x, const struct origin_body *b)
{
    struct buf lines = {0};
    char date[40];
    uint64_t len = b->size;
    const bool get = strcmp(http_method(x->r), "GET") == 0;
    unsigned status = precondition(x->r, b);
    const char *range = get && if_range(x->r, b) ? http_header(x->r, "range") : NULL; /* §14.2: of GET alone */
    buf_printf(&lines, "ETag: %s\r\nAccept-Ranges: bytes\r\nCache-Control: no-transform\r\n", b->etag);
    if (b->mtime > 0) {
        put_date(b->mtime, date);
        buf_printf(&lines, "Last-Modified: %s\r\n", date);
    }
    if (status == 0) {
        switch (origin_range_parse(range, b->size, &x->offset, &len)) {
        case ORIGIN_RANGE_NONE:
            status = 200;
            break;
        case ORIGIN_RANGE_PART:
            status = 206;
            buf_printf(&lines, "Content-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n", x->offset,
                       x->offset + len - 1, b->size);
            break;
        case ORIGIN_RANGE_BAD:
            status = 416;
            buf_printf(&lines, "Content-Range: bytes */%" PRIu64 "\r\n", b->size);
        }
    }
    x->read = b->read;
    x->place = b->place;
    const struct http_reply reply = {.status = status, .type = b->type, .headers = buf_str(&lines)};
    const struct http_reply bare = {.status = status, .headers = reply.headers};
    if (lines.failed)
        origin_say(x->r, 500, NULL, "out of memory");
    else if (status == 412)
        origin_say(x->r, status, reply.headers, "this is another version than the one that was asked for");
    else if (status == 416)
        origin_say(x->r, status, reply.headers, "the range \"%.60s\" is none of these %" PRIu64 " bytes", range,
                   b->size);
    else if (status == 304)
        http_respond(x->r, &bare, NULL, 0);
    else
        http_send(
            x->r, &reply,
            &(struct http_source){.length = len, .ctx = x, .read = read_range, .place = place_range, .sent = on_sent});
    buf_free(&lines);
}
