/* SPDX-License-Identifier: MIT
 *
 * The cache of stage files: what is there is not fetched again, by nobody; what is not what it should be is not used;
 * several processes at once. Other processes are this program, started again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "lib/bad_httpd.h"
#include "lib/maker.h"
#include "lib/proc.h"
#include "lib/test_util.h"
#include "model/slice.h"
#include "shard/cache_impl.h"
#include "shard/origin.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS   60000u
#define SLOW_RATE (2u << 20) /* bytes a second of a pull that something is to happen in */
#define IDLE_RATE (1u << 19) /* ... and that does not come to its end */

static char home[PATH_MAX], models[PATH_MAX], shards[PATH_MAX], model[PATH_MAX], self[PATH_MAX], url[64];
static struct origin *origin;
static struct remote *r;

static const char *join(const char *parent, const char *name, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", parent, name) >= PATH_MAX)
        fail_msg("path too long");
    return out;
}

static struct remote *must_open(const char *at)
{
    const struct remote_config c = {.urls = &at, .n_urls = 1};
    struct remote *x = NULL;
    struct err e;
    if (remote_open(&c, &x, &e) != OK)
        fail_msg("%s", e.msg);
    return x;
}

static int group_setup(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct err e;
    p.n_embd = 256;
    p.head_dim = 64;
    p.n_ff = 512; /* six blocks of 2.3 MB */
    setenv("KVASIR_HOME", test_scratch("cache", home), 1);
    join(home, "shards", shards);
    test_scratch("cache_models", models);
    if (io_mkdirs(home, 0700, &e) != OK || io_mkdirs(models, 0700, &e) != OK ||
        maker_write(join(models, "m.gguf", model), &p, &e) != OK)
        fail_msg("%s", e.msg);
    const struct origin_config c = {.dir = models, .addr = "127.0.0.1:0"};
    if (origin_start(&c, &origin, &e) != OK)
        fail_msg("%s", e.msg);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/models/m.gguf", origin_port(origin));
    r = must_open(url);
    assert_non_null(remote_index(r));
    return 0;
}

static int group_teardown(void **state)
{
    (void)state;
    remote_close(r);
    origin_stop(origin);
    test_remove_tree(home);
    test_remove_tree(models);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    if (access(shards, F_OK) == 0)
        test_remove_tree(shards);
    return 0;
}

/* --- helpers --- */

static struct cache_key key(uint32_t first, uint32_t end)
{
    struct cache_key k = {.first = first, .end = end};
    memcpy(k.model_id, remote_index(r)->model_id, DIGEST_BYTES);
    return k;
}

/* Where a window lies, or what is beside it. */
static const char *place(uint32_t first, uint32_t end, enum cache_kind kind, char out[PATH_MAX])
{
    const struct cache_key k = key(first, end);
    assert_int_equal(cache_path(&k, kind, out, NULL), OK);
    return out;
}

static bool is_there(uint32_t first, uint32_t end, enum cache_kind kind)
{
    char path[PATH_MAX];
    return access(place(first, end, kind, path), F_OK) == 0;
}

