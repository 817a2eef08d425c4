/* SPDX-License-Identifier: MIT
 *
 * Stage files pulled over HTTP are byte for byte those that are cut from the model itself, whatever happens on the way;
 * or there is an error and no file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "lib/pull_rig.h"
#include "lib/test_util.h"
#include "model/hparams.h"
#include "model/slice.h"
#include "shard/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct pull_rig rig;

static int group_setup(void **state)
{
    *state = &rig;
    struct maker_params p = maker_small();
    p.n_embd = 256;
    p.head_dim = 64;
    p.n_ff = 512; /* blocks of 2.3 MB, the model 15 MB */
    rig_start(&rig, "pull.gguf", &p);
    return 0;
}

static void rule(unsigned server, struct bad_rule r)
{
    r.path = r.path ? r.path : "/m.gguf";
    bad_rule(rig.s[server], &r);
}

static struct remote *must_open_idle(uint32_t n_urls, uint32_t idle_ms)
{
    const struct remote_config c = {.urls = rig.urls, .n_urls = n_urls, .n_retries = 1, .idle_ms = idle_ms};
    struct remote *r = NULL;
    struct err e;
    if (remote_open(&c, &r, &e) != OK)
        fail_msg("%s", e.msg);
    return r;
}

static struct remote *must_open(uint32_t n_urls)
{
    return must_open_idle(n_urls, 0);
}

static struct pull_request request_of(uint32_t first, uint32_t end)
{
    return (struct pull_request){.first = first, .end = end, .out = rig.out, .need_index = true};
}

static struct pull_result must_pull(struct remote *r, const struct pull_request *q)
{
    struct pull_result result;
    struct err e;
    if (pull_window(r, q, &result, &e) != OK)
        fail_msg("%s", e.msg);
    assert_false(rig_exists(rig.part));
    assert_false(rig_exists(rig.journal));
    return result;
}

static void expect_pull(struct remote *r, const struct pull_request *q, enum err_code code, const char *in_text)
{
    struct pull_result result;
    struct err e = {0};
    if (pull_window(r, q, &result, &e) != code || !strstr(e.msg, in_text))
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), in_text, err_name(e.code), e.msg);
    assert_false(rig_exists(q->out));
}

/* The stage file as it is cut from the model on disk; with digests or without. */
static void expected(uint32_t first, uint32_t end, bool with_index, struct buf *want, uint64_t *tensor_bytes)
{
    struct gguf *g = NULL;
    struct hparams h;
    struct index x;
    struct slice s;
    struct err e;
    assert_int_equal(gguf_open(rig.path, &g, &e), OK);
    assert_int_equal(hparams_read(g, &h, &e), OK);
    assert_int_equal(index_compute(g, NULL, NULL, &x, &e), OK);
    if (slice_plan(g, &h, first, end ? end : h.n_block, with_index ? &x : NULL, &s, &e) != OK)
        fail_msg("%s", e.msg);
    uint8_t *p = buf_reserve(want, (size_t)s.size);
    assert_non_null(p);
    assert_int_equal(slice_read(g, &s, 0, p, (size_t)s.size, &e), OK);
    want->len = (size_t)s.size;
    *tensor_bytes = s.tensor_bytes;
    slice_fini(&s);
    index_fini(&x);
    hparams_fini(&h);
    gguf_close(g);
}

/* The pulled file is the right one, and goes. */
static void check_file(uint32_t first, uint32_t end, bool with_index)
{
    struct buf want = {0}, got = {0};
    uint64_t tensor_bytes;
    expected(first, end, with_index, &want, &tensor_bytes);
    rig_read(rig.out, &got);
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.data, want.data, want.len);
    buf_free(&got);
    buf_free(&want);
}

/* Of a tensor in the remote file. */
static const struct gguf_tensor *tensor(const struct remote *r, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor_find(remote_gguf(r), name);
    assert_non_null(t);
    return t;
}

/* --- the disk, as this program sees it --- */

