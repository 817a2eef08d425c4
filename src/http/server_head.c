/* SPDX-License-Identifier: MIT
 *
 * From lws's parsed heads and bodies to requests. lws is lenient and keeps heads only for a while, so what it has
 * parsed is checked here against RFC 9112 where a mistake would shift the border between two requests (lengths,
 * duplicates, names with spaces), and copied.
 */
#include "base/clock.h"
#include "base/log.h"
#include "http/server_impl.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    enum lws_token_indexes token;
    const char *name;
} methods[] = {
    {WSI_TOKEN_GET_URI, "GET"},     {WSI_TOKEN_HEAD_URI, "HEAD"},       {WSI_TOKEN_POST_URI, "POST"},
    {WSI_TOKEN_PUT_URI, "PUT"},     {WSI_TOKEN_OPTIONS_URI, "OPTIONS"}, {WSI_TOKEN_DELETE_URI, "DELETE"},
    {WSI_TOKEN_PATCH_URI, "PATCH"},
};

const char *head_method(const char *p, size_t n)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strlen(methods[i].name) == n && memcmp(methods[i].name, p, n) == 0)
            return methods[i].name;
    return NULL;
}

void request_free(struct http_request *r)
{
    if (!r)
        return;
    free(r->path);
    free(r->query);
    buf_free(&r->headers);
    buf_free(&r->body);
    buf_free(&r->out);
    free(r->piece);
    free(r);
}

static void refuse(struct http_request *r, unsigned status, const char *text)
{
    if (r->refuse)
        return;
    r->refuse = status;
    r->refuse_text = text;
    r->whole = true;
    r->keep = false;
}

/* Did the header occur n times or more? lws calls an empty one absent, so its length does not tell. */
static bool occurs(struct lws *wsi, enum lws_token_indexes token, int n, struct http_server *s)
{
    return lws_hdr_copy_fragment(wsi, (char *)s->scratch, (int)sizeof s->scratch, token, n - 1) >= 0 ||
           lws_hdr_fragment_length(wsi, token, n - 1) > 0;
}

/* Appends name and value; value may have blanks around it (RFC 9110 §5.5). */
static void put_header(struct http_request *r, const char *name, size_t name_len, const char *value, size_t len)
{
    while (len && (*value == ' ' || *value == '\t'))
        value++, len--;
    while (len && (value[len - 1] == ' ' || value[len - 1] == '\t'))
        len--;
    for (size_t i = 0; i < name_len; i++)
        if (!head_token_char((unsigned char)name[i])) {
            refuse(r, 400, "A header has a name that is none.");
            return;
        }
    for (size_t i = 0; i < len; i++)
        if (((unsigned char)value[i] < ' ' && value[i] != '\t') || value[i] == 0x7f) {
            refuse(r, 400, "A header has control characters in it.");
            return;
        }
    buf_put(&r->headers, name, name_len);
    buf_put_u8(&r->headers, 0);
    buf_put(&r->headers, value, len);
    buf_put_u8(&r->headers, 0);
}

struct custom_walk {
    struct lws *wsi;
    struct http_request *r;
};

static void copy_custom(const char *name, int name_len, void *opaque)
{
    const struct custom_walk *w = opaque;
    const int len = lws_hdr_custom_length(w->wsi, name, name_len);
    if (name_len < 2 || len < 0) {
        refuse(w->r, 400, "A header has no name.");
        return;
    }
    char *value = malloc((size_t)len + 1);
    if (!value || lws_hdr_custom_copy(w->wsi, value, len + 1, name, name_len) != len)
        refuse(w->r, 500, "There is not enough memory for this request.");
    else
        put_header(w->r, name, (size_t)name_len - 1, value, (size_t)len); /* without the colon */
    free(value);
}

static void copy_headers(struct lws *wsi, struct http_request *r)
{
    for (int i = 0; i < WSI_TOKEN_COUNT; i++) {
        const char *name = (const char *)lws_token_to_string((enum lws_token_indexes)i);
        const size_t name_len = name ? strlen(name) : 0;
        const int len = lws_hdr_total_length(wsi, (enum lws_token_indexes)i);
        if (len <= 0 || name_len < 2 || name[0] == ':' || name[name_len - 1] != ':' || i == WSI_TOKEN_UPGRADE)
            continue;
        char *value = malloc((size_t)len + 1);
        if (!value || lws_hdr_copy(wsi, value, len + 1, (enum lws_token_indexes)i) < 0)
            refuse(r, 500, "There is not enough memory for this request.");
        else
            put_header(r, name, name_len - 1, value, (size_t)len);
        free(value);
    }
    struct custom_walk walk = {wsi, r};
    lws_hdr_custom_name_foreach(wsi, copy_custom, &walk);
    buf_put_u8(&r->headers, 0); /* an empty name ends them */
    if (r->headers.failed)
        refuse(r, 500, "There is not enough memory for this request.");
}

/* Is word one of the comma-separated words of list? */
static bool list_has(const char *list, const char *word)
{
    const size_t n = strlen(word);
    while (list && *list) {
        list += strspn(list, " \t,");
        const size_t len = strcspn(list, " \t,");
        if (len == n && !strncasecmp(list, word, n))
            return true;
        list += len;
    }
    return false;
}

