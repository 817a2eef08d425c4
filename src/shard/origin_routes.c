/* SPDX-License-Identifier: MIT
 *
 * From paths to answers: the list of models, files, indexes, stage files, health and metrics.
 */
#include "base/io.h"
#include "base/parse.h"
#include "base/text.h"
#include "shard/origin_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define JSON   "application/json"
#define MODELS "/models/"

static const unsigned statuses[ORIGIN_STATUSES] = {200, 206, 304, 400, 401, 404, 405, 408, 411, 412,
                                                   413, 416, 431, 499, 500, 501, 503, 505, 0}; /* 0: another */

void origin_count_status(struct origin *o, unsigned status)
{
    size_t i = 0;
    while (statuses[i] && statuses[i] != status)
        i++;
    o->statuses[i]++;
}

void origin_put_error(struct buf *out, const char *text)
{
    char clean[400];
    text_clean(text, strlen(text), clean, sizeof clean);
    buf_puts(out, "{\"error\":");
    text_put_json(out, clean, strlen(clean));
    buf_puts(out, "}\n");
}

void origin_say(struct http_request *r, unsigned status, const char *headers, const char *fmt, ...)
{
    char text[400];
    struct buf out = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    origin_put_error(&out, text);
    const struct http_reply reply = {.status = status, .type = JSON, .headers = headers};
    http_respond(r, &reply, out.data, out.failed ? 0 : out.len);
    buf_free(&out);
}

static void send_text(struct origin_exchange *x, const char *type, struct buf *text)
{
    const struct http_reply reply = {.status = 200, .type = type, .headers = "Cache-Control: no-cache\r\n"};
    if (text->failed)
        origin_say(x->r, 500, NULL, "out of memory");
    else
        http_respond(x->r, &reply, text->data, text->len);
    buf_free(text);
}

/* --- the list ------------------------------------------------------------------------------------ */

static void put_string(struct buf *out, const char *s)
{
    text_put_json(out, s, strlen(s));
}

static void put_model(const struct origin_model *m, struct buf *out)
{
    char hex[DIGEST_HEX_SIZE];
    const int state = atomic_load(&m->state);
    buf_puts(out, "{\"name\":");
    put_string(out, m->files[0].name);
    buf_puts(out, ",\"title\":");
    m->title[0] ? put_string(out, m->title) : buf_puts(out, "null");
    buf_printf(out, ",\"bytes\":%" PRIu64 ",\"blocks\":", m->bytes);
    m->has_hparams ? buf_printf(out, "%u", m->h.n_block) : buf_puts(out, "null");
    buf_puts(out, ",\"model_id\":");
    state == ORIGIN_INDEX_READY ? buf_printf(out, "\"%s\"", digest_hex(m->id, hex)) : buf_puts(out, "null");
    buf_printf(out, ",\"index\":\"%s\"",
               state == ORIGIN_INDEX_WAITS                     ? "waiting"
               : state == ORIGIN_INDEX_READY && !m->stage_file ? "ready"
                                                               : "none");
    buf_puts(out, ",\"files\":[");
    for (uint32_t i = 0; i < m->n_files; i++) {
        buf_puts(out, i ? ",{\"name\":" : "{\"name\":");
        put_string(out, m->files[i].name);
        buf_printf(out, ",\"bytes\":%" PRIu64 "}", (uint64_t)m->files[i].seen.st_size);
    }
    buf_puts(out, "]}");
}

static void on_models(struct origin_exchange *x)
{
    struct buf out = {0};
    buf_puts(&out, "{\"models\":[");
    for (size_t i = 0; i < x->o->n_models; i++) {
        buf_puts(&out, i ? ",\n" : "\n");
        put_model(x->o->models[i], &out);
    }
    buf_puts(&out, "\n]}\n");
    send_text(x, JSON, &out);
}

static void on_health(struct origin_exchange *x)
{
    struct buf out = {0};
    buf_puts(&out, "{\"status\":\"ok\"}\n");
    send_text(x, JSON, &out);
}

/* --- metrics ------------------------------------------------------------------------------------- */

