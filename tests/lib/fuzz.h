/* SPDX-License-Identifier: MIT
 *
 * What the fuzz targets share: the function that each of them defines, and checks that end the program, which is how a
 * fuzzer learns of a fault.
 */
#ifndef KVASIR_TESTS_FUZZ_H
#define KVASIR_TESTS_FUZZ_H

#include "base/err.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs the target once over the bytes. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* what: the rule that has to hold. */
static inline void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "violated: %s\n", what);
    abort();
}

/* The same, with the rule in C's words. */
#define MUST(rule) must(rule, #rule)

/* Did it succeed? A failure has to come with one of our codes and one line of text. */
static inline bool good(enum err_code rc, const struct err *e)
{
    if (rc == OK)
        return true;
    must(rc < 0 && err_known(rc) && e->code == rc, "the code is one of ours");
    must(e->msg[0] && memchr(e->msg, 0, sizeof e->msg) && !strchr(e->msg, '\n'), "the message is one line");
    return false;
}

#endif
