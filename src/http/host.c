/* SPDX-License-Identifier: MIT */
#include "http/host.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Without its port: "name:80", "[::1]:80". */
static void bare_host(const char *s, char *out, size_t size)
{
    size_t n = *s == '[' ? strcspn(s, "]") + (strchr(s, ']') != NULL) : strcspn(s, ":");
    snprintf(out, size, "%.*s", (int)n, s);
    n = strlen(out);
    if (n > 1 && out[n - 1] == '.') /* "name." is the same name */
        out[n - 1] = 0;
}

static bool is_ip(char *host)
{
    struct in6_addr to;
    size_t n = strlen(host);
    if (inet_pton(AF_INET, host, &to) == 1)
        return true;
    if (n < 3 || host[0] != '[' || host[n - 1] != ']')
        return false;
    host[n - 1] = 0;
    return inet_pton(AF_INET6, host + 1, &to) == 1;
}

/* Is it one of the comma-separated names of list? */
static bool in_list(const char *list, const char *host)
{
    const size_t n = strlen(host);
    while (list && *list) {
        list += strspn(list, ", ");
        const size_t len = strcspn(list, ", ");
        if ((len == 1 && *list == '*') || (len > 0 && len == n && strncasecmp(list, host, n) == 0))
            return true;
        list += len;
    }
    return false;
}

bool http_host_allowed(const struct http_request *r, const char *addr, const char *names)
{
    static const char local[] = "localhost", below[] = ".localhost"; /* no DNS leads elsewhere: RFC 6761 §6.3 */
    const char *header = http_header(r, "host");
    char host[256], own[256];
    if (!http_only_local(r) || !header || !*header) /* browsers always send one */
        return true;
    if (strlen(header) >= sizeof host)
        return false;
    bare_host(header, host, sizeof host);
    bare_host(addr, own, sizeof own);
    size_t n = strlen(host), m = sizeof below - 1;
    return strcasecmp(host, local) == 0 || (n > m && strcasecmp(host + n - m, below) == 0) ||
           strcasecmp(host, own) == 0 || in_list(names, host) || is_ip(host);
}
