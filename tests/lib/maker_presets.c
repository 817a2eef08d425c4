/* SPDX-License-Identifier: MIT
 *
 * The models that have a name: small ones of each family, shapes of real models.
 */
#include "lib/maker_impl.h"

#include <stdio.h>
#include <string.h>

struct maker_params maker_small(void)
{
    return (struct maker_params){.n_block = 6,
                                 .n_embd = 64,
                                 .n_head = 4,
                                 .n_head_kv = 2,
                                 .head_dim = 16,
                                 .n_ff = 128,
                                 .n_vocab = 512,
                                 .n_ctx = 512,
                                 .type = GGML_TYPE_F32,
                                 .seed = 1};
}

struct maker_params maker_family_small(enum maker_family family)
{
    struct maker_params p = maker_small();
    bool hybrid = family == MAKER_QWEN35 || family == MAKER_QWEN35MOE;

    p.family = family;
    if (family == MAKER_QWEN3MOE || family == MAKER_QWEN35MOE || family == MAKER_GPT_OSS || family == MAKER_GLM4MOE) {
        p.n_expert = 8;
        p.n_expert_used = 2;
        p.n_ff_exp = 64;
    }
    if (hybrid) {
        p.n_block = 8;
        p.ssm_conv = 4;
        p.ssm_state = 16;
        p.ssm_group = 2;
        p.ssm_rank = 4;
        p.interval = 4;
    }
    if (hybrid || family == MAKER_GEMMA3 || family == MAKER_GPT_OSS || family == MAKER_GLM4MOE)
        p.head_dim = 32;
    if (hybrid || family == MAKER_GLM4MOE)
        p.n_rot = 16;
    if (family == MAKER_QWEN35MOE || family == MAKER_GLM4MOE) {
        p.n_ff_shared = 64;
        p.n_nextn = 1;
    }
    if (family == MAKER_GLM4MOE)
        p.n_dense_lead = 1;
    if (family == MAKER_GEMMA3)
        p.n_block = 7;
    if (family == MAKER_GEMMA3 || family == MAKER_GPT_OSS)
        p.window = 16;
    if (family == MAKER_PHI3)
        p.window = 2047;
    if (family == MAKER_GPT_OSS)
        p.n_ctx_orig = 64;
    p.tied = family == MAKER_QWEN2 || family == MAKER_QWEN3 || family == MAKER_QWEN35 || family == MAKER_GEMMA3;
    return p;
}

/* A llama of some size, for measuring. */
static struct maker_params wide(uint32_t n_block)
{
    return (struct maker_params){.n_block = n_block,
                                 .n_embd = 2048,
                                 .n_head = 32,
                                 .n_head_kv = 8,
                                 .head_dim = 64,
                                 .n_ff = 5632,
                                 .n_vocab = 8192,
                                 .n_ctx = 2048,
                                 .type = GGML_TYPE_Q8_0,
                                 .seed = 1};
}

static struct maker_params half(void)
{
    return wide(12);
}

static struct maker_params one_gb(void)
{
    return wide(20);
}

static struct maker_params qwen3_06b(void)
{
    return (struct maker_params){.family = MAKER_QWEN3,
                                 .n_block = 28,
                                 .n_embd = 1024,
                                 .n_head = 16,
                                 .n_head_kv = 8,
                                 .head_dim = 128,
                                 .n_ff = 3072,
                                 .n_vocab = 151936,
                                 .n_ctx = 40960,
                                 .type = GGML_TYPE_Q4_0,
                                 .tied = true,
                                 .seed = 1};
}

/* Narrower in context and of family llama, with the big SPM vocabulary. */
static struct maker_params llama_06b(void)
{
    struct maker_params p = qwen3_06b();
    p.family = MAKER_LLAMA;
    p.n_ctx = 2048;
    return p;
}

static struct maker_params llama32_1b(void)
{
    return (struct maker_params){.family = MAKER_LLAMA,
                                 .n_block = 16,
                                 .n_embd = 2048,
                                 .n_head = 32,
                                 .n_head_kv = 8,
                                 .head_dim = 64,
                                 .n_ff = 8192,
                                 .n_vocab = 128256,
                                 .n_ctx = 131072,
                                 .rope_base = 500000.0f,
                                 .type = GGML_TYPE_Q4_0,
                                 .tied = true,
                                 .with_rope_freqs = true,
                                 .bpe = true,
                                 .seed = 1};
}

