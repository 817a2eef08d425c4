/* SPDX-License-Identifier: MIT
 *
 * Byte-level BPE on hand-made vocabularies where each rule shows alone: merges, bytes, special tokens, what follows
 * from the pre-tokenizer's name, wrong files, and long texts. (References: test_tok_reference.c.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "lib/test_util.h"
#include "lib/tok_rig.h"
#include "lib/vocab_gguf.h"
#include "tok/tok.h"

#include <stdio.h>
#include <string.h>

/* --- vocabularies: the 256 letters, then what a test adds --- */

#define REPLACEMENT "\xef\xbf\xbd"
#define MAX_MORE    32

struct piece {
    const char *text;
    int32_t type; /* 1 normal, 3 control, 4 user-defined, 5 unused, 6 byte */
};

struct recipe {
    const char *pre; /* NULL: the key is missing */
    struct piece more[MAX_MORE];
    const char *merge[MAX_MORE];
    bool no_merges, no_types;
    int no_letter; /* this byte's letter is "x" + itself; 0: none */
    const char *id_key[3];
    uint32_t id[3];
    const char *bool_key;
    bool value;
    const char *override;
};

/* The letter of a byte, worked out as GPT-2's own encoder does: by counting. */
static const char *letter(unsigned byte)
{
    static char text[256][3];
    for (unsigned b = 0, next = 0x100; b < 256 && !text[255][0]; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae);
        unsigned c = itself ? b : next++;
        if (c < 0x80)
            snprintf(text[b], 3, "%c", (int)c);
        else
            snprintf(text[b], 3, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
    }
    return text[byte];
}

static enum err_code make_from(const struct recipe *r, struct tok **out, struct err *e)
{
    const char *text[256 + MAX_MORE];
    int32_t type[256 + MAX_MORE];
    char missing[8];
    struct vocab_gguf v = {0};
    struct buf file = {0};
    struct gguf *g = NULL;
    size_t n = 256, n_merges = 0;
    for (unsigned b = 0; b < 256; b++) {
        text[b] = letter(b);
        type[b] = 1;
    }
    if (r->no_letter) {
        snprintf(missing, sizeof missing, "x%s", letter((unsigned)r->no_letter));
        text[r->no_letter] = missing;
    }
    for (; n - 256 < MAX_MORE && r->more[n - 256].text; n++) {
        text[n] = r->more[n - 256].text;
        type[n] = r->more[n - 256].type;
    }
    while (n_merges < MAX_MORE && r->merge[n_merges])
        n_merges++;
    vocab_gguf_str(&v, "tokenizer.ggml.model", "gpt2");
    if (r->pre)
        vocab_gguf_str(&v, "tokenizer.ggml.pre", r->pre);
    vocab_gguf_strs(&v, "tokenizer.ggml.tokens", text, n);
    if (!r->no_types)
        vocab_gguf_i32s(&v, "tokenizer.ggml.token_type", type, n);
    if (!r->no_merges)
        vocab_gguf_strs(&v, "tokenizer.ggml.merges", r->merge, n_merges);
    for (size_t i = 0; i < 3 && r->id_key[i]; i++)
        vocab_gguf_u32(&v, r->id_key[i], r->id[i]);
    if (r->bool_key)
        vocab_gguf_bool(&v, r->bool_key, r->value);
    vocab_gguf_end(&v, &file);
    if (gguf_open_mem(file.data, file.len, &g, e) != OK)
        fail_msg("%s", e->msg);
    struct tok_options options = {.pre = r->override};
    enum err_code rc = tok_new(g, &options, out, e);
    gguf_close(g); /* the tokenizer must not need it */
    buf_free(&file);
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

#define CHECK(t, text, flags, ...)                                                                                     \
    do {                                                                                                               \
        const int32_t want[] = {-1, ##__VA_ARGS__};                                                                    \
        tok_rig_check(t, text, sizeof(text) - 1, flags, want + 1, sizeof want / sizeof *want - 1);                     \
    } while (0)

static void check_piece(const struct tok *t, int32_t id, bool with_special, const char *want, size_t len)
{
    struct buf out = {0};
    struct err e;
    assert_int_equal(tok_piece(t, id, with_special, &out, &e), OK);
    assert_int_equal(out.len, len);
    if (len)
        assert_memory_equal(out.data, want, len);
    buf_free(&out);
}

/* --- merges --- */

static void the_lowest_rank_merges_first(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){.pre = "gpt-2",
                                          .more = {{"bc", 1}, {"ab", 1}, {"abc", 1}, {"abcd", 1}},
                                          .merge = {"b c", "a b", "a bc", "abc d"}});
    CHECK(t, "abc", 0, 258);
    CHECK(t, "ab", 0, 257);
    CHECK(t, "abd", 0, 257, 'd');
    CHECK(t, "abcd", 0, 259);
    CHECK(t, "bcab", 0, 256, 257);
    CHECK(t, "", 0);
    tok_free(t);
}

