/* SPDX-License-Identifier: MIT */
#include "ring/inbox.h"

#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

#define PROBE_STATE_AT 12u /* nonce and hops come before the flags and the number of rows (docs/protocol.md) */
#define PROBE_STATE    4u

struct inbox {
    pthread_mutex_t mutex; /* guards all */
    pthread_cond_t cond;   /* a letter, or one of the flags */
    struct letter *letters;
    uint32_t n_letters;
    struct letter *first, *last, *unused; /* unused: last in, first out, so that few of the buffers ever grow */
    bool woken, closed;
};

enum err_code inbox_new(uint32_t n_letters, struct inbox **out, struct err *e)
{
    struct inbox *in = calloc(1, sizeof *in);
    struct letter *letters = calloc(n_letters, sizeof *letters);
    if (!in || !letters) {
        free(in);
        free(letters);
        return err_set(e, ERR_NOMEM, "out of memory for %u frames that wait", n_letters);
    }
    *in = (struct inbox){.letters = letters, .n_letters = n_letters};
    for (uint32_t i = 0; i < n_letters; i++) {
        letters[i].next = in->unused;
        in->unused = &letters[i];
    }
    pthread_mutex_init(&in->mutex, NULL);
    thread_cond_init(&in->cond);
    *out = in;
    return OK;
}

void inbox_free(struct inbox *in)
{
    if (!in)
        return;
    for (uint32_t i = 0; i < in->n_letters; i++)
        buf_free(&in->letters[i].payload);
    free(in->letters);
    pthread_cond_destroy(&in->cond);
    pthread_mutex_destroy(&in->mutex);
    free(in);
}

static void drop_unused(struct inbox *in, struct letter *l)
{
    l->next = in->unused;
    in->unused = l;
}

/* Does a probe say of the ring what the last letter says, which is a probe too? With the mutex. */
static bool repeats_last(const struct inbox *in, uint64_t generation, const struct frame_header *h,
                         const uint8_t *payload)
{
    const struct letter *l = in->last;
    return l && h->type == FRAME_PROBE && l->h.type == FRAME_PROBE && l->generation == generation &&
           l->payload.len == h->length && h->length >= PROBE_STATE_AT + PROBE_STATE &&
           memcmp(l->payload.data + PROBE_STATE_AT, payload + PROBE_STATE_AT, PROBE_STATE) == 0;
}

/* Takes a letter to fill, with the mutex. NULL: none is left. */
static struct letter *take_unused(struct inbox *in)
{
    struct letter *l = in->unused;
    if (l)
        in->unused = l->next;
    return l;
}

enum err_code inbox_put(struct inbox *in, uint64_t generation, const struct frame_header *h, const uint8_t *payload,
                        struct err *e)
{
    pthread_mutex_lock(&in->mutex);
    if (repeats_last(in, generation, h, payload)) {
        in->last->h = *h;
        memcpy(in->last->payload.data, payload, h->length);
        pthread_mutex_unlock(&in->mutex);
        return OK;
    }
    struct letter *l = take_unused(in);
    pthread_mutex_unlock(&in->mutex);
    if (!l)
        return err_set(e, ERR_LIMIT, "more frames than the ring allows wait here: %u", in->n_letters);
    l->h = *h;
    l->generation = generation;
    l->next = NULL;
    buf_clear(&l->payload);
    buf_put(&l->payload, payload, h->length);
    bool failed = l->payload.failed;
    pthread_mutex_lock(&in->mutex);
    if (failed)
        drop_unused(in, l);
    else if (in->last)
        in->last->next = l;
    else
        in->first = l;
    if (!failed)
        in->last = l;
    pthread_mutex_unlock(&in->mutex);
    if (failed)
        return err_set(e, ERR_NOMEM, "out of memory for a frame of %u bytes", h->length);
    pthread_cond_signal(&in->cond); /* unlocked: who wakes up can go on at once */
    return OK;
}

void inbox_wake(struct inbox *in)
{
    pthread_mutex_lock(&in->mutex);
    in->woken = true;
    pthread_cond_signal(&in->cond);
    pthread_mutex_unlock(&in->mutex);
}

void inbox_close(struct inbox *in)
{
    pthread_mutex_lock(&in->mutex);
    in->closed = true;
    pthread_cond_signal(&in->cond);
    pthread_mutex_unlock(&in->mutex);
}

bool inbox_is_closed(struct inbox *in)
{
    pthread_mutex_lock(&in->mutex);
    bool closed = in->closed;
    pthread_mutex_unlock(&in->mutex);
    return closed;
}

bool inbox_take(struct inbox *in, uint64_t deadline_ns, struct letter **out)
{
    pthread_mutex_lock(&in->mutex);
    while (deadline_ns && !in->first && !in->woken && !in->closed &&
           thread_cond_wait(&in->cond, &in->mutex, deadline_ns))
        continue;
    struct letter *l = in->closed ? NULL : in->first;
    if (l) {
        in->first = l->next;
        if (!in->first)
            in->last = NULL;
    }
    in->woken = false;
    bool open = !in->closed;
    pthread_mutex_unlock(&in->mutex);
    *out = l;
    return open;
}

void inbox_give_back(struct inbox *in, struct letter *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&in->mutex);
    drop_unused(in, l);
    pthread_mutex_unlock(&in->mutex);
}
