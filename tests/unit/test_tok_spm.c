/* SPDX-License-Identifier: MIT
 *
 * Encoding by SentencePiece: hand-made vocabularies where each rule shows alone; wrong vocabularies are refused; long
 * texts take no more than their share of time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "lib/test_util.h"
#include "lib/tok_rig.h"
#include "lib/vocab_gguf.h"
#include "tok/tok.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what all of these tests do --- */

/* Models named phi-3 swallow white space after special tokens, but not after <s>. */
static void phi_3_strips_after_special_tokens(void **state)
{
    (void)state;
    char path[PATH_MAX];
    if (!test_have_shared("vocab/ggml-vocab-phi-3.gguf"))
        skip();
    struct tok *t = tok_rig_open(test_shared("vocab/ggml-vocab-phi-3.gguf", path));
    const int32_t want[] = {32010, 7251, 32007}; /* <|user|> hi <|end|> */
    tok_rig_check(t, "<|user|> \n\t hi<|end|> ", 22, TOK_PARSE_SPECIAL, want, 3);
    const int32_t kept[] = {1, 29871, 7251};
    tok_rig_check(t, "<s> hi", 6, TOK_PARSE_SPECIAL, kept, 3);
    tok_free(t);
}

/* --- hand-made vocabularies --- */

#define SPACE "\xe2\x96\x81"

struct piece {
    const char *text;
    float score;
    int32_t type; /* 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte */
};

struct recipe {
    const struct piece *piece;
    size_t n;
    bool no_space_prefix, no_bos, add_eos, no_scores, no_types;
    const char *id_key; /* one more key */
    uint32_t id;
    const char *model; /* NULL: llama */
};

static enum err_code make_from(const struct recipe *r, struct tok **out, struct err *e)
{
    struct vocab_gguf v = {0};
    struct buf file = {0};
    const char **text = calloc(r->n + 1, sizeof *text);
    float *score = calloc(r->n + 1, sizeof *score);
    int32_t *type = calloc(r->n + 1, sizeof *type);
    for (size_t i = 0; i < r->n; i++) {
        text[i] = r->piece[i].text;
        score[i] = r->piece[i].score;
        type[i] = r->piece[i].type;
    }
    vocab_gguf_str(&v, "tokenizer.ggml.model", r->model ? r->model : "llama");
    vocab_gguf_strs(&v, "tokenizer.ggml.tokens", text, r->n);
    if (!r->no_scores)
        vocab_gguf_f32s(&v, "tokenizer.ggml.scores", score, r->n);
    if (!r->no_types)
        vocab_gguf_i32s(&v, "tokenizer.ggml.token_type", type, r->n);
    if (r->no_space_prefix)
        vocab_gguf_bool(&v, "tokenizer.ggml.add_space_prefix", false);
    if (r->no_bos)
        vocab_gguf_bool(&v, "tokenizer.ggml.add_bos_token", false);
    if (r->add_eos)
        vocab_gguf_bool(&v, "tokenizer.ggml.add_eos_token", true);
    if (r->id_key)
        vocab_gguf_u32(&v, r->id_key, r->id);
    vocab_gguf_end(&v, &file);
    struct gguf *g = NULL;
    enum err_code rc = gguf_open_mem(file.data, file.len, &g, e);
    if (rc != OK)
        fail_msg("%s", e->msg);
    rc = tok_new(g, NULL, out, e);
    gguf_close(g);
    buf_free(&file);
    free(text);
    free(score);
    free(type);
    return rc;
}

static struct tok *make(const struct recipe *r)
{
    struct tok *t = NULL;
    struct err e = {0};
    if (make_from(r, &t, &e) != OK)
        fail_msg("%s", e.msg);
    return t;
}

