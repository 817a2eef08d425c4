/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/ring_rig.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/tcp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool rig_begin(int argc, char **argv)
{
    struct err e;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    alarm(580);
    if (!getenv("KVASIR_LOG"))
        log_set_level(LOG_ERROR);
    return key_library_init(&e) == OK;
}

/* --- the computing stage ------------------------------------------------------------------------- */

static void embed(int32_t token, uint32_t pos, float row[RIG_EMBD])
{
    for (uint32_t j = 0; j < RIG_EMBD; j++)
        row[j] = (float)((uint32_t)token * 7 + pos * 13 + j * 3);
}

static void block(uint32_t b, float row[RIG_EMBD])
{
    for (uint32_t j = 0; j < RIG_EMBD; j++)
        row[j] = fmodf(row[j] * 3 + row[(j + 1) % RIG_EMBD] + (float)b + 1, 4093); /* whole numbers, exact */
}

static uint64_t look(uint64_t looked, const float row[RIG_EMBD])
{
    for (uint32_t j = 0; j < RIG_EMBD; j++)
        looked = hash_prefix(looked, (int32_t)row[j]);
    return looked;
}

static int32_t pick(uint64_t looked, uint64_t seed)
{
    return (int32_t)(hash_mix64(looked ^ hash_mix64(seed)) % RIG_VOCAB);
}

/* What a request must get. */
void rig_expected(const int32_t *prompt, uint32_t n, uint64_t seed, uint32_t n_out, int32_t *out)
{
    uint64_t looked = HASH_PREFIX_EMPTY;
    float row[RIG_EMBD];
    for (uint32_t pos = 0; pos < n + n_out; pos++) {
        if (pos >= n)
            out[pos - n] = pick(looked, seed);
        embed(pos < n ? prompt[pos] : out[pos - n], pos, row);
        for (uint32_t b = 0; b < RIG_BLOCKS; b++)
            block(b, row);
        looked = look(looked, row);
    }
}

static void enter(struct rig_meter *m)
{
    pthread_mutex_lock(&m->mutex);
    if (++m->inside > m->most)
        m->most = m->inside;
    pthread_mutex_unlock(&m->mutex);
}

static void leave(struct rig_meter *m)
{
    pthread_mutex_lock(&m->mutex);
    m->inside--;
    pthread_mutex_unlock(&m->mutex);
}

static enum err_code check_entries(struct rig_fake *f, const struct batch *b, struct err *e)
{
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *en = &b->entries[i];
        const struct rig_slot *h = &f->slot[en->slot];
        if (en->request_id == atomic_load(&f->fail_request)) {
            atomic_fetch_add(&f->n_fails, 1);
            return err_set(e, (enum err_code)atomic_load(&f->fail_code), "request %llu is not to my taste",
                           (unsigned long long)en->request_id);
        }
        if (en->flags & BATCH_RESET)
            continue;
        if (en->flags & BATCH_TRUNCATE ? en->pos > h->n : en->pos != h->n)
            return err_set(e, ERR_STALE, "slot %u holds %u tokens, the step goes on at %u", en->slot, h->n, en->pos);
        if (en->pos > 0 && h->at[en->pos].prefix != en->prefix_hash)
            return err_set(e, ERR_STALE, "slot %u holds other tokens before %u", en->slot, en->pos);
    }
    return OK;
}

static void compute_entry(struct rig_fake *f, struct batch *b, const struct batch_entry *en, uint32_t at)
{
    struct rig_slot *h = &f->slot[en->slot];
    if (en->flags & (BATCH_RESET | BATCH_TRUNCATE))
        atomic_fetch_add(en->flags & BATCH_RESET ? &f->n_resets : &f->n_cuts, 1);
    h->at[0] = (struct rig_state){HASH_PREFIX_EMPTY, HASH_PREFIX_EMPTY};
    for (uint32_t t = 0; t < en->n_tok; t++) {
        float *row = b->rows + (size_t)(at + t) * RIG_EMBD;
        const struct rig_state *before = &h->at[en->pos + t];
        if (f->rank == 0)
            embed(b->tokens[at + t], en->pos + t, row);
        for (uint32_t k = f->first; k < f->end; k++)
            block(k, row);
        h->at[en->pos + t + 1] =
            (struct rig_state){hash_prefix(before->prefix, b->tokens[at + t]), look(before->looked, row)};
    }
    h->n = en->pos + en->n_tok;
    if (f->rank + 1 == f->n_ranks && (en->flags & BATCH_SAMPLE))
        b->results[b->n_results++] = (struct batch_result){.request_id = en->request_id,
                                                           .slot = en->slot,
                                                           .pos = h->n,
                                                           .token = pick(h->at[h->n].looked, h->seed),
                                                           .logprob = -1};
}

