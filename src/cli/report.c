/* SPDX-License-Identifier: MIT */
#include "cli/report.h"

#include "base/parse.h"

#include <inttypes.h>

void report_print(FILE *out, const struct manifest *m, const struct rank_report *r, uint32_t n_known)
{
    fprintf(out, "%-5s %-10s %10s %10s %10s %12s\n", "rank", "window", "weights", "resident", "ms/token",
            "bytes/token");
    for (uint32_t i = 0; i < n_known; i++) {
        char window[32], weights[16], rss[16];
        double n = r[i].n_tok ? (double)r[i].n_tok : 1;
        snprintf(window, sizeof window, "[%u,%u)", m->ranks[i].first, m->ranks[i].end);
        fprintf(out, "%-5u %-10s %10s %10s %10.3f %12.0f\n", i, window, parse_fmt_bytes(r[i].weight_bytes, weights),
                parse_fmt_bytes(r[i].rss_bytes, rss), (double)r[i].busy_ns / 1e6 / n, (double)r[i].out_bytes / n);
    }
}
