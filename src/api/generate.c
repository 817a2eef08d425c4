/* SPDX-License-Identifier: MIT
 *
 * Requests for text. The loop thread makes the prompt, hands the choices to the node and goes on; the ring's threads
 * leave tokens with the choices (on_token, on_end) and wake the loop, which turns them into text, looks for stop
 * strings and writes. When the client goes, what is not done is cancelled at once.
 */
#include "api/impl.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RETRY_S      60u    /* what a client is told to wait at most when all is full */
#define STOP_WAIT_MS     10000u /* for the ring to end what was cancelled */
#define MIN_PROMPT_BYTES (1u << 20)

/* --- from the ring's threads ---------------------------------------------------------------------- */

/* With the mutex. The loop is woken unless it knows already that there is something; it may not be there yet, or not
 * any more. */
static void mark_ready(struct api_choice *ch)
{
    struct api *a = ch->call->a;
    bool first = a->ready == NULL;
    if (ch->is_ready)
        return;
    ch->is_ready = true;
    ch->next_ready = a->ready;
    a->ready = ch;
    if (first && a->http)
        http_wake(a->http);
}

static void on_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct api_choice *ch = ctx;
    struct api *a = ch->call->a;
    (void)id;
    pthread_mutex_lock(&a->mutex);
    if (ch->n_in == ch->cap_in) {
        size_t cap = ch->cap_in ? 2 * ch->cap_in : 4;
        struct batch_result *in = realloc(ch->in, cap * sizeof *in);
        if (in) {
            ch->in = in;
            ch->cap_in = cap;
        }
    }
    if (ch->n_in < ch->cap_in)
        ch->in[ch->n_in++] = *r;
    else
        ch->lost_token = true;
    mark_ready(ch);
    pthread_mutex_unlock(&a->mutex);
}

static void on_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct api_choice *ch = ctx;
    struct api *a = ch->call->a;
    (void)id;
    pthread_mutex_lock(&a->mutex);
    ch->ended = true;
    ch->reason = reason;
    ch->code = code;
    snprintf(ch->why, sizeof ch->why, "%s", text ? text : "");
    mark_ready(ch);
    pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->mutex);
}

/* --- calls --------------------------------------------------------------------------------------- */

static void free_call(struct api_call *call)
{
    struct api *a = call->a;
    if (call->prev)
        call->prev->next = call->next;
    else
        a->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    for (uint32_t i = 0; i < call->n_choices; i++) {
        free(call->choice[i].in);
        free(call->choice[i].logprob);
        buf_free(&call->choice[i].text);
    }
    free(call->choice);
    api_request_fini(&call->q);
    free(call);
}

static void free_if_over(struct api_call *call)
{
    if (!call->x && call->n_live == 0)
        free_call(call);
}

/* The ring need not go on with it. */
static void cancel(struct api_choice *ch)
{
    struct api *a = ch->call->a;
    pthread_mutex_lock(&a->mutex);
    bool ended = ch->ended;
    pthread_mutex_unlock(&a->mutex);
    if (!ended && ch->id != 0 && node_cancel(a->c.node, ch->id))
        a->metrics.cancels++;
}

static void finish_choice(struct api_choice *ch, const char *name, enum api_finish kind)
{
    struct api_call *call = ch->call;
    ch->done = true;
    ch->finish = name;
    call->n_done++;
    call->a->metrics.choices[call->q.chat][kind]++;
}

static void drop_rest(struct api_call *call, const char *name, enum api_finish kind)
{
    for (uint32_t i = 0; i < call->n_choices; i++) {
        struct api_choice *ch = &call->choice[i];
        if (ch->done)
            continue;
        finish_choice(ch, name, kind);
        cancel(ch);
    }
}

/* Answers with an error: as the response, or within the stream, which it ends. */
static void fail_call(struct api_call *call, const struct api_error *why)
{
    struct buf out = {0};
    if (!call->closed && call->x && !call->begun) {
        api_send_error(call->x, why);
    } else if (!call->closed && call->x) {
        buf_puts(&out, "data: {\"error\":");
        api_error_put(&out, why);
        buf_puts(&out, "}\n\n");
        http_write(call->x->r, out.data, out.len);
        http_end(call->x->r);
        buf_free(&out);
    }
    call->closed = true;
    drop_rest(call, "error", API_FINISH_ERROR);
}

