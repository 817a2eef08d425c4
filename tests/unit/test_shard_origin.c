/* SPDX-License-Identifier: MIT
 *
 * The origin over real sockets: files with ranges and preconditions, indexes, stage files of every window, keys,
 * hostile paths, folders that change while they are served.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "lib/maker.h"
#include "lib/test_util.h"
#include "lib/web.h"
#include "shard/origin_impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

#define WAIT_MS 60000u

static char dir[PATH_MAX]; /* what is served */

static const char *in_dir(const char *name, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        fail_msg("path too long");
    return out;
}

static struct buf read_all(const char *path)
{
    struct buf b = {0};
    struct err e;
    if (io_read_file(path, 1u << 30, &b, &e) != OK)
        fail_msg("%s", e.msg);
    return b;
}

static void put_file(const char *name, const void *data, size_t len)
{
    char path[PATH_MAX];
    struct err e;
    if (io_write_file(in_dir(name, path), data, len, 0644, &e) != OK)
        fail_msg("%s", e.msg);
}

/* A file of the test data, under another name. */
static struct buf copy_in(const char *data, const char *name)
{
    char path[PATH_MAX];
    struct buf b = read_all(test_data(data, path));
    put_file(name, b.data, b.len);
    return b;
}

static struct origin *start(const char *token)
{
    struct origin *o;
    struct err e;
    const struct origin_config c = {.dir = dir, .addr = "127.0.0.1:0", .token = token};
    if (origin_start(&c, &o, &e) != OK)
        fail_msg("%s", e.msg);
    return o;
}

static struct web call(const struct origin *o, const char *method, const char *path, const char *headers)
{
    struct web w;
    if (!web_call(&w, origin_port(o), method, path, headers, NULL))
        fail_msg("%s %s: no whole answer: %.300s", method, path, buf_str(&w.raw));
    return w;
}

static void must_say(struct web *w, unsigned status, const char *says)
{
    yyjson_doc *d = yyjson_read(web_body(w), w->body.len, 0);
    const char *text = yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(d), "error"));
    if (w->status != status || !text || !strstr(text, says))
        fail_msg("status %u, not %u \"%s\": %s", w->status, status, says, web_body(w));
    yyjson_doc_free(d);
    web_free(w);
}

static void fails(const struct origin *o, const char *path, unsigned status, const char *says)
{
    struct web w = call(o, "GET", path, NULL);
    must_say(&w, status, says);
}

static void must_be(struct web *w, unsigned status, const void *data, size_t len)
{
    if (w->status != status || w->body.len != len)
        fail_msg("status %u, %zu bytes; not %u, %zu: %.200s", w->status, w->body.len, status, len, web_body(w));
    if (len)
        assert_memory_equal(w->body.data, data, len);
    web_free(w);
}

/* Until the model's index is there. */
static void wait_indexed(const struct origin *o, const char *name)
{
    char path[300];
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    snprintf(path, sizeof path, "/models/%s.kvi", name);
    for (;;) {
        struct web w = call(o, "HEAD", path, NULL);
        const unsigned status = w.status;
        web_free(&w);
        if (status == 200)
            return;
        if (status != 503 || clock_now_ns() > deadline)
            fail_msg("%s: %u", path, status);
        usleep(1000);
    }
}

/* --- files --------------------------------------------------------------------------------------- */

