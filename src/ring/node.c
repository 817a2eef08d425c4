/* SPDX-License-Identifier: MIT */
#include "ring/node.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "ring/inbox.h"
#include "ring/remote.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INBOX_SPARE    256u /* frames that may wait for the compute thread, besides one request and step per slot */
#define PROBE_EARLY_MS 100u /* between probes until the ring is whole */
#define PROBE_LATER_MS 1000u
#define PROBE_MISSES   5u    /* so many may be out while no step is: nobody has anything else to do then */
#define SILENCE_MS     5000u /* of rank 0, at least, before it counts as lost: some probes */
#define TICK_MS        100u

struct node {
    struct node_config c;
    struct frame_limits lim;
    struct edges *edges; /* NULL in a ring of one */
    struct inbox *inbox; /* from link threads to the compute thread */
    pthread_t thread;
    bool started;

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t turned; /* `ready` changed */
    bool ready;
    struct frame_probe view; /* the latest that came by */
    uint64_t view_ns;        /* when; 0: none */

    pthread_mutex_t sched_mutex; /* guards what follows; callbacks of rank 0's requests run with it held */
    struct sched *sched;         /* rank 0 */
    struct remote *remote;       /* rank 0 */
    struct entry *entry;         /* has a lock of its own, the last to be taken but for those of links */

    /* compute thread only */
    struct batch b;
    struct buf out;
    struct sched_start *starts;
    struct announced {       /* last rank, [n_slots]: the request whose parameters came last */
        uint64_t request_id; /* 0: none */
        struct err refused;  /* not OK: the stage does not take them, and the request's first step fails */
    } *announced;
    uint64_t generation[EDGES_END_COUNT];
    uint64_t probe_nonce, probe_due_ns, last_news_ns;
    uint64_t broken_ns; /* rank 0: since when the ring is not whole */
    uint32_t n_missed;  /* rank 0: probes sent since anything came back */

    _Atomic uint64_t n_steps, n_tok, busy_ns;
    _Atomic uint64_t turn_ns;               /* when the compute thread last began a turn */
    _Atomic uint64_t seen[EDGES_END_COUNT]; /* the same as generation[], for other threads */
};

static bool is_first(const struct node *n)
{
    return n->c.rank == 0;
}

static bool is_last(const struct node *n)
{
    return n->c.rank + 1 == n->c.m->n_ranks;
}

static void set_ready(struct node *n, bool ready)
{
    pthread_mutex_lock(&n->mutex);
    n->ready = ready;
    pthread_cond_broadcast(&n->turned);
    pthread_mutex_unlock(&n->mutex);
}

/* Has the stage not come back for too long? For other threads: the compute thread is the one that hangs. */
static bool hangs(const struct node *n)
{
    uint64_t turn = atomic_load(&n->turn_ns), now = clock_now_ns();
    return n->edges && now > turn && now - turn > (uint64_t)n->c.stall_ms * CLOCK_NS_PER_MS;
}

/* --- requests and their tokens: on the threads of links ------------------------------------------ */

/* The stream to the successor lacks something that nobody there could notice: it ends, and the successor tells rank 0
 * of the loss. When the link itself is gone, that was said when it went. */
static void end_stream(struct node *n, struct edges *x, const char *what, const struct err *why)
{
    bool gone = why->code == ERR_CLOSED;
    log_line(gone ? LOG_INFO : LOG_WARN, "ring", "%s: rank %u: %s was not passed on: %s", err_name(why->code),
             n->c.rank, what, why->msg);
    if (!gone)
        edges_drop(x, EDGES_SUCCESSOR, 0, why->code, why->msg);
}

/* Rank 0, after anything that may have ended requests or brought tokens; with the scheduler's lock. */
static void tell(struct node *n, struct edges *x)
{
    struct err e;
    if (remote_flush(n->remote, x, &e) != OK)
        end_stream(n, x, "what became of requests", &e);
}

/* Rank 0: a request from elsewhere, or the news that it is over. Where it entered, it has ended if the link by which it
 * came is gone: broken() then ends it, too, or has been here before. */
static enum err_code take_remote(struct node *n, struct edges *x, uint64_t generation, const struct frame_header *h,
                                 const uint8_t *payload, struct err *e)
{
    enum err_code rc = OK;
    pthread_mutex_lock(&n->sched_mutex);
    bool live = edges_generation(x, EDGES_PREDECESSOR, NULL) == generation;
    if (live && h->type == FRAME_CANCEL)
        remote_cancel(n->remote, h->request_id);
    else if (live)
        rc = remote_submit(n->remote, h->request_id, payload, h->length, &n->lim, node_is_ready(n), e);
    tell(n, x);
    pthread_mutex_unlock(&n->sched_mutex);
    inbox_wake(n->inbox);
    return rc;
}

