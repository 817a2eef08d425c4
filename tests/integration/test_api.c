/* SPDX-License-Identifier: MIT
 *
 * The API over real HTTP, around real rings: texts are the reference's, whole or streamed, at every entry node; stop
 * strings, choices, seeds, biases, log probabilities; many at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/text.h"
#include "lib/api_rig.h"
#include "lib/golden_json.h"
#include "lib/test_util.h"
#include "lib/web.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#define MODEL "llama-tied-f32"
#define CHAT                                                                                                           \
    "\"messages\":[{\"role\":\"system\",\"content\":\"You are a small test model.\"},"                                 \
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Tell me a story about a small ship.\"}]}]"

static struct api_rig *rig; /* three ranks, five slots */
static struct golden_json gold;

static const struct golden_text *reference(const char *name)
{
    for (size_t i = 0; i < gold.n_cases; i++) {
        if (strcmp(gold.cases[i].name, name) == 0)
            return &gold.cases[i];
    }
    fail_msg("no case %s", name);
    return NULL;
}

/* The reference's answer to CHAT: a text of its own, so without the space that begins it. */
static const char *chat_text(void)
{
    static char text[512];
    const struct golden_bytes *b = &reference("chat")->greedy_text;
    snprintf(text, sizeof text, "%.*s", (int)b->len, b->data);
    return text[0] == ' ' ? text + 1 : text;
}

static uint16_t port_of(uint32_t rank)
{
    return api_rig_port(rig, rank);
}

/* --- asking -------------------------------------------------------------------------------------- */

static yyjson_doc *post(uint32_t rank, const char *path, const char *body)
{
    struct web w;
    if (!web_call(&w, port_of(rank), "POST", path, NULL, body) || w.status != 200)
        fail_msg("%s at rank %u: status %u: %s", body, rank, w.status, web_body(&w));
    yyjson_doc *d = yyjson_read(web_body(&w), w.body.len, 0);
    if (!d)
        fail_msg("no JSON: %s", web_body(&w));
    web_free(&w);
    return d;
}

static yyjson_doc *chat(uint32_t rank, const char *more)
{
    char body[1024];
    snprintf(body, sizeof body, "{\"model\":\"default\"," CHAT "%s}", more);
    return post(rank, "/v1/chat/completions", body);
}

static yyjson_val *at(yyjson_doc *d, const char *pointer)
{
    yyjson_val *v = yyjson_doc_ptr_get(d, pointer);
    if (!v)
        fail_msg("nothing at %s of %s", pointer, yyjson_write(d, 0, NULL));
    return v;
}

static const char *str(yyjson_doc *d, const char *pointer)
{
    return yyjson_get_str(at(d, pointer));
}

/* --- streams ------------------------------------------------------------------------------------- */

struct streamed {
    char text[8][2048]; /* by index */
    char finish[8][16];
    unsigned n_chunks, n_roles, n_usage, n_done, n_errors;
    uint64_t usage_tokens;
    char error[256];
};

static void take_event(struct streamed *s, const char *data, size_t len)
{
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        s->n_done++;
        return;
    }
    yyjson_doc *d = yyjson_read(data, len, 0);
    if (!d)
        fail_msg("an event is no JSON: %.*s", (int)len, data);
    assert_int_equal(s->n_done, 0);
    s->n_chunks++;
    yyjson_val *root = yyjson_doc_get_root(d), *usage = yyjson_obj_get(root, "usage"), *c;
    if (yyjson_obj_get(root, "error")) {
        s->n_errors++;
        snprintf(s->error, sizeof s->error, "%s", str(d, "/error/message"));
    }
    if (yyjson_is_obj(usage)) {
        s->n_usage++;
        s->usage_tokens = yyjson_get_uint(yyjson_obj_get(usage, "completion_tokens"));
        assert_int_equal(yyjson_arr_size(yyjson_obj_get(root, "choices")), 0);
    }
    size_t i, max;
    yyjson_arr_foreach(yyjson_obj_get(root, "choices"), i, max, c)
    {
        uint64_t k = yyjson_get_uint(yyjson_obj_get(c, "index"));
        yyjson_val *delta = yyjson_obj_get(c, "delta"), *finish = yyjson_obj_get(c, "finish_reason");
        const char *text = yyjson_get_str(yyjson_obj_get(delta ? delta : c, delta ? "content" : "text"));
        assert_true(k < 8 && s->finish[k][0] == 0);
        if (yyjson_obj_get(delta, "role"))
            s->n_roles++;
        if (text)
            strncat(s->text[k], text, sizeof s->text[k] - strlen(s->text[k]) - 1);
        if (yyjson_is_str(finish))
            snprintf(s->finish[k], sizeof s->finish[k], "%s", yyjson_get_str(finish));
    }
    yyjson_doc_free(d);
}

