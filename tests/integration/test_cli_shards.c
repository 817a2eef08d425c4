/* SPDX-License-Identifier: MIT
 *
 * Rings of which no node has the model: each pulls its window, from our origin or from nginx, and serves it. What goes
 * over the wire is counted where it leaves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "lib/cli_rig.h"
#include "lib/golden_json.h"
#include "lib/maker.h"
#include "lib/nginx_rig.h"
#include "lib/split.h"
#include "lib/test_util.h"
#include "lib/web.h"
#include "model/hparams.h"
#include "model/ident.h"
#include "model/slice.h"
#include "net/tcp.h"

#include <ggml.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

#define N_NODES 3
#define URL     128

static char dir[PATH_MAX], models[PATH_MAX]; /* the origin's folder is dir/models */

static const char *in_dir(const char *name, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        fail_msg("path too long");
    return out;
}

/* home: whose cache it uses, a folder in dir. argv ends with NULL, without the program's name. */
static void start(struct proc *p, const char *home, const char *const *words, int keep_fd)
{
    char home_env[PATH_MAX + 16], path[PATH_MAX], tmp_env[PATH_MAX + 16];
    snprintf(home_env, sizeof home_env, "KVASIR_HOME=%s", in_dir(home, path));
    snprintf(tmp_env, sizeof tmp_env, "TMPDIR=%s", dir);
    const char *env[] = {home_env,       tmp_env,           "XDG_RUNTIME_DIR",
                         "KVASIR_MODEL", "KVASIR_TOKEN",    "HF_TOKEN",
                         "http_proxy",   "KVASIR_LOG=info", NULL};
    cli_start(p, words, env, keep_fd);
}
#define START(p, home, ...) start(p, home, CLI_WORDS(__VA_ARGS__), -1)

/* Ends with this status; its output stays until proc_free. */
#define RUN(p, code, home, ...)                                                                                        \
    do {                                                                                                               \
        START(p, home, __VA_ARGS__);                                                                                   \
        cli_finish(p, code);                                                                                           \
    } while (0)

static void copy(const char *from, const char *folder, const char *name)
{
    struct buf b = {0};
    struct err e;
    char to[PATH_MAX];
    assert_true(snprintf(to, sizeof to, "%s/%s", folder, name) < (int)sizeof to);
    if (io_read_file(from, 64u << 20, &b, &e) != OK || io_write_file(to, b.data, b.len, 0644, &e) != OK)
        fail_msg("%s", e.msg);
    buf_free(&b);
}

/* A fixture of tests/data into the origin's folder. */
static void put_fixture(const char *name)
{
    char path[PATH_MAX];
    copy(test_data(name, path), models, name);
}

static void empty_models(void)
{
    test_remove_tree(models);
    assert_int_equal(mkdir(models, 0755), 0);
}

/* --- servers ------------------------------------------------------------------------------------- */

struct server {
    struct proc p;
    uint16_t port;
    char base[URL];
    uint64_t n_looks; /* of counts_of */
};

static void server_listens(struct server *s)
{
    s->n_looks = 0;
    s->port = (uint16_t)strtoul(cli_line(&s->p, PROC_OUT, "http://127.0.0.1:") + 17, NULL, 10);
    snprintf(s->base, sizeof s->base, "http://127.0.0.1:%u", s->port);
}

static void server_start(struct server *s, const char *folder)
{
    START(&s->p, "home-origin", "origin", folder, "--listen", "127.0.0.1:0");
    server_listens(s);
}

static void server_stop(struct server *s)
{
    cli_stop(&s->p);
}

static const char *url_of(const struct server *s, const char *name, char out[URL])
{
    assert_true(snprintf(out, URL, "%s/models/%s", s->base, name) < URL);
    return out;
}

struct counts {
    uint64_t n_requests, bytes;
};

/* The sum of a metric over its labels. */
static uint64_t metric(const char *text, const char *name)
{
    uint64_t sum = 0;
    const size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL) {
        const char *end = strchr(line, '\n'), *value = end;
        if (strncmp(line, name, n) != 0 || line[n] != '{')
            continue;
        while (value && value > line && value[-1] != ' ')
            value--;
        sum += value ? strtoull(value, NULL, 10) : 0;
    }
    return sum;
}

/* Requests answered and bytes of models sent, without those of looking. */
static struct counts counts_of(struct server *s)
{
    struct web w;
    assert_true(web_call(&w, s->port, "GET", "/metrics", NULL, NULL));
    assert_int_equal(w.status, 200);
    const struct counts c = {.n_requests = metric(web_body(&w), "kvasir_origin_requests_total") - s->n_looks,
                             .bytes = metric(web_body(&w), "kvasir_origin_body_bytes_total")};
    s->n_looks++;
    web_free(&w);
    return c;
}