/* FRAME_SUBMIT, FRAME_CANCEL: on to rank 0. */
static enum err_code on_way_to_first(struct node *n, struct edges *x, uint64_t generation, const struct frame_header *h,
                                     const uint8_t *payload, struct err *e)
{
    uint32_t from = frame_entry_rank(h->request_id);
    if (from == 0 || from >= (is_first(n) ? n->c.m->n_ranks : n->c.rank))
        return err_set(e, ERR_PROTOCOL, "a request of rank %u came to rank %u", from, n->c.rank);
    if (h->type == FRAME_CANCEL && h->length != 0)
        return err_set(e, ERR_FORMAT, "a cancellation with a payload of %u bytes, 0 are allowed", h->length);
    if (is_first(n))
        return take_remote(n, x, generation, h, payload, e);
    struct buf out = {0};
    struct err why;
    uint8_t head[FRAME_HEADER_BYTES];
    frame_header_put(head, h);
    buf_put(&out, head, sizeof head);
    buf_put(&out, payload, h->length);
    enum err_code rc =
        out.failed ? err_set(&why, ERR_NOMEM, "out of memory for a frame") : edges_send(x, out.data, out.len, &why);
    if (rc != OK)
        end_stream(n, x, "a request", &why);
    buf_free(&out);
    return OK;
}

static enum err_code on_events(struct node *n, struct edges *x, const struct frame_header *h, const uint8_t *payload,
                               struct err *e)
{
    if (is_first(n))
        return err_set(e, ERR_PROTOCOL, "events came to rank 0, which makes them");
    return entry_events(n->entry, x, payload, h->length, e);
}

/* The code by which a loss ends requests. What broke the ring (a limit, a full queue, a signature) was not theirs, and
 * would read as if it were. */
static enum err_code loss_code(enum err_code code)
{
    return code == ERR_TIMEOUT ? code : ERR_CLOSED;
}

/* Other ranks than 0: requests that entered here cannot go on. */
static void lose(struct node *n, enum err_code code, const char *text)
{
    set_ready(n, false); /* first: who hears that a request ended must not find the ring whole still */
    entry_break(n->entry, loss_code(code), text[0] ? text : err_text(loss_code(code)));
}

static enum err_code on_frame(void *ctx, struct edges *x, uint64_t generation, const struct frame_header *h,
                              const uint8_t *payload, struct err *e)
{
    struct node *n = ctx;
    switch (h->type) {
    case FRAME_SUBMIT:
    case FRAME_CANCEL:
        return on_way_to_first(n, x, generation, h, payload, e);
    case FRAME_EVENTS:
        return on_events(n, x, h, payload, e);
    default:
        return inbox_put(n->inbox, generation, h, payload, e);
    }
}

static void on_state(void *ctx, enum edges_end end, uint64_t generation, bool up, enum err_code code, const char *text)
{
    struct node *n = ctx;
    const char *who = end == EDGES_PREDECESSOR ? "predecessor" : "successor";
    if (up)
        log_info("ring", "rank=%u the %s is linked", n->c.rank, who);
    if (!up && !inbox_is_closed(n->inbox))
        log_line(code == OK ? LOG_INFO : LOG_WARN, "ring", "%s: the %s of rank %u is lost: %s", err_name(code), who,
                 n->c.rank, text);
    inbox_wake(n->inbox);
    /* At once, though the compute thread may be busy; unless it has seen what came after this link, and the loss. */
    if (!up && !is_first(n) && generation >= atomic_load(&n->seen[end]))
        lose(n, code, text);
}

/* --- sending ------------------------------------------------------------------------------------- */

static enum err_code flush(struct node *n, struct err *e)
{
    if (n->out.failed)
        return err_set(e, ERR_NOMEM, "out of memory for a frame");
    return edges_send(n->edges, n->out.data, n->out.len, e);
}

/* Sends on what rank 0 counts on. */
static void pass(struct node *n, const char *what)
{
    struct err e;
    if (flush(n, &e) != OK)
        end_stream(n, n->edges, what, &e);
}

/* Passes a failure on to rank 0. */
static void send_fail(struct node *n, uint64_t step_id, const struct frame_fail *f)
{
    struct err e;
    buf_clear(&n->out);
    if (frame_fail_put(&n->out, FRAME_FAIL, step_id, f, &e) != OK)
        end_stream(n, n->edges, "a failure", &e);
    else
        pass(n, "a failure");
}

