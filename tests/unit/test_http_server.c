/* SPDX-License-Identifier: MIT
 *
 * The HTTP server as its clients see it, over real sockets: what is answered, in which order, and that each request
 * handed over is gone exactly once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/thread.h"
#include "lib/test_util.h"
#include "lib/web_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- answers --- */

static void test_answers_whole(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, "hello");
    assert_ptr_equal(strstr(buf_str(&got), "HTTP/1.1 200 OK\r\nserver: kvasir/"), buf_str(&got));
    assert_non_null(strstr(buf_str(&got), "\r\ndate: "));
    assert_non_null(strstr(buf_str(&got), "\r\ncontent-type: text/plain\r\n"));
    assert_non_null(strstr(buf_str(&got), "\r\nx-own: yes\r\n"));
    assert_non_null(strstr(buf_str(&got), "\r\ncontent-length: 5\r\n"));
    assert_non_null(strstr(buf_str(&got), "\r\n\r\nhello"));
    assert_null(strstr(buf_str(&got), "libwebsockets"));
    web_wait(&a, &a.n_done, 1);
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_cut, 0);
}

static void test_status_has_its_text(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    static const char request[] = "GET /no HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    web_ask(&a, request, sizeof request - 1, "HTTP/1.1 404 Not Found\r\n");
    web_stop(&a);
}

static void test_thousand_requests_on_one_connection(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    for (int i = 0; i < 1000; i++) {
        struct buf got = {0};
        char text[200], body[32];
        const int n = snprintf(body, sizeof body, "number %d.", i);
        snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n%s", n, body);
        web_say(fd, text);
        web_hear(fd, &got, body);
        buf_free(&got);
    }
    close(fd);
    web_stop(&a);
    assert_int_equal(a.n_requests, 1000);
    assert_int_equal(a.n_done, 1000);
}

static void test_many_clients_at_once(void **state)
{
    (void)state;
    static struct web a;
    int fd[64];
    web_start(&a, (struct http_config){0});
    for (int i = 0; i < 64; i++)
        fd[i] = web_dial(&a);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 64; i++) {
            char text[200];
            snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 11\r\n\r\nclient %03d", i);
            web_say(fd[i], text);
            web_say(fd[i], ".");
        }
        for (int i = 0; i < 64; i++) {
            struct buf got = {0};
            char want[32];
            snprintf(want, sizeof want, "\r\n\r\nclient %03d.", i);
            web_hear(fd[i], &got, want);
            buf_free(&got);
        }
    }
    for (int i = 0; i < 64; i++)
        close(fd[i]);
    web_stop(&a);
    assert_int_equal(a.n_done, 192);
}

static void test_large_bodies_both_ways(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){.max_queued = 1000}); /* which is for streams */
    const int fd = web_dial(&a);
    web_say(fd, "POST /echo HTTP/1.1\r\n" HOST "Connection: close\r\nContent-Length: 3145728\r\n\r\n");
    memset(web_big, 'y', sizeof web_big);
    web_say_n(fd, web_big, sizeof web_big);
    web_hear(fd, &got, NULL);
    const char *body = strstr(buf_str(&got), "\r\n\r\n") + 4;
    assert_int_equal(strlen(body), sizeof web_big);
    assert_memory_equal(body, web_big, sizeof web_big);
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_done, 1);
}

static void test_headers_arrive(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    static const char known[] =
        "DELETE /head HTTP/1.1\r\n" HOST "X-Test: \t a b \r\nAuthorization: Bearer t\r\nConnection: close\r\n\r\n";
    web_ask(&a, known, sizeof known - 1, "\r\n\r\nDELETE|a b|Bearer t");
    static const char options[] = "OPTIONS /head HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    web_ask(&a, options, sizeof options - 1, "\r\n\r\nOPTIONS|-|-");
    web_stop(&a);
}

static void test_paths_are_decoded(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    static const char request[] = "GET /he%6clo?x=1&y HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    web_ask(&a, request, sizeof request - 1, "\r\n\r\nhello");
    web_stop(&a);
}

