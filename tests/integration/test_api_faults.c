/* SPDX-License-Identifier: MIT
 *
 * The API when things go wrong: clients that go away, rings that are not whole or break, too many requests, wrong
 * routes, methods, keys and origins; and what a node says of itself. The names carry the rows of the list of faults.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "lib/api_rig.h"
#include "lib/test_util.h"
#include "lib/web.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

#define MODEL "llama-tied-f32"
#define HI    "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"temperature\":0"
#define CHATS "/v1/chat/completions"

#define SOME_STEPS 30 /* enough for a few tokens of each of two requests, and not for any text here to end */

static struct web call(struct api_rig *r, uint32_t rank, const char *method, const char *path, const char *headers,
                       const char *body)
{
    struct web w;
    if (!web_call(&w, api_rig_port(r, rank), method, path, headers, body))
        fail_msg("%s %s: no whole answer: %s", method, path, buf_str(&w.raw));
    return w;
}

/* The answer is an error in the API's shape. */
static void must_fail(struct web *w, unsigned status, const char *code, const char *says)
{
    yyjson_doc *d = yyjson_read(web_body(w), w->body.len, 0);
    yyjson_val *e = yyjson_obj_get(yyjson_doc_get_root(d), "error");
    const char *message = yyjson_get_str(yyjson_obj_get(e, "message"));
    const char *got = yyjson_get_str(yyjson_obj_get(e, "code"));
    if (w->status != status || !message || !strstr(message, says) || !got || strcmp(got, code) != 0)
        fail_msg("status %u, not %u %s \"%s\": %s", w->status, status, code, says, web_body(w));
    assert_true(yyjson_is_str(yyjson_obj_get(e, "type")));
    assert_non_null(yyjson_obj_get(e, "param"));
    assert_string_equal(web_header(w, "content-type"), "application/json");
    yyjson_doc_free(d);
    web_free(w);
}

static void fails(struct api_rig *r, const char *method, const char *path, const char *headers, const char *body,
                  unsigned status, const char *code, const char *says)
{
    struct web w = call(r, 0, method, path, headers, body);
    must_fail(&w, status, code, says);
}

static void succeeds(struct api_rig *r, uint32_t rank)
{
    struct web w = call(r, rank, "POST", CHATS, NULL, "{" HI ",\"max_tokens\":3}");
    if (w.status != 200)
        fail_msg("rank %u does not serve: %s", rank, web_body(&w));
    web_free(&w);
}

/* Asks until /metrics has this line. */
static void until_metric(struct api_rig *r, uint32_t rank, const char *line)
{
    uint64_t deadline = clock_deadline_ms(API_RIG_MS);
    for (bool there = false; !there; usleep(1000)) {
        struct web w = call(r, rank, "GET", "/metrics", NULL, NULL);
        there = strstr(web_body(&w), line) != NULL;
        if (!there && clock_now_ns() > deadline)
            fail_msg("rank %u: no %s in %s", rank, line, web_body(&w));
        web_free(&w);
    }
}

/* --- clients ------------------------------------------------------------------------------------- */

/* A client that goes away frees its slot at once, streaming or not, at whichever node. */
static void test_fault15_who_goes_frees_the_slot(void **state)
{
    struct web w, health;
    struct node_stats s;
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 3, 1);
    for (uint32_t i = 0; i < 6; i++) {
        const char *body = i % 2 ? "{" HI ",\"stream\":true}" : "{" HI ",\"stream\":false}";
        char gone[80];
        api_rig_allow(r, i % 2 ? SOME_STEPS : 0);
        assert_true(web_send(&w, api_rig_port(r, i / 2), "POST", CHATS, NULL, body));
        api_rig_until(r, 1, 1);
        if (i % 2)
            assert_true(web_until(&w, "\"content\":\"", API_RIG_MS));
        web_drop(&w);
        snprintf(gone, sizeof gone, "{route=\"/v1/chat/completions\",status=\"499\"} %u\n", i % 2 + 1);
        until_metric(r, i / 2, gone);
        api_rig_release(r);
        api_rig_idle(r);
        web_free(&w);
    }
    node_stats_get(r->node[0], &s);
    assert_true(s.sched.n_out_tok < 6 * 200); /* none ran to the end of the context */
    succeeds(r, 1);
    health = call(r, 0, "GET", "/metrics", NULL, NULL);
    assert_non_null(strstr(web_body(&health), "kvasir_cancels_total 2\n"));
    assert_non_null(strstr(web_body(&health), "kvasir_requests_total{kind=\"chat\",finish=\"cancelled\"} 2\n"));
    assert_non_null(strstr(web_body(&health), "{route=\"/v1/chat/completions\",status=\"499\"} 2\n"));
    web_free(&health);
    api_rig_free(r);
}

