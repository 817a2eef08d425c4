/* SPDX-License-Identifier: MIT
 *
 * Tokenizers against references: ids, pieces, BOS, EOS, EOG and continuations of the tiny models, and the texts that
 * come with real vocabularies.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/golden_json.h"
#include "lib/test_util.h"
#include "lib/tok_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A continuation, streamed, is the reference text. */
static void check_greedy(const struct tok *t, const struct golden_text *x)
{
    struct tok_stream s;
    struct buf out = {0};
    struct err e;
    tok_stream_init(&s, t, true, false);
    for (size_t i = 0; i < x->greedy.n; i++)
        assert_int_equal(tok_stream_put(&s, x->greedy.id[i], &out, &e), OK);
    assert_int_equal(tok_stream_end(&s, &out, &e), OK);
    assert_int_equal(out.len, x->greedy_text.len);
    assert_memory_equal(out.data, x->greedy_text.data, out.len);
    buf_free(&out);
}

static void check_golden(const char *gguf_path, const char *json_path)
{
    struct golden_json g;
    struct err e;
    if (golden_json_open(json_path, &g, &e) != OK)
        fail_msg("%s", e.msg);
    struct tok *t = tok_rig_open(gguf_path);
    assert_int_equal(tok_n_vocab(t), g.n_vocab);
    assert_int_equal(tok_bos(t), g.bos);
    assert_int_equal(tok_eos(t), g.eos);
    assert_int_equal(tok_add_bos(t), g.add_bos);
    size_t n_eog = 0;
    for (int32_t id = -1; id <= (int32_t)g.n_vocab; id++)
        n_eog += tok_is_eog(t, id);
    assert_int_equal(n_eog, g.eog.n);
    for (size_t i = 0; i < g.eog.n; i++)
        assert_true(tok_is_eog(t, g.eog.id[i]));
    assert_true(g.n_cases > 0);
    for (size_t i = 0; i < g.n_tokenize + g.n_cases; i++) {
        const struct golden_text *x = i < g.n_tokenize ? &g.tokenize[i] : &g.cases[i - g.n_tokenize];
        unsigned flags = (x->add_special ? TOK_ADD_SPECIAL : 0u) | (x->parse_special ? TOK_PARSE_SPECIAL : 0u);
        tok_rig_check(t, x->text.data, x->text.len, flags, x->ids.id, x->ids.n);
        if (i >= g.n_tokenize)
            continue;
        struct buf pieces = {0};
        for (size_t k = 0; k < x->ids.n; k++)
            assert_int_equal(tok_piece(t, x->ids.id[k], true, &pieces, &e), OK);
        assert_int_equal(pieces.len, x->pieces.len);
        assert_true(pieces.len == 0 || memcmp(pieces.data, x->pieces.data, pieces.len) == 0);
        buf_free(&pieces);
    }
    for (size_t i = 0; i < g.n_cases; i++)
        check_greedy(t, &g.cases[i]);
    tok_free(t);
    golden_json_close(&g);
}

static void committed_models(void **state)
{
    (void)state;
    static const char *const stems[] = {"llama-spm-f32", "llama-tied-f32", "llama-k256-q4_k_m", "llama3-f32"};
    tok_rig_committed(stems, sizeof stems / sizeof *stems, check_golden);
}

TOK_RIG_SHARED(fixture_llama_spm_f32, "fixtures", "llama-spm-f32", check_golden)
TOK_RIG_SHARED(fixture_llama_spm_q8_0, "fixtures", "llama-spm-q8_0", check_golden)
TOK_RIG_SHARED(fixture_llama_spm_q4_0, "fixtures", "llama-spm-q4_0", check_golden)
TOK_RIG_SHARED(fixture_llama_spm_split, "fixtures", "llama-spm-q4_0-00001-of-00003", check_golden)
TOK_RIG_SHARED(fixture_llama_tied, "fixtures", "llama-tied-f32", check_golden)
TOK_RIG_SHARED(fixture_llama_k256, "fixtures", "llama-k256-q4_k_m", check_golden)
TOK_RIG_SHARED(fixture_gemma3, "fixtures", "gemma3-f32", check_golden)
TOK_RIG_SHARED(fixture_phi3, "fixtures", "phi3-f32", check_golden)
TOK_RIG_SHARED(fixture_llama3, "fixtures", "llama3-f32", check_golden)
TOK_RIG_SHARED(fixture_qwen2, "fixtures", "qwen2-f32", check_golden)
TOK_RIG_SHARED(fixture_qwen3, "fixtures", "qwen3-f32", check_golden)
TOK_RIG_SHARED(fixture_qwen3moe, "fixtures", "qwen3moe-f32", check_golden)
TOK_RIG_SHARED(fixture_qwen3moe_q8_0, "fixtures", "qwen3moe-q8_0", check_golden)
TOK_RIG_SHARED(fixture_qwen3moe_q4_0, "fixtures", "qwen3moe-q4_0", check_golden)
TOK_RIG_SHARED(fixture_qwen35, "fixtures", "qwen35-f32", check_golden)
TOK_RIG_SHARED(fixture_qwen35moe, "fixtures", "qwen35moe-f32", check_golden)
TOK_RIG_SHARED(fixture_qwen35moe_q8_0, "fixtures", "qwen35moe-q8_0", check_golden)
TOK_RIG_SHARED(fixture_qwen35moe_q4_0, "fixtures", "qwen35moe-q4_0", check_golden)
TOK_RIG_SHARED(fixture_qwen35moe_k256, "fixtures", "qwen35moe-k256-q4_k_m", check_golden)
TOK_RIG_SHARED(fixture_gpt_oss, "fixtures", "gpt-oss-mxfp4", check_golden)
TOK_RIG_SHARED(stories_f32, "models", "stories260K-F32", check_golden)
TOK_RIG_SHARED(stories_q8_0, "models", "stories260K-Q8_0", check_golden)

