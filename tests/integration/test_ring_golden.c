/* SPDX-License-Identifier: MIT
 *
 * Real models around real rings: every llama model of the test data and the demo model, in rings of several sizes over
 * loopback sockets, gives the reference's tokens, and at every step, bit for bit, the logits of the unsplit run. So it
 * does when each rank has nothing but a stage file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/stage.h"
#include "lib/golden.h"
#include "lib/test_util.h"
#include "model/slice.h"
#include "net/tcp.h"
#include "ring/node.h"
#include "tok/tok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RANKS 8
#define MAX_OUT   1024
#define N_CTX     512u
#define WAIT_MS   60000u
#define DEMO_OUT  200 /* tokens for each prompt of the demo model */

struct model {
    const char *file, *golden; /* stems; golden NULL: the demo model, which has no references */
    const char *dir;           /* NULL: tests/data, else a folder of ../shared */
    bool quantized;
    const char *cases[4]; /* of the references; of the demo model the prompts themselves */
};

static const struct model models[] = {
    {"llama-spm-f32", "llama-spm-f32", NULL, false, {"short", "long", "code"}},
    {"llama-tied-f32", "llama-tied-f32", NULL, false, {"short", "long", "chat"}},
    {"llama3-f32", "llama3-f32", NULL, false, {"short", "long", "chat"}},
    {"llama-spm-q8_0", "llama-spm-q8_0", NULL, true, {"short", "long", "code"}},
    {"llama-spm-q4_0", "llama-spm-q4_0", NULL, true, {"short", "long", "code"}},
    {"llama-spm-q4_0-00001-of-00003", "llama-spm-q4_0", NULL, true, {"short", "code"}},
    {"llama-k256-q4_k_m", "llama-k256-q4_k_m", NULL, true, {"short", "long", "code"}},
    {"qwen2-f32", "qwen2-f32", "fixtures", false, {"short", "long", "chat"}},
    {"qwen3-f32", "qwen3-f32", NULL, false, {"short", "long", "chat"}},
    {"qwen3moe-f32", "qwen3moe-f32", "fixtures", false, {"short", "long", "chat"}},
    {"qwen3moe-q4_0", "qwen3moe-q4_0", "fixtures", true, {"short", "long"}},
    {"qwen35-f32", "qwen35-f32", "fixtures", false, {"short", "long", "chat"}},
    {"qwen35moe-f32", "qwen35moe-f32", NULL, false, {"short", "long", "chat"}},
    {"qwen35moe-k256-q4_k_m", "qwen35moe-k256-q4_k_m", "fixtures", true, {"short", "long"}},
    {"gemma3-f32", "gemma3-f32", NULL, false, {"short", "long", "chat"}},
    {"phi3-f32", "phi3-f32", "fixtures", false, {"short", "long", "chat"}},
    {"gpt-oss-mxfp4", "gpt-oss-mxfp4", "fixtures", true, {"short", "long"}},
    {"stories260K-F32", "stories260K-F32", "models", false, {"story0", "story1", "story2"}},
    {"stories260K-Q8_0", "stories260K-Q8_0", "models", true, {"story0", "story1"}},
    {"huginn", NULL, NULL, true, {"It was a cold morning in the village, and the old sailor", "Once"}},
};
#define N_MODELS (sizeof models / sizeof *models)

/* The requests that are made of a model. The reference's tokens are there when the model has references. */
struct request {
    const int32_t *prompt, *want; /* want NULL: none */
    size_t n, n_out;
};

struct subject {
    const struct model *m;
    struct gguf *g;
    struct hparams h;
    struct golden *gold;
    struct tok_ids ids[4]; /* of prompts that are given as text */
    struct request ask[4];
    size_t n;
};

static void take_references(struct subject *s)
{
    for (; s->n < 4 && s->m->cases[s->n]; s->n++) {
        struct request *r = &s->ask[s->n];
        char name[64];
        snprintf(name, sizeof name, "%s.prompt", s->m->cases[s->n]);
        r->prompt = golden_i32(s->gold, name, NULL, &r->n);
        snprintf(name, sizeof name, "%s.greedy", s->m->cases[s->n]);
        r->want = golden_i32(s->gold, name, NULL, &r->n_out);
        assert_true(r->prompt && r->want && r->n_out > 0);
    }
}

