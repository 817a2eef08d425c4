/* SPDX-License-Identifier: MIT
 *
 * Checked access to GGUF over ggml's gguf.h. Owns the open files and the tensor table; every value is looked at for its
 * type before the typed getter of ggml, which would abort, is called.
 */
#include "model/gguf.h"

#include "base/buf.h"
#include "base/io.h"
#include "base/log.h"
#include "model/gguf_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <ggml.h>
#include <gguf.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uthash.h>

#define GGUF_MAX_FILES 1024

struct gguf_file {
    char *path;
    FILE *stream; /* NULL from memory */
    uint64_t size;
    struct gguf_context *ctx;
};

struct gguf_name {
    const char *text; /* ggml's */
    int64_t id;
};

struct gguf_entry {
    struct gguf_tensor t;
    UT_hash_handle hh;
};

struct gguf {
    char *path;
    uint32_t n_files;
    struct gguf_file *files;
    size_t n_keys;
    struct gguf_name *keys; /* of the first file, sorted: ggml looks through all of them for one */
    size_t n_tensors;
    struct gguf_entry *tensors; /* in the order of the files */
    struct gguf_entry *by_name;
};

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* ggml reports why a file is bad through its log callback only: the last error line of this thread is kept. */
static _Thread_local char reader_text[200];

static void on_ggml_log(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    char line[200];
    snprintf(line, sizeof line, "%s", text);
    line[strcspn(line, "\n")] = 0;
    if (!line[0])
        return;
    if (level == GGML_LOG_LEVEL_ERROR) {
        const char *colon = strstr(line, ": "); /* "function: text" */
        snprintf(reader_text, sizeof reader_text, "%s", colon ? colon + 2 : line);
    }
    log_debug("ggml", "%s", line);
}

void gguf_take_ggml_log(void)
{
    ggml_log_set(on_ggml_log, NULL);
}

static struct gguf_scan_type type_of(uint32_t type)
{
    if (type >= GGML_TYPE_COUNT)
        return (struct gguf_scan_type){0};
    return (struct gguf_scan_type){.n_elements = (uint32_t)ggml_blck_size((enum ggml_type)type),
                                   .n_bytes = (uint32_t)ggml_type_size((enum ggml_type)type)};
}

/* What the scan let pass ggml should read; where it has a reason of its own not to, it is the last line it logged. */
static enum err_code file_parsed(struct gguf_file *f, struct err *e)
{
    if (!f->ctx)
        return err_set(e, ERR_FORMAT, "%s is not a usable GGUF file: %s", f->path,
                       reader_text[0] ? reader_text : "the header is truncated or malformed");
    return OK;
}

static enum err_code file_scan(const struct gguf_file *f, struct err *e)
{
    size_t len = f->size < GGUF_SCAN_MAX_BYTES ? (size_t)f->size : GGUF_SCAN_MAX_BYTES;
    struct io_map m;
    enum err_code rc = len == 0 ? err_set(e, ERR_FORMAT, "the file is empty") : OK;
    if (rc == OK)
        rc = io_map_range(fileno(f->stream), 0, len, &m, e);
    if (rc == OK) {
        rc = gguf_scan(m.data, m.len, f->size, type_of, NULL, e);
        io_unmap(&m);
    }
    if (rc != OK)
        err_prefix(e, "%s", f->path);
    return rc;
}

static enum err_code file_open(struct gguf_file *f, const char *path, struct err *e)
{
    struct stat st;
    f->path = strdup(path);
    if (!f->path)
        return err_set(e, ERR_NOMEM, "out of memory");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not make us wait */
    if (fd < 0)
        return err_set_os(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "cannot open the model %s", path);
    f->stream = fdopen(fd, "rb");
    if (!f->stream) {
        close(fd);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    if (fstat(fd, &st) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot read the model %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_ARG, "the model %s is not a regular file", path);
    f->size = (uint64_t)st.st_size;
    enum err_code rc = file_scan(f, e);
    if (rc != OK)
        return rc;
    reader_text[0] = 0;
    f->ctx = gguf_init_from_file_ptr(f->stream, (struct gguf_init_params){.no_alloc = true});
    return file_parsed(f, e);
}

static bool five_digits(const char *p, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        *out = *out * 10 + (uint32_t)(p[i] - '0');
    }
    return true;
}

