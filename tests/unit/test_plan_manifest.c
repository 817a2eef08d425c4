/* SPDX-License-Identifier: MIT
 *
 * Manifests: canonical text, every refusal, signature files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/io.h"
#include "lib/test_util.h"
#include "plan/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Public keys of RFC 8032 §7.1, tests 1 and 2. */
#define KEY_A "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
#define KEY_B "PUAXw-hDiVqStwqnTRt-vJyYLM8uxJaMwM1V8Sr0Zgw"
#define HEX_0 "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define HEX_F "f0f1f2f3f4f5f6f7f8f9fafbfcfdfefff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"

#define RANK_0                                                                                                         \
    "{\"addr\":\"127.0.0.1:7001\",\"device\":\"cpu\",\"dial\":\"predecessor\",\"key\":\"" KEY_A                        \
    "\",\"kv_bytes\":4096,\"weight_bytes\":123456789,\"window\":[0,2]}"
#define RANK_1                                                                                                         \
    "{\"addr\":\"[::1]:7002\",\"device\":\"vulkan0\",\"dial\":\"successor\",\"key\":\"" KEY_B                          \
    "\",\"kv_bytes\":0,\"weight_bytes\":0,\"window\":[2,5]}"

static const char golden[] = "{\"epoch\":3,\"kvasir_manifest\":1,\"model_id\":\"" HEX_0
                             "\",\"model_name\":\"Stories \\\"260K\\\" \\\\ \xc3\xa9\","
                             "\"n_batch\":64,\"n_blocks\":5,\"n_ctx\":512,\"n_embd\":64,\"n_slots\":4,\"n_vocab\":512,"
                             "\"ranks\":[" RANK_0 "," RANK_1 "],\"ring_id\":\"" HEX_F "\",\"wire\":\"f32\"}";

static int library_init(void **state)
{
    (void)state;
    return key_library_init(NULL) == OK ? 0 : -1;
}

/* The manifest of `golden`. */
static void golden_make(struct manifest *m)
{
    struct err e;
    *m = (struct manifest){.epoch = 3,
                           .model_name = "Stories \"260K\" \\ \xc3\xa9",
                           .n_blocks = 5,
                           .n_embd = 64,
                           .n_vocab = 512,
                           .n_ctx = 512,
                           .n_slots = 4,
                           .n_batch = 64,
                           .n_ranks = 2};
    assert_int_equal(digest_parse(HEX_0, m->model_id, &e), OK);
    assert_int_equal(digest_parse(HEX_F, m->ring_id, &e), OK);
    m->ranks = calloc(2, sizeof *m->ranks);
    assert_non_null(m->ranks);
    m->ranks[0] = (struct manifest_rank){.first = 0,
                                         .end = 2,
                                         .dial = MANIFEST_DIAL_PREDECESSOR,
                                         .addr = "127.0.0.1:7001",
                                         .device = "cpu",
                                         .kv_bytes = 4096,
                                         .weight_bytes = 123456789};
    m->ranks[1] = (struct manifest_rank){
        .first = 2, .end = 5, .dial = MANIFEST_DIAL_SUCCESSOR, .addr = "[::1]:7002", .device = "vulkan0"};
    assert_int_equal(key_parse(KEY_A, &m->ranks[0].key, &e), OK);
    assert_int_equal(key_parse(KEY_B, &m->ranks[1].key, &e), OK);
}

static void manifest_has_a_canonical_text(void **state)
{
    (void)state;
    struct manifest m;
    struct buf out = {0};
    struct err e;
    golden_make(&m);
    assert_int_equal(manifest_write(&m, &out, &e), OK);
    assert_string_equal(buf_str(&out), golden);
    buf_free(&out);
    manifest_fini(&m);
}

static void manifest_is_read_back(void **state)
{
    (void)state;
    struct manifest m, want;
    struct err e;
    golden_make(&want);
    assert_int_equal(manifest_parse(golden, strlen(golden), &m, &e), OK);
    assert_int_equal(m.n_ranks, 2);
    assert_memory_equal(m.ranks, want.ranks, 2 * sizeof *m.ranks);
    struct manifest_rank *ranks = m.ranks;
    m.ranks = want.ranks;
    assert_memory_equal(&m, &want, sizeof m);
    m.ranks = ranks;
    assert_int_equal(manifest_rank_of(&m, &want.ranks[1].key), 1);
    want.ranks[1].key.b[0] ^= 1;
    assert_int_equal(manifest_rank_of(&m, &want.ranks[1].key), -1);
    manifest_fini(&m);
    manifest_fini(&want);
    manifest_fini(&want);
}

