/* SPDX-License-Identifier: MIT
 *
 * The model maker: a list of tensors is built from the shape, the header is written through gguf.h, then worker threads
 * take chunks of rows, generate, quantise and write them at their offset. Each row has its own random stream (seed,
 * tensor, row), so the order of the work does not matter.
 */
#include "lib/maker.h"

#include "base/hash.h"
#include "base/thread.h"

#include <ggml.h>
#include <gguf.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MAKER_MAX_BLOCKS  1024u
#define MAKER_MAX_VOCAB   1000000u
#define MAKER_MAX_WIDTH   65536u
#define MAKER_MAX_THREADS 16u
#define MAKER_CHUNK_ELEMS (256 * 1024) /* what a worker generates at a time */

/* --- the vocabulary -----------------------------------------------------------------------------
 * 0 <unk>, 1 <s>, 2 </s>, 256 byte tokens, "▁" (U+2581), the 94 printable ASCII characters, then words of one, two and
 * three syllables, each length first without and then with "▁" before it. A word is a shorter word and one syllable,
 * both of which come earlier, so an SPM tokenizer can merge its way to each of them. */

#define PIECE_FIRST_BYTE 3u
#define PIECE_FIRST_TEXT (PIECE_FIRST_BYTE + 256u)
#define PIECE_FIRST_WORD (PIECE_FIRST_TEXT + 1u + 94u)
#define PIECE_SPACE      "\xe2\x96\x81"
#define N_SYLLABLES      100u /* 20 consonants x 5 vowels */

/* Word i of the `of` = 100^n words of n syllables. The multiplier is coprime with 100, so this is a permutation. */
static void word(uint32_t i, uint32_t n, uint32_t of, const char *before, char out[MAKER_PIECE_BYTES])
{
    static const char consonants[] = "bcdfghjklmnpqrstvwxz", vowels[] = "aeiou";
    uint32_t rest = (uint32_t)((uint64_t)i * 7919u % of);
    size_t len = strlen(before);

    memcpy(out, before, len);
    for (uint32_t k = 0; k < n; k++) {
        of /= N_SYLLABLES;
        uint32_t s = rest / of;
        rest %= of;
        out[len++] = consonants[s / 5];
        out[len++] = vowels[s % 5];
    }
    out[len] = '\0';
}

void maker_piece(uint32_t i, char out[MAKER_PIECE_BYTES])
{
    static const char *const control[] = {"<unk>", "<s>", "</s>"};

    if (i < PIECE_FIRST_BYTE) {
        snprintf(out, MAKER_PIECE_BYTES, "%s", control[i]);
    } else if (i < PIECE_FIRST_TEXT) {
        snprintf(out, MAKER_PIECE_BYTES, "<0x%02X>", i - PIECE_FIRST_BYTE);
    } else if (i == PIECE_FIRST_TEXT) {
        snprintf(out, MAKER_PIECE_BYTES, "%s", PIECE_SPACE);
    } else if (i < PIECE_FIRST_WORD) {
        snprintf(out, MAKER_PIECE_BYTES, "%c", (int)('!' + (i - PIECE_FIRST_TEXT - 1)));
    } else {
        uint32_t n = 1, of = N_SYLLABLES;
        i -= PIECE_FIRST_WORD;
        while (i >= 2 * of) {
            i -= 2 * of;
            of *= N_SYLLABLES;
            n++;
        }
        word(i % of, n, of, i < of ? "" : PIECE_SPACE, out);
    }
}

/* Token types as GGUF numbers them: 1 normal, 2 unknown, 3 control, 6 byte. */
static int32_t piece_type(uint32_t i)
{
    if (i >= PIECE_FIRST_TEXT)
        return 1;
    if (i >= PIECE_FIRST_BYTE)
        return 6;
    return i == 0 ? 2 : 3;
}

static enum err_code put_vocab(struct gguf_context *meta, uint32_t n, struct err *e)
{
    char(*text)[MAKER_PIECE_BYTES] = calloc(n, sizeof *text);
    const char **piece = calloc(n, sizeof *piece);
    float *score = calloc(n, sizeof *score);
    int32_t *type = calloc(n, sizeof *type);
    enum err_code rc = OK;

