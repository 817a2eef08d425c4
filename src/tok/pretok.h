/* SPDX-License-Identifier: MIT
 *
 * Pre-tokenizers of BPE vocabularies: the regular expressions that cut a text into pieces which are merged each on its
 * own, chosen by the name in tokenizer.ggml.pre. A struct pretok is immutable and may be shared by threads; the scratch
 * belongs to one call of tok_encode.
 */
#ifndef KVASIR_TOK_PRETOK_H
#define KVASIR_TOK_PRETOK_H

#include "base/err.h"

#include <stddef.h>

struct pretok; /* opaque: compiled expressions and what else follows from the name */

/* What a name says besides where to cut; keys of the file come before these. */
struct pretok_traits {
    bool whole_pieces;   /* a piece that is a token becomes it without being merged ("ignore_merges") */
    bool adds_bos;       /* by default */
    bool no_default_bos; /* without a key there is no BOS */
};

/* ERR_UNSUPPORTED: a name that is not known (the message names it, and the known kinds). ERR_NOMEM, ERR_INTERNAL. */
enum err_code pretok_new(const char *name, struct pretok **out, struct err *e) KV_MUST_USE;
void pretok_free(struct pretok *p);
struct pretok_traits pretok_traits(const struct pretok *p);

/* The names of one kind of pre-tokenizer, separated by spaces; NULL behind the last kind. */
const char *pretok_names(size_t kind);

/* Ends of pieces, in bytes from the start of the text; the last one is the text's length. */
struct pretok_ends {
    uint32_t *end;
    size_t n, cap;
};

/* Memory of one caller, kept from text to text. {0} is empty. */
struct pretok_scratch {
    struct pretok_ends now, next;
    struct pretok_matcher *matcher;
};
void pretok_scratch_free(struct pretok_scratch *s);

/* Cuts text, which must be valid UTF-8, into pieces: s->now. No piece is empty; all bytes are in one.
 * ERR_NOMEM; ERR_LIMIT: an expression took too long. */
enum err_code pretok_split(const struct pretok *p, const uint8_t *text, uint32_t len, struct pretok_scratch *s,
                           struct err *e) KV_MUST_USE;

#endif