/* When a place will be free, about. */
static unsigned retry_s(const struct api *a)
{
    struct node_ring state;
    node_ring_state(a->c.node, &state);
    uint32_t s = state.age_ms == UINT64_MAX ? 1 : (state.counts.retry_ms + 999) / 1000;
    return s < 1 ? 1 : s > MAX_RETRY_S ? MAX_RETRY_S : s;
}

/* What a failure inside the ring is to the client. */
static void explain(const struct api *a, enum err_code code, const char *text, struct api_error *x)
{
    const char *what = text[0] ? text : err_text(code);
    switch (code) {
    case ERR_BUSY:
        api_fail(x, 429, "rate_limit_exceeded", NULL, "the ring is busy: %s", what);
        x->retry_s = retry_s(a);
        break;
    case ERR_LIMIT:
        api_fail(x, 400, "context_length_exceeded", NULL, "%s (the context has %u tokens)", what, a->lim.n_ctx);
        break;
    case ERR_ARG:
    case ERR_RANGE:
        api_fail(x, 400, "invalid_value", NULL, "%s", what);
        break;
    case ERR_CLOSED:
    case ERR_TIMEOUT:
    case ERR_STALE:
    case ERR_CANCELLED:
    case ERR_UNSUPPORTED:
        api_fail(x, 503, "ring_broken", NULL, "the ring could not finish this: %s", what);
        break;
    default:
        api_fail(x, 500, "ring_failed", NULL, "the ring failed: %s: %s", err_text(code), what);
        break;
    }
}

static void count_error(struct api *a, enum err_code code)
{
    size_t i = (size_t)-(int)code;
    if (i < sizeof a->metrics.errors / sizeof *a->metrics.errors)
        a->metrics.errors[i]++;
}

/* --- writing ------------------------------------------------------------------------------------- */

static void fail_memory(struct api_call *call)
{
    struct api_error x;
    api_fail(&x, 500, "out_of_memory", NULL, "out of memory for the answer");
    fail_call(call, &x);
}

/* Whole events, or none and the end of the stream with an error. Frees out. */
static void write_events(struct api_call *call, struct buf *out)
{
    if (out->failed) {
        fail_memory(call);
    } else if (out->len) {
        http_write(call->x->r, out->data, out->len);
        call->last_sent_ns = clock_now_ns();
    }
    buf_free(out);
}

static void begin_stream(struct api_call *call)
{
    struct buf out = {0};
    if (call->begun)
        return;
    call->begun = true;
    api_send_begin(call->x);
    for (uint32_t i = 0; call->q.chat && i < call->n_choices; i++)
        api_put_role(&call->choice[i], &out);
    call->last_sent_ns = clock_now_ns();
    write_events(call, &out);
}

/* Writes what has come since the last event, up to byte `end` of the text; finish: this is the last one. */
static void write_chunk(struct api_choice *ch, size_t end, const char *finish)
{
    struct api_call *call = ch->call;
    struct buf out = {0};
    begin_stream(call);
    if (call->closed)
        return;
    api_put_chunk(ch, end - ch->n_sent, finish, &out);
    ch->n_sent = end;
    write_events(call, &out);
}

/* All choices are done. */
static void end_call(struct api_call *call)
{
    struct buf out = {0};
    if (call->closed || !call->x)
        return;
    if (!call->q.stream) {
        call->closed = true;
        api_put_answer(call, &out);
        api_send_json(call->x, &out);
        buf_free(&out);
        return;
    }
    if (call->q.include_usage)
        api_put_usage(call, &out);
    buf_puts(&out, "data: [DONE]\n\n");
    write_events(call, &out);
    if (!call->closed)
        http_end(call->x->r);
    call->closed = true;
}

