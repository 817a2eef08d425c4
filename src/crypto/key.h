/* SPDX-License-Identifier: MIT
 *
 * Node identities: Ed25519 keys, their text and file form, detached signatures (RFC 8032). Thread-safe.
 */
#ifndef KVASIR_CRYPTO_KEY_H
#define KVASIR_CRYPTO_KEY_H

#include "base/err.h"

#include <stddef.h>

#define KEY_PUBLIC_BYTES    32
#define KEY_SECRET_BYTES    64
#define KEY_SIGNATURE_BYTES 64
#define KEY_TEXT_SIZE       48 /* room for a public key's text and its NUL */

struct key_public {
    uint8_t b[KEY_PUBLIC_BYTES];
};

struct key_secret {
    uint8_t b[KEY_SECRET_BYTES]; /* seed and public key, as libsodium keeps them; wipe with key_wipe */
};

/* Must have succeeded before anything else of this room is used; may be called again. ERR_INTERNAL. */
enum err_code key_library_init(struct err *e) KV_MUST_USE;

void key_generate(struct key_secret *out);
void key_wipe(struct key_secret *k);
void key_public_of(const struct key_secret *k, struct key_public *out);

/* Public key as text: unpadded base64url (RFC 4648 §5), 43 characters. Returns out. */
const char *key_text(const struct key_public *k, char out[KEY_TEXT_SIZE]);
/* ERR_ARG when the text is not a canonical encoding of 32 bytes or not a valid Ed25519 point. */
enum err_code key_parse(const char *text, struct key_public *out, struct err *e) KV_MUST_USE;

/* The key file: one line "kvasir-secret-key-1 BASE64URL(seed)", mode 0600. Saving never overwrites (ERR_ARG);
 * loading refuses a file that others can read (ERR_AUTH says chmod 600). */
enum err_code key_save(const char *path, const struct key_secret *k, struct err *e) KV_MUST_USE;
enum err_code key_load(const char *path, struct key_secret *out, struct err *e) KV_MUST_USE;

void key_sign(const struct key_secret *k, const void *msg, size_t len, uint8_t sig[KEY_SIGNATURE_BYTES]);
/* ERR_AUTH when the signature does not verify. */
enum err_code key_verify(const struct key_public *k, const void *msg, size_t len,
                         const uint8_t sig[KEY_SIGNATURE_BYTES], struct err *e) KV_MUST_USE;

bool key_equal(const struct key_public *a, const struct key_public *b); /* constant time */

/* Unpadded base64url of any bytes; out has room for (len * 4 + 2) / 3 + 1. Decoding is strict and sized. */
void key_base64(const void *data, size_t len, char *out);
enum err_code key_unbase64(const char *text, void *out, size_t len, struct err *e) KV_MUST_USE;

#endif
