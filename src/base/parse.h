/* SPDX-License-Identifier: MIT
 *
 * Strict conversions between text and numbers, for options and configuration. The whole text must be the number.
 */
#ifndef KVASIR_BASE_PARSE_H
#define KVASIR_BASE_PARSE_H

#include "base/err.h"

#include <stddef.h>

/* Decimal in [min, max]; ERR_ARG names `what`, the text and the range. */
enum err_code parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out,
                        struct err *e) KV_MUST_USE;
enum err_code parse_u32(const char *what, const char *text, uint32_t min, uint32_t max, uint32_t *out,
                        struct err *e) KV_MUST_USE;
enum err_code parse_i64(const char *what, const char *text, int64_t min, int64_t max, int64_t *out,
                        struct err *e) KV_MUST_USE;

/* Finite decimal in [min, max]. */
enum err_code parse_f64(const char *what, const char *text, double min, double max, double *out,
                        struct err *e) KV_MUST_USE;

/* "a:b", half-open, a < b. ERR_ARG. */
enum err_code parse_window(const char *text, uint32_t *first, uint32_t *end, struct err *e) KV_MUST_USE;

/* "1536", "500k", "20M", "1G", "2T": powers of 1024; at most 2^62. */
enum err_code parse_bytes(const char *what, const char *text, uint64_t *out, struct err *e) KV_MUST_USE;

/* 1536 -> "1.5KiB". Binary units, one decimal. Returns out. */
const char *parse_fmt_bytes(uint64_t bytes, char out[16]);

#endif
