/* SPDX-License-Identifier: MIT
 *
 * What the HTTP server does not take: too large, too slow, too many, and what is no HTTP. None of it is handed over,
 * and the server goes on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/web_rig.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- limits --- */

static void test_bodies_over_the_limit(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){.max_body = 10});
    static const char fits[] = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\n0123456789";
    web_ask(&a, fits, sizeof fits - 1, "\r\n\r\n0123456789");
    static const char large[] = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 11\r\n\r\n0123456789a";
    web_ask(&a, large, sizeof large - 1, "HTTP/1.1 413 Content Too Large\r\n");
    static const char enormous[] = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 99999999999999999999999999\r\n\r\n0";
    web_ask(&a, enormous, sizeof enormous - 1, "HTTP/1.1 413 Content Too Large\r\n");
    static const char waits[] = "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 4000\r\n\r\n";
    web_ask(&a, waits, sizeof waits - 1, "HTTP/1.1 413 Content Too Large\r\n");
    static const char chunks[] =
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n64\r\n0123456789\r\n0\r\n\r\n";
    web_ask(&a, chunks, sizeof chunks - 1, "HTTP/1.1 411 Length Required\r\n");
    web_stop(&a);
    assert_int_equal(a.n_requests, 1);
}

static void test_refused_body_is_still_taken(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){.max_body = 10});
    const int fd = web_dial(&a);
    web_say(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 500000\r\n\r\n");
    web_say_n(fd, web_big, 500000); /* a reset would take the answer away */
    web_hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "413"));
    close(fd);
    buf_free(&got);
    web_stop(&a);
}

static void test_heads_over_the_limit(void **state)
{
    (void)state;
    static struct web a;
    static char text[40000];
    web_start(&a, (struct http_config){.max_head = 4096});
    for (int kind = 0; kind < 4; kind++) {
        static const char *const first[] = {"GET /", "GET /hello?",
                                            "GET /hello HTTP/1.1\r\nX-Long: ", "GET /hello HTTP/1.1\r\nAccept: "};
        for (size_t n = 4090; n <= 4100; n++) {
            const int used = snprintf(text, sizeof text, "%s", first[kind]);
            memset(text + used, 'a', n);
            const int more =
                snprintf(text + used + n, 200, "%s\r\n" HOST "Connection: close\r\n\r\n", kind < 2 ? " HTTP/1.1" : "");
            web_ask(&a, text, (size_t)used + n + (size_t)more, NULL);
        }
        memset(text + 100, 'a', sizeof text - 100);
        web_ask(&a, text, sizeof text, NULL);
    }
    size_t at = (size_t)snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n" HOST);
    for (int i = 0; i < 2000; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "x-%d: %d\r\n", i, i);
    at += (size_t)snprintf(text + at, sizeof text - at, "\r\n");
    web_ask(&a, text, at, NULL);
    at = (size_t)snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n" HOST);
    for (int i = 0; i < 500; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "Accept: a\r\n");
    at += (size_t)snprintf(text + at, sizeof text - at, "\r\n");
    web_ask(&a, text, at, NULL);
    static const char good[] = "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    assert_int_equal(web_now(&a, &a.n_requests), 0);
    web_ask(&a, good, sizeof good - 1, "hello");
    web_stop(&a);
}

/* Says text and waits for the server to close. */
static void wait_closed(struct web *a, const char *text, const char *want)
{
    struct buf got = {0};
    const int fd = web_dial(a);
    web_say(fd, text);
    web_hear(fd, &got, NULL);
    if (!strstr(buf_str(&got), want))
        fail_msg("'%s' is not in '%s'", want, buf_str(&got));
    close(fd);
    buf_free(&got);
}

static void test_slow_requests_end(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){.head_ms = 150, .idle_ms = 150});
    wait_closed(&a, "", "");
    wait_closed(&a, "GET /hel", "HTTP/1.1 408 Request Timeout\r\n");
    wait_closed(&a, "GET /hello HTTP/1.1\r\nX: ", "HTTP/1.1 408 Request Timeout\r\n");
    wait_closed(&a, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhalf", "HTTP/1.1 408 Request Timeout\r\n");
    wait_closed(&a, "GET /hello HTTP/1.1\r\n" HOST "\r\n", "hello"); /* kept alive, then idle */
    web_stop(&a);
    assert_int_equal(a.n_requests, 1);
}

static void test_trickling_does_not_extend_the_deadline(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){.head_ms = 300});
    const int fd = web_dial(&a);
    bool ended = false;
    for (int i = 0; i < 1000 && !ended; i++) { /* ten seconds at most */
        struct pollfd p = {.fd = fd, .events = POLLIN};
        send(fd, "a", 1, MSG_NOSIGNAL);
        ended = poll(&p, 1, 10) > 0;
    }
    assert_true(ended);
    close(fd);
    web_stop(&a);
}