static void end_choice(struct api_choice *ch, const char *finish, enum api_finish kind)
{
    struct api_call *call = ch->call;
    finish_choice(ch, finish, kind);
    if (call->closed || !call->x)
        return;
    if (call->q.stream)
        write_chunk(ch, ch->text.len, finish);
    if (call->n_done == call->n_choices)
        end_call(call);
}

/* --- tokens to text ------------------------------------------------------------------------------ */

static bool find_stop(struct api_choice *ch)
{
    const struct api_request *q = &ch->call->q;
    const uint8_t *first = NULL;
    size_t left = ch->text.len - ch->n_sent;
    for (uint32_t i = 0; left > 0 && i < q->n_stop; i++) {
        const uint8_t *from = ch->text.data + ch->n_sent;
        const uint8_t *at = memmem(from, left, q->stop[i].text, q->stop[i].len);
        if (at && (!first || at < first))
            first = at;
    }
    if (!first)
        return false;
    ch->text.len = (size_t)(first - ch->text.data);
    ch->cut = true;
    return true;
}

/* How many bytes at the text's end could be the beginning of a stop string. */
static size_t n_held_back(const struct api_choice *ch)
{
    const struct api_request *q = &ch->call->q;
    size_t most = 0, left = ch->text.len - ch->n_sent;
    for (uint32_t i = 0; i < q->n_stop; i++) {
        size_t n = q->stop[i].len - 1 < left ? q->stop[i].len - 1 : left;
        while (n > most && memcmp(ch->text.data + ch->text.len - n, q->stop[i].text, n) != 0)
            n--;
        most = n > most ? n : most;
    }
    return most;
}

static bool keep_logprob(struct api_choice *ch, const struct batch_result *r, size_t begin)
{
    if (ch->n_logprobs == ch->cap_logprobs) {
        size_t cap = ch->cap_logprobs ? 2 * ch->cap_logprobs : 16;
        struct api_logprob *p = realloc(ch->logprob, cap * sizeof *p);
        if (!p)
            return false;
        ch->logprob = p;
        ch->cap_logprobs = cap;
    }
    struct api_logprob *l = &ch->logprob[ch->n_logprobs++];
    *l = (struct api_logprob){.token = r->token, .logprob = r->logprob, .begin = begin};
    l->n_top = r->n_top < BATCH_MAX_TOP ? r->n_top : BATCH_MAX_TOP;
    memcpy(l->top, r->top, l->n_top * sizeof *l->top);
    return true;
}

static void take_token(struct api_choice *ch, const struct batch_result *r)
{
    struct api_call *call = ch->call;
    size_t begin = ch->text.len;
    ch->n_tok++;
    call->a->metrics.out_tok++;
    if (!call->had_token) {
        call->had_token = true;
        api_observe(&call->a->metrics.first_token, clock_now_ns() - call->received_ns);
    }
    if (tok_stream_put(&ch->stream, r->token, &ch->text, NULL) != OK ||
        (call->q.logprobs && !keep_logprob(ch, r, begin))) {
        fail_memory(call);
        return;
    }
    if (find_stop(ch)) {
        end_choice(ch, "stop", API_FINISH_STOP);
        cancel(ch);
        return;
    }
    if (call->q.stream && call->x && !call->closed) {
        size_t end = ch->text.len - n_held_back(ch);
        begin_stream(call);
        if (end > ch->n_sent)
            write_chunk(ch, end, NULL);
    } else if (!call->q.stream && call->q.n_stop) {
        ch->n_sent = ch->text.len - n_held_back(ch); /* no stop string begins before */
    }
}

/* The ring has ended it. */
static void take_end(struct api_choice *ch)
{
    struct api_call *call = ch->call;
    struct api_error x;
    if (ch->done)
        return;
    if (ch->reason == SCHED_FAILED || ch->reason == SCHED_CANCELLED) {
        enum err_code code = ch->reason == SCHED_FAILED ? ch->code : ERR_CANCELLED;
        count_error(call->a, code);
        explain(call->a, code, ch->reason == SCHED_FAILED ? ch->why : "this node is stopping", &x);
        fail_call(call, &x);
        return;
    }
    if (tok_stream_end(&ch->stream, &ch->text, NULL) != OK) {
        fail_memory(call);
        return;
    }
    bool stopped = find_stop(ch) || ch->reason == SCHED_STOP;
    end_choice(ch, stopped ? "stop" : "length", stopped ? API_FINISH_STOP : API_FINISH_LENGTH);
}