static void test_range_headers(void **state)
{
    static const struct {
        const char *text;
        enum origin_range want;
        uint64_t first, len; /* of 1000 bytes */
    } cases[] = {
        {NULL, ORIGIN_RANGE_NONE, 0, 0},
        {"bytes=0-0", ORIGIN_RANGE_PART, 0, 1},
        {"bytes=0-", ORIGIN_RANGE_PART, 0, 1000},
        {"bytes=10-19", ORIGIN_RANGE_PART, 10, 10},
        {"Bytes=10-19", ORIGIN_RANGE_PART, 10, 10},
        {"bytes= 10-19 ", ORIGIN_RANGE_PART, 10, 10},
        {"bytes=999-", ORIGIN_RANGE_PART, 999, 1},
        {"bytes=990-5000", ORIGIN_RANGE_PART, 990, 10},
        {"bytes=0-18446744073709551615", ORIGIN_RANGE_PART, 0, 1000},
        {"bytes=0-99999999999999999999999999", ORIGIN_RANGE_PART, 0, 1000},
        {"bytes=-1", ORIGIN_RANGE_PART, 999, 1},
        {"bytes=-1000", ORIGIN_RANGE_PART, 0, 1000},
        {"bytes=-99999999999999999999999999", ORIGIN_RANGE_PART, 0, 1000},
        {"bytes=1000-", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=1000-1001", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=18446744073709551616-", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=-0", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=5-4", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=-", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=--5", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=+1-5", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=1-5x", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=0x1-5", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=1", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=1-5-9", ORIGIN_RANGE_BAD, 0, 0},
        {"bytes=0-1,5-6", ORIGIN_RANGE_NONE, 0, 0},
        {"bytes=0-1,", ORIGIN_RANGE_NONE, 0, 0},
        {"bytes", ORIGIN_RANGE_NONE, 0, 0},
        {"lines=1-2", ORIGIN_RANGE_NONE, 0, 0},
        {"", ORIGIN_RANGE_NONE, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t first = 0, len = 0;
        const enum origin_range got = origin_range_parse(cases[i].text, 1000, &first, &len);
        if (got != cases[i].want || (got == ORIGIN_RANGE_PART && (first != cases[i].first || len != cases[i].len)))
            fail_msg("%s: %d, %llu + %llu", cases[i].text, (int)got, (unsigned long long)first,
                     (unsigned long long)len);
    }
    uint64_t first, len;
    assert_int_equal(origin_range_parse("bytes=0-", 0, &first, &len), ORIGIN_RANGE_BAD);
    assert_int_equal(origin_range_parse("bytes=-5", 0, &first, &len), ORIGIN_RANGE_BAD);
}

static void test_files(void **state)
{
    (void)state;
    struct buf want = copy_in("llama-spm-q4_0.gguf", "a model.gguf");
    struct origin *o = start(NULL);
    char text[64], etag[64], headers[200];
    struct web w = call(o, "GET", "/models/a%20model.gguf", NULL);
    assert_string_equal(web_header(&w, "content-type"), "application/octet-stream");
    assert_string_equal(web_header(&w, "accept-ranges"), "bytes");
    snprintf(etag, sizeof etag, "%s", web_header(&w, "etag"));
    assert_true(etag[0] == '"' && strlen(etag) == 34);
    must_be(&w, 200, want.data, want.len);

    w = call(o, "HEAD", "/models/a%20model.gguf", "Range: bytes=5-9\r\n");
    snprintf(text, sizeof text, "%zu", want.len);
    assert_string_equal(web_header(&w, "content-length"), text);
    assert_string_equal(web_header(&w, "etag"), etag);
    must_be(&w, 200, NULL, 0);

    w = call(o, "GET", "/models/a%20model.gguf", "Range: bytes=1000-100999\r\n");
    snprintf(text, sizeof text, "bytes 1000-100999/%zu", want.len);
    assert_string_equal(web_header(&w, "content-range"), text);
    must_be(&w, 206, want.data + 1000, 100000);

    w = call(o, "GET", "/models/a%20model.gguf", "Range: bytes=-7\r\n");
    must_be(&w, 206, want.data + want.len - 7, 7);

    w = call(o, "GET", "/models/a%20model.gguf", "Range: bytes=0-1,5-6\r\n");
    must_be(&w, 200, want.data, want.len);

    snprintf(headers, sizeof headers, "Range: bytes=%zu-\r\n", want.len);
    w = call(o, "GET", "/models/a%20model.gguf", headers);
    snprintf(text, sizeof text, "bytes */%zu", want.len);
    assert_string_equal(web_header(&w, "content-range"), text);
    must_say(&w, 416, "range");
    origin_stop(o);
    buf_free(&want);
}

static unsigned status_with(const struct origin *o, const char *fmt, ...) KV_PRINTF(2, 3);
static unsigned status_with(const struct origin *o, const char *fmt, ...)
{
    char headers[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(headers, sizeof headers, fmt, ap);
    va_end(ap);
    struct web w = call(o, "GET", "/models/m.gguf", headers);
    const unsigned status = w.status;
    if (status == 304)
        assert_true(w.body.len == 0 && web_header(&w, "etag"));
    web_free(&w);
    return status;
}

static void test_preconditions(void **state)
{
    (void)state;
    static const char range[] = "Range: bytes=0-3\r\n", before[] = "Wed, 01 Jan 2020 00:00:00 GMT";
    struct buf data = copy_in("llama-tied-f32.gguf", "m.gguf");
    char etag[64], date[64], path[PATH_MAX];
    const struct timespec old[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000, .tv_nsec = 5}};
    assert_int_equal(utimensat(AT_FDCWD, in_dir("m.gguf", path), old, 0), 0);
    struct origin *o = start(NULL);
    struct web w = call(o, "HEAD", "/models/m.gguf", NULL);
    snprintf(etag, sizeof etag, "%s", web_header(&w, "etag"));
    snprintf(date, sizeof date, "%s", web_header(&w, "last-modified"));
    assert_string_equal(date, "Tue, 14 Nov 2023 22:13:20 GMT");
    web_free(&w);

    assert_int_equal(status_with(o, "If-None-Match: %s\r\n", etag), 304);
    assert_int_equal(status_with(o, "If-None-Match: W/%s\r\n", etag), 304);
    assert_int_equal(status_with(o, "If-None-Match: \"x\", %s\r\n", etag), 304);
    assert_int_equal(status_with(o, "If-None-Match: *\r\n"), 304);
    assert_int_equal(status_with(o, "If-None-Match: \"x\"\r\n"), 200);
    assert_int_equal(status_with(o, "If-None-Match: \"x\"\r\nIf-Modified-Since: %s\r\n", date), 200);
    assert_int_equal(status_with(o, "If-None-Match: %s\r\n%s", etag, range), 304);
    assert_int_equal(status_with(o, "If-Modified-Since: %s\r\n", date), 304);
    assert_int_equal(status_with(o, "If-Modified-Since: %s\r\n", before), 200);
    assert_int_equal(status_with(o, "If-Modified-Since: yesterday\r\n"), 200);
    assert_int_equal(status_with(o, "If-Unmodified-Since: %s\r\n", date), 200);
    assert_int_equal(status_with(o, "If-Unmodified-Since: %s\r\n", before), 412);
    assert_int_equal(status_with(o, "If-Match: %s\r\n%s", etag, range), 206);
    assert_int_equal(status_with(o, "If-Match: \"x\"\r\n%s", range), 412);
    assert_int_equal(status_with(o, "If-Match: W/%s\r\n%s", etag, range), 412);

    assert_int_equal(status_with(o, "%sIf-Range: %s\r\n", range, etag), 206);
    assert_int_equal(status_with(o, "%sIf-Range: \"x\"\r\n", range), 200);
    assert_int_equal(status_with(o, "%sIf-Range: W/%s\r\n", range, etag), 200);
    assert_int_equal(status_with(o, "%sIf-Range: %s\r\n", range, date), 206);
    assert_int_equal(status_with(o, "%sIf-Range: %s\r\n", range, before), 200);
    assert_int_equal(status_with(o, "%sIf-Range: Wed, 01 Jan 2035 00:00:00 GMT\r\n", range), 200);
    assert_int_equal(status_with(o, "Range: bytes=99999999-\r\nIf-Range: \"x\"\r\n"), 200);
    origin_stop(o);
    buf_free(&data);
}

static void test_split_models_are_one(void **state)
{
    (void)state;
    struct buf part[3];
    char name[64];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "llama-spm-q4_0-0000%d-of-00003.gguf", i + 1);
        part[i] = copy_in(name, name);
    }
    struct origin *o = start(NULL);
    struct web w = call(o, "GET", "/models", NULL);
    yyjson_doc *d = yyjson_read(web_body(&w), w.body.len, 0);
    assert_int_equal(yyjson_arr_size(yyjson_doc_ptr_get(d, "/models")), 1);
    assert_string_equal(yyjson_get_str(yyjson_doc_ptr_get(d, "/models/0/name")), "llama-spm-q4_0-00001-of-00003.gguf");
    assert_int_equal(yyjson_arr_size(yyjson_doc_ptr_get(d, "/models/0/files")), 3);
    assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/models/0/bytes")),
                     part[0].len + part[1].len + part[2].len);
    yyjson_doc_free(d);
    web_free(&w);
    for (int i = 0; i < 3; i++) {
        char path[96];
        snprintf(path, sizeof path, "/models/llama-spm-q4_0-0000%d-of-00003.gguf", i + 1);
        w = call(o, "GET", path, NULL);
        must_be(&w, 200, part[i].data, part[i].len);
        buf_free(&part[i]);
    }
    wait_indexed(o, "llama-spm-q4_0-00001-of-00003.gguf");
    fails(o, "/models/llama-spm-q4_0-00002-of-00003.gguf.kvi", 404, "ask for llama-spm-q4_0-00001-of-00003.gguf");
    fails(o, "/models/llama-spm-q4_0-00002-of-00003.gguf/stage?layers=0:1", 404, "ask for");
    origin_stop(o);
}

