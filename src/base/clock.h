/* SPDX-License-Identifier: MIT
 *
 * Monotonic time and deadlines, in nanoseconds. A deadline is an absolute time of clock_now_ns; every wait takes one.
 */
#ifndef KVASIR_BASE_CLOCK_H
#define KVASIR_BASE_CLOCK_H

#include <stdint.h>

#define CLOCK_NS_PER_S  1000000000ull
#define CLOCK_NS_PER_MS 1000000ull

uint64_t clock_now_ns(void);

/* The time `ms` milliseconds from now. */
uint64_t clock_deadline_ms(uint32_t ms);

/* Milliseconds left until the deadline, rounded up; 0 when it has passed. Fits poll(2). */
int clock_left_ms(uint64_t deadline_ns);

#endif