/* White space and another order of the fields are read; writing makes them canonical. */
static void manifest_is_made_canonical(void **state)
{
    (void)state;
    struct buf text = {0}, out = {0};
    struct manifest m;
    struct err e;
    const char *rest = golden + strlen("{\"epoch\":3,");
    buf_printf(&text, " {\n%.*s ,\t\"epoch\" : 3 }\n", (int)strlen(rest) - 1, rest);
    assert_int_equal(manifest_parse(text.data, text.len, &m, &e), OK);
    assert_int_equal(manifest_write(&m, &out, &e), OK);
    assert_string_equal(buf_str(&out), golden);
    manifest_fini(&m);
    buf_free(&text);
    buf_free(&out);
}

/* The golden text with the first `old` replaced by `new` is refused with this code and a message that has this part. */
static void refused(const char *old, const char *new, enum err_code code, const char *part)
{
    struct buf text = {0};
    struct manifest m = {.epoch = 77};
    struct err e = {0};
    const char *at = strstr(golden, old);
    assert_non_null(at);
    buf_put(&text, golden, (size_t)(at - golden));
    buf_puts(&text, new);
    buf_puts(&text, at + strlen(old));
    enum err_code rc = manifest_parse(text.data, text.len, &m, &e);
    if (rc != code || e.code != code || !strstr(e.msg, part) || strchr(e.msg, '\n'))
        fail_msg("%s -> %s: %s %s; expected %s ...%s...", old, new, err_name(rc), e.msg, err_name(code), part);
    assert_int_equal(m.epoch, 77);
    buf_free(&text);
}

static void numbers_have_limits(void **state)
{
    (void)state;
    refused("\"n_blocks\":5", "\"n_blocks\":0", ERR_RANGE, "n_blocks: 0 is out of range, 1 to 1024");
    refused("\"n_blocks\":5", "\"n_blocks\":1025", ERR_RANGE, "n_blocks: 1025 is out of range");
    refused("\"n_embd\":64", "\"n_embd\":0", ERR_RANGE, "n_embd: 0");
    refused("\"n_embd\":64", "\"n_embd\":65537", ERR_RANGE, "n_embd: 65537");
    refused("\"n_vocab\":512", "\"n_vocab\":0", ERR_RANGE, "n_vocab: 0");
    refused("\"n_vocab\":512", "\"n_vocab\":16777217", ERR_RANGE, "n_vocab: 16777217");
    refused("\"n_ctx\":512", "\"n_ctx\":0", ERR_RANGE, "n_ctx: 0");
    refused("\"n_ctx\":512", "\"n_ctx\":16777217", ERR_RANGE, "n_ctx: 16777217");
    refused("\"n_slots\":4", "\"n_slots\":0", ERR_RANGE, "n_slots: 0");
    refused("\"n_slots\":4", "\"n_slots\":1025", ERR_RANGE, "n_slots: 1025");
    refused("\"n_batch\":64", "\"n_batch\":0", ERR_RANGE, "n_batch: 0");
    refused("\"n_batch\":64", "\"n_batch\":4097", ERR_RANGE, "n_batch: 4097");
    refused("\"epoch\":3", "\"epoch\":9007199254740992", ERR_RANGE, "epoch: 9007199254740992");
    refused("\"epoch\":3", "\"epoch\":-1", ERR_RANGE, "epoch: -1 is out of range");
    refused("\"n_ctx\":512", "\"n_ctx\":4294967808", ERR_RANGE, "n_ctx: 4294967808"); /* 512 modulo 2^32 */
    refused("\"kv_bytes\":4096", "\"kv_bytes\":18446744073709551615", ERR_RANGE,
            "ranks[0].kv_bytes: 184467440737095516");
    refused("\"kvasir_manifest\":1", "\"kvasir_manifest\":2", ERR_UNSUPPORTED, "kvasir_manifest: version 2, I know 1");
}

