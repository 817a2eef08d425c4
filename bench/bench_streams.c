/* SPDX-License-Identifier: MIT
 *
 * Many streams around one ring: two ranks with one thread each, cut where the two halves cost the same, against one
 * process with one thread, in turns. Three figures: tokens per second of N streams that decode together, of a long
 * prompt, of a single stream. The halves of a prompt are others than those of a decoded token: the head, which counts
 * when tokens are decoded, sees only one of a prompt's tokens. All ranks live in this process, joined by real links
 * over loopback TCP. bench/rpc.sh measures the same of llama.cpp with two RPC servers.
 *
 * What two ranks can reach at most with N streams is twice the rate of one rank with N/2, since a stream's next token
 * waits for its last: two steps of N/2 rows go round. That is measured too. Kernels whose cost grows with the rows give
 * nearly twice one rank's rate with N; with AMX a step of 4 rows costs nearly what one of 8 does, and two ranks gain
 * little until there are more streams than a tile has rows.
 *
 * usage: bench_streams [MODEL [STREAMS [ROUNDS [plain]]]]; plain: with the weights as they are in the file, not laid
 * out anew. Exit status 1 when a ratio is below what issue 5 wants (1.8 for N streams and the prompt, 0.95 for one
 * stream), or a token takes more than its row and 96 bytes over the edge.
 */
#include "rig.h"
#include "stats.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/parse.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_STREAMS 32
#define MAX_ROUNDS  15
#define N_TOKENS    48   /* of each stream */
#define N_PROMPT    1024 /* tokens of the long prompt */

/* "0:A,A:N": the block at which what each of two ranks reads per token is most alike. The table of embeddings costs
 * nothing, the head does where every token is sampled. */
static void cut_evenly(const struct gguf *g, bool sampled, char layers[48])
{
    struct err e;
    struct hparams h;
    struct model_sizes s;
    if (hparams_read(g, &h, &e) != OK || model_sizes_read(g, &h, &s, &e) != OK)
        rig_die(&e);
    uint64_t all = sampled ? s.head_bytes : 0, left = 0, best = UINT64_MAX;
    uint32_t cut = 1;
    for (uint32_t b = 0; b < s.n_block; b++)
        all += s.block_bytes[b];
    for (uint32_t b = 0; b + 1 < s.n_block; b++) {
        left += s.block_bytes[b];
        uint64_t worse = left > all - left ? left : all - left;
        if (worse < best) {
            best = worse;
            cut = b + 1;
        }
    }
    snprintf(layers, 48, "0:%u,%u:%u", cut, cut, s.n_block);
    model_sizes_fini(&s);
    hparams_fini(&h);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

struct tally {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t n_started, n_ended, n_streams;
    uint64_t n_tok; /* since every stream had its first one */
    uint64_t all_began_ns, last_ns;
    bool failed;
};

static void on_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct tally *t = ctx;
    (void)id;
    (void)r;
    pthread_mutex_lock(&t->mutex);
    t->last_ns = clock_now_ns();
    if (t->all_began_ns)
        t->n_tok++;
    pthread_mutex_unlock(&t->mutex);
}

static void on_first_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct tally *t = ctx;
    pthread_mutex_lock(&t->mutex);
    if (++t->n_started == t->n_streams)
        t->all_began_ns = clock_now_ns();
    pthread_mutex_unlock(&t->mutex);
    (void)id;
    (void)r;
}

struct stream {
    struct tally *t;
    bool began;
};

static void on_stream_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct stream *s = ctx;
    on_token(s->t, id, r);
    if (!s->began)
        on_first_token(s->t, id, r);
    s->began = true;
}

static void on_stream_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct tally *t = ((struct stream *)ctx)->t;
    (void)id;
    pthread_mutex_lock(&t->mutex);
    if (reason != SCHED_LENGTH) {
        fprintf(stderr, "bench_streams: a stream ended: %s %s %s\n", sched_reason_name(reason), err_name(code), text);
        t->failed = true;
    }
    t->n_ended++;
    pthread_cond_broadcast(&t->cond);
    pthread_mutex_unlock(&t->mutex);
}

static uint64_t seed = 1;

/* n streams with prompts of n_prompt random tokens and n_tok tokens to write. Seconds from the start to the end. */
static double serve(struct rig *r, uint32_t n, uint32_t n_prompt, uint32_t n_tok, struct tally *t)
{
    struct err e;
    struct stream s[MAX_STREAMS];
    int32_t prompt[N_PROMPT];
    uint64_t id;
    *t = (struct tally){.n_streams = n};
    pthread_mutex_init(&t->mutex, NULL);
    thread_cond_init(&t->cond);
    uint64_t t0 = clock_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n_prompt; k++)
            prompt[k] = (int32_t)(hash_mix64(seed++) % r->m.n_vocab);
        s[i] = (struct stream){.t = t};
        struct sched_request q = {.tokens = prompt,
                                  .n_tokens = n_prompt,
                                  .n_predict = n_tok,
                                  .sampling = {.top_p = 1, .repeat_penalty = 1},
                                  .ctx = &s[i],
                                  .on_token = on_stream_token,
                                  .on_end = on_stream_end};
        if (node_submit(r->ranks[0].node, &q, &id, &e) != OK)
            rig_die(&e);
    }
    pthread_mutex_lock(&t->mutex);
    while (t->n_ended < n)
        thread_cond_wait(&t->cond, &t->mutex, clock_deadline_ms(1000));
    pthread_mutex_unlock(&t->mutex);
    if (t->failed)
        exit(1);
    return (double)(clock_now_ns() - t0) / 1e9;
}

