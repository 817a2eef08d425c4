/* SPDX-License-Identifier: MIT
 *
 * The model maker, seen through the checked GGUF layer: sound models are sound, broken ones are broken where they were
 * meant to be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/maker.h"
#include "lib/test_util.h"
#include "model/gguf.h"
#include "model/hparams.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes p's model and opens it; the file is gone afterwards, the open gguf keeps it. */
static struct gguf *made(const struct maker_params *p)
{
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct err e = {0};
    enum err_code rc = maker_write(test_scratch("maker.gguf", path), p, &e);
    if (rc == OK)
        rc = gguf_open(path, &g, &e);
    unlink(path);
    if (rc != OK)
        print_message("%s\n", e.msg);
    assert_int_equal(rc, OK);
    return g;
}

static void bytes_of(const struct maker_params *p, struct buf *out)
{
    char path[PATH_MAX];
    struct err e = {0};
    assert_int_equal(maker_write(test_scratch("maker.gguf", path), p, &e), OK);
    assert_int_equal(io_read_file(path, 64u << 20, out, &e), OK);
    unlink(path);
}

static void shape_and_keys_are_as_asked(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct err e = {0};
    uint32_t v;
    size_t n;
    p.n_block = 3;
    p.n_vocab = 700;
    struct gguf *g = made(&p);
    assert_int_equal(gguf_n_tensors(g), 3 + 3 * 9);
    assert_int_equal(gguf_u32(g, "llama.block_count", &v, &e), OK);
    assert_int_equal(v, 3);
    assert_int_equal(gguf_arr_strs(g, "tokenizer.ggml.tokens", 700, &n, &e), OK);
    const struct gguf_tensor *t = gguf_tensor_find(g, "blk.2.attn_k.weight");
    assert_non_null(t);
    assert_int_equal(t->ne[0], 64);
    assert_int_equal(t->ne[1], 32);
    gguf_close(g);
}

static void tied_model_has_no_output_matrix(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    p.tied = true;
    p.with_rope_freqs = true;
    struct gguf *g = made(&p);
    assert_null(gguf_tensor_find(g, "output.weight"));
    assert_non_null(gguf_tensor_find(g, "rope_freqs.weight"));
    gguf_close(g);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void pieces_are_unique_and_printable(void **state)
{
    (void)state;
    enum { N = 30000 };
    char(*piece)[MAKER_PIECE_BYTES] = calloc(N, sizeof *piece);
    assert_non_null(piece);
    for (uint32_t i = 0; i < N; i++)
        maker_piece(i, piece[i]);
    assert_string_equal(piece[3 + 0x41], "<0x41>");
    qsort(piece, N, sizeof *piece, by_text);
    for (uint32_t i = 1; i < N; i++)
        assert_string_not_equal(piece[i - 1], piece[i]);
    for (uint32_t i = 0; i < N; i++)
        for (const char *c = strncmp(piece[i], "\xe2\x96\x81", 3) == 0 ? piece[i] + 3 : piece[i]; *c; c++)
            assert_true(*c > ' ' && *c < 127);
    free(piece);
}

static void bytes_depend_on_the_seed_only(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct buf a = {0}, b = {0}, c = {0};
    p.n_block = 2;
    p.n_threads = 1;
    bytes_of(&p, &a);
    p.n_threads = 5;
    bytes_of(&p, &b);
    p.seed = 2;
    bytes_of(&p, &c);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    assert_int_equal(a.len, c.len);
    assert_memory_not_equal(a.data, c.data, a.len);
    buf_free(&a);
    buf_free(&b);
    buf_free(&c);
}

static void weights_have_the_intended_deviation(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct buf b = {0};
    double sum = 0, squares = 0;
    size_t n = (size_t)p.n_embd * p.n_ff;
    struct gguf *g = made(&p);
    struct gguf_tensor t = *gguf_tensor_find(g, "blk.0.ffn_up.weight");
    gguf_close(g);
    bytes_of(&p, &b);
    struct cursor c = cursor_of(b.data + t.offset, t.size);
    for (size_t i = 0; i < n; i++) {
        double v = (double)cursor_f32(&c);
        sum += v;
        squares += v * v;
    }
    assert_true(fabs(sum / (double)n) < 0.01);
    assert_true(fabs(sqrt(squares / (double)n) * 8 - 1) < 0.05); /* 1/sqrt(64) */
    buf_free(&b);
}

static void every_type_can_be_written(void **state)
{
    (void)state;
    static const char *const names[] = {"f32",  "f16",  "bf16", "q4_0", "q4_1", "q5_0",   "q5_1",   "q8_0",
                                        "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct maker_params p = maker_small();
        struct err e = {0};
        p.n_block = 1;
        p.n_vocab = 300;
        p.n_embd = 256;
        p.n_ff = 256;
        p.head_dim = 64;
        assert_int_equal(maker_type(names[i], &p.type, &e), OK);
        struct gguf *g = made(&p);
        assert_int_equal(gguf_tensor_find(g, "token_embd.weight")->type, p.type);
        gguf_close(g);
    }
}

static void impossible_shapes_are_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e = {0};
    struct maker_params p = maker_small();
    test_scratch("maker.gguf", path);
    p.n_head_kv = 3;
    assert_int_equal(maker_write(path, &p, &e), ERR_ARG);
    p = maker_small();
    p.n_embd = 48;
    assert_int_equal(maker_type("q8_0", &p.type, &e), OK);
    assert_int_equal(maker_write(path, &p, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "multiple of 32"));
    assert_int_equal(access(path, F_OK), -1);
}

