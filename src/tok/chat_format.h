/* SPDX-License-Identifier: MIT
 *
 * The table of chat formats, shared by chat.c and chat_format.c: what stands around the text of a turn.
 */
#ifndef KVASIR_TOK_CHAT_FORMAT_H
#define KVASIR_TOK_CHAT_FORMAT_H

#include "tok/chat.h"

struct chat_turn {
    const char *before, *after; /* NULL: there is no such turn */
};

struct chat_format {
    const char *name;
    const char *start; /* before everything, behind BOS */
    struct chat_turn turn[CHAT_ROLE_COUNT];
    struct chat_turn tools;          /* around tool turns that follow each other */
    struct chat_turn system_in_user; /* without system turns: the text enters the next user turn, like this */
    const char *generate;            /* the beginning of an answer */
    bool trims;                      /* white space around the text of each message is dropped */
    bool preamble;                   /* Harmony's: what the model is, the date, the channels */
};

#endif
