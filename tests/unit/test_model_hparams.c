/* SPDX-License-Identifier: MIT
 *
 * Hyper-parameters and sizes: what a sound model gives, and each key missing, of a wrong type or out of its range.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "base/text.h"
#include "lib/maker.h"
#include "lib/test_util.h"
#include "model/hparams.h"
#include "model/ident.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Makes p's model and opens it; the file is gone afterwards, the open gguf keeps it. */
static struct gguf *made(const struct maker_params *p)
{
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct err e = {0};
    enum err_code rc = maker_write(test_scratch("hparams.gguf", path), p, &e);
    if (rc == OK)
        rc = gguf_open(path, &g, &e);
    unlink(path);
    if (rc != OK)
        fail_msg("%s", e.msg);
    return g;
}

static struct maker_params tiny(void)
{
    struct maker_params p = maker_small();
    p.n_block = 2;
    return p;
}

/* The model is as p says; reading gives this code and names `says`; the out-parameter stays as it was. */
static void expect(const struct maker_params *p, enum err_code code, const char *says)
{
    struct hparams h = {.n_block = 77}, untouched = h;
    struct err e = {0};
    struct gguf *g = made(p);
    enum err_code rc = hparams_read(g, &h, &e);
    if (rc != code || (rc != OK && !strstr(e.msg, says)))
        fail_msg("%s: %s, expected %s: %s", p->broken_key, err_name(rc), err_name(code), e.msg);
    if (rc == OK) {
        hparams_fini(&h);
    } else {
        assert_memory_equal(&h, &untouched, sizeof h);
        assert_true(text_printable(e.msg, strlen(e.msg)));
    }
    gguf_close(g);
}

static void broken(const char *key, enum maker_key_fault how, uint32_t u, float f, enum err_code code)
{
    struct maker_params p = tiny();
    p.broken_key = key;
    p.broken_key_how = how;
    p.broken_u32 = u;
    p.broken_f32 = f;
    expect(&p, code, strrchr(key, '.') + 1);
}

static const char *const needed[] = {"llama.block_count",          "llama.embedding_length",
                                     "llama.context_length",       "llama.feed_forward_length",
                                     "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"};
static const char *const optional[] = {"llama.attention.head_count_kv", "llama.attention.key_length",
                                       "llama.attention.value_length",  "llama.rope.freq_base",
                                       "llama.rope.dimension_count",    "llama.vocab_size",
                                       "tokenizer.ggml.tokens"};
#define N_NEEDED   (sizeof needed / sizeof *needed)
#define N_OPTIONAL (sizeof optional / sizeof *optional)

static void a_sound_model_gives_its_shape(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    struct hparams h;
    struct err e;
    struct gguf *g = made(&p);
    assert_int_equal(hparams_read(g, &h, &e), OK);
    assert_string_equal(h.arch, "llama");
    assert_int_equal(h.n_block, 2);
    assert_int_equal(h.n_nextn, 0);
    assert_int_equal(h.n_embd, 64);
    assert_int_equal(h.n_vocab, 512);
    assert_int_equal(h.n_ctx_train, 512);
    assert_int_equal(h.head_dim_k, 16);
    assert_int_equal(h.head_dim_v, 16);
    assert_int_equal(h.n_rot, 16);
    assert_int_equal(h.n_expert, 0);
    assert_true(h.rope_base == 10000.0f && h.rope_scale == 1.0f && h.rms_eps == 1e-5f);
    for (uint32_t i = 0; i < h.n_block; i++) {
        assert_int_equal(h.n_head[i], 4);
        assert_int_equal(h.n_head_kv[i], 2);
        assert_int_equal(h.n_ff[i], 128);
    }
    hparams_fini(&h);
    hparams_fini(&h); /* twice does no harm */
    gguf_close(g);
}

static void each_needed_key_is_missed(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NEEDED; i++)
        broken(needed[i], MAKER_KEY_DROP, 0, 0, ERR_NOT_FOUND);
    broken("general.architecture", MAKER_KEY_DROP, 0, 0, ERR_NOT_FOUND);
}

static void each_optional_key_has_a_default(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OPTIONAL; i++)
        broken(optional[i], MAKER_KEY_DROP, 0, 0, OK);
}

static void a_key_of_the_wrong_type_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NEEDED + N_OPTIONAL; i++) {
        const char *key = i < N_NEEDED ? needed[i] : optional[i - N_NEEDED];
        if (strcmp(key, "llama.vocab_size") == 0)
            continue; /* not looked at where there is a vocabulary */
        broken(key, MAKER_KEY_STRING, 0, 0, ERR_FORMAT);
    }
    broken("general.architecture", MAKER_KEY_U32, 1, 0, ERR_FORMAT);
    broken("llama.block_count", MAKER_KEY_F32, 0, 2, ERR_FORMAT);
    broken("llama.embedding_length", MAKER_KEY_ARRAY, 64, 0, ERR_FORMAT);
    broken("llama.attention.head_count", MAKER_KEY_ARRAY, 4, 0, ERR_FORMAT); /* one value for two blocks */
    broken("llama.attention.layer_norm_rms_epsilon", MAKER_KEY_U32, 1, 0, ERR_FORMAT);
    broken("llama.rope.scaling.type", MAKER_KEY_U32, 1, 0, ERR_FORMAT);
    broken("llama.rope.scaling.factor", MAKER_KEY_STRING, 0, 0, ERR_FORMAT);
    broken("tokenizer.ggml.tokens", MAKER_KEY_ARRAY, 1, 0, ERR_FORMAT);
}

