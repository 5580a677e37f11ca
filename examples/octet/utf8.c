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

/* C0 and DEL in one byte, C1 in two (C2 80..9F). */
static bool is_control(const unsigned char *c, int n)
{
    if (n == 1)
        return (c[0] < 0x20 && c[0] != '\n' && c[0] != '\t') || c[0] == 0x7F;
    return n == 2 && c[0] == 0xC2 && c[1] < 0xA0;
}

static size_t put_character(const oct_utf8 *u, const unsigned char *c, int n, char *out)
{
    if (u->printable && is_control(c, n))
        return put_replacement(out);
    memcpy(out, c, (size_t)n);
    return (size_t)n;
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
                    n_out += put_character(u, u->held, u->n_held, out + n_out);
                    u->n_held = 0;
                }
                continue;
            }
            n_out += oct_utf8_end(u, out + n_out);
        }
        if (b < 0x80)
            n_out += put_character(u, &b, 1, out + n_out);
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
