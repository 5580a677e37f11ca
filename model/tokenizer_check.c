/* tokenizer_check.c: see tokenizer_check.h. Formats: protobuf's wire format; of the fields of
 * sentencepiece_model.proto those on the way to a character map; darts-clone's units of 32 bits. */
#include "tokenizer_check.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECES = 1, /* fields of ModelProto */
    NORMALIZER = 3,
    DENORMALIZER = 5,
    CHARSMAP = 2, /* of NormalizerSpec */
    PIECE = 1,    /* of SentencePiece */
    TYPE = 3,
    USER_DEFINED = 4, /* a value of TYPE */
    VARINT = 0,       /* wire types */
    FIXED64 = 1,
    BYTES = 2,
    FIXED32 = 5,
    MAX_PREFIXES = 32,
    MAX_NESTED = 64, /* user-defined pieces that begin one another */
    MAX_TEXT = 64,   /* the longest of Unicode's NFKC has 33 */
    LABELS = 256
};

/* ---- protobuf ------------------------------------------------------------------------------- */

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static bool read_varint(bytes *b, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (b->at == b->end)
            return false;
        const uint8_t c = *b->at++;
        *v |= shift < 64 ? (uint64_t)(c & 0x7f) << shift : 0;
        if (!(c & 0x80))
            return shift < 63 || c <= 1;
    }
    return false;
}

/* The next field: its number, and what it holds: bytes (else NULL) or a number of variable
 * length. */
static bool read_field(bytes *b, uint64_t *number, bytes *content, uint64_t *value)
{
    uint64_t tag, n;
    *content = (bytes){NULL, NULL};
    *value = 0;
    if (!read_varint(b, &tag) || tag > UINT32_MAX || tag < 8)
        return false;
    *number = tag >> 3;
    const size_t left = (size_t)(b->end - b->at);
    switch (tag & 7) {
    case VARINT: return read_varint(b, value);
    case FIXED64: n = 8; break;
    case FIXED32: n = 4; break;
    case BYTES:
        if (!read_varint(b, &n) || n > INT32_MAX || n > (size_t)(b->end - b->at))
            return false;
        *content = (bytes){b->at, b->at + n};
        b->at += n;
        return true;
    default: return false;
    }
    if (n > left)
        return false;
    b->at += n;
    return true;
}

/* ---- the trie ------------------------------------------------------------------------------- */

/* Where a text may lead: a place from which byte c leads to unit place ^ c. */
typedef struct trie {
    const uint8_t *unit; /* [n] of 4 bytes, little-endian, not aligned */
    uint32_t n;
    const uint8_t *text; /* [n_text] */
    size_t n_text;
    uint8_t *prefixes; /* [n]: most values on any way from a place on, plus 1; 0: not known */
    uint32_t *stack;   /* [n]: places on the way, */
    uint8_t *next;     /* [n]: and by depth the byte that is tried next */
} trie;

enum { OPEN = 255 }; /* in prefixes: a place that is on the way */

static uint32_t unit_at(const trie *t, uint32_t i)
{
    const uint8_t *b = t->unit + 4 * (size_t)i;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & 0x200) >> 6);
}

static bool has_value(uint32_t unit)
{
    return unit >> 8 & 1;
}

/* All bytes may follow, so all of a place's neighbours are looked at. */
static bool is_place(const trie *t, uint32_t place)
{
    return (place | (LABELS - 1)) < t->n;
}

/* Whether the value at a place is the start of a text that ends. */
static bool is_text(const trie *t, uint32_t place)
{
    const uint32_t value = unit_at(t, place) & 0x7fffffffu;
    if (value >= t->n_text)
        return false;
    const size_t left = t->n_text - value;
    return memchr(t->text + value, 0, left < MAX_TEXT + 1 ? left : MAX_TEXT + 1) != NULL;
}

/* What is wrong behind one byte c from a place on; *to: where it leads, UINT32_MAX: nowhere. */
static const char *follow(const trie *t, uint32_t place, uint32_t c, uint32_t *to, bool *value)
{
    const uint32_t at = place ^ c, unit = unit_at(t, at);
    *to = UINT32_MAX;
    *value = false;
    if ((unit & 0x800000ffu) != c)
        return NULL;
    *to = at ^ offset_of(unit);
    *value = has_value(unit);
    if (!is_place(t, *to))
        return "leads out of its trie";
    if (*value && !is_text(t, *to))
        return "has a value that is no text of it, or none of up to 64 bytes";
    return NULL;
}