static void report(struct node *n, uint64_t step_id, const struct err *why)
{
    struct frame_fail f = {.code = why->code, .rank = n->c.rank};
    snprintf(f.text, sizeof f.text, "%.250s", why->msg);
    log_warn("ring", "%s: rank %u: %s", err_name(why->code), n->c.rank, why->msg);
    send_fail(n, step_id, &f);
}

static void event(struct node *n, enum node_event_type type, enum err_code code, const char *text)
{
    if (n->c.on_event)
        n->c.on_event(n->c.ctx, &(struct node_event){.type = type, .code = code, .text = text});
}

/* Rank 0: the ring is broken. */
static void broken(struct node *n, enum err_code code, const char *text)
{
    bool was = node_is_ready(n);
    set_ready(n, false);
    n->probe_nonce = 0;
    n->probe_due_ns = 0;
    if (was)
        n->broken_ns = clock_now_ns();
    pthread_mutex_lock(&n->sched_mutex);
    sched_fail_all(n->sched, loss_code(code), text);
    remote_fail_all(n->remote, loss_code(code), text);
    tell(n, n->edges);
    pthread_mutex_unlock(&n->sched_mutex);
    if (was) {
        log_warn("ring", "%s: the ring is broken: %s", err_name(code), text);
        event(n, NODE_LOST, code, text);
    }
}

/* Compares the ends with what was known of them. */
static void look_at_edges(struct node *n)
{
    bool lost = false, pred_lost = false;
    struct err why;
    for (int i = 0; i < EDGES_END_COUNT; i++) {
        struct err e;
        uint64_t g = edges_generation(n->edges, (enum edges_end)i, &e);
        if (g == n->generation[i])
            continue;
        if (n->generation[i] != 0) {
            lost = true;
            pred_lost |= i == EDGES_PREDECESSOR;
            why = e;
        }
        n->generation[i] = g;
        atomic_store(&n->seen[i], g);
        n->probe_due_ns = 0;
    }
    if (!lost)
        return;
    if (is_first(n)) {
        broken(n, why.code, why.msg);
        return;
    }
    if (pred_lost) {
        struct frame_fail f = {.code = why.code, .rank = n->c.rank};
        snprintf(f.text, sizeof f.text, "%.250s", why.msg);
        send_fail(n, 0, &f);
    }
    lose(n, why.code, why.msg);
    event(n, NODE_LOST, why.code, why.msg);
}

/* --- steps --------------------------------------------------------------------------------------- */

static enum err_code run_stage(struct node *n, struct err *e)
{
    uint64_t t0 = clock_now_ns();
    enum err_code rc = n->c.stage.step(n->c.stage.ctx, &n->b, e);
    atomic_fetch_add_explicit(&n->busy_ns, clock_now_ns() - t0, memory_order_relaxed);
    if (rc == OK) {
        atomic_fetch_add_explicit(&n->n_steps, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&n->n_tok, n->b.n_tok, memory_order_relaxed);
    }
    return rc;
}

static void take_results(struct node *n, uint64_t step_id)
{
    struct err e;
    pthread_mutex_lock(&n->sched_mutex);
    enum err_code rc = sched_result(n->sched, step_id, n->b.results, n->b.n_results, &e);
    tell(n, n->edges);
    pthread_mutex_unlock(&n->sched_mutex);
    if (rc != OK && n->edges)
        edges_drop(n->edges, EDGES_PREDECESSOR, n->generation[EDGES_PREDECESSOR], rc, e.msg);
    else if (rc != OK)
        log_error("ring", "%s: the stage: %s", err_name(rc), e.msg); /* its requests have failed */
}

static void fail_step(struct node *n, uint64_t step_id, const struct err *e)
{
    pthread_mutex_lock(&n->sched_mutex);
    sched_fail_step(n->sched, step_id, e->code, e->msg);
    tell(n, n->edges);
    pthread_mutex_unlock(&n->sched_mutex);
}

/* Rank 0: the parameters of new requests, then the step itself, in one piece. */
static enum err_code announce(struct node *n, uint32_t n_starts, struct err *e)
{
    enum err_code rc = OK;
    buf_clear(&n->out);
    for (uint32_t i = 0; rc == OK && i < n_starts; i++) {
        const struct sched_start *st = &n->starts[i];
        if (is_last(n))
            rc = n->c.stage.sampling ? n->c.stage.sampling(n->c.stage.ctx, st->slot, st->sampling, e) : OK;
        else
            rc = frame_request_put(&n->out, st->request_id, st->slot, st->sampling, e);
    }
    return rc;
}

