/* SPDX-License-Identifier: MIT
 *
 * Answers as JSON: whole ones, events of streams, log probabilities in the form of chats and in that of completions.
 */
#include "api/impl.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

static void put_string(struct buf *out, const char *s)
{
    text_put_json(out, s, strlen(s));
}

/* Up to "choices":[ . */
static void put_head(const struct api_call *call, const char *object, struct buf *out)
{
    const struct api *a = call->a;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", call->x->id, object,
               (long long)call->created);
    put_string(out, a->model_name);
    buf_printf(out, ",\"system_fingerprint\":\"kv_%.12s\",\"choices\":[", a->model_id);
}

static void put_usage(const struct api_call *call, struct buf *out)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < call->n_choices; i++)
        n += call->choice[i].n_tok;
    uint64_t total = call->n_prompt_tok + n;
    buf_printf(out, "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu}",
               (unsigned long long)call->n_prompt_tok, (unsigned long long)n, (unsigned long long)total);
}

/* --- log probabilities --------------------------------------------------------------------------- */

/* A token's bytes as JSON text; what is no UTF-8 in them is replaced. */
static void put_token_text(const struct api *a, int32_t token, struct buf *out)
{
    struct tok_stream s;
    struct buf text = {0};
    tok_stream_init(&s, a->c.tok, true, true);
    if (tok_stream_put(&s, token, &text, NULL) == OK && tok_stream_end(&s, &text, NULL) == OK)
        text_put_json(out, text.data, text.len);
    else
        buf_puts(out, "\"\"");
    buf_free(&text);
}

static void put_bytes(const struct api *a, int32_t token, struct buf *out)
{
    struct buf piece = {0};
    if (tok_piece(a->c.tok, token, true, &piece, NULL) != OK)
        buf_clear(&piece);
    buf_puts(out, "[");
    for (size_t i = 0; i < piece.len; i++)
        buf_printf(out, i ? ",%u" : "%u", piece.data[i]);
    buf_puts(out, "]");
    buf_free(&piece);
}

static void put_number(struct buf *out, float logprob)
{
    buf_printf(out, "%.7g", isfinite(logprob) ? (double)logprob : -9999.0);
}

static void put_chat_token(const struct api *a, int32_t token, float logprob, struct buf *out)
{
    buf_puts(out, "{\"token\":");
    put_token_text(a, token, out);
    buf_puts(out, ",\"logprob\":");
    put_number(out, logprob);
    buf_puts(out, ",\"bytes\":");
    put_bytes(a, token, out);
}

