/* SPDX-License-Identifier: MIT
 *
 * The HTTP server as its clients see it, over real sockets: what is answered, in which order, how its limits end a
 * connection, and that each request handed over is gone exactly once.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "base/thread.h"
#include "http/server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_MS 10000u

/* What is served: /hello, /echo (the body), /head (a header back), /stream (parts that the test hands in), /never,
 * /flood (as much as goes), /big (3 MiB at once), /huge (24 MiB, more than socket buffers take). */
struct app {
    struct http_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n_requests, n_done, n_cut, n_wakes;
    struct http_request *stream; /* loop only */
    bool has_stream;
    char part[256];
    bool end, flood;
};

static char big[3u << 20], huge[24u << 20];

static void on_request(void *ctx, struct http_request *r)
{
    struct app *a = ctx;
    const char *path = http_path(r);
    const struct http_reply ok = {.status = 200, .type = "text/plain", .headers = "x-own: yes\r\n"};
    const struct http_reply missing = {.status = 404};
    size_t len;
    const void *body = http_body(r, &len);
    pthread_mutex_lock(&a->lock);
    a->n_requests++;
    if (!strcmp(path, "/hello")) {
        http_respond(r, &ok, "hello", 5);
    } else if (!strcmp(path, "/echo")) {
        http_respond(r, &ok, body, len);
    } else if (!strcmp(path, "/head")) {
        const char *v = http_header(r, "x-test");
        const char *auth = http_header(r, "authorization:");
        char text[256];
        const int n = snprintf(text, sizeof text, "%s|%s|%s", http_method(r), v ? v : "-", auth ? auth : "-");
        http_respond(r, &ok, text, (size_t)n);
    } else if (!strcmp(path, "/big")) {
        http_respond(r, &ok, big, sizeof big);
    } else if (!strcmp(path, "/huge")) {
        http_respond(r, &ok, huge, sizeof huge);
    } else if (!strcmp(path, "/stream") || !strcmp(path, "/flood")) {
        a->stream = r;
        a->has_stream = true;
        a->flood = path[1] == 'f';
        http_begin(r, &ok);
    } else if (strcmp(path, "/never") != 0) {
        http_respond(r, &missing, NULL, 0);
    }
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void on_gone(void *ctx, struct http_request *r, bool done)
{
    struct app *a = ctx;
    pthread_mutex_lock(&a->lock);
    if (done)
        a->n_done++;
    else
        a->n_cut++;
    if (a->stream == r) {
        a->stream = NULL;
        a->has_stream = false;
    }
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void on_wake(void *ctx)
{
    struct app *a = ctx;
    pthread_mutex_lock(&a->lock);
    a->n_wakes++;
    if (a->stream && a->flood)
        http_write(a->stream, big, 65536);
    if (a->stream && a->part[0]) {
        http_write(a->stream, a->part, strlen(a->part));
        a->part[0] = 0;
    }
    if (a->stream && a->end)
        http_end(a->stream);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void start(struct app *a, struct http_config config)
{
    *a = (struct app){0};
    pthread_mutex_init(&a->lock, NULL);
    thread_cond_init(&a->changed);
    memset(big, 'x', sizeof big);
    config.addr = config.addr ? config.addr : "127.0.0.1:0";
    config.ctx = a;
    config.on_request = on_request;
    config.on_gone = on_gone;
    config.on_wake = on_wake;
    struct err e = {0};
    if (http_start(&config, &a->server, &e) != OK)
        fail_msg("%s", e.msg);
}

static void stop(struct app *a)
{
    http_stop(a->server);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
}

/* Until *value is at least `least`. */
static void wait_for(struct app *a, const unsigned *value, unsigned least)
{
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    pthread_mutex_lock(&a->lock);
    while (*value < least && thread_cond_wait(&a->changed, &a->lock, deadline))
        ;
    const unsigned got = *value;
    pthread_mutex_unlock(&a->lock);
    if (got < least)
        fail_msg("waited for %u, there are %u", least, got);
}

static unsigned now(struct app *a, const unsigned *value)
{
    pthread_mutex_lock(&a->lock);
    const unsigned got = *value;
    pthread_mutex_unlock(&a->lock);
    return got;
}

static void send_part(struct app *a, const char *text, bool end)
{
    pthread_mutex_lock(&a->lock);
    snprintf(a->part, sizeof a->part, "%s", text);
    a->end = end;
    pthread_mutex_unlock(&a->lock);
    http_wake(a->server);
}

/* --- a client --- */

static int dial(const struct app *a)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(http_port(a->server)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = WAIT_MS / 1000};
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void say_n(int fd, const void *text, size_t n)
{
    const char *p = text;
    for (ssize_t done; n; p += done, n -= (size_t)done) {
        done = send(fd, p, n, MSG_NOSIGNAL);
        if (done <= 0)
            return; /* the server has closed: the reading says so */
    }
}

static void say(int fd, const char *text)
{
    say_n(fd, text, strlen(text));
}

/* Reads until `end` has come, or to the end of the connection when it is NULL. */
static void hear(int fd, struct buf *got, const char *end)
{
    for (;;) {
        if (end && strstr(buf_str(got), end))
            return;
        char data[4096];
        const ssize_t n = recv(fd, data, sizeof data, 0);
        if (n < 0 && errno == EAGAIN)
            fail_msg("'%s' did not come, but: %s", end ? end : "(end)", buf_str(got));
        if (n <= 0) {
            if (end)
                fail_msg("closed before '%s', after: %s", end, buf_str(got));
            return;
        }
        buf_put(got, data, (size_t)n);
    }
}

/* Says text on a connection of its own and checks that the answer, to its end, has `want` in it; NULL: any. */
static void ask(struct app *a, const char *text, size_t n, const char *want)
{
    struct buf got = {0};
    const int fd = dial(a);
    say_n(fd, text, n);
    shutdown(fd, SHUT_WR);
    hear(fd, &got, NULL);
    if (want && !strstr(buf_str(&got), want))
        fail_msg("asked '%.60s', '%s' is not in: %s", text, want, buf_str(&got));
    close(fd);
    buf_free(&got);
}

#define HOST "Host: x\r\n"

/* --- answers --- */

static void test_answers_whole(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    hear(fd, &got, "hello");
    assert_ptr_equal(strstr(buf_str(&got), "HTTP/1.1 200 OK\r\nserver: kvasir/"), buf_str(&got));
    assert_non_null(strstr(buf_str(&got), "\r\ndate: "));
    assert_non_null(strstr(buf_str(&got), "\r\ncontent-type: text/plain\r\n"));
    assert_non_null(strstr(buf_str(&got), "\r\nx-own: yes\r\n"));
    assert_non_null(strstr(buf_str(&got), "\r\ncontent-length: 5\r\n"));
    assert_non_null(strstr(buf_str(&got), "\r\n\r\nhello"));
    assert_null(strstr(buf_str(&got), "libwebsockets"));
    wait_for(&a, &a.n_done, 1);
    close(fd);
    buf_free(&got);
    stop(&a);
    assert_int_equal(a.n_cut, 0);
}

static void test_status_has_its_text(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){0});
    static const char request[] = "GET /no HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    ask(&a, request, sizeof request - 1, "HTTP/1.1 404 Not Found\r\n");
    stop(&a);
}

static void test_thousand_requests_on_one_connection(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    for (int i = 0; i < 1000; i++) {
        struct buf got = {0};
        char text[200], body[32];
        const int n = snprintf(body, sizeof body, "number %d.", i);
        snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n%s", n, body);
        say(fd, text);
        hear(fd, &got, body);
        buf_free(&got);
    }
    close(fd);
    stop(&a);
    assert_int_equal(a.n_requests, 1000);
    assert_int_equal(a.n_done, 1000);
}

static void test_many_clients_at_once(void **state)
{
    (void)state;
    static struct app a;
    int fd[64];
    start(&a, (struct http_config){0});
    for (int i = 0; i < 64; i++)
        fd[i] = dial(&a);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 64; i++) {
            char text[200];
            snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 11\r\n\r\nclient %03d", i);
            say(fd[i], text);
            say(fd[i], ".");
        }
        for (int i = 0; i < 64; i++) {
            struct buf got = {0};
            char want[32];
            snprintf(want, sizeof want, "\r\n\r\nclient %03d.", i);
            hear(fd[i], &got, want);
            buf_free(&got);
        }
    }
    for (int i = 0; i < 64; i++)
        close(fd[i]);
    stop(&a);
    assert_int_equal(a.n_done, 192);
}

