/* SPDX-License-Identifier: MIT */
#include "engine/fit.h"

#include "base/log.h"
#include "base/parse.h"

#include <stdio.h>
#include <strings.h>

#define SPARE_BYTES (256ull << 20) /* besides weights and caches: for computing, and for the device's own use */

static uint64_t need_of(const struct fit_ask *f, uint32_t end)
{
    return weights_bytes_before(f->weights, end) + kv_bytes_before(f->kv, end);
}

static uint64_t limit_of(const struct fit_ask *f, const char *device)
{
    uint64_t free_bytes = backend_free_bytes(device);
    return f->max_bytes && (free_bytes == 0 || f->max_bytes < free_bytes) ? f->max_bytes : free_bytes;
}

static enum err_code fit_gpu(const struct fit_ask *f, struct err *e)
{
    uint64_t limit = limit_of(f, f->device), need = need_of(f, f->end);
    char have[16], want[16], weights[16], kv[16], help[96];
    uint32_t end = f->end < f->kv->end ? f->end : f->kv->end;
    if (limit == 0 || need <= limit) /* 0: it does not say */
        return OK;
    while (end > f->kv->first && need_of(f, end) > limit)
        end--;
    if (end > f->kv->first)
        snprintf(help, sizeof help, "--device-layers %u lets the CPU have the blocks from %u on", end - f->kv->first,
                 end);
    else
        snprintf(help, sizeof help, "not even one block fits; --device cpu, or a smaller --ctx");
    return err_set(e, ERR_NOMEM, "the device %s has %s free and would need %s (weights %s, caches %s): %s", f->device,
                   parse_fmt_bytes(limit, have), parse_fmt_bytes(need, want),
                   parse_fmt_bytes(weights_bytes_before(f->weights, f->end), weights),
                   parse_fmt_bytes(kv_bytes_before(f->kv, f->end), kv), help);
}

/* What the CPU is to hold: the blocks from `end` on; 0: it is the device that was asked for. */
static enum err_code fit_cpu(const struct fit_ask *f, uint32_t end, struct err *e)
{
    uint64_t limit = end == 0 ? limit_of(f, "cpu") : backend_free_bytes("cpu"),
             kv = kv_bytes_before(f->kv, f->kv->end) - kv_bytes_before(f->kv, end);
    uint64_t weights = weights_bytes(f->weights) - weights_bytes_before(f->weights, end);
    char have[16], w[16], k[16];
    if (limit == 0)
        return OK;
    parse_fmt_bytes(limit, have);
    parse_fmt_bytes(weights, w);
    parse_fmt_bytes(kv, k);
    if (kv > limit)
        return err_set(e, ERR_NOMEM,
                       "the key/value cache takes %s, %s of memory are free: a smaller --ctx, fewer --slots or --kv "
                       "q8_0 would help",
                       k, have);
    if (weights + kv > limit)
        log_warn("stage",
                 "weights %s and caches %s are more than the %s of memory that are free: expect it to be slow; fewer "
                 "blocks on this machine, a smaller --ctx or --no-repack would help",
                 w, k, have);
    return OK;
}

enum err_code fit_device(struct fit_ask *f, struct err *e)
{
    if (strcasecmp(f->device, "auto") == 0) {
        uint64_t need = need_of(f, f->end);
        const char *best = f->max_bytes && need > f->max_bytes ? NULL : backend_best(need + need / 16 + SPARE_BYTES);
        f->device = best ? best : "cpu";
        f->max_bytes = best ? f->max_bytes : 0; /* was meant for a GPU */
    }
    if (strcasecmp(f->device, "cpu") == 0)
        return fit_cpu(f, 0, e);
    enum err_code rc = fit_gpu(f, e);
    return rc == OK ? fit_cpu(f, f->end, e) : rc;
}
