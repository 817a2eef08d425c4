/* SPDX-License-Identifier: MIT
 *
 * Manifests as JSON (docs/manifest.md). Two tables name the fields of the object and of a rank, in the order of their
 * names; parsing, checking and writing all walk them, so the three cannot disagree and what is written is sorted.
 * Plain functions over plain data: no state, any thread.
 */
#include "plan/manifest.h"

#include "base/io.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#define SIG_MAX_BYTES 4096u
#define SIG_TEXT_SIZE 88 /* 86 characters of base64url and the NUL */
#define PATH_SIZE     64 /* "ranks[255].weight_bytes" */

enum kind { K_U32, K_U64, K_DIGEST, K_KEY, K_TEXT, K_NAME, K_ADDR, K_WIRE, K_DIAL, K_WINDOW, K_RANKS, K_VERSION };

struct field {
    const char *name;
    enum kind kind;
    size_t at;         /* offset in its struct */
    uint64_t min, max; /* of numbers */
};

#define AT(f) offsetof(struct manifest, f)
static const struct field ring_fields[] = {
    {"epoch", K_U64, AT(epoch), 0, MANIFEST_MAX_INT},
    {"kvasir_manifest", K_VERSION, 0, MANIFEST_VERSION, MANIFEST_VERSION},
    {"model_id", K_DIGEST, AT(model_id), 0, 0},
    {"model_name", K_TEXT, AT(model_name), 0, 0},
    {"n_batch", K_U32, AT(n_batch), 1, MANIFEST_MAX_BATCH},
    {"n_blocks", K_U32, AT(n_blocks), 1, MANIFEST_MAX_BLOCKS},
    {"n_ctx", K_U32, AT(n_ctx), 1, MANIFEST_MAX_CTX},
    {"n_embd", K_U32, AT(n_embd), 1, MANIFEST_MAX_EMBD},
    {"n_slots", K_U32, AT(n_slots), 1, MANIFEST_MAX_SLOTS},
    {"n_vocab", K_U32, AT(n_vocab), 1, MANIFEST_MAX_VOCAB},
    {"ranks", K_RANKS, 0, 0, 0},
    {"ring_id", K_DIGEST, AT(ring_id), 0, 0},
    {"wire", K_WIRE, AT(wire), 0, 0},
};
#undef AT

#define AT(f) offsetof(struct manifest_rank, f)
static const struct field rank_fields[] = {
    {"addr", K_ADDR, AT(addr), 0, 0},
    {"device", K_NAME, AT(device), 0, 0},
    {"dial", K_DIAL, AT(dial), 0, 0},
    {"key", K_KEY, AT(key), 0, 0},
    {"kv_bytes", K_U64, AT(kv_bytes), 0, MANIFEST_MAX_INT},
    {"weight_bytes", K_U64, AT(weight_bytes), 0, MANIFEST_MAX_INT},
    {"window", K_WINDOW, AT(first), 0, MANIFEST_MAX_BLOCKS},
};
#undef AT

#define N_RING_FIELDS (sizeof ring_fields / sizeof ring_fields[0])
#define N_RANK_FIELDS (sizeof rank_fields / sizeof rank_fields[0])

static const char *const wire_names[] = {"f32"};
static const char *const dial_names[] = {"predecessor", "successor"};
_Static_assert(sizeof wire_names / sizeof wire_names[0] == MANIFEST_WIRE_COUNT, "a name for each");
_Static_assert(sizeof dial_names / sizeof dial_names[0] == MANIFEST_DIAL_COUNT, "a name for each");

const char *manifest_wire_name(enum manifest_wire w)
{
    return (unsigned)w < MANIFEST_WIRE_COUNT ? wire_names[w] : "?";
}

void manifest_fini(struct manifest *m)
{
    free(m->ranks);
    *m = (struct manifest){0};
}

int manifest_rank_of(const struct manifest *m, const struct key_public *key)
{
    for (uint32_t i = 0; i < m->n_ranks; i++)
        if (key_equal(&m->ranks[i].key, key))
            return (int)i;
    return -1;
}

/* What was refused as an argument (a key, a digest) stands in a file here. */
static enum err_code malformed(const char *path, struct err *e)
{
    err_prefix(e, "%s", path);
    if (e)
        e->code = ERR_FORMAT;
    return ERR_FORMAT;
}

