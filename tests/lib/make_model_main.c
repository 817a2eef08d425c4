/* SPDX-License-Identifier: MIT
 *
 * make_model: writes a random-weight GGUF of any family, for tests, demos and benchmarks on machines that have no
 * model. What it makes is nonsense with the shape and the size of something real.
 */
#include "base/parse.h"
#include "lib/maker.h"

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char usage_head[] =
    "usage: make_model OUT.gguf [OPTIONS]\n"
    "\n"
    "Writes a model with random weights; the same options write the same bytes. Later options change what earlier "
    "ones\n"
    "chose.\n"
    "\n"
    "  --preset NAME    one of the list below (default: small)\n"
    "  --family NAME    a small model of this family: llama qwen2 qwen3 qwen3moe qwen35 qwen35moe gemma3 phi3 gpt-oss\n"
    "                   glm4moe\n"
    "  --type TYPE      of the matrices: f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K iq4_nl iq4_xs\n"
    "                   mxfp4; or q4_k_m, the mix of llama-quantize\n"
    "  --mix MIX        none, q6-head (the matrix of the logits in q6_K), q4_k_m, mxfp4-moe (experts in mxfp4)\n";
static const char usage_tail[] = "  --rope-base X    base of RoPE\n"
                                 "  --tied           no output matrix of its own\n"
                                 "  --untied         one of its own\n"
                                 "  --rope-freqs     with rope_freqs.weight (phi3: rope_factors_*)\n"
                                 "  --bpe            llama: the vocabulary of Llama 3\n"
                                 "  --only A:B       only the tensors of blocks A to B-1, as in a middle stage's file\n"
                                 "  --holes          no weights: the header, then a hole of the right length\n"
                                 "  --seed N         another seed, other weights\n"
                                 "  --name TEXT      general.name\n"
                                 "  --drop NAME      leaves this tensor out\n"
                                 "  --drop-key KEY   leaves this key out\n"
                                 "  --cut BYTES      cuts this much off the end\n"
                                 "\n"
                                 "presets:\n";

/* Options that are a number of maker_params; maker_write knows the limits of each. */
static const struct {
    const char *name, *about;
    size_t offset;
} numbers[] = {
    {"blocks", "transformer blocks of the trunk", offsetof(struct maker_params, n_block)},
    {"embd", "width of the residual stream", offsetof(struct maker_params, n_embd)},
    {"heads", "attention heads", offsetof(struct maker_params, n_head)},
    {"kv-heads", "key/value heads", offsetof(struct maker_params, n_head_kv)},
    {"head-dim", "elements of a head", offsetof(struct maker_params, head_dim)},
    {"rot", "elements of a head that RoPE turns", offsetof(struct maker_params, n_rot)},
    {"ff", "width of the feed-forward part", offsetof(struct maker_params, n_ff)},
    {"vocab", "tokens", offsetof(struct maker_params, n_vocab)},
    {"ctx", "context length", offsetof(struct maker_params, n_ctx)},
    {"ctx-orig", "gpt-oss, phi3: context before scaling", offsetof(struct maker_params, n_ctx_orig)},
    {"window", "gemma3, gpt-oss, phi3: sliding window", offsetof(struct maker_params, window)},
    {"experts", "experts of a block", offsetof(struct maker_params, n_expert)},
    {"experts-used", "of them for each token", offsetof(struct maker_params, n_expert_used)},
    {"ff-exp", "width of an expert", offsetof(struct maker_params, n_ff_exp)},
    {"ff-shared", "width of the shared expert", offsetof(struct maker_params, n_ff_shared)},
    {"dense-lead", "glm4moe: first blocks without experts", offsetof(struct maker_params, n_dense_lead)},
    {"nextn", "qwen35, qwen35moe, glm4moe: NextN blocks", offsetof(struct maker_params, n_nextn)},
    {"ssm-conv", "qwen35, qwen35moe: width of the convolution", offsetof(struct maker_params, ssm_conv)},
    {"ssm-state", "... elements of a head", offsetof(struct maker_params, ssm_state)},
    {"ssm-groups", "... key heads", offsetof(struct maker_params, ssm_group)},
    {"ssm-rank", "... value heads", offsetof(struct maker_params, ssm_rank)},
    {"interval", "... every N-th block has full attention", offsetof(struct maker_params, interval)},
    {"threads", "default 2", offsetof(struct maker_params, n_threads)},
};

