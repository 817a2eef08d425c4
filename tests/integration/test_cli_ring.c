/* SPDX-License-Identifier: MIT
 *
 * The program as several processes: `up`, and rings made by hand with keygen, plan and node, as on several machines;
 * what does not belong to a ring is refused with a reason.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "lib/cli_rig.h"
#include "lib/maker.h"
#include "lib/test_util.h"
#include "net/tcp.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_NODES 3

static char dir[PATH_MAX], tmp_dir[PATH_MAX], tmp_env[PATH_MAX + 8], cache_env[PATH_MAX + 16];
static char model_env[PATH_MAX + 16] = "KVASIR_MODEL"; /* removed, unless a test sets it */
static char model[PATH_MAX], other_model[PATH_MAX];    /* of the same shape */

static const char *in_dir(const char *name, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        fail_msg("path too long");
    return out;
}

/* argv ends with NULL, without the program's name. */
static void start(struct proc *p, const char *const *words, int keep_fd)
{
    const char *env[] = {tmp_env, cache_env, model_env, "XDG_RUNTIME_DIR", "KVASIR_LOG=info", NULL};
    cli_start(p, words, env, keep_fd);
}
#define START(p, ...) start(p, CLI_WORDS(__VA_ARGS__), -1)

/* --- up ------------------------------------------------------------------------------------------ */

static void test_up(void **state)
{
    (void)state;
    static const int sig[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < 2; i++) {
        struct proc p;
        pid_t child[3];
        START(&p, "up", model, "--stages", "3", "--port", "0");
        cli_says(&p, PROC_OUT, "ring up: ");
        cli_says(&p, PROC_ERR, "tokens/s");
        for (int k = 0; k < 3; k++) {
            char key[32];
            snprintf(key, sizeof key, "rank-%d.key", k);
            child[k] = proc_child(p.pid, key);
            assert_true(child[k] > 0);
        }
        kill(p.pid, sig[i]);
        cli_finish(&p, 0);
        for (int k = 0; k < 3; k++)
            assert_true(proc_gone(child[k], 0));
        assert_int_equal(proc_lines(&p, PROC_OUT, "ring up: "), 1);
        assert_int_equal(proc_lines(&p, PROC_ERR, "rank 2  layers ["), 1);
        proc_free(&p);
    }
}

static void test_up_with_one_stage(void **state)
{
    (void)state;
    struct proc p;
    START(&p, "up", model, "--port", "0");
    cli_says(&p, PROC_OUT, " 1 rank, context ");
    cli_says(&p, PROC_OUT, "ring up: ");
    cli_stop(&p);
}

/* A model for 131072 positions, whose cache for all of them would be 8 GiB for the four slots of up: the default is a
 * context that fits, and the whole one is only what was asked for. */
static void test_fault22_the_default_context_is_no_models_maximum(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct maker_params mp = maker_small();
    struct err e;
    struct proc p;
    mp.n_ctx = 131072;
    mp.n_block = 4;
    mp.n_head = mp.n_head_kv = 16;
    mp.head_dim = 64; /* 16 KiB a position in F16 */
    if (maker_write(in_dir("long.gguf", path), &mp, &e) != OK)
        fail_msg("%s", e.msg);
    START(&p, "up", path, "--stages", "2", "--port", "0", "--no-repack");
    const char *said = strstr(cli_line(&p, PROC_OUT, "ring up: "), "context ");
    assert_non_null(said);
    const unsigned long n_ctx = strtoul(said + 8, NULL, 10);
    assert_true(n_ctx >= 512 && n_ctx <= 4096);
    cli_stop(&p);
    START(&p, "plan", path, "--stages", "2", "--json");
    cli_finish(&p, 0);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "4096"));
    assert_null(strstr(proc_text(&p, PROC_OUT), "131072"));
    proc_free(&p);
    START(&p, "plan", path, "--stages", "2", "--json", "--ctx", "131072");
    cli_finish(&p, 0);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "131072"));
    proc_free(&p);
    unlink(path);
}