static struct {
    bool broken;                /* nothing can be synced */
    unsigned n_before, n_after; /* syncs while the file does not have its name yet, and when it has */
} disk;

/* Takes the place of the C library's. */
int fsync(int fd)
{
    if (rig_exists(rig.out))
        disk.n_after++;
    else
        disk.n_before++;
    if (!disk.broken)
        return (int)syscall(SYS_fsync, fd);
    errno = EIO;
    return -1;
}

/* --- that it works --- */

static void test_every_window(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    for (uint32_t first = 0; first < 6; first += 2)
        for (uint32_t end = first + 1; end <= 6; end += 2) {
            const struct pull_request q = request_of(first, end);
            const struct pull_result x = must_pull(r, &q);
            assert_true(x.verified);
            assert_memory_equal(x.model_id, remote_index(r)->model_id, DIGEST_BYTES);
            check_file(first, end, true);
        }
    remote_close(r);
}

static void test_whole_model(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(0, 0);
    must_pull(r, &q);
    check_file(0, 0, true);
    remote_close(r);
}

static void test_connections(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    for (uint32_t n = 1; n <= 16; n *= 4) {
        struct pull_request q = request_of(1, 4);
        q.n_connections = n;
        must_pull(r, &q);
        check_file(1, 4, true);
    }
    struct pull_request q = request_of(1, 4);
    q.n_connections = 65;
    expect_pull(r, &q, ERR_ARG, "64 connections");
    remote_close(r);
}

static void test_bytes_and_requests(void **state)
{
    (void)state;
    struct buf want = {0};
    uint64_t tensor_bytes;
    expected(2, 4, true, &want, &tensor_bytes);
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(2, 4);
    const struct pull_result x = must_pull(r, &q);
    const struct bad_counts c = bad_count(rig.s[0]);
    struct remote_counts ours;
    remote_count(r, &ours);
    assert_int_equal(ours.body_bytes, c.body_bytes);
    assert_int_equal(ours.n_requests, c.n_requests);
    assert_int_equal(x.size, want.len);
    assert_true(x.received_bytes >= tensor_bytes);
    assert_true(x.received_bytes < tensor_bytes + tensor_bytes / 100);
    assert_true(c.body_bytes < tensor_bytes + 65536 + rig.index.len + tensor_bytes / 100);
    assert_true(x.n_requests <= 2); /* the window's tensors lie side by side */
    buf_free(&want);
    remote_close(r);
}

/* Of each window of one block, however small: what the server sent is the header, the index, the window's tensors, and
 * next to nothing else. */
static void check_bytes_of_windows(const struct maker_params *params)
{
    struct pull_rig small;
    void *its = &small;
    rig_start(&small, "pull_small.gguf", params);
    for (uint32_t i = 0; i < 6; i++) {
        const struct remote_config c = {.urls = small.urls, .n_urls = 1};
        const struct pull_request q = {.first = i, .end = i + 1, .out = rig.out};
        struct remote *r = NULL;
        struct gguf *g;
        struct pull_result x;
        struct err e;
        uint64_t tensors = 0;
        bad_count_again(small.s[0]);
        if (remote_open(&c, &r, &e) != OK || pull_window(r, &q, &x, &e) != OK)
            fail_msg("%s", e.msg);
        assert_int_equal(gguf_open(rig.out, &g, &e), OK);
        for (size_t k = 0; k < gguf_n_tensors(g); k++)
            tensors += gguf_tensor_at(g, k)->size;
        gguf_close(g);
        const uint64_t sent = bad_count(small.s[0]).body_bytes - small.index.len;
        assert_in_range(sent, tensors + small.head_bytes, tensors + small.head_bytes + tensors / 100);
        remote_close(r);
    }
    rig_teardown(&its);
}

static void test_bytes_of_small_windows(void **state)
{
    (void)state;
    struct maker_params p = maker_small(); /* blocks of 0.15 MB */
    check_bytes_of_windows(&p);
    p.n_vocab = 260;
    p.n_embd = 32; /* the first window has token_embd and blk.0, which a small output.weight lies between */
    check_bytes_of_windows(&p);
}

