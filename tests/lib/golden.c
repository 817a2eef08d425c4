/* SPDX-License-Identifier: MIT
 *
 * Reads the golden arrays. Every count, dimension and offset of the file is checked before it is used, since a
 * truncated checkout should fail with a sentence rather than with a crash.
 */
#include "lib/golden.h"

#include "base/buf.h"
#include "base/io.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_MAX_BYTES   (256u << 20)
#define GOLDEN_ENTRY_BYTES 80u
#define GOLDEN_NAME_BYTES  32u
#define GOLDEN_MAX_ARRAYS  4096u

struct golden {
    void *data; /* the file, aligned for floats */
    size_t len;
    struct golden_array *array; /* [n] */
    size_t n;
};

/* Reads entry i of the table; every field is checked against the file. */
static enum err_code read_entry(const struct golden *g, struct cursor *c, struct golden_array *a, struct err *e)
{
    int64_t at = (int64_t)c->pos;
    const uint8_t *name = cursor_bytes(c, GOLDEN_NAME_BYTES);
    uint32_t type = cursor_u32(c);
    uint32_t n_dims = cursor_u32(c);
    uint64_t dim[4];
    for (size_t d = 0; d < 4; d++)
        dim[d] = cursor_u64(c);
    uint64_t offset = cursor_u64(c);

    if (c->short_read || !name)
        return err_set_at(e, ERR_FORMAT, at, "golden: the table of arrays is cut off");
    memcpy(a->name, name, GOLDEN_NAME_BYTES);
    a->name[GOLDEN_NAME_BYTES] = '\0';
    if (type > GOLDEN_I32)
        return err_set_at(e, ERR_FORMAT, at, "golden: array '%s' has type %u, not 0 or 1", a->name, type);
    if (n_dims < 1 || n_dims > 4)
        return err_set_at(e, ERR_FORMAT, at, "golden: array '%s' has %u dimensions, not 1 to 4", a->name, n_dims);

    a->type = type == GOLDEN_F32 ? GOLDEN_F32 : GOLDEN_I32;
    a->n_dims = n_dims;
    a->n = 1;
    for (size_t d = 0; d < 4; d++) {
        if (dim[d] < 1 || dim[d] > g->len / 4 / a->n || (d >= n_dims && dim[d] != 1))
            return err_set_at(e, ERR_FORMAT, at, "golden: dimension %zu of array '%s' is impossible", d, a->name);
        a->dim[d] = (size_t)dim[d];
        a->n *= a->dim[d];
    }
    if (offset % 4 != 0 || offset > g->len || a->n * 4 > g->len - offset)
        return err_set_at(e, ERR_FORMAT, at, "golden: array '%s' leaves the file", a->name);
    a->data = (const uint8_t *)g->data + offset;
    return OK;
}

static enum err_code read_table(struct golden *g, struct err *e)
{
    struct cursor c = cursor_of(g->data, g->len);
    const uint8_t *magic = cursor_bytes(&c, 4);
    uint32_t version = cursor_u32(&c);
    uint32_t count = cursor_u32(&c);

    cursor_u32(&c); /* zero */
    if (c.short_read || !magic || memcmp(magic, "RGLD", 4) != 0)
        return err_set_at(e, ERR_FORMAT, 0, "golden: does not begin with RGLD");
    if (version != 1)
        return err_set_at(e, ERR_FORMAT, 4, "golden: version %u, not 1", version);
    if (count > GOLDEN_MAX_ARRAYS || cursor_left(&c) / GOLDEN_ENTRY_BYTES < count)
        return err_set_at(e, ERR_FORMAT, 8, "golden: %u arrays do not fit into the file", count);
    g->array = calloc(count ? count : 1, sizeof *g->array);
    if (!g->array)
        return err_set(e, ERR_NOMEM, "golden: out of memory");
    for (g->n = 0; g->n < count; g->n++) {
        enum err_code rc = read_entry(g, &c, &g->array[g->n], e);
        if (rc != OK)
            return rc;
    }
    return OK;
}

enum err_code golden_open_mem(const void *data, size_t len, struct golden **out, struct err *e)
{
    struct golden *g = calloc(1, sizeof *g);
    enum err_code rc;