static void test_up_when_no_model_is_named(void **state)
{
    (void)state;
    struct proc p;
    snprintf(model_env, sizeof model_env, "KVASIR_MODEL=%s", model);
    START(&p, "up", "--stages", "2", "--port", "0");
    cli_says(&p, PROC_OUT, "ring up: ");
    kill(p.pid, SIGTERM);
    cli_finish(&p, 0);
    assert_int_equal(proc_lines(&p, PROC_ERR, "rank 1  layers ["), 1);
    proc_free(&p);
    strcpy(model_env, "KVASIR_MODEL=/nowhere/x.gguf");
    START(&p, "up");
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_NOT_FOUND: "), 1);
    proc_free(&p);
    strcpy(model_env, "KVASIR_MODEL");
}

static void test_up_ends_with_a_child(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct proc p;
        char key[32], says[64];
        snprintf(key, sizeof key, "rank-%d.key", k);
        snprintf(says, sizeof says, "kvasir: ERR_CLOSED: rank %d ended (signal 9)", k);
        START(&p, "up", model, "--stages", "3", "--port", "0");
        cli_says(&p, PROC_OUT, "ring up: ");
        pid_t child = proc_child(p.pid, key);
        assert_true(child > 0);
        kill(child, SIGKILL);
        cli_finish(&p, 1);
        if (proc_lines(&p, PROC_ERR, says) != 1)
            fail_msg("'%s' is not in: %s", says, proc_text(&p, PROC_ERR));
        assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_"), 1);
        assert_non_null(strstr(proc_text(&p, PROC_ERR), "its last line: "));
        proc_free(&p);
    }
}

/* Before anything is loaded. */
static void test_up_without_its_port(void **state)
{
    (void)state;
    struct proc p;
    uint16_t port;
    char text[16];
    const int fd = test_dead_port(&port);
    assert_true(fd >= 0);
    snprintf(text, sizeof text, "%u", port);
    START(&p, "up", model, "--port", text);
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_IO: "), 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "--port N"));
    assert_int_equal(proc_lines(&p, PROC_ERR, "rank 0"), 0);
    proc_free(&p);
    close(fd);
    START(&p, "up", model, "--stages", "2", "--port", "65535");
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_ARG: --port 65535: "), 1);
    proc_free(&p);
}

/* A rank that ends with an error says it once, in the last line. */
static void test_up_says_why_a_rank_failed(void **state)
{
    (void)state;
    struct proc p;
    START(&p, "up", model, "--port", "0", "--access-log", "/nowhere/log");
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_CLOSED: rank 0 ended: ERR_IO: "), 1);
    const char *at = strstr(proc_text(&p, PROC_ERR), "/nowhere/log");
    assert_non_null(at);
    assert_null(strstr(at + 1, "/nowhere/log"));
    proc_free(&p);
}

/* The folder with the keys is there only until all have read them. */
static void test_up_is_killed(void **state)
{
    (void)state;
    struct proc p;
    pid_t child[2];
    START(&p, "up", model, "--stages", "2", "--port", "0");
    cli_says(&p, PROC_OUT, "ring up: ");
    child[0] = proc_child(p.pid, "rank-0.key");
    child[1] = proc_child(p.pid, "rank-1.key");
    assert_true(child[0] > 0 && child[1] > 0);
    assert_int_equal(rmdir(tmp_dir), 0); /* empty */
    assert_int_equal(mkdir(tmp_dir, 0700), 0);
    kill(p.pid, SIGKILL);
    cli_finish(&p, 128 + SIGKILL);
    assert_true(proc_gone(child[0], CLI_WAIT_MS) && proc_gone(child[1], CLI_WAIT_MS));
    proc_free(&p);
}

/* Told to stop while it is still starting. */
static void test_up_stopped_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct proc p;
        START(&p, "up", model, "--stages", "3", "--port", "0");
        if (i < 3)
            cli_says(&p, PROC_ERR, i == 0 ? "rank 0  layers" : i == 1 ? "rank 2  layers" : "serving");
        uint64_t t0 = clock_now_ns();
        kill(p.pid, i < 3 ? SIGTERM : SIGINT);
        if (!proc_wait(&p, CLI_WAIT_MS))
            fail_msg("it hangs; stderr: %s", proc_text(&p, PROC_ERR));
        assert_true(clock_now_ns() - t0 < CLI_WAIT_MS / 4 * CLOCK_NS_PER_MS);
        /* before it took its signals over, they end it as any program */
        assert_true(proc_code(&p) == 0 || (i >= 3 && proc_code(&p) == 128 + SIGINT));
        assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir:"), 0);
        proc_free(&p);
    }
}

