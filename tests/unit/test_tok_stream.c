/* SPDX-License-Identifier: MIT
 *
 * Ids back to text: the stream against reference continuations, whole characters only, U+FFFD by the book, spaces and
 * special tokens, and that encoding and decoding undo each other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/text.h"
#include "lib/golden_json.h"
#include "lib/test_util.h"
#include "lib/tok_rig.h"
#include "lib/vocab_gguf.h"

#include <stdio.h>
#include <string.h>

#define SPACE       "\xe2\x96\x81"
#define REPLACEMENT "\xef\xbf\xbd"

/* --- a vocabulary of bytes and a few tokens --- */

enum {
    ID_UNK = 0,
    ID_BOS = 1,
    ID_EOS = 2,
    ID_BYTE = 3, /* + byte */
    ID_SPACE = 259,
    ID_HELLO,  /* " hello" */
    ID_TWO,    /* "  x " */
    ID_USER,   /* user-defined, with a literal U+2581 and a space in front */
    ID_UNUSED, /* " unused" */
    ID_EMPTY,
    ID_HALF, /* an ordinary token that is half a character */
    N_IDS
};

static struct tok *make(bool space_prefix)
{
    static char name[256][8];
    const char *text[N_IDS] = {"<unk>", "<s>", "</s>"};
    int32_t type[N_IDS] = {2, 3, 3};
    float score[N_IDS] = {0};
    for (unsigned b = 0; b < 256; b++) {
        snprintf(name[b], sizeof name[b], "<0x%02X>", b);
        text[ID_BYTE + b] = name[b];
        type[ID_BYTE + b] = 6;
    }
    for (int id = ID_SPACE; id < N_IDS; id++)
        type[id] = id == ID_USER ? 4 : id == ID_UNUSED ? 5 : 1;
    text[ID_SPACE] = SPACE;
    text[ID_HELLO] = SPACE "hello";
    text[ID_TWO] = SPACE SPACE "x" SPACE;
    text[ID_USER] = " " SPACE "u";
    text[ID_UNUSED] = SPACE "unused";
    text[ID_EMPTY] = "";
    text[ID_HALF] = "z\xe2\x82";
    struct vocab_gguf v = {0};
    struct buf file = {0};
    struct gguf *g = NULL;
    struct tok *t = NULL;
    struct err e = {0};
    vocab_gguf_str(&v, "tokenizer.ggml.model", "llama");
    vocab_gguf_strs(&v, "tokenizer.ggml.tokens", text, N_IDS);
    vocab_gguf_f32s(&v, "tokenizer.ggml.scores", score, N_IDS);
    vocab_gguf_i32s(&v, "tokenizer.ggml.token_type", type, N_IDS);
    vocab_gguf_bool(&v, "tokenizer.ggml.add_space_prefix", space_prefix);
    vocab_gguf_end(&v, &file);
    if (gguf_open_mem(file.data, file.len, &g, &e) != OK || tok_new(g, NULL, &t, &e) != OK)
        fail_msg("%s", e.msg);
    gguf_close(g);
    buf_free(&file);
    return t;
}

/* Streams ids; at each step only whole characters may come out. The caller frees *out. */
static void stream(const struct tok *t, const int32_t *id, size_t n, bool continuation, bool with_special,
                   struct buf *out)
{
    struct tok_stream s;
    struct err e = {0};
    tok_stream_init(&s, t, continuation, with_special);
    for (size_t i = 0; i <= n; i++) {
        struct buf step = {0};
        enum err_code rc = i < n ? tok_stream_put(&s, id[i], &step, &e) : tok_stream_end(&s, &step, &e);
        if (rc != OK)
            fail_msg("%s", e.msg);
        assert_true(text_valid(step.data, step.len));
        buf_put(out, step.data, step.len);
        buf_free(&step);
    }
}

static void check_stream(const struct tok *t, const int32_t *id, size_t n, bool continuation, bool with_special,
                         const char *want, size_t want_len)
{
    struct buf out = {0};
    stream(t, id, n, continuation, with_special, &out);
    if (out.len != want_len || (want_len && memcmp(out.data, want, want_len) != 0))
        fail_msg("got \"%s\", want \"%s\"", buf_str(&out), want);
    buf_free(&out);
}

#define CHECK(t, continuation, with_special, want, ...)                                                                \
    do {                                                                                                               \
        const int32_t ids[] = {__VA_ARGS__};                                                                           \
        check_stream(t, ids, sizeof ids / sizeof *ids, continuation, with_special, want, sizeof(want) - 1);            \
    } while (0)

/* --- references --- */

