/* SPDX-License-Identifier: MIT
 *
 * HTTP requests by libcurl. By its multi interface, though there is only one at a time: the easy one looks up once a
 * second only, too seldom for somebody who has pressed Ctrl-C; and the multi handle is what keeps connections.
 */
#include "http/client.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/text.h"

#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define CONNECT_MS    5000u
#define IDLE_MS       60000u
#define LOOK_MS       50 /* between two looks at cancelled() */
#define MAX_REDIRECTS 5
#define MAX_HEAD      (64u << 10) /* bytes of headers that are kept */

struct http_client {
    CURLM *multi;
    CURL *curl;
    uint64_t n_requests;
};

struct http_head {
    CURL *curl;
    struct buf lines; /* "Name: value" NUL, one after the other */
    bool given;       /* on_head has run */
};

struct transfer {
    const struct http_call *call;
    struct http_head head;
    uint64_t idle_ns;    /* silence longer than that ends it */
    uint64_t last_ns;    /* when bytes moved last */
    curl_off_t moved;    /* bytes, both ways */
    uint64_t from_ns;    /* since when `came` counts */
    uint64_t came;       /* bytes of the body */
    const char *refused; /* what is wrong with the response */
    bool idle, slow, cancelled;
};

static void global_init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* --- URLs --- */

static char *url_part(CURLU *u, CURLUPart part)
{
    char *text = NULL;
    return curl_url_get(u, part, &text, CURLU_DEFAULT_PORT) == CURLUE_OK ? text : NULL;
}

struct site {
    char *scheme, *host, *port;
};

static void site_free(struct site *s)
{
    curl_free(s->scheme);
    curl_free(s->host);
    curl_free(s->port);
}

static bool site_of(const char *url, struct site *out)
{
    CURLU *u = curl_url();
    *out = (struct site){0};
    if (u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK)
        *out = (struct site){url_part(u, CURLUPART_SCHEME), url_part(u, CURLUPART_HOST), url_part(u, CURLUPART_PORT)};
    curl_url_cleanup(u);
    return out->scheme && out->host && out->port &&
           (strcmp(out->scheme, "http") == 0 || strcmp(out->scheme, "https") == 0);
}

enum err_code http_url_host(const char *url, char out[HTTP_HOST_SIZE], struct err *e)
{
    struct site s;
    enum err_code rc = OK;
    if (site_of(url, &s))
        snprintf(out, HTTP_HOST_SIZE, "%.200s:%.6s", s.host, s.port);
    else
        rc = err_set(e, ERR_ARG, "that is not a URL which can be asked%s%.100s: http://host:port/path is one",
                     s.host ? ", on host " : "", s.host ? s.host : "");
    site_free(&s);
    return rc;
}

bool http_url_same_site(const char *a, const char *b)
{
    struct site x, y;
    const bool one = site_of(a, &x), two = site_of(b, &y);
    const bool same =
        one && two && !strcmp(x.scheme, y.scheme) && !strcasecmp(x.host, y.host) && !strcmp(x.port, y.port);
    site_free(&x);
    site_free(&y);
    return same;
}

/* --- a response --- */

unsigned http_head_status(const struct http_head *h)
{
    long status = 0;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    return (unsigned)status;
}

const char *http_head_get(const struct http_head *h, const char *name)
{
    const size_t n = strlen(name);
    const char *p = (const char *)h->lines.data, *end = p + h->lines.len;
    for (; h->lines.len > 0 && p < end; p += strlen(p) + 1)
        if (strncasecmp(p, name, n) == 0 && p[n] == ':')
            return p + n + 1 + strspn(p + n + 1, " \t");
    return NULL;
}

const char *http_head_url(const struct http_head *h)
{
    char *url = NULL;
    curl_easy_getinfo(h->curl, CURLINFO_EFFECTIVE_URL, &url);
    return url ? url : "";
}

uint32_t http_head_retry_s(const struct http_head *h)
{
    curl_off_t s = 0;
    curl_easy_getinfo(h->curl, CURLINFO_RETRY_AFTER, &s);
    return s < 0 ? 0 : s > UINT32_MAX ? UINT32_MAX : (uint32_t)s;
}

