/* SPDX-License-Identifier: MIT
 *
 * The command cache as a process: what it prints, what it removes, what it refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "lib/maker.h"
#include "lib/proc.h"
#include "lib/test_util.h"
#include "shard/cache_impl.h"
#include "shard/origin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <yyjson.h>

static char home[PATH_MAX], models[PATH_MAX], shards[PATH_MAX], id[2][DIGEST_HEX_SIZE];
static struct origin *origin;
static struct remote *r[2]; /* two models, of 6 blocks each */

static void make(int i, const char *name)
{
    struct maker_params p = maker_small();
    char path[PATH_MAX + 16], url[64];
    const char *urls[] = {url};
    const struct remote_config c = {.urls = urls, .n_urls = 1};
    struct err e;
    if (i == 0) { /* the origin needs a model */
        const struct origin_config o = {.dir = models, .addr = "127.0.0.1:0"};
        if (origin_start(&o, &origin, &e) != OK)
            fail_msg("%s", e.msg);
    }
    p.seed += (uint64_t)i;
    p.name = name;
    snprintf(path, sizeof path, "%s/%d.gguf", models, i);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/models/%d.gguf", origin_port(origin), i);
    if (maker_write(path, &p, &e) != OK)
        fail_msg("%s", e.msg);
    const uint64_t deadline = clock_deadline_ms(60000);
    while (remote_open(&c, &r[i], &e) != OK) { /* it looks into its folder once a second */
        if (e.code != ERR_NOT_FOUND || clock_now_ns() > deadline)
            fail_msg("%s", e.msg);
        usleep(20000);
    }
    digest_hex(remote_index(r[i])->model_id, id[i]);
}

static int group_setup(void **state)
{
    (void)state;
    struct err e;
    setenv("KVASIR_HOME", test_scratch("cli_cache", home), 1);
    snprintf(shards, sizeof shards, "%.*s/shards", PATH_MAX - 16, home);
    test_scratch("cli_cache_models", models);
    if (io_mkdirs(models, 0700, &e) != OK)
        fail_msg("%s", e.msg);
    make(0, "Sleipnir");
    make(1, "a\"b\\\x1b[31m");
    return 0;
}

static int group_teardown(void **state)
{
    (void)state;
    remote_close(r[0]);
    remote_close(r[1]);
    origin_stop(origin);
    test_remove_tree(home);
    test_remove_tree(models);
    return 0;
}

static void put(int i, uint32_t first, uint32_t end)
{
    const struct pull_request q = {.first = first, .end = end};
    struct pull_result x;
    struct err e;
    char path[PATH_MAX];
    if (cache_pull(r[i], &q, path, &x, &e) != OK)
        fail_msg("%s", e.msg);
}

static struct cache_key key(int i, uint32_t first, uint32_t end)
{
    struct cache_key k = {.first = first, .end = end};
    memcpy(k.model_id, remote_index(r[i])->model_id, DIGEST_BYTES);
    return k;
}

/* [0,2) and [2,4) of the first model, [0,2) of the second, and a partial [4,6) of the first. */
static int setup(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    if (access(shards, F_OK) == 0)
        test_remove_tree(shards);
    put(0, 0, 2);
    put(0, 2, 4);
    put(1, 0, 2);
    const struct cache_key k = key(0, 4, 6);
    if (cache_path(&k, CACHE_PARTIAL, path, &e) != OK || io_write_file(path, "12345", 5, 0600, &e) != OK)
        fail_msg("%s", e.msg);
    return 0;
}

