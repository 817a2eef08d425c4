/* SPDX-License-Identifier: MIT */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void err_vfill(struct err *e, enum err_code code, const char *fmt, va_list ap) KV_PRINTF(3, 0);

static void err_vfill(struct err *e, enum err_code code, const char *fmt, va_list ap)
{
    e->code = code;
    e->os = 0;
    e->offset = -1;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
}

enum err_code err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        err_vfill(e, code, fmt, ap);
        va_end(ap);
    }
    return code;
}

static void err_append(struct err *e, const char *fmt, ...) KV_PRINTF(2, 3);

static void err_append(struct err *e, const char *fmt, ...)
{
    size_t n = strlen(e->msg);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg + n, sizeof e->msg - n, fmt, ap);
    va_end(ap);
}

enum err_code err_set_os(struct err *e, enum err_code code, int os, const char *fmt, ...)
{
    if (e) {
        char text[96];
        va_list ap;
        va_start(ap, fmt);
        err_vfill(e, code, fmt, ap);
        va_end(ap);
        e->os = os;
        err_append(e, ": %s", strerror_r(os, text, sizeof text));
    }
    return code;
}

enum err_code err_set_at(struct err *e, enum err_code code, int64_t offset, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        err_vfill(e, code, fmt, ap);
        va_end(ap);
        e->offset = offset;
        err_append(e, " (at byte %lld)", (long long)offset);
    }
    return code;
}

enum err_code err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ERR_INTERNAL;
    char old[sizeof e->msg];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    err_append(e, ": %s", old);
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
