/* SPDX-License-Identifier: MIT
 *
 * Messages to tokens. A conversation becomes a list of spans, the format's own texts and the messages', which are
 * tokenized together: only the format's may hold special tokens. Nothing is copied before that.
 */
#include "tok/chat.h"

#include "tok/chat_format.h"
#include "tok/vocab.h"

#include <stdlib.h>
#include <string.h>

#define SPANS_PER_MESSAGE 8u
#define SPANS_AROUND      16u

struct writer {
    const struct chat *chat;
    const struct chat_message *msg;
    size_t n_msg;
    struct tok_span *span; /* room for SPANS_PER_MESSAGE each and SPANS_AROUND */
    size_t n;
};

static void put_span(struct writer *w, const char *text, size_t len, unsigned flags)
{
    if (len > 0)
        w->span[w->n++] = (struct tok_span){text, len, flags};
}

static void put(struct writer *w, const char *text)
{
    put_span(w, text, strlen(text), TOK_PARSE_SPECIAL);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* An answer without its reasoning. */
static void drop_reasoning(const char *end, const char **text, size_t *len)
{
    size_t n = strlen(end);
    for (const char *p; *len >= n && (p = memmem(*text, *len, end, n));) {
        *len -= (size_t)(p - *text) + n;
        *text = p + n;
        while (*len > 0 && **text == '\n') {
            ++*text;
            --*len;
        }
    }
}

static void put_content(struct writer *w, const struct chat_message *m, bool without_reasoning)
{
    const char *text = m->content;
    size_t len = m->len;
    if (without_reasoning && len > 0)
        drop_reasoning(w->chat->reasoning_end, &text, &len);
    if (w->chat->format->trims) {
        while (len > 0 && is_space(text[len - 1]))
            len--;
        for (; len > 0 && is_space(*text); text++)
            len--;
    }
    put_span(w, text, len, TOK_CONTENT);
}

static void put_preamble(struct writer *w, const char *date)
{
    put(w, "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
           "Knowledge cutoff: 2024-06\n");
    if (date) {
        put(w, "Current date: ");
        put_span(w, date, strlen(date), TOK_CONTENT);
        put(w, "\n");
    }
    put(w, "\nReasoning: medium\n\n"
           "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>");
}

/* The system's texts among the messages [first, end), as a part of a user turn. */
static void put_merged(struct writer *w, size_t first, size_t end)
{
    const struct chat_turn *part = &w->chat->format->system_in_user;
    for (size_t i = first; i < end; i++) {
        if (w->msg[i].role != CHAT_SYSTEM || w->msg[i].len == 0)
            continue;
        put(w, part->before);
        put_content(w, &w->msg[i], false);
        put(w, part->after);
    }
}

/* A user turn that holds nothing but the system's texts: no user turn follows that could take them. */
static void put_orphans(struct writer *w, size_t first, size_t end)
{
    size_t n = 0;
    for (size_t i = first; i < end; i++)
        n += w->msg[i].role == CHAT_SYSTEM && w->msg[i].len > 0;
    if (n == 0)
        return;
    put(w, w->chat->format->turn[CHAT_USER].before);
    put_merged(w, first, end);
    put(w, w->chat->format->turn[CHAT_USER].after);
}

static size_t last_user(const struct writer *w)
{
    size_t last = 0;
    for (size_t i = 0; i < w->n_msg; i++)
        last = w->msg[i].role == CHAT_USER ? i : last;
    return last;
}

static void put_messages(struct writer *w)
{
    const struct chat_format *f = w->chat->format;
    size_t last = last_user(w), told = 0; /* the system's texts before `told` are written */
    bool merges = !f->turn[CHAT_SYSTEM].before, first_user = true;
    for (size_t i = 0; i < w->n_msg; i++) {
        const struct chat_message *m = &w->msg[i];
        bool tool = m->role == CHAT_TOOL && f->tools.before;
        if (merges && m->role == CHAT_SYSTEM)
            continue;
        if (merges && m->role != CHAT_USER)
            put_orphans(w, told, i);
        if (m->role == CHAT_USER && w->chat->bos_each_turn && !first_user)
            put(w, "<s>");
        if (tool && (i == 0 || w->msg[i - 1].role != CHAT_TOOL))
            put(w, f->tools.before);
        put(w, f->turn[m->role].before);
        if (merges && m->role == CHAT_USER)
            put_merged(w, told, i);
        put_content(w, m, m->role == CHAT_ASSISTANT && w->chat->reasoning_end && i < last);
        put(w, f->turn[m->role].after);
        if (tool && (i + 1 == w->n_msg || w->msg[i + 1].role != CHAT_TOOL))
            put(w, f->tools.after);
        told = i;
        first_user = first_user && m->role != CHAT_USER;
    }
    if (merges)
        put_orphans(w, told, w->n_msg);
}

/* --- checks --------------------------------------------------------------------------------------- */

/* What an answer begins with, after the format's own beginning. */
static enum err_code thinking_text(const struct chat *c, enum chat_think think, const char **out, struct err *e)
{
    static const char begin[] = "<think>\n", empty[] = "<think>\n\n</think>\n\n";
    *out = "";
    switch (c->thinking) {
    case CHAT_NO_THINKING:
        if (think == CHAT_THINK_ON)
            return err_set(e, ERR_UNSUPPORTED, "this model's chat format (%s) knows no thinking to turn on",
                           c->format->name);
        break;
    case CHAT_CAN_SKIP:
        *out = think == CHAT_THINK_OFF ? empty : "";
        break;
    case CHAT_CAN_BOTH:
        *out = think == CHAT_THINK_OFF || (think == CHAT_THINK_DEFAULT && c->skips_by_default) ? empty : begin;
        break;
    case CHAT_MUST_THINK:
        if (think == CHAT_THINK_OFF)
            return err_set(e, ERR_UNSUPPORTED, "this model's chat format (%s) always thinks; it cannot be turned off",
                           c->format->name);
        *out = c->opens ? begin : "";
        break;
    }
    return OK;
}

static enum err_code check_messages(const struct chat *c, const struct chat_message *msg, size_t n, struct err *e)
{
    if (n == 0)
        return err_set(e, ERR_ARG, "a conversation needs at least one message");
    if (n > SIZE_MAX / sizeof(struct tok_span) / SPANS_PER_MESSAGE - SPANS_AROUND)
        return err_set(e, ERR_LIMIT, "a conversation of %zu messages is too long", n);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned)msg[i].role >= CHAT_ROLE_COUNT)
            return err_set(e, ERR_ARG, "message %zu has the role %d, which there is not", i, (int)msg[i].role);
        if (msg[i].role == CHAT_TOOL && !c->has_tool_turns)
            return err_set(e, ERR_UNSUPPORTED,
                           "message %zu is of a tool; this model's chat format (%s) has no turn for that, put the "
                           "text into a user message",
                           i, c->format->name);
    }
    return OK;
}