/* The file is the stage file of the window: every tensor is digested. */
static void check_file(const char *path, uint32_t first, uint32_t end)
{
    struct gguf *g;
    struct slice_label l;
    struct err e;
    uint8_t id[DIGEST_BYTES];
    if (gguf_open(path, &g, &e) != OK || slice_label_read(g, &l, &e) != OK ||
        slice_model_id(g, NULL, NULL, id, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(l.first, first);
    assert_int_equal(l.end, end);
    assert_memory_equal(id, remote_index(r)->model_id, DIGEST_BYTES);
    gguf_close(g);
}

static struct pull_result must_pull(uint32_t first, uint32_t end, char path[PATH_MAX])
{
    const struct pull_request q = {.first = first, .end = end};
    struct pull_result x;
    struct err e;
    memset(&x, 0xff, sizeof x);
    if (cache_pull(r, &q, path, &x, &e) != OK)
        fail_msg("%s", e.msg);
    return x;
}

/* Pulls it and sees that it is the file of exactly this window. */
static uint64_t put(uint32_t first, uint32_t end)
{
    char path[PATH_MAX], want[PATH_MAX];
    const struct pull_result x = must_pull(first, end, path);
    assert_string_equal(path, place(first, end, CACHE_WHOLE, want));
    assert_true(x.verified);
    return x.size;
}

static uint64_t n_served(void)
{
    struct origin_counts c;
    origin_count(origin, &c);
    return c.n_requests;
}

static enum err_code find(uint32_t first, uint32_t end, char path[PATH_MAX])
{
    struct err e;
    return cache_find(remote_index(r)->model_id, first, end, path, &e);
}

static struct cache_item *list(size_t *n)
{
    struct cache_item *items = NULL;
    struct err e;
    if (cache_list(&items, n, &e) != OK)
        fail_msg("%s", e.msg);
    return items;
}

/* What there is of the window. */
static struct cache_item item(uint32_t first, uint32_t end, bool partial)
{
    size_t n;
    struct cache_item *items = list(&n), got = {0};
    for (size_t i = 0; i < n; i++)
        if (items[i].first == first && items[i].end == end && items[i].partial == partial)
            got = items[i];
    free(items);
    assert_int_equal(got.end, end);
    return got;
}

static void set_used(uint32_t first, uint32_t end, enum cache_kind kind, time_t at)
{
    char path[PATH_MAX];
    const struct timespec t[2] = {{.tv_sec = at}, {.tv_sec = at}};
    assert_int_equal(utimensat(AT_FDCWD, place(first, end, kind, path), t, 0), 0);
}

static void flip(const char *path, uint64_t at)
{
    uint8_t byte = 0;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void write_text(const char *path, const char *text)
{
    struct err e;
    if (io_write_file(path, text, strlen(text), 0600, &e) != OK)
        fail_msg("%s", e.msg);
}

/* --- other processes --- */

/* The program as a process that pulls: URL FIRST END RATE. Prints how many bytes came from the network. */
static int child_main(char **argv)
{
    const char *urls[] = {argv[2]};
    const struct remote_config c = {.urls = urls, .n_urls = 1};
    const struct pull_request q = {.first = (uint32_t)strtoul(argv[3], NULL, 10),
                                   .end = (uint32_t)strtoul(argv[4], NULL, 10),
                                   .rate = strtoull(argv[5], NULL, 10)};
    struct remote *x = NULL;
    struct pull_result result;
    struct err e;
    char path[PATH_MAX];
    enum err_code rc = remote_open(&c, &x, &e);
    if (rc == OK)
        rc = cache_pull(x, &q, path, &result, &e);
    remote_close(x);
    if (rc != OK) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    printf("received %llu\n%s\n", (unsigned long long)result.received_bytes, path);
    return 0;
}

static void start_child(struct proc *p, uint32_t first, uint32_t end, uint32_t rate)
{
    char a[16], b[16], c[16];
    snprintf(a, sizeof a, "%u", first);
    snprintf(b, sizeof b, "%u", end);
    snprintf(c, sizeof c, "%u", rate);
    const char *const argv[] = {self, "pull", url, a, b, c, NULL};
    assert_true(proc_start(p, argv, NULL, -1));
}

/* Until that much of the window has come. */
static void wait_part(uint32_t first, uint32_t end, uint64_t bytes)
{
    char path[PATH_MAX];
    struct stat st;
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    place(first, end, CACHE_PARTIAL, path);
    while (stat(path, &st) != 0 || cache_come(&st) < bytes) {
        assert_true(clock_now_ns() < deadline);
        usleep(2000);
    }
}

static void must_end(struct proc *p)
{
    if (!proc_wait(p, WAIT_MS) || proc_code(p) != 0)
        fail_msg("exit status %d: %s", proc_code(p), proc_text(p, PROC_ERR));
}

/* --- names --- */

static void test_strange_files_are_left_alone(void **state)
{
    (void)state;
    char own[PATH_MAX], upper[PATH_MAX], path[PATH_MAX], text[DIGEST_HEX_SIZE];
    struct cache_item *items;
    size_t n, removed;
    uint64_t bytes;
    struct err e;
    digest_hex(remote_index(r)->model_id, text);
    assert_int_equal(io_mkdirs(join(shards, text, own), 0700, &e), OK);
    memset(text, 'A', sizeof text - 1);
    assert_int_equal(io_mkdirs(join(shards, text, upper), 0700, &e), OK);
    assert_int_equal(symlink(model, join(own, "0-2.gguf", path)), 0);
    assert_int_equal(
        symlink(own, join(shards, "0000000000000000000000000000000000000000000000000000000000000000", path)), 0);
    assert_int_equal(mkdir(join(own, "1-2.gguf", path), 0700), 0);
    assert_int_equal(mkfifo(join(own, "2-3.gguf", path), 0600), 0);
    write_text(join(own, "00-6.gguf", path), "x");
    write_text(join(own, "notes.txt", path), "x");
    write_text(join(upper, "0-6.gguf", path), "x");
    write_text(join(shards, "0-6.gguf", path), "x");
    items = list(&n);
    assert_int_equal(n, 0);
    free(items);
    assert_int_equal(find(0, 2, path), ERR_NOT_FOUND);
    assert_int_equal(cache_gc(0, 0, &removed, &bytes, &e), OK);
    assert_int_equal(removed, 0);
    assert_int_equal(access(join(own, "notes.txt", path), F_OK), 0);
    assert_int_equal(access(join(upper, "0-6.gguf", path), F_OK), 0);
    assert_int_equal(access(join(own, "0-2.gguf", path), F_OK), 0);
}

/* --- finding --- */

static void test_pulled_once(void **state)
{
    (void)state;
    char path[PATH_MAX], again[PATH_MAX];
    struct err e;
    assert_int_equal(find(1, 3, path), ERR_NOT_FOUND);
    const struct pull_result x = must_pull(1, 3, path);
    assert_true(x.received_bytes > 4000000);
    check_file(path, 1, 3);
    const uint64_t before = n_served();
    const struct pull_result y = must_pull(1, 3, again);
    assert_string_equal(path, again);
    assert_int_equal(y.size + y.received_bytes + y.n_requests, 0);
    assert_int_equal(n_served(), before);
    assert_int_equal(cache_find(remote_index(r)->model_id, 1, 1, path, &e), ERR_ARG);
}

static void test_larger_window_needs_no_network(void **state)
{
    (void)state;
    char path[PATH_MAX], want[PATH_MAX];
    put(1, 4);
    put(0, 6);
    const uint64_t before = n_served();
    place(1, 4, CACHE_WHOLE, want);
    assert_int_equal(find(2, 3, path), OK);
    assert_string_equal(path, want); /* the smaller one */
    must_pull(1, 3, path);
    assert_string_equal(path, want);
    assert_int_equal(find(0, 4, path), OK);
    assert_string_equal(path, place(0, 6, CACHE_WHOLE, want));
    assert_int_equal(n_served(), before);
}

static void test_whole_model(void **state)
{
    (void)state;
    char path[PATH_MAX], want[PATH_MAX];
    must_pull(0, 0, path);
    assert_string_equal(path, place(0, 6, CACHE_WHOLE, want));
    check_file(path, 0, 6);
}

static void test_neighbours_give_what_they_have(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint64_t missing = 0, held = 0;
    put(0, 2);
    put(4, 6);
    for (size_t i = 0; i < gguf_n_tensors(remote_gguf(r)); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(remote_gguf(r), i);
        missing += t->block == 2 || t->block == 3 ? t->size : 0;
        held += t->block == 1 || t->block == 4 ? t->size : 0;
    }
    struct origin_counts before, after;
    origin_count(origin, &before);
    const struct pull_result x = must_pull(1, 5, path);
    origin_count(origin, &after);
    assert_int_equal(x.local_bytes, held);
    assert_in_range(after.body_bytes - before.body_bytes, missing, missing + (64u << 10));
    check_file(path, 1, 5);
}

static void test_neighbours_alone_can_be_enough(void **state)
{
    (void)state;
    char path[PATH_MAX];
    put(0, 3);
    put(2, 6);
    const uint64_t before = n_served();
    const struct pull_result x = must_pull(1, 5, path);
    assert_int_equal(x.received_bytes, 0);
    assert_int_equal(n_served(), before);
    check_file(path, 1, 5);
}

static void test_files_of_the_caller_are_looked_into(void **state)
{
    (void)state;
    char path[PATH_MAX];
    const char *const local[] = {model};
    const struct pull_request q = {.first = 1, .end = 3, .local = local, .n_local = 1};
    struct pull_result x;
    struct err e;
    const uint64_t before = n_served();
    assert_int_equal(cache_pull(r, &q, path, &x, &e), OK);
    assert_int_equal(n_served(), before);
    assert_true(x.local_bytes > 4000000);
    check_file(path, 1, 3);
}

/* --- what is refused --- */

static void expect(struct remote *x, const struct pull_request *q, enum err_code code, const char *in_text)
{
    struct pull_result result;
    struct err e = {0};
    char path[PATH_MAX];
    if (cache_pull(x, q, path, &result, &e) != code || !strstr(e.msg, in_text))
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), in_text, err_name(e.code), e.msg);
}

static void test_requests_that_cannot_be(void **state)
{
    (void)state;
    uint8_t other[DIGEST_BYTES] = {1};
    expect(r, &(struct pull_request){.end = 2, .model_id = other}, ERR_MISMATCH, "another");
    expect(r, &(struct pull_request){.first = 3, .end = 3}, ERR_RANGE, "[3,3)");
    expect(r, &(struct pull_request){.first = 3, .end = 7}, ERR_RANGE, "6 blocks");
    assert_int_equal(access(shards, F_OK), -1);
}

static void test_nothing_without_an_index(void **state)
{
    (void)state;
    struct buf text = {0};
    struct err e;
    char at[64];
    struct bad_httpd *s = bad_start();
    assert_int_equal(io_read_file(model, 1u << 30, &text, &e), OK);
    bad_file(s, "/m.gguf", text.data, text.len, "\"one\"");
    snprintf(at, sizeof at, "http://127.0.0.1:%u/m.gguf", bad_port(s));
    struct remote *x = must_open(at);
    expect(x, &(struct pull_request){.end = 2}, ERR_LIMIT, "no index");
    remote_close(x);
    bad_stop(s);
    buf_free(&text);
}

static void test_folder_that_cannot_be_written(void **state)
{
    (void)state;
    char path[PATH_MAX], dir[PATH_MAX];
    put(1, 3);
    snprintf(dir, sizeof dir, "%s", place(1, 3, CACHE_WHOLE, path));
    *strrchr(dir, '/') = 0;
    const char *const at[] = {home, shards, dir};
    for (int i = 0; i < 3; i++)
        assert_int_equal(chmod(at[i], 0755), 0);
    setfsuid(65534); /* for root nothing is read-only */
    const enum err_code rc = find(1, 3, path);
    expect(r, &(struct pull_request){.first = 0, .end = 2}, ERR_IO, "cannot create");
    setfsuid(getuid());
    assert_int_equal(rc, getuid() == 0 ? OK : rc);
    for (int i = 0; i < 3; i++)
        assert_int_equal(chmod(at[i], 0700), 0);
}

/* --- files that are wrong --- */

/* It is neither found nor left there, and pulled again. */
static void check_replaced(uint32_t first, uint32_t end)
{
    char path[PATH_MAX];
    assert_int_equal(find(first, end, path), ERR_NOT_FOUND);
    assert_false(is_there(first, end, CACHE_WHOLE));
    assert_false(is_there(first, end, CACHE_LOCK));
    assert_true(must_pull(first, end, path).received_bytes > 0);
    check_file(path, first, end);
}

static void test_cut_files(void **state)
{
    (void)state;
    char path[PATH_MAX];
    const off_t size = (off_t)put(1, 2), lengths[] = {0, 1, 3000, size / 2, size - 1, size + 1, size + 32};
    place(1, 2, CACHE_WHOLE, path);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        assert_int_equal(truncate(path, lengths[i]), 0);
        check_replaced(1, 2);
    }
}

