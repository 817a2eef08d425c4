/* SPDX-License-Identifier: MIT
 *
 * The cache's files: their names, and locks under a race.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/thread.h"
#include "lib/test_util.h"
#include "shard/cache_impl.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RACE_MS 10000u /* a slow machine locks less often */

static char home[PATH_MAX];

static int group_setup(void **state)
{
    (void)state;
    return setenv("KVASIR_HOME", test_scratch("cache_files", home), 1);
}

static int group_teardown(void **state)
{
    (void)state;
    test_remove_tree(home);
    return 0;
}

static const struct cache_key window = {.model_id = {1, 2, 3}, .first = 1, .end = 2};

static const char *lock_path(char out[PATH_MAX])
{
    assert_int_equal(cache_path(&window, CACHE_LOCK, out, NULL), OK);
    return out;
}

static void test_names(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "0-2",
                                        "0-2.ggu",
                                        "0-2.gguf.",
                                        "0-2.gguf.bad",
                                        "00-2.gguf",
                                        "0-02.gguf",
                                        "2-2.gguf",
                                        "3-2.gguf",
                                        "0-1025.gguf",
                                        "-2.gguf",
                                        "0-.gguf",
                                        "+0-2.gguf",
                                        " 0-2.gguf",
                                        "0-2 .gguf",
                                        "0:2.gguf",
                                        "0-99999999999.gguf",
                                        "0-4294967298.gguf",
                                        "../0-2.gguf",
                                        "0-2.GGUF"};
    static const struct {
        const char *name;
        uint32_t first, end;
        enum cache_kind kind;
    } right[] = {{"0-2.gguf", 0, 2, CACHE_WHOLE},
                 {"7-1024.gguf.part", 7, 1024, CACHE_PARTIAL},
                 {"10-20.gguf.part.journal", 10, 20, CACHE_JOURNAL},
                 {"9-10.gguf.lock", 9, 10, CACHE_LOCK}};
    struct cache_key k;
    enum cache_kind kind;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (cache_name_read(wrong[i], &k, &kind))
            fail_msg("'%s' was taken", wrong[i]);
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        assert_true(cache_name_read(right[i].name, &k, &kind));
        assert_int_equal(k.first, right[i].first);
        assert_int_equal(k.end, right[i].end);
        assert_int_equal(kind, right[i].kind);
    }
}

static void test_locks(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    int a, b;
    assert_int_equal(cache_lock(&window, &a, &e), OK);
    assert_int_equal(cache_lock(&window, &b, &e), ERR_BUSY);
    unlink(lock_path(path)); /* a lock nobody else can see is none */
    assert_int_equal(cache_lock(&window, &b, &e), OK);
    close(a);
    assert_int_equal(cache_lock(&window, &a, &e), ERR_BUSY);
    cache_unlock(&window, b);
    assert_int_equal(cache_lock(&window, &a, &e), OK);
    cache_unlock(&window, a);
    *strrchr(path, '/') = 0;
    assert_int_equal(access(path, F_OK), -1); /* nothing is left of them */
}

/* Each unlocking removes lock file and folder, while others open and make them. */
struct locking {
    atomic_int n_holders, n_wrong, n_locked;
    uint64_t deadline;
};

static void *lock_often(void *arg)
{
    struct locking *l = arg;
    while (atomic_load(&l->n_locked) < 1000 && clock_now_ns() < l->deadline) {
        struct err e;
        int fd;
        const enum err_code rc = cache_lock(&window, &fd, &e);
        if (rc == ERR_BUSY) {
            sched_yield();
            continue;
        }
        if (rc != OK || atomic_fetch_add(&l->n_holders, 1) != 0)
            atomic_fetch_add(&l->n_wrong, 1);
        if (rc != OK)
            break;
        usleep(20); /* so that others open it now */
        atomic_fetch_sub(&l->n_holders, 1);
        cache_unlock(&window, fd);
        atomic_fetch_add(&l->n_locked, 1);
    }
    return NULL;
}

static void test_one_holder_of_a_lock_that_comes_and_goes(void **state)
{
    (void)state;
    char path[PATH_MAX];
    pthread_t threads[3];
    struct err e;
    struct locking l = {.deadline = clock_deadline_ms(RACE_MS)};
    for (int i = 0; i < 3; i++)
        assert_int_equal(thread_start(&threads[i], "lock", lock_often, &l, &e), OK);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_true(atomic_load(&l.n_locked) > 0);
    assert_int_equal(atomic_load(&l.n_wrong), 0);
    assert_int_equal(access(lock_path(path), F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_locks),
        cmocka_unit_test(test_one_holder_of_a_lock_that_comes_and_goes),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
