/* SPDX-License-Identifier: MIT */
#include "lib/test_util.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
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

const char *test_demo_model(char out[PATH_MAX])
{
    return join(KV_MODELS, "huginn.gguf", out);
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

int test_dead_port(uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &len) != 0) {
        close(fd);
        return -1;
    }
    *port = ntohs(a.sin_port);
    return fd;
}

static void print_ids(const char *what, const int32_t *id, size_t n)
{
    fprintf(stderr, "  %s:", what);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, " %d", id[i]);
    fprintf(stderr, "\n");
}

bool test_same_ids(const char *text, size_t len, const int32_t *got, size_t n_got, const int32_t *want, size_t n_want)
{
    bool same = n_got == n_want;
    for (size_t i = 0; same && i < n_want; i++)
        same = got[i] == want[i];
    if (same)
        return true;
    fprintf(stderr, "text \"%.*s\"\n", (int)(len < 400 ? len : 400), text);
    print_ids("want", want, n_want);
    print_ids("got", got, n_got);
    return false;
}