bool gguf_split_name(const char *path, size_t *prefix, uint32_t *part, uint32_t *count)
{
    size_t n = strlen(path);
    const char *end = n < 20 ? path : path + n - 20;
    uint32_t no, total;
    if (n < 20 || end[0] != '-' || !five_digits(end + 1, &no) || memcmp(end + 6, "-of-", 4) != 0 ||
        !five_digits(end + 10, &total) || strcmp(end + 15, ".gguf") != 0)
        return false;
    if (total < 1 || total > GGUF_MAX_FILES || no < 1 || no > total)
        return false;
    *prefix = n - 20;
    *part = no;
    *count = total;
    return true;
}

int32_t gguf_block_of(const char *name)
{
    if (strncmp(name, "blk.", 4) != 0)
        return -1;
    char *end;
    errno = 0;
    unsigned long v = name[4] >= '0' && name[4] <= '9' ? strtoul(name + 4, &end, 10) : ULONG_MAX;
    if (v > INT32_MAX || errno || *end != '.')
        return -1;
    return (int32_t)v;
}

static enum err_code add_tensors(struct gguf *g, uint32_t file, struct err *e)
{
    const struct gguf_file *f = &g->files[file];
    uint64_t data = gguf_get_data_offset(f->ctx);
    int64_t n = gguf_get_n_tensors(f->ctx);
    for (int64_t i = 0; i < n; i++) {
        struct gguf_entry *t = &g->tensors[g->n_tensors], *old;
        uint64_t rel = gguf_get_tensor_offset(f->ctx, i);
        t->t = (struct gguf_tensor){.name = gguf_get_tensor_name(f->ctx, i),
                                    .type = (int)gguf_get_tensor_type(f->ctx, i),
                                    .file = file,
                                    .size = gguf_get_tensor_size(f->ctx, i)};
        memcpy(t->t.ne, gguf_get_tensor_ne(f->ctx, i), sizeof t->t.ne);
        t->t.block = gguf_block_of(t->t.name);
        if (__builtin_add_overflow(data, rel, &t->t.offset) || t->t.offset > f->size ||
            t->t.size > f->size - t->t.offset)
            return err_set(e, ERR_FORMAT,
                           "%s is truncated: tensor %s needs bytes %" PRIu64 "..%" PRIu64 ", the file has %" PRIu64,
                           f->path, t->t.name, data + rel, data + rel + t->t.size, f->size);
        HASH_FIND_STR(g->by_name, t->t.name, old);
        if (old)
            return err_set(e, ERR_FORMAT, "%s: tensor %s is also in %s", f->path, t->t.name,
                           g->files[old->t.file].path);
        HASH_ADD_KEYPTR(hh, g->by_name, t->t.name, strlen(t->t.name), t);
        g->n_tensors++;
    }
    return OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct gguf_name *)a)->text, ((const struct gguf_name *)b)->text);
}

static enum err_code key_table(struct gguf *g, struct err *e)
{
    const struct gguf_context *c = g->files[0].ctx;
    size_t n = (size_t)gguf_get_n_kv(c);
    g->keys = calloc(n ? n : 1, sizeof *g->keys);
    if (!g->keys)
        return err_set(e, ERR_NOMEM, "out of memory for %zu keys", n);
    for (size_t i = 0; i < n; i++)
        g->keys[i] = (struct gguf_name){.text = gguf_get_key(c, (int64_t)i), .id = (int64_t)i};
    g->n_keys = n;
    qsort(g->keys, n, sizeof *g->keys, by_key);
    return OK;
}

static enum err_code tensor_table(struct gguf *g, struct err *e)
{
    size_t total = 0;
    for (uint32_t i = 0; i < g->n_files; i++)
        total += (size_t)gguf_get_n_tensors(g->files[i].ctx);
    g->tensors = calloc(total ? total : 1, sizeof *g->tensors);
    if (!g->tensors)
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", total);
    for (uint32_t i = 0; i < g->n_files; i++) {
        enum err_code rc = add_tensors(g, i, e);
        if (rc != OK)
            return rc;
    }
    return OK;
}

