/* SPDX-License-Identifier: MIT
 *
 * kvasir slice: writes the stage file of a window. Told to stop it leaves nothing behind.
 */
#include "base/parse.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "model/slice.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct slice_command {
    const char *model, *layers, *out;
    bool json;
    struct progress progress;
    struct signals_stop stop;
};

static bool on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct slice_command *c = ctx;
    progress_show(&c->progress, done, total);
    return !signals_stopped(&c->stop);
}

/* The digests of the source: a stage file has them with it, those of a model are computed or remembered. *x stays empty
 * for a stage file. */
static enum err_code digests(struct slice_command *c, const struct gguf *g, struct index *x, bool *known,
                             uint8_t id[DIGEST_BYTES], struct err *e)
{
    struct slice_label l;
    enum err_code rc = slice_label_read(g, &l, e);
    if (rc != OK)
        return rc;
    *known = !l.stage_file || l.has_id;
    memcpy(id, l.model_id, DIGEST_BYTES);
    if (l.stage_file)
        return OK;
    progress_begin(&c->progress, "reading the model for its id");
    rc = index_cached(g, on_progress, c, x, e);
    progress_end(&c->progress);
    if (rc == OK)
        memcpy(id, x->model_id, DIGEST_BYTES);
    return rc;
}

static enum err_code print(const struct slice_command *c, const struct slice *s, const char *id, struct err *e)
{
    char size[16];
    if (!c->json) {
        printf("%s: layers [%u,%u), %zu tensors, %s\nmodel id   %s\n", c->out, s->first, s->end, s->n,
               parse_fmt_bytes(s->size, size), id ? id : "not known: the source was made without digests");
        return OK;
    }
    struct buf b = {0};
    buf_puts(&b, "{\"file\":");
    text_put_json(&b, c->out, strlen(c->out));
    buf_printf(&b,
               ",\"first\":%u,\"end\":%u,\"tensors\":%zu,\"tensor_bytes\":%llu,\"size\":%llu,\"model_id\":", s->first,
               s->end, s->n, (unsigned long long)s->tensor_bytes, (unsigned long long)s->size);
    buf_printf(&b, id ? "\"%s\"}" : "null}", id);
    if (!b.failed)
        printf("%s\n", buf_str(&b));
    enum err_code rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory") : OK;
    buf_free(&b);
    return rc;
}

static enum err_code cut(struct slice_command *c, const struct gguf *g, const struct hparams *h, uint32_t first,
                         uint32_t end, struct err *e)
{
    struct index x = {0};
    struct slice s;
    uint8_t id[DIGEST_BYTES];
    char hex[DIGEST_HEX_SIZE];
    bool known = false;
    if (end > h->n_block)
        return err_set(e, ERR_RANGE, "--layers %s: the model has %u blocks", c->layers, h->n_block);
    enum err_code rc = digests(c, g, &x, &known, id, e);
    if (rc == OK)
        rc = slice_plan(g, h, first, end, x.n_tensors ? &x : NULL, &s, e);
    if (rc == OK) {
        progress_begin(&c->progress, "writing the stage file");
        rc = slice_write(g, &s, c->out, on_progress, c, e);
        progress_end(&c->progress);
        if (rc == OK)
            rc = print(c, &s, known ? digest_hex(id, hex) : NULL, e);
        slice_fini(&s);
    }
    index_fini(&x);
    return rc;
}

static enum err_code run(struct slice_command *c, struct err *e)
{
    struct gguf *g;
    struct hparams h;
    uint32_t first, end;
    enum err_code rc = parse_window(c->layers, &first, &end, e);
    if (rc == OK && !text_valid(c->out, strlen(c->out)) && c->json)
        rc = err_set(e, ERR_ARG, "--json: the name of the file is not UTF-8");
    if (rc == OK)
        rc = signals_open(&c->stop.signal_fd, e);
    if (rc == OK)
        rc = gguf_open(c->model, &g, e);
    if (rc != OK)
        return rc;
    rc = hparams_read(g, &h, e);
    if (rc == OK) {
        rc = cut(c, g, &h, first, end, e);
        hparams_fini(&h);
    }
    gguf_close(g);
    return rc;
}

int cmd_slice(int argc, char **argv, const struct command *cmd)
{
    struct slice_command c = {.stop = {.signal_fd = -1}};
    const struct opt opts[] = {
        {"layers", 0, OPT_STRING, "A:B", "the window: blocks A to B - 1", &c.layers, 0, 0},
        {"output", 'o', OPT_STRING, "FILE", "the stage file to write", &c.out, 0, 0},
        {"json", 0, OPT_FLAG, NULL, "say what was written as JSON", &c.json, 0, 0},
        {0},
    };
    int rc = opt_parse_one(cmd, opts, argc, argv, &c.model, "which model?");
    if (rc >= 0)
        return rc;
    if (!c.layers || !c.out)
        return opt_usage(cmd, "%s is needed", c.layers ? "-o FILE" : "--layers A:B");
    struct err e;
    enum err_code code = run(&c, &e);
    if (c.stop.signal_fd >= 0)
        close(c.stop.signal_fd);
    if (code == ERR_CANCELLED && atomic_load(&c.stop.signal))
        return 128 + atomic_load(&c.stop.signal);
    return code == OK ? EXIT_OK : opt_fail(&e);
}
