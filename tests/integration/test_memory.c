/* SPDX-License-Identifier: MIT
 *
 * What a stage keeps in memory: each window of a made model in a process of its own, loaded, after a prompt and 64
 * single tokens, may have its tensors, caches and compute buffers resident, and 40 MiB for all else. So nothing outside
 * the window is touched, and nothing of it is there twice.
 *
 * The program starts itself again for each rank ("--rank MODEL FIRST END"); the child writes its numbers to its stdout.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/maker.h"
#include "lib/proc.h"
#include "lib/stage_run.h"
#include "lib/test_util.h"
#include "plan/plan.h"

#include <ggml.h>

#include <stdio.h>
#include <unistd.h>

#define N_RANKS     4
#define N_PROMPT    384 /* in one step: the compute buffers are really used */
#define N_TOKENS    64
#define ALLOWED_MIB 40
#define RANK_MS     300000u
#define MIB(bytes)  ((double)(bytes) / (1024.0 * 1024.0))

struct numbers {
    uint64_t resident, at_open, weight, repacked, kv, compute;
};

/* --- the child: one rank -------------------------------------------------------------------------- */

static int rank_main(const char *path, uint32_t first, uint32_t end)
{
    struct gguf *g = NULL;
    struct err e;
    struct run r;
    struct stage_params p = run_params();
    p.first = first;
    p.end = end;
    if (gguf_open(path, &g, &e) != OK || run_open(&r, g, &p, &e) != OK) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    gguf_close(g);
    uint64_t at_open = io_resident_bytes();
    int32_t ids[N_PROMPT];
    run_ids(ids, N_PROMPT, r.info->n_vocab, 1);
    for (size_t k = 0; k < (size_t)N_PROMPT * r.info->n_embd; k++)
        r.b.rows[k] = (float)hash_uniform(1, k) * 2 - 1;
    enum err_code rc = run_feed(&r, 0, ids, N_PROMPT, 0, &e);
    for (uint32_t i = 0; i < N_TOKENS && rc == OK; i++) {
        for (uint32_t k = 0; k < r.info->n_embd; k++)
            r.b.rows[k] = (float)hash_uniform(i, k) * 2 - 1;
        rc = run_feed(&r, 0, &ids[i], 1, BATCH_SAMPLE, &e);
    }
    if (rc != OK) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    struct numbers n = {.resident = io_resident_bytes(),
                        .at_open = at_open,
                        .weight = r.info->weight_bytes,
                        .repacked = r.info->repacked_bytes,
                        .kv = r.info->kv_bytes,
                        .compute = r.info->compute_bytes};
    if (fwrite(&n, sizeof n, 1, stdout) != 1)
        return 1;
    run_close(&r);
    return 0;
}

/* --- the parent ----------------------------------------------------------------------------------- */

static struct numbers run_rank(const char *path, const struct plan_window *w)
{
    struct numbers n = {0};
    struct proc p;
    char first[16], end[16];
    const char *argv[] = {"/proc/self/exe", "--rank", path, first, end, NULL};
    snprintf(first, sizeof first, "%u", w->first);
    snprintf(end, sizeof end, "%u", w->end);
    assert_true(proc_start(&p, argv, NULL, -1));
    if (!proc_wait(&p, RANK_MS) || proc_code(&p) != 0)
        fail_msg("rank [%u,%u) of %s: %s", w->first, w->end, path, proc_text(&p, PROC_ERR));
    assert_int_equal(p.text[PROC_OUT].len, sizeof n);
    memcpy(&n, p.text[PROC_OUT].data, sizeof n);
    proc_free(&p);
    return n;
}

/* The model is made once per build folder; the maker renames it into place when it is whole. */
static void need_model(const struct maker_params *p, const char *path)
{
    struct err e;
    if (access(path, R_OK) != 0 && maker_write(path, p, &e) != OK)
        fail_msg("%s", e.msg);
}

