/* SPDX-License-Identifier: MIT
 *
 * TCP sockets with deadlines: every wait is a poll(2) until an absolute time.
 */
#include "net/tcp.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG 64
/* A numeric address needs no look-up; a name to listen on may need one, and nobody gave it a deadline. */
#define LISTEN_LOOKUP_MS 5000

static void set_option(int fd, int level, int name, int value)
{
    /* Best effort: a socket that lacks one of these still works. */
    if (setsockopt(fd, level, name, &value, sizeof value) != 0)
        return;
}

static uint16_t local_port(int fd)
{
    struct net_addr a = {.len = sizeof a.ss};
    return getsockname(fd, (struct sockaddr *)&a.ss, &a.len) == 0 ? net_addr_port(&a) : 0;
}

static enum err_code listen_on(const struct net_addr *a, int *fd, struct err *e)
{
    char text[NET_ADDR_TEXT_SIZE];
    int s = socket(a->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return err_set_os(e, ERR_IO, errno, "cannot make a socket");
    set_option(s, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(s, (const struct sockaddr *)&a->ss, a->len) != 0 || listen(s, BACKLOG) != 0) {
        int os = errno;
        close(s);
        return err_set_os(e, ERR_IO, os, "cannot listen on %s", net_addr_text(a, text));
    }
    *fd = s;
    return OK;
}

enum err_code net_tcp_listen(const char *text, int *fd, uint16_t *port, struct err *e)
{
    struct net_addr a[NET_ADDR_MAX];
    size_t n = 0;
    int s = -1;
    enum err_code rc = net_addr_resolve(text, NET_LISTEN, clock_deadline_ms(LISTEN_LOOKUP_MS), a, &n, e);
    if (rc != OK)
        return rc;
    for (size_t i = 0; i < n; i++) {
        rc = listen_on(&a[i], &s, e);
        if (rc == OK)
            break;
    }
    if (s < 0)
        return rc;
    *fd = s;
    if (port)
        *port = local_port(s);
    return OK;
}

static enum err_code set_flags(int fd, struct err *e)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot set the flags of a socket");
    return OK;
}

enum err_code net_tcp_adopt(int fd, uint16_t *port, struct err *e)
{
    int listening = 0, type = 0;
    socklen_t len = sizeof listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) != 0)
        return err_set_os(e, ERR_ARG, errno, "file descriptor %d is not a socket", fd);
    len = sizeof type;
    if (!listening || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_STREAM ||
        local_port(fd) == 0)
        return err_set(e, ERR_ARG, "file descriptor %d is not a listening TCP socket", fd);
    enum err_code rc = set_flags(fd, e);
    if (rc == OK && port)
        *port = local_port(fd);
    return rc;
}

enum err_code net_tcp_accept(int listen_fd, int *fd, struct net_addr *peer, struct err *e)
{
    struct net_addr a = {.len = sizeof a.ss};
    int s;
    do {
        s = accept4(listen_fd, (struct sockaddr *)&a.ss, &a.len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (s < 0 && errno == EINTR);
    if (s >= 0) {
        set_option(s, IPPROTO_TCP, TCP_NODELAY, 1);
        *fd = s;
        if (peer)
            *peer = a;
        return OK;
    }
    switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        return err_set_os(e, ERR_LIMIT, errno, "cannot accept a connection");
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
    case EOPNOTSUPP:
    case EFAULT:
        return err_set_os(e, ERR_IO, errno, "cannot accept connections");
    default: /* none waits, or the one that waited is broken: accept(2) wants both treated alike */
        return err_set(e, ERR_BUSY, "no connection is waiting");
    }
}

/* Waits for events on fd; OK also for an error condition, which the next call on fd will report. */
static enum err_code wait_for(int fd, short events, uint64_t deadline_ns, struct err *e)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        int left = clock_left_ms(deadline_ns);
        int n = poll(&p, 1, left);
        if (n > 0)
            return OK;
        if (n < 0 && errno != EINTR)
            return err_set_os(e, ERR_IO, errno, "poll");
        if (n == 0 && left == 0)
            return err_set(e, ERR_TIMEOUT, "timed out");
    }
}

