/* SPDX-License-Identifier: MIT */
#include "ring/sched.h"

#include "base/clock.h"
#include "ring/held.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK        32u /* no chunk is shorter unless the prompt is */
#define ALIKE        8u  /* chunks are multiples of it, so that few forms of steps occur */
#define LEAST_SHARE  16u /* of a step that a prompt gets before another gets more */
#define TAIL         8u  /* tokens a prompt ends with that its next turn may not have: how an answer begins */
#define WORTH_SAVING 32u /* tokens not to be computed again, for which a checkpoint is worth a step of its own */
#define RETRY_MS_MIN 1000u
#define RETRY_MS_MAX 60000u
#define N_MARKS      2u

struct request {
    uint64_t id;
    struct sched_request r; /* tokens and eog point into this allocation */
    struct request *next;   /* waiting */
    bool retried;
};

/* A sequence slot. */
struct seq {
    struct request *req;    /* NULL: free, or ended with steps still in flight */
    struct held held;       /* its tokens: what the sequence is made of, prompt first; held.n of them were sent */
    uint32_t n;             /* tokens known */
    uint32_t n_out;         /* generated */
    uint32_t n_reused;      /* held when it began */
    uint32_t in_flight;     /* entries of this slot in steps */
    uint32_t mark[N_MARKS]; /* positions to keep checkpoints at, ascending; 0: none */
    uint32_t take;          /* tokens of the prompt that the step being composed carries */
    bool waits;             /* a sample is in flight: no step until it is back */
    bool begins;            /* its next entry is the first: cuts the slot back and is announced */
    bool decodes;           /* the prompt is done, tokens come one by one */
    bool lost;              /* a step over it failed: it begins anew once the others are back */
};

struct step {
    uint64_t id; /* 0: unused */
    uint64_t made_ns;
    bool decodes;
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
    uint16_t last_entry; /* whose request got the last slot */
    struct seq *seqs;
    struct step *steps; /* [max_steps] */
    uint64_t n_steps_made, n_used;
    uint32_t turn, prompt_turn; /* where the search for ready sequences begins: nobody is always first */
    struct sched_counts c;      /* those that only grow */
    double us_per_tok, out_per_request;
};

/* A step being composed. */
struct draft {
    struct batch *b;
    struct step *st;
    struct sched_start *starts;
    uint32_t n_starts;
};

const char *sched_reason_name(enum sched_reason r)
{
    static const char *const names[SCHED_N_REASONS] = {"stop", "length", "context", "cancelled", "failed"};
    return names[r];
}

enum err_code sched_new(const struct sched_limits *lim, struct sched **out, struct err *e)
{
    struct sched *s = calloc(1, sizeof *s);
    bool ok = s != NULL;
    if (ok) {
        s->lim = *lim;
        s->lim.step_cost = lim->step_cost ? lim->step_cost : SCHED_STEP_COST;
        s->lim.n_prefill = lim->n_prefill ? lim->n_prefill : SCHED_DEFAULT_PREFILL;
        s->seqs = calloc(lim->n_slots, sizeof *s->seqs);
        s->steps = calloc(lim->max_steps, sizeof *s->steps);
        ok = s->seqs && s->steps;
    }
    for (uint32_t i = 0; ok && i < lim->n_slots; i++)
        ok = held_init(&s->seqs[i].held, lim->n_ctx, lim->bounded_rewind, lim->n_checkpoints);
    for (uint32_t i = 0; ok && i < lim->max_steps; i++)
        ok = (s->steps[i].entries = calloc(lim->n_slots, sizeof *s->steps[i].entries)) != NULL;
    if (!ok) {
        sched_free(s);
        return err_set(e, ERR_NOMEM, "out of memory for %u slots", lim->n_slots);
    }
    *out = s;
    return OK;
}

static void end_request(struct sched *s, struct request *q, enum sched_reason reason, enum err_code code,
                        const char *text)
{
    s->c.n_ended[reason]++;
    q->r.on_end(q->r.ctx, q->id, reason, code, text);
    free(q);
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

void sched_free(struct sched *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->seqs && i < s->lim.n_slots; i++) {
        if (s->seqs[i].req)
            end_request(s, s->seqs[i].req, SCHED_CANCELLED, OK, "");
        held_fini(&s->seqs[i].held);
    }
    while (s->first)
        end_request(s, unlink_waiting(s, s->first->id), SCHED_CANCELLED, OK, "");
    for (uint32_t i = 0; s->steps && i < s->lim.max_steps; i++)
        free(s->steps[i].entries);
    free(s->steps);
    free(s->seqs);
    free(s);
}