    if (text && piece && score && type) {
        for (uint32_t i = 0; i < n; i++) {
            maker_piece(i, text[i]);
            piece[i] = text[i];
            type[i] = piece_type(i);
            /* Longer words are better merges than shorter ones, but a longer one needs its parts first. */
            score[i] = i < PIECE_FIRST_TEXT ? 0.0f : -(float)(i - PIECE_FIRST_TEXT);
        }
        gguf_set_arr_str(meta, "tokenizer.ggml.tokens", piece, n);
        gguf_set_arr_data(meta, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, score, n);
        gguf_set_arr_data(meta, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, type, n);
    } else {
        rc = err_set(e, ERR_NOMEM, "maker: no memory for a vocabulary of %u", n);
    }
    free(type);
    free(score);
    free(piece);
    free(text);
    return rc;
}

/* --- what is in the model ----------------------------------------------------------------------- */

enum fill { FILL_NORMAL, FILL_NORM_WEIGHT, FILL_ROPE_FREQS };

struct maker_tensor {
    char name[GGML_MAX_NAME];
    enum ggml_type type;
    int64_t ne[2]; /* ne[1] 0: one-dimensional */
    enum fill fill;
    float scale;          /* standard deviation */
    bool dim_head_tokens; /* rows of control and byte tokens are scaled down */
    uint64_t stream;      /* where its random numbers come from */
    uint64_t offset;      /* in the file */
};

struct maker {
    const struct maker_params *p;
    struct maker_tensor *tensor;
    size_t n_tensors, cap;
    int fd;
    atomic_size_t next; /* chunk to do next, over all tensors */
    pthread_mutex_t lock;
    enum err_code rc; /* of the first worker that failed */
    struct err err;
};

static void add(struct maker *m, struct maker_tensor t, const char *fmt, ...) KV_PRINTF(3, 4);

static void add(struct maker *m, struct maker_tensor t, const char *fmt, ...)
{
    const struct maker_params *p = m->p;
    va_list va;
    va_start(va, fmt);
    vsnprintf(t.name, sizeof t.name, fmt, va);
    va_end(va);
    if (p->broken_drop && strcmp(p->broken_drop, t.name) == 0)
        return;
    if (p->broken_reshape && strcmp(p->broken_reshape, t.name) == 0) {
        t.ne[0] = p->broken_ne[0];
        t.ne[1] = p->broken_ne[1];
    }
    if (p->broken_retype && strcmp(p->broken_retype, t.name) == 0)
        t.type = (enum ggml_type)p->broken_type;
    for (const char *c = t.name; *c; c++) /* by name, so that a dropped tensor leaves the others as they are */
        t.stream = hash_mix64(t.stream + 0x9e3779b97f4a7c15ull + (uint8_t)*c);
    m->tensor[m->n_tensors++] = t;
}

static struct maker_tensor matrix(const struct maker_params *p, uint32_t in, uint32_t out, float gain)
{
    struct maker_tensor t = {.type = (enum ggml_type)p->type, .ne = {in, out}, .scale = gain / sqrtf((float)in)};
    return t;
}

static struct maker_tensor norm(uint32_t n)
{
    struct maker_tensor t = {.type = GGML_TYPE_F32, .ne = {n, 0}, .fill = FILL_NORM_WEIGHT, .scale = 0.1f};
    return t;
}

/* Gains: inputs are normed to 1. q and k a little larger than 1 make attention look somewhere in particular; output and
 * down are such that a block adds about as much as came in; logits get a standard deviation of 4. */
