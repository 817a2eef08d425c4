/* SPDX-License-Identifier: MIT
 *
 * The line that says how things stand, on a terminal of the test's own: it fits, and it goes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cli/progress.h"

#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct screen {
    int master, saved; /* saved: the real stderr */
};

static void screen_open(struct screen *s, unsigned short columns)
{
    int slave;
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    fflush(stderr);
    assert_int_equal(openpty(&s->master, &slave, NULL, NULL, &size), 0);
    s->saved = dup(STDERR_FILENO);
    assert_true(s->saved >= 0 && dup2(slave, STDERR_FILENO) >= 0);
    close(slave);
}

/* What came, and the real stderr back. */
static void screen_close(struct screen *s, char *out, size_t size)
{
    fputs("#", stderr); /* so that there is something to read */
    fflush(stderr);
    size_t n = 0;
    while (n + 1 < size && (n == 0 || out[n - 1] != '#')) {
        const ssize_t got = read(s->master, out + n, size - n - 1);
        assert_true(got > 0);
        n += (size_t)got;
    }
    out[n] = 0;
    dup2(s->saved, STDERR_FILENO);
    close(s->saved);
    close(s->master);
}

static void a_line_is_cut_to_the_terminal(void **state)
{
    (void)state;
    struct screen s;
    char got[256];
    screen_open(&s, 20);
    progress_line("%s", "0123456789012345678901234567890123456789");
    screen_close(&s, got, sizeof got);
    assert_string_equal(got, "\r\033[K0123456789012345678#");
}

static void a_line_that_fits_is_whole(void **state)
{
    (void)state;
    struct screen s;
    char got[256];
    screen_open(&s, 80);
    progress_line("%u of %u", 1, 2);
    progress_line("%u of %u", 2, 2);
    progress_clear();
    progress_clear(); /* once is enough */
    screen_close(&s, got, sizeof got);
    assert_string_equal(got, "\r\033[K1 of 2\r\033[K2 of 2\r\033[K#");
}

static void what_is_quick_shows_nothing(void **state)
{
    (void)state;
    struct screen s;
    struct progress p;
    char got[256];
    screen_open(&s, 80);
    progress_begin(&p, "reading");
    p.begin_ns = clock_deadline_ms(3600000); /* it has only begun, however slow this machine is */
    progress_show_rate(&p, 1024, 4096, 512, 3725);
    progress_end(&p);
    screen_close(&s, got, sizeof got);
    assert_string_equal(got, "#");
}

static void what_takes_long_says_how_far_it_is(void **state)
{
    (void)state;
    struct screen s;
    struct progress p;
    char got[256];
    screen_open(&s, 80);
    progress_begin(&p, "reading");
    p.begin_ns = 0; /* long ago */
    progress_show_rate(&p, 1024, 4096, 512, 3725);
    progress_end(&p);
    screen_close(&s, got, sizeof got);
    assert_string_equal(got, "\r\033[Kreading: 25 %, 1.0KiB of 4.0KiB, 512B/s, 1:02:05 left\r\033[K#");
}

static void without_a_terminal_there_is_no_line(void **state)
{
    (void)state;
    int ends[2] = {-1, -1};
    char got[8];
    fflush(stderr);
    const int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    progress_line("%s", "something");
    progress_clear();
    fputs("#", stderr);
    fflush(stderr);
    const ssize_t n = read(ends[0], got, sizeof got);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(n, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_cut_to_the_terminal),       cmocka_unit_test(a_line_that_fits_is_whole),
        cmocka_unit_test(what_is_quick_shows_nothing),         cmocka_unit_test(what_takes_long_says_how_far_it_is),
        cmocka_unit_test(without_a_terminal_there_is_no_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
