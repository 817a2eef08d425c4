/* SPDX-License-Identifier: MIT
 *
 * Ed25519 identities by libsodium: text form, key file, signatures. Every copy of a secret that this file makes is
 * wiped before it returns.
 */
#include "crypto/key.h"

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEED_BYTES     crypto_sign_SEEDBYTES
#define SEED_TEXT_SIZE 44 /* 43 characters and the NUL */

static const char file_tag[] = "kvasir-secret-key-1 ";

/* tag, 43 characters, newline */
#define FILE_BYTES (sizeof file_tag - 1 + SEED_TEXT_SIZE - 1 + 1)

_Static_assert(KEY_PUBLIC_BYTES == crypto_sign_PUBLICKEYBYTES, "Ed25519 public key");
_Static_assert(KEY_SECRET_BYTES == crypto_sign_SECRETKEYBYTES, "Ed25519 secret key");
_Static_assert(KEY_SIGNATURE_BYTES == crypto_sign_BYTES, "Ed25519 signature");

enum err_code key_library_init(struct err *e)
{
    if (sodium_init() < 0)
        return err_set(e, ERR_INTERNAL, "libsodium cannot start: no source of random numbers?");
    return OK;
}

void key_generate(struct key_secret *out)
{
    struct key_public pub;
    crypto_sign_keypair(pub.b, out->b);
}

void key_wipe(struct key_secret *k)
{
    sodium_memzero(k, sizeof *k);
}

void key_public_of(const struct key_secret *k, struct key_public *out)
{
    crypto_sign_ed25519_sk_to_pk(out->b, k->b);
}

void key_base64(const void *data, size_t len, char *out)
{
    const size_t size = (len * 4 + 2) / 3 + 1;
    sodium_bin2base64(out, size, data, len, sodium_base64_VARIANT_URLSAFE_NO_PADDING);
}

