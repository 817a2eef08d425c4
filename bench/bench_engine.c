/* SPDX-License-Identifier: MIT
 *
 * One process, no ring: how fast the engine reads a prompt (pp: N tokens in one step, the last one's logits) and writes
 * (tg: N steps of one token each), as other engines' benchmarks count it, beside the rate at which as many threads read
 * memory. bench/llama.sh runs it in turn with llama.cpp's own. The model may be one window of a larger one.
 *
 * usage: bench_engine MODEL [THREADS [PP [TG [REPETITIONS]]]]; prints "pp RATE" and "tg RATE" in tokens/s, medians.
 */
#include "stats.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/parse.h"
#include "engine/stage.h"
#include "model/hparams.h"

#include <ggml.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_REPS    25
#define MAX_THREADS 64
#define READ_BYTES  ((size_t)512 << 20) /* per thread: more than caches hold */
#define STREAMS     4
#define LARGE_PAGE  ((size_t)2 << 20)

static void die(const struct err *e)
{
    fprintf(stderr, "bench_engine: %s: %s\n", err_name(e->code), e->msg);
    exit(1);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

struct reader {
    uint64_t *data;
    uint64_t sum;
    pthread_barrier_t *start;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    pthread_barrier_wait(r->start);
    uint64_t s[STREAMS] = {0}; /* from several places at once, one word of each line: all of it travels */
    size_t part = READ_BYTES / sizeof *r->data / STREAMS;
    for (size_t i = 0; i < part; i += 8)
        for (size_t k = 0; k < STREAMS; k++)
            s[k] += r->data[k * part + i];
    for (size_t k = 0; k < STREAMS; k++)
        r->sum += s[k];
    return NULL;
}

/* Bytes per second that n threads read together, the best of five. */
static double read_rate(uint32_t n)
{
    struct reader r[MAX_THREADS] = {0};
    pthread_t t[MAX_THREADS];
    pthread_barrier_t start;
    double best = 0;
    for (uint32_t i = 0; i < n; i++) {
        r[i] = (struct reader){.data = aligned_alloc(LARGE_PAGE, READ_BYTES), .start = &start};
        if (!r[i].data)
            return 0;
        (void)madvise(r[i].data, READ_BYTES, MADV_HUGEPAGE);
        memset(r[i].data, 1, READ_BYTES);
    }
    for (int k = 0; k < 5; k++) {
        pthread_barrier_init(&start, NULL, n + 1);
        for (uint32_t i = 0; i < n; i++)
            if (pthread_create(&t[i], NULL, read_all, &r[i]) != 0)
                exit(1);
        pthread_barrier_wait(&start);
        uint64_t t0 = clock_now_ns();
        for (uint32_t i = 0; i < n; i++)
            pthread_join(t[i], NULL);
        double rate = (double)n * READ_BYTES / ((double)(clock_now_ns() - t0) / 1e9);
        best = rate > best ? rate : best;
        pthread_barrier_destroy(&start);
    }
    for (uint32_t i = 0; i < n; i++)
        free(r[i].data);
    return best;
}

/* --- the engine --------------------------------------------------------------------------------------------------- */

struct run {
    struct stage *st;
    struct batch b;
    struct batch_entry entry;
    struct batch_result result;
    bool sample;
};

static uint64_t seed = 1;

/* n tokens at the end of the one sequence, random ones, in one step. */
static void step(struct run *r, uint32_t n, bool reset)
{
    struct err e;
    const struct stage_info *info = stage_info(r->st);
    uint64_t hash = reset ? HASH_PREFIX_EMPTY : r->entry.prefix_hash;
    uint32_t pos = reset ? 0 : r->entry.pos;
    r->entry = (struct batch_entry){.pos = pos,
                                    .n_tok = n,
                                    .prefix_hash = hash,
                                    .flags = (r->sample ? BATCH_SAMPLE : 0u) | (reset ? BATCH_RESET : 0u)};
    r->b.n_entries = 1;
    r->b.n_tok = n;
    for (uint32_t i = 0; i < n; i++)
        r->b.tokens[i] = (int32_t)(hash_mix64(seed++) % info->n_vocab);
    if (info->first > 0) /* a window in the middle gets a boundary of about unit size */
        for (size_t i = 0; i < (size_t)n * info->n_embd; i++)
            r->b.rows[i] = (float)(hash_mix64(seed + i) % 2001) / 1000.0f - 1.0f;
    if (stage_step(r->st, &r->b, &e) != OK)
        die(&e);
    for (uint32_t i = 0; i < n; i++)
        hash = hash_prefix(hash, r->b.tokens[i]);
    r->entry.prefix_hash = hash;
    r->entry.pos = pos + n;
}

static double seconds_since(uint64_t t0)
{
    return (double)(clock_now_ns() - t0) / 1e9;
}

/* The blocks whose tensors the file holds: all of a model, or a window of one. */
static void window_of(const struct gguf *g, uint32_t *first, uint32_t *end)
{
    *first = UINT32_MAX;
    *end = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        int32_t b = gguf_tensor_at(g, i)->block;
        if (b >= 0 && (uint32_t)b < *first)
            *first = (uint32_t)b;
        if (b >= 0 && (uint32_t)b + 1 > *end)
            *end = (uint32_t)b + 1;
    }
    if (gguf_tensor_find(g, "token_embd.weight"))
        *end = 0; /* a whole model: to the last block of the trunk */
}

