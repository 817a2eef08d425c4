/* SPDX-License-Identifier: MIT
 *
 * What the files of the origin share. origin.c: life, keys, counts; origin_files.c: what lies in the folder;
 * origin_index.c: the thread that computes indexes; origin_routes.c: paths and answers; origin_body.c: preconditions,
 * ranges and sending. Everything belongs to the HTTP server's loop, except what is marked as the thread's.
 *
 * A model is a snapshot of its files as they were when they were opened: it is replaced by another when they change,
 * and goes when nobody reads it any more.
 */
#ifndef KVASIR_SHARD_ORIGIN_IMPL_H
#define KVASIR_SHARD_ORIGIN_IMPL_H

#include "base/buf.h"
#include "crypto/digest.h"
#include "crypto/key.h"
#include "http/server.h"
#include "model/gguf.h"
#include "model/hparams.h"
#include "model/index.h"
#include "model/slice.h"
#include "shard/origin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

#define ORIGIN_ETAG_SIZE 40
#define ORIGIN_STATUSES  20

struct origin_file {
    char *name;
    struct stat seen; /* when it was opened */
    char etag[ORIGIN_ETAG_SIZE];
};

/* A window's stage file; its slice is planned once for all who read it. */
struct origin_stage {
    struct origin_stage *next;
    struct slice slice;
    uint32_t refs;
    char etag[ORIGIN_ETAG_SIZE];
};

enum origin_index_state {
    ORIGIN_INDEX_WAITS,
    ORIGIN_INDEX_READY,
    ORIGIN_INDEX_NONE, /* cannot be computed: why says it */
};

struct origin_model {
    struct origin *o;
    atomic_uint refs;
    struct gguf *g;
    struct hparams h;
    bool has_hparams; /* else why says what is wrong */
    uint32_t n_files;
    struct origin_file *files;
    uint64_t bytes;
    char title[128]; /* general.name */
    struct origin_stage *stages;
    uint64_t sent_bytes;

    atomic_bool listed;
    atomic_int state; /* enum origin_index_state; what follows is the thread's until it no longer waits */
    bool stage_file;  /* it is one itself: no index */
    uint8_t id[DIGEST_BYTES];
    struct index x;
    struct buf kvi;
    char kvi_etag[ORIGIN_ETAG_SIZE];
    char why[320];
    struct origin_model *next_waiting; /* guarded by the mutex */
};

/* A file that is no model, not to be opened again until it changes. */
struct origin_bad {
    char *name;
    struct stat seen;
};

struct origin {
    char *dir, *addr, *allow_host;
    bool has_token;
    struct key_public token; /* digest of it: what key_equal compares */
    int log_fd;              /* access log; -1: none */
    struct http_server *http;
    uint64_t scanned_ns;
    time_t started;
    struct origin_model **models; /* by name */
    size_t n_models;
    struct origin_bad *bad;
    size_t n_bad;
    char **first_names; /* of the models at the start; n_first_names of them */
    size_t n_first_names;

    uint64_t statuses[ORIGIN_STATUSES];
    atomic_ullong n_requests, body_bytes, n_open;
    atomic_uint n_listed, n_indexed;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct origin_model *waiting; /* guarded */
    atomic_bool stop;
};

/* One request from on_request to on_gone; http_user. */
struct origin_exchange {
    struct origin *o;
    struct http_request *r;
    struct origin_model *model; /* NULL: none */
    struct origin_stage *stage; /* of model; NULL: none */
    uint32_t file;              /* of model, when it is one that is sent */
    uint64_t offset;            /* of the range in the whole */
    uint64_t sent_bytes;        /* of the body */
    bool (*read)(void *ctx, uint64_t offset, void *data, size_t len);
    bool (*place)(void *ctx, uint64_t offset, struct http_place *out);
};

/* --- origin_files.c --- */
/* Brings the list up to date, at most once a second. */
void origin_scan(struct origin *o);
void origin_recount(struct origin *o); /* for origin_count */
void origin_free_list(struct origin *o);
/* The model that has a file of this name, and which; NULL. */
struct origin_model *origin_find(const struct origin *o, const char *name, size_t len, uint32_t *file);
struct origin_model *origin_hold(struct origin_model *m);
void origin_drop(struct origin_model *m); /* NULL is fine; any thread */
/* Are the bytes of the open file those of the snapshot? */
bool origin_file_same(const struct origin_model *m, uint32_t file);
/* ERR_RANGE, ERR_NOT_FOUND and the like as slice_plan. */
enum err_code origin_stage_of(struct origin_model *m, uint32_t first, uint32_t end, struct origin_stage **out,
                              struct err *e) KV_MUST_USE;
void origin_stage_drop(struct origin_model *m, struct origin_stage *s);
/* A strong ETag out of whatever tells things apart. */
void origin_etag(const struct buf *from, char out[ORIGIN_ETAG_SIZE]);

/* --- origin_index.c --- */
enum err_code origin_index_start(struct origin *o, struct err *e) KV_MUST_USE;
void origin_index_stop(struct origin *o);
void origin_index_want(struct origin_model *m);

/* --- origin_routes.c --- */
void origin_serve(struct origin_exchange *x);
/* An answer that is a sentence, as JSON. */
void origin_say(struct http_request *r, unsigned status, const char *headers, const char *fmt, ...) KV_PRINTF(4, 5);
void origin_put_error(struct buf *out, const char *text);
void origin_count_status(struct origin *o, unsigned status);

/* --- origin_body.c --- */
struct origin_body {
    uint64_t size;
    const char *type, *etag;
    time_t mtime;                                                      /* 0: not known */
    bool (*read)(void *ctx, uint64_t offset, void *data, size_t len);  /* of the whole; ctx: the exchange */
    bool (*place)(void *ctx, uint64_t offset, struct http_place *out); /* of the whole; NULL: it lies in no file */
};
void origin_send(struct origin_exchange *x, const struct origin_body *b);

/* What a Range header asks of size bytes. Several ranges, and units that are not bytes, are as none. */
enum origin_range { ORIGIN_RANGE_NONE, ORIGIN_RANGE_PART, ORIGIN_RANGE_BAD };
enum origin_range origin_range_parse(const char *text, uint64_t size, uint64_t *first, uint64_t *len);

#endif
