/* SPDX-License-Identifier: MIT
 *
 * For clang-tidy only (tools/lint.sh includes it before every file): tells the analyzer, which looks at one source file
 * at a time, that err_set and its sisters never return OK, so that a path through an error is not followed as if it had
 * succeeded.
 */
#ifndef KVASIR_TOOLS_LINT_MODEL_H
#define KVASIR_TOOLS_LINT_MODEL_H

#include "base/err.h"

#define err_set(e, code, ...)            (err_set((e), (code), __VA_ARGS__), (code))
#define err_set_os(e, code, os, ...)     (err_set_os((e), (code), (os), __VA_ARGS__), (code))
#define err_set_at(e, code, offset, ...) (err_set_at((e), (code), (offset), __VA_ARGS__), (code))
#define err_prefix(e, ...)               (err_prefix((e), __VA_ARGS__), ERR_INTERNAL)

#endif
