/* SPDX-License-Identifier: MIT
 *
 * A model read over HTTP, from servers that do it well and from servers that do not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/thread.h"
#include "lib/pull_rig.h"
#include "lib/test_util.h"
#include "shard/remote.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKEN "hub-secret-99"

static struct pull_rig rig;

static int group_setup(void **state)
{
    *state = &rig;
    struct maker_params p = maker_small();
    p.n_vocab = 8192; /* a header of several requests */
    rig_start(&rig, "remote.gguf", &p);
    return 0;
}

static struct remote_config config_of(uint32_t n_urls)
{
    return (struct remote_config){.urls = rig.urls, .n_urls = n_urls, .n_retries = 1};
}

/* For servers that hang or dribble: good ones may be slow, too, and what they are asked is counted. */
static struct remote_config impatient(uint32_t n_urls)
{
    struct remote_config c = config_of(n_urls);
    c.idle_ms = 1000;
    return c;
}

static bool wants_patience(enum bad_how how)
{
    return how != BAD_HANG && how != BAD_DRIBBLE;
}

static void rule(unsigned server, struct bad_rule r)
{
    r.path = r.path ? r.path : "/m.gguf";
    bad_rule(rig.s[server], &r);
}

static struct remote *must_open(const struct remote_config *c)
{
    struct remote *r = NULL;
    struct err e;
    if (remote_open(c, &r, &e) != OK)
        fail_msg("%s", e.msg);
    return r;
}

/* Opening from server 0 alone fails so, and says so. */
static void expect_open(const struct remote_config *c, enum err_code code, const char *in_text)
{
    struct remote *r = NULL;
    struct err e = {0};
    if (remote_open(c, &r, &e) != code || !strstr(e.msg, in_text) || strstr(e.msg, TOKEN))
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), in_text, err_name(e.code), e.msg);
    assert_null(r);
}

static void expect_refused(struct bad_rule b, enum err_code code, const char *in_text)
{
    const struct remote_config c = wants_patience(b.how) ? config_of(1) : impatient(1);
    char host[32];
    rig_reset(&rig);
    rule(0, b);
    expect_open(&c, code, in_text);
    snprintf(host, sizeof host, "127.0.0.1:%u", bad_port(rig.s[0]));
    expect_open(&c, code, host);
}

/* --- reading --- */

static bool collect(void *ctx, const void *data, size_t len)
{
    buf_put(ctx, data, len);
    return true;
}

/* Bytes [at, at + len) of the model as they come; the origin that gave them. */
static uint32_t must_read(struct remote *r, uint64_t at, uint64_t len)
{
    struct remote_reader *x = NULL;
    struct buf got = {0};
    struct err e;
    uint32_t origin = 99;
    assert_int_equal(remote_reader_new(r, &x, &e), OK);
    if (remote_read(x, 0, at, len, collect, &got, &origin, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(got.len, len);
    assert_memory_equal(got.data, rig.model.data + at, len);
    buf_free(&got);
    remote_reader_free(x);
    return origin;
}

static void expect_read(struct remote *r, uint64_t at, uint64_t len, enum err_code code, const char *in_text)
{
    struct remote_reader *x = NULL;
    struct buf got = {0};
    struct err e = {0};
    uint32_t origin;
    assert_int_equal(remote_reader_new(r, &x, &e), OK);
    if (remote_read(x, 0, at, len, collect, &got, &origin, &e) != code || !strstr(e.msg, in_text))
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), in_text, err_name(e.code), e.msg);
    buf_free(&got);
    remote_reader_free(x);
}

static uint64_t far(void) /* of the header */
{
    return rig.model.len / 2;
}

/* --- well-behaved servers --- */

static void test_header_and_index(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    struct remote *r = must_open(&c);
    const struct gguf *g = remote_gguf(r);
    struct gguf *local = NULL;
    struct err e;
    assert_int_equal(gguf_open(rig.path, &local, &e), OK);
    assert_int_equal(gguf_n_tensors(g), gguf_n_tensors(local));
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        assert_string_equal(gguf_tensor_at(g, i)->name, gguf_tensor_at(local, i)->name);
        assert_int_equal(gguf_tensor_at(g, i)->offset, gguf_tensor_at(local, i)->offset);
    }
    assert_int_equal(gguf_fd(g, 0), -1);
    assert_non_null(remote_index(r));
    assert_non_null(remote_index_file(r));
    assert_string_equal(remote_stamp(r, 0), RIG_ETAG);
    gguf_close(local);
    remote_close(r);
}

