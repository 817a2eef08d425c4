/* SPDX-License-Identifier: MIT
 *
 * How links come to be: dialing, and the listener with its table of handshakes that run beside each other on one
 * thread. Strangers reach this file, so everything they can make it hold is bounded in number, size and time, and what
 * they can make it log is limited per second.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/tcp.h"
#include "ring/link.h"
#include "ring/link_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* After a refusal the listener reads and drops for so long: closing with unread bytes would reset the connection and
 * might take the refusal from the dialer. */
#define REFUSED_LINGER_MS 200u
/* Without free file descriptors the listener looks again after so long. */
#define ACCEPT_PAUSE_MS 100u
/* Lines per second that strangers can cause. */
#define LOG_BURST 5u

/* --- dialing --------------------------------------------------------------------------------- */

static enum err_code run_dial(int fd, struct handshake *h, uint64_t deadline_ns, struct err *e)
{
    uint8_t in[HANDSHAKE_HEAD_BYTES + HANDSHAKE_BODY_MAX];
    for (;;) {
        enum err_code rc = OK;
        if (h->out_len > 0)
            rc = net_tcp_write(fd, h->out, h->out_len, deadline_ns, e);
        h->out_len = 0;
        if (h->state == HANDSHAKE_FAILED) { /* whether the refusal got out or not */
            if (e)
                *e = h->err;
            return h->err.code;
        }
        if (rc != OK || h->state == HANDSHAKE_DONE)
            return rc;
        const size_t want = handshake_want(h);
        rc = net_tcp_read(fd, in, want, deadline_ns, e);
        if (rc != OK)
            return err_prefix(e, "handshake");
        handshake_input(h, in, want);
    }
}

enum err_code link_dial(const struct link_dial_config *config, struct link **out, struct err *e)
{
    struct handshake h;
    struct err local;
    int fd;
    if (!e)
        e = &local;
    enum err_code rc = net_tcp_connect(config->addr, config->deadline_ns, &fd, e);
    if (rc != OK)
        return rc;
    handshake_dial(&h, config->secret, config->mine, config->expected);
    rc = run_dial(fd, &h, config->deadline_ns, e);
    if (rc == OK)
        rc = link_new(fd, &h, out, e);
    handshake_wipe(&h);
    if (rc != OK) {
        close(fd);
        return err_prefix(e, "%s", config->addr);
    }
    return OK;
}

/* --- the listener -------------------------------------------------------------------------------- */

struct pending {
    int fd;       /* -1: free */
    bool spoke;   /* a whole first message has come */
    bool refused; /* lingering after a refusal */
    size_t n_in, out_pos;
    uint64_t since, deadline;
    char from[NET_ADDR_TEXT_SIZE];
    struct handshake hs;
};

struct link_listener {
    int fd, wake[2]; /* a byte in this pipe stops the thread */
    uint16_t port;
    struct link_listener_config config;
    struct key_secret secret;
    pthread_t thread;
    bool broken;          /* the listening socket: nothing new comes in any more */
    uint64_t accept_from; /* paused until then */
    struct pending pending[LINK_MAX_PENDING];
};

static void log_refused(const char *from, const struct err *why)
{
    static struct log_limit limit;
    uint32_t dropped;
    if (!log_limit_pass(&limit, LOG_BURST, why->msg, &dropped))
        return;
    if (dropped > 0)
        log_warn("link", "no link with %s code=%s: %s (and %u more like this)", from, err_name(why->code), why->msg,
                 dropped);
    else
        log_warn("link", "no link with %s code=%s: %s", from, err_name(why->code), why->msg);
}

static void drop(struct pending *p)
{
    close(p->fd);
    handshake_wipe(&p->hs);
    p->fd = -1;
}

static void give_up(struct pending *p, const struct err *why)
{
    log_refused(p->from, why);
    drop(p);
}

/* A place for one more; where none is free, the one that can be missed best: refused, then silent, then oldest. */
static struct pending *place_for_new(struct link_listener *l)
{
    struct pending *worst = NULL;
    int worst_class = 0;
    for (size_t i = 0; i < LINK_MAX_PENDING; i++) {
        struct pending *p = &l->pending[i];
        if (p->fd < 0)
            return p;
        int class = p->refused ? 0 : !p->spoke ? 1 : 2;
        if (!worst || class < worst_class || (class == worst_class && p->since < worst->since)) {
            worst = p;
            worst_class = class;
        }
    }
    if (worst->refused) {
        drop(worst);
        return worst;
    }
    struct err why;
    err_set(&why, ERR_LIMIT, "%u handshakes are open, this one makes room for another", LINK_MAX_PENDING);
    give_up(worst, &why);
    return worst;
}

