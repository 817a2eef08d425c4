/* SPDX-License-Identifier: MIT
 *
 * The server's loop: sockets, deadlines and states of connections. lws parses and writes; the sockets are ours (lws is
 * run in its "external poll" mode), because then a connection whose request is being worked on need not be read, which
 * lws would answer by closing it, and a client that goes away is noticed all the same.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/thread.h"
#include "http/server_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_MS   100u
#define ENDING_MS 2000u /* for a client to close after us */
#define DISK_MS   2     /* between looks at what the disk has read */
#define EVENTS    64

void conn_mark_dirty(struct http_conn *c)
{
    if (c->dirty)
        return;
    c->dirty = true;
    c->next_dirty = c->s->dirty;
    c->s->dirty = c;
}

void conn_cut(struct http_conn *c)
{
    c->cut = true;
    conn_mark_dirty(c);
}

void conn_set_patience(const struct http_conn *c, uint32_t ms)
{
    const unsigned unacked_ms = ms;
    setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof unacked_ms);
}

/* --- one connection --- */

/* Bytes in the socket that the client's machine has not confirmed. */
static int unsent(const struct http_conn *c)
{
    int n = 0;
    return ioctl(c->fd, SIOCOUTQ, &n) == 0 ? n : 0;
}

static bool waits_for_head(const struct http_conn *c)
{
    return (c->state == CONN_IDLE || c->state == CONN_READING) && !c->r && !c->head_seen;
}

static void arm(struct http_conn *c)
{
    if (!c->wsi)
        return;
    const bool more = c->state == CONN_BUSY && reply_has_more(c->r) && !c->r->disk_since_ns;
    uint32_t want = more || lws_partial_buffered(c->wsi) ? EPOLLOUT : 0;
    if (waits_for_head(c))
        want |= EPOLLIN | EPOLLRDHUP | EPOLLET; /* what has come stays in the socket until the head is whole */
    else if (c->state != CONN_BUSY)
        want |= EPOLLIN;
    else if (!c->half_closed)
        want |= EPOLLRDHUP;
    if (want == c->armed)
        return;
    struct epoll_event ev = {.events = want, .data.ptr = c};
    if (epoll_ctl(c->s->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev) == 0)
        c->armed = want;
    else
        conn_cut(c);
}

static void service(struct http_conn *c, short revents)
{
    struct lws_pollfd p = {.fd = c->fd, .events = revents, .revents = revents};
    if (c->wsi)
        lws_service_fd(c->s->lws, &p);
}

/* What lws has read beyond the request must not be looked at before the response is out: held back, it is not. That is
 * also how it is known: lws would want to be run at once for the bytes of this one, the only one not held back. */
static bool lws_has_leftover(const struct http_server *s)
{
    return lws_service_adjust_timeout(s->lws, 1, 0) == 0;
}

static void hold_leftover(struct http_conn *c)
{
    c->leftover = lws_has_leftover(c->s);
    if (c->leftover)
        lws_rx_flow_control(c->wsi, 0);
}

static void service_out(struct http_conn *c)
{
    if (c->leftover)
        lws_rx_flow_control(c->wsi, 1); /* lws would hold back what is to be sent as well */
    service(c, LWS_POLLOUT);
    if (c->leftover && c->wsi)
        lws_rx_flow_control(c->wsi, 0);
}

/* The request is over, one way or the other. */
static void drop_request(struct http_conn *c, bool done)
{
    struct http_request *r = c->r;
    c->r = NULL;
    if (r && r->handed && c->s->config.on_gone)
        c->s->config.on_gone(c->s->config.ctx, r, done);
    request_free(r);
}

static void kill_lws(struct http_conn *c)
{
    /* Told that the peer is gone, lws does not try to send what it still holds. */
    struct lws_pollfd p = {.fd = c->fd, .revents = LWS_POLLHUP};
    if (c->wsi)
        lws_service_fd(c->s->lws, &p);
    if (c->wsi)
        lws_set_timeout(c->wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_SYNC);
}

/* Ends a connection now; its memory goes when the loop no longer looks at it. */
static void finish(struct http_conn *c)
{
    struct http_server *s = c->s;
    if (c->dead)
        return;
    c->dead = true;
    kill_lws(c);
    drop_request(c, false);
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_conns--;
    c->next_dead = s->dead;
    s->dead = c;
}

