/* SPDX-License-Identifier: MIT
 *
 * The handshake as a machine: both ends in one thread, the bytes between them in the test's hands.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "ring/handshake.h"

#include <stdio.h>
#include <string.h>

#define N_RANKS 3u

/* A ring of three ranks: [0,2) [2,3) [3,5). */
struct ring {
    struct manifest m;
    struct manifest_rank ranks[N_RANKS];
    struct key_secret keys[N_RANKS], stranger;
};

/* Two machines on edge 0: rank 0 dials, rank 1 listens. */
struct pair {
    struct handshake dialer, listener;
    struct handshake_hello listener_hello;
    struct key_public dialer_key; /* whom the listener expects */
    bool no_such_edge;
};

static struct ring ring;

static int make_ring(void **state)
{
    static const uint32_t ends[N_RANKS] = {2, 3, 5};
    (void)state;
    memset(&ring, 0, sizeof ring);
    ring.m = (struct manifest){.epoch = 7,
                               .n_blocks = 5,
                               .n_embd = 64,
                               .n_vocab = 512,
                               .n_ctx = 128,
                               .n_slots = 2,
                               .n_batch = 32,
                               .n_ranks = N_RANKS,
                               .ranks = ring.ranks};
    memset(ring.m.ring_id, 0x12, sizeof ring.m.ring_id);
    memset(ring.m.model_id, 0x34, sizeof ring.m.model_id);
    key_generate(&ring.stranger);
    for (uint32_t i = 0; i < N_RANKS; i++) {
        key_generate(&ring.keys[i]);
        key_public_of(&ring.keys[i], &ring.ranks[i].key);
        ring.ranks[i].first = i ? ends[i - 1] : 0;
        ring.ranks[i].end = ends[i];
    }
    return 0;
}

static enum err_code serve_edge(void *ctx, uint32_t edge, struct handshake_hello *mine, struct key_public *expected,
                                struct err *e)
{
    const struct pair *p = ctx;
    if (p->no_such_edge)
        return err_set(e, ERR_NOT_FOUND, "edge %u is not one of mine", edge);
    *mine = p->listener_hello;
    *expected = p->dialer_key;
    return OK;
}

static void hello_of(uint32_t rank, uint32_t edge, struct handshake_hello *out)
{
    struct key_public peer;
    assert_int_equal(handshake_hello_of(&ring.m, rank, edge, out, &peer, NULL), OK);
}

static void open_pair(struct pair *p)
{
    struct handshake_hello mine;
    memset(p, 0, sizeof *p);
    hello_of(0, 0, &mine);
    hello_of(1, 0, &p->listener_hello);
    p->dialer_key = ring.ranks[0].key;
    handshake_dial(&p->dialer, &ring.keys[0], &mine, &ring.ranks[1].key);
    handshake_listen(&p->listener, &ring.keys[1], serve_edge, p);
}

static void close_pair(struct pair *p)
{
    handshake_wipe(&p->dialer);
    handshake_wipe(&p->listener);
}

/* Brings what one machine has to say to the other, as far as that wants it. */
static void give(struct handshake *to, const uint8_t *data, size_t len)
{
    for (size_t done = 0; done < len && handshake_want(to) > 0;) {
        size_t n = handshake_want(to);
        n = n < len - done ? n : len - done;
        handshake_input(to, data + done, n);
        done += n;
    }
}

static bool carry(struct handshake *from, struct handshake *to)
{
    uint8_t data[sizeof from->out];
    const size_t len = from->out_len;
    memcpy(data, from->out, len);
    from->out_len = 0;
    give(to, data, len);
    return len > 0;
}

static void run(struct pair *p)
{
    while (carry(&p->dialer, &p->listener) || carry(&p->listener, &p->dialer))
        continue;
}

/* One side fails with this code and text, the other is told it. */
static void expect_refusal(struct handshake *refuser, struct handshake *refused, enum err_code code, const char *text)
{
    assert_int_equal(refuser->state, HANDSHAKE_FAILED);
    assert_int_equal(refuser->err.code, code);
    if (!strstr(refuser->err.msg, text))
        fail_msg("'%s' is not in '%s'", text, refuser->err.msg);
    assert_int_equal(refused->state, HANDSHAKE_FAILED);
    assert_int_equal(refused->err.code, code);
    assert_non_null(strstr(refused->err.msg, "refused by the peer"));
    if (!strstr(refused->err.msg, text))
        fail_msg("'%s' is not in '%s'", text, refused->err.msg);
}

