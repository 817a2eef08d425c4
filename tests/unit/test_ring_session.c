/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "crypto/key.h"
#include "ring/session.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t key_a[SEAL_KEY_BYTES] = {1}, key_b[SEAL_KEY_BYTES] = {2};

struct ends {
    struct session a, b;
    struct session_reader reader; /* of b */
    struct buf wire;
    size_t wire_pos;
};

static void open_ends(struct ends *s)
{
    memset(s, 0, sizeof *s);
    session_init(&s->a, SEAL_CHACHA20, key_a, key_b);
    session_init(&s->b, SEAL_CHACHA20, key_b, key_a);
    assert_int_equal(session_reader_init(&s->reader, &s->b, NULL), OK);
}

static void close_ends(struct ends *s)
{
    session_reader_fini(&s->reader);
    session_wipe(&s->a);
    session_wipe(&s->b);
    buf_free(&s->wire);
}

/* Frame with a payload of len bytes, as plain bytes. */
static void put_frame(struct buf *out, size_t len, uint8_t seed)
{
    const struct frame_header h = {.type = FRAME_STEP, .length = (uint32_t)len, .step_id = seed, .request_id = len};
    uint8_t *p = buf_reserve(out, FRAME_HEADER_BYTES + len);
    assert_non_null(p);
    frame_header_put(p, &h);
    for (size_t i = 0; i < len; i++)
        p[FRAME_HEADER_BYTES + i] = (uint8_t)(i * 7 + seed);
    out->len += FRAME_HEADER_BYTES + len;
}

static void seal_all(struct ends *s, const uint8_t *data, size_t len, size_t record)
{
    for (size_t done = 0; done < len;) {
        size_t n = len - done < record ? len - done : record;
        uint8_t *p = buf_reserve(&s->wire, n + SESSION_RECORD_EXTRA);
        assert_non_null(p);
        session_seal(&s->a, data + done, n, p);
        s->wire.len += n + SESSION_RECORD_EXTRA;
        done += n;
    }
}

/* Feeds the wire in pieces of `piece` bytes until a frame, an error or the end. */
static enum err_code next(struct ends *s, size_t piece, bool *found, struct frame_header *h, const uint8_t **payload,
                          struct err *e)
{
    for (;;) {
        enum err_code rc = session_reader_next(&s->reader, found, h, payload, e);
        if (rc != OK || *found || s->wire_pos == s->wire.len)
            return rc;
        size_t room, n = s->wire.len - s->wire_pos;
        uint8_t *at = session_reader_room(&s->reader, &room);
        assert_true(room > 0);
        n = n < piece ? n : piece;
        n = n < room ? n : room;
        memcpy(at, s->wire.data + s->wire_pos, n);
        session_reader_got(&s->reader, n);
        s->wire_pos += n;
    }
}

static void expect_frame(struct ends *s, size_t piece, size_t len, uint8_t seed)
{
    struct frame_header h;
    const uint8_t *payload;
    bool found;
    struct err e;
    assert_int_equal(next(s, piece, &found, &h, &payload, &e), OK);
    assert_true(found);
    assert_int_equal(h.length, len);
    assert_int_equal(h.step_id, seed);
    for (size_t i = 0; i < len; i++)
        if (payload[i] != (uint8_t)(i * 7 + seed))
            fail_msg("byte %zu of %zu is wrong", i, len);
}

static void expect_nothing(struct ends *s)
{
    struct frame_header h;
    const uint8_t *payload;
    bool found;
    assert_int_equal(next(s, 1 << 20, &found, &h, &payload, NULL), OK);
    assert_false(found);
}

static enum err_code expect_error(struct ends *s, struct err *e)
{
    struct frame_header h;
    const uint8_t *payload;
    bool found;
    enum err_code rc = next(s, 1 << 20, &found, &h, &payload, e);
    assert_false(found);
    /* It stays failed. */
    assert_int_equal(session_reader_next(&s->reader, &found, &h, &payload, NULL), rc);
    assert_false(found);
    return rc;
}

static void test_frames_of_every_interesting_size_pass(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 65511, 65512, 65513, 65519, 65520, 65535, 65536, 65537, 1 << 20, 4 << 20};
    struct ends s;
    struct buf plain = {0};
    open_ends(&s);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        put_frame(&plain, sizes[i], (uint8_t)i);
    seal_all(&s, plain.data, plain.len, SESSION_RECORD_MAX);
    assert_int_equal(s.wire.len, session_wire_bytes(plain.len));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        expect_frame(&s, 100000, sizes[i], (uint8_t)i);
    expect_nothing(&s);
    assert_false(session_reader_partial(&s.reader));
    buf_free(&plain);
    close_ends(&s);
}

static void test_any_cut_of_stream_and_records_gives_the_same_frames(void **state)
{
    (void)state;
    static const size_t records[] = {1, 5, 23, 24, 25, 100, 1000};
    static const size_t pieces[] = {1, 3, 44, 1001};
    static const size_t sizes[] = {0, 700, 1, 0, 33};
    for (size_t r = 0; r < sizeof records / sizeof *records; r++) {
        for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
            struct ends s;
            struct buf plain = {0};
            open_ends(&s);
            for (size_t i = 0; i < 5; i++)
                put_frame(&plain, sizes[i], (uint8_t)i);
            seal_all(&s, plain.data, plain.len, records[r]);
            for (size_t i = 0; i < 5; i++)
                expect_frame(&s, pieces[p], sizes[i], (uint8_t)i);
            expect_nothing(&s);
            buf_free(&plain);
            close_ends(&s);
        }
    }
}

