/* SPDX-License-Identifier: MIT
 *
 * The handshake's messages, keys and transcript. Each message has one exact length, so nothing is allocated and no
 * length from the wire is ever used to find memory. The names M1 .. M4 are those of docs/protocol.md.
 */
#include "ring/handshake.h"

#include "base/buf.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum kind {
    KIND_DIAL = 1,          /* M1, plain */
    KIND_LISTEN = 2,        /* M2, plain part and sealed proof */
    KIND_PROOF = 3,         /* M3, sealed proof */
    KIND_ACCEPT = 4,        /* M4, sealed and empty */
    KIND_REFUSE = 5,        /* before keys are agreed: plain, hence a mere hint */
    KIND_REFUSE_SEALED = 6, /* afterwards */
    KIND_COUNT
};

/* What the machine waits for. */
enum stage { STAGE_DIAL, STAGE_LISTEN, STAGE_PROOF, STAGE_ACCEPT };

#define RANDOM_BYTES 32u
#define DIAL_BYTES   (DIGEST_BYTES + SEAL_POINT_BYTES + RANDOM_BYTES + 8u)
#define PLAIN2_BYTES (SEAL_POINT_BYTES + RANDOM_BYTES + 8u) /* the plain part of M2 */
#define PROOF_BYTES  (KEY_PUBLIC_BYTES + KEY_SIGNATURE_BYTES + HANDSHAKE_HELLO_BYTES)
#define SEALED_PROOF (PROOF_BYTES + SEAL_TAG_BYTES)
#define REFUSE_TEXT  248u
#define REFUSE_BYTES (8u + REFUSE_TEXT)

static const uint32_t body_bytes[KIND_COUNT] = {
    [KIND_DIAL] = DIAL_BYTES,     [KIND_LISTEN] = PLAIN2_BYTES + SEALED_PROOF,
    [KIND_PROOF] = SEALED_PROOF,  [KIND_ACCEPT] = SEAL_TAG_BYTES,
    [KIND_REFUSE] = REFUSE_BYTES, [KIND_REFUSE_SEALED] = REFUSE_BYTES + SEAL_TAG_BYTES,
};
_Static_assert(PLAIN2_BYTES + SEALED_PROOF <= HANDSHAKE_BODY_MAX, "M2 fits");
_Static_assert(REFUSE_BYTES + SEAL_TAG_BYTES <= HANDSHAKE_BODY_MAX, "a refusal fits");

static const char magic[6] = {'K', 'V', 'A', 'S', 'I', 'R'};
static const char *const proof_label[2] = {"kvasir 1 listener proof", "kvasir 1 dialer proof"};
#define PROOF_LABEL_MAX 24u

/* --- the hello ------------------------------------------------------------------------------- */

enum err_code handshake_hello_of(const struct manifest *m, uint32_t rank, uint32_t edge, struct handshake_hello *out,
                                 struct key_public *peer, struct err *e)
{
    if (m->n_ranks < 2)
        return err_set(e, ERR_ARG, "a ring of %u rank has no edges", m->n_ranks);
    if (edge >= m->n_ranks || rank >= m->n_ranks)
        return err_set(e, ERR_ARG, "edge %u of rank %u: this ring has edges and ranks 0 to %u", edge, rank,
                       m->n_ranks - 1);
    const uint32_t next = (edge + 1) % m->n_ranks;
    if (rank != edge && rank != next)
        return err_set(e, ERR_ARG, "edge %u joins the ranks %u and %u, not rank %u", edge, edge, next, rank);
    struct handshake_hello h = {
        .epoch = m->epoch,
        .n_ranks = m->n_ranks,
        .edge = edge,
        .rank = rank,
        .peer_rank = rank == edge ? next : edge,
        .first = m->ranks[rank].first,
        .end = m->ranks[rank].end,
        .n_blocks = m->n_blocks,
        .n_embd = m->n_embd,
        .n_vocab = m->n_vocab,
        .n_ctx = m->n_ctx,
        .n_slots = m->n_slots,
        .n_batch = m->n_batch,
        .wire = (uint32_t)m->wire,
    };
    memcpy(h.ring_id, m->ring_id, sizeof h.ring_id);
    memcpy(h.model_id, m->model_id, sizeof h.model_id);
    *out = h;
    *peer = m->ranks[h.peer_rank].key;
    return OK;
}

