/* SPDX-License-Identifier: MIT */
#include "lib/bad_httpd.h"

#include "base/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_HEAD    8192
#define MAX_CONNS   256
#define PART        65536u
#define SEND_BUFFER (256 << 10) /* what was sent and has not arrived is little on every machine */

struct file {
    char path[128], etag[80];
    const uint8_t *data;
    int fd; /* -1: data */
    uint64_t len;
};

struct rule {
    struct bad_rule r;
    uint32_t seen;
};

struct bad_httpd {
    int fd;
    uint16_t port;
    pthread_t accepter;
    pthread_mutex_t lock;
    pthread_t threads[MAX_CONNS];
    int fds[MAX_CONNS]; /* -1: ended */
    uint32_t n_threads;
    bool stop;
    struct file files[BAD_MAX_FILES];
    uint32_t n_files;
    struct rule rules[BAD_MAX_RULES];
    uint32_t n_rules;
    char token[128];
    struct bad_counts counts;
    uint32_t n_counted_again; /* calls of bad_count_again */
};

struct connection {
    struct bad_httpd *s;
    uint32_t i;
    int fd;
};

struct request {
    char text[MAX_HEAD];
    char path[512];
    bool head;
    bool has_range;
    uint64_t from, to; /* half-open; to UINT64_MAX: the end */
    const char *if_range;
    char if_range_text[128];
    bool has_token;
    char token[200];
};

/* What is sent. */
struct answer {
    struct file f; /* a copy: the test may put another in its place meanwhile */
    bool found;
    struct bad_rule how;
    unsigned status;
    uint64_t from, to;
};

static bool say(int fd, const char *fmt, ...) KV_PRINTF(2, 3);
static bool say(int fd, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return send(fd, text, (size_t)n, MSG_NOSIGNAL) == n;
}

/* Waits until the other side closes or the server stops. */
static void hang(int fd)
{
    char byte;
    while (recv(fd, &byte, 1, 0) > 0)
        ;
}

/* ms milliseconds; false: the connection ended meanwhile. */
static bool pause_ms(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 0;
}

static bool send_bytes(struct bad_httpd *s, int fd, const uint8_t *p, size_t len)
{
    pthread_mutex_lock(&s->lock);
    const uint32_t again = s->n_counted_again;
    s->counts.body_bytes += len; /* first: who has received them may look at once */
    pthread_mutex_unlock(&s->lock);
    ssize_t n = 1;
    while (len > 0 && (n = send(fd, p, len, MSG_NOSIGNAL)) > 0) {
        p += n;
        len -= (size_t)n;
    }
    if (n > 0)
        return true;
    pthread_mutex_lock(&s->lock);
    if (again == s->n_counted_again)
        s->counts.body_bytes -= len;
    pthread_mutex_unlock(&s->lock);
    return false;
}

/* --- reading requests --- */

static const char *header_of(const char *text, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = strstr(text, "\r\n"); p; p = strstr(p + 2, "\r\n"))
        if (strncasecmp(p + 2, name, n) == 0 && p[2 + n] == ':')
            return p + 2 + n + 1 + strspn(p + 2 + n + 1, " ");
    return NULL;
}

static void copy_value(const char *value, char *out, size_t size)
{
    snprintf(out, size, "%.*s", value ? (int)strcspn(value, "\r\n") : 0, value ? value : "");
}