static void test_large_bodies_both_ways(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){.max_queued = 1000}); /* which is for streams */
    const int fd = dial(&a);
    say(fd, "POST /echo HTTP/1.1\r\n" HOST "Connection: close\r\nContent-Length: 3145728\r\n\r\n");
    memset(big, 'y', sizeof big);
    say_n(fd, big, sizeof big);
    hear(fd, &got, NULL);
    const char *body = strstr(buf_str(&got), "\r\n\r\n") + 4;
    assert_int_equal(strlen(body), sizeof big);
    assert_memory_equal(body, big, sizeof big);
    close(fd);
    buf_free(&got);
    stop(&a);
    assert_int_equal(a.n_done, 1);
}

static void test_headers_arrive(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){0});
    static const char known[] =
        "DELETE /head HTTP/1.1\r\n" HOST "X-Test: \t a b \r\nAuthorization: Bearer t\r\nConnection: close\r\n\r\n";
    ask(&a, known, sizeof known - 1, "\r\n\r\nDELETE|a b|Bearer t");
    static const char options[] = "OPTIONS /head HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    ask(&a, options, sizeof options - 1, "\r\n\r\nOPTIONS|-|-");
    stop(&a);
}

static void test_paths_are_decoded(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){0});
    static const char request[] = "GET /he%6clo?x=1&y HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    ask(&a, request, sizeof request - 1, "\r\n\r\nhello");
    stop(&a);
}

