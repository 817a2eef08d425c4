/* SPDX-License-Identifier: MIT
 *
 * The body of a request for text, from JSON to a checked struct; and errors as the API shows them. Everything that a
 * client may get wrong is found here and answered with a sentence that names the parameter, what it was and what would
 * be right. Fields that nobody here knows are ignored; fields that ask for what cannot be done are refused. Pure
 * functions.
 */
#ifndef KVASIR_API_REQUEST_H
#define KVASIR_API_REQUEST_H

#include "batch/batch.h"
#include "tok/chat.h"

#define API_MAX_STOP     16u
#define API_MAX_STOP_LEN 1024u
#define API_MAX_N        16u
#define API_MAX_PROMPTS  64u

/* {"error": {"message", "type", "param", "code"}} and the status it comes with. */
struct api_error {
    unsigned status;
    unsigned retry_s; /* of 429 and 503: when to try again; 0: 1 */
    const char *code; /* static; NULL: null */
    char param[96];   /* "": null */
    char message[512];
};

/* Fills *x and returns false, so that `return api_fail(x, ...)` reads well. param may be NULL. */
bool api_fail(struct api_error *x, unsigned status, const char *code, const char *param, const char *fmt, ...)
    KV_PRINTF(5, 6);
/* Of a status: "invalid_request_error", "authentication_error", ... */
const char *api_error_type(unsigned status);
/* Appends the object {"message":...}, whatever bytes are in it. */
void api_error_put(struct buf *out, const struct api_error *x);

/* What a request is compared with. */
struct api_limits {
    uint32_t n_vocab, n_ctx;
    const char *model_name, *model_id; /* as text */
};

/* Is this what the client may call the loaded model? Its name in any case, with or without folders and ".gguf"; its id
 * or the first 12 digits or more of it; "default"; nothing. */
bool api_is_model(const struct api_limits *lim, const char *name);

/* A prompt of /v1/completions: text, or token ids (text NULL). */
struct api_prompt {
    const char *text;
    size_t len;
    int32_t *ids; /* owned */
};

struct api_request {
    bool chat; /* messages, else prompts */
    bool stream, include_usage;
    bool seeded;         /* the request says sampling.seed */
    bool logprobs;       /* sampling.n_top says how many likeliest tokens beside them */
    uint32_t n;          /* choices of each prompt */
    uint64_t max_tokens; /* 0: the request does not say */
    enum chat_think think;
    struct batch_sampling sampling;
    struct api_text {
        char *text;
        size_t len;
    } stop[API_MAX_STOP];
    uint32_t n_stop;

    /* Until api_request_drop_input; texts are borrowed from doc or joined. */
    struct chat_message *messages;
    struct api_prompt *prompts;
    size_t n_messages, n_prompts;
    void *doc;
    char **joined; /* [n_joined] messages put together from parts */
    size_t n_joined;
};

/* chat: the body of /v1/chat/completions, else of /v1/completions. On failure *x says why and out is untouched. */
bool api_request_parse(const void *body, size_t len, bool chat, const struct api_limits *lim, struct api_request *out,
                       struct api_error *x) KV_MUST_USE;
void api_request_drop_input(struct api_request *q); /* messages and prompts are not needed any more */
void api_request_fini(struct api_request *q);

#endif