/* --- keys ---------------------------------------------------------------------------------------- */

/* Makes NAME.key and returns its public key. */
static char *keygen(const char *name)
{
    struct proc p;
    char path[PATH_MAX], file[64];
    snprintf(file, sizeof file, "%s.key", name);
    START(&p, "keygen", in_dir(file, path));
    cli_finish(&p, 0);
    char *text = strdup(proc_text(&p, PROC_OUT));
    text[strcspn(text, "\n")] = 0;
    assert_int_equal(strlen(text), 43);
    proc_free(&p);
    return text;
}

static void test_keygen(void **state)
{
    (void)state;
    struct proc p;
    struct stat st, after;
    char path[PATH_MAX];
    char *pub = keygen("fresh");
    in_dir("fresh.key", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    START(&p, "keygen", path);
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_ARG: "), 1);
    proc_free(&p);
    assert_int_equal(stat(path, &after), 0);
    assert_true(after.st_size == st.st_size && after.st_mtim.tv_nsec == st.st_mtim.tv_nsec &&
                after.st_ino == st.st_ino);
    START(&p, "keygen", "--show", path);
    cli_finish(&p, 0);
    assert_int_equal(strncmp(proc_text(&p, PROC_OUT), pub, 43), 0);
    proc_free(&p);
    assert_int_equal(chmod(path, 0644), 0);
    START(&p, "keygen", "--show", path);
    cli_finish(&p, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "chmod 600"));
    proc_free(&p);
    free(pub);
    unlink(path);
}

/* --- a ring by hand ------------------------------------------------------------------------------ */

struct hand {
    char manifest[PATH_MAX], key[N_NODES][PATH_MAX];
    char *signer, *pub[N_NODES];
    int fd[N_NODES]; /* listening; the nodes inherit them, so no port can be taken meanwhile */
    uint16_t port[N_NODES];
    struct proc node[N_NODES];
};

static void hand_plan(struct hand *h, const char *of_model, const char *file)
{
    struct proc p;
    char signer_key[PATH_MAX], node[N_NODES][96];
    for (int i = 0; i < N_NODES; i++)
        snprintf(node[i], sizeof node[i], "%s@127.0.0.1:%u", h->pub[i], h->port[i]);
    START(&p, "plan", of_model, "--even", "--stages", "3", "--key", in_dir("signer.key", signer_key), "-o",
          in_dir(file, h->manifest), "--node", node[0], "--node", node[1], "--node", node[2]);
    cli_finish(&p, 0);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), h->signer));
    assert_int_equal(proc_lines(&p, PROC_OUT, "rank 2  layers ["), 1);
    proc_free(&p);
}

static void hand_init(struct hand *h)
{
    struct err e;
    memset(h, 0, sizeof *h);
    h->signer = keygen("signer");
    for (int i = 0; i < N_NODES; i++) {
        char name[16], file[32];
        snprintf(name, sizeof name, "node%d", i);
        snprintf(file, sizeof file, "node%d.key", i);
        h->pub[i] = keygen(name);
        in_dir(file, h->key[i]);
        if (net_tcp_listen("127.0.0.1:0", &h->fd[i], &h->port[i], &e) != OK)
            fail_msg("%s", e.msg);
        h->node[i].fd[0] = h->node[i].fd[1] = -1;
    }
    hand_plan(h, model, "ring.json");
}

static void hand_start(struct hand *h, int i, const char *with_model)
{
    char fd[16];
    snprintf(fd, sizeof fd, "%d", h->fd[i]);
    start(&h->node[i],
          (const char *const[]){"node", with_model, "--manifest", h->manifest, "--key", h->key[i], "--signer",
                                h->signer, "--listen-fd", fd, "--threads", "1", NULL},
          h->fd[i]);
}

static void hand_fini(struct hand *h)
{
    for (int i = 0; i < N_NODES; i++) {
        char sig[PATH_MAX + 8];
        proc_free(&h->node[i]);
        close(h->fd[i]);
        unlink(h->key[i]);
        free(h->pub[i]);
        snprintf(sig, sizeof sig, "%s.sig", h->manifest);
        unlink(sig);
    }
    unlink(h->manifest);
    char path[PATH_MAX];
    unlink(in_dir("signer.key", path));
    free(h->signer);
}

