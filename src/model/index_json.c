/* SPDX-License-Identifier: MIT
 *
 * The *.kvi text of an index (docs/manifest.md), written and read. What is read may come from any server: every field
 * has to be there once, of the right form and within its range, and tensors have to lie in their files and be sorted.
 */
#include "base/text.h"
#include "model/gguf_scan.h"
#include "model/hparams.h"
#include "model/ident.h"
#include "model/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#define INDEX_VERSION 1
#define MAX_NUMBER    ((1ull << 53) - 1)
#define MAX_FILES     1024u
#define MAX_FILE_NAME 255u

/* --- writing --- */

static void put_key(struct buf *out, const char *before, const char *key)
{
    buf_printf(out, "%s\"%s\":", before, key);
}

static void put_numbers_u32(struct buf *out, const uint32_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%u", i ? "," : "[", v[i]);
    buf_puts(out, n ? "]" : "[]");
}

static void put_numbers_u64(struct buf *out, const uint64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%llu", i ? "," : "[", (unsigned long long)v[i]);
    buf_puts(out, n ? "]" : "[]");
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static enum err_code put_text(struct buf *out, const char *what, const char *s, struct err *e)
{
    char clean[80];
    if (!text_valid(s, strlen(s)))
        return err_set(e, ERR_FORMAT, "%s \"%s\" is not UTF-8", what, text_clean(s, strlen(s), clean, sizeof clean));
    text_put_json(out, s, strlen(s));
    return OK;
}

static enum err_code put_files(struct buf *out, const struct gguf *g, struct err *e)
{
    put_key(out, ",", "files");
    buf_puts(out, "[");
    for (uint32_t i = 0; i < gguf_n_files(g); i++) {
        const char *name = base_name(gguf_file_path(g, i));
        const size_t len = strlen(name);
        char clean[80];
        if (len == 0 || len > MAX_FILE_NAME || !text_printable(name, len)) /* what a reader would refuse */
            return err_set(e, ERR_FORMAT,
                           "the file name \"%s\" is not UTF-8 of 1 to %u bytes without control characters",
                           text_clean(name, len, clean, sizeof clean), MAX_FILE_NAME);
        put_key(out, i ? ",{" : "{", "name");
        text_put_json(out, name, len);
        buf_printf(out, ",\"size\":%llu}", (unsigned long long)gguf_file_size(g, i));
    }
    buf_puts(out, "]");
    return OK;
}

static enum err_code put_tensor_list(struct buf *out, const struct gguf *g, const struct index *x, struct err *e)
{
    char hex[DIGEST_HEX_SIZE];
    struct ident_ref *v = NULL;
    enum err_code rc = ident_by_name(g, &v, e);
    put_key(out, ",", "tensors");
    buf_puts(out, "[");
    for (size_t i = 0; i < x->n_tensors && rc == OK; i++) {
        const struct gguf_tensor *t = v[i].t;
        size_t dims = 4;
        buf_printf(out, "%s{\"blake2b\":\"%s\",\"file\":%u,\"name\":", i ? "," : "",
                   digest_hex(x->tensor_digest[v[i].at], hex), t->file);
        rc = put_text(out, "the tensor name", t->name, e);
        buf_printf(out, ",\"offset\":%llu,\"shape\":[", (unsigned long long)t->offset);
        while (dims > 1 && t->ne[dims - 1] == 1)
            dims--;
        for (size_t k = 0; k < dims; k++)
            buf_printf(out, "%s%lld", k ? "," : "", (long long)t->ne[k]);
        buf_printf(out, "],\"size\":%llu,\"type\":%d}", (unsigned long long)t->size, t->type);
    }
    buf_puts(out, "]");
    free(v);
    return rc;
}

/* The keys from head_dim_k to nextn_bytes, sorted. */
static void put_middle(struct buf *out, const struct hparams *h, const struct model_sizes *s, const struct index *x)
{
    char hex[DIGEST_HEX_SIZE];
    buf_printf(out, ",\"global_bytes\":%llu,\"head_bytes\":%llu", (unsigned long long)s->global_bytes,
               (unsigned long long)s->head_bytes);
    buf_printf(out, ",\"head_dim_k\":%u,\"head_dim_v\":%u,\"kvasir_index\":%d,\"model_id\":\"%s\"", h->head_dim_k,
               h->head_dim_v, INDEX_VERSION, digest_hex(x->model_id, hex));
    buf_printf(out, ",\"n_block\":%u,\"n_ctx_train\":%u,\"n_embd\":%u,\"n_expert\":%u,\"n_expert_used\":%u", h->n_block,
               h->n_ctx_train, h->n_embd, h->n_expert, h->n_expert_used);
    put_key(out, ",", "n_ff");
    put_numbers_u32(out, h->n_ff, h->n_block);
    put_key(out, ",", "n_head");
    put_numbers_u32(out, h->n_head, h->n_block);
    put_key(out, ",", "n_head_kv");
    put_numbers_u32(out, h->n_head_kv, h->n_block);
    buf_printf(out, ",\"n_nextn\":%u,\"n_vocab\":%u", h->n_nextn, h->n_vocab);
}

enum err_code index_write(const struct gguf *g, const struct hparams *h, const struct model_sizes *s,
                          const struct index *x, struct buf *out, struct err *e)
{
    const char *name = "";
    size_t mark = out->len;
    if (x->n_tensors != gguf_n_tensors(g))
        return err_set(e, ERR_ARG, "an index of %zu tensors, the model has %zu", x->n_tensors, gguf_n_tensors(g));
    if (gguf_has(g, IDENT_KEY_FIRST))
        return err_set(e, ERR_ARG, "%s is a stage file: an index is made of the model", gguf_path(g));
    enum err_code rc = gguf_opt_str(g, "general.name", &name, e);
    if (rc != OK)
        return rc;
    put_key(out, "{", "arch");
    rc = put_text(out, "the architecture", h->arch, e);
    put_key(out, ",", "block_bytes");
    put_numbers_u64(out, s->block_bytes, s->n_block);
    buf_printf(out, ",\"embd_bytes\":%llu", (unsigned long long)s->embd_bytes);
    if (rc == OK)
        rc = put_files(out, g, e);
    put_middle(out, h, s, x);
    put_key(out, ",", "name");
    if (rc == OK)
        rc = put_text(out, "the model's name", name, e);
    buf_printf(out, ",\"nextn_bytes\":%llu", (unsigned long long)s->nextn_bytes);
    if (rc == OK)
        rc = put_tensor_list(out, g, x, e);
    buf_printf(out, ",\"tied\":%s}", s->tied ? "true" : "false");
    if (rc == OK && out->failed)
        rc = err_set(e, ERR_NOMEM, "out of memory for the index's text");
    if (rc != OK && out->len > mark)
        out->len = mark;
    return rc;
}

/* --- reading --- */

enum kind { K_TEXT, K_U32, K_U64, K_BLOCKS, K_BOOL, K_DIGEST, K_FILES, K_TENSORS, K_VERSION, K_NAME, K_SHAPE };

struct field {
    const char *name;
    enum kind kind;
};

/* Sorted by name, as they are written. */
static const struct field index_fields[] = {
    {"arch", K_TEXT},       {"block_bytes", K_BLOCKS}, {"embd_bytes", K_U64},
    {"files", K_FILES},     {"global_bytes", K_U64},   {"head_bytes", K_U64},
    {"head_dim_k", K_U32},  {"head_dim_v", K_U32},     {"kvasir_index", K_VERSION},
    {"model_id", K_DIGEST}, {"n_block", K_U32},        {"n_ctx_train", K_U32},
    {"n_embd", K_U32},      {"n_expert", K_U32},       {"n_expert_used", K_U32},
    {"n_ff", K_BLOCKS},     {"n_head", K_BLOCKS},      {"n_head_kv", K_BLOCKS},
    {"n_nextn", K_U32},     {"n_vocab", K_U32},        {"name", K_TEXT},
    {"nextn_bytes", K_U64}, {"tensors", K_TENSORS},    {"tied", K_BOOL},
};
static const struct field file_fields[] = {{"name", K_NAME}, {"size", K_U64}};
static const struct field tensor_fields[] = {
    {"blake2b", K_DIGEST}, {"file", K_U32}, {"name", K_NAME}, {"offset", K_U64},
    {"shape", K_SHAPE},    {"size", K_U64}, {"type", K_U32},
};
enum { T_DIGEST, T_FILE, T_NAME, T_OFFSET, T_SHAPE, T_SIZE, T_TYPE };
enum { F_NAME, F_SIZE };

#define N_INDEX_FIELDS  (sizeof index_fields / sizeof *index_fields)
#define N_FILE_FIELDS   (sizeof file_fields / sizeof *file_fields)
#define N_TENSOR_FIELDS (sizeof tensor_fields / sizeof *tensor_fields)
#define MAX_FIELDS      N_INDEX_FIELDS

struct reading {
    struct index_file f;
    char *at;       /* where the next string goes in f.text */
    char where[48]; /* "tensors[17]", "files[0]", "the index" */
    struct err *e;
};

/* The values of an object's fields: all of them, each once, and no others. */
static enum err_code take_fields(struct reading *r, yyjson_val *v, const struct field *fields, size_t n,
                                 yyjson_val **out)
{
    char clean[48];
    size_t at, max;
    yyjson_val *key, *val;
    if (!yyjson_is_obj(v))
        return err_set(r->e, ERR_FORMAT, "%s: not an object", r->where);
    memset(out, 0, n * sizeof(yyjson_val *));
    yyjson_obj_foreach(v, at, max, key, val)
    {
        size_t i = 0;
        while (i < n && !yyjson_equals_str(key, fields[i].name))
            i++;
        if (i == n || out[i])
            return err_set(r->e, ERR_FORMAT, "%s: the field \"%s\" is %s", r->where,
                           text_clean(yyjson_get_str(key), yyjson_get_len(key), clean, sizeof clean),
                           i == n ? "not known" : "there twice");
        out[i] = val;
    }
    for (size_t i = 0; i < n; i++)
        if (!out[i])
            return err_set(r->e, ERR_FORMAT, "%s: the field \"%s\" is missing", r->where, fields[i].name);
    return OK;
}

static enum err_code take_number(struct reading *r, const char *name, yyjson_val *v, uint64_t max, uint64_t *out)
{
    if (!yyjson_is_int(v))
        return err_set(r->e, ERR_FORMAT, "%s: %s is not a whole number", r->where, name);
    if (yyjson_is_sint(v) || yyjson_get_uint(v) > max)
        return err_set(r->e, ERR_RANGE, "%s: %s is not in 0..%llu", r->where, name, (unsigned long long)max);
    *out = yyjson_get_uint(v);
    return OK;
}

/* A text of printable characters into f.text. */
static enum err_code take_name(struct reading *r, const char *name, yyjson_val *v, size_t max, const char **out)
{
    const char *s = yyjson_get_str(v);
    size_t n = yyjson_get_len(v);
    if (!s || n == 0 || n > max || !text_printable(s, n))
        return err_set(r->e, ERR_FORMAT, "%s: %s is not a text of 1 to %zu bytes without control characters", r->where,
                       name, max);
    memcpy(r->at, s, n);
    r->at[n] = 0;
    *out = r->at;
    r->at += n + 1;
    return OK;
}

static enum err_code take_digest(struct reading *r, const char *name, yyjson_val *v, uint8_t out[DIGEST_BYTES])
{
    const char *s = yyjson_get_str(v);
    if (!s || yyjson_get_len(v) != DIGEST_HEX_SIZE - 1 || digest_parse(s, out, NULL) != OK)
        return err_set(r->e, ERR_FORMAT, "%s: %s is not a digest of %d lower-case hex digits", r->where, name,
                       DIGEST_HEX_SIZE - 1);
    return OK;
}

/* One number for each block. */
static enum err_code check_blocks(struct reading *r, const char *name, yyjson_val *v, uint64_t n_block)
{
    size_t at, max;
    yyjson_val *one;
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) != n_block)
        return err_set(r->e, ERR_FORMAT, "%s: %s is not an array of %llu numbers, one for each block", r->where, name,
                       (unsigned long long)n_block);
    yyjson_arr_foreach(v, at, max, one)
    {
        uint64_t number;
        enum err_code rc = take_number(r, name, one, MAX_NUMBER, &number);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* What a reader of g knows better; here it only has to be of the right form. */
static enum err_code check_summary(struct reading *r, yyjson_val *const *v)
{
    uint64_t n_block = 0, number;
    enum err_code rc = OK;
    for (size_t i = 0; i < N_INDEX_FIELDS && rc == OK; i++)
        if (strcmp(index_fields[i].name, "n_block") == 0)
            rc = take_number(r, index_fields[i].name, v[i], HPARAMS_MAX_BLOCKS, &n_block);
    for (size_t i = 0; i < N_INDEX_FIELDS && rc == OK; i++) {
        const char *name = index_fields[i].name;
        switch (index_fields[i].kind) {
        case K_U32:
            rc = take_number(r, name, v[i], UINT32_MAX, &number);
            break;
        case K_U64:
            rc = take_number(r, name, v[i], MAX_NUMBER, &number);
            break;
        case K_TEXT:
            rc = yyjson_is_str(v[i]) ? OK : err_set(r->e, ERR_FORMAT, "%s: %s is not a text", r->where, name);
            break;
        case K_BOOL:
            rc = yyjson_is_bool(v[i]) ? OK : err_set(r->e, ERR_FORMAT, "%s: %s is not a bool", r->where, name);
            break;
        case K_BLOCKS:
            rc = check_blocks(r, name, v[i], n_block);
            break;
        case K_DIGEST:
            rc = take_digest(r, name, v[i], r->f.model_id);
            break;
        default:
            break;
        }
    }
    return rc;
}

static enum err_code take_files(struct reading *r, yyjson_val *list)
{
    size_t at, max, n = yyjson_arr_size(list);
    yyjson_val *one, *v[MAX_FIELDS];
    if (!yyjson_is_arr(list) || n == 0 || n > MAX_FILES)
        return err_set(r->e, ERR_FORMAT, "%s: files is not an array of 1 to %u files", r->where, MAX_FILES);
    r->f.files = calloc(n, sizeof *r->f.files);
    if (!r->f.files)
        return err_set(r->e, ERR_NOMEM, "out of memory for %zu files", n);
    r->f.n_files = n;
    yyjson_arr_foreach(list, at, max, one)
    {
        struct index_part *p = &r->f.files[at];
        snprintf(r->where, sizeof r->where, "files[%zu]", at);
        enum err_code rc = take_fields(r, one, file_fields, N_FILE_FIELDS, v);
        if (rc == OK)
            rc = take_name(r, "name", v[F_NAME], MAX_FILE_NAME, &p->name);
        if (rc == OK)
            rc = take_number(r, "size", v[F_SIZE], MAX_NUMBER, &p->size);
        if (rc == OK && (strchr(p->name, '/') || strcmp(p->name, ".") == 0 || strcmp(p->name, "..") == 0))
            rc = err_set(r->e, ERR_FORMAT, "%s: \"%s\" is not the name of a file without folders", r->where, p->name);
        if (rc != OK)
            return rc;
    }
    return OK;
}

static enum err_code take_shape(struct reading *r, yyjson_val *v, int64_t ne[4])
{
    size_t at, max, n = yyjson_arr_size(v);
    yyjson_val *one;
    uint64_t number = 1;
    if (!yyjson_is_arr(v) || n < 1 || n > 4)
        return err_set(r->e, ERR_FORMAT, "%s: shape is not an array of 1 to 4 numbers", r->where);
    for (int k = 0; k < 4; k++)
        ne[k] = 1;
    yyjson_arr_foreach(v, at, max, one)
    {
        enum err_code rc = take_number(r, "shape", one, MAX_NUMBER, &number);
        if (rc != OK)
            return rc;
        ne[at] = (int64_t)number;
    }
    return n > 1 && number == 1 ? err_set(r->e, ERR_FORMAT, "%s: shape ends with a 1, which is left out", r->where)
                                : OK;
}

/* Does it lie in its file, is its size that of type and shape, and does it come after the one before? */
static enum err_code check_tensor(struct reading *r, const struct index_tensor *t)
{
    uint64_t bytes;
    if (!gguf_tensor_bytes(t->type, t->ne, &bytes))
        return err_set(r->e, ERR_FORMAT, "%s: there is no tensor of this type (%d) and shape", r->where, t->type);
    if (bytes != t->size)
        return err_set(r->e, ERR_FORMAT, "%s: the size is %llu, by type and shape it is %llu", r->where,
                       (unsigned long long)t->size, (unsigned long long)bytes);
    uint64_t len = r->f.files[t->file].size;
    if (t->size > len || t->offset > len - t->size)
        return err_set(r->e, ERR_RANGE, "%s: bytes %llu to %llu are beyond its file's %llu", r->where,
                       (unsigned long long)t->offset, (unsigned long long)(t->offset + t->size),
                       (unsigned long long)len);
    if (t > r->f.tensors && strcmp(t[-1].name, t->name) >= 0)
        return err_set(r->e, ERR_FORMAT, "%s: \"%s\" %s", r->where, t->name,
                       strcmp(t[-1].name, t->name) == 0 ? "is there twice" : "is not in the order of the names");
    return OK;
}

static enum err_code take_tensor(struct reading *r, yyjson_val *one, struct index_tensor *t)
{
    yyjson_val *v[MAX_FIELDS];
    uint64_t file = 0, type = 0;
    enum err_code rc = take_fields(r, one, tensor_fields, N_TENSOR_FIELDS, v);
    if (rc == OK)
        rc = take_name(r, "name", v[T_NAME], GGUF_SCAN_MAX_NAME, &t->name);
    if (rc == OK)
        rc = take_digest(r, "blake2b", v[T_DIGEST], t->digest);
    if (rc == OK)
        rc = take_number(r, "file", v[T_FILE], r->f.n_files - 1, &file);
    if (rc == OK)
        rc = take_number(r, "offset", v[T_OFFSET], MAX_NUMBER, &t->offset);
    if (rc == OK)
        rc = take_number(r, "size", v[T_SIZE], MAX_NUMBER, &t->size);
    if (rc == OK)
        rc = take_number(r, "type", v[T_TYPE], INT32_MAX, &type);
    if (rc == OK)
        rc = take_shape(r, v[T_SHAPE], t->ne);
    t->file = (uint32_t)file;
    t->type = (int)type;
    return rc == OK ? check_tensor(r, t) : rc;
}

static enum err_code take_tensors(struct reading *r, yyjson_val *list)
{
    size_t at, max, n = yyjson_arr_size(list);
    yyjson_val *one;
    snprintf(r->where, sizeof r->where, "the index");
    if (!yyjson_is_arr(list))
        return err_set(r->e, ERR_FORMAT, "%s: tensors is not an array", r->where);
    if (n > IDENT_MAX_TENSORS)
        return err_set(r->e, ERR_LIMIT, "%s has %zu tensors; at most %u are allowed", r->where, n, IDENT_MAX_TENSORS);
    r->f.tensors = calloc(n ? n : 1, sizeof *r->f.tensors);
    if (!r->f.tensors)
        return err_set(r->e, ERR_NOMEM, "out of memory for %zu tensors", n);
    r->f.n_tensors = n;
    yyjson_arr_foreach(list, at, max, one)
    {
        snprintf(r->where, sizeof r->where, "tensors[%zu]", at);
        enum err_code rc = take_tensor(r, one, &r->f.tensors[at]);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* Before anything else: another version may have other fields. */
static enum err_code check_version(struct reading *r, yyjson_val *root)
{
    uint64_t version = 0;
    yyjson_val *v = yyjson_obj_get(root, "kvasir_index");
    if (!v)
        return err_set(r->e, ERR_FORMAT, "not an index: there is no \"kvasir_index\"");
    enum err_code rc = take_number(r, "kvasir_index", v, MAX_NUMBER, &version);
    if (rc == OK && version != INDEX_VERSION)
        rc = err_set(r->e, ERR_UNSUPPORTED, "an index of version %llu; version %d is known",
                     (unsigned long long)version, INDEX_VERSION);
    return rc;
}

static enum err_code take_index(struct reading *r, yyjson_val *root, size_t len)
{
    yyjson_val *v[MAX_FIELDS];
    snprintf(r->where, sizeof r->where, "the index");
    enum err_code rc = check_version(r, root);
    if (rc == OK)
        rc = take_fields(r, root, index_fields, N_INDEX_FIELDS, v);
    if (rc == OK)
        rc = check_summary(r, v);
    if (rc != OK)
        return rc;
    r->f.text = r->at = malloc(len); /* each string is shorter than its text by the quotes */
    if (!r->at)
        return err_set(r->e, ERR_NOMEM, "out of memory for an index of %zu bytes", len);
    for (size_t i = 0; i < N_INDEX_FIELDS && rc == OK; i++) /* the files come first, by name too */
        if (index_fields[i].kind == K_FILES)
            rc = take_files(r, v[i]);
        else if (index_fields[i].kind == K_TENSORS)
            rc = take_tensors(r, v[i]);
    return rc;
}

enum err_code index_read(const void *json, size_t len, struct index_file *out, struct err *e)
{
    struct reading r = {.e = e};
    yyjson_read_err why;
    if (len > INDEX_MAX_TEXT)
        return err_set(e, ERR_LIMIT, "an index of %zu bytes; at most %u are allowed", len, INDEX_MAX_TEXT);
    yyjson_doc *doc = len ? yyjson_read_opts((char *)(uintptr_t)json, len, YYJSON_READ_NOFLAG, NULL, &why) : NULL;
    if (!doc && len && why.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return err_set(e, ERR_NOMEM, "out of memory for an index of %zu bytes", len);
    if (!doc)
        return err_set_at(e, ERR_FORMAT, len ? (int64_t)why.pos : 0, "the index is not JSON: %s",
                          len ? why.msg : "it is empty");
    enum err_code rc = take_index(&r, yyjson_doc_get_root(doc), len);
    yyjson_doc_free(doc);
    if (rc != OK) {
        index_file_fini(&r.f);
        return rc;
    }
    *out = r.f;
    return OK;
}

void index_file_fini(struct index_file *f)
{
    free(f->files);
    free(f->tensors);
    free(f->text);
    *f = (struct index_file){0};
}
