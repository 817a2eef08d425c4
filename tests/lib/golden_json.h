/* SPDX-License-Identifier: MIT
 *
 * The readable half of the reference outputs, golden/<stem>.json: texts with their token ids, and the continuations.
 * Everything is owned by the struct and read-only.
 */
#ifndef KVASIR_TESTS_GOLDEN_JSON_H
#define KVASIR_TESTS_GOLDEN_JSON_H

#include "base/err.h"

#include <stddef.h>

struct golden_bytes {
    const char *data;
    size_t len;
};

struct golden_ids {
    const int32_t *id;
    size_t n;
};

/* An entry of "tokenize" (text, ids, pieces) or of "cases" (name, text = prompt, ids, greedy, greedy_text). */
struct golden_text {
    const char *name; /* NULL in "tokenize" */
    struct golden_bytes text;
    bool add_special, parse_special;
    struct golden_ids ids;
    struct golden_bytes pieces; /* of ids, special tokens shown */
    struct golden_ids greedy;
    struct golden_bytes greedy_text;
};

struct golden_json {
    uint32_t n_vocab;
    int32_t bos, eos;
    bool add_bos;
    struct golden_ids eog;
    const struct golden_text *tokenize, *cases;
    size_t n_tokenize, n_cases;
    void *owner; /* the memory behind all of it */
};

/* ERR_NOT_FOUND, ERR_IO, ERR_FORMAT, ERR_NOMEM. */
enum err_code golden_json_open(const char *path, struct golden_json *out, struct err *e) KV_MUST_USE;
void golden_json_close(struct golden_json *g);

#endif
