/* SPDX-License-Identifier: MIT
 *
 * The workers of a pull: threads that take pieces or jobs one after the other. A tensor is written and digested by the
 * thread that receives it, out of the buffer it came in.
 */
#include "shard/pull_impl.h"

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOB_BYTES   (8u << 20)  /* of a request, unless one tensor is larger */
#define GAP_BYTES   (64u << 10) /* between tensors: fetched and thrown away rather than asked around, ... */
#define GAP_SHARE   200u        /* ... as long as all gaps are a two-hundredth of the tensors at most; ... */
#define FREE_GAP    256u        /* ... a request's heads are more than that: such a one does not count */
#define NOTE_BYTES  (256u << 10)
#define SMALL_BYTES (64u << 10) /* not worth handing over */
#define READ_BYTES  (1u << 20)
#define BURST_NS    (100 * CLOCK_NS_PER_MS)
#define SLICE_NS    (50 * CLOCK_NS_PER_MS)
#define MAX_WRONG   3u /* of one tensor, when several origins gave parts of it or it was not the network */

void pull_fail(struct pull *p, const struct err *e)
{
    pthread_mutex_lock(&p->lock);
    if (!p->failed) {
        p->failed = true;
        p->err = *e;
    }
    atomic_store(&p->stop, true);
    for (uint32_t i = 0; i < PULL_MAX_CONNECTIONS; i++)
        if (p->readers[i])
            remote_reader_stop(p->readers[i]);
    pthread_mutex_unlock(&p->lock);
}

/* --- a piece --- */

static const struct gguf_tensor *tensor_of(const struct pull *p, size_t i)
{
    return p->s.pieces[i].src;
}

static bool piece_begin(struct pull_piece *piece, struct err *e)
{
    piece->state = calloc(1, sizeof *piece->state);
    if (piece->state)
        digest4_begin(piece->state);
    else
        err_set(e, ERR_NOMEM, "out of memory");
    return piece->state != NULL;
}

static void piece_drop(struct pull *p, size_t i)
{
    struct pull_piece *piece = &p->pieces[i];
    atomic_fetch_sub(&p->done_bytes, (unsigned long long)piece->landed);
    free(piece->state);
    piece->state = NULL;
    piece->landed = 0;
    piece->from = 0;
    piece->old = false;
}

static bool note(struct pull *p, size_t i, struct err *e)
{
    struct pull_piece *piece = &p->pieces[i];
    /* On its way to the disk while more comes, so that the sync at the end finds little to do. Best effort. */
    if (piece->landed > piece->noted)
        (void)sync_file_range(p->journal.part_fd, (off_t)(p->s.pieces[i].at + piece->noted),
                              (off_t)(piece->landed - piece->noted), SYNC_FILE_RANGE_WRITE);
    piece->noted = piece->landed;
    return pull_journal_put(&p->journal, i, piece->landed, e) == OK;
}

/* Piece i's next bytes are in the part file now. */
static bool landed(struct pull *p, size_t i, size_t len, struct err *e)
{
    struct pull_piece *piece = &p->pieces[i];
    piece->landed += len;
    atomic_fetch_add(&p->done_bytes, (unsigned long long)len);
    return piece->landed - piece->noted < NOTE_BYTES && piece->landed < tensor_of(p, i)->size ? true : note(p, i, e);
}

/* Writes what came next of piece i, and digests it here. */
static bool land(struct pull *p, size_t i, const void *data, size_t len, struct err *e)
{
    struct pull_piece *piece = &p->pieces[i];
    const struct slice_piece *s = &p->s.pieces[i];
    if (s->digest && !piece->state && !piece_begin(piece, e))
        return false;
    if (pull_pwrite(p->journal.part_fd, data, len, s->at + piece->landed, p->journal.part, e) != OK)
        return false;
    if (piece->state)
        digest4_put(piece->state, data, len);
    return landed(p, i, len, e);
}