static void test_nodes_by_hand(void **state)
{
    (void)state;
    struct hand h;
    hand_init(&h);
    for (int i = N_NODES - 1; i >= 0; i--)
        hand_start(&h, i, model);
    cli_says(&h.node[0], PROC_ERR, "the ring is whole");
    cli_says(&h.node[2], PROC_ERR, "kvasir: the ring is whole");

    /* One is killed: rank 0 says so, goes on, and the ring is whole again when it is back. */
    kill(h.node[1].pid, SIGKILL);
    cli_says(&h.node[0], PROC_ERR, "the ring is broken");
    cli_finish(&h.node[1], 128 + SIGKILL);
    proc_free(&h.node[1]);
    buf_clear(&h.node[0].text[PROC_ERR]);
    hand_start(&h, 1, model);
    cli_says(&h.node[0], PROC_ERR, "the ring is whole");

    for (int i = 0; i < N_NODES; i++)
        kill(h.node[i].pid, i == 0 ? SIGINT : SIGTERM);
    for (int i = 0; i < N_NODES; i++) {
        cli_finish(&h.node[i], 0);
        assert_int_equal(proc_lines(&h.node[i], PROC_ERR, "kvasir: ERR_"), 0);
    }
    /* Who starts one sees what it does, and how it goes. */
    assert_int_equal(proc_lines(&h.node[2], PROC_ERR, "kvasir: rank 2 of 3 serves layers ["), 1);
    assert_true(proc_lines(&h.node[2], PROC_ERR, "kvasir: the ring is ") > 0);
    hand_fini(&h);
}

static void slice_of(const char *of_model, const char *layers, const char *out)
{
    struct proc p;
    START(&p, "slice", of_model, "--layers", layers, "-o", out);
    cli_finish(&p, 0);
    proc_free(&p);
}

static void node_refused(struct hand *h, int i, const char *file, const char *says)
{
    hand_start(h, i, file);
    cli_finish(&h->node[i], 1);
    if (proc_lines(&h->node[i], PROC_ERR, "kvasir: ERR_") != 1 || !strstr(proc_text(&h->node[i], PROC_ERR), says))
        fail_msg("'%s' is not in: %s", says, proc_text(&h->node[i], PROC_ERR));
    proc_free(&h->node[i]);
}

/* Each node has a stage file and nothing else; rank 1's holds more than its window. */
static void test_nodes_with_stage_files(void **state)
{
    (void)state;
    struct hand h;
    static const char *const layers[N_NODES] = {"0:3", "1:5", "3:6"};
    char file[N_NODES][PATH_MAX], other[PATH_MAX];
    struct buf bytes = {0};
    struct err e;
    hand_init(&h);
    for (int i = 0; i < N_NODES; i++) {
        char name[32];
        snprintf(name, sizeof name, "stage%d.gguf", i);
        slice_of(model, layers[i], in_dir(name, file[i]));
    }
    for (int i = N_NODES - 1; i >= 0; i--)
        hand_start(&h, i, file[i]);
    cli_says(&h.node[0], PROC_ERR, "the ring is whole");
    for (int i = 0; i < N_NODES; i++) {
        kill(h.node[i].pid, SIGTERM);
        cli_finish(&h.node[i], 0);
        proc_free(&h.node[i]);
    }

    node_refused(&h, 1, file[0], "is a stage file of [0,3); rank 1 needs");
    slice_of(other_model, layers[1], in_dir("other-stage.gguf", other));
    node_refused(&h, 1, other, "is another model");
    assert_int_equal(io_read_file(file[1], 64u << 20, &bytes, &e), OK);
    bytes.data[bytes.len - 1000] ^= 1;
    assert_int_equal(io_write_file(file[1], bytes.data, bytes.len, 0644, &e), OK);
    node_refused(&h, 1, file[1], "are not those of its model");
    buf_free(&bytes);
    for (int i = 0; i < N_NODES; i++)
        unlink(file[i]);
    unlink(other);
    hand_fini(&h);
}

static char *id_of(const char *of_model)
{
    struct proc p;
    START(&p, "index", of_model, "--json");
    cli_finish(&p, 0);
    const char *at = strstr(proc_text(&p, PROC_OUT), "\"model_id\":\"");
    assert_non_null(at);
    char *id = strndup(at + 12, 16);
    proc_free(&p);
    return id;
}

