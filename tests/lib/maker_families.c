/* SPDX-License-Identifier: MIT
 *
 * What the families of models consist of: one table of tensors, with the families and the blocks that have them, and
 * the metadata keys. The shapes are ../shared/design/architectures.md, section A.
 */
#include "lib/maker_impl.h"

#include "base/hash.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- shapes ------------------------------------------------------------------------------------- */

enum dim {
    NO, /* no such dimension */
    E_, /* n_embd */
    E2, /* twice that */
    VO, /* n_vocab */
    Q_, /* n_head x head_dim */
    Q2, /* query and gate */
    KV, /* n_head_kv x head_dim */
    QKV,
    D_, /* head_dim */
    H_, /* n_head */
    F_, /* n_ff */
    F2, /* gate and up */
    X_, /* n_expert */
    FX, /* width of an expert */
    FS, /* width of the shared expert */
    K_, /* ssm_conv */
    S_, /* ssm_state */
    R_, /* ssm_rank */
    VA, /* value_dim: ssm_state x ssm_rank */
    CO, /* channels of the convolution: two times the keys, and the values */
    RO  /* n_rot / 2 */
};

static uint32_t n_rot(const struct maker_params *p)
{
    return p->n_rot ? p->n_rot : p->head_dim;
}

static uint32_t n_ff_exp(const struct maker_params *p)
{
    return p->family == MAKER_LLAMA ? p->n_ff : p->n_ff_exp;
}

static int64_t extent(const struct maker_params *p, enum dim d)
{
    int64_t q = (int64_t)p->n_head * p->head_dim, kv = (int64_t)p->n_head_kv * p->head_dim;
    int64_t value = (int64_t)p->ssm_state * p->ssm_rank, key = (int64_t)p->ssm_state * p->ssm_group;
    const int64_t of[] = {[NO] = 0,
                          [E_] = p->n_embd,
                          [E2] = 2 * (int64_t)p->n_embd,
                          [VO] = p->n_vocab,
                          [Q_] = q,
                          [Q2] = 2 * q,
                          [KV] = kv,
                          [QKV] = q + 2 * kv,
                          [D_] = p->head_dim,
                          [H_] = p->n_head,
                          [F_] = p->n_ff,
                          [F2] = 2 * (int64_t)p->n_ff,
                          [X_] = p->n_expert,
                          [FX] = n_ff_exp(p),
                          [FS] = p->n_ff_shared,
                          [K_] = p->ssm_conv,
                          [S_] = p->ssm_state,
                          [R_] = p->ssm_rank,
                          [VA] = value,
                          [CO] = 2 * key + value,
                          [RO] = n_rot(p) / 2};
    return of[d];
}

/* --- the table ---------------------------------------------------------------------------------- */

#define BIT(family) (1u << (family))
#define LLAMA       BIT(MAKER_LLAMA)
#define QWEN2       BIT(MAKER_QWEN2)
#define QWEN3       (BIT(MAKER_QWEN3) | BIT(MAKER_QWEN3MOE))
#define QWEN35      (BIT(MAKER_QWEN35) | BIT(MAKER_QWEN35MOE))
#define GEMMA3      BIT(MAKER_GEMMA3)
#define PHI3        BIT(MAKER_PHI3)
#define OSS         BIT(MAKER_GPT_OSS)
#define GLM         BIT(MAKER_GLM4MOE)
#define ALL         (BIT(MAKER_FAMILY_COUNT) - 1u)

/* What a block has; a row of the table is for the blocks that have all of its `when`. */
enum {
    FULL = 1,    /* softmax attention */
    LINEAR = 2,  /* gated delta net */
    DENSE = 4,   /* one feed-forward part */
    EXPERTS = 8, /* many */
    SHARED = 16, /* and one for all tokens */
    NEXTN = 32,
    ONCE = 64, /* not of a block: token_embd and so on */
    UNTIED = 128,
    ROPE = 256,
    ENDS = 512 /* on the first or the last rank */
};

