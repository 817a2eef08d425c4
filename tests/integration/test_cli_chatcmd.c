/* SPDX-License-Identifier: MIT
 *
 * `kvasir chat` as a user runs it, against a server of this test that does what the message asks for: it answers,
 * fails, breaks off, or never ends. On pipes, and on a terminal with Ctrl-C.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "base/thread.h"
#include "lib/golden_json.h"
#include "lib/proc.h"
#include "lib/test_util.h"
#include "net/tcp.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yyjson.h>

#define WAIT_MS 60000u

/* --- the server ---------------------------------------------------------------------------------- */

static struct fake {
    int fd;
    pthread_t thread;
    char url[64];
    atomic_bool stop;
    atomic_uint n_hung_up; /* answers that the client ended */
    pthread_mutex_t mutex; /* guards the rest: the last question */
    char path[128], authorization[128];
    struct buf body;
    bool base;        /* a model without chats */
    const char *ring; /* what /v1/ring says */
} fake = {.fd = -1, .mutex = PTHREAD_MUTEX_INITIALIZER};

static void put(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0)
            return;
        text += k;
        n -= (size_t)k;
    }
}

static void put_whole(int fd, int status, const char *json)
{
    char text[2048];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: "
                     "close\r\n\r\n%s",
                     status, strlen(json), json);
    put(fd, text, (size_t)n);
}

static void put_event(int fd, const char *data)
{
    struct buf b = {0};
    buf_printf(&b, "data: %s\n\n", data);
    put(fd, (const char *)b.data, b.len);
    buf_free(&b);
}

static void put_piece(int fd, bool chat, const char *text, const char *reason)
{
    struct buf b = {0};
    buf_puts(&b, chat ? "{\"choices\":[{\"delta\":{\"content\":" : "{\"choices\":[{\"text\":");
    text_put_json(&b, text, strlen(text));
    buf_printf(&b, "%s,\"finish_reason\":%s}]}", chat ? "}" : "", reason);
    put_event(fd, buf_str(&b));
    buf_free(&b);
}

/* Until the client closes, or the test is over. */
static void wait_hung_up(int fd)
{
    char c;
    while (!atomic_load(&fake.stop)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 50) > 0 && recv(fd, &c, 1, 0) <= 0) {
            atomic_fetch_add(&fake.n_hung_up, 1);
            return;
        }
    }
}

static void answer(int fd, bool chat, const char *said, size_t n_messages)
{
    char text[256];
    if (strcmp(said, "busy") == 0)
        return put_whole(fd, 429, "{\"error\":{\"message\":\"64 requests wait already\",\"code\":\"busy\"}}");
    if (strcmp(said, "odd") == 0)
        return put_whole(fd, 200, "[1,2,3]");
    if (strcmp(said, "whole") == 0)
        return put_whole(fd, 200, "{\"choices\":[{\"message\":{\"content\":\"All at once.\"}}]}");
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    put(fd, head, sizeof head - 1);
    put_piece(fd, chat, "You ", "null");
    if (strcmp(said, "late") == 0)
        return put_event(fd, "{\"error\":{\"message\":\"rank 2 is lost\"}}");
    if (strcmp(said, "cut") == 0)
        return;
    if (strcmp(said, "evil") == 0)
        put_piece(fd, chat, "\033]0;owned\007\xc2\x9b", "null");
    snprintf(text, sizeof text, "say %s (%zu)", said, n_messages);
    put_piece(fd, chat, text, "null");
    if (strcmp(said, "slow") == 0)
        return wait_hung_up(fd);
    put_piece(fd, chat, "", "\"stop\"");
    put_event(fd, "[DONE]");
}

