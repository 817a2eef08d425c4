/* SPDX-License-Identifier: MIT
 *
 * See aead.h. A context of libcrypto serves one direction, which the first use decides; it is made once and given the
 * next key when keys change, so that no record costs an allocation.
 */
#include "crypto/aead.h"

#include <limits.h>
#include <sodium.h>
#include <string.h>

#ifdef KVASIR_HAVE_LIBCRYPTO
#include <openssl/evp.h>
#endif

_Static_assert(SEAL_KEY_BYTES == crypto_aead_chacha20poly1305_ietf_KEYBYTES, "ChaCha20 key");
_Static_assert(SEAL_KEY_BYTES == crypto_aead_aes256gcm_KEYBYTES, "AES-256 key");
_Static_assert(SEAL_TAG_BYTES == crypto_aead_chacha20poly1305_ietf_ABYTES, "Poly1305 tag");
_Static_assert(SEAL_TAG_BYTES == crypto_aead_aes256gcm_ABYTES, "GCM tag");
_Static_assert(AEAD_NONCE_BYTES == crypto_aead_chacha20poly1305_ietf_NPUBBYTES, "ChaCha20 nonce");
_Static_assert(AEAD_NONCE_BYTES == crypto_aead_aes256gcm_NPUBBYTES, "GCM nonce");
_Static_assert(sizeof(crypto_aead_aes256gcm_state) <= sizeof(((struct seal_key *)0)->aes), "AES state is too small");
_Static_assert(_Alignof(crypto_aead_aes256gcm_state) <= _Alignof(struct seal_key), "AES state is not aligned");

bool aead_has_aes(void)
{
    return crypto_aead_aes256gcm_is_available();
}

/* --- libcrypto ----------------------------------------------------------------------------------- */

#ifdef KVASIR_HAVE_LIBCRYPTO

/* The context with this key for this direction; NULL where there is none. */
static EVP_CIPHER_CTX *fast_context(struct seal_key *k, bool opens)
{
    EVP_CIPHER_CTX *c = k->fast;
    if (k->fast_failed)
        return NULL;
    if (c && k->fast_opens == opens && k->fast_keyed)
        return c;
    const bool fresh = !c || k->fast_opens != opens;
    if (!c)
        c = EVP_CIPHER_CTX_new();
    const EVP_CIPHER *cipher = k->cipher == SEAL_AES256GCM ? EVP_aes_256_gcm() : EVP_chacha20_poly1305();
    if (!c || EVP_CipherInit_ex(c, fresh ? cipher : NULL, NULL, k->key, NULL, opens ? 0 : 1) != 1) {
        EVP_CIPHER_CTX_free(c);
        k->fast = NULL;
        k->fast_failed = true;
        return NULL;
    }
    k->fast = c;
    k->fast_opens = opens;
    k->fast_keyed = true;
    return c;
}

static bool fast_put(struct seal_key *k, const uint8_t *nonce, const void *ad, size_t ad_len, const void *data,
                     size_t len, uint8_t *out)
{
    EVP_CIPHER_CTX *c = len <= INT_MAX && ad_len <= INT_MAX ? fast_context(k, false) : NULL;
    uint8_t none[1] = {0};
    int n = 0, last = 0;
    return c && EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, 1) == 1 &&
           EVP_CipherUpdate(c, NULL, &n, ad, (int)ad_len) == 1 &&
           EVP_CipherUpdate(c, out, &n, len ? data : none, (int)len) == 1 && n == (int)len &&
           EVP_CipherFinal_ex(c, out + len, &last) == 1 && last == 0 &&
           EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_BYTES, out + len) == 1;
}

/* 1: opened, 0: the tag is wrong, -1: not done (and nothing written over the input). */
static int fast_get(struct seal_key *k, const uint8_t *nonce, const void *ad, size_t ad_len, const uint8_t *data,
                    size_t len, uint8_t *out)
{
    EVP_CIPHER_CTX *c = len <= INT_MAX && ad_len <= INT_MAX ? fast_context(k, true) : NULL;
    const size_t text = len - SEAL_TAG_BYTES;
    uint8_t tag[SEAL_TAG_BYTES];
    int n = 0, last = 0;
    memcpy(tag, data + text, sizeof tag);
    if (!c || EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, 0) != 1 ||
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_BYTES, tag) != 1 ||
        EVP_CipherUpdate(c, NULL, &n, ad, (int)ad_len) != 1)
        return -1;
    uint8_t none[1];
    return EVP_CipherUpdate(c, text ? out : none, &n, data, (int)text) == 1 && n == (int)text &&
           EVP_CipherFinal_ex(c, none, &last) == 1;
}

static void fast_free(struct seal_key *k)
{
    EVP_CIPHER_CTX_free(k->fast); /* wipes what it holds */
    k->fast = NULL;
}

#else

static bool fast_put(struct seal_key *k, const uint8_t *nonce, const void *ad, size_t ad_len, const void *data,
                     size_t len, uint8_t *out)
{
    (void)k, (void)nonce, (void)ad, (void)ad_len, (void)data, (void)len, (void)out;
    return false;
}

static int fast_get(struct seal_key *k, const uint8_t *nonce, const void *ad, size_t ad_len, const uint8_t *data,
                    size_t len, uint8_t *out)
{
    (void)k, (void)nonce, (void)ad, (void)ad_len, (void)data, (void)len, (void)out;
    return -1;
}

static void fast_free(struct seal_key *k)
{
    (void)k;
}

#endif

/* --- both ---------------------------------------------------------------------------------------- */

static crypto_aead_aes256gcm_state *aes_of(struct seal_key *k)
{
    return (crypto_aead_aes256gcm_state *)(void *)k->aes;
}

void aead_set_key(struct seal_key *k)
{
    k->fast_keyed = false;
    if (k->cipher == SEAL_AES256GCM)
        crypto_aead_aes256gcm_beforenm(aes_of(k), k->key);
}

void aead_fini(struct seal_key *k)
{
    fast_free(k);
}

void aead_put(struct seal_key *k, const uint8_t nonce[AEAD_NONCE_BYTES], const void *ad, size_t ad_len,
              const void *data, size_t len, uint8_t *out)
{
    /* out is apart from data: should libcrypto fail half-way, the content is still there. */
    if (fast_put(k, nonce, ad, ad_len, data, len, out))
        return;
    if (k->cipher == SEAL_AES256GCM)
        crypto_aead_aes256gcm_encrypt_afternm(out, NULL, data, len, ad, ad_len, NULL, nonce, aes_of(k));
    else
        crypto_aead_chacha20poly1305_ietf_encrypt(out, NULL, data, len, ad, ad_len, NULL, nonce, k->key);
}

bool aead_get(struct seal_key *k, const uint8_t nonce[AEAD_NONCE_BYTES], const void *ad, size_t ad_len,
              const void *data, size_t len, uint8_t *out)
{
    int done = fast_get(k, nonce, ad, ad_len, data, len, out);
    if (done >= 0)
        return done == 1;
    if (k->cipher == SEAL_AES256GCM)
        return crypto_aead_aes256gcm_decrypt_afternm(out, NULL, NULL, data, len, ad, ad_len, nonce, aes_of(k)) == 0;
    return crypto_aead_chacha20poly1305_ietf_decrypt(out, NULL, NULL, data, len, ad, ad_len, nonce, k->key) == 0;
}
