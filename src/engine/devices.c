/* SPDX-License-Identifier: MIT */
#include "engine/devices.h"

enum err_code devices_open(const char *name, uint32_t n_threads, uint32_t end, struct devices *out, struct err *e)
{
    struct devices d = {.end = end};
    enum err_code rc = backend_open(name, n_threads, &d.main, e);
    if (rc != OK)
        return rc;
    if (backend_is_cpu(&d.main)) {
        d.end = DEVICES_ALL;
    } else {
        rc = backend_open("cpu", n_threads, &d.beside, e);
        if (rc != OK) {
            devices_close(&d);
            return rc;
        }
    }
    *out = d;
    return OK;
}

void devices_close(struct devices *d)
{
    backend_close(&d->main);
    backend_close(&d->beside);
    *d = (struct devices){0};
}

const struct backend *devices_cpu(const struct devices *d)
{
    return d->beside.be ? &d->beside : &d->main;
}

bool devices_split(const struct devices *d)
{
    return d->beside.be != NULL;
}

bool devices_on_main(uint32_t end, int block)
{
    return block < 0 ? end == DEVICES_ALL : (uint32_t)block < end;
}
