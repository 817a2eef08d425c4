/* SPDX-License-Identifier: MIT
 *
 * Requests while the name of a host is looked up, which no library can stop: the request ends all the same. This
 * program has a getaddrinfo of its own, which libcurl then calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "http/client.h"

#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define PATIENCE_MS 30000u

static atomic_bool let_go, gave_up;
static atomic_int n_entered, n_left;

/* A name server that does not answer until the test lets it go. */
int getaddrinfo(const char *restrict name, const char *restrict service, const struct addrinfo *restrict req,
                struct addrinfo **restrict pai)
{
    const uint64_t deadline = clock_deadline_ms(PATIENCE_MS);
    (void)name, (void)service, (void)req, (void)pai;
    atomic_fetch_add(&n_entered, 1);
    while (!atomic_load(&let_go) && !atomic_load(&gave_up)) {
        if (clock_now_ns() > deadline)
            atomic_store(&gave_up, true);
        usleep(1000);
    }
    atomic_fetch_add(&n_left, 1);
    return EAI_AGAIN;
}

static int setup(void **state)
{
    (void)state;
    atomic_store(&let_go, false);
    atomic_store(&gave_up, false);
    atomic_store(&n_entered, 0);
    atomic_store(&n_left, 0);
    return 0;
}

/* Nobody waited for the name server. */
static int teardown(void **state)
{
    (void)state;
    const bool waited = atomic_load(&gave_up);
    const uint64_t deadline = clock_deadline_ms(PATIENCE_MS);
    atomic_store(&let_go, true);
    while (atomic_load(&n_left) < atomic_load(&n_entered) && clock_now_ns() < deadline)
        usleep(1000);
    return waited;
}

static bool once_it_looks(void *ctx)
{
    (void)ctx;
    return atomic_load(&n_entered) > 0;
}

static void test_stopped_while_the_name_is_looked_up(void **state)
{
    (void)state;
    const struct http_call call = {
        .url = "http://no-such-host.invalid/", .connect_ms = 60000, .cancelled = once_it_looks};
    unsigned status;
    struct err e;
    assert_int_equal(http_call(&call, &status, &e), ERR_CANCELLED);
    assert_false(atomic_load(&gave_up));
}

static void test_no_answer_in_time(void **state)
{
    (void)state;
    const struct http_call call = {.url = "http://no-such-host.invalid/", .connect_ms = 100};
    unsigned status;
    struct err e;
    assert_int_equal(http_call(&call, &status, &e), ERR_TIMEOUT);
    assert_false(atomic_load(&gave_up));
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stopped_while_the_name_is_looked_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_answer_in_time, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
