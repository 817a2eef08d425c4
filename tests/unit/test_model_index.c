/* SPDX-License-Identifier: MIT
 *
 * The index: what changes a model's id and what does not, digests against the file's bytes, the cache, the *.kvi text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "base/log.h"
#include "lib/test_util.h"
#include "model/hparams.h"
#include "model/index.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <yyjson.h>

#define WHOLE "llama-spm-q4_0.gguf"
#define SPLIT "llama-spm-q4_0-00001-of-00003.gguf"

/* --- tiny models, made here --- */

struct tiny_tensor {
    const char *name;
    uint64_t ne[2]; /* F32 */
    uint8_t fill;
};

/* Keys are text; a NULL name ends a list. */
struct tiny {
    struct {
        const char *key, *value;
    } kv[6];
    struct tiny_tensor tensors[4];
};

static const struct tiny base_model = {
    .kv = {{"general.architecture", "llama"}, {"general.name", "tiny"}},
    .tensors = {{"b", {8, 2}, 1}, {"a", {4, 1}, 2}},
};

static void put_string(struct buf *b, const char *s)
{
    buf_put_u64(b, strlen(s));
    buf_puts(b, s);
}

static void tiny_bytes(const struct tiny *t, struct buf *b)
{
    size_t n_kv = 0, n_tensors = 0;
    uint64_t offset = 0;
    while (n_kv < 6 && t->kv[n_kv].key)
        n_kv++;
    while (n_tensors < 4 && t->tensors[n_tensors].name)
        n_tensors++;
    buf_puts(b, "GGUF");
    buf_put_u32(b, 3);
    buf_put_u64(b, n_tensors);
    buf_put_u64(b, n_kv);
    for (size_t i = 0; i < n_kv; i++) {
        put_string(b, t->kv[i].key);
        buf_put_u32(b, 8); /* a string */
        put_string(b, t->kv[i].value);
    }
    for (size_t i = 0; i < n_tensors; i++) {
        put_string(b, t->tensors[i].name);
        buf_put_u32(b, 2);
        buf_put_u64(b, t->tensors[i].ne[0]);
        buf_put_u64(b, t->tensors[i].ne[1]);
        buf_put_u32(b, 0); /* F32 */
        buf_put_u64(b, offset);
        offset += (t->tensors[i].ne[0] * t->tensors[i].ne[1] * 4 + 31) / 32 * 32;
    }
    while (b->len % 32)
        buf_put_u8(b, 0);
    for (size_t i = 0; i < n_tensors; i++) {
        for (uint64_t k = 0; k < t->tensors[i].ne[0] * t->tensors[i].ne[1] * 4; k++)
            buf_put_u8(b, t->tensors[i].fill);
        while (b->len % 32)
            buf_put_u8(b, 0);
    }
}

static void id_of_path(const char *path, uint8_t id[DIGEST_BYTES])
{
    struct gguf *g;
    struct index x;
    struct err e;
    if (gguf_open(path, &g, &e) != OK || index_compute(g, NULL, NULL, &x, &e) != OK)
        fail_msg("%s", e.msg);
    memcpy(id, x.model_id, DIGEST_BYTES);
    index_fini(&x);
    gguf_close(g);
}

static void id_of_tiny(const struct tiny *t, uint8_t id[DIGEST_BYTES])
{
    char path[PATH_MAX];
    struct buf b = {0};
    struct err e;
    tiny_bytes(t, &b);
    assert_int_equal(io_write_file(test_scratch("tiny.gguf", path), b.data, b.len, 0644, &e), OK);
    id_of_path(path, id);
    unlink(path);
    buf_free(&b);
}

static bool same_id(const struct tiny *a, const struct tiny *b)
{
    uint8_t x[DIGEST_BYTES], y[DIGEST_BYTES];
    id_of_tiny(a, x);
    id_of_tiny(b, y);
    return memcmp(x, y, DIGEST_BYTES) == 0;
}