static void test_queries_arrive(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"", ""},
                                           {"?", ""},
                                           {"?a=1", "a=1"},
                                           {"?a=1&", "a=1&"},
                                           {"?&", "&"},
                                           {"?a=1&b=2:3", "a=1&b=2:3"},
                                           {"?a=%31%3a2", "a=1:2"},
                                           {"?layers=0:2", "layers=0:2"}};
    static struct web a;
    web_start(&a, (struct http_config){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200], want[64];
        const int n =
            snprintf(text, sizeof text, "GET /query%s HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", cases[i][0]);
        snprintf(want, sizeof want, "content-length: %zu\r\nconnection: close\r\n\r\n%s", strlen(cases[i][1]),
                 cases[i][1]);
        web_ask(&a, text, (size_t)n, want);
    }
    web_stop(&a);
}

static void test_head_has_no_body(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "HEAD /hello HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, "content-length: 5\r\n\r\n");
    web_say(fd, "GET /no HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    web_hear(fd, &got, NULL);
    assert_null(strstr(buf_str(&got), "hello"));
    assert_non_null(strstr(buf_str(&got), "content-length: 5\r\n\r\nHTTP/1.1 404"));
    close(fd);
    buf_free(&got);
    web_stop(&a);
}

static void test_expect_continue(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    web_hear(fd, &got, "HTTP/1.1 100 Continue\r\n\r\n");
    web_say(fd, "body");
    web_hear(fd, &got, "\r\n\r\nbody");
    close(fd);
    buf_free(&got);
    web_stop(&a);
}

static void test_post_without_length_has_no_body(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    static const char none[] = "POST /echo HTTP/1.1\r\n" HOST "\r\n";
    web_ask(&a, none, sizeof none - 1, "content-length: 0\r\n");
    static const char zero[] =
        "PUT /echo HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n";
    web_ask(&a, zero, sizeof zero - 1, "\r\n\r\nhello");
    web_stop(&a);
}

static void test_other_protocols_are_not_taken_up(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    static const char h2c[] = "GET /hello HTTP/1.1\r\n" HOST
                              "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n\r\n";
    web_ask(&a, h2c, sizeof h2c - 1, "\r\n\r\nhello");
    static const char ws[] =
        "GET /hello HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    web_ask(&a, ws, sizeof ws - 1, "\r\n\r\nhello");
    web_stop(&a);
}

/* --- bodies made while they are sent --- */

static void hear_made(int fd, uint64_t n)
{
    struct buf got = {0};
    char want[64];
    snprintf(want, sizeof want, "\r\ncontent-length: %llu\r\n", (unsigned long long)n);
    web_hear(fd, &got, "\r\n\r\n");
    assert_ptr_equal(strstr(buf_str(&got), "HTTP/1.1 20"), buf_str(&got));
    assert_non_null(strstr(buf_str(&got), want));
    const size_t at = (size_t)(strstr(buf_str(&got), "\r\n\r\n") + 4 - (const char *)got.data);
    uint8_t data[65536];
    uint64_t i = 0;
    for (size_t k = at; k < got.len; k++, i++)
        if (got.data[k] != web_made(i))
            fail_msg("byte %llu", (unsigned long long)i);
    while (i < n) {
        const ssize_t len = recv(fd, data, n - i < sizeof data ? (size_t)(n - i) : sizeof data, 0);
        if (len < 0 && errno == EINTR) /* the process was stopped and goes on */
            continue;
        if (len <= 0)
            fail_msg("after %llu of %llu", (unsigned long long)i, (unsigned long long)n);
        for (ssize_t k = 0; k < len; k++, i++)
            if (data[k] != web_made(i))
                fail_msg("byte %llu", (unsigned long long)i);
    }
    assert_true(i == n);
    buf_free(&got);
}

static void test_made_bodies_of_all_sizes(void **state)
{
    (void)state;
    static struct web a;
    static const uint64_t sizes[] = {0,
                                     1,
                                     HTTP_PIECE_BYTES - 1,
                                     HTTP_PIECE_BYTES,
                                     HTTP_PIECE_BYTES + 1,
                                     4 * HTTP_PIECE_BYTES,
                                     9 * HTTP_PIECE_BYTES + 5,
                                     24u << 20};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a); /* one after the other on one connection */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char text[100];
        snprintf(text, sizeof text, "GET /made/%llu HTTP/1.1\r\n" HOST "\r\n", (unsigned long long)sizes[i]);
        web_say(fd, text);
        hear_made(fd, sizes[i]);
    }
    close(fd);
    web_stop(&a);
    assert_int_equal(a.n_done, sizeof sizes / sizeof *sizes);
    assert_int_equal(a.n_cut, 0);
}