/* --- agreement ---------------------------------------------------------------------------------- */

static void test_two_that_fit_get_a_session(void **state)
{
    (void)state;
    struct pair p;
    struct session a, b;
    uint8_t wire[64], out[16];
    open_pair(&p);
    run(&p);
    assert_int_equal(p.dialer.state, HANDSHAKE_DONE);
    assert_int_equal(p.listener.state, HANDSHAKE_DONE);
    assert_int_equal(p.dialer.theirs.rank, 1);
    assert_int_equal(p.listener.theirs.rank, 0);
    assert_string_equal(handshake_cipher_name(&p.dialer), handshake_cipher_name(&p.listener));
    handshake_session(&p.dialer, &a);
    handshake_session(&p.listener, &b);
    for (int i = 0; i < 2; i++) {
        session_seal(i ? &a : &b, "0123456789abcdef", 16, wire);
        assert_int_equal(seal_get(i ? &b.rx : &a.rx, wire, 4, wire + 4, 32, out, NULL), OK);
        assert_memory_equal(out, "0123456789abcdef", 16);
    }
    assert_memory_not_equal(a.tx.key, a.rx.key, sizeof a.tx.key);
    session_wipe(&a);
    session_wipe(&b);
    close_pair(&p);
}

static void test_bytes_may_come_one_by_one(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    for (bool moved = true; moved;) {
        moved = false;
        for (int side = 0; side < 2; side++) {
            struct handshake *from = side ? &p.listener : &p.dialer, *to = side ? &p.dialer : &p.listener;
            uint8_t data[sizeof from->out];
            size_t len = from->out_len;
            memcpy(data, from->out, len);
            from->out_len = 0;
            for (size_t i = 0; i < len; i++)
                give(to, data + i, 1);
            moved = moved || len > 0;
        }
    }
    assert_int_equal(p.dialer.state, HANDSHAKE_DONE);
    assert_int_equal(p.listener.state, HANDSHAKE_DONE);
    close_pair(&p);
}

static void test_every_edge_of_the_ring_fits_also_of_two(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= N_RANKS; n++) {
        struct manifest m = ring.m;
        m.n_ranks = n;
        m.n_blocks = ring.ranks[n - 1].end;
        for (uint32_t edge = 0; edge < n; edge++) {
            struct handshake_hello a, b;
            struct key_public key;
            struct err e;
            assert_int_equal(handshake_hello_of(&m, edge, edge, &a, &key, &e), OK);
            assert_true(key_equal(&key, &ring.ranks[(edge + 1) % n].key));
            assert_int_equal(handshake_hello_of(&m, (edge + 1) % n, edge, &b, &key, &e), OK);
            assert_int_equal(handshake_check(&a, &b, &e), OK);
            assert_int_equal(handshake_check(&b, &a, &e), OK);
        }
    }
}

static void test_an_edge_that_is_not_ones_own_has_no_hello(void **state)
{
    (void)state;
    struct handshake_hello h;
    struct key_public key;
    struct manifest one = ring.m;
    struct err e;
    one.n_ranks = 1;
    assert_int_equal(handshake_hello_of(&ring.m, 0, 1, &h, &key, &e), ERR_ARG);
    assert_int_equal(handshake_hello_of(&ring.m, 0, 3, &h, &key, &e), ERR_ARG);
    assert_int_equal(handshake_hello_of(&ring.m, 3, 0, &h, &key, &e), ERR_ARG);
    assert_int_equal(handshake_hello_of(&one, 0, 0, &h, &key, &e), ERR_ARG);
}

static void test_hello_is_read_back(void **state)
{
    (void)state;
    struct handshake_hello h, back;
    uint8_t bytes[HANDSHAKE_HELLO_BYTES], again[HANDSHAKE_HELLO_BYTES];
    hello_of(1, 1, &h);
    handshake_hello_put(&h, bytes);
    handshake_hello_get(bytes, &back);
    handshake_hello_put(&back, again);
    assert_memory_equal(bytes, again, sizeof bytes);
    assert_int_equal(handshake_check(&h, &back, NULL), ERR_MISMATCH); /* equal ranks are not neighbours */
}

