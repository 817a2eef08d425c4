/* SPDX-License-Identifier: MIT
 *
 * The origin's access log: a line for each request, whatever came of it, and nothing secret.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "lib/maker.h"
#include "lib/test_util.h"
#include "lib/web.h"
#include "shard/origin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#define WAIT_MS 60000u
#define TOKEN   "Authorization: Bearer open-sesame\r\n"
#define PART    "Range: bytes=0-99\r\n"

static char dir[PATH_MAX]; /* what is served */

static const char *in_dir(const char *name, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        fail_msg("path too long");
    return out;
}

/* m.gguf of six blocks, and z.gguf of 66 MB that take no room: more than sockets hold, so that a client can leave
 * before it is out. */
static void make_models(void)
{
    char from[PATH_MAX], path[PATH_MAX];
    struct maker_params mp = maker_small();
    struct buf b = {0};
    struct err e;
    if (io_read_file(test_data("llama-tied-f32.gguf", from), 1u << 24, &b, &e) != OK ||
        io_write_file(in_dir("m.gguf", path), b.data, b.len, 0644, &e) != OK)
        fail_msg("%s", e.msg);
    buf_free(&b);
    mp.n_embd = 512;
    mp.n_head = mp.n_head_kv = 8;
    mp.head_dim = 64;
    mp.n_ff = 2048;
    mp.n_block = 4;
    mp.holes = true;
    if (maker_write(in_dir("z.gguf", path), &mp, &e) != OK)
        fail_msg("%s", e.msg);
}

static struct origin *start(const char *log)
{
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    const struct origin_config c = {.dir = dir, .addr = "127.0.0.1:0", .token = "open-sesame", .access_log = log};
    struct origin_counts n = {0};
    struct origin *o;
    struct err e;
    if (origin_start(&c, &o, &e) != OK)
        fail_msg("%s", e.msg);
    for (; n.n_indexed < 2; usleep(1000)) {
        if (clock_now_ns() > deadline)
            fail_msg("%u of %u models have an index", n.n_indexed, n.n_models);
        origin_count(o, &n);
    }
    return o;
}

struct line {
    unsigned status;
    uint64_t body_bytes;       /* of 499: any */
    const char *path, *layers; /* NULL: none */
};

static void check_line(const char *text, const struct line *want)
{
    yyjson_doc *d = yyjson_read(text, strlen(text), 0);
    const char *path = yyjson_get_str(yyjson_doc_ptr_get(d, "/path"));
    const char *layers = yyjson_get_str(yyjson_doc_ptr_get(d, "/layers"));
    const char *peer = yyjson_get_str(yyjson_doc_ptr_get(d, "/peer"));
    const uint64_t sent = yyjson_get_uint(yyjson_doc_ptr_get(d, "/body_bytes"));
    assert_true(path && strcmp(path, want->path) == 0);
    assert_true(peer && strncmp(peer, "127.0.0.1:", 10) == 0);
    assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/status")), want->status);
    assert_true(want->status == 499 ? sent > 0 : sent == want->body_bytes);
    assert_true(want->layers ? layers && strcmp(layers, want->layers) == 0 : !layers);
    yyjson_doc_free(d);
}

static void test_a_line_for_each_request(void **state)
{
    static const struct {
        const char *method, *path, *headers;
        struct line line;
    } calls[] = {
        {"GET", "/models/m.gguf?token=plover", "Authorization: Bearer xyzzy\r\n", {401, 0, "/models/m.gguf", NULL}},
        {"GET", "/models/m.gguf?token=plover", TOKEN PART, {206, 100, "/models/m.gguf", NULL}},
        {"GET", "/models/m.gguf/stage?layers=1:4", TOKEN PART, {206, 100, "/models/m.gguf/stage", "1:4"}},
        {"HEAD", "/models/m.gguf/stage?layers=0:6", TOKEN, {200, 0, "/models/m.gguf/stage", "0:6"}},
        {"GET", "/models/x.gguf", TOKEN, {404, 0, "/models/x.gguf", NULL}},
        {"GET", "/health", NULL, {200, 0, "/health", NULL}},
        {"BREW", "/health", NULL, {501, 0, "", NULL}}, /* which was not understood */
        {"GET", "/models/z.gguf", TOKEN, {499, 0, "/models/z.gguf", NULL}},
    };
    const size_t n_calls = sizeof calls / sizeof *calls;
    char path[PATH_MAX];
    struct buf log = {0};
    struct err e;
    size_t n = 0;
    (void)state;
    make_models();
    struct origin *o = start(in_dir("log", path));
    for (size_t i = 0; i < n_calls; i++) {
        struct web w;
        assert_true(web_send(&w, origin_port(o), calls[i].method, calls[i].path, calls[i].headers, NULL));
        if (calls[i].line.status == 499) {
            assert_true(web_until(&w, "\r\n\r\nGGUF", WAIT_MS));
            web_drop(&w);
        } else {
            assert_true(web_end(&w, WAIT_MS));
            assert_int_equal(w.status, calls[i].line.status);
        }
        web_free(&w);
    }
    origin_stop(o);
    assert_int_equal(io_read_file(path, 1 << 20, &log, &e), OK);
    assert_null(strstr(buf_str(&log), "sesame"));
    assert_null(strstr(buf_str(&log), "xyzzy"));
    assert_null(strstr(buf_str(&log), "plover"));
    for (char *save, *line = strtok_r((char *)(uintptr_t)buf_str(&log), "\n", &save); line;
         line = strtok_r(NULL, "\n", &save), n++) {
        assert_true(n < n_calls);
        check_line(line, &calls[n].line);
    }
    assert_int_equal(n, n_calls);
    buf_free(&log);
}

static void test_a_log_that_cannot_be_written(void **state)
{
    const struct origin_config c = {.dir = dir, .addr = "127.0.0.1:0", .access_log = "/nowhere/at/all"};
    struct origin *o;
    struct err e;
    (void)state;
    assert_int_equal(origin_start(&c, &o, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "/nowhere/at/all"));
}

static int set_up(void **state)
{
    char home[PATH_MAX];
    struct err e;
    (void)state;
    setenv("KVASIR_HOME", test_scratch("origin-log-home", home), 1);
    return io_mkdirs(home, 0755, &e) != OK || io_mkdirs(test_scratch("origin-log", dir), 0755, &e) != OK;
}

static int tear_down(void **state)
{
    char home[PATH_MAX];
    (void)state;
    test_remove_tree(dir);
    test_remove_tree(test_scratch("origin-log-home", home));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line_for_each_request),
        cmocka_unit_test(test_a_log_that_cannot_be_written),
    };
    alarm(280);
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("the origin's log", tests, set_up, tear_down);
}
