/* SPDX-License-Identifier: MIT
 *
 * Files: whole reads and their limit, atomic replacement, mappings at odd offsets, folders.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "lib/test_util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder of this process's own, made before the tests and removed after them. */
static char dir[PATH_MAX];

static const char *in_dir(const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%.3000s/%.500s", dir, name);
    return out;
}

static int make_dir(void **state)
{
    (void)state;
    test_scratch("io", dir);
    umask(022);
    return mkdir(dir, 0700);
}

static int count_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return -1;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static int remove_dir(void **state)
{
    (void)state;
    char path[PATH_MAX];
    DIR *d = opendir(dir);
    if (!d)
        return -1;
    for (struct dirent *f; (f = readdir(d));)
        unlink(in_dir(f->d_name, path));
    closedir(d);
    return rmdir(dir);
}

static void must_write(const char *path, const void *data, size_t len)
{
    struct err e;
    if (io_write_file(path, data, len, 0600, &e) != OK)
        fail_msg("%s", e.msg);
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    char path[PATH_MAX];
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 300001};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint8_t *data = malloc(sizes[k] + 1);
        struct buf b = {0};
        struct err e;
        for (size_t i = 0; i < sizes[k]; i++)
            data[i] = (uint8_t)(i * 31 + k);
        must_write(in_dir("file", path), data, sizes[k]);
        buf_puts(&b, "head:");
        assert_int_equal(io_read_file(path, sizes[k], &b, &e), OK); /* the limit itself is allowed */
        assert_int_equal(b.len, sizes[k] + 5);
        assert_memory_equal(b.data, "head:", 5);
        assert_true(sizes[k] == 0 || memcmp(b.data + 5, data, sizes[k]) == 0);
        buf_free(&b);
        free(data);
    }
    unlink(path);
}

static void a_file_over_the_limit_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct buf b = {0};
    struct err e;
    buf_puts(&b, "head:");
    must_write(in_dir("file", path), "0123456789", 10);
    assert_int_equal(io_read_file(path, 9, &b, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, path));
    assert_non_null(strstr(e.msg, "9 bytes"));
    assert_int_equal(io_read_file("/dev/zero", 1000000, &b, &e), ERR_LIMIT); /* endless */
    assert_string_equal(buf_str(&b), "head:");                               /* and nothing of either */
    buf_free(&b);
    unlink(path);
}

static void what_is_not_there_is_said(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct buf b = {0};
    struct err e;
    assert_int_equal(io_read_file(in_dir("nobody", path), 10, &b, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "nobody"));
    assert_int_equal(e.os, ENOENT);
    assert_int_equal(io_read_file(dir, 10, &b, &e), ERR_IO); /* a folder */
    assert_int_equal(io_write_file("/nowhere/at/all", "x", 1, 0600, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "/nowhere/at/all"));
    buf_free(&b);
}

static void a_write_replaces_the_whole_and_leaves_nothing_else(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct buf b = {0};
    struct err e;
    struct stat st;
    must_write(in_dir("key", path), "a long secret", 13);
    int before = open(path, O_RDONLY | O_CLOEXEC); /* a reader that came before sees the old content */
    assert_int_equal(io_write_file(path, "short", 5, 0640, &e), OK);
    char old[32] = "";
    assert_int_equal(read(before, old, sizeof old), 13);
    assert_memory_equal(old, "a long secret", 13);
    close(before);
    assert_int_equal(io_read_file(path, 100, &b, &e), OK);
    assert_string_equal(buf_str(&b), "short");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(count_files(), 1);
    buf_free(&b);
    unlink(path);
}

static void a_failed_write_leaves_the_old(void **state)
{
    (void)state;
    char path[PATH_MAX], below[PATH_MAX + 16];
    struct err e;
    in_dir("folder", path);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(below, sizeof below, "%.4000s/f", path);
    must_write(below, "x", 1);
    assert_int_equal(io_write_file(path, "y", 1, 0600, &e), ERR_IO); /* a folder that is not empty is in its place */
    assert_int_equal(access(below, R_OK), 0);
    assert_int_equal(count_files(), 1); /* no temporary file stays */
    unlink(below);
    rmdir(path);
}