static void take_stream(struct web *w, struct streamed *s)
{
    *s = (struct streamed){0};
    if (w->status != 200)
        fail_msg("status %u: %s", w->status, web_body(w));
    assert_string_equal(web_header(w, "content-type"), "text/event-stream; charset=utf-8");
    const char *p = web_body(w), *end;
    while (*p) {
        if (p[0] == ':') { /* a comment */
            p = strstr(p, "\n\n") + 2;
            continue;
        }
        assert_memory_equal(p, "data: ", 6);
        assert_non_null(end = strstr(p, "\n\n"));
        take_event(s, p + 6, (size_t)(end - p) - 6);
        p = end + 2;
    }
}

static void stream(uint32_t rank, const char *path, const char *body, struct streamed *s)
{
    struct web w;
    if (!web_call(&w, port_of(rank), "POST", path, NULL, body))
        fail_msg("%s: no whole answer", body);
    take_stream(&w, s);
    web_free(&w);
}

static void stream_chat(uint32_t rank, const char *more, struct streamed *s)
{
    char body[1024];
    snprintf(body, sizeof body, "{" CHAT ",\"stream\":true%s}", more);
    stream(rank, "/v1/chat/completions", body, s);
}

/* --- golden texts -------------------------------------------------------------------------------- */

static void test_chat_is_the_references(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++) {
        yyjson_doc *d = chat(rank, ",\"temperature\":0,\"max_tokens\":48");
        assert_string_equal(str(d, "/choices/0/message/content"), chat_text());
        assert_string_equal(str(d, "/choices/0/message/role"), "assistant");
        assert_string_equal(str(d, "/choices/0/finish_reason"), "length");
        assert_string_equal(str(d, "/object"), "chat.completion");
        assert_string_equal(str(d, "/model"), "tiny");
        assert_memory_equal(str(d, "/id"), "chatcmpl-", 9);
        assert_int_equal(yyjson_get_int(at(d, "/choices/0/index")), 0);
        assert_int_equal(yyjson_get_int(at(d, "/usage/prompt_tokens")), reference("chat")->ids.n);
        assert_int_equal(yyjson_get_int(at(d, "/usage/completion_tokens")), 48);
        assert_int_equal(yyjson_get_int(at(d, "/usage/total_tokens")), reference("chat")->ids.n + 48);
        yyjson_doc_free(d);
    }
}

/* The prompt as text and as ids. */
static void test_completion_is_the_references(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        const struct golden_text *g = reference(k ? "long" : "short");
        struct buf body = {0};
        for (int as_ids = 0; as_ids < 2; as_ids++) {
            char want[512];
            buf_clear(&body);
            buf_puts(&body, "{\"temperature\":0,\"max_tokens\":48,\"prompt\":");
            if (!as_ids)
                text_put_json(&body, g->text.data, g->text.len);
            for (size_t i = 0; as_ids && i < g->ids.n; i++)
                buf_printf(&body, i ? ",%d" : "[%d", g->ids.id[i]);
            buf_puts(&body, as_ids ? "]}" : "}");
            yyjson_doc *d = post(k, "/v1/completions", buf_str(&body));
            snprintf(want, sizeof want, "%.*s", (int)g->greedy_text.len, g->greedy_text.data);
            assert_string_equal(str(d, "/choices/0/text"), want);
            assert_int_equal(yyjson_get_int(at(d, "/usage/prompt_tokens")), g->ids.n);
            yyjson_doc_free(d);
        }
        buf_free(&body);
    }
}