enum kind {
    MATRIX,  /* quantized; deviation a / sqrt(inputs) */
    PLAIN,   /* a matrix that stays F32 */
    NORM,    /* F32, 1 and a little */
    VECTOR,  /* F32, mean a, deviation b */
    UNIFORM, /* F32, a to b */
    FREQS    /* F32, divisors of frequencies up to a */
};

struct row {
    unsigned families, when;
    const char *name;
    enum dim ne[3];
    enum kind kind;
    float a, b;
};

/* Gains: inputs are normed to 1. q and k a little larger than 1 make attention look somewhere in particular; output and
 * down are such that a block adds about as much as came in; logits get a standard deviation of 4. */
static const struct row rows[] = {
    {ALL, ONCE | ENDS, "token_embd.weight", {E_, VO}, MATRIX, 4.0f, 0}, /* untied: add() has another gain */
    {ALL, ONCE | ENDS, "output_norm.weight", {E_}, NORM, 0, 0},
    {ALL, ONCE | ENDS | UNTIED, "output.weight", {E_, VO}, MATRIX, 4.0f, 0},
    {LLAMA, ONCE | ROPE, "rope_freqs.weight", {RO}, FREQS, 8.0f, 0},
    {PHI3, ONCE | ROPE, "rope_factors_long.weight", {RO}, FREQS, 16.0f, 0},
    {PHI3, ONCE | ROPE, "rope_factors_short.weight", {RO}, FREQS, 1.2f, 0},

    {ALL, 0, "attn_norm.weight", {E_}, NORM, 0, 0},
    {ALL & ~(QWEN35 | PHI3), FULL, "attn_q.weight", {E_, Q_}, MATRIX, 1.5f, 0},
    {QWEN35, FULL, "attn_q.weight", {E_, Q2}, MATRIX, 1.5f, 0},
    {ALL & ~PHI3, FULL, "attn_k.weight", {E_, KV}, MATRIX, 1.5f, 0},
    {ALL & ~PHI3, FULL, "attn_v.weight", {E_, KV}, MATRIX, 1.0f, 0},
    {PHI3, FULL, "attn_qkv.weight", {E_, QKV}, MATRIX, 1.3f, 0},
    {QWEN2 | OSS | GLM, FULL, "attn_q.bias", {Q_}, VECTOR, 0, 0.4f},
    {QWEN2 | OSS | GLM, FULL, "attn_k.bias", {KV}, VECTOR, 0, 0.4f},
    {QWEN2 | OSS | GLM, FULL, "attn_v.bias", {KV}, VECTOR, 0, 0.2f},
    {ALL, FULL, "attn_output.weight", {Q_, E_}, MATRIX, 0.8f, 0},
    {OSS, FULL, "attn_output.bias", {E_}, VECTOR, 0, 0.05f},
    {OSS, FULL, "attn_sinks.weight", {H_}, VECTOR, 0, 1.0f},
    {QWEN3 | QWEN35 | GEMMA3, FULL, "attn_q_norm.weight", {D_}, NORM, 0, 0},
    {QWEN3 | QWEN35 | GEMMA3, FULL, "attn_k_norm.weight", {D_}, NORM, 0, 0},

    {QWEN35, LINEAR, "attn_qkv.weight", {E_, CO}, MATRIX, 1.3f, 0},
    {QWEN35, LINEAR, "attn_gate.weight", {E_, VA}, MATRIX, 1.3f, 0},
    {QWEN35, LINEAR, "ssm_conv1d.weight", {K_, CO}, VECTOR, 0, 0.6f},
    {QWEN35, LINEAR, "ssm_dt.bias", {R_}, UNIFORM, -4.0f, -1.0f},
    {QWEN35, LINEAR, "ssm_a", {R_}, UNIFORM, -4.0f, -0.5f},
    {QWEN35, LINEAR, "ssm_beta.weight", {E_, R_}, MATRIX, 1.0f, 0},
    {QWEN35, LINEAR, "ssm_alpha.weight", {E_, R_}, MATRIX, 0.7f, 0},
    {QWEN35, LINEAR, "ssm_norm.weight", {S_}, NORM, 0, 0},
    {QWEN35, LINEAR, "ssm_out.weight", {VA, E_}, MATRIX, 0.8f, 0},

    {QWEN35 | GEMMA3 | OSS | GLM, 0, "post_attention_norm.weight", {E_}, NORM, 0, 0},
    {ALL & ~(QWEN35 | OSS | GLM), 0, "ffn_norm.weight", {E_}, NORM, 0, 0},
    {ALL & ~PHI3, DENSE, "ffn_gate.weight", {E_, F_}, MATRIX, 1.0f, 0},
    {ALL & ~PHI3, DENSE, "ffn_up.weight", {E_, F_}, MATRIX, 1.0f, 0},
    {PHI3, DENSE, "ffn_up.weight", {E_, F2}, MATRIX, 1.0f, 0},
    {ALL, DENSE, "ffn_down.weight", {F_, E_}, MATRIX, 1.2f, 0},
    {GEMMA3, 0, "post_ffw_norm.weight", {E_}, NORM, 0, 0},

    {ALL, EXPERTS, "ffn_gate_inp.weight", {E_, X_}, PLAIN, 3.0f, 0},
    {ALL, EXPERTS, "ffn_gate_exps.weight", {E_, FX, X_}, MATRIX, 1.0f, 0},
    {ALL, EXPERTS, "ffn_up_exps.weight", {E_, FX, X_}, MATRIX, 1.0f, 0},
    {ALL, EXPERTS, "ffn_down_exps.weight", {FX, E_, X_}, MATRIX, 1.6f, 0},
    {OSS, EXPERTS, "ffn_gate_inp.bias", {X_}, VECTOR, 0, 0.3f},
    {OSS, EXPERTS, "ffn_gate_exps.bias", {FX, X_}, VECTOR, 0, 0.2f},
    {OSS, EXPERTS, "ffn_up_exps.bias", {FX, X_}, VECTOR, 0, 0.2f},
    {OSS, EXPERTS, "ffn_down_exps.bias", {E_, X_}, VECTOR, 0, 0.05f},
    {GLM, EXPERTS, "exp_probs_b.bias", {X_}, VECTOR, 0, 0.1f},
    {QWEN35, SHARED, "ffn_gate_inp_shexp.weight", {E_}, VECTOR, 0, 0.02f},
    {ALL, SHARED, "ffn_gate_shexp.weight", {E_, FS}, MATRIX, 1.0f, 0},
    {ALL, SHARED, "ffn_up_shexp.weight", {E_, FS}, MATRIX, 1.0f, 0},
    {ALL, SHARED, "ffn_down_shexp.weight", {FS, E_}, MATRIX, 1.2f, 0},

    {ALL, NEXTN, "nextn.eh_proj.weight", {E2, E_}, MATRIX, 1.0f, 0},
    {ALL, NEXTN, "nextn.enorm.weight", {E_}, NORM, 0, 0},
    {ALL, NEXTN, "nextn.hnorm.weight", {E_}, NORM, 0, 0},
    {ALL, NEXTN, "nextn.shared_head_norm.weight", {E_}, NORM, 0, 0},
};

