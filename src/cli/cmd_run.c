/* SPDX-License-Identifier: MIT
 *
 * kvasir run: continues a text. With one stage in this process alone; with more, this process is rank 0 and the others
 * are `kvasir node` processes that it starts and stops; with --manifest it is rank 0 of a ring whose other nodes run
 * already. With --origin each rank, this one too, pulls its own window. Exactly the continuation goes to the standard
 * output.
 */
#include "base/clock.h"
#include "base/io.h"
#include "cli/commands.h"
#include "cli/default_model.h"
#include "cli/gen.h"
#include "cli/layout.h"
#include "cli/local.h"
#include "cli/progress.h"
#include "cli/rank.h"
#include "cli/report.h"
#include "cli/signals.h"
#include "cli/source.h"
#include "cli/window.h"
#include "engine/sampler.h"
#include "tok/chat.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RING_WAIT_MS  120000u /* loading large windows from a slow disk takes its time */
#define LAST_WORDS_MS 1000u   /* how long a process that dies may take to say so */
#define PROMPT_MAX    (64u << 20)

struct run_command {
    const char *model, *prompt, *prompt_file, *listen, *system, *chat_template;
    struct source_options source;
    struct rank_identity who; /* with --manifest */
    struct key_secret secret;
    struct layout_options layout;
    struct rank_options rank;
    struct batch_sampling sampling;
    uint32_t n_predict, top_k, penalty_last_n;
    bool report, chat;
    /* while it runs */
    char default_model[PATH_MAX];
    struct source src;        /* the model; nothing with --manifest and --origin */
    struct gguf *window;      /* rank 0's, when it comes from origins */
    uint8_t id[DIGEST_BYTES]; /* the model's, where it is needed */
    struct tok *tok;
    struct tok_ids ids;
    struct local_ring ring;
    struct rank r;
    struct local_wait wait;
    struct signals_stop stop;
    struct err lost;  /* why a process of the ring ended while a window was pulled */
    bool parted;      /* the ring has processes that this one started */
    bool reader_gone; /* nobody reads the text any more */
    uint64_t start_ns;
};

/* --- waiting for several things at once ---------------------------------------------------------- */

/* Waits for tokens (event_fd, -1: none), signals, words of the children; at most ms. */
static enum err_code wait_some(struct run_command *c, int event_fd, int ms, struct err *e)
{
    c->wait.event_fd = event_fd;
    return local_wait(c->parted ? &c->ring : NULL, &c->wait, ms, e);
}

/* --- the model ----------------------------------------------------------------------------------- */

/* While rank 0's window is pulled, those of the processes are, too: what they say is read, and counts. */
static bool tell_pull(void *ctx, struct pull_progress *p)
{
    struct run_command *c = ctx;
    if (!c->parted)
        return true;
    enum err_code rc = wait_some(c, -1, 0, &c->lost);
    if (rc == ERR_CANCELLED) /* a signal, not a loss */
        c->lost.code = OK;
    local_pulls(&c->ring, p);
    return rc == OK;
}

/* Rank 0's window: the cache's, or pulled. */
static enum err_code open_window(struct run_command *c, struct err *e)
{
    const struct window_want want = {.source = &c->source,
                                     .remote = c->src.remote,
                                     .m = &c->ring.m,
                                     .stop = &c->stop,
                                     .what = c->parted ? "pulling the windows" : "pulling the window",
                                     .ctx = c,
                                     .tell = tell_pull};
    enum err_code rc = window_open(&want, &c->window, c->id, e);
    if (rc == ERR_CANCELLED && c->lost.code != OK) {
        *e = c->lost;
        rc = e->code;
    }
    return rc;
}

/* With --manifest: who this is, and rank 0's window or the model that has it. */
static enum err_code open_joining(struct run_command *c, struct err *e)
{
    uint32_t index;
    enum err_code rc = rank_identify(&c->who, &c->ring.m, &c->secret, &index, e);
    if (rc == OK && index != 0)
        return err_set(e, ERR_ARG, "the key %s is rank %u's; a text enters at rank 0: run it there", c->who.key, index);
    if (rc == OK && !c->model)
        return open_window(c, e);
    if (rc == OK)
        rc = gguf_open(c->model, &c->src.file, e);
    return rc == OK ? rank_model_id(c->src.file, &c->stop, c->id, e) : rc;
}