static void list_tensors(struct maker *m)
{
    const struct maker_params *p = m->p;
    uint32_t n_q = p->n_head * p->head_dim, n_kv = p->n_head_kv * p->head_dim;
    struct maker_tensor embd = matrix(p, p->n_embd, p->n_vocab, p->tied ? 4.0f : sqrtf((float)p->n_embd));
    struct maker_tensor head = matrix(p, p->n_embd, p->n_vocab, 4.0f);
    struct maker_tensor freqs = {.type = GGML_TYPE_F32, .ne = {p->head_dim / 2, 0}, .fill = FILL_ROPE_FREQS};

    embd.dim_head_tokens = p->tied;
    head.dim_head_tokens = true;
    add(m, embd, "token_embd.weight");
    add(m, norm(p->n_embd), "output_norm.weight");
    if (!p->tied)
        add(m, head, "output.weight");
    if (p->with_rope_freqs)
        add(m, freqs, "rope_freqs.weight");
    for (uint32_t i = 0; i < p->n_block; i++) {
        add(m, norm(p->n_embd), "blk.%u.attn_norm.weight", i);
        add(m, matrix(p, p->n_embd, n_q, 1.5f), "blk.%u.attn_q.weight", i);
        add(m, matrix(p, p->n_embd, n_kv, 1.5f), "blk.%u.attn_k.weight", i);
        add(m, matrix(p, p->n_embd, n_kv, 1.0f), "blk.%u.attn_v.weight", i);
        add(m, matrix(p, n_q, p->n_embd, 0.8f), "blk.%u.attn_output.weight", i);
        add(m, norm(p->n_embd), "blk.%u.ffn_norm.weight", i);
        add(m, matrix(p, p->n_embd, p->n_ff, 1.0f), "blk.%u.ffn_gate.weight", i);
        add(m, matrix(p, p->n_embd, p->n_ff, 1.0f), "blk.%u.ffn_up.weight", i);
        add(m, matrix(p, p->n_ff, p->n_embd, 1.2f), "blk.%u.ffn_down.weight", i);
    }
}

/* --- is it possible? ---------------------------------------------------------------------------- */

static bool type_known(int type)
{
    static const enum ggml_type known[] = {
        GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
        GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (type == (int)known[i])
            return true;
    return false;
}

#define MAKER_TYPES "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K"

enum err_code maker_type(const char *name, int *out, struct err *e)
{
    for (int t = 0; t < (int)GGML_TYPE_COUNT; t++) {
        if (type_known(t) && strcasecmp(name, ggml_type_name((enum ggml_type)t)) == 0) {
            *out = t;
            return OK;
        }
    }
    return err_set(e, ERR_ARG, "maker: no type '%s': one of " MAKER_TYPES, name);
}

static enum err_code in_range(const char *what, uint32_t v, uint32_t min, uint32_t max, struct err *e)
{
    if (v >= min && v <= max)
        return OK;
    return err_set(e, ERR_ARG, "maker: %s is %u, not %u to %u", what, v, min, max);
}

static enum err_code check_shape(const struct maker_params *p, struct err *e)
{
    enum err_code rc;
    if ((rc = in_range("n_block", p->n_block, 1, MAKER_MAX_BLOCKS, e)) != OK ||
        (rc = in_range("n_embd", p->n_embd, 1, MAKER_MAX_WIDTH, e)) != OK ||
        (rc = in_range("n_head", p->n_head, 1, 1024, e)) != OK ||
        (rc = in_range("n_head_kv", p->n_head_kv, 1, p->n_head, e)) != OK ||
        (rc = in_range("head_dim", p->head_dim, 2, 1024, e)) != OK ||
        (rc = in_range("n_ff", p->n_ff, 1, MAKER_MAX_WIDTH, e)) != OK ||
        (rc = in_range("n_vocab", p->n_vocab, PIECE_FIRST_TEXT + 1, MAKER_MAX_VOCAB, e)) != OK ||
        (rc = in_range("n_ctx", p->n_ctx, 1, 1u << 24, e)) != OK ||
        (rc = in_range("n_threads", p->n_threads, 0, MAKER_MAX_THREADS, e)) != OK)
        return rc;
    if (p->n_head % p->n_head_kv != 0)
        return err_set(e, ERR_ARG, "maker: %u heads are not a multiple of %u kv heads", p->n_head, p->n_head_kv);
    if (p->head_dim % 2 != 0)
        return err_set(e, ERR_ARG, "maker: head_dim %u is odd: RoPE turns pairs", p->head_dim);
    return OK;
}

static enum err_code check_tensors(const struct maker *m, struct err *e)
{
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct maker_tensor *t = &m->tensor[i];
        if (!type_known((int)t->type))
            return err_set(e, ERR_ARG, "maker: type %d of %s: one of " MAKER_TYPES, (int)t->type, t->name);
        if (t->ne[0] < 1 || t->ne[0] > MAKER_MAX_VOCAB || t->ne[1] < 0 || t->ne[1] > MAKER_MAX_VOCAB)
            return err_set(e, ERR_ARG, "maker: shape of %s is out of range", t->name);
        if (t->ne[0] % ggml_blck_size(t->type) != 0)
            return err_set(e, ERR_ARG, "maker: rows of %s have %lld elements, not a multiple of %lld (%s)", t->name,
                           (long long)t->ne[0], (long long)ggml_blck_size(t->type), ggml_type_name(t->type));
    }
    return OK;
}