/* Tokens per second once every stream has begun. */
static double decode(struct rig *r, uint32_t n)
{
    struct tally t;
    serve(r, n, 8, N_TOKENS, &t);
    return (double)t.n_tok * 1e9 / (double)(t.last_ns - t.all_began_ns);
}

static double prefill(struct rig *r)
{
    struct tally t;
    return N_PROMPT / serve(r, 1, N_PROMPT, 1, &t);
}

/* --- the comparison ----------------------------------------------------------------------------------------------- */

/* What went over the first edge of a ring while it was measured. */
struct edge {
    uint64_t bytes, n_tok;
};

enum figure { STREAMS, PROMPT, SINGLE, N_FIGURES };

static double measure(struct rig *r, enum figure f, uint32_t n_streams, struct edge *edge)
{
    struct rank_report before, after;
    rank_report_of(&r->ranks[0], &before);
    double rate = f == STREAMS ? decode(r, n_streams) : f == PROMPT ? prefill(r) : decode(r, 1);
    rank_report_of(&r->ranks[0], &after);
    edge->bytes += after.out_bytes - before.out_bytes;
    edge->n_tok += after.n_tok - before.n_tok;
    return rate;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        double wanted;
    } figures[N_FIGURES] = {
        [STREAMS] = {"streams", 1.8}, [PROMPT] = {"prompt of 1024", 1.8}, [SINGLE] = {"one stream", 0.95}};
    struct err e;
    uint32_t n_streams = 8, rounds = 5;
    bool plain = argc > 4 && strcmp(argv[4], "plain") == 0;
    if ((argc > 2 && parse_u32("STREAMS", argv[2], 2, MAX_STREAMS, &n_streams, &e) != OK) ||
        (argc > 3 && parse_u32("ROUNDS", argv[3], 1, MAX_ROUNDS, &rounds, &e) != OK) || key_library_init(&e) != OK)
        rig_die(&e);
    struct gguf *g = rig_model(argc > 1 ? argv[1] : NULL, "qwen3-0.6b", KV_TEST_SCRATCH "/bench-qwen3.gguf");
    char decode_cut[48], prompt_cut[48];
    cut_evenly(g, true, decode_cut);
    cut_evenly(g, false, prompt_cut);
    printf("%s, %u streams; ring: %s, for the prompt %s\n", gguf_path(g), n_streams, decode_cut, prompt_cut);
    struct rig one, two, two_prompt;
    struct layout_options whole = {.n_stages = 1, .n_ctx = N_PROMPT + 128, .n_slots = n_streams};
    struct layout_options halves = {.layers = decode_cut, .n_ctx = N_PROMPT + 128, .n_slots = n_streams};
    struct layout_options prompt_halves = {.layers = prompt_cut, .n_ctx = N_PROMPT + 128, .n_slots = 1};
    rig_up(&one, g, &whole, plain);
    rig_up(&two, g, &halves, plain);
    rig_up(&two_prompt, g, &prompt_halves, plain);
    double v[N_FIGURES][2][MAX_ROUNDS], half[MAX_ROUNDS];
    struct edge edge[N_FIGURES] = {0}, none = {0};
    for (uint32_t k = 0; k < rounds; k++) {
        half[k] = measure(&one, STREAMS, n_streams / 2, &none);
        for (int f = 0; f < N_FIGURES; f++) {
            v[f][0][k] = measure(&one, (enum figure)f, n_streams, &none);
            v[f][1][k] = measure(f == PROMPT ? &two_prompt : &two, (enum figure)f, n_streams, &edge[f]);
            printf("round %u: %-14s one rank %7.1f, two ranks %7.1f tokens/s\n", k, figures[f].name, v[f][0][k],
                   v[f][1][k]);
            fflush(stdout);
        }
    }
    int worst = 0;
    for (int f = 0; f < N_FIGURES; f++) {
        double a = stats_median(v[f][0], rounds), b = stats_median(v[f][1], rounds);
        double beyond = (double)edge[f].bytes / (double)edge[f].n_tok - 4.0 * two.m.n_embd;
        printf("%-14s one rank %7.1f, two ranks %7.1f tokens/s, ratio %.2f (wanted: %.2f); edge: row + %.0f bytes a "
               "token\n",
               figures[f].name, a, b, b / a, figures[f].wanted, beyond);
        worst |= b / a < figures[f].wanted || beyond > 96;
    }
    double limit = 2 * stats_median(half, rounds), reached = stats_median(v[STREAMS][1], rounds);
    printf("%u streams in two steps of %u: at most %.1f tokens/s (twice one rank's with %u), reached %.0f %%\n",
           n_streams, n_streams / 2, limit, n_streams / 2, 100 * reached / limit);
    rig_down(&two_prompt);
    rig_down(&two);
    rig_down(&one);
    gguf_close(g);
    return worst;
}
