/* SPDX-License-Identifier: MIT
 *
 * Text of addresses to sockaddrs and back. Looking up a name may hang in the system's resolver for longer than our
 * deadline, so it runs on a thread of its own that is left behind (with its memory) when it comes too late.
 */
#include "net/addr.h"

#include "base/clock.h"
#include "base/parse.h"
#include "base/thread.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 100 /* characters of a bad text that a message repeats */

static enum err_code check_host(const char *host, bool v6, struct err *e)
{
    static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    static const char v6_chars[] = "0123456789abcdefABCDEF:.%_-ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ";
    size_t good = strspn(host, v6 ? v6_chars : name_chars);
    if (host[good])
        return err_set_at(e, ERR_ARG, (int64_t)good, "host '%.*s' has a character that is in no host name", SHOWN,
                          host);
    return OK;
}

enum err_code net_addr_split(const char *text, enum net_use use, char host[NET_HOST_SIZE], uint16_t *port,
                             struct err *e)
{
    const char *host_at = text, *colon;
    size_t host_len;
    const bool v6 = text[0] == '[';
    if (v6) {
        const char *close = strchr(text, ']');
        if (!close || close[1] != ':')
            return err_set(e, ERR_ARG, "address '%.*s' is not [IPv6]:port, for example [::1]:7000", SHOWN, text);
        host_at = text + 1;
        host_len = (size_t)(close - host_at);
        colon = close + 1;
    } else {
        colon = strchr(text, ':');
        if (!colon)
            return err_set(e, ERR_ARG, "address '%.*s' has no port: host:port is expected", SHOWN, text);
        if (strchr(colon + 1, ':'))
            return err_set(e, ERR_ARG, "address '%.*s' has several colons: an IPv6 address is written [::1]:7000",
                           SHOWN, text);
        host_len = (size_t)(colon - text);
    }
    if (host_len == 0 && (use == NET_DIAL || v6))
        return err_set(e, ERR_ARG, "address '%.*s' has no host: host:port is expected", SHOWN, text);
    if (host_len >= NET_HOST_SIZE)
        return err_set(e, ERR_ARG, "address '%.*s...' has a host name of %zu bytes, at most %d are possible", SHOWN / 2,
                       text, host_len, NET_HOST_SIZE - 1);
    char name[NET_HOST_SIZE];
    snprintf(name, sizeof name, "%.*s", (int)host_len, host_len ? host_at : "");
    uint64_t number;
    if (check_host(name, v6, e) != OK || parse_u64("port", colon + 1, use == NET_DIAL ? 1 : 0, 65535, &number, e) != OK)
        return err_prefix(e, "address '%.*s'", SHOWN, text);
    snprintf(host, NET_HOST_SIZE, "%s", host_len ? name : "127.0.0.1");
    *port = (uint16_t)number;
    return OK;
}

static bool is_wildcard(const struct net_addr *a)
{
    if (a->ss.ss_family == AF_INET)
        return ((const struct sockaddr_in *)&a->ss)->sin_addr.s_addr == htonl(INADDR_ANY);
    if (a->ss.ss_family != AF_INET6)
        return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&a->ss)->sin6_addr;
    static const uint8_t mapped_any[4] = {0};
    return IN6_IS_ADDR_UNSPECIFIED(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && memcmp(v6->s6_addr + 12, mapped_any, 4) == 0);
}

/* One look-up, shared by who asks and the thread that may outlive the question. */
struct lookup {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    char host[NET_HOST_SIZE], port[8];
    struct addrinfo hints;
    struct addrinfo *found;
    int rc;
    bool done;
    int holders;
};

static void lookup_drop(struct lookup *l)
{
    pthread_mutex_lock(&l->mutex);
    bool last = --l->holders == 0;
    pthread_mutex_unlock(&l->mutex);
    if (!last)
        return;
    if (l->done && l->rc == 0)
        freeaddrinfo(l->found);
    pthread_cond_destroy(&l->cond);
    pthread_mutex_destroy(&l->mutex);
    free(l);
}

static void *lookup_main(void *arg)
{
    struct lookup *l = arg;
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(l->host, l->port, &l->hints, &found);
    pthread_mutex_lock(&l->mutex);
    l->rc = rc;
    l->found = found;
    l->done = true;
    pthread_cond_signal(&l->cond);
    pthread_mutex_unlock(&l->mutex);
    lookup_drop(l);
    return NULL;
}