/* Waits until the origin knows all ids. */
static void wait_indexed(const struct server *s)
{
    const uint64_t deadline = clock_deadline_ms(CLI_WAIT_MS);
    for (bool waits = true; waits;) {
        struct web w;
        assert_true(clock_now_ns() < deadline);
        assert_true(web_call(&w, s->port, "GET", "/models", NULL, NULL));
        waits = strstr(web_body(&w), "\"waiting\"") != NULL;
        web_free(&w);
        usleep(5000);
    }
}

/* nginx over the models. false: it is not installed. */
static bool nginx_serves(struct server *s)
{
    char home[PATH_MAX];
    if (!nginx_start(&s->p, in_dir("nginx", home), models, &s->port))
        return false;
    snprintf(s->base, sizeof s->base, "http://127.0.0.1:%u", s->port);
    return true;
}

static void nginx_ends(struct server *s)
{
    kill(s->p.pid, SIGQUIT);
    assert_true(proc_wait(&s->p, CLI_WAIT_MS));
    proc_free(&s->p);
}

/* --- rings --------------------------------------------------------------------------------------- */

struct ring {
    char manifest[PATH_MAX], key[N_NODES][PATH_MAX], home[N_NODES][32], signer[48];
    int fd[N_NODES];
    struct proc node[N_NODES];
};

/* Makes dir/NAME.key; its public key. */
static void keygen(const char *name, char path[PATH_MAX], char pub[48])
{
    struct proc p;
    char file[64];
    snprintf(file, sizeof file, "%s.key", name);
    RUN(&p, 0, "home-plan", "keygen", in_dir(file, path));
    snprintf(pub, 48, "%.*s", (int)strcspn(proc_text(&p, PROC_OUT), "\n"), proc_text(&p, PROC_OUT));
    assert_int_equal(strlen(pub), 43);
    proc_free(&p);
}

/* Keys, ports, and a manifest of the model at the URL. */
static void ring_init(struct ring *r, const char *url)
{
    char signer_key[PATH_MAX], node[N_NODES][96];
    struct proc p;
    struct err e;
    char home[PATH_MAX];
    memset(r, 0, sizeof *r);
    keygen("signer", signer_key, r->signer);
    for (int i = 0; i < N_NODES; i++) {
        char name[16], pub[48];
        uint16_t port;
        snprintf(name, sizeof name, "node%d", i);
        snprintf(r->home[i], sizeof r->home[i], "home%d", i);
        keygen(name, r->key[i], pub);
        mkdir(in_dir(r->home[i], home), 0700);
        if (net_tcp_listen("127.0.0.1:0", &r->fd[i], &port, &e) != OK)
            fail_msg("%s", e.msg);
        snprintf(node[i], sizeof node[i], "%s@127.0.0.1:%u", pub, port);
        r->node[i].fd[0] = r->node[i].fd[1] = -1;
    }
    RUN(&p, 0, "home-plan", "plan", url, "--even", "--stages", "3", "--key", signer_key, "-o",
        in_dir("ring.json", r->manifest), "--node", node[0], "--node", node[1], "--node", node[2], "--ctx", "256");
    proc_free(&p);
}

/* Nodes that have no model but the origins'; empty caches unless they are kept. NULL: no origin. */
static void ring_start(struct ring *r, const char *origin)
{
    for (int i = 0; i < N_NODES; i++) {
        char fd[16];
        const char *words[32] = {"node",        "--manifest", r->manifest,   "--key",  r->key[i],
                                 "--signer",    r->signer,    "--listen-fd", fd,       "--kv",
                                 "f32",         "--threads",  "1",           "--http", "127.0.0.1:0",
                                 "--status-fd", "1"};
        size_t n = 17;
        snprintf(fd, sizeof fd, "%d", r->fd[i]);
        if (origin) {
            words[n++] = "--origin";
            words[n++] = origin;
        }
        words[n] = NULL;
        start(&r->node[i], r->home[i], words, r->fd[i]);
    }
}

static void ring_stop(struct ring *r)
{
    for (int i = 0; i < N_NODES; i++)
        kill(r->node[i].pid, SIGTERM);
    for (int i = 0; i < N_NODES; i++) {
        cli_finish(&r->node[i], 0);
        proc_free(&r->node[i]);
    }
}

static void ring_fini(struct ring *r)
{
    char path[PATH_MAX + 8];
    for (int i = 0; i < N_NODES; i++) {
        proc_free(&r->node[i]);
        close(r->fd[i]);
        unlink(r->key[i]);
        test_remove_tree(in_dir(r->home[i], path));
    }
    unlink(in_dir("signer.key", path));
    unlink(r->manifest);
    snprintf(path, sizeof path, "%s.sig", r->manifest);
    unlink(path);
}

