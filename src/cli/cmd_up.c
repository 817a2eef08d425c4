/* SPDX-License-Identifier: MIT
 *
 * kvasir up: a ring of node processes on this machine, each of which serves the API, kept up until Ctrl-C or until one
 * of them dies.
 */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/default_model.h"
#include "cli/layout.h"
#include "cli/local.h"
#include "cli/oai.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/signals.h"
#include "cli/source.h"
#include "net/tcp.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RING_WAIT_MS 120000u
#define SHOW_MS      1000u
#define UP_SLOTS     4u

struct up_command {
    const char *model;
    struct source_options source;
    struct layout_options layout;
    struct rank_options rank;
    struct serve_options serve;
    uint32_t port;
    /* while it runs */
    char default_model[PATH_MAX];
    struct local_ring ring;
    struct local_wait wait;
    struct signals_stop stop;
};

/* Looked at before anything is loaded: somebody else's program on the port is the most likely thing to be wrong. */
static enum err_code check_ports(const struct up_command *c, struct err *e)
{
    struct err why;
    char addr[32];
    const uint32_t last = c->port + c->ring.m.n_ranks - 1;
    if (c->port && last > UINT16_MAX)
        return err_set(e, ERR_ARG, "--port %u: %u ranks would need ports up to %u, and %u is the last", c->port,
                       c->ring.m.n_ranks, last, UINT16_MAX);
    for (uint32_t p = c->port; c->port && p <= last; p++) {
        int fd;
        uint16_t got;
        snprintf(addr, sizeof addr, "127.0.0.1:%u", p);
        if (net_tcp_listen(addr, &fd, &got, &why) != OK)
            return err_set(e, why.code, "%s (--port N: other ports for the API, 0: any that are free)", why.msg);
        close(fd);
    }
    return OK;
}

static enum err_code start(struct up_command *c, struct err *e)
{
    struct source s;
    struct manifest m;
    uint8_t id[DIGEST_BYTES];
    enum err_code rc = OK;
    const struct source_want want = {.stop = &c->stop};
    if (!c->model && !c->source.origins.n) {
        rc = default_model_find(c->default_model, e);
        c->model = c->default_model;
    }
    if (rc == OK)
        rc = source_open(&s, c->model, &c->source, &want, e);
    if (rc != OK)
        return rc;
    rc = layout_make(source_gguf(&s), &c->layout, &m, e);
    if (rc == OK) {
        rc = source_model_id(&s, &c->stop, id, e);
        if (rc != OK)
            manifest_fini(&m);
    }
    source_close(&s);
    if (rc != OK)
        return rc;
    c->ring.model = c->model;
    c->ring.source = &c->source;
    c->ring.options = c->rank;
    c->ring.warmup = 32;
    c->ring.http = true;
    c->ring.http_port = c->port;
    c->ring.serve = c->serve;
    rc = local_make(&c->ring, &m, id, e);
    if (rc == OK)
        rc = check_ports(c, e);
    for (uint32_t i = 0; rc == OK && i < c->ring.m.n_ranks; i++) {
        rank_print_row(stderr, &c->ring.m, i);
        rc = local_spawn(&c->ring, i, e);
    }
    return rc;
}

static bool all_listen(const struct up_command *c)
{
    for (uint32_t i = 0; i < c->ring.m.n_ranks; i++) {
        if (c->ring.child[i].http_port == 0)
            return false;
    }
    return true;
}

/* As long as windows are pulled, that takes what it takes: who pulls sees to its own deadlines. */
static enum err_code wait_whole(struct up_command *c, struct err *e)
{
    struct progress p;
    enum err_code rc = OK;
    const uint64_t begin = clock_now_ns();
    progress_begin(&p, "pulling the windows");
    while (rc == OK && (!c->ring.child[0].whole || !all_listen(c))) {
        rc = local_wait(&c->ring, &c->wait, 100, e);
        const uint64_t told = local_show_start(&c->ring, &p), from = told > begin ? told : begin;
        if (rc == OK && clock_now_ns() >= from + RING_WAIT_MS * CLOCK_NS_PER_MS) {
            progress_end(&p);
            for (uint32_t i = 0; i < c->ring.m.n_ranks; i++) {
                if (!c->ring.child[i].loaded)
                    return err_set(e, ERR_TIMEOUT, "rank %u has not loaded its window after %u s", i,
                                   RING_WAIT_MS / 1000);
            }
            return err_set(e, ERR_TIMEOUT, "no probe came around the ring within %u s", RING_WAIT_MS / 1000);
        }
    }
    progress_end(&p);
    return rc;
}

