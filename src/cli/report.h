/* SPDX-License-Identifier: MIT
 *
 * The table that says what each rank of a ring did.
 */
#ifndef KVASIR_CLI_REPORT_H
#define KVASIR_CLI_REPORT_H

#include "cli/rank.h"

/* rank, window, resident memory, ms per token, bytes per token on the edge that leaves the rank. The first n_known
 * ranks, r: [n_known]. */
void report_print(FILE *out, const struct manifest *m, const struct rank_report *r, uint32_t n_known);

#endif
