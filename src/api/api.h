/* SPDX-License-Identifier: MIT
 *
 * The HTTP API of a node (OpenAI-compatible, docs/api.md), its chat page, metrics and state. Requests enter here, at
 * whatever rank this node is: the prompt is tokenized, handed to the ring with node_submit, the tokens that come back
 * are turned into text and sent on. Owns an http_server; a request costs no thread.
 */
#ifndef KVASIR_API_API_H
#define KVASIR_API_API_H

#include "http/server.h"
#include "ring/node.h"
#include "tok/chat.h"
#include "tok/tok.h"

struct api;

struct api_config {
    struct node *node; /* all borrowed until api_stop */
    const struct manifest *m;
    uint32_t rank;
    const struct tok *tok;
    const struct chat *chat; /* NULL: the model has no chat format; chat_reason says why */
    const char *chat_reason;
    const char *addr;        /* "host:port"; port 0: any */
    const char *keys_file;   /* API keys, one a line, "#" comments; NULL: open to all. Read again when it changes */
    const char *cors_origin; /* "*" or an origin; NULL: none */
    const char *allow_host;  /* "NAME,..." or "*": names besides localhost by which a loopback address may be asked */
    const char *access_log;  /* file for JSON lines without prompts; "-": stderr; NULL: none */
    uint32_t max_requests;   /* at once in this node; 0: 256; more: 429 */
    uint32_t max_connections, head_ms; /* as http_config's */
    uint32_t default_max_tokens;       /* when the request does not say; 0: as many as fit the context */
};

/* ERR_ARG, ERR_IO (address, key file), ERR_NOMEM. */
enum err_code api_start(const struct api_config *config, struct api **out, struct err *e) KV_MUST_USE;
/* Cancels what runs, closes connections, joins. NULL is fine. */
void api_stop(struct api *a);
/* Lets running requests end until the deadline; new ones get 503. true: none runs any more. Any thread; may be called
 * again. */
bool api_drain(struct api *a, uint64_t deadline_ns);
uint16_t api_port(const struct api *a);

#endif