static void test_unverified(void **state)
{
    (void)state;
    rig_no_index(&rig);
    struct remote *r = must_open(1);
    struct pull_request q = request_of(1, 3);
    expect_pull(r, &q, ERR_LIMIT, "no index");
    q.need_index = false;
    const struct pull_result x = must_pull(r, &q);
    const uint8_t zero[DIGEST_BYTES] = {0};
    assert_false(x.verified);
    assert_memory_equal(x.model_id, zero, DIGEST_BYTES);
    check_file(1, 3, false);
    q.model_id = zero;
    expect_pull(r, &q, ERR_LIMIT, "no index");
    remote_close(r);
}

static void test_another_model(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    struct pull_request q = request_of(1, 3);
    const uint8_t id[DIGEST_BYTES] = {1};
    q.model_id = id;
    expect_pull(r, &q, ERR_MISMATCH, "another");
    q.model_id = remote_index(r)->model_id;
    must_pull(r, &q);
    remote_close(r);
}

static void test_windows_that_are_none(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(2, 99);
    expect_pull(r, &q, ERR_RANGE, "");
    assert_false(rig_exists(rig.part));
    remote_close(r);
}

static void test_old_file_is_replaced(void **state)
{
    (void)state;
    struct err e;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(1, 3);
    assert_int_equal(io_write_file(rig.out, "old", 3, 0600, &e), OK);
    must_pull(r, &q);
    check_file(1, 3, true);
    remote_close(r);
}

/* --- wrong bytes --- */

static void test_wrong_byte_is_named_and_fetched_elsewhere(void **state)
{
    (void)state;
    struct remote *r = must_open(2);
    const struct gguf_tensor *t = tensor(r, "blk.2.ffn_up.weight");
    const struct pull_request q = request_of(1, 4);
    rule(0, (struct bad_rule){.how = BAD_FLIP, .n = t->offset + t->size / 2});
    const struct pull_result x = must_pull(r, &q);
    assert_true(x.verified);
    check_file(1, 4, true);
    assert_true(bad_count(rig.s[1]).body_bytes >= t->size);
    remote_close(r);
}

static void test_wrong_everywhere(void **state)
{
    (void)state;
    struct remote *r = must_open(2);
    const struct gguf_tensor *t = tensor(r, "blk.2.ffn_up.weight");
    const struct pull_request q = request_of(1, 4);
    char host[40];
    for (unsigned i = 0; i < 2; i++)
        rule(i, (struct bad_rule){.how = BAD_FLIP, .n = t->offset});
    expect_pull(r, &q, ERR_MISMATCH, "tensor blk.2.ffn_up.weight");
    remote_close(r);
    for (unsigned i = 0; i < 2; i++) {
        r = must_open(2);
        snprintf(host, sizeof host, "from 127.0.0.1:%u", bad_port(rig.s[i]));
        expect_pull(r, &q, ERR_MISMATCH, host);
        remote_close(r);
    }
    bad_clear(rig.s[1]); /* what was right is still there */
    r = must_open(2);
    const struct pull_result x = must_pull(r, &q);
    assert_true(x.resumed_bytes > 0);
    check_file(1, 4, true);
    remote_close(r);
}

static void test_wrong_byte_in_a_part_that_is_there(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(1, 4);
    const struct gguf_tensor *last = tensor(r, "blk.3.ffn_down.weight");
    rule(0, (struct bad_rule){.how = BAD_STATUS, .n = 404, .only_at = last->offset + last->size - 1, .skip = 1});
    rule(0, (struct bad_rule){.how = BAD_CUT, .n = 5000000, .times = 1});
    struct pull_result result;
    struct err e;
    assert_int_not_equal(pull_window(r, &q, &result, &e), OK);
    remote_close(r);
    bad_clear(rig.s[0]);
    int fd = open(rig.part, O_RDWR);
    struct stat st = {0};
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    for (off_t at = 200000; at < st.st_size; at += 1000000) /* a disk that is not what it was */
        assert_int_equal(pwrite(fd, "xyz", 3, at), 3);
    close(fd);
    r = must_open(1);
    must_pull(r, &q); /* the only origin is not blamed for it */
    check_file(1, 4, true);
    remote_close(r);
}

