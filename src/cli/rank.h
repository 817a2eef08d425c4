/* SPDX-License-Identifier: MIT
 *
 * One rank served by this process: the model's window as a stage, and the node that runs it in the ring; plus the
 * options that say how a stage is loaded, which several commands share.
 */
#ifndef KVASIR_CLI_RANK_H
#define KVASIR_CLI_RANK_H

#include "cli/opt.h"
#include "cli/signals.h"
#include "engine/stage.h"
#include "model/hparams.h"
#include "plan/manifest.h"
#include "ring/node.h"

#include <stdio.h>

#define RANK_DEFAULT_CTX 4096u /* or what the model was trained for, if that is less */

/* How a rank loads its stage. */
struct rank_options {
    uint32_t n_threads;     /* 0: the machine's cores, shared by the local ranks */
    const char *kv;         /* cache type as text; NULL: f16 */
    const char *device;     /* NULL: the manifest's */
    uint32_t device_layers; /* 0: all */
    bool no_repack;
};
#define RANK_OPTION_ROWS(o)                                                                                            \
    {"threads",                                                                                                        \
     't',                                                                                                              \
     OPT_U32,                                                                                                          \
     "N",                                                                                                              \
     "compute threads of a stage (default: by its size; local stages share the cores)",                                \
     &(o).n_threads,                                                                                                   \
     1,                                                                                                                \
     512},                                                                                                             \
        {"kv", 0, OPT_STRING, "TYPE", "type of the key/value cache: f16 (default), f32, q8_0, q4_0", &(o).kv, 0, 0},   \
        {"device-layers",    0, OPT_U32, "N", "only the first N blocks of a window on its GPU, the rest on the CPU",   \
         &(o).device_layers, 1, 1u << 16},                                                                             \
        {"no-repack", 0, OPT_FLAG, NULL, "compute with the weights as they are in the file", &(o).no_repack, 0, 0}

/* Who this node is, and in which ring. */
struct rank_identity {
    const char *manifest, *key; /* files */
    const char *signer;         /* public key that must have signed; NULL: whoever did, with a warning */
};
#define RANK_IDENTITY_ROWS(w)                                                                                          \
    {"manifest", 'm', OPT_STRING, "FILE", "the ring's manifest; its signature is FILE.sig", &(w).manifest, 0, 0},      \
        {"key", 'k', OPT_STRING, "FILE", "this node's identity (kvasir keygen)", &(w).key, 0, 0},                      \
        {"signer", 0, OPT_STRING, "KEY", "public key that must have signed the manifest", &(w).signer, 0, 0}

/* Reads manifest and key and finds the rank. ERR_AUTH: signed by another, or the key is not in the ring; else as
 * manifest_load and key_load. The caller wipes *secret and finishes *m, also on failure ({0} before). */
enum err_code rank_identify(const struct rank_identity *w, struct manifest *m, struct key_secret *secret,
                            uint32_t *index, struct err *e) KV_MUST_USE;

struct rank {
    bool bounded_rewind; /* see stage.h */
    uint32_t rank;
    struct stage *stage;
    struct node *node;
};

/* Loads rank r's window of g, a model or a stage file that holds it. ERR_MISMATCH when the model is not the manifest's
 * (shape; id when model_id is not NULL) or the stage file holds other blocks; else as stage_open. g may be closed
 * afterwards. */
enum err_code rank_open(struct rank *r, const struct gguf *g, const struct manifest *m, uint32_t index,
                        const uint8_t *model_id, const struct rank_options *o, struct err *e) KV_MUST_USE;

/* Starts the node; config's manifest, rank and stage are filled in here. */
enum err_code rank_start(struct rank *r, const struct manifest *m, struct node_config *config,
                         struct err *e) KV_MUST_USE;
void rank_close(struct rank *r);

/* What a rank did, for reports. */
struct rank_report {
    uint64_t rss_bytes, weight_bytes, kv_bytes, compute_bytes;
    uint64_t n_steps, n_tok, busy_ns, in_bytes, out_bytes, n_out_tok;
};
void rank_report_of(const struct rank *r, struct rank_report *out);

/* Compute threads for one of n_local stages on this machine when none were asked for: the cores are shared, and a
 * window of few bytes gets few of them, since threads that meet after every operation cost more than they compute. */
uint32_t rank_default_threads(uint32_t n_local, uint64_t weight_bytes);

/* The id of the model that g is or is a stage file of (slice_model_id), with a progress line on stderr when it takes
 * long. stop may be NULL; ERR_CANCELLED: it was told. */
enum err_code rank_model_id(const struct gguf *g, struct signals_stop *stop, uint8_t out[DIGEST_BYTES],
                            struct err *e) KV_MUST_USE;

/* "rank 3  layers [39,48)  ram 3.4GiB  kv 0.9GiB  cpu" */
void rank_print_row(FILE *out, const struct manifest *m, uint32_t i);

#endif
