/* SPDX-License-Identifier: MIT
 *
 * kvasir run: continues a text. With one stage in this process alone; with more, this process is rank 0 and the others
 * are `kvasir node` processes that it starts and stops; with --manifest it is rank 0 of a ring whose other nodes run
 * already. Exactly the continuation goes to the standard output.
 */
#include "base/clock.h"
#include "base/io.h"
#include "cli/commands.h"
#include "cli/default_model.h"
#include "cli/gen.h"
#include "cli/layout.h"
#include "cli/local.h"
#include "cli/rank.h"
#include "cli/report.h"
#include "cli/signals.h"
#include "engine/sampler.h"
#include "tok/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RING_WAIT_MS  120000u /* loading large windows from a slow disk takes its time */
#define LAST_WORDS_MS 1000u   /* how long a process that dies may take to say so */
#define PROMPT_MAX    (64u << 20)

struct run_command {
    const char *model, *prompt, *prompt_file, *listen, *system, *chat_template;
    struct rank_identity who; /* with --manifest */
    struct key_secret secret;
    struct layout_options layout;
    struct rank_options rank;
    struct batch_sampling sampling;
    uint32_t n_predict, top_k, penalty_last_n;
    bool report, chat;
    /* while it runs */
    char default_model[PATH_MAX];
    struct gguf *g;
    struct tok *tok;
    struct tok_ids ids;
    struct local_ring ring;
    struct rank r;
    struct local_wait wait;
    bool parted; /* the ring has processes that this one started */
    uint64_t start_ns;
};

/* --- waiting for several things at once ---------------------------------------------------------- */

/* Waits for tokens (event_fd, -1: none), signals, words of the children; at most ms. */
static enum err_code wait_some(struct run_command *c, int event_fd, int ms, struct err *e)
{
    c->wait.event_fd = event_fd;
    return local_wait(c->parted ? &c->ring : NULL, &c->wait, ms, e);
}

/* --- the ring ------------------------------------------------------------------------------------ */

/* A ring of processes on this machine, all but rank 0 started here. */
static enum err_code start_local(struct run_command *c, struct manifest *m, struct node_config *config, struct err *e)
{
    uint8_t id[DIGEST_BYTES];
    enum err_code rc = rank_model_id(c->g, id, e);
    if (rc != OK) {
        manifest_fini(m);
        return rc;
    }
    c->parted = true;
    c->ring.model = c->model;
    c->ring.options = c->rank;
    rc = local_make(&c->ring, m, id, e);
    for (uint32_t i = 1; rc == OK && i < c->ring.m.n_ranks; i++)
        rc = local_spawn(&c->ring, i, e);
    if (rc != OK)
        return rc;
    config->secret = &c->ring.secrets[0];
    config->listen_fd = c->ring.listen_fds[0];
    c->ring.listen_fds[0] = -1;
    return OK;
}

/* Rank 0 of the manifest's ring. */
static enum err_code join(struct run_command *c, struct node_config *config, struct err *e)
{
    uint8_t id[DIGEST_BYTES];
    uint32_t index;
    enum err_code rc = rank_identify(&c->who, &c->ring.m, &c->secret, &index, e);
    if (rc == OK && index != 0)
        return err_set(e, ERR_ARG, "the key %s is rank %u's; a text enters at rank 0: run it there", c->who.key, index);
    if (rc == OK)
        rc = rank_model_id(c->g, id, e);
    if (rc == OK)
        rc = rank_open(&c->r, c->g, &c->ring.m, 0, id, &c->rank, e);
    if (rc != OK)
        return rc;
    config->secret = &c->secret;
    config->listen_addr = c->listen ? c->listen : c->ring.m.ranks[0].addr[0] ? c->ring.m.ranks[0].addr : NULL;
    return rank_start(&c->r, &c->ring.m, config, e);
}

