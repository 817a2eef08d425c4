/* SPDX-License-Identifier: MIT */
#include "lib/test_util.h"

#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

static const char *join(const char *dir, const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%s", dir, name);
    return out;
}

const char *test_data(const char *name, char out[PATH_MAX])
{
    return join(KV_TEST_DATA, name, out);
}

const char *test_shared(const char *name, char out[PATH_MAX])
{
    return join(KV_SHARED, name, out);
}

const char *test_scratch(const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%ld-%s", KV_TEST_SCRATCH, (long)getpid(), name);
    return out;
}

bool test_have_shared(const char *name)
{
    char path[PATH_MAX];
    if (access(test_shared(name, path), R_OK) == 0)
        return true;
    printf("skipped: %s is not here\n", path);
    return false;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
    (void)st;
    (void)kind;
    (void)f;
    return remove(path);
}

void test_remove_tree(const char *path)
{
    if (nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        perror(path);
}

bool test_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}