static enum err_code fake_step(void *ctx, struct batch *b, struct err *e)
{
    struct rig_fake *f = ctx;
    uint32_t at = 0, us = atomic_load(&f->sleep_us);
    if (f->meter)
        enter(f->meter);
    while (atomic_load(&f->hold)) {
        atomic_store(&f->holding, true);
        usleep(200);
    }
    atomic_store(&f->holding, false);
    if (us)
        usleep(us);
    enum err_code rc = check_entries(f, b, e);
    b->n_results = 0;
    for (uint32_t i = 0; rc == OK && i < b->n_entries; i++) {
        compute_entry(f, b, &b->entries[i], at);
        at += b->entries[i].n_tok;
    }
    if (f->meter)
        leave(f->meter);
    return rc;
}

static enum err_code fake_sampling(void *ctx, uint32_t slot, const struct batch_sampling *s, struct err *e)
{
    struct rig_fake *f = ctx;
    if (s->top_p > 1)
        return err_set(e, ERR_RANGE, "top_p %g is over 1", (double)s->top_p);
    f->slot[slot].seed = s->seed;
    return OK;
}

/* --- rings --------------------------------------------------------------------------------------- */

static void on_event(void *ctx, const struct node_event *ev)
{
    struct rig *r = ctx;
    atomic_fetch_add(ev->type == NODE_READY ? &r->n_ready : &r->n_lost, 1);
}

struct rig *rig_new(uint32_t n, uint32_t n_slots, uint32_t n_batch)
{
    struct rig *r = calloc(1, sizeof *r);
    struct err e;
    assert_non_null(r);
    assert_true(n_slots <= RIG_MAX_SLOTS);
    pthread_mutex_init(&r->meter.mutex, NULL);
    r->n = n;
    r->config.link.death_ms = RIG_DEATH_MS;
    r->m = (struct manifest){.epoch = 1,
                             .ring_id = {1},
                             .model_id = {2},
                             .model_name = "arith",
                             .n_blocks = RIG_BLOCKS,
                             .n_embd = RIG_EMBD,
                             .n_vocab = RIG_VOCAB,
                             .n_ctx = RIG_CTX,
                             .n_slots = n_slots,
                             .n_batch = n_batch,
                             .n_ranks = n,
                             .ranks = r->rows};
    for (uint32_t i = 0; i < n; i++) {
        uint16_t port;
        memcpy(r->rows[i].device, "cpu", 4);
        key_generate(&r->key[i]);
        key_public_of(&r->key[i], &r->rows[i].key);
        r->rows[i].first = i * RIG_BLOCKS / n;
        r->rows[i].end = (i + 1) * RIG_BLOCKS / n;
        r->rows[i].dial = i % 3 == 2 ? MANIFEST_DIAL_SUCCESSOR : MANIFEST_DIAL_PREDECESSOR;
        assert_int_equal(net_tcp_listen("127.0.0.1:0", &r->fd[i], &port, &e), OK);
        snprintf(r->rows[i].addr, sizeof r->rows[i].addr, "127.0.0.1:%u", port);
    }
    if (manifest_check(&r->m, &e) != OK)
        fail_msg("%s", e.msg);
    return r;
}

/* Starts a rank by what manifest m says of it: a fresh process as far as its state goes. */
void rig_start(struct rig *r, uint32_t i, const struct manifest *m)
{
    struct rig_fake *f = &r->fake[i];
    struct err e;
    unsigned us = atomic_load(&f->sleep_us);
    memset(f->slot, 0, sizeof f->slot);
    f->rank = i;
    f->n_ranks = r->n;
    f->first = r->rows[i].first;
    f->end = r->rows[i].end;
    atomic_store(&f->sleep_us, us);
    struct node_config c = r->config;
    c.m = m;
    c.rank = i;
    c.secret = &r->key[i];
    c.stage = (struct ring_stage){.ctx = f, .step = fake_step, .sampling = fake_sampling};
    c.listen_fd = r->fd[i];
    c.listen_addr = r->fd[i] < 0 ? r->rows[i].addr : NULL;
    c.ctx = r;
    c.on_event = i == 0 ? on_event : NULL;
    if (r->n == 1) {
        close(r->fd[i]);
        c.listen_fd = -1;
        c.listen_addr = NULL;
    }
    r->fd[i] = -1;
    /* A restarted rank listens where it did before. Another process may have got the port: it waits for it. */
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    enum err_code rc;
    while ((rc = node_start(&c, &r->node[i], &e)) == ERR_IO && clock_now_ns() < deadline)
        usleep(10000);
    if (rc != OK)
        fail_msg("rank %u: %s", i, e.msg);
}

void rig_stop(struct rig *r, uint32_t i)
{
    node_stop(r->node[i]);
    r->node[i] = NULL;
}

void rig_ready_at(struct rig *r, uint32_t i)
{
    struct err e;
    if (node_wait_ready(r->node[i], clock_deadline_ms(RIG_WAIT_MS), &e) != OK)
        fail_msg("%s", e.msg);
}

