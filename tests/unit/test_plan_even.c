/* SPDX-License-Identifier: MIT
 *
 * Even plans against an exhaustive search, listed windows and their refusals, the size of keys and values.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "plan/manifest.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#define MAX_BLOCKS 10u

static struct model_sizes sizes_of(uint64_t *blocks, uint32_t n, uint64_t head)
{
    return (struct model_sizes){.n_block = n,
                                .block_bytes = blocks,
                                .embd_bytes = 1000,
                                .table_bytes = 1000,
                                .head_bytes = head,
                                .global_bytes = 7};
}

static void windows_are(const struct plan_window *w, uint32_t n, const uint32_t *ends)
{
    for (uint32_t i = 0, first = 0; i < n; first = ends[i], i++) {
        assert_int_equal(w[i].first, first);
        assert_int_equal(w[i].end, ends[i]);
    }
}

static void equal_blocks_are_shared_equally(void **state)
{
    (void)state;
    uint64_t blocks[] = {10, 10, 10, 10, 10, 10};
    struct model_sizes s = sizes_of(blocks, 6, 0);
    struct plan_window w[3];
    struct err e;
    assert_int_equal(plan_even(&s, 3, w, &e), OK);
    windows_are(w, 3, (const uint32_t[]){2, 4, 6});
    assert_int_equal(w[0].cost, 20);
    assert_int_equal(w[0].bytes, 7 + 1000 + 20);
    assert_int_equal(w[1].bytes, 7 + 20);
}

static void head_counts_on_the_last_rank(void **state)
{
    (void)state;
    uint64_t blocks[] = {10, 10, 10, 10, 10, 10};
    struct model_sizes s = sizes_of(blocks, 6, 20);
    struct plan_window w[2];
    struct err e;
    assert_int_equal(plan_even(&s, 2, w, &e), OK);
    windows_are(w, 2, (const uint32_t[]){4, 6});
    assert_int_equal(w[1].cost, 40);
    assert_int_equal(w[1].bytes, 7 + 20 + 20);
}

static void embedding_costs_nothing(void **state)
{
    (void)state;
    uint64_t blocks[] = {10, 10, 10, 10};
    struct model_sizes s = sizes_of(blocks, 4, 0);
    struct plan_window w[2];
    struct err e;
    s.embd_bytes = s.table_bytes = 1u << 30;
    assert_int_equal(plan_even(&s, 2, w, &e), OK);
    windows_are(w, 2, (const uint32_t[]){2, 4});
}

static void tied_model_on_one_rank_counts_its_table_once(void **state)
{
    (void)state;
    uint64_t blocks[] = {10, 10};
    struct model_sizes s = sizes_of(blocks, 2, 1005);
    struct plan_window w[1];
    struct err e;
    s.tied = true;
    assert_int_equal(plan_even(&s, 1, w, &e), OK);
    windows_are(w, 1, (const uint32_t[]){2});
    assert_int_equal(w[0].cost, 1025);
    assert_int_equal(w[0].bytes, 7 + 20 + 1005);
}

static void ties_are_broken_to_even_then_early(void **state)
{
    (void)state;
    struct err e;
    struct plan_window w[3];
    /* The bound is 10 either way: 10 | 4 4 | 2 would be less even than 10 | 4 | 4 2. */
    uint64_t a[] = {10, 4, 4, 2};
    struct model_sizes s = sizes_of(a, 4, 0);
    assert_int_equal(plan_even(&s, 3, w, &e), OK);
    windows_are(w, 3, (const uint32_t[]){1, 2, 4});
    /* 5 | 5 5 and 5 5 | 5 are as even: the earlier cut. */
    uint64_t b[] = {5, 5, 5};
    s = sizes_of(b, 3, 0);
    assert_int_equal(plan_even(&s, 2, w, &e), OK);
    windows_are(w, 2, (const uint32_t[]){1, 3});
}