#define N_NUMBERS (sizeof numbers / sizeof *numbers)

enum option_id {
    OPT_NUMBER = 256, /* and those after it: numbers[id - OPT_NUMBER] */
    OPT_PRESET = OPT_NUMBER + (int)N_NUMBERS,
    OPT_FAMILY,
    OPT_TYPE,
    OPT_MIX,
    OPT_ROPE_BASE,
    OPT_TIED,
    OPT_UNTIED,
    OPT_ROPE_FREQS,
    OPT_BPE,
    OPT_ONLY,
    OPT_HOLES,
    OPT_SEED,
    OPT_NAME,
    OPT_DROP,
    OPT_DROP_KEY,
    OPT_CUT
};

static const struct option others[] = {
    {"preset", required_argument, NULL, OPT_PRESET},
    {"family", required_argument, NULL, OPT_FAMILY},
    {"type", required_argument, NULL, OPT_TYPE},
    {"mix", required_argument, NULL, OPT_MIX},
    {"rope-base", required_argument, NULL, OPT_ROPE_BASE},
    {"tied", no_argument, NULL, OPT_TIED},
    {"untied", no_argument, NULL, OPT_UNTIED},
    {"rope-freqs", no_argument, NULL, OPT_ROPE_FREQS},
    {"bpe", no_argument, NULL, OPT_BPE},
    {"only", required_argument, NULL, OPT_ONLY},
    {"holes", no_argument, NULL, OPT_HOLES},
    {"seed", required_argument, NULL, OPT_SEED},
    {"name", required_argument, NULL, OPT_NAME},
    {"drop", required_argument, NULL, OPT_DROP},
    {"drop-key", required_argument, NULL, OPT_DROP_KEY},
    {"cut", required_argument, NULL, OPT_CUT},
    {"help", no_argument, NULL, 'h'},
};

#define N_OTHERS (sizeof others / sizeof *others)

static void print_usage(FILE *to)
{
    const char *name, *about = "";

    fputs(usage_head, to);
    for (size_t i = 0; i < N_NUMBERS; i++) {
        char option[32];
        snprintf(option, sizeof option, "--%s N", numbers[i].name);
        fprintf(to, "  %-16s %s\n", option, numbers[i].about);
    }
    fputs(usage_tail, to);
    for (size_t i = 0; (name = maker_preset_at(i, &about)) != NULL; i++)
        fprintf(to, "  %-20s %s\n", name, about);
}

static enum err_code take_mix(const char *name, struct maker_params *p, struct err *e)
{
    static const char *const names[] = {[MAKER_MIX_NONE] = "none",
                                        [MAKER_MIX_Q6_HEAD] = "q6-head",
                                        [MAKER_MIX_Q4_K_M] = "q4_k_m",
                                        [MAKER_MIX_MXFP4_MOE] = "mxfp4-moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            p->mix = (enum maker_mix)i;
            return OK;
        }
    }
    return err_set(e, ERR_ARG, "no mix '%s': one of none q6-head q4_k_m mxfp4-moe", name);
}

/* A type without --mix means all of that type, whatever the preset mixed. */
static enum err_code take_type(const char *name, struct maker_params *p, bool mix_is_said, struct err *e)
{
    if (!mix_is_said)
        p->mix = MAKER_MIX_NONE;
    return maker_type_and_mix(name, &p->type, &p->mix, e);
}

