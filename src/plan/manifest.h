/* SPDX-License-Identifier: MIT
 *
 * The manifest: the signed description of one ring at one epoch. Canonical JSON (docs/manifest.md) with a detached
 * Ed25519 signature beside it. Plain data after parsing; thread-safe as such.
 */
#ifndef KVASIR_PLAN_MANIFEST_H
#define KVASIR_PLAN_MANIFEST_H

#include "base/buf.h"
#include "crypto/digest.h"
#include "crypto/key.h"

#define MANIFEST_VERSION   1u
#define MANIFEST_MAX_RANKS 256u
#define MANIFEST_MAX_BYTES (1u << 20)
/* The largest values of the fields. Those of slots, batch and embd equal BATCH_MAX_*, which this room may not include.
 */
#define MANIFEST_MAX_BLOCKS 1024u
#define MANIFEST_MAX_EMBD   65536u
#define MANIFEST_MAX_VOCAB  (1u << 24)
#define MANIFEST_MAX_CTX    (1u << 24)
#define MANIFEST_MAX_SLOTS  1024u
#define MANIFEST_MAX_BATCH  4096u
/* n_batch rows of n_embd floats: what a frame carries, less room for entries and tokens. */
#define MANIFEST_MAX_STEP_BYTES (63u << 20)
/* Integers stay below 2^53, so that every JSON reader gets them right (RFC 7493 §2.2). */
#define MANIFEST_MAX_INT   ((1ull << 53) - 1)
#define MANIFEST_TEXT_SIZE 256 /* names, addresses, device names: at most 255 bytes */

/* How boundaries travel. */
enum manifest_wire { MANIFEST_WIRE_F32, MANIFEST_WIRE_COUNT };

/* Which end of edge i (from rank i to the next) dials. */
enum manifest_dial { MANIFEST_DIAL_PREDECESSOR, MANIFEST_DIAL_SUCCESSOR, MANIFEST_DIAL_COUNT };

struct manifest_rank {
    struct key_public key;
    uint32_t first, end;             /* window [first, end) */
    enum manifest_dial dial;         /* of the edge from this rank to the next */
    char addr[MANIFEST_TEXT_SIZE];   /* "host:port" where it listens; "" when nothing can dial it */
    char device[MANIFEST_TEXT_SIZE]; /* "cpu", "vulkan0", ... */
    uint64_t weight_bytes, kv_bytes; /* what the plan reckoned with; 0 unknown */
};

struct manifest {
    uint64_t epoch;
    uint8_t ring_id[DIGEST_BYTES];
    uint8_t model_id[DIGEST_BYTES];
    char model_name[MANIFEST_TEXT_SIZE]; /* for people */
    uint32_t n_blocks;                   /* trunk blocks of the model; the windows tile [0, n_blocks) */
    uint32_t n_embd;                     /* width of a boundary row */
    uint32_t n_vocab;
    uint32_t n_ctx;   /* positions per slot */
    uint32_t n_slots; /* sequences at once */
    uint32_t n_batch; /* most tokens in one step */
    enum manifest_wire wire;
    uint32_t n_ranks;
    struct manifest_rank *ranks; /* owned */
};

void manifest_fini(struct manifest *m);

/* Parses and checks. ERR_FORMAT for what is not this JSON, ERR_RANGE for a number out of its limits, ERR_MISMATCH for
 * windows that leave a gap or overlap ("window gap: rank 1 ends at 2, rank 2 begins at 3"), do not begin at 0 or not
 * end at n_blocks; two ranks with one key (only when n_ranks > 1); an edge whose listening end has no address (for
 * n_ranks > 1). Unknown fields are refused. */
enum err_code manifest_parse(const void *json, size_t len, struct manifest *out, struct err *e) KV_MUST_USE;
enum err_code manifest_check(const struct manifest *m, struct err *e) KV_MUST_USE;

/* Canonical JSON: keys sorted, no white space, so that equal manifests are equal bytes. ERR_NOMEM. */
enum err_code manifest_write(const struct manifest *m, struct buf *out, struct err *e) KV_MUST_USE;

/* Files: F and F.sig (JSON {"key","signature"}). Loading verifies the signature by `signer` when it is not NULL
 * (ERR_AUTH when another key signed or it does not verify), else by the key in F.sig, which is returned in *by. */
enum err_code manifest_save(const char *path, const struct manifest *m, const struct key_secret *signer,
                            struct err *e) KV_MUST_USE;
enum err_code manifest_load(const char *path, const struct key_public *signer, struct manifest *out,
                            struct key_public *by, struct err *e) KV_MUST_USE;

/* The rank with this key, -1 when it is not in the ring. */
int manifest_rank_of(const struct manifest *m, const struct key_public *key);

const char *manifest_wire_name(enum manifest_wire w);

#endif