static void accept_new(struct link_listener *l)
{
    for (unsigned i = 0; i < LINK_MAX_PENDING; i++) {
        struct net_addr peer;
        struct err e;
        int fd;
        enum err_code rc = net_tcp_accept(l->fd, &fd, &peer, &e);
        if (rc == ERR_BUSY)
            return;
        if (rc == ERR_LIMIT) {
            l->accept_from = clock_deadline_ms(ACCEPT_PAUSE_MS);
            log_refused("a caller", &e);
            return;
        }
        if (rc != OK) {
            l->broken = true;
            log_error("link", "no further links on port %u: %s", l->port, e.msg);
            return;
        }
        struct pending *p = place_for_new(l);
        p->fd = fd;
        p->spoke = p->refused = false;
        p->n_in = p->out_pos = 0;
        p->since = clock_now_ns();
        p->deadline = clock_deadline_ms(l->config.handshake_ms);
        net_addr_text(&peer, p->from);
        handshake_listen(&p->hs, &l->secret, l->config.edge, l->config.ctx);
    }
}

/* Sends what is in out. false when the connection is over. */
static bool flush_out(struct pending *p)
{
    while (p->out_pos < p->hs.out_len) {
        ssize_t n = send(p->fd, p->hs.out + p->out_pos, p->hs.out_len - p->out_pos, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        p->out_pos += (size_t)n;
    }
    p->hs.out_len = p->out_pos = 0;
    return true;
}

static void begin_linger(struct pending *p)
{
    log_refused(p->from, &p->hs.err);
    if (p->hs.out_len > 0) { /* not even these few bytes went out: it is not worth waiting */
        drop(p);
        return;
    }
    shutdown(p->fd, SHUT_WR);
    p->refused = true;
    p->deadline = clock_deadline_ms(REFUSED_LINGER_MS);
}

static void hand_out(struct link_listener *l, struct pending *p)
{
    struct link *link;
    struct err e;
    const uint32_t edge = p->hs.mine.edge;
    if (link_new(p->fd, &p->hs, &link, &e) != OK) {
        give_up(p, &e);
        return;
    }
    handshake_wipe(&p->hs);
    p->fd = -1;
    log_info("link", "edge=%u accepted from %s cipher=%s", edge, p->from, link_cipher_name(link));
    l->config.on_link(l->config.ctx, edge, link);
}

/* After input: send the answer, and see where that leads. */
static void go_on(struct link_listener *l, struct pending *p)
{
    if (!flush_out(p)) {
        struct err e;
        err_set(&e, ERR_CLOSED, "the peer was gone before it had my answer");
        give_up(p, &e);
    } else if (p->hs.state == HANDSHAKE_FAILED) {
        begin_linger(p);
    } else if (p->hs.state == HANDSHAKE_DONE && p->hs.out_len == 0) {
        hand_out(l, p);
    }
}

static void say_ended(struct pending *p)
{
    struct err e;
    if (p->n_in == 0)
        err_set(&e, ERR_CLOSED, "it connected and left without a word");
    else
        err_set(&e, ERR_CLOSED, "it left in the middle of the handshake, after %zu bytes", p->n_in);
    give_up(p, &e);
}

static void read_more(struct link_listener *l, struct pending *p)
{
    uint8_t in[HANDSHAKE_HEAD_BYTES + HANDSHAKE_BODY_MAX];
    /* Four messages and their headers are the most that a handshake has. */
    for (int i = 0; i < 8 && p->fd >= 0; i++) {
        const size_t want = p->refused ? sizeof in : handshake_want(&p->hs);
        if (want == 0)
            return;
        ssize_t n = recv(p->fd, in, want, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            if (p->refused)
                drop(p);
            else
                say_ended(p);
            return;
        }
        if (p->refused)
            continue;
        p->n_in += (size_t)n;
        handshake_input(&p->hs, in, (size_t)n);
        p->spoke = p->spoke || p->hs.out_len > 0;
        go_on(l, p);
    }
}

static void check_deadline(const struct link_listener *l, struct pending *p)
{
    struct err e;
    if (p->fd < 0 || clock_left_ms(p->deadline) > 0)
        return;
    if (p->refused) {
        drop(p);
        return;
    }
    if (p->n_in == 0)
        err_set(&e, ERR_TIMEOUT, "it connected and said nothing for %u ms", l->config.handshake_ms);
    else
        err_set(&e, ERR_TIMEOUT, "its handshake was not finished after %u ms", l->config.handshake_ms);
    give_up(p, &e);
}

/* Fills the poll set; returns how long to wait at most. */
static int poll_set(struct link_listener *l, struct pollfd set[2 + LINK_MAX_PENDING])
{
    int wait_ms = -1;
    const int paused_ms = clock_left_ms(l->accept_from);
    set[0] = (struct pollfd){.fd = l->wake[0], .events = POLLIN};
    set[1] = (struct pollfd){.fd = l->broken || paused_ms > 0 ? -1 : l->fd, .events = POLLIN};
    if (paused_ms > 0)
        wait_ms = paused_ms;
    for (size_t i = 0; i < LINK_MAX_PENDING; i++) {
        const struct pending *p = &l->pending[i];
        const short events = p->hs.out_len > 0 ? POLLOUT : POLLIN;
        set[2 + i] = (struct pollfd){.fd = p->fd, .events = events};
        if (p->fd < 0)
            continue;
        const int left = clock_left_ms(p->deadline);
        if (wait_ms < 0 || left < wait_ms)
            wait_ms = left;
    }
    return wait_ms;
}

static void *listener_main(void *arg)
{
    struct link_listener *l = arg;
    struct pollfd set[2 + LINK_MAX_PENDING];
    for (;;) {
        /* Without a handshake there is nothing to wait for but a caller or the end, and both wake the poll. */
        int n = poll(set, 2 + LINK_MAX_PENDING, poll_set(l, set));
        if (n < 0)
            continue;
        if (set[0].revents)
            return NULL;
        for (size_t i = 0; i < LINK_MAX_PENDING; i++) {
            struct pending *p = &l->pending[i];
            if (p->fd >= 0 && set[2 + i].revents) {
                if (p->hs.out_len > 0)
                    go_on(l, p);
                else
                    read_more(l, p);
            }
            check_deadline(l, p);
        }
        if (set[1].revents)
            accept_new(l);
    }
}

static enum err_code open_socket(const char *addr, int fd, struct link_listener *l, struct err *e)
{
    if (addr)
        return net_tcp_listen(addr, &l->fd, &l->port, e);
    l->fd = fd;
    return net_tcp_adopt(fd, &l->port, e);
}

static void listener_free(struct link_listener *l)
{
    for (size_t i = 0; i < LINK_MAX_PENDING; i++) {
        if (l->pending[i].fd >= 0)
            drop(&l->pending[i]);
    }
    if (l->fd >= 0)
        close(l->fd);
    for (int i = 0; i < 2; i++) {
        if (l->wake[i] >= 0)
            close(l->wake[i]);
    }
    key_wipe(&l->secret);
    free(l);
}

enum err_code link_listen(const char *addr, int fd, const struct link_listener_config *config,
                          struct link_listener **out, struct err *e)
{
    struct link_listener *l = calloc(1, sizeof *l);
    if (!l) {
        if (!addr)
            close(fd);
        return err_set(e, ERR_NOMEM, "no memory to listen for links");
    }
    l->fd = l->wake[0] = l->wake[1] = -1;
    for (size_t i = 0; i < LINK_MAX_PENDING; i++)
        l->pending[i].fd = -1;
    l->config = *config;
    l->secret = *config->secret;
    l->config.secret = &l->secret;
    if (l->config.handshake_ms == 0)
        l->config.handshake_ms = LINK_HANDSHAKE_MS;
    enum err_code rc = open_socket(addr, fd, l, e);
    if (rc == OK && pipe2(l->wake, O_CLOEXEC | O_NONBLOCK) != 0)
        rc = err_set_os(e, ERR_IO, errno, "cannot make a pipe");
    if (rc == OK)
        rc = thread_start(&l->thread, "kv-listen", listener_main, l, e);
    if (rc != OK) {
        listener_free(l);
        return rc;
    }
    *out = l;
    return OK;
}

uint16_t link_listener_port(const struct link_listener *l)
{
    return l->port;
}

void link_listener_close(struct link_listener *l)
{
    if (!l)
        return;
    while (write(l->wake[1], "", 1) < 0 && errno == EINTR)
        continue;
    pthread_join(l->thread, NULL);
    listener_free(l);
}
