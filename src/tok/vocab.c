/* SPDX-License-Identifier: MIT
 *
 * Reads the vocabulary from the metadata and checks it: what the other files of this room index with, they need not
 * check again. Loading is linear in the vocabulary (and a sort of the special tokens).
 */
#include "tok/vocab.h"

#include "base/clock.h"
#include "base/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY(name)         "tokenizer.ggml." name
#define MAX_TOKENS        (1u << 28)
#define MAX_SPECIAL_BYTES 1024u /* looking for special tokens costs the text's length times this, at worst */

const char *vocab_text(const struct tok *t, int32_t id, uint32_t *len)
{
    *len = t->offset[id + 1] - t->offset[id];
    return t->arena + t->offset[id];
}

static bool text_is(const struct tok *t, int32_t id, const char *text)
{
    uint32_t len;
    const char *p = vocab_text(t, id, &len);
    return len == strlen(text) && memcmp(p, text, len) == 0;
}

/* --- arrays --- */

static enum err_code load_texts(struct tok *t, const struct gguf *g, struct err *e)
{
    size_t n, total = 0;
    enum err_code rc = gguf_arr_strs(g, KEY("tokens"), 0, &n, e);
    if (rc != OK)
        return rc;
    if (n == 0)
        return err_set(e, ERR_NOT_FOUND, "the vocabulary " KEY("tokens") " is empty");
    if (n > MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "the vocabulary has %zu tokens; at most %u are supported", n, MAX_TOKENS);
    t->n = (uint32_t)n;
    t->offset = calloc(n + 1, sizeof *t->offset);
    if (!t->offset)
        return err_set(e, ERR_NOMEM, "no memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const char *s = gguf_arr_str_at(g, KEY("tokens"), i);
        total += s ? strlen(s) : 0;
        if (total > UINT32_MAX)
            return err_set(e, ERR_LIMIT, "the texts of the vocabulary are longer than %u bytes", UINT32_MAX);
        t->offset[i + 1] = (uint32_t)total;
    }
    t->arena = malloc(total + 1);
    if (!t->arena)
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of token texts", total);
    for (size_t i = 0; i < n; i++) {
        size_t len = t->offset[i + 1] - t->offset[i];
        if (len)
            memcpy(t->arena + t->offset[i], gguf_arr_str_at(g, KEY("tokens"), i), len);
    }
    return OK;
}

static enum err_code load_scores(struct tok *t, const struct gguf *g, struct err *e)
{
    t->score = calloc(t->n, sizeof *t->score);
    if (!t->score)
        return err_set(e, ERR_NOMEM, "no memory for the scores of %u tokens", t->n);
    if (!gguf_has(g, KEY("scores")))
        return OK; /* all 0 */
    const float *score;
    size_t n;
    enum err_code rc = gguf_arr_f32(g, KEY("scores"), t->n, &score, &n, e);
    for (size_t i = 0; rc == OK && i < n; i++) {
        if (!isfinite(score[i]))
            return err_set(e, ERR_FORMAT, KEY("scores") ": the score of token %zu is not a finite number", i);
        t->score[i] = score[i];
    }
    return rc;
}

static enum err_code load_types(struct tok *t, const struct gguf *g, bool bpe, struct err *e)
{
    t->type = malloc(t->n);
    if (!t->type)
        return err_set(e, ERR_NOMEM, "no memory for the types of %u tokens", t->n);
    memset(t->type, VOCAB_NORMAL, t->n);
    if (!gguf_has(g, KEY("token_type")))
        return OK;
    const int32_t *type;
    size_t n;
    enum err_code rc = gguf_arr_i32(g, KEY("token_type"), t->n, &type, &n, e);
    for (size_t i = 0; rc == OK && i < n; i++) {
        if (type[i] < 0 || type[i] >= VOCAB_TYPE_COUNT)
            return err_set(e, ERR_FORMAT, KEY("token_type") ": token %zu has the type %d; known are 0 to %d", i,
                           type[i], VOCAB_TYPE_COUNT - 1);
        t->type[i] = (uint8_t)type[i];
        if (bpe && type[i] == VOCAB_BYTE) /* in BPE every text is bytes */
            t->type[i] = VOCAB_NORMAL;
    }
    return rc;
}

