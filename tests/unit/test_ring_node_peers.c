/* SPDX-License-Identifier: MIT
 *
 * Nodes among others that do not belong to them: neighbours with another manifest, strangers at the port, a neighbour
 * that breaks the rules.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "lib/ring_rig.h"
#include "net/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- neighbours that do not belong together ------------------------------------------------------ */

/* stderr while it is redirected into memory. */
struct capture {
    int saved, mem;
};

static struct capture capture_begin(void)
{
    struct capture c = {.saved = dup(STDERR_FILENO), .mem = memfd_create("log", MFD_CLOEXEC)};
    if (c.saved < 0 || c.mem < 0 || dup2(c.mem, STDERR_FILENO) < 0)
        fail_msg("stderr cannot be redirected");
    log_set_level(LOG_INFO);
    return c;
}

static char *capture_text(const struct capture *c)
{
    off_t end = lseek(c->mem, 0, SEEK_END), n = end > 0 ? end : 0;
    char *text = calloc(1, (size_t)n + 1);
    assert_non_null(text);
    assert_int_equal(pread(c->mem, text, (size_t)n, 0), n);
    return text;
}

static void capture_end(struct capture *c)
{
    log_set_level(LOG_ERROR);
    if (c->saved >= 0) {
        dup2(c->saved, STDERR_FILENO);
        close(c->saved);
    }
    close(c->mem);
}

/* Lines of the log that contain both texts. */
static unsigned lines_with(const char *log, const char *one, const char *other)
{
    unsigned n = 0;
    for (const char *line = log; *line;) {
        const char *end = strchrnul(line, '\n');
        char copy[1100];
        snprintf(copy, sizeof copy, "%.*s", (int)(end - line), line);
        n += strstr(copy, one) && strstr(copy, other);
        line = *end ? end + 1 : end;
    }
    return n;
}

enum wrong {
    WRONG_EPOCH,
    WRONG_MODEL,
    WRONG_RING,
    WRONG_CTX,
    WRONG_SLOTS,
    WRONG_BATCH,
    WRONG_WINDOW,
    WRONG_KEY,
    WRONG_COUNT
};

/* Makes one thing different in rank 1's manifest; both sides must name it with these words. */
static void set_wrong(enum wrong kind, struct rig *r, struct manifest *other, struct manifest_rank *rows,
                      const char **one, const char **two)
{
    *one = *two = "";
    switch (kind) {
    case WRONG_EPOCH:
        other->epoch = 77;
        *one = "epoch mismatch", *two = "77";
        break;
    case WRONG_MODEL:
        memset(other->model_id, 0xab, sizeof other->model_id);
        *one = "0200000000000000", *two = "abababababababab";
        break;
    case WRONG_RING:
        memset(other->ring_id, 0xcd, sizeof other->ring_id);
        *one = "0100000000000000", *two = "cdcdcdcdcdcdcdcd";
        break;
    case WRONG_CTX:
        other->n_ctx = 128;
        *one = "128", *two = "256";
        break;
    case WRONG_SLOTS:
        other->n_slots = 3;
        *one = "slot", *two = "3";
        break;
    case WRONG_BATCH:
        other->n_batch = 17;
        *one = "17", *two = "16";
        break;
    case WRONG_WINDOW:
        rows[0].end = rows[1].first = 5;
        *one = "window gap", *two = "5";
        break;
    case WRONG_KEY:
        key_generate(&r->key[1]);
        *one = "ERR_AUTH", *two = "";
        break;
    case WRONG_COUNT:
        break;
    }
}

/* Rank 1 of 2 goes by another manifest. */
static void check_refused(enum wrong kind)
{
    struct rig *r = rig_new(2, 2, 16);
    struct manifest other = r->m;
    struct manifest_rank rows[2];
    struct err e;
    memcpy(rows, r->rows, sizeof rows);
    other.ranks = rows;
    const char *one, *two;
    set_wrong(kind, r, &other, rows, &one, &two);
    struct capture log = capture_begin();
    rig_start(r, 0, &r->m);
    rig_start(r, 1, &other);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    unsigned n = 0;
    while (n < 2 && clock_now_ns() < deadline) { /* each side says it */
        usleep(5000);
        char *text = capture_text(&log);
        n = lines_with(text, one, two);
        free(text);
    }
    enum err_code rc = node_wait_ready(r->node[0], clock_deadline_ms(50), &e);
    char *text = capture_text(&log);
    capture_end(&log);
    if (n < 2)
        print_message("%s", text);
    assert_true(n >= 2);
    assert_true(n < 20); /* and not for ever */
    free(text);
    assert_int_equal(rc, ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "rank 1"));
    rig_free(r);
}

