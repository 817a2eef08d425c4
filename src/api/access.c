/* SPDX-License-Identifier: MIT
 *
 * The access log: a JSON line for each HTTP request when it is over. Who asked for what, what came of it and how long
 * it took; never what a prompt or an answer said, and no key.
 */
#include "api/impl.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define PATH_SHOWN 256

enum err_code api_access_open(const char *path, int *fd, struct err *e)
{
    *fd = strcmp(path, "-") == 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                                 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (*fd < 0)
        return err_set_os(e, ERR_IO, errno, "cannot write the access log %s", path);
    return OK;
}

static void put_string(struct buf *out, const char *name, const char *s)
{
    char clean[PATH_SHOWN];
    text_clean(s, strlen(s), clean, sizeof clean);
    buf_printf(out, ",\"%s\":", name);
    text_put_json(out, clean, strlen(clean));
}

static void put_call(struct buf *out, const struct api_call *call)
{
    uint64_t n = 0;
    const char *finish = call->n_choices ? call->choice[0].finish : NULL;
    for (uint32_t i = 0; i < call->n_choices; i++)
        n += call->choice[i].n_tok;
    buf_printf(out, ",\"stream\":%s,\"prompt_tokens\":%llu,\"completion_tokens\":%llu",
               call->q.stream ? "true" : "false", (unsigned long long)call->n_prompt_tok, (unsigned long long)n);
    put_string(out, "finish", finish ? finish : "cancelled");
}

void api_access_write(int fd, const struct api_access *l)
{
    static struct log_limit limit;
    struct buf line = {0};
    struct timespec now;
    struct tm tm;
    char ts[32];
    if (fd < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(ts, sizeof ts, "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(&line, "{\"ts\":\"%s.%03ldZ\"", ts, now.tv_nsec / 1000000);
    put_string(&line, "peer", l->peer);
    put_string(&line, "method", l->method);
    put_string(&line, "path", l->path);
    buf_printf(&line, ",\"status\":%u,\"ms\":%.1f", l->status, (double)l->ns / 1e6);
    put_string(&line, "id", l->id);
    if (l->call)
        put_call(&line, l->call);
    buf_puts(&line, "}\n");
    uint32_t dropped;
    if (!line.failed && write(fd, line.data, line.len) != (ssize_t)line.len &&
        log_limit_pass(&limit, 1, "access", &dropped))
        log_warn("api", "the access log cannot be written");
    buf_free(&line);
}
