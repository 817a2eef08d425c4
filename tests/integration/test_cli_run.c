/* SPDX-License-Identifier: MIT
 *
 * The program as a user runs it: what `run` prints for every number of stages, how it ends when it is told to or when a
 * part of it dies, what wrong input and wrong usage give, and the commands that only look at something.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "lib/golden_json.h"
#include "lib/maker.h"
#include "lib/proc.h"
#include "lib/test_util.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

#define WAIT_MS 60000u

static char tmp_env[PATH_MAX + 8], cache_env[PATH_MAX + 16]; /* folders of this test's own */
static char tmp_dir[PATH_MAX], long_model[PATH_MAX];
static char model_env[PATH_MAX + 16] = "KVASIR_MODEL"; /* removed, unless a test sets it */

static const char *const *environment(void)
{
    static const char *env[8];
    size_t n = 0;
    env[n++] = tmp_env;
    env[n++] = cache_env;
    env[n++] = "XDG_RUNTIME_DIR";
    env[n++] = "KVASIR_LOG";
    env[n++] = model_env;
    env[n] = NULL;
    return env;
}

/* Starts kvasir with the words of a format that are separated by single spaces; a word of '%' alone is `extra`. */
static void start_program(struct proc *p, const char *program, const char *extra, const char *words)
{
    static char copy[8192];
    const char *argv[PROC_MAX_ARGS] = {program};
    size_t n = 1;
    assert_true(strlen(words) < sizeof copy);
    snprintf(copy, sizeof copy, "%s", words);
    for (char *save, *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        assert_true(n + 1 < PROC_MAX_ARGS);
        argv[n++] = strcmp(w, "%") == 0 ? extra : w;
    }
    assert_true(proc_start(p, argv, environment(), -1));
}

static void start(struct proc *p, const char *extra, const char *words)
{
    start_program(p, KV_BINARY, extra, words);
}

static void finish(struct proc *p, int code)
{
    if (!proc_wait(p, WAIT_MS))
        fail_msg("it hangs; stderr: %s", proc_text(p, PROC_ERR));
    if (proc_code(p) != code)
        fail_msg("exit status %d, not %d; stderr: %s", proc_code(p), code, proc_text(p, PROC_ERR));
}

/* Nothing was left in the folder for temporary files. */
static void check_clean(void)
{
    if (rmdir(tmp_dir) != 0)
        fail_msg("something was left behind in %s", tmp_dir);
    assert_int_equal(mkdir(tmp_dir, 0700), 0);
}

/* --- text ---------------------------------------------------------------------------------------- */

static void golden_run(const char *model, const char *golden, const char *how, size_t max_cases)
{
    struct golden_json g;
    struct err e;
    char words[PATH_MAX + 256];
    if (golden_json_open(golden, &g, &e) != OK)
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < g.n_cases && i < max_cases; i++) {
        const struct golden_text *c = &g.cases[i];
        char *prompt = strndup(c->text.data, c->text.len);
        struct proc p;
        snprintf(words, sizeof words, "run %s -p %% -n %zu --temp 0 --kv f32 --threads 1 %s", model, c->greedy.n, how);
        start(&p, prompt, words);
        finish(&p, 0);
        if (p.text[PROC_OUT].len != c->greedy_text.len ||
            memcmp(p.text[PROC_OUT].data, c->greedy_text.data, c->greedy_text.len) != 0)
            fail_msg("%s %s (%s):\n'%s'\nis not\n'%.*s'", model, how, c->name, proc_text(&p, PROC_OUT),
                     (int)c->greedy_text.len, c->greedy_text.data);
        assert_non_null(strstr(proc_text(&p, PROC_ERR), "tokens"));
        assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir:"), 0);
        proc_free(&p);
        free(prompt);
    }
    golden_json_close(&g);
    check_clean();
}

static void test_text_for_every_number_of_stages(void **state)
{
    (void)state;
    char model[PATH_MAX], golden[PATH_MAX];
    static const char *const how[] = {
        "--stages 1", "--stages 2", "--stages 3", "--stages 5", "--layers 0:1,1:2,2:6", "--stages 2 -b 3", ""};
    test_data("llama-spm-f32.gguf", model);
    test_data("golden/llama-spm-f32.json", golden);
    for (size_t i = 0; i < sizeof how / sizeof *how; i++)
        golden_run(model, golden, how[i], 3);
}

