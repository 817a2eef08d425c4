/* SPDX-License-Identifier: MIT */
#include "ring/edges.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MAX_MS 2000u
#define DIAL_MS      2500u /* a stop may have to wait for a dial: less than local.c waits for a node */
#define BRIEF_MS     1000u /* a link that lives no longer than this began in vain */

/* What a link's callbacks get as their context. */
struct tie {
    struct edges *x;
    struct link *link;
    enum edges_end end;
    uint64_t generation, since_ns;
    bool up;          /* started */
    atomic_bool live; /* the end's; its reader looks without the mutex, which is held while others send */
    struct tie *next; /* in the list of links to be closed */
};

struct end {
    uint32_t edge;
    bool dial;       /* this node dials it */
    struct tie *tie; /* the live link, NULL when there is none */
    uint64_t next_dial_ns;
    uint32_t pause_ms;                      /* after a dial that fails */
    uint32_t brief_ms;                      /* after a link that was brief */
    struct link_stats past;                 /* of links that are gone */
    struct err lost;                        /* why the last of them went down; OK: there was none */
    char last[sizeof((struct err){0}.msg)]; /* last reason a dial failed: said once, not at every try */
};

struct edges {
    struct edges_config c;
    struct link_listener *listener;
    pthread_t keeper;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t wake;
    struct end end[EDGES_END_COUNT];
    struct tie *dead; /* the keeper closes them */
    uint64_t n_links; /* ever */
    bool stop;
    bool started;
};

static const char *end_name(enum edges_end end)
{
    return end == EDGES_PREDECESSOR ? "predecessor" : "successor";
}

static uint32_t end_rank(const struct edges *x, enum edges_end end)
{
    uint32_t n = x->c.m->n_ranks;
    return end == EDGES_PREDECESSOR ? (x->c.rank + n - 1) % n : (x->c.rank + 1) % n;
}

static void add_stats(struct link_stats *to, const struct tie *tie)
{
    struct link_stats s;
    link_stats_get(tie->link, &s);
    to->frames_in += s.frames_in;
    to->frames_out += s.frames_out;
    to->bytes_in += s.bytes_in;
    to->bytes_out += s.bytes_out;
}

static uint32_t longer(uint32_t pause_ms)
{
    return pause_ms * 2 < RETRY_MAX_MS ? pause_ms * 2 : RETRY_MAX_MS;
}

/* A link is gone: the next dial is due at once, unless it was brief. A neighbour that is there, but with which no link
 * lasts, would else be dialed without end. With the mutex. */
static void plan_dial(const struct edges *x, struct end *end, uint64_t since_ns)
{
    bool brief = clock_now_ns() - since_ns < BRIEF_MS * CLOCK_NS_PER_MS;
    end->next_dial_ns = clock_deadline_ms(brief ? end->brief_ms : 0);
    end->brief_ms = brief ? longer(end->brief_ms) : x->c.retry_ms;
    end->pause_ms = x->c.retry_ms;
}

/* --- callbacks of links -------------------------------------------------------------------------- */

/* Takes the live link of an end away, if it is this one. With the mutex. */
static bool retire(struct edges *x, struct tie *tie, enum err_code code, const char *text)
{
    struct end *end = &x->end[tie->end];
    if (end->tie != tie)
        return false;
    end->tie = NULL;
    atomic_store(&tie->live, false);
    tie->next = x->dead;
    x->dead = tie;
    plan_dial(x, end, tie->since_ns);
    err_set(&end->lost, code == OK ? ERR_CLOSED : code, "rank %u lost its %s: %s", x->c.rank, end_name(tie->end),
            text[0] ? text : err_text(code));
    pthread_cond_signal(&x->wake);
    return true;
}

void edges_drop(struct edges *x, enum edges_end end, uint64_t generation, enum err_code code, const char *text)
{
    pthread_mutex_lock(&x->mutex);
    struct tie *tie = x->end[end].tie;
    bool was = tie && (generation == 0 || tie->generation == generation);
    if (was) {
        generation = tie->generation;
        link_bye(tie->link, code, x->c.rank, text);
        retire(x, tie, code, text);
    }
    pthread_mutex_unlock(&x->mutex);
    if (was)
        x->c.on_state(x->c.ctx, end, generation, false, code, text);
}

