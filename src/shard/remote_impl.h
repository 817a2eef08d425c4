/* SPDX-License-Identifier: MIT
 *
 * What remote.c and remote_http.c share: origins with what is known of their files, readers, and one range asked of one
 * origin.
 */
#ifndef KVASIR_SHARD_REMOTE_IMPL_H
#define KVASIR_SHARD_REMOTE_IMPL_H

#include "http/client.h"
#include "shard/remote.h"

#include <pthread.h>
#include <stdatomic.h>

#define REMOTE_STAMP_SIZE 200

/* A file at an origin. All but url under the remote's lock. */
struct remote_place {
    char *url;
    char *direct;                  /* where a redirect led last: asked first, as hubs count requests; NULL: not known */
    bool known;                    /* the origin has answered once: stamp is right */
    bool strong;                   /* the stamp is a strong ETag */
    char stamp[REMOTE_STAMP_SIZE]; /* "" while not known, or when it has none */
};

struct remote_origin {
    char host[HTTP_HOST_SIZE];
    struct remote_place *places; /* [n_files] */
    atomic_bool distrusted;
    atomic_ullong down_until_ns; /* others are asked before; UINT64_MAX: for good */
};

struct remote_file {
    char *name;
    uint64_t size; /* once size_known; under the lock until remote_open is done */
    bool size_known;
    struct buf head;      /* its first bytes */
    uint64_t head_need;   /* so many of them are needed, as far as is known; 0: all are here */
    uint32_t n_steps;     /* in which they came */
    uint32_t head_origin; /* who gave the last of them */
    uint32_t head_from;   /* set of those who gave any */
};

struct remote {
    pthread_mutex_t lock;
    char *bearer;
    uint32_t connect_ms, idle_ms, n_retries;
    uint32_t chunk_bytes, window_bytes; /* of a reader's connection */
    bool no_index, no_wait;
    void *ctx;
    bool (*cancelled)(void *ctx);
    uint32_t n_origins, n_files;
    struct remote_origin origins[REMOTE_MAX_ORIGINS];
    struct remote_file *files;
    struct gguf *g;
    bool has_index_file, has_index; /* index: the file is that of g */
    struct index_file index_file;
    struct index index;
    atomic_ullong n_requests, body_bytes;
};

struct remote_reader {
    struct remote *r;
    struct http_client *client;
    atomic_bool stop;
    uint64_t n_requests; /* of the client, so far added up */
    uint64_t random;     /* for the jitter of pauses */
};

bool remote_reader_cancelled(void *reader);

/* Content-Range as it must be, "bytes 0-499/1234": [from, end) of size, where from < end <= size. false: it is not;
 * text may be NULL. */
bool remote_range_parse(const char *text, uint64_t *from, uint64_t *end, uint64_t *size);

/* The bytes [at, end) of a file; `at` moves on as they come. While the file's size is not known, end comes down to it
 * when it is less. */
struct remote_want {
    uint32_t file;
    uint64_t at, end;
    bool (*put)(void *ctx, const void *data, size_t len);
    void *ctx;
    uint32_t *origin;
};

/* Asks this origin until all has come, again and again as long as that makes sense. others: there is another one to ask
 * instead. *down_ms: after an error, for how long not to come back; UINT32_MAX: for good. */
enum err_code remote_ask(struct remote_reader *x, uint32_t origin, struct remote_want *w, bool others,
                         uint32_t *down_ms, struct err *e) KV_MUST_USE;

/* All of a file of at most max bytes. ERR_NOT_FOUND when it seems not to be there (404, 410, 403), whatever the
 * reason. Waits for a server that says it is about to have it. */
enum err_code remote_get(struct remote_reader *x, const char *url, bool with_token, size_t max, struct buf *out,
                         struct err *e) KV_MUST_USE;

#endif
