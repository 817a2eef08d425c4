/* SPDX-License-Identifier: MIT
 *
 * Opens a window and runs steps over it: owns the devices, weights, caches, the graph in use and what each slot holds.
 */
#include "engine/stage.h"

#include "base/hash.h"
#include "base/log.h"
#include "engine/arch.h"
#include "engine/devices.h"
#include "engine/fit.h"
#include "engine/nextn.h"
#include "engine/sampler.h"
#include "engine/slot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64u
#define MASK_ALIGN 256u /* bytes; what the most demanding device asks of where a tensor begins */
#define KV_STEP    256u /* attention looks at a multiple of this many cells, so that one graph serves many steps */

struct stage {
    struct stage_params p;
    struct stage_info info;
    struct hparams h;
    const struct arch *arch;
    struct devices dev;
    struct weights *weights;
    struct arch_block *blocks; /* [end - first] */
    struct ggml_tensor *token_embd, *output_norm, *output, *output_b, *rope_factors;
    struct kv kv;
    struct sampler *sampler;
    struct slots slots;

    /* the graph in use, and the form it was built for */
    ggml_backend_sched_t sched;
    struct ggml_context *ctx;
    size_t max_nodes;
    struct graph g;
    struct graph_entry *entries, *built; /* [n_slots]: of this step, of the graph */
    uint32_t n_built, n_built_tok, n_built_out;
    bool have_graph;
    struct ggml_tensor *in_tokens, *in_rows, *out;

    /* host side of the inputs */
    int32_t *pos, *ids;       /* [n_batch] */
    int64_t *cells[KV_VIEWS]; /* [n_batch] */
    ggml_fp16_t *mask;        /* [n_ctx] */
    float *logits;            /* [n_vocab, max rows], only where the device's memory is not the host's */
    const float *last_logits;
    uint32_t n_logits, max_out;
};

static bool is_first(const struct stage *s)
{
    return s->info.first == 0;
}

static bool is_last(const struct stage *s)
{
    return s->info.end == s->info.n_block && !s->p.no_head;
}

const struct stage_info *stage_info(const struct stage *s)
{
    return &s->info;
}

uint32_t stage_slot_tokens(const struct stage *s, uint32_t slot)
{
    return slot < s->p.n_slots ? s->slots.slot[slot].n : 0;
}

uint32_t stage_reach(const struct stage *s, uint32_t slot, uint32_t pos)
{
    return slot < s->p.n_slots ? slots_reach(&s->slots, slot, pos) : 0;
}

const float *stage_logits(const struct stage *s, uint32_t *n_rows)
{
    *n_rows = s->n_logits;
    return s->n_logits ? s->last_logits : NULL;
}

/* --- the graph ---------------------------------------------------------------------------------------------------- */

/* An input, and a leaf of the graph even where no block needs it: it always has memory. */
static struct ggml_tensor *leaf(struct stage *s, enum ggml_type type, int64_t ne0, int64_t ne1, const char *name)
{
    struct ggml_tensor *t = ggml_new_tensor_2d(s->ctx, type, ne0, ne1);
    ggml_set_input(t);
    ggml_set_name(t, name);
    ggml_build_forward_expand(s->g.gf, t);
    return t;
}

/* The allocator places inputs first, then what is computed, in steps of 32 bytes on the CPU. Matrix products whose rows
 * straddle cache lines take 1.6 times as long, so a filler behind each input ends on a whole line. It is there in every
 * graph: the allocator takes the layout of an earlier graph for one with as many leaves, whatever their order. */
static struct ggml_tensor *input(struct stage *s, enum ggml_type type, int64_t ne0, int64_t ne1, const char *name)
{
    struct ggml_tensor *t = leaf(s, type, ne0, ne1, name);
    size_t used = (ggml_nbytes(t) - 1) % CACHE_LINE + 1;
    leaf(s, GGML_TYPE_I8, used <= CACHE_LINE / 2 ? CACHE_LINE / 2 : CACHE_LINE, 1, "filler");
    return t;
}

/* Leaves of no use but to be counted: the allocator tells graphs apart by their numbers of nodes and leaves, and more
 * sequences in fewer groups can make as many nodes. So each group has two of them, and rows that leave an odd one. */
static void mark(struct stage *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        leaf(s, GGML_TYPE_I8, CACHE_LINE, 1, "mark");
}