/* Rank 0: composes the next step, runs it, sends it. false: there is none. */
static bool lead(struct node *n)
{
    uint32_t n_starts;
    uint64_t step_id;
    struct err e;
    pthread_mutex_lock(&n->sched_mutex);
    bool some = sched_compose(n->sched, &n->b, n->starts, &n_starts, &step_id);
    enum err_code rc =
        some ? announce(n, n_starts, &e) : OK; /* the parameters are read while nobody can end a request */
    pthread_mutex_unlock(&n->sched_mutex);
    if (!some)
        return false;
    if (rc == OK)
        rc = run_stage(n, &e);
    if (rc == OK && is_last(n)) {
        take_results(n, step_id);
        return true;
    }
    if (rc == OK)
        rc = frame_step_put(&n->out, step_id, &n->b, true, &e);
    if (rc == OK && (rc = flush(n, &e)) == ERR_CLOSED) {
        look_at_edges(n); /* knows why, unless the link has only just gone */
        broken(n, rc, e.msg);
        return true;
    }
    if (rc != OK)
        fail_step(n, step_id, &e);
    return true;
}

/* Last rank: would the step be sampled with each request's own parameters? */
static enum err_code check_announced(const struct node *n, struct err *e)
{
    for (uint32_t i = 0; is_last(n) && i < n->b.n_entries; i++) {
        const struct batch_entry *en = &n->b.entries[i];
        const struct announced *a = &n->announced[en->slot];
        if (a->request_id != en->request_id)
            return err_set(e, ERR_STALE, "slot %u is in use by request %llu, but the parameters here are of %llu",
                           en->slot, (unsigned long long)en->request_id, (unsigned long long)a->request_id);
        if (a->refused.code != OK) {
            *e = a->refused;
            return e->code;
        }
    }
    return OK;
}

/* Other ranks. */
static enum err_code follow(struct node *n, const struct letter *l, struct err *e)
{
    if (is_first(n))
        return err_set(e, ERR_PROTOCOL, "a step came to rank 0, which makes the steps");
    enum err_code rc = frame_step_get(l->payload.data, l->payload.len, &n->lim, true, &n->b, e);
    if (rc != OK)
        return rc;
    struct err why;
    rc = check_announced(n, &why);
    if (rc == OK)
        rc = run_stage(n, &why);
    buf_clear(&n->out);
    if (rc == OK && is_last(n))
        rc = frame_result_put(&n->out, l->h.step_id, &n->b, &why);
    else if (rc == OK)
        rc = frame_step_put(&n->out, l->h.step_id, &n->b, true, &why);
    if (rc != OK) {
        report(n, l->h.step_id, &why);
        return OK;
    }
    pass(n, "a step");
    return OK;
}

/* --- other frames -------------------------------------------------------------------------------- */

/* Sends the frame on as it came. */
static void pass_on(struct node *n, const struct letter *l)
{
    uint8_t head[FRAME_HEADER_BYTES];
    frame_header_put(head, &l->h);
    buf_clear(&n->out);
    buf_put(&n->out, head, sizeof head);
    buf_put(&n->out, l->payload.data, l->payload.len);
    pass(n, "a frame");
}

static enum err_code on_request(struct node *n, const struct letter *l, struct err *e)
{
    uint32_t slot;
    struct batch_sampling s;
    if (is_first(n))
        return err_set(e, ERR_PROTOCOL, "a request's parameters came back to rank 0");
    enum err_code rc = frame_request_get(l->payload.data, l->payload.len, &n->lim, &slot, &s, e);
    if (rc != OK)
        return rc;
    if (!is_last(n)) {
        pass_on(n, l);
        return OK;
    }
    struct announced *a = &n->announced[slot];
    *a = (struct announced){.request_id = l->h.request_id};
    if (n->c.stage.sampling && n->c.stage.sampling(n->c.stage.ctx, slot, &s, &a->refused) != OK)
        log_debug("ring", "rank=%u slot=%u refused parameters: %s", n->c.rank, slot, a->refused.msg);
    return OK;
}

static enum err_code on_result(struct node *n, const struct letter *l, struct err *e)
{
    if (!is_first(n))
        return err_set(e, ERR_PROTOCOL, "results came to rank %u, only rank 0 takes them", n->c.rank);
    enum err_code rc = frame_result_get(l->payload.data, l->payload.len, &n->lim, &n->b, e);
    if (rc == OK)
        take_results(n, l->h.step_id);
    return rc;
}

static void own_row(struct node *n, struct frame_row *row)
{
    struct link_stats in = {0}, out = {0};
    if (n->edges) {
        edges_stats(n->edges, EDGES_PREDECESSOR, &in);
        edges_stats(n->edges, EDGES_SUCCESSOR, &out);
    }
    *row = (struct frame_row){.n_steps = atomic_load(&n->n_steps),
                              .n_tok = atomic_load(&n->n_tok),
                              .busy_ns = atomic_load(&n->busy_ns),
                              .bytes_in = in.bytes_in,
                              .bytes_out = out.bytes_out,
                              .rss_bytes = io_resident_bytes()};
}

