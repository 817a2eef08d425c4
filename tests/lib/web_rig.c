/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/thread.h"
#include "lib/web_rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

char web_big[3u << 20];
static char huge[24u << 20];

uint8_t web_made(uint64_t i)
{
    return (uint8_t)(i * 131 + (i >> 8) * 7 + (i >> 18));
}

static bool make(void *ctx, uint64_t offset, void *data, size_t len)
{
    struct web *a = ctx;
    uint8_t *p = data;
    pthread_mutex_lock(&a->lock);
    a->n_made += len;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    for (size_t i = 0; i < len; i++)
        p[i] = web_made(offset + i);
    return true;
}

static bool break_off(void *ctx, uint64_t offset, void *data, size_t len)
{
    return len == HTTP_PIECE_BYTES && make(ctx, offset, data, len);
}

static bool place(void *ctx, uint64_t offset, struct http_place *out)
{
    const struct web *a = ctx;
    *out = (struct http_place){.fd = a->file_fd, .at = offset, .len = UINT64_MAX - offset};
    return true;
}

static void on_request(void *ctx, struct http_request *r)
{
    struct web *a = ctx;
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
    } else if (!strcmp(path, "/query")) {
        http_respond(r, &ok, http_query(r), strlen(http_query(r)));
    } else if (!strcmp(path, "/big")) {
        http_respond(r, &ok, web_big, sizeof web_big);
    } else if (!strcmp(path, "/huge")) {
        http_respond(r, &ok, huge, sizeof huge);
    } else if (!strncmp(path, "/made/", 6) || !strncmp(path, "/broken/", 8)) {
        const struct http_reply part = {.status = 206, .type = "x/y", .headers = "accept-ranges: bytes\r\n"};
        const struct http_source source = {.length = strtoull(strchr(path + 1, '/') + 1, NULL, 10),
                                           .ctx = a,
                                           .read = path[1] == 'm' ? make : break_off};
        http_send(r, &part, &source);
    } else if (!strncmp(path, "/file/", 6)) {
        const struct http_source source = {
            .length = strtoull(path + 6, NULL, 10), .ctx = a, .read = break_off, .place = place};
        http_send(r, &ok, &source);
    } else if (!strcmp(path, "/stream") || !strcmp(path, "/flood")) {
        a->stream = r;
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
    struct web *a = ctx;
    pthread_mutex_lock(&a->lock);
    if (done)
        a->n_done++;
    else
        a->n_cut++;
    if (a->stream == r)
        a->stream = NULL;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void on_refused(void *ctx, struct http_refusal *x)
{
    struct web *a = ctx;
    pthread_mutex_lock(&a->lock);
    a->n_refused++;
    a->refused = x->status;
    if (a->own_refusals) {
        x->type = "x/y";
        buf_puts(&x->headers, "x-own: no\r\n");
        buf_printf(&x->body, "[%u %s]", x->status, x->r ? http_path(x->r) : "-");
    }
    if (!x->text[0] || strncmp(x->peer, "127.0.0.1:", 10) != 0)
        abort(); /* not the test's thread */
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void on_wake(void *ctx)
{
    struct web *a = ctx;
    pthread_mutex_lock(&a->lock);
    a->n_wakes++;
    if (a->stream && a->flood)
        http_write(a->stream, web_big, 65536);
    if (a->stream && a->part[0]) {
        http_write(a->stream, a->part, strlen(a->part));
        a->part[0] = 0;
    }
    if (a->stream && a->end)
        http_end(a->stream);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void web_start(struct web *a, struct http_config config)
{
    *a = (struct web){.file_fd = -1};
    pthread_mutex_init(&a->lock, NULL);
    thread_cond_init(&a->changed);
    memset(web_big, 'x', sizeof web_big);
    config.addr = config.addr ? config.addr : "127.0.0.1:0";
    config.head_ms = config.head_ms ? config.head_ms : WEB_WAIT_MS;
    config.idle_ms = config.idle_ms ? config.idle_ms : WEB_WAIT_MS;
    config.ctx = a;
    config.on_request = on_request;
    config.on_gone = on_gone;
    config.on_wake = on_wake;
    config.on_refused = on_refused;
    struct err e = {0};
    if (http_start(&config, &a->server, &e) != OK)
        fail_msg("%s", e.msg);
}

void web_stop(struct web *a)
{
    http_stop(a->server);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
}

/* Until *value is at least `least`. */
void web_wait(struct web *a, const unsigned *value, unsigned least)
{
    const uint64_t deadline = clock_deadline_ms(WEB_WAIT_MS);
    pthread_mutex_lock(&a->lock);
    while (*value < least && thread_cond_wait(&a->changed, &a->lock, deadline))
        ;
    const unsigned got = *value;
    pthread_mutex_unlock(&a->lock);
    if (got < least)
        fail_msg("waited for %u, there are %u", least, got);
}

unsigned web_now(struct web *a, const unsigned *value)
{
    pthread_mutex_lock(&a->lock);
    const unsigned got = *value;
    pthread_mutex_unlock(&a->lock);
    return got;
}

void web_part(struct web *a, const char *text, bool end)
{
    pthread_mutex_lock(&a->lock);
    snprintf(a->part, sizeof a->part, "%s", text);
    a->end = end;
    pthread_mutex_unlock(&a->lock);
    http_wake(a->server);
}

/* --- a client --- */

int web_dial(const struct web *a)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(http_port(a->server)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = WEB_WAIT_MS / 1000};
    if (fd < 0) {
        fail_msg("no socket");
        return fd;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

void web_say_n(int fd, const void *text, size_t n)
{
    const char *p = text;
    for (ssize_t done; n; p += done, n -= (size_t)done) {
        done = send(fd, p, n, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            done = 0;
        else if (done <= 0)
            return; /* the server has closed: the reading says so */
    }
}

void web_say(int fd, const char *text)
{
    web_say_n(fd, text, strlen(text));
}

/* Reads until `end` has come, or to the end of the connection when it is NULL. */
void web_hear(int fd, struct buf *got, const char *end)
{
    for (;;) {
        if (end && strstr(buf_str(got), end))
            return;
        char data[4096];
        const ssize_t n = recv(fd, data, sizeof data, 0);
        if (n < 0 && errno == EINTR) /* the process was stopped and goes on */
            continue;
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
void web_ask(struct web *a, const char *text, size_t n, const char *want)
{
    struct buf got = {0};
    const int fd = web_dial(a);
    web_say_n(fd, text, n);
    shutdown(fd, SHUT_WR);
    web_hear(fd, &got, NULL);
    if (want && !strstr(buf_str(&got), want))
        fail_msg("asked '%.60s', '%s' is not in: %s", text, want, buf_str(&got));
    close(fd);
    buf_free(&got);
}