/* What a reader finds at path. */
static void must_hold(const char *path, const char *text)
{
    struct buf b = {0};
    struct err e;
    if (io_read_file(path, 100, &b, &e) != OK)
        fail_msg("%s", e.msg);
    assert_string_equal(buf_str(&b), text);
    buf_free(&b);
}

static void a_new_content_shows_when_it_is_whole(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct io_atomic f;
    struct err e;
    struct stat st;
    must_write(in_dir("file", path), "old", 3);
    assert_int_equal(io_atomic_begin(&f, path, 0604, &e), OK);
    assert_true(io_write_full(f.fd, "new, ", 5));
    must_hold(path, "old");
    assert_true(io_write_full(f.fd, "in two parts", 12));
    must_hold(path, "old");
    assert_int_equal(io_atomic_commit(&f, &e), OK);
    must_hold(path, "new, in two parts");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0604);
    assert_int_equal(count_files(), 1);
    unlink(path);
}

/* What a user does not want others to see is hidden, also where a file may be seen by all. */
static void the_umask_counts(void **state)
{
    (void)state;
    static const mode_t masks[] = {022, 027, 077};
    char path[PATH_MAX];
    struct err e;
    struct stat st;
    in_dir("file", path);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        const mode_t before = umask(masks[i]);
        enum err_code rc = io_write_file(path, "x", 1, 0644, &e);
        umask(before);
        assert_int_equal(rc, OK);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0644 & ~masks[i]);
    }
    unlink(path);
}

static void what_is_given_up_leaves_the_old(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct io_atomic f;
    struct err e;
    must_write(in_dir("file", path), "old", 3);
    assert_int_equal(io_atomic_begin(&f, path, 0604, &e), OK);
    assert_true(io_write_full(f.fd, "new", 3));
    assert_int_equal(count_files(), 2);
    io_atomic_abort(&f);
    must_hold(path, "old");
    assert_int_equal(count_files(), 1);
    unlink(path);
}

static void a_commit_that_fails_leaves_nothing(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct io_atomic f;
    struct err e;
    assert_int_equal(io_atomic_begin(&f, in_dir("file", path), 0600, &e), OK);
    assert_true(io_write_full(f.fd, "new", 3));
    assert_int_equal(mkdir(path, 0700), 0); /* meanwhile somebody made a folder of that name */
    assert_int_equal(io_atomic_commit(&f, &e), ERR_IO);
    assert_int_equal(e.os, EISDIR);
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(count_files(), 1);
    assert_int_equal(rmdir(path), 0);
}

static void names_that_are_too_long_are_refused(void **state)
{
    (void)state;
    static char name[PATH_MAX];
    struct io_atomic f;
    struct err e;
    memset(name, 'x', sizeof name - 1);
    assert_int_equal(io_atomic_begin(&f, name, 0600, &e), ERR_ARG);
    assert_int_equal(io_write_file(name, "x", 1, 0600, &e), ERR_ARG);
    assert_int_equal(io_mkdirs(name, 0700, &e), ERR_IO); /* fits a path, but no file system */
    assert_int_equal(count_files(), 0);
}

static void a_full_disk_is_said(void **state)
{
    (void)state;
    static const char data[100000];
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        skip();
    errno = 0;
    assert_false(io_write_full(fd, data, sizeof data));
    assert_int_equal(errno, ENOSPC);
    assert_true(io_write_full(fd, data, 0));
    close(fd);
}

static void renaming_replaces_and_says_what_is_missing(void **state)
{
    (void)state;
    char from[PATH_MAX], to[PATH_MAX];
    struct err e;
    must_write(in_dir("from", from), "new", 3);
    must_write(in_dir("to", to), "old", 3);
    assert_int_equal(io_rename(from, to, &e), OK);
    must_hold(to, "new");
    assert_int_equal(count_files(), 1);
    assert_int_equal(io_rename(from, to, &e), ERR_IO);
    assert_int_equal(e.os, ENOENT);
    assert_non_null(strstr(e.msg, from));
    assert_non_null(strstr(e.msg, to));
    must_hold(to, "new");
    unlink(to);
}