static void take_texts(struct subject *s)
{
    struct tok *t;
    struct err e;
    if (tok_new(s->g, NULL, &t, &e) != OK)
        fail_msg("%s", e.msg);
    for (; s->n < 4 && s->m->cases[s->n]; s->n++) {
        const char *text = s->m->cases[s->n];
        struct tok_ids *ids = &s->ids[s->n];
        assert_int_equal(tok_encode(t, text, strlen(text), TOK_ADD_SPECIAL, ids, &e), OK);
        s->ask[s->n] = (struct request){.prompt = ids->id, .n = ids->n, .n_out = DEMO_OUT};
    }
    tok_free(t);
}

static bool subject_open(const struct model *m, struct subject *s)
{
    char name[128], path[PATH_MAX], gold[PATH_MAX];
    struct err e;
    *s = (struct subject){.m = m};
    if (!m->golden) {
        test_demo_model(path);
    } else {
        char ref[128];
        snprintf(name, sizeof name, "%s%s%s.gguf", m->dir ? m->dir : "", m->dir ? "/" : "", m->file);
        snprintf(ref, sizeof ref, "%s%sgolden/%s.bin", m->dir ? m->dir : "", m->dir ? "/" : "", m->golden);
        if (m->dir && !test_have_shared(name))
            return false;
        m->dir ? test_shared(name, path) : test_data(name, path);
        m->dir ? test_shared(ref, gold) : test_data(ref, gold);
        if (golden_open(gold, &s->gold, &e) != OK)
            fail_msg("%s", e.msg);
    }
    if (gguf_open(path, &s->g, &e) != OK || hparams_read(s->g, &s->h, &e) != OK)
        fail_msg("%s", e.msg);
    if (!m->golden)
        take_texts(s);
    else
        take_references(s);
    return true;
}

static void subject_close(struct subject *s)
{
    for (size_t i = 0; i < 4; i++)
        tok_ids_free(&s->ids[i]);
    hparams_fini(&s->h);
    golden_close(s->gold);
    gguf_close(s->g);
}

/* --- a ring of stages ---------------------------------------------------------------------------- */

struct ring {
    const struct index *digests; /* each rank opens a stage file; NULL: the model */
    bool bounded_rewind;
    struct manifest m;
    struct manifest_rank rows[MAX_RANKS];
    struct key_secret key[MAX_RANKS];
    struct stage *stage[MAX_RANKS];
    struct node *node[MAX_RANKS];
    float *logits; /* of sampled entries, one row after the other; compute thread of the last rank */
    size_t n_rows, cap_rows;
};

static struct ring *current; /* whose last rank records */

static enum err_code run_step(void *ctx, struct batch *b, struct err *e)
{
    return stage_step(ctx, b, e);
}

static enum err_code run_last_step(void *ctx, struct batch *b, struct err *e)
{
    uint32_t rows;
    enum err_code rc = stage_step(ctx, b, e);
    const float *logits = rc == OK ? stage_logits(ctx, &rows) : NULL;
    if (!logits)
        return rc;
    size_t row = current->m.n_vocab;
    for (uint32_t i = 0; i < rows && current->n_rows < current->cap_rows; i++)
        memcpy(current->logits + current->n_rows++ * row, logits + i * row, row * sizeof *logits);
    return rc;
}

static enum err_code set_sampling(void *ctx, uint32_t slot, const struct batch_sampling *s, struct err *e)
{
    return stage_sampling(ctx, slot, s, e);
}

/* A rank's stage file, opened; the name is gone again. Rank 2's holds a block more than the rank needs. */
static struct gguf *stage_file(const struct gguf *g, const struct index *x, const struct manifest_rank *row, uint32_t i)
{
    struct hparams h;
    struct slice s;
    struct gguf *file;
    struct err e;
    char path[PATH_MAX];
    test_scratch("stage.gguf", path);
    uint32_t first = i == 2 ? row->first - 1 : row->first;
    assert_int_equal(hparams_read(g, &h, &e), OK);
    if (slice_plan(g, &h, first, row->end, x, &s, &e) != OK || slice_write(g, &s, path, NULL, NULL, &e) != OK ||
        gguf_open(path, &file, &e) != OK)
        fail_msg("%s", e.msg);
    unlink(path);
    slice_fini(&s);
    hparams_fini(&h);
    return file;
}

