/* SPDX-License-Identifier: MIT */
#include "cli/oai.h"

#include "base/io.h"
#include "base/parse.h"
#include "base/text.h"
#include "http/client.h"
#include "http/sse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

#define MAX_BODY      (1u << 20) /* of a response that is no stream */
#define MAX_KEY_BYTES 4096u

/* --- server and settings ------------------------------------------------------------------------- */

enum err_code oai_url(const char *text, char out[OAI_URL_SIZE], struct err *e)
{
    const char *scheme = strstr(text, "://");
    if (scheme && strncmp(text, "http://", 7) != 0 && strncmp(text, "https://", 8) != 0)
        return err_set(e, ERR_ARG, "the URL %s is neither http:// nor https://", text);
    const char *host = scheme ? scheme + 3 : text;
    size_t n = strlen(host);
    while (n > 0 && host[n - 1] == '/')
        n--;
    if (n == 0 || strpbrk(host, " \t\r\n?#"))
        return err_set(e, ERR_ARG, "'%s' is not the URL of a server: for example %s", text, OAI_DEFAULT_URL);
    const char *slash = memchr(host, '/', n);
    int len = snprintf(out, OAI_URL_SIZE, "%.*s%.*s%s", scheme ? (int)(host - text) : 7, scheme ? text : "http://",
                       (int)n, host, slash ? "" : "/v1");
    return len > 0 && len < OAI_URL_SIZE ? OK : err_set(e, ERR_ARG, "the URL has more than %d bytes", OAI_URL_SIZE - 1);
}

static const struct {
    const char *name;
    double min, max;
    bool whole;
} settings[OAI_SETTING_COUNT] = {
    [OAI_TEMPERATURE] = {"temperature", 0, 2, false},
    [OAI_TOP_P] = {"top_p", 0, 1, false},
    [OAI_TOP_K] = {"top_k", 0, 1000000, true},
    [OAI_MIN_P] = {"min_p", 0, 1, false},
    [OAI_MAX_TOKENS] = {"max_tokens", 1, 1u << 24, true},
    [OAI_SEED] = {"seed", 0, 9007199254740991.0, true},
};

const char *oai_setting_name(enum oai_setting s)
{
    return settings[s].name;
}

enum err_code oai_setting_put(struct oai_settings *s, const char *name, const char *value, struct err *e)
{
    size_t i = 0;
    while (i < OAI_SETTING_COUNT && strcmp(settings[i].name, name) != 0)
        i++;
    if (i == OAI_SETTING_COUNT)
        return err_set(e, ERR_ARG,
                       "there is no setting '%s': one of temperature, top_p, top_k, min_p, max_tokens, seed", name);
    if (strcmp(value, "default") == 0) {
        s->set[i] = false;
        return OK;
    }
    double v;
    enum err_code rc = OK;
    if (settings[i].whole) {
        uint64_t n;
        rc = parse_u64(name, value, (uint64_t)settings[i].min, (uint64_t)settings[i].max, &n, e);
        v = rc == OK ? (double)n : 0;
    } else {
        rc = parse_f64(name, value, settings[i].min, settings[i].max, &v, e);
    }
    if (rc == OK) {
        s->value[i] = v;
        s->set[i] = true;
    }
    return rc;
}

/* --- errors and keys ----------------------------------------------------------------------------- */

static enum err_code code_of(unsigned status)
{
    switch (status) {
    case 401:
    case 403:
        return ERR_AUTH;
    case 404:
        return ERR_NOT_FOUND;
    case 429:
    case 503:
        return ERR_BUSY;
    default:
        return status >= 400 && status < 500 ? ERR_ARG : ERR_IO;
    }
}

/* {"error":{"message","code"}}, {"error":"text"}, {"message":"text"}: the sentence, NULL when there is none. */
static const char *sentence(yyjson_val *root, char code[64])
{
    yyjson_val *error = yyjson_obj_get(root, "error");
    const char *text = yyjson_get_str(yyjson_obj_get(error, "message"));
    const char *name = yyjson_get_str(yyjson_obj_get(error, "code"));
    if (code)
        text_clean(name ? name : "", name ? strlen(name) : 0, code, 64);
    if (!text)
        text = yyjson_get_str(error);
    return text ? text : yyjson_get_str(yyjson_obj_get(root, "message"));
}