/* Shows what goes around until something ends it. */
static enum err_code watch(struct up_command *c, struct err *e)
{
    bool told = false;
    uint64_t last_tok = 0, last_ns = clock_now_ns();
    for (;;) {
        enum err_code rc = local_wait(&c->ring, &c->wait, 200, e);
        if (rc != OK) {
            progress_clear();
            return rc;
        }
        const struct local_child *first = &c->ring.child[0];
        if (!told && first->rate > 0) {
            progress_clear();
            fprintf(stderr, "one sequence runs at %.1f tokens/s\n", (double)first->rate);
            told = true;
        }
        uint64_t now = clock_now_ns();
        if (now - last_ns < SHOW_MS * CLOCK_NS_PER_MS)
            continue;
        /* those of the measurement are nobody's */
        uint64_t n = first->report.n_out_tok > c->ring.warmup ? first->report.n_out_tok - c->ring.warmup : 0;
        progress_line("%s  %" PRIu64 " tokens  %.1f tokens/s", first->whole ? "up" : "BROKEN", n,
                      (double)(n - last_tok) * 1e9 / (double)(now - last_ns));
        last_tok = n;
        last_ns = now;
    }
}

static void print_up(const struct up_command *c)
{
    const uint32_t port = c->ring.child[0].http_port;
    char url[32] = "";
    if (port != OAI_DEFAULT_PORT) /* else it is what chat and status take */
        snprintf(url, sizeof url, " 127.0.0.1:%u", port);
    printf("ring up: %s, %u rank%s, context %u\n", c->ring.m.model_name, c->ring.m.n_ranks,
           c->ring.m.n_ranks == 1 ? "" : "s", c->ring.m.n_ctx);
    printf("API: http://127.0.0.1:%u/v1 (in a browser: http://127.0.0.1:%u/)\n", port, port);
    for (uint32_t i = 1; i < c->ring.m.n_ranks; i++)
        printf("     http://127.0.0.1:%u/v1 (rank %u)\n", c->ring.child[i].http_port, i);
    printf("in another terminal: kvasir chat%s, kvasir status%s; Ctrl-C ends the ring\n", url, url);
    fflush(stdout);
}

static enum err_code run(struct up_command *c, struct err *e)
{
    enum err_code rc = signals_open(&c->wait.signal_fd, e);
    c->stop.signal_fd = c->wait.signal_fd;
    if (rc == OK)
        rc = start(c, e);
    if (atomic_load(&c->stop.signal))
        c->wait.signal = atomic_load(&c->stop.signal);
    if (rc == OK)
        rc = wait_whole(c, e);
    if (rc != OK)
        return rc;
    print_up(c);
    return watch(c, e);
}

static void print_report(const struct up_command *c)
{
    struct rank_report *r = calloc(c->ring.m.n_ranks, sizeof *r);
    for (uint32_t i = 0; r && i < c->ring.m.n_ranks; i++)
        r[i] = c->ring.child[i].report;
    if (r)
        report_print(stderr, &c->ring.m, r, c->ring.m.n_ranks);
    free(r);
}

int cmd_up(int argc, char **argv, const struct command *cmd)
{
    struct up_command c = {.wait = {.signal_fd = -1, .event_fd = -1}, .port = OAI_DEFAULT_PORT};
    const struct opt opts[] = {
        SOURCE_OPTION_ROWS(c.source),
        LAYOUT_OPTION_ROWS(c.layout),
        RANK_OPTION_ROWS(c.rank),
        {"port", 0, OPT_U32, "N", "port of rank 0's HTTP API, the other ranks follow (default: 8080; 0: any)", &c.port,
         0, 65535},
        SERVE_OPTION_ROWS(c.serve),
        {0},
    };
    uint32_t n_pos;
    int rc = opt_parse(cmd, opts, argc, argv, &c.model, 1, &n_pos);
    if (rc >= 0)
        return rc;
    const char *wrong = source_complaint(&c.source, c.model);
    if (wrong)
        return opt_usage(cmd, "%s", wrong);
    c.layout.kv = c.rank.kv;
    c.layout.local = true;
    if (c.layout.n_slots == 0)
        c.layout.n_slots = UP_SLOTS;
    struct err e;
    enum err_code code = run(&c, &e);
    local_stop(&c.ring);
    if (c.wait.signal && c.ring.child)
        print_report(&c);
    local_fini(&c.ring);
    if (c.wait.signal_fd >= 0)
        close(c.wait.signal_fd);
    if (c.wait.signal == SIGINT || c.wait.signal == SIGTERM) /* that is how it is meant to end */
        return EXIT_OK;
    return code == OK ? EXIT_OK : opt_fail(&e);
}
