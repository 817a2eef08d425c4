/* SPDX-License-Identifier: MIT
 *
 * Ranges over HTTP: what a response must look like to be believed, which failures are worth another try and after what
 * pause, and which end it with this origin. A server may say anything; what it sends is either exactly the range asked
 * for, of the file that was asked for before, or refused.
 */
#include "shard/remote_impl.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FLOOR_B_S        1024u
#define FIRST_PAUSE_MS   250u
#define MAX_PAUSE_MS     8000u
#define MAX_WAIT_S       30u /* a longer Retry-After is a refusal */
#define DOWN_MS          30000u
#define MAX_TIMEOUTS     1u
#define PROGRESS_BYTES   (256u << 10) /* whoever gave that much may fail as often again */
#define MAX_INDEX_WAIT_S 900u
#define MIN_PART_BYTES   (64u << 10) /* who sends less than was asked for at a time takes for ever */
#define SLICE_MS         50

/* One request and what became of it. */
struct attempt {
    struct remote_reader *x;
    struct remote_origin *o;
    struct remote_place *place;
    struct remote_want *w;
    char stamp[REMOTE_STAMP_SIZE]; /* what the place had when it was asked */
    bool strong;                   /* ... is a strong ETag */
    uint64_t end;                  /* of what the response promises */
    uint64_t got;
    bool stopped;     /* put wants no more */
    enum err_code rc; /* why the response was refused */
    struct err err;   /* ... told */
    bool again;       /* another try may help */
    uint32_t retry_s; /* the server asks for such a pause */
};

bool remote_reader_cancelled(void *reader)
{
    struct remote_reader *x = reader;
    return atomic_load(&x->stop) || (x->r->cancelled && x->r->cancelled(x->r->ctx));
}

/* false: cancelled meanwhile. */
static bool rest(struct remote_reader *x, uint64_t ms)
{
    const uint64_t until = clock_now_ns() + ms * CLOCK_NS_PER_MS;
    for (;;) {
        const int left = clock_left_ms(until);
        if (remote_reader_cancelled(x))
            return false;
        if (left <= 0)
            return true;
        const struct timespec slice = {.tv_nsec = (left < SLICE_MS ? left : SLICE_MS) * 1000000L};
        nanosleep(&slice, NULL);
    }
}

/* Half to one and a half times 250 ms, 500 ms, 1 s, ...: those who failed together do not come back together. */
static uint32_t pause_ms(struct remote_reader *x, uint32_t n_failed)
{
    const uint32_t ms = n_failed < 6 ? FIRST_PAUSE_MS << n_failed : MAX_PAUSE_MS;
    x->random = hash_mix64(x->random + 1);
    return ms / 2 + (uint32_t)(x->random % (ms + 1));
}

/* --- what a response is --- */

static bool refuse(struct attempt *a, enum err_code rc)
{
    a->rc = rc;
    return false;
}

static bool status_refused(struct attempt *a, const struct http_head *h)
{
    const unsigned status = http_head_status(h);
    const char *host = a->o->host, *name = a->x->r->files[a->w->file].name;
    a->retry_s = http_head_retry_s(h);
    a->again = status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501 && status != 505);
    switch (status) {
    case 401:
    case 403:
        return refuse(a, err_set(&a->err, ERR_AUTH, "%s does not let us have %s (status %u): %s", host, name, status,
                                 a->x->r->bearer ? "it does not take the token" : "it wants a token"));
    case 404:
    case 410:
        return refuse(a, err_set(&a->err, ERR_NOT_FOUND, "%s has no %s there (status %u)", host, name, status));
    case 416:
        if (a->w->at == 0)
            return refuse(a, err_set(&a->err, ERR_FORMAT, "%s says that %s is empty (status 416)", host, name));
        return refuse(a, err_set(&a->err, ERR_MISMATCH, "%s says %s has no byte %" PRIu64 ": the file there is another",
                                 host, name, a->w->at));
    case 429:
    case 503:
        if (a->retry_s > 0)
            return refuse(a, err_set(&a->err, ERR_BUSY, "%s is busy (status %u) and asks to come back in %u seconds",
                                     host, status, a->retry_s));
        return refuse(a, err_set(&a->err, ERR_BUSY, "%s is busy (status %u)", host, status));
    default:
        return refuse(a, err_set(&a->err, a->again ? ERR_IO : ERR_PROTOCOL, "%s answers status %u when asked for %s",
                                 host, status, name));
    }
}

