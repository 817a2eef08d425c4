/* SPDX-License-Identifier: MIT
 *
 * Session cryptography by libsodium and libcrypto: this file chooses the primitives, their nonces and when keys change.
 */
#include "crypto/seal.h"

#include "base/buf.h"
#include "crypto/aead.h"
#include "crypto/digest.h"

#include <sodium.h>
#include <string.h>

_Static_assert(SEAL_KEY_BYTES == crypto_scalarmult_SCALARBYTES, "X25519 scalar");
_Static_assert(SEAL_POINT_BYTES == crypto_scalarmult_BYTES, "X25519 point");
_Static_assert(SEAL_KEY_BYTES == DIGEST_BYTES, "a derived key is a digest");
unsigned seal_ciphers(void)
{
    return SEAL_CHACHA20 | (aead_has_aes() ? SEAL_AES256GCM : 0u);
}

enum seal_cipher seal_choose(unsigned mine, unsigned theirs)
{
    return mine & theirs & SEAL_AES256GCM ? SEAL_AES256GCM : SEAL_CHACHA20;
}

const char *seal_cipher_name(enum seal_cipher c)
{
    return c == SEAL_AES256GCM ? "aes-256-gcm" : "chacha20-poly1305";
}

void seal_ephemeral_new(struct seal_ephemeral *out)
{
    randombytes_buf(out->secret, sizeof out->secret);
    crypto_scalarmult_base(out->point, out->secret);
}

enum err_code seal_agree(const struct seal_ephemeral *mine, const uint8_t theirs[SEAL_POINT_BYTES],
                         uint8_t out[SEAL_KEY_BYTES], struct err *e)
{
    uint8_t shared[SEAL_KEY_BYTES];
    int rc = crypto_scalarmult(shared, mine->secret, theirs); /* fails when the result is all zero */
    if (rc == 0)
        memcpy(out, shared, sizeof shared);
    sodium_memzero(shared, sizeof shared);
    return rc == 0 ? OK : err_set(e, ERR_AUTH, "the peer's ephemeral key is a point of small order");
}

void seal_derive(const uint8_t secret[SEAL_KEY_BYTES], const char *label, const void *context, size_t len,
                 uint8_t out[SEAL_KEY_BYTES])
{
    crypto_generichash_state s;
    crypto_generichash_init(&s, secret, SEAL_KEY_BYTES, SEAL_KEY_BYTES);
    crypto_generichash_update(&s, (const uint8_t *)label, strlen(label) + 1);
    if (len > 0)
        crypto_generichash_update(&s, context, len);
    crypto_generichash_final(&s, out, SEAL_KEY_BYTES);
    sodium_memzero(&s, sizeof s);
}

void seal_key_init(struct seal_key *k, enum seal_cipher cipher, const uint8_t key[SEAL_KEY_BYTES])
{
    memset(k, 0, sizeof *k);
    k->cipher = cipher;
    memcpy(k->key, key, SEAL_KEY_BYTES);
    aead_set_key(k);
}

void seal_key_wipe(struct seal_key *k)
{
    aead_fini(k);
    sodium_memzero(k, sizeof *k);
}

static void nonce_of(const struct seal_key *k, uint8_t nonce[AEAD_NONCE_BYTES])
{
    memset(nonce, 0, 4);
    le_put_u64(nonce + 4, k->n);
}

static void advance(struct seal_key *k)
{
    if (++k->n < SEAL_RECORDS_PER_KEY)
        return;
    uint8_t next[SEAL_KEY_BYTES];
    seal_derive(k->key, "kvasir next key", NULL, 0, next);
    memcpy(k->key, next, sizeof next);
    k->n = 0;
    aead_set_key(k);
    sodium_memzero(next, sizeof next);
}

void seal_put(struct seal_key *k, const void *ad, size_t ad_len, const void *data, size_t len, uint8_t *out)
{
    uint8_t nonce[AEAD_NONCE_BYTES];
    nonce_of(k, nonce);
    aead_put(k, nonce, ad, ad_len, data, len, out);
    advance(k);
}

enum err_code seal_get(struct seal_key *k, const void *ad, size_t ad_len, const void *data, size_t len, uint8_t *out,
                       struct err *e)
{
    uint8_t nonce[AEAD_NONCE_BYTES];
    nonce_of(k, nonce);
    if (len < SEAL_TAG_BYTES || !aead_get(k, nonce, ad, ad_len, data, len, out))
        return err_set(e, ERR_AUTH, "the seal of record %llu is broken", (unsigned long long)k->n);
    advance(k);
    return OK;
}

void seal_wipe(void *p, size_t len)
{
    sodium_memzero(p, len);
}

bool seal_equal(const void *a, const void *b, size_t len)
{
    return sodium_memcmp(a, b, len) == 0;
}

void seal_random(void *out, size_t len)
{
    randombytes_buf(out, len);
}
