/* SPDX-License-Identifier: MIT
 *
 * Log lines: levels, the tag, one line per event whatever is in it, the rate limit; and the clock they are stamped by.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "lib/test_util.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- catching stderr
 * ---------------------------------------------------------------------------------------------------- */

static int saved = -1;
static char path[PATH_MAX];

static void catch_begin(void)
{
    test_scratch("log", path);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    saved = dup(STDERR_FILENO);
    if (fd < 0 || saved < 0) {
        fail();
        return;
    }
    dup2(fd, STDERR_FILENO);
    close(fd);
}

/* What was written since catch_begin. */
static void catch_end(struct buf *out)
{
    if (saved >= 0) {
        dup2(saved, STDERR_FILENO);
        close(saved);
    }
    assert_int_equal(io_read_file(path, 1u << 20, out, NULL), OK);
    unlink(path);
}

static void expect_text(struct buf *b, const char *text)
{
    if (!strstr(buf_str(b), text))
        fail_msg("'%s' is not in: %s", text, buf_str(b));
}

static size_t lines(struct buf *b)
{
    size_t n = 0;
    for (const char *p = buf_str(b); *p; p++)
        n += *p == '\n';
    return n;
}

/* --- lines
 * --------------------------------------------------------------------------------------------------------------- */

static void a_line_has_time_level_and_module(void **state)
{
    (void)state;
    struct buf b = {0};
    log_set_level(LOG_INFO);
    catch_begin();
    log_info("stage", "window=[%d,%d)", 2, 5);
    catch_end(&b);
    const char *s = buf_str(&b);
    static const char shape[] = "dddd-dd-ddTdd:dd:dd.dddZ info [stage] window=[2,5)\n";
    assert_int_equal(strlen(s), sizeof shape - 1);
    for (size_t i = 0; i < 24; i++)
        assert_true(shape[i] == 'd' ? isdigit((unsigned char)s[i]) : shape[i] == s[i]);
    assert_string_equal(s + 24, shape + 24);
    buf_free(&b);
}

static void levels_hide_what_is_below_them(void **state)
{
    (void)state;
    for (int level = 0; level < LOG_LEVEL_COUNT; level++) {
        struct buf b = {0};
        log_set_level((enum log_level)level);
        catch_begin();
        log_error("t", "one");
        log_warn("t", "two");
        log_info("t", "three");
        log_debug("t", "four");
        catch_end(&b);
        assert_int_equal(lines(&b), (size_t)level + 1);
        for (int k = 0; k < LOG_LEVEL_COUNT; k++)
            assert_int_equal(log_enabled((enum log_level)k), k <= level);
        buf_free(&b);
    }
}

