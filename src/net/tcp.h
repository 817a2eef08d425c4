/* SPDX-License-Identifier: MIT
 *
 * TCP: listen, accept, connect, whole reads and writes, each with a deadline (base/clock.h). Every socket made here is
 * close-on-exec, non-blocking, without Nagle's delay, and never raises SIGPIPE. Thread-safe.
 */
#ifndef KVASIR_NET_TCP_H
#define KVASIR_NET_TCP_H

#include "net/addr.h"

/* text as for NET_LISTEN. *port receives the real port (may be NULL). ERR_ARG, ERR_NOT_FOUND, ERR_IO (in use, ...). */
enum err_code net_tcp_listen(const char *text, int *fd, uint16_t *port, struct err *e) KV_MUST_USE;

/* Takes over a listening socket that this process inherited. ERR_ARG when it is not one; the fd is then not closed. */
enum err_code net_tcp_adopt(int fd, uint16_t *port, struct err *e) KV_MUST_USE;

/* The next waiting connection; does not wait. ERR_BUSY: none is waiting. ERR_LIMIT: out of file descriptors or memory
 * (it still waits). ERR_IO: the listening socket is broken. */
enum err_code net_tcp_accept(int listen_fd, int *fd, struct net_addr *peer, struct err *e) KV_MUST_USE;

/* Tries the addresses of text (as for NET_DIAL) in turn. ERR_ARG, ERR_NOT_FOUND, ERR_IO (refused, unreachable),
 * ERR_TIMEOUT. The message names the address. */
enum err_code net_tcp_connect(const char *text, uint64_t deadline_ns, int *fd, struct err *e) KV_MUST_USE;

/* Exactly len bytes. ERR_CLOSED: the peer ended before (says after how many bytes); ERR_TIMEOUT; ERR_IO. */
enum err_code net_tcp_read(int fd, void *data, size_t len, uint64_t deadline_ns, struct err *e) KV_MUST_USE;
enum err_code net_tcp_write(int fd, const void *data, size_t len, uint64_t deadline_ns, struct err *e) KV_MUST_USE;

/* Address of this end / of the peer; "?" in text when unknown. Each returns out. */
const char *net_tcp_local_text(int fd, char out[NET_ADDR_TEXT_SIZE]);
const char *net_tcp_peer_text(int fd, char out[NET_ADDR_TEXT_SIZE]);

/* The connection breaks when sent data stays unacknowledged for so long (where the system can do it). */
void net_tcp_user_timeout(int fd, uint32_t ms);

#endif
