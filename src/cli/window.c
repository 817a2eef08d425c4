/* SPDX-License-Identifier: MIT */
#include "cli/window.h"

#include "base/log.h"
#include "base/parse.h"
#include "cli/progress.h"
#include "cli/rank.h"
#include "model/slice.h"
#include "shard/cache.h"

#include <inttypes.h>
#include <string.h>

struct pulling {
    const struct window_want *w;
    struct progress line;
};

static bool on_pull(void *ctx, const struct pull_progress *p)
{
    struct pulling *k = ctx;
    struct pull_progress all = *p;
    const bool go_on = !k->w->tell || k->w->tell(k->w->ctx, &all);
    progress_show_rate(&k->line, all.done_bytes, all.total_bytes, all.bytes_per_s, all.eta_s);
    return go_on && !signals_stopped(k->w->stop);
}

static enum err_code pull(const struct window_want *w, struct remote *r, char path[PATH_MAX], bool *fresh,
                          struct err *e)
{
    const struct manifest_rank *row = &w->m->ranks[w->rank];
    struct pulling k = {.w = w};
    const struct pull_request q = {
        .first = row->first, .end = row->end, .model_id = w->m->model_id, .ctx = &k, .progress = on_pull};
    struct pull_result x = {0};
    char got[16];
    progress_begin(&k.line, w->what);
    enum err_code rc = cache_pull(r, &q, path, &x, e);
    progress_end(&k.line);
    if (rc != OK)
        return rc;
    *fresh = x.size > 0;
    log_info("node", "the window [%u,%u) is in %s, %s received in %" PRIu64 " requests", row->first, row->end, path,
             parse_fmt_bytes(x.received_bytes, got), x.n_requests);
    return OK;
}

/* The stage file of the rank's window: the cache's, else pulled into it. *fresh: pulled, and so verified, just now. */
static enum err_code fetch(const struct window_want *w, char path[PATH_MAX], bool *fresh, struct err *e)
{
    const struct manifest_rank *row = &w->m->ranks[w->rank];
    const struct source_want want = {.model_id = w->m->model_id, .stop = w->stop};
    struct remote *r;
    *fresh = false;
    if (cache_find(w->m->model_id, row->first, row->end, path, e) == OK)
        return OK;
    if (!w->source->origins.n)
        return err_set(
            e, ERR_NOT_FOUND,
            "no model is named, and the cache does not have the window [%u,%u) of %s: MODEL, or --origin URL",
            row->first, row->end, w->m->model_name);
    log_info("node", "pulling window [%u,%u) of %s", row->first, row->end, w->m->model_name);
    if (w->remote)
        return pull(w, w->remote, path, fresh, e);
    enum err_code rc = source_remote(w->source, &want, &r, e);
    if (rc != OK)
        return rc;
    rc = pull(w, r, path, fresh, e);
    remote_close(r);
    return rc;
}

/* The id of what was pulled just now follows from what was verified; all else is read once. */
static enum err_code read_id(const struct window_want *w, const struct gguf *g, bool fresh, uint8_t id[DIGEST_BYTES],
                             struct err *e)
{
    struct slice_label label;
    if (!fresh)
        return rank_model_id(g, w->stop, id, e);
    enum err_code rc = slice_label_read(g, &label, e);
    if (rc == OK)
        memcpy(id, label.model_id, DIGEST_BYTES);
    return rc;
}

/* From the cache, where a file may be removed, or turn out to be damaged, before it is open: then once more. */
static enum err_code open_cached(const struct window_want *w, struct gguf **g, uint8_t id[DIGEST_BYTES], struct err *e)
{
    char path[PATH_MAX];
    for (int tries = 0;; tries++) {
        bool fresh;
        enum err_code rc = fetch(w, path, &fresh, e);
        if (rc != OK)
            return rc;
        rc = gguf_open(path, g, e);
        if (rc == ERR_NOT_FOUND && tries == 0)
            continue;
        if (rc != OK)
            return rc;
        rc = read_id(w, *g, fresh, id, e);
        if (rc == OK)
            return OK;
        gguf_close(*g);
        if (rc != ERR_MISMATCH || tries > 0 || cache_reject(path, e->msg, NULL) != OK)
            return rc;
    }
}

enum err_code window_open(const struct window_want *w, struct gguf **out, uint8_t id[DIGEST_BYTES], struct err *e)
{
    struct gguf *g;
    enum err_code rc;
    if (!w->model) {
        rc = open_cached(w, &g, id, e);
    } else if ((rc = gguf_open(w->model, &g, e)) == OK && (rc = rank_model_id(g, w->stop, id, e)) != OK) {
        gguf_close(g);
    }
    if (rc == OK)
        *out = g;
    return rc;
}
