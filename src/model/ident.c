/* SPDX-License-Identifier: MIT */
#include "model/ident.h"

#include "base/text.h"
#include "model/gguf_scan.h"

#include <stdlib.h>
#include <string.h>

#define MIN_LINE_BYTES (8 + 1 + 8 + 4 * 8 + DIGEST_BYTES)

_Static_assert(IDENT_NAME_SIZE > GGUF_SCAN_MAX_NAME, "every name fits");

static const char id_label[] = "kvasir model id 1";

/* --- orders --- */

static int name_order(const void *a, const void *b)
{
    return strcmp(((const struct ident_ref *)a)->t->name, ((const struct ident_ref *)b)->t->name);
}

static int place_order(const void *a, const void *b)
{
    const struct gguf_tensor *x = ((const struct ident_ref *)a)->t, *y = ((const struct ident_ref *)b)->t;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static enum err_code ordered(const struct gguf *g, int (*order)(const void *, const void *), struct ident_ref **out,
                             struct err *e)
{
    size_t n = gguf_n_tensors(g);
    struct ident_ref *v = calloc(n ? n : 1, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        v[i] = (struct ident_ref){.t = gguf_tensor_at(g, i), .at = i};
    qsort(v, n, sizeof *v, order);
    *out = v;
    return OK;
}

enum err_code ident_by_name(const struct gguf *g, struct ident_ref **out, struct err *e)
{
    return ordered(g, name_order, out, e);
}

enum err_code ident_by_place(const struct gguf *g, struct ident_ref **out, struct err *e)
{
    return ordered(g, place_order, out, e);
}

/* --- the list --- */

void ident_put_count(struct buf *list, uint64_t n)
{
    buf_put_u64(list, n);
}

void ident_put(struct buf *list, const struct ident_tensor *t)
{
    buf_put_u64(list, t->name_len);
    buf_put(list, t->name, t->name_len);
    buf_put_u64(list, (uint64_t)t->type);
    for (int k = 0; k < 4; k++)
        buf_put_u64(list, (uint64_t)t->ne[k]);
    buf_put(list, t->digest, DIGEST_BYTES);
}

enum err_code ident_put_all(struct buf *list, const struct gguf *g, const uint8_t (*digests)[DIGEST_BYTES],
                            struct err *e)
{
    struct ident_ref *v = NULL;
    size_t n = gguf_n_tensors(g);
    enum err_code rc = ident_by_name(g, &v, e);
    if (rc != OK)
        return rc;
    ident_put_count(list, n);
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = v[i].t;
        struct ident_tensor line = {
            .name = t->name, .name_len = strlen(t->name), .type = t->type, .digest = digests[v[i].at]};
        memcpy(line.ne, t->ne, sizeof line.ne);
        ident_put(list, &line);
    }
    free(v);
    return list->failed ? err_set(e, ERR_NOMEM, "out of memory for the list of %zu tensors", n) : OK;
}

/* As strcmp, of texts that end by length. */
static int text_order(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int d = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return d != 0 ? d : (n_a > n_b) - (n_a < n_b);
}

static enum err_code read_line(struct cursor *c, struct ident_tensor *t, struct err *e)
{
    int64_t at = (int64_t)c->pos;
    char shown[80];
    uint64_t n = cursor_u64(c), bytes;
    if (n < 1 || n > GGUF_SCAN_MAX_NAME || n > cursor_left(c))
        return err_set_at(e, ERR_FORMAT, at, "the list of tensors: a name of %llu bytes, 1 to %u are possible",
                          (unsigned long long)n, GGUF_SCAN_MAX_NAME);
    t->name_len = (size_t)n;
    t->name = (const char *)cursor_bytes(c, t->name_len);
    if (!text_printable(t->name, t->name_len))
        return err_set_at(e, ERR_FORMAT, at, "the list of tensors: a name is not printable text");
    uint64_t type = cursor_u64(c);
    for (int k = 0; k < 4; k++)
        t->ne[k] = (int64_t)cursor_u64(c);
    t->digest = cursor_bytes(c, DIGEST_BYTES);
    if (!t->digest)
        return err_set_at(e, ERR_FORMAT, at, "the list of tensors ends within a line");
    t->type = type > INT32_MAX ? -1 : (int)type;
    if (!gguf_tensor_bytes(t->type, t->ne, &bytes))
        return err_set_at(e, ERR_FORMAT, at, "the list of tensors: type or shape of %s cannot be",
                          text_clean(t->name, t->name_len, shown, sizeof shown));
    return OK;
}

enum err_code ident_read(const void *data, size_t len, struct ident_tensor **out, size_t *n_out, struct err *e)
{
    struct cursor c = cursor_of(data, len);
    uint64_t n = cursor_u64(&c);
    if (c.short_read || n > cursor_left(&c) / MIN_LINE_BYTES)
        return err_set(e, ERR_FORMAT, "the list of tensors is cut off: %zu bytes cannot hold %llu", len,
                       (unsigned long long)n);
    if (n > IDENT_MAX_TENSORS)
        return err_set(e, ERR_LIMIT, "a list of %llu tensors; at most %u are allowed", (unsigned long long)n,
                       IDENT_MAX_TENSORS);
    struct ident_tensor *v = calloc(n ? (size_t)n : 1, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "out of memory for %llu tensors", (unsigned long long)n);
    enum err_code rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        int64_t at = (int64_t)c.pos;
        rc = read_line(&c, &v[i], e);
        if (rc == OK && i > 0 && text_order(v[i - 1].name, v[i - 1].name_len, v[i].name, v[i].name_len) >= 0)
            rc = err_set_at(e, ERR_FORMAT, at, "the list of tensors is not sorted by name");
    }
    if (rc == OK)
        rc = cursor_finish(&c, "the list of tensors", e);
    if (rc != OK) {
        free(v);
        return rc;
    }
    *out = v;
    *n_out = (size_t)n;
    return OK;
}