/* Takes what the ring left with one choice. */
static void take_choice(struct api *a, struct api_choice *ch)
{
    pthread_mutex_lock(&a->mutex);
    struct batch_result *in = ch->in;
    size_t n = ch->n_in, cap = ch->cap_in;
    bool ended = ch->ended, lost = ch->lost_token;
    ch->in = NULL;
    ch->n_in = ch->cap_in = 0;
    ch->is_ready = false;
    pthread_mutex_unlock(&a->mutex);
    for (size_t i = 0; i < n && !ch->done; i++)
        take_token(ch, &in[i]);
    if (lost && !ch->done)
        fail_memory(ch->call);
    if (!ended) {
        pthread_mutex_lock(&a->mutex); /* the memory is good for the next ones */
        if (!ch->in) {
            ch->in = in;
            ch->cap_in = cap;
            in = NULL;
        }
        pthread_mutex_unlock(&a->mutex);
        free(in);
        return;
    }
    free(in);
    take_end(ch);
    a->n_live--;
    ch->call->n_live--;
}

void api_take(struct api *a)
{
    pthread_mutex_lock(&a->mutex);
    struct api_choice *list = a->ready, *reversed = NULL;
    a->ready = NULL;
    for (struct api_choice *ch = list, *next; ch; ch = next) { /* the first to come first */
        next = ch->next_ready;
        ch->next_ready = reversed;
        reversed = ch;
    }
    pthread_mutex_unlock(&a->mutex);
    for (struct api_choice *ch = reversed, *next; ch; ch = next) {
        struct api_call *call = ch->call;
        next = ch->next_ready;
        take_choice(a, ch);
        free_if_over(call);
    }
}

void api_tick(struct api *a, uint64_t now_ns)
{
    for (struct api_call *call = a->calls; call; call = call->next) {
        if (!call->q.stream || call->closed || !call->x || now_ns - call->last_sent_ns < API_HEARTBEAT_NS)
            continue;
        begin_stream(call);
        http_write(call->x->r, ": waiting\n\n", 11);
        call->last_sent_ns = now_ns;
    }
}

void api_detach(struct api_call *call, bool done)
{
    struct api *a = call->a;
    if (!done)
        call->closed = true;
    call->x = NULL;
    drop_rest(call, "cancelled", API_FINISH_CANCELLED);
    pthread_mutex_lock(&a->mutex);
    if (--a->n_attached == 0)
        pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->mutex);
    free_if_over(call);
}

/* The loop has ended; the ring still holds pointers to choices until it has ended each of them. */
void api_close_calls(struct api *a)
{
    uint64_t deadline = clock_deadline_ms(STOP_WAIT_MS);
    for (;;) {
        pthread_mutex_lock(&a->mutex);
        while (!a->ready && a->calls && clock_now_ns() < deadline)
            thread_cond_wait(&a->cond, &a->mutex, deadline);
        bool some = a->ready != NULL;
        pthread_mutex_unlock(&a->mutex);
        if (!some)
            return;
        api_take(a);
    }
}

/* --- from a request to choices ------------------------------------------------------------------- */

/* The prompts of one call as ids. */
struct prompts {
    struct tok_ids *ids; /* [n] */
    size_t n, longest, total;
};

static void prompts_free(struct prompts *p)
{
    for (size_t i = 0; p->ids && i < p->n; i++)
        tok_ids_free(&p->ids[i]);
    free(p->ids);
}

/* No token has so many bytes on average: not worth the time to find out. */
static bool far_too_long(const struct api *a, size_t bytes)
{
    size_t max = (size_t)a->lim.n_ctx * 64;
    return bytes > (max < MIN_PROMPT_BYTES ? MIN_PROMPT_BYTES : max);
}