/* --- checking --- */

static enum err_code number_check(const char *path, uint64_t v, const struct field *f, struct err *e)
{
    if (v < f->min || v > f->max)
        return err_set(e, ERR_RANGE, "%s: %llu is out of range, %llu to %llu are allowed", path, (unsigned long long)v,
                       (unsigned long long)f->min, (unsigned long long)f->max);
    return OK;
}

static enum err_code text_check(const char *path, const char *s, struct err *e)
{
    size_t n = strnlen(s, MANIFEST_TEXT_SIZE);
    if (n == MANIFEST_TEXT_SIZE)
        return err_set(e, ERR_LIMIT, "%s: a text of %d bytes or more, at most %d are allowed", path, MANIFEST_TEXT_SIZE,
                       MANIFEST_TEXT_SIZE - 1);
    if (!text_printable(s, n))
        return err_set(e, ERR_FORMAT, "%s: the text has control characters or is not UTF-8", path);
    return OK;
}

/* One word of printable ASCII. */
static enum err_code word_check(const char *path, const char *s, struct err *e)
{
    enum err_code rc = text_check(path, s, e);
    if (rc != OK)
        return rc;
    for (const char *p = s; *p; p++)
        if (*p <= ' ' || *p > '~')
            return err_set(e, ERR_FORMAT, "%s: \"%s\" is not one word of printable ASCII", path, s);
    return OK;
}

static bool addr_good(const char *s)
{
    const char *colon = strrchr(s, ':');
    size_t n_host = colon ? (size_t)(colon - s) : 0;
    bool bracketed = n_host > 2 && s[0] == '[' && s[n_host - 1] == ']';
    if (n_host == 0 || (!bracketed && memchr(s, ':', n_host)) || (!bracketed && strpbrk(s, "[]")))
        return false;
    const char *p = colon + 1;
    uint32_t port = 0;
    size_t n = strspn(p, "0123456789");
    if (n == 0 || n > 5 || p[n] != 0 || p[0] == '0')
        return false;
    for (size_t i = 0; i < n; i++)
        port = port * 10 + (uint32_t)(p[i] - '0');
    return port <= 65535;
}

static enum err_code addr_check(const char *path, const char *s, struct err *e)
{
    enum err_code rc = word_check(path, s, e);
    if (rc == OK && s[0] && !addr_good(s))
        rc = err_set(e, ERR_FORMAT, "%s: \"%s\" is not host:port or [IPv6]:port with a port from 1 to 65535", path, s);
    return rc;
}

static enum err_code key_check(const char *path, const struct key_public *key, struct err *e)
{
    char text[KEY_TEXT_SIZE];
    struct key_public again;
    return key_parse(key_text(key, text), &again, e) == OK ? OK : malformed(path, e);
}

/* A value as it stands in its struct. */
static enum err_code field_check(const char *path, const void *base, const struct field *f, struct err *e)
{
    const char *p = (const char *)base + f->at;
    uint32_t v;
    memcpy(&v, p, sizeof v);
    switch (f->kind) {
    case K_U32:
        return number_check(path, v, f, e);
    case K_U64: {
        uint64_t v64;
        memcpy(&v64, p, sizeof v64);
        return number_check(path, v64, f, e);
    }
    case K_KEY:
        return key_check(path, (const struct key_public *)p, e);
    case K_TEXT:
        return text_check(path, p, e);
    case K_NAME:
        return p[0] ? word_check(path, p, e) : err_set(e, ERR_FORMAT, "%s: the text is empty", path);
    case K_ADDR:
        return addr_check(path, p, e);
    case K_WIRE:
        return v < MANIFEST_WIRE_COUNT ? OK : err_set(e, ERR_RANGE, "%s: no wire type has number %u", path, v);
    case K_DIAL:
        return v < MANIFEST_DIAL_COUNT ? OK : err_set(e, ERR_RANGE, "%s: no end has number %u", path, v);
    case K_DIGEST:
    case K_WINDOW: /* windows_check */
    case K_RANKS:
    case K_VERSION:
        break;
    }
    return OK;
}