static void a_fault_that_hits_nothing_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e = {0};
    struct maker_params p = maker_small();
    test_scratch("maker.gguf", path);
    p.broken_drop = "blk.6.ffn_up.weight";
    assert_int_equal(maker_write(path, &p, &e), ERR_ARG);
    p = maker_small();
    p.broken_retype = "no.such";
    assert_int_equal(maker_write(path, &p, &e), ERR_ARG);
}

static void faults_are_where_they_were_ordered(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct err e = {0};
    uint32_t v;
    p.broken_drop = "blk.2.ffn_up.weight";
    p.broken_reshape = "blk.1.attn_q.weight";
    p.broken_ne[0] = 32;
    p.broken_ne[1] = 16;
    p.broken_key = "llama.block_count";
    p.broken_key_how = MAKER_KEY_STRING;
    struct gguf *g = made(&p);
    assert_null(gguf_tensor_find(g, "blk.2.ffn_up.weight"));
    assert_int_equal(gguf_tensor_find(g, "blk.1.attn_q.weight")->ne[1], 16);
    assert_int_equal(gguf_u32(g, "llama.block_count", &v, &e), ERR_FORMAT);
    gguf_close(g);
}

static void cut_file_does_not_open(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct maker_params p = maker_small();
    struct gguf *g = NULL;
    struct err e = {0};
    p.broken_cut = 4096;
    assert_int_equal(maker_write(test_scratch("maker.gguf", path), &p, &e), OK);
    assert_int_equal(gguf_open(path, &g, &e), ERR_FORMAT);
    unlink(path);
}

/* --- families ----------------------------------------------------------------------------------- */

static void each_family_opens_with_its_sizes(void **state)
{
    (void)state;
    for (int f = 0; f < MAKER_FAMILY_COUNT; f++) {
        struct maker_params p = maker_family_small((enum maker_family)f);
        struct hparams h = {0};
        struct err e = {0};
        struct gguf *g = made(&p);
        enum err_code rc = hparams_read(g, &h, &e);
        if (rc != OK)
            print_message("%s: %s\n", maker_family_name((enum maker_family)f), e.msg);
        assert_int_equal(rc, OK);
        assert_string_equal(h.arch, maker_family_name((enum maker_family)f));
        assert_int_equal(h.n_block, p.n_block);
        assert_int_equal(h.n_nextn, p.n_nextn);
        assert_int_equal(h.n_vocab, p.n_vocab);
        assert_int_equal(h.head_dim_k, p.head_dim);
        assert_int_equal(h.n_rot, p.n_rot ? p.n_rot : p.head_dim);
        assert_int_equal(h.n_expert, p.n_expert);
        assert_int_equal(h.n_head_kv[0], p.n_head_kv);
        hparams_fini(&h);
        gguf_close(g);
    }
}