/* --- indexes and stage files --------------------------------------------------------------------- */

/* What `kvasir slice` writes. */
static struct buf slice_of(const char *path, uint32_t first, uint32_t end)
{
    char out[PATH_MAX];
    struct gguf *g;
    struct hparams h;
    struct index x;
    struct slice s;
    struct err e;
    if (gguf_open(path, &g, &e) != OK || hparams_read(g, &h, &e) != OK || index_compute(g, NULL, NULL, &x, &e) != OK ||
        slice_plan(g, &h, first, end, &x, &s, &e) != OK ||
        slice_write(g, &s, test_scratch("slice.gguf", out), NULL, NULL, &e) != OK)
        fail_msg("%s", e.msg);
    struct buf b = read_all(out);
    unlink(out);
    slice_fini(&s);
    index_fini(&x);
    hparams_fini(&h);
    gguf_close(g);
    return b;
}

static void check_windows(const struct origin *o, const char *name, uint32_t n_block)
{
    char path[PATH_MAX], url[300], range[100];
    in_dir(name, path);
    wait_indexed(o, name);
    for (uint32_t first = 0; first < n_block; first++) {
        for (uint32_t end = first + 1; end <= n_block; end++) {
            struct buf want = slice_of(path, first, end);
            snprintf(url, sizeof url, "/models/%s/stage?layers=%u:%u", name, first, end);
            struct web w = call(o, "GET", url, NULL);
            must_be(&w, 200, want.data, want.len);
            w = call(o, "HEAD", url, NULL);
            assert_true(strtoull(web_header(&w, "content-length"), NULL, 10) == want.len);
            web_free(&w);
            for (size_t k = 0; k < 4; k++) {
                const size_t a = k * want.len / 5 + k * 13, n = want.len / 7;
                snprintf(range, sizeof range, "Range: bytes=%zu-%zu\r\n", a, a + n - 1);
                w = call(o, "GET", url, range);
                must_be(&w, 206, want.data + a, n);
            }
            buf_free(&want);
        }
    }
}