/* --- differences: one line, both values, at both ends ------------------------------------------- */

static void set_epoch(struct handshake_hello *h)
{
    h->epoch = 8;
}

static void set_model(struct handshake_hello *h)
{
    memset(h->model_id, 0x77, sizeof h->model_id);
}

#define SETTER(field, value)                                                                                           \
    static void set_##field(struct handshake_hello *h)                                                                 \
    {                                                                                                                  \
        h->field = value;                                                                                              \
    }
SETTER(n_ranks, 4)
SETTER(n_blocks, 6)
SETTER(n_embd, 65)
SETTER(n_vocab, 513)
SETTER(n_ctx, 256)
SETTER(n_slots, 3)
SETTER(n_batch, 33)
SETTER(wire, 9)
SETTER(edge, 1)
SETTER(rank, 2)
SETTER(peer_rank, 2)

static void set_gap(struct handshake_hello *h)
{
    h->first = 3;
    h->end = 4;
}

static void set_overlap(struct handshake_hello *h)
{
    h->first = 1;
}

static void set_backward(struct handshake_hello *h)
{
    h->end = h->first;
}

static void set_outside(struct handshake_hello *h)
{
    h->end = 6;
}

/* Of the listener, rank 1, against the dialer, rank 0, who notices first. */
static const struct {
    void (*set)(struct handshake_hello *h);
    const char *text;
} differences[] = {
    {set_epoch, "epoch mismatch: I am at 7, peer is at 8"},
    {set_model, "model mismatch: I serve 3434343434343434, peer serves 7777777777777777"},
    {set_n_ranks, "number of ranks mismatch: I have 3, peer has 4"},
    {set_n_blocks, "number of blocks mismatch: I have 5, peer has 6"},
    {set_n_embd, "boundary width mismatch: I have 64, peer has 65"},
    {set_n_vocab, "vocabulary size mismatch: I have 512, peer has 513"},
    {set_n_ctx, "context length mismatch: I have 128, peer has 256"},
    {set_n_slots, "number of slots mismatch: I have 2, peer has 3"},
    {set_n_batch, "batch size mismatch: I have 32, peer has 33"},
    {set_wire, "wire type mismatch: I use f32 (0), peer uses an unknown type (9)"},
    {set_edge, "edge mismatch: I have 0, peer has 1"},
    {set_rank, "rank mismatch: I expect rank 1, peer is rank 2"},
    {set_peer_rank, "rank mismatch: I am rank 0, peer expects rank 2"},
    {set_gap, "window gap: I end at 2, successor begins at 3"},
    {set_overlap, "window overlap: I end at 2, successor begins at 1"},
    {set_backward, "peer's window [2,2) is not a part of [0,5)"},
    {set_outside, "peer's window [2,6) is not a part of [0,5)"},
};

static void test_each_difference_is_named_at_both_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
        struct pair p;
        open_pair(&p);
        differences[i].set(&p.listener_hello);
        run(&p);
        expect_refusal(&p.dialer, &p.listener, ERR_MISMATCH, differences[i].text);
        assert_null(strchr(p.dialer.err.msg, '\n'));
        close_pair(&p);
    }
}

static void test_windows_are_named_from_the_successors_view_too(void **state)
{
    (void)state;
    struct handshake_hello mine, theirs;
    struct err e;
    hello_of(1, 0, &mine);
    hello_of(0, 0, &theirs);
    theirs.end = 1;
    assert_int_equal(handshake_check(&mine, &theirs, &e), ERR_MISMATCH);
    assert_string_equal(e.msg, "window gap: predecessor ends at 1, I begin at 2");
    theirs.end = 3;
    assert_int_equal(handshake_check(&mine, &theirs, &e), ERR_MISMATCH);
    assert_string_equal(e.msg, "window overlap: predecessor ends at 3, I begin at 2");
}

