/* SPDX-License-Identifier: MIT
 *
 * The engine against the reference outputs: logits of every prompt position, boundaries after every block, greedy
 * continuations, for every llama model; and every way to cut a model against the unsplit run, bit for bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "engine/stage.h"
#include "lib/golden.h"
#include "lib/test_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STAGES 8
#define MAX_TOK    512

/* Limits of the fixtures' README for the CPU with an F32 cache. */
#define F32_LIMIT   1e-9
#define GELU_LIMIT  1e-6 /* gemma3: ggml looks GELU up in a table of F16 values */
#define QUANT_LIMIT 2e-3

struct model {
    const char *dir, *stem; /* dir NULL: tests/data, else a folder of ../shared */
    bool quantized;
    const char *cases[4]; /* those with logits of every position */
    const char *greedy[4];
    const char *hidden; /* the case with hidden states */
};

static const struct model models[] = {
    {NULL, "llama-spm-f32", false, {"short", "long"}, {"short", "long", "code"}, "short"},
    {NULL, "llama-tied-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {NULL, "llama3-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {NULL, "llama-spm-q8_0", true, {"short", "long"}, {"short", "long", "code"}, "short"},
    {NULL, "llama-spm-q4_0", true, {"short", "long"}, {"short", "long", "code"}, "short"},
    {NULL, "llama-k256-q4_k_m", true, {"short", "long"}, {"short", "long", "code"}, "short"},
    {"fixtures", "qwen2-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {NULL, "qwen3-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "qwen3moe-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "qwen3moe-q8_0", true, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "qwen3moe-q4_0", true, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "qwen35-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {NULL, "qwen35moe-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "qwen35moe-q8_0", true, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "qwen35moe-q4_0", true, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "qwen35moe-k256-q4_k_m", true, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {NULL, "gemma3-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "phi3-f32", false, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"fixtures", "gpt-oss-mxfp4", true, {"short", "long"}, {"short", "long", "chat"}, "short"},
    {"models", "stories260K-F32", false, {"story0", "story1", "story2"}, {"story0", "story1", "story2"}, "story0"},
    {"models", "stories260K-Q8_0", true, {"story0", "story1", "story2"}, {"story0", "story1", "story2"}, "story0"},
};
#define N_MODELS (sizeof models / sizeof *models)

static double f32_limit(const struct model *m)
{
    return strncmp(m->stem, "gemma3", 6) == 0 ? GELU_LIMIT : F32_LIMIT;
}

static struct gguf *open_model(const struct model *m, struct golden **gold)
{
    char name[128], path[PATH_MAX];
    struct err e;
    struct gguf *g = NULL;
    if (m->dir) {
        snprintf(name, sizeof name, "%s/%s.gguf", m->dir, m->stem);
        if (!test_have_shared(name))
            return NULL;
        assert_int_equal(gguf_open(test_shared(name, path), &g, &e), OK);
        snprintf(name, sizeof name, "%s/golden/%s.bin", m->dir, m->stem);
        assert_int_equal(golden_open(test_shared(name, path), gold, &e), OK);
    } else {
        snprintf(name, sizeof name, "%s.gguf", m->stem);
        assert_int_equal(gguf_open(test_data(name, path), &g, &e), OK);
        snprintf(name, sizeof name, "golden/%s.bin", m->stem);
        assert_int_equal(golden_open(test_data(name, path), gold, &e), OK);
    }
    return g;
}

static const int32_t *golden_ids(const struct golden *gold, const char *c, const char *what, size_t *n)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", c, what);
    const int32_t *ids = golden_i32(gold, name, NULL, n);
    assert_non_null(ids);
    return ids;
}

/* --- a chain of stages, as a ring runs it --------------------------------------------------------------------------
 */

struct chain {
    int n;
    struct stage *st[MAX_STAGES];
    struct batch b;
    struct batch_entry entry;
    struct batch_result result;
    uint64_t hash;
    uint32_t pos;
    uint32_t n_embd, n_vocab;
};

static void chain_open(struct chain *c, const struct gguf *g, const uint32_t *cuts, int n, bool no_repack)
{
    struct err e;
    memset(c, 0, sizeof *c);
    c->n = n;
    for (int i = 0; i < n; i++) {
        struct stage_params p = {.first = cuts[i],
                                 .end = cuts[i + 1],
                                 .n_ctx = MAX_TOK,
                                 .n_slots = 1,
                                 .n_batch = MAX_TOK,
                                 .n_threads = 1,
                                 .kv_type = KV_F32,
                                 .all_logits = true,
                                 .no_repack = no_repack};
        if (stage_open(g, &p, &c->st[i], &e) != OK)
            fail_msg("%s", e.msg);
    }
    c->n_embd = stage_info(c->st[0])->n_embd;
    c->n_vocab = stage_info(c->st[0])->n_vocab;
    c->b = (struct batch){
        .cap_entries = 1, .cap_tok = MAX_TOK, .entries = &c->entry, .results = &c->result, .n_embd = c->n_embd};
    c->b.tokens = calloc(MAX_TOK, sizeof *c->b.tokens);
    c->b.rows = calloc((size_t)MAX_TOK * c->n_embd, sizeof *c->b.rows);
}

static void chain_close(struct chain *c)
{
    for (int i = 0; i < c->n; i++)
        stage_close(c->st[i]);
    free(c->b.tokens);
    free(c->b.rows);
}

/* Feeds n tokens; boundaries of the step into bounds[i] (n_embd * n floats each) when bounds is not NULL. */
static const float *chain_feed(struct chain *c, const int32_t *ids, uint32_t n, bool reset, float **bounds)
{
    struct err e;
    if (reset) {
        c->pos = 0;
        c->hash = HASH_PREFIX_EMPTY;
    }
    c->entry = (struct batch_entry){.request_id = 1,
                                    .pos = c->pos,
                                    .n_tok = n,
                                    .prefix_hash = c->hash,
                                    .flags = BATCH_SAMPLE | (reset ? BATCH_RESET : 0)};
    c->b.n_entries = 1;
    c->b.n_tok = n;
    memcpy(c->b.tokens, ids, n * sizeof *ids);
    for (int i = 0; i < c->n; i++) {
        if (stage_step(c->st[i], &c->b, &e) != OK)
            fail_msg("stage %d: %s", i, e.msg);
        if (bounds && i + 1 < c->n)
            memcpy(bounds[i], c->b.rows, (size_t)n * c->n_embd * sizeof(float));
    }
    for (uint32_t i = 0; i < n; i++)
        c->hash = hash_prefix(c->hash, ids[i]);
    c->pos += n;
    uint32_t rows;
    const float *logits = stage_logits(c->st[c->n - 1], &rows);
    assert_non_null(logits);
    return logits;
}

/* --- against the references -----------------------------------------------------------------------------------------
 */

static void check_logits(const struct model *m, struct chain *c, const struct golden *gold)
{
    struct err e;
    for (size_t k = 0; k < 4 && m->cases[k]; k++) {
        size_t n, rows, cols;
        char name[64];
        struct golden_match match;
        const int32_t *ids = golden_ids(gold, m->cases[k], "prompt", &n);
        snprintf(name, sizeof name, "%s.logits", m->cases[k]);
        const float *ref = golden_f32(gold, name, &rows, &cols);
        assert_non_null(ref);
        assert_int_equal(rows, n);
        assert_int_equal(cols, c->n_vocab);
        const float *logits = chain_feed(c, ids, (uint32_t)n, true, NULL);
        assert_int_equal(golden_compare_logits(logits, ref, rows, cols, &match, &e), OK);
        print_message("%-18s %-6s %d stages: NMSE worst %.2e median %.2e, argmax %zu/%zu\n", m->stem, m->cases[k], c->n,
                      match.worst, match.median, match.n_same_argmax, match.n);
        if (m->quantized) {
            assert_true(match.median <= QUANT_LIMIT);
            assert_true(match.n_same_argmax * 100 >= match.n * 95);
        } else {
            assert_true(match.worst <= f32_limit(m));
            assert_int_equal(match.n_same_argmax, match.n);
        }
    }
}

static void check_greedy(const struct model *m, struct chain *c, const struct golden *gold)
{
    size_t same = 0, total = 0;
    for (size_t k = 0; k < 4 && m->greedy[k]; k++) {
        size_t n, n_out;
        const int32_t *ids = golden_ids(gold, m->greedy[k], "prompt", &n);
        const int32_t *want = golden_ids(gold, m->greedy[k], "greedy", &n_out);
        chain_feed(c, ids, (uint32_t)n, true, NULL);
        for (size_t i = 0; i < n_out; i++) {
            assert_int_equal(c->b.n_results, 1);
            assert_int_equal(c->result.pos, n + i);
            same += c->result.token == want[i];
            total++;
            if (!m->quantized) /* a free run: what was sampled goes in; quantized models are led by the reference */
                assert_int_equal(c->result.token, want[i]);
            chain_feed(c, &want[i], 1, false, NULL);
        }
    }
    print_message("%-18s greedy ids equal: %zu/%zu\n", m->stem, same, total);
    assert_true(total >= 144);
    assert_true(same * 100 >= total * 95);
}

static void reference(const struct model *m, bool no_repack)
{
    struct golden *gold = NULL;
    struct gguf *g = open_model(m, &gold);
    if (!g)
        skip();
    struct hparams h;
    assert_int_equal(hparams_read(g, &h, NULL), OK);
    uint32_t cuts[] = {0, h.n_block};
    struct chain c;
    chain_open(&c, g, cuts, 1, no_repack);
    check_logits(m, &c, gold);
    check_greedy(m, &c, gold);
    chain_close(&c);
    hparams_fini(&h);
    golden_close(gold);
    gguf_close(g);
}

static void test_reference(void **state)
{
    reference(*state, false);
}

/* With the weights as they are in the file, which is how the references were made. */
static void test_as_in_the_file(void **state)
{
    reference(*state, true);
}

/* One stage per block: every boundary against hidden[i + 1]; the last one through a headless stage fed with the
 * reference's own rows, as each stage alone is. */
static void test_boundaries(void **state)
{
    const struct model *m = *state;
    struct golden *gold = NULL;
    struct gguf *g = open_model(m, &gold);
    if (!g)
        skip();
    struct hparams h;
    struct err e;
    assert_int_equal(hparams_read(g, &h, NULL), OK);
    uint32_t cuts[MAX_STAGES + 1];
    for (uint32_t i = 0; i <= h.n_block; i++)
        cuts[i] = i;
    struct chain c;
    chain_open(&c, g, cuts, (int)h.n_block, false);
    check_logits(m, &c, gold);

    size_t n, rows, cols;
    char name[64];
    float *bounds[MAX_STAGES];
    const int32_t *ids = golden_ids(gold, m->hidden, "prompt", &n);
    for (int i = 0; i < MAX_STAGES; i++)
        bounds[i] = malloc((size_t)MAX_TOK * h.n_embd * sizeof(float));
    chain_feed(&c, ids, (uint32_t)n, true, bounds);
    snprintf(name, sizeof name, "%s.hidden", m->hidden);
    double limit = m->quantized ? QUANT_LIMIT : f32_limit(m);
    for (uint32_t i = 0; i + 1 < h.n_block; i++) {
        const float *ref = golden_plane(gold, name, i + 1, &rows, &cols);
        assert_non_null(ref);
        assert_true(golden_worst_hidden(bounds[i], ref, rows, cols) <= limit);
    }
    chain_close(&c);

    for (uint32_t i = 0; i < h.n_block; i++) { /* each block alone, from the reference's input to its output */
        struct stage_params p = {.first = i,
                                 .end = i + 1,
                                 .n_ctx = MAX_TOK,
                                 .n_slots = 1,
                                 .n_batch = MAX_TOK,
                                 .n_threads = 1,
                                 .kv_type = KV_F32,
                                 .no_head = true};
        struct stage *st;
        assert_int_equal(stage_open(g, &p, &st, &e), OK);
        const float *in = golden_plane(gold, name, i, &rows, &cols);
        const float *ref = golden_plane(gold, name, i + 1, &rows, &cols);
        struct batch_entry en = {.n_tok = (uint32_t)n, .prefix_hash = HASH_PREFIX_EMPTY, .flags = BATCH_RESET};
        struct batch b = {.n_entries = 1,
                          .cap_entries = 1,
                          .n_tok = (uint32_t)n,
                          .cap_tok = MAX_TOK,
                          .n_embd = h.n_embd,
                          .entries = &en,
                          .tokens = malloc(n * sizeof *b.tokens),
                          .rows = bounds[0]};
        memcpy(b.tokens, ids, n * sizeof *ids);
        memcpy(b.rows, in, n * h.n_embd * sizeof(float));
        assert_int_equal(stage_step(st, &b, &e), OK);
        assert_true(golden_worst_hidden(b.rows, ref, rows, cols) <= limit);
        free(b.tokens);
        stage_close(st);
    }
    for (int i = 0; i < MAX_STAGES; i++)
        free(bounds[i]);
    hparams_fini(&h);
    golden_close(gold);
    gguf_close(g);
}

/* Every way to cut the model into windows (2^(n-1) of them), bit for bit against the unsplit run: a prompt in one step,
 * then single tokens. */
static void test_every_cut(void **state)
{
    const struct model *m = *state;
    struct golden *gold = NULL;
    struct gguf *g = open_model(m, &gold);
    if (!g)
        skip();
    struct hparams h;
    assert_int_equal(hparams_read(g, &h, NULL), OK);
    size_t n, n_out;
    const int32_t *ids = golden_ids(gold, m->cases[0], "prompt", &n);
    const int32_t *out = golden_ids(gold, m->cases[0], "greedy", &n_out);
    size_t n_steps = 8, row = h.n_vocab, all = (n + n_steps) * row;
    float *ref = malloc(all * sizeof *ref);
    for (uint32_t mask = 0; mask < 1u << (h.n_block - 1); mask++) {
        uint32_t cuts[MAX_STAGES + 1] = {0};
        int k = 0;
        for (uint32_t i = 1; i < h.n_block; i++)
            if (mask & 1u << (i - 1))
                cuts[++k] = i;
        cuts[++k] = h.n_block;
        struct chain c;
        chain_open(&c, g, cuts, k, false);
        for (size_t s = 0; s <= n_steps; s++) {
            const float *logits =
                s == 0 ? chain_feed(&c, ids, (uint32_t)n, true, NULL) : chain_feed(&c, &out[s - 1], 1, false, NULL);
            float *at = s == 0 ? ref : ref + (n + s - 1) * row;
            size_t len = (s == 0 ? n : 1) * row * sizeof *ref;
            if (mask == 0)
                memcpy(at, logits, len);
            else if (memcmp(at, logits, len) != 0)
                fail_msg("%s: cut %x differs from the unsplit run at step %zu", m->stem, mask, s);
        }
        chain_close(&c);
    }
    free(ref);
    hparams_fini(&h);
    golden_close(gold);
    gguf_close(g);
}

int main(void)
{
    struct CMUnitTest tests[4 * N_MODELS];
    char names[4 * N_MODELS][64];
    size_t n = 0;
    for (size_t i = 0; i < N_MODELS; i++) {
        static const struct {
            const char *name;
            CMUnitTestFunction fn;
        } kinds[] = {{"reference", test_reference},
                     {"as_in_the_file", test_as_in_the_file},
                     {"boundaries", test_boundaries},
                     {"every_cut", test_every_cut}};
        for (size_t k = 0; k < 4; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s", kinds[k].name, models[i].stem);
            tests[n] = (struct CMUnitTest){
                .name = names[n], .test_func = kinds[k].fn, .initial_state = (void *)(uintptr_t)&models[i]};
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
