/* SPDX-License-Identifier: MIT
 *
 * The writer of the model maker: checks the shape, writes the header through gguf.h, then worker threads take chunks of
 * rows, generate, quantise and write them at their offset. Each row has its own random stream (seed, tensor, row), so
 * the order of the work does not matter. Rows of large tensors are put together from a pool of quantised pieces, one
 * pool for each type and scale, filled from a stream of its own.
 */
#include "base/hash.h"
#include "base/thread.h"
#include "lib/maker_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MAKER_MAX_BLOCKS  1024u
#define MAKER_MAX_WIDTH   65536u
#define MAKER_MAX_THREADS 16u
#define MAKER_CHUNK_ELEMS (256 * 1024) /* what a worker generates at a time */
#define MAKER_POOL_ELEMS  (128 * 1024) /* of a pool */
#define MAKER_POOL_FROM   (512 * 1024) /* tensors of at least so many elements come from a pool */

/* Quantised pieces of a row. */
struct pool {
    struct pool *next;
    enum ggml_type type;
    float mean, scale;
    size_t piece_bytes;
    size_t n_pieces;
    uint8_t *data; /* [n_pieces x piece_bytes] */
};

struct maker {
    const struct maker_params *p;
    struct maker_list list;
    int fd;
    atomic_size_t next;   /* chunk to do next, over all tensors */
    pthread_mutex_t lock; /* of what follows */
    struct pool *pools;
    enum err_code rc; /* of the first worker that failed */
    struct err err;
};

/* --- is it possible? ---------------------------------------------------------------------------- */

static const enum ggml_type types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,    GGML_TYPE_BF16,   GGML_TYPE_Q4_0,
                                       GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,   GGML_TYPE_Q5_1,   GGML_TYPE_Q8_0,
                                       GGML_TYPE_Q2_K, GGML_TYPE_Q3_K,   GGML_TYPE_Q4_K,   GGML_TYPE_Q5_K,
                                       GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_MXFP4};

static bool type_known(int type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (type == (int)types[i])
            return true;
    return false;
}

#define MAKER_TYPES "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K iq4_nl iq4_xs mxfp4"

enum err_code maker_type(const char *name, int *out, struct err *e)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcasecmp(name, ggml_type_name(types[i])) == 0) {
            *out = (int)types[i];
            return OK;
        }
    }
    return err_set(e, ERR_ARG, "maker: no type '%s': one of " MAKER_TYPES, name);
}

enum err_code maker_type_and_mix(const char *name, int *type, enum maker_mix *mix, struct err *e)
{
    if (strcasecmp(name, "q4_k_m") == 0) {
        *type = GGML_TYPE_Q4_K;
        *mix = MAKER_MIX_Q4_K_M;
        return OK;
    }
    return maker_type(name, type, e);
}

static enum err_code in_range(const char *what, uint32_t v, uint32_t min, uint32_t max, struct err *e)
{
    if (v >= min && v <= max)
        return OK;
    return err_set(e, ERR_ARG, "maker: %s is %u, not %u to %u", what, v, min, max);
}

static enum err_code check_shape(const struct maker_params *p, struct err *e)
{
    enum err_code rc = maker_check_family(p, e);
    if (rc != OK)
        return rc;
    if (!type_known(p->type))
        return err_set(e, ERR_ARG, "maker: type %d is not one of " MAKER_TYPES, p->type);
    if ((rc = in_range("n_block", p->n_block, 1, MAKER_MAX_BLOCKS, e)) != OK ||
        (rc = in_range("n_embd", p->n_embd, 1, MAKER_MAX_WIDTH, e)) != OK ||
        (rc = in_range("n_head", p->n_head, 1, 1024, e)) != OK ||
        (rc = in_range("n_head_kv", p->n_head_kv, 1, p->n_head, e)) != OK ||
        (rc = in_range("head_dim", p->head_dim, 2, 1024, e)) != OK ||
        (rc = in_range("n_ff", p->n_ff, maker_needs_ff(p) ? 1 : 0, MAKER_MAX_WIDTH, e)) != OK ||
        (rc = in_range("n_vocab", p->n_vocab, maker_min_vocab(p), MAKER_MAX_VOCAB, e)) != OK ||
        (rc = in_range("n_ctx", p->n_ctx, 1, 1u << 24, e)) != OK ||
        (rc = in_range("n_threads", p->n_threads, 0, MAKER_MAX_THREADS, e)) != OK)
        return rc;
    if (p->n_head % p->n_head_kv != 0)
        return err_set(e, ERR_ARG, "maker: %u heads are not a multiple of %u kv heads", p->n_head, p->n_head_kv);
    if (p->head_dim % 2 != 0)
        return err_set(e, ERR_ARG, "maker: head_dim %u is odd: RoPE turns pairs", p->head_dim);
    if (p->only_end && (p->only_first >= p->only_end || p->only_end > p->n_block + p->n_nextn))
        return err_set(e, ERR_ARG, "maker: the model has no blocks %u to %u", p->only_first, p->only_end);
    return OK;
}