static const char *path_of(char out[PATH_SIZE], int rank, const char *name)
{
    if (rank < 0)
        snprintf(out, PATH_SIZE, "%s", name);
    else
        snprintf(out, PATH_SIZE, "ranks[%d].%s", rank, name);
    return out;
}

static enum err_code fields_check(int rank, const void *base, const struct field *fields, size_t n, struct err *e)
{
    char path[PATH_SIZE];
    for (size_t i = 0; i < n; i++) {
        enum err_code rc = field_check(path_of(path, rank, fields[i].name), base, &fields[i], e);
        if (rc != OK)
            return rc;
    }
    return OK;
}

static enum err_code windows_check(const struct manifest *m, struct err *e)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        uint32_t first = m->ranks[i].first, end = m->ranks[i].end;
        if (first >= end)
            return err_set(e, ERR_RANGE, "ranks[%u].window: [%u,%u) is empty", i, first, end);
        if (end > m->n_blocks)
            return err_set(e, ERR_RANGE, "ranks[%u].window: [%u,%u) ends after the model's %u blocks", i, first, end,
                           m->n_blocks);
        if (i == 0 && first != 0)
            return err_set(e, ERR_MISMATCH, "window gap: rank 0 begins at %u, not at 0", first);
        if (first != at)
            return err_set(e, ERR_MISMATCH, "window %s: rank %u ends at %u, rank %u begins at %u",
                           first > at ? "gap" : "overlap", i - 1, at, i, first);
        at = end;
    }
    if (at != m->n_blocks)
        return err_set(e, ERR_MISMATCH, "window gap: rank %u ends at %u, the model has %u blocks", m->n_ranks - 1, at,
                       m->n_blocks);
    return OK;
}

/* Can every edge be made, and is everybody somebody else? */
static enum err_code edges_check(const struct manifest *m, struct err *e)
{
    for (uint32_t i = 0; i < m->n_ranks && m->n_ranks > 1; i++) {
        uint32_t next = (i + 1) % m->n_ranks;
        uint32_t listener = m->ranks[i].dial == MANIFEST_DIAL_PREDECESSOR ? next : i;
        if (m->ranks[listener].addr[0] == 0)
            return err_set(e, ERR_MISMATCH, "edge %u: the %s dials, but rank %u has no address", i,
                           dial_names[m->ranks[i].dial], listener);
        for (uint32_t j = 0; j < i; j++)
            if (key_equal(&m->ranks[i].key, &m->ranks[j].key))
                return err_set(e, ERR_MISMATCH, "ranks %u and %u have the same key", j, i);
    }
    return OK;
}

enum err_code manifest_check(const struct manifest *m, struct err *e)
{
    if (m->n_ranks == 0 || m->n_ranks > MANIFEST_MAX_RANKS)
        return err_set(e, ERR_RANGE, "ranks: there are %u, 1 to %u are allowed", m->n_ranks, MANIFEST_MAX_RANKS);
    enum err_code rc = fields_check(-1, m, ring_fields, N_RING_FIELDS, e);
    for (uint32_t i = 0; i < m->n_ranks && rc == OK; i++)
        rc = fields_check((int)i, &m->ranks[i], rank_fields, N_RANK_FIELDS, e);
    if (rc == OK && (uint64_t)m->n_batch * m->n_embd * 4 > MANIFEST_MAX_STEP_BYTES)
        rc = err_set(e, ERR_RANGE, "n_batch: %u rows of %u floats are more than the %u bytes of a step, at most %u fit",
                     m->n_batch, m->n_embd, MANIFEST_MAX_STEP_BYTES, MANIFEST_MAX_STEP_BYTES / 4 / m->n_embd);
    if (rc == OK)
        rc = windows_check(m, e);
    if (rc == OK)
        rc = edges_check(m, e);
    return rc;
}

/* --- parsing --- */

static enum err_code read_number(const char *path, yyjson_val *v, uint64_t max, uint64_t *out, struct err *e)
{
    if (yyjson_is_sint(v))
        return err_set(e, ERR_RANGE, "%s: %lld is out of range, 0 to %llu are allowed", path,
                       (long long)yyjson_get_sint(v), (unsigned long long)max);
    if (!yyjson_is_uint(v))
        return err_set(e, ERR_FORMAT, "%s: not an integer", path);
    if (yyjson_get_uint(v) > max)
        return err_set(e, ERR_RANGE, "%s: %llu is out of range, at most %llu is allowed", path,
                       (unsigned long long)yyjson_get_uint(v), (unsigned long long)max);
    *out = yyjson_get_uint(v);
    return OK;
}

