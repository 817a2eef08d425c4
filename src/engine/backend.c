/* SPDX-License-Identifier: MIT */
#include "engine/backend.h"

#include "base/io.h"
#include "engine/plugins.h"

#include <ggml-cpu.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum err_code backend_library_init(struct err *e)
{
    return plugins_load_all(e);
}

static enum err_code load_for(const char *device, struct err *e)
{
    return strcasecmp(device, "cpu") == 0 ? plugins_load_cpu(e) : plugins_load_all(e);
}

static const char *kind_name(enum ggml_backend_dev_type t)
{
    switch (t) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
        return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
        return "gpu";
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
        return "igpu";
    default:
        return "accel";
    }
}

/* ggml says of the CPU that all its memory is free. */
static void free_memory(ggml_backend_dev_t dev, uint64_t *free_bytes, uint64_t *total_bytes)
{
    size_t f = 0, t = 0;
    ggml_backend_dev_memory(dev, &f, &t);
    if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU)
        f = (size_t)io_available_bytes();
    *free_bytes = f;
    *total_bytes = t;
}

size_t backend_count(void)
{
    return ggml_backend_dev_count();
}

bool backend_describe(size_t i, struct backend_info *out)
{
    if (i >= ggml_backend_dev_count())
        return false;
    ggml_backend_dev_t dev = ggml_backend_dev_get(i);
    *out = (struct backend_info){.name = ggml_backend_dev_name(dev),
                                 .description = ggml_backend_dev_description(dev),
                                 .kind = kind_name(ggml_backend_dev_type(dev))};
    free_memory(dev, &out->free_bytes, &out->total_bytes);
    return true;
}

bool backend_have_plugin(const char *name)
{
    return ggml_backend_reg_by_name(name) != NULL;
}

static ggml_backend_dev_t find(const char *name)
{
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (strcasecmp(ggml_backend_dev_name(dev), name) == 0)
            return dev;
    }
    return NULL;
}

uint64_t backend_free_bytes(const char *name)
{
    uint64_t f = 0, t;
    struct err e;
    ggml_backend_dev_t dev = load_for(name, &e) == OK ? find(name) : NULL;
    if (dev)
        free_memory(dev, &f, &t);
    return f;
}

/* The same card can be there twice, under two plugins. */
static bool same_card(ggml_backend_dev_t a, ggml_backend_dev_t b)
{
    struct ggml_backend_dev_props x, y;
    ggml_backend_dev_get_props(a, &x);
    ggml_backend_dev_get_props(b, &y);
    return x.device_id && y.device_id && strcmp(x.device_id, y.device_id) == 0;
}

const char *backend_best(uint64_t need)
{
    ggml_backend_dev_t best = NULL;
    uint64_t best_free = 0;
    struct err e;
    if (backend_library_init(&e) != OK)
        return NULL;
    for (int own = 1; own >= 0 && !best; own--) {
        enum ggml_backend_dev_type want = own ? GGML_BACKEND_DEVICE_TYPE_GPU : GGML_BACKEND_DEVICE_TYPE_IGPU;
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            ggml_backend_dev_t dev = ggml_backend_dev_get(i);
            uint64_t f, t;
            if (ggml_backend_dev_type(dev) != want)
                continue;
            free_memory(dev, &f, &t);
            bool fits = t == 0 || f >= need; /* t 0: it does not say */
            if (fits && (!best || (f > best_free && !same_card(dev, best)))) {
                best = dev;
                best_free = f;
            }
        }
    }
    return best ? ggml_backend_dev_name(best) : NULL;
}

