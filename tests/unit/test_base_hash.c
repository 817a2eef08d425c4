/* SPDX-License-Identifier: MIT
 *
 * Mixing: published values, that one bit changes half of them, that positions draw evenly and independently.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"

#include <math.h>
#include <stdlib.h>

/* splitmix64 from seed 1234567 as its authors' reference program writes it. */
static void the_finalizer_is_splitmix64(void **state)
{
    (void)state;
    static const uint64_t want[] = {6457827717110365317ull, 3203168211198807973ull, 9817491932198370423ull,
                                    4593380528125082431ull, 16408922859458223821ull};
    uint64_t x = 1234567;
    for (size_t i = 0; i < 5; i++) {
        x += 0x9e3779b97f4a7c15ull;
        assert_true(hash_mix64(x) == want[i]);
    }
    assert_true(hash_mix64(0) == 0);
}

static void one_bit_changes_half_of_the_bits(void **state)
{
    (void)state;
    for (int bit = 0; bit < 64; bit++) {
        int changed = 0;
        for (uint64_t x = 1; x <= 200; x++)
            changed += __builtin_popcountll(hash_mix64(x * 12345) ^ hash_mix64((x * 12345) ^ (1ull << bit)));
        double mean = changed / 200.0;
        assert_true(mean > 29 && mean < 35);
    }
}

/* The value travels on the wire: it must be the same on every machine and in every version. */
static void prefixes_have_fixed_values(void **state)
{
    (void)state;
    uint64_t h = HASH_PREFIX_EMPTY;
    assert_true(h == 0x6b76617369720001ull);
    uint64_t one = hash_prefix(h, 1), two = hash_prefix(one, 2);
    assert_true(one == hash_mix64(h + 0x9e3779b97f4a7c15ull + 0xff51afd7ed558ccdull));
    assert_true(two == hash_mix64(one + 0x9e3779b97f4a7c15ull + 2 * 0xff51afd7ed558ccdull));
}

static void order_length_and_token_all_count(void **state)
{
    (void)state;
    uint64_t h = HASH_PREFIX_EMPTY;
    assert_true(hash_prefix(hash_prefix(h, 1), 2) != hash_prefix(hash_prefix(h, 2), 1));
    assert_true(hash_prefix(h, 0) != h);
    assert_true(hash_prefix(hash_prefix(h, 0), 0) != hash_prefix(h, 0));
    assert_true(hash_prefix(h, -1) != hash_prefix(h, 1));
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void prefixes_do_not_collide(void **state)
{
    (void)state;
    enum { n = 100000 };
    uint64_t *h = malloc(n * sizeof *h);
    for (int i = 0; i < n; i++)
        h[i] =
            i % 2 ? hash_prefix(HASH_PREFIX_EMPTY, i) : hash_prefix(hash_prefix(HASH_PREFIX_EMPTY, i / 400), i % 400);
    qsort(h, n, sizeof *h, by_value);
    for (int i = 1; i < n; i++)
        assert_true(h[i] != h[i - 1]);
    free(h);
}

/* Chi-square over 256 bins: 255 degrees of freedom, so a standard deviation of 22.6; five of them either way. */
#define BINS    256
#define N_DRAWS (1 << 17)
#define N_PAIRS (1 << 16)

static void check_even(uint64_t seed, uint64_t step_seed, uint64_t step_counter)
{
    int count[BINS] = {0};
    const double each = (double)N_DRAWS / BINS;
    double mean = 0, chi = 0;
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        double u = hash_uniform(seed + i * step_seed, i * step_counter);
        assert_true(u >= 0 && u < 1);
        count[(int)(u * BINS)]++;
        mean += u / N_DRAWS;
    }
    for (int k = 0; k < BINS; k++)
        chi += (count[k] - each) * (count[k] - each) / each;
    assert_true(fabs(mean - 0.5) < 0.004);
    assert_true(chi > 142 && chi < 368);
}

static void draws_are_even(void **state)
{
    (void)state;
    check_even(0, 0, 1); /* positions of one seed */
    check_even(42, 0, 1);
    check_even(UINT64_MAX, 0, 1);
    check_even(7, 0, 256); /* positions far apart */
    check_even(0, 1, 0);   /* one position of many seeds */
    check_even(0, 1, 1);   /* both */
}

static void neighbours_are_independent(void **state)
{
    (void)state;
    double sum = 0;
    for (uint64_t i = 0; i < N_PAIRS; i++)
        sum += (hash_uniform(3, i) - 0.5) * (hash_uniform(3, i + 1) - 0.5);
    assert_true(fabs(sum / N_PAIRS * 12) < 0.02);
    sum = 0;
    for (uint64_t i = 0; i < N_PAIRS; i++)
        sum += (hash_uniform(i, 9) - 0.5) * (hash_uniform(i + 1, 9) - 0.5);
    assert_true(fabs(sum / N_PAIRS * 12) < 0.02);
}

static void a_replay_draws_the_same(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 100; i++)
        assert_true(hash_uniform(i, 100 - i) == hash_uniform(i, 100 - i));
    assert_true(hash_uniform(1, 2) != hash_uniform(2, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_finalizer_is_splitmix64), cmocka_unit_test(one_bit_changes_half_of_the_bits),
        cmocka_unit_test(prefixes_have_fixed_values),  cmocka_unit_test(order_length_and_token_all_count),
        cmocka_unit_test(prefixes_do_not_collide),     cmocka_unit_test(draws_are_even),
        cmocka_unit_test(neighbours_are_independent),  cmocka_unit_test(a_replay_draws_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
