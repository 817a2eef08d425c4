/* SPDX-License-Identifier: MIT
 *
 * The tensors of one window. Two phases: a family first declares each tensor it needs (name, shape, how it is used);
 * then weights_load gives all of them memory: on the main device where that can compute with them, else for the CPU,
 * mapped straight from the file or in a repacking buffer where that is faster. Nothing outside the declared tensors is
 * ever read or mapped.
 */
#ifndef KVASIR_ENGINE_WEIGHTS_H
#define KVASIR_ENGINE_WEIGHTS_H

#include "engine/devices.h"
#include "model/gguf.h"

#include <ggml.h>

enum weight_use {
    WEIGHT_MUL_MAT,    /* src0 of a matrix product */
    WEIGHT_MUL_MAT_ID, /* the same of experts, one matrix each */
    WEIGHT_GET_ROWS,   /* table looked up by row */
    WEIGHT_ELEMENT,    /* norm weights, biases, rope factors: f32, used element by element */
};

struct weights; /* opaque; owned by the stage; one thread */

/* g is borrowed until weights_load returned; n_max: the most tensors that will be declared. */
enum err_code weights_new(const struct gguf *g, size_t n_max, struct weights **out, struct err *e) KV_MUST_USE;
void weights_free(struct weights *w);

struct weight_spec {
    enum weight_use use;
    bool optional;
    int64_t ne[3]; /* shape; 0 from where the dimensions end */
};

/* Declares a tensor and returns its handle, valid until weights_free; declaring a name and use again returns the same.
 * One tensor in two uses (a tied head) is two handles: each lies where its use is served best, so that a window
 * computes the same bits whether or not it also holds the other use.
 * NULL when it is optional and missing, or after an error (sticky: weights_load returns it). */
struct ggml_tensor *weights_declare(struct weights *w, const char *name, struct weight_spec spec);

/* Bytes of what was declared that would be meant for the main device, were it to hold the blocks before `end`. */
uint64_t weights_bytes_before(const struct weights *w, uint32_t end);

/* ERR_NOT_FOUND (tensor missing), ERR_FORMAT (shape or type), ERR_UNSUPPORTED (type that no device can compute with),
 * ERR_IO, ERR_NOMEM. repack: allow repacking buffer types of the CPU. Of a device besides the CPU it takes no table
 * that is looked up by rows: those stay in the file, of which only the rows in use become resident. */
enum err_code weights_load(struct weights *w, const struct devices *d, bool repack, struct err *e) KV_MUST_USE;

uint64_t weights_bytes(const struct weights *w);          /* tensor bytes in the file */
uint64_t weights_repacked_bytes(const struct weights *w); /* of these, how many live in repacking buffers */
uint64_t weights_device_bytes(const struct weights *w);   /* of these, how many live on a device besides the CPU */

#endif
