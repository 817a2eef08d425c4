/* SPDX-License-Identifier: MIT
 *
 * SIGINT and SIGTERM as a descriptor, for the main threads that wait with poll(2). Threads started through thread.h
 * take no signals anyway.
 */
#ifndef KVASIR_CLI_SIGNALS_H
#define KVASIR_CLI_SIGNALS_H

#include "base/err.h"

#include <stdatomic.h>

/* Blocks the two signals in this thread; *fd becomes readable when one came. Call before threads start. */
enum err_code signals_open(int *fd, struct err *e) KV_MUST_USE;
/* The signal that came, 0 when none did. */
int signals_take(int fd);

/* For what takes long: has somebody said stop meanwhile? */
struct signals_stop {
    int signal_fd;     /* signals_open; -1: cannot be told */
    atomic_int signal; /* the one that came; 0: none yet */
};
/* stop: a struct signals_stop, taken as the context of callbacks that ask. Any thread. */
bool signals_stopped(void *stop);

#endif
