/* SPDX-License-Identifier: MIT
 *
 * The live link. Latency decides how it works: whoever calls link_send seals and sends on its own thread as long as the
 * socket takes everything, and the reader sits in a blocking recv(2), so that a frame costs one system call at each end
 * and one wake-up. Only what the socket does not take goes through the writer thread.
 *
 * The mutex guards everything about sending. The receiving half belongs to the reader alone.
 */
#include "ring/link.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/tcp.h"
#include "ring/link_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define RECORD_WIRE_MAX (SESSION_RECORD_MAX + SESSION_RECORD_EXTRA)
/* A drained queue keeps this much memory for the next time. */
#define QUEUE_KEEP (4u << 20)
/* How often the writer, waiting for a socket that is full, looks whether the link ends. */
#define WRITER_LOOK_MS 50
/* An acknowledgement may be late for so many times death_ms: a neighbour that reads slowly but is alive, and says so by
 * heartbeats, keeps its link. */
#define ACK_FACTOR 4u

struct link {
    int fd;
    uint32_t edge;
    struct handshake_hello peer;
    const char *cipher;
    struct session session; /* tx: under the mutex; rx: reader */
    struct link_options opt;
    struct link_callbacks cb;
    pthread_t reader_thread, writer_thread;
    bool started; /* set once by link_start, before the threads */

    struct session_reader reader; /* reader thread */

    pthread_mutex_t mutex;
    pthread_cond_t cond; /* something changed for the writer or for link_close */
    uint8_t *scratch;    /* one sealed record */
    struct buf queue;    /* sealed bytes that the socket did not take yet: [queue_pos, len) */
    size_t queue_pos;
    uint64_t last_sent_ns;
    bool said_bye, closing, reader_done;
    struct err send_err; /* the first failure of sending */

    atomic_bool down;
    atomic_uint_least64_t frames_in, frames_out, bytes_in, bytes_out;
};

static void count(atomic_uint_least64_t *c, uint64_t n)
{
    atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

enum err_code link_new(int fd, const struct handshake *h, struct link **out, struct err *e)
{
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "no memory for a link");
    l->fd = fd;
    l->edge = h->mine.edge;
    l->peer = h->theirs;
    l->cipher = handshake_cipher_name(h);
    handshake_session(h, &l->session);
    pthread_mutex_init(&l->mutex, NULL);
    thread_cond_init(&l->cond);
    *out = l;
    return OK;
}

static void link_free(struct link *l)
{
    close(l->fd);
    if (l->reader.in)
        session_reader_fini(&l->reader);
    session_wipe(&l->session);
    free(l->scratch);
    buf_free(&l->queue);
    pthread_cond_destroy(&l->cond);
    pthread_mutex_destroy(&l->mutex);
    free(l);
}

/* --- sending; all with the mutex held ------------------------------------------------------------ */

static size_t queued(const struct link *l)
{
    return l->queue.len - l->queue_pos;
}

/* The connection can send no more. The reader is woken, takes what still came in, and says that the link is down. */
static void send_failed(struct link *l, const struct err *why)
{
    if (l->send_err.code == OK)
        l->send_err = *why;
    atomic_store(&l->down, true);
    shutdown(l->fd, SHUT_RDWR);
    pthread_cond_broadcast(&l->cond);
}

/* Sends what the socket takes now. Returns the bytes taken, or -1 after send_failed. */
static ssize_t push(struct link *l, const uint8_t *data, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = send(l->fd, data + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        struct err why;
        if (errno == EPIPE || errno == ECONNRESET)
            err_set_os(&why, ERR_CLOSED, errno, "the peer is gone");
        else
            err_set_os(&why, errno == ETIMEDOUT ? ERR_TIMEOUT : ERR_IO, errno, "cannot send to the peer");
        send_failed(l, &why);
        return -1;
    }
    count(&l->bytes_out, done);
    return (ssize_t)done;
}

