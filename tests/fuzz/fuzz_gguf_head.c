/* SPDX-License-Identifier: MIT
 *
 * The header of a model that lies on somebody's server: 8 bytes are the length of the file that the server claims, the
 * rest is what it sends. It is fetched bit by bit as it is asked for, opened, and stage files are planned of it, whose
 * headers must open too.
 */
#include "base/buf.h"
#include "lib/fuzz.h"
#include "model/hparams.h"
#include "model/slice.h"

/* Asks until the header is there; false when it is refused or what is asked for is not there. */
static bool fetch(const uint8_t *data, size_t size, uint64_t claimed, size_t *len)
{
    struct err e;
    *len = size < 16 ? size : 16;
    for (unsigned n = 0;; n++) {
        uint64_t need = 0;
        if (!good(gguf_head_need(data, *len, claimed, &need, &e), &e))
            return false;
        if (need == 0)
            return true;
        must(need > *len && need <= claimed, "more is asked for, and not more than there is");
        must(n < 40, "a header comes in few pieces");
        if (need > size && *len == size)
            return false;
        *len = need > size ? size : (size_t)need;
    }
}

static void check_plan(const struct gguf *g, const struct hparams *h, uint32_t first, uint32_t end)
{
    struct slice s;
    struct gguf *stage;
    struct slice_label label;
    struct err e;
    if (!good(slice_plan(g, h, first, end, NULL, &s, &e), &e))
        return;
    uint64_t at = s.head.len;
    for (size_t i = 0; i < s.n; i++) {
        const struct slice_piece *p = &s.pieces[i];
        must(p->at >= at && p->src->size <= s.size && p->at <= s.size - p->src->size, "pieces follow each other");
        must(gguf_tensor_find(g, p->src->name) == p->src, "a piece is a tensor of the model");
        at = p->at + p->src->size;
    }
    struct gguf_part part = {.name = "stage.gguf", .head = s.head.data, .head_len = s.head.len, .file_size = s.size};
    must(gguf_open_heads(&part, 1, &stage, &e) == OK, "a stage file opens");
    must(gguf_n_tensors(stage) == s.n, "and has its tensors");
    must(slice_label_read(stage, &label, &e) == OK, "and says what it is");
    must(label.stage_file && label.first == first && label.end == end, "which is what it is");
    gguf_close(stage);
    slice_fini(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g = NULL;
    struct hparams h;
    struct model_sizes sizes;
    struct slice_label label;
    struct err e;
    size_t len;
    if (size < 8)
        return 0;
    uint64_t claimed = le_get_u64(data);
    if (!fetch(data + 8, size - 8, claimed, &len))
        return 0;
    struct gguf_part part = {.name = "far.gguf", .head = data + 8, .head_len = len, .file_size = claimed};
    if (!good(gguf_open_heads(&part, 1, &g, &e), &e)) {
        must(!g, "a failed open gives nothing");
        return 0;
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        must(t->size <= claimed && t->offset <= claimed - t->size, "a tensor lies in the file");
    }
    (void)good(slice_label_read(g, &label, &e), &e);
    if (good(hparams_read(g, &h, &e), &e)) {
        if (good(model_sizes_read(g, &h, &sizes, &e), &e))
            model_sizes_fini(&sizes);
        check_plan(g, &h, 0, h.n_block);
        check_plan(g, &h, 0, 1);
        check_plan(g, &h, h.n_block - 1, h.n_block);
        hparams_fini(&h);
    }
    gguf_close(g);
    return 0;
}
