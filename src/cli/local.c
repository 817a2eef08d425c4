/* SPDX-License-Identifier: MIT */
#include "cli/local.h"

#include "base/clock.h"
#include "base/log.h"
#include "cli/signals.h"
#include "net/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yyjson.h>

#define STOP_MS    3000u
#define READ_BYTES 4096u
#define LAST_WORDS "kvasir: ERR_" /* opt_fail's, of a process that fails */

/* --- making -------------------------------------------------------------------------------------- */

static enum err_code make_dir(struct local_ring *l, struct err *e)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    if (!base || base[0] != '/' || access(base, W_OK) != 0)
        base = getenv("TMPDIR");
    if (!base || base[0] != '/')
        base = "/tmp";
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/kvasir-XXXXXX", base) >= (int)sizeof path - 32)
        return err_set(e, ERR_ARG, "the path of the temporary folder is too long: %s", base);
    if (!mkdtemp(path))
        return err_set_os(e, ERR_IO, errno, "cannot make a folder in %s", base);
    snprintf(l->dir, sizeof l->dir, "%s", path);
    return OK;
}

static void path_in(const struct local_ring *l, char out[PATH_MAX], const char *name)
{
    if (snprintf(out, PATH_MAX, "%s/%s", l->dir, name) >= PATH_MAX)
        out[0] = 0; /* make_dir left room for it */
}

static void key_path(const struct local_ring *l, char out[PATH_MAX], uint32_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "rank-%u.key", rank);
    path_in(l, out, name);
}

static void remove_dir(struct local_ring *l)
{
    char path[PATH_MAX];
    if (!l->dir[0])
        return;
    for (uint32_t i = 0; i < l->m.n_ranks; i++) {
        key_path(l, path, i);
        unlink(path);
    }
    path_in(l, path, "ring.json");
    unlink(path);
    path_in(l, path, "ring.json.sig");
    unlink(path);
    rmdir(l->dir);
    l->dir[0] = 0;
}

static enum err_code make_rank(struct local_ring *l, uint32_t i, struct err *e)
{
    char path[PATH_MAX];
    uint16_t port;
    key_generate(&l->secrets[i]);
    key_public_of(&l->secrets[i], &l->m.ranks[i].key);
    key_path(l, path, i);
    enum err_code rc = key_save(path, &l->secrets[i], e);
    if (rc != OK || l->m.n_ranks == 1)
        return rc;
    rc = net_tcp_listen("127.0.0.1:0", &l->listen_fds[i], &port, e);
    if (rc == OK)
        snprintf(l->m.ranks[i].addr, sizeof l->m.ranks[i].addr, "127.0.0.1:%u", port);
    return rc;
}

enum err_code local_make(struct local_ring *l, struct manifest *m, const uint8_t model_id[DIGEST_BYTES], struct err *e)
{
    l->m = *m;
    *m = (struct manifest){0};
    uint32_t n = l->m.n_ranks;
    if (!(l->secrets = calloc(n, sizeof *l->secrets)) || !(l->listen_fds = calloc(n, sizeof *l->listen_fds)) ||
        !(l->child = calloc(n, sizeof *l->child))) /* without the last, the others are not looked at */
        return err_set(e, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++)
        l->listen_fds[i] = l->child[i].status_fd = l->child[i].stderr_fd = -1;
    memcpy(l->m.model_id, model_id, DIGEST_BYTES);
    enum err_code rc = make_dir(l, e);
    for (uint32_t i = 0; rc == OK && i < n; i++)
        rc = make_rank(l, i, e);
    if (rc != OK)
        return rc;
    struct key_secret signer;
    key_generate(&signer);
    key_public_of(&signer, &l->signer);
    digest_of(&l->signer, sizeof l->signer, l->m.ring_id); /* the signer is new, so is the ring */
    char path[PATH_MAX];
    path_in(l, path, "ring.json");
    rc = manifest_save(path, &l->m, &signer, e);
    key_wipe(&signer);
    return rc;
}