static void test_altered_headers(void **state)
{
    (void)state;
    char path[PATH_MAX];
    put(1, 2);
    place(1, 2, CACHE_WHOLE, path);
    struct gguf *g;
    struct err e;
    assert_int_equal(gguf_open(path, &g, &e), OK);
    const uint64_t head = gguf_tensor_at(g, 0)->offset;
    gguf_close(g);
    for (uint64_t at = 4; at < 24; at += 3) { /* version and counts */
        flip(path, at);
        check_replaced(1, 2);
    }
    for (uint64_t at = 0; at < head; at += head / 12) {
        flip(path, at);
        check_replaced(1, 2);
    }
    flip(path, head - 40); /* among the places of tensors */
    check_replaced(1, 2);
}

static void test_files_with_the_wrong_name(void **state)
{
    (void)state;
    char from[PATH_MAX], to[PATH_MAX], found[PATH_MAX];
    put(1, 2);
    place(1, 2, CACHE_WHOLE, from);
    assert_int_equal(rename(from, place(2, 3, CACHE_WHOLE, to)), 0);
    check_replaced(2, 3);
    struct cache_key other = key(2, 3);
    other.model_id[0] ^= 1;
    struct err e;
    int fd;
    assert_int_equal(cache_lock(&other, &fd, &e), OK); /* makes the folder */
    assert_int_equal(cache_path(&other, CACHE_WHOLE, from, &e), OK);
    assert_int_equal(rename(to, from), 0);
    cache_unlock(&other, fd);
    assert_int_equal(cache_find(other.model_id, 2, 3, found, &e), ERR_NOT_FOUND);
    assert_int_equal(access(from, F_OK), -1);
    *strrchr(from, '/') = 0;
    assert_int_equal(access(from, F_OK), -1); /* nor is its folder */
}

