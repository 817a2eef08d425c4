/* SPDX-License-Identifier: MIT */
#include "lib/chat_vocab.h"

#include "lib/vocab_gguf.h"

#include <string.h>

const char *const chat_vocab_special[] = {
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_sep|>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "[gMASK]",
    "<sop>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    NULL,
};

void chat_vocab_make(struct buf *out, int32_t special_type, bool add_bos, const char *chat_template)
{
    static const char *const merge[] = {"u s", "us e", "use r", "H e", "l l", "Ċ H"};
    static const char *const more[] = {"us", "use", "user", "He", "ll", "ĊH", "\n\n", "<think>", "</think>"};
    enum { max = 512, n_merges = sizeof merge / sizeof *merge, n_more = sizeof more / sizeof *more };
    char letter[256][3];
    const char *text[max];
    int32_t type[max];
    uint32_t n = 0, bos = 0;
    for (unsigned b = 0, next = 0x100; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        unsigned c = itself ? b : next++;
        letter[b][0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        letter[b][1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 0x3f));
        letter[b][2] = 0;
        text[n] = letter[b];
        type[n++] = 1;
    }
    for (size_t i = 0; i < n_more; i++) {
        text[n] = more[i];
        type[n++] = i < n_merges ? 1 : 4;
    }
    bos = n;
    for (size_t i = 0; chat_vocab_special[i]; i++) {
        text[n] = chat_vocab_special[i];
        type[n++] = special_type;
    }
    struct vocab_gguf v = {0};
    vocab_gguf_str(&v, "tokenizer.ggml.model", "gpt2");
    vocab_gguf_str(&v, "tokenizer.ggml.pre", "qwen2");
    vocab_gguf_strs(&v, "tokenizer.ggml.tokens", text, n);
    vocab_gguf_i32s(&v, "tokenizer.ggml.token_type", type, n);
    vocab_gguf_strs(&v, "tokenizer.ggml.merges", merge, n_merges);
    vocab_gguf_u32(&v, "tokenizer.ggml.bos_token_id", bos);
    vocab_gguf_u32(&v, "tokenizer.ggml.eos_token_id", bos + 1);
    vocab_gguf_bool(&v, "tokenizer.ggml.add_bos_token", add_bos);
    if (chat_template)
        vocab_gguf_str(&v, "tokenizer.chat_template", chat_template);
    vocab_gguf_end(&v, out);
}
