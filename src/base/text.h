/* SPDX-License-Identifier: MIT
 *
 * Text from strangers: is it UTF-8, may it be printed, and how it is written as JSON. Pure functions.
 */
#ifndef KVASIR_BASE_TEXT_H
#define KVASIR_BASE_TEXT_H

#include "base/buf.h"

/* Bytes of the UTF-8 character at p, its code point in *rune; 0 when there is none in the `left` bytes (RFC 3629 §4:
 * cut, overlong, surrogate, over U+10FFFF). left 0 gives 0. */
size_t text_utf8(const void *p, size_t left, uint32_t *rune);

/* Valid UTF-8? And without control characters (C0, DEL, C1)? */
bool text_valid(const void *s, size_t n);
bool text_printable(const void *s, size_t n);

/* Copies what fits into out[size], NUL-terminated, never half a character; each control character and each byte that is
 * not UTF-8 becomes '?'. Returns out. */
const char *text_clean(const void *s, size_t n, char *out, size_t size);

/* Appends s as a JSON string in the canonical form of RFC 8785 §3.2.2.2: only what must be is escaped. s must be valid
 * UTF-8 (text_valid). */
void text_put_json(struct buf *out, const void *s, size_t n);

/* Appends a name as one segment of a URL's path: what RFC 3986 §2.3 does not leave as it is, in hex. */
void text_put_url(struct buf *out, const char *name);

#endif
