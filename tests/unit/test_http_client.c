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
#include "lib/bad_httpd.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
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
    const uint64_t deadline = clock_deadline_ms(60000);
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

/* --- heads, redirects, kept connections: against the server that misbehaves --- */

#define N_BYTES 100000

static uint8_t bytes[N_BYTES];
static struct bad_httpd *bad[2];

static int bad_setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_BYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    for (int i = 0; i < 2; i++) {
        bad[i] = bad_start();
        bad_file(bad[i], "/f", bytes, N_BYTES, "\"tag\"");
    }
    return 0;
}

static int bad_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        bad_stop(bad[i]);
    return 0;
}

static const char *bad_url(int i, const char *path)
{
    static char url[2][100];
    snprintf(url[i], sizeof url[i], "http://127.0.0.1:%u%s", bad_port(bad[i]), path);
    return url[i];
}

/* What on_head saw and on_data got. */
struct seen {
    unsigned n_heads, status;
    uint32_t retry_s;
    char etag[40], range[60], url[100], missing;
    struct buf body;
    bool stop_at_head;
};

static bool see_head(void *ctx, const struct http_head *h)
{
    struct seen *s = ctx;
    const char *etag = http_head_get(h, "ETag"), *range = http_head_get(h, "content-range");
    s->n_heads++;
    s->status = http_head_status(h);
    s->retry_s = http_head_retry_s(h);
    snprintf(s->etag, sizeof s->etag, "%s", etag ? etag : "-");
    snprintf(s->range, sizeof s->range, "%s", range ? range : "-");
    snprintf(s->url, sizeof s->url, "%s", http_head_url(h));
    s->missing = http_head_get(h, "content") == NULL; /* not the beginning of a name */
    return !s->stop_at_head;
}

static bool see_data(void *ctx, const void *data, size_t len)
{
    struct seen *s = ctx;
    assert_int_equal(s->n_heads, 1); /* it comes first */
    buf_put(&s->body, data, len);
    return true;
}

static enum err_code see(struct http_client *c, struct http_call call, struct seen *s, struct err *e)
{
    unsigned status = 0;
    *s = (struct seen){.stop_at_head = s->stop_at_head};
    call.ctx = s;
    call.on_head = see_head;
    call.on_data = see_data;
    return c ? http_client_call(c, &call, &status, e) : http_call(&call, &status, e);
}

static void test_head_comes_before_the_body(void **state)
{
    (void)state;
    const char *headers[] = {"Range: bytes=10-19", "If-Range: \"tag\""};
    const struct http_call call = {.url = bad_url(0, "/f"), .headers = headers, .n_headers = 2, .plain = true};
    struct seen s = {0};
    struct err e;
    assert_int_equal(see(NULL, call, &s, &e), OK);
    assert_int_equal(s.n_heads, 1);
    assert_int_equal(s.status, 206);
    assert_string_equal(s.etag, "\"tag\"");
    assert_string_equal(s.range, "bytes 10-19/100000");
    assert_true(s.missing);
    assert_int_equal(s.body.len, 10);
    assert_memory_equal(s.body.data, bytes + 10, 10);
    buf_free(&s.body);
}

static void test_stopping_at_the_head(void **state)
{
    (void)state;
    struct seen s = {.stop_at_head = true};
    struct err e;
    assert_int_equal(see(NULL, (struct http_call){.url = bad_url(0, "/f")}, &s, &e), ERR_CANCELLED);
    assert_int_equal(s.body.len, 0);
}

static void test_head_of_an_empty_response(void **state)
{
    (void)state;
    struct seen s = {0};
    struct err e;
    assert_int_equal(see(NULL, (struct http_call){.url = bad_url(0, "/f"), .method = "HEAD"}, &s, &e), OK);
    assert_int_equal(s.n_heads, 1);
    assert_int_equal(s.status, 200);
    assert_int_equal(s.body.len, 0);
}