static void test_too_many_get_429(void **state)
{
    struct web w[3], late;
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 1, 1);
    r->config.max_requests = 3;
    api_rig_start(r, 0);
    api_rig_ready(r);
    api_rig_hold(r);
    for (int i = 0; i < 3; i++)
        assert_true(web_send(&w[i], api_rig_port(r, 0), "POST", CHATS, NULL, "{" HI ",\"max_tokens\":2}"));
    until_metric(r, 0, "kvasir_requests_running 3\n");
    late = call(r, 0, "POST", CHATS, NULL, "{" HI "}");
    assert_true(strtol(web_header(&late, "retry-after"), NULL, 10) >= 1);
    must_fail(&late, 429, "rate_limit_exceeded", "at most 3");
    fails(r, "POST", CHATS, NULL, "{" HI ",\"n\":4}", 400, "invalid_value", "4 choices");
    api_rig_release(r);
    for (int i = 0; i < 3; i++) {
        assert_true(web_end(&w[i], API_RIG_MS));
        assert_int_equal(w[i].status, 200);
        web_free(&w[i]);
    }
    succeeds(r, 0);
    api_rig_free(r);
}

/* What rank 0's queue refuses is a 429 at the node where it entered, also when it was to be a stream. */
static void test_a_full_queue_is_a_429_at_every_rank(void **state)
{
    struct web w[8];
    unsigned n_good = 0, n_busy = 0;
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 3, 1);
    r->max_waiting = 1;
    for (uint32_t i = 0; i < 3; i++)
        api_rig_start(r, i);
    api_rig_ready(r);
    api_rig_hold(r);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(web_send(&w[i], api_rig_port(r, i % 3), "POST", CHATS, NULL,
                             i % 2 ? "{" HI ",\"max_tokens\":2,\"stream\":true}" : "{" HI ",\"max_tokens\":2}"));
    struct node_stats k;
    uint64_t deadline = clock_deadline_ms(API_RIG_MS);
    do { /* until all of them are at rank 0: one that came later would find a place */
        usleep(1000);
        node_stats_get(r->node[0], &k);
    } while (k.sched.n_active + k.sched.n_waiting + k.sched.n_refused < 8 && clock_now_ns() < deadline);
    assert_int_equal(k.sched.n_active + k.sched.n_waiting, 2);
    assert_int_equal(k.sched.n_refused, 6);
    api_rig_release(r);
    for (uint32_t i = 0; i < 8; i++) {
        assert_true(web_end(&w[i], API_RIG_MS));
        if (w[i].status == 200) {
            n_good++;
            web_free(&w[i]);
            continue;
        }
        n_busy++;
        assert_non_null(web_header(&w[i], "retry-after"));
        must_fail(&w[i], 429, "rate_limit_exceeded", "busy");
    }
    assert_int_equal(n_good, 2);
    assert_int_equal(n_busy, 6);
    api_rig_free(r);
}

/* --- rings that are not whole -------------------------------------------------------------------- */

static void test_fault17_health_is_false_before_the_ring_is_whole(void **state)
{
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 3, 2);
    api_rig_start(r, 0);
    api_rig_start(r, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct web w = call(r, rank, "GET", "/health", NULL, NULL);
        assert_int_equal(w.status, 503);
        assert_non_null(strstr(web_body(&w), "\"reason\":\""));
        assert_non_null(web_header(&w, "retry-after"));
        web_free(&w);
        w = call(r, rank, "POST", CHATS, NULL, "{" HI "}");
        assert_non_null(web_header(&w, "retry-after"));
        must_fail(&w, 503, "ring_not_ready", "not whole");
        w = call(r, rank, "GET", "/v1/ring", NULL, NULL);
        assert_non_null(strstr(web_body(&w), "\"ready\":false"));
        web_free(&w);
    }
    api_rig_start(r, 2);
    api_rig_ready(r);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct web w = call(r, rank, "GET", "/health", NULL, NULL);
        assert_int_equal(w.status, 200);
        assert_string_equal(web_body(&w), "{\"status\":\"ok\"}");
        web_free(&w);
        succeeds(r, rank);
    }
    api_rig_free(r);
}

/* A rank dies: streams end with an error that says so, answers become 503, and all is well when it is back. */
static void test_fault18_a_dead_rank_ends_streams_with_an_error(void **state)
{
    struct web stream, whole;
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 3, 2);
    for (uint32_t entry = 0; entry < 3; entry += 2) {
        api_rig_allow(r, SOME_STEPS);
        assert_true(web_send(&stream, api_rig_port(r, entry), "POST", CHATS, NULL, "{" HI ",\"stream\":true}"));
        assert_true(web_until(&stream, "\"content\":\"", API_RIG_MS));
        assert_true(web_send(&whole, api_rig_port(r, entry), "POST", CHATS, NULL, "{" HI "}"));
        api_rig_until(r, 2, 2);
        api_rig_stop(r, 1);
        api_rig_release(r);
        assert_true(web_end(&stream, API_RIG_MS));
        assert_int_equal(stream.status, 200);
        assert_non_null(strstr(web_body(&stream), "data: {\"error\":{\"message\":\"the ring"));
        assert_null(strstr(web_body(&stream), "[DONE]"));
        assert_true(web_end(&whole, API_RIG_MS));
        must_fail(&whole, 503, "ring_broken", "the ring");
        struct web h = call(r, entry, "GET", "/health", NULL, NULL);
        assert_int_equal(h.status, 503);
        web_free(&h);
        web_free(&stream);
        api_rig_start(r, 1);
        api_rig_ready(r);
        succeeds(r, entry);
    }
    api_rig_free(r);
}

