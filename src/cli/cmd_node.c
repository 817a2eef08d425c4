/* SPDX-License-Identifier: MIT
 *
 * kvasir node: one stage of a ring, until it is told to stop, and with --http the API beside it. With --status-fd it
 * reports as JSON lines to whoever started it (up, run).
 */
#include "base/clock.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/gen.h"
#include "cli/rank.h"
#include "cli/serve.h"
#include "cli/signals.h"
#include "cli/source.h"
#include "cli/window.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STATS_MS     1000
#define PULL_TELL_MS 500u

struct node_command {
    const char *model, *listen, *http;
    struct source_options source;
    struct rank_identity who;
    struct rank_options rank;
    struct serve_options serve_options;
    uint32_t listen_fd, status_fd, warmup, drain_s;
    /* while it runs */
    struct manifest m;
    struct key_secret secret;
    struct rank r;
    struct serve serve;
    struct signals_stop stop;
    uint64_t told_ns; /* no next pull event before */
};

#define NO_FD UINT32_MAX

/* One line, one write: readers never see half of it. Nobody there to read it is not our failure. */
static void status(const struct node_command *c, const char *line)
{
    if (c->status_fd == NO_FD)
        return;
    size_t n = strlen(line);
    if (write((int)c->status_fd, line, n) != (ssize_t)n)
        log_debug("node", "nobody reads the status");
}

static void on_event(void *ctx, const struct node_event *ev)
{
    const struct node_command *c = ctx;
    status(c, ev->type == NODE_READY ? "{\"event\":\"whole\"}\n" : "{\"event\":\"lost\"}\n");
    if (ev->type == NODE_READY)
        log_info("node", "the ring is whole");
}

static void put_stats(const struct node_command *c)
{
    struct rank_report s;
    char line[512];
    if (c->status_fd == NO_FD)
        return;
    rank_report_of(&c->r, &s);
    snprintf(line, sizeof line,
             "{\"event\":\"stats\",\"rss_bytes\":%llu,\"weight_bytes\":%llu,\"kv_bytes\":%llu,\"compute_bytes\":%llu,"
             "\"steps\":%llu,\"tok\":%llu,\"busy_ns\":%llu,\"in_bytes\":%llu,\"out_bytes\":%llu,\"out_tok\":%llu}\n",
             (unsigned long long)s.rss_bytes, (unsigned long long)s.weight_bytes, (unsigned long long)s.kv_bytes,
             (unsigned long long)s.compute_bytes, (unsigned long long)s.n_steps, (unsigned long long)s.n_tok,
             (unsigned long long)s.busy_ns, (unsigned long long)s.in_bytes, (unsigned long long)s.out_bytes,
             (unsigned long long)s.n_out_tok);
    status(c, line);
}

/* --- the model, or its window from elsewhere ----------------------------------------------------- */

static bool tell_pull(void *ctx, struct pull_progress *p)
{
    struct node_command *c = ctx;
    const uint64_t now = clock_now_ns();
    char line[256];
    if (now >= c->told_ns) {
        snprintf(line, sizeof line,
                 "{\"event\":\"pull\",\"done_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64
                 ",\"received_bytes\":%" PRIu64 ",\"bytes_per_s\":%" PRIu64 "}\n",
                 p->done_bytes, p->total_bytes, p->received_bytes, p->bytes_per_s);
        status(c, line);
        c->told_ns = now + PULL_TELL_MS * CLOCK_NS_PER_MS;
    }
    return true;
}

static enum err_code load(struct node_command *c, uint32_t index, struct err *e)
{
    struct gguf *g;
    uint8_t id[DIGEST_BYTES];
    const struct window_want want = {.model = c->model,
                                     .source = &c->source,
                                     .m = &c->m,
                                     .rank = index,
                                     .stop = &c->stop,
                                     .what = "pulling the window",
                                     .ctx = c,
                                     .tell = tell_pull};
    enum err_code rc = window_open(&want, &g, id, e);
    if (rc != OK)
        return rc;
    rc = rank_open(&c->r, g, &c->m, index, id, &c->rank, e);
    if (rc == OK && c->http)
        rc = serve_load(&c->serve, g, &c->serve_options, e);
    gguf_close(g);
    return rc;
}

