/* SPDX-License-Identifier: MIT
 *
 * The command pull as a process: killed twenty times and gone on with, stopped, refused; what it prints and what it
 * leaves behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/io.h"
#include "lib/cli_rig.h"
#include "lib/pull_rig.h"
#include "lib/test_util.h"

#include <ggml.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKEN     "hub-secret-77"
#define N_KILLS   20
#define MAX_AGAIN (32u << 20) /* bytes that a kill may cost */

static struct pull_rig rig;
static char want[PATH_MAX];

static int group_setup(void **state)
{
    *state = &rig;
    struct maker_params p = maker_small();
    p.n_embd = 1024;
    p.n_head = 16;
    p.n_head_kv = 4;
    p.head_dim = 64;
    p.n_ff = 3072;
    p.n_block = 8;
    p.type = GGML_TYPE_Q8_0; /* 13 MB a block */
    rig_start(&rig, "cli_pull.gguf", &p);
    test_scratch("cli_sliced.gguf", want);
    return 0;
}

/* Nothing to compare with either. */
static int setup(void **state)
{
    unlink(want);
    return rig_setup(state);
}

/* kvasir pull -o out ARGS...; the arguments end with NULL. */
static void start(struct proc *p, const char *const *env, const char *const *args)
{
    const char *words[PROC_MAX_ARGS] = {"pull", "-o", rig.out};
    size_t n = 3;
    for (; *args; args++) {
        assert_true(n + 1 < PROC_MAX_ARGS);
        words[n++] = *args;
    }
    cli_start(p, words, env, -1);
}

static int finish(struct proc *p)
{
    assert_true(proc_wait(p, CLI_WAIT_MS));
    return proc_code(p);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The pulled file has the bytes of the one that `kvasir slice` writes. */
static void check_file(const char *layers)
{
    const char *argv[] = {KV_BINARY, "slice", rig.path, "--layers", layers, "-o", want, NULL};
    struct proc p;
    struct buf a = {0}, b = {0};
    assert_true(proc_start(&p, argv, NULL, -1));
    if (finish(&p) != 0)
        fail_msg("%s", proc_text(&p, PROC_ERR));
    proc_free(&p);
    rig_read(rig.out, &a);
    rig_read(want, &b);
    assert_int_equal(a.len, b.len);
    assert_true(memcmp(a.data, b.data, a.len) == 0);
    assert_false(rig_exists(rig.part));
    assert_false(rig_exists(rig.journal));
    buf_free(&a);
    buf_free(&b);
}

/* --- killed --- */

/* Bytes that the journal says are there. */
static uint64_t landed(void)
{
    struct buf b = {0};
    uint64_t sum = 0;
    if (io_read_file(rig.journal, 1u << 20, &b, NULL) == OK)
        for (size_t i = 48; i + 8 <= b.len; i += 8)
            sum += le_get_u64(b.data + i);
    buf_free(&b);
    return sum;
}

static void test_killed_twenty_times(void **state)
{
    (void)state;
    uint64_t random = 20, worst = 0;
    unsigned n_killed = 0;
    struct proc p;
    for (int i = 0; i < N_KILLS; i++) {
        random = hash_mix64(random + 1);
        const uint64_t before = landed(), until = random % (8u << 20);
        bad_count_again(rig.s[0]);
        start(&p, NULL, ARGS(rig.url[0], "--layers", "0:8", "--rate", "60M", "--need-index"));
        /* Some at least have written something: on a slow machine what was sent may not have got that far. */
        const bool wrote = i % 8 == 0;
        const uint64_t deadline = clock_deadline_ms(60000);
        while ((bad_count(rig.s[0]).body_bytes < until || (wrote && landed() == before)) && clock_now_ns() < deadline)
            usleep(500);
        n_killed += kill(p.pid, SIGKILL) == 0;
        finish(&p);
        proc_free(&p);
        const uint64_t sent = bad_count(rig.s[0]).body_bytes, gain = landed() - before;
        assert_false(rig_exists(rig.out));
        assert_true(landed() >= before);
        assert_true(sent >= gain);
        worst = sent - gain > worst ? sent - gain : worst;
    }
    assert_int_equal(n_killed, N_KILLS);
    print_message("at worst %.1f MiB fetched again\n", (double)worst / (1 << 20));
    assert_true(worst < MAX_AGAIN);
    assert_true(landed() > 0);
    start(&p, NULL, ARGS(rig.url[0], "--layers", "0:8", "--json"));
    if (finish(&p) != 0)
        fail_msg("%s", proc_text(&p, PROC_ERR));
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "\"verified\":true"));
    assert_null(strstr(proc_text(&p, PROC_OUT), "\"resumed_bytes\":0,"));
    proc_free(&p);
    check_file("0:8");
}

