/* SPDX-License-Identifier: MIT
 *
 * kvasir status: what a ring is doing, as one of its nodes knows it: /health and /v1/ring of the node's API. Nodes
 * count; rates are the difference between two answers.
 */
#include "base/clock.h"
#include "base/parse.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/oai.h"
#include "cli/signals.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#define BETWEEN_MS 1200 /* a probe goes around once a second and takes the counts along */

struct status_command {
    struct oai node;
    const char *key_file;
    bool as_json, watch;
    struct signals_stop stop;
};

/* One look at the node. */
struct look {
    bool healthy;
    char reason[200];
    uint64_t at_ns;
    yyjson_doc *ring; /* NULL: none yet */
};

static void look_free(struct look *l)
{
    yyjson_doc_free(l->ring);
    *l = (struct look){0};
}

static yyjson_val *root_of(const struct look *l)
{
    return yyjson_doc_get_root(l->ring);
}

static const char *text_of(yyjson_val *obj, const char *name, char *out, size_t size)
{
    const char *s = yyjson_get_str(yyjson_obj_get(obj, name));
    return text_clean(s ? s : "", s ? strlen(s) : 0, out, size);
}

static uint64_t count_of(yyjson_val *obj, const char *name)
{
    return yyjson_get_uint(yyjson_obj_get(obj, name));
}

/* --- asking -------------------------------------------------------------------------------------- */

static enum err_code ask_health(struct status_command *c, struct look *l, struct err *e)
{
    struct buf body = {0};
    unsigned status;
    enum err_code rc = oai_get(&c->node, "../health", &body, &status, e);
    if (rc == OK) {
        yyjson_doc *doc = body.len ? yyjson_read((const char *)body.data, body.len, 0) : NULL;
        text_of(yyjson_doc_get_root(doc), "reason", l->reason, sizeof l->reason);
        l->healthy = status == 200;
        if (status == 401 || status == 403)
            rc = oai_error(status, body.data, body.len, e);
        else if (status != 200 && status != 503)
            rc = err_set(e, ERR_FORMAT, "what answers at %s is no node of kvasir: its /health gives HTTP %u",
                         c->node.base, status);
        if (!l->healthy && !l->reason[0])
            snprintf(l->reason, sizeof l->reason, "the node does not say why");
        yyjson_doc_free(doc);
    }
    buf_free(&body);
    return rc;
}

static enum err_code ask_ring(struct status_command *c, struct look *l, struct err *e)
{
    struct buf body = {0};
    unsigned status;
    enum err_code rc = oai_get(&c->node, "/ring", &body, &status, e);
    if (rc == OK && status != 200)
        rc = oai_error(status, body.data, body.len, e);
    if (rc == OK) {
        l->ring = body.len ? yyjson_read((const char *)body.data, body.len, 0) : NULL;
        uint64_t age_ms = count_of(root_of(l), "age_ms"); /* of the counts */
        l->at_ns = clock_now_ns() - (age_ms < 60000 ? age_ms : 0) * CLOCK_NS_PER_MS;
        if (!yyjson_is_arr(yyjson_obj_get(root_of(l), "ranks")))
            rc = err_set(e, ERR_FORMAT, "%s/ring does not describe a ring: is this the URL of a node of kvasir?",
                         c->node.base);
    }
    buf_free(&body);
    return rc;
}

static enum err_code look_at(struct status_command *c, struct look *out, struct err *e)
{
    struct look l = {0};
    enum err_code rc = ask_health(c, &l, e);
    if (rc == OK)
        rc = ask_ring(c, &l, e);
    if (rc != OK) {
        look_free(&l);
        return rc;
    }
    look_free(out);
    *out = l;
    return OK;
}

/* --- rates --------------------------------------------------------------------------------------- */

/* What a count grew by in a second; negative: not known. */
static double growth(const struct look *old, const struct look *now, yyjson_val *was, yyjson_val *is, const char *name)
{
    yyjson_val *a = yyjson_obj_get(was, name), *b = yyjson_obj_get(is, name);
    double s = (double)(now->at_ns - old->at_ns) / 1e9;
    if (!yyjson_is_uint(a) || !yyjson_is_uint(b) || yyjson_get_uint(b) < yyjson_get_uint(a) || s <= 0)
        return -1;
    return (double)(yyjson_get_uint(b) - yyjson_get_uint(a)) / s;
}

