/* SPDX-License-Identifier: MIT
 *
 * A soak of the API: 64 clients at the three nodes of a ring ask, stream, go away at random, stop in the middle, send
 * what is malformed, oversized, slow or never complete. Every answer is the one the ring gave when it had nothing else
 * to do; afterwards nothing holds a slot and no memory is lost. What a client does next follows from a fixed seed; when
 * it does so does not, and each does a few things however long that takes. KV_SOAK_S: seconds (4).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "lib/api_rig.h"
#include "lib/test_util.h"
#include "lib/web.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <yyjson.h>

#define MODEL     "llama-tied-f32"
#define N_CLIENTS 64u
#define N_SLOTS   6u
#define N_WAITING 48u /* fewer places than clients: some get 429 and ask again */
#define N_CASES   16u
#define MIN_DEEDS 4u         /* of a client in each half */
#define MAX_BODY  (8u << 20) /* the server's default */
#define MAX_GROWN (4 << 20)  /* of memory in the second half */
#define MAX_HEAP  (1 << 20)  /* of what is allocated */
#define CHATS     "/v1/chat/completions"

enum kind {
    WHOLE,
    STREAM,
    SLOW,  /* in small pieces, taken late */
    ABORT, /* after a random number of bytes */
    MALFORMED,
    OVERSIZED,
    NO_ROUTE,
    CUT,   /* gone in the middle of the request */
    QUIET, /* half a request, then silence: closed by the node */
    N_KINDS
};

static const char *const kind_names[N_KINDS] = {"whole",     "streamed", "slow", "aborted", "malformed",
                                                "oversized", "no route", "cut",  "quiet"};

static const struct ask {
    const char *path, *body, *stop; /* the body without its last brace; stop: what is cut out of the answer */
} asks[N_CASES / 2] = {
    {CHATS, "{\"temperature\":0,\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]", NULL},
    {CHATS, "{\"temperature\":0,\"max_tokens\":30,\"messages\":[{\"role\":\"user\",\"content\":\"A ship.\"}]", NULL},
    {CHATS,
     "{\"temperature\":0,\"max_tokens\":16,\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
     "{\"role\":\"user\",\"content\":\"Why is the sea salt?\"}]",
     NULL},
    {CHATS, "{\"seed\":11,\"max_tokens\":12,\"messages\":[{\"role\":\"user\",\"content\":\"Roll a die\"}]", NULL},
    {"/v1/completions", "{\"temperature\":0,\"max_tokens\":9,\"prompt\":\"Once\"", NULL},
    {"/v1/completions", "{\"temperature\":0,\"max_tokens\":24,\"prompt\":\"The ship went out to\"", NULL},
    {"/v1/completions", "{\"temperature\":0,\"max_tokens\":1,\"prompt\":\"Once upon a time there was a cat\"", NULL},
    {"/v1/completions", "{\"seed\":5,\"max_tokens\":20,\"prompt\":\"One two three\"", NULL},
};

static const char *const bad_bodies[] = {
    "",
    "{",
    "[]",
    "null",
    "{}",
    "{\"messages\":5}",
    "{\"messages\":[]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":{}}]}",
    "{\"messages\":[{\"role\":7,\"content\":\"a\"}]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":\"x\"}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"temperature\":[1]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":\"yes\"}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stop\":9}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"n\":-1}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}",
};

/* A request and what it is answered with. */
struct sample {
    const char *path;
    char body[2][512]; /* whole, streamed */
    char text[512], finish[16];
};

struct client {
    pthread_t thread;
    uint64_t random;
    uint32_t at;      /* the rank of the next request */
    struct web quiet; /* half a request, open */
    bool has_quiet;
    unsigned n[N_KINDS], n_compared, n_busy;
};

static struct soak {
    struct api_rig *rig;
    struct sample samples[N_CASES];
    struct client clients[N_CLIENTS];
    uint64_t until;
    atomic_bool failed;
    pthread_mutex_t mutex;
    char why[2048]; /* the first failure; guarded by mutex */
} soak;

static void failed(const char *fmt, ...) KV_PRINTF(1, 2);
static void failed(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    pthread_mutex_lock(&soak.mutex);
    if (!atomic_exchange(&soak.failed, true))
        vsnprintf(soak.why, sizeof soak.why, fmt, args);
    pthread_mutex_unlock(&soak.mutex);
    va_end(args);
}

static uint32_t below(struct client *c, uint32_t n)
{
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return (uint32_t)((c->random >> 20) % n);
}

