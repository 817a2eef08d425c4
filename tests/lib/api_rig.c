/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/api_rig.h"

#include "base/clock.h"
#include "lib/test_util.h"
#include "model/hparams.h"
#include "net/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Takes one of the steps that it may do, when there is one. */
static void wait_for_leave(struct api_rig *r)
{
    int left = atomic_load(&r->steps_left);
    while (left >= 0) {
        if (left == 0) {
            usleep(500);
            left = atomic_load(&r->steps_left);
        } else if (atomic_compare_exchange_weak(&r->steps_left, &left, left - 1)) {
            return;
        }
    }
}

static enum err_code run_step(void *ctx, struct batch *b, struct err *e)
{
    struct api_rig_stage *s = ctx;
    struct api_rig *r = s->rig;
    uint32_t rows;
    if (s == &r->stage[atomic_load(&r->held_rank)])
        wait_for_leave(r);
    if (!s->last)
        return stage_step(s->stage, b, e);
    int code = atomic_exchange(&r->fail_code, OK);
    if (code != OK)
        return err_set(e, (enum err_code)code, "the test wants it so");
    enum err_code rc = stage_step(s->stage, b, e);
    const float *logits = rc == OK ? stage_logits(s->stage, &rows) : NULL;
    if (!logits)
        return rc;
    size_t row = r->m.n_vocab;
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = 0; i < rows && r->n_logits < r->cap_logits; i++)
        memcpy(r->logits + r->n_logits++ * row, logits + i * row, row * sizeof *logits);
    pthread_mutex_unlock(&r->mutex);
    return OK;
}

static enum err_code set_sampling(void *ctx, uint32_t slot, const struct batch_sampling *s, struct err *e)
{
    return stage_sampling(((struct api_rig_stage *)ctx)->stage, slot, s, e);
}

static void make_manifest(struct api_rig *r, uint32_t n_slots)
{
    struct hparams h;
    struct err e;
    assert_int_equal(hparams_read(r->g, &h, &e), OK);
    r->m = (struct manifest){.epoch = 1,
                             .ring_id = {1},
                             .model_id = {0xab, 0xcd},
                             .model_name = "tiny",
                             .n_blocks = h.n_block,
                             .n_embd = h.n_embd,
                             .n_vocab = h.n_vocab,
                             .n_ctx = API_RIG_CTX,
                             .n_slots = n_slots,
                             .n_batch = 128,
                             .n_ranks = r->n,
                             .ranks = r->rows};
    hparams_fini(&h);
    for (uint32_t i = 0; i < r->n; i++) {
        uint16_t port;
        r->fd[i] = -1;
        r->rows[i].first = i * r->m.n_blocks / r->n;
        r->rows[i].end = (i + 1) * r->m.n_blocks / r->n;
        memcpy(r->rows[i].device, "cpu", 4);
        key_generate(&r->key[i]);
        key_public_of(&r->key[i], &r->rows[i].key);
        if (r->n == 1)
            break;
        assert_int_equal(net_tcp_listen("127.0.0.1:0", &r->fd[i], &port, &e), OK);
        snprintf(r->rows[i].addr, sizeof r->rows[i].addr, "127.0.0.1:%u", port);
    }
    if (manifest_check(&r->m, &e) != OK)
        fail_msg("%s", e.msg);
}

struct api_rig *api_rig_new(const char *name, uint32_t n, uint32_t n_slots)
{
    struct api_rig *r = calloc(1, sizeof *r);
    char file[128], path[PATH_MAX];
    struct err e;
    assert_non_null(r);
    assert_true(n <= API_RIG_RANKS);
    r->n = n;
    atomic_init(&r->held_rank, n - 1);
    atomic_init(&r->steps_left, -1);
    pthread_mutex_init(&r->mutex, NULL);
    snprintf(file, sizeof file, "%s.gguf", name);
    if (key_library_init(&e) != OK || gguf_open(test_data(file, path), &r->g, &e) != OK ||
        tok_new(r->g, NULL, &r->tok, &e) != OK)
        fail_msg("%s", e.msg);
    r->has_chat = chat_pick(r->g, NULL, &r->chat, &e) == OK;
    make_manifest(r, n_slots);
    r->cap_logits = 256;
    r->logits = malloc(r->cap_logits * r->m.n_vocab * sizeof *r->logits);
    assert_non_null(r->logits);
    r->config = (struct api_config){.m = &r->m,
                                    .tok = r->tok,
                                    .chat = r->has_chat ? &r->chat : NULL,
                                    .chat_reason = "the file has no template",
                                    .addr = "127.0.0.1:0"};
    return r;
}

