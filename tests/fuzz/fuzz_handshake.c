/* SPDX-License-Identifier: MIT
 *
 * What a stranger can send to a node. The first byte of the input chooses: 0 .. 3 raw bytes to a machine at each of its
 * four stages; 4 two hellos to compare; 5 changes that somebody between two honest ends makes to their messages, after
 * which the dialer must not believe; 6 the content of a session's records; 7 a session's raw stream.
 */
#include "lib/fuzz.h"
#include "ring/handshake.h"

#include <string.h>

static struct manifest_rank ranks[2];
static struct manifest manifest = {.epoch = 1,
                                   .n_blocks = 4,
                                   .n_embd = 64,
                                   .n_vocab = 512,
                                   .n_ctx = 128,
                                   .n_slots = 2,
                                   .n_batch = 32,
                                   .n_ranks = 2,
                                   .ranks = ranks};
static struct key_secret keys[2];

static void prepare(void)
{
    if (manifest.ring_id[0])
        return;
    MUST(key_library_init(NULL) == OK);
    memset(manifest.ring_id, 0x12, sizeof manifest.ring_id);
    for (uint32_t i = 0; i < 2; i++) {
        key_generate(&keys[i]);
        key_public_of(&keys[i], &ranks[i].key);
        ranks[i].first = 2 * i;
        ranks[i].end = 2 * i + 2;
    }
}

static enum err_code serve_edge(void *ctx, uint32_t edge, struct handshake_hello *mine, struct key_public *expected,
                                struct err *e)
{
    (void)ctx;
    return handshake_hello_of(&manifest, 1, edge, mine, expected, e);
}

static void open_ends(struct handshake *dialer, struct handshake *listener)
{
    struct handshake_hello mine;
    struct key_public peer;
    MUST(handshake_hello_of(&manifest, 0, 0, &mine, &peer, NULL) == OK);
    handshake_dial(dialer, &keys[0], &mine, &peer);
    handshake_listen(listener, &keys[1], serve_edge, NULL);
}

/* Gives bytes as the machine wants them, and checks what it says of itself. */
static void give(struct handshake *h, const uint8_t *data, size_t len)
{
    while (len > 0 && handshake_want(h) > 0) {
        size_t n = handshake_want(h) < len ? handshake_want(h) : len;
        handshake_input(h, data, n);
        data += n;
        len -= n;
        MUST(h->out_len <= sizeof h->out);
        MUST((h->state == HANDSHAKE_WAIT) == (handshake_want(h) > 0));
        MUST(h->state != HANDSHAKE_FAILED || (h->err.code != OK && strlen(h->err.msg) > 0));
    }
}

static void carry(struct handshake *from, struct handshake *to)
{
    uint8_t message[sizeof from->out];
    const size_t len = from->out_len;
    memcpy(message, from->out, len);
    from->out_len = 0;
    give(to, message, len);
}

static void raw(unsigned stage, const uint8_t *data, size_t size)
{
    struct handshake dialer, listener;
    open_ends(&dialer, &listener);
    for (unsigned i = 1; i <= stage; i++) {
        if (i % 2)
            carry(&dialer, &listener);
        else
            carry(&listener, &dialer);
    }
    struct handshake *h = stage % 2 ? &dialer : &listener;
    give(h, data, size);
    /* No bytes of an input are a proof by a key that it does not have; only the plain first message can be right. */
    MUST(h->state != HANDSHAKE_DONE);
    handshake_wipe(&dialer);
    handshake_wipe(&listener);
}

static void hellos(const uint8_t *data, size_t size)
{
    struct handshake_hello a, b;
    uint8_t again[HANDSHAKE_HELLO_BYTES];
    struct err e;
    if (size < 2 * HANDSHAKE_HELLO_BYTES)
        return;
    handshake_hello_get(data, &a);
    handshake_hello_get(data + HANDSHAKE_HELLO_BYTES, &b);
    handshake_hello_put(&a, again);
    MUST(memcmp(again, data, sizeof again) == 0);
    e.code = OK;
    enum err_code rc = handshake_check(&a, &b, &e);
    MUST(rc == e.code);
    if (rc == OK)
        MUST(a.epoch == b.epoch && a.n_ctx == b.n_ctx && a.rank == b.peer_rank && b.end <= b.n_blocks);
}

/* Each change: which message, where, and what to flip there. */
static void between(const uint8_t *data, size_t size)
{
    struct handshake dialer, listener;
    bool changed = false;
    open_ends(&dialer, &listener);
    for (unsigned i = 0; i < 4; i++) {
        struct handshake *from = i % 2 ? &listener : &dialer, *to = i % 2 ? &dialer : &listener;
        if (from->out_len == 0)
            break;
        for (size_t at = 0; at + 4 <= size; at += 4) {
            const size_t pos = le_get_u16(data + at + 1);
            if (data[at] % 4 != i || pos >= from->out_len || data[at + 3] == 0)
                continue;
            from->out[pos] ^= data[at + 3];
            changed = true;
        }
        carry(from, to);
    }
    /* Two changes may cancel each other; then nothing was changed. The input says so by having one only. */
    if (size < 8)
        MUST((dialer.state == HANDSHAKE_DONE) == !changed);
    handshake_wipe(&dialer);
    handshake_wipe(&listener);
}

static void read_frames(struct session_reader *r)
{
    struct frame_header h;
    const uint8_t *payload;
    bool found;
    struct err e;
    static volatile uint8_t sink;
    while (session_reader_next(r, &found, &h, &payload, &e) == OK && found) {
        for (size_t i = 0; i < h.length; i += 4096)
            sink = payload[i];
        if (h.length > 0)
            sink = payload[h.length - 1];
    }
    (void)sink;
}

static void feed(struct session_reader *r, const uint8_t *data, size_t len)
{
    while (len > 0) {
        size_t room;
        uint8_t *at = session_reader_room(r, &room);
        MUST(room > 0);
        room = room < len ? room : len;
        memcpy(at, data, room);
        session_reader_got(r, room);
        data += room;
        len -= room;
        read_frames(r);
        if (r->err.code != OK)
            return;
    }
}

static void session(const uint8_t *data, size_t size, bool sealed)
{
    const uint8_t a[SEAL_KEY_BYTES] = {1}, b[SEAL_KEY_BYTES] = {2};
    static uint8_t wire[256 + SESSION_RECORD_EXTRA];
    struct session out, in;
    struct session_reader r;
    session_init(&out, SEAL_CHACHA20, a, b);
    session_init(&in, SEAL_CHACHA20, b, a);
    MUST(session_reader_init(&r, &in, NULL) == OK);
    if (!sealed)
        feed(&r, data, size);
    for (size_t at = 0; sealed && at + 1 < size && r.err.code == OK;) { /* each record: its length - 1, its content */
        size_t n = (size_t)data[at] + 1;
        n = n < size - at - 1 ? n : size - at - 1;
        session_seal(&out, data + at + 1, n, wire);
        feed(&r, wire, n + SESSION_RECORD_EXTRA);
        at += 1 + n;
    }
    session_reader_fini(&r);
    session_wipe(&out);
    session_wipe(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prepare();
    if (size < 1)
        return 0;
    switch (data[0]) {
    case 0:
    case 1:
    case 2:
    case 3:
        raw(data[0], data + 1, size - 1);
        break;
    case 4:
        hellos(data + 1, size - 1);
        break;
    case 5:
        between(data + 1, size - 1);
        break;
    case 6:
    case 7:
        session(data + 1, size - 1, data[0] == 6);
        break;
    default:
        break;
    }
    return 0;
}