/* --- answers ------------------------------------------------------------------------------------- */

static void take_choice(yyjson_val *root, char text[512], char finish[16])
{
    yyjson_val *c = yyjson_arr_get(yyjson_obj_get(root, "choices"), 0);
    yyjson_val *m = yyjson_obj_get(c, "message"), *d = yyjson_obj_get(c, "delta");
    const char *t = yyjson_get_str(yyjson_obj_get(m ? m : d ? d : c, m || d ? "content" : "text"));
    const char *f = yyjson_get_str(yyjson_obj_get(c, "finish_reason"));
    if (t)
        strncat(text, t, 511 - strlen(text));
    if (f)
        snprintf(finish, 16, "%s", f);
}

/* The text of an answer with status 200. false: it has not the shape of one. */
static bool take_answer(struct web *w, bool streamed, char text[512], char finish[16])
{
    const char *p = web_body(w), *end;
    bool done = !streamed;
    text[0] = finish[0] = 0;
    if (!streamed) {
        yyjson_doc *d = yyjson_read(p, w->body.len, 0);
        take_choice(yyjson_doc_get_root(d), text, finish);
        yyjson_doc_free(d);
    }
    for (; streamed && *p && (end = strstr(p, "\n\n")); p = end + 2) {
        if (*p == ':')
            continue;
        if (done || strncmp(p, "data: ", 6) != 0)
            return false;
        done = strncmp(p, "data: [DONE]\n", 13) == 0;
        yyjson_doc *d = done ? NULL : yyjson_read(p + 6, (size_t)(end - p) - 6, 0);
        if (!done && !d)
            return false;
        take_choice(yyjson_doc_get_root(d), text, finish);
        yyjson_doc_free(d);
    }
    return done && finish[0];
}

/* Compares what came with what came when the ring had nothing else to do. */
static void compare(struct client *c, struct web *w, const struct sample *s, bool streamed)
{
    char text[512], finish[16];
    if (w->status != 200 || !take_answer(w, streamed, text, finish))
        failed("%s: status %u, no answer: %.1500s", s->body[streamed], w->status, buf_str(&w->raw));
    else if (strcmp(text, s->text) != 0 || strcmp(finish, s->finish) != 0)
        failed("%s:\n\"%s\" (%s), but alone\n\"%s\" (%s)", s->body[streamed], text, finish, s->text, s->finish);
    else
        c->n_compared++;
}

/* A sample for each kind of request, plain and with a stop string from the middle of the plain answer. */
static void make_samples(void)
{
    for (uint32_t i = 0; i < N_CASES; i++) {
        struct sample *s = &soak.samples[i], *plain = &soak.samples[i & ~1u];
        const struct ask *a = &asks[i / 2];
        struct buf stop = {0};
        struct web w;
        s->path = a->path;
        if (i % 2) {
            size_t len = strlen(plain->text);
            buf_puts(&stop, ",\"stop\":[\"no such text\",");
            text_put_json(&stop, plain->text + len / 2, len / 2 < 3 ? len - len / 2 : 3);
            buf_puts(&stop, "]");
        }
        snprintf(s->body[0], sizeof s->body[0], "%s%s}", a->body, buf_str(&stop));
        snprintf(s->body[1], sizeof s->body[1], "%s%s,\"stream\":true}", a->body, buf_str(&stop));
        if (!web_call(&w, api_rig_port(soak.rig, i % 3), "POST", s->path, NULL, s->body[0]) || w.status != 200 ||
            !take_answer(&w, false, s->text, s->finish))
            fail_msg("%s: %s", s->body[0], buf_str(&w.raw));
        if (i % 2) {
            assert_string_equal(s->finish, "stop");
            assert_memory_equal(s->text, plain->text, strlen(s->text));
        } else {
            assert_true(strlen(s->text) > 0);
        }
        web_free(&w);
        buf_free(&stop);
    }
}

/* --- what a client does -------------------------------------------------------------------------- */