void api_rig_start(struct api_rig *r, uint32_t i)
{
    struct err e;
    struct api_rig_stage *s = &r->stage[i];
    struct stage_params p = {.first = r->rows[i].first,
                             .end = r->rows[i].end,
                             .n_ctx = r->m.n_ctx,
                             .n_slots = r->m.n_slots,
                             .n_batch = r->m.n_batch,
                             .n_threads = 1,
                             .kv_type = KV_F32};
    *s = (struct api_rig_stage){.rig = r, .last = i + 1 == r->n};
    if (stage_open(r->g, &p, &s->stage, &e) != OK)
        fail_msg("rank %u: %s", i, e.msg);
    struct node_config c = {.m = &r->m,
                            .rank = i,
                            .secret = &r->key[i],
                            .listen_fd = r->fd[i],
                            .listen_addr = r->fd[i] < 0 && r->n > 1 ? r->rows[i].addr : NULL,
                            .max_waiting = r->max_waiting,
                            .stage = {.ctx = s, .step = run_step, .sampling = set_sampling}};
    r->fd[i] = -1;
    /* A restarted rank listens where it did before, which may take a moment to be free. */
    uint64_t deadline = clock_deadline_ms(API_RIG_MS);
    enum err_code rc;
    while ((rc = node_start(&c, &r->node[i], &e)) == ERR_IO && clock_now_ns() < deadline)
        usleep(10000);
    if (rc != OK)
        fail_msg("rank %u: %s", i, e.msg);
    struct api_config a = r->config;
    a.node = r->node[i];
    a.rank = i;
    if (api_start(&a, &r->api[i], &e) != OK)
        fail_msg("rank %u: %s", i, e.msg);
}

void api_rig_stop(struct api_rig *r, uint32_t i)
{
    api_stop(r->api[i]);
    node_stop(r->node[i]);
    stage_close(r->stage[i].stage);
    r->api[i] = NULL;
    r->node[i] = NULL;
    r->stage[i].stage = NULL;
}

void api_rig_ready(struct api_rig *r)
{
    struct err e;
    for (uint32_t i = 0; i < r->n; i++) {
        if (node_wait_ready(r->node[i], clock_deadline_ms(API_RIG_MS), &e) != OK)
            fail_msg("rank %u: %s", i, e.msg);
    }
}

struct api_rig *api_rig_up(const char *name, uint32_t n, uint32_t n_slots)
{
    struct api_rig *r = api_rig_new(name, n, n_slots);
    for (uint32_t i = 0; i < n; i++)
        api_rig_start(r, i);
    api_rig_ready(r);
    return r;
}

void api_rig_free(struct api_rig *r)
{
    api_rig_release(r);
    for (uint32_t i = 0; i < r->n; i++) {
        api_rig_stop(r, i);
        if (r->fd[i] >= 0)
            close(r->fd[i]);
    }
    tok_free(r->tok);
    gguf_close(r->g);
    free(r->logits);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

uint16_t api_rig_port(const struct api_rig *r, uint32_t i)
{
    return api_port(r->api[i]);
}

void api_rig_allow(struct api_rig *r, unsigned n)
{
    atomic_store(&r->steps_left, (int)n);
}

void api_rig_hold(struct api_rig *r)
{
    api_rig_allow(r, 0);
}

void api_rig_release(struct api_rig *r)
{
    atomic_store(&r->steps_left, -1);
}

void api_rig_idle(struct api_rig *r)
{
    uint64_t deadline = clock_deadline_ms(API_RIG_MS);
    struct node_stats s;
    do {
        node_stats_get(r->node[0], &s);
        if (s.sched.n_active + s.sched.n_waiting + s.sched.n_steps == 0)
            return;
        usleep(2000);
    } while (clock_now_ns() < deadline);
    fail_msg("%u requests hold a slot, %u wait, %u steps are on their way", s.sched.n_active, s.sched.n_waiting,
             s.sched.n_steps);
}

void api_rig_until(struct api_rig *r, uint32_t n, uint32_t n_active)
{
    uint64_t deadline = clock_deadline_ms(API_RIG_MS);
    struct node_stats s;
    do {
        node_stats_get(r->node[0], &s);
        if (s.sched.n_active >= n_active && s.sched.n_active + s.sched.n_waiting == n)
            return;
        usleep(1000);
    } while (clock_now_ns() < deadline);
    fail_msg("%u requests hold a slot and %u wait; not %u, of which %u hold one", s.sched.n_active, s.sched.n_waiting,
             n, n_active);
}
