/* SPDX-License-Identifier: MIT */
#include "ring/sched.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

struct request {
    uint64_t id;
    struct sched_request r; /* tokens and eog point into this allocation */
    struct request *next;   /* waiting */
};

/* A sequence slot. tokens: what the sequence is made of, prompt first. */
struct seq {
    struct request *req; /* NULL: free, or ended with steps still in flight */
    int32_t *tokens;     /* [n_ctx] */
    uint32_t n;          /* tokens known */
    uint32_t n_sent;     /* of these, sent down the ring */
    uint32_t n_out;      /* generated */
    uint32_t in_flight;  /* entries of this slot in steps */
    uint64_t hash;       /* of tokens[0, n_sent) */
    bool waits;          /* a sample is in flight: no step until it is back */
};

struct step {
    uint64_t id; /* 0: unused */
    uint64_t made_ns;
    uint32_t n_entries;
    struct step_entry {
        uint32_t slot, end_pos; /* position after the entry's last token */
        uint64_t request_id;
        bool sample;
    } *entries; /* [n_slots] */
};

struct sched {
    struct sched_limits lim;
    struct request *first, *last; /* waiting, in order */
    uint32_t n_waiting;
    struct seq *seqs;
    struct step *steps; /* [max_steps] */
    uint64_t n_steps_made;
    uint32_t turn; /* where the search for ready sequences begins: nobody is always first */
    uint64_t n_prompt_tok, n_out_tok;
};

const char *sched_reason_name(enum sched_reason r)
{
    static const char *const names[] = {"stop", "length", "context", "cancelled", "failed"};
    return names[r];
}

enum err_code sched_new(const struct sched_limits *lim, struct sched **out, struct err *e)
{
    struct sched *s = calloc(1, sizeof *s);
    bool ok = s != NULL;
    if (ok) {
        s->lim = *lim;
        s->seqs = calloc(lim->n_slots, sizeof *s->seqs);
        s->steps = calloc(lim->max_steps, sizeof *s->steps);
        ok = s->seqs && s->steps;
    }
    for (uint32_t i = 0; ok && i < lim->n_slots; i++)
        ok = (s->seqs[i].tokens = malloc(lim->n_ctx * sizeof *s->seqs[i].tokens)) != NULL;
    for (uint32_t i = 0; ok && i < lim->max_steps; i++)
        ok = (s->steps[i].entries = calloc(lim->n_slots, sizeof *s->steps[i].entries)) != NULL;
    if (!ok) {
        sched_free(s);
        return err_set(e, ERR_NOMEM, "out of memory for %u slots", lim->n_slots);
    }
    *out = s;
    return OK;
}

static void end_request(struct request *q, enum sched_reason reason, enum err_code code, const char *text)
{
    q->r.on_end(q->r.ctx, q->id, reason, code, text);
    free(q);
}

void sched_free(struct sched *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->seqs && i < s->lim.n_slots; i++) {
        if (s->seqs[i].req)
            end_request(s->seqs[i].req, SCHED_CANCELLED, OK, "");
        free(s->seqs[i].tokens);
    }
    while (s->first) {
        struct request *q = s->first;
        s->first = q->next;
        end_request(q, SCHED_CANCELLED, OK, "");
    }
    for (uint32_t i = 0; s->steps && i < s->lim.max_steps; i++)
        free(s->steps[i].entries);
    free(s->steps);
    free(s->seqs);
    free(s);
}

/* --- requests ------------------------------------------------------------------------------------ */