static unsigned block_has(const struct maker_params *p, uint32_t il)
{
    bool hybrid = BIT(p->family) & QWEN35, nextn = il >= p->n_block;
    unsigned has = hybrid && !nextn && (il + 1) % p->interval != 0 ? LINEAR : FULL;

    has |= p->n_expert && il >= p->n_dense_lead ? EXPERTS : DENSE;
    if ((has & EXPERTS) && p->n_ff_shared)
        has |= SHARED;
    return nextn ? has | NEXTN : has;
}

/* --- types -------------------------------------------------------------------------------------- */

static bool starts(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* llama-quantize gives more bits to the first and the last eighth of the blocks and to every third between. */
static bool more_bits(uint32_t il, uint32_t n)
{
    return il < n / 8 || il >= 7 * n / 8 || (il - n / 8) % 3 == 2;
}

/* What a matrix gets in a Q4_K_M file; il is that of its block. With just eight experts, attention is so small a part
 * that it gets more. */
static enum ggml_type q4_k_m(const struct maker_params *p, const char *name, uint32_t il)
{
    bool more = more_bits(il, p->n_block + p->n_nextn), eight = p->n_expert == 8;

    if (starts(name, "attn_v.") || starts(name, "attn_qkv."))
        return eight ? GGML_TYPE_Q8_0 : more ? GGML_TYPE_Q6_K : GGML_TYPE_Q4_K;
    if (starts(name, "attn_k.") && eight)
        return GGML_TYPE_Q8_0;
    if (starts(name, "attn_output.") && eight)
        return GGML_TYPE_Q5_K;
    if (starts(name, "ffn_down"))
        return more ? GGML_TYPE_Q6_K : GGML_TYPE_Q4_K;
    return GGML_TYPE_Q4_K;
}

/* Rows that are no whole number of blocks of 256. */
static enum ggml_type fall_back(enum ggml_type type, int64_t n)
{
    if (ggml_blck_size(type) != 256 || n % 256 == 0)
        return type;
    switch (type) {
    case GGML_TYPE_Q4_K:
        return GGML_TYPE_Q5_0;
    case GGML_TYPE_Q5_K:
        return GGML_TYPE_Q5_1;
    case GGML_TYPE_Q6_K:
        return GGML_TYPE_Q8_0;
    default:
        return GGML_TYPE_IQ4_NL;
    }
}

static enum ggml_type type_of(const struct maker_params *p, const struct row *r, uint32_t il)
{
    bool head = starts(r->name, "output.") || (p->tied && starts(r->name, "token_embd."));
    enum ggml_type type = (enum ggml_type)p->type;

    if (p->mix == MAKER_MIX_MXFP4_MOE && r->ne[2] != NO)
        type = GGML_TYPE_MXFP4;
    if ((p->mix == MAKER_MIX_Q6_HEAD || p->mix == MAKER_MIX_Q4_K_M) && head)
        type = GGML_TYPE_Q6_K;
    else if (p->mix == MAKER_MIX_Q4_K_M && type == GGML_TYPE_Q4_K && !(r->when & ONCE))
        type = q4_k_m(p, r->name, il);
    return fall_back(type, extent(p, r->ne[0]));
}

/* --- the list ----------------------------------------------------------------------------------- */

static void break_tensor(const struct maker_params *p, struct maker_tensor *t)
{
    if (p->broken_reshape && strcmp(p->broken_reshape, t->name) == 0) {
        t->ne[0] = p->broken_ne[0];
        t->ne[1] = p->broken_ne[1];
        t->ne[2] = 0;
    }
    if (p->broken_retype && strcmp(p->broken_retype, t->name) == 0)
        t->type = (enum ggml_type)p->broken_type;
}

static enum err_code push(struct maker_list *list, const struct maker_tensor *t, struct err *e)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 64;
        struct maker_tensor *bigger = realloc(list->tensor, cap * sizeof *bigger);
        if (!bigger)
            return err_set(e, ERR_NOMEM, "maker: no memory for the list of tensors");
        list->tensor = bigger;
        list->cap = cap;
    }
    list->tensor[list->n++] = *t;
    return OK;
}

