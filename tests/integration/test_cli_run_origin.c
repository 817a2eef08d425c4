/* SPDX-License-Identifier: MIT
 *
 * `kvasir run --origin`: the text that the file gives, from windows that each rank pulls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/maker.h"
#include "lib/proc.h"
#include "lib/test_util.h"
#include "shard/origin.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAIT_MS 120000u

static char dir[PATH_MAX], models[PATH_MAX], home[PATH_MAX], tmp[PATH_MAX], model[PATH_MAX], base[64], url[80];
static struct origin *origin;

static const char *in_dir(const char *name, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        fail_msg("path too long");
    return out;
}

static void start(struct proc *p, const char *const *words)
{
    const char *argv[PROC_MAX_ARGS] = {KV_BINARY};
    char home_env[PATH_MAX + 16], tmp_env[PATH_MAX + 16];
    snprintf(home_env, sizeof home_env, "KVASIR_HOME=%s", home);
    snprintf(tmp_env, sizeof tmp_env, "TMPDIR=%s", tmp);
    const char *env[] = {home_env,       tmp_env,        "XDG_RUNTIME_DIR",
                         "KVASIR_MODEL", "KVASIR_TOKEN", "HF_TOKEN",
                         "http_proxy",   "KVASIR_LOG",   NULL};
    size_t n = 1;
    for (; *words; words++) {
        assert_true(n + 1 < PROC_MAX_ARGS);
        argv[n++] = *words;
    }
    assert_true(proc_start(p, argv, env, -1));
}

static void finish(struct proc *p, int code)
{
    if (!proc_wait(p, WAIT_MS))
        fail_msg("it hangs; stderr: %s", proc_text(p, PROC_ERR));
    if (proc_code(p) != code)
        fail_msg("exit status %d, not %d; stderr: %s", proc_code(p), code, proc_text(p, PROC_ERR));
}

/* Ends with this status; its output stays until proc_free. */
#define RUN(p, code, ...)                                                                                              \
    do {                                                                                                               \
        start(p, (const char *const[]){__VA_ARGS__, NULL});                                                            \
        finish(p, code);                                                                                               \
    } while (0)
#define ASK "-p", "once upon", "-n", "12", "--temp", "0", "--kv", "f32", "--threads", "1"

static void must_print(struct proc *p, const char *want)
{
    if (strcmp(proc_text(p, PROC_OUT), want) != 0)
        fail_msg("'%s' is not '%s'; stderr: %s", proc_text(p, PROC_OUT), want, proc_text(p, PROC_ERR));
    proc_free(p);
}

/* Is a stage file of exactly these blocks in the cache? */
static void must_have(const char *blocks, unsigned n)
{
    struct proc p;
    char line[32];
    RUN(&p, 0, "cache", "ls");
    snprintf(line, sizeof line, "%u file", n);
    if (!strstr(proc_text(&p, PROC_OUT), blocks) || proc_lines(&p, PROC_OUT, line) != 1)
        fail_msg("no %s, or not %u files: %s", blocks, n, proc_text(&p, PROC_OUT));
    proc_free(&p);
}

static int forget(void **state)
{
    (void)state;
    if (access(home, F_OK) == 0)
        test_remove_tree(home);
    return 0;
}

static char *text_of_the_file(void)
{
    struct proc p;
    RUN(&p, 0, "run", model, ASK);
    char *text = strdup(proc_text(&p, PROC_OUT));
    assert_true(text && text[0]);
    proc_free(&p);
    return text;
}

static void one_process_pulls_the_whole(void **state)
{
    (void)state;
    struct proc p;
    char *want = text_of_the_file();
    RUN(&p, 0, "run", "--origin", url, ASK);
    must_print(&p, want);
    must_have("[0,6)", 1);
    free(want);
}

static void each_rank_pulls_its_window(void **state)
{
    (void)state;
    struct proc p;
    char *want = text_of_the_file();
    RUN(&p, 0, "run", "--origin", base, "--layers", "0:1,1:4,4:6", ASK);
    must_print(&p, want);
    must_have("[0,1)", 3);
    must_have("[1,4)", 3);
    must_have("[4,6)", 3);
    RUN(&p, 0, "run", "--origin", base, "--layers", "0:1,1:4,4:6", ASK); /* now from the cache */
    must_print(&p, want);
    free(want);
}

