/* SPDX-License-Identifier: MIT */
#include "cli/serve.h"

#include "base/clock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define SLICE_MS 50u

enum err_code serve_load(struct serve *s, const struct gguf *g, const struct serve_options *o, struct err *e)
{
    struct err why;
    enum err_code rc = tok_new(g, NULL, &s->tok, e);
    if (rc != OK)
        return err_prefix(e, "the API cannot be served");
    rc = chat_pick(g, o->chat_template, &s->chat, &why);
    s->has_chat = rc == OK;
    if (rc == OK)
        return OK;
    if (o->chat_template) {
        if (e)
            *e = why;
        return rc;
    }
    snprintf(s->chat_reason, sizeof s->chat_reason, "%s", why.msg);
    return OK;
}

enum err_code serve_start(struct serve *s, const struct serve_options *o, const char *addr, struct node *node,
                          const struct manifest *m, uint32_t rank, struct err *e)
{
    struct api_config c = {
        .node = node,
        .m = m,
        .rank = rank,
        .tok = s->tok,
        .chat = s->has_chat ? &s->chat : NULL,
        .chat_reason = s->chat_reason,
        .addr = addr,
        .keys_file = o->keys,
        .cors_origin = o->cors,
        .allow_host = o->allow_host,
        .access_log = o->access_log,
    };
    return api_start(&c, &s->api, e);
}

/* A node that goes takes the ring with it, so it stays while others still need it. */
static bool ring_is_idle(struct node *node, struct node_ring *state)
{
    node_ring_state(node, state);
    return !state->ready || state->counts.n_active + state->counts.n_waiting == 0;
}

void serve_drain(struct serve *s, struct node *node, int signal_fd, uint64_t deadline_ns)
{
    struct pollfd fd = {.fd = signal_fd, .events = POLLIN};
    struct node_ring *state = malloc(sizeof *state);
    if (!s->api || !state) {
        free(state);
        return;
    }
    for (;;) {
        uint64_t now = clock_now_ns(), slice = clock_deadline_ms(SLICE_MS);
        if (now >= deadline_ns)
            break;
        bool idle = api_drain(s->api, slice < deadline_ns ? slice : deadline_ns);
        if (idle && ring_is_idle(node, state))
            break;
        if (poll(&fd, 1, idle ? (int)SLICE_MS : 0) > 0)
            break;
    }
    free(state);
}

void serve_stop(struct serve *s)
{
    api_stop(s->api);
    s->api = NULL;
}

void serve_fini(struct serve *s)
{
    tok_free(s->tok);
    s->tok = NULL;
}
