/* SPDX-License-Identifier: MIT
 *
 * BLAKE2b-256 by libsodium, and the hex form of digests.
 */
#include "crypto/digest.h"

#include <sodium.h>
#include <string.h>

_Static_assert(sizeof(crypto_generichash_state) <= sizeof(struct digest_state), "the opaque state is too small");
_Static_assert(_Alignof(crypto_generichash_state) <= _Alignof(struct digest_state), "the opaque state is not aligned");

static crypto_generichash_state *state_of(struct digest_state *d)
{
    return (crypto_generichash_state *)(void *)d->opaque;
}

void digest_begin(struct digest_state *d)
{
    crypto_generichash_init(state_of(d), NULL, 0, DIGEST_BYTES);
}

void digest_put(struct digest_state *d, const void *data, size_t len)
{
    if (len > 0)
        crypto_generichash_update(state_of(d), data, len);
}

void digest_end(struct digest_state *d, uint8_t out[DIGEST_BYTES])
{
    crypto_generichash_final(state_of(d), out, DIGEST_BYTES);
}

void digest_of(const void *data, size_t len, uint8_t out[DIGEST_BYTES])
{
    crypto_generichash(out, DIGEST_BYTES, data, len, NULL, 0);
}

const char *digest_hex(const uint8_t d[DIGEST_BYTES], char out[DIGEST_HEX_SIZE])
{
    return sodium_bin2hex(out, DIGEST_HEX_SIZE, d, DIGEST_BYTES);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

enum err_code digest_parse(const char *hex, uint8_t out[DIGEST_BYTES], struct err *e)
{
    uint8_t bytes[DIGEST_BYTES];
    size_t len = strnlen(hex, DIGEST_HEX_SIZE);
    if (len != DIGEST_HEX_SIZE - 1)
        return err_set(e, ERR_ARG, "a digest has %d hex digits, this text has %s%zu", DIGEST_HEX_SIZE - 1,
                       len >= DIGEST_HEX_SIZE ? "at least " : "", len);
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        int hi = hex_value(hex[2 * i]), lo = hex_value(hex[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return err_set_at(e, ERR_ARG, (int64_t)(2 * i + (hi >= 0)),
                              "a digest has the lower-case hex digits 0-9a-f only");
        bytes[i] = (uint8_t)(hi << 4 | lo);
    }
    memcpy(out, bytes, sizeof bytes);
    return OK;
}
