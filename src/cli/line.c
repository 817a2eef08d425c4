/* SPDX-License-Identifier: MIT
 *
 * The history file has one entry a line and is only appended to, so that programs that run side by side do not lose
 * each other's entries; when it has grown too long, it is cut at the next start.
 */
#include "cli/line.h"

#include "base/io.h"
#include "base/log.h"
#include "cli/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_ENTRIES   1000
#define HISTORY_MAX_BYTES (4u << 20)
#define MAX_LINE          (8u << 20)

struct line_input {
    int signal_fd;
    char history_path[PATH_MAX]; /* "": none */
    const char *prompt;
    enum line_got woke; /* why reading stopped */
    /* edited */
    EditLine *el;
    History *history;
    /* from a pipe */
    struct buf rest; /* read, not yet a line */
    bool at_end;
};

/* --- the history file ---------------------------------------------------------------------------- */

static enum err_code state_dir(char out[PATH_MAX], struct err *e)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    if (state && state[0] == '/')
        n = snprintf(out, PATH_MAX, "%s/kvasir", state);
    else if (home && home[0] == '/')
        n = snprintf(out, PATH_MAX, "%s/.local/state/kvasir", home);
    else
        return err_set(e, ERR_NOT_FOUND, "neither XDG_STATE_HOME nor HOME is set");
    if (n <= 0 || n >= PATH_MAX)
        return err_set(e, ERR_LIMIT, "the path of the state folder is too long");
    return io_mkdirs(out, 0700, e);
}

/* The last HISTORY_MAX_BYTES of a file. */
static bool read_tail(const char *path, struct buf *out)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool good = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (good) {
        const uint64_t size = (uint64_t)st.st_size, n = size < HISTORY_MAX_BYTES ? size : HISTORY_MAX_BYTES;
        uint8_t *p = buf_reserve(out, n);
        good = p && io_pread_full(fd, p, n, size - n, NULL) == OK;
        out->len += good ? n : 0;
    }
    if (fd >= 0)
        close(fd);
    return good;
}

/* The newest entries of the file, oldest first. */
static void load_history(struct line_input *l)
{
    struct buf text = {0};
    HistEvent ev;
    if (!read_tail(l->history_path, &text)) {
        buf_free(&text);
        return;
    }
    const char *first = buf_str(&text), *end = first + text.len, *p = end;
    for (int n = 0; p > first && n <= HISTORY_ENTRIES; n++) {
        while (p > first && p[-1] == '\n')
            p--;
        while (p > first && p[-1] != '\n')
            p--;
    }
    if ((p > first || text.len == HISTORY_MAX_BYTES) &&
        io_write_file(l->history_path, p, (size_t)(end - p), 0600, NULL) != OK)
        log_debug("chat", "the history could not be cut");
    char *line = (char *)(uintptr_t)p, *save = NULL;
    for (line = strtok_r(line, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        history(l->history, &ev, H_ENTER, line);
    buf_free(&text);
}

void line_remember(struct line_input *l, const char *text)
{
    HistEvent ev;
    struct buf entry = {0};
    if (!l->history || !text[0])
        return;
    history(l->history, &ev, H_ENTER, text);
    if (!l->history_path[0])
        return;
    int fd = open(l->history_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    buf_printf(&entry, "%s\n", text);
    if (fd >= 0 && write(fd, entry.data, entry.len) != (ssize_t)entry.len)
        log_debug("chat", "the history could not be written");
    if (fd >= 0)
        close(fd);
    buf_free(&entry);
}

/* --- reading ------------------------------------------------------------------------------------- */

/* Waits for input. false: a signal came first, l->woke says which. */
static bool wait_input(struct line_input *l)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = l->signal_fd, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) { /* the window changed its size: libedit has seen to it */
            l->woke = LINE_END;
            return false;
        }
        int sig = fds[1].revents ? signals_take(l->signal_fd) : 0;
        if (sig) {
            l->woke = sig == SIGINT ? LINE_INTERRUPT : LINE_TERMINATE;
            return false;
        }
        if (fds[0].revents)
            return true;
    }
}