static void test_prompts_become_choices_in_order(void **state)
{
    (void)state;
    const char *const bodies[] = {"{\"prompt\":\"Once\",\"max_tokens\":6,\"temperature\":0}",
                                  "{\"prompt\":\"The ship\",\"max_tokens\":6,\"temperature\":0}"};
    yyjson_doc *both =
        post(1, "/v1/completions", "{\"prompt\":[\"Once\",\"The ship\"],\"n\":2,\"max_tokens\":6,\"temperature\":0}");
    assert_int_equal(yyjson_arr_size(at(both, "/choices")), 4);
    for (int i = 0; i < 4; i++) {
        char pointer[64];
        yyjson_doc *one = post(2, "/v1/completions", bodies[i / 2]);
        snprintf(pointer, sizeof pointer, "/choices/%d/index", i);
        assert_int_equal(yyjson_get_int(at(both, pointer)), i);
        snprintf(pointer, sizeof pointer, "/choices/%d/text", i);
        assert_string_equal(str(both, pointer), str(one, "/choices/0/text"));
        yyjson_doc_free(one);
    }
    assert_int_equal(yyjson_get_int(at(both, "/usage/completion_tokens")), 24);
    yyjson_doc_free(both);
}

static void test_streamed_is_not_streamed(void **state)
{
    struct streamed s;
    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++) {
        stream_chat(rank, ",\"temperature\":0,\"max_tokens\":48,\"stream_options\":{\"include_usage\":true}", &s);
        assert_string_equal(s.text[0], chat_text());
        assert_string_equal(s.finish[0], "length");
        assert_true(s.n_roles == 1 && s.n_done == 1 && s.n_usage == 1 && s.usage_tokens == 48);
        assert_true(s.n_chunks > 30);
        stream(rank, "/v1/completions", "{\"prompt\":\"Once\",\"stream\":true,\"temperature\":0,\"max_tokens\":9}", &s);
        yyjson_doc *d = post(rank, "/v1/completions", "{\"prompt\":\"Once\",\"temperature\":0,\"max_tokens\":9}");
        assert_string_equal(s.text[0], str(d, "/choices/0/text"));
        assert_true(s.n_roles == 0 && s.n_done == 1 && s.n_usage == 0);
        yyjson_doc_free(d);
    }
}

/* --- parameters ---------------------------------------------------------------------------------- */

/* Every place of the text where a stop string could be: the answer is what comes before, streamed or not. */
static void test_fault20_stop_strings_stop(void **state)
{
    const char *text = chat_text();
    char more[256], want[512];
    struct streamed s;
    (void)state;
    for (size_t at_byte = 3; at_byte + 5 < strlen(text); at_byte += 17) {
        struct buf stop = {0};
        text_put_json(&stop, text + at_byte, 5);
        const char *first = strstr(text, ""), *found = NULL;
        char needle[6];
        snprintf(needle, sizeof needle, "%.5s", text + at_byte);
        found = strstr(first, needle);
        snprintf(want, sizeof want, "%.*s", (int)(found - text), text);
        snprintf(more, sizeof more, ",\"temperature\":0,\"max_tokens\":48,\"stop\":%s", buf_str(&stop));
        yyjson_doc *d = chat((uint32_t)at_byte % 3, more);
        assert_string_equal(str(d, "/choices/0/message/content"), want);
        assert_string_equal(str(d, "/choices/0/finish_reason"), "stop");
        yyjson_doc_free(d);
        snprintf(more, sizeof more, ",\"temperature\":0,\"max_tokens\":48,\"stop\":[\"never \",%s]", buf_str(&stop));
        stream_chat((uint32_t)at_byte % 3, more, &s);
        assert_string_equal(s.text[0], want);
        assert_string_equal(s.finish[0], "stop");
        buf_free(&stop);
    }
    api_rig_idle(rig);
}

