/* SPDX-License-Identifier: MIT
 *
 * Paths for tests. Committed data is in tests/data and models; other people's data is in ../shared, which a user does
 * not have: tests that use it skip (exit status 77) with a line that says so.
 */
#ifndef KVASIR_TESTS_TEST_UTIL_H
#define KVASIR_TESTS_TEST_UTIL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEST_SKIP 77

/* Each returns out. */
const char *test_data(const char *name, char out[PATH_MAX]);    /* tests/data/NAME */
const char *test_shared(const char *name, char out[PATH_MAX]);  /* ../shared/NAME */
const char *test_scratch(const char *name, char out[PATH_MAX]); /* a file name of this process's own under build/ */

bool test_have_shared(const char *name); /* does ../shared/NAME exist? Prints a line when not. */

/* The path of the demo model of this source tree, models/huginn.gguf. */
const char *test_demo_model(char out[PATH_MAX]);

/* Removes a folder of this process's own with all that is in it. */
void test_remove_tree(const char *path);

/* A socket that is bound to a port of loopback and does not listen: nobody answers there, and nobody else can get it
 * until it is closed. -1: there is none. */
int test_dead_port(uint16_t *port);

/* Are token ids what they should be? Prints both, and the text they are of, when not. */
bool test_same_ids(const char *text, size_t len, const int32_t *got, size_t n_got, const int32_t *want, size_t n_want);

/* Built with ASan or TSan? Then sizes shrink and memory bounds are not compared. */
bool test_sanitized(void);

#endif
