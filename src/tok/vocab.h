/* SPDX-License-Identifier: MIT
 *
 * The vocabulary behind a struct tok, shared by the files of this room: texts in one arena, scores, kinds, a hash over
 * what ordinary text may become, and the tokens that are looked for in the text before anything else. Filled once from
 * the metadata, immutable afterwards.
 */
#ifndef KVASIR_TOK_VOCAB_H
#define KVASIR_TOK_VOCAB_H

#include "tok/pretok.h"
#include "tok/queue.h"
#include "tok/tok.h"

/* As tokenizer.ggml.token_type numbers them. */
enum vocab_type {
    VOCAB_UNDEFINED, /* treated as normal */
    VOCAB_NORMAL,
    VOCAB_UNKNOWN,
    VOCAB_CONTROL,
    VOCAB_USER_DEFINED,
    VOCAB_UNUSED,
    VOCAB_BYTE,
    VOCAB_TYPE_COUNT
};

struct vocab_slot {
    uint32_t tag; /* upper half of the hash */
    int32_t id;   /* -1: empty */
};

/* A token whose text is cut out of the input first. */
struct vocab_special {
    const uint8_t *text; /* in the arena */
    uint32_t len;
    int32_t id;
    bool in_plain_text; /* user-defined: also without TOK_PARSE_SPECIAL */
    bool in_content;    /* and with TOK_CONTENT: the file itself calls it user-defined, and no template is made of it */
    bool strips_right;  /* white space after it disappears */
};

struct tok {
    struct bpe *bpe; /* NULL: SentencePiece */
    uint32_t n;
    char *arena;      /* the texts one after the other */
    uint32_t *offset; /* [n + 1] of each text in the arena */
    float *score;     /* [n] */
    uint8_t *type;    /* [n] enum vocab_type */
    bool *eog;        /* [n] */
    bool *guarded;    /* [n] special, and never to come out of a message's text (TOK_CONTENT) */

    uint64_t hash_seed;      /* random, so that nobody can prepare a vocabulary that collides */
    struct vocab_slot *slot; /* [slot_mask + 1], open addressing */
    size_t slot_mask;
    uint32_t max_len; /* of the texts in the hash */

    struct vocab_special *special; /* [n_special] sorted by text */
    size_t n_special;
    uint32_t special_first[257]; /* [special_first[b], special_first[b + 1]) begin with byte b */

    int32_t byte_id[256];  /* -1 where there is no token for the byte */
    int32_t bos, eos, unk; /* -1: none */
    bool add_bos, add_eos, add_space_prefix;
};

/* Reads everything but merges. t is zeroed storage; on failure vocab_fini still has to be called. bpe: what follows
 * from the pre-tokenizer's name, NULL for SentencePiece. Errors as tok_new. */
enum err_code vocab_load(struct tok *t, const struct gguf *g, const struct pretok_traits *bpe,
                         struct err *e) KV_MUST_USE;
void vocab_fini(struct tok *t);

/* The text of token id < n, len bytes, not terminated. */
const char *vocab_text(const struct tok *t, int32_t id, uint32_t *len);

/* The token that ordinary text of these bytes may become (normal, user-defined, unused), -1 when there is none. */
int32_t vocab_find(const struct tok *t, const uint8_t *text, size_t len);

/* The byte that token id < n stands for, -1 when it is no byte token. */
int vocab_byte(const struct tok *t, int32_t id);

bool tok_ids_push(struct tok_ids *ids, int32_t id); /* false when out of memory */

/* A special token found at [pos, pos + len) of the text. */
struct vocab_cut {
    uint32_t pos, len;
    const struct vocab_special *special;
};

/* Finds special tokens, longest first, leftmost first among equally long ones, never overlapping; which ones, the flags
 * of the spans say, whose texts stand in `text` one after the other, less than 2^32 bytes. *out: cuts sorted by pos, to
 * be freed by the caller; NULL when there are none. ERR_NOMEM. */
enum err_code special_split(const struct tok *t, const uint8_t *text, const struct tok_span *span, size_t n_spans,
                            struct vocab_cut **out, size_t *n, struct err *e) KV_MUST_USE;

/* Scratch memory of one tok_encode call, kept from fragment to fragment. {0} is empty. */
struct spm_symbol;
struct spm_scratch {
    bool content; /* set by the caller: guarded tokens do not come out */
    struct buf text;
    struct spm_symbol *symbol;
    size_t cap_symbols;
    struct queue queue;
};
void spm_scratch_free(struct spm_scratch *s);

/* Appends the ids of one fragment without special tokens; space_first: as if a space stood before it. ERR_NOMEM. */
enum err_code spm_encode(const struct tok *t, struct spm_scratch *s, const uint8_t *text, size_t len, bool space_first,
                         struct tok_ids *out, struct err *e) KV_MUST_USE;

#endif
