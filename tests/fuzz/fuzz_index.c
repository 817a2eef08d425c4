/* SPDX-License-Identifier: MIT
 *
 * Any bytes as the text of an index. What is accepted is sorted, lies in its files and has sizes that fit; it is
 * matched with a model, of which it can only be the index if its id is the model's. Whatever is refused must come with
 * a code and one line.
 */
#include "base/text.h"
#include "lib/fuzz.h"
#include "lib/test_util.h"
#include "model/index.h"

#include <string.h>

static const struct gguf *model(struct index *x)
{
    static struct gguf *g;
    static struct index of_g;
    char path[PATH_MAX];
    struct err e;
    if (!g)
        must(gguf_open(test_data("llama-tied-f32.gguf", path), &g, &e) == OK &&
                 index_compute(g, NULL, NULL, &of_g, &e) == OK,
             "the test data is there");
    *x = of_g;
    return g;
}

static void check(const struct index_file *f)
{
    must(f->n_files > 0, "there is a file");
    for (size_t i = 0; i < f->n_files; i++) {
        const char *name = f->files[i].name;
        must(name[0] && !strchr(name, '/') && strcmp(name, "..") != 0, "a file has a name without folders");
        must(text_printable(name, strlen(name)), "names can be printed");
    }
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct index_tensor *t = &f->tensors[i];
        uint64_t bytes;
        must(text_printable(t->name, strlen(t->name)), "names can be printed");
        must(i == 0 || strcmp(t[-1].name, t->name) < 0, "tensors are sorted");
        must(t->file < f->n_files, "a tensor has a file");
        must(t->size <= f->files[t->file].size && t->offset <= f->files[t->file].size - t->size, "it lies in it");
        must(gguf_tensor_bytes(t->type, t->ne, &bytes) && bytes == t->size, "its size fits");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct index_file f;
    struct index own, x;
    struct err e;
    const struct gguf *g = model(&own);
    if (!good(index_read(data, size, &f, &e), &e))
        return 0;
    check(&f);
    if (good(index_match(&f, g, &x, &e), &e)) {
        must(memcmp(x.model_id, own.model_id, DIGEST_BYTES) == 0, "the index of a model has its id");
        must(memcmp(x.tensor_digest, own.tensor_digest, own.n_tensors * DIGEST_BYTES) == 0, "and its digests");
        index_fini(&x);
    }
    index_file_fini(&f);
    return 0;
}
