/* fuzz_tokenizer.c: SentencePiece models, with structure. The input is a program that edits a
 * model: its first byte picks one of the models below, the rest are edits of fields, so that
 * what reaches the library is nearly always a protobuf message; 0xff in front: the rest is the
 * model itself. What is accepted encodes and decodes. */
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "tokenizer.h"
#include "utf8.h"

enum { ROOM = 1 << 16, MAX_PIECES = 64, MAX_UNITS = 4096, MAX_TEXT = 512 };

/* ---- a message ------------------------------------------------------------------------------ */

typedef struct message {
    uint8_t b[ROOM];
    size_t n;
} message;

static void put(message *m, const void *data, size_t n)
{
    if (n <= ROOM - m->n) {
        memcpy(m->b + m->n, data, n);
        m->n += n;
    }
}

static void put_varint(message *m, uint64_t v)
{
    uint8_t b[10];
    size_t n = 0;
    do {
        b[n++] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
    } while (v);
    put(m, b, n);
}

static void put_bytes(message *m, uint32_t field, const void *data, size_t n)
{
    put_varint(m, field << 3 | 2);
    put_varint(m, n);
    put(m, data, n);
}

static void put_number(message *m, uint32_t field, uint64_t v)
{
    put_varint(m, field << 3);
    put_varint(m, v);
}

/* ---- what the input says -------------------------------------------------------------------- */

typedef struct script {
    const uint8_t *at, *end;
} script;

static uint8_t next(script *s)
{
    return s->at < s->end ? *s->at++ : 0;
}

static uint32_t next32(script *s)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v = v << 8 | next(s);
    return v;
}

static void put_piece(message *m, const void *piece, size_t n, float score, uint64_t type)
{
    static message inner;
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    inner.n = 0;
    put_bytes(&inner, 1, piece, n);
    put_varint(&inner, 2 << 3 | 5);
    put(&inner, &bits, sizeof bits);
    put_number(&inner, 3, type);
    put_bytes(m, 1, inner.b, inner.n);
}

/* Control pieces, all bytes, and pieces of the script: texts, scores, types. */
static void put_pieces(message *m, script *s)
{
    char byte[8];
    put_piece(m, "<pad>", 5, 0, 3);
    put_piece(m, "<s>", 3, 0, 3);
    put_piece(m, "</s>", 4, 0, 3);
    put_piece(m, "<unk>", 5, 0, 2);
    for (int i = 0; i < 256; i++) {
        snprintf(byte, sizeof byte, "<0x%02X>", i);
        put_piece(m, byte, 6, 0, 6);
    }
    for (int k = next(s) % MAX_PIECES; k > 0; k--) {
        static const uint8_t types[] = {1, 1, 1, 1, 1, 4, 5, 3, 2, 6, 0, 77};
        uint8_t piece[16];
        const size_t n = next(s) % sizeof piece;
        const uint32_t bits = next32(s);
        float score;
        memcpy(&score, &bits, sizeof score);
        if (k % 4) /* usual scores mostly */
            score = -(float)k;
        for (size_t i = 0; i < n; i++)
            piece[i] = next(s) % 8 ? "abc \xe2\x96\x81"
                                     "e0"[next(s) % 9]
                                   : next(s);
        put_piece(m, piece, n, score, types[next(s) % sizeof types]);
    }
}

/* Pieces that begin one another, of one type. */
static void put_chain(message *m, script *s)
{
    char piece[160];
    const int n = next(s) % 128;
    const uint64_t type = 1 + next(s) % 5;
    memset(piece, 'a' + next(s) % 3, sizeof piece);
    for (int i = 0; i < n; i++)
        put_piece(m, piece, 17 + (size_t)i, -(float)i, type);
}

/* A double-array trie of whole blocks: edges are entered as the script says, right or not. */
static size_t make_map(script *s, uint8_t *map)
{
    const uint32_t units = 256u * (1 + next(s) % 4);
    uint32_t unit[1024] = {0};
    char text[64];
    for (uint32_t i = 0; i < units; i++)
        unit[i] = 0x80; /* a label that matches few bytes */
    for (int k = next(s); k > 0; k--) {
        const uint32_t at = next32(s) % units;
        const uint8_t kind = next(s);
        const uint32_t offset =
            kind & 4 ? next32(s) : 256u * (next(s) % 4) + (kind & 8 ? next(s) : 0);
        unit[at] = kind & 1 ? (0x80000000u | (kind & 2 ? next32(s) : next(s) % 64))
                            : ((at & 0xff) ^ (kind & 16 ? next(s) : 0)) | (kind & 32 ? 0x100 : 0) |
                                  (kind & 64 ? 0x200 : 0) | (offset & 0x3fffff) << 10;
    }
    uint32_t bytes = units * 4;
    const uint8_t lie = next(s);
    if (lie > 250)
        bytes = next32(s);
    else if (lie > 240)
        bytes += lie - 245;
    memcpy(map, &bytes, 4);
    memcpy(map + 4, unit, units * 4);
    const size_t n_text = next(s) % sizeof text;
    for (size_t i = 0; i < n_text; i++)
        text[i] = (char)next(s);
    memcpy(map + 4 + units * 4, text, n_text);
    return 4 + units * 4 + n_text;
}