static void plan(const char *path, uint32_t n_ranks, struct plan_window *w)
{
    struct gguf *g = NULL;
    struct hparams h;
    struct model_sizes s;
    struct err e;
    if (gguf_open(path, &g, &e) != OK || hparams_read(g, &h, &e) != OK || model_sizes_read(g, &h, &s, &e) != OK ||
        plan_even(&s, n_ranks, w, &e) != OK)
        fail_msg("%s", e.msg);
    model_sizes_fini(&s);
    hparams_fini(&h);
    gguf_close(g);
}

/* Each of n_ranks windows against its bound. head: what the model is. */
static void windows_of(const char *head, const struct maker_params *p, const char *path, uint32_t n_ranks)
{
    struct plan_window w[N_RANKS];
    unsigned over = 0;
    need_model(p, path);
    plan(path, n_ranks, w);
    print_message(
        "%s in %s, MiB:\n  rank  window   resident   bound  (weights, of these repacked, kv, compute; at open)\n", head,
        ggml_type_name((enum ggml_type)p->type));
    for (uint32_t i = 0; i < n_ranks; i++) {
        struct numbers n = run_rank(path, &w[i]);
        uint64_t bound = n.weight + n.kv + n.compute + ((uint64_t)ALLOWED_MIB << 20);
        print_message("  %4u [%2u,%2u)  %9.1f %8.1f  (%.1f, %.1f, %.1f, %.1f; %.1f)\n", i, w[i].first, w[i].end,
                      MIB(n.resident), MIB(bound), MIB(n.weight), MIB(n.repacked), MIB(n.kv), MIB(n.compute),
                      MIB(n.at_open));
        assert_int_equal(n.weight, w[i].bytes);
        assert_true(n.resident > n.weight / 2); /* it was measured at all */
        over += n.resident > bound;
    }
    assert_int_equal(over, 0);
}

static void preset_in_windows(const char *preset, int type, const char *path)
{
    struct maker_params p;
    struct err e;
    if (maker_preset(preset, &p, &e) != OK)
        fail_msg("%s", e.msg);
    p.type = type;
    windows_of(preset, &p, path, N_RANKS);
}

static void a_gigabyte_in_four_windows(void **state)
{
    (void)state;
    preset_in_windows("1gb", GGML_TYPE_Q8_0, KV_TEST_SCRATCH "/memory-1gb-q8_0.gguf");
}

static void repacked_weights_are_not_there_twice(void **state)
{
    (void)state;
    preset_in_windows("half", GGML_TYPE_Q4_0, KV_TEST_SCRATCH "/memory-half-q4_0.gguf");
}

/* A model of some 100 to 200 MiB of each family. */
static void every_family_stays_within_its_window(void **state)
{
    (void)state;
    for (int f = 0; f < MAKER_FAMILY_COUNT; f++) {
        struct maker_params p = maker_family_small((enum maker_family)f);
        char path[PATH_MAX];
        const char *name = maker_family_name((enum maker_family)f);
        p.n_embd = 1024;
        p.n_head = 8;
        p.n_head_kv = 2;
        p.head_dim = 128;
        p.n_rot = f == MAKER_GLM4MOE || f == MAKER_QWEN35 || f == MAKER_QWEN35MOE ? 64 : 0;
        p.n_ff = p.n_ff ? 4096 : 0;
        p.n_ff_exp = p.n_ff_exp ? 1024 : 0;
        p.n_ff_shared = p.n_ff_shared ? 1024 : 0;
        p.ssm_state = p.ssm_state ? 128 : 0;
        p.type = GGML_TYPE_Q4_0;
        p.n_threads = 0;
        snprintf(path, sizeof path, "%s/memory-%s.gguf", KV_TEST_SCRATCH, name);
        windows_of(name, &p, path, 2);
        unlink(path);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gigabyte_in_four_windows),
        cmocka_unit_test(repacked_weights_are_not_there_twice),
        cmocka_unit_test(every_family_stays_within_its_window),
    };
    if (argc == 5 && strcmp(argv[1], "--rank") == 0)
        return rank_main(argv[2], (uint32_t)strtoul(argv[3], NULL, 10), (uint32_t)strtoul(argv[4], NULL, 10));
    if (test_sanitized()) {
        printf("skipped: a sanitizer needs memory of its own\n");
        return TEST_SKIP;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
