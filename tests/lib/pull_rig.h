/* SPDX-License-Identifier: MIT
 *
 * A model with its index and the servers that have it, for tests of what is read over HTTP. Asserts by cmocka.
 */
#ifndef KVASIR_TESTS_PULL_RIG_H
#define KVASIR_TESTS_PULL_RIG_H

#include "base/buf.h"
#include "lib/bad_httpd.h"
#include "lib/maker.h"

#include <limits.h>

#define RIG_ETAG    "\"one\""
#define RIG_SERVERS 2

struct pull_rig {
    char path[PATH_MAX];                             /* the model in the scratch folder */
    char out[PATH_MAX];                              /* where tests pull to */
    char part[PATH_MAX + 8], journal[PATH_MAX + 16]; /* what lies beside it until it is whole */
    struct buf model, index;
    uint64_t head_bytes;              /* before the first tensor */
    struct bad_httpd *s[RIG_SERVERS]; /* each has /m.gguf and /m.gguf.kvi */
    char url[RIG_SERVERS][64];        /* of /m.gguf there */
    const char *urls[RIG_SERVERS];    /* the same */
};

/* name: of the model's file in the scratch folder. */
void rig_start(struct pull_rig *r, const char *name, const struct maker_params *p);
/* Servers as at the beginning: the same files, no rules, counts of 0. Nothing has been pulled. */
void rig_reset(struct pull_rig *r);
/* For cmocka: rig_reset before each test, and the end of the group. *state is the rig, put there when it started. */
int rig_setup(void **state);
int rig_teardown(void **state);
/* The index is not there any more, until rig_reset. */
void rig_no_index(struct pull_rig *r);
/* What "http://127.0.0.1:PORT" server i has at path. */
const char *rig_url(const struct pull_rig *r, unsigned i, const char *path, char out[128]);
/* The file's bytes, and removed. Asserts that it can be read. */
void rig_read(const char *path, struct buf *out);
bool rig_exists(const char *path);

#endif