static void each_family_depends_on_the_seed_only(void **state)
{
    (void)state;
    for (int f = 0; f < MAKER_FAMILY_COUNT; f++) {
        struct maker_params p = maker_family_small((enum maker_family)f);
        struct buf a = {0}, b = {0};
        p.n_block = 4;
        p.n_threads = 1;
        bytes_of(&p, &a);
        p.n_threads = 3;
        bytes_of(&p, &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        buf_free(&a);
        buf_free(&b);
    }
}

/* A.suffix as u32, or what it is without the key. */
static uint32_t a_u32(const struct gguf *g, const char *arch, const char *suffix, uint32_t without)
{
    char key[96];
    struct err e = {0};
    uint32_t v = without;
    snprintf(key, sizeof key, "%s.%s", arch, suffix);
    assert_int_equal(gguf_opt_u32(g, key, &v, &e), OK);
    return v;
}

/* What would have to be asked for to get a model like g. */
static struct maker_params params_like(const struct gguf *g)
{
    struct maker_params p = {.seed = 1, .type = maker_small().type};
    const char *arch, *model;
    char key[96];
    struct err e = {0};
    size_t n_vocab;
    assert_int_equal(gguf_str(g, "general.architecture", &arch, &e), OK);
    assert_int_equal(gguf_str(g, "tokenizer.ggml.model", &model, &e), OK);
    assert_int_equal(maker_family(arch, &p.family, &e), OK);
    assert_int_equal(gguf_arr_strs(g, "tokenizer.ggml.tokens", 0, &n_vocab, &e), OK);
    p.bpe = p.family == MAKER_LLAMA && strcmp(model, "gpt2") == 0;
    p.n_vocab = (uint32_t)n_vocab;
    p.n_nextn = a_u32(g, arch, "nextn_predict_layers", 0);
    p.n_block = a_u32(g, arch, "block_count", 0) - p.n_nextn;
    p.n_embd = a_u32(g, arch, "embedding_length", 0);
    p.n_head = a_u32(g, arch, "attention.head_count", 0);
    p.n_head_kv = a_u32(g, arch, "attention.head_count_kv", 0);
    p.head_dim = a_u32(g, arch, "attention.key_length", p.n_embd / p.n_head);
    p.n_rot = a_u32(g, arch, "rope.dimension_count", 0);
    p.n_ff = a_u32(g, arch, "feed_forward_length", 0);
    p.n_ctx = a_u32(g, arch, "context_length", 0);
    p.n_ctx_orig = a_u32(g, arch, "rope.scaling.original_context_length", 0);
    p.window = a_u32(g, arch, "attention.sliding_window", 0);
    p.n_expert = a_u32(g, arch, "expert_count", 0);
    p.n_expert_used = a_u32(g, arch, "expert_used_count", 0);
    p.n_ff_exp = a_u32(g, arch, "expert_feed_forward_length", 0);
    p.n_ff_shared = a_u32(g, arch, "expert_shared_feed_forward_length", 0);
    p.ssm_conv = a_u32(g, arch, "ssm.conv_kernel", 0);
    p.ssm_state = a_u32(g, arch, "ssm.state_size", 0);
    p.ssm_group = a_u32(g, arch, "ssm.group_count", 0);
    p.ssm_rank = a_u32(g, arch, "ssm.time_step_rank", 0);
    p.interval = a_u32(g, arch, "full_attention_interval", 0);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    assert_int_equal(gguf_f32(g, key, &p.rope_base, &e), OK);
    p.tied = !gguf_tensor_find(g, "output.weight");
    p.with_rope_freqs = gguf_tensor_find(g, "rope_freqs.weight") != NULL;
    return p;
}

static void expect_same_tensors(const struct gguf *want, const struct gguf *got)
{
    for (size_t i = 0; i < gguf_n_tensors(want); i++) {
        const struct gguf_tensor *w = gguf_tensor_at(want, i), *t = gguf_tensor_find(got, w->name);
        if (!t) {
            fail_msg("%s is missing", w->name);
            continue;
        }
        if (t->type != w->type || memcmp(t->ne, w->ne, sizeof t->ne) != 0)
            print_message("%s is different\n", w->name);
        assert_int_equal(t->type, w->type);
        assert_memory_equal(t->ne, w->ne, sizeof t->ne);
    }
    assert_int_equal(gguf_n_tensors(got), gguf_n_tensors(want));
}

static bool find_key(const struct gguf *g, const char *key, struct buf *value)
{
    struct err e = {0};
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        if (strcmp(gguf_key(g, i), key) == 0) {
            assert_int_equal(gguf_value_bytes(g, i, value, &e), OK);
            return true;
        }
    }
    return false;
}