/* The encoding as docs/manifest.md has it, written once more. */
static void id_is_the_documented_encoding(void **state)
{
    (void)state;
    uint8_t id[DIGEST_BYTES], want[DIGEST_BYTES], d[DIGEST_BYTES], fill[64];
    struct buf b = {0};
    put_string(&b, "kvasir model id 1");
    buf_put_u64(&b, 2);
    put_string(&b, "general.architecture");
    buf_put_u64(&b, 4 + 8 + 5);
    buf_put_u32(&b, 8);
    put_string(&b, "llama");
    put_string(&b, "general.name");
    buf_put_u64(&b, 4 + 8 + 4);
    buf_put_u32(&b, 8);
    put_string(&b, "tiny");
    buf_put_u64(&b, 2);
    for (size_t i = 2; i-- > 0;) { /* "a" before "b" */
        const struct tiny_tensor *t = &base_model.tensors[i];
        put_string(&b, t->name);
        buf_put_u64(&b, 0);
        buf_put_u64(&b, t->ne[0]);
        buf_put_u64(&b, t->ne[1]);
        buf_put_u64(&b, 1);
        buf_put_u64(&b, 1);
        memset(fill, t->fill, sizeof fill);
        digest_of(fill, t->ne[0] * t->ne[1] * 4, d);
        buf_put(&b, d, sizeof d);
    }
    digest_of(b.data, b.len, want);
    id_of_tiny(&base_model, id);
    assert_memory_equal(id, want, DIGEST_BYTES);
    buf_free(&b);
}

static void order_does_not_change_the_id(void **state)
{
    (void)state;
    struct tiny t = base_model;
    t.kv[0] = base_model.kv[1];
    t.kv[1] = base_model.kv[0];
    t.tensors[0] = base_model.tensors[1];
    t.tensors[1] = base_model.tensors[0];
    assert_true(same_id(&t, &base_model));
}

static void split_and_kvasir_keys_do_not_change_the_id(void **state)
{
    (void)state;
    struct tiny t = base_model;
    t.kv[2].key = "split.note";
    t.kv[2].value = "x";
    t.kv[3].key = "kvasir.model.id";
    t.kv[3].value = "y";
    assert_true(same_id(&t, &base_model));
    t.kv[3].key = "kvasirx";
    assert_false(same_id(&t, &base_model));
    t.kv[3].key = "splitter";
    assert_false(same_id(&t, &base_model));
}

static void every_part_changes_the_id(void **state)
{
    (void)state;
    struct tiny t = base_model;
    t.kv[1].value = "tinx";
    assert_false(same_id(&t, &base_model));
    t = base_model;
    t.kv[1].key = "general.nam";
    assert_false(same_id(&t, &base_model));
    t = base_model;
    t.kv[1].key = NULL;
    assert_false(same_id(&t, &base_model));
    t = base_model;
    t.tensors[1].name = "c";
    assert_false(same_id(&t, &base_model));
    t = base_model;
    t.tensors[0].ne[0] = 2;
    t.tensors[0].ne[1] = 8;
    assert_false(same_id(&t, &base_model));
    t = base_model;
    t.tensors[0].fill = 3;
    assert_false(same_id(&t, &base_model));
    t = base_model;
    t.tensors[1].name = NULL;
    assert_false(same_id(&t, &base_model));
    t = base_model;
    t.tensors[0].name = "a";
    t.tensors[1].name = "b";
    assert_false(same_id(&t, &base_model));
}

/* --- real ones --- */

static void split_model_has_the_id_of_the_whole(void **state)
{
    (void)state;
    uint8_t whole[DIGEST_BYTES], split[DIGEST_BYTES], other[DIGEST_BYTES];
    char path[PATH_MAX];
    id_of_path(test_data(WHOLE, path), whole);
    id_of_path(test_data(SPLIT, path), split);
    id_of_path(test_data("llama-spm-q8_0.gguf", path), other);
    assert_memory_equal(whole, split, DIGEST_BYTES);
    assert_memory_not_equal(whole, other, DIGEST_BYTES);
}

