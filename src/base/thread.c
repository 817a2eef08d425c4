/* SPDX-License-Identifier: MIT */
#include "base/thread.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

void thread_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

bool thread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
                          .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S)};
    return pthread_cond_timedwait(c, m, &ts) != ETIMEDOUT;
}

enum err_code thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *arg, struct err *e)
{
    sigset_t all, old;
    pthread_t t;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return err_set_os(e, ERR_NOMEM, rc, "cannot start the thread %s", name);
    char short_name[16];
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(t, short_name);
    *out = t;
    return OK;
}
