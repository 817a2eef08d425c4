/* SPDX-License-Identifier: MIT */
#include "tok/tok.h"

#include "base/log.h"
#include "base/text.h"
#include "tok/bpe.h"
#include "tok/vocab.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TEXT_BYTES (1u << 29) /* positions in the escaped text, three bytes a space, fit 32 bits */

static enum err_code load_bpe(struct tok *t, const struct gguf *g, const struct tok_options *options, struct err *e)
{
    const char *name = "";
    struct pretok *pretok;
    enum err_code rc = gguf_opt_str(g, "tokenizer.ggml.pre", &name, e);
    if (options && options->pre) {
        name = options->pre;
        rc = OK;
    }
    if (rc == OK && !*name) {
        log_warn("tok", "the file names no pre-tokenizer (tokenizer.ggml.pre), using \"default\"; another one may fit "
                        "the model better");
        name = "default";
    }
    if (rc == OK)
        rc = pretok_new(name, &pretok, e);
    if (rc != OK)
        return rc;
    struct pretok_traits traits = pretok_traits(pretok);
    rc = vocab_load(t, g, &traits, e);
    if (rc == OK)
        return bpe_new(t, g, pretok, &t->bpe, e);
    pretok_free(pretok);
    return rc;
}

enum err_code tok_new(const struct gguf *g, const struct tok_options *options, struct tok **out, struct err *e)
{
    const char *model;
    enum err_code rc = gguf_str(g, "tokenizer.ggml.model", &model, e);
    if (rc != OK)
        return rc;
    bool bpe = strcmp(model, "gpt2") == 0;
    if (!bpe && strcmp(model, "llama") != 0) {
        char name[64];
        text_clean(model, strlen(model), name, sizeof name);
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.ggml.model is \"%s\"; known are \"llama\" (SentencePiece) and \"gpt2\" (BPE)", name);
    }
    struct tok *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a tokenizer");
    rc = bpe ? load_bpe(t, g, options, e) : vocab_load(t, g, NULL, e);
    if (rc != OK) {
        tok_free(t);
        return rc;
    }
    *out = t;
    return OK;
}

void tok_free(struct tok *t)
{
    if (!t)
        return;
    bpe_free(t->bpe);
    vocab_fini(t);
    free(t);
}

/* --- ids --- */

void tok_ids_free(struct tok_ids *ids)
{
    free(ids->id);
    *ids = (struct tok_ids){0};
}

bool tok_ids_push(struct tok_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        if (cap > SIZE_MAX / sizeof *ids->id)
            return false;
        int32_t *p = realloc(ids->id, cap * sizeof *p);
        if (!p)
            return false;
        ids->id = p;
        ids->cap = cap;
    }
    ids->id[ids->n++] = id;
    return true;
}

/* --- encoding --- */

/* White space of the C locale, whatever the process's locale is. */
static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The fragments between the special tokens, and these. */
static enum err_code encode_parts(const struct tok *t, const uint8_t *text, uint32_t len, const struct vocab_cut *cut,
                                  size_t n_cuts, bool content, struct tok_ids *out, struct err *e)
{
    struct spm_scratch spm = {.content = content};
    struct bpe_scratch bpe = {0};
    enum err_code rc = OK;
    uint32_t pos = 0;
    for (size_t i = 0; rc == OK && i <= n_cuts; i++) {
        uint32_t end = i < n_cuts ? cut[i].pos : len;
        if (i > 0 && cut[i - 1].special->strips_right)
            while (pos < end && is_space(text[pos]))
                pos++;
        rc = t->bpe ? bpe_encode(t, &bpe, text + pos, end - pos, out, e)
                    : spm_encode(t, &spm, text + pos, end - pos, t->add_space_prefix, out, e);
        if (rc != OK || i == n_cuts)
            break;
        if (!tok_ids_push(out, cut[i].special->id))
            rc = err_set(e, ERR_NOMEM, "no memory for the tokens of %u bytes", len);
        pos = end + cut[i].len;
    }
    spm_scratch_free(&spm);
    bpe_scratch_free(&bpe);
    return rc;
}

/* The spans, whose texts stand one after the other in `text`. */
static enum err_code encode_joined(const struct tok *t, const uint8_t *text, uint32_t len, const struct tok_span *span,
                                   size_t n_spans, struct tok_ids *out, struct err *e)
{
    size_t n_before = out->n, n_cuts = 0;
    struct vocab_cut *cut = NULL;
    bool content = false;
    if (len == 0)
        return OK;
    for (size_t i = 0; i < n_spans; i++)
        content = content || (span[i].flags & TOK_CONTENT);
    enum err_code rc = special_split(t, text, span, n_spans, &cut, &n_cuts, e);
    if (rc == OK)
        rc = encode_parts(t, text, len, cut, n_cuts, content, out, e);
    if (rc != OK)
        out->n = n_before;
    free(cut);
    return rc;
}

static enum err_code check_len(size_t len, struct err *e)
{
    if (len > MAX_TEXT_BYTES)
        return err_set(e, ERR_LIMIT, "the text has %zu bytes; at most %u can be tokenized", len, MAX_TEXT_BYTES);
    return OK;
}

enum err_code tok_encode(const struct tok *t, const char *text, size_t len, unsigned flags, struct tok_ids *out,
                         struct err *e)
{
    size_t n_before = out->n;
    struct tok_span span = {text, len, flags};
    bool special = flags & TOK_ADD_SPECIAL;
    enum err_code rc = check_len(len, e);
    if (rc == OK && special && t->add_bos && t->bos >= 0 && !tok_ids_push(out, t->bos))
        rc = err_set(e, ERR_NOMEM, "no memory for tokens");
    if (rc == OK)
        rc = encode_joined(t, (const uint8_t *)text, (uint32_t)len, &span, 1, out, e);
    if (rc == OK && special && t->add_eos && t->eos >= 0 && !tok_ids_push(out, t->eos))
        rc = err_set(e, ERR_NOMEM, "no memory for tokens");
    if (rc != OK)
        out->n = n_before;
    return rc;
}

enum err_code tok_encode_spans(const struct tok *t, const struct tok_span *span, size_t n_spans, struct tok_ids *out,
                               struct err *e)
{
    struct buf text = {0};
    enum err_code rc = OK;
    for (size_t i = 0; rc == OK && i < n_spans; i++) {
        rc = check_len(span[i].len > MAX_TEXT_BYTES ? span[i].len : text.len + span[i].len, e);
        if (rc == OK && span[i].len > 0)
            buf_put(&text, span[i].text, span[i].len);
    }
    if (rc == OK && text.failed)
        rc = err_set(e, ERR_NOMEM, "no memory to join %zu parts of a text", n_spans);
    if (rc == OK)
        rc = encode_joined(t, text.data, (uint32_t)text.len, span, n_spans, out, e);
    buf_free(&text);
    return rc;
}

/* --- what the vocabulary says --- */

uint32_t tok_n_vocab(const struct tok *t)
{
    return t->n;
}

int32_t tok_bos(const struct tok *t)
{
    return t->bos;
}

int32_t tok_eos(const struct tok *t)
{
    return t->eos;
}

bool tok_add_bos(const struct tok *t)
{
    return t->add_bos;
}

bool tok_is_eog(const struct tok *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n && t->eog[id];
}