static void test_too_many_connections(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){.max_connections = 2});
    const int one = web_dial(&a), two = web_dial(&a);
    web_say(one, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    web_say(two, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    web_wait(&a, &a.n_requests, 2);
    const int three = web_dial(&a);
    web_hear(three, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "HTTP/1.1 503 Service Unavailable\r\n"));
    close(one);
    web_wait(&a, &a.n_cut, 1);
    const int four = web_dial(&a);
    web_say(four, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    web_hear(four, &got, "hello");
    close(two);
    close(three);
    close(four);
    buf_free(&got);
    web_stop(&a);
}

/* --- nonsense --- */

static void test_malformed_requests(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        const char *want;
    } cases[] = {
#define CASE(text, want) {text, sizeof(text) - 1, want}
        CASE("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", ""),
        CASE("garbage\r\n\r\n", ""),
        CASE("\0\0\0\0\r\n\r\n", ""),
        CASE("\r\n\r\n", ""),
        CASE("GET /hello\r\n\r\n", "400"),
        CASE("GET /hello \r\n\r\n", "400"),
        CASE("GET /hello HTTP/2.0\r\n" HOST "\r\n", "505"),
        CASE("GET /hello FTP/1.1\r\n" HOST "\r\n", "400"),
        CASE("GET /hello HTTP/1.10\r\n" HOST "\r\n", "400"),
        CASE("GET /hello HTTP/1.1\r\n\r\n", "400"),
        CASE("GET /hello HTTP/1.1\r\n" HOST HOST "\r\n", "400"),
        CASE("GET hello HTTP/1.1\r\n" HOST "\r\n", ""),
        CASE("GET http://x/hello HTTP/1.1\r\n" HOST "\r\n", ""),
        CASE("GET /hel%00lo HTTP/1.1\r\n" HOST "\r\n", ""),
        CASE("GET /hello%zz HTTP/1.1\r\n" HOST "\r\n", ""),
        CASE("GET /hello HTTP/1.1\r\n" HOST "X-Own: b\0c\r\n\r\n", "400"),
        CASE("GET /hello HTTP/1.1\r\n" HOST "Accept: b\0c\r\n\r\n", "400"),
        CASE("GET /hello HTTP/1.1\r\n" HOST "X A: b\r\n\r\n", "400"),
        CASE("GET /hello HTTP/1.1\r\n" HOST ": b\r\n\r\n", ""),
        CASE("GET /hello HTTP/1.1\r\n" HOST "X-Own: b\r\n folded: c\r\n\r\n", "400"),
        CASE("GET /hello HTTP/1.1\r\nPOST /echo HTTP/1.1\r\n" HOST "\r\n", ""),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: -5\r\n\r\nabcde", "400"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5x\r\n\r\nabcde", "400"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: \r\n\r\nabcde", "400"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", "400"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde", "400"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5, 5\r\n\r\nabcde", "400"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length : 5\r\n\r\nabcde", "400"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nabcde", "411"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\nabcde", "411"),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding:\r\n\r\nabcde", "411"),
        CASE("CONNECT x:80 HTTP/1.1\r\n" HOST "\r\n", ""),
        CASE("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
        CASE("BREW /hello HTTP/1.1\r\n" HOST "\r\n", ""),
        CASE("GET /hello HTTP/1.1\r\n" HOST "Upgrade: TLS/1.0\r\n\r\n", ""),
#undef CASE
    };
    static struct web a;
    web_start(&a, (struct http_config){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        web_ask(&a, cases[i].text, cases[i].n, cases[i].want);
        if (web_now(&a, &a.n_requests) != 0)
            fail_msg("taken for a request: %s", cases[i].text);
    }
    static const char good[] = "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    web_ask(&a, good, sizeof good - 1, "hello");
    web_stop(&a);
}

static void test_requests_cut_anywhere(void **state)
{
    (void)state;
    static struct web a;
    static const char text[] =
        "POST /echo HTTP/1.1\r\n" HOST "Content-Type: a/b\r\nX-Own: c\r\nContent-Length: 9\r\n\r\nsome body";
    web_start(&a, (struct http_config){0});
    for (size_t cut = 0; cut < sizeof text - 1; cut++) {
        const int fd = web_dial(&a); /* the client leaves at this byte */
        web_say_n(fd, text, cut);
        close(fd);
    }
    const int fd = web_dial(&a);
    for (size_t i = 0; i < sizeof text - 1; i++) { /* and one that sends byte by byte */
        web_say_n(fd, text + i, 1);
        if (i % 7 == 0)
            usleep(200);
    }
    struct buf got = {0};
    web_hear(fd, &got, "\r\n\r\nsome body");
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_requests, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_over_the_limit),
        cmocka_unit_test(test_refused_body_is_still_taken),
        cmocka_unit_test(test_heads_over_the_limit),
        cmocka_unit_test(test_slow_requests_end),
        cmocka_unit_test(test_trickling_does_not_extend_the_deadline),
        cmocka_unit_test(test_too_many_connections),
        cmocka_unit_test(test_malformed_requests),
        cmocka_unit_test(test_requests_cut_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
