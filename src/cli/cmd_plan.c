/* SPDX-License-Identifier: MIT
 *
 * kvasir plan: divides a model into windows. With the nodes' keys and addresses it writes the signed manifest that
 * `kvasir node` takes on each machine.
 */
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/layout.h"
#include "cli/rank.h"
#include "cli/source.h"
#include "model/hparams.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct plan_command {
    const char *model, *out, *key, *kv;
    struct layout_options layout;
    struct source_options source;
    struct opt_list nodes;
    bool even, json;
};

/* "KEY@HOST:PORT", or "KEY" for a node that nothing can dial. */
static enum err_code parse_node(const char *text, struct manifest_rank *r, struct err *e)
{
    char key[KEY_TEXT_SIZE];
    const char *at = strchr(text, '@');
    size_t n = at ? (size_t)(at - text) : strlen(text);
    if (n >= sizeof key)
        return err_set(e, ERR_ARG, "node '%s' is not of the form KEY@HOST:PORT", text);
    memcpy(key, text, n);
    key[n] = 0;
    enum err_code rc = key_parse(key, &r->key, e);
    if (rc != OK)
        return err_prefix(e, "node '%s' (KEY@HOST:PORT)", text);
    if (at && snprintf(r->addr, sizeof r->addr, "%s", at + 1) >= (int)sizeof r->addr)
        return err_set(e, ERR_ARG, "the address of node '%s' is too long", text);
    return OK;
}

static enum err_code write_manifest(const struct plan_command *c, const struct source *s, struct manifest *m,
                                    struct err *e)
{
    struct key_secret signer;
    struct key_public by;
    if (c->nodes.n != m->n_ranks)
        return err_set(e, ERR_ARG, "%u windows need as many --node options, %u are given", m->n_ranks, c->nodes.n);
    enum err_code rc = OK;
    for (uint32_t i = 0; rc == OK && i < m->n_ranks; i++)
        rc = parse_node(c->nodes.item[i], &m->ranks[i], e);
    for (uint32_t i = 0; rc == OK && i < m->n_ranks; i++) { /* the end that can be dialled is dialled */
        const uint32_t to = (i + 1) % m->n_ranks;
        const struct manifest_rank *next = &m->ranks[to];
        m->ranks[i].dial = next->addr[0] ? MANIFEST_DIAL_PREDECESSOR : MANIFEST_DIAL_SUCCESSOR;
        if (m->n_ranks > 1 && !next->addr[0] && !m->ranks[i].addr[0])
            rc = err_set(e, ERR_ARG,
                         "the nodes of ranks %u and %u are neighbours, and neither has an address: one of "
                         "them must be dialable, --node KEY@HOST:PORT",
                         i, to);
    }
    if (rc == OK)
        rc = source_model_id(s, NULL, m->model_id, e);
    if (rc == OK)
        rc = key_load(c->key, &signer, e);
    if (rc != OK)
        return rc;
    /* A new ring: its id comes from a fresh key that nobody keeps. */
    struct key_secret fresh;
    key_generate(&fresh);
    key_public_of(&fresh, &by);
    key_wipe(&fresh);
    digest_of(&by, sizeof by, m->ring_id);
    rc = manifest_save(c->out, m, &signer, e);
    key_public_of(&signer, &by);
    key_wipe(&signer);
    if (rc == OK) {
        char text[KEY_TEXT_SIZE];
        fprintf(stderr, "wrote %s and %s.sig, signed by %s\n", c->out, c->out, key_text(&by, text));
    }
    return rc;
}

/* Tensor bytes of each rank's stage file. Such a file may hold more than is loaded, and then more than the manifest
 * says. */
static enum err_code file_bytes(const struct gguf *g, const struct manifest *m, uint64_t *out, struct err *e)
{
    struct hparams h;
    struct model_sizes sizes;
    enum err_code rc = hparams_read(g, &h, e);
    if (rc != OK)
        return rc;
    rc = model_sizes_read(g, &h, &sizes, e);
    hparams_fini(&h);
    if (rc != OK)
        return rc;
    for (uint32_t i = 0; i < m->n_ranks; i++)
        out[i] = model_sizes_stage_file(&sizes, m->ranks[i].first, m->ranks[i].end);
    model_sizes_fini(&sizes);
    return OK;
}

