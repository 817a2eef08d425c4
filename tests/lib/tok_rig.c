/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/tok_rig.h"

#include "base/clock.h"
#include "base/hash.h"
#include "lib/test_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONG_MS 60000u

struct tok *tok_rig_open(const char *path)
{
    struct gguf *g = NULL;
    struct tok *t = NULL;
    struct err e = {0};
    if (gguf_open(path, &g, &e) != OK || tok_new(g, NULL, &t, &e) != OK)
        fail_msg("%s: %s", path, e.msg);
    gguf_close(g); /* the tokenizer must not need it */
    return t;
}

void tok_rig_check(const struct tok *t, const char *text, size_t len, unsigned flags, const int32_t *want, size_t n)
{
    struct tok_ids ids = {0};
    struct err e = {0};
    if (tok_encode(t, text, len, flags, &ids, &e) != OK)
        fail_msg("%s", e.msg);
    if (!test_same_ids(text, len, ids.id, ids.n, want, n))
        fail();
    tok_ids_free(&ids);
}

void tok_rig_committed(const char *const *stems, size_t n, tok_rig_fn *fn)
{
    size_t n_there = 0;
    for (size_t i = 0; i < n; i++) {
        char name[128], gguf_path[PATH_MAX], json_path[PATH_MAX];
        snprintf(name, sizeof name, "%s.gguf", stems[i]);
        test_data(name, gguf_path);
        snprintf(name, sizeof name, "golden/%s.json", stems[i]);
        test_data(name, json_path);
        if (access(gguf_path, R_OK) != 0 || access(json_path, R_OK) != 0)
            continue;
        fn(gguf_path, json_path);
        n_there++;
    }
    if (n_there == 0)
        skip();
}

void tok_rig_shared(const char *folder, const char *stem, tok_rig_fn *fn)
{
    char name[256], gguf_path[PATH_MAX], json_path[PATH_MAX];
    snprintf(name, sizeof name, "%s/%s.gguf", folder, stem);
    if (!test_have_shared(name))
        skip();
    test_shared(name, gguf_path);
    const char *of = strstr(stem, "-00001-of-"); /* the references are the whole model's */
    snprintf(name, sizeof name, "%s/golden/%.*s.json", folder, of ? (int)(of - stem) : (int)strlen(stem), stem);
    fn(gguf_path, test_shared(name, json_path));
}

static char letter(unsigned kind, size_t i)
{
    static const char words[] = "the ring of many small machines ";
    switch (kind) {
    case 0:
        return 'a';
    case 1:
        return '\n';
    case 2:
        return ' ';
    case 3:
        return words[i % (sizeof words - 1)];
    default:
        return (char)(uint8_t)(hash_mix64(i) & 0xff);
    }
}

void tok_rig_long_texts(struct tok *const *toks, size_t n_toks)
{
    const size_t n = test_sanitized() ? 1 << 17 : 1 << 20;
    const uint64_t deadline = clock_deadline_ms(LONG_MS);
    char *text = malloc(n);
    assert_non_null(text);
    for (unsigned kind = 0; kind < 5; kind++) {
        for (size_t i = 0; i < n; i++)
            text[i] = letter(kind, i);
        for (size_t k = 0; k < n_toks; k++) {
            struct tok_ids ids = {0};
            struct err e;
            if (!toks[k])
                continue;
            assert_int_equal(tok_encode(toks[k], text, n, TOK_PARSE_SPECIAL, &ids, &e), OK);
            assert_true(ids.n > 0);
            tok_ids_free(&ids);
        }
    }
    assert_true(clock_left_ms(deadline) > 0);
    free(text);
}
