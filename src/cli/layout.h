/* SPDX-License-Identifier: MIT
 *
 * From a model and what the user asked for to a manifest without keys and addresses: how many stages, which windows,
 * context, slots. Shared by plan, up and run.
 */
#ifndef KVASIR_CLI_LAYOUT_H
#define KVASIR_CLI_LAYOUT_H

#include "cli/opt.h"
#include "model/gguf.h"
#include "plan/manifest.h"

struct layout_options {
    uint32_t n_stages;  /* 0: from layers, else 1 */
    const char *layers; /* "0:2,2:5" or NULL */
    uint32_t n_ctx;     /* 0: default */
    uint32_t n_slots;   /* 0: 1 */
    uint32_t n_batch;   /* 0: default */
    const char *kv;     /* for the sizes; NULL: f16 */
    const char *device; /* of all ranks, or "a,b,..." of each; NULL: cpu */
    bool local;         /* all ranks run on this machine: the default context fits its memory */
};
#define LAYOUT_OPTION_ROWS(o)                                                                                          \
    {                                                                                                                  \
        "stages",      0, OPT_U32,           "N", "number of stages; windows of about equal cost",                     \
        &(o).n_stages, 1, MANIFEST_MAX_RANKS},                                                                         \
        {"layers", 'l', OPT_STRING, "A:B,B:C", "the windows themselves, for example 0:2,2:5", &(o).layers, 0, 0},      \
        {"ctx",      'c', OPT_U32, "N", "positions per sequence (default: what fits, at most 4096)",                   \
         &(o).n_ctx, 1,   1u << 24},                                                                                   \
        {"slots", 's', OPT_U32, "N", "sequences at once (default: 1; of up: 4)", &(o).n_slots, 1, 1024},               \
        {"batch", 'b', OPT_U32, "N", "most tokens of one step (default: 512)", &(o).n_batch, 1, 4096},                 \
        {"device",                                                                                                     \
         'd',                                                                                                          \
         OPT_STRING,                                                                                                   \
         "NAME[,NAME]",                                                                                                \
         "device of all ranks, or one for each: cpu (default), auto, vulkan0, ... (see doctor)",                       \
         &(o).device,                                                                                                  \
         0,                                                                                                            \
         0}

/* Fills m (manifest_fini it): model, windows, sizes; zero keys, ids and empty addresses.
 * When the default context is cut to fit this machine, a line on stderr says so.
 * ERR_ARG / ERR_RANGE / ERR_MISMATCH as plan.h; ERR_UNSUPPORTED for a family that cannot be run. */
enum err_code layout_make(const struct gguf *g, const struct layout_options *o, struct manifest *m,
                          struct err *e) KV_MUST_USE;

#endif
