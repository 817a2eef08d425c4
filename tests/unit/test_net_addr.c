/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "net/addr.h"

#include <string.h>

static void test_good_texts_are_split(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        enum net_use use;
        uint16_t port;
    } rows[] = {
        {"127.0.0.1:7000", "127.0.0.1", NET_DIAL, 7000},
        {"node-7.example.org:1", "node-7.example.org", NET_DIAL, 1},
        {"[::1]:65535", "::1", NET_DIAL, 65535},
        {"[fe80::1%eth0]:80", "fe80::1%eth0", NET_DIAL, 80},
        {":0", "127.0.0.1", NET_LISTEN, 0},
        {":7000", "127.0.0.1", NET_LISTEN, 7000},
        {"0.0.0.0:7000", "0.0.0.0", NET_LISTEN, 7000},
        {"[::]:0", "::", NET_LISTEN, 0},
    };
    char host[NET_HOST_SIZE];
    uint16_t port;
    struct err e;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(net_addr_split(rows[i].text, rows[i].use, host, &port, &e), OK);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
    }
}

static void test_bad_texts_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",           "host",        "host:",      "host:x",   "host:70000", "host:-1", "host: 7", "::1:7000",
        "[::1]",      "[::1]7000",   "[::1:7000",  "[]:7000",  ":7000",      "host:0",  "a b:1",   "h\n:1",
        "http://h:1", "user@host:1", "host:7000/", "h/path:1", "host:+7",    "h:0x10",
    };
    char host[NET_HOST_SIZE];
    uint16_t port;
    struct err e;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(net_addr_split(texts[i], NET_DIAL, host, &port, &e), ERR_ARG);
        assert_true(strlen(e.msg) > 0);
    }
}

static void test_an_endless_host_is_refused(void **state)
{
    (void)state;
    char text[2000], host[NET_HOST_SIZE];
    uint16_t port;
    struct err e;
    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 6, ":7000", 6);
    assert_int_equal(net_addr_split(text, NET_DIAL, host, &port, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "at most 255"));
}

static void test_wildcards_are_not_dialed(void **state)
{
    (void)state;
    static const char *const texts[] = {"0.0.0.0:7000", "[::]:7000", "[::ffff:0.0.0.0]:7000", "0:7000"};
    struct net_addr a[NET_ADDR_MAX];
    size_t n;
    struct err e;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(net_addr_resolve(texts[i], NET_DIAL, clock_deadline_ms(1000), a, &n, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "not dialed"));
    }
    assert_int_equal(net_addr_resolve("0.0.0.0:7000", NET_LISTEN, clock_deadline_ms(1000), a, &n, &e), OK);
}

static void test_numeric_addresses_are_resolved_and_written(void **state)
{
    (void)state;
    struct net_addr a[NET_ADDR_MAX];
    char text[NET_ADDR_TEXT_SIZE];
    size_t n;
    struct err e;
    assert_int_equal(net_addr_resolve("127.1.2.3:80", NET_DIAL, clock_deadline_ms(1000), a, &n, &e), OK);
    assert_int_equal(n, 1);
    assert_string_equal(net_addr_text(&a[0], text), "127.1.2.3:80");
    assert_int_equal(net_addr_port(&a[0]), 80);
    assert_true(net_addr_is_loopback(&a[0]));
    assert_int_equal(net_addr_resolve("[2001:DB8::0:1]:443", NET_DIAL, clock_deadline_ms(1000), a, &n, &e), OK);
    assert_string_equal(net_addr_text(&a[0], text), "[2001:db8::1]:443");
    assert_false(net_addr_is_loopback(&a[0]));
    a[0].ss.ss_family = AF_UNSPEC;
    assert_string_equal(net_addr_text(&a[0], text), "?");
}

static void test_localhost_is_looked_up(void **state)
{
    (void)state;
    struct net_addr a[NET_ADDR_MAX];
    size_t n;
    struct err e;
    assert_int_equal(net_addr_resolve("localhost:80", NET_DIAL, clock_deadline_ms(5000), a, &n, &e), OK);
    assert_true(n >= 1 && n <= NET_ADDR_MAX);
    assert_true(net_addr_is_loopback(&a[0]));
}

static void test_a_passed_deadline_ends_a_look_up(void **state)
{
    (void)state;
    struct net_addr a[NET_ADDR_MAX];
    size_t n;
    struct err e;
    enum err_code rc = net_addr_resolve("name.invalid:80", NET_DIAL, clock_deadline_ms(0), a, &n, &e);
    assert_true(rc == ERR_TIMEOUT || rc == ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "name.invalid"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_texts_are_split),
        cmocka_unit_test(test_bad_texts_are_refused),
        cmocka_unit_test(test_an_endless_host_is_refused),
        cmocka_unit_test(test_wildcards_are_not_dialed),
        cmocka_unit_test(test_numeric_addresses_are_resolved_and_written),
        cmocka_unit_test(test_localhost_is_looked_up),
        cmocka_unit_test(test_a_passed_deadline_ends_a_look_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