static void one_block_each_when_there_are_as_many_ranks(void **state)
{
    (void)state;
    uint64_t blocks[] = {0, 9, 0};
    struct model_sizes s = sizes_of(blocks, 3, 5);
    struct plan_window w[3];
    struct err e;
    assert_int_equal(plan_even(&s, 3, w, &e), OK);
    windows_are(w, 3, (const uint32_t[]){1, 2, 3});
}

typedef unsigned __int128 wide;

struct best {
    uint64_t max;
    wide squares;
    uint32_t ends[MAX_BLOCKS];
    bool any;
};

/* Tries every cut of [first, n) into the ranks from r on, in lexicographic order. */
static void try_all(const uint64_t *cost, uint32_t n, uint32_t n_ranks, uint32_t r, uint32_t first, uint64_t max,
                    wide squares, uint32_t *ends, struct best *best)
{
    if (r == n_ranks) {
        if (first == n && (!best->any || max < best->max || (max == best->max && squares < best->squares))) {
            best->any = true;
            best->max = max;
            best->squares = squares;
            memcpy(best->ends, ends, n_ranks * sizeof *ends);
        }
        return;
    }
    uint64_t sum = 0;
    for (uint32_t end = first + 1; end <= n; end++) {
        sum += cost[end - 1];
        ends[r] = end;
        try_all(cost, n, n_ranks, r + 1, end, sum > max ? sum : max, squares + (wide)sum * sum, ends, best);
    }
}

static void plans_equal_an_exhaustive_search(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 300; round++) {
        uint32_t n = 1 + (uint32_t)(hash_mix64(seed++) % MAX_BLOCKS), ends[MAX_BLOCKS];
        uint32_t n_ranks = 1 + (uint32_t)(hash_mix64(seed++) % n);
        uint64_t range = round % 3 ? 1u << (round % 7 * 4) : 3, blocks[MAX_BLOCKS], cost[MAX_BLOCKS];
        for (uint32_t i = 0; i < n; i++)
            cost[i] = blocks[i] = hash_mix64(seed++) % range;
        uint64_t head = hash_mix64(seed++) % (2 * range);
        cost[n - 1] += head;
        struct best best = {.any = false};
        try_all(cost, n, n_ranks, 0, 0, 0, 0, ends, &best);
        struct model_sizes s = sizes_of(blocks, n, head);
        struct plan_window w[MAX_BLOCKS];
        struct err e;
        assert_int_equal(plan_even(&s, n_ranks, w, &e), OK);
        windows_are(w, n_ranks, best.ends);
    }
}

static void largest_plan_is_quick(void **state)
{
    (void)state;
    uint32_t n = HPARAMS_MAX_BLOCKS, n_ranks = MANIFEST_MAX_RANKS;
    uint64_t *blocks = calloc(n, sizeof *blocks);
    struct plan_window *w = calloc(n_ranks, sizeof *w);
    struct err e;
    assert_true(blocks && w);
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = 1ull << 30;
    struct model_sizes s = sizes_of(blocks, n, 0);
    assert_int_equal(plan_even(&s, n_ranks, w, &e), OK);
    for (uint32_t i = 0; i < n_ranks; i++)
        assert_int_equal(w[i].end - w[i].first, 4);
    free(blocks);
    free(w);
}

static void impossible_plans_are_refused(void **state)
{
    (void)state;
    uint64_t blocks[] = {10, 10, UINT64_MAX - 10};
    struct model_sizes s = sizes_of(blocks, 2, 0);
    struct plan_window w[3] = {{.first = 77}};
    struct err e;
    assert_int_equal(plan_even(&s, 3, w, &e), ERR_RANGE);
    assert_string_equal(e.msg, "3 ranks, but the model has only 2 blocks: each rank needs at least one");
    assert_int_equal(plan_even(&s, 0, w, &e), ERR_RANGE);
    assert_int_equal(plan_even(&s, MANIFEST_MAX_RANKS + 1, w, &e), ERR_RANGE);
    s.n_block = 3;
    assert_int_equal(plan_even(&s, 2, w, &e), ERR_RANGE);
    assert_non_null(strstr(e.msg, "2^64"));
    s.n_block = 0;
    assert_int_equal(plan_even(&s, 1, w, &e), ERR_ARG);
    assert_int_equal(w[0].first, 77);
}

