/* SPDX-License-Identifier: MIT
 *
 * The HTTP client against our server and against sockets that misbehave: what it sends, how its errors read, and that a
 * token is in none of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/thread.h"
#include "http/client.h"
#include "http/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TOKEN "sk-secret-1234"

/* A TCP socket on a free port of this machine; nobody listens on it yet. */
static int free_port(uint16_t *port)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0) {
        fail_msg("no socket");
        return fd;
    }
    *port = ntohs(at.sin_port);
    return fd;
}

/* --- the server: /echo says what came, /stream goes on until the client has enough, /never says nothing --- */

struct app {
    struct http_server *server;
    struct http_request *stream;
    atomic_uint n_gone, n_stream;
};

static void on_request(void *ctx, struct http_request *r)
{
    struct app *a = ctx;
    const struct http_reply ok = {.status = 200}, teapot = {.status = 418};
    if (!strcmp(http_path(r), "/echo")) {
        size_t len;
        const char *body = http_body(r, &len), *auth = http_header(r, "authorization"),
                   *type = http_header(r, "content-type");
        char text[500];
        const int n = snprintf(text, sizeof text, "%s|%s|%s|%.*s", http_method(r), auth ? auth : "-", type ? type : "-",
                               (int)len, body);
        http_respond(r, &ok, text, (size_t)n);
    } else if (!strcmp(http_path(r), "/stream")) {
        a->stream = r;
        http_begin(r, &ok);
    } else if (!strcmp(http_path(r), "/teapot")) {
        http_respond(r, &teapot, "short and stout", 15);
    }
}

static void on_gone(void *ctx, struct http_request *r, bool done)
{
    struct app *a = ctx;
    (void)done;
    if (a->stream == r)
        a->stream = NULL;
    atomic_fetch_add(&a->n_gone, 1);
}

static void on_wake(void *ctx)
{
    struct app *a = ctx;
    if (a->stream) {
        http_write(a->stream, "tick ", 5);
        atomic_fetch_add(&a->n_stream, 1);
    }
}

static void start(struct app *a)
{
    *a = (struct app){0};
    const struct http_config config = {
        .addr = "127.0.0.1:0", .ctx = a, .on_request = on_request, .on_gone = on_gone, .on_wake = on_wake};
    struct err e;
    assert_int_equal(http_start(&config, &a->server, &e), OK);
}

static const char *url_of(const struct app *a, const char *path)
{
    static char url[100];
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", http_port(a->server), path);
    return url;
}

static bool collect(void *ctx, const void *data, size_t len)
{
    buf_put(ctx, data, len);
    return true;
}