static void test_text_of_stories(void **state)
{
    (void)state;
    char model[PATH_MAX], golden[PATH_MAX];
    static const char *const how[] = {"--stages 1", "--stages 2", "--stages 3", "--stages 5"};
    if (!test_have_shared("models/stories260K-F32.gguf"))
        skip();
    test_shared("models/stories260K-F32.gguf", model);
    test_shared("models/golden/stories260K-F32.json", golden);
    for (size_t i = 0; i < sizeof how / sizeof *how; i++)
        golden_run(model, golden, how[i], 2);
}

static char *text_by(const char *program, const char *words)
{
    struct proc p;
    char data[PATH_MAX];
    start_program(&p, program, test_data("llama-spm-f32.gguf", data), words);
    finish(&p, 0);
    char *text = strdup(proc_text(&p, PROC_OUT));
    proc_free(&p);
    return text;
}

static char *text_of(const char *words)
{
    return text_by(KV_BINARY, words);
}

/* The demo model writes the same, greedy and at random, however it is divided; and it is what is meant when no model is
 * named, in the build tree too. */
static void test_text_of_the_demo_model(void **state)
{
    (void)state;
    char model[PATH_MAX], words[PATH_MAX + 128];
    static const char *const sampling[] = {"--temp 0 -n 200", "--temp 0.8 --seed 7 -n 120"};
    static const char *const how[] = {"--stages 1", "--stages 2", "--stages 4", "--stages 8", "--layers 0:1,1:5,5:8"};
    test_demo_model(model);
    for (size_t i = 0; i < sizeof sampling / sizeof *sampling; i++) {
        snprintf(words, sizeof words, "run %s -p Once --threads 1 %s", model, sampling[i]);
        char *want = text_of(words);
        assert_true(strlen(want) > 50);
        for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
            snprintf(words, sizeof words, "run -p Once --threads 1 %s %s", sampling[i], how[k]);
            char *text = text_of(words);
            if (strcmp(text, want) != 0)
                fail_msg("%s:\n'%s'\nis not\n'%s'", words, text, want);
            free(text);
        }
        free(want);
    }
    check_clean();
}

/* Random text depends on the seed only, not on how the model is divided. */
static void test_seeds(void **state)
{
    (void)state;
    char *one = text_of("run % -p once --temp 0.8 --seed 7 -n 60 --stages 1");
    char *again = text_of("run % -p once --temp 0.8 --seed 7 -n 60 --stages 1");
    char *three = text_of("run % -p once --temp 0.8 --seed 7 -n 60 --stages 3");
    char *six = text_of("run % -p once --temp 0.8 --seed 7 -n 60 --stages 6");
    char *other = text_of("run % -p once --temp 0.8 --seed 8 -n 60 --stages 3");
    assert_true(strlen(one) > 20);
    assert_string_equal(one, again);
    assert_string_equal(one, three);
    assert_string_equal(one, six);
    assert_string_not_equal(one, other);
    free(one);
    free(again);
    free(three);
    free(six);
    free(other);
}

static void test_report(void **state)
{
    (void)state;
    struct proc p;
    char data[PATH_MAX];
    start(&p, test_data("llama-spm-f32.gguf", data), "run % -p once --temp 0 -n 8 --stages 3 --report");
    finish(&p, 0);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "window"));
    assert_int_equal(proc_lines(&p, PROC_ERR, "0  "), 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "2  "), 1);
    proc_free(&p);
}

static void test_prompt_from_a_file(void **state)
{
    (void)state;
    struct proc p;
    char path[PATH_MAX], data[PATH_MAX], words[2 * PATH_MAX];
    FILE *f = fopen(test_scratch("prompt", path), "w");
    if (!f || fputs("once", f) < 0 || fclose(f) != 0)
        fail_msg("%s cannot be written", path);
    char *want = text_of("run % -p once --temp 0 -n 20");
    snprintf(words, sizeof words, "run %s -f %% --temp 0 -n 20", test_data("llama-spm-f32.gguf", data));
    start(&p, path, words);
    finish(&p, 0);
    assert_string_equal(proc_text(&p, PROC_OUT), want);
    proc_free(&p);
    free(want);
    unlink(path);
}

/* --- when no model is named ---------------------------------------------------------------------- */

static void copy_file(const char *from, const char *to, unsigned mode)
{
    struct buf data = {0};
    struct err e;
    if (io_read_file(from, 1u << 28, &data, &e) != OK || io_write_file(to, data.data, data.len, mode, &e) != OK)
        fail_msg("%s", e.msg);
    buf_free(&data);
}

