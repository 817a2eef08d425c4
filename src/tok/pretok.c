/* SPDX-License-Identifier: MIT
 *
 * The table of pre-tokenizers, and cutting by them. Each expression cuts every piece the ones before it left into its
 * matches and the gaps between them; both are kept (architectures.md E). The expressions are those of the models' own
 * tokenizer.json files.
 *
 * PCRE2's \s has one character that is no Unicode white space (U+180E), so white space is spelled out. Case-insensitive
 * means Unicode's simple case folding, as in the originals.
 */
#include "tok/pretok.h"

#include "base/buf.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MAX_STEPS 6

/* Per match. */
#define MATCH_LIMIT          1000000u
#define MATCH_LIMIT_PER_BYTE 16u
#define HEAP_LIMIT_KIB       (64u << 10)

/* --- the expressions --- */

#define WHITE     "\\t-\\r\\x{85}\\p{Z}" /* inside a class */
#define SPACE     "[" WHITE "]"
#define NO_SPACE  "[^" WHITE "]"
#define SUFFIX    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACE_END SPACE "+(?!" NO_SPACE ")|" SPACE "+"
#define SPACES    SPACE "*[\\r\\n]+|" SPACE_END

#define WORD       "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define MARKS_WORD "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+"
#define SYMBOLS    " ?[^" WHITE "\\p{L}\\p{N}]+"

#define GPT2   "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|" SPACE_END
#define LLAMA3 SUFFIX "|" WORD "|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" SPACES
#define QWEN2  SUFFIX "|" WORD "|\\p{N}|" SYMBOLS "[\\r\\n]*|" SPACES
#define QWEN35 SUFFIX "|" MARKS_WORD "|\\p{N}| ?[^" WHITE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES

/* A word whose capitals come first; `suffix` may follow it. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASE_WORD(suffix)                                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix
#define GPT4O  CASE_WORD(SUFFIX "?") "|\\p{N}{1,3}|" SYMBOLS "[\\r\\n/]*|" SPACES
#define TEKKEN CASE_WORD("") "|\\p{N}|" SYMBOLS "[\\r\\n/]*|" SPACES
#define YOUTU  CASE_WORD(SUFFIX "?") "|\\p{N}|" SYMBOLS "[\\r\\n/]*|" SPACES
#define YOUTU_EAST_ASIA                                                                                                \
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|"                                                                       \
    "[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}"                      \
    "\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|"                                                                        \
    "[\\x{3105}-\\x{312f}]+|[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"

#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* Letters with case, as of the Unicode version of that tokenizer and without some scripts. */
#define DEEPSEEK_CASED                                                                                                 \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}"   \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"     \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"       \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"                  \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}"                  \
    "\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}" \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"                  \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}"          \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}" \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"           \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}"                  \
    "\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"                  \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"        \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_PUNCTUATION "[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"
/* The lookbehind and the possessive + only save time: a run of white space is tried once, not once per character. */
#define SPACE_AT_END "(?<!" SPACE ")" SPACE "++\\z"
#define DEEPSEEK_V3                                                                                                    \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"               \
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES

/* Bloom and relatives: everything but white space and these. */
#define BLOOM " ?[^(" WHITE "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

#define PUNCTUATION     "[\\p{P}$+<=>^~|]+"
#define PUNCTUATION_TIC "[\\p{P}$+<=>^~|`]+"
#define THREE_DIGITS    "[0-9][0-9][0-9]"
#define BAILING         "'(?i:[sdmt]|ll|ve|re)|" WORD "|\\p{N}|" SYMBOLS "[\\r\\n]*|" SPACE "*[\\r\\n]|" SPACE_END
#define SEED            SUFFIX "|" WORD "|\\p{N}| ?[^" WHITE "\\p{L}\\p{N}\\r\\n]+|" SPACES
#define UFAKZEKA        WORD "|\\p{N}|" SYMBOLS "[\\r\\n]*|" SPACES

struct kind {
    const char *names; /* separated by spaces; the first one stands for all in messages */
    const char *step[MAX_STEPS];
    struct pretok_traits traits;
};