/* The text of a stream so far. */
static void stream_text(struct web *w, struct buf *out)
{
    struct buf copy = {0};
    buf_clear(out);
    buf_puts(&copy, web_body(w));
    for (char *save, *line = strtok_r((char *)(uintptr_t)buf_str(&copy), "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        yyjson_doc *d = strncmp(line, "data: {", 7) == 0 ? yyjson_read(line + 6, strlen(line + 6), 0) : NULL;
        const char *text = yyjson_get_str(yyjson_doc_ptr_get(d, "/choices/0/delta/content"));
        buf_puts(out, text ? text : "");
        yyjson_doc_free(d);
    }
    buf_free(&copy);
}

#define LONG_HI "{" HI ",\"seed\":1,\"max_tokens\":60"

static void answer_of(struct api_rig *r, uint32_t rank, struct buf *out)
{
    struct web w = call(r, rank, "POST", CHATS, NULL, LONG_HI "}");
    yyjson_doc *d = yyjson_read(web_body(&w), w.body.len, 0);
    const char *text = yyjson_get_str(yyjson_doc_ptr_get(d, "/choices/0/message/content"));
    if (w.status != 200 || !text || !text[0])
        fail_msg("rank %u: %s", rank, web_body(&w));
    assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/usage/completion_tokens")), 60);
    buf_clear(out);
    buf_puts(out, text);
    yyjson_doc_free(d);
    web_free(&w);
}

/* Whichever rank restarts in the middle of a text: what had come of it is right, and so is all that is asked later,
 * though the other ranks remember the prompt and this one does not. */
static void test_fault16_a_restart_in_the_middle_corrupts_nothing(void **state)
{
    struct buf want = {0}, got = {0};
    struct web w;
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 3, 2);
    answer_of(r, 0, &want);
    for (uint32_t rank = 0; rank < 3; rank++) {
        const uint32_t entry = (rank + 1) % 3;
        atomic_store(&r->held_rank, rank == 2 ? 1 : 2); /* not the one that goes: it must be able to */
        api_rig_allow(r, SOME_STEPS);
        assert_true(web_send(&w, api_rig_port(r, entry), "POST", CHATS, NULL, LONG_HI ",\"stream\":true}"));
        assert_true(web_until(&w, "\"content\":\"", API_RIG_MS));
        api_rig_stop(r, rank);
        api_rig_release(r);
        api_rig_start(r, rank);
        assert_true(web_end(&w, API_RIG_MS));
        assert_null(strstr(web_body(&w), "[DONE]"));
        assert_non_null(strstr(web_body(&w), "data: {\"error\":"));
        stream_text(&w, &got);
        assert_true(got.len > 0 && got.len < want.len);
        assert_memory_equal(got.data, want.data, got.len);
        web_free(&w);
        api_rig_ready(r);
        for (uint32_t i = 0; i < 4; i++) { /* the second and later ones too, at every entry */
            answer_of(r, (entry + i) % 3, &got);
            assert_string_equal(buf_str(&got), buf_str(&want));
        }
    }
    buf_free(&want);
    buf_free(&got);
    api_rig_free(r);
}

static void test_a_failed_step_is_a_500(void **state)
{
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 2, 2);
    atomic_store(&r->fail_code, ERR_NUMERIC);
    struct web w = call(r, 1, "POST", CHATS, NULL, "{" HI "}");
    must_fail(&w, 500, "ring_failed", "the test wants it so");
    atomic_store(&r->fail_code, ERR_DEVICE);
    w = call(r, 0, "POST", CHATS, NULL, "{" HI ",\"stream\":true}");
    must_fail(&w, 500, "ring_failed", "the test wants it so");
    succeeds(r, 0);
    w = call(r, 1, "GET", "/metrics", NULL, NULL);
    assert_non_null(strstr(web_body(&w), "kvasir_errors_total{code=\"ERR_NUMERIC\"} 1\n"));
    web_free(&w);
    api_rig_free(r);
}

/* --- stopping ------------------------------------------------------------------------------------ */

static void test_draining_lets_running_requests_end(void **state)
{
    struct web w;
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 2, 2);
    api_rig_hold(r);
    assert_true(web_send(&w, api_rig_port(r, 1), "POST", CHATS, NULL, "{" HI ",\"max_tokens\":5}"));
    api_rig_until(r, 1, 1);
    assert_false(api_drain(r->api[1], clock_deadline_ms(20)));
    struct web late = call(r, 1, "POST", CHATS, NULL, "{" HI "}");
    must_fail(&late, 503, "shutting_down", "about to stop");
    late = call(r, 1, "GET", "/health", NULL, NULL);
    assert_int_equal(late.status, 503);
    web_free(&late);
    api_rig_release(r);
    assert_true(api_drain(r->api[1], clock_deadline_ms(API_RIG_MS)));
    assert_true(web_end(&w, API_RIG_MS));
    assert_int_equal(w.status, 200);
    web_free(&w);
    api_rig_free(r);
}

