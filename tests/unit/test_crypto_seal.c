/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "crypto/key.h"
#include "crypto/seal.h"

#include <string.h>

static unsigned each_cipher(unsigned i)
{
    return seal_ciphers() & 1u << i;
}

static void test_both_ends_agree_on_a_secret(void **state)
{
    (void)state;
    struct seal_ephemeral a, b;
    uint8_t x[SEAL_KEY_BYTES], y[SEAL_KEY_BYTES];
    struct err e;
    seal_ephemeral_new(&a);
    seal_ephemeral_new(&b);
    assert_int_equal(seal_agree(&a, b.point, x, &e), OK);
    assert_int_equal(seal_agree(&b, a.point, y, &e), OK);
    assert_memory_equal(x, y, sizeof x);
}

static void test_points_of_small_order_are_refused(void **state)
{
    (void)state;
    struct seal_ephemeral a;
    uint8_t zero[SEAL_POINT_BYTES] = {0}, one[SEAL_POINT_BYTES] = {1}, x[SEAL_KEY_BYTES];
    struct err e;
    seal_ephemeral_new(&a);
    assert_int_equal(seal_agree(&a, zero, x, &e), ERR_AUTH);
    assert_int_equal(seal_agree(&a, one, x, &e), ERR_AUTH);
}

static void test_labels_and_contexts_give_different_keys(void **state)
{
    (void)state;
    const uint8_t secret[SEAL_KEY_BYTES] = {7};
    uint8_t a[SEAL_KEY_BYTES], b[SEAL_KEY_BYTES], c[SEAL_KEY_BYTES];
    seal_derive(secret, "one", "x", 1, a);
    seal_derive(secret, "two", "x", 1, b);
    seal_derive(secret, "one", "y", 1, c);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
    /* The label ends in a NUL, so it cannot run over into the context. */
    seal_derive(secret, "on", "ex", 2, b);
    assert_memory_not_equal(a, b, sizeof a);
}

static void test_the_choice_of_a_cipher_is_the_same_at_both_ends(void **state)
{
    (void)state;
    assert_int_equal(seal_choose(1, 1), SEAL_CHACHA20);
    assert_int_equal(seal_choose(3, 1), SEAL_CHACHA20);
    assert_int_equal(seal_choose(1, 3), SEAL_CHACHA20);
    assert_int_equal(seal_choose(3, 3), SEAL_AES256GCM);
    assert_int_equal(seal_choose(0xff, 3), SEAL_AES256GCM); /* bits of the future */
    assert_true(seal_ciphers() & SEAL_CHACHA20);
}

static void test_what_was_sealed_opens_also_in_place(void **state)
{
    (void)state;
    static uint8_t text[70000], sealed[sizeof text + SEAL_TAG_BYTES], back[sizeof text];
    const uint8_t key[SEAL_KEY_BYTES] = {1, 2, 3};
    static const size_t sizes[] = {0, 1, 15, 16, 17, 4096, 65536, sizeof text};
    struct err e;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)(i * 31 >> 3);
    for (unsigned c = 0; c < 2; c++) {
        struct seal_key put, get;
        if (!each_cipher(c))
            continue;
        seal_key_init(&put, 1u << c, key);
        seal_key_init(&get, 1u << c, key);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            seal_put(&put, "ad", 2, text, sizes[i], sealed);
            if (i % 2 == 0) {
                assert_int_equal(seal_get(&get, "ad", 2, sealed, sizes[i] + SEAL_TAG_BYTES, back, &e), OK);
                assert_memory_equal(back, text, sizes[i]);
            } else {
                assert_int_equal(seal_get(&get, "ad", 2, sealed, sizes[i] + SEAL_TAG_BYTES, sealed, &e), OK);
                assert_memory_equal(sealed, text, sizes[i]);
            }
        }
        seal_key_wipe(&put);
        seal_key_wipe(&get);
    }
}

/* RFC 8439 section 2.8.2 has another nonce than ours can be; these were made by Python's cryptography
 * module (key 80..9f, 16 bytes 00..0f, ad "kvasir", nonce 0). */
static void test_known_answers(void **state)
{
    (void)state;
    static const uint8_t want[2][16 + SEAL_TAG_BYTES] = {
        {0x2a, 0x5d, 0x18, 0xae, 0x3a, 0x5f, 0xe8, 0xcc, 0xc5, 0x38, 0x2f, 0xf4, 0xa8, 0xd0, 0xa3, 0x25,
         0xca, 0xd3, 0xeb, 0x5d, 0xf3, 0x81, 0x19, 0x96, 0x8e, 0x19, 0x93, 0x11, 0x4a, 0x69, 0xb6, 0x2f},
        {0x77, 0x44, 0xf4, 0xe2, 0x42, 0x2e, 0xf2, 0x50, 0x23, 0x28, 0x7d, 0x31, 0x7d, 0x92, 0x3b, 0xe1,
         0xd0, 0xf5, 0x4a, 0x88, 0xdc, 0xf0, 0x5b, 0x57, 0x61, 0x93, 0x70, 0xf3, 0x90, 0x5c, 0xe8, 0x16}};
    uint8_t key[SEAL_KEY_BYTES], text[16], out[16 + SEAL_TAG_BYTES];
    for (unsigned i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)(0x80 + i);
    for (unsigned i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)i;
    for (unsigned c = 0; c < 2; c++) {
        struct seal_key k;
        if (!each_cipher(c))
            continue;
        seal_key_init(&k, 1u << c, key);
        seal_put(&k, "kvasir", 6, text, sizeof text, out);
        assert_memory_equal(out, want[c], sizeof out);
        seal_key_wipe(&k);
    }
}

