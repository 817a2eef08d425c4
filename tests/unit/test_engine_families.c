/* SPDX-License-Identifier: MIT
 *
 * Made models of every family: two that have no fixture against what llama.cpp 0.7 (ggml 0.27) says of the same file,
 * and all of them broken in one place at a time: a metadata key that is missing, of another type, or nonsense; a tensor
 * that is missing; weights that are no numbers. Each is an error, or a model that runs; never an abort.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/maker.h"
#include "lib/stage_run.h"
#include "lib/test_util.h"

#include <math.h>
#include <stdio.h>

static struct gguf *made(const struct maker_params *p, struct err *e)
{
    char path[PATH_MAX];
    struct gguf *g = NULL;
    if (maker_write(test_scratch("families.gguf", path), p, e) != OK)
        fail_msg("%s", e->msg);
    return gguf_open(path, &g, e) == OK ? g : NULL;
}

/* --- against llama.cpp -------------------------------------------------------------------------------------------- */

struct likely {
    int32_t id;
    float logprob;
};

/* After these tokens, with a cache of F16. */
static const int32_t prompt[] = {5, 10, 33, 7, 20, 44, 61};
#define N_LIKELY 8

static void expect_logprobs(struct maker_params p, const struct likely *want)
{
    struct err e;
    struct run r;
    struct gguf *g = made(&p, &e);
    struct stage_params sp = run_params();
    sp.kv_type = KV_F16;
    if (!g || run_open(&r, g, &sp, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(run_feed(&r, 0, prompt, sizeof prompt / sizeof *prompt, BATCH_RESET | BATCH_SAMPLE, &e), OK);
    const float *l = run_logits(&r, 0);
    double sum = 0;
    for (uint32_t i = 0; i < r.info->n_vocab; i++)
        sum += exp((double)l[i] - l[want[0].id]);
    for (size_t i = 0; i < N_LIKELY; i++) {
        double logprob = (double)l[want[i].id] - l[want[0].id] - (sum > 0 ? log(sum) : 0);
        if (!(fabs(logprob - (double)want[i].logprob) <= 0.005))
            fail_msg("token %d: %.5f, expected %.5f", want[i].id, logprob, (double)want[i].logprob);
    }
    run_close(&r);
    gguf_close(g);
}

static void glm4moe_is_as_llama_cpp_has_it(void **state)
{
    (void)state;
    static const struct likely want[N_LIKELY] = {{307, -1.51877f}, {68, -2.04514f},  {62, -2.87153f}, {317, -2.92633f},
                                                 {456, -3.06642f}, {318, -3.16209f}, {64, -3.29053f}, {407, -3.35721f}};
    expect_logprobs(maker_family_small(MAKER_GLM4MOE), want);
}

static void mixtral_is_as_llama_cpp_has_it(void **state)
{
    (void)state;
    static const struct likely want[N_LIKELY] = {{313, -1.35326f}, {386, -1.36908f}, {463, -2.54752f},
                                                 {365, -2.67195f}, {366, -3.10208f}, {420, -3.14725f},
                                                 {501, -3.30851f}, {350, -3.35428f}};
    struct maker_params p = maker_family_small(MAKER_LLAMA);
    p.n_expert = 4;
    p.n_expert_used = 2;
    expect_logprobs(p, want);
}

/* --- broken ------------------------------------------------------------------------------------------------------- */

/* Opens and runs what can be opened. Whatever happens, it is not an abort, and an error has a message. */
static enum err_code try(const struct maker_params *p, struct err *e)
{
    struct run r;
    struct stage_params sp = run_params();
    int32_t ids[20];
    sp.n_slots = 1;
    sp.n_ctx = 64;
    sp.n_batch = 32;
    struct gguf *g = made(p, e);
    memset(&r, 0, sizeof r);
    enum err_code rc = g ? run_open(&r, g, &sp, e) : e->code;
    if (rc == OK && r.info) {
        run_ids(ids, 20, r.info->n_vocab, 1);
        rc = run_feed(&r, 0, ids, 20, BATCH_RESET | BATCH_SAMPLE, e);
        run_close(&r);
    }
    gguf_close(g);
    if (rc != OK)
        assert_true(e->msg[0] != 0);
    return rc;
}

static struct maker_params tiny(enum maker_family f)
{
    struct maker_params p = maker_family_small(f);
    p.n_threads = 1;
    return p;
}

/* All keys of the family's own, gathered from a whole model. */
static size_t family_keys(enum maker_family f, char keys[64][96])
{
    struct err e;
    struct maker_params p = tiny(f);
    struct gguf *g = made(&p, &e);
    const char *name = maker_family_name(f);
    size_t n = 0;
    assert_non_null(g);
    for (size_t i = 0; i < gguf_n_kv(g) && n < 64; i++) {
        const char *key = gguf_key(g, i);
        if (strncmp(key, name, strlen(name)) == 0 && key[strlen(name)] == '.')
            snprintf(keys[n++], 96, "%s", key);
    }
    gguf_close(g);
    assert_true(n >= 8);
    return n;
}

/* Keys that make no difference to this engine: positions of text are the same in every section, and Phi's window is
 * ignored. */
static bool unread(const char *key)
{
    return strstr(key, ".vocab_size") || strstr(key, ".dimension_sections") ||
           strcmp(key, "phi3.attention.sliding_window") == 0;
}

static void every_key_may_be_broken(void **state)
{
    enum maker_family f = (enum maker_family) * (uintptr_t *)*state;
    static const struct {
        enum maker_key_fault how;
        uint32_t u32;
        float f32;
    } faults[] = {{MAKER_KEY_DROP, 0, 0},
                  {MAKER_KEY_STRING, 0, 0},
                  {MAKER_KEY_ARRAY, 3, 0},
                  {MAKER_KEY_U32, 0, 0},
                  {MAKER_KEY_U32, 1, 0},
                  {MAKER_KEY_U32, 7, 0},
                  {MAKER_KEY_U32, ~0u, 0},
                  {MAKER_KEY_U32, 0x7fffffffu, 0},
                  {MAKER_KEY_I32, 0xfffffffeu, 0},
                  {MAKER_KEY_F32, 0, 0.0f},
                  {MAKER_KEY_F32, 0, (float)(NAN)},
                  {MAKER_KEY_F32, 0, -1e30f}};
    char keys[64][96];
    size_t n = family_keys(f, keys), refused = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
            struct err e = {0};
            struct maker_params p = tiny(f);
            p.broken_key = keys[i];
            p.broken_key_how = faults[k].how;
            p.broken_u32 = faults[k].u32;
            p.broken_f32 = faults[k].f32;
            enum err_code rc = try(&p, &e);
            refused += rc != OK;
            if (faults[k].how == MAKER_KEY_STRING && rc == OK && !unread(keys[i]))
                fail_msg("%s may be a string", keys[i]);
        }
    }
    assert_true(refused > 3 * n);
}

