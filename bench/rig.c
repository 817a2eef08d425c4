/* SPDX-License-Identifier: MIT */
#include "rig.h"

#include "base/clock.h"
#include "lib/maker.h"
#include "net/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Noreturn void rig_die(const struct err *e)
{
    fprintf(stderr, "bench: %s: %s\n", err_name(e->code), e->msg);
    exit(1);
}

void rig_up(struct rig *r, const struct gguf *g, const struct layout_options *o, bool no_repack)
{
    struct err e;
    int fds[RIG_MAX_RANKS] = {-1, -1};
    struct rank_options ro = {.n_threads = 1, .no_repack = no_repack};
    memset(r, 0, sizeof *r);
    if (layout_make(g, o, &r->m, &e) != OK)
        rig_die(&e);
    uint32_t n = r->m.n_ranks;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t port;
        key_generate(&r->secrets[i]);
        key_public_of(&r->secrets[i], &r->m.ranks[i].key);
        if (n > 1 && net_tcp_listen("127.0.0.1:0", &fds[i], &port, &e) != OK)
            rig_die(&e);
        if (n > 1)
            snprintf(r->m.ranks[i].addr, sizeof r->m.ranks[i].addr, "127.0.0.1:%u", port);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct node_config c = {.secret = &r->secrets[i], .listen_fd = fds[i]};
        if (rank_open(&r->ranks[i], g, &r->m, i, NULL, &ro, &e) != OK || rank_start(&r->ranks[i], &r->m, &c, &e) != OK)
            rig_die(&e);
    }
    if (node_wait_ready(r->ranks[0].node, clock_deadline_ms(30000), &e) != OK)
        rig_die(&e);
}

void rig_down(struct rig *r)
{
    for (uint32_t i = 0; i < r->m.n_ranks; i++)
        rank_close(&r->ranks[i]);
    manifest_fini(&r->m);
}

struct gguf *rig_model(const char *path, const char *preset, const char *made)
{
    struct err e;
    struct gguf *g;
    struct maker_params p;
    if (!path && access(made, R_OK) != 0 && (maker_preset(preset, &p, &e) != OK || maker_write(made, &p, &e) != OK))
        rig_die(&e);
    if (gguf_open(path ? path : made, &g, &e) != OK)
        rig_die(&e);
    return g;
}
