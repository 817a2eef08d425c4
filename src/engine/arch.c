/* SPDX-License-Identifier: MIT
 *
 * The families. A new one: a file arch_NAME.c and a line here.
 */
#include "engine/arch.h"

#include <stdio.h>
#include <string.h>

static const struct arch *const families[] = {
    &arch_llama,
    &arch_qwen3,
};

enum err_code arch_find(const char *name, const struct arch **out, struct err *e)
{
    char known[160] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i]->name, name) == 0) {
            *out = families[i];
            return OK;
        }
        if (n < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, " %s", families[i]->name);
    }
    return err_set(e, ERR_UNSUPPORTED, "models of the architecture '%s' cannot be run yet (known:%s)", name, known);
}

struct ggml_tensor *arch_need(struct weights *w, uint32_t il, const char *part, bool optional, int64_t ne0, int64_t ne1)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", il, part);
    return weights_declare(
        w, name,
        (struct weight_spec){.use = ne1 ? WEIGHT_MUL_MAT : WEIGHT_ELEMENT, .optional = optional, .ne = {ne0, ne1}});
}