static void set_fill(struct maker_tensor *t, const struct row *r, float gain, int64_t n_in)
{
    switch (r->kind) {
    case MATRIX:
    case PLAIN:
        t->b = n_in > 0 ? gain / sqrtf((float)n_in) : gain;
        break;
    case NORM:
        t->a = 1.0f;
        t->b = 0.1f;
        break;
    case VECTOR:
        t->a = r->a;
        t->b = r->b;
        break;
    case UNIFORM:
        t->fill = MAKER_FILL_UNIFORM;
        t->a = r->a;
        t->b = r->b;
        break;
    case FREQS:
        t->fill = MAKER_FILL_ROPE_FREQS;
        t->a = r->a;
        break;
    }
}

static enum err_code add(const struct maker_params *p, const struct row *r, uint32_t il, struct maker_list *list,
                         struct err *e)
{
    struct maker_tensor t = {.type = r->kind == MATRIX ? type_of(p, r, il) : GGML_TYPE_F32};
    float gain = r->a;

    if (r->when & ONCE)
        snprintf(t.name, sizeof t.name, "%s", r->name);
    else
        snprintf(t.name, sizeof t.name, "blk.%u.%s", il, r->name);
    if (p->broken_drop && strcmp(p->broken_drop, t.name) == 0) {
        list->dropped = true;
        return OK;
    }
    for (size_t d = 0; d < 3; d++)
        t.ne[d] = extent(p, r->ne[d]);
    if (starts(r->name, "token_embd.") && !p->tied)
        gain = sqrtf((float)p->n_embd);
    set_fill(&t, r, gain, t.ne[0]);
    if (starts(r->name, "output_norm.") && p->tied)
        t.fill = MAKER_FILL_SIGNS; /* or every token would be followed by itself */
    t.quiet_tokens = starts(r->name, "output.") || (p->tied && starts(r->name, "token_embd."));
    for (const char *c = t.name; *c; c++) /* by name, so that a dropped tensor leaves the others as they are */
        t.stream = hash_mix64(t.stream + 0x9e3779b97f4a7c15ull + (uint8_t)*c);
    break_tensor(p, &t);
    return push(list, &t, e);
}

