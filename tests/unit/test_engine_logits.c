/* SPDX-License-Identifier: MIT
 *
 * The largest logit and the sum of exponentials against plain loops, at lengths around the vector's.
 */
#include "engine/logits.h"

#include "base/hash.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MAX_N 3001

static float x[MAX_N];

static void fill(size_t n, float spread)
{
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)(hash_mix64(i * 7919 + n) % 20001) / 10000.0f - 1.0f) * spread;
}

static void the_largest_is_found_anywhere(void **state)
{
    (void)state;
    for (size_t n = 1; n < 40; n++) {
        for (size_t at = 0; at < n; at++) {
            fill(n, 5.0f);
            x[at] = 6.0f;
            assert_true(logits_max(x, n) == 6.0f);
        }
    }
}

static void what_is_not_finite_above_is_told_anywhere(void **state)
{
    (void)state;
    for (size_t n = 1; n < 40; n++) {
        for (size_t at = 0; at < n; at++) {
            fill(n, 5.0f);
            x[at] = at % 2 ? NAN : INFINITY;
            assert_true(isnan(logits_max(x, n)));
        }
    }
}

static void minus_infinity_is_an_ordinary_logit(void **state)
{
    (void)state;
    for (size_t i = 0; i < 20; i++)
        x[i] = -INFINITY;
    assert_true(logits_max(x, 20) == -INFINITY);
    x[17] = 3.0f;
    assert_true(logits_max(x, 20) == 3.0f);
    assert_true(fabs(logits_sum_exp(x, 20, 3.0f) - 1.0) < 1e-6);
}

static void check_sum(size_t n, float spread)
{
    double want = 0;
    fill(n, spread);
    float max = logits_max(x, n);
    for (size_t i = 0; i < n; i++)
        want += exp((double)x[i] - (double)max);
    assert_true(fabs(logits_sum_exp(x, n, max) / want - 1.0) < 1e-6);
}

static void sums_are_those_of_the_c_library(void **state)
{
    (void)state;
    for (size_t n = 1; n < 40; n++)
        check_sum(n, 4.0f);
    const float spread[] = {0.0f, 0.001f, 1.0f, 20.0f, 300.0f, 1e30f};
    for (size_t i = 0; i < sizeof spread / sizeof *spread; i++) {
        check_sum(1024, spread[i]);
        check_sum(MAX_N, spread[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_is_found_anywhere),
        cmocka_unit_test(what_is_not_finite_above_is_told_anywhere),
        cmocka_unit_test(minus_infinity_is_an_ordinary_logit),
        cmocka_unit_test(sums_are_those_of_the_c_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
