/* SPDX-License-Identifier: MIT
 *
 * Responses: their heads, chunks, and the queue of bytes that wait for the client. The text of heads is made here
 * because lws knows few reason phrases.
 */
#include "base/clock.h"
#include "base/log.h"
#include "http/server_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#define PIECES_A_TURN 4
#define PLACED_BYTES  ((size_t)256 << 10) /* of a file, at once */
#define AHEAD_BYTES   ((uint64_t)2 << 20) /* of it, which the disk reads before they are sent */
#define DISK_NS       CLOCK_NS_PER_S      /* to wait for bytes from the disk until they are asked for in earnest */

static const struct {
    unsigned status;
    const char *text;
} reasons[] = {
    /* RFC 9110 §15, RFC 6585 */
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {206, "Partial Content"},
    {301, "Moved Permanently"},
    {302, "Found"},
    {303, "See Other"},
    {304, "Not Modified"},
    {307, "Temporary Redirect"},
    {308, "Permanent Redirect"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {406, "Not Acceptable"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {410, "Gone"},
    {411, "Length Required"},
    {412, "Precondition Failed"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {416, "Range Not Satisfiable"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {426, "Upgrade Required"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {502, "Bad Gateway"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

static const char *reason_of(unsigned status)
{
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "";
}

/* RFC 9110 §5.6.7, once a second. */
static const char *date_of(struct http_server *s)
{
    static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const time_t now = time(NULL);
    if ((uint64_t)now != s->date_s) {
        struct tm tm;
        if (!gmtime_r(&now, &tm))
            return "";
        s->date_s = (uint64_t)now;
        snprintf(s->date, sizeof s->date, "%.3s, %02u %.3s %04u %02u:%02u:%02u GMT", days + 3 * (size_t)tm.tm_wday,
                 (unsigned)tm.tm_mday % 100, months + 3 * (size_t)tm.tm_mon, (unsigned)(tm.tm_year + 1900) % 10000,
                 (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
    }
    return s->date;
}

static bool has_body(const struct http_request *r)
{
    return !r->head_only && r->status >= 200 && r->status != 204 && r->status != 304;
}

static void put_head(struct http_request *r, const struct http_reply *reply)
{
    r->status = reply->status;
    buf_printf(&r->out, "HTTP/1.1 %u %s\r\nserver: kvasir/" KVASIR_VERSION "\r\ndate: %s\r\n", reply->status,
               reason_of(reply->status), date_of(r->conn->s));
    if (reply->type)
        buf_printf(&r->out, "content-type: %s\r\n", reply->type);
    if (reply->headers)
        buf_puts(&r->out, reply->headers);
}

static void end_head(struct http_request *r)
{
    if (!r->keep)
        buf_puts(&r->out, "connection: close\r\n");
    else if (r->http10)
        buf_puts(&r->out, "connection: keep-alive\r\n");
    buf_puts(&r->out, "\r\n");
}

void http_respond(struct http_request *r, const struct http_reply *reply, const void *body, size_t len)
{
    if (r->status)
        return;
    put_head(r, reply);
    if (r->status >= 200 && r->status != 204 && (r->status != 304 || len))
        buf_printf(&r->out, "content-length: %zu\r\n", len);
    end_head(r);
    if (has_body(r))
        buf_put(&r->out, body, len);
    r->ended = true;
    conn_mark_dirty(r->conn);
}

void http_begin(struct http_request *r, const struct http_reply *reply)
{
    if (r->status)
        return;
    r->status = reply->status;
    r->chunked = !r->http10;
    if (r->http10)
        r->keep = false; /* the end of the connection is the end of the body */
    put_head(r, reply);
    if (r->chunked && r->status != 204 && r->status != 304)
        buf_puts(&r->out, "transfer-encoding: chunked\r\n");
    end_head(r);
    conn_mark_dirty(r->conn);
}

void http_write(struct http_request *r, const void *data, size_t len)
{
    if (!r->status || r->ended || !len || !has_body(r))
        return;
    if (r->chunked)
        buf_printf(&r->out, "%zx\r\n", len);
    buf_put(&r->out, data, len);
    if (r->chunked)
        buf_puts(&r->out, "\r\n");
    if (reply_queued(r) > SERVER_PILE_BYTES)
        reply_flush(r->conn); /* not to pile up what could be on its way */
    if (reply_queued(r) > r->conn->s->config.max_queued)
        conn_cut(r->conn);
    conn_mark_dirty(r->conn);
}

void http_end(struct http_request *r)
{
    if (!r->status || r->ended)
        return;
    if (r->chunked && has_body(r))
        buf_puts(&r->out, "0\r\n\r\n");
    r->ended = true;
    conn_mark_dirty(r->conn);
}

void http_send(struct http_request *r, const struct http_reply *reply, const struct http_source *source)
{
    if (r->status)
        return;
    put_head(r, reply);
    buf_printf(&r->out, "content-length: %" PRIu64 "\r\n", source->length);
    end_head(r);
    if (has_body(r) && source->length > 0) {
        r->source = *source;
        conn_set_patience(r->conn, 0);
        r->piece = malloc(HTTP_PIECE_BYTES);
        if (!r->piece)
            conn_cut(r->conn);
    }
    r->ended = true;
    conn_mark_dirty(r->conn);
}

bool reply_has_more(const struct http_request *r)
{
    return r->piece_pos < r->piece_len || r->source_pos < r->source.length;
}

size_t reply_queued(const struct http_request *r)
{
    return r->out.len - r->out_pos;
}

size_t http_queued(const struct http_request *r)
{
    return reply_queued(r);
}

unsigned http_status(const struct http_request *r)
{
    return r->status;
}

/* Tells whoever wants to know; x then has what is sent. */
static void ask_refusal(struct http_server *s, struct http_refusal *x)
{
    if (s->config.on_refused)
        s->config.on_refused(s->config.ctx, x);
    if (x->body.failed || x->headers.failed || !x->type) {
        buf_free(&x->body);
        buf_free(&x->headers);
        x->type = "text/plain; charset=utf-8";
        buf_printf(&x->body, "%s\n", x->text);
    }
}

static void refusal_free(struct http_refusal *x)
{
    buf_free(&x->body);
    buf_free(&x->headers);
}

void reply_refuse(struct http_request *r, unsigned status, const char *text)
{
    struct http_refusal x = {
        .status = status, .text = text, .peer = r->conn->peer, .r = r, .took_ns = clock_now_ns() - r->conn->began_ns};
    ask_refusal(r->conn->s, &x);
    r->keep = false;
    const struct http_reply reply = {.status = status, .type = x.type, .headers = buf_str(&x.headers)};
    http_respond(r, &reply, x.body.data, x.body.len);
    refusal_free(&x);
}

void reply_raw(struct http_server *s, int fd, const char *peer, const struct http_request *r, uint64_t took_ns,
               unsigned status, const char *text)
{
    struct http_refusal x = {.status = status, .text = text, .peer = peer, .r = r, .took_ns = took_ns};
    struct buf out = {0};
    ask_refusal(s, &x);
    buf_printf(&out, "HTTP/1.1 %u %s\r\nserver: kvasir/" KVASIR_VERSION "\r\ndate: %s\r\ncontent-type: %s\r\n", status,
               reason_of(status), date_of(s), x.type);
    buf_put(&out, x.headers.data, x.headers.len);
    buf_printf(&out, "content-length: %zu\r\nconnection: close\r\n\r\n", x.body.len);
    buf_put(&out, x.body.data, x.body.len);
    /* As much as the socket takes at once: nobody waits for this one. */
    if (!out.failed && send(fd, out.data, out.len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_debug("http", "%s did not take its refusal", peer);
    buf_free(&out);
    refusal_free(&x);
}

void reply_told(struct http_server *s, const char *peer, unsigned status, const char *text)
{
    struct http_refusal x = {.status = status, .text = text, .peer = peer};
    if (s->config.on_refused)
        s->config.on_refused(s->config.ctx, &x);
    refusal_free(&x);
}

static bool next_piece(struct http_request *r)
{
    const uint64_t left = r->source.length - r->source_pos;
    r->piece_pos = 0;
    r->piece_len = left < HTTP_PIECE_BYTES ? (size_t)left : HTTP_PIECE_BYTES;
    if (!r->source.read(r->source.ctx, r->source_pos, r->piece, r->piece_len))
        return false;
    r->source_pos += r->piece_len;
    return true;
}

/* What came of one try to send. */
enum sending { SENDING_ON, SENDING_LATER, SENDING_FAILED };

static enum sending sent(struct http_conn *c, ssize_t n)
{
    struct http_request *r = c->r;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? SENDING_LATER : SENDING_FAILED;
    if (n == 0) /* the file has become shorter */
        return SENDING_FAILED;
    c->deadline_ns = clock_deadline_ms(c->s->config.idle_ms);
    if (r->source.sent)
        r->source.sent(r->source.ctx, (size_t)n);
    return SENDING_ON;
}

/* Would reading this byte not wait for the disk? Where the file system cannot say, it counts as being in memory. */
static bool in_memory(int fd, uint64_t at)
{
    uint8_t byte;
    const struct iovec to = {.iov_base = &byte, .iov_len = 1};
    return preadv2(fd, &to, 1, (off_t)at, RWF_NOWAIT) >= 0 || errno != EAGAIN;
}

static void read_ahead(struct http_request *r, const struct http_place *p, uint64_t left)
{
    uint64_t n = left < AHEAD_BYTES ? left : AHEAD_BYTES;
    n = p->len < n ? p->len : n;
    posix_fadvise(p->fd, (off_t)p->at, (off_t)n, POSIX_FADV_WILLNEED); /* without waiting; may do less, or nothing */
    r->ahead_pos = r->source_pos + n;
}

/* Are the next n bytes in memory? The disk is told to read them, and what comes after, while others are served; a
 * sendfile that waits for the disk would make all wait. Looks at the ends of the n, since they are read in order. After
 * DISK_NS it is true all the same: the disk is overloaded, or broken, which then shows, or never will say. */
static bool disk_has_read(struct http_conn *c, const struct http_place *p, size_t n, uint64_t left)
{
    struct http_request *r = c->r;
    if (c->s->disk_blind)
        return true;
    if (in_memory(p->fd, p->at) && in_memory(p->fd, p->at + n - 1)) {
        r->disk_since_ns = 0;
        if (r->source_pos + n + AHEAD_BYTES / 2 > r->ahead_pos && r->ahead_pos < r->source.length)
            read_ahead(r, p, left);
        return true;
    }
    const uint64_t now = clock_now_ns();
    read_ahead(r, p, left);
    if (r->disk_since_ns && now - r->disk_since_ns >= DISK_NS)
        return true;
    r->disk_since_ns = r->disk_since_ns ? r->disk_since_ns : now;
    c->deadline_ns = clock_deadline_ms(c->s->config.idle_ms); /* it is not the client that is slow */
    return false;
}

static enum sending send_place(struct http_conn *c, const struct http_place *p)
{
    struct http_request *r = c->r;
    const uint64_t left = r->source.length - r->source_pos;
    size_t most = left < PLACED_BYTES ? (size_t)left : PLACED_BYTES;
    most = p->len < most ? (size_t)p->len : most;
    if (!disk_has_read(c, p, most, left))
        return SENDING_LATER;
    off_t at = (off_t)p->at;
    const ssize_t n = sendfile(c->fd, p->fd, &at, most); /* SIGPIPE is blocked in our threads */
    r->source_pos += n > 0 ? (uint64_t)n : 0;
    if (n > 0 && r->disk_since_ns) { /* waited in vain; if it still is not there the file system says no truth */
        r->disk_since_ns = 0;
        c->s->disk_blind = !in_memory(p->fd, p->at);
    }
    return sent(c, n);
}

static enum sending send_piece(struct http_conn *c)
{
    struct http_request *r = c->r;
    if (r->piece_pos == r->piece_len && !next_piece(r))
        return SENDING_FAILED;
    const ssize_t n = send(c->fd, r->piece + r->piece_pos, r->piece_len - r->piece_pos, MSG_NOSIGNAL | MSG_DONTWAIT);
    r->piece_pos += n > 0 ? (size_t)n : 0;
    const enum sending how = sent(c, n);
    return how == SENDING_ON && r->piece_pos < r->piece_len ? SENDING_LATER : how;
}

/* Straight into the socket: lws has nothing of this connection to send, and would keep a copy of what does not fit. A
 * fast client gets a few pieces, then it is the others' turn. */
static void flush_source(struct http_conn *c)
{
    struct http_request *r = c->r;
    enum sending how = SENDING_ON;
    for (int i = 0; i < PIECES_A_TURN && reply_has_more(r) && how == SENDING_ON; i++) {
        struct http_place p;
        const bool placed =
            r->piece_pos == r->piece_len && r->source.place && r->source.place(r->source.ctx, r->source_pos, &p);
        how = placed && p.len > 0 ? send_place(c, &p) : send_piece(c);
    }
    if (how == SENDING_FAILED)
        conn_cut(c);
}

void reply_flush(struct http_conn *c)
{
    struct http_request *r = c->r;
    struct http_server *s = c->s;
    while (r && c->wsi && !c->cut && !lws_partial_buffered(c->wsi) && r->out_pos < r->out.len) {
        size_t n = r->out.len - r->out_pos;
        if (n > SERVER_IO_BYTES)
            n = SERVER_IO_BYTES;
        memcpy(s->scratch + LWS_PRE, r->out.data + r->out_pos, n);
        if (lws_write(c->wsi, s->scratch + LWS_PRE, n, LWS_WRITE_HTTP) < 0) {
            conn_cut(c);
            return;
        }
        r->out_pos += n;
        c->deadline_ns = clock_deadline_ms(s->config.idle_ms); /* for the client to take more */
    }
    if (!r)
        return;
    if (r->out.failed)
        conn_cut(c);
    if (r->out_pos == r->out.len && reply_has_more(r) && c->wsi && !c->cut && !lws_partial_buffered(c->wsi))
        flush_source(c);
    if (r->out_pos == r->out.len) {
        buf_clear(&r->out);
        r->out_pos = 0;
        if (r->out.cap > SERVER_PILE_BYTES)
            buf_free(&r->out);
    } else if (r->out_pos > r->out.len / 2 && r->out_pos > SERVER_IO_BYTES) {
        memmove(r->out.data, r->out.data + r->out_pos, r->out.len - r->out_pos);
        r->out.len -= r->out_pos;
        r->out_pos = 0;
    }
}
