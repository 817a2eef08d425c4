/* SPDX-License-Identifier: MIT
 *
 * Windows on a GPU, whole and in part, against the reference outputs. The GPU is Vulkan0: with
 * GGML_VK_VISIBLE_DEVICES=0, which CMake sets for this test, Mesa's llvmpipe is one, which computes on the CPU. Where
 * there is none everything is skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "lib/golden.h"
#include "lib/maker.h"
#include "lib/stage_run.h"
#include "lib/test_util.h"

#include <ggml.h>
#include <stdio.h>
#include <strings.h>
#include <unistd.h>

#define GPU "Vulkan0"

/* Limits of the fixtures' README for another backend. */
#define F32_LIMIT          1e-4
#define QUANT_MEDIAN_LIMIT 1e-2

struct model {
    const char *dir, *stem; /* dir NULL: tests/data, else a folder of ../shared */
    bool quantized;
    const char *cases[2];
};

static const struct model models[] = {
    {NULL, "llama-spm-f32", false, {"short", "long"}},      {NULL, "qwen3-f32", false, {"short", "long"}},
    {NULL, "qwen35moe-f32", false, {"short", "long"}},      {NULL, "gemma3-f32", false, {"short", "long"}},
    {"fixtures", "gpt-oss-mxfp4", true, {"short", "long"}},
};
#define N_MODELS (sizeof models / sizeof *models)

static struct gguf *open_model(const struct model *m, struct golden **gold)
{
    char name[128], path[PATH_MAX];
    struct err e;
    struct gguf *g;
    const char *dir = m->dir ? m->dir : "", *slash = m->dir ? "/" : "";
    snprintf(name, sizeof name, "%s%s%s.gguf", dir, slash, m->stem);
    if (m->dir && !test_have_shared(name))
        return NULL;
    if (gguf_open(m->dir ? test_shared(name, path) : test_data(name, path), &g, &e) != OK)
        fail_msg("%s", e.msg);
    snprintf(name, sizeof name, "%s%sgolden/%s.bin", dir, slash, m->stem);
    if (golden_open(m->dir ? test_shared(name, path) : test_data(name, path), gold, &e) != OK)
        fail_msg("%s", e.msg);
    return g;
}

static struct stage_params gpu_params(void)
{
    struct stage_params p = run_params();
    p.n_slots = 1;
    p.n_threads = 2;
    p.device = GPU;
    p.all_logits = true;
    return p;
}

static const int32_t *ids_of(const struct golden *gold, const char *c, const char *what, size_t *n)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", c, what);
    const int32_t *ids = golden_i32(gold, name, NULL, n);
    assert_non_null(ids);
    return ids;
}

static void check_prompt(const struct model *m, struct run *r, const struct golden *gold, const char *c)
{
    size_t n, rows, cols;
    char name[64];
    struct err e;
    struct golden_match match;
    const int32_t *ids = ids_of(gold, c, "prompt", &n);
    if (run_feed(r, 0, ids, (uint32_t)n, BATCH_RESET | BATCH_SAMPLE, &e) != OK)
        fail_msg("%s", e.msg);
    snprintf(name, sizeof name, "%s.logits", c);
    const float *ref = golden_f32(gold, name, &rows, &cols);
    if (!ref) /* this case has no logits of every position */
        return;
    assert_int_equal(golden_compare_logits(run_logits(r, 0), ref, rows, cols, &match, &e), OK);
    print_message("%-14s %-6s NMSE worst %.1e median %.1e, argmax %zu/%zu\n", m->stem, c, match.worst, match.median,
                  match.n_same_argmax, match.n);
    if (m->quantized) {
        assert_true(match.median <= QUANT_MEDIAN_LIMIT);
        assert_true(match.n_same_argmax * 100 >= match.n * 80);
    } else {
        assert_true(match.worst <= F32_LIMIT);
    }
}

