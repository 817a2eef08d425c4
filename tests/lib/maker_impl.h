/* SPDX-License-Identifier: MIT
 *
 * What the files of the model maker share: maker.c writes, maker_families.c knows tensors and keys, maker_vocab.c the
 * vocabularies. For nobody else.
 */
#ifndef KVASIR_TESTS_MAKER_IMPL_H
#define KVASIR_TESTS_MAKER_IMPL_H

#include "lib/maker.h"

#include <ggml.h>
#include <gguf.h>

#define MAKER_MAX_VOCAB 1000000u

enum maker_fill {
    MAKER_FILL_NORMAL,    /* mean a, deviation b */
    MAKER_FILL_SIGNS,     /* the same, and every other one or so negative */
    MAKER_FILL_UNIFORM,   /* a to b */
    MAKER_FILL_ROPE_FREQS /* divisors of the frequencies: 1 for the fast ones, up to a for the slow ones */
};

struct maker_tensor {
    char name[GGML_MAX_NAME];
    enum ggml_type type;
    int64_t ne[3]; /* 0 beyond the last dimension */
    enum maker_fill fill;
    float a, b;
    bool quiet_tokens; /* rows of tokens that are no text are scaled down */
    uint64_t stream;   /* where its random numbers come from */
    uint64_t offset;   /* in the file */
};

struct maker_list {
    struct maker_tensor *tensor;
    size_t n, cap;
    bool dropped; /* broken_drop was found */
};

/* Everything that is in p's model, faults included. The list is the caller's, to be freed even on failure. ERR_NOMEM.
 */
enum err_code maker_list_tensors(const struct maker_params *p, struct maker_list *out, struct err *e) KV_MUST_USE;

/* What depends on the family. ERR_ARG. */
enum err_code maker_check_family(const struct maker_params *p, struct err *e) KV_MUST_USE;

/* Whether the metadata say n_ff. */
bool maker_needs_ff(const struct maker_params *p);

/* All metadata but the faults. ERR_NOMEM. */
enum err_code maker_put_keys(struct gguf_context *meta, const struct maker_params *p, struct err *e) KV_MUST_USE;

/* tokenizer.* keys. ERR_NOMEM. */
enum err_code maker_put_vocab(struct gguf_context *meta, const struct maker_params *p, struct err *e) KV_MUST_USE;

/* The smallest vocabulary that has all that is special. */
uint32_t maker_min_vocab(const struct maker_params *p);

/* Whether token i should hardly ever be the best. */
bool maker_token_is_quiet(const struct maker_params *p, uint32_t i);

#endif
