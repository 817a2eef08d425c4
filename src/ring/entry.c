/* SPDX-License-Identifier: MIT
 *
 * One table under one mutex, which is also held while callbacks run and while frames of these requests are handed to
 * the link: the frames of a request are sent in order, and after entry_cancel nothing of it happens any more. The
 * link's own locks are taken inside of it, never the other way round.
 */
#include "ring/entry.h"

#include "crypto/seal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 256u
#define ID_BITS   48u
#define RANDOM_ID ((1ull << 40) - 1) /* ids begin below it: a node that starts again does not use its ids again */

struct own {
    uint64_t id;
    void *ctx;
    void (*on_token)(void *ctx, uint64_t id, const struct batch_result *r);
    void (*on_end)(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text);
    size_t n_unheard; /* bytes sent; 0 once rank 0 has said something about it */
    struct own *next;
};

struct entry {
    struct entry_config c;
    pthread_mutex_t mutex; /* guards what follows */
    struct own *bucket[N_BUCKETS];
    uint32_t n_own;
    uint64_t next_id;
    size_t n_unheard;
    bool whole;
    struct edges *edges; /* of the latest request */
    struct entry_stats stats;
};

enum err_code entry_new(const struct entry_config *config, struct entry **out, struct err *e)
{
    struct entry *en = calloc(1, sizeof *en);
    if (!en)
        return err_set(e, ERR_NOMEM, "out of memory");
    uint64_t random;
    seal_random(&random, sizeof random);
    en->c = *config;
    en->next_id = ((uint64_t)config->rank << ID_BITS) | (random & RANDOM_ID) | 1;
    pthread_mutex_init(&en->mutex, NULL);
    *out = en;
    return OK;
}

void entry_stats_get(struct entry *en, struct entry_stats *out)
{
    pthread_mutex_lock(&en->mutex);
    *out = en->stats;
    pthread_mutex_unlock(&en->mutex);
}

/* --- the table; with the mutex ------------------------------------------------------------------- */

static struct own **place_of(struct entry *en, uint64_t id)
{
    struct own **p = &en->bucket[id % N_BUCKETS];
    while (*p && (*p)->id != id)
        p = &(*p)->next;
    return p;
}

static struct own *add(struct entry *en, const struct sched_request *r)
{
    struct own *o = malloc(sizeof *o);
    if (!o)
        return NULL;
    *o = (struct own){.id = en->next_id++, .ctx = r->ctx, .on_token = r->on_token, .on_end = r->on_end};
    struct own **p = &en->bucket[o->id % N_BUCKETS];
    o->next = *p;
    *p = o;
    en->n_own++;
    en->stats.n_submitted++;
    return o;
}

static void heard(struct entry *en, struct own *o)
{
    en->n_unheard -= o->n_unheard;
    o->n_unheard = 0;
}

static void take_out(struct entry *en, struct own **p)
{
    struct own *o = *p;
    heard(en, o);
    *p = o->next;
    en->n_own--;
    free(o);
}

static void undo(struct entry *en, uint64_t id)
{
    struct own **p = place_of(en, id);
    if (!*p)
        return;
    take_out(en, p);
    en->stats.n_submitted--;
}

static void token(struct entry *en, uint64_t id, const struct batch_result *r)
{
    struct own *o = *place_of(en, id);
    if (!o)
        return;
    heard(en, o);
    en->stats.n_tok++;
    o->on_token(o->ctx, id, r);
}

static bool end(struct entry *en, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct own **p = place_of(en, id);
    if (!*p)
        return false;
    struct own o = **p;
    take_out(en, p);
    en->stats.n_ended[reason]++;
    o.on_end(o.ctx, id, reason, code, text);
    return true;
}

/* Ends all; out, when not NULL, gets what tells rank 0 so. */
static void end_all(struct entry *en, enum sched_reason reason, enum err_code code, const char *text, struct buf *out)
{
    for (uint32_t i = 0; i < N_BUCKETS; i++) {
        while (en->bucket[i]) {
            uint64_t id = en->bucket[i]->id;
            if (out && frame_cancel_put(out, id, NULL) != OK)
                out->failed = true;
            end(en, id, reason, code, text);
        }
    }
}

/* --- rank 0 -------------------------------------------------------------------------------------- */

enum err_code entry_add(struct entry *en, const struct sched_request *r, uint64_t *id, struct err *e)
{
    pthread_mutex_lock(&en->mutex);
    struct own *o = add(en, r);
    if (o)
        *id = o->id;
    pthread_mutex_unlock(&en->mutex);
    return o ? OK : err_set(e, ERR_NOMEM, "out of memory for a request");
}

void entry_undo(struct entry *en, uint64_t id)
{
    pthread_mutex_lock(&en->mutex);
    undo(en, id);
    pthread_mutex_unlock(&en->mutex);
}

void entry_token(struct entry *en, uint64_t id, const struct batch_result *r)
{
    pthread_mutex_lock(&en->mutex);
    token(en, id, r);
    pthread_mutex_unlock(&en->mutex);
}

void entry_end(struct entry *en, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    pthread_mutex_lock(&en->mutex);
    end(en, id, reason, code, text);
    pthread_mutex_unlock(&en->mutex);
}

/* --- other ranks --------------------------------------------------------------------------------- */