static void hand_over(struct http_conn *c)
{
    struct http_request *r = c->r;
    struct http_server *s = c->s;
    c->state = CONN_BUSY;
    c->deadline_ns = 0;
    r->received_ns = clock_now_ns();
    hold_leftover(c);
    conn_set_patience(c, unsent(c) > 0 ? 0 : s->config.idle_ms); /* what is left is of a body before this one */
    if (r->refuse) {
        reply_refuse(r, r->refuse, r->refuse_text);
        return;
    }
    r->handed = true;
    s->config.on_request(s->config.ctx, r);
}

/* After lws has read a head that is none to it: it has answered already, or closed. */
static void told_if_closed(const struct http_conn *c)
{
    if (!c->wsi && !c->r)
        reply_told(c->s, c->peer, 400, "The request was not understood.");
}

/* After lws has read something. */
static void look_at_request(struct http_conn *c)
{
    struct http_request *r = c->r;
    if (!c->wsi || !r || c->state == CONN_BUSY)
        return;
    if (r->whole) {
        hand_over(c);
    } else if (r->expect_continue && r->body.len == 0) {
        static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
        r->expect_continue = false;
        memcpy(c->s->scratch + LWS_PRE, text, sizeof text - 1);
        if (lws_write(c->wsi, c->s->scratch + LWS_PRE, sizeof text - 1, LWS_WRITE_HTTP) < 0)
            conn_cut(c);
    }
}

/* Nothing more is said on this connection. */
static void begin_ending(struct http_conn *c)
{
    c->state = CONN_ENDING;
    c->deadline_ns = clock_deadline_ms(ENDING_MS);
    if (c->half_closed || shutdown(c->fd, SHUT_WR) != 0)
        conn_cut(c);
}

/* A request that has not come whole: nothing was begun and lws holds nothing, so there is room for a word. */
static void refuse_early(struct http_conn *c, unsigned status, const char *text)
{
    reply_raw(c->s, c->fd, c->peer, c->r, clock_now_ns() - c->began_ns, status, text);
    begin_ending(c);
    conn_mark_dirty(c);
}

/* The response is out: the next request, or the end. */
static void next_request(struct http_conn *c)
{
    struct http_server *s = c->s;
    const bool keep = c->r->keep && !c->half_closed;
    drop_request(c, true);
    if (keep && c->leftover)
        lws_rx_flow_control(c->wsi, 1);
    if (keep && lws_http_transaction_completed(c->wsi) == 0) {
        c->unsent = unsent(c);
        service(c, LWS_POLLOUT); /* this is when lws begins anew */
        const bool leftover = c->leftover && c->wsi && lws_has_leftover(s);
        c->leftover = false;
        c->head_seen = leftover; /* it is lws that has it */
        c->began_ns = clock_now_ns();
        c->state = leftover ? CONN_READING : CONN_IDLE;
        c->deadline_ns = clock_deadline_ms(leftover ? s->config.head_ms : s->config.idle_ms);
        if (leftover) {
            c->replay = true;
            service(c, LWS_POLLIN);
            c->replay = false;
            told_if_closed(c);
            look_at_request(c);
        }
        return;
    }
    begin_ending(c);
}

/* Sends, and notices what became of the connection. */
static void tend(struct http_conn *c)
{
    struct http_request *r = c->r;
    if (c->dead)
        return;
    if (c->state == CONN_BUSY && !c->cut) {
        reply_flush(c);
        if (c->wsi && r && reply_queued(r) > c->s->config.max_queued && !r->ended)
            c->cut = true;
        if (c->wsi && r && reply_queued(r) == 0 && !reply_has_more(r) && !c->cut && !lws_partial_buffered(c->wsi)) {
            c->deadline_ns = 0;
            if (r->ended)
                next_request(c);
        }
    }
    if (c->cut || !c->wsi) {
        finish(c);
        return;
    }
    arm(c);
    if (c->armed & EPOLLOUT)
        c->unsent = unsent(c);
    if (c->state == CONN_BUSY && c->r->disk_since_ns && !c->dirty) {
        c->dirty = true;
        c->next_dirty = c->s->resting;
        c->s->resting = c;
    }
}

