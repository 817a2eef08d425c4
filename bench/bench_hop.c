/* SPDX-License-Identifier: MIT
 *
 * What a hop costs: a ring of stages, each its own process, that only pass a decode step's frame on (12 KiB boundary),
 * through real links: authenticated, encrypted, received on a link thread and sent by a compute thread. Beside it, in
 * turns, a plain TCP ping-pong of the same bytes between two processes. Prints the median per hop of both, where a hop
 * of the ping-pong is half its round trip.
 *
 * Neighbours of a ring are different machines, so here they are put on different CPUs, the two ends of the ping-pong
 * alike: a frame then always crosses CPUs. Exit status 1 when the ring's hop is over MAX_RATIO times the other there.
 * A second line shows the same left to the scheduler, which often lets both ends of the ping-pong share one CPU.
 */
#include "stats.h"

#include "base/clock.h"
#include "base/thread.h"
#include "net/tcp.h"
#include "ring/frame.h"
#include "ring/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_STAGES  4u
#define N_EMBD    3072u
#define N_TURNS   12u
#define N_ROUNDS  250u /* per turn */
#define N_WARM_UP 300u
#define WAIT_MS   10000u
#define MAX_RATIO 3.0

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "bench_hop: %s: %s\n", what, e ? e->msg : strerror(errno));
    exit(1);
}

/* Puts this process, threads that it starts later included, on the which-th of the CPUs it may use. */
static void pin(uint32_t which)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    which %= (uint32_t)CPU_COUNT(&all);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || which-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0)
            return; /* then it is left to the scheduler after all */
    }
}

/* --- one stage ------------------------------------------------------------------------------------ */

struct stage {
    uint32_t rank;
    const struct key_secret *keys; /* [N_STAGES] */
    const struct manifest *m;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct link *in, *out;
    struct buf frame; /* the frame received last */
    bool full, down;
};

static void on_frame(void *ctx, const struct frame_header *h, const uint8_t *payload)
{
    struct stage *s = ctx;
    pthread_mutex_lock(&s->mutex);
    buf_clear(&s->frame);
    uint8_t *p = buf_reserve(&s->frame, FRAME_HEADER_BYTES + h->length);
    if (p) {
        frame_header_put(p, h);
        memcpy(p + FRAME_HEADER_BYTES, payload, h->length);
        s->frame.len = FRAME_HEADER_BYTES + h->length;
    }
    s->full = true;
    pthread_mutex_unlock(&s->mutex);
    pthread_cond_signal(&s->cond); /* unlocked: who wakes up can go on at once */
}

static void on_down(void *ctx, enum err_code code, const char *text)
{
    struct stage *s = ctx;
    (void)code;
    (void)text;
    pthread_mutex_lock(&s->mutex);
    s->down = true;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mutex);
}

static bool wait_frame(struct stage *s)
{
    const uint64_t until = clock_deadline_ms(WAIT_MS);
    pthread_mutex_lock(&s->mutex);
    while (!s->full && !s->down && thread_cond_wait(&s->cond, &s->mutex, until))
        continue;
    bool have = s->full;
    s->full = false;
    pthread_mutex_unlock(&s->mutex);
    return have;
}

static enum err_code edge_of(void *ctx, uint32_t edge, struct handshake_hello *mine, struct key_public *expected,
                             struct err *e)
{
    const struct stage *s = ctx;
    return handshake_hello_of(s->m, s->rank, edge, mine, expected, e);
}

static void on_link(void *ctx, uint32_t edge, struct link *l)
{
    struct stage *s = ctx;
    (void)edge;
    pthread_mutex_lock(&s->mutex);
    s->in = l;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mutex);
}

