/* SPDX-License-Identifier: MIT
 *
 * Writes GGUF v3 bytes that hold nothing but a vocabulary, right or wrong, for tests of the tokenizers.
 */
#ifndef KVASIR_TESTS_VOCAB_GGUF_H
#define KVASIR_TESTS_VOCAB_GGUF_H

#include "base/buf.h"

/* Key-value pairs are appended to kv and counted. */
struct vocab_gguf {
    struct buf kv;
    uint64_t n_kv;
};

void vocab_gguf_str(struct vocab_gguf *v, const char *key, const char *value);
void vocab_gguf_u32(struct vocab_gguf *v, const char *key, uint32_t value);
void vocab_gguf_bool(struct vocab_gguf *v, const char *key, bool value);
void vocab_gguf_strs(struct vocab_gguf *v, const char *key, const char *const *value, size_t n);
void vocab_gguf_f32s(struct vocab_gguf *v, const char *key, const float *value, size_t n);
void vocab_gguf_i32s(struct vocab_gguf *v, const char *key, const int32_t *value, size_t n);

/* The file; frees the pairs. */
void vocab_gguf_end(struct vocab_gguf *v, struct buf *out);

#endif
