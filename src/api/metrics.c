/* SPDX-License-Identifier: MIT
 *
 * /metrics: counters of this node in Prometheus' text format 0.0.4, base units (seconds, bytes), names that end in
 * _total where they only grow.
 */
#include "api/impl.h"
#include "base/clock.h"

#include <string.h>

static const unsigned statuses[API_N_STATUS] = {200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 415,
                                                429, 431, 499, 500, 501, 502, 503, 504, 505, 0}; /* 0: another */
static const double bounds[API_N_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                             0.25,  0.5,    1,     2.5,  5,     10,   60};
static const char *const route_names[API_ROUTE_COUNT] = {
    "/",           "/favicon.ico",         "/health",         "/metrics", "/v1/ring", "/v1/models",
    "/v1/models/", "/v1/chat/completions", "/v1/completions", "other"};
static const char *const finish_names[API_FINISH_COUNT] = {"stop", "length", "cancelled", "error"};

void api_count_http(struct api *a, enum api_route route, unsigned status)
{
    size_t i = 0;
    while (i + 1 < API_N_STATUS && statuses[i] != status)
        i++;
    a->metrics.http[route][i]++;
}

void api_observe(struct api_histogram *h, uint64_t ns)
{
    double s = (double)ns / (double)CLOCK_NS_PER_S;
    size_t i = 0;
    while (i < API_N_BUCKETS && s > bounds[i])
        i++;
    h->count[i]++;
    h->sum += s;
}

/* --- lines --------------------------------------------------------------------------------------- */

static void head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(struct buf *out, const char *name, const char *type, const char *help, double v)
{
    head(out, name, type, help);
    buf_printf(out, "%s %.17g\n", name, v);
}

static void histogram(struct buf *out, const char *name, const char *help, const struct api_histogram *h)
{
    uint64_t n = 0;
    head(out, name, "histogram", help);
    for (size_t i = 0; i < API_N_BUCKETS; i++) {
        n += h->count[i];
        buf_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)n);
    }
    n += h->count[API_N_BUCKETS];
    buf_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, (unsigned long long)n, name,
               h->sum, name, (unsigned long long)n);
}

static void label(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '\\' || *s == '"')
            buf_put_u8(out, '\\');
        if (*s != '\n')
            buf_put_u8(out, (uint8_t)*s);
    }
}

/* --- groups -------------------------------------------------------------------------------------- */

static void put_http(const struct api_metrics *m, struct buf *out)
{
    head(out, "kvasir_http_requests_total", "counter",
         "HTTP requests by route and status (499: the client went away).");
    for (int r = 0; r < API_ROUTE_COUNT; r++) {
        for (int s = 0; s < API_N_STATUS; s++) {
            if (!m->http[r][s])
                continue;
            buf_printf(out, "kvasir_http_requests_total{route=\"%s\",status=\"", route_names[r]);
            statuses[s] ? buf_printf(out, "%u", statuses[s]) : buf_puts(out, "other");
            buf_printf(out, "\"} %llu\n", (unsigned long long)m->http[r][s]);
        }
    }
    histogram(out, "kvasir_request_duration_seconds",
              "Time of a request for text, from its last byte to the last of the answer.", &m->duration);
    histogram(out, "kvasir_time_to_first_token_seconds", "Time from the last byte of a request to its first token.",
              &m->first_token);
}

static void put_texts(const struct api *a, struct buf *out)
{
    const struct api_metrics *m = &a->metrics;
    head(out, "kvasir_requests_total", "counter", "Texts asked for at this node that are over, by how they ended.");
    for (int chat = 1; chat >= 0; chat--) {
        for (int f = 0; f < API_FINISH_COUNT; f++)
            buf_printf(out, "kvasir_requests_total{kind=\"%s\",finish=\"%s\"} %llu\n", chat ? "chat" : "completion",
                       finish_names[f], (unsigned long long)m->choices[chat][f]);
    }
    one(out, "kvasir_requests_running", "gauge", "Texts being generated for clients of this node.", a->n_live);
    one(out, "kvasir_prompt_tokens_total", "counter", "Prompt tokens of requests at this node.", (double)m->prompt_tok);
    one(out, "kvasir_generated_tokens_total", "counter", "Tokens generated for requests at this node.",
        (double)m->out_tok);
    one(out, "kvasir_cancels_total", "counter", "Texts cancelled: the client went away, or a stop string came.",
        (double)m->cancels);
    head(out, "kvasir_errors_total", "counter", "Failures inside the ring, by error code.");
    for (size_t i = 1; i < sizeof m->errors / sizeof *m->errors && err_known(-(int32_t)i); i++) {
        if (m->errors[i])
            buf_printf(out, "kvasir_errors_total{code=\"%s\"} %llu\n", err_name((enum err_code)(-(int)i)),
                       (unsigned long long)m->errors[i]);
    }
}

