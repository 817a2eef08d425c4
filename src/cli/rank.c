/* SPDX-License-Identifier: MIT */
#include "cli/rank.h"

#include "base/io.h"
#include "base/log.h"
#include "base/parse.h"
#include "cli/progress.h"
#include "model/slice.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>

#define BYTES_PER_THREAD (8u << 20) /* of weights; less is read in the time that a few hundred barriers take */

uint32_t rank_default_threads(uint32_t n_local, uint64_t weight_bytes)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t cores = n < 1 ? 1 : n > 512 ? 512 : (uint64_t)n, share = cores / n_local;
    uint64_t worth = 1 + weight_bytes / BYTES_PER_THREAD;
    return (uint32_t)(share == 0 ? 1 : share < worth ? share : worth);
}

/* --- the model ----------------------------------------------------------------------------------- */

struct reading {
    struct progress line;
    struct signals_stop *stop;
};

static bool on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct reading *r = ctx;
    progress_show(&r->line, done, total);
    return !r->stop || !signals_stopped(r->stop);
}

enum err_code rank_model_id(const struct gguf *g, struct signals_stop *stop, uint8_t out[DIGEST_BYTES], struct err *e)
{
    struct reading r = {.stop = stop};
    progress_begin(&r.line, "reading the model for its id");
    enum err_code rc = slice_model_id(g, on_progress, &r, out, e);
    progress_end(&r.line);
    return rc;
}

/* A stage file must hold the rank's window; what it is of, its id says. */
static enum err_code window_check(const struct gguf *g, const struct manifest_rank *row, uint32_t index, struct err *e)
{
    struct slice_label l;
    enum err_code rc = slice_label_read(g, &l, e);
    if (rc == OK && l.stage_file && (row->first < l.first || row->end > l.end))
        rc = err_set(e, ERR_MISMATCH, "%s is a stage file of [%u,%u); rank %u needs [%u,%u)", gguf_path(g), l.first,
                     l.end, index, row->first, row->end);
    return rc;
}

static enum err_code model_check(const struct gguf *g, const struct manifest *m, const uint8_t *model_id,
                                 bool *bounded_rewind, struct err *e)
{
    struct hparams h;
    char mine[DIGEST_HEX_SIZE], theirs[DIGEST_HEX_SIZE];
    enum err_code rc = hparams_read(g, &h, e);
    if (rc != OK)
        return rc;
    if (h.n_block != m->n_blocks || h.n_embd != m->n_embd || h.n_vocab != m->n_vocab)
        rc =
            err_set(e, ERR_MISMATCH,
                    "%s has %u blocks of width %u and %u tokens; the manifest's model has %u blocks of width %u and %u "
                    "tokens",
                    gguf_path(g), h.n_block, h.n_embd, h.n_vocab, m->n_blocks, m->n_embd, m->n_vocab);
    else if (model_id && memcmp(model_id, m->model_id, DIGEST_BYTES) != 0)
        rc = err_set(e, ERR_MISMATCH, "%s is another model: its id is %.16s..., the manifest's %.16s...", gguf_path(g),
                     digest_hex(model_id, mine), digest_hex(m->model_id, theirs));
    *bounded_rewind = hparams_bounded_rewind(&h);
    hparams_fini(&h);
    return rc;
}

enum err_code rank_identify(const struct rank_identity *w, struct manifest *m, struct key_secret *secret,
                            uint32_t *index, struct err *e)
{
    struct key_public signer, by, me;
    char text[KEY_TEXT_SIZE];
    enum err_code rc = w->signer ? key_parse(w->signer, &signer, e) : OK;
    if (rc != OK)
        return err_prefix(e, "--signer");
    rc = manifest_load(w->manifest, w->signer ? &signer : NULL, m, &by, e);
    if (rc != OK)
        return rc;
    if (!w->signer)
        log_warn("node", "manifest signed by %s, which nobody vouched for: see --signer", key_text(&by, text));
    rc = key_load(w->key, secret, e);
    if (rc != OK)
        return rc;
    key_public_of(secret, &me);
    int rank = manifest_rank_of(m, &me);
    if (rank < 0)
        return err_set(e, ERR_AUTH, "the key %s (%s) is not in the ring of %s", key_text(&me, text), w->key,
                       w->manifest);
    *index = (uint32_t)rank;
    return OK;
}

