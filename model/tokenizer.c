/* tokenizer.c: what the tokenizer needs beside the library. */
#include "tokenizer.h"

/* Bytes of the UTF-8 sequence that starts at s (at most n), 0 if it is not one. The ranges are
 * those of table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above
 * U+10FFFF. */
static size_t sequence_bytes(const unsigned char *s, size_t n)
{
    unsigned char c = s[0];
    if (c < 0x80)
        return 1;
    size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || n < len)
        return 0;
    unsigned char lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    unsigned char hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < lo || s[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++)
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    return len;
}

size_t oct_utf8_valid(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        size_t len = sequence_bytes((const unsigned char *)text + i, n - i);
        if (len == 0)
            return i;
        i += len;
    }
    return n;
}
