/* SPDX-License-Identifier: MIT
 *
 * Programs under test: started with pipes for their output, waited for with deadlines, never left behind: they are
 * killed when the thread that started them ends. Single thread.
 */
#ifndef KVASIR_TESTS_PROC_H
#define KVASIR_TESTS_PROC_H

#include "base/buf.h"

#include <sys/types.h>

struct proc {
    pid_t pid;          /* 0: it has been waited for */
    int fd[2];          /* its stdout and stderr, -1: closed */
    struct buf text[2]; /* what came from them so far */
    int status;         /* as waitpid gives it, once pid is 0 */
};
enum proc_stream { PROC_OUT, PROC_ERR };

#define PROC_MAX_ARGS 40

/* argv ends with NULL; argv[0] is the path. env: "NAME=VALUE" or "NAME" (removed), ends with NULL; may be NULL.
 * keep_fd: a descriptor that it inherits, -1 for none. false: it could not be started. */
bool proc_start(struct proc *p, const char *const *argv, const char *const *env, int keep_fd);

/* Reads until it has ended and all its output is here. false when the time was over first: it is killed then. */
bool proc_wait(struct proc *p, uint32_t ms);
/* The exit status after proc_wait; 128 + the signal that ended it. */
int proc_code(const struct proc *p);

/* Reads until the text has come on that stream; false when it ended or the time was over before. */
bool proc_until(struct proc *p, enum proc_stream s, const char *text, uint32_t ms);
/* Reads until a line with the text is whole: the text there, until more is read. NULL: it ended or the time was over.
 */
const char *proc_line(struct proc *p, enum proc_stream s, const char *text, uint32_t ms);
const char *proc_text(struct proc *p, enum proc_stream s);
/* Lines of that stream that begin with the prefix. */
unsigned proc_lines(struct proc *p, enum proc_stream s, const char *prefix);

/* Kills it if it still runs, and frees what it said. */
void proc_free(struct proc *p);

/* The child of pid whose command line has the text, 0 when there is none (or no /proc). NULL: any child. */
pid_t proc_child(pid_t pid, const char *text);
/* Waits until the process is gone (a zombie counts as gone). */
bool proc_gone(pid_t pid, uint32_t ms);

#endif
