/* SPDX-License-Identifier: MIT */
#include "api/request.h"
#include "base/parse.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yyjson.h>

#define SHOWN 48 /* bytes of a wrong value that a message shows */

struct parser {
    yyjson_val *root;
    const struct api_limits *lim;
    struct api_request *q;
    struct api_error *x;
};

/* --- what was wrong ------------------------------------------------------------------------------ */

/* "the string \"hot\"", "-3", "a list", ... */
static const char *show(yyjson_val *v, char out[SHOWN + 32])
{
    char text[SHOWN + 1];
    switch (yyjson_get_type(v)) {
    case YYJSON_TYPE_STR:
        text_clean(yyjson_get_str(v), yyjson_get_len(v), text, sizeof text);
        snprintf(out, SHOWN + 32, "the string \"%s\"", text);
        break;
    case YYJSON_TYPE_BOOL:
        snprintf(out, SHOWN + 32, "%s", yyjson_get_bool(v) ? "true" : "false");
        break;
    case YYJSON_TYPE_NUM:
        if (yyjson_is_sint(v))
            snprintf(out, SHOWN + 32, "%lld", (long long)yyjson_get_sint(v));
        else if (yyjson_is_uint(v))
            snprintf(out, SHOWN + 32, "%llu", (unsigned long long)yyjson_get_uint(v));
        else
            snprintf(out, SHOWN + 32, "%g", yyjson_get_real(v));
        break;
    case YYJSON_TYPE_ARR:
        snprintf(out, SHOWN + 32, "a list of %zu", yyjson_arr_size(v));
        break;
    case YYJSON_TYPE_OBJ:
        snprintf(out, SHOWN + 32, "an object");
        break;
    default:
        snprintf(out, SHOWN + 32, "null");
        break;
    }
    return out;
}

static bool wrong_value(struct parser *p, const char *param, const char *wanted, yyjson_val *v)
{
    char shown[SHOWN + 32];
    return api_fail(p->x, 400, yyjson_is_null(v) || !v ? "missing_required_parameter" : "invalid_value", param,
                    "\"%s\" must be %s, not %s", param, wanted, show(v, shown));
}

static bool not_supported(struct parser *p, const char *param, const char *why)
{
    return api_fail(p->x, 400, "unsupported_parameter", param, "\"%s\" is not supported: %s", param, why);
}

static bool no_memory(struct parser *p)
{
    return api_fail(p->x, 500, "out_of_memory", NULL, "out of memory for this request");
}

/* --- single values ------------------------------------------------------------------------------- */

/* NULL when it is not there, or null. */
static yyjson_val *field(const struct parser *p, const char *name)
{
    yyjson_val *v = yyjson_obj_get(p->root, name);
    return yyjson_is_null(v) ? NULL : v;
}

static bool get_bool(struct parser *p, const char *name, bool *out)
{
    yyjson_val *v = field(p, name);
    if (v && !yyjson_is_bool(v))
        return wrong_value(p, name, "true or false", v);
    if (v)
        *out = yyjson_get_bool(v);
    return true;
}

static bool get_number(struct parser *p, const char *name, double min, double max, float *out)
{
    yyjson_val *v = field(p, name);
    char wanted[64];
    if (!v)
        return true;
    double x = yyjson_get_num(v);
    if (!yyjson_is_num(v) || !(x >= min && x <= max)) {
        snprintf(wanted, sizeof wanted, "a number from %g to %g", min, max);
        return wrong_value(p, name, wanted, v);
    }
    *out = (float)x;
    return true;
}

/* A whole number, also written as 8.0 or 1e3; false when v is none or is beyond 64 bits. The sign is apart, so that all
 * of both ranges fits. */
static bool whole(yyjson_val *v, bool *negative, uint64_t *magnitude)
{
    double x = yyjson_get_real(v);
    if (yyjson_is_uint(v)) {
        *negative = false;
        *magnitude = yyjson_get_uint(v);
        return true;
    }
    if (yyjson_is_sint(v)) {
        *negative = yyjson_get_sint(v) < 0;
        *magnitude = 0 - (uint64_t)yyjson_get_sint(v);
        return true;
    }
    if (!yyjson_is_real(v) || x != floor(x) || !(fabs(x) < 0x1p63))
        return false;
    *negative = x < 0;
    *magnitude = (uint64_t)fabs(x);
    return true;
}