void rig_ready(struct rig *r)
{
    rig_ready_at(r, 0);
}

struct rig *rig_up(uint32_t n, uint32_t n_slots, uint32_t n_batch)
{
    struct rig *r = rig_new(n, n_slots, n_batch);
    for (uint32_t i = 0; i < n; i++)
        rig_start(r, i, &r->m);
    rig_ready(r);
    return r;
}

void rig_free(struct rig *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        node_stop(r->node[i]);
        if (r->fd[i] >= 0)
            close(r->fd[i]);
    }
    pthread_mutex_destroy(&r->meter.mutex);
    free(r);
}

/* --- requests ------------------------------------------------------------------------------------ */

void ask_on_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct ask *a = ctx;
    (void)id;
    pthread_mutex_lock(&a->mutex);
    if (a->n_out < RIG_CTX)
        a->out[a->n_out++] = r->token;
    pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->mutex);
}

void ask_on_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct ask *a = ctx;
    (void)id;
    pthread_mutex_lock(&a->mutex);
    a->n_ends++;
    a->reason = reason;
    a->code = code;
    snprintf(a->text, sizeof a->text, "%s", text);
    pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->mutex);
}

struct ask *ask_new(uint32_t seed, uint32_t n_prompt, uint32_t n_predict)
{
    struct ask *a = calloc(1, sizeof *a);
    assert_non_null(a);
    pthread_mutex_init(&a->mutex, NULL);
    thread_cond_init(&a->cond);
    a->seed = seed;
    a->n_prompt = n_prompt;
    a->n_predict = n_predict;
    for (uint32_t i = 0; i < n_prompt; i++)
        a->prompt[i] = (int32_t)(hash_mix64(seed * 1000 + i) % RIG_VOCAB);
    return a;
}

void ask_free(struct ask *a)
{
    pthread_cond_destroy(&a->cond);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}

enum err_code ask_submit(struct ask *a, struct node *n, struct err *e)
{
    struct sched_request q = {.tokens = a->prompt,
                              .n_tokens = a->n_prompt,
                              .n_predict = a->n_predict,
                              .sampling = {.seed = a->seed, .top_p = 1},
                              .ctx = a,
                              .on_token = ask_on_token,
                              .on_end = ask_on_end};
    return node_submit(n, &q, &a->id, e);
}

struct ask *ask_send_at(struct rig *r, uint32_t rank, uint32_t seed, uint32_t n_prompt, uint32_t n_predict)
{
    struct ask *a = ask_new(seed, n_prompt, n_predict);
    struct err e;
    if (ask_submit(a, r->node[rank], &e) != OK)
        fail_msg("rank %u: %s", rank, e.msg);
    return a;
}

struct ask *ask_send(struct rig *r, uint32_t seed, uint32_t n_prompt, uint32_t n_predict)
{
    return ask_send_at(r, 0, seed, n_prompt, n_predict);
}

/* Waits for n tokens or the end. */
void ask_wait(struct ask *a, uint32_t n)
{
    uint64_t deadline = clock_deadline_ms(RIG_WAIT_MS);
    bool in_time = true;
    pthread_mutex_lock(&a->mutex);
    while (a->n_ends == 0 && a->n_out < n && in_time)
        in_time = thread_cond_wait(&a->cond, &a->mutex, deadline);
    pthread_mutex_unlock(&a->mutex);
    if (!in_time)
        fail_msg("request %llu hangs after %u tokens", (unsigned long long)a->id, a->n_out);
}

/* The tokens so far are the right ones, and it ended for that reason. */
void ask_ends(struct ask *a, enum sched_reason reason)
{
    int32_t want[RIG_CTX + 1] = {0};
    ask_wait(a, UINT32_MAX);
    if (a->reason != reason)
        fail_msg("request %llu ended as %s (%s), not as %s", (unsigned long long)a->id, sched_reason_name(a->reason),
                 a->text, sched_reason_name(reason));
    assert_int_equal(a->n_ends, 1);
    rig_expected(a->prompt, a->n_prompt, a->seed, a->n_out, want);
    for (uint32_t i = 0; i < a->n_out; i++)
        assert_int_equal(a->out[i], want[i]);
    if (reason == SCHED_LENGTH)
        assert_int_equal(a->n_out, a->n_predict);
    assert_int_equal(a->code == OK, reason != SCHED_FAILED);
}

void ask_done(struct ask *a)
{
    ask_ends(a, SCHED_LENGTH);
    ask_free(a);
}

/* The ring answers as it should. */
void rig_serves(struct rig *r, uint32_t seed)
{
    struct ask *a[4];
    for (uint32_t i = 0; i < 4; i++)
        a[i] = ask_send(r, seed + i, 3 + i, 8);
    for (uint32_t i = 0; i < 4; i++)
        ask_done(a[i]);
}
