/* SPDX-License-Identifier: MIT
 *
 * The tokenizer against any input. "GGUF...": a vocabulary, which is loaded and, if it is accepted, made to encode and
 * decode its own file's bytes. Anything else: a byte of flags and a text for the vocabularies built in here:
 * SentencePiece, or, with bit 4 of the flags, BPE with the pre-tokenizer that the next byte names.
 */
#include "base/log.h"
#include "base/text.h"
#include "lib/fuzz.h"
#include "lib/vocab_gguf.h"
#include "tok/pretok.h"
#include "tok/tok.h"

#include <stdio.h>
#include <string.h>

/* Bytes, some merges, and special tokens of each kind. */
static struct tok *built_in(void)
{
    static const char *const extra[] = {"\xe2\x96\x81", "a",     "b",  "ab",   "ba",    "abab",
                                        "▁a",           "<|x|>", "<|", "\n\n", "\n\n\n"};
    static const int32_t extra_type[] = {1, 1, 1, 1, 1, 1, 1, 3, 3, 4, 4};
    enum { n_extra = sizeof extra_type / sizeof *extra_type, n = 3 + 256 + n_extra };
    static char name[256][8];
    const char *text[n] = {"<unk>", "<s>", "</s>"};
    int32_t type[n] = {2, 3, 3};
    float score[n] = {0};
    for (unsigned i = 0; i < 256; i++) {
        snprintf(name[i], sizeof name[i], "<0x%02X>", i);
        text[3 + i] = name[i];
        type[3 + i] = 6;
    }
    for (int i = 0; i < n_extra; i++) {
        text[259 + i] = extra[i];
        type[259 + i] = extra_type[i];
        score[259 + i] = (float)(i % 4);
    }
    struct vocab_gguf v = {0};
    struct buf file = {0};
    struct gguf *g = NULL;
    struct tok *t = NULL;
    vocab_gguf_str(&v, "tokenizer.ggml.model", "llama");
    vocab_gguf_strs(&v, "tokenizer.ggml.tokens", text, n);
    vocab_gguf_f32s(&v, "tokenizer.ggml.scores", score, n);
    vocab_gguf_i32s(&v, "tokenizer.ggml.token_type", type, n);
    vocab_gguf_bool(&v, "tokenizer.ggml.add_space_prefix", false);
    vocab_gguf_end(&v, &file);
    must(gguf_open_mem(file.data, file.len, &g, NULL) == OK && tok_new(g, NULL, &t, NULL) == OK,
         "the vocabulary loads");
    gguf_close(g);
    buf_free(&file);
    return t;
}

/* The letters, some merges, and special tokens of each kind; pre-tokenizer number `kind`. */
static struct tok *built_in_bpe(size_t kind)
{
    static const char *const extra[] = {"ab", "ba", "abab", "Ġa", "<|x|>", "<|", "\n\n", "<|start|>", "</s>", "ï¿½"};
    static const int32_t extra_type[] = {1, 1, 1, 1, 3, 3, 4, 3, 1, 1};
    static const char *const merge[] = {"a b", "b a", "ab ab", "Ġ a", "ï ¿", "< /"};
    enum { n_extra = sizeof extra_type / sizeof *extra_type, n = 256 + n_extra };
    static char letter[256][3];
    const char *text[n];
    int32_t type[n];
    for (unsigned b = 0, next = 0x100; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        unsigned c = itself ? b : next++;
        letter[b][0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        letter[b][1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 0x3f));
        text[b] = letter[b];
        type[b] = 1;
    }
    for (int i = 0; i < n_extra; i++) {
        text[256 + i] = extra[i];
        type[256 + i] = extra_type[i];
    }
    char pre[64];
    snprintf(pre, sizeof pre, "%.*s", (int)strcspn(pretok_names(kind), " "), pretok_names(kind));
    struct vocab_gguf v = {0};
    struct buf file = {0};
    struct gguf *g = NULL;
    struct tok *t = NULL;
    vocab_gguf_str(&v, "tokenizer.ggml.model", "gpt2");
    vocab_gguf_str(&v, "tokenizer.ggml.pre", pre);
    vocab_gguf_strs(&v, "tokenizer.ggml.tokens", text, n);
    vocab_gguf_i32s(&v, "tokenizer.ggml.token_type", type, n);
    vocab_gguf_strs(&v, "tokenizer.ggml.merges", merge, sizeof merge / sizeof *merge);
    vocab_gguf_end(&v, &file);
    must(gguf_open_mem(file.data, file.len, &g, NULL) == OK && tok_new(g, NULL, &t, NULL) == OK,
         "each pre-tokenizer loads");
    gguf_close(g);
    buf_free(&file);
    return t;
}

/* Encodes and decodes. exact: the pieces, special tokens shown, must be the text again. */
static void there_and_back(const struct tok *t, const uint8_t *text, size_t len, unsigned flags, bool exact)
{
    struct tok_ids ids = {0};
    struct buf pieces = {0}, shown = {0};
    struct tok_stream s;
    must(tok_encode(t, (const char *)text, len, flags, &ids, NULL) == OK, "any text can be encoded");
    tok_stream_init(&s, t, flags & 4u, flags & 8u);
    for (size_t i = 0; i < ids.n; i++) {
        must(ids.id[i] >= 0 && (uint32_t)ids.id[i] < tok_n_vocab(t), "ids are in the vocabulary");
        must(tok_piece(t, ids.id[i], true, &pieces, NULL) == OK, "each id has a piece");
        buf_clear(&shown);
        must(tok_stream_put(&s, ids.id[i], &shown, NULL) == OK, "each id can be streamed");
        must(text_valid(shown.data, shown.len), "only whole characters come out");
        (void)tok_is_eog(t, ids.id[i]);
    }
    buf_clear(&shown);
    must(tok_stream_end(&s, &shown, NULL) == OK && text_valid(shown.data, shown.len), "the end is whole too");
    if (exact)
        must(pieces.len == len && (len == 0 || memcmp(pieces.data, text, len) == 0), "the text comes back");
    tok_ids_free(&ids);
    buf_free(&pieces);
    buf_free(&shown);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tok *t;
    log_set_level(LOG_ERROR); /* a vocabulary may warn of itself */
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
        struct gguf *g = NULL;
        struct tok *own = NULL;
        struct err e;
        if (gguf_open_mem(data, size, &g, &e) != OK)
            return 0;
        if (tok_new(g, NULL, &own, &e) == OK)
            there_and_back(own, data, size < 4096 ? size : 4096, 3, false);
        tok_free(own);
        gguf_close(g);
        return 0;
    }
    if (size >= 2 && data[0] & 16u) {
        static struct tok *bpe[32];
        size_t n_kinds = 0;
        while (n_kinds < 32 && pretok_names(n_kinds))
            n_kinds++;
        must(n_kinds > 0, "there are pre-tokenizers");
        size_t kind = data[1] % n_kinds;
        if (!bpe[kind])
            bpe[kind] = built_in_bpe(kind);
        unsigned flags = data[0] & ~(unsigned)TOK_ADD_SPECIAL;
        there_and_back(bpe[kind], data + 2, size - 2, flags, text_valid(data + 2, size - 2));
        return 0;
    }
    if (!t)
        t = built_in(); /* kept: the leak checker sees the pointer */
    if (size > 0) {
        unsigned flags = data[0] & ~(unsigned)TOK_ADD_SPECIAL;
        bool has_mark = memmem(data + 1, size - 1, "\xe2\x96\x81", 3) != NULL; /* would come back as a space */
        there_and_back(t, data + 1, size - 1, flags, !has_mark);
    }
    return 0;
}