static void test_stage_files_of_every_window(void **state)
{
    static const char *const names[] = {"llama-tied-f32.gguf", "qwen35moe-f32.gguf", "gemma3-f32.gguf"};
    static const uint32_t n_block[] = {6, 8, 7};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct buf b = copy_in(names[i], names[i]);
        struct origin *o = start(NULL);
        struct web w = call(o, "GET", "/models", NULL);
        yyjson_doc *d = yyjson_read(web_body(&w), w.body.len, 0);
        assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/models/0/blocks")), n_block[i]);
        yyjson_doc_free(d);
        web_free(&w);
        check_windows(o, names[i], n_block[i]);
        origin_stop(o);
        buf_free(&b);
        char path[PATH_MAX];
        unlink(in_dir(names[i], path));
    }
}

static void test_stage_files_of_a_split_model(void **state)
{
    (void)state;
    for (int i = 1; i <= 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "llama-spm-q4_0-0000%d-of-00003.gguf", i);
        struct buf b = copy_in(name, name);
        buf_free(&b);
    }
    struct origin *o = start(NULL);
    check_windows(o, "llama-spm-q4_0-00001-of-00003.gguf", 6);
    origin_stop(o);
}

/* A stage file in the folder: its windows come out as from the whole. */
static void test_stage_files_of_a_stage_file(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct buf half = slice_of(test_data("llama-tied-f32.gguf", path), 2, 6), want = slice_of(path, 3, 5);
    put_file("half.gguf", half.data, half.len);
    struct origin *o = start(NULL);
    struct origin_counts n;
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    do {
        usleep(1000);
        origin_count(o, &n);
    } while (n.n_indexed == 0 && clock_now_ns() < deadline);
    struct web w = call(o, "GET", "/models/half.gguf/stage?layers=3:5", NULL);
    must_be(&w, 200, want.data, want.len);
    fails(o, "/models/half.gguf/stage?layers=0:3", 404, "");
    fails(o, "/models/half.gguf.kvi", 404, "itself a stage file");
    origin_stop(o);
    buf_free(&half);
    buf_free(&want);
}

static void test_wrong_windows(void **state)
{
    static const char *const bad[] = {"",
                                      "?layers=",
                                      "?layers=3",
                                      "?layers=2:2",
                                      "?layers=3:2",
                                      "?layers=5:7",
                                      "?layers=-1:2",
                                      "?layers=0:2&x=1",
                                      "?stage=0:2",
                                      "?layers=0:99999999999"};
    (void)state;
    struct buf b = copy_in("llama-tied-f32.gguf", "m.gguf");
    struct origin *o = start(NULL);
    wait_indexed(o, "m.gguf");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char url[100];
        snprintf(url, sizeof url, "/models/m.gguf/stage%s", bad[i]);
        fails(o, url, 400, "");
    }
    origin_stop(o);
    buf_free(&b);
}

static void test_index_is_the_index(void **state)
{
    (void)state;
    struct buf b = copy_in("llama-tied-f32.gguf", "m.gguf");
    struct origin *o = start(NULL);
    struct index_file f;
    struct err e;
    wait_indexed(o, "m.gguf");
    struct web w = call(o, "GET", "/models/m.gguf.kvi", NULL);
    assert_string_equal(web_header(&w, "content-type"), "application/json");
    assert_int_equal(index_read(w.body.data, w.body.len, &f, &e), OK);
    char etag[100], hex[DIGEST_HEX_SIZE];
    snprintf(etag, sizeof etag, "If-None-Match: %s\r\n", web_header(&w, "etag"));
    web_free(&w);
    w = call(o, "GET", "/models/m.gguf.kvi", etag);
    must_be(&w, 304, NULL, 0);
    w = call(o, "GET", "/models", NULL);
    assert_non_null(strstr(web_body(&w), digest_hex(f.model_id, hex)));
    web_free(&w);
    index_file_fini(&f);
    origin_stop(o);
    buf_free(&b);
}