#define RECIPE(pieces, ...) (&(struct recipe){.piece = (pieces), .n = sizeof(pieces) / sizeof *(pieces), __VA_ARGS__})
#define CHECK(t, text, flags, ...)                                                                                     \
    do {                                                                                                               \
        const int32_t want[] = {-1, ##__VA_ARGS__};                                                                    \
        tok_rig_check(t, text, sizeof(text) - 1, flags, want + 1, sizeof want / sizeof *want - 1);                     \
    } while (0)

static void the_best_score_merges_first(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"a", -9, 1},   {"b", -9, 1},
                              {"c", -9, 1},    {"ab", -3, 1}, {"bc", -2, 1},  {"abc", -1, 1}, {"abab", -0.5f, 1}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    CHECK(t, "abc", 0, 8); /* bc first, then a + bc */
    CHECK(t, "abab", 0, 9);
    CHECK(t, "ababc", 0, 6, 8); /* bc takes the second b before ab + ab can meet */
    CHECK(t, "cab", 0, 5, 6);
    tok_free(t);
}

static void equal_scores_merge_leftmost_first(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3},
                              {"a", 0, 1},     {"aa", 0, 1},  {"aaaa", 0, 1}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    CHECK(t, "a", 0, 3);
    CHECK(t, "aaa", 0, 4, 3);
    CHECK(t, "aaaa", 0, 5);
    CHECK(t, "aaaaaaa", 0, 5, 4, 3);
    tok_free(t);
    t = make(RECIPE(p, .no_space_prefix = true, .no_scores = true));
    CHECK(t, "aaaaaaa", 0, 5, 4, 3);
    tok_free(t);
}

static void a_space_goes_before_each_fragment(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3},
                              {SPACE, -1, 1},  {"a", -2, 1},  {SPACE "a", -0.5f, 1}};
    struct tok *t = make(RECIPE(p, 0));
    CHECK(t, "", 0);
    CHECK(t, "a", 0, 5);
    CHECK(t, " a", 0, 3, 5);
    CHECK(t, "a a", 0, 5, 5);
    CHECK(t, SPACE "a", 0, 3, 5);
    CHECK(t, "a<s>a</s>", TOK_PARSE_SPECIAL, 5, 1, 5, 2);
    tok_free(t);
    t = make(RECIPE(p, .no_space_prefix = true));
    CHECK(t, "a a<s>a", TOK_PARSE_SPECIAL, 4, 5, 1, 4);
    tok_free(t);
}

static void bos_and_eos_as_the_model_says(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2},   {"<s>", 0, 3}, {"</s>", 0, 3},
                              {SPACE "a", 0, 1}, {SPACE, 0, 1}, {"a", 0, 1}};
    struct tok *t = make(RECIPE(p, 0));
    CHECK(t, "a", TOK_ADD_SPECIAL, 1, 3);
    CHECK(t, "", TOK_ADD_SPECIAL, 1);
    tok_free(t);
    t = make(RECIPE(p, .no_bos = true, .add_eos = true));
    CHECK(t, "a", TOK_ADD_SPECIAL, 3, 2);
    CHECK(t, "a", 0, 3);
    tok_free(t);
    t = make(RECIPE(p, .id_key = "tokenizer.ggml.bos_token_id", .id = 2));
    CHECK(t, "a", TOK_ADD_SPECIAL, 2, 3);
    tok_free(t);
}

static void control_tokens_stay_text_unless_asked_for(void **state)
{
    (void)state;
    /* "<s>" can be merged from its characters step by step: still no control token may come out of plain text. */
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 9, 3}, {"</s>", 0, 3}, {"<", -1, 1},
                              {"s", -1, 1},    {">", -1, 1},  {"<s", -1, 1}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    CHECK(t, "<s>", 0, 6, 5);
    CHECK(t, "<s>", TOK_PARSE_SPECIAL, 1);
    CHECK(t, "s<s>s", TOK_PARSE_SPECIAL, 4, 1, 4);
    CHECK(t, "<unk>", TOK_PARSE_SPECIAL, 0);
    tok_free(t);
}