static void test_head_has_no_body(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "HEAD /hello HTTP/1.1\r\n" HOST "\r\n");
    hear(fd, &got, "content-length: 5\r\n\r\n");
    say(fd, "GET /no HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    hear(fd, &got, NULL);
    assert_null(strstr(buf_str(&got), "hello"));
    assert_non_null(strstr(buf_str(&got), "content-length: 5\r\n\r\nHTTP/1.1 404"));
    close(fd);
    buf_free(&got);
    stop(&a);
}

static void test_expect_continue(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    hear(fd, &got, "HTTP/1.1 100 Continue\r\n\r\n");
    say(fd, "body");
    hear(fd, &got, "\r\n\r\nbody");
    close(fd);
    buf_free(&got);
    stop(&a);
}

static void test_post_without_length_has_no_body(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){0});
    static const char none[] = "POST /echo HTTP/1.1\r\n" HOST "\r\n";
    ask(&a, none, sizeof none - 1, "content-length: 0\r\n");
    static const char zero[] =
        "PUT /echo HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n";
    ask(&a, zero, sizeof zero - 1, "\r\n\r\nhello");
    stop(&a);
}

static void test_other_protocols_are_not_taken_up(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){0});
    static const char h2c[] = "GET /hello HTTP/1.1\r\n" HOST
                              "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n\r\n";
    ask(&a, h2c, sizeof h2c - 1, "\r\n\r\nhello");
    static const char ws[] =
        "GET /hello HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    ask(&a, ws, sizeof ws - 1, "\r\n\r\nhello");
    stop(&a);
}

/* --- streams --- */

static void test_parts_arrive_one_by_one(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    hear(fd, &got, "transfer-encoding: chunked\r\n\r\n");
    for (int i = 0; i < 20; i++) {
        char part[32], want[64];
        snprintf(part, sizeof part, "part %02d", i);
        snprintf(want, sizeof want, "7\r\n%s\r\n", part);
        send_part(&a, part, false);
        hear(fd, &got, want); /* nothing but this part makes it come */
    }
    send_part(&a, "last", true);
    hear(fd, &got, "4\r\nlast\r\n0\r\n\r\n");
    wait_for(&a, &a.n_done, 1);
    say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n"); /* the connection goes on */
    hear(fd, &got, "hello");
    close(fd);
    buf_free(&got);
    stop(&a);
    assert_int_equal(a.n_cut, 0);
}