/* Both links up: serves edge rank - 1 on the inherited socket, dials edge rank. */
static struct link_listener *stage_open(struct stage *s, const int *fds)
{
    struct link_listener *listener;
    struct handshake_hello mine;
    struct key_public expected;
    struct err e;
    const struct link_listener_config config = {
        .secret = &s->keys[s->rank], .ctx = s, .edge = edge_of, .on_link = on_link};
    const struct link_callbacks cb = {.ctx = s, .on_frame = on_frame, .on_down = on_down};
    pthread_mutex_init(&s->mutex, NULL);
    thread_cond_init(&s->cond);
    for (uint32_t i = 0; i < N_STAGES; i++) {
        if (i != s->rank)
            close(fds[i]);
    }
    if (link_listen(NULL, fds[s->rank], &config, &listener, &e) != OK ||
        handshake_hello_of(s->m, s->rank, s->rank, &mine, &expected, &e) != OK)
        die("listen", &e);
    const struct link_dial_config dial = {.addr = s->m->ranks[(s->rank + 1) % N_STAGES].addr,
                                          .deadline_ns = clock_deadline_ms(WAIT_MS),
                                          .secret = &s->keys[s->rank],
                                          .mine = &mine,
                                          .expected = &expected};
    if (link_dial(&dial, &s->out, &e) != OK || link_start(s->out, &cb, NULL, &e) != OK)
        die("dial", &e);
    const uint64_t until = clock_deadline_ms(WAIT_MS);
    pthread_mutex_lock(&s->mutex);
    while (!s->in && thread_cond_wait(&s->cond, &s->mutex, until))
        continue;
    pthread_mutex_unlock(&s->mutex);
    if (!s->in || link_start(s->in, &cb, NULL, &e) != OK)
        die("no predecessor came", NULL);
    return listener;
}

static void stage_close(struct stage *s, struct link_listener *listener)
{
    link_close(s->out);
    link_close(s->in);
    link_listener_close(listener);
    buf_free(&s->frame);
}

static void stage_main(struct stage *s, const int *fds)
{
    struct err e;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct link_listener *listener = stage_open(s, fds);
    while (wait_frame(s)) {
        if (link_send(s->out, s->frame.data, s->frame.len, &e) != OK)
            break;
    }
    stage_close(s, listener);
    exit(0);
}

/* --- the plain ping-pong ------------------------------------------------------------------------ */

static void make_blocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0)
        die("fcntl", NULL);
}

