/* SPDX-License-Identifier: MIT
 *
 * Network addresses: "host:port", "[v6]:port", their text, and looking up names. Thread-safe.
 */
#ifndef KVASIR_NET_ADDR_H
#define KVASIR_NET_ADDR_H

#include "base/err.h"

#include <stddef.h>
#include <sys/socket.h>

#define NET_HOST_SIZE      256 /* a DNS name has at most 253 characters */
#define NET_ADDR_TEXT_SIZE 64  /* "[v6%scope]:port" */
#define NET_ADDR_MAX       8   /* addresses of one name that are looked at */

struct net_addr {
    struct sockaddr_storage ss;
    socklen_t len;
};

enum net_use {
    NET_DIAL,   /* a wildcard address or port 0 is refused: nothing can be reached there */
    NET_LISTEN, /* ":port" means 127.0.0.1; port 0 lets the system choose; 0.0.0.0 and [::] mean everywhere */
};

/* Splits and checks the form only. ERR_ARG says what is wrong and shows the form that is right. */
enum err_code net_addr_split(const char *text, enum net_use use, char host[NET_HOST_SIZE], uint16_t *port,
                             struct err *e) KV_MUST_USE;

/* Numeric addresses need no look-up; names are looked up until the deadline. Fills at most NET_ADDR_MAX, *n >= 1.
 * ERR_ARG, ERR_NOT_FOUND (no such name), ERR_TIMEOUT. */
enum err_code net_addr_resolve(const char *text, enum net_use use, uint64_t deadline_ns,
                               struct net_addr out[NET_ADDR_MAX], size_t *n, struct err *e) KV_MUST_USE;

/* "127.0.0.1:7000", "[::1]:7000"; "?" for another family. Returns out. */
const char *net_addr_text(const struct net_addr *a, char out[NET_ADDR_TEXT_SIZE]);
uint16_t net_addr_port(const struct net_addr *a);
bool net_addr_is_loopback(const struct net_addr *a);

#endif
