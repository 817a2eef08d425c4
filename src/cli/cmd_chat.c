/* SPDX-License-Identifier: MIT
 *
 * kvasir chat: a conversation with any server that speaks the OpenAI API, a node of ours or another. Answers go to the
 * standard output as they come; what is said about them goes to the standard error.
 */
#include "base/text.h"
#include "cli/commands.h"
#include "cli/line.h"
#include "cli/oai.h"
#include "cli/signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_MESSAGES 4096u
#define MAX_TEXT     (16u << 20)
#define IDLE_MS      600000u /* a long prompt around a slow ring takes a while */
#define DIM          "\033[2m"
#define PLAIN        "\033[0m"

struct chat_command {
    struct oai server;
    const char *model, *system, *key_file, *prompt, *temperature, *max_tokens;
    char first_model[OAI_NAME_SIZE];
    struct oai_settings settings;
    struct oai_message *messages; /* [n_messages]; the system text, if there is one, is the first */
    size_t n_messages;
    bool plain; /* the model has no chat format: texts are continued */
    bool tty;   /* answers are read by somebody */
    int signal_fd;
    int signal; /* that stopped the answer, 0: none */
    struct line_input *in;
    /* the answer that comes */
    struct buf answer;
    bool in_thought, any;
};

/* --- the conversation ---------------------------------------------------------------------------- */

static enum err_code add_message(struct chat_command *c, const char *role, const char *text, struct err *e)
{
    if (c->n_messages == MAX_MESSAGES)
        return err_set(e, ERR_LIMIT, "the conversation has %u messages: /reset begins another", MAX_MESSAGES);
    struct oai_message *more = realloc(c->messages, (c->n_messages + 1) * sizeof *more);
    if (more)
        c->messages = more;
    char *copy = more ? strdup(text) : NULL;
    if (!copy)
        return err_set(e, ERR_NOMEM, "out of memory");
    c->messages[c->n_messages++] = (struct oai_message){role, copy};
    return OK;
}

static void drop_messages(struct chat_command *c, size_t keep)
{
    while (c->n_messages > keep)
        free(c->messages[--c->n_messages].text);
}

static enum err_code begin_again(struct chat_command *c, struct err *e)
{
    drop_messages(c, 0);
    return c->system && c->system[0] ? add_message(c, "system", c->system, e) : OK;
}

/* --- an answer ----------------------------------------------------------------------------------- */

static bool cancelled(void *ctx)
{
    struct chat_command *c = ctx;
    int sig = c->signal ? 0 : signals_take(c->signal_fd);
    c->signal = sig ? sig : c->signal;
    return c->signal != 0;
}

/* Text for a terminal: no control characters but tabs and line ends, whatever the server sends. */
static void show(const char *text, size_t len)
{
    const char *p = text, *end = text + len;
    while (p < end) {
        uint32_t rune;
        size_t n = text_utf8(p, (size_t)(end - p), &rune);
        bool control = n == 0 || (rune < 0x20 && rune != '\n' && rune != '\t') || (rune >= 0x7f && rune < 0xa0);
        if (control)
            fputc('?', stdout);
        else
            fwrite(p, 1, n, stdout);
        p += n ? n : 1;
    }
}

static void on_text(void *ctx, const char *text, size_t len, bool thought)
{
    struct chat_command *c = ctx;
    if (thought && !c->tty)
        return;
    if (c->tty && thought != c->in_thought)
        fputs(thought ? DIM : PLAIN "\n", stdout);
    c->in_thought = thought;
    if (!thought)
        buf_put(&c->answer, text, len);
    c->any |= len > 0;
    if (c->tty)
        show(text, len);
    else
        fwrite(text, 1, len, stdout);
    fflush(stdout);
}

static enum err_code ask_once(struct chat_command *c, struct oai_answer *a, struct err *e)
{
    struct oai_request r = {.model = c->model,
                            .messages = c->messages,
                            .n_messages = c->n_messages,
                            .settings = &c->settings,
                            .plain = c->plain,
                            .ctx = c,
                            .on_text = on_text};
    buf_clear(&c->answer);
    c->signal = 0;
    c->in_thought = c->any = false;
    enum err_code rc = oai_ask(&c->server, &r, a, e);
    if (c->in_thought)
        fputs(PLAIN, stdout);
    return rc;
}