static void test_differences_are_refused(void **state)
{
    (void)state;
    for (int kind = 0; kind < WRONG_COUNT; kind++)
        check_refused((enum wrong)kind);
}

/* --- strangers ----------------------------------------------------------------------------------- */

static int call(const struct rig *r, uint32_t rank)
{
    int fd;
    struct err e;
    if (net_tcp_connect(r->rows[rank].addr, clock_deadline_ms(5000), &fd, &e) != OK)
        fail_msg("%s", e.msg);
    return fd;
}

static void say(int fd, const void *data, size_t len)
{
    struct err e;
    (void)!net_tcp_write(fd, data, len, clock_deadline_ms(5000), &e); /* it may have hung up already */
}

static void test_strangers_at_the_port(void **state)
{
    (void)state;
    struct rig *r = rig_up(3, 4, 32);
    struct ask *a[4];
    uint8_t noise[4096], half[8] = {0x4b, 0x46, 1, 2, 0xff, 0xff, 0xff, 0xff};
    int fd[64], n = 0;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)hash_mix64(i);
    for (uint32_t i = 0; i < 3; i++)
        atomic_store(&r->fake[i].sleep_us, 300);
    struct capture log = capture_begin();
    for (uint32_t i = 0; i < 4; i++)
        a[i] = ask_send(r, i, 3, 250);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t rank = 0; rank < 3; rank++) {
            if (node_port(r->node[rank]) == 0)
                continue;            /* it dials both its neighbours */
            close(call(r, rank));    /* a port scan */
            fd[n++] = call(r, rank); /* says nothing */
            fd[n++] = call(r, rank);
            say(fd[n - 1], noise, sizeof noise);
            fd[n++] = call(r, rank);
            say(fd[n - 1], half, sizeof half); /* half a header with a length of 4 GiB */
            fd[n++] = call(r, rank);
            say(fd[n - 1], "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
            memset(noise, 0xff, 16); /* a length of 4 GiB wherever it may stand */
            fd[n++] = call(r, rank);
            say(fd[n - 1], noise, 32);
        }
    }
    for (uint32_t i = 0; i < 4; i++)
        ask_wait(a[i], UINT32_MAX);
    capture_end(&log);
    for (uint32_t i = 0; i < 4; i++)
        ask_done(a[i]);
    for (int i = 0; i < n; i++)
        close(fd[i]);
    assert_int_equal(atomic_load(&r->n_lost), 0);
    rig_serves(r, 70);
    rig_free(r);
}

/* --- a neighbour that breaks the rules ----------------------------------------------------------- */

/* Rank 1 of 2 is played by the test: it is who it says it is, and sends what it likes. */

static const struct frame_limits probe_limits = {.n_ranks = 2};
static const struct link_options patient = {.death_ms = RIG_DEATH_MS};

struct evil {
    struct rig *r;
    struct link_listener *listener;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct link *in, *out; /* edge 0 comes in, edge 1 goes out */
    bool silent;           /* does not send probes on */
    unsigned n_steps, n_down;
    uint64_t last_step;
    struct batch_result answer; /* that the last step's first entry may get */
    enum err_code code;
    char text[400];
};

static enum err_code evil_edge(void *ctx, uint32_t edge, struct handshake_hello *mine, struct key_public *expect,
                               struct err *e)
{
    struct evil *v = ctx;
    return handshake_hello_of(&v->r->m, 1, edge, mine, expect, e);
}