static void test_stopping_cancels_what_runs(void **state)
{
    struct web w[4];
    struct node_stats s;
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 3, 2);
    api_rig_allow(r, SOME_STEPS);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(web_send(&w[i], api_rig_port(r, i % 3), "POST", CHATS, NULL, "{" HI ",\"stream\":true,\"n\":2}"));
    assert_true(web_until(&w[0], "\"content\":\"", API_RIG_MS));
    api_rig_release(r); /* what is cancelled ends with the step that it is in */
    for (uint32_t i = 0; i < 3; i++) {
        api_stop(r->api[i]);
        r->api[i] = NULL;
    }
    for (uint32_t i = 0; i < 4; i++)
        web_free(&w[i]);
    api_rig_idle(r);
    node_stats_get(r->node[0], &s);
    assert_int_equal(s.sched.n_active, 0);
    api_rig_free(r);
}

/* --- routes -------------------------------------------------------------------------------------- */

static void test_every_route_has_the_errors_shape(void **state)
{
    static const char *const gets[] = {"/",        "/favicon.ico", "/health",        "/metrics",
                                       "/v1/ring", "/v1/models",   "/v1/models/tiny"};
    static const char *const posts[] = {CHATS, "/v1/completions"};
    static const char *const wrong[] = {"PUT", "DELETE", "PATCH"};
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 1, 1);
    for (size_t i = 0; i < sizeof gets / sizeof *gets; i++) {
        struct web w = call(r, 0, "GET", gets[i], NULL, NULL);
        assert_int_equal(w.status, 200);
        assert_true(w.body.len > 0);
        size_t len = w.body.len;
        assert_int_equal(strtoul(web_header(&w, "content-length"), NULL, 10), len);
        web_free(&w);
        w = call(r, 0, "HEAD", gets[i], NULL, NULL);
        assert_true(w.status == 200 && w.body.len == 0);
        web_free(&w);
        w = call(r, 0, "POST", gets[i], NULL, "{}");
        assert_string_equal(web_header(&w, "allow"), "GET, HEAD, OPTIONS");
        must_fail(&w, 405, "method_not_allowed", "takes GET");
        w = call(r, 0, "OPTIONS", gets[i], NULL, NULL);
        assert_true(w.status == 204 && strcmp(web_header(&w, "allow"), "GET, HEAD, OPTIONS") == 0);
        web_free(&w);
    }
    for (size_t i = 0; i < 2; i++) {
        struct web w = call(r, 0, "GET", posts[i], NULL, NULL);
        assert_string_equal(web_header(&w, "allow"), "POST, OPTIONS");
        must_fail(&w, 405, "method_not_allowed", "takes POST");
        fails(r, "POST", posts[i], NULL, "{", 400, "invalid_json", "not JSON");
        fails(r, "POST", posts[i], NULL, "", 400, "invalid_json", "empty");
        for (size_t k = 0; k < 3; k++)
            fails(r, wrong[k], posts[i], NULL, NULL, 405, "method_not_allowed", wrong[k]);
    }
    fails(r, "GET", "/nothing", NULL, NULL, 404, "not_found", "/nothing");
    fails(r, "POST", "/v1/embeddings", NULL, "{}", 404, "not_found", "/v1/embeddings");
    fails(r, "GET", "/v1/models/other", NULL, NULL, 404, "model_not_found", "\"tiny\"");
    fails(r, "GET", "/v1/models/", NULL, NULL, 404, "model_not_found", "\"tiny\"");
    fails(r, "GET", "/v1/models/%22%7f%c3", NULL, NULL, 404, "model_not_found", "\"tiny\"");
    fails(r, "POST", CHATS, NULL, "{" HI ",\"model\":\"gpt-4o\"}", 404, "model_not_found", "gpt-4o");
    api_rig_free(r);
}

static void test_fault20_an_over_long_prompt_names_both_numbers(void **state)
{
    struct buf body = {0};
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 1, 1);
    buf_puts(&body, "{\"prompt\":[1");
    for (int i = 0; i < 511; i++)
        buf_puts(&body, ",5");
    buf_puts(&body, "]}");
    struct web w = call(r, 0, "POST", "/v1/completions", NULL, buf_str(&body));
    assert_non_null(strstr(web_body(&w), "context is 512"));
    must_fail(&w, 400, "context_length_exceeded", "512 tokens");
    buf_clear(&body);
    buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 2000; i++)
        buf_puts(&body, "xyz ");
    buf_puts(&body, "\"}]}");
    fails(r, "POST", CHATS, NULL, buf_str(&body), 400, "context_length_exceeded", "may take 511");
    buf_clear(&body);
    buf_puts(&body, "{\"prompt\":\"");
    for (int i = 0; i < 1100000; i++)
        buf_put_u8(&body, 'x');
    buf_puts(&body, "\"}");
    fails(r, "POST", "/v1/completions", NULL, buf_str(&body), 400, "context_length_exceeded", "1100000 bytes");
    buf_clear(&body);
    buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}"); /* each is some tokens all the same */
    for (int i = 1; i < 250000; i++)
        buf_puts(&body, ",{\"role\":\"user\",\"content\":\"\"}");
    buf_puts(&body, "]}");
    fails(r, "POST", CHATS, NULL, buf_str(&body), 400, "context_length_exceeded", "250000 messages");
    buf_free(&body);
    /* The longest that fits: the rest of the context is the answer's. */
    buf_puts(&body, "{\"temperature\":0,\"prompt\":[1");
    for (int i = 0; i < 510; i++)
        buf_puts(&body, ",5");
    buf_puts(&body, "]}");
    w = call(r, 0, "POST", "/v1/completions", NULL, buf_str(&body));
    assert_int_equal(w.status, 200);
    assert_non_null(strstr(web_body(&w), "\"finish_reason\":\"length\""));
    assert_non_null(strstr(web_body(&w), "\"prompt_tokens\":511,\"completion_tokens\":1,"));
    web_free(&w);
    buf_free(&body);
    api_rig_free(r);
}