static enum err_code add_all(const struct maker_params *p, unsigned has, uint32_t il, struct maker_list *list,
                             struct err *e)
{
    enum err_code rc = OK;
    for (size_t i = 0; rc == OK && i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        bool same_place = !(r->when & ONCE) == !(has & ONCE);
        if (same_place && (r->families & BIT(p->family)) && (r->when & has) == r->when)
            rc = add(p, r, il, list, e);
    }
    return rc;
}

enum err_code maker_list_tensors(const struct maker_params *p, struct maker_list *out, struct err *e)
{
    unsigned once = ONCE | (p->tied ? 0u : UNTIED) | (p->with_rope_freqs ? ROPE : 0u);
    enum err_code rc = add_all(p, p->only_end ? once : once | ENDS, 0, out, e);

    for (uint32_t il = 0; rc == OK && il < p->n_block + p->n_nextn; il++)
        if (p->only_end == 0 || (il >= p->only_first && il < p->only_end))
            rc = add_all(p, block_has(p, il), il, out, e);
    return rc;
}

/* --- families ----------------------------------------------------------------------------------- */

/* Which keys a family has beside those that all have. */
enum {
    KEY_FF = 1,
    KEY_HEAD_DIM = 2,
    KEY_ROT = 4,
    KEY_EXPERTS = 8,
    KEY_NEXTN = 16,
    KEY_WINDOW = 32,
    KEY_VOCAB = 64,
    KEY_FF_EXP = 128
};

static const struct {
    const char *name;
    unsigned keys;
    float rope_base, eps;
} families[MAKER_FAMILY_COUNT] = {
    [MAKER_LLAMA] = {"llama", KEY_FF | KEY_HEAD_DIM | KEY_ROT | KEY_VOCAB | KEY_EXPERTS, 10000.0f, 1e-5f},
    [MAKER_QWEN2] = {"qwen2", KEY_FF, 1e6f, 1e-6f},
    [MAKER_QWEN3] = {"qwen3", KEY_FF | KEY_HEAD_DIM, 1e6f, 1e-6f},
    [MAKER_QWEN3MOE] = {"qwen3moe", KEY_FF | KEY_HEAD_DIM | KEY_EXPERTS | KEY_FF_EXP, 1e6f, 1e-6f},
    [MAKER_QWEN35] = {"qwen35", KEY_FF | KEY_HEAD_DIM | KEY_ROT | KEY_NEXTN, 1e7f, 1e-6f},
    [MAKER_QWEN35MOE] = {"qwen35moe", KEY_HEAD_DIM | KEY_ROT | KEY_NEXTN | KEY_EXPERTS | KEY_FF_EXP, 1e7f, 1e-6f},
    [MAKER_GEMMA3] = {"gemma3", KEY_FF | KEY_HEAD_DIM | KEY_WINDOW, 1e6f, 1e-6f},
    [MAKER_PHI3] = {"phi3", KEY_FF | KEY_ROT | KEY_WINDOW, 10000.0f, 1e-5f},
    [MAKER_GPT_OSS] = {"gpt-oss", KEY_FF | KEY_HEAD_DIM | KEY_EXPERTS | KEY_FF_EXP | KEY_WINDOW, 150000.0f, 1e-5f},
    [MAKER_GLM4MOE] = {"glm4moe", KEY_FF | KEY_HEAD_DIM | KEY_ROT | KEY_NEXTN | KEY_EXPERTS | KEY_FF_EXP, 1e6f, 1e-5f},
};

