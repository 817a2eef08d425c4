/* SPDX-License-Identifier: MIT
 *
 * Event streams: whatever they are cut into, the same events come out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "http/sse.h"

#include <stdlib.h>
#include <string.h>

/* Events as "[one][two]". */
struct seen {
    struct buf text;
    unsigned n, stop_after; /* 0: never */
};

static bool on_event(void *ctx, const char *data, size_t len)
{
    struct seen *s = ctx;
    assert_int_equal(data[len], 0);
    buf_put_u8(&s->text, '[');
    buf_put(&s->text, data, len);
    buf_put_u8(&s->text, ']');
    return ++s->n != s->stop_after;
}

/* Fed whole, byte by byte, and cut in two at every place. */
static void check(const char *stream, const char *want)
{
    size_t n = strlen(stream);
    for (size_t cut = 0; cut <= n + 1; cut++) {
        struct seen seen = {0};
        struct sse s = {.ctx = &seen, .on_event = on_event};
        if (cut <= n) {
            assert_int_equal(sse_feed(&s, stream, cut, NULL), OK);
            assert_int_equal(sse_feed(&s, stream + cut, n - cut, NULL), OK);
        }
        for (size_t i = 0; cut > n && i < n; i++)
            assert_int_equal(sse_feed(&s, stream + i, 1, NULL), OK);
        assert_string_equal(buf_str(&seen.text), want);
        sse_fini(&s);
        buf_free(&seen.text);
    }
}

static void events_are_found(void **state)
{
    (void)state;
    check("data: {\"a\":1}\n\ndata: {\"b\":2}\n\ndata: [DONE]\n\n", "[{\"a\":1}][{\"b\":2}][[DONE]]");
    check("data:no blank\n\ndata:  two blanks\n\n", "[no blank][ two blanks]");
    check("", "");
}

static void every_line_end_counts(void **state)
{
    (void)state;
    check("data: a\r\n\r\ndata: b\r\n\r\n", "[a][b]");
    check("data: a\r\rdata: b\r\r", "[a][b]");
    check("data: a\r\ndata: b\n\r\n", "[a\nb]");
}

static void lines_of_data_are_joined(void **state)
{
    (void)state;
    check("data: one\ndata: two\ndata\ndata: four\n\n", "[one\ntwo\n\nfour]");
}

static void what_is_no_data_is_left_out(void **state)
{
    (void)state;
    check(": ping\n\n: ping\ndata: a\n\n", "[a]");
    check("event: message\nid: 7\nretry: 10\ndata: a\ndatas: b\n data: c\nDATA: d\n\n", "[a]");
    check("data:\n\ndata\n\n\n\ndata: a\n\n", "[a]");
}

static void an_event_that_is_cut_off_is_none(void **state)
{
    (void)state;
    check("data: a\n\ndata: b\n", "[a]");
    check("data: a\n\ndata: b", "[a]");
}

static void a_byte_order_mark_is_skipped(void **state)
{
    (void)state;
    check("\xef\xbb\xbf"
          "data: a\n\n\xef\xbb\xbf"
          "data: b\n\n",
          "[a]");
    check("\n\xef\xbb\xbf"
          "data: a\n\n",
          "");
}

static void the_reader_may_stop(void **state)
{
    (void)state;
    struct seen seen = {.stop_after = 1};
    struct sse s = {.ctx = &seen, .on_event = on_event};
    struct err e;
    const char *stream = "data: a\n\ndata: b\n\n";
    assert_int_equal(sse_feed(&s, stream, strlen(stream), &e), ERR_CANCELLED);
    assert_string_equal(buf_str(&seen.text), "[a]");
    sse_fini(&s);
    buf_free(&seen.text);
}

static void lines_and_events_have_a_limit(void **state)
{
    (void)state;
    struct seen seen = {0};
    struct err e;
    size_t n = SSE_MAX_EVENT / 2 + 100;
    char *half = malloc(n);
    assert_non_null(half);
    memset(half, 'x', n);
    struct sse one_line = {.ctx = &seen, .on_event = on_event};
    assert_int_equal(sse_feed(&one_line, half, n, &e), OK);
    assert_int_equal(sse_feed(&one_line, half, n, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "line"));
    sse_fini(&one_line);
    struct sse one_event = {.ctx = &seen, .on_event = on_event};
    assert_int_equal(sse_feed(&one_event, "data:", 5, &e), OK);
    half[n - 1] = '\n';
    assert_int_equal(sse_feed(&one_event, half, n, &e), OK);
    assert_int_equal(sse_feed(&one_event, "data:", 5, &e), OK);
    assert_int_equal(sse_feed(&one_event, half, n, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "event"));
    sse_fini(&one_event);
    free(half);
    assert_int_equal(seen.n, 0);
    buf_free(&seen.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_found),
        cmocka_unit_test(every_line_end_counts),
        cmocka_unit_test(lines_of_data_are_joined),
        cmocka_unit_test(what_is_no_data_is_left_out),
        cmocka_unit_test(an_event_that_is_cut_off_is_none),
        cmocka_unit_test(a_byte_order_mark_is_skipped),
        cmocka_unit_test(the_reader_may_stop),
        cmocka_unit_test(lines_and_events_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