/* The first model of the folder takes long, so the second one waits; until the first is removed. */
static void test_index_comes_later(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct maker_params mp = maker_small();
    struct err e;
    mp.n_embd = 8192;
    mp.n_head = mp.n_head_kv = 64;
    mp.head_dim = 128;
    mp.n_ff = 32768;
    mp.n_block = 16;
    mp.holes = true; /* 68 GB that are not there */
    if (maker_write(in_dir("a.gguf", path), &mp, &e) != OK)
        fail_msg("%s", e.msg);
    struct buf b = copy_in("llama-tied-f32.gguf", "b.gguf");
    struct origin *o = start(NULL);
    struct web w = call(o, "GET", "/models/b.gguf.kvi", NULL);
    assert_true(strtoul(web_header(&w, "retry-after"), NULL, 10) >= 1);
    must_say(&w, 503, "being computed");
    fails(o, "/models/b.gguf/stage?layers=0:6", 503, "being computed");
    fails(o, "/models/a.gguf.kvi", 503, "being computed");
    w = call(o, "GET", "/models/b.gguf", NULL); /* the file itself does not wait */
    must_be(&w, 200, b.data, b.len);
    unlink(path);
    wait_indexed(o, "b.gguf");
    w = call(o, "GET", "/models/b.gguf/stage?layers=0:6", NULL);
    assert_int_equal(w.status, 200);
    web_free(&w);
    fails(o, "/models/a.gguf", 404, "no model a.gguf");
    origin_stop(o);
    buf_free(&b);
}

/* --- many at once -------------------------------------------------------------------------------- */

struct reader {
    pthread_t thread;
    const struct origin *o;
    const struct buf *file, *stage;
    unsigned seed, n_wrong;
};

static void *read_around(void *arg)
{
    struct reader *x = arg;
    for (int i = 0; i < 25; i++) {
        char range[100];
        const struct buf *want = rand_r(&x->seed) % 2 ? x->file : x->stage;
        const size_t a = (size_t)rand_r(&x->seed) % want->len, n = (size_t)rand_r(&x->seed) % (want->len - a) + 1;
        snprintf(range, sizeof range, "Range: bytes=%zu-%zu\r\n", a, a + n - 1);
        struct web w;
        const bool ok = web_call(&w, origin_port(x->o), "GET",
                                 want == x->file ? "/models/m.gguf" : "/models/m.gguf/stage?layers=1:4", range, NULL);
        x->n_wrong += !ok || w.status != 206 || w.body.len != n || memcmp(w.body.data, want->data + a, n) != 0;
        web_free(&w);
    }
    return NULL;
}

static void test_many_readers(void **state)
{
    (void)state;
    struct reader x[12] = {0};
    char path[PATH_MAX];
    struct err e;
    struct buf file = copy_in("llama-tied-f32.gguf", "m.gguf"), stage = slice_of(in_dir("m.gguf", path), 1, 4);
    struct origin *o = start(NULL);
    wait_indexed(o, "m.gguf");
    for (unsigned i = 0; i < 12; i++) {
        x[i] = (struct reader){.o = o, .file = &file, .stage = &stage, .seed = i};
        assert_int_equal(thread_start(&x[i].thread, "reader", read_around, &x[i], &e), OK);
    }
    for (unsigned i = 0; i < 12; i++) {
        pthread_join(x[i].thread, NULL);
        assert_int_equal(x[i].n_wrong, 0);
    }
    origin_stop(o);
    buf_free(&file);
    buf_free(&stage);
}

/* --- who may ask, and for what -------------------------------------------------------------------- */

static void test_token(void **state)
{
    static const char *const closed[] = {
        "/models",  "/models/m.gguf", "/models/m.gguf.kvi",  "/models/m.gguf/stage?layers=0:1",
        "/metrics", "/nothing",       "/models/nothing.gguf"};
    static const char *const bad[] = {"",
                                      "Authorization: Bearer wrong-token\r\n",
                                      "Authorization: Bearer\r\n",
                                      "Authorization: open-sesame\r\n",
                                      "Authorization: Basic open-sesame\r\n",
                                      "Authorization: Bearer open-sesam\r\n",
                                      "Authorization: Bearer open-sesame2\r\n"};
    (void)state;
    struct buf b = copy_in("llama-tied-f32.gguf", "m.gguf");
    struct origin *o = start("open-sesame");
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            struct web w = call(o, "GET", closed[i], bad[k]);
            assert_string_equal(web_header(&w, "www-authenticate"), "Bearer");
            must_say(&w, 401, "token");
        }
        struct web w = call(o, "GET", closed[i], "Authorization: bearer  open-sesame\r\n");
        assert_int_not_equal(w.status, 401);
        web_free(&w);
    }
    struct web w = call(o, "GET", "/health", NULL);
    assert_int_equal(w.status, 200);
    web_free(&w);
    origin_stop(o);
    buf_free(&b);
}