/* --- lists --- */

static void list_is_read(void **state)
{
    (void)state;
    uint64_t blocks[] = {1, 2, 4, 8, 16};
    struct model_sizes s = sizes_of(blocks, 5, 32);
    struct plan_window w[4];
    uint32_t n = 0;
    struct err e;
    assert_int_equal(plan_layers("0:2,2:5", &s, w, 4, &n, &e), OK);
    assert_int_equal(n, 2);
    windows_are(w, 2, (const uint32_t[]){2, 5});
    assert_int_equal(w[0].cost, 3);
    assert_int_equal(w[0].bytes, 7 + 1000 + 3);
    assert_int_equal(w[1].cost, 28 + 32);
    assert_int_equal(plan_layers("0:5", &s, w, 1, &n, &e), OK);
    assert_int_equal(n, 1);
    assert_int_equal(plan_layers("0:1,1:2,2:3,3:5", &s, w, 4, &n, &e), OK);
    assert_int_equal(n, 4);
}

static void list_refused(const char *text, uint32_t cap, enum err_code code, const char *part)
{
    uint64_t blocks[] = {1, 2, 4, 8, 16};
    struct model_sizes s = sizes_of(blocks, 5, 32);
    struct plan_window w[4] = {{.first = 77}};
    uint32_t n = 99;
    struct err e = {0};
    enum err_code rc = plan_layers(text, &s, w, cap, &n, &e);
    if (rc != code || !strstr(e.msg, part) || strchr(e.msg, '\n'))
        fail_msg("%s: %s %s; expected %s ...%s...", text, err_name(rc), e.msg, err_name(code), part);
    assert_int_equal(n, 99);
    assert_int_equal(w[0].first, 77);
}

static void lists_that_do_not_tile_are_refused(void **state)
{
    (void)state;
    list_refused("0:2,3:5", 4, ERR_MISMATCH, "window gap: window 0 ends at 2, window 1 begins at 3");
    list_refused("0:3,2:5", 4, ERR_MISMATCH, "window overlap: window 0 ends at 3, window 1 begins at 2");
    list_refused("1:5", 4, ERR_MISMATCH, "the first window begins at 1, not at 0");
    list_refused("0:2,2:4", 4, ERR_MISMATCH, "the last window ends at 4, the model has 5 blocks");
    list_refused("0:2,2:6", 4, ERR_RANGE, "window 1: 2:6 ends after the model's 5 blocks");
    list_refused("0:1,1:2,2:3,3:4,4:5", 4, ERR_LIMIT, "more than the 4 windows");
    list_refused("0:5", 0, ERR_LIMIT, "no room");
}

static void lists_that_are_none_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      ",",
                                      "0:2,",
                                      ",0:5",
                                      "0:5,",
                                      "0",
                                      "0:",
                                      ":5",
                                      "a:b",
                                      "0-5",
                                      "0:2;2:5",
                                      "0:2, 2:5",
                                      "0:2:5",
                                      "-1:5",
                                      "5:0",
                                      "0:0",
                                      "0:+5",
                                      "0:5 ",
                                      "0:2\n,2:5",
                                      "0:5\x1b",
                                      "0:99999999999999999999",
                                      "0:00000000000000000000000000000000000000000000005"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        list_refused(bad[i], 4, ERR_ARG, "window");
}

/* --- keys and values --- */

static uint64_t kv_bytes(const struct hparams *h, uint32_t first, uint32_t end, uint32_t n_ctx, uint32_t n_slots,
                         uint32_t bytes32)
{
    struct plan_cache c = {.n_ctx = n_ctx, .n_slots = n_slots, .window_cells = n_ctx / 4, .bytes32 = bytes32};
    return plan_kv_bytes(h, first, end, &c);
}

