/* SPDX-License-Identifier: MIT
 *
 * Links over real sockets on loopback. Waits are for events, with a deadline that only a failure meets; the only times
 * that count are the short ones given to the links.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/tcp.h"
#include "ring/link.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_RANKS 2u
#define WAIT_MS 20000u

static struct manifest manifest;
static struct manifest_rank ranks[N_RANKS];
static struct key_secret keys[N_RANKS], stranger;

/* One end of a link and what its callbacks saw. */
struct end {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct link *link;
    bool gate_shut; /* on_frame waits */
    unsigned n_frames, n_down;
    uint64_t last_step;
    bool in_order, content_ok;
    struct frame_header last;
    enum err_code code;
    char text[400];
};

/* Rank 1 listens; edge 0 comes from rank 0. */
struct world {
    struct link_listener *listener;
    struct end server;
    uint32_t edge; /* of the link that came last */
    unsigned n_links;
    char addr[32];
};

static void end_init(struct end *x)
{
    memset(x, 0, sizeof *x);
    pthread_mutex_init(&x->mutex, NULL);
    thread_cond_init(&x->cond);
    x->in_order = x->content_ok = true;
}

static void end_fini(struct end *x)
{
    link_close(x->link);
    pthread_cond_destroy(&x->cond);
    pthread_mutex_destroy(&x->mutex);
}

static void on_frame(void *ctx, const struct frame_header *h, const uint8_t *payload)
{
    struct end *x = ctx;
    pthread_mutex_lock(&x->mutex);
    while (x->gate_shut)
        pthread_cond_wait(&x->cond, &x->mutex);
    x->n_frames++;
    x->last = *h;
    if (h->step_id != x->last_step + 1)
        x->in_order = false;
    x->last_step = h->step_id;
    for (size_t i = 0; i < h->length && h->type == FRAME_STEP; i++) {
        if (payload[i] != (uint8_t)(i + h->length))
            x->content_ok = false;
    }
    pthread_cond_broadcast(&x->cond);
    pthread_mutex_unlock(&x->mutex);
}

static void on_down(void *ctx, enum err_code code, const char *text)
{
    struct end *x = ctx;
    pthread_mutex_lock(&x->mutex);
    x->n_down++;
    x->code = code;
    snprintf(x->text, sizeof x->text, "%s", text);
    pthread_cond_broadcast(&x->cond);
    pthread_mutex_unlock(&x->mutex);
}

/* Where a test does not say when a link is dead it is so only after a time for which no machine stands still. */
static void start(struct end *x, struct link *l, const struct link_options *opt)
{
    struct err e;
    const struct link_callbacks cb = {.ctx = x, .on_frame = on_frame, .on_down = on_down};
    struct link_options patient = opt ? *opt : (struct link_options){0};
    if (patient.death_ms == 0)
        patient.death_ms = WAIT_MS;
    x->link = l;
    assert_int_equal(link_start(l, &cb, &patient, &e), OK);
}

/* Waits until *counter >= n. */
static void wait_count(struct end *x, const unsigned *counter, unsigned n)
{
    const uint64_t until = clock_deadline_ms(WAIT_MS);
    bool in_time = true;
    pthread_mutex_lock(&x->mutex);
    while (*counter < n && in_time)
        in_time = thread_cond_wait(&x->cond, &x->mutex, until);
    const unsigned have = *counter;
    pthread_mutex_unlock(&x->mutex);
    if (have < n)
        fail_msg("waited for %u, got %u (down: %s)", n, have, x->text);
}

static void expect_down(struct end *x, enum err_code code, const char *text)
{
    wait_count(x, &x->n_down, 1);
    assert_int_equal(x->code, code);
    if (!strstr(x->text, text))
        fail_msg("'%s' is not in '%s'", text, x->text);
    assert_true(link_is_down(x->link));
}

static enum err_code serve_edge(void *ctx, uint32_t edge, struct handshake_hello *mine, struct key_public *expected,
                                struct err *e)
{
    (void)ctx;
    return handshake_hello_of(&manifest, 1, edge, mine, expected, e);
}

static void on_link(void *ctx, uint32_t edge, struct link *l)
{
    struct world *w = ctx;
    pthread_mutex_lock(&w->server.mutex);
    struct link *old = w->server.link;
    w->server.link = l;
    w->edge = edge;
    w->n_links++;
    pthread_cond_broadcast(&w->server.cond);
    pthread_mutex_unlock(&w->server.mutex);
    link_close(old);
}