static void evil_on_frame(void *ctx, const struct frame_header *h, const uint8_t *payload)
{
    struct evil *v = ctx;
    struct frame_probe p;
    struct buf b = {0};
    pthread_mutex_lock(&v->mutex);
    if (h->type == FRAME_PROBE && !v->silent && v->out &&
        frame_probe_get(payload, h->length, &probe_limits, &p, NULL) == OK) {
        p.hops++;
        if (frame_probe_put(&b, &p, NULL) == OK)
            (void)!link_send(v->out, b.data, b.len, NULL);
    }
    if (h->type == FRAME_STEP) {
        v->n_steps++;
        v->last_step = h->step_id;
        const uint8_t *entry = payload + 12; /* docs/protocol.md, STEP */
        v->answer = (struct batch_result){.request_id = le_get_u64(entry),
                                          .pos = le_get_u32(entry + 16) + le_get_u32(entry + 24),
                                          .slot = le_get_u16(entry + 20),
                                          .token = 1,
                                          .logprob = -1};
    }
    pthread_cond_broadcast(&v->cond);
    pthread_mutex_unlock(&v->mutex);
    buf_free(&b);
}

static void evil_on_down(void *ctx, enum err_code code, const char *text)
{
    struct evil *v = ctx;
    pthread_mutex_lock(&v->mutex);
    v->n_down++;
    v->code = code;
    snprintf(v->text, sizeof v->text, "%s", text);
    pthread_cond_broadcast(&v->cond);
    pthread_mutex_unlock(&v->mutex);
}

static void evil_on_link(void *ctx, uint32_t edge, struct link *l)
{
    struct evil *v = ctx;
    struct link_callbacks cb = {.ctx = v, .on_frame = evil_on_frame, .on_down = evil_on_down};
    (void)edge;
    pthread_mutex_lock(&v->mutex);
    bool first = v->in == NULL;
    if (first)
        v->in = l;
    pthread_mutex_unlock(&v->mutex);
    if (!first || link_start(l, &cb, &patient, NULL) != OK)
        link_close(first ? NULL : l);
}

static struct evil *evil_new(uint32_t stall_ms)
{
    struct evil *v = calloc(1, sizeof *v);
    struct err e;
    struct handshake_hello mine;
    struct key_public expect;
    assert_non_null(v);
    pthread_mutex_init(&v->mutex, NULL);
    thread_cond_init(&v->cond);
    v->r = rig_new(2, 4, 32);
    struct link_listener_config c = {.secret = &v->r->key[1], .ctx = v, .edge = evil_edge, .on_link = evil_on_link};
    assert_int_equal(link_listen(NULL, v->r->fd[1], &c, &v->listener, &e), OK);
    v->r->fd[1] = -1;
    v->r->config.stall_ms = stall_ms;
    rig_start(v->r, 0, &v->r->m);
    assert_int_equal(handshake_hello_of(&v->r->m, 1, 1, &mine, &expect, &e), OK);
    struct link_dial_config d = {.addr = v->r->rows[0].addr,
                                 .deadline_ns = clock_deadline_ms(RIG_WAIT_MS),
                                 .secret = &v->r->key[1],
                                 .mine = &mine,
                                 .expected = &expect};
    struct link *out;
    struct link_callbacks cb = {.ctx = v, .on_frame = evil_on_frame, .on_down = evil_on_down};
    assert_int_equal(link_dial(&d, &out, &e), OK);
    assert_int_equal(link_start(out, &cb, &patient, &e), OK);
    pthread_mutex_lock(&v->mutex);
    v->out = out;
    pthread_mutex_unlock(&v->mutex);
    return v;
}

static void evil_free(struct evil *v)
{
    rig_free(v->r);
    link_listener_close(v->listener);
    link_close(v->in);
    link_close(v->out);
    pthread_cond_destroy(&v->cond);
    pthread_mutex_destroy(&v->mutex);
    free(v);
}

static void evil_wait(struct evil *v, const unsigned *what, unsigned n)
{
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    bool in_time = true;
    pthread_mutex_lock(&v->mutex);
    while (*what < n && in_time)
        in_time = thread_cond_wait(&v->cond, &v->mutex, deadline);
    pthread_mutex_unlock(&v->mutex);
    assert_true(in_time);
}

enum deed {
    SENDS_STEP,
    SENDS_REQUEST,
    SENDS_RESULT_THAT_DOES_NOT_FIT,
    SENDS_RESULT_OF_NO_STEP,
    SENDS_HALF_A_RESULT,
    SENDS_PROBE_WITH_WRONG_HOPS,
    SENDS_BAD_FAIL,
    SENDS_EVENTS,
    SENDS_REQUEST_OF_RANK_0,
    SENDS_REQUEST_OF_NO_RANK,
    SENDS_HALF_A_REQUEST,
    SENDS_CANCEL_OF_RANK_0,
    SENDS_CANCEL_WITH_MORE,
    SENDS_UPSTREAM,
    NEVER_ANSWERS,
    DEED_COUNT
};

