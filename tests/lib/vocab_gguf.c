/* SPDX-License-Identifier: MIT */
#include "lib/vocab_gguf.h"

#include <string.h>

/* Value types of GGUF. */
enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STR = 8, T_ARR = 9 };

static void put_str(struct buf *b, const char *s)
{
    buf_put_u64(b, strlen(s));
    buf_puts(b, s);
}

static void begin(struct vocab_gguf *v, const char *key, uint32_t type)
{
    put_str(&v->kv, key);
    buf_put_u32(&v->kv, type);
    v->n_kv++;
}

static void begin_array(struct vocab_gguf *v, const char *key, uint32_t type, size_t n)
{
    begin(v, key, T_ARR);
    buf_put_u32(&v->kv, type);
    buf_put_u64(&v->kv, n);
}

void vocab_gguf_str(struct vocab_gguf *v, const char *key, const char *value)
{
    begin(v, key, T_STR);
    put_str(&v->kv, value);
}

void vocab_gguf_u32(struct vocab_gguf *v, const char *key, uint32_t value)
{
    begin(v, key, T_U32);
    buf_put_u32(&v->kv, value);
}

void vocab_gguf_bool(struct vocab_gguf *v, const char *key, bool value)
{
    begin(v, key, T_BOOL);
    buf_put_u8(&v->kv, value);
}

void vocab_gguf_strs(struct vocab_gguf *v, const char *key, const char *const *value, size_t n)
{
    begin_array(v, key, T_STR, n);
    for (size_t i = 0; i < n; i++)
        put_str(&v->kv, value[i]);
}

void vocab_gguf_f32s(struct vocab_gguf *v, const char *key, const float *value, size_t n)
{
    begin_array(v, key, T_F32, n);
    for (size_t i = 0; i < n; i++)
        buf_put_f32(&v->kv, value[i]);
}

void vocab_gguf_i32s(struct vocab_gguf *v, const char *key, const int32_t *value, size_t n)
{
    begin_array(v, key, T_I32, n);
    for (size_t i = 0; i < n; i++)
        buf_put_u32(&v->kv, (uint32_t)value[i]);
}

void vocab_gguf_end(struct vocab_gguf *v, struct buf *out)
{
    buf_puts(out, "GGUF");
    buf_put_u32(out, 3);
    buf_put_u64(out, 0); /* tensors */
    buf_put_u64(out, v->n_kv);
    buf_put(out, v->kv.data, v->kv.len);
    while (out->len % 32)
        buf_put_u8(out, 0);
    buf_free(&v->kv);
    v->n_kv = 0;
}
