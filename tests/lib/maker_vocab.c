/* SPDX-License-Identifier: MIT
 *
 * The vocabularies of the model maker.
 *
 * SPM: the head (unknown, begin, end), 256 byte tokens, "▁" (U+2581), the 94 printable ASCII characters, words, the
 * other special tokens. BPE: 256 bytes in their printable form, words, special tokens, padding.
 *
 * Words have one, two and three syllables, each length first without and then with a space before it. A word is a
 * shorter word and one syllable, both of which come earlier, so a tokenizer can merge its way to each of them (with BPE
 * to those of one and two syllables only: merges for the rest would make files large for nothing).
 */
#include "lib/maker_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_BYTES      256u
#define N_ASCII      94u /* 0x21 to 0x7e */
#define MERGE_BYTES  (MAKER_PIECE_BYTES + 1)
#define N_SYLLABLES  100u /* 20 consonants x 5 vowels */
#define MAX_MERGES   (2u * N_SYLLABLES + 2u * N_SYLLABLES * N_SYLLABLES)
#define SPM_SPACE    "\xe2\x96\x81"
#define BPE_SPACE    "\xc4\xa0" /* U+0120 */
#define TYPE_NORMAL  1
#define TYPE_UNKNOWN 2
#define TYPE_CONTROL 3
#define TYPE_USER    4
#define TYPE_UNUSED  5
#define TYPE_BYTE    6

#define CHATML                                                                                                         \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"     \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define LLAMA3_CHAT                                                                                                    \
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] + "        \
    "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"                                                        \
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
#define GEMMA_CHAT                                                                                                     \
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' + "    \
    "m['content'] + '<end_of_turn>\\n' }}{% endfor %}"                                                                 \
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
#define PHI3_CHAT                                                                                                      \
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}"                \
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
#define HARMONY_CHAT                                                                                                   \
    "{% for m in messages %}{{ '<|start|>' + m['role'] + '<|message|>' + m['content'] + '<|end|>' }}{% endfor %}"      \
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}{# <|channel|> #}"
#define GLM_CHAT                                                                                                       \
    "[gMASK]<sop>{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] }}{% endfor %}"                   \
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"

struct vocab {
    const char *pre;
    const char *head[5];  /* SPM: before the bytes */
    const char *tail[12]; /* after the words */
    const char *bos, *eos, *unk, *pad, *eot;
    const char *chat;
    uint32_t real_size, real_text; /* the family's own size, and where its special tokens begin: padding follows them */
    bool bpe, add_bos, space_prefix;
};

enum vocab_kind { VOCAB_LLAMA, VOCAB_LLAMA3, VOCAB_QWEN2, VOCAB_QWEN35, VOCAB_GEMMA, VOCAB_PHI3, VOCAB_OSS, VOCAB_GLM };

static const struct vocab vocabs[] = {
    [VOCAB_LLAMA] = {.pre = "default",
                     .head = {"<unk>", "<s>", "</s>"},
                     .bos = "<s>",
                     .eos = "</s>",
                     .unk = "<unk>",
                     .add_bos = true,
                     .space_prefix = true},
    [VOCAB_LLAMA3] = {.bpe = true,
                      .pre = "llama-bpe",
                      .tail = {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                               "<|eom_id|>", "<|eot_id|>"},
                      .bos = "<|begin_of_text|>",
                      .eos = "<|eot_id|>",
                      .add_bos = true,
                      .chat = LLAMA3_CHAT,
                      .real_size = 128256,
                      .real_text = 128000},
    [VOCAB_QWEN2] = {.bpe = true,
                     .pre = "qwen2",
                     .tail = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>",
                              "<|fim_suffix|>", "<think>", "</think>"},
                     .bos = "<|endoftext|>",
                     .eos = "<|im_end|>",
                     .pad = "<|endoftext|>",
                     .chat = CHATML,
                     .real_size = 151936,
                     .real_text = 151643},
    [VOCAB_QWEN35] = {.bpe = true,
                      .pre = "qwen35",
                      .tail = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>",
                               "<|fim_suffix|>", "<think>", "</think>"},
                      .bos = "<|endoftext|>",
                      .eos = "<|im_end|>",
                      .pad = "<|endoftext|>",
                      .chat = CHATML,
                      .real_size = 248320,
                      .real_text = 248044},
    [VOCAB_GEMMA] = {.pre = "default",
                     .head = {"<pad>", "<eos>", "<bos>", "<unk>"},
                     .tail = {"<start_of_turn>", "<end_of_turn>"},
                     .bos = "<bos>",
                     .eos = "<eos>",
                     .unk = "<unk>",
                     .pad = "<pad>",
                     .eot = "<end_of_turn>",
                     .add_bos = true,
                     .chat = GEMMA_CHAT},
    [VOCAB_PHI3] = {.pre = "default",
                    .head = {"<unk>", "<s>", "</s>"},
                    .tail = {"<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"},
                    .bos = "<s>",
                    .eos = "<|endoftext|>",
                    .unk = "<unk>",
                    .pad = "<|endoftext|>",
                    .add_bos = true,
                    .space_prefix = true,
                    .chat = PHI3_CHAT},
    [VOCAB_OSS] = {.bpe = true,
                   .pre = "gpt-4o",
                   .tail = {"<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>",
                            "<|start|>", "<|end|>", "<|message|>", "<|call|>"},
                   .bos = "<|startoftext|>",
                   .eos = "<|return|>",
                   .pad = "<|endoftext|>",
                   .chat = HARMONY_CHAT,
                   .real_size = 201088,
                   .real_text = 199998},
    [VOCAB_GLM] = {.bpe = true,
                   .pre = "glm4",
                   .tail = {"<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
                            "<|assistant|>", "<|observation|>", "<think>", "</think>"},
                   .bos = "[gMASK]",
                   .eos = "<|endoftext|>",
                   .pad = "<|endoftext|>",
                   .eot = "<|user|>",
                   .chat = GLM_CHAT,
                   .real_size = 151552,
                   .real_text = 151329},
};