static void largest_numbers_pass(void **state)
{
    (void)state;
    struct manifest m;
    struct err e;
    golden_make(&m);
    m.epoch = m.ranks[0].kv_bytes = MANIFEST_MAX_INT;
    m.n_vocab = m.n_ctx = 1u << 24;
    m.n_slots = 1024;
    m.n_batch = 4096;
    m.n_embd = 4032;
    m.n_blocks = m.ranks[1].end = 1024;
    assert_int_equal(manifest_check(&m, &e), OK);
    m.n_embd = 4033;
    assert_int_equal(manifest_check(&m, &e), ERR_RANGE);
    assert_non_null(strstr(e.msg, "n_batch: 4096 rows of 4033 floats"));
    assert_non_null(strstr(e.msg, "at most 4094 fit"));
    m.n_embd = 65536;
    m.n_batch = 252;
    assert_int_equal(manifest_check(&m, &e), OK);
    manifest_fini(&m);
}

static void only_integers_are_numbers(void **state)
{
    (void)state;
    refused("\"n_ctx\":512", "\"n_ctx\":512.0", ERR_FORMAT, "n_ctx: not an integer");
    refused("\"n_ctx\":512", "\"n_ctx\":\"512\"", ERR_FORMAT, "n_ctx: not an integer");
    refused("\"n_ctx\":512", "\"n_ctx\":null", ERR_FORMAT, "n_ctx: not an integer");
    refused("\"n_ctx\":512", "\"n_ctx\":99999999999999999999", ERR_FORMAT, "n_ctx: not an integer");
    refused("\"n_ctx\":512", "\"n_ctx\":0512", ERR_FORMAT, "not JSON");
    refused("\"window\":[0,2]", "\"window\":[0,2.5]", ERR_FORMAT, "ranks[0].window: not an integer");
}

static void fields_are_all_there_once(void **state)
{
    (void)state;
    refused("\"epoch\":3,", "", ERR_FORMAT, "the manifest: the field \"epoch\" is missing");
    refused("\"epoch\":3,", "\"epoch\":3,\"epoch\":3,", ERR_FORMAT, "the field \"epoch\" is there twice");
    refused("\"epoch\":3,", "\"epoch\":3,\"epok\":3,", ERR_FORMAT, "the manifest: unknown field \"epok\"");
    refused("\"epoch\":3,", "\"epoch\":3,\"a\\nb\":3,", ERR_FORMAT, "unknown field \"a?b\"");
    refused("\"device\":\"vulkan0\",", "", ERR_FORMAT, "ranks[1]: the field \"device\" is missing");
    refused("\"device\":\"cpu\",", "\"device\":\"cpu\",\"device\":\"cpu\",", ERR_FORMAT, "ranks[0]: the field");
    refused("\"device\":\"cpu\",", "\"device\":\"cpu\",\"vram\":1,", ERR_FORMAT, "ranks[0]: unknown field \"vram\"");
}

static void wrong_shapes_are_refused(void **state)
{
    (void)state;
    refused(golden, "", ERR_FORMAT, "not JSON");
    refused(golden, "[]", ERR_FORMAT, "the manifest: not an object");
    refused(golden, "{}", ERR_FORMAT, "is missing");
    refused(golden, "null", ERR_FORMAT, "not an object");
    refused("}]", "}", ERR_FORMAT, "not JSON");
    refused("\"f32\"}", "\"f32\"}x", ERR_FORMAT, "not JSON");
    refused("\"f32\"}", "\"f32\"", ERR_FORMAT, "not JSON");
    refused("[" RANK_0 "," RANK_1 "]", "{}", ERR_FORMAT, "ranks: not an array");
    refused("[" RANK_0 "," RANK_1 "]", "[]", ERR_RANGE, "ranks: there are 0, 1 to 256");
    refused(RANK_1, "7", ERR_FORMAT, "ranks[1]: not an object");
    refused("\"window\":[2,5]", "\"window\":\"2:5\"", ERR_FORMAT, "ranks[1].window: not [first, end]");
    refused("\"window\":[2,5]", "\"window\":[2,5,6]", ERR_FORMAT, "ranks[1].window: not [first, end]");
    refused("\"window\":[2,5]", "\"window\":[2]", ERR_FORMAT, "ranks[1].window: not [first, end]");
}