/* --- broken off and gone on with --- */

/* Stops once so many bytes are there. */
struct until {
    uint64_t bytes;
    uint64_t last;
    unsigned n;
};

static bool stop_at(void *ctx, const struct pull_progress *p)
{
    struct until *u = ctx;
    assert_true(p->done_bytes <= p->total_bytes);
    u->last = p->done_bytes;
    u->n++;
    return p->done_bytes < u->bytes;
}

static void test_progress_and_stopping(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    struct pull_request q = request_of(0, 6);
    struct until u = {.bytes = 3000000};
    q.ctx = &u;
    q.progress = stop_at;
    q.rate = 4u << 20; /* all of it takes seconds, however late the progress is told */
    expect_pull(r, &q, ERR_CANCELLED, "stopped");
    assert_true(rig_exists(rig.part));
    assert_true(rig_exists(rig.journal));
    assert_in_range(u.last, 3000000, 12000000);
    u.bytes = UINT64_MAX;
    q.rate = 0;
    bad_count_again(rig.s[0]);
    const struct pull_result x = must_pull(r, &q);
    assert_true(x.resumed_bytes >= 2900000);
    assert_int_equal(u.last, x.size); /* the end is told, too */
    assert_true(bad_count(rig.s[0]).body_bytes < x.size - x.resumed_bytes + x.size / 50);
    check_file(0, 6, true);
    remote_close(r);
}

/* Pulls all blocks until a third is there. */
static void begin(struct remote *r, bool need_index)
{
    struct pull_request q = request_of(0, 6);
    struct until u = {.bytes = rig.model.len / 3};
    struct pull_result x;
    struct err e;
    q.need_index = need_index;
    q.ctx = &u;
    q.progress = stop_at;
    q.rate = 5u << 20;
    assert_int_equal(pull_window(r, &q, &x, &e), ERR_CANCELLED);
}

static void test_other_origin_goes_on_with_it(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    begin(r, true);
    remote_close(r);
    bad_file(rig.s[0], "/m.gguf", rig.model.data, rig.model.len, "\"two\""); /* with digests that does not matter */
    r = must_open(1);
    const struct pull_request q = request_of(0, 6);
    assert_true(must_pull(r, &q).resumed_bytes > 1000000);
    check_file(0, 6, true);
    remote_close(r);
}

static void test_unverified_goes_on_with_the_same_file_only(void **state)
{
    (void)state;
    for (int changed = 0; changed < 2; changed++) {
        rig_reset(&rig);
        rig_no_index(&rig);
        struct remote *r = must_open(1);
        begin(r, false);
        remote_close(r);
        if (changed)
            bad_file(rig.s[0], "/m.gguf", rig.model.data, rig.model.len, "\"two\"");
        r = must_open(1);
        struct pull_request q = request_of(0, 6);
        q.need_index = false;
        const struct pull_result x = must_pull(r, &q);
        if (changed)
            assert_int_equal(x.resumed_bytes, 0);
        else
            assert_true(x.resumed_bytes > 1000000);
        check_file(0, 6, false);
        remote_close(r);
    }
}

static void test_part_of_something_else(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    begin(r, true);
    const struct pull_request q = request_of(1, 3); /* another window under the same name */
    assert_int_equal(must_pull(r, &q).resumed_bytes, 0);
    check_file(1, 3, true);
    remote_close(r);
}