static void world_open(struct world *w, uint32_t handshake_ms)
{
    const struct link_listener_config config = {
        .secret = &keys[1], .ctx = w, .edge = serve_edge, .on_link = on_link, .handshake_ms = handshake_ms};
    struct err e;
    memset(w, 0, sizeof *w);
    end_init(&w->server);
    assert_int_equal(link_listen("127.0.0.1:0", -1, &config, &w->listener, &e), OK);
    snprintf(w->addr, sizeof w->addr, "127.0.0.1:%u", link_listener_port(w->listener));
}

static void world_close(struct world *w)
{
    link_listener_close(w->listener);
    end_fini(&w->server);
}

static enum err_code dial_as(const struct world *w, const struct key_secret *secret, const struct manifest *m,
                             struct link **out, struct err *e)
{
    struct handshake_hello mine;
    struct key_public peer;
    assert_int_equal(handshake_hello_of(m, 0, 0, &mine, &peer, NULL), OK);
    const struct link_dial_config config = {
        .addr = w->addr, .deadline_ns = clock_deadline_ms(WAIT_MS), .secret = secret, .mine = &mine, .expected = &peer};
    return link_dial(&config, out, e);
}

static struct link *dial(const struct world *w)
{
    struct link *l = NULL;
    struct err e;
    if (dial_as(w, &keys[0], &manifest, &l, &e) != OK)
        fail_msg("%s", e.msg);
    return l;
}

/* Both ends up. */
static void connect_pair(struct world *w, struct end *client, const struct link_options *server_opt,
                         const struct link_options *client_opt)
{
    end_init(client);
    struct link *l = dial(w);
    wait_count(&w->server, &w->n_links, 1);
    start(&w->server, w->server.link, server_opt);
    start(client, l, client_opt);
}

static void make_frame(struct buf *b, uint64_t step, size_t len)
{
    const struct frame_header h = {.type = FRAME_STEP, .length = (uint32_t)len, .step_id = step};
    uint8_t *p = buf_reserve(b, FRAME_HEADER_BYTES + len);
    assert_non_null(p);
    frame_header_put(p, &h);
    for (size_t i = 0; i < len; i++)
        p[FRAME_HEADER_BYTES + i] = (uint8_t)(i + len);
    b->len += FRAME_HEADER_BYTES + len;
}

static enum err_code send_frame(struct link *l, uint64_t step, size_t len, struct err *e)
{
    struct buf b = {0};
    make_frame(&b, step, len);
    enum err_code rc = link_send(l, b.data, b.len, e);
    buf_free(&b);
    return rc;
}

/* --- frames -------------------------------------------------------------------------------------- */

static void test_frames_of_every_interesting_size_pass_both_ways(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 65519, 65520, 65535, 65536, 65537, 1 << 20, 4 << 20};
    const unsigned n = sizeof sizes / sizeof *sizes;
    struct world w;
    struct end client;
    struct link_stats up, down;
    world_open(&w, 0);
    connect_pair(&w, &client, NULL, NULL);
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(send_frame(client.link, i + 1, sizes[i], NULL), OK);
        assert_int_equal(send_frame(w.server.link, i + 1, sizes[i], NULL), OK);
    }
    wait_count(&w.server, &w.server.n_frames, n);
    wait_count(&client, &client.n_frames, n);
    assert_true(client.in_order && client.content_ok && w.server.in_order && w.server.content_ok);
    assert_int_equal(client.last.length, sizes[n - 1]);
    link_stats_get(client.link, &up);
    link_stats_get(w.server.link, &down);
    assert_true(up.frames_out >= n && down.frames_in >= n);
    assert_true(up.bytes_out > 5 << 20 && down.bytes_in > 5 << 20);
    assert_int_equal(link_peer(client.link)->rank, 1);
    assert_int_equal(link_edge(w.server.link), 0);
    end_fini(&client);
    world_close(&w);
}

