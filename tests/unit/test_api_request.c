/* SPDX-License-Identifier: MIT
 *
 * Bodies of requests: what is taken from good ones, and that each bad one is refused with a sentence about the right
 * parameter. Rows 19 and 20 of the list of faults: stop as a string, content as parts, malformed JSON, parameters that
 * are parsed and then not used, negative and huge integers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct api_limits lim = {.n_vocab = 512,
                                      .n_ctx = 256,
                                      .model_name = "Huginn-4M",
                                      .model_id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static struct api_request good(bool chat, const char *body)
{
    struct api_request q;
    struct api_error x;
    if (!api_request_parse(body, strlen(body), chat, &lim, &q, &x))
        fail_msg("%s: refused: %s", body, x.message);
    return q;
}

static void good_and_done(bool chat, const char *body)
{
    struct api_request q = good(chat, body);
    api_request_fini(&q);
}

static void bad_bytes(bool chat, const char *body, size_t len, unsigned status, const char *param, const char *says)
{
    struct api_request q;
    struct api_error x = {0};
    char before[sizeof q];
    memset(&q, 0xa5, sizeof q);
    memcpy(before, &q, sizeof q);
    if (api_request_parse(body, len, chat, &lim, &q, &x)) {
        api_request_fini(&q);
        fail_msg("%s: taken", body);
    }
    assert_memory_equal(before, &q, sizeof q);
    if (x.status != status || strcmp(x.param, param) != 0 || !strstr(x.message, says) || !x.code)
        fail_msg("%s: status %u param \"%s\" message \"%s\"; not %u, \"%s\", \"%s\"", body, x.status, x.param,
                 x.message, status, param, says);
}

static void bad(bool chat, const char *body, const char *param, const char *says)
{
    bad_bytes(chat, body, strlen(body), 400, param, says);
}

/* --- malformed ----------------------------------------------------------------------------------- */

static void test_malformed_json_says_where(void **state)
{
    (void)state;
    bad(true, "", "", "empty");
    bad(true, "{", "", "not JSON");
    bad(true, "{\"a\":1,}", "", "at byte");
    bad(true, "{\"a\" 1}", "", "at byte 5");
    bad(true, "[1", "", "not JSON");
    bad(true, "nul", "", "not JSON");
    bad(true, "{} {}", "", "at byte 3");
    bad(true, "{\"a\":NaN}", "", "not JSON");
    bad(true, "{'a':1}", "", "at byte 1");
    bad(true, "{\"a\":\"\xff\"}", "", "not JSON");
    bad(true, "{\"a\":\"\xc0\xaf\"}", "", "not JSON");
    bad(true, "{\"a\":\"\\ud800\"}", "", "not JSON");
    bad(true, "{\"a\":\"\n\"}", "", "not JSON");
    bad(true, "{\"a\":01}", "", "not JSON");
    bad(true, "/* c */{}", "", "not JSON");
    bad(true, "user=1&prompt=x", "", "not JSON");
    bad_bytes(true, "{}\0", 3, 400, "", "not JSON");
}

/* Each proper beginning of a good body is no body. */
static void test_every_cut_is_refused(void **state)
{
    static const char body[] = "{\"model\":\"default\"," HI
                               ",\"stop\":[\"a\",\"\\u00e9\"],\"n\":2,\"logit_bias\":{\"5\":-1.5e1},\"stream\":true}";
    (void)state;
    good_and_done(true, body);
    for (size_t n = 0; n + 1 < sizeof body; n++)
        bad_bytes(true, body, n, 400, "", n ? "not JSON" : "empty");
}

static void test_root_is_an_object(void **state)
{
    static const char *const roots[] = {"[]", "1", "-1", "1.5", "\"x\"", "true", "null", "[{}]"};
    (void)state;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        bad(true, roots[i], "", "must be a JSON object");
        bad(false, roots[i], "", "must be a JSON object");
    }
}

static void test_deep_nesting_does_no_harm(void **state)
{
    size_t n = 200000;
    char *deep = malloc(2 * n + 64);
    (void)state;
    assert_non_null(deep);
    size_t at = (size_t)snprintf(deep, 64, "{\"x\":");
    memset(deep + at, '[', n);
    bad_bytes(true, deep, at + n, 400, "", "not JSON");
    memset(deep + at + n, ']', n);
    deep[at + 2 * n] = '}';
    bad_bytes(true, deep, at + 2 * n + 1, 400, "messages", "must be a list");
    free(deep);
}