/* libedit asks for a character: one wide character, of as many bytes as it has. */
static int get_char(EditLine *el, wchar_t *out)
{
    struct line_input *l;
    mbstate_t state = {0};
    el_get(el, EL_CLIENTDATA, &l);
    for (;;) {
        char c;
        if (!wait_input(l))
            return -1;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0) {
            l->woke = LINE_END;
            return (int)n;
        }
        size_t got = mbrtowc(out, &c, 1, &state);
        if (got <= 1)
            return 1;
        if (got == (size_t)-1) { /* not a character: what was there of it is dropped */
            state = (mbstate_t){0};
        }
    }
}

static char *get_prompt(EditLine *el)
{
    struct line_input *l;
    el_get(el, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt;
}

static enum line_got read_edited(struct line_input *l, struct buf *out)
{
    int n = 0;
    l->woke = LINE_END;
    el_set(l->el, EL_PREP_TERM, 1); /* before the prompt shows: keys that come at once are for the editor */
    const char *text = el_gets(l->el, &n);
    if (!text || n <= 0) {
        fputs(l->woke == LINE_INTERRUPT ? "^C\n" : "\n", stdout);
        fflush(stdout);
        return l->woke;
    }
    buf_puts(out, text);
    while (out->len > 0 && (out->data[out->len - 1] == '\n' || out->data[out->len - 1] == '\r'))
        out->len--;
    return LINE_TEXT;
}

static enum line_got read_piped(struct line_input *l, struct buf *out)
{
    for (;;) {
        const uint8_t *nl = l->rest.len ? memchr(l->rest.data, '\n', l->rest.len) : NULL;
        if (nl || (l->at_end && l->rest.len > 0) || l->rest.len > MAX_LINE) {
            size_t n = nl ? (size_t)(nl - l->rest.data) : l->rest.len, gone = n + (nl ? 1 : 0);
            buf_put(out, l->rest.data, n > 0 && l->rest.data[n - 1] == '\r' ? n - 1 : n);
            memmove(l->rest.data, l->rest.data + gone, l->rest.len - gone);
            l->rest.len -= gone;
            return LINE_TEXT;
        }
        if (l->at_end)
            return LINE_END;
        if (!wait_input(l))
            return l->woke;
        uint8_t *room = buf_reserve(&l->rest, 65536);
        ssize_t n = room ? read(STDIN_FILENO, room, 65536) : 0;
        if (n > 0)
            l->rest.len += (size_t)n;
        else if (n == 0 || errno != EINTR)
            l->at_end = true;
    }
}

enum line_got line_read(struct line_input *l, const char *prompt, struct buf *out)
{
    buf_clear(out);
    l->prompt = prompt;
    return l->el ? read_edited(l, out) : read_piped(l, out);
}

/* --- open and close ------------------------------------------------------------------------------ */

bool line_is_edited(const struct line_input *l)
{
    return l->el != NULL;
}

static enum err_code open_editor(struct line_input *l, const char *name, struct err *e)
{
    HistEvent ev;
    char dir[PATH_MAX];
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    l->el = el_init("kvasir", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->el || !l->history)
        return err_set(e, ERR_NOMEM, "out of memory for line editing");
    history(l->history, &ev, H_SETSIZE, HISTORY_ENTRIES);
    history(l->history, &ev, H_SETUNIQUE, 1);
    if (name && state_dir(dir, NULL) == OK &&
        snprintf(l->history_path, sizeof l->history_path, "%s/%s", dir, name) >= (int)sizeof l->history_path)
        l->history_path[0] = 0;
    if (l->history_path[0])
        load_history(l);
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_PROMPT, get_prompt);
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_SIGNAL, 1); /* Ctrl-Z and a window of another size; Ctrl-C is blocked and comes by signal_fd */
    el_set(l->el, EL_HIST, history, l->history);
    el_set(l->el, EL_GETCFN, get_char);
    el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(l->el, NULL); /* the user's ~/.editrc */
    return OK;
}

enum err_code line_open(int signal_fd, const char *history, struct line_input **out, struct err *e)
{
    struct line_input *l = calloc(1, sizeof *l);
    enum err_code rc = OK;
    if (!l)
        return err_set(e, ERR_NOMEM, "out of memory");
    l->signal_fd = signal_fd;
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
        rc = open_editor(l, history, e);
    if (rc != OK) {
        line_close(l);
        return rc;
    }
    *out = l;
    return OK;
}

void line_close(struct line_input *l)
{
    if (!l)
        return;
    if (l->el)
        el_end(l->el);
    if (l->history)
        history_end(l->history);
    buf_free(&l->rest);
    free(l);
}
