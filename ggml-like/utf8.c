#include "utf8.h"

#include <string.h>

static size_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/* How many bytes must follow a first byte b, 0 for ASCII; -1 if no character starts so. The next of
 * them must be in *lo..*hi, the others in 0x80..0xBF. */
static int bytes_due(unsigned char b, unsigned char *lo, unsigned char *hi)
{
    *lo = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80;
    *hi = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    if (b < 0x80)
        return 0;
    if (b < 0xC2 || b > 0xF4)
        return -1;
    return b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
}

size_t oct_utf8_length(const char *s, size_t n)
{
    unsigned char lo, hi;
    int due = bytes_due((unsigned char)s[0], &lo, &hi);
    if (due < 0 || n <= (size_t)due)
        return 0;
    for (int i = 1; i <= due; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < (i == 1 ? lo : 0x80) || c > (i == 1 ? hi : 0xBF))
            return 0;
    }
    return (size_t)due + 1;
}

bool oct_utf8_is_control(const char *s, size_t n)
{
    unsigned char a = (unsigned char)s[0], b = n > 1 ? (unsigned char)s[1] : 0;
    return n == 1 ? a < 0x20 || a == 0x7F : n == 2 && a == 0xC2 && b < 0xA0;
}

size_t oct_utf8_valid(const char *text, size_t n)
{
    for (size_t i = 0, k; i < n; i += k)
        if ((k = oct_utf8_length(text + i, n - i)) == 0)
            return i;
    return n;
}

static size_t put_character(const oct_utf8 *u, const char *c, int n, char *out)
{
    bool line = n == 1 && (c[0] == '\n' || c[0] == '\t');
    if (u->printable && !line && oct_utf8_is_control(c, (size_t)n))
        return put_replacement(out);
    memcpy(out, c, (size_t)n);
    return (size_t)n;
}

/* False if no character starts with b. */
static bool start(oct_utf8 *u, char b)
{
    u->n_due = bytes_due((unsigned char)b, &u->lo, &u->hi);
    if (u->n_due < 0)
        return false;
    u->held[0] = b;
    u->n_held = 1;
    return true;
}

size_t oct_utf8_feed(oct_utf8 *u, const char *bytes, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)bytes[i];
        if (u->n_held > 0 && (b < u->lo || b > u->hi))
            n_out += oct_utf8_end(u, out + n_out);
        if (u->n_held > 0) {
            u->held[u->n_held++] = bytes[i];
            u->n_due--;
            u->lo = 0x80;
            u->hi = 0xBF;
        } else if (!start(u, bytes[i])) {
            n_out += put_replacement(out + n_out);
            continue;
        }
        if (u->n_due == 0) {
            n_out += put_character(u, u->held, u->n_held, out + n_out);
            u->n_held = 0;
        }
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

size_t oct_utf8_bom(const char *text, size_t n)
{
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}