/* --- starting ------------------------------------------------------------------------------------ */

/* In the child, between fork and exec: only async-signal-safe calls. */
static void become_child(char *const *argv, int status_fd, int stderr_fd, int listen_fd, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0); /* the terminal's Ctrl-C is the parent's to pass on */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd >= 0)
        dup2(null_fd, STDIN_FILENO);
    dup2(stderr_fd, STDERR_FILENO);
    dup2(stderr_fd, STDOUT_FILENO);
    fcntl(status_fd, F_SETFD, 0);
    if (listen_fd >= 0)
        fcntl(listen_fd, F_SETFD, 0);
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* Appends to argv what makes the child serve the API. */
static void add_http(const struct local_ring *l, uint32_t rank, char *addr, size_t size, const char **argv, size_t n)
{
    if (!l->http)
        return;
    const struct {
        const char *name, *value;
    } more[] = {{"--http", addr},
                {"--drain", "2"},
                {"--api-keys", l->serve.keys},
                {"--cors", l->serve.cors},
                {"--allow-host", l->serve.allow_host},
                {"--access-log", l->serve.access_log},
                {"--chat-template", l->serve.chat_template}};
    snprintf(addr, size, "127.0.0.1:%u", l->http_port ? l->http_port + rank : 0);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        if (more[i].value) {
            argv[n++] = more[i].name;
            argv[n++] = more[i].value;
        }
    }
}

/* MODEL, or where each rank pulls its window from. */
static size_t add_source(const struct local_ring *l, const char **argv, size_t n)
{
    if (l->model) {
        argv[n++] = l->model;
        return n;
    }
    for (uint32_t i = 0; i < l->source->origins.n && i < REMOTE_MAX_ORIGINS; i++) {
        argv[n++] = "--origin";
        argv[n++] = l->source->origins.item[i];
    }
    if (l->source->token_file) {
        argv[n++] = "--token-file";
        argv[n++] = l->source->token_file;
    }
    if (l->source->index) {
        argv[n++] = "--index";
        argv[n++] = l->source->index;
    }
    return n;
}

enum err_code local_spawn(struct local_ring *l, uint32_t rank, struct err *e)
{
    struct local_child *c = &l->child[rank];
    char manifest[PATH_MAX], key[PATH_MAX], signer[KEY_TEXT_SIZE], threads[16], status[16], listen[16], warmup[16],
        layers[16], http[32];
    int sp[2], ep[2];
    path_in(l, manifest, "ring.json");
    key_path(l, key, rank);
    if (pipe2(sp, O_CLOEXEC) != 0)
        return err_set_os(e, ERR_IO, errno, "cannot make a pipe");
    if (pipe2(ep, O_CLOEXEC) != 0) {
        int os = errno;
        close(sp[0]);
        close(sp[1]);
        return err_set_os(e, ERR_IO, os, "cannot make a pipe");
    }
    uint32_t n_threads =
        l->options.n_threads ? l->options.n_threads : rank_default_threads(l->m.n_ranks, l->m.ranks[rank].weight_bytes);
    snprintf(threads, sizeof threads, "%u", n_threads);
    snprintf(status, sizeof status, "%d", sp[1]);
    snprintf(listen, sizeof listen, "%d", l->listen_fds[rank]);
    snprintf(warmup, sizeof warmup, "%u", l->warmup);
    const char *argv[40 + 2 * (REMOTE_MAX_ORIGINS + 2)] = {
        "kvasir", "node", "--manifest", manifest, "--signer",    key_text(&l->signer, signer),
        "--key",  key,    "--threads",  threads,  "--status-fd", status};
    size_t n = add_source(l, argv, 12);
    if (l->listen_fds[rank] >= 0) {
        argv[n++] = "--listen-fd";
        argv[n++] = listen;
    }
    if (l->options.kv) {
        argv[n++] = "--kv";
        argv[n++] = l->options.kv;
    }
    if (l->options.device_layers) {
        snprintf(layers, sizeof layers, "%u", l->options.device_layers);
        argv[n++] = "--device-layers";
        argv[n++] = layers;
    }
    if (l->options.no_repack)
        argv[n++] = "--no-repack";
    if (rank == 0 && l->warmup) {
        argv[n++] = "--warmup";
        argv[n++] = warmup;
    }
    add_http(l, rank, http, sizeof http, argv, n);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become_child((char *const *)(uintptr_t)argv, sp[1], ep[1], l->listen_fds[rank], parent);
    int os = errno;
    close(sp[1]);
    close(ep[1]);
    if (pid < 0) {
        close(sp[0]);
        close(ep[0]);
        return err_set_os(e, ERR_IO, os, "cannot start a process");
    }
    fcntl(sp[0], F_SETFL, O_NONBLOCK);
    fcntl(ep[0], F_SETFL, O_NONBLOCK);
    c->pid = pid;
    c->status_fd = sp[0];
    c->stderr_fd = ep[0];
    if (l->listen_fds[rank] >= 0)
        close(l->listen_fds[rank]);
    l->listen_fds[rank] = -1;
    return OK;
}