static void kv_bytes_are_summed_over_the_window(void **state)
{
    (void)state;
    uint32_t heads[] = {2, 4, 1};
    uint8_t kind[] = {BLOCK_FULL, BLOCK_FULL, BLOCK_FULL};
    struct hparams h = {.n_block = 3, .head_dim_k = 16, .head_dim_v = 8, .n_head_kv = heads, .kind = kind};
    assert_int_equal(kv_bytes(&h, 0, 3, 100, 2, 128), 7ull * 24 * 100 * 2 * 4);
    assert_int_equal(kv_bytes(&h, 1, 2, 100, 2, 64), 4ull * 24 * 100 * 2 * 2);
    assert_int_equal(kv_bytes(&h, 0, 3, 32, 1, 34), 7ull * 24 * 34);
    assert_int_equal(kv_bytes(&h, 2, 9, 1, 1, 32), 24);
    assert_int_equal(kv_bytes(&h, 2, 2, 1, 1, 32), 0);
}

static void kv_bytes_know_windows_and_recurrent_blocks(void **state)
{
    (void)state;
    uint32_t heads[] = {2, 2, 2};
    uint8_t kind[] = {BLOCK_WINDOW, BLOCK_FULL, BLOCK_RECURRENT};
    struct hparams h = {.n_block = 3,
                        .head_dim_k = 16,
                        .head_dim_v = 16,
                        .n_head_kv = heads,
                        .kind = kind,
                        .ssm = {.conv = 4, .state = 8, .n_key = 2, .n_value = 4}};
    assert_int_equal(kv_bytes(&h, 0, 1, 400, 3, 64), 64ull * 100 * 3 * 2);
    assert_int_equal(kv_bytes(&h, 1, 2, 400, 3, 64), 64ull * 400 * 3 * 2);
    assert_int_equal(kv_bytes(&h, 2, 3, 400, 3, 64), 3ull * 4 * (8 * 8 * 4 + 3 * (8 * 2 * 2 + 8 * 4)));
}

static void kv_bytes_do_not_wrap(void **state)
{
    (void)state;
    uint32_t heads[] = {UINT32_MAX, UINT32_MAX};
    uint8_t kind[] = {BLOCK_FULL, BLOCK_FULL};
    struct hparams h = {
        .n_block = 2, .head_dim_k = UINT32_MAX, .head_dim_v = UINT32_MAX, .n_head_kv = heads, .kind = kind};
    assert_true(kv_bytes(&h, 0, 2, UINT32_MAX, UINT32_MAX, 128) == UINT64_MAX);
    heads[0] = heads[1] = 1;
    h.head_dim_k = h.head_dim_v = 1;
    assert_true(kv_bytes(&h, 0, 2, UINT32_MAX, UINT32_MAX, 128) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_blocks_are_shared_equally),
        cmocka_unit_test(head_counts_on_the_last_rank),
        cmocka_unit_test(embedding_costs_nothing),
        cmocka_unit_test(tied_model_on_one_rank_counts_its_table_once),
        cmocka_unit_test(ties_are_broken_to_even_then_early),
        cmocka_unit_test(one_block_each_when_there_are_as_many_ranks),
        cmocka_unit_test(plans_equal_an_exhaustive_search),
        cmocka_unit_test(largest_plan_is_quick),
        cmocka_unit_test(impossible_plans_are_refused),
        cmocka_unit_test(list_is_read),
        cmocka_unit_test(lists_that_do_not_tile_are_refused),
        cmocka_unit_test(lists_that_are_none_are_refused),
        cmocka_unit_test(kv_bytes_are_summed_over_the_window),
        cmocka_unit_test(kv_bytes_know_windows_and_recurrent_blocks),
        cmocka_unit_test(kv_bytes_do_not_wrap),
    };
    return cmocka_run_group_tests_name("plan_even", tests, NULL, NULL);
}
