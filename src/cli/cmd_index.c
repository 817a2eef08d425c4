/* SPDX-License-Identifier: MIT */
#include "base/io.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/source.h"
#include "model/hparams.h"
#include "model/slice.h"

#include <stdio.h>

struct index_command {
    const char *model, *out, *check;
    struct source_options source;
    bool json;
};

static bool on_progress(void *ctx, uint64_t done, uint64_t total)
{
    progress_show(ctx, done, total);
    return true;
}

/* x NULL: a model on a web server without an index. */
static void print_text(const struct gguf *g, const struct hparams *h, const struct model_sizes *s,
                       const struct index *x)
{
    char id[DIGEST_HEX_SIZE], size[16], first[16];
    const uint64_t total = model_sizes_stage_file(s, 0, s->n_block); /* all of them */
    printf("model id   %s\n", x ? digest_hex(x->model_id, id) : "not known: there is no index beside the model");
    printf("family     %s\nfiles      %u\ntensors    %zu, %s\n", h->arch, gguf_n_files(g), gguf_n_tensors(g),
           parse_fmt_bytes(total, size));
    printf("width      %u\nvocabulary %u\ncontext    %u\n", h->n_embd, h->n_vocab, h->n_ctx_train);
    printf("embedding  %s\nhead       %s%s\n", parse_fmt_bytes(s->embd_bytes, size),
           parse_fmt_bytes(s->head_bytes, first), s->tied ? " (the embedding again)" : "");
    for (uint32_t b = 0; b < s->n_block;) { /* runs of equal blocks in one line */
        uint32_t end = b + 1;
        while (end < s->n_block && s->block_bytes[end] == s->block_bytes[b])
            end++;
        printf("blocks     [%u,%u)  %s each\n", b, end, parse_fmt_bytes(s->block_bytes[b], size));
        b = end;
    }
    if (h->n_nextn)
        printf("NextN      %u blocks, %s (not used yet)\n", h->n_nextn, parse_fmt_bytes(s->nextn_bytes, size));
}

static enum err_code show(const struct index_command *c, const struct gguf *g, const struct hparams *h,
                          const struct model_sizes *s, const struct index *x, struct err *e)
{
    struct buf json = {0};
    enum err_code rc = OK;
    if (c->json || c->out)
        rc = index_write(g, h, s, x, &json, e);
    if (rc == OK && c->out)
        rc = io_write_file(c->out, json.data, json.len, 0644, e);
    if (rc == OK && c->json)
        printf("%s\n", buf_str(&json));
    else if (rc == OK)
        print_text(g, h, s, x);
    buf_free(&json);
    return rc;
}

static enum err_code show_model(const struct index_command *c, const struct source *src, const struct hparams *h,
                                const struct model_sizes *s, struct err *e)
{
    struct index x;
    struct progress p;
    if (src->remote) {
        uint8_t id[DIGEST_BYTES];
        enum err_code rc = c->json || c->out ? source_model_id(src, NULL, id, e) : OK;
        return rc == OK ? show(c, source_gguf(src), h, s, remote_index(src->remote), e) : rc;
    }
    progress_begin(&p, "reading the model");
    enum err_code rc = index_cached(src->file, on_progress, &p, &x, e);
    progress_end(&p);
    if (rc != OK)
        return rc;
    rc = show(c, src->file, h, s, &x, e);
    index_fini(&x);
    return rc;
}

static uint64_t tensor_bytes(const struct gguf *g)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        bytes += gguf_tensor_at(g, i)->size;
    return bytes;
}

