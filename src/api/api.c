/* SPDX-License-Identifier: MIT */
#include "api/impl.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "http/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define DEFAULT_MAX_REQUESTS 256u
#define JSON                 "application/json"

void api_random(void *out, size_t n)
{
    for (uint8_t *p = out; n > 0;) {
        ssize_t k = getrandom(p, n, 0);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
}

/* --- answers ------------------------------------------------------------------------------------- */

static void put_headers(const struct api_exchange *x, const char *headers, struct buf *out)
{
    buf_printf(out, "X-Request-Id: %s\r\n", x->id);
    buf_puts(out, headers ? headers : "");
    api_put_cors(x->a, x->r, false, out);
}

void api_send(struct api_exchange *x, unsigned status, const char *type, const char *headers, const void *body,
              size_t len)
{
    struct buf lines = {0};
    put_headers(x, headers, &lines);
    struct http_reply reply = {.status = status, .type = type, .headers = buf_str(&lines)};
    http_respond(x->r, &reply, body, len);
    buf_free(&lines);
}

void api_send_json(struct api_exchange *x, struct buf *body)
{
    struct api_error why;
    if (!body->failed) {
        api_send(x, 200, JSON, NULL, body->data, body->len);
        return;
    }
    api_fail(&why, 500, "out_of_memory", NULL, "out of memory for the answer");
    api_send_error(x, &why);
}

static void put_error(const struct api_error *why, struct buf *out)
{
    buf_puts(out, "{\"error\":");
    api_error_put(out, why);
    buf_puts(out, "}");
}

static void send_error(struct api_exchange *x, const struct api_error *why, const char *headers)
{
    struct buf out = {0};
    put_error(why, &out);
    api_send(x, why->status, JSON, headers, out.data, out.failed ? 0 : out.len);
    buf_free(&out);
}

void api_send_error(struct api_exchange *x, const struct api_error *why)
{
    char later[48];
    snprintf(later, sizeof later, "Retry-After: %u\r\n", why->retry_s ? why->retry_s : 1);
    bool again = why->status == 429 || why->status == 503;
    send_error(x, why, again ? later : why->status == 401 ? "WWW-Authenticate: Bearer\r\n" : NULL);
}

void api_send_begin(struct api_exchange *x)
{
    struct buf lines = {0};
    put_headers(x, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n", &lines);
    struct http_reply reply = {.status = 200, .type = "text/event-stream; charset=utf-8", .headers = buf_str(&lines)};
    http_begin(x->r, &reply);
    buf_free(&lines);
}

/* --- routes -------------------------------------------------------------------------------------- */

#define PAGE_POLICY                                                                                                    \
    "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "             \
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"        \
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-cache\r\n"

static void on_page(struct api_exchange *x)
{
    api_send(x, 200, "text/html; charset=utf-8", PAGE_POLICY, api_page_html, api_page_html_len);
}

static void on_favicon(struct api_exchange *x)
{
    api_send(x, 200, "image/svg+xml", "Cache-Control: max-age=86400\r\n", api_favicon_svg, api_favicon_svg_len);
}

static void on_metrics(struct api_exchange *x)
{
    struct buf out = {0};
    api_put_metrics(x->a, &out);
    if (out.failed)
        api_send_json(x, &out);
    else
        api_send(x, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, out.data, out.len);
    buf_free(&out);
}

static void on_ring(struct api_exchange *x)
{
    struct buf out = {0};
    api_put_ring(x->a, &out);
    api_send_json(x, &out);
    buf_free(&out);
}

static void on_models(struct api_exchange *x)
{
    struct buf out = {0};
    buf_puts(&out, "{\"object\":\"list\",\"data\":[");
    api_put_model(x->a, &out);
    buf_puts(&out, "]}");
    api_send_json(x, &out);
    buf_free(&out);
}

static void on_model(struct api_exchange *x)
{
    const char *name = http_path(x->r) + strlen("/v1/models/");
    struct buf out = {0};
    struct api_error why;
    if (*name && api_is_model(&x->a->lim, name)) {
        api_put_model(x->a, &out);
        api_send_json(x, &out);
        buf_free(&out);
        return;
    }
    api_fail(&why, 404, "model_not_found", "model", "the model \"%.200s\" is not here; this ring serves \"%s\"", name,
             x->a->model_name);
    api_send_error(x, &why);
}

static void on_chat(struct api_exchange *x)
{
    api_generate(x, true);
}

static void on_completions(struct api_exchange *x)
{
    api_generate(x, false);
}

static const struct route {
    const char *path;
    bool is_post, is_open; /* open: without a key */
    void (*serve)(struct api_exchange *x);
} routes[API_OTHER] = {
    [API_PAGE] = {"/", false, true, on_page},
    [API_FAVICON] = {"/favicon.ico", false, true, on_favicon},
    [API_HEALTH] = {"/health", false, true, api_put_health},
    [API_METRICS] = {"/metrics", false, false, on_metrics},
    [API_RING] = {"/v1/ring", false, false, on_ring},
    [API_MODELS] = {"/v1/models", false, false, on_models},
    [API_MODEL] = {"/v1/models/", false, false, on_model},
    [API_CHAT] = {"/v1/chat/completions", true, false, on_chat},
    [API_COMPLETIONS] = {"/v1/completions", true, false, on_completions},
};

static enum api_route find_route(const char *path)
{
    for (int i = 0; i < API_OTHER; i++) {
        if (strcmp(path, routes[i].path) == 0 ||
            (i == API_MODEL && strncmp(path, routes[i].path, strlen(routes[i].path)) == 0))
            return (enum api_route)i;
    }
    return strcmp(path, "/index.html") == 0 ? API_PAGE : API_OTHER;
}

static void on_options(struct api_exchange *x, const char *allow)
{
    struct buf lines = {0};
    buf_printf(&lines, "%sX-Request-Id: %s\r\n", allow, x->id);
    api_put_cors(x->a, x->r, true, &lines);
    struct http_reply reply = {.status = 204, .headers = buf_str(&lines)};
    http_respond(x->r, &reply, NULL, 0);
    buf_free(&lines);
}

/* Whether the request may be served; the answer why not is sent here. */
static bool may_pass(struct api_exchange *x, const struct route *route, bool post)
{
    struct api *a = x->a;
    struct api_error why;
    const char *authorization = http_header(x->r, "authorization");
    if (!http_host_allowed(x->r, a->c.addr, a->c.allow_host))
        api_fail(&why, 403, "host_not_allowed", NULL,
                 "this node serves its own machine and is not asked as \"%.100s\": use localhost, or its --allow-host "
                 "option",
                 http_header(x->r, "host"));
    else if (a->keys && !(route && route->is_open) && !api_keys_match(a->keys, authorization))
        api_fail(&why, 401, "invalid_api_key", NULL,
                 authorization ? "the API key is not one of this node's"
                               : "an API key is needed: send \"Authorization: Bearer KEY\"");
    else if (post && api_is_foreign_post(a, x->r))
        api_fail(&why, 403, "origin_not_allowed", NULL,
                 "pages of %.100s may not use this node; its --cors option can allow it", http_header(x->r, "origin"));
    else
        return true;
    api_send_error(x, &why);
    return false;
}

static void serve(struct api_exchange *x)
{
    const char *method = http_method(x->r), *path = http_path(x->r);
    const struct route *route = x->route < API_OTHER ? &routes[x->route] : NULL;
    const char *allow = route && route->is_post ? "Allow: POST, OPTIONS\r\n" : "Allow: GET, HEAD, OPTIONS\r\n";
    bool post = strcmp(method, "POST") == 0, get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    struct api_error why;
    if (strcmp(method, "OPTIONS") == 0 && route && http_host_allowed(x->r, x->a->c.addr, x->a->c.allow_host)) {
        on_options(x, allow);
        return;
    }
    if (!may_pass(x, route, post))
        return;
    if (!route) {
        api_fail(&why, 404, "not_found", NULL, "there is nothing at %.200s; see /v1/models, /v1/chat/completions",
                 path);
        send_error(x, &why, NULL);
    } else if (route->is_post ? !post : !get) {
        api_fail(&why, 405, "method_not_allowed", NULL, "%.200s takes %s, not %.20s", path,
                 route->is_post ? "POST" : "GET", method);
        send_error(x, &why, allow);
    } else {
        route->serve(x);
    }
}

/* --- the server's callbacks ---------------------------------------------------------------------- */

static void make_id(enum api_route route, char id[API_ID_SIZE])
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyz234567";
    uint8_t bytes[24];
    size_t n = (size_t)snprintf(id, API_ID_SIZE, "%s",
                                route == API_CHAT          ? "chatcmpl-"
                                : route == API_COMPLETIONS ? "cmpl-"
                                                           : "req-");
    api_random(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        id[n++] = digits[bytes[i] % 32];
    id[n] = 0;
}

static void on_request(void *ctx, struct http_request *r)
{
    struct api *a = ctx;
    struct api_exchange *x = calloc(1, sizeof *x);
    if (!x) {
        struct http_reply reply = {.status = 503};
        http_respond(r, &reply, NULL, 0);
        return;
    }
    *x = (struct api_exchange){.a = a, .r = r, .route = find_route(http_path(r))};
    make_id(x->route, x->id);
    http_set_user(r, x);
    serve(x);
}

static void on_gone(void *ctx, struct http_request *r, bool done)
{
    struct api *a = ctx;
    struct api_exchange *x = http_user(r);
    if (!x)
        return;
    uint64_t ns = clock_now_ns() - http_received_ns(r);
    unsigned status = done ? http_status(r) : 499;
    struct api_call *call = x->call;
    api_count_http(a, x->route, status);
    if (call)
        api_observe(&a->metrics.duration, ns);
    const struct http_access line = {
        .peer = http_peer(r), .method = http_method(r), .path = http_path(r), .id = x->id, .status = status, .ns = ns};
    api_access_write(a, line, call);
    free(x);
    if (call)
        api_detach(call, done);
}

static const char *refusal_code(unsigned status)
{
    static const struct {
        unsigned status;
        const char *code;
    } codes[] = {{400, "invalid_http"},     {408, "request_timeout"},      {411, "length_required"},
                 {413, "body_too_large"},   {431, "headers_too_large"},    {500, "out_of_memory"},
                 {501, "method_not_known"}, {503, "too_many_connections"}, {505, "http_version"}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].status == status)
            return codes[i].code;
    return NULL;
}

/* What the server did not even hand over counts and looks like all the rest. */
static void on_refused(void *ctx, struct http_refusal *f)
{
    struct api *a = ctx;
    const enum api_route route = f->r ? find_route(http_path(f->r)) : API_OTHER;
    struct api_error why;
    char id[API_ID_SIZE];
    make_id(route, id);
    api_fail(&why, f->status, refusal_code(f->status), NULL, "%s", f->text);
    f->type = JSON;
    put_error(&why, &f->body);
    buf_printf(&f->headers, "X-Request-Id: %s\r\n%s", id, f->status == 503 ? "Retry-After: 1\r\n" : "");
    api_put_cors(a, f->r, false, &f->headers);
    api_count_http(a, route, f->status);
    const struct http_access line = {.peer = f->peer,
                                     .method = f->r ? http_method(f->r) : "",
                                     .path = f->r ? http_path(f->r) : "",
                                     .id = id,
                                     .status = f->status,
                                     .ns = f->took_ns};
    api_access_write(a, line, NULL);
}

static void on_wake(void *ctx)
{
    struct api *a = ctx;
    uint64_t now = clock_now_ns();
    api_take(a);
    if (now < a->next_tick_ns)
        return;
    a->next_tick_ns = now + CLOCK_NS_PER_S;
    api_tick(a, now);
}

/* --- life ---------------------------------------------------------------------------------------- */

static enum err_code find_eog(struct api *a, struct err *e)
{
    uint32_t n_vocab = tok_n_vocab(a->c.tok);
    a->eog = malloc(((size_t)n_vocab + 1) * sizeof *a->eog);
    if (!a->eog)
        return err_set(e, ERR_NOMEM, "out of memory for the tokens that end a text");
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (tok_is_eog(a->c.tok, (int32_t)i))
            a->eog[a->n_eog++] = (int32_t)i;
    }
    return OK;
}