static void test_old_clients_get_streams_without_chunks(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    hear(fd, &got, "connection: close\r\n\r\n");
    send_part(&a, "text", true);
    hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "\r\n\r\ntext"));
    assert_null(strstr(buf_str(&got), "chunked"));
    close(fd);
    buf_free(&got);
    stop(&a);
}

static void test_client_that_leaves_a_stream(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    hear(fd, &got, "\r\n\r\n");
    close(fd);
    wait_for(&a, &a.n_cut, 1); /* without a part being written */
    buf_free(&got);
    stop(&a);
    assert_int_equal(a.n_cut, 1);
    assert_int_equal(a.n_done, 0);
}

static void test_client_that_leaves_before_the_answer(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "GET /never HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n"); /* unread bytes hide nothing */
    wait_for(&a, &a.n_requests, 1);
    close(fd);
    wait_for(&a, &a.n_cut, 1);
    stop(&a);
    assert_int_equal(a.n_requests, 1);
}

static void test_half_closed_client(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){0});
    static const char quick[] = "GET /big HTTP/1.1\r\n" HOST "\r\n";
    ask(&a, quick, sizeof quick - 1, "xxxx"); /* an answer that is made is sent */
    wait_for(&a, &a.n_done, 1);
    static const char slow[] = "GET /never HTTP/1.1\r\n" HOST "\r\n";
    ask(&a, slow, sizeof slow - 1, "");
    wait_for(&a, &a.n_cut, 1); /* nobody waits for one that is not */
    stop(&a);
}

static void test_slow_reader_is_cut(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){.max_queued = 100000});
    const int fd = dial(&a);
    say(fd, "GET /flood HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; i < 2000 && now(&a, &a.n_cut) == 0; i++) {
        http_wake(a.server);
        usleep(1000);
    }
    wait_for(&a, &a.n_cut, 1);
    close(fd);
    stop(&a);
    assert_int_equal(a.n_cut, 1);
}

static void test_reader_that_stops_is_cut(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){.idle_ms = 200});
    const int fd = dial(&a);
    say(fd, "GET /huge HTTP/1.1\r\n" HOST "\r\n");
    wait_for(&a, &a.n_cut, 1);
    close(fd);
    stop(&a);
    assert_int_equal(a.n_done, 0);
}

/* --- pipelines --- */

static void test_pipelined_requests_in_order(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST "\r\nGET /no HTTP/1.1\r\n" HOST "\r\n");
    hear(fd, &got, "\r\n\r\n");
    say(fd, "HEAD /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    assert_int_equal(now(&a, &a.n_requests), 1);
    send_part(&a, "first", true);
    hear(fd, &got, NULL);
    const char *first = strstr(buf_str(&got), "first"), *second = strstr(buf_str(&got), "hello");
    const char *third = strstr(buf_str(&got), "404 Not Found");
    assert_non_null(first);
    assert_true(first < second && second < third);
    assert_non_null(strstr(third, "content-length: 5\r\n"));
    close(fd);
    buf_free(&got);
    stop(&a);
    assert_int_equal(a.n_done, 4);
}

static void test_bytes_after_a_body_end_the_connection(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbodyPOST /echo HTTP/1.1\r\n" HOST
            "Content-Length: 4\r\n\r\nmore");
    hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "connection: close\r\n\r\nbody"));
    assert_null(strstr(buf_str(&got), "more"));
    close(fd);
    buf_free(&got);
    stop(&a);
    assert_int_equal(a.n_requests, 1);
}

static void test_pipelined_body_is_never_mixed_up(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int fd = dial(&a);
    say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\nPOST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbody");
    hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "hello")); /* the second is for the client to repeat */
    assert_null(strstr(strstr(buf_str(&got), "hello"), "HTTP/1.1"));
    close(fd);
    buf_free(&got);
    stop(&a);
    assert_int_equal(a.n_requests, 1);
    assert_int_equal(a.n_done, 1);
}

/* --- limits --- */