static void texts_are_checked(void **state)
{
    (void)state;
    refused("\"cpu\"", "7", ERR_FORMAT, "ranks[0].device: not a text");
    refused("\"cpu\"", "\"\"", ERR_FORMAT, "ranks[0].device: the text is empty");
    refused("\"cpu\"", "\"c pu\"", ERR_FORMAT, "ranks[0].device: \"c pu\" is not one word");
    refused("\"cpu\"", "\"c\xc3\xa9\"", ERR_FORMAT, "ranks[0].device");
    refused("Stories", "Stor\\u0000ies", ERR_FORMAT, "model_name: the text has control characters");
    refused("Stories", "Stor\\nies", ERR_FORMAT, "model_name: the text has control characters");
    refused("Stories", "Stor\\u007fies", ERR_FORMAT, "model_name: the text has control characters");
    refused("Stories", "Stor\\u0085ies", ERR_FORMAT, "model_name: the text has control characters");
    refused("Stories", "Stor\xffies", ERR_FORMAT, "not JSON");
    refused("\"wire\":\"f32\"", "\"wire\":\"f16\"", ERR_FORMAT, "wire: \"f16\" is none of: f32");
    refused("\"wire\":\"f32\"", "\"wire\":1", ERR_FORMAT, "wire: not a text");
    refused("\"dial\":\"successor\"", "\"dial\":\"both\"", ERR_FORMAT,
            "ranks[1].dial: \"both\" is none of: predecessor, successor");
}

static void texts_have_255_bytes(void **state)
{
    (void)state;
    char name[257];
    struct manifest m;
    struct err e;
    golden_make(&m);
    memset(m.model_name, 'n', 255);
    assert_int_equal(manifest_check(&m, &e), OK);
    m.model_name[255] = 'n'; /* no NUL left */
    assert_int_equal(manifest_check(&m, &e), ERR_LIMIT);
    manifest_fini(&m);
    memset(name, 'n', 256);
    name[256] = 0;
    refused("Stories", name, ERR_LIMIT, "model_name: a text of");
}

static void addresses_are_host_and_port(void **state)
{
    (void)state;
    static const char *const bad[] = {"host",     "host:",      "host:0",   "host:65536", "host:99999999999",
                                      ":7001",    "host:07001", "a:b:7001", "[::1]",      "[]:7001",
                                      "::1:7001", "host:70o1",  "[a:7001",  "host :7001", "ho]:1"};
    char text[80];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "\"addr\":\"%s\"", bad[i]);
        refused("\"addr\":\"127.0.0.1:7001\"", text, ERR_FORMAT, "ranks[0].addr: ");
    }
    refused("127.0.0.1:7001", "ex\xc3\xa4mple:1", ERR_FORMAT, "ranks[0].addr: ");
}