static void check_echo(const struct app *a, struct http_call call, const char *want)
{
    struct buf got = {0};
    struct err e;
    unsigned status = 0;
    call.url = url_of(a, "/echo");
    call.ctx = &got;
    call.on_data = collect;
    if (http_call(&call, &status, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(status, 200);
    assert_string_equal(buf_str(&got), want);
    buf_free(&got);
}

static void test_what_is_sent(void **state)
{
    (void)state;
    static struct app a;
    start(&a);
    check_echo(&a, (struct http_call){0}, "GET|-|-|");
    check_echo(&a, (struct http_call){.bearer = TOKEN}, "GET|Bearer " TOKEN "|-|");
    check_echo(&a, (struct http_call){.body = "{}", .body_len = 2, .type = "application/json"},
               "POST|-|application/json|{}");
    check_echo(&a, (struct http_call){.method = "DELETE"}, "DELETE|-|-|");
    http_stop(a.server);
}

static void test_any_status_is_an_answer(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    struct err e;
    unsigned status = 0;
    start(&a);
    const struct http_call call = {.url = url_of(&a, "/teapot"), .ctx = &got, .on_data = collect};
    assert_int_equal(http_call(&call, &status, &e), OK);
    assert_int_equal(status, 418);
    assert_string_equal(buf_str(&got), "short and stout");
    buf_free(&got);
    http_stop(a.server);
}

/* Enough after three parts. */
static bool three_parts(void *ctx, const void *data, size_t len)
{
    (void)data;
    *(size_t *)ctx += len;
    return *(size_t *)ctx < 15;
}

static void test_stopping_in_the_middle(void **state)
{
    (void)state;
    static struct app a;
    size_t got = 0;
    struct err e;
    unsigned status = 0;
    start(&a);
    const struct http_call call = {.url = url_of(&a, "/stream"), .ctx = &got, .on_data = three_parts};
    assert_int_equal(http_call(&call, &status, &e), ERR_CANCELLED);
    assert_int_equal(status, 0);
    const uint64_t deadline = clock_deadline_ms(5000);
    while (atomic_load(&a.n_gone) == 0 && clock_now_ns() < deadline)
        usleep(1000);
    http_stop(a.server);
    assert_int_equal(a.n_gone, 1); /* the server has noticed by itself */
}

static bool at_third(void *ctx)
{
    return ++*(unsigned *)ctx >= 3;
}

static void test_cancelling_while_nothing_comes(void **state)
{
    (void)state;
    static struct app a;
    unsigned asked = 0, status;
    struct err e;
    start(&a);
    const struct http_call call = {.url = url_of(&a, "/never"), .ctx = &asked, .cancelled = at_third};
    const uint64_t begin = clock_now_ns();
    assert_int_equal(http_call(&call, &status, &e), ERR_CANCELLED);
    assert_true(clock_now_ns() - begin < 30 * CLOCK_NS_PER_S); /* not the idle time */
    http_stop(a.server);
}

static void test_silence_ends(void **state)
{
    (void)state;
    static struct app a;
    unsigned status;
    struct err e;
    start(&a);
    const struct http_call call = {.url = url_of(&a, "/never"), .idle_ms = 200, .bearer = TOKEN};
    assert_int_equal(http_call(&call, &status, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "127.0.0.1:"));
    assert_null(strstr(e.msg, TOKEN));
    http_stop(a.server);
}

static void expect_error(const char *url, enum err_code code, const char *in_text)
{
    const struct http_call call = {.url = url, .bearer = TOKEN};
    unsigned status;
    struct err e = {0};
    if (http_call(&call, &status, &e) != code || !strstr(e.msg, in_text) || strstr(e.msg, TOKEN))
        fail_msg("%s: %s", url, e.msg);
}

static void test_errors_name_the_host(void **state)
{
    (void)state;
    char url[64], host[32];
    uint16_t port = 0;
    const int fd = free_port(&port);
    snprintf(host, sizeof host, "127.0.0.1:%u", port);
    snprintf(url, sizeof url, "http://%s/v1", host);
    expect_error(url, ERR_IO, host);
    close(fd);
}

static void test_addresses_that_are_none(void **state)
{
    (void)state;
    expect_error("gopher://127.0.0.1/", ERR_ARG, "127.0.0.1");
    expect_error("http://", ERR_ARG, "http://host:port");
    expect_error("file:///etc/passwd", ERR_ARG, "");
    expect_error("http://user:pass word@[", ERR_ARG, "");
}

static void test_token_with_line_breaks(void **state)
{
    (void)state;
    const struct http_call call = {.url = "http://127.0.0.1:1/", .bearer = "x\r\nX-Injected: 1"};
    unsigned status;
    struct err e;
    assert_int_equal(http_call(&call, &status, &e), ERR_ARG);
    assert_null(strstr(e.msg, "Injected"));
}

/* A server of one connection that answers with `text` and closes. */
struct odd {
    int fd;
    const char *text;
};

static void *odd_main(void *arg)
{
    const struct odd *o = arg;
    char data[4096];
    const int fd = accept(o->fd, NULL, NULL);
    if (fd < 0)
        return NULL;
    if (recv(fd, data, sizeof data, 0) > 0)
        send(fd, o->text, strlen(o->text), MSG_NOSIGNAL);
    close(fd);
    return NULL;
}

static void expect_odd(const char *text, enum err_code code)
{
    char url[64];
    uint16_t port = 0;
    struct odd o = {.fd = free_port(&port), .text = text};
    pthread_t thread;
    assert_int_equal(listen(o.fd, 1), 0);
    assert_int_equal(thread_start(&thread, "odd", odd_main, &o, NULL), OK);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/", port);
    expect_error(url, code, "127.0.0.1");
    pthread_join(thread, NULL);
    close(o.fd);
}

static void test_servers_that_break_off(void **state)
{
    (void)state;
    expect_odd("", ERR_IO);
    expect_odd("SSH-2.0-x\r\n", ERR_IO);
    expect_odd("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", ERR_IO);
    expect_odd("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", ERR_IO);
    expect_odd("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhel", ERR_IO);
}

static void test_proxy_of_the_environment(void **state)
{
    (void)state;
    static struct app a;
    char proxy[64];
    start(&a);
    snprintf(proxy, sizeof proxy, "http://127.0.0.1:%u", http_port(a.server));
    setenv("http_proxy", proxy, 1);
    const struct http_call call = {.url = "http://no.such.invalid/echo"};
    unsigned status = 0;
    struct err e;
    /* Ours is no proxy: it refuses to be asked for a whole URL. That it was asked is what matters. */
    assert_int_equal(http_call(&call, &status, &e), OK);
    assert_in_range(status, 400, 499);
    unsetenv("http_proxy");
    http_stop(a.server);
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    unsetenv("ALL_PROXY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_sent),
        cmocka_unit_test(test_any_status_is_an_answer),
        cmocka_unit_test(test_stopping_in_the_middle),
        cmocka_unit_test(test_cancelling_while_nothing_comes),
        cmocka_unit_test(test_silence_ends),
        cmocka_unit_test(test_errors_name_the_host),
        cmocka_unit_test(test_addresses_that_are_none),
        cmocka_unit_test(test_token_with_line_breaks),
        cmocka_unit_test(test_servers_that_break_off),
        cmocka_unit_test(test_proxy_of_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
