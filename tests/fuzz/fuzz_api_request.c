/* SPDX-License-Identifier: MIT
 *
 * Bodies of requests against any input: the first byte says which of the two kinds, the rest is the body. Whatever it
 * is, what is taken is within the limits, and what is not is refused with a message that is JSON.
 */
#include "api/request.h"
#include "base/text.h"
#include "lib/fuzz.h"

#include <math.h>

#define N_VOCAB 300u
#define N_CTX   128u

static void check_sampling(const struct batch_sampling *s)
{
    must(s->temperature >= 0 && s->temperature <= 2, "temperature");
    must(s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1 && s->top_k >= 0, "top_p, min_p, top_k");
    must(s->repeat_penalty > 0 && s->repeat_penalty <= 10 && s->penalty_last_n <= N_CTX, "repeat_penalty");
    must(fabsf(s->presence_penalty) <= 2 && fabsf(s->frequency_penalty) <= 2, "penalties");
    must(s->n_bias <= BATCH_MAX_BIAS && s->n_top <= BATCH_MAX_TOP, "counts");
    for (uint32_t i = 0; i < s->n_bias; i++) {
        must(s->bias[i].token >= 0 && (uint32_t)s->bias[i].token < N_VOCAB, "the token of a bias");
        must(s->bias[i].bias <= 100 && (s->bias[i].bias >= -100 || isinf(s->bias[i].bias)), "a bias");
    }
}

static void check_input(const struct api_request *q)
{
    must(q->chat ? q->n_messages > 0 : q->n_prompts > 0 && q->n_prompts <= API_MAX_PROMPTS, "there is a prompt");
    for (size_t i = 0; i < q->n_messages; i++) {
        must(q->messages[i].role < CHAT_ROLE_COUNT, "roles");
        must(text_valid(q->messages[i].content, q->messages[i].len), "contents are UTF-8");
    }
    for (size_t i = 0; i < q->n_prompts; i++) {
        const struct api_prompt *p = &q->prompts[i];
        must(p->text ? text_valid(p->text, p->len) : p->len > 0, "prompts are UTF-8 or ids");
        for (size_t k = 0; !p->text && k < p->len; k++)
            must(p->ids[k] >= 0 && (uint32_t)p->ids[k] < N_VOCAB, "ids are in the vocabulary");
    }
}

static void check(struct api_request *q)
{
    must(q->n >= 1 && q->n <= API_MAX_N && q->n_stop <= API_MAX_STOP, "n, stop");
    must(q->max_tokens <= INT64_MAX, "max_tokens");
    check_sampling(&q->sampling);
    check_input(q);
    api_request_drop_input(q);
    for (uint32_t i = 0; i < q->n_stop; i++) {
        must(q->stop[i].len > 0 && q->stop[i].len <= API_MAX_STOP_LEN, "length of a stop string");
        must(text_valid(q->stop[i].text, q->stop[i].len), "stop strings are UTF-8");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct api_limits lim = {.n_vocab = N_VOCAB,
                                          .n_ctx = N_CTX,
                                          .model_name = "tiny",
                                          .model_id =
                                              "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"};
    struct api_request q;
    struct api_error x;
    struct buf out = {0};
    if (size == 0)
        return 0;
    if (api_request_parse(data + 1, size - 1, data[0] & 1, &lim, &q, &x)) {
        check(&q);
        api_request_fini(&q);
        return 0;
    }
    must(x.status == 400 || x.status == 404 || x.status == 500, "the status of a refusal");
    api_error_put(&out, &x);
    must(!out.failed && text_printable(out.data, out.len), "a refusal is printable UTF-8");
    buf_free(&out);
    return 0;
}