/* Ids must not drift from version to version. */
static void id_of_a_model_is_fixed(void **state)
{
    (void)state;
    static const char want[] = "870b14d293ee9b45746a3ca8d96746b3879040df5e27e1f679604132b12b5b49";
    uint8_t id[DIGEST_BYTES];
    char path[PATH_MAX], hex[DIGEST_HEX_SIZE];
    id_of_path(test_data(WHOLE, path), id);
    assert_string_equal(digest_hex(id, hex), want);
}

static void digests_are_of_the_tensors_bytes(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct buf b = {0};
    struct gguf *g;
    struct index x;
    struct err e;
    uint8_t want[DIGEST_BYTES];
    test_data(WHOLE, path);
    assert_int_equal(io_read_file(path, 64u << 20, &b, &e), OK);
    assert_int_equal(gguf_open(path, &g, &e), OK);
    assert_int_equal(index_compute(g, NULL, NULL, &x, &e), OK);
    assert_int_equal(x.n_tensors, gguf_n_tensors(g));
    for (size_t i = 0; i < x.n_tensors; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        digest_of(b.data + t->offset, t->size, want);
        assert_memory_equal(x.tensor_digest[i], want, DIGEST_BYTES);
    }
    index_fini(&x);
    index_fini(&x);
    gguf_close(g);
    buf_free(&b);
}

/* A copy of a test file in the scratch folder. */
static void copy_of(const char *name, char out[PATH_MAX])
{
    char from[PATH_MAX];
    struct buf b = {0};
    struct err e;
    assert_int_equal(io_read_file(test_data(name, from), 64u << 20, &b, &e), OK);
    assert_int_equal(io_write_file(test_scratch(name, out), b.data, b.len, 0644, &e), OK);
    buf_free(&b);
}

