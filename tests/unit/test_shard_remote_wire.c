/* SPDX-License-Identifier: MIT
 *
 * A model read from servers whose answers no ordinary server gives: bytes in crumbs, bodies without a length, heads
 * without an end, files of another length; and how much of a header comes in vain.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/thread.h"
#include "lib/pull_rig.h"
#include "shard/remote_impl.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct pull_rig rig;

static int group_setup(void **state)
{
    *state = &rig;
    struct maker_params p = maker_small();
    rig_start(&rig, "wire.gguf", &p);
    return 0;
}

/* --- a server that says what it is told to --- */

struct wire {
    int fd;
    uint16_t port;
    pthread_t thread;
    atomic_uint n_requests;
    /* Answers request i (from 0) for the bytes [from, to) of the model. The connection is closed then. */
    void (*answer)(int fd, unsigned i, uint64_t from, uint64_t to);
};

static bool read_request(int fd, uint64_t *from, uint64_t *to)
{
    char text[8192] = "";
    size_t len = 0;
    while (!strstr(text, "\r\n\r\n")) {
        const ssize_t n = recv(fd, text + len, sizeof text - 1 - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
        text[len] = 0;
    }
    const char *range = strstr(text, "Range: bytes=");
    if (!range)
        return false;
    char *dash;
    *from = strtoull(range + strlen("Range: bytes="), &dash, 10);
    *to = strtoull(dash + 1, NULL, 10) + 1;
    return *dash == '-';
}

static void *wire_main(void *arg)
{
    struct wire *w = arg;
    for (;;) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        const int fd = accept4(w->fd, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
        uint64_t from, to;
        if (fd < 0)
            return NULL;
        if (read_request(fd, &from, &to))
            w->answer(fd, atomic_fetch_add(&w->n_requests, 1), from, to);
        close(fd);
    }
}

static void wire_start(struct wire *w, void (*answer)(int fd, unsigned i, uint64_t from, uint64_t to))
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    struct err e;
    *w = (struct wire){.answer = answer, .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(w->fd >= 0 && bind(w->fd, (struct sockaddr *)&at, len) == 0 && listen(w->fd, 16) == 0 &&
                getsockname(w->fd, (struct sockaddr *)&at, &len) == 0);
    w->port = ntohs(at.sin_port);
    assert_int_equal(thread_start(&w->thread, "wire", wire_main, w, &e), OK);
}

static void wire_stop(struct wire *w)
{
    shutdown(w->fd, SHUT_RDWR); /* ends accept */
    pthread_join(w->thread, NULL);
    close(w->fd);
}

static bool say(int fd, const char *text)
{
    return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

/* Status line and range: bytes [from, to) of a file of so many. */
static void say_range(int fd, uint64_t from, uint64_t to, uint64_t size)
{
    char text[200];
    snprintf(text, sizeof text,
             "HTTP/1.1 206 X\r\nConnection: close\r\nContent-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n",
             from, to - 1, size);
    say(fd, text);
}

static void say_bytes(int fd, uint64_t from, uint64_t to)
{
    for (ssize_t n; from < to; from += (uint64_t)n)
        if ((n = send(fd, rig.model.data + from, (size_t)(to - from), MSG_NOSIGNAL)) <= 0)
            return;
}

static uint64_t in_file(uint64_t to)
{
    return to < rig.model.len ? to : rig.model.len;
}

static struct remote_config config_of(const char *const *urls, uint32_t n)
{
    return (struct remote_config){.urls = urls, .n_urls = n, .n_retries = 2, .no_index = true};
}

/* What opening the model at such a server says. */
static void expect_open(void (*answer)(int fd, unsigned i, uint64_t from, uint64_t to), enum err_code code,
                        const char *in_text, unsigned max_requests)
{
    struct wire w;
    char url[64];
    const char *const urls[] = {url};
    struct remote_config c = config_of(urls, 1);
    struct remote *r = NULL;
    struct err e = {0};
    c.idle_ms = code == ERR_TIMEOUT ? 300 : 60000; /* who answers may be slow */
    wire_start(&w, answer);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/m.gguf", w.port);
    const enum err_code rc = remote_open(&c, &r, &e);
    remote_close(r);
    wire_stop(&w);
    if (rc != code || (rc != OK && !strstr(e.msg, in_text)))
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), in_text, err_name(rc), e.msg);
    assert_in_range(atomic_load(&w.n_requests), 1, max_requests);
}