/* Each continuation, cut in two streams at every place where no character is open, gives the reference text. */
static void check_greedy(const char *gguf_path, const char *json_path)
{
    struct golden_json g;
    struct err e;
    if (golden_json_open(json_path, &g, &e) != OK)
        fail_msg("%s", e.msg);
    struct tok *t = tok_rig_open(gguf_path);
    assert_true(g.n_cases > 0);
    for (size_t c = 0; c < g.n_cases; c++) {
        const struct golden_ids *ids = &g.cases[c].greedy;
        const struct golden_bytes *want = &g.cases[c].greedy_text;
        assert_true(ids->n > 0);
        for (size_t cut = 0; cut <= ids->n; cut++) {
            struct buf out = {0};
            stream(t, ids->id, cut, true, false, &out);
            stream(t, ids->id + cut, ids->n - cut, true, false, &out);
            assert_int_equal(out.len, want->len);
            assert_memory_equal(out.data, want->data, want->len);
            buf_free(&out);
        }
        bool space = want->data[0] == ' ' && strstr(gguf_path, "gemma3") == NULL;
        check_stream(t, ids->id, ids->n, false, false, want->data + space, want->len - space);
    }
    tok_free(t);
    golden_json_close(&g);
}

static void committed_models(void **state)
{
    (void)state;
    static const char *const stems[] = {"llama-spm-f32", "llama-tied-f32", "llama-k256-q4_k_m"};
    tok_rig_committed(stems, sizeof stems / sizeof *stems, check_greedy);
}

TOK_RIG_SHARED(fixture_llama_spm_f32, "fixtures", "llama-spm-f32", check_greedy)
TOK_RIG_SHARED(fixture_llama_spm_q8_0, "fixtures", "llama-spm-q8_0", check_greedy)
TOK_RIG_SHARED(fixture_llama_spm_q4_0, "fixtures", "llama-spm-q4_0", check_greedy)
TOK_RIG_SHARED(fixture_gemma3, "fixtures", "gemma3-f32", check_greedy)
TOK_RIG_SHARED(fixture_phi3, "fixtures", "phi3-f32", check_greedy)
TOK_RIG_SHARED(stories_f32, "models", "stories260K-F32", check_greedy)
TOK_RIG_SHARED(stories_q8_0, "models", "stories260K-Q8_0", check_greedy)

/* --- characters --- */

static void a_character_comes_out_when_it_is_whole(void **state)
{
    (void)state;
    struct tok *t = make(true);
    const uint8_t ship[] = {0xf0, 0x9f, 0x9a, 0xa2};
    struct tok_stream s;
    struct buf out = {0};
    struct err e;
    tok_stream_init(&s, t, true, false);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(out.len, 0);
        assert_int_equal(tok_stream_put(&s, ID_BYTE + ship[i], &out, &e), OK);
    }
    assert_int_equal(out.len, 4);
    assert_memory_equal(out.data, ship, 4);
    assert_int_equal(tok_stream_end(&s, &out, &e), OK);
    assert_int_equal(out.len, 4);
    buf_free(&out);
    tok_free(t);
}

static void a_character_may_span_kinds_of_tokens(void **state)
{
    (void)state;
    struct tok *t = make(true);
    CHECK(t, true, false, "z\xe2\x82\xac!", ID_HALF, ID_BYTE + 0xac, ID_BYTE + '!');
    CHECK(t, true, false, "z\xe2\x82\xac!", ID_HALF, ID_EOS, ID_BYTE + 0xac,
          ID_BYTE + '!'); /* hidden: as if not there */
    CHECK(t, true, false, "z" REPLACEMENT " hello", ID_HALF, ID_HELLO);
    tok_free(t);
}

static void an_open_character_ends_as_a_replacement(void **state)
{
    (void)state;
    struct tok *t = make(true);
    CHECK(t, true, false, REPLACEMENT, ID_BYTE + 0xc3);
    CHECK(t, true, false, "a" REPLACEMENT, ID_BYTE + 'a', ID_BYTE + 0xf0, ID_BYTE + 0x9f, ID_BYTE + 0x9a);
    tok_free(t);
}

/* The examples of The Unicode Standard, section 3.9, tables 3-8 to 3-11; R is one U+FFFD. */
static void replacement_is_by_maximal_subparts(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *want;
    } x[] = {
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", "RRRRRRRRA"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", "RRRRRRRRA"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", "RRRRRARRB"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "RRRRA"},
        {"\xc3\xc3\x41", "RRA"},
        {"\xf5\x80\xfe", "RRR"},
    };
    struct tok *t = make(true);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        int32_t id[16];
        struct buf want = {0};
        for (size_t k = 0; k < strlen(x[i].bytes); k++)
            id[k] = ID_BYTE + (uint8_t)x[i].bytes[k];
        for (const char *w = x[i].want; *w; w++) {
            if (*w == 'R')
                buf_puts(&want, REPLACEMENT);
            else
                buf_put_u8(&want, (uint8_t)*w);
        }
        check_stream(t, id, strlen(x[i].bytes), true, false, (const char *)want.data, want.len);
        buf_free(&want);
    }
    tok_free(t);
}