static void test_requests_and_bytes_are_few(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    struct remote *r = must_open(&c);
    struct remote_counts ours;
    remote_count(r, &ours);
    const struct bad_counts theirs = bad_count(rig.s[0]);
    assert_true(rig.head_bytes > 2 * 65536);
    assert_int_equal(ours.n_requests, theirs.n_requests);
    assert_int_equal(ours.body_bytes, theirs.body_bytes);
    assert_in_range(theirs.n_requests, 3, 8);
    assert_true(theirs.body_bytes < rig.index.len + rig.head_bytes + rig.head_bytes / 2);
    remote_close(r);
}

static void test_any_range(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    struct remote *r = must_open(&c);
    assert_int_equal(must_read(r, far(), 100000), 0);
    assert_int_equal(must_read(r, 0, rig.model.len), 0); /* the header comes from memory */
    assert_int_equal(must_read(r, rig.head_bytes - 1, 2), 0);
    assert_int_equal(must_read(r, rig.model.len - 1, 1), 0);
    must_read(r, far(), 0);
    expect_read(r, rig.model.len, 1, ERR_ARG, "not in the file");
    expect_read(r, 1, UINT64_MAX, ERR_ARG, "not in the file");
    remote_close(r);
}

static void test_what_came_with_the_header_is_not_asked_again(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    struct remote *r = must_open(&c);
    const uint32_t before = bad_count(rig.s[0]).n_requests;
    must_read(r, 0, rig.head_bytes);
    assert_int_equal(bad_count(rig.s[0]).n_requests, before);
    remote_close(r);
}

static void test_connection_is_kept(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    struct remote *r = must_open(&c);
    assert_int_equal(bad_count(rig.s[0]).n_connections, 1);
    remote_close(r);
}

static void test_no_index(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    rig_no_index(&rig);
    struct remote *r = must_open(&c);
    assert_null(remote_index(r));
    assert_null(remote_index_file(r));
    remote_close(r);
}

static void test_page_instead_of_an_index(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    bad_file(rig.s[0], "/m.gguf.kvi", "<html>not here</html>", 21, "\"x\"");
    struct remote *r = must_open(&c);
    assert_null(remote_index(r));
    remote_close(r);
}

static void test_broken_index(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    bad_file(rig.s[0], "/m.gguf.kvi", "{\"version\": 1}", 14, "\"x\"");
    expect_open(&c, ERR_FORMAT, "the index at 127.0.0.1");
}

static void test_index_that_is_being_made(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    rule(0, (struct bad_rule){.how = BAD_STATUS, .path = "/m.gguf.kvi", .n = 503, .times = 2, .retry_after = 1});
    struct remote *r = must_open(&c);
    assert_non_null(remote_index(r));
    remote_close(r);
}

static void test_index_that_is_not_waited_for(void **state)
{
    (void)state;
    struct remote_config c = config_of(1);
    rule(0, (struct bad_rule){.how = BAD_STATUS, .path = "/m.gguf.kvi", .n = 503, .retry_after = 5});
    c.no_wait = true;
    struct remote *r = must_open(&c);
    assert_null(remote_index(r));
    remote_close(r);
    const uint64_t n = bad_count(rig.s[0]).n_requests;

    rig_reset(&rig); /* not even asked for */
    c.no_index = true;
    r = must_open(&c);
    assert_null(remote_index(r));
    remote_close(r);
    assert_int_equal(bad_count(rig.s[0]).n_requests, n - 1);
}

static void test_index_by_name(void **state)
{
    (void)state;
    struct remote_config c = config_of(1);
    char path[PATH_MAX], url[128];
    struct err e;
    rig_no_index(&rig);
    assert_int_equal(io_write_file(test_scratch("named.kvi", path), rig.index.data, rig.index.len, 0600, &e), OK);
    c.index = path;
    struct remote *r = must_open(&c);
    assert_non_null(remote_index(r));
    remote_close(r);
    bad_file(rig.s[1], "/other.kvi", rig.index.data, rig.index.len, "\"x\"");
    c.index = rig_url(&rig, 1, "/other.kvi", url);
    c.bearer = TOKEN; /* server 1 is not one of the URLs */
    r = must_open(&c);
    assert_non_null(remote_index(r));
    assert_int_equal(bad_count(rig.s[1]).n_with_token, 0);
    remote_close(r);
    c.index = "/no/such.kvi";
    expect_open(&c, ERR_NOT_FOUND, "/no/such.kvi");
    unlink(path);
}

