/* SPDX-License-Identifier: MIT
 *
 * What pthread lacks: condition variables on the monotonic clock with our deadlines, named threads that take no
 * signals, and an eventfd-like wake-up. Mutexes are used as pthread gives them.
 */
#ifndef KVASIR_BASE_THREAD_H
#define KVASIR_BASE_THREAD_H

#include "base/err.h"

#include <pthread.h>

void thread_cond_init(pthread_cond_t *c);

/* Waits for a signal until the deadline (clock.h). false when it passed. Spurious wake-ups return true. */
bool thread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns);

/* Starts a thread with all signals blocked; the name (15 bytes) shows in ps and gdb. ERR_NOMEM when there is none. */
enum err_code thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *arg, struct err *e) KV_MUST_USE;

#endif
