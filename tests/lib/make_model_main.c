/* SPDX-License-Identifier: MIT
 *
 * make_model: writes a random-weight GGUF of the llama family, for tests, demos and benchmarks on machines that have no
 * model. What it makes is nonsense with the shape and the size of something real.
 */
#include "base/parse.h"
#include "lib/maker.h"

#include <getopt.h>
#include <stdio.h>
#include <sys/stat.h>

static const char usage[] =
    "usage: make_model OUT.gguf [OPTIONS]\n"
    "\n"
    "Writes a llama-family model with random weights; the same options write the same bytes.\n"
    "\n"
    "  --preset NAME    small (default), half (0.6 GB), 1gb, 0.6b-shape; the options after it change it\n"
    "  --type TYPE      of the matrices: f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K\n"
    "  --blocks N       transformer blocks\n"
    "  --embd N         width of the residual stream\n"
    "  --heads N        attention heads\n"
    "  --kv-heads N     key/value heads\n"
    "  --head-dim N     elements of a head\n"
    "  --ff N           width of the feed-forward part\n"
    "  --vocab N        tokens, at least 260\n"
    "  --ctx N          context length\n"
    "  --tied           no output matrix of its own\n"
    "  --rope-freqs     with rope_freqs.weight\n"
    "  --seed N         another seed, other weights\n"
    "  --name TEXT      general.name\n"
    "  --threads N      default 2\n"
    "  --drop NAME      leaves this tensor out\n"
    "  --drop-key KEY   leaves this key out\n"
    "  --cut BYTES      cuts this much off the end\n";

enum option_id {
    OPT_PRESET = 256,
    OPT_TYPE,
    OPT_BLOCKS,
    OPT_EMBD,
    OPT_HEADS,
    OPT_KV_HEADS,
    OPT_HEAD_DIM,
    OPT_FF,
    OPT_VOCAB,
    OPT_CTX,
    OPT_TIED,
    OPT_ROPE_FREQS,
    OPT_SEED,
    OPT_NAME,
    OPT_THREADS,
    OPT_DROP,
    OPT_DROP_KEY,
    OPT_CUT
};

static const struct option options[] = {
    {"preset", required_argument, NULL, OPT_PRESET},
    {"type", required_argument, NULL, OPT_TYPE},
    {"blocks", required_argument, NULL, OPT_BLOCKS},
    {"embd", required_argument, NULL, OPT_EMBD},
    {"heads", required_argument, NULL, OPT_HEADS},
    {"kv-heads", required_argument, NULL, OPT_KV_HEADS},
    {"head-dim", required_argument, NULL, OPT_HEAD_DIM},
    {"ff", required_argument, NULL, OPT_FF},
    {"vocab", required_argument, NULL, OPT_VOCAB},
    {"ctx", required_argument, NULL, OPT_CTX},
    {"tied", no_argument, NULL, OPT_TIED},
    {"rope-freqs", no_argument, NULL, OPT_ROPE_FREQS},
    {"seed", required_argument, NULL, OPT_SEED},
    {"name", required_argument, NULL, OPT_NAME},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"drop", required_argument, NULL, OPT_DROP},
    {"drop-key", required_argument, NULL, OPT_DROP_KEY},
    {"cut", required_argument, NULL, OPT_CUT},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* maker_write knows the limits of each; here only that it is a number. */
static enum err_code number(const char *what, uint32_t *out, struct err *e)
{
    return parse_u32(what, optarg, 0, UINT32_MAX, out, e);
}

static enum err_code take_option(int id, struct maker_params *p, struct err *e)
{
    switch (id) {
    case OPT_PRESET:
        return maker_preset(optarg, p, e);
    case OPT_TYPE:
        return maker_type(optarg, &p->type, e);
    case OPT_BLOCKS:
        return number("--blocks", &p->n_block, e);
    case OPT_EMBD:
        return number("--embd", &p->n_embd, e);
    case OPT_HEADS:
        return number("--heads", &p->n_head, e);
    case OPT_KV_HEADS:
        return number("--kv-heads", &p->n_head_kv, e);
    case OPT_HEAD_DIM:
        return number("--head-dim", &p->head_dim, e);
    case OPT_FF:
        return number("--ff", &p->n_ff, e);
    case OPT_VOCAB:
        return number("--vocab", &p->n_vocab, e);
    case OPT_CTX:
        return number("--ctx", &p->n_ctx, e);
    case OPT_THREADS:
        return number("--threads", &p->n_threads, e);
    case OPT_SEED:
        return parse_u64("--seed", optarg, 0, UINT64_MAX, &p->seed, e);
    case OPT_CUT:
        return parse_u64("--cut", optarg, 0, UINT64_MAX, &p->broken_cut, e);
    case OPT_TIED:
        p->tied = true;
        break;
    case OPT_ROPE_FREQS:
        p->with_rope_freqs = true;
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
    struct maker_params p = maker_small();
    struct err e = {0};
    struct stat st;
    char size[16];

    for (int id; (id = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (id == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        if (id == '?') {
            fputs(usage, stderr);
            return 2;
        }
        if (take_option(id, &p, &e) != OK) {
            fprintf(stderr, "make_model: %s\n", e.msg);
            return 2;
        }
    }
    if (argc - optind != 1) {
        fputs(usage, stderr);
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
