/* SPDX-License-Identifier: MIT
 *
 * Makes GGUF v3 models of the llama family with random weights, of any shape and size, deterministic by seed (the bytes
 * do not depend on the number of threads). Tensors are generated and written a few rows at a time: memory stays at a
 * few MiB however large the model is. The vocabulary is an SPM one whose pieces are printable pseudo-words, the weights
 * are scaled so that activations stay near 1 through any number of blocks, and control and byte tokens are hardly ever
 * the best, so a text runs on until its limit.
 *
 * The broken_* fields make a file that is wrong in exactly one place, for tests of the loader.
 */
#ifndef KVASIR_TESTS_MAKER_H
#define KVASIR_TESTS_MAKER_H

#include "base/err.h"

#include <stddef.h>

/* How a metadata key is made wrong. */
enum maker_key_fault {
    MAKER_KEY_OK,
    MAKER_KEY_DROP,   /* left out */
    MAKER_KEY_U32,    /* a u32 of broken_u32 instead of what it was */
    MAKER_KEY_I32,    /* the same bits as i32 */
    MAKER_KEY_F32,    /* an f32 of broken_f32 */
    MAKER_KEY_STRING, /* the string "wrong" */
    MAKER_KEY_ARRAY   /* an i32 array of the one element broken_u32 */
};

struct maker_params {
    uint32_t n_block, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, n_ctx;
    int type;  /* enum ggml_type of the matrices, embedding and output included; norms are F32 */
    bool tied; /* no output.weight */
    bool with_rope_freqs;
    uint64_t seed;
    const char *name;   /* general.name; NULL: "made" */
    uint32_t n_threads; /* 0: 2 */

    const char *broken_key; /* full name, for example "llama.block_count"; may be a key that is not there otherwise */
    enum maker_key_fault broken_key_how;
    uint32_t broken_u32;
    float broken_f32;
    const char *broken_drop;    /* a tensor to leave out, for example "blk.2.ffn_up.weight" */
    const char *broken_reshape; /* a tensor that gets the shape broken_ne instead */
    int64_t broken_ne[2];       /* broken_ne[1] 0: one-dimensional */
    const char *broken_retype;  /* a tensor that gets the type broken_type instead */
    int broken_type;
    uint64_t broken_cut; /* bytes to cut off the end of the file */
};

/* 6 blocks, n_embd 64, 4 heads (2 kv) x 16, n_ff 128, 512 tokens, context 512, F32: 1.1 MB, made in milliseconds. */
struct maker_params maker_small(void);

/* "small" (as above), "half" (0.6 GB, Q8_0, 12 blocks: for measuring decoding), "1gb" (1.0 GB, Q8_0, 20 blocks: its
 * windows are worth comparing with the whole), "0.6b-shape" (28 narrow blocks, a vocabulary of 152 k, tied, Q4_0).
 * ERR_ARG names the choices. */
enum err_code maker_preset(const char *name, struct maker_params *out, struct err *e) KV_MUST_USE;

/* "f32", "q4_0", "q4_K", ... (any case) to enum ggml_type. ERR_ARG names the choices. */
enum err_code maker_type(const char *name, int *out, struct err *e) KV_MUST_USE;

/* Writes the model: to a temporary name beside path, then renamed. ERR_ARG for a shape that cannot be (a row that is
 * not a whole number of the type's blocks, heads that do not divide, a tensor name that does not exist), ERR_IO,
 * ERR_NOMEM. */
enum err_code maker_write(const char *path, const struct maker_params *p, struct err *e) KV_MUST_USE;

/* Piece i of the vocabulary as a NUL-terminated string; out has MAKER_PIECE_BYTES. */
#define MAKER_PIECE_BYTES 24
void maker_piece(uint32_t i, char out[MAKER_PIECE_BYTES]);

#endif