/* The thirteen u32 in their order on the wire. */
#define HELLO_U32(X)                                                                                                   \
    X(n_ranks)                                                                                                         \
    X(edge) X(rank) X(peer_rank) X(first) X(end) X(n_blocks) X(n_embd) X(n_vocab) X(n_ctx) X(n_slots) X(n_batch) X(wire)

void handshake_hello_put(const struct handshake_hello *h, uint8_t out[HANDSHAKE_HELLO_BYTES])
{
    uint8_t *p = out;
    memcpy(p, h->ring_id, DIGEST_BYTES);
    memcpy(p + DIGEST_BYTES, h->model_id, DIGEST_BYTES);
    p += (size_t)2 * DIGEST_BYTES;
    le_put_u64(p, h->epoch);
    p += 8;
#define X(field)                                                                                                       \
    le_put_u32(p, h->field);                                                                                           \
    p += 4;
    HELLO_U32(X)
#undef X
}

void handshake_hello_get(const uint8_t in[HANDSHAKE_HELLO_BYTES], struct handshake_hello *out)
{
    const uint8_t *p = in;
    struct handshake_hello h;
    memset(&h, 0, sizeof h);
    memcpy(h.ring_id, p, DIGEST_BYTES);
    memcpy(h.model_id, p + DIGEST_BYTES, DIGEST_BYTES);
    p += (size_t)2 * DIGEST_BYTES;
    h.epoch = le_get_u64(p);
    p += 8;
#define X(field)                                                                                                       \
    h.field = le_get_u32(p);                                                                                           \
    p += 4;
    HELLO_U32(X)
#undef X
    *out = h;
}

static enum err_code check_id(const char *what, const uint8_t mine[DIGEST_BYTES], const uint8_t theirs[DIGEST_BYTES],
                              struct err *e)
{
    char a[DIGEST_HEX_SIZE], b[DIGEST_HEX_SIZE];
    if (memcmp(mine, theirs, DIGEST_BYTES) == 0)
        return OK;
    return err_set(e, ERR_MISMATCH, "%s mismatch: I serve %.16s, peer serves %.16s", what, digest_hex(mine, a),
                   digest_hex(theirs, b));
}

static enum err_code check_u32(const char *what, uint32_t mine, uint32_t theirs, struct err *e)
{
    if (mine == theirs)
        return OK;
    return err_set(e, ERR_MISMATCH, "%s mismatch: I have %" PRIu32 ", peer has %" PRIu32, what, mine, theirs);
}

static const char *wire_text(uint32_t wire)
{
    return wire < MANIFEST_WIRE_COUNT ? manifest_wire_name((enum manifest_wire)wire) : "an unknown type";
}

static enum err_code check_shape(const struct handshake_hello *mine, const struct handshake_hello *theirs,
                                 struct err *e)
{
    const struct {
        const char *what;
        uint32_t mine, theirs;
    } rows[] = {
        {"number of ranks", mine->n_ranks, theirs->n_ranks}, {"number of blocks", mine->n_blocks, theirs->n_blocks},
        {"boundary width", mine->n_embd, theirs->n_embd},    {"vocabulary size", mine->n_vocab, theirs->n_vocab},
        {"context length", mine->n_ctx, theirs->n_ctx},      {"number of slots", mine->n_slots, theirs->n_slots},
        {"batch size", mine->n_batch, theirs->n_batch},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum err_code rc = check_u32(rows[i].what, rows[i].mine, rows[i].theirs, e);
        if (rc != OK)
            return rc;
    }
    if (mine->wire != theirs->wire)
        return err_set(e, ERR_MISMATCH, "wire type mismatch: I use %s (%" PRIu32 "), peer uses %s (%" PRIu32 ")",
                       wire_text(mine->wire), mine->wire, wire_text(theirs->wire), theirs->wire);
    return OK;
}

