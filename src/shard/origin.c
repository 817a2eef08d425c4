/* SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "http/access.h"
#include "http/host.h"
#include "shard/origin_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static void token_digest(const char *text, size_t len, struct key_public *out)
{
    digest_of(text, len, out->b);
}

/* Compared in constant time, as digests. */
static bool may_pass(const struct origin *o, const struct http_request *r)
{
    const char *given = http_header(r, "authorization");
    struct key_public digest;
    if (!o->has_token || strcmp(http_path(r), "/health") == 0)
        return true;
    if (!given || strncasecmp(given, "Bearer ", 7) != 0)
        return false;
    given += 7;
    while (*given == ' ')
        given++;
    token_digest(given, strlen(given), &digest);
    return key_equal(&digest, &o->token);
}

static void on_request(void *ctx, struct http_request *r)
{
    struct origin *o = ctx;
    struct origin_exchange *x = calloc(1, sizeof *x);
    atomic_fetch_add(&o->n_requests, 1);
    atomic_fetch_add(&o->n_open, 1);
    http_set_user(r, x);
    if (!x) {
        origin_say(r, 500, NULL, "out of memory");
        return;
    }
    *x = (struct origin_exchange){.o = o, .r = r};
    if (!http_host_allowed(r, o->addr, o->allow_host)) {
        origin_say(r, 403, NULL,
                   "this origin serves its own machine and is not asked as \"%.100s\": use localhost, or its "
                   "--allow-host option",
                   http_header(r, "host"));
        return;
    }
    if (!may_pass(o, r)) {
        origin_say(r, 401, "WWW-Authenticate: Bearer\r\n", "a token is needed: send \"Authorization: Bearer TOKEN\"%s",
                   http_header(r, "authorization") ? ", and this was another" : "");
        return;
    }
    origin_scan(o);
    origin_serve(x);
}

static void log_request(const struct origin *o, const struct http_request *r, unsigned status,
                        const struct origin_exchange *x)
{
    struct buf more = {0};
    if (o->log_fd < 0)
        return;
    buf_printf(&more, ",\"body_bytes\":%" PRIu64, x ? x->sent_bytes : 0);
    if (x && x->stage)
        buf_printf(&more, ",\"layers\":\"%u:%u\"", x->stage->slice.first, x->stage->slice.end);
    http_access_write(o->log_fd, &(struct http_access){.peer = http_peer(r),
                                                       .method = http_method(r),
                                                       .path = http_path(r),
                                                       .status = status,
                                                       .ns = clock_now_ns() - http_received_ns(r),
                                                       .more = &more});
    buf_free(&more);
}

static void on_gone(void *ctx, struct http_request *r, bool done)
{
    struct origin *o = ctx;
    struct origin_exchange *x = http_user(r);
    const unsigned status = done ? http_status(r) : 499;
    atomic_fetch_sub(&o->n_open, 1);
    origin_count_status(o, status);
    log_request(o, r, status, x);
    if (!x)
        return;
    if (x->stage)
        origin_stage_drop(x->model, x->stage);
    origin_drop(x->model);
    free(x);
}

static void on_refused(void *ctx, struct http_refusal *x)
{
    struct origin *o = ctx;
    atomic_fetch_add(&o->n_requests, 1);
    origin_count_status(o, x->status);
    x->type = "application/json";
    origin_put_error(&x->body, x->text);
    http_access_write(o->log_fd, &(struct http_access){.peer = x->peer,
                                                       .method = x->r ? http_method(x->r) : "",
                                                       .path = x->r ? http_path(x->r) : "",
                                                       .status = x->status,
                                                       .ns = x->took_ns});
}

static void on_wake(void *ctx)
{
    origin_recount(ctx);
}

static enum err_code keep_names(struct origin *o, struct err *e)
{
    o->first_names = calloc(o->n_models + 1, sizeof *o->first_names);
    for (size_t i = 0; o->first_names && i < o->n_models; i++, o->n_first_names++) {
        o->first_names[i] = strdup(o->models[i]->files[0].name);
        if (!o->first_names[i])
            break;
    }
    return o->n_first_names == o->n_models && o->first_names ? OK : err_set(e, ERR_NOMEM, "out of memory");
}

static void origin_free(struct origin *o)
{
    origin_index_stop(o);
    origin_free_list(o);
    pthread_cond_destroy(&o->cond);
    pthread_mutex_destroy(&o->mutex);
    for (size_t i = 0; i < o->n_first_names; i++)
        free(o->first_names[i]);
    free(o->first_names);
    if (o->log_fd >= 0)
        close(o->log_fd);
    free(o->allow_host);
    free(o->addr);
    free(o->dir);
    free(o);
}

static enum err_code check_dir(const char *dir, struct err *e)
{
    struct stat st;
    if (stat(dir, &st) != 0)
        return err_set_os(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "cannot serve the folder %.200s", dir);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ERR_ARG, "%.200s is no folder: name the one that the models are in", dir);
    return OK;
}

enum err_code origin_start(const struct origin_config *c, struct origin **out, struct err *e)
{
    enum err_code rc = check_dir(c->dir, e);
    if (rc == OK && c->token && (!c->token[0] || !text_printable(c->token, strlen(c->token))))
        rc = err_set(e, ERR_ARG, "the token is empty or has characters in it that no token has");
    if (rc == OK)
        rc = key_library_init(e);
    if (rc != OK)
        return rc;
    struct origin *o = calloc(1, sizeof *o);
    if (!o)
        return err_set(e, ERR_NOMEM, "out of memory");
    pthread_mutex_init(&o->mutex, NULL);
    thread_cond_init(&o->cond);
    o->started = time(NULL);
    o->dir = strdup(c->dir);
    o->addr = strdup(c->addr);
    o->allow_host = strdup(c->allow_host ? c->allow_host : "");
    o->has_token = c->token != NULL;
    if (o->has_token)
        token_digest(c->token, strlen(c->token), &o->token);
    o->log_fd = -1;
    rc = o->dir && o->addr && o->allow_host ? OK : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == OK && c->access_log)
        rc = http_access_open(c->access_log, &o->log_fd, e);
    if (rc == OK)
        rc = origin_index_start(o, e);
    if (rc == OK) {
        origin_scan(o); /* before the loop: its models are known from the first request on */
        rc = keep_names(o, e);
    }
    const struct http_config http = {.addr = c->addr,
                                     .max_connections = c->max_connections,
                                     .max_body = 4096,
                                     .ctx = o,
                                     .on_request = on_request,
                                     .on_gone = on_gone,
                                     .on_refused = on_refused,
                                     .on_wake = on_wake};
    struct http_server *server;
    if (rc == OK)
        rc = http_start(&http, &server, e);
    if (rc != OK) {
        origin_free(o);
        return rc;
    }
    o->http = server;
    *out = o;
    return OK;
}

void origin_stop(struct origin *o)
{
    if (!o)
        return;
    http_stop(o->http);
    origin_free(o);
}

uint16_t origin_port(const struct origin *o)
{
    return http_port(o->http);
}

void origin_count(const struct origin *o, struct origin_counts *out)
{
    *out = (struct origin_counts){.n_requests = atomic_load(&o->n_requests),
                                  .body_bytes = atomic_load(&o->body_bytes),
                                  .n_open = atomic_load(&o->n_open),
                                  .n_models = atomic_load(&o->n_listed),
                                  .n_indexed = atomic_load(&o->n_indexed)};
}

const char *origin_name(const struct origin *o, size_t i)
{
    return i < o->n_first_names ? o->first_names[i] : NULL;
}