static enum err_code take_family(const char *name, struct maker_params *p, struct err *e)
{
    enum maker_family family;
    enum err_code rc = maker_family(name, &family, e);
    if (rc == OK)
        *p = maker_family_small(family);
    return rc;
}

static enum err_code take_number(size_t i, struct maker_params *p, struct err *e)
{
    uint32_t v;
    char what[32];
    snprintf(what, sizeof what, "--%s", numbers[i].name);
    enum err_code rc = parse_u32(what, optarg, 0, UINT32_MAX, &v, e);
    if (rc == OK)
        memcpy((char *)p + numbers[i].offset, &v, sizeof v);
    return rc;
}

static enum err_code take_rope_base(struct maker_params *p, struct err *e)
{
    double v;
    enum err_code rc = parse_f64("--rope-base", optarg, 1.0, 1e12, &v, e);
    if (rc == OK)
        p->rope_base = (float)v;
    return rc;
}

static enum err_code take_option(int id, struct maker_params *p, bool *mix_is_said, struct err *e)
{
    if (id >= OPT_NUMBER && id < OPT_PRESET)
        return take_number((size_t)(id - OPT_NUMBER), p, e);
    switch (id) {
    case OPT_PRESET:
        return maker_preset(optarg, p, e);
    case OPT_FAMILY:
        return take_family(optarg, p, e);
    case OPT_TYPE:
        return take_type(optarg, p, *mix_is_said, e);
    case OPT_MIX:
        *mix_is_said = true;
        return take_mix(optarg, p, e);
    case OPT_ROPE_BASE:
        return take_rope_base(p, e);
    case OPT_ONLY:
        return parse_window(optarg, &p->only_first, &p->only_end, e);
    case OPT_SEED:
        return parse_u64("--seed", optarg, 0, UINT64_MAX, &p->seed, e);
    case OPT_CUT:
        return parse_u64("--cut", optarg, 0, UINT64_MAX, &p->broken_cut, e);
    case OPT_TIED:
    case OPT_UNTIED:
        p->tied = id == OPT_TIED;
        break;
    case OPT_ROPE_FREQS:
        p->with_rope_freqs = true;
        break;
    case OPT_BPE:
        p->bpe = true;
        break;
    case OPT_HOLES:
        p->holes = true;
        break;
    case OPT_NAME:
        p->name = optarg;
        break;
    case OPT_DROP:
        p->broken_drop = optarg;
        break;
    case OPT_DROP_KEY:
        p->broken_key = optarg;
        p->broken_key_how = MAKER_KEY_DROP;
        break;
    default:
        return err_set(e, ERR_INTERNAL, "option %d has no meaning", id);
    }
    return OK;
}

int main(int argc, char **argv)
{
    struct option options[N_NUMBERS + N_OTHERS + 1] = {0};
    struct maker_params p = maker_small();
    struct err e = {0};
    bool mix_is_said = false;
    struct stat st;
    char size[16];

    for (size_t i = 0; i < N_NUMBERS; i++)
        options[i] = (struct option){numbers[i].name, required_argument, NULL, OPT_NUMBER + (int)i};
    memcpy(options + N_NUMBERS, others, sizeof others);
    for (int id; (id = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (id == 'h' || id == '?') {
            print_usage(id == 'h' ? stdout : stderr);
            return id == 'h' ? 0 : 2;
        }
        if (take_option(id, &p, &mix_is_said, &e) != OK) {
            fprintf(stderr, "make_model: %s\n", e.msg);
            return 2;
        }
    }
    if (argc - optind != 1) {
        print_usage(stderr);
        return 2;
    }
    if (maker_write(argv[optind], &p, &e) != OK) {
        fprintf(stderr, "make_model: %s\n", e.msg);
        return 1;
    }
    if (stat(argv[optind], &st) == 0)
        printf("%s: %s\n", argv[optind], parse_fmt_bytes((uint64_t)st.st_size, size));
    return 0;
}
