/* SPDX-License-Identifier: MIT
 *
 * Pre-tokenizers: where each kind cuts, that pieces are the text again, and that no text takes long.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/hash.h"
#include "lib/test_util.h"
#include "tok/pretok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct pretok *make(const char *name)
{
    struct pretok *p = NULL;
    struct err e;
    if (pretok_new(name, &p, &e) != OK)
        fail_msg("%s", e.msg);
    return p;
}

/* want: the text with U+00A6 between the pieces. */
static void check(const char *name, const char *want)
{
    static const char bar[] = "\xc2\xa6";
    struct pretok *p = make(name);
    struct pretok_scratch s = {0};
    struct buf text = {0}, got = {0};
    struct err e = {0};
    for (const char *at = want, *next; *at; at = next) {
        const char *end = strstr(at, bar);
        next = end ? end + 2 : at + strlen(at);
        buf_put(&text, at, (size_t)((end ? end : next) - at));
    }
    if (pretok_split(p, text.data, (uint32_t)text.len, &s, &e) != OK)
        fail_msg("%s", e.msg);
    for (size_t i = 0, start = 0; i < s.now.n; start = s.now.end[i++]) {
        buf_puts(&got, i ? bar : "");
        buf_put(&got, text.data + start, s.now.end[i] - start);
    }
    if (strcmp(buf_str(&got), want) != 0)
        fail_msg("%s: got \"%s\", want \"%s\"", name, buf_str(&got), want);
    buf_free(&text);
    buf_free(&got);
    pretok_scratch_free(&s);
    pretok_free(p);
}

/* --- where each kind cuts --- */

static void default_cuts_at_punctuation_first(void **state)
{
    (void)state;
    check("default", "Hello¦,¦ World¦!¦ ¦123¦45¦ it¦'¦s");
}

static void gpt_2_knows_suffixes_in_lower_case(void **state)
{
    (void)state;
    check("gpt-2", "Hello¦,¦ it¦'s¦ ¦ 12345¦\n\n¦ x");
    check("gpt-2", "IT¦'¦S¦ (¦a¦)");
    check("mpt", "  ¦ a¦\t¦b¦  ");
}

static void llama_3_takes_three_digits(void **state)
{
    (void)state;
    check("llama-bpe", "HE¦'S¦ ¦123¦45¦ ¦ a¦\r\n¦ b");
    check("llama-bpe", "(foo¦ !!!\n\n¦x¦  \n¦ y");
    check("smaug-bpe", "12¦ab");
    check("glm4", "123¦4");
}

static void qwen_2_takes_single_digits(void **state)
{
    (void)state;
    check("qwen2", "a¦1¦2¦'Ll¦ b");
    check("deepseek-r1-qwen", "1¦2");
}

static void qwen_35_keeps_marks_with_letters(void **state)
{
    (void)state;
    check("qwen2", "e¦\xcc\x81x");
    check("qwen35", "e\xcc\x81x¦1¦ !");
}

static void gpt_4o_cuts_between_cases(void **state)
{
    (void)state;
    check("gpt-4o", "Hello¦WORLDfoo's¦ isn't¦123¦45¦/\n");
    check("gpt-4o", "é¦Éa中文¦A");
    check("llama4", "ab¦Cd");
}

static void tekken_has_no_suffixes(void **state)
{
    (void)state;
    check("tekken", "isn¦'t¦1¦2¦Ab¦CD");
}

static void starcoder_takes_digits_out_first(void **state)
{
    (void)state;
    check("starcoder", "a¦1¦ ¦2¦2¦b¦'s");
    check("smollm", "x¦ ¦1");
}

static void falcon_takes_ticks_and_threes(void **state)
{
    (void)state;
    check("falcon", "a¦`¦b¦ ¦123¦4");
}

static void deepseek_coder(void **state)
{
    (void)state;
    check("deepseek-coder", "\r¦\n¦ ab¦,¦ c¦中文¦1¦2");
}

