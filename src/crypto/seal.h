/* SPDX-License-Identifier: MIT
 *
 * What a secure session is made of: ephemeral X25519 (RFC 7748), key derivation by keyed BLAKE2b, and authenticated
 * encryption with a counter for a nonce. Two ciphers: ChaCha20-Poly1305 (RFC 8439), which every machine has, and
 * AES-256-GCM where both ends have it in hardware. A struct belongs to one thread at a time; secrets are wiped.
 */
#ifndef KVASIR_CRYPTO_SEAL_H
#define KVASIR_CRYPTO_SEAL_H

#include "base/err.h"

#include <stddef.h>

#define SEAL_KEY_BYTES   32u
#define SEAL_POINT_BYTES 32u
#define SEAL_TAG_BYTES   16u

/* Records sealed under one key before it is hashed forward. With records of 64 KiB that is 4 GiB, far below the limits
 * of both ciphers, and what a stolen key can open. */
#define SEAL_RECORDS_PER_KEY 65536u

/* Bits of what an end can do, as they travel in the handshake. */
enum seal_cipher {
    SEAL_CHACHA20 = 1u << 0, /* every end */
    SEAL_AES256GCM = 1u << 1,
};
#define SEAL_CIPHERS_KNOWN (SEAL_CHACHA20 | SEAL_AES256GCM)

/* What this machine can do. */
unsigned seal_ciphers(void);
/* The best of what both can do; a pure function, so both ends agree. Both sets contain SEAL_CHACHA20. */
enum seal_cipher seal_choose(unsigned mine, unsigned theirs);
const char *seal_cipher_name(enum seal_cipher c);

struct seal_ephemeral {
    uint8_t secret[SEAL_KEY_BYTES];
    uint8_t point[SEAL_POINT_BYTES]; /* public */
};
void seal_ephemeral_new(struct seal_ephemeral *out);

/* The shared secret. ERR_AUTH when the peer's point is of small order (the result would not depend on ours). */
enum err_code seal_agree(const struct seal_ephemeral *mine, const uint8_t theirs[SEAL_POINT_BYTES],
                         uint8_t out[SEAL_KEY_BYTES], struct err *e) KV_MUST_USE;

/* out = BLAKE2b-256(key = secret; label, NUL, context). Different labels give independent keys. */
void seal_derive(const uint8_t secret[SEAL_KEY_BYTES], const char *label, const void *context, size_t len,
                 uint8_t out[SEAL_KEY_BYTES]);

/* One direction of one session; not to be copied. The nonce is 4 zero bytes and the u64 little-endian number of the
 * record under its key. After SEAL_RECORDS_PER_KEY records key = seal_derive(key, "kvasir next key", "", 0) and the
 * count begins at 0.
 */
struct seal_key {
    uint8_t key[SEAL_KEY_BYTES];
    uint64_t n; /* records sealed or opened under this key */
    enum seal_cipher cipher;
    void *context; /* aead.c: owned */
    bool opens, keyed;
};
/* Of a fresh struct or a wiped one. */
void seal_key_init(struct seal_key *k, enum seal_cipher cipher, const uint8_t key[SEAL_KEY_BYTES]);
void seal_key_wipe(struct seal_key *k);

/* out receives len + SEAL_TAG_BYTES bytes; apart from data. ad: authenticated, not sent. A key is used either to put or
 * to get. */
void seal_put(struct seal_key *k, const void *ad, size_t ad_len, const void *data, size_t len, uint8_t *out);
/* The opposite; len counts the tag, out receives len - SEAL_TAG_BYTES bytes and may be data. ERR_AUTH when anything
 * differs from what was sealed as the record of this number; out is then not to be used, nor k again. */
enum err_code seal_get(struct seal_key *k, const void *ad, size_t ad_len, const void *data, size_t len, uint8_t *out,
                       struct err *e) KV_MUST_USE;

/* Zeroes memory that held a secret, also where the compiler sees no later use. */
void seal_wipe(void *p, size_t len);
bool seal_equal(const void *a, const void *b, size_t len); /* constant time */
void seal_random(void *out, size_t len);

#endif
