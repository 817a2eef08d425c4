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

#include "base/clock.h"
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

/* A head of exactly `total` bytes, where the filling is in one of four places. */
static size_t make_head(char *text, size_t size, int kind, size_t total)
{
    static const char *const first[] = {"GET /", "GET /hello?",
                                        "GET /hello HTTP/1.1\r\nX-Long: ", "GET /hello HTTP/1.1\r\nAccept: "};
    const char *last =
        kind < 2 ? " HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n" : "\r\n" HOST "Connection: close\r\n\r\n";
    const size_t used = strlen(first[kind]), fill = total - used - strlen(last);
    assert_true(total < size);
    memcpy(text, first[kind], used);
    memset(text + used, 'a', fill);
    memcpy(text + used + fill, last, strlen(last) + 1);
    return total;
}

static void test_heads_over_the_limit(void **state)
{
    (void)state;
    static struct web a;
    static char text[40000];
    web_start(&a, (struct http_config){.max_head = 4096});
    for (int kind = 0; kind < 4; kind++) {
        web_ask(&a, text, make_head(text, sizeof text, kind, 4096), kind == 0 ? "404" : "hello");
        web_ask(&a, text, make_head(text, sizeof text, kind, 4097), "HTTP/1.1 431 Request Header Fields Too Large\r\n");
        make_head(text, sizeof text, kind, 39000);
        web_ask(&a, text, 39000, "HTTP/1.1 431 ");
        memset(text + 100, 'a', sizeof text - 100); /* which never ends */
        web_ask(&a, text, sizeof text, "HTTP/1.1 431 ");
    }
    assert_int_equal(web_now(&a, &a.n_requests), 4);
    assert_int_equal(web_now(&a, &a.n_refused), 12);
    web_stop(&a);
}

static void test_many_header_lines(void **state)
{
    (void)state;
    static struct web a;
    static char text[8192];
    web_start(&a, (struct http_config){0});
    for (int kind = 0; kind < 3; kind++) { /* known ones, own ones, and a query */
        for (int n = 61; n <= 62; n++) {   /* of 64, three are the request line, Host and Connection */
            size_t at = (size_t)snprintf(text, sizeof text, "GET /hello?");
            for (int i = 0; kind == 2 && i < n; i++)
                at += (size_t)snprintf(text + at, sizeof text - at, "a=%d&", i);
            at += (size_t)snprintf(text + at, sizeof text - at, " HTTP/1.1\r\n" HOST "Connection: close\r\n");
            for (int i = 0; kind < 2 && i < n; i++)
                at += (size_t)snprintf(text + at, sizeof text - at, kind ? "x-%d: %d\r\n" : "Accept: a%d%d\r\n", i, i);
            at += (size_t)snprintf(text + at, sizeof text - at, "\r\n");
            web_ask(&a, text, at, n == 61 ? "hello" : "HTTP/1.1 431 ");
        }
    }
    web_stop(&a);
    assert_int_equal(a.n_requests, 3);
    assert_int_equal(a.n_refused, 3);
}

static void test_refusals_in_a_form_of_ones_own(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){.max_body = 10, .max_head = 1000});
    a.own_refusals = true;
    static const char large[] = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 11\r\n\r\n0123456789a";
    web_ask(&a, large, sizeof large - 1, "content-type: x/y\r\nx-own: no\r\ncontent-length: 11\r\n");
    web_ask(&a, large, sizeof large - 1, "\r\n\r\n[413 /echo]");
    web_ask(&a, "BREW / HTTP/1.1\r\n\r\n", 19, "content-type: x/y\r\nx-own: no\r\ncontent-length: 7\r\n");
    web_ask(&a, "BREW / HTTP/1.1\r\n\r\n", 19, "\r\n\r\n[501 -]");
    web_stop(&a);
    assert_int_equal(a.n_refused, 4);
}

/* Says text and waits for the server to close. A connection on which nothing has come is closed without a word, and
 * does not count: this thread may be so slow that this happens between dialling and saying. Then again. */
static void wait_closed(struct web *a, const char *text, const char *want)
{
    const uint64_t deadline = clock_deadline_ms(WEB_WAIT_MS);
    struct buf got = {0};
    do {
        const int fd = web_dial(a);
        web_say(fd, text);
        web_hear(fd, &got, NULL);
        close(fd);
    } while (got.len == 0 && want[0] && clock_now_ns() < deadline);
    if (!strstr(buf_str(&got), want))
        fail_msg("'%s' is not in '%s'", want, buf_str(&got));
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
    assert_int_equal(a.n_refused, 3);
}