static const struct vocab *vocab_of(const struct maker_params *p)
{
    static const enum vocab_kind kind[MAKER_FAMILY_COUNT] = {
        [MAKER_LLAMA] = VOCAB_LLAMA,    [MAKER_QWEN2] = VOCAB_QWEN2,   [MAKER_QWEN3] = VOCAB_QWEN2,
        [MAKER_QWEN3MOE] = VOCAB_QWEN2, [MAKER_QWEN35] = VOCAB_QWEN35, [MAKER_QWEN35MOE] = VOCAB_QWEN35,
        [MAKER_GEMMA3] = VOCAB_GEMMA,   [MAKER_PHI3] = VOCAB_PHI3,     [MAKER_GPT_OSS] = VOCAB_OSS,
        [MAKER_GLM4MOE] = VOCAB_GLM};
    return &vocabs[p->family == MAKER_LLAMA && p->bpe ? VOCAB_LLAMA3 : kind[p->family]];
}

static uint32_t n_names(const char *const *name, size_t max)
{
    uint32_t n = 0;
    while (n < max && name[n])
        n++;
    return n;
}

static uint32_t n_head(const struct vocab *v)
{
    return n_names(v->head, sizeof v->head / sizeof *v->head);
}

static uint32_t n_tail(const struct vocab *v)
{
    return n_names(v->tail, sizeof v->tail / sizeof *v->tail);
}

/* Where the words begin. */
static uint32_t first_word(const struct vocab *v)
{
    return n_head(v) + N_BYTES + (v->bpe ? 0 : 1 + N_ASCII);
}

/* Where the words end and the other special tokens begin. */
static uint32_t first_tail(const struct vocab *v, uint32_t n_vocab)
{
    return n_vocab == v->real_size ? v->real_text : n_vocab - n_tail(v);
}

/* Word i of the `of` = 100^n words of n syllables. The multiplier is coprime with 100, so this is a permutation. */
static void spell(uint32_t i, uint32_t of, const char *before, char out[MAKER_PIECE_BYTES])
{
    static const char consonants[] = "bcdfghjklmnpqrstvwxz", vowels[] = "aeiou";
    uint32_t rest = (uint32_t)((uint64_t)i * 7919u % of);
    size_t len = strlen(before);

    memcpy(out, before, len);
    for (of /= N_SYLLABLES; of > 0; of /= N_SYLLABLES) {
        uint32_t s = rest / of;
        rest %= of;
        out[len++] = consonants[s / 5];
        out[len++] = vowels[s % 5];
    }
    out[len] = '\0';
}