static void test_bodies_over_the_limit(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){.max_body = 10});
    static const char fits[] = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\n0123456789";
    ask(&a, fits, sizeof fits - 1, "\r\n\r\n0123456789");
    static const char large[] = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 11\r\n\r\n0123456789a";
    ask(&a, large, sizeof large - 1, "HTTP/1.1 413 Content Too Large\r\n");
    static const char enormous[] = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 99999999999999999999999999\r\n\r\n0";
    ask(&a, enormous, sizeof enormous - 1, "HTTP/1.1 413 Content Too Large\r\n");
    static const char waits[] = "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 4000\r\n\r\n";
    ask(&a, waits, sizeof waits - 1, "HTTP/1.1 413 Content Too Large\r\n");
    static const char chunks[] =
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n64\r\n0123456789\r\n0\r\n\r\n";
    ask(&a, chunks, sizeof chunks - 1, "HTTP/1.1 411 Length Required\r\n");
    stop(&a);
    assert_int_equal(a.n_requests, 1);
}

static void test_refused_body_is_still_taken(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){.max_body = 10});
    const int fd = dial(&a);
    say(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 500000\r\n\r\n");
    say_n(fd, big, 500000); /* a reset would take the answer away */
    hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "413"));
    close(fd);
    buf_free(&got);
    stop(&a);
}

static void test_heads_over_the_limit(void **state)
{
    (void)state;
    static struct app a;
    static char text[40000];
    start(&a, (struct http_config){.max_head = 4096});
    for (int kind = 0; kind < 4; kind++) {
        static const char *const first[] = {"GET /", "GET /hello?",
                                            "GET /hello HTTP/1.1\r\nX-Long: ", "GET /hello HTTP/1.1\r\nAccept: "};
        for (size_t n = 4090; n <= 4100; n++) {
            const int used = snprintf(text, sizeof text, "%s", first[kind]);
            memset(text + used, 'a', n);
            const int more =
                snprintf(text + used + n, 200, "%s\r\n" HOST "Connection: close\r\n\r\n", kind < 2 ? " HTTP/1.1" : "");
            ask(&a, text, (size_t)used + n + (size_t)more, NULL);
        }
        memset(text + 100, 'a', sizeof text - 100);
        ask(&a, text, sizeof text, NULL);
    }
    size_t at = (size_t)snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n" HOST);
    for (int i = 0; i < 2000; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "x-%d: %d\r\n", i, i);
    at += (size_t)snprintf(text + at, sizeof text - at, "\r\n");
    ask(&a, text, at, NULL);
    at = (size_t)snprintf(text, sizeof text, "GET /hello HTTP/1.1\r\n" HOST);
    for (int i = 0; i < 500; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "Accept: a\r\n");
    at += (size_t)snprintf(text + at, sizeof text - at, "\r\n");
    ask(&a, text, at, NULL);
    static const char good[] = "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    assert_int_equal(now(&a, &a.n_requests), 0);
    ask(&a, good, sizeof good - 1, "hello");
    stop(&a);
}

/* Says text and waits for the server to close. */
static void wait_closed(struct app *a, const char *text, const char *want)
{
    struct buf got = {0};
    const int fd = dial(a);
    say(fd, text);
    hear(fd, &got, NULL);
    if (!strstr(buf_str(&got), want))
        fail_msg("'%s' is not in '%s'", want, buf_str(&got));
    close(fd);
    buf_free(&got);
}

static void test_slow_requests_end(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){.head_ms = 150, .idle_ms = 150});
    wait_closed(&a, "", "");
    wait_closed(&a, "GET /hel", "HTTP/1.1 408 Request Timeout\r\n");
    wait_closed(&a, "GET /hello HTTP/1.1\r\nX: ", "HTTP/1.1 408 Request Timeout\r\n");
    wait_closed(&a, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhalf", "HTTP/1.1 408 Request Timeout\r\n");
    wait_closed(&a, "GET /hello HTTP/1.1\r\n" HOST "\r\n", "hello"); /* kept alive, then idle */
    stop(&a);
    assert_int_equal(a.n_requests, 1);
}