static void test_made_bodies_at_once(void **state)
{
    (void)state;
    static struct web a;
    int fd[16];
    web_start(&a, (struct http_config){0});
    for (int i = 0; i < 16; i++) {
        fd[i] = web_dial(&a);
        web_say(fd[i], "GET /made/9000000 HTTP/1.1\r\n" HOST "\r\n");
    }
    for (int i = 15; i >= 0; i--) {
        hear_made(fd[i], 9000000);
        close(fd[i]);
    }
    web_stop(&a);
    assert_int_equal(a.n_done, 16);
}

static void test_head_of_a_made_body(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "HEAD /made/123456789012 HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, "content-length: 123456789012\r\n\r\n");
    web_say(fd, "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    web_hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "content-length: 123456789012\r\n\r\nHTTP/1.1 200"));
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_made, 0);
}

static void test_made_body_for_who_closed_the_sending_side(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "GET /made/20000000 HTTP/1.1\r\n" HOST "\r\n");
    shutdown(fd, SHUT_WR);
    hear_made(fd, 20000000);
    close(fd);
    web_stop(&a);
    assert_int_equal(a.n_done, 1);
}

/* A client that takes nothing makes the server produce no more than sockets hold, and is cut in the end. */
static void test_made_body_waits_for_its_client(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){.idle_ms = 300});
    const int fd = web_dial(&a);
    web_say(fd, "GET /made/900000000000 HTTP/1.1\r\n" HOST "\r\n");
    web_wait(&a, &a.n_cut, 1);
    assert_true(a.n_made > 0 && a.n_made < 64u << 20);
    close(fd);
    web_stop(&a);
}

static void test_made_body_nobody_takes_to_its_end(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    int fd = web_dial(&a);
    web_say(fd, "GET /made/900000000000 HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, "content-length: 900000000000");
    close(fd); /* with bytes unread: a reset */
    web_wait(&a, &a.n_cut, 1);
    fd = web_dial(&a);
    web_say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    buf_clear(&got); /* some of the body may have come with its head, zero bytes among it */
    web_hear(fd, &got, "hello");
    close(fd);
    buf_free(&got);
    web_stop(&a);
}

static void test_made_body_that_breaks_off_is_cut(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "GET /broken/1000000 HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "content-length: 1000000\r\n"));
    assert_true(got.len < 1000000);
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_cut, 1);
}

/* --- files --- */

/* A file of n bytes as web_made has them, which the disk must read. */
static int make_cold_file(uint64_t n)
{
    char path[PATH_MAX];
    struct buf data = {0};
    struct err e;
    for (uint64_t i = 0; i < n; i++)
        buf_put_u8(&data, web_made(i));
    if (io_write_file(test_scratch("cold", path), data.data, data.len, 0600, &e) != OK)
        fail_msg("%s", e.msg);
    buf_free(&data);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        fail_msg("%s", path);
    unlink(path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return fd;
}

static void test_cold_files(void **state)
{
    (void)state;
    static struct web a;
    static const uint64_t n = (8u << 20) + 5;
    int fd[8];
    web_start(&a, (struct http_config){0});
    a.file_fd = make_cold_file(n);
    for (int i = 0; i < 8; i++) {
        char text[100];
        fd[i] = web_dial(&a);
        snprintf(text, sizeof text, "GET /file/%llu HTTP/1.1\r\n" HOST "\r\n",
                 (unsigned long long)(i % 2 ? n : 1000000));
        web_say(fd[i], text);
    }
    for (int i = 0; i < 8; i++)
        hear_made(fd[i], i % 2 ? n : 1000000);
    for (int i = 0; i < 8; i++)
        close(fd[i]);
    web_stop(&a);
    close(a.file_fd);
    assert_int_equal(a.n_done, 8);
}

static void test_a_file_that_is_too_short_is_cut(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    a.file_fd = make_cold_file(300000);
    const int fd = web_dial(&a);
    web_say(fd, "GET /file/400000 HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "content-length: 400000\r\n"));
    assert_true(got.len > 300000 && got.len < 400000);
    close(fd);
    buf_free(&got);
    web_stop(&a);
    close(a.file_fd);
    assert_int_equal(a.n_cut, 1);
}

/* --- streams --- */

static void test_parts_arrive_one_by_one(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, "transfer-encoding: chunked\r\n\r\n");
    for (int i = 0; i < 20; i++) {
        char part[32], want[64];
        snprintf(part, sizeof part, "part %02d", i);
        snprintf(want, sizeof want, "7\r\n%s\r\n", part);
        web_part(&a, part, false);
        web_hear(fd, &got, want); /* nothing but this part makes it come */
    }
    web_part(&a, "last", true);
    web_hear(fd, &got, "4\r\nlast\r\n0\r\n\r\n");
    web_wait(&a, &a.n_done, 1);
    web_say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n"); /* the connection goes on */
    web_hear(fd, &got, "hello");
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_cut, 0);
}