const char *ident_name(const struct ident_tensor *t, char out[IDENT_NAME_SIZE])
{
    memcpy(out, t->name, t->name_len);
    out[t->name_len] = 0;
    return out;
}

const struct ident_tensor *ident_find(const struct ident_tensor *lines, size_t n, const char *name)
{
    size_t len = strlen(name), lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int d = text_order(lines[mid].name, lines[mid].name_len, name, len);
        if (d == 0)
            return &lines[mid];
        if (d < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* --- the model id --- */

static void put_u64(struct digest_state *d, uint64_t v)
{
    uint8_t p[8];
    le_put_u64(p, v);
    digest_put(d, p, sizeof p);
}

static void put_sized(struct digest_state *d, const void *data, size_t len)
{
    put_u64(d, len);
    digest_put(d, data, len);
}

bool ident_key_counts(const char *key)
{
    return strncmp(key, "split.", 6) != 0 && strncmp(key, "kvasir.", 7) != 0;
}

struct key {
    const char *text;
    size_t at; /* its number in the gguf */
};

static int key_order(const void *a, const void *b)
{
    return strcmp(((const struct key *)a)->text, ((const struct key *)b)->text);
}

static enum err_code put_metadata(struct digest_state *d, const struct gguf *g, struct err *e)
{
    size_t n = 0, n_kv = gguf_n_kv(g);
    struct buf value = {0};
    struct key *keys = calloc(n_kv ? n_kv : 1, sizeof *keys);
    if (!keys)
        return err_set(e, ERR_NOMEM, "out of memory for %zu keys", n_kv);
    for (size_t i = 0; i < n_kv; i++)
        if (ident_key_counts(gguf_key(g, i)))
            keys[n++] = (struct key){.text = gguf_key(g, i), .at = i};
    qsort(keys, n, sizeof *keys, key_order);
    put_u64(d, n);
    enum err_code rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        buf_clear(&value);
        rc = gguf_value_bytes(g, keys[i].at, &value, e);
        if (rc != OK)
            break;
        put_sized(d, keys[i].text, strlen(keys[i].text));
        put_sized(d, value.data, value.len);
    }
    buf_free(&value);
    free(keys);
    return rc;
}

enum err_code ident_model_id(const struct gguf *g, const void *list, size_t len, uint8_t out[DIGEST_BYTES],
                             struct err *e)
{
    struct digest_state d;
    digest_begin(&d);
    put_sized(&d, id_label, sizeof id_label - 1);
    enum err_code rc = put_metadata(&d, g, e);
    if (rc != OK)
        return rc;
    digest_put(&d, list, len);
    digest_end(&d, out);
    return OK;
}
