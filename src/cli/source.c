/* SPDX-License-Identifier: MIT */
#include "cli/source.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/oai.h"
#include "cli/rank.h"
#include "cli/signals.h"
#include "http/client.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <yyjson.h>

#define HUB_URL        "https://huggingface.co" /* where HF_TOKEN belongs, unless HF_ENDPOINT says otherwise */
#define LIST_WAIT_MS   600000u                  /* as long as an origin computes the ids of its models */
#define LIST_TRIES     5u
#define LIST_PAUSE_MS  1000u
#define LIST_IDLE_MS   30000u
#define LIST_MAX_BYTES (4u << 20)

/* --- what the user gave -------------------------------------------------------------------------- */

bool source_is_url(const char *text)
{
    return text && (strncasecmp(text, "http://", 7) == 0 || strncasecmp(text, "https://", 8) == 0);
}

const char *source_complaint(const struct source_options *o, const char *model)
{
    if (source_is_url(model))
        return "a model on a web server is named with --origin URL";
    if (model && o->origins.n)
        return "a model file and --origin exclude each other";
    if (o->origins.n > REMOTE_MAX_ORIGINS)
        return "at most 16 --origin";
    if (!o->origins.n && (o->token_file || o->index))
        return "--token-file and --index are for a model that lies at an --origin";
    return NULL;
}

enum err_code source_token(const char *token_file, const char *const *urls, uint32_t n_urls, char **out, struct err *e)
{
    const char *own = getenv("KVASIR_TOKEN"), *hub = getenv("HF_TOKEN"), *at = getenv("HF_ENDPOINT");
    *out = NULL;
    if (token_file)
        return oai_key_load(token_file, out, e);
    const char *token = own && own[0] ? own : hub && hub[0] ? hub : NULL;
    for (uint32_t i = 0; i < n_urls && token && token == hub; i++)
        if (!http_url_same_site(urls[i], at && at[0] ? at : HUB_URL))
            token = NULL;
    if (token && !(*out = strdup(token)))
        return err_set(e, ERR_NOMEM, "out of memory");
    return OK;
}

/* --- origins that are named by their base URL ---------------------------------------------------- */

/* Without the query: does it name a GGUF? */
static bool names_model(const char *url)
{
    const size_t n = strcspn(url, "?#");
    return n > 5 && strncasecmp(url + n - 5, ".gguf", 5) == 0;
}

/* "https://host/x?y": anything after the host? */
static bool has_path(const char *url)
{
    const char *host = strstr(url, "://") + 3;
    const size_t n = strcspn(host, "/?#");
    return host[n] && host[n + 1];
}

struct listing {
    const char *base;
    const struct source_want *want;
    bool waits;      /* an id is not known yet */
    uint32_t n;      /* models in all */
    const char *hit; /* of the document */
    char names[160];
};

static void look(struct listing *l, yyjson_val *model)
{
    char hex[DIGEST_HEX_SIZE];
    const char *name = yyjson_get_str(yyjson_obj_get(model, "name")),
               *id = yyjson_get_str(yyjson_obj_get(model, "model_id")),
               *index = yyjson_get_str(yyjson_obj_get(model, "index"));
    if (!name || !index)
        return;
    l->n++;
    const size_t used = strlen(l->names);
    snprintf(l->names + used, sizeof l->names - used, "%s%s", used ? ", " : "", name);
    if (!l->want->model_id) {
        l->hit = name;
        return;
    }
    l->waits |= strcmp(index, "waiting") == 0;
    if (!l->hit && id && strcmp(index, "ready") == 0 && strcmp(id, digest_hex(l->want->model_id, hex)) == 0)
        l->hit = name;
}

static enum err_code choose(struct listing *l, char **url, struct err *e)
{
    char hex[DIGEST_HEX_SIZE], names[sizeof l->names];
    struct buf b = {0};
    text_clean(l->names, strlen(l->names), names, sizeof names);
    if (!l->want->model_id && l->n > 1)
        return err_set(e, ERR_ARG, "%s has %u models: the URL must name one of them, as %s/models/NAME.gguf: %s",
                       l->base, l->n, l->base, names);
    if (!l->hit && l->waits)
        return err_set(e, ERR_BUSY, "%s is still computing the ids of its models", l->base);
    if (!l->hit && l->want->model_id)
        return err_set(e, ERR_NOT_FOUND, "%s does not have the model %.16s...; it has %s", l->base,
                       digest_hex(l->want->model_id, hex), names[0] ? names : "none");
    if (!l->hit)
        return err_set(e, ERR_NOT_FOUND, "%s has no models", l->base);
    buf_printf(&b, "%s/models/", l->base);
    text_put_url(&b, l->hit);
    if (!b.failed && (*url = strdup(buf_str(&b)))) {
        buf_free(&b);
        return OK;
    }
    buf_free(&b);
    return err_set(e, ERR_NOMEM, "out of memory");
}

