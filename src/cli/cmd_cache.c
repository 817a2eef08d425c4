/* SPDX-License-Identifier: MIT
 *
 * kvasir cache: what stage files lie in the cache, and their removal. What a pull is at work on is never removed.
 */
#include "base/parse.h"
#include "base/text.h"
#include "cli/commands.h"
#include "shard/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIN_PREFIX    4u /* digits of a model id */
#define SHOWN_DIGITS  12 /* of it */
#define PARTIAL_AGE_S 604800u
#define MAX_AGE_S     3153600000.0

struct cache_command {
    const char *pos[2]; /* ls, rm or gc; model id */
    uint32_t n_pos;
    bool json, all;
    const char *layers, *max;
    uint32_t partial_age;
    uint32_t first, end;
    uint64_t max_bytes;
};

/* "5 min ago" */
static const char *age_text(int64_t used_s, char out[32])
{
    static const struct {
        int64_t s;
        const char *unit;
    } units[] = {{86400, "days"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    const int64_t age = time(NULL) - used_s;
    size_t u = 0;
    while (u < 3 && age < 2 * units[u].s)
        u++;
    snprintf(out, 32, "%lld %s ago", (long long)(age > 0 ? age / units[u].s : 0), units[u].unit);
    return out;
}

static uint64_t bytes_of(const struct cache_item *items, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += items[i].size;
    return sum;
}

/* --- ls --- */

static enum err_code print_json(const struct cache_item *items, size_t n, const char *dir, struct err *e)
{
    struct buf b = {0};
    char id[DIGEST_HEX_SIZE];
    if (!text_valid(dir, strlen(dir)))
        return err_set(e, ERR_ARG, "--json: the name of the cache folder is not UTF-8");
    buf_printf(&b, "{\"bytes\":%llu,\"dir\":", (unsigned long long)bytes_of(items, n));
    text_put_json(&b, dir, strlen(dir));
    buf_puts(&b, ",\"files\":[");
    for (size_t i = 0; i < n; i++) {
        const struct cache_item *x = &items[i];
        buf_printf(&b, "%s{\"end\":%u,\"first\":%u,\"model_id\":\"%s\",\"name\":", i ? "," : "", x->end, x->first,
                   digest_hex(x->model_id, id));
        text_put_json(&b, x->name, strlen(x->name));
        buf_printf(&b, ",\"partial\":%s,\"path\":", x->partial ? "true" : "false");
        text_put_json(&b, x->path, strlen(x->path));
        buf_printf(&b, ",\"size\":%llu,\"used\":%lld}", (unsigned long long)x->size, (long long)x->used_s);
    }
    buf_puts(&b, "]}");
    if (!b.failed)
        printf("%s\n", buf_str(&b));
    enum err_code rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory for %zu files", n) : OK;
    buf_free(&b);
    return rc;
}

static void print_text(const struct cache_item *items, size_t n, const char *dir)
{
    char id[DIGEST_HEX_SIZE], size[16], age[32], window[32];
    if (n > 0)
        printf("%-*s  %-24s %-11s %10s  %s\n", SHOWN_DIGITS, "model id", "model", "blocks", "size", "last used");
    for (size_t i = 0; i < n; i++) {
        const struct cache_item *x = &items[i];
        snprintf(window, sizeof window, "[%u,%u)", x->first, x->end);
        printf("%.*s  %-24s %-11s %10s  %s%s\n", SHOWN_DIGITS, digest_hex(x->model_id, id), x->name[0] ? x->name : "?",
               window, parse_fmt_bytes(x->size, size), age_text(x->used_s, age), x->partial ? ", partial" : "");
    }
    printf("%zu file%s, %s in %s\n", n, n == 1 ? "" : "s", parse_fmt_bytes(bytes_of(items, n), size), dir);
}

static enum err_code list(const struct cache_command *c, struct err *e)
{
    struct cache_item *items;
    size_t n;
    char dir[PATH_MAX];
    enum err_code rc = cache_folder(dir, e);
    if (rc == OK)
        rc = cache_list(&items, &n, e);
    if (rc != OK)
        return rc;
    if (c->json)
        rc = print_json(items, n, dir, e);
    else
        print_text(items, n, dir);
    free(items);
    return rc;
}

/* --- rm --- */

static bool chosen(const struct cache_command *c, const struct cache_item *x)
{
    char id[DIGEST_HEX_SIZE];
    const char *prefix = c->pos[1];
    if (prefix && strncmp(digest_hex(x->model_id, id), prefix, strlen(prefix)) != 0)
        return false;
    return !c->layers || (x->first == c->first && x->end == c->end);
}

/* A prefix must be that of one model. */
static enum err_code choose(const struct cache_command *c, const struct cache_item *items, size_t n, struct err *e)
{
    const struct cache_item *found = NULL;
    char a[DIGEST_HEX_SIZE], b[DIGEST_HEX_SIZE];
    for (size_t i = 0; i < n; i++) {
        if (!chosen(c, &items[i]))
            continue;
        if (c->pos[1] && found && memcmp(found->model_id, items[i].model_id, DIGEST_BYTES) != 0)
            return err_set(e, ERR_ARG, "several models have ids that begin with %s: %.20s..., %.20s...", c->pos[1],
                           digest_hex(found->model_id, a), digest_hex(items[i].model_id, b));
        found = &items[i];
    }
    if (!found && c->pos[1])
        return err_set(e, ERR_NOT_FOUND, "the cache has nothing of a model whose id begins with %.64s%s%.20s",
                       c->pos[1], c->layers ? " and blocks " : "", c->layers ? c->layers : "");
    return OK;
}

static enum err_code drop(const struct cache_command *c, struct err *e)
{
    struct cache_item *items;
    size_t n;
    char id[DIGEST_HEX_SIZE], size[16];
    enum err_code rc = cache_list(&items, &n, e), failed = OK;
    if (rc != OK)
        return rc;
    failed = choose(c, items, n, e);
    for (size_t i = 0; i < n && (failed == OK || failed == ERR_BUSY); i++) {
        const struct cache_item *x = &items[i];
        if (!chosen(c, x))
            continue;
        rc = cache_remove(x, e);
        if (rc == OK)
            printf("removed %.*s %s [%u,%u), %s\n", SHOWN_DIGITS, digest_hex(x->model_id, id), x->name, x->first,
                   x->end, parse_fmt_bytes(x->size, size));
        else
            failed = rc;
    }
    free(items);
    return failed;
}

/* --- gc --- */

static enum err_code collect(const struct cache_command *c, struct err *e)
{
    struct cache_item *items;
    size_t n, n_removed;
    uint64_t bytes;
    char gone[16], left[16];
    enum err_code rc = cache_gc(c->max_bytes, c->partial_age, &n_removed, &bytes, e);
    if (rc == OK)
        rc = cache_list(&items, &n, e);
    if (rc != OK)
        return rc;
    printf("removed %zu file%s, %s; %s left\n", n_removed, n_removed == 1 ? "" : "s", parse_fmt_bytes(bytes, gone),
           parse_fmt_bytes(bytes_of(items, n), left));
    if (bytes_of(items, n) > c->max_bytes)
        fprintf(stderr, "kvasir: more than %s are left: what is being pulled is not removed\n", c->max);
    free(items);
    return OK;
}

/* --- the command --- */

/* -1: all is well, else the exit status. */
static int check_usage(struct cache_command *c, const struct command *cmd, bool ls, bool rm, bool gc)
{
    struct err e;
    const char *prefix = c->pos[1];
    if (!ls && !rm && !gc)
        return c->pos[0] ? opt_usage(cmd, "ls, rm or gc, not '%.40s'", c->pos[0]) : opt_usage(cmd, "ls, rm or gc?");
    if (!rm && (c->all || c->layers || prefix))
        return opt_usage(cmd, "model id, --layers and --all are for rm");
    if (!gc && (c->max || c->partial_age != PARTIAL_AGE_S))
        return opt_usage(cmd, "--max and --partial-age are for gc");
    if (!ls && c->json)
        return opt_usage(cmd, "--json is for ls");
    if (rm && c->all == (prefix != NULL))
        return opt_usage(cmd, "of which model? The first digits of its id (kvasir cache ls), or --all");
    if (rm && c->all && c->layers)
        return opt_usage(cmd, "--layers is for one model, not --all");
    if (prefix && (strlen(prefix) < MIN_PREFIX || strspn(prefix, "0123456789abcdef") != strlen(prefix)))
        return opt_usage(cmd, "'%.70s' is not the beginning of a model id: at least %u digits of kvasir cache ls",
                         prefix, MIN_PREFIX);
    if (c->layers && parse_window(c->layers, &c->first, &c->end, &e) != OK)
        return opt_usage(cmd, "--layers: %s", e.msg);
    if (c->max && parse_bytes("--max", c->max, &c->max_bytes, &e) != OK)
        return opt_usage(cmd, "%s", e.msg);
    return -1;
}

int cmd_cache(int argc, char **argv, const struct command *cmd)
{
    struct cache_command c = {.partial_age = PARTIAL_AGE_S, .max_bytes = UINT64_MAX};
    const struct opt opts[] = {
        {"json", 0, OPT_FLAG, NULL, "ls: print what there is as JSON", &c.json, 0, 0},
        {"layers", 0, OPT_STRING, "A:B", "rm: only the window of blocks A to B-1", &c.layers, 0, 0},
        {"all", 0, OPT_FLAG, NULL, "rm: all that is in the cache", &c.all, 0, 0},
        {"max", 0, OPT_STRING, "SIZE", "gc: at most so many bytes are left (500M, 20G; default: no limit)", &c.max, 0,
         0},
        {"partial-age", 0, OPT_U32, "S", "gc: pulls that stopped so many seconds ago go (default: 604800, a week)",
         &c.partial_age, 0, MAX_AGE_S},
        {0},
    };
    struct err e;
    int status = opt_parse(cmd, opts, argc, argv, c.pos, 2, &c.n_pos);
    if (status >= 0)
        return status;
    const char *verb = c.pos[0] ? c.pos[0] : "";
    const bool ls = strcmp(verb, "ls") == 0, rm = strcmp(verb, "rm") == 0, gc = strcmp(verb, "gc") == 0;
    status = check_usage(&c, cmd, ls, rm, gc);
    if (status >= 0)
        return status;
    const enum err_code rc = ls ? list(&c, &e) : rm ? drop(&c, &e) : collect(&c, &e);
    return rc == OK ? EXIT_OK : opt_fail(&e);
}