static void serve_post(int fd, bool base, const char *body, size_t len)
{
    yyjson_doc *doc = yyjson_read(body, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *list = yyjson_obj_get(root, "messages");
    bool chat = strstr(fake.path, "/chat/") != NULL;
    const char *said =
        yyjson_get_str(chat ? yyjson_obj_get(yyjson_arr_get_last(list), "content") : yyjson_obj_get(root, "prompt"));
    if (chat && base)
        put_whole(fd, 400, "{\"error\":{\"message\":\"no chats\",\"code\":\"chat_not_supported\"}}");
    else if (fake.authorization[0] && strcmp(fake.authorization, "Bearer sesame") != 0)
        put_whole(fd, 401, "{\"error\":{\"message\":\"that is not the key\"}}");
    else
        answer(fd, chat, said ? said : "nothing", yyjson_arr_size(list));
    yyjson_doc_free(doc);
}

static void serve(int fd)
{
    struct buf in = {0};
    const char *head = "", *end = NULL;
    size_t len = 0;
    while (!end || in.len < (size_t)(end + 4 - head) + len) {
        uint8_t *room = buf_reserve(&in, 65536);
        ssize_t n = room ? recv(fd, room, 65536, 0) : 0;
        if (n <= 0)
            break;
        in.len += (size_t)n;
        head = buf_str(&in);
        end = strstr(head, "\r\n\r\n");
        const char *length = strcasestr(head, "content-length:");
        len = end && length && length < end ? strtoul(length + 15, NULL, 10) : 0;
    }
    if (end) {
        const char *key = strcasestr(head, "authorization:");
        pthread_mutex_lock(&fake.mutex);
        sscanf(head, "%*s %127s", fake.path);
        fake.authorization[0] = 0;
        if (key && key < end)
            sscanf(key + 14, " %127[^\r]", fake.authorization);
        bool base = fake.base;
        const char *ring = fake.ring;
        buf_clear(&fake.body);
        buf_put(&fake.body, end + 4, len);
        pthread_mutex_unlock(&fake.mutex);
        if (strncmp(head, "POST", 4) == 0)
            serve_post(fd, base, end + 4, len);
        else if (strcmp(fake.path, "/health") == 0)
            put_whole(fd, 503, "{\"status\":\"unavailable\",\"reason\":\"rank 1 is lost\"}");
        else if (strncmp(fake.path, "/other/", 7) == 0)
            put_whole(fd, 404, "{}");
        else if (strcmp(fake.path, "/v1/ring") == 0)
            put_whole(fd, 200, ring);
        else
            put_whole(fd, 200, "{\"data\":[{\"id\":\"fake-model\"}]}");
    }
    buf_free(&in);
}

static void *run_fake(void *arg)
{
    (void)arg;
    while (!atomic_load(&fake.stop)) {
        struct pollfd p = {.fd = fake.fd, .events = POLLIN};
        int fd = poll(&p, 1, 50) > 0 ? accept(fake.fd, NULL, NULL) : -1;
        if (fd < 0)
            continue;
        serve(fd);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    return NULL;
}

static int start_fake(void **state)
{
    (void)state;
    uint16_t port;
    if (net_tcp_listen("127.0.0.1:0", &fake.fd, &port, NULL) != OK)
        return -1;
    snprintf(fake.url, sizeof fake.url, "http://127.0.0.1:%u", port);
    return thread_start(&fake.thread, "fake", run_fake, NULL, NULL) == OK ? 0 : -1;
}

static int stop_fake(void **state)
{
    (void)state;
    atomic_store(&fake.stop, true);
    pthread_join(fake.thread, NULL);
    close(fake.fd);
    buf_free(&fake.body);
    return 0;
}

static void set_fake(bool base, const char *ring)
{
    pthread_mutex_lock(&fake.mutex);
    fake.base = base;
    fake.ring = ring;
    pthread_mutex_unlock(&fake.mutex);
}

/* The last question: path and body. */
static const char *asked(char out[1024])
{
    pthread_mutex_lock(&fake.mutex);
    snprintf(out, 1024, "%s %s", fake.path, buf_str(&fake.body));
    pthread_mutex_unlock(&fake.mutex);
    return out;
}

/* --- on pipes ------------------------------------------------------------------------------------ */

/* kvasir chat URL ARGS < input; both are words of a shell. */
static void chat(struct proc *p, const char *args, const char *input, int code)
{
    static const char *const env[] = {"KVASIR_LOG", NULL};
    char line[2048];
    snprintf(line, sizeof line, "printf %s | '%s' chat %s %s", input, KV_BINARY, fake.url, args);
    const char *const argv[] = {"/bin/sh", "-c", line, NULL};
    assert_true(proc_start(p, argv, env, -1));
    if (!proc_wait(p, WAIT_MS))
        fail_msg("it hangs; stderr: %s", proc_text(p, PROC_ERR));
    if (proc_code(p) != code)
        fail_msg("exit status %d, not %d; stderr: %s", proc_code(p), code, proc_text(p, PROC_ERR));
}

static void check(const char *args, const char *input, int code, const char *out, const char *err)
{
    struct proc p;
    chat(&p, args, input, code);
    assert_string_equal(proc_text(&p, PROC_OUT), out);
    if (err && !strstr(proc_text(&p, PROC_ERR), err))
        fail_msg("stderr lacks \"%s\": %s", err, proc_text(&p, PROC_ERR));
    if (!err)
        assert_string_equal(proc_text(&p, PROC_ERR), "");
    proc_free(&p);
}

static void one_question_is_answered(void **state)
{
    (void)state;
    char text[1024];
    check("-p hello", "''", 0, "You say hello (1)", NULL);
    assert_string_equal(asked(text), "/v1/chat/completions {\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\","
                                     "\"content\":\"hello\"}],\"stream\":true}");
    check("-p -", "'a\\nb'", 0, "You say a\nb (1)", NULL);
    check("-p whole", "''", 0, "All at once.", NULL);
    check("-p hello --system 'Be brief.' --temp 0.5 -n 7 --model other", "''", 0, "You say hello (2)", NULL);
    assert_string_equal(asked(text), "/v1/chat/completions {\"model\":\"other\",\"messages\":[{\"role\":\"system\","
                                     "\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"hello\"}],"
                                     "\"stream\":true,\"temperature\":0.5,\"max_tokens\":7}");
}

static void lines_of_a_pipe_are_a_conversation(void **state)
{
    (void)state;
    check("", "'one\\ntwo'", 0, "You say one (1)\nYou say two (3)\n", NULL);
    check("", "'one\\n/reset\\n\\nthree\\n'", 0, "You say one (1)\nYou say three (1)\n", NULL);
    check("", "'a\\\\\\nb\\\\\\n\\n'", 0, "You say a\nb\n (1)\n", NULL);
    check("", "'//hello\\n/quit\\nmore'", 0, "You say /hello (1)\n", NULL);
    check("", "''", 0, "", NULL);
}

static void commands_change_what_is_sent(void **state)
{
    (void)state;
    char text[1024];
    check("", "'/system Be kind.\\n/set temperature 0.25\\n/set seed=3\\n/set top_p 0.5\\n/set top_p default\\nhi'", 0,
          "You say hi (2)\n", NULL);
    assert_non_null(strstr(asked(text), "\"content\":\"Be kind.\""));
    assert_non_null(strstr(text, "\"stream\":true,\"temperature\":0.25,\"seed\":3}"));
    check("", "'/set'", 0, "", "temperature  default");
    check("", "'/help'", 0, "", "/reset");
}

static void wrong_commands_are_told(void **state)
{
    (void)state;
    check("", "'/sing\\nhi'", 1, "You say hi (1)\n", "there is no command /sing");
    check("", "'/set temperature hot'", 1, "", "temperature");
    check("", "'/set temperature 3'", 1, "", "temperature");
    check("", "'/set heat 3'", 1, "", "there is no setting 'heat'");
    check("--temp hot -p a", "''", 1, "", "temperature");
    check("", "'\\377'", 1, "", "UTF-8");
}

static void failures_end_with_their_reason(void **state)
{
    (void)state;
    check("-p busy", "''", 1, "", "ERR_BUSY: 64 requests wait already (HTTP 429)");
    check("-p odd", "''", 1, "", "ERR_FORMAT");
    check("-p late", "''", 1, "You ", "rank 2 is lost");
    check("-p cut", "''", 1, "You ", "in the middle");
    check("", "'busy\\nhi'", 1, "You say hi (1)\n", "64 requests wait already");
}

static void a_base_model_continues(void **state)
{
    (void)state;
    char text[1024];
    set_fake(true, NULL);
    check("-p Once", "''", 0, "You say Once (0)", "base model");
    set_fake(false, NULL);
    assert_non_null(strstr(asked(text), "/v1/completions {\"model\":\"fake-model\",\"prompt\":\"Once\""));
}

static void a_key_comes_from_a_file(void **state)
{
    (void)state;
    char path[PATH_MAX], args[PATH_MAX + 64];
    snprintf(args, sizeof args, "-p hello --key-file '%s'", test_scratch("chat-key", path));
    assert_int_equal(io_write_file(path, "sesame\n", 7, 0600, NULL), OK);
    check(args, "''", 0, "You say hello (1)", NULL);
    pthread_mutex_lock(&fake.mutex);
    int same = strcmp(fake.authorization, "Bearer sesame");
    pthread_mutex_unlock(&fake.mutex);
    assert_int_equal(same, 0);
    assert_int_equal(io_write_file(path, "wrong", 5, 0600, NULL), OK);
    check(args, "''", 1, "", "ERR_AUTH: that is not the key (HTTP 401)");
    assert_int_equal(chmod(path, 0644), 0);
    check(args, "''", 1, "", "chmod 600");
    assert_int_equal(unlink(path), 0);
    check(args, "''", 1, "", "ERR_NOT_FOUND");
}

static void nobody_there_is_told(void **state)
{
    (void)state;
    int fd;
    uint16_t port;
    struct proc p;
    char url[64];
    static const char *const env[] = {"KVASIR_LOG", NULL};
    assert_true((fd = test_dead_port(&port)) >= 0);
    snprintf(url, sizeof url, "127.0.0.1:%u", port);
    const char *const argv[] = {KV_BINARY, "chat", url, "-p", "hi", NULL};
    assert_true(proc_start(&p, argv, env, -1));
    assert_true(proc_wait(&p, WAIT_MS));
    close(fd);
    assert_int_equal(proc_code(&p), 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "ERR_IO"));
    proc_free(&p);
    const char *const wrong[] = {KV_BINARY, "chat", "ftp://x", "-p", "hi", NULL};
    assert_true(proc_start(&p, wrong, env, -1));
    assert_true(proc_wait(&p, WAIT_MS));
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "ERR_ARG"));
    proc_free(&p);
}

