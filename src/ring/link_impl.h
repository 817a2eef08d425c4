/* SPDX-License-Identifier: MIT
 *
 * Between link.c, which owns the live link, and connect.c, which makes links out of handshakes. Not for others.
 */
#ifndef KVASIR_RING_LINK_IMPL_H
#define KVASIR_RING_LINK_IMPL_H

#include "ring/link.h"

/* A link that is not started, out of a handshake that is DONE and whose last bytes were sent. Owns fd when OK. */
enum err_code link_new(int fd, const struct handshake *h, struct link **out, struct err *e) KV_MUST_USE;

#endif