static void put_step(struct buf *b)
{
    struct batch_entry en = {.request_id = 1, .prefix_hash = 1, .n_tok = 1, .flags = BATCH_RESET};
    int32_t token = 1;
    float row[RIG_EMBD] = {0};
    struct batch x = {.n_entries = 1,
                      .cap_entries = 1,
                      .n_tok = 1,
                      .cap_tok = 1,
                      .n_embd = RIG_EMBD,
                      .entries = &en,
                      .tokens = &token,
                      .rows = row};
    assert_int_equal(frame_step_put(b, 1, &x, true, NULL), OK);
}

static void put_submit(struct buf *b, uint32_t rank)
{
    const int32_t token = 1;
    struct sched_request r = {.tokens = &token, .n_tokens = 1, .n_predict = 1};
    assert_int_equal(frame_submit_put(b, (uint64_t)rank << 48 | 5, &r, NULL), OK);
}

static void put_events(struct buf *b)
{
    struct frame_events w = {0};
    frame_events_add(&w, &(struct frame_event){.request_id = 1ull << 48 | 5, .is_end = true, .reason = SCHED_STOP});
    frame_events_end(&w);
    buf_put(b, w.out.data, w.out.len);
    buf_free(&w.out);
}

static void put_deed(struct buf *b, enum deed d, uint64_t step)
{
    struct batch_result res = {.request_id = 4711, .slot = 1, .pos = 3, .token = 5};
    struct batch x = {.n_results = 1, .cap_entries = 1, .results = &res};
    uint8_t head[FRAME_HEADER_BYTES];
    switch (d) {
    case SENDS_STEP:
    case SENDS_UPSTREAM:
        put_step(b);
        break;
    case SENDS_REQUEST:
        assert_int_equal(frame_request_put(b, 1, 0, &(struct batch_sampling){.top_p = 1}, NULL), OK);
        break;
    case SENDS_RESULT_THAT_DOES_NOT_FIT:
        assert_int_equal(frame_result_put(b, step, &x, NULL), OK);
        break;
    case SENDS_RESULT_OF_NO_STEP:
        assert_int_equal(frame_result_put(b, step + 1000, &x, NULL), OK);
        break;
    case SENDS_HALF_A_RESULT:
        frame_header_put(head, &(struct frame_header){.type = FRAME_RESULT, .length = 3, .step_id = step});
        buf_put(b, head, sizeof head);
        buf_put(b, "\1\0\0", 3);
        break;
    case SENDS_PROBE_WITH_WRONG_HOPS:
        assert_int_equal(frame_probe_put(b, &(struct frame_probe){.nonce = 1, .hops = 7, .n_rows = 2}, NULL), OK);
        break;
    case SENDS_BAD_FAIL:
        frame_header_put(head, &(struct frame_header){.type = FRAME_FAIL, .length = 1, .step_id = step});
        buf_put(b, head, sizeof head);
        buf_put(b, "\0", 1);
        break;
    case SENDS_EVENTS:
        put_events(b);
        break;
    case SENDS_REQUEST_OF_RANK_0:
        put_submit(b, 0);
        break;
    case SENDS_REQUEST_OF_NO_RANK:
        put_submit(b, 2);
        break;
    case SENDS_HALF_A_REQUEST:
        frame_header_put(head, &(struct frame_header){.type = FRAME_SUBMIT, .length = 3, .request_id = 1ull << 48 | 5});
        buf_put(b, head, sizeof head);
        buf_put(b, "\1\0\0", 3);
        break;
    case SENDS_CANCEL_OF_RANK_0:
        assert_int_equal(frame_cancel_put(b, 5, NULL), OK);
        break;
    case SENDS_CANCEL_WITH_MORE:
        frame_header_put(head, &(struct frame_header){.type = FRAME_CANCEL, .length = 1, .request_id = 1ull << 48 | 5});
        buf_put(b, head, sizeof head);
        buf_put(b, "x", 1);
        break;
    case NEVER_ANSWERS:
    case DEED_COUNT:
        break;
    }
}