static uint16_t http_port(struct proc *node)
{
    static const char event[] = "\"event\":\"http\",\"port\":";
    return (uint16_t)strtoul(cli_line(node, PROC_OUT, event) + sizeof event - 1, NULL, 10);
}

/* n prompts of the references, asked at the ranks in turn, give the references' texts. */
static void check_golden(struct ring *r, const char *golden, int n)
{
    struct golden_json g;
    struct err e;
    char path[PATH_MAX];
    if (golden_json_open(test_data(golden, path), &g, &e) != OK)
        fail_msg("%s", e.msg);
    cli_says(&r->node[0], PROC_OUT, "\"event\":\"whole\"");
    for (int i = 0; i < N_NODES; i++) {
        const struct golden_text *c = &g.cases[i % n];
        struct buf body = {0};
        struct web w;
        char want[1024];
        buf_printf(&body, "{\"temperature\":0,\"max_tokens\":%zu,\"prompt\":", c->greedy.n);
        text_put_json(&body, c->text.data, c->text.len);
        buf_puts(&body, "}");
        assert_true(web_call(&w, http_port(&r->node[i]), "POST", "/v1/completions",
                             "Content-Type: application/json\r\n", buf_str(&body)));
        yyjson_doc *d = yyjson_read((const char *)w.body.data, w.body.len, 0);
        const char *got = yyjson_get_str(yyjson_doc_ptr_get(d, "/choices/0/text"));
        snprintf(want, sizeof want, "%.*s", (int)c->greedy_text.len, c->greedy_text.data);
        if (w.status != 200 || !got || strcmp(got, want) != 0)
            fail_msg("rank %d, %s: status %u, %s\nis not\n%s", i, c->name, w.status, web_body(&w), want);
        yyjson_doc_free(d);
        web_free(&w);
        buf_free(&body);
    }
    golden_json_close(&g);
}

/* Each node has pulled one window and has no other file of the model open or mapped. */
static void check_own_window_only(struct ring *r)
{
    for (int i = 0; i < N_NODES; i++) {
        char maps[64];
        struct buf b = {0};
        struct err e;
        cli_says(&r->node[i], PROC_ERR, "pulling window");
        cli_says(&r->node[i], PROC_OUT, "\"event\":\"loaded\"");
        snprintf(maps, sizeof maps, "/proc/%d/maps", (int)r->node[i].pid);
        if (io_read_file(maps, 8u << 20, &b, &e) != OK)
            fail_msg("%s", e.msg);
        assert_null(strstr(buf_str(&b), models));
        buf_free(&b);
    }
}

/* A ring that pulls from `origin`, answers, and answers again from what it pulled when neither server nor model are
 * there any more. */
static void ring_pulls(const char *url, const char *origin, const char *golden, int n, struct server *s,
                       void (*stop)(struct server *))
{
    struct ring r;
    ring_init(&r, url);
    ring_start(&r, origin);
    check_golden(&r, golden, n);
    check_own_window_only(&r);
    ring_stop(&r);
    stop(s);
    test_remove_tree(models);
    ring_start(&r, origin);
    check_golden(&r, golden, n);
    ring_stop(&r);
    ring_start(&r, NULL);
    check_golden(&r, golden, n);
    ring_stop(&r);
    ring_fini(&r);
    assert_int_equal(mkdir(models, 0755), 0);
}

static void test_ring_from_origin(void **state)
{
    (void)state;
    struct server s;
    char url[URL];
    put_fixture("llama-spm-f32.gguf");
    put_fixture("llama-tied-f32.gguf"); /* another one: the manifest's id tells them apart */
    server_start(&s, models);
    ring_pulls(url_of(&s, "llama-spm-f32.gguf", url), s.base, "golden/llama-spm-f32.json", 3, &s, server_stop);
}

static void test_ring_from_split_model(void **state)
{
    (void)state;
    struct server s;
    struct err e;
    char url[URL], path[PATH_MAX], stem[PATH_MAX + 8];
    snprintf(stem, sizeof stem, "%s/spm", models);
    if (split_gguf(test_data("llama-spm-f32.gguf", path), stem, 3, &e) != OK)
        fail_msg("%s", e.msg);
    server_start(&s, models);
    url_of(&s, "spm-00001-of-00003.gguf", url);
    ring_pulls(url, url, "golden/llama-spm-f32.json", 3, &s, server_stop);
}

static void make_index(const char *model, const char *out)
{
    struct proc p;
    RUN(&p, 0, "home-plan", "index", model, "-o", out);
    proc_free(&p);
}