/* --- redirects and tokens --- */

static void test_token_is_not_sent_on(void **state)
{
    (void)state;
    struct remote_config c = config_of(1);
    char cdn[128];
    c.bearer = TOKEN;
    bad_token(rig.s[0], TOKEN);
    bad_file(rig.s[1], "/blob", rig.model.data, rig.model.len, "\"blob\"");
    rule(0, (struct bad_rule){.how = BAD_REDIRECT, .location = rig_url(&rig, 1, "/blob?signature=abc", cdn)});
    struct remote *r = must_open(&c);
    must_read(r, far(), 10000);
    const struct bad_counts hub = bad_count(rig.s[0]), other = bad_count(rig.s[1]);
    assert_int_equal(hub.n_with_token, hub.n_requests);
    assert_true(other.n_requests > 1);
    assert_int_equal(other.n_with_token, 0);
    assert_int_equal(hub.n_requests, 2); /* the redirect and the index: then it is asked there at once */
    remote_close(r);
}

static void test_signed_address_that_expires(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    char cdn[128];
    bad_file(rig.s[1], "/blob", rig.model.data, rig.model.len, "\"blob\"");
    rule(0, (struct bad_rule){.how = BAD_REDIRECT, .location = rig_url(&rig, 1, "/blob?signature=abc", cdn)});
    struct remote *r = must_open(&c);
    rule(1, (struct bad_rule){.how = BAD_STATUS, .path = "/blob", .n = 403, .times = 1});
    must_read(r, far(), 10000);
    remote_close(r);
}

static void test_redirects_without_end(void **state)
{
    (void)state;
    expect_refused((struct bad_rule){.how = BAD_REDIRECT_LOOP}, ERR_PROTOCOL, "another address");
}

static void test_token_is_needed(void **state)
{
    (void)state;
    struct remote_config c = config_of(1);
    bad_token(rig.s[0], "another");
    expect_open(&c, ERR_AUTH, "wants a token");
    c.bearer = TOKEN;
    expect_open(&c, ERR_AUTH, "does not take the token");
}

/* --- servers that misbehave --- */

static void test_servers_that_are_refused(void **state)
{
    (void)state;
    expect_refused((struct bad_rule){.how = BAD_IGNORE_RANGE}, ERR_PROTOCOL, "range");
    expect_refused((struct bad_rule){.how = BAD_GZIP}, ERR_PROTOCOL, "content-encoding");
    expect_refused((struct bad_rule){.how = BAD_RANGE, .n = 1}, ERR_PROTOCOL, "when asked for 0-4095");
    expect_refused((struct bad_rule){.how = BAD_RANGE_STAR}, ERR_PROTOCOL, "how many there are");
    expect_refused((struct bad_rule){.how = BAD_TOO_MUCH, .n = 10}, ERR_PROTOCOL, "when asked for 0-4095");
    expect_refused((struct bad_rule){.how = BAD_STATUS, .n = 404}, ERR_NOT_FOUND, "m.gguf");
    expect_refused((struct bad_rule){.how = BAD_STATUS, .n = 403}, ERR_AUTH, "token");
    expect_refused((struct bad_rule){.how = BAD_STATUS, .n = 418}, ERR_PROTOCOL, "418");
    assert_int_equal(bad_count(rig.s[0]).body_bytes, 0);
}

static void test_ignored_range_costs_little(void **state)
{
    (void)state;
    struct remote *r = NULL;
    struct err e;
    const struct remote_config c = config_of(1);
    rule(0, (struct bad_rule){.how = BAD_IGNORE_RANGE});
    assert_int_equal(remote_open(&c, &r, &e), ERR_PROTOCOL);
    assert_int_equal(bad_count(rig.s[0]).n_requests, 1);
}

static void test_servers_that_fail_for_a_while(void **state)
{
    (void)state;
    const struct bad_rule rules[] = {
        {.how = BAD_STATUS, .n = 500, .times = 1}, {.how = BAD_STATUS, .n = 503, .times = 1, .retry_after = 1},
        {.how = BAD_STATUS, .n = 429, .times = 1}, {.how = BAD_SILENT, .times = 1},
        {.how = BAD_CUT, .n = 1000, .times = 1},   {.how = BAD_HANG, .n = 1000, .times = 1},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const struct remote_config c = wants_patience(rules[i].how) ? config_of(1) : impatient(1);
        rig_reset(&rig);
        rule(0, rules[i]);
        remote_close(must_open(&c));
    }
}

