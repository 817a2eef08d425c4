/* SPDX-License-Identifier: MIT
 *
 * Encoder and decoder of probes (docs/protocol.md, "PROBE"): the state of the ring, which every rank reads as it
 * passes.
 */
#include "ring/frame_impl.h"

#define PROBE_FIXED_BYTES 72u
#define PROBE_ROW_BYTES   48u
#define PROBE_READY       1u

enum err_code frame_probe_put(struct buf *out, const struct frame_probe *p, struct err *e)
{
    if (p->n_rows == 0 || p->n_rows > FRAME_MAX_RANKS)
        return err_set(e, ERR_ARG, "a probe of %u ranks, 1 to %u are allowed", (unsigned)p->n_rows, FRAME_MAX_RANKS);
    struct frame_header h = {.type = FRAME_PROBE, .length = PROBE_FIXED_BYTES + p->n_rows * PROBE_ROW_BYTES};
    enum err_code rc = frame_begin(out, &h, e);
    if (rc != OK)
        return rc;
    buf_put_u64(out, p->nonce);
    buf_put_u32(out, p->hops);
    buf_put_u16(out, p->ready ? PROBE_READY : 0);
    buf_put_u16(out, (uint16_t)p->n_rows);
    buf_put_u32(out, p->counts.n_waiting);
    buf_put_u32(out, p->counts.n_active);
    buf_put_u32(out, p->counts.n_steps);
    buf_put_u32(out, p->counts.us_per_tok);
    buf_put_u32(out, p->counts.retry_ms);
    buf_put_u32(out, 0);
    buf_put_u64(out, p->counts.n_prompt_tok);
    buf_put_u64(out, p->counts.n_out_tok);
    buf_put_u64(out, p->counts.n_reused_tok);
    buf_put_u64(out, p->counts.n_refused);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const struct frame_row *r = &p->rows[i];
        buf_put_u64(out, r->n_steps);
        buf_put_u64(out, r->n_tok);
        buf_put_u64(out, r->busy_ns);
        buf_put_u64(out, r->bytes_in);
        buf_put_u64(out, r->bytes_out);
        buf_put_u64(out, r->rss_bytes);
    }
    return OK;
}

enum err_code frame_probe_get(const void *payload, size_t len, const struct frame_limits *lim, struct frame_probe *out,
                              struct err *e)
{
    struct cursor c = cursor_of(payload, len);
    uint64_t nonce = cursor_u64(&c);
    uint32_t hops = cursor_u32(&c), flags = cursor_u16(&c), n_rows = cursor_u16(&c);
    struct frame_counts k;
    k.n_waiting = cursor_u32(&c);
    k.n_active = cursor_u32(&c);
    k.n_steps = cursor_u32(&c);
    k.us_per_tok = cursor_u32(&c);
    k.retry_ms = cursor_u32(&c);
    uint32_t reserved = cursor_u32(&c);
    k.n_prompt_tok = cursor_u64(&c);
    k.n_out_tok = cursor_u64(&c);
    k.n_reused_tok = cursor_u64(&c);
    k.n_refused = cursor_u64(&c);
    if (c.short_read)
        return cursor_finish(&c, "probe", e);
    if (n_rows != lim->n_ranks || n_rows > FRAME_MAX_RANKS)
        return err_set(e, ERR_MISMATCH, "a probe of %u ranks, the ring has %u", (unsigned)n_rows,
                       (unsigned)lim->n_ranks);
    if (flags & ~PROBE_READY || reserved != 0)
        return err_set(e, ERR_PROTOCOL, "a probe with flags 0x%x and a reserved field of 0x%x; I know 0x%x and 0",
                       (unsigned)flags, (unsigned)reserved, PROBE_READY);
    const uint8_t *rows = cursor_bytes(&c, (size_t)n_rows * PROBE_ROW_BYTES);
    enum err_code rc = cursor_finish(&c, "probe", e);
    if (rc != OK)
        return rc;
    out->nonce = nonce;
    out->hops = hops;
    out->ready = flags & PROBE_READY;
    out->counts = k;
    out->n_rows = n_rows;
    struct cursor rd = cursor_of(rows, (size_t)n_rows * PROBE_ROW_BYTES);
    for (uint32_t i = 0; i < n_rows; i++) {
        struct frame_row *r = &out->rows[i];
        r->n_steps = cursor_u64(&rd);
        r->n_tok = cursor_u64(&rd);
        r->busy_ns = cursor_u64(&rd);
        r->bytes_in = cursor_u64(&rd);
        r->bytes_out = cursor_u64(&rd);
        r->rss_bytes = cursor_u64(&rd);
    }
    return OK;
}
