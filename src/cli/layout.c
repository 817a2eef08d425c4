/* SPDX-License-Identifier: MIT */
#include "cli/layout.h"

#include "base/parse.h"
#include "cli/rank.h"
#include "engine/arch.h"
#include "engine/backend.h"
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CTX_STEP  256u /* a default context is cut by this many positions at a time */
#define CTX_LEAST 512u /* and not below */

static void model_name(const struct gguf *g, char out[MANIFEST_TEXT_SIZE])
{
    const char *name = NULL;
    if (gguf_opt_str(g, "general.name", &name, NULL) != OK || !name || !name[0]) {
        const char *slash = strrchr(gguf_path(g), '/');
        name = slash ? slash + 1 : gguf_path(g);
    }
    size_t n = 0;
    for (; name[n] && n + 1 < MANIFEST_TEXT_SIZE; n++) /* for people; what a manifest cannot hold becomes '?' */
        out[n] = name[n] >= 0x20 && name[n] < 0x7f ? name[n] : '?';
    out[n] = 0;
}

static enum err_code windows(const struct layout_options *o, const struct model_sizes *s, struct plan_window *w,
                             uint32_t *n, struct err *e)
{
    if (!o->layers) {
        *n = o->n_stages ? o->n_stages : 1;
        return plan_even(s, *n, w, e);
    }
    enum err_code rc = plan_layers(o->layers, s, w, MANIFEST_MAX_RANKS, n, e);
    if (rc == OK && o->n_stages && o->n_stages != *n)
        return err_set(e, ERR_ARG, "--layers lists %u windows, --stages asks for %u", *n, o->n_stages);
    return rc;
}

/* "cpu" for all ranks, or "vulkan0,cpu" for each. */
static enum err_code set_devices(const char *list, struct manifest *m, struct err *e)
{
    uint32_t n = 0;
    for (const char *at = list, *end;; at = end + 1) {
        size_t len = strcspn(at, ",");
        end = at + len;
        if (len == 0 || len >= MANIFEST_TEXT_SIZE)
            return err_set(e, ERR_ARG, "--device %s: a name is empty or too long", list);
        for (uint32_t i = n; i < m->n_ranks && (i == n || !strchr(list, ',')); i++) {
            memcpy(m->ranks[i].device, at, len);
            m->ranks[i].device[len] = 0;
        }
        n++;
        if (!*end)
            break;
    }
    if (n != 1 && n != m->n_ranks)
        return err_set(e, ERR_ARG, "--device %s names %u devices for %u ranks: one for all, or one for each", list, n,
                       m->n_ranks);
    return OK;
}

static struct plan_cache cache_of(const struct hparams *h, const struct manifest *m, enum kv_type kv, uint32_t n_ctx)
{
    return (struct plan_cache){.n_ctx = n_ctx,
                               .n_slots = m->n_slots,
                               .window_cells = kv_window_cells(h->n_window, n_ctx, m->n_batch),
                               .bytes32 = kv_type_bytes32(kv)};
}

/* Is there memory for all ranks that share rank i's device? An eighth is left for everything else. */
static bool context_fits(const struct hparams *h, const struct manifest *m, uint32_t i, enum kv_type kv, uint32_t n_ctx,
                         uint64_t free_bytes)
{
    struct plan_cache cache = cache_of(h, m, kv, n_ctx);
    uint64_t left = free_bytes - free_bytes / 8;
    for (uint32_t k = 0; k < m->n_ranks; k++) {
        const struct manifest_rank *r = &m->ranks[k];
        if (strcasecmp(r->device, m->ranks[i].device) != 0)
            continue;
        uint64_t bytes = plan_kv_bytes(h, r->first, r->end, &cache);
        if (r->weight_bytes > left || bytes > left - r->weight_bytes)
            return false;
        left -= r->weight_bytes + bytes;
    }
    return true;
}

