/* SPDX-License-Identifier: MIT
 *
 * Small non-cryptographic mixing functions: the running hash of a sequence's token prefix, and counter-based random
 * numbers. Pure functions.
 */
#ifndef KVASIR_BASE_HASH_H
#define KVASIR_BASE_HASH_H

#include <stdint.h>

/* Hash of the empty prefix. */
#define HASH_PREFIX_EMPTY 0x6b76617369720001ull

/* A bijective 64-bit finalizer with full avalanche (the splitmix64 output function, Steele et al., OOPSLA 2014). */
uint64_t hash_mix64(uint64_t x);

/* Hash of the prefix extended by one token. */
uint64_t hash_prefix(uint64_t h, int32_t token);

/* Uniform in [0, 1) with 53 bits, a pure function of (seed, counter): the same position draws the same number again
 * after a replay. */
double hash_uniform(uint64_t seed, uint64_t counter);

#endif