/* Rank 0. */
static void own_counts(struct node *n, struct frame_counts *out)
{
    struct sched_counts k;
    pthread_mutex_lock(&n->sched_mutex);
    sched_count(n->sched, &k);
    pthread_mutex_unlock(&n->sched_mutex);
    *out = (struct frame_counts){.n_waiting = k.n_waiting,
                                 .n_active = k.n_active,
                                 .n_steps = k.n_steps,
                                 .us_per_tok = k.us_per_tok,
                                 .retry_ms = k.retry_ms,
                                 .n_prompt_tok = k.n_prompt_tok,
                                 .n_out_tok = k.n_out_tok,
                                 .n_reused_tok = k.n_reused_tok,
                                 .n_refused = k.n_refused};
}

static void keep_view(struct node *n, const struct frame_probe *p)
{
    pthread_mutex_lock(&n->mutex);
    n->view = *p;
    n->view_ns = clock_now_ns();
    pthread_mutex_unlock(&n->mutex);
}

static void send_probe(struct node *n)
{
    struct err e;
    struct frame_probe p;
    pthread_mutex_lock(&n->mutex);
    p = n->view; /* what the others said last time */
    p.ready = n->ready;
    pthread_mutex_unlock(&n->mutex);
    p.nonce = n->probe_nonce;
    p.hops = 0;
    p.n_rows = n->c.m->n_ranks;
    own_counts(n, &p.counts);
    own_row(n, &p.rows[0]);
    buf_clear(&n->out);
    if (frame_probe_put(&n->out, &p, &e) != OK || flush(n, &e) != OK)
        log_debug("ring", "probe: %s", e.msg);
    else
        n->n_missed++;
}

/* Rank 0: a probe came back. */
static void probe_is_back(struct node *n, const struct frame_probe *p)
{
    keep_view(n, p);
    if (p->nonce != n->probe_nonce || p->nonce == 0 || node_is_ready(n))
        return;
    n->probe_due_ns = 0; /* the others hear of it at once */
    set_ready(n, true);
    event(n, NODE_READY, OK, "");
}

/* Other ranks. */
static void probe_comes_by(struct node *n, struct frame_probe *p)
{
    struct err e;
    own_row(n, &p->rows[n->c.rank]);
    buf_clear(&n->out);
    if (frame_probe_put(&n->out, p, &e) != OK || flush(n, &e) != OK)
        log_debug("ring", "probe: %s", e.msg);
    keep_view(n, p);
    if (!p->ready) {
        lose(n, ERR_CLOSED, "the ring is not whole");
    } else if (n->generation[EDGES_SUCCESSOR]) { /* each time: lose() may have run in the middle of this */
        entry_open(n->entry);
        set_ready(n, true);
    }
}

static enum err_code on_probe(struct node *n, const struct letter *l, struct err *e)
{
    struct frame_probe p;
    uint32_t n_ranks = n->c.m->n_ranks;
    enum err_code rc = frame_probe_get(l->payload.data, l->payload.len, &n->lim, &p, e);
    if (rc != OK)
        return rc;
    if (++p.hops != (is_first(n) ? n_ranks : n->c.rank))
        return err_set(e, ERR_PROTOCOL, "a probe passed %u edges on its way to rank %u of %u", p.hops, n->c.rank,
                       n_ranks);
    if (is_first(n))
        probe_is_back(n, &p);
    else
        probe_comes_by(n, &p);
    return OK;
}

static enum err_code on_fail(struct node *n, const struct letter *l, struct err *e)
{
    struct frame_fail f;
    enum err_code rc = frame_fail_get(l->payload.data, l->payload.len, &f, e);
    if (rc != OK)
        return rc;
    if (f.code == OK)
        return err_set(e, ERR_PROTOCOL, "a failure of rank %u that is none", f.rank);
    if (!is_first(n)) {
        pass_on(n, l);
        if (l->h.step_id == 0)
            lose(n, f.code, f.text);
        return OK;
    }
    struct err why;
    err_set(&why, f.code, "rank %u: %s", f.rank, f.text);
    if (l->h.step_id != 0)
        fail_step(n, l->h.step_id, &why);
    else
        broken(n, f.code, f.text);
    return OK;
}