/* --- stage and node ------------------------------------------------------------------------------ */

static void say_device(uint32_t index, const struct stage_info *info)
{
    if (info->n_device_blocks)
        fprintf(stderr, "kvasir: rank %u computes on %s\n", index, info->device);
    else
        fprintf(stderr, "kvasir: rank %u computes on the CPU: there is no GPU with room for its window\n", index);
}

enum err_code rank_open(struct rank *r, const struct gguf *g, const struct manifest *m, uint32_t index,
                        const uint8_t *model_id, const struct rank_options *o, struct err *e)
{
    enum kv_type kv = KV_F16;
    bool bounded_rewind = false;
    enum err_code rc = model_check(g, m, model_id, &bounded_rewind, e);
    if (rc == OK)
        rc = window_check(g, &m->ranks[index], index, e);
    if (rc == OK && o->kv)
        rc = kv_parse_type(o->kv, &kv, e);
    if (rc != OK)
        return rc;
    const struct manifest_rank *row = &m->ranks[index];
    struct stage_params p = {
        .first = row->first,
        .end = row->end,
        .n_ctx = m->n_ctx,
        .n_slots = m->n_slots,
        .n_batch = m->n_batch,
        .n_threads = o->n_threads ? o->n_threads : rank_default_threads(1, row->weight_bytes),
        .kv_type = kv,
        .device = o->device        ? o->device
                  : row->device[0] ? row->device
                                   : NULL,
        .device_layers = o->device_layers,
        .no_repack = o->no_repack,
    };
    *r = (struct rank){.rank = index, .bounded_rewind = bounded_rewind};
    rc = stage_open(g, &p, &r->stage, e);
    if (rc == OK && p.device && strcasecmp(p.device, "auto") == 0)
        say_device(index, stage_info(r->stage));
    return rc;
}

static enum err_code run_step(void *ctx, struct batch *b, struct err *e)
{
    return stage_step(ctx, b, e);
}

static enum err_code set_sampling(void *ctx, uint32_t slot, const struct batch_sampling *s, struct err *e)
{
    return stage_sampling(ctx, slot, s, e);
}

enum err_code rank_start(struct rank *r, const struct manifest *m, struct node_config *config, struct err *e)
{
    config->m = m;
    config->rank = r->rank;
    config->stage = (struct ring_stage){.ctx = r->stage,
                                        .step = run_step,
                                        .sampling = set_sampling,
                                        .bounded_rewind = r->bounded_rewind,
                                        .n_checkpoints = STAGE_DEFAULT_CHECKPOINTS};
    return node_start(config, &r->node, e);
}

void rank_close(struct rank *r)
{
    node_stop(r->node);
    stage_close(r->stage);
    r->node = NULL;
    r->stage = NULL;
}

void rank_report_of(const struct rank *r, struct rank_report *out)
{
    struct node_stats s;
    const struct stage_info *info = stage_info(r->stage);
    node_stats_get(r->node, &s);
    *out = (struct rank_report){
        .rss_bytes = io_resident_bytes(),
        .weight_bytes = info->weight_bytes,
        .kv_bytes = info->kv_bytes,
        .compute_bytes = info->compute_bytes,
        .n_steps = s.n_steps,
        .n_tok = s.n_tok,
        .busy_ns = s.busy_ns,
        .in_bytes = s.predecessor.bytes_in,
        .out_bytes = s.successor.bytes_out,
        .n_out_tok = s.sched.n_out_tok,
    };
}

void rank_print_row(FILE *out, const struct manifest *m, uint32_t i)
{
    const struct manifest_rank *r = &m->ranks[i];
    char weights[16], kv[16];
    bool cpu = r->device[0] == 0 || strcasecmp(r->device, "cpu") == 0;
    fprintf(out, "rank %u  layers [%u,%u)  %s %s  kv %s  %s\n", i, r->first, r->end, cpu ? "ram" : "vram",
            parse_fmt_bytes(r->weight_bytes, weights), parse_fmt_bytes(r->kv_bytes, kv),
            r->device[0] ? r->device : "cpu");
}
