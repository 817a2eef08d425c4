/* SPDX-License-Identifier: MIT
 *
 * kvasir pull: the stage file of a window, fetched from web servers. Ctrl-C stops it; the same command goes on with it.
 */
#include "base/parse.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "cli/source.h"
#include "model/hparams.h"
#include "shard/pull.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct pull_command {
    struct source_options source; /* the URLs */
    const char *layers, *out, *rate;
    uint32_t n_connections;
    bool need_index, json;
    struct signals_stop stop;
    struct progress line;
};

static bool on_progress(void *ctx, const struct pull_progress *p)
{
    struct pull_command *c = ctx;
    progress_show_rate(&c->line, p->done_bytes, p->total_bytes, p->bytes_per_s, p->eta_s);
    return !signals_stopped(&c->stop);
}

static void print_json(const struct pull_command *c, const struct pull_request *q, const struct pull_result *x)
{
    struct buf b = {0};
    char id[DIGEST_HEX_SIZE];
    buf_puts(&b, "{\"file\":");
    text_put_json(&b, c->out, strlen(c->out));
    buf_printf(&b, ",\"first\":%u,\"end\":%u,\"local_bytes\":%llu,", q->first, q->end,
               (unsigned long long)x->local_bytes);
    if (x->verified)
        buf_printf(&b, "\"model_id\":\"%s\",", digest_hex(x->model_id, id));
    buf_printf(&b, "\"received_bytes\":%llu,\"requests\":%llu,\"resumed_bytes\":%llu,\"size\":%llu,\"verified\":%s}",
               (unsigned long long)x->received_bytes, (unsigned long long)x->n_requests,
               (unsigned long long)x->resumed_bytes, (unsigned long long)x->size, x->verified ? "true" : "false");
    printf("%s\n", buf_str(&b));
    buf_free(&b);
}

static void print_text(const struct pull_command *c, const struct pull_request *q, const struct pull_result *x)
{
    char size[16], received[16], id[DIGEST_HEX_SIZE];
    printf("%s: blocks [%u,%u), %s, %s received in %llu request%s", c->out, q->first, q->end,
           parse_fmt_bytes(x->size, size), parse_fmt_bytes(x->received_bytes, received),
           (unsigned long long)x->n_requests, x->n_requests == 1 ? "" : "s");
    if (x->resumed_bytes)
        printf(", %s were there", parse_fmt_bytes(x->resumed_bytes, size));
    if (x->local_bytes)
        printf(", %s from local files", parse_fmt_bytes(x->local_bytes, size));
    if (x->verified)
        printf("\nmodel id %s, every tensor verified\n", digest_hex(x->model_id, id));
    else
        printf("\nnot verified\n");
}

static enum err_code pull(struct pull_command *c, struct remote *r, struct pull_request *q, struct err *e)
{
    struct pull_result x;
    struct hparams h;
    enum err_code rc = hparams_read(remote_gguf(r), &h, e);
    if (rc != OK)
        return rc;
    q->end = q->end ? q->end : h.n_block;
    hparams_fini(&h);
    if (!remote_index(r) && !c->need_index)
        fprintf(stderr, "kvasir: no index was found at the origins: what comes cannot be verified\n");
    if (access(c->out, R_OK) == 0) { /* what it has of the model need not be fetched again */
        q->local = &c->out;
        q->n_local = 1;
    }
    progress_begin(&c->line, "pulling");
    rc = pull_window(r, q, &x, e);
    progress_end(&c->line);
    if (rc == OK && c->json)
        print_json(c, q, &x);
    else if (rc == OK)
        print_text(c, q, &x);
    return rc;
}

static enum err_code run(struct pull_command *c, struct err *e)
{
    struct pull_request q = {.out = c->out,
                             .need_index = c->need_index,
                             .n_connections = c->n_connections,
                             .ctx = c,
                             .progress = on_progress};
    const struct source_want want = {.any_name = true, .stop = &c->stop};
    struct remote *r;
    enum err_code rc = c->layers ? parse_window(c->layers, &q.first, &q.end, e) : OK;
    if (rc == OK && c->rate)
        rc = parse_bytes("--rate", c->rate, &q.rate, e);
    if (rc == OK && c->rate && q.rate < 1024)
        rc = err_set(e, ERR_ARG, "--rate is bytes a second, at least 1k, for example 500k, 20M or 1G; not '%.40s'",
                     c->rate);
    if (rc == OK)
        rc = signals_open(&c->stop.signal_fd, e);
    if (rc != OK)
        return rc;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error like a full disk */
    rc = source_remote(&c->source, &want, &r, e);
    if (rc != OK)
        return rc;
    rc = pull(c, r, &q, e);
    remote_close(r);
    if (rc == ERR_CANCELLED) /* whichever thread saw the signal first */
        err_set(e, rc, "the pull was stopped; the same command goes on with it");
    return rc;
}

int cmd_pull(int argc, char **argv, const struct command *cmd)
{
    struct pull_command c = {.stop = {.signal_fd = -1}};
    const struct opt opts[] = {
        {"layers", 0, OPT_STRING, "A:B", "the window: blocks A to B-1 (default: all)", &c.layers, 0, 0},
        {"output", 'o', OPT_STRING, "FILE", "write the stage file to FILE", &c.out, 0, 0},
        {"index", 0, OPT_STRING, "FILE|URL", "the model's index (default: URL.kvi, if it is there)", &c.source.index, 0,
         0},
        {"need-index", 0, OPT_FLAG, NULL, "refuse to pull what cannot be verified", &c.need_index, 0, 0},
        {"token-file", 0, OPT_STRING, "FILE", "file with the token for the URLs' hosts, which only you may read",
         &c.source.token_file, 0, 0},
        {"rate", 0, OPT_STRING, "N", "at most N bytes a second: 500k, 20M, 1G (default: no limit)", &c.rate, 0, 0},
        {"connections", 0, OPT_U32, "N", "so many at the same time (default: 4)", &c.n_connections, 1, 64},
        {"json", 0, OPT_FLAG, NULL, "print what came as JSON", &c.json, 0, 0},
        {0},
    };
    struct err e;
    int status = opt_parse(cmd, opts, argc, argv, c.source.origins.item, REMOTE_MAX_ORIGINS, &c.source.origins.n);
    if (status >= 0)
        return status;
    if (c.source.origins.n == 0)
        return opt_usage(cmd, "from which URL?");
    if (!c.out)
        return opt_usage(cmd, "into which file? -o FILE");
    const enum err_code rc = run(&c, &e);
    status = rc == OK ? EXIT_OK : EXIT_FAILED;
    if (atomic_load(&c.stop.signal) && rc == ERR_CANCELLED)
        status = 128 + atomic_load(&c.stop.signal);
    if (rc != OK)
        opt_fail(&e);
    if (c.stop.signal_fd >= 0)
        close(c.stop.signal_fd);
    return status;
}
