/* SPDX-License-Identifier: MIT
 *
 * The asking side of the OpenAI API: a conversation goes to a server, the answer comes back piece by piece. Also plain
 * GETs, for the state of our own nodes. Works with any server that speaks it. Blocking; main thread.
 */
#ifndef KVASIR_CLI_OAI_H
#define KVASIR_CLI_OAI_H

#include "base/buf.h"

#define OAI_DEFAULT_PORT 8080 /* of `kvasir up` */
#define OAI_DEFAULT_URL  "http://127.0.0.1:8080/v1"
#define OAI_URL_SIZE     1024
#define OAI_NAME_SIZE    256

/* A server, and how it is called. */
struct oai {
    char base[OAI_URL_SIZE]; /* "http://host:port/v1", no slash at the end */
    const char *key;         /* NULL: none */
    uint32_t idle_ms;        /* give up after so long without a byte; 0: as http_call */
    void *ctx;
    bool (*cancelled)(void *ctx); /* asked several times a second; may be NULL */
};

/* A URL as people write it: "host:8080" and "http://host/" become "http://host:8080/v1" and "http://host/v1"; a path
 * stays as it is. ERR_ARG. */
enum err_code oai_url(const char *text, char out[OAI_URL_SIZE], struct err *e) KV_MUST_USE;

/* Sampling settings that are sent when they were set; the server has defaults for the others. */
enum oai_setting { OAI_TEMPERATURE, OAI_TOP_P, OAI_TOP_K, OAI_MIN_P, OAI_MAX_TOKENS, OAI_SEED, OAI_SETTING_COUNT };
struct oai_settings {
    double value[OAI_SETTING_COUNT];
    bool set[OAI_SETTING_COUNT];
};
const char *oai_setting_name(enum oai_setting s); /* as in JSON: "top_p" */
/* ERR_ARG names the settings, or the range of this one. "default" unsets it. */
enum err_code oai_setting_put(struct oai_settings *s, const char *name, const char *value, struct err *e) KV_MUST_USE;

struct oai_message {
    const char *role; /* "system", "user", "assistant"; static */
    char *text;       /* owned */
};

struct oai_request {
    const char *model; /* NULL: none is named */
    const struct oai_message *messages;
    size_t n_messages;
    const struct oai_settings *settings;
    bool plain; /* /completions: the messages' texts one after the other are continued. For models without chats */
    void *ctx;
    /* A piece of the answer, or of what the model thought before it. */
    void (*on_text)(void *ctx, const char *text, size_t len, bool thought);
};
struct oai_answer {
    unsigned status;            /* of HTTP; 0: no response */
    char code[64];              /* of the error, "" when it has none */
    char reason[OAI_NAME_SIZE]; /* why the answer ended: "stop", "length", ... */
};

/* Asks and hands the answer over as it comes. Errors: as http_call; what the server says in an error gives ERR_AUTH
 * (401, 403), ERR_NOT_FOUND, ERR_BUSY (429, 503), ERR_ARG (other 4xx) or ERR_IO with the server's sentence; ERR_FORMAT
 * for what is no answer. *a is always filled. */
enum err_code oai_ask(const struct oai *o, const struct oai_request *r, struct oai_answer *a,
                      struct err *e) KV_MUST_USE;

/* The first model of the server's list. */
enum err_code oai_first_model(const struct oai *o, char out[OAI_NAME_SIZE], struct err *e) KV_MUST_USE;

/* GET of a path under the base ("/models"), or of one beside its /v1 ("../health"): body and status whatever the latter
 * is. ERR_CANCELLED: o->cancelled said so; ERR_LIMIT: more than a megabyte; else as http_call. */
enum err_code oai_get(const struct oai *o, const char *path, struct buf *body, unsigned *status,
                      struct err *e) KV_MUST_USE;

/* The error that a response is, from its status and body. Returns the code. */
enum err_code oai_error(unsigned status, const void *body, size_t len, struct err *e);

/* A key from a file of one line that only its owner may read; ERR_AUTH when others may. Wiped and freed by
 * oai_key_free. */
enum err_code oai_key_load(const char *path, char **out, struct err *e) KV_MUST_USE;
void oai_key_free(char *key);

#endif