static void every_tensor_may_be_missing(void **state)
{
    enum maker_family f = (enum maker_family) * (uintptr_t *)*state;
    char names[512][64];
    size_t n = 0;
    struct err e = {0};
    struct maker_params p = tiny(f);
    struct gguf *g = made(&p, &e);
    assert_non_null(g);
    for (size_t i = 0; i < gguf_n_tensors(g) && n < 512; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if ((uint32_t)t->block < p.n_block || t->block < 0)
            snprintf(names[n++], sizeof names[0], "%s", t->name);
    }
    gguf_close(g);
    for (size_t i = 0; i < n; i++) {
        p = tiny(f);
        p.broken_drop = names[i];
        memset(&e, 0, sizeof e);
        enum err_code rc = try(&p, &e);
        bool optional = strstr(names[i], ".bias") || strcmp(names[i], "output.weight") == 0 ||
                        strncmp(names[i], "rope_", 5) == 0 || (f == MAKER_GLM4MOE && strstr(names[i], "_norm"));
        if (rc == OK && optional)
            continue;
        if (rc != ERR_NOT_FOUND && rc != ERR_FORMAT)
            fail_msg("without %s: %s %s", names[i], err_name(rc), rc == OK ? "" : e.msg);
    }
}

/* A weight that is no number spoils what is computed with it: an error where it is noticed first. */
static void weights_that_are_no_numbers_are_noticed(void **state)
{
    enum maker_family f = (enum maker_family) * (uintptr_t *)*state;
    struct maker_params p = tiny(f);
    struct err e;
    char path[PATH_MAX], name[64];
    struct gguf *g = made(&p, &e);
    assert_non_null(g);
    snprintf(name, sizeof name, "blk.%u.attn_norm.weight", p.n_block - 1);
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    assert_non_null(t);
    float bad = NAN;
    FILE *file = fopen(test_scratch("families.gguf", path), "r+b");
    if (!file)
        fail_msg("cannot open %s", path);
    assert_int_equal(fseek(file, (long)t->offset, SEEK_SET), 0);
    assert_int_equal(fwrite(&bad, sizeof bad, 1, file), 1);
    fclose(file);
    gguf_close(g);

    struct stage_params sp = run_params();
    struct run r;
    int32_t ids[8];
    assert_int_equal(gguf_open(path, &g, &e), OK);
    assert_int_equal(run_open(&r, g, &sp, &e), OK);
    run_ids(ids, 8, r.info->n_vocab, 1);
    assert_int_equal(run_feed(&r, 0, ids, 8, BATCH_RESET | BATCH_SAMPLE, &e), ERR_NUMERIC);
    assert_int_equal(stage_slot_tokens(r.st, 0), 0);
    run_close(&r);
    sp.first = p.n_block - 1;
    sp.no_head = true; /* as a stage in the middle */
    assert_int_equal(run_open(&r, g, &sp, &e), OK);
    for (size_t i = 0; i < (size_t)8 * r.info->n_embd; i++)
        r.b.rows[i] = 0.5f;
    assert_int_equal(run_feed(&r, 0, ids, 8, BATCH_RESET, &e), ERR_NUMERIC);
    assert_non_null(strstr(e.msg, "outgoing boundary"));
    run_close(&r);
    gguf_close(g);
}

