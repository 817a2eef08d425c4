/* SPDX-License-Identifier: MIT
 *
 * BLAKE2b-256 (RFC 7693), streaming; and the hex form of digests. A struct digest belongs to one thread.
 */
#ifndef KVASIR_CRYPTO_DIGEST_H
#define KVASIR_CRYPTO_DIGEST_H

#include "base/err.h"

#include <stddef.h>

#define DIGEST_BYTES    32
#define DIGEST_HEX_SIZE (2 * DIGEST_BYTES + 1)

struct digest_state {
    _Alignas(64) uint8_t opaque[384];
};

void digest_begin(struct digest_state *d);
void digest_put(struct digest_state *d, const void *data, size_t len);
void digest_end(struct digest_state *d, uint8_t out[DIGEST_BYTES]);
void digest_of(const void *data, size_t len, uint8_t out[DIGEST_BYTES]);

/* Lower-case hex. Returns out. */
const char *digest_hex(const uint8_t d[DIGEST_BYTES], char out[DIGEST_HEX_SIZE]);
/* ERR_ARG unless exactly 64 lower-case hex digits. */
enum err_code digest_parse(const char *hex, uint8_t out[DIGEST_BYTES], struct err *e) KV_MUST_USE;

#endif