/* Hands frames to the link. false: something is missing in the stream now, which nobody at its other end could notice;
 * *why says what. A link that is gone takes its stream along. */
static bool send_out(struct edges *x, const struct buf *out, struct err *why)
{
    if (out->failed) {
        err_set(why, ERR_NOMEM, "out of memory for a frame");
        return false;
    }
    return out->len == 0 || edges_send(x, out->data, out->len, why) == OK || why->code == ERR_CLOSED;
}

void entry_open(struct entry *en)
{
    pthread_mutex_lock(&en->mutex);
    en->whole = true;
    pthread_mutex_unlock(&en->mutex);
}

void entry_break(struct entry *en, enum err_code code, const char *text)
{
    struct buf out = {0};
    struct err why;
    pthread_mutex_lock(&en->mutex);
    en->whole = false;
    struct edges *x = en->edges;
    end_all(en, SCHED_FAILED, code, text, &out);
    bool sent = send_out(x, &out, &why);
    pthread_mutex_unlock(&en->mutex);
    if (!sent)
        edges_drop(x, EDGES_SUCCESSOR, 0, why.code, why.msg);
    buf_free(&out);
}

static enum err_code may_enter(const struct entry *en, size_t n_bytes, struct err *e)
{
    if (!en->whole)
        return err_set(e, ERR_CLOSED, "the ring is not whole; try again later");
    if (en->n_own >= ENTRY_MAX_REQUESTS)
        return err_set(e, ERR_BUSY, "%u requests of this node are in the ring already; try again later", en->n_own);
    if (en->n_unheard > 0 && en->n_unheard + n_bytes > en->c.max_unheard)
        return err_set(e, ERR_BUSY, "prompts of %zu bytes are on their way already; try again later", en->n_unheard);
    return OK;
}

enum err_code entry_submit(struct entry *en, struct edges *x, const struct sched_request *r, uint64_t *id,
                           struct err *e)
{
    struct buf out = {0};
    enum err_code rc = frame_submit_check(&en->c.lim, r, e);
    if (rc != OK)
        return rc;
    pthread_mutex_lock(&en->mutex);
    rc = may_enter(en, (size_t)r->n_tokens * sizeof *r->tokens, e);
    struct own *o = rc == OK ? add(en, r) : NULL;
    if (rc == OK && !o)
        rc = err_set(e, ERR_NOMEM, "out of memory for a request");
    if (o) {
        rc = frame_submit_put(&out, o->id, r, e);
        if (rc == OK)
            rc = edges_send(x, out.data, out.len, e);
        if (rc == OK) {
            en->edges = x;
            en->n_unheard += o->n_unheard = out.len;
            *id = o->id;
        } else {
            undo(en, o->id);
        }
    }
    pthread_mutex_unlock(&en->mutex);
    buf_free(&out);
    return rc;
}

bool entry_cancel(struct entry *en, uint64_t id)
{
    struct buf out = {0};
    struct err why = {0};
    bool sent = true;
    pthread_mutex_lock(&en->mutex);
    struct edges *x = en->edges;
    bool found = end(en, id, SCHED_CANCELLED, OK, "");
    if (found) {
        if (frame_cancel_put(&out, id, NULL) != OK)
            out.failed = true;
        sent = send_out(x, &out, &why);
    }
    pthread_mutex_unlock(&en->mutex);
    if (!sent)
        edges_drop(x, EDGES_SUCCESSOR, 0, why.code, why.msg);
    buf_free(&out);
    return found;
}

void entry_free(struct entry *en)
{
    if (!en)
        return;
    pthread_mutex_lock(&en->mutex);
    end_all(en, SCHED_CANCELLED, OK, "", NULL);
    pthread_mutex_unlock(&en->mutex);
    pthread_mutex_destroy(&en->mutex);
    free(en);
}

struct sorting {
    struct entry *en;
    struct frame_events rest; /* for ranks behind this one */
    uint32_t astray;          /* a rank that they have passed; 0: none */
};

static void sort_event(void *ctx, const struct frame_event *ev, const uint8_t *bytes, size_t len)
{
    struct sorting *s = ctx;
    uint32_t rank = frame_entry_rank(ev->request_id);
    if (rank > s->en->c.rank)
        frame_events_add_raw(&s->rest, bytes, len);
    else if (rank < s->en->c.rank)
        s->astray = rank;
    else if (ev->is_end)
        end(s->en, ev->request_id, ev->reason, ev->code, ev->text);
    else
        token(s->en, ev->request_id, &ev->token);
}

enum err_code entry_events(struct entry *en, struct edges *x, const uint8_t *payload, size_t len, struct err *e)
{
    struct sorting s = {.en = en};
    struct err why;
    pthread_mutex_lock(&en->mutex);
    enum err_code rc = frame_events_get(payload, len, &en->c.lim, sort_event, &s, e);
    pthread_mutex_unlock(&en->mutex);
    frame_events_end(&s.rest);
    if (rc == OK && !send_out(x, &s.rest.out, &why))
        edges_drop(x, EDGES_SUCCESSOR, 0, why.code, why.msg);
    buf_free(&s.rest.out);
    if (rc == OK && s.astray)
        rc = err_set(e, ERR_PROTOCOL, "an event for rank %u came to rank %u, which is behind it", s.astray, en->c.rank);
    return rc;
}