/* max: values above it are wrong. */
static bool get_integer(struct parser *p, const char *name, int64_t min, int64_t max, int64_t *out)
{
    yyjson_val *v = field(p, name);
    bool negative;
    uint64_t m;
    char wanted[96];
    if (!v)
        return true;
    if (whole(v, &negative, &m) && m <= INT64_MAX) {
        int64_t x = negative ? -(int64_t)m : (int64_t)m;
        if (x >= min && x <= max) {
            *out = x;
            return true;
        }
    }
    if (max == INT64_MAX)
        snprintf(wanted, sizeof wanted, "a whole number of at least %lld", (long long)min);
    else
        snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)min, (long long)max);
    return wrong_value(p, name, wanted, v);
}

static bool get_seed(struct parser *p)
{
    yyjson_val *v = field(p, "seed");
    bool negative;
    uint64_t m;
    if (!v)
        return true;
    if (!whole(v, &negative, &m) || (negative && m > (uint64_t)INT64_MAX + 1))
        return wrong_value(p, "seed", "a whole number of at most 64 bits", v);
    p->q->seeded = true;
    p->q->sampling.seed = negative ? 0 - m : m;
    return true;
}

/* --- sampling ------------------------------------------------------------------------------------ */

static bool get_bias(struct parser *p)
{
    struct batch_sampling *s = &p->q->sampling;
    yyjson_val *o = field(p, "logit_bias"), *key;
    yyjson_obj_iter it;
    char param[96], key_text[32];
    if (!o)
        return true;
    if (!yyjson_is_obj(o))
        return wrong_value(p, "logit_bias", "an object from token ids to numbers", o);
    if (yyjson_obj_size(o) > BATCH_MAX_BIAS)
        return api_fail(p->x, 400, "invalid_value", "logit_bias", "\"logit_bias\" has %zu tokens, more than %u",
                        yyjson_obj_size(o), BATCH_MAX_BIAS);
    yyjson_obj_iter_init(o, &it);
    while ((key = yyjson_obj_iter_next(&it))) {
        yyjson_val *v = yyjson_obj_iter_get_val(key);
        uint32_t id;
        text_clean(yyjson_get_str(key), yyjson_get_len(key), key_text, sizeof key_text);
        snprintf(param, sizeof param, "logit_bias.%s", key_text);
        if (yyjson_get_len(key) != strlen(yyjson_get_str(key)) ||
            parse_u32("id", yyjson_get_str(key), 0, p->lim->n_vocab - 1, &id, NULL) != OK)
            return api_fail(p->x, 400, "invalid_value", "logit_bias",
                            "\"logit_bias\" has the key \"%s\"; keys must be token ids from 0 to %u", key_text,
                            p->lim->n_vocab - 1);
        double x = yyjson_get_num(v);
        if (!yyjson_is_num(v) || !(x >= -100 && x <= 100))
            return wrong_value(p, param, "a number from -100 to 100", v);
        s->bias[s->n_bias++] = (struct batch_bias){(int32_t)id, x <= -100 ? -INFINITY : (float)x};
    }
    return true;
}

static bool get_logprobs(struct parser *p)
{
    struct api_request *q = p->q;
    int64_t n = 0;
    if (!q->chat) {
        n = -1;
        if (!get_integer(p, "logprobs", 0, BATCH_MAX_TOP, &n))
            return false;
        q->logprobs = n >= 0;
        q->sampling.n_top = n > 0 ? (uint32_t)n : 0;
        return true;
    }
    if (!get_bool(p, "logprobs", &q->logprobs) || !get_integer(p, "top_logprobs", 0, BATCH_MAX_TOP, &n))
        return false;
    if (n > 0 && !q->logprobs)
        return api_fail(p->x, 400, "invalid_value", "top_logprobs", "\"top_logprobs\" needs \"logprobs\": true");
    q->sampling.n_top = (uint32_t)n;
    return true;
}

