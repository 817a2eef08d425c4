/* SPDX-License-Identifier: MIT
 *
 * A pull from its beginning to its end: what is to be made, what is there of it, what is fetched, and the file's name
 * last. The calling thread waits and tells the progress; workers (pull_jobs.c) do the rest.
 */
#include "shard/pull.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "shard/pull_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_CONNECTIONS 4u
#define N_READERS     8u /* threads that look at what is there, at most */
#define TELL_MS       250u
#define N_SAMPLES     20u /* of the rate: five seconds */

/* --- progress --- */

struct rates {
    uint64_t ns[N_SAMPLES], bytes[N_SAMPLES];
    uint32_t n;
    uint64_t received_before;
};

/* Tells how far it is; false: stop. */
static bool tell(struct pull *p, struct rates *v)
{
    struct remote_counts c;
    if (!p->q->progress)
        return true;
    remote_count(p->r, &c);
    const uint64_t now = clock_now_ns(), received = c.body_bytes - v->received_before;
    const uint32_t oldest = v->n < N_SAMPLES ? 0 : v->n % N_SAMPLES;
    const uint64_t ns = v->n ? now - v->ns[oldest] : 0, bytes = v->n ? received - v->bytes[oldest] : 0;
    v->ns[v->n % N_SAMPLES] = now;
    v->bytes[v->n % N_SAMPLES] = received;
    v->n++;
    const uint64_t landed = atomic_load(&p->done_bytes), head = p->s.size - p->s.tensor_bytes;
    struct pull_progress x = {
        .done_bytes = head + landed, .total_bytes = p->s.size, .received_bytes = received, .eta_s = UINT64_MAX};
    if (ns > 0)
        x.bytes_per_s = (uint64_t)((double)bytes * (double)CLOCK_NS_PER_S / (double)ns);
    if (x.bytes_per_s > 0 && x.done_bytes <= x.total_bytes)
        x.eta_s = (x.total_bytes - x.done_bytes) / x.bytes_per_s;
    return p->q->progress(p->q->ctx, &x);
}

/* --- workers --- */

struct worker {
    struct pull *p;
    void (*work)(struct pull *p);
    pthread_t thread;
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    w->work(w->p);
    pthread_mutex_lock(&w->p->lock);
    w->p->n_running--;
    pthread_cond_signal(&w->p->ended);
    pthread_mutex_unlock(&w->p->lock);
    return NULL;
}

