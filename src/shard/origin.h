/* SPDX-License-Identifier: MIT
 *
 * Origin: serves the GGUF models of a folder over HTTP, with their indexes and, of any window, the stage file, which is
 * put together while it is sent and never lies on disk.
 *
 *     GET /models                              JSON: name, files, bytes, model id (once known)
 *     GET /models/NAME.gguf                    the file (each part of a split one), with ranges
 *     GET /models/NAME.gguf.kvi                its index; 503 with retry-after while it is computed
 *     GET /models/NAME.gguf/stage?layers=A:B   the stage file, with ranges; of the first part's name when split
 *     GET /health, /metrics
 *
 * Also HEAD; Range with one range, If-Range, If-None-Match; strong ETags. NAME is what listing the folder (not its
 * subfolders) gave: a path that is not in the list is a 404, so nothing outside can be named. Symbolic links in the
 * folder are followed. Indexes are computed by one thread behind; serving runs on the HTTP server's loop. The folder is
 * listed again at most once a second. Who reads a file that is replaced gets the old one to its end; who reads one that
 * is written to is cut off.
 */
#ifndef KVASIR_SHARD_ORIGIN_H
#define KVASIR_SHARD_ORIGIN_H

#include "base/err.h"

#include <stddef.h>

struct origin_config {
    const char *dir, *addr;   /* "host:port"; port 0: any */
    const char *token;        /* bearer token that all but /health need; NULL: none */
    const char *allow_host;   /* names besides localhost by which a loopback address may be asked, see http/host.h */
    const char *access_log;   /* file for JSON lines (http/access.h), "-": the standard error; NULL: none */
    uint32_t max_connections; /* 0: 256 */
};
struct origin; /* opaque */

/* ERR_NOT_FOUND, ERR_IO (folder, access log, address in use), ERR_ARG. */
enum err_code origin_start(const struct origin_config *c, struct origin **out, struct err *e) KV_MUST_USE;
void origin_stop(struct origin *o); /* NULL is fine */
uint16_t origin_port(const struct origin *o);

struct origin_counts {
    uint64_t n_requests, body_bytes;
    uint64_t n_open; /* requests being answered */
    uint32_t n_models, n_indexed;
};
void origin_count(const struct origin *o, struct origin_counts *out); /* any thread */

/* The names under /models/ as they were at the start; NULL when there are no more. Valid until origin_stop. */
const char *origin_name(const struct origin *o, size_t i);

#endif