static enum err_code check_tensors(const struct maker *m, struct err *e)
{
    for (size_t i = 0; i < m->list.n; i++) {
        const struct maker_tensor *t = &m->list.tensor[i];
        if (!type_known((int)t->type))
            return err_set(e, ERR_ARG, "maker: type %d of %s: one of " MAKER_TYPES, (int)t->type, t->name);
        if (t->ne[0] < 1 || t->ne[0] > MAKER_MAX_VOCAB || t->ne[1] < 0 || t->ne[1] > MAKER_MAX_VOCAB || t->ne[2] < 0)
            return err_set(e, ERR_ARG, "maker: shape of %s is out of range", t->name);
        if (t->ne[0] % ggml_blck_size(t->type) != 0)
            return err_set(e, ERR_ARG, "maker: rows of %s have %lld elements, not a multiple of %lld (%s)", t->name,
                           (long long)t->ne[0], (long long)ggml_blck_size(t->type), ggml_type_name(t->type));
    }
    return OK;
}

/* A fault that hits nothing would make a sound model: refuse it. */
static enum err_code check_fault_names(const struct maker *m, struct err *e)
{
    const struct maker_params *p = m->p;
    const char *const name[] = {p->broken_reshape, p->broken_retype};

    if (p->broken_drop && !m->list.dropped)
        return err_set(e, ERR_ARG, "maker: no tensor '%s' to leave out", p->broken_drop);
    for (size_t k = 0; k < 2; k++) {
        bool found = !name[k];
        for (size_t i = 0; i < m->list.n && !found; i++)
            found = strcmp(m->list.tensor[i].name, name[k]) == 0;
        if (!found)
            return err_set(e, ERR_ARG, "maker: no tensor '%s' to change", name[k]);
    }
    return OK;
}

/* --- the header --------------------------------------------------------------------------------- */

static void put_fault(struct gguf_context *meta, const struct maker_params *p)
{
    int32_t as_i32 = (int32_t)p->broken_u32;

    if (!p->broken_key || p->broken_key_how == MAKER_KEY_OK)
        return;
    gguf_remove_key(meta, p->broken_key);
    switch (p->broken_key_how) {
    case MAKER_KEY_U32:
        gguf_set_val_u32(meta, p->broken_key, p->broken_u32);
        break;
    case MAKER_KEY_I32:
        gguf_set_val_i32(meta, p->broken_key, as_i32);
        break;
    case MAKER_KEY_F32:
        gguf_set_val_f32(meta, p->broken_key, p->broken_f32);
        break;
    case MAKER_KEY_STRING:
        gguf_set_val_str(meta, p->broken_key, "wrong");
        break;
    case MAKER_KEY_ARRAY:
        gguf_set_arr_data(meta, p->broken_key, GGUF_TYPE_INT32, &as_i32, 1);
        break;
    case MAKER_KEY_OK:
    case MAKER_KEY_DROP:
        break;
    }
}

static uint64_t tensor_rows(const struct maker_tensor *t)
{
    return (uint64_t)(t->ne[1] ? t->ne[1] : 1) * (uint64_t)(t->ne[2] ? t->ne[2] : 1);
}

/* Writes the header to path and notes each tensor's offset; *size: how long the file will be. */
static enum err_code write_header(struct maker *m, const char *path, uint64_t *size, struct err *e)
{
    struct ggml_init_params init = {.mem_size = (m->list.n + 1) * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(init);
    struct gguf_context *meta = gguf_init_empty();
    enum err_code rc = OK;