/* --- single ids --- */

/* *id keeps its value when the key is missing. */
static enum err_code load_id(const struct tok *t, const struct gguf *g, const char *key, int32_t *id, struct err *e)
{
    uint32_t value;
    if (!gguf_has(g, key))
        return OK;
    enum err_code rc = gguf_u32(g, key, &value, e);
    if (rc == OK && value >= t->n)
        rc = err_set(e, ERR_RANGE, "%s is %u; the vocabulary has only %u tokens", key, value, t->n);
    if (rc == OK)
        *id = (int32_t)value;
    return rc;
}

static int32_t default_id(const struct tok *t, uint32_t id)
{
    return id < t->n ? (int32_t)id : -1;
}

static void set_defaults(struct tok *t, const struct pretok_traits *bpe)
{
    if (bpe) {
        t->bos = bpe->no_default_bos ? -1 : default_id(t, 11);
        t->eos = default_id(t, 11);
        t->unk = -1;
        t->add_bos = bpe->adds_bos;
    } else {
        t->bos = default_id(t, 1);
        t->eos = default_id(t, 2);
        t->unk = default_id(t, 0);
        t->add_bos = true;
        t->add_space_prefix = true;
    }
}

static enum err_code load_ids(struct tok *t, const struct gguf *g, const struct pretok_traits *bpe, struct err *e)
{
    set_defaults(t, bpe);
    enum err_code rc = load_id(t, g, KEY("bos_token_id"), &t->bos, e);
    if (rc == OK)
        rc = load_id(t, g, KEY("eos_token_id"), &t->eos, e);
    if (rc == OK)
        rc = load_id(t, g, KEY("unknown_token_id"), &t->unk, e);
    if (rc == OK)
        rc = gguf_opt_bool(g, KEY("add_bos_token"), &t->add_bos, e);
    if (rc == OK)
        rc = gguf_opt_bool(g, KEY("add_eos_token"), &t->add_eos, e);
    if (rc == OK && !bpe) /* BPE takes spaces as they are */
        rc = gguf_opt_bool(g, KEY("add_space_prefix"), &t->add_space_prefix, e);
    if (rc != OK || gguf_has(g, KEY("token_type")))
        return rc;
    /* Without types, these three are what they are called. But 11, which BPE has by default, is a comma elsewhere. */
    if (t->unk >= 0)
        t->type[t->unk] = VOCAB_UNKNOWN;
    if (t->bos >= 0 && (!bpe || gguf_has(g, KEY("bos_token_id"))))
        t->type[t->bos] = VOCAB_CONTROL;
    if (t->eos >= 0 && (!bpe || gguf_has(g, KEY("eos_token_id"))))
        t->type[t->eos] = VOCAB_CONTROL;
    return OK;
}

/* --- what ends a generation --- */

static bool text_in(const struct tok *t, int32_t id, const char *const *texts)
{
    uint32_t len;
    const char *text = vocab_text(t, id, &len);
    if (len == 0 || !strchr("<[_\xe2", text[0])) /* none of these lists begins with anything else */
        return false;
    for (; *texts; texts++)
        if (text_is(t, id, *texts))
            return true;
    return false;
}

static const char *const eog_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
    NULL,
};

/* Ids that end a generation when a key names them; where the key is missing, tokens of these texts do. They stand
 * between the files of a repository and around gaps to fill: no answer goes on behind them. */