/* --- requests ------------------------------------------------------------------------------------ */

/* Requests end about that often while all slots are taken. */
static uint32_t retry_ms(const struct sched *s)
{
    double ms = s->us_per_tok * s->out_per_request / 1000 / s->lim.n_slots;
    return ms < RETRY_MS_MIN ? RETRY_MS_MIN : ms > RETRY_MS_MAX ? RETRY_MS_MAX : (uint32_t)ms;
}

/* Moves an average towards what was seen lately. */
static void learn(double *average, double seen)
{
    *average += *average > 0 ? (seen - *average) / 8 : seen;
}

static bool is_free(const struct seq *q)
{
    return !q->req && !q->in_flight;
}

static uint32_t n_free_slots(const struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->lim.n_slots; i++)
        n += is_free(&s->seqs[i]);
    return n;
}

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
    if (s->n_waiting >= s->lim.max_waiting + n_free_slots(s)) { /* slots are given away when a step is composed */
        s->c.n_refused++;
        return err_set(e, ERR_BUSY, "%u requests are waiting already, no more can; try again in about %u s",
                       s->n_waiting, (retry_ms(s) + 999) / 1000);
    }
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

/* The sequence's request ends; the slot is free once its entries in flight are back, and keeps its tokens. */
static void end_seq(struct sched *s, struct seq *q, enum sched_reason reason, enum err_code code, const char *text)
{
    struct request *r = q->req;
    q->req = NULL;
    q->waits = q->begins = q->decodes = false;
    q->held.used = q->held.n ? ++s->n_used : 0;
    if (q->n_out)
        learn(&s->out_per_request, q->n_out);
    end_request(s, r, reason, code, text);
}

bool sched_cancel(struct sched *s, uint64_t id)
{
    struct request *w = unlink_waiting(s, id);
    if (w) {
        end_request(s, w, SCHED_CANCELLED, OK, "");
        return true;
    }
    for (uint32_t i = 0; i < s->lim.n_slots; i++) {
        if (s->seqs[i].req && s->seqs[i].req->id == id) {
            end_seq(s, &s->seqs[i], SCHED_CANCELLED, OK, "");
            return true;
        }
    }
    return false;
}

/* --- slots --------------------------------------------------------------------------------------- */

/* Checkpoints of a sequence that begins: where its prompt and another's part, since a third may part there, too, and
 * short of the prompt's end, where the conversation will go on. */
static void set_marks(const struct sched *s, struct seq *q, uint32_t shared)
{
    uint32_t least = q->held.n + WORTH_SAVING, tail = q->n > TAIL ? q->n - TAIL : 0;
    memset(q->mark, 0, sizeof q->mark);
    if (!s->lim.bounded_rewind || tail < least)
        return;
    q->mark[0] = shared >= least && shared < tail ? shared : 0;
    q->mark[1] = tail;
}

/* What a slot can spare a request. */
struct offer {
    struct seq *seq;
    uint32_t reuse; /* tokens it need not compute */
};

/* The free slot that spares the request most; of equals, and where no slot spares anything, the one not used for the
 * longest time. A prefix that is but a small part of what a slot holds does not count: most conversations begin with
 * the same few tokens and had better keep their slots. *shared: the longest prefix it has in common with any. */
static struct offer choose_slot(struct sched *s, const struct request *r, uint32_t *shared)
{
    struct offer best = {0}, oldest = {0};
    *shared = 0;
    for (uint32_t i = 0; i < s->lim.n_slots; i++) {
        struct seq *q = &s->seqs[i];
        uint32_t n = q->req ? q->n : q->held.n, most = r->r.n_tokens - 1; /* one is left to sample from */
        uint32_t common = held_common(q->held.tokens, r->r.tokens, n < most ? n : most);
        *shared = common > *shared ? common : *shared;
        if (!is_free(q))
            continue;
        struct offer o = {q, held_reach(&q->held, common)};
        if (!oldest.seq || q->held.used < oldest.seq->held.used)
            oldest = o;
        if (o.reuse == 0 || o.reuse < q->held.n / 4)
            continue;
        if (!best.seq || o.reuse > best.reuse || (o.reuse == best.reuse && q->held.used < best.seq->held.used))
            best = o;
    }
    return best.seq ? best : oldest;
}