/* The lane's buffer, which has piece i's next bytes: written, and handed on to be digested. */
static bool lane_out(struct pull *p, size_t i, struct pull_lane *l, struct err *e)
{
    struct pull_piece *piece = &p->pieces[i];
    const struct slice_piece *s = &p->s.pieces[i];
    const size_t len = l->len[l->put];
    if (len == 0)
        return true;
    if (s->digest && !piece->state && !piece_begin(piece, e))
        return false;
    pthread_mutex_lock(&p->disk);
    enum err_code rc = pull_pwrite(p->journal.part_fd, l->buf[l->put], len, s->at + piece->landed, p->journal.part, e);
    pthread_mutex_unlock(&p->disk);
    if (rc != OK)
        return false;
    if (piece->state)
        pull_lane_hand_over(&p->hasher, l, piece->state);
    else
        l->len[l->put] = 0;
    return landed(p, i, len, e);
}

/* The same by way of a lane. The buffers end at whole pages of the part file. */
static bool lane_put(struct pull *p, size_t i, struct pull_lane *l, const uint8_t *data, size_t len, struct err *e)
{
    const struct pull_piece *piece = &p->pieces[i];
    const struct slice_piece *s = &p->s.pieces[i];
    while (len > 0) {
        const size_t most = l->size - (size_t)((s->at + piece->landed) % PULL_PAGE_BYTES);
        const size_t room = most - l->len[l->put], n = len < room ? len : room;
        memcpy(l->buf[l->put] + l->len[l->put], data, n);
        l->len[l->put] += n;
        data += n;
        len -= n;
        if (n == room && !lane_out(p, i, l, e))
            return false;
    }
    return piece->landed + l->len[l->put] < s->src->size || lane_out(p, i, l, e);
}

/* All of it has landed: is it right? */
static bool piece_right(struct pull *p, size_t i)
{
    struct pull_piece *piece = &p->pieces[i];
    uint8_t got[DIGEST_BYTES];
    piece->done = true;
    if (piece->state) {
        digest4_end(piece->state, got);
        piece->done = memcmp(got, p->s.pieces[i].digest, DIGEST_BYTES) == 0;
        free(piece->state);
        piece->state = NULL;
    }
    return piece->done;
}

/* Every origin gave something wrong: what, and who. */
static void nobody_left(struct pull *p, struct err *e)
{
    pthread_mutex_lock(&p->lock);
    err_set(e, ERR_MISMATCH, "tensor %s: not what the index says, and there is no other origin to get it from",
            p->wrong);
    pthread_mutex_unlock(&p->lock);
}

static bool any_wrong(struct pull *p)
{
    pthread_mutex_lock(&p->lock);
    const bool any = p->wrong[0] != 0;
    pthread_mutex_unlock(&p->lock);
    return any;
}

static void note_wrong(struct pull *p, const char *tensor, const char *host)
{
    pthread_mutex_lock(&p->lock);
    const size_t n = strlen(p->wrong);
    snprintf(p->wrong + n, sizeof p->wrong - n, "%s%s from %s", n ? ", " : "", tensor, host);
    pthread_mutex_unlock(&p->lock);
}

/* Piece i is not what the index says, as it came from the network. false: there is nobody left to ask. */
static bool piece_wrong(struct pull *p, size_t i, struct err *e)
{
    struct pull_piece *piece = &p->pieces[i];
    const char *name = tensor_of(p, i)->name;
    const uint32_t from = piece->from;
    const bool blame = !piece->old && from && (from & (from - 1)) == 0; /* it was this one and nobody else */
    bool left = true;
    piece->n_wrong++;
    piece_drop(p, i);
    if (!note(p, i, e))
        return false;
    if (blame) {
        const uint32_t origin = (uint32_t)__builtin_ctz(from);
        const char *host = remote_origin_host(p->r, origin);
        note_wrong(p, name, host);
        left = remote_distrust(p->r, origin); /* from now on other workers fail, too */
        log_warn("pull", "%s sent a wrong tensor %s: its digest is not the index's; this origin is not asked again",
                 host, name);
    } else if (piece->n_wrong > MAX_WRONG) {
        note_wrong(p, name, "several origins or the disk");
        left = false;
    }
    if (!left)
        nobody_left(p, e);
    return left;
}