/* Nothing but what listing the folder gave can be named. */
static void test_hostile_paths(void **state)
{
    static const char *const paths[] = {
        "/models/../secret.gguf",
        "/models/%2e%2e/secret.gguf",
        "/models/..%2fsecret.gguf",
        "/models/%2e%2e%2fsecret.gguf",
        "/models/m.gguf/../../secret.gguf",
        "/models/m.gguf%2f..%2f..%2fsecret.gguf",
        "/models//secret.gguf",
        "/models/./secret.gguf",
        "/models/sub/inner.gguf",
        "/models/sub%2finner.gguf",
        "/models/.hidden.gguf",
        "/models/readme.txt",
        "/models/sub",
        "/models/..",
        "/models/..\\secret.gguf",
        "/models/m.gguf/",
        "/models/m.gguf/stage/../../../secret.gguf",
        "/models/M.GGUF",
        "/models/m.gguf.kvi.kvi",
        "/models/m.gguf/stage/stage?layers=0:1",
        "/models/.kvi",
        "/models/%20",
        "/models//etc/passwd",
        "/models/%2fetc%2fpasswd",
        "/secret.gguf",
        "/../../../../../../etc/passwd",
        "/models/dangling.gguf",
        "/models/folder.gguf",
        "/models/folder.gguf/inner.gguf",
    };
    char path[PATH_MAX], sub[PATH_MAX];
    (void)state;
    struct buf b = copy_in("llama-tied-f32.gguf", "m.gguf");
    snprintf(path, sizeof path, "%.4000s/../secret.gguf", dir);
    struct err e;
    assert_int_equal(io_write_file(path, b.data, b.len, 0644, &e), OK);
    assert_int_equal(mkdir(in_dir("sub", sub), 0755), 0);
    assert_int_equal(mkdir(in_dir("folder.gguf", sub), 0755), 0);
    put_file("sub/inner.gguf", b.data, b.len);
    put_file("folder.gguf/inner.gguf", b.data, b.len);
    put_file(".hidden.gguf", b.data, b.len);
    put_file("readme.txt", b.data, b.len);
    assert_int_equal(symlink("nowhere.gguf", in_dir("dangling.gguf", sub)), 0);
    assert_int_equal(symlink(path, in_dir("link.gguf", sub)), 0);
    struct origin *o = start(NULL);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct web w;
        char text[300];
        const int n =
            snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", paths[i]);
        assert_true(web_raw(&w, origin_port(o), text, (size_t)n));
        if (w.status != 404 && w.status != 400)
            fail_msg("%s: %u", paths[i], w.status);
        assert_true(w.body.len < 500);
        web_free(&w);
    }
    struct web w = call(o, "GET", "/models/link.gguf", NULL); /* somebody put it there on purpose */
    must_be(&w, 200, b.data, b.len);
    w = call(o, "POST", "/models/m.gguf", NULL);
    assert_string_equal(web_header(&w, "allow"), "GET, HEAD");
    must_say(&w, 405, "POST");
    assert_true(web_raw(&w, origin_port(o), "GET /models HTTP/1.1\r\n\r\n", 24));
    must_say(&w, 400, "host");
    origin_stop(o);
    unlink(path);
    buf_free(&b);
}

/* --- folders that change ------------------------------------------------------------------------- */

#define HOLE_BLOCKS 4

/* 66 MB that take no room: more than sockets hold. */
static void make_holes(const char *name, uint64_t seed)
{
    char path[PATH_MAX];
    struct maker_params mp = maker_small();
    struct err e;
    mp.n_embd = 512;
    mp.n_head = mp.n_head_kv = 8;
    mp.head_dim = 64;
    mp.n_ff = 2048;
    mp.n_block = HOLE_BLOCKS;
    mp.holes = true;
    mp.seed = seed;
    mp.name = seed == 1 ? "one" : "two";
    if (maker_write(in_dir(name, path), &mp, &e) != OK)
        fail_msg("%s", e.msg);
}

