/* SPDX-License-Identifier: MIT
 *
 * Odd models of other people that are sound all the same: they load and run a few tokens, whole and in two windows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/stage_run.h"
#include "lib/test_util.h"

#define N_TOKENS 8

static void runs(const char *name)
{
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct hparams h;
    struct err e;
    struct run whole, first, last;
    struct stage_params p = run_params();
    if (!test_have_shared(name))
        skip();
    if (gguf_open(test_shared(name, path), &g, &e) != OK || hparams_read(g, &h, &e) != OK)
        fail_msg("%s", e.msg);
    if (run_open(&whole, g, &p, &e) != OK)
        fail_msg("%s", e.msg);
    bool split = h.n_block > 1;
    if (split) {
        p.end = 1;
        assert_int_equal(run_open(&first, g, &p, &e), OK);
        p.first = 1;
        p.end = 0;
        assert_int_equal(run_open(&last, g, &p, &e), OK);
    }
    int32_t ids[4];
    uint32_t n = 4;
    run_ids(ids, n, h.n_vocab, 7);
    for (int i = 0; i < N_TOKENS; i++, n = 1) {
        if (run_feed(&whole, 0, ids, n, BATCH_SAMPLE, &e) != OK)
            fail_msg("%s", e.msg);
        assert_int_equal(whole.b.n_results, 1);
        if (split) {
            assert_int_equal(run_feed(&first, 0, ids, n, BATCH_SAMPLE, &e), OK);
            memcpy(last.b.rows, first.b.rows, (size_t)n * h.n_embd * sizeof(float));
            assert_int_equal(run_feed(&last, 0, ids, n, BATCH_SAMPLE, &e), OK);
            assert_memory_equal(run_logits(&last, 0), run_logits(&whole, 0), h.n_vocab * sizeof(float));
        }
        ids[0] = whole.result[0].token;
        assert_in_range(ids[0], 0, h.n_vocab - 1);
    }
    if (split) {
        run_close(&first);
        run_close(&last);
    }
    run_close(&whole);
    hparams_fini(&h);
    gguf_close(g);
}

static void gridcore_root_test(void **state)
{
    (void)state;
    runs("odd-gguf/gridcore-root-test.gguf");
}

static void ollama_llama_2_tiny_random(void **state)
{
    (void)state;
    runs("odd-gguf/ollama-llama-2-tiny-random.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gridcore_root_test),
        cmocka_unit_test(ollama_llama_2_tiny_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