/* Generates some tokens and reports how fast they came. */
static void warm_up(struct node_command *c)
{
    int32_t first = 1 % (int32_t)c->m.n_vocab, token;
    struct tok_ids prompt = {.id = &first, .n = 1};
    struct batch_sampling greedy = {.top_p = 1, .repeat_penalty = 1};
    struct gen g;
    struct err e;
    bool ended = false;
    char line[64];
    uint32_t n = c->warmup < c->m.n_ctx ? c->warmup : c->m.n_ctx - 1;
    uint64_t deadline = clock_deadline_ms(60000);
    if (n < 2 || gen_start(&g, c->r.node, NULL, &prompt, n, &greedy, &e) != OK)
        return;
    while (!ended && clock_now_ns() < deadline) {
        struct pollfd fds[2] = {{.fd = g.event_fd, .events = POLLIN}, {.fd = c->stop.signal_fd, .events = POLLIN}};
        if (gen_take(&g, &token, &ended) || ended)
            continue;
        poll(fds, 2, clock_left_ms(deadline));
        if (fds[1].revents) /* told to stop: serve() takes the signal */
            break;
    }
    if (!ended)
        node_cancel(c->r.node, g.id);
    else if (g.reason != SCHED_FAILED && g.last_ns > g.first_ns) {
        snprintf(line, sizeof line, "{\"event\":\"rate\",\"tok_per_s\":%.2f}\n",
                 (double)(g.n - 1) * 1e9 / (double)(g.last_ns - g.first_ns));
        status(c, line);
    }
    gen_fini(&g);
}

/* To who started it by hand; others read the events. */
static void say_serving(const struct node_command *c, const char *addr)
{
    const struct manifest_rank *row = &c->m.ranks[c->r.rank];
    if (c->status_fd != NO_FD)
        return;
    fprintf(stderr, "kvasir: rank %u of %u serves layers [%u,%u) of %s", c->r.rank, c->m.n_ranks, row->first, row->end,
            c->m.model_name);
    if (addr && c->m.n_ranks > 1)
        fprintf(stderr, ", listens on %s", addr);
    fprintf(stderr, "%s; Ctrl-C ends it\n", c->m.n_ranks > 1 ? ", waits for the other ranks" : "");
}

static void say_whole(const struct node_command *c, bool *whole)
{
    const bool now = node_is_ready(c->r.node);
    if (c->status_fd == NO_FD && now != *whole)
        fprintf(stderr, "kvasir: the ring is %s\n", now ? "whole" : "broken: waiting for its nodes");
    *whole = now;
}

static void serve(struct node_command *c)
{
    bool warmed = c->warmup == 0 || c->r.rank != 0, whole = false;
    uint64_t next = clock_now_ns();
    for (;;) {
        struct pollfd fd = {.fd = c->stop.signal_fd, .events = POLLIN};
        int wait = warmed ? clock_left_ms(next) : 20;
        poll(&fd, 1, wait > STATS_MS ? STATS_MS : wait);
        if (signals_take(c->stop.signal_fd))
            return;
        say_whole(c, &whole);
        if (!warmed && node_is_ready(c->r.node)) {
            warm_up(c);
            warmed = true;
        }
        if (clock_now_ns() >= next) {
            put_stats(c);
            next = clock_deadline_ms(STATS_MS);
        }
    }
}

static enum err_code start_api(struct node_command *c, uint32_t index, struct err *e)
{
    char line[64];
    if (!c->http)
        return OK;
    enum err_code rc = serve_start(&c->serve, &c->serve_options, c->http, c->r.node, &c->m, index, e);
    if (rc != OK)
        return rc;
    snprintf(line, sizeof line, "{\"event\":\"http\",\"port\":%u}\n", api_port(c->serve.api));
    status(c, line);
    log_info("node", "the API listens on %s, port %u", c->http, api_port(c->serve.api));
    return OK;
}