/* --- odd answers --- */

static void crumbs(int fd, unsigned i, uint64_t from, uint64_t to)
{
    (void)i, (void)to;
    say_range(fd, from, from + 1, rig.model.len);
    say(fd, "Content-Length: 1\r\n\r\n");
    say_bytes(fd, from, from + 1);
}

static void test_a_byte_at_a_time(void **state)
{
    (void)state;
    expect_open(crumbs, ERR_PROTOCOL, "only 1 bytes of m.gguf at a time", 1);
}

/* HTTP/1.0 had no other way to say where a body ends than closing the connection. */
static void cut_without_length(int fd, unsigned i, uint64_t from, uint64_t to)
{
    to = in_file(to);
    say_range(fd, from, to, rig.model.len);
    say(fd, "\r\n");
    say_bytes(fd, from, i % 2 ? to : from + (to - from) / 2);
}

static void test_body_without_a_length_that_is_cut(void **state)
{
    (void)state;
    expect_open(cut_without_length, OK, "", 8);
}

static void says_more_than_it_sends(int fd, unsigned i, uint64_t from, uint64_t to)
{
    (void)i;
    say_range(fd, from, in_file(to), rig.model.len);
    say(fd, "Content-Length: 0\r\n\r\n");
}

static void test_fewer_bytes_than_said(void **state)
{
    (void)state;
    expect_open(says_more_than_it_sends, ERR_IO, "fewer bytes than it said", 3);
}

static void endless_head(int fd, unsigned i, uint64_t from, uint64_t to)
{
    (void)i, (void)from, (void)to;
    for (say(fd, "HTTP/1.1 206 X\r\nX-Slow: "); say(fd, "x");)
        usleep(10000);
}

static void test_head_without_an_end(void **state)
{
    (void)state;
    expect_open(endless_head, ERR_TIMEOUT, "127.0.0.1", 2);
}

static void large_head(int fd, unsigned i, uint64_t from, uint64_t to)
{
    (void)i, (void)from, (void)to;
    for (say(fd, "HTTP/1.1 206 X\r\n"); say(fd, "X-More: 0123456789012345678901234567890123456789\r\n");)
        ;
}

static void test_head_that_is_too_large(void **state)
{
    (void)state;
    expect_open(large_head, ERR_IO, "127.0.0.1", 3);
}

static void odd_range(int fd, unsigned i, uint64_t from, uint64_t to)
{
    (void)i, (void)from, (void)to;
    say(fd, "HTTP/1.1 206 X\r\nContent-Range: bytes 0-99999999999999999999/1\r\nContent-Length: 1\r\n\r\nG");
}

static void test_range_that_is_no_number(void **state)
{
    (void)state;
    expect_open(odd_range, ERR_PROTOCOL, "content-range", 1);
}

static void coloured_range(int fd, unsigned i, uint64_t from, uint64_t to)
{
    (void)i, (void)from, (void)to;
    say(fd, "HTTP/1.1 206 X\r\nContent-Range: \033[31mred\r\nContent-Length: 1\r\n\r\nG");
}

/* What a server says gets to a terminal as text only. */
static void test_range_with_control_characters(void **state)
{
    (void)state;
    expect_open(coloured_range, ERR_PROTOCOL, "content-range is '?[31mred'", 1);
}

/* --- several origins, of which one lies --- */

static void other_bytes_of_another_length(int fd, unsigned i, uint64_t from, uint64_t to)
{
    (void)i;
    say_range(fd, from + 1, to + 1, 2 * rig.model.len);
    say(fd, "Content-Length: 1\r\n\r\nG");
}

