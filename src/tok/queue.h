/* SPDX-License-Identifier: MIT
 *
 * A priority queue over places in a text: larger key first, among equal keys the leftmost place first.
 */
#ifndef KVASIR_TOK_QUEUE_H
#define KVASIR_TOK_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct queue_item {
    double key; /* never NaN */
    uint32_t pos, len;
};

/* Owns item. {0} is empty. */
struct queue {
    struct queue_item *item;
    size_t n, cap;
};

void queue_free(struct queue *q);
void queue_clear(struct queue *q);                       /* keeps the memory */
bool queue_push(struct queue *q, struct queue_item x);   /* false when out of memory */
bool queue_pop(struct queue *q, struct queue_item *out); /* false when empty */

#endif