static enum err_code tables(struct gguf *g, struct err *e)
{
    enum err_code rc = key_table(g, e);
    return rc == OK ? tensor_table(g, e) : rc;
}

static enum err_code split_check(const struct gguf *g, struct err *e)
{
    for (uint32_t i = 0; i < g->n_files; i++) {
        struct gguf part = {.n_files = 1, .files = &g->files[i]}; /* without a table of its keys */
        uint32_t no = 0, count = 1;
        enum err_code rc = gguf_opt_u32(&part, "split.no", &no, e);
        if (rc == OK)
            rc = gguf_opt_u32(&part, "split.count", &count, e);
        if (rc != OK) {
            err_prefix(e, "%s", g->files[i].path);
            return rc;
        }
        if (count == 0)
            count = 1;
        if (count != g->n_files)
            return err_set(e, ERR_FORMAT, "%s says it is one of %u files, its name says %u", g->files[i].path, count,
                           g->n_files);
        if (no != i)
            return err_set(e, ERR_FORMAT, "%s says it is part %u, its name says part %u", g->files[i].path, no + 1,
                           i + 1);
    }
    uint32_t n = 0;
    enum err_code rc = gguf_opt_u32(g, "split.tensors.count", &n, e);
    if (rc == OK && n != 0 && n != g->n_tensors)
        rc = err_set(e, ERR_FORMAT, "%s says the model has %u tensors, its %u files hold %zu", g->path, n, g->n_files,
                     g->n_tensors);
    return rc;
}

static enum err_code open_files(struct gguf *g, struct err *e)
{
    size_t prefix = 0;
    uint32_t count = 1, part;
    bool split = gguf_split_name(g->path, &prefix, &part, &count);
    g->files = calloc(count, sizeof *g->files);
    if (!g->files)
        return err_set(e, ERR_NOMEM, "out of memory");
    g->n_files = count;
    for (uint32_t i = 0; i < count; i++) {
        char path[PATH_MAX];
        int n = split ? snprintf(path, sizeof path, "%.*s-%05u-of-%05u.gguf", (int)prefix, g->path, i + 1, count)
                      : snprintf(path, sizeof path, "%s", g->path);
        if (n >= (int)sizeof path)
            return err_set(e, ERR_ARG, "the path of the model is too long");
        enum err_code rc = file_open(&g->files[i], path, e);
        if (rc != OK)
            return rc;
    }
    enum err_code rc = tables(g, e);
    return rc == OK ? split_check(g, e) : rc;
}

