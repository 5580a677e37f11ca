#include "utf8.h"

#include <string.h>

static size_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/* Starts a character with byte b; false if no character starts so. The ranges of second bytes are
 * those of Unicode's table of well-formed sequences: no overlong forms, no surrogates, nothing
 * above U+10FFFF. */
static int start(oct_utf8 *u, unsigned char b)
{
    u->lo = 0x80;
    u->hi = 0xBF;
    if (b >= 0xC2 && b <= 0xDF)
        u->n_due = 1;
    else if (b >= 0xE0 && b <= 0xEF)
        u->n_due = 2;
    else if (b >= 0xF0 && b <= 0xF4)
        u->n_due = 3;
    else
        return 0;
    if (b == 0xE0)
        u->lo = 0xA0;
    else if (b == 0xED)
        u->hi = 0x9F;
    else if (b == 0xF0)
        u->lo = 0x90;
    else if (b == 0xF4)
        u->hi = 0x8F;
    u->held[0] = b;
    u->n_held = 1;
    return 1;
}

size_t oct_utf8_feed(oct_utf8 *u, const char *bytes, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)bytes[i];
        if (u->n_held > 0) {
            if (b >= u->lo && b <= u->hi) {
                u->held[u->n_held++] = b;
                u->lo = 0x80;
                u->hi = 0xBF;
                if (--u->n_due == 0) {
                    memcpy(out + n_out, u->held, (size_t)u->n_held);
                    n_out += (size_t)u->n_held;
                    u->n_held = 0;
                }
                continue;
            }
            n_out += oct_utf8_end(u, out + n_out);
        }
        if (b < 0x80)
            out[n_out++] = (char)b;
        else if (!start(u, b))
            n_out += put_replacement(out + n_out);
    }
    return n_out;
}

size_t oct_utf8_end(oct_utf8 *u, char *out)
{
    if (u->n_held == 0)
        return 0;
    u->n_held = 0;
    u->n_due = 0;
    return put_replacement(out);
}
