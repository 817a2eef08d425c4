/* SPDX-License-Identifier: MIT
 *
 * A decode step allocates nothing: every allocating function of the C library is wrapped by a counter here, for this
 * program and for ggml and its threads. ggml itself makes and frees a context of a few bytes whenever it computes a
 * graph; what it does for a graph of one addition is measured first, and a step may not do more than that.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "lib/stage_run.h"
#include "lib/test_util.h"

#include <dlfcn.h>
#include <errno.h>
#include <ggml.h>
#include <stdatomic.h>
#include <unistd.h>

#define N_WARM_UP 4
#define N_STEPS   60

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define COUNTED 1
#elif defined(__clang__)
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define COUNTED 1
#endif
#endif

#ifdef COUNTED
static atomic_uint n_allocations, n_frees;
static atomic_bool counting;

static void count(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&n_allocations, 1);
}

static void start_counting(void)
{
    atomic_store(&n_allocations, 0);
    atomic_store(&n_frees, 0);
    atomic_store(&counting, true);
}

static _Alignas(64) uint8_t early[1 << 16];
static atomic_size_t early_used;

static void *early_alloc(size_t n)
{
    size_t at = atomic_fetch_add(&early_used, (n + 63) / 64 * 64);
    if (at + n > sizeof early)
        _exit(99);
    return early + at;
}

static bool is_early(const void *p)
{
    return (const uint8_t *)p >= early && (const uint8_t *)p < early + sizeof early;
}

static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*aligned_alloc)(size_t, size_t);
    void (*free)(void *);
} real;

/* At the first allocation, long before there are threads; what dlsym itself allocates comes from the early memory. */
static bool find_real(void)
{
    static bool begun;
    if (real.malloc || begun)
        return real.malloc != NULL;
    begun = true;
    *(void **)&real.calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&real.realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&real.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&real.aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&real.free = dlsym(RTLD_NEXT, "free");
    *(void **)&real.malloc = dlsym(RTLD_NEXT, "malloc");
    return real.malloc != NULL;
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's names are not ours to use */
void *malloc(size_t n)
{
    count();
    return find_real() ? real.malloc(n) : early_alloc(n);
}

void *calloc(size_t n, size_t size)
{
    count();
    return find_real() ? real.calloc(n, size) : early_alloc(n * size); /* the early memory is zero */
}

void *realloc(void *p, size_t n)
{
    count();
    if (!is_early(p) && find_real())
        return real.realloc(p, n);
    void *q = malloc(n);
    size_t have = p ? (size_t)(early + sizeof early - (uint8_t *)p) : 0;
    if (q && p)
        memcpy(q, p, n < have ? n : have);
    return q;
}

int posix_memalign(void **out, size_t align, size_t n)
{
    count();
    return find_real() ? real.posix_memalign(out, align, n) : ENOMEM;
}

void *aligned_alloc(size_t align, size_t n)
{
    count();
    return find_real() ? real.aligned_alloc(align, n) : NULL;
}

void free(void *p)
{
    if (p && atomic_load(&counting))
        atomic_fetch_add(&n_frees, 1);
    if (!is_early(p) && find_real())
        real.free(p);
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

/* The counter counts, also what ggml allocates. */
static void the_counter_counts(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct err e;
    start_counting();
    void *volatile p = malloc(100);
    unsigned after_one = atomic_load(&n_allocations);
    assert_int_equal(gguf_open(test_data("llama-spm-f32.gguf", path), &g, &e), OK);
    atomic_store(&counting, false);
    free(p);
    gguf_close(g);
    assert_int_equal(after_one, 1);
    assert_true(atomic_load(&n_allocations) > 50); /* many of them in ggml's library */
}

/* What ggml allocates whenever it computes a graph. */
static unsigned per_graph(void)
{
    struct backend b;
    struct err e;
    assert_int_equal(backend_open("cpu", 1, &b, &e), OK);
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 1 << 20});
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8);
    struct ggml_cgraph *gf = ggml_new_graph(ctx);
    ggml_set_zero(x);
    ggml_build_forward_expand(gf, ggml_add(ctx, x, x));
    assert_int_equal(ggml_backend_graph_compute(b.be, gf), GGML_STATUS_SUCCESS);
    start_counting();
    ggml_backend_graph_compute(b.be, gf);
    atomic_store(&counting, false);
    ggml_free(ctx);
    backend_close(&b);
    assert_in_range(atomic_load(&n_allocations), 0, 4);
    assert_int_equal(atomic_load(&n_frees), atomic_load(&n_allocations));
    return atomic_load(&n_allocations);
}