static void test_headers_with_line_breaks(void **state)
{
    (void)state;
    const char *headers[] = {"X: y\r\nInjected: 1"};
    const struct http_call call = {.url = bad_url(0, "/f"), .headers = headers, .n_headers = 1};
    struct seen s = {0};
    struct err e;
    assert_int_equal(see(NULL, call, &s, &e), ERR_ARG);
    assert_int_equal(s.n_heads, 0);
}

static void test_retry_after(void **state)
{
    (void)state;
    const struct bad_rule busy = {.how = BAD_STATUS, .n = 503, .retry_after = 7};
    struct seen s = {0};
    struct err e;
    bad_rule(bad[0], &busy);
    assert_int_equal(see(NULL, (struct http_call){.url = bad_url(0, "/f")}, &s, &e), OK);
    assert_int_equal(s.status, 503);
    assert_int_equal(s.retry_s, 7);
    buf_free(&s.body);
}

static void test_codings_are_refused(void **state)
{
    (void)state;
    const struct bad_rule gzip = {.how = BAD_GZIP};
    struct seen s = {0};
    struct err e;
    bad_rule(bad[0], &gzip);
    assert_int_equal(see(NULL, (struct http_call){.url = bad_url(0, "/f"), .plain = true}, &s, &e), ERR_PROTOCOL);
    assert_non_null(strstr(e.msg, "content-encoding"));
    assert_int_equal(s.body.len, 0);
    assert_int_equal(see(NULL, (struct http_call){.url = bad_url(0, "/f")}, &s, &e), OK); /* others may want it */
    buf_free(&s.body);
}

static void test_redirect_keeps_the_token_at_home(void **state)
{
    (void)state;
    const struct bad_rule away = {.how = BAD_REDIRECT, .location = bad_url(1, "/f")};
    struct http_call call = {.url = bad_url(0, "/f"), .bearer = TOKEN, .follow = true};
    struct seen s = {0};
    struct err e;
    bad_rule(bad[0], &away);
    assert_int_equal(see(NULL, call, &s, &e), OK);
    assert_int_equal(s.status, 200);
    assert_int_equal(s.n_heads, 1); /* not the redirect's */
    assert_string_equal(s.url, bad_url(1, "/f"));
    assert_int_equal(s.body.len, N_BYTES);
    assert_int_equal(bad_count(bad[0]).n_with_token, 1);
    assert_int_equal(bad_count(bad[1]).n_with_token, 0);
    assert_int_equal(bad_count(bad[1]).n_requests, 1);
    buf_free(&s.body);
    call.follow = false;
    assert_int_equal(see(NULL, call, &s, &e), OK);
    assert_int_equal(s.status, 302);
    buf_free(&s.body);
}

static void test_errors_name_who_was_redirected_to(void **state)
{
    (void)state;
    const struct bad_rule away = {.how = BAD_REDIRECT, .location = bad_url(1, "/f")}, cut = {.how = BAD_CUT, .n = 9};
    char other[40];
    struct seen s = {0};
    struct err e;
    bad_rule(bad[0], &away);
    bad_rule(bad[1], &cut);
    assert_int_equal(see(NULL, (struct http_call){.url = bad_url(0, "/f"), .follow = true}, &s, &e), ERR_IO);
    snprintf(other, sizeof other, "127.0.0.1:%u (sent on by", bad_port(bad[1]));
    assert_non_null(strstr(e.msg, other));
    buf_free(&s.body);
}

static void test_redirects_end(void **state)
{
    (void)state;
    const struct bad_rule loop = {.how = BAD_REDIRECT_LOOP};
    const struct bad_rule file = {.how = BAD_REDIRECT, .location = "file:///etc/passwd"};
    struct seen s = {0};
    struct err e;
    bad_rule(bad[0], &loop);
    assert_int_equal(see(NULL, (struct http_call){.url = bad_url(0, "/f"), .follow = true}, &s, &e), ERR_PROTOCOL);
    bad_rule(bad[1], &file);
    assert_int_equal(see(NULL, (struct http_call){.url = bad_url(1, "/f"), .follow = true}, &s, &e), ERR_IO);
    assert_int_equal(s.n_heads, 0);
}

