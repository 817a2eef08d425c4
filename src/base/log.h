/* SPDX-License-Identifier: MIT
 *
 * One line per event on stderr: time, level, module, message with key=value pairs. The level comes from KVASIR_LOG
 * (error warn info debug; default warn) or log_set_level. Never prompts, keys or tokens. Thread-safe: one write(2)
 * per line.
 */
#ifndef KVASIR_BASE_LOG_H
#define KVASIR_BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_LEVEL_COUNT };

void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);

/* "error" ... "debug" to a level; ERR_ARG names the choices. */
enum err_code log_parse_level(const char *text, enum log_level *out, struct err *e) KV_MUST_USE;

/* Text before every line of this process, for example "rank 2". Copied; at most 31 bytes. Call before threads start. */
void log_set_tag(const char *tag);

void log_line(enum log_level level, const char *module, const char *fmt, ...) KV_PRINTF(3, 4);

#define log_error(module, ...) log_line(LOG_ERROR, module, __VA_ARGS__)
#define log_warn(module, ...)  log_line(LOG_WARN, module, __VA_ARGS__)
#define log_info(module, ...)  log_line(LOG_INFO, module, __VA_ARGS__)
#define log_debug(module, ...)                                                                                         \
    do {                                                                                                               \
        if (log_enabled(LOG_DEBUG))                                                                                    \
            log_line(LOG_DEBUG, module, __VA_ARGS__);                                                                  \
    } while (0)

/* For lines a stranger can cause (a port scan, a neighbour that is refused at every try): at most `burst` a second
 * pass, and the text that passed last does not pass again within LOG_REPEAT_S; the rest are counted and summed up in
 * the next line that passes. One per place in the code, zero-initialised, static. */
#define LOG_REPEAT_S 60u
struct log_limit {
    uint64_t second, text_second, text_hash;
    uint32_t n, dropped;
};
bool log_limit_pass(struct log_limit *l, uint32_t burst, const char *text, uint32_t *dropped);

#endif