enum err_code gguf_open(const char *path, struct gguf **out, struct err *e)
{
    gguf_take_ggml_log();
    struct gguf *g = calloc(1, sizeof *g);
    if (g)
        g->path = strdup(path);
    if (!g || !g->path) {
        free(g);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    enum err_code rc = open_files(g, e);
    if (rc != OK) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return OK;
}

/* Of a file that is not there only its header is, at least. A part without a name is one of gguf_open_mem. */
static enum err_code open_part(struct gguf_file *f, const struct gguf_part *p, struct err *e)
{
    uint64_t need;
    f->size = p->file_size;
    f->path = strdup(p->name ? p->name : "(memory)");
    if (!f->path)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = gguf_head_need(p->head, p->head_len, p->file_size, &need, e);
    if (rc == OK && need > 0)
        rc = err_set(e, ERR_ARG, "the header is longer than the %zu bytes given", p->head_len);
    if (rc != OK && p->name)
        err_prefix(e, "%s", p->name);
    if (rc != OK)
        return rc;
    reader_text[0] = 0;
    f->ctx = gguf_init_from_buffer(p->head, p->head_len, (struct gguf_init_params){.no_alloc = true});
    return file_parsed(f, e);
}

static enum err_code open_parts(struct gguf *g, const struct gguf_part *parts, uint32_t n, struct err *e)
{
    g->path = strdup(parts[0].name ? parts[0].name : "(memory)");
    g->files = calloc(n, sizeof *g->files);
    if (!g->path || !g->files)
        return err_set(e, ERR_NOMEM, "out of memory");
    g->n_files = n;
    for (uint32_t i = 0; i < n; i++) {
        enum err_code rc = open_part(&g->files[i], &parts[i], e);
        if (rc != OK)
            return rc;
    }
    return tables(g, e);
}

enum err_code gguf_open_mem(const void *data, size_t len, struct gguf **out, struct err *e)
{
    const struct gguf_part part = {.head = data, .head_len = len, .file_size = len};
    gguf_take_ggml_log();
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = open_parts(g, &part, 1, e);
    if (rc != OK) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return OK;
}

enum err_code gguf_open_heads(const struct gguf_part *parts, uint32_t n, struct gguf **out, struct err *e)
{
    if (n == 0 || n > GGUF_MAX_FILES)
        return err_set(e, ERR_ARG, "a model in %u files; 1 to %d are possible", n, GGUF_MAX_FILES);
    gguf_take_ggml_log();
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = open_parts(g, parts, n, e);
    if (rc == OK)
        rc = split_check(g, e);
    if (rc != OK) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return OK;
}

enum err_code gguf_head_need(const void *head, size_t len, uint64_t file_size, uint64_t *need, struct err *e)
{
    return gguf_scan(head, len, file_size, type_of, need, e);
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    HASH_CLEAR(hh, g->by_name);
    for (uint32_t i = 0; g->files && i < g->n_files; i++) {
        if (g->files[i].ctx)
            gguf_free(g->files[i].ctx);
        if (g->files[i].stream)
            fclose(g->files[i].stream);
        free(g->files[i].path);
    }
    free(g->files);
    free(g->keys);
    free(g->tensors);
    free(g->path);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint32_t gguf_n_files(const struct gguf *g)
{
    return g->n_files;
}

int gguf_fd(const struct gguf *g, uint32_t file)
{
    return file < g->n_files && g->files[file].stream ? fileno(g->files[file].stream) : -1;
}

uint64_t gguf_file_size(const struct gguf *g, uint32_t file)
{
    return file < g->n_files ? g->files[file].size : 0;
}

const char *gguf_file_path(const struct gguf *g, uint32_t file)
{
    return file < g->n_files ? g->files[file].path : "";
}

/* --- scalars ------------------------------------------------------------------------------------------------------ */

static const struct gguf_context *meta(const struct gguf *g)
{
    return g->files[0].ctx;
}

static int64_t find_key(const struct gguf *g, const char *key)
{
    const struct gguf_name wanted = {.text = key};
    if (!g->keys)
        return gguf_find_key(meta(g), key);
    const struct gguf_name *k = bsearch(&wanted, g->keys, g->n_keys, sizeof *g->keys, by_key);
    return k ? k->id : -1;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find_key(g, key) >= 0;
}

static enum err_code missing(const char *key, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "the model lacks the key %s", key);
}

static enum err_code wrong_type(const struct gguf_context *c, int64_t id, const char *want, struct err *e)
{
    enum gguf_type t = gguf_get_kv_type(c, id);
    if (t == GGUF_TYPE_ARRAY)
        return err_set(e, ERR_FORMAT, "the key %s is an array of %s, not %s", gguf_get_key(c, id),
                       gguf_type_name(gguf_get_arr_type(c, id)), want);
    return err_set(e, ERR_FORMAT, "the key %s is of type %s, not %s", gguf_get_key(c, id), gguf_type_name(t), want);
}

/* Any integer scalar as 64 bits; *neg says whether v is a negative int64. */
static bool integer_of(const struct gguf_context *c, int64_t id, uint64_t *v, bool *neg)
{
    int64_t s;
    *neg = false;
    switch (gguf_get_kv_type(c, id)) {
    case GGUF_TYPE_UINT8:
        *v = gguf_get_val_u8(c, id);
        return true;
    case GGUF_TYPE_UINT16:
        *v = gguf_get_val_u16(c, id);
        return true;
    case GGUF_TYPE_UINT32:
        *v = gguf_get_val_u32(c, id);
        return true;
    case GGUF_TYPE_UINT64:
        *v = gguf_get_val_u64(c, id);
        return true;
    case GGUF_TYPE_INT8:
        s = gguf_get_val_i8(c, id); /* NOLINT(bugprone-signed-char-misuse,cert-str34-c): a number, not a character */
        break;
    case GGUF_TYPE_INT16:
        s = gguf_get_val_i16(c, id);
        break;
    case GGUF_TYPE_INT32:
        s = gguf_get_val_i32(c, id);
        break;
    case GGUF_TYPE_INT64:
        s = gguf_get_val_i64(c, id);
        break;
    default:
        return false;
    }
    *neg = s < 0;
    *v = (uint64_t)s;
    return true;
}

enum err_code gguf_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e)
{
    int64_t id = find_key(g, key);
    uint64_t v;
    bool neg;
    if (id < 0)
        return missing(key, e);
    if (!integer_of(meta(g), id, &v, &neg))
        return wrong_type(meta(g), id, "an integer", e);
    if (neg)
        return err_set(e, ERR_RANGE, "the key %s is negative (%" PRId64 ")", key, (int64_t)v);
    if (v > UINT32_MAX)
        return err_set(e, ERR_RANGE, "the key %s is too large (%" PRIu64 ")", key, v);
    *out = (uint32_t)v;
    return OK;
}