/* --- keys and origins ---------------------------------------------------------------------------- */

static void write_keys(const char *path, const char *text)
{
    struct err e;
    if (io_write_file(path, text, strlen(text), 0600, &e) != OK)
        fail_msg("%s", e.msg);
}

static unsigned status_with(struct api_rig *r, const char *method, const char *path, const char *key)
{
    char header[256] = "";
    if (key)
        snprintf(header, sizeof header, "Authorization: %s\r\n", key);
    struct web w = call(r, 0, method, path, header, strcmp(method, "POST") == 0 ? "{" HI ",\"max_tokens\":1}" : NULL);
    unsigned status = w.status;
    if (status == 401) {
        assert_string_equal(web_header(&w, "www-authenticate"), "Bearer");
        must_fail(&w, 401, "invalid_api_key", "API key");
    } else {
        web_free(&w);
    }
    return status;
}

static void test_fault37_a_key_counts_on_every_route(void **state)
{
    static const char *const closed[][2] = {{"GET", "/metrics"},        {"GET", "/v1/ring"}, {"GET", "/v1/models"},
                                            {"GET", "/v1/models/tiny"}, {"POST", CHATS},     {"GET", CHATS},
                                            {"GET", "/nothing"},        {"DELETE", "/v1/x"}};
    static const char *const open[] = {"/", "/favicon.ico", "/health"};
    static const char *const bad[] = {NULL,
                                      "Bearer wrong-wrong-wrong",
                                      "Bearer",
                                      "Bearer ",
                                      "first-key-1234",
                                      "Basic first-key-1234",
                                      "Bearer first-key-123",
                                      "Bearer first-key-12345",
                                      "Bearer # comment"};
    char path[PATH_MAX];
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 1, 1);
    write_keys(test_scratch("keys", path), "# comment\n\n  first-key-1234 \r\nsecond-key-1234");
    r->config.keys_file = path;
    api_rig_start(r, 0);
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
            assert_int_equal(status_with(r, closed[i][0], closed[i][1], bad[k]), 401);
        assert_int_not_equal(status_with(r, closed[i][0], closed[i][1], "Bearer first-key-1234"), 401);
        assert_int_not_equal(status_with(r, closed[i][0], closed[i][1], "bearer  second-key-1234"), 401);
    }
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(status_with(r, "GET", open[i], NULL), 200);
    /* Another file: its keys count within a second or so, the old ones do not any more. */
    write_keys(path, "third-key-1234\n");
    uint64_t deadline = clock_deadline_ms(API_RIG_MS);
    while (status_with(r, "GET", "/v1/ring", "Bearer third-key-1234") != 200 && clock_now_ns() < deadline)
        usleep(50000);
    assert_int_equal(status_with(r, "GET", "/v1/ring", "Bearer third-key-1234"), 200);
    assert_int_equal(status_with(r, "GET", "/v1/ring", "Bearer first-key-1234"), 401);
    /* A file without keys, as it is while somebody writes it, changes nothing; a file with another key does. */
    write_keys(path, "# none\n");
    for (uint64_t until = clock_deadline_ms(1500); clock_now_ns() < until; usleep(50000))
        assert_int_equal(status_with(r, "GET", "/v1/ring", "Bearer third-key-1234"), 200);
    write_keys(path, "fourth-key-1234\n");
    deadline = clock_deadline_ms(API_RIG_MS);
    while (status_with(r, "GET", "/v1/ring", "Bearer fourth-key-1234") != 200 && clock_now_ns() < deadline)
        usleep(50000);
    assert_int_equal(status_with(r, "GET", "/v1/ring", "Bearer third-key-1234"), 401);
    api_rig_free(r);
    unlink(path);
}

static void test_bad_key_files_are_refused(void **state)
{
    static const char *const texts[] = {"", "# only a comment\n", "short\n", "two words here\n",
                                        "caf\xc3\xa9-key-123\n"};
    char path[PATH_MAX];
    struct err e;
    struct api *a;
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 1, 1);
    struct api_config c = r->config;
    c.keys_file = test_scratch("keys", path);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_keys(path, texts[i]);
        assert_int_equal(api_start(&c, &a, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, path));
    }
    unlink(path);
    assert_int_equal(api_start(&c, &a, &e), ERR_IO);
    c.keys_file = NULL;
    c.cors_origin = "not an origin";
    assert_int_equal(api_start(&c, &a, &e), ERR_ARG);
    c.cors_origin = NULL;
    c.access_log = "/nowhere/at/all";
    assert_int_equal(api_start(&c, &a, &e), ERR_IO);
    api_rig_free(r);
}