static void deepseek_llm(void **state)
{
    (void)state;
    check("deepseek-llm", "Ab¦,¦ ¦中¦12¦  ");
    check("deepseek-llm", "Ёж¦。¦   ¦ ж¦\n¦  ");
}

static void deepseek_v3(void **state)
{
    (void)state;
    check("deepseek-v3", "123¦4¦ .¦foo¦,¦ ¦中かな¦ x¦\n\n");
    check("deepseek-v3", "x¦.foo¦ \xe2\x82\xac\n");
}

static void others(void **state)
{
    (void)state;
    check("youtu", "한글¦中¦，¦a¦1¦2¦Bc");
    check("bloom", "Hi¦ there¦,¦ you");
    check("viking", "ab¦1¦2¦ c");
    check("bailingmoe", "it¦'LL¦\n\n¦x");
    check("seed-coder", "!¦\n¦x¦1¦2");
    check("qwen2", "it¦'s¦x¦!\n");
    check("ufakzeka", "it¦'sx¦!\n");
    check("laguna", "!¦\n\n¦ b");
}

/* U+0085 is white space, U+180E is none. */
static void white_space_is_unicodes(void **state)
{
    (void)state;
    check("qwen2", "!¦\xc2\x85¦!");
    check("qwen2", "!\xe1\xa0\x8e!");
    check("gpt-2", "a¦\xe3\x80\x80¦b");
}

/* --- what names say --- */

static void traits_follow_the_name(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct pretok_traits traits;
    } want[] = {
        {"llama-bpe", {true, true, false}},     {"tekken", {true, true, false}},
        {"youtu", {true, false, false}},        {"glm4", {false, false, true}},
        {"chatglm-bpe", {false, false, true}},  {"qwen2", {false, false, false}},
        {"smaug-bpe", {false, false, false}},   {"gpt-4o", {false, false, false}},
        {"deepseek-v3", {false, false, false}},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct pretok *p = make(want[i].name);
        struct pretok_traits t = pretok_traits(p);
        assert_int_equal(t.whole_pieces, want[i].traits.whole_pieces);
        assert_int_equal(t.adds_bos, want[i].traits.adds_bos);
        assert_int_equal(t.no_default_bos, want[i].traits.no_default_bos);
        pretok_free(p);
    }
}

static void unknown_names_are_named(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",
        " ",
        "qwen",
        "qwen2 ",
        "gpt-2 phi-2",
        "x\n\x1b[0m",
        "a-long-name-a-long-name-a-long-name-a-long-name-a-long-name-a-long-name-a-long-name"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pretok *p = NULL;
        struct err e;
        assert_int_equal(pretok_new(names[i], &p, &e), ERR_UNSUPPORTED);
        assert_null(p);
        assert_non_null(strstr(e.msg, "laguna")); /* the list is whole */
        assert_null(strchr(e.msg, '\n'));
    }
}

/* Calls f for each name of each kind. */
static void for_all_names(void (*f)(const char *name))
{
    const char *names;
    for (size_t kind = 0; (names = pretok_names(kind)); kind++) {
        char *copy = strdup(names), *save;
        for (char *name = strtok_r(copy, " ", &save); name; name = strtok_r(NULL, " ", &save))
            f(name);
        free(copy);
    }
}

static size_t n_same;
static const char *searched;

static void count_same(const char *name)
{
    n_same += strcmp(name, searched) == 0;
}

static void is_there_once(const char *name)
{
    searched = name;
    n_same = 0;
    for_all_names(count_same);
    if (n_same != 1)
        fail_msg("%s stands in the table %zu times", name, n_same);
}

static void each_name_is_of_one_kind(void **state)
{
    (void)state;
    for_all_names(is_there_once);
}

/* --- any text --- */