/* Digits, at most 19 of them, then `after`. */
static bool take_number(const char **text, char after, uint64_t *out)
{
    const char *p = *text;
    uint64_t v = 0;
    while (*p >= '0' && *p <= '9' && p - *text < 19)
        v = v * 10 + (uint64_t)(*p++ - '0');
    if (p == *text || *p != after)
        return false;
    *out = v;
    *text = after ? p + 1 : p;
    return true;
}

bool remote_range_parse(const char *text, uint64_t *from, uint64_t *end, uint64_t *size)
{
    uint64_t last;
    if (!text || strncmp(text, "bytes ", 6) != 0)
        return false;
    text += 6;
    if (!take_number(&text, '-', from) || !take_number(&text, '/', &last) || !take_number(&text, 0, size) ||
        last < *from || last >= *size)
        return false;
    *end = last + 1;
    return true;
}

static void stamp_of(const struct http_head *h, char out[REMOTE_STAMP_SIZE], bool *strong)
{
    const char *etag = http_head_get(h, "etag"), *date = http_head_get(h, "last-modified");
    const char *text = etag && etag[0] ? etag : date ? date : "";
    *strong = text == etag && etag && etag[0] == '"' && strlen(etag) < REMOTE_STAMP_SIZE &&
              text_printable(etag, strlen(etag));
    text_clean(text, strlen(text), out, REMOTE_STAMP_SIZE);
}

static bool changed(struct attempt *a, const char *was, const char *now)
{
    return refuse(a, err_set(&a->err, ERR_MISMATCH, "%s changed at %s while it was read: it was %.60s, now it is %.60s",
                             a->x->r->files[a->w->file].name, a->o->host, was[0] ? was : "without an ETag",
                             now[0] ? now : "without an ETag"));
}

/* 206: exactly ours, or a beginning of it, of a file as long as the others say. *size: how long. */
static bool range_fits(struct attempt *a, const struct http_head *h, uint64_t *size)
{
    struct remote_file *f = &a->x->r->files[a->w->file];
    uint64_t from, end;
    const char *text = http_head_get(h, "content-range");
    if (!remote_range_parse(text, &from, &end, size)) {
        char shown[64];
        text_clean(text ? text : "", text ? strlen(text) : 0, shown, sizeof shown);
        return refuse(a, err_set(&a->err, ERR_PROTOCOL,
                                 "%s does not say which bytes of %s it sends and how many there are: content-range "
                                 "is '%s'",
                                 a->o->host, f->name, shown));
    }
    pthread_mutex_lock(&a->x->r->lock);
    const uint64_t known_size = f->size_known ? f->size : *size;
    pthread_mutex_unlock(&a->x->r->lock);
    const uint64_t wanted = a->w->end < known_size ? a->w->end : known_size;
    if (*size != known_size)
        return refuse(a, err_set(&a->err, ERR_MISMATCH, "%s at %s has %" PRIu64 " bytes; it should have %" PRIu64,
                                 f->name, a->o->host, *size, known_size));
    if (from != a->w->at || end > wanted)
        return refuse(a, err_set(&a->err, ERR_PROTOCOL,
                                 "%s sends bytes %" PRIu64 "-%" PRIu64 " of %s when asked for %" PRIu64 "-%" PRIu64,
                                 a->o->host, from, end - 1, f->name, a->w->at, wanted - 1));
    if (end < wanted && end - from < MIN_PART_BYTES)
        return refuse(a, err_set(&a->err, ERR_PROTOCOL,
                                 "%s sends only %" PRIu64 " bytes of %s at a time when asked for %" PRIu64, a->o->host,
                                 end - from, f->name, wanted - from));
    a->end = end;
    return true;
}