bool backend_is_cpu(const struct backend *b)
{
    return ggml_backend_dev_type(b->dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

static enum err_code unknown_device(const char *name, struct err *e)
{
    char list[160] = "";
    size_t n = 0;
    for (size_t i = 0; i < ggml_backend_dev_count() && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? " " : "",
                              ggml_backend_dev_name(ggml_backend_dev_get(i)));
    return err_set(e, ERR_NOT_FOUND, "there is no device '%s'; this machine has: %s", name, list);
}

/* A thread pool of our own: without one ggml makes and frees a pool for every graph. */
static enum err_code set_threads(struct backend *b, uint32_t n_threads, struct err *e)
{
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(b->dev);
    struct ggml_threadpool *(*pool_new)(struct ggml_threadpool_params *) = NULL;
    void (*set_pool)(ggml_backend_t, ggml_threadpool_t) = NULL;
    *(void **)&pool_new = ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new");
    *(void **)&b->pool_free = ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_free");
    *(void **)&set_pool = ggml_backend_reg_get_proc_address(reg, "ggml_backend_cpu_set_threadpool");
    ggml_backend_set_n_threads_t set_n =
        (ggml_backend_set_n_threads_t)(void (*)(void))ggml_backend_reg_get_proc_address(reg,
                                                                                        "ggml_backend_set_n_threads");
    if (set_n)
        set_n(b->be, (int)n_threads);
    if (!pool_new || !b->pool_free || !set_pool)
        return OK; /* slower, not wrong */
    struct ggml_threadpool_params params = ggml_threadpool_params_default((int)n_threads);
    b->pool = pool_new(&params);
    if (!b->pool)
        return err_set(e, ERR_NOMEM, "cannot start %u compute threads", n_threads);
    set_pool(b->be, b->pool);
    return OK;
}

/* Others may lay quantized tensors out anew as they are written, and then want them whole. */
static bool keeps_layout(ggml_backend_dev_t dev)
{
    static const char *const plain[] = {"CPU", "Vulkan", "CUDA", "ROCm", "MTL"};
    const char *name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (strcasecmp(name, plain[i]) == 0)
            return true;
    }
    return false;
}

enum err_code backend_open(const char *name, uint32_t n_threads, struct backend *out, struct err *e)
{
    struct backend b = {0};
    enum err_code rc = load_for(name, e);
    if (rc != OK)
        return rc;
    if (n_threads < 1 || n_threads > 512)
        return err_set(e, ERR_ARG, "%u compute threads: 1 to 512 are possible", n_threads);
    b.dev = find(name);
    if (!b.dev)
        return unknown_device(name, e);
    enum ggml_backend_dev_type type = ggml_backend_dev_type(b.dev);
    if (type == GGML_BACKEND_DEVICE_TYPE_ACCEL || type == GGML_BACKEND_DEVICE_TYPE_META)
        return err_set(e, ERR_UNSUPPORTED, "the device '%s' only helps others compute; a stage needs cpu or a GPU",
                       name);
    b.be = ggml_backend_dev_init(b.dev, NULL);
    if (!b.be)
        return err_set(e, ERR_DEVICE, "the device '%s' does not start", name);
    b.plain = keeps_layout(b.dev);
    if (type != GGML_BACKEND_DEVICE_TYPE_CPU) {
        *out = b;
        return OK;
    }
    rc = set_threads(&b, n_threads, e);
    if (rc != OK) {
        backend_close(&b);
        return rc;
    }
    ggml_backend_dev_get_extra_bufts_t extra =
        (ggml_backend_dev_get_extra_bufts_t)(void (*)(void))ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(b.dev), "ggml_backend_dev_get_extra_bufts");
    b.extra = extra ? extra(b.dev) : NULL;
    *out = b;
    return OK;
}

void backend_close(struct backend *b)
{
    if (b->be)
        ggml_backend_free(b->be);
    if (b->pool)
        b->pool_free(b->pool);
    *b = (struct backend){0};
}

const char *backend_ggml_version(void)
{
    return ggml_version();
}

void backend_cpu_features(char *out, size_t size)
{
    size_t n = 0;
    if (size > 0)
        out[0] = 0;
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!dev)
        return;
    ggml_backend_get_features_t get = (ggml_backend_get_features_t)(void (*)(void))ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(dev), "ggml_backend_get_features");
    for (struct ggml_backend_feature *f = get ? get(ggml_backend_dev_backend_reg(dev)) : NULL; f && f->name && n < size;
         f++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? " " : "", f->name);
}