static enum err_code open_model(struct run_command *c, struct err *e)
{
    const struct source_want want = {.stop = &c->stop};
    if (!c->model && !c->source.origins.n) {
        enum err_code rc = default_model_find(c->default_model, e);
        if (rc != OK)
            return rc;
        c->model = c->default_model;
    }
    return c->who.manifest ? open_joining(c, e) : source_open(&c->src, c->model, &c->source, &want, e);
}

/* The file, or what is read of one: the metadata. */
static const struct gguf *model_of(const struct run_command *c)
{
    return c->window ? c->window : source_gguf(&c->src);
}

static void close_model(struct run_command *c)
{
    gguf_close(c->window);
    c->window = NULL;
    source_close(&c->src);
}

/* --- the ring ------------------------------------------------------------------------------------ */

/* A ring of processes on this machine, all but rank 0 started here. */
static enum err_code start_local(struct run_command *c, struct manifest *m, struct node_config *config, struct err *e)
{
    c->parted = true;
    c->ring.model = c->model;
    c->ring.source = &c->source;
    c->ring.options = c->rank;
    enum err_code rc = local_make(&c->ring, m, c->id, e);
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
    enum err_code rc = rank_open(&c->r, model_of(c), &c->ring.m, 0, c->id, &c->rank, e);
    if (rc != OK)
        return rc;
    config->secret = &c->secret;
    config->listen_addr = c->listen ? c->listen : c->ring.m.ranks[0].addr[0] ? c->ring.m.ranks[0].addr : NULL;
    return rank_start(&c->r, &c->ring.m, config, e);
}

/* The stage of this process in a ring that it made. */
static enum err_code load_local(struct run_command *c, struct err *e)
{
    struct rank_options o = c->rank;
    enum err_code rc = c->src.remote ? open_window(c, e) : OK;
    if (rc != OK)
        return rc;
    if (!o.n_threads)
        o.n_threads = rank_default_threads(c->ring.m.n_ranks, c->ring.m.ranks[0].weight_bytes);
    return rank_open(&c->r, model_of(c), &c->ring.m, 0, c->window ? c->id : NULL, &o, e);
}

static enum err_code start_ring(struct run_command *c, struct err *e)
{
    struct manifest m;
    struct node_config config = {.listen_fd = -1};
    if (c->who.manifest)
        return join(c, &config, e);
    enum err_code rc = layout_make(model_of(c), &c->layout, &m, e);
    if (rc != OK)
        return rc;
    if (m.n_ranks > 1 || c->src.remote) /* whoever loads alone from a file need not know what it is */
        rc = source_model_id(&c->src, &c->stop, c->id, e);
    if (rc != OK) {
        manifest_fini(&m);
        return rc;
    }
    if (m.n_ranks > 1) {
        rc = start_local(c, &m, &config, e);
    } else {
        c->ring.m = m;
        memcpy(c->ring.m.model_id, c->id, DIGEST_BYTES);
    }
    if (rc == OK)
        rc = load_local(c, e);
    if (rc == OK)
        return rank_start(&c->r, &c->ring.m, &config, e);
    if (config.listen_fd >= 0)
        close(config.listen_fd);
    return rc;
}

static enum err_code wait_ring(struct run_command *c, struct err *e)
{
    struct progress line;
    enum err_code rc = OK;
    const uint64_t begin = clock_now_ns();
    progress_begin(&line, "pulling the windows");
    while (rc == OK && !node_is_ready(c->r.node)) {
        const uint64_t told = local_show_start(&c->ring, &line), from = told > begin ? told : begin;
        if (clock_now_ns() >= from + RING_WAIT_MS * CLOCK_NS_PER_MS)
            rc = node_wait_ready(c->r.node, clock_now_ns(), e);
        else
            rc = wait_some(c, -1, 5, e);
    }
    progress_end(&line);
    return rc;
}

/* --- the text ------------------------------------------------------------------------------------ */

static enum err_code put_out(struct run_command *c, struct buf *text, struct err *e)
{
    if (!io_write_full(STDOUT_FILENO, text->data, text->len)) {
        c->reader_gone = errno == EPIPE;
        return err_set_os(e, ERR_IO, errno, "cannot write the text");
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
            rc = put_out(c, &text, e);
        if (rc == OK && !ended)
            rc = wait_some(c, g->event_fd, 1000, e);
    }
    buf_free(&text);
    return rc == OK && g->reason == SCHED_FAILED ? explain_failure(c, g, e) : rc;
}