static void test_altered_tensors_are_not_taken_over(void **state)
{
    (void)state;
    char path[PATH_MAX];
    const uint64_t size = put(1, 3);
    flip(place(1, 3, CACHE_WHOLE, path), size / 2);
    flip(path, size - 5000);
    const struct pull_result x = must_pull(1, 4, path);
    assert_true(x.local_bytes > 1000000);
    check_file(path, 1, 4);
}

static void test_rejected_files_go(void **state)
{
    (void)state;
    char path[PATH_MAX], found[PATH_MAX];
    struct err e;
    put(1, 3);
    place(1, 3, CACHE_WHOLE, path);
    const char *const others[] = {model, "1-3.gguf", "", "/", strrchr(path, '/'), place(1, 3, CACHE_LOCK, found)};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_equal(cache_reject(others[i], "a test", &e), ERR_ARG);
    assert_int_equal(find(1, 3, found), OK);
    assert_int_equal(cache_reject(path, "a test", &e), OK);
    assert_int_equal(find(1, 3, found), ERR_NOT_FOUND);
    assert_int_equal(cache_reject(path, "a test", &e), OK);
}

/* --- several processes --- */

static void test_three_want_the_same(void **state)
{
    (void)state;
    struct proc p[2];
    char path[PATH_MAX];
    start_child(&p[0], 1, 3, SLOW_RATE);
    start_child(&p[1], 1, 3, SLOW_RATE);
    wait_part(1, 3, 1);
    struct origin_counts before, after;
    origin_count(origin, &before);
    const struct pull_result x = must_pull(1, 3, path);
    origin_count(origin, &after);
    assert_int_equal(x.received_bytes, 0);
    check_file(path, 1, 3);
    unsigned n_fetched = 0;
    for (int i = 0; i < 2; i++) {
        must_end(&p[i]);
        assert_non_null(strstr(proc_text(&p[i], PROC_OUT), path));
        n_fetched += strncmp(proc_text(&p[i], PROC_OUT), "received 0\n", 11) != 0;
        proc_free(&p[i]);
    }
    assert_int_equal(n_fetched, 1);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(after.body_bytes - before.body_bytes < (uint64_t)st.st_size + (1u << 20)); /* once, and a header */
}