/* Room for n more bytes at the queue's end; what was sent makes way first. */
static uint8_t *queue_room(struct link *l, size_t n)
{
    if (l->queue_pos > 0 && (l->queue_pos == l->queue.len || l->queue_pos > l->queue.len / 2)) {
        memmove(l->queue.data, l->queue.data + l->queue_pos, queued(l));
        l->queue.len -= l->queue_pos;
        l->queue_pos = 0;
    }
    return buf_reserve(&l->queue, n);
}

/* Seals one record and sends it, or what of it the socket does not take goes to the queue. */
static enum err_code put_record(struct link *l, const uint8_t *data, size_t len, struct err *e)
{
    const size_t wire = len + SESSION_RECORD_EXTRA;
    const bool direct = queued(l) == 0;
    ssize_t sent = 0;
    uint8_t *room = NULL;
    if (direct) {
        session_seal(&l->session, data, len, l->scratch);
        sent = push(l, l->scratch, wire);
        if (sent < 0)
            return err_set(e, ERR_CLOSED, "the link of edge %u is down: %s", l->edge, l->send_err.msg);
        if ((size_t)sent == wire)
            return OK;
    }
    room = queue_room(l, wire);
    if (!room) {
        /* The record before this one may be out already: the stream cannot go on. */
        struct err why;
        err_set(&why, ERR_NOMEM, "no memory to queue %zu bytes", wire);
        send_failed(l, &why);
        return err_set(e, ERR_NOMEM, "%s", why.msg);
    }
    if (direct)
        memcpy(room, l->scratch + sent, wire - (size_t)sent);
    else
        session_seal(&l->session, data, len, room);
    l->queue.len += wire - (size_t)sent;
    return OK;
}

static enum err_code put_frames(struct link *l, const uint8_t *data, size_t len, struct err *e)
{
    enum err_code rc = OK;
    const bool was_empty = queued(l) == 0;
    for (size_t done = 0; done < len && rc == OK;) {
        size_t n = len - done < SESSION_RECORD_MAX ? len - done : SESSION_RECORD_MAX;
        rc = put_record(l, data + done, n, e);
        done += n;
    }
    l->last_sent_ns = clock_now_ns();
    if (rc == OK && was_empty && queued(l) > 0)
        pthread_cond_broadcast(&l->cond);
    return rc;
}

static enum err_code count_frames(const uint8_t *data, size_t len, uint64_t *n, struct err *e)
{
    *n = 0;
    for (size_t at = 0; at < len; ++*n) {
        struct frame_header h;
        if (len - at < FRAME_HEADER_BYTES)
            return err_set(e, ERR_ARG, "%zu bytes are not whole frames", len);
        enum err_code rc = frame_header_get(data + at, &h, e);
        if (rc != OK)
            return rc;
        if (len - at - FRAME_HEADER_BYTES < h.length)
            return err_set(e, ERR_ARG, "%zu bytes are not whole frames", len);
        at += FRAME_HEADER_BYTES + h.length;
    }
    return OK;
}

enum err_code link_send(struct link *l, const void *frames, size_t len, struct err *e)
{
    uint64_t n;
    enum err_code rc = count_frames(frames, len, &n, e);
    if (rc != OK)
        return rc;
    pthread_mutex_lock(&l->mutex);
    if (!l->started || l->closing || l->said_bye || atomic_load(&l->down)) {
        rc = err_set(e, ERR_CLOSED, "the link of edge %u is %s", l->edge, l->started ? "down" : "not started");
    } else if (queued(l) > 0 && queued(l) + session_wire_bytes(len) > l->opt.queue_bytes) {
        rc = err_set(e, ERR_BUSY, "edge %u takes no more: %zu bytes are waiting, %zu came, %u may wait", l->edge,
                     queued(l), len, l->opt.queue_bytes);
    } else {
        rc = put_frames(l, frames, len, e);
        if (rc == OK)
            count(&l->frames_out, n);
    }
    pthread_mutex_unlock(&l->mutex);
    return rc;
}

