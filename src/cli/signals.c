/* SPDX-License-Identifier: MIT */
#include "cli/signals.h"

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum err_code signals_open(int *fd, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int f = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (f < 0)
        return err_set_os(e, ERR_IO, errno, "cannot wait for signals");
    *fd = f;
    return OK;
}

int signals_take(int fd)
{
    struct signalfd_siginfo info;
    return read(fd, &info, sizeof info) == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

bool signals_stopped(void *stop)
{
    struct signals_stop *s = stop;
    if (atomic_load(&s->signal) == 0) { /* asked by any thread: one of them gets it */
        const int sig = signals_take(s->signal_fd);
        if (sig)
            atomic_store(&s->signal, sig);
    }
    return atomic_load(&s->signal) != 0;
}
