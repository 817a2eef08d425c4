/* SPDX-License-Identifier: MIT
 *
 * The HTTP API of a node process: its options, what it needs of the model file, and its beginning and end. Shared by
 * node, which serves, and up, which passes the options on.
 */
#ifndef KVASIR_CLI_SERVE_H
#define KVASIR_CLI_SERVE_H

#include "api/api.h"
#include "cli/opt.h"

#define SERVE_DRAIN_S 10u

struct serve_options {
    const char *keys, *cors, *allow_host, *access_log, *chat_template; /* NULL: none */
};
#define SERVE_OPTION_ROWS(o)                                                                                           \
    {"api-keys", 0, OPT_STRING, "FILE", "API keys, one a line; without it the API is open to all", &(o).keys, 0, 0},   \
        {"cors", 0, OPT_STRING, "ORIGIN", "pages of this origin may use the API, * for all", &(o).cors, 0, 0},         \
        {"allow-host",                                                                                                 \
         0,                                                                                                            \
         OPT_STRING,                                                                                                   \
         "NAME,...",                                                                                                   \
         "names besides localhost by which a loopback address may be asked, * for all",                                \
         &(o).allow_host,                                                                                              \
         0,                                                                                                            \
         0},                                                                                                           \
        {"access-log",    0, OPT_STRING, "FILE", "a JSON line for each HTTP request (- is the standard error)",        \
         &(o).access_log, 0, 0},                                                                                       \
        {"chat-template",    0, OPT_STRING, "NAME", "chat format, when the model's is not known or wrong",             \
         &(o).chat_template, 0, 0}

struct serve {
    struct tok *tok;
    struct chat chat;
    bool has_chat;
    char chat_reason[320];
    struct api *api;
};

/* Takes vocabulary and chat format out of the file, which may be closed afterwards. ERR_ARG: no format has the name;
 * else as tok_new. s is {0} before. */
enum err_code serve_load(struct serve *s, const struct gguf *g, const struct serve_options *o,
                         struct err *e) KV_MUST_USE;
/* Errors as api_start. */
enum err_code serve_start(struct serve *s, const struct serve_options *o, const char *addr, struct node *node,
                          const struct manifest *m, uint32_t rank, struct err *e) KV_MUST_USE;
/* Takes nothing new; lets go on what runs, here and at the other nodes, until the deadline or until signal_fd becomes
 * readable. */
void serve_drain(struct serve *s, struct node *node, int signal_fd, uint64_t deadline_ns);
/* Before the node stops. */
void serve_stop(struct serve *s);
void serve_fini(struct serve *s);

#endif