/* The masks of one kind of cache, one behind the other. */
static void mask_input(struct stage *s, uint32_t n_entries, int v)
{
    size_t size = 0;
    for (uint32_t i = 0; i < n_entries; i += s->entries[i].n_group) {
        const struct graph_entry *en = &s->entries[i];
        s->g.view[v].mask_at[i] = size;
        size += (size_t)en->n_cells[v] * en->n_tok * en->n_group * sizeof *s->mask;
        size = (size + MASK_ALIGN - 1) / MASK_ALIGN * MASK_ALIGN;
    }
    s->g.view[v].mask = input(s, GGML_TYPE_F16, (int64_t)(size / sizeof *s->mask), 1, "mask");
}

/* Builds the graph of the given form into s->ctx: n_out rows leave the last stage. */
static void build(struct stage *s, uint32_t n_entries, uint32_t n_tok, uint32_t n_out)
{
    struct graph *g = &s->g;
    ggml_reset(s->ctx);
    g->gf = ggml_new_graph_custom(s->ctx, s->max_nodes, false);
    g->n_tok = n_tok;
    g->n_entries = n_entries;
    g->entries = s->entries;
    g->pos = input(s, GGML_TYPE_I32, n_tok, 1, "pos");
    for (uint32_t i = 0; i < n_entries; i += s->entries[i].n_group)
        mark(s, 2);
    for (int v = 0; v < KV_VIEWS; v++) {
        if (!s->kv.has[v])
            continue;
        g->view[v].cells = input(s, GGML_TYPE_I64, n_tok, 1, "cells");
        mask_input(s, n_entries, v);
    }

    struct ggml_tensor *x;
    s->in_tokens = s->in_rows = s->out = NULL;
    g->out_ids = is_last(s) && n_out > 0 && n_out < n_tok ? input(s, GGML_TYPE_I32, n_out, 1, "out_ids") : NULL;
    if (g->out_ids)
        mark(s, 1);
    if (is_first(s)) {
        s->in_tokens = input(s, GGML_TYPE_I32, n_tok, 1, "tokens");
        x = ggml_get_rows(s->ctx, s->token_embd, s->in_tokens); /* [E, n_tok] f32 */
        if (s->arch->scaled_embeddings)
            x = ggml_scale(s->ctx, x, sqrtf((float)s->h.n_embd));
    } else {
        x = s->in_rows = input(s, GGML_TYPE_F32, s->h.n_embd, n_tok, "rows");
    }
    for (uint32_t il = s->info.first; il < s->info.end; il++)
        x = s->arch->build(g, il, &s->blocks[il - s->info.first], x);

    if (is_last(s)) {
        if (n_out == 0)
            return; /* the caches are filled, nothing leaves */
        x = graph_linear(g, s->output, s->output_b, graph_rms_norm(g, x, s->output_norm)); /* [V, n_out] */
        if (s->h.logit_softcap > 0)
            x = ggml_scale(s->ctx, ggml_tanh(s->ctx, ggml_scale(s->ctx, x, 1.0f / s->h.logit_softcap)),
                           s->h.logit_softcap);
    }
    ggml_set_output(x);
    s->out = x;
    ggml_build_forward_expand(g->gf, x);
}

static bool same_form(const struct stage *s, uint32_t n_entries, uint32_t n_tok, uint32_t n_out)
{
    return s->have_graph && s->n_built == n_entries && s->n_built_tok == n_tok && s->n_built_out == n_out &&
           memcmp(s->built, s->entries, n_entries * sizeof *s->built) == 0;
}