static void on_frame(void *ctx, const struct frame_header *h, const uint8_t *payload)
{
    struct tie *tie = ctx;
    struct edges *x = tie->x;
    struct err e;
    enum err_code rc;
    if (h->type == FRAME_BYE)
        return; /* on_down follows and has its text */
    if (!atomic_load(&tie->live))
        return; /* the keeper has not closed it yet */
    if (tie->end == EDGES_PREDECESSOR)
        rc = x->c.on_frame(x->c.ctx, x, tie->generation, h, payload, &e);
    else
        rc = err_set(&e, ERR_PROTOCOL, "the successor sent a frame; they travel only from predecessor to successor");
    if (rc != OK)
        edges_drop(x, tie->end, tie->generation, rc, e.msg);
}

static void on_down(void *ctx, enum err_code code, const char *text)
{
    struct tie *tie = ctx;
    struct edges *x = tie->x;
    pthread_mutex_lock(&x->mutex);
    enum edges_end end = tie->end;
    uint64_t generation = tie->generation;
    bool was = retire(x, tie, code, text);
    pthread_mutex_unlock(&x->mutex);
    if (was)
        x->c.on_state(x->c.ctx, end, generation, false, code, text);
}

/* A new link for an end; takes it over. */
static void attach(struct edges *x, enum edges_end which, struct link *link)
{
    struct tie *tie = calloc(1, sizeof *tie);
    struct err e;
    struct link_callbacks cb = {.ctx = tie, .on_frame = on_frame, .on_down = on_down};
    if (!tie) {
        log_error("ring", "edge=%u out of memory for a link", x->end[which].edge);
        link_close(link);
        pthread_mutex_lock(&x->mutex);
        plan_dial(x, &x->end[which], clock_now_ns());
        pthread_mutex_unlock(&x->mutex);
        return;
    }
    *tie = (struct tie){.x = x, .link = link, .end = which, .since_ns = clock_now_ns()};
    pthread_mutex_lock(&x->mutex);
    uint64_t replaced = x->end[which].tie ? x->end[which].tie->generation : 0, generation = 0;
    if (replaced)
        retire(x, x->end[which].tie, ERR_CLOSED, "replaced by a new link");
    bool stop = x->stop;
    if (!stop) {
        x->end[which].tie = tie;
        atomic_store(&tie->live, true);
        tie->generation = generation = ++x->n_links;
    }
    pthread_mutex_unlock(&x->mutex);
    if (stop) {
        link_close(link);
        free(tie);
        return;
    }
    if (replaced)
        x->c.on_state(x->c.ctx, which, replaced, false, ERR_CLOSED, "replaced by a new link");
    /* With the mutex: the keeper cannot close the link, nor a callback of it retire it, before it counts as up. */
    pthread_mutex_lock(&x->mutex);
    enum err_code rc = ERR_CLOSED;
    if (x->end[which].tie == tie) {
        rc = link_start(link, &cb, &x->c.link, &e);
        tie->up = rc == OK;
        if (rc != OK) {
            log_error("ring", "edge=%u cannot start the link: %s", x->end[which].edge, e.msg);
            retire(x, tie, rc, e.msg);
        }
    }
    pthread_mutex_unlock(&x->mutex);
    if (rc == OK)
        x->c.on_state(x->c.ctx, which, generation, true, OK, "");
}

/* --- listening ----------------------------------------------------------------------------------- */

static enum err_code edge_wanted(void *ctx, uint32_t edge, struct handshake_hello *mine, struct key_public *expected,
                                 struct err *e)
{
    struct edges *x = ctx;
    for (int i = 0; i < EDGES_END_COUNT; i++) {
        if (x->end[i].edge == edge && !x->end[i].dial)
            return handshake_hello_of(x->c.m, x->c.rank, edge, mine, expected, e);
    }
    return err_set(e, ERR_MISMATCH, "rank %u does not listen for edge %u", x->c.rank, edge);
}