static enum err_code read_text(const char *path, yyjson_val *v, char *out, size_t size, struct err *e)
{
    const char *s = yyjson_get_str(v);
    size_t n = yyjson_get_len(v);
    if (!s)
        return err_set(e, ERR_FORMAT, "%s: not a text", path);
    if (n >= size)
        return err_set(e, ERR_LIMIT, "%s: a text of %zu bytes, at most %zu are allowed", path, n, size - 1);
    if (memchr(s, 0, n))
        return err_set(e, ERR_FORMAT, "%s: the text has control characters or is not UTF-8", path);
    memcpy(out, s, n + 1);
    return OK;
}

static enum err_code read_choice(const char *path, yyjson_val *v, const char *const *names, uint32_t n, uint32_t *out,
                                 struct err *e)
{
    char text[32], clean[32], all[64] = "";
    if (!yyjson_is_str(v))
        return err_set(e, ERR_FORMAT, "%s: not a text", path);
    for (uint32_t i = 0; i < n; i++) {
        if (yyjson_equals_str(v, names[i])) {
            *out = i;
            return OK;
        }
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, "%s%s", i ? ", " : "", names[i]);
    }
    snprintf(text, sizeof text, "%s", yyjson_get_str(v));
    return err_set(e, ERR_FORMAT, "%s: \"%s\" is none of: %s", path,
                   text_clean(text, strlen(text), clean, sizeof clean), all);
}

static enum err_code read_window(const char *path, yyjson_val *v, struct manifest_rank *r, struct err *e)
{
    uint64_t first = 0, end = 0;
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) != 2)
        return err_set(e, ERR_FORMAT, "%s: not [first, end]", path);
    enum err_code rc = read_number(path, yyjson_arr_get(v, 0), MANIFEST_MAX_BLOCKS, &first, e);
    if (rc == OK)
        rc = read_number(path, yyjson_arr_get(v, 1), MANIFEST_MAX_BLOCKS, &end, e);
    if (rc != OK)
        return rc;
    r->first = (uint32_t)first;
    r->end = (uint32_t)end;
    return OK;
}

static enum err_code read_digest(const char *path, yyjson_val *v, uint8_t out[DIGEST_BYTES], struct err *e)
{
    char text[DIGEST_HEX_SIZE];
    enum err_code rc = read_text(path, v, text, sizeof text, e);
    return rc == OK && digest_parse(text, out, e) != OK ? malformed(path, e) : rc;
}

static enum err_code read_key(const char *path, yyjson_val *v, struct key_public *out, struct err *e)
{
    char text[KEY_TEXT_SIZE];
    enum err_code rc = read_text(path, v, text, sizeof text, e);
    return rc == OK && key_parse(text, out, e) != OK ? malformed(path, e) : rc;
}

/* Reads a value into its place. Ranges are left to manifest_check; here it only has to fit. */
static enum err_code field_read(const char *path, yyjson_val *v, void *base, const struct field *f, struct err *e)
{
    char *p = (char *)base + f->at;
    uint64_t n = 0;
    uint32_t choice = 0;
    enum err_code rc = OK;
    switch (f->kind) {
    case K_U32:
        rc = read_number(path, v, f->max, &n, e);
        choice = (uint32_t)n;
        if (rc == OK)
            memcpy(p, &choice, sizeof choice);
        return rc;
    case K_U64:
        rc = read_number(path, v, f->max, &n, e);
        if (rc == OK)
            memcpy(p, &n, sizeof n);
        return rc;
    case K_VERSION:
        rc = read_number(path, v, UINT64_MAX, &n, e);
        if (rc == OK && n != MANIFEST_VERSION)
            rc = err_set(e, ERR_UNSUPPORTED, "%s: version %llu, I know %u", path, (unsigned long long)n,
                         MANIFEST_VERSION);
        return rc;
    case K_DIGEST:
        return read_digest(path, v, (uint8_t *)p, e);
    case K_KEY:
        return read_key(path, v, (struct key_public *)p, e);
    case K_TEXT:
    case K_NAME:
    case K_ADDR:
        return read_text(path, v, p, MANIFEST_TEXT_SIZE, e);
    case K_WIRE:
        rc = read_choice(path, v, wire_names, MANIFEST_WIRE_COUNT, &choice, e);
        if (rc == OK)
            ((struct manifest *)base)->wire = (enum manifest_wire)choice;
        return rc;
    case K_DIAL:
        rc = read_choice(path, v, dial_names, MANIFEST_DIAL_COUNT, &choice, e);
        if (rc == OK)
            ((struct manifest_rank *)base)->dial = (enum manifest_dial)choice;
        return rc;
    case K_WINDOW:
        return read_window(path, v, base, e);
    case K_RANKS: /* ranks_read */
        return yyjson_is_arr(v) ? OK : err_set(e, ERR_FORMAT, "%s: not an array", path);
    }
    return rc;
}

