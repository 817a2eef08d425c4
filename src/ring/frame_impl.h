/* SPDX-License-Identifier: MIT
 *
 * What the files of frames share: the beginning of a frame, and parts that several types have. For src/ring/frame*.c.
 */
#ifndef KVASIR_RING_FRAME_IMPL_H
#define KVASIR_RING_FRAME_IMPL_H

#include "ring/frame.h"

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define FRAME_HOST_SWAPS true
#else
#define FRAME_HOST_SWAPS false
#endif

#define FRAME_TOP_BYTES 8u /* i32 token, f32 logprob */

/* Room for a whole frame, then its header: the puts of h->length bytes that follow cannot fail. */
enum err_code frame_begin(struct buf *out, const struct frame_header *h, struct err *e) KV_MUST_USE;
void frame_put_words(struct buf *out, const void *words, size_t n);

enum err_code frame_slot_check(const char *what, uint32_t i, uint32_t slot, const struct frame_limits *lim,
                               struct err *e) KV_MUST_USE;

/* A token, its log-probability and the list of the likeliest ones: as the last rank sends it and as it travels on. */
void frame_sample_put(struct buf *out, const struct batch_result *r);
/* After the cursor: i32 token, f32 logprob, r->n_top pairs of these. ERR_FORMAT is left to the cursor. */
void frame_sample_read(struct cursor *c, struct batch_result *r);
bool frame_sample_sendable(const struct batch_result *r);
enum err_code frame_sample_check(const char *what, uint32_t i, const struct batch_result *r,
                                 const struct frame_limits *lim, struct err *e) KV_MUST_USE;

#endif