/* --- every parameter, every wrong type ----------------------------------------------------------- */

static const char *const values[] = {"null",  "true", "false", "7",   "-7", "0.5",      "1e300",
                                     "\"x\"", "\"\"", "[]",    "[1]", "{}", "{\"x\":1}"};

/* Which of `values` a parameter takes, as a string of y and n. */
struct takes {
    const char *param, *which;
};

static void try_all(bool chat, const char *rest, const struct takes *t, size_t n)
{
    char body[512];
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(strlen(t[i].which), sizeof values / sizeof *values);
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            struct api_request q;
            struct api_error x;
            snprintf(body, sizeof body, "{%s,\"%s\":%s}", rest, t[i].param, values[k]);
            bool ok = api_request_parse(body, strlen(body), chat, &lim, &q, &x);
            if (ok)
                api_request_fini(&q);
            if (ok != (t[i].which[k] == 'y'))
                fail_msg("%s: %s %s", body, ok ? "taken" : "refused:", ok ? "" : x.message);
            if (!ok && strncmp(x.param, t[i].param, strlen(t[i].param)) != 0)
                fail_msg("%s: blamed \"%s\"", body, x.param);
            if (!ok && (!strstr(x.message, x.param) || x.status != (strcmp(t[i].param, "model") ? 400 : x.status)))
                fail_msg("%s: \"%s\" does not name the parameter", body, x.message);
        }
    }
}

/*                                         null true false 7 -7 0.5 1e300 "x" "" [] [1] {} {"x":1} */
static const struct takes both[] = {
    {"stream", "yyynnnnnnnnnn"},
    {"stream_options", "ynnnnnnnnnnyy"},
    {"stop", "ynnnnnnynynnn"},
    {"seed", "ynnyynnnnnnnn"},
    {"temperature", "ynnnnynnnnnnn"},
    {"top_p", "ynnnnynnnnnnn"},
    {"min_p", "ynnnnynnnnnnn"},
    {"top_k", "ynnynnnnnnnnn"},
    {"presence_penalty", "ynnnnynnnnnnn"},
    {"frequency_penalty", "ynnnnynnnnnnn"},
    {"repeat_penalty", "ynnynynnnnnnn"},
    {"repeat_last_n", "ynnynnnnnnnnn"},
    {"logit_bias", "ynnnnnnnnnnyn"},
    {"max_tokens", "ynnynnnnnnnnn"},
    {"max_completion_tokens", "ynnynnnnnnnnn"},
    {"n", "ynnynnnnnnnnn"},
    {"response_format", "ynnnnnnnnnnnn"},
    {"model", "ynnnnnnnynnnn"},
    {"user", "yyyyyyyyyyyyy"},
    {"metadata", "yyyyyyyyyyyyy"},
    {"store", "yyyyyyyyyyyyy"},
    {"service_tier", "yyyyyyyyyyyyy"},
    {"never_heard_of", "yyyyyyyyyyyyy"},
};

static void test_wrong_types_are_refused(void **state)
{
    (void)state;
    try_all(true, HI, both, sizeof both / sizeof *both);
    try_all(false, "\"prompt\":\"hi\"", both, sizeof both / sizeof *both);
}

static void test_wrong_types_of_chats(void **state)
{
    static const struct takes chat[] = {
        {"logprobs", "yyynnnnnnnnnn"},    {"top_logprobs", "ynnnnnnnnnnnn"}, {"tools", "ynyyyyynnynnn"},
        {"modalities", "ynnnnnnnnynnn"},  {"audio", "ynynnnnnnynnn"},        {"chat_template_kwargs", "ynnnnnnnnnnyy"},
        {"tool_choice", "ynnnnnnnnnnnn"}, {"functions", "ynynnnnnnynnn"},
    };
    (void)state;
    /* Numbers and texts ask for something as well. */
    struct takes t[sizeof chat / sizeof *chat];
    memcpy(t, chat, sizeof chat);
    t[2].which = "ynynnnnnnynnn";
    try_all(true, HI, t, sizeof t / sizeof *t);
}