static void put_normalizer(message *m, script *s, uint32_t field)
{
    static message inner;
    static uint8_t map[8192];
    const uint8_t what = next(s);
    inner.n = 0;
    put_bytes(&inner, 1, "x", 1);
    if (what & 1)
        put_bytes(&inner, 2, map, make_map(s, map));
    if (what & 2)
        put_bytes(&inner, 2, s->at, (size_t)(s->end - s->at) / 2);
    put_number(&inner, 3, what >> 2 & 1);
    put_number(&inner, 4, what >> 3 & 1);
    if (what & 16)
        put_number(&inner, 5, what >> 5 & 1);
    put_bytes(m, field, inner.b, inner.n);
}

static void make_model(message *m, script *s)
{
    static message trainer;
    const uint8_t what = next(s);
    trainer.n = 0;
    put_number(&trainer, 3, 1 + what % 4); /* unigram, BPE, word, char */
    put_number(&trainer, 35, what >> 3 & 1);
    put_number(&trainer, 24, what >> 4 & 1);
    const uint32_t ids[] = {40, 41, 42, 43};
    const uint32_t values[] = {3, 1, 2, 0};
    for (int i = 0; i < 4; i++)
        put_number(&trainer, ids[i], what & 128 ? next(s) : values[i]);
    put_pieces(m, s);
    put_bytes(m, 2, trainer.b, trainer.n);
    put_normalizer(m, s, 3);
    if (what & 32)
        put_normalizer(m, s, 5);
    if (what & 64) { /* once more: merged with the first */
        put_normalizer(m, s, 3);
        put(m, s->at, (size_t)(s->end - s->at));
    } else {
        put_chain(m, s);
    }
}

/* ---- use ------------------------------------------------------------------------------------ */

static void use(const oct_spm *t, const char *text, size_t n)
{
    oct_error err = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0, n_back = 0;
    char *back = NULL;
    const int32_t size = oct_spm_size(t);
    if (oct_spm_encode(t, text, n, &ids, &n_ids, &err) == OCT_OK) {
        for (size_t i = 0; i < n_ids; i++)
            FUZZ_CHECK(ids[i] >= 0 && ids[i] < size);
        if (oct_spm_decode(t, ids, n_ids, &back, &n_back, &err) == OCT_OK)
            FUZZ_CHECK(back[n_back] == 0);
    }
    free(back);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static message m;
    oct_spm *t = NULL;
    oct_error err = {0};
    script s = {data, data + n};
    m.n = 0;
    if (next(&s) == 0xff)
        put(&m, s.at, (size_t)(s.end - s.at));
    else
        make_model(&m, &s);
    if (oct_spm_new(m.b, m.n, &t, &err) != OCT_OK) {
        FUZZ_CHECK(err.text[0] && !t);
        return 0;
    }
    static const char *const texts[] = {"",
                                        " ",
                                        "a",
                                        "abc abc",
                                        "  abc\n\n\t 0x1F caf\xc3\xa9 \xe2\x96\x81",
                                        "\xf0\x9f\xa6\x99\xef\xbb\xbf\xe1\x84\x80\xe1\x85\xa1"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        use(t, texts[i], strlen(texts[i]));
    char text[MAX_TEXT];
    size_t n_text = 0;
    for (int c = 0; c < 256; c++) /* every byte as a first one that ASCII allows */
        if (c < 0x80)
            text[n_text++] = (char)c;
    use(t, text, n_text);
    n_text = 0; /* and what the input says, as far as it is a text */
    while (s.end > data && n_text < MAX_TEXT && n_text < n) {
        text[n_text] = (char)data[n - 1 - n_text];
        n_text++;
    }
    use(t, text, oct_utf8_valid(text, n_text));
    for (int32_t id = 0; id < oct_spm_size(t); id++) {
        size_t k;
        float score;
        enum oct_spm_type type;
        FUZZ_CHECK(oct_spm_piece(t, id, &k, &score, &type) && oct_spm_bytes(t, id, &k));
        if (id >= 260) {
            char *back = NULL;
            if (oct_spm_decode(t, &id, 1, &back, &k, &err) == OCT_OK)
                free(back);
        }
    }
    oct_spm_free(t);
    return 0;
}