static enum err_code start_ring(struct run_command *c, struct err *e)
{
    struct manifest m;
    struct node_config config = {.listen_fd = -1};
    if (c->who.manifest)
        return join(c, &config, e);
    enum err_code rc = layout_make(c->g, &c->layout, &m, e);
    if (rc != OK)
        return rc;
    if (m.n_ranks > 1)
        rc = start_local(c, &m, &config, e);
    else
        c->ring.m = m;
    if (rc != OK)
        return rc;
    struct rank_options o = c->rank;
    if (!o.n_threads)
        o.n_threads = rank_default_threads(c->ring.m.n_ranks, c->ring.m.ranks[0].weight_bytes);
    rc = rank_open(&c->r, c->g, &c->ring.m, 0, NULL, &o, e);
    if (rc == OK)
        return rank_start(&c->r, &c->ring.m, &config, e);
    if (config.listen_fd >= 0)
        close(config.listen_fd);
    return rc;
}

static enum err_code wait_ring(struct run_command *c, struct err *e)
{
    uint64_t deadline = clock_deadline_ms(RING_WAIT_MS);
    while (!node_is_ready(c->r.node)) {
        if (clock_now_ns() >= deadline)
            return node_wait_ready(c->r.node, deadline, e);
        enum err_code rc = wait_some(c, -1, 5, e);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* --- the text ------------------------------------------------------------------------------------ */

static enum err_code put_out(struct buf *text, struct err *e)
{
    size_t done = 0;
    while (done < text->len) {
        ssize_t n = write(STDOUT_FILENO, text->data + done, text->len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_os(e, ERR_IO, errno, "cannot write the text");
        done += (size_t)n;
    }
    buf_clear(text);
    return OK;
}

/* The ring broke. When a process died of it or before it, that is the cause, and it is about to be known. */
static enum err_code explain_failure(struct run_command *c, const struct gen *g, struct err *e)
{
    uint64_t deadline = clock_deadline_ms(LAST_WORDS_MS);
    while (c->parted && clock_now_ns() < deadline) {
        enum err_code rc = wait_some(c, -1, 20, e);
        if (rc != OK)
            return rc;
    }
    *e = g->err;
    return g->err.code;
}

static enum err_code print_tokens(struct run_command *c, struct gen *g, struct err *e)
{
    struct tok_stream s;
    struct buf text = {0};
    enum err_code rc = OK;
    bool ended = false;
    tok_stream_init(&s, c->tok, !c->chat, false); /* an answer is a text of its own */
    while (rc == OK && !ended) {
        int32_t token;
        while (rc == OK && gen_take(g, &token, &ended))
            rc = tok_stream_put(&s, token, &text, e);
        if (rc == OK && ended)
            rc = tok_stream_end(&s, &text, e);
        if (rc == OK)
            rc = put_out(&text, e);
        if (rc == OK && !ended)
            rc = wait_some(c, g->event_fd, 1000, e);
    }
    buf_free(&text);
    return rc == OK && g->reason == SCHED_FAILED ? explain_failure(c, g, e) : rc;
}

static void print_summary(const struct run_command *c, const struct gen *g)
{
    if (isatty(STDOUT_FILENO))
        fprintf(stderr, "\n");
    double prompt_s = g->n ? (double)(g->first_ns - c->start_ns) / 1e9 : 0;
    double out_s = (double)(g->last_ns - g->first_ns) / 1e9;
    fprintf(stderr, "%zu prompt tokens, first token after %.1f ms; %u tokens", c->ids.n, prompt_s * 1e3, g->n);
    if (g->n > 1 && out_s > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)(g->n - 1) / out_s);
    fprintf(stderr, " (%s)\n", sched_reason_name(g->reason));
}

static void stop_node(struct run_command *c)
{
    node_stop(c->r.node);
    c->r.node = NULL;
}

/* Stops the ring, whose other ranks report as they end, then says what each did. */
static void finish_report(struct run_command *c)
{
    struct rank_report *r = calloc(c->ring.m.n_ranks, sizeof *r);
    if (!r)
        return;
    rank_report_of(&c->r, &r[0]);
    stop_node(c);
    if (c->parted)
        local_stop(&c->ring);
    for (uint32_t i = 1; c->parted && i < c->ring.m.n_ranks; i++)
        r[i] = c->ring.child[i].report;
    fprintf(stderr, "\n");
    report_print(stderr, &c->ring.m, r, c->parted ? c->ring.m.n_ranks : 1);
    free(r);
}

static enum err_code generate(struct run_command *c, struct err *e)
{
    struct gen g;
    c->start_ns = clock_now_ns();
    enum err_code rc = gen_start(&g, c->r.node, c->tok, &c->ids, c->n_predict, &c->sampling, e);
    if (rc != OK)
        return rc;
    rc = print_tokens(c, &g, e);
    if (rc == OK) {
        print_summary(c, &g);
        if (c->report)
            finish_report(c);
    }
    stop_node(c); /* no callback after this */
    gen_fini(&g);
    return rc;
}

/* --- the command --------------------------------------------------------------------------------- */

/* The text as a user's message, in the model's chat format. */
static enum err_code encode_chat(struct run_command *c, const char *text, size_t len, struct err *e)
{
    struct chat chat;
    struct chat_message msg[2];
    size_t n = 0;
    char today[16] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (localtime_r(&now, &tm))
        strftime(today, sizeof today, "%Y-%m-%d", &tm);
    struct chat_options options = {.add_generation_prompt = true, .date = *today ? today : NULL};
    if (c->system)
        msg[n++] = (struct chat_message){CHAT_SYSTEM, c->system, strlen(c->system)};
    msg[n++] = (struct chat_message){CHAT_USER, text, len};
    enum err_code rc = chat_pick(c->g, c->chat_template, &chat, e);
    return rc == OK ? chat_encode(&chat, c->tok, msg, n, &options, &c->ids, e) : rc;
}

static enum err_code read_prompt(struct run_command *c, struct err *e)
{
    struct buf text = {0};
    enum err_code rc = OK;
    if (c->prompt_file)
        rc = io_read_file(strcmp(c->prompt_file, "-") == 0 ? "/dev/stdin" : c->prompt_file, PROMPT_MAX, &text, e);
    else
        buf_puts(&text, c->prompt);
    if (rc == OK && c->chat)
        rc = encode_chat(c, buf_str(&text), text.len, e);
    else if (rc == OK)
        rc = tok_encode(c->tok, buf_str(&text), text.len, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, &c->ids, e);
    buf_free(&text);
    if (rc == OK && c->ids.n == 0)
        rc = err_set(e, ERR_ARG, "the prompt is empty, and this model puts no token before a text");
    return rc;
}

static enum err_code run(struct run_command *c, struct err *e)
{
    enum err_code rc = sampler_check(&c->sampling, INT32_MAX, e); /* the options have no tokens */
    if (rc == OK)
        rc = signals_open(&c->wait.signal_fd, e);
    if (rc == OK && !c->model) {
        rc = default_model_find(c->default_model, e);
        c->model = c->default_model;
    }
    if (rc == OK)
        rc = gguf_open(c->model, &c->g, e);
    if (rc == OK)
        rc = tok_new(c->g, NULL, &c->tok, e);
    if (rc == OK)
        rc = read_prompt(c, e);
    if (rc == OK)
        rc = start_ring(c, e);
    gguf_close(c->g);
    c->g = NULL;
    if (rc == OK)
        rc = wait_ring(c, e);
    return rc == OK ? generate(c, e) : rc;
}

int cmd_run(int argc, char **argv, const struct command *cmd)
{
    struct run_command c = {.n_predict = 128, .top_k = 40, .penalty_last_n = 64, .wait = {.signal_fd = -1}};
    c.sampling = (struct batch_sampling){.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.0f};
    const struct opt opts[] = {
        {"prompt", 'p', OPT_STRING, "TEXT", "the text to continue", &c.prompt, 0, 0},
        {"file", 'f', OPT_STRING, "FILE", "read the text from FILE (- is the standard input)", &c.prompt_file, 0, 0},
        {"chat", 0, OPT_FLAG, NULL, "the text is a message: answer it, in the model's chat format", &c.chat, 0, 0},
        {"system", 0, OPT_STRING, "TEXT", "with --chat: what the model is told before", &c.system, 0, 0},
        {"chat-template", 0, OPT_STRING, "NAME", "with --chat: the format, not as the file says (see docs/chat.md)",
         &c.chat_template, 0, 0},
        {"predict", 'n', OPT_U32, "N", "most tokens to generate (default: 128)", &c.n_predict, 1, 1 << 24},
        LAYOUT_OPTION_ROWS(c.layout),
        RANK_OPTION_ROWS(c.rank),
        RANK_IDENTITY_ROWS(c.who),
        {"listen", 0, OPT_STRING, "ADDR", "with --manifest: host:port to listen on (default: as there)", &c.listen, 0,
         0},
        {"temp", 0, OPT_FLOAT, "T", "temperature; 0 takes the best token always (default: 0.8)",
         &c.sampling.temperature, 0, 100},
        {"top-k", 0, OPT_U32, "K", "only the K best tokens; 0: all (default: 40)", &c.top_k, 0, 1 << 24},
        {"top-p", 0, OPT_FLOAT, "P", "only the best tokens that make up P (default: 0.95; 1: all)", &c.sampling.top_p,
         0, 1},
        {"min-p", 0, OPT_FLOAT, "P", "only tokens at least P times as likely as the best (default: 0.05)",
         &c.sampling.min_p, 0, 1},
        {"repeat-penalty", 0, OPT_FLOAT, "X", "makes repeated tokens less likely; 1: off (default)",
         &c.sampling.repeat_penalty, 0, 10},
        {"frequency-penalty", 0, OPT_FLOAT, "X", "the same, by how often they came (default: 0)",
         &c.sampling.frequency_penalty, -10, 10},
        {"presence-penalty", 0, OPT_FLOAT, "X", "the same, once they came (default: 0)", &c.sampling.presence_penalty,
         -10, 10},
        {"repeat-last", 0, OPT_U32, "N", "tokens that penalties look back on (default: 64)", &c.penalty_last_n, 0,
         1 << 24},
        {"seed", 0, OPT_U64, "N", "seed of the random numbers (default: 0)", &c.sampling.seed, 0, 0},
        {"report", 'r', OPT_FLAG, NULL, "at the end, say what each rank did", &c.report, 0, 0},
        {0},
    };
    uint32_t n_pos;
    int rc = opt_parse(cmd, opts, argc, argv, &c.model, 1, &n_pos);
    if (rc >= 0)
        return rc;
    if (!c.prompt == !c.prompt_file)
        return opt_usage(cmd, "a text to continue: either -p TEXT or -f FILE");
    if (!c.chat && (c.system || c.chat_template))
        return opt_usage(cmd, "--system and --chat-template go with --chat");
    if (!c.who.manifest != !c.who.key || (!c.who.manifest && (c.who.signer || c.listen)))
        return opt_usage(cmd, "a ring that is there already is joined by --manifest and --key");
    if (c.who.manifest &&
        (c.layout.n_stages || c.layout.layers || c.layout.n_ctx || c.layout.n_slots || c.layout.n_batch))
        return opt_usage(cmd, "with --manifest, stages, windows and sizes are the manifest's");
    c.sampling.top_k = (int32_t)c.top_k;
    c.sampling.penalty_last_n = c.penalty_last_n;
    c.layout.kv = c.rank.kv;
    c.layout.local = true;
    if (c.who.manifest)
        c.rank.device = c.layout.device; /* instead of the manifest's */
    struct err e;
    enum err_code code = run(&c, &e);
    rank_close(&c.r);
    local_fini(&c.ring);
    key_wipe(&c.secret);
    tok_ids_free(&c.ids);
    tok_free(c.tok);
    if (c.wait.signal_fd >= 0)
        close(c.wait.signal_fd);
    if (c.wait.signal)
        return 128 + c.wait.signal;
    return code == OK ? EXIT_OK : opt_fail(&e);
}
