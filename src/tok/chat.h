/* SPDX-License-Identifier: MIT
 *
 * Conversations as token ids. A model says in tokenizer.chat_template how it was taught to see turns, as a program in
 * Jinja. Kvasir does not run that program: it recognises which of the known formats it writes, and writes that format
 * itself, straight to tokens, so that no message can spell a turn of its own (docs/chat.md). Everything here is
 * immutable and may be shared by threads.
 */
#ifndef KVASIR_TOK_CHAT_H
#define KVASIR_TOK_CHAT_H

#include "tok/tok.h"

enum chat_role {
    CHAT_SYSTEM,
    CHAT_USER,
    CHAT_ASSISTANT,
    CHAT_TOOL, /* what a function returned */
    CHAT_ROLE_COUNT
};

/* "system", "developer" (the same), "user", "assistant", "tool"; else ERR_ARG. */
enum err_code chat_role_parse(const char *name, enum chat_role *out, struct err *e) KV_MUST_USE;

struct chat_format; /* opaque: a row of a table */

const struct chat_format *chat_find(const char *name);        /* NULL when there is none */
const struct chat_format *chat_recognize(const char *source); /* of a template; NULL when it is of no known format */
const struct chat_format *chat_at(size_t i);                  /* NULL behind the last one */
const char *chat_name(const struct chat_format *f);

/* Reasoning between <think> and </think>, as far as a template knows it. */
enum chat_thinking {
    CHAT_NO_THINKING,
    CHAT_CAN_SKIP,  /* reasons on its own; an empty block in the prompt keeps it from that */
    CHAT_CAN_BOTH,  /* the prompt opens the block, or holds an empty one */
    CHAT_MUST_THINK /* cannot be kept from it */
};

/* The format of one model, with what its template adds. A plain value. */
struct chat {
    const struct chat_format *format;
    enum chat_thinking thinking;
    bool skips_by_default;     /* of CHAT_CAN_BOTH */
    bool opens;                /* of CHAT_MUST_THINK: the prompt opens the block */
    const char *reasoning_end; /* earlier answers are shown from behind this text on; NULL: whole. Static. */
    bool has_tool_turns;
    bool bos;           /* the template writes BOS, whatever the vocabulary says */
    bool bos_each_turn; /* also before later user turns */
};

/* What a template says. ERR_UNSUPPORTED when it is of no known format: the message shows its beginning and names the
 * option and the formats. */
enum err_code chat_of_template(const char *source, struct chat *out, struct err *e) KV_MUST_USE;

/* The format of a model: the one named (NULL: none is), else the one its template is recognised as. ERR_ARG: no format
 * has that name; ERR_UNSUPPORTED as above; ERR_NOT_FOUND: the file has no template. */
enum err_code chat_pick(const struct gguf *g, const char *name, struct chat *out, struct err *e) KV_MUST_USE;

/* content may be any bytes, and NULL when len is 0. */
struct chat_message {
    enum chat_role role;
    const char *content;
    size_t len;
};

enum chat_think { CHAT_THINK_DEFAULT, CHAT_THINK_ON, CHAT_THINK_OFF };

struct chat_options {
    bool add_generation_prompt; /* the beginning of the assistant's turn, which the model goes on with */
    enum chat_think think;
    const char *date; /* today, "2026-11-30", for formats that tell the model; NULL: not told */
};

/* Appends the ids of a conversation. Those of the special tokens are as the format says, BOS stands at its beginning
 * once, and the rest is as if the whole had been written into one string. ERR_UNSUPPORTED: a tool turn, or a way of
 * thinking, that the format does not have; ERR_ARG: no messages; ERR_LIMIT, ERR_NOMEM. On failure out keeps what it
 * had. */
enum err_code chat_encode(const struct chat *c, const struct tok *t, const struct chat_message *msg, size_t n,
                          const struct chat_options *options, struct tok_ids *out, struct err *e) KV_MUST_USE;

#endif