/* Do both outputs go to the same place, as after 2>&1? */
static bool same_output(void)
{
    struct stat out, err;
    return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
           out.st_ino == err.st_ino;
}

static void print_summary(const struct run_command *c, const struct gen *g)
{
    if (isatty(STDOUT_FILENO) || same_output()) /* the text need not have ended its line */
        fprintf(stderr, "\n");
    double prompt_s = g->n ? (double)(g->first_ns - c->start_ns) / 1e9 : 0;
    double out_s = (double)(g->last_ns - g->first_ns) / 1e9;
    fprintf(stderr, "%zu prompt token%s, first token after %.1f ms; %u token%s", c->ids.n, c->ids.n == 1 ? "" : "s",
            prompt_s * 1e3, g->n, g->n == 1 ? "" : "s");
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
    enum err_code rc = chat_pick(model_of(c), c->chat_template, &chat, e);
    return rc == OK ? chat_encode(&chat, c->tok, msg, n, &options, &c->ids, e) : rc;
}

/* The text as it was given. Before signals are taken: whoever types it ends it with Ctrl-C as any program. */
static enum err_code read_text(const struct run_command *c, struct buf *text, struct err *e)
{
    if (c->prompt_file)
        return io_read_file(strcmp(c->prompt_file, "-") == 0 ? "/dev/stdin" : c->prompt_file, PROMPT_MAX, text, e);
    buf_puts(text, c->prompt);
    return OK;
}

static enum err_code encode(struct run_command *c, struct buf *text, struct err *e)
{
    enum err_code rc;
    if (c->chat)
        rc = encode_chat(c, buf_str(text), text->len, e);
    else
        rc = tok_encode(c->tok, buf_str(text), text->len, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, &c->ids, e);
    if (rc == OK && c->ids.n == 0)
        rc = err_set(e, ERR_ARG, "the prompt is empty, and this model puts no token before a text");
    return rc;
}

static enum err_code run(struct run_command *c, struct err *e)
{
    struct buf text = {0};
    enum err_code rc = sampler_check(&c->sampling, INT32_MAX, e); /* the options have no tokens */
    if (rc == OK)
        rc = read_text(c, &text, e);
    if (rc == OK)
        rc = signals_open(&c->wait.signal_fd, e);
    c->stop.signal_fd = c->wait.signal_fd;
    if (rc == OK)
        rc = open_model(c, e);
    if (rc == OK)
        rc = tok_new(model_of(c), NULL, &c->tok, e);
    if (rc == OK)
        rc = encode(c, &text, e);
    buf_free(&text);
    if (rc == OK)
        rc = start_ring(c, e);
    close_model(c);
    if (rc == OK)
        rc = wait_ring(c, e);
    return rc == OK ? generate(c, e) : rc;
}

/* -1: all is well, else the exit status. */
static int check_usage(const struct run_command *c, const struct command *cmd)
{
    if (!c->prompt == !c->prompt_file)
        return opt_usage(cmd, "a text to continue: either -p TEXT or -f FILE");
    const char *wrong = source_complaint(&c->source, c->model);
    if (wrong)
        return opt_usage(cmd, "%s", wrong);
    if (!c->chat && (c->system || c->chat_template))
        return opt_usage(cmd, "--system and --chat-template go with --chat");
    if (!c->who.manifest != !c->who.key || (!c->who.manifest && (c->who.signer || c->listen)))
        return opt_usage(cmd, "a ring that is there already is joined by --manifest and --key");
    if (c->who.manifest &&
        (c->layout.n_stages || c->layout.layers || c->layout.n_ctx || c->layout.n_slots || c->layout.n_batch))
        return opt_usage(cmd, "with --manifest, stages, windows and sizes are the manifest's");
    return -1;
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
        SOURCE_OPTION_ROWS(c.source),
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
    rc = check_usage(&c, cmd);
    if (rc >= 0)
        return rc;
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
    const int sig = c.wait.signal ? c.wait.signal : atomic_load(&c.stop.signal);
    if (sig || c.reader_gone) /* as of `| head`, which has read enough: no failure to speak of */
        return 128 + (sig ? sig : SIGPIPE);
    return code == OK ? EXIT_OK : opt_fail(&e);
}