static void test_several_frames_go_in_one_send(void **state)
{
    (void)state;
    struct world w;
    struct end client;
    struct buf b = {0};
    struct err e;
    world_open(&w, 0);
    connect_pair(&w, &client, NULL, NULL);
    for (unsigned i = 1; i <= 5; i++)
        make_frame(&b, i, (size_t)i * 30000);
    assert_int_equal(link_send(client.link, b.data, b.len, &e), OK);
    wait_count(&w.server, &w.server.n_frames, 5);
    assert_true(w.server.in_order && w.server.content_ok);
    /* What is no whole frame is the caller's mistake and stays here. */
    assert_int_equal(link_send(client.link, b.data, b.len - 1, &e), ERR_ARG);
    assert_int_equal(link_send(client.link, b.data, 10, &e), ERR_ARG);
    assert_int_equal(link_send(client.link, b.data + 1, 100, &e), ERR_PROTOCOL);
    assert_false(link_is_down(client.link));
    buf_free(&b);
    end_fini(&client);
    world_close(&w);
}

static void test_frames_sent_before_the_peer_started_wait(void **state)
{
    (void)state;
    struct world w;
    struct end client;
    world_open(&w, 0);
    end_init(&client);
    start(&client, dial(&w), NULL);
    assert_int_equal(send_frame(client.link, 1, 100, NULL), OK);
    assert_int_equal(send_frame(client.link, 2, 100, NULL), OK);
    wait_count(&w.server, &w.n_links, 1);
    assert_int_equal(send_frame(w.server.link, 1, 1, NULL), ERR_CLOSED); /* not started */
    start(&w.server, w.server.link, NULL);
    wait_count(&w.server, &w.server.n_frames, 2);
    assert_true(w.server.in_order);
    end_fini(&client);
    world_close(&w);
}

struct sender {
    struct link *link;
    pthread_t thread;
    unsigned n;
};

static void *send_many(void *arg)
{
    struct sender *s = arg;
    for (unsigned i = 0; i < 200; i++) {
        if (send_frame(s->link, 0, (size_t)i * 37, NULL) == OK)
            s->n++;
    }
    return NULL;
}