static void throw_away(struct http_conn *c)
{
    const ssize_t n = recv(c->fd, c->s->scratch, sizeof c->s->scratch, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        c->cut = true;
}

/* Bytes of a request may be there. */
static void read_head(struct http_conn *c, bool half_closed)
{
    struct http_server *s = c->s;
    struct head_fault f;
    const ssize_t n = recv(c->fd, s->head, s->config.max_head + 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        c->cut = true; /* it has closed, or was reset */
        return;
    }
    if (c->state == CONN_IDLE) {
        c->state = CONN_READING;
        c->began_ns = clock_now_ns();
        c->deadline_ns = clock_deadline_ms(s->config.head_ms);
    }
    switch (head_check(s->head, (size_t)n, s->config.max_head, &f)) {
    case HEAD_BAD:
        refuse_early(c, f.status, f.text);
        return;
    case HEAD_PART:
        c->cut = half_closed; /* the rest will not come */
        return;
    case HEAD_WHOLE:
        c->head_seen = true;
        service(c, LWS_POLLIN);
        told_if_closed(c);
        look_at_request(c);
    }
}

static void on_conn_event(struct http_conn *c, uint32_t events)
{
    if (c->dead)
        return;
    conn_mark_dirty(c);
    if (c->state == CONN_ENDING) {
        throw_away(c);
        return;
    }
    if (c->state == CONN_BUSY) {
        if (events & (EPOLLHUP | EPOLLERR))
            c->cut = true;
        else if (events & EPOLLRDHUP && !c->r->ended)
            c->cut = true; /* nobody waits for the answer any more */
        c->half_closed = c->half_closed || (events & EPOLLRDHUP);
    } else if (waits_for_head(c)) {
        read_head(c, events & EPOLLRDHUP);
    } else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        service(c, LWS_POLLIN);
        look_at_request(c);
    }
    if (!c->cut && events & EPOLLOUT) {
        if (c->state == CONN_BUSY)
            c->deadline_ns = clock_deadline_ms(c->s->config.idle_ms);
        if (c->wsi && lws_partial_buffered(c->wsi))
            service_out(c);
    }
}

static void on_deadline(struct http_conn *c)
{
    const int left = unsent(c);
    if (c->state == CONN_READING) {
        refuse_early(c, 408, "The request did not arrive in time.");
    } else if (c->state != CONN_ENDING && left < c->unsent) {
        /* Slow, but it goes on: epoll waits for a third of the socket to be free, which may take longer, and says
         * nothing of the last bytes. */
        c->unsent = left;
        c->deadline_ns = clock_deadline_ms(c->s->config.idle_ms);
    } else {
        finish(c);
    }
}

/* --- accepting --- */