/* --- a ring of ours ------------------------------------------------------------------------------ */

static void finish(struct proc *p, const char *const *argv, int code)
{
    static const char *const env[] = {"KVASIR_LOG", NULL};
    assert_true(proc_start(p, argv, env, -1));
    if (!proc_wait(p, WAIT_MS))
        fail_msg("it hangs; stderr: %s", proc_text(p, PROC_ERR));
    if (proc_code(p) != code)
        fail_msg("exit status %d, not %d; stdout: %s; stderr: %s", proc_code(p), code, proc_text(p, PROC_OUT),
                 proc_text(p, PROC_ERR));
}

static void a_ring_of_ours_answers_and_tells_its_state(void **state)
{
    (void)state;
    static const char *const env[] = {"KVASIR_LOG", NULL};
    struct proc up, p;
    struct golden_json g;
    char path[PATH_MAX], url[64];
    assert_int_equal(golden_json_open(test_data("golden/llama-tied-f32.json", path), &g, NULL), OK);
    size_t i = 0;
    while (i < g.n_cases && strcmp(g.cases[i].name, "chat") != 0)
        i++;
    assert_true(i < g.n_cases);
    const char *const start[] = {
        KV_BINARY, "up", test_data("llama-tied-f32.gguf", path), "--stages", "2", "--port", "0", "-t", "1", "--kv",
        "f32",     NULL};
    assert_true(proc_start(&up, start, env, -1));
    if (!proc_until(&up, PROC_OUT, "API: ", 3 * WAIT_MS))
        fail_msg("it does not come up (%s, status %d): %s", up.pid ? "runs" : "ended", up.status,
                 proc_text(&up, PROC_ERR));
    const char *api = strstr(proc_text(&up, PROC_OUT), "http://");
    assert_non_null(api);
    assert_int_equal(sscanf(api, "http://%63[0-9.:]", url), 1); /* any free port */
    const char *const ask[] = {KV_BINARY,
                               "chat",
                               url,
                               "-p",
                               "Tell me a story about a small ship.",
                               "--system",
                               "You are a small test model.",
                               "--temp",
                               "0",
                               "-n",
                               "48",
                               NULL};
    const char *const status[] = {KV_BINARY, "status", url, NULL}, *const json[] = {KV_BINARY, "status", url, "--json",
                                                                                    NULL};
    finish(&p, ask, 0);
    const char *want = g.cases[i].greedy_text.data;
    assert_string_equal(proc_text(&p, PROC_OUT), want + (*want == ' ')); /* an answer is a text of its own */
    proc_free(&p);
    finish(&p, status, 0);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "2 ranks, seen from rank 0: ready"));
    assert_int_equal(proc_lines(&p, PROC_OUT, "0     [0,"), 1);
    assert_int_equal(proc_lines(&p, PROC_OUT, "1     ["), 1);
    proc_free(&p);
    finish(&p, json, 0);
    yyjson_doc *doc = yyjson_read(proc_text(&p, PROC_OUT), p.text[PROC_OUT].len, 0);
    yyjson_val *rank = yyjson_arr_get(yyjson_obj_get(yyjson_doc_get_root(doc), "ranks"), 1);
    assert_true(yyjson_get_bool(yyjson_obj_get(yyjson_doc_get_root(doc), "healthy")));
    assert_true(yyjson_is_real(yyjson_obj_get(rank, "busy")) && yyjson_is_real(yyjson_obj_get(rank, "tok_per_s")));
    yyjson_doc_free(doc);
    proc_free(&p);
    kill(up.pid, SIGTERM);
    assert_true(proc_wait(&up, WAIT_MS));
    assert_int_equal(proc_code(&up), 0);
    proc_free(&up);
    golden_json_close(&g);
}