const char *maker_family_name(enum maker_family family)
{
    return families[family].name;
}

enum err_code maker_family(const char *name, enum maker_family *out, struct err *e)
{
    char known[128] = "";
    for (size_t i = 0; i < MAKER_FAMILY_COUNT; i++) {
        if (strcasecmp(name, families[i].name) == 0) {
            *out = (enum maker_family)i;
            return OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), " %s", families[i].name);
    }
    return err_set(e, ERR_ARG, "maker: no family '%s': one of%s", name, known);
}

bool maker_needs_ff(const struct maker_params *p)
{
    return families[p->family].keys & KEY_FF;
}

static enum err_code check_hybrid(const struct maker_params *p, struct err *e)
{
    if (!p->interval || !p->ssm_conv || !p->ssm_state || !p->ssm_group || !p->ssm_rank)
        return err_set(e, ERR_ARG, "maker: family %s needs interval and the ssm sizes", families[p->family].name);
    if (p->interval > 1024 || p->ssm_conv > 64 || p->ssm_state > 1024 || p->ssm_rank > 1024)
        return err_set(e, ERR_ARG, "maker: the ssm sizes are out of range");
    if (p->ssm_rank % p->ssm_group != 0)
        return err_set(e, ERR_ARG, "maker: %u value heads are not a multiple of %u key heads", p->ssm_rank,
                       p->ssm_group);
    return OK;
}

static enum err_code check_experts(const struct maker_params *p, struct err *e)
{
    const char *name = families[p->family].name;
    bool may = families[p->family].keys & KEY_EXPERTS, must = families[p->family].keys & KEY_FF_EXP;

    if ((must && !p->n_expert) || (!may && p->n_expert))
        return err_set(e, ERR_ARG, "maker: family %s %s experts", name, must ? "has" : "has no");
    if (p->n_expert > 4096 || p->n_expert_used > p->n_expert || (p->n_expert && !p->n_expert_used))
        return err_set(e, ERR_ARG, "maker: %u of %u experts cannot be used", p->n_expert_used, p->n_expert);
    if (must && (!p->n_ff_exp || p->n_ff_exp > 65536))
        return err_set(e, ERR_ARG, "maker: an expert cannot be %u wide", p->n_ff_exp);
    if (p->n_ff_shared > 65536 || (p->n_ff_shared && p->family != MAKER_QWEN35MOE && p->family != MAKER_GLM4MOE))
        return err_set(e, ERR_ARG, "maker: family %s has no shared expert of %u", name, p->n_ff_shared);
    if ((p->family == MAKER_QWEN35MOE && !p->n_ff_shared) ||
        (p->family == MAKER_GLM4MOE && (!p->n_ff_shared || p->n_ff_shared % p->n_ff_exp != 0)))
        return err_set(e, ERR_ARG, "maker: family %s needs a shared expert%s", name,
                       p->family == MAKER_GLM4MOE ? ", a whole number of experts wide" : "");
    if (p->n_dense_lead > (p->family == MAKER_GLM4MOE ? p->n_block : 0))
        return err_set(e, ERR_ARG, "maker: family %s cannot begin with %u blocks without experts", name,
                       p->n_dense_lead);
    return OK;
}

enum err_code maker_check_family(const struct maker_params *p, struct err *e)
{
    unsigned keys;
    enum err_code rc;