    if (!ctx || !meta)
        rc = err_set(e, ERR_NOMEM, "maker: no memory for the header");
    else
        rc = maker_put_keys(meta, m->p, e);
    if (rc == OK)
        put_fault(meta, m->p);
    for (size_t i = 0; rc == OK && i < m->list.n; i++) {
        const struct maker_tensor *t = &m->list.tensor[i];
        struct ggml_tensor *g = ggml_new_tensor(ctx, t->type, t->ne[2] ? 3 : t->ne[1] ? 2 : 1, t->ne);
        ggml_set_name(g, t->name);
        gguf_add_tensor(meta, g);
    }
    if (rc == OK) {
        size_t data = gguf_get_meta_size(meta);
        *size = data;
        for (size_t i = 0; i < m->list.n; i++) {
            struct maker_tensor *t = &m->list.tensor[i];
            t->offset = data + gguf_get_tensor_offset(meta, (int64_t)i);
            *size = t->offset +
                    GGML_PAD(ggml_row_size(t->type, t->ne[0]) * tensor_rows(t), (uint64_t)GGUF_DEFAULT_ALIGNMENT);
        }
        if (!gguf_write_to_file(meta, path, true))
            rc = err_set(e, ERR_IO, "cannot write %s", path);
    }
    gguf_free(meta);
    ggml_free(ctx);
    return rc;
}

/* --- the numbers -------------------------------------------------------------------------------- */

/* About normal, mean 0, deviation 1: the sum of the four 16-bit parts of one random word. A sum of four uniforms on
 * [0, 65535] has mean 131070 and variance (65536^2 - 1) / 3, deviation 37837. Cheap, and never beyond 3.5. */
static void fill_normal(float *out, int64_t n, float mean, float scale, uint64_t stream)
{
    const float s = scale / 37837.0f;
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = hash_mix64(stream + (uint64_t)i * 0x9e3779b97f4a7c15ull);
        int32_t sum = (int32_t)((r & 0xffff) + ((r >> 16) & 0xffff) + ((r >> 32) & 0xffff) + (r >> 48));
        out[i] = mean + s * (float)(sum - 131070);
    }
}

static float row_scale(const struct maker *m, const struct maker_tensor *t, uint64_t row)
{
    return t->quiet_tokens && maker_token_is_quiet(m->p, (uint32_t)row) ? t->b / 20 : t->b;
}

static uint64_t row_stream(const struct maker *m, const struct maker_tensor *t, uint64_t row)
{
    return hash_mix64(hash_mix64(m->p->seed ^ t->stream) + row);
}

static void fill_row(const struct maker *m, const struct maker_tensor *t, uint64_t row, float *out)
{
    uint64_t stream = row_stream(m, t, row);
    int64_t n = t->ne[0];

    switch (t->fill) {
    case MAKER_FILL_NORMAL:
        fill_normal(out, n, t->a, row_scale(m, t, row), stream);
        break;
    case MAKER_FILL_SIGNS:
        fill_normal(out, n, t->a, t->b, stream);
        for (int64_t i = 0; i < n; i++)
            if (hash_mix64(~stream + (uint64_t)i) & 1)
                out[i] = -out[i];
        break;
    case MAKER_FILL_UNIFORM:
        for (int64_t i = 0; i < n; i++)
            out[i] = t->a + (t->b - t->a) * (float)hash_uniform(stream, (uint64_t)i);
        break;
    case MAKER_FILL_ROPE_FREQS:
        for (int64_t i = 0; i < n; i++)
            out[i] = 3 * i < n ? 1.0f : 1.0f + (t->a - 1.0f) * (float)(3 * i - n) / (2.0f * (float)n);
        break;
    }
}

/* --- pools -------------------------------------------------------------------------------------- */

/* Elements of a piece: a block of the type, but not less than 32. */
static int64_t piece_elems(enum ggml_type type)
{
    return ggml_blck_size(type) > 32 ? ggml_blck_size(type) : 32;
}

static bool from_pool(const struct maker_tensor *t)
{
    return t->fill == MAKER_FILL_NORMAL && t->ne[0] % piece_elems(t->type) == 0 &&
           (uint64_t)t->ne[0] * tensor_rows(t) >= MAKER_POOL_FROM;
}

static struct pool *pool_make(const struct maker *m, enum ggml_type type, float mean, float scale)
{
    int64_t n = piece_elems(type);
    struct pool *pool = calloc(1, sizeof *pool);
    size_t n_pieces = (size_t)(MAKER_POOL_ELEMS / n);
    float *values = malloc(MAKER_POOL_ELEMS * sizeof *values);
    uint32_t bits;

