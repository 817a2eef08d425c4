/* SPDX-License-Identifier: MIT
 *
 * A ring of up to two ranks in the benchmark's own process, one compute thread each, joined by real links over loopback
 * TCP. What does not succeed ends the program with a sentence. Main thread only.
 */
#ifndef KVASIR_BENCH_RIG_H
#define KVASIR_BENCH_RIG_H

#include "cli/layout.h"
#include "cli/rank.h"

#define RIG_MAX_RANKS 2

struct rig {
    struct manifest m;
    struct key_secret secrets[RIG_MAX_RANKS];
    struct rank ranks[RIG_MAX_RANKS];
};

/* o: at most RIG_MAX_RANKS ranks. no_repack: computes with the weights as they are in the file. Waits until the ring is
 * whole. */
void rig_up(struct rig *r, const struct gguf *g, const struct layout_options *o, bool no_repack);
void rig_down(struct rig *r);

_Noreturn void rig_die(const struct err *e);

/* The model at path when it is not NULL, else the preset of the maker, made once in the build folder under this name.
 */
struct gguf *rig_model(const char *path, const char *preset, const char *made);

#endif