static void handle(struct node *n, const struct letter *l)
{
    struct err e;
    enum err_code rc;
    if (l->generation != n->generation[EDGES_PREDECESSOR])
        return; /* left over from a link that is gone: its steps have failed */
    n->n_missed = 0;
    if (l->h.type != FRAME_PROBE) /* probes sent before a step that got lost say nothing about it */
        n->last_news_ns = clock_now_ns();
    switch (l->h.type) {
    case FRAME_STEP:
        rc = follow(n, l, &e);
        break;
    case FRAME_REQUEST:
        rc = on_request(n, l, &e);
        break;
    case FRAME_RESULT:
        rc = on_result(n, l, &e);
        break;
    case FRAME_PROBE:
        rc = on_probe(n, l, &e);
        break;
    case FRAME_FAIL:
        rc = on_fail(n, l, &e);
        break;
    default:
        rc = err_set(&e, ERR_PROTOCOL, "a frame of type %d has no business here", (int)l->h.type);
    }
    if (rc != OK)
        edges_drop(n->edges, EDGES_PREDECESSOR, l->generation, rc, e.msg);
}

/* --- the compute thread -------------------------------------------------------------------------- */

/* Rank 0 of a real ring: probes, and notices that nothing comes back, or that the ring stays broken. */
static void keep_time(struct node *n)
{
    uint64_t now = clock_now_ns();
    bool whole = n->generation[EDGES_PREDECESSOR] && n->generation[EDGES_SUCCESSOR];
    if (whole && now >= n->probe_due_ns) {
        if (!n->probe_nonce)
            n->probe_nonce = hash_mix64(now) | 1;
        send_probe(n);
        n->probe_due_ns = clock_deadline_ms(node_is_ready(n) ? PROBE_LATER_MS : PROBE_EARLY_MS);
    }
    struct sched_counts k;
    uint64_t limit = (uint64_t)n->c.stall_ms * CLOCK_NS_PER_MS;
    pthread_mutex_lock(&n->sched_mutex);
    sched_count(n->sched, &k);
    if (k.n_waiting > 0 && !node_is_ready(n) && now - n->broken_ns > limit)
        sched_fail_waiting(n->sched, ERR_CLOSED, "the ring has not been whole for too long");
    pthread_mutex_unlock(&n->sched_mutex);
    if (k.n_steps > 0 && now - k.oldest_step_ns > limit && now - n->last_news_ns > limit)
        broken(n, ERR_TIMEOUT, "no rank has sent anything on for too long");
    else if (k.n_steps == 0 && n->n_missed > PROBE_MISSES && node_is_ready(n))
        broken(n, ERR_TIMEOUT, "probes do not come back: a rank has stopped working, though its links live");
}

/* Other ranks: rank 0 may have stopped working though its links live. */
static void keep_listening(struct node *n)
{
    uint64_t limit = n->c.stall_ms > SILENCE_MS ? n->c.stall_ms : SILENCE_MS;
    if (node_is_ready(n) && clock_now_ns() - n->view_ns > limit * CLOCK_NS_PER_MS)
        lose(n, ERR_TIMEOUT, "nothing was heard of rank 0 for too long");
}

static void *compute(void *arg)
{
    struct node *n = arg;
    struct letter *l;
    bool busy = false;
    while (inbox_take(n->inbox, busy ? 0 : clock_deadline_ms(TICK_MS), &l)) {
        busy = l != NULL;
        atomic_store(&n->turn_ns, clock_now_ns());
        if (n->edges)
            look_at_edges(n);
        if (l)
            handle(n, l);
        if (is_first(n)) {
            if (n->edges)
                keep_time(n);
            if (node_is_ready(n))
                busy |= lead(n);
        } else {
            keep_listening(n);
        }
        inbox_give_back(n->inbox, l);
    }
    return NULL;
}

/* --- for other threads --------------------------------------------------------------------------- */

bool node_is_ready(struct node *n)
{
    pthread_mutex_lock(&n->mutex);
    bool r = n->ready;
    pthread_mutex_unlock(&n->mutex);
    return r && !hangs(n);
}