    memcpy(&bits, &scale, sizeof bits);
    if (pool && values) {
        *pool = (struct pool){.type = type, .mean = mean, .scale = scale, .n_pieces = n_pieces};
        pool->piece_bytes = ggml_row_size(type, n);
        pool->data = malloc(n_pieces * pool->piece_bytes);
    }
    if (!pool || !values || !pool->data) {
        free(values);
        free(pool);
        return NULL;
    }
    fill_normal(values, MAKER_POOL_ELEMS, mean, scale, hash_mix64(hash_mix64(m->p->seed + (uint64_t)type) ^ bits));
    ggml_quantize_chunk(type, values, pool->data, 0, (int64_t)n_pieces, n, NULL);
    free(values);
    return pool;
}

/* The pool of a type, mean and scale; made by whoever asks first. NULL: no memory. */
static const struct pool *pool_get(struct maker *m, enum ggml_type type, float mean, float scale)
{
    struct pool *pool;

    pthread_mutex_lock(&m->lock);
    for (pool = m->pools; pool; pool = pool->next)
        if (pool->type == type && pool->mean == mean && pool->scale == scale)
            break;
    if (!pool && (pool = pool_make(m, type, mean, scale)) != NULL) {
        pool->next = m->pools;
        m->pools = pool;
    }
    pthread_mutex_unlock(&m->lock);
    return pool;
}

static void pools_free(struct maker *m)
{
    while (m->pools) {
        struct pool *next = m->pools->next;
        free(m->pools->data);
        free(m->pools);
        m->pools = next;
    }
}

/* One quantised row, each piece drawn from the pool. */
static void draw_row(const struct pool *pool, uint64_t stream, int64_t n_piece, uint8_t *out)
{
    for (int64_t i = 0; i < n_piece; i++) {
        size_t from = hash_mix64(stream + (uint64_t)i) % pool->n_pieces;
        memcpy(out, pool->data + from * pool->piece_bytes, pool->piece_bytes);
        out += pool->piece_bytes;
    }
}

/* Rows [first, first + n) of t, quantised. */
static enum err_code draw_rows(struct maker *m, const struct maker_tensor *t, uint64_t first, uint64_t n, uint8_t *out,
                               struct err *e)
{
    size_t row_bytes = ggml_row_size(t->type, t->ne[0]);
    const struct pool *loud = pool_get(m, t->type, t->a, t->b);
    const struct pool *quiet = t->quiet_tokens ? pool_get(m, t->type, t->a, t->b / 20) : loud;

    if (!loud || !quiet)
        return err_set(e, ERR_NOMEM, "maker: no memory for %s", t->name);
    for (uint64_t r = first; r < first + n; r++) {
        bool is_quiet = t->quiet_tokens && maker_token_is_quiet(m->p, (uint32_t)r);
        draw_row(is_quiet ? quiet : loud, row_stream(m, t, r), t->ne[0] / piece_elems(t->type), out);
        out += row_bytes;
    }
    return OK;
}

/* --- writing ------------------------------------------------------------------------------------ */

static uint64_t rows_per_chunk(const struct maker_tensor *t)
{
    return t->ne[0] >= MAKER_CHUNK_ELEMS ? 1 : (uint64_t)(MAKER_CHUNK_ELEMS / t->ne[0]);
}