static void flip_last_byte_of(const char *path, const char *tensor)
{
    struct gguf *g;
    struct err e;
    uint8_t byte;
    assert_int_equal(gguf_open(path, &g, &e), OK);
    const struct gguf_tensor *t = gguf_tensor_find(g, tensor);
    assert_non_null(t);
    off_t at = (off_t)(t->offset + t->size - 1);
    gguf_close(g);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void one_byte_changes_the_id(void **state)
{
    (void)state;
    uint8_t before[DIGEST_BYTES], after[DIGEST_BYTES];
    char path[PATH_MAX];
    copy_of(WHOLE, path);
    id_of_path(path, before);
    flip_last_byte_of(path, "blk.0.attn_q.weight");
    id_of_path(path, after);
    assert_memory_not_equal(before, after, DIGEST_BYTES);
    flip_last_byte_of(path, "blk.0.attn_q.weight");
    id_of_path(path, after);
    assert_memory_equal(before, after, DIGEST_BYTES);
    unlink(path);
}

static void file_that_shrinks_is_an_error(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct gguf *g;
    struct index x = {.n_tensors = 77};
    struct err e;
    copy_of(WHOLE, path);
    assert_int_equal(gguf_open(path, &g, &e), OK);
    assert_int_equal(truncate(path, (off_t)gguf_file_size(g, 0) - 64), 0);
    assert_int_equal(index_compute(g, NULL, NULL, &x, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, ": tensor "));
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(x.n_tensors, 77);
    gguf_close(g);
    unlink(path);
}

static void model_in_memory_has_no_index(void **state)
{
    (void)state;
    struct buf b = {0};
    struct gguf *g;
    struct index x;
    struct err e;
    tiny_bytes(&base_model, &b);
    assert_int_equal(gguf_open_mem(b.data, b.len, &g, &e), OK);
    assert_int_equal(index_compute(g, NULL, NULL, &x, &e), ERR_ARG);
    assert_int_equal(index_cached(g, NULL, NULL, &x, &e), ERR_ARG);
    gguf_close(g);
    buf_free(&b);
}

/* --- progress --- */

struct told {
    uint64_t n, done, total;
    bool stop;
};

static bool tell(void *ctx, uint64_t done, uint64_t total)
{
    struct told *t = ctx;
    t->n++;
    t->done = done;
    t->total = total;
    return !t->stop;
}

static void progress_ends_at_the_total(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct told t = {0};
    struct gguf *g;
    struct index x;
    struct err e;
    uint64_t total = 0;
    assert_int_equal(gguf_open(test_data(SPLIT, path), &g, &e), OK);
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        total += gguf_tensor_at(g, i)->size;
    assert_int_equal(index_compute(g, tell, &t, &x, &e), OK);
    assert_true(t.n >= 1 && t.done == total && t.total == total);
    index_fini(&x);
    t.stop = true;
    assert_int_equal(index_compute(g, tell, &t, &x, &e), ERR_CANCELLED);
    gguf_close(g);
}

/* --- the cache: each test has a home of its own --- */

static void remove_tree(const char *path)
{
    char child[PATH_MAX];
    DIR *dir = opendir(path);
    if (!dir) {
        unlink(path);
        return;
    }
    for (struct dirent *d; (d = readdir(dir));) {
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        assert_true(snprintf(child, sizeof child, "%s/%s", path, d->d_name) < PATH_MAX);
        remove_tree(child);
    }
    closedir(dir);
    rmdir(path);
}

static int home_setup(void **state)
{
    static char home[PATH_MAX];
    test_scratch("home", home);
    setenv("KVASIR_HOME", home, 1);
    *state = home;
    return 0;
}

static int home_teardown(void **state)
{
    remove_tree(*state);
    unsetenv("KVASIR_HOME");
    return 0;
}

/* Only files that have not changed for a while are remembered: waits for a checkout that was made just now. */
static const char *settled_model(char path[PATH_MAX])
{
    struct stat st;
    assert_int_equal(stat(test_data(WHOLE, path), &st), 0);
    for (int i = 0; i < 100 && time(NULL) - st.st_ctim.tv_sec <= 3; i++)
        usleep(100000);
    return path;
}

/* Returns how often progress was told: 0 for a hit. */
static uint64_t cached_id(const char *path, uint8_t id[DIGEST_BYTES])
{
    struct told t = {0};
    struct gguf *g;
    struct index x;
    struct err e;
    if (gguf_open(path, &g, &e) != OK || index_cached(g, tell, &t, &x, &e) != OK)
        fail_msg("%s", e.msg);
    memcpy(id, x.model_id, DIGEST_BYTES);
    assert_int_equal(x.n_tensors, gguf_n_tensors(g));
    index_fini(&x);
    gguf_close(g);
    return t.n;
}

/* The only file in the cache. */
static const char *cache_file(const char *home, char out[PATH_MAX])
{
    char dir_path[PATH_MAX];
    size_t n = 0;
    assert_true(snprintf(dir_path, sizeof dir_path, "%s/index", home) < PATH_MAX);
    DIR *dir = opendir(dir_path);
    if (!dir) {
        fail_msg("no folder %s", dir_path);
        return out;
    }
    for (struct dirent *d; (d = readdir(dir));) {
        if (d->d_name[0] == '.')
            continue;
        n++;
        assert_true(snprintf(out, PATH_MAX, "%s/%s", dir_path, d->d_name) < PATH_MAX);
    }
    closedir(dir);
    assert_int_equal(n, 1);
    return out;
}

static void second_time_is_a_hit(void **state)
{
    uint8_t a[DIGEST_BYTES], b[DIGEST_BYTES], want[DIGEST_BYTES];
    char path[PATH_MAX], file[PATH_MAX];
    id_of_path(settled_model(path), want);
    assert_true(cached_id(path, a) > 0);
    assert_int_equal(cached_id(path, b), 0);
    assert_memory_equal(a, want, DIGEST_BYTES);
    assert_memory_equal(b, want, DIGEST_BYTES);
    cache_file(*state, file);
}

static void hit_has_the_same_digests(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint8_t id[DIGEST_BYTES];
    struct gguf *g;
    struct index x, y;
    struct err e;
    cached_id(settled_model(path), id);
    assert_int_equal(gguf_open(path, &g, &e), OK);
    assert_int_equal(index_compute(g, NULL, NULL, &x, &e), OK);
    assert_int_equal(index_cached(g, NULL, NULL, &y, &e), OK);
    assert_memory_equal(x.tensor_digest, y.tensor_digest, x.n_tensors * DIGEST_BYTES);
    index_fini(&x);
    index_fini(&y);
    gguf_close(g);
}

static void broken_cache_is_made_again(void **state)
{
    uint8_t id[DIGEST_BYTES], want[DIGEST_BYTES];
    char path[PATH_MAX], file[PATH_MAX];
    struct buf good = {0}, now = {0};
    struct err e;
    cached_id(settled_model(path), want);
    cache_file(*state, file);
    assert_int_equal(io_read_file(file, 1 << 20, &good, &e), OK);
    for (size_t i = 0; i < good.len; i += good.len / 13) {
        good.data[i] ^= 0x40;
        assert_int_equal(io_write_file(file, good.data, good.len, 0600, &e), OK);
        good.data[i] ^= 0x40;
        assert_true(cached_id(path, id) > 0);
        assert_memory_equal(id, want, DIGEST_BYTES);
        buf_clear(&now);
        assert_int_equal(io_read_file(file, 1 << 20, &now, &e), OK);
        assert_int_equal(now.len, good.len);
        assert_memory_equal(now.data, good.data, good.len);
    }
    buf_free(&good);
    buf_free(&now);
}

static void cut_cache_is_made_again(void **state)
{
    uint8_t id[DIGEST_BYTES], want[DIGEST_BYTES];
    char path[PATH_MAX], file[PATH_MAX];
    struct buf good = {0};
    struct err e;
    cached_id(settled_model(path), want);
    cache_file(*state, file);
    assert_int_equal(io_read_file(file, 1 << 20, &good, &e), OK);
    const size_t lengths[] = {0, 1, 15, 16, 48, good.len - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        assert_int_equal(io_write_file(file, good.data, lengths[i], 0600, &e), OK);
        assert_true(cached_id(path, id) > 0);
        assert_memory_equal(id, want, DIGEST_BYTES);
    }
    assert_int_equal(cached_id(path, id), 0);
    buf_free(&good);
}

/* A copy made and changed within one tick of the clock: the old id must not come back. */
static void changed_file_is_a_miss(void **state)
{
    (void)state;
    uint8_t before[DIGEST_BYTES], after[DIGEST_BYTES], want[DIGEST_BYTES];
    char path[PATH_MAX];
    copy_of(WHOLE, path);
    cached_id(path, before);
    flip_last_byte_of(path, "blk.1.ffn_up.weight");
    assert_true(cached_id(path, after) > 0);
    id_of_path(path, want);
    assert_memory_not_equal(before, after, DIGEST_BYTES);
    assert_memory_equal(after, want, DIGEST_BYTES);
    unlink(path);
}

static void unusable_home_is_no_error(void **state)
{
    uint8_t id[DIGEST_BYTES], want[DIGEST_BYTES];
    char path[PATH_MAX];
    struct err e;
    id_of_path(settled_model(path), want);
    assert_int_equal(io_write_file(*state, "a file, not a folder", 20, 0600, &e), OK);
    assert_true(cached_id(path, id) > 0);
    assert_memory_equal(id, want, DIGEST_BYTES);
}

static void cache_needs_no_home(void **state)
{
    uint8_t id[DIGEST_BYTES];
    char path[PATH_MAX], file[PATH_MAX];
    const char *home = getenv("HOME");
    char *kept = home ? strdup(home) : NULL;
    settled_model(path);
    unsetenv("HOME");
    assert_true(cached_id(path, id) > 0);
    assert_int_equal(cached_id(path, id), 0);
    cache_file(*state, file);
    if (kept)
        setenv("HOME", kept, 1);
    free(kept);
}

/* --- the text --- */

static void write_index(const char *name, struct buf *out)
{
    char path[PATH_MAX];
    struct gguf *g;
    struct hparams h;
    struct model_sizes s;
    struct index x;
    struct err e;
    if (gguf_open(test_data(name, path), &g, &e) != OK || hparams_read(g, &h, &e) != OK ||
        model_sizes_read(g, &h, &s, &e) != OK || index_compute(g, NULL, NULL, &x, &e) != OK ||
        index_write(g, &h, &s, &x, out, &e) != OK)
        fail_msg("%s", e.msg);
    index_fini(&x);
    model_sizes_fini(&s);
    hparams_fini(&h);
    gguf_close(g);
}

/* Every object's keys in bytewise order. */
static void keys_are_sorted(yyjson_val *v)
{
    size_t i, max;
    yyjson_val *key, *val;
    const char *last = "";
    yyjson_obj_foreach(v, i, max, key, val)
    {
        assert_true(strcmp(last, yyjson_get_str(key)) < 0);
        last = yyjson_get_str(key);
        keys_are_sorted(val);
    }
    yyjson_arr_foreach(v, i, max, val)
    {
        assert_false(yyjson_is_real(val));
        keys_are_sorted(val);
    }
}

static uint64_t number(yyjson_val *v, const char *key)
{
    yyjson_val *n = yyjson_obj_get(v, key);
    assert_true(yyjson_is_uint(n));
    return yyjson_get_uint(n);
}

static void text_is_canonical_json(void **state)
{
    (void)state;
    struct buf text = {0};
    size_t len;
    write_index(SPLIT, &text);
    yyjson_doc *doc = yyjson_read((const char *)text.data, text.len, 0);
    assert_non_null(doc);
    keys_are_sorted(yyjson_doc_get_root(doc));
    char *again = yyjson_write(doc, 0, &len);
    assert_non_null(again);
    assert_int_equal(len, text.len);
    assert_memory_equal(again, text.data, len);
    free(again);
    yyjson_doc_free(doc);
    buf_free(&text);
}

static void text_says_what_is_in_the_files(void **state)
{
    (void)state;
    struct buf text = {0};
    char path[PATH_MAX], hex[DIGEST_HEX_SIZE];
    uint8_t id[DIGEST_BYTES];
    uint64_t total = 0, sum;
    size_t i, max;
    yyjson_val *v;
    write_index(SPLIT, &text);
    yyjson_doc *doc = yyjson_read((const char *)text.data, text.len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);
    id_of_path(test_data(WHOLE, path), id);
    assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "model_id")), digest_hex(id, hex));
    assert_string_equal(yyjson_get_str(yyjson_obj_get(root, "arch")), "llama");
    assert_int_equal(number(root, "kvasir_index"), 1);
    assert_int_equal(yyjson_arr_size(yyjson_obj_get(root, "files")), 3);
    v = yyjson_arr_get(yyjson_obj_get(root, "files"), 2);
    assert_string_equal(yyjson_get_str(yyjson_obj_get(v, "name")), "llama-spm-q4_0-00003-of-00003.gguf");
    assert_int_equal(yyjson_arr_size(yyjson_obj_get(root, "block_bytes")), number(root, "n_block"));
    assert_int_equal(yyjson_arr_size(yyjson_obj_get(root, "n_head_kv")), number(root, "n_block"));
    yyjson_arr_foreach(yyjson_obj_get(root, "tensors"), i, max, v)
    {
        total += number(v, "size");
        assert_true(number(v, "file") < 3);
        assert_int_equal(strlen(yyjson_get_str(yyjson_obj_get(v, "blake2b"))), 64);
    }
    sum = number(root, "embd_bytes") + number(root, "head_bytes") + number(root, "global_bytes");
    yyjson_arr_foreach(yyjson_obj_get(root, "block_bytes"), i, max, v)
    {
        sum += yyjson_get_uint(v);
    }
    assert_false(yyjson_get_bool(yyjson_obj_get(root, "tied")));
    assert_int_equal(sum, total);
    yyjson_doc_free(doc);
    buf_free(&text);
}