enum err_code key_unbase64(const char *text, void *out, size_t len, struct err *e)
{
    const size_t want = (len * 4 + 2) / 3;
    const size_t have = strnlen(text, want + 1);
    if (have != want)
        return err_set(e, ERR_ARG, "%zu bytes in base64url are %zu characters, this text has %s%zu", len, want,
                       have > want ? "at least " : "", have);
    /* libsodium wants room for whole groups and writes before it knows the text is good: decode beside out. */
    uint8_t bytes[256];
    size_t got = 0;
    const char *end = NULL;
    if (len > sizeof bytes)
        return err_set(e, ERR_LIMIT, "base64url of more than %zu bytes is not read here", sizeof bytes);
    /* It also checks that the unused low bits of the last character are zero: one text for one value. */
    int rc =
        sodium_base642bin(bytes, sizeof bytes, text, want, NULL, &got, &end, sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    bool good = rc == 0 && got == len && end == text + want;
    if (good)
        memcpy(out, bytes, len);
    sodium_memzero(bytes, sizeof bytes);
    return good ? OK : err_set(e, ERR_ARG, "this text is not unpadded base64url (A-Z a-z 0-9 - _) of %zu bytes", len);
}

const char *key_text(const struct key_public *k, char out[KEY_TEXT_SIZE])
{
    key_base64(k->b, sizeof k->b, out);
    return out;
}

enum err_code key_parse(const char *text, struct key_public *out, struct err *e)
{
    struct key_public k;
    if (key_unbase64(text, k.b, sizeof k.b, e) != OK)
        return err_prefix(e, "not a public key");
    if (!crypto_core_ed25519_is_valid_point(k.b))
        return err_set(e, ERR_ARG, "not a public key: %.43s is not a point of Ed25519's main subgroup", text);
    *out = k;
    return OK;
}

enum err_code key_save(const char *path, const struct key_secret *k, struct err *e)
{
    char line[FILE_BYTES + 1];
    uint8_t seed[SEED_BYTES];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return err_set(e, ERR_ARG, "%s exists: a secret key is never overwritten", path);
    if (fd < 0)
        return err_set_os(e, ERR_IO, errno, "cannot create the key file %s", path);
    crypto_sign_ed25519_sk_to_seed(seed, k->b);
    memcpy(line, file_tag, sizeof file_tag - 1);
    key_base64(seed, sizeof seed, line + sizeof file_tag - 1);
    line[FILE_BYTES - 1] = '\n';
    int os = io_write_full(fd, line, FILE_BYTES) && fsync(fd) == 0 ? 0 : errno;
    sodium_memzero(seed, sizeof seed);
    sodium_memzero(line, sizeof line);
    if (close(fd) != 0 && os == 0)
        os = errno;
    enum err_code rc =
        os == 0 ? io_sync_folder_of(path, e) : err_set_os(e, ERR_IO, os, "cannot write the key file %s", path);
    if (rc != OK)
        unlink(path);
    return rc;
}

/* Reads up to size bytes; *len is size when there may be more. */
static enum err_code read_some(int fd, const char *path, char *data, size_t size, size_t *len, struct err *e)
{
    *len = 0;
    while (*len < size) {
        ssize_t n = read(fd, data + *len, size - *len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_os(e, ERR_IO, errno, "cannot read the key file %s", path);
        if (n == 0)
            break;
        *len += (size_t)n;
    }
    return OK;
}

static enum err_code parse_file(const char *path, char *line, size_t len, struct key_secret *out, struct err *e)
{
    const size_t tag_len = sizeof file_tag - 1;
    uint8_t seed[SEED_BYTES];
    struct key_public pub;
    if (len > 0 && line[len - 1] == '\n')
        len--;
    if (len != FILE_BYTES - 1 || memcmp(line, file_tag, tag_len) != 0)
        return err_set(e, ERR_FORMAT, "%s is not a key file: one line, \"%sSEED\", is expected", path, file_tag);
    line[len] = 0;
    if (key_unbase64(line + tag_len, seed, sizeof seed, e) != OK) {
        if (e)
            e->code = ERR_FORMAT;
        (void)err_prefix(e, "key file %s", path);
        return ERR_FORMAT;
    }
    crypto_sign_seed_keypair(pub.b, out->b, seed);
    sodium_memzero(seed, sizeof seed);
    return OK;
}

enum err_code key_load(const char *path, struct key_secret *out, struct err *e)
{
    char line[FILE_BYTES + 2];
    size_t len = 0;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set_os(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "cannot open the key file %s", path);
    enum err_code rc;
    if (fstat(fd, &st) != 0)
        rc = err_set_os(e, ERR_IO, errno, "cannot read the key file %s", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(e, ERR_FORMAT, "the key file %s is not a regular file", path);
    else if (st.st_mode & 077)
        rc = err_set(e, ERR_AUTH, "others can read or write the key file %s (mode %04o): chmod 600 %s", path,
                     (unsigned)(st.st_mode & 07777), path);
    else
        rc = read_some(fd, path, line, sizeof line - 1, &len, e);
    close(fd);
    if (rc == OK)
        rc = parse_file(path, line, len, out, e);
    sodium_memzero(line, sizeof line);
    return rc;
}

void key_sign(const struct key_secret *k, const void *msg, size_t len, uint8_t sig[KEY_SIGNATURE_BYTES])
{
    crypto_sign_detached(sig, NULL, msg, len, k->b);
}

enum err_code key_verify(const struct key_public *k, const void *msg, size_t len,
                         const uint8_t sig[KEY_SIGNATURE_BYTES], struct err *e)
{
    if (crypto_sign_verify_detached(sig, msg, len, k->b) != 0) {
        char text[KEY_TEXT_SIZE];
        return err_set(e, ERR_AUTH, "the signature is not one by key %s", key_text(k, text));
    }
    return OK;
}

bool key_equal(const struct key_public *a, const struct key_public *b)
{
    return sodium_memcmp(a->b, b->b, sizeof a->b) == 0;
}