static void test_retry_after_is_waited_for(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    rule(0, (struct bad_rule){.how = BAD_STATUS, .n = 503, .times = 1, .retry_after = 1});
    const uint64_t begin = clock_now_ns();
    remote_close(must_open(&c));
    assert_true(clock_now_ns() - begin >= CLOCK_NS_PER_S);
}

static void test_servers_that_fail_for_good(void **state)
{
    (void)state;
    expect_refused((struct bad_rule){.how = BAD_STATUS, .n = 500}, ERR_IO, "500");
    expect_refused((struct bad_rule){.how = BAD_STATUS, .n = 503, .retry_after = 3600}, ERR_BUSY, "3600 seconds");
    expect_refused((struct bad_rule){.how = BAD_SILENT}, ERR_IO, "broke off");
    expect_refused((struct bad_rule){.how = BAD_HANG}, ERR_TIMEOUT, "sent nothing");
    expect_refused((struct bad_rule){.how = BAD_DRIBBLE}, ERR_TIMEOUT, "bytes a second");
}

static void test_half_a_body_is_gone_on_with(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    struct remote *r = must_open(&c);
    bad_count_again(rig.s[0]);
    rule(0, (struct bad_rule){.how = BAD_CUT, .n = 300000, .times = 1});
    must_read(r, far(), 500000);
    assert_int_equal(bad_count(rig.s[0]).n_requests, 2);
    assert_int_equal(bad_count(rig.s[0]).body_bytes, 500000); /* no byte twice */
    remote_close(r);
}

static void test_file_that_changes(void **state)
{
    (void)state;
    const enum bad_how hows[] = {BAD_NEW_ETAG, BAD_NEW_ETAG_206, BAD_NO_ETAG};
    for (size_t i = 0; i < sizeof hows / sizeof hows[0]; i++) {
        const struct remote_config c = config_of(1);
        rig_reset(&rig);
        struct remote *r = must_open(&c);
        rule(0, (struct bad_rule){.how = hows[i]});
        expect_read(r, far(), 1000, ERR_MISMATCH, "changed");
        remote_close(r);
    }
    rig_reset(&rig);
    const struct remote_config c = config_of(1);
    struct remote *r = must_open(&c);
    rule(0, (struct bad_rule){.how = BAD_LENGTH, .n = 5});
    expect_read(r, far(), 1000, ERR_MISMATCH, "bytes; it should have");
    remote_close(r);
}

static void test_if_range_only_with_strong_etags(void **state)
{
    (void)state;
    const enum bad_how hows[] = {BAD_NOT, BAD_WEAK_ETAG, BAD_NO_ETAG};
    for (size_t i = 0; i < sizeof hows / sizeof hows[0]; i++) {
        const struct remote_config c = config_of(1);
        rig_reset(&rig);
        if (hows[i] != BAD_NOT)
            rule(0, (struct bad_rule){.how = hows[i]});
        struct remote *r = must_open(&c);
        must_read(r, far(), 1000);
        if (hows[i] == BAD_NOT)
            assert_true(bad_count(rig.s[0]).n_if_range > 0);
        else
            assert_int_equal(bad_count(rig.s[0]).n_if_range, 0);
        remote_close(r);
    }
}

static void test_etag_of_a_coding_is_another(void **state)
{
    (void)state;
    const struct remote_config c = config_of(1);
    struct remote *r = must_open(&c);
    rule(0, (struct bad_rule){.how = BAD_GZIP_ETAG});
    expect_read(r, far(), 1000, ERR_MISMATCH, "changed");
    remote_close(r);
}

/* --- several origins --- */

static void test_the_first_origin_is_asked(void **state)
{
    (void)state;
    const struct remote_config c = config_of(2);
    struct remote *r = must_open(&c);
    assert_int_equal(must_read(r, far(), 1000), 0);
    assert_int_equal(bad_count(rig.s[1]).n_requests, 0);
    remote_close(r);
}

static void test_other_origin_instead(void **state)
{
    (void)state;
    const struct bad_rule rules[] = {
        {.how = BAD_STATUS, .n = 500},
        {.how = BAD_STATUS, .n = 404},
        {.how = BAD_IGNORE_RANGE},
        {.how = BAD_HANG},
        {.how = BAD_DRIBBLE},
        {.how = BAD_CUT, .n = 50000, .times = 3},
        {.how = BAD_STATUS, .n = 429, .retry_after = 100},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const struct remote_config c = wants_patience(rules[i].how) ? config_of(2) : impatient(2);
        rig_reset(&rig);
        struct remote *r = must_open(&c);
        rule(0, rules[i]);
        assert_int_equal(must_read(r, far(), 400000), 1);
        const uint32_t before = bad_count(rig.s[0]).n_requests;
        assert_int_equal(must_read(r, far(), 1000), 1); /* and it is not bothered again so soon */
        assert_int_equal(bad_count(rig.s[0]).n_requests, before);
        remote_close(r);
    }
}

