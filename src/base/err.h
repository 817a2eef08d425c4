/* SPDX-License-Identifier: MIT
 *
 * Errors as values. Every fallible function returns enum err_code (0 = OK, negative otherwise) and takes as its
 * last parameter an optional struct err *, which receives the message a user will read. On failure, out-parameters
 * are untouched and nothing is half-owned. Thread-safe: no global state.
 */
#ifndef KVASIR_BASE_ERR_H
#define KVASIR_BASE_ERR_H

#include <stdbool.h>
#include <stdint.h>

/* name, value, text. Values travel on the wire (refusals) and in exit reports: never renumber, only append. */
#define ERR_CODES(X)                                                                                                   \
    X(OK, 0, "ok")                                                                                                     \
    X(ERR_ARG, -1, "bad argument")                                                                                     \
    X(ERR_NOMEM, -2, "out of memory")                                                                                  \
    X(ERR_IO, -3, "input/output error")                                                                                \
    X(ERR_NOT_FOUND, -4, "not found")                                                                                  \
    X(ERR_FORMAT, -5, "malformed data")                                                                                \
    X(ERR_UNSUPPORTED, -6, "not supported")                                                                            \
    X(ERR_RANGE, -7, "out of range")                                                                                   \
    X(ERR_LIMIT, -8, "over a limit")                                                                                   \
    X(ERR_AUTH, -9, "not authentic")                                                                                   \
    X(ERR_MISMATCH, -10, "mismatch")                                                                                   \
    X(ERR_PROTOCOL, -11, "protocol violation")                                                                         \
    X(ERR_TIMEOUT, -12, "timed out")                                                                                   \
    X(ERR_CLOSED, -13, "connection closed")                                                                            \
    X(ERR_STALE, -14, "stale state")                                                                                   \
    X(ERR_BUSY, -15, "busy")                                                                                           \
    X(ERR_CANCELLED, -16, "cancelled")                                                                                 \
    X(ERR_DEVICE, -17, "device failed")                                                                                \
    X(ERR_NUMERIC, -18, "not a finite number")                                                                         \
    X(ERR_INTERNAL, -19, "internal error")

enum err_code {
#define X(name, value, text) name = (value),
    ERR_CODES(X)
#undef X
};

#define KV_MUST_USE        __attribute__((warn_unused_result))
#define KV_PRINTF(fmt, va) __attribute__((format(printf, fmt, va)))

struct err {
    enum err_code code;
    int os;         /* errno where the cause was a system call, else 0 */
    int64_t offset; /* byte offset in the input that was wrong, -1 where there is none */
    char msg[320];  /* one line, says what was wrong, where, and what would be right */
};

/* Fills *e (which may be NULL) and returns code, so that `return err_set(e, ERR_X, ...)` reads well. A message that is
 * too long is cut between characters; those below keep what they append, or put something before, and say "..." where
 * they cut. No argument may point into *e. */
enum err_code err_set(struct err *e, enum err_code code, const char *fmt, ...) KV_PRINTF(3, 4);

/* As err_set, for a failed system call: appends ": " and the text of errno os. */
enum err_code err_set_os(struct err *e, enum err_code code, int os, const char *fmt, ...) KV_PRINTF(4, 5);

/* As err_set, with the byte offset where the input was wrong (also appended to the message). */
enum err_code err_set_at(struct err *e, enum err_code code, int64_t offset, const char *fmt, ...) KV_PRINTF(4, 5);

/* Puts "text: " before an existing message, naming the outer context. Returns e's code (ERR_INTERNAL when e is NULL).
 */
enum err_code err_prefix(struct err *e, const char *fmt, ...) KV_PRINTF(2, 3);

/* "ERR_FORMAT" / "malformed data". Unknown values give "ERR_UNKNOWN" / "unknown error". Static storage. */
const char *err_name(enum err_code code);
const char *err_text(enum err_code code);

/* Is the value one of ERR_CODES? For codes that came from a peer. */
bool err_known(int32_t value);

#endif