static void decoding_allocates_nothing(const char *name, uint32_t n_threads, uint32_t n_seq, bool middle)
{
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct err e;
    struct run r;
    struct stage_params p = run_params();
    unsigned allowed = per_graph() * N_STEPS;
    p.n_threads = n_threads;
    if (middle) {
        p.first = 2;
        p.end = 4;
    }
    assert_int_equal(gguf_open(test_data(name, path), &g, &e), OK);
    assert_int_equal(run_open(&r, g, &p, &e), OK);
    gguf_close(g);
    struct batch_sampling s = {
        .temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .repeat_penalty = 1.1f, .penalty_last_n = 64};
    for (uint32_t i = 0; i < n_seq && !middle; i += 2) /* the others are greedy */
        assert_int_equal(stage_sampling(r.st, i, &s, &e), OK);
    for (uint32_t x = 0; x < RUN_MAX_TOK * r.info->n_embd; x++)
        r.b.rows[x] = (float)(x % 13) / 6.0f - 1.0f;

    int32_t prompt[20];
    run_ids(prompt, 20, r.info->n_vocab, 5);
    for (uint32_t i = 0; i < n_seq; i++)
        assert_int_equal(run_feed(&r, i, prompt, 20, 0, &e), OK);
    unsigned bad = 0;
    for (int i = 0; i < N_WARM_UP + N_STEPS; i++) {
        if (i == N_WARM_UP)
            start_counting();
        run_begin(&r);
        for (uint32_t k = 0; k < n_seq; k++)
            run_add(&r, k, &prompt[(i + (int)k) % 20], 1, BATCH_SAMPLE);
        bad += run_step(&r, &e) != OK;
    }
    atomic_store(&counting, false);
    assert_int_equal(bad, 0);
    if (atomic_load(&n_allocations) > allowed || atomic_load(&n_frees) != atomic_load(&n_allocations))
        fail_msg("%s, %u threads, %u sequences: %u allocations (%u are ggml's), %u frees in %d steps", name, n_threads,
                 n_seq, atomic_load(&n_allocations), allowed, atomic_load(&n_frees), N_STEPS);
    run_close(&r);
}

static void a_whole_model(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-spm-f32.gguf", "llama-spm-q4_0.gguf", "llama-spm-q8_0.gguf",
                                        "llama-k256-q4_k_m.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        decoding_allocates_nothing(names[i], 1, 1, false);
}

static void two_threads(void **state)
{
    (void)state;
    decoding_allocates_nothing("llama-spm-f32.gguf", 2, 1, false);
    decoding_allocates_nothing("llama-spm-q4_0.gguf", 2, 1, false);
}

static void several_sequences(void **state)
{
    (void)state;
    decoding_allocates_nothing("llama-spm-f32.gguf", 1, 4, false);
    decoding_allocates_nothing("llama-spm-q4_0.gguf", 1, 4, false);
}

static void a_middle_window(void **state)
{
    (void)state;
    decoding_allocates_nothing("llama-spm-f32.gguf", 1, 1, true);
    decoding_allocates_nothing("llama-spm-q4_0.gguf", 1, 2, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_counts), cmocka_unit_test(a_whole_model),   cmocka_unit_test(two_threads),
        cmocka_unit_test(several_sequences),  cmocka_unit_test(a_middle_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    return TEST_SKIP; /* the sanitizers wrap these functions themselves */
}
#endif