/* The same bytes wherever it is made: on another machine, by another compiler, in another locale. */
static void text_of_a_model_is_fixed(void **state)
{
    (void)state;
    struct buf text = {0};
    uint8_t digest[DIGEST_BYTES];
    char hex[DIGEST_HEX_SIZE];
    write_index(WHOLE, &text);
    digest_of(text.data, text.len, digest);
    assert_string_equal(digest_hex(digest, hex), "2bf05f5050d2d0f455275e5685c31d092ba6d434471f540cc7291acb2b815da3");
    buf_free(&text);
}

static void a_file_name_that_no_reader_takes_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct buf b = {0}, out = {0};
    struct hparams h = {.arch = "llama"};
    struct model_sizes s = {0};
    struct gguf *g;
    struct index x;
    struct err e;
    tiny_bytes(&base_model, &b);
    assert_int_equal(io_write_file(test_scratch("ti\tny.gguf", path), b.data, b.len, 0644, &e), OK);
    assert_int_equal(gguf_open(path, &g, &e), OK);
    unlink(path);
    assert_int_equal(index_compute(g, NULL, NULL, &x, &e), OK);
    assert_int_equal(index_write(g, &h, &s, &x, &out, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "ti?ny.gguf\""));
    assert_int_equal(out.len, 0);
    index_fini(&x);
    gguf_close(g);
    buf_free(&b);
    buf_free(&out);
}

