/* SPDX-License-Identifier: MIT
 *
 * Before a window is loaded: which device to take when the user leaves it open, and whether its memory suffices.
 */
#ifndef KVASIR_ENGINE_FIT_H
#define KVASIR_ENGINE_FIT_H

#include "engine/kv.h"
#include "engine/weights.h"

struct fit_ask {
    const char *device;            /* "auto" is replaced by the name of what was chosen */
    uint32_t end;                  /* blocks before it are meant for the device; DEVICES_ALL: all */
    uint64_t max_bytes;            /* of the device's memory; 0: what is free */
    const struct weights *weights; /* declared */
    const struct kv *kv;           /* without memory yet */
};

/* ERR_NOMEM: more weights and caches than memory, with what would help; ERR_NOT_FOUND: no such device. The CPU's
 * weights may lie in files: when only they are too many, that is a warning. */
enum err_code fit_device(struct fit_ask *f, struct err *e) KV_MUST_USE;

#endif
