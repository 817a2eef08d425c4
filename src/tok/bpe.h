/* SPDX-License-Identifier: MIT
 *
 * Byte-level BPE as GPT-2 introduced it: bytes are written as printable characters, and pieces of the text are merged
 * by ranked pairs of tokens. Belongs to a struct tok, immutable like it.
 */
#ifndef KVASIR_TOK_BPE_H
#define KVASIR_TOK_BPE_H

#include "tok/pretok.h"
#include "tok/vocab.h"

struct bpe; /* opaque: the pre-tokenizer and the merges */

/* Reads the merges. t's vocabulary is loaded. Takes pretok in any case. ERR_NOT_FOUND: no merges; ERR_FORMAT: a merge
 * that is no pair; ERR_LIMIT, ERR_NOMEM. */
enum err_code bpe_new(const struct tok *t, const struct gguf *g, struct pretok *pretok, struct bpe **out,
                      struct err *e) KV_MUST_USE;
void bpe_free(struct bpe *b);

/* Scratch memory of one tok_encode call. {0} is empty. */
struct bpe_node;
struct bpe_scratch {
    struct buf text, letters;
    struct pretok_scratch pieces;
    struct bpe_node *node;
    size_t cap_nodes;
    struct queue queue;
};
void bpe_scratch_free(struct bpe_scratch *s);

/* Appends the ids of one fragment without special tokens; each byte that is not UTF-8 counts as U+FFFD.
 * ERR_NOMEM, ERR_LIMIT. */
enum err_code bpe_encode(const struct tok *t, struct bpe_scratch *s, const uint8_t *text, uint32_t len,
                         struct tok_ids *out, struct err *e) KV_MUST_USE;

/* Appends the bytes that a token's text stands for. What stands for no byte comes out as it is. */
void bpe_put_bytes(struct buf *out, const char *text, size_t len);

#endif