static void equal_ranks_merge_leftmost_first(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){.pre = "gpt-2", .more = {{"aa", 1}, {"aaaa", 1}}, .merge = {"a a", "aa aa"}});
    CHECK(t, "aaa", 0, 256, 'a');
    CHECK(t, "aaaaa", 0, 257, 'a');
    CHECK(t, "aaaaaaa", 0, 257, 256, 'a');
    tok_free(t);
}

/* A token that no merge makes does not come out, whatever its text. */
static void tokens_without_a_merge_do_not_appear(void **state)
{
    (void)state;
    struct recipe r = {.pre = "gpt-2", .more = {{"ab", 1}, {"abc", 1}}, .merge = {"a b"}};
    struct tok *t = make(&r);
    CHECK(t, "abc", 0, 256, 'c');
    tok_free(t);
    r.pre = "llama-bpe"; /* which takes whole pieces as they are */
    r.bool_key = "tokenizer.ggml.add_bos_token";
    t = make(&r);
    CHECK(t, "abc", 0, 257);
    CHECK(t, "abcd", 0, 256, 'c', 'd');
    CHECK(t, "abc!abc", 0, 257, '!', 257 - 1, 'c'); /* "!abc" is one piece */
    tok_free(t);
}

static void the_first_of_two_equal_merges_counts(void **state)
{
    (void)state;
    struct tok *t = make(
        &(struct recipe){.pre = "gpt-2", .more = {{"ab", 1}, {"bc", 1}}, .merge = {"a b", "b c", "a b", "b c", "a b"}});
    CHECK(t, "abc", 0, 256, 'c');
    tok_free(t);
    t = make(&(struct recipe){.pre = "gpt-2", .more = {{"ab", 1}, {"bc", 1}}, .merge = {"b c", "a b", "b c", "a b"}});
    CHECK(t, "abc", 0, 'a', 257);
    tok_free(t);
}

static void merges_of_what_is_no_token_are_left_out(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){
        .pre = "gpt-2", .more = {{"ab", 1}, {"cd", 3}}, .merge = {"", "b c", "c d", "q r", "xy z", "a b"}});
    CHECK(t, "abcdqr", 0, 256, 'c', 'd', 'q', 'r');
    tok_free(t);
}

static void pieces_are_merged_each_on_its_own(void **state)
{
    (void)state;
    struct tok *t = make(
        &(struct recipe){.pre = "gpt-2", .more = {{"Ġa", 1}, {"aĠ", 1}, {"ĠĠ", 1}}, .merge = {"a Ġ", "Ġ a", "Ġ Ġ"}});
    CHECK(t, "a a", 0, 'a', 256);
    CHECK(t, "a   a", 0, 'a', 258, 256);
    tok_free(t);
}

/* What the rule says, step by step. */
static size_t merge_slowly(const char *text, size_t len, int32_t *id)
{
    static const int32_t merge[][3] = {/* ranks of the recipe below */
                                       {'a', 'b', 256}, {256, 'a', 257}, {'b', 'b', 258},
                                       {257, 256, 259}, {258, 258, 260}, {259, 258, 261}};
    size_t n = 0;
    for (; n < len; n++)
        id[n] = text[n] == 'a' ? 'a' : 'b';
    for (;;) {
        size_t best = SIZE_MAX, rank = SIZE_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < sizeof merge / sizeof *merge; k++)
                if (id[i] == merge[k][0] && id[i + 1] == merge[k][1] && k < rank) {
                    rank = k;
                    best = i;
                }
        if (best == SIZE_MAX)
            return n;
        id[best] = merge[rank][2];
        n--;
        for (size_t i = best + 1; i < n; i++)
            id[i] = id[i + 1];
    }
}