static void byte_tokens_do_not_come_from_their_names(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3},   {"</s>", 0, 3},  {"<", 0, 1},  {"0", 0, 1},
                              {"x", 0, 1},     {"A", 0, 1},     {">", 0, 1},     {"<0", 0, 1}, {"<0x", 0, 1},
                              {"<0xA", 0, 1},  {"<0xAA", 0, 1}, {"<0xAA>", 0, 6}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    CHECK(t, "<0xAA>", TOK_PARSE_SPECIAL, 11, 7);
    CHECK(t, "\xaa", 0, 12);
    tok_free(t);
}

static void user_defined_tokens_are_always_found(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"a", 0, 1},
                              {"  ", 0, 4},    {"a\n", 0, 4}, {SPACE, 0, 1}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    CHECK(t, "a   a", 0, 3, 4, 6, 3);
    CHECK(t, "aa\na", 0, 3, 5, 3);
    tok_free(t);
}

/* "bcd" is longer than "ab", so it wins although it begins later; then "ab" has no place, but "a" has. */
static void the_longest_special_token_wins(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"ab", 0, 3},
                              {"bcd", 0, 3},   {"a", 0, 3},   {"x", 0, 1},    {"b", 0, 1},
                              {"c", 0, 1},     {"d", 0, 1},   {"xx", 0, 3},   {"xxx", 0, 3}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    CHECK(t, "abcd", TOK_PARSE_SPECIAL, 5, 4);
    CHECK(t, "abc", TOK_PARSE_SPECIAL, 3, 8);
    CHECK(t, "abbcdab", TOK_PARSE_SPECIAL, 3, 4, 3);
    CHECK(t, "xxxxx", TOK_PARSE_SPECIAL, 11, 10);
    CHECK(t, "xxxxxxx", TOK_PARSE_SPECIAL, 11, 11, 6);
    CHECK(t, "xxxxx", 0, 6, 6, 6, 6, 6);
    tok_free(t);
}

/* Random texts over two letters: the queue finds what one pass per token, longest first, finds. */
static void splitting_agrees_with_one_pass_per_token(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3},  {"</s>", 0, 3},  {"a", 0, 1},
                              {"b", 0, 1},     {"abb", 0, 3},  {"bab", 0, 4},   {"aa", 0, 3},
                              {"bb", 0, 4},    {"abab", 0, 3}, {"babba", 0, 3}, {"aaaaaa", 0, 4}};
    static const int by_length[] = {11, 10, 9, 0, 7}; /* 0: the three- and two-letter ones, of equal length, below */
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    for (uint64_t seed = 0; seed < 2000; seed++) {
        char text[24];
        int32_t owner[24], want[24];
        size_t len = 1 + (size_t)(hash_uniform(seed, 99) * 23), n = 0;
        for (size_t i = 0; i < len; i++)
            text[i] = hash_uniform(seed, i) < 0.5 ? 'a' : 'b';
        memset(owner, 0xff, sizeof owner);
        for (size_t k = 0; k < 5; k++) {
            const int same[][2] = {{by_length[k], 0}, {5, 6}, {7, 8}};
            const int *group = same[k < 3 ? 0 : k - 2];
            for (size_t i = 0; i < len; i++)
                for (int j = 0; j < 2 && group[j]; j++) {
                    const char *s = p[group[j]].text;
                    bool fits = i + strlen(s) <= len && memcmp(text + i, s, strlen(s)) == 0;
                    for (size_t c = 0; fits && c < strlen(s); c++)
                        fits = owner[i + c] < 0;
                    for (size_t c = 0; fits && c < strlen(s); c++)
                        owner[i + c] = c ? 0 : group[j];
                }
        }
        for (size_t i = 0; i < len; i++)
            if (owner[i] != 0)
                want[n++] = owner[i] > 0 ? owner[i] : text[i] == 'a' ? 3 : 4;
        tok_rig_check(t, text, len, TOK_PARSE_SPECIAL, want, n);
    }
    tok_free(t);
}