    if ((int)p->family < 0 || p->family >= MAKER_FAMILY_COUNT)
        return err_set(e, ERR_ARG, "maker: no family %d", (int)p->family);
    keys = families[p->family].keys;
    rc = check_experts(p, e);
    if (rc == OK && (BIT(p->family) & QWEN35))
        rc = check_hybrid(p, e);
    if (rc != OK)
        return rc;
    if (p->n_nextn > (keys & KEY_NEXTN ? 8u : 0u))
        return err_set(e, ERR_ARG, "maker: family %s has no %u NextN blocks", families[p->family].name, p->n_nextn);
    if ((keys & KEY_WINDOW) && !p->window)
        return err_set(e, ERR_ARG, "maker: family %s needs a sliding window", families[p->family].name);
    if (!(keys & KEY_HEAD_DIM) && p->n_head * p->head_dim != p->n_embd)
        return err_set(e, ERR_ARG, "maker: family %s: %u heads of %u are not n_embd %u", families[p->family].name,
                       p->n_head, p->head_dim, p->n_embd);
    if (n_rot(p) > p->head_dim || n_rot(p) % 2 != 0 || (n_rot(p) != p->head_dim && !(keys & KEY_ROT)))
        return err_set(e, ERR_ARG, "maker: family %s: RoPE cannot turn %u of %u elements", families[p->family].name,
                       n_rot(p), p->head_dim);
    if (p->with_rope_freqs && !(BIT(p->family) & (LLAMA | PHI3)))
        return err_set(e, ERR_ARG, "maker: family %s has no rope factors", families[p->family].name);
    if (p->bpe && p->family != MAKER_LLAMA)
        return err_set(e, ERR_ARG, "maker: bpe is for family llama: %s has its own vocabulary",
                       families[p->family].name);
    return OK;
}

/* --- keys --------------------------------------------------------------------------------------- */

struct keys {
    struct gguf_context *meta;
    const struct maker_params *p;
    char text[96];
};

static const char *key(struct keys *k, const char *suffix)
{
    snprintf(k->text, sizeof k->text, "%s.%s", families[k->p->family].name, suffix);
    return k->text;
}

static void u32(struct keys *k, const char *suffix, uint32_t v)
{
    gguf_set_val_u32(k->meta, key(k, suffix), v);
}

static void f32(struct keys *k, const char *suffix, float v)
{
    gguf_set_val_f32(k->meta, key(k, suffix), v);
}

/* general.file_type, for people; -1 where there is no common number. */
static int file_type(const struct maker_params *p)
{
    static const struct {
        enum ggml_type type;
        int number;
    } of[] = {{GGML_TYPE_F32, 0},   {GGML_TYPE_F16, 1},     {GGML_TYPE_Q4_0, 2},    {GGML_TYPE_Q4_1, 3},
              {GGML_TYPE_Q8_0, 7},  {GGML_TYPE_Q5_0, 8},    {GGML_TYPE_Q5_1, 9},    {GGML_TYPE_Q2_K, 10},
              {GGML_TYPE_Q3_K, 12}, {GGML_TYPE_Q4_K, 15},   {GGML_TYPE_Q5_K, 17},   {GGML_TYPE_Q6_K, 18},
              {GGML_TYPE_BF16, 32}, {GGML_TYPE_IQ4_NL, 25}, {GGML_TYPE_IQ4_XS, 30}, {GGML_TYPE_MXFP4, 38}};
    if (p->mix == MAKER_MIX_MXFP4_MOE)
        return 38;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (p->type == (int)of[i].type)
            return of[i].number;
    return -1;
}

static void put_experts(struct keys *k)
{
    const struct maker_params *p = k->p;

    u32(k, "expert_count", p->n_expert);
    u32(k, "expert_used_count", p->n_expert_used);
    if (families[p->family].keys & KEY_FF_EXP)
        u32(k, "expert_feed_forward_length", p->n_ff_exp);
    if (p->family == MAKER_QWEN35MOE)
        u32(k, "expert_shared_feed_forward_length", p->n_ff_shared);
    if (p->family == MAKER_GLM4MOE) {
        u32(k, "expert_shared_count", p->n_ff_shared / p->n_ff_exp);
        u32(k, "leading_dense_block_count", p->n_dense_lead);
        u32(k, "expert_gating_func", 2); /* sigmoid */
        f32(k, "expert_weights_scale", 1.0f);
        gguf_set_val_bool(k->meta, key(k, "expert_weights_norm"), true);
    }
}

