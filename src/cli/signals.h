/* SPDX-License-Identifier: MIT
 *
 * SIGINT and SIGTERM as a descriptor, for the main threads that wait with poll(2). Threads started through thread.h
 * take no signals anyway.
 */
#ifndef KVASIR_CLI_SIGNALS_H
#define KVASIR_CLI_SIGNALS_H

#include "base/err.h"

/* Blocks the two signals in this thread; *fd becomes readable when one came. Call before threads start. */
enum err_code signals_open(int *fd, struct err *e) KV_MUST_USE;
/* The signal that came, 0 when none did. */
int signals_take(int fd);

#endif
