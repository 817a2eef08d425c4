/* SPDX-License-Identifier: MIT
 *
 * kvasir: finds the subcommand and runs it.
 */
#include "cli/commands.h"
#include "crypto/key.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_COUNT "200" /* turns; well under a microsecond each */

static void print_usage(FILE *out)
{
    fprintf(out,
            "usage: kvasir COMMAND [ARGS]\n\nRuns a large language model around a ring of devices; none of them holds "
            "all of it.\n\ncommands:\n");
    for (const struct command *c = commands; c->name; c++)
        fprintf(out, "  %-10s%s\n", c->name, c->help);
    fprintf(out, "\nkvasir COMMAND --help says more; kvasir --version shows the version.\n"
                 "KVASIR_LOG=error|warn|info|debug sets how much is logged (default: warn).\n");
}

/* ggml's CPU threads meet at a barrier after every operation and spin there, by libgomp's default for about a
 * millisecond: on a machine that does anything else, several stages for example, a step then takes time slices instead
 * of microseconds (seen: 23 tokens/s instead of 1,000). libgomp reads its settings when the program is loaded, before
 * main; so they are set and the program is loaded again, once. A user's own setting stays. */
static void settle_openmp(char **argv)
{
    char self[PATH_MAX];
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) != 0)
        return;
    self[n] = 0;
    execv(self, argv); /* should it fail, all goes on, only slower */
}

/* Started without one of them, as by `>&-`, the next file that is opened would get its number, and be read or written
 * in its place. What stands in for it can be neither read nor written, as the missing one. */
static void fill_standard_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(EXIT_FAILED); /* nobody to tell */
    }
}

static const struct command *find(const char *name)
{
    for (const struct command *c = commands; c->name; c++) {
        if (strcmp(c->name, name) == 0)
            return c;
    }
    return NULL;
}

static int run(int argc, char **argv)
{
    struct err e;
    const char *first = argv[1];
    if (strcmp(first, "help") == 0 && argc > 2 && find(argv[2])) {
        char option[] = "--help", *help[] = {argv[2], option, NULL};
        return find(argv[2])->run(2, help, find(argv[2]));
    }
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0 || strcmp(first, "help") == 0) {
        print_usage(stdout);
        return EXIT_OK;
    }
    if (strcmp(first, "--version") == 0) {
        printf("kvasir %s\n", KVASIR_VERSION);
        return EXIT_OK;
    }
    const struct command *c = find(first);
    if (!c) {
        fprintf(stderr, "kvasir: there is no command '%s'; kvasir --help lists them\n", first);
        return EXIT_USAGE;
    }
    if (key_library_init(&e) != OK)
        return opt_fail(&e);
    return c->run(argc - 1, argv + 1, c);
}

int main(int argc, char **argv)
{
    fill_standard_fds();
    settle_openmp(argv);
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    int rc = run(argc, argv);
    if (fflush(stdout) != 0 && rc == EXIT_OK) {
        perror("kvasir: cannot write to the standard output");
        rc = EXIT_FAILED;
    }
    return rc;
}