static void put_edge(struct buf *out, const char *edge, const struct link_stats *l, bool bytes)
{
    const char *name = bytes ? "kvasir_edge_bytes_total" : "kvasir_edge_frames_total";
    buf_printf(out, "%s{edge=\"%s\",direction=\"in\"} %llu\n", name, edge,
               (unsigned long long)(bytes ? l->bytes_in : l->frames_in));
    buf_printf(out, "%s{edge=\"%s\",direction=\"out\"} %llu\n", name, edge,
               (unsigned long long)(bytes ? l->bytes_out : l->frames_out));
}

static void put_node(struct api *a, struct buf *out)
{
    struct node_stats s;
    node_stats_get(a->c.node, &s);
    one(out, "kvasir_stage_busy_seconds_total", "counter", "Time this node's stage computed.",
        (double)s.busy_ns / (double)CLOCK_NS_PER_S);
    one(out, "kvasir_stage_steps_total", "counter", "Steps this node's stage computed.", (double)s.n_steps);
    one(out, "kvasir_stage_tokens_total", "counter", "Tokens (rows) this node's stage computed.", (double)s.n_tok);
    head(out, "kvasir_edge_bytes_total", "counter", "Bytes on the links to the neighbours, without TCP's own.");
    put_edge(out, "predecessor", &s.predecessor, true);
    put_edge(out, "successor", &s.successor, true);
    head(out, "kvasir_edge_frames_total", "counter", "Frames on the links to the neighbours, heartbeats included.");
    put_edge(out, "predecessor", &s.predecessor, false);
    put_edge(out, "successor", &s.successor, false);
    if (a->c.rank != 0)
        return;
    one(out, "kvasir_queue_waiting", "gauge", "Requests that wait for a slot (rank 0).", s.sched.n_waiting);
    one(out, "kvasir_queue_active", "gauge", "Requests that have a slot (rank 0).", s.sched.n_active);
    one(out, "kvasir_steps_in_flight", "gauge", "Steps on their way around the ring (rank 0).", s.sched.n_steps);
    one(out, "kvasir_ring_prompt_tokens_total", "counter", "Prompt tokens the ring computed (rank 0).",
        (double)s.sched.n_prompt_tok);
    one(out, "kvasir_ring_reused_tokens_total", "counter", "Prompt tokens that a slot held already (rank 0).",
        (double)s.sched.n_reused_tok);
    one(out, "kvasir_ring_refused_total", "counter", "Requests refused because too many waited (rank 0).",
        (double)s.sched.n_refused);
    one(out, "kvasir_ring_retried_total", "counter",
        "Requests that began anew since a rank had lost its state (rank 0).", (double)s.sched.n_retried);
    one(out, "kvasir_ring_generated_tokens_total", "counter", "Tokens the ring generated (rank 0).",
        (double)s.sched.n_out_tok);
}

void api_put_metrics(struct api *a, struct buf *out)
{
    char why[200];
    head(out, "kvasir_build_info", "gauge", "Version and model of this node.");
    buf_puts(out, "kvasir_build_info{version=\"" KVASIR_VERSION "\",model=\"");
    label(out, a->model_name);
    buf_printf(out, "\",model_id=\"%.16s\",rank=\"%u\"} 1\n", a->model_id, a->c.rank);
    one(out, "kvasir_start_time_seconds", "gauge", "When the API started, in seconds since 1970.", (double)a->started);
    one(out, "kvasir_ring_ready", "gauge", "1 when a probe went around the ring lately.",
        api_ring_whole(a, why, sizeof why));
    one(out, "kvasir_ring_epoch", "gauge", "Epoch of the ring's manifest.", (double)a->c.m->epoch);
    put_texts(a, out);
    put_http(&a->metrics, out);
    put_node(a, out);
}
