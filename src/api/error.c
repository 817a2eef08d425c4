/* SPDX-License-Identifier: MIT */
#include "api/request.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool api_fail(struct api_error *x, unsigned status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    *x = (struct api_error){.status = status, .code = code};
    if (param)
        text_clean(param, strlen(param), x->param, sizeof x->param);
    va_start(ap, fmt);
    vsnprintf(x->message, sizeof x->message, fmt, ap);
    va_end(ap);
    return false;
}

const char *api_error_type(unsigned status)
{
    if (status == 401)
        return "authentication_error";
    if (status == 403)
        return "permission_error";
    if (status == 429)
        return "rate_limit_error";
    if (status == 503)
        return "service_unavailable_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

static void put_or_null(struct buf *out, const char *s)
{
    if (s && *s)
        text_put_json(out, s, strlen(s));
    else
        buf_puts(out, "null");
}

void api_error_put(struct buf *out, const struct api_error *x)
{
    char clean[sizeof x->message];
    text_clean(x->message, strlen(x->message), clean, sizeof clean); /* it may quote what the client sent, cut short */
    buf_puts(out, "{\"message\":");
    text_put_json(out, clean, strlen(clean));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", api_error_type(x->status));
    put_or_null(out, x->param);
    buf_puts(out, ",\"code\":");
    put_or_null(out, x->code);
    buf_puts(out, "}");
}
