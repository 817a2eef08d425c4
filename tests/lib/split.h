/* SPDX-License-Identifier: MIT
 *
 * Cuts a GGUF into parts as llama-gguf-split does: NAME-00001-of-000NN.gguf and so on, all metadata in the first.
 */
#ifndef KVASIR_TESTS_SPLIT_H
#define KVASIR_TESTS_SPLIT_H

#include "base/err.h"

#include <stddef.h>

/* Writes n_parts (2 to 99) files, stem-00001-of-000NN.gguf and so on, each with about as many tensors. */
enum err_code split_gguf(const char *path, const char *stem, uint32_t n_parts, struct err *e) KV_MUST_USE;

#endif