static void test_journals_that_lie(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(0, 6);
    struct buf text = {0};
    begin(r, true);
    struct err e;
    assert_int_equal(io_read_file(rig.journal, 1u << 20, &text, &e), OK);
    for (size_t i = 48; i + 8 <= text.len; i += 8) /* all is there, and more */
        le_put_u64(text.data + i, i % 16 ? UINT64_MAX : 262144);
    assert_int_equal(io_write_file(rig.journal, text.data, text.len, 0600, &e), OK);
    must_pull(r, &q);
    check_file(0, 6, true);
    begin(r, true);
    assert_int_equal(truncate(rig.journal, 51), 0);
    assert_int_equal(must_pull(r, &q).resumed_bytes, 0);
    check_file(0, 6, true);
    buf_free(&text);
    remote_close(r);
}

static void test_two_pulls_of_one_file(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(1, 3);
    const int fd = open(rig.part, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    expect_pull(r, &q, ERR_BUSY, "another pull");
    close(fd);
    must_pull(r, &q);
    check_file(1, 3, true);
    remote_close(r);
}

/* --- local files --- */

static void test_tensors_from_local_files(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    char held[PATH_MAX], other[PATH_MAX];
    struct pull_request q = request_of(1, 4);
    q.out = test_scratch("held.gguf", held);
    must_pull(r, &q);
    struct maker_params p = maker_small();
    p.n_embd = 256;
    p.head_dim = 64;
    p.n_ff = 512;
    p.seed += 1; /* the same names and shapes, other weights */
    struct err e;
    assert_int_equal(maker_write(test_scratch("other.gguf", other), &p, &e), OK);
    const char *local[] = {"/no/such.gguf", other, held};
    bad_count_again(rig.s[0]);
    q = request_of(1, 5);
    q.local = local;
    q.n_local = 3;
    const struct pull_result x = must_pull(r, &q);
    assert_true(x.local_bytes > 6000000);
    assert_in_range(bad_count(rig.s[0]).body_bytes, 1, x.size - x.local_bytes);
    check_file(1, 5, true);
    q = request_of(1, 3);
    q.local = local;
    q.n_local = 3;
    bad_count_again(rig.s[0]);
    must_pull(r, &q);
    assert_int_equal(bad_count(rig.s[0]).n_requests, 0); /* all of it is there */
    check_file(1, 3, true);
    unlink(held);
    unlink(other);
    remote_close(r);
}

/* --- origins that misbehave --- */

static void test_misbehaving_origin_and_a_good_one(void **state)
{
    (void)state;
    const struct bad_rule rules[] = {
        {.how = BAD_IGNORE_RANGE},     {.how = BAD_GZIP},
        {.how = BAD_NEW_ETAG},         {.how = BAD_HANG, .n = 1000000},
        {.how = BAD_DRIBBLE, .n = 1},  {.how = BAD_CUT, .n = 400000},
        {.how = BAD_STATUS, .n = 503}, {.how = BAD_RANGE, .n = 32},
        {.how = BAD_SILENT},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        rig_reset(&rig);
        struct remote *r = must_open_idle(2, 1000);
        rule(0, rules[i]);
        const struct pull_request q = request_of(1, 4);
        must_pull(r, &q);
        check_file(1, 4, true);
        remote_close(r);
    }
}

static void test_origin_that_dies(void **state)
{
    (void)state;
    struct remote *r = must_open_idle(1, 1000);
    const struct pull_request q = request_of(1, 4);
    rule(0, (struct bad_rule){.how = BAD_HANG, .n = 2000000, .times = 1});
    rule(0, (struct bad_rule){.how = BAD_HANG});
    expect_pull(r, &q, ERR_TIMEOUT, "sent nothing");
    assert_true(rig_exists(rig.part));
    remote_close(r);
    bad_clear(rig.s[0]);
    r = must_open(1);
    assert_true(must_pull(r, &q).resumed_bytes >= 1000000);
    check_file(1, 4, true);
    remote_close(r);
}

static void test_file_that_changes_midway(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(1, 4);
    rule(0, (struct bad_rule){.how = BAD_CUT, .n = 2000000, .times = 1});
    rule(0, (struct bad_rule){.how = BAD_NEW_ETAG});
    expect_pull(r, &q, ERR_MISMATCH, "changed");
    remote_close(r);
}

/* --- disks --- */

static void test_full_disk(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(1, 4);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 1000000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct pull_result x;
    struct err e;
    const enum err_code rc = pull_window(r, &q, &x, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.msg, rig.part));
    assert_false(rig_exists(rig.out));
    must_pull(r, &q);
    check_file(1, 4, true);
    remote_close(r);
}