static void test_trickling_does_not_extend_the_deadline(void **state)
{
    (void)state;
    static struct app a;
    start(&a, (struct http_config){.head_ms = 300});
    const int fd = dial(&a);
    bool ended = false;
    for (int i = 0; i < 1000 && !ended; i++) { /* ten seconds at most */
        struct pollfd p = {.fd = fd, .events = POLLIN};
        send(fd, "a", 1, MSG_NOSIGNAL);
        ended = poll(&p, 1, 10) > 0;
    }
    assert_true(ended);
    close(fd);
    stop(&a);
}

static void test_too_many_connections(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){.max_connections = 2});
    const int one = dial(&a), two = dial(&a);
    say(one, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    say(two, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    wait_for(&a, &a.n_requests, 2);
    const int three = dial(&a);
    hear(three, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "HTTP/1.1 503 Service Unavailable\r\n"));
    close(one);
    wait_for(&a, &a.n_cut, 1);
    const int four = dial(&a);
    say(four, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    hear(four, &got, "hello");
    close(two);
    close(three);
    close(four);
    buf_free(&got);
    stop(&a);
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
    static struct app a;
    start(&a, (struct http_config){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ask(&a, cases[i].text, cases[i].n, cases[i].want);
        if (now(&a, &a.n_requests) != 0)
            fail_msg("taken for a request: %s", cases[i].text);
    }
    static const char good[] = "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    ask(&a, good, sizeof good - 1, "hello");
    stop(&a);
}

static void test_requests_cut_anywhere(void **state)
{
    (void)state;
    static struct app a;
    static const char text[] =
        "POST /echo HTTP/1.1\r\n" HOST "Content-Type: a/b\r\nX-Own: c\r\nContent-Length: 9\r\n\r\nsome body";
    start(&a, (struct http_config){0});
    for (size_t cut = 0; cut < sizeof text - 1; cut++) {
        const int fd = dial(&a); /* the client leaves at this byte */
        say_n(fd, text, cut);
        close(fd);
    }
    const int fd = dial(&a);
    for (size_t i = 0; i < sizeof text - 1; i++) { /* and one that sends byte by byte */
        say_n(fd, text + i, 1);
        if (i % 7 == 0)
            usleep(200);
    }
    struct buf got = {0};
    hear(fd, &got, "\r\n\r\nsome body");
    close(fd);
    buf_free(&got);
    stop(&a);
    assert_int_equal(a.n_requests, 1);
}

/* --- starting, waking, stopping --- */

static void test_stop_with_open_connections(void **state)
{
    (void)state;
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){0});
    const int idle = dial(&a), half = dial(&a), waiting = dial(&a), stream = dial(&a);
    say(half, "GET /hel");
    say(waiting, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    say(stream, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    hear(stream, &got, "\r\n\r\n");
    wait_for(&a, &a.n_requests, 2);
    stop(&a);
    assert_int_equal(a.n_cut, 2);
    assert_int_equal(a.n_done, 0);
    buf_clear(&got);
    hear(idle, &got, NULL);
    hear(stream, &got, NULL);
    assert_int_equal(got.len, 0);
    close(idle);
    close(half);
    close(waiting);
    close(stream);
    buf_free(&got);
    http_stop(NULL);
}

static void *wake_often(void *arg)
{
    struct app *a = arg;
    for (int i = 0; i < 2000; i++)
        http_wake(a->server);
    return NULL;
}

static void test_wake_from_many_threads(void **state)
{
    (void)state;
    static struct app a;
    pthread_t thread[4];
    start(&a, (struct http_config){0});
    for (int i = 0; i < 4; i++)
        assert_int_equal(thread_start(&thread[i], "waker", wake_often, &a, NULL), OK);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    const unsigned before = now(&a, &a.n_wakes);
    http_wake(a.server);
    wait_for(&a, &a.n_wakes, before + 1);
    wait_for(&a, &a.n_wakes, before + 4); /* also by itself */
    stop(&a);
}

static void test_servers_side_by_side(void **state)
{
    (void)state;
    static struct app a[3];
    static const char request[] = "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    for (int i = 0; i < 3; i++)
        start(&a[i], (struct http_config){0});
    for (int i = 0; i < 9; i++)
        ask(&a[i % 3], request, sizeof request - 1, "hello");
    for (int i = 0; i < 3; i++) {
        stop(&a[i]);
        assert_int_equal(a[i].n_done, 3);
    }
}

static void test_addresses(void **state)
{
    (void)state;
    static struct app a;
    struct err e = {0};
    struct http_server *s = NULL;
    static const char *const bad[] = {"",           "127.0.0.1",        "::1:80", "[::1]", "127.0.0.1:70000",
                                      "127.0.0.1:", "no.such.invalid:0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct http_config config = {.addr = bad[i], .on_request = on_request};
        if (http_start(&config, &s, &e) != ERR_ARG)
            fail_msg("'%s' was taken", bad[i]);
        assert_int_not_equal(e.msg[0], 0);
    }
    start(&a, (struct http_config){.addr = "localhost:0"});
    char taken[32];
    snprintf(taken, sizeof taken, "127.0.0.1:%u", http_port(a.server));
    const struct http_config config = {.addr = taken, .on_request = on_request};
    assert_int_equal(http_start(&config, &s, &e), ERR_IO);
    assert_non_null(strstr(e.msg, taken));
    assert_non_null(strstr(e.msg, "another program"));
    assert_null(s);
    stop(&a);
}

static void test_ipv6(void **state)
{
    (void)state;
    const int probe = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const bool there = probe >= 0 && bind(probe, (struct sockaddr *)&to, sizeof to) == 0;
    close(probe);
    if (!there)
        skip();
    static struct app a;
    struct buf got = {0};
    start(&a, (struct http_config){.addr = "[::1]:0"});
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    to.sin6_port = htons(http_port(a.server));
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    hear(fd, &got, "hello");
    close(fd);
    buf_free(&got);
    stop(&a);
}

static void test_signals_stay_as_they_were(void **state)
{
    (void)state;
    static struct app a;
    struct sigaction before, after;
    sigaction(SIGPIPE, NULL, &before);
    start(&a, (struct http_config){0});
    sigaction(SIGPIPE, NULL, &after);
    assert_ptr_equal(before.sa_handler, after.sa_handler);
    stop(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_whole),
        cmocka_unit_test(test_status_has_its_text),
        cmocka_unit_test(test_thousand_requests_on_one_connection),
        cmocka_unit_test(test_many_clients_at_once),
        cmocka_unit_test(test_large_bodies_both_ways),
        cmocka_unit_test(test_headers_arrive),
        cmocka_unit_test(test_paths_are_decoded),
        cmocka_unit_test(test_head_has_no_body),
        cmocka_unit_test(test_expect_continue),
        cmocka_unit_test(test_post_without_length_has_no_body),
        cmocka_unit_test(test_other_protocols_are_not_taken_up),
        cmocka_unit_test(test_parts_arrive_one_by_one),
        cmocka_unit_test(test_old_clients_get_streams_without_chunks),
        cmocka_unit_test(test_client_that_leaves_a_stream),
        cmocka_unit_test(test_client_that_leaves_before_the_answer),
        cmocka_unit_test(test_half_closed_client),
        cmocka_unit_test(test_slow_reader_is_cut),
        cmocka_unit_test(test_reader_that_stops_is_cut),
        cmocka_unit_test(test_pipelined_requests_in_order),
        cmocka_unit_test(test_bytes_after_a_body_end_the_connection),
        cmocka_unit_test(test_pipelined_body_is_never_mixed_up),
        cmocka_unit_test(test_bodies_over_the_limit),
        cmocka_unit_test(test_refused_body_is_still_taken),
        cmocka_unit_test(test_heads_over_the_limit),
        cmocka_unit_test(test_slow_requests_end),
        cmocka_unit_test(test_trickling_does_not_extend_the_deadline),
        cmocka_unit_test(test_too_many_connections),
        cmocka_unit_test(test_malformed_requests),
        cmocka_unit_test(test_requests_cut_anywhere),
        cmocka_unit_test(test_stop_with_open_connections),
        cmocka_unit_test(test_wake_from_many_threads),
        cmocka_unit_test(test_servers_side_by_side),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_signals_stay_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