/* All fields once, and no others. where: "the manifest", "ranks[1]". */
static enum err_code object_read(yyjson_val *v, const char *where, int rank, void *base, const struct field *fields,
                                 size_t n, struct err *e)
{
    uint64_t seen = 0;
    size_t at, max;
    yyjson_val *key, *val;
    char path[PATH_SIZE], clean[48];
    if (!yyjson_is_obj(v))
        return err_set(e, ERR_FORMAT, "%s: not an object", where);
    yyjson_obj_foreach(v, at, max, key, val)
    {
        size_t i = 0;
        while (i < n && !yyjson_equals_str(key, fields[i].name))
            i++;
        if (i == n)
            return err_set(e, ERR_FORMAT, "%s: unknown field \"%s\"", where,
                           text_clean(yyjson_get_str(key), yyjson_get_len(key), clean, sizeof clean));
        if (seen & 1ull << i)
            return err_set(e, ERR_FORMAT, "%s: the field \"%s\" is there twice", where, fields[i].name);
        seen |= 1ull << i;
        enum err_code rc = field_read(path_of(path, rank, fields[i].name), val, base, &fields[i], e);
        if (rc != OK)
            return rc;
    }
    for (size_t i = 0; i < n; i++)
        if (!(seen & 1ull << i))
            return err_set(e, ERR_FORMAT, "%s: the field \"%s\" is missing", where, fields[i].name);
    return OK;
}

static enum err_code ranks_read(yyjson_val *v, struct manifest_rank **out, uint32_t *n_out, struct err *e)
{
    char where[32];
    size_t n = yyjson_arr_size(v), i, max;
    yyjson_val *item;
    if (n == 0 || n > MANIFEST_MAX_RANKS)
        return err_set(e, ERR_RANGE, "ranks: there are %zu, 1 to %u are allowed", n, MANIFEST_MAX_RANKS);
    struct manifest_rank *ranks = calloc(n, sizeof *ranks);
    if (!ranks)
        return err_set(e, ERR_NOMEM, "out of memory for %zu ranks", n);
    enum err_code rc = OK;
    yyjson_arr_foreach(v, i, max, item)
    {
        snprintf(where, sizeof where, "ranks[%zu]", i);
        rc = object_read(item, where, (int)i, &ranks[i], rank_fields, N_RANK_FIELDS, e);
        if (rc != OK) {
            free(ranks);
            return rc;
        }
    }
    *out = ranks;
    *n_out = (uint32_t)n;
    return OK;
}

static enum err_code json_open(const void *json, size_t len, yyjson_doc **out, struct err *e)
{
    yyjson_read_err why = {0};
    /* Without YYJSON_READ_INSITU the text is only read. */
    yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)json, len, YYJSON_READ_NOFLAG, NULL, &why);
    if (!doc && why.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (!doc)
        return err_set_at(e, ERR_FORMAT, (int64_t)why.pos, "not JSON: %s", why.msg ? why.msg : "unreadable");
    *out = doc;
    return OK;
}