static void a_broken_ring_is_a_failure(void **state)
{
    (void)state;
    struct proc p;
    const char *const status[] = {KV_BINARY, "status", fake.url, NULL};
    set_fake(false, "{\"rank\":0,\"model\":{\"name\":\"m\"},\"ranks\":[{\"rank\":0,\"first\":0,\"end\":4,"
                    "\"device\":\"cpu\\u001b[2J\"}],\"requests\":null,\"age_ms\":null}");
    finish(&p, status, 1);
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "NOT READY: rank 1 is lost"));
    assert_non_null(strstr(proc_text(&p, PROC_OUT), "0     [0,4)      cpu?[2J"));
    proc_free(&p);
    set_fake(false, "{\"object\":\"list\"}");
    finish(&p, status, 1);
    assert_non_null(strstr(proc_text(&p, PROC_ERR), "ERR_FORMAT"));
    proc_free(&p);
}

/* Another program's port: a web server that is no node. */
static void something_else_answers(void **state)
{
    (void)state;
    struct proc p;
    char url[80];
    snprintf(url, sizeof url, "%s/other/v1", fake.url); /* whose /health it does not know */
    const char *const status[] = {KV_BINARY, "status", url, NULL};
    finish(&p, status, 1);
    if (!strstr(proc_text(&p, PROC_ERR), "is no node of kvasir: its /health gives HTTP 404"))
        fail_msg("it says: %s", proc_text(&p, PROC_ERR));
    proc_free(&p);
}

