/* SPDX-License-Identifier: MIT
 *
 * ggml can load all its plugins or one by its path. So they are looked for here, where libggml itself lies, as Debian
 * and ggml's own build install them; where that finds no CPU plugin, ggml loads what it finds.
 */
#include "engine/plugins.h"

#include "base/log.h"
#include "model/gguf.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool tried_cpu, tried_all; /* under the mutex */
static bool all_at_once;          /* ggml did it: nothing is left to load */

static bool have_cpu(void)
{
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) != NULL;
}

/* The plugins beside libggml, sorted by name. */
static bool find(const char *pattern, glob_t *out)
{
    Dl_info info;
    char dir[PATH_MAX], path[PATH_MAX + 64];
    void (*f)(void) = ggml_backend_load_all;
    void *p;
    memcpy(&p, &f, sizeof p);
    if (!dladdr(p, &info) || !info.dli_fname || !strchr(info.dli_fname, '/'))
        return false;
    snprintf(dir, sizeof dir, "%s", info.dli_fname);
    *strrchr(dir, '/') = 0;
    snprintf(path, sizeof path, "%s/ggml/backends*/%s", dir, pattern);
    if (glob(path, 0, NULL, out) == 0)
        return true;
    snprintf(path, sizeof path, "%s/%s", dir, pattern);
    return glob(path, 0, NULL, out) == 0;
}

/* How well a variant of the CPU plugin suits this machine; 0: it cannot run. */
static int score_of(const char *path)
{
    int (*score)(void) = NULL;
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!h)
        return 0;
    *(void **)&score = dlsym(h, "ggml_backend_score");
    int n = score ? score() : dlsym(h, "ggml_backend_init") ? 1 : 0;
    dlclose(h);
    return n;
}

static void load_cpu(void)
{
    glob_t g;
    const char *best = NULL;
    int best_score = 0;
    tried_cpu = true;
    gguf_take_ggml_log();
    if (have_cpu()) { /* built into libggml, and then so is the rest */
        all_at_once = true;
        return;
    }
    if (find("libggml-cpu*.so", &g)) {
        for (size_t i = 0; i < g.gl_pathc; i++) {
            int n = score_of(g.gl_pathv[i]);
            if (n > best_score) {
                best_score = n;
                best = g.gl_pathv[i];
            }
        }
        if (best)
            ggml_backend_load(best);
        globfree(&g);
    }
    if (have_cpu())
        return;
    ggml_backend_load_all();
    all_at_once = true;
}

/* Quietly leaves out a plugin whose driver is not installed. */
static void load_one(const char *path)
{
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!h) {
        log_debug("plugins", "%s", dlerror());
        return;
    }
    if (dlsym(h, "ggml_backend_init"))
        ggml_backend_load(path);
    dlclose(h);
}

static void load_others(void)
{
    glob_t g;
    const char *more = getenv("GGML_BACKEND_PATH");
    tried_all = true;
    if (all_at_once)
        return;
    if (find("libggml-*.so", &g)) {
        for (size_t i = 0; i < g.gl_pathc; i++) {
            const char *name = strrchr(g.gl_pathv[i], '/') + 1;
            if (strncmp(name, "libggml-cpu", 11) != 0 && strncmp(name, "libggml-base", 12) != 0)
                load_one(g.gl_pathv[i]);
        }
        globfree(&g);
    }
    if (more && *more)
        ggml_backend_load(more);
}

static enum err_code load(bool all, struct err *e)
{
    pthread_mutex_lock(&mutex);
    if (!tried_cpu)
        load_cpu();
    if (all && !tried_all)
        load_others();
    bool ok = have_cpu();
    pthread_mutex_unlock(&mutex);
    if (!ok)
        return err_set(e, ERR_NOT_FOUND, "ggml has no CPU backend here: install Debian's libggml0 (0.27 or newer)");
    return OK;
}

enum err_code plugins_load_cpu(struct err *e)
{
    return load(false, e);
}

enum err_code plugins_load_all(struct err *e)
{
    return load(true, e);
}