static void test_a_record_length_beyond_the_limit_is_refused(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0xffffffffu, 0, 16, SESSION_RECORD_MAX + SEAL_TAG_BYTES + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct ends s;
        struct err e;
        open_ends(&s);
        buf_put_u32(&s.wire, lengths[i]);
        assert_int_equal(expect_error(&s, &e), ERR_LIMIT);
        assert_non_null(strstr(e.msg, "65552"));
        close_ends(&s);
    }
}

static void test_every_changed_byte_is_noticed(void **state)
{
    (void)state;
    struct buf plain = {0};
    put_frame(&plain, 10, 3);
    for (size_t i = SESSION_HEAD_BYTES; i < plain.len + SESSION_RECORD_EXTRA; i++) {
        struct ends s;
        struct err e;
        open_ends(&s);
        seal_all(&s, plain.data, plain.len, SESSION_RECORD_MAX);
        s.wire.data[i] ^= 1;
        assert_int_equal(expect_error(&s, &e), ERR_AUTH);
        close_ends(&s);
    }
    buf_free(&plain);
}

static void test_a_changed_length_is_noticed(void **state)
{
    (void)state;
    struct buf plain = {0};
    struct ends s;
    struct err e;
    put_frame(&plain, 10, 3);
    open_ends(&s);
    seal_all(&s, plain.data, plain.len, SESSION_RECORD_MAX);
    s.wire.data[0]--; /* one byte shorter: still a plausible length */
    assert_int_equal(expect_error(&s, &e), ERR_AUTH);
    close_ends(&s);
    buf_free(&plain);
}

static void test_a_replayed_record_is_noticed(void **state)
{
    (void)state;
    struct buf plain = {0};
    struct ends s;
    struct err e;
    put_frame(&plain, 10, 3);
    open_ends(&s);
    seal_all(&s, plain.data, plain.len, SESSION_RECORD_MAX);
    size_t n = s.wire.len;
    uint8_t *copy = malloc(n);
    assert_non_null(copy);
    memcpy(copy, s.wire.data, n);
    buf_put(&s.wire, copy, n);
    free(copy);
    expect_frame(&s, 1 << 20, 10, 3);
    assert_int_equal(expect_error(&s, &e), ERR_AUTH);
    close_ends(&s);
    buf_free(&plain);
}

static void test_own_records_sent_back_are_noticed(void **state)
{
    (void)state;
    struct buf plain = {0};
    struct ends s;
    struct err e;
    uint8_t wire[200];
    put_frame(&plain, 10, 3);
    open_ends(&s);
    session_seal(&s.b, plain.data, plain.len, wire);
    buf_put(&s.wire, wire, plain.len + SESSION_RECORD_EXTRA);
    assert_int_equal(expect_error(&s, &e), ERR_AUTH);
    close_ends(&s);
    buf_free(&plain);
}

static void test_a_bad_frame_header_is_refused(void **state)
{
    (void)state;
    uint8_t bad[FRAME_HEADER_BYTES] = {0x4b, 0x46, 1, 99};
    struct ends s;
    struct err e;
    open_ends(&s);
    seal_all(&s, bad, sizeof bad, SESSION_RECORD_MAX);
    assert_int_equal(expect_error(&s, &e), ERR_PROTOCOL);
    close_ends(&s);
    open_ends(&s); /* the same in parts */
    seal_all(&s, bad, sizeof bad, 5);
    assert_int_equal(expect_error(&s, &e), ERR_PROTOCOL);
    close_ends(&s);
}

static void test_half_a_frame_is_seen_as_such(void **state)
{
    (void)state;
    struct buf plain = {0};
    struct ends s;
    put_frame(&plain, 100, 3);
    open_ends(&s);
    assert_false(session_reader_partial(&s.reader));
    seal_all(&s, plain.data, 50, SESSION_RECORD_MAX);
    expect_nothing(&s);
    assert_true(session_reader_partial(&s.reader));
    seal_all(&s, plain.data + 50, plain.len - 50, SESSION_RECORD_MAX);
    s.wire.len--;
    expect_nothing(&s);
    assert_true(session_reader_partial(&s.reader));
    s.wire.len++;
    expect_frame(&s, 1, 100, 3);
    assert_false(session_reader_partial(&s.reader));
    close_ends(&s);
    buf_free(&plain);
}

static void test_frames_pass_while_keys_change(void **state)
{
    (void)state;
    struct ends s;
    struct buf plain = {0};
    open_ends(&s);
    put_frame(&plain, 8, 1);
    s.a.tx.n = s.b.rx.n = SEAL_RECORDS_PER_KEY - 3; /* as if that many had passed */
    for (int i = 0; i < 20; i++) {
        seal_all(&s, plain.data, plain.len, 10); /* four records a frame: keys change within one */
        expect_frame(&s, 1 << 20, 8, 1);
    }
    assert_memory_not_equal(s.a.tx.key, key_a, sizeof key_a);
    close_ends(&s);
    buf_free(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_of_every_interesting_size_pass),
        cmocka_unit_test(test_any_cut_of_stream_and_records_gives_the_same_frames),
        cmocka_unit_test(test_a_record_length_beyond_the_limit_is_refused),
        cmocka_unit_test(test_every_changed_byte_is_noticed),
        cmocka_unit_test(test_a_changed_length_is_noticed),
        cmocka_unit_test(test_a_replayed_record_is_noticed),
        cmocka_unit_test(test_own_records_sent_back_are_noticed),
        cmocka_unit_test(test_a_bad_frame_header_is_refused),
        cmocka_unit_test(test_half_a_frame_is_seen_as_such),
        cmocka_unit_test(test_frames_pass_while_keys_change),
    };
    if (key_library_init(NULL) != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
