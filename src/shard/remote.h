/* SPDX-License-Identifier: MIT
 *
 * A model that lies on web servers: its header through a few range requests, its index if there is one, and ranges of
 * its bytes. Works against any HTTP(S) server with ranges, public model hubs included (redirects, tokens); split models
 * by the names of their parts. Several places ("origins") of the same bytes are tried in order.
 *
 * A server is not trusted: ranges must be answered with 206 and the bytes asked for, of a file of the same length and
 * the same strong ETag as before; a 200 (no ranges), a content-encoding, a changed or cut-off file are refused with a
 * sentence that names the host and what is wrong.
 */
#ifndef KVASIR_SHARD_REMOTE_H
#define KVASIR_SHARD_REMOTE_H

#include "model/gguf.h"
#include "model/index.h"

#define REMOTE_MAX_ORIGINS 16u

struct remote_config {
    const char *const *urls; /* of the GGUF, of its first part when split; all of the same model */
    uint32_t n_urls;         /* 1..REMOTE_MAX_ORIGINS */
    const char *bearer;      /* sent to the hosts in urls only, never after a redirect to another; NULL: none */
    const char *index;       /* file or URL of the *.kvi; NULL: each URL with ".kvi" behind it, if it is there */
    bool no_index;           /* do not look for one */
    bool no_wait;            /* an index that the server is still computing is not there */
    uint32_t connect_ms;     /* 0: 5000 */
    uint32_t idle_ms;        /* give up when nothing comes for so long, or less than 1 KiB/s; 0: 30000 */
    uint32_t n_retries;      /* of each origin, with growing pauses; 0: 4 */
    void *ctx;
    bool (*cancelled)(void *ctx); /* asked several times a second, on any of the threads in use; may be NULL */
};

struct remote; /* opaque; keeps nothing of the config's strings */

/* Reads the headers (at most 8 requests for a file of any size) and the index. ERR_IO, ERR_TIMEOUT, ERR_BUSY (429,
 * 503), ERR_AUTH (401, 403, certificate), ERR_NOT_FOUND, ERR_PROTOCOL (no ranges and the like), ERR_FORMAT,
 * ERR_MISMATCH (index of another model; the file changed), ERR_CANCELLED. Blocking; any thread. */
enum err_code remote_open(const struct remote_config *c, struct remote **out, struct err *e) KV_MUST_USE;
void remote_close(struct remote *r);

const struct gguf *remote_gguf(const struct remote *r);             /* from headers: no fd */
const struct index *remote_index(const struct remote *r);           /* in its order; NULL: no index was found */
const struct index_file *remote_index_file(const struct remote *r); /* the same as it was read; NULL */

/* One reader for each thread: keeps its connection open. */
struct remote_reader;
/* So many readers will be at work at once (1 unless it is said), said before they begin: each has its share of 8 MiB as
 * its buffer, at most 512 KiB, and of 24 MiB as what may be on its way, at most 2 MiB. */
void remote_share(struct remote *r, uint32_t n_readers);
enum err_code remote_reader_new(struct remote *r, struct remote_reader **out, struct err *e) KV_MUST_USE;
void remote_reader_free(struct remote_reader *x);
/* What it reads ends at once, with ERR_CANCELLED, also what is read later. Any thread. */
void remote_reader_stop(struct remote_reader *x);

/* Hands over bytes [offset, offset + len) of file, in order, each once, as they come: put returns false to stop
 * (ERR_CANCELLED). Where an origin fails midway the rest is asked of it again or of the next one. *origin: who gave the
 * bytes, set before each put. Errors as remote_open, of the last origin that was tried. */
enum err_code remote_read(struct remote_reader *x, uint32_t file, uint64_t offset, uint64_t len,
                          bool (*put)(void *ctx, const void *data, size_t len), void *ctx, uint32_t *origin,
                          struct err *e) KV_MUST_USE;
/* Its bytes were wrong: this origin is not asked again by any reader. false: no other is left. */
bool remote_distrust(struct remote *r, uint32_t origin);
const char *remote_origin_host(const struct remote *r, uint32_t origin);
/* The file's ETag (or date of change) at the origin that gave its header; "" when it has neither. */
const char *remote_stamp(const struct remote *r, uint32_t file);

struct remote_counts {
    uint64_t n_requests, body_bytes; /* everything received, thrown away or not */
};
void remote_count(const struct remote *r, struct remote_counts *out); /* any thread */

#endif
