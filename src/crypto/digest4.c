/* SPDX-License-Identifier: MIT
 *
 * BLAKE2b (RFC 7693) with 32 bytes of output and no key, of one stream or of four in step. The compression is written
 * once, as a macro over the type of a word: a uint64_t, or a vector with that word of four streams. The vector one is
 * compiled for several instruction sets and chosen when it is used.
 */
#include "crypto/digest4.h"

#include "base/buf.h"

#include <endian.h>
#include <stdatomic.h>
#include <string.h>

#define N_ROUNDS 12
#define BLOCK    DIGEST4_BLOCK
#define LANES    DIGEST4_LANES

typedef uint64_t lanes __attribute__((vector_size(8 * DIGEST4_LANES)));

static const uint64_t iv[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

/* RFC 7693 §2.7; rounds 10 and 11 are those of 0 and 1 */
static const uint8_t sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

/* --- compression --- */

static inline uint64_t word(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return le64toh(x);
}

#define ROTR(x, n) (((x) >> (n)) | ((x) << (64 - (n))))

#define MIX(a, b, c, d, x, y)                                                                                          \
    do {                                                                                                               \
        v[a] += v[b] + m[x];                                                                                           \
        v[d] = ROTR(v[d] ^ v[a], 32);                                                                                  \
        v[c] += v[d];                                                                                                  \
        v[b] = ROTR(v[b] ^ v[c], 24);                                                                                  \
        v[a] += v[b] + m[y];                                                                                           \
        v[d] = ROTR(v[d] ^ v[a], 16);                                                                                  \
        v[c] += v[d];                                                                                                  \
        v[b] = ROTR(v[b] ^ v[c], 63);                                                                                  \
    } while (0)

/* The rounds on v[16] with the message words m[16]. */
#define ROUNDS                                                                                                         \
    _Pragma("GCC unroll 12") for (int r = 0; r < N_ROUNDS; r++)                                                        \
    {                                                                                                                  \
        const uint8_t *s = sigma[r % 10];                                                                              \
        MIX(0, 4, 8, 12, s[0], s[1]);                                                                                  \
        MIX(1, 5, 9, 13, s[2], s[3]);                                                                                  \
        MIX(2, 6, 10, 14, s[4], s[5]);                                                                                 \
        MIX(3, 7, 11, 15, s[6], s[7]);                                                                                 \
        MIX(0, 5, 10, 15, s[8], s[9]);                                                                                 \
        MIX(1, 6, 11, 12, s[10], s[11]);                                                                               \
        MIX(2, 7, 8, 13, s[12], s[13]);                                                                                \
        MIX(3, 4, 9, 14, s[14], s[15]);                                                                                \
    }

/* One block: n_bytes counts what it ends at (§3.2; below 2^64). */
static void compress(uint64_t h[8], const uint8_t *block, uint64_t n_bytes, bool last)
{
    uint64_t v[16], m[16];
    for (size_t i = 0; i < 16; i++)
        m[i] = word(block + 8 * i);
    for (int i = 0; i < 8; i++) {
        v[i] = h[i];
        v[i + 8] = iv[i];
    }
    v[12] ^= n_bytes;
    v[14] ^= last ? ~0ull : 0;
    ROUNDS
    for (int i = 0; i < 8; i++)
        h[i] ^= v[i] ^ v[i + 8];
}

/* Four words of each stream from `at` on, turned round: m[i] has word i of all. */
static inline __attribute__((always_inline)) void words_of(const uint8_t *const *data, size_t at, lanes m[4])
{
    lanes a, b, c, d;
    memcpy(&a, data[0] + at, sizeof a);
    memcpy(&b, data[1] + at, sizeof b);
    memcpy(&c, data[2] + at, sizeof c);
    memcpy(&d, data[3] + at, sizeof d);
    const lanes ab0 = __builtin_shufflevector(a, b, 0, 4, 2, 6), ab1 = __builtin_shufflevector(a, b, 1, 5, 3, 7);
    const lanes cd0 = __builtin_shufflevector(c, d, 0, 4, 2, 6), cd1 = __builtin_shufflevector(c, d, 1, 5, 3, 7);
    m[0] = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
    m[1] = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
    m[2] = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
    m[3] = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < (int)LANES; k++)
            m[i][k] = le64toh(m[i][k]);
#endif
}

/* n_blocks blocks of each of the four streams; none of them is a last one. */
static inline __attribute__((always_inline)) void blocks_in_step(struct digest4 *const *d, const uint8_t *const *data,
                                                                 size_t n_blocks)
{
    lanes h[8], count;
    for (int i = 0; i < 8; i++)
        h[i] = (lanes){d[0]->h[i], d[1]->h[i], d[2]->h[i], d[3]->h[i]};
    count = (lanes){d[0]->n_bytes, d[1]->n_bytes, d[2]->n_bytes, d[3]->n_bytes};
    for (size_t k = 0; k < n_blocks; k++) {
        lanes v[16], m[16];
        for (int i = 0; i < 16; i += 4)
            words_of(data, k * BLOCK + 8 * (size_t)i, m + i);
        for (int i = 0; i < 8; i++) {
            v[i] = h[i];
            v[i + 8] = (lanes){iv[i], iv[i], iv[i], iv[i]};
        }
        count += (lanes){BLOCK, BLOCK, BLOCK, BLOCK};
        v[12] ^= count;
        ROUNDS
        for (int i = 0; i < 8; i++)
            h[i] ^= v[i] ^ v[i + 8];
    }
    for (int k = 0; k < (int)LANES; k++) {
        for (int i = 0; i < 8; i++)
            d[k]->h[i] = h[i][k];
        d[k]->n_bytes = count[k];
    }
}