static uint16_t entry_of(const struct request *q)
{
    return (uint16_t)(q->id >> 48);
}

/* Entries with requests waiting take turns. */
static struct request *next_waiting(const struct sched *s)
{
    struct request *best = NULL;
    uint32_t best_away = UINT32_MAX;
    for (struct request *q = s->first; q; q = q->next) {
        uint32_t away = (uint16_t)(entry_of(q) - s->last_entry - 1);
        if (away < best_away) {
            best = q;
            best_away = away;
        }
    }
    return best;
}

static void give_slots(struct sched *s)
{
    struct request *r;
    while ((r = next_waiting(s))) {
        uint32_t shared;
        struct offer o = choose_slot(s, r, &shared);
        struct seq *q = o.seq;
        if (!q)
            return;
        unlink_waiting(s, r->id);
        s->last_entry = entry_of(r);
        s->c.n_reused_tok += o.reuse;
        held_cut(&q->held, o.reuse);
        memcpy(q->held.tokens + o.reuse, r->r.tokens + o.reuse, (r->r.n_tokens - o.reuse) * sizeof *r->r.tokens);
        *q = (struct seq){.req = r, .held = q->held, .n = r->r.n_tokens, .n_reused = o.reuse, .begins = true};
        set_marks(s, q, shared);
    }
}

/* --- composing ----------------------------------------------------------------------------------- */

static bool ready(const struct seq *q)
{
    return q->req && !q->waits && !(q->lost && q->in_flight) && q->held.n < q->n;
}

static bool ready_to_decode(const struct seq *q)
{
    return ready(q) && q->decodes;
}

static bool ready_to_prefill(const struct seq *q)
{
    return ready(q) && !q->decodes;
}

/* Tokens that its next entry can carry: an entry ends where a checkpoint is wanted. */
static uint32_t next_piece(const struct seq *q)
{
    uint32_t end = q->n;
    for (uint32_t i = N_MARKS; i-- > 0;) {
        if (q->mark[i] > q->held.n)
            end = q->mark[i];
    }
    return end - q->held.n;
}

/* The flags that say how the entry continues the slot. */
static uint32_t begin_flags(struct seq *q)
{
    uint32_t flags = q->held.n == 0 ? BATCH_RESET : q->begins ? BATCH_TRUNCATE : 0;
    for (uint32_t i = 0; i < N_MARKS; i++) {
        if (q->mark[i] == 0 || q->mark[i] != q->held.n)
            continue;
        flags |= BATCH_CHECKPOINT;
        held_checkpoint(&q->held);
    }
    return flags;
}

static void put_entry(struct sched *s, uint32_t slot, uint32_t n_tok, struct draft *d)
{
    struct seq *q = &s->seqs[slot];
    bool sample = q->held.n + n_tok == q->n;
    if (q->begins) /* announced with this very step: if it fails, they fail together */
        d->starts[d->n_starts++] =
            (struct sched_start){.request_id = q->req->id, .slot = slot, .sampling = &q->req->r.sampling};
    d->b->entries[d->b->n_entries++] = (struct batch_entry){
        .request_id = q->req->id,
        .prefix_hash = q->held.hash,
        .slot = slot,
        .pos = q->held.n,
        .n_tok = n_tok,
        .flags = (sample ? BATCH_SAMPLE : 0) | begin_flags(q),
    };
    for (uint32_t i = 0; i < n_tok; i++) {
        d->b->tokens[d->b->n_tok++] = q->held.tokens[q->held.n];
        held_extend(&q->held);
    }
    q->waits = sample;
    q->begins = q->lost = false;
    q->in_flight++;
    d->st->entries[d->st->n_entries++] =
        (struct step_entry){.slot = slot, .end_pos = q->held.n, .request_id = q->req->id, .sample = sample};
}

/* What there is to do. */
struct load {
    uint32_t n_decode;           /* sequences that decode, ready or in flight */
    uint32_t n_ready, n_prompts; /* ready to decode; ready with a piece of their prompt */
    uint64_t n_tok, n_left;      /* of these prompts: to compute, and of that not sent yet */
    uint32_t n_unused_steps;
};

