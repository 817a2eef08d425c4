/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "lib/test_util.h"
#include "net/tcp.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHORT_MS 50
#define LONG_MS  60000

/* A connected pair: [0] dialed, [1] accepted. */
static void make_pair(int fd[2])
{
    char addr[32];
    uint16_t port = 0;
    int listener;
    struct err e;
    assert_int_equal(net_tcp_listen("127.0.0.1:0", &listener, &port, &e), OK);
    assert_int_not_equal(port, 0);
    snprintf(addr, sizeof addr, "127.0.0.1:%u", port);
    assert_int_equal(net_tcp_connect(addr, clock_deadline_ms(LONG_MS), &fd[0], &e), OK);
    struct pollfd p = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&p, 1, LONG_MS), 1);
    assert_int_equal(net_tcp_accept(listener, &fd[1], NULL, &e), OK);
    close(listener);
}

static void close_pair(int fd[2])
{
    close(fd[0]);
    close(fd[1]);
}

static void test_sockets_have_the_flags_promised(void **state)
{
    (void)state;
    int fd[2];
    make_pair(fd);
    for (int i = 0; i < 2; i++) {
        int nodelay = 0;
        socklen_t len = sizeof nodelay;
        assert_int_equal(getsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &nodelay, &len), 0);
        assert_int_not_equal(nodelay, 0);
        assert_true(fcntl(fd[i], F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(fd[i], F_GETFD) & FD_CLOEXEC);
    }
    close_pair(fd);
}

static void test_whole_reads_and_writes(void **state)
{
    (void)state;
    static const char text[] = "over the wire";
    char back[sizeof text], local[NET_ADDR_TEXT_SIZE], peer[NET_ADDR_TEXT_SIZE];
    int fd[2];
    struct err e;
    make_pair(fd);
    assert_int_equal(net_tcp_write(fd[0], text, 5, clock_deadline_ms(LONG_MS), &e), OK);
    assert_int_equal(net_tcp_write(fd[0], text + 5, sizeof text - 5, clock_deadline_ms(LONG_MS), &e), OK);
    assert_int_equal(net_tcp_read(fd[1], back, sizeof back, clock_deadline_ms(LONG_MS), &e), OK);
    assert_string_equal(back, text);
    assert_string_equal(net_tcp_local_text(fd[0], local), net_tcp_peer_text(fd[1], peer));
    close_pair(fd);
    assert_string_equal(net_tcp_peer_text(-1, peer), "?");
}

static void test_a_silent_peer_times_out(void **state)
{
    (void)state;
    char in[8];
    int fd[2];
    struct err e;
    make_pair(fd);
    assert_int_equal(net_tcp_write(fd[0], "abc", 3, clock_deadline_ms(LONG_MS), &e), OK);
    assert_int_equal(net_tcp_read(fd[1], in, sizeof in, clock_deadline_ms(SHORT_MS), &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "3 of 8"));
    close_pair(fd);
}

static void test_a_peer_that_reads_nothing_times_out(void **state)
{
    (void)state;
    static char much[16 << 20];
    int fd[2];
    struct err e;
    make_pair(fd);
    const int small = 65536; /* some machines let sockets hold tens of megabytes */
    assert_int_equal(setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    assert_int_equal(net_tcp_write(fd[0], much, sizeof much, clock_deadline_ms(SHORT_MS), &e), ERR_TIMEOUT);
    close_pair(fd);
}

static void test_an_end_in_the_middle_says_where(void **state)
{
    (void)state;
    char in[8];
    int fd[2];
    struct err e;
    make_pair(fd);
    assert_int_equal(net_tcp_write(fd[0], "abcde", 5, clock_deadline_ms(LONG_MS), &e), OK);
    close(fd[0]);
    assert_int_equal(net_tcp_read(fd[1], in, sizeof in, clock_deadline_ms(LONG_MS), &e), ERR_CLOSED);
    assert_non_null(strstr(e.msg, "5 of 8"));
    close(fd[1]);
}

static void test_writing_to_a_gone_peer_raises_no_signal(void **state)
{
    (void)state;
    int fd[2];
    struct err e;
    enum err_code rc = OK;
    make_pair(fd);
    close(fd[1]);
    for (int i = 0; i < 1000 && rc == OK; i++) {
        rc = net_tcp_write(fd[0], "x", 1, clock_deadline_ms(LONG_MS), &e);
        poll(NULL, 0, 1);
    }
    assert_int_equal(rc, ERR_CLOSED); /* and this process lives */
    close(fd[0]);
}

static void test_refused_and_taken_ports_are_named(void **state)
{
    (void)state;
    char addr[32];
    uint16_t port;
    int listener, fd;
    struct err e;
    assert_int_equal(net_tcp_listen("127.0.0.1:0", &listener, &port, &e), OK);
    snprintf(addr, sizeof addr, "127.0.0.1:%u", port);
    assert_int_equal(net_tcp_listen(addr, &fd, NULL, &e), ERR_IO);
    assert_non_null(strstr(e.msg, addr));
    assert_int_equal(net_tcp_accept(listener, &fd, NULL, &e), ERR_BUSY);
    close(listener);
    const int mute = test_dead_port(&port);
    assert_true(mute >= 0);
    snprintf(addr, sizeof addr, "127.0.0.1:%u", port);
    assert_int_equal(net_tcp_connect(addr, clock_deadline_ms(LONG_MS), &fd, &e), ERR_IO);
    assert_non_null(strstr(e.msg, addr));
    assert_int_not_equal(e.os, 0);
    close(mute);
    assert_int_equal(net_tcp_connect("0.0.0.0:1", clock_deadline_ms(LONG_MS), &fd, &e), ERR_ARG);
}

static void test_only_a_listening_socket_is_adopted(void **state)
{
    (void)state;
    int pipe_fd[2], fd[2], listener;
    uint16_t port, again = 0;
    struct err e;
    assert_int_equal(pipe(pipe_fd), 0);
    assert_int_equal(net_tcp_adopt(pipe_fd[0], &port, &e), ERR_ARG);
    close_pair(pipe_fd);
    assert_int_equal(net_tcp_adopt(-1, &port, &e), ERR_ARG);
    make_pair(fd);
    assert_int_equal(net_tcp_adopt(fd[0], &port, &e), ERR_ARG);
    close_pair(fd);
    assert_int_equal(net_tcp_listen("127.0.0.1:0", &listener, &port, &e), OK);
    assert_int_equal(fcntl(listener, F_SETFL, 0), 0);
    assert_int_equal(fcntl(listener, F_SETFD, 0), 0);
    assert_int_equal(net_tcp_adopt(listener, &again, &e), OK);
    assert_int_equal(again, port);
    assert_true(fcntl(listener, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(listener, F_GETFD) & FD_CLOEXEC);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sockets_have_the_flags_promised),
        cmocka_unit_test(test_whole_reads_and_writes),
        cmocka_unit_test(test_a_silent_peer_times_out),
        cmocka_unit_test(test_a_peer_that_reads_nothing_times_out),
        cmocka_unit_test(test_an_end_in_the_middle_says_where),
        cmocka_unit_test(test_writing_to_a_gone_peer_raises_no_signal),
        cmocka_unit_test(test_refused_and_taken_ports_are_named),
        cmocka_unit_test(test_only_a_listening_socket_is_adopted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