static bool read_all(int fd, uint8_t *p, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = read(fd, p + done, len - done);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const uint8_t *p, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, p + done, len - done);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static void pong_main(int listen_fd, size_t len)
{
    uint8_t *p = malloc(len);
    int fd = -1, one = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    make_blocking(listen_fd);
    if (!p || (fd = accept(listen_fd, NULL, NULL)) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        die("pong", NULL);
    while (read_all(fd, p, len) && write_all(fd, p, len))
        continue;
    exit(0);
}

/* --- measuring --------------------------------------------------------------------------------- */

static void make_frame(struct buf *out)
{
    static float rows[N_EMBD];
    int32_t token = 1;
    struct err e;
    struct batch_entry entry = {.request_id = 1, .pos = 0, .n_tok = 1, .flags = BATCH_SAMPLE};
    struct batch b = {.n_entries = 1, .n_tok = 1, .n_embd = N_EMBD, .entries = &entry, .tokens = &token, .rows = rows};
    for (uint32_t i = 0; i < N_EMBD; i++)
        rows[i] = (float)i / 7;
    if (frame_step_put(out, 1, &b, true, &e) != OK)
        die("frame", &e);
}

static double ring_round_us(struct stage *s, const struct buf *frame)
{
    struct err e;
    const uint64_t t0 = clock_now_ns();
    if (link_send(s->out, frame->data, frame->len, &e) != OK)
        die("send", &e);
    if (!wait_frame(s))
        die("the frame did not come back", NULL);
    return (double)(clock_now_ns() - t0) / 1e3;
}

static double ping_round_us(int fd, const struct buf *frame, uint8_t *in)
{
    const uint64_t t0 = clock_now_ns();
    if (!write_all(fd, frame->data, frame->len) || !read_all(fd, in, frame->len))
        die("ping-pong", NULL);
    return (double)(clock_now_ns() - t0) / 1e3;
}

static double measure(struct stage *s, int ping_fd, const struct buf *frame, const char *how)
{
    static double ring[N_TURNS * N_ROUNDS], ping[N_TURNS * N_ROUNDS];
    uint8_t *in = malloc(frame->len);
    size_t n = 0;
    if (!in)
        die("memory", NULL);
    for (unsigned i = 0; i < N_WARM_UP; i++) {
        ring_round_us(s, frame);
        ping_round_us(ping_fd, frame, in);
    }
    for (unsigned turn = 0; turn < N_TURNS; turn++) {
        for (unsigned i = 0; i < N_ROUNDS; i++)
            ring[n + i] = ring_round_us(s, frame) / N_STAGES;
        for (unsigned i = 0; i < N_ROUNDS; i++)
            ping[n + i] = ping_round_us(ping_fd, frame, in) / 2;
        n += N_ROUNDS;
    }
    free(in);
    const double r = stats_median(ring, n), p = stats_median(ping, n), ratio = r / p;
    printf("hop of %zu bytes, %s, median of %zu rounds: ring of %u %.1f us (%s), plain TCP %.1f us, ratio %.2f\n",
           frame->len, how, n, N_STAGES, r, link_cipher_name(s->out), p, ratio);
    fflush(stdout);
    return ratio;
}

/* --- setting up --------------------------------------------------------------------------------- */

static void make_manifest(struct manifest *m, struct manifest_rank *ranks, struct key_secret *keys, int *fds)
{
    struct err e;
    *m = (struct manifest){.n_blocks = N_STAGES,
                           .n_embd = N_EMBD,
                           .n_vocab = 32,
                           .n_ctx = 64,
                           .n_slots = 1,
                           .n_batch = 1,
                           .n_ranks = N_STAGES,
                           .ranks = ranks};
    for (uint32_t i = 0; i < N_STAGES; i++) {
        uint16_t port;
        key_generate(&keys[i]);
        key_public_of(&keys[i], &ranks[i].key);
        ranks[i].first = i;
        ranks[i].end = i + 1;
        if (net_tcp_listen("127.0.0.1:0", &fds[i], &port, &e) != OK)
            die("listen", &e);
        snprintf(ranks[i].addr, sizeof ranks[i].addr, "127.0.0.1:%u", port);
    }
}

/* One ring and one ping-pong; returns the ratio. */
static double run(bool pinned, const char *how)
{
    static struct manifest_rank ranks[N_STAGES];
    static struct key_secret keys[N_STAGES];
    struct manifest m;
    struct buf frame = {0};
    struct err e;
    pid_t children[N_STAGES];
    int fds[N_STAGES], pong_fd, ping_fd;
    uint16_t pong_port;
    char pong_addr[32];
    if (net_tcp_listen("127.0.0.1:0", &pong_fd, &pong_port, &e) != OK)
        die("listen", &e);
    make_manifest(&m, ranks, keys, fds);
    make_frame(&frame);
    for (uint32_t i = 0; i < N_STAGES; i++) { /* child 0 is the pong, the others are ranks; rank 0 is this process */
        children[i] = fork();
        if (children[i] < 0)
            die("fork", NULL);
        if (children[i] > 0)
            continue;
        if (pinned)
            pin(i == 0 ? 1 : i);
        if (i == 0)
            pong_main(pong_fd, frame.len);
        struct stage s = {.rank = i, .keys = keys, .m = &m};
        stage_main(&s, fds);
    }
    cpu_set_t before;
    if (sched_getaffinity(0, sizeof before, &before) != 0)
        die("affinity", NULL);
    if (pinned)
        pin(0);
    snprintf(pong_addr, sizeof pong_addr, "127.0.0.1:%u", pong_port);
    if (net_tcp_connect(pong_addr, clock_deadline_ms(WAIT_MS), &ping_fd, &e) != OK)
        die("connect", &e);
    make_blocking(ping_fd);
    struct stage s = {.rank = 0, .keys = keys, .m = &m};
    struct link_listener *listener = stage_open(&s, fds);
    double ratio = measure(&s, ping_fd, &frame, how);
    stage_close(&s, listener);
    close(ping_fd);
    close(pong_fd);
    for (uint32_t i = 0; i < N_STAGES; i++)
        waitpid(children[i], NULL, 0);
    buf_free(&frame);
    if (sched_setaffinity(0, sizeof before, &before) != 0)
        die("affinity", NULL);
    return ratio;
}

int main(void)
{
    struct err e;
    if (key_library_init(&e) != OK)
        die("start", &e);
    const double ratio = run(true, "neighbours on different CPUs");
    run(false, "left to the scheduler");
    return ratio > MAX_RATIO;
}