enum err_code manifest_parse(const void *json, size_t len, struct manifest *out, struct err *e)
{
    yyjson_doc *doc = NULL;
    struct manifest m = {0};
    if (len > MANIFEST_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "a manifest of %zu bytes, at most %u are allowed", len, MANIFEST_MAX_BYTES);
    enum err_code rc = json_open(json, len, &doc, e);
    if (rc != OK)
        return rc;
    yyjson_val *root = yyjson_doc_get_root(doc);
    rc = object_read(root, "the manifest", -1, &m, ring_fields, N_RING_FIELDS, e);
    if (rc == OK)
        rc = ranks_read(yyjson_obj_get(root, "ranks"), &m.ranks, &m.n_ranks, e);
    yyjson_doc_free(doc);
    if (rc == OK)
        rc = manifest_check(&m, e);
    if (rc == OK)
        *out = m;
    else
        manifest_fini(&m);
    return rc;
}

/* --- writing --- */

static void fields_write(struct buf *out, const void *base, const struct field *fields, size_t n);

static void ranks_write(struct buf *out, const struct manifest *m)
{
    buf_puts(out, "[");
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        if (i > 0)
            buf_puts(out, ",");
        fields_write(out, &m->ranks[i], rank_fields, N_RANK_FIELDS);
    }
    buf_puts(out, "]");
}

static void value_write(struct buf *out, const void *base, const struct field *f)
{
    const char *p = (const char *)base + f->at;
    const struct manifest_rank *r = base;
    char text[DIGEST_HEX_SIZE];
    uint32_t v;
    uint64_t v64;
    switch (f->kind) {
    case K_U32:
        memcpy(&v, p, sizeof v);
        buf_printf(out, "%u", v);
        break;
    case K_U64:
        memcpy(&v64, p, sizeof v64);
        buf_printf(out, "%llu", (unsigned long long)v64);
        break;
    case K_VERSION:
        buf_printf(out, "%u", MANIFEST_VERSION);
        break;
    case K_DIGEST:
        buf_printf(out, "\"%s\"", digest_hex((const uint8_t *)p, text));
        break;
    case K_KEY:
        buf_printf(out, "\"%s\"", key_text((const struct key_public *)p, text));
        break;
    case K_TEXT:
    case K_NAME:
    case K_ADDR:
        text_put_json(out, p, strlen(p));
        break;
    case K_WIRE:
        buf_printf(out, "\"%s\"", wire_names[((const struct manifest *)base)->wire]);
        break;
    case K_DIAL:
        buf_printf(out, "\"%s\"", dial_names[r->dial]);
        break;
    case K_WINDOW:
        buf_printf(out, "[%u,%u]", r->first, r->end);
        break;
    case K_RANKS:
        ranks_write(out, base);
        break;
    }
}

static void fields_write(struct buf *out, const void *base, const struct field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_printf(out, "%s\"%s\":", i ? "," : "{", fields[i].name);
        value_write(out, base, &fields[i]);
    }
    buf_puts(out, "}");
}

enum err_code manifest_write(const struct manifest *m, struct buf *out, struct err *e)
{
    enum err_code rc = manifest_check(m, e);
    if (rc != OK)
        return rc;
    fields_write(out, m, ring_fields, N_RING_FIELDS);
    return out->failed ? err_set(e, ERR_NOMEM, "out of memory for the manifest's text") : OK;
}

/* --- files --- */

static enum err_code sig_path(const char *path, char out[PATH_MAX], struct err *e)
{
    if (snprintf(out, PATH_MAX, "%s.sig", path) >= PATH_MAX)
        return err_set(e, ERR_ARG, "path too long: %s", path);
    return OK;
}

static void sig_write(struct buf *out, const struct key_public *key, const uint8_t sig[KEY_SIGNATURE_BYTES])
{
    char key_txt[KEY_TEXT_SIZE], sig_txt[SIG_TEXT_SIZE];
    key_base64(sig, KEY_SIGNATURE_BYTES, sig_txt);
    buf_printf(out, "{\"key\":\"%s\",\"signature\":\"%s\"}", key_text(key, key_txt), sig_txt);
}

