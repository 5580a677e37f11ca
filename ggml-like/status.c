/* status.c: errors as values, see status.h. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "utf8.h"

/* In brackets since the analyser has a macro of this name. */
oct_status(oct_fail)(oct_error *err, oct_status status, const char *fmt, ...)
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
    size_t length = strlen(err->text);
    for (size_t i = 0, n; i < length; i += n ? n : 1) {
        n = oct_utf8_length(err->text + i, length - i);
        if (n == 0 || oct_utf8_is_control(err->text + i, n)) {
            memset(err->text + i, '?', n ? n : 1);
        }
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