enum err_code chat_encode(const struct chat *c, const struct tok *t, const struct chat_message *msg, size_t n,
                          const struct chat_options *options, struct tok_ids *out, struct err *e)
{
    const char *thinking = "";
    size_t n_before = out->n;
    enum err_code rc = check_messages(c, msg, n, e);
    if (rc == OK && options->add_generation_prompt)
        rc = thinking_text(c, options->think, &thinking, e);
    if (rc != OK)
        return rc;
    struct writer w = {.chat = c, .msg = msg, .n_msg = n};
    w.span = calloc(SPANS_PER_MESSAGE * n + SPANS_AROUND, sizeof *w.span);
    if (!w.span)
        return err_set(e, ERR_NOMEM, "no memory for %zu messages", n);
    put(&w, c->format->start);
    if (c->format->preamble)
        put_preamble(&w, options->date);
    put_messages(&w);
    if (options->add_generation_prompt) {
        put(&w, c->format->generate);
        put(&w, thinking);
    }
    if ((t->add_bos || c->bos) && t->bos >= 0 && !tok_ids_push(out, t->bos))
        rc = err_set(e, ERR_NOMEM, "no memory for tokens");
    if (rc == OK)
        rc = tok_encode_spans(t, w.span, w.n, out, e);
    if (rc != OK)
        out->n = n_before;
    free(w.span);
    return rc;
}