/* Is it the file of the responses before, by its stamp? The first that is believed says what the place is like, and how
 * long the file is. */
static bool place_fits(struct attempt *a, const struct http_head *h, uint64_t size)
{
    struct remote_file *f = &a->x->r->files[a->w->file];
    char stamp[REMOTE_STAMP_SIZE], was[REMOTE_STAMP_SIZE] = "";
    bool strong;
    stamp_of(h, stamp, &strong);
    const char *url = http_head_url(h);
    pthread_mutex_lock(&a->x->r->lock);
    const bool same = !a->place->known || strcmp(stamp, a->place->stamp) == 0;
    if (!same)
        memcpy(was, a->place->stamp, sizeof was);
    if (!a->place->known) {
        a->place->known = true;
        a->place->strong = strong;
        memcpy(a->place->stamp, stamp, sizeof stamp);
    }
    if (same && !f->size_known) {
        f->size = size;
        f->size_known = true;
    }
    if (same && !a->place->direct && !http_url_same_site(url, a->place->url))
        a->place->direct = strdup(url);
    pthread_mutex_unlock(&a->x->r->lock);
    if (!same)
        return changed(a, was, stamp);
    a->w->end = a->w->end < size ? a->w->end : size;
    return true;
}

static bool on_head(void *ctx, const struct http_head *h)
{
    struct attempt *a = ctx;
    const unsigned status = http_head_status(h);
    char stamp[REMOTE_STAMP_SIZE];
    uint64_t size;
    bool strong;
    if (status == 206)
        return range_fits(a, h, &size) && place_fits(a, h, size);
    if (status != 200)
        return status_refused(a, h);
    stamp_of(h, stamp, &strong);
    if (a->stamp[0] && strcmp(stamp, a->stamp) != 0)
        return changed(a, a->stamp, stamp);
    return refuse(a, err_set(&a->err, ERR_PROTOCOL,
                             "%s sends all of %s when asked for a part: a server with range requests is needed",
                             a->o->host, a->x->r->files[a->w->file].name));
}

static bool on_data(void *ctx, const void *data, size_t len)
{
    struct attempt *a = ctx;
    atomic_fetch_add(&a->x->r->body_bytes, (unsigned long long)len);
    if (atomic_load(&a->o->distrusted))
        return refuse(a, err_set(&a->err, ERR_MISMATCH, "%s sent wrong bytes before", a->o->host));
    if (len > a->end - a->w->at)
        return refuse(a, err_set(&a->err, ERR_PROTOCOL, "%s sends more bytes than it said", a->o->host));
    *a->w->origin = (uint32_t)(a->o - a->x->r->origins);
    if (!a->w->put(a->w->ctx, data, len)) {
        a->stopped = true;
        return false;
    }
    a->w->at += len;
    a->got += len;
    return true;
}

static bool on_cancelled(void *ctx)
{
    return remote_reader_cancelled(((struct attempt *)ctx)->x);
}

static void count_requests(struct remote_reader *x)
{
    const uint64_t n = http_client_requests(x->client);
    atomic_fetch_add(&x->r->n_requests, (unsigned long long)(n - x->n_requests));
    x->n_requests = n;
}