/* --- listening to the children ------------------------------------------------------------------- */

static uint64_t number(yyjson_val *o, const char *key)
{
    return yyjson_get_uint(yyjson_obj_get(o, key));
}

static void on_status(struct local_child *c, const char *line, size_t len)
{
    yyjson_doc *doc = yyjson_read(line, len, 0);
    yyjson_val *o = yyjson_doc_get_root(doc);
    c->began = true;
    const char *event = yyjson_get_str(yyjson_obj_get(o, "event"));
    if (!event) {
        log_warn("local", "a node reports what is not a status line");
    } else if (strcmp(event, "loaded") == 0) {
        c->loaded = true;
    } else if (strcmp(event, "whole") == 0) {
        c->whole = true;
    } else if (strcmp(event, "lost") == 0) {
        c->whole = false;
    } else if (strcmp(event, "http") == 0) {
        c->http_port = (uint16_t)number(o, "port");
    } else if (strcmp(event, "pull") == 0) {
        c->pull.told_ns = clock_now_ns();
        c->pull.done_bytes = number(o, "done_bytes");
        c->pull.total_bytes = number(o, "total_bytes");
        c->pull.bytes_per_s = number(o, "bytes_per_s");
    } else if (strcmp(event, "rate") == 0) {
        c->rate = (float)yyjson_get_num(yyjson_obj_get(o, "tok_per_s"));
    } else if (strcmp(event, "stats") == 0) {
        c->report = (struct rank_report){
            .rss_bytes = number(o, "rss_bytes"),
            .weight_bytes = number(o, "weight_bytes"),
            .kv_bytes = number(o, "kv_bytes"),
            .compute_bytes = number(o, "compute_bytes"),
            .n_steps = number(o, "steps"),
            .n_tok = number(o, "tok"),
            .busy_ns = number(o, "busy_ns"),
            .in_bytes = number(o, "in_bytes"),
            .out_bytes = number(o, "out_bytes"),
            .n_out_tok = number(o, "out_tok"),
        };
    }
    yyjson_doc_free(doc);
}

static void on_log(const struct local_ring *l, uint32_t rank, const char *line, size_t len)
{
    struct local_child *c = &l->child[rank];
    snprintf(c->last_log, sizeof c->last_log, "%.*s", (int)len, line);
    /* Why it ends, local_explain says. While all of them end, each sees its neighbours go: nobody needs to know. */
    if (l->stopping ? memmem(line, len, "[ring] ERR_CLOSED", 17) != NULL
                    : strncmp(c->last_log, LAST_WORDS, strlen(LAST_WORDS)) == 0)
        return;
    progress_clear();
    fprintf(stderr, "rank %u: %.*s\n", rank, (int)len, line);
}