/* A server takes the question and says nothing. */
static void a_silent_server_can_be_left(void **state)
{
    (void)state;
    static const char *const how[] = {"chat", "status"};
    for (size_t i = 0; i < 2; i++) {
        struct proc p;
        struct pollfd wait = {.events = POLLIN};
        uint16_t port;
        char url[32];
        const int fd = net_tcp_listen("127.0.0.1:0", &wait.fd, &port, NULL) == OK ? wait.fd : -1;
        assert_true(fd >= 0);
        snprintf(url, sizeof url, "127.0.0.1:%u", port);
        const char *const argv[] = {KV_BINARY, how[i], url, NULL};
        assert_true(proc_start(&p, argv, NULL, -1));
        assert_int_equal(poll(&wait, 1, (int)WAIT_MS), 1); /* it is connected */
        kill(p.pid, SIGINT);
        if (!proc_wait(&p, WAIT_MS))
            fail_msg("%s does not let itself be interrupted", how[i]);
        assert_int_equal(proc_code(&p), 128 + SIGINT);
        assert_string_equal(proc_text(&p, PROC_ERR), "");
        proc_free(&p);
        close(fd);
    }
}

/* --- on a terminal ------------------------------------------------------------------------------- */

struct terminal {
    pid_t pid;
    int fd;
    struct buf text;
    size_t seen; /* of the text, by term_until */
};

