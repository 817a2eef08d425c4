/* SPDX-License-Identifier: MIT
 *
 * What is known of the model and the ring: /v1/models, /v1/ring, /health. Addresses and public keys are in the manifest
 * that every node has; nothing secret is shown.
 */
#include "api/impl.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

static void put_string(struct buf *out, const char *name, const char *s)
{
    buf_printf(out, "\"%s\":", name);
    if (s)
        text_put_json(out, s, strlen(s));
    else
        buf_puts(out, "null");
}

bool api_ring_whole(struct api *a, char *why, size_t size)
{
    struct err e;
    if (node_is_ready(a->c.node))
        return true;
    if (node_wait_ready(a->c.node, 0, &e) == OK) /* does not wait: the deadline has passed */
        return true;
    snprintf(why, size, "%s", e.msg);
    return false;
}

void api_put_health(struct api_exchange *x)
{
    struct buf out = {0};
    char why[200];
    if (atomic_load(&x->a->draining))
        snprintf(why, sizeof why, "this node is about to stop");
    else if (api_ring_whole(x->a, why, sizeof why)) {
        buf_puts(&out, "{\"status\":\"ok\"}");
        api_send_json(x, &out);
        buf_free(&out);
        return;
    }
    char clean[sizeof why];
    buf_puts(&out, "{\"status\":\"unavailable\",");
    put_string(&out, "reason", text_clean(why, strlen(why), clean, sizeof clean));
    buf_puts(&out, "}");
    api_send(x, 503, "application/json", "Retry-After: 1\r\n", out.data, out.len);
    buf_free(&out);
}

/* --- the model ----------------------------------------------------------------------------------- */

void api_put_model(struct api *a, struct buf *out)
{
    const struct manifest *m = a->c.m;
    buf_puts(out, "{");
    put_string(out, "id", a->model_name);
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"kvasir\",\"meta\":{", (long long)a->started);
    put_string(out, "model_id", a->model_id);
    buf_printf(out, ",\"n_ctx\":%u,\"n_vocab\":%u,\"n_embd\":%u,\"n_blocks\":%u,\"chat\":%s}}", m->n_ctx, m->n_vocab,
               m->n_embd, m->n_blocks, a->c.chat ? "true" : "false");
}

/* --- the ring ------------------------------------------------------------------------------------ */

static void put_rank(const struct manifest *m, uint32_t i, const struct frame_row *live, struct buf *out)
{
    const struct manifest_rank *r = &m->ranks[i];
    char key[KEY_TEXT_SIZE];
    buf_printf(out, "{\"rank\":%u,\"key\":\"%s\",\"first\":%u,\"end\":%u,", i, key_text(&r->key, key), r->first,
               r->end);
    put_string(out, "device", r->device[0] ? r->device : "cpu");
    buf_puts(out, ",");
    put_string(out, "addr", r->addr[0] ? r->addr : NULL);
    buf_printf(out, ",\"weight_bytes\":%llu,\"kv_bytes\":%llu", (unsigned long long)r->weight_bytes,
               (unsigned long long)r->kv_bytes);
    if (live)
        buf_printf(out,
                   ",\"steps\":%llu,\"tok\":%llu,\"busy_ns\":%llu,\"bytes_in\":%llu,\"bytes_out\":%llu,"
                   "\"rss_bytes\":%llu",
                   (unsigned long long)live->n_steps, (unsigned long long)live->n_tok,
                   (unsigned long long)live->busy_ns, (unsigned long long)live->bytes_in,
                   (unsigned long long)live->bytes_out, (unsigned long long)live->rss_bytes);
    buf_puts(out, "}");
}

/* Of all nodes together, as rank 0 said in the latest probe. */
static void put_requests(const struct frame_counts *k, struct buf *out)
{
    buf_printf(out, "{\"waiting\":%u,\"active\":%u,\"steps_in_flight\":%u,\"us_per_tok\":%u,", k->n_waiting,
               k->n_active, k->n_steps, k->us_per_tok);
    buf_printf(out, "\"prompt_tok\":%llu,\"reused_tok\":%llu,\"out_tok\":%llu,\"refused\":%llu}",
               (unsigned long long)k->n_prompt_tok, (unsigned long long)k->n_reused_tok,
               (unsigned long long)k->n_out_tok, (unsigned long long)k->n_refused);
}

void api_put_ring(struct api *a, struct buf *out)
{
    const struct manifest *m = a->c.m;
    char why[200] = "", clean[200], ring[DIGEST_HEX_SIZE];
    struct node_ring live;
    node_ring_state(a->c.node, &live);
    bool known = live.age_ms != UINT64_MAX;
    bool whole = api_ring_whole(a, why, sizeof why);
    buf_printf(out, "{\"object\":\"ring\",\"ready\":%s,", whole ? "true" : "false");
    put_string(out, "reason", whole ? NULL : text_clean(why, strlen(why), clean, sizeof clean));
    buf_printf(out, ",\"rank\":%u,\"epoch\":%llu,\"ring_id\":\"%s\",\"wire\":\"%s\",", a->c.rank,
               (unsigned long long)m->epoch, digest_hex(m->ring_id, ring), manifest_wire_name(m->wire));
    buf_puts(out, "\"model\":{");
    put_string(out, "name", a->model_name);
    buf_printf(out, ",\"id\":\"%s\",\"n_blocks\":%u,\"n_embd\":%u,\"n_vocab\":%u},", a->model_id, m->n_blocks,
               m->n_embd, m->n_vocab);
    buf_printf(out, "\"n_ctx\":%u,\"n_slots\":%u,\"n_batch\":%u,\"ranks\":[", m->n_ctx, m->n_slots, m->n_batch);
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        buf_puts(out, i ? "," : "");
        put_rank(m, i, known && i < live.n_ranks ? &live.rows[i] : NULL, out);
    }
    buf_puts(out, "],\"age_ms\":");
    known ? buf_printf(out, "%llu", (unsigned long long)live.age_ms) : buf_puts(out, "null");
    buf_puts(out, ",\"requests\":");
    known ? put_requests(&live.counts, out) : buf_puts(out, "null");
    buf_puts(out, "}");
}