/* One request for what is left of w. direct: straight to where a redirect led; NULL: to the URL as it was given. */
static enum err_code request(struct attempt *a, const char *direct, struct err *e)
{
    const struct remote *r = a->x->r;
    char range[80], if_range[REMOTE_STAMP_SIZE + 16];
    const char *headers[2] = {range, if_range};
    unsigned status;
    snprintf(range, sizeof range, "Range: bytes=%" PRIu64 "-%" PRIu64, a->w->at, a->w->end - 1);
    snprintf(if_range, sizeof if_range, "If-Range: %s", a->stamp);
    const struct http_call call = {.url = direct ? direct : a->place->url,
                                   .bearer = direct ? NULL : r->bearer, /* `direct` is another site */
                                   .headers = headers,
                                   .n_headers = a->strong ? 2 : 1,
                                   .connect_ms = r->connect_ms,
                                   .idle_ms = r->idle_ms,
                                   .floor_b_s = FLOOR_B_S,
                                   .chunk_bytes = r->chunk_bytes,
                                   .window_bytes = r->window_bytes,
                                   .follow = true,
                                   .plain = true,
                                   .ctx = a,
                                   .on_head = on_head,
                                   .on_data = on_data,
                                   .cancelled = on_cancelled};
    a->rc = OK;
    const enum err_code rc = http_client_call(a->x->client, &call, &status, e);
    count_requests(a->x);
    if (a->rc != OK) {
        if (e)
            *e = a->err;
        return a->rc;
    }
    const bool cut = rc == OK && a->w->at < a->end; /* it did not say how long the body is, and closed the connection */
    a->again = cut || rc == ERR_IO || rc == ERR_TIMEOUT;
    return cut ? err_set(e, ERR_IO, "%s sent fewer bytes than it said", a->o->host) : rc;
}

/* --- asking until it is done --- */

static void place_read(struct attempt *a, char **direct)
{
    struct remote_place *p = a->place;
    pthread_mutex_lock(&a->x->r->lock);
    a->strong = p->strong;
    memcpy(a->stamp, p->stamp, sizeof a->stamp);
    *direct = p->direct ? strdup(p->direct) : NULL;
    pthread_mutex_unlock(&a->x->r->lock);
}

/* Signed addresses expire: the next request takes the long way again. */
static void direct_forget(struct attempt *a, const char *direct)
{
    pthread_mutex_lock(&a->x->r->lock);
    if (a->place->direct && strcmp(a->place->direct, direct) == 0) {
        free(a->place->direct);
        a->place->direct = NULL;
    }
    pthread_mutex_unlock(&a->x->r->lock);
}

/* After a failure: the pause before another try, or false when this origin is not asked again now. */
static bool try_again(struct attempt *a, enum err_code rc, bool others, uint32_t *n_failed, uint32_t *n_timeouts,
                      uint64_t *wait_ms)
{
    if (!a->again || a->retry_s > MAX_WAIT_S)
        return false;
    if (a->got >= PROGRESS_BYTES)
        *n_failed = *n_timeouts = 0;
    *n_timeouts += rc == ERR_TIMEOUT;
    if (*n_timeouts > (others ? 0 : MAX_TIMEOUTS) || *n_failed >= a->x->r->n_retries)
        return false;
    *wait_ms = pause_ms(a->x, (*n_failed)++);
    if (*wait_ms < a->retry_s * 1000ull)
        *wait_ms = a->retry_s * 1000ull;
    return true;
}

enum err_code remote_ask(struct remote_reader *x, uint32_t origin, struct remote_want *w, bool others,
                         uint32_t *down_ms, struct err *e)
{
    struct remote_origin *o = &x->r->origins[origin];
    uint32_t n_failed = 0, n_timeouts = 0;
    bool long_way = false; /* the short one has just failed */
    while (w->at < w->end) {
        struct attempt a = {.x = x, .o = o, .place = &o->places[w->file], .w = w};
        char *direct;
        uint64_t wait_ms = 0;
        place_read(&a, &direct);
        if (long_way) {
            free(direct);
            direct = NULL;
        }
        const enum err_code rc = request(&a, direct, e);
        long_way = rc != OK && direct && a.got == 0 && !a.stopped && rc != ERR_CANCELLED;
        if (rc != OK && direct)
            direct_forget(&a, direct);
        free(direct);
        if (rc == OK || long_way)
            continue;
        *down_ms = a.again ? DOWN_MS : UINT32_MAX;
        if (a.stopped || rc == ERR_CANCELLED || rc == ERR_NOMEM)
            return rc;
        if (a.again && a.retry_s > MAX_WAIT_S)
            *down_ms = a.retry_s < 3600 ? a.retry_s * 1000 : 3600u * 1000;
        if (!try_again(&a, rc, others, &n_failed, &n_timeouts, &wait_ms))
            return rc;
        log_info("pull", "%s; trying again in %u ms", e ? e->msg : o->host, (unsigned)wait_ms);
        if (!rest(x, wait_ms))
            return err_set(e, ERR_CANCELLED, "reading from %s was stopped", o->host);
    }
    return OK;
}