static void on_link(void *ctx, uint32_t edge, struct link *link)
{
    struct edges *x = ctx;
    for (int i = 0; i < EDGES_END_COUNT; i++) {
        if (x->end[i].edge == edge && !x->end[i].dial) {
            attach(x, (enum edges_end)i, link);
            return;
        }
    }
    link_close(link);
}

/* --- the keeper ---------------------------------------------------------------------------------- */

static void close_dead(struct edges *x)
{
    for (;;) {
        pthread_mutex_lock(&x->mutex);
        struct tie *tie = x->dead;
        if (tie) {
            x->dead = tie->next;
            add_stats(&x->end[tie->end].past, tie);
        }
        pthread_mutex_unlock(&x->mutex);
        if (!tie)
            return;
        link_close(tie->link);
        free(tie);
    }
}

/* Somebody has to do something about it. All else is a neighbour that is not there yet, or that leaves. */
static bool will_not_heal(enum err_code code)
{
    return code == ERR_AUTH || code == ERR_MISMATCH || code == ERR_PROTOCOL || code == ERR_UNSUPPORTED ||
           code == ERR_ARG;
}

static void dial(struct edges *x, enum edges_end which)
{
    struct end *end = &x->end[which];
    struct handshake_hello mine;
    struct key_public expected;
    struct link *link = NULL;
    struct err e;
    uint32_t peer = end_rank(x, which);
    const char *addr = x->c.m->ranks[peer].addr;
    enum err_code rc = handshake_hello_of(x->c.m, x->c.rank, end->edge, &mine, &expected, &e);
    if (rc == OK) {
        struct link_dial_config c = {.addr = addr,
                                     .deadline_ns = clock_deadline_ms(DIAL_MS),
                                     .secret = x->c.secret,
                                     .mine = &mine,
                                     .expected = &expected};
        rc = link_dial(&c, &link, &e);
    }
    if (rc == OK) {
        end->last[0] = 0;
        attach(x, which, link);
        return;
    }
    if (strcmp(end->last, e.msg) != 0) {
        snprintf(end->last, sizeof end->last, "%s", e.msg);
        log_line(will_not_heal(e.code) ? LOG_WARN : LOG_INFO, "ring", "%s: rank %u (%s), the %s: %s", err_name(e.code),
                 peer, addr, end_name(which), e.msg);
    }
    pthread_mutex_lock(&x->mutex);
    end->next_dial_ns = clock_deadline_ms(end->pause_ms);
    end->pause_ms = longer(end->pause_ms);
    end->brief_ms = x->c.retry_ms;
    pthread_mutex_unlock(&x->mutex);
}

/* The end whose dial is due, or EDGES_END_COUNT; *next: when the next one is. With the mutex. */
static enum edges_end due(const struct edges *x, uint64_t *next)
{
    uint64_t now = clock_now_ns();
    *next = now + CLOCK_NS_PER_S;
    for (int i = 0; i < EDGES_END_COUNT; i++) {
        const struct end *end = &x->end[i];
        if (!end->dial || end->tie)
            continue;
        if (end->next_dial_ns <= now)
            return (enum edges_end)i;
        if (end->next_dial_ns < *next)
            *next = end->next_dial_ns;
    }
    return EDGES_END_COUNT;
}

static void *keep(void *arg)
{
    struct edges *x = arg;
    pthread_mutex_lock(&x->mutex);
    while (!x->stop) {
        uint64_t next;
        enum edges_end end = due(x, &next);
        if (x->dead || end != EDGES_END_COUNT) {
            bool dead = x->dead != NULL;
            pthread_mutex_unlock(&x->mutex);
            if (dead)
                close_dead(x);
            else
                dial(x, end);
            pthread_mutex_lock(&x->mutex);
            continue;
        }
        thread_cond_wait(&x->wake, &x->mutex, next);
    }
    pthread_mutex_unlock(&x->mutex);
    return NULL;
}

/* --- life ---------------------------------------------------------------------------------------- */

