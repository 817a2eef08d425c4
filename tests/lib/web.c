/* SPDX-License-Identifier: MIT */
#include "lib/web.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALL_MS 60000u

static bool dial(struct web *w, uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    *w = (struct web){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return w->fd >= 0 && connect(w->fd, (struct sockaddr *)&to, sizeof to) == 0;
}

static bool say(struct web *w, const uint8_t *p, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = send(w->fd, p + done, len - done, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

bool web_send(struct web *w, uint16_t port, const char *method, const char *path, const char *headers, const char *body)
{
    struct buf out = {0};
    if (!dial(w, port))
        return false;
    buf_printf(&out, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nConnection: close\r\n%s", method, path, port,
               headers ? headers : "");
    if (body)
        buf_printf(&out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    buf_puts(&out, "\r\n");
    buf_puts(&out, body ? body : "");
    bool ok = !out.failed && say(w, out.data, out.len);
    buf_free(&out);
    return ok;
}

static void look_at_head(struct web *w)
{
    if (w->body_at || w->raw.len == 0) /* once: TSan walks through all that memmem is given */
        return;
    const char *end = memmem(w->raw.data, w->raw.len, "\r\n\r\n", 4);
    if (!end)
        return;
    w->body_at = (size_t)(end - (const char *)w->raw.data) + 4;
    if (strncmp(buf_str(&w->raw), "HTTP/1.1 ", 9) == 0)
        w->status = (unsigned)strtoul(buf_str(&w->raw) + 9, NULL, 10);
    const char *coding = web_header(w, "transfer-encoding");
    w->chunked = coding && strcasecmp(coding, "chunked") == 0;
}

/* false at the end, or when the time is over. */
static bool read_some(struct web *w, uint64_t deadline)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLIN};
    uint8_t *p = buf_reserve(&w->raw, 65536);
    if (w->fd < 0 || !p || poll(&fd, 1, clock_left_ms(deadline)) <= 0)
        return false;
    ssize_t n = recv(w->fd, p, 65536, 0);
    if (n <= 0) {
        close(w->fd);
        w->fd = -1;
        return false;
    }
    w->raw.len += (size_t)n;
    look_at_head(w);
    return true;
}

bool web_until(struct web *w, const char *text, uint32_t ms)
{
    uint64_t deadline = clock_deadline_ms(ms);
    do {
        if (w->raw.len && memmem(w->raw.data, w->raw.len, text, strlen(text)))
            return true;
    } while (read_some(w, deadline));
    return false;
}

static bool unchunk(struct web *w)
{
    for (size_t at = w->body_at;;) {
        const char *p = buf_str(&w->raw) + at;
        char *end;
        unsigned long n = strtoul(p, &end, 16);
        size_t head = (size_t)(end - p) + 2;
        if (end == p || at + head + n + 2 > w->raw.len)
            return false;
        if (n == 0)
            return true;
        buf_put(&w->body, p + head, n);
        at += head + n + 2;
    }
}

bool web_end(struct web *w, uint32_t ms)
{
    uint64_t deadline = clock_deadline_ms(ms);
    while (read_some(w, deadline))
        ;
    buf_clear(&w->body);
    if (w->fd >= 0 || !w->body_at)
        return false;
    if (w->chunked)
        return unchunk(w);
    buf_put(&w->body, w->raw.data + w->body_at, w->raw.len - w->body_at);
    const char *length = web_header(w, "content-length");
    return !length || strtoul(length, NULL, 10) == w->body.len || w->body.len == 0;
}

const char *web_header(struct web *w, const char *name)
{
    static _Thread_local char value[1024];
    const char *p = buf_str(&w->raw);
    size_t len = strlen(name);
    while ((p = strstr(p, "\r\n")) && (size_t)(p - (const char *)w->raw.data) + 4 < w->body_at) {
        p += 2;
        if (strncasecmp(p, name, len) == 0 && p[len] == ':') {
            const char *v = p + len + 1, *end = strstr(v, "\r\n");
            while (*v == ' ')
                v++;
            snprintf(value, sizeof value, "%.*s", (int)(end - v), v);
            return value;
        }
    }
    return NULL;
}

const char *web_body(struct web *w)
{
    return buf_str(&w->body);
}

void web_drop(struct web *w)
{
    struct linger hard = {.l_onoff = 1};
    if (w->fd < 0)
        return;
    setsockopt(w->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(w->fd);
    w->fd = -1;
}

void web_free(struct web *w)
{
    if (w->fd >= 0)
        close(w->fd);
    buf_free(&w->raw);
    buf_free(&w->body);
    *w = (struct web){.fd = -1};
}

bool web_call(struct web *w, uint16_t port, const char *method, const char *path, const char *headers, const char *body)
{
    return web_send(w, port, method, path, headers, body) && web_end(w, CALL_MS);
}

bool web_raw(struct web *w, uint16_t port, const void *text, size_t n)
{
    return dial(w, port) && say(w, text, n) && web_end(w, CALL_MS);
}