static void start_rank(struct ring *r, const struct gguf *g, uint32_t i, int fd)
{
    struct err e;
    struct gguf *own = r->digests ? stage_file(g, r->digests, &r->rows[i], i) : NULL;
    const struct manifest *m = &r->m;
    struct stage_params p = {.first = r->rows[i].first,
                             .end = r->rows[i].end,
                             .n_ctx = m->n_ctx,
                             .n_slots = m->n_slots,
                             .n_batch = m->n_batch,
                             .n_threads = 1,
                             .kv_type = KV_F32};
    if (stage_open(own ? own : g, &p, &r->stage[i], &e) != OK)
        fail_msg("rank %u: %s", i, e.msg);
    gguf_close(own);
    struct node_config c = {.m = m,
                            .rank = i,
                            .secret = &r->key[i],
                            .listen_fd = fd,
                            .link = {.death_ms = WAIT_MS}, /* no machine stands still so long */
                            .max_steps = MAX_RANKS,        /* whatever the number of ranks: prompts are cut alike */
                            .stage = {.ctx = r->stage[i],
                                      .step = i + 1 == m->n_ranks ? run_last_step : run_step,
                                      .sampling = set_sampling,
                                      .bounded_rewind = r->bounded_rewind,
                                      .n_checkpoints = STAGE_DEFAULT_CHECKPOINTS}};
    if (node_start(&c, &r->node[i], &e) != OK)
        fail_msg("rank %u: %s", i, e.msg);
}

/* cuts: n + 1 block numbers, from 0 to the last. */
static struct ring *ring_of(const struct gguf *g, const struct index *digests, const uint32_t *cuts, uint32_t n,
                            uint32_t n_slots, uint32_t n_batch)
{
    struct ring *r = calloc(1, sizeof *r);
    struct hparams h;
    struct err e;
    int fd[MAX_RANKS];
    assert_non_null(r);
    assert_int_equal(hparams_read(g, &h, &e), OK);
    r->m = (struct manifest){.epoch = 1,
                             .model_name = "test",
                             .n_blocks = h.n_block,
                             .n_embd = h.n_embd,
                             .n_vocab = h.n_vocab,
                             .n_ctx = N_CTX,
                             .n_slots = n_slots,
                             .n_batch = n_batch,
                             .n_ranks = n,
                             .ranks = r->rows};
    r->digests = digests;
    r->bounded_rewind = hparams_bounded_rewind(&h);
    hparams_fini(&h);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t port;
        r->rows[i].first = cuts[i];
        r->rows[i].end = cuts[i + 1];
        memcpy(r->rows[i].device, "cpu", 4);
        key_generate(&r->key[i]);
        key_public_of(&r->key[i], &r->rows[i].key);
        fd[i] = -1;
        if (n == 1)
            break;
        assert_int_equal(net_tcp_listen("127.0.0.1:0", &fd[i], &port, &e), OK);
        snprintf(r->rows[i].addr, sizeof r->rows[i].addr, "127.0.0.1:%u", port);
    }
    if (manifest_check(&r->m, &e) != OK)
        fail_msg("%s", e.msg);
    r->cap_rows = MAX_OUT;
    r->logits = malloc(r->cap_rows * r->m.n_vocab * sizeof *r->logits);
    assert_non_null(r->logits);
    current = r;
    for (uint32_t i = 0; i < n; i++)
        start_rank(r, g, i, fd[i]);
    for (uint32_t i = 0; i < n; i++) {
        if (node_wait_ready(r->node[i], clock_deadline_ms(WAIT_MS), &e) != OK)
            fail_msg("%s", e.msg);
    }
    return r;
}

static struct ring *ring_up(const struct gguf *g, const uint32_t *cuts, uint32_t n, uint32_t n_slots, uint32_t n_batch)
{
    return ring_of(g, NULL, cuts, n, n_slots, n_batch);
}

static void ring_free(struct ring *r)
{
    for (uint32_t i = 0; i < r->m.n_ranks; i++)
        node_stop(r->node[i]);
    for (uint32_t i = 0; i < r->m.n_ranks; i++)
        stage_close(r->stage[i]);
    free(r->logits);
    free(r);
}

/* --- requests ------------------------------------------------------------------------------------ */

struct ask {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int32_t out[MAX_OUT];
    uint32_t n;
    bool ended;
    enum sched_reason reason;
    char text[400];
};