static void word(uint32_t i, const char *space, char out[MAKER_PIECE_BYTES])
{
    uint32_t of = N_SYLLABLES;
    while (i >= 2 * of) {
        i -= 2 * of;
        of *= N_SYLLABLES;
    }
    spell(i % of, of, i < of ? "" : space, out);
}

/* The i-th of the 256 characters that stand for bytes in a BPE vocabulary, in the order of their code points: those of
 * Latin-1 that can be printed, then U+0100 to U+0143. */
static void byte_symbol(uint32_t i, char out[MAKER_PIECE_BYTES])
{
    uint32_t c = i < 94 ? 0x21 + i : i < 106 ? 0xa1 + (i - 94) : i < 188 ? 0xae + (i - 106) : 0x100 + (i - 188);
    size_t len = 0;
    if (c >= 0x80)
        out[len++] = (char)(0xc0 | (c >> 6));
    out[len++] = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    out[len] = '\0';
}

/* Text of token i, and its type. */
static int32_t token(const struct vocab *v, uint32_t n_vocab, uint32_t i, char out[MAKER_PIECE_BYTES])
{
    uint32_t head = n_head(v), tail = first_tail(v, n_vocab);

    if (i < head) {
        snprintf(out, MAKER_PIECE_BYTES, "%s", v->head[i]);
        return v->unk && strcmp(out, v->unk) == 0 ? TYPE_UNKNOWN : TYPE_CONTROL;
    }
    if (i >= tail) {
        if (i - tail >= n_tail(v)) {
            snprintf(out, MAKER_PIECE_BYTES, "[PAD%u]", i);
            return TYPE_UNUSED;
        }
        snprintf(out, MAKER_PIECE_BYTES, "%s", v->tail[i - tail]);
        return strstr(out, "think>") ? TYPE_USER : TYPE_CONTROL;
    }
    if (i >= first_word(v)) {
        word(i - first_word(v), v->bpe ? BPE_SPACE : SPM_SPACE, out);
    } else if (v->bpe) {
        byte_symbol(i - head, out);
    } else if (i < head + N_BYTES) {
        snprintf(out, MAKER_PIECE_BYTES, "<0x%02X>", i - head);
        return TYPE_BYTE;
    } else if (i == head + N_BYTES) {
        snprintf(out, MAKER_PIECE_BYTES, "%s", SPM_SPACE);
    } else {
        snprintf(out, MAKER_PIECE_BYTES, "%c", (int)('!' + (i - head - N_BYTES - 1)));
    }
    return TYPE_NORMAL;
}

void maker_piece(uint32_t i, char out[MAKER_PIECE_BYTES])
{
    (void)token(&vocabs[VOCAB_LLAMA], MAKER_MAX_VOCAB, i, out);
}

uint32_t maker_min_vocab(const struct maker_params *p)
{
    const struct vocab *v = vocab_of(p);
    return n_head(v) + N_BYTES + 1 + n_tail(v);
}

bool maker_token_is_quiet(const struct maker_params *p, uint32_t i)
{
    const struct vocab *v = vocab_of(p);
    uint32_t head = n_head(v);
    if (i >= first_tail(v, p->n_vocab))
        return true;
    return v->bpe ? i >= N_ASCII && i < N_BYTES : i < head + N_BYTES;
}

/* "ba" is b and a; " ba", "bace" and " bace" are what stands before their last syllable, and that. */
static void merge_of(const char *piece, char out[MERGE_BYTES])
{
    size_t len = strlen(piece), left = len == 2 ? 1 : len - 2;
    memcpy(out, piece, left);
    out[left] = ' ';
    memcpy(out + left + 1, piece + left, len - left + 1);
}