static void test_wrong_types_of_completions(void **state)
{
    static const struct takes completion[] = {
        {"logprobs", "ynnynnnnnnnnn"},
        {"echo", "ynynnnnnnnnnn"},
        {"best_of", "ynnnnnnnnnnnn"},
        {"suffix", "ynnnnnnnynnnn"},
    };
    (void)state;
    try_all(false, "\"prompt\":\"hi\"", completion, sizeof completion / sizeof *completion);
    static const struct takes prompt[] = {{"prompt", "nnnnnnnyynynn"}};
    try_all(false, "\"n\":1", prompt, 1);
    static const struct takes messages[] = {{"messages", "nnnnnnnnnnnnn"}};
    try_all(true, "\"n\":1", messages, 1);
}

/* --- ranges -------------------------------------------------------------------------------------- */

static void test_fault20_integers_out_of_range(void **state)
{
    static const char *const params[] = {"max_tokens", "max_completion_tokens", "n"};
    static const char *const wrong[] = {"0",    "-1",    "-9223372036854775808",       "-9223372036854775809", "1.5",
                                        "-0.0", "1e400", "99999999999999999999999999", "18446744073709551616"};
    char body[256];
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            if (strcmp(wrong[k], "1e400") == 0)
                continue; /* no JSON number for yyjson: see below */
            snprintf(body, sizeof body, "{" HI ",\"%s\":%s}", params[i], wrong[k]);
            bad(true, body, params[i], "whole number");
        }
    }
    bad(true, "{" HI ",\"max_tokens\":1e400}", "", "not JSON");
    bad(true, "{" HI ",\"n\":17}", "n", "from 1 to 16");
    bad(true, "{" HI ",\"n\":-2}", "n", "not -2");
    bad(true, "{" HI ",\"top_k\":-2}", "top_k", "from -1");
    bad(true, "{" HI ",\"top_k\":2147483648}", "top_k", "from -1");
    bad(true, "{" HI ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs", "from 0 to 20");
    bad(true, "{" HI ",\"logprobs\":true,\"top_logprobs\":-1}", "top_logprobs", "from 0 to 20");
    bad(true, "{" HI ",\"seed\":18446744073709551616}", "seed", "64 bits");
    bad(true, "{" HI ",\"seed\":-9223372036854775809}", "seed", "64 bits");
    bad(true, "{" HI ",\"seed\":0.5}", "seed", "64 bits");
}

static void test_large_numbers_that_are_fine(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"max_tokens\":9223372036854775807,\"seed\":-9223372036854775808}");
    assert_int_equal(q.max_tokens, INT64_MAX);
    assert_int_equal(q.sampling.seed, (uint64_t)INT64_MIN);
    api_request_fini(&q);
    q = good(true, "{" HI ",\"max_tokens\":1e3,\"seed\":18446744073709551615,\"n\":2.0,\"top_k\":2147483647}");
    assert_int_equal(q.max_tokens, 1000);
    assert_int_equal(q.sampling.seed, UINT64_MAX);
    assert_int_equal(q.n, 2);
    assert_int_equal(q.sampling.top_k, INT32_MAX);
    api_request_fini(&q);
}

static void test_numbers_out_of_range(void **state)
{
    static const struct {
        const char *param, *low, *high, *wanted;
    } t[] = {{"temperature", "-0.01", "2.01", "from 0 to 2"},
             {"top_p", "-0.01", "1.01", "from 0 to 1"},
             {"min_p", "-0.01", "1.01", "from 0 to 1"},
             {"presence_penalty", "-2.01", "2.01", "from -2 to 2"},
             {"frequency_penalty", "-2.01", "2.01", "from -2 to 2"},
             {"repeat_penalty", "0", "10.1", "from 0.01 to 10"}};
    char body[256];
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        snprintf(body, sizeof body, "{" HI ",\"%s\":%s}", t[i].param, t[i].low);
        bad(true, body, t[i].param, t[i].wanted);
        snprintf(body, sizeof body, "{" HI ",\"%s\":%s}", t[i].param, t[i].high);
        bad(true, body, t[i].param, t[i].wanted);
        snprintf(body, sizeof body, "{" HI ",\"%s\":\"hot\"}", t[i].param);
        bad(true, body, t[i].param, "not the string \"hot\"");
    }
}