/* --- what is there already --- */

/* Reads [at, at + len) of fd through buf; put for each part. */
static bool read_through(struct pull *p, int fd, uint64_t at, uint64_t len, uint8_t *buf,
                         bool (*put)(void *ctx, const void *data, size_t len), void *ctx)
{
    while (len > 0) {
        const size_t n = len < READ_BYTES ? (size_t)len : READ_BYTES;
        if (atomic_load(&p->stop) || io_pread_full(fd, buf, n, at, NULL) != OK || !put(ctx, buf, n))
            return false;
        at += n;
        len -= n;
    }
    return true;
}

static bool put_digest(void *ctx, const void *data, size_t len)
{
    digest4_put(ctx, data, len);
    return true;
}

/* What the journal says is there: digests are computed of what is really there. */
static bool old_piece(struct pull *p, size_t i, uint8_t *buf, struct err *e)
{
    struct pull_piece *piece = &p->pieces[i];
    const struct slice_piece *s = &p->s.pieces[i];
    if (piece->landed > s->src->size)
        piece->landed = 0;
    if (piece->landed == 0)
        return true;
    const uint64_t landed = piece->landed;
    piece->old = true;
    piece->noted = landed;
    atomic_fetch_add(&p->done_bytes, (unsigned long long)landed);
    if (s->digest && !piece_begin(piece, e))
        return false;
    if (s->digest && !read_through(p, p->journal.part_fd, s->at, landed, buf, put_digest, piece->state)) {
        piece_drop(p, i);
        return true;
    }
    if (landed == s->src->size && !piece_right(p, i)) {
        piece_drop(p, i);
        return note(p, i, e);
    }
    atomic_fetch_add(&p->resumed_bytes, (unsigned long long)landed);
    return true;
}

struct landing {
    struct pull *p;
    size_t i;
    struct err *e;
    bool failed; /* writing did, not reading */
};

static bool put_landing(void *ctx, const void *data, size_t len)
{
    struct landing *l = ctx;
    l->failed = !land(l->p, l->i, data, len, l->e);
    return !l->failed;
}

/* The same tensor in a local file. What turns out to be another is fetched as if nothing had been there. */
static bool local_piece(struct pull *p, size_t i, const struct gguf *g, uint8_t *buf, struct err *e)
{
    const struct gguf_tensor *want = tensor_of(p, i), *have = gguf_tensor_find(g, want->name);
    if (!have || have->size != want->size || have->type != want->type || gguf_fd(g, have->file) < 0)
        return true;
    struct landing l = {.p = p, .i = i, .e = e};
    piece_drop(p, i);
    if (read_through(p, gguf_fd(g, have->file), have->offset, have->size, buf, put_landing, &l) && piece_right(p, i)) {
        atomic_fetch_add(&p->local_bytes, (unsigned long long)want->size);
        return true;
    }
    if (l.failed)
        return false;
    piece_drop(p, i);
    return note(p, i, e);
}

void pull_take_old(struct pull *p)
{
    struct err e;
    bool ok = true;
    uint8_t *buf = malloc(READ_BYTES);
    if (!buf) {
        err_set(&e, ERR_NOMEM, "out of memory");
        pull_fail(p, &e);
        return;
    }
    for (size_t i; ok && (i = atomic_fetch_add(&p->next, 1)) < p->s.n && !atomic_load(&p->stop);) {
        ok = old_piece(p, i, buf, &e);
        for (uint32_t k = 0; ok && k < p->n_local && !p->pieces[i].done && p->s.pieces[i].digest; k++)
            ok = local_piece(p, i, p->local[k], buf, &e);
    }
    if (!ok)
        pull_fail(p, &e);
    free(buf);
}

