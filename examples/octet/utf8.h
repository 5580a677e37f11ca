/* utf8.h: makes a stream of bytes valid UTF-8. Characters may arrive in pieces; bytes that belong
 * to none become U+FFFD, one for each maximal subpart of an ill-formed sequence (Unicode, 3.9,
 * "U+FFFD Substitution of Maximal Subparts"). Pure state, no allocation, safe for any input. */
#ifndef OCT_UTF8_H
#define OCT_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Start from zero. */
typedef struct oct_utf8 {
    bool printable;        /* for terminals: control characters but \n and \t become U+FFFD too, so
                              that no text moves the cursor or talks to the terminal */
    unsigned char held[4]; /* a character that is not complete yet */
    int n_held;
    int n_due;            /* bytes it lacks */
    unsigned char lo, hi; /* allowed range of the next byte */
} oct_utf8;

/* Room that n bytes can take. */
#define OCT_UTF8_ROOM(n) (3 * ((size_t)(n) + 1) + 4)

/* Takes n bytes; writes what is certain to out[OCT_UTF8_ROOM(n)], returns its length. */
size_t oct_utf8_feed(oct_utf8 *u, const char *bytes, size_t n, char *out);
/* The stream ends: a held character becomes U+FFFD. Writes at most 3 bytes, returns how many. */
size_t oct_utf8_end(oct_utf8 *u, char *out);

#endif