static void test_other_windows_do_not_wait(void **state)
{
    (void)state;
    struct proc p;
    start_child(&p, 1, 5, IDLE_RATE);
    wait_part(1, 5, 500000);
    put(5, 6);
    assert_true(is_there(1, 5, CACHE_PARTIAL));
    proc_free(&p);
}

struct watch {
    unsigned n, stop_after;
    uint64_t total, done;
};

static bool watch_progress(void *ctx, const struct pull_progress *p)
{
    struct watch *w = ctx;
    w->total = p->total_bytes;
    w->done = p->done_bytes;
    return ++w->n < w->stop_after;
}

static void test_waiting_can_be_stopped(void **state)
{
    (void)state;
    struct proc p;
    struct watch w = {.stop_after = 3};
    start_child(&p, 1, 5, IDLE_RATE);
    wait_part(1, 5, 500000);
    expect(r, &(struct pull_request){.first = 1, .end = 5, .ctx = &w, .progress = watch_progress}, ERR_CANCELLED,
           "waiting");
    assert_int_equal(w.n, 3);
    assert_in_range(w.done, 500000, w.total);
    assert_in_range(w.total, 9000000, 12000000);
    assert_true(is_there(1, 5, CACHE_PARTIAL));
    proc_free(&p);
}

/* A process that holds the lock and does nothing, or shows now and then that it is at work. */
struct holder {
    struct cache_key k;
    int fd;
    unsigned n, n_marks; /* times that it was asked; it lets go after so many marks */
};

static bool mark_for_a_while(void *ctx, const struct pull_progress *p)
{
    struct holder *h = ctx;
    (void)p;
    h->n++;
    if (h->n < h->n_marks) {
        const struct timespec at[2] = {{.tv_sec = 1000 + h->n}, {.tv_sec = 1000 + h->n}};
        assert_int_equal(futimens(h->fd, at), 0);
    } else if (h->n == h->n_marks) {
        cache_unlock(&h->k, h->fd);
    }
    return true;
}