static void put_chat_logprobs(const struct api *a, const struct api_logprob *l, size_t n, struct buf *out)
{
    buf_puts(out, "{\"content\":[");
    for (size_t i = 0; i < n; i++) {
        buf_puts(out, i ? "," : "");
        put_chat_token(a, l[i].token, l[i].logprob, out);
        buf_puts(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < l[i].n_top; k++) {
            buf_puts(out, k ? "," : "");
            put_chat_token(a, l[i].top[k].token, l[i].top[k].logprob, out);
            buf_puts(out, "}");
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "],\"refusal\":null}");
}

/* The likeliest tokens of one place, the one that was taken among them. */
static void put_old_top(const struct api *a, const struct api_logprob *l, struct buf *out)
{
    bool among = false;
    buf_puts(out, "{");
    for (uint32_t k = 0; k < l->n_top; k++) {
        buf_puts(out, k ? "," : "");
        put_token_text(a, l->top[k].token, out);
        buf_puts(out, ":");
        put_number(out, l->top[k].logprob);
        among |= l->top[k].token == l->token;
    }
    if (!among) {
        buf_puts(out, l->n_top ? "," : "");
        put_token_text(a, l->token, out);
        buf_puts(out, ":");
        put_number(out, l->logprob);
    }
    buf_puts(out, "}");
}

/* Characters that begin in bytes [first, end) of the text. */
static size_t n_chars(const struct buf *text, size_t first, size_t end)
{
    size_t n = 0;
    for (size_t i = first; i < end && i < text->len; i++)
        n += (text->data[i] & 0xc0) != 0x80;
    return n;
}

static void put_old_logprobs(const struct api_choice *ch, const struct api_logprob *l, size_t n, struct buf *out)
{
    const struct api *a = ch->call->a;
    buf_puts(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        buf_puts(out, i ? "," : "");
        put_token_text(a, l[i].token, out);
    }
    buf_puts(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        buf_puts(out, i ? "," : "");
        put_number(out, l[i].logprob);
    }
    buf_puts(out, "],\"top_logprobs\":");
    if (ch->call->q.sampling.n_top == 0)
        buf_puts(out, "null");
    for (size_t i = 0; ch->call->q.sampling.n_top && i < n; i++) {
        buf_puts(out, i ? "," : "[");
        put_old_top(a, &l[i], out);
    }
    if (ch->call->q.sampling.n_top)
        buf_puts(out, n ? "]" : "[]");
    buf_puts(out, ",\"text_offset\":[");
    for (size_t i = 0, at = 0, chars = 0; i < n; i++) {
        chars += n_chars(&ch->text, at, l[i].begin);
        at = l[i].begin;
        buf_printf(out, i ? ",%zu" : "%zu", chars);
    }
    buf_puts(out, "]}");
}

/* Of the tokens whose text begins before `end`, or of all that are left when the text goes no further; NULL when the
 * request did not ask. */
static void put_logprobs(struct api_choice *ch, size_t end, bool last, struct buf *out)
{
    size_t first = ch->n_logprobs_sent, n = first;
    if (!ch->call->q.logprobs) {
        buf_puts(out, "null");
        return;
    }
    while (n < ch->n_logprobs && (ch->logprob[n].begin < end || (last && !ch->cut && ch->logprob[n].begin == end)))
        n++;
    ch->n_logprobs_sent = n;
    const struct api_logprob *l = ch->logprob ? ch->logprob + first : NULL;
    if (ch->call->q.chat)
        put_chat_logprobs(ch->call->a, l, n - first, out);
    else
        put_old_logprobs(ch, l, n - first, out);
}

/* --- whole answers ------------------------------------------------------------------------------- */

static void put_choice(struct api_choice *ch, struct buf *out)
{
    bool chat = ch->call->q.chat;
    buf_printf(out, "{\"index\":%u,%s", ch->index,
               chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    text_put_json(out, ch->text.data, ch->text.len);
    buf_puts(out, chat ? ",\"refusal\":null},\"logprobs\":" : ",\"logprobs\":");
    put_logprobs(ch, ch->text.len, true, out);
    buf_printf(out, ",\"finish_reason\":\"%s\"}", ch->finish);
}

void api_put_answer(const struct api_call *call, struct buf *out)
{
    put_head(call, call->q.chat ? "chat.completion" : "text_completion", out);
    for (uint32_t i = 0; i < call->n_choices; i++) {
        buf_puts(out, i ? "," : "");
        put_choice(&call->choice[i], out);
    }
    buf_puts(out, "],");
    put_usage(call, out);
    buf_puts(out, "}");
}

/* --- streams ------------------------------------------------------------------------------------- */

static void begin_event(const struct api_call *call, struct buf *out)
{
    buf_puts(out, "data: ");
    put_head(call, call->q.chat ? "chat.completion.chunk" : "text_completion", out);
}

static void end_event(const struct api_call *call, struct buf *out)
{
    buf_puts(out, call->q.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

void api_put_role(const struct api_choice *ch, struct buf *out)
{
    begin_event(ch->call, out);
    buf_printf(out,
               "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,"
               "\"finish_reason\":null}",
               ch->index);
    end_event(ch->call, out);
}

static void put_finish(struct buf *out, const char *finish)
{
    if (finish)
        buf_printf(out, ",\"finish_reason\":\"%s\"}", finish);
    else
        buf_puts(out, ",\"finish_reason\":null}");
}

/* The text of an event that is not the last one, or what is left before the last one. */
static void put_text(struct api_choice *ch, size_t len, bool last, const char *finish, struct buf *out)
{
    bool chat = ch->call->q.chat;
    begin_event(ch->call, out);
    buf_printf(out, "{\"index\":%u,%s", ch->index, chat ? "\"delta\":{\"content\":" : "\"text\":");
    text_put_json(out, len ? ch->text.data + ch->n_sent : NULL, len);
    buf_puts(out, chat ? "},\"logprobs\":" : ",\"logprobs\":");
    put_logprobs(ch, ch->n_sent + len, last, out);
    put_finish(out, finish);
    end_event(ch->call, out);
}

void api_put_chunk(struct api_choice *ch, size_t len, const char *finish, struct buf *out)
{
    if (!finish || !ch->call->q.chat) {
        put_text(ch, len, finish != NULL, finish, out);
        return;
    }
    if (len || ch->n_logprobs > ch->n_logprobs_sent)
        put_text(ch, len, true, NULL, out);
    begin_event(ch->call, out);
    buf_printf(out, "{\"index\":%u,\"delta\":{},\"logprobs\":null", ch->index);
    put_finish(out, finish);
    end_event(ch->call, out);
}

void api_put_usage(const struct api_call *call, struct buf *out)
{
    begin_event(call, out);
    buf_puts(out, "],");
    put_usage(call, out);
    buf_puts(out, "}\n\n");
}