static void test_old_clients_get_streams_without_chunks(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    web_hear(fd, &got, "connection: close\r\n\r\n");
    web_part(&a, "text", true);
    web_hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "\r\n\r\ntext"));
    assert_null(strstr(buf_str(&got), "chunked"));
    close(fd);
    buf_free(&got);
    web_stop(&a);
}

static void test_client_that_leaves_a_stream(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, "\r\n\r\n");
    close(fd);
    web_wait(&a, &a.n_cut, 1); /* without a part being written */
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_cut, 1);
    assert_int_equal(a.n_done, 0);
}

static void test_client_that_leaves_before_the_answer(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd,
            "GET /never HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n"); /* unread bytes hide nothing */
    web_wait(&a, &a.n_requests, 1);
    close(fd);
    web_wait(&a, &a.n_cut, 1);
    web_stop(&a);
    assert_int_equal(a.n_requests, 1);
}

static void test_half_closed_client(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){0});
    static const char quick[] = "GET /big HTTP/1.1\r\n" HOST "\r\n";
    web_ask(&a, quick, sizeof quick - 1, "xxxx"); /* an answer that is made is sent */
    web_wait(&a, &a.n_done, 1);
    static const char slow[] = "GET /never HTTP/1.1\r\n" HOST "\r\n";
    web_ask(&a, slow, sizeof slow - 1, "");
    web_wait(&a, &a.n_cut, 1); /* nobody waits for one that is not */
    web_stop(&a);
}

static void test_slow_reader_is_cut(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){.max_queued = 100000});
    const int fd = web_dial(&a);
    web_say(fd, "GET /flood HTTP/1.1\r\n" HOST "\r\n");
    for (const uint64_t deadline = clock_deadline_ms(WEB_WAIT_MS);
         web_now(&a, &a.n_cut) == 0 && clock_now_ns() < deadline; usleep(1000))
        http_wake(a.server); /* which writes more */
    close(fd);
    web_stop(&a);
    assert_int_equal(a.n_cut, 1);
}

static void test_reader_that_stops_is_cut(void **state)
{
    (void)state;
    static struct web a;
    web_start(&a, (struct http_config){.idle_ms = 200});
    const int fd = web_dial(&a);
    web_say(fd, "GET /huge HTTP/1.1\r\n" HOST "\r\n");
    web_wait(&a, &a.n_cut, 1);
    close(fd);
    web_stop(&a);
    assert_int_equal(a.n_done, 0);
}