static void test_process_that_does_nothing_is_given_up_on(void **state)
{
    (void)state;
    struct holder h = {.k = key(1, 3)};
    struct err e;
    assert_int_equal(cache_lock(&h.k, &h.fd, &e), OK);
    expect(r, &(struct pull_request){.first = 1, .end = 3, .stall_ms = 120}, ERR_TIMEOUT,
           "1-3.gguf.lock and has done nothing for 0.12 seconds");
    cache_unlock(&h.k, h.fd);
    put(1, 3);
}

static void test_process_at_work_is_waited_for(void **state)
{
    (void)state;
    struct holder h = {.k = key(1, 3), .n_marks = 12};
    const struct pull_request q = {
        .first = 1, .end = 3, .stall_ms = 10, .ctx = &h, .progress = mark_for_a_while}; /* less than between looks */
    struct pull_result x;
    struct err e;
    char path[PATH_MAX];
    assert_int_equal(cache_lock(&h.k, &h.fd, &e), OK);
    if (cache_pull(r, &q, path, &x, &e) != OK)
        fail_msg("%s", e.msg);
    assert_true(h.n >= h.n_marks);
    check_file(path, 1, 3);
}

static void test_killed_pulls_are_gone_on_with(void **state)
{
    (void)state;
    struct proc p;
    char path[PATH_MAX];
    start_child(&p, 1, 5, SLOW_RATE);
    wait_part(1, 5, 2000000);
    assert_int_equal(kill(p.pid, SIGKILL), 0);
    assert_true(proc_wait(&p, WAIT_MS));
    proc_free(&p);
    const struct cache_item left = item(1, 5, true);
    assert_in_range(left.size, 2000000, 9000000);
    assert_int_equal(find(1, 5, path), ERR_NOT_FOUND);
    const struct pull_result x = must_pull(1, 5, path);
    assert_true(x.resumed_bytes > 500000);
    check_file(path, 1, 5);
    assert_false(is_there(1, 5, CACHE_PARTIAL));
    assert_false(is_there(1, 5, CACHE_JOURNAL));
}

/* Who waits takes over when the one at work dies. */
static void test_killed_while_another_waits(void **state)
{
    (void)state;
    struct proc worker, waiter;
    char path[PATH_MAX];
    start_child(&worker, 1, 5, SLOW_RATE);
    wait_part(1, 5, 1000000);
    start_child(&waiter, 1, 5, 0);
    const uint64_t before = n_served(), deadline = clock_deadline_ms(WAIT_MS);
    while (n_served() < before + 2) { /* it has asked for the header */
        assert_true(clock_now_ns() < deadline);
        usleep(2000);
    }
    assert_int_equal(kill(worker.pid, SIGKILL), 0);
    must_end(&waiter);
    assert_int_equal(find(1, 5, path), OK);
    check_file(path, 1, 5);
    proc_free(&worker);
    proc_free(&waiter);
}

static void test_what_is_being_pulled_stays(void **state)
{
    (void)state;
    struct proc p;
    size_t removed;
    uint64_t bytes;
    struct err e;
    put(5, 6);
    start_child(&p, 1, 4, SLOW_RATE);
    wait_part(1, 4, 500000);
    const struct cache_item x = item(1, 4, true);
    assert_int_equal(cache_remove(&x, &e), ERR_BUSY);
    assert_non_null(strstr(e.msg, "1-4.gguf is being pulled"));
    assert_int_equal(cache_gc(0, 0, &removed, &bytes, &e), OK);
    assert_int_equal(removed, 1); /* the other one */
    assert_true(is_there(1, 4, CACHE_PARTIAL));
    must_end(&p);
    proc_free(&p);
    char path[PATH_MAX];
    check_file(place(1, 4, CACHE_WHOLE, path), 1, 4);
}

/* --- what there is, and what goes --- */

