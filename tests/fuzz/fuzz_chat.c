/* SPDX-License-Identifier: MIT
 *
 * Conversations against any input: a byte of settings, the source of a template up to the first NUL, then messages,
 * each a byte (its low two bits the role, the rest the length) and that many bytes. Whatever the template is taken for,
 * no message becomes a special token: the ids hold as many of those as with empty messages.
 */
#include "base/log.h"
#include "lib/chat_vocab.h"
#include "lib/fuzz.h"
#include "tok/chat.h"

#include <string.h>

#define MAX_MESSAGES 64

/* special_type: 3 or 4. Kept: the leak checker sees the pointer. */
static struct tok *built_in(int32_t special_type)
{
    static struct tok *kept[2];
    struct tok **t = &kept[special_type - 3];
    if (*t)
        /* cppcheck-suppress identicalInnerCondition */
        return *t;
    struct buf file = {0};
    struct gguf *g = NULL;
    chat_vocab_make(&file, special_type, true, NULL);
    must(gguf_open_mem(file.data, file.len, &g, NULL) == OK && tok_new(g, NULL, t, NULL) == OK, "the vocabulary loads");
    gguf_close(g);
    buf_free(&file);
    return kept[special_type - 3];
}

static size_t n_special(const struct tok *t, const struct tok_ids *ids)
{
    static bool known[2][1024]; /* per vocabulary */
    static const struct tok *of[2];
    size_t which = t == built_in(4), n = 0;
    if (!of[which]) {
        of[which] = t;
        for (size_t i = 0; chat_vocab_special[i]; i++) {
            struct tok_ids one = {0};
            must(tok_encode(t, chat_vocab_special[i], strlen(chat_vocab_special[i]), TOK_PARSE_SPECIAL, &one, NULL) ==
                         OK &&
                     one.n == 1,
                 "special tokens are found");
            known[which][one.id[0]] = true;
            tok_ids_free(&one);
        }
    }
    for (size_t i = 0; i < ids->n; i++) {
        must(ids->id[i] >= 0 && (uint32_t)ids->id[i] < tok_n_vocab(t), "ids are in the vocabulary");
        n += known[which][ids->id[i]];
    }
    return n;
}

static size_t read_messages(const uint8_t *p, size_t left, struct chat_message *m)
{
    size_t n = 0;
    while (left > 0 && n < MAX_MESSAGES) {
        size_t len = (size_t)(*p >> 2) * (*p & 128u ? 16 : 1);
        len = len < left - 1 ? len : left - 1;
        m[n++] = (struct chat_message){(enum chat_role)(*p & 3u), (const char *)p + 1, len};
        p += 1 + len;
        left -= 1 + len;
    }
    return n;
}

/* The format, without the conversation's system texts where they would make a user turn. */
static void check_counts(const struct chat *c, const struct tok *t, struct chat_message *m, size_t n,
                         const struct chat_options *o, const struct tok_ids *ids)
{
    struct tok_ids plain = {0};
    for (size_t i = 0; i < n; i++)
        if (m[i].len > 0) {
            m[i].content = "x";
            m[i].len = 1;
        }
    must(chat_encode(c, t, m, n, o, &plain, NULL) == OK, "other texts make no difference");
    must(n_special(t, &plain) == n_special(t, ids), "no message becomes a special token");
    tok_ids_free(&plain);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chat_message m[MAX_MESSAGES];
    struct chat c;
    struct err e;
    struct tok_ids ids = {0};
    log_set_level(LOG_ERROR);
    if (size < 2)
        return 0;
    const uint8_t *end = memchr(data + 1, 0, size - 1);
    if (!end)
        return 0;
    struct tok *t = built_in(data[0] & 1u ? 4 : 3);
    struct chat_options o = {.add_generation_prompt = data[0] & 2u,
                             .think = (enum chat_think)((data[0] >> 2 & 3u) % 3),
                             .date = data[0] & 16u ? "2026-11-30" : NULL};
    size_t n = read_messages(end + 1, size - (size_t)(end + 1 - data), m);
    if (chat_of_template((const char *)data + 1, &c, &e) != OK) {
        must(e.code == ERR_UNSUPPORTED && e.msg[0], "an unknown template has a message");
        return 0;
    }
    enum err_code rc = chat_encode(&c, t, m, n, &o, &ids, &e);
    must(rc == OK || rc == ERR_UNSUPPORTED || rc == ERR_ARG, "messages are accepted or refused for a reason");
    must(rc == OK || ids.n == 0, "a refusal leaves nothing");
    if (rc == OK)
        check_counts(&c, t, m, n, &o, &ids);
    tok_ids_free(&ids);
    return 0;
}