/* Every code point as byte tokens comes out as itself; every surrogate as three replacements. */
static void every_character_passes(void **state)
{
    (void)state;
    struct tok *t = make(true);
    struct tok_stream s;
    struct err e;
    struct buf out = {0};
    tok_stream_init(&s, t, true, false);
    for (uint32_t c = 0; c < 0x110000; c += c < 0x3000 || (c >= 0xd700 && c < 0xe100) ? 1 : 61) {
        uint8_t b[4];
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
        for (size_t i = 0; i < n; i++)
            b[i] = (uint8_t)((i ? 0x80 : lead[n]) | ((c >> (6 * (n - 1 - i))) & (i ? 0x3f : 0x7f)));
        buf_clear(&out);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(tok_stream_put(&s, ID_BYTE + b[i], &out, &e), OK);
        bool surrogate = c >= 0xd800 && c < 0xe000;
        assert_int_equal(out.len, surrogate ? 9 : n);
        if (!surrogate)
            assert_memory_equal(out.data, b, n);
    }
    buf_free(&out);
    tok_free(t);
}

/* --- spaces and special tokens --- */

static void one_leading_space_is_dropped(void **state)
{
    (void)state;
    struct tok *t = make(true);
    CHECK(t, false, false, "hello hello", ID_HELLO, ID_HELLO);
    CHECK(t, false, false, " x ", ID_TWO);
    CHECK(t, false, false, " hello", ID_SPACE, ID_HELLO);
    CHECK(t, false, false, "a hello", ID_BYTE + 'a', ID_HELLO);
    CHECK(t, false, false, "hello", ID_BOS, ID_EMPTY, ID_HELLO); /* what prints nothing is no first piece */
    tok_free(t);
}

static void a_continuation_keeps_its_space(void **state)
{
    (void)state;
    struct tok *t = make(true);
    CHECK(t, true, false, " hello hello", ID_HELLO, ID_HELLO);
    tok_free(t);
}

static void without_a_space_prefix_nothing_is_dropped(void **state)
{
    (void)state;
    struct tok *t = make(false);
    CHECK(t, false, false, " hello hello", ID_HELLO, ID_HELLO);
    tok_free(t);
}

static void control_tokens_show_on_request(void **state)
{
    (void)state;
    struct tok *t = make(true);
    CHECK(t, true, false, " hello", ID_BOS, ID_HELLO, ID_UNK, ID_EOS);
    CHECK(t, true, true, "<s> hello<unk></s>", ID_BOS, ID_HELLO, ID_UNK, ID_EOS);
    tok_free(t);
}

static void user_defined_tokens_are_literal(void **state)
{
    (void)state;
    struct tok *t = make(true);
    CHECK(t, false, false, " " SPACE "u hello", ID_USER, ID_HELLO);
    tok_free(t);
}

static void unused_tokens_are_text(void **state)
{
    (void)state;
    struct tok *t = make(true);
    CHECK(t, true, false, " unused", ID_UNUSED);
    tok_free(t);
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    struct tok *t = make(true);
    struct tok_stream s;
    struct buf out = {0};
    struct err e;
    tok_stream_init(&s, t, true, false);
    assert_int_equal(tok_stream_put(&s, ID_HALF, &out, &e), OK);
    assert_int_equal(tok_stream_put(&s, N_IDS, &out, &e), ERR_RANGE);
    assert_int_equal(tok_stream_put(&s, -1, &out, &e), ERR_RANGE);
    assert_int_equal(tok_piece(t, INT32_MIN, true, &out, &e), ERR_RANGE);
    assert_int_equal(tok_stream_put(&s, ID_BYTE + 0xac, &out, &e), OK); /* the stream goes on */
    assert_string_equal(buf_str(&out), "z\xe2\x82\xac");
    buf_free(&out);
    tok_free(t);
}

/* --- there and back --- */

/* Random text: valid UTF-8 of all lengths, many spaces, or any bytes at all; never U+2581. */
static size_t random_text(uint64_t seed, bool valid, char *text, size_t max)
{
    size_t n = 0, want = (size_t)(hash_uniform(seed, 1) * (double)max);
    for (uint64_t i = 2; n < want; i++) {
        static const char *const some[] = {
            " ",           "the ", "ring", "\n", "\t\t", "  ", "\0", "\x7f", "é", "\xe6\x97\xa5", "\xf0\x9f\x9a\xa2",
            "\xef\xbf\xbf"};
        uint64_t r = hash_mix64(seed * 1000003 + i);
        if (!valid && r % 3 == 0) {
            text[n++] = (char)(uint8_t)(r >> 40);
        } else {
            size_t k = (r >> 20) % 13, len = k == 6 ? 1 : k < 12 ? strlen(some[k]) : 1;
            if (n + len > max)
                break;
            if (k < 12)
                memcpy(text + n, some[k], len);
            else
                text[n] = (char)(uint8_t)(0x20 + (r >> 30) % 95);
            n += len;
        }
    }
    for (size_t i = 0; i + 2 < n; i++)
        if (memcmp(text + i, SPACE, 3) == 0)
            text[i] = 'x';
    return n;
}

