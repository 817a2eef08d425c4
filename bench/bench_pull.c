/* SPDX-License-Identifier: MIT
 *
 * A verified pull against a plain download: `kvasir origin` serves a model on loopback; in turns all its blocks are
 * pulled over N connections, each tensor's digest checked, the file synced; and the file is fetched by `curl -o`, or,
 * where there is none, by this program with libcurl and fwrite as curl does it, neither checked nor synced. Each is a
 * process of its own, whose time and peak memory are taken.
 *
 * usage: bench_pull [ROUNDS [FOLDER [CONNECTIONS]]]    files go to FOLDER (default: this one)
 * exit status 1 when something came that is wrong.
 */
#include "rig.h"
#include "stats.h"

#include "base/clock.h"
#include "base/parse.h"
#include "http/client.h"
#include "lib/proc.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODEL      "build/big.gguf"
#define MAX_ROUNDS 20
#define READY_MS   120000

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench_pull: %s\n", what);
    exit(1);
}

/* --- the plain download, as a process --- */

static bool put(void *ctx, const void *data, size_t len)
{
    return fwrite(data, 1, len, ctx) == len;
}

static int plain(const char *url, const char *path)
{
    struct err e;
    unsigned status = 0;
    FILE *f = fopen(path, "wb");
    const struct http_call call = {.url = url, .chunk_bytes = 100 * 1024, .ctx = f, .on_data = put};
    if (!f || http_call(&call, &status, &e) != OK || status != 200 || fclose(f) != 0)
        return 1;
    return 0;
}

static const char *find_curl(void)
{
    static char path[PATH_MAX];
    char dirs[4096];
    snprintf(dirs, sizeof dirs, "%s", getenv("PATH") ? getenv("PATH") : "");
    for (char *save = NULL, *d = strtok_r(dirs, ":", &save); d; d = strtok_r(NULL, ":", &save)) {
        snprintf(path, sizeof path, "%.4000s/curl", d);
        if (access(path, X_OK) == 0)
            return path;
    }
    return NULL;
}

/* --- runs --- */

struct run {
    double s, cpu_s, rss_mib;
};

static struct run run(const char *const *argv)
{
    struct rusage u;
    int status;
    const uint64_t begin = clock_now_ns();
    const pid_t pid = fork();
    if (pid == 0) {
        const int null_fd = open("/dev/null", O_WRONLY);
        if (null_fd >= 0)
            dup2(null_fd, STDOUT_FILENO);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    if (pid < 0 || wait4(pid, &status, 0, &u) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("a download failed");
    return (struct run){.s = (double)(clock_now_ns() - begin) / 1e9,
                        .cpu_s = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                                 (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6,
                        .rss_mib = (double)u.ru_maxrss / 1024};
}

static void start_origin(struct proc *p, char url[PATH_MAX])
{
    char model[PATH_MAX], dir[PATH_MAX];
    if (!realpath(MODEL, model))
        die("no model");
    if (snprintf(dir, sizeof dir, "%s.served", model) >= (int)sizeof dir) /* a folder with this model alone */
        die("the path of the model is too long");
    char link_path[PATH_MAX + 16];
    snprintf(link_path, sizeof link_path, "%s/m.gguf", dir);
    mkdir(dir, 0755);
    if (access(link_path, R_OK) != 0 && symlink(model, link_path) != 0)
        die("cannot link the model");
    const char *argv[] = {KV_BINARY, "origin", dir, "--listen", "127.0.0.1:0", "--json", NULL};
    const char *text = NULL;
    if (!proc_start(p, argv, NULL, -1) || !proc_until(p, PROC_OUT, "\"url\":\"", READY_MS) ||
        !proc_until(p, PROC_OUT, "\"indexed\":1", READY_MS))
        die(proc_text(p, PROC_ERR));
    text = strstr(proc_text(p, PROC_OUT), "\"url\":\"") + 7;
    snprintf(url, PATH_MAX, "%.*s/models/m.gguf", (int)strcspn(text, "\""), text);
}

static double size_of(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        die("there is no file");
    return (double)st.st_size;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--plain") == 0)
        return plain(argv[2], argv[3]);
    struct err e;
    uint32_t n_rounds = 5;
    const char *folder = argc > 2 ? argv[2] : ".", *n = argc > 3 ? argv[3] : "4", *curl = find_curl();
    if (argc > 1 && parse_u32("ROUNDS", argv[1], 1, MAX_ROUNDS, &n_rounds, &e) != OK)
        rig_die(&e);
    gguf_close(rig_model(NULL, "1gb", MODEL));
    struct proc origin;
    char url[PATH_MAX], a[PATH_MAX], b[PATH_MAX], self[PATH_MAX] = "";
    double plain_s[MAX_ROUNDS], pull_s[MAX_ROUNDS], ratio[MAX_ROUNDS], rss = 0, plain_cpu = 0, pull_cpu = 0;
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        die("/proc is needed");
    start_origin(&origin, url);
    snprintf(a, sizeof a, "%.4000s/bench_plain.gguf", folder);
    snprintf(b, sizeof b, "%.4000s/bench_pulled.gguf", folder);
    const char *by_curl[] = {curl, "-s", "-S", "-f", "-o", a, url, NULL};
    const char *by_us[] = {self, "--plain", url, a, NULL};
    const char *pull[] = {KV_BINARY, "pull", url, "-o", b, "--need-index", "--connections", n, NULL};
    printf("%s, %.2f GB, over loopback into %s; plain: %s; pull: %s connections\n\n", MODEL, size_of(MODEL) / 1e9,
           folder, curl ? "curl -o" : "libcurl and fwrite", n);
    printf("round  plain s  pull s  plain/pull  pull MiB\n");
    for (uint32_t i = 0; i < n_rounds; i++) {
        unlink(a);
        const struct run x = run(curl ? by_curl : by_us);
        unlink(b);
        const struct run y = run(pull);
        if (size_of(a) != size_of(MODEL) || size_of(b) < 0.99 * size_of(MODEL))
            die("a file is not as long as it should be");
        plain_s[i] = x.s;
        pull_s[i] = y.s;
        ratio[i] = x.s / y.s;
        plain_cpu += x.cpu_s / n_rounds;
        pull_cpu += y.cpu_s / n_rounds;
        rss = y.rss_mib > rss ? y.rss_mib : rss;
        printf("%5u  %7.2f  %6.2f  %10.2f  %8.1f\n", i + 1, x.s, y.s, ratio[i], y.rss_mib);
        fflush(stdout);
    }
    unlink(a);
    unlink(b);
    kill(origin.pid, SIGTERM);
    proc_wait(&origin, 10000);
    proc_free(&origin);
    printf("\nmedian %7.2f  %6.2f  %10.2f  %8.1f (most); CPU seconds: plain %.2f, pull %.2f\n",
           stats_median(plain_s, n_rounds), stats_median(pull_s, n_rounds), stats_median(ratio, n_rounds), rss,
           plain_cpu, pull_cpu);
    return 0;
}
