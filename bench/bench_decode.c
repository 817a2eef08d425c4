/* SPDX-License-Identifier: MIT
 *
 * Decoding one sequence: a ring of two ranks with one thread each against one process with one thread, on a made model
 * of about 0.6 GB, alternating in one run. All ranks live in this process, joined by real links over loopback TCP.
 *
 * usage: bench_decode [MODEL [TOKENS [ROUNDS]]]; exit status 1 when the ring is below 0.95 of the single rank.
 */
#include "rig.h"
#include "stats.h"

#include "base/clock.h"
#include "base/parse.h"
#include "cli/gen.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ROUNDS 25
#define WANTED     0.95

/* ms per token of n tokens after the first. */
static double decode(struct rig *r, uint32_t n)
{
    struct err e;
    struct gen g;
    int32_t first = 1, token;
    struct tok_ids prompt = {.id = &first, .n = 1};
    struct batch_sampling greedy = {.top_p = 1, .repeat_penalty = 1};
    bool ended = false;
    if (gen_start(&g, r->ranks[0].node, NULL, &prompt, n + 1, &greedy, &e) != OK)
        rig_die(&e);
    while (!ended) {
        struct pollfd fd = {.fd = g.event_fd, .events = POLLIN};
        if (!gen_take(&g, &token, &ended) && !ended)
            poll(&fd, 1, 1000);
    }
    if (g.reason == SCHED_FAILED)
        rig_die(&g.err);
    double ms = (double)(g.last_ns - g.first_ns) / 1e6 / n;
    gen_fini(&g);
    return ms;
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
    uint32_t n_tok = 32, rounds = 7;
    if ((argc > 2 && parse_u32("TOKENS", argv[2], 2, 500, &n_tok, &e) != OK) ||
        (argc > 3 && parse_u32("ROUNDS", argv[3], 1, MAX_ROUNDS, &rounds, &e) != OK) || key_library_init(&e) != OK)
        rig_die(&e);
    struct gguf *g = rig_model(argc > 1 ? argv[1] : NULL, "half", KV_TEST_SCRATCH "/bench-half.gguf");
    struct rig one, two;
    rig_up(&one, g, &(struct layout_options){.n_stages = 1, .n_ctx = 512}, false);
    rig_up(&two, g, &(struct layout_options){.n_stages = 2, .n_ctx = 512}, false);
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
    double bytes = (double)stage_info(one.ranks[0].stage)->weight_bytes, ma = stats_median(a, rounds),
           rate = read_rate();
    printf("weights %.0f MiB; one rank reads %.1f GB/s of them; one thread reads memory at %.1f GB/s\n",
           bytes / 1048576, bytes / ma / 1e6, rate / 1e9);
    double mr = stats_median(ratio, rounds);
    printf("median: one rank %.2f ms/token, two ranks %.2f ms/token, ratio of speeds %.3f (wanted: at least %.2f)\n",
           ma, stats_median(b, rounds), mr, WANTED);
    rig_down(&two);
    rig_down(&one);
    gguf_close(g);
    return mr < WANTED;
}
