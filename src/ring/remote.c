/* SPDX-License-Identifier: MIT */
#include "ring/remote.h"

#include <stdio.h>
#include <stdlib.h>

struct remote {
    struct sched *sched;
    struct entry *own;
    struct frame_events events;
    uint64_t *ids; /* [max] of requests from elsewhere */
    uint32_t n, max;
    /* While requests are being ended by sched_cancel: */
    bool quiet;            /* nobody has to be told */
    const struct err *why; /* not NULL: they fail, with this */
};

enum err_code remote_new(struct sched *s, struct entry *own, uint32_t max, struct remote **out, struct err *e)
{
    struct remote *rm = calloc(1, sizeof *rm);
    uint64_t *ids = calloc(max, sizeof *ids);
    if (!rm || !ids) {
        free(rm);
        free(ids);
        return err_set(e, ERR_NOMEM, "out of memory for %u requests", max);
    }
    *rm = (struct remote){.sched = s, .own = own, .ids = ids, .max = max};
    *out = rm;
    return OK;
}

void remote_free(struct remote *rm)
{
    if (!rm)
        return;
    buf_free(&rm->events.out);
    free(rm->ids);
    free(rm);
}

/* --- callbacks of the scheduler ------------------------------------------------------------------ */

static uint32_t index_of(const struct remote *rm, uint64_t id)
{
    uint32_t i = 0;
    while (i < rm->n && rm->ids[i] != id)
        i++;
    return i;
}

static void on_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct remote *rm = ctx;
    if (frame_entry_rank(id) == 0)
        entry_token(rm->own, id, r);
    else
        frame_events_add(&rm->events, &(struct frame_event){.request_id = id, .token = *r});
}

static void add_end(struct remote *rm, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct frame_event ev = {.request_id = id, .is_end = true, .reason = reason, .code = code};
    snprintf(ev.text, sizeof ev.text, "%.200s", text);
    frame_events_add(&rm->events, &ev);
}

static void on_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct remote *rm = ctx;
    if (frame_entry_rank(id) == 0) {
        entry_end(rm->own, id, reason, code, text);
        return;
    }
    uint32_t i = index_of(rm, id);
    if (i < rm->n)
        rm->ids[i] = rm->ids[--rm->n];
    if (rm->why)
        add_end(rm, id, SCHED_FAILED, rm->why->code, rm->why->msg);
    else if (!rm->quiet)
        add_end(rm, id, reason, code, text);
}

static enum err_code submit(struct remote *rm, uint64_t id, const struct sched_request *r, struct err *e)
{
    struct sched_request mine = *r;
    mine.ctx = rm;
    mine.on_token = on_token;
    mine.on_end = on_end;
    return sched_submit(rm->sched, id, &mine, e);
}

/* --- requests ------------------------------------------------------------------------------------ */

enum err_code remote_submit_own(struct remote *rm, const struct sched_request *r, uint64_t *id, struct err *e)
{
    uint64_t mine;
    enum err_code rc = entry_add(rm->own, r, &mine, e);
    if (rc != OK)
        return rc;
    rc = submit(rm, mine, r, e);
    if (rc == OK)
        *id = mine;
    else
        entry_undo(rm->own, mine);
    return rc;
}

static enum err_code take_in(struct remote *rm, uint64_t id, const struct sched_request *r, bool ready, struct err *e)
{
    if (!ready)
        return err_set(e, ERR_CLOSED, "the ring is not whole; try again later");
    if (rm->n == rm->max)
        return err_set(e, ERR_BUSY, "%u requests are in the ring already; try again later", rm->n);
    enum err_code rc = submit(rm, id, r, e);
    if (rc == OK)
        rm->ids[rm->n++] = id;
    return rc;
}

enum err_code remote_submit(struct remote *rm, uint64_t id, const uint8_t *payload, size_t len,
                            const struct frame_limits *lim, bool ready, struct err *e)
{
    struct sched_request r;
    struct err why;
    int32_t *ids;
    if (index_of(rm, id) < rm->n)
        return err_set(e, ERR_PROTOCOL, "request %llu is there already", (unsigned long long)id);
    enum err_code rc = frame_submit_get(payload, len, lim, &r, &ids, e);
    if (rc == ERR_NOMEM) {
        add_end(rm, id, SCHED_FAILED, rc, e->msg);
        return OK;
    }
    if (rc != OK)
        return rc;
    rc = take_in(rm, id, &r, ready, &why);
    free(ids);
    if (rc != OK)
        add_end(rm, id, SCHED_FAILED, rc, why.msg);
    return OK;
}

void remote_cancel(struct remote *rm, uint64_t id)
{
    if (index_of(rm, id) == rm->n)
        return; /* it has ended meanwhile */
    rm->quiet = true;
    sched_cancel(rm->sched, id);
    rm->quiet = false;
}

void remote_fail_all(struct remote *rm, enum err_code code, const char *text)
{
    struct err why;
    err_set(&why, code, "%s", text);
    rm->why = &why;
    while (rm->n > 0) {
        uint64_t id = rm->ids[rm->n - 1];
        if (!sched_cancel(rm->sched, id))
            rm->n--; /* unknown there: it cannot be, but must not go on for ever */
    }
    rm->why = NULL;
}

enum err_code remote_flush(struct remote *rm, struct edges *x, struct err *e)
{
    enum err_code rc = OK;
    frame_events_end(&rm->events);
    if (rm->events.out.failed)
        rc = err_set(e, ERR_NOMEM, "out of memory for events");
    else if (rm->events.out.len > 0)
        rc = edges_send(x, rm->events.out.data, rm->events.out.len, e);
    frame_events_clear(&rm->events);
    return rc;
}