static const struct kind kinds[] = {
    {"default", {PUNCTUATION, GPT2, "\\p{N}+", THREE_DIGITS}, {0}},
    {"gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling", {GPT2}, {0}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     {LLAMA3},
     {.whole_pieces = true, .adds_bos = true}},
    {"dbrx smaug-bpe smaug", {LLAMA3}, {0}},
    {"glm4 chatglm-bpe", {LLAMA3}, {.no_default_bos = true}},
    {"qwen2 deepseek-r1-qwen stablelm2 megrez kormo f2llmv2 hunyuan solar-open grok-2", {QWEN2}, {0}},
    {"qwen35", {QWEN35}, {0}},
    {"gpt-4o gpt-oss llama4 kanana2 talkie minimax-m2", {GPT4O}, {0}},
    {"tekken", {TEKKEN}, {.whole_pieces = true, .adds_bos = true}},
    {"smollm starcoder command-r refact codeshell exaone minerva-7b mellum2", {"\\p{N}", GPT2}, {0}},
    {"falcon", {PUNCTUATION_TIC, GPT2, THREE_DIGITS}, {0}},
    {"deepseek-coder", {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}, {0}},
    {"deepseek-llm",
     {"[\\r\\n]", SPACE "?[" DEEPSEEK_CASED "]+", SPACE "?" DEEPSEEK_PUNCTUATION, SPACE_AT_END, DEEPSEEK_CJK,
      "\\p{N}+"},
     {0}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK_V3},
     {0}},
    {"youtu", {YOUTU_EAST_ASIA, YOUTU}, {.whole_pieces = true}},
    {"bloom poro-chat gpt3-finnish", {BLOOM}, {0}},
    {"viking", {BLOOM, "\\p{N}"}, {0}},
    {"bailingmoe bailingmoe2 llada-moe", {BAILING}, {0}},
    {"seed-coder", {SEED}, {0}},
    {"ufakzeka", {UFAKZEKA}, {0}},
    {"laguna", {"[^\\n]+|\\n+", QWEN2}, {0}},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

struct pretok {
    struct pretok_traits traits;
    size_t n_steps;
    pcre2_code *step[MAX_STEPS];
};

/* --- names --- */

/* The word that begins at p; *len is 0 behind the last. */
static const char *word_at(const char *p, size_t *len)
{
    p += *p == ' ';
    *len = strcspn(p, " ");
    return p;
}

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        size_t len;
        for (const char *p = word_at(kinds[i].names, &len); len > 0; p = word_at(p + len, &len))
            if (strlen(name) == len && memcmp(p, name, len) == 0)
                return &kinds[i];
    }
    return NULL;
}

const char *pretok_names(size_t kind)
{
    return kind < N_KINDS ? kinds[kind].names : NULL;
}

static enum err_code unknown(const char *name, struct err *e)
{
    char clean[40];
    struct buf list = {0};
    for (size_t i = 0; i < N_KINDS; i++)
        buf_printf(&list, " %.*s", (int)strcspn(kinds[i].names, " "), kinds[i].names);
    text_clean(name, strlen(name), clean, sizeof clean);
    enum err_code rc =
        err_set(e, ERR_UNSUPPORTED, "the pre-tokenizer \"%s\" is not known; known kinds, to choose one instead:%s",
                clean, buf_str(&list));
    buf_free(&list);
    return rc;
}

/* --- compiling --- */

static enum err_code compile(const char *expression, pcre2_code **out, struct err *e)
{
    int code;
    size_t offset;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
    *out = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED, options, &code, &offset, NULL);
    if (!*out) {
        PCRE2_UCHAR text[120];
        pcre2_get_error_message(code, text, sizeof text);
        return err_set(e, code == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_INTERNAL,
                       "a pre-tokenizer's expression does not compile at %zu: %s", offset, (const char *)text);
    }
    /* Without JIT (not built in, or memory may not be executable) the interpreter does the same, slower. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return OK;
}

enum err_code pretok_new(const char *name, struct pretok **out, struct err *e)
{
    const struct kind *kind = find_kind(name);
    if (!kind)
        return unknown(name, e);
    struct pretok *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for a pre-tokenizer");
    p->traits = kind->traits;
    for (size_t i = 0; i < MAX_STEPS && kind->step[i]; i++) {
        enum err_code rc = compile(kind->step[i], &p->step[i], e);
        if (rc != OK) {
            pretok_free(p);
            return rc;
        }
        p->n_steps++;
    }
    *out = p;
    return OK;
}

void pretok_free(struct pretok *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_steps; i++)
        pcre2_code_free(p->step[i]);
    free(p);
}

struct pretok_traits pretok_traits(const struct pretok *p)
{
    return p->traits;
}

/* --- cutting --- */

