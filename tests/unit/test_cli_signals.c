/* SPDX-License-Identifier: MIT
 *
 * Told to stop: a signal is seen by whoever asks, and what reads a whole model asks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "cli/rank.h"
#include "cli/signals.h"
#include "lib/maker.h"
#include "lib/test_util.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct signals_stop stop = {.signal_fd = -1};

static int begin(void **state)
{
    (void)state;
    atomic_store(&stop.signal, 0);
    return signals_open(&stop.signal_fd, NULL) == OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    return close(stop.signal_fd);
}

static void a_signal_is_remembered(void **state)
{
    (void)state;
    assert_false(signals_stopped(&stop));
    raise(SIGTERM);
    assert_true(signals_stopped(&stop));
    assert_true(signals_stopped(&stop));
    assert_int_equal(atomic_load(&stop.signal), SIGTERM);
}

static void reading_a_model_for_its_id_can_be_stopped(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct err e;
    struct gguf *g;
    char home[PATH_MAX], path[PATH_MAX];
    uint8_t id[DIGEST_BYTES];
    setenv("KVASIR_HOME", test_scratch("signals", home), 1); /* nothing is known of it there */
    assert_int_equal(maker_write(test_scratch("signals.gguf", path), &p, &e), OK);
    assert_int_equal(gguf_open(path, &g, &e), OK);
    raise(SIGINT);
    assert_int_equal(rank_model_id(g, &stop, id, &e), ERR_CANCELLED);
    assert_int_equal(atomic_load(&stop.signal), SIGINT);
    assert_int_equal(rank_model_id(g, NULL, id, &e), OK);
    gguf_close(g);
    unlink(path);
    test_remove_tree(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_signal_is_remembered, begin, end),
        cmocka_unit_test_setup_teardown(reading_a_model_for_its_id_can_be_stopped, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