/* A disk that is full only once the pull is at work: its limit comes down from the progress. */
static bool shrink(void *ctx, const struct pull_progress *p)
{
    struct rlimit *limit = ctx;
    if (p->done_bytes > 3000000)
        setrlimit(RLIMIT_FSIZE, limit);
    return true;
}

static void test_disk_that_becomes_full(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    struct pull_request q = request_of(0, 6);
    struct rlimit old, small;
    struct pull_result x;
    struct err e;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 100000;
    q.ctx = &small;
    q.progress = shrink;
    q.rate = 5u << 20;
    signal(SIGXFSZ, SIG_IGN);
    const enum err_code rc = pull_window(r, &q, &x, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.msg, "goes on with it"));
    assert_false(rig_exists(rig.out));
    q = request_of(0, 6);
    assert_true(must_pull(r, &q).resumed_bytes > 2000000);
    check_file(0, 6, true);
    remote_close(r);
}

/* Said before anything is fetched. Only root can make such a file system. */
static void test_too_little_space(void **state)
{
    (void)state;
    char dir[PATH_MAX], path[PATH_MAX + 16];
    assert_int_equal(mkdir(test_scratch("small_fs", dir), 0755), 0);
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", dir, "tmpfs", 0, "size=4m") != 0) {
        rmdir(dir);
        skip();
    }
    struct remote *r = must_open(1);
    struct pull_request q = request_of(1, 4);
    const uint32_t before = bad_count(rig.s[0]).n_requests;
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    q.out = path;
    expect_pull(r, &q, ERR_LIMIT, "only 4.0MiB left");
    assert_int_equal(bad_count(rig.s[0]).n_requests, before);
    assert_false(rig_exists(path));
    q = request_of(5, 6); /* 2.3 MB and the head */
    q.out = path;
    must_pull(r, &q);
    assert_true(rig_exists(path));
    remote_close(r);
    assert_int_equal(umount(dir), 0);
    rmdir(dir);
}

static void test_folders_that_cannot_be_written(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    struct pull_request q = request_of(1, 4);
    char dir[PATH_MAX], path[PATH_MAX + 16];
    const uint32_t before = bad_count(rig.s[0]).n_requests;
    q.out = "/no/such/folder/x.gguf";
    expect_pull(r, &q, ERR_IO, "/no/such/folder/x.gguf.part");
    assert_int_equal(mkdir(test_scratch("readonly", dir), 0555), 0);
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    q.out = path;
    setfsuid(65534); /* for root nothing is read-only */
    expect_pull(r, &q, ERR_IO, "cannot create");
    setfsuid(getuid());
    rmdir(dir);
    assert_int_equal(bad_count(rig.s[0]).n_requests, before); /* nothing was fetched */
    remote_close(r);
}

/* The bytes are on the disk before the name, and then the name. */
static void test_synced_before_it_has_its_name(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(1, 4);
    disk.n_before = disk.n_after = 0;
    must_pull(r, &q);
    assert_int_equal(disk.n_before, 1);
    assert_int_equal(disk.n_after, 1);
    remote_close(r);
}

/* What was written may not be there, though it can still be read: none of it is taken over. */
static void test_disk_that_cannot_be_synced(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    const struct pull_request q = request_of(1, 4);
    disk.broken = true;
    expect_pull(r, &q, ERR_IO, "all of it has to come again");
    disk.broken = false;
    assert_int_equal(must_pull(r, &q).resumed_bytes, 0);
    check_file(1, 4, true);
    remote_close(r);
}