/* 3 control tokens, the 256 bytes, "é" (id 259). */
static struct tok *make_bytes(bool no_space_prefix)
{
    static char name[256][8];
    struct piece p[3 + 256 + 1] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
    for (unsigned b = 0; b < 256; b++) {
        snprintf(name[b], sizeof name[b], "<0x%02X>", b);
        p[3 + b] = (struct piece){name[b], 0, 6};
    }
    p[259] = (struct piece){"\xc3\xa9", 0, 1};
    return make(RECIPE(p, .no_space_prefix = no_space_prefix));
}

static void what_is_no_token_becomes_bytes(void **state)
{
    (void)state;
    struct tok *t = make_bytes(true);
    CHECK(t, "A\xc3\xa9", 0, 3 + 'A', 259);
    CHECK(t, "\xe6\x97\xa5", 0, 3 + 0xe6, 3 + 0x97, 3 + 0xa5);
    CHECK(t, "A\0B", 0, 3 + 'A', 3, 3 + 'B');
    CHECK(t, " ", 0, 3 + 0xe2, 3 + 0x96, 3 + 0x81);
    tok_free(t);
}

static void invalid_utf8_becomes_bytes(void **state)
{
    (void)state;
    struct tok *t = make_bytes(true);
    CHECK(t, "\xff\xc3\xa9\xc3", 0, 3 + 0xff, 259, 3 + 0xc3);
    CHECK(t, "\xe2\xc3\xa9", 0, 3 + 0xe2, 259); /* a cut character does not swallow the next */
    CHECK(t, "\xed\xa0\x80\xc0\x80", 0, 3 + 0xed, 3 + 0xa0, 3 + 0x80, 3 + 0xc0, 3 + 0x80);
    CHECK(t, "\xf0\x9f", 0, 3 + 0xf0, 3 + 0x9f);
    tok_free(t);
}

static void without_byte_tokens_it_is_unknown(void **state)
{
    (void)state;
    const struct piece p[] = {{"<s>", 0, 3}, {"a", 0, 1}, {"</s>", 0, 3}, {"?", 0, 2}, {"<0xE6>", 0, 6}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true, .id_key = "tokenizer.ggml.unknown_token_id", .id = 3));
    CHECK(t, "a\xe6\x97\xa5z", 0, 1, 3, 3); /* one for a character, whatever its length */
    CHECK(t, "\xe6", 0, 4);
    tok_free(t);
}

/* An encoding appends; after an error the list is what it was. */
static void encoding_appends(void **state)
{
    (void)state;
    struct tok *t = make_bytes(true);
    struct tok_ids ids = {0};
    struct err e;
    assert_int_equal(tok_encode(t, "A", 1, 0, &ids, &e), OK);
    assert_int_equal(tok_encode(t, "B", 1, TOK_ADD_SPECIAL, &ids, &e), OK);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.id[0], 3 + 'A');
    assert_int_equal(ids.id[1], 1);
    assert_int_equal(ids.id[2], 3 + 'B');
    assert_int_equal(tok_encode(t, "", (size_t)600 << 20, 0, &ids, &e), ERR_LIMIT);
    assert_int_equal(ids.n, 3);
    tok_ids_free(&ids);
    tok_free(t);
}

/* --- what ends a generation --- */

static void eog_by_key_and_by_text(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3},      {"</s>", 0, 3}, {"<|end|>", 0, 3}, {"x", 0, 1},
                              {"y", 0, 3},     {"<|call|>", 0, 3}, {"", 0, 1},     {"<turn|>", 0, 3}};
    struct tok *t = make(RECIPE(p, .id_key = "tokenizer.ggml.eot_token_id", .id = 5));
    const bool want[] = {0, 0, 1, 1, 0, 1, 1, 0, 1};
    for (int32_t id = 0; id < 9; id++)
        assert_int_equal(tok_is_eog(t, id), want[id]);
    assert_false(tok_is_eog(t, -1));
    assert_false(tok_is_eog(t, 9));
    tok_free(t);
}

