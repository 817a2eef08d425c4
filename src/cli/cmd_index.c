/* SPDX-License-Identifier: MIT */
#include "base/io.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "model/hparams.h"
#include "model/index.h"

#include <stdio.h>
#include <unistd.h>

struct index_command {
    const char *model, *out;
    bool json;
};

static bool on_progress(void *ctx, uint64_t done, uint64_t total)
{
    if (*(bool *)ctx && total > 0)
        fprintf(stderr, "\r\033[K%u %%", (unsigned)(done * 100 / total));
    return true;
}

static void print_text(const struct gguf *g, const struct hparams *h, const struct model_sizes *s,
                       const struct index *x)
{
    char id[DIGEST_HEX_SIZE], size[16], first[16];
    uint64_t total = s->embd_bytes + s->head_bytes + s->global_bytes + s->nextn_bytes - (s->tied ? s->embd_bytes : 0);
    for (uint32_t b = 0; b < s->n_block; b++)
        total += s->block_bytes[b];
    printf("model id   %s\n", digest_hex(x->model_id, id));
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
                          const struct model_sizes *s, struct err *e)
{
    struct index x;
    struct buf json = {0};
    bool tty = isatty(STDERR_FILENO);
    enum err_code rc = index_cached(g, on_progress, &tty, &x, e);
    if (tty)
        fprintf(stderr, "\r\033[K");
    if (rc != OK)
        return rc;
    if (c->json || c->out)
        rc = index_write(g, h, s, &x, &json, e);
    if (rc == OK && c->out)
        rc = io_write_file(c->out, json.data, json.len, 0644, e);
    if (rc == OK && c->json)
        printf("%s\n", buf_str(&json));
    else if (rc == OK)
        print_text(g, h, s, &x);
    buf_free(&json);
    index_fini(&x);
    return rc;
}

static enum err_code run(const struct index_command *c, struct err *e)
{
    struct gguf *g;
    struct hparams h;
    struct model_sizes s;
    enum err_code rc = gguf_open(c->model, &g, e);
    if (rc != OK)
        return rc;
    rc = hparams_read(g, &h, e);
    if (rc == OK) {
        rc = model_sizes_read(g, &h, &s, e);
        if (rc == OK) {
            rc = show(c, g, &h, &s, e);
            model_sizes_fini(&s);
        }
        hparams_fini(&h);
    }
    gguf_close(g);
    return rc;
}

int cmd_index(int argc, char **argv, const struct command *cmd)
{
    struct index_command c = {0};
    const struct opt opts[] = {
        {"output", 'o', OPT_STRING, "FILE", "write the index (JSON, *.kvi) to FILE", &c.out, 0, 0},
        {"json", 0, OPT_FLAG, NULL, "print the index as JSON", &c.json, 0, 0},
        {0},
    };
    int rc = opt_parse_one(cmd, opts, argc, argv, &c.model, "which model?");
    if (rc >= 0)
        return rc;
    struct err e;
    return run(&c, &e) == OK ? EXIT_OK : opt_fail(&e);
}
