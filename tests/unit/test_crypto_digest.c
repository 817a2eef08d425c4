/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "crypto/digest.h"
#include "crypto/key.h"

#include <stdio.h>
#include <string.h>

/* Computed with b2sum -l 256 (coreutils), an implementation of its own. */
static const char *const hash_of_abc = "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319";
static const char *const hash_of_nothing = "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8";

static void test_known_answers(void **state)
{
    (void)state;
    uint8_t d[DIGEST_BYTES];
    char hex[DIGEST_HEX_SIZE];
    digest_of("abc", 3, d);
    assert_string_equal(digest_hex(d, hex), hash_of_abc);
    digest_of(NULL, 0, d);
    assert_string_equal(digest_hex(d, hex), hash_of_nothing);
}

static void test_pieces_give_the_same_digest(void **state)
{
    (void)state;
    uint8_t data[1000], whole[DIGEST_BYTES], parts[DIGEST_BYTES];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    digest_of(data, sizeof data, whole);
    for (size_t step = 1; step < 300; step += 37) {
        struct digest_state s;
        digest_begin(&s);
        for (size_t i = 0; i < sizeof data; i += step)
            digest_put(&s, data + i, i + step > sizeof data ? sizeof data - i : step);
        digest_put(&s, NULL, 0);
        digest_end(&s, parts);
        assert_memory_equal(whole, parts, DIGEST_BYTES);
    }
}

static void test_hex_is_read_back(void **state)
{
    (void)state;
    uint8_t d[DIGEST_BYTES], back[DIGEST_BYTES];
    char hex[DIGEST_HEX_SIZE];
    struct err e;
    digest_of("x", 1, d);
    assert_int_equal(digest_parse(digest_hex(d, hex), back, &e), OK);
    assert_memory_equal(d, back, DIGEST_BYTES);
}

static void test_bad_hex_is_refused(void **state)
{
    (void)state;
    uint8_t d[DIGEST_BYTES];
    char hex[DIGEST_HEX_SIZE + 1];
    struct err e;
    memset(d, 0x5a, sizeof d);
    assert_int_equal(digest_parse("", d, &e), ERR_ARG);
    snprintf(hex, sizeof hex, "%s", hash_of_abc);
    hex[63] = 0;
    assert_int_equal(digest_parse(hex, d, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "64"));
    snprintf(hex, sizeof hex, "%s0", hash_of_abc);
    assert_int_equal(digest_parse(hex, d, &e), ERR_ARG);
    snprintf(hex, sizeof hex, "%s", hash_of_abc);
    hex[7] = 'A';
    assert_int_equal(digest_parse(hex, d, &e), ERR_ARG);
    assert_int_equal(e.offset, 7);
    for (size_t i = 0; i < sizeof d; i++)
        assert_int_equal(d[i], 0x5a); /* untouched on failure */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_pieces_give_the_same_digest),
        cmocka_unit_test(test_hex_is_read_back),
        cmocka_unit_test(test_bad_hex_is_refused),
    };
    if (key_library_init(NULL) != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