/* What is refused says nothing about the file, not how long it is either. */
static void test_length_that_a_refused_answer_gave(void **state)
{
    (void)state;
    struct wire w;
    char url[64];
    const char *const urls[] = {url, rig.url[0]};
    const struct remote_config c = config_of(urls, 2);
    struct remote *r = NULL;
    struct err e;
    wire_start(&w, other_bytes_of_another_length);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/m.gguf", w.port);
    const enum err_code rc = remote_open(&c, &r, &e);
    wire_stop(&w);
    if (rc != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(gguf_file_size(remote_gguf(r), 0), rig.model.len);
    assert_int_equal(atomic_load(&w.n_requests), 1);
    remote_close(r);
}

/* Nobody is asked for ever. */
static void test_all_say_that_there_is_no_byte(void **state)
{
    (void)state;
    const struct remote_config c = config_of(rig.urls, 2);
    const struct bad_rule none = {.how = BAD_STATUS, .path = "/m.gguf", .n = 416, .times = 20};
    struct remote *r = NULL;
    struct err e;
    for (int i = 0; i < 2; i++)
        bad_rule(rig.s[i], &none);
    assert_int_equal(remote_open(&c, &r, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "m.gguf is empty"));
    assert_true(bad_count(rig.s[0]).n_requests + bad_count(rig.s[1]).n_requests <= 4);
}

/* --- what comes in vain --- */

static void test_by_the_index_not_a_byte_is_read_in_vain(void **state)
{
    (void)state;
    struct remote_config c = config_of(rig.urls, 1);
    struct remote *r = NULL;
    struct err e;
    c.no_index = false;
    assert_int_equal(remote_open(&c, &r, &e), OK);
    assert_non_null(remote_index(r));
    assert_int_equal(bad_count(rig.s[0]).body_bytes, rig.head_bytes + rig.index.len);
    assert_int_equal(bad_count(rig.s[0]).n_requests, 3); /* whether it is there, the index, the rest */
    remote_close(r);
}

static void test_without_an_index_a_header_in_vain_at_most(void **state)
{
    (void)state;
    const struct remote_config c = config_of(rig.urls, 1);
    struct remote *r = NULL;
    struct err e;
    assert_int_equal(remote_open(&c, &r, &e), OK);
    assert_in_range(bad_count(rig.s[0]).body_bytes, rig.head_bytes, 2 * rig.head_bytes);
    remote_close(r);
}

/* It is only believed as far as it costs nothing when it is wrong. */
static void test_index_of_another_model(void **state)
{
    (void)state;
    struct remote_config c = config_of(rig.urls, 1);
    struct remote *r = NULL;
    struct err e;
    struct buf other = {0};
    c.no_index = false;
    buf_put(&other, rig.index.data, rig.index.len);
    buf_put_u8(&other, 0);
    char *offset = strstr((char *)other.data, "\"blake2b\":\"");
    assert_non_null(offset);
    offset[11] = offset[11] == '0' ? '1' : '0';
    bad_file(rig.s[0], "/m.gguf.kvi", other.data, other.len - 1, "\"x\"");
    assert_int_equal(remote_open(&c, &r, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "the index at 127.0.0.1"));
    buf_free(&other);
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_byte_at_a_time, rig_setup),
        cmocka_unit_test_setup(test_body_without_a_length_that_is_cut, rig_setup),
        cmocka_unit_test_setup(test_fewer_bytes_than_said, rig_setup),
        cmocka_unit_test_setup(test_head_without_an_end, rig_setup),
        cmocka_unit_test_setup(test_head_that_is_too_large, rig_setup),
        cmocka_unit_test_setup(test_range_that_is_no_number, rig_setup),
        cmocka_unit_test_setup(test_range_with_control_characters, rig_setup),
        cmocka_unit_test_setup(test_length_that_a_refused_answer_gave, rig_setup),
        cmocka_unit_test_setup(test_all_say_that_there_is_no_byte, rig_setup),
        cmocka_unit_test_setup(test_by_the_index_not_a_byte_is_read_in_vain, rig_setup),
        cmocka_unit_test_setup(test_without_an_index_a_header_in_vain_at_most, rig_setup),
        cmocka_unit_test_setup(test_index_of_another_model, rig_setup),
    };
    return cmocka_run_group_tests(tests, group_setup, rig_teardown);
}