enum err_code node_wait_ready(struct node *n, uint64_t deadline_ns, struct err *e)
{
    uint32_t n_ranks = n->c.m->n_ranks, before = (n->c.rank + n_ranks - 1) % n_ranks, after = (n->c.rank + 1) % n_ranks;
    pthread_mutex_lock(&n->mutex);
    while ((!n->ready || hangs(n)) && clock_now_ns() < deadline_ns) {
        uint64_t look = clock_deadline_ms(TICK_MS); /* nobody says when a stage comes back */
        thread_cond_wait(&n->turned, &n->mutex, look < deadline_ns ? look : deadline_ns);
    }
    bool ready = n->ready;
    pthread_mutex_unlock(&n->mutex);
    if (hangs(n))
        return err_set(e, ERR_TIMEOUT, "rank %u has been at work on one step for more than %u s", n->c.rank,
                       n->c.stall_ms / 1000);
    if (ready)
        return OK;
    if (!n->edges)
        return err_set(e, ERR_INTERNAL, "a ring of one is always ready");
    if (!edges_generation(n->edges, EDGES_SUCCESSOR, NULL))
        return err_set(e, ERR_TIMEOUT,
                       "the ring is not whole: rank %u waits in vain: its successor, rank %u, is not linked", n->c.rank,
                       after);
    if (!edges_generation(n->edges, EDGES_PREDECESSOR, NULL))
        return err_set(e, ERR_TIMEOUT,
                       "the ring is not whole: rank %u waits in vain: its predecessor, rank %u, is not linked",
                       n->c.rank, before);
    return err_set(e, ERR_TIMEOUT, "the ring is not whole: rank %u waits in vain: no probe came around", n->c.rank);
}

enum err_code node_submit(struct node *n, const struct sched_request *r, uint64_t *id, struct err *e)
{
    if (!is_first(n))
        return entry_submit(n->entry, n->edges, r, id, e);
    enum err_code rc = frame_submit_check(&n->lim, r, e);
    if (rc != OK)
        return rc;
    pthread_mutex_lock(&n->sched_mutex);
    rc = remote_submit_own(n->remote, r, id, e);
    pthread_mutex_unlock(&n->sched_mutex);
    if (rc == OK)
        inbox_wake(n->inbox);
    return rc;
}

bool node_cancel(struct node *n, uint64_t id)
{
    if (!is_first(n))
        return entry_cancel(n->entry, id);
    if (frame_entry_rank(id) != 0)
        return false;
    pthread_mutex_lock(&n->sched_mutex);
    bool found = sched_cancel(n->sched, id);
    pthread_mutex_unlock(&n->sched_mutex);
    return found;
}

void node_stats_get(struct node *n, struct node_stats *out)
{
    *out = (struct node_stats){
        .n_steps = atomic_load(&n->n_steps), .n_tok = atomic_load(&n->n_tok), .busy_ns = atomic_load(&n->busy_ns)};
    if (n->edges) {
        edges_stats(n->edges, EDGES_PREDECESSOR, &out->predecessor);
        edges_stats(n->edges, EDGES_SUCCESSOR, &out->successor);
    }
    if (n->sched) {
        pthread_mutex_lock(&n->sched_mutex);
        sched_count(n->sched, &out->sched);
        pthread_mutex_unlock(&n->sched_mutex);
    }
    entry_stats_get(n->entry, &out->requests);
}

void node_ring_state(struct node *n, struct node_ring *out)
{
    pthread_mutex_lock(&n->mutex);
    uint64_t since = n->view_ns;
    out->ready = n->ready && !hangs(n);
    out->counts = n->view.counts;
    memcpy(out->rows, n->view.rows, sizeof out->rows);
    pthread_mutex_unlock(&n->mutex);
    out->n_ranks = n->c.m->n_ranks;
    out->age_ms = n->edges && since == 0 ? UINT64_MAX : n->edges ? (clock_now_ns() - since) / CLOCK_NS_PER_MS : 0;
    own_row(n, &out->rows[n->c.rank]);
    if (is_first(n))
        own_counts(n, &out->counts);
}

uint16_t node_port(const struct node *n)
{
    return n->edges ? edges_port(n->edges) : 0;
}

/* --- life ---------------------------------------------------------------------------------------- */

static enum err_code make_memory(struct node *n, struct err *e)
{
    const struct manifest *m = n->c.m;
    n->b = (struct batch){.cap_entries = m->n_slots, .cap_tok = m->n_batch, .n_embd = m->n_embd};
    n->b.entries = calloc(m->n_slots, sizeof *n->b.entries);
    n->b.results = calloc(m->n_slots, sizeof *n->b.results);
    n->b.tokens = calloc(m->n_batch, sizeof *n->b.tokens);
    n->b.rows = malloc((size_t)m->n_batch * m->n_embd * sizeof *n->b.rows);
    n->starts = calloc(m->n_slots, sizeof *n->starts);
    n->announced = calloc(m->n_slots, sizeof *n->announced);
    if (!n->b.entries || !n->b.results || !n->b.tokens || !n->b.rows || !n->starts || !n->announced)
        return err_set(e, ERR_NOMEM, "out of memory for steps of %u tokens", m->n_batch);
    return inbox_new(INBOX_SPARE + 2 * m->n_slots, &n->inbox, e);
}