/* Texts between separators, and a line of ids for each. */
static void check_vectors(const struct tok *t, const char *vectors)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char name[256], path[PATH_MAX];
    struct buf texts = {0}, lines = {0};
    struct err e;
    snprintf(name, sizeof name, "vocab/%s.gguf.inp", vectors);
    assert_int_equal(io_read_file(test_shared(name, path), 1u << 20, &texts, &e), OK);
    snprintf(name, sizeof name, "vocab/%s.gguf.out", vectors);
    assert_int_equal(io_read_file(test_shared(name, path), 1u << 20, &lines, &e), OK);
    const char *text = buf_str(&texts), *line = buf_str(&lines);
    size_t n_texts = 0;
    for (const char *end; (end = strstr(text, separator)); text = end + strlen(separator)) {
        int32_t want[1024];
        size_t n = 0;
        for (char *next; *line && *line != '\n'; line = next) {
            long id = strtol(line, &next, 10);
            if (next == line)
                break;
            want[n++] = (int32_t)id;
        }
        line = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line);
        tok_rig_check(t, text, (size_t)(end - text), 0, want, n);
        n_texts++;
    }
    assert_true(n_texts >= 40);
    buf_free(&texts);
    buf_free(&lines);
}

static void check_vocab(const char *model, const char *vectors)
{
    char path[PATH_MAX];
    if (!test_have_shared(model))
        skip();
    struct tok *t = tok_rig_open(test_shared(model, path));
    check_vectors(t, vectors);
    tok_free(t);
}

static void vocab_llama_spm(void **state)
{
    (void)state;
    check_vocab("vocab/ggml-vocab-llama-spm.gguf", "ggml-vocab-llama-spm");
}

static void vocab_phi_3(void **state)
{
    (void)state;
    check_vocab("vocab/ggml-vocab-phi-3.gguf", "ggml-vocab-phi-3");
}

static void vocab_of_a_strangers_llama_2(void **state)
{
    (void)state;
    check_vocab("odd-gguf/ollama-llama-2-tiny-random.gguf", "ggml-vocab-llama-spm");
}

static void vocab_gpt_2(void **state)
{
    (void)state;
    check_vocab("vocab/ggml-vocab-gpt-2.gguf", "ggml-vocab-gpt-2");
}

static void vocab_llama_bpe(void **state)
{
    (void)state;
    check_vocab("vocab/ggml-vocab-llama-bpe.gguf", "ggml-vocab-llama-bpe");
}

static void vocab_qwen2(void **state)
{
    (void)state;
    check_vocab("vocab/ggml-vocab-qwen2.gguf", "ggml-vocab-qwen2");
}

static void vocab_qwen35(void **state)
{
    (void)state;
    check_vocab("vocab/ggml-vocab-qwen35.gguf", "ggml-vocab-qwen35");
}

static void vocab_deepseek_coder(void **state)
{
    (void)state;
    check_vocab("vocab/ggml-vocab-deepseek-coder.gguf", "ggml-vocab-deepseek-coder");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_models),
        cmocka_unit_test(fixture_llama_spm_f32),
        cmocka_unit_test(fixture_llama_spm_q8_0),
        cmocka_unit_test(fixture_llama_spm_q4_0),
        cmocka_unit_test(fixture_llama_spm_split),
        cmocka_unit_test(fixture_llama_tied),
        cmocka_unit_test(fixture_llama_k256),
        cmocka_unit_test(fixture_gemma3),
        cmocka_unit_test(fixture_phi3),
        cmocka_unit_test(fixture_llama3),
        cmocka_unit_test(fixture_qwen2),
        cmocka_unit_test(fixture_qwen3),
        cmocka_unit_test(fixture_qwen3moe),
        cmocka_unit_test(fixture_qwen3moe_q8_0),
        cmocka_unit_test(fixture_qwen3moe_q4_0),
        cmocka_unit_test(fixture_qwen35),
        cmocka_unit_test(fixture_qwen35moe),
        cmocka_unit_test(fixture_qwen35moe_q8_0),
        cmocka_unit_test(fixture_qwen35moe_q4_0),
        cmocka_unit_test(fixture_qwen35moe_k256),
        cmocka_unit_test(fixture_gpt_oss),
        cmocka_unit_test(stories_f32),
        cmocka_unit_test(stories_q8_0),
        cmocka_unit_test(vocab_llama_spm),
        cmocka_unit_test(vocab_phi_3),
        cmocka_unit_test(vocab_of_a_strangers_llama_2),
        cmocka_unit_test(vocab_gpt_2),
        cmocka_unit_test(vocab_llama_bpe),
        cmocka_unit_test(vocab_qwen2),
        cmocka_unit_test(vocab_qwen35),
        cmocka_unit_test(vocab_deepseek_coder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
