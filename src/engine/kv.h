/* SPDX-License-Identifier: MIT
 *
 * What a window remembers of its sequences: for attention blocks the keys and values of the positions so far, for
 * recurrent blocks the tail of the convolution and the state of the delta rule. Everything has a plane per sequence
 * slot.
 *
 * Attention: row slot * n_cells + c of a cache tensor is cell c of the slot. A block over all positions keeps position
 * p in cell p. A block with a window keeps it in cell p mod n_cells: there n_cells is the window and the largest step
 * together, so that a step's first token still finds its window while its last one is written.
 *
 * Owned by the stage; compute thread only.
 */
#ifndef KVASIR_ENGINE_KV_H
#define KVASIR_ENGINE_KV_H

#include "engine/buffers.h"
#include "engine/devices.h"
#include "model/hparams.h"

#include <ggml.h>

enum kv_type { KV_F32, KV_F16, KV_Q8_0, KV_Q4_0, KV_TYPE_COUNT };

enum kv_view { KV_VIEW_FULL, KV_VIEW_WINDOW, KV_VIEWS };

static inline enum kv_view kv_view_of(const struct hparams *h, uint32_t il)
{
    return h->kind[il] == BLOCK_WINDOW ? KV_VIEW_WINDOW : KV_VIEW_FULL;
}

struct kv {
    uint32_t first, end, n_slots;
    uint32_t n_cells[KV_VIEWS]; /* per slot */
    bool has[KV_VIEWS];         /* does the window have blocks of this kind? */
    struct ggml_context *ctx;
    struct buffers main, cpu;    /* CPU memory is in `main` when the CPU is the main device */
    bool *on_cpu;                /* [end - first]: kept from the main device */
    struct ggml_tensor **k, **v; /* [end - first], each [n_head_kv * head_dim, n_cells * n_slots]; NULL: recurrent */
    struct ggml_tensor **conv;   /* [end - first], each [(taps - 1) * channels, n_slots] f32; NULL: attention */
    struct ggml_tensor **delta;  /* [end - first], each [state * state * n_value, n_slots] f32; NULL: attention */
};

struct kv_params {
    uint32_t first, end;
    uint32_t n_ctx, n_slots, n_batch;
    enum kv_type type;
};

/* Makes the tensors, still without memory. ERR_NOMEM when there are more bytes than any machine has; ERR_UNSUPPORTED
 * when heads are no whole number of the type's blocks. */
enum err_code kv_init(struct kv *kv, const struct hparams *h, const struct kv_params *p, struct err *e) KV_MUST_USE;

/* Bytes of the blocks that the main device holds when these are the ones before `end`. */
uint64_t kv_bytes_before(const struct kv *kv, uint32_t end);

/* Keeps from the main device each block's state that an operation of the graph touches which that device cannot do: a
 * device cannot hand its memory over for others to write. Before kv_alloc. */
void kv_probe(struct kv *kv, const struct devices *d, struct ggml_cgraph *gf);

/* Gives the tensors memory, zeroed: a masked cell must not hold a NaN. ERR_NOMEM says how many bytes were asked for. */
enum err_code kv_alloc(struct kv *kv, const struct devices *d, struct err *e) KV_MUST_USE;
void kv_fini(struct kv *kv);
uint64_t kv_bytes(const struct kv *kv); /* allocated */

/* Makes the slot as if it had never been used. */
void kv_clear_slot(struct kv *kv, uint32_t slot);

/* Copies what cannot be cut back (recurrent state, cells of windows) out of and into a slot. data: kv_saved_bytes. */
size_t kv_saved_bytes(const struct kv *kv);
void kv_save_slot(const struct kv *kv, uint32_t slot, uint8_t *data);
void kv_restore_slot(struct kv *kv, uint32_t slot, const uint8_t *data);

/* Cells that a window of n_window positions needs under steps of n_batch tokens. */
uint32_t kv_window_cells(uint32_t n_window, uint32_t n_ctx, uint32_t n_batch);

enum err_code kv_parse_type(const char *text, enum kv_type *out, struct err *e) KV_MUST_USE;
const char *kv_type_name(enum kv_type t);
uint32_t kv_type_bytes32(enum kv_type t); /* bytes of 32 elements */

#endif