static enum err_code listen_start(struct edges *x, struct err *e)
{
    bool needed = !x->end[EDGES_PREDECESSOR].dial || !x->end[EDGES_SUCCESSOR].dial;
    if (!needed) {
        if (x->c.listen_fd >= 0)
            close(x->c.listen_fd);
        return OK;
    }
    if (!x->c.listen_addr && x->c.listen_fd < 0)
        return err_set(e, ERR_ARG, "a neighbour of rank %u dials it, so it needs an address to listen on", x->c.rank);
    struct link_listener_config c = {.secret = x->c.secret, .ctx = x, .edge = edge_wanted, .on_link = on_link};
    return link_listen(x->c.listen_addr, x->c.listen_addr ? -1 : x->c.listen_fd, &c, &x->listener, e);
}

enum err_code edges_start(const struct edges_config *config, struct edges **out, struct err *e)
{
    struct edges *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "out of memory");
    x->c = *config;
    if (!x->c.retry_ms)
        x->c.retry_ms = 100;
    const struct manifest *m = x->c.m;
    uint32_t before = (x->c.rank + m->n_ranks - 1) % m->n_ranks;
    x->end[EDGES_PREDECESSOR] = (struct end){.edge = before, .dial = m->ranks[before].dial == MANIFEST_DIAL_SUCCESSOR};
    x->end[EDGES_SUCCESSOR] =
        (struct end){.edge = x->c.rank, .dial = m->ranks[x->c.rank].dial == MANIFEST_DIAL_PREDECESSOR};
    for (int i = 0; i < EDGES_END_COUNT; i++)
        x->end[i].pause_ms = x->end[i].brief_ms = x->c.retry_ms;
    pthread_mutex_init(&x->mutex, NULL);
    thread_cond_init(&x->wake);
    enum err_code rc = listen_start(x, e);
    if (rc == OK) {
        rc = thread_start(&x->keeper, "kv-edges", keep, x, e);
        x->started = rc == OK;
    }
    if (rc != OK) {
        edges_stop(x, rc, "");
        return rc;
    }
    *out = x;
    return OK;
}

void edges_stop(struct edges *x, enum err_code code, const char *text)
{
    if (!x)
        return;
    pthread_mutex_lock(&x->mutex);
    x->stop = true;
    for (int i = 0; i < EDGES_END_COUNT; i++) {
        if (x->end[i].tie) {
            link_bye(x->end[i].tie->link, code, x->c.rank, text);
            retire(x, x->end[i].tie, code, text);
        }
    }
    pthread_cond_signal(&x->wake);
    pthread_mutex_unlock(&x->mutex);
    link_listener_close(x->listener);
    if (x->started)
        pthread_join(x->keeper, NULL);
    close_dead(x);
    pthread_cond_destroy(&x->wake);
    pthread_mutex_destroy(&x->mutex);
    free(x);
}

enum err_code edges_send(struct edges *x, const void *frames, size_t len, struct err *e)
{
    pthread_mutex_lock(&x->mutex);
    struct tie *tie = x->end[EDGES_SUCCESSOR].tie;
    enum err_code rc = tie ? link_send(tie->link, frames, len, e)
                           : err_set(e, ERR_CLOSED, "there is no link to rank %u", end_rank(x, EDGES_SUCCESSOR));
    pthread_mutex_unlock(&x->mutex);
    return rc;
}

uint64_t edges_generation(struct edges *x, enum edges_end end, struct err *lost)
{
    pthread_mutex_lock(&x->mutex);
    if (lost && x->end[end].lost.code != OK)
        *lost = x->end[end].lost;
    uint64_t g = x->end[end].tie && x->end[end].tie->up ? x->end[end].tie->generation : 0;
    pthread_mutex_unlock(&x->mutex);
    return g;
}

void edges_stats(struct edges *x, enum edges_end end, struct link_stats *out)
{
    pthread_mutex_lock(&x->mutex);
    *out = x->end[end].past;
    if (x->end[end].tie)
        add_stats(out, x->end[end].tie);
    for (const struct tie *tie = x->dead; tie; tie = tie->next) {
        if (tie->end == end)
            add_stats(out, tie);
    }
    pthread_mutex_unlock(&x->mutex);
}

uint16_t edges_port(const struct edges *x)
{
    return x->listener ? link_listener_port(x->listener) : 0;
}
