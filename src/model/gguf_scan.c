/* SPDX-License-Identifier: MIT
 *
 * The layout (version 2 and 3, little-endian): "GGUF", u32 version, u64 tensors, u64 keys; per key: string, u32 type,
 * value; per tensor: string, u32 dimensions, u64 each, u32 type, u64 offset in the data; padding; data. A string is a
 * u64 length and bytes, an array u32 element type, u64 count, elements.
 */
#include "model/gguf_scan.h"

#include "base/buf.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES     24u
#define DEFAULT_ALIGN    32u
#define MAX_KEY_BYTES    65535u
#define MAX_DIMS         4u
#define MIN_KEY_BYTES    (8 + 4 + 1) /* the shortest key and value there can be */
#define MIN_TENSOR_BYTES (8 + 4 + 4 + 8)

enum value_type { VALUE_U32 = 4, VALUE_STRING = 8, VALUE_ARRAY = 9, VALUE_COUNT = 13 };

/* Bytes of each value type, 0 for strings and arrays. */
static const uint8_t width[VALUE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct name {
    const uint8_t *text;
    size_t len, pos;
};

struct scan {
    struct cursor c;
    uint64_t file_len;
    uint64_t more; /* what stopped the walk needs the file's bytes up to here, which are not given; 0: another reason */
    gguf_scan_type_fn types;
    uint32_t align;
    uint64_t data_size; /* of the tensors so far, padded */
    char shown[80];     /* the name at hand, fit to print */
    struct err *e;
};

/* Bytes of the file from here on, given or not. */
static uint64_t file_left(const struct scan *s)
{
    return s->file_len - s->c.pos;
}

/* The n bytes from here on are in the file but were not given. */
static enum err_code not_given(struct scan *s, uint64_t n)
{
    s->more = s->c.pos + n;
    return err_set(s->e, ERR_LIMIT, "the header is longer than the %zu bytes looked at", s->c.len);
}

/* A fixed-size field was not there. */
static enum err_code cut_short(struct scan *s, const char *what)
{
    if (s->c.len < s->file_len)
        return not_given(s, s->c.len - s->c.pos + 1);
    return err_set_at(s->e, ERR_FORMAT, (int64_t)s->c.pos, "the file ends within %s %s", what, s->shown);
}

/* A string's bytes; NULL (and an error in *rc) where the file ends before. */
static const uint8_t *string(struct scan *s, const char *what, size_t *len, enum err_code *rc)
{
    uint64_t n = cursor_u64(&s->c);
    if (s->c.short_read) {
        *rc = cut_short(s, what);
        return NULL;
    }
    if (n > file_left(s)) {
        *rc = err_set_at(s->e, ERR_FORMAT, (int64_t)s->c.pos - 8,
                         "%s %s has a string of %" PRIu64 " bytes, more than the file has left", what, s->shown, n);
        return NULL;
    }
    if (n > cursor_left(&s->c)) {
        *rc = not_given(s, n);
        return NULL;
    }
    *len = (size_t)n;
    return cursor_bytes(&s->c, (size_t)n);
}

/* Where `done` of n items took the bytes since `from`, about what all of them take: a guess, so that a header that is
 * fetched comes in few pieces. */
static void guess_more(struct scan *s, size_t from, uint64_t done, uint64_t n)
{
    if (s->more == 0 || done == 0)
        return;
    uint64_t guess = (uint64_t)((double)(s->c.len - from) / (double)done * (double)n * 1.05);
    if (guess < GGUF_SCAN_MAX_HEADER_BYTES && from + guess > s->more)
        s->more = from + guess;
}

/* The name of key or tensor number i into *out and s->shown. */
static enum err_code name(struct scan *s, const char *what, uint64_t i, size_t max, struct name *out)
{
    enum err_code rc = OK;
    snprintf(s->shown, sizeof s->shown, "number %" PRIu64, i);
    out->pos = s->c.pos;
    out->text = string(s, what, &out->len, &rc);
    if (rc != OK)
        return rc;
    if (out->len == 0)
        return err_set_at(s->e, ERR_FORMAT, (int64_t)out->pos, "%s %s has no name", what, s->shown);
    if (out->len > max)
        return err_set_at(s->e, ERR_LIMIT, (int64_t)out->pos,
                          "the name of %s %s has %zu bytes; at most %zu are allowed", what, s->shown, out->len, max);
    text_clean(out->text, out->len, s->shown, sizeof s->shown);
    if (!text_printable(out->text, out->len))
        return err_set_at(s->e, ERR_FORMAT, (int64_t)out->pos, "the name of %s '%s' is not printable text", what,
                          s->shown);
    return OK;
}

static int by_text(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    int d = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    if (d != 0)
        return d;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

/* Sorts the names. */
static enum err_code no_twins(struct scan *s, const char *what, struct name *names, size_t n)
{
    if (n > 1)
        qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n; i++) {
        const struct name *a = &names[i - 1], *b = &names[i];
        if (a->len == b->len && memcmp(a->text, b->text, a->len) == 0) {
            text_clean(b->text, b->len, s->shown, sizeof s->shown);
            return err_set_at(s->e, ERR_FORMAT, (int64_t)b->pos, "%s %s is there twice, first at byte %zu", what,
                              s->shown, a->pos);
        }
    }
    return OK;
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

static enum err_code array(struct scan *s)
{
    int64_t at = (int64_t)s->c.pos;
    uint32_t type = cursor_u32(&s->c);
    uint64_t n = cursor_u64(&s->c);
    enum err_code rc = OK;
    if (s->c.short_read)
        return cut_short(s, "key");
    if (type >= VALUE_COUNT || type == VALUE_ARRAY)
        return err_set_at(s->e, ERR_FORMAT, at, "key %s is an array of the unknown type %" PRIu32, s->shown, type);
    if (type == VALUE_STRING) {
        size_t len;
        if (n > GGUF_SCAN_MAX_STRINGS)
            return err_set_at(s->e, ERR_LIMIT, at + 4,
                              "key %s is an array of %" PRIu64 " strings; at most %u are allowed", s->shown, n,
                              GGUF_SCAN_MAX_STRINGS);
        size_t from = s->c.pos;
        for (uint64_t i = 0; i < n && rc == OK; i++) {
            string(s, "key", &len, &rc);
            if (rc != OK)
                guess_more(s, from, i, n);
        }
        return rc;
    }
    if (n > file_left(s) / width[type])
        return err_set_at(s->e, ERR_FORMAT, at + 4,
                          "key %s is an array of %" PRIu64 " values, more than the file has left", s->shown, n);
    if (n > cursor_left(&s->c) / width[type])
        return not_given(s, n * width[type]);
    cursor_bytes(&s->c, (size_t)n * width[type]);
    return OK;
}

static enum err_code alignment(struct scan *s, uint32_t type, int64_t at)
{
    uint32_t v = type == VALUE_U32 ? cursor_u32(&s->c) : 0;
    if (type != VALUE_U32)
        return err_set_at(s->e, ERR_FORMAT, at, "key %s is not of type u32", s->shown);
    if (s->c.short_read)
        return cut_short(s, "key");
    if (v == 0 || (v & (v - 1)) != 0 || v > GGUF_SCAN_MAX_ALIGNMENT)
        return err_set_at(s->e, ERR_FORMAT, at, "key %s is %" PRIu32 ", not a power of two up to %u", s->shown, v,
                          GGUF_SCAN_MAX_ALIGNMENT);
    s->align = v;
    return OK;
}

static enum err_code key(struct scan *s, uint64_t i, struct name *out)
{
    static const char align_key[] = "general.alignment";
    size_t len;
    enum err_code rc = name(s, "key", i, MAX_KEY_BYTES, out);
    if (rc != OK)
        return rc;
    int64_t at = (int64_t)s->c.pos;
    uint32_t type = cursor_u32(&s->c);
    if (s->c.short_read)
        return cut_short(s, "key");
    if (type >= VALUE_COUNT)
        return err_set_at(s->e, ERR_FORMAT, at, "key %s is of the unknown type %" PRIu32, s->shown, type);
    if (out->len == sizeof align_key - 1 && memcmp(out->text, align_key, out->len) == 0)
        rc = alignment(s, type, at);
    else if (type == VALUE_STRING)
        string(s, "key", &len, &rc);
    else if (type == VALUE_ARRAY)
        rc = array(s);
    else
        cursor_bytes(&s->c, width[type]);
    if (rc == OK && s->c.short_read)
        rc = cut_short(s, "key");
    return rc;
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

/* Bytes of a tensor whose shape and type come next; ggml multiplies them in signed 64 bits. */
static enum err_code tensor_bytes(struct scan *s, uint64_t *out)
{
    int64_t at = (int64_t)s->c.pos;
    uint32_t n_dims = cursor_u32(&s->c);
    uint64_t ne[MAX_DIMS] = {1, 1, 1, 1}, n = 1, bytes;
    if (n_dims > MAX_DIMS)
        return err_set_at(s->e, ERR_FORMAT, at, "tensor %s has %" PRIu32 " dimensions; at most %u are possible",
                          s->shown, n_dims, MAX_DIMS);
    for (uint32_t i = 0; i < n_dims; i++)
        ne[i] = cursor_u64(&s->c);
    int64_t type_at = (int64_t)s->c.pos;
    uint32_t type = cursor_u32(&s->c);
    if (s->c.short_read)
        return cut_short(s, "tensor");
    for (uint32_t i = 0; i < n_dims; i++) {
        if (ne[i] == 0 || __builtin_mul_overflow(n, ne[i], &n) || n > (uint64_t)INT64_MAX / 64)
            return err_set_at(s->e, ERR_FORMAT, at + 4 + 8 * (int64_t)i,
                              "tensor %s has an impossible shape: dimension %" PRIu32 " is %" PRIu64, s->shown, i,
                              ne[i]);
    }
    struct gguf_scan_type t = s->types(type);
    if (t.n_elements == 0 || t.n_bytes == 0)
        return err_set_at(s->e, ERR_FORMAT, type_at, "tensor %s is of the unknown type %" PRIu32, s->shown, type);
    if (ne[0] % t.n_elements != 0)
        return err_set_at(s->e, ERR_FORMAT, at + 4,
                          "tensor %s has rows of %" PRIu64 " elements, not a multiple of its type's %" PRIu32, s->shown,
                          ne[0], t.n_elements);
    if (__builtin_mul_overflow(n / t.n_elements, t.n_bytes, &bytes) || bytes > (uint64_t)INT64_MAX / 2)
        return err_set_at(s->e, ERR_FORMAT, at, "tensor %s is impossibly large", s->shown);
    *out = bytes;
    return OK;
}

static enum err_code tensor(struct scan *s, uint64_t i, struct name *out)
{
    uint64_t bytes = 0;
    enum err_code rc = name(s, "tensor", i, GGUF_SCAN_MAX_NAME, out);
    if (rc == OK)
        rc = tensor_bytes(s, &bytes);
    if (rc != OK)
        return rc;
    int64_t at = (int64_t)s->c.pos;
    uint64_t offset = cursor_u64(&s->c);
    if (s->c.short_read)
        return cut_short(s, "tensor");
    if (offset != s->data_size)
        return err_set_at(s->e, ERR_FORMAT, at,
                          "tensor %s begins at byte %" PRIu64 " of the data; the one before it ends at %" PRIu64,
                          s->shown, offset, s->data_size);
    if (bytes > s->file_len || s->data_size > s->file_len)
        return err_set_at(s->e, ERR_FORMAT, at,
                          "the file is truncated: tensor %s of %" PRIu64 " bytes at byte %" PRIu64
                          " of the data, the whole file has %" PRIu64,
                          s->shown, bytes, offset, s->file_len);
    s->data_size += (bytes + s->align - 1) / s->align * s->align;
    return OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

typedef enum err_code (*item_fn)(struct scan *s, uint64_t i, struct name *out);

/* n keys or tensors, one after the other, no two of one name. */
static enum err_code items(struct scan *s, const char *what, uint64_t n, item_fn one)
{
    enum err_code rc = OK;
    struct name *names = calloc(n ? (size_t)n : 1, sizeof *names);
    if (!names)
        return err_set(s->e, ERR_NOMEM, "out of memory for %" PRIu64 " names", n);
    size_t from = s->c.pos;
    for (uint64_t i = 0; i < n && rc == OK; i++) {
        rc = one(s, i, &names[i]);
        if (rc != OK && one == tensor)
            guess_more(s, from, i, n);
        if (rc == OK && s->c.pos > GGUF_SCAN_MAX_HEADER_BYTES)
            rc = err_set_at(s->e, ERR_LIMIT, (int64_t)s->c.pos, "the header is larger than %u bytes",
                            GGUF_SCAN_MAX_HEADER_BYTES);
    }
    if (rc == OK)
        rc = no_twins(s, what, names, (size_t)n);
    free(names);
    return rc;
}

static enum err_code count_check(struct scan *s, const char *what, uint64_t n, uint64_t max, size_t least, int64_t at)
{
    if (n > file_left(s) / least)
        return err_set_at(s->e, ERR_FORMAT, at,
                          "the file says it has %" PRIu64 " %s, more than its %" PRIu64 " bytes can hold", n, what,
                          s->file_len);
    if (n > max)
        return err_set_at(s->e, ERR_LIMIT, at, "the file has %" PRIu64 " %s; at most %" PRIu64 " are allowed", n, what,
                          max);
    return OK;
}

/* The magic and the version. */
static enum err_code begin(struct scan *s)
{
    const uint8_t *magic = cursor_bytes(&s->c, 4);
    if (s->c.len < HEADER_BYTES && s->c.len < s->file_len)
        return not_given(s, HEADER_BYTES - s->c.pos);
    if (s->c.len < HEADER_BYTES || !magic)
        return err_set(s->e, ERR_FORMAT, "too short to be a GGUF file (%zu bytes)", s->c.len);
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(s->e, ERR_FORMAT, "not a GGUF file: it begins with %02x %02x %02x %02x, not \"GGUF\"", magic[0],
                       magic[1], magic[2], magic[3]);
    uint32_t version = cursor_u32(&s->c);
    if (version != 2 && version != 3)
        return err_set_at(s->e, ERR_UNSUPPORTED, 4, "GGUF version %" PRIu32 " is not supported (known: 2 and 3)%s",
                          version, version && (version & 0xffff) == 0 ? "; the file is big-endian" : "");
    return OK;
}

static enum err_code walk(struct scan *s)
{
    enum err_code rc = begin(s);
    if (rc != OK)
        return rc;
    uint64_t n_tensors = cursor_u64(&s->c), n_keys = cursor_u64(&s->c);
    rc = count_check(s, "tensors", n_tensors, GGUF_SCAN_MAX_TENSORS, MIN_TENSOR_BYTES, 8);
    if (rc == OK)
        rc = count_check(s, "keys", n_keys, GGUF_SCAN_MAX_KEYS, MIN_KEY_BYTES, 16);
    if (rc == OK)
        rc = items(s, "key", n_keys, key);
    if (rc == OK)
        rc = items(s, "tensor", n_tensors, tensor);
    if (rc != OK || n_tensors == 0)
        return rc;
    uint64_t data = (s->c.pos + s->align - 1) / s->align * s->align;
    if (data > s->file_len)
        return err_set_at(s->e, ERR_FORMAT, (int64_t)s->c.pos,
                          "the file is truncated: it ends before the tensors' data");
    return data > s->c.len ? not_given(s, data - s->c.pos) : OK;
}

enum err_code gguf_scan(const void *data, size_t len, uint64_t file_len, gguf_scan_type_fn types, uint64_t *need,
                        struct err *e)
{
    struct scan s = {
        .c = cursor_of(data, len < file_len ? len : (size_t)file_len),
        .file_len = file_len,
        .types = types,
        .align = DEFAULT_ALIGN,
        .e = e,
    };
    enum err_code rc = walk(&s);
    uint64_t most = file_len < GGUF_SCAN_MAX_BYTES ? file_len : GGUF_SCAN_MAX_BYTES;
    if (need)
        *need = 0;
    if (rc == OK || s.more == 0)
        return rc;
    if (!need || len >= most)
        return err_set_at(e, ERR_LIMIT, (int64_t)s.c.pos, "the header is larger than %u bytes",
                          GGUF_SCAN_MAX_HEADER_BYTES);
    *need = s.more > 2 * (uint64_t)len ? s.more : 2 * (uint64_t)len;
    *need = *need < most ? *need : most;
    return OK;
}