static enum err_code lookup_run(struct lookup *l, uint64_t deadline_ns, struct err *e)
{
    l->hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    l->rc = getaddrinfo(l->host, l->port, &l->hints, &l->found);
    if (l->rc != EAI_NONAME) {
        l->done = true;
        return OK;
    }
    l->hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
    pthread_t thread;
    l->holders = 2;
    if (thread_start(&thread, "kv-resolve", lookup_main, l, e) != OK) {
        l->holders = 1;
        return e ? e->code : ERR_NOMEM;
    }
    pthread_detach(thread);
    pthread_mutex_lock(&l->mutex);
    while (!l->done && thread_cond_wait(&l->cond, &l->mutex, deadline_ns))
        continue;
    bool done = l->done;
    pthread_mutex_unlock(&l->mutex);
    return done ? OK : err_set(e, ERR_TIMEOUT, "looking up '%.*s' took too long", SHOWN, l->host);
}

static enum err_code lookup_take(const struct lookup *l, enum net_use use, struct net_addr out[NET_ADDR_MAX], size_t *n,
                                 struct err *e)
{
    size_t count = 0;
    if (l->rc != 0)
        return err_set(e, l->rc == EAI_MEMORY ? ERR_NOMEM : ERR_NOT_FOUND, "no address of '%.*s': %s", SHOWN, l->host,
                       gai_strerror(l->rc));
    for (const struct addrinfo *i = l->found; i && count < NET_ADDR_MAX; i = i->ai_next) {
        if ((i->ai_family != AF_INET && i->ai_family != AF_INET6) || i->ai_addrlen > sizeof out[0].ss)
            continue;
        memset(&out[count], 0, sizeof out[count]);
        memcpy(&out[count].ss, i->ai_addr, i->ai_addrlen);
        out[count].len = i->ai_addrlen;
        if (use == NET_DIAL && is_wildcard(&out[count]))
            return err_set(e, ERR_ARG, "%.*s means every address of a machine: it can be listened on, not dialed",
                           SHOWN, l->host);
        count++;
    }
    if (count == 0)
        return err_set(e, ERR_NOT_FOUND, "'%.*s' has no IPv4 or IPv6 address", SHOWN, l->host);
    *n = count;
    return OK;
}

enum err_code net_addr_resolve(const char *text, enum net_use use, uint64_t deadline_ns,
                               struct net_addr out[NET_ADDR_MAX], size_t *n, struct err *e)
{
    struct err local;
    struct lookup *l = calloc(1, sizeof *l);
    uint16_t port = 0;
    if (!e)
        e = &local;
    if (!l)
        return err_set(e, ERR_NOMEM, "no memory to look up an address");
    enum err_code rc = net_addr_split(text, use, l->host, &port, e);
    if (rc != OK) {
        free(l);
        return rc;
    }
    pthread_mutex_init(&l->mutex, NULL);
    thread_cond_init(&l->cond);
    l->holders = 1;
    snprintf(l->port, sizeof l->port, "%u", (unsigned)port);
    l->hints = (struct addrinfo){.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    rc = lookup_run(l, deadline_ns, e);
    if (rc == OK)
        rc = lookup_take(l, use, out, n, e);
    lookup_drop(l);
    return rc;
}

const char *net_addr_text(const struct net_addr *a, char out[NET_ADDR_TEXT_SIZE])
{
    char host[INET6_ADDRSTRLEN];
    if (a->ss.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a->ss;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(out, NET_ADDR_TEXT_SIZE, "%s:%u", host, (unsigned)ntohs(v4->sin_port));
    } else if (a->ss.ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a->ss;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(out, NET_ADDR_TEXT_SIZE, "[%s]:%u", host, (unsigned)ntohs(v6->sin6_port));
    } else {
        snprintf(out, NET_ADDR_TEXT_SIZE, "?");
    }
    return out;
}

uint16_t net_addr_port(const struct net_addr *a)
{
    if (a->ss.ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)&a->ss)->sin_port);
    return a->ss.ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)&a->ss)->sin6_port) : 0;
}

bool net_addr_is_loopback(const struct net_addr *a)
{
    if (a->ss.ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)&a->ss)->sin_addr.s_addr) >> 24 == 127;
    if (a->ss.ss_family != AF_INET6)
        return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&a->ss)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}