void link_bye(struct link *l, enum err_code code, uint32_t rank, const char *text)
{
    struct buf b = {0};
    struct frame_fail f = {.code = code, .rank = rank};
    snprintf(f.text, sizeof f.text, "%s", text ? text : "");
    if (frame_fail_put(&b, FRAME_BYE, 0, &f, NULL) == OK) {
        pthread_mutex_lock(&l->mutex);
        if (l->started && !l->closing && !l->said_bye && !atomic_load(&l->down) &&
            put_frames(l, b.data, b.len, NULL) == OK)
            count(&l->frames_out, 1);
        l->said_bye = true;
        pthread_mutex_unlock(&l->mutex);
    }
    buf_free(&b);
}

/* --- the writer thread ------------------------------------------------------------------------------ */

/* Sends from the queue; waits, without the mutex, while the socket is full. */
static void write_queue(struct link *l)
{
    ssize_t n = push(l, l->queue.data + l->queue_pos, queued(l));
    if (n < 0)
        return;
    l->queue_pos += (size_t)n;
    if (queued(l) == 0) {
        l->queue_pos = 0;
        buf_clear(&l->queue);
        if (l->queue.cap > QUEUE_KEEP)
            buf_free(&l->queue);
        return;
    }
    struct pollfd p = {.fd = l->fd, .events = POLLOUT};
    pthread_mutex_unlock(&l->mutex);
    poll(&p, 1, WRITER_LOOK_MS);
    pthread_mutex_lock(&l->mutex);
}

static void write_heartbeat(struct link *l)
{
    uint8_t frame[FRAME_HEADER_BYTES];
    frame_header_put(frame, &(struct frame_header){.type = FRAME_HEARTBEAT});
    if (put_frames(l, frame, sizeof frame, NULL) == OK)
        count(&l->frames_out, 1);
}