/* What looks like the beginning of a stop string is held back, and comes out when it was none. */
static void test_beginnings_of_stop_strings_come_out(void **state)
{
    const char *text = chat_text();
    char more[256];
    struct streamed s;
    struct buf stop = {0};
    (void)state;
    char last[16];
    snprintf(last, sizeof last, "%s~", text + strlen(text) - 6);
    text_put_json(&stop, last, strlen(last));
    snprintf(more, sizeof more, ",\"temperature\":0,\"max_tokens\":48,\"stop\":%s", buf_str(&stop));
    stream_chat(1, more, &s);
    assert_string_equal(s.text[0], text);
    assert_string_equal(s.finish[0], "length");
    buf_free(&stop);
}

static void test_choices_have_seeds_that_follow(void **state)
{
    struct streamed s;
    char more[128], pointer[64];
    (void)state;
    yyjson_doc *d = chat(0, ",\"n\":3,\"seed\":7,\"max_tokens\":12");
    assert_int_equal(yyjson_arr_size(at(d, "/choices")), 3);
    for (int i = 0; i < 3; i++) {
        snprintf(more, sizeof more, ",\"seed\":%d,\"max_tokens\":12", 7 + i);
        yyjson_doc *one = chat((uint32_t)i, more);
        snprintf(pointer, sizeof pointer, "/choices/%d/message/content", i);
        assert_string_equal(str(d, pointer), str(one, "/choices/0/message/content"));
        yyjson_doc_free(one);
    }
    assert_string_not_equal(str(d, "/choices/0/message/content"), str(d, "/choices/1/message/content"));
    stream_chat(2, ",\"n\":3,\"seed\":7,\"max_tokens\":12", &s);
    for (int i = 0; i < 3; i++) {
        snprintf(pointer, sizeof pointer, "/choices/%d/message/content", i);
        assert_string_equal(s.text[i], str(d, pointer));
        assert_string_equal(s.finish[i], "length");
    }
    assert_int_equal(s.n_roles, 3);
    yyjson_doc_free(d);
}

static void test_without_a_seed_answers_differ(void **state)
{
    (void)state;
    yyjson_doc *a = chat(0, ",\"max_tokens\":40"), *b = chat(0, ",\"max_tokens\":40");
    assert_string_not_equal(str(a, "/choices/0/message/content"), str(b, "/choices/0/message/content"));
    yyjson_doc_free(a);
    yyjson_doc_free(b);
}

static void test_fault20_temperature_and_bias_are_used(void **state)
{
    char more[128];
    (void)state;
    int32_t first = reference("chat")->greedy.id[0];
    snprintf(more, sizeof more, ",\"temperature\":0,\"max_tokens\":1,\"logit_bias\":{\"%d\":-100}", first);
    yyjson_doc *banned = chat(0, more), *plain = chat(0, ",\"temperature\":0,\"max_tokens\":1");
    assert_string_not_equal(str(banned, "/choices/0/message/content"), str(plain, "/choices/0/message/content"));
    yyjson_doc *hot = chat(0, ",\"temperature\":2,\"seed\":1,\"max_tokens\":30");
    yyjson_doc *narrow = chat(0, ",\"temperature\":2,\"seed\":1,\"max_tokens\":30,\"top_k\":1");
    yyjson_doc *thin = chat(0, ",\"temperature\":2,\"seed\":1,\"max_tokens\":30,\"top_p\":0");
    assert_string_not_equal(str(hot, "/choices/0/message/content"), str(narrow, "/choices/0/message/content"));
    assert_string_equal(str(thin, "/choices/0/message/content"), str(narrow, "/choices/0/message/content"));
    assert_memory_equal(str(narrow, "/choices/0/message/content"), chat_text(), 10);
    yyjson_doc_free(banned);
    yyjson_doc_free(plain);
    yyjson_doc_free(hot);
    yyjson_doc_free(narrow);
    yyjson_doc_free(thin);
}

