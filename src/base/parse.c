/* SPDX-License-Identifier: MIT */
#include "base/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum err_code parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out, struct err *e)
{
    char *end = NULL;
    errno = 0;
    unsigned long long v = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    if (!end || *end || errno)
        return err_set(e, ERR_ARG, "%s: '%s' is not a whole number", what, text);
    if (v < min || v > max)
        return err_set(e, ERR_ARG, "%s: %s is not in %" PRIu64 "..%" PRIu64, what, text, min, max);
    *out = v;
    return OK;
}

enum err_code parse_u32(const char *what, const char *text, uint32_t min, uint32_t max, uint32_t *out, struct err *e)
{
    uint64_t v;
    enum err_code rc = parse_u64(what, text, min, max, &v, e);
    if (rc == OK)
        *out = (uint32_t)v;
    return rc;
}

enum err_code parse_i64(const char *what, const char *text, int64_t min, int64_t max, int64_t *out, struct err *e)
{
    char *end = NULL;
    errno = 0;
    bool digits = (text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1] >= '0' && text[1] <= '9');
    long long v = digits ? strtoll(text, &end, 10) : 0;
    if (!end || *end || errno)
        return err_set(e, ERR_ARG, "%s: '%s' is not a whole number", what, text);
    if (v < min || v > max)
        return err_set(e, ERR_ARG, "%s: %s is not in %" PRId64 "..%" PRId64, what, text, min, max);
    *out = v;
    return OK;
}

enum err_code parse_f64(const char *what, const char *text, double min, double max, double *out, struct err *e)
{
    char *end = NULL;
    bool decimal = text[0] && text[strspn(text, "0123456789+-.eE")] == 0; /* strtod reads hex, names and white space */
    double v = decimal ? strtod(text, &end) : 0;
    if (!end || *end || !isfinite(v))
        return err_set(e, ERR_ARG, "%s: '%s' is not a number", what, text);
    if (v < min || v > max)
        return err_set(e, ERR_ARG, "%s: %s is not in %g..%g", what, text, min, max);
    *out = v;
    return OK;
}

enum err_code parse_window(const char *text, uint32_t *first, uint32_t *end, struct err *e)
{
    char left[16];
    const char *colon = strchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    uint32_t a, b;
    if (!colon || n >= sizeof left)
        return err_set(e, ERR_ARG, "window '%s' is not of the form FIRST:END, for example 0:8", text);
    memcpy(left, text, n);
    left[n] = 0;
    enum err_code rc = parse_u32("window", left, 0, 1u << 20, &a, e);
    if (rc == OK)
        rc = parse_u32("window", colon + 1, 0, 1u << 20, &b, e);
    if (rc != OK)
        return rc;
    if (a >= b)
        return err_set(e, ERR_ARG, "window %s is empty: the end must be greater than the first block", text);
    *first = a;
    *end = b;
    return OK;
}

enum err_code parse_bytes(const char *what, const char *text, uint64_t *out, struct err *e)
{
    static const char units[] = "kMGT";
    char digits[24];
    const size_t n = strlen(text);
    const char *unit = n > 0 ? strchr(units, text[n - 1]) : NULL;
    const uint64_t factor = unit ? 1024ull << 10 * (unit - units) : 1;
    const size_t n_digits = unit ? n - 1 : n;
    if (n_digits < sizeof digits) {
        memcpy(digits, text, n_digits);
        digits[n_digits] = 0;
        if (parse_u64(what, digits, 0, (1ull << 62) / factor, out, NULL) == OK) {
            *out *= factor;
            return OK;
        }
    }
    return err_set(e, ERR_ARG, "%s: '%.40s' is not a number of bytes, for example 500k, 20M or 1G", what, text);
}

const char *parse_fmt_bytes(uint64_t bytes, char out[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < sizeof units / sizeof *units) {
        v /= 1024;
        u++;
    }
    snprintf(out, 16, u == 0 ? "%.0f%s" : "%.1f%s", v, units[u]);
    return out;
}
