/* SPDX-License-Identifier: MIT
 *
 * nginx, a web server that is not ours, over a folder: in one process, with all that it writes in a folder of the
 * test's, on a loopback port. Asserts by cmocka.
 */
#ifndef KVASIR_TESTS_NGINX_RIG_H
#define KVASIR_TESTS_NGINX_RIG_H

#include "lib/proc.h"

#include <stdint.h>

/* The files of folder are at /models/NAME. home is made. False, with a line that says so: nginx is not installed. */
bool nginx_start(struct proc *p, const char *home, const char *folder, uint16_t *port);

/* Bytes of the bodies it has sent of what ends with the name, from its log. Once it has ended. */
uint64_t nginx_bytes(const char *home, const char *name);

#endif