static bool too_long(const struct api *a, const char *param, size_t n, const char *what, struct api_error *x)
{
    return api_fail(x, 400, "context_length_exceeded", param,
                    "the prompt has %zu %s; this ring's context is %u tokens, of which a prompt may take %u", n, what,
                    a->lim.n_ctx, a->lim.n_ctx - 1);
}

static bool encode_chat(const struct api *a, const struct api_request *q, struct tok_ids *out, struct api_error *x)
{
    char today[16] = "";
    time_t now = time(NULL);
    struct tm tm;
    struct err e;
    size_t bytes = 0;
    if (!a->c.chat)
        return api_fail(x, 400, "chat_not_supported", "messages",
                        "this model has no chat format that is known (%s); /v1/completions works",
                        a->c.chat_reason ? a->c.chat_reason : "no template");
    if (q->n_messages >= a->lim.n_ctx) /* each takes a token or more, though it says nothing */
        return too_long(a, "messages", q->n_messages, "messages", x);
    for (size_t i = 0; i < q->n_messages; i++)
        bytes += q->messages[i].len;
    if (far_too_long(a, bytes))
        return too_long(a, "messages", bytes, "bytes", x);
    if (localtime_r(&now, &tm))
        strftime(today, sizeof today, "%Y-%m-%d", &tm);
    struct chat_options options = {.add_generation_prompt = true, .think = q->think, .date = today[0] ? today : NULL};
    enum err_code rc = chat_encode(a->c.chat, a->c.tok, q->messages, q->n_messages, &options, out, &e);
    if (rc == ERR_NOMEM)
        return api_fail(x, 500, "out_of_memory", NULL, "%s", e.msg);
    return rc == OK || api_fail(x, 400, "invalid_value", "messages", "%s", e.msg);
}

static bool encode_prompt(const struct api *a, const struct api_prompt *p, struct tok_ids *out, struct api_error *x)
{
    struct err e;
    if (!p->text) {
        out->id = malloc(p->len * sizeof *out->id);
        if (!out->id)
            return api_fail(x, 500, "out_of_memory", NULL, "out of memory for the prompt");
        memcpy(out->id, p->ids, p->len * sizeof *out->id);
        out->n = out->cap = p->len;
        return true;
    }
    if (far_too_long(a, p->len))
        return too_long(a, "prompt", p->len, "bytes", x);
    enum err_code rc = tok_encode(a->c.tok, p->text, p->len, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, out, &e);
    if (rc == ERR_NOMEM)
        return api_fail(x, 500, "out_of_memory", NULL, "%s", e.msg);
    return rc == OK || api_fail(x, 400, "invalid_value", "prompt", "%s", e.msg);
}

static bool encode(const struct api *a, const struct api_request *q, struct prompts *p, struct api_error *x)
{
    const char *param = q->chat ? "messages" : "prompt";
    p->n = q->chat ? 1 : q->n_prompts;
    p->ids = calloc(p->n, sizeof *p->ids);
    if (!p->ids)
        return api_fail(x, 500, "out_of_memory", NULL, "out of memory for the prompt");
    for (size_t i = 0; i < p->n; i++) {
        struct tok_ids *ids = &p->ids[i];
        if (!(q->chat ? encode_chat(a, q, ids, x) : encode_prompt(a, &q->prompts[i], ids, x)))
            return false;
        if (ids->n == 0)
            return api_fail(x, 400, "invalid_value", param,
                            "\"%s\" is empty, and this model puts no token before a text", param);
        if (ids->n >= a->lim.n_ctx)
            return too_long(a, param, ids->n, "tokens", x);
        p->total += ids->n;
    }
    return true;
}

