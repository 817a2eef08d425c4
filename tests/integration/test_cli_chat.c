/* SPDX-License-Identifier: MIT
 *
 * `kvasir run --chat` as a user runs it: the answer of a model with a template, and what is said where there is none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/golden_json.h"
#include "lib/proc.h"
#include "lib/test_util.h"

#include <stdio.h>
#include <string.h>

#define WAIT_MS 60000u

static const char user[] = "Tell me a story about a small ship.";
static const char sys[] = "You are a small test model.";

/* kvasir run MODEL -p TEXT -n 48 and the words of `more`, which NULL ends. */
static void run(struct proc *p, const char *model, const char *const *more, int code)
{
    static const char *const env[] = {"KVASIR_LOG", NULL};
    char path[PATH_MAX];
    const char *argv[32] = {
        KV_BINARY, "run", test_data(model, path), "-p", user, "-n", "48", "--temp", "0", "--threads", "1",
        "--kv",    "f32"};
    for (size_t n = 13; *more; more++)
        argv[n++] = *more;
    assert_true(proc_start(p, argv, env, -1));
    if (!proc_wait(p, WAIT_MS))
        fail_msg("it hangs; stderr: %s", proc_text(p, PROC_ERR));
    if (proc_code(p) != code)
        fail_msg("exit status %d, not %d; stderr: %s", proc_code(p), code, proc_text(p, PROC_ERR));
}

static void check_answer(const char *const *more)
{
    char path[PATH_MAX];
    struct golden_json g;
    struct proc p;
    assert_int_equal(golden_json_open(test_data("golden/llama-tied-f32.json", path), &g, NULL), OK);
    size_t i = 0;
    while (i < g.n_cases && strcmp(g.cases[i].name, "chat") != 0)
        i++;
    assert_true(i < g.n_cases);
    const char *want = g.cases[i].greedy_text.data;
    size_t len = g.cases[i].greedy_text.len;
    if (len > 0 && *want == ' ') { /* an answer is a text of its own */
        want++;
        len--;
    }
    run(&p, "llama-tied-f32.gguf", more, 0);
    assert_int_equal(p.text[PROC_OUT].len, len);
    assert_memory_equal(p.text[PROC_OUT].data, want, len);
    proc_free(&p);
    golden_json_close(&g);
}

static void a_message_is_answered(void **state)
{
    (void)state;
    static const char *const alone[] = {"--chat", "--system", sys, NULL};
    static const char *const ring[] = {"--chat", "--system", sys, "--stages", "3", "--chat-template", "chatml", NULL};
    check_answer(alone);
    check_answer(ring);
}

static void a_base_model_says_so(void **state)
{
    (void)state;
    static const char *const chat[] = {"--chat", NULL}, *const named[] = {"--chat", "--chat-template", "llama2", NULL};
    struct proc p;
    run(&p, "llama-spm-f32.gguf", chat, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "ERR_NOT_FOUND"));
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "base model"));
    assert_int_equal(p.text[PROC_OUT].len, 0);
    proc_free(&p);
    run(&p, "llama-spm-f32.gguf", named, 0);
    assert_true(p.text[PROC_OUT].len > 0);
    proc_free(&p);
}

static void wrong_usage_is_told(void **state)
{
    (void)state;
    static const char *const unknown[] = {"--chat", "--chat-template", "alpaca", NULL};
    static const char *const without[] = {"--system", sys, NULL};
    struct proc p;
    run(&p, "llama-tied-f32.gguf", unknown, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "\"alpaca\""));
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "mistral-v7-tekken"));
    proc_free(&p);
    run(&p, "llama-tied-f32.gguf", without, 2);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "--chat"));
    proc_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_answered),
        cmocka_unit_test(a_base_model_says_so),
        cmocka_unit_test(wrong_usage_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