static void test_ring_from_nginx(void **state)
{
    (void)state;
    struct server s;
    char url[URL], model[PATH_MAX + 32], kvi[PATH_MAX + 40];
    put_fixture("llama-spm-f32.gguf");
    snprintf(model, sizeof model, "%s/llama-spm-f32.gguf", models);
    snprintf(kvi, sizeof kvi, "%s.kvi", model);
    make_index(model, kvi);
    if (!nginx_serves(&s)) {
        empty_models();
        skip();
    }
    url_of(&s, "llama-spm-f32.gguf", url);
    ring_pulls(url, url, "golden/llama-spm-f32.json", 3, &s, nginx_ends);
}

/* --- nginx without an index ---------------------------------------------------------------------- */

static void test_nginx_without_index(void **state)
{
    (void)state;
    struct server s;
    struct proc p;
    char url[URL], out[PATH_MAX], model[PATH_MAX], key[PATH_MAX], pub[48];
    struct err e;
    put_fixture("llama-spm-f32.gguf");
    if (!nginx_serves(&s)) {
        empty_models();
        skip();
    }
    url_of(&s, "llama-spm-f32.gguf", url);
    RUN(&p, 0, "home0", "pull", url, "--layers", "0:2", "-o", in_dir("unverified.gguf", out));
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "not verified"));
    proc_free(&p);

    /* Tensor for tensor what slice writes; only what says whose they are is missing. */
    struct gguf *mine, *whole;
    struct index x, y;
    if (gguf_open(out, &mine, &e) != OK || index_compute(mine, NULL, NULL, &x, &e) != OK ||
        gguf_open(test_data("llama-spm-f32.gguf", model), &whole, &e) != OK ||
        index_compute(whole, NULL, NULL, &y, &e) != OK)
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < gguf_n_tensors(mine); i++) {
        size_t k = 0;
        while (k < gguf_n_tensors(whole) && strcmp(gguf_tensor_at(mine, i)->name, gguf_tensor_at(whole, k)->name) != 0)
            k++;
        assert_true(k < gguf_n_tensors(whole));
        assert_memory_equal(x.tensor_digest[i], y.tensor_digest[k], DIGEST_BYTES);
    }
    assert_true(gguf_n_tensors(mine) < gguf_n_tensors(whole));
    index_fini(&x);
    index_fini(&y);
    gguf_close(mine);
    gguf_close(whole);

    RUN(&p, 0, "home0", "index", url);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "model id   not known"));
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "family     llama"));
    proc_free(&p);
    RUN(&p, 0, "home0", "plan", url, "--stages", "2");
    assert_int_equal(proc_lines(&p, PROC_OUT, "rank 1  layers ["), 1);
    proc_free(&p);

    /* What needs the id says so; with an index from elsewhere it goes. */
    char manifest[PATH_MAX], kvi[PATH_MAX];
    keygen("alone", key, pub);
    in_dir("alone.json", manifest);
    RUN(&p, 1, "home0", "plan", url, "--node", pub, "--key", key, "-o", manifest);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_NOT_FOUND: no index of llama-spm-f32.gguf was found"), 1);
    proc_free(&p);
    RUN(&p, 1, "home0", "up", "--origin", url, "--port", "0");
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_NOT_FOUND: no index of llama-spm-f32.gguf was found"), 1);
    proc_free(&p);
    make_index(model, in_dir("elsewhere.kvi", kvi));
    RUN(&p, 0, "home0", "plan", url, "--node", pub, "--key", key, "-o", manifest, "--index", kvi);
    proc_free(&p);
    nginx_ends(&s);
    empty_models();
}

/* --- what goes over the wire --------------------------------------------------------------------- */

/* Of the window, from the model's header. */
static uint64_t window_bytes(const char *path, uint32_t first, uint32_t end, uint64_t *head)
{
    struct gguf *g;
    struct hparams h;
    struct slice s;
    struct err e;
    if (gguf_open(path, &g, &e) != OK || hparams_read(g, &h, &e) != OK ||
        slice_plan(g, &h, first, end, NULL, &s, &e) != OK)
        fail_msg("%s", e.msg);
    const uint64_t bytes = s.tensor_bytes;
    *head = UINT64_MAX;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        *head = t->offset < *head ? t->offset : *head;
    }
    slice_fini(&s);
    hparams_fini(&h);
    gguf_close(g);
    return bytes;
}

/* Of the GGUF: its tensors, the header, and 1 %. The index is not counted here. */
static void check_received(uint64_t got, uint64_t tensors, uint64_t head)
{
    const uint64_t most = tensors + head + (tensors + head) / 100;
    print_message("%llu bytes of tensors and %llu of header: %llu received, %+.2f %%\n", (unsigned long long)tensors,
                  (unsigned long long)head, (unsigned long long)got,
                  100.0 * ((double)got / (double)(tensors + head) - 1));
    assert_true(got >= tensors);
    assert_true(got <= most);
}