static void test_the_closing_edge_begins_and_ends_the_model(void **state)
{
    (void)state;
    struct handshake_hello last, zero;
    struct err e;
    hello_of(2, 2, &last);
    hello_of(0, 2, &zero);
    last.end = 4;
    assert_int_equal(handshake_check(&last, &zero, &e), ERR_MISMATCH);
    assert_string_equal(e.msg, "window gap: I am the last rank and end at 4 of 5 blocks");
    assert_int_equal(handshake_check(&zero, &last, &e), ERR_MISMATCH);
    assert_string_equal(e.msg, "window gap: the last rank ends at 4 of 5 blocks");
    hello_of(2, 2, &last);
    zero.first = 1;
    assert_int_equal(handshake_check(&last, &zero, &e), ERR_MISMATCH);
    assert_string_equal(e.msg, "window gap: rank 0 begins at block 1, not at 0");
    assert_int_equal(handshake_check(&zero, &last, &e), ERR_MISMATCH);
    assert_string_equal(e.msg, "window gap: I am rank 0 and begin at block 1, not at 0");
}

static void test_another_ring_is_refused_at_once(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    memset(p.listener_hello.ring_id, 0x55, sizeof p.listener_hello.ring_id);
    run(&p);
    expect_refusal(&p.listener, &p.dialer, ERR_MISMATCH,
                   "ring mismatch: I serve 5555555555555555, peer serves 1212121212121212");
    assert_non_null(strstr(p.dialer.err.msg, "has not proved who it is"));
    close_pair(&p);
}

static void test_an_edge_not_served_is_refused(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    p.no_such_edge = true;
    run(&p);
    expect_refusal(&p.listener, &p.dialer, ERR_NOT_FOUND, "edge 0 is not one of mine");
    close_pair(&p);
}

static void test_another_version_is_named_at_both_ends(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    p.dialer.out[6] = 2; /* as a later node would */
    run(&p);
    expect_refusal(&p.listener, &p.dialer, ERR_UNSUPPORTED, "version mismatch: I speak 1, peer speaks 2");
    close_pair(&p);
    open_pair(&p);
    carry(&p.dialer, &p.listener);
    p.listener.out[6] = 0; /* an old listener */
    run(&p);
    assert_int_equal(p.dialer.err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(p.dialer.err.msg, "version mismatch: I speak 1, peer speaks 0"));
    close_pair(&p);
}

/* --- who is it? ------------------------------------------------------------------------------------ */

static void expect_unknown_key(const struct handshake *refuser, const struct key_secret *is,
                               const struct key_public *wanted, uint32_t rank)
{
    char text[300], a[KEY_TEXT_SIZE], b[KEY_TEXT_SIZE];
    struct key_public have;
    key_public_of(is, &have);
    snprintf(text, sizeof text, "unknown peer key %s, expected %s for rank %u", key_text(&have, a), key_text(wanted, b),
             rank);
    assert_string_equal(refuser->err.msg, text);
}

static void test_a_dialer_with_another_key_is_refused(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    p.dialer.secret = &ring.stranger;
    run(&p);
    expect_refusal(&p.listener, &p.dialer, ERR_AUTH, "unknown peer key");
    expect_unknown_key(&p.listener, &ring.stranger, &ring.ranks[0].key, 0);
    close_pair(&p);
}

static void test_a_listener_with_another_key_is_refused(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    p.listener.secret = &ring.stranger;
    run(&p);
    expect_refusal(&p.dialer, &p.listener, ERR_AUTH, "unknown peer key");
    expect_unknown_key(&p.dialer, &ring.stranger, &ring.ranks[1].key, 1);
    close_pair(&p);
}

static void test_a_key_one_only_claims_is_refused(void **state)
{
    (void)state;
    struct pair p;
    struct key_secret liar = ring.stranger;
    open_pair(&p);
    /* libsodium keeps the public key behind the seed: another's there, and the claim is made. */
    memcpy(liar.b + 32, ring.ranks[0].key.b, KEY_PUBLIC_BYTES);
    p.dialer.secret = &liar;
    run(&p);
    expect_refusal(&p.listener, &p.dialer, ERR_AUTH, "cannot sign with it");
    close_pair(&p);
}

