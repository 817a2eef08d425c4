/* SPDX-License-Identifier: MIT */
#include "cli/opt.h"

#include "base/parse.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define OPT_MAX 48

int opt_usage(const struct command *c, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "kvasir %s: ", c->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nusage: kvasir %s %s\n       kvasir %s --help\n", c->name, c->args, c->name);
    return EXIT_USAGE;
}

int opt_fail(const struct err *e)
{
    fprintf(stderr, "kvasir: %s: %s\n", err_name(e->code), e->msg);
    return EXIT_FAILED;
}

static void print_help(const struct command *c, const struct opt *opts)
{
    printf("usage: kvasir %s %s\n\n%s\n\noptions:\n", c->name, c->args, c->help);
    for (const struct opt *o = opts; o->name; o++) {
        char left[64];
        int n = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                          : snprintf(left, sizeof left, "      --%s", o->name);
        if (o->arg && n > 0 && (size_t)n < sizeof left)
            snprintf(left + n, sizeof left - (size_t)n, " %s", o->arg);
        printf(strlen(left) < 28 ? "%-28s%s\n" : "%s\n                            %s\n", left, o->help);
    }
    printf("%-28s%s\n", "  -h, --help", "show this text");
}

static enum err_code take(const struct opt *o, const char *text, struct err *e)
{
    char what[48];
    double f;
    enum err_code rc = OK;
    snprintf(what, sizeof what, "--%s", o->name);
    switch (o->kind) {
    case OPT_FLAG:
        *(bool *)o->out = true;
        break;
    case OPT_STRING:
        *(const char **)o->out = text;
        break;
    case OPT_U32:
        rc = parse_u32(what, text, (uint32_t)o->min, (uint32_t)o->max, o->out, e);
        break;
    case OPT_U64:
        rc = parse_u64(what, text, 0, UINT64_MAX, o->out, e);
        break;
    case OPT_FLOAT:
        rc = parse_f64(what, text, o->min, o->max, &f, e);
        if (rc == OK)
            *(float *)o->out = (float)f;
        break;
    case OPT_LIST: {
        struct opt_list *l = o->out;
        if (l->n == OPT_LIST_MAX)
            return err_set(e, ERR_LIMIT, "%s is given more than %d times", what, OPT_LIST_MAX);
        l->item[l->n++] = text;
    }
    }
    return rc;
}

static const struct opt *by_letter(const struct opt *opts, int letter)
{
    for (const struct opt *o = opts; o->name; o++) {
        if (o->letter && o->letter == letter)
            return o;
    }
    return NULL;
}

/* getopt_long took none of this: not an option, several that begin so, or a value where none belongs. */
static int refuse(const struct command *c, const struct option *longs, const char *given)
{
    const size_t n = strncmp(given, "--", 2) == 0 ? strcspn(given + 2, "=") : 0;
    const struct option *first = NULL, *second = NULL;
    if (n == 0 && optopt)
        return opt_usage(c, "there is no option -%c", optopt);
    for (const struct option *o = longs; n > 0 && o->name; o++) {
        if (strncmp(o->name, given + 2, n) != 0)
            continue;
        if (strlen(o->name) == n)
            return opt_usage(c, "--%s takes no value", o->name);
        second = first ? o : second;
        first = first ? first : o;
    }
    if (second)
        return opt_usage(c, "%s could be --%s or --%s", given, first->name, second->name);
    if (first)
        return opt_usage(c, "--%s takes no value", first->name);
    return opt_usage(c, "there is no option %s", given);
}

int opt_parse(const struct command *c, const struct opt *opts, int argc, char **argv, const char **pos,
              uint32_t max_pos, uint32_t *n_pos)
{
    struct option longs[OPT_MAX + 2] = {0};
    char letters[2 * OPT_MAX + 4] = "-:h"; /* "-": positional arguments come as option 1, in place */
    size_t n = 0, m = strlen(letters);
    for (; n < OPT_MAX && opts[n].name; n++) {
        longs[n] = (struct option){.name = opts[n].name, .has_arg = opts[n].arg ? 1 : 0, .val = 256 + (int)n};
        if (opts[n].letter) {
            letters[m++] = opts[n].letter;
            if (opts[n].arg)
                letters[m++] = ':';
        }
    }
    longs[n] = (struct option){.name = "help", .val = 'h'};
    *n_pos = 0;
    optind = 0; /* GNU: start over */
    for (int k; (k = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
        struct err e;
        if (k == 'h') {
            print_help(c, opts);
            return EXIT_OK;
        }
        if (k == 1) {
            if (*n_pos == max_pos)
                return opt_usage(c, "one argument too many: '%s'", optarg);
            pos[(*n_pos)++] = optarg;
            continue;
        }
        const char *given = optind > 0 && optind <= argc ? argv[optind - 1] : "";
        if (k == ':')
            return opt_usage(c, "%s needs a value", given);
        const struct opt *o = k >= 256 ? &opts[k - 256] : by_letter(opts, k);
        if (k == '?' || !o) {
            return refuse(c, longs, given);
        }
        if (take(o, optarg, &e) != OK)
            return opt_usage(c, "%s", e.msg);
    }
    while (optind < argc) { /* after "--" */
        if (*n_pos == max_pos)
            return opt_usage(c, "one argument too many: '%s'", argv[optind]);
        pos[(*n_pos)++] = argv[optind++];
    }
    return -1;
}

int opt_parse_one(const struct command *c, const struct opt *opts, int argc, char **argv, const char **pos,
                  const char *missing)
{
    uint32_t n;
    int rc = opt_parse(c, opts, argc, argv, pos, 1, &n);
    return rc < 0 && n != 1 ? opt_usage(c, "%s", missing) : rc;
}
