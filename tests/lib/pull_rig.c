/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/pull_rig.h"
#include "lib/test_util.h"
#include "model/hparams.h"
#include "model/index.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void must(enum err_code rc, const struct err *e)
{
    if (rc != OK)
        fail_msg("%s", e->msg);
}

static void make_index(struct pull_rig *r)
{
    struct gguf *g = NULL;
    struct hparams h;
    struct model_sizes s;
    struct index x;
    struct err e;
    must(gguf_open(r->path, &g, &e), &e);
    must(hparams_read(g, &h, &e), &e);
    must(model_sizes_read(g, &h, &s, &e), &e);
    must(index_compute(g, NULL, NULL, &x, &e), &e);
    must(index_write(g, &h, &s, &x, &r->index, &e), &e);
    r->head_bytes = gguf_tensor_at(g, 0)->offset;
    for (size_t i = 1; i < gguf_n_tensors(g); i++)
        if (gguf_tensor_at(g, i)->offset < r->head_bytes)
            r->head_bytes = gguf_tensor_at(g, i)->offset;
    index_fini(&x);
    model_sizes_fini(&s);
    hparams_fini(&h);
    gguf_close(g);
}

void rig_start(struct pull_rig *r, const char *name, const struct maker_params *p)
{
    struct err e;
    char pulled[64];
    *r = (struct pull_rig){0};
    test_scratch(name, r->path);
    snprintf(pulled, sizeof pulled, "pulled-%s", name);
    test_scratch(pulled, r->out);
    snprintf(r->part, sizeof r->part, "%s.part", r->out);
    snprintf(r->journal, sizeof r->journal, "%s.journal", r->part);
    must(maker_write(r->path, p, &e), &e);
    must(io_read_file(r->path, 1u << 30, &r->model, &e), &e);
    make_index(r);
    for (int i = 0; i < RIG_SERVERS; i++) {
        r->s[i] = bad_start();
        snprintf(r->url[i], sizeof r->url[i], "http://127.0.0.1:%u/m.gguf", bad_port(r->s[i]));
        r->urls[i] = r->url[i];
    }
    rig_reset(r);
}

static void remove_pulled(const struct pull_rig *r)
{
    unlink(r->out);
    unlink(r->part);
    unlink(r->journal);
}

void rig_reset(struct pull_rig *r)
{
    for (int i = 0; i < RIG_SERVERS; i++) {
        bad_clear(r->s[i]);
        bad_token(r->s[i], NULL);
        bad_file(r->s[i], "/m.gguf", r->model.data, r->model.len, RIG_ETAG);
        bad_file(r->s[i], "/m.gguf.kvi", r->index.data, r->index.len, "\"kvi\"");
        bad_count_again(r->s[i]);
    }
    remove_pulled(r);
}

int rig_setup(void **state)
{
    rig_reset(*state);
    return 0;
}

int rig_teardown(void **state)
{
    struct pull_rig *r = *state;
    remove_pulled(r);
    for (int i = 0; i < RIG_SERVERS; i++)
        bad_stop(r->s[i]);
    unlink(r->path);
    buf_free(&r->model);
    buf_free(&r->index);
    return 0;
}

void rig_no_index(struct pull_rig *r)
{
    const struct bad_rule none = {.how = BAD_STATUS, .path = "/m.gguf.kvi", .n = 404};
    for (int i = 0; i < RIG_SERVERS; i++)
        bad_rule(r->s[i], &none);
}

const char *rig_url(const struct pull_rig *r, unsigned i, const char *path, char out[128])
{
    snprintf(out, 128, "http://127.0.0.1:%u%s", bad_port(r->s[i]), path);
    return out;
}

void rig_read(const char *path, struct buf *out)
{
    struct err e;
    buf_clear(out);
    must(io_read_file(path, 1u << 30, out, &e), &e);
    unlink(path);
}

bool rig_exists(const char *path)
{
    return access(path, F_OK) == 0;
}
