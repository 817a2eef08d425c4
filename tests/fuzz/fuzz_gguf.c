/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a model: opening, every getter over every key, the canonical bytes, hyper-parameters, sizes per block
 * and the vocabulary. Whatever is refused must come with a code and one printable line.
 */
#include "base/buf.h"
#include "base/text.h"
#include "lib/fuzz.h"
#include "model/gguf.h"
#include "model/hparams.h"
#include "model/ident.h"
#include "tok/tok.h"

#include <string.h>

static void each_getter(const struct gguf *g, const char *key)
{
    struct err e;
    uint32_t u = 7, per_block[4];
    int32_t i = 7;
    float f = 0.5f;
    bool b = false;
    const char *s = "kept";
    const float *fs;
    const int32_t *is;
    size_t n = 0;
    must(gguf_has(g, key), "a key that is listed is there");
    if (!good(gguf_u32(g, key, &u, &e), &e))
        must(u == 7, "a failed getter leaves the value");
    if (!good(gguf_i32(g, key, &i, &e), &e))
        must(i == 7, "a failed getter leaves the value");
    if (!good(gguf_f32(g, key, &f, &e), &e))
        must(f == 0.5f, "a failed getter leaves the value");
    (void)good(gguf_bool(g, key, &b, &e), &e);
    if (good(gguf_str(g, key, &s, &e), &e))
        must(s && strlen(s) < SIZE_MAX, "a string ends");
    (void)good(gguf_opt_u32(g, key, &u, &e), &e);
    (void)good(gguf_opt_i32(g, key, &i, &e), &e);
    (void)good(gguf_opt_f32(g, key, &f, &e), &e);
    (void)good(gguf_opt_bool(g, key, &b, &e), &e);
    (void)good(gguf_opt_str(g, key, &s, &e), &e);
    (void)good(gguf_arr_len(g, key, &n, &e), &e);
    (void)good(gguf_u32_per_block(g, key, 4, per_block, &e), &e);
    float sum = 0;
    if (good(gguf_arr_f32(g, key, 0, &fs, &n, &e), &e))
        for (size_t k = 0; k < n; k++)
            sum += fs[k];
    if (good(gguf_arr_i32(g, key, 0, &is, &n, &e), &e))
        for (size_t k = 0; k < n; k++)
            sum += (float)is[k];
    if (good(gguf_arr_strs(g, key, 0, &n, &e), &e)) {
        for (size_t k = 0; k < n; k++)
            sum += (float)strlen(gguf_arr_str_at(g, key, k));
        must(!gguf_arr_str_at(g, key, n), "there is nothing after the last");
    }
    (void)sum;
}

static void each_tensor(const struct gguf *g, size_t size)
{
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        must(gguf_tensor_find(g, t->name) == t, "a tensor is found by its name");
        must(text_printable(t->name, strlen(t->name)), "names can be printed");
        must(t->offset <= size && t->size <= size - t->offset, "a tensor lies in the file");
        must(t->ne[0] > 0 && t->ne[1] > 0 && t->ne[2] > 0 && t->ne[3] > 0, "a tensor has elements");
        must(t->block >= -1 && t->file == 0, "a tensor has a place");
    }
    must(!gguf_tensor_at(g, gguf_n_tensors(g)), "there is nothing after the last tensor");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g = NULL;
    struct err e;
    if (!good(gguf_open_mem(data, size, &g, &e), &e)) {
        must(!g, "a failed open gives nothing");
        return 0;
    }
    struct buf bytes = {0};
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        each_getter(g, gguf_key(g, i));
        must(gguf_value_bytes(g, i, &bytes, &e) == OK, "every value has bytes");
    }
    must(gguf_value_bytes(g, gguf_n_kv(g), &bytes, &e) == ERR_RANGE, "there is nothing after the last key");
    buf_free(&bytes);
    each_tensor(g, size);

    struct hparams h;
    struct model_sizes s;
    struct tok *t = NULL;
    if (good(hparams_read(g, &h, &e), &e)) {
        must(h.n_block >= 1 && h.n_embd >= 1 && h.n_vocab >= 1 && h.n_rot <= h.head_dim_k, "hyper-parameters in range");
        for (uint32_t i = 0; i < h.n_block; i++) {
            must(h.kind[i] == BLOCK_RECURRENT || (h.n_head[i] >= h.n_head_kv[i] && h.n_head_kv[i] > 0),
                 "each block of attention has heads");
            must(h.n_expert > 0 || h.n_ff[i] > 0, "each block without experts has a width");
        }
        if (good(model_sizes_read(g, &h, &s, &e), &e)) {
            uint64_t carried = model_sizes_stage_file(&s, 0, s.n_block);
            must(gguf_has(g, IDENT_KEY_FIRST) || carried <= size, "a window is not larger than the file");
            must(model_sizes_window(&s, 0, s.n_block) <= carried, "what is loaded is in the stage file");
            model_sizes_fini(&s);
        }
        hparams_fini(&h);
    }
    if (good(tok_new(g, NULL, &t, &e), &e))
        tok_free(t);
    gguf_close(g);
    return 0;
}