struct answer {
    struct buf body;
    struct signals_stop *stop;
};

static bool on_list(void *ctx, const void *data, size_t len)
{
    struct answer *a = ctx;
    buf_put(&a->body, data, len);
    return !a->body.failed && a->body.len <= LIST_MAX_BYTES;
}

static bool list_cancelled(void *ctx)
{
    const struct answer *a = ctx;
    return a->stop && signals_stopped(a->stop);
}

/* GET BASE/models. */
static enum err_code get_list(const char *base, const char *token, struct answer *a, unsigned *status, struct err *e)
{
    struct buf url = {0};
    buf_printf(&url, "%s/models", base);
    const struct http_call call = {.url = buf_str(&url),
                                   .bearer = token,
                                   .idle_ms = LIST_IDLE_MS,
                                   .ctx = a,
                                   .on_data = on_list,
                                   .cancelled = list_cancelled};
    enum err_code rc = url.failed ? err_set(e, ERR_NOMEM, "out of memory") : http_call(&call, status, e);
    if (rc == ERR_CANCELLED && !list_cancelled(a))
        rc = err_set(e, ERR_LIMIT, "%s/models has more than %u bytes", base, LIST_MAX_BYTES);
    buf_free(&url);
    return rc;
}

static enum err_code list_once(const char *base, const char *token, const struct source_want *w, char **url,
                               struct err *e)
{
    struct answer a = {.stop = w->stop};
    struct listing l = {.base = base, .want = w};
    unsigned status = 0;
    enum err_code rc = get_list(base, token, &a, &status, e);
    yyjson_doc *doc = rc == OK && status == 200 ? yyjson_read((const char *)a.body.data, a.body.len, 0) : NULL;
    yyjson_val *list = yyjson_obj_get(yyjson_doc_get_root(doc), "models"), *one;
    size_t i, n;
    if (rc == OK && (status == 401 || status == 403))
        rc = err_set(e, ERR_AUTH, "%s wants a token, or another one (status %u): --token-file FILE or KVASIR_TOKEN",
                     base, status);
    else if (rc == OK && (status == 429 || status >= 500))
        rc = err_set(e, ERR_IO, "%s/models gives status %u", base, status);
    else if (rc == OK && !yyjson_is_arr(list))
        rc =
            err_set(e, ERR_NOT_FOUND,
                    "%s is not the URL of a GGUF, and no kvasir origin either: its /models gives status %u and no list",
                    base, status);
    if (rc == OK) {
        yyjson_arr_foreach(list, i, n, one)
        {
            look(&l, one);
        }
        rc = choose(&l, url, e);
    }
    yyjson_doc_free(doc);
    buf_free(&a.body);
    return rc;
}

static bool rest(struct signals_stop *stop, uint32_t ms)
{
    const struct timespec slice = {.tv_nsec = 50 * 1000 * 1000};
    const uint64_t deadline = clock_deadline_ms(ms);
    while (clock_now_ns() < deadline) {
        if (stop && signals_stopped(stop))
            return false;
        nanosleep(&slice, NULL);
    }
    return true;
}

/* The URL of the wanted model at an origin of ours; free it. */
static enum err_code find_model(const char *base, const char *token, const struct source_want *w, char **url,
                                struct err *e)
{
    const uint64_t deadline = clock_deadline_ms(LIST_WAIT_MS);
    size_t n = strlen(base);
    while (n > 0 && base[n - 1] == '/')
        n--;
    char *trimmed = strndup(base, n);
    if (!trimmed)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (uint32_t tries = 1;;) {
        enum err_code rc = list_once(trimmed, token, w, url, e);
        const bool waits = rc == ERR_BUSY && clock_now_ns() < deadline;
        const bool again = (rc == ERR_IO || rc == ERR_TIMEOUT) && tries < LIST_TRIES;
        if (w->stop && signals_stopped(w->stop))
            rc = err_set(e, ERR_CANCELLED, "looking for the model was stopped");
        if (rc == ERR_CANCELLED || (!waits && !again)) {
            free(trimmed);
            return rc;
        }
        tries += !waits;
        rest(w->stop, LIST_PAUSE_MS);
    }
}

