/* SPDX-License-Identifier: MIT
 *
 * Reference outputs: the arrays of tests/data/golden/<stem>.bin (format: tests/data/README.md) and the measures that
 * compare ours with them. The whole file is held in memory; arrays are views into it, so they live until golden_close.
 * Read-only after opening.
 */
#ifndef KVASIR_TESTS_GOLDEN_H
#define KVASIR_TESTS_GOLDEN_H

#include "base/err.h"

#include <stddef.h>

struct golden; /* opaque */

enum golden_type { GOLDEN_F32 = 0, GOLDEN_I32 = 1 };

/* One array, row-major: dim[0] is the slowest. */
struct golden_array {
    char name[33];
    enum golden_type type;
    uint32_t n_dims;  /* 1..4 */
    size_t dim[4];    /* 1 beyond n_dims */
    size_t n;         /* elements in all */
    const void *data; /* [n] float or int32_t */
};

/* ERR_NOT_FOUND, ERR_IO, ERR_NOMEM; ERR_FORMAT with the offset when an array leaves the file or is described wrongly.
 */
enum err_code golden_open(const char *path, struct golden **out, struct err *e) KV_MUST_USE;
enum err_code golden_open_mem(const void *data, size_t len, struct golden **out,
                              struct err *e) KV_MUST_USE; /* copies */
void golden_close(struct golden *g);

size_t golden_n_arrays(const struct golden *g);
const struct golden_array *golden_array_at(const struct golden *g, size_t i);     /* NULL when out of range */
const struct golden_array *golden_find(const struct golden *g, const char *name); /* NULL when missing */

/* An array as [rows][cols]: cols is the last dimension, rows the product of the others (a vector is one row). rows and
 * cols may be NULL. NULL when there is no such array of that type: a test asserts on it. */
const float *golden_f32(const struct golden *g, const char *name, size_t *rows, size_t *cols);
const int32_t *golden_i32(const struct golden *g, const char *name, size_t *rows, size_t *cols);

/* Plane i of a three-dimensional f32 array, for example "short.hidden" after block i - 1: [rows][cols]. NULL when there
 * is none. */
const float *golden_plane(const struct golden *g, const char *name, size_t i, size_t *rows, size_t *cols);

/* --- measures --- */

/* sum((x - ref)^2) / sum((ref - mean(ref))^2) over one row of logits. A NaN or infinity anywhere gives infinity; a
 * constant ref gives 0 when x equals it and infinity when not. */
double golden_nmse_logits(const float *x, const float *ref, size_t n);

/* sum((x - ref)^2) / sum(ref^2), for hidden states. The same rules. */
double golden_nmse_hidden(const float *x, const float *ref, size_t n);

/* Index of the largest value, the lowest among equals. n > 0. */
size_t golden_argmax(const float *x, size_t n);

/* Rows of logits against a reference. */
struct golden_match {
    size_t n;             /* rows compared */
    size_t n_same_argmax; /* rows whose best token agrees */
    double worst, median; /* NMSE over the rows; the median of an even number is the upper of the two */
    size_t worst_row;
};

/* x, ref: [rows][cols]; rows and cols > 0. ERR_NOMEM. */
enum err_code golden_compare_logits(const float *x, const float *ref, size_t rows, size_t cols,
                                    struct golden_match *out, struct err *e) KV_MUST_USE;

/* The largest NMSE of any row of hidden states. */
double golden_worst_hidden(const float *x, const float *ref, size_t rows, size_t cols);

#endif
