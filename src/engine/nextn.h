/* SPDX-License-Identifier: MIT
 *
 * NextN (multi-token prediction) blocks: whole blocks behind the trunk that guess further tokens. The last stage loads
 * them on request; no step runs them yet.
 */
#ifndef KVASIR_ENGINE_NEXTN_H
#define KVASIR_ENGINE_NEXTN_H

#include "engine/arch.h"

/* Declares every NextN block of the model with the tables it needs. */
void nextn_declare(struct weights *w, const struct hparams *h, const struct arch *arch);

#endif