/* Goes every way from the root, each place once, and counts values. */
static const char *walk(trie *t, uint32_t root)
{
    uint32_t depth = 0;
    if (!is_place(t, root))
        return "leads out of its trie";
    t->stack[0] = root;
    t->next[0] = 0;
    t->prefixes[root] = OPEN;
    bool *value = calloc(t->n, sizeof *value); /* of the step to stack[i + 1] */
    uint8_t *most = calloc(t->n, 1);           /* so far, from stack[i] on */
    bool *done = calloc(t->n, sizeof *done);   /* with byte 255 */
    const char *wrong = value && most && done ? NULL : "needs more memory than there is";
    while (!wrong) {
        const uint32_t place = t->stack[depth];
        if (done[depth]) {
            const uint8_t n = most[depth];
            t->prefixes[place] = (uint8_t)(n + 1);
            if (depth-- == 0)
                break;
            const uint8_t sum = (uint8_t)(n + value[depth]);
            most[depth] = sum > most[depth] ? sum : most[depth];
            if (sum > MAX_PREFIXES)
                wrong = "has a text with more than 32 prefixes in it";
            continue;
        }
        uint32_t to;
        const uint8_t c = t->next[depth]++;
        done[depth] = c == LABELS - 1;
        wrong = follow(t, place, c, &to, &value[depth]);
        if (wrong || to == UINT32_MAX)
            continue;
        if (t->prefixes[to] == OPEN) {
            wrong = "goes round in its trie";
        } else if (t->prefixes[to]) {
            const uint8_t sum = (uint8_t)(t->prefixes[to] - 1 + value[depth]);
            most[depth] = sum > most[depth] ? sum : most[depth];
            if (sum > MAX_PREFIXES)
                wrong = "has a text with more than 32 prefixes in it";
        } else {
            t->prefixes[to] = OPEN;
            t->stack[++depth] = to;
            t->next[depth] = 0;
            most[depth] = 0;
            done[depth] = false;
        }
    }
    free(done);
    free(most);
    free(value);
    return wrong;
}

static oct_status check_map(const bytes *map, const char *whose, oct_error *err)
{
    const size_t n = (size_t)(map->end - map->at);
    const uint8_t *b = map->at;
    const char *wrong = NULL;
    if (n == 0)
        return OCT_OK;
    const uint32_t trie_bytes =
        n < 4 ? 0 : b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    if (n < 4 || trie_bytes > n - 4 || trie_bytes % 4 || trie_bytes / 4 < LABELS)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "tokenizer: the character map of its %s (%zu bytes) is cut "
                        "off or no map: its trie has %u bytes",
                        whose, n, trie_bytes);
    trie t = {.unit = b + 4,
              .n = trie_bytes / 4,
              .text = b + 4 + trie_bytes,
              .n_text = n - 4 - trie_bytes};
    t.prefixes = calloc(t.n, 1);
    t.next = malloc(t.n);
    t.stack = malloc(t.n * sizeof *t.stack);
    if (t.prefixes && t.next && t.stack)
        wrong = walk(&t, offset_of(unit_at(&t, 0)));
    else
        wrong = "needs more memory than there is";
    free(t.stack);
    free(t.next);
    free(t.prefixes);
    if (!wrong)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_FORMAT, "tokenizer: the character map of its %s %s", whose, wrong);
}

/* ---- the model ------------------------------------------------------------------------------ */

static oct_status broken(const uint8_t *start, const uint8_t *at, oct_error *err)
{
    return oct_fail(err, OCT_ERR_FORMAT,
                    "tokenizer: not a SentencePiece model: no protobuf field at byte %zu",
                    (size_t)(at - start));
}

/* Fields may be repeated: the last counts, or they are merged. All are checked. */
static oct_status check_spec(const uint8_t *start, bytes spec, const char *whose, oct_error *err)
{
    while (spec.at < spec.end) {
        const uint8_t *at = spec.at;
        uint64_t number, value;
        bytes content;
        if (!read_field(&spec, &number, &content, &value))
            return broken(start, at, err);
        if (number == CHARSMAP && content.at)
            OCT_TRY(check_map(&content, whose, err));
    }
    return OCT_OK;
}