static void head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_label(struct buf *out, const char *s)
{
    for (; *s; s++) { /* names have no control characters: is_candidate */
        if (*s == '\\' || *s == '"')
            buf_put_u8(out, '\\');
        buf_put_u8(out, (uint8_t)*s);
    }
}

static void on_metrics(struct origin_exchange *x)
{
    struct origin *o = x->o;
    struct buf out = {0};
    origin_recount(o);
    head(&out, "kvasir_build_info", "gauge", "Version.");
    buf_puts(&out, "kvasir_build_info{version=\"" KVASIR_VERSION "\"} 1\n");
    head(&out, "kvasir_start_time_seconds", "gauge", "When it started, in seconds since 1970.");
    buf_printf(&out, "kvasir_start_time_seconds %lld\n", (long long)o->started);
    head(&out, "kvasir_origin_requests_total", "counter",
         "HTTP requests by status (499: the client went away before the end).");
    for (size_t i = 0; i < ORIGIN_STATUSES; i++) {
        if (!o->statuses[i])
            continue;
        buf_puts(&out, "kvasir_origin_requests_total{status=\"");
        statuses[i] ? buf_printf(&out, "%u", statuses[i]) : buf_puts(&out, "other");
        buf_printf(&out, "\"} %" PRIu64 "\n", o->statuses[i]);
    }
    head(&out, "kvasir_origin_body_bytes_total", "counter",
         "Bytes of files, indexes and stage files that were sent, by model.");
    for (size_t i = 0; i < o->n_models; i++) {
        buf_puts(&out, "kvasir_origin_body_bytes_total{model=\"");
        put_label(&out, o->models[i]->files[0].name);
        buf_printf(&out, "\"} %" PRIu64 "\n", o->models[i]->sent_bytes);
    }
    head(&out, "kvasir_origin_requests_running", "gauge", "Requests being answered, this one included.");
    buf_printf(&out, "kvasir_origin_requests_running %llu\n", (unsigned long long)atomic_load(&o->n_open));
    head(&out, "kvasir_origin_models", "gauge", "Models in the folder.");
    buf_printf(&out, "kvasir_origin_models %u\n", atomic_load(&o->n_listed));
    head(&out, "kvasir_origin_models_indexed", "gauge", "Models whose id is known.");
    buf_printf(&out, "kvasir_origin_models_indexed %u\n", atomic_load(&o->n_indexed));
    send_text(x, "text/plain; version=0.0.4; charset=utf-8", &out);
}

/* --- files --------------------------------------------------------------------------------------- */

static bool read_file(void *ctx, uint64_t offset, void *data, size_t len)
{
    const struct origin_exchange *x = ctx;
    return io_pread_full(gguf_fd(x->model->g, x->file), data, len, offset, NULL) == OK &&
           origin_file_same(x->model, x->file);
}

static bool place_file(void *ctx, uint64_t offset, struct http_place *out)
{
    const struct origin_exchange *x = ctx;
    const uint64_t size = (uint64_t)x->model->files[x->file].seen.st_size;
    *out = (struct http_place){.fd = gguf_fd(x->model->g, x->file), .at = offset, .len = size - offset};
    return origin_file_same(x->model, x->file);
}

static void on_file(struct origin_exchange *x)
{
    const struct origin_file *f = &x->model->files[x->file];
    const struct origin_body b = {.size = (uint64_t)f->seen.st_size,
                                  .type = "application/octet-stream",
                                  .etag = f->etag,
                                  .mtime = f->seen.st_mtim.tv_sec,
                                  .read = read_file,
                                  .place = place_file};
    origin_send(x, &b);
}

/* Is the model's id known? The answer why not is sent here. */
static bool index_there(struct origin_exchange *x)
{
    const char *name = x->model->files[0].name;
    if (x->file != 0) {
        origin_say(x->r, 404, NULL, "%.100s is a part of a split model: ask for %.100s", x->model->files[x->file].name,
                   name);
        return false;
    }
    switch (atomic_load(&x->model->state)) {
    case ORIGIN_INDEX_WAITS:
        origin_say(x->r, 503, "Retry-After: 2\r\n", "the index of %.100s is being computed: try again later", name);
        return false;
    case ORIGIN_INDEX_NONE:
        origin_say(x->r, 404, NULL, "there is no index of %.100s: %.200s", name, x->model->why);
        return false;
    default:
        return true;
    }
}

