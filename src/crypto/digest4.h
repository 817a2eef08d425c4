/* SPDX-License-Identifier: MIT
 *
 * The same digest as digest.h of up to four streams at once. One stream is a chain of dependent steps that keeps a core
 * waiting for itself; four side by side, a word of each in one vector, take little longer than one. For large amounts
 * of data that come over several ways. A stream belongs to one thread at a time.
 */
#ifndef KVASIR_CRYPTO_DIGEST4_H
#define KVASIR_CRYPTO_DIGEST4_H

#include "crypto/digest.h"

#define DIGEST4_LANES 4u
#define DIGEST4_BLOCK 128u

struct digest4 {
    uint64_t h[8];
    uint64_t n_bytes; /* of the blocks that are done */
    uint32_t n_held;
    uint8_t held[DIGEST4_BLOCK]; /* the last block is not done before it is known to be the last */
};

void digest4_begin(struct digest4 *d);
void digest4_put(struct digest4 *d, const void *data, size_t len);
/* Puts data[i] of len[i] bytes into d[i], i < n <= DIGEST4_LANES; no stream twice. Fast when the lengths are alike. */
void digest4_put_all(struct digest4 *const *d, const void *const *data, const size_t *len, uint32_t n);
void digest4_end(struct digest4 *d, uint8_t out[DIGEST_BYTES]);

/* The instruction sets that digest4_put_all can use on this machine, best first; NULL behind the last. It uses number 0
 * unless told to use another one: for tests and measurements. */
const char *digest4_way(uint32_t i);
void digest4_use(uint32_t i);

#endif
