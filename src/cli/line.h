/* SPDX-License-Identifier: MIT
 *
 * Lines that somebody types, or that come from a pipe. On a terminal libedit edits them and keeps a history in a file;
 * signals come through the descriptor of signals.h, so that Ctrl-C is an answer like any other. Main thread.
 */
#ifndef KVASIR_CLI_LINE_H
#define KVASIR_CLI_LINE_H

#include "base/buf.h"

struct line_input; /* opaque */

enum line_got {
    LINE_TEXT,
    LINE_END,       /* Ctrl-D on an empty line, or the end of the pipe */
    LINE_INTERRUPT, /* Ctrl-C; what was typed is dropped */
    LINE_TERMINATE, /* SIGTERM */
};

/* history: name of the file in Kvasir's state folder ($XDG_STATE_HOME/kvasir, ~/.local/state/kvasir), which only its
 * owner can read; NULL: none. Without a folder there is a history of this run only. */
enum err_code line_open(int signal_fd, const char *history, struct line_input **out, struct err *e) KV_MUST_USE;
void line_close(struct line_input *l);

/* Edited on a terminal? (Standard input and output both are one.) Else there is no prompt. */
bool line_is_edited(const struct line_input *l);

/* The next line, without its end, replaces what is in out. */
enum line_got line_read(struct line_input *l, const char *prompt, struct buf *out);

/* Remembers a line: in this run, and in the file. */
void line_remember(struct line_input *l, const char *text);

#endif