static enum err_code error_of(unsigned status, const void *body, size_t len, char code[64], struct err *e)
{
    char text[256];
    yyjson_doc *doc = len ? yyjson_read(body, len, 0) : NULL;
    const char *said = sentence(yyjson_doc_get_root(doc), code);
    if (said)
        err_set(e, code_of(status), "%s (HTTP %u)", text_clean(said, strlen(said), text, sizeof text), status);
    else
        err_set(e, code_of(status),
                "the server answers with HTTP %u and no reason: is this the URL of an "
                "OpenAI-compatible API?",
                status);
    yyjson_doc_free(doc);
    return code_of(status);
}

enum err_code oai_error(unsigned status, const void *body, size_t len, struct err *e)
{
    return error_of(status, body, len, NULL, e);
}

enum err_code oai_key_load(const char *path, char **out, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat st;
    if (fd < 0)
        return err_set_os(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "cannot read the key file %s", path);
    if (fstat(fd, &st) != 0 || (S_ISREG(st.st_mode) && (st.st_mode & 077) != 0)) {
        close(fd);
        return err_set(e, ERR_AUTH, "others can read or write the key file %s: chmod 600 %s", path, path);
    }
    char *key = malloc(MAX_KEY_BYTES);
    ssize_t n = key ? read(fd, key, MAX_KEY_BYTES - 1) : -1;
    int os = errno;
    close(fd);
    if (n < 0) {
        free(key);
        return err_set_os(e, ERR_IO, os, "cannot read the key file %s", path);
    }
    while (n > 0 && strchr(" \t\r\n", key[n - 1]))
        n--;
    key[n] = 0;
    if (n == 0 || strlen(key) != (size_t)n || strpbrk(key, " \t\r\n")) {
        oai_key_free(key);
        return err_set(e, ERR_FORMAT, "the key file %s does not hold one line with a key", path);
    }
    *out = key;
    return OK;
}

void oai_key_free(char *key)
{
    if (key)
        explicit_bzero(key, strlen(key));
    free(key);
}

/* --- plain requests ------------------------------------------------------------------------------ */

static bool collect(void *ctx, const void *data, size_t len)
{
    struct buf *b = ctx;
    if (len > MAX_BODY - b->len)
        return false;
    buf_put(b, data, len);
    return !b->failed;
}

struct getting {
    const struct oai *o;
    struct buf *body;
    bool too_large;
};

static bool on_body(void *ctx, const void *data, size_t len)
{
    struct getting *k = ctx;
    k->too_large = !collect(k->body, data, len);
    return !k->too_large;
}

static bool get_cancelled(void *ctx)
{
    const struct getting *k = ctx;
    return k->o->cancelled && k->o->cancelled(k->o->ctx);
}

enum err_code oai_get(const struct oai *o, const char *path, struct buf *body, unsigned *status, struct err *e)
{
    char url[OAI_URL_SIZE + 64];
    size_t n = strlen(o->base);
    if (strncmp(path, "../", 3) == 0) {
        path += 2;
        if (n > 3 && strcmp(o->base + n - 3, "/v1") == 0)
            n -= 3;
    }
    snprintf(url, sizeof url, "%.*s%s", (int)n, o->base, path);
    struct getting k = {.o = o, .body = body};
    struct http_call call = {
        .url = url, .bearer = o->key, .idle_ms = o->idle_ms, .ctx = &k, .on_data = on_body, .cancelled = get_cancelled};
    enum err_code rc = http_call(&call, status, e);
    if (rc == ERR_CANCELLED && k.too_large)
        return err_set(e, ERR_LIMIT, "%s answers with more than %u bytes", url, MAX_BODY);
    return rc;
}