static void peer_text(const struct sockaddr_storage *ss, socklen_t len, char *out, size_t size)
{
    char host[48] = "", port[8] = "";
    if (getnameinfo((const struct sockaddr *)ss, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(out, size, "?");
    else
        snprintf(out, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

static void adopt(struct http_server *s, int fd, const struct sockaddr_storage *ss, socklen_t len)
{
    struct http_conn *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    c->s = s;
    c->fd = fd;
    peer_text(ss, len, c->peer, sizeof c->peer);
    c->deadline_ns = clock_deadline_ms(s->config.head_ms);
    c->wsi = lws_adopt_socket_vhost(s->vhost, fd); /* closes fd when it fails */
    if (!c->wsi) {
        free(c);
        return;
    }
    lws_set_opaque_user_data(c->wsi, c);
    conn_set_patience(c, s->config.idle_ms);
    c->next = s->conns;
    if (s->conns)
        s->conns->prev = c;
    s->conns = c;
    s->n_conns++;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    c->armed = EPOLLIN;
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        conn_cut(c);
}

static void watch_listener(struct http_server *s, bool on)
{
    struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = &s->listen_fd};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->listen_fd, &ev) == 0)
        s->accept_paused = !on;
}

/* Parts go out at once; a client whose machine is gone without a word is noticed. */
static void set_options(int fd)
{
    const int one = 1, quiet_s = 60, probe_s = 10, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &quiet_s, sizeof quiet_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe_s, sizeof probe_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static void accept_some(struct http_server *s)
{
    static struct log_limit limit;
    for (int i = 0; i < 16; i++) {
        struct sockaddr_storage ss;
        socklen_t len = sizeof ss;
        const int fd = accept4(s->listen_fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            uint32_t dropped;
            const int os = errno;
            if ((os == EMFILE || os == ENFILE || os == ENOBUFS || os == ENOMEM)) {
                if (log_limit_pass(&limit, 1, "accept", &dropped))
                    log_warn("http", "accept failed: %s", strerror(os));
                watch_listener(s, false);
            }
            return;
        }
        set_options(fd);
        if (s->n_conns >= s->config.max_connections) {
            char peer[64];
            peer_text(&ss, len, peer, sizeof peer);
            reply_raw(s, fd, peer, NULL, 0, 503,
                      "This server has as many connections as it may have: try again later.");
            shutdown(fd, SHUT_WR);
            /* Closed with bytes unread it would be reset, which takes the answer away from some clients. */
            if (recv(fd, s->head, s->config.max_head + 1, MSG_DONTWAIT) < 0 && errno != EAGAIN)
                log_debug("http", "%s did not wait for its refusal", peer);
            close(fd);
        } else {
            adopt(s, fd, &ss, len);
        }
    }
}

/* --- the loop --- */

static void tend_all(struct http_server *s)
{
    while (s->dirty) {
        struct http_conn *c = s->dirty;
        s->dirty = c->next_dirty;
        c->dirty = false;
        tend(c);
    }
    s->dirty = s->resting;
    s->resting = NULL;
}

static void free_dead(struct http_server *s)
{
    while (s->dead) {
        struct http_conn *c = s->dead;
        s->dead = c->next_dead;
        free(c);
    }
}

static void tick(struct http_server *s)
{
    const uint64_t now = clock_now_ns();
    for (struct http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (c->deadline_ns && now >= c->deadline_ns)
            on_deadline(c);
    }
    if (s->accept_paused)
        watch_listener(s, true);
}

static void wait_and_handle(struct http_server *s, uint64_t tick_ns)
{
    struct epoll_event ev[EVENTS];
    const int left_ms = clock_left_ms(tick_ns);
    const int n = epoll_wait(s->epoll_fd, ev, EVENTS, s->dirty && left_ms > DISK_MS ? DISK_MS : left_ms);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.ptr == &s->listen_fd) {
            accept_some(s);
        } else if (ev[i].data.ptr == &s->wake_fd) {
            uint64_t count;
            if (read(s->wake_fd, &count, sizeof count) < 0)
                continue;
        } else {
            on_conn_event(ev[i].data.ptr, ev[i].events);
        }
    }
}

static void *run(void *arg)
{
    struct http_server *s = arg;
    uint64_t tick_ns = clock_deadline_ms(TICK_MS);
    while (!atomic_load(&s->stop)) {
        wait_and_handle(s, tick_ns);
        const bool ticks = clock_now_ns() >= tick_ns;
        if ((atomic_exchange(&s->woken, false) || ticks) && s->config.on_wake)
            s->config.on_wake(s->config.ctx);
        if (ticks) {
            tick(s);
            tick_ns = clock_deadline_ms(TICK_MS);
        }
        tend_all(s);
        free_dead(s);
    }
    while (s->conns)
        finish(s->conns);
    s->dirty = NULL;
    free_dead(s);
    return NULL;
}

/* --- starting and stopping --- */

static void to_log(int level, const char *line)
{
    (void)level;
    const char *text = line[0] == '[' ? strstr(line, "] ") : NULL; /* after its own time */
    text = text ? text + 2 : line;
    log_debug("lws", "%.*s", (int)strcspn(text, "\r\n"), text);
}

static const struct lws_protocols protocols[] = {{.name = "http", .callback = server_lws_callback},
                                                 LWS_PROTOCOL_LIST_TERM};

/* lws keeps a few things for the whole process, its log among them, which it formats in one buffer: no two servers are
 * made or unmade at a time, and it stays silent unless somebody wants to read it. */
static pthread_mutex_t lws_global = PTHREAD_MUTEX_INITIALIZER;