static void test_model_of_the_environment(void **state)
{
    (void)state;
    char data[PATH_MAX];
    struct proc p;
    char *want = text_of("run % -p once --temp 0 -n 20");
    snprintf(model_env, sizeof model_env, "KVASIR_MODEL=%s", test_data("llama-spm-f32.gguf", data));
    char *one = text_of("run -p once --temp 0 -n 20"), *three = text_of("run -p once --temp 0 -n 20 --stages 3");
    assert_string_equal(one, want);
    assert_string_equal(three, want);
    free(one);
    free(three);
    free(want);

    strcpy(model_env, "KVASIR_MODEL=/nowhere/x.gguf"); /* then not another one instead */
    start(&p, "", "run -p once");
    finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_NOT_FOUND: "), 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "KVASIR_MODEL names, /nowhere/x.gguf"));
    proc_free(&p);
    start(&p, "", "doctor");
    finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_OUT, "BAD  model"), 1);
    proc_free(&p);
    strcpy(model_env, "KVASIR_MODEL");
    check_clean();
}

/* A program in another place takes the model that lies beside it as an installation has it, not the source tree's. */
static void test_model_of_an_installation(void **state)
{
    (void)state;
    char dir[PATH_MAX], folder[PATH_MAX + 64], program[PATH_MAX + 64], model[PATH_MAX + 64], path[PATH_MAX];
    struct err e;
    struct proc p;
    test_scratch("installed", dir);
    snprintf(folder, sizeof folder, "%s/bin", dir);
    assert_int_equal(io_mkdirs(folder, 0755, &e), OK);
    snprintf(program, sizeof program, "%s/bin/kvasir", dir);
    copy_file(KV_BINARY, program, 0755);
    if (access(KV_INSTALLED_MODELS "/huginn.gguf", R_OK) != 0) {
        start_program(&p, program, "", "run -p once");
        finish(&p, 1);
        assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_NOT_FOUND: no model is named"), 1);
        assert_non_null(strstr(proc_text(&p, PROC_ERR), "KVASIR_MODEL"));
        proc_free(&p);
    }
    snprintf(folder, sizeof folder, "%s/share/kvasir/models", dir);
    assert_int_equal(io_mkdirs(folder, 0755, &e), OK);
    snprintf(model, sizeof model, "%s/share/kvasir/models/huginn.gguf", dir);
    copy_file(test_data("llama-spm-f32.gguf", path), model, 0644);
    char *text = text_by(program, "run -p once --temp 0 -n 20"), *want = text_of("run % -p once --temp 0 -n 20");
    assert_string_equal(text, want);
    free(text);
    free(want);
    test_remove_tree(dir);
    check_clean();
}

/* --- ends ---------------------------------------------------------------------------------------- */

/* A run that takes long, with its first text out. */
static void start_long(struct proc *p)
{
    start(p, long_model, "run % -p once --temp 0 -c 20000 -n 19000 --stages 3 --threads 1");
    if (!proc_until(p, PROC_OUT, " ", WAIT_MS))
        fail_msg("no text; stderr: %s", proc_text(p, PROC_ERR));
}

static void test_signals(void **state)
{
    (void)state;
    static const int sig[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < 2; i++) {
        struct proc p;
        start_long(&p);
        pid_t one = proc_child(p.pid, "rank-1.key"), two = proc_child(p.pid, "rank-2.key");
        assert_true(one > 0 && two > 0);
        kill(p.pid, sig[i]);
        uint64_t t0 = clock_now_ns();
        finish(&p, 128 + sig[i]);
        assert_true(clock_now_ns() - t0 < 30 * CLOCK_NS_PER_S);
        assert_true(proc_gone(one, 0) && proc_gone(two, 0));
        assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir:"), 0);
        proc_free(&p);
        check_clean();
    }
}

static void test_a_part_is_killed(void **state)
{
    (void)state;
    for (int rank = 1; rank <= 2; rank++) {
        struct proc p;
        char key[32], name[48];
        snprintf(key, sizeof key, "rank-%d.key", rank);
        snprintf(name, sizeof name, "rank %d ended (signal 9)", rank);
        start_long(&p);
        pid_t victim = proc_child(p.pid, key), other = proc_child(p.pid, rank == 1 ? "rank-2.key" : "rank-1.key");
        assert_true(victim > 0 && other > 0);
        uint64_t t0 = clock_now_ns();
        kill(victim, SIGKILL);
        finish(&p, 1);
        assert_true(clock_now_ns() - t0 < 30 * CLOCK_NS_PER_S);
        assert_true(proc_gone(other, 0));
        assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_"), 1);
        if (!strstr(proc_text(&p, PROC_ERR), name))
            fail_msg("'%s' is not in: %s", name, proc_text(&p, PROC_ERR));
        proc_free(&p);
        check_clean();
    }
}

