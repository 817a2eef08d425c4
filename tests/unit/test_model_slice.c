/* SPDX-License-Identifier: MIT
 *
 * Stage files of every window of every model there is here: what is in them, that all cuts add up, that it does not
 * matter where they are made, and that they prove what they are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "base/text.h"
#include "lib/maker.h"
#include "lib/test_util.h"
#include "model/hparams.h"
#include "model/slice.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WHOLE "llama-spm-q4_0.gguf"
#define SPLIT "llama-spm-q4_0-00001-of-00003.gguf"

/* --- models --- */

struct subject {
    struct gguf *g;
    struct hparams h;
    struct index x;
};

static void subject_open(const char *path, struct subject *s)
{
    struct err e;
    if (gguf_open(path, &s->g, &e) != OK || hparams_read(s->g, &s->h, &e) != OK ||
        index_compute(s->g, NULL, NULL, &s->x, &e) != OK)
        fail_msg("%s", e.msg);
}

static void subject_close(struct subject *s)
{
    index_fini(&s->x);
    hparams_fini(&s->h);
    gguf_close(s->g);
}

static void subject_data(const char *name, struct subject *s)
{
    char path[PATH_MAX];
    subject_open(test_data(name, path), s);
}

static void subject_made(const struct maker_params *p, struct subject *s)
{
    char path[PATH_MAX];
    struct err e;
    if (maker_write(test_scratch("made.gguf", path), p, &e) != OK)
        fail_msg("%s", e.msg);
    subject_open(path, s);
    unlink(path); /* it stays open */
}

/* The stage file's bytes, read in pieces of an odd size. */
static void bytes_of(const struct gguf *g, const struct slice *s, struct buf *out)
{
    struct err e;
    buf_clear(out);
    uint8_t *p = buf_reserve(out, (size_t)s->size);
    assert_non_null(p);
    for (uint64_t at = 0; at < s->size;) {
        size_t n = s->size - at < 65537 ? (size_t)(s->size - at) : 65537;
        if (slice_read(g, s, at, p + at, n, &e) != OK)
            fail_msg("%s", e.msg);
        at += n;
    }
    out->len = (size_t)s->size;
}

static void stage_bytes(const struct subject *s, uint32_t first, uint32_t end, const struct index *x, struct buf *out)
{
    struct slice plan;
    struct err e;
    if (slice_plan(s->g, &s->h, first, end, x, &plan, &e) != OK)
        fail_msg("%s", e.msg);
    bytes_of(s->g, &plan, out);
    slice_fini(&plan);
}

static void tensor_bytes(const struct gguf *g, const struct gguf_tensor *t, struct buf *out)
{
    struct err e;
    buf_clear(out);
    assert_non_null(buf_reserve(out, (size_t)t->size));
    assert_int_equal(io_pread_full(gguf_fd(g, t->file), out->data, (size_t)t->size, t->offset, &e), OK);
    out->len = (size_t)t->size;
}

/* --- what must be in a window: said once more, without the code under test --- */

static bool embd_again(const struct subject *s)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.nextn.embed_tokens.weight", s->h.n_block);
    return !gguf_tensor_find(s->g, "output.weight") || (s->h.n_nextn && !gguf_tensor_find(s->g, name));
}

static bool belongs(const struct subject *s, const struct gguf_tensor *t, uint32_t first, uint32_t end)
{
    bool last = end == s->h.n_block;
    if (strncmp(t->name, "blk.", 4) == 0) {
        unsigned long n = strtoul(t->name + 4, NULL, 10);
        return (n >= first && n < end) || (last && n >= s->h.n_block);
    }
    if (strcmp(t->name, "token_embd.weight") == 0)
        return first == 0 || (last && embd_again(s));
    if (strcmp(t->name, "output.weight") == 0 || strcmp(t->name, "output_norm.weight") == 0)
        return last;
    assert_int_equal(strncmp(t->name, "rope_", 5), 0); /* no other tensors in these models */
    return true;
}