enum err_code oai_first_model(const struct oai *o, char out[OAI_NAME_SIZE], struct err *e)
{
    struct buf body = {0};
    unsigned status;
    enum err_code rc = oai_get(o, "/models", &body, &status, e);
    if (rc == OK && status != 200)
        rc = oai_error(status, body.data, body.len, e);
    if (rc == OK) {
        yyjson_doc *doc = body.len ? yyjson_read((const char *)body.data, body.len, 0) : NULL;
        yyjson_val *list = yyjson_obj_get(yyjson_doc_get_root(doc), "data");
        const char *id = yyjson_get_str(yyjson_obj_get(yyjson_arr_get_first(list), "id"));
        if (id && strlen(id) < OAI_NAME_SIZE)
            memcpy(out, id, strlen(id) + 1);
        else
            rc = err_set(e, ERR_FORMAT, "%s/models lists no model: is this the URL of an OpenAI-compatible API?",
                         o->base);
        yyjson_doc_free(doc);
    }
    buf_free(&body);
    return rc;
}

/* --- asking -------------------------------------------------------------------------------------- */

struct asking {
    const struct oai *o;
    const struct oai_request *r;
    struct oai_answer *a;
    struct sse sse;
    struct buf raw; /* what came before the first event: an error, or an answer that is no stream */
    uint32_t n_events;
    bool done, failed;
    struct err err; /* failed: why */
};

static void put_text(struct asking *k, yyjson_val *val, bool thought)
{
    size_t n = yyjson_get_len(val);
    if (yyjson_is_str(val) && n > 0)
        k->r->on_text(k->r->ctx, yyjson_get_str(val), n, thought);
}

/* A chunk, or a whole answer: choices[0] has a delta, a message or a text. */
static enum err_code take_choice(struct asking *k, yyjson_val *root, struct err *e)
{
    yyjson_val *choice = yyjson_arr_get_first(yyjson_obj_get(root, "choices"));
    yyjson_val *part = yyjson_obj_get(choice, "delta");
    const char *said = sentence(root, k->a->code);
    if (yyjson_obj_get(root, "error") && said) {
        char text[256];
        return err_set(e, ERR_IO, "%s", text_clean(said, strlen(said), text, sizeof text));
    }
    if (!yyjson_is_obj(root) ||
        (!choice && !yyjson_get_str(yyjson_obj_get(root, "object")) && !yyjson_is_arr(yyjson_obj_get(root, "choices"))))
        return err_set(e, ERR_FORMAT, "the server sends what is no answer of an OpenAI-compatible API");
    if (!part)
        part = yyjson_obj_get(choice, "message");
    put_text(k, yyjson_obj_get(part, "reasoning_content"), true);
    put_text(k, part ? yyjson_obj_get(part, "content") : yyjson_obj_get(choice, "text"), false);
    yyjson_val *reason = yyjson_obj_get(choice, "finish_reason");
    if (yyjson_is_str(reason))
        text_clean(yyjson_get_str(reason), yyjson_get_len(reason), k->a->reason, sizeof k->a->reason);
    return OK;
}

static bool on_event(void *ctx, const char *data, size_t len)
{
    struct asking *k = ctx;
    k->n_events++;
    if (strcmp(data, "[DONE]") == 0) {
        k->done = true;
        return false;
    }
    yyjson_doc *doc = yyjson_read(data, len, 0);
    enum err_code rc = doc ? take_choice(k, yyjson_doc_get_root(doc), &k->err)
                           : err_set(&k->err, ERR_FORMAT, "the server sends an event that is not JSON");
    yyjson_doc_free(doc);
    k->failed = rc != OK;
    return rc == OK;
}

static bool on_data(void *ctx, const void *data, size_t len)
{
    struct asking *k = ctx;
    if (k->n_events == 0 && !collect(&k->raw, data, len)) {
        err_set(&k->err, ERR_LIMIT, "the server sends more than %u bytes that are no event", MAX_BODY);
        k->failed = true;
        return false;
    }
    struct err e;
    enum err_code rc = sse_feed(&k->sse, data, len, &e);
    if (rc != OK && !k->done && !k->failed) { /* else on_event said why */
        k->err = e;
        k->failed = true;
    }
    return rc == OK;
}