/* It neither answers nor is it gone. */
static void test_a_part_is_stopped(void **state)
{
    (void)state;
    struct proc p;
    start_long(&p);
    pid_t victim = proc_child(p.pid, "rank-1.key");
    assert_true(victim > 0);
    kill(victim, SIGSTOP);
    finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_TIMEOUT"), 1);
    assert_true(proc_gone(victim, 0));
    proc_free(&p);
    check_clean();
}

/* Without their parent the others do not live on. */
static void test_the_parent_is_killed(void **state)
{
    (void)state;
    struct proc p;
    start_long(&p);
    pid_t one = proc_child(p.pid, "rank-1.key"), two = proc_child(p.pid, "rank-2.key");
    assert_true(one > 0 && two > 0);
    kill(p.pid, SIGKILL);
    bool gone = proc_gone(one, WAIT_MS) && proc_gone(two, WAIT_MS);
    finish(&p, 128 + SIGKILL);
    assert_true(gone);
    proc_free(&p);
    check_clean(); /* the keys went when they were read */
}

/* Somebody types the text, or a program does that hangs. */
static void test_interrupted_while_the_text_is_read(void **state)
{
    (void)state;
    struct proc p;
    char fifo[PATH_MAX];
    int fd;
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    assert_int_equal(mkfifo(test_scratch("text", fifo), 0600), 0);
    start(&p, fifo, "run -f %");
    while ((fd = open(fifo, O_WRONLY | O_NONBLOCK)) < 0 && clock_now_ns() < deadline)
        usleep(5000);
    assert_true(fd >= 0); /* it has opened it, and waits for us */
    kill(p.pid, SIGINT);
    finish(&p, 128 + SIGINT);
    assert_int_equal(p.text[PROC_ERR].len, 0);
    proc_free(&p);
    close(fd);
    unlink(fifo);
}

/* The numbers do not stick to the text where both go to one place. */
static void test_both_outputs_in_one_place(void **state)
{
    (void)state;
    struct proc p;
    char line[3 * PATH_MAX];
    snprintf(line, sizeof line, "exec '%s' run '%s' -p once -n 4 --temp 0 2>&1", KV_BINARY, long_model);
    start_program(&p, "/bin/sh", line, "-c %");
    finish(&p, 0);
    const char *at = strstr(proc_text(&p, PROC_OUT), " prompt token");
    assert_non_null(at);
    while (at > proc_text(&p, PROC_OUT) && strchr("0123456789", at[-1]))
        at--;
    assert_true(at > proc_text(&p, PROC_OUT) && at[-1] == '\n');
    proc_free(&p);
}

/* Nobody reads the text: as with any program before `| head`, nothing to complain of. */
static void test_output_is_closed(void **state)
{
    (void)state;
    struct proc p;
    start_long(&p);
    close(p.fd[PROC_OUT]);
    p.fd[PROC_OUT] = -1;
    finish(&p, 128 + SIGPIPE);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir:"), 0);
    proc_free(&p);
    check_clean();
}

/* Started without a standard output: no other file is taken for it. */
static void test_there_is_no_output(void **state)
{
    (void)state;
    struct proc p;
    char line[3 * PATH_MAX];
    snprintf(line, sizeof line, "exec '%s' run '%s' -p once -n 4 --stages 2 >&-", KV_BINARY, long_model);
    start_program(&p, "/bin/sh", line, "-c %");
    finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_IO: cannot write the text: Bad file descriptor"), 1);
    proc_free(&p);
    check_clean();
}

static void test_output_is_full(void **state)
{
    (void)state;
    struct proc p;
    char line[3 * PATH_MAX];
    if (access("/dev/full", W_OK) != 0)
        skip();
    snprintf(line, sizeof line, "exec '%s' run '%s' -p once -n 4 >/dev/full", KV_BINARY, long_model);
    start_program(&p, "/bin/sh", line, "-c %");
    finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_IO: cannot write the text"), 1);
    proc_free(&p);
    snprintf(line, sizeof line, "exec '%s' --version >/dev/full", KV_BINARY);
    start_program(&p, "/bin/sh", line, "-c %");
    finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: cannot write"), 1);
    proc_free(&p);
}

/* --- what is wrong ------------------------------------------------------------------------------- */

/* Exit status 1, and exactly one line, with that beginning. */
static void must_fail(const char *extra, const char *words, const char *begins, const char *has)
{
    struct proc p;
    start(&p, extra, words);
    finish(&p, 1);
    const char *text = proc_text(&p, PROC_ERR);
    if (strncmp(text, begins, strlen(begins)) != 0 || !strstr(text, has) || strchr(text, '\n') != strrchr(text, '\n'))
        fail_msg("'%s' says: %s", words, text);
    assert_int_equal(p.text[PROC_OUT].len, 0);
    proc_free(&p);
    check_clean();
}