/* Bytes of weights that one token needs: all of the window's, of experts those it uses; of the embeddings only when
 * they are the head too. */
static double bytes_per_token(const struct gguf *g, const struct stage_info *info)
{
    struct err e;
    struct hparams h;
    if (hparams_read(g, &h, &e) != OK)
        die(&e);
    double sum = 0, used = h.n_expert ? (double)h.n_expert_used / (double)h.n_expert : 1;
    bool tied = !gguf_tensor_find(g, "output.weight") && info->end == info->n_block;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        bool table = strcmp(t->name, "token_embd.weight") == 0;
        if ((t->block >= 0 && ((uint32_t)t->block < info->first || (uint32_t)t->block >= info->end)) ||
            (table && !tied))
            continue;
        sum += (double)t->size * (strstr(t->name, "_exps.") ? used : 1);
    }
    hparams_fini(&h);
    return sum;
}

int main(int argc, char **argv)
{
    struct err e;
    struct gguf *g;
    uint32_t threads = 1, n_pp = 256, n_tg = 64, reps = 5;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_engine MODEL [THREADS [PP [TG [REPETITIONS]]]]\n");
        return 2;
    }
    if ((argc > 2 && parse_u32("THREADS", argv[2], 1, MAX_THREADS, &threads, &e) != OK) ||
        (argc > 3 && parse_u32("PP", argv[3], 0, 4096, &n_pp, &e) != OK) ||
        (argc > 4 && parse_u32("TG", argv[4], 0, 4096, &n_tg, &e) != OK) ||
        (argc > 5 && parse_u32("REPETITIONS", argv[5], 1, MAX_REPS, &reps, &e) != OK) ||
        gguf_open(argv[1], &g, &e) != OK)
        die(&e);
    uint32_t most = n_pp > n_tg ? n_pp : n_tg;
    struct stage_params p = {
        .n_ctx = most ? most : 1, .n_slots = 1, .n_batch = n_pp ? n_pp : 1, .n_threads = threads, .kv_type = KV_F16};
    struct run r = {0};
    window_of(g, &p.first, &p.end);
    uint64_t t0 = clock_now_ns();
    if (stage_open(g, &p, &r.st, &e) != OK)
        die(&e);
    double load = seconds_since(t0);
    const struct stage_info *info = stage_info(r.st);
    r.sample = info->end == info->n_block;
    r.b = (struct batch){.cap_entries = 1,
                         .cap_tok = p.n_batch,
                         .entries = &r.entry,
                         .results = &r.result,
                         .n_embd = info->n_embd,
                         .tokens = calloc(p.n_batch, sizeof *r.b.tokens),
                         .rows = calloc((size_t)p.n_batch * info->n_embd, sizeof *r.b.rows)};
    if (!r.b.tokens || !r.b.rows) {
        err_set(&e, ERR_NOMEM, "no memory for steps of %u tokens", p.n_batch);
        die(&e);
    }
    double pp[MAX_REPS], tg[MAX_REPS];
    for (uint32_t k = 0; k < reps && n_pp; k++) {
        if (k == 0)
            step(&r, n_pp, true); /* warms up */
        t0 = clock_now_ns();
        step(&r, n_pp, true);
        pp[k] = n_pp / seconds_since(t0);
    }
    for (uint32_t k = 0; k < reps && n_tg; k++) {
        if (k == 0)
            step(&r, 1, true);
        t0 = clock_now_ns();
        for (uint32_t i = 0; i < n_tg; i++)
            step(&r, 1, i == 0);
        tg[k] = n_tg / seconds_since(t0);
    }
    double rate = reps > 1 ? read_rate(threads) : 0;
    printf("load %.3f s, weights %.0f MiB (%.0f repacked)\n", load, (double)info->weight_bytes / 1048576,
           (double)info->repacked_bytes / 1048576);
    if (rate > 0)
        printf("memory %.1f GB/s with %u threads\n", rate / 1e9, threads);
    if (n_pp)
        printf("pp %.2f\n", stats_median(pp, reps));
    if (n_tg) {
        double t = stats_median(tg, reps), bytes = bytes_per_token(g, info);
        printf("tg %.2f\n", t);
        printf("one token: %.3f ms, %.1f MB of weights, %.1f GB/s", 1e3 / t, bytes / 1e6, bytes * t / 1e9);
        printf(rate > 0 ? ", %.0f %% of the memory's\n" : "\n", 100 * bytes * t / rate);
    }
    stage_close(r.st);
    free(r.b.tokens);
    free(r.b.rows);
    gguf_close(g);
    return 0;
}
