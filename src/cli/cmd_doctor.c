/* SPDX-License-Identifier: MIT
 *
 * kvasir doctor: what this machine has, and what is missing on it for which purpose.
 */
#include "base/io.h"
#include "base/parse.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/default_model.h"
#include "engine/backend.h"
#include "net/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct findings {
    struct buf json;
    bool as_json;
    uint32_t n_bad;
};

static void say(struct findings *f, bool good, const char *key, const char *text)
{
    f->n_bad += !good;
    if (!f->as_json) {
        printf("%-4s %-10s %s\n", good ? "ok" : "BAD", key, text);
        return;
    }
    buf_printf(&f->json, "%s{\"ok\":%s,\"what\":\"%s\",\"text\":", f->json.len > 1 ? "," : "", good ? "true" : "false",
               key);
    text_put_json(&f->json, text, strlen(text));
    buf_puts(&f->json, "}");
}

/* Not bad: many a machine has none. */
static const char *missing_for_gpus(void)
{
    if (!backend_have_plugin("Vulkan"))
        return "none: for GPUs install Debian's libggml0-backend-vulkan (libggml0-backend-hip for AMD's ROCm, "
               "libggml0-backend-cuda for CUDA)";
    return "none: Vulkan finds no GPU; its driver is Debian's mesa-vulkan-drivers (AMD, Intel) or nvidia-vulkan-icd, "
           "and /dev/dri must be readable";
}

static void look_at_devices(struct findings *f)
{
    struct err e;
    char text[512], free_text[16], total_text[16];
    bool gpu = false;
    if (backend_library_init(&e) != OK) {
        say(f, false, "backend", e.msg);
        return;
    }
    for (size_t i = 0; i < backend_count(); i++) {
        struct backend_info d;
        if (!backend_describe(i, &d))
            continue;
        gpu |= strcmp(d.kind, "gpu") == 0 || strcmp(d.kind, "igpu") == 0;
        if (d.total_bytes)
            snprintf(text, sizeof text, "%s (%s): %s, memory %s free of %s", d.name, d.kind, d.description,
                     parse_fmt_bytes(d.free_bytes, free_text), parse_fmt_bytes(d.total_bytes, total_text));
        else
            snprintf(text, sizeof text, "%s (%s): %s", d.name, d.kind, d.description);
        say(f, true, "device", text);
    }
    if (!gpu)
        say(f, true, "gpu", missing_for_gpus());
    backend_cpu_features(text, sizeof text);
    say(f, true, "features", text[0] ? text : "none reported");
    snprintf(text, sizeof text, "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    say(f, true, "cores", text);
}

static void look_at_files(struct findings *f)
{
    struct err e;
    char dir[PATH_MAX];
    if (io_cache_dir(dir, &e) != OK)
        say(f, false, "cache", e.msg);
    else if (access(dir, W_OK) != 0)
        say(f, false, "cache", "the cache folder cannot be written: models are read again for their ids at each start");
    else
        say(f, true, "cache", dir);
}

/* Not bad when none was installed: it is only what `run` and `up` take when no model is named. */
static void look_at_model(struct findings *f)
{
    struct err e;
    char path[PATH_MAX];
    const char *chosen = getenv(DEFAULT_MODEL_ENV);
    bool found = default_model_find(path, &e) == OK;
    say(f, found || !chosen || !chosen[0], "model", found ? path : e.msg);
}

static void look_at_network(struct findings *f)
{
    struct err e;
    int fd;
    uint16_t port;
    if (net_tcp_listen("127.0.0.1:0", &fd, &port, &e) != OK) {
        say(f, false, "loopback", e.msg);
        return;
    }
    close(fd);
    say(f, true, "loopback", "nodes of this machine can reach each other");
}

int cmd_doctor(int argc, char **argv, const struct command *cmd)
{
    struct findings f = {0};
    const struct opt opts[] = {
        {"json", 0, OPT_FLAG, NULL, "print the findings as JSON", &f.as_json, 0, 0},
        {0},
    };
    const char *pos;
    uint32_t n;
    int rc = opt_parse(cmd, opts, argc, argv, &pos, 0, &n);
    if (rc >= 0)
        return rc;
    if (f.as_json)
        buf_puts(&f.json, "[");
    say(&f, true, "kvasir", KVASIR_VERSION);
    say(&f, true, "ggml", backend_ggml_version());
    look_at_devices(&f);
    look_at_files(&f);
    look_at_model(&f);
    look_at_network(&f);
    if (f.as_json) {
        buf_puts(&f.json, "]");
        printf("%s\n", buf_str(&f.json));
    } else {
        printf("%s\n", f.n_bad ? "something is missing: see BAD above" : "all is well");
    }
    buf_free(&f.json);
    return f.n_bad ? EXIT_FAILED : EXIT_OK;
}