static void test_wrong_input(void **state)
{
    (void)state;
    char model[PATH_MAX], bad[PATH_MAX];
    struct err e;
    test_data("llama-spm-f32.gguf", model);
    must_fail("/nowhere/x.gguf", "run % -p x", "kvasir: ERR_NOT_FOUND: ", "/nowhere/x.gguf");
    must_fail(test_data("README.md", bad), "run % -p x", "kvasir: ERR_FORMAT: ", "GGUF");
    must_fail(tmp_dir, "run % -p x", "kvasir: ERR_ARG: ", "regular file");
    must_fail(model, "run % -p x --layers 0:2,3:6", "kvasir: ERR_MISMATCH: ", "window gap");
    must_fail(model, "run % -p x --layers 0:3,2:6", "kvasir: ERR_MISMATCH: ", "overlap");
    must_fail(model, "run % -p x --layers 0:2,2:7", "kvasir: ERR_RANGE: ", "6 blocks");
    must_fail(model, "run % -p x --layers 0:2,2:5", "kvasir: ERR_MISMATCH: ", "6 blocks");
    must_fail(model, "run % -p x --layers 1:6", "kvasir: ERR_MISMATCH: ", "window");
    must_fail(model, "run % -p x --layers 0-6", "kvasir: ERR_ARG: ", "0-6");
    must_fail(model, "run % -p x --layers 0:6 --stages 2", "kvasir: ERR_ARG: ", "--stages");
    must_fail(model, "run % -p x --stages 7", "kvasir: ERR_RANGE: ", "6 blocks");
    must_fail(model, "run % -p abcdefghijklmnopqrstuvwxyz -c 5", "kvasir: ERR_LIMIT: ", "context of 5");
    must_fail(model, "run % -p abcdefghijklmnopqrstuvwxyz -c 5 --stages 3", "kvasir: ERR_LIMIT: ", "context of 5");
    must_fail(model, "run % -p x --kv q7", "kvasir: ERR_ARG: ", "q7");
    must_fail(model, "run % -f /nowhere/prompt", "kvasir: ERR_NOT_FOUND: ", "/nowhere/prompt");

    struct maker_params mp = maker_small();
    test_scratch("bad.gguf", bad);
    mp.broken_cut = 100000;
    assert_int_equal(maker_write(bad, &mp, &e), OK);
    must_fail(bad, "run % -p x", "kvasir: ERR_FORMAT: ", bad);
    mp = maker_small();
    mp.broken_key = "general.architecture";
    mp.broken_key_how = MAKER_KEY_STRING;
    assert_int_equal(maker_write(bad, &mp, &e), OK);
    must_fail(bad, "run % -p x", "kvasir: ERR_UNSUPPORTED: ", "wrong");
    mp = maker_small();
    mp.broken_drop = "blk.5.ffn_up.weight";
    assert_int_equal(maker_write(bad, &mp, &e), OK);
    must_fail(bad, "run % -p x", "kvasir: ERR_NOT_FOUND: ", "blk.5.ffn_up.weight");
    unlink(bad);
}

/* A part that cannot load says why, and whose window it is. */
static void test_a_part_cannot_load(void **state)
{
    (void)state;
    char bad[PATH_MAX];
    struct err e;
    struct proc p;
    struct maker_params mp = maker_small();
    mp.broken_drop = "blk.5.ffn_up.weight";
    assert_int_equal(maker_write(test_scratch("bad.gguf", bad), &mp, &e), OK);
    start(&p, bad, "run % -p x --stages 2");
    finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_"), 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "blk.5.ffn_up.weight"));
    proc_free(&p);
    unlink(bad);
    check_clean();
}