/* Every case of the model: logits of the prompt, then the greedy continuation, led by the reference's tokens. */
static void check_all(const struct model *m, struct run *r, const struct golden *gold, size_t n_cases, size_t n_most)
{
    size_t same = 0, total = 0;
    struct err e;
    for (size_t k = 0; k < n_cases; k++) {
        size_t n_out;
        const int32_t *want = ids_of(gold, m->cases[k], "greedy", &n_out);
        check_prompt(m, r, gold, m->cases[k]);
        for (size_t i = 0; i < n_out && i < n_most; i++) {
            assert_int_equal(r->b.n_results, 1);
            same += r->result[0].token == want[i];
            total++;
            if (!m->quantized)
                assert_int_equal(r->result[0].token, want[i]);
            if (run_feed(r, 0, &want[i], 1, BATCH_SAMPLE, &e) != OK)
                fail_msg("%s", e.msg);
        }
    }
    assert_true(same * 100 >= total * 80);
}

static void report(const struct model *m, const struct stage_info *i)
{
    print_message("%-14s %u blocks, %u states on %s; weights %llu of %llu, caches %llu of %llu; %u splits\n", m->stem,
                  i->n_device_blocks, i->n_device_states, i->device, (unsigned long long)i->device_weight_bytes,
                  (unsigned long long)i->weight_bytes, (unsigned long long)i->device_kv_bytes,
                  (unsigned long long)i->kv_bytes, i->n_splits);
}

static void against_reference(const struct model *m, uint32_t layers, size_t n_cases, size_t n_most)
{
    struct golden *gold;
    struct run r;
    struct err e;
    struct gguf *g = open_model(m, &gold);
    if (!g)
        skip();
    struct stage_params p = gpu_params();
    p.device_layers = layers;
    if (run_open(&r, g, &p, &e) != OK)
        fail_msg("%s", e.msg);
    report(m, r.info);
    assert_int_equal(strcasecmp(r.info->device, GPU), 0);
    assert_int_equal(r.info->n_device_blocks, layers ? layers : r.info->n_block);
    assert_int_equal(r.info->n_device_states, r.info->n_device_blocks);
    if (layers)
        assert_true(r.info->device_weight_bytes > 0 && r.info->device_weight_bytes < r.info->weight_bytes);
    else
        assert_true(r.info->device_weight_bytes > r.info->weight_bytes / 2);
    assert_true(r.info->device_compute_bytes > 0);
    assert_true(r.info->n_splits <= 3); /* else something went back and forth */
    check_all(m, &r, gold, n_cases, n_most);
    run_close(&r);
    golden_close(gold);
    gguf_close(g);
}

static void on_the_gpu(void **state)
{
    against_reference(*state, 0, 2, 48);
}

static void in_part(void **state)
{
    against_reference(*state, 3, 1, 12);
}

/* --- made models, against the CPU --------------------------------------------------------------------------------- */

static struct gguf *made(const struct maker_params *p)
{
    char path[PATH_MAX];
    struct gguf *g;
    struct err e;
    if (maker_write(test_scratch("device.gguf", path), p, &e) != OK || gguf_open(path, &g, &e) != OK)
        fail_msg("%s", e.msg);
    unlink(path);
    return g;
}

/* The logits after a prompt and some tokens, on the GPU as on the CPU. */
static void as_on_the_cpu(const struct gguf *g, const struct stage_params *gpu, double limit)
{
    struct stage_params p = *gpu;
    struct run a, b;
    struct err e;
    int32_t ids[24];
    p.device = "cpu";
    p.device_layers = 0;
    if (run_open(&a, g, gpu, &e) != OK || run_open(&b, g, &p, &e) != OK)
        fail_msg("%s", e.msg);
    run_ids(ids, 24, a.info->n_vocab, 5);
    for (uint32_t i = 0; i < 24; i += i ? 1 : 20) {
        assert_int_equal(run_feed(&a, 0, ids + i, i ? 1 : 20, BATCH_SAMPLE | (i ? 0 : BATCH_RESET), &e), OK);
        assert_int_equal(run_feed(&b, 0, ids + i, i ? 1 : 20, BATCH_SAMPLE | (i ? 0 : BATCH_RESET), &e), OK);
        uint32_t last = i ? 0 : 19;
        double d = golden_nmse_logits(run_logits(&a, last), run_logits(&b, last), a.info->n_vocab);
        if (d > limit)
            fail_msg("NMSE %g after %u tokens", d, i + 1);
    }
    run_close(&a);
    run_close(&b);
}