static const struct {
    const char *key;
    const char *const texts[6];
} eog_keys[] = {
    {KEY("eot_token_id"), {NULL}},
    {KEY("eom_token_id"), {NULL}},
    {KEY("fim_pad_token_id"), {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", NULL}},
    {KEY("fim_rep_token_id"), {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", NULL}},
    {KEY("fim_sep_token_id"), {"<|file_sep|>", NULL}},
};

static enum err_code load_eog_keys(struct tok *t, const struct gguf *g, struct err *e)
{
    for (size_t i = 0; i < sizeof eog_keys / sizeof *eog_keys; i++) {
        int32_t named = -1;
        enum err_code rc = load_id(t, g, eog_keys[i].key, &named, e);
        if (rc != OK)
            return rc;
        if (named >= 0)
            t->eog[named] = true;
        for (int32_t id = 0; named < 0 && id < (int32_t)t->n; id++)
            if (text_in(t, id, eog_keys[i].texts)) {
                t->eog[id] = true;
                t->type[id] = VOCAB_CONTROL;
            }
    }
    return OK;
}

/* Harmony's tokens for channels and roles are part of what its models say: they show in the output. <|end|> only ends
 * a message there. */
static void load_harmony(struct tok *t)
{
    static const char *const shown[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", NULL};
    int32_t end = -1, ret = -1, call = -1;
    for (int32_t id = 0; id < (int32_t)t->n; id++) {
        if (text_in(t, id, shown))
            t->type[id] = VOCAB_USER_DEFINED;
        end = text_is(t, id, "<|end|>") ? id : end;
        ret = text_is(t, id, "<|return|>") ? id : ret;
        call = text_is(t, id, "<|call|>") ? id : call;
    }
    if (end >= 0 && ret >= 0 && call >= 0) {
        t->eog[end] = false;
        t->type[end] = VOCAB_USER_DEFINED;
    }
}

/* Also mends types: what ends a generation is a control token, whatever a careless file says. */
static enum err_code load_eog(struct tok *t, const struct gguf *g, struct err *e)
{
    t->eog = calloc(t->n, sizeof *t->eog);
    if (!t->eog)
        return err_set(e, ERR_NOMEM, "no memory for the flags of %u tokens", t->n);
    if (t->eos >= 0)
        t->eog[t->eos] = true;
    enum err_code rc = load_eog_keys(t, g, e);
    if (rc != OK)
        return rc;
    for (int32_t id = 0; id < (int32_t)t->n; id++)
        if (text_in(t, id, eog_texts)) {
            t->eog[id] = true;
            t->type[id] = VOCAB_CONTROL;
        }
    load_harmony(t);
    return OK;
}

/* --- lookups --- */

static uint64_t hash_text(const struct tok *t, const uint8_t *p, size_t len)
{
    uint64_t h = t->hash_seed + len, word;
    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&word, p, 8);
        h = hash_mix64(h ^ word);
    }
    word = 0;
    memcpy(&word, p, len);
    return hash_mix64(h ^ word);
}

static bool is_ordinary(uint8_t type)
{
    return type != VOCAB_UNKNOWN && type != VOCAB_CONTROL && type != VOCAB_BYTE;
}

static bool is_special(uint8_t type)
{
    return type == VOCAB_UNKNOWN || type == VOCAB_CONTROL || type == VOCAB_USER_DEFINED;
}

/* The slot that holds the text, or the empty one where it would go. */
static struct vocab_slot *slot_of(const struct tok *t, const uint8_t *text, size_t len)
{
    uint64_t h = hash_text(t, text, len);
    uint32_t tag = (uint32_t)(h >> 32);
    for (size_t i = (size_t)h & t->slot_mask;; i = (i + 1) & t->slot_mask) {
        struct vocab_slot *s = &t->slot[i];
        if (s->id < 0)
            return s;
        uint32_t n;
        if (s->tag == tag) {
            const char *p = vocab_text(t, s->id, &n);
            if (n == len && memcmp(p, text, len) == 0)
                return s;
        }
    }
}

int32_t vocab_find(const struct tok *t, const uint8_t *text, size_t len)
{
    return len == 0 || len > t->max_len ? -1 : slot_of(t, text, len)->id;
}

static enum err_code build_hash(struct tok *t, struct err *e)
{
    size_t n_slots = 64;
    while (n_slots < (size_t)t->n * 2)
        n_slots *= 2;
    t->slot_mask = n_slots - 1;
    t->slot = malloc(n_slots * sizeof *t->slot);
    if (!t->slot)
        return err_set(e, ERR_NOMEM, "no memory to look up %u tokens", t->n);
    memset(t->slot, 0xff, n_slots * sizeof *t->slot);
    if (getentropy(&t->hash_seed, sizeof t->hash_seed) != 0)
        t->hash_seed = clock_now_ns();
    for (int32_t id = 0; id < (int32_t)t->n; id++) {
        uint32_t len;
        const uint8_t *text = (const uint8_t *)vocab_text(t, id, &len);
        if (len == 0 || !is_ordinary(t->type[id]))
            continue;
        struct vocab_slot *s = slot_of(t, text, len); /* of equal texts the last one counts, as elsewhere */
        *s = (struct vocab_slot){(uint32_t)(hash_text(t, text, len) >> 32), id};
        t->max_len = len > t->max_len ? len : t->max_len;
    }
    return OK;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0xE2>" gives 0xe2; -1 for any other text. */
static int byte_of_text(const struct tok *t, int32_t id)
{
    uint32_t len;
    const char *p = vocab_text(t, id, &len);
    if (len != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex(p[3]) < 0 || hex(p[4]) < 0)
        return -1;
    return hex(p[3]) * 16 + hex(p[4]);
}

int vocab_byte(const struct tok *t, int32_t id)
{
    return t->type[id] == VOCAB_BYTE ? byte_of_text(t, id) : -1;
}

/* For each byte its byte token; where there is none, a token that merely looks like one, else the byte itself. */
static enum err_code build_bytes(struct tok *t, struct err *e)
{
    int32_t look_alike[256];
    memset(look_alike, 0xff, sizeof look_alike);
    memset(t->byte_id, 0xff, sizeof t->byte_id);
    for (int32_t id = 0; id < (int32_t)t->n; id++) {
        int b = byte_of_text(t, id);
        if (b < 0 && t->type[id] == VOCAB_BYTE)
            return err_set(e, ERR_FORMAT, "token %d is a byte token, but its text is not of the form <0x0A>", id);
        if (b >= 0 && t->type[id] == VOCAB_BYTE)
            t->byte_id[b] = id;
        else if (b >= 0)
            look_alike[b] = id;
    }
    for (unsigned b = 0; b < 256; b++) {
        uint8_t c = (uint8_t)b;
        if (t->byte_id[b] < 0)
            t->byte_id[b] = look_alike[b];
        if (t->byte_id[b] < 0)
            t->byte_id[b] = vocab_find(t, &c, 1);
    }
    return OK;
}

/* --- special tokens --- */

static int by_text(const void *pa, const void *pb)
{
    const struct vocab_special *a = pa, *b = pb;
    int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    if (c != 0)
        return c;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Texts that chat formats are made of, by shape or by name. Some files call such tokens user-defined, like the tokens
 * for runs of spaces; but they must not come out of a message. */
static bool is_markup(const struct tok *t, int32_t id)
{
    static const char *const named[] = {"<start_of_turn>",
                                        "<end_of_turn>",
                                        "<start_of_image>",
                                        "[INST]",
                                        "[/INST]",
                                        "[SYSTEM_PROMPT]",
                                        "[/SYSTEM_PROMPT]",
                                        "[TOOL_CALLS]",
                                        "[TOOL_RESULTS]",
                                        "[/TOOL_RESULTS]",
                                        "[AVAILABLE_TOOLS]",
                                        "[/AVAILABLE_TOOLS]",
                                        "[gMASK]",
                                        "<sop>",
                                        "<eop>",
                                        "<s>",
                                        "<bos>",
                                        NULL};
    static const struct {
        const char *open, *close;
    } shape[] = {{"<|", "|>"}, {"<｜", "｜>"}};
    uint32_t len;
    const char *text = vocab_text(t, id, &len);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        size_t n = strlen(shape[i].open);
        if (len > 2 * n && memcmp(text, shape[i].open, n) == 0 && memcmp(text + len - n, shape[i].close, n) == 0)
            return true;
    }
    return text_in(t, id, named);
}

/* file_type: [n], before load_eog. */
static enum err_code build_special(struct tok *t, const uint8_t *file_type, const char *model_name, struct err *e)
{
    bool strips = strcasestr(model_name, "phi-3") || strcasestr(model_name, "phi3");
    size_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        n += is_special(t->type[i]);
    t->special = calloc(n + 1, sizeof *t->special);
    t->guarded = calloc(t->n, sizeof *t->guarded);
    if (!t->special || !t->guarded)
        return err_set(e, ERR_NOMEM, "no memory for %zu special tokens", n);
    for (int32_t id = 0; id < (int32_t)t->n; id++) {
        uint32_t len;
        const char *text = vocab_text(t, id, &len);
        if (len == 0 || !is_special(t->type[id]))
            continue;
        if (len > MAX_SPECIAL_BYTES)
            return err_set(e, ERR_LIMIT, "special token %d has %u bytes; at most %u are supported", id, len,
                           MAX_SPECIAL_BYTES);
        bool in_content = t->type[id] == VOCAB_USER_DEFINED && file_type[id] == VOCAB_USER_DEFINED && !t->eog[id] &&
                          !is_markup(t, id);
        t->guarded[id] = !in_content;
        t->special_first[(uint8_t)text[0] + 1]++;
        t->special[t->n_special++] = (struct vocab_special){
            .text = (const uint8_t *)text,
            .len = len,
            .id = id,
            .in_plain_text = t->type[id] == VOCAB_USER_DEFINED,
            .in_content = in_content,
            .strips_right =
                strips && !text_is(t, id, "<unk>") && !text_is(t, id, "<s>") && !text_is(t, id, "<|endoftext|>"),
        };
    }
    if (t->n_special > 1)
        qsort(t->special, t->n_special, sizeof *t->special, by_text);
    for (size_t b = 0; b < 256; b++) /* from counts to positions */
        t->special_first[b + 1] += t->special_first[b];
    return OK;
}

/* --- the whole --- */

enum err_code vocab_load(struct tok *t, const struct gguf *g, const struct pretok_traits *bpe, struct err *e)
{
    const char *name = "";
    uint8_t *file_type = NULL;
    enum err_code rc = gguf_opt_str(g, "general.name", &name, e);
    if (rc == OK)
        rc = load_texts(t, g, e);
    if (rc == OK)
        rc = load_scores(t, g, e);
    if (rc == OK)
        rc = load_types(t, g, bpe != NULL, e);
    if (rc == OK)
        rc = load_ids(t, g, bpe, e);
    if (rc == OK)
        rc = build_hash(t, e); /* by the types of the file: "</s>" may be ordinary text as well */
    if (rc == OK && !bpe)
        rc = build_bytes(t, e);
    if (rc == OK && !(file_type = malloc(t->n)))
        rc = err_set(e, ERR_NOMEM, "no memory for the types of %u tokens", t->n);
    if (rc == OK) {
        memcpy(file_type, t->type, t->n);
        rc = load_eog(t, g, e);
    }
    if (rc == OK)
        rc = build_special(t, file_type, name, e);
    free(file_type);
    return rc;
}

void vocab_fini(struct tok *t)
{
    free(t->arena);
    free(t->offset);
    free(t->score);
    free(t->type);
    free(t->eog);
    free(t->guarded);
    free(t->slot);
    free(t->special);
}
