/* SPDX-License-Identifier: MIT
 *
 * What a rank loads, as an open GGUF: the file that was named, a stage file of the cache, or one that is pulled into
 * the cache now. Shared by node and run. Main thread only.
 */
#ifndef KVASIR_CLI_WINDOW_H
#define KVASIR_CLI_WINDOW_H

#include "cli/source.h"
#include "plan/manifest.h"
#include "shard/pull.h"

struct window_want {
    const char *model;                   /* a model or a stage file; NULL: the cache, then source's origins */
    const struct source_options *source; /* without a model */
    struct remote *remote;               /* source's, if it is open already; else it is opened when it is needed */
    const struct manifest *m;
    uint32_t rank;
    struct signals_stop *stop;
    const char *what; /* of the progress line: "pulling the window" */
    void *ctx;
    /* While it is pulled, several times a second; may add what others have to *p before it is shown. false: stop. */
    bool (*tell)(void *ctx, struct pull_progress *p);
};

/* Opens it (gguf_close), and reads its model's id, which rank_open compares with the manifest's. ERR_NOT_FOUND: not in
 * the cache and no origin; ERR_CANCELLED: stop or tell said so; else as source_remote, cache_pull, rank_model_id. */
enum err_code window_open(const struct window_want *w, struct gguf **out, uint8_t id[DIGEST_BYTES],
                          struct err *e) KV_MUST_USE;

#endif