static void keys_and_digests_are_checked(void **state)
{
    (void)state;
    refused(HEX_0, "00", ERR_FORMAT, "model_id: a digest has 64 hex digits");
    refused("\"" HEX_0 "\"", "0", ERR_FORMAT, "model_id: not a text");
    refused("f0f1f2", "F0f1f2", ERR_FORMAT, "ring_id: ");
    refused(HEX_F, HEX_F "00", ERR_LIMIT, "ring_id: ");
    refused(KEY_A, "AAAA", ERR_FORMAT, "ranks[0].key: not a public key");
    refused(KEY_B, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", ERR_FORMAT, "ranks[1].key: not a public key");
    refused(KEY_A, KEY_B, ERR_MISMATCH, "ranks 0 and 1 have the same key");
}

static void windows_tile_the_model(void **state)
{
    (void)state;
    refused("\"window\":[2,5]", "\"window\":[3,5]", ERR_MISMATCH, "window gap: rank 0 ends at 2, rank 1 begins at 3");
    refused("\"window\":[2,5]", "\"window\":[1,5]", ERR_MISMATCH,
            "window overlap: rank 0 ends at 2, rank 1 begins at 1");
    refused("\"window\":[0,2]", "\"window\":[1,2]", ERR_MISMATCH, "window gap: rank 0 begins at 1, not at 0");
    refused("\"window\":[2,5]", "\"window\":[2,4]", ERR_MISMATCH,
            "window gap: rank 1 ends at 4, the model has 5 blocks");
    refused("\"window\":[2,5]", "\"window\":[2,6]", ERR_RANGE,
            "ranks[1].window: [2,6) ends after the model's 5 blocks");
    refused("\"window\":[2,5]", "\"window\":[2,2]", ERR_RANGE, "ranks[1].window: [2,2) is empty");
    refused("\"window\":[2,5]", "\"window\":[5,2]", ERR_RANGE, "ranks[1].window: [5,2) is empty");
    refused("\"window\":[2,5]", "\"window\":[2,1025]", ERR_RANGE, "ranks[1].window: 1025");
    refused("\"window\":[2,5]", "\"window\":[-2,5]", ERR_RANGE, "ranks[1].window: -2");
}

static void edges_need_a_listener(void **state)
{
    (void)state;
    /* Rank 0 dials rank 1; rank 0 dials over the closing edge too, so that only rank 1 must have an address. */
    refused("\"[::1]:7002\"", "\"\"", ERR_MISMATCH, "edge 0: the predecessor dials, but rank 1 has no address");
    refused("\"dial\":\"predecessor\"", "\"dial\":\"successor\",\"dial\":1", ERR_FORMAT, "twice");
    struct manifest m;
    struct err e;
    golden_make(&m);
    m.ranks[0].addr[0] = 0;
    assert_int_equal(manifest_check(&m, &e), OK);
    m.ranks[1].dial = MANIFEST_DIAL_PREDECESSOR;
    assert_int_equal(manifest_check(&m, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "edge 1: the predecessor dials, but rank 0 has no address"));
    m.ranks[1].dial = MANIFEST_DIAL_COUNT;
    assert_int_equal(manifest_check(&m, &e), ERR_RANGE);
    manifest_fini(&m);
}

static void one_rank_needs_no_address(void **state)
{
    (void)state;
    struct manifest m;
    struct err e;
    golden_make(&m);
    m.n_ranks = 1;
    m.ranks[0].end = 5;
    m.ranks[0].addr[0] = 0;
    assert_int_equal(manifest_check(&m, &e), OK);
    manifest_fini(&m);
}

static void wrong_structs_are_not_written(void **state)
{
    (void)state;
    struct manifest m;
    struct buf out = {0};
    struct err e;
    golden_make(&m);
    m.wire = MANIFEST_WIRE_COUNT;
    assert_int_equal(manifest_write(&m, &out, &e), ERR_RANGE);
    m.wire = MANIFEST_WIRE_F32;
    m.model_name[0] = (char)0xff;
    assert_int_equal(manifest_write(&m, &out, &e), ERR_FORMAT);
    m.model_name[0] = 0;
    m.n_ranks = 0;
    assert_int_equal(manifest_write(&m, &out, &e), ERR_RANGE);
    m.n_ranks = 257;
    assert_int_equal(manifest_write(&m, &out, &e), ERR_RANGE);
    m.n_ranks = 2;
    assert_int_equal(out.len, 0);
    assert_string_equal(manifest_wire_name(MANIFEST_WIRE_F32), "f32");
    assert_string_equal(manifest_wire_name(MANIFEST_WIRE_COUNT), "?");
    manifest_fini(&m);
    buf_free(&out);
}

static void large_texts_are_refused_unread(void **state)
{
    (void)state;
    struct manifest m = {0};
    struct err e;
    assert_int_equal(manifest_parse("{", (size_t)MANIFEST_MAX_BYTES + 1, &m, &e), ERR_LIMIT);
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    struct manifest m = {0};
    struct err e;
    for (size_t n = 0; n < strlen(golden); n++) {
        char *copy = malloc(n ? n : 1);
        memcpy(copy, golden, n);
        assert_int_equal(manifest_parse(copy, n, &m, &e), ERR_FORMAT);
        free(copy);
    }
}

/* --- random manifests --- */

static void random_manifest(struct manifest *m, uint64_t seed)
{
    struct key_secret k;
    *m = (struct manifest){.epoch = hash_mix64(seed) & MANIFEST_MAX_INT, .n_embd = 1 + (uint32_t)seed, .n_vocab = 2};
    m->n_ranks = 1 + (uint32_t)(hash_mix64(seed + 1) % 8);
    m->n_ctx = 1 + (uint32_t)(hash_mix64(seed + 2) % MANIFEST_MAX_CTX);
    m->n_slots = 1 + (uint32_t)(hash_mix64(seed + 3) % MANIFEST_MAX_SLOTS);
    m->n_batch = 1 + (uint32_t)(hash_mix64(seed + 4) % MANIFEST_MAX_BATCH);
    for (size_t i = 0; i < 1 + seed % 255; i++)
        m->model_name[i] = (char)(' ' + hash_mix64(seed + i) % 95);
    m->ranks = calloc(m->n_ranks, sizeof *m->ranks);
    assert_non_null(m->ranks);
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        struct manifest_rank *r = &m->ranks[i];
        r->first = m->n_blocks;
        m->n_blocks += 1 + (uint32_t)(hash_mix64(seed + i) % 100);
        r->end = m->n_blocks;
        r->dial = hash_mix64(seed + i) & 1 ? MANIFEST_DIAL_PREDECESSOR : MANIFEST_DIAL_SUCCESSOR;
        snprintf(r->addr, sizeof r->addr, "node-%u.example:%u", i, 1 + (unsigned)(hash_mix64(seed * i) % 65535));
        snprintf(r->device, sizeof r->device, "dev%u", i);
        r->weight_bytes = hash_mix64(seed ^ i) & MANIFEST_MAX_INT;
        key_generate(&k);
        key_public_of(&k, &r->key);
    }
}