static struct load look(const struct sched *s)
{
    struct load l = {0};
    for (uint32_t i = 0; i < s->lim.n_slots; i++) {
        const struct seq *q = &s->seqs[i];
        l.n_decode += q->req && q->decodes;
        l.n_ready += ready_to_decode(q);
        if (!ready_to_prefill(q))
            continue;
        l.n_prompts++;
        l.n_tok += q->n - q->n_reused;
        l.n_left += q->n - q->held.n;
    }
    for (uint32_t i = 0; i < s->lim.max_steps; i++)
        l.n_unused_steps += s->steps[i].id == 0;
    return l;
}

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Decoding sequences, spread evenly over the steps that can be in flight: those that are ready over the steps not yet
 * made, and never more than a fair part of all, so that steps grow alike again after some have lost sequences. Prompts
 * keep room for a token. */
static void put_decoding(struct sched *s, const struct load *l, struct draft *d)
{
    uint32_t most = divide_up(l->n_decode, s->lim.max_steps), now = divide_up(l->n_ready, l->n_unused_steps);
    uint32_t left = most < now ? most : now, n = s->lim.n_slots, begin = s->turn, spare = l->n_prompts > 0;
    uint32_t max_tok = s->lim.n_batch > spare ? s->lim.n_batch - spare : 1, max_entries = BATCH_MAX_ENTRIES - spare;
    left = left < max_tok ? left : max_tok;
    left = left < max_entries ? left : max_entries;
    for (uint32_t k = 0; k < n && left > 0; k++) {
        uint32_t slot = (begin + k) % n;
        if (!ready_to_decode(&s->seqs[slot]))
            continue;
        put_entry(s, slot, 1, d);
        d->st->decodes = true;
        s->turn = (slot + 1) % n;
        left--;
    }
}

/* How many tokens of prompts the step takes; the reasons are in sched.h. */
static uint32_t chunk(const struct sched *s, const struct load *l, uint32_t room)
{
    if (l->n_decode > 0)
        room = room < s->lim.n_prefill ? room : s->lim.n_prefill;
    if (s->lim.max_steps == 1)
        return room;
    uint64_t c = CHUNK;
    while (c < room && c * c * (s->lim.max_steps - 1) < l->n_tok * s->lim.step_cost)
        c += CHUNK;
    uint64_t n_chunks = (l->n_left + c / 2) / c; /* alike, and no crumbs at the end */
    c = n_chunks > 1 ? (l->n_left + n_chunks - 1) / n_chunks : l->n_left;
    c = (c + ALIKE - 1) / ALIKE * ALIKE;
    return c < room ? (uint32_t)c : room;
}

/* Prompts in turns: first each a share of the room, so that a short one need not wait for a long one, then more where
 * some is left. */
static void put_prompts(struct sched *s, const struct load *l, struct draft *d)
{
    uint32_t room = chunk(s, l, s->lim.n_batch - d->b->n_tok), n = s->lim.n_slots, begin = s->prompt_turn;
    uint32_t share = l->n_prompts ? room / l->n_prompts : 0, entries = BATCH_MAX_ENTRIES - d->b->n_entries;
    share = share > LEAST_SHARE ? share : LEAST_SHARE;
    for (uint32_t i = 0; i < n; i++)
        s->seqs[i].take = 0;
    for (int round = 0; round < 2; round++) {
        for (uint32_t k = 0; k < n && room > 0; k++) {
            struct seq *q = &s->seqs[(begin + k) % n];
            if (!ready_to_prefill(q) || (q->take == 0 && entries == 0))
                continue;
            uint32_t piece = next_piece(q) - q->take;
            piece = round == 0 && piece > share ? share : piece;
            piece = piece < room ? piece : room;
            entries -= q->take == 0 && piece > 0;
            q->take += piece;
            room -= piece;
        }
    }
    bool first = true;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t slot = (begin + k) % n;
        if (s->seqs[slot].take == 0)
            continue;
        s->c.n_prompt_tok += s->seqs[slot].take;
        put_entry(s, slot, s->seqs[slot].take, d);
        if (first)
            s->prompt_turn = (slot + 1) % n;
        first = false;
    }
}

static struct step *unused_step(struct sched *s)
{
    for (uint32_t i = 0; i < s->lim.max_steps; i++) {
        if (s->steps[i].id == 0)
            return &s->steps[i];
    }
    return NULL;
}

