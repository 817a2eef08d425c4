/* SPDX-License-Identifier: MIT
 *
 * Manifests from strangers. What is accepted must pass the check, and its canonical text must be a fixed point: it
 * reads back to the same text.
 */
#include "lib/fuzz.h"
#include "plan/manifest.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    struct manifest m, again;
    struct buf text = {0}, text2 = {0};
    struct err e = {0};
    if (!ready)
        MUST(key_library_init(&e) == OK);
    ready = true;
    if (!good(manifest_parse(data, size, &m, &e), &e))
        return 0;
    MUST(manifest_check(&m, &e) == OK);
    MUST(manifest_write(&m, &text, &e) == OK);
    MUST(manifest_parse(text.data, text.len, &again, &e) == OK);
    MUST(manifest_write(&again, &text2, &e) == OK);
    MUST(text.len == text2.len && memcmp(text.data, text2.data, text.len) == 0);
    manifest_fini(&m);
    manifest_fini(&again);
    buf_free(&text);
    buf_free(&text2);
    return 0;
}