static enum err_code prepare_graph(struct stage *s, uint32_t n_entries, uint32_t n_tok, uint32_t n_out, struct err *e)
{
    if (same_form(s, n_entries, n_tok, n_out))
        return OK;
    s->have_graph = false;
    build(s, n_entries, n_tok, n_out);
    ggml_backend_sched_reset(s->sched);
    if (!ggml_backend_sched_alloc_graph(s->sched, s->g.gf))
        return err_set(e, ERR_NOMEM, "out of memory for a step of %u tokens in %u sequences", n_tok, n_entries);
    buffers_large_pages(s->g.pos->buffer);
    memcpy(s->built, s->entries, n_entries * sizeof *s->built);
    s->n_built = n_entries;
    s->n_built_tok = n_tok;
    s->n_built_out = n_out;
    s->have_graph = true;
    return OK;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static enum err_code entry_check(const struct stage *s, const struct batch *b, const struct batch_entry *en,
                                 struct err *e)
{
    if (en->slot >= s->p.n_slots)
        return err_set(e, ERR_RANGE, "slot %u of %u", en->slot, s->p.n_slots);
    if (en->n_tok == 0 || en->n_tok > b->n_tok)
        return err_set(e, ERR_RANGE, "an entry of %u tokens in a step of %u", en->n_tok, b->n_tok);
    if (en->pos > s->p.n_ctx || en->n_tok > s->p.n_ctx - en->pos)
        return err_set(e, ERR_LIMIT, "positions %u..%u are beyond the context of %u", en->pos, en->pos + en->n_tok,
                       s->p.n_ctx);
    if (en->flags & ~(uint32_t)BATCH_FLAGS_KNOWN)
        return err_set(e, ERR_RANGE, "unknown flags %#x of slot %u", en->flags & ~(uint32_t)BATCH_FLAGS_KNOWN,
                       en->slot);
    const struct slot *sl = &s->slots.slot[en->slot];
    if (en->flags & BATCH_RESET) {
        if (en->pos != 0)
            return err_set(e, ERR_RANGE, "a reset slot begins at position 0, not %u", en->pos);
    } else if (en->flags & BATCH_TRUNCATE ? en->pos > sl->n : en->pos != sl->n) {
        return err_set(e, ERR_STALE, "slot %u holds %u tokens, the step goes on at %u", en->slot, sl->n, en->pos);
    } else if (slots_reach(&s->slots, en->slot, en->pos) != en->pos) {
        return err_set(e, ERR_STALE, "slot %u cannot go back from %u tokens to %u, only to %u", en->slot, sl->n,
                       en->pos, slots_reach(&s->slots, en->slot, en->pos));
    }
    uint64_t mine = en->pos == 0 ? HASH_PREFIX_EMPTY : sl->hash[en->pos];
    if (mine != en->prefix_hash)
        return err_set(e, ERR_STALE, "slot %u holds other tokens before position %u", en->slot, en->pos);
    return OK;
}

/* A boundary of the predecessor or of our own: one value that is no number would spoil everything after it, here and on
 * every later stage. */
static enum err_code rows_check(const struct batch *b, const char *whose, struct err *e)
{
    for (uint32_t i = 0; i < b->n_tok; i++) {
        const float *row = b->rows + (size_t)i * b->n_embd;
        uint32_t bad = 0;
        for (uint32_t k = 0; k < b->n_embd; k++) {
            uint32_t bits;
            memcpy(&bits, &row[k], sizeof bits);
            bad += (bits & 0x7f800000u) == 0x7f800000u; /* infinite or NaN */
        }
        if (bad)
            return err_set(e, ERR_NUMERIC, "the %s boundary: %u values of token %u are not finite", whose, bad, i);
    }
    return OK;
}

static enum err_code step_check(const struct stage *s, const struct batch *b, struct err *e)
{
    uint32_t sum = 0;
    if (b->n_tok == 0 || b->n_tok > s->p.n_batch)
        return err_set(e, ERR_LIMIT, "a step of %u tokens; 1 to %u are possible", b->n_tok, s->p.n_batch);
    uint32_t most = s->p.n_slots < BATCH_MAX_ENTRIES ? s->p.n_slots : BATCH_MAX_ENTRIES;
    if (b->n_entries == 0 || b->n_entries > most)
        return err_set(e, ERR_LIMIT, "a step of %u sequences; 1 to %u are possible", b->n_entries, most);
    if (b->n_embd != s->h.n_embd)
        return err_set(e, ERR_MISMATCH, "rows of %u values, this model has %u", b->n_embd, s->h.n_embd);
    for (uint32_t i = 0; i < b->n_entries; i++) {
        enum err_code rc = entry_check(s, b, &b->entries[i], e);
        if (rc != OK)
            return rc;
        sum += b->entries[i].n_tok;
        if (sum > b->n_tok)
            break;
        for (uint32_t k = 0; k < i; k++) {
            if (b->entries[k].slot == b->entries[i].slot)
                return err_set(e, ERR_RANGE, "slot %u is twice in one step", b->entries[i].slot);
        }
    }
    if (sum != b->n_tok)
        return err_set(e, ERR_RANGE, "the entries do not add up to the step's %u tokens", b->n_tok);
    for (uint32_t i = 0; i < b->n_tok; i++) {
        if (b->tokens[i] < 0 || (uint32_t)b->tokens[i] >= s->h.n_vocab)
            return err_set(e, ERR_RANGE, "token %d is not in the vocabulary of %u", b->tokens[i], s->h.n_vocab);
    }
    return is_first(s) ? OK : rows_check(b, "incoming", e);
}

/* Finds the entries that one attention operation can serve: as many tokens and cells each, slots in a row. */
static void group(struct graph_entry *en, uint32_t n)
{
    for (uint32_t i = 0, first = 0; i < n; i++) {
        bool joins = i > 0 && en[i].slot == en[i - 1].slot + 1 && en[i].n_tok == en[i - 1].n_tok &&
                     memcmp(en[i].n_cells, en[i - 1].n_cells, sizeof en[i].n_cells) == 0;
        first = joins ? first : i;
        en[i].n_group = 0;
        en[first].n_group++;
    }
}

/* Fills s->entries and the host side of the inputs; *n_out: rows that leave the last stage. */
static void describe(struct stage *s, const struct batch *b, uint32_t *n_out)
{
    uint32_t tok = 0, out = 0;
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *en = &b->entries[i];
        s->entries[i] = (struct graph_entry){.slot = en->slot, .n_tok = en->n_tok};
        for (int v = 0; v < KV_VIEWS; v++) {
            uint32_t n = (en->pos + en->n_tok + KV_STEP - 1) / KV_STEP * KV_STEP;
            s->entries[i].n_cells[v] = n < s->kv.n_cells[v] ? n : s->kv.n_cells[v];
        }
        for (uint32_t k = 0; k < en->n_tok; k++, tok++) {
            s->pos[tok] = (int32_t)(en->pos + k);
            for (int v = 0; v < KV_VIEWS; v++)
                s->cells[v][tok] = (int64_t)en->slot * s->kv.n_cells[v] + (en->pos + k) % s->kv.n_cells[v];
            if (s->p.all_logits)
                s->ids[out++] = (int32_t)tok;
        }
        if (!s->p.all_logits && (en->flags & BATCH_SAMPLE))
            s->ids[out++] = (int32_t)tok - 1;
    }
    group(s->entries, b->n_entries);
    *n_out = is_last(s) ? out : 0;
}

