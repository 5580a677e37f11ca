/* test_tokenizer_check.c: character maps that the SentencePiece library would follow beyond their
 * ends are refused before it sees them; right ones do what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tokenizer.h"

enum { UNITS = 1024, VALUE = 1 << 8, ROOM = 1 << 17 };

/* The shipped tokenizer, which has no map. */
static uint8_t shipped[ROOM];
static size_t n_shipped;

/* A map: "a" becomes "b", "ab" becomes "in". Places of the trie begin at 256, 512, 768. */
typedef struct map {
    uint32_t trie_bytes, unit[UNITS];
    char text[128];
    size_t n_text;
} map;

static uint32_t edge(uint32_t from, char c, uint32_t to, bool value)
{
    return (uint8_t)c | (value ? VALUE : 0) | ((from ^ (uint8_t)c) ^ to) << 10;
}

static map good_map(void)
{
    map m = {.trie_bytes = 4 * UNITS, .text = "b\0in", .n_text = 5};
    for (uint32_t i = 0; i < UNITS; i++)
        m.unit[i] = (i & 0xff) ^ 1; /* no byte leads here */
    m.unit[0] = 256 << 10;
    m.unit[256 ^ 'a'] = edge(256, 'a', 512, true);
    m.unit[512] = 0x80000000u | 0;
    m.unit[512 ^ 'b'] = edge(512, 'b', 768, true);
    m.unit[768] = 0x80000000u | 2;
    return m;
}

/* What "ab" becomes: n bytes. */
static void put_text(map *m, size_t n)
{
    memset(m->text + 2, 'n', n);
    m->text[2 + n] = '\0';
    m->n_text = 2 + n + 1;
}

static size_t put_varint(uint8_t *b, uint64_t v)
{
    size_t n = 0;
    for (; v > 0x7f; v >>= 7)
        b[n++] = (uint8_t)(v | 0x80);
    b[n++] = (uint8_t)v;
    return n;
}

/* The shipped model and one more field: a normalizer's (3) or denormalizer's (5) map. */
static size_t with_map(const map *m, uint8_t field, uint8_t *out)
{
    const size_t n_map = 4 + sizeof m->unit + m->n_text;
    uint8_t head[16], inner[16];
    size_t n_inner = 0, n = n_shipped;
    inner[n_inner++] = 2 << 3 | 2;
    n_inner += put_varint(inner + n_inner, n_map);
    head[0] = (uint8_t)(field << 3 | 2);
    const size_t n_head = 1 + put_varint(head + 1, n_inner + n_map);
    memcpy(out, shipped, n_shipped);
    memcpy(out + n, head, n_head);
    n += n_head;
    memcpy(out + n, inner, n_inner);
    n += n_inner;
    memcpy(out + n, &m->trie_bytes, 4);
    memcpy(out + n + 4, m->unit, sizeof m->unit);
    memcpy(out + n + 4 + sizeof m->unit, m->text, m->n_text);
    return n + n_map;
}

static void same_ids(const oct_spm *t, const char *a, const char *b)
{
    int32_t *x, *y;
    size_t n, k;
    oct_error err = {0};
    assert_int_equal(oct_spm_encode(t, a, strlen(a), &x, &n, &err), OCT_OK);
    assert_int_equal(oct_spm_encode(t, b, strlen(b), &y, &k, &err), OCT_OK);
    assert_int_equal(n, k);
    assert_memory_equal(x, y, n * sizeof *x);
    free(x);
    free(y);
}

