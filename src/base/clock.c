/* SPDX-License-Identifier: MIT */
#include "base/clock.h"

#include <limits.h>
#include <time.h>

uint64_t clock_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t clock_deadline_ms(uint32_t ms)
{
    return clock_now_ns() + (uint64_t)ms * CLOCK_NS_PER_MS;
}

int clock_left_ms(uint64_t deadline_ns)
{
    uint64_t now = clock_now_ns();
    if (now >= deadline_ns)
        return 0;
    uint64_t ms = (deadline_ns - now + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}