/* The mask of one entry, rows row0 and up of its group's: a token sees itself and what was before it, as far as its
 * window reaches. group: the first entry of the group. */
static void set_mask(struct stage *s, const struct batch_entry *en, uint32_t group, uint32_t row0, int v)
{
    const ggml_fp16_t open = ggml_fp32_to_fp16(0.0f), shut = ggml_fp32_to_fp16(-INFINITY);
    const uint32_t window = v == KV_VIEW_WINDOW ? s->h.n_window : UINT32_MAX, cells = s->kv.n_cells[v];
    uint32_t n = s->entries[group].n_cells[v], end = en->pos + en->n_tok;
    const size_t row = n * sizeof *s->mask, at = s->g.view[v].mask_at[group] + row0 * row;
    for (uint32_t k = 0; k < en->n_tok; k++) {
        uint32_t pos = en->pos + k, from = pos >= window ? pos - window + 1 : 0;
        if (cells >= end && k > 0) { /* cell c holds position c: a row differs from the one before it at its ends */
            s->mask[pos] = open;
            if (from > 0)
                s->mask[from - 1] = shut;
        } else {
            for (uint32_t c = 0; c < n; c++) {
                /* the position that cell c holds once the step's tokens are written: the last one of its kind */
                int64_t p = c < end ? (int64_t)(end - 1 - (end - 1 - c) % cells) : -1;
                s->mask[c] = p >= from && p <= pos ? open : shut;
            }
        }
        ggml_backend_tensor_set(s->g.view[v].mask, s->mask, at + k * row, row);
    }
}

static void set_masks(struct stage *s, const struct batch *b)
{
    for (int v = 0; v < KV_VIEWS; v++) {
        if (!s->kv.has[v])
            continue;
        ggml_backend_tensor_set(s->g.view[v].cells, s->cells[v], 0, b->n_tok * sizeof *s->cells[v]);
        for (uint32_t i = 0, first = 0; i < b->n_entries; i++) {
            first = s->entries[i].n_group > 0 ? i : first;
            set_mask(s, &b->entries[i], first, (i - first) * b->entries[i].n_tok, v);
        }
    }
}

static void set_inputs(struct stage *s, const struct batch *b, uint32_t n_out)
{
    ggml_backend_tensor_set(s->g.pos, s->pos, 0, b->n_tok * sizeof *s->pos);
    set_masks(s, b);
    if (s->in_tokens)
        ggml_backend_tensor_set(s->in_tokens, b->tokens, 0, b->n_tok * sizeof *b->tokens);
    if (s->in_rows)
        ggml_backend_tensor_set(s->in_rows, b->rows, 0, (size_t)b->n_tok * b->n_embd * sizeof *b->rows);
    if (s->g.out_ids)
        ggml_backend_tensor_set(s->g.out_ids, s->ids, 0, n_out * sizeof *s->ids);
}

