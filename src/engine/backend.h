/* SPDX-License-Identifier: MIT
 *
 * Devices through ggml's registry: finding a device by the name a user gives, listing what there is. The process-wide
 * registry is ggml's; a struct backend belongs to one stage.
 */
#ifndef KVASIR_ENGINE_BACKEND_H
#define KVASIR_ENGINE_BACKEND_H

#include "base/err.h"

#include <ggml-backend.h>
#include <stddef.h>

struct backend {
    ggml_backend_dev_t dev;
    ggml_backend_t be;
    struct ggml_threadpool *pool;                    /* CPU only, else NULL */
    void (*pool_free)(struct ggml_threadpool *pool); /* from the plugin */
    ggml_backend_buffer_type_t *extra;               /* repacking buffer types, NULL-terminated; NULL when none */
    bool plain; /* tensors lie on the device as in the file: they may be written part by part */
};

/* Loads all plugins, before devices are listed; later calls do nothing. Opening a device loads what that needs.
 * ERR_NOT_FOUND when not even a CPU backend is there. Thread-safe. */
enum err_code backend_library_init(struct err *e) KV_MUST_USE;

/* name: "cpu", or a device's name as backend_describe shows it, any case. n_threads: 1..512, for the CPU.
 * ERR_NOT_FOUND lists what there is; ERR_UNSUPPORTED for a device without memory of its own kind; ERR_DEVICE. */
enum err_code backend_open(const char *name, uint32_t n_threads, struct backend *out, struct err *e) KV_MUST_USE;
void backend_close(struct backend *b);
bool backend_is_cpu(const struct backend *b);

/* The GPU to take for a stage of so many bytes: one with memory of its own before one that shares the CPU's, then the
 * one with the most free. NULL: none has as much free. */
const char *backend_best(uint64_t need);

/* Free memory of a device; 0: unknown. */
uint64_t backend_free_bytes(const char *name);

/* What `kvasir doctor` prints of device i. Strings are ggml's. */
struct backend_info {
    const char *name, *description, *kind; /* kind: "cpu", "gpu", "igpu", "accel" */
    uint64_t free_bytes, total_bytes;      /* 0: unknown */
};
size_t backend_count(void);
bool backend_describe(size_t i, struct backend_info *out);

/* Is the plugin of that name ("Vulkan", "CUDA") loaded, with or without devices? */
bool backend_have_plugin(const char *name);

/* ggml's own version, static storage. */
const char *backend_ggml_version(void);

/* Feature names the CPU backend was chosen for ("AVX2 FMA ..."), into out. */
void backend_cpu_features(char *out, size_t size);

#endif