/* The last rank sends its results to rank 0: there the windows do not touch, they begin and end the model. */
static enum err_code check_closing(const struct handshake_hello *last, const struct handshake_hello *zero,
                                   bool i_am_last, struct err *e)
{
    if (last->end != last->n_blocks)
        return err_set(e, ERR_MISMATCH, "window gap: %s at %" PRIu32 " of %" PRIu32 " blocks",
                       i_am_last ? "I am the last rank and end" : "the last rank ends", last->end, last->n_blocks);
    if (zero->first != 0)
        return err_set(e, ERR_MISMATCH, "window gap: %s at block %" PRIu32 ", not at 0",
                       i_am_last ? "rank 0 begins" : "I am rank 0 and begin", zero->first);
    return OK;
}

static enum err_code check_windows(const struct handshake_hello *mine, const struct handshake_hello *theirs,
                                   struct err *e)
{
    const bool before = mine->rank == mine->edge; /* I am the predecessor */
    if (theirs->first >= theirs->end || theirs->end > theirs->n_blocks)
        return err_set(e, ERR_MISMATCH, "peer's window [%" PRIu32 ",%" PRIu32 ") is not a part of [0,%" PRIu32 ")",
                       theirs->first, theirs->end, theirs->n_blocks);
    if (mine->edge == mine->n_ranks - 1)
        return before ? check_closing(mine, theirs, true, e) : check_closing(theirs, mine, false, e);
    const uint32_t end = before ? mine->end : theirs->end;
    const uint32_t begin = before ? theirs->first : mine->first;
    if (end == begin)
        return OK;
    const char *what = end < begin ? "window gap" : "window overlap";
    if (before)
        return err_set(e, ERR_MISMATCH, "%s: I end at %" PRIu32 ", successor begins at %" PRIu32, what, end, begin);
    return err_set(e, ERR_MISMATCH, "%s: predecessor ends at %" PRIu32 ", I begin at %" PRIu32, what, end, begin);
}

enum err_code handshake_check(const struct handshake_hello *mine, const struct handshake_hello *theirs, struct err *e)
{
    enum err_code rc = check_id("ring", mine->ring_id, theirs->ring_id, e);
    if (rc == OK && mine->epoch != theirs->epoch)
        rc = err_set(e, ERR_MISMATCH, "epoch mismatch: I am at %" PRIu64 ", peer is at %" PRIu64, mine->epoch,
                     theirs->epoch);
    if (rc == OK)
        rc = check_id("model", mine->model_id, theirs->model_id, e);
    if (rc == OK)
        rc = check_shape(mine, theirs, e);
    if (rc == OK)
        rc = check_u32("edge", mine->edge, theirs->edge, e);
    if (rc == OK && theirs->rank != mine->peer_rank)
        rc = err_set(e, ERR_MISMATCH, "rank mismatch: I expect rank %" PRIu32 ", peer is rank %" PRIu32,
                     mine->peer_rank, theirs->rank);
    if (rc == OK && theirs->peer_rank != mine->rank)
        rc = err_set(e, ERR_MISMATCH, "rank mismatch: I am rank %" PRIu32 ", peer expects rank %" PRIu32, mine->rank,
                     theirs->peer_rank);
    return rc == OK ? check_windows(mine, theirs, e) : rc;
}

/* --- transcript and keys ----------------------------------------------------------------------- */

static void absorb(struct handshake *h, const void *data, size_t len)
{
    struct digest_state d;
    digest_begin(&d);
    digest_put(&d, h->transcript, sizeof h->transcript);
    digest_put(&d, data, len);
    digest_end(&d, h->transcript);
}