/* Takes so much, 4 KiB at a time; false: it was cut. *gap_ms: the longest that this thread let the server wait. */
static bool read_slowly(int fd, size_t want, uint32_t *gap_ms)
{
    uint64_t last = clock_now_ns();
    char data[4096];
    *gap_ms = 0;
    for (size_t had = 0; had < want; usleep(20000)) {
        const ssize_t n = recv(fd, data, sizeof data, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        had += n > 0 ? (size_t)n : 0;
        const uint32_t gap = (uint32_t)((clock_now_ns() - last) / CLOCK_NS_PER_MS);
        last = clock_now_ns();
        *gap_ms = gap > *gap_ms ? gap : *gap_ms;
    }
    return true;
}

/* Who takes little at a time is not who takes nothing, and is waited for to the last byte, which has long been in the
 * socket by then. */
static void test_slow_reader_that_goes_on_is_not_cut(void **state)
{
    (void)state;
    static struct web a;
    static const uint32_t idle_ms = 800;
    const uint64_t deadline = clock_deadline_ms(WEB_WAIT_MS);
    const int small = 131072;
    uint32_t gap_ms;
    bool whole = false;
    web_start(&a, (struct http_config){.idle_ms = idle_ms, .head_ms = WEB_WAIT_MS});
    while (!whole && clock_now_ns() < deadline) {
        const int fd = web_dial(&a);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        web_say(fd, "GET /made/1000000 HTTP/1.1\r\n" HOST "\r\n");
        whole = read_slowly(fd, 1000000, &gap_ms);
        close(fd);
        if (!whole && gap_ms < idle_ms / 4) /* else it was this thread that was slow: again */
            fail_msg("cut, though never more than %u ms passed", gap_ms);
    }
    web_stop(&a);
    if (!whole)
        skip(); /* never fast enough to tell */
}

/* --- pipelines --- */

static void test_pipelined_requests_in_order(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd,
            "GET /stream HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST "\r\nGET /no HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, "\r\n\r\n");
    web_say(fd, "HEAD /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    assert_int_equal(web_now(&a, &a.n_requests), 1);
    web_part(&a, "first", true);
    web_hear(fd, &got, NULL);
    const char *first = strstr(buf_str(&got), "first"), *second = strstr(buf_str(&got), "hello");
    const char *third = strstr(buf_str(&got), "404 Not Found");
    assert_non_null(first);
    assert_true(first < second && second < third);
    assert_non_null(strstr(third, "content-length: 5\r\n"));
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_done, 4);
}

static void test_bytes_after_a_body_end_the_connection(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbodyPOST /echo HTTP/1.1\r\n" HOST
                "Content-Length: 4\r\n\r\nmore");
    web_hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "connection: close\r\n\r\nbody"));
    assert_null(strstr(buf_str(&got), "more"));
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_requests, 1);
}

static void test_pipelined_body_is_never_mixed_up(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int fd = web_dial(&a);
    web_say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\nPOST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbody");
    web_hear(fd, &got, NULL);
    assert_non_null(strstr(buf_str(&got), "hello")); /* the second is for the client to repeat */
    assert_null(strstr(strstr(buf_str(&got), "hello"), "HTTP/1.1"));
    close(fd);
    buf_free(&got);
    web_stop(&a);
    assert_int_equal(a.n_requests, 1);
    assert_int_equal(a.n_done, 1);
}

/* --- starting, waking, stopping --- */