/* any_bytes: every other text is not UTF-8. */
static void check_round_trips(const struct tok *t, bool space_prefix, bool any_bytes, unsigned n_texts)
{
    for (uint64_t seed = 0; seed < n_texts; seed++) {
        char text[300];
        bool valid = !any_bytes || seed % 2 == 0;
        size_t len = random_text(seed, valid, text, sizeof text);
        struct tok_ids ids = {0};
        struct buf pieces = {0};
        struct err e = {0};
        if (tok_encode(t, text, len, 0, &ids, &e) != OK)
            fail_msg("%s", e.msg);
        if (valid)
            check_stream(t, ids.id, ids.n, false, false, text, len);
        for (size_t i = 0; i < ids.n; i++)
            assert_int_equal(tok_piece(t, ids.id[i], false, &pieces, &e), OK);
        size_t prefix = space_prefix && len > 0;
        assert_int_equal(pieces.len, len + prefix);
        if (len) {
            assert_true(!prefix || buf_str(&pieces)[0] == ' ');
            assert_memory_equal(buf_str(&pieces) + prefix, text, len);
        }
        buf_free(&pieces);
        tok_ids_free(&ids);
    }
}

static void round_trips_of_a_byte_vocabulary(void **state)
{
    (void)state;
    struct tok *t = make(true);
    check_round_trips(t, true, true, 2000);
    tok_free(t);
    t = make(false);
    check_round_trips(t, false, true, 2000);
    tok_free(t);
}

/* A BPE vocabulary: nothing is put before a text, and what is not UTF-8 does not survive its pre-tokenizer. */
static void round_trips_of_the_demo_model(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct tok *t = NULL;
    struct err e = {0};
    test_demo_model(path);
    if (gguf_open(path, &g, &e) != OK || tok_new(g, NULL, &t, &e) != OK)
        fail_msg("%s", e.msg);
    gguf_close(g);
    check_round_trips(t, false, false, 1000);
    tok_free(t);
}

static void round_trips_of_others_vocabularies(void **state)
{
    (void)state;
    static const char *const names[] = {"vocab/ggml-vocab-llama-spm.gguf", "fixtures/llama-spm-f32.gguf",
                                        "fixtures/phi3-f32.gguf", "fixtures/gemma3-f32.gguf",
                                        "models/stories260K-F32.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[PATH_MAX];
        struct gguf *g = NULL;
        struct tok *t = NULL;
        struct err e = {0};
        if (!test_have_shared(names[i]))
            skip();
        if (gguf_open(test_shared(names[i], path), &g, &e) != OK || tok_new(g, NULL, &t, &e) != OK)
            fail_msg("%s", e.msg);
        gguf_close(g);
        check_round_trips(t, strstr(names[i], "gemma3") == NULL, true, 1000);
        tok_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_models),
        cmocka_unit_test(fixture_llama_spm_f32),
        cmocka_unit_test(fixture_llama_spm_q8_0),
        cmocka_unit_test(fixture_llama_spm_q4_0),
        cmocka_unit_test(fixture_gemma3),
        cmocka_unit_test(fixture_phi3),
        cmocka_unit_test(stories_f32),
        cmocka_unit_test(stories_q8_0),
        cmocka_unit_test(a_character_comes_out_when_it_is_whole),
        cmocka_unit_test(a_character_may_span_kinds_of_tokens),
        cmocka_unit_test(an_open_character_ends_as_a_replacement),
        cmocka_unit_test(replacement_is_by_maximal_subparts),
        cmocka_unit_test(every_character_passes),
        cmocka_unit_test(one_leading_space_is_dropped),
        cmocka_unit_test(a_continuation_keeps_its_space),
        cmocka_unit_test(without_a_space_prefix_nothing_is_dropped),
        cmocka_unit_test(control_tokens_show_on_request),
        cmocka_unit_test(user_defined_tokens_are_literal),
        cmocka_unit_test(unused_tokens_are_text),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(round_trips_of_a_byte_vocabulary),
        cmocka_unit_test(round_trips_of_the_demo_model),
        cmocka_unit_test(round_trips_of_others_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
