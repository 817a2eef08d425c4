/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include <string.h>

size_t text_utf8(const void *p, size_t left, uint32_t *rune)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *s = p;
    if (left == 0)
        return 0;
    if (s[0] < 0x80) {
        *rune = s[0];
        return 1;
    }
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n > left)
        return 0;
    uint32_t v = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (s[i] & 0x3fu);
    }
    if (v < smallest[n] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
        return 0;
    *rune = v;
    return n;
}

static bool is_control(uint32_t rune)
{
    return rune < 0x20 || (rune >= 0x7f && rune < 0xa0);
}

bool text_valid(const void *s, size_t n)
{
    const uint8_t *p = s;
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t rune;
        k = text_utf8(p + i, n - i, &rune);
        if (k == 0)
            return false;
    }
    return true;
}

bool text_printable(const void *s, size_t n)
{
    const uint8_t *p = s;
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t rune = 0;
        k = text_utf8(p + i, n - i, &rune);
        if (k == 0 || is_control(rune))
            return false;
    }
    return true;
}

const char *text_clean(const void *s, size_t n, char *out, size_t size)
{
    const uint8_t *p = s;
    size_t at = 0;
    for (size_t i = 0; i < n;) {
        uint32_t rune = 0;
        size_t k = text_utf8(p + i, n - i, &rune);
        bool keep = k > 0 && !is_control(rune);
        size_t w = keep ? k : 1;
        if (at + w >= size)
            break;
        if (keep)
            memcpy(out + at, p + i, k);
        else
            out[at] = '?';
        at += w;
        i += k ? k : 1;
    }
    if (size > 0)
        out[at] = 0;
    return out;
}

void text_put_json(struct buf *out, const void *s, size_t n)
{
    /* Position i escapes the control character i as a backslash and this letter; '.' where there is no short form. */
    static const char letters[] = "........btn.fr..................";
    const uint8_t *p = s;
    buf_put_u8(out, '"');
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '"' || p[i] == '\\')
            buf_put_u8(out, '\\');
        if (p[i] >= 0x20)
            buf_put_u8(out, p[i]);
        else if (letters[p[i]] == '.')
            buf_printf(out, "\\u%04x", (unsigned)p[i]);
        else
            buf_printf(out, "\\%c", letters[p[i]]);
    }
    buf_put_u8(out, '"');
}

void text_put_url(struct buf *out, const char *name)
{
    for (; *name; name++) {
        const unsigned char ch = (unsigned char)*name;
        if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') || strchr("-._~", ch))
            buf_put_u8(out, ch);
        else
            buf_printf(out, "%%%02X", ch);
    }
}