static void term_start(struct terminal *t, const char *state_home)
{
    *t = (struct terminal){0};
    fflush(NULL);
    t->pid = forkpty(&t->fd, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = 200});
    if (t->pid == 0) {
        setenv("XDG_STATE_HOME", state_home, 1);
        setenv("TERM", "xterm", 1);
        setenv("HOME", "/nonexistent", 1);
        unsetenv("KVASIR_LOG");
        execl(KV_BINARY, KV_BINARY, "chat", fake.url, NULL);
        _exit(127);
    }
    assert_true(t->pid > 0);
}

static bool term_read(struct terminal *t, int ms)
{
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    uint8_t *room = buf_reserve(&t->text, 4096);
    if (poll(&p, 1, ms) <= 0)
        return true;
    ssize_t n = read(t->fd, room, 4096);
    if (n > 0)
        t->text.len += (size_t)n;
    return n > 0;
}

/* Waits for a text after what was waited for before. */
static void term_until(struct terminal *t, const char *text)
{
    uint64_t deadline = clock_deadline_ms(WAIT_MS);
    for (;;) {
        const char *at = strstr(buf_str(&t->text) + t->seen, text);
        if (at) {
            t->seen = (size_t)(at - (const char *)t->text.data) + strlen(text);
            return;
        }
        if (!term_read(t, clock_left_ms(deadline)) || clock_now_ns() >= deadline)
            fail_msg("waited for \"%s\" after %zu bytes of: %s", text, t->seen, buf_str(&t->text));
    }
}

static void term_type(struct terminal *t, const char *keys)
{
    assert_int_equal(write(t->fd, keys, strlen(keys)), strlen(keys));
}

static void term_end(struct terminal *t, int code)
{
    int status = 0;
    pid_t pid = 0;
    uint64_t deadline = clock_deadline_ms(WAIT_MS);
    while ((pid = waitpid(t->pid, &status, WNOHANG)) == 0 && clock_now_ns() < deadline)
        if (!term_read(t, 20))
            usleep(5000);
    if (pid == 0) {
        kill(t->pid, SIGKILL);
        waitpid(t->pid, &status, 0);
    }
    if (pid == 0 || !WIFEXITED(status) || WEXITSTATUS(status) != code)
        fail_msg("it ended with wait status %d, not exit status %d: %s", status, code, buf_str(&t->text));
    close(t->fd);
    buf_free(&t->text);
}