    if (!g)
        return err_set(e, ERR_NOMEM, "golden: out of memory");
    g->data = malloc(len ? len : 1);
    if (!g->data) {
        free(g);
        return err_set(e, ERR_NOMEM, "golden: out of memory");
    }
    if (len)
        memcpy(g->data, data, len);
    g->len = len;
    rc = read_table(g, e);
    if (rc != OK) {
        golden_close(g);
        return rc;
    }
    *out = g;
    return OK;
}

enum err_code golden_open(const char *path, struct golden **out, struct err *e)
{
    struct buf b = {0};
    enum err_code rc = io_read_file(path, GOLDEN_MAX_BYTES, &b, e);

    if (rc == OK) {
        rc = golden_open_mem(b.data, b.len, out, e);
        if (rc != OK)
            err_prefix(e, "%s", path);
    }
    buf_free(&b);
    return rc;
}

void golden_close(struct golden *g)
{
    if (!g)
        return;
    free(g->array);
    free(g->data);
    free(g);
}

size_t golden_n_arrays(const struct golden *g)
{
    return g->n;
}

const struct golden_array *golden_array_at(const struct golden *g, size_t i)
{
    return i < g->n ? &g->array[i] : NULL;
}

const struct golden_array *golden_find(const struct golden *g, const char *name)
{
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->array[i].name, name) == 0)
            return &g->array[i];
    return NULL;
}

static const void *matrix(const struct golden *g, const char *name, enum golden_type type, size_t *rows, size_t *cols)
{
    const struct golden_array *a = golden_find(g, name);
    if (!a || a->type != type)
        return NULL;
    if (cols)
        *cols = a->dim[a->n_dims - 1];
    if (rows)
        *rows = a->n / a->dim[a->n_dims - 1];
    return a->data;
}

const float *golden_f32(const struct golden *g, const char *name, size_t *rows, size_t *cols)
{
    return matrix(g, name, GOLDEN_F32, rows, cols);
}

const int32_t *golden_i32(const struct golden *g, const char *name, size_t *rows, size_t *cols)
{
    return matrix(g, name, GOLDEN_I32, rows, cols);
}

const float *golden_plane(const struct golden *g, const char *name, size_t i, size_t *rows, size_t *cols)
{
    const struct golden_array *a = golden_find(g, name);
    if (!a || a->type != GOLDEN_F32 || a->n_dims != 3 || i >= a->dim[0])
        return NULL;
    if (rows)
        *rows = a->dim[1];
    if (cols)
        *cols = a->dim[2];
    return (const float *)a->data + i * a->dim[1] * a->dim[2];
}

/* --- measures --- */

static double nmse(const float *x, const float *ref, size_t n, double mean)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)ref[i];
        double r = (double)ref[i] - mean;
        diff += d * d;
        norm += r * r;
    }
    if (!isfinite(diff) || !isfinite(norm))
        return (double)INFINITY;
    if (norm <= 0)
        return diff <= 0 ? 0 : (double)INFINITY;
    return diff / norm;
}

double golden_nmse_logits(const float *x, const float *ref, size_t n)
{
    double mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)ref[i];
    return nmse(x, ref, n, n ? mean / (double)n : 0);
}

double golden_nmse_hidden(const float *x, const float *ref, size_t n)
{
    return nmse(x, ref, n, 0);
}

size_t golden_argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum err_code golden_compare_logits(const float *x, const float *ref, size_t rows, size_t cols,
                                    struct golden_match *out, struct err *e)
{
    struct golden_match m = {.n = rows};
    double *v = calloc(rows ? rows : 1, sizeof *v);

    if (!v)
        return err_set(e, ERR_NOMEM, "golden: out of memory");
    for (size_t i = 0; i < rows; i++) {
        const float *xr = x + i * cols, *rr = ref + i * cols;
        v[i] = golden_nmse_logits(xr, rr, cols);
        m.n_same_argmax += golden_argmax(xr, cols) == golden_argmax(rr, cols);
        if (v[i] > m.worst) {
            m.worst = v[i];
            m.worst_row = i;
        }
    }
    qsort(v, rows, sizeof *v, by_value);
    m.median = v[rows / 2];
    free(v);
    *out = m;
    return OK;
}

double golden_worst_hidden(const float *x, const float *ref, size_t rows, size_t cols)
{
    double worst = 0;
    for (size_t i = 0; i < rows; i++) {
        double v = golden_nmse_hidden(x + i * cols, ref + i * cols, cols);
        worst = v > worst ? v : worst;
    }
    return worst;
}