static void short_and_long_pieces_follow_the_rule(void **state)
{
    (void)state;
    struct tok *t =
        make(&(struct recipe){.pre = "gpt-2",
                              .more = {{"ab", 1}, {"aba", 1}, {"bb", 1}, {"abaab", 1}, {"bbbb", 1}, {"abaabbb", 1}},
                              .merge = {"a b", "ab a", "b b", "aba ab", "bb bb", "abaab bb"}});
    for (uint64_t seed = 0; seed < 1500; seed++) {
        char text[200];
        int32_t want[200];
        size_t len = 1 + (size_t)(hash_uniform(seed, 999) * 199);
        for (size_t i = 0; i < len; i++)
            text[i] = hash_uniform(seed, i) < 0.5 ? 'a' : 'b';
        size_t n = merge_slowly(text, len, want);
        tok_rig_check(t, text, len, 0, want, n);
    }
    tok_free(t);
}

/* --- bytes --- */

static void each_byte_has_its_letter(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){.pre = "gpt-2"});
    for (int32_t id = 0; id < 256; id++) {
        char byte = (char)id;
        check_piece(t, id, false, &byte, 1);
        if (id < 0x80)
            tok_rig_check(t, &byte, 1, 0, &id, 1);
    }
    CHECK(t, "\xc3\xa9\xf0\x9f\x98\x80", 0, 0xc3, 0xa9, 0xf0, 0x9f, 0x98, 0x80);
    tok_free(t);
}

static void invalid_utf8_becomes_replacement_characters(void **state)
{
    (void)state;
    struct tok *t =
        make(&(struct recipe){.pre = "qwen2", .more = {{"ï¿½", 1}, {"ï¿", 1}, {"!", 4}}, .merge = {"ï ¿", "ï¿ ½"}});
    CHECK(t, REPLACEMENT, 0, 256);
    CHECK(t, "a\xffz", 0, 'a', 256, 'z');
    CHECK(t, "\xe2\x82", 0, 256, 256);
    CHECK(t, "\xed\xa0\x80", 0, 256, 256, 256);
    CHECK(t, "\xe2!\x82", 0, 256, 258, 256); /* not only at the ends of the text */
    check_piece(t, 256, false, REPLACEMENT, 3);
    tok_free(t);
}

static void a_byte_without_a_token_is_unknown(void **state)
{
    (void)state;
    struct recipe r = {.pre = "gpt-2", .no_letter = 'q', .more = {{"<unk>", 2}}};
    struct tok *t = make(&r);
    CHECK(t, "aqb", 0, 'a', 'b');
    tok_free(t);
    r.id_key[0] = "tokenizer.ggml.unknown_token_id";
    r.id[0] = 256;
    t = make(&r);
    CHECK(t, "aqb", 0, 'a', 256, 'b');
    tok_free(t);
}

/* Some vocabularies hold texts that are not in letters. */
static void what_is_no_letter_comes_out_as_it_is(void **state)
{
    (void)state;
    struct tok *t = make(
        &(struct recipe){.pre = "gpt-2", .more = {{"日Ġ本", 1}, {"ŃŅń", 1}, {"", 1}, {"Ġunused", 5}, {"<0x41>", 6}}});
    check_piece(t, 256, false, "日 本", 7);
    check_piece(t, 257, false, "\xad\xc5\x85\xc5\x84", 5); /* U+0143 is the last letter */
    check_piece(t, 258, false, "", 0);
    check_piece(t, 259, false, " unused", 7);
    check_piece(t, 260, false, "<0x41>", 6);
    tok_free(t);
}

static void characters_come_out_of_the_stream_whole(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){.pre = "gpt-2", .more = {{"<u>é", 4}, {"Ġx", 1}}});
    static const int32_t id[] = {257, 0xe2, 0x82, 0xac, 256, 0xc3, 'a'};
    static const char *const want[] = {" x", "", "", "€", "<u>é", "", "\357\277\275a"};
    struct tok_stream s;
    struct err e;
    tok_stream_init(&s, t, false, false);
    for (size_t i = 0; i < 7; i++) {
        struct buf out = {0};
        assert_int_equal(tok_stream_put(&s, id[i], &out, &e), OK);
        assert_string_equal(buf_str(&out), want[i]);
        buf_free(&out);
    }
    tok_free(t);
}

/* --- special tokens --- */

