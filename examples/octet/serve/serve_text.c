#include "serve_text.h"

#include <stdlib.h>
#include <string.h>

/* Makes room for n more elements of a size. */
static void *grow(void *p, size_t have, size_t more, size_t *room, size_t size)
{
    if (more <= *room - have)
        return p;
    size_t n = 2 * (have + more) + 32;
    void *q = n < SIZE_MAX / size ? realloc(p, n * size) : NULL;
    if (q)
        *room = n;
    return q;
}

/* The first stop string in bytes[from..n); SIZE_MAX: none. */
static size_t find_stop(const oct_serve_text *t, size_t from)
{
    size_t first = SIZE_MAX;
    for (int i = 0; t->n > 0 && t->stops && i < t->stops->count; i++) {
        const size_t longest = t->stops->n[i] - 1, start = from > longest ? from - longest : 0;
        const char *at = memmem(t->bytes + start, t->n - start, t->stops->text[i], t->stops->n[i]);
        if (at && (size_t)(at - t->bytes) < first)
            first = (size_t)(at - t->bytes);
    }
    return first;
}

/* The text ends before the stop string, and its tokens with the last that says a part of it. */
static void cut(oct_serve_text *t, size_t n)
{
    t->n = n;
    t->ended = t->stopped = true;
    while (t->n_tokens > 0 && (t->n_tokens > 1 ? t->tokens[t->n_tokens - 2].end : 0) >= n)
        t->n_tokens--;
    if (t->n_tokens > 0)
        t->tokens[t->n_tokens - 1].end = n;
    t->n_whole = t->n_tokens;
}

static bool append(oct_serve_text *t, const char *bytes, size_t n)
{
    enum { PART = 64 };
    for (size_t at = 0; at < n; at += PART) {
        size_t part = n - at < PART ? n - at : PART;
        char *p = grow(t->bytes, t->n, OCT_UTF8_ROOM(part), &t->room, 1);
        if (!p)
            return false;
        t->bytes = p;
        t->n += oct_utf8_feed(&t->utf8, bytes + at, part, t->bytes + t->n);
    }
    return true;
}

bool oct_serve_text_add(oct_serve_text *t, int32_t id, const char *bytes, size_t n_bytes,
                        double logprob, const oct_token_logprob *top, int64_t n_top)
{
    const size_t before = t->n;
    size_t room = (size_t)t->room_tokens;
    if (t->ended)
        return true;
    oct_serve_token *tokens = grow(t->tokens, (size_t)t->n_tokens, 1, &room, sizeof *t->tokens);
    if (!tokens)
        return false;
    t->tokens = tokens;
    t->room_tokens = (int64_t)room;
    if (n_top > 0) {
        void *tops = grow(t->tops, t->n_tops, (size_t)n_top, &t->room_tops, sizeof *t->tops);
        if (!tops)
            return false;
        t->tops = tops;
        memcpy(t->tops + t->n_tops, top, (size_t)n_top * sizeof *top);
    }
    if (!append(t, bytes, n_bytes))
        return false;
    t->tokens[t->n_tokens++] = (oct_serve_token){id, logprob, (int32_t)n_top, t->n_tops, t->n};
    t->n_tops += (size_t)(n_top > 0 ? n_top : 0);
    if (t->utf8.n_held == 0)
        t->n_whole = t->n_tokens;
    size_t stop = find_stop(t, before);
    if (stop != SIZE_MAX)
        cut(t, stop);
    return true;
}

void oct_serve_text_end(oct_serve_text *t)
{
    char rest[OCT_UTF8_ROOM(0)];
    if (t->ended)
        return;
    const size_t before = t->n, n = oct_utf8_end(&t->utf8, rest);
    char *p = grow(t->bytes, t->n, n, &t->room, 1);
    if (p && n > 0) {
        t->bytes = p;
        memcpy(t->bytes + t->n, rest, n);
        t->n += n;
    }
    t->ended = true;
    t->n_whole = t->n_tokens;
    if (t->n_tokens > 0)
        t->tokens[t->n_tokens - 1].end = t->n;
    size_t stop = find_stop(t, before);
    if (stop != SIZE_MAX)
        cut(t, stop);
}

/* Bytes that are not the beginning of a stop string which may still come. */
static size_t certain(const oct_serve_text *t)
{
    size_t held = 0;
    for (int i = 0; t->stops && i < t->stops->count; i++) {
        size_t n = t->stops->n[i] - 1;
        for (n = n < t->n ? n : t->n; n > held; n--)
            if (memcmp(t->bytes + t->n - n, t->stops->text[i], n) == 0)
                held = n;
    }
    return t->n - held;
}

void oct_serve_text_ready(const oct_serve_text *t, size_t *n, int64_t *n_tokens)
{
    const size_t limit = t->ended || t->n == 0 ? t->n : certain(t);
    int64_t k = t->n_whole;
    while (k > 0 && t->tokens[k - 1].end > limit)
        k--;
    *n_tokens = k;
    *n = k > 0 ? t->tokens[k - 1].end : 0;
    if (t->ended)
        *n = t->n;
}

void oct_serve_text_free(oct_serve_text *t)
{
    free(t->bytes);
    free(t->tokens);
    free(t->tops);
    *t = (oct_serve_text){0};
}
