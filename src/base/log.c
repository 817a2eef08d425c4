/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include "base/clock.h"
#include "base/hash.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[LOG_LEVEL_COUNT] = {"error", "warn", "info", "debug"};
static _Atomic int current_level = -1; /* -1: not yet read from the environment */
static char line_tag[32];
static pthread_mutex_t limit_mutex = PTHREAD_MUTEX_INITIALIZER;

enum err_code log_parse_level(const char *text, enum log_level *out, struct err *e)
{
    for (int i = 0; i < LOG_LEVEL_COUNT; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (enum log_level)i;
            return OK;
        }
    }
    return err_set(e, ERR_ARG, "log level '%s' is not one of: error warn info debug", text);
}

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, (int)level);
}

bool log_enabled(enum log_level level)
{
    int cur = atomic_load_explicit(&current_level, memory_order_relaxed);
    if (cur < 0) {
        enum log_level from_env = LOG_WARN;
        const char *env = getenv("KVASIR_LOG");
        if (env && log_parse_level(env, &from_env, NULL) != OK)
            from_env = LOG_WARN;
        cur = (int)from_env;
        atomic_store(&current_level, cur);
    }
    return (int)level <= cur;
}

void log_set_tag(const char *tag)
{
    snprintf(line_tag, sizeof line_tag, "%s", tag);
}

void log_line(enum log_level level, const char *module, const char *fmt, ...)
{
    if (!log_enabled(level))
        return;
    char line[1024];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s%s%s [%s] ", ts.tv_nsec / 1000000, line_tag,
                          line_tag[0] ? " " : "", level_names[level], module);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n, fmt, ap);
    va_end(ap);
    if (m > 0)
        n += (size_t)m;
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    for (size_t i = 0; i < n; i++) { /* one event, one line, whatever a peer or a file put into it */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = ' ';
    }
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* nowhere to say it */
}

static uint64_t hash_text(const char *text)
{
    uint64_t h = 0;
    for (; *text; text++)
        h = hash_mix64(h + (unsigned char)*text + 1);
    return h;
}

bool log_limit_pass(struct log_limit *l, uint32_t burst, const char *text, uint32_t *dropped)
{
    uint64_t second = clock_now_ns() / CLOCK_NS_PER_S, hash = hash_text(text);
    pthread_mutex_lock(&limit_mutex);
    if (second != l->second) {
        l->second = second;
        l->n = 0;
    }
    bool again = hash == l->text_hash && second < l->text_second + LOG_REPEAT_S;
    bool pass = l->n < burst && !again;
    if (pass) {
        l->text_hash = hash;
        l->text_second = second;
        l->n++;
        *dropped = l->dropped;
        l->dropped = 0;
    } else {
        l->dropped++;
    }
    pthread_mutex_unlock(&limit_mutex);
    return pass;
}
