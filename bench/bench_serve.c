/* SPDX-License-Identifier: MIT
 *
 * What the API and the scheduler add to a token: a ring of one rank runs a tiny model, a client on loopback streams a
 * completion over HTTP. For each token: from the end of the stage's step to the moment its chunk is at the client, and
 * from there (the end of a step) to the beginning of the next one. The stage's own time is in neither.
 *
 * usage: bench_serve [TOKENS [ROUNDS]]; exit status 1 when the median of both together is above 150 us.
 */
#include "stats.h"

#include "api/api.h"
#include "base/clock.h"
#include "base/parse.h"
#include "cli/layout.h"
#include "cli/rank.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_TOKENS 400
#define WANTED_US  150.0

static struct stage *stage;
static uint64_t began[MAX_TOKENS + 8], ended[MAX_TOKENS + 8]; /* of steps that sample; compute thread, then main */
static _Atomic uint32_t n_steps;

static _Noreturn void die(const char *what, const struct err *e)
{
    fprintf(stderr, "bench_serve: %s%s%s\n", what, e ? ": " : "", e ? e->msg : "");
    exit(1);
}

static enum err_code step(void *ctx, struct batch *b, struct err *e)
{
    uint32_t n = n_steps;
    (void)ctx;
    uint64_t t0 = clock_now_ns();
    enum err_code rc = stage_step(stage, b, e);
    if (b->n_results > 0 && n < MAX_TOKENS + 8) {
        began[n] = t0;
        ended[n] = clock_now_ns();
        n_steps = n + 1;
    }
    return rc;
}

static enum err_code sampling(void *ctx, uint32_t slot, const struct batch_sampling *s, struct err *e)
{
    (void)ctx;
    return stage_sampling(stage, slot, s, e);
}

static int dial(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct timeval wait = {.tv_sec = 20};
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        die("cannot connect", NULL);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    return fd;
}

/* Streams n tokens; when each one's chunk was here. Returns how many came. */
static uint32_t stream(uint16_t port, uint32_t n, uint64_t *at)
{
    char body[256], head[512];
    static char in[1 << 20];
    size_t len = 0, seen = 0;
    uint32_t got = 0;
    snprintf(body, sizeof body, "{\"prompt\":\"Once upon a time\",\"stream\":true,\"temperature\":0,\"max_tokens\":%u}",
             n);
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
             "%zu\r\nConnection: close\r\n\r\n%s",
             strlen(body), body);
    int fd = dial(port);
    if (write(fd, head, strlen(head)) != (ssize_t)strlen(head))
        die("cannot send", NULL);
    for (ssize_t k; len + 1 < sizeof in && (k = read(fd, in + len, sizeof in - 1 - len)) > 0;) {
        uint64_t now = clock_now_ns();
        len += (size_t)k;
        in[len] = 0;
        for (char *p; (p = strstr(in + seen, "\"text\":\"")); seen = (size_t)(p - in) + 8)
            if (p[8] != '"' && got < n) /* the last chunk has no text, only why it ended */
                at[got++] = now;
    }
    close(fd);
    return got;
}

int main(int argc, char **argv)
{
    struct err e;
    struct gguf *g;
    struct tok *tok;
    uint32_t n = 200, rounds = 5;
    if ((argc > 1 && parse_u32("TOKENS", argv[1], 8, MAX_TOKENS, &n, &e) != OK) ||
        (argc > 2 && parse_u32("ROUNDS", argv[2], 1, 100, &rounds, &e) != OK) || key_library_init(&e) != OK ||
        gguf_open(KV_TEST_DATA "/llama-tied-f32.gguf", &g, &e) != OK || tok_new(g, NULL, &tok, &e) != OK)
        die("cannot begin", &e);
    struct manifest m;
    struct layout_options o = {.n_stages = 1, .n_slots = 2};
    struct rank_options ro = {.n_threads = 1};
    struct rank r;
    if (layout_make(g, &o, &m, &e) != OK || rank_open(&r, g, &m, 0, NULL, &ro, &e) != OK)
        die("cannot load", &e);
    stage = r.stage;
    struct node_config nc = {.m = &m, .stage = {.step = step, .sampling = sampling}, .listen_fd = -1};
    struct node *node;
    if (node_start(&nc, &node, &e) != OK)
        die("cannot start the node", &e);
    struct api *api;
    struct api_config ac = {.node = node, .m = &m, .tok = tok, .addr = "127.0.0.1:0", .chat_reason = "not needed"};
    if (api_start(&ac, &api, &e) != OK)
        die("cannot serve", &e);

    static uint64_t at[MAX_TOKENS];
    static double out[MAX_TOKENS], next[MAX_TOKENS], both[MAX_TOKENS];
    double medians[100];
    for (uint32_t k = 0; k < rounds + 1; k++) { /* the first one warms up */
        n_steps = 0;
        uint32_t got = stream(api_port(api), n, at);
        if (got < 8 || n_steps < got)
            die("the stream ended early", NULL);
        uint32_t count = 0;
        for (uint32_t i = 1; i + 1 < got; i++, count++) {
            out[count] = (double)(at[i] - ended[i]) / 1e3;
            next[count] = (double)(began[i + 1] - ended[i]) / 1e3;
            both[count] = out[count] + next[count];
        }
        double middle = stats_percentile(both, count, 0.5);
        if (k > 0) {
            medians[k - 1] = middle;
            printf("round %u: %u tokens; to the client %.0f us (99 %%: %.0f), to the next step %.0f us (99 %%: %.0f); "
                   "both "
                   "%.0f us\n",
                   k - 1, got, stats_percentile(out, count, 0.5), stats_percentile(out, count, 0.99),
                   stats_percentile(next, count, 0.5), stats_percentile(next, count, 0.99), middle);
        }
    }
    double middle = stats_percentile(medians, rounds, 0.5);
    printf("the API and the scheduler add %.0f us to a token (wanted: at most %.0f)\n", middle, WANTED_US);
    api_stop(api);
    node_stop(node);
    stage_close(r.stage);
    tok_free(tok);
    manifest_fini(&m);
    gguf_close(g);
    return middle > WANTED_US;
}