/* --- sampling ------------------------------------------------------------------------------------ */

static void test_fault20_sampling_parameters_arrive(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"temperature\":0.25,\"top_p\":0.5,\"min_p\":0.125,\"top_k\":9,"
                                      "\"presence_penalty\":-1.5,\"frequency_penalty\":1.25,\"repeat_penalty\":1.5,"
                                      "\"repeat_last_n\":-1,\"seed\":77,\"max_tokens\":5,\"n\":3,\"stream\":true}");
    const struct batch_sampling *s = &q.sampling;
    assert_true(s->temperature == 0.25f && s->top_p == 0.5f && s->min_p == 0.125f && s->top_k == 9);
    assert_true(s->presence_penalty == -1.5f && s->frequency_penalty == 1.25f && s->repeat_penalty == 1.5f);
    assert_int_equal(s->penalty_last_n, 256);
    assert_int_equal(s->seed, 77);
    assert_true(q.seeded && q.stream && q.n == 3 && q.max_tokens == 5);
    api_request_fini(&q);
}

static void test_defaults(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI "}");
    const struct batch_sampling *s = &q.sampling;
    assert_true(s->temperature == 1 && s->top_p == 1 && s->min_p == 0 && s->top_k == 0 && s->repeat_penalty == 1);
    assert_true(s->presence_penalty == 0 && s->frequency_penalty == 0 && s->n_bias == 0 && s->n_top == 0);
    assert_true(!q.seeded && !q.stream && !q.include_usage && !q.logprobs && q.n == 1 && q.max_tokens == 0);
    assert_int_equal(q.think, CHAT_THINK_DEFAULT);
    api_request_fini(&q);
}

static void test_top_p_0_is_the_likeliest(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"top_p\":0}");
    assert_true(q.sampling.top_p > 0 && q.sampling.top_p < 1e-5f);
    api_request_fini(&q);
}

static void test_newer_name_of_max_tokens_wins(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"max_tokens\":5,\"max_completion_tokens\":6}");
    assert_int_equal(q.max_tokens, 6);
    api_request_fini(&q);
}

static void test_logit_bias(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"logit_bias\":{\"0\":-100,\"511\":100,\"7\":-0.5}}");
    assert_int_equal(q.sampling.n_bias, 3);
    assert_true(isinf(q.sampling.bias[0].bias) && q.sampling.bias[0].bias < 0);
    assert_true(q.sampling.bias[1].token == 511 && q.sampling.bias[1].bias == 100);
    assert_true(q.sampling.bias[2].token == 7 && q.sampling.bias[2].bias == -0.5f);
    api_request_fini(&q);
    bad(true, "{" HI ",\"logit_bias\":{\"512\":1}}", "logit_bias", "from 0 to 511");
    bad(true, "{" HI ",\"logit_bias\":{\"-1\":1}}", "logit_bias", "\"-1\"");
    bad(true, "{" HI ",\"logit_bias\":{\"\":1}}", "logit_bias", "token ids");
    bad(true, "{" HI ",\"logit_bias\":{\"1.0\":1}}", "logit_bias", "token ids");
    bad(true, "{" HI ",\"logit_bias\":{\"1\\u0000\":1}}", "logit_bias", "token ids");
    bad(true, "{" HI ",\"logit_bias\":{\"5\":101}}", "logit_bias.5", "from -100 to 100");
    bad(true, "{" HI ",\"logit_bias\":{\"5\":\"1\"}}", "logit_bias.5", "not the string");
    bad(true, "{" HI ",\"logit_bias\":{\"5\":null}}", "logit_bias.5", "not null");
}

static void test_too_many_biases(void **state)
{
    struct buf b = {0};
    (void)state;
    buf_puts(&b, "{" HI ",\"logit_bias\":{");
    for (uint32_t i = 0; i < BATCH_MAX_BIAS; i++)
        buf_printf(&b, "%s\"%u\":1", i ? "," : "", i);
    size_t full = b.len;
    buf_puts(&b, "}}");
    good_and_done(true, buf_str(&b));
    b.len = full;
    buf_puts(&b, ",\"500\":1}}");
    bad(true, buf_str(&b), "logit_bias", "129 tokens");
    buf_free(&b);
}