enum err_code manifest_save(const char *path, const struct manifest *m, const struct key_secret *signer, struct err *e)
{
    struct buf json = {0}, sig = {0};
    struct key_public pub;
    uint8_t bytes[KEY_SIGNATURE_BYTES];
    char sig_file[PATH_MAX];
    enum err_code rc = sig_path(path, sig_file, e);
    if (rc == OK)
        rc = manifest_write(m, &json, e);
    if (rc != OK)
        goto out;
    key_public_of(signer, &pub);
    key_sign(signer, json.data, json.len, bytes);
    sig_write(&sig, &pub, bytes);
    rc = sig.failed ? err_set(e, ERR_NOMEM, "out of memory for the manifest's signature") : OK;
    /* The signature first: who waits for the manifest to appear finds both. */
    if (rc == OK)
        rc = io_write_file(sig_file, sig.data, sig.len, 0644, e);
    if (rc == OK)
        rc = io_write_file(path, json.data, json.len, 0644, e);
out:
    buf_free(&json);
    buf_free(&sig);
    return rc;
}

struct signature {
    struct key_public key;
    uint8_t sig[KEY_SIGNATURE_BYTES];
};

static enum err_code sig_parse(const struct buf *text, struct signature *out, struct err *e)
{
    yyjson_doc *doc = NULL;
    char sig[SIG_TEXT_SIZE];
    enum err_code rc = json_open(text->data, text->len, &doc, e);
    if (rc != OK)
        return rc;
    yyjson_val *root = yyjson_doc_get_root(doc);
    if (yyjson_obj_size(root) != 2)
        rc = err_set(e, ERR_FORMAT, "not an object of key and signature");
    if (rc == OK)
        rc = read_key("key", yyjson_obj_get(root, "key"), &out->key, e);
    if (rc == OK)
        rc = read_text("signature", yyjson_obj_get(root, "signature"), sig, sizeof sig, e);
    if (rc == OK && key_unbase64(sig, out->sig, sizeof out->sig, e) != OK)
        rc = malformed("signature", e);
    yyjson_doc_free(doc);
    return rc;
}

static enum err_code sig_verify(const char *file, const struct buf *json, const struct buf *text,
                                const struct key_public *signer, struct key_public *by, struct err *e)
{
    struct signature s;
    char have[KEY_TEXT_SIZE], want[KEY_TEXT_SIZE];
    enum err_code rc = sig_parse(text, &s, e);
    if (rc != OK) {
        err_prefix(e, "%s", file);
        return rc;
    }
    if (signer && !key_equal(signer, &s.key))
        return err_set(e, ERR_AUTH, "%s: signed by %s, not by %s", file, key_text(&s.key, have),
                       key_text(signer, want));
    if (key_verify(&s.key, json->data, json->len, s.sig, e) != OK)
        return err_set(e, ERR_AUTH, "%s: the signature by %s does not fit the manifest", file, key_text(&s.key, have));
    *by = s.key;
    return OK;
}

/* Are these bytes the canonical form of m? */
static enum err_code canonical_check(const struct manifest *m, const struct buf *json, struct err *e)
{
    struct buf again = {0};
    enum err_code rc = manifest_write(m, &again, e);
    if (rc == OK && (again.len != json->len || memcmp(again.data, json->data, json->len) != 0)) {
        size_t i = 0;
        while (i < again.len && i < json->len && again.data[i] == json->data[i])
            i++;
        rc = err_set_at(e, ERR_FORMAT, (int64_t)i, "not canonical JSON (sorted keys, no white space)");
    }
    buf_free(&again);
    return rc;
}

enum err_code manifest_load(const char *path, const struct key_public *signer, struct manifest *out,
                            struct key_public *by, struct err *e)
{
    struct buf json = {0}, sig = {0};
    struct manifest m = {0};
    struct key_public key;
    char sig_file[PATH_MAX];
    enum err_code rc = sig_path(path, sig_file, e);
    if (rc == OK)
        rc = io_read_file(path, MANIFEST_MAX_BYTES, &json, e);
    if (rc == OK)
        rc = io_read_file(sig_file, SIG_MAX_BYTES, &sig, e);
    if (rc == OK)
        rc = sig_verify(sig_file, &json, &sig, signer, &key, e);
    if (rc != OK)
        goto out;
    rc = manifest_parse(json.data, json.len, &m, e);
    if (rc == OK)
        rc = canonical_check(&m, &json, e);
    if (rc != OK) {
        err_prefix(e, "%s", path);
        goto out;
    }
    *out = m;
    m = (struct manifest){0};
    if (by)
        *by = key;
out:
    manifest_fini(&m);
    buf_free(&json);
    buf_free(&sig);
    return rc;
}