/* The family's keys, their types and values. */
static void expect_same_keys(const struct gguf *want, const struct gguf *got)
{
    const char *arch;
    struct err e = {0};
    assert_int_equal(gguf_str(want, "general.architecture", &arch, &e), OK);
    for (size_t i = 0; i < gguf_n_kv(want); i++) {
        const char *key = gguf_key(want, i);
        struct buf a = {0}, b = {0};
        if (strncmp(key, arch, strlen(arch)) != 0)
            continue;
        assert_int_equal(gguf_value_bytes(want, i, &a, &e), OK);
        bool same = find_key(got, key, &b) && a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
        if (!same)
            fail_msg("key %s is missing or different", key);
        buf_free(&a);
        buf_free(&b);
    }
    for (size_t i = 0; i < gguf_n_kv(got); i++) {
        const char *key = gguf_key(got, i);
        if (strncmp(key, arch, strlen(arch)) == 0 && !strstr(key, "_length") && !gguf_has(want, key))
            fail_msg("key %s should not be there", key);
    }
}

static void models_are_like_those_of_other_tools(void **state)
{
    (void)state;
    static const struct {
        const char *file, *type;
        enum maker_mix mix;
    } cases[] = {
        {"llama-spm-f32", "f32", MAKER_MIX_NONE},
        {"llama-spm-q8_0", "q8_0", MAKER_MIX_NONE},
        {"llama-spm-q4_0", "q4_0", MAKER_MIX_Q6_HEAD},
        {"llama3-f32", "f32", MAKER_MIX_NONE},
        {"llama-k256-q4_k_m", "q4_K", MAKER_MIX_Q4_K_M},
        {"qwen2-f32", "f32", MAKER_MIX_NONE},
        {"qwen3-f32", "f32", MAKER_MIX_NONE},
        {"qwen3moe-f32", "f32", MAKER_MIX_NONE},
        {"qwen35-f32", "f32", MAKER_MIX_NONE},
        {"qwen35moe-f32", "f32", MAKER_MIX_NONE},
        {"qwen35moe-q8_0", "q8_0", MAKER_MIX_NONE},
        {"qwen35moe-k256-q4_k_m", "q4_K", MAKER_MIX_Q4_K_M},
        {"gemma3-f32", "f32", MAKER_MIX_NONE},
        {"phi3-f32", "f32", MAKER_MIX_NONE},
        {"gpt-oss-mxfp4", "f32", MAKER_MIX_MXFP4_MOE},
    };
    char name[64], path[PATH_MAX];
    if (!test_have_shared("fixtures/qwen35moe-f32.gguf"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf *want, *got;
        struct err e = {0};
        snprintf(name, sizeof name, "fixtures/%s.gguf", cases[i].file);
        assert_int_equal(gguf_open(test_shared(name, path), &want, &e), OK);
        struct maker_params p = params_like(want);
        assert_int_equal(maker_type(cases[i].type, &p.type, &e), OK);
        p.mix = cases[i].mix;
        got = made(&p);
        expect_same_tensors(want, got);
        expect_same_keys(want, got);
        gguf_close(got);
        gguf_close(want);
    }
}

static void windows_hold_only_their_blocks(void **state)
{
    (void)state;
    struct maker_params p;
    struct err e = {0};
    uint32_t v;
    assert_int_equal(maker_preset("qwen3.5-122b-window", &p, &e), OK);
    p.holes = true;
    struct gguf *g = made(&p);
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        assert_in_range(gguf_tensor_at(g, i)->block, 2, 3);
    assert_non_null(gguf_tensor_find(g, "blk.2.ssm_a"));
    assert_null(gguf_tensor_find(g, "blk.3.ssm_a"));
    const struct gguf_tensor *t = gguf_tensor_find(g, "blk.3.attn_q.weight");
    assert_non_null(t);
    assert_int_equal(t->ne[0], 3072);
    assert_int_equal(t->ne[1], 16384);
    assert_int_equal(gguf_tensor_find(g, "blk.2.ffn_gate_exps.weight")->size, 432u << 20);
    assert_int_equal(gguf_u32(g, "qwen35moe.block_count", &v, &e), OK);
    assert_int_equal(v, 49);
    assert_int_equal(gguf_u32(g, "kvasir.window.first", &v, &e), OK);
    assert_int_equal(v, 2);
    assert_int_equal(gguf_u32(g, "kvasir.window.end", &v, &e), OK);
    assert_int_equal(v, 4);
    gguf_close(g);
}

/* 122 billion parameters in a few MiB of disk. */
static void a_file_of_holes_has_the_true_size(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct maker_params p;
    struct err e = {0};
    struct stat st;
    struct gguf *g;
    struct model_sizes s;
    struct hparams h;
    uint64_t n = 0;
    assert_int_equal(maker_preset("qwen3.5-122b-header", &p, &e), OK);
    assert_int_equal(maker_write(test_scratch("holes.gguf", path), &p, &e), OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(gguf_open(path, &g, &e), OK);
    unlink(path);
    assert_true((uint64_t)st.st_size > 70ull << 30);
    assert_true((uint64_t)st.st_blocks * 512 < 64u << 20);
    assert_int_equal(hparams_read(g, &h, &e), OK);
    assert_int_equal(h.n_block, 48);
    assert_int_equal(model_sizes_read(g, &h, &s, &e), OK);
    assert_true(s.nextn_bytes > 1ull << 30);
    model_sizes_fini(&s);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        n += (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2]);
    }
    assert_in_range(n / 1000000000, 122, 125); /* with the NextN block */
    hparams_fini(&h);
    gguf_close(g);
}