static void harmony_goes_on_after_end(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2},   {"<s>", 0, 3},        {"</s>", 0, 3},
                              {"<|end|>", 0, 3}, {"<|return|>", 0, 3}, {"<|call|>", 0, 3}};
    struct tok *t = make(RECIPE(p, 0));
    assert_false(tok_is_eog(t, 3));
    assert_true(tok_is_eog(t, 4));
    assert_true(tok_is_eog(t, 5));
    tok_free(t);
}

/* Files that call such tokens ordinary or user-defined are wrong: plain text must not become them. */
static void what_ends_a_generation_is_a_control_token(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 2}, {"<s>", 0, 3},        {"</s>", 0, 3},       {"<|im_end|>", 0, 4},
                              {"x", 0, 1},     {"<|eom_id|>", 0, 1}, {"<|fim_pad|>", 0, 4}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    CHECK(t, "x<|im_end|><|eom_id|><|fim_pad|>", TOK_PARSE_SPECIAL, 4, 3, 5, 6);
    struct tok_ids ids = {0};
    struct buf out = {0};
    struct err e;
    assert_int_equal(tok_encode(t, "x<|im_end|>", 11, 0, &ids, &e), OK);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_not_equal(ids.id[i], 3);
    for (int32_t id = 3; id < 7; id++) {
        assert_int_equal(tok_is_eog(t, id), id != 4);
        assert_int_equal(tok_piece(t, id, false, &out, &e), OK);
    }
    assert_int_equal(out.len, 1);
    buf_free(&out);
    tok_ids_free(&ids);
    tok_free(t);
}

/* --- refusals --- */

static void check_refused(const struct recipe *r, enum err_code code, const char *needle)
{
    struct tok *t = NULL;
    struct err e = {0};
    assert_int_equal(make_from(r, &t, &e), code);
    assert_null(t);
    if (!strstr(e.msg, needle))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, needle);
}

static const struct piece three[] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};

static void other_tokenizers_are_named(void **state)
{
    (void)state;
    check_refused(RECIPE(three, .model = "rwkv"), ERR_UNSUPPORTED, "\"rwkv\"");
    check_refused(RECIPE(three, .model = "rwkv"), ERR_UNSUPPORTED, "\"llama\"");
    check_refused(RECIPE(three, .model = "rwkv"), ERR_UNSUPPORTED, "\"gpt2\"");
    check_refused(RECIPE(three, .model = "x\ny\x1b[0m"), ERR_UNSUPPORTED, "\"x?y?[0m\"");
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id",     "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        check_refused(RECIPE(three, .id_key = keys[i], .id = 3), ERR_RANGE, keys[i]);
        check_refused(RECIPE(three, .id_key = keys[i], .id = UINT32_MAX), ERR_RANGE, keys[i]);
    }
}

static void bad_scores_types_and_bytes_are_refused(void **state)
{
    (void)state;
    const struct piece nan_score[] = {{"<unk>", 0, 2}, {"<s>", NAN, 3}};
    const struct piece inf_score[] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"a", -INFINITY, 1}};
    const struct piece type_7[] = {{"<unk>", 0, 2}, {"<s>", 0, 7}};
    const struct piece type_minus[] = {{"<unk>", 0, -1}};
    const struct piece not_a_byte[] = {{"<unk>", 0, 2}, {"<0xG0>", 0, 6}};
    check_refused(RECIPE(nan_score, 0), ERR_FORMAT, "token 1");
    check_refused(RECIPE(inf_score, 0), ERR_FORMAT, "token 2");
    check_refused(RECIPE(type_7, 0), ERR_FORMAT, "type 7");
    check_refused(RECIPE(type_minus, 0), ERR_FORMAT, "token 0");
    check_refused(RECIPE(not_a_byte, 0), ERR_FORMAT, "token 1");
}