static void special_tokens_are_cut_out_first(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){
        .pre = "qwen2", .more = {{"<|a|>", 3}, {"<think>", 4}, {"é", 4}, {"ab", 1}}, .merge = {"a b"}});
    CHECK(t, "ab<|a|>ab<think>", TOK_PARSE_SPECIAL, 259, 256, 259, 257);
    CHECK(t, "<|a|><think>", 0, '<', '|', 'a', '|', '>', 257);
    CHECK(t, "é", 0, 258);
    check_piece(t, 256, false, "", 0);
    check_piece(t, 256, true, "<|a|>", 5);
    check_piece(t, 257, false, "<think>", 7);
    check_piece(t, 258, false, "é", 2); /* its text, not the byte that this letter stands for */
    tok_free(t);
}

static void no_control_token_from_plain_text(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){.pre = "llama-bpe",
                                          .more = {{"<s", 1}, {"<s>", 3}},
                                          .merge = {"< s", "<s >"},
                                          .bool_key = "tokenizer.ggml.add_bos_token"});
    CHECK(t, "<s>", 0, 256, '>');
    CHECK(t, "<s>", TOK_PARSE_SPECIAL, 257);
    tok_free(t);
}

/* "</s>" is HTML, too: where a vocabulary has it as an ordinary token, plain text still becomes it. */
static void ordinary_tokens_that_end_a_generation_stay_text(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){
        .pre = "qwen2", .more = {{"</", 1}, {"</s", 1}, {"</s>", 1}}, .merge = {"< /", "</ s", "</s >"}});
    assert_true(tok_is_eog(t, 258));
    CHECK(t, "a</s>", TOK_PARSE_SPECIAL, 'a', 258);
    CHECK(t, "</s", 0, 256, 's'); /* "</" is a piece of its own */
    tok_free(t);
}

static void harmony_shows_its_channels(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){.pre = "gpt-4o",
                                          .more = {{"<|start|>", 3},
                                                   {"<|channel|>", 3},
                                                   {"<|message|>", 3},
                                                   {"<|constrain|>", 3},
                                                   {"<|end|>", 3},
                                                   {"<|return|>", 3},
                                                   {"<|call|>", 3},
                                                   {"<u>", 4}}});
    static const bool eog[] = {0, 0, 0, 0, 0, 1, 1, 0};
    for (int32_t id = 256; id < 264; id++)
        assert_int_equal(tok_is_eog(t, id), eog[id - 256]);
    check_piece(t, 257, false, "<|channel|>", 11);
    check_piece(t, 260, false, "<|end|>", 7);
    check_piece(t, 261, false, "", 0);
    CHECK(t, "<|start|>x<|end|><u>", 0, 256, 'x', 260, 263);
    CHECK(t, "<|end|><u>", TOK_CONTENT, '<', '|', 'e', 'n', 'd', '|', '>', 263);
    tok_free(t);
}

static void fill_in_tokens_end_a_generation(void **state)
{
    (void)state;
    struct recipe r = {.pre = "qwen2",
                       .more = {{"<|fim_pad|>", 3}, {"<|repo_name|>", 1}, {"<|file_sep|>", 4}, {"<|fim_prefix|>", 3}}};
    struct tok *t = make(&r);
    for (int32_t id = 256; id < 260; id++)
        assert_int_equal(tok_is_eog(t, id), id < 259);
    CHECK(t, "<|repo_name|>", TOK_PARSE_SPECIAL, 257);
    tok_free(t);
    r.id_key[0] = "tokenizer.ggml.fim_pad_token_id"; /* the key, not the text */
    r.id[0] = 'Z';
    t = make(&r);
    assert_true(tok_is_eog(t, 'Z'));
    assert_false(tok_is_eog(t, 256));
    tok_free(t);
}

/* --- what follows from the pre-tokenizer's name --- */

static void bos_by_name_and_key(void **state)
{
    (void)state;
    static const struct {
        const char *pre, *key;
        bool value, adds;
    } name[] = {
        {"llama-bpe", NULL, false, true},
        {"tekken", NULL, false, true},
        {"qwen2", NULL, false, false},
        {"gpt-4o", NULL, false, false},
        {"qwen2", "tokenizer.ggml.add_bos_token", true, true},
        {"llama3", "tokenizer.ggml.add_bos_token", false, false},
    };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        struct tok *t = make(&(struct recipe){.pre = name[i].pre,
                                              .more = {{"<s>", 3}},
                                              .id_key = {"tokenizer.ggml.bos_token_id"},
                                              .id = {256},
                                              .bool_key = name[i].key,
                                              .value = name[i].value});
        assert_int_equal(tok_add_bos(t), name[i].adds);
        if (name[i].adds)
            CHECK(t, "a", TOK_ADD_SPECIAL, 256, 'a');
        else
            CHECK(t, "a", TOK_ADD_SPECIAL, 'a');
        CHECK(t, "a", 0, 'a');
        tok_free(t);
    }
}