/* Sequences in a row of slots are attended in one operation, as far as their lengths are alike; in slots apart each on
 * its own. The bits are the same, whatever the lengths. */
#define N_SEQ 5

static void feed_both(struct run *const r[2], const uint32_t slot[2][N_SEQ], uint32_t first, uint32_t n, uint32_t n_tok,
                      uint64_t seed, uint32_t flags)
{
    for (int k = 0; k < 2; k++) {
        struct err e;
        int32_t ids[64];
        run_begin(r[k]);
        for (uint32_t i = first; i < first + n; i++) {
            run_ids(ids, n_tok, r[k]->info->n_vocab, seed + i);
            run_add(r[k], slot[k][i], ids, n_tok, flags | BATCH_SAMPLE);
        }
        if (run_step(r[k], &e) != OK)
            fail_msg("%s", e.msg);
    }
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(run_logits(r[0], i), run_logits(r[1], i), r[0]->info->n_vocab * sizeof(float)) != 0)
            fail_msg("sequence %u of %u tokens", first + i, r[0]->pos[slot[0][first + i]]);
}

static void neighbours_are_attended_as_each_alone(void **state)
{
    enum maker_family f = (enum maker_family) * (uintptr_t *)*state;
    static const uint32_t slot[2][N_SEQ] = {{1, 2, 3, 4, 5}, {6, 4, 2, 0, 7}};
    struct maker_params p = tiny(f);
    struct stage_params sp = run_params();
    struct run row, apart, *const r[2] = {&row, &apart};
    struct err e;
    struct gguf *g = made(&p, &e);
    assert_non_null(g);
    sp.n_slots = 8;
    sp.n_batch = 48; /* windows wrap around */
    sp.kv_type = KV_F16;
    for (int k = 0; k < 2; k++)
        if (run_open(r[k], g, &sp, &e) != OK)
            fail_msg("%s", e.msg);
    feed_both(r, slot, 0, N_SEQ, 9, 1, BATCH_RESET);
    for (uint32_t i = 0; i < 6; i++) /* one of them gets long, and soon looks at more cells than its neighbours */
        feed_both(r, slot, 2, 1, 40, 100 + i, 0);
    for (uint32_t i = 0; i < 12; i++)
        feed_both(r, slot, 0, N_SEQ, 1, 200 + i, 0);
    feed_both(r, slot, 0, 2, 7, 300, 0);
    feed_both(r, slot, 0, N_SEQ, 3, 400, 0);
    for (int k = 0; k < 2; k++)
        run_close(r[k]);
    gguf_close(g);
}