static void test_any_change_is_noticed(void **state)
{
    (void)state;
    const uint8_t key[SEAL_KEY_BYTES] = {9};
    uint8_t sealed[32 + SEAL_TAG_BYTES], copy[sizeof sealed], out[32];
    const uint8_t text[32] = {5};
    struct err e;
    for (unsigned c = 0; c < 2; c++) {
        if (!each_cipher(c))
            continue;
        for (size_t i = 0; i < sizeof sealed; i++) {
            struct seal_key put, get;
            seal_key_init(&put, 1u << c, key);
            seal_key_init(&get, 1u << c, key);
            seal_put(&put, "a", 1, text, sizeof text, sealed);
            memcpy(copy, sealed, sizeof copy);
            copy[i] ^= 0x10;
            assert_int_equal(seal_get(&get, "a", 1, copy, sizeof copy, out, &e), ERR_AUTH);
            assert_int_equal(seal_get(&get, "b", 1, sealed, sizeof sealed, out, &e), ERR_AUTH);
            assert_int_equal(seal_get(&get, "a", 1, sealed, sizeof sealed - 1, out, &e), ERR_AUTH);
            assert_int_equal(seal_get(&get, "a", 1, sealed, 3, out, &e), ERR_AUTH);
            seal_key_wipe(&put);
            seal_key_wipe(&get);
        }
    }
}

static void test_a_replay_and_a_gap_are_noticed(void **state)
{
    (void)state;
    const uint8_t key[SEAL_KEY_BYTES] = {9}, text[8] = {5};
    uint8_t first[24], second[24], out[8];
    struct seal_key put, get;
    struct err e;
    seal_key_init(&put, SEAL_CHACHA20, key);
    seal_key_init(&get, SEAL_CHACHA20, key);
    seal_put(&put, NULL, 0, text, 8, first);
    seal_put(&put, NULL, 0, text, 8, second);
    assert_int_equal(seal_get(&get, NULL, 0, second, 24, out, &e), ERR_AUTH); /* a gap */
    assert_int_equal(seal_get(&get, NULL, 0, first, 24, out, &e), OK);
    assert_int_equal(seal_get(&get, NULL, 0, first, 24, out, &e), ERR_AUTH); /* a replay */
    seal_key_wipe(&put);
    seal_key_wipe(&get);
}

static void test_keys_move_on_after_their_records(void **state)
{
    (void)state;
    const uint8_t key[SEAL_KEY_BYTES] = {4}, text[8] = {6};
    uint8_t sealed[24], first[24], out[8];
    struct err e;
    for (unsigned c = 0; c < 2; c++) {
        struct seal_key put, get;
        if (!each_cipher(c))
            continue;
        seal_key_init(&put, 1u << c, key);
        seal_key_init(&get, 1u << c, key);
        for (uint32_t i = 0; i < SEAL_RECORDS_PER_KEY + 3; i++) {
            seal_put(&put, NULL, 0, text, 8, sealed);
            if (i == 0)
                memcpy(first, sealed, sizeof first);
            /* Number 0 again, but under the next key. */
            if (i == SEAL_RECORDS_PER_KEY)
                assert_memory_not_equal(first, sealed, sizeof first);
            assert_int_equal(seal_get(&get, NULL, 0, sealed, 24, out, &e), OK);
            assert_memory_equal(out, text, 8);
        }
        assert_memory_not_equal(put.key, key, sizeof key);
        assert_int_equal(put.n, 3);
        seal_key_wipe(&put);
        seal_key_wipe(&get);
    }
}

static void test_wiping_leaves_nothing(void **state)
{
    (void)state;
    const uint8_t key[SEAL_KEY_BYTES] = {4};
    struct seal_key k;
    seal_key_init(&k, SEAL_CHACHA20, key);
    seal_key_wipe(&k);
    for (size_t i = 0; i < sizeof k.key; i++)
        assert_int_equal(k.key[i], 0);
    assert_null(k.context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ends_agree_on_a_secret),
        cmocka_unit_test(test_points_of_small_order_are_refused),
        cmocka_unit_test(test_labels_and_contexts_give_different_keys),
        cmocka_unit_test(test_the_choice_of_a_cipher_is_the_same_at_both_ends),
        cmocka_unit_test(test_what_was_sealed_opens_also_in_place),
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_any_change_is_noticed),
        cmocka_unit_test(test_a_replay_and_a_gap_are_noticed),
        cmocka_unit_test(test_keys_move_on_after_their_records),
        cmocka_unit_test(test_wiping_leaves_nothing),
    };
    if (key_library_init(NULL) != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