static void test_trickling_does_not_extend_the_deadline(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){.head_ms = 300});
    const int fd = web_dial(&a);
    bool ended = false;
    for (const uint64_t deadline = clock_deadline_ms(WEB_WAIT_MS); !ended && clock_now_ns() < deadline;) {
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
        unsigned want;
    } cases[] = {
#define CASE(text, want) {text, sizeof(text) - 1, want}
        CASE("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        CASE("garbage\r\n\r\n", 400),
        CASE("\0\0\0\0\r\n\r\n", 400),
        CASE("\r\n\r\n", 400),
        CASE("GET /hello\r\n\r\n", 400),
        CASE("GET /hello \r\n\r\n", 400),
        CASE("GET  /hello HTTP/1.1\r\n" HOST "\r\n", 400),
        CASE("GET /hello HTTP/2.0\r\n" HOST "\r\n", 505),
        CASE("GET /hello FTP/1.1\r\n" HOST "\r\n", 400),
        CASE("GET /hello HTTP/1.10\r\n" HOST "\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\n\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\n" HOST HOST "\r\n", 400),
        CASE("GET hello HTTP/1.1\r\n" HOST "\r\n", 400),
        CASE("GET http://x/hello HTTP/1.1\r\n" HOST "\r\n", 400),
        CASE("GET /hel%00lo HTTP/1.1\r\n" HOST "\r\n", 400),
        CASE("GET /hello%zz HTTP/1.1\r\n" HOST "\r\n", 400),
        CASE("GET /hello%6 HTTP/1.1\r\n" HOST "\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\n" HOST "X-Own: b\0c\r\n\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\n" HOST "Accept: b\0c\r\n\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\n" HOST "X A: b\r\n\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\n" HOST ": b\r\n\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\n" HOST "no colon\r\n\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\n" HOST "X-Own: b\r\n folded: c\r\n\r\n", 400),
        CASE("GET /hello HTTP/1.1\r\nPOST /echo HTTP/1.1\r\n" HOST "\r\n", 400),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: -5\r\n\r\nabcde", 400),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5x\r\n\r\nabcde", 400),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: \r\n\r\nabcde", 400),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", 400),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde", 400),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5, 5\r\n\r\nabcde", 400),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length : 5\r\n\r\nabcde", 400),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nabcde", 411),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\nabcde", 411),
        CASE("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding:\r\n\r\nabcde", 411),
        CASE("CONNECT x:80 HTTP/1.1\r\n" HOST "\r\n", 501),
        CASE("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 501),
        CASE("BREW /hello HTTP/1.1\r\n" HOST "\r\n", 501),
        CASE("GET /hello HTTP/1.1\r\n" HOST "Upgrade: TLS/1.0\r\n\r\n", 400),
#undef CASE
    };
    static struct web a;
    web_start(&a, (struct http_config){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[32];
        snprintf(want, sizeof want, "HTTP/1.1 %u ", cases[i].want);
        web_ask(&a, cases[i].text, cases[i].n, want);
        if (web_now(&a, &a.n_requests) != 0)
            fail_msg("taken for a request: %s", cases[i].text);
        web_wait(&a, &a.n_refused, (unsigned)i + 1);
        if (web_now(&a, &a.n_refused) != i + 1 || web_now(&a, &a.refused) != cases[i].want)
            fail_msg("not told as %u: %s", cases[i].want, cases[i].text);
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
    assert_int_equal(a.n_refused, 0); /* who leaves is not refused */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_over_the_limit),
        cmocka_unit_test(test_refused_body_is_still_taken),
        cmocka_unit_test(test_heads_over_the_limit),
        cmocka_unit_test(test_many_header_lines),
        cmocka_unit_test(test_refusals_in_a_form_of_ones_own),
        cmocka_unit_test(test_slow_requests_end),
        cmocka_unit_test(test_trickling_does_not_extend_the_deadline),
        cmocka_unit_test(test_too_many_connections),
        cmocka_unit_test(test_malformed_requests),
        cmocka_unit_test(test_requests_cut_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