/* faults.md 4 and 27: another model of the very same shape. */
static void test_another_model(void **state)
{
    (void)state;
    struct hand h;
    char *mine = id_of(other_model), *theirs = id_of(model);
    assert_string_not_equal(mine, theirs);
    hand_init(&h);
    hand_start(&h, 1, other_model);
    cli_finish(&h.node[1], 1);
    assert_int_equal(proc_lines(&h.node[1], PROC_ERR, "kvasir: ERR_MISMATCH: "), 1);
    assert_non_null(strstr(proc_text(&h.node[1], PROC_ERR), mine));
    assert_non_null(strstr(proc_text(&h.node[1], PROC_ERR), theirs));
    hand_fini(&h);
    free(mine);
    free(theirs);
}

/* The same, when each node believes its own manifest: the neighbours notice. */
static void test_neighbours_with_different_manifests(void **state)
{
    (void)state;
    struct hand h;
    char *mine = id_of(other_model), *theirs = id_of(model);
    hand_init(&h);
    hand_start(&h, 0, model);
    hand_start(&h, 2, model);
    char first[PATH_MAX], sig[PATH_MAX + 8];
    snprintf(first, sizeof first, "%s", h.manifest);
    hand_plan(&h, other_model, "other.json");
    hand_start(&h, 1, other_model);
    cli_says(&h.node[0], PROC_ERR, "ERR_MISMATCH");
    cli_says(&h.node[1], PROC_ERR, "ERR_MISMATCH");
    assert_null(strstr(proc_text(&h.node[0], PROC_ERR), "the ring is whole"));
    unlink(first);
    snprintf(sig, sizeof sig, "%s.sig", first);
    unlink(sig);
    hand_fini(&h);
    free(mine);
    free(theirs);
}

static void must_refuse(struct hand *h, const char *key, const char *signer, const char *code, const char *has)
{
    struct proc p;
    START(&p, "node", model, "--manifest", h->manifest, "--key", key, "--signer", signer);
    cli_finish(&p, 1);
    if (proc_lines(&p, PROC_ERR, code) != 1 || !strstr(proc_text(&p, PROC_ERR), has))
        fail_msg("not '%s' and '%s' but: %s", code, has, proc_text(&p, PROC_ERR));
    proc_free(&p);
}

static void change_manifest(const struct hand *h, const char *from, char to)
{
    struct buf text = {0};
    struct err e;
    assert_int_equal(io_read_file(h->manifest, 1 << 20, &text, &e), OK);
    char *at = strstr((char *)(uintptr_t)buf_str(&text), from);
    assert_non_null(at);
    at[strlen(from)] = to;
    int fd = open(h->manifest, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(fd, buf_str(&text), text.len), text.len);
    close(fd);
    buf_free(&text);
}

static void test_what_does_not_belong(void **state)
{
    (void)state;
    struct hand h;
    char key[PATH_MAX];
    hand_init(&h);
    char *stranger = keygen("stranger");
    must_refuse(&h, in_dir("stranger.key", key), h.signer, "kvasir: ERR_AUTH: ", stranger);
    must_refuse(&h, h.key[1], stranger, "kvasir: ERR_AUTH: ", "sign");
    must_refuse(&h, h.key[1], "abc", "kvasir: ERR_ARG: ", "--signer");
    must_refuse(&h, "/nowhere/key", h.signer, "kvasir: ERR_NOT_FOUND: ", "/nowhere/key");
    change_manifest(&h, "\"epoch\":", '2');
    must_refuse(&h, h.key[1], h.signer, "kvasir: ERR_AUTH: ", "sign");
    change_manifest(&h, "\"epoch\"", ';');
    must_refuse(&h, h.key[1], h.signer, "kvasir: ERR_", "");
    unlink(h.manifest);
    must_refuse(&h, h.key[1], h.signer, "kvasir: ERR_NOT_FOUND: ", "ring.json");
    unlink(key);
    free(stranger);
    hand_fini(&h);
}