enum err_code gguf_i32(const struct gguf *g, const char *key, int32_t *out, struct err *e)
{
    int64_t id = find_key(g, key);
    uint64_t v;
    bool neg;
    if (id < 0)
        return missing(key, e);
    if (!integer_of(meta(g), id, &v, &neg))
        return wrong_type(meta(g), id, "an integer", e);
    if (neg ? (int64_t)v < INT32_MIN : v > INT32_MAX)
        return err_set(e, ERR_RANGE, "the key %s does not fit 32 bits", key);
    *out = (int32_t)(int64_t)v;
    return OK;
}

enum err_code gguf_f32(const struct gguf *g, const char *key, float *out, struct err *e)
{
    int64_t id = find_key(g, key);
    float v;
    if (id < 0)
        return missing(key, e);
    switch (gguf_get_kv_type(meta(g), id)) {
    case GGUF_TYPE_FLOAT32:
        v = gguf_get_val_f32(meta(g), id);
        break;
    case GGUF_TYPE_FLOAT64:
        v = (float)gguf_get_val_f64(meta(g), id);
        break;
    default:
        return wrong_type(meta(g), id, "a floating-point number", e);
    }
    if (!isfinite(v))
        return err_set(e, ERR_RANGE, "the key %s is not a finite number", key);
    *out = v;
    return OK;
}

enum err_code gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    int64_t id = find_key(g, key);
    if (id < 0)
        return missing(key, e);
    if (gguf_get_kv_type(meta(g), id) != GGUF_TYPE_BOOL)
        return wrong_type(meta(g), id, "a boolean", e);
    *out = gguf_get_val_bool(meta(g), id);
    return OK;
}

enum err_code gguf_str(const struct gguf *g, const char *key, const char **out, struct err *e)
{
    int64_t id = find_key(g, key);
    if (id < 0)
        return missing(key, e);
    if (gguf_get_kv_type(meta(g), id) != GGUF_TYPE_STRING)
        return wrong_type(meta(g), id, "a string", e);
    *out = gguf_get_val_str(meta(g), id);
    return OK;
}

enum err_code gguf_opt_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e)
{
    return gguf_has(g, key) ? gguf_u32(g, key, out, e) : OK;
}

enum err_code gguf_opt_i32(const struct gguf *g, const char *key, int32_t *out, struct err *e)
{
    return gguf_has(g, key) ? gguf_i32(g, key, out, e) : OK;
}

enum err_code gguf_opt_f32(const struct gguf *g, const char *key, float *out, struct err *e)
{
    return gguf_has(g, key) ? gguf_f32(g, key, out, e) : OK;
}

enum err_code gguf_opt_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    return gguf_has(g, key) ? gguf_bool(g, key, out, e) : OK;
}

