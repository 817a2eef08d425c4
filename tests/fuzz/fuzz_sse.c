/* SPDX-License-Identifier: MIT
 *
 * Event streams of any bytes: however they are cut, the same events come out, and none has a line end that a line of
 * data cannot have. The first byte says where the cuts are.
 */
#include "http/sse.h"
#include "lib/fuzz.h"

#include <string.h>

static bool on_event(void *ctx, const char *data, size_t len)
{
    must(len > 0 && data[len] == 0, "an event has data and ends with NUL");
    must(!memchr(data, '\r', len), "no \\r is left");
    buf_put(ctx, data, len);
    buf_put_u8(ctx, 0xff);
    return true;
}

static void feed(const uint8_t *data, size_t size, size_t piece, struct buf *out)
{
    struct sse s = {.ctx = out, .on_event = on_event};
    for (size_t i = 0; i < size; i += piece)
        must(sse_feed(&s, data + i, size - i < piece ? size - i : piece, NULL) == OK, "short streams are taken");
    sse_fini(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf whole = {0}, cut = {0};
    if (size < 2 || size > (1u << 20))
        return 0;
    feed(data + 1, size - 1, size, &whole);
    feed(data + 1, size - 1, 1 + data[0] % 16u, &cut);
    must(whole.len == cut.len && (whole.len == 0 || memcmp(whole.data, cut.data, cut.len) == 0),
         "cuts make no difference");
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}
