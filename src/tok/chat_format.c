/* SPDX-License-Identifier: MIT
 *
 * The chat formats and how they are recognised: by texts that occur in the source of a template, the first hit decides
 * (architectures.md E). The order matters, for some templates mention what others are known by.
 */
#include "tok/chat_format.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define NONE      {NULL, NULL}
#define TEMPLATE  "tokenizer.chat_template"
#define SHOWN_LEN 40 /* of an unknown template */

static const struct chat_format formats[] = {
    {
        .name = "chatml",
        .start = "",
        .turn = {{"<|im_start|>system\n", "<|im_end|>\n"},
                 {"<|im_start|>user\n", "<|im_end|>\n"},
                 {"<|im_start|>assistant\n", "<|im_end|>\n"},
                 {"\n<tool_response>\n", "\n</tool_response>"}}, /* as Qwen does */
        .tools = {"<|im_start|>user", "<|im_end|>\n"},
        .generate = "<|im_start|>assistant\n",
    },
    {
        .name = "llama2",
        .start = "",
        .turn = {NONE, {"[INST] ", " [/INST]"}, {"", "</s>"}, NONE},
        .system_in_user = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
        .generate = "",
    },
    {
        .name = "llama3",
        .start = "",
        .turn = {{"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
                 {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
                 {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
                 {"<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"}},
        .generate = "<|start_header_id|>assistant<|end_header_id|>\n\n",
        .trims = true,
    },
    {
        .name = "mistral-v1",
        .start = "",
        .turn = {NONE, {" [INST] ", " [/INST]"}, {" ", "</s>"}, NONE},
        .system_in_user = {"", "\n\n"},
        .generate = "",
    },
    {
        .name = "mistral-v3",
        .start = "",
        .turn = {NONE, {"[INST] ", "[/INST]"}, {" ", "</s>"}, NONE},
        .system_in_user = {"", "\n\n"},
        .generate = "",
    },
    {
        .name = "mistral-v3-tekken",
        .start = "",
        .turn = {NONE, {"[INST]", "[/INST]"}, {"", "</s>"}, NONE},
        .system_in_user = {"", "\n\n"},
        .generate = "",
    },
    {
        .name = "mistral-v7",
        .start = "",
        .turn = {{"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"}, {"[INST] ", "[/INST]"}, {" ", "</s>"}, NONE},
        .generate = "",
    },
    {
        .name = "mistral-v7-tekken",
        .start = "",
        .turn = {{"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}, {"[INST]", "[/INST]"}, {"", "</s>"}, NONE},
        .generate = "",
    },
    {
        .name = "gemma",
        .start = "",
        .turn =
            {NONE, {"<start_of_turn>user\n", "<end_of_turn>\n"}, {"<start_of_turn>model\n", "<end_of_turn>\n"}, NONE},
        .system_in_user = {"", "\n\n"},
        .generate = "<start_of_turn>model\n",
        .trims = true,
    },
    {
        .name = "phi3",
        .start = "",
        .turn = {{"<|system|>\n", "<|end|>\n"}, {"<|user|>\n", "<|end|>\n"}, {"<|assistant|>\n", "<|end|>\n"}, NONE},
        .generate = "<|assistant|>\n",
    },
    {
        .name = "phi4",
        .start = "",
        .turn = {{"<|im_start|>system<|im_sep|>", "<|im_end|>"},
                 {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
                 {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"},
                 NONE},
        .generate = "<|im_start|>assistant<|im_sep|>",
    },
    {
        .name = "glm4",
        .start = "[gMASK]<sop>",
        .turn = {{"<|system|>\n", ""}, {"<|user|>\n", ""}, {"<|assistant|>\n", ""}, {"<|observation|>\n", ""}},
        .generate = "<|assistant|>\n",
    },
    {
        .name = "deepseek2",
        .start = "",
        .turn = {{"", "\n\n"}, {"User: ", "\n\n"}, {"Assistant: ", "<｜end▁of▁sentence｜>"}, NONE},
        .generate = "Assistant:",
    },
    {
        .name = "deepseek3",
        .start = "",
        .turn = {{"", "\n\n"}, {"<｜User｜>", ""}, {"<｜Assistant｜>", "<｜end▁of▁sentence｜>"}, NONE},
        .generate = "<｜Assistant｜>",
    },
    {
        .name = "deepseek-coder",
        .start = "",
        .turn = {{"", ""}, {"### Instruction:\n", "\n"}, {"### Response:\n", "\n<|EOT|>\n"}, NONE},
        .generate = "### Response:\n",
    },
    {
        .name = "harmony",
        .start = "",
        .turn = {{"<|start|>developer<|message|># Instructions\n\n", "<|end|>"},
                 {"<|start|>user<|message|>", "<|end|>"},
                 {"<|start|>assistant<|channel|>final<|message|>", "<|end|>"},
                 NONE},
        .generate = "<|start|>assistant",
        .preamble = true,
    },
};

/* Harmony in the templates of models that have no channels, such as those made for tests. */
static const struct chat_format plain_harmony = {
    .name = "harmony",
    .start = "",
    .turn = {{"<|start|>system<|message|>", "<|end|>"},
             {"<|start|>user<|message|>", "<|end|>"},
             {"<|start|>assistant<|message|>", "<|end|>"},
             NONE},
    .generate = "<|start|>assistant",
};

#define N_FORMATS (sizeof formats / sizeof *formats)

const struct chat_format *chat_at(size_t i)
{
    return i < N_FORMATS ? &formats[i] : NULL;
}

const char *chat_name(const struct chat_format *f)
{
    return f->name;
}

const struct chat_format *chat_find(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

enum err_code chat_role_parse(const char *name, enum chat_role *out, struct err *e)
{
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {{"system", CHAT_SYSTEM},
                 {"developer", CHAT_SYSTEM},
                 {"user", CHAT_USER},
                 {"assistant", CHAT_ASSISTANT},
                 {"tool", CHAT_TOOL}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(roles[i].name, name) == 0) {
            *out = roles[i].role;
            return OK;
        }
    char shown[32];
    text_clean(name, strlen(name), shown, sizeof shown);
    return err_set(e, ERR_ARG, "the role of a message is \"%s\"; known are system, developer, user, assistant, tool",
                   shown);
}

/* --- recognition ---------------------------------------------------------------------------------- */

static bool has(const char *source, const char *text)
{
    return strstr(source, text) != NULL;
}

/* Formats with [INST]. */
static const char *recognize_mistral(const char *source)
{
    if (has(source, "[SYSTEM_PROMPT]"))
        return has(source, "[SYSTEM_PROMPT] ") || has(source, "[INST] ") ? "mistral-v7" : "mistral-v7-tekken";
    if (!has(source, "[AVAILABLE_TOOLS]") && !has(source, "' [INST] ' + system_message"))
        return "llama2";
    if (has(source, " [INST]"))
        return "mistral-v1";
    return has(source, "\"[INST]\"") ? "mistral-v3-tekken" : "mistral-v3";
}

const struct chat_format *chat_recognize(const char *source)
{
    const char *name = NULL;
    if (has(source, "<|im_start|>"))
        name = has(source, "<|im_sep|>") ? "phi4" : "chatml";
    else if (has(source, "[INST]"))
        name = recognize_mistral(source);
    else if (has(source, "<|assistant|>") && has(source, "<|end|>"))
        name = "phi3";
    else if (has(source, "[gMASK]<sop>"))
        name = "glm4";
    else if (has(source, "<start_of_turn>"))
        name = "gemma";
    else if (has(source, "<|start_header_id|>"))
        name = "llama3";
    else if (has(source, "<｜Assistant｜>") && has(source, "<｜User｜>"))
        name = "deepseek3";
    else if (has(source, "'Assistant: ' + message['content'] + eos_token"))
        name = "deepseek2";
    else if (has(source, "### Instruction:") && has(source, "<|EOT|>"))
        name = "deepseek-coder";
    else if (has(source, "<|start|>") && (has(source, "<|channel|>") || has(source, "<|message|>")))
        name = "harmony";
    return name ? chat_find(name) : NULL;
}

/* Does the source write text, then a line feed, and then not another one? In a literal it may stand as \n. */
static bool writes_line(const char *source, const char *text)
{
    for (const char *p = source; (p = strstr(p, text));) {
        p += strlen(text);
        size_t n = strncmp(p, "\\n", 2) == 0 ? 2 : *p == '\n' ? 1 : 0;
        if (n && strncmp(p + n, "\\n", 2) != 0 && p[n] != '\n')
            return true;
    }
    return false;
}

/* What the end of a template, where an answer begins, says of thinking. */
static void read_thinking(const char *source, struct chat *c)
{
    const char *tail = NULL;
    for (const char *p = source; (p = strstr(p, "add_generation_prompt")); p++)
        tail = p;
    if (!tail)
        return;
    bool opens = writes_line(tail, "<think>");
    bool skips = has(tail, "<think>\\n\\n</think>") || has(tail, "<think>\n\n</think>");
    if (opens)
        c->thinking = skips ? CHAT_CAN_BOTH : CHAT_MUST_THINK;
    else if (skips)
        c->thinking = CHAT_CAN_SKIP;
    c->opens = opens;
    c->skips_by_default = opens && skips &&
                          (has(tail, "enable_thinking is true") || has(tail, "if enable_thinking %}") ||
                           has(tail, "if enable_thinking -%}"));
}

static void read_traits(const char *source, struct chat *c)
{
    const char *name = c->format->name;
    c->bos = has(source, "bos_token") || has(source, "<bos>") || has(source, "<|begin_of_text|>");
    c->bos_each_turn = strcmp(name, "llama2") == 0 && has(source, "bos_token + '[INST]");
    if (strcmp(name, "chatml") == 0 || strcmp(name, "deepseek3") == 0) {
        read_thinking(source, c);
        c->reasoning_end = has(source, "</think>") ? "</think>" : NULL;
    }
    if (strcmp(name, "chatml") == 0)
        c->has_tool_turns = has(source, "<tool_response>");
    if (strcmp(name, "llama3") == 0)
        c->has_tool_turns = has(source, "ipython");
    if (c->format->preamble && !has(source, "<|channel|>"))
        *c = (struct chat){.format = &plain_harmony, .bos = c->bos};
}

/* Of a format without the source of a template. */
static struct chat plain_chat(const struct chat_format *f)
{
    return (struct chat){
        .format = f,
        .thinking = f->preamble ? CHAT_MUST_THINK : CHAT_NO_THINKING,
        .reasoning_end = f->preamble ? "<|channel|>final<|message|>" : NULL,
        .has_tool_turns = f->turn[CHAT_TOOL].before && strcmp(f->name, "chatml") != 0,
    };
}

/* --- choice --------------------------------------------------------------------------------------- */

/* All names, for messages. */
static const char *list(char out[256])
{
    size_t n = 0;
    for (size_t i = 0; i < N_FORMATS && n < 256; i++)
        n += (size_t)snprintf(out + n, 256 - n, "%s%s", i ? ", " : "", formats[i].name);
    return out;
}

enum err_code chat_of_template(const char *source, struct chat *out, struct err *e)
{
    const struct chat_format *f = chat_recognize(source);
    if (!f) {
        char shown[SHOWN_LEN + 1], names[256];
        text_clean(source, strlen(source), shown, sizeof shown);
        return err_set(e, ERR_UNSUPPORTED,
                       TEMPLATE " is of no known format (\"%s\"); say which with --chat-template NAME: %s", shown,
                       list(names));
    }
    *out = plain_chat(f);
    read_traits(source, out);
    return OK;
}

enum err_code chat_pick(const struct gguf *g, const char *name, struct chat *out, struct err *e)
{
    const char *source = "";
    char names[256];
    if (name && !chat_find(name)) {
        char shown[32];
        text_clean(name, strlen(name), shown, sizeof shown);
        return err_set(e, ERR_ARG, "there is no chat format \"%s\"; known are %s", shown, list(names));
    }
    enum err_code rc = gguf_opt_str(g, TEMPLATE, &source, e);
    if (rc == OK && !*source)
        rc = gguf_opt_str(g, TEMPLATE ".default", &source, e);
    if (name) { /* the file's own template still knows about BOS and thinking, where it is of that format */
        const struct chat_format *f = chat_find(name);
        if (rc == OK && chat_recognize(source) == f)
            return chat_of_template(source, out, e);
        *out = plain_chat(f);
        return OK;
    }
    if (rc != OK)
        return rc;
    if (*source)
        return chat_of_template(source, out, e);
    return err_set(e, ERR_NOT_FOUND,
                   "no " TEMPLATE " in the file: a base model, which continues a text (no --chat); else say its "
                   "format with --chat-template NAME: %s",
                   list(names));
}