static enum err_code write_all(int fd, const void *data, size_t len, uint64_t offset, struct err *e)
{
    const uint8_t *p = data;
    while (len > 0) {
        ssize_t n = pwrite(fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set_os(e, ERR_IO, n < 0 ? errno : ENOSPC, "cannot write a tensor");
        p += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return OK;
}

static enum err_code make_rows(struct maker *m, const struct maker_tensor *t, uint64_t first, uint64_t n, uint8_t *out,
                               struct err *e)
{
    float *values = malloc((size_t)n * (size_t)t->ne[0] * sizeof *values);

    if (!values)
        return err_set(e, ERR_NOMEM, "maker: no memory for %llu rows of %s", (unsigned long long)n, t->name);
    for (uint64_t r = 0; r < n; r++)
        fill_row(m, t, first + r, values + r * (uint64_t)t->ne[0]);
    ggml_quantize_chunk(t->type, values, out, 0, (int64_t)n, t->ne[0], NULL);
    free(values);
    return OK;
}

/* Rows [first, end) of t. */
static enum err_code write_rows(struct maker *m, const struct maker_tensor *t, uint64_t first, uint64_t end,
                                struct err *e)
{
    size_t row_bytes = ggml_row_size(t->type, t->ne[0]);
    uint64_t n = end - first;
    uint8_t *packed = malloc((size_t)n * row_bytes);
    enum err_code rc;

    if (!packed)
        return err_set(e, ERR_NOMEM, "maker: no memory for %llu rows of %s", (unsigned long long)n, t->name);
    rc = from_pool(t) ? draw_rows(m, t, first, n, packed, e) : make_rows(m, t, first, n, packed, e);
    if (rc == OK)
        rc = write_all(m->fd, packed, (size_t)n * row_bytes, t->offset + first * row_bytes, e);
    free(packed);
    return rc;
}

/* Takes chunks until there are none; stops early when somebody failed. */
static void *worker(void *arg)
{
    struct maker *m = arg;
    size_t i = 0, before = 0; /* chunks of the tensors before tensor i */

    for (;;) {
        size_t chunk = atomic_fetch_add(&m->next, 1);
        struct err e = {0};
        while (i < m->list.n) {
            uint64_t per = rows_per_chunk(&m->list.tensor[i]);
            size_t n = (size_t)((tensor_rows(&m->list.tensor[i]) + per - 1) / per);
            if (chunk < before + n)
                break;
            before += n;
            i++;
        }
        if (i == m->list.n)
            return NULL;
        uint64_t per = rows_per_chunk(&m->list.tensor[i]), rows = tensor_rows(&m->list.tensor[i]);
        uint64_t first = (chunk - before) * per;
        enum err_code rc = write_rows(m, &m->list.tensor[i], first, first + per < rows ? first + per : rows, &e);
        pthread_mutex_lock(&m->lock);
        if (rc != OK && m->rc == OK) {
            m->rc = rc;
            m->err = e;
        }
        bool stop = m->rc != OK;
        pthread_mutex_unlock(&m->lock);
        if (stop)
            return NULL;
    }
}

static enum err_code write_tensors(struct maker *m, struct err *e)
{
    pthread_t thread[MAKER_MAX_THREADS];
    uint32_t want = m->p->n_threads ? m->p->n_threads : 2, n = 0;

    pthread_mutex_init(&m->lock, NULL);
    while (n + 1 < want && thread_start(&thread[n], "maker", worker, m, NULL) == OK)
        n++; /* fewer threads than wanted only take longer */
    worker(m);
    while (n > 0)
        pthread_join(thread[--n], NULL);
    pthread_mutex_destroy(&m->lock);
    pools_free(m);
    if (m->rc != OK && e)
        *e = m->err;
    return m->rc;
}

/* --- the whole ---------------------------------------------------------------------------------- */

static enum err_code write_file(struct maker *m, const char *path, struct err *e)
{
    uint64_t size = 0;
    enum err_code rc = write_header(m, path, &size, e);

    if (rc == OK && m->p->broken_cut > size)
        rc = err_set(e, ERR_ARG, "maker: the file has %llu bytes, %llu cannot be cut off", (unsigned long long)size,
                     (unsigned long long)m->p->broken_cut);
    if (rc != OK)
        return rc;
    m->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (m->fd < 0)
        return err_set_os(e, ERR_IO, errno, "cannot open %s", path);
    if (ftruncate(m->fd, (off_t)size) != 0)
        rc = err_set_os(e, ERR_IO, errno, "cannot make %s %llu bytes long", path, (unsigned long long)size);
    if (rc == OK && !m->p->holes)
        rc = write_tensors(m, e);
    if (rc == OK && m->p->broken_cut && ftruncate(m->fd, (off_t)(size - m->p->broken_cut)) != 0)
        rc = err_set_os(e, ERR_IO, errno, "cannot shorten %s", path);
    if (close(m->fd) != 0 && rc == OK)
        rc = err_set_os(e, ERR_IO, errno, "cannot write %s", path);
    return rc;
}

enum err_code maker_write(const char *path, const struct maker_params *p, struct err *e)
{
    struct maker m = {.p = p, .fd = -1};
    char part[PATH_MAX];
    enum err_code rc = check_shape(p, e);

    if (rc != OK)
        return rc;
    if (snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid()) >= (int)sizeof part)
        return err_set(e, ERR_ARG, "maker: the path is too long");
    rc = maker_list_tensors(p, &m.list, e);
    if (rc == OK)
        rc = check_tensors(&m, e);
    if (rc == OK)
        rc = check_fault_names(&m, e);
    if (rc == OK) {
        rc = write_file(&m, part, e);
        if (rc == OK && rename(part, path) != 0)
            rc = err_set_os(e, ERR_IO, errno, "cannot rename %s to %s", part, path);
        if (rc != OK)
            unlink(part);
    }
    free(m.list.tensor);
    return rc;
}
