/* SPDX-License-Identifier: MIT
 *
 * What the access log says of a request for text beside what it says of every HTTP request: how much, and how it ended;
 * never what a prompt or an answer said.
 */
#include "api/impl.h"

static void put_call(struct buf *out, const struct api_call *call)
{
    uint64_t n = 0;
    const char *finish = call->n_choices ? call->choice[0].finish : NULL;
    for (uint32_t i = 0; i < call->n_choices; i++)
        n += call->choice[i].n_tok;
    buf_printf(out, ",\"stream\":%s,\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"finish\":\"%s\"",
               call->q.stream ? "true" : "false", (unsigned long long)call->n_prompt_tok, (unsigned long long)n,
               finish ? finish : "cancelled");
}

void api_access_write(const struct api *a, struct http_access l, const struct api_call *call)
{
    struct buf more = {0};
    if (a->log_fd < 0)
        return;
    if (call)
        put_call(&more, call);
    l.more = &more;
    http_access_write(a->log_fd, &l);
    buf_free(&more);
}