static void test_received_for_a_window(void **state)
{
    (void)state;
    struct server s;
    struct proc p;
    struct err e;
    struct maker_params mp = maker_small();
    char url[URL], model[PATH_MAX + 16], kvi[PATH_MAX], out[PATH_MAX];
    static const uint32_t window[][2] = {{0, 2}, {2, 5}, {4, 6}};
    uint64_t head;
    mp.n_embd = 512;
    mp.n_head = 8;
    mp.n_head_kv = 4;
    mp.head_dim = 64;
    mp.n_ff = 2048;
    mp.type = GGML_TYPE_Q8_0; /* 4 MB a block */
    snprintf(model, sizeof model, "%s/counted.gguf", models);
    if (maker_write(model, &mp, &e) != OK)
        fail_msg("%s", e.msg);
    make_index(model, in_dir("counted.kvi", kvi));
    server_start(&s, models);
    wait_indexed(&s);
    url_of(&s, "counted.gguf", url);
    in_dir("counted-stage.gguf", out);
    for (size_t i = 0; i < 3; i++) {
        char layers[32];
        const uint64_t tensors = window_bytes(model, window[i][0], window[i][1], &head);
        snprintf(layers, sizeof layers, "%u:%u", window[i][0], window[i][1]);
        const struct counts before = counts_of(&s);
        RUN(&p, 0, "home0", "pull", url, "--index", kvi, "--layers", layers, "-o", out, "--need-index");
        proc_free(&p);
        unlink(out);
        check_received(counts_of(&s).bytes - before.bytes, tensors, head);
    }
    server_stop(&s);
    if (nginx_serves(&s)) { /* the same from its log, the index apart */
        char beside[PATH_MAX + 32], home[PATH_MAX];
        const uint64_t tensors = window_bytes(model, 2, 5, &head);
        assert_true(snprintf(beside, sizeof beside, "%s.kvi", model) < (int)sizeof beside);
        make_index(model, beside);
        url_of(&s, "counted.gguf", url);
        RUN(&p, 0, "home0", "pull", url, "--layers", "2:5", "-o", out, "--need-index");
        proc_free(&p);
        unlink(out);
        nginx_ends(&s);
        check_received(nginx_bytes(in_dir("nginx", home), "counted.gguf"), tensors, head);
    }
    empty_models();
}

/* The index of a file of holes: digests of zeros, each size once. Reading 71 GiB of them would take minutes. */
static void index_of_holes(const char *path, const char *out)
{
    struct gguf *g;
    struct hparams h;
    struct model_sizes sizes;
    struct index x = {0};
    struct buf list = {0}, json = {0};
    struct err e;
    if (gguf_open(path, &g, &e) != OK || hparams_read(g, &h, &e) != OK || model_sizes_read(g, &h, &sizes, &e) != OK)
        fail_msg("%s", e.msg);
    x.n_tensors = gguf_n_tensors(g);
    x.tensor_digest = calloc(x.n_tensors, sizeof *x.tensor_digest);
    uint64_t size = 0;
    for (size_t i = 0; i < x.n_tensors; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        size_t k = 0;
        while (k < i && gguf_tensor_at(g, k)->size != t->size)
            k++;
        size += t->size;
        if (k < i) {
            memcpy(x.tensor_digest[i], x.tensor_digest[k], DIGEST_BYTES);
            continue;
        }
        void *zeros = calloc(1, t->size);
        assert_non_null(zeros);
        digest_of(zeros, t->size, x.tensor_digest[i]);
        free(zeros);
    }
    print_message("%zu tensors, %.1f GiB\n", x.n_tensors, (double)size / (1 << 30));
    if (ident_put_all(&list, g, (const uint8_t(*)[DIGEST_BYTES])x.tensor_digest, &e) != OK ||
        ident_model_id(g, list.data, list.len, x.model_id, &e) != OK ||
        index_write(g, &h, &sizes, &x, &json, &e) != OK || io_write_file(out, json.data, json.len, 0644, &e) != OK)
        fail_msg("%s", e.msg);
    buf_free(&list);
    buf_free(&json);
    index_fini(&x);
    model_sizes_fini(&sizes);
    hparams_fini(&h);
    gguf_close(g);
}

/* One block of Qwen3.5-122B at its true size, out of the whole of it: 71 GiB, though of holes. Index and plan need its
 * header alone. */