static void eos_where_the_file_says(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){.pre = "qwen2",
                                          .more = {{"</s>", 3}},
                                          .id_key = {"tokenizer.ggml.eos_token_id"},
                                          .id = {256},
                                          .bool_key = "tokenizer.ggml.add_eos_token",
                                          .value = true});
    CHECK(t, "a", TOK_ADD_SPECIAL, 'a', 256);
    CHECK(t, "", TOK_ADD_SPECIAL, 256);
    tok_free(t);
}

static void default_ids(void **state)
{
    (void)state;
    struct tok *t = make(&(struct recipe){.pre = "gpt-2"});
    assert_int_equal(tok_bos(t), 11);
    assert_int_equal(tok_eos(t), 11);
    tok_free(t);
    t = make(&(struct recipe){.pre = "glm4"});
    assert_int_equal(tok_bos(t), -1);
    assert_int_equal(tok_eos(t), 11);
    tok_free(t);
    t = make(&(struct recipe){.pre = "chatglm-bpe", .id_key = {"tokenizer.ggml.bos_token_id"}, .id = {7}});
    assert_int_equal(tok_bos(t), 7);
    tok_free(t);
}

/* Without types, ids that the file names are control tokens; the default 11 is not one. */
static void without_types_named_ids_are_control(void **state)
{
    (void)state;
    struct tok *t = make(
        &(struct recipe){.pre = "gpt-2", .no_types = true, .id_key = {"tokenizer.ggml.bos_token_id"}, .id = {'B'}});
    check_piece(t, 'B', false, "", 0);
    check_piece(t, 11, false, "\x0b", 1);
    tok_free(t);
}

static void a_space_prefix_is_not_for_bpe(void **state)
{
    (void)state;
    struct tok *t =
        make(&(struct recipe){.pre = "gpt-2", .bool_key = "tokenizer.ggml.add_space_prefix", .value = true});
    struct tok_stream s;
    struct buf out = {0};
    struct err e;
    CHECK(t, "a", 0, 'a');
    tok_stream_init(&s, t, false, false);
    assert_int_equal(tok_stream_put(&s, ' ', &out, &e), OK);
    assert_string_equal(buf_str(&out), " ");
    buf_free(&out);
    tok_free(t);
}

static void without_a_name_it_is_default(void **state)
{
    (void)state;
    struct recipe r = {.pre = NULL, .more = {{"12", 1}, {"1234", 1}, {"34", 1}}, .merge = {"1 2", "3 4", "12 34"}};
    log_set_level(LOG_ERROR);
    struct tok *t = make(&r);
    CHECK(t, "1234", 0, 256, '3', '4'); /* three digits at a time */
    tok_free(t);
    r.pre = "";
    tok_free(make(&r));
    log_set_level(LOG_WARN);
}