static void random_manifests_are_read_back(void **state)
{
    (void)state;
    struct buf out = {0}, again = {0};
    struct manifest m, got;
    struct err e;
    for (uint64_t seed = 0; seed < 100; seed++) {
        random_manifest(&m, seed);
        buf_clear(&out);
        buf_clear(&again);
        assert_int_equal(manifest_write(&m, &out, &e), OK);
        assert_int_equal(manifest_parse(out.data, out.len, &got, &e), OK);
        assert_memory_equal(got.ranks, m.ranks, m.n_ranks * sizeof *m.ranks);
        assert_int_equal(manifest_write(&got, &again, &e), OK);
        assert_string_equal(buf_str(&again), buf_str(&out));
        manifest_fini(&m);
        manifest_fini(&got);
    }
    buf_free(&out);
    buf_free(&again);
}

/* --- files --- */

struct files {
    char path[PATH_MAX], sig[PATH_MAX];
    struct key_secret secret;
    struct key_public public;
};

static int files_setup(void **state)
{
    static struct files f;
    struct manifest m;
    struct err e;
    char name[64];
    snprintf(name, sizeof name, "manifest.json");
    test_scratch(name, f.path);
    snprintf(name, sizeof name, "manifest.json.sig");
    test_scratch(name, f.sig);
    key_generate(&f.secret);
    key_public_of(&f.secret, &f.public);
    golden_make(&m);
    assert_int_equal(manifest_save(f.path, &m, &f.secret, &e), OK);
    manifest_fini(&m);
    *state = &f;
    return 0;
}

static int files_teardown(void **state)
{
    struct files *f = *state;
    unlink(f->path);
    unlink(f->sig);
    return 0;
}

static void overwrite(const char *path, const char *text)
{
    struct err e;
    assert_int_equal(io_write_file(path, text, strlen(text), 0644, &e), OK);
}

/* Signs the text as it stands. */
static void sign_as(struct files *f, const char *text)
{
    uint8_t sig[KEY_SIGNATURE_BYTES];
    char key[KEY_TEXT_SIZE], base64[100], json[256];
    overwrite(f->path, text);
    key_sign(&f->secret, text, strlen(text), sig);
    key_base64(sig, sizeof sig, base64);
    snprintf(json, sizeof json, "{\"key\":\"%s\",\"signature\":\"%s\"}", key_text(&f->public, key), base64);
    overwrite(f->sig, json);
}

static void load_refused(struct files *f, const struct key_public *signer, enum err_code code, const char *part)
{
    struct manifest m = {.epoch = 77};
    struct key_public by = {{0}}, none = {{0}};
    struct err e = {0};
    enum err_code rc = manifest_load(f->path, signer, &m, &by, &e);
    if (rc != code || e.code != code || !strstr(e.msg, part))
        fail_msg("%s %s; expected %s ...%s...", err_name(rc), e.msg, err_name(code), part);
    assert_int_equal(m.epoch, 77);
    assert_memory_equal(&by, &none, sizeof by);
}

static void saved_file_is_the_canonical_text(void **state)
{
    struct files *f = *state;
    struct buf b = {0};
    struct err e;
    assert_int_equal(io_read_file(f->path, 1 << 16, &b, &e), OK);
    assert_string_equal(buf_str(&b), golden);
    buf_free(&b);
}