static void test_good_map(void **state)
{
    static uint8_t model[ROOM];
    const map m = good_map();
    oct_spm *t;
    oct_error err = {0};
    (void)state;
    if (oct_spm_new(model, with_map(&m, 3, model), &t, &err) != OCT_OK)
        fail_msg("%s", err.text);
    same_ids(t, "xa xab aab", "xb xin bin");
    oct_spm_free(t);
    map longest = good_map();
    put_text(&longest, 64);
    if (oct_spm_new(model, with_map(&longest, 3, model), &t, &err) != OCT_OK)
        fail_msg("%s", err.text);
    char of_64[66] = "x";
    memset(of_64 + 1, 'n', 64);
    same_ids(t, "xab", of_64);
    oct_spm_free(t);
    if (oct_spm_new(model, with_map(&m, 5, model), &t, &err) != OCT_OK)
        fail_msg("%s", err.text);
    char *text;
    size_t n;
    int32_t *ids;
    assert_int_equal(oct_spm_encode(t, "ab", 2, &ids, &n, &err), OCT_OK);
    assert_int_equal(oct_spm_decode(t, ids, n, &text, &n, &err), OCT_OK);
    assert_string_equal(text, "\xe2\x96\x81in"); /* with the mark of a first word */
    free(text);
    free(ids);
    oct_spm_free(t);
}

/* A way of 33 bytes with a value behind each. */
static void make_long(map *m)
{
    for (uint32_t i = 0; i < 33; i++) {
        const uint32_t from = 256 ^ (2 * i), to = 256 ^ (2 * (i + 1));
        m->unit[from ^ 'a'] = edge(from, 'a', to, true);
        m->unit[to] = 0x80000000u;
    }
}

static void bend(map *m, int how)
{
    switch (how) {
    case 0: m->trie_bytes = 4 * UNITS + 8; break;
    case 1: m->trie_bytes = 0xfffffffc; break;
    case 2: m->trie_bytes = 4 * UNITS - 2; break;
    case 3: m->trie_bytes = 1020; break;
    case 4: m->unit[0] = UNITS << 10; break;
    case 5: m->unit[0] = 0x3fffffu << 10 | 0x200; break;
    case 6: m->unit[512 ^ 'b'] = edge(512, 'b', UNITS, true); break;
    case 7: m->unit[512 ^ 'b'] = edge(512, 'b', 0x1fff00, false); break;
    case 8: m->unit[512] = 0x80000000u | 5; break;
    case 9: m->unit[768] = 0xffffffffu; break;
    case 10: m->n_text = 4; break;
    case 11: m->n_text = 0; break;
    case 12: m->unit[512 ^ 'b'] = edge(512, 'b', 256, true); break;
    case 13: m->unit[512 ^ 'b'] = edge(512, 'b', 512, false); break;
    case 14: m->unit[512 ^ 0x7f] = 0x7f | (1000u << 10) | 0x200; break;
    case 15: put_text(m, 65); break;
    default: make_long(m); break;
    }
}

static void test_bad_maps(void **state)
{
    static const char *const says[] = {"is cut off or no map",
                                       "is cut off or no map",
                                       "is cut off or no map",
                                       "is cut off or no map",
                                       "leads out of its trie",
                                       "leads out of its trie",
                                       "leads out of its trie",
                                       "leads out of its trie",
                                       "no text of it",
                                       "no text of it",
                                       "no text of it",
                                       "no text of it",
                                       "goes round",
                                       "goes round",
                                       "leads out of its trie",
                                       "no text of it",
                                       "more than 32 prefixes"};
    static uint8_t model[ROOM];
    (void)state;
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        for (uint8_t field = 3; field <= 5; field += 2) {
            map m = good_map();
            oct_spm *t = NULL;
            oct_error err = {0};
            bend(&m, (int)i);
            const size_t n = with_map(&m, field, model);
            if (oct_spm_new(model, n, &t, &err) != OCT_ERR_FORMAT || t ||
                !strstr(err.text, says[i]) ||
                !strstr(err.text, field == 3 ? "its normalizer" : "its denormalizer"))
                fail_msg("map %zu: %s; expected: %s", i, err.text, says[i]);
        }
}

