/* SPDX-License-Identifier: MIT */
#include "cli/progress.h"

#include "base/clock.h"
#include "base/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define FIRST_NS (CLOCK_NS_PER_S / 2)
#define EVERY_NS (CLOCK_NS_PER_S / 5)

#define MAX_LINE 256

static bool line_shown; /* stderr ends in such a line */

void progress_line(const char *fmt, ...)
{
    char line[MAX_LINE];
    struct winsize size = {0};
    va_list ap;
    if (!isatty(STDERR_FILENO))
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    /* A line that wraps could not be replaced: only the last row of it is. */
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && size.ws_col <= sizeof line)
        line[size.ws_col - 1] = 0;
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
    line_shown = true;
}

void progress_clear(void)
{
    if (line_shown)
        fputs("\r\033[K", stderr);
    line_shown = false;
}

void progress_begin(struct progress *p, const char *what)
{
    *p = (struct progress){.what = what, .begin_ns = clock_now_ns(), .begin_bytes = UINT64_MAX};
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

bool progress_due(struct progress *p)
{
    const uint64_t now = clock_now_ns();
    if (now < p->begin_ns + FIRST_NS || (p->shown_ns && now - p->shown_ns < EVERY_NS))
        return false;
    p->shown_ns = now;
    return true;
}

void progress_show_rate(struct progress *p, uint64_t done, uint64_t total, uint64_t rate, uint64_t left_s)
{
    char a[16], b[16], c[16], left[32], per_s[32] = "", rest[48] = "";
    if (total == 0 || !progress_due(p))
        return;
    if (rate != UINT64_MAX)
        snprintf(per_s, sizeof per_s, ", %s/s", parse_fmt_bytes(rate, c));
    if (left_s != UINT64_MAX)
        snprintf(rest, sizeof rest, ", %s left", duration(left_s, left));
    progress_line("%s: %.0f %%, %s of %s%s%s", p->what, (double)done * 100 / (double)total, parse_fmt_bytes(done, a),
                  parse_fmt_bytes(total, b), per_s, rest);
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
    if (p->shown_ns)
        progress_clear();
    p->shown_ns = 0;
}
