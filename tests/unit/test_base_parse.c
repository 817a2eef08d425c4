/* SPDX-License-Identifier: MIT
 *
 * Numbers from text: the whole text or an error that says what would be right.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/parse.h"

#include <string.h>

static void whole_numbers(void **state)
{
    (void)state;
    uint64_t u;
    uint32_t v;
    int64_t i;
    struct err e;
    assert_int_equal(parse_u64("n", "0", 0, UINT64_MAX, &u, &e), OK);
    assert_int_equal(u, 0);
    assert_int_equal(parse_u64("n", "18446744073709551615", 0, UINT64_MAX, &u, &e), OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(parse_u32("n", "4294967295", 0, UINT32_MAX, &v, &e), OK);
    assert_int_equal(v, UINT32_MAX);
    assert_int_equal(parse_i64("n", "-9223372036854775808", INT64_MIN, INT64_MAX, &i, &e), OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(parse_i64("n", "007", 0, 10, &i, &e), OK);
    assert_int_equal(i, 7);
}

static void what_is_no_whole_number_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",     " ",
                                      "x",    "-1",
                                      "+1",   " 1",
                                      "1 ",   "0x10",
                                      "1e3",  "1.0",
                                      "1,",   "١",
                                      "1\n",  "18446744073709551616",
                                      "--1",  "-",
                                      "1\t2", "0b",
                                      "nan",  "999999999999999999999999"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        uint64_t u = 99;
        int64_t i = 99;
        struct err e;
        if (parse_u64("--layers", bad[k], 0, UINT64_MAX, &u, &e) != ERR_ARG)
            fail_msg("'%s'", bad[k]);
        assert_int_equal(u, 99);
        assert_non_null(strstr(e.msg, "--layers"));
        assert_non_null(strstr(e.msg, "is not a whole number"));
        if (strcmp(bad[k], "-1") != 0) /* that one is a whole number, if not a count */
            assert_int_equal(parse_i64("n", bad[k], INT64_MIN, INT64_MAX, &i, &e), ERR_ARG);
        assert_int_equal(i, 99);
    }
}

static void numbers_out_of_range_name_the_range(void **state)
{
    (void)state;
    uint32_t v = 99;
    uint64_t u;
    int64_t i;
    struct err e;
    assert_int_equal(parse_u32("--stages", "0", 1, 64, &v, &e), ERR_ARG);
    assert_string_equal(e.msg, "--stages: 0 is not in 1..64");
    assert_int_equal(parse_u32("n", "65", 1, 64, &v, &e), ERR_ARG);
    assert_int_equal(parse_u32("n", "4294967297", 0, UINT32_MAX, &v, &e), ERR_ARG); /* not 1 */
    assert_int_equal(v, 99);
    assert_int_equal(parse_u64("n", "5", 6, 7, &u, &e), ERR_ARG);
    assert_int_equal(parse_i64("n", "-6", -5, 5, &i, &e), ERR_ARG);
    assert_int_equal(parse_u32("n", "64", 1, 64, &v, &e), OK);
}

static void numbers_with_a_point(void **state)
{
    (void)state;
    double d = 0;
    struct err e;
    static const struct {
        const char *text;
        double v;
    } good[] = {{"0", 0}, {"0.8", 0.8}, {"1e-3", 1e-3}, {"-2.5", -2.5}, {".5", .5}, {"1e300", 1e300}};
    static const char *const bad[] = {"",     " ",     "x",   "1.0x", " 1",  "1 ",  "nan", "inf",
                                      "-inf", "1e999", "1,5", "0x10", "\v1", "\r1", "1e",  "."};
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        assert_int_equal(parse_f64("t", good[k].text, -1e308, 1e308, &d, &e), OK);
        assert_true(d == good[k].v);
    }
    d = 99;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        if (parse_f64("t", bad[k], -1e308, 1e308, &d, &e) != ERR_ARG)
            fail_msg("'%s'", bad[k]);
    }
    assert_int_equal(parse_f64("--temp", "101", 0, 100, &d, &e), ERR_ARG);
    assert_string_equal(e.msg, "--temp: 101 is not in 0..100");
    assert_true(d == 99);
}

static void windows(void **state)
{
    (void)state;
    uint32_t a = 99, b = 99;
    struct err e;
    static const char *const bad[] = {
        "",     ":",    "3",    "3:",   ":3",   "3-5",  "3:3",        "5:3",   "a:b",     "3:5:",
        " 3:5", "3 :5", "3:5 ", "-1:5", "3::5", "+1:2", "1:99999999", "0x1:2", "3:5,6:7", "12345678901234567890:3"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        if (parse_window(bad[k], &a, &b, &e) != ERR_ARG)
            fail_msg("'%s'", bad[k]);
        assert_true(a == 99 && b == 99);
        assert_non_null(strstr(e.msg, "window"));
    }
    assert_int_equal(parse_window("0:8", &a, &b, &e), OK);
    assert_true(a == 0 && b == 8);
    assert_int_equal(parse_window("20:21", &a, &b, NULL), OK);
    assert_true(a == 20 && b == 21);
}

static void bytes_in_units(void **state)
{
    (void)state;
    char out[16];
    static const struct {
        uint64_t n;
        const char *text;
    } cases[] = {{0, "0B"},           {1023, "1023B"},        {1024, "1.0KiB"},       {1536, "1.5KiB"},
                 {1 << 20, "1.0MiB"}, {5368709120, "5.0GiB"}, {1ull << 40, "1.0TiB"}, {UINT64_MAX, "16777216.0TiB"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        assert_string_equal(parse_fmt_bytes(cases[k].n, out), cases[k].text);
}

static void numbers_of_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t n;
    } cases[] = {{"0", 0},        {"1536", 1536},     {"500k", 500 << 10},     {"20M", 20 << 20},
                 {"1G", 1 << 30}, {"3T", 3ull << 40}, {"4194304T", 1ull << 62}};
    static const char *const wrong[] = {"",
                                        "k",
                                        "1.5G",
                                        "-1",
                                        "1K",
                                        "10 M",
                                        "M1",
                                        "1MB",
                                        "4194305T",
                                        "9223372036854775807",
                                        "000000000000000000000000000000001"};
    uint64_t n = 7;
    struct err e;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        assert_int_equal(parse_bytes("--max", cases[k].text, &n, &e), OK);
        assert_int_equal(n, cases[k].n);
    }
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        n = 7;
        assert_int_equal(parse_bytes("--max", wrong[k], &n, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "--max: "));
        assert_int_equal(n, 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(what_is_no_whole_number_is_refused),
        cmocka_unit_test(numbers_out_of_range_name_the_range),
        cmocka_unit_test(numbers_with_a_point),
        cmocka_unit_test(windows),
        cmocka_unit_test(bytes_in_units),
        cmocka_unit_test(numbers_of_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
