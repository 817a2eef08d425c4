/* SPDX-License-Identifier: MIT
 *
 * The program as a user runs it: started, waited for, listened to. Whatever does not happen within CLI_WAIT_MS fails
 * the test, with what the program said. Asserts by cmocka. For the tests test_cli_*.c and test_ring_device.c.
 */
#ifndef KVASIR_TESTS_CLI_RIG_H
#define KVASIR_TESTS_CLI_RIG_H

#include "lib/proc.h"

#include <stdint.h>

#define CLI_WAIT_MS                                                                                                    \
    240000u /* a machine that does other things, sanitizers, shaders that have to be translated first                  \
             */

/* kvasir WORDS...; NULL ends them. env and keep_fd: as for proc_start. */
void cli_start(struct proc *p, const char *const *words, const char *const *env, int keep_fd);
#define CLI_WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* It ends with this status; its output stays until proc_free. */
void cli_finish(struct proc *p, int code);
/* It is told to end, by SIGTERM, and does so with status 0; freed. */
void cli_stop(struct proc *p);

/* Waits until it has said the text on that stream. */
void cli_says(struct proc *p, enum proc_stream s, const char *text);
/* Waits until a line with the text is whole; the text there, until more is waited for. */
const char *cli_line(struct proc *p, enum proc_stream s, const char *text);

#endif