static bool cancelled(void *ctx)
{
    const struct asking *k = ctx;
    return k->o->cancelled && k->o->cancelled(k->o->ctx);
}

static void put_settings(yyjson_mut_doc *doc, yyjson_mut_val *root, const struct oai_settings *s)
{
    for (int i = 0; i < OAI_SETTING_COUNT; i++) {
        if (s->set[i] && settings[i].whole)
            yyjson_mut_obj_add_uint(doc, root, settings[i].name, (uint64_t)s->value[i]);
        else if (s->set[i])
            yyjson_mut_obj_add_real(doc, root, settings[i].name, s->value[i]);
    }
}

/* The request's JSON; NULL when out of memory, or a text is not UTF-8. */
static char *write_request(const struct oai_request *r, size_t *len)
{
    struct buf prompt = {0};
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    if (r->model)
        yyjson_mut_obj_add_str(doc, root, "model", r->model);
    if (r->plain) {
        for (size_t i = 0; i < r->n_messages; i++)
            buf_puts(&prompt, r->messages[i].text);
        yyjson_mut_obj_add_str(doc, root, "prompt", buf_str(&prompt));
    } else {
        yyjson_mut_val *list = yyjson_mut_obj_add_arr(doc, root, "messages");
        for (size_t i = 0; i < r->n_messages; i++) {
            yyjson_mut_val *m = yyjson_mut_arr_add_obj(doc, list);
            yyjson_mut_obj_add_str(doc, m, "role", r->messages[i].role);
            yyjson_mut_obj_add_str(doc, m, "content", r->messages[i].text);
        }
    }
    yyjson_mut_obj_add_bool(doc, root, "stream", true);
    put_settings(doc, root, r->settings);
    char *json = prompt.failed ? NULL : yyjson_mut_write(doc, 0, len);
    yyjson_mut_doc_free(doc);
    buf_free(&prompt);
    return json;
}

/* The request went through: is what came an answer? */
static enum err_code judge(struct asking *k, struct err *e)
{
    if (k->a->status != 200)
        return error_of(k->a->status, k->raw.data, k->raw.len, k->a->code, e);
    if (k->n_events == 0) { /* a server that does not stream */
        yyjson_doc *doc = k->raw.len ? yyjson_read((const char *)k->raw.data, k->raw.len, 0) : NULL;
        enum err_code rc = take_choice(k, yyjson_doc_get_root(doc), e);
        yyjson_doc_free(doc);
        return rc;
    }
    if (!k->done && !k->a->reason[0])
        return err_set(e, ERR_CLOSED, "the server ended the answer in the middle");
    return OK;
}

enum err_code oai_ask(const struct oai *o, const struct oai_request *r, struct oai_answer *a, struct err *e)
{
    char url[OAI_URL_SIZE + 64];
    struct asking k = {.o = o, .r = r, .a = a, .sse = {.on_event = on_event}};
    size_t len;
    *a = (struct oai_answer){0};
    char *json = write_request(r, &len);
    if (!json)
        return err_set(e, ERR_FORMAT, "the text cannot be sent: it is not UTF-8");
    k.sse.ctx = &k;
    snprintf(url, sizeof url, "%s%s", o->base, r->plain ? "/completions" : "/chat/completions");
    struct http_call call = {.url = url,
                             .bearer = o->key,
                             .type = "application/json",
                             .body = json,
                             .body_len = len,
                             .idle_ms = o->idle_ms,
                             .ctx = &k,
                             .on_data = on_data,
                             .cancelled = cancelled};
    enum err_code rc = http_call(&call, &a->status, e);
    if (k.failed) {
        rc = k.err.code;
        if (e)
            *e = k.err;
    } else if (k.done) { /* the rest of the response does not matter */
        rc = OK;
    } else if (rc == OK) {
        rc = judge(&k, e);
    }
    free(json);
    sse_fini(&k.sse);
    buf_free(&k.raw);
    return rc;
}