static void test_list(void **state)
{
    (void)state;
    size_t n;
    char path[PATH_MAX];
    struct cache_item *items = list(&n);
    assert_int_equal(n, 0);
    free(items);
    put(2, 4);
    const uint64_t size = put(0, 1);
    write_text(place(3, 5, CACHE_PARTIAL, path), "nothing much");
    set_used(0, 1, CACHE_LOCK, 1000);
    set_used(0, 1, CACHE_WHOLE, 900);
    items = list(&n);
    assert_int_equal(n, 3);
    assert_int_equal(items[0].first, 0);
    assert_int_equal(items[0].size, size);
    assert_int_equal(items[0].used_s, 1000);
    assert_string_equal(items[0].name, "made");
    assert_string_equal(items[0].path, place(0, 1, CACHE_WHOLE, path));
    assert_memory_equal(items[0].model_id, remote_index(r)->model_id, DIGEST_BYTES);
    assert_int_equal(items[1].first, 2);
    assert_in_range(items[1].used_s, time(NULL) - 60, time(NULL) + 1);
    assert_false(items[1].partial);
    assert_int_equal(items[2].first, 3);
    assert_true(items[2].partial);
    free(items);
}

static void test_use_is_remembered_and_stamps_stay(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct stat before, after;
    put(1, 3);
    set_used(1, 3, CACHE_LOCK, 1000);
    set_used(1, 3, CACHE_WHOLE, 1000);
    assert_int_equal(stat(place(1, 3, CACHE_WHOLE, path), &before), 0);
    assert_int_equal(find(1, 2, path), OK);
    assert_true(item(1, 3, false).used_s >= time(NULL) - 60);
    assert_int_equal(stat(path, &after), 0);
    assert_memory_equal(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim);
    assert_memory_equal(&before.st_ctim, &after.st_ctim, sizeof before.st_ctim);
    unlink(place(1, 3, CACHE_LOCK, path));
    assert_int_equal(item(1, 3, false).used_s, 1000);
    assert_int_equal(find(1, 2, path), OK);
    assert_true(item(1, 3, false).used_s >= time(NULL) - 60);
}

static void test_removed_files_stay_mapped(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    const uint64_t size = put(1, 3);
    const int fd = open(place(1, 3, CACHE_WHOLE, path), O_RDONLY);
    const uint8_t *p = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(fd >= 0 && p != MAP_FAILED);
    close(fd);
    uint8_t was[DIGEST_BYTES], is[DIGEST_BYTES];
    digest_of(p, (size_t)size, was);
    const struct cache_item x = item(1, 3, false);
    assert_int_equal(cache_remove(&x, &e), OK);
    assert_int_equal(find(1, 3, path), ERR_NOT_FOUND);
    digest_of(p, (size_t)size, is);
    assert_memory_equal(was, is, DIGEST_BYTES);
    munmap((void *)(uintptr_t)p, (size_t)size);
    size_t n;
    free(list(&n));
    assert_int_equal(n, 0);
    *strrchr(place(1, 3, CACHE_WHOLE, path), '/') = 0;
    assert_int_equal(access(path, F_OK), -1); /* the model's folder went, too */
    assert_int_equal(cache_remove(&x, &e), OK);
}

static void test_gc_removes_the_longest_unused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    size_t removed;
    uint64_t bytes;
    struct err e;
    const uint64_t a = put(0, 1), b = put(2, 3), c = put(4, 5);
    const uint32_t at[] = {0, 2, 4};
    for (int i = 0; i < 3; i++) {
        set_used(at[i], at[i] + 1, CACHE_LOCK, 1000 + i);
        set_used(at[i], at[i] + 1, CACHE_WHOLE, 1000);
    }
    assert_int_equal(cache_gc(a + b + c, 0, &removed, &bytes, &e), OK);
    assert_int_equal(removed, 0);
    assert_int_equal(find(0, 1, path), OK); /* it is the one used last now */
    assert_int_equal(cache_gc(a + c, 0, &removed, &bytes, &e), OK);
    assert_int_equal(removed, 1);
    assert_int_equal(bytes, b);
    assert_false(is_there(2, 3, CACHE_WHOLE));
    assert_false(is_there(2, 3, CACHE_LOCK));
    assert_int_equal(cache_gc(a + c - 1, 0, &removed, &bytes, &e), OK);
    assert_int_equal(bytes, c);
    assert_true(is_there(0, 1, CACHE_WHOLE));
    assert_int_equal(cache_gc(0, 0, &removed, &bytes, &e), OK);
    assert_int_equal(bytes, a);
    assert_false(is_there(0, 1, CACHE_WHOLE));
}