static void test_connection_is_kept(void **state)
{
    (void)state;
    struct http_client *c = NULL;
    struct seen s = {0};
    struct err e;
    assert_int_equal(http_client_new(&c, &e), OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(see(c, (struct http_call){.url = bad_url(0, "/f")}, &s, &e), OK);
        assert_int_equal(s.body.len, N_BYTES);
        buf_free(&s.body);
    }
    assert_int_equal(bad_count(bad[0]).n_requests, 3);
    assert_int_equal(bad_count(bad[0]).n_connections, 1);
    assert_int_equal(http_client_requests(c), 3);
    http_client_free(c);
}

static void test_nothing_of_a_call_is_left_for_the_next(void **state)
{
    (void)state;
    const char *headers[] = {"Range: bytes=0-0"};
    struct http_client *c = NULL;
    struct seen s = {0};
    struct err e;
    assert_int_equal(http_client_new(&c, &e), OK);
    const struct http_call first = {.url = bad_url(0, "/f"), .bearer = TOKEN, .headers = headers, .n_headers = 1};
    assert_int_equal(see(c, first, &s, &e), OK);
    buf_free(&s.body);
    assert_int_equal(see(c, (struct http_call){.url = bad_url(0, "/f")}, &s, &e), OK);
    assert_int_equal(s.status, 200);
    assert_int_equal(bad_count(bad[0]).n_with_token, 1);
    buf_free(&s.body);
    http_client_free(c);
}

static void test_slow_servers(void **state)
{
    (void)state;
    const struct bad_rule slow = {.how = BAD_DRIBBLE, .n = 10};
    struct http_call call = {.url = bad_url(0, "/f"), .idle_ms = 1000, .floor_b_s = 1024};
    struct seen s = {0};
    struct err e;
    bad_rule(bad[0], &slow);
    assert_int_equal(see(NULL, call, &s, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "fewer than 1024 bytes a second"));
    buf_free(&s.body);
}

/* Takes so long for its first piece that the floor would be missed. */
static bool slow_taker(void *ctx, const void *data, size_t len)
{
    (void)data;
    if (*(size_t *)ctx == 0)
        poll(NULL, 0, 1500);
    *(size_t *)ctx += len;
    return true;
}

static void test_slow_takers_are_no_slow_servers(void **state)
{
    (void)state;
    size_t got = 0;
    unsigned status;
    struct err e;
    const struct http_call call = {.url = bad_url(0, "/f"),
                                   .idle_ms = 1000,
                                   .floor_b_s = 20000,
                                   .chunk_bytes = 16384,
                                   .ctx = &got,
                                   .on_data = slow_taker};
    if (http_call(&call, &status, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(got, N_BYTES);
}

static void test_hosts_of_urls(void **state)
{
    (void)state;
    char host[HTTP_HOST_SIZE];
    assert_int_equal(http_url_host("https://user:secret@Example.com/a?b", host, NULL), OK);
    assert_string_equal(host, "Example.com:443");
    assert_int_equal(http_url_host("http://[::1]:81/", host, NULL), OK);
    assert_string_equal(host, "[::1]:81");
    assert_int_equal(http_url_host("ftp://a/", host, NULL), ERR_ARG);
    assert_true(http_url_same_site("http://a/x", "http://A:80/y?z"));
    assert_false(http_url_same_site("http://a/x", "https://a/x"));
    assert_false(http_url_same_site("http://a/x", "http://a:81/x"));
    assert_false(http_url_same_site("http://a/x", "http://b/x"));
    assert_false(http_url_same_site("a", "a"));
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
        cmocka_unit_test_setup_teardown(test_head_comes_before_the_body, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_stopping_at_the_head, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_head_of_an_empty_response, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_headers_with_line_breaks, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_retry_after, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_codings_are_refused, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_redirect_keeps_the_token_at_home, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_errors_name_who_was_redirected_to, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_redirects_end, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_connection_is_kept, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_of_a_call_is_left_for_the_next, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_slow_servers, bad_setup, bad_teardown),
        cmocka_unit_test_setup_teardown(test_slow_takers_are_no_slow_servers, bad_setup, bad_teardown),
        cmocka_unit_test(test_hosts_of_urls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