static void test_many_threads_may_send(void **state)
{
    (void)state;
    struct world w;
    struct end client;
    struct sender s[4];
    unsigned sent = 0;
    world_open(&w, 0);
    connect_pair(&w, &client, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        s[i] = (struct sender){.link = client.link};
        assert_int_equal(pthread_create(&s[i].thread, NULL, send_many, &s[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(s[i].thread, NULL);
        sent += s[i].n;
    }
    assert_int_equal(sent, 800);
    wait_count(&w.server, &w.server.n_frames, sent);
    assert_true(w.server.content_ok);
    end_fini(&client);
    world_close(&w);
}

static void test_a_slow_reader_gives_busy_and_nothing_is_lost(void **state)
{
    (void)state;
    const struct link_options opt = {.queue_bytes = 1 << 20};
    struct world w;
    struct end client;
    struct err e;
    unsigned sent = 0;
    enum err_code rc = OK;
    world_open(&w, 0);
    connect_pair(&w, &client, NULL, &opt);
    pthread_mutex_lock(&w.server.mutex);
    w.server.gate_shut = true;
    pthread_mutex_unlock(&w.server.mutex);
    while (rc == OK && sent < 10000) {
        rc = send_frame(client.link, sent + 1, 100000, &e);
        sent += rc == OK;
    }
    assert_int_equal(rc, ERR_BUSY);
    assert_non_null(strstr(e.msg, "edge 0"));
    assert_false(link_is_down(client.link));
    pthread_mutex_lock(&w.server.mutex);
    w.server.gate_shut = false;
    pthread_cond_broadcast(&w.server.cond);
    pthread_mutex_unlock(&w.server.mutex);
    wait_count(&w.server, &w.server.n_frames, sent);
    assert_true(w.server.in_order && w.server.content_ok);
    assert_int_equal(send_frame(client.link, sent + 1, 10, &e), OK); /* and it goes on */
    wait_count(&w.server, &w.server.n_frames, sent + 1);
    end_fini(&client);
    world_close(&w);
}

static void test_a_stuck_link_is_closed_at_once(void **state)
{
    (void)state;
    const struct link_options opt = {.queue_bytes = 1 << 20, .linger_ms = 50};
    struct world w;
    struct end client;
    world_open(&w, 0);
    connect_pair(&w, &client, NULL, &opt);
    pthread_mutex_lock(&w.server.mutex);
    w.server.gate_shut = true;
    pthread_mutex_unlock(&w.server.mutex);
    while (send_frame(client.link, 1, 100000, NULL) == OK)
        continue;
    uint64_t t0 = clock_now_ns();
    link_close(client.link);
    client.link = NULL;
    assert_true(clock_now_ns() - t0 < WAIT_MS * CLOCK_NS_PER_MS); /* and not never */
    assert_int_equal(client.n_down, 0);
    pthread_mutex_lock(&w.server.mutex);
    w.server.gate_shut = false;
    pthread_cond_broadcast(&w.server.cond);
    pthread_mutex_unlock(&w.server.mutex);
    end_fini(&client);
    world_close(&w);
}

/* --- life and death ------------------------------------------------------------------------------ */

static void test_heartbeats_keep_an_idle_link(void **state)
{
    (void)state;
    const struct link_options opt = {.heartbeat_ms = 20, .death_ms = 5000};
    struct world w;
    struct end client;
    struct link_stats a = {0}, b = {0};
    const uint64_t until = clock_deadline_ms(WAIT_MS);
    world_open(&w, 0);
    connect_pair(&w, &client, &opt, &opt);
    while ((a.frames_in < 5 || b.frames_in < 5) && clock_left_ms(until) > 0) {
        poll(NULL, 0, 5);
        link_stats_get(client.link, &a);
        link_stats_get(w.server.link, &b);
    }
    assert_true(a.frames_in >= 5 && b.frames_in >= 5);
    assert_int_equal(client.n_frames, 0); /* the callbacks do not see them */
    assert_false(link_is_down(client.link));
    end_fini(&client);
    world_close(&w);
}

static void set_gate(struct end *x, bool shut)
{
    pthread_mutex_lock(&x->mutex);
    x->gate_shut = shut;
    pthread_cond_broadcast(&x->cond);
    pthread_mutex_unlock(&x->mutex);
}

/* One end reads nothing for twice the time after which silence is death; its heartbeats say that it lives. Did both
 * ends keep the link? */
static bool lives_without_reading(void)
{
    const struct link_options opt = {.heartbeat_ms = 30, .death_ms = 600};
    const uint64_t until = clock_deadline_ms(WAIT_MS), long_enough = clock_deadline_ms(2 * opt.death_ms);
    struct world w;
    struct end client;
    struct link_stats s = {0};
    world_open(&w, 0);
    connect_pair(&w, &client, &opt, &opt);
    set_gate(&w.server, true);
    assert_int_equal(send_frame(client.link, 1, 100, NULL), OK);
    while ((s.frames_in < 40 || clock_left_ms(long_enough) > 0) && !link_is_down(client.link) &&
           !link_is_down(w.server.link) && clock_left_ms(until) > 0) {
        poll(NULL, 0, 5);
        link_stats_get(client.link, &s);
    }
    bool both = !link_is_down(client.link) && !link_is_down(w.server.link);
    set_gate(&w.server, false);
    if (both)
        wait_count(&w.server, &w.server.n_frames, 1);
    end_fini(&client);
    world_close(&w);
    return both;
}

static void test_a_neighbour_that_reads_nothing_for_long_keeps_its_link(void **state)
{
    (void)state;
    bool kept = false;
    for (int attempt = 0; attempt < 3 && !kept; attempt++) /* the machine itself may have stood still */
        kept = lives_without_reading();
    assert_true(kept);
}

static void test_a_goodbye_is_delivered_with_its_reason(void **state)
{
    (void)state;
    struct world w;
    struct end client;
    struct err e;
    world_open(&w, 0);
    connect_pair(&w, &client, NULL, NULL);
    assert_int_equal(send_frame(client.link, 1, 3 << 20, NULL), OK);
    link_bye(client.link, ERR_DEVICE, 0, "my device failed");
    assert_int_equal(send_frame(client.link, 2, 1, &e), ERR_CLOSED);
    link_close(client.link);
    client.link = NULL;
    wait_count(&w.server, &w.server.n_down, 1);
    assert_int_equal(w.server.n_frames, 2); /* the large one before it came through too */
    assert_int_equal(w.server.last.type, FRAME_BYE);
    expect_down(&w.server, ERR_DEVICE, "rank 0 left: my device failed");
    assert_int_equal(client.n_down, 0);
    assert_int_equal(send_frame(w.server.link, 1, 1, &e), ERR_CLOSED);
    end_fini(&client);
    world_close(&w);
}

static void test_a_clean_goodbye_has_code_ok(void **state)
{
    (void)state;
    struct world w;
    struct end client;
    world_open(&w, 0);
    connect_pair(&w, &client, NULL, NULL);
    link_bye(w.server.link, OK, 1, "shutting down");
    expect_down(&client, OK, "rank 1 left: shutting down");
    end_fini(&client);
    world_close(&w);
}

static void test_a_peer_that_returns_gets_a_new_link(void **state)
{
    (void)state;
    struct world w;
    struct end client;
    world_open(&w, 0);
    for (unsigned i = 1; i <= 3; i++) {
        end_init(&client);
        start(&client, dial(&w), NULL);
        wait_count(&w.server, &w.n_links, i);
        w.server.last_step = 0;
        start(&w.server, w.server.link, NULL);
        assert_int_equal(send_frame(client.link, 1, 10, NULL), OK);
        wait_count(&w.server, &w.server.n_frames, i);
        end_fini(&client);
        wait_count(&w.server, &w.server.n_down, i);
        assert_int_equal(w.server.code, ERR_CLOSED);
    }
    assert_true(w.server.in_order);
    world_close(&w);
}

static void test_links_that_never_started_are_closed(void **state)
{
    (void)state;
    struct world w;
    struct end client;
    struct err e;
    const struct link_callbacks cb = {.ctx = &client, .on_frame = on_frame, .on_down = on_down};
    const struct link_options bad = {.heartbeat_ms = 100, .death_ms = 100};
    world_open(&w, 0);
    end_init(&client);
    client.link = dial(&w);
    assert_int_equal(link_start(client.link, &cb, &bad, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "100 ms of silence"));
    link_bye(client.link, OK, 0, "nobody hears it");
    wait_count(&w.server, &w.n_links, 1);
    end_fini(&client);
    assert_int_equal(client.n_down, 0);
    link_close(NULL);
    link_listener_close(NULL);
    world_close(&w);
}

static void test_an_inherited_socket_is_served(void **state)
{
    (void)state;
    struct world w;
    struct err e;
    struct link_listener_config config = {.secret = &keys[1], .edge = serve_edge, .on_link = on_link};
    int fd, pipe_fd[2];
    uint16_t port;
    memset(&w, 0, sizeof w);
    end_init(&w.server);
    config.ctx = &w;
    assert_int_equal(pipe(pipe_fd), 0);
    close(pipe_fd[1]);
    assert_int_equal(link_listen(NULL, pipe_fd[0], &config, &w.listener, &e), ERR_ARG);
    assert_int_equal(net_tcp_listen("127.0.0.1:0", &fd, &port, &e), OK);
    assert_int_equal(link_listen(NULL, fd, &config, &w.listener, &e), OK);
    assert_int_equal(link_listener_port(w.listener), port);
    snprintf(w.addr, sizeof w.addr, "127.0.0.1:%u", port);
    struct link *l = dial(&w);
    wait_count(&w.server, &w.n_links, 1);
    link_close(l);
    world_close(&w);
}

/* --- refusals over the wire ------------------------------------------------------------------------ */

static void expect_dial_error(const struct world *w, const struct key_secret *secret, const struct manifest *m,
                              enum err_code code, const char *text)
{
    struct link *l = NULL;
    struct err e;
    assert_int_equal(dial_as(w, secret, m, &l, &e), code);
    assert_null(l);
    if (!strstr(e.msg, text) || strncmp(e.msg, w->addr, strlen(w->addr)) != 0)
        fail_msg("'%s' is not in '%s'", text, e.msg);
}

static void test_refusals_reach_the_dialer_by_name(void **state)
{
    (void)state;
    struct world w;
    struct manifest m = manifest;
    struct manifest_rank changed[N_RANKS] = {ranks[0], ranks[1]};
    world_open(&w, 0);
    m.ranks = changed;
    expect_dial_error(&w, &stranger, &m, ERR_AUTH, "refused by the peer: unknown peer key");
    key_public_of(&stranger, &changed[1].key);
    expect_dial_error(&w, &keys[0], &m, ERR_AUTH, "unknown peer key");
    changed[1] = ranks[1];
    m.epoch++;
    expect_dial_error(&w, &keys[0], &m, ERR_MISMATCH, "epoch mismatch: I am at 2, peer is at 1");
    m = manifest;
    m.ring_id[0] ^= 1;
    expect_dial_error(&w, &keys[0], &m, ERR_MISMATCH, "ring mismatch");
    m = manifest;
    m.model_id[0] ^= 1;
    expect_dial_error(&w, &keys[0], &m, ERR_MISMATCH, "model mismatch");
    assert_int_equal(w.n_links, 0);
    link_close(dial(&w)); /* and who fits is served */
    world_close(&w);
}

static int connect_raw(const struct world *w)
{
    int fd = -1;
    struct err e;
    if (net_tcp_connect(w->addr, clock_deadline_ms(WAIT_MS), &fd, &e) != OK)
        fail_msg("%s", e.msg);
    return fd;
}

/* The other end closes; how many bytes came before. */
static size_t bytes_until_closed(int fd)
{
    uint8_t in[4096];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (size_t total = 0;;) {
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        ssize_t n = read(fd, in, sizeof in);
        if (n <= 0)
            return total;
        total += (size_t)n;
    }
}

static void test_strangers_do_not_stop_the_listener(void **state)
{
    (void)state;
    static const char garbage[] = "\x16\x03\x01 this is not what you expect, is it? 0123456789";
    struct world w;
    int silent, half, noise;
    world_open(&w, 1000); /* the honest one has to be done by then */
    for (int i = 0; i < 30; i++)
        close(connect_raw(&w)); /* a port scan */
    silent = connect_raw(&w);
    half = connect_raw(&w);
    noise = connect_raw(&w);
    assert_int_equal(write(half, "KVASIR\x01\x00\x01\x00\x00\x00", 12), 12);
    assert_int_equal(write(noise, garbage, sizeof garbage), (ssize_t)sizeof garbage);
    struct link *l = dial(&w); /* while the others are pending */
    wait_count(&w.server, &w.n_links, 1);
    link_close(l);
    assert_int_equal(bytes_until_closed(noise), 0);
    assert_int_equal(bytes_until_closed(silent), 0); /* after its deadline */
    assert_int_equal(bytes_until_closed(half), 0);
    close(silent);
    close(half);
    close(noise);
    link_close(dial(&w));
    world_close(&w);
}

static void test_a_length_of_4_gib_is_answered_and_closed(void **state)
{
    (void)state;
    struct world w;
    int fd;
    world_open(&w, 0);
    fd = connect_raw(&w);
    assert_int_equal(write(fd, "KVASIR\x01\x00\x01\x00\x00\x00\xff\xff\xff\xff", 16), 16);
    assert_int_equal(bytes_until_closed(fd), 16 + 256);
    close(fd);
    world_close(&w);
}

static void test_a_crowd_of_silent_callers_makes_room(void **state)
{
    (void)state;
    enum { N = 3 * LINK_MAX_PENDING };
    struct world w;
    int fd[N];
    world_open(&w, 60000); /* no deadline helps */
    for (int i = 0; i < N; i++)
        fd[i] = connect_raw(&w);
    struct link *l = dial(&w);
    wait_count(&w.server, &w.n_links, 1);
    link_close(l);
    assert_int_equal(bytes_until_closed(fd[0]), 0); /* the oldest went first */
    for (int i = 0; i < N; i++)
        close(fd[i]);
    world_close(&w); /* with handshakes still open */
}

/* --- a peer in the test's hands after an honest handshake ------------------------------------------ */

struct rogue {
    int fd;
    struct session session;
};

static void rogue_connect(const struct world *w, struct rogue *r)
{
    struct handshake h;
    struct handshake_hello mine;
    struct key_public peer;
    uint8_t in[HANDSHAKE_HEAD_BYTES + HANDSHAKE_BODY_MAX];
    const uint64_t until = clock_deadline_ms(WAIT_MS);
    assert_int_equal(handshake_hello_of(&manifest, 0, 0, &mine, &peer, NULL), OK);
    handshake_dial(&h, &keys[0], &mine, &peer);
    memset(r, 0, sizeof *r);
    r->fd = connect_raw(w);
    while (h.state == HANDSHAKE_WAIT) {
        if (h.out_len > 0)
            assert_int_equal(net_tcp_write(r->fd, h.out, h.out_len, until, NULL), OK);
        h.out_len = 0;
        size_t want = handshake_want(&h);
        assert_int_equal(net_tcp_read(r->fd, in, want, until, NULL), OK);
        handshake_input(&h, in, want);
    }
    assert_int_equal(h.state, HANDSHAKE_DONE);
    handshake_session(&h, &r->session);
    handshake_wipe(&h);
}

static void rogue_send(struct rogue *r, const void *data, size_t len)
{
    assert_int_equal(net_tcp_write(r->fd, data, len, clock_deadline_ms(WAIT_MS), NULL), OK);
}

/* A rogue, and this node's end of the link, started. */
static void rogue_world(struct world *w, struct rogue *r, const struct link_options *opt)
{
    world_open(w, 0);
    rogue_connect(w, r);
    wait_count(&w->server, &w->n_links, 1);
    start(&w->server, w->server.link, opt);
}

static void rogue_close(struct world *w, struct rogue *r)
{
    assert_int_equal(w->server.n_down, 1);
    link_close(dial(w)); /* the process lives, the next one is served */
    if (r->fd >= 0)
        close(r->fd);
    session_wipe(&r->session);
    world_close(w);
}

static void test_a_peer_that_falls_silent_is_noticed(void **state)
{
    (void)state;
    const struct link_options opt = {.heartbeat_ms = 50, .death_ms = 200};
    struct world w;
    struct rogue r;
    uint64_t t0 = clock_now_ns();
    rogue_world(&w, &r, &opt);
    expect_down(&w.server, ERR_TIMEOUT, "nothing was heard of the peer for 200 ms");
    assert_true(clock_now_ns() - t0 >= 200 * CLOCK_NS_PER_MS);
    rogue_close(&w, &r);
}

static void test_a_killed_peer_is_noticed(void **state)
{
    (void)state;
    struct world w;
    struct rogue r;
    rogue_world(&w, &r, NULL);
    close(r.fd); /* what the system does for a killed process */
    r.fd = -1;
    expect_down(&w.server, ERR_CLOSED, "");
    rogue_close(&w, &r);
}

static void test_an_end_within_a_frame_is_named(void **state)
{
    (void)state;
    struct world w;
    struct rogue r;
    struct buf b = {0};
    uint8_t wire[300];
    rogue_world(&w, &r, NULL);
    make_frame(&b, 1, 200);
    session_seal(&r.session, b.data, 100, wire);
    rogue_send(&r, wire, 100 + SESSION_RECORD_EXTRA);
    shutdown(r.fd, SHUT_WR);
    expect_down(&w.server, ERR_CLOSED, "in the middle of a frame");
    assert_int_equal(w.server.n_frames, 0);
    buf_free(&b);
    rogue_close(&w, &r);
}

static void test_a_record_of_4_gib_ends_the_link(void **state)
{
    (void)state;
    struct world w;
    struct rogue r;
    rogue_world(&w, &r, NULL);
    rogue_send(&r, "\xff\xff\xff\xff", 4);
    expect_down(&w.server, ERR_LIMIT, "record of 4294967295 bytes");
    rogue_close(&w, &r);
}

static void test_garbage_in_the_session_ends_the_link(void **state)
{
    (void)state;
    struct world w;
    struct rogue r;
    uint8_t bytes[104] = {100};
    rogue_world(&w, &r, NULL);
    rogue_send(&r, bytes, sizeof bytes);
    expect_down(&w.server, ERR_AUTH, "seal of record 0");
    rogue_close(&w, &r);
}

static void test_a_replayed_record_ends_the_link(void **state)
{
    (void)state;
    struct world w;
    struct rogue r;
    struct buf b = {0};
    uint8_t wire[300];
    rogue_world(&w, &r, NULL);
    make_frame(&b, 1, 200);
    session_seal(&r.session, b.data, b.len, wire);
    rogue_send(&r, wire, b.len + SESSION_RECORD_EXTRA);
    rogue_send(&r, wire, b.len + SESSION_RECORD_EXTRA);
    expect_down(&w.server, ERR_AUTH, "seal of record 1");
    assert_int_equal(w.server.n_frames, 1);
    buf_free(&b);
    rogue_close(&w, &r);
}

static void send_header(struct rogue *r, const uint8_t header[FRAME_HEADER_BYTES])
{
    uint8_t wire[FRAME_HEADER_BYTES + SESSION_RECORD_EXTRA];
    session_seal(&r->session, header, FRAME_HEADER_BYTES, wire);
    rogue_send(r, wire, sizeof wire);
}

static void test_frames_that_break_the_rules_end_the_link(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint8_t value;
        enum err_code code;
    } rows[] = {
        {0, 0x00, ERR_PROTOCOL}, /* magic */
        {2, 99, ERR_PROTOCOL},   /* version */
        {3, 200, ERR_PROTOCOL},  /* type */
        {7, 0xff, ERR_LIMIT},    /* length of 4 GiB */
        {4, 1, ERR_PROTOCOL},    /* a heartbeat of one byte, which never comes: see below */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct world w;
        struct rogue r;
        uint8_t header[FRAME_HEADER_BYTES];
        rogue_world(&w, &r, NULL);
        frame_header_put(header, &(struct frame_header){.type = FRAME_HEARTBEAT});
        header[rows[i].at] = rows[i].value;
        send_header(&r, header);
        if (rows[i].at == 4)
            send_header(&r, header); /* the byte, and more */
        wait_count(&w.server, &w.server.n_down, 1);
        if (w.server.code != rows[i].code)
            fail_msg("row %zu: %s", i, w.server.text);
        rogue_close(&w, &r);
    }
}

static int make_ring(void **state)
{
    (void)state;
    manifest = (struct manifest){.epoch = 1,
                                 .n_blocks = 4,
                                 .n_embd = 64,
                                 .n_vocab = 512,
                                 .n_ctx = 128,
                                 .n_slots = 2,
                                 .n_batch = 32,
                                 .n_ranks = N_RANKS,
                                 .ranks = ranks};
    memset(manifest.ring_id, 0x12, sizeof manifest.ring_id);
    key_generate(&stranger);
    for (uint32_t i = 0; i < N_RANKS; i++) {
        key_generate(&keys[i]);
        key_public_of(&keys[i], &ranks[i].key);
        ranks[i].first = 2 * i;
        ranks[i].end = 2 * i + 2;
    }
    log_set_level(LOG_ERROR);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_of_every_interesting_size_pass_both_ways),
        cmocka_unit_test(test_several_frames_go_in_one_send),
        cmocka_unit_test(test_frames_sent_before_the_peer_started_wait),
        cmocka_unit_test(test_many_threads_may_send),
        cmocka_unit_test(test_a_slow_reader_gives_busy_and_nothing_is_lost),
        cmocka_unit_test(test_a_stuck_link_is_closed_at_once),
        cmocka_unit_test(test_heartbeats_keep_an_idle_link),
        cmocka_unit_test(test_a_neighbour_that_reads_nothing_for_long_keeps_its_link),
        cmocka_unit_test(test_a_goodbye_is_delivered_with_its_reason),
        cmocka_unit_test(test_a_clean_goodbye_has_code_ok),
        cmocka_unit_test(test_a_peer_that_returns_gets_a_new_link),
        cmocka_unit_test(test_links_that_never_started_are_closed),
        cmocka_unit_test(test_an_inherited_socket_is_served),
        cmocka_unit_test(test_refusals_reach_the_dialer_by_name),
        cmocka_unit_test(test_strangers_do_not_stop_the_listener),
        cmocka_unit_test(test_a_length_of_4_gib_is_answered_and_closed),
        cmocka_unit_test(test_a_crowd_of_silent_callers_makes_room),
        cmocka_unit_test(test_a_peer_that_falls_silent_is_noticed),
        cmocka_unit_test(test_a_killed_peer_is_noticed),
        cmocka_unit_test(test_an_end_within_a_frame_is_named),
        cmocka_unit_test(test_a_record_of_4_gib_ends_the_link),
        cmocka_unit_test(test_garbage_in_the_session_ends_the_link),
        cmocka_unit_test(test_a_replayed_record_ends_the_link),
        cmocka_unit_test(test_frames_that_break_the_rules_end_the_link),
    };
    if (key_library_init(NULL) != OK)
        return 1;
    return cmocka_run_group_tests(tests, make_ring, NULL);
}
