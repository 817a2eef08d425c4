/* SPDX-License-Identifier: MIT
 *
 * Where a command takes a model from: a file, or web servers ("origins"), named by the URL of the GGUF or, for an
 * origin of ours, by its base URL. Shared by pull, plan, index, run, node and up. Main thread only.
 */
#ifndef KVASIR_CLI_SOURCE_H
#define KVASIR_CLI_SOURCE_H

#include "cli/opt.h"
#include "cli/signals.h"
#include "shard/remote.h"

struct source_options {
    struct opt_list origins;
    const char *token_file, *index;
};
#define SOURCE_URL_ROWS(s)                                                                                             \
    {"index", 0, OPT_STRING, "FILE|URL", "the model's index (default: URL.kvi, if it is there)", &(s).index, 0, 0},    \
        {"token-file",    0, OPT_STRING, "FILE", "file with the token for the URLs' hosts, which only you may read",   \
         &(s).token_file, 0, 0}
#define SOURCE_OPTION_ROWS(s)                                                                                          \
    {"origin",                                                                                                         \
     0,                                                                                                                \
     OPT_LIST,                                                                                                         \
     "URL",                                                                                                            \
     "instead of MODEL: pull the windows from this URL of a GGUF, or of a kvasir origin; may be repeated",             \
     &(s).origins,                                                                                                     \
     0,                                                                                                                \
     0},                                                                                                               \
        SOURCE_URL_ROWS(s)

bool source_is_url(const char *text);
/* Something is wrong with how model and origins were given: what to say to the user; NULL when all is well. */
const char *source_complaint(const struct source_options *o, const char *model);

/* The token of the file, else of KVASIR_TOKEN, else of HF_TOKEN when all URLs are of the hub that it is for; *out NULL:
 * none. oai_key_free it. Errors as oai_key_load. */
enum err_code source_token(const char *token_file, const char *const *urls, uint32_t n_urls, char **out,
                           struct err *e) KV_MUST_USE;

/* What is wanted of origins. */
struct source_want {
    const uint8_t *model_id;   /* a base URL's model is the one of this id; NULL: the only one that is there */
    bool no_index, no_wait;    /* as in remote.h */
    bool any_name;             /* a URL with a path is the model's, also when that does not end in .gguf */
    struct signals_stop *stop; /* NULL: none */
};
/* Opens the model at o's origins. Base URLs are asked which model it is, for some minutes if they are still computing
 * ids. Errors as remote_open; ERR_ARG, ERR_NOT_FOUND: an origin has no such model, or several. */
enum err_code source_remote(const struct source_options *o, const struct source_want *w, struct remote **out,
                            struct err *e) KV_MUST_USE;

/* A model file, or the header of one at a URL. */
struct source {
    struct gguf *file;     /* NULL: remote */
    struct remote *remote; /* NULL: file */
};
/* model: a path or a URL; NULL: at o's origins. */
enum err_code source_open(struct source *s, const char *model, const struct source_options *o,
                          const struct source_want *w, struct err *e) KV_MUST_USE;
void source_close(struct source *s); /* {0} is fine */
const struct gguf *source_gguf(const struct source *s);
/* ERR_NOT_FOUND: a remote model without an index; else as rank_model_id. */
enum err_code source_model_id(const struct source *s, struct signals_stop *stop, uint8_t id[DIGEST_BYTES],
                              struct err *e) KV_MUST_USE;

#endif