/* --- log probabilities --------------------------------------------------------------------------- */

static double logprob_of(const float *logits, uint32_t n, int32_t token)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return logits[token] - max - (sum > 0 ? log(sum) : 0);
}

static void test_logprobs_are_the_logits(void **state)
{
    const struct golden_text *g = reference("chat");
    uint32_t n_vocab = rig->m.n_vocab;
    (void)state;
    api_rig_idle(rig);
    pthread_mutex_lock(&rig->mutex);
    rig->n_logits = 0;
    pthread_mutex_unlock(&rig->mutex);
    yyjson_doc *d = chat(1, ",\"temperature\":0,\"max_tokens\":8,\"logprobs\":true,\"top_logprobs\":3");
    api_rig_idle(rig);
    assert_int_equal(yyjson_arr_size(at(d, "/choices/0/logprobs/content")), 8);
    assert_true(rig->n_logits >= 8);
    for (uint32_t i = 0; i < 8; i++) {
        char pointer[96];
        const float *logits = rig->logits + (size_t)i * n_vocab;
        snprintf(pointer, sizeof pointer, "/choices/0/logprobs/content/%u/logprob", i);
        double got = yyjson_get_num(at(d, pointer));
        assert_true(fabs(got - logprob_of(logits, n_vocab, g->greedy.id[i])) < 1e-4);
        for (int k = 0; k < 3; k++) {
            snprintf(pointer, sizeof pointer, "/choices/0/logprobs/content/%u/top_logprobs/%d/logprob", i, k);
            double top = yyjson_get_num(at(d, pointer));
            assert_true(k == 0 ? top == got : top < got);
        }
        struct buf piece = {0}, bytes = {0};
        assert_int_equal(tok_piece(rig->tok, g->greedy.id[i], true, &piece, NULL), OK);
        snprintf(pointer, sizeof pointer, "/choices/0/logprobs/content/%u/bytes", i);
        size_t k, max;
        yyjson_val *v;
        yyjson_arr_foreach(at(d, pointer), k, max, v)
        {
            buf_put_u8(&bytes, (uint8_t)yyjson_get_uint(v));
        }
        assert_int_equal(bytes.len, piece.len);
        assert_memory_equal(bytes.data, piece.data, piece.len);
        buf_free(&piece);
        buf_free(&bytes);
    }
    yyjson_doc_free(d);
}

/* The old form: offsets are where the tokens begin in the text. */
static void test_logprobs_of_completions(void **state)
{
    (void)state;
    yyjson_doc *d =
        post(0, "/v1/completions", "{\"prompt\":\"Once\",\"temperature\":0,\"max_tokens\":9,\"logprobs\":2}");
    const char *text = str(d, "/choices/0/text");
    for (int i = 0; i < 9; i++) {
        char pointer[96];
        snprintf(pointer, sizeof pointer, "/choices/0/logprobs/tokens/%d", i);
        const char *token = str(d, pointer);
        snprintf(pointer, sizeof pointer, "/choices/0/logprobs/text_offset/%d", i);
        uint64_t offset = yyjson_get_uint(at(d, pointer));
        assert_true(offset < strlen(text));
        assert_memory_equal(text + offset, token, strlen(token));
        snprintf(pointer, sizeof pointer, "/choices/0/logprobs/top_logprobs/%d", i);
        assert_int_equal(yyjson_obj_size(at(d, pointer)), 2);
        assert_non_null(yyjson_obj_get(at(d, pointer), token));
    }
    yyjson_doc_free(d);
}