static void check_version(struct lws *wsi, struct http_request *r)
{
    char version[16] = "";
    const int n = lws_hdr_copy_fragment(wsi, version, (int)sizeof version, WSI_TOKEN_HTTP, 0);
    if (occurs(wsi, WSI_TOKEN_HTTP, 2, r->conn->s) || n != 8 || strncmp(version, "HTTP/", 5) != 0)
        refuse(r, 400, "The request line does not end in HTTP/1.1.");
    else if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        refuse(r, 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
    r->http10 = strcmp(version, "HTTP/1.0") == 0;
}

static void check_length(struct lws *wsi, struct http_request *r)
{
    struct http_server *s = r->conn->s;
    if (occurs(wsi, WSI_TOKEN_HTTP_TRANSFER_ENCODING, 1, s)) {
        refuse(r, 411, "A request body in chunks is not read here: send it with a content-length.");
        return;
    }
    if (!occurs(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH, 1, s))
        return;
    const char *text = http_header(r, "content-length");
    const size_t n = text ? strlen(text) : 0;
    if (occurs(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH, 2, s) || n == 0 || strspn(text, "0123456789") != n)
        refuse(r, 400, "The content-length is not one number.");
    else if (n > 18 || (r->length = strtoull(text, NULL, 10)) > s->config.max_body)
        refuse(r, 413, "The request body is larger than this server takes.");
}

/* lws keeps the parts between the ampersands, and their sum. */
static void copy_query(struct lws *wsi, struct http_request *r)
{
    const int len = lws_hdr_total_length(wsi, WSI_TOKEN_HTTP_URI_ARGS);
    if (len <= 0)
        return;
    r->query = malloc((size_t)len + 1);
    if (!r->query || lws_hdr_copy(wsi, r->query, len + 1, WSI_TOKEN_HTTP_URI_ARGS) < 0)
        refuse(r, 500, "There is not enough memory for this request.");
    /* An empty last part it takes for an empty path and makes a "/" of it. */
    else if (r->query[len - 1] == '/' && (len == 1 || r->query[len - 2] == '&'))
        r->query[len - 1] = 0;
}

/* lws has a whole head. */
static void take_head(struct http_conn *c, struct lws *wsi, const char *path, size_t path_len)
{
    struct http_request *r = calloc(1, sizeof *r);
    if (!r || !(r->path = malloc(path_len + 1))) {
        free(r);
        conn_cut(c);
        return;
    }
    c->r = r;
    r->conn = c;
    memcpy(r->path, path, path_len);
    r->path[path_len] = 0;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (occurs(wsi, methods[i].token, 1, c->s)) {
            if (r->method)
                refuse(r, 400, "The request has several request lines.");
            r->method = methods[i].name;
        }
    if (!r->method) {
        r->method = "?";
        refuse(r, 501, "This method is not known here.");
    }
    if (strlen(r->path) != path_len)
        refuse(r, 400, "The path has a NUL character in it.");
    r->head_only = strcmp(r->method, "HEAD") == 0;
    check_version(wsi, r);
    copy_query(wsi, r);
    copy_headers(wsi, r);
    if (!r->refuse && !r->http10 && (!occurs(wsi, WSI_TOKEN_HOST, 1, c->s) || occurs(wsi, WSI_TOKEN_HOST, 2, c->s)))
        refuse(r, 400, "The request does not have one host header.");
    check_length(wsi, r);

    const char *connection = http_header(r, "connection");
    r->keep = !r->refuse &&
              (r->http10 ? connection && !strcasecmp(connection, "keep-alive") : !list_has(connection, "close"));
    /* For these lws waits for a body even without a length, so it cannot read another request after them. */
    if (!r->length && (r->method[0] == 'P') && !occurs(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH, 1, c->s))
        r->keep = false;
    r->expect_continue = !r->http10 && list_has(http_header(r, "expect"), "100-continue");
    if (!r->length)
        r->whole = true;
}

static void take_body(struct http_conn *c, const void *data, size_t len)
{
    struct http_request *r = c->r;
    if (!r || r->whole) {
        if (r && len)
            r->keep = false; /* bytes beyond the body, which lws has given away */
        return;
    }
    const size_t left = (size_t)r->length - r->body.len;
    if (len > left) {
        r->keep = false;
        len = left;
    }
    buf_put(&r->body, data, len);
    if (r->body.failed)
        refuse(r, 500, "There is not enough memory for this request.");
    if (r->body.len == r->length)
        r->whole = true;
}

/* A request that asks for another protocol may be served as the plain request it is as well (RFC 9110 §7.8). lws would
 * switch, or refuse it with a page of its own: it looks at the word once more after this, and we never again. */
static int ignore_upgrade(char *word)
{
    if (strcasecmp(word, "websocket") != 0 && strcasecmp(word, "h2c") != 0)
        return -1; /* lws has refused it already */
    *word = 0;
    return 0;
}

int server_lws_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    (void)user;
    struct http_conn *c = wsi ? lws_get_opaque_user_data(wsi) : NULL;
    switch (reason) {
    case LWS_CALLBACK_WSI_DESTROY:
        if (c) {
            c->wsi = NULL;
            c->fd = -1;
            conn_mark_dirty(c);
        }
        return 0;
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE:
        return ignore_upgrade(in);
    case LWS_CALLBACK_HTTP:
        if (!c || c->r)
            return -1;
        take_head(c, wsi, in, len);
        if (!c->r)
            return -1;
        /* lws mixes up head and body when both came together with the request before: that one was answered, this one
         * is for the client to send again. */
        return c->replay && c->r->length ? -1 : 0;
    case LWS_CALLBACK_HTTP_BODY:
        if (c)
            take_body(c, in, len);
        return 0;
    case LWS_CALLBACK_HTTP_BODY_COMPLETION:
    case LWS_CALLBACK_HTTP_WRITEABLE:
        return 0;
    case LWS_CALLBACK_RAW_ADOPT: /* CONNECT */
    case LWS_CALLBACK_RAW_RX:
    case LWS_CALLBACK_FILTER_PROTOCOL_CONNECTION:
        return -1;
    default:
        return 0;
    }
}
