/* SPDX-License-Identifier: MIT
 *
 * Digests of one stream and of four at once are those of libsodium, however the data is cut into pieces.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "crypto/digest4.h"

#include <string.h>

#define N_BYTES 5000

static uint8_t data[DIGEST4_LANES][N_BYTES + 1];

static int setup(void **state)
{
    (void)state;
    for (unsigned k = 0; k < DIGEST4_LANES; k++)
        for (size_t i = 0; i <= N_BYTES; i++)
            data[k][i] = (uint8_t)hash_mix64((uint64_t)k * 10000 + i);
    return 0;
}

static void check(struct digest4 *d, const void *p, size_t len)
{
    uint8_t got[DIGEST_BYTES], want[DIGEST_BYTES];
    digest4_end(d, got);
    digest_of(p, len, want);
    assert_memory_equal(got, want, DIGEST_BYTES);
}

static void test_every_length(void **state)
{
    (void)state;
    for (size_t len = 0; len < 1100; len++) {
        struct digest4 d;
        digest4_begin(&d);
        digest4_put(&d, data[0], len);
        check(&d, data[0], len);
    }
}

static void test_pieces(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int round = 0; round < 300; round++) {
        struct digest4 d;
        size_t at = 0;
        digest4_begin(&d);
        while (at < N_BYTES) {
            random = hash_mix64(random + 1);
            size_t n = random % (round % 3 ? 300 : 1500);
            n = n < N_BYTES - at ? n : N_BYTES - at;
            digest4_put(&d, data[1] + at, n);
            at += n;
        }
        check(&d, data[1], N_BYTES);
    }
}

/* Streams of different lengths, put in pieces of which some are long enough to be done in step. */
static void check_streams(uint32_t n, uint64_t seed, size_t odd)
{
    struct digest4 d[DIGEST4_LANES], *ds[DIGEST4_LANES];
    size_t at[DIGEST4_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        digest4_begin(&d[i]);
        ds[i] = &d[i];
    }
    for (int step = 0; step < 6; step++) {
        const void *p[DIGEST4_LANES];
        size_t len[DIGEST4_LANES];
        for (uint32_t i = 0; i < n; i++) {
            seed = hash_mix64(seed + 1);
            len[i] = seed % 5 ? 128 * (seed % 7) + (seed / 7) % odd : 0;
            len[i] = len[i] < N_BYTES - at[i] ? len[i] : N_BYTES - at[i];
            p[i] = data[i] + at[i] + 1; /* not aligned */
            at[i] += len[i];
        }
        digest4_put_all(ds, p, len, n);
    }
    for (uint32_t i = 0; i < n; i++)
        check(&d[i], data[i] + 1, at[i]);
}

/* Not only what this machine does best. */
static void test_several_streams(void **state)
{
    (void)state;
    assert_non_null(digest4_way(0));
    for (uint32_t way = 0; digest4_way(way); way++) {
        digest4_use(way);
        for (uint32_t n = 1; n <= DIGEST4_LANES; n++)
            for (uint64_t seed = 0; seed < 200; seed++)
                check_streams(n, seed * 1000, seed % 2 ? 1 : 130);
        print_message("%s\n", digest4_way(way));
    }
    digest4_use(0);
}

static void test_equal_lengths(void **state)
{
    (void)state;
    for (size_t len = 0; len < 700; len++) {
        struct digest4 d[DIGEST4_LANES], *ds[DIGEST4_LANES];
        const void *p[DIGEST4_LANES];
        size_t lens[DIGEST4_LANES];
        for (unsigned i = 0; i < DIGEST4_LANES; i++) {
            digest4_begin(&d[i]);
            ds[i] = &d[i];
            p[i] = data[i];
            lens[i] = len;
        }
        digest4_put_all(ds, p, lens, DIGEST4_LANES);
        for (unsigned i = 0; i < DIGEST4_LANES; i++)
            check(&d[i], data[i], len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_several_streams),
        cmocka_unit_test(test_equal_lengths),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