enum err_code sched_submit(struct sched *s, uint64_t id, const struct sched_request *r, struct err *e)
{
    if (r->n_tokens == 0 || r->n_predict == 0)
        return err_set(e, ERR_ARG, "a request needs at least one prompt token and one token to generate");
    if (r->n_tokens >= s->lim.n_ctx)
        return err_set(e, ERR_LIMIT, "the prompt has %u tokens; with a context of %u at most %u fit", r->n_tokens,
                       s->lim.n_ctx, s->lim.n_ctx - 1);
    for (uint32_t i = 0; i < r->n_tokens; i++) {
        if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= s->lim.n_vocab)
            return err_set(e, ERR_ARG, "token %d is not in the vocabulary of %u", r->tokens[i], s->lim.n_vocab);
    }
    if (s->n_waiting >= s->lim.max_waiting)
        return err_set(e, ERR_BUSY, "%u requests are waiting already; try again later", s->n_waiting);
    size_t n_ids = (size_t)r->n_tokens + r->n_eog;
    struct request *q = malloc(sizeof *q + n_ids * sizeof(int32_t));
    if (!q)
        return err_set(e, ERR_NOMEM, "out of memory for a request of %u tokens", r->n_tokens);
    int32_t *ids = (int32_t *)(q + 1);
    *q = (struct request){.id = id, .r = *r};
    memcpy(ids, r->tokens, r->n_tokens * sizeof *ids);
    if (r->n_eog)
        memcpy(ids + r->n_tokens, r->eog, r->n_eog * sizeof *ids);
    q->r.tokens = ids;
    q->r.eog = ids + r->n_tokens;
    if (s->last)
        s->last->next = q;
    else
        s->first = q;
    s->last = q;
    s->n_waiting++;
    return OK;
}

static struct request *unlink_waiting(struct sched *s, uint64_t id)
{
    struct request *before = NULL;
    for (struct request *q = s->first; q; before = q, q = q->next) {
        if (q->id != id)
            continue;
        if (before)
            before->next = q->next;
        else
            s->first = q->next;
        if (s->last == q)
            s->last = before;
        s->n_waiting--;
        return q;
    }
    return NULL;
}

/* The sequence's request ends; the slot is free once its entries in flight are back. */
static void end_seq(struct seq *q, enum sched_reason reason, enum err_code code, const char *text)
{
    struct request *r = q->req;
    q->req = NULL;
    q->waits = false;
    if (r)
        end_request(r, reason, code, text);
}

bool sched_cancel(struct sched *s, uint64_t id)
{
    struct request *w = unlink_waiting(s, id);
    if (w) {
        end_request(w, SCHED_CANCELLED, OK, "");
        return true;
    }
    for (uint32_t i = 0; i < s->lim.n_slots; i++) {
        if (s->seqs[i].req && s->seqs[i].req->id == id) {
            end_seq(&s->seqs[i], SCHED_CANCELLED, OK, "");
            return true;
        }
    }
    return false;
}

/* --- composing ----------------------------------------------------------------------------------- */

static void give_slots(struct sched *s)
{
    for (uint32_t i = 0; i < s->lim.n_slots && s->first; i++) {
        struct seq *q = &s->seqs[i];
        if (q->req || q->in_flight)
            continue;
        struct request *r = unlink_waiting(s, s->first->id);
        *q = (struct seq){.req = r, .tokens = q->tokens, .n = r->r.n_tokens, .hash = HASH_PREFIX_EMPTY};
        memcpy(q->tokens, r->r.tokens, r->r.n_tokens * sizeof *q->tokens);
    }
}

static bool decoding(const struct seq *q)
{
    return q->req && q->n_out > 0;
}

static bool ready(const struct seq *q)
{
    return q->req && !q->waits && q->n_sent < q->n;
}

static void put_entry(struct sched *s, uint32_t slot, uint32_t n_tok, struct batch *b, struct step *st)
{
    struct seq *q = &s->seqs[slot];
    bool sample = q->n_sent + n_tok == q->n;
    b->entries[b->n_entries++] = (struct batch_entry){
        .request_id = q->req->id,
        .prefix_hash = q->hash,
        .slot = slot,
        .pos = q->n_sent,
        .n_tok = n_tok,
        .flags = (sample ? BATCH_SAMPLE : 0) | (q->n_sent == 0 ? BATCH_RESET : 0),
    };
    for (uint32_t i = 0; i < n_tok; i++) {
        int32_t t = q->tokens[q->n_sent++];
        b->tokens[b->n_tok++] = t;
        q->hash = hash_prefix(q->hash, t);
    }
    q->waits = sample;
    q->in_flight++;
    st->entries[st->n_entries++] =
        (struct step_entry){.slot = slot, .end_pos = q->n_sent, .request_id = q->req->id, .sample = sample};
}