static bool dial(struct web *w, uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    *w = (struct web){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (w->fd >= 0 && connect(w->fd, (struct sockaddr *)&to, sizeof to) == 0)
        return true;
    failed("no connection to port %u", port);
    return false;
}

/* Sends bytes; false when the other side has had enough of them. */
static bool put(struct web *w, const char *data, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = send(w->fd, data + done, len - done, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static void put_request(struct buf *out, const struct sample *s, bool streamed)
{
    const char *body = s->body[streamed];
    buf_printf(out,
               "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
               "Content-Length: %zu\r\n\r\n%s",
               s->path, strlen(body), body);
}

/* All of a request, in pieces when it is slow. */
static bool ask(struct client *c, struct web *w, uint16_t port, const struct sample *s, bool streamed, bool slow)
{
    struct buf out = {0};
    bool ok = dial(w, port);
    put_request(&out, s, streamed);
    for (size_t at = 0, n; ok && at < out.len; at += n) {
        n = slow ? 1 + below(c, 60) : out.len;
        n = n < out.len - at ? n : out.len - at;
        ok = put(w, (const char *)out.data + at, n);
        if (slow)
            usleep(below(c, 4000));
    }
    buf_free(&out);
    return ok;
}

static void ask_and_compare(struct client *c, uint16_t port, bool streamed, bool slow)
{
    const struct sample *s = &soak.samples[below(c, N_CASES)];
    uint64_t deadline = clock_deadline_ms(2 * API_RIG_MS);
    for (bool busy = true; busy && !atomic_load(&soak.failed);) {
        struct web w;
        bool whole = ask(c, &w, port, s, streamed, slow);
        if (slow)
            usleep(below(c, 30000));
        whole = whole && web_end(&w, API_RIG_MS);
        bool late = slow && whole && w.status == 408; /* slower than it wanted to be */
        busy = late || (whole && w.status == 429);
        if (!whole)
            failed("%s: no whole answer: %.1500s", s->body[streamed], buf_str(&w.raw));
        else if (busy && !late && !web_header(&w, "retry-after"))
            failed("a 429 without retry-after");
        else if (busy && clock_now_ns() > deadline)
            failed("busy all the time");
        else if (!busy)
            compare(c, &w, s, streamed);
        c->n_busy += busy;
        web_free(&w);
        if (busy)
            usleep(10000 + below(c, 50000));
    }
}

/* Goes away after some bytes of an answer that would be long. Some close politely, some with a reset. */
static void ask_and_go(struct client *c, uint16_t port)
{
    const char *body = below(c, 2) ? "{\"prompt\":\"Once\",\"max_tokens\":300,\"stream\":true}"
                                   : "{\"prompt\":\"Once\",\"max_tokens\":300}";
    struct web w;
    if (!web_send(&w, port, "POST", "/v1/completions", NULL, body))
        failed("no connection");
    size_t want = below(c, 4) ? below(c, 6000) : 0;
    char part[512];
    struct timeval patience = {.tv_usec = 20000 + (int)below(c, 200000)};
    setsockopt(w.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (size_t had = 0; had < want;) {
        ssize_t n = recv(w.fd, part, want - had < sizeof part ? want - had : sizeof part, 0);
        if (n <= 0)
            break;
        had += (size_t)n;
    }
    if (below(c, 2))
        web_drop(&w);
    web_free(&w);
}

/* A request that is refused at once, with this status. */
static void refused(uint16_t port, const char *method, const char *path, const char *body, unsigned status)
{
    struct web w;
    if (!web_call(&w, port, method, path, NULL, body) || w.status != status ||
        !strstr(web_body(&w), "\"error\":{\"message\":\""))
        failed("%s %s %s: not %u: %.1500s", method, path, body ? body : "", status, buf_str(&w.raw));
    web_free(&w);
}

static void send_malformed(struct client *c, uint16_t port)
{
    static const char garbage[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\nGET\r\n\r\n";
    struct web w;
    if (below(c, 4)) {
        refused(port, "POST", CHATS, bad_bodies[below(c, sizeof bad_bodies / sizeof *bad_bodies)], 400);
        return;
    }
    if (dial(&w, port) && put(&w, garbage, sizeof garbage - 1)) {
        (void)web_end(&w, API_RIG_MS); /* an answer or none: the connection ends */
        if (w.fd >= 0 || w.status == 200)
            failed("what is no HTTP: status %u, %s", w.status, w.fd < 0 ? "closed" : "still open");
    }
    web_free(&w);
}

/* A body beyond the limit, or a head: the node says so or closes, whatever of it has been sent. */
static void send_oversized(struct client *c, uint16_t port)
{
    char fill[4096], head[160];
    bool in_head = below(c, 2);
    struct web w;
    memset(fill, 'a', sizeof fill);
    int n = in_head ? snprintf(head, sizeof head, "GET /health HTTP/1.1\r\nHost: a\r\nX-Fill: ")
                    : snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %u\r\n\r\n", CHATS,
                               MAX_BODY + 1 + below(c, 1u << 30));
    if (dial(&w, port) && put(&w, head, (size_t)n)) {
        for (uint32_t k = in_head ? 8 : below(c, 8); k > 0 && put(&w, fill, sizeof fill); k--)
            ;
        (void)web_end(&w, API_RIG_MS);
        if (w.fd >= 0 || (w.status != 0 && w.status != (in_head ? 431 : 413)))
            failed("too large a %s: status %u, %s", in_head ? "head" : "body", w.status,
                   w.fd < 0 ? "closed" : "still open");
    }
    web_free(&w);
}

/* A part of a request, at least one byte short. */
static bool send_part(struct client *c, struct web *w, uint16_t port)
{
    struct buf out = {0};
    put_request(&out, &soak.samples[below(c, N_CASES)], below(c, 2));
    bool ok = dial(w, port) && put(w, (const char *)out.data, below(c, (uint32_t)out.len));
    buf_free(&out);
    return ok;
}

static void send_and_cut(struct client *c, uint16_t port)
{
    struct web w;
    if (send_part(c, &w, port)) {
        usleep(below(c, 3) ? 0 : below(c, 20000));
        if (below(c, 2))
            web_drop(&w);
    }
    web_free(&w);
}

static void end_quiet(struct client *c)
{
    if (!c->has_quiet)
        return;
    (void)web_end(&c->quiet, API_RIG_MS);
    if (c->quiet.fd >= 0 || (c->quiet.status != 0 && c->quiet.status != 408))
        failed("half a request: status %u, %s", c->quiet.status, c->quiet.fd < 0 ? "closed" : "still open");
    web_free(&c->quiet);
    c->has_quiet = false;
}

/* The node closes what stays half: clients do other things meanwhile, and look at it when they would begin another. */
static void stay_quiet(struct client *c, uint16_t port)
{
    char byte;
    if (c->has_quiet && recv(c->quiet.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0)
        end_quiet(c);
    if (c->has_quiet)
        return;
    c->n[QUIET]++;
    c->has_quiet = send_part(c, &c->quiet, port);
}

static enum kind pick_kind(struct client *c)
{
    static const uint8_t share[N_KINDS] = {24, 26, 10, 16, 8, 4, 4, 6, 2}; /* of 100 */
    uint32_t at = below(c, 100), k = 0;
    while (at >= share[k])
        at -= share[k++];
    return k == QUIET && (c - soak.clients) % 8 ? CUT : (enum kind)k; /* few of them at a time */
}

static void *client_run(void *arg)
{
    struct client *c = arg;
    for (unsigned n = 0; (n < MIN_DEEDS || clock_now_ns() < soak.until) && !atomic_load(&soak.failed); n++) {
        uint16_t port = api_rig_port(soak.rig, c->at++ % API_RIG_RANKS);
        enum kind k = pick_kind(c);
        c->n[k] += k != QUIET; /* which is not always one more */
        switch (k) {
        case WHOLE:
        case STREAM:
            ask_and_compare(c, port, k == STREAM, false);
            break;
        case SLOW:
            ask_and_compare(c, port, below(c, 2), true);
            break;
        case ABORT:
            ask_and_go(c, port);
            break;
        case MALFORMED:
            send_malformed(c, port);
            break;
        case OVERSIZED:
            send_oversized(c, port);
            break;
        case NO_ROUTE:
            refused(port, below(c, 2) ? "GET" : "POST", "/v1/nothing", below(c, 2) ? "{}" : NULL, 404);
            break;
        case CUT:
            send_and_cut(c, port);
            break;
        default:
            stay_quiet(c, port);
            break;
        }
    }
    return NULL;
}

/* --- afterwards ---------------------------------------------------------------------------------- */

static long resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    char line[128] = "", *second;
    malloc_trim(0);
    if (!f || !fgets(line, sizeof line, f) || !(second = strchr(line, ' ')))
        fail_msg("no /proc/self/statm");
    long pages = strtol(second, NULL, 10);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Nothing runs at any rank, and every rank says so. */
static void nothing_runs(void)
{
    uint64_t deadline = clock_deadline_ms(API_RIG_MS);
    api_rig_idle(soak.rig);
    for (uint32_t i = 0; i < API_RIG_RANKS; i++) {
        bool none = false;
        while (!none) {
            struct web w;
            assert_true(web_call(&w, api_rig_port(soak.rig, i), "GET", "/metrics", NULL, NULL));
            none = strstr(web_body(&w), "\nkvasir_requests_running 0\n") != NULL;
            if (!none && clock_now_ns() > deadline)
                fail_msg("rank %u still has requests: %s", i, web_body(&w));
            web_free(&w);
        }
    }
}

/* As many requests as there are slots have one each. */
static void every_slot_is_free(void)
{
    const struct sample *longest = &soak.samples[2]; /* 30 tokens */
    struct web w[N_SLOTS];
    api_rig_hold(soak.rig);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        assert_true(
            web_send(&w[i], api_rig_port(soak.rig, i % API_RIG_RANKS), "POST", longest->path, NULL, longest->body[0]));
    api_rig_until(soak.rig, N_SLOTS, 0);
    /* Who came after the steps in flight were made gets a slot when one of them is back. None ends in so few. */
    api_rig_allow(soak.rig, 16);
    api_rig_until(soak.rig, N_SLOTS, N_SLOTS);
    api_rig_release(soak.rig);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        assert_true(web_end(&w[i], API_RIG_MS));
        compare(&soak.clients[i], &w[i], longest, false);
        web_free(&w[i]);
    }
    api_rig_idle(soak.rig);
}

/* All clients at once for so long. */
static void run_clients(uint64_t ns)
{
    struct err e;
    soak.until = clock_now_ns() + ns;
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        if (thread_start(&soak.clients[i].thread, "client", client_run, &soak.clients[i], &e) != OK)
            fail_msg("%s", e.msg);
    }
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        pthread_join(soak.clients[i].thread, NULL);
    if (atomic_load(&soak.failed))
        fail_msg("%s", soak.why);
    nothing_runs();
}

static void report(uint64_t ns, const long rss[2], const size_t heap[2])
{
    unsigned n[N_KINDS] = {0}, n_compared = 0, n_busy = 0;
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        for (uint32_t k = 0; k < N_KINDS; k++)
            n[k] += soak.clients[i].n[k];
        n_compared += soak.clients[i].n_compared;
        n_busy += soak.clients[i].n_busy;
    }
    printf("soak of %.0f s:", (double)ns / CLOCK_NS_PER_S);
    for (uint32_t k = 0; k < N_KINDS; k++)
        printf(" %u %s,", n[k], kind_names[k]);
    printf(" %u answers compared, %u times busy; resident %+ld KiB, heap %+ld KiB in the second half\n", n_compared,
           n_busy, (rss[1] - rss[0]) / 1024, ((long)heap[1] - (long)heap[0]) / 1024);
    assert_true(n_compared >= N_CLIENTS);
    if (test_sanitized())
        return;
    assert_true(rss[1] - rss[0] < MAX_GROWN);
    assert_true((long)heap[1] - (long)heap[0] < MAX_HEAP);
}

static void test_fault15_a_soak_leaves_nothing(void **state)
{
    const char *text = getenv("KV_SOAK_S");
    uint64_t ns = (text ? strtoull(text, NULL, 10) : 4) * CLOCK_NS_PER_S;
    long rss[2];
    size_t heap[2];
    (void)state;
    pthread_mutex_init(&soak.mutex, NULL);
    soak.rig = api_rig_new(MODEL, API_RIG_RANKS, N_SLOTS);
    soak.rig->max_waiting = N_WAITING;
    for (uint32_t i = 0; i < API_RIG_RANKS; i++)
        api_rig_start(soak.rig, i);
    api_rig_ready(soak.rig);
    make_samples();
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        soak.clients[i] = (struct client){.random = 0x9e3779b97f4a7c15u * (i + 1), .at = i};
    for (int half = 0; half < 2; half++) {
        run_clients(ns / 2);
        rss[half] = resident_bytes();
        heap[half] = mallinfo2().uordblks + mallinfo2().hblkhd;
    }
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        end_quiet(&soak.clients[i]);
    every_slot_is_free();
    if (atomic_load(&soak.failed))
        fail_msg("%s", soak.why);
    report(ns, rss, heap);
    api_rig_free(soak.rig);
    pthread_mutex_destroy(&soak.mutex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fault15_a_soak_leaves_nothing)};
    /* Threads that come and go leave no arenas behind that would look like a leak. */
    mallopt(M_ARENA_MAX, 2);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("a soak of the API", tests, NULL, NULL);
}
