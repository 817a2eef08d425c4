/* SPDX-License-Identifier: MIT
 *
 * See aead.h. A context of libcrypto serves one direction, which the first use decides; it is made once and given the
 * next key when keys change, so that no record costs an allocation.
 */
#include "crypto/aead.h"

#include <limits.h>
#include <openssl/evp.h>
#include <string.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

bool aead_has_aes(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
    const unsigned long need = HWCAP_AES | HWCAP_PMULL;
    return (getauxval(AT_HWCAP) & need) == need;
#else
    return false;
#endif
}

/* The context with this key for this direction; NULL when there is no memory for one. */
static EVP_CIPHER_CTX *context(struct seal_key *k, bool opens)
{
    EVP_CIPHER_CTX *c = k->context;
    if (c && k->opens == opens && k->keyed)
        return c;
    const bool fresh = !c || k->opens != opens;
    if (!c)
        c = EVP_CIPHER_CTX_new();
    const EVP_CIPHER *cipher = k->cipher == SEAL_AES256GCM ? EVP_aes_256_gcm() : EVP_chacha20_poly1305();
    if (!c || EVP_CipherInit_ex(c, fresh ? cipher : NULL, NULL, k->key, NULL, opens ? 0 : 1) != 1) {
        EVP_CIPHER_CTX_free(c);
        k->context = NULL;
        return NULL;
    }
    k->context = c;
    k->opens = opens;
    k->keyed = true;
    return c;
}

void aead_set_key(struct seal_key *k)
{
    k->keyed = false;
}

void aead_fini(struct seal_key *k)
{
    EVP_CIPHER_CTX_free(k->context); /* wipes what it holds */
    k->context = NULL;
}

void aead_put(struct seal_key *k, const uint8_t nonce[AEAD_NONCE_BYTES], const void *ad, size_t ad_len,
              const void *data, size_t len, uint8_t *out)
{
    EVP_CIPHER_CTX *c = len <= INT_MAX && ad_len <= INT_MAX ? context(k, false) : NULL;
    const uint8_t none[1] = {0};
    int n = 0, last = 0;
    if (c && EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, 1) == 1 &&
        EVP_CipherUpdate(c, NULL, &n, ad, (int)ad_len) == 1 &&
        EVP_CipherUpdate(c, out, &n, len ? data : none, (int)len) == 1 && n == (int)len &&
        EVP_CipherFinal_ex(c, out + len, &last) == 1 && last == 0 &&
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_BYTES, out + len) == 1)
        return;
    memset(out, 0, len + SEAL_TAG_BYTES);
}

bool aead_get(struct seal_key *k, const uint8_t nonce[AEAD_NONCE_BYTES], const void *ad, size_t ad_len,
              const void *data, size_t len, uint8_t *out)
{
    EVP_CIPHER_CTX *c = len <= INT_MAX && ad_len <= INT_MAX ? context(k, true) : NULL;
    const size_t text = len - SEAL_TAG_BYTES;
    uint8_t tag[SEAL_TAG_BYTES], none[1];
    int n = 0;
    memcpy(tag, (const uint8_t *)data + text, sizeof tag);
    return c && EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, 0) == 1 &&
           EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_BYTES, tag) == 1 &&
           EVP_CipherUpdate(c, NULL, &n, ad, (int)ad_len) == 1 &&
           EVP_CipherUpdate(c, text ? out : none, &n, data, (int)text) == 1 && n == (int)text &&
           EVP_CipherFinal_ex(c, none, &n) == 1;
}
