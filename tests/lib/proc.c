/* SPDX-License-Identifier: MIT */
#include "lib/proc.h"

#include "base/clock.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void become(const char *const *argv, const char *const *env, const int out[2], int keep_fd, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it goes with a test that is killed or gives up */
    if (getppid() != parent)
        _exit(127);
    int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd >= 0)
        dup2(null_fd, STDIN_FILENO);
    dup2(out[0], STDOUT_FILENO);
    dup2(out[1], STDERR_FILENO);
    for (; env && *env; env++) {
        const char *eq = strchr(*env, '=');
        char name[64];
        snprintf(name, sizeof name, "%.*s", eq ? (int)(eq - *env) : 63, *env);
        if (eq)
            setenv(name, eq + 1, 1);
        else
            unsetenv(name);
    }
    if (keep_fd >= 0)
        fcntl(keep_fd, F_SETFD, 0);
    alarm(0);
    signal(SIGPIPE, SIG_DFL);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

bool proc_start(struct proc *p, const char *const *argv, const char *const *env, int keep_fd)
{
    int out[2], err[2];
    *p = (struct proc){.fd = {-1, -1}};
    if (pipe2(out, O_CLOEXEC) != 0)
        return false;
    if (pipe2(err, O_CLOEXEC) != 0) {
        close(out[0]);
        close(out[1]);
        return false;
    }
    fflush(NULL);
    const pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(argv, env, (int[]){out[1], err[1]}, keep_fd, parent);
    close(out[1]);
    close(err[1]);
    p->fd[PROC_OUT] = out[0];
    p->fd[PROC_ERR] = err[0];
    p->pid = pid > 0 ? pid : 0;
    return pid > 0;
}

static void reap(struct proc *p)
{
    if (p->pid > 0 && waitpid(p->pid, &p->status, WNOHANG) == p->pid)
        p->pid = 0;
}

/* Waits for output at most until the deadline and takes it. */
static void take_some(struct proc *p, uint64_t deadline_ns)
{
    struct pollfd fds[2];
    for (int i = 0; i < 2; i++)
        fds[i] = (struct pollfd){.fd = p->fd[i], .events = POLLIN};
    int left = clock_left_ms(deadline_ns);
    poll(fds, 2, left < 20 ? left : 20); /* the end of a process does not wake poll */
    for (int i = 0; i < 2; i++) {
        if (!fds[i].revents)
            continue;
        uint8_t *room = buf_reserve(&p->text[i], 65536);
        ssize_t n = room ? read(p->fd[i], room, 65536) : 0;
        if (n > 0) {
            p->text[i].len += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            close(p->fd[i]);
            p->fd[i] = -1;
        }
    }
    reap(p);
}

static bool over(const struct proc *p)
{
    return p->pid == 0 && p->fd[0] < 0 && p->fd[1] < 0;
}

bool proc_wait(struct proc *p, uint32_t ms)
{
    uint64_t deadline = clock_deadline_ms(ms);
    while (!over(p) && clock_now_ns() < deadline)
        take_some(p, deadline);
    if (over(p))
        return true;
    if (p->pid > 0)
        kill(p->pid, SIGKILL);
    return false;
}

int proc_code(const struct proc *p)
{
    return WIFSIGNALED(p->status) ? 128 + WTERMSIG(p->status) : WEXITSTATUS(p->status);
}

const char *proc_text(struct proc *p, enum proc_stream s)
{
    const char *text = buf_str(&p->text[s]);
    return text ? text : "";
}

bool proc_until(struct proc *p, enum proc_stream s, const char *text, uint32_t ms)
{
    uint64_t deadline = clock_deadline_ms(ms);
    while (!strstr(proc_text(p, s), text)) {
        if (over(p) || clock_now_ns() >= deadline)
            return false;
        take_some(p, deadline);
    }
    return true;
}

const char *proc_line(struct proc *p, enum proc_stream s, const char *text, uint32_t ms)
{
    uint64_t deadline = clock_deadline_ms(ms);
    for (;;) {
        const char *at = strstr(proc_text(p, s), text);
        if (at && strchr(at, '\n'))
            return at;
        if (over(p) || clock_now_ns() >= deadline)
            return NULL;
        take_some(p, deadline);
    }
}

unsigned proc_lines(struct proc *p, enum proc_stream s, const char *prefix)
{
    unsigned n = 0;
    for (const char *line = proc_text(p, s); line && *line; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        n += strncmp(line, prefix, strlen(prefix)) == 0;
    }
    return n;
}

void proc_free(struct proc *p)
{
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &p->status, 0);
    }
    for (int i = 0; i < 2; i++) {
        if (p->fd[i] >= 0)
            close(p->fd[i]);
        buf_free(&p->text[i]);
    }
    *p = (struct proc){.fd = {-1, -1}};
}

/* --- other processes ----------------------------------------------------------------------------- */

static size_t read_proc(pid_t pid, const char *name, char *out, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/%s", (long)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, size - 1);
    if (fd >= 0)
        close(fd);
    n = n < 0 ? 0 : n;
    out[n] = 0;
    return (size_t)n;
}

/* State letter and parent; false when it is gone. */
static bool look_at(pid_t pid, char *state, pid_t *parent)
{
    char text[512];
    if (read_proc(pid, "stat", text, sizeof text) == 0)
        return false;
    const char *end = strrchr(text, ')'); /* the name may hold anything */
    if (!end || strlen(end) < 5)          /* ") S 123 ..." */
        return false;
    *state = end[2];
    *parent = (pid_t)strtol(end + 4, NULL, 10);
    return true;
}

pid_t proc_child(pid_t pid, const char *text)
{
    DIR *d = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *x; d && !found && (x = readdir(d));) {
        pid_t other = isdigit((unsigned char)x->d_name[0]) ? (pid_t)strtol(x->d_name, NULL, 10) : 0, parent;
        char state, line[4096];
        if (other == 0 || !look_at(other, &state, &parent) || parent != pid || state == 'Z')
            continue;
        size_t n = read_proc(other, "cmdline", line, sizeof line);
        for (size_t i = 0; i + 1 < n; i++) /* arguments are separated by NUL */
            line[i] = line[i] ? line[i] : ' ';
        if (!text || strstr(line, text))
            found = other;
    }
    if (d)
        closedir(d);
    return found;
}

bool proc_gone(pid_t pid, uint32_t ms)
{
    uint64_t deadline = clock_deadline_ms(ms);
    for (;;) {
        char state;
        pid_t parent;
        if (!look_at(pid, &state, &parent) || state == 'Z')
            return true;
        if (clock_now_ns() >= deadline)
            return false;
        usleep(2000);
    }
}