/* kvasir cache ARGS...; the exit status. */
static int run(struct proc *p, const char *const *args)
{
    const char *argv[PROC_MAX_ARGS] = {KV_BINARY, "cache"};
    int n = 2;
    for (int i = 0; args[i]; i++)
        argv[n++] = args[i];
    argv[n] = NULL;
    assert_true(proc_start(p, argv, NULL, -1));
    assert_true(proc_wait(p, 60000));
    return proc_code(p);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void must(const char *const *args, const char *says)
{
    struct proc p;
    if (run(&p, args) != 0 || !strstr(proc_text(&p, PROC_OUT), says))
        fail_msg("not 0 with '%s': %d: %s%s", says, proc_code(&p), proc_text(&p, PROC_OUT), proc_text(&p, PROC_ERR));
    proc_free(&p);
}

static void fails(const char *const *args, int status, const char *says)
{
    struct proc p;
    if (run(&p, args) != status || !strstr(proc_text(&p, PROC_ERR), says))
        fail_msg("not %d with '%s': %d: %s", status, says, proc_code(&p), proc_text(&p, PROC_ERR));
    proc_free(&p);
}

static size_t n_files(void)
{
    struct cache_item *items = NULL;
    size_t n = 0;
    struct err e;
    assert_int_equal(cache_list(&items, &n, &e), OK);
    free(items);
    return n;
}

static void test_ls(void **state)
{
    (void)state;
    struct proc p;
    char prefix[16];
    assert_int_equal(run(&p, ARGS("ls")), 0);
    const char *text = proc_text(&p, PROC_OUT);
    snprintf(prefix, sizeof prefix, "%.12s  ", id[0]);
    assert_int_equal(proc_lines(&p, PROC_OUT, prefix), 3);
    assert_non_null(strstr(text, "Sleipnir"));
    assert_non_null(strstr(text, "[2,4)"));
    assert_non_null(strstr(text, "5B"));
    assert_non_null(strstr(text, ", partial"));
    assert_non_null(strstr(text, "4 files, "));
    assert_non_null(strstr(text, shards));
    assert_null(strchr(text, 0x1b)); /* a name is no way to the terminal */
    proc_free(&p);
    test_remove_tree(shards);
    must(ARGS("ls"), "0 files, 0B in ");
}

static void test_ls_json(void **state)
{
    (void)state;
    struct proc p;
    assert_int_equal(run(&p, ARGS("ls", "--json")), 0);
    yyjson_doc *d = yyjson_read(proc_text(&p, PROC_OUT), strlen(proc_text(&p, PROC_OUT)), 0);
    yyjson_val *root = yyjson_doc_get_root(d), *files = yyjson_obj_get(root, "files"), *x;
    size_t i, n;
    uint64_t sum = 0;
    assert_int_equal(yyjson_arr_size(files), 4);
    yyjson_arr_foreach(files, i, n, x)
    {
        struct stat st;
        const bool partial = yyjson_get_bool(yyjson_obj_get(x, "partial"));
        const char *model = yyjson_get_str(yyjson_obj_get(x, "model_id"));
        const int k = strcmp(model, id[0]) == 0 ? 0 : 1;
        assert_string_equal(model, id[k]);
        assert_string_equal(yyjson_get_str(yyjson_obj_get(x, "name")), k == 0 ? "Sleipnir" : "a\"b\\?[31m");
        assert_int_equal(stat(yyjson_get_str(yyjson_obj_get(x, "path")), &st), 0);
        assert_int_equal(yyjson_get_uint(yyjson_obj_get(x, "size")), st.st_size);
        assert_in_range(yyjson_get_sint(yyjson_obj_get(x, "used")), time(NULL) - 600, time(NULL) + 1);
        assert_int_equal(partial, yyjson_get_uint(yyjson_obj_get(x, "first")) == 4);
        assert_int_equal(yyjson_get_uint(yyjson_obj_get(x, "end")), yyjson_get_uint(yyjson_obj_get(x, "first")) + 2);
        sum += (uint64_t)st.st_size;
    }
    assert_int_equal(yyjson_get_uint(yyjson_obj_get(root, "bytes")), sum);
    assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "dir")), shards);
    yyjson_doc_free(d);
    proc_free(&p);
}