static void test_wrong_usage(void **state)
{
    (void)state;
    static const char *const words[] = {
        "",
        "run",
        "run %",
        "run a b -p x",
        "run % -p x -f y",
        "run % -p",
        "run % -p x -n 0",
        "run % -p x -n many",
        "run % -p x -n 99999999999",
        "run % -p x --temp nan",
        "run % -p x --temp -1",
        "run % -p x --top-p 2",
        "run % -p x --stages 0",
        "run % -p x --threads 0",
        "run % -p x --nosuch",
        "run % -p x -Z",
        "run % -p x --seed -1",
        "up % --port 70000",
        "node %",
        "node % --manifest x",
        "node % --key x",
        "plan",
        "plan %",
        "plan % --stages 2 -o x",
        "plan % --stages 2 --node x",
        "plan % --stages 2 --key x",
        "run % -p x --origin http://127.0.0.1:1",
        "run http://127.0.0.1:1/x.gguf -p x",
        "run % -p x --index y",
        "index",
        "keygen",
        "keygen a b",
        "doctor x",
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct proc p;
        start(&p, "model.gguf", words[i]);
        if (!proc_wait(&p, WAIT_MS) || proc_code(&p) != 2)
            fail_msg("'%s': exit status %d, not 2: %s", words[i], proc_code(&p), proc_text(&p, PROC_ERR));
        assert_int_equal(p.text[PROC_OUT].len, 0);
        assert_non_null(strstr(proc_text(&p, PROC_ERR), "usage: kvasir"));
        proc_free(&p);
    }
}

/* What the option parser says of what it does not take. */
static void test_wrong_options(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"run % -p x --chat=1", "--chat takes no value"},
        {"run % -p x --cha=1", "--cha=1 could be --chat or --chat-template"},
        {"run % -p x --help=1", "--help takes no value"},
        {"run % -p x --nosuch=1", "there is no option --nosuch=1"},
        {"run % -p x --se", "--se needs a value"},
        {"run % -p x --s 1", "--s could be --system or --seed"},
        {"run % -p x -Zr", "there is no option -Z"},
        {"run % -p", "-p needs a value"},
        {"nosuch", "there is no command 'nosuch'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct proc p;
        start(&p, "model.gguf", cases[i][0]);
        finish(&p, 2);
        if (!strstr(proc_text(&p, PROC_ERR), cases[i][1]))
            fail_msg("'%s' says: %s", cases[i][0], proc_text(&p, PROC_ERR));
        proc_free(&p);
    }
}

static void test_help_of_a_command(void **state)
{
    (void)state;
    struct proc a, b;
    start(&a, "", "help plan");
    finish(&a, 0);
    start(&b, "", "plan --help");
    finish(&b, 0);
    assert_string_equal(proc_text(&a, PROC_OUT), proc_text(&b, PROC_OUT));
    proc_free(&a);
    proc_free(&b);
}

static void test_help(void **state)
{
    (void)state;
    static const char *const words[] = {"--help",    "-h",          "help",        "--version",    "run --help",
                                        "up --help", "node --help", "plan --help", "index --help", "keygen --help",
                                        "doctor -h", "run -h -p x"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct proc p;
        start(&p, "", words[i]);
        finish(&p, 0);
        assert_true(p.text[PROC_OUT].len > 0);
        assert_int_equal(p.text[PROC_ERR].len, 0);
        proc_free(&p);
    }
}

/* --- commands that look -------------------------------------------------------------------------- */

static yyjson_doc *json_of(const char *extra, const char *words)
{
    struct proc p;
    start(&p, extra, words);
    finish(&p, 0);
    yyjson_doc *doc = yyjson_read((const char *)p.text[PROC_OUT].data, p.text[PROC_OUT].len, 0);
    if (!doc)
        fail_msg("'%s' does not print JSON: %s", words, proc_text(&p, PROC_OUT));
    proc_free(&p);
    return doc;
}

static void test_index(void **state)
{
    (void)state;
    char path[PATH_MAX];
    static const char *const same[] = {"model_id", "block_bytes", "embd_bytes", "head_bytes"};
    yyjson_doc *whole = json_of(test_data("llama-spm-q4_0.gguf", path), "index % --json");
    yyjson_doc *split = json_of(test_data("llama-spm-q4_0-00001-of-00003.gguf", path), "index % --json");
    yyjson_doc *other = json_of(test_data("llama-spm-q8_0.gguf", path), "index % --json");
    for (size_t i = 0; i < 4; i++) {
        yyjson_val *a = yyjson_obj_get(yyjson_doc_get_root(whole), same[i]);
        yyjson_val *b = yyjson_obj_get(yyjson_doc_get_root(split), same[i]);
        assert_non_null(a);
        assert_true(yyjson_equals(a, b));
    }
    const char *id = yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(whole), "model_id"));
    assert_int_equal(strlen(id), 64);
    assert_string_not_equal(id, yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(other), "model_id")));
    yyjson_doc_free(whole);
    yyjson_doc_free(split);
    yyjson_doc_free(other);
}

