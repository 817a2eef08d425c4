/* SPDX-License-Identifier: MIT
 *
 * The model that is meant when a command names none: the user's choice in the environment, else the small one that is
 * shipped with the program.
 */
#ifndef KVASIR_CLI_DEFAULT_MODEL_H
#define KVASIR_CLI_DEFAULT_MODEL_H

#include "base/err.h"

#include <limits.h>

#define DEFAULT_MODEL_ENV  "KVASIR_MODEL"
#define DEFAULT_MODEL_FILE "huginn.gguf"

/* The path of a file that can be read, into out. In this order: what $KVASIR_MODEL names, and then nothing else; for a
 * program that runs where it was built, the source tree's models/; share/kvasir/models as it lies to the program's
 * folder, so that a moved installation finds its own; the same in the installation prefix that was configured.
 * ERR_NOT_FOUND: it is not there, and what to name instead; ERR_LIMIT: a path too long. */
enum err_code default_model_find(char out[PATH_MAX], struct err *e) KV_MUST_USE;

#endif
