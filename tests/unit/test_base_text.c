/* SPDX-License-Identifier: MIT
 *
 * UTF-8 against an independent encoder, cleaning, JSON strings.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/text.h"

#include <string.h>

static size_t encode(uint32_t r, uint8_t out[4])
{
    if (r < 0x80) {
        out[0] = (uint8_t)r;
        return 1;
    }
    if (r < 0x800) {
        out[0] = (uint8_t)(0xc0 | r >> 6);
        out[1] = (uint8_t)(0x80 | (r & 0x3f));
        return 2;
    }
    if (r < 0x10000) {
        out[0] = (uint8_t)(0xe0 | r >> 12);
        out[1] = (uint8_t)(0x80 | (r >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (r & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | r >> 18);
    out[1] = (uint8_t)(0x80 | (r >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (r >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (r & 0x3f));
    return 4;
}

static void every_character_is_read(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < 0x110000; r++) {
        uint8_t b[4];
        uint32_t got = UINT32_MAX;
        size_t n = encode(r, b);
        bool surrogate = r >= 0xd800 && r < 0xe000;
        if (text_utf8(b, n, &got) != (surrogate ? 0 : n) || (!surrogate && got != r))
            fail_msg("U+%04X", (unsigned)r);
        if (n > 1 && text_utf8(b, n - 1, &got) != 0)
            fail_msg("U+%04X cut", (unsigned)r);
    }
}

static void other_bytes_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\x80",         "\xbf",         "\xc0\x80",         "\xc1\xbf",         "\xc2\x41",         "\xc2\xc2",
        "\xe0\x9f\xbf", "\xe2\x28\xa1", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
        "\xfe\xfe",     "\xe2\x82",     "\xf0\x9f\x98",
    };
    uint32_t rune;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(text_utf8(bad[i], strlen(bad[i]), &rune), 0);
        assert_false(text_valid(bad[i], strlen(bad[i])));
    }
    assert_int_equal(text_utf8("a", 0, &rune), 0);
}

static void control_characters_are_not_printable(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < 0x200; r++) {
        uint8_t b[4];
        size_t n = encode(r, b);
        assert_true(text_valid(b, n));
        assert_int_equal(text_printable(b, n), r >= 0x20 && (r < 0x7f || r >= 0xa0));
    }
    assert_true(text_printable("", 0));
    assert_false(text_printable("a\xff", 2));
}

static void cleaning_never_cuts_a_character(void **state)
{
    (void)state;
    char out[16];
    const char s[] = "a\xc3\xa4\xe2\x82\xac\n\xff";
    assert_string_equal(text_clean(s, sizeof s - 1, out, sizeof out), "a\xc3\xa4\xe2\x82\xac??");
    assert_string_equal(text_clean(s, sizeof s - 1, out, 9), "a\xc3\xa4\xe2\x82\xac??");
    assert_string_equal(text_clean(s, sizeof s - 1, out, 8), "a\xc3\xa4\xe2\x82\xac?");
    assert_string_equal(text_clean(s, sizeof s - 1, out, 6), "a\xc3\xa4");
    assert_string_equal(text_clean(s, sizeof s - 1, out, 3), "a");
    assert_string_equal(text_clean(s, sizeof s - 1, out, 1), "");
    assert_string_equal(text_clean("", 0, out, 1), "");
}

static void json_escapes_only_what_must_be(void **state)
{
    (void)state;
    static const char s[] = "\"\\/\b\t\n\f\r\x01\x1f\x7f\xc3\xa9\0z";
    struct buf out = {0};
    text_put_json(&out, s, sizeof s - 1);
    assert_string_equal(buf_str(&out), "\"\\\"\\\\/\\b\\t\\n\\f\\r\\u0001\\u001f\x7f\xc3\xa9\\u0000z\"");
    buf_free(&out);
}

static void names_as_parts_of_a_url(void **state)
{
    (void)state;
    struct buf out = {0};
    text_put_url(&out, "aZ09-._~");
    assert_string_equal(buf_str(&out), "aZ09-._~");
    buf_clear(&out);
    text_put_url(&out, "a b/c?d#e%\xc3\xa9\x7f&");
    assert_string_equal(buf_str(&out), "a%20b%2Fc%3Fd%23e%25%C3%A9%7F%26");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_is_read),
        cmocka_unit_test(other_bytes_are_refused),
        cmocka_unit_test(control_characters_are_not_printable),
        cmocka_unit_test(cleaning_never_cuts_a_character),
        cmocka_unit_test(json_escapes_only_what_must_be),
        cmocka_unit_test(names_as_parts_of_a_url),
    };
    return cmocka_run_group_tests_name("base_text", tests, NULL, NULL);
}
