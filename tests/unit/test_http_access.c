/* SPDX-License-Identifier: MIT
 *
 * The access log: what a line has in it, and that nothing that becomes of the log stops who writes it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "base/log.h"
#include "http/access.h"
#include "lib/test_util.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

static const struct http_access plain = {
    .peer = "127.0.0.1:5", .method = "GET", .path = "/models", .status = 200, .ns = 1500000};

static yyjson_doc *line_of(const char *path)
{
    struct buf text = {0};
    struct err e;
    if (io_read_file(path, 1u << 20, &text, &e) != OK)
        fail_msg("%s", e.msg);
    yyjson_doc *d = yyjson_read((const char *)text.data, text.len, 0);
    if (!d || text.data[text.len - 1] != '\n')
        fail_msg("no JSON line: %s", buf_str(&text));
    buf_free(&text);
    return d;
}

static const char *str(yyjson_doc *d, const char *name)
{
    return yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(d), name));
}

/* Writes one line into a new file. */
static yyjson_doc *written(const struct http_access *l)
{
    char path[PATH_MAX];
    struct err e;
    int fd;
    unlink(test_scratch("access", path));
    assert_int_equal(http_access_open(path, &fd, &e), OK);
    http_access_write(fd, l);
    close(fd);
    yyjson_doc *d = line_of(path);
    unlink(path);
    return d;
}

static void test_a_line(void **state)
{
    (void)state;
    yyjson_doc *d = written(&plain);
    assert_int_equal(strlen(str(d, "ts")), strlen("2026-11-29T19:16:24.397Z"));
    assert_string_equal(str(d, "peer"), "127.0.0.1:5");
    assert_string_equal(str(d, "method"), "GET");
    assert_string_equal(str(d, "path"), "/models");
    assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/status")), 200);
    assert_true(yyjson_get_num(yyjson_doc_ptr_get(d, "/ms")) == 1.5);
    assert_int_equal(yyjson_obj_size(yyjson_doc_get_root(d)), 6); /* no id, nothing more */
    yyjson_doc_free(d);
}

static void test_members_of_ones_own(void **state)
{
    (void)state;
    struct buf more = {0};
    struct http_access l = plain;
    buf_puts(&more, ",\"n\":7");
    l.id = "req-1";
    l.more = &more;
    yyjson_doc *d = written(&l);
    assert_string_equal(str(d, "id"), "req-1");
    assert_int_equal(yyjson_get_uint(yyjson_doc_ptr_get(d, "/n")), 7);
    yyjson_doc_free(d);
    buf_free(&more);
}

/* Whatever a client asks for, a line is a line and fits into what a pipe takes at once. */
static void test_hostile_paths(void **state)
{
    (void)state;
    char path[5000], file[PATH_MAX];
    struct http_access l = plain;
    struct stat st;
    struct err e;
    int fd;
    l.path = path;
    for (int c = 1; c < 256; c++) {
        memset(path, c, sizeof path - 1);
        path[sizeof path - 1] = 0;
        unlink(test_scratch("access", file));
        assert_int_equal(http_access_open(file, &fd, &e), OK);
        http_access_write(fd, &l);
        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        assert_true(st.st_size > 0 && st.st_size < PIPE_BUF);
        yyjson_doc_free(line_of(file));
    }
    unlink(file);
}

static void test_a_log_that_cannot_be_written(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    int fd = 5;
    assert_int_equal(http_access_open("/nowhere/at/all", &fd, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "/nowhere/at/all"));
    unlink(test_scratch("access", path));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(http_access_open(path, &fd, &e), ERR_IO); /* at once, though nobody reads it */
    assert_int_equal(fd, 5);
    unlink(path);
    http_access_write(-1, &plain);
}

/* Nobody reads the pipe: lines are lost, nothing waits, and what is in the pipe is whole lines. */
static void test_a_log_that_nobody_reads(void **state)
{
    (void)state;
    int fd[2];
    char text[4096];
    struct buf got = {0};
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0); /* which blocks, as the standard error does */
    for (int i = 0; i < 5000; i++)
        http_access_write(fd[1], &plain);
    close(fd[1]);
    for (ssize_t n; (n = read(fd[0], text, sizeof text)) > 0;)
        buf_put(&got, text, (size_t)n);
    close(fd[0]);
    assert_true(got.len > 0);
    for (char *save, *line = strtok_r((char *)(uintptr_t)buf_str(&got), "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        yyjson_doc *d = yyjson_read(line, strlen(line), 0);
        if (!d)
            fail_msg("no whole line: %s", line);
        yyjson_doc_free(d);
    }
    buf_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line),
        cmocka_unit_test(test_members_of_ones_own),
        cmocka_unit_test(test_hostile_paths),
        cmocka_unit_test(test_a_log_that_cannot_be_written),
        cmocka_unit_test(test_a_log_that_nobody_reads),
    };
    alarm(280);
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("access log", tests, NULL, NULL);
}