/* One line of a head, redirects' and interim ones too: each begins anew. Lines after the body began are trailers. */
static size_t on_header(char *data, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    size_t len = size * n;
    if (t->head.given)
        return len;
    if (len >= 5 && strncmp(data, "HTTP/", 5) == 0)
        buf_clear(&t->head.lines);
    else if (t->head.lines.len + len < MAX_HEAD && !memchr(data, 0, len)) {
        while (len > 0 && strchr("\r\n \t", data[len - 1]))
            len--;
        buf_put(&t->head.lines, data, len);
        if (len > 0)
            buf_put_u8(&t->head.lines, 0);
    }
    return size * n;
}

/* The head is whole when the body begins, or when all is over. false: the request is to end. */
static bool give_head(struct transfer *t)
{
    if (t->head.given)
        return true;
    t->head.given = true;
    const char *coding = http_head_get(&t->head, "content-encoding");
    if (t->call->plain && coding && http_head_status(&t->head) / 100 == 2 && strcasecmp(coding, "identity") != 0) {
        t->refused = "it sent the file in a coding (content-encoding), though only its own bytes were asked for";
        return false;
    }
    if (t->call->on_head && !t->call->on_head(t->call->ctx, &t->head))
        t->cancelled = true;
    return !t->cancelled;
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    const size_t len = size * n;
    if (!give_head(t))
        return CURL_WRITEFUNC_ERROR;
    const uint64_t begin_ns = clock_now_ns();
    if (t->call->on_data && !t->call->on_data(t->call->ctx, data, len)) {
        t->cancelled = true;
        return CURL_WRITEFUNC_ERROR;
    }
    t->last_ns = clock_now_ns();
    t->from_ns += t->last_ns - begin_ns; /* what the taker needs for it is not the server's time */
    t->came += len;
    return len;
}

static int on_progress(void *ctx, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
    struct transfer *t = ctx;
    (void)down_total;
    (void)up_total;
    if (down + up != t->moved)
        t->last_ns = clock_now_ns();
    t->moved = down + up;
    return 0;
}

static int on_socket(void *ctx, curl_socket_t fd, curlsocktype purpose)
{
    const struct transfer *t = ctx;
    const int window = (int)t->call->window_bytes;
    if (purpose == CURLSOCKTYPE_IPCXN && window > 0) /* where it cannot be done, more is on its way: no harm */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, sizeof window);
    return CURL_SOCKOPT_OK;
}

/* --- a request --- */

/* Is it to be given up? */
static bool look(struct transfer *t)
{
    const uint64_t now = clock_now_ns();
    if (t->call->cancelled && t->call->cancelled(t->call->ctx))
        t->cancelled = true;
    else if (now > t->last_ns + t->idle_ns)
        t->idle = true;
    else if (now > t->from_ns + t->idle_ns) {
        const double s = (double)(now - t->from_ns) / (double)CLOCK_NS_PER_S;
        t->slow = t->head.given && (double)t->came < s * t->call->floor_b_s;
        t->from_ns = now;
        t->came = 0;
    }
    return t->cancelled || t->idle || t->slow;
}

static CURLcode perform(CURLM *multi, CURL *curl, struct transfer *t)
{
    CURLMcode code = curl_multi_add_handle(multi, curl);
    CURLcode result = CURLE_OUT_OF_MEMORY;
    for (int running = 1; code == CURLM_OK;) {
        code = curl_multi_perform(multi, &running);
        if (!running || code != CURLM_OK || t->cancelled || look(t))
            break;
        code = curl_multi_poll(multi, NULL, 0, LOOK_MS, NULL);
    }
    int left;
    for (const CURLMsg *m; (m = curl_multi_info_read(multi, &left));)
        if (m->msg == CURLMSG_DONE)
            result = m->data.result;
    if (result == CURLE_OK && !give_head(t))
        result = CURLE_WRITE_ERROR;
    curl_multi_remove_handle(multi, curl);
    return result;
}

