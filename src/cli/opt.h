/* SPDX-License-Identifier: MIT
 *
 * Options of a command: one table says name, form and help, and from it come the parsing (getopt_long) and the text of
 * --help. Main thread only.
 */
#ifndef KVASIR_CLI_OPT_H
#define KVASIR_CLI_OPT_H

#include "base/err.h"

#include <stddef.h>

enum opt_kind {
    OPT_FLAG,   /* bool */
    OPT_STRING, /* const char *: points into argv */
    OPT_U32,    /* uint32_t in [min, max] */
    OPT_U64,    /* uint64_t, any */
    OPT_FLOAT,  /* float in [min, max] */
    OPT_LIST,   /* struct opt_list: may be given several times */
};

#define OPT_LIST_MAX 256
struct opt_list {
    const char *item[OPT_LIST_MAX];
    uint32_t n;
};

struct opt {
    const char *name; /* long name without dashes; NULL ends the table */
    char letter;      /* 0: none */
    enum opt_kind kind;
    const char *arg; /* what --help calls the value; NULL for a flag */
    const char *help;
    void *out;
    double min, max;
};

struct command {
    const char *name;
    const char *args; /* "MODEL [OPTIONS]" */
    const char *help; /* one line */
    int (*run)(int argc, char **argv, const struct command *c);
};

/* Exit statuses. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Parses argv[1..]; options and positional arguments may be mixed. *n_pos positional ones end up in pos[0..max_pos).
 * Returns -1 to go on, else the status to exit with (0 after --help was printed). */
int opt_parse(const struct command *c, const struct opt *opts, int argc, char **argv, const char **pos,
              uint32_t max_pos, uint32_t *n_pos);

/* The same for a command with exactly one positional argument; `missing` is what to ask when it is not there. */
int opt_parse_one(const struct command *c, const struct opt *opts, int argc, char **argv, const char **pos,
                  const char *missing);

/* "kvasir CMD: what is wrong" and where help is; returns EXIT_USAGE. */
int opt_usage(const struct command *c, const char *fmt, ...) KV_PRINTF(2, 3);

/* "kvasir: ERR_X: message"; returns EXIT_FAILED. */
int opt_fail(const struct err *e);

#endif