static void test_names_that_are_taken(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    struct pull_request q = request_of(1, 4);
    struct pull_result x;
    struct err e;
    char dir[PATH_MAX];
    const uint32_t before = bad_count(rig.s[0]).n_requests;
    assert_int_equal(mkdir(test_scratch("taken", dir), 0755), 0);
    q.out = dir;
    assert_int_equal(pull_window(r, &q, &x, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "is a folder"));
    rmdir(dir);
    assert_int_equal(mkfifo(dir, 0600), 0);
    assert_int_equal(pull_window(r, &q, &x, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "not a regular file"));
    unlink(dir);
    assert_int_equal(bad_count(rig.s[0]).n_requests, before); /* nothing was fetched */
    remote_close(r);
}

/* --- rate --- */

static void test_rate(void **state)
{
    (void)state;
    struct remote *r = must_open(1);
    struct pull_request q = request_of(1, 3); /* 4.7 MB */
    q.rate = 4u << 20;
    const uint64_t begin_ns = clock_now_ns();
    const struct pull_result x = must_pull(r, &q);
    const double s = (double)(clock_now_ns() - begin_ns) / 1e9;
    assert_true(s > (double)x.received_bytes / (4u << 20) - 0.3);
    check_file(1, 3, true);
    remote_close(r);
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_every_window, rig_setup),
        cmocka_unit_test_setup(test_whole_model, rig_setup),
        cmocka_unit_test_setup(test_connections, rig_setup),
        cmocka_unit_test_setup(test_bytes_and_requests, rig_setup),
        cmocka_unit_test_setup(test_bytes_of_small_windows, rig_setup),
        cmocka_unit_test_setup(test_unverified, rig_setup),
        cmocka_unit_test_setup(test_another_model, rig_setup),
        cmocka_unit_test_setup(test_windows_that_are_none, rig_setup),
        cmocka_unit_test_setup(test_old_file_is_replaced, rig_setup),
        cmocka_unit_test_setup(test_wrong_byte_is_named_and_fetched_elsewhere, rig_setup),
        cmocka_unit_test_setup(test_wrong_everywhere, rig_setup),
        cmocka_unit_test_setup(test_wrong_byte_in_a_part_that_is_there, rig_setup),
        cmocka_unit_test_setup(test_progress_and_stopping, rig_setup),
        cmocka_unit_test_setup(test_other_origin_goes_on_with_it, rig_setup),
        cmocka_unit_test_setup(test_unverified_goes_on_with_the_same_file_only, rig_setup),
        cmocka_unit_test_setup(test_part_of_something_else, rig_setup),
        cmocka_unit_test_setup(test_journals_that_lie, rig_setup),
        cmocka_unit_test_setup(test_two_pulls_of_one_file, rig_setup),
        cmocka_unit_test_setup(test_tensors_from_local_files, rig_setup),
        cmocka_unit_test_setup(test_misbehaving_origin_and_a_good_one, rig_setup),
        cmocka_unit_test_setup(test_origin_that_dies, rig_setup),
        cmocka_unit_test_setup(test_file_that_changes_midway, rig_setup),
        cmocka_unit_test_setup(test_full_disk, rig_setup),
        cmocka_unit_test_setup(test_disk_that_becomes_full, rig_setup),
        cmocka_unit_test_setup(test_folders_that_cannot_be_written, rig_setup),
        cmocka_unit_test_setup(test_synced_before_it_has_its_name, rig_setup),
        cmocka_unit_test_setup(test_disk_that_cannot_be_synced, rig_setup),
        cmocka_unit_test_setup(test_names_that_are_taken, rig_setup),
        cmocka_unit_test_setup(test_too_little_space, rig_setup),
        cmocka_unit_test_setup(test_rate, rig_setup),
    };
    return cmocka_run_group_tests(tests, group_setup, rig_teardown);
}
