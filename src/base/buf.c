/* SPDX-License-Identifier: MIT */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
}

uint8_t *buf_reserve(struct buf *b, size_t n)
{
    if (b->failed)
        return NULL;
    if (n <= b->cap - b->len && b->data)
        return b->data + b->len;
    size_t need, cap;
    if (__builtin_add_overflow(b->len, n, &need) || need > SIZE_MAX / 2) {
        b->failed = true;
        return NULL;
    }
    for (cap = b->cap ? b->cap : 64; cap < need;)
        cap *= 2;
    uint8_t *p = realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return NULL;
    }
    b->data = p;
    b->cap = cap;
    return p + b->len;
}

void buf_put(struct buf *b, const void *data, size_t n)
{
    uint8_t *p = buf_reserve(b, n);
    if (p && n) {
        memcpy(p, data, n);
        b->len += n;
    }
}

void le_put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

void le_put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

void le_put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

uint16_t le_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

uint32_t le_get_u32(const uint8_t *p)
{
    uint32_t v = 0;
    for (int i = 3; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

uint64_t le_get_u64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

void buf_put_u8(struct buf *b, uint8_t v)
{
    buf_put(b, &v, 1);
}

void buf_put_u16(struct buf *b, uint16_t v)
{
    uint8_t p[2];
    le_put_u16(p, v);
    buf_put(b, p, sizeof p);
}

void buf_put_u32(struct buf *b, uint32_t v)
{
    uint8_t p[4];
    le_put_u32(p, v);
    buf_put(b, p, sizeof p);
}

void buf_put_u64(struct buf *b, uint64_t v)
{
    uint8_t p[8];
    le_put_u64(p, v);
    buf_put(b, p, sizeof p);
}

void buf_put_f32(struct buf *b, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    buf_put_u32(b, bits);
}

void buf_puts(struct buf *b, const char *s)
{
    buf_put(b, s, strlen(s));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    uint8_t *p = n < 0 ? NULL : buf_reserve(b, (size_t)n + 1);
    if (p) {
        vsnprintf((char *)p, (size_t)n + 1, fmt, ap2);
        b->len += (size_t)n;
    }
    va_end(ap2);
}

const char *buf_str(struct buf *b)
{
    uint8_t *p = buf_reserve(b, 1);
    if (!p)
        return "";
    *p = 0;
    return (const char *)b->data;
}

struct cursor cursor_of(const void *data, size_t len)
{
    return (struct cursor){.data = data, .len = len};
}

size_t cursor_left(const struct cursor *c)
{
    return c->short_read ? 0 : c->len - c->pos;
}

const uint8_t *cursor_bytes(struct cursor *c, size_t n)
{
    if (c->short_read || n > c->len - c->pos) {
        c->short_read = true;
        return NULL;
    }
    const uint8_t *p = c->data + c->pos;
    c->pos += n;
    return p;
}

uint8_t cursor_u8(struct cursor *c)
{
    const uint8_t *p = cursor_bytes(c, 1);
    return p ? *p : 0;
}

uint16_t cursor_u16(struct cursor *c)
{
    const uint8_t *p = cursor_bytes(c, 2);
    return p ? le_get_u16(p) : 0;
}

uint32_t cursor_u32(struct cursor *c)
{
    const uint8_t *p = cursor_bytes(c, 4);
    return p ? le_get_u32(p) : 0;
}

uint64_t cursor_u64(struct cursor *c)
{
    const uint8_t *p = cursor_bytes(c, 8);
    return p ? le_get_u64(p) : 0;
}

float cursor_f32(struct cursor *c)
{
    uint32_t bits = cursor_u32(c);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

enum err_code cursor_finish(const struct cursor *c, const char *what, struct err *e)
{
    if (c->short_read)
        return err_set_at(e, ERR_FORMAT, (int64_t)c->pos, "%s is cut short: %zu bytes", what, c->len);
    if (c->pos != c->len)
        return err_set_at(e, ERR_FORMAT, (int64_t)c->pos, "%s has %zu bytes too many", what, c->len - c->pos);
    return OK;
}
