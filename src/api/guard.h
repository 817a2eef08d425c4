/* SPDX-License-Identifier: MIT
 *
 * Who may ask: API keys from a file, and pages of other origins. Belongs to the loop thread.
 */
#ifndef KVASIR_API_GUARD_H
#define KVASIR_API_GUARD_H

#include "base/buf.h"
#include "http/server.h"

struct api;
struct api_keys;

enum err_code api_keys_open(const char *path, struct api_keys **out, struct err *e) KV_MUST_USE;
void api_keys_close(struct api_keys *k);
/* Does an Authorization header's value (may be NULL) hold a key of the file as it is now? */
bool api_keys_match(struct api_keys *k, const char *authorization);
/* May a page of the request's Origin read the answer? */
bool api_origin_allowed(const struct api *a, const struct http_request *r);
/* Is it from a page of somewhere else that nobody allowed? Browsers send those without asking. */
bool api_is_foreign_post(const struct api *a, const struct http_request *r);
/* Appends header lines. r NULL: a request that was not understood. */
void api_put_cors(const struct api *a, const struct http_request *r, bool preflight, struct buf *out);

#endif