static void test_own_messages_sent_back_are_refused(void **state)
{
    (void)state;
    struct pair p;
    uint8_t m1[sizeof p.dialer.out];
    open_pair(&p);
    size_t len = p.dialer.out_len;
    memcpy(m1, p.dialer.out, len);
    p.dialer.out_len = 0;
    give(&p.dialer, m1, len);
    assert_int_equal(p.dialer.state, HANDSHAKE_FAILED);
    assert_int_equal(p.dialer.err.code, ERR_PROTOCOL);
    assert_non_null(strstr(p.dialer.err.msg, "my own sent back"));
    close_pair(&p);
}

static void test_an_own_ephemeral_key_sent_back_is_refused(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    carry(&p.dialer, &p.listener);
    memcpy(p.listener.out + HANDSHAKE_HEAD_BYTES, p.dialer.eph.point, SEAL_POINT_BYTES);
    run(&p);
    assert_int_equal(p.dialer.state, HANDSHAKE_FAILED);
    assert_int_equal(p.dialer.err.code, ERR_PROTOCOL);
    close_pair(&p);
}

static void test_a_replayed_dialer_is_refused(void **state)
{
    (void)state;
    struct pair p, q;
    struct buf heard = {0};
    open_pair(&p);
    for (bool moved = true; moved;) {
        buf_put(&heard, p.dialer.out, p.dialer.out_len);
        moved = carry(&p.dialer, &p.listener);
        moved = carry(&p.listener, &p.dialer) || moved;
    }
    assert_int_equal(p.listener.state, HANDSHAKE_DONE);
    open_pair(&q);
    const size_t m1 = HANDSHAKE_HEAD_BYTES + 104;
    give(&q.listener, heard.data, m1);
    assert_int_equal(q.listener.state, HANDSHAKE_WAIT);
    give(&q.listener, heard.data + m1, heard.len - m1);
    assert_int_equal(q.listener.state, HANDSHAKE_FAILED);
    assert_int_equal(q.listener.err.code, ERR_AUTH);
    buf_free(&heard);
    close_pair(&p);
    close_pair(&q);
}

/* --- what is no handshake at all ------------------------------------------------------------------ */

static void test_garbage_is_refused_without_an_answer(void **state)
{
    (void)state;
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    struct pair p;
    open_pair(&p);
    give(&p.listener, (const uint8_t *)http, sizeof http - 1);
    assert_int_equal(p.listener.state, HANDSHAKE_FAILED);
    assert_int_equal(p.listener.err.code, ERR_PROTOCOL);
    assert_non_null(strstr(p.listener.err.msg, "'GET / '"));
    assert_int_equal(p.listener.out_len, 0);
    close_pair(&p);
}

static void test_a_length_of_4_gib_is_refused(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    memset(p.dialer.out + 12, 0xff, 4);
    run(&p);
    expect_refusal(&p.listener, &p.dialer, ERR_LIMIT, "4294967295 bytes, not 104");
    close_pair(&p);
}

static void test_messages_out_of_order_are_refused(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 256; kind++) {
        struct pair p;
        if (kind == 1)
            continue;
        open_pair(&p);
        p.dialer.out[8] = (uint8_t)kind;
        run(&p);
        assert_int_equal(p.listener.state, HANDSHAKE_FAILED);
        assert_int_equal(p.listener.err.code, ERR_PROTOCOL);
        close_pair(&p);
    }
}

static void test_reserved_bytes_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t at = 101; at < 104; at++) { /* of M1 */
        struct pair p;
        open_pair(&p);
        p.dialer.out[HANDSHAKE_HEAD_BYTES + at] = 7;
        run(&p);
        expect_refusal(&p.listener, &p.dialer, ERR_PROTOCOL, "first message with a reserved byte of 7, not 0");
        close_pair(&p);
    }
    for (size_t at = 65; at < 72; at++) { /* of M2 */
        struct pair p;
        open_pair(&p);
        carry(&p.dialer, &p.listener);
        p.listener.out[HANDSHAKE_HEAD_BYTES + at] = 7;
        run(&p);
        expect_refusal(&p.dialer, &p.listener, ERR_PROTOCOL, "second message with a reserved byte of 7, not 0");
        close_pair(&p);
    }
}