struct rates {
    double busy, tok, bytes; /* share of the time; a second; negative: not known */
};

static struct rates rates_of(const struct look *old, const struct look *now, size_t i)
{
    yyjson_val *was = yyjson_arr_get(yyjson_obj_get(root_of(old), "ranks"), i);
    yyjson_val *is = yyjson_arr_get(yyjson_obj_get(root_of(now), "ranks"), i);
    struct rates r = {growth(old, now, was, is, "busy_ns") / 1e9, growth(old, now, was, is, "tok"),
                      growth(old, now, was, is, "bytes_out")};
    r.busy = r.busy > 1 ? 1 : r.busy;
    return r;
}

/* --- showing ------------------------------------------------------------------------------------- */

static void print_ranks(const struct look *old, const struct look *now)
{
    size_t i, n;
    yyjson_val *r, *list = yyjson_obj_get(root_of(now), "ranks");
    printf("%-5s %-10s %-12s %8s %10s %11s %10s\n", "rank", "window", "device", "busy", "tokens/s", "bytes/s",
           "resident");
    yyjson_arr_foreach(list, i, n, r)
    {
        char window[48], device[64], busy[16] = "-", tok[24] = "-", bytes[20] = "-", rss[16] = "-";
        struct rates x = rates_of(old, now, i);
        snprintf(window, sizeof window, "[%" PRIu64 ",%" PRIu64 ")", count_of(r, "first"), count_of(r, "end"));
        if (x.busy >= 0)
            snprintf(busy, sizeof busy, "%.0f%%", 100 * x.busy);
        if (x.tok >= 0)
            snprintf(tok, sizeof tok, "%.1f", x.tok);
        if (x.bytes >= 0) {
            char text[16];
            snprintf(bytes, sizeof bytes, "%s/s", parse_fmt_bytes((uint64_t)x.bytes, text));
        }
        if (count_of(r, "rss_bytes"))
            parse_fmt_bytes(count_of(r, "rss_bytes"), rss);
        printf("%-5" PRIu64 " %-10s %-12s %8s %10s %11s %10s\n", count_of(r, "rank"), window,
               text_of(r, "device", device, sizeof device), busy, tok, bytes, rss);
    }
}

static void print_table(const struct status_command *c, const struct look *old, const struct look *now)
{
    char name[256];
    yyjson_val *root = root_of(now), *q = yyjson_obj_get(root, "requests");
    double out = growth(old, now, yyjson_obj_get(root_of(old), "requests"), q, "out_tok");
    if (c->watch && isatty(STDOUT_FILENO))
        printf("\033[H\033[J");
    const size_t n_ranks = yyjson_arr_size(yyjson_obj_get(root, "ranks"));
    printf("%s, %zu rank%s, seen from rank %" PRIu64 ": %s%s\n",
           text_of(yyjson_obj_get(root, "model"), "name", name, sizeof name), n_ranks, n_ranks == 1 ? "" : "s",
           count_of(root, "rank"), now->healthy ? "ready" : "NOT READY: ", now->healthy ? "" : now->reason);
    if (yyjson_is_obj(q)) {
        printf("%" PRIu64 " requests running, %" PRIu64 " waiting", count_of(q, "active"), count_of(q, "waiting"));
        if (out >= 0)
            printf("; %.1f tokens/s", out);
        printf("; %" PRIu64 " tokens since the start\n", count_of(q, "out_tok"));
    }
    putchar('\n');
    print_ranks(old, now);
    if (c->watch && !isatty(STDOUT_FILENO))
        putchar('\n');
}

static void add_rate(yyjson_mut_doc *doc, yyjson_mut_val *obj, const char *name, double v)
{
    if (v >= 0)
        yyjson_mut_obj_add_real(doc, obj, name, v);
    else
        yyjson_mut_obj_add_null(doc, obj, name);
}

