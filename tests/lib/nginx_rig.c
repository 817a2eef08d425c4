/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/nginx_rig.h"

#include "base/clock.h"
#include "base/io.h"
#include "lib/web.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define NGINX    "/usr/sbin/nginx"
#define START_MS 60000u
#define MAX_LOG  (1u << 20)

/* One that is free now. */
static uint16_t some_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        fail_msg("no socket");
    close(fd);
    return ntohs(a.sin_port);
}

static void write_conf(const char *path, const char *home, const char *folder, uint16_t port)
{
    static const char *const temp[] = {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"};
    struct buf b = {0};
    struct err e;
    buf_printf(&b, "daemon off;\nmaster_process off;\npid %s/pid;\nerror_log stderr warn;\nevents {}\nhttp {\n", home);
    buf_printf(&b, "  log_format counts '$uri $status $body_bytes_sent';\n  access_log %s/access counts;\n", home);
    for (size_t i = 0; i < sizeof temp / sizeof *temp; i++)
        buf_printf(&b, "  %s_temp_path %s/%zu;\n", temp[i], home, i);
    buf_printf(&b, "  server {\n    listen 127.0.0.1:%u;\n    location /models/ { alias %s/; }\n  }\n}\n", port,
               folder);
    if (io_write_file(path, b.data, b.len, 0644, &e) != OK)
        fail_msg("%s", e.msg);
    buf_free(&b);
}

static bool answers(struct proc *p, uint16_t port)
{
    const uint64_t deadline = clock_deadline_ms(START_MS);
    while (clock_now_ns() < deadline && !proc_gone(p->pid, 0)) {
        struct web w;
        const bool up = web_call(&w, port, "GET", "/models/", NULL, NULL);
        web_free(&w);
        if (up)
            return true;
        usleep(5000);
    }
    return false;
}

bool nginx_start(struct proc *p, const char *home, const char *folder, uint16_t *port)
{
    char conf[PATH_MAX];
    if (access(NGINX, X_OK) != 0) {
        print_message(NGINX " is not installed: skipped\n");
        return false;
    }
    mkdir(home, 0755);
    if (snprintf(conf, sizeof conf, "%s/nginx.conf", home) >= (int)sizeof conf)
        fail_msg("path too long");
    for (int tries = 0; tries < 10; tries++) { /* the port may be taken by another before nginx has it */
        const char *argv[] = {NGINX, "-c", conf, "-p", home, "-e", "stderr", NULL};
        *port = some_port();
        write_conf(conf, home, folder, *port);
        assert_true(proc_start(p, argv, NULL, -1));
        if (answers(p, *port))
            return true;
        proc_wait(p, 1000);
        if (!strstr(proc_text(p, PROC_ERR), "bind()"))
            fail_msg("nginx does not start: %s", proc_text(p, PROC_ERR));
        proc_free(p);
    }
    fail_msg("nginx finds no port");
    return false;
}

uint64_t nginx_bytes(const char *home, const char *name)
{
    char path[PATH_MAX];
    struct buf b = {0};
    struct err e;
    uint64_t sum = 0;
    if (snprintf(path, sizeof path, "%s/access", home) >= (int)sizeof path || io_read_file(path, MAX_LOG, &b, &e) != OK)
        fail_msg("%s", path);
    const size_t n = strlen(name);
    for (const char *line = buf_str(&b), *end; (end = strchr(line, '\n')); line = end + 1) {
        const size_t len = strcspn(line, " \n");
        const char *last = end;
        while (last > line && last[-1] != ' ')
            last--;
        if (len >= n && strncmp(line + len - n, name, n) == 0)
            sum += strtoull(last, NULL, 10);
    }
    buf_free(&b);
    return sum;
}
