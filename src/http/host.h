/* SPDX-License-Identifier: MIT
 *
 * By which names a server that serves its own machine may be asked. A page on the web can make its own name lead to a
 * loopback address, and its browser then lets it read what is there; the Host header still has that name.
 */
#ifndef KVASIR_HTTP_HOST_H
#define KVASIR_HTTP_HOST_H

#include "http/server.h"

/* Was the server asked by a name that it may have? On a loopback address these are localhost and names below it, IP
 * addresses, the host of addr ("host:port", where it listens) and those of names ("NAME,..." or "*"; may be NULL). On
 * other addresses, and without a Host: any. Loop thread. */
bool http_host_allowed(const struct http_request *r, const char *addr, const char *names);

#endif
