/* SPDX-License-Identifier: MIT */
#include "cli/progress.h"

#include "base/clock.h"
#include "base/parse.h"

#include <stdio.h>
#include <unistd.h>

#define FIRST_NS (CLOCK_NS_PER_S / 2)
#define EVERY_NS (CLOCK_NS_PER_S / 5)

void progress_begin(struct progress *p, const char *what)
{
    *p = (struct progress){
        .what = what, .tty = isatty(STDERR_FILENO), .begin_ns = clock_now_ns(), .begin_bytes = UINT64_MAX};
}

/* "1:02:03" or "2:03" */
static const char *duration(uint64_t s, char out[32])
{
    unsigned long long h = s / 3600, m = s / 60 % 60, rest = s % 60;
    if (h)
        snprintf(out, 32, "%llu:%02llu:%02llu", h, m, rest);
    else
        snprintf(out, 32, "%llu:%02llu", m, rest);
    return out;
}

void progress_show_rate(struct progress *p, uint64_t done, uint64_t total, uint64_t rate, uint64_t left_s)
{
    uint64_t now = clock_now_ns();
    char a[16], b[16], c[16], left[32];
    if (!p->tty || total == 0 || now - p->begin_ns < FIRST_NS || (p->shown && now - p->shown_ns < EVERY_NS))
        return;
    p->shown = true;
    p->shown_ns = now;
    fprintf(stderr, "\r\033[K%s: %.0f %%, %s of %s", p->what, (double)done * 100 / (double)total,
            parse_fmt_bytes(done, a), parse_fmt_bytes(total, b));
    if (rate != UINT64_MAX)
        fprintf(stderr, ", %s/s", parse_fmt_bytes(rate, c));
    if (left_s != UINT64_MAX)
        fprintf(stderr, ", %s left", duration(left_s, left));
    fflush(stderr);
}

void progress_show(struct progress *p, uint64_t done, uint64_t total)
{
    uint64_t rate = UINT64_MAX, left_s = UINT64_MAX, ns = clock_now_ns() - p->begin_ns;
    if (p->begin_bytes == UINT64_MAX)
        p->begin_bytes = done;
    if (ns > 0 && done > p->begin_bytes) {
        double per_s = (double)(done - p->begin_bytes) / ((double)ns / (double)CLOCK_NS_PER_S);
        double left = done < total ? (double)(total - done) / per_s : 0;
        rate = per_s < 1e18 ? (uint64_t)per_s : UINT64_MAX;
        left_s = left < 1e9 ? (uint64_t)left : UINT64_MAX;
    }
    progress_show_rate(p, done, total, rate, left_s);
}

void progress_end(struct progress *p)
{
    if (p->shown)
        fprintf(stderr, "\r\033[K");
    p->shown = false;
}