static void test_window_of_122b(void **state)
{
    (void)state;
    struct server s;
    struct proc p;
    struct err e;
    struct stat st;
    struct maker_params mp;
    char url[URL], model[PATH_MAX + 16], kvi[PATH_MAX], out[PATH_MAX];
    uint64_t head;
    if (test_sanitized()) {
        print_message("2 GB are pulled: not under sanitizers\n");
        skip();
    }
    snprintf(model, sizeof model, "%s/qwen.gguf", models);
    if (maker_preset("qwen3.5-122b-header", &mp, &e) != OK || maker_write(model, &mp, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(stat(model, &st), 0);
    assert_true((uint64_t)st.st_size > 70ull << 30 && (uint64_t)st.st_blocks * 512 < 64u << 20);
    index_of_holes(model, in_dir("qwen.kvi", kvi));
    server_start(&s, models);
    url_of(&s, "qwen.gguf", url);

    struct counts before = counts_of(&s), after;
    RUN(&p, 0, "home0", "index", url);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "model id   not known")); /* yet */
    proc_free(&p);
    after = counts_of(&s);
    print_message("index: %llu requests, %.1f MiB\n", (unsigned long long)(after.n_requests - before.n_requests),
                  (double)(after.bytes - before.bytes) / (1 << 20));
    assert_in_range(after.n_requests - before.n_requests, 1, 8);
    before = after;
    RUN(&p, 0, "home0", "plan", url, "--stages", "12");
    assert_int_equal(proc_lines(&p, PROC_OUT, "rank 11  layers ["), 1);
    proc_free(&p);
    after = counts_of(&s);
    print_message("plan: %llu requests, %.1f MiB\n", (unsigned long long)(after.n_requests - before.n_requests),
                  (double)(after.bytes - before.bytes) / (1 << 20));
    assert_in_range(after.n_requests - before.n_requests, 1, 8);

    const uint64_t tensors = window_bytes(model, 20, 21, &head);
    before = after;
    const uint64_t begin = clock_now_ns();
    RUN(&p, 0, "home0", "pull", url, "--index", kvi, "--layers", "20:21", "-o", in_dir("qwen-20.gguf", out),
        "--need-index");
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "every tensor verified"));
    proc_free(&p);
    after = counts_of(&s);
    assert_int_equal(stat(out, &st), 0);
    print_message("block 20: a stage file of %lld bytes in %.1f s\n", (long long)st.st_size,
                  (double)(clock_now_ns() - begin) / 1e9);
    check_received(after.bytes - before.bytes, tensors, head);
    unlink(out);
    server_stop(&s);
    empty_models();
}

/* --- up ------------------------------------------------------------------------------------------ */

static void test_up_from_origin(void **state)
{
    (void)state;
    struct server s;
    struct golden_json g;
    struct err e;
    char path[PATH_MAX], want[1024];
    put_fixture("llama-tied-f32.gguf");
    server_start(&s, models);
    if (golden_json_open(test_data("golden/llama-tied-f32.json", path), &g, &e) != OK)
        fail_msg("%s", e.msg);
    const struct golden_text *c = &g.cases[2];
    assert_string_equal(c->name, "chat");
    snprintf(want, sizeof want, "%.*s", (int)c->greedy_text.len, c->greedy_text.data);
    for (int again = 0; again < 2; again++) { /* the second time from the cache */
        struct proc p;
        struct web w;
        START(&p, "home-up", "up", "--origin", s.base, "--stages", "3", "--port", "0", "--kv", "f32");
        cli_says(&p, PROC_OUT, "API: ");
        cli_says(&p, PROC_OUT, "(rank 2)");
        const char *at = strstr(proc_text(&p, PROC_OUT), "http://127.0.0.1:");
        assert_true(web_call(&w, (uint16_t)strtoul(at + 17, NULL, 10), "POST", "/v1/chat/completions",
                             "Content-Type: application/json\r\n",
                             "{\"temperature\":0,\"max_tokens\":48,\"messages\":["
                             "{\"role\":\"system\",\"content\":\"You are a small test model.\"},"
                             "{\"role\":\"user\",\"content\":\"Tell me a story about a small ship.\"}]}"));
        assert_int_equal(w.status, 200);
        yyjson_doc *d = yyjson_read((const char *)w.body.data, w.body.len, 0);
        assert_string_equal(yyjson_get_str(yyjson_doc_ptr_get(d, "/choices/0/message/content")),
                            want[0] == ' ' ? want + 1 : want);
        yyjson_doc_free(d);
        web_free(&w);
        if (again)
            assert_null(strstr(proc_text(&p, PROC_ERR), "pulling window"));
        else
            assert_non_null(strstr(proc_text(&p, PROC_ERR), "pulling window"));
        cli_stop(&p);
    }
    golden_json_close(&g);
    server_stop(&s);
    empty_models();
}

/* --- what is refused ----------------------------------------------------------------------------- */

