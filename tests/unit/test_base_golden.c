/* SPDX-License-Identifier: MIT
 *
 * The reader of the reference outputs and its measures: what other tests lean on must itself be right.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/golden.h"
#include "lib/test_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct golden *open_spm(void)
{
    char path[PATH_MAX];
    struct golden *g = NULL;
    struct err e = {0};
    assert_int_equal(golden_open(test_data("golden/llama-spm-f32.bin", path), &g, &e), OK);
    return g;
}

static void arrays_have_the_documented_shapes(void **state)
{
    (void)state;
    struct golden *g = open_spm();
    size_t n_prompt, n_rows, n_vocab, n_pos, n_embd;
    assert_non_null(golden_i32(g, "short.prompt", NULL, &n_prompt));
    assert_non_null(golden_f32(g, "short.logits", &n_rows, &n_vocab));
    assert_int_equal(n_rows, n_prompt);
    assert_int_equal(n_vocab, 608);
    assert_non_null(golden_plane(g, "short.hidden", 6, &n_pos, &n_embd));
    assert_int_equal(n_pos, n_prompt);
    assert_int_equal(n_embd, 64);
    assert_null(golden_plane(g, "short.hidden", 7, NULL, NULL));
    golden_close(g);
}

static void wrong_name_or_type_is_null(void **state)
{
    (void)state;
    struct golden *g = open_spm();
    assert_null(golden_f32(g, "no.such", NULL, NULL));
    assert_null(golden_f32(g, "short.prompt", NULL, NULL));
    assert_null(golden_i32(g, "short.logits", NULL, NULL));
    golden_close(g);
}

/* The first greedy token is the best one after the prompt: ties the arrays to each other. */
static void greedy_begins_with_the_best_of_the_last_row(void **state)
{
    (void)state;
    struct golden *g = open_spm();
    size_t rows, cols;
    const float *logits = golden_f32(g, "short.logits", &rows, &cols);
    const int32_t *greedy = golden_i32(g, "short.greedy", NULL, NULL);
    assert_int_equal(golden_argmax(logits + (rows - 1) * cols, cols), greedy[0]);
    golden_close(g);
}

/* Cuts the file after every byte of its table, then at a few places in the data. */
static void every_truncation_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct buf b = {0};
    struct err e = {0};
    struct golden *g = NULL;
    assert_int_equal(io_read_file(test_data("golden/llama-spm-f32.bin", path), 1u << 20, &b, &e), OK);
    for (size_t len = 0; len < b.len; len += len < 2048 ? 1 : 4099) {
        assert_int_equal(golden_open_mem(b.data, len, &g, &e), ERR_FORMAT);
        assert_null(g);
    }
    buf_free(&b);
}

static void missing_file_is_not_found(void **state)
{
    (void)state;
    struct golden *g = NULL;
    struct err e = {0};
    assert_int_equal(golden_open("/nonexistent/golden.bin", &g, &e), ERR_NOT_FOUND);
}

static void nmse_of_a_worked_example(void **state)
{
    (void)state;
    /* mean 2, sum((ref - mean)^2) = 2, sum(ref^2) = 14; the difference is 0.1 in one place: 0.01. */
    const float ref[] = {1, 2, 3}, x[] = {1, 2.1f, 3};
    assert_true(fabs(golden_nmse_logits(x, ref, 3) - 0.005) < 1e-8);
    assert_true(fabs(golden_nmse_hidden(x, ref, 3) - 0.01 / 14) < 1e-8);
}

static void nan_never_counts_as_close(void **state)
{
    (void)state;
    const float ref[] = {1, 2}, x[] = {1, NAN};
    assert_true(isinf(golden_nmse_logits(x, ref, 2)));
    assert_true(isinf(golden_nmse_hidden(x, ref, 2)));
}

static void compare_finds_worst_median_and_argmax(void **state)
{
    (void)state;
    const float ref[] = {0, 1, 0, 1, 0, 1};
    const float x[] = {0, 1, 0, 1, 1, 0};
    struct golden_match m;
    assert_int_equal(golden_compare_logits(x, ref, 3, 2, &m, NULL), OK);
    assert_int_equal(m.n_same_argmax, 2);
    assert_int_equal(m.worst_row, 2);
    assert_true(m.worst > 1);
    assert_true(m.median <= 0);
}

static void argmax_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    const float x[] = {1, 3, 3};
    assert_int_equal(golden_argmax(x, 3), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_have_the_documented_shapes),
        cmocka_unit_test(wrong_name_or_type_is_null),
        cmocka_unit_test(greedy_begins_with_the_best_of_the_last_row),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(missing_file_is_not_found),
        cmocka_unit_test(nmse_of_a_worked_example),
        cmocka_unit_test(nan_never_counts_as_close),
        cmocka_unit_test(compare_finds_worst_median_and_argmax),
        cmocka_unit_test(argmax_takes_the_lowest_of_equals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