static void test_rm(void **state)
{
    (void)state;
    char prefix[9], line[64];
    snprintf(prefix, sizeof prefix, "%.8s", id[0]);
    snprintf(line, sizeof line, "removed %.12s Sleipnir [2,4), ", id[0]);
    must(ARGS("rm", prefix, "--layers", "2:4"), line);
    assert_int_equal(n_files(), 3);
    fails(ARGS("rm", prefix, "--layers", "2:4"), 1, "and blocks 2:4");
    must(ARGS("rm", id[0]), "[4,6), 5B"); /* partial ones, too */
    assert_int_equal(n_files(), 1);
    fails(ARGS("rm", prefix), 1, "nothing of a model whose id begins with");
    must(ARGS("rm", "--all"), "removed ");
    assert_int_equal(n_files(), 0);
    must(ARGS("rm", "--all"), "");
}

static void test_rm_of_what_is_being_pulled(void **state)
{
    (void)state;
    const struct cache_key k = key(0, 0, 2);
    struct err e;
    int fd;
    assert_int_equal(cache_lock(&k, &fd, &e), OK);
    fails(ARGS("rm", "--all"), 1, "ERR_BUSY");
    assert_int_equal(n_files(), 1); /* the others went */
    fails(ARGS("gc", "--max", "1k"), 0, "what is being pulled is not removed");
    cache_unlock(&k, fd);
    must(ARGS("rm", "--all"), "[0,2)");
}

static void test_rm_asks_for_one_model(void **state)
{
    (void)state;
    struct cache_key k = key(0, 0, 1);
    char path[PATH_MAX], prefix[9];
    struct err e;
    int fd;
    k.model_id[DIGEST_BYTES - 1] ^= 1;
    assert_int_equal(cache_lock(&k, &fd, &e), OK);
    assert_int_equal(cache_path(&k, CACHE_WHOLE, path, &e), OK);
    assert_int_equal(io_write_file(path, "x", 1, 0600, &e), OK);
    cache_unlock(&k, fd);
    snprintf(prefix, sizeof prefix, "%.8s", id[0]);
    fails(ARGS("rm", prefix), 1, "several models");
    assert_int_equal(n_files(), 5);
    must(ARGS("rm", id[0]), "removed ");
    assert_int_equal(n_files(), 2);
}

static void test_gc(void **state)
{
    (void)state;
    must(ARGS("gc"), "removed 0 files, 0B; ");
    must(ARGS("gc", "--max", "1G", "--partial-age", "0"), "removed 1 file, 5B; ");
    assert_int_equal(n_files(), 3);
    must(ARGS("gc", "--max", "0"), "removed 3 files, ");
    assert_int_equal(n_files(), 0);
}

static void test_usage(void **state)
{
    (void)state;
    static const struct {
        const char *args[5], *says;
    } cases[] = {
        {{NULL}, "ls, rm or gc"},
        {{"purge"}, "not 'purge'"},
        {{"ls", "0123456789"}, "for rm"},
        {{"ls", "--all"}, "for rm"},
        {{"gc", "--layers", "0:2"}, "for rm"},
        {{"ls", "--max", "1G"}, "for gc"},
        {{"rm", "0123456789", "--max", "1G"}, "for gc"},
        {{"rm", "--all", "--partial-age", "7"}, "for gc"},
        {{"gc", "--json"}, "for ls"},
        {{"rm"}, "--all"},
        {{"rm", "0123456789", "--all"}, "--all"},
        {{"rm", "--all", "--layers", "0:2"}, "--layers"},
        {{"rm", "012"}, "4 digits"},
        {{"rm", "Sleipnir"}, "beginning of a model id"},
        {{"rm", "0123456789", "--layers", "2"}, "--layers: "},
        {{"gc", "--max", "1X"}, "--max: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        fails(cases[i].args, 2, cases[i].says);
    assert_int_equal(n_files(), 4);
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_ls, setup),
        cmocka_unit_test_setup(test_ls_json, setup),
        cmocka_unit_test_setup(test_rm, setup),
        cmocka_unit_test_setup(test_rm_of_what_is_being_pulled, setup),
        cmocka_unit_test_setup(test_rm_asks_for_one_model, setup),
        cmocka_unit_test_setup(test_gc, setup),
        cmocka_unit_test_setup(test_usage, setup),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