static bool get_sampling(struct parser *p)
{
    struct batch_sampling *s = &p->q->sampling;
    int64_t top_k = 0, last_n = 64;
    *s = (struct batch_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    if (!get_number(p, "temperature", 0, 2, &s->temperature) || !get_number(p, "top_p", 0, 1, &s->top_p) ||
        !get_number(p, "min_p", 0, 1, &s->min_p) || !get_integer(p, "top_k", -1, INT32_MAX, &top_k) ||
        !get_number(p, "presence_penalty", -2, 2, &s->presence_penalty) ||
        !get_number(p, "frequency_penalty", -2, 2, &s->frequency_penalty) ||
        !get_number(p, "repeat_penalty", 0.01, 10, &s->repeat_penalty) ||
        !get_integer(p, "repeat_last_n", -1, INT32_MAX, &last_n))
        return false;
    if (s->top_p < 1e-6f) /* only the likeliest token; the sampler wants more than nothing */
        s->top_p = 1e-6f;
    if (s->repeat_penalty < 0.01f)
        s->repeat_penalty = 0.01f;
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    s->penalty_last_n = last_n < 0 || last_n > (int64_t)p->lim->n_ctx ? p->lim->n_ctx : (uint32_t)last_n;
    return get_seed(p) && get_bias(p) && get_logprobs(p);
}

/* --- the rest that both kinds have --------------------------------------------------------------- */

static bool add_stop(struct parser *p, const char *param, yyjson_val *v)
{
    struct api_request *q = p->q;
    if (!yyjson_is_str(v))
        return wrong_value(p, param, "a string", v);
    size_t len = yyjson_get_len(v);
    if (len == 0)
        return api_fail(p->x, 400, "invalid_value", param, "\"%s\" must not be empty: it would stop every text", param);
    if (len > API_MAX_STOP_LEN)
        return api_fail(p->x, 400, "invalid_value", param, "\"%s\" has %zu bytes, more than %u", param, len,
                        API_MAX_STOP_LEN);
    struct api_text *stop = &q->stop[q->n_stop];
    stop->text = malloc(len);
    if (!stop->text)
        return no_memory(p);
    memcpy(stop->text, yyjson_get_str(v), len);
    stop->len = len;
    q->n_stop++;
    return true;
}

static bool get_stop(struct parser *p)
{
    yyjson_val *v = field(p, "stop"), *item;
    char param[32];
    size_t i, max;
    if (!v)
        return true;
    if (yyjson_is_str(v))
        return add_stop(p, "stop", v);
    if (!yyjson_is_arr(v))
        return wrong_value(p, "stop", "a string or a list of strings", v);
    if (yyjson_arr_size(v) > API_MAX_STOP)
        return api_fail(p->x, 400, "invalid_value", "stop", "\"stop\" has %zu strings, more than %u",
                        yyjson_arr_size(v), API_MAX_STOP);
    yyjson_arr_foreach(v, i, max, item)
    {
        snprintf(param, sizeof param, "stop[%zu]", i);
        if (!add_stop(p, param, item))
            return false;
    }
    return true;
}

static bool get_stream(struct parser *p)
{
    yyjson_val *v = field(p, "stream_options");
    if (!get_bool(p, "stream", &p->q->stream))
        return false;
    if (v && !yyjson_is_obj(v))
        return wrong_value(p, "stream_options", "an object", v);
    yyjson_val *usage = yyjson_obj_get(v, "include_usage");
    if (usage && !yyjson_is_null(usage) && !yyjson_is_bool(usage))
        return wrong_value(p, "stream_options.include_usage", "true or false", usage);
    p->q->include_usage = yyjson_get_bool(usage);
    return true;
}

static bool get_model(struct parser *p)
{
    yyjson_val *v = field(p, "model");
    char name[200];
    if (!v)
        return true;
    if (!yyjson_is_str(v))
        return wrong_value(p, "model", "a string", v);
    text_clean(yyjson_get_str(v), yyjson_get_len(v), name, sizeof name);
    if (api_is_model(p->lim, name))
        return true;
    return api_fail(p->x, 404, "model_not_found", "model", "the model \"%s\" is not here; this ring serves \"%s\"",
                    name, p->lim->model_name);
}

static bool get_lengths(struct parser *p)
{
    int64_t n = 1, old = 0, max = 0;
    if (!get_integer(p, "n", 1, API_MAX_N, &n) || !get_integer(p, "max_tokens", 1, INT64_MAX, &old) ||
        !get_integer(p, "max_completion_tokens", 1, INT64_MAX, &max))
        return false;
    p->q->n = (uint32_t)n;
    p->q->max_tokens = (uint64_t)(max ? max : old);
    return true;
}

/* --- what cannot be done ------------------------------------------------------------------------- */

/* Is there something in it? Empty lists, false and null ask for nothing. */
static bool asks(yyjson_val *v)
{
    if (yyjson_is_arr(v))
        return yyjson_arr_size(v) > 0;
    return v && !yyjson_is_null(v) && !yyjson_is_false(v);
}

static bool refuse_format(struct parser *p)
{
    yyjson_val *v = field(p, "response_format");
    const char *type = yyjson_get_str(yyjson_obj_get(v, "type"));
    if (!v)
        return true;
    if (!type)
        return wrong_value(p, "response_format", "an object with a \"type\"", v);
    if (strcmp(type, "text") == 0)
        return true;
    return not_supported(p, "response_format", "only {\"type\":\"text\"} is");
}

static bool refuse_modalities(struct parser *p)
{
    yyjson_val *v = field(p, "modalities"), *item;
    size_t i, max;
    if (v && !yyjson_is_arr(v))
        return wrong_value(p, "modalities", "a list", v);
    yyjson_arr_foreach(v, i, max, item)
    {
        if (!yyjson_equals_str(item, "text"))
            return not_supported(p, "modalities", "only \"text\" is");
    }
    return true;
}

static bool refuse_choice(struct parser *p, const char *name)
{
    yyjson_val *v = field(p, name);
    if (!v || yyjson_equals_str(v, "none") || yyjson_equals_str(v, "auto"))
        return true;
    return not_supported(p, name, "there are no tools to choose from");
}

static bool refuse_chat(struct parser *p)
{
    static const struct {
        const char *name, *why;
    } no[] = {
        {"tools", "this server does not call tools"},
        {"functions", "this server does not call functions"},
        {"audio", "answers are text"},
        {"prediction", "texts cannot be predicted from outside"},
        {"web_search_options", "this server does not search"},
        {"grammar", "answers cannot be constrained"},
        {"json_schema", "answers cannot be constrained"},
    };
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        if (asks(field(p, no[i].name)))
            return not_supported(p, no[i].name, no[i].why);
    }
    return refuse_choice(p, "tool_choice") && refuse_choice(p, "function_call") && refuse_format(p) &&
           refuse_modalities(p);
}