/* What the node says of the ring, and what two answers tell. */
static enum err_code print_json(const struct look *old, const struct look *now, struct err *e)
{
    size_t len = 0;
    yyjson_mut_doc *doc = yyjson_doc_mut_copy(now->ring, NULL);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(doc), *list = yyjson_mut_obj_get(root, "ranks");
    yyjson_mut_obj_add_bool(doc, root, "healthy", now->healthy);
    yyjson_mut_obj_add_str(doc, root, "health_reason", now->reason);
    for (size_t i = 0; i < yyjson_mut_arr_size(list); i++) {
        yyjson_mut_val *r = yyjson_mut_arr_get(list, i);
        struct rates x = rates_of(old, now, i);
        add_rate(doc, r, "busy", x.busy);
        add_rate(doc, r, "tok_per_s", x.tok);
        add_rate(doc, r, "bytes_per_s", x.bytes);
    }
    char *json = yyjson_mut_write(doc, 0, &len);
    if (json)
        printf("%s\n", json);
    yyjson_mut_doc_free(doc);
    free(json);
    return json ? OK : err_set(e, ERR_NOMEM, "out of memory for the state of the ring");
}

/* --- the command --------------------------------------------------------------------------------- */

/* Waits between two looks; false: a signal came. */
static bool pause_some(struct status_command *c)
{
    struct pollfd fd = {.fd = c->stop.signal_fd, .events = POLLIN};
    return poll(&fd, 1, BETWEEN_MS) <= 0 || !signals_stopped(&c->stop);
}

static enum err_code show(struct status_command *c, bool *healthy, struct err *e)
{
    struct look old = {0}, now = {0};
    enum err_code rc = look_at(c, &old, e);
    while (rc == OK && pause_some(c)) {
        rc = look_at(c, &now, e);
        if (rc != OK)
            break;
        *healthy = now.healthy;
        if (c->as_json)
            rc = print_json(&old, &now, e);
        else
            print_table(c, &old, &now);
        if (!c->watch)
            break;
        fflush(stdout);
        look_free(&old);
        old = now;
        now = (struct look){0};
    }
    look_free(&old);
    look_free(&now);
    return rc;
}

int cmd_status(int argc, char **argv, const struct command *cmd)
{
    struct status_command c = {.stop = {.signal_fd = -1}, .node = {.idle_ms = 10000, .cancelled = signals_stopped}};
    const struct opt opts[] = {
        {"watch", 'w', OPT_FLAG, NULL, "show it again every second, until Ctrl-C", &c.watch, 0, 0},
        {"json", 0, OPT_FLAG, NULL, "print it as JSON", &c.as_json, 0, 0},
        {"key-file", 0, OPT_STRING, "FILE", "file with the API key, which only you may read", &c.key_file, 0, 0},
        {0},
    };
    const char *url = NULL;
    uint32_t n_pos;
    struct err e;
    bool healthy = false;
    char *key = NULL;
    int status = opt_parse(cmd, opts, argc, argv, &url, 1, &n_pos);
    if (status >= 0)
        return status;
    c.node.ctx = &c.stop;
    enum err_code rc = signals_open(&c.stop.signal_fd, &e);
    if (rc == OK)
        rc = oai_url(url ? url : OAI_DEFAULT_URL, c.node.base, &e);
    if (rc == OK && c.key_file)
        rc = oai_key_load(c.key_file, &key, &e);
    c.node.key = key;
    if (rc == OK)
        rc = show(&c, &healthy, &e);
    if (rc == ERR_IO && !url)
        err_set(&e, ERR_NOT_FOUND, "nothing answers at %s: start a ring with `kvasir up`, or name the URL of a node",
                c.node.base);
    c.node.key = NULL;
    oai_key_free(key);
    if (c.stop.signal_fd >= 0)
        close(c.stop.signal_fd);
    const int sig = atomic_load(&c.stop.signal);
    if (sig)
        return c.watch ? EXIT_OK : 128 + sig; /* that is how watching ends */
    if (rc != OK)
        return opt_fail(&e);
    return healthy || c.watch ? EXIT_OK : EXIT_FAILED;
}