/* --- jobs --- */

static int larger_first(const void *a, const void *b)
{
    const struct pull_job *x = a, *y = b;
    const uint64_t n = x->end - x->at, m = y->end - y->at;
    const bool big_x = n > JOB_BYTES, big_y = m > JOB_BYTES;
    if (big_x != big_y)
        return big_x ? -1 : 1;
    if (big_x && n != m)
        return n > m ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* May the piece, of which the bytes from `at` on are missing, be fetched in one request with this job? *spare: bytes
 * that may still be thrown away. */
static bool joins(const struct pull_job *j, const struct gguf_tensor *t, uint64_t at, uint64_t *spare)
{
    if (t->file != j->file || at != t->offset || at < j->end || t->offset + t->size - j->at > JOB_BYTES)
        return false;
    const uint64_t gap = at - j->end;
    if (gap <= FREE_GAP)
        return true;
    if (gap > GAP_BYTES || gap > *spare)
        return false;
    *spare -= gap;
    return true;
}

/* What all pieces that are not done lack. */
static uint64_t missing(const struct pull *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->s.n; i++)
        n += p->pieces[i].done ? 0 : tensor_of(p, i)->size - p->pieces[i].landed;
    return n;
}

enum err_code pull_make_jobs(struct pull *p, struct err *e)
{
    struct pull_job *jobs = calloc(p->s.n ? p->s.n : 1, sizeof *jobs);
    if (!jobs)
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", p->s.n);
    size_t n = 0;
    uint64_t spare = missing(p) / GAP_SHARE;
    for (size_t k = 0; k < p->s.n; k++) {
        const size_t i = p->order[k];
        const struct gguf_tensor *t = tensor_of(p, i);
        const uint64_t at = t->offset + p->pieces[i].landed;
        if (p->pieces[i].done)
            continue;
        if (n == 0 || !joins(&jobs[n - 1], t, at, &spare))
            jobs[n++] = (struct pull_job){.file = t->file, .at = at, .first = k};
        jobs[n - 1].end = t->offset + t->size;
        jobs[n - 1].n = k + 1 - jobs[n - 1].first;
    }
    qsort(jobs, n, sizeof *jobs, larger_first); /* a large tensor that came last would keep one thread busy alone */
    free(p->jobs);
    p->jobs = jobs;
    p->n_jobs = n;
    return OK;
}

/* A thread and the job it is at. */
struct fetch {
    struct pull *p;
    const struct pull_job *job;
    struct pull_lane *lane;
    uint64_t at;     /* in the remote file */
    size_t k;        /* of the job's pieces */
    uint32_t origin; /* of what comes */
    struct err err;  /* why put ended it */
    bool failed;
};

/* Waits until the bytes are paid for. */
static bool pay(struct pull *p, size_t len)
{
    if (p->q->rate == 0)
        return true;
    pthread_mutex_lock(&p->lock);
    const uint64_t now = clock_now_ns();
    if (p->bucket_ns + BURST_NS < now)
        p->bucket_ns = now - BURST_NS;
    p->bucket_ns += (uint64_t)((double)len * (double)CLOCK_NS_PER_S / (double)p->q->rate);
    const uint64_t until = p->bucket_ns;
    pthread_mutex_unlock(&p->lock);
    for (;;) {
        const uint64_t t = clock_now_ns();
        if (atomic_load(&p->stop))
            return false;
        if (t >= until)
            return true;
        const struct timespec slice = {.tv_nsec = (long)(until - t < SLICE_NS ? until - t : SLICE_NS)};
        nanosleep(&slice, NULL);
    }
}

