/* SPDX-License-Identifier: MIT */
#include "lib/golden_json.h"

#include "base/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

/* Memory that lives as long as the golden_json: a list of blocks. */
struct block {
    struct block *next;
    max_align_t data[];
};

static void *keep(struct golden_json *g, size_t size)
{
    struct block *b = calloc(1, sizeof *b + size);
    if (!b)
        abort();
    b->next = g->owner;
    g->owner = b;
    return b->data;
}

static struct golden_ids read_ids(struct golden_json *g, yyjson_val *list)
{
    size_t n = yyjson_arr_size(list), i, max;
    int32_t *id = keep(g, n * sizeof *id);
    yyjson_val *x;
    yyjson_arr_foreach(list, i, max, x) id[i] = yyjson_get_int(x);
    return (struct golden_ids){id, n};
}

/* A text that is not UTF-8 is in the field <key>_hex. */
static struct golden_bytes read_bytes(struct golden_json *g, yyjson_val *obj, const char *key)
{
    char hex_key[64];
    snprintf(hex_key, sizeof hex_key, "%s_hex", key);
    yyjson_val *hex = yyjson_obj_get(obj, hex_key), *plain = yyjson_obj_get(obj, key);
    size_t len = hex ? yyjson_get_len(hex) / 2 : yyjson_get_len(plain);
    char *data = keep(g, len + 1);
    if (hex) {
        for (size_t i = 0; i < len; i++) {
            const char *at = yyjson_get_str(hex) + 2 * i;
            const char two[3] = {at[0], at[1], 0};
            data[i] = (char)(unsigned char)strtoul(two, NULL, 16);
        }
    } else if (plain) {
        memcpy(data, yyjson_get_str(plain), len);
    }
    return (struct golden_bytes){data, len};
}

static struct golden_text *read_texts(struct golden_json *g, yyjson_val *list, bool cases, size_t *n)
{
    struct golden_text *t = keep(g, yyjson_arr_size(list) * sizeof *t);
    size_t i, max;
    yyjson_val *x;
    yyjson_arr_foreach(list, i, max, x)
    {
        t[i].text = read_bytes(g, x, cases ? "prompt" : "text");
        t[i].ids = read_ids(g, yyjson_obj_get(x, cases ? "prompt_ids" : "ids"));
        t[i].add_special = yyjson_get_bool(yyjson_obj_get(x, "add_special"));
        t[i].parse_special = yyjson_get_bool(yyjson_obj_get(x, "parse_special"));
        t[i].pieces = read_bytes(g, x, "pieces");
        t[i].greedy = read_ids(g, yyjson_obj_get(x, "greedy_ids"));
        t[i].greedy_text = read_bytes(g, x, "greedy_text");
        t[i].name = cases ? read_bytes(g, x, "name").data : NULL;
    }
    *n = yyjson_arr_size(list);
    return t;
}

enum err_code golden_json_open(const char *path, struct golden_json *out, struct err *e)
{
    struct buf file = {0};
    struct golden_json g = {0};
    enum err_code rc = io_read_file(path, 64u << 20, &file, e);
    if (rc != OK)
        return rc;
    yyjson_doc *doc = yyjson_read((const char *)file.data, file.len, 0);
    if (doc) {
        yyjson_val *root = yyjson_doc_get_root(doc);
        g.n_vocab = (uint32_t)yyjson_get_uint(yyjson_obj_get(root, "n_vocab"));
        g.bos = yyjson_get_int(yyjson_obj_get(root, "bos"));
        g.eos = yyjson_get_int(yyjson_obj_get(root, "eos"));
        g.add_bos = yyjson_get_bool(yyjson_obj_get(root, "add_bos"));
        g.eog = read_ids(&g, yyjson_obj_get(root, "eog"));
        g.tokenize = read_texts(&g, yyjson_obj_get(root, "tokenize"), false, &g.n_tokenize);
        g.cases = read_texts(&g, yyjson_obj_get(root, "cases"), true, &g.n_cases);
        *out = g;
    } else {
        rc = err_set(e, ERR_FORMAT, "%s is not JSON", path);
    }
    yyjson_doc_free(doc);
    buf_free(&file);
    return rc;
}

void golden_json_close(struct golden_json *g)
{
    for (struct block *b = g->owner, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *g = (struct golden_json){0};
}