static void on_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct ask *a = ctx;
    (void)id;
    if (a->n < MAX_OUT)
        a->out[a->n++] = r->token;
}

static void on_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct ask *a = ctx;
    (void)id;
    (void)code;
    pthread_mutex_lock(&a->mutex);
    a->ended = true;
    a->reason = reason;
    snprintf(a->text, sizeof a->text, "%s", text);
    pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->mutex);
}

static void ask_begin_at(struct ask *a, struct ring *r, uint32_t rank, const int32_t *prompt, size_t n,
                         uint32_t n_predict)
{
    uint64_t id;
    struct err e;
    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->mutex, NULL);
    thread_cond_init(&a->cond);
    struct sched_request q = {.tokens = prompt,
                              .n_tokens = (uint32_t)n,
                              .n_predict = n_predict,
                              .sampling = {.top_p = 1, .repeat_penalty = 1},
                              .ctx = a,
                              .on_token = on_token,
                              .on_end = on_end};
    if (node_submit(r->node[rank], &q, &id, &e) != OK)
        fail_msg("%s", e.msg);
}

static void ask_begin(struct ask *a, struct ring *r, const int32_t *prompt, size_t n, uint32_t n_predict)
{
    ask_begin_at(a, r, 0, prompt, n, n_predict);
}

static void ask_end(struct ask *a)
{
    uint64_t deadline = clock_deadline_ms(WAIT_MS);
    bool in_time = true;
    pthread_mutex_lock(&a->mutex);
    while (!a->ended && in_time)
        in_time = thread_cond_wait(&a->cond, &a->mutex, deadline);
    pthread_mutex_unlock(&a->mutex);
    assert_true(in_time);
    if (a->reason != SCHED_LENGTH)
        fail_msg("ended as %s: %s", sched_reason_name(a->reason), a->text);
    pthread_cond_destroy(&a->cond);
    pthread_mutex_destroy(&a->mutex);
}

/* What one greedy run of all cases gives. */
struct record {
    int32_t ids[MAX_OUT];
    float *logits;
    size_t n, n_rows;
};

static void record_run(struct ring *r, const struct subject *s, uint32_t n_max, struct record *rec)
{
    rec->n = 0;
    r->n_rows = 0;
    for (size_t k = 0; k < s->n; k++) {
        const struct request *q = &s->ask[k];
        size_t n_out = q->n_out < n_max ? q->n_out : n_max;
        struct ask a;
        assert_true(rec->n + n_out <= MAX_OUT);
        ask_begin(&a, r, q->prompt, q->n, (uint32_t)n_out);
        ask_end(&a);
        assert_int_equal(a.n, n_out);
        if (q->want && !s->m->quantized)
            assert_memory_equal(a.out, q->want, n_out * sizeof *q->want);
        memcpy(rec->ids + rec->n, a.out, n_out * sizeof *a.out);
        rec->n += n_out;
    }
    rec->n_rows = r->n_rows; /* the last results are back, so nobody writes there any more */
    size_t bytes = r->n_rows * r->m.n_vocab * sizeof *rec->logits;
    rec->logits = malloc(bytes ? bytes : 1);
    assert_non_null(rec->logits);
    memcpy(rec->logits, r->logits, bytes);
}

static void must_be_equal(const struct record *a, const struct record *b, uint32_t n_vocab, const char *what)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_rows, a->n);
    assert_int_equal(b->n_rows, a->n);
    for (size_t i = 0; i < a->n; i++) {
        if (memcmp(a->logits + i * n_vocab, b->logits + i * n_vocab, n_vocab * sizeof(float)) != 0)
            fail_msg("%s: the logits of step %zu differ from the unsplit run", what, i);
    }
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
}

/* All cases around a ring of n ranks, n_max tokens each. The first run of a record is the one that the others have to
 * equal, to the bit. */
static void run_and_compare(struct record *whole, const struct subject *s, const struct index *digests,
                            const uint32_t *cuts, uint32_t n, uint32_t n_batch, uint32_t n_max, const char *what)
{
    struct record rec = {0};
    struct ring *r = ring_of(s->g, digests, cuts, n, 1, n_batch);
    record_run(r, s, n_max, &rec);
    ring_free(r);
    if (!whole->logits) {
        *whole = rec;
        return;
    }
    must_be_equal(whole, &rec, s->h.n_vocab, what);
    free(rec.logits);
}

/* --- tests --------------------------------------------------------------------------------------- */