static void test_interrupted(void **state)
{
    (void)state;
    struct proc p;
    start(&p, NULL, ARGS(rig.url[0], "--layers", "2:6", "--rate", "20M"));
    const uint64_t deadline = clock_deadline_ms(60000);
    while (landed() < 1000000 && clock_now_ns() < deadline)
        usleep(1000);
    kill(p.pid, SIGINT);
    assert_int_equal(finish(&p), 128 + SIGINT);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "the same command goes on"));
    proc_free(&p);
    assert_false(rig_exists(rig.out));
    start(&p, NULL, ARGS(rig.url[0], "--layers", "2:6"));
    assert_int_equal(finish(&p), 0);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "were there"));
    proc_free(&p);
    check_file("2:6");
}

/* --- what it says --- */

static void test_text_and_json(void **state)
{
    (void)state;
    struct proc p;
    start(&p, NULL, ARGS(rig.url[0], "--layers", "1:2"));
    assert_int_equal(finish(&p), 0);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "blocks [1,2)"));
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "every tensor verified"));
    assert_string_equal(proc_text(&p, PROC_ERR), "");
    proc_free(&p);
    bad_count_again(rig.s[0]);
    start(&p, NULL, ARGS(rig.url[0], "--layers", "1:2", "--json")); /* again: it is there */
    assert_int_equal(finish(&p), 0);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "\"received_bytes\":0,"));
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "\"first\":1,\"end\":2,"));
    proc_free(&p);
    assert_true(bad_count(rig.s[0]).body_bytes < 1000000);
    check_file("1:2");
}

static void test_unverified(void **state)
{
    (void)state;
    struct proc p;
    rig_no_index(&rig);
    start(&p, NULL, ARGS(rig.url[0], "--layers", "1:2"));
    assert_int_equal(finish(&p), 0);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "not verified"));
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: no index was found"), 1);
    proc_free(&p);
    unlink(rig.out);
    start(&p, NULL, ARGS(rig.url[0], "--layers", "1:2", "--need-index"));
    assert_int_equal(finish(&p), 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_LIMIT"), 1);
    proc_free(&p);
    assert_false(rig_exists(rig.out));
    assert_false(rig_exists(rig.part));
}

static void test_wrong_byte(void **state)
{
    (void)state;
    const struct bad_rule flip = {.how = BAD_FLIP, .path = "/m.gguf", .n = rig.model.len / 2};
    struct proc p;
    bad_rule(rig.s[0], &flip);
    start(&p, NULL, ARGS(rig.url[0], rig.url[1], "--layers", "0:8"));
    assert_int_equal(finish(&p), 0);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "sent a wrong tensor blk."));
    proc_free(&p);
    check_file("0:8");
    start(&p, NULL, ARGS(rig.url[0], "--layers", "0:8"));
    assert_int_equal(finish(&p), 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_MISMATCH: tensor blk."), 1);
    proc_free(&p);
    assert_false(rig_exists(rig.out));
}