static bool refuse_completion(struct parser *p)
{
    bool echo = false;
    int64_t best = p->q->n;
    yyjson_val *suffix = field(p, "suffix");
    if (!get_bool(p, "echo", &echo) || !get_integer(p, "best_of", 1, INT32_MAX, &best))
        return false;
    if (echo)
        return not_supported(p, "echo", "the prompt is not given back");
    if (best != p->q->n)
        return not_supported(p, "best_of", "it may only be equal to \"n\"");
    if (suffix && !(yyjson_is_str(suffix) && yyjson_get_len(suffix) == 0))
        return not_supported(p, "suffix", "texts are only continued at their end");
    if (asks(field(p, "grammar")) || asks(field(p, "json_schema")))
        return not_supported(p, asks(field(p, "grammar")) ? "grammar" : "json_schema", "texts cannot be constrained");
    return refuse_format(p);
}

/* --- messages ------------------------------------------------------------------------------------ */

static bool get_part(struct parser *p, const char *param, yyjson_val *part, struct buf *text)
{
    char name[128], shown[SHOWN + 32];
    yyjson_val *type = yyjson_obj_get(part, "type"), *v = yyjson_obj_get(part, "text");
    if (yyjson_is_str(part)) {
        buf_put(text, yyjson_get_str(part), yyjson_get_len(part));
        return true;
    }
    if (!yyjson_is_obj(part))
        return wrong_value(p, param, "an object like {\"type\":\"text\",\"text\":\"...\"}", part);
    if (type && !yyjson_equals_str(type, "text"))
        return api_fail(p->x, 400, "unsupported_content", param,
                        "\"%s\" has the type %s; only parts of type \"text\" are supported", param, show(type, shown));
    snprintf(name, sizeof name, "%s.text", param);
    if (!yyjson_is_str(v))
        return wrong_value(p, name, "a string", v);
    buf_put(text, yyjson_get_str(v), yyjson_get_len(v));
    return true;
}

/* The parts become one text, owned by the request. */
static bool join_parts(struct parser *p, const char *param, yyjson_val *list, struct chat_message *m)
{
    struct api_request *q = p->q;
    struct buf text = {0};
    yyjson_val *part;
    char name[96];
    size_t i, max;
    bool ok = true;
    yyjson_arr_foreach(list, i, max, part)
    {
        snprintf(name, sizeof name, "%s[%zu]", param, i);
        if (!(ok = get_part(p, name, part, &text)))
            break;
    }
    if (ok && (text.failed || !buf_reserve(&text, 1)))
        ok = no_memory(p);
    if (!ok) {
        buf_free(&text);
        return false;
    }
    q->joined[q->n_joined++] = (char *)text.data;
    m->content = (const char *)text.data;
    m->len = text.len;
    return true;
}