static void test_neighbour_breaks_the_rules(void **state)
{
    (void)state;
    for (int d = 0; d < DEED_COUNT; d++) {
        struct evil *v = evil_new(500);
        struct buf b = {0};
        rig_ready(v->r);
        struct ask *a = ask_send(v->r, 1, 3, 5);
        evil_wait(v, &v->n_steps, 1);
        put_deed(&b, (enum deed)d, v->last_step);
        if (b.len > 0)
            assert_int_equal(link_send(d == SENDS_UPSTREAM ? v->in : v->out, b.data, b.len, NULL), OK);
        ask_wait(a, UINT32_MAX); /* it hangs in no case */
        ask_ends(a, SCHED_FAILED);
        assert_int_equal(a->n_out, 0);
        if (d != NEVER_ANSWERS && d != SENDS_RESULT_OF_NO_STEP) { /* these are not told: it may have been so */
            evil_wait(v, &v->n_down, 1);
            assert_true(v->code == ERR_PROTOCOL || v->code == ERR_FORMAT);
            assert_true(v->text[0] != 0);
        }
        ask_free(a);
        buf_free(&b);
        evil_free(v);
    }
}

/* --- a neighbour that is late, or says things twice ---------------------------------------------- */

static void put_answer(struct buf *b, struct evil *v)
{
    struct batch x = {.n_results = 1, .results = &v->answer};
    assert_int_equal(frame_result_put(b, v->last_step, &x, NULL), OK);
}

static void put_step_failure(struct buf *b, const struct evil *v, enum err_code code)
{
    struct frame_fail f = {.code = code, .rank = 1, .text = "not to my taste"};
    assert_int_equal(frame_fail_put(b, FRAME_FAIL, v->last_step, &f, NULL), OK);
}

static void send_out(struct evil *v, struct buf *b)
{
    assert_int_equal(link_send(v->out, b->data, b->len, NULL), OK);
    buf_clear(b);
}

/* A request of rank 1, of so many tokens. */
static void put_long_submit(struct buf *b, uint64_t id, uint32_t n_predict)
{
    const int32_t token = 1;
    struct sched_request r = {.tokens = &token, .n_tokens = 1, .n_predict = n_predict, .sampling = {.top_p = 1}};
    assert_int_equal(frame_submit_put(b, 1ull << 48 | id, &r, NULL), OK);
}

static struct sched_counts counts_of(const struct evil *v)
{
    struct node_stats s;
    node_stats_get(v->r->node[0], &s);
    return s.sched;
}

static void wait_ended(const struct evil *v, enum sched_reason reason, uint64_t n)
{
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (counts_of(v).n_ended[reason] < n && clock_now_ns() < deadline)
        usleep(500);
    assert_int_equal(counts_of(v).n_ended[reason], n);
}

/* Everything is said twice; the second time nothing is left that it could be about. */
static void test_what_is_said_twice_counts_once(void **state)
{
    (void)state;
    struct evil *v = evil_new(0);
    struct buf b = {0};
    rig_ready(v->r);
    struct ask *a = ask_send(v->r, 1, 3, 1);
    evil_wait(v, &v->n_steps, 1);
    put_answer(&b, v);
    put_answer(&b, v);
    put_step_failure(&b, v, ERR_STALE); /* it has been answered */
    send_out(v, &b);
    ask_wait(a, UINT32_MAX);
    assert_int_equal(a->reason, SCHED_LENGTH);
    assert_int_equal(a->n_out, 1);
    ask_free(a);

    a = ask_send(v->r, 2, 3, 1);
    evil_wait(v, &v->n_steps, 2);
    put_step_failure(&b, v, ERR_DEVICE);
    put_step_failure(&b, v, ERR_DEVICE);
    put_answer(&b, v); /* it has failed */
    send_out(v, &b);
    ask_wait(a, UINT32_MAX);
    assert_int_equal(a->reason, SCHED_FAILED);
    assert_int_equal(a->code, ERR_DEVICE);
    assert_int_equal(a->n_out, 0);
    ask_free(a);

    put_long_submit(&b, 5, 1);
    send_out(v, &b);
    evil_wait(v, &v->n_steps, 3);
    assert_int_equal(v->answer.request_id, 1ull << 48 | 5);
    assert_int_equal(frame_cancel_put(&b, 1ull << 48 | 5, NULL), OK);
    assert_int_equal(frame_cancel_put(&b, 1ull << 48 | 5, NULL), OK);
    assert_int_equal(frame_cancel_put(&b, 1ull << 48 | 6, NULL), OK); /* of no request */
    put_answer(&b, v);                                                /* of a request that is over */
    send_out(v, &b);
    wait_ended(v, SCHED_CANCELLED, 1);

    a = ask_send(v->r, 3, 3, 1); /* the link lives, the slots are free */
    evil_wait(v, &v->n_steps, 4);
    put_answer(&b, v);
    send_out(v, &b);
    ask_wait(a, UINT32_MAX);
    assert_int_equal(a->reason, SCHED_LENGTH);
    assert_int_equal(v->n_down, 0);
    assert_int_equal(counts_of(v).n_active + counts_of(v).n_waiting + counts_of(v).n_steps, 0);
    ask_free(a);
    buf_free(&b);
    evil_free(v);
}