static enum err_code get_outputs(struct stage *s, struct batch *b, uint32_t n_out, struct err *e)
{
    if (!s->out)
        return OK;
    if (!is_last(s)) {
        ggml_backend_tensor_get(s->out, b->rows, 0, (size_t)b->n_tok * b->n_embd * sizeof *b->rows);
        return rows_check(b, "outgoing", e);
    }
    if (ggml_backend_buffer_is_host(s->out->buffer)) {
        s->last_logits = s->out->data;
    } else {
        if (!s->logits)
            s->logits = malloc((size_t)s->max_out * s->h.n_vocab * sizeof *s->logits);
        if (!s->logits)
            return err_set(e, ERR_NOMEM, "out of memory for the logits");
        ggml_backend_tensor_get(s->out, s->logits, 0, (size_t)n_out * s->h.n_vocab * sizeof *s->logits);
        s->last_logits = s->logits;
    }
    s->n_logits = n_out;
    return OK;
}

/* Takes the slots to where the step begins, and keeps checkpoints where it asks for them. */
static enum err_code begin(struct stage *s, const struct batch *b, struct err *e)
{
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *en = &b->entries[i];
        slots_rewind(&s->slots, &s->kv, en->slot, en->pos);
        enum err_code rc = en->flags & BATCH_CHECKPOINT ? slots_checkpoint(&s->slots, &s->kv, en->slot, e) : OK;
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* The slots now hold the step's tokens. */
static void remember(struct stage *s, const struct batch *b)
{
    const int32_t *t = b->tokens;
    for (uint32_t i = 0; i < b->n_entries; t += b->entries[i].n_tok, i++)
        slots_append(&s->slots, b->entries[i].slot, t, b->entries[i].n_tok);
}

static void lose(struct stage *s, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_entries; i++)
        slots_lose(&s->slots, &s->kv, b->entries[i].slot, b->entries[i].pos);
}

static enum err_code sample(struct stage *s, struct batch *b, struct err *e)
{
    uint32_t row = 0, tok = 0;
    b->n_results = 0;
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *en = &b->entries[i];
        tok += en->n_tok;
        if (!(en->flags & BATCH_SAMPLE))
            continue;
        const struct slot *sl = &s->slots.slot[en->slot];
        const float *logits = s->last_logits + (size_t)(s->p.all_logits ? tok - 1 : row) * s->h.n_vocab;
        struct batch_result *r = &b->results[b->n_results];
        enum err_code rc = sampler_draw(s->sampler, &sl->sampling, logits, sl->tokens, sl->n, sl->n, r, e);
        if (rc != OK)
            return rc;
        r->request_id = en->request_id;
        r->slot = en->slot;
        r->pos = sl->n;
        b->n_results++;
        row++;
    }
    return OK;
}

static enum err_code compute(struct stage *s, struct batch *b, uint32_t n_out, struct err *e)
{
    set_inputs(s, b, n_out);
    enum ggml_status st = ggml_backend_sched_graph_compute(s->sched, s->g.gf);
    if (st != GGML_STATUS_SUCCESS)
        return err_set(e, ERR_DEVICE, "the device %s failed to compute a step (%s)", s->info.device,
                       ggml_status_to_string(st));
    return get_outputs(s, b, n_out, e);
}

enum err_code stage_step(struct stage *s, struct batch *b, struct err *e)
{
    uint32_t n_out;
    b->n_results = 0;
    s->n_logits = 0;
    enum err_code rc = step_check(s, b, e);
    if (rc != OK)
        return rc;
    describe(s, b, &n_out);
    rc = prepare_graph(s, b->n_entries, b->n_tok, n_out, e);
    if (rc != OK)
        return rc;
    rc = begin(s, b, e);
    if (rc != OK)
        return rc;
    rc = compute(s, b, n_out, e);
    if (rc == OK) {
        remember(s, b);
        rc = is_last(s) ? sample(s, b, e) : OK;
    }
    if (rc != OK) {
        b->n_results = 0;
        lose(s, b);
    }
    return rc;
}

