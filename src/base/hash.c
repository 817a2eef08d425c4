/* SPDX-License-Identifier: MIT */
#include "base/hash.h"

uint64_t hash_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t hash_prefix(uint64_t h, int32_t token)
{
    return hash_mix64(h + 0x9e3779b97f4a7c15ull + (uint64_t)(uint32_t)token * 0xff51afd7ed558ccdull);
}

double hash_uniform(uint64_t seed, uint64_t counter)
{
    uint64_t x = hash_mix64(hash_mix64(seed + 0x9e3779b97f4a7c15ull) + counter * 0x9e3779b97f4a7c15ull);
    return (double)(x >> 11) * 0x1p-53;
}