static void any_folder_can_be_synced_but_one_that_is_not_there(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct err e;
    assert_int_equal(io_sync_folder_of(in_dir("whatever", path), &e), OK);
    assert_int_equal(io_sync_folder_of("a-name-in-this-folder", &e), OK);
    assert_int_equal(io_sync_folder_of("/proc/version", &e), OK); /* a file system that cannot sync */
    assert_int_equal(io_sync_folder_of("/a-name-in-the-root", &e), OK);
    assert_int_equal(io_sync_folder_of(in_dir("nowhere/x", path), &e), ERR_IO);
    assert_int_equal(e.os, ENOENT);
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(mkdir(in_dir("hidden", path), 0300), 0); /* to write into, not to look at */
    assert_int_equal(io_sync_folder_of(in_dir("hidden/x", path), &e), OK);
    rmdir(in_dir("hidden", path));
}

static void reading_at_an_offset_is_exact(void **state)
{
    (void)state;
    char path[PATH_MAX], got[8];
    struct err e;
    must_write(in_dir("file", path), "0123456789", 10);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(io_pread_full(fd, got, 4, 3, &e), OK);
    assert_memory_equal(got, "3456", 4);
    assert_int_equal(io_pread_full(fd, got, 0, 99, &e), OK);
    assert_int_equal(io_pread_full(fd, got, 4, 7, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "ends 1 bytes early"));
    assert_int_equal(io_pread_full(-1, got, 4, 0, &e), ERR_IO);
    close(fd);
    unlink(path);
}

static void mappings_begin_anywhere(void **state)
{
    (void)state;
    char path[PATH_MAX];
    enum { size = 3 * 65536 + 17 };
    uint8_t *data = malloc(size);
    struct err e;
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 7 + i / 256);
    must_write(in_dir("file", path), data, size);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    static const size_t at[] = {0, 1, 31, 4095, 4096, 4097, 65535, 65537, size - 1};
    for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
        for (size_t len = 1; at[k] + len <= size; len = len * 3 + 1) {
            struct io_map m;
            assert_int_equal(io_map_range(fd, at[k], len, &m, &e), OK);
            assert_int_equal(m.len, len);
            assert_memory_equal(m.data, data + at[k], len);
            io_map_fetch(&m, m.data, len);
            io_map_fetch(&m, m.data + len - 1, 1);
            assert_memory_equal(m.data, data + at[k], len);
            io_unmap(&m);
            assert_null(m.data);
            io_unmap(&m);
        }
    }
    close(fd);
    unlink(path);
    free(data);
}

static void impossible_mappings_are_refused(void **state)
{
    (void)state;
    struct io_map m = {0};
    struct err e;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_int_equal(io_map_range(fd, 0, 0, &m, &e), ERR_ARG);
    assert_int_equal(io_map_range(fd, 1, SIZE_MAX, &m, &e), ERR_ARG);
    assert_int_equal(io_map_range(fd, 0, SIZE_MAX / 2, &m, &e), ERR_IO);
    assert_int_equal(io_map_range(-1, 0, 10, &m, &e), ERR_IO);
    assert_null(m.base);
    close(fd);
}

static void folders_are_made_with_their_parents(void **state)
{
    (void)state;
    char path[PATH_MAX], file[PATH_MAX];
    struct err e;
    struct stat st;
    in_dir("a/b/c", path);
    assert_int_equal(io_mkdirs(path, 0700, &e), OK);
    assert_int_equal(io_mkdirs(path, 0700, &e), OK); /* again: fine */
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(st.st_mode & 077, 0);
    rmdir(path);
    rmdir(in_dir("a/b", path));
    rmdir(in_dir("a", path));
    must_write(in_dir("file", file), "x", 1);
    assert_int_equal(io_mkdirs(in_dir("file/below", path), 0700, &e), ERR_IO); /* a file is in the way */
    assert_int_equal(io_mkdirs(file, 0700, &e), ERR_IO);
    assert_int_equal(e.os, ENOTDIR);
    assert_non_null(strstr(e.msg, file));
    assert_int_equal(io_mkdirs("", 0700, &e), ERR_IO);
    assert_int_equal(io_mkdirs("/", 0700, &e), OK);
    unlink(file);
}