/* Messages that protobuf might read in another way. */
static void test_bad_fields(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {{"\x1b\x1c", 2},                         /* a group */
                 {"\x1a", 1},                             /* no length */
                 {"\x1a\x05\x12\x01", 4},                 /* a length beyond the end */
                 {"\x1a\x02\x12\x05", 4},                 /* one within a field */
                 {"\x9a\x80\x80\x80\x80\x80\x01\x00", 8}, /* a number of a field of 36 bits */
                 {"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},
                 {"\x02\x00", 2}, /* field 0 */
                 {"\x0d\x00", 2}, /* four bytes that are two */
                 {"\xff", 1}};
    static uint8_t model[ROOM];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oct_spm *t = NULL;
        oct_error err = {0};
        memcpy(model, shipped, n_shipped);
        memcpy(model + n_shipped, cases[i].bytes, cases[i].n);
        if (oct_spm_new(model, n_shipped + cases[i].n, &t, &err) != OCT_ERR_FORMAT || t ||
            !strstr(err.text, "no protobuf field at byte"))
            fail_msg("case %zu: %s", i, err.text);
    }
}

/* The shipped model without its last n pieces, and n that begin one another, "QQQ" and so on:
 * fields of each are text, score, type. how: 0: user-defined; 1: the last of two texts, and a
 * type that the library does not know behind the one that it does; 2: only the first is
 * user-defined; 3: a type of 33 bits, of which the library keeps 32. */
static size_t with_nested(int n, int how, uint8_t *out)
{
    size_t starts[8192], n_pieces = 0, at = 0;
    while (at < n_shipped && shipped[at] == (1 << 3 | 2) && n_pieces < 8192) {
        starts[n_pieces++] = at;
        at += 2 + shipped[at + 1]; /* pieces are short */
    }
    size_t size = starts[n_pieces - (size_t)n];
    memcpy(out, shipped, size);
    for (int i = 0; i < n; i++) {
        uint8_t piece[400];
        size_t k = 0;
        const int user = how == 2 && i > 0 ? 1 : 4;
        if (how == 1) {
            memcpy(piece, "\x0a\x01x", 3);
            k = 3;
        }
        piece[k++] = 1 << 3 | 2;
        k += put_varint(piece + k, (uint64_t)i + 3);
        memset(piece + k, 'Q', (size_t)i + 3);
        k += (size_t)i + 3;
        piece[k++] = 3 << 3;
        k += put_varint(piece + k, (uint64_t)user | (how == 3 ? UINT64_C(1) << 32 : 0));
        if (how == 1) {
            piece[k++] = 3 << 3;
            piece[k++] = 77;
        }
        out[size++] = 1 << 3 | 2;
        size += put_varint(out + size, k);
        memcpy(out + size, piece, k);
        size += k;
    }
    memcpy(out + size, shipped + at, n_shipped - at);
    return size + n_shipped - at;
}

/* The library reads beyond its stack for a text that begins with more than 64 user-defined
 * pieces. */
static void test_nested_pieces(void **state)
{
    static uint8_t model[ROOM];
    static const struct {
        int n, how;
        bool good;
    } cases[] = {{64, 0, true},  {65, 0, false}, {100, 0, false}, {64, 1, true},
                 {65, 1, false}, {100, 2, true}, {64, 3, true},   {65, 3, false}};
    char text[300];
    (void)state;
    memset(text, 'Q', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oct_spm *t = NULL;
        oct_error err = {0};
        const size_t n = with_nested(cases[i].n, cases[i].how, model);
        const oct_status status = oct_spm_new(model, n, &t, &err);
        if (cases[i].good ? status != OCT_OK : status != OCT_ERR_FORMAT)
            fail_msg("case %zu: %s", i, err.text);
        if (cases[i].good)
            same_ids(t, text, text);
        else
            assert_non_null(strstr(err.text, "more than 64 user-defined pieces begin one another"));
        oct_spm_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_map),
        cmocka_unit_test(test_bad_maps),
        cmocka_unit_test(test_bad_fields),
        cmocka_unit_test(test_nested_pieces),
    };
    FILE *f = fopen(OCT_TEST_TINY "/tokenizer.model", "rb");
    n_shipped = f ? fread(shipped, 1, ROOM, f) : 0;
    if (!f || !n_shipped || n_shipped > ROOM / 2) {
        fprintf(stderr, "the shipped tokenizer cannot be read\n");
        return 1;
    }
    fclose(f);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
