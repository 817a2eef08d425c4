/* SPDX-License-Identifier: MIT */
#include "cli/default_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* CMakeLists.txt defines these for this file:
 * KVASIR_BUILD_DIR, KVASIR_SOURCE_MODELS   where the program was built, and models/ of its source
 * KVASIR_BIN_TO_MODELS                     from the folder of the installed program to that of its models
 * KVASIR_INSTALLED_MODELS                  the latter as it was configured */

static bool readable(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, R_OK) == 0;
}

/* The folder of the program that runs, without symbolic links; false when the kernel does not say. */
static bool program_dir(char out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (n <= 0)
        return false;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (!slash)
        return false;
    slash[slash == out] = 0; /* of a program in "/" that much stays */
    return true;
}

/* The source tree is looked at only by the program in the build tree: an installed one must not take a file from a
 * folder that by now may be anybody's. */
static bool runs_where_built(const char *dir)
{
    char built[PATH_MAX];
    return realpath(KVASIR_BUILD_DIR, built) && strcmp(built, dir) == 0;
}

static bool found_in(const char *dir, const char *below, char out[PATH_MAX])
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s%s/%s", dir, below[0] ? "/" : "", below, DEFAULT_MODEL_FILE);
    /* realpath: without the ".." that below may begin with, as it is shown in messages */
    return n > 0 && (size_t)n < sizeof path && readable(path) && realpath(path, out);
}

static enum err_code from_environment(const char *path, char out[PATH_MAX], struct err *e)
{
    if (strlen(path) >= PATH_MAX)
        return err_set(e, ERR_LIMIT, "the path in %s is longer than %d bytes", DEFAULT_MODEL_ENV, PATH_MAX - 1);
    if (access(path, R_OK) != 0)
        return err_set_os(e, ERR_NOT_FOUND, errno, "cannot read the model that %s names, %s", DEFAULT_MODEL_ENV, path);
    memcpy(out, path, strlen(path) + 1);
    return OK;
}

enum err_code default_model_find(char out[PATH_MAX], struct err *e)
{
    char dir[PATH_MAX], path[PATH_MAX];
    const char *chosen = getenv(DEFAULT_MODEL_ENV);
    if (chosen && chosen[0])
        return from_environment(chosen, out, e);
    bool known = program_dir(dir);
    if ((known && runs_where_built(dir) && found_in(KVASIR_SOURCE_MODELS, "", path)) ||
        (known && found_in(dir, KVASIR_BIN_TO_MODELS, path)) || found_in(KVASIR_INSTALLED_MODELS, "", path)) {
        memcpy(out, path, strlen(path) + 1);
        return OK;
    }
    return err_set(e, ERR_NOT_FOUND,
                   "no model is named, and the one that comes with kvasir, %s, is not there: name a GGUF file as "
                   "MODEL or in %s",
                   DEFAULT_MODEL_FILE, DEFAULT_MODEL_ENV);
}
