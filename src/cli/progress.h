/* SPDX-License-Identifier: MIT
 *
 * One line on stderr that says how things stand, or how far something long has come, its rate and the time left (only
 * when it takes longer than half a second, and gone when it ends). Only when stderr is a terminal, and cut to its
 * width. Main thread.
 */
#ifndef KVASIR_CLI_PROGRESS_H
#define KVASIR_CLI_PROGRESS_H

#include "base/err.h"

/* Shows a line, instead of the one that is there. */
void progress_line(const char *fmt, ...) KV_PRINTF(1, 2);
/* Removes it, before something else is printed. */
void progress_clear(void);

struct progress {
    const char *what; /* "reading the model": not copied */
    uint64_t begin_ns, shown_ns;
    uint64_t begin_bytes; /* done when it began: no part of the rate */
};

void progress_begin(struct progress *p, const char *what);

/* Is it time to show something? Not in the first half second, and a few times a second from then on. */
bool progress_due(struct progress *p);

/* Bytes done and in all. The rate is the mean since the first call. */
void progress_show(struct progress *p, uint64_t done, uint64_t total);

/* The same with a rate (bytes per second) and the seconds left known better; UINT64_MAX: not known. */
void progress_show_rate(struct progress *p, uint64_t done, uint64_t total, uint64_t rate, uint64_t left_s);

/* Removes the line. */
void progress_end(struct progress *p);

#endif
