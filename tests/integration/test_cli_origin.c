/* SPDX-License-Identifier: MIT
 *
 * kvasir origin as a program: what it prints, what can be fetched, keys from a file, its access log, how it ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/cli_rig.h"
#include "lib/test_util.h"
#include "lib/web.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

static char dir[PATH_MAX], home_env[PATH_MAX + 16];

static void put_file(const char *name, const void *data, size_t len)
{
    char path[PATH_MAX];
    struct err e;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path ||
        io_write_file(path, data, len, 0600, &e) != OK)
        fail_msg("%s", name);
}

/* kvasir origin WORDS... */
static void start(struct proc *p, const char *const *words)
{
    const char *const env[] = {home_env, NULL};
    cli_start(p, words, env, -1);
}
#define START(p, ...) start(p, CLI_WORDS("origin", __VA_ARGS__))

static uint16_t port_of(struct proc *p)
{
    return (uint16_t)strtoul(cli_line(p, PROC_OUT, "http://127.0.0.1:") + 17, NULL, 10);
}

static void test_prints_urls_that_work(void **state)
{
    static const int sig[] = {SIGINT, SIGTERM};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct proc p;
        struct web w;
        START(&p, dir, "--listen", "127.0.0.1:0");
        cli_says(&p, PROC_OUT, "/models/a%20model.gguf\n");
        assert_true(web_call(&w, port_of(&p), "GET", "/models/a%20model.gguf", "Range: bytes=0-3\r\n", NULL));
        assert_int_equal(w.status, 206);
        assert_memory_equal(w.body.data, "GGUF", 4);
        web_free(&w);
        kill(p.pid, sig[i]);
        cli_finish(&p, 0);
        proc_free(&p);
    }
}

static void test_json(void **state)
{
    struct proc p;
    struct web w;
    (void)state;
    START(&p, dir, "--listen", ":0", "--json");
    const uint16_t port = port_of(&p);
    const char *line = proc_text(&p, PROC_OUT);
    yyjson_doc *d = yyjson_read(line, strcspn(line, "\n"), 0);
    assert_string_equal(yyjson_get_str(yyjson_doc_ptr_get(d, "/event")), "serving");
    const char *url = yyjson_get_str(yyjson_doc_ptr_get(d, "/models/0"));
    assert_non_null(url);
    assert_non_null(strstr(url, "/models/a%20model.gguf"));
    yyjson_doc_free(d);
    assert_true(web_call(&w, port, "GET", "/models/a%20model.gguf", "Range: bytes=0-99\r\n", NULL));
    web_free(&w);
    cli_says(&p, PROC_OUT, "\"body_bytes\":100,");
    cli_stop(&p);
}

static void test_token_file(void **state)
{
    char path[PATH_MAX];
    struct proc p;
    struct web w;
    (void)state;
    put_file("token", "open-sesame\nsecond line\n", 24);
    assert_true(snprintf(path, sizeof path, "%s/token", dir) < (int)sizeof path);
    START(&p, dir, "--listen", "127.0.0.1:0", "--token-file", path);
    const uint16_t port = port_of(&p);
    assert_true(web_call(&w, port, "GET", "/models", NULL, NULL));
    assert_int_equal(w.status, 401);
    web_free(&w);
    assert_true(web_call(&w, port, "GET", "/models", "Authorization: Bearer open-sesame\r\n", NULL));
    assert_int_equal(w.status, 200);
    web_free(&w);
    kill(p.pid, SIGTERM);
    cli_finish(&p, 0);
    assert_null(strstr(proc_text(&p, PROC_OUT), "sesame"));
    assert_null(strstr(proc_text(&p, PROC_ERR), "sesame"));
    proc_free(&p);
    static const char *const bad[] = {"", "short\n", "two words here\n"};
    for (size_t i = 0; i < 3; i++) {
        put_file("token", bad[i], strlen(bad[i]));
        START(&p, dir, "--listen", "127.0.0.1:0", "--token-file", path);
        cli_finish(&p, 1);
        assert_non_null(strstr(proc_text(&p, PROC_ERR), "first line"));
        proc_free(&p);
    }
}

/* What is in a line test_shard_origin_log says. */
static void test_access_log(void **state)
{
    static const char line[] = "\"method\":\"GET\",\"path\":\"/models\",\"status\":200,";
    char path[PATH_MAX];
    struct buf log = {0};
    struct proc p;
    struct web w;
    struct err e;
    (void)state;
    assert_true(snprintf(path, sizeof path, "%s/log", dir) < (int)sizeof path);
    for (int i = 0; i < 2; i++) {
        START(&p, dir, "--listen", "127.0.0.1:0", "--access-log", i ? "-" : path);
        assert_true(web_call(&w, port_of(&p), "GET", "/models?x=y", NULL, NULL));
        web_free(&w);
        if (i)
            cli_says(&p, PROC_ERR, line);
        kill(p.pid, SIGTERM);
        cli_finish(&p, 0);
        proc_free(&p);
    }
    assert_int_equal(io_read_file(path, 1 << 20, &log, &e), OK);
    assert_non_null(strstr(buf_str(&log), line));
    buf_free(&log);
    unlink(path);
    START(&p, dir, "--listen", "127.0.0.1:0", "--access-log", "/nowhere/at/all");
    cli_finish(&p, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "/nowhere/at/all"));
    proc_free(&p);
}

static void test_wrong_usage(void **state)
{
    struct proc p;
    (void)state;
    START(&p, "/nowhere/at/all");
    cli_finish(&p, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "/nowhere/at/all"));
    proc_free(&p);
    START(&p, "--listen", "127.0.0.1:0");
    cli_finish(&p, 2);
    proc_free(&p);
    START(&p, dir, "--listen", "nonsense");
    cli_finish(&p, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "host:port"));
    proc_free(&p);
}

static int set_up(void **state)
{
    (void)state;
    char home[PATH_MAX], path[PATH_MAX];
    struct buf b = {0};
    struct err e;
    snprintf(home_env, sizeof home_env, "KVASIR_HOME=%s", test_scratch("cli-origin-home", home));
    if (io_mkdirs(home, 0755, &e) != OK || io_mkdirs(test_scratch("cli-origin", dir), 0755, &e) != OK ||
        io_read_file(test_data("llama-tied-f32.gguf", path), 1u << 24, &b, &e) != OK)
        return 1;
    put_file("a model.gguf", b.data, b.len);
    buf_free(&b);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char home[PATH_MAX];
    test_remove_tree(dir);
    test_remove_tree(test_scratch("cli-origin-home", home));
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prints_urls_that_work),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_token_file),
        cmocka_unit_test(test_access_log),
        cmocka_unit_test(test_wrong_usage),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    alarm(300);
    return cmocka_run_group_tests_name("kvasir origin", tests, set_up, tear_down);
}