/* --- whole small files --- */

struct whole {
    struct remote_reader *x;
    struct buf *out;
    size_t max;
    unsigned status;
    uint32_t retry_s;
    bool too_large;
};

static bool whole_head(void *ctx, const struct http_head *h)
{
    struct whole *w = ctx;
    w->status = http_head_status(h);
    w->retry_s = http_head_retry_s(h);
    return w->status == 200;
}

static bool whole_data(void *ctx, const void *data, size_t len)
{
    struct whole *w = ctx;
    atomic_fetch_add(&w->x->r->body_bytes, (unsigned long long)len);
    w->too_large = len > w->max - w->out->len;
    if (!w->too_large)
        buf_put(w->out, data, len);
    return !w->too_large && !w->out->failed;
}

static bool whole_cancelled(void *ctx)
{
    return remote_reader_cancelled(((struct whole *)ctx)->x);
}

static enum err_code get_once(struct whole *w, const char *url, bool with_token, const char *host, struct err *e)
{
    const struct remote *r = w->x->r;
    const struct http_call call = {.url = url,
                                   .bearer = with_token ? r->bearer : NULL,
                                   .connect_ms = r->connect_ms,
                                   .idle_ms = r->idle_ms,
                                   .floor_b_s = FLOOR_B_S,
                                   .follow = true,
                                   .plain = true,
                                   .ctx = w,
                                   .on_head = whole_head,
                                   .on_data = whole_data,
                                   .cancelled = whole_cancelled};
    unsigned status;
    w->status = 0;
    w->retry_s = 0;
    buf_clear(w->out);
    const enum err_code rc = http_client_call(w->x->client, &call, &status, e);
    count_requests(w->x);
    if (w->out->failed)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (w->too_large)
        return err_set(e, ERR_LIMIT, "the index at %s has more than %zu bytes", host, w->max);
    if (w->status == 0 || w->status == 200)
        return rc;
    if (w->status == 404 || w->status == 410 || w->status == 403)
        return err_set(e, ERR_NOT_FOUND, "%s has no index of it (status %u)", host, w->status);
    if (w->status == 401)
        return err_set(e, ERR_AUTH, "%s does not let us have the index (status 401)", host);
    return err_set(e, w->status == 503 || w->status == 429 ? ERR_BUSY : ERR_IO,
                   "%s answers status %u when asked for the index", host, w->status);
}

enum err_code remote_get(struct remote_reader *x, const char *url, bool with_token, size_t max, struct buf *out,
                         struct err *e)
{
    struct whole w = {.x = x, .out = out, .max = max};
    char host[HTTP_HOST_SIZE];
    enum err_code rc = http_url_host(url, host, e);
    bool told = false;
    const uint64_t deadline = clock_now_ns() + MAX_INDEX_WAIT_S * CLOCK_NS_PER_S;
    for (uint32_t n_failed = 0; rc == OK;) {
        rc = get_once(&w, url, with_token, host, e);
        if (rc == ERR_BUSY && w.retry_s > 0 && x->r->no_wait)
            return err_set(e, ERR_NOT_FOUND, "%s does not have the index yet", host);
        const bool soon = rc == ERR_BUSY && w.retry_s > 0 && w.retry_s <= MAX_WAIT_S && clock_now_ns() < deadline;
        const bool again = rc == ERR_IO || rc == ERR_TIMEOUT || rc == ERR_BUSY;
        if (rc == OK || (!soon && (!again || n_failed >= x->r->n_retries)))
            break;
        if (soon && !told)
            log_warn("pull", "%s does not have the index yet (status %u): waiting", host, w.status);
        told |= soon;
        const uint64_t ms = soon ? w.retry_s * 1000ull : pause_ms(x, n_failed++);
        rc = rest(x, ms) ? OK : err_set(e, ERR_CANCELLED, "waiting for the index of %s was stopped", host);
    }
    return rc;
}