/* Both random ephemeral keys and both first messages are in: everything from here on is sealed. */
static enum err_code agree(struct handshake *h, const uint8_t point[SEAL_POINT_BYTES], struct err *e)
{
    uint8_t shared[SEAL_KEY_BYTES], dialer[SEAL_KEY_BYTES], listener[SEAL_KEY_BYTES];
    if (seal_equal(point, h->eph.point, SEAL_POINT_BYTES))
        return err_set(e, ERR_PROTOCOL, "the peer sent my own ephemeral key back");
    enum err_code rc = seal_agree(&h->eph, point, shared, e);
    if (rc != OK)
        return rc;
    seal_derive(shared, "kvasir handshake", h->transcript, sizeof h->transcript, h->master);
    seal_derive(h->master, "dialer handshake", NULL, 0, dialer);
    seal_derive(h->master, "listener handshake", NULL, 0, listener);
    seal_key_init(&h->tx, SEAL_CHACHA20, h->dialer ? dialer : listener);
    seal_key_init(&h->rx, SEAL_CHACHA20, h->dialer ? listener : dialer);
    h->have_keys = true;
    seal_wipe(shared, sizeof shared);
    seal_wipe(dialer, sizeof dialer);
    seal_wipe(listener, sizeof listener);
    seal_wipe(h->eph.secret, sizeof h->eph.secret);
    return OK;
}

void handshake_session(const struct handshake *h, struct session *out)
{
    uint8_t master[SEAL_KEY_BYTES], down[SEAL_KEY_BYTES], up[SEAL_KEY_BYTES];
    seal_derive(h->master, "kvasir session", h->transcript, sizeof h->transcript, master);
    seal_derive(master, "dialer to listener", NULL, 0, down);
    seal_derive(master, "listener to dialer", NULL, 0, up);
    session_init(out, seal_choose(h->my_ciphers, h->their_ciphers), h->dialer ? down : up, h->dialer ? up : down);
    seal_wipe(master, sizeof master);
    seal_wipe(down, sizeof down);
    seal_wipe(up, sizeof up);
}

const char *handshake_cipher_name(const struct handshake *h)
{
    return seal_cipher_name(seal_choose(h->my_ciphers, h->their_ciphers));
}

void handshake_wipe(struct handshake *h)
{
    seal_key_wipe(&h->tx);
    seal_key_wipe(&h->rx);
    seal_wipe(h, sizeof *h);
}

/* --- writing messages ----------------------------------------------------------------------------- */

static uint8_t *begin_message(struct handshake *h, enum kind kind)
{
    uint8_t *p = h->out;
    memcpy(p, magic, sizeof magic);
    le_put_u16(p + 6, HANDSHAKE_VERSION);
    p[8] = (uint8_t)kind;
    memset(p + 9, 0, 3);
    le_put_u32(p + 12, body_bytes[kind]);
    h->out_len = HANDSHAKE_HEAD_BYTES + body_bytes[kind];
    return p + HANDSHAKE_HEAD_BYTES;
}

/* What the seal of a handshake message covers besides its content: all that went before, and its own header. */
#define AD_BYTES (DIGEST_BYTES + HANDSHAKE_HEAD_BYTES)

static void message_ad(const struct handshake *h, const uint8_t *head, uint8_t ad[AD_BYTES])
{
    memcpy(ad, h->transcript, DIGEST_BYTES);
    memcpy(ad + DIGEST_BYTES, head, HANDSHAKE_HEAD_BYTES);
}

/* What a proof's signature covers. */
#define SIGNED_MAX (PROOF_LABEL_MAX + DIGEST_BYTES + KEY_PUBLIC_BYTES + HANDSHAKE_HELLO_BYTES)