static enum err_code put_merges(struct gguf_context *meta, const struct vocab *v, uint32_t n_vocab, struct err *e)
{
    uint32_t n_word = first_tail(v, n_vocab) - first_word(v);
    uint32_t n = n_word < MAX_MERGES ? n_word : MAX_MERGES;
    char(*text)[MERGE_BYTES] = calloc(n, sizeof *text);
    const char **merge = calloc(n, sizeof *merge);
    enum err_code rc = OK;

    if (text && merge) {
        for (uint32_t i = 0; i < n; i++) {
            char piece[MAKER_PIECE_BYTES];
            word(i, BPE_SPACE, piece);
            merge_of(piece, text[i]);
            merge[i] = text[i];
        }
        gguf_set_arr_str(meta, "tokenizer.ggml.merges", merge, n);
    } else {
        rc = err_set(e, ERR_NOMEM, "maker: no memory for %u merges", n);
    }
    free(merge);
    free(text);
    return rc;
}

static enum err_code put_tokens(struct gguf_context *meta, const struct vocab *v, uint32_t n, struct err *e)
{
    char(*text)[MAKER_PIECE_BYTES] = calloc(n, sizeof *text);
    const char **piece = calloc(n, sizeof *piece);
    float *score = calloc(n, sizeof *score);
    int32_t *type = calloc(n, sizeof *type);
    uint32_t first_text = n_head(v) + N_BYTES;
    enum err_code rc = OK;

    if (text && piece && score && type) {
        for (uint32_t i = 0; i < n; i++) {
            type[i] = token(v, n, i, text[i]);
            piece[i] = text[i];
            /* Longer words are better merges than shorter ones, but a longer one needs its parts first. */
            score[i] = i < first_text ? 0.0f : -(float)(i - first_text);
        }
        gguf_set_arr_str(meta, "tokenizer.ggml.tokens", piece, n);
        if (!v->bpe)
            gguf_set_arr_data(meta, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, score, n);
        gguf_set_arr_data(meta, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, type, n);
    } else {
        rc = err_set(e, ERR_NOMEM, "maker: no memory for a vocabulary of %u", n);
    }
    free(type);
    free(score);
    free(piece);
    free(text);
    return rc;
}

static void put_id(struct gguf_context *meta, const char *key, const struct vocab *v, uint32_t n_vocab,
                   const char *text)
{
    uint32_t id = 0;
    if (!text)
        return;
    for (uint32_t i = 0; i < n_head(v); i++)
        if (strcmp(v->head[i], text) == 0)
            id = i;
    for (uint32_t i = 0; i < n_tail(v); i++)
        if (strcmp(v->tail[i], text) == 0)
            id = first_tail(v, n_vocab) + i;
    gguf_set_val_u32(meta, key, id);
}

enum err_code maker_put_vocab(struct gguf_context *meta, const struct maker_params *p, struct err *e)
{
    const struct vocab *v = vocab_of(p);
    uint32_t n = p->n_vocab;
    enum err_code rc;

    gguf_set_val_str(meta, "tokenizer.ggml.model", v->bpe ? "gpt2" : "llama");
    gguf_set_val_str(meta, "tokenizer.ggml.pre", v->pre);
    rc = put_tokens(meta, v, n, e);
    if (rc == OK && v->bpe)
        rc = put_merges(meta, v, n, e);
    if (rc != OK)
        return rc;
    put_id(meta, "tokenizer.ggml.unknown_token_id", v, n, v->unk);
    put_id(meta, "tokenizer.ggml.bos_token_id", v, n, v->bos);
    put_id(meta, "tokenizer.ggml.eos_token_id", v, n, v->eos);
    put_id(meta, "tokenizer.ggml.eot_token_id", v, n, v->eot);
    put_id(meta, "tokenizer.ggml.padding_token_id", v, n, v->pad);
    gguf_set_val_bool(meta, "tokenizer.ggml.add_bos_token", v->add_bos);
    gguf_set_val_bool(meta, "tokenizer.ggml.add_eos_token", false);
    if (!v->bpe)
        gguf_set_val_bool(meta, "tokenizer.ggml.add_space_prefix", v->space_prefix);
    if (v->chat)
        gguf_set_val_str(meta, "tokenizer.chat_template", v->chat);
    return OK;
}