enum err_code stage_sampling(struct stage *s, uint32_t slot, const struct batch_sampling *p, struct err *e)
{
    if (slot >= s->p.n_slots)
        return err_set(e, ERR_RANGE, "slot %u of %u", slot, s->p.n_slots);
    enum err_code rc = sampler_check(p, s->h.n_vocab, e);
    if (rc == OK)
        s->slots.slot[slot].sampling = *p;
    return rc;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static enum err_code params_check(struct stage *s, struct err *e)
{
    struct stage_params *p = &s->p;
    if (!p->device)
        p->device = "cpu";
    if (p->end == 0)
        p->end = s->h.n_block;
    if (p->n_batch == 0)
        p->n_batch = STAGE_DEFAULT_BATCH;
    if (p->first >= p->end || p->end > s->h.n_block)
        return err_set(e, ERR_RANGE, "the window [%u,%u) is not within the model's %u blocks", p->first, p->end,
                       s->h.n_block);
    if (p->n_ctx < 1 || p->n_ctx > 1u << 24)
        return err_set(e, ERR_RANGE, "a context of %u positions; 1 to %u are possible", p->n_ctx, 1u << 24);
    if (p->n_slots < 1 || p->n_slots > BATCH_MAX_SLOTS)
        return err_set(e, ERR_RANGE, "%u slots; 1 to %u are possible", p->n_slots, BATCH_MAX_SLOTS);
    if (p->n_batch > BATCH_MAX_TOK)
        return err_set(e, ERR_RANGE, "steps of %u tokens; 1 to %u are possible", p->n_batch, BATCH_MAX_TOK);
    if (p->n_batch < p->n_slots)
        p->n_batch = p->n_slots;
    if (p->n_checkpoints == 0)
        p->n_checkpoints = STAGE_DEFAULT_CHECKPOINTS;
    s->info = (struct stage_info){.first = p->first,
                                  .end = p->end,
                                  .n_block = s->h.n_block,
                                  .n_embd = s->h.n_embd,
                                  .n_vocab = s->h.n_vocab,
                                  .n_nextn = s->h.n_nextn};
    return OK;
}

/* Divisors of the RoPE frequencies, which every stage needs. Models with two sets have one for contexts up to what they
 * were trained with and one for longer ones. */
static struct ggml_tensor *declare_rope_factors(struct stage *s)
{
    struct weight_spec spec = {.use = WEIGHT_ELEMENT, .optional = true, .ne = {s->h.n_rot / 2}};
    struct ggml_tensor *t = weights_declare(s->weights, "rope_freqs.weight", spec);
    if (t)
        return t;
    return weights_declare(
        s->weights, s->p.n_ctx > s->h.n_ctx_orig ? "rope_factors_long.weight" : "rope_factors_short.weight", spec);
}

static enum err_code declare_weights(struct stage *s, const struct gguf *g, struct err *e)
{
    uint32_t n = s->info.end - s->info.first;
    int64_t embd = s->h.n_embd, vocab = s->h.n_vocab;
    enum err_code rc = weights_new(g, (size_t)(n + s->h.n_nextn) * 40 + 16, &s->weights, e);
    if (rc != OK)
        return rc;
    struct weights *w = s->weights;
    struct weight_spec table = {.use = WEIGHT_GET_ROWS, .ne = {embd, vocab}};
    if (is_first(s))
        s->token_embd = weights_declare(w, "token_embd.weight", table);
    s->rope_factors = declare_rope_factors(s);
    for (uint32_t i = 0; i < n; i++)
        s->arch->declare(w, &s->h, s->info.first + i, &s->blocks[i]);
    if (is_last(s)) {
        struct weight_spec head = {.use = WEIGHT_MUL_MAT, .optional = true, .ne = {embd, vocab}};
        s->output_norm =
            weights_declare(w, "output_norm.weight", (struct weight_spec){.use = WEIGHT_ELEMENT, .ne = {embd, 0}});
        s->output = weights_declare(w, "output.weight", head);
        if (!s->output) { /* tied: the embedding table is the head */
            head.optional = false;
            s->output = weights_declare(w, "token_embd.weight", head);
        }
        s->output_b = weights_declare(w, "output.bias",
                                      (struct weight_spec){.use = WEIGHT_ELEMENT, .optional = true, .ne = {vocab, 0}});
    }
    if (is_last(s) && s->p.nextn) {
        uint64_t before = weights_bytes(w);
        nextn_declare(w, &s->h, s->arch);
        s->info.nextn_bytes = weights_bytes(w) - before;
    }
    s->info.weight_bytes = weights_bytes(w);
    return OK;
}

static enum err_code open_devices(struct stage *s, struct err *e)
{
    const struct stage_params *p = &s->p;
    struct fit_ask ask = {.device = p->device,
                          .end = p->device_layers && p->device_layers < p->end - p->first ? p->first + p->device_layers
                                                                                          : DEVICES_ALL,
                          .max_bytes = p->device_bytes,
                          .weights = s->weights,
                          .kv = &s->kv};
    enum err_code rc = fit_device(&ask, e);
    if (rc == OK)
        rc = devices_open(ask.device, p->n_threads, ask.end, &s->dev, e);
    if (rc != OK)
        return rc;
    s->info.device = ggml_backend_dev_name(s->dev.main.dev);
    if (devices_split(&s->dev))
        s->info.n_device_blocks = s->dev.end == DEVICES_ALL ? p->end - p->first : p->device_layers;
    return OK;
}

static enum err_code load_weights(struct stage *s, struct err *e)
{
    enum err_code rc = weights_load(s->weights, &s->dev, !s->p.no_repack, e);
    s->info.repacked_bytes = weights_repacked_bytes(s->weights);
    s->info.device_weight_bytes = weights_device_bytes(s->weights);
    return rc;
}

static enum err_code make_inputs(struct stage *s, struct err *e)
{
    const struct stage_params *p = &s->p;
    bool ok = true;
    s->entries = calloc(p->n_slots, sizeof *s->entries);
    s->built = calloc(p->n_slots, sizeof *s->built);
    s->pos = malloc(p->n_batch * sizeof *s->pos);
    s->ids = malloc(p->n_batch * sizeof *s->ids);
    s->mask = malloc(p->n_ctx * sizeof *s->mask);
    for (int v = 0; v < KV_VIEWS; v++) {
        s->g.view[v].mask_at = calloc(p->n_slots, sizeof *s->g.view[v].mask_at);
        s->cells[v] = malloc(p->n_batch * sizeof *s->cells[v]);
        ok = ok && s->g.view[v].mask_at && s->cells[v];
    }
    if (!ok || !s->entries || !s->built || !s->pos || !s->ids || !s->mask)
        return err_set(e, ERR_NOMEM, "out of memory");
    return OK;
}

/* The largest step: n_tok tokens at the end of a full context. */
static void build_largest(struct stage *s, uint32_t n_tok)
{
    s->entries[0] = (struct graph_entry){.slot = 0, .n_tok = n_tok, .n_group = 1};
    memcpy(s->entries[0].n_cells, s->kv.n_cells, sizeof s->kv.n_cells);
    build(s, 1, n_tok, is_last(s) ? (s->max_out < n_tok ? s->max_out : n_tok) : 0);
}

/* The GPU first, the CPU last; on the CPU in memory that the GPU can fetch from, where there is such. */
static ggml_backend_sched_t new_sched(const struct devices *d, size_t n_nodes)
{
    ggml_backend_t be[] = {d->main.be, d->beside.be};
    ggml_backend_buffer_type_t host = ggml_backend_dev_host_buffer_type(d->main.dev);
    ggml_backend_buffer_type_t types[] = {ggml_backend_dev_buffer_type(d->main.dev), host};
    bool both = devices_split(d);
    if (both && !host)
        types[1] = ggml_backend_dev_buffer_type(d->beside.dev);
    /* the scheduler counts leaves as well as nodes */
    return ggml_backend_sched_new(be, both ? types : NULL, both ? 2 : 1, n_nodes * 2, false, false);
}

static void measure(struct stage *s)
{
    struct stage_info *i = &s->info;
    i->compute_bytes = ggml_backend_sched_get_buffer_size(s->sched, s->dev.main.be);
    i->kv_bytes = kv_bytes(&s->kv);
    i->n_splits = (uint32_t)ggml_backend_sched_get_n_splits(s->sched);
    if (!devices_split(&s->dev))
        return;
    i->device_compute_bytes = i->compute_bytes;
    i->compute_bytes += ggml_backend_sched_get_buffer_size(s->sched, s->dev.beside.be);
    i->device_kv_bytes = buffers_bytes(&s->kv.main);
    for (uint32_t k = 0; k < i->n_device_blocks; k++)
        i->n_device_states += !s->kv.on_cpu[k];
}

/* Finds each block's state a place, and reserves compute memory for the largest step. */
static enum err_code make_graphs(struct stage *s, struct err *e)
{
    uint32_t n_tok = s->p.n_batch < s->p.n_ctx ? s->p.n_batch : s->p.n_ctx;
    uint32_t n_entries = s->p.n_slots < BATCH_MAX_ENTRIES ? s->p.n_slots : BATCH_MAX_ENTRIES;
    s->max_nodes = 64 + (size_t)(s->info.end - s->info.first) * graph_nodes_per_block(&s->h, n_entries);
    s->max_out = s->p.all_logits ? s->p.n_batch : s->p.n_slots;
    size_t size = s->max_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(s->max_nodes, false);
    s->ctx = ggml_init((struct ggml_init_params){.mem_size = size, .no_alloc = true});
    s->sched = new_sched(&s->dev, s->max_nodes);
    if (!s->ctx || !s->sched)
        return err_set(e, ERR_NOMEM, "out of memory for graphs of %zu nodes", s->max_nodes);
    s->g.h = &s->h;
    s->g.kv = &s->kv;
    s->g.ctx = s->ctx;
    s->g.rope_factors = s->rope_factors;