static void zero_and_negative_values_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i + 1 < N_NEEDED; i++) {
        broken(needed[i], MAKER_KEY_U32, 0, 0, ERR_RANGE);
        broken(needed[i], MAKER_KEY_I32, (uint32_t)-2, 0, ERR_RANGE);
    }
    broken("llama.attention.head_count_kv", MAKER_KEY_U32, 0, 0, ERR_RANGE);
    broken("llama.attention.head_count_kv", MAKER_KEY_I32, (uint32_t)-1, 0, ERR_RANGE);
    broken("llama.attention.key_length", MAKER_KEY_U32, 0, 0, ERR_RANGE);
    broken("llama.attention.value_length", MAKER_KEY_U32, 0, 0, ERR_RANGE);
    broken("llama.attention.layer_norm_rms_epsilon", MAKER_KEY_F32, 0, -1e-5f, ERR_RANGE);
    broken("llama.rope.scaling.factor", MAKER_KEY_F32, 0, -4, ERR_RANGE);
}

static void huge_values_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i + 1 < N_NEEDED; i++)
        broken(needed[i], MAKER_KEY_U32, UINT32_MAX, 0, ERR_RANGE);
    broken("llama.attention.head_count_kv", MAKER_KEY_U32, 1u << 31, 0, ERR_RANGE);
    broken("llama.attention.key_length", MAKER_KEY_U32, 1u << 20, 0, ERR_RANGE);
    broken("llama.rope.dimension_count", MAKER_KEY_U32, 18, 0, ERR_RANGE);
    broken("llama.nextn_predict_layers", MAKER_KEY_U32, 2, 0, ERR_RANGE);
    broken("llama.expert_count", MAKER_KEY_U32, UINT32_MAX, 0, ERR_RANGE);
    broken("llama.expert_used_count", MAKER_KEY_U32, 3, 0, ERR_RANGE);
    broken("llama.attention.layer_norm_rms_epsilon", MAKER_KEY_F32, 0, 1.5f, ERR_RANGE);
}

static void values_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const keys[] = {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base",
                                       "llama.rope.scaling.factor"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        broken(keys[i], MAKER_KEY_F32, 0, NAN, ERR_RANGE);
        broken(keys[i], MAKER_KEY_F32, 0, INFINITY, ERR_RANGE);
    }
}

static void heads_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.broken_key = "llama.attention.head_count_kv";
    p.broken_key_how = MAKER_KEY_U32;
    p.broken_u32 = 3;
    expect(&p, ERR_RANGE, "4 heads cannot share 3");
    p.broken_u32 = 8;
    expect(&p, ERR_RANGE, "4 heads cannot share 8");
}

static void an_odd_number_of_turned_dimensions_is_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.broken_key = "llama.rope.dimension_count";
    p.broken_key_how = MAKER_KEY_U32;
    p.broken_u32 = 15;
    expect(&p, ERR_RANGE, "15 dimensions");
    p.broken_u32 = 0;
    expect(&p, ERR_RANGE, "0 dimensions");
    p.broken_key = "llama.rope.freq_base";
    p.broken_key_how = MAKER_KEY_F32;
    expect(&p, ERR_RANGE, "base");
}

static void rope_scaling_other_than_linear_is_not_supported(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    p.broken_key = "llama.rope.scaling.type";
    p.broken_key_how = MAKER_KEY_STRING;
    expect(&p, ERR_UNSUPPORTED, "'wrong' is not supported (known: none, linear, yarn, longrope)");
}

static void linear_scaling_divides_positions(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    struct hparams h;
    struct err e;
    p.broken_key = "llama.rope.scaling.factor";
    p.broken_key_how = MAKER_KEY_F32;
    p.broken_f32 = 4;
    struct gguf *g = made(&p);
    assert_int_equal(hparams_read(g, &h, &e), OK);
    assert_true(h.rope_scale == 0.25f);
    hparams_fini(&h);
    gguf_close(g);
}

static void a_scaling_factor_near_zero_is_refused(void **state)
{
    (void)state;
    broken("llama.rope.scaling.factor", MAKER_KEY_F32, 0, 1e-42f, ERR_RANGE); /* 1/factor is infinite */
    broken("llama.rope.scaling.factor", MAKER_KEY_F32, 0, 0, OK);             /* none */
}

