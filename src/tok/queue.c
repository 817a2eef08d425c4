/* SPDX-License-Identifier: MIT */
#include "tok/queue.h"

#include <stdlib.h>

static bool before(const struct queue_item *a, const struct queue_item *b)
{
    return a->key > b->key || (a->key == b->key && a->pos < b->pos);
}

void queue_free(struct queue *q)
{
    free(q->item);
    *q = (struct queue){0};
}

void queue_clear(struct queue *q)
{
    q->n = 0;
}

bool queue_push(struct queue *q, struct queue_item x)
{
    if (q->n == q->cap) {
        size_t cap = q->cap ? q->cap * 2 : 64;
        if (cap > SIZE_MAX / sizeof *q->item)
            return false;
        struct queue_item *p = realloc(q->item, cap * sizeof *p);
        if (!p)
            return false;
        q->item = p;
        q->cap = cap;
    }
    size_t i = q->n++;
    while (i > 0 && before(&x, &q->item[(i - 1) / 2])) {
        q->item[i] = q->item[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    q->item[i] = x;
    return true;
}

bool queue_pop(struct queue *q, struct queue_item *out)
{
    if (q->n == 0)
        return false;
    *out = q->item[0];
    struct queue_item x = q->item[--q->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < q->n; i = child) {
        if (child + 1 < q->n && before(&q->item[child + 1], &q->item[child]))
            child++;
        if (!before(&q->item[child], &x))
            break;
        q->item[i] = q->item[child];
    }
    q->item[i] = x;
    return true;
}