/* Somebody between the two changes one bit anywhere: it never ends well for both, and never in a weaker cipher. */
static void test_every_changed_byte_of_every_message_is_noticed(void **state)
{
    (void)state;
    size_t n_changed = 0;
    for (int message = 0; message < 4; message++) {
        for (size_t at = 0;; at++) {
            struct pair p;
            bool past_end = false;
            open_pair(&p);
            for (int i = 0;; i++) {
                struct handshake *from = i % 2 ? &p.listener : &p.dialer, *to = i % 2 ? &p.dialer : &p.listener;
                if (from->out_len == 0)
                    break;
                if (i == message) {
                    past_end = at >= from->out_len;
                    if (!past_end)
                        from->out[at] ^= 2;
                }
                carry(from, to);
            }
            if (!past_end)
                assert_false(p.dialer.state == HANDSHAKE_DONE);
            close_pair(&p);
            if (past_end)
                break;
            n_changed++;
        }
    }
    assert_true(n_changed > 600);
}

static void test_a_refusals_text_cannot_forge_lines(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    p.no_such_edge = true;
    carry(&p.dialer, &p.listener);
    memcpy(p.listener.out + HANDSHAKE_HEAD_BYTES + 8, "\n\x1b[31m", 6);
    le_put_u16(p.listener.out + HANDSHAKE_HEAD_BYTES + 4, 0xffff);  /* and a length beyond the message */
    le_put_u32(p.listener.out + HANDSHAKE_HEAD_BYTES, 0x7fffffffu); /* and no code of ours */
    run(&p);
    assert_int_equal(p.dialer.state, HANDSHAKE_FAILED);
    assert_int_equal(p.dialer.err.code, ERR_PROTOCOL);
    for (const char *c = p.dialer.err.msg; *c; c++)
        assert_true(*c >= 0x20 && *c < 0x7f);
    close_pair(&p);
}

static void test_more_than_wanted_is_not_taken(void **state)
{
    (void)state;
    struct pair p;
    uint8_t much[2000] = {0};
    open_pair(&p);
    run(&p);
    assert_int_equal(handshake_want(&p.dialer), 0);
    handshake_input(&p.dialer, much, sizeof much);
    assert_int_equal(p.dialer.state, HANDSHAKE_DONE);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_that_fit_get_a_session),
        cmocka_unit_test(test_bytes_may_come_one_by_one),
        cmocka_unit_test(test_every_edge_of_the_ring_fits_also_of_two),
        cmocka_unit_test(test_an_edge_that_is_not_ones_own_has_no_hello),
        cmocka_unit_test(test_hello_is_read_back),
        cmocka_unit_test(test_each_difference_is_named_at_both_ends),
        cmocka_unit_test(test_windows_are_named_from_the_successors_view_too),
        cmocka_unit_test(test_the_closing_edge_begins_and_ends_the_model),
        cmocka_unit_test(test_another_ring_is_refused_at_once),
        cmocka_unit_test(test_an_edge_not_served_is_refused),
        cmocka_unit_test(test_another_version_is_named_at_both_ends),
        cmocka_unit_test(test_a_dialer_with_another_key_is_refused),
        cmocka_unit_test(test_a_listener_with_another_key_is_refused),
        cmocka_unit_test(test_a_key_one_only_claims_is_refused),
        cmocka_unit_test(test_own_messages_sent_back_are_refused),
        cmocka_unit_test(test_an_own_ephemeral_key_sent_back_is_refused),
        cmocka_unit_test(test_a_replayed_dialer_is_refused),
        cmocka_unit_test(test_garbage_is_refused_without_an_answer),
        cmocka_unit_test(test_a_length_of_4_gib_is_refused),
        cmocka_unit_test(test_messages_out_of_order_are_refused),
        cmocka_unit_test(test_reserved_bytes_are_refused_by_name),
        cmocka_unit_test(test_every_changed_byte_of_every_message_is_noticed),
        cmocka_unit_test(test_a_refusals_text_cannot_forge_lines),
        cmocka_unit_test(test_more_than_wanted_is_not_taken),
    };
    if (key_library_init(NULL) != OK)
        return 1;
    return cmocka_run_group_tests(tests, make_ring, NULL);
}
