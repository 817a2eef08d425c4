/* SPDX-License-Identifier: MIT
 *
 * The devices of one stage: the one its user named, and the CPU beside it, which takes what the other cannot do or has
 * no room for. Blocks before `end` are the main device's; so is what belongs to no block when all of them are.
 *
 * Owned by the stage; compute thread only.
 */
#ifndef KVASIR_ENGINE_DEVICES_H
#define KVASIR_ENGINE_DEVICES_H

#include "engine/backend.h"

#define DEVICES_ALL UINT32_MAX

struct devices {
    struct backend main;
    struct backend beside; /* the CPU; not open when it is the main device */
    uint32_t end;          /* absolute number of the first block that is not main's; DEVICES_ALL: all are */
};

/* name as for backend_open. */
enum err_code devices_open(const char *name, uint32_t n_threads, uint32_t end, struct devices *out,
                           struct err *e) KV_MUST_USE;
void devices_close(struct devices *d);

const struct backend *devices_cpu(const struct devices *d);
bool devices_split(const struct devices *d); /* is there a main device besides the CPU? */

/* Whose is a block (-1: what belongs to none)? */
bool devices_on_main(uint32_t end, int block);

#endif