enum err_code gguf_opt_str(const struct gguf *g, const char *key, const char **out, struct err *e)
{
    return gguf_has(g, key) ? gguf_str(g, key, out, e) : OK;
}

/* --- arrays ------------------------------------------------------------------------------------------------------- */

static enum err_code array_of(const struct gguf *g, const char *key, size_t n_expected, int64_t *id, size_t *n,
                              struct err *e)
{
    const struct gguf_context *c = meta(g);
    *id = find_key(g, key);
    if (*id < 0)
        return missing(key, e);
    if (gguf_get_kv_type(c, *id) != GGUF_TYPE_ARRAY)
        return wrong_type(c, *id, "an array", e);
    *n = gguf_get_arr_n(c, *id);
    if (n_expected && *n != n_expected)
        return err_set(e, ERR_FORMAT, "the array %s has %zu elements, %zu are needed", key, *n, n_expected);
    return OK;
}

enum err_code gguf_arr_len(const struct gguf *g, const char *key, size_t *n, struct err *e)
{
    int64_t id;
    return array_of(g, key, 0, &id, n, e);
}

enum err_code gguf_arr_f32(const struct gguf *g, const char *key, size_t n_expected, const float **out, size_t *n,
                           struct err *e)
{
    int64_t id;
    size_t len = 0;
    enum err_code rc = array_of(g, key, n_expected, &id, &len, e);
    if (rc != OK)
        return rc;
    if (gguf_get_arr_type(meta(g), id) != GGUF_TYPE_FLOAT32)
        return wrong_type(meta(g), id, "of f32", e);
    *out = gguf_get_arr_data(meta(g), id);
    *n = len;
    return OK;
}

enum err_code gguf_arr_i32(const struct gguf *g, const char *key, size_t n_expected, const int32_t **out, size_t *n,
                           struct err *e)
{
    int64_t id;
    size_t len = 0;
    enum err_code rc = array_of(g, key, n_expected, &id, &len, e);
    if (rc != OK)
        return rc;
    enum gguf_type t = gguf_get_arr_type(meta(g), id);
    if (t != GGUF_TYPE_INT32 && t != GGUF_TYPE_UINT32)
        return wrong_type(meta(g), id, "of i32 or u32", e);
    const int32_t *v = gguf_get_arr_data(meta(g), id);
    for (size_t i = 0; t == GGUF_TYPE_UINT32 && i < len; i++) {
        if (v[i] < 0)
            return err_set(e, ERR_RANGE, "the array %s: element %zu does not fit 31 bits", key, i);
    }
    *out = v;
    *n = len;
    return OK;
}

enum err_code gguf_arr_u8(const struct gguf *g, const char *key, const uint8_t **out, size_t *n, struct err *e)
{
    int64_t id;
    size_t len = 0;
    enum err_code rc = array_of(g, key, 0, &id, &len, e);
    if (rc != OK)
        return rc;
    if (gguf_get_arr_type(meta(g), id) != GGUF_TYPE_UINT8)
        return wrong_type(meta(g), id, "of u8", e);
    *out = gguf_get_arr_data(meta(g), id);
    *n = len;
    return OK;
}

enum err_code gguf_arr_strs(const struct gguf *g, const char *key, size_t n_expected, size_t *n, struct err *e)
{
    int64_t id;
    size_t len = 0;
    enum err_code rc = array_of(g, key, n_expected, &id, &len, e);
    if (rc != OK)
        return rc;
    if (gguf_get_arr_type(meta(g), id) != GGUF_TYPE_STRING)
        return wrong_type(meta(g), id, "of strings", e);
    *n = len;
    return OK;
}

const char *gguf_arr_str_at(const struct gguf *g, const char *key, size_t i)
{
    int64_t id = find_key(g, key);
    if (id < 0 || gguf_get_kv_type(meta(g), id) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(meta(g), id) != GGUF_TYPE_STRING || i >= gguf_get_arr_n(meta(g), id))
        return NULL;
    return gguf_get_arr_str(meta(g), id, i);
}