static void test_gc_removes_old_partial_ones(void **state)
{
    (void)state;
    char path[PATH_MAX];
    size_t removed;
    uint64_t bytes;
    struct err e;
    put(4, 5);
    write_text(place(0, 2, CACHE_PARTIAL, path), "old");
    write_text(place(0, 2, CACHE_JOURNAL, path), "old");
    write_text(place(0, 3, CACHE_PARTIAL, path), "new");
    set_used(0, 2, CACHE_PARTIAL, time(NULL) - 5000);
    set_used(0, 3, CACHE_PARTIAL, time(NULL) - 3000);
    set_used(4, 5, CACHE_LOCK, 1000);
    assert_int_equal(cache_gc(UINT64_MAX, 4000, &removed, &bytes, &e), OK);
    assert_int_equal(removed, 1);
    assert_false(is_there(0, 2, CACHE_PARTIAL));
    assert_false(is_there(0, 2, CACHE_JOURNAL));
    assert_true(is_there(0, 3, CACHE_PARTIAL));
    assert_true(is_there(4, 5, CACHE_WHOLE));
}

static void test_gc_sweeps_locks_and_journals(void **state)
{
    (void)state;
    char path[PATH_MAX];
    size_t removed;
    uint64_t bytes;
    struct err e;
    int fd;
    put(4, 5);
    write_text(place(0, 2, CACHE_LOCK, path), "");
    write_text(place(0, 3, CACHE_JOURNAL, path), "left behind");
    const struct cache_key k = key(1, 2);
    assert_int_equal(cache_lock(&k, &fd, &e), OK);
    assert_int_equal(cache_gc(UINT64_MAX, 0, &removed, &bytes, &e), OK);
    assert_int_equal(removed, 0);
    assert_false(is_there(0, 2, CACHE_LOCK));
    assert_false(is_there(0, 3, CACHE_JOURNAL));
    assert_false(is_there(0, 3, CACHE_LOCK));
    assert_true(is_there(4, 5, CACHE_LOCK));
    assert_true(is_there(1, 2, CACHE_LOCK)); /* somebody has it */
    cache_unlock(&k, fd);
    assert_false(is_there(1, 2, CACHE_LOCK));
}

int main(int argc, char **argv)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    if (argc == 6 && strcmp(argv[1], "pull") == 0)
        return child_main(argv);
    if (!realpath("/proc/self/exe", self))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_strange_files_are_left_alone, setup),
        cmocka_unit_test_setup(test_pulled_once, setup),
        cmocka_unit_test_setup(test_larger_window_needs_no_network, setup),
        cmocka_unit_test_setup(test_whole_model, setup),
        cmocka_unit_test_setup(test_neighbours_give_what_they_have, setup),
        cmocka_unit_test_setup(test_neighbours_alone_can_be_enough, setup),
        cmocka_unit_test_setup(test_files_of_the_caller_are_looked_into, setup),
        cmocka_unit_test_setup(test_requests_that_cannot_be, setup),
        cmocka_unit_test_setup(test_nothing_without_an_index, setup),
        cmocka_unit_test_setup(test_folder_that_cannot_be_written, setup),
        cmocka_unit_test_setup(test_cut_files, setup),
        cmocka_unit_test_setup(test_altered_headers, setup),
        cmocka_unit_test_setup(test_files_with_the_wrong_name, setup),
        cmocka_unit_test_setup(test_altered_tensors_are_not_taken_over, setup),
        cmocka_unit_test_setup(test_rejected_files_go, setup),
        cmocka_unit_test_setup(test_three_want_the_same, setup),
        cmocka_unit_test_setup(test_other_windows_do_not_wait, setup),
        cmocka_unit_test_setup(test_waiting_can_be_stopped, setup),
        cmocka_unit_test_setup(test_process_that_does_nothing_is_given_up_on, setup),
        cmocka_unit_test_setup(test_process_at_work_is_waited_for, setup),
        cmocka_unit_test_setup(test_killed_pulls_are_gone_on_with, setup),
        cmocka_unit_test_setup(test_killed_while_another_waits, setup),
        cmocka_unit_test_setup(test_what_is_being_pulled_stays, setup),
        cmocka_unit_test_setup(test_list, setup),
        cmocka_unit_test_setup(test_use_is_remembered_and_stamps_stay, setup),
        cmocka_unit_test_setup(test_removed_files_stay_mapped, setup),
        cmocka_unit_test_setup(test_gc_removes_the_longest_unused, setup),
        cmocka_unit_test_setup(test_gc_removes_old_partial_ones, setup),
        cmocka_unit_test_setup(test_gc_sweeps_locks_and_journals, setup),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