static enum err_code to_err(CURLcode code, const struct transfer *t, const char *host, const char *detail,
                            struct err *e)
{
    const char *why = detail[0] ? detail : curl_easy_strerror(code);
    const double idle_s = (double)t->idle_ns / (double)CLOCK_NS_PER_S;
    if (t->cancelled)
        return err_set(e, ERR_CANCELLED, "the request to %s was stopped", host);
    if (t->refused)
        return err_set(e, ERR_PROTOCOL, "%s: %s", host, t->refused);
    if (t->idle)
        return err_set(e, ERR_TIMEOUT, "%s sent nothing for %g seconds", host, idle_s);
    if (t->slow)
        return err_set(e, ERR_TIMEOUT, "%s sent fewer than %u bytes a second for %g seconds", host, t->call->floor_b_s,
                       idle_s);
    switch (code) {
    case CURLE_OK:
        return OK;
    case CURLE_URL_MALFORMAT:
        return err_set(e, ERR_ARG, "the URL for %s is malformed: %.150s", host, why);
    case CURLE_TOO_MANY_REDIRECTS:
        return err_set(e, ERR_PROTOCOL, "%s sends on to another address more than %d times", host, MAX_REDIRECTS);
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        return err_set(e, ERR_IO, "what answers at %s does not speak HTTP: %.150s", host, why);
    case CURLE_OUT_OF_MEMORY:
        return err_set(e, ERR_NOMEM, "out of memory");
    case CURLE_OPERATION_TIMEDOUT:
        return err_set(e, ERR_TIMEOUT, "no connection to %s in time", host);
    case CURLE_COULDNT_RESOLVE_HOST:
        return err_set(e, ERR_IO, "the host name of %s is not known", host);
    case CURLE_COULDNT_RESOLVE_PROXY:
        return err_set(e, ERR_IO, "the proxy to %s is not known: %.150s", host, why);
    case CURLE_COULDNT_CONNECT:
        return err_set(e, ERR_IO, "cannot connect to %s: does it run there? (%.150s)", host, why);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
        return err_set(e, ERR_AUTH, "the certificate of %s cannot be trusted: %.150s", host, why);
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        return err_set(e, ERR_IO, "%s broke off: %.150s", host, why);
    default:
        return err_set(e, ERR_IO, "request to %s failed: %.150s", host, why);
    }
}

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    if (more)
        *list = more;
    return more != NULL;
}

static bool make_headers(const struct http_call *call, struct curl_slist **list)
{
    bool ok = add_header(list, "Expect:"); /* none: it would cost a round trip */
    if (ok && call->type && call->body) {
        struct buf line = {0};
        buf_printf(&line, "Content-Type: %s", call->type);
        ok = !line.failed && add_header(list, buf_str(&line));
        buf_free(&line);
    }
    if (call->plain)
        ok = ok && add_header(list, "Accept-Encoding: identity");
    for (uint32_t i = 0; ok && i < call->n_headers; i++)
        ok = add_header(list, call->headers[i]);
    return ok;
}

static void set_options(CURL *curl, const struct http_call *call, struct transfer *t, struct curl_slist *headers,
                        char *detail)
{
    curl_easy_setopt(curl, CURLOPT_URL, call->url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L); /* a name that is being looked up is left to its thread */
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "kvasir/" KVASIR_VERSION);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(call->connect_ms ? call->connect_ms : CONNECT_MS));
    curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(curl, CURLOPT_SOCKOPTFUNCTION, on_socket);
    curl_easy_setopt(curl, CURLOPT_SOCKOPTDATA, t);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    if (call->chunk_bytes)
        curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)call->chunk_bytes);
    if (call->follow) {
        const bool tls = strncasecmp(call->url, "https:", 6) == 0;
        curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
        curl_easy_setopt(curl, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
        curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, tls ? "https" : "http,https");
    }
    if (call->bearer) { /* curl keeps it from other hosts, should it be sent on to one */
        curl_easy_setopt(curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, call->bearer);
    }
    if (call->body) {
        curl_easy_setopt(curl, CURLOPT_POST, 1L);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_len);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, call->body);
    }
    if (call->method)
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
    if (call->method && !strcmp(call->method, "HEAD"))
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
}