static void test_index_check(void **state)
{
    (void)state;
    struct proc p;
    char model[PATH_MAX], other[PATH_MAX], kvi[PATH_MAX], bad[PATH_MAX], words[3 * PATH_MAX];
    struct buf bytes = {0};
    struct err e;
    test_data("llama-spm-q4_0.gguf", model);
    test_data("llama-spm-q8_0.gguf", other);
    test_scratch("bad.gguf", bad);
    snprintf(words, sizeof words, "index %% -o %s", test_scratch("model.kvi", kvi));
    start(&p, model, words);
    finish(&p, 0);
    proc_free(&p);

    snprintf(words, sizeof words, "index %% --check %s", kvi);
    start(&p, model, words);
    finish(&p, 0);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), ": as in "));
    proc_free(&p);
    start(&p, other, words);
    finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_MISMATCH: "), 1);
    proc_free(&p);
    assert_int_equal(io_read_file(model, 16u << 20, &bytes, &e), OK);
    bytes.data[bytes.len - 4000] ^= 1;
    assert_int_equal(io_write_file(bad, bytes.data, bytes.len, 0644, &e), OK);
    start(&p, bad, words);
    finish(&p, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "the bytes of tensor "));
    proc_free(&p);
    start(&p, kvi, words); /* an index is no model */
    finish(&p, 1);
    proc_free(&p);
    snprintf(words, sizeof words, "index %% --check %s", model); /* nor the other way round */
    start(&p, model, words);
    finish(&p, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "is not JSON"));
    proc_free(&p);
    buf_free(&bytes);
    unlink(bad);
    unlink(kvi);
}

/* The last stage file of a model with NextN blocks is larger than what is loaded of it: a plan says both. */
static void test_plan_of_stage_files(void **state)
{
    (void)state;
    struct proc p;
    char model[PATH_MAX], out[PATH_MAX], words[2 * PATH_MAX];
    struct err e;
    struct maker_params mp = maker_family_small(MAKER_QWEN35MOE);
    test_scratch("plan-slice.gguf", out);
    if (maker_write(test_scratch("plan.gguf", model), &mp, &e) != OK)
        fail_msg("%s", e.msg);
    yyjson_doc *plan = json_of(model, "plan % --stages 3 --json");
    yyjson_val *ranks = yyjson_obj_get(yyjson_doc_get_root(plan), "ranks"), *r;
    size_t i, n;
    assert_int_equal(yyjson_arr_size(ranks), 3);
    yyjson_arr_foreach(ranks, i, n, r)
    {
        yyjson_val *w = yyjson_obj_get(r, "window");
        snprintf(words, sizeof words, "slice %% --layers %u:%u -o %s --json",
                 (unsigned)yyjson_get_uint(yyjson_arr_get(w, 0)), (unsigned)yyjson_get_uint(yyjson_arr_get(w, 1)), out);
        yyjson_doc *slice = json_of(model, words);
        const uint64_t bytes = yyjson_get_uint(yyjson_obj_get(r, "tensor_bytes"));
        assert_int_equal(bytes, yyjson_get_uint(yyjson_obj_get(yyjson_doc_get_root(slice), "tensor_bytes")));
        const uint64_t loaded = yyjson_get_uint(yyjson_obj_get(r, "weight_bytes"));
        assert_true(i == 2 ? loaded < bytes : loaded == bytes);
        yyjson_doc_free(slice);
    }
    yyjson_doc_free(plan);
    start(&p, model, "plan % --stages 3");
    finish(&p, 0);
    assert_int_equal(proc_lines(&p, PROC_OUT, "the stage file of rank 2 has "), 1);
    assert_int_equal(proc_lines(&p, PROC_OUT, "the stage file of rank "), 1);
    proc_free(&p);
    unlink(out);
    unlink(model);
}