static void say(const struct chat_command *c, const char *text)
{
    bool dim = c->tty && isatty(STDERR_FILENO);
    fprintf(stderr, "%s%s%s\n", dim ? DIM : "", text, dim ? PLAIN : "");
}

/* Asks, shows the answer, and keeps both in the conversation; a question without an answer is dropped again. */
static enum err_code ask(struct chat_command *c, const char *text, struct err *e)
{
    struct oai_answer a;
    size_t before = c->n_messages;
    enum err_code rc = add_message(c, "user", text, e);
    if (rc != OK)
        return rc;
    rc = ask_once(c, &a, e);
    if (rc != OK && !c->plain && strcmp(a.code, "chat_not_supported") == 0) {
        say(c, "This is a base model without a chat format: it continues the text instead of answering.");
        c->plain = true;
        rc = ask_once(c, &a, e);
    }
    if (c->any && (c->tty || c->prompt == NULL) && (c->answer.len == 0 || c->answer.data[c->answer.len - 1] != '\n'))
        fputc('\n', stdout);
    fflush(stdout);
    bool stopped = rc == ERR_CANCELLED && c->signal;
    if (c->answer.len > 0 && (rc == OK || stopped)) {
        if (add_message(c, "assistant", buf_str(&c->answer), e) != OK)
            rc = e->code;
    } else {
        drop_messages(c, before);
    }
    if (stopped)
        say(c, "(stopped)");
    else if (rc == OK && strcmp(a.reason, "length") == 0 && !c->settings.set[OAI_MAX_TOKENS])
        say(c, "(the answer is as long as it may be, or the context is full)");
    return rc;
}

/* --- commands ------------------------------------------------------------------------------------ */

static void help(void)
{
    fputs("/reset           begin a new conversation\n"
          "/system [TEXT]   what the model is told before the conversation; begins a new one\n"
          "/set             show the settings\n"
          "/set NAME VALUE  temperature, top_p, top_k, min_p, max_tokens, seed; VALUE \"default\" unsets one\n"
          "/help            this text\n"
          "/quit            end; so does Ctrl-D\n"
          "Ctrl-C stops an answer. A line that ends with \\ goes on in the next. // begins a message with one slash.\n",
          stderr);
}

static enum err_code set(struct chat_command *c, char *args, struct err *e)
{
    char *save = NULL;
    const char *name = strtok_r(args, " \t=", &save), *value = name ? strtok_r(NULL, " \t=", &save) : NULL;
    if (name && !value)
        return err_set(e, ERR_ARG, "/set %s needs a value, or \"default\"", name);
    if (name)
        return oai_setting_put(&c->settings, name, value, e);
    fprintf(stderr, "model        %s\nsystem       %s\n", c->model ? c->model : "(the server's)",
            c->system && c->system[0] ? c->system : "(none)");
    for (int i = 0; i < OAI_SETTING_COUNT; i++) {
        fprintf(stderr, "%-12s ", oai_setting_name((enum oai_setting)i));
        if (c->settings.set[i])
            fprintf(stderr, "%.15g\n", c->settings.value[i]);
        else
            fputs("default\n", stderr);
    }
    return OK;
}

static enum err_code set_system(struct chat_command *c, const char *text, char **kept, struct err *e)
{
    char *copy = strdup(text);
    if (!copy)
        return err_set(e, ERR_NOMEM, "out of memory");
    free(*kept);
    c->system = *kept = copy;
    return begin_again(c, e);
}

/* A line that begins with '/'. */
static enum err_code command(struct chat_command *c, char *line, char **kept_system, bool *quit, struct err *e)
{
    char *args = line + strcspn(line, " \t");
    if (*args)
        *args++ = 0;
    args += strspn(args, " \t");
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0)
        *quit = true;
    else if (strcmp(line, "/reset") == 0)
        return begin_again(c, e);
    else if (strcmp(line, "/system") == 0)
        return set_system(c, args, kept_system, e);
    else if (strcmp(line, "/set") == 0)
        return set(c, args, e);
    else if (strcmp(line, "/help") == 0)
        help();
    else
        return err_set(e, ERR_ARG, "there is no command %s: /help lists them", line);
    return OK;
}