static void *writer_main(void *arg)
{
    struct link *l = arg;
    const uint64_t beat_ns = l->opt.heartbeat_ms * CLOCK_NS_PER_MS;
    uint64_t linger_until = 0;
    pthread_mutex_lock(&l->mutex);
    while (!atomic_load(&l->down)) {
        const uint64_t now = clock_now_ns();
        if (l->closing && linger_until == 0)
            linger_until = now + l->opt.linger_ms * CLOCK_NS_PER_MS;
        if (l->closing && (queued(l) == 0 || now >= linger_until))
            break;
        if (queued(l) > 0)
            write_queue(l);
        else if (l->said_bye || now < l->last_sent_ns + beat_ns)
            thread_cond_wait(&l->cond, &l->mutex, l->said_bye ? now + beat_ns : l->last_sent_ns + beat_ns);
        else
            write_heartbeat(l);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

/* --- the reader thread ------------------------------------------------------------------------------ */

static bool is_closing(struct link *l)
{
    pthread_mutex_lock(&l->mutex);
    bool closing = l->closing;
    pthread_mutex_unlock(&l->mutex);
    return closing;
}

/* Why the link ends after FRAME_BYE: what the peer said. */
static void take_bye(const struct frame_header *h, const uint8_t *payload, struct err *why)
{
    struct frame_fail f;
    if (frame_fail_get(payload, h->length, &f, why) != OK)
        return;
    if (f.code == OK)
        err_set(why, OK, "rank %u left: %s", f.rank, f.text[0] ? f.text : "no reason given");
    else
        err_set(why, f.code, "rank %u left: %s", f.rank, f.text[0] ? f.text : err_text(f.code));
}

/* Hands out all frames that are here. false when the link ends; *why then says it. */
static bool deliver(struct link *l, bool *said_bye, struct err *why)
{
    struct frame_header h;
    const uint8_t *payload;
    bool found;
    for (;;) {
        if (session_reader_next(&l->reader, &found, &h, &payload, why) != OK)
            return false;
        if (!found)
            return true;
        count(&l->frames_in, 1);
        if (h.type == FRAME_HEARTBEAT) {
            if (h.length == 0)
                continue;
            err_set(why, ERR_PROTOCOL, "heartbeat with a payload of %u bytes, 0 are allowed", h.length);
            return false;
        }
        if (!is_closing(l))
            l->cb.on_frame(l->cb.ctx, &h, payload);
        if (h.type == FRAME_BYE) {
            *said_bye = true;
            take_bye(&h, payload, why);
            return false;
        }
    }
}

/* Blocks for the next bytes. false when the link ends. */
static bool receive(struct link *l, struct err *why)
{
    size_t room;
    uint8_t *at = session_reader_room(&l->reader, &room);
    ssize_t n;
    do {
        n = recv(l->fd, at, room, 0);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        session_reader_got(&l->reader, (size_t)n);
        count(&l->bytes_in, (uint64_t)n);
        return true;
    }
    if (n == 0)
        err_set(why, ERR_CLOSED, "the peer ended the connection%s without a goodbye",
                session_reader_partial(&l->reader) ? " in the middle of a frame and" : "");
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
        err_set(why, ERR_TIMEOUT, "nothing was heard of the peer for %u ms", l->opt.death_ms);
    else if (errno == ECONNRESET)
        err_set_os(why, ERR_CLOSED, errno, "the connection is broken");
    else
        err_set_os(why, errno == ETIMEDOUT ? ERR_TIMEOUT : ERR_IO, errno, "the connection is broken");
    return false;
}

/* Tells the peer why this end gives up, where it can still be told. */
static void tell_peer(struct link *l, const struct err *why)
{
    switch (why->code) {
    case ERR_TIMEOUT:
    case ERR_PROTOCOL:
    case ERR_FORMAT:
    case ERR_LIMIT:
    case ERR_AUTH:
        link_bye(l, why->code, l->peer.peer_rank, why->msg);
        break;
    default:
        break;
    }
}

static void *reader_main(void *arg)
{
    struct link *l = arg;
    struct err why;
    bool said_bye = false;
    while (receive(l, &why) && deliver(l, &said_bye, &why))
        continue;
    if (!said_bye)
        tell_peer(l, &why);
    pthread_mutex_lock(&l->mutex);
    /* This end's own shutdown looks like the peer's end of stream: the failed send is the cause then. */
    if (why.code == ERR_CLOSED && l->send_err.code != OK)
        why = l->send_err;
    atomic_store(&l->down, true);
    shutdown(l->fd, SHUT_RDWR);
    bool closing = l->closing;
    pthread_cond_broadcast(&l->cond);
    pthread_mutex_unlock(&l->mutex);
    if (!closing) {
        log_info("link", "edge=%u peer_rank=%u down code=%s: %s", l->edge, l->peer.rank, err_name(why.code), why.msg);
        l->cb.on_down(l->cb.ctx, why.code, why.msg);
    }
    pthread_mutex_lock(&l->mutex);
    l->reader_done = true;
    pthread_cond_broadcast(&l->cond);
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

/* --- start and end -------------------------------------------------------------------------------- */

static enum err_code prepare_socket(const struct link *l, struct err *e)
{
    const struct timeval silence = {.tv_sec = l->opt.death_ms / 1000,
                                    .tv_usec = (suseconds_t)(l->opt.death_ms % 1000) * 1000};
    int flags = fcntl(l->fd, F_GETFL);
    if (flags < 0 || fcntl(l->fd, F_SETFL, flags & ~O_NONBLOCK) != 0 ||
        setsockopt(l->fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot prepare a link's socket");
    net_tcp_user_timeout(l->fd, l->opt.death_ms > UINT32_MAX / ACK_FACTOR ? UINT32_MAX : l->opt.death_ms * ACK_FACTOR);
    return OK;
}

static void stop_writer(struct link *l)
{
    pthread_mutex_lock(&l->mutex);
    atomic_store(&l->down, true);
    pthread_cond_broadcast(&l->cond);
    pthread_mutex_unlock(&l->mutex);
    pthread_join(l->writer_thread, NULL);
}

enum err_code link_start(struct link *l, const struct link_callbacks *cb, const struct link_options *opt, struct err *e)
{
    const struct link_options o = opt ? *opt : (struct link_options){0};
    if (l->started || !cb->on_frame || !cb->on_down)
        return err_set(e, ERR_ARG, "a link is started once, with both callbacks");
    l->opt.heartbeat_ms = o.heartbeat_ms ? o.heartbeat_ms : LINK_HEARTBEAT_MS;
    l->opt.death_ms = o.death_ms ? o.death_ms : LINK_DEATH_MS;
    l->opt.queue_bytes = o.queue_bytes ? o.queue_bytes : LINK_QUEUE_BYTES;
    l->opt.linger_ms = o.linger_ms ? o.linger_ms : LINK_LINGER_MS;
    if (l->opt.death_ms <= l->opt.heartbeat_ms)
        return err_set(e, ERR_ARG, "a link would die after %u ms of silence, with a heartbeat every %u ms",
                       l->opt.death_ms, l->opt.heartbeat_ms);
    enum err_code rc = prepare_socket(l, e);
    if (rc == OK && !l->scratch && !(l->scratch = malloc(RECORD_WIRE_MAX)))
        rc = err_set(e, ERR_NOMEM, "no memory for a link");
    if (rc == OK && !l->reader.in)
        rc = session_reader_init(&l->reader, &l->session, e);
    if (rc != OK)
        return rc;
    l->cb = *cb;
    l->last_sent_ns = clock_now_ns();
    rc = thread_start(&l->writer_thread, "kv-link-send", writer_main, l, e);
    if (rc != OK)
        return rc;
    pthread_mutex_lock(&l->mutex);
    l->started = true; /* before the reader: its callbacks may send */
    pthread_mutex_unlock(&l->mutex);
    rc = thread_start(&l->reader_thread, "kv-link-recv", reader_main, l, e);
    if (rc != OK) {
        stop_writer(l);
        pthread_mutex_lock(&l->mutex);
        l->started = false;
        pthread_mutex_unlock(&l->mutex);
    }
    return rc;
}

void link_close(struct link *l)
{
    if (!l)
        return;
    if (l->started) {
        pthread_mutex_lock(&l->mutex);
        const uint64_t until = clock_deadline_ms(l->opt.linger_ms);
        l->closing = true;
        pthread_cond_broadcast(&l->cond);
        pthread_mutex_unlock(&l->mutex);
        pthread_join(l->writer_thread, NULL);
        /* Closing a socket with unread bytes resets the connection and may take the last frames from the peer. The peer
         * ends its side as soon as it has read this end's last byte: wait for that. */
        shutdown(l->fd, SHUT_WR);
        pthread_mutex_lock(&l->mutex);
        while (!l->reader_done && thread_cond_wait(&l->cond, &l->mutex, until))
            continue;
        pthread_mutex_unlock(&l->mutex);
        shutdown(l->fd, SHUT_RDWR);
        pthread_join(l->reader_thread, NULL);
    }
    link_free(l);
}

/* --- questions ---------------------------------------------------------------------------------- */

const struct handshake_hello *link_peer(const struct link *l)
{
    return &l->peer;
}

uint32_t link_edge(const struct link *l)
{
    return l->edge;
}

const char *link_cipher_name(const struct link *l)
{
    return l->cipher;
}

bool link_is_down(const struct link *l)
{
    return atomic_load(&l->down);
}

void link_stats_get(const struct link *l, struct link_stats *out)
{
    out->frames_in = atomic_load_explicit(&l->frames_in, memory_order_relaxed);
    out->frames_out = atomic_load_explicit(&l->frames_out, memory_order_relaxed);
    out->bytes_in = atomic_load_explicit(&l->bytes_in, memory_order_relaxed);
    out->bytes_out = atomic_load_explicit(&l->bytes_out, memory_order_relaxed);
}