static void partitions_random_texts(const char *name)
{
    /* Characters separated by NULs are easier to read than an array of strings, one a line. */
    static const char bits[] =
        "a\0B\0ß\0É\0中\0か\0한\0001\0२\0 \0 \0\n\0\r\0\t\0'\0s\0LL\0.\0,\0!\0€\0`\0~\0^\0_\0，\0/\0"
        "\xcc\x81\0\xc2\x85\0\xe3\x80\x80\0\xf0\x9f\x98\x80\0\x01";
    const char *bit[64];
    unsigned n_bits = 0;
    for (size_t i = 0; i < sizeof bits; i += strlen(bits + i) + 1)
        bit[n_bits++] = bits + i;
    struct pretok *p = make(name);
    struct pretok_scratch s = {0};
    struct err e;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct buf text = {0};
        size_t n = (size_t)(hash_uniform(seed, 99) * 40);
        for (size_t i = 0; i < n; i++)
            buf_puts(&text, bit[(size_t)(hash_uniform(seed, i) * n_bits)]);
        assert_int_equal(pretok_split(p, text.data, (uint32_t)text.len, &s, &e), OK);
        uint32_t last = 0;
        for (size_t i = 0; i < s.now.n; i++) {
            assert_true(s.now.end[i] > last);
            last = s.now.end[i];
            assert_true((buf_str(&text)[last] & 0xc0) != 0x80); /* the end of the text is a NUL */
        }
        assert_int_equal(last, text.len);
        buf_free(&text);
    }
    pretok_scratch_free(&s);
    pretok_free(p);
}

static void pieces_are_the_text(void **state)
{
    (void)state;
    for_all_names(partitions_random_texts);
}

/* Quadratic work on these texts would take minutes each. */
static void takes_its_share_of_time(const char *name)
{
    static const char *const unit[] = {" ", "\n", "a", "A", "\xcc\x81", "中", "1", "!", "'", "aB", " \n", "'s", " x"};
    size_t n = test_sanitized() ? 1 << 15 : 1 << 19;
    uint8_t *text = malloc(n + 4);
    struct pretok *p = make(name);
    struct pretok_scratch s = {0};
    struct err e = {0};
    for (size_t kind = 0; kind < 2 * sizeof unit / sizeof *unit; kind++) {
        const char *u = unit[kind / 2];
        size_t len = 0;
        for (; len < n || len % strlen(u); len++)
            text[len] = (uint8_t)u[len % strlen(u)];
        if (kind % 2)
            text[len++] = 'x';
        if (pretok_split(p, text, (uint32_t)len, &s, &e) != OK)
            fail_msg("%s: %s", name, e.msg);
    }
    pretok_scratch_free(&s);
    pretok_free(p);
    free(text);
}

static void long_texts_are_not_quadratic(void **state)
{
    (void)state;
    uint64_t deadline = clock_deadline_ms(60000);
    const char *names;
    for (size_t kind = 0; (names = pretok_names(kind)); kind++) {
        char first[64];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(names, " "), names);
        takes_its_share_of_time(first);
    }
    assert_true(clock_left_ms(deadline) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_cuts_at_punctuation_first),
        cmocka_unit_test(gpt_2_knows_suffixes_in_lower_case),
        cmocka_unit_test(llama_3_takes_three_digits),
        cmocka_unit_test(qwen_2_takes_single_digits),
        cmocka_unit_test(qwen_35_keeps_marks_with_letters),
        cmocka_unit_test(gpt_4o_cuts_between_cases),
        cmocka_unit_test(tekken_has_no_suffixes),
        cmocka_unit_test(starcoder_takes_digits_out_first),
        cmocka_unit_test(falcon_takes_ticks_and_threes),
        cmocka_unit_test(deepseek_coder),
        cmocka_unit_test(deepseek_llm),
        cmocka_unit_test(deepseek_v3),
        cmocka_unit_test(others),
        cmocka_unit_test(white_space_is_unicodes),
        cmocka_unit_test(traits_follow_the_name),
        cmocka_unit_test(unknown_names_are_named),
        cmocka_unit_test(each_name_is_of_one_kind),
        cmocka_unit_test(pieces_are_the_text),
        cmocka_unit_test(long_texts_are_not_quadratic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