static void test_wrong_usage(void **state)
{
    (void)state;
    const struct {
        const char *const *args;
        int code;
        const char *text;
    } cases[] = {
        {ARGS("--layers", "1:2"), 2, "from which URL?"},
        {ARGS(rig.url[0], "--layers", "2:1"), 1, "2:1"},
        {ARGS(rig.url[0], "--layers", "0:99"), 1, "ERR_RANGE"},
        {ARGS(rig.url[0], "--rate", "fast"), 1, "--rate"},
        {ARGS(rig.url[0], "--rate", "0"), 1, "--rate"},
        {ARGS(rig.url[0], "--rate", "99999999999999G"), 1, "--rate"},
        {ARGS(rig.url[0], "--connections", "0"), 2, "--connections"},
        {ARGS("model.gguf"), 1, "URL"},
        {ARGS(rig.url[0], "--index", "/no/such.kvi"), 1, "/no/such.kvi"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct proc p;
        start(&p, NULL, cases[i].args);
        const int code = finish(&p);
        if (code != cases[i].code || !strstr(proc_text(&p, PROC_ERR), cases[i].text))
            fail_msg("case %zu: status %d, %s", i, code, proc_text(&p, PROC_ERR));
        proc_free(&p);
    }
}

/* --- tokens --- */

static void expect_with(const char *const *env, const char *file, int code)
{
    struct proc p;
    unlink(rig.out);
    start(&p, env, ARGS(rig.url[0], "--layers", "1:2", file ? "--token-file" : "--json", file));
    const int got = finish(&p);
    if (got != code || strstr(proc_text(&p, PROC_ERR), TOKEN) || strstr(proc_text(&p, PROC_OUT), TOKEN))
        fail_msg("status %d: %s", got, proc_text(&p, PROC_ERR));
    proc_free(&p);
}

static void test_tokens(void **state)
{
    (void)state;
    char path[PATH_MAX], hub[200], other[200];
    struct err e;
    const char *none[] = {"KVASIR_TOKEN", "HF_TOKEN", "HF_ENDPOINT", NULL};
    const char *own[] = {"KVASIR_TOKEN=" TOKEN, "HF_TOKEN", NULL};
    const char *at_hub[] = {"KVASIR_TOKEN", "HF_TOKEN=" TOKEN, hub, NULL};
    const char *elsewhere[] = {"KVASIR_TOKEN", "HF_TOKEN=" TOKEN, other, NULL};
    const char *unnamed[] = {"KVASIR_TOKEN", "HF_TOKEN=" TOKEN, "HF_ENDPOINT", NULL};
    snprintf(hub, sizeof hub, "HF_ENDPOINT=http://127.0.0.1:%u", bad_port(rig.s[0]));
    snprintf(other, sizeof other, "HF_ENDPOINT=http://127.0.0.1:%u", bad_port(rig.s[1]));
    test_scratch("token", path);
    bad_token(rig.s[0], TOKEN);
    expect_with(none, NULL, 1);
    expect_with(own, NULL, 0);
    expect_with(at_hub, NULL, 0);
    expect_with(elsewhere, NULL, 1);
    bad_count_again(rig.s[0]);
    expect_with(unnamed, NULL, 1);
    assert_int_equal(bad_count(rig.s[0]).n_with_token, 0);
    assert_int_equal(io_write_file(path, TOKEN "\n", strlen(TOKEN) + 1, 0600, &e), OK);
    expect_with(none, path, 0);
    assert_int_equal(chmod(path, 0644), 0);
    expect_with(none, path, 1);
    unlink(path);
    unlink(rig.out);
}

/* As from a model hub: /resolve/main/ sends on to a signed address of another host. */
static void test_hub(void **state)
{
    (void)state;
    char cdn[128], url[128];
    struct proc p;
    const char *env[] = {"KVASIR_TOKEN=" TOKEN, NULL};
    const struct bad_rule away = {.how = BAD_REDIRECT,
                                  .path = "/owner/model/resolve/main/x.gguf",
                                  .location = rig_url(&rig, 1, "/blob?X-Signature=abc&X-Expires=60", cdn)};
    bad_token(rig.s[0], TOKEN);
    bad_file(rig.s[0], "/owner/model/resolve/main/x.gguf", "", 0, "\"none\"");
    bad_file(rig.s[0], "/owner/model/resolve/main/x.gguf.kvi", rig.index.data, rig.index.len, "\"kvi\"");
    bad_file(rig.s[1], "/blob", rig.model.data, rig.model.len, "\"0123abc\"");
    bad_rule(rig.s[0], &away);
    start(&p, env,
          ARGS(rig_url(&rig, 0, "/owner/model/resolve/main/x.gguf?download=true", url), "--layers", "3:5",
               "--need-index"));
    if (finish(&p) != 0)
        fail_msg("%s", proc_text(&p, PROC_ERR));
    proc_free(&p);
    assert_int_equal(bad_count(rig.s[1]).n_with_token, 0);
    assert_in_range(bad_count(rig.s[0]).n_requests, 2, 2 + 4);
    check_file("3:5");
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_killed_twenty_times, setup),
        cmocka_unit_test_setup(test_interrupted, setup),
        cmocka_unit_test_setup(test_text_and_json, setup),
        cmocka_unit_test_setup(test_unverified, setup),
        cmocka_unit_test_setup(test_wrong_byte, setup),
        cmocka_unit_test_setup(test_wrong_usage, setup),
        cmocka_unit_test_setup(test_tokens, setup),
        cmocka_unit_test_setup(test_hub, setup),
    };
    return cmocka_run_group_tests(tests, group_setup, rig_teardown);
}
