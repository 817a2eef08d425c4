/* SPDX-License-Identifier: MIT
 *
 * Of several measurements the one in the middle, or near an end. Both sort v in place; n is at least 1.
 */
#ifndef KVASIR_BENCH_STATS_H
#define KVASIR_BENCH_STATS_H

#include <stddef.h>

double stats_median(double *v, size_t n);
double stats_percentile(double *v, size_t n, double p); /* p: 0 to 1 */

#endif