struct pretok_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
};

static void matcher_free(struct pretok_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    free(m);
}

static struct pretok_matcher *matcher_new(void)
{
    struct pretok_matcher *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context) {
        matcher_free(m);
        return NULL;
    }
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    return m;
}

void pretok_scratch_free(struct pretok_scratch *s)
{
    free(s->now.end);
    free(s->next.end);
    matcher_free(s->matcher);
    *s = (struct pretok_scratch){0};
}

static enum err_code push(struct pretok_ends *x, uint32_t end, struct err *e)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 64;
        uint32_t *p = cap <= SIZE_MAX / sizeof *p ? realloc(x->end, cap * sizeof *p) : NULL;
        if (!p)
            return err_set(e, ERR_NOMEM, "no memory for %zu pieces of a text", cap);
        x->end = p;
        x->cap = cap;
    }
    x->end[x->n++] = end;
    return OK;
}

/* The next match in the piece at or after `from`: PCRE2's return value. */
static int match(const pcre2_code *code, const uint8_t *piece, size_t len, size_t from, struct pretok_matcher *m)
{
    uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int rc = pcre2_match(code, piece, len, from, options, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, piece, len, from, options | PCRE2_NO_JIT, m->data, m->context);
    return rc;
}

/* Cuts one piece, [start, end) of the text, by one expression; the ends go to out. */
static enum err_code cut_piece(const pcre2_code *code, const uint8_t *text, uint32_t start, uint32_t end,
                               struct pretok_matcher *m, struct pretok_ends *out, struct err *e)
{
    const uint8_t *piece = text + start;
    size_t len = end - start, at = 0;
    enum err_code rc = OK;
    while (rc == OK && at < len) {
        int n = match(code, piece, len, at, m);
        if (n == PCRE2_ERROR_NOMATCH)
            break;
        if (n == PCRE2_ERROR_NOMEMORY)
            return err_set(e, ERR_NOMEM, "no memory to cut a text into pieces");
        if (n < 0)
            return err_set(e, ERR_LIMIT, "a pre-tokenizer's expression took too long (PCRE2 says %d)", n);
        const size_t *found = pcre2_get_ovector_pointer(m->data);
        if (found[0] > at)
            rc = push(out, start + (uint32_t)found[0], e);
        if (rc == OK)
            rc = push(out, start + (uint32_t)found[1], e);
        at = found[1];
    }
    return rc == OK && at < len ? push(out, end, e) : rc;
}

enum err_code pretok_split(const struct pretok *p, const uint8_t *text, uint32_t len, struct pretok_scratch *s,
                           struct err *e)
{
    s->now.n = 0;
    if (len == 0)
        return OK;
    if (!s->matcher && !(s->matcher = matcher_new()))
        return err_set(e, ERR_NOMEM, "no memory to cut a text into pieces");
    /* All expressions take time linear in the text, so that only a fault can reach this limit. */
    uint64_t limit = MATCH_LIMIT + (uint64_t)len * MATCH_LIMIT_PER_BYTE;
    pcre2_set_match_limit(s->matcher->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    enum err_code rc = push(&s->now, len, e);
    for (size_t i = 0; rc == OK && i < p->n_steps; i++) {
        s->next.n = 0;
        uint32_t start = 0;
        for (size_t k = 0; rc == OK && k < s->now.n; k++) {
            rc = cut_piece(p->step[i], text, start, s->now.end[k], s->matcher, &s->next, e);
            start = s->now.end[k];
        }
        struct pretok_ends swap = s->now;
        s->now = s->next;
        s->next = swap;
    }
    return rc;
}