static void put_hybrid(struct keys *k)
{
    const struct maker_params *p = k->p;
    int32_t pairs = (int32_t)n_rot(p) / 2, w = pairs / 3, h = (pairs - w) / 2;
    const int32_t sections[4] = {pairs - w - h, h, w, 0};

    gguf_set_arr_data(k->meta, key(k, "rope.dimension_sections"), GGUF_TYPE_INT32, sections, 4);
    u32(k, "ssm.conv_kernel", p->ssm_conv);
    u32(k, "ssm.state_size", p->ssm_state);
    u32(k, "ssm.group_count", p->ssm_group);
    u32(k, "ssm.time_step_rank", p->ssm_rank);
    u32(k, "ssm.inner_size", p->ssm_rank * p->ssm_state);
    u32(k, "full_attention_interval", p->interval);
}

static void put_rope(struct keys *k)
{
    const struct maker_params *p = k->p;
    uint32_t orig = p->n_ctx_orig ? p->n_ctx_orig : p->n_ctx;

    f32(k, "rope.freq_base", p->rope_base > 0 ? p->rope_base : families[p->family].rope_base);
    if (families[p->family].keys & KEY_ROT)
        u32(k, "rope.dimension_count", n_rot(p));
    if (p->family == MAKER_GPT_OSS) {
        gguf_set_val_str(k->meta, key(k, "rope.scaling.type"), "yarn");
        f32(k, "rope.scaling.factor", (float)p->n_ctx / (float)orig);
    }
    if (p->family == MAKER_GPT_OSS || p->family == MAKER_PHI3)
        u32(k, "rope.scaling.original_context_length", orig);
    if (p->family == MAKER_PHI3 && p->with_rope_freqs)
        f32(k, "rope.scaling.attn_factor", sqrtf(1.0f + logf((float)p->n_ctx / (float)orig) / logf((float)orig)));
}

enum err_code maker_put_keys(struct gguf_context *meta, const struct maker_params *p, struct err *e)
{
    struct keys k = {.meta = meta, .p = p};
    unsigned keys = families[p->family].keys;

    gguf_set_val_str(meta, "general.architecture", families[p->family].name);
    gguf_set_val_str(meta, "general.type", "model");
    gguf_set_val_str(meta, "general.name", p->name ? p->name : "made");
    if (file_type(p) >= 0)
        gguf_set_val_u32(meta, "general.file_type", (uint32_t)file_type(p));
    gguf_set_val_u32(meta, "general.quantization_version", 2);
    u32(&k, "context_length", p->n_ctx);
    u32(&k, "embedding_length", p->n_embd);
    u32(&k, "block_count", p->n_block + p->n_nextn);
    if (keys & KEY_FF)
        u32(&k, "feed_forward_length", p->n_ff);
    u32(&k, "attention.head_count", p->n_head);
    u32(&k, "attention.head_count_kv", p->n_head_kv);
    if (keys & KEY_HEAD_DIM) {
        u32(&k, "attention.key_length", p->head_dim);
        u32(&k, "attention.value_length", p->head_dim);
    }
    f32(&k, "attention.layer_norm_rms_epsilon", families[p->family].eps);
    put_rope(&k);
    if (keys & KEY_WINDOW)
        u32(&k, "attention.sliding_window", p->window);
    if (p->n_expert)
        put_experts(&k);
    if (BIT(p->family) & QWEN35)
        put_hybrid(&k);
    if (p->n_nextn)
        u32(&k, "nextn_predict_layers", p->n_nextn);
    if (keys & KEY_VOCAB)
        u32(&k, "vocab_size", p->n_vocab);
    if (p->only_end) {
        gguf_set_val_u32(meta, "kvasir.window.first", p->only_first);
        gguf_set_val_u32(meta, "kvasir.window.end", p->only_end);
    }
    return maker_put_vocab(meta, p, e);
}