/* --- the session --------------------------------------------------------------------------------- */

/* A message: a line, and those that follow it as long as each ends with a backslash. */
static enum line_got read_message(struct chat_command *c, struct buf *out)
{
    struct buf line = {0};
    enum line_got got;
    bool more = true;
    buf_clear(out);
    while (more) {
        got = line_read(c->in, out->len ? ". " : "> ", &line);
        if (got != LINE_TEXT)
            break;
        line_remember(c->in, buf_str(&line));
        more = line.len > 0 && line.data[line.len - 1] == '\\';
        buf_put(out, line.data, line.len - more);
        if (more)
            buf_put_u8(out, '\n');
    }
    buf_free(&line);
    return got == LINE_END && out->len > 0 ? LINE_TEXT : got;
}

static enum err_code converse(struct chat_command *c, struct err *e)
{
    struct buf message = {0};
    char *kept_system = NULL;
    enum err_code rc = OK;
    bool quit = false;
    for (unsigned n_interrupts = 0; !quit;) {
        enum line_got got = read_message(c, &message);
        if (got == LINE_INTERRUPT && line_is_edited(c->in) && ++n_interrupts < 2) {
            say(c, "(once more to quit)");
            continue;
        }
        if (got != LINE_TEXT) {
            c->signal = got == LINE_INTERRUPT ? SIGINT : got == LINE_TERMINATE ? SIGTERM : 0;
            break;
        }
        n_interrupts = 0;
        const char *text = buf_str(&message);
        enum err_code now = OK;
        if (message.failed || message.len > MAX_TEXT)
            now = err_set(e, ERR_LIMIT, "a message has at most %u bytes", MAX_TEXT);
        else if (strlen(text) != message.len || !text_valid(text, message.len))
            now = err_set(e, ERR_FORMAT, "a message is text in UTF-8 without control characters like NUL");
        else if (text[0] == '/' && text[1] != '/')
            now = command(c, (char *)(uintptr_t)text, &kept_system, &quit, e);
        else if (text[strspn(text, " \t\n")])
            now = ask(c, text + (text[0] == '/'), e);
        quit |= c->signal == SIGTERM;
        if (now == ERR_CANCELLED && c->signal) { /* an answer that was stopped is none that failed */
            if (!line_is_edited(c->in))
                break;
            c->signal = quit ? c->signal : 0;
            now = OK;
        }
        if (now != OK)
            opt_fail(e);
        rc = now != OK ? now : rc;
    }
    if (line_is_edited(c->in)) /* every failure was shown and somebody went on */
        rc = OK;
    c->system = NULL;
    free(kept_system);
    buf_free(&message);
    return rc;
}

/* -p TEXT, or "-" for all of the standard input. */
static enum err_code ask_prompt(struct chat_command *c, struct err *e)
{
    struct buf text = {0};
    enum err_code rc = OK;
    if (strcmp(c->prompt, "-") == 0) {
        enum line_got got = LINE_TEXT;
        struct buf line = {0};
        rc = line_open(c->signal_fd, NULL, &c->in, e);
        while (rc == OK && (got = line_read(c->in, "", &line)) == LINE_TEXT && text.len <= MAX_TEXT) {
            buf_put(&text, line.data, line.len);
            buf_put_u8(&text, '\n');
        }
        if (got != LINE_END && got != LINE_TEXT) {
            c->signal = got == LINE_INTERRUPT ? SIGINT : SIGTERM;
            rc = err_set(e, ERR_CANCELLED, "interrupted");
        }
        buf_free(&line);
        text.len -= text.len > 0;
    } else {
        buf_puts(&text, c->prompt);
    }
    const char *s = buf_str(&text);
    if (rc == OK && (text.len == 0 || text.len > MAX_TEXT || strlen(s) != text.len || !text_valid(s, text.len)))
        rc = err_set(e, ERR_ARG, "the message must be text in UTF-8, at least one byte, at most %u", MAX_TEXT);
    if (rc == OK)
        rc = ask(c, s, e);
    buf_free(&text);
    return rc;
}