static void ctrl_c_stops_an_answer(void **state)
{
    (void)state;
    struct terminal t;
    char home[PATH_MAX], text[1024];
    unsigned before = atomic_load(&fake.n_hung_up);
    term_start(&t, test_scratch("chat-state-c", home));
    term_until(&t, "> ");
    term_type(&t, "slow\r");
    term_until(&t, "say slow (1)");
    term_type(&t, "\003");
    term_until(&t, "(stopped)");
    term_until(&t, "> ");
    const uint64_t deadline = clock_deadline_ms(WAIT_MS);
    while (atomic_load(&fake.n_hung_up) == before && clock_now_ns() < deadline)
        usleep(10000);
    assert_int_equal(atomic_load(&fake.n_hung_up), before + 1);
    term_type(&t, "on\r"); /* what came of the answer is part of the conversation */
    term_until(&t, "say on (3)");
    assert_non_null(strstr(asked(text), "\"content\":\"You say slow (1)\""));
    term_until(&t, "> ");
    term_type(&t, "\004");
    term_end(&t, 0);
    test_remove_tree(home);
}

static void ctrl_c_at_the_prompt_drops_the_line_and_twice_quits(void **state)
{
    (void)state;
    struct terminal t;
    char home[PATH_MAX];
    term_start(&t, test_scratch("chat-state-q", home));
    term_until(&t, "> ");
    term_type(&t, "not this");
    term_until(&t, "not this");
    term_type(&t, "\003");
    term_until(&t, "once more");
    term_until(&t, "> ");
    term_type(&t, "this\r");
    term_until(&t, "say this (1)");
    term_until(&t, "> ");
    term_type(&t, "\003");
    term_until(&t, "once more");
    term_until(&t, "> ");
    term_type(&t, "\003");
    term_end(&t, 130);
    test_remove_tree(home);
}

static void the_history_is_kept_for_its_owner_only(void **state)
{
    (void)state;
    struct terminal t;
    struct stat st;
    char home[PATH_MAX], path[PATH_MAX + 32];
    term_start(&t, test_scratch("chat-state-h", home));
    term_until(&t, "> ");
    term_type(&t, "gr\xc3\xbc\xc3\x9f dich\r");
    term_until(&t, "say gr\xc3\xbc\xc3\x9f dich (1)");
    term_until(&t, "> ");
    term_type(&t, "/quit\r");
    term_end(&t, 0);
    snprintf(path, sizeof path, "%s/kvasir/chat_history", home);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    term_start(&t, home);
    term_until(&t, "> ");
    term_type(&t, "\020\020"); /* Ctrl-P: past /quit */
    term_until(&t, "gr\xc3\xbc\xc3\x9f dich");
    term_type(&t, "\r");
    term_until(&t, "say gr\xc3\xbc\xc3\x9f dich (1)");
    term_until(&t, "> ");
    term_type(&t, "\004");
    term_end(&t, 0);
    test_remove_tree(home);
}

static void a_server_cannot_write_to_the_terminal(void **state)
{
    (void)state;
    struct terminal t;
    char home[PATH_MAX];
    term_start(&t, test_scratch("chat-state-e", home));
    term_until(&t, "> ");
    term_type(&t, "evil\r");
    term_until(&t, "You ?]0;owned??say evil");
    term_until(&t, "> ");
    term_type(&t, "\004");
    term_end(&t, 0);
    test_remove_tree(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_question_is_answered),
        cmocka_unit_test(lines_of_a_pipe_are_a_conversation),
        cmocka_unit_test(commands_change_what_is_sent),
        cmocka_unit_test(wrong_commands_are_told),
        cmocka_unit_test(failures_end_with_their_reason),
        cmocka_unit_test(a_base_model_continues),
        cmocka_unit_test(a_key_comes_from_a_file),
        cmocka_unit_test(nobody_there_is_told),
        cmocka_unit_test(a_ring_of_ours_answers_and_tells_its_state),
        cmocka_unit_test(a_broken_ring_is_a_failure),
        cmocka_unit_test(something_else_answers),
        cmocka_unit_test(a_silent_server_can_be_left),
        cmocka_unit_test(ctrl_c_stops_an_answer),
        cmocka_unit_test(ctrl_c_at_the_prompt_drops_the_line_and_twice_quits),
        cmocka_unit_test(the_history_is_kept_for_its_owner_only),
        cmocka_unit_test(a_server_cannot_write_to_the_terminal),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, start_fake, stop_fake);
}
