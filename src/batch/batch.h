/* SPDX-License-Identifier: MIT
 *
 * What one step carries, as the engine and the ring both see it. Types only: no code, no ownership of its own.
 *
 * A step is one pass around the ring with the tokens of one or more sequences. Every rank receives the same entries
 * and tokens; a rank other than the first also receives the boundary rows its predecessor computed.
 */
#ifndef KVASIR_BATCH_BATCH_H
#define KVASIR_BATCH_BATCH_H

#include <stdint.h>

/* Limits that every decoder checks before it believes a count. */
#define BATCH_MAX_ENTRIES 256u
#define BATCH_MAX_TOK     4096u
#define BATCH_MAX_SLOTS   1024u
#define BATCH_MAX_EMBD    65536u
#define BATCH_MAX_TOP     20u  /* likeliest tokens reported with a sample */
#define BATCH_MAX_BIAS    128u /* tokens of a request whose logits are shifted */

enum batch_flag {
    BATCH_SAMPLE = 1u << 0,     /* the last rank samples from the entry's last token */
    BATCH_RESET = 1u << 1,      /* the slot begins anew: pos is 0, all its state is dropped first */
    BATCH_TRUNCATE = 1u << 2,   /* drop positions >= pos first (only back, never beyond what is there) */
    BATCH_CHECKPOINT = 1u << 3, /* keep the state at pos, to be able to truncate to it later */
};
#define BATCH_FLAGS_KNOWN (BATCH_SAMPLE | BATCH_RESET | BATCH_TRUNCATE | BATCH_CHECKPOINT)

/* The part of one sequence in a step: n_tok consecutive tokens at positions pos .. pos + n_tok - 1. */
struct batch_entry {
    uint64_t request_id;
    uint64_t prefix_hash; /* hash_prefix over the sequence's tokens before pos; a rank whose own differs is stale */
    uint32_t slot;        /* sequence slot, the same on every rank */
    uint32_t pos;
    uint32_t n_tok;
    uint32_t flags; /* enum batch_flag */
};

/* A token and the natural log of its probability under the raw logits. */
struct batch_top {
    int32_t token;
    float logprob;
};

/* What the last rank says about an entry that wanted a sample. */
struct batch_result {
    uint64_t request_id;
    uint32_t slot;
    uint32_t pos;  /* the position the sampled token will take */
    int32_t token; /* >= 0 */
    float logprob; /* natural log of its probability under the raw logits */
    uint32_t n_top;
    struct batch_top top[BATCH_MAX_TOP]; /* the likeliest tokens, best first, as many as the request asked for */
};

/* Sampling parameters of a request; the last rank gets them once, before the request's first step. */
struct batch_sampling {
    uint64_t seed;
    float temperature;       /* <= 0: greedy */
    float top_p;             /* 1: off */
    float min_p;             /* 0: off */
    float repeat_penalty;    /* 1: off */
    float frequency_penalty; /* 0: off */
    float presence_penalty;  /* 0: off */
    int32_t top_k;           /* <= 0: off */
    uint32_t penalty_last_n; /* tokens the penalties look back on, prompt included; 0: off */
    uint32_t n_top;          /* likeliest tokens to report with each sample, at most BATCH_MAX_TOP; 0: none */
    uint32_t n_bias;
    struct batch_bias {
        int32_t token;
        float bias; /* added to the token's logit before all else; -inf: never */
    } bias[BATCH_MAX_BIAS];
};

/* The arrays belong to whoever made the batch and have the capacities given. Entries' tokens lie one after the other
 * in tokens and rows. */
struct batch {
    uint32_t n_entries, cap_entries;
    uint32_t n_tok, cap_tok;
    uint32_t n_results; /* capacity cap_entries */
    uint32_t n_embd;    /* width of a row */
    struct batch_entry *entries;
    int32_t *tokens;              /* [n_tok] */
    float *rows;                  /* [n_embd, n_tok] f32: boundary in, boundary out (in place) */
    struct batch_result *results; /* filled by the last rank */
};

#endif