/* As many sequences as a step may have, none beside its neighbour, in a window of a single block: the graph has its
 * most nodes per block, and room for them. */
static void the_widest_step_fits(void **state)
{
    enum maker_family f = (enum maker_family) * (uintptr_t *)*state;
    struct maker_params p = tiny(f);
    struct err e;
    struct gguf *g = made(&p, &e);
    static struct batch_entry entry[BATCH_MAX_ENTRIES];
    static struct batch_result result[BATCH_MAX_ENTRIES];
    static int32_t token[BATCH_MAX_ENTRIES];
    assert_non_null(g);
    for (uint32_t i = 0; i < BATCH_MAX_ENTRIES; i++) {
        entry[i] = (struct batch_entry){.prefix_hash = HASH_PREFIX_EMPTY,
                                        .slot = BATCH_MAX_ENTRIES - 1 - i,
                                        .n_tok = 1,
                                        .flags = BATCH_RESET | BATCH_SAMPLE};
        token[i] = (int32_t)i + 5;
    }
    for (uint32_t first = 0; first < p.n_block; first += p.n_block - 1) {
        struct stage_params sp = run_params();
        struct run r;
        sp.first = first;
        sp.end = first + 1;
        sp.n_slots = BATCH_MAX_ENTRIES;
        sp.n_ctx = 16;
        sp.n_batch = BATCH_MAX_ENTRIES;
        if (run_open(&r, g, &sp, &e) != OK)
            fail_msg("%s", e.msg);
        for (size_t i = 0; i < (size_t)BATCH_MAX_ENTRIES * r.info->n_embd; i++)
            r.b.rows[i] = 0.5f;
        memcpy(r.b.tokens, token, sizeof token);
        r.b.entries = entry;
        r.b.results = result;
        r.b.cap_entries = r.b.n_entries = r.b.n_tok = BATCH_MAX_ENTRIES;
        if (stage_step(r.st, &r.b, &e) != OK)
            fail_msg("block %u: %s", first, e.msg);
        assert_int_equal(r.b.n_results, first ? BATCH_MAX_ENTRIES : 0);
        run_close(&r);
    }
    gguf_close(g);
}

#define N_KINDS 5

int main(void)
{
    static const struct {
        const char *name;
        CMUnitTestFunction fn;
    } kinds[N_KINDS] = {{"neighbours_are_attended_as_each_alone", neighbours_are_attended_as_each_alone},
                        {"the_widest_step_fits", the_widest_step_fits},
                        {"every_key_may_be_broken", every_key_may_be_broken},
                        {"every_tensor_may_be_missing", every_tensor_may_be_missing},
                        {"weights_that_are_no_numbers_are_noticed", weights_that_are_no_numbers_are_noticed}};
    struct CMUnitTest tests[N_KINDS * MAKER_FAMILY_COUNT + 2] = {cmocka_unit_test(glm4moe_is_as_llama_cpp_has_it),
                                                                 cmocka_unit_test(mixtral_is_as_llama_cpp_has_it)};
    char names[N_KINDS * MAKER_FAMILY_COUNT][80];
    size_t n = 0;
    for (uintptr_t f = 0; f < MAKER_FAMILY_COUNT; f++) {
        for (size_t k = 0; k < N_KINDS; k++, n++) {
            static uintptr_t families[MAKER_FAMILY_COUNT];
            families[f] = f;
            snprintf(names[n], sizeof names[n], "%s %s", kinds[k].name, maker_family_name((enum maker_family)f));
            tests[n + 2] =
                (struct CMUnitTest){.name = names[n], .test_func = kinds[k].fn, .initial_state = &families[f]};
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