/* --- opening ------------------------------------------------------------------------------------- */

/* urls[i]: of the GGUF; *owned[i]: to be freed. Origins that do not have it are passed over while others do. */
static enum err_code resolve(const struct source_options *o, const struct source_want *w, const char *token,
                             const char **urls, char **owned, uint32_t *n, struct err *e)
{
    struct err mine = {0};
    *n = 0;
    for (uint32_t i = 0; i < o->origins.n; i++) {
        const char *given = o->origins.item[i];
        if (!source_is_url(given))
            return err_set(e, ERR_ARG, "'%.200s' is not an http:// or https:// URL", given);
        if (names_model(given) || (w->any_name && has_path(given))) {
            urls[(*n)++] = given;
            continue;
        }
        enum err_code rc = find_model(given, token, w, &owned[*n], &mine);
        if (rc == OK) {
            urls[*n] = owned[*n];
            (*n)++;
        } else if (rc == ERR_CANCELLED || rc == ERR_NOMEM || o->origins.n == 1) {
            break;
        } else {
            log_warn("source", "passed over: %s", mine.msg);
        }
    }
    if (*n > 0 && mine.code != ERR_CANCELLED)
        return OK;
    *e = mine;
    return mine.code;
}

enum err_code source_remote(const struct source_options *o, const struct source_want *w, struct remote **out,
                            struct err *e)
{
    const char *urls[REMOTE_MAX_ORIGINS];
    char *owned[REMOTE_MAX_ORIGINS] = {0}, *token = NULL;
    uint32_t n = 0;
    enum err_code rc = source_token(o->token_file, o->origins.item, o->origins.n, &token, e);
    if (rc == OK)
        rc = resolve(o, w, token, urls, owned, &n, e);
    if (rc == OK) {
        const struct remote_config config = {.urls = urls,
                                             .n_urls = n,
                                             .bearer = token,
                                             .index = o->index,
                                             .no_index = w->no_index && !o->index,
                                             .no_wait = w->no_wait,
                                             .ctx = w->stop,
                                             .cancelled = w->stop ? signals_stopped : NULL};
        rc = remote_open(&config, out, e);
    }
    for (uint32_t i = 0; i < REMOTE_MAX_ORIGINS; i++)
        free(owned[i]);
    oai_key_free(token);
    return rc;
}

enum err_code source_open(struct source *s, const char *model, const struct source_options *o,
                          const struct source_want *w, struct err *e)
{
    struct source_options one = *o;
    *s = (struct source){0};
    if (model && !source_is_url(model)) {
        if (o->token_file || o->index)
            return err_set(e, ERR_ARG, "--token-file and --index are for a URL, and %s is a file", model);
        return gguf_open(model, &s->file, e);
    }
    if (model)
        one.origins = (struct opt_list){.item = {model}, .n = 1};
    return source_remote(&one, w, &s->remote, e);
}

void source_close(struct source *s)
{
    gguf_close(s->file);
    remote_close(s->remote);
    *s = (struct source){0};
}

const struct gguf *source_gguf(const struct source *s)
{
    return s->remote ? remote_gguf(s->remote) : s->file;
}

enum err_code source_model_id(const struct source *s, struct signals_stop *stop, uint8_t id[DIGEST_BYTES],
                              struct err *e)
{
    if (!s->remote)
        return rank_model_id(s->file, stop, id, e);
    const struct index *x = remote_index(s->remote);
    if (!x)
        return err_set(
            e, ERR_NOT_FOUND,
            "no index of %s was found at %s, and the model's id comes from it: `kvasir index MODEL -o "
            "FILE.kvi` makes it where the model lies; put it beside the model as %s.kvi, or name it: --index",
            gguf_path(remote_gguf(s->remote)), remote_origin_host(s->remote, 0), gguf_path(remote_gguf(s->remote)));
    memcpy(id, x->model_id, DIGEST_BYTES);
    return OK;
}
