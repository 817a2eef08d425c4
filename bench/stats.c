/* SPDX-License-Identifier: MIT */
#include "stats.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double stats_median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double stats_percentile(double *v, size_t n, double p)
{
    qsort(v, n, sizeof *v, by_value);
    return v[(size_t)(p * (double)(n - 1))];
}