static void a_huge_special_token_is_refused(void **state)
{
    (void)state;
    char text[1026];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    const struct piece p[] = {{"<unk>", 0, 2}, {text, 0, 3}};
    check_refused(RECIPE(p, 0), ERR_LIMIT, "token 1");
}

static void no_vocabulary_is_not_found(void **state)
{
    (void)state;
    struct vocab_gguf v = {0};
    struct buf file = {0};
    struct gguf *g = NULL;
    struct tok *t = NULL;
    struct err e;
    vocab_gguf_str(&v, "general.architecture", "llama");
    vocab_gguf_end(&v, &file);
    assert_int_equal(gguf_open_mem(file.data, file.len, &g, &e), OK);
    assert_int_equal(tok_new(g, NULL, &t, &e), ERR_NOT_FOUND);
    gguf_close(g);
    buf_clear(&file);
    vocab_gguf_str(&v, "tokenizer.ggml.model", "llama");
    vocab_gguf_end(&v, &file);
    assert_int_equal(gguf_open_mem(file.data, file.len, &g, &e), OK);
    assert_int_equal(tok_new(g, NULL, &t, &e), ERR_NOT_FOUND);
    gguf_close(g);
    buf_free(&file);
}

/* Scores and types must be as many as tokens, and of the right type. */
static void arrays_of_the_wrong_length_are_refused(void **state)
{
    (void)state;
    static const char *const text[] = {"<unk>", "<s>", "</s>"};
    const float score[4] = {0};
    const int32_t type[4] = {2, 3, 3, 1};
    for (int how = 0; how < 5; how++) {
        struct vocab_gguf v = {0};
        struct buf file = {0};
        struct gguf *g = NULL;
        struct tok *t = NULL;
        struct err e;
        vocab_gguf_str(&v, "tokenizer.ggml.model", "llama");
        vocab_gguf_strs(&v, "tokenizer.ggml.tokens", text, 3);
        if (how == 2)
            vocab_gguf_i32s(&v, "tokenizer.ggml.scores", type, 3);
        else
            vocab_gguf_f32s(&v, "tokenizer.ggml.scores", score, how == 0 ? 2 : 3);
        if (how == 3)
            vocab_gguf_f32s(&v, "tokenizer.ggml.token_type", score, 3);
        else
            vocab_gguf_i32s(&v, "tokenizer.ggml.token_type", type, how == 1 ? 4 : 3);
        if (how == 4)
            vocab_gguf_u32(&v, "tokenizer.ggml.add_bos_token", 1);
        vocab_gguf_end(&v, &file);
        assert_int_equal(gguf_open_mem(file.data, file.len, &g, &e), OK);
        assert_int_equal(tok_new(g, NULL, &t, &e), ERR_FORMAT);
        assert_null(t);
        gguf_close(g);
        buf_free(&file);
    }
}

static void defaults_outside_a_tiny_vocabulary_are_none(void **state)
{
    (void)state;
    const struct piece p[] = {{"a", 0, 1}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    assert_int_equal(tok_bos(t), -1);
    assert_int_equal(tok_eos(t), -1);
    CHECK(t, "a", TOK_ADD_SPECIAL, 0);
    tok_free(t);
}

static void without_types_the_special_ids_are_special(void **state)
{
    (void)state;
    const struct piece p[] = {{"<unk>", 0, 0}, {"<s>", 0, 0}, {"</s>", 0, 0}, {"a", 0, 0}};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true, .no_types = true));
    CHECK(t, "a<s>a", TOK_PARSE_SPECIAL, 3, 1, 3);
    tok_free(t);
}

/* --- time --- */

