/* SPDX-License-Identifier: MIT
 *
 * Heads of requests of any bytes, as they come in pieces, and ranges, asked for and answered: what was bad stays bad
 * when more comes, what is whole is no larger than it may be, and a range lies within the file. The first byte gives
 * the limit and the file's size.
 */
#include "http/server_impl.h"
#include "lib/fuzz.h"
#include "shard/origin_impl.h"
#include "shard/remote_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_head(const uint8_t *data, size_t size, size_t max)
{
    struct head_fault f = {0};
    enum head_state before = HEAD_PART;
    for (size_t n = 1; n <= size; n++) {
        uint8_t *exact = malloc(n); /* so that a byte too far is noticed */
        if (!exact)
            return;
        memcpy(exact, data, n);
        const enum head_state now = head_check(exact, n, max, &f);
        free(exact);
        must(before == HEAD_PART || now == before, "a verdict holds whatever follows");
        must(now != HEAD_BAD || (f.status >= 400 && f.status < 600 && f.text),
             "what is bad has a status and a sentence");
        must(now != HEAD_PART || n <= max, "nobody waits for more than may come");
        before = now;
    }
}

/* Half of them begin as ranges do. */
static void check_ranges(const uint8_t *data, size_t size, uint64_t file)
{
    char text[80];
    const int len = (int)(size < 60 ? size : 60);
    for (int known = 0; known < 2; known++) {
        uint64_t first = 0, n = 0, end = 0, all = 0;
        snprintf(text, sizeof text, "%s%.*s", known ? "bytes=" : "", len, (const char *)data);
        if (origin_range_parse(text, file, &first, &n) == ORIGIN_RANGE_PART)
            must(n > 0 && first < file && n <= file - first, "a range lies within the file");
        snprintf(text, sizeof text, "%s%.*s", known ? "bytes " : "", len, (const char *)data);
        if (remote_range_parse(text, &first, &end, &all))
            must(first < end && end <= all, "what is sent lies within the file");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    check_head(data + 1, size - 1 < 2000 ? size - 1 : 2000, data[0] * 16u + 1);
    check_ranges(data + 1, size - 1, data[0] * 1000ull);
    return 0;
}
