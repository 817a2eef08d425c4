/* SPDX-License-Identifier: MIT
 *
 * By which names an origin on a loopback address may be asked: a page whose name was made to lead here reads nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/test_util.h"
#include "lib/web.h"
#include "shard/origin.h"

#include <stdio.h>
#include <string.h>

static unsigned asked_as(const struct origin *o, const char *path, const char *host, bool *says)
{
    struct web w;
    char text[300];
    const int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host);
    assert_true(web_raw(&w, origin_port(o), text, (size_t)n));
    const unsigned status = (unsigned)w.status;
    *says = strstr(web_body(&w), "--allow-host") != NULL;
    web_free(&w);
    return status;
}

static struct origin *start(const char *addr, const char *allow)
{
    struct origin *o;
    struct err e;
    char dir[PATH_MAX];
    const struct origin_config c = {.dir = test_data(".", dir), .addr = addr, .allow_host = allow};
    if (origin_start(&c, &o, &e) != OK)
        fail_msg("%s", e.msg);
    return o;
}

static void test_strange_names_read_nothing(void **state)
{
    static const char *const good[] = {"localhost", "localhost:8070", "127.0.0.1:1",
                                       "[::1]:5",   "models.lan",     "192.168.1.7"};
    static const char *const bad[] = {"evil.example", "evil.example:8070", "localhost.evil.example", "models.lan.evil"};
    static const char *const paths[] = {"/models", "/models/llama-tied-f32.gguf", "/health", "/nothing"};
    bool says;
    (void)state;
    struct origin *o = start("127.0.0.1:0", "models.lan");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(asked_as(o, "/models", good[i], &says), 200);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
            assert_int_equal(asked_as(o, paths[k], bad[i], &says), 403);
            assert_true(says);
        }
    }
    origin_stop(o);
}

static void test_any_name_where_others_may_ask(void **state)
{
    bool says;
    (void)state;
    struct origin *o = start("0.0.0.0:0", NULL);
    assert_int_equal(asked_as(o, "/models", "models.lan", &says), 200);
    origin_stop(o);
    o = start("127.0.0.1:0", "*");
    assert_int_equal(asked_as(o, "/models", "evil.example", &says), 200);
    origin_stop(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strange_names_read_nothing),
        cmocka_unit_test(test_any_name_where_others_may_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