/* How many decoding sequences one step takes: all of them, spread evenly over the steps that may be in flight. */
static uint32_t share(const struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->lim.n_slots; i++)
        n += decoding(&s->seqs[i]);
    return (n + s->lim.max_steps - 1) / s->lim.max_steps;
}

static bool has_room(const struct sched *s, const struct batch *b)
{
    return b->n_tok < s->lim.n_batch && b->n_entries < BATCH_MAX_ENTRIES;
}

static struct step *unused_step(struct sched *s)
{
    for (uint32_t i = 0; i < s->lim.max_steps; i++) {
        if (s->steps[i].id == 0)
            return &s->steps[i];
    }
    return NULL;
}

/* The requests of a slot's first entry are announced with that very step: if it fails, they fail with it. */
static void collect_starts(const struct sched *s, const struct batch *b, struct sched_start *starts, uint32_t *n_starts)
{
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *en = &b->entries[i];
        if (en->flags & BATCH_RESET)
            starts[(*n_starts)++] = (struct sched_start){
                .request_id = en->request_id, .slot = en->slot, .sampling = &s->seqs[en->slot].req->r.sampling};
    }
}

bool sched_compose(struct sched *s, struct batch *b, struct sched_start *starts, uint32_t *n_starts, uint64_t *step_id)
{
    struct step *st = unused_step(s);
    b->n_entries = b->n_tok = b->n_results = 0;
    *n_starts = 0;
    if (!st)
        return false;
    give_slots(s);
    st->n_entries = 0;
    uint32_t left = share(s), n = s->lim.n_slots, begin = s->turn;
    for (uint32_t k = 0; k < n && left > 0 && has_room(s, b); k++) {
        uint32_t slot = (begin + k) % n;
        if (!decoding(&s->seqs[slot]) || !ready(&s->seqs[slot]))
            continue;
        put_entry(s, slot, 1, b, st);
        s->turn = (slot + 1) % n;
        left--;
    }
    for (uint32_t k = 0; k < n && has_room(s, b); k++) { /* then prompts, as much as fits */
        struct seq *q = &s->seqs[(begin + k) % n];
        if (decoding(q) || !ready(q))
            continue;
        uint32_t want = q->n - q->n_sent, room = s->lim.n_batch - b->n_tok;
        uint32_t take = want < room ? want : room;
        s->n_prompt_tok += take;
        put_entry(s, (begin + k) % n, take, b, st);
    }
    if (b->n_entries == 0)
        return false;
    collect_starts(s, b, starts, n_starts);
    st->id = ++s->n_steps_made;
    st->made_ns = clock_now_ns();
    *step_id = st->id;
    return true;
}

/* --- what comes back ----------------------------------------------------------------------------- */

static struct step *find_step(struct sched *s, uint64_t id)
{
    for (uint32_t i = 0; id != 0 && i < s->lim.max_steps; i++) {
        if (s->steps[i].id == id)
            return &s->steps[i];
    }
    return NULL;
}

/* The step's entries are no longer in flight. */
static void close_step(struct sched *s, struct step *st)
{
    for (uint32_t i = 0; i < st->n_entries; i++)
        s->seqs[st->entries[i].slot].in_flight--;
    st->id = 0;
}

static bool is_eog(const struct request *r, int32_t token)
{
    for (uint32_t i = 0; i < r->r.n_eog; i++) {
        if (r->r.eog[i] == token)
            return true;
    }
    return false;
}

static void accept(struct sched *s, struct seq *q, const struct batch_result *r)
{
    struct request *req = q->req;
    q->waits = false;
    if (is_eog(req, r->token)) {
        end_seq(q, SCHED_STOP, OK, "");
        return;
    }
    s->n_out_tok++;
    q->n_out++;
    req->r.on_token(req->r.ctx, req->id, r);
    if (q->n_out >= req->r.n_predict) {
        end_seq(q, SCHED_LENGTH, OK, "");
        return;
    }
    if (q->n >= s->lim.n_ctx) {
        end_seq(q, SCHED_CONTEXT, OK, "");
        return;
    }
    q->tokens[q->n++] = r->token;
}

