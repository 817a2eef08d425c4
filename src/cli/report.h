/* SPDX-License-Identifier: MIT
 *
 * The table that says what each rank of a ring did.
 */
#ifndef KVASIR_CLI_REPORT_H
#define KVASIR_CLI_REPORT_H

#include "cli/rank.h"

/* rank, window, resident memory, ms per token, bytes per token on the edge that leaves the rank. r: [m->n_ranks]. */
void report_print(FILE *out, const struct manifest *m, const struct rank_report *r);

#endif
