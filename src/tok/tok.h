/* SPDX-License-Identifier: MIT
 *
 * Text to token ids and back, from the tokenizer.ggml.* metadata of a GGUF. This file is the dispatch; one file per
 * model of tokenizer (spm.c, bpe.c). A struct tok is immutable after tok_new and may be shared by threads.
 */
#ifndef KVASIR_TOK_TOK_H
#define KVASIR_TOK_TOK_H

#include "base/buf.h"
#include "model/gguf.h"

struct tok; /* opaque */

/* What a user may set against the file. {0}: nothing. */
struct tok_options {
    const char *pre; /* pre-tokenizer of a BPE vocabulary in place of tokenizer.ggml.pre; NULL: the file's. Borrowed
                        for the call; other vocabularies ignore it. */
};

/* Reads the vocabulary. Copies what it needs: g may be closed afterwards. options may be NULL.
 * ERR_UNSUPPORTED: the tokenizer model or the pre-tokenizer is not known (the message names it and the known ones).
 * ERR_FORMAT: arrays of wrong type or length, scores that are not finite, byte tokens without a byte, merges that are
 * no pairs. ERR_RANGE: a special id outside the vocabulary. ERR_NOT_FOUND: no vocabulary, no merges. ERR_LIMIT,
 * ERR_NOMEM. */
enum err_code tok_new(const struct gguf *g, const struct tok_options *options, struct tok **out,
                      struct err *e) KV_MUST_USE;
void tok_free(struct tok *t);

/* Growable array of token ids. {0} is empty. */
struct tok_ids {
    int32_t *id;
    size_t n, cap;
};
void tok_ids_free(struct tok_ids *ids);

enum tok_flag {
    TOK_ADD_SPECIAL = 1u << 0, /* add BOS/EOS where the model's metadata says so */
    TOK_PARSE_SPECIAL =
        1u << 1, /* control tokens written out in the text become those tokens; without it they stay text */
    TOK_CONTENT =
        1u
        << 2, /* the text is somebody's message inside a template: no token comes out of it that a template or an
                 end is made of, even where the file calls it user-defined or ordinary. Not with TOK_PARSE_SPECIAL. */
};

/* Appends the ids of text (any bytes, not necessarily UTF-8, NUL included). User-defined tokens are recognised in any
 * case. BPE sees each byte that is not UTF-8 as U+FFFD. On failure out keeps what it had. ERR_LIMIT: a text over
 * 512 MiB; ERR_NOMEM. */
enum err_code tok_encode(const struct tok *t, const char *text, size_t len, unsigned flags, struct tok_ids *out,
                         struct err *e) KV_MUST_USE;

/* A text in parts, each with flags of its own: TOK_PARSE_SPECIAL, TOK_CONTENT or neither. */
struct tok_span {
    const char *text; /* may be NULL when len is 0 */
    size_t len;
    unsigned flags;
};

/* As tok_encode of all parts joined, which may become one token across a border; but each special token is recognised
 * only where all of its bytes are in parts whose flags allow it. No BOS, no EOS. */
enum err_code tok_encode_spans(const struct tok *t, const struct tok_span *span, size_t n_spans, struct tok_ids *out,
                               struct err *e) KV_MUST_USE;

/* Appends the bytes of one token. with_special: control tokens as their text, else as nothing.
 * ERR_RANGE for an id outside the vocabulary, ERR_NOMEM. No leading-space rule: see struct tok_stream. */
enum err_code tok_piece(const struct tok *t, int32_t id, bool with_special, struct buf *out, struct err *e) KV_MUST_USE;

/* Streaming detokenizer of one text: what it appends is always whole UTF-8 characters, held back until complete; a byte
 * that can never become part of a character comes out as U+FFFD. Owned by the caller; one thread. */
struct tok_stream {
    const struct tok *t;
    uint8_t held[4]; /* an incomplete character's first bytes */
    uint8_t n_held;
    bool at_start;     /* nothing printed yet */
    bool with_special; /* show control tokens */
};

/* continuation: the text goes on after a prompt, so the first piece keeps its leading space; otherwise one leading
 * space of the very first piece is dropped when the vocabulary adds one. */
void tok_stream_init(struct tok_stream *s, const struct tok *t, bool continuation, bool with_special);
enum err_code tok_stream_put(struct tok_stream *s, int32_t id, struct buf *out, struct err *e) KV_MUST_USE;
/* The end of the text: an incomplete character comes out as U+FFFD. */
enum err_code tok_stream_end(struct tok_stream *s, struct buf *out, struct err *e) KV_MUST_USE;

uint32_t tok_n_vocab(const struct tok *t);
int32_t tok_bos(const struct tok *t); /* -1 where there is none */
int32_t tok_eos(const struct tok *t);
bool tok_add_bos(const struct tok *t);
bool tok_is_eog(const struct tok *t, int32_t id); /* does this token end a generation? */

#endif