static struct maker_params qwen35moe_small(void)
{
    return (struct maker_params){.family = MAKER_QWEN35MOE,
                                 .n_block = 8,
                                 .n_embd = 1024,
                                 .n_head = 8,
                                 .n_head_kv = 2,
                                 .head_dim = 256,
                                 .n_rot = 64,
                                 .n_vocab = 32000,
                                 .n_ctx = 32768,
                                 .n_expert = 32,
                                 .n_expert_used = 4,
                                 .n_ff_exp = 512,
                                 .n_ff_shared = 512,
                                 .ssm_conv = 4,
                                 .ssm_state = 128,
                                 .ssm_group = 8,
                                 .ssm_rank = 16,
                                 .interval = 4,
                                 .type = GGML_TYPE_Q4_K,
                                 .mix = MAKER_MIX_Q4_K_M,
                                 .seed = 1};
}

static struct maker_params qwen35_122b(void)
{
    return (struct maker_params){.family = MAKER_QWEN35MOE,
                                 .n_block = 48,
                                 .n_nextn = 1,
                                 .n_embd = 3072,
                                 .n_head = 32,
                                 .n_head_kv = 2,
                                 .head_dim = 256,
                                 .n_rot = 64,
                                 .n_vocab = 248320,
                                 .n_ctx = 262144,
                                 .n_expert = 256,
                                 .n_expert_used = 8,
                                 .n_ff_exp = 1024,
                                 .n_ff_shared = 1024,
                                 .ssm_conv = 4,
                                 .ssm_state = 128,
                                 .ssm_group = 16,
                                 .ssm_rank = 64,
                                 .interval = 4,
                                 .type = GGML_TYPE_Q4_K,
                                 .mix = MAKER_MIX_Q4_K_M,
                                 .seed = 1};
}

static struct maker_params qwen35_122b_window(void)
{
    struct maker_params p = qwen35_122b();
    p.only_first = 2;
    p.only_end = 4;
    return p;
}

static struct maker_params qwen35_122b_header(void)
{
    struct maker_params p = qwen35_122b();
    p.holes = true;
    return p;
}

static const struct {
    const char *name, *about;
    struct maker_params (*make)(void);
} presets[] = {
    {"small", "llama, 6 blocks, 1.1 MB, F32: for tests", maker_small},
    {"half", "llama, 12 blocks, 0.6 GB, Q8_0: for measuring decoding", half},
    {"1gb", "llama, 20 blocks, 1.0 GB, Q8_0: its windows are worth comparing with the whole", one_gb},
    {"0.6b-shape", "llama, 28 narrow blocks, 152k SPM tokens, tied, Q4_0", llama_06b},
    {"qwen3-0.6b", "Qwen3-0.6B: 28 blocks, 152k tokens, tied, Q4_0", qwen3_06b},
    {"llama-3.2-1b", "Llama-3.2-1B: 16 blocks, 128k tokens, tied, rope_freqs, Q4_0", llama32_1b},
    {"qwen35moe-small", "a hybrid with 32 experts that runs in seconds: 8 blocks, Q4_K_M", qwen35moe_small},
    {"qwen3.5-122b-window", "blocks 2 and 3 of 48 of Qwen3.5-122B-A10B at its true size, Q4_K_M", qwen35_122b_window},
    {"qwen3.5-122b-header", "all of Qwen3.5-122B-A10B, Q4_K_M, as a header and a hole", qwen35_122b_header},
};

const char *maker_preset_at(size_t i, const char **about)
{
    if (i >= sizeof presets / sizeof *presets)
        return NULL;
    *about = presets[i].about;
    return presets[i].name;
}

enum err_code maker_preset(const char *name, struct maker_params *out, struct err *e)
{
    char known[256] = "";
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(name, presets[i].name) == 0) {
            *out = presets[i].make();
            return OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), " %s", presets[i].name);
    }
    return err_set(e, ERR_ARG, "maker: no preset '%s': one of%s", name, known);
}