/* Tokens of a stop string are not shown, neither as text nor with their probabilities. */
static void test_logprobs_end_with_the_text(void **state)
{
    struct web w;
    char more[512], stop[8];
    unsigned n = 0;
    (void)state;
    const char *text = chat_text();
    snprintf(stop, sizeof stop, "%.3s", text + 20);
    size_t cut = (size_t)(strstr(text, stop) - text);
    snprintf(more, sizeof more,
             "{" CHAT ",\"temperature\":0,\"max_tokens\":48,\"logprobs\":true,\"stop\":\"%s\",\"stream\":true}", stop);
    assert_true(web_call(&w, port_of(0), "POST", "/v1/chat/completions", NULL, more));
    size_t len = 0;
    for (const char *p = web_body(&w); (p = strstr(p, "\"token\":\"")); n++) {
        p += 9;
        len += (size_t)(strchr(p, '"') - p);
    }
    assert_true(n > 0 && len >= cut && len < cut + 16);
    web_free(&w);
}

/* --- many at once -------------------------------------------------------------------------------- */

static void test_32_conversations_through_three_entries(void **state)
{
    struct web w[32];
    char body[1024];
    (void)state;
    for (uint32_t i = 0; i < 32; i++) {
        snprintf(body, sizeof body, "{" CHAT ",\"temperature\":0,\"max_tokens\":48%s}",
                 i % 2 ? ",\"stream\":true" : "");
        assert_true(web_send(&w[i], port_of(i % 3), "POST", "/v1/chat/completions", NULL, body));
    }
    for (uint32_t i = 0; i < 32; i++) {
        struct streamed s;
        if (!web_end(&w[i], API_RIG_MS) || w[i].status != 200)
            fail_msg("conversation %u: status %u %s", i, w[i].status, web_body(&w[i]));
        if (i % 2) {
            take_stream(&w[i], &s);
            assert_string_equal(s.text[0], chat_text());
        } else {
            yyjson_doc *d = yyjson_read(web_body(&w[i]), w[i].body.len, 0);
            assert_non_null(d);
            assert_string_equal(str(d, "/choices/0/message/content"), chat_text());
            yyjson_doc_free(d);
        }
        web_free(&w[i]);
    }
    api_rig_idle(rig);
}

/* --- a model without chats ------------------------------------------------------------------------ */

static void test_a_model_without_chat_format_says_so(void **state)
{
    struct web w;
    (void)state;
    struct api_rig *own = api_rig_up("llama-spm-f32", 1, 1);
    assert_true(web_call(&w, api_rig_port(own, 0), "POST", "/v1/chat/completions", NULL, "{" CHAT "}"));
    assert_int_equal(w.status, 400);
    assert_non_null(strstr(web_body(&w), "\"chat_not_supported\""));
    assert_non_null(strstr(web_body(&w), "/v1/completions"));
    web_free(&w);
    assert_true(
        web_call(&w, api_rig_port(own, 0), "POST", "/v1/completions", NULL, "{\"prompt\":\"Once\",\"max_tokens\":3}"));
    assert_int_equal(w.status, 200);
    web_free(&w);
    api_rig_free(own);
}

static int setup(void **state)
{
    char path[PATH_MAX];
    struct err e;
    (void)state;
    if (golden_json_open(test_data("golden/" MODEL ".json", path), &gold, &e) != OK)
        fail_msg("%s", e.msg);
    rig = api_rig_up(MODEL, 3, 5);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    api_rig_free(rig);
    golden_json_close(&gold);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_is_the_references),
        cmocka_unit_test(test_completion_is_the_references),
        cmocka_unit_test(test_prompts_become_choices_in_order),
        cmocka_unit_test(test_streamed_is_not_streamed),
        cmocka_unit_test(test_fault20_stop_strings_stop),
        cmocka_unit_test(test_beginnings_of_stop_strings_come_out),
        cmocka_unit_test(test_choices_have_seeds_that_follow),
        cmocka_unit_test(test_without_a_seed_answers_differ),
        cmocka_unit_test(test_fault20_temperature_and_bias_are_used),
        cmocka_unit_test(test_logprobs_are_the_logits),
        cmocka_unit_test(test_logprobs_of_completions),
        cmocka_unit_test(test_logprobs_end_with_the_text),
        cmocka_unit_test(test_32_conversations_through_three_entries),
        cmocka_unit_test(test_a_model_without_chat_format_says_so),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    alarm(1150);
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("api", tests, setup, teardown);
}