/* Who is there? Also finds the model's name. */
static enum err_code meet(struct chat_command *c, bool default_url, struct err *e)
{
    enum err_code rc = oai_first_model(&c->server, c->first_model, e);
    if (rc == ERR_IO && default_url) {
        return err_set(e, ERR_NOT_FOUND,
                       "nothing answers at %s: start a ring with `kvasir up`, or name the URL of another server",
                       c->server.base);
    }
    if (rc == OK && !c->model)
        c->model = c->first_model;
    if (rc == ERR_NOT_FOUND || rc == ERR_FORMAT) /* a server need not list its models, if only it answers */
        rc = c->model || rc == ERR_NOT_FOUND ? OK : rc;
    return rc;
}

static enum err_code run(struct chat_command *c, const char *url, struct err *e)
{
    enum err_code rc = signals_open(&c->signal_fd, e);
    if (rc == OK)
        rc = oai_url(url ? url : OAI_DEFAULT_URL, c->server.base, e);
    if (rc == OK && c->temperature)
        rc = oai_setting_put(&c->settings, "temperature", c->temperature, e);
    if (rc == OK && c->max_tokens)
        rc = oai_setting_put(&c->settings, "max_tokens", c->max_tokens, e);
    char *key = NULL;
    if (rc == OK && c->key_file)
        rc = oai_key_load(c->key_file, &key, e);
    c->server.key = key;
    if (rc == OK)
        rc = meet(c, !url, e);
    if (rc == OK)
        rc = begin_again(c, e);
    if (rc == OK && c->prompt) {
        rc = ask_prompt(c, e);
    } else if (rc == OK) {
        rc = line_open(c->signal_fd, "chat_history", &c->in, e);
        if (rc == OK && line_is_edited(c->in))
            fprintf(stderr, "%s at %s; /help lists the commands\n", c->model ? c->model : "a model", c->server.base);
        if (rc == OK)
            rc = converse(c, e);
        if (rc != OK && !c->signal)
            rc = ERR_CANCELLED; /* it was told already */
    }
    c->server.key = NULL;
    oai_key_free(key);
    return rc;
}

int cmd_chat(int argc, char **argv, const struct command *cmd)
{
    struct chat_command c = {.signal_fd = -1};
    const struct opt opts[] = {
        {"prompt", 'p', OPT_STRING, "TEXT", "ask this and end; \"-\": what the standard input has", &c.prompt, 0, 0},
        {"model", 0, OPT_STRING, "NAME", "the model to ask (default: the first that the server lists)", &c.model, 0, 0},
        {"system", 0, OPT_STRING, "TEXT", "what the model is told before the conversation", &c.system, 0, 0},
        {"temp", 0, OPT_STRING, "T", "temperature, 0 to 2 (default: the server's)", &c.temperature, 0, 0},
        {"max-tokens", 'n', OPT_STRING, "N", "most tokens of an answer (default: the server's)", &c.max_tokens, 0, 0},
        {"key-file", 0, OPT_STRING, "FILE", "file with the API key, which only you may read", &c.key_file, 0, 0},
        {0},
    };
    const char *url = NULL;
    uint32_t n_pos;
    struct err e;
    int status = opt_parse(cmd, opts, argc, argv, &url, 1, &n_pos);
    if (status >= 0)
        return status;
    c.tty = isatty(STDOUT_FILENO);
    c.server.idle_ms = IDLE_MS;
    c.server.ctx = &c;
    c.server.cancelled = cancelled;
    enum err_code rc = run(&c, url, &e);
    status = rc == OK ? EXIT_OK : EXIT_FAILED;
    if (c.signal)
        status = 128 + c.signal;
    else if (rc != OK && rc != ERR_CANCELLED)
        opt_fail(&e);
    line_close(c.in);
    drop_messages(&c, 0);
    free(c.messages);
    buf_free(&c.answer);
    if (c.signal_fd >= 0)
        close(c.signal_fd);
    return status;
}