static enum err_code run(struct node_command *c, struct err *e)
{
    uint32_t index = 0;
    char tag[32];
    enum err_code rc = signals_open(&c->stop.signal_fd, e);
    if (rc == OK)
        rc = rank_identify(&c->who, &c->m, &c->secret, &index, e);
    if (rc != OK)
        return rc;
    if (c->status_fd == NO_FD) {
        snprintf(tag, sizeof tag, "rank %u", index);
        log_set_tag(tag);
    }
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error like a full disk */
    rc = load(c, index, e);
    if (rc == ERR_CANCELLED && atomic_load(&c->stop.signal)) /* told to stop, as it may be at any time */
        return OK;
    if (rc != OK)
        return rc;
    const char *addr = c->listen                   ? c->listen
                       : c->listen_fd != NO_FD     ? NULL
                       : c->m.ranks[index].addr[0] ? c->m.ranks[index].addr
                                                   : NULL;
    struct node_config config = {.secret = &c->secret,
                                 .listen_addr = addr,
                                 .ctx = c,
                                 .on_event = on_event,
                                 .listen_fd = c->listen_fd != NO_FD ? (int)c->listen_fd : -1};
    rc = rank_start(&c->r, &c->m, &config, e);
    if (rc != OK)
        return rc;
    status(c, "{\"event\":\"loaded\"}\n");
    rc = start_api(c, index, e);
    if (rc != OK)
        return rc;
    if (c->m.n_ranks == 1) /* no probe has to go around */
        on_event(c, &(struct node_event){.type = NODE_READY});
    log_info("node", "rank=%u window=[%u,%u) serving", index, c->m.ranks[index].first, c->m.ranks[index].end);
    say_serving(c, addr);
    serve(c);
    serve_drain(&c->serve, c->r.node, c->stop.signal_fd, clock_deadline_ms(c->drain_s * 1000));
    put_stats(c);
    return OK;
}

int cmd_node(int argc, char **argv, const struct command *cmd)
{
    struct node_command c = {
        .listen_fd = NO_FD, .status_fd = NO_FD, .stop = {.signal_fd = -1}, .drain_s = SERVE_DRAIN_S};
    const struct opt opts[] = {
        RANK_IDENTITY_ROWS(c.who),
        SOURCE_OPTION_ROWS(c.source),
        {"listen", 0, OPT_STRING, "ADDR", "host:port to listen on (default: as in the manifest)", &c.listen, 0, 0},
        {"listen-fd", 0, OPT_U32, "N", "use this inherited listening socket", &c.listen_fd, 3, 1 << 20},
        {"status-fd", 0, OPT_U32, "N", "report as JSON lines on this descriptor", &c.status_fd, 1, 1 << 20},
        {"warmup", 0, OPT_U32, "N", "rank 0: generate N tokens first and report the speed", &c.warmup, 0, 4096},
        {"device", 'd', OPT_STRING, "NAME", "device: cpu, auto, vulkan0, ... (default: as in the manifest)",
         &c.rank.device, 0, 0},
        RANK_OPTION_ROWS(c.rank),
        {"http", 0, OPT_STRING, "ADDR", "serve the HTTP API and the chat page on host:port", &c.http, 0, 0},
        SERVE_OPTION_ROWS(c.serve_options),
        {"drain", 0, OPT_U32, "S", "when told to stop, let running requests end for S seconds (default: 10)",
         &c.drain_s, 0, 3600},
        {0},
    };
    uint32_t n_pos;
    int rc = opt_parse(cmd, opts, argc, argv, &c.model, 1, &n_pos);
    if (rc >= 0)
        return rc;
    const char *wrong = source_complaint(&c.source, c.model);
    if (wrong)
        return opt_usage(cmd, "%s", wrong);
    if (!c.who.manifest || !c.who.key)
        return opt_usage(cmd, "%s is needed", c.who.manifest ? "--key" : "--manifest");
    struct err e;
    enum err_code code = run(&c, &e);
    serve_stop(&c.serve);
    rank_close(&c.r);
    serve_fini(&c.serve);
    manifest_fini(&c.m);
    key_wipe(&c.secret);
    if (c.stop.signal_fd >= 0)
        close(c.stop.signal_fd);
    return code == OK ? EXIT_OK : opt_fail(&e);
}