static void test_origins(void **state)
{
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 1, 1);
    r->config.cors_origin = "https://good.example";
    api_rig_start(r, 0);
    struct web w = call(r, 0, "OPTIONS", CHATS,
                        "Origin: https://good.example\r\nAccess-Control-Request-Method: POST\r\n"
                        "Access-Control-Request-Headers: authorization,x-stainless-os\r\n",
                        NULL);
    assert_int_equal(w.status, 204);
    assert_string_equal(web_header(&w, "access-control-allow-origin"), "https://good.example");
    assert_string_equal(web_header(&w, "access-control-allow-headers"), "authorization,x-stainless-os");
    web_free(&w);
    w = call(r, 0, "POST", CHATS, "Origin: https://good.example\r\n", "{" HI ",\"max_tokens\":1}");
    assert_int_equal(w.status, 200);
    assert_string_equal(web_header(&w, "access-control-allow-origin"), "https://good.example");
    assert_string_equal(web_header(&w, "vary"), "Origin");
    web_free(&w);
    w = call(r, 0, "POST", CHATS, "Origin: https://bad.example\r\n", "{" HI ",\"max_tokens\":1}");
    assert_null(web_header(&w, "access-control-allow-origin"));
    must_fail(&w, 403, "origin_not_allowed", "--cors");
    fails(r, "POST", CHATS, "Origin: null\r\n", "{" HI "}", 403, "origin_not_allowed", "null");
    char own[64];
    snprintf(own, sizeof own, "Origin: http://127.0.0.1:%u\r\n", api_rig_port(r, 0));
    w = call(r, 0, "POST", CHATS, own, "{" HI ",\"max_tokens\":1}"); /* the page of this node itself */
    assert_int_equal(w.status, 200);
    web_free(&w);
    api_rig_free(r);
}

/* A page whose name was made to lead to this machine is told so, on every route; this machine's own names are taken. */
static void test_a_loopback_node_has_no_strange_names(void **state)
{
    static const char *const good[] = {"127.0.0.1",      "127.0.0.1:80", "[::1]:9",     "localhost",
                                       "LocalHost:8080", "localhost.:1", "a.localhost", "chat.example.org",
                                       "Other:5",        "192.168.1.7"};
    static const char *const bad[] = {"evil.example",
                                      "evil.example:8080",
                                      "localhost.evil.example",
                                      "xlocalhost",
                                      "127.0.0.1.evil.example",
                                      "chat.example",
                                      "chat.example.org.evil",
                                      "[::1",
                                      "1.2.3",
                                      "other,chat.example.org"};
    static const char *const paths[] = {"/", "/health", "/metrics", "/v1/ring", "/nothing"};
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 1, 1);
    r->config.allow_host = "chat.example.org, other";
    r->config.cors_origin = "*";
    api_rig_start(r, 0);
    struct web w;
    char text[300];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", good[i]);
        if (!web_raw(&w, api_rig_port(r, 0), text, strlen(text)) || w.status == 403)
            fail_msg("%s: %s", good[i], buf_str(&w.raw));
        web_free(&w);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
            snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", paths[k], bad[i]);
            assert_true(web_raw(&w, api_rig_port(r, 0), text, strlen(text)));
            must_fail(&w, 403, "host_not_allowed", "--allow-host");
        }
    }
    snprintf(text, sizeof text, "OPTIONS /v1/ring HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_true(web_raw(&w, api_rig_port(r, 0), text, strlen(text)));
    must_fail(&w, 403, "host_not_allowed", "--allow-host");
    api_rig_free(r);
    r = api_rig_new(MODEL, 1, 1);
    r->config.addr = "0.0.0.0:0"; /* its names are not known here */
    api_rig_start(r, 0);
    snprintf(text, sizeof text, "GET /metrics HTTP/1.1\r\nHost: node7.lan\r\nConnection: close\r\n\r\n");
    assert_true(web_raw(&w, api_rig_port(r, 0), text, strlen(text)));
    assert_int_equal(w.status, 200);
    web_free(&w);
    api_rig_free(r);
}

/* --- what the HTTP server itself does not take ---------------------------------------------------- */

static void put_padded(struct buf *out, const char *before, size_t n, const char *after)
{
    buf_puts(out, before);
    for (size_t i = 0; i < n; i++)
        buf_put_u8(out, 'a');
    buf_puts(out, after);
}

/* A server with a short patience also closes connections on which nothing has come, which nobody counts or logs: this
 * thread may be so slow that it does so between connecting and sending. Then again. */
static struct web ask_raw(struct api_rig *r, const struct buf *text)
{
    const uint64_t deadline = clock_deadline_ms(API_RIG_MS);
    for (;;) {
        struct web w;
        if (web_raw(&w, api_rig_port(r, 0), text->data, text->len))
            return w;
        if (w.raw.len > 0 || clock_now_ns() > deadline)
            fail_msg("%.60s: no whole answer: %s", (const char *)text->data, buf_str(&w.raw));
        web_free(&w);
    }
}