static bool read_index(void *ctx, uint64_t offset, void *data, size_t len)
{
    const struct origin_exchange *x = ctx;
    memcpy(data, x->model->kvi.data + offset, len);
    return true;
}

static void on_index(struct origin_exchange *x)
{
    const struct origin_model *m = x->model;
    if (!index_there(x))
        return;
    if (m->stage_file) {
        origin_say(x->r, 404, NULL, "%.100s is itself a stage file: it has its digests in it", m->files[0].name);
        return;
    }
    const struct origin_body b = {.size = m->kvi.len, .type = JSON, .etag = m->kvi_etag, .read = read_index};
    origin_send(x, &b);
}

static bool all_same(const struct origin_model *m)
{
    for (uint32_t i = 0; i < m->n_files; i++)
        if (!origin_file_same(m, i))
            return false;
    return true;
}

static bool read_stage(void *ctx, uint64_t offset, void *data, size_t len)
{
    const struct origin_exchange *x = ctx;
    return slice_read(x->model->g, &x->stage->slice, offset, data, len, NULL) == OK && all_same(x->model);
}

static bool place_stage(void *ctx, uint64_t offset, struct http_place *out)
{
    const struct origin_exchange *x = ctx;
    uint32_t file;
    if (!slice_place(&x->stage->slice, offset, &file, &out->at, &out->len))
        return false;
    out->fd = gguf_fd(x->model->g, file);
    return all_same(x->model);
}

static void on_stage(struct origin_exchange *x)
{
    const char *query = http_query(x->r);
    uint32_t first, end;
    struct err e;
    if (!index_there(x))
        return;
    if (strncmp(query, "layers=", 7) != 0 || parse_window(query + 7, &first, &end, &e) != OK) {
        origin_say(x->r, 400, NULL, "which layers? .../stage?layers=0:%u is the whole model", x->model->h.n_block);
        return;
    }
    const enum err_code rc = origin_stage_of(x->model, first, end, &x->stage, &e);
    if (rc != OK) {
        origin_say(x->r, rc == ERR_RANGE || rc == ERR_ARG ? 400 : rc == ERR_NOT_FOUND ? 404 : 500, NULL, "%s", e.msg);
        return;
    }
    const struct origin_body b = {.size = x->stage->slice.size,
                                  .type = "application/octet-stream",
                                  .etag = x->stage->etag,
                                  .read = read_stage,
                                  .place = place_stage};
    origin_send(x, &b);
}

/* path is behind "/models/": NAME, NAME.kvi or NAME/stage. */
static void on_model(struct origin_exchange *x, const char *path)
{
    static const char kvi[] = ".kvi", stage[] = "/stage";
    const size_t n = strlen(path);
    static const struct {
        const char *suffix;
        void (*serve)(struct origin_exchange *x);
    } kinds[] = {{"", on_file}, {kvi, on_index}, {stage, on_stage}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t k = strlen(kinds[i].suffix);
        if (n <= k || strcmp(path + n - k, kinds[i].suffix) != 0)
            continue;
        struct origin_model *m = origin_find(x->o, path, n - k, &x->file);
        if (m) {
            x->model = origin_hold(m);
            kinds[i].serve(x);
            return;
        }
    }
    origin_say(x->r, 404, NULL, "there is no model %.200s here; see /models", path);
}

void origin_serve(struct origin_exchange *x)
{
    const char *path = http_path(x->r), *method = http_method(x->r);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        origin_say(x->r, 405, "Allow: GET, HEAD\r\n", "this server takes GET and HEAD, not %.20s", method);
    else if (strcmp(path, "/health") == 0)
        on_health(x);
    else if (strcmp(path, "/metrics") == 0)
        on_metrics(x);
    else if (strcmp(path, "/models") == 0 || strcmp(path, MODELS) == 0)
        on_models(x);
    else if (strncmp(path, MODELS, sizeof MODELS - 1) == 0)
        on_model(x, path + sizeof MODELS - 1);
    else
        origin_say(x->r, 404, NULL, "there is nothing at %.200s; see /models", path);
}