static void presets_have_names_and_possible_shapes(void **state)
{
    (void)state;
    const char *name, *about = NULL;
    for (size_t i = 0; (name = maker_preset_at(i, &about)) != NULL; i++) {
        struct maker_params p;
        struct err e = {0};
        assert_int_equal(maker_preset(name, &p, &e), OK);
        assert_true(strlen(about) > 10);
        p.holes = true;
        gguf_close(made(&p));
    }
    struct maker_params p;
    struct err e = {0};
    assert_int_equal(maker_preset("none", &p, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "qwen3-0.6b"));
}

static void narrow_rows_fall_back_to_other_types(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct err e = {0};
    int q5_0;
    assert_int_equal(maker_type("q5_0", &q5_0, &e), OK);
    assert_int_equal(maker_type_and_mix("q4_k_m", &p.type, &p.mix, &e), OK);
    p.n_ff = 256;
    struct gguf *g = made(&p);
    assert_int_equal(gguf_tensor_find(g, "blk.0.ffn_up.weight")->type, q5_0);
    assert_int_equal(gguf_tensor_find(g, "blk.0.ffn_down.weight")->type, p.type);
    gguf_close(g);
}

/* --- large tensors ------------------------------------------------------------------------------ */

static struct maker_params one_wide_block(void)
{
    struct maker_params p = maker_small();
    p.n_block = 1;
    p.n_embd = 1024;
    p.n_ff = 1024;
    return p;
}

static void large_tensors_depend_on_the_seed_only(void **state)
{
    (void)state;
    struct maker_params p = one_wide_block();
    struct buf a = {0}, b = {0};
    struct err e = {0};
    assert_int_equal(maker_type("q4_0", &p.type, &e), OK);
    p.n_threads = 1;
    bytes_of(&p, &a);
    p.n_threads = 4;
    bytes_of(&p, &b);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    buf_free(&a);
    buf_free(&b);
}

static void large_tensors_have_the_intended_deviation(void **state)
{
    (void)state;
    struct maker_params p = one_wide_block();
    struct buf b = {0};
    double squares = 0;
    size_t n = 1024 * 1024;
    struct gguf *g = made(&p);
    struct gguf_tensor t = *gguf_tensor_find(g, "blk.0.ffn_up.weight");
    gguf_close(g);
    bytes_of(&p, &b);
    struct cursor c = cursor_of(b.data + t.offset, t.size);
    for (size_t i = 0; i < n; i++) {
        double v = (double)cursor_f32(&c);
        squares += v * v;
    }
    assert_true(fabs(sqrt(squares / (double)n) * 32 - 1) < 0.02); /* 1/sqrt(1024) */
    for (size_t r = 1; r < 1024; r++)
        assert_memory_not_equal(b.data + t.offset, b.data + t.offset + r * 4096, 4096);
    buf_free(&b);
}

/* --- BPE vocabularies --------------------------------------------------------------------------- */

static int by_pointed_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char *token_of(const struct gguf *g, const char *id_key)
{
    struct err e = {0};
    uint32_t id;
    assert_int_equal(gguf_u32(g, id_key, &id, &e), OK);
    return gguf_arr_str_at(g, "tokenizer.ggml.tokens", id);
}