static void refused(const char *says, int code, const char *const *words)
{
    struct proc p;
    start(&p, "home0", words, -1);
    cli_finish(&p, code);
    if (!strstr(proc_text(&p, PROC_ERR), says))
        fail_msg("'%s' is not in: %s", says, proc_text(&p, PROC_ERR));
    proc_free(&p);
}
#define REFUSED(says, code, ...) refused(says, code, CLI_WORDS(__VA_ARGS__))

static void test_refused(void **state)
{
    (void)state;
    struct server s;
    struct ring r;
    char url[URL], other[URL], bad[URL + 32];
    put_fixture("llama-spm-f32.gguf");
    put_fixture("llama-tied-f32.gguf");
    server_start(&s, models);
    wait_indexed(&s);
    ring_init(&r, url_of(&s, "llama-spm-f32.gguf", url));
    url_of(&s, "llama-tied-f32.gguf", other);
#define NODE "node", "--manifest", r.manifest, "--key", r.key[0], "--signer", r.signer
    REFUSED("no model is named, and the cache does not have", 1, NODE);
    REFUSED("named with --origin URL", 2, NODE, url);
    REFUSED("exclude each other", 2, NODE, "/nowhere.gguf", "--origin", url);
    REFUSED("for a model that lies at an --origin", 2, NODE, "/nowhere.gguf", "--index", "x.kvi");
    REFUSED("is not an http:// or https:// URL", 1, NODE, "--origin", "ftp://there/x.gguf");
    REFUSED("ERR_MISMATCH", 1, NODE, "--origin", other); /* another model than the manifest's */
    REFUSED("has 2 models: the URL must name one", 1, "up", "--origin", s.base);
    REFUSED("has 2 models: the URL must name one", 1, "plan", s.base, "--stages", "2");
    snprintf(bad, sizeof bad, "%s/health", s.base);
    REFUSED("no kvasir origin either", 1, "index", bad);
    REFUSED("--check reads all of a model", 2, "index", url, "--check", "x.kvi");
    REFUSED("are for a URL", 1, "index", "/nowhere.gguf", "--index", "x.kvi");
    ring_fini(&r);
    empty_models();

    /* An origin that does not have the model is passed over. */
    put_fixture("llama-spm-f32.gguf");
    struct server without;
    server_stop(&s);
    server_start(&s, models);
    ring_init(&r, url_of(&s, "llama-spm-f32.gguf", url));
    char empty[PATH_MAX];
    mkdir(in_dir("empty", empty), 0755);
    server_start(&without, empty);
    REFUSED("does not have the model", 1, NODE, "--origin", without.base);
    struct proc p;
    START(&p, "home0", NODE, "--origin", without.base, "--origin", s.base, "--status-fd", "1", "--listen",
          "127.0.0.1:0");
    cli_says(&p, PROC_OUT, "\"event\":\"loaded\"");
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "passed over: "));
    cli_stop(&p);
    server_stop(&without);
    server_stop(&s);
    ring_fini(&r);
    empty_models();
}

/* A node that is told to stop before it has its window ends well, and the next one gets it. */
static void test_stopped_while_pulling(void **state)
{
    (void)state;
    struct server s;
    struct ring r;
    struct proc p;
    struct err e;
    struct maker_params mp = maker_small();
    char url[URL], model[PATH_MAX + 16];
    mp.n_embd = 1024;
    mp.n_head = 16;
    mp.n_head_kv = 4;
    mp.head_dim = 64;
    mp.n_ff = 3072;
    mp.type = GGML_TYPE_Q8_0;
    snprintf(model, sizeof model, "%s/big.gguf", models);
    if (maker_write(model, &mp, &e) != OK)
        fail_msg("%s", e.msg);
    server_start(&s, models);
    wait_indexed(&s);
    ring_init(&r, url_of(&s, "big.gguf", url));
    kill(s.p.pid, SIGSTOP); /* so that it cannot end before it is told to */
    START(&p, "home0", NODE, "--origin", url, "--status-fd", "1", "--listen", "127.0.0.1:0");
    cli_says(&p, PROC_ERR, "pulling window");
    kill(p.pid, SIGTERM);
    cli_finish(&p, 0);
    assert_null(strstr(proc_text(&p, PROC_OUT), "\"event\":\"loaded\""));
    proc_free(&p);
    kill(s.p.pid, SIGCONT);
    START(&p, "home0", NODE, "--origin", s.base, "--status-fd", "1", "--listen", "127.0.0.1:0");
    cli_says(&p, PROC_OUT, "\"event\":\"pull\",\"done_bytes\":");
    cli_says(&p, PROC_OUT, "\"event\":\"loaded\"");
    cli_stop(&p);
    server_stop(&s);
    ring_fini(&r);
    empty_models();
}