static bool is_free(struct api *a, uint32_t n, struct api_error *x)
{
    char why[200];
    if (n > a->c.max_requests)
        return api_fail(x, 400, "invalid_value", "n", "%u choices at once are more than this node's %u", n,
                        a->c.max_requests);
    if (atomic_load(&a->draining))
        return api_fail(x, 503, "shutting_down", NULL, "this node is about to stop and takes nothing new");
    if (!api_ring_whole(a, why, sizeof why))
        return api_fail(x, 503, "ring_not_ready", NULL, "the ring is not whole: %s", why);
    if (a->n_live + n > a->c.max_requests)
        return api_fail(x, 429, "rate_limit_exceeded", NULL,
                        "%u texts are being generated through this node; at most %u can be", a->n_live,
                        a->c.max_requests);
    return true;
}

static struct api_call *new_call(struct api_exchange *x, const struct api_request *q, const struct prompts *p)
{
    struct api *a = x->a;
    uint32_t n = (uint32_t)p->n * q->n;
    struct api_call *call = calloc(1, sizeof *call);
    struct api_choice *choice = calloc(n, sizeof *choice);
    if (!call || !choice) {
        free(call);
        free(choice);
        return NULL;
    }
    *call = (struct api_call){.a = a, .x = x, .q = *q, .created = time(NULL), .choice = choice, .n_choices = n};
    call->received_ns = http_received_ns(x->r);
    call->last_sent_ns = clock_now_ns();
    call->n_prompt_tok = p->total;
    for (uint32_t i = 0; i < n; i++) {
        choice[i].call = call;
        choice[i].index = i;
        tok_stream_init(&choice[i].stream, a->c.tok, !q->chat, false);
    }
    call->next = a->calls;
    if (a->calls)
        a->calls->prev = call;
    a->calls = call;
    x->call = call;
    pthread_mutex_lock(&a->mutex);
    a->n_attached++;
    pthread_mutex_unlock(&a->mutex);
    return call;
}

static void submit_all(struct api_call *call, const struct prompts *p)
{
    struct api *a = call->a;
    struct api_error x;
    struct err e;
    uint64_t seed = call->q.sampling.seed;
    if (!call->q.seeded)
        api_random(&seed, sizeof seed);
    for (uint32_t i = 0; i < call->n_choices; i++) {
        const struct tok_ids *ids = &p->ids[i / call->q.n];
        struct api_choice *ch = &call->choice[i];
        uint64_t room = a->lim.n_ctx - ids->n, want = call->q.max_tokens ? call->q.max_tokens : a->c.default_max_tokens;
        struct sched_request r = {.tokens = ids->id,
                                  .n_tokens = (uint32_t)ids->n,
                                  .n_predict = (uint32_t)(want && want < room ? want : room),
                                  .eog = a->eog,
                                  .n_eog = a->n_eog,
                                  .sampling = call->q.sampling,
                                  .ctx = ch,
                                  .on_token = on_token,
                                  .on_end = on_end};
        r.sampling.seed = seed + i % call->q.n;
        enum err_code rc = node_submit(a->c.node, &r, &ch->id, &e);
        if (rc != OK) {
            count_error(a, rc);
            explain(a, rc, e.msg, &x);
            fail_call(call, &x);
            return;
        }
        a->n_live++;
        call->n_live++;
    }
}

void api_generate(struct api_exchange *x, bool chat)
{
    struct api *a = x->a;
    struct api_request q;
    struct api_error why;
    struct prompts p = {0};
    size_t len;
    const void *body = http_body(x->r, &len);
    if (!api_request_parse(body, len, chat, &a->lim, &q, &why)) {
        api_send_error(x, &why);
        return;
    }
    uint32_t n = q.n * (uint32_t)(chat ? 1 : q.n_prompts);
    struct api_call *call = NULL;
    if (is_free(a, n, &why) && encode(a, &q, &p, &why)) {
        api_request_drop_input(&q);
        call = new_call(x, &q, &p);
        if (!call)
            api_fail(&why, 500, "out_of_memory", NULL, "out of memory for %u choices", n);
    }
    if (!call) {
        api_request_fini(&q);
        api_send_error(x, &why);
    } else {
        a->metrics.prompt_tok += p.total;
        submit_all(call, &p);
    }
    prompts_free(&p);
}