static void names_that_are_not_utf8_are_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct tiny t = base_model;
    struct buf b = {0}, out = {0};
    struct hparams h = {.arch = "llama"};
    struct model_sizes s = {0};
    struct gguf *g;
    struct index x;
    struct err e;
    t.tensors[0].name = "b\xff\n";
    tiny_bytes(&t, &b);
    assert_int_equal(io_write_file(test_scratch("tiny.gguf", path), b.data, b.len, 0644, &e), OK);
    if (gguf_open(path, &g, &e) == OK) {
        assert_int_equal(index_compute(g, NULL, NULL, &x, &e), OK);
        buf_puts(&out, "kept");
        assert_int_equal(index_write(g, &h, &s, &x, &out, &e), ERR_FORMAT);
        assert_non_null(strstr(e.msg, "the tensor name \"b??\" is not UTF-8"));
        assert_string_equal(buf_str(&out), "kept");
        index_fini(&x);
        gguf_close(g);
    }
    unlink(path);
    buf_free(&b);
    buf_free(&out);
}

#define home_test(f) cmocka_unit_test_setup_teardown(f, home_setup, home_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(id_is_the_documented_encoding),
        cmocka_unit_test(order_does_not_change_the_id),
        cmocka_unit_test(split_and_kvasir_keys_do_not_change_the_id),
        cmocka_unit_test(every_part_changes_the_id),
        cmocka_unit_test(split_model_has_the_id_of_the_whole),
        cmocka_unit_test(id_of_a_model_is_fixed),
        cmocka_unit_test(digests_are_of_the_tensors_bytes),
        cmocka_unit_test(one_byte_changes_the_id),
        cmocka_unit_test(file_that_shrinks_is_an_error),
        cmocka_unit_test(model_in_memory_has_no_index),
        cmocka_unit_test(progress_ends_at_the_total),
        home_test(second_time_is_a_hit),
        home_test(hit_has_the_same_digests),
        home_test(broken_cache_is_made_again),
        home_test(cut_cache_is_made_again),
        home_test(changed_file_is_a_miss),
        home_test(unusable_home_is_no_error),
        home_test(cache_needs_no_home),
        cmocka_unit_test(text_is_canonical_json),
        cmocka_unit_test(text_says_what_is_in_the_files),
        cmocka_unit_test(text_of_a_model_is_fixed),
        cmocka_unit_test(a_file_name_that_no_reader_takes_is_refused),
        cmocka_unit_test(names_that_are_not_utf8_are_refused),
    };
    log_set_level(LOG_ERROR); /* broken caches are warned of */
    return cmocka_run_group_tests_name("model_index", tests, NULL, NULL);
}