/* Without --signer anybody may have made it: that is said. */
static void test_nobody_vouches(void **state)
{
    (void)state;
    struct hand h;
    struct proc p;
    char fd[16];
    hand_init(&h);
    snprintf(fd, sizeof fd, "%d", h.fd[1]);
    start(&p,
          (const char *const[]){"node", model, "--manifest", h.manifest, "--key", h.key[1], "--listen-fd", fd, NULL},
          h.fd[1]);
    cli_says(&p, PROC_ERR, "nobody vouched for");
    cli_says(&p, PROC_ERR, "serving");
    assert_non_null(strstr(proc_text(&p, PROC_ERR), h.signer));
    cli_stop(&p);
    hand_fini(&h);
}

static void test_address_in_use(void **state)
{
    (void)state;
    struct hand h;
    hand_init(&h); /* this process listens there */
    must_refuse(&h, h.key[1], h.signer, "kvasir: ERR_IO: ", "127.0.0.1:");
    hand_fini(&h);
}

static void test_plan_refuses(void **state)
{
    (void)state;
    struct proc p;
    char key[PATH_MAX], out[PATH_MAX];
    char *pub = keygen("signer");
    in_dir("signer.key", key);
    in_dir("no.json", out);
    START(&p, "plan", model, "--stages", "2", "--key", key, "-o", out, "--node", pub);
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_ARG: 2 windows"), 1);
    proc_free(&p);
    START(&p, "plan", model, "--stages", "2", "--key", key, "-o", out, "--node", pub, "--node", "nonsense@x:1");
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_ARG: node 'nonsense@x:1'"), 1);
    proc_free(&p);
    char *pub2 = keygen("other"); /* none of the two can be dialled */
    START(&p, "plan", model, "--key", key, "-o", out, "--node", pub, "--node", pub2);
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_ARG: the nodes of ranks 0 and 1"), 1);
    proc_free(&p);
    char twice[96];
    snprintf(twice, sizeof twice, "%s@127.0.0.1:9", pub);
    START(&p, "plan", model, "--stages", "2", "--key", key, "-o", out, "--node", twice, "--node", twice);
    cli_finish(&p, 1);
    assert_int_equal(proc_lines(&p, PROC_ERR, "kvasir: ERR_MISMATCH: "), 1);
    proc_free(&p);
    assert_int_equal(access(out, F_OK), -1);
    unlink(key);
    unlink(in_dir("other.key", key));
    free(pub);
    free(pub2);
}

static int set_up(void **state)
{
    (void)state;
    char cache[PATH_MAX];
    struct err e;
    struct maker_params mp = maker_small();
    test_scratch("ring", dir);
    if (mkdir(dir, 0700) != 0)
        return 1;
    in_dir("tmp", tmp_dir);
    in_dir("cache", cache);
    in_dir("model.gguf", model);
    in_dir("other.gguf", other_model);
    snprintf(tmp_env, sizeof tmp_env, "TMPDIR=%s", tmp_dir);
    snprintf(cache_env, sizeof cache_env, "XDG_CACHE_HOME=%s", cache);
    if (mkdir(tmp_dir, 0700) != 0 || mkdir(cache, 0700) != 0 || maker_write(model, &mp, &e) != OK)
        return 1;
    mp.seed++;
    return maker_write(other_model, &mp, &e) != OK;
}

static int tear_down(void **state)
{
    (void)state;
    int left = rmdir(tmp_dir); /* empty: nobody left anything */
    if (left != 0)
        print_error("%s is not empty\n", tmp_dir);
    test_remove_tree(dir);
    return left;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_up),
        cmocka_unit_test(test_up_with_one_stage),
        cmocka_unit_test(test_fault22_the_default_context_is_no_models_maximum),
        cmocka_unit_test(test_up_when_no_model_is_named),
        cmocka_unit_test(test_up_ends_with_a_child),
        cmocka_unit_test(test_up_without_its_port),
        cmocka_unit_test(test_up_says_why_a_rank_failed),
        cmocka_unit_test(test_up_is_killed),
        cmocka_unit_test(test_up_stopped_at_once),
        cmocka_unit_test(test_keygen),
        cmocka_unit_test(test_nodes_by_hand),
        cmocka_unit_test(test_nodes_with_stage_files),
        cmocka_unit_test(test_another_model),
        cmocka_unit_test(test_neighbours_with_different_manifests),
        cmocka_unit_test(test_what_does_not_belong),
        cmocka_unit_test(test_nobody_vouches),
        cmocka_unit_test(test_address_in_use),
        cmocka_unit_test(test_plan_refuses),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    alarm(580);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
