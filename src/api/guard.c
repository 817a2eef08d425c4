/* SPDX-License-Identifier: MIT
 *
 * Who may ask: API keys from a file, and pages of other origins. Only digests of keys are kept, and
 * compared in constant time. The file is looked at again at most once a second, and read when it has changed.
 */
#include "api/impl.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define KEYS_MAX_BYTES (1u << 20)
#define KEYS_MAX       4096u
#define KEY_MIN_LEN    8u
#define KEY_MAX_LEN    512u

struct api_keys {
    char *path;
    struct key_public *digest; /* [n] not keys of nodes: what key_equal compares */
    uint32_t n;
    uint64_t looked_ns;
    struct stat seen;
    bool missing; /* it was said */
};

static void digest_key(const char *key, size_t len, struct key_public *out)
{
    digest_of(key, len, out->b);
}

/* Takes the keys out of the file's text. */
static enum err_code take_lines(const char *path, const char *text, size_t len, struct key_public *out, uint32_t *n,
                                struct err *e)
{
    unsigned line = 0;
    for (size_t i = 0; i < len;) {
        const char *p = text + i, *nl = memchr(p, '\n', len - i);
        size_t l = nl ? (size_t)(nl - p) : len - i;
        i += l + 1;
        line++;
        while (l > 0 && (p[l - 1] == ' ' || p[l - 1] == '\r' || p[l - 1] == '\t'))
            l--;
        while (l > 0 && (*p == ' ' || *p == '\t')) {
            p++;
            l--;
        }
        if (l == 0 || *p == '#')
            continue;
        for (size_t k = 0; k < l; k++) {
            if (p[k] <= ' ' || p[k] > '~')
                return err_set(e, ERR_ARG, "%s: line %u is no key: one key a line, printable ASCII without spaces",
                               path, line);
        }
        if (l < KEY_MIN_LEN || l > KEY_MAX_LEN)
            return err_set(e, ERR_ARG, "%s: the key of line %u has %zu characters; %u to %u are possible", path, line,
                           l, KEY_MIN_LEN, KEY_MAX_LEN);
        if (*n == KEYS_MAX)
            return err_set(e, ERR_ARG, "%s has more than %u keys", path, KEYS_MAX);
        digest_key(p, l, &out[(*n)++]);
    }
    return OK;
}

static enum err_code keys_read(struct api_keys *k, struct err *e)
{
    struct buf text = {0};
    uint32_t n = 0;
    enum err_code rc = io_read_file(k->path, KEYS_MAX_BYTES, &text, e);
    struct key_public *digest = rc == OK ? malloc(KEYS_MAX * sizeof *digest) : NULL;
    if (rc == OK && !digest)
        rc = err_set(e, ERR_NOMEM, "out of memory for the keys of %s", k->path);
    if (rc == OK)
        rc = take_lines(k->path, (const char *)text.data, text.len, digest, &n, e);
    if (rc == OK && n == 0)
        rc = err_set(e, ERR_ARG, "%s has no key: one a line; empty lines and lines that begin with # do not count",
                     k->path);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    buf_free(&text);
    if (rc != OK) {
        free(digest);
        return rc;
    }
    free(k->digest);
    k->digest = digest;
    k->n = n;
    return OK;
}

enum err_code api_keys_open(const char *path, struct api_keys **out, struct err *e)
{
    struct api_keys *k = calloc(1, sizeof *k);
    if (!k || !(k->path = strdup(path))) {
        free(k);
        return err_set(e, ERR_NOMEM, "out of memory for the keys of %s", path);
    }
    enum err_code rc = OK;
    if (stat(path, &k->seen) != 0)
        rc = err_set_os(e, ERR_IO, errno, "cannot read the API keys in %s", path);
    if (rc == OK)
        rc = keys_read(k, e);
    if (rc != OK) {
        api_keys_close(k);
        return rc;
    }
    if (k->seen.st_mode & (S_IRWXG | S_IRWXO))
        log_warn("api", "others can read the API keys in %s: chmod 600 it", path);
    k->looked_ns = clock_now_ns();
    *out = k;
    return OK;
}

void api_keys_close(struct api_keys *k)
{
    if (!k)
        return;
    free(k->digest);
    free(k->path);
    free(k);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* A file that is gone or broken, or empty, as it is while somebody writes it, leaves the keys as they were: whoever
 * replaces it badly locks nobody out. */
static void look_again(struct api_keys *k)
{
    struct stat now;
    struct err e;
    uint64_t t = clock_now_ns();
    if (t - k->looked_ns < CLOCK_NS_PER_S)
        return;
    k->looked_ns = t;
    if (stat(k->path, &now) != 0) {
        if (!k->missing)
            log_warn("api", "the API keys in %s cannot be read any more; those from before stay good", k->path);
        k->missing = true;
        return;
    }
    k->missing = false;
    if (same_file(&now, &k->seen))
        return;
    k->seen = now;
    if (keys_read(k, &e) != OK)
        log_warn("api", "the API keys stay as they were: %s", e.msg);
    else
        log_info("api", "%u API keys from %s", k->n, k->path);
}

bool api_keys_match(struct api_keys *k, const char *authorization)
{
    struct key_public given;
    bool found = false;
    look_again(k);
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    const char *key = authorization + 7;
    while (*key == ' ')
        key++;
    size_t len = strlen(key);
    while (len > 0 && key[len - 1] == ' ')
        len--;
    if (len > KEY_MAX_LEN)
        return false;
    digest_key(key, len, &given);
    for (uint32_t i = 0; i < k->n; i++) /* all of them, whichever it is */
        found |= key_equal(&given, &k->digest[i]);
    return found;
}

/* --- origins ------------------------------------------------------------------------------------- */

bool api_origin_allowed(const struct api *a, const struct http_request *r)
{
    const char *origin = http_header(r, "origin");
    return origin && a->c.cors_origin && (strcmp(a->c.cors_origin, "*") == 0 || strcmp(a->c.cors_origin, origin) == 0);
}

bool api_is_foreign_post(const struct api *a, const struct http_request *r)
{
    const char *origin = http_header(r, "origin"), *host = http_header(r, "host");
    if (!origin || api_origin_allowed(a, r))
        return false;
    const char *at = strstr(origin, "://");
    return !at || !host || strcasecmp(at + 3, host) != 0;
}

/* Names of headers, as a browser lists them. */
static bool is_header_list(const char *s)
{
    size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, ");
    return n > 0 && n < 2048 && s[n] == 0;
}

void api_put_cors(const struct api *a, const struct http_request *r, bool preflight, struct buf *out)
{
    if (!a->c.cors_origin)
        return;
    buf_puts(out, "Vary: Origin\r\n");
    if (r && !api_origin_allowed(a, r))
        return;
    buf_printf(out, "Access-Control-Allow-Origin: %s\r\n", a->c.cors_origin);
    if (!preflight) {
        buf_puts(out, "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n");
        return;
    }
    const char *asked = http_header(r, "access-control-request-headers");
    buf_printf(out,
               "Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\nAccess-Control-Allow-Headers: %s\r\n"
               "Access-Control-Max-Age: 600\r\n",
               asked && is_header_list(asked) ? asked : "Authorization, Content-Type");
}