static size_t signed_part(const struct handshake *h, bool by_dialer, const uint8_t key[KEY_PUBLIC_BYTES],
                          const uint8_t hello[HANDSHAKE_HELLO_BYTES], uint8_t out[SIGNED_MAX])
{
    const char *label = proof_label[by_dialer];
    uint8_t *p = out;
    size_t n = strlen(label) + 1;
    memcpy(p, label, n);
    p += n;
    memcpy(p, h->transcript, DIGEST_BYTES);
    p += DIGEST_BYTES;
    memcpy(p, key, KEY_PUBLIC_BYTES);
    p += KEY_PUBLIC_BYTES;
    memcpy(p, hello, HANDSHAKE_HELLO_BYTES);
    p += HANDSHAKE_HELLO_BYTES;
    return (size_t)(p - out);
}

/* Seals my key, signature and hello into SEALED_PROOF bytes at `at`, which lies in the message begun in out. */
static void put_proof(struct handshake *h, uint8_t *at)
{
    uint8_t ad[AD_BYTES], text[SIGNED_MAX], proof[PROOF_BYTES];
    uint8_t *hello = proof + KEY_PUBLIC_BYTES + KEY_SIGNATURE_BYTES;
    struct key_public me;
    key_public_of(h->secret, &me);
    memcpy(proof, me.b, KEY_PUBLIC_BYTES);
    handshake_hello_put(&h->mine, hello);
    size_t n = signed_part(h, h->dialer, me.b, hello, text);
    key_sign(h->secret, text, n, proof + KEY_PUBLIC_BYTES);
    message_ad(h, h->out, ad);
    seal_put(&h->tx, ad, sizeof ad, proof, sizeof proof, at);
}

/* Ends the handshake here; tells the peer why when `tell`, sealed where keys are agreed. */
static void fail(struct handshake *h, const struct err *why, bool tell)
{
    h->state = HANDSHAKE_FAILED;
    h->err = *why;
    h->out_len = 0;
    if (!tell)
        return;
    uint8_t body[REFUSE_BYTES] = {0}, ad[AD_BYTES];
    size_t n = strlen(why->msg);
    if (n > REFUSE_TEXT)
        n = REFUSE_TEXT;
    le_put_u32(body, (uint32_t)why->code);
    le_put_u16(body + 4, (uint16_t)n);
    memcpy(body + 8, why->msg, n);
    uint8_t *at = begin_message(h, h->have_keys ? KIND_REFUSE_SEALED : KIND_REFUSE);
    if (h->have_keys) {
        message_ad(h, h->out, ad);
        seal_put(&h->tx, ad, sizeof ad, body, sizeof body, at);
    } else {
        memcpy(at, body, sizeof body);
    }
}

/* --- reading messages ------------------------------------------------------------------------- */

