/* serve_text.h: one text of an answer while it grows: its tokens, their bytes as valid UTF-8, and the
 * stop strings that end it. Whole tokens are given out, as far as it is certain that what they say
 * belongs to the text: neither a character that is not complete nor what may be the beginning of a
 * stop string. */
#ifndef OCT_SERVE_TEXT_H
#define OCT_SERVE_TEXT_H

#include <octet/octet.h>
#include <octet/utf8.h>

enum { OCT_SERVE_STOPS = 16 };

typedef struct oct_serve_stops {
    char *text[OCT_SERVE_STOPS]; /* malloc'd, not empty */
    size_t n[OCT_SERVE_STOPS];
    int count;
} oct_serve_stops;

typedef struct oct_serve_token {
    int32_t id;
    double logprob;
    int32_t n_top;
    size_t top; /* index of the first of its n_top */
    size_t end; /* of the text, with this token */
} oct_serve_token;

/* Zero, but for stops. */
typedef struct oct_serve_text {
    const oct_serve_stops *stops; /* borrowed */
    char *bytes;                  /* [n] valid UTF-8 */
    size_t n, room;
    oct_serve_token *tokens; /* [n_tokens] */
    int64_t n_tokens, room_tokens;
    oct_token_logprob *tops;
    size_t n_tops, room_tops;
    bool ended;   /* nothing is held back any more */
    bool stopped; /* by a stop string: it and what followed are not in the text */
    oct_utf8 utf8;
    int64_t n_whole; /* tokens up to the last that ended with a complete character */
} oct_serve_text;

/* Appends a token: bytes[n_bytes], its likeliest alternatives top[n_top]. False: no memory. */
bool oct_serve_text_add(oct_serve_text *t, int32_t id, const char *bytes, size_t n_bytes,
                        double logprob, const oct_token_logprob *top, int64_t n_top);
/* Nothing follows: an unfinished character becomes U+FFFD. */
void oct_serve_text_end(oct_serve_text *t);
/* Bytes and tokens that may be given out now. */
void oct_serve_text_ready(const oct_serve_text *t, size_t *n, int64_t *n_tokens);
void oct_serve_text_free(oct_serve_text *t);

#endif
