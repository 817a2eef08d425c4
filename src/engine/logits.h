/* SPDX-License-Identifier: MIT
 *
 * What every token drawn needs of all logits of a row: the largest, and the sum of their exponentials. Vocabularies
 * have 150 thousand tokens and more, and a step of a small model takes ten milliseconds, so both are written for
 * vectors.
 */
#ifndef KVASIR_ENGINE_LOGITS_H
#define KVASIR_ENGINE_LOGITS_H

#include <stddef.h>

/* The largest of n logits; NaN when one is NaN or +infinity. */
float logits_max(const float *x, size_t n);

/* sum exp(x[i] - max), correct to about one in a million. None may be above max, which is finite. */
double logits_sum_exp(const float *x, size_t n, float max);

#endif