/* It has the same shape, is counted, in the log, and readable for the pages that may read. */
static void test_refused_requests_look_like_all_others(void **state)
{
    static const struct {
        const char *before, *after;
        size_t n;
        unsigned status;
        const char *code, *says, *metric;
    } cases[] = {
        {"POST " CHATS
         " HTTP/1.1\r\nHost: localhost\r\nOrigin: https://good.example\r\nContent-Length: 9000000\r\n\r\n",
         "", 1000, 413, "body_too_large", "larger", "{route=\"" CHATS "\",status=\"413\"} 1\n"},
        {"POST " CHATS
         " HTTP/1.1\r\nHost: localhost\r\nOrigin: https://good.example\r\nTransfer-Encoding: chunked\r\n\r\n",
         "", 5, 411, "length_required", "content-length", "{route=\"" CHATS "\",status=\"411\"} 1\n"},
        {"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", "\r\n\r\n", 20000, 431, "headers_too_large", "larger",
         "{route=\"other\",status=\"431\"} 1\n"},
        {"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", "", 0, 400, "invalid_http", "path",
         "{route=\"other\",status=\"400\"} 1\n"},
        {"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", "", 0, 501, "method_not_known", "method",
         "{route=\"other\",status=\"501\"} 1\n"},
        {"POST " CHATS " HTTP/1.1\r\nHost: localhost\r\nOrigin: https://good.example\r\nContent-Length: 9\r\n\r\nhalf",
         "", 0, 408, "request_timeout", "in time", "{route=\"" CHATS "\",status=\"408\"} 1\n"},
        {"GET /heal", "", 0, 408, "request_timeout", "in time", "{route=\"other\",status=\"408\"} 1\n"},
    };
    const size_t n = sizeof cases / sizeof *cases;
    char path[PATH_MAX];
    struct buf log = {0}, text = {0};
    struct web w;
    struct err e;
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 1, 1);
    r->config.access_log = test_scratch("access", path);
    r->config.cors_origin = "https://good.example";
    r->config.head_ms = 300;
    unlink(path);
    api_rig_start(r, 0);
    for (size_t i = 0; i < n; i++) {
        buf_clear(&text);
        put_padded(&text, cases[i].before, cases[i].n, cases[i].after);
        w = ask_raw(r, &text);
        assert_string_equal(web_header(&w, "access-control-allow-origin"), "https://good.example");
        assert_memory_equal(web_header(&w, "x-request-id"),
                            strncmp(cases[i].before, "POST", 4) == 0 ? "chatcmpl-" : "req-", 4);
        must_fail(&w, cases[i].status, cases[i].code, cases[i].says);
    }
    buf_clear(&text);
    buf_puts(&text, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    w = ask_raw(r, &text);
    for (size_t i = 0; i < n; i++) {
        if (!strstr(web_body(&w), cases[i].metric))
            fail_msg("%s is not in %s", cases[i].metric, web_body(&w));
    }
    web_free(&w);
    api_rig_free(r);
    assert_int_equal(io_read_file(path, 1 << 20, &log, &e), OK);
    size_t at = 0;
    for (char *save, *line = strtok_r((char *)(uintptr_t)buf_str(&log), "\n", &save); line;
         line = strtok_r(NULL, "\n", &save), at++) {
        yyjson_doc *d = yyjson_read(line, strlen(line), 0);
        assert_non_null(d);
        assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/status")), at < n ? cases[at].status : 200);
        assert_memory_equal(yyjson_get_str(yyjson_doc_ptr_get(d, "/peer")), "127.0.0.1:", 10);
        assert_true(at >= n || cases[at].status != 408 || yyjson_get_num(yyjson_doc_ptr_get(d, "/ms")) >= 300);
        yyjson_doc_free(d);
    }
    assert_int_equal(at, n + 1);
    buf_free(&log);
    buf_free(&text);
    unlink(path);
}

static void test_too_many_connections_have_the_shape(void **state)
{
    struct web idle[2], w;
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 1, 1);
    r->config.max_connections = 2;
    api_rig_start(r, 0);
    api_rig_ready(r);
    api_rig_hold(r);
    for (int i = 0; i < 2; i++)
        assert_true(web_send(&idle[i], api_rig_port(r, 0), "POST", CHATS, NULL, "{" HI ",\"max_tokens\":2}"));
    assert_true(web_raw(&w, api_rig_port(r, 0), "", 0));
    assert_string_equal(web_header(&w, "retry-after"), "1");
    must_fail(&w, 503, "too_many_connections", "connections");
    api_rig_release(r);
    for (int i = 0; i < 2; i++) {
        assert_true(web_end(&idle[i], API_RIG_MS));
        web_free(&idle[i]);
    }
    api_rig_free(r);
}

/* --- what a node says of itself ------------------------------------------------------------------ */