static enum err_code make_lws(struct http_server *s, struct err *e)
{
    const int levels = log_enabled(LOG_DEBUG) ? LLL_ERR | LLL_WARN | LLL_NOTICE : 0;
    s->log = (lws_log_cx_t){.u.emit = to_log, .lll_flags = (uint32_t)levels};
    const struct lws_context_creation_info info = {
        .log_cx = &s->log,
        .port = CONTEXT_PORT_NO_LISTEN_SERVER,
        .protocols = protocols,
        .options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS,
        .gid = (gid_t)-1,
        .uid = (uid_t)-1,
        .fd_limit_per_thread = s->config.max_connections + 16, /* lws has a few of its own */
        .max_http_header_pool = (unsigned short)(s->config.max_connections + 16),
        .max_http_header_data2 = s->config.max_head + 4096, /* it takes notes there, a few bytes a line */
        .pt_serv_buf_size = SERVER_IO_BYTES + LWS_PRE,
        .vhost_name = "http",
    };
    /* lws ignores SIGPIPE for the whole process, which is not its business: it never sends so that one comes. */
    struct sigaction before;
    pthread_mutex_lock(&lws_global);
    lws_set_log_level(levels, to_log);
    sigaction(SIGPIPE, NULL, &before);
    s->lws = lws_create_context(&info);
    sigaction(SIGPIPE, &before, NULL);
    s->vhost = s->lws ? lws_create_vhost(s->lws, &info) : NULL;
    if (s->vhost)
        lws_service_adjust_timeout(s->lws, 1, 0); /* makes it set up its protocols */
    pthread_mutex_unlock(&lws_global);
    if (!s->vhost)
        return err_set(e, ERR_NOMEM, "libwebsockets could not start (out of memory or descriptors)");
    return OK;
}

/* "host:port" or "[v6]:port"; no host: 127.0.0.1. */
static enum err_code split_addr(const char *addr, char *host, size_t size, char port[8], struct err *e)
{
    const char *colon = addr ? strrchr(addr, ':') : NULL;
    uint32_t number;
    if (!colon)
        return err_set(e, ERR_ARG, "address '%.80s' is not host:port, for example 127.0.0.1:8080",
                       addr ? addr : "(none)");
    const char *first = addr;
    size_t len = (size_t)(colon - addr);
    const bool v6 = addr[0] == '[';
    if (v6 && (len < 3 || addr[len - 1] != ']'))
        return err_set(e, ERR_ARG, "address '%.80s' is not [IPv6]:port, for example [::1]:8080", addr);
    if (v6)
        first++, len -= 2;
    else if (memchr(addr, ':', len))
        return err_set(e, ERR_ARG, "address '%.80s' has several colons: an IPv6 address is written [::1]:8080", addr);
    if (len >= size)
        return err_set(e, ERR_ARG, "address '%.80s...' has a host name that is too long", addr);
    const enum err_code rc = parse_u32("port", colon + 1, 0, 65535, &number, e);
    if (rc != OK)
        return rc;
    snprintf(host, size, "%.*s", len ? (int)len : 9, len ? first : "127.0.0.1");
    snprintf(port, 8, "%u", number % 65536);
    return OK;
}

static void take_bound(struct http_server *s, const struct sockaddr_storage *ss)
{
    struct sockaddr_in v4 = {0};
    struct sockaddr_in6 v6 = {0};
    if (ss->ss_family == AF_INET6) {
        memcpy(&v6, ss, sizeof v6);
        s->port = ntohs(v6.sin6_port);
        s->loopback = IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    } else {
        memcpy(&v4, ss, sizeof v4);
        s->port = ntohs(v4.sin_port);
        s->loopback = ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
}

static enum err_code listen_on(struct http_server *s, const char *addr, struct err *e)
{
    char host[256], port[8];
    enum err_code rc = split_addr(addr, host, sizeof host, port, e);
    if (rc != OK)
        return rc;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    const int gai = getaddrinfo(host, port, &hints, &list);
    if (gai != 0)
        return err_set(e, ERR_ARG, "address '%.80s': %s", addr, gai_strerror(gai));
    const int one = 1;
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof ss;
    s->listen_fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0 || setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(s->listen_fd, list->ai_addr, list->ai_addrlen) != 0 || listen(s->listen_fd, 512) != 0 ||
        getsockname(s->listen_fd, (struct sockaddr *)&ss, &len) != 0)
        rc = errno == EADDRINUSE
                 ? err_set_os(e, ERR_IO, errno, "cannot serve HTTP on %.80s, another program does (or choose port 0)",
                              addr)
                 : err_set_os(e, ERR_IO, errno, "cannot serve HTTP on %.80s", addr);
    else
        take_bound(s, &ss);
    freeaddrinfo(list);
    return rc;
}