/* Rank 0 of a ring that is there already (alone in it). */
static void rank_0_of_a_manifest_pulls_its_window(void **state)
{
    (void)state;
    struct proc p;
    char key[PATH_MAX], signer[PATH_MAX], ring[PATH_MAX], node[64], *want = text_of_the_file();
    in_dir("node.key", key);
    in_dir("signer.key", signer);
    in_dir("ring.json", ring);
    RUN(&p, 0, "keygen", key);
    snprintf(node, sizeof node, "%.43s", proc_text(&p, PROC_OUT));
    proc_free(&p);
    RUN(&p, 0, "keygen", signer);
    proc_free(&p);
    RUN(&p, 0, "plan", url, "--node", node, "-o", ring, "--key", signer);
    proc_free(&p);
    RUN(&p, 0, "run", "--origin", base, "--manifest", ring, "--key", key, ASK);
    must_print(&p, want);
    must_have("[0,6)", 1);
    RUN(&p, 0, "run", model, "--manifest", ring, "--key", key, ASK);
    must_print(&p, want);
    RUN(&p, 1, "run", model, "--manifest", ring, "--key", signer, ASK);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_AUTH: "), 1);
    proc_free(&p);
    free(want);
}

/* As plan and index take it: an origin with one model is named by its base URL. */
static void pull_takes_the_base_url(void **state)
{
    (void)state;
    struct proc p;
    char out[PATH_MAX], slash[80];
    snprintf(slash, sizeof slash, "%s/", base);
    in_dir("stage.gguf", out);
    RUN(&p, 0, "pull", slash, "--layers", "0:2", "-o", out);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "every tensor verified"));
    proc_free(&p);
    RUN(&p, 1, "pull", "m.gguf", "-o", out);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_ARG: 'm.gguf' is not an http"), 1);
    proc_free(&p);
    unlink(out);
}

static void what_is_not_there_is_told(void **state)
{
    (void)state;
    struct proc p;
    char missing[96];
    snprintf(missing, sizeof missing, "%s/models/nothing.gguf", base);
    RUN(&p, 1, "run", "--origin", missing, "--stages", "2", ASK);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_NOT_FOUND: "), 1);
    assert_int_equal(p.text[PROC_OUT].len, 0);
    proc_free(&p);
    assert_int_equal(rmdir(tmp), 0); /* empty */
    assert_int_equal(mkdir(tmp, 0700), 0);
}

static int set_up(void **state)
{
    (void)state;
    struct maker_params mp = maker_small();
    struct err e;
    char other[PATH_MAX];
    const struct origin_config config = {.dir = models, .addr = "127.0.0.1:0"};
    test_scratch("run_origin", dir);
    in_dir("models", models);
    in_dir("home", home);
    in_dir("tmp", tmp);
    in_dir("models/m.gguf", model);
    if (io_mkdirs(models, 0700, &e) != OK || mkdir(tmp, 0700) != 0 || maker_write(model, &mp, &e) != OK)
        return 1;
    setenv("KVASIR_HOME", in_dir("origin", other), 1); /* of the origin here */
    if (origin_start(&config, &origin, &e) != OK)
        return 1;
    snprintf(base, sizeof base, "http://127.0.0.1:%u", origin_port(origin));
    snprintf(url, sizeof url, "%s/models/m.gguf", base);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    origin_stop(origin);
    test_remove_tree(dir);
    return 0;
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(one_process_pulls_the_whole, forget),
        cmocka_unit_test_setup(each_rank_pulls_its_window, forget),
        cmocka_unit_test_setup(rank_0_of_a_manifest_pulls_its_window, forget),
        cmocka_unit_test_setup(pull_takes_the_base_url, forget),
        cmocka_unit_test_setup(what_is_not_there_is_told, forget),
    };
    alarm(580);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
