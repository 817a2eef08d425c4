/* SPDX-License-Identifier: MIT
 *
 * Decoding one sequence: a ring of two ranks with one thread each against one process with one thread, on a made model
 * of about 0.6 GB, alternating in one run. All ranks live in this process, joined by real links over loopback TCP.
 *
 * usage: bench_decode [MODEL [TOKENS [ROUNDS]]]; exit status 1 when the ring is below 0.95 of the single rank.
 */
#include "base/clock.h"
#include "base/parse.h"
#include "cli/gen.h"
#include "cli/layout.h"
#include "cli/rank.h"
#include "lib/maker.h"
#include "net/tcp.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RANKS  2
#define MAX_ROUNDS 25
#define WANTED     0.95

struct ring {
    struct manifest m;
    struct key_secret secrets[MAX_RANKS];
    struct rank ranks[MAX_RANKS];
};

static void die(const struct err *e)
{
    fprintf(stderr, "bench_decode: %s: %s\n", err_name(e->code), e->msg);
    exit(1);
}

static void ring_up(struct ring *r, const struct gguf *g, uint32_t n_ranks)
{
    struct err e;
    int fds[MAX_RANKS] = {-1, -1};
    struct layout_options o = {.n_stages = n_ranks, .n_ctx = 512};
    struct rank_options ro = {.n_threads = 1};
    memset(r, 0, sizeof *r);
    if (layout_make(g, &o, &r->m, &e) != OK)
        die(&e);
    for (uint32_t i = 0; i < n_ranks; i++) {
        uint16_t port;
        key_generate(&r->secrets[i]);
        key_public_of(&r->secrets[i], &r->m.ranks[i].key);
        if (n_ranks > 1 && net_tcp_listen("127.0.0.1:0", &fds[i], &port, &e) != OK)
            die(&e);
        if (n_ranks > 1)
            snprintf(r->m.ranks[i].addr, sizeof r->m.ranks[i].addr, "127.0.0.1:%u", port);
    }
    for (uint32_t i = 0; i < n_ranks; i++) {
        struct node_config c = {.secret = &r->secrets[i], .listen_fd = fds[i]};
        if (rank_open(&r->ranks[i], g, &r->m, i, NULL, &ro, &e) != OK || rank_start(&r->ranks[i], &r->m, &c, &e) != OK)
            die(&e);
    }
    if (node_wait_ready(r->ranks[0].node, clock_deadline_ms(30000), &e) != OK)
        die(&e);
}

static void ring_down(struct ring *r)
{
    for (uint32_t i = 0; i < r->m.n_ranks; i++)
        rank_close(&r->ranks[i]);
    manifest_fini(&r->m);
}

/* ms per token of n tokens after the first. */
static double decode(struct ring *r, uint32_t n)
{
    struct err e;
    struct gen g;
    int32_t first = 1, token;
    struct tok_ids prompt = {.id = &first, .n = 1};
    struct batch_sampling greedy = {.top_p = 1, .repeat_penalty = 1};
    bool ended = false;
    if (gen_start(&g, r->ranks[0].node, NULL, &prompt, n + 1, &greedy, &e) != OK)
        die(&e);
    while (!ended) {
        struct pollfd fd = {.fd = g.event_fd, .events = POLLIN};
        if (!gen_take(&g, &token, &ended) && !ended)
            poll(&fd, 1, 1000);
    }
    if (g.reason == SCHED_FAILED)
        die(&g.err);
    double ms = (double)(g.last_ns - g.first_ns) / 1e6 / n;
    gen_fini(&g);
    return ms;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* What one thread can read per second, from memory that does not fit a cache close by: the limit of decoding. */
static double read_rate(void)
{
    size_t n = 512u << 20;
    volatile uint64_t sink = 0;
    uint64_t *p = malloc(n), best = UINT64_MAX;
    if (!p)
        return 0;
    memset(p, 1, n);
    for (int k = 0; k < 3; k++) {
        uint64_t t0 = clock_now_ns(), s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (size_t i = 0; i < n / 8; i += 4) {
            s0 += p[i];
            s1 += p[i + 1];
            s2 += p[i + 2];
            s3 += p[i + 3];
        }
        sink = s0 + s1 + s2 + s3;
        uint64_t t = clock_now_ns() - t0;
        best = t < best ? t : best;
    }
    (void)sink;
    free(p);
    return (double)n / ((double)best / 1e9);
}

int main(int argc, char **argv)
{
    struct err e;
    const char *path = argc > 1 ? argv[1] : KV_TEST_SCRATCH "/bench-half.gguf";
    uint32_t n_tok = 32, rounds = 7;
    if ((argc > 2 && parse_u32("TOKENS", argv[2], 2, 500, &n_tok, &e) != OK) ||
        (argc > 3 && parse_u32("ROUNDS", argv[3], 1, MAX_ROUNDS, &rounds, &e) != OK) || key_library_init(&e) != OK)
        die(&e);
    if (argc <= 1 && access(path, R_OK) != 0) {
        struct maker_params p;
        if (maker_preset("half", &p, &e) != OK || maker_write(path, &p, &e) != OK)
            die(&e);
    }
    struct gguf *g;
    if (gguf_open(path, &g, &e) != OK)
        die(&e);
    struct ring one, two;
    ring_up(&one, g, 1);
    ring_up(&two, g, 2);
    double a[MAX_ROUNDS], b[MAX_ROUNDS], ratio[MAX_ROUNDS];
    decode(&one, n_tok);
    decode(&two, n_tok);
    for (uint32_t i = 0; i < rounds; i++) {
        a[i] = decode(&one, n_tok);
        b[i] = decode(&two, n_tok);
        ratio[i] = a[i] / b[i];
        printf("round %u: one rank %.2f ms/token, two ranks %.2f ms/token, ratio %.3f\n", i, a[i], b[i], ratio[i]);
        fflush(stdout);
    }
    double bytes = (double)stage_info(one.ranks[0].stage)->weight_bytes, ma = median(a, rounds), rate = read_rate();
    printf("weights %.0f MiB; one rank reads %.1f GB/s of them; one thread reads memory at %.1f GB/s\n",
           bytes / 1048576, bytes / ma / 1e6, rate / 1e9);
    double mr = median(ratio, rounds);
    printf("median: one rank %.2f ms/token, two ranks %.2f ms/token, ratio of speeds %.3f (wanted: at least %.2f)\n",
           ma, median(b, rounds), mr, WANTED);
    ring_down(&two);
    ring_down(&one);
    gguf_close(g);
    return mr < WANTED;
}
