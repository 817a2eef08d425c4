/* SPDX-License-Identifier: MIT */
#include "engine/logits.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 8    /* inner loops of this many steps become vector instructions */
#define RUN   1024 /* so many terms are added up in float before they go into a double */

float logits_max(const float *x, size_t n)
{
    float max[LANES], most = -INFINITY;
    int32_t bad[LANES] = {0}, any = 0;
    size_t i = 0;
    for (size_t k = 0; k < LANES; k++)
        max[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            max[k] = x[i + k] > max[k] ? x[i + k] : max[k];
            bad[k] |= !(x[i + k] < INFINITY);
        }
    }
    for (; i < n; i++) {
        most = x[i] > most ? x[i] : most;
        any |= !(x[i] < INFINITY);
    }
    for (size_t k = 0; k < LANES; k++) {
        most = max[k] > most ? max[k] : most;
        any |= bad[k];
    }
    return any ? NAN : most;
}

/* Adds exp(x[k] - max) to sum[k]; no x above max. exp(y) = 2^i exp(f): f at most ln(2) / 2 either way, where seven
 * terms of the series are as good as a float. */
static inline void add_exp(float *restrict sum, const float *restrict x, float max)
{
    float f[LANES], scale[LANES];
    int32_t bits[LANES];
    for (size_t k = 0; k < LANES; k++) {
        float y = x[k] - max;
        y = y > -80.0f ? y : -80.0f; /* what is smaller does not count */
        int32_t i = (int32_t)(y * 1.44269504f - 0.5f);
        f[k] = y - (float)i * 0.693147181f;
        bits[k] = (i + 127) * (1 << 23);
    }
    memcpy(scale, bits, sizeof scale);
    for (size_t k = 0; k < LANES; k++) {
        float p = 1.0f / 120 + f[k] * (1.0f / 720);
        p = 1.0f / 6 + f[k] * (1.0f / 24 + f[k] * p);
        sum[k] += scale[k] * (1.0f + f[k] * (1.0f + f[k] * (0.5f + f[k] * p)));
    }
}

double logits_sum_exp(const float *x, size_t n, float max)
{
    double total = 0;
    size_t i = 0, whole = n - n % LANES;
    while (i < whole) {
        float sum[LANES] = {0};
        for (size_t end = whole - i < RUN ? whole : i + RUN; i < end; i += LANES)
            add_exp(sum, x + i, max);
        for (size_t k = 0; k < LANES; k++)
            total += (double)sum[k];
    }
    for (; i < n; i++)
        total += exp((double)x[i] - (double)max);
    return total;
}