/* Prometheus' text format: every sample belongs to the family that HELP and TYPE before it announce. */
static void test_metrics_are_well_formed(void **state)
{
    char family[128] = "", name[128];
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 2, 1);
    succeeds(r, 0);
    struct web w = call(r, 0, "GET", "/metrics", NULL, NULL);
    assert_memory_equal(web_header(&w, "content-type"), "text/plain; version=0.0.4", 25);
    unsigned n = 0;
    for (char *save, *line = strtok_r((char *)(uintptr_t)web_body(&w), "\n", &save); line;
         line = strtok_r(NULL, "\n", &save), n++) {
        if (sscanf(line, "# HELP %127s", name) == 1) {
            assert_string_not_equal(name, family);
            snprintf(family, sizeof family, "%s", name);
        } else if (sscanf(line, "# TYPE %127s", name) == 1) {
            assert_string_equal(name, family);
        } else {
            double value;
            char *end, *last = strrchr(line, ' ');
            assert_non_null(last);
            value = strtod(last + 1, &end);
            assert_true(*end == 0 && value >= 0);
            assert_memory_equal(line, family, strlen(family));
        }
    }
    assert_true(n > 60);
    web_free(&w);
    w = call(r, 0, "GET", "/metrics", NULL, NULL);
    static const char *const there[] = {
        "kvasir_generated_tokens_total 3\n", "kvasir_ring_ready 1\n", "kvasir_time_to_first_token_seconds_count 1\n",
        "kvasir_requests_total{kind=\"chat\",finish=\"length\"} 1\n", "kvasir_ring_generated_tokens_total 3\n"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        if (!strstr(web_body(&w), there[i]))
            fail_msg("%s is not in %s", there[i], web_body(&w));
    }
    web_free(&w);
    api_rig_free(r);
}

static void test_ring_state_at_every_rank(void **state)
{
    (void)state;
    struct api_rig *r = api_rig_up(MODEL, 3, 1);
    succeeds(r, 2);
    for (uint32_t rank = 0; rank < 3; rank++) {
        uint64_t deadline = clock_deadline_ms(API_RIG_MS), tok = 0;
        while (tok == 0 && clock_now_ns() < deadline) { /* the next probe brings it */
            struct web w = call(r, rank, "GET", "/v1/ring", NULL, NULL);
            yyjson_doc *d = yyjson_read(web_body(&w), w.body.len, 0);
            assert_non_null(d);
            assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/rank")), rank);
            assert_true(yyjson_get_bool(yyjson_doc_ptr_get(d, "/ready")));
            assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/ranks/2/end")), 6);
            assert_int_equal(yyjson_arr_size(yyjson_doc_ptr_get(d, "/ranks")), 3);
            assert_string_equal(yyjson_get_str(yyjson_doc_ptr_get(d, "/model/name")), "tiny");
            tok = yyjson_get_uint(yyjson_doc_ptr_get(d, "/ranks/1/tok"));
            yyjson_doc_free(d);
            web_free(&w);
        }
        assert_true(tok > 0);
    }
    api_rig_free(r);
}

static void test_the_access_log_has_no_prompts(void **state)
{
    char path[PATH_MAX];
    struct buf log = {0};
    struct err e;
    (void)state;
    struct api_rig *r = api_rig_new(MODEL, 1, 1);
    r->config.access_log = test_scratch("access", path);
    unlink(path);
    api_rig_start(r, 0);
    struct web w = call(r, 0, "POST", CHATS, "Authorization: Bearer hush-hush-hush\r\n",
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"xyzzy\"}],\"temperature\":0,\"max_tokens\":4,"
                        "\"user\":\"plugh\"}");
    web_free(&w);
    w = call(r, 0, "GET", "/a%22%7fb%c3?secret=plover", NULL, NULL);
    web_free(&w);
    api_rig_free(r);
    assert_int_equal(io_read_file(path, 1 << 20, &log, &e), OK);
    assert_null(strstr(buf_str(&log), "xyzzy"));
    assert_null(strstr(buf_str(&log), "plugh"));
    assert_null(strstr(buf_str(&log), "hush"));
    assert_null(strstr(buf_str(&log), "plover"));
    unsigned n = 0;
    for (char *save, *line = strtok_r((char *)log.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        yyjson_doc *d = yyjson_read(line, strlen(line), 0);
        if (!d)
            fail_msg("no JSON: %s", line);
        assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/status")), n == 0 ? 200 : 404);
        if (n == 0)
            assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/completion_tokens")), 4);
        yyjson_doc_free(d);
    }
    assert_int_equal(n, 2);
    buf_free(&log);
    unlink(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault15_who_goes_frees_the_slot),
        cmocka_unit_test(test_too_many_get_429),
        cmocka_unit_test(test_a_full_queue_is_a_429_at_every_rank),
        cmocka_unit_test(test_fault17_health_is_false_before_the_ring_is_whole),
        cmocka_unit_test(test_fault18_a_dead_rank_ends_streams_with_an_error),
        cmocka_unit_test(test_fault16_a_restart_in_the_middle_corrupts_nothing),
        cmocka_unit_test(test_a_failed_step_is_a_500),
        cmocka_unit_test(test_draining_lets_running_requests_end),
        cmocka_unit_test(test_stopping_cancels_what_runs),
        cmocka_unit_test(test_every_route_has_the_errors_shape),
        cmocka_unit_test(test_fault20_an_over_long_prompt_names_both_numbers),
        cmocka_unit_test(test_fault37_a_key_counts_on_every_route),
        cmocka_unit_test(test_bad_key_files_are_refused),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_a_loopback_node_has_no_strange_names),
        cmocka_unit_test(test_refused_requests_look_like_all_others),
        cmocka_unit_test(test_too_many_connections_have_the_shape),
        cmocka_unit_test(test_metrics_are_well_formed),
        cmocka_unit_test(test_ring_state_at_every_rank),
        cmocka_unit_test(test_the_access_log_has_no_prompts),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    alarm(1150);
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("api when things go wrong", tests, NULL, NULL);
}
