/* SPDX-License-Identifier: MIT
 *
 * How much memory a pull needs: at most 64 MiB, over however many connections and however large the tensors are. The
 * program starts itself again to pull ("--pull URL OUT CONNECTIONS"); the child writes its peak to its stdout.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/proc.h"
#include "lib/pull_rig.h"
#include "lib/test_util.h"
#include "shard/pull.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALLOWED_KIB (64ul << 10)
#define WAIT_MS     120000u

static struct pull_rig rig;

/* --- the child --- */

static unsigned long peak_kib(void)
{
    char line[256];
    unsigned long n = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && n == 0 && fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            n = strtoul(line + 6, NULL, 10);
    if (f)
        fclose(f);
    return n;
}

static int child_main(char **argv)
{
    const char *const urls[] = {argv[2]};
    const struct remote_config c = {.urls = urls, .n_urls = 1};
    const struct pull_request q = {.out = argv[3], .n_connections = (uint32_t)strtoul(argv[4], NULL, 10)};
    struct remote *r = NULL;
    struct pull_result x;
    struct err e;
    enum err_code rc = remote_open(&c, &r, &e);
    if (rc == OK)
        rc = pull_window(r, &q, &x, &e);
    remote_close(r);
    if (rc != OK) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    printf("verified %d peak %lu\n", x.verified, peak_kib());
    return 0;
}

/* --- the test --- */

static int group_setup(void **state)
{
    *state = &rig;
    struct maker_params p = maker_small();
    p.n_block = 22; /* 66 tensors of 4.5 MB: a request each, and all connections have one */
    p.n_embd = 1024;
    p.n_ff = 1100;
    p.holes = true;
    rig_start(&rig, "pull_memory.gguf", &p);
    return 0;
}

static void check_peak(const char *n_connections)
{
    char self[PATH_MAX] = "";
    struct proc p;
    assert_non_null(realpath("/proc/self/exe", self));
    const char *const argv[] = {self, "--pull", rig.url[0], rig.out, n_connections, NULL};
    assert_true(proc_start(&p, argv, NULL, -1));
    if (!proc_wait(&p, WAIT_MS) || proc_code(&p) != 0)
        fail_msg("exit status %d: %s", proc_code(&p), proc_text(&p, PROC_ERR));
    const char *const text = proc_text(&p, PROC_OUT);
    assert_int_equal(strncmp(text, "verified 1 peak ", 16), 0);
    assert_in_range(strtoul(text + 16, NULL, 10), 1, ALLOWED_KIB);
    proc_free(&p);
}

static void test_few_connections(void **state)
{
    (void)state;
    check_peak("4");
}

static void test_many_connections(void **state)
{
    (void)state;
    check_peak("64");
}

int main(int argc, char **argv)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    if (argc == 5 && strcmp(argv[1], "--pull") == 0)
        return child_main(argv);
    if (test_sanitized()) {
        puts("skipped: a sanitizer's memory says nothing");
        return TEST_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_few_connections, rig_setup),
        cmocka_unit_test_setup(test_many_connections, rig_setup),
    };
    return cmocka_run_group_tests(tests, group_setup, rig_teardown);
}
