/* SPDX-License-Identifier: MIT
 *
 * ggml's plugins, loaded as late as can be: a GPU's brings its driver and perhaps a compiler into the process, tens of
 * megabytes that a stage on the CPU has no use for. Process-wide; thread-safe.
 */
#ifndef KVASIR_ENGINE_PLUGINS_H
#define KVASIR_ENGINE_PLUGINS_H

#include "base/err.h"

/* The best CPU plugin for this machine. ERR_NOT_FOUND when there is none. */
enum err_code plugins_load_cpu(struct err *e) KV_MUST_USE;

/* That one and all others. */
enum err_code plugins_load_all(struct err *e) KV_MUST_USE;

#endif