/* Reads a pipe and hands out its whole lines; false at its end. */
static bool read_lines(struct local_ring *l, uint32_t rank, int fd, struct buf *in, bool status)
{
    for (;;) {
        uint8_t *p = buf_reserve(in, READ_BYTES);
        ssize_t n = p ? read(fd, p, READ_BYTES) : -1;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 && errno == EAGAIN;
        in->len += (size_t)n;
        size_t done = 0;
        for (uint8_t *nl; (nl = memchr(in->data + done, '\n', in->len - done));) {
            const char *line = (const char *)in->data + done;
            size_t len = (size_t)(nl - (in->data + done));
            if (status)
                on_status(&l->child[rank], line, len);
            else
                on_log(l, rank, line, len);
            done += len + 1;
        }
        memmove(in->data, in->data + done, in->len - done);
        in->len -= done;
        if (in->len > (size_t)16 * READ_BYTES) /* no line is that long */
            in->len = 0;
    }
}

uint32_t local_poll(const struct local_ring *l, struct pollfd *fds)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->m.n_ranks; i++) {
        if (l->child[i].status_fd >= 0)
            fds[n++] = (struct pollfd){.fd = l->child[i].status_fd, .events = POLLIN};
        if (l->child[i].stderr_fd >= 0)
            fds[n++] = (struct pollfd){.fd = l->child[i].stderr_fd, .events = POLLIN};
    }
    return n;
}

static void reap(struct local_child *c)
{
    int status;
    if (c->pid > 0 && waitpid(c->pid, &status, WNOHANG) == c->pid) {
        c->exited = true;
        c->exit_status = status;
        c->pid = 0;
    }
}

void local_read(struct local_ring *l, const struct pollfd *fds, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t i = 0; fds[k].revents && i < l->m.n_ranks; i++) {
            struct local_child *c = &l->child[i];
            bool status = fds[k].fd == c->status_fd;
            if (fds[k].fd < 0 || (!status && fds[k].fd != c->stderr_fd))
                continue;
            int *fd = status ? &c->status_fd : &c->stderr_fd;
            if (!read_lines(l, i, *fd, status ? &c->status_in : &c->stderr_in, status)) {
                close(*fd);
                *fd = -1;
            }
            break;
        }
    }
    bool all_began = true;
    for (uint32_t i = 0; i < l->m.n_ranks; i++) {
        all_began &= l->child[i].began || l->child[i].pid == 0;
        reap(&l->child[i]);
    }
    if (all_began) /* whatever becomes of this process, no keys stay behind */
        remove_dir(l);
}

int local_dead(const struct local_ring *l)
{
    for (uint32_t i = 0; i < l->m.n_ranks; i++) { /* once its last words are read */
        if (l->child[i].exited && l->child[i].stderr_fd < 0)
            return (int)i;
    }
    return -1;
}

enum err_code local_explain(const struct local_ring *l, uint32_t rank, struct err *e)
{
    const struct local_child *c = &l->child[rank];
    bool sig = WIFSIGNALED(c->exit_status);
    if (!sig && strncmp(c->last_log, LAST_WORDS, strlen(LAST_WORDS)) == 0)
        return err_set(e, ERR_CLOSED, "rank %u ended: %s", rank, c->last_log + strlen("kvasir: "));
    return err_set(e, ERR_CLOSED, "rank %u ended (%s %d)%s%s", rank, sig ? "signal" : "status",
                   sig ? WTERMSIG(c->exit_status) : WEXITSTATUS(c->exit_status),
                   c->last_log[0] ? "; its last line: " : "", c->last_log);
}

uint64_t local_pulls(const struct local_ring *l, struct pull_progress *p)
{
    uint64_t last = 0;
    for (uint32_t i = 0; l->child && i < l->m.n_ranks; i++) {
        const struct local_child *c = &l->child[i];
        last = c->pull.told_ns > last ? c->pull.told_ns : last;
        p->done_bytes += c->pull.done_bytes;
        p->total_bytes += c->pull.total_bytes;
        p->bytes_per_s += c->loaded ? 0 : c->pull.bytes_per_s;
    }
    p->eta_s = p->bytes_per_s ? (p->total_bytes - p->done_bytes) / p->bytes_per_s : UINT64_MAX;
    return last;
}

