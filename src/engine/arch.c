/* SPDX-License-Identifier: MIT
 *
 * The families. A new one: a file arch_NAME.c and a line here.
 */
#include "engine/arch.h"

#include <stdio.h>
#include <string.h>

static const struct arch *const families[] = {
    &arch_llama,  &arch_qwen2,     &arch_qwen3, &arch_qwen3moe, &arch_qwen35,
    &arch_gemma3, &arch_qwen35moe, &arch_phi3,  &arch_gpt_oss,  &arch_glm4moe,
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
    return err_set(e, ERR_UNSUPPORTED, "models of the architecture '%s' cannot be run (known:%s)", name, known);
}

struct ggml_tensor *arch_declare(struct weights *w, uint32_t il, const char *part, struct weight_spec spec)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", il, part);
    return weights_declare(w, name, spec);
}

struct ggml_tensor *arch_matrix(struct weights *w, uint32_t il, const char *part, int64_t ne0, int64_t ne1)
{
    return arch_declare(w, il, part, (struct weight_spec){.use = WEIGHT_MUL_MAT, .ne = {ne0, ne1}});
}

struct ggml_tensor *arch_experts(struct weights *w, uint32_t il, const char *part, int64_t ne0, int64_t ne1, int64_t n)
{
    return arch_declare(w, il, part, (struct weight_spec){.use = WEIGHT_MUL_MAT_ID, .ne = {ne0, ne1, n}});
}

struct ggml_tensor *arch_vector(struct weights *w, uint32_t il, const char *part, int64_t ne0)
{
    return arch_declare(w, il, part, (struct weight_spec){.use = WEIGHT_ELEMENT, .ne = {ne0}});
}

struct ggml_tensor *arch_opt_vector(struct weights *w, uint32_t il, const char *part, int64_t ne0)
{
    return arch_declare(w, il, part, (struct weight_spec){.use = WEIGHT_ELEMENT, .optional = true, .ne = {ne0}});
}
