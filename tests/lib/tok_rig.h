/* SPDX-License-Identifier: MIT
 *
 * What the tests of the tokenizers share: vocabularies of files, ids that have to be those, models with references, and
 * texts that are long. Asserts by cmocka. For the tests test_tok_*.c, which are built with it.
 */
#ifndef KVASIR_TESTS_TOK_RIG_H
#define KVASIR_TESTS_TOK_RIG_H

#include "tok/tok.h"

/* The tokenizer of a GGUF. */
struct tok *tok_rig_open(const char *path);

/* The text becomes these ids. */
void tok_rig_check(const struct tok *t, const char *text, size_t len, unsigned flags, const int32_t *want, size_t n);

/* What is done with a model and its references. */
typedef void tok_rig_fn(const char *gguf_path, const char *json_path);
/* With those of the models tests/data/STEM.gguf that are there; skips the test when none is. */
void tok_rig_committed(const char *const *stems, size_t n, tok_rig_fn *fn);
/* With ../shared/FOLDER/STEM.gguf; skips the test when it is not there. */
void tok_rig_shared(const char *folder, const char *stem, tok_rig_fn *fn);
#define TOK_RIG_SHARED(function, folder, stem, fn)                                                                     \
    static void function(void **state)                                                                                 \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        tok_rig_shared(folder, stem, fn);                                                                              \
    }

/* Texts of a MiB, of several kinds, through each of the tokenizers, of which some may be NULL. Not a benchmark: with
 * quadratic work they take minutes, and the test fails after one. */
void tok_rig_long_texts(struct tok *const *toks, size_t n_toks);

#endif
