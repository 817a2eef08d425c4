/* SPDX-License-Identifier: MIT
 *
 * What the files of this room share. api.c: life and routes; guard.c: keys, origins; access.c: lines of the log;
 * generate.c: from a request to choices and from tokens to text; respond.c: what that looks like as JSON; ring.c: what
 * is known of model and ring; metrics.c. Everything belongs to the loop thread, except what is marked as guarded by
 * struct api's mutex: there the ring's threads leave tokens, and http_wake makes the loop take them.
 */
#ifndef KVASIR_API_IMPL_H
#define KVASIR_API_IMPL_H

#include "api/api.h"
#include "api/guard.h"
#include "api/request.h"
#include "http/access.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

#define API_ID_SIZE      40
#define API_HEARTBEAT_NS (15 * 1000000000ull)
#define API_N_BUCKETS    14
#define API_N_STATUS     21

enum api_route {
    API_PAGE,
    API_FAVICON,
    API_HEALTH,
    API_METRICS,
    API_RING,
    API_MODELS,
    API_MODEL, /* /v1/models/ID */
    API_CHAT,
    API_COMPLETIONS,
    API_OTHER,
    API_ROUTE_COUNT
};

enum api_finish { API_FINISH_STOP, API_FINISH_LENGTH, API_FINISH_CANCELLED, API_FINISH_ERROR, API_FINISH_COUNT };

struct api_histogram {
    uint64_t count[API_N_BUCKETS + 1];
    double sum;
};

struct api_metrics {
    uint64_t http[API_ROUTE_COUNT][API_N_STATUS];
    uint64_t choices[2][API_FINISH_COUNT]; /* [chat] */
    uint64_t errors[64];                   /* of the ring, by -code */
    uint64_t prompt_tok, out_tok, cancels;
    struct api_histogram duration, first_token;
};

/* One HTTP request from on_request to on_gone; http_user. */
struct api_exchange {
    struct api *a;
    struct http_request *r;
    enum api_route route;
    struct api_call *call; /* NULL: none, or refused */
    char id[API_ID_SIZE];  /* "chatcmpl-..." also of what is no chat, with another beginning */
};

struct api_logprob {
    int32_t token;
    float logprob;
    size_t begin; /* of its text in the choice's */
    uint32_t n_top;
    struct batch_top top[BATCH_MAX_TOP];
};

/* One text that is being generated. */
struct api_choice {
    struct api_call *call;
    uint32_t index;
    uint64_t id; /* of the node's request */

    /* guarded by the mutex */
    struct api_choice *next_ready;
    bool is_ready, ended, lost_token; /* lost_token: no memory for one */
    struct batch_result *in;
    size_t n_in, cap_in;
    enum sched_reason reason;
    enum err_code code;
    char why[200];

    bool cut;  /* a stop string was found: text ends before it */
    bool done; /* its text is complete; what still comes is dropped */
    const char *finish;
    struct tok_stream stream;
    struct buf text; /* so far */
    size_t n_sent;   /* bytes of it that went out or may go out */
    uint64_t n_tok;
    struct api_logprob *logprob;
    size_t n_logprobs, cap_logprobs, n_logprobs_sent;
};

/* A request for text. Lives until its client is gone or answered and the ring has ended all its choices. */
struct api_call {
    struct api *a;
    struct api_call *prev, *next;
    struct api_exchange *x; /* NULL: gone */
    struct api_request q;
    time_t created;
    uint64_t received_ns, last_sent_ns;
    uint64_t n_prompt_tok;
    bool begun;  /* the stream's head is out */
    bool closed; /* answered: nothing more may be written */
    bool had_token;
    uint32_t n_choices, n_done;
    uint32_t n_live; /* choices whose on_end has not been taken */
    struct api_choice *choice;
};

struct api {
    struct api_config c;
    struct api_limits lim;
    char model_id[DIGEST_HEX_SIZE];
    char model_name[MANIFEST_TEXT_SIZE];
    struct api_keys *keys; /* NULL: open */
    int log_fd;            /* -1: none */
    time_t started;
    int32_t *eog;
    uint32_t n_eog;

    struct api_call *calls;
    uint32_t n_live;       /* choices that the ring has */
    uint64_t next_tick_ns; /* of what is done about once a second */
    struct api_metrics metrics;

    pthread_mutex_t mutex;
    pthread_cond_t cond;      /* n_attached has become 0 */
    struct http_server *http; /* NULL before it has started and once it stops; guarded */
    struct api_choice *ready;
    uint32_t n_attached; /* calls with a client; guarded */
    atomic_bool draining;
};

/* --- api.c: answers; loop thread --- */
/* Whole. headers: further lines or NULL. */
void api_send(struct api_exchange *x, unsigned status, const char *type, const char *headers, const void *body,
              size_t len);
void api_send_json(struct api_exchange *x, struct buf *body);
void api_send_error(struct api_exchange *x, const struct api_error *why);
/* The head of a stream of events. */
void api_send_begin(struct api_exchange *x);
void api_random(void *out, size_t n);

/* --- access.c --- */
/* l: without more; call NULL: none. */
void api_access_write(const struct api *a, struct http_access l, const struct api_call *call);

/* --- generate.c --- */
void api_generate(struct api_exchange *x, bool chat);
void api_take(struct api *a);                      /* what the ring left for us */
void api_tick(struct api *a, uint64_t now_ns);     /* heartbeats */
void api_detach(struct api_call *call, bool done); /* the client is answered or gone */
void api_close_calls(struct api *a);               /* after the loop has ended: waits for the ring, frees */

/* --- respond.c --- */
void api_put_answer(const struct api_call *call, struct buf *out);
void api_put_role(const struct api_choice *ch, struct buf *out);
/* An event with what has come since the last one; finish NULL: goes on. text: of ch->text from n_sent, len bytes. */
void api_put_chunk(struct api_choice *ch, size_t len, const char *finish, struct buf *out);
void api_put_usage(const struct api_call *call, struct buf *out);

/* --- ring.c --- */
bool api_ring_whole(struct api *a, char *why, size_t size);
void api_put_health(struct api_exchange *x);
void api_put_ring(struct api *a, struct buf *out);
void api_put_model(struct api *a, struct buf *out);

/* --- metrics.c --- */
void api_put_metrics(struct api *a, struct buf *out);
void api_count_http(struct api *a, enum api_route route, unsigned status);
void api_observe(struct api_histogram *h, uint64_t ns);

/* Made from src/api/page/index.html by cmake/embed.cmake. */
extern const unsigned char api_page_html[];
extern const size_t api_page_html_len;
extern const unsigned char api_favicon_svg[];
extern const size_t api_favicon_svg_len;

#endif