static void read_refusal(struct handshake *h, const uint8_t body[REFUSE_BYTES], bool sealed)
{
    struct err e;
    char text[REFUSE_TEXT + 1];
    int32_t code = (int32_t)le_get_u32(body);
    size_t n = le_get_u16(body + 4);
    if (n > REFUSE_TEXT)
        n = REFUSE_TEXT;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = body[8 + i];
        text[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    text[n] = 0;
    err_set(&e, err_known(code) && code != OK ? (enum err_code)code : ERR_PROTOCOL, "refused by the peer%s: %s",
            sealed ? "" : " (which has not proved who it is)", n ? text : "no reason given");
    fail(h, &e, false);
}

/* Opens and checks the peer's proof; by_dialer: whose it must be. */
static enum err_code read_proof(struct handshake *h, const uint8_t *sealed, struct err *e)
{
    uint8_t ad[AD_BYTES], proof[PROOF_BYTES], text[SIGNED_MAX];
    char theirs[KEY_TEXT_SIZE], want[KEY_TEXT_SIZE];
    struct key_public key;
    const uint8_t *hello = proof + KEY_PUBLIC_BYTES + KEY_SIGNATURE_BYTES;
    message_ad(h, h->in, ad);
    enum err_code rc = seal_get(&h->rx, ad, sizeof ad, sealed, SEALED_PROOF, proof, e);
    if (rc != OK)
        return err_set(e, rc, "the peer's proof does not open: its keys or the messages before it were changed");
    memcpy(key.b, proof, KEY_PUBLIC_BYTES);
    if (!key_equal(&key, &h->expected))
        return err_set(e, ERR_AUTH, "unknown peer key %s, expected %s for rank %" PRIu32, key_text(&key, theirs),
                       key_text(&h->expected, want), h->mine.peer_rank);
    size_t n = signed_part(h, !h->dialer, key.b, hello, text);
    if (key_verify(&key, text, n, proof + KEY_PUBLIC_BYTES, NULL) != OK)
        return err_set(e, ERR_AUTH, "the peer claims key %s but cannot sign with it", key_text(&key, theirs));
    handshake_hello_get(hello, &h->theirs);
    return handshake_check(&h->mine, &h->theirs, e);
}

/* A set of ciphers and the reserved bytes behind it. */
static enum err_code check_ciphers(const char *which, const uint8_t *p, size_t n_reserved, struct err *e)
{
    if (!(p[0] & SEAL_CHACHA20))
        return err_set(e, ERR_PROTOCOL, "%s message with ciphers %u: %u must be among them", which, p[0],
                       (unsigned)SEAL_CHACHA20);
    for (size_t i = 1; i <= n_reserved; i++) {
        if (p[i] != 0)
            return err_set(e, ERR_PROTOCOL, "%s message with a reserved byte of %u, not 0", which, p[i]);
    }
    return OK;
}

/* M1 at the listener; answers with M2. */
static enum err_code take_dial(struct handshake *h, const uint8_t *body, struct err *e)
{
    const uint8_t *ring = body, *point = ring + DIGEST_BYTES, *rest = point + SEAL_POINT_BYTES + RANDOM_BYTES;
    const uint32_t edge = le_get_u32(rest);
    h->their_ciphers = rest[4];
    enum err_code rc = check_ciphers("first", rest + 4, 3, e);
    if (rc == OK)
        rc = h->edge_fn(h->edge_ctx, edge, &h->mine, &h->expected, e);
    if (rc == OK)
        rc = check_id("ring", h->mine.ring_id, ring, e);
    if (rc != OK)
        return rc;
    absorb(h, h->in, h->in_len);
    uint8_t *out = begin_message(h, KIND_LISTEN);
    memcpy(out, h->eph.point, SEAL_POINT_BYTES);
    seal_random(out + SEAL_POINT_BYTES, RANDOM_BYTES);
    memset(out + SEAL_POINT_BYTES + RANDOM_BYTES, 0, 8);
    out[SEAL_POINT_BYTES + RANDOM_BYTES] = (uint8_t)h->my_ciphers;
    absorb(h, h->out, HANDSHAKE_HEAD_BYTES + PLAIN2_BYTES);
    rc = agree(h, point, e);
    if (rc != OK)
        return rc;
    put_proof(h, out + PLAIN2_BYTES);
    absorb(h, out + PLAIN2_BYTES, SEALED_PROOF);
    h->stage = STAGE_PROOF;
    return OK;
}

/* M2 at the dialer; answers with M3. */
static enum err_code take_listen(struct handshake *h, const uint8_t *body, struct err *e)
{
    const uint8_t *rest = body + SEAL_POINT_BYTES + RANDOM_BYTES;
    h->their_ciphers = rest[0];
    enum err_code rc = check_ciphers("second", rest, 7, e);
    if (rc != OK)
        return rc;
    absorb(h, h->in, HANDSHAKE_HEAD_BYTES + PLAIN2_BYTES);
    rc = agree(h, body, e);
    if (rc == OK)
        rc = read_proof(h, body + PLAIN2_BYTES, e);
    /* Also before a refusal: its seal covers the message that it refuses. */
    absorb(h, body + PLAIN2_BYTES, SEALED_PROOF);
    if (rc != OK)
        return rc;
    put_proof(h, begin_message(h, KIND_PROOF));
    absorb(h, h->out, h->out_len);
    h->stage = STAGE_ACCEPT;
    return OK;
}

/* M3 at the listener; answers with M4. */
static enum err_code take_proof(struct handshake *h, const uint8_t *body, struct err *e)
{
    uint8_t ad[AD_BYTES];
    enum err_code rc = read_proof(h, body, e);
    absorb(h, h->in, h->in_len);
    if (rc != OK)
        return rc;
    uint8_t *out = begin_message(h, KIND_ACCEPT);
    message_ad(h, h->out, ad);
    seal_put(&h->tx, ad, sizeof ad, NULL, 0, out);
    h->state = HANDSHAKE_DONE;
    return OK;
}

static enum err_code open_body(struct handshake *h, const uint8_t *body, size_t len, uint8_t *out, struct err *e)
{
    uint8_t ad[AD_BYTES];
    message_ad(h, h->in, ad);
    if (seal_get(&h->rx, ad, sizeof ad, body, len, out, e) != OK)
        return err_set(e, ERR_AUTH, "the peer's answer does not open: it was changed on the way");
    return OK;
}

static enum err_code take_message(struct handshake *h, struct err *e)
{
    const uint8_t *body = h->in + HANDSHAKE_HEAD_BYTES;
    uint8_t plain[REFUSE_BYTES];
    enum err_code rc;
    switch ((enum kind)h->in[8]) {
    case KIND_DIAL:
        return take_dial(h, body, e);
    case KIND_LISTEN:
        return take_listen(h, body, e);
    case KIND_PROOF:
        return take_proof(h, body, e);
    case KIND_ACCEPT:
        rc = open_body(h, body, SEAL_TAG_BYTES, plain, e);
        if (rc == OK)
            h->state = HANDSHAKE_DONE;
        return rc;
    case KIND_REFUSE:
        read_refusal(h, body, false);
        return OK;
    case KIND_REFUSE_SEALED:
        rc = open_body(h, body, REFUSE_BYTES + SEAL_TAG_BYTES, plain, e);
        if (rc == OK)
            read_refusal(h, plain, true);
        return rc;
    case KIND_COUNT:
        break;
    }
    return err_set(e, ERR_INTERNAL, "handshake message of kind %u", h->in[8]);
}

/* Which kinds may come at a stage: the one that goes on and the two refusals. A plain refusal counts only as long as
 * this end could not expect better. */
static bool kind_fits(const struct handshake *h, uint8_t kind)
{
    switch ((enum stage)h->stage) {
    case STAGE_DIAL:
        return kind == KIND_DIAL;
    case STAGE_LISTEN:
        return kind == KIND_LISTEN || kind == KIND_REFUSE;
    case STAGE_PROOF:
        return kind == KIND_PROOF || kind == KIND_REFUSE || kind == KIND_REFUSE_SEALED;
    case STAGE_ACCEPT:
        return kind == KIND_ACCEPT || kind == KIND_REFUSE_SEALED;
    }
    return false;
}

/* *answer: does it look like a node of another version, which deserves to be told? */
static enum err_code check_head(const struct handshake *h, bool *answer, struct err *e)
{
    static const char *const waits_for[] = {"1 (dial)", "2 (listen)", "3 (proof)", "4 (accept)"};
    const uint8_t *p = h->in;
    char shown[7];
    *answer = false;
    if (memcmp(p, magic, sizeof magic) != 0) {
        for (size_t i = 0; i < 6; i++)
            shown[i] = isprint(p[i]) && p[i] < 0x7f ? (char)p[i] : '.';
        shown[6] = 0;
        return err_set(e, ERR_PROTOCOL, "the peer does not speak Kvasir: it began with '%s' (%02x %02x %02x %02x)",
                       shown, p[0], p[1], p[2], p[3]);
    }
    const uint16_t version = le_get_u16(p + 6);
    *answer = true;
    if (version != HANDSHAKE_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "protocol version mismatch: I speak %u, peer speaks %u", HANDSHAKE_VERSION,
                       version);
    if (!kind_fits(h, p[8]))
        return err_set(e, ERR_PROTOCOL, "handshake message of kind %u where %s is expected%s", p[8],
                       waits_for[h->stage], h->dialer && p[8] == KIND_DIAL ? ": was my own sent back?" : "");
    if (p[9] || p[10] || p[11])
        return err_set(e, ERR_PROTOCOL, "handshake message with reserved bytes %02x %02x %02x, not 0", p[9], p[10],
                       p[11]);
    if (le_get_u32(p + 12) != body_bytes[p[8]])
        return err_set(e, ERR_LIMIT, "handshake message of kind %u with a length of %" PRIu32 " bytes, not %" PRIu32,
                       p[8], le_get_u32(p + 12), body_bytes[p[8]]);
    return OK;
}

/* --- the machine -------------------------------------------------------------------------------- */

static void begin(struct handshake *h, const struct key_secret *secret, bool dialer)
{
    memset(h, 0, sizeof *h);
    h->secret = secret;
    h->dialer = dialer;
    h->stage = dialer ? STAGE_LISTEN : STAGE_DIAL;
    h->in_want = HANDSHAKE_HEAD_BYTES;
    h->my_ciphers = seal_ciphers();
    h->err.offset = -1;
    seal_ephemeral_new(&h->eph);
    digest_of("kvasir handshake 1", 18, h->transcript);
}

void handshake_dial(struct handshake *h, const struct key_secret *secret, const struct handshake_hello *mine,
                    const struct key_public *expected)
{
    begin(h, secret, true);
    h->mine = *mine;
    h->expected = *expected;
    uint8_t *p = begin_message(h, KIND_DIAL);
    memcpy(p, mine->ring_id, DIGEST_BYTES);
    p += DIGEST_BYTES;
    memcpy(p, h->eph.point, SEAL_POINT_BYTES);
    p += SEAL_POINT_BYTES;
    seal_random(p, RANDOM_BYTES);
    p += RANDOM_BYTES;
    le_put_u32(p, mine->edge);
    p[4] = (uint8_t)h->my_ciphers;
    memset(p + 5, 0, 3);
    absorb(h, h->out, h->out_len);
}

void handshake_listen(struct handshake *h, const struct key_secret *secret, handshake_edge_fn edge_fn, void *edge_ctx)
{
    begin(h, secret, false);
    h->edge_fn = edge_fn;
    h->edge_ctx = edge_ctx;
}

size_t handshake_want(const struct handshake *h)
{
    return h->state == HANDSHAKE_WAIT ? h->in_want - h->in_len : 0;
}

void handshake_input(struct handshake *h, const void *data, size_t len)
{
    struct err e;
    bool answer = true;
    if (len > handshake_want(h))
        len = handshake_want(h); /* what a careful owner never does */
    memcpy(h->in + h->in_len, data, len);
    h->in_len += len;
    if (h->state != HANDSHAKE_WAIT || h->in_len < h->in_want)
        return;
    if (h->in_want == HANDSHAKE_HEAD_BYTES) {
        if (check_head(h, &answer, &e) != OK)
            fail(h, &e, answer);
        else
            h->in_want += body_bytes[h->in[8]];
        return;
    }
    enum err_code rc = take_message(h, &e);
    /* A broken M4 is not answered: the listener is already in the session. */
    if (rc != OK)
        fail(h, &e, h->stage != STAGE_ACCEPT);
    h->in_len = 0;
    h->in_want = HANDSHAKE_HEAD_BYTES;
}
