/* SPDX-License-Identifier: MIT
 *
 * Bytes: growing buffers, little-endian values, cursors that never go past the end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void values_are_little_endian(void **state)
{
    (void)state;
    struct buf b = {0};
    static const uint8_t want[] = {0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e, 0x0d,
                                   0x0c, 0x0b, 0x0a, 0x09, 0x08, 0x00, 0x00, 0x80, 0x3f};
    buf_put_u8(&b, 0x01);
    buf_put_u16(&b, 0x0203);
    buf_put_u32(&b, 0x04050607);
    buf_put_u64(&b, 0x08090a0b0c0d0e0f);
    buf_put_f32(&b, 1.0f);
    assert_false(b.failed);
    assert_int_equal(b.len, sizeof want);
    assert_memory_equal(b.data, want, sizeof want);
    struct cursor c = cursor_of(b.data, b.len);
    struct err e;
    assert_int_equal(cursor_u8(&c), 0x01);
    assert_int_equal(cursor_u16(&c), 0x0203);
    assert_int_equal(cursor_u32(&c), 0x04050607);
    assert_true(cursor_u64(&c) == 0x08090a0b0c0d0e0full);
    assert_true(cursor_f32(&c) == 1.0f);
    assert_int_equal(cursor_left(&c), 0);
    assert_int_equal(cursor_finish(&c, "it", &e), OK);
    buf_free(&b);
}

static void raw_access_may_be_unaligned(void **state)
{
    (void)state;
    uint8_t p[16] = {0};
    for (size_t at = 0; at < 8; at++) {
        le_put_u64(p + at, 0xfedcba9876543210ull);
        assert_true(le_get_u64(p + at) == 0xfedcba9876543210ull);
        le_put_u32(p + at, 0xffeeddcc);
        assert_int_equal(le_get_u32(p + at), 0xffeeddcc);
        le_put_u16(p + at, 0xff01);
        assert_int_equal(le_get_u16(p + at), 0xff01);
    }
}

static void floats_keep_their_bits(void **state)
{
    (void)state;
    static const float v[] = {0.0f, -0.0f, INFINITY, -INFINITY, 1e-45f, 3.4e38f, 0.1f};
    struct buf b = {0};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        buf_put_f32(&b, v[i]);
    struct cursor c = cursor_of(b.data, b.len);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        float f = cursor_f32(&c);
        assert_memory_equal(&f, &v[i], sizeof f);
    }
    buf_free(&b);
}

static void a_buffer_grows_and_keeps_what_it_has(void **state)
{
    (void)state;
    struct buf b = {0};
    for (uint32_t i = 0; i < 100000; i++)
        buf_put_u32(&b, i);
    assert_int_equal(b.len, 400000);
    for (uint32_t i = 0; i < 100000; i += 999)
        assert_int_equal(le_get_u32(b.data + 4 * (size_t)i), i);
    size_t cap = b.cap;
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_int_equal(b.cap, cap);
    buf_free(&b);
    assert_null(b.data);
    buf_free(&b);
}

static void reserving_moves_nothing(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_non_null(buf_reserve(&b, 0));
    buf_puts(&b, "abc");
    uint8_t *p = buf_reserve(&b, 1000);
    assert_int_equal(b.len, 3);
    assert_ptr_equal(p, b.data + 3);
    assert_memory_equal(b.data, "abc", 3);
    buf_free(&b);
}

static void an_impossible_size_fails_for_good(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_puts(&b, "abc");
    assert_null(buf_reserve(&b, SIZE_MAX));
    assert_true(b.failed);
    assert_null(buf_reserve(&b, 1));
    buf_put_u32(&b, 1);
    buf_printf(&b, "%d", 5);
    assert_int_equal(b.len, 3);
    assert_string_equal(buf_str(&b), "");
    buf_clear(&b);
    buf_put_u8(&b, 7);
    assert_int_equal(b.len, 1);
    buf_free(&b);
}

static void text_can_be_put_and_ended(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_string_equal(buf_str(&b), "");
    buf_puts(&b, "rank ");
    buf_printf(&b, "%d of %s", 2, "three");
    assert_string_equal(buf_str(&b), "rank 2 of three");
    assert_int_equal(b.len, 15); /* the end is not counted */
    buf_puts(&b, "!");
    assert_string_equal(buf_str(&b), "rank 2 of three!");
    for (int i = 0; i < 300; i++)
        buf_printf(&b, "%s", "0123456789");
    assert_int_equal(b.len, 3016);
    assert_int_equal(strlen(buf_str(&b)), 3016);
    buf_free(&b);
}

/* Memory of just the length, so that ASan sees a byte too far. */
static void after_the_end_everything_is_zero(void **state)
{
    (void)state;
    for (size_t len = 0; len < 9; len++) {
        uint8_t *p = malloc(len ? len : 1);
        memset(p, 0xff, len ? len : 1);
        struct cursor c = cursor_of(p, len);
        struct err e;
        uint64_t v = cursor_u64(&c);
        assert_true(v == (len >= 8 ? UINT64_MAX : 0));
        assert_int_equal(c.short_read, len < 8);
        if (len < 8) {
            assert_int_equal(cursor_u8(&c), 0); /* sticky, though there are bytes */
            assert_null(cursor_bytes(&c, 0));
            assert_int_equal(cursor_left(&c), 0);
            assert_int_equal(cursor_finish(&c, "the frame", &e), ERR_FORMAT);
            assert_non_null(strstr(e.msg, "the frame is cut short"));
        }
        free(p);
    }
}

static void bytes_are_views_within_the_data(void **state)
{
    (void)state;
    uint8_t data[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct cursor c = cursor_of(data, sizeof data);
    assert_ptr_equal(cursor_bytes(&c, 4), data);
    assert_ptr_equal(cursor_bytes(&c, 0), data + 4);
    assert_int_equal(cursor_left(&c), 6);
    assert_null(cursor_bytes(&c, SIZE_MAX));
    assert_true(c.short_read);
    c = cursor_of(data, sizeof data);
    assert_null(cursor_bytes(&c, 11));
    assert_int_equal(c.pos, 0);
}

static void what_is_left_over_is_an_error(void **state)
{
    (void)state;
    uint8_t data[10] = {0};
    struct cursor c = cursor_of(data, sizeof data);
    struct err e;
    (void)cursor_u32(&c);
    assert_int_equal(cursor_finish(&c, "the frame", &e), ERR_FORMAT);
    assert_string_equal(e.msg, "the frame has 6 bytes too many (at byte 4)");
    assert_int_equal(e.offset, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_little_endian),        cmocka_unit_test(raw_access_may_be_unaligned),
        cmocka_unit_test(floats_keep_their_bits),          cmocka_unit_test(a_buffer_grows_and_keeps_what_it_has),
        cmocka_unit_test(reserving_moves_nothing),         cmocka_unit_test(an_impossible_size_fails_for_good),
        cmocka_unit_test(text_can_be_put_and_ended),       cmocka_unit_test(after_the_end_everything_is_zero),
        cmocka_unit_test(bytes_are_views_within_the_data), cmocka_unit_test(what_is_left_over_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