    if (devices_split(&s->dev)) {
        for (uint32_t n = n_tok;; n = 1) {
            build_largest(s, n);
            kv_probe(&s->kv, &s->dev, s->g.gf);
            if (n == 1)
                break;
        }
    }
    enum err_code rc = kv_alloc(&s->kv, &s->dev, e);
    if (rc != OK)
        return rc;
    build_largest(s, n_tok);
    if (!ggml_backend_sched_reserve(s->sched, s->g.gf))
        return err_set(e, ERR_NOMEM, "out of memory for steps of %u tokens; ask for smaller ones", n_tok);
    measure(s);
    return OK;
}

/* A model with more blocks than it says would run without the last ones, and write something else. */
static enum err_code blocks_check(const struct gguf *g, const struct hparams *h, struct err *e)
{
    enum model_part part;
    enum err_code rc = OK;
    for (size_t i = 0; i < gguf_n_tensors(g) && rc == OK; i++)
        rc = model_part_of(h, gguf_tensor_at(g, i)->name, &part, e);
    return rc;
}

static enum err_code open_slots(struct stage *s, struct err *e)
{
    const struct stage_params *p = &s->p;
    struct kv_params kp = {.first = s->info.first,
                           .end = s->info.end,
                           .n_ctx = p->n_ctx,
                           .n_slots = p->n_slots,
                           .n_batch = p->n_batch,
                           .type = p->kv_type};
    struct slots_params sp = {.n_slots = p->n_slots, .n_ctx = p->n_ctx, .n_checkpoints = p->n_checkpoints};
    enum err_code rc = kv_init(&s->kv, &s->h, &kp, e);
    return rc == OK ? slots_init(&s->slots, &sp, &s->h, &s->kv, e) : rc;
}

static enum err_code open_all(struct stage *s, const struct gguf *g, struct err *e)
{
    enum err_code rc = hparams_read(g, &s->h, e);
    if (rc == OK)
        rc = arch_find(s->h.arch, &s->arch, e);
    if (rc == OK && s->arch->check)
        rc = s->arch->check(&s->h, e);
    if (rc == OK)
        rc = blocks_check(g, &s->h, e);
    if (rc == OK)
        rc = params_check(s, e);
    if (rc != OK)
        return rc;
    s->blocks = calloc(s->info.end - s->info.first, sizeof *s->blocks);
    if (!s->blocks)
        return err_set(e, ERR_NOMEM, "out of memory");
    rc = declare_weights(s, g, e);
    if (rc == OK)
        rc = open_slots(s, e);
    if (rc == OK)
        rc = open_devices(s, e);
    if (rc == OK)
        rc = load_weights(s, e);
    if (rc == OK)
        rc = make_inputs(s, e);
    if (rc == OK)
        rc = make_graphs(s, e);
    if (rc == OK && is_last(s))
        rc = sampler_new(s->h.n_vocab, &s->sampler, e);
    return rc;
}

enum err_code stage_open(const struct gguf *g, const struct stage_params *p, struct stage **out, struct err *e)
{
    struct stage *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "out of memory");
    s->p = *p;
    enum err_code rc = open_all(s, g, e);
    if (rc != OK) {
        stage_close(s);
        return rc;
    }
    s->p.device = NULL; /* was the caller's */
    log_info("stage", "window=[%u,%u) weights=%llu repacked=%llu kv=%llu compute=%llu", s->info.first, s->info.end,
             (unsigned long long)s->info.weight_bytes, (unsigned long long)s->info.repacked_bytes,
             (unsigned long long)s->info.kv_bytes, (unsigned long long)s->info.compute_bytes);
    if (devices_split(&s->dev))
        log_info("stage", "device=%s blocks=%u states=%u weights=%llu kv=%llu compute=%llu splits=%u", s->info.device,
                 s->info.n_device_blocks, s->info.n_device_states, (unsigned long long)s->info.device_weight_bytes,
                 (unsigned long long)s->info.device_kv_bytes, (unsigned long long)s->info.device_compute_bytes,
                 s->info.n_splits);
    *out = s;
    return OK;
}

void stage_close(struct stage *s)
{
    if (!s)
        return;
    sampler_free(s->sampler);
    if (s->sched)
        ggml_backend_sched_free(s->sched);
    if (s->ctx)
        ggml_free(s->ctx);
    kv_fini(&s->kv);
    weights_free(s->weights);
    devices_close(&s->dev);
    slots_fini(&s->slots);
    for (int v = 0; v < KV_VIEWS; v++) {
        free(s->g.view[v].mask_at);
        free(s->cells[v]);
    }
    free(s->entries);
    free(s->built);
    free(s->pos);
    free(s->ids);
    free(s->mask);
    free(s->logits);
    free(s->blocks);
    hparams_fini(&s->h);
    free(s);
}
