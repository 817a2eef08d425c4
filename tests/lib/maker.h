/* SPDX-License-Identifier: MIT
 *
 * Makes GGUF v3 models with random weights: any family the engine knows, any shape and size, any quantization, whole or
 * only a window of blocks, deterministic by seed (the bytes do not depend on the number of threads). Tensors are
 * generated and written a few rows at a time: memory stays at a few MiB however large the model is. Large tensors are
 * put together from a pool of quantized blocks, at about the speed of the disk. Tensor names, shapes, types and
 * metadata are what converters write for the family. Vocabularies consist of printable pseudo-words; the weights are
 * scaled so that activations stay near 1 through any number of blocks, and control and byte tokens are hardly ever the
 * best, so a text runs on until its limit.
 *
 * The broken_* fields make a file that is wrong in exactly one place, for tests of the loader.
 */
#ifndef KVASIR_TESTS_MAKER_H
#define KVASIR_TESTS_MAKER_H

#include "base/err.h"

#include <stddef.h>

enum maker_family {
    MAKER_LLAMA, /* Mixtral with n_expert */
    MAKER_QWEN2,
    MAKER_QWEN3,
    MAKER_QWEN3MOE,
    MAKER_QWEN35,    /* hybrid: gated delta net and full attention */
    MAKER_QWEN35MOE, /* the same with experts */
    MAKER_GEMMA3,
    MAKER_PHI3,
    MAKER_GPT_OSS,
    MAKER_GLM4MOE,
    MAKER_FAMILY_COUNT
};

/* Which matrices get another type than the rest. */
enum maker_mix {
    MAKER_MIX_NONE,
    MAKER_MIX_Q6_HEAD,  /* the matrix of the logits in Q6_K, as llama-quantize has it in a Q4_0 file */
    MAKER_MIX_Q4_K_M,   /* what llama-quantize calls Q4_K_M, if type is Q4_K */
    MAKER_MIX_MXFP4_MOE /* experts in MXFP4 */
};

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
    enum maker_family family;
    uint32_t n_block; /* of the trunk */
    uint32_t n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, n_ctx;
    uint32_t n_rot;      /* leading elements of a head that RoPE turns; 0: head_dim */
    uint32_t n_ctx_orig; /* gpt-oss, phi3: context before RoPE scaling; 0: n_ctx */
    uint32_t window;     /* gemma3, gpt-oss, phi3: sliding window */
    uint32_t n_expert, n_expert_used;
    uint32_t n_ff_exp;                                 /* width of one expert; in family llama it is n_ff */
    uint32_t n_ff_shared;                              /* of the shared expert, qwen35moe and glm4moe */
    uint32_t n_dense_lead;                             /* glm4moe: so many blocks have no experts */
    uint32_t n_nextn;                                  /* qwen35*, glm4moe: NextN blocks after the trunk */
    uint32_t ssm_conv, ssm_state, ssm_group, ssm_rank; /* qwen35*: kernel, size of a head, key heads, value heads */
    uint32_t interval;                                 /* qwen35*: every so many blocks one of full attention */
    float rope_base;                                   /* 0: what the family has */
    int type; /* enum ggml_type of the matrices, embedding and output included; norms, routers, biases are F32. Rows
               * that are no multiple of 256 get the type llama-quantize falls back to: q5_0 for q4_K and so on. */
    enum maker_mix mix;
    bool tied;                     /* no output.weight */
    bool with_rope_freqs;          /* rope_freqs (llama), rope_factors_long and _short (phi3) */
    bool bpe;                      /* family llama: the vocabulary of Llama 3 instead of an SPM one */
    uint32_t only_first, only_end; /* only the tensors of these blocks, as in a middle stage's file; only_end 0: all */
    bool holes;                    /* no weights: the header, then a hole of the right length */
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

/* Much the same of another family, with all that is special about it: 8 blocks where a pattern needs them, 8 experts,
 * a shared one, a NextN block, a window. */
struct maker_params maker_family_small(enum maker_family family);

/* general.architecture of the family. */
const char *maker_family_name(enum maker_family family);
/* ERR_ARG names the choices. */
enum err_code maker_family(const char *name, enum maker_family *out, struct err *e) KV_MUST_USE;

/* By name: "small" and others, listed by maker_preset_at. ERR_ARG names the choices. */
enum err_code maker_preset(const char *name, struct maker_params *out, struct err *e) KV_MUST_USE;
/* Preset i's name, and in *about what it is; NULL when there are no more. */
const char *maker_preset_at(size_t i, const char **about);

/* "f32", "q4_0", "q4_K", ... (any case) to enum ggml_type. ERR_ARG names the choices. */
enum err_code maker_type(const char *name, int *out, struct err *e) KV_MUST_USE;
/* The same, and "q4_k_m" for type and mix together. */
enum err_code maker_type_and_mix(const char *name, int *type, enum maker_mix *mix, struct err *e) KV_MUST_USE;

/* Writes the model: to a temporary name beside path, then renamed. ERR_ARG for a shape that cannot be (a row that is
 * not a whole number of the type's blocks, heads that do not divide, a tensor name that does not exist), ERR_IO,
 * ERR_NOMEM. */
enum err_code maker_write(const char *path, const struct maker_params *p, struct err *e) KV_MUST_USE;

/* Piece i of the vocabulary of maker_small as a NUL-terminated string; out has MAKER_PIECE_BYTES. */
#define MAKER_PIECE_BYTES 32
void maker_piece(uint32_t i, char out[MAKER_PIECE_BYTES]);

#endif