static enum err_code make_epoll(struct http_server *s, struct err *e)
{
    struct epoll_event listening = {.events = EPOLLIN, .data.ptr = &s->listen_fd};
    struct epoll_event waking = {.events = EPOLLIN, .data.ptr = &s->wake_fd};
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->wake_fd < 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->listen_fd, &listening) != 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &waking) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot wait for connections");
    return OK;
}

static void server_free(struct http_server *s)
{
    pthread_mutex_lock(&lws_global);
    if (s->lws)
        lws_context_destroy(s->lws);
    pthread_mutex_unlock(&lws_global);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    free(s->head);
    free(s);
}

enum err_code http_start(const struct http_config *config, struct http_server **out, struct err *e)
{
    struct http_server *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "out of memory");
    s->listen_fd = s->epoll_fd = s->wake_fd = -1;
    s->config = *config;
    s->config.addr = NULL;
    struct http_config *c = &s->config;
    c->max_connections = c->max_connections ? c->max_connections : 256;
    c->max_connections = c->max_connections > 60000 ? 60000 : c->max_connections;
    c->max_body = c->max_body ? c->max_body : 8u << 20;
    c->max_head = c->max_head ? c->max_head : 16u << 10;
    c->max_head = c->max_head < 32u << 10 ? c->max_head : 32u << 10; /* what any socket holds */
    c->head_ms = c->head_ms ? c->head_ms : 10000;
    c->idle_ms = c->idle_ms ? c->idle_ms : 30000;
    c->max_queued = c->max_queued ? c->max_queued : 1u << 20;
    s->head = malloc(c->max_head + 1);
    enum err_code rc = s->head ? listen_on(s, config->addr, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == OK)
        rc = make_epoll(s, e);
    if (rc == OK)
        rc = make_lws(s, e);
    if (rc == OK)
        rc = thread_start(&s->thread, "kv-http", run, s, e);
    if (rc != OK) {
        server_free(s);
        return rc;
    }
    *out = s;
    return OK;
}

void http_stop(struct http_server *s)
{
    if (!s)
        return;
    atomic_store(&s->stop, true);
    http_wake(s);
    pthread_join(s->thread, NULL);
    server_free(s);
}

uint16_t http_port(const struct http_server *s)
{
    return s->port;
}

void http_wake(struct http_server *s)
{
    const uint64_t one = 1;
    /* A full counter has woken it already. */
    if (!atomic_exchange(&s->woken, true) && write(s->wake_fd, &one, sizeof one) < 0)
        return;
}

/* --- the request --- */

const char *http_method(const struct http_request *r)
{
    return r->method;
}
const char *http_path(const struct http_request *r)
{
    return r->path;
}
const char *http_query(const struct http_request *r)
{
    return r->query ? r->query : "";
}
const char *http_peer(const struct http_request *r)
{
    return r->conn->peer;
}
bool http_only_local(const struct http_request *r)
{
    return r->conn->s->loopback;
}
uint64_t http_received_ns(const struct http_request *r)
{
    return r->received_ns;
}
void http_set_user(struct http_request *r, void *user)
{
    r->user = user;
}
void *http_user(const struct http_request *r)
{
    return r->user;
}

const void *http_body(const struct http_request *r, size_t *len)
{
    *len = r->body.len;
    return r->body.len ? (const void *)r->body.data : "";
}

const char *http_header(const struct http_request *r, const char *name)
{
    const size_t n = strcspn(name, ":");
    for (const char *at = (const char *)r->headers.data; at && *at;) {
        const char *value = at + strlen(at) + 1;
        if (strlen(at) == n && memcmp(at, name, n) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}
