/* SPDX-License-Identifier: MIT */
#include "cli/gen.h"

#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Under the mutex: whoever has seen the end there may close the descriptor. */
static void notify(struct gen *g)
{
    uint64_t one = 1;
    while (write(g->event_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void on_token(void *ctx, uint64_t id, const struct batch_result *r)
{
    struct gen *g = ctx;
    (void)id;
    pthread_mutex_lock(&g->mutex);
    g->last_ns = clock_now_ns();
    if (g->n == 0)
        g->first_ns = g->last_ns;
    if (g->n < g->cap)
        g->tokens[g->n++] = r->token;
    notify(g);
    pthread_mutex_unlock(&g->mutex);
}

static void on_end(void *ctx, uint64_t id, enum sched_reason reason, enum err_code code, const char *text)
{
    struct gen *g = ctx;
    (void)id;
    pthread_mutex_lock(&g->mutex);
    g->ended = true;
    g->reason = reason;
    if (code != OK)
        err_set(&g->err, code, "%s", text);
    notify(g);
    pthread_mutex_unlock(&g->mutex);
}

static enum err_code collect_eog(const struct tok *t, struct tok_ids *out, struct err *e)
{
    for (uint32_t i = 0; t && i < tok_n_vocab(t); i++) {
        if (!tok_is_eog(t, (int32_t)i))
            continue;
        if (out->n == out->cap) {
            size_t cap = out->cap ? out->cap * 2 : 16;
            int32_t *p = realloc(out->id, cap * sizeof *p);
            if (!p)
                return err_set(e, ERR_NOMEM, "out of memory");
            out->id = p;
            out->cap = cap;
        }
        out->id[out->n++] = (int32_t)i;
    }
    return OK;
}

enum err_code gen_start(struct gen *g, struct node *node, const struct tok *t, const struct tok_ids *prompt,
                        uint32_t n_predict, const struct batch_sampling *sampling, struct err *e)
{
    struct tok_ids eog = {0};
    *g = (struct gen){.cap = n_predict, .event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    g->tokens = malloc(n_predict * sizeof *g->tokens);
    pthread_mutex_init(&g->mutex, NULL);
    enum err_code rc = g->event_fd < 0 ? err_set_os(e, ERR_IO, errno, "cannot make an event descriptor")
                       : !g->tokens    ? err_set(e, ERR_NOMEM, "out of memory")
                                       : collect_eog(t, &eog, e);
    struct sched_request r = {.tokens = prompt->id,
                              .n_tokens = (uint32_t)prompt->n,
                              .n_predict = n_predict,
                              .eog = eog.id,
                              .n_eog = (uint32_t)eog.n,
                              .sampling = *sampling,
                              .ctx = g,
                              .on_token = on_token,
                              .on_end = on_end};
    if (rc == OK && prompt->n > UINT32_MAX)
        rc = err_set(e, ERR_LIMIT, "the prompt is too long");
    if (rc == OK)
        rc = node_submit(node, &r, &g->id, e);
    tok_ids_free(&eog);
    if (rc != OK)
        gen_fini(g);
    return rc;
}

bool gen_take(struct gen *g, int32_t *token, bool *ended)
{
    uint64_t count;
    /* Cleared before looking: what comes after the look sets it again. EAGAIN: it was not set. */
    while (read(g->event_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&g->mutex);
    bool some = g->n_taken < g->n;
    if (some)
        *token = g->tokens[g->n_taken++];
    *ended = g->ended && g->n_taken == g->n;
    pthread_mutex_unlock(&g->mutex);
    return some;
}

void gen_fini(struct gen *g)
{
    if (g->event_fd >= 0)
        close(g->event_fd);
    free(g->tokens);
    pthread_mutex_destroy(&g->mutex);
    g->tokens = NULL;
    g->event_fd = -1;
}
