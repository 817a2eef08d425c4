/* SPDX-License-Identifier: MIT
 *
 * From logits to a token, on the last rank. Order: biases, penalties, top-k, top-p, min-p, temperature, draw
 * (architectures.md F, less what is not offered yet). Random numbers are counter-based, keyed by seed and position, so
 * that a replay draws the same. One struct sampler per engine thread: it owns scratch memory for n_vocab candidates and
 * allocates nothing afterwards.
 */
#ifndef KVASIR_ENGINE_SAMPLER_H
#define KVASIR_ENGINE_SAMPLER_H

#include "base/err.h"
#include "batch/batch.h"

#include <stddef.h>

struct sampler; /* opaque */

enum err_code sampler_new(uint32_t n_vocab, struct sampler **out, struct err *e) KV_MUST_USE;
void sampler_free(struct sampler *s);

/* ERR_ARG names the parameter and its range: temperature 0..100 (negative means greedy), top_p (0,1], min_p [0,1],
 * repeat_penalty (0,10], frequency and presence [-10,10]; none may be NaN; n_top and n_bias at most what fits, biases
 * of tokens of the vocabulary, below +inf. */
enum err_code sampler_check(const struct batch_sampling *p, uint32_t n_vocab, struct err *e) KV_MUST_USE;

/* Draws the token for position pos. logits: [n_vocab], not changed. history: the n_history tokens before pos, oldest
 * first (penalties look at the last penalty_last_n of them). Greedy takes the lowest id among equal maxima. Biases of
 * the same token add up; what they make too large or too small for a float becomes the largest or smallest one.
 *
 * Fills token, logprob, n_top and top of out, nothing else, and only on success. Log probabilities are ln softmax of
 * the raw logits; top: the p->n_top likeliest, best first, the lower id first among equals, fewer where not so many
 * tokens are possible at all.
 *
 * ERR_NUMERIC when a logit is NaN or +inf, or all are -inf; ERR_ARG as sampler_check, or when the biases leave no
 * token; ERR_RANGE when a token the penalties look at is not in the vocabulary. */
enum err_code sampler_draw(struct sampler *s, const struct batch_sampling *p, const float *logits,
                           const int32_t *history, size_t n_history, uint32_t pos, struct batch_result *out,
                           struct err *e) KV_MUST_USE;

#endif