static void test_logprobs(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"logprobs\":true,\"top_logprobs\":20}");
    assert_true(q.logprobs && q.sampling.n_top == 20);
    api_request_fini(&q);
    q = good(true, "{" HI ",\"logprobs\":true}");
    assert_true(q.logprobs && q.sampling.n_top == 0);
    api_request_fini(&q);
    q = good(true, "{" HI ",\"logprobs\":false,\"top_logprobs\":0}");
    assert_true(!q.logprobs);
    api_request_fini(&q);
    bad(true, "{" HI ",\"top_logprobs\":2}", "top_logprobs", "needs");
    q = good(false, "{\"prompt\":\"a\",\"logprobs\":0}");
    assert_true(q.logprobs && q.sampling.n_top == 0);
    api_request_fini(&q);
    q = good(false, "{\"prompt\":\"a\",\"logprobs\":5}");
    assert_true(q.logprobs && q.sampling.n_top == 5);
    api_request_fini(&q);
    bad(false, "{\"prompt\":\"a\",\"logprobs\":true}", "logprobs", "whole number");
}

/* --- stop ---------------------------------------------------------------------------------------- */

static void test_fault19_stop_is_a_string_or_a_list(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"stop\":\"END\\u0000x\"}");
    assert_int_equal(q.n_stop, 1);
    assert_int_equal(q.stop[0].len, 5);
    assert_memory_equal(q.stop[0].text, "END\0x", 5);
    api_request_fini(&q);
    q = good(true, "{" HI ",\"stop\":[\"a\",\"bc\"]}");
    assert_true(q.n_stop == 2 && q.stop[1].len == 2);
    api_request_drop_input(&q);
    assert_memory_equal(q.stop[1].text, "bc", 2);
    api_request_fini(&q);
    bad(true, "{" HI ",\"stop\":\"\"}", "stop", "empty");
    bad(true, "{" HI ",\"stop\":[\"a\",\"\"]}", "stop[1]", "empty");
    bad(true, "{" HI ",\"stop\":[\"a\",1]}", "stop[1]", "a string");
    bad(true, "{" HI ",\"stop\":[[\"a\"]]}", "stop[0]", "a string");
    bad(true,
        "{" HI ",\"stop\":[\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\","
        "\"1\",\"1\",\"1\"]}",
        "stop", "17 strings");
}

static void test_stop_has_a_length(void **state)
{
    struct buf b = {0};
    (void)state;
    buf_puts(&b, "{" HI ",\"stop\":\"");
    for (uint32_t i = 0; i < API_MAX_STOP_LEN; i++)
        buf_put_u8(&b, 'x');
    size_t full = b.len;
    buf_puts(&b, "\"}");
    good_and_done(true, buf_str(&b));
    b.len = full;
    buf_puts(&b, "x\"}");
    bad(true, buf_str(&b), "stop", "1025 bytes");
    buf_free(&b);
}

/* --- messages ------------------------------------------------------------------------------------ */