static void even_cuts(uint32_t n_block, uint32_t n, uint32_t *cuts)
{
    for (uint32_t i = 0; i <= n; i++)
        cuts[i] = i * n_block / n;
}

/* Rings of 1, 2, 3 or 4, and as many ranks as blocks; whole prompts and prompts in chunks. */
static void test_sizes(void **state)
{
    struct subject s;
    static const uint32_t batches[] = {512, 7};
    if (!subject_open(*state, &s))
        skip();
    for (size_t b = 0; b < 2; b++) {
        struct record whole = {0};
        uint32_t sizes[] = {1, 2, s.h.n_block < MAX_RANKS ? 3 : 4, s.h.n_block};
        for (size_t k = 0; k < 4; k++) {
            uint32_t cuts[MAX_RANKS + 1];
            char what[96];
            even_cuts(s.h.n_block, sizes[k], cuts);
            snprintf(what, sizeof what, "%s, %u ranks, steps of %u", s.m->file, sizes[k], batches[b]);
            run_and_compare(&whole, &s, NULL, cuts, sizes[k], batches[b], MAX_OUT, what);
        }
        free(whole.logits);
    }
    subject_close(&s);
}

/* Each position of a prompt, alone at the end of what a slot holds already, has the reference's logits: a text may look
 * well with wrong positions, logits do not. That they tell is shown with two tokens that change their places. */
static void test_fault21_positions(void **state)
{
    struct subject s;
    size_t rows, cols, n;
    int32_t swapped[MAX_OUT];
    uint32_t cuts[MAX_RANKS + 1];
    struct ask a;
    if (!subject_open(*state, &s))
        skip();
    const float *ref = golden_f32(s.gold, "short.logits", &rows, &cols);
    const int32_t *prompt = golden_i32(s.gold, "short.prompt", NULL, &n);
    assert_true(ref && prompt && rows == n && n > 3 && n < MAX_OUT && cols == s.h.n_vocab);
    even_cuts(s.h.n_block, 3, cuts);
    struct ring *r = ring_up(s.g, cuts, 3, 1, 32);
    for (size_t k = 1; k <= n; k++) {
        ask_begin_at(&a, r, (uint32_t)k % 3, prompt, k, 1);
        ask_end(&a);
        assert_int_equal(r->n_rows, k);
    }
    for (size_t k = 0; k < n; k++) {
        const double far = golden_nmse_logits(r->logits + k * cols, ref + k * cols, cols);
        if (!(far <= 1e-6)) /* how near exactly: test_engine_golden.c */
            fail_msg("position %zu: NMSE %g", k, far);
    }
    memcpy(swapped, prompt, n * sizeof *prompt);
    size_t other = 1;
    while (other + 2 < n && swapped[other] == swapped[other + 1])
        other++;
    swapped[other] = prompt[other + 1];
    swapped[other + 1] = prompt[other];
    ask_begin(&a, r, swapped, n, 1);
    ask_end(&a);
    assert_true(golden_nmse_logits(r->logits + n * cols, ref + (n - 1) * cols, cols) > 1e-4);
    ring_free(r);
    subject_close(&s);
}

/* All cases at once, several times over, entering at all ranks: the sequences do not touch each other. */
static void test_at_once(void **state)
{
    struct subject s;
    if (!subject_open(*state, &s))
        skip();
    struct ask *a = calloc(12, sizeof *a);
    uint32_t cuts[MAX_RANKS + 1];
    assert_non_null(a);
    even_cuts(s.h.n_block, 3, cuts);
    struct ring *r = ring_up(s.g, cuts, 3, 5, 32);
    for (size_t i = 0; i < 12; i++) {
        const struct request *q = &s.ask[i % s.n];
        ask_begin_at(&a[i], r, (uint32_t)(i + i / s.n) % 3, q->prompt, q->n, (uint32_t)q->n_out);
    }
    for (size_t i = 0; i < 12; i++) {
        const struct request *q = &s.ask[i % s.n];
        ask_end(&a[i]);
        assert_int_equal(a[i].n, q->n_out);
        assert_memory_equal(a[i].out, q->want, q->n_out * sizeof *q->want);
    }
    ring_free(r);
    free(a);
    subject_close(&s);
}