static void name_model(struct api *a)
{
    const struct manifest *m = a->c.m;
    digest_hex(m->model_id, a->model_id);
    text_clean(m->model_name, strlen(m->model_name), a->model_name, sizeof a->model_name);
    if (!a->model_name[0])
        snprintf(a->model_name, sizeof a->model_name, "%s", a->model_id);
    a->lim = (struct api_limits){
        .n_vocab = m->n_vocab, .n_ctx = m->n_ctx, .model_name = a->model_name, .model_id = a->model_id};
}

static void api_free(struct api *a)
{
    api_keys_close(a->keys);
    if (a->log_fd >= 0)
        close(a->log_fd);
    free(a->eog);
    pthread_cond_destroy(&a->cond);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}

static bool is_origin(const char *s)
{
    return strcmp(s, "*") == 0 ||
           (text_printable(s, strlen(s)) && strstr(s, "://") && !strchr(s, ' ') && !strchr(s, ','));
}

static void set_server(struct api *a, struct http_server *server)
{
    pthread_mutex_lock(&a->mutex);
    a->http = server;
    pthread_mutex_unlock(&a->mutex);
}

enum err_code api_start(const struct api_config *config, struct api **out, struct err *e)
{
    enum err_code rc = OK;
    if (config->cors_origin && !is_origin(config->cors_origin))
        return err_set(e, ERR_ARG, "the origin \"%s\" must be * or like https://example.org", config->cors_origin);
    struct api *a = calloc(1, sizeof *a);
    if (!a)
        return err_set(e, ERR_NOMEM, "out of memory for the API");
    a->c = *config;
    a->c.max_requests = config->max_requests ? config->max_requests : DEFAULT_MAX_REQUESTS;
    a->log_fd = -1;
    a->started = time(NULL);
    pthread_mutex_init(&a->mutex, NULL);
    thread_cond_init(&a->cond);
    name_model(a);
    rc = find_eog(a, e);
    if (rc == OK && config->keys_file)
        rc = api_keys_open(config->keys_file, &a->keys, e);
    if (rc == OK && config->access_log)
        rc = http_access_open(config->access_log, &a->log_fd, e);
    struct http_config http = {.addr = config->addr,
                               .max_connections = config->max_connections,
                               .head_ms = config->head_ms,
                               .ctx = a,
                               .on_request = on_request,
                               .on_gone = on_gone,
                               .on_refused = on_refused,
                               .on_wake = on_wake};
    struct http_server *server = NULL;
    if (rc == OK)
        rc = http_start(&http, &server, e);
    if (rc != OK) {
        api_free(a);
        return rc;
    }
    set_server(a, server);
    *out = a;
    return OK;
}

void api_stop(struct api *a)
{
    if (!a)
        return;
    struct http_server *server = a->http;
    set_server(a, NULL); /* the ring wakes nobody any more */
    http_stop(server);
    api_close_calls(a);
    if (a->calls) { /* freeing what the ring may still write to would be worse than keeping it */
        log_error("api", "the ring has not ended %u texts", a->n_live);
        return;
    }
    api_free(a);
}

bool api_drain(struct api *a, uint64_t deadline_ns)
{
    atomic_store(&a->draining, true);
    pthread_mutex_lock(&a->mutex);
    while (a->n_attached > 0 && clock_now_ns() < deadline_ns)
        thread_cond_wait(&a->cond, &a->mutex, deadline_ns);
    bool none = a->n_attached == 0;
    pthread_mutex_unlock(&a->mutex);
    return none;
}

uint16_t api_port(const struct api *a)
{
    return http_port(a->http);
}