/* Begins to fetch and takes no more than the first bytes. */
static void begin_slowly(struct web *w, const struct origin *o, const char *path)
{
    const int small = 65536;
    assert_true(web_send(w, origin_port(o), "GET", path, NULL, NULL));
    setsockopt(w->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_true(web_until(w, "\r\n\r\nGGUF", WAIT_MS));
    assert_int_equal(w->status, 200);
}

static void test_a_replaced_file_is_served_to_its_end(void **state)
{
    (void)state;
    char from[PATH_MAX], to[PATH_MAX];
    struct web w, again;
    make_holes("m.gguf", 1);
    struct buf old = read_all(in_dir("m.gguf", to));
    struct origin *o = start(NULL);
    begin_slowly(&w, o, "/models/m.gguf");
    char etag[64];
    snprintf(etag, sizeof etag, "%s", web_header(&w, "etag"));
    make_holes("new", 2);
    assert_int_equal(rename(in_dir("new", from), to), 0);
    struct buf now = read_all(to);
    assert_true(now.len != old.len || memcmp(now.data, old.data, now.len) != 0);
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    bool same;
    do { /* it is seen within a second */
        again = call(o, "HEAD", "/models/m.gguf", NULL);
        same = strcmp(web_header(&again, "etag"), etag) == 0;
        web_free(&again);
        usleep(20000);
    } while (same && clock_now_ns() < deadline);
    assert_false(same);
    again = call(o, "GET", "/models/m.gguf", "Range: bytes=0-99999\r\n");
    must_be(&again, 206, now.data, 100000);
    assert_true(web_end(&w, WAIT_MS));
    must_be(&w, 200, old.data, old.len);
    origin_stop(o);
    buf_free(&old);
    buf_free(&now);
}

static void test_a_file_that_is_written_to_is_cut(void **state)
{
    (void)state;
    for (int stage = 0; stage < 2; stage++) {
        char path[PATH_MAX], url[64];
        struct web w;
        make_holes("m.gguf", 1);
        struct origin *o = start(NULL);
        wait_indexed(o, "m.gguf");
        snprintf(url, sizeof url, stage ? "/models/m.gguf/stage?layers=0:%d" : "/models/m.gguf", HOLE_BLOCKS);
        begin_slowly(&w, o, url);
        const uint64_t length = strtoull(web_header(&w, "content-length"), NULL, 10);
        FILE *f = fopen(in_dir("m.gguf", path), "r+");
        if (!f) {
            fail_msg("%s cannot be opened", path);
            return;
        }
        assert_int_equal(fseek(f, -5000, SEEK_END), 0);
        assert_int_equal(fputs("other", f) < 0, 0);
        assert_int_equal(fclose(f), 0);
        assert_false(web_end(&w, WAIT_MS)); /* cut short */
        assert_true(w.body.len > 0 && w.body.len < length);
        assert_null(memmem(w.body.data, w.body.len, "other", 5));
        web_free(&w);
        origin_stop(o);
    }
}

static bool is_listed(const struct origin *o, const char *name)
{
    struct web w = call(o, "GET", "/models", NULL);
    const bool there = strstr(web_body(&w), name) != NULL;
    web_free(&w);
    return there;
}

static void wait_listed(const struct origin *o, const char *name, bool want)
{
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    while (is_listed(o, name) != want) {
        if (clock_now_ns() > deadline)
            fail_msg("%s is %s", name, want ? "not listed" : "still listed");
        usleep(20000);
    }
}

static void test_models_come_and_go(void **state)
{
    (void)state;
    char path[PATH_MAX];
    put_file("junk.gguf", "this is no model", 16);
    struct origin *o = start(NULL);
    assert_false(is_listed(o, "junk.gguf"));
    fails(o, "/models/junk.gguf", 404, "no model");
    struct buf b = copy_in("llama-tied-f32.gguf", "late.gguf");
    wait_listed(o, "late.gguf", true);
    put_file("half.gguf", b.data, b.len / 2); /* is being copied */
    wait_listed(o, "late.gguf", true);
    assert_false(is_listed(o, "half.gguf"));
    put_file("half.gguf", b.data, b.len);
    wait_listed(o, "half.gguf", true);
    unlink(in_dir("late.gguf", path));
    wait_listed(o, "late.gguf", false);
    /* A split model is there once all its parts are. */
    static const char *const parts[] = {"llama-spm-q4_0-00001-of-00003.gguf", "llama-spm-q4_0-00003-of-00003.gguf",
                                        "llama-spm-q4_0-00002-of-00003.gguf"};
    for (int i = 0; i < 3; i++) {
        assert_false(is_listed(o, "q4_0"));
        struct buf part = copy_in(parts[i], parts[i]);
        buf_free(&part);
    }
    wait_listed(o, parts[0], true);
    origin_stop(o);
    buf_free(&b);
}

/* A family that cannot be run is served all the same; only what needs to understand it is not. */
static void test_a_model_that_is_not_understood(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct maker_params mp = maker_small();
    struct err e;
    mp.broken_key = "llama.block_count";
    mp.broken_key_how = MAKER_KEY_DROP;
    if (maker_write(in_dir("odd.gguf", path), &mp, &e) != OK)
        fail_msg("%s", e.msg);
    struct buf b = read_all(path);
    struct origin *o = start(NULL);
    struct web w = call(o, "GET", "/models/odd.gguf", NULL);
    must_be(&w, 200, b.data, b.len);
    fails(o, "/models/odd.gguf.kvi", 404, "block_count");
    fails(o, "/models/odd.gguf/stage?layers=0:1", 404, "block_count");
    origin_stop(o);
    buf_free(&b);
}

/* --- what it says of itself ---------------------------------------------------------------------- */

static void test_metrics(void **state)
{
    (void)state;
    struct buf b = copy_in("llama-tied-f32.gguf", "m.gguf");
    struct origin *o = start(NULL);
    struct origin_counts n;
    wait_indexed(o, "m.gguf");
    origin_count(o, &n);
    const uint64_t before = n.n_requests;
    struct web w = call(o, "GET", "/models/m.gguf", "Range: bytes=0-9999\r\n");
    must_be(&w, 206, b.data, 10000);
    w = call(o, "GET", "/models/m.gguf", "Range: bytes=-5\r\n");
    must_be(&w, 206, b.data + b.len - 5, 5);
    w = call(o, "HEAD", "/models/m.gguf", NULL);
    must_be(&w, 200, NULL, 0);
    fails(o, "/models/x.gguf", 404, "no model");
    assert_true(web_raw(&w, origin_port(o), "BREW / HTTP/1.1\r\n\r\n", 19));
    must_say(&w, 501, "method");
    w = call(o, "GET", "/metrics", NULL);
    static const char *const there[] = {"kvasir_origin_body_bytes_total{model=\"m.gguf\"} 10005\n",
                                        "kvasir_origin_requests_total{status=\"206\"} 2\n",
                                        "kvasir_origin_requests_total{status=\"404\"} 1\n",
                                        "kvasir_origin_requests_total{status=\"501\"} 1\n",
                                        "kvasir_origin_requests_running 1\n",
                                        "kvasir_origin_models 1\n",
                                        "kvasir_origin_models_indexed 1\n"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        if (!strstr(web_body(&w), there[i]))
            fail_msg("%s is not in %s", there[i], web_body(&w));
    web_free(&w);
    origin_count(o, &n);
    assert_int_equal(n.n_requests - before, 6);
    assert_int_equal(n.body_bytes, 10005);
    assert_int_equal(n.n_models, 1);
    assert_int_equal(n.n_indexed, 1);
    origin_stop(o);
    buf_free(&b);
}

static void test_stop_while_it_sends(void **state)
{
    (void)state;
    struct web w[3];
    make_holes("m.gguf", 1);
    struct origin *o = start(NULL);
    wait_indexed(o, "m.gguf");
    for (int i = 0; i < 3; i++)
        begin_slowly(&w[i], o, i ? "/models/m.gguf" : "/models/m.gguf/stage?layers=1:3");
    struct origin_counts n;
    origin_count(o, &n);
    assert_int_equal(n.n_open, 3);
    origin_stop(o);
    for (int i = 0; i < 3; i++) {
        assert_false(web_end(&w[i], WAIT_MS));
        web_free(&w[i]);
    }
}

static void test_wrong_starts(void **state)
{
    (void)state;
    char path[PATH_MAX], addr[32];
    struct origin *o, *other;
    struct err e;
    put_file("file", "x", 1);
    struct origin_config c = {.dir = "/nowhere/at/all", .addr = "127.0.0.1:0"};
    assert_int_equal(origin_start(&c, &o, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "/nowhere/at/all"));
    c.dir = in_dir("file", path);
    assert_int_equal(origin_start(&c, &o, &e), ERR_ARG);
    c.dir = dir;
    c.token = "";
    assert_int_equal(origin_start(&c, &o, &e), ERR_ARG);
    c.token = NULL;
    c.addr = "here";
    assert_int_equal(origin_start(&c, &o, &e), ERR_ARG);
    c.addr = "127.0.0.1:0";
    assert_int_equal(origin_start(&c, &o, &e), OK);
    assert_null(origin_name(o, 0));
    snprintf(addr, sizeof addr, "127.0.0.1:%u", origin_port(o));
    c.addr = addr;
    assert_int_equal(origin_start(&c, &other, &e), ERR_IO);
    origin_stop(o);
    origin_stop(NULL);
}

static int set_up(void **state)
{
    (void)state;
    char home[PATH_MAX], top[PATH_MAX];
    setenv("KVASIR_HOME", test_scratch("origin-home", home), 1);
    test_scratch("origin", top);
    if (snprintf(dir, sizeof dir, "%.4000s/models", top) < 0)
        return 1;
    struct err e;
    return io_mkdirs(home, 0755, &e) != OK || io_mkdirs(dir, 0755, &e) != OK;
}

static int tear_down(void **state)
{
    (void)state;
    char path[PATH_MAX];
    test_remove_tree(test_scratch("origin", path));
    test_remove_tree(test_scratch("origin-home", path));
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_range_headers),
        TEST(test_files),
        TEST(test_preconditions),
        TEST(test_split_models_are_one),
        TEST(test_stage_files_of_every_window),
        TEST(test_stage_files_of_a_split_model),
        TEST(test_stage_files_of_a_stage_file),
        TEST(test_wrong_windows),
        TEST(test_index_is_the_index),
        TEST(test_index_comes_later),
        TEST(test_many_readers),
        TEST(test_token),
        TEST(test_hostile_paths),
        TEST(test_a_replaced_file_is_served_to_its_end),
        TEST(test_a_file_that_is_written_to_is_cut),
        TEST(test_models_come_and_go),
        TEST(test_a_model_that_is_not_understood),
        TEST(test_metrics),
        TEST(test_stop_while_it_sends),
        TEST(test_wrong_starts),
    };
    struct err e;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (key_library_init(&e) != OK)
        return 1;
    alarm(580);
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("origin", tests, NULL, NULL);
}
