/* SPDX-License-Identifier: MIT
 *
 * Errors: codes, names, messages and what is put before and after them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <string.h>

static void setting_fills_everything(void **state)
{
    (void)state;
    struct err e;
    memset(&e, 0xff, sizeof e);
    assert_int_equal(err_set(&e, ERR_RANGE, "slot %u of %u", 4u, 4u), ERR_RANGE);
    assert_int_equal(e.code, ERR_RANGE);
    assert_int_equal(e.os, 0);
    assert_int_equal(e.offset, -1);
    assert_string_equal(e.msg, "slot 4 of 4");
}

static void nobody_has_to_listen(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, ERR_IO, "x"), ERR_IO);
    assert_int_equal(err_set_os(NULL, ERR_IO, EACCES, "x"), ERR_IO);
    assert_int_equal(err_set_at(NULL, ERR_FORMAT, 7, "x"), ERR_FORMAT);
    assert_int_equal(err_prefix(NULL, "x"), ERR_INTERNAL);
}

static void a_system_error_has_its_number_and_text(void **state)
{
    (void)state;
    struct err e;
    assert_int_equal(err_set_os(&e, ERR_IO, EACCES, "cannot open %s", "f"), ERR_IO);
    assert_int_equal(e.os, EACCES);
    assert_string_equal(e.msg, "cannot open f: Permission denied");
}

static void an_offset_is_kept_and_said(void **state)
{
    (void)state;
    struct err e;
    assert_int_equal(err_set_at(&e, ERR_FORMAT, (int64_t)1 << 40, "bad"), ERR_FORMAT);
    assert_int_equal(e.offset, (int64_t)1 << 40);
    assert_string_equal(e.msg, "bad (at byte 1099511627776)");
}

static void a_prefix_names_the_context_and_keeps_the_rest(void **state)
{
    (void)state;
    struct err e;
    (void)err_set_at(&e, ERR_FORMAT, 5, "bad");
    assert_int_equal(err_prefix(&e, "file %d", 1), ERR_FORMAT);
    assert_int_equal(err_prefix(&e, "model"), ERR_FORMAT);
    assert_string_equal(e.msg, "model: file 1: bad (at byte 5)");
    assert_int_equal(e.offset, 5);
}

static void long_messages_are_cut_not_overrun(void **state)
{
    (void)state;
    char text[2000];
    struct err e[2];
    memset(e, 0x55, sizeof e);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    (void)err_set(&e[0], ERR_IO, "%s", text);
    assert_int_equal(strlen(e[0].msg), sizeof e[0].msg - 1);
    (void)err_set_os(&e[0], ERR_IO, ENOENT, "%s", text);
    (void)err_set_at(&e[0], ERR_IO, 1, "%s", text);
    (void)err_prefix(&e[0], "%s", text);
    assert_int_equal(strlen(e[0].msg), sizeof e[0].msg - 1);
    assert_int_equal(((const unsigned char *)&e[1])[0], 0x55);
}

/* Names are long, and not all of ASCII: the reason stays in sight, and every character is whole. */
static void what_was_wrong_is_said_behind_a_long_name(void **state)
{
    (void)state;
    char name[900] = "/";
    struct err e;
    for (size_t n = 1; n < 800; n += 3)
        memcpy(name + n, "\xe9\xad\x94", 4);
    for (size_t cut = 0; cut < 6; cut++) { /* wherever the cut falls */
        const char *path = name + cut * 3 + (cut ? 1 : 0);
        (void)err_set(&e, ERR_IO, "%.*s%s", (int)cut, "xxxxxx", path);
        assert_true(text_printable(e.msg, strlen(e.msg)));
        assert_true(strlen(e.msg) >= sizeof e.msg - 4);
        (void)err_set_os(&e, ERR_IO, ENOENT, "%.*s%s", (int)cut, "xxxxxx", path);
        assert_true(text_printable(e.msg, strlen(e.msg)));
        assert_non_null(strstr(e.msg, "...: No such file or directory"));
        (void)err_set_at(&e, ERR_FORMAT, 17, "%.*s%s", (int)cut, "xxxxxx", path);
        assert_true(text_printable(e.msg, strlen(e.msg)));
        assert_non_null(strstr(e.msg, "... (at byte 17)"));
        (void)err_set(&e, ERR_FORMAT, "not a model");
        (void)err_prefix(&e, "%.*s%s", (int)cut, "xxxxxx", path);
        assert_true(text_printable(e.msg, strlen(e.msg)));
        assert_non_null(strstr(e.msg, "...: not a model"));
        (void)err_set(&e, ERR_FORMAT, "%.*s%s", (int)cut, "xxxxxx", path); /* both are long */
        (void)err_prefix(&e, "%s", path);
        assert_true(text_printable(e.msg, strlen(e.msg)));
        assert_non_null(strstr(e.msg, "...: "));
    }
}

static void what_just_fits_is_not_cut(void **state)
{
    (void)state;
    char text[sizeof((struct err *)0)->msg];
    struct err e;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    (void)err_set(&e, ERR_IO, "%s", text);
    assert_string_equal(e.msg, text);
    text[sizeof text - 1 - strlen(": bad")] = 0;
    (void)err_set(&e, ERR_IO, "bad");
    (void)err_prefix(&e, "%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_non_null(strstr(e.msg, "xxx: bad"));
    (void)err_set(&e, ERR_IO, "bad");
    (void)err_prefix(&e, "x%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_non_null(strstr(e.msg, "xxx...: bad"));
}

static void each_code_has_a_name_and_a_text(void **state)
{
    (void)state;
    int n = 0;
#define X(name, value, text)                                                                                           \
    assert_string_equal(err_name(name), #name);                                                                        \
    assert_string_equal(err_text(name), text);                                                                         \
    assert_true(err_known(value));                                                                                     \
    assert_int_equal(name, -n);                                                                                        \
    n++;
    ERR_CODES(X)
#undef X
    assert_int_equal(n, 20);
}

/* As a peer's number becomes one. */
static enum err_code as_code(int32_t v)
{
    enum err_code c;
    _Static_assert(sizeof c == sizeof v, "a code is 32 bits");
    memcpy(&c, &v, sizeof c);
    return c;
}

static void unknown_codes_are_known_as_such(void **state)
{
    (void)state;
    static const int32_t unknown[] = {1, -20, 1000, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_false(err_known(unknown[i]));
        assert_string_equal(err_name(as_code(unknown[i])), "ERR_UNKNOWN");
        assert_string_equal(err_text(as_code(unknown[i])), "unknown error");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(setting_fills_everything),
        cmocka_unit_test(nobody_has_to_listen),
        cmocka_unit_test(a_system_error_has_its_number_and_text),
        cmocka_unit_test(an_offset_is_kept_and_said),
        cmocka_unit_test(a_prefix_names_the_context_and_keeps_the_rest),
        cmocka_unit_test(long_messages_are_cut_not_overrun),
        cmocka_unit_test(what_was_wrong_is_said_behind_a_long_name),
        cmocka_unit_test(what_just_fits_is_not_cut),
        cmocka_unit_test(each_code_has_a_name_and_a_text),
        cmocka_unit_test(unknown_codes_are_known_as_such),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