static void test_no_origin_left(void **state)
{
    (void)state;
    const struct remote_config c = config_of(2);
    struct remote *r = must_open(&c);
    rule(0, (struct bad_rule){.how = BAD_STATUS, .n = 500});
    rule(1, (struct bad_rule){.how = BAD_STATUS, .n = 404});
    expect_read(r, far(), 1000, ERR_NOT_FOUND, "404");
    bad_clear(rig.s[0]);
    bad_clear(rig.s[1]);
    must_read(r, far(), 1000); /* it was down, now it is there again */
    remote_close(r);
}

static void test_distrusted_origin(void **state)
{
    (void)state;
    const struct remote_config c = config_of(2);
    struct remote *r = must_open(&c);
    assert_true(remote_distrust(r, 0));
    assert_int_equal(must_read(r, far(), 1000), 1);
    assert_int_equal(must_read(r, 0, 1000), 1); /* nor is what it gave before */
    assert_false(remote_distrust(r, 1));
    expect_read(r, far(), 1000, ERR_MISMATCH, "no origin is left");
    remote_close(r);
}

static void test_origin_whose_header_is_broken(void **state)
{
    (void)state;
    const struct remote_config c = config_of(2);
    rule(0, (struct bad_rule){.how = BAD_FLIP, .n = 1});
    struct remote *r = must_open(&c);
    assert_int_equal(must_read(r, far(), 1000), 1);
    remote_close(r);
    const struct remote_config alone = config_of(1);
    expect_open(&alone, ERR_FORMAT, "not a GGUF file");
}

static void test_origin_with_another_model(void **state)
{
    (void)state;
    const struct remote_config c = config_of(2);
    rule(0, (struct bad_rule){.how = BAD_FLIP, .n = rig.head_bytes / 2}); /* a token has another letter */
    struct remote *r = must_open(&c);
    assert_int_equal(must_read(r, far(), 1000), 1);
    remote_close(r);
    const struct remote_config alone = config_of(1);
    expect_open(&alone, ERR_MISMATCH, "the index at");
}

static void test_dead_origin(void **state)
{
    (void)state;
    char dead[64];
    uint16_t port;
    const int fd = test_dead_port(&port);
    assert_true(fd >= 0);
    snprintf(dead, sizeof dead, "http://127.0.0.1:%u/m.gguf", port);
    const char *urls[] = {dead, rig.url[0]};
    struct remote_config c = config_of(2);
    c.urls = urls;
    struct remote *r = must_open(&c);
    assert_int_equal(must_read(r, far(), 1000), 1);
    assert_non_null(remote_index(r));
    remote_close(r);
    c.n_urls = 1;
    expect_open(&c, ERR_IO, "cannot connect");
    close(fd);
}

/* --- being stopped --- */

static bool cancel_now(void *ctx)
{
    return atomic_load((atomic_bool *)ctx);
}

struct stopper {
    struct remote_reader *x;
    struct bad_httpd *s;
    uint32_t n;
};

/* Stops the reader once its request has come. */
static void *stop_main(void *arg)
{
    struct stopper *s = arg;
    const uint64_t deadline = clock_deadline_ms(60000);
    while (bad_count(s->s).n_requests < s->n && clock_now_ns() < deadline)
        usleep(1000);
    remote_reader_stop(s->x);
    return NULL;
}

static void test_stopping_a_reader(void **state)
{
    (void)state;
    struct remote_config c = config_of(2);
    c.idle_ms = 60000;
    struct remote *r = must_open(&c);
    struct remote_reader *x = NULL;
    struct buf got = {0};
    struct err e;
    pthread_t thread;
    uint32_t origin;
    rule(0, (struct bad_rule){.how = BAD_HANG, .n = 10});
    assert_int_equal(remote_reader_new(r, &x, &e), OK);
    struct stopper s = {.x = x, .s = rig.s[0], .n = bad_count(rig.s[0]).n_requests + 1};
    assert_int_equal(thread_start(&thread, "stop", stop_main, &s, &e), OK);
    const uint64_t begin = clock_now_ns();
    assert_int_equal(remote_read(x, 0, far(), 1000, collect, &got, &origin, &e), ERR_CANCELLED);
    assert_true(clock_now_ns() - begin < 30 * CLOCK_NS_PER_S);
    pthread_join(thread, NULL);
    assert_int_equal(remote_read(x, 0, far(), 1000, collect, &got, &origin, &e), ERR_CANCELLED);
    buf_free(&got);
    remote_reader_free(x);
    remote_close(r);
}