bool sched_compose(struct sched *s, struct batch *b, struct sched_start *starts, uint32_t *n_starts, uint64_t *step_id)
{
    struct draft d = {.b = b, .st = unused_step(s), .starts = starts};
    b->n_entries = b->n_tok = b->n_results = 0;
    *n_starts = 0;
    if (!d.st)
        return false;
    give_slots(s);
    d.st->n_entries = 0;
    d.st->decodes = false;
    struct load l = look(s);
    put_decoding(s, &l, &d);
    put_prompts(s, &l, &d);
    if (b->n_entries == 0)
        return false;
    *n_starts = d.n_starts;
    d.st->id = ++s->n_steps_made;
    d.st->made_ns = clock_now_ns();
    *step_id = d.st->id;
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
    q->decodes = true;
    if (is_eog(req, r->token)) {
        end_seq(s, q, SCHED_STOP, OK, "");
        return;
    }
    s->c.n_out_tok++;
    q->n_out++;
    req->r.on_token(req->r.ctx, req->id, r);
    if (q->n_out >= req->r.n_predict) {
        end_seq(s, q, SCHED_LENGTH, OK, "");
        return;
    }
    if (q->n >= s->lim.n_ctx) {
        end_seq(s, q, SCHED_CONTEXT, OK, "");
        return;
    }
    q->held.tokens[q->n++] = r->token;
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
    if (st->decodes)
        learn(&s->us_per_tok, (double)(clock_now_ns() - st->made_ns) / 1000);
    close_step(s, st);
    fail_overtaken(s, step_id);
    k = 0;
    for (uint32_t i = 0; i < n_entries; i++) { /* the entries stay readable: st is unused until the next compose */
        const struct step_entry *en = &st->entries[i];
        struct seq *q = &s->seqs[en->slot];
        if (!en->sample)
            continue;
        if (q->req && q->req->id == en->request_id && !q->lost)
            accept(s, q, &r[k]);
        k++;
    }
    return OK;
}

/* A rank has lost what it held: nothing that is not in use now can be counted on. What is in use comes to light by
 * itself. */
static void forget_unused(struct sched *s)
{
    for (uint32_t i = 0; i < s->lim.n_slots; i++) {
        struct seq *q = &s->seqs[i];
        if (!q->req || q->begins) {
            held_forget(&q->held);
            q->n_reused = 0;
        }
    }
}

/* From the beginning, but with the tokens it has. */
static void begin_anew(struct sched *s, struct seq *q)
{
    q->req->retried = true;
    q->waits = q->decodes = false;
    q->begins = true;
    q->n_reused = 0;
    s->c.n_retried++;
    set_marks(s, q, 0);
}

void sched_fail_step(struct sched *s, uint64_t step_id, enum err_code code, const char *text)
{
    struct step *st = find_step(s, step_id);
    if (!st)
        return;
    close_step(s, st);
    bool news = code == ERR_STALE; /* and not merely what follows from a step that failed before */
    for (uint32_t i = 0; i < st->n_entries; i++)
        news &= !s->seqs[st->entries[i].slot].lost;
    if (news)
        forget_unused(s);
    for (uint32_t i = 0; i < st->n_entries; i++) {
        struct seq *q = &s->seqs[st->entries[i].slot];
        bool first = !q->lost;
        held_forget(&q->held); /* the ranks before the one that failed have gone on, those after it have not */
        q->lost = true;
        if (!q->req || q->req->id != st->entries[i].request_id || !first)
            continue;
        if (code == ERR_STALE && !q->req->retried)
            begin_anew(s, q);
        else
            end_seq(s, q, SCHED_FAILED, code, text);
    }
}

void sched_fail_all(struct sched *s, enum err_code code, const char *text)
{
    for (uint32_t i = 0; i < s->lim.max_steps; i++)
        s->steps[i].id = 0;
    for (uint32_t i = 0; i < s->lim.n_slots; i++) {
        struct seq *q = &s->seqs[i];
        if (q->in_flight)
            held_forget(&q->held);
        q->in_flight = 0;
        if (q->req)
            end_seq(s, q, SCHED_FAILED, code, text);
    }
}

void sched_fail_waiting(struct sched *s, enum err_code code, const char *text)
{
    while (s->first)
        end_request(s, unlink_waiting(s, s->first->id), SCHED_FAILED, code, text);
}

void sched_count(const struct sched *s, struct sched_counts *out)
{
    *out = s->c;
    out->n_waiting = s->n_waiting;
    out->us_per_tok = s->us_per_tok < UINT32_MAX ? (uint32_t)s->us_per_tok : UINT32_MAX;
    out->retry_ms = retry_ms(s);
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