/* A fault that hits nothing would make a sound model: refuse it. */
static enum err_code check_fault_names(const struct maker *m, size_t n_whole, struct err *e)
{
    const struct maker_params *p = m->p;
    const char *const name[] = {p->broken_reshape, p->broken_retype};

    if (p->broken_drop && m->n_tensors == n_whole)
        return err_set(e, ERR_ARG, "maker: no tensor '%s' to leave out", p->broken_drop);
    for (size_t k = 0; k < 2; k++) {
        bool found = !name[k];
        for (size_t i = 0; i < m->n_tensors && !found; i++)
            found = strcmp(m->tensor[i].name, name[k]) == 0;
        if (!found)
            return err_set(e, ERR_ARG, "maker: no tensor '%s' to change", name[k]);
    }
    return OK;
}

/* --- the header --------------------------------------------------------------------------------- */

/* general.file_type, for people; -1 where there is no common number. */
static int file_type(int type)
{
    switch (type) {
    case GGML_TYPE_F32:
        return 0;
    case GGML_TYPE_F16:
        return 1;
    case GGML_TYPE_Q4_0:
        return 2;
    case GGML_TYPE_Q8_0:
        return 7;
    case GGML_TYPE_Q4_K:
        return 15;
    default:
        return -1;
    }
}

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

static enum err_code put_metadata(struct gguf_context *meta, const struct maker_params *p, struct err *e)
{
    enum err_code rc;