/* Of a stage file there is no index; what it says it is, and whether its bytes are that, can be told. */
static enum err_code show_stage(const struct index_command *c, const struct source *src, const struct slice_label *l,
                                struct err *e)
{
    const struct gguf *g = source_gguf(src);
    struct progress p;
    const uint8_t *id = l->model_id;
    uint8_t seen[DIGEST_BYTES];
    char hex[DIGEST_HEX_SIZE], size[16];
    if (c->json || c->out)
        return err_set(e, ERR_ARG, "%s is a stage file, layers [%u,%u) of a model: an index is made of the model",
                       c->model, l->first, l->end);
    if (l->has_id && src->file) { /* of a remote one, what its header says */
        progress_begin(&p, "reading the stage file");
        enum err_code rc = slice_model_id(g, on_progress, &p, seen, e);
        progress_end(&p);
        if (rc != OK)
            return rc;
    }
    printf("stage file layers [%u,%u)\nmodel id   %s\n", l->first, l->end,
           l->has_id ? digest_hex(id, hex) : "not known: made without digests");
    printf("tensors    %zu, %s\n", gguf_n_tensors(g), parse_fmt_bytes(tensor_bytes(g), size));
    return OK;
}

static enum err_code show_any(const struct index_command *c, const struct source *src, struct err *e)
{
    const struct gguf *g = source_gguf(src);
    struct slice_label label;
    struct hparams h;
    struct model_sizes s;
    enum err_code rc = slice_label_read(g, &label, e);
    if (rc == OK && label.stage_file)
        return show_stage(c, src, &label, e);
    if (rc == OK)
        rc = hparams_read(g, &h, e);
    if (rc != OK)
        return rc;
    rc = model_sizes_read(g, &h, &s, e);
    if (rc == OK) {
        rc = show_model(c, src, &h, &s, e);
        model_sizes_fini(&s);
    }
    hparams_fini(&h);
    return rc;
}

/* The model's bytes, or a stage file's, against an index that was made before. */
static enum err_code check(const struct index_command *c, const struct gguf *g, struct err *e)
{
    struct buf text = {0};
    struct index_file f = {0};
    struct index x = {0};
    struct progress p;
    char hex[DIGEST_HEX_SIZE], size[16];
    enum err_code rc = io_read_file(c->check, INDEX_MAX_TEXT, &text, e);
    if (rc == OK) {
        rc = index_read(text.data, text.len, &f, e);
        if (rc == OK)
            rc = index_match(&f, g, &x, e);
        if (rc != OK)
            err_prefix(e, "%s", c->check);
    }
    if (rc == OK) {
        progress_begin(&p, "reading the model");
        rc = index_verify(g, &x, on_progress, &p, e);
        progress_end(&p);
    }
    if (rc == OK)
        printf("%s: as in %s: model %s, %zu tensors, %s\n", c->model, c->check, digest_hex(x.model_id, hex),
               x.n_tensors, parse_fmt_bytes(tensor_bytes(g), size));
    index_fini(&x);
    index_file_fini(&f);
    buf_free(&text);
    return rc;
}

static enum err_code run(const struct index_command *c, struct err *e)
{
    struct source src;
    const struct source_want want = {.no_wait = true};
    enum err_code rc = source_open(&src, c->model, &c->source, &want, e);
    if (rc != OK)
        return rc;
    rc = c->check ? check(c, src.file, e) : show_any(c, &src, e);
    source_close(&src);
    return rc;
}

int cmd_index(int argc, char **argv, const struct command *cmd)
{
    struct index_command c = {0};
    const struct opt opts[] = {
        {"output", 'o', OPT_STRING, "FILE", "write the index (JSON, *.kvi) to FILE", &c.out, 0, 0},
        {"json", 0, OPT_FLAG, NULL, "print the index as JSON", &c.json, 0, 0},
        {"check", 0, OPT_STRING, "KVI", "compare the files' bytes with this index; status 1 if they differ", &c.check,
         0, 0},
        SOURCE_URL_ROWS(c.source),
        {0},
    };
    int rc = opt_parse_one(cmd, opts, argc, argv, &c.model, "which model?");
    if (rc >= 0)
        return rc;
    if (c.check && (c.out || c.json))
        return opt_usage(cmd, "--check makes no index: it goes without %s", c.out ? "-o" : "--json");
    if (c.check && source_is_url(c.model))
        return opt_usage(cmd, "--check reads all of a model: it is for files; `kvasir pull` checks what it fetches");
    struct err e;
    return run(&c, &e) == OK ? EXIT_OK : opt_fail(&e);
}