static void a_folder_that_others_can_write_is_not_ours(void **state)
{
    (void)state;
    static const struct {
        mode_t mode;
        enum err_code want;
    } cases[] = {{0700, OK}, {0755, OK}, {0770, ERR_AUTH}, {0707, ERR_AUTH}, {01777, ERR_AUTH}};
    char path[PATH_MAX], link[PATH_MAX];
    struct err e;
    in_dir("mine", path);
    assert_int_equal(io_own_folder(path, &e), ERR_IO); /* not there */
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(chmod(path, cases[i].mode), 0);
        assert_int_equal(io_own_folder(path, &e), cases[i].want);
    }
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(symlink(path, in_dir("link", link)), 0); /* may lead elsewhere tomorrow */
    assert_int_equal(io_own_folder(link, &e), ERR_AUTH);
    unlink(link);
    if (chown(path, 1, 1) == 0 && geteuid() != 1) /* only root may */
        assert_int_equal(io_own_folder(path, &e), ERR_AUTH);
    rmdir(path);
}

static void the_cache_folder_follows_the_environment(void **state)
{
    (void)state;
    char want[PATH_MAX], got[PATH_MAX];
    struct err e;
    in_dir("home", want);
    setenv("KVASIR_HOME", want, 1);
    assert_int_equal(io_cache_dir(got, &e), OK);
    assert_string_equal(got, want);
    assert_int_equal(access(got, W_OK), 0);
    rmdir(got);
    unsetenv("KVASIR_HOME");
    setenv("XDG_CACHE_HOME", dir, 1);
    assert_int_equal(io_cache_dir(got, &e), OK);
    assert_string_equal(got, in_dir("kvasir", want));
    rmdir(got);
    setenv("XDG_CACHE_HOME", "relative", 1); /* not a path one may use */
    setenv("HOME", dir, 1);
    assert_int_equal(io_cache_dir(got, &e), OK);
    assert_string_equal(got, in_dir(".cache/kvasir", want));
    rmdir(got);
    rmdir(in_dir(".cache", want));
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(io_cache_dir(got, &e), OK);
    assert_non_null(strstr(got, "/var/tmp/kvasir-"));
}

static void resident_memory_grows_with_use(void **state)
{
    (void)state;
    uint64_t before = io_resident_bytes();
    size_t n = 64u << 20;
    volatile uint8_t *p = malloc(n);
    for (size_t i = 0; i < n; i += 512)
        p[i] = 1;
    uint64_t after = io_resident_bytes();
    assert_true(before > 100000);
    assert_true(after >= before + n * 9 / 10);
    free((void *)(uintptr_t)p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(a_file_over_the_limit_is_refused),
        cmocka_unit_test(what_is_not_there_is_said),
        cmocka_unit_test(a_write_replaces_the_whole_and_leaves_nothing_else),
        cmocka_unit_test(a_failed_write_leaves_the_old),
        cmocka_unit_test(a_new_content_shows_when_it_is_whole),
        cmocka_unit_test(the_umask_counts),
        cmocka_unit_test(what_is_given_up_leaves_the_old),
        cmocka_unit_test(a_commit_that_fails_leaves_nothing),
        cmocka_unit_test(names_that_are_too_long_are_refused),
        cmocka_unit_test(a_full_disk_is_said),
        cmocka_unit_test(renaming_replaces_and_says_what_is_missing),
        cmocka_unit_test(any_folder_can_be_synced_but_one_that_is_not_there),
        cmocka_unit_test(reading_at_an_offset_is_exact),
        cmocka_unit_test(mappings_begin_anywhere),
        cmocka_unit_test(impossible_mappings_are_refused),
        cmocka_unit_test(folders_are_made_with_their_parents),
        cmocka_unit_test(a_folder_that_others_can_write_is_not_ours),
        cmocka_unit_test(the_cache_folder_follows_the_environment),
        cmocka_unit_test(resident_memory_grows_with_use),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
