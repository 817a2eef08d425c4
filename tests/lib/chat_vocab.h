/* SPDX-License-Identifier: MIT
 *
 * A BPE vocabulary for tests of chats: a token per byte, a few merges, and the special tokens of all chat formats, so
 * that the pieces of the ids are the text again.
 */
#ifndef KVASIR_TESTS_CHAT_VOCAB_H
#define KVASIR_TESTS_CHAT_VOCAB_H

#include "base/buf.h"

#include <stdint.h>

/* The special tokens; NULL ends them. "<s>" is BOS, "</s>" EOS, "\n\n" and "<think>" are user-defined in any case. */
extern const char *const chat_vocab_special[];

/* The bytes of a GGUF with this vocabulary. special_type: of the special tokens, as in tokenizer.ggml.token_type (3:
 * control, 4: user-defined). chat_template may be NULL. */
void chat_vocab_make(struct buf *out, int32_t special_type, bool add_bos, const char *chat_template);

#endif