static void bpe_tokens_are_unique_and_merges_lead_to_them(void **state)
{
    (void)state;
    struct maker_params p = maker_family_small(MAKER_QWEN3);
    struct err e = {0};
    size_t n, n_merges;
    p.n_vocab = 151936;
    p.holes = true;
    struct gguf *g = made(&p);
    assert_int_equal(gguf_arr_strs(g, "tokenizer.ggml.tokens", p.n_vocab, &n, &e), OK);
    assert_int_equal(gguf_arr_strs(g, "tokenizer.ggml.merges", 0, &n_merges, &e), OK);
    assert_string_equal(token_of(g, "tokenizer.ggml.bos_token_id"), "<|endoftext|>");
    assert_string_equal(token_of(g, "tokenizer.ggml.eos_token_id"), "<|im_end|>");
    assert_string_equal(gguf_arr_str_at(g, "tokenizer.ggml.tokens", 151644), "<|im_start|>"); /* as in the family */
    const char **text = calloc(n, sizeof *text);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = gguf_arr_str_at(g, "tokenizer.ggml.tokens", i);
    qsort(text, n, sizeof *text, by_pointed_text);
    for (size_t i = 1; i < n; i++)
        assert_string_not_equal(text[i - 1], text[i]);
    assert_true(n_merges > 10000);
    for (size_t i = 0; i < n_merges; i++) {
        char joined[MAKER_PIECE_BYTES * 2], *space;
        const char *find = joined;
        snprintf(joined, sizeof joined, "%s", gguf_arr_str_at(g, "tokenizer.ggml.merges", i));
        space = strchr(joined, ' ');
        assert_non_null(space);
        memmove(space, space + 1, strlen(space));
        assert_non_null(bsearch(&find, text, n, sizeof *text, by_pointed_text));
    }
    free(text);
    gguf_close(g);
}

static void refused(const struct maker_params *p, const char *says)
{
    char path[PATH_MAX];
    struct err e = {0};
    assert_int_equal(maker_write(test_scratch("maker.gguf", path), p, &e), ERR_ARG);
    if (!strstr(e.msg, says))
        fail_msg("'%s' does not say '%s'", e.msg, says);
    assert_int_equal(access(path, F_OK), -1);
}

static void shapes_a_family_cannot_have_are_refused(void **state)
{
    (void)state;
    struct maker_params p = maker_family_small(MAKER_QWEN3MOE);
    p.n_expert = p.n_expert_used = 0;
    refused(&p, "has experts");
    p = maker_family_small(MAKER_QWEN2);
    p.n_expert = p.n_expert_used = 4;
    refused(&p, "has no experts");
    p = maker_family_small(MAKER_QWEN35);
    p.ssm_rank = 3;
    refused(&p, "multiple of 2 key heads");
    p.interval = 0;
    refused(&p, "needs interval");
    p = maker_family_small(MAKER_GLM4MOE);
    p.n_ff_shared = 96;
    refused(&p, "whole number of experts");
    p = maker_family_small(MAKER_LLAMA);
    p.n_nextn = 1;
    refused(&p, "NextN");
    p = maker_family_small(MAKER_GEMMA3);
    p.window = 0;
    refused(&p, "sliding window");
    p = maker_family_small(MAKER_PHI3);
    p.head_dim = 32;
    refused(&p, "n_embd 64");
    p = maker_family_small(MAKER_QWEN3);
    p.only_first = 4;
    p.only_end = 7;
    refused(&p, "no blocks 4 to 7");
    p = maker_family_small(MAKER_QWEN3);
    p.n_vocab = 264;
    refused(&p, "n_vocab is 264");
    p = maker_small();
    p.broken_cut = 1u << 30;
    refused(&p, "cannot be cut off");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shape_and_keys_are_as_asked),
        cmocka_unit_test(tied_model_has_no_output_matrix),
        cmocka_unit_test(pieces_are_unique_and_printable),
        cmocka_unit_test(bytes_depend_on_the_seed_only),
        cmocka_unit_test(weights_have_the_intended_deviation),
        cmocka_unit_test(every_type_can_be_written),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(a_fault_that_hits_nothing_is_refused),
        cmocka_unit_test(faults_are_where_they_were_ordered),
        cmocka_unit_test(cut_file_does_not_open),
        cmocka_unit_test(each_family_opens_with_its_sizes),
        cmocka_unit_test(each_family_depends_on_the_seed_only),
        cmocka_unit_test(models_are_like_those_of_other_tools),
        cmocka_unit_test(windows_hold_only_their_blocks),
        cmocka_unit_test(a_file_of_holes_has_the_true_size),
        cmocka_unit_test(presets_have_names_and_possible_shapes),
        cmocka_unit_test(narrow_rows_fall_back_to_other_types),
        cmocka_unit_test(large_tensors_depend_on_the_seed_only),
        cmocka_unit_test(large_tensors_have_the_intended_deviation),
        cmocka_unit_test(bpe_tokens_are_unique_and_merges_lead_to_them),
        cmocka_unit_test(shapes_a_family_cannot_have_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