static void test_a_request_that_comes_twice_ends_the_link(void **state)
{
    (void)state;
    struct evil *v = evil_new(0);
    struct buf b = {0};
    rig_ready(v->r);
    put_long_submit(&b, 5, 3);
    put_long_submit(&b, 5, 3);
    send_out(v, &b);
    evil_wait(v, &v->n_down, 1);
    assert_int_equal(v->code, ERR_PROTOCOL);
    assert_non_null(strstr(v->text, "is there already"));
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (counts_of(v).n_active + counts_of(v).n_waiting > 0 && clock_now_ns() < deadline)
        usleep(500); /* the loss of the link ends the first, which nobody waits for */
    assert_int_equal(counts_of(v).n_active + counts_of(v).n_waiting, 0);
    buf_free(&b);
    evil_free(v);
}

/* A rank that begins anew finds what is new by itself; a step from before the loss means nothing any more. */
static void test_an_answer_from_before_a_loss_is_ignored(void **state)
{
    (void)state;
    struct evil *v = evil_new(0);
    struct buf b = {0};
    struct frame_fail f = {.code = ERR_LIMIT, .rank = 1, .text = "my predecessor was away"};
    rig_ready(v->r);
    struct ask *a = ask_send(v->r, 1, 3, 5);
    evil_wait(v, &v->n_steps, 1);
    assert_int_equal(frame_fail_put(&b, FRAME_FAIL, 0, &f, NULL), OK);
    put_answer(&b, v);
    send_out(v, &b);
    ask_ends(a, SCHED_FAILED);
    assert_non_null(strstr(a->text, "my predecessor was away"));
    assert_int_equal(a->code, ERR_CLOSED); /* it was not the request that was over a limit */
    ask_free(a);
    rig_ready(v->r);
    a = ask_send(v->r, 1, 3, 1);
    evil_wait(v, &v->n_steps, 2);
    put_answer(&b, v);
    send_out(v, &b);
    ask_wait(a, UINT32_MAX);
    assert_int_equal(a->reason, SCHED_LENGTH);
    assert_int_equal(v->n_down, 0);
    ask_free(a);
    buf_free(&b);
    evil_free(v);
}

/* faults.md 17: the ring was said to be well while no request would have come back. Nothing runs, so that only probes
 * can tell. */
static void test_not_ready_when_probes_stay_away(void **state)
{
    (void)state;
    struct evil *v = evil_new(0);
    rig_ready(v->r);
    pthread_mutex_lock(&v->mutex);
    v->silent = true;
    pthread_mutex_unlock(&v->mutex);
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    while (node_is_ready(v->r->node[0]) && clock_now_ns() < deadline)
        usleep(1000);
    assert_false(node_is_ready(v->r->node[0]));
    assert_int_equal(v->n_down, 0); /* the links are well */
    pthread_mutex_lock(&v->mutex);
    v->silent = false;
    pthread_mutex_unlock(&v->mutex);
    rig_ready(v->r);
    evil_free(v);
}

int main(int argc, char **argv)
{
    if (!rig_begin(argc, argv))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences_are_refused),
        cmocka_unit_test(test_strangers_at_the_port),
        cmocka_unit_test(test_neighbour_breaks_the_rules),
        cmocka_unit_test(test_what_is_said_twice_counts_once),
        cmocka_unit_test(test_a_request_that_comes_twice_ends_the_link),
        cmocka_unit_test(test_an_answer_from_before_a_loss_is_ignored),
        cmocka_unit_test(test_not_ready_when_probes_stay_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
