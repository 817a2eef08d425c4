/* SPDX-License-Identifier: MIT
 *
 * Bytes: a growing buffer to write into and a bounds-checked cursor to read from, both little-endian, both with a
 * sticky error so that a run of puts or gets is checked once at its end. Not thread-safe.
 */
#ifndef KVASIR_BASE_BUF_H
#define KVASIR_BASE_BUF_H

#include "base/err.h"

#include <stddef.h>

/* Owns data. {0} is an empty buffer. */
struct buf {
    uint8_t *data;
    size_t len, cap;
    bool failed; /* an allocation failed; later puts do nothing */
};

void buf_free(struct buf *b);
void buf_clear(struct buf *b); /* keeps the memory */

/* Makes room for n more bytes and returns where they go (len is not moved), NULL when out of memory. */
uint8_t *buf_reserve(struct buf *b, size_t n);
void buf_put(struct buf *b, const void *data, size_t n);
void buf_put_u8(struct buf *b, uint8_t v);
void buf_put_u16(struct buf *b, uint16_t v);
void buf_put_u32(struct buf *b, uint32_t v);
void buf_put_u64(struct buf *b, uint64_t v);
void buf_put_f32(struct buf *b, float v);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) KV_PRINTF(2, 3);

/* NUL-terminates (the NUL is not counted in len) and returns the text, "" when empty or out of memory. */
const char *buf_str(struct buf *b);

/* Unaligned little-endian access to raw bytes. */
void le_put_u16(uint8_t *p, uint16_t v);
void le_put_u32(uint8_t *p, uint32_t v);
void le_put_u64(uint8_t *p, uint64_t v);
uint16_t le_get_u16(const uint8_t *p);
uint32_t le_get_u32(const uint8_t *p);
uint64_t le_get_u64(const uint8_t *p);

/* Borrows data. After the first get past the end every get returns 0/NULL and `short_read` stays set. */
struct cursor {
    const uint8_t *data;
    size_t len, pos;
    bool short_read;
};

struct cursor cursor_of(const void *data, size_t len);
size_t cursor_left(const struct cursor *c);
uint8_t cursor_u8(struct cursor *c);
uint16_t cursor_u16(struct cursor *c);
uint32_t cursor_u32(struct cursor *c);
uint64_t cursor_u64(struct cursor *c);
float cursor_f32(struct cursor *c);

/* A view of the next n bytes, NULL when there are fewer. */
const uint8_t *cursor_bytes(struct cursor *c, size_t n);

/* OK when nothing was read past the end and nothing is left over; else ERR_FORMAT with the offset. */
enum err_code cursor_finish(const struct cursor *c, const char *what, struct err *e) KV_MUST_USE;

#endif
