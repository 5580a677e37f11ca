/* utf8.h: UTF-8 as Unicode's table 3-7 defines it: no overlong forms, no surrogates, nothing above
 * U+10FFFF. Pure functions and state: no allocation, safe for any input. */
#ifndef OCT_UTF8_H
#define OCT_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the character that starts at s[n], n > 0; 0 if there is none, or only a part of one. */
OCT_API size_t oct_utf8_length(const char *s, size_t n);

/* C0 and DEL in one byte, C1 in two (C2 80..9F). s[n]: a character. */
OCT_API bool oct_utf8_is_control(const char *s, size_t n);

/* Offset of the first byte of text[n] that is not UTF-8, n if all is. */
OCT_API size_t oct_utf8_valid(const char *text, size_t n);

/* 3 if text[n] begins with a byte order mark, which says that it is UTF-8 and is no part of it;
 * else 0. */
OCT_API size_t oct_utf8_bom(const char *text, size_t n);

/* ---- repair of a stream --------------------------------------------------------------------- */

/* Characters may arrive in pieces; bytes that belong to none become U+FFFD, one for each maximal
 * subpart of an ill-formed sequence (Unicode, 3.9, "U+FFFD Substitution of Maximal Subparts").
 * Start from zero. */
typedef struct oct_utf8 {
    bool printable; /* for terminals: control characters but \n and \t become U+FFFD too, so that no
                       text moves the cursor or talks to the terminal */
    char held[4];   /* a character that is not complete yet */
    int n_held;
    int n_due;            /* bytes it lacks */
    unsigned char lo, hi; /* allowed range of the next byte */
} oct_utf8;

/* Room that n bytes can take. */
#define OCT_UTF8_ROOM(n) (3 * ((size_t)(n) + 1) + 4)

/* Takes n bytes; writes what is certain to out[OCT_UTF8_ROOM(n)], returns its length. */
OCT_API size_t oct_utf8_feed(oct_utf8 *u, const char *bytes, size_t n, char *out);
/* The stream ends: a held character becomes U+FFFD. Writes at most 3 bytes, returns how many. */
OCT_API size_t oct_utf8_end(oct_utf8 *u, char *out);

#ifdef __cplusplus
}
#endif
#endif