static void test_cancelling_while_opening(void **state)
{
    (void)state;
    atomic_bool yes = true;
    struct remote_config c = config_of(2);
    c.ctx = &yes;
    c.cancelled = cancel_now;
    c.idle_ms = 60000;
    rule(0, (struct bad_rule){.how = BAD_HANG});
    expect_open(&c, ERR_CANCELLED, "stopped");
    assert_int_equal(bad_count(rig.s[1]).n_requests, 0);
}

static void test_wrong_arguments(void **state)
{
    (void)state;
    struct remote_config c = config_of(0);
    const char *urls[2] = {"http://127.0.0.1:1/m-00001-of-00002.gguf", rig.url[0]};
    const char *odd[1] = {"file:///etc/passwd"}, *spaces[1] = {"http://127.0.0.1:1/a b.gguf"};
    expect_open(&c, ERR_ARG, "1 to 16 URLs");
    c.n_urls = 2;
    c.urls = urls;
    expect_open(&c, ERR_ARG, "the same files");
    c.n_urls = 1;
    c.urls = odd;
    expect_open(&c, ERR_ARG, "URL");
    c.urls = spaces;
    expect_open(&c, ERR_ARG, "URL");
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_header_and_index, rig_setup),
        cmocka_unit_test_setup(test_requests_and_bytes_are_few, rig_setup),
        cmocka_unit_test_setup(test_any_range, rig_setup),
        cmocka_unit_test_setup(test_what_came_with_the_header_is_not_asked_again, rig_setup),
        cmocka_unit_test_setup(test_connection_is_kept, rig_setup),
        cmocka_unit_test_setup(test_no_index, rig_setup),
        cmocka_unit_test_setup(test_index_that_is_not_waited_for, rig_setup),
        cmocka_unit_test_setup(test_page_instead_of_an_index, rig_setup),
        cmocka_unit_test_setup(test_broken_index, rig_setup),
        cmocka_unit_test_setup(test_index_that_is_being_made, rig_setup),
        cmocka_unit_test_setup(test_index_by_name, rig_setup),
        cmocka_unit_test_setup(test_token_is_not_sent_on, rig_setup),
        cmocka_unit_test_setup(test_signed_address_that_expires, rig_setup),
        cmocka_unit_test_setup(test_redirects_without_end, rig_setup),
        cmocka_unit_test_setup(test_token_is_needed, rig_setup),
        cmocka_unit_test_setup(test_servers_that_are_refused, rig_setup),
        cmocka_unit_test_setup(test_ignored_range_costs_little, rig_setup),
        cmocka_unit_test_setup(test_servers_that_fail_for_a_while, rig_setup),
        cmocka_unit_test_setup(test_retry_after_is_waited_for, rig_setup),
        cmocka_unit_test_setup(test_servers_that_fail_for_good, rig_setup),
        cmocka_unit_test_setup(test_half_a_body_is_gone_on_with, rig_setup),
        cmocka_unit_test_setup(test_file_that_changes, rig_setup),
        cmocka_unit_test_setup(test_if_range_only_with_strong_etags, rig_setup),
        cmocka_unit_test_setup(test_etag_of_a_coding_is_another, rig_setup),
        cmocka_unit_test_setup(test_the_first_origin_is_asked, rig_setup),
        cmocka_unit_test_setup(test_other_origin_instead, rig_setup),
        cmocka_unit_test_setup(test_no_origin_left, rig_setup),
        cmocka_unit_test_setup(test_distrusted_origin, rig_setup),
        cmocka_unit_test_setup(test_origin_whose_header_is_broken, rig_setup),
        cmocka_unit_test_setup(test_origin_with_another_model, rig_setup),
        cmocka_unit_test_setup(test_dead_origin, rig_setup),
        cmocka_unit_test_setup(test_stopping_a_reader, rig_setup),
        cmocka_unit_test_setup(test_cancelling_while_opening, rig_setup),
        cmocka_unit_test_setup(test_wrong_arguments, rig_setup),
    };
    return cmocka_run_group_tests(tests, group_setup, rig_teardown);
}
