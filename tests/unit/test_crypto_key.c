/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "crypto/key.h"
#include "lib/test_util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    if (fd < 0)
        fail_msg("cannot write %s", path);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_text_is_read_back(void **state)
{
    (void)state;
    struct key_secret s;
    struct key_public p, back;
    char text[KEY_TEXT_SIZE];
    struct err e;
    key_generate(&s);
    key_public_of(&s, &p);
    assert_int_equal(strlen(key_text(&p, text)), 43);
    assert_int_equal(key_parse(text, &back, &e), OK);
    assert_true(key_equal(&p, &back));
    key_wipe(&s);
    for (size_t i = 0; i < sizeof s.b; i++)
        assert_int_equal(s.b[i], 0);
}

static void test_bad_texts_are_refused(void **state)
{
    (void)state;
    struct key_secret s;
    struct key_public p, out;
    char text[KEY_TEXT_SIZE], bad[KEY_TEXT_SIZE + 8];
    struct err e;
    key_generate(&s);
    key_public_of(&s, &p);
    key_text(&p, text);

    assert_int_equal(key_parse("", &out, &e), ERR_ARG);
    snprintf(bad, sizeof bad, "%s=", text);
    assert_int_equal(key_parse(bad, &out, &e), ERR_ARG); /* padding */
    snprintf(bad, sizeof bad, "%.42s", text);
    assert_int_equal(key_parse(bad, &out, &e), ERR_ARG); /* short */
    snprintf(bad, sizeof bad, "%s", text);
    bad[3] = '+';
    assert_int_equal(key_parse(bad, &out, &e), ERR_ARG); /* the other alphabet */
    bad[3] = ' ';
    assert_int_equal(key_parse(bad, &out, &e), ERR_ARG);
    /* 43 characters hold 258 bits: the last two must be 0. */
    snprintf(bad, sizeof bad, "%s", text);
    const char *alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    bad[42] = alphabet[(strchr(alphabet, text[42]) - alphabet) | 1];
    assert_int_equal(key_parse(bad, &out, &e), ERR_ARG);
}

static void test_weak_points_are_refused(void **state)
{
    (void)state;
    uint8_t zero[32] = {0}, one[32] = {1}, high[32];
    char text[KEY_TEXT_SIZE];
    struct key_public out;
    struct err e;
    memset(high, 0xff, sizeof high);
    const uint8_t *points[] = {zero, one, high};
    for (int i = 0; i < 3; i++) {
        key_base64(points[i], 32, text);
        assert_int_equal(key_parse(text, &out, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "Ed25519"));
    }
}

static void test_a_signature_verifies_and_a_changed_one_does_not(void **state)
{
    (void)state;
    struct key_secret s, other;
    struct key_public p, q;
    uint8_t sig[KEY_SIGNATURE_BYTES];
    struct err e;
    key_generate(&s);
    key_generate(&other);
    key_public_of(&s, &p);
    key_public_of(&other, &q);
    key_sign(&s, "message", 7, sig);
    assert_int_equal(key_verify(&p, "message", 7, sig, &e), OK);
    assert_int_equal(key_verify(&p, "messagf", 7, sig, &e), ERR_AUTH);
    assert_int_equal(key_verify(&q, "message", 7, sig, &e), ERR_AUTH);
    sig[10] ^= 1;
    assert_int_equal(key_verify(&p, "message", 7, sig, &e), ERR_AUTH);
}

/* RFC 8032 section 7.1, test 2. */
static void test_the_published_vector(void **state)
{
    (void)state;
    static const uint8_t seed[32] = {0x4c, 0xcd, 0x08, 0x9b, 0x28, 0xff, 0x96, 0xda, 0x9d, 0xb6, 0xc3,
                                     0x46, 0xec, 0x11, 0x4e, 0x0f, 0x5b, 0x8a, 0x31, 0x9f, 0x35, 0xab,
                                     0xa6, 0x24, 0xda, 0x8c, 0xf6, 0xed, 0x4f, 0xb8, 0xa6, 0xfb};
    static const uint8_t sig_head[8] = {0x92, 0xa0, 0x09, 0xa9, 0xf0, 0xd4, 0xca, 0xb8};
    char path[PATH_MAX], line[128], b64[48];
    struct key_secret s;
    uint8_t sig[KEY_SIGNATURE_BYTES];
    struct err e;
    key_base64(seed, sizeof seed, b64);
    snprintf(line, sizeof line, "kvasir-secret-key-1 %s\n", b64);
    write_file(test_scratch("vector.key", path), line, 0600);
    assert_int_equal(key_load(path, &s, &e), OK);
    unlink(path);
    key_sign(&s, "\x72", 1, sig);
    assert_memory_equal(sig, sig_head, sizeof sig_head);
}

static void test_file_is_read_back_and_private(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct key_secret s, back;
    struct stat st;
    struct err e;
    test_scratch("round.key", path);
    unlink(path);
    key_generate(&s);
    assert_int_equal(key_save(path, &s, &e), OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(key_load(path, &back, &e), OK);
    assert_memory_equal(s.b, back.b, sizeof s.b);
    unlink(path);
}

static void test_a_key_file_is_never_overwritten(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct key_secret s, back;
    struct err e;
    test_scratch("keep.key", path);
    unlink(path);
    key_generate(&s);
    assert_int_equal(key_save(path, &s, &e), OK);
    struct key_secret other;
    key_generate(&other);
    assert_int_equal(key_save(path, &other, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "never overwritten"));
    assert_int_equal(key_load(path, &back, &e), OK);
    assert_memory_equal(s.b, back.b, sizeof s.b);
    unlink(path);
}

static void test_a_file_others_can_read_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct key_secret s, out;
    struct err e;
    test_scratch("open.key", path);
    unlink(path);
    key_generate(&s);
    assert_int_equal(key_save(path, &s, &e), OK);
    chmod(path, 0640);
    assert_int_equal(key_load(path, &out, &e), ERR_AUTH);
    assert_non_null(strstr(e.msg, "chmod 600"));
    unlink(path);
}

static void test_broken_files_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "\n",
        "kvasir-secret-key-1 \n",
        "kvasir-secret-key-2 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n",
        "kvasir-secret-key-1 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA+\n",
        "kvasir-secret-key-1 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n\n",
        "kvasir-secret-key-1 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n",
    };
    char path[PATH_MAX];
    struct key_secret out;
    struct err e;
    test_scratch("broken.key", path);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        unlink(path);
        write_file(path, texts[i], 0600);
        assert_int_equal(key_load(path, &out, &e), ERR_FORMAT);
        assert_int_equal(e.code, ERR_FORMAT);
        assert_non_null(strstr(e.msg, "broken.key"));
    }
    unlink(path);
    assert_int_equal(key_load(path, &out, &e), ERR_NOT_FOUND);
    assert_int_equal(key_load("/", &out, &e), ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_read_back),
        cmocka_unit_test(test_bad_texts_are_refused),
        cmocka_unit_test(test_weak_points_are_refused),
        cmocka_unit_test(test_a_signature_verifies_and_a_changed_one_does_not),
        cmocka_unit_test(test_the_published_vector),
        cmocka_unit_test(test_file_is_read_back_and_private),
        cmocka_unit_test(test_a_key_file_is_never_overwritten),
        cmocka_unit_test(test_a_file_others_can_read_is_refused),
        cmocka_unit_test(test_broken_files_are_refused),
    };
    if (key_library_init(NULL) != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