static enum err_code connect_to(const struct net_addr *a, uint64_t deadline_ns, int *fd, struct err *e)
{
    char text[NET_ADDR_TEXT_SIZE];
    int os = 0;
    socklen_t len = sizeof os;
    net_addr_text(a, text);
    int s = socket(a->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return err_set_os(e, ERR_IO, errno, "cannot make a socket");
    set_option(s, IPPROTO_TCP, TCP_NODELAY, 1);
    enum err_code rc = OK;
    if (connect(s, (const struct sockaddr *)&a->ss, a->len) != 0) {
        os = errno;
        if (os == EINPROGRESS || os == EINTR) {
            rc = wait_for(s, POLLOUT, deadline_ns, e);
            os = 0;
            if (rc != OK)
                rc = err_set(e, rc, "cannot connect to %s: no answer in time", text);
            else if (getsockopt(s, SOL_SOCKET, SO_ERROR, &os, &len) != 0)
                os = errno;
        }
    }
    if (rc == OK && os != 0)
        rc = err_set_os(e, os == ETIMEDOUT ? ERR_TIMEOUT : ERR_IO, os, "cannot connect to %s", text);
    struct net_addr self = {.len = sizeof self.ss};
    /* Dialing a free port of the ephemeral range of this machine can end in a connection of the socket with itself. */
    if (rc == OK && getsockname(s, (struct sockaddr *)&self.ss, &self.len) == 0 && self.len == a->len &&
        net_addr_port(&self) == net_addr_port(a)) {
        char self_text[NET_ADDR_TEXT_SIZE];
        if (strcmp(net_addr_text(&self, self_text), text) == 0)
            rc = err_set_os(e, ERR_IO, ECONNREFUSED, "cannot connect to %s", text);
    }
    if (rc != OK) {
        close(s);
        return rc;
    }
    *fd = s;
    return OK;
}

enum err_code net_tcp_connect(const char *text, uint64_t deadline_ns, int *fd, struct err *e)
{
    struct net_addr a[NET_ADDR_MAX];
    size_t n = 0;
    enum err_code rc = net_addr_resolve(text, NET_DIAL, deadline_ns, a, &n, e);
    if (rc != OK)
        return rc;
    for (size_t i = 0; i < n; i++) {
        /* The last address may use all the time that is left, the others an even share. */
        uint64_t now = clock_now_ns();
        uint64_t until = now < deadline_ns ? now + (deadline_ns - now) / (n - i) : deadline_ns;
        rc = connect_to(&a[i], until, fd, e);
        if (rc == OK)
            return OK;
    }
    return rc;
}

enum err_code net_tcp_read(int fd, void *data, size_t len, uint64_t deadline_ns, struct err *e)
{
    uint8_t *p = data;
    for (size_t done = 0; done < len;) {
        ssize_t n = recv(fd, p + done, len - done, MSG_DONTWAIT);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (n == 0 || errno == ECONNRESET || errno == EPIPE)
            return err_set(e, ERR_CLOSED, "the peer ended the connection after %zu of %zu bytes", done, len);
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return err_set_os(e, ERR_IO, errno, "cannot receive");
        enum err_code rc = wait_for(fd, POLLIN, deadline_ns, e);
        if (rc == ERR_TIMEOUT)
            return err_set(e, rc, "the peer sent %zu of %zu bytes in time", done, len);
        if (rc != OK)
            return rc;
    }
    return OK;
}

enum err_code net_tcp_write(int fd, const void *data, size_t len, uint64_t deadline_ns, struct err *e)
{
    const uint8_t *p = data;
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, p + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == ECONNRESET || errno == EPIPE)
            return err_set(e, ERR_CLOSED, "the peer ended the connection after %zu of %zu bytes sent", done, len);
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return err_set_os(e, ERR_IO, errno, "cannot send");
        enum err_code rc = wait_for(fd, POLLOUT, deadline_ns, e);
        if (rc == ERR_TIMEOUT)
            return err_set(e, rc, "the peer took %zu of %zu bytes in time", done, len);
        if (rc != OK)
            return rc;
    }
    return OK;
}

const char *net_tcp_local_text(int fd, char out[NET_ADDR_TEXT_SIZE])
{
    struct net_addr a = {.len = sizeof a.ss};
    if (getsockname(fd, (struct sockaddr *)&a.ss, &a.len) != 0)
        a.ss.ss_family = AF_UNSPEC;
    return net_addr_text(&a, out);
}

const char *net_tcp_peer_text(int fd, char out[NET_ADDR_TEXT_SIZE])
{
    struct net_addr a = {.len = sizeof a.ss};
    if (getpeername(fd, (struct sockaddr *)&a.ss, &a.len) != 0)
        a.ss.ss_family = AF_UNSPEC;
    return net_addr_text(&a, out);
}

void net_tcp_user_timeout(int fd, uint32_t ms)
{
#ifdef TCP_USER_TIMEOUT
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms > INT32_MAX ? INT32_MAX : (int)ms);
#endif
}