    gguf_set_val_str(meta, "general.architecture", "llama");
    gguf_set_val_str(meta, "general.type", "model");
    gguf_set_val_str(meta, "general.name", p->name ? p->name : "made");
    if (file_type(p->type) >= 0)
        gguf_set_val_u32(meta, "general.file_type", (uint32_t)file_type(p->type));
    gguf_set_val_u32(meta, "general.quantization_version", 2);
    gguf_set_val_u32(meta, "llama.context_length", p->n_ctx);
    gguf_set_val_u32(meta, "llama.embedding_length", p->n_embd);
    gguf_set_val_u32(meta, "llama.block_count", p->n_block);
    gguf_set_val_u32(meta, "llama.feed_forward_length", p->n_ff);
    gguf_set_val_u32(meta, "llama.attention.head_count", p->n_head);
    gguf_set_val_u32(meta, "llama.attention.head_count_kv", p->n_head_kv);
    gguf_set_val_u32(meta, "llama.attention.key_length", p->head_dim);
    gguf_set_val_u32(meta, "llama.attention.value_length", p->head_dim);
    gguf_set_val_f32(meta, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_f32(meta, "llama.rope.freq_base", 10000.0f);
    gguf_set_val_u32(meta, "llama.rope.dimension_count", p->head_dim);
    gguf_set_val_u32(meta, "llama.vocab_size", p->n_vocab);
    gguf_set_val_str(meta, "tokenizer.ggml.model", "llama");
    gguf_set_val_str(meta, "tokenizer.ggml.pre", "default");
    rc = put_vocab(meta, p->n_vocab, e);
    if (rc != OK)
        return rc;
    gguf_set_val_u32(meta, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_u32(meta, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(meta, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_bool(meta, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(meta, "tokenizer.ggml.add_eos_token", false);
    gguf_set_val_bool(meta, "tokenizer.ggml.add_space_prefix", true);
    put_fault(meta, p);
    return OK;
}

static uint64_t tensor_rows(const struct maker_tensor *t)
{
    return t->ne[1] ? (uint64_t)t->ne[1] : 1;
}

/* Writes the header to path and notes each tensor's offset; *size: how long the file will be. */
static enum err_code write_header(struct maker *m, const char *path, uint64_t *size, struct err *e)
{
    struct ggml_init_params init = {.mem_size = (m->n_tensors + 1) * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(init);
    struct gguf_context *meta = gguf_init_empty();
    enum err_code rc = OK;

    if (!ctx || !meta)
        rc = err_set(e, ERR_NOMEM, "maker: no memory for the header");
    else
        rc = put_metadata(meta, m->p, e);
    for (size_t i = 0; rc == OK && i < m->n_tensors; i++) {
        const struct maker_tensor *t = &m->tensor[i];
        struct ggml_tensor *g = ggml_new_tensor(ctx, t->type, t->ne[1] ? 2 : 1, t->ne);
        ggml_set_name(g, t->name);
        gguf_add_tensor(meta, g);
    }
    if (rc == OK) {
        size_t data = gguf_get_meta_size(meta);
        *size = data;
        for (size_t i = 0; i < m->n_tensors; i++) {
            struct maker_tensor *t = &m->tensor[i];
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
static void fill_normal(float *out, int64_t n, float scale, uint64_t stream)
{
    const float s = scale / 37837.0f;
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = hash_mix64(stream + (uint64_t)i * 0x9e3779b97f4a7c15ull);
        int32_t sum = (int32_t)((r & 0xffff) + ((r >> 16) & 0xffff) + ((r >> 32) & 0xffff) + (r >> 48));
        out[i] = s * (float)(sum - 131070);
    }
}

static void fill_row(const struct maker_tensor *t, uint64_t seed, uint64_t row, float *out)
{
    uint64_t stream = hash_mix64(hash_mix64(seed ^ t->stream) + row);

    switch (t->fill) {
    case FILL_NORMAL:
        fill_normal(out, t->ne[0], t->dim_head_tokens && row < PIECE_FIRST_TEXT ? t->scale / 20 : t->scale, stream);
        break;
    case FILL_NORM_WEIGHT:
        fill_normal(out, t->ne[0], t->scale, stream);
        for (int64_t i = 0; i < t->ne[0]; i++)
            out[i] += 1.0f;
        break;
    case FILL_ROPE_FREQS: /* divisors of the frequencies: 1 for the fast ones, up to 8 for the slow ones */
        for (int64_t i = 0; i < t->ne[0]; i++)
            out[i] = 3 * i < t->ne[0] ? 1.0f : 1.0f + 7.0f * (float)(3 * i - t->ne[0]) / (2.0f * (float)t->ne[0]);
        break;
    }
}

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

/* Rows [first, end) of t. */
static enum err_code write_rows(const struct maker *m, const struct maker_tensor *t, uint64_t first, uint64_t end,
                                struct err *e)
{
    size_t row_bytes = ggml_row_size(t->type, t->ne[0]);
    uint64_t n = end - first;
    float *values = malloc((size_t)n * (size_t)t->ne[0] * sizeof *values);
    void *packed = malloc((size_t)n * row_bytes);
    enum err_code rc;

    if (values && packed) {
        for (uint64_t r = 0; r < n; r++)
            fill_row(t, m->p->seed, first + r, values + r * (uint64_t)t->ne[0]);
        ggml_quantize_chunk(t->type, values, packed, 0, (int64_t)n, t->ne[0], NULL);
        rc = write_all(m->fd, packed, (size_t)n * row_bytes, t->offset + first * row_bytes, e);
    } else {
        rc = err_set(e, ERR_NOMEM, "maker: no memory for %llu rows of %s", (unsigned long long)n, t->name);
    }
    free(packed);
    free(values);
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
        while (i < m->n_tensors) {
            uint64_t per = rows_per_chunk(&m->tensor[i]);
            size_t n = (size_t)((tensor_rows(&m->tensor[i]) + per - 1) / per);
            if (chunk < before + n)
                break;
            before += n;
            i++;
        }
        if (i == m->n_tensors)
            return NULL;
        uint64_t per = rows_per_chunk(&m->tensor[i]), rows = tensor_rows(&m->tensor[i]);
        uint64_t first = (chunk - before) * per;
        enum err_code rc = write_rows(m, &m->tensor[i], first, first + per < rows ? first + per : rows, &e);
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
    if (m->rc != OK && e)
        *e = m->err;
    return m->rc;
}

/* --- the whole ---------------------------------------------------------------------------------- */

static enum err_code write_file(struct maker *m, const char *path, struct err *e)
{
    uint64_t size = 0;
    enum err_code rc = write_header(m, path, &size, e);

    if (rc != OK)
        return rc;
    m->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (m->fd < 0)
        return err_set_os(e, ERR_IO, errno, "cannot open %s", path);
    if (ftruncate(m->fd, (off_t)size) != 0)
        rc = err_set_os(e, ERR_IO, errno, "cannot make %s %llu bytes long", path, (unsigned long long)size);
    if (rc == OK)
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
    size_t n_whole;
    enum err_code rc = check_shape(p, e);

    if (rc != OK)
        return rc;
    if (snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid()) >= (int)sizeof part)
        return err_set(e, ERR_ARG, "maker: the path is too long");
    n_whole = 3 + (size_t)p->n_block * 9 + (p->with_rope_freqs ? 1 : 0) - (p->tied ? 1 : 0);
    m.tensor = calloc(n_whole, sizeof *m.tensor);
    if (!m.tensor)
        return err_set(e, ERR_NOMEM, "maker: no memory for the list of tensors");
    list_tensors(&m);
    rc = check_tensors(&m, e);
    if (rc == OK)
        rc = check_fault_names(&m, n_whole, e);
    if (rc == OK) {
        rc = write_file(&m, part, e);
        if (rc == OK && rename(part, path) != 0)
            rc = err_set_os(e, ERR_IO, errno, "cannot rename %s to %s", part, path);
        if (rc != OK)
            unlink(part);
    }
    free(m.tensor);
    return rc;
}

struct maker_params maker_small(void)
{
    return (struct maker_params){.n_block = 6,
                                 .n_embd = 64,
                                 .n_head = 4,
                                 .n_head_kv = 2,
                                 .head_dim = 16,
                                 .n_ff = 128,
                                 .n_vocab = 512,
                                 .n_ctx = 512,
                                 .type = GGML_TYPE_F32,
                                 .seed = 1};
}

enum err_code maker_preset(const char *name, struct maker_params *out, struct err *e)
{
    const struct maker_params wide = {.n_embd = 2048,
                                      .n_head = 32,
                                      .n_head_kv = 8,
                                      .head_dim = 64,
                                      .n_ff = 5632,
                                      .n_vocab = 8192,
                                      .n_ctx = 2048,
                                      .type = GGML_TYPE_Q8_0,
                                      .seed = 1};
    if (strcmp(name, "small") == 0) {
        *out = maker_small();
    } else if (strcmp(name, "half") == 0) {
        *out = wide;
        out->n_block = 12;
    } else if (strcmp(name, "1gb") == 0) {
        *out = wide;
        out->n_block = 20;
    } else if (strcmp(name, "0.6b-shape") == 0) {
        *out = (struct maker_params){.n_block = 28,
                                     .n_embd = 1024,
                                     .n_head = 16,
                                     .n_head_kv = 8,
                                     .head_dim = 128,
                                     .n_ff = 3072,
                                     .n_vocab = 151936,
                                     .n_ctx = 2048,
                                     .type = GGML_TYPE_Q4_0,
                                     .tied = true,
                                     .seed = 1};
    } else {
        return err_set(e, ERR_ARG, "maker: no preset '%s': one of small half 1gb 0.6b-shape", name);
    }
    return OK;
}