/* The default context, cut to what the memory of this machine's devices holds. Where not even the least fits, it is
 * not the context that is too large, and loading says what is. */
static void fit_context(const struct hparams *h, struct manifest *m, enum kv_type kv)
{
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        const char *device = strcasecmp(m->ranks[i].device, "auto") == 0 ? backend_best(0) : m->ranks[i].device;
        uint64_t free_bytes = backend_free_bytes(device ? device : "cpu");
        uint32_t n = m->n_ctx;
        char text[16];
        if (free_bytes == 0) /* unknown */
            continue;
        while (n > CTX_LEAST && !context_fits(h, m, i, kv, n, free_bytes))
            n = n - CTX_STEP > CTX_LEAST ? n - CTX_STEP : CTX_LEAST;
        if (n == m->n_ctx || !context_fits(h, m, i, kv, n, free_bytes))
            continue;
        fprintf(stderr, "kvasir: a context of %u positions, not %u: %s has %s free (--ctx N sets it)\n", n, m->n_ctx,
                device ? device : "cpu", parse_fmt_bytes(free_bytes, text));
        m->n_ctx = n;
    }
}

static enum err_code fill(const struct gguf *g, const struct hparams *h, const struct layout_options *o,
                          struct manifest *m, struct err *e)
{
    struct model_sizes s;
    struct plan_window w[MANIFEST_MAX_RANKS];
    enum kv_type kv = KV_F16;
    enum err_code rc = o->kv ? kv_parse_type(o->kv, &kv, e) : OK;
    if (rc == OK)
        rc = model_sizes_read(g, h, &s, e);
    if (rc != OK)
        return rc;
    rc = windows(o, &s, w, &m->n_ranks, e);
    model_sizes_fini(&s);
    if (rc != OK)
        return rc;
    model_name(g, m->model_name);
    m->n_blocks = h->n_block;
    m->n_embd = h->n_embd;
    m->n_vocab = h->n_vocab;
    m->n_ctx = o->n_ctx ? o->n_ctx : h->n_ctx_train < RANK_DEFAULT_CTX ? h->n_ctx_train : RANK_DEFAULT_CTX;
    m->n_slots = o->n_slots ? o->n_slots : 1;
    m->n_batch = o->n_batch ? o->n_batch : STAGE_DEFAULT_BATCH;
    m->n_batch = m->n_batch < m->n_slots ? m->n_slots : m->n_batch;
    m->epoch = 1;
    m->ranks = calloc(m->n_ranks, sizeof *m->ranks);
    if (!m->ranks)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        struct manifest_rank *r = &m->ranks[i];
        r->first = w[i].first;
        r->end = w[i].end;
        r->weight_bytes = w[i].bytes;
    }
    rc = set_devices(o->device ? o->device : "cpu", m, e);
    if (rc == OK && o->local && !o->n_ctx)
        fit_context(h, m, kv);
    struct plan_cache cache = cache_of(h, m, kv, m->n_ctx);
    for (uint32_t i = 0; i < m->n_ranks; i++)
        m->ranks[i].kv_bytes = plan_kv_bytes(h, w[i].first, w[i].end, &cache);
    return rc;
}

enum err_code layout_make(const struct gguf *g, const struct layout_options *o, struct manifest *m, struct err *e)
{
    struct hparams h;
    struct manifest x = {0};
    const struct arch *arch;
    const char *family;
    /* The family first: what a model of an unknown one lacks says nothing. */
    enum err_code rc = gguf_str(g, "general.architecture", &family, e);
    if (rc == OK)
        rc = arch_find(family, &arch, e);
    if (rc == OK)
        rc = hparams_read(g, &h, e);
    if (rc != OK)
        return rc;
    rc = arch->check ? arch->check(&h, e) : OK;
    if (rc == OK)
        rc = fill(g, &h, o, &x, e);
    hparams_fini(&h);
    if (rc != OK) {
        manifest_fini(&x);
        return rc;
    }
    *m = x;
    return OK;
}