static void test_slice(void **state)
{
    (void)state;
    struct proc p;
    char model[PATH_MAX], out[PATH_MAX], again[PATH_MAX], words[3 * PATH_MAX];
    struct buf a = {0}, b = {0};
    struct err e;
    test_data("llama-spm-q4_0-00001-of-00003.gguf", model);
    test_scratch("slice.gguf", out);
    test_scratch("slice-again.gguf", again);
    snprintf(words, sizeof words, "slice %% --layers 1:4 -o %s --json", out);
    yyjson_doc *doc = json_of(model, words), *index = json_of(model, "index % --json");
    yyjson_val *v = yyjson_doc_get_root(doc);
    assert_true(yyjson_equals(yyjson_obj_get(v, "model_id"), yyjson_obj_get(yyjson_doc_get_root(index), "model_id")));
    assert_int_equal(io_read_file(out, 16u << 20, &a, &e), OK);
    assert_int_equal(yyjson_get_uint(yyjson_obj_get(v, "size")), a.len);
    yyjson_doc_free(doc);
    yyjson_doc_free(index);

    snprintf(words, sizeof words, "slice %% --layers 1:4 -o %s", again);
    start(&p, out, words);
    finish(&p, 0);
    proc_free(&p);
    assert_int_equal(io_read_file(again, 16u << 20, &b, &e), OK);
    assert_true(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    static const char *const wrong[] = {"slice % --layers 1:4", "slice % -o x.gguf", "slice % --layers 1:400 -o x.gguf",
                                        "slice % --layers 4:1 -o x.gguf", "slice % --layers 0:2 -o x.gguf"};
    for (size_t i = 0; i < 5; i++) {
        start(&p, out, wrong[i]);
        finish(&p, i < 2 ? 2 : 1);
        assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir"), 1);
        proc_free(&p);
    }
    start(&p, out, "index %");
    finish(&p, 0);
    assert_int_equal(proc_lines(&p, PROC_OUT, "stage file layers [1,4)"), 1);
    proc_free(&p);
    start(&p, out, "run % -p x");
    finish(&p, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "is a stage file of [1,4)"));
    proc_free(&p);
    buf_free(&a);
    buf_free(&b);
    unlink(out);
    unlink(again);
}

static void test_doctor(void **state)
{
    (void)state;
    yyjson_doc *doc = json_of("", "doctor --json");
    assert_true(yyjson_is_arr(yyjson_doc_get_root(doc)));
    size_t i, n;
    yyjson_val *v;
    yyjson_arr_foreach(yyjson_doc_get_root(doc), i, n, v)
    {
        assert_true(yyjson_is_bool(yyjson_obj_get(v, "ok")));
        assert_true(yyjson_is_str(yyjson_obj_get(v, "what")));
        assert_true(yyjson_is_str(yyjson_obj_get(v, "text")));
    }
    assert_true(n >= 5);
    yyjson_doc_free(doc);
}

static void test_plan(void **state)
{
    (void)state;
    char path[PATH_MAX];
    yyjson_doc *doc = json_of(test_data("llama-spm-f32.gguf", path), "plan % --stages 3 --json");
    yyjson_val *ranks = yyjson_obj_get(yyjson_doc_get_root(doc), "ranks");
    assert_int_equal(yyjson_arr_size(ranks), 3);
    uint64_t at = 0;
    for (size_t i = 0; i < 3; i++) {
        yyjson_val *w = yyjson_obj_get(yyjson_arr_get(ranks, i), "window");
        assert_int_equal(yyjson_get_uint(yyjson_arr_get(w, 0)), at);
        at = yyjson_get_uint(yyjson_arr_get(w, 1));
    }
    assert_int_equal(at, 6);
    yyjson_doc_free(doc);
}

static int set_up(void **state)
{
    (void)state;
    char cache[PATH_MAX];
    struct err e;
    struct maker_params mp = maker_small();
    mp.n_ctx = 20000;
    test_scratch("tmp", tmp_dir);
    test_scratch("cache", cache);
    test_scratch("long.gguf", long_model);
    snprintf(tmp_env, sizeof tmp_env, "TMPDIR=%s", tmp_dir);
    snprintf(cache_env, sizeof cache_env, "XDG_CACHE_HOME=%s", cache);
    return mkdir(tmp_dir, 0700) != 0 || mkdir(cache, 0700) != 0 || maker_write(long_model, &mp, &e) != OK;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(long_model);
    test_remove_tree(tmp_dir);
    test_remove_tree(cache_env + strlen("XDG_CACHE_HOME="));
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_for_every_number_of_stages),
        cmocka_unit_test(test_text_of_stories),
        cmocka_unit_test(test_text_of_the_demo_model),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_prompt_from_a_file),
        cmocka_unit_test(test_model_of_the_environment),
        cmocka_unit_test(test_model_of_an_installation),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_a_part_is_killed),
        cmocka_unit_test(test_a_part_is_stopped),
        cmocka_unit_test(test_the_parent_is_killed),
        cmocka_unit_test(test_interrupted_while_the_text_is_read),
        cmocka_unit_test(test_both_outputs_in_one_place),
        cmocka_unit_test(test_output_is_closed),
        cmocka_unit_test(test_there_is_no_output),
        cmocka_unit_test(test_output_is_full),
        cmocka_unit_test(test_wrong_input),
        cmocka_unit_test(test_a_part_cannot_load),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_of_a_command),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_index_check),
        cmocka_unit_test(test_slice),
        cmocka_unit_test(test_plan_of_stage_files),
        cmocka_unit_test(test_doctor),
        cmocka_unit_test(test_plan),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    alarm(580);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