static void print_text(const struct manifest *m, const uint64_t *files)
{
    char more[16];
    for (uint32_t i = 0; i < m->n_ranks; i++)
        rank_print_row(stdout, m, i);
    for (uint32_t i = 0; i < m->n_ranks; i++)
        if (files[i] > m->ranks[i].weight_bytes)
            printf("the stage file of rank %u has %s more: NextN blocks, which are not used yet\n", i,
                   parse_fmt_bytes(files[i] - m->ranks[i].weight_bytes, more));
}

static enum err_code print_json(const struct manifest *m, const uint64_t *files, struct err *e)
{
    struct buf b = {0};
    buf_printf(&b, "{\"n_blocks\":%u,\"n_ctx\":%u,\"n_slots\":%u,\"ranks\":[", m->n_blocks, m->n_ctx, m->n_slots);
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        const struct manifest_rank *r = &m->ranks[i];
        buf_printf(&b, "%s{\"rank\":%u,\"window\":[%u,%u],\"weight_bytes\":%llu,\"kv_bytes\":%llu", i ? "," : "", i,
                   r->first, r->end, (unsigned long long)r->weight_bytes, (unsigned long long)r->kv_bytes);
        buf_printf(&b, ",\"tensor_bytes\":%llu}", (unsigned long long)files[i]);
    }
    buf_puts(&b, "]}");
    enum err_code rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory") : OK;
    if (rc == OK)
        printf("%s\n", buf_str(&b));
    buf_free(&b);
    return rc;
}

static enum err_code print_plan(const struct plan_command *c, const struct gguf *g, const struct manifest *m,
                                struct err *e)
{
    uint64_t files[MANIFEST_MAX_RANKS];
    enum err_code rc = file_bytes(g, m, files, e);
    if (rc == OK && c->json)
        return print_json(m, files, e);
    if (rc == OK)
        print_text(m, files);
    return rc;
}

static enum err_code run(const struct plan_command *c, struct err *e)
{
    struct source s;
    struct manifest m;
    const struct source_want want = {.no_index = !c->out}; /* windows do not depend on it */
    enum err_code rc = source_open(&s, c->model, &c->source, &want, e);
    if (rc != OK)
        return rc;
    rc = layout_make(source_gguf(&s), &c->layout, &m, e);
    if (rc == OK) {
        if (c->out)
            rc = write_manifest(c, &s, &m, e);
        if (rc == OK)
            rc = print_plan(c, source_gguf(&s), &m, e);
        manifest_fini(&m);
    }
    source_close(&s);
    return rc;
}

int cmd_plan(int argc, char **argv, const struct command *cmd)
{
    struct plan_command c = {0};
    const struct opt opts[] = {
        {"even", 0, OPT_FLAG, NULL, "windows of about equal cost, the head counted (the only way yet)", &c.even, 0, 0},
        LAYOUT_OPTION_ROWS(c.layout),
        {"kv", 0, OPT_STRING, "TYPE", "type of the key/value cache to reckon with: f16 (default), f32, q8_0, q4_0",
         &c.kv, 0, 0},
        {"output", 'o', OPT_STRING, "FILE", "write the manifest to FILE, its signature to FILE.sig", &c.out, 0, 0},
        {"node", 0, OPT_LIST, "KEY@HOST:PORT", "the node of the next rank, in order; KEY alone: cannot be dialled",
         &c.nodes, 0, 0},
        {"key", 'k', OPT_STRING, "FILE", "the key that signs the manifest", &c.key, 0, 0},
        {"json", 0, OPT_FLAG, NULL, "print the plan as JSON", &c.json, 0, 0},
        SOURCE_URL_ROWS(c.source),
        {0},
    };
    int rc = opt_parse_one(cmd, opts, argc, argv, &c.model, "which model?");
    if (rc >= 0)
        return rc;
    if (!c.layout.n_stages && !c.layout.layers && !c.nodes.n)
        return opt_usage(cmd, "into how many stages? --stages N, or --layers");
    if (c.out && (!c.key || !c.nodes.n))
        return opt_usage(cmd, "a manifest needs --key FILE to sign it and a --node for each rank");
    if ((c.nodes.n || c.key) && !c.out)
        return opt_usage(cmd, "%s is for a manifest: where to? -o FILE", c.nodes.n ? "--node" : "--key");
    if (!c.layout.n_stages && !c.layout.layers)
        c.layout.n_stages = c.nodes.n;
    c.layout.kv = c.kv;
    struct err e;
    return run(&c, &e) == OK ? EXIT_OK : opt_fail(&e);
}
