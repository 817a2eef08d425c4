/* SPDX-License-Identifier: MIT */
#include "http/access.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SHOWN 256 /* bytes of a path; a line with it stays below PIPE_BUF, which a pipe takes whole or not at all */

enum err_code http_access_open(const char *path, int *fd, struct err *e)
{
    /* O_NONBLOCK: a FIFO that nobody reads is an error, not a wait without an end. */
    const int got = strcmp(path, "-") == 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                                           : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
    if (got < 0)
        return err_set_os(e, ERR_IO, errno, "cannot write the access log %s", path);
    *fd = got;
    return OK;
}

static void put_string(struct buf *out, const char *name, const char *s)
{
    char clean[SHOWN];
    text_clean(s, strlen(s), clean, sizeof clean);
    buf_printf(out, ",\"%s\":", name);
    text_put_json(out, clean, strlen(clean));
}

static void put_time(struct buf *out)
{
    struct timespec now;
    struct tm tm;
    char ts[32] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &tm))
        strftime(ts, sizeof ts, "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(out, "\"ts\":\"%s.%03ldZ\"", ts, now.tv_nsec / 1000000);
}

/* The standard error is shared with others, who would not expect it not to block: so it is asked. */
static bool has_room(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && p.revents & POLLOUT;
}

void http_access_write(int fd, const struct http_access *l)
{
    static struct log_limit limit;
    struct buf line = {0};
    uint32_t dropped;
    if (fd < 0)
        return;
    buf_puts(&line, "{");
    put_time(&line);
    put_string(&line, "peer", l->peer);
    put_string(&line, "method", l->method);
    put_string(&line, "path", l->path);
    buf_printf(&line, ",\"status\":%u,\"ms\":%.1f", l->status, (double)l->ns / 1e6);
    if (l->id)
        put_string(&line, "id", l->id);
    if (l->more)
        buf_put(&line, l->more->data, l->more->len);
    buf_puts(&line, "}\n");
    const bool whole = !line.failed && !(l->more && l->more->failed);
    if (!(whole && has_room(fd) && write(fd, line.data, line.len) == (ssize_t)line.len) &&
        log_limit_pass(&limit, 1, "access", &dropped))
        log_warn("http", "the access log takes nothing: lines of it are lost");
    buf_free(&line);
}