/* Adds a piece to user[*n] if it is user-defined, or may be to the library: of several texts the
 * last counts, of several types the last that it knows. user may be NULL: counted only. */
static oct_status add_user_piece(const uint8_t *start, bytes piece, bytes *user, size_t *n,
                                 oct_error *err)
{
    bytes text = {piece.end, piece.end};
    bool is_user = false;
    while (piece.at < piece.end) {
        const uint8_t *at = piece.at;
        uint64_t number, value;
        bytes content;
        if (!read_field(&piece, &number, &content, &value))
            return broken(start, at, err);
        if (number == PIECE && content.at)
            text = content;
        is_user |= number == TYPE && (uint32_t)value == USER_DEFINED;
    }
    if (is_user && user)
        user[*n] = text;
    *n += is_user;
    return OCT_OK;
}

static bool begins(const bytes *a, const bytes *b)
{
    const size_t n = (size_t)(a->end - a->at);
    return n <= (size_t)(b->end - b->at) && memcmp(a->at, b->at, n) == 0;
}

/* By bytes; one that begins another comes before it. */
static int by_text(const void *a, const void *b)
{
    const bytes *x = a, *y = b;
    const size_t n = (size_t)(x->end - x->at), k = (size_t)(y->end - y->at);
    const int order = memcmp(x->at, y->at, n < k ? n : k);
    return order ? order : (n > k) - (n < k);
}

/* The library looks for the user-defined pieces that a text begins with, keeps MAX_NESTED of
 * them on the stack, and then reads as many as it has found. */
static oct_status check_nested(bytes *user, size_t n, oct_error *err)
{
    bytes open[MAX_NESTED];
    int depth = 0;
    qsort(user, n, sizeof *user, by_text);
    for (size_t i = 0; i < n; i++) {
        while (depth > 0 && !begins(&open[depth - 1], &user[i]))
            depth--;
        if (depth == MAX_NESTED)
            return oct_fail(err, OCT_ERR_FORMAT,
                            "tokenizer: more than %d user-defined pieces begin one another, up to "
                            "one of %zu bytes",
                            MAX_NESTED, (size_t)(user[i].end - user[i].at));
        open[depth++] = user[i];
    }
    return OCT_OK;
}

/* All pieces of a model; user as of add_user_piece. */
static oct_status list_user_pieces(bytes b, bytes *user, size_t *n, oct_error *err)
{
    const uint8_t *start = b.at;
    *n = 0;
    while (b.at < b.end) {
        const uint8_t *at = b.at;
        uint64_t number, value;
        bytes content;
        if (!read_field(&b, &number, &content, &value))
            return broken(start, at, err);
        if (number == PIECES && content.at)
            OCT_TRY(add_user_piece(start, content, user, n, err));
    }
    return OCT_OK;
}

static oct_status check_pieces(bytes b, oct_error *err)
{
    size_t n;
    OCT_TRY(list_user_pieces(b, NULL, &n, err));
    if (n <= MAX_NESTED)
        return OCT_OK;
    bytes *user = malloc(n * sizeof *user);
    if (!user)
        return oct_fail(err, OCT_ERR_MEMORY, "tokenizer: no memory for %zu pieces", n);
    oct_status status = list_user_pieces(b, user, &n, err);
    if (status == OCT_OK)
        status = check_nested(user, n, err);
    free(user);
    return status;
}

oct_status oct_spm_check(const void *data, size_t n, oct_error *err)
{
    bytes b = {data, (const uint8_t *)data + n};
    OCT_TRY(check_pieces(b, err));
    while (b.at < b.end) {
        const uint8_t *at = b.at;
        uint64_t number, value;
        bytes content;
        if (!read_field(&b, &number, &content, &value))
            return broken(data, at, err);
        if (content.at && (number == NORMALIZER || number == DENORMALIZER))
            OCT_TRY(check_spec(data, content, number == NORMALIZER ? "normalizer" : "denormalizer",
                               err));
    }
    return OCT_OK;
}