static void wait_for(struct pull *p, struct rates *rates)
{
    pthread_mutex_lock(&p->lock);
    for (uint64_t next = clock_deadline_ms(TELL_MS); p->n_running > 0;) {
        thread_cond_wait(&p->ended, &p->lock, next);
        if (clock_now_ns() < next)
            continue;
        next = clock_deadline_ms(TELL_MS);
        pthread_mutex_unlock(&p->lock);
        if (!tell(p, rates)) {
            struct err e;
            err_set(&e, ERR_CANCELLED, "the pull was stopped; the same command goes on with it");
            pull_fail(p, &e);
        }
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

/* Lets up to n threads do it, and waits for them. */
static enum err_code run_workers(struct pull *p, uint32_t n, void (*work)(struct pull *p), struct rates *rates,
                                 struct err *e)
{
    struct worker workers[PULL_MAX_CONNECTIONS];
    uint32_t n_started = 0;
    enum err_code rc = OK;
    atomic_store(&p->next, 0);
    while (n_started < n && rc == OK) {
        struct worker *w = &workers[n_started];
        *w = (struct worker){.p = p, .work = work};
        pthread_mutex_lock(&p->lock);
        p->n_running++;
        pthread_mutex_unlock(&p->lock);
        rc = thread_start(&w->thread, "pull", worker_main, w, e);
        n_started += rc == OK;
    }
    if (rc != OK) {
        pthread_mutex_lock(&p->lock);
        p->n_running--;
        pthread_mutex_unlock(&p->lock);
        rc = n_started > 0 ? OK : rc; /* fewer do, too */
    }
    wait_for(p, rates);
    for (uint32_t i = 0; i < n_started; i++)
        pthread_join(workers[i].thread, NULL);
    if (rc == OK && p->failed) {
        rc = p->err.code;
        if (e)
            *e = p->err;
    }
    return rc;
}

/* --- what is to be made --- */

static int by_place(const void *a, const void *b, void *ctx)
{
    const struct slice_piece *pieces = ctx;
    const struct gguf_tensor *x = pieces[*(const size_t *)a].src, *y = pieces[*(const size_t *)b].src;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* What the part file depends on. With digests it does not matter from where its bytes came; without them they must be
 * of one file, and the machine must not have stopped in between, for then what was written may be lost. A file that
 * cannot be told from others has a key of its own each time. */
static enum err_code key_of(const struct pull *p, uint8_t key[DIGEST_BYTES], struct err *e)
{
    static const char label[] = "kvasir pull 1";
    const struct gguf *g = remote_gguf(p->r);
    struct buf b = {0};
    bool known = true;
    buf_put(&b, label, sizeof label);
    buf_put_u64(&b, p->s.size);
    buf_put(&b, p->s.head.data, p->s.head.len);
    for (uint32_t i = 0; i < gguf_n_files(g); i++) {
        buf_put_u64(&b, gguf_file_size(g, i));
        if (remote_index(p->r))
            continue;
        known &= remote_stamp(p->r, i)[0] != 0;
        buf_puts(&b, remote_stamp(p->r, i));
        buf_put_u8(&b, 0);
    }
    if (!remote_index(p->r))
        known &= io_read_file("/proc/sys/kernel/random/boot_id", 100, &b, NULL) == OK;
    if (!known)
        buf_put_u64(&b, clock_now_ns());
    digest_of(b.data, b.len, key);
    enum err_code rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory") : OK;
    buf_free(&b);
    return rc;
}

static enum err_code request_check(const struct pull *p, struct err *e)
{
    const struct index *x = remote_index(p->r);
    char want[DIGEST_HEX_SIZE], have[DIGEST_HEX_SIZE];
    if (p->q->n_connections > PULL_MAX_CONNECTIONS)
        return err_set(e, ERR_ARG, "a pull has 1 to %u connections", PULL_MAX_CONNECTIONS);
    if (p->q->n_local > PULL_MAX_LOCAL)
        return err_set(e, ERR_ARG, "a pull looks into at most %u local files", PULL_MAX_LOCAL);
    if (!x && (p->q->need_index || p->q->model_id))
        return err_set(e, ERR_LIMIT,
                       "there is no index of the model, so that nothing could be verified: an index is needed here");
    if (x && p->q->model_id && memcmp(x->model_id, p->q->model_id, DIGEST_BYTES) != 0)
        return err_set(e, ERR_MISMATCH, "the model there is another: its id is %s, not %s",
                       digest_hex(x->model_id, have), digest_hex(p->q->model_id, want));
    return OK;
}

static enum err_code plan(struct pull *p, struct err *e)
{
    const struct gguf *g = remote_gguf(p->r);
    struct hparams h;
    enum err_code rc = request_check(p, e);
    if (rc == OK)
        rc = hparams_read(g, &h, e);
    if (rc != OK)
        return rc;
    rc = slice_plan(g, &h, p->q->first, p->q->end ? p->q->end : h.n_block, remote_index(p->r), &p->s, e);
    hparams_fini(&h);
    if (rc != OK)
        return rc;
    p->pieces = calloc(p->s.n ? p->s.n : 1, sizeof *p->pieces);
    p->order = calloc(p->s.n ? p->s.n : 1, sizeof *p->order);
    if (!p->pieces || !p->order)
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", p->s.n);
    if (!remote_index(p->r) && remote_origin_host(p->r, 1)[0])
        log_warn("pull",
                 "there is no index: of the origins only the lengths of their files are compared, and what comes "
                 "may be of different models");
    for (size_t i = 0; i < p->s.n; i++)
        p->order[i] = i;
    qsort_r(p->order, p->s.n, sizeof *p->order, by_place, p->s.pieces);
    return OK;
}

static void open_local(struct pull *p)
{
    struct err e;
    for (uint32_t i = 0; i < p->q->n_local && remote_index(p->r); i++)
        if (gguf_open(p->q->local[i], &p->local[p->n_local], &e) == OK)
            p->n_local++;
        else
            log_info("pull", "not looked into: %s", e.msg);
}

/* --- the file --- */

/* Everything but tensors: the head, and the zeros behind each piece. */
static enum err_code write_rest(struct pull *p, struct err *e)
{
    static const uint8_t zeros[4096];
    const struct slice *s = &p->s;
    const int fd = p->journal.part_fd;
    enum err_code rc = pull_pwrite(fd, s->head.data, s->head.len, 0, p->journal.part, e);
    for (size_t i = 0; i < s->n && rc == OK; i++) {
        uint64_t at = s->pieces[i].at + s->pieces[i].src->size;
        const uint64_t end = i + 1 < s->n ? s->pieces[i + 1].at : s->size;
        for (; at < end && rc == OK; at += sizeof zeros)
            rc = pull_pwrite(fd, zeros, end - at < sizeof zeros ? (size_t)(end - at) : sizeof zeros, at,
                             p->journal.part, e);
    }
    return rc;
}

static enum err_code open_part(struct pull *p, struct err *e)
{
    uint8_t key[DIGEST_BYTES];
    uint64_t *landed = calloc(p->s.n ? p->s.n : 1, sizeof *landed);
    if (!landed)
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", p->s.n);
    enum err_code rc = key_of(p, key, e);
    if (rc == OK)
        rc = pull_journal_open(&p->journal, p->q->out, p->s.size, key, p->s.n, landed, e);
    for (size_t i = 0; i < p->s.n && rc == OK; i++)
        p->pieces[i].landed = landed[i];
    free(landed);
    return rc == OK ? write_rest(p, e) : rc;
}

/* Fetches what is missing, again where it came wrong. */
static enum err_code fetch_all(struct pull *p, struct rates *rates, struct err *e)
{
    const uint32_t n = p->q->n_connections ? p->q->n_connections : N_CONNECTIONS;
    bool old = p->n_local > 0;
    for (size_t i = 0; i < p->s.n; i++)
        old |= p->pieces[i].landed > 0;
    enum err_code rc = old ? run_workers(p, n < N_READERS ? n : N_READERS, pull_take_old, rates, e) : OK;
    remote_share(p->r, n);
    while (rc == OK) {
        rc = pull_make_jobs(p, e);
        if (rc != OK || p->n_jobs == 0)
            break;
        const uint32_t n_workers = p->n_jobs < n ? (uint32_t)p->n_jobs : n;
        rc = pull_hasher_start(&p->hasher, n_workers, e);
        if (rc != OK)
            break;
        rc = run_workers(p, n_workers, pull_fetch, rates, e);
        pull_hasher_stop(&p->hasher);
    }
    return rc;
}

static void fill_result(const struct pull *p, const struct remote_counts *before, struct pull_result *out)
{
    struct remote_counts c;
    remote_count(p->r, &c);
    *out = (struct pull_result){.verified = remote_index(p->r) != NULL,
                                .size = p->s.size,
                                .received_bytes = c.body_bytes - before->body_bytes,
                                .local_bytes = atomic_load(&p->local_bytes),
                                .resumed_bytes = atomic_load(&p->resumed_bytes),
                                .n_requests = c.n_requests - before->n_requests};
    if (out->verified)
        memcpy(out->model_id, remote_index(p->r)->model_id, DIGEST_BYTES);
}

static void pull_fini(struct pull *p)
{
    for (size_t i = 0; i < p->s.n && p->pieces; i++)
        free(p->pieces[i].state);
    for (uint32_t i = 0; i < p->n_local; i++)
        gguf_close(p->local[i]);
    free(p->pieces);
    free(p->order);
    free(p->jobs);
    slice_fini(&p->s);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->disk);
    pthread_cond_destroy(&p->ended);
    free(p);
}

enum err_code pull_window(struct remote *r, const struct pull_request *q, struct pull_result *out, struct err *e)
{
    struct remote_counts before;
    struct pull *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "out of memory");
    p->r = r;
    p->q = q;
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->disk, NULL);
    thread_cond_init(&p->ended);
    p->journal.fd = p->journal.part_fd = -1;
    remote_count(r, &before);
    struct rates rates = {.received_before = before.body_bytes};
    enum err_code rc = plan(p, e);
    if (rc == OK)
        rc = open_part(p, e);
    if (rc == OK) {
        open_local(p);
        rc = fetch_all(p, &rates, e);
    }
    if (rc == OK)
        rc = pull_journal_finish(&p->journal, q->out, e);
    if (rc == OK) {
        tell(p, &rates);
        fill_result(p, &before, out);
    }
    pull_journal_close(&p->journal);
    pull_fini(p);
    return rc;
}
