/* SPDX-License-Identifier: MIT
 *
 * One HTTP request by libcurl. By its multi interface, though there is only one: the easy one looks up once a second
 * only, too seldom for somebody who has pressed Ctrl-C.
 */
#include "http/client.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/text.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CONNECT_MS 5000u
#define IDLE_MS    60000u
#define LOOK_MS    50 /* between two looks at cancelled() */

struct transfer {
    const struct http_call *call;
    uint64_t idle_ns;     /* silence longer than that ends it */
    uint64_t last_ns;     /* when bytes moved last */
    curl_off_t moved;     /* bytes, both ways */
    bool idle, cancelled; /* why it was ended */
};

static void global_init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    const size_t len = size * n;
    t->last_ns = clock_now_ns();
    if (t->call->on_data && !t->call->on_data(t->call->ctx, data, len)) {
        t->cancelled = true;
        return CURL_WRITEFUNC_ERROR;
    }
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

static CURLcode perform(CURLM *multi, CURL *curl, struct transfer *t)
{
    CURLMcode code = curl_multi_add_handle(multi, curl);
    CURLcode result = CURLE_OUT_OF_MEMORY;
    for (int running = 1; code == CURLM_OK;) {
        code = curl_multi_perform(multi, &running);
        if (!running || code != CURLM_OK || t->cancelled)
            break;
        if (t->call->cancelled && t->call->cancelled(t->call->ctx))
            t->cancelled = true;
        else if (clock_now_ns() - t->last_ns > t->idle_ns)
            t->idle = true;
        if (t->cancelled || t->idle)
            break;
        code = curl_multi_poll(multi, NULL, 0, LOOK_MS, NULL);
    }
    int left;
    for (const CURLMsg *m; (m = curl_multi_info_read(multi, &left));)
        if (m->msg == CURLMSG_DONE)
            result = m->data.result;
    curl_multi_remove_handle(multi, curl);
    return result;
}

/* "host:port" of the URL for messages; without a user and a password that may be in it. */
static enum err_code host_of(const char *url, char *out, size_t size, struct err *e)
{
    char *scheme = NULL, *host = NULL, *port = NULL;
    enum err_code rc = OK;
    CURLU *u = curl_url();
    if (!u)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_HOST, &host, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) != CURLUE_OK ||
        (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
        rc = err_set(e, ERR_ARG, "that is not a URL which can be asked%s%.100s: http://host:port/path is one",
                     host ? ", on host " : "", host ? host : "");
    else
        snprintf(out, size, "%.200s:%.6s", host, port);
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return rc;
}

static enum err_code to_err(CURLcode code, const struct transfer *t, const char *host, const char *detail,
                            struct err *e)
{
    const char *why = detail[0] ? detail : curl_easy_strerror(code);
    if (t->cancelled)
        return err_set(e, ERR_CANCELLED, "the request to %s was stopped", host);
    if (t->idle)
        return err_set(e, ERR_TIMEOUT, "%s sent nothing for %u seconds", host, (unsigned)(t->idle_ns / CLOCK_NS_PER_S));
    switch (code) {
    case CURLE_OK:
        return OK;
    case CURLE_URL_MALFORMAT:
        return err_set(e, ERR_ARG, "the URL for %s is malformed: %.150s", host, why);
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
    return ok;
}

static void set_options(CURL *curl, const struct http_call *call, struct transfer *t, struct curl_slist *headers,
                        char *detail)
{
    curl_easy_setopt(curl, CURLOPT_URL, call->url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "kvasir/" KVASIR_VERSION);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(call->connect_ms ? call->connect_ms : CONNECT_MS));
    curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
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

enum err_code http_call(const struct http_call *call, unsigned *status, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
    char host[256], detail[CURL_ERROR_SIZE] = "";
    enum err_code rc = host_of(call->url, host, sizeof host, e);
    if (rc != OK)
        return rc;
    struct transfer t = {.call = call,
                         .idle_ns = (call->idle_ms ? call->idle_ms : IDLE_MS) * CLOCK_NS_PER_MS,
                         .last_ns = clock_now_ns()};
    if (call->bearer && (!call->bearer[0] || !text_printable(call->bearer, strlen(call->bearer))))
        return err_set(e, ERR_ARG, "the API key for %s is empty or has characters in it that no key has", host);
    CURLM *multi = curl_multi_init();
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = NULL;
    if (multi && curl && make_headers(call, &headers)) {
        set_options(curl, call, &t, headers, detail);
        const CURLcode code = perform(multi, curl, &t);
        long got = 0;
        rc = to_err(code, &t, host, detail, e);
        if (rc == OK && curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &got) == CURLE_OK)
            *status = (unsigned)got;
    } else {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    curl_multi_cleanup(multi);
    return rc;
}