static void window_is_right(const struct subject *s, uint32_t first, uint32_t end)
{
    struct slice plan;
    struct gguf *m;
    struct slice_label label;
    struct hparams h;
    struct err e;
    struct buf file = {0}, want = {0};
    size_t n = 0;
    uint64_t sum = 0;
    if (slice_plan(s->g, &s->h, first, end, &s->x, &plan, &e) != OK)
        fail_msg("%s", e.msg);
    bytes_of(s->g, &plan, &file);
    if (gguf_open_mem(file.data, file.len, &m, &e) != OK)
        fail_msg("[%u,%u): %s", first, end, e.msg);
    for (size_t i = 0; i < gguf_n_tensors(s->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(s->g, i);
        if (!belongs(s, t, first, end))
            continue;
        const struct gguf_tensor *u = gguf_tensor_at(m, n++); /* in the same order */
        assert_non_null(u);
        assert_string_equal(u->name, t->name);
        assert_true(u->type == t->type && u->size == t->size && u->offset % 32 == 0);
        assert_memory_equal(u->ne, t->ne, sizeof t->ne);
        tensor_bytes(s->g, t, &want);
        assert_memory_equal(file.data + u->offset, want.data, want.len);
        sum += t->size;
    }
    assert_int_equal(gguf_n_tensors(m), n);
    assert_int_equal(plan.n, n);
    assert_int_equal(plan.tensor_bytes, sum);
    assert_true(plan.size <= plan.head.len + sum + 32 * n);
    assert_true(gguf_n_kv(m) >= gguf_n_kv(s->g)); /* a split one loses three and gets four */
    assert_int_equal(hparams_read(m, &h, &e), OK);
    assert_true(h.n_block == s->h.n_block && h.n_vocab == s->h.n_vocab);
    if (slice_label_read(m, &label, &e) != OK)
        fail_msg("%s", e.msg);
    assert_true(label.stage_file && label.has_id && label.first == first && label.end == end);
    assert_memory_equal(label.model_id, s->x.model_id, DIGEST_BYTES);
    hparams_fini(&h);
    gguf_close(m);
    slice_fini(&plan);
    buf_free(&want);
    buf_free(&file);
}

/* Every way to cut the model (of many blocks: every fifth): nothing is lost, and what is there twice can be named. */
static void cuts_add_up(const struct subject *s)
{
    uint64_t all = 0, global = 0, embd = gguf_tensor_find(s->g, "token_embd.weight")->size;
    struct err e;
    assert_true(s->h.n_block > 0 && s->h.n_block <= 12);
    for (size_t i = 0; i < gguf_n_tensors(s->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(s->g, i);
        all += t->size;
        global += strncmp(t->name, "rope_", 5) == 0 ? t->size : 0;
    }
    for (uint32_t mask = 0; 2 * mask < 1u << s->h.n_block; mask += s->h.n_block > 6 ? 5 : 1) {
        uint64_t sum = 0;
        uint32_t first = 0, n = 0;
        for (uint32_t end = 1; end <= s->h.n_block; end++) {
            struct slice plan;
            if (end < s->h.n_block && !(mask & 1u << (end - 1)))
                continue;
            assert_int_equal(slice_plan(s->g, &s->h, first, end, NULL, &plan, &e), OK);
            sum += plan.tensor_bytes;
            slice_fini(&plan);
            first = end;
            n++;
        }
        assert_int_equal(sum, all + (n - 1) * global + (n > 1 && embd_again(s) ? embd : 0));
    }
}

/* What a plan reckons with is what slices hold, and in memory that without what is there for NextN blocks only. */
static void sizes_are_right(const struct subject *s)
{
    struct model_sizes sizes;
    struct err e;
    assert_int_equal(model_sizes_read(s->g, &s->h, &sizes, &e), OK);
    for (uint32_t first = 0; first < s->h.n_block; first++) {
        for (uint32_t end = first + 1; end <= s->h.n_block; end++) {
            struct slice plan;
            uint64_t loaded = 0;
            if (slice_plan(s->g, &s->h, first, end, NULL, &plan, &e) != OK)
                fail_msg("%s", e.msg);
            for (size_t i = 0; i < plan.n; i++) {
                const struct gguf_tensor *t = plan.pieces[i].src;
                bool table = strcmp(t->name, "token_embd.weight") == 0;
                bool nextn = t->block >= (int32_t)s->h.n_block || (table && first > 0 && !sizes.tied);
                loaded += nextn ? 0 : t->size;
            }
            assert_int_equal(model_sizes_stage_file(&sizes, first, end), plan.tensor_bytes);
            assert_int_equal(model_sizes_window(&sizes, first, end), loaded);
            slice_fini(&plan);
        }
    }
    model_sizes_fini(&sizes);
}

static void model_is_right(const struct subject *s)
{
    for (uint32_t first = 0; first < s->h.n_block; first++)
        for (uint32_t end = first + 1; end <= s->h.n_block; end++)
            window_is_right(s, first, end);
    cuts_add_up(s);
    sizes_are_right(s);
}

/* --- tests --- */

static size_t each_of(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    for (struct dirent *f; (f = readdir(d));) {
        char path[PATH_MAX];
        struct subject s;
        size_t len = strlen(f->d_name);
        if (len < 6 || strcmp(f->d_name + len - 5, ".gguf") != 0 ||
            (strstr(f->d_name, "-of-") && !strstr(f->d_name, "-00002-of-")))
            continue;
        assert_true(snprintf(path, sizeof path, "%s/%s", dir, f->d_name) < (int)sizeof path);
        subject_open(path, &s);
        model_is_right(&s);
        subject_close(&s);
        n++;
    }
    closedir(d);
    return n;
}

static void every_window_of_every_fixture(void **state)
{
    (void)state;
    char dir[PATH_MAX];
    assert_true(each_of(test_data("", dir)) > 5);
}

static void every_window_of_the_shared_fixtures(void **state)
{
    (void)state;
    char dir[PATH_MAX];
    if (!test_have_shared("fixtures/README.md"))
        skip();
    assert_true(each_of(test_shared("fixtures", dir)) > 5);
}

/* With NextN blocks, rope factors, tied heads: all that is special about a family. */
static void every_window_of_every_family(void **state)
{
    (void)state;
    for (int family = 0; family < MAKER_FAMILY_COUNT; family++) {
        struct maker_params p = maker_family_small((enum maker_family)family);
        struct subject s;
        subject_made(&p, &s);
        model_is_right(&s);
        subject_close(&s);
        p.with_rope_freqs = family == MAKER_LLAMA || family == MAKER_PHI3;
        p.tied = !p.tied;
        subject_made(&p, &s);
        model_is_right(&s);
        subject_close(&s);
    }
}

static void a_stage_file_of_a_stage_file_is_the_same(void **state)
{
    (void)state;
    struct maker_params p = maker_family_small(MAKER_QWEN35MOE);
    struct subject s, part = {0};
    struct buf want = {0}, have = {0}, larger = {0};
    struct err e;
    char path[PATH_MAX];
    subject_made(&p, &s);
    for (uint32_t first = 0; first < s.h.n_block; first += 2) {
        stage_bytes(&s, first, s.h.n_block, &s.x, &larger);
        assert_int_equal(io_write_file(test_scratch("larger.gguf", path), larger.data, larger.len, 0644, &e), OK);
        assert_int_equal(gguf_open(path, &part.g, &e), OK);
        assert_int_equal(hparams_read(part.g, &part.h, &e), OK);
        assert_int_equal(slice_index(part.g, &part.x, &e), OK);
        for (uint32_t end = first + 1; end <= s.h.n_block; end++) {
            stage_bytes(&s, first, end, &s.x, &want);
            for (int known = 0; known < 2; known++) {
                stage_bytes(&part, first, end, known ? &part.x : NULL, &have);
                assert_int_equal(have.len, want.len);
                assert_memory_equal(have.data, want.data, want.len);
            }
        }
        subject_close(&part);
        unlink(path);
    }
    buf_free(&larger);
    buf_free(&have);
    buf_free(&want);
    subject_close(&s);
}

static void a_split_model_gives_the_same(void **state)
{
    (void)state;
    struct subject whole, split;
    struct buf a = {0}, b = {0};
    subject_data(WHOLE, &whole);
    subject_data(SPLIT, &split);
    for (uint32_t first = 0; first < whole.h.n_block; first++) {
        stage_bytes(&whole, first, first + 1, &whole.x, &a);
        stage_bytes(&split, first, first + 1, &split.x, &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
    }
    buf_free(&a);
    buf_free(&b);
    subject_close(&whole);
    subject_close(&split);
}

static void headers_alone_are_enough_for_the_plan(void **state)
{
    (void)state;
    struct subject s;
    struct buf file = {0};
    struct gguf *heads;
    struct slice a, b;
    struct err e;
    subject_data(WHOLE, &s);
    assert_int_equal(io_read_file(gguf_path(s.g), 16u << 20, &file, &e), OK);
    struct gguf_part part = {.name = "far.gguf",
                             .head = file.data,
                             .head_len = (size_t)gguf_tensor_at(s.g, 0)->offset,
                             .file_size = file.len};
    assert_int_equal(gguf_open_heads(&part, 1, &heads, &e), OK);
    assert_int_equal(slice_plan(s.g, &s.h, 1, 3, &s.x, &a, &e), OK);
    assert_int_equal(slice_plan(heads, &s.h, 1, 3, &s.x, &b, &e), OK);
    assert_true(a.size == b.size && a.n == b.n && a.head.len == b.head.len);
    assert_memory_equal(a.head.data, b.head.data, a.head.len);
    for (size_t i = 0; i < a.n; i++) {
        assert_int_equal(a.pieces[i].at, b.pieces[i].at);
        assert_int_equal(a.pieces[i].src->offset, b.pieces[i].src->offset);
        assert_ptr_equal(a.pieces[i].digest, b.pieces[i].digest);
        assert_string_equal(a.pieces[i].src->name, b.pieces[i].src->name);
    }
    assert_int_equal(slice_write(heads, &b, "/nonexistent/x.gguf", NULL, NULL, &e), ERR_ARG);
    slice_fini(&a);
    slice_fini(&b);
    gguf_close(heads);
    buf_free(&file);
    subject_close(&s);
}

static void without_digests_there_is_no_id(void **state)
{
    (void)state;
    struct subject s;
    struct buf file = {0};
    struct gguf *m;
    struct slice_label label;
    struct index x;
    struct err e;
    uint8_t id[DIGEST_BYTES];
    subject_data(WHOLE, &s);
    assert_int_equal(slice_label_read(s.g, &label, &e), OK);
    assert_false(label.stage_file);
    stage_bytes(&s, 1, 2, NULL, &file);
    assert_int_equal(gguf_open_mem(file.data, file.len, &m, &e), OK);
    assert_int_equal(slice_label_read(m, &label, &e), OK);
    assert_true(label.stage_file && !label.has_id && label.first == 1 && label.end == 2);
    assert_int_equal(slice_index(m, &x, &e), ERR_NOT_FOUND);
    assert_int_equal(slice_model_id(m, NULL, NULL, id, &e), ERR_NOT_FOUND);
    gguf_close(m);
    buf_free(&file);
    subject_close(&s);
}

static bool stop_later(void *ctx, uint64_t done, uint64_t total)
{
    (void)total;
    return done < *(uint64_t *)ctx;
}

static size_t count_entries(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static void the_file_written_is_what_was_planned(void **state)
{
    (void)state;
    struct subject s;
    struct slice plan;
    struct buf want = {0}, have = {0};
    struct err e;
    char dir[PATH_MAX - 32], path[PATH_MAX], tmp[PATH_MAX];
    uint8_t id[DIGEST_BYTES];
    snprintf(dir, sizeof dir, "%s", test_scratch("slices", tmp));
    assert_int_equal(io_mkdirs(dir, 0755, &e), OK);
    snprintf(path, sizeof path, "%s/stage.gguf", dir);
    subject_data(WHOLE, &s);
    assert_int_equal(slice_plan(s.g, &s.h, 0, 2, &s.x, &plan, &e), OK);
    bytes_of(s.g, &plan, &want);

    uint64_t stop = plan.size / 2;
    assert_int_equal(slice_write(s.g, &plan, path, stop_later, &stop, &e), ERR_CANCELLED);
    assert_int_equal(count_entries(dir), 2);
    assert_int_equal(slice_write(s.g, &plan, path, NULL, NULL, &e), OK);
    assert_int_equal(io_read_file(path, 16u << 20, &have, &e), OK);
    assert_int_equal(have.len, want.len);
    assert_memory_equal(have.data, want.data, want.len);
    struct gguf *m;
    assert_int_equal(gguf_open(path, &m, &e), OK);
    assert_int_equal(slice_model_id(m, NULL, NULL, id, &e), OK);
    assert_memory_equal(id, s.x.model_id, DIGEST_BYTES);
    gguf_close(m);

    s.x.tensor_digest[3][7] ^= 1; /* as if the file's bytes had changed */
    assert_int_equal(slice_write(s.g, &plan, path, NULL, NULL, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, gguf_tensor_at(s.g, 3)->name));
    assert_int_equal(count_entries(dir), 3); /* the good one of before */
    slice_fini(&plan);
    buf_free(&want);
    buf_free(&have);
    subject_close(&s);
    test_remove_tree(dir);
}

static void of_a_stage_file_there_is_no_index(void **state)
{
    (void)state;
    struct subject s, part;
    struct model_sizes sizes;
    struct buf file = {0}, text = {0};
    struct err e;
    char path[PATH_MAX];
    static const uint8_t none[DIGEST_BYTES];
    subject_data(WHOLE, &s);
    stage_bytes(&s, 1, 2, &s.x, &file);
    assert_int_equal(io_write_file(test_scratch("part.gguf", path), file.data, file.len, 0644, &e), OK);
    subject_open(path, &part);
    unlink(path);
    assert_memory_equal(part.x.model_id, none, DIGEST_BYTES); /* no one will take it for a model's */
    assert_int_equal(model_sizes_read(part.g, &part.h, &sizes, &e), OK);
    assert_int_equal(index_write(part.g, &part.h, &sizes, &part.x, &text, &e), ERR_ARG);
    assert_int_equal(text.len, 0);
    model_sizes_fini(&sizes);
    subject_close(&part);
    buf_free(&text);
    buf_free(&file);
    subject_close(&s);
}

static void names_that_would_do_harm_are_refused(void **state)
{
    (void)state;
    struct subject s;
    struct slice plan;
    struct buf file = {0};
    struct err e;
    char from[PATH_MAX], path[PATH_MAX];
    assert_int_equal(io_read_file(test_data(WHOLE, from), 16u << 20, &file, &e), OK);
    assert_int_equal(io_write_file(test_scratch("source.gguf", path), file.data, file.len, 0644, &e), OK);
    subject_open(path, &s);
    assert_int_equal(slice_plan(s.g, &s.h, 0, 1, &s.x, &plan, &e), OK);
    assert_int_equal(slice_write(s.g, &plan, path, NULL, NULL, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "the model itself"));
    assert_int_equal(slice_write(s.g, &plan, "stage-00001-of-00002.gguf", NULL, NULL, &e), ERR_ARG);
    assert_int_equal(slice_write(s.g, &plan, "/nonexistent/x.gguf", NULL, NULL, &e), ERR_IO);
    assert_int_equal(slice_write(s.g, &plan, ".", NULL, NULL, &e), ERR_ARG);
    slice_fini(&plan);
    subject_close(&s);
    unlink(path);
    buf_free(&file);
}

static void windows_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct subject s, part = {0};
    struct slice plan;
    struct buf file = {0};
    struct err e;
    uint8_t byte;
    subject_data(WHOLE, &s);
    assert_int_equal(slice_plan(s.g, &s.h, 0, s.h.n_block + 1, NULL, &plan, &e), ERR_RANGE);
    assert_int_equal(slice_plan(s.g, &s.h, 1, 1, NULL, &plan, &e), ERR_RANGE);
    assert_int_equal(slice_plan(s.g, &s.h, 2, 1, NULL, &plan, &e), ERR_RANGE);
    for (int known = 0; known < 2; known++) {
        stage_bytes(&s, 1, 3, known ? &s.x : NULL, &file);
        assert_int_equal(gguf_open_mem(file.data, file.len, &part.g, &e), OK);
        assert_int_equal(slice_plan(part.g, &s.h, 0, 2, NULL, &plan, &e), ERR_NOT_FOUND);
        assert_int_equal(slice_plan(part.g, &s.h, 2, 4, NULL, &plan, &e), ERR_NOT_FOUND);
        assert_int_equal(slice_plan(part.g, &s.h, 1, 2, NULL, &plan, &e), OK);
        assert_int_equal(slice_read(part.g, &plan, plan.size, &byte, 1, &e), ERR_ARG);
        assert_int_equal(slice_read(part.g, &plan, plan.size, &byte, 0, &e), OK);
        assert_int_equal(slice_read(part.g, &plan, UINT64_MAX, &byte, 2, &e), ERR_ARG);
        slice_fini(&plan);
        gguf_close(part.g);
    }
    buf_free(&file);
    subject_close(&s);
}

/* A middle part as other tools might make it: blocks are missing, and no key says so. */
static void a_model_that_lacks_blocks_is_not_cut(void **state)
{
    (void)state;
    struct maker_params p = maker_small();
    struct subject s;
    struct slice plan;
    struct err e;
    struct buf file = {0};
    char path[PATH_MAX];
    p.only_first = 2;
    p.only_end = 4;
    assert_int_equal(maker_write(test_scratch("part.gguf", path), &p, &e), OK);
    assert_int_equal(io_read_file(path, 16u << 20, &file, &e), OK);
    for (uint8_t *key; (key = memmem(file.data, file.len, "kvasir.window", 13));)
        memset(key, 'o', 13); /* keys of some other tool */
    assert_int_equal(io_write_file(path, file.data, file.len, 0644, &e), OK);
    buf_free(&file);
    subject_open(path, &s);
    unlink(path);
    assert_int_equal(slice_plan(s.g, &s.h, 2, 4, &s.x, &plan, &e), OK);
    slice_fini(&plan);
    assert_int_equal(slice_plan(s.g, &s.h, 2, 5, &s.x, &plan, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "block 4"));
    assert_int_equal(slice_plan(s.g, &s.h, 0, 4, &s.x, &plan, &e), ERR_NOT_FOUND);
    subject_close(&s);
}

/* One bit anywhere in the header: it does not open, or is no longer of the model, or says the same as before. */
static void a_changed_header_proves_nothing_else(void **state)
{
    (void)state;
    struct subject s;
    struct slice plan;
    struct buf file = {0};
    struct err e;
    size_t caught = 0, n = 0;
    subject_data("llama-tied-f32.gguf", &s);
    assert_int_equal(slice_plan(s.g, &s.h, 1, 2, &s.x, &plan, &e), OK);
    bytes_of(s.g, &plan, &file);
    for (size_t at = 0; at < plan.head.len; at += at < plan.head.len - 6000 ? 29 : 3) {
        struct gguf *m;
        struct slice_label label;
        uint8_t bit = (uint8_t)(1u << (at % 8));
        file.data[at] ^= bit;
        if (gguf_open_mem(file.data, file.len, &m, &e) == OK) {
            enum err_code rc = slice_label_read(m, &label, &e);
            n++;
            caught += rc == ERR_FORMAT;
            assert_true(rc == OK || rc == ERR_FORMAT);
            if (rc == OK && label.has_id)
                assert_memory_equal(label.model_id, s.x.model_id, DIGEST_BYTES);
            gguf_close(m);
        }
        file.data[at] ^= bit;
    }
    assert_true(caught > 50 && caught > n / 2);
    slice_fini(&plan);
    buf_free(&file);
    subject_close(&s);
}

/* Where is `text` in the header, plus `more`? */
static size_t place(const struct buf *b, const char *text, size_t more)
{
    const uint8_t *p = memmem(b->data, b->len, text, strlen(text));
    assert_non_null(p);
    return (size_t)(p - b->data) + strlen(text) + more;
}

static void label_refused(struct buf *file, size_t at, const char *says)
{
    struct gguf *m;
    struct slice_label label;
    struct index x;
    struct err e;
    file->data[at] ^= 1;
    if (gguf_open_mem(file->data, file->len, &m, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(slice_label_read(m, &label, &e), ERR_FORMAT);
    if (!strstr(e.msg, says))
        fail_msg("wanted %s: %s", says, e.msg);
    assert_true(text_printable(e.msg, strlen(e.msg)));
    if (at > place(file, "kvasir.model.id", 0))
        assert_int_equal(slice_index(m, &x, &e), ERR_FORMAT);
    gguf_close(m);
    file->data[at] ^= 1;
}

static void what_is_changed_is_named(void **state)
{
    (void)state;
    struct subject s;
    struct buf file = {0};
    subject_data(WHOLE, &s);
    stage_bytes(&s, 1, 3, &s.x, &file);
    label_refused(&file, place(&file, "kvasir.window.first", 4 + 3), "cannot be");
    label_refused(&file, place(&file, "kvasir.model.id", 4 + 8), "does not follow");
    label_refused(&file, place(&file, "kvasir.model.tensors", 4 + 4 + 8), "list of tensors");
    label_refused(&file, place(&file, "kvasir.model.tensors", 4 + 4 + 8 + 8 + 8 + 6), "list of tensors");
    label_refused(&file, place(&file, "general.name", 4 + 8), "does not follow");
    size_t last = place(&file, "kvasir.model.tensors", 0);
    last = (size_t)((uint8_t *)memmem(file.data + last, file.len - last, "output_norm.weight", 18) - file.data);
    label_refused(&file, last + 18 + 5 * 8, "does not follow"); /* a digest in the list */
    buf_free(&file);
    subject_close(&s);
}

static void a_changed_tensor_is_found(void **state)
{
    (void)state;
    struct subject s;
    struct buf file = {0};
    struct gguf *m;
    struct err e;
    char path[PATH_MAX], name[64];
    uint8_t id[DIGEST_BYTES];
    subject_data(WHOLE, &s);
    stage_bytes(&s, 1, 3, &s.x, &file);
    assert_int_equal(gguf_open_mem(file.data, file.len, &m, &e), OK);
    const struct gguf_tensor *t = gguf_tensor_at(m, gguf_n_tensors(m) / 2);
    snprintf(name, sizeof name, "%s", t->name);
    file.data[t->offset + t->size / 2] ^= 0x10;
    gguf_close(m);
    assert_int_equal(io_write_file(test_scratch("changed.gguf", path), file.data, file.len, 0644, &e), OK);
    assert_int_equal(gguf_open(path, &m, &e), OK);
    assert_int_equal(slice_model_id(m, NULL, NULL, id, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, name));
    gguf_close(m);
    assert_int_equal(truncate(path, (off_t)(file.len - 4096)), 0);
    assert_int_equal(gguf_open(path, &m, &e), ERR_FORMAT);
    unlink(path);
    buf_free(&file);
    subject_close(&s);
}

/* A model whose tensors begin at multiples of 256: the stage file keeps that. */
static void the_alignment_of_the_model_is_kept(void **state)
{
    (void)state;
    struct subject s, wide;
    struct buf b = {0}, t = {0};
    struct slice plan;
    struct err e;
    char path[PATH_MAX];
    uint64_t at = 0;
    subject_data("llama-tied-f32.gguf", &s);
    buf_puts(&b, "GGUF");
    buf_put_u32(&b, 3);
    buf_put_u64(&b, gguf_n_tensors(s.g));
    buf_put_u64(&b, gguf_n_kv(s.g) + 1);
    for (size_t i = 0; i < gguf_n_kv(s.g); i++) {
        buf_put_u64(&b, strlen(gguf_key(s.g, i)));
        buf_puts(&b, gguf_key(s.g, i));
        assert_int_equal(gguf_value_bytes(s.g, i, &b, &e), OK);
    }
    buf_put_u64(&b, strlen("general.alignment"));
    buf_puts(&b, "general.alignment");
    buf_put_u32(&b, 4);
    buf_put_u32(&b, 256);
    for (size_t i = 0; i < gguf_n_tensors(s.g); i++) {
        const struct gguf_tensor *x = gguf_tensor_at(s.g, i);
        buf_put_u64(&b, strlen(x->name));
        buf_puts(&b, x->name);
        buf_put_u32(&b, 2);
        buf_put_u64(&b, (uint64_t)x->ne[0]);
        buf_put_u64(&b, (uint64_t)x->ne[1]);
        buf_put_u32(&b, (uint32_t)x->type);
        buf_put_u64(&b, at);
        at += (x->size + 255) / 256 * 256;
    }
    for (size_t i = 0; i <= gguf_n_tensors(s.g); i++) {
        while (b.len % 256)
            buf_put_u8(&b, 0);
        if (i == gguf_n_tensors(s.g))
            break;
        tensor_bytes(s.g, gguf_tensor_at(s.g, i), &t);
        buf_put(&b, t.data, t.len);
    }
    assert_int_equal(io_write_file(test_scratch("wide.gguf", path), b.data, b.len, 0644, &e), OK);
    subject_open(path, &wide);
    unlink(path);
    assert_int_equal(slice_plan(wide.g, &wide.h, 0, 2, &wide.x, &plan, &e), OK);
    for (size_t i = 0; i < plan.n; i++)
        assert_int_equal(plan.pieces[i].at % 256, 0);
    assert_int_equal(plan.size % 256, 0);
    slice_fini(&plan);
    for (uint32_t i = 0; i < wide.h.n_block; i++)
        window_is_right(&wide, i, wide.h.n_block);
    buf_free(&b);
    buf_free(&t);
    subject_close(&wide);
    subject_close(&s);
}

/* The sizes of all the model are known from any of its stage files. */
static void a_stage_file_knows_the_sizes_of_its_model(void **state)
{
    (void)state;
    struct maker_params p = maker_family_small(MAKER_QWEN35MOE);
    struct subject s;
    struct model_sizes a, b;
    struct buf file = {0};
    struct gguf *m;
    struct err e;
    subject_made(&p, &s);
    stage_bytes(&s, 1, 2, &s.x, &file);
    assert_int_equal(gguf_open_mem(file.data, file.len, &m, &e), OK);
    assert_int_equal(model_sizes_read(s.g, &s.h, &a, &e), OK);
    assert_int_equal(model_sizes_read(m, &s.h, &b, &e), OK);
    assert_true(a.embd_bytes == b.embd_bytes && a.head_bytes == b.head_bytes && a.nextn_bytes == b.nextn_bytes);
    assert_true(a.global_bytes == b.global_bytes && a.tied == b.tied && a.embd_bytes > 0 && a.nextn_bytes > 0);
    assert_true(a.table_bytes == b.table_bytes && a.nextn_table == b.nextn_table && a.nextn_table);
    assert_memory_equal(a.block_bytes, b.block_bytes, s.h.n_block * sizeof *a.block_bytes);
    model_sizes_fini(&a);
    model_sizes_fini(&b);
    gguf_close(m);
    buf_free(&file);
    subject_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_window_of_every_fixture),
        cmocka_unit_test(every_window_of_the_shared_fixtures),
        cmocka_unit_test(every_window_of_every_family),
        cmocka_unit_test(a_stage_file_of_a_stage_file_is_the_same),
        cmocka_unit_test(a_split_model_gives_the_same),
        cmocka_unit_test(headers_alone_are_enough_for_the_plan),
        cmocka_unit_test(without_digests_there_is_no_id),
        cmocka_unit_test(the_file_written_is_what_was_planned),
        cmocka_unit_test(of_a_stage_file_there_is_no_index),
        cmocka_unit_test(names_that_would_do_harm_are_refused),
        cmocka_unit_test(windows_that_cannot_be_are_refused),
        cmocka_unit_test(a_model_that_lacks_blocks_is_not_cut),
        cmocka_unit_test(a_changed_header_proves_nothing_else),
        cmocka_unit_test(what_is_changed_is_named),
        cmocka_unit_test(a_changed_tensor_is_found),
        cmocka_unit_test(the_alignment_of_the_model_is_kept),
        cmocka_unit_test(a_stage_file_knows_the_sizes_of_its_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