static void long_texts_are_not_quadratic(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct piece p[64] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"a", 0, 1}, {"aa", 0, 1}, {"aaaa", 0, 1}};
    static char newlines[58][60];
    for (size_t i = 6; i < 64; i++) { /* runs of newlines as tokens, as Gemma has them */
        memset(newlines[i - 6], '\n', i - 5);
        p[i] = (struct piece){newlines[i - 6], 0, 4};
    }
    struct tok *toks[2] = {make(RECIPE(p, 0)), NULL};
    if (test_have_shared("vocab/ggml-vocab-llama-spm.gguf"))
        toks[1] = tok_rig_open(test_shared("vocab/ggml-vocab-llama-spm.gguf", path));
    tok_rig_long_texts(toks, 2);
    tok_free(toks[0]);
    tok_free(toks[1]);
}

/* Nested special tokens, hundreds of which fit each place, in front of a longer one that takes what most of them need:
 * to try them one by one would take minutes. */
static void nested_special_tokens_are_not_tried_one_by_one(void **state)
{
    (void)state;
    enum { n_nested = 700, half = 512, n_units = 100, unit = 3 * half };
    static struct piece p[4 + n_nested] = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
    static char run[n_nested + 1], last[2 * half + 1], text[n_units * unit];
    memset(run, 'a', n_nested);
    for (size_t k = 1; k <= n_nested; k++)
        p[2 + k] = (struct piece){run + n_nested - k, 0, 4};
    memset(last, 'a', half);
    memset(last + half, 'b', half);
    p[3 + n_nested] = (struct piece){last, 0, 4};
    struct tok *t = make(RECIPE(p, .no_space_prefix = true));
    int32_t want[2 * n_units];
    for (size_t i = 0; i < n_units; i++) {
        memset(text + i * unit, 'a', half);
        memcpy(text + i * unit + half, last, (size_t)2 * half);
        want[2 * i] = 2 + half;
        want[2 * i + 1] = 3 + n_nested;
    }
    uint64_t deadline = clock_deadline_ms(60000);
    tok_rig_check(t, text, sizeof text, 0, want, (size_t)2 * n_units);
    assert_true(clock_left_ms(deadline) > 0);
    tok_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phi_3_strips_after_special_tokens),
        cmocka_unit_test(the_best_score_merges_first),
        cmocka_unit_test(equal_scores_merge_leftmost_first),
        cmocka_unit_test(a_space_goes_before_each_fragment),
        cmocka_unit_test(bos_and_eos_as_the_model_says),
        cmocka_unit_test(control_tokens_stay_text_unless_asked_for),
        cmocka_unit_test(byte_tokens_do_not_come_from_their_names),
        cmocka_unit_test(user_defined_tokens_are_always_found),
        cmocka_unit_test(the_longest_special_token_wins),
        cmocka_unit_test(splitting_agrees_with_one_pass_per_token),
        cmocka_unit_test(what_is_no_token_becomes_bytes),
        cmocka_unit_test(invalid_utf8_becomes_bytes),
        cmocka_unit_test(without_byte_tokens_it_is_unknown),
        cmocka_unit_test(encoding_appends),
        cmocka_unit_test(eog_by_key_and_by_text),
        cmocka_unit_test(harmony_goes_on_after_end),
        cmocka_unit_test(what_ends_a_generation_is_a_control_token),
        cmocka_unit_test(other_tokenizers_are_named),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(bad_scores_types_and_bytes_are_refused),
        cmocka_unit_test(a_huge_special_token_is_refused),
        cmocka_unit_test(no_vocabulary_is_not_found),
        cmocka_unit_test(arrays_of_the_wrong_length_are_refused),
        cmocka_unit_test(defaults_outside_a_tiny_vocabulary_are_none),
        cmocka_unit_test(without_types_the_special_ids_are_special),
        cmocka_unit_test(long_texts_are_not_quadratic),
        cmocka_unit_test(nested_special_tokens_are_not_tried_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