static void test_messages(void **state)
{
    (void)state;
    struct api_request q =
        good(true, "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"developer\",\"content\":\"d\"},"
                   "{\"role\":\"user\",\"content\":\"\",\"name\":\"x\"},{\"role\":\"assistant\",\"content\":null},"
                   "{\"role\":\"tool\",\"content\":\"t\\u0000u\",\"tool_call_id\":\"1\"}]}");
    static const enum chat_role roles[] = {CHAT_SYSTEM, CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL};
    assert_int_equal(q.n_messages, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(q.messages[i].role, roles[i]);
    assert_int_equal(q.messages[2].len, 0);
    assert_int_equal(q.messages[3].len, 0);
    assert_int_equal(q.messages[4].len, 3);
    api_request_fini(&q);
}

static void test_fault19_content_is_a_list_of_parts(void **state)
{
    (void)state;
    struct api_request q =
        good(true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                   "{\"type\":\"text\",\"text\":\"b\\u00e9\"}]},{\"role\":\"user\",\"content\":[]}]}");
    assert_int_equal(q.messages[0].len, 4);
    assert_memory_equal(q.messages[0].content, "ab\xc3\xa9", 4);
    assert_int_equal(q.messages[1].len, 0);
    api_request_fini(&q);
#define PART(p) "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}," p "]}]}"
    bad(true, PART("{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}"), "messages[0].content[1]",
        "image_url");
    bad(true, PART("{\"type\":\"input_audio\"}"), "messages[0].content[1]", "only parts of type \"text\"");
    bad(true, PART("{\"type\":7}"), "messages[0].content[1]", "only parts");
    bad(true, PART("{\"type\":\"text\"}"), "messages[0].content[1].text", "a string, not null");
    bad(true, PART("{\"type\":\"text\",\"text\":[]}"), "messages[0].content[1].text", "not a list");
    bad(true, PART("{}"), "messages[0].content[1].text", "a string");
    bad(true, PART("7"), "messages[0].content[1]", "not 7");
    bad(true, PART("null"), "messages[0].content[1]", "not null");
    bad(true, PART("[]"), "messages[0].content[1]", "not a list");
#undef PART
}

static void test_bad_messages(void **state)
{
    (void)state;
    bad(true, "{}", "messages", "a list of at least one message, not null");
    bad(true, "{\"messages\":[]}", "messages", "a list of 0");
    bad(true, "{\"messages\":\"hi\"}", "messages", "the string \"hi\"");
    bad(true, "{\"messages\":{\"role\":\"user\"}}", "messages", "an object");
    bad(true, "{\"messages\":[\"hi\"]}", "messages[0]", "an object");
    bad(true, "{\"messages\":[null]}", "messages[0]", "not null");
    bad(true, "{\"messages\":[{}]}", "messages[0].role", "not null");
    bad(true, "{\"messages\":[{\"role\":1,\"content\":\"\"}]}", "messages[0].role", "not 1");
    bad(true, "{\"messages\":[{\"role\":\"bard\",\"content\":\"\"}]}", "messages[0].role", "\"bard\"");
    bad(true, "{\"messages\":[{\"role\":\"USER\",\"content\":\"\"}]}", "messages[0].role", "\"USER\"");
    bad(true, "{\"messages\":[{\"role\":\"user\\u0000\",\"content\":\"\"}]}", "messages[0].role", "must be");
    bad(true, "{\"messages\":[{\"role\":\"function\",\"content\":\"\"}]}", "messages[0].role", "function");
    bad(true, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "not null");
    bad(true, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages[0].content", "not null");
    bad(true, "{\"messages\":[{\"role\":\"assistant\"}]}", "messages[0].content", "not null");
    bad(true, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content", "not 7");
    bad(true, "{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "messages[0].content", "an object");
}

/* --- prompts ------------------------------------------------------------------------------------- */

static void test_prompts(void **state)
{
    (void)state;
    struct api_request q = good(false, "{\"prompt\":\"a\\u0000b\"}");
    assert_true(q.n_prompts == 1 && q.prompts[0].len == 3 && q.prompts[0].text);
    api_request_fini(&q);
    q = good(false, "{\"prompt\":[\"a\",\"bc\"]}");
    assert_true(q.n_prompts == 2 && q.prompts[1].len == 2);
    api_request_fini(&q);
    q = good(false, "{\"prompt\":[1,0,511,3.0]}");
    assert_true(q.n_prompts == 1 && q.prompts[0].len == 4 && !q.prompts[0].text);
    assert_int_equal(q.prompts[0].ids[2], 511);
    assert_int_equal(q.prompts[0].ids[3], 3);
    api_request_fini(&q);
    q = good(false, "{\"prompt\":[[1],[2,3]]}");
    assert_true(q.n_prompts == 2 && q.prompts[1].len == 2 && q.prompts[1].ids[1] == 3);
    api_request_fini(&q);
}

static void test_bad_prompts(void **state)
{
    struct buf b = {0};
    (void)state;
    bad(false, "{}", "prompt", "not null");
    bad(false, "{\"prompt\":null}", "prompt", "not null");
    bad(false, "{\"prompt\":[]}", "prompt", "a list of 0");
    bad(false, "{\"prompt\":{}}", "prompt", "an object");
    bad(false, "{\"prompt\":7}", "prompt", "not 7");
    bad(false, "{\"prompt\":[512]}", "prompt[0]", "from 0 to 511, not 512");
    bad(false, "{\"prompt\":[1,-1]}", "prompt[1]", "not -1");
    bad(false, "{\"prompt\":[1,1.5]}", "prompt[1]", "not 1.5");
    bad(false, "{\"prompt\":[1,4294967297]}", "prompt[1]", "not 4294967297");
    bad(false, "{\"prompt\":[1,\"a\"]}", "prompt[1]", "the string \"a\"");
    bad(false, "{\"prompt\":[\"a\",1]}", "prompt[1]", "not 1");
    bad(false, "{\"prompt\":[\"a\",null]}", "prompt[1]", "not null");
    bad(false, "{\"prompt\":[[1],[]]}", "prompt[1]", "a list of 0");
    bad(false, "{\"prompt\":[[1],[[2]]]}", "prompt[1][0]", "a list of 1");
    buf_puts(&b, "{\"prompt\":[\"a\"");
    for (int i = 0; i < 64; i++)
        buf_puts(&b, ",\"a\"");
    buf_puts(&b, "]}");
    bad(false, buf_str(&b), "prompt", "65 prompts");
    buf_free(&b);
}

/* --- what cannot be done ------------------------------------------------------------------------- */

static void test_what_is_not_supported_says_so(void **state)
{
    (void)state;
    bad(true, "{" HI ",\"tools\":[{\"type\":\"function\"}]}", "tools", "not supported");
    bad(true, "{" HI ",\"functions\":[{}]}", "functions", "not supported");
    bad(true, "{" HI ",\"tool_choice\":\"required\"}", "tool_choice", "not supported");
    bad(true, "{" HI ",\"tool_choice\":{\"type\":\"function\"}}", "tool_choice", "not supported");
    bad(true, "{" HI ",\"function_call\":{\"name\":\"f\"}}", "function_call", "not supported");
    bad(true, "{" HI ",\"response_format\":{\"type\":\"json_object\"}}", "response_format", "not supported");
    bad(true, "{" HI ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format", "not supported");
    bad(true, "{" HI ",\"modalities\":[\"text\",\"audio\"]}", "modalities", "not supported");
    bad(true, "{" HI ",\"audio\":{\"voice\":\"x\"}}", "audio", "not supported");
    bad(true, "{" HI ",\"prediction\":{\"type\":\"content\"}}", "prediction", "not supported");
    bad(true, "{" HI ",\"web_search_options\":{}}", "web_search_options", "not supported");
    bad(true, "{" HI ",\"grammar\":\"root ::= x\"}", "grammar", "not supported");
    bad(true, "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}]}", "messages[0]", "tools");
    bad(false, "{\"prompt\":\"a\",\"echo\":true}", "echo", "not supported");
    bad(false, "{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix", "not supported");
    bad(false, "{\"prompt\":\"a\",\"best_of\":2}", "best_of", "not supported");
    bad(false, "{\"prompt\":\"a\",\"n\":2,\"best_of\":3}", "best_of", "not supported");
    bad(false, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}", "response_format", "not supported");
}

static void test_what_asks_for_nothing_is_fine(void **state)
{
    (void)state;
    good_and_done(true, "{" HI ",\"tools\":[],\"functions\":[],\"tool_choice\":\"none\",\"function_call\":\"auto\","
                        "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],\"audio\":null,"
                        "\"parallel_tool_calls\":true,\"reasoning_effort\":\"low\",\"user\":\"u\",\"metadata\":{},"
                        "\"store\":false,\"extra\":[[1]]}");
    good_and_done(false, "{\"prompt\":\"a\",\"echo\":false,\"suffix\":null,\"n\":2,\"best_of\":2}");
    good_and_done(true, "{" HI ",\"stop\":null,\"stream\":null,\"stream_options\":null,\"n\":null,\"logit_bias\":null,"
                        "\"max_tokens\":null,\"seed\":null,\"temperature\":null,\"model\":null}");
}

static void test_stream_options(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    assert_true(q.include_usage);
    api_request_fini(&q);
    good_and_done(true, "{" HI ",\"stream_options\":{\"include_usage\":null,\"other\":1}}");
    bad(true, "{" HI ",\"stream_options\":{\"include_usage\":1}}", "stream_options.include_usage", "true or false");
    bad(true, "{" HI ",\"stream_options\":{\"include_usage\":\"yes\"}}", "stream_options.include_usage", "\"yes\"");
}

static void test_thinking(void **state)
{
    (void)state;
    struct api_request q = good(true, "{" HI ",\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    assert_int_equal(q.think, CHAT_THINK_OFF);
    api_request_fini(&q);
    q = good(true, "{" HI ",\"chat_template_kwargs\":{\"enable_thinking\":true,\"x\":1}}");
    assert_int_equal(q.think, CHAT_THINK_ON);
    api_request_fini(&q);
    bad(true, "{" HI ",\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}}", "chat_template_kwargs.enable_thinking",
        "\"no\"");
}

/* --- the model's name ---------------------------------------------------------------------------- */

static void test_names_of_the_model(void **state)
{
    static const char *const names[] = {"Huginn-4M",
                                        "huginn-4m",
                                        "default",
                                        "",
                                        "models/x/Huginn-4M.gguf",
                                        "huginn-4m.GGUF",
                                        "0123456789ab",
                                        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};
    char body[256];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(body, sizeof body, "{" HI ",\"model\":\"%s\"}", names[i]);
        good_and_done(true, body);
    }
}

static void test_another_model_is_not_found(void **state)
{
    static const char *const names[] = {"gpt-4o",      "Huginn",       "Huginn-4M2", ".gguf",
                                        "0123456789a", "0123456789ac", "x/",         "\xc3\xa9"};
    char body[256];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(body, sizeof body, "{" HI ",\"model\":\"%s\"}", names[i]);
        bad_bytes(true, body, strlen(body), 404, "model", "this ring serves \"Huginn-4M\"");
    }
}

/* --- errors -------------------------------------------------------------------------------------- */

static void test_errors_are_json_whatever_is_in_them(void **state)
{
    struct api_error x;
    struct buf out = {0};
    (void)state;
    api_fail(&x, 400, "c", "p\"\x01", "a \"quote\", a\nline, \xff and \xc3");
    api_error_put(&out, &x);
    assert_string_equal(buf_str(&out), "{\"message\":\"a \\\"quote\\\", a?line, ? and ?\",\"type\":"
                                       "\"invalid_request_error\",\"param\":\"p\\\"?\",\"code\":\"c\"}");
    buf_clear(&out);
    api_fail(&x, 429, NULL, NULL, "%0600d", 1);
    api_error_put(&out, &x);
    assert_non_null(strstr(buf_str(&out), "\"type\":\"rate_limit_error\",\"param\":null,\"code\":null}"));
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_json_says_where),
        cmocka_unit_test(test_every_cut_is_refused),
        cmocka_unit_test(test_root_is_an_object),
        cmocka_unit_test(test_deep_nesting_does_no_harm),
        cmocka_unit_test(test_wrong_types_are_refused),
        cmocka_unit_test(test_wrong_types_of_chats),
        cmocka_unit_test(test_wrong_types_of_completions),
        cmocka_unit_test(test_fault20_integers_out_of_range),
        cmocka_unit_test(test_large_numbers_that_are_fine),
        cmocka_unit_test(test_numbers_out_of_range),
        cmocka_unit_test(test_fault20_sampling_parameters_arrive),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_top_p_0_is_the_likeliest),
        cmocka_unit_test(test_newer_name_of_max_tokens_wins),
        cmocka_unit_test(test_logit_bias),
        cmocka_unit_test(test_too_many_biases),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_fault19_stop_is_a_string_or_a_list),
        cmocka_unit_test(test_stop_has_a_length),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_fault19_content_is_a_list_of_parts),
        cmocka_unit_test(test_bad_messages),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_bad_prompts),
        cmocka_unit_test(test_what_is_not_supported_says_so),
        cmocka_unit_test(test_what_asks_for_nothing_is_fine),
        cmocka_unit_test(test_stream_options),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_names_of_the_model),
        cmocka_unit_test(test_another_model_is_not_found),
        cmocka_unit_test(test_errors_are_json_whatever_is_in_them),
    };
    return cmocka_run_group_tests_name("request", tests, NULL, NULL);
}