static void a_users_choice_comes_before_the_files(void **state)
{
    (void)state;
    struct recipe r = {.pre = "a-new-one", .more = {{"12", 1}}, .merge = {"1 2"}, .override = "llama-bpe"};
    struct tok *t = make(&r);
    CHECK(t, "12", 0, 256);
    assert_true(tok_add_bos(t));
    tok_free(t);
    r.override = "qwen2";
    t = make(&r);
    CHECK(t, "12", 0, '1', '2');
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

static void unknown_pre_tokenizers_are_named(void **state)
{
    (void)state;
    check_refused(&(struct recipe){.pre = "a-new-one"}, ERR_UNSUPPORTED, "\"a-new-one\"");
    check_refused(&(struct recipe){.pre = "a-new-one"}, ERR_UNSUPPORTED, " qwen2 ");
    check_refused(&(struct recipe){.pre = "qwen2", .override = "mine"}, ERR_UNSUPPORTED, "\"mine\"");
    check_refused(&(struct recipe){.pre = "a\x1b[2J"}, ERR_UNSUPPORTED, "\"a?[2J\"");
}

static void bad_merges_are_refused(void **state)
{
    (void)state;
    check_refused(&(struct recipe){.pre = "gpt-2", .no_merges = true}, ERR_NOT_FOUND, "tokenizer.ggml.merges");
    check_refused(&(struct recipe){.pre = "gpt-2", .merge = {"a b", "ab"}}, ERR_FORMAT, "entry 1");
    check_refused(&(struct recipe){.pre = "gpt-2", .merge = {"a "}}, ERR_FORMAT, "entry 0");
    check_refused(&(struct recipe){.pre = "gpt-2", .merge = {" "}}, ERR_FORMAT, "entry 0");
    check_refused(&(struct recipe){.pre = "gpt-2", .no_merges = true, .bool_key = "tokenizer.ggml.merges"}, ERR_FORMAT,
                  "tokenizer.ggml.merges");
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    check_refused(&(struct recipe){.pre = "gpt-2", .id_key = {"tokenizer.ggml.bos_token_id"}, .id = {256}}, ERR_RANGE,
                  "bos_token_id");
    check_refused(&(struct recipe){.pre = "gpt-2", .id_key = {"tokenizer.ggml.fim_sep_token_id"}, .id = {1000}},
                  ERR_RANGE, "fim_sep");
}

/* --- threads and time --- */

static struct tok *shared_tok;

static void *encode_often(void *arg)
{
    bool *ok = arg;
    for (int i = 0; i < 200 && *ok; i++) {
        struct tok_ids ids = {0};
        *ok = tok_encode(shared_tok, "abab <x> abba 123", 17, TOK_PARSE_SPECIAL, &ids, NULL) == OK && ids.n == 12;
        tok_ids_free(&ids);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    pthread_t thread[4];
    bool ok[4] = {true, true, true, true};
    struct err e;
    shared_tok = make(&(struct recipe){.pre = "qwen2", .more = {{"ab", 1}, {"<x>", 3}}, .merge = {"a b"}});
    for (int i = 0; i < 4; i++)
        assert_int_equal(thread_start(&thread[i], "tok", encode_often, &ok[i], &e), OK);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_true(ok[i]);
    }
    tok_free(shared_tok);
}

static void long_texts_are_not_quadratic(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct tok *toks[2] = {make(&(struct recipe){.pre = "llama-bpe",
                                                 .more = {{"aa", 1}, {"aaaa", 1}, {"ĠĠ", 1}, {"\n\n\n", 4}},
                                                 .merge = {"a a", "aa aa", "Ġ Ġ"}}),
                           NULL};
    if (test_have_shared("vocab/ggml-vocab-llama-bpe.gguf"))
        toks[1] = tok_rig_open(test_shared("vocab/ggml-vocab-llama-bpe.gguf", path));
    tok_rig_long_texts(toks, 2);
    tok_free(toks[0]);
    tok_free(toks[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lowest_rank_merges_first),
        cmocka_unit_test(equal_ranks_merge_leftmost_first),
        cmocka_unit_test(tokens_without_a_merge_do_not_appear),
        cmocka_unit_test(the_first_of_two_equal_merges_counts),
        cmocka_unit_test(merges_of_what_is_no_token_are_left_out),
        cmocka_unit_test(pieces_are_merged_each_on_its_own),
        cmocka_unit_test(short_and_long_pieces_follow_the_rule),
        cmocka_unit_test(each_byte_has_its_letter),
        cmocka_unit_test(invalid_utf8_becomes_replacement_characters),
        cmocka_unit_test(a_byte_without_a_token_is_unknown),
        cmocka_unit_test(what_is_no_letter_comes_out_as_it_is),
        cmocka_unit_test(characters_come_out_of_the_stream_whole),
        cmocka_unit_test(special_tokens_are_cut_out_first),
        cmocka_unit_test(no_control_token_from_plain_text),
        cmocka_unit_test(ordinary_tokens_that_end_a_generation_stay_text),
        cmocka_unit_test(harmony_shows_its_channels),
        cmocka_unit_test(fill_in_tokens_end_a_generation),
        cmocka_unit_test(bos_by_name_and_key),
        cmocka_unit_test(eos_where_the_file_says),
        cmocka_unit_test(default_ids),
        cmocka_unit_test(without_types_named_ids_are_control),
        cmocka_unit_test(a_space_prefix_is_not_for_bpe),
        cmocka_unit_test(without_a_name_it_is_default),
        cmocka_unit_test(a_users_choice_comes_before_the_files),
        cmocka_unit_test(unknown_pre_tokenizers_are_named),
        cmocka_unit_test(bad_merges_are_refused),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(long_texts_are_not_quadratic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
