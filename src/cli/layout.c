/* SPDX-License-Identifier: MIT */
#include "cli/layout.h"

#include "cli/rank.h"
#include "engine/arch.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

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
    struct plan_cache cache = {.n_ctx = m->n_ctx,
                               .n_slots = m->n_slots,
                               .window_cells = kv_window_cells(h->n_window, m->n_ctx, m->n_batch),
                               .bytes32 = kv_type_bytes32(kv)};
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        struct manifest_rank *r = &m->ranks[i];
        r->first = w[i].first;
        r->end = w[i].end;
        r->weight_bytes = w[i].bytes;
        r->kv_bytes = plan_kv_bytes(h, w[i].first, w[i].end, &cache);
        memcpy(r->device, "cpu", 4);
    }
    return OK;
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
