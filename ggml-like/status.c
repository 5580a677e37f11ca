/* status.c: errors as values, see status.h. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

/* Length of the UTF-8 sequence at s, 0 if there is none (or if it is a control character). Stops at
 * the terminating NUL because that is no continuation byte. Range limits: Unicode, table 3-7. */
static int printable_sequence(const unsigned char *s)
{
    unsigned lo = 0x80, hi = 0xbf;
    int n;

    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        n = 2;
    else if (s[0] >= 0xe0 && s[0] <= 0xef)
        n = 3;
    else if (s[0] >= 0xf0 && s[0] <= 0xf4)
        n = 4;
    else
        return 0;
    if (s[0] == 0xc2 || s[0] == 0xe0)
        lo = 0xa0; /* C1 controls; overlong forms */
    else if (s[0] == 0xf0)
        lo = 0x90;
    else if (s[0] == 0xed)
        hi = 0x9f; /* surrogates */
    else if (s[0] == 0xf4)
        hi = 0x8f;
    if (s[1] < lo || s[1] > hi)
        return 0;
    for (int i = 2; i < n; i++)
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    return n;
}

oct_status oct_fail(oct_error *err, oct_status status, const char *fmt, ...)
{
    va_list args;

    if (!err || err->status != OCT_OK)
        return status;
    err->status = status;
    va_start(args, fmt);
    if (vsnprintf(err->text, sizeof err->text, fmt, args) < 0)
        err->text[0] = '\0';
    va_end(args);
    /* Names from files may hold anything; an error line must stay one line, and text. */
    for (size_t i = 0; err->text[i];) {
        int n = printable_sequence((const unsigned char *)&err->text[i]);
        if (n == 0)
            err->text[i] = '?';
        i += n ? (size_t)n : 1;
    }
    return status;
}

const char *oct_status_name(oct_status s)
{
    switch (s) {
    case OCT_OK: return "ok";
    case OCT_ERR_MEMORY: return "memory";
    case OCT_ERR_IO: return "io";
    case OCT_ERR_FORMAT: return "format";
    case OCT_ERR_SHAPE: return "shape";
    case OCT_ERR_UNSUPPORTED: return "unsupported";
    case OCT_ERR_ARG: return "argument";
    case OCT_ERR_COMM: return "communication";
    case OCT_ERR_DEVICE: return "device";
    case OCT_ERR_CANCELLED: return "cancelled";
    case OCT_ERR_NUMERIC: return "numeric";
    case OCT_ERR_FULL: return "full";
    }
    return "unknown";
}
