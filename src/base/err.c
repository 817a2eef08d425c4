/* SPDX-License-Identifier: MIT */
#include "base/err.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HEAD_SIZE  1024u /* what is longer is cut before it is looked at */
#define LEAST_HEAD 64u   /* bytes of a long context that stay in front of a long message */

/* The most of text's first n bytes that does not end within a UTF-8 character. */
static size_t whole(const char *text, size_t n)
{
    size_t lead = n;
    uint32_t rune;
    while (lead > 0 && n - lead < 3 && ((unsigned char)text[lead - 1] & 0xc0) == 0x80)
        lead--;
    if (lead == 0 || (unsigned char)text[lead - 1] < 0xc0)
        return n;
    return text_utf8(text + lead - 1, n - lead + 1, &rune) ? n : lead - 1;
}

static void end_whole(struct err *e)
{
    size_t n = strlen(e->msg);
    if (n == sizeof e->msg - 1)
        e->msg[whole(e->msg, n)] = 0;
}

/* The message: head and tail. Where both are too long, the end of the head is left out, for the tail says what was
 * wrong. */
static void put_joined(struct err *e, const char *head, const char *tail)
{
    const size_t size = sizeof e->msg, n_head = strlen(head), n_tail = strlen(tail);
    const size_t room = n_tail < size - 1 - LEAST_HEAD ? size - 1 - n_tail : LEAST_HEAD;
    if (n_head <= room)
        snprintf(e->msg, size, "%s%s", head, tail);
    else
        snprintf(e->msg, size, "%.*s...%s", (int)whole(head, room - 3), head, tail);
    end_whole(e);
}

enum err_code err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        *e = (struct err){.code = code, .offset = -1};
        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
        end_whole(e);
    }
    return code;
}

enum err_code err_set_os(struct err *e, enum err_code code, int os, const char *fmt, ...)
{
    if (e) {
        char head[HEAD_SIZE], text[96], tail[100];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(head, sizeof head, fmt, ap);
        va_end(ap);
        *e = (struct err){.code = code, .os = os, .offset = -1};
        snprintf(tail, sizeof tail, ": %s", strerror_r(os, text, sizeof text));
        put_joined(e, head, tail);
    }
    return code;
}

enum err_code err_set_at(struct err *e, enum err_code code, int64_t offset, const char *fmt, ...)
{
    if (e) {
        char head[HEAD_SIZE], tail[40];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(head, sizeof head, fmt, ap);
        va_end(ap);
        *e = (struct err){.code = code, .offset = offset};
        snprintf(tail, sizeof tail, " (at byte %lld)", (long long)offset);
        put_joined(e, head, tail);
    }
    return code;
}

enum err_code err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ERR_INTERNAL;
    char head[HEAD_SIZE], tail[sizeof e->msg + 2];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    snprintf(tail, sizeof tail, ": %s", e->msg);
    put_joined(e, head, tail);
    return e->code;
}

const char *err_name(enum err_code code)
{
    switch (code) {
#define X(name, value, text)                                                                                           \
    case name:                                                                                                         \
        return #name;
        ERR_CODES(X)
#undef X
    }
    return "ERR_UNKNOWN";
}

const char *err_text(enum err_code code)
{
    switch (code) {
#define X(name, value, text)                                                                                           \
    case name:                                                                                                         \
        return text;
        ERR_CODES(X)
#undef X
    }
    return "unknown error";
}

bool err_known(int32_t value)
{
    switch (value) {
#define X(name, val, text)                                                                                             \
    case val:                                                                                                          \
        return true;
        ERR_CODES(X)
#undef X
    default:
        return false;
    }
}