static void saved_manifest_loads(void **state)
{
    struct files *f = *state;
    struct manifest m;
    struct key_public by;
    struct err e;
    assert_int_equal(manifest_load(f->path, NULL, &m, &by, &e), OK);
    assert_true(key_equal(&by, &f->public));
    assert_int_equal(m.n_ranks, 2);
    manifest_fini(&m);
    assert_int_equal(manifest_load(f->path, &f->public, &m, NULL, &e), OK);
    manifest_fini(&m);
}

static void other_signer_is_refused(void **state)
{
    struct files *f = *state;
    struct key_public other;
    struct err e;
    assert_int_equal(key_parse(KEY_A, &other, &e), OK);
    load_refused(f, &other, ERR_AUTH, "not by " KEY_A);
}

static void changed_file_is_refused(void **state)
{
    struct files *f = *state;
    struct buf b = {0};
    buf_puts(&b, golden);
    b.data[strlen("{\"epoch\":")] = '4';
    overwrite(f->path, buf_str(&b));
    load_refused(f, NULL, ERR_AUTH, "does not fit the manifest");
    buf_free(&b);
}

static void broken_signature_files_are_refused(void **state)
{
    struct files *f = *state;
    overwrite(f->sig, "");
    load_refused(f, NULL, ERR_FORMAT, "manifest.json.sig: not JSON");
    overwrite(f->sig, "[]");
    load_refused(f, NULL, ERR_FORMAT, "not an object of key and signature");
    overwrite(f->sig, "{\"key\":\"" KEY_A "\",\"sig\":\"\"}");
    load_refused(f, NULL, ERR_FORMAT, "signature: not a text");
    overwrite(f->sig, "{\"key\":\"" KEY_A "\",\"signature\":\"AAAA\"}");
    load_refused(f, NULL, ERR_FORMAT, "signature: 64 bytes in base64url are 86 characters");
    overwrite(f->sig, "{\"key\":\"x\",\"signature\":\"AAAA\"}");
    load_refused(f, NULL, ERR_FORMAT, "key: not a public key");
    unlink(f->sig);
    load_refused(f, NULL, ERR_NOT_FOUND, "manifest.json.sig");
}

static void signed_text_must_be_canonical(void **state)
{
    struct files *f = *state;
    struct buf b = {0};
    buf_printf(&b, "%s\n", golden);
    sign_as(f, buf_str(&b));
    load_refused(f, NULL, ERR_FORMAT, "manifest.json: not canonical JSON");
    buf_free(&b);
}

static void signed_nonsense_is_refused(void **state)
{
    struct files *f = *state;
    sign_as(f, "{}");
    load_refused(f, &f->public, ERR_FORMAT, "manifest.json: the manifest: the field");
}

static void missing_file_is_not_found(void **state)
{
    struct files *f = *state;
    unlink(f->path);
    load_refused(f, NULL, ERR_NOT_FOUND, "manifest.json");
}

#define file_test(f) cmocka_unit_test_setup_teardown(f, files_setup, files_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifest_has_a_canonical_text),
        cmocka_unit_test(manifest_is_read_back),
        cmocka_unit_test(manifest_is_made_canonical),
        cmocka_unit_test(numbers_have_limits),
        cmocka_unit_test(largest_numbers_pass),
        cmocka_unit_test(only_integers_are_numbers),
        cmocka_unit_test(fields_are_all_there_once),
        cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(texts_are_checked),
        cmocka_unit_test(texts_have_255_bytes),
        cmocka_unit_test(addresses_are_host_and_port),
        cmocka_unit_test(keys_and_digests_are_checked),
        cmocka_unit_test(windows_tile_the_model),
        cmocka_unit_test(edges_need_a_listener),
        cmocka_unit_test(one_rank_needs_no_address),
        cmocka_unit_test(wrong_structs_are_not_written),
        cmocka_unit_test(large_texts_are_refused_unread),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(random_manifests_are_read_back),
        file_test(saved_file_is_the_canonical_text),
        file_test(saved_manifest_loads),
        file_test(other_signer_is_refused),
        file_test(changed_file_is_refused),
        file_test(broken_signature_files_are_refused),
        file_test(signed_text_must_be_canonical),
        file_test(signed_nonsense_is_refused),
        file_test(missing_file_is_not_found),
    };
    return cmocka_run_group_tests_name("plan_manifest", tests, library_init, NULL);
}