static void test_stop_with_open_connections(void **state)
{
    (void)state;
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){0});
    const int idle = web_dial(&a), half = web_dial(&a), waiting = web_dial(&a), stream = web_dial(&a);
    web_say(half, "GET /hel");
    web_say(waiting, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    web_say(stream, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    web_hear(stream, &got, "\r\n\r\n");
    web_wait(&a, &a.n_requests, 2);
    web_stop(&a);
    assert_int_equal(a.n_cut, 2);
    assert_int_equal(a.n_done, 0);
    buf_clear(&got);
    web_hear(idle, &got, NULL);
    web_hear(stream, &got, NULL);
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
    struct web *a = arg;
    for (int i = 0; i < 2000; i++)
        http_wake(a->server);
    return NULL;
}

static void test_wake_from_many_threads(void **state)
{
    (void)state;
    static struct web a;
    pthread_t thread[4];
    web_start(&a, (struct http_config){0});
    for (int i = 0; i < 4; i++)
        assert_int_equal(thread_start(&thread[i], "waker", wake_often, &a, NULL), OK);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    const unsigned before = web_now(&a, &a.n_wakes);
    http_wake(a.server);
    web_wait(&a, &a.n_wakes, before + 1);
    web_wait(&a, &a.n_wakes, before + 4); /* also by itself */
    web_stop(&a);
}

static void test_servers_side_by_side(void **state)
{
    (void)state;
    static struct web a[3];
    static const char request[] = "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    for (int i = 0; i < 3; i++)
        web_start(&a[i], (struct http_config){0});
    for (int i = 0; i < 9; i++)
        web_ask(&a[i % 3], request, sizeof request - 1, "hello");
    for (int i = 0; i < 3; i++) {
        web_stop(&a[i]);
        assert_int_equal(a[i].n_done, 3);
    }
}

static void never_asked(void *ctx, struct http_request *r)
{
    (void)ctx;
    (void)r;
    fail();
}

static void test_addresses(void **state)
{
    (void)state;
    static struct web a;
    struct err e = {0};
    struct http_server *s = NULL;
    /* The last one is a name that cannot be, whatever a resolver says, or when. */
    static const char *const bad[] = {"", "127.0.0.1", "::1:80", "[::1]", "127.0.0.1:70000", "127.0.0.1:", "a..b:0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct http_config config = {.addr = bad[i], .on_request = never_asked};
        if (http_start(&config, &s, &e) != ERR_ARG)
            fail_msg("'%s' was taken", bad[i]);
        assert_int_not_equal(e.msg[0], 0);
    }
    web_start(&a, (struct http_config){.addr = "localhost:0"});
    char taken[32];
    snprintf(taken, sizeof taken, "127.0.0.1:%u", http_port(a.server));
    const struct http_config config = {.addr = taken, .on_request = never_asked};
    assert_int_equal(http_start(&config, &s, &e), ERR_IO);
    assert_non_null(strstr(e.msg, taken));
    assert_non_null(strstr(e.msg, "another program"));
    assert_null(s);
    web_stop(&a);
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
    static struct web a;
    struct buf got = {0};
    web_start(&a, (struct http_config){.addr = "[::1]:0"});
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd < 0) {
        fail_msg("no socket");
        return;
    }
    to.sin6_port = htons(http_port(a.server));
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    web_say(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    web_hear(fd, &got, "hello");
    close(fd);
    buf_free(&got);
    web_stop(&a);
}

static void test_signals_stay_as_they_were(void **state)
{
    (void)state;
    static struct web a;
    struct sigaction before, after;
    sigaction(SIGPIPE, NULL, &before);
    web_start(&a, (struct http_config){0});
    sigaction(SIGPIPE, NULL, &after);
    assert_ptr_equal(before.sa_handler, after.sa_handler);
    web_stop(&a);
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
        cmocka_unit_test(test_queries_arrive),
        cmocka_unit_test(test_head_has_no_body),
        cmocka_unit_test(test_expect_continue),
        cmocka_unit_test(test_post_without_length_has_no_body),
        cmocka_unit_test(test_other_protocols_are_not_taken_up),
        cmocka_unit_test(test_made_bodies_of_all_sizes),
        cmocka_unit_test(test_made_bodies_at_once),
        cmocka_unit_test(test_head_of_a_made_body),
        cmocka_unit_test(test_made_body_for_who_closed_the_sending_side),
        cmocka_unit_test(test_made_body_waits_for_its_client),
        cmocka_unit_test(test_made_body_nobody_takes_to_its_end),
        cmocka_unit_test(test_made_body_that_breaks_off_is_cut),
        cmocka_unit_test(test_cold_files),
        cmocka_unit_test(test_a_file_that_is_too_short_is_cut),
        cmocka_unit_test(test_parts_arrive_one_by_one),
        cmocka_unit_test(test_old_clients_get_streams_without_chunks),
        cmocka_unit_test(test_client_that_leaves_a_stream),
        cmocka_unit_test(test_client_that_leaves_before_the_answer),
        cmocka_unit_test(test_half_closed_client),
        cmocka_unit_test(test_slow_reader_is_cut),
        cmocka_unit_test(test_reader_that_stops_is_cut),
        cmocka_unit_test(test_slow_reader_that_goes_on_is_not_cut),
        cmocka_unit_test(test_pipelined_requests_in_order),
        cmocka_unit_test(test_bytes_after_a_body_end_the_connection),
        cmocka_unit_test(test_pipelined_body_is_never_mixed_up),
        cmocka_unit_test(test_stop_with_open_connections),
        cmocka_unit_test(test_wake_from_many_threads),
        cmocka_unit_test(test_servers_side_by_side),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_signals_stay_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
