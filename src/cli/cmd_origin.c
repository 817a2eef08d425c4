/* SPDX-License-Identifier: MIT
 *
 * kvasir origin: serves the models of a folder, their indexes and stage files over HTTP until it is told to stop.
 */
#include "base/buf.h"
#include "base/io.h"
#include "base/parse.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/signals.h"
#include "shard/origin.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DEFAULT_ADDR  "127.0.0.1:8070"
#define MAX_TOKEN     4096u
#define SHOW_MS       1000
#define MIN_TOKEN_LEN 8u

struct origin_command {
    const char *dir, *listen, *token_file, *allow_host, *access_log;
    uint32_t max_connections;
    bool json;
    /* while it runs */
    struct buf token;
    int signal_fd;
    struct origin *origin;
};

/* The first line of the file. */
static enum err_code read_token(struct origin_command *c, struct err *e)
{
    if (!c->token_file)
        return OK;
    enum err_code rc = io_read_file(c->token_file, MAX_TOKEN, &c->token, e);
    if (rc != OK)
        return rc;
    char *text = (char *)(uintptr_t)buf_str(&c->token);
    text[strcspn(text, "\r\n")] = 0;
    const size_t n = strlen(text);
    if (n < MIN_TOKEN_LEN || !text_printable(text, n) || strchr(text, ' '))
        return err_set(e, ERR_ARG,
                       "%s must have a token in its first line: at least %u printable characters, no blanks",
                       c->token_file, MIN_TOKEN_LEN);
    return OK;
}

/* "http://host:port" of the address that was asked for; of all addresses the loopback one stands for them. */
static void put_base(struct buf *out, const struct origin_command *c)
{
    const char *colon = strrchr(c->listen, ':');
    const int n = (int)(colon - c->listen);
    if (n == 0 || strncmp(c->listen, "0.0.0.0:", 8) == 0)
        buf_printf(out, "http://127.0.0.1:%u", origin_port(c->origin));
    else if (strncmp(c->listen, "[::]:", 5) == 0)
        buf_printf(out, "http://[::1]:%u", origin_port(c->origin));
    else
        buf_printf(out, "http://%.*s:%u", n, c->listen, origin_port(c->origin));
}

static void print_urls(const struct origin_command *c)
{
    struct buf base = {0}, out = {0};
    const char *name;
    put_base(&base, c);
    if (c->json) {
        buf_puts(&out, "{\"event\":\"serving\",\"url\":");
        text_put_json(&out, buf_str(&base), base.len);
        buf_puts(&out, ",\"models\":[");
    } else {
        buf_printf(&out, "serving %s on %s\n", c->dir, buf_str(&base));
    }
    for (size_t i = 0; (name = origin_name(c->origin, i)); i++) {
        struct buf url = {0};
        buf_printf(&url, "%s/models/", buf_str(&base));
        text_put_url(&url, name);
        if (c->json) {
            buf_puts(&out, i ? "," : "");
            text_put_json(&out, buf_str(&url), url.len);
        } else {
            buf_printf(&out, "%s\n", buf_str(&url));
        }
        buf_free(&url);
    }
    if (c->json)
        buf_puts(&out, "]}\n");
    else if (!origin_name(c->origin, 0))
        buf_puts(&out, "no model is there yet (files whose names end in .gguf)\n");
    fputs(buf_str(&out), stdout);
    fflush(stdout);
    buf_free(&base);
    buf_free(&out);
}

static void print_counts(const struct origin_counts *n)
{
    printf(
        "{\"event\":\"stats\",\"requests\":%llu,\"body_bytes\":%llu,\"running\":%llu,\"models\":%u,\"indexed\":%u}\n",
        (unsigned long long)n->n_requests, (unsigned long long)n->body_bytes, (unsigned long long)n->n_open,
        n->n_models, n->n_indexed);
    fflush(stdout);
}

/* Until a signal comes; says what was sent, when that has changed. */
static void serve(const struct origin_command *c)
{
    const bool log_there = c->access_log && strcmp(c->access_log, "-") == 0;
    const bool tty = isatty(STDERR_FILENO) && !c->json && !log_there;
    struct origin_counts last = {0}, now;
    char size[16];
    for (;;) {
        struct pollfd fd = {.fd = c->signal_fd, .events = POLLIN};
        poll(&fd, 1, SHOW_MS);
        origin_count(c->origin, &now);
        const bool changed = memcmp(&now, &last, sizeof now) != 0;
        last = now;
        if (c->json && changed)
            print_counts(&now);
        if (tty && changed)
            fprintf(stderr, "\r\033[K%llu requests, %s sent, %llu running, %u of %u models indexed",
                    (unsigned long long)now.n_requests, parse_fmt_bytes(now.body_bytes, size),
                    (unsigned long long)now.n_open, now.n_indexed, now.n_models);
        if (signals_take(c->signal_fd))
            break;
    }
    if (tty)
        fputs("\r\033[K", stderr);
}

static enum err_code run(struct origin_command *c, struct err *e)
{
    enum err_code rc = signals_open(&c->signal_fd, e);
    if (rc == OK)
        rc = read_token(c, e);
    const struct origin_config config = {.dir = c->dir,
                                         .addr = c->listen,
                                         .token = c->token_file ? buf_str(&c->token) : NULL,
                                         .allow_host = c->allow_host,
                                         .access_log = c->access_log,
                                         .max_connections = c->max_connections};
    if (rc == OK)
        rc = origin_start(&config, &c->origin, e);
    if (rc != OK)
        return rc;
    print_urls(c);
    serve(c);
    return OK;
}

int cmd_origin(int argc, char **argv, const struct command *cmd)
{
    struct origin_command c = {.listen = DEFAULT_ADDR, .signal_fd = -1};
    const struct opt opts[] = {
        {"listen", 0, OPT_STRING, "ADDR", "host:port to listen on (default: " DEFAULT_ADDR ")", &c.listen, 0, 0},
        {"token-file", 0, OPT_STRING, "FILE", "clients must send the token that is in its first line", &c.token_file, 0,
         0},
        {"allow-host", 0, OPT_STRING, "NAME,...",
         "names besides localhost by which a loopback address may be asked, * for all", &c.allow_host, 0, 0},
        {"access-log", 0, OPT_STRING, "FILE", "a JSON line for each HTTP request (- is the standard error)",
         &c.access_log, 0, 0},
        {"connections", 0, OPT_U32, "N", "most connections at once (default: 256)", &c.max_connections, 1, 60000},
        {"json", 0, OPT_FLAG, NULL, "print URLs and counts as JSON lines", &c.json, 0, 0},
        {0},
    };
    int rc = opt_parse_one(cmd, opts, argc, argv, &c.dir, "which folder?");
    if (rc >= 0)
        return rc;
    struct err e;
    const enum err_code code = run(&c, &e);
    origin_stop(c.origin);
    if (c.token.data)
        explicit_bzero(c.token.data, c.token.cap);
    buf_free(&c.token);
    if (c.signal_fd >= 0)
        close(c.signal_fd);
    return code == OK ? EXIT_OK : opt_fail(&e);
}
