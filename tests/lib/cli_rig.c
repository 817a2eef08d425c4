/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/cli_rig.h"

#include <signal.h>

void cli_start(struct proc *p, const char *const *words, const char *const *env, int keep_fd)
{
    const char *argv[PROC_MAX_ARGS] = {KV_BINARY};
    size_t n = 1;
    for (; *words; words++) {
        assert_true(n + 1 < PROC_MAX_ARGS);
        argv[n++] = *words;
    }
    assert_true(proc_start(p, argv, env, keep_fd));
}

void cli_finish(struct proc *p, int code)
{
    if (!proc_wait(p, CLI_WAIT_MS))
        fail_msg("it hangs; stdout: %s; stderr: %s", proc_text(p, PROC_OUT), proc_text(p, PROC_ERR));
    if (proc_code(p) != code)
        fail_msg("exit status %d, not %d; stdout: %s; stderr: %s", proc_code(p), code, proc_text(p, PROC_OUT),
                 proc_text(p, PROC_ERR));
}

void cli_stop(struct proc *p)
{
    kill(p->pid, SIGTERM);
    cli_finish(p, 0);
    proc_free(p);
}

void cli_says(struct proc *p, enum proc_stream s, const char *text)
{
    if (!proc_until(p, s, text, CLI_WAIT_MS))
        fail_msg("'%s' does not come; stdout: %s; stderr: %s", text, proc_text(p, PROC_OUT), proc_text(p, PROC_ERR));
}

const char *cli_line(struct proc *p, enum proc_stream s, const char *text)
{
    const char *at = proc_line(p, s, text, CLI_WAIT_MS);
    if (!at)
        fail_msg("no line with '%s' comes; stdout: %s; stderr: %s", text, proc_text(p, PROC_OUT),
                 proc_text(p, PROC_ERR));
    return at;
}
