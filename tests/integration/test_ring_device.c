/* SPDX-License-Identifier: MIT
 *
 * One ring over different devices, as processes: rank 0 on Vulkan0, rank 1 on the CPU, and the other way around. It
 * writes what the reference wrote. CMake makes Mesa's llvmpipe the GPU, see tests/CMakeLists.txt.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "lib/golden_json.h"
#include "lib/proc.h"
#include "lib/test_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPU     "vulkan0"
#define WAIT_MS 240000u /* a cold shader cache takes a while */

static const char *const models[] = {"llama-spm-f32", "qwen3-f32", "qwen35moe-f32", "gemma3-f32"};

static void run(struct proc *p, const char *model, const char *prompt, const char *n, const char *layers,
                const char *devices)
{
    const char *argv[] = {KV_BINARY, "run",   model, "-p", prompt, "-n", n,       "--temp",  "0",   "--kv",
                          "f32",     "--ctx", "256", "-l", layers, "-d", devices, "--batch", "128", NULL};
    static const char *const env[] = {"KVASIR_LOG=info", NULL};
    assert_true(proc_start(p, argv, env, -1));
    if (!proc_wait(p, WAIT_MS))
        fail_msg("it hangs; stderr: %s", proc_text(p, PROC_ERR));
}

/* The reference's words around a ring of two devices. */
static void writes_the_reference(const char *stem, const char *layers, const char *devices, size_t n_cases)
{
    char name[128], model[PATH_MAX], golden[PATH_MAX], n[16];
    struct golden_json g;
    struct err e;
    snprintf(name, sizeof name, "%s.gguf", stem);
    test_data(name, model);
    snprintf(name, sizeof name, "golden/%s.json", stem);
    if (golden_json_open(test_data(name, golden), &g, &e) != OK)
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < n_cases; i++) {
        const struct golden_text *c = &g.cases[i];
        char *prompt = strndup(c->text.data, c->text.len);
        struct proc p;
        assert_non_null(prompt);
        snprintf(n, sizeof n, "%zu", c->greedy.n);
        run(&p, model, prompt, n, layers, devices);
        if (proc_code(&p) != 0)
            fail_msg("%s: exit status %d: %s", stem, proc_code(&p), proc_text(&p, PROC_ERR));
        if (p.text[PROC_OUT].len != c->greedy_text.len ||
            memcmp(p.text[PROC_OUT].data, c->greedy_text.data, c->greedy_text.len) != 0)
            fail_msg("%s (%s):\n'%s'\nis not\n'%.*s'", stem, c->name, proc_text(&p, PROC_OUT), (int)c->greedy_text.len,
                     c->greedy_text.data);
        assert_non_null(strstr(proc_text(&p, PROC_ERR), "device=Vulkan0"));
        proc_free(&p);
        free(prompt);
    }
    golden_json_close(&g);
}

static void test_first_rank_on_the_gpu(void **state)
{
    writes_the_reference(*state, "0:3,3:6", GPU ",cpu", 2);
}

/* Blocks 0 to 3 on the GPU, of which one is attention over all positions, and blocks 4 to 7 on the CPU. */
static void test_hybrid(void **state)
{
    writes_the_reference(*state, "0:4,4:8", GPU ",cpu", 2);
}

static void test_window(void **state)
{
    writes_the_reference(*state, "0:3,3:7", GPU ",cpu", 2);
}

static void test_last_rank_on_the_gpu(void **state)
{
    writes_the_reference(*state, "0:3,3:6", "CPU,Vulkan0", 1);
}

static void test_an_unknown_device(void **state)
{
    (void)state;
    char model[PATH_MAX];
    struct proc p;
    run(&p, test_data("llama-spm-f32.gguf", model), "a", "4", "0:6", "vulkan77");
    assert_int_equal(proc_code(&p), 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "there is no device 'vulkan77'; this machine has: "));
    proc_free(&p);
}

/* auto says what it took; with a GPU that nothing hides it is that one. */
static void test_auto(void **state)
{
    (void)state;
    char model[PATH_MAX];
    struct proc p;
    run(&p, test_data("llama-spm-f32.gguf", model), "a", "4", "0:6", "auto");
    assert_int_equal(proc_code(&p), 0);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "kvasir: rank 0 computes on Vulkan0\n"));
    proc_free(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        {"first rank llama", test_first_rank_on_the_gpu, NULL, NULL, (void *)(uintptr_t)models[0]},
        {"first rank qwen3", test_first_rank_on_the_gpu, NULL, NULL, (void *)(uintptr_t)models[1]},
        {"first rank qwen35moe", test_hybrid, NULL, NULL, (void *)(uintptr_t)models[2]},
        {"first rank gemma3", test_window, NULL, NULL, (void *)(uintptr_t)models[3]},
        {"last rank qwen3", test_last_rank_on_the_gpu, NULL, NULL, (void *)(uintptr_t)models[1]},
        cmocka_unit_test(test_an_unknown_device),
        cmocka_unit_test(test_auto),
    };
    struct err e;
#ifdef __SANITIZE_THREAD__
    printf("skipped: TSan does not see how Mesa and LLVM, which are built without it, synchronise\n");
    return TEST_SKIP;
#endif
    if (backend_library_init(&e) != OK || backend_free_bytes(GPU) == 0) {
        printf("skipped: there is no Vulkan0 (packages libggml0-backend-vulkan, mesa-vulkan-drivers)\n");
        return TEST_SKIP;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
