/* SPDX-License-Identifier: MIT
 *
 * A look at a request's head before lws reads it: is it whole, is it small enough, and is it something that lws takes?
 * What lws does not take it answers with a page of its own or by closing, and nobody else hears of it; so all of that
 * is found here and answered like everything else. What would shift the border between two requests is checked in
 * server_head.c, against what lws made of it.
 */
#include "http/server_impl.h"

#include <string.h>
#include <strings.h>

/* lws has room for a fixed number of pieces of known headers and of the query. */
#define MAX_PIECES 64u

static enum head_state bad(struct head_fault *f, unsigned status, const char *text)
{
    *f = (struct head_fault){status, text};
    return HEAD_BAD;
}

bool head_token_char(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Bytes up to and with the empty line that ends a head; 0: it is not here yet. */
static size_t head_len(const char *p, size_t n)
{
    for (const char *at = p, *nl; (nl = memchr(at, '\n', n - (size_t)(at - p))); at = nl + 1) {
        const size_t i = (size_t)(nl - p) + 1;
        if (i < n && p[i] == '\n')
            return i + 1;
        if (i + 1 < n && p[i] == '\r' && p[i + 1] == '\n')
            return i + 2;
    }
    return 0;
}

static enum head_state check_target(const char *p, size_t n, size_t *pieces, struct head_fault *f)
{
    if (n == 0 || *p != '/')
        return bad(f, 400, "What is asked for must be a path: the request line is like GET /path HTTP/1.1.");
    for (size_t i = 0; i < n; i++) {
        *pieces += p[i] == '&';
        if (p[i] != '%')
            continue;
        if (n - i < 3 || !is_hex(p[i + 1]) || !is_hex(p[i + 2]) || (p[i + 1] == '0' && p[i + 2] == '0'))
            return bad(f, 400, "The path has a % that does not stand before the two hex digits of a character.");
    }
    return HEAD_WHOLE;
}

static enum head_state check_request_line(const char *p, size_t n, size_t *pieces, struct head_fault *f)
{
    const char *space = memchr(p, ' ', n);
    const size_t method = space ? (size_t)(space - p) : n;
    if (!space)
        return bad(f, 400, "The request line is not like GET /path HTTP/1.1.");
    if (!head_method(p, method))
        return bad(f, 501, "This method is not known here.");
    const char *target = space + 1, *end = p + n, *after = memchr(target, ' ', (size_t)(end - target));
    return check_target(target, (size_t)((after ? after : end) - target), pieces, f);
}

/* Another protocol than these lws refuses; RFC 9110 §7.8 would let us go on in this one. */
static bool upgrade_ignored(const char *value, size_t n)
{
    while (n && (*value == ' ' || *value == '\t'))
        value++, n--;
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t'))
        n--;
    return (n == 9 && strncasecmp(value, "websocket", n) == 0) || (n == 3 && strncasecmp(value, "h2c", n) == 0);
}

static enum head_state check_header(const char *p, size_t n, struct head_fault *f)
{
    const char *colon = memchr(p, ':', n);
    if (!colon || !head_token_char((unsigned char)*p))
        return bad(f, 400, "A line of the headers is not like Name: value.");
    const size_t name = (size_t)(colon - p);
    if (name == 7 && strncasecmp(p, "upgrade", name) == 0 && !upgrade_ignored(colon + 1, n - name - 1))
        return bad(f, 400, "The connection cannot change to another protocol.");
    return HEAD_WHOLE;
}

enum head_state head_check(const void *data, size_t n, size_t max, struct head_fault *f)
{
    static const char large[] = "The request line and the headers are larger than this server takes.";
    const char *p = data;
    if (n > 0 && !head_token_char((unsigned char)*p))
        return bad(f, 400, "This is no HTTP request; if it is TLS: plain HTTP is spoken here.");
    const size_t len = head_len(p, n);
    if (len > max || (!len && n > max))
        return bad(f, 431, large);
    if (!len)
        return HEAD_PART;
    size_t pieces = 0;
    for (size_t at = 0; at < len;) {
        const char *line = p + at, *nl = memchr(line, '\n', len - at);
        size_t k = (size_t)(nl - line);
        at += k + 1;
        k -= k > 0 && line[k - 1] == '\r';
        if (k == 0)
            break;
        const enum head_state s = line == p ? check_request_line(line, k, &pieces, f) : check_header(line, k, f);
        if (s != HEAD_WHOLE)
            return s;
        if (++pieces > MAX_PIECES)
            return bad(f, 431, "The request has more header lines and parts of a query than this server takes.");
    }
    return HEAD_WHOLE;
}
