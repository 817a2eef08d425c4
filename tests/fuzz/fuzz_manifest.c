/* SPDX-License-Identifier: MIT
 *
 * Manifests from strangers. What is accepted must pass the check, and its canonical text must be a fixed point: it
 * reads back to the same text.
 */
#include "plan/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    struct manifest m, again;
    struct buf text = {0}, text2 = {0};
    struct err e = {0};
    if (!ready)
        must(key_library_init(&e) == OK);
    ready = true;
    if (manifest_parse(data, size, &m, &e) != OK) {
        must(e.code != OK && e.msg[0] && !strchr(e.msg, '\n'));
        return 0;
    }
    must(manifest_check(&m, &e) == OK);
    must(manifest_write(&m, &text, &e) == OK);
    must(manifest_parse(text.data, text.len, &again, &e) == OK);
    must(manifest_write(&again, &text2, &e) == OK);
    must(text.len == text2.len && memcmp(text.data, text2.data, text.len) == 0);
    manifest_fini(&m);
    manifest_fini(&again);
    buf_free(&text);
    buf_free(&text2);
    return 0;
}