static void level_names_are_parsed(void **state)
{
    (void)state;
    enum log_level l = LOG_ERROR;
    struct err e;
    assert_int_equal(log_parse_level("debug", &l, &e), OK);
    assert_int_equal(l, LOG_DEBUG);
    static const char *const bad[] = {"", "Debug", "debugg", "3", "trace"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(log_parse_level(bad[i], &l, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "error warn info debug"));
    assert_int_equal(l, LOG_DEBUG);
}

static void control_characters_become_spaces(void **state)
{
    (void)state;
    struct buf b = {0};
    log_set_level(LOG_WARN);
    catch_begin();
    log_warn("ring", "peer says '%s'",
             "a\nb\r\x1b[31mc\td\x7f"
             "e");
    catch_end(&b);
    assert_int_equal(lines(&b), 1);
    expect_text(&b, "peer says 'a b  [31mc d e'\n");
    buf_free(&b);
}

static void long_lines_are_cut_and_end(void **state)
{
    (void)state;
    struct buf b = {0};
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    log_set_level(LOG_WARN);
    catch_begin();
    log_warn("t", "%s", text);
    log_warn("t", "next");
    catch_end(&b);
    assert_int_equal(lines(&b), 2);
    assert_true(b.len < 2100);
    expect_text(&b, "xxx\n");
    expect_text(&b, "] next\n");
    buf_free(&b);
}

static void the_tag_is_before_every_line(void **state)
{
    (void)state;
    struct buf b = {0};
    log_set_level(LOG_WARN);
    log_set_tag("rank 2, and far too long a name to be kept whole");
    catch_begin();
    log_warn("t", "hello");
    log_set_tag("");
    log_warn("t", "again");
    catch_end(&b);
    expect_text(&b, "Z rank 2, and far too long a name warn [t] hello"); /* its first 31 bytes */
    expect_text(&b, "Z warn [t] again");
    buf_free(&b);
}

/* --- the rate limit
 * -------------------------------------------------------------------------------------------------------- */

/* Waits until a second of the clock has just begun, so that what follows is within one. */
static void at_a_new_second(void)
{
    uint64_t second = clock_now_ns() / CLOCK_NS_PER_S;
    while (clock_now_ns() / CLOCK_NS_PER_S == second)
        usleep(1000);
}

static void the_limit_lets_a_burst_pass_and_counts_the_rest(void **state)
{
    (void)state;
    struct log_limit l = {0};
    uint32_t dropped = 77, passed = 0;
    at_a_new_second();
    uint64_t second = clock_now_ns() / CLOCK_NS_PER_S;
    for (int i = 0; i < 1000; i++)
        passed += log_limit_pass(&l, 5, i % 2 ? "one" : "two", &dropped);
    if (clock_now_ns() / CLOCK_NS_PER_S != second)
        skip(); /* a machine this slow */
    assert_int_equal(passed, 5);
    assert_int_equal(dropped, 0);
    at_a_new_second();
    assert_true(log_limit_pass(&l, 5, "one", &dropped));
    assert_int_equal(dropped, 995);
    assert_true(log_limit_pass(&l, 5, "two", &dropped));
    assert_int_equal(dropped, 0);
}

static void what_was_said_is_not_said_again(void **state)
{
    (void)state;
    struct log_limit l = {0};
    uint32_t dropped;
    assert_true(log_limit_pass(&l, 100, "refused", &dropped));
    for (int i = 0; i < 3; i++)
        assert_false(log_limit_pass(&l, 100, "refused", &dropped));
    assert_true(log_limit_pass(&l, 100, "another reason", &dropped));
    assert_int_equal(dropped, 3);
    assert_true(log_limit_pass(&l, 100, "refused", &dropped));
}

static void places_are_limited_apart(void **state)
{
    (void)state;
    struct log_limit a = {0}, b = {0};
    uint32_t dropped;
    assert_true(log_limit_pass(&a, 1, "", &dropped));
    assert_true(log_limit_pass(&b, 1, "", &dropped));
    assert_false(log_limit_pass(&a, 0, "other", &dropped));
}

/* --- the clock
 * --------------------------------------------------------------------------------------------------------------- */

static void the_clock_goes_forward(void **state)
{
    (void)state;
    uint64_t last = clock_now_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_now_ns();
        assert_true(now >= last);
        last = now;
    }
    usleep(2000);
    assert_true(clock_now_ns() - last >= 2 * CLOCK_NS_PER_MS);
}

static void what_is_left_is_rounded_up_and_never_negative(void **state)
{
    (void)state;
    assert_int_equal(clock_left_ms(0), 0);
    assert_int_equal(clock_left_ms(clock_now_ns() - 1), 0);
    assert_int_equal(clock_left_ms(UINT64_MAX), INT_MAX);
    uint64_t d = clock_deadline_ms(60000);
    int left = clock_left_ms(d);
    assert_true(left > 50000 && left <= 60000);
    assert_int_equal(clock_left_ms(clock_now_ns() + 30 * CLOCK_NS_PER_S) > 0, 1);
    assert_true(clock_left_ms(clock_deadline_ms(UINT32_MAX)) == INT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_and_module),
        cmocka_unit_test(levels_hide_what_is_below_them),
        cmocka_unit_test(level_names_are_parsed),
        cmocka_unit_test(control_characters_become_spaces),
        cmocka_unit_test(long_lines_are_cut_and_end),
        cmocka_unit_test(the_tag_is_before_every_line),
        cmocka_unit_test(the_limit_lets_a_burst_pass_and_counts_the_rest),
        cmocka_unit_test(what_was_said_is_not_said_again),
        cmocka_unit_test(places_are_limited_apart),
        cmocka_unit_test(the_clock_goes_forward),
        cmocka_unit_test(what_is_left_is_rounded_up_and_never_negative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