static bool read_request(int fd, struct request *r)
{
    size_t len = 0;
    *r = (struct request){0};
    while (!strstr(r->text, "\r\n\r\n")) {
        if (len + 1 >= sizeof r->text)
            return false;
        const ssize_t n = recv(fd, r->text + len, sizeof r->text - 1 - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
        r->text[len] = 0;
    }
    r->head = strncmp(r->text, "HEAD ", 5) == 0;
    const char *path = strchr(r->text, ' ');
    if (!path)
        return false;
    snprintf(r->path, sizeof r->path, "%.*s", (int)strcspn(path + 1, " ?"), path + 1);
    const char *range = header_of(r->text, "range");
    if (range && strncmp(range, "bytes=", 6) == 0) {
        char *end;
        r->has_range = true;
        r->from = strtoull(range + 6, &end, 10);
        r->to = *end == '-' && end[1] >= '0' && end[1] <= '9' ? strtoull(end + 1, NULL, 10) + 1 : UINT64_MAX;
    }
    r->if_range = header_of(r->text, "if-range");
    copy_value(r->if_range, r->if_range_text, sizeof r->if_range_text);
    const char *auth = header_of(r->text, "authorization");
    r->has_token = auth != NULL;
    copy_value(auth && strncmp(auth, "Bearer ", 7) == 0 ? auth + 7 : NULL, r->token, sizeof r->token);
    return true;
}

/* --- what is answered --- */

static bool rule_fits(struct rule *x, const struct request *r)
{
    const bool at = x->r.only_at == 0 || x->r.only_at == UINT64_MAX ||
                    (r->has_range && r->from <= x->r.only_at && x->r.only_at < r->to);
    if ((x->r.path && strcmp(x->r.path, r->path) != 0) || !at)
        return false;
    const uint32_t i = x->seen++;
    return i >= x->r.skip && (x->r.times == 0 || i - x->r.skip < x->r.times);
}

static struct answer decide(struct bad_httpd *s, const struct request *r)
{
    struct answer a = {.status = 404};
    pthread_mutex_lock(&s->lock);
    s->counts.n_requests++;
    s->counts.n_with_token += r->has_token;
    s->counts.n_if_range += r->if_range != NULL;
    for (uint32_t i = 0; i < s->n_files && !a.found; i++)
        if (strcmp(s->files[i].path, r->path) == 0) {
            a.f = s->files[i];
            a.found = true;
        }
    for (uint32_t i = 0; i < s->n_rules && a.how.how == BAD_NOT; i++)
        if (rule_fits(&s->rules[i], r))
            a.how = s->rules[i].r;
    const bool allowed = !s->token[0] || strcmp(s->token, r->token) == 0;
    pthread_mutex_unlock(&s->lock);
    if (!allowed)
        a.status = 401;
    else if (a.found)
        a.status = 200;
    if (a.status != 200)
        return a;
    a.to = a.f.len;
    const bool changed = a.how.how == BAD_NEW_ETAG || (r->if_range && strcmp(r->if_range_text, a.f.etag) != 0);
    if (!r->has_range || changed || a.how.how == BAD_IGNORE_RANGE)
        return a;
    if (r->from >= a.f.len || r->from >= r->to) {
        a.status = 416;
        return a;
    }
    a.status = 206;
    a.from = r->from;
    a.to = r->to < a.f.len ? r->to : a.f.len;
    return a;
}

static bool send_etag(int fd, const struct answer *a)
{
    switch (a->how.how) {
    case BAD_NO_ETAG:
        return true;
    case BAD_WEAK_ETAG:
        return say(fd, "ETag: W/%s\r\n", a->f.etag);
    case BAD_GZIP_ETAG:
        return say(fd, "ETag: \"%.*s-gzip\"\r\n", (int)strlen(a->f.etag) - 2, a->f.etag + 1);
    case BAD_NEW_ETAG:
    case BAD_NEW_ETAG_206:
        return say(fd, "ETag: \"new\"\r\n");
    default:
        return say(fd, "ETag: %s\r\n", a->f.etag);
    }
}

static bool send_head(int fd, const struct answer *a)
{
    const uint64_t more = a->how.how == BAD_TOO_MUCH ? a->how.n : 0;
    const uint64_t len = a->to - a->from + more;
    bool ok = say(fd, "HTTP/1.1 %u X\r\nContent-Length: %" PRIu64 "\r\nAccept-Ranges: bytes\r\n", a->status, len) &&
              send_etag(fd, a);
    if (a->how.how == BAD_GZIP)
        ok = ok && say(fd, "Content-Encoding: gzip\r\n");
    if (a->status == 206) {
        const uint64_t later = a->how.how == BAD_RANGE ? a->how.n : 0;
        const uint64_t longer = a->how.how == BAD_LENGTH ? a->how.n : 0;
        const uint64_t from = a->from + later, last = a->to - 1 + later + more, total = a->f.len + longer;
        ok = ok && say(fd, "Content-Range: bytes %" PRIu64 "-%" PRIu64 "/", from, last);
        ok = ok && (a->how.how == BAD_RANGE_STAR ? say(fd, "*\r\n") : say(fd, "%" PRIu64 "\r\n", total));
    }
    return ok && say(fd, "\r\n");
}

static bool read_part(const struct answer *a, uint64_t at, uint8_t *out, size_t len)
{
    if (a->f.fd < 0)
        memcpy(out, a->f.data + at, len);
    else if (pread(a->f.fd, out, len, (off_t)at) != (ssize_t)len)
        return false;
    if (a->how.how == BAD_FLIP && a->how.n >= at && a->how.n < at + len)
        out[a->how.n - at] ^= 1;
    return true;
}

/* false: the connection is to be closed. */
static bool send_body(struct bad_httpd *s, int fd, const struct answer *a)
{
    static const uint8_t zeros[PART];
    uint8_t *part = malloc(PART);
    const enum bad_how how = a->how.how;
    bool ok = part != NULL;
    for (uint64_t at = a->from; ok && at < a->to;) {
        const uint64_t done = at - a->from;
        uint64_t len = a->to - at < PART ? a->to - at : PART;
        if ((how == BAD_CUT || how == BAD_HANG || how == BAD_DRIBBLE)) {
            len = done >= a->how.n ? 0 : a->how.n - done < len ? a->how.n - done : len;
            if (len == 0 && how == BAD_HANG)
                hang(fd);
            if (len == 0 && how == BAD_DRIBBLE)
                len = pause_ms(fd, 20) ? 1 : 0;
            if (len == 0) {
                ok = false;
                break;
            }
        }
        if (how == BAD_SLOW) {
            const uint64_t most = a->how.n / 50 + 1;
            len = len < most ? len : most;
            ok = pause_ms(fd, 20);
        }
        ok = ok && read_part(a, at, part, (size_t)len) && send_bytes(s, fd, part, (size_t)len);
        at += len;
    }
    if (ok && how == BAD_TOO_MUCH)
        ok = send_bytes(s, fd, zeros, a->how.n < PART ? (size_t)a->how.n : PART);
    free(part);
    return ok;
}

/* false: the connection is to be closed. */
static bool answer(struct connection *c, const struct request *r)
{
    const struct answer a = decide(c->s, r);
    switch (a.how.how) {
    case BAD_SILENT:
        return false;
    case BAD_STATUS:
        if (a.how.retry_after)
            return say(c->fd, "HTTP/1.1 %u X\r\nContent-Length: 4\r\nRetry-After: %u\r\n\r\nsad\n", (unsigned)a.how.n,
                       a.how.retry_after);
        return say(c->fd, "HTTP/1.1 %u X\r\nContent-Length: 4\r\n\r\nsad\n", (unsigned)a.how.n);
    case BAD_REDIRECT:
    case BAD_REDIRECT_LOOP:
        return say(c->fd, "HTTP/1.1 302 X\r\nContent-Length: 6\r\nLocation: %s\r\n\r\nmoved\n",
                   a.how.how == BAD_REDIRECT ? a.how.location : r->path);
    default:
        break;
    }
    if (a.status != 200 && a.status != 206)
        return say(c->fd, "HTTP/1.1 %u X\r\nContent-Length: 5\r\n\r\nnope\n", a.status);
    return send_head(c->fd, &a) && (r->head || send_body(c->s, c->fd, &a));
}

/* --- connections --- */

static void *connection_main(void *arg)
{
    struct connection *c = arg;
    struct request *r = malloc(sizeof *r);
    while (r && read_request(c->fd, r) && answer(c, r))
        ;
    free(r);
    pthread_mutex_lock(&c->s->lock);
    c->s->fds[c->i] = -1;
    close(c->fd);
    pthread_mutex_unlock(&c->s->lock);
    free(c);
    return NULL;
}

static void take_connection(struct bad_httpd *s, int fd)
{
    const int one = 1, buffer = SEND_BUFFER;
    struct connection *c = malloc(sizeof *c);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    pthread_mutex_lock(&s->lock);
    const bool room = c && !s->stop && s->n_threads < MAX_CONNS;
    if (room) {
        *c = (struct connection){.s = s, .i = s->n_threads, .fd = fd};
        s->fds[c->i] = fd;
        if (thread_start(&s->threads[c->i], "bad-conn", connection_main, c, NULL) == OK) {
            s->n_threads++;
            s->counts.n_connections++;
            c = NULL;
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (c) {
        free(c);
        close(fd);
    }
}

static void *accepter_main(void *arg)
{
    struct bad_httpd *s = arg;
    for (;;) {
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        const int fd = accept4(s->fd, (struct sockaddr *)&from, &len, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return NULL;
        take_connection(s, fd);
    }
}

struct bad_httpd *bad_start(void)
{
    struct bad_httpd *s = calloc(1, sizeof *s);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!s || fd < 0 || bind(fd, (struct sockaddr *)&at, len) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0) {
        perror("bad_httpd");
        abort();
    }
    s->fd = fd;
    s->port = ntohs(at.sin_port);
    pthread_mutex_init(&s->lock, NULL);
    if (thread_start(&s->accepter, "bad-httpd", accepter_main, s, NULL) != OK)
        abort();
    return s;
}

void bad_stop(struct bad_httpd *s)
{
    if (!s)
        return;
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->accepter, NULL);
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    for (uint32_t i = 0; i < s->n_threads; i++)
        if (s->fds[i] >= 0)
            shutdown(s->fds[i], SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
    close(s->fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

uint16_t bad_port(const struct bad_httpd *s)
{
    return s->port;
}

/* --- what it serves and how --- */

static void put_file(struct bad_httpd *s, const char *path, const struct file *f)
{
    pthread_mutex_lock(&s->lock);
    uint32_t i = 0;
    while (i < s->n_files && strcmp(s->files[i].path, path) != 0)
        i++;
    if (i == BAD_MAX_FILES)
        abort();
    s->n_files += i == s->n_files;
    s->files[i] = *f;
    snprintf(s->files[i].path, sizeof s->files[i].path, "%s", path);
    pthread_mutex_unlock(&s->lock);
}

void bad_file(struct bad_httpd *s, const char *path, const void *data, size_t len, const char *etag)
{
    struct file f = {.data = data, .fd = -1, .len = len};
    snprintf(f.etag, sizeof f.etag, "%s", etag);
    put_file(s, path, &f);
}

void bad_file_fd(struct bad_httpd *s, const char *path, int fd, uint64_t len, const char *etag)
{
    struct file f = {.fd = fd, .len = len};
    snprintf(f.etag, sizeof f.etag, "%s", etag);
    put_file(s, path, &f);
}

void bad_rule(struct bad_httpd *s, const struct bad_rule *r)
{
    pthread_mutex_lock(&s->lock);
    if (s->n_rules == BAD_MAX_RULES)
        abort();
    s->rules[s->n_rules++] = (struct rule){.r = *r};
    pthread_mutex_unlock(&s->lock);
}

void bad_clear(struct bad_httpd *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_rules = 0;
    pthread_mutex_unlock(&s->lock);
}

void bad_token(struct bad_httpd *s, const char *token)
{
    pthread_mutex_lock(&s->lock);
    snprintf(s->token, sizeof s->token, "%s", token ? token : "");
    pthread_mutex_unlock(&s->lock);
}

struct bad_counts bad_count(struct bad_httpd *s)
{
    pthread_mutex_lock(&s->lock);
    const struct bad_counts c = s->counts;
    pthread_mutex_unlock(&s->lock);
    return c;
}

void bad_count_again(struct bad_httpd *s)
{
    pthread_mutex_lock(&s->lock);
    s->counts = (struct bad_counts){0};
    s->n_counted_again++;
    pthread_mutex_unlock(&s->lock);
}
