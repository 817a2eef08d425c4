/* SPDX-License-Identifier: MIT
 *
 * The thread that computes indexes, one model after the other, in the order in which they were found. It reads the
 * model's gguf, which does not change, and writes what belongs to it until the model's state says that it is done.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "shard/origin_impl.h"

#include <stdio.h>
#include <string.h>

#define WAIT_MS 1000u

static bool go_on(void *ctx, uint64_t done, uint64_t total)
{
    const struct origin_model *m = ctx;
    (void)done;
    (void)total;
    return !atomic_load(&m->o->stop) && atomic_load(&m->listed);
}

static enum err_code make_json(struct origin_model *m, struct err *e)
{
    struct model_sizes s;
    enum err_code rc = model_sizes_read(m->g, &m->h, &s, e);
    if (rc != OK)
        return rc;
    rc = index_write(m->g, &m->h, &s, &m->x, &m->kvi, e);
    model_sizes_fini(&s);
    if (rc == OK && m->kvi.failed)
        rc = err_set(e, ERR_NOMEM, "out of memory for the index");
    return rc;
}

static enum err_code compute(struct origin_model *m, struct err *e)
{
    struct slice_label label;
    enum err_code rc = slice_label_read(m->g, &label, e);
    if (rc != OK)
        return rc;
    m->stage_file = label.stage_file;
    if (label.stage_file) {
        rc = slice_model_id(m->g, go_on, m, m->id, e);
    } else {
        rc = index_cached(m->g, go_on, m, &m->x, e);
        if (rc == OK) {
            memcpy(m->id, m->x.model_id, DIGEST_BYTES);
            rc = make_json(m, e);
        }
        if (rc == OK)
            origin_etag(&m->kvi, m->kvi_etag);
    }
    for (uint32_t i = 0; rc == OK && i < m->n_files; i++) {
        if (!origin_file_same(m, i))
            rc = err_set(e, ERR_STALE, "%s was changed while it was read", m->files[i].name);
    }
    return rc;
}

static void work_on(struct origin_model *m)
{
    struct err e;
    if (!go_on(m, 0, 0))
        return;
    const enum err_code rc = compute(m, &e);
    if (rc != OK) {
        snprintf(m->why, sizeof m->why, "%s", e.msg);
        if (rc != ERR_CANCELLED)
            log_warn("origin", "no index of %s: %s", m->files[0].name, e.msg);
    }
    atomic_store(&m->state, rc == OK ? ORIGIN_INDEX_READY : ORIGIN_INDEX_NONE);
}

static void *run(void *arg)
{
    struct origin *o = arg;
    pthread_mutex_lock(&o->mutex);
    while (!atomic_load(&o->stop)) {
        struct origin_model *m = o->waiting;
        if (!m) {
            thread_cond_wait(&o->cond, &o->mutex, clock_deadline_ms(WAIT_MS));
            continue;
        }
        o->waiting = m->next_waiting;
        pthread_mutex_unlock(&o->mutex);
        work_on(m);
        origin_drop(m);
        pthread_mutex_lock(&o->mutex);
    }
    pthread_mutex_unlock(&o->mutex);
    return NULL;
}

void origin_index_want(struct origin_model *m)
{
    struct origin *o = m->o;
    origin_hold(m);
    pthread_mutex_lock(&o->mutex);
    struct origin_model **at = &o->waiting;
    while (*at)
        at = &(*at)->next_waiting;
    *at = m;
    pthread_cond_signal(&o->cond);
    pthread_mutex_unlock(&o->mutex);
}

enum err_code origin_index_start(struct origin *o, struct err *e)
{
    const enum err_code rc = thread_start(&o->thread, "kv-origin", run, o, e);
    o->has_thread = rc == OK;
    return rc;
}

void origin_index_stop(struct origin *o)
{
    pthread_mutex_lock(&o->mutex);
    atomic_store(&o->stop, true);
    pthread_cond_signal(&o->cond);
    pthread_mutex_unlock(&o->mutex);
    if (o->has_thread)
        pthread_join(o->thread, NULL);
    while (o->waiting) {
        struct origin_model *m = o->waiting;
        o->waiting = m->next_waiting;
        origin_drop(m);
    }
}
