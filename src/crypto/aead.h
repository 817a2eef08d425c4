/* SPDX-License-Identifier: MIT
 *
 * The two ciphers of seal.h, computed by libcrypto: on recent processors several times as fast as libsodium 1.0.18, and
 * a hop of a ring is mostly this. For seal.c only.
 */
#ifndef KVASIR_CRYPTO_AEAD_H
#define KVASIR_CRYPTO_AEAD_H

#include "crypto/seal.h"

#define AEAD_NONCE_BYTES 12u

/* Can this machine do AES-256-GCM in hardware? */
bool aead_has_aes(void);

/* Sets the key, also in place of an older one. k->cipher, k->key are filled in. */
void aead_set_key(struct seal_key *k);
void aead_fini(struct seal_key *k); /* frees; does not wipe *k itself */

/* Should libcrypto fail (it has no memory), out becomes zeroes, which no peer opens: never the data. */
void aead_put(struct seal_key *k, const uint8_t nonce[AEAD_NONCE_BYTES], const void *ad, size_t ad_len,
              const void *data, size_t len, uint8_t *out);
/* len counts the tag and is at least SEAL_TAG_BYTES. */
bool aead_get(struct seal_key *k, const uint8_t nonce[AEAD_NONCE_BYTES], const void *ad, size_t ad_len,
              const void *data, size_t len, uint8_t *out);

#endif