/* Way `mask` of the 2^(n-1) ways to cut n blocks; returns the number of ranks. */
static uint32_t cut_by_mask(uint32_t mask, uint32_t n_block, uint32_t cuts[MAX_RANKS + 1])
{
    uint32_t n = 0;
    cuts[0] = 0;
    for (uint32_t i = 1; i <= n_block; i++) {
        if (i == n_block || mask & 1u << (i - 1))
            cuts[++n] = i;
    }
    return n;
}

/* Each way to cut the model; of the 128 of the demo model every ninth. */
static void test_every_cut(void **state)
{
    struct subject s;
    if (!subject_open(*state, &s))
        skip();
    struct record whole = {0};
    for (uint32_t mask = 0; mask < 1u << (s.h.n_block - 1); mask += s.m->golden ? 1 : 9) {
        uint32_t cuts[MAX_RANKS + 1], n = cut_by_mask(mask, s.h.n_block, cuts);
        char what[64];
        snprintf(what, sizeof what, "%s, cut %x", s.m->file, mask);
        run_and_compare(&whole, &s, NULL, cuts, n, 64, 12, what);
    }
    free(whole.logits);
    subject_close(&s);
}

/* Each rank has a stage file; digests NULL: the model. */
static void run_stage_files(struct record *whole, const struct subject *s, const struct index *digests, uint32_t mask)
{
    uint32_t cuts[MAX_RANKS + 1], n = cut_by_mask(mask, s->h.n_block, cuts);
    char what[64];
    snprintf(what, sizeof what, "stage files of %s, cut %x", s->m->file, mask);
    run_and_compare(whole, s, digests, cuts, n, 64, 8, what);
}

/* The same with a stage file for each rank: every window, with what is before and behind it, and a rank for each block.
 * The run they are compared with is that of the model itself. */
static void test_stage_files(void **state)
{
    struct subject s;
    struct index x;
    struct err e;
    if (!subject_open(*state, &s))
        skip();
    const uint32_t n_block = s.h.n_block;
    assert_true(n_block > 0 && n_block <= MAX_RANKS);
    assert_int_equal(index_compute(s.g, NULL, NULL, &x, &e), OK);
    struct record whole = {0};
    run_stage_files(&whole, &s, NULL, 0);
    uint32_t all = 0;
    for (uint32_t i = 1; i < n_block; i++)
        all |= 1u << (i - 1);
    for (uint32_t first = 0; first < n_block; first++)
        for (uint32_t end = first + 1; end <= n_block; end++)
            run_stage_files(&whole, &s, &x,
                            (first > 0 ? 1u << (first - 1) : 0) | (end < n_block ? 1u << (end - 1) : 0));
    run_stage_files(&whole, &s, &x, all);
    free(whole.logits);
    index_fini(&x);
    subject_close(&s);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[5 * N_MODELS]; /* at most five of each */
    char names[5 * N_MODELS][64];
    struct err e;
    size_t n = 0;
    if (key_library_init(&e) != OK)
        return 1;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    alarm(1150);
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < N_MODELS; i++) {
        void *m = (void *)(uintptr_t)&models[i];
        snprintf(names[n], sizeof names[n], "sizes %s", models[i].file);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = test_sizes, .initial_state = m};
        n++;
        if (!models[i].quantized) { /* a quantized one may decide a close call differently in another batch */
            snprintf(names[n], sizeof names[n], "at once %s", models[i].file);
            tests[n] = (struct CMUnitTest){.name = names[n], .test_func = test_at_once, .initial_state = m};
            n++;
        }
        if (!models[i].quantized && strcmp(models[i].cases[0], "short") == 0) {
            snprintf(names[n], sizeof names[n], "fault21 positions %s", models[i].file);
            tests[n] = (struct CMUnitTest){.name = names[n], .test_func = test_fault21_positions, .initial_state = m};
            n++;
        }
        if (models[i].golden) {
            snprintf(names[n], sizeof names[n], "stage files %s", models[i].file);
            tests[n] = (struct CMUnitTest){.name = names[n], .test_func = test_stage_files, .initial_state = m};
            n++;
        }
        if (i == 0 || !models[i].golden) {
            snprintf(names[n], sizeof names[n], "every cut %s", models[i].file);
            tests[n] = (struct CMUnitTest){.name = names[n], .test_func = test_every_cut, .initial_state = m};
            n++;
        }
    }
    return _cmocka_run_group_tests("golden", tests, n, NULL, NULL);
}