typedef void (*in_step_fn)(struct digest4 *const *d, const uint8_t *const *data, size_t n_blocks);

static void in_step_plain(struct digest4 *const *d, const uint8_t *const *data, size_t n_blocks)
{
    blocks_in_step(d, data, n_blocks);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void in_step_avx2(struct digest4 *const *d, const uint8_t *const *data,
                                                         size_t n_blocks)
{
    blocks_in_step(d, data, n_blocks);
}

__attribute__((target("avx2,avx512f,avx512vl"))) static void in_step_avx512(struct digest4 *const *d,
                                                                            const uint8_t *const *data, size_t n_blocks)
{
    blocks_in_step(d, data, n_blocks);
}
#endif

#define MAX_WAYS 3u

struct way {
    const char *name;
    in_step_fn fn;
};

/* What this machine can do, best first. Returns how many there are. */
static uint32_t find_ways(struct way out[MAX_WAYS])
{
    uint32_t n = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512vl"))
        out[n++] = (struct way){"avx512", in_step_avx512};
    if (__builtin_cpu_supports("avx2"))
        out[n++] = (struct way){"avx2", in_step_avx2};
#endif
    out[n++] = (struct way){"plain", in_step_plain};
    return n;
}

static _Atomic uint32_t way_in_use;

const char *digest4_way(uint32_t i)
{
    struct way ways[MAX_WAYS];
    return i < find_ways(ways) ? ways[i].name : NULL;
}

void digest4_use(uint32_t i)
{
    atomic_store(&way_in_use, i);
}

static in_step_fn in_step(void)
{
    struct way ways[MAX_WAYS];
    const uint32_t n = find_ways(ways), i = atomic_load_explicit(&way_in_use, memory_order_relaxed);
    return ways[i < n ? i : 0].fn;
}

/* --- streams --- */

void digest4_begin(struct digest4 *d)
{
    *d = (struct digest4){0};
    memcpy(d->h, iv, sizeof d->h);
    d->h[0] ^= 0x01010000 ^ DIGEST_BYTES; /* §2.5: no key, sequential mode, length of the output */
}

static void one_block(struct digest4 *d, const uint8_t *block)
{
    d->n_bytes += BLOCK;
    compress(d->h, block, d->n_bytes, false);
}

/* Fills the held block and lets it go when more follows it. Returns how much of data that took. */
static size_t held_fill(struct digest4 *d, const uint8_t *data, size_t len)
{
    const size_t room = BLOCK - d->n_held, n = len < room ? len : room;
    if (d->n_held == 0 || len == 0)
        return 0;
    memcpy(d->held + d->n_held, data, n);
    d->n_held += (uint32_t)n;
    if (d->n_held == BLOCK && n < len) {
        one_block(d, d->held);
        d->n_held = 0;
    }
    return n;
}

/* Blocks that can be done of len bytes: one byte at least stays for the last. */
static size_t whole_blocks(const struct digest4 *d, size_t len)
{
    return d->n_held == 0 && len > 0 ? (len - 1) / BLOCK : 0;
}

static void hold_rest(struct digest4 *d, const uint8_t *data, size_t len)
{
    if (len > 0) {
        memcpy(d->held + d->n_held, data, len);
        d->n_held += (uint32_t)len;
    }
}

void digest4_put(struct digest4 *d, const void *data, size_t len)
{
    const uint8_t *p = data;
    const size_t n = held_fill(d, p, len);
    p += n;
    len -= n;
    for (size_t k = whole_blocks(d, len); k > 0; k--) {
        one_block(d, p);
        p += BLOCK;
        len -= BLOCK;
    }
    hold_rest(d, p, len);
}

/* Those of n streams that have whole blocks, in step until the shortest has no more. false: fewer than two have. */
static bool some_in_step(struct digest4 *const *d, const uint8_t **p, size_t *left, uint32_t n)
{
    struct digest4 idle, *ds[LANES];
    const uint8_t *ps[LANES];
    uint32_t who[LANES], n_active = 0;
    size_t n_blocks = SIZE_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const size_t k = whole_blocks(d[i], left[i]);
        if (k == 0)
            continue;
        n_blocks = k < n_blocks ? k : n_blocks;
        ds[n_active] = d[i];
        ps[n_active] = p[i];
        who[n_active++] = i;
    }
    if (n_active < 2)
        return false;
    for (uint32_t i = n_active; i < LANES; i++) { /* a lane without a stream does something of no use */
        digest4_begin(&idle);
        ds[i] = &idle;
        ps[i] = ps[0];
    }
    in_step()(ds, ps, n_blocks);
    for (uint32_t i = 0; i < n_active; i++) {
        p[who[i]] += n_blocks * BLOCK;
        left[who[i]] -= n_blocks * BLOCK;
    }
    return true;
}

void digest4_put_all(struct digest4 *const *d, const void *const *data, const size_t *len, uint32_t n)
{
    const uint8_t *p[LANES];
    size_t left[LANES];
    for (uint32_t i = 0; i < n; i++) {
        const size_t filled = held_fill(d[i], data[i], len[i]);
        p[i] = (const uint8_t *)data[i] + filled;
        left[i] = len[i] - filled;
    }
    while (some_in_step(d, p, left, n))
        ;
    for (uint32_t i = 0; i < n; i++)
        digest4_put(d[i], p[i], left[i]);
}

void digest4_end(struct digest4 *d, uint8_t out[DIGEST_BYTES])
{
    memset(d->held + d->n_held, 0, BLOCK - d->n_held);
    d->n_bytes += d->n_held;
    compress(d->h, d->held, d->n_bytes, true);
    for (size_t i = 0; i < DIGEST_BYTES / 8; i++)
        le_put_u64(out + 8 * i, d->h[i]);
}