/* Bytes of piece i as they come. */
static bool put_piece(struct fetch *f, size_t i, const uint8_t *data, size_t len)
{
    struct pull *p = f->p;
    const struct gguf_tensor *t = tensor_of(p, i);
    p->pieces[i].from |= 1u << f->origin;
    if (t->size <= SMALL_BYTES ? !land(p, i, data, len, &f->err) : !lane_put(p, i, f->lane, data, len, &f->err))
        return false;
    if (p->pieces[i].landed < t->size)
        return true;
    f->k++;
    pull_lane_flush(&p->hasher, f->lane);
    return piece_right(p, i) || piece_wrong(p, i, &f->err);
}

/* Bytes of the job, in order: to the tensor they belong to, or into a gap. */
static bool put_job(void *ctx, const void *data, size_t len)
{
    struct fetch *f = ctx;
    struct pull *p = f->p;
    const uint8_t *bytes = data;
    if (!pay(p, len))
        return false;
    while (len > 0 && f->k < f->job->n) {
        if (atomic_load(&p->stop))
            return false;
        const size_t i = p->order[f->job->first + f->k];
        const struct gguf_tensor *t = tensor_of(p, i);
        if (p->pieces[i].done) {
            f->k++;
            continue;
        }
        const uint64_t want = t->offset + p->pieces[i].landed + f->lane->len[f->lane->put];
        const uint64_t left = f->at < want ? want - f->at : t->offset + t->size - f->at;
        const size_t n = left < len ? (size_t)left : len;
        if (f->at >= want && !put_piece(f, i, bytes, n)) {
            f->failed = true;
            return false;
        }
        bytes += n;
        len -= n;
        f->at += n;
    }
    return true;
}

/* When the job ended before its end: what is left in the lane, and a note of how far it came. */
static void put_rest(struct fetch *f)
{
    struct err e;
    if (f->k < f->job->n && !f->failed) {
        const size_t i = f->p->order[f->job->first + f->k];
        if (!lane_out(f->p, i, f->lane, &e) || !note(f->p, i, &e))
            log_debug("pull", "%s", e.msg);
    }
    pull_lane_flush(&f->p->hasher, f->lane);
}

/* A reader that pull_fail can stop. */
static struct remote_reader *reader_open(struct pull *p, uint32_t *slot, struct err *e)
{
    struct remote_reader *x = NULL;
    if (remote_reader_new(p->r, &x, e) != OK)
        return NULL;
    *slot = 0;
    pthread_mutex_lock(&p->lock);
    while (p->readers[*slot])
        (*slot)++;
    p->readers[*slot] = x;
    if (atomic_load(&p->stop))
        remote_reader_stop(x);
    pthread_mutex_unlock(&p->lock);
    return x;
}

static void reader_close(struct pull *p, uint32_t slot)
{
    pthread_mutex_lock(&p->lock);
    struct remote_reader *x = p->readers[slot];
    p->readers[slot] = NULL;
    pthread_mutex_unlock(&p->lock);
    remote_reader_free(x);
}

void pull_fetch(struct pull *p)
{
    struct err e;
    uint32_t slot = 0;
    struct remote_reader *x = reader_open(p, &slot, &e);
    struct pull_lane *lane = pull_lane_open(&p->hasher);
    enum err_code rc = x && lane ? OK : x ? err_set(&e, ERR_NOMEM, "out of memory") : e.code;
    for (size_t i; rc == OK && !atomic_load(&p->stop) && (i = atomic_fetch_add(&p->next, 1)) < p->n_jobs;) {
        const struct pull_job *j = &p->jobs[i];
        struct fetch f = {.p = p, .job = j, .lane = lane, .at = j->at};
        rc = remote_read(x, j->file, j->at, j->end - j->at, put_job, &f, &f.origin, &e);
        put_rest(&f);
        if (f.failed)
            e = f.err;
        else if (rc == ERR_MISMATCH && any_wrong(p)) /* another worker found it */
            nobody_left(p, &e);
    }
    if (rc != OK)
        pull_fail(p, &e); /* no news when it is because all stop */
    pull_lane_close(&p->hasher, lane);
    if (x)
        reader_close(p, slot);
}