static bool get_message(struct parser *p, size_t i, yyjson_val *v, struct chat_message *m)
{
    char param[64];
    struct err e;
    snprintf(param, sizeof param, "messages[%zu]", i);
    if (!yyjson_is_obj(v))
        return wrong_value(p, param, "an object with \"role\" and \"content\"", v);
    yyjson_val *role = yyjson_obj_get(v, "role"), *content = yyjson_obj_get(v, "content");
    if (asks(yyjson_obj_get(v, "tool_calls")) || asks(yyjson_obj_get(v, "function_call")))
        return api_fail(p->x, 400, "unsupported_parameter", param, "\"%s\" calls tools, which is not supported", param);
    snprintf(param, sizeof param, "messages[%zu].role", i);
    if (!yyjson_is_str(role))
        return wrong_value(p, param, "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"", role);
    if (yyjson_get_len(role) != strlen(yyjson_get_str(role)) ||
        chat_role_parse(yyjson_get_str(role), &m->role, &e) != OK)
        return wrong_value(p, param, "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"", role);
    snprintf(param, sizeof param, "messages[%zu].content", i);
    if (yyjson_is_arr(content))
        return join_parts(p, param, content, m);
    if (!yyjson_is_str(content) && !(m->role == CHAT_ASSISTANT && yyjson_is_null(content)))
        return wrong_value(p, param, "a string or a list of text parts", content);
    m->content = yyjson_get_str(content);
    m->len = yyjson_get_len(content);
    return true;
}

static bool get_messages(struct parser *p)
{
    struct api_request *q = p->q;
    yyjson_val *list = yyjson_obj_get(p->root, "messages"), *v;
    size_t i, max, n = yyjson_arr_size(list);
    if (!yyjson_is_arr(list) || n == 0)
        return wrong_value(p, "messages", "a list of at least one message", list);
    q->messages = calloc(n, sizeof *q->messages);
    q->joined = calloc(n, sizeof *q->joined);
    if (!q->messages || !q->joined)
        return no_memory(p);
    q->n_messages = n;
    yyjson_arr_foreach(list, i, max, v)
    {
        if (!get_message(p, i, v, &q->messages[i]))
            return false;
    }
    return true;
}

/* What a client may say to the chat template; only whether to think is known here. */
static bool get_thinking(struct parser *p)
{
    yyjson_val *o = field(p, "chat_template_kwargs");
    if (o && !yyjson_is_obj(o))
        return wrong_value(p, "chat_template_kwargs", "an object", o);
    yyjson_val *v = yyjson_obj_get(o, "enable_thinking");
    if (v && !yyjson_is_null(v) && !yyjson_is_bool(v))
        return wrong_value(p, "chat_template_kwargs.enable_thinking", "true or false", v);
    p->q->think = !yyjson_is_bool(v) ? CHAT_THINK_DEFAULT : yyjson_get_bool(v) ? CHAT_THINK_ON : CHAT_THINK_OFF;
    return true;
}

/* --- prompts ------------------------------------------------------------------------------------- */

static bool get_ids(struct parser *p, const char *param, yyjson_val *list, struct api_prompt *out)
{
    yyjson_val *v;
    char name[64], wanted[64];
    size_t i, max, n = yyjson_arr_size(list);
    if (n == 0)
        return wrong_value(p, param, "a text or a list of token ids", list);
    out->ids = malloc(n * sizeof *out->ids);
    if (!out->ids)
        return no_memory(p);
    out->len = n;
    yyjson_arr_foreach(list, i, max, v)
    {
        bool negative;
        uint64_t m;
        if (!whole(v, &negative, &m) || (negative && m) || m >= p->lim->n_vocab) {
            snprintf(name, sizeof name, "%s[%zu]", param, i);
            snprintf(wanted, sizeof wanted, "a token id from 0 to %u", p->lim->n_vocab - 1);
            return wrong_value(p, name, wanted, v);
        }
        out->ids[i] = (int32_t)m;
    }
    return true;
}

static bool get_prompt(struct parser *p, const char *param, yyjson_val *v, struct api_prompt *out)
{
    if (yyjson_is_arr(v))
        return get_ids(p, param, v, out);
    if (!yyjson_is_str(v))
        return wrong_value(p, param, "a string, a list of token ids, or a list of such", v);
    out->text = yyjson_get_str(v);
    out->len = yyjson_get_len(v);
    return true;
}

static bool get_prompts(struct parser *p)
{
    struct api_request *q = p->q;
    yyjson_val *v = yyjson_obj_get(p->root, "prompt"), *item;
    char param[32];
    size_t i, max, n = yyjson_arr_size(v);
    bool several = n > 0 && !yyjson_is_num(yyjson_arr_get_first(v));
    if (several && n > API_MAX_PROMPTS)
        return api_fail(p->x, 400, "invalid_value", "prompt", "\"prompt\" has %zu prompts, more than %u", n,
                        API_MAX_PROMPTS);
    q->prompts = calloc(several ? n : 1, sizeof *q->prompts);
    if (!q->prompts)
        return no_memory(p);
    q->n_prompts = several ? n : 1;
    if (!several)
        return get_prompt(p, "prompt", v, &q->prompts[0]);
    yyjson_arr_foreach(v, i, max, item)
    {
        snprintf(param, sizeof param, "prompt[%zu]", i);
        if (!get_prompt(p, param, item, &q->prompts[i]))
            return false;
    }
    return true;
}

/* --- all of it ----------------------------------------------------------------------------------- */

bool api_is_model(const struct api_limits *lim, const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    const char *own = strrchr(lim->model_name, '/');
    own = own ? own + 1 : lim->model_name;
    size_t n = strlen(base), n_own = strlen(own);
    if (n > 5 && strcasecmp(base + n - 5, ".gguf") == 0)
        n -= 5;
    if (n_own > 5 && strcasecmp(own + n_own - 5, ".gguf") == 0)
        n_own -= 5;
    if (name[0] == 0 || strcmp(name, "default") == 0 || strcasecmp(name, lim->model_name) == 0)
        return true;
    if (n > 0 && n == n_own && strncasecmp(base, own, n) == 0)
        return true;
    return strlen(name) >= 12 && strncmp(name, lim->model_id, strlen(name)) == 0;
}

static bool parse_all(struct parser *p)
{
    struct api_request *q = p->q;
    return get_model(p) && (q->chat ? get_messages(p) && get_thinking(p) : get_prompts(p)) && get_stream(p) &&
           get_lengths(p) && get_stop(p) && get_sampling(p) && (q->chat ? refuse_chat(p) : refuse_completion(p));
}

bool api_request_parse(const void *body, size_t len, bool chat, const struct api_limits *lim, struct api_request *out,
                       struct api_error *x)
{
    struct api_request q = {.chat = chat, .n = 1};
    yyjson_read_err wrong;
    if (len == 0)
        return api_fail(x, 400, "invalid_json", NULL, "the body is empty; it must be a JSON object");
    /* Not in situ: the body is not ours to change. */
    yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)body, len, YYJSON_READ_NOFLAG, NULL, &wrong);
    if (!doc)
        return api_fail(x, 400, "invalid_json", NULL, "the body is not JSON: %s at byte %zu", wrong.msg, wrong.pos);
    struct parser p = {.root = yyjson_doc_get_root(doc), .lim = lim, .q = &q, .x = x};
    q.doc = doc;
    bool ok = yyjson_is_obj(p.root) ||
              api_fail(x, 400, "invalid_json", NULL, "the body must be a JSON object, like {\"model\":\"default\"}");
    if (ok && parse_all(&p)) {
        *out = q;
        return true;
    }
    api_request_fini(&q);
    return false;
}

void api_request_drop_input(struct api_request *q)
{
    for (size_t i = 0; i < q->n_prompts; i++)
        free(q->prompts[i].ids);
    for (size_t i = 0; i < q->n_joined; i++)
        free(q->joined[i]);
    free(q->prompts);
    free(q->joined);
    free(q->messages);
    yyjson_doc_free(q->doc);
    q->prompts = NULL;
    q->joined = NULL;
    q->messages = NULL;
    q->doc = NULL;
    q->n_prompts = q->n_joined = q->n_messages = 0;
}

void api_request_fini(struct api_request *q)
{
    api_request_drop_input(q);
    for (uint32_t i = 0; i < q->n_stop; i++)
        free(q->stop[i].text);
    q->n_stop = 0;
}