static enum err_code make_sched(struct node *n, struct err *e)
{
    const struct manifest *m = n->c.m;
    struct sched_limits lim = {.n_slots = m->n_slots,
                               .n_ctx = m->n_ctx,
                               .n_vocab = m->n_vocab,
                               .n_batch = m->n_batch,
                               .max_steps = n->c.max_steps,
                               .max_waiting = n->c.max_waiting,
                               .n_prefill = n->c.n_prefill,
                               .step_cost = n->c.step_cost,
                               .bounded_rewind = n->c.stage.bounded_rewind,
                               .n_checkpoints = n->c.stage.n_checkpoints};
    enum err_code rc = sched_new(&lim, &n->sched, e);
    return rc == OK ? remote_new(n->sched, n->entry, m->n_slots + n->c.max_waiting + 1, &n->remote, e) : rc;
}

/* Room for every step that may be in flight, and then some. */
static uint32_t queue_bytes(const struct node *n)
{
    uint64_t step = FRAME_HEADER_BYTES + 64 + (uint64_t)n->c.m->n_batch * (n->c.m->n_embd + 1) * 4;
    uint64_t room = step * (n->c.max_steps + 2);
    return room < LINK_QUEUE_BYTES ? LINK_QUEUE_BYTES : room > UINT32_MAX ? UINT32_MAX : (uint32_t)room;
}

static enum err_code start_all(struct node *n, struct err *e)
{
    if (n->c.link.queue_bytes == 0)
        n->c.link.queue_bytes = queue_bytes(n);
    /* The prompts of all nodes may meet in one queue: together they leave half of it to the steps. */
    struct entry_config ec = {
        .rank = n->c.rank, .lim = n->lim, .max_unheard = n->c.link.queue_bytes / 2 / n->c.m->n_ranks};
    enum err_code rc = entry_new(&ec, &n->entry, e);
    if (rc == OK)
        rc = make_memory(n, e);
    if (rc == OK && is_first(n))
        rc = make_sched(n, e);
    if (rc != OK)
        return rc;
    n->last_news_ns = n->broken_ns = clock_now_ns();
    atomic_store(&n->turn_ns, n->broken_ns);
    if (n->c.m->n_ranks > 1) {
        struct edges_config c = {.m = n->c.m,
                                 .rank = n->c.rank,
                                 .secret = n->c.secret,
                                 .listen_addr = n->c.listen_addr,
                                 .listen_fd = n->c.listen_fd,
                                 .link = n->c.link,
                                 .ctx = n,
                                 .on_frame = on_frame,
                                 .on_state = on_state};
        rc = edges_start(&c, &n->edges, e);
        if (rc != OK)
            return rc;
    } else {
        n->ready = true;
    }
    rc = thread_start(&n->thread, "kv-compute", compute, n, e);
    n->started = rc == OK;
    return rc;
}

enum err_code node_start(const struct node_config *config, struct node **out, struct err *e)
{
    if (config->rank >= config->m->n_ranks)
        return err_set(e, ERR_ARG, "rank %u is not in a ring of %u", config->rank, config->m->n_ranks);
    struct node *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(e, ERR_NOMEM, "out of memory");
    n->c = *config;
    const struct manifest *m = n->c.m;
    n->lim =
        (struct frame_limits){.n_slots = m->n_slots, .n_ctx = m->n_ctx, .n_vocab = m->n_vocab, .n_ranks = m->n_ranks};
    n->c.max_steps = n->c.max_steps ? n->c.max_steps : m->n_ranks;
    n->c.max_waiting = n->c.max_waiting ? n->c.max_waiting : 64;
    n->c.stall_ms = n->c.stall_ms ? n->c.stall_ms : NODE_STALL_MS;
    pthread_mutex_init(&n->mutex, NULL);
    pthread_mutex_init(&n->sched_mutex, NULL);
    thread_cond_init(&n->turned);
    enum err_code rc = start_all(n, e);
    if (rc != OK) {
        node_stop(n);
        return rc;
    }
    *out = n;
    return OK;
}

void node_stop(struct node *n)
{
    if (!n)
        return;
    if (n->inbox)
        inbox_close(n->inbox);
    if (n->started)
        pthread_join(n->thread, NULL);
    edges_stop(n->edges, OK, "the node stops");
    sched_free(n->sched);
    remote_free(n->remote);
    entry_free(n->entry);
    inbox_free(n->inbox);
    free(n->announced);
    free(n->starts);
    free(n->b.entries);
    free(n->b.results);
    free(n->b.tokens);
    free(n->b.rows);
    buf_free(&n->out);
    pthread_cond_destroy(&n->turned);
    pthread_mutex_destroy(&n->mutex);
    pthread_mutex_destroy(&n->sched_mutex);
    free(n);
}