enum err_code gguf_u32_per_block(const struct gguf *g, const char *key, size_t n, uint32_t *out, struct err *e)
{
    int64_t id = find_key(g, key);
    if (id >= 0 && gguf_get_kv_type(meta(g), id) == GGUF_TYPE_ARRAY) {
        const int32_t *v;
        size_t len;
        enum err_code rc = gguf_arr_i32(g, key, n, &v, &len, e);
        for (size_t i = 0; rc == OK && i < n; i++) {
            if (v[i] < 0)
                return err_set(e, ERR_RANGE, "the array %s: element %zu is negative", key, i);
        }
        for (size_t i = 0; rc == OK && i < n; i++)
            out[i] = (uint32_t)v[i];
        return rc;
    }
    uint32_t all;
    enum err_code rc = gguf_u32(g, key, &all, e);
    for (size_t i = 0; rc == OK && i < n; i++)
        out[i] = all;
    return rc;
}

/* --- canonical bytes ---------------------------------------------------------------------------------------------- */

size_t gguf_n_kv(const struct gguf *g)
{
    return (size_t)gguf_get_n_kv(meta(g));
}

const char *gguf_key(const struct gguf *g, size_t i)
{
    return i < gguf_n_kv(g) ? gguf_get_key(meta(g), (int64_t)i) : NULL;
}

static size_t type_width(enum gguf_type t)
{
    switch (t) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
        return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
        return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32:
        return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
        return 8;
    default:
        return 0;
    }
}

/* ggml keeps numbers in host order. */
static void put_numbers(struct buf *out, const uint8_t *p, size_t width, size_t n)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    buf_put(out, p, width * n);
#else
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < width; k++)
            buf_put_u8(out, p[i * width + width - 1 - k]);
#endif
}

static void put_string(struct buf *out, const char *s)
{
    size_t n = strlen(s);
    buf_put_u64(out, n);
    buf_put(out, s, n);
}

enum err_code gguf_value_bytes(const struct gguf *g, size_t i, struct buf *out, struct err *e)
{
    const struct gguf_context *c = meta(g);
    if (i >= gguf_n_kv(g))
        return err_set(e, ERR_RANGE, "there is no key number %zu", i);
    int64_t id = (int64_t)i;
    enum gguf_type t = gguf_get_kv_type(c, id);
    buf_put_u32(out, (uint32_t)t);
    if (t == GGUF_TYPE_STRING) {
        put_string(out, gguf_get_val_str(c, id));
    } else if (t == GGUF_TYPE_ARRAY) {
        enum gguf_type et = gguf_get_arr_type(c, id);
        size_t n = gguf_get_arr_n(c, id);
        buf_put_u32(out, (uint32_t)et);
        buf_put_u64(out, n);
        if (et == GGUF_TYPE_STRING) {
            for (size_t k = 0; k < n; k++)
                put_string(out, gguf_get_arr_str(c, id, k));
        } else if (n > 0) {
            put_numbers(out, gguf_get_arr_data(c, id), type_width(et), n);
        }
    } else {
        put_numbers(out, gguf_get_val_data(c, id), type_width(t), 1);
    }
    return out->failed ? err_set(e, ERR_NOMEM, "out of memory") : OK;
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

bool gguf_tensor_bytes(int type, const int64_t ne[4], uint64_t *out)
{
    struct gguf_scan_type t = type_of(type < 0 ? UINT32_MAX : (uint32_t)type);
    uint64_t n = 1;
    if (t.n_elements == 0 || t.n_bytes == 0)
        return false;
    for (int k = 0; k < 4; k++)
        if (ne[k] < 1 || __builtin_mul_overflow(n, (uint64_t)ne[k], &n) || n > (uint64_t)INT64_MAX / 64)
            return false;
    if (ne[0] % t.n_elements != 0 || __builtin_mul_overflow(n / t.n_elements, t.n_bytes, &n) || n > INT64_MAX / 2)
        return false;
    *out = n;
    return true;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i].t : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct gguf_entry *t;
    HASH_FIND_STR(g->by_name, name, t);
    return t ? &t->t : NULL;
}