/* The stage file in the cache of home0 gets another byte. */
static void damage_cached(void)
{
    char pattern[PATH_MAX];
    glob_t found;
    struct buf b = {0};
    struct err e;
    assert_int_equal(glob(in_dir("home0/shards/*/*.gguf", pattern), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    if (io_read_file(found.gl_pathv[0], 64u << 20, &b, &e) != OK)
        fail_msg("%s", e.msg);
    b.data[b.len - 1000] ^= 1;
    if (io_write_file(found.gl_pathv[0], b.data, b.len, 0644, &e) != OK)
        fail_msg("%s", e.msg);
    buf_free(&b);
    globfree(&found);
}

/* A file in the cache whose bytes are not the model's is not served: it is pulled again, or, when there is nowhere to
 * pull it from, refused. */
static void test_damaged_in_the_cache(void **state)
{
    (void)state;
    struct server s;
    struct ring r;
    char url[URL];
    put_fixture("llama-spm-f32.gguf");
    server_start(&s, models);
    ring_init(&r, url_of(&s, "llama-spm-f32.gguf", url));
    for (int i = 0; i < 2; i++) {
        struct proc p;
        START(&p, "home0", NODE, "--origin", url, "--status-fd", "1", "--listen", "127.0.0.1:0");
        cli_says(&p, PROC_OUT, "\"event\":\"loaded\"");
        kill(p.pid, SIGTERM);
        cli_finish(&p, 0);
        assert_non_null(strstr(proc_text(&p, PROC_ERR), "pulling window"));
        assert_true(i == 0 || strstr(proc_text(&p, PROC_ERR), "are not those of its model"));
        proc_free(&p);
        damage_cached();
    }
    REFUSED("the cache does not have the window", 1, NODE);
    server_stop(&s);
    ring_fini(&r);
}

/* With a token the origin answers, without it is said what is missing; it is seen nowhere. */
static void test_token(void **state)
{
    (void)state;
    struct server s;
    struct ring r;
    struct proc p;
    struct err e;
    char url[URL], token[PATH_MAX];
    put_fixture("llama-spm-f32.gguf");
    if (io_write_file(in_dir("token", token), "open-sesame-71\n", 15, 0600, &e) != OK)
        fail_msg("%s", e.msg);
    server_start(&s, models);
    ring_init(&r, url_of(&s, "llama-spm-f32.gguf", url));
    server_stop(&s);
    START(&s.p, "home-origin", "origin", models, "--listen", "127.0.0.1:0", "--token-file", token);
    server_listens(&s);
    url_of(&s, "llama-spm-f32.gguf", url);
    REFUSED("ERR_AUTH", 1, NODE, "--origin", url);
    REFUSED("wants a token", 1, NODE, "--origin", s.base);
    REFUSED("ERR_AUTH", 1, "plan", url, "--stages", "2");
    RUN(&p, 0, "home0", "plan", url, "--stages", "2", "--token-file", token);
    proc_free(&p);
    RUN(&p, 0, "home0", "index", s.base, "--token-file", token);
    proc_free(&p);
    START(&p, "home0", NODE, "--origin", s.base, "--token-file", token, "--status-fd", "1", "--listen", "127.0.0.1:0");
    cli_says(&p, PROC_OUT, "\"event\":\"loaded\"");
    kill(p.pid, SIGTERM);
    cli_finish(&p, 0);
    assert_null(strstr(proc_text(&p, PROC_ERR), "sesame"));
    proc_free(&p);
    START(&p, "home-up", "up", "--origin", s.base, "--token-file", token, "--stages", "2", "--port", "0");
    cli_says(&p, PROC_OUT, "ring up: ");
    kill(p.pid, SIGTERM);
    cli_finish(&p, 0);
    assert_null(strstr(proc_text(&p, PROC_ERR), "sesame"));
    proc_free(&p);
    server_stop(&s);
    ring_fini(&r);
}

static int fresh(void **state)
{
    (void)state;
    test_scratch("shards", dir);
    snprintf(models, sizeof models, "%.*s/models", PATH_MAX - 16, dir);
    return mkdir(dir, 0755) == 0 && mkdir(models, 0755) == 0 ? 0 : -1;
}

static int remove_all(void **state)
{
    (void)state;
    test_remove_tree(dir);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, remove_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ring_from_origin),
        TEST(test_ring_from_split_model),
        TEST(test_ring_from_nginx),
        TEST(test_nginx_without_index),
        TEST(test_received_for_a_window),
        TEST(test_up_from_origin),
        TEST(test_refused),
        TEST(test_stopped_while_pulling),
        TEST(test_token),
        TEST(test_damaged_in_the_cache),
        TEST(test_window_of_122b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