/* Vulkan has the delta rule for states of certain sizes only. */
static void a_state_that_the_gpu_cannot_move_on_stays_with_the_cpu(void **state)
{
    (void)state;
    struct maker_params m = maker_family_small(MAKER_QWEN35);
    struct run r;
    struct err e;
    m.ssm_state = 48;
    struct gguf *g = made(&m);
    struct stage_params p = gpu_params();
    if (run_open(&r, g, &p, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(r.info->n_device_blocks, r.info->n_block);
    assert_int_equal(r.info->n_device_states, r.info->n_block / m.interval);
    assert_true(r.info->device_kv_bytes > 0 && r.info->device_kv_bytes < r.info->kv_bytes);
    print_message("%u states of %u blocks on the GPU, %u splits\n", r.info->n_device_states, r.info->n_block,
                  r.info->n_splits);
    run_close(&r);
    as_on_the_cpu(g, &p, F32_LIMIT);
    gguf_close(g);
}

static void a_large_tensor_arrives_whole(void **state)
{
    (void)state;
    struct maker_params m = maker_small();
    m.n_block = 1;
    m.n_vocab = 150001; /* times 64 f32: 38 MB, written in parts of 16 */
    struct gguf *g = made(&m);
    struct stage_params p = gpu_params();
    as_on_the_cpu(g, &p, F32_LIMIT);
    gguf_close(g);
}

static void quantized_weights_and_caches(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g;
    struct err e;
    assert_int_equal(gguf_open(test_data("llama-k256-q4_k_m.gguf", path), &g, &e), OK);
    struct stage_params p = gpu_params();
    p.kv_type = KV_Q8_0;
    as_on_the_cpu(g, &p, 3e-2);
    gguf_close(g);
}

/* --- slots -------------------------------------------------------------------------------------------------------- */

static void a_hybrid_slot_on_the_gpu_goes_back_to_a_checkpoint(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g;
    struct run r;
    struct err e;
    int32_t ids[24];
    assert_int_equal(gguf_open(test_data("qwen35moe-f32.gguf", path), &g, &e), OK);
    struct stage_params p = gpu_params();
    p.all_logits = false;
    if (run_open(&r, g, &p, &e) != OK)
        fail_msg("%s", e.msg);
    float *first = malloc(r.info->n_vocab * sizeof *first);
    run_ids(ids, 24, r.info->n_vocab, 9);
    assert_int_equal(run_feed(&r, 0, ids, 12, BATCH_RESET, &e), OK);
    uint64_t hash = r.hash[0];
    assert_int_equal(run_feed(&r, 0, ids + 12, 8, BATCH_SAMPLE | BATCH_CHECKPOINT, &e), OK);
    memcpy(first, run_logits(&r, 0), r.info->n_vocab * sizeof *first);
    assert_int_equal(run_feed(&r, 0, ids + 20, 4, 0, &e), OK);
    assert_int_equal(stage_reach(r.st, 0, 12), 12);
    r.pos[0] = 12;
    r.hash[0] = hash;
    assert_int_equal(run_feed(&r, 0, ids + 12, 8, BATCH_SAMPLE | BATCH_TRUNCATE, &e), OK);
    assert_memory_equal(first, run_logits(&r, 0), r.info->n_vocab * sizeof *first);
    /* and a slot that begins anew has forgotten all of it */
    assert_int_equal(run_feed(&r, 0, ids, 12, BATCH_RESET, &e), OK);
    assert_int_equal(run_feed(&r, 0, ids + 12, 8, BATCH_SAMPLE, &e), OK);
    assert_memory_equal(first, run_logits(&r, 0), r.info->n_vocab * sizeof *first);
    free(first);
    run_close(&r);
    gguf_close(g);
}

/* --- what fits ---------------------------------------------------------------------------------------------------- */

static void what_does_not_fit_is_refused_with_what_would(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g;
    struct run r;
    struct err e = {0};
    assert_int_equal(gguf_open(test_data("llama-spm-f32.gguf", path), &g, &e), OK);
    struct stage_params p = gpu_params();
    p.device_bytes = 600000; /* a block: about 99000 of weights, 131072 of cache */
    assert_int_equal(run_open(&r, g, &p, &e), ERR_NOMEM);
    if (!strstr(e.msg, "the device " GPU " has 585.9KiB free") || !strstr(e.msg, "--device-layers 2 "))
        fail_msg("%s", e.msg);
    p.device_layers = 2;
    assert_int_equal(run_open(&r, g, &p, &e), OK);
    assert_true(r.info->device_weight_bytes + r.info->device_kv_bytes <= p.device_bytes);
    run_close(&r);
    p.device_layers = 3;
    assert_int_equal(run_open(&r, g, &p, &e), ERR_NOMEM);
    p.device_bytes = 1000;
    assert_int_equal(run_open(&r, g, &p, &e), ERR_NOMEM);
    if (!strstr(e.msg, "not even one block fits"))
        fail_msg("%s", e.msg);
    gguf_close(g);
}

static void the_cpu_has_limits_too(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g;
    struct run r;
    struct err e = {0};
    assert_int_equal(gguf_open(test_data("llama-spm-f32.gguf", path), &g, &e), OK);
    struct stage_params p = gpu_params();
    p.device = "CPU";
    p.device_bytes = 600000; /* the cache is 786432 */
    assert_int_equal(run_open(&r, g, &p, &e), ERR_NOMEM);
    if (!strstr(e.msg, "the key/value cache takes 768.0KiB, 585.9KiB of memory are free"))
        fail_msg("%s", e.msg);
    p.device_bytes = 0;
    assert_int_equal(run_open(&r, g, &p, &e), OK);
    assert_int_equal(r.info->n_device_blocks, 0);
    assert_int_equal(r.info->device_weight_bytes, 0);
    assert_int_equal(r.info->n_splits, 1);
    run_close(&r);
    gguf_close(g);
}

static void auto_takes_the_gpu_when_there_is_room(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g;
    struct run r;
    struct err e;
    assert_int_equal(gguf_open(test_data("llama-spm-f32.gguf", path), &g, &e), OK);
    struct stage_params p = gpu_params();
    p.device = "Auto";
    assert_int_equal(run_open(&r, g, &p, &e), OK);
    assert_string_equal(r.info->device, GPU);
    run_close(&r);
    p.device_bytes = 600000;
    assert_int_equal(run_open(&r, g, &p, &e), OK);
    assert_string_equal(r.info->device, "CPU");
    assert_int_equal(r.info->n_device_blocks, 0);
    run_close(&r);
    gguf_close(g);
    assert_null(backend_best(UINT64_MAX));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(a_state_that_the_gpu_cannot_move_on_stays_with_the_cpu),
        cmocka_unit_test(a_large_tensor_arrives_whole),
        cmocka_unit_test(quantized_weights_and_caches),
        cmocka_unit_test(a_hybrid_slot_on_the_gpu_goes_back_to_a_checkpoint),
        cmocka_unit_test(what_does_not_fit_is_refused_with_what_would),
        cmocka_unit_test(the_cpu_has_limits_too),
        cmocka_unit_test(auto_takes_the_gpu_when_there_is_room),
    };
    struct CMUnitTest tests[2 * N_MODELS + sizeof others / sizeof *others];
    char names[2 * N_MODELS][64];
    size_t n = 0;
    struct err e;
#ifdef __SANITIZE_THREAD__
    printf("skipped: TSan does not see how Mesa and LLVM, which are built without it, synchronise\n");
    return TEST_SKIP;
#endif
    if (backend_library_init(&e) != OK || backend_free_bytes(GPU) == 0) {
        printf("skipped: there is no " GPU " (packages libggml0-backend-vulkan, mesa-vulkan-drivers)\n");
        return TEST_SKIP;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < N_MODELS; i++) {
        void *m = (void *)(uintptr_t)&models[i];
        snprintf(names[n], sizeof names[n], "on the GPU %s", models[i].stem);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = on_the_gpu, .initial_state = m};
        n++;
        snprintf(names[n], sizeof names[n], "in part %s", models[i].stem);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = in_part, .initial_state = m};
        n++;
    }
    memcpy(tests + n, others, sizeof others);
    n += sizeof others / sizeof *others;
    return _cmocka_run_group_tests("device", tests, n, NULL, NULL);
}