/* Steps come back in the order they were sent: an older one still in flight was lost on its way. */
static void fail_overtaken(struct sched *s, uint64_t step_id)
{
    for (uint32_t i = 0; i < s->lim.max_steps; i++) {
        if (s->steps[i].id != 0 && s->steps[i].id < step_id)
            sched_fail_step(s, s->steps[i].id, ERR_PROTOCOL, "a later step came back first: this one was lost");
    }
}

enum err_code sched_result(struct sched *s, uint64_t step_id, const struct batch_result *r, uint32_t n, struct err *e)
{
    struct step *st = find_step(s, step_id);
    if (!st)
        return OK;
    uint32_t k = 0;
    for (uint32_t i = 0; i < st->n_entries; i++) {
        const struct step_entry *en = &st->entries[i];
        if (!en->sample)
            continue;
        if (k >= n || r[k].slot != en->slot || r[k].request_id != en->request_id || r[k].pos != en->end_pos ||
            r[k].token < 0 || (uint32_t)r[k].token >= s->lim.n_vocab) {
            sched_fail_step(s, step_id, ERR_PROTOCOL, "the results do not fit the step");
            return err_set(e, ERR_PROTOCOL, "step %llu: result %u does not fit what was sent",
                           (unsigned long long)step_id, k);
        }
        k++;
    }
    if (k != n) {
        sched_fail_step(s, step_id, ERR_PROTOCOL, "the results do not fit the step");
        return err_set(e, ERR_PROTOCOL, "step %llu: %u results, %u were asked for", (unsigned long long)step_id, n, k);
    }
    uint32_t n_entries = st->n_entries;
    close_step(s, st);
    fail_overtaken(s, step_id);
    k = 0;
    for (uint32_t i = 0; i < n_entries; i++) { /* the entries stay readable: st is unused until the next compose */
        const struct step_entry *en = &st->entries[i];
        struct seq *q = &s->seqs[en->slot];
        if (!en->sample)
            continue;
        if (q->req && q->req->id == en->request_id)
            accept(s, q, &r[k]);
        k++;
    }
    return OK;
}

void sched_fail_step(struct sched *s, uint64_t step_id, enum err_code code, const char *text)
{
    struct step *st = find_step(s, step_id);
    if (!st)
        return;
    close_step(s, st);
    for (uint32_t i = 0; i < st->n_entries; i++) {
        struct seq *q = &s->seqs[st->entries[i].slot];
        if (q->req && q->req->id == st->entries[i].request_id)
            end_seq(q, SCHED_FAILED, code, text);
    }
}

void sched_fail_all(struct sched *s, enum err_code code, const char *text)
{
    for (uint32_t i = 0; i < s->lim.max_steps; i++)
        s->steps[i].id = 0;
    for (uint32_t i = 0; i < s->lim.n_slots; i++) {
        s->seqs[i].in_flight = 0;
        if (s->seqs[i].req)
            end_seq(&s->seqs[i], SCHED_FAILED, code, text);
    }
}

void sched_count(const struct sched *s, struct sched_counts *out)
{
    *out = (struct sched_counts){.n_waiting = s->n_waiting, .n_prompt_tok = s->n_prompt_tok, .n_out_tok = s->n_out_tok};
    for (uint32_t i = 0; i < s->lim.n_slots; i++)
        out->n_active += s->seqs[i].req != NULL;
    for (uint32_t i = 0; i < s->lim.max_steps; i++) {
        const struct step *st = &s->steps[i];
        if (!st->id)
            continue;
        out->n_steps++;
        if (!out->oldest_step_ns || st->made_ns < out->oldest_step_ns)
            out->oldest_step_ns = st->made_ns;
    }
}
