/* SPDX-License-Identifier: MIT
 *
 * The thread that computes the digests of what several workers receive, of up to four of them at once. Each worker has
 * a ring of buffers: one is filled while others are digested.
 */
#include "shard/pull_impl.h"

#include "base/clock.h"
#include "base/thread.h"

#include <stdlib.h>

#define GATHER_NS (2 * CLOCK_NS_PER_MS) /* so long a lane waits for others to go with it */
#define WAIT_MS   1000u                 /* whoever waits looks again then; it is woken much sooner */

/* --- the thread --- */

/* Up to four lanes with something to do. *full: there will not be more soon; *next: the one behind the last of them. */
static uint32_t gather(const struct pull_hasher *h, struct pull_lane *found[DIGEST4_LANES], bool *full, uint32_t *next)
{
    uint32_t n = 0, n_open = 0;
    for (uint32_t k = 0; k < PULL_MAX_CONNECTIONS && n < DIGEST4_LANES; k++) {
        const uint32_t i = (h->turn + k) % PULL_MAX_CONNECTIONS;
        n_open += h->lanes[i] != NULL;
        if (h->lanes[i] && h->lanes[i]->ready[h->lanes[i]->take]) {
            found[n++] = h->lanes[i];
            *next = i + 1;
        }
    }
    *full = n == n_open || n == DIGEST4_LANES || h->n_flushing > 0;
    return n;
}

static void hash(struct pull_lane *const *lanes, uint32_t n)
{
    struct digest4 *to[DIGEST4_LANES];
    const void *data[DIGEST4_LANES];
    size_t len[DIGEST4_LANES];
    for (uint32_t i = 0; i < n; i++) {
        to[i] = lanes[i]->to;
        data[i] = lanes[i]->buf[lanes[i]->take];
        len[i] = lanes[i]->len[lanes[i]->take];
    }
    digest4_put_all(to, data, len, n);
}

static void *hasher_main(void *arg)
{
    struct pull_hasher *h = arg;
    uint64_t until = 0; /* more lanes are waited for; 0: there is nothing yet */
    pthread_mutex_lock(&h->lock);
    while (!h->end) {
        struct pull_lane *lanes[DIGEST4_LANES];
        bool full;
        uint32_t next = 0;
        const uint32_t n = gather(h, lanes, &full, &next);
        if (n > 0 && until == 0)
            until = clock_now_ns() + GATHER_NS;
        if (n == 0 || (!full && clock_now_ns() < until)) {
            thread_cond_wait(&h->work, &h->lock, n > 0 ? until : clock_deadline_ms(WAIT_MS));
            continue;
        }
        until = 0;
        h->turn = next;
        pthread_mutex_unlock(&h->lock);
        hash(lanes, n);
        pthread_mutex_lock(&h->lock);
        for (uint32_t i = 0; i < n; i++) {
            lanes[i]->ready[lanes[i]->take] = false;
            lanes[i]->take = (lanes[i]->take + 1) % PULL_N_BUFFERS;
        }
        pthread_cond_broadcast(&h->done);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

enum err_code pull_hasher_start(struct pull_hasher *h, uint32_t n_lanes, struct err *e)
{
    const uint32_t share = PULL_LANES_BYTES / PULL_N_BUFFERS / n_lanes;
    *h = (struct pull_hasher){.buffer_bytes = share < PULL_BUFFER_BYTES ? share / PULL_PAGE_BYTES * PULL_PAGE_BYTES
                                                                        : PULL_BUFFER_BYTES};
    pthread_mutex_init(&h->lock, NULL);
    thread_cond_init(&h->work);
    thread_cond_init(&h->done);
    const enum err_code rc = thread_start(&h->thread, "pull-digest", hasher_main, h, e);
    h->runs = rc == OK;
    if (rc != OK)
        pull_hasher_stop(h);
    return rc;
}

void pull_hasher_stop(struct pull_hasher *h)
{
    pthread_mutex_lock(&h->lock);
    h->end = true;
    pthread_cond_signal(&h->work);
    pthread_mutex_unlock(&h->lock);
    if (h->runs)
        pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->work);
    pthread_cond_destroy(&h->done);
    pthread_mutex_destroy(&h->lock);
}

/* --- lanes --- */

struct pull_lane *pull_lane_open(struct pull_hasher *h)
{
    struct pull_lane *l = calloc(1, sizeof *l);
    uint8_t *memory = malloc((size_t)PULL_N_BUFFERS * h->buffer_bytes);
    if (!l || !memory) {
        free(l);
        free(memory);
        return NULL;
    }
    l->size = h->buffer_bytes;
    for (uint32_t i = 0; i < PULL_N_BUFFERS; i++)
        l->buf[i] = memory + (size_t)i * l->size;
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < PULL_MAX_CONNECTIONS; i++)
        if (!h->lanes[i]) {
            h->lanes[i] = l;
            break;
        }
    pthread_mutex_unlock(&h->lock);
    return l;
}

static bool any_ready(const struct pull_lane *l)
{
    bool any = false;
    for (uint32_t i = 0; i < PULL_N_BUFFERS; i++)
        any |= l->ready[i];
    return any;
}

void pull_lane_hand_over(struct pull_hasher *h, struct pull_lane *l, struct digest4 *to)
{
    pthread_mutex_lock(&h->lock);
    if (l->to != to) /* another stream only after a flush: nobody looks at it then */
        l->to = to;
    l->ready[l->put] = true;
    l->put = (l->put + 1) % PULL_N_BUFFERS;
    pthread_cond_signal(&h->work);
    while (l->ready[l->put])
        thread_cond_wait(&h->done, &h->lock, clock_deadline_ms(WAIT_MS));
    pthread_mutex_unlock(&h->lock);
    l->len[l->put] = 0;
}

void pull_lane_flush(struct pull_hasher *h, struct pull_lane *l)
{
    pthread_mutex_lock(&h->lock);
    h->n_flushing++;
    pthread_cond_signal(&h->work);
    while (any_ready(l))
        thread_cond_wait(&h->done, &h->lock, clock_deadline_ms(WAIT_MS));
    h->n_flushing--;
    pthread_mutex_unlock(&h->lock);
}

void pull_lane_close(struct pull_hasher *h, struct pull_lane *l)
{
    if (!l)
        return;
    pull_lane_flush(h, l);
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < PULL_MAX_CONNECTIONS; i++)
        if (h->lanes[i] == l)
            h->lanes[i] = NULL;
    pthread_mutex_unlock(&h->lock);
    free(l->buf[0]);
    free(l);
}