/* --- sizes
 * ------------------------------------------------------------------------------------------------------------ */

static void read_sizes(const struct maker_params *p, struct model_sizes *s, uint64_t *total)
{
    struct hparams h;
    struct err e;
    struct gguf *g = made(p);
    assert_int_equal(hparams_read(g, &h, &e), OK);
    assert_int_equal(model_sizes_read(g, &h, s, &e), OK);
    *total = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        *total += gguf_tensor_at(g, i)->size;
    hparams_fini(&h);
    gguf_close(g);
}

static void sizes_add_up_to_the_model(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct maker_params p = maker_small();
        struct model_sizes s;
        uint64_t total;
        p.tied = tied;
        p.with_rope_freqs = true;
        read_sizes(&p, &s, &total);
        assert_int_equal(s.n_block, 6);
        assert_int_equal(s.tied, tied);
        assert_int_equal(s.embd_bytes, 512 * 64 * 4);
        assert_int_equal(s.global_bytes, 8 * 4);
        assert_int_equal(model_sizes_window(&s, 0, 6), total);
        /* every cut: the globals are on both sides, and so is a tied table */
        for (uint32_t c = 1; c < 6; c++)
            assert_int_equal(model_sizes_window(&s, 0, c) + model_sizes_window(&s, c, 6),
                             total + s.global_bytes + (tied ? s.embd_bytes : 0));
        model_sizes_fini(&s);
    }
}

static void a_block_beyond_the_last_is_refused(void **state)
{
    (void)state;
    struct maker_params p = tiny();
    struct hparams h;
    struct model_sizes s;
    struct err e;
    p.broken_key = "llama.block_count";
    p.broken_key_how = MAKER_KEY_U32;
    p.broken_u32 = 1;
    struct gguf *g = made(&p);
    assert_int_equal(hparams_read(g, &h, &e), OK);
    assert_int_equal(model_sizes_read(g, &h, &s, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "blk.1."));
    hparams_fini(&h);
    gguf_close(g);
}

/* A list of tensors, of which a stage file has none, says what it likes: sums must not wrap. */
static void sizes_beyond_any_machine_are_refused(void **state)
{
    (void)state;
    const struct maker_params p = tiny();
    static const uint8_t digest[DIGEST_BYTES];
    struct buf list = {0}, file = {0};
    struct hparams h;
    struct model_sizes s;
    struct err e;
    struct gguf *g = made(&p), *far;
    assert_int_equal(hparams_read(g, &h, &e), OK);
    gguf_close(g);
    ident_put_count(&list, 40);
    for (unsigned i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "rope_%02u", i % 100);
        ident_put(&list, &(struct ident_tensor){.name = name,
                                                .name_len = strlen(name),
                                                .type = 0, /* f32 */
                                                .ne = {(int64_t)1 << 56, 1, 1, 1},
                                                .digest = digest});
    }
    buf_puts(&file, "GGUF");
    buf_put_u32(&file, 3);
    buf_put_u64(&file, 0);
    buf_put_u64(&file, 2);
    buf_put_u64(&file, strlen(IDENT_KEY_FIRST));
    buf_puts(&file, IDENT_KEY_FIRST);
    buf_put_u32(&file, 4); /* u32 */
    buf_put_u32(&file, 0);
    buf_put_u64(&file, strlen(IDENT_KEY_TENSORS));
    buf_puts(&file, IDENT_KEY_TENSORS);
    buf_put_u32(&file, 9); /* an array of u8 */
    buf_put_u32(&file, 0);
    buf_put_u64(&file, list.len);
    buf_put(&file, list.data, list.len);
    if (gguf_open_mem(file.data, file.len, &far, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(model_sizes_read(far, &h, &s, &e), ERR_RANGE);
    assert_non_null(strstr(e.msg, "rope_31"));
    gguf_close(far);
    hparams_fini(&h);
    buf_free(&list);
    buf_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_model_gives_its_shape),
        cmocka_unit_test(each_needed_key_is_missed),
        cmocka_unit_test(each_optional_key_has_a_default),
        cmocka_unit_test(a_key_of_the_wrong_type_is_refused),
        cmocka_unit_test(zero_and_negative_values_are_refused),
        cmocka_unit_test(huge_values_are_refused),
        cmocka_unit_test(values_that_are_no_numbers_are_refused),
        cmocka_unit_test(heads_that_do_not_divide_are_refused),
        cmocka_unit_test(an_odd_number_of_turned_dimensions_is_refused),
        cmocka_unit_test(rope_scaling_other_than_linear_is_not_supported),
        cmocka_unit_test(linear_scaling_divides_positions),
        cmocka_unit_test(a_scaling_factor_near_zero_is_refused),
        cmocka_unit_test(sizes_add_up_to_the_model),
        cmocka_unit_test(a_block_beyond_the_last_is_refused),
        cmocka_unit_test(sizes_beyond_any_machine_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