uint64_t local_show_start(const struct local_ring *l, struct progress *line)
{
    struct pull_progress p = {0};
    const uint64_t last = local_pulls(l, &p);
    uint32_t n = 0, ready = 0;
    for (uint32_t i = 0; l->child && i < l->m.n_ranks; i++) {
        n += l->child[i].pid > 0;
        ready += l->child[i].pid > 0 && l->child[i].loaded;
    }
    if (p.done_bytes < p.total_bytes)
        progress_show_rate(line, p.done_bytes, p.total_bytes, p.bytes_per_s, p.eta_s);
    else if (!progress_due(line))
        return last;
    else if (n > 0)
        progress_line("loading: %u of %u processes are ready", ready, n);
    else
        progress_line("waiting for the other ranks");
    return last;
}

/* --- stopping ------------------------------------------------------------------------------------ */

static bool any_left(const struct local_ring *l)
{
    for (uint32_t i = 0; i < l->m.n_ranks; i++) {
        if (l->child[i].pid > 0 || l->child[i].status_fd >= 0 || l->child[i].stderr_fd >= 0)
            return true;
    }
    return false;
}

static void signal_all(const struct local_ring *l, int sig)
{
    for (uint32_t i = 0; i < l->m.n_ranks; i++) {
        if (l->child[i].pid > 0)
            kill(l->child[i].pid, sig);
    }
}

enum err_code local_wait(struct local_ring *l, struct local_wait *w, int ms, struct err *e)
{
    struct pollfd fds[2 + 2 * MANIFEST_MAX_RANKS];
    fds[0] = (struct pollfd){.fd = w->signal_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = w->event_fd, .events = POLLIN};
    uint32_t n = l ? local_poll(l, fds + 2) : 0;
    if (poll(fds, n + 2, ms) < 0 && errno != EINTR)
        return err_set_os(e, ERR_IO, errno, "cannot wait");
    if (fds[0].revents && (w->signal = signals_take(w->signal_fd)))
        return err_set(e, ERR_CANCELLED, "interrupted");
    if (!l)
        return OK;
    local_read(l, fds + 2, n);
    int dead = local_dead(l);
    return dead < 0 ? OK : local_explain(l, (uint32_t)dead, e);
}

void local_stop(struct local_ring *l)
{
    if (!l->child)
        return;
    struct pollfd *fds = calloc(2 * (size_t)l->m.n_ranks + 1, sizeof *fds);
    uint64_t deadline = clock_deadline_ms(STOP_MS), last = clock_deadline_ms(2 * STOP_MS);
    bool killed = false;
    l->stopping = true;
    signal_all(l, SIGTERM);
    while (fds && any_left(l) && clock_now_ns() < last) {
        uint32_t n = local_poll(l, fds);
        poll(fds, n, n ? 20 : 5);
        local_read(l, fds, n);
        if (!killed && clock_now_ns() >= deadline) {
            killed = true;
            signal_all(l, SIGKILL);
        }
    }
    free(fds);
}

void local_fini(struct local_ring *l)
{
    local_stop(l);
    for (uint32_t i = 0; l->child && i < l->m.n_ranks; i++) {
        struct local_child *c = &l->child[i];
        if (c->status_fd >= 0)
            close(c->status_fd);
        if (c->stderr_fd >= 0)
            close(c->stderr_fd);
        buf_free(&c->status_in);
        buf_free(&c->stderr_in);
        if (l->listen_fds[i] >= 0)
            close(l->listen_fds[i]);
        key_wipe(&l->secrets[i]);
    }
    remove_dir(l);
    free(l->secrets);
    free(l->listen_fds);
    free(l->child);
    manifest_fini(&l->m);
}