enum err_code http_client_new(struct http_client **out, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
    struct http_client *c = calloc(1, sizeof *c);
    if (c) {
        c->multi = curl_multi_init();
        c->curl = curl_easy_init();
    }
    if (!c || !c->multi || !c->curl) {
        http_client_free(c);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    *out = c;
    return OK;
}

void http_client_free(struct http_client *c)
{
    if (!c)
        return;
    curl_easy_cleanup(c->curl);
    curl_multi_cleanup(c->multi);
    free(c);
}

uint64_t http_client_requests(const struct http_client *c)
{
    return c->n_requests;
}

static enum err_code call_check(const struct http_call *call, const char *host, struct err *e)
{
    if (call->bearer && (!call->bearer[0] || !text_printable(call->bearer, strlen(call->bearer))))
        return err_set(e, ERR_ARG, "the API key for %s is empty or has characters in it that no key has", host);
    for (uint32_t i = 0; i < call->n_headers; i++)
        if (!text_printable(call->headers[i], strlen(call->headers[i])))
            return err_set(e, ERR_ARG, "a header of the request to %s has control characters in it", host);
    return OK;
}

/* Messages name who answered, too, when that is somebody else. */
static void name_answerer(const struct http_client *c, char host[2 * HTTP_HOST_SIZE + 16])
{
    char other[HTTP_HOST_SIZE], asked[HTTP_HOST_SIZE], *url = NULL;
    if (curl_easy_getinfo(c->curl, CURLINFO_EFFECTIVE_URL, &url) != CURLE_OK || !url ||
        http_url_host(url, other, NULL) != OK || strcmp(host, other) == 0)
        return;
    snprintf(asked, sizeof asked, "%.*s", HTTP_HOST_SIZE - 1, host);
    snprintf(host, 2 * HTTP_HOST_SIZE + 16, "%s (sent on by %s)", other, asked);
}

enum err_code http_client_call(struct http_client *c, const struct http_call *call, unsigned *status, struct err *e)
{
    char host[2 * HTTP_HOST_SIZE + 16], detail[CURL_ERROR_SIZE] = "", shown[CURL_ERROR_SIZE];
    enum err_code rc = http_url_host(call->url, host, e);
    if (rc == OK)
        rc = call_check(call, host, e);
    if (rc != OK)
        return rc;
    const uint64_t now = clock_now_ns();
    struct transfer t = {.call = call,
                         .head.curl = c->curl,
                         .idle_ns = (call->idle_ms ? call->idle_ms : IDLE_MS) * CLOCK_NS_PER_MS,
                         .last_ns = now,
                         .from_ns = now};
    struct curl_slist *headers = NULL;
    curl_easy_reset(c->curl);
    if (make_headers(call, &headers)) {
        set_options(c->curl, call, &t, headers, detail);
        const CURLcode code = perform(c->multi, c->curl, &t);
        long got = 0, n_sent_on = 0;
        curl_easy_getinfo(c->curl, CURLINFO_REDIRECT_COUNT, &n_sent_on);
        c->n_requests += 1 + (uint64_t)n_sent_on;
        name_answerer(c, host);
        text_clean(detail, strlen(detail), shown, sizeof shown); /* some of it may be the server's words */
        rc = to_err(code, &t, host, shown, e);
        if (rc == OK && curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &got) == CURLE_OK)
            *status = (unsigned)got;
    } else {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    curl_easy_reset(c->curl); /* it knows what lies on this stack */
    curl_slist_free_all(headers);
    buf_free(&t.head.lines);
    return rc;
}

enum err_code http_call(const struct http_call *call, unsigned *status, struct err *e)
{
    struct http_client *c;
    enum err_code rc = http_client_new(&c, e);
    if (rc != OK)
        return rc;
    rc = http_client_call(c, call, status, e);
    http_client_free(c);
    return rc;
}
