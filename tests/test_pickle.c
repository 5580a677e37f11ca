/* test_pickle.c: what the reader of checkpoint files accepts, and that it refuses everything else
 * by name. Bad files are a good one with a few bytes changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mkckpt.h"
#include "pickle.h"

typedef struct bytes {
    char *data;
    size_t n;
} bytes;

static bytes copy(const void *data, size_t n)
{
    bytes b = {malloc(n ? n : 1), n};
    assert_non_null(b.data);
    memcpy(b.data, data, n);
    return b;
}

static void fill_ramp(void *ctx, bool scales, int64_t first, int64_t n, void *out)
{
    size_t element = *(const size_t *)ctx;
    if (scales)
        element = 2;
    memset(out, (int)(first % 100), (size_t)n * element);
}

/* A file as CPython writes it. */
static bytes good(mk_kind kind, int rank, int64_t a, int64_t b, int64_t groups)
{
    bytes out = {0};
    FILE *f = open_memstream(&out.data, &out.n);
    mk_pickle p = {.kind = kind, .rank = rank, .shape = {a, b}, .groups = groups};
    size_t element = kind == MK_INT8 ? 1 : kind == MK_BF16 ? 2 : 4;
    assert_non_null(f);
    assert_true(mk_pickle_write(f, &p, fill_ramp, &element));
    assert_int_equal(fclose(f), 0);
    /* Exactly as large as the file, so that a sanitizer sees any step beyond it. */
    bytes exact = copy(out.data, out.n);
    free(out.data);
    return exact;
}

static bytes read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    bytes b = {NULL, (size_t)ftell(f)};
    rewind(f);
    b.data = malloc(b.n);
    assert_non_null(b.data);
    assert_int_equal(fread(b.data, 1, b.n, f), b.n);
    fclose(f);
    return b;
}

static oct_status parse(bytes b, oct_pickle *p, oct_error *err)
{
    *err = (oct_error){0};
    return oct_pickle_read("file", b.data, b.n, p, err);
}

/* Refused, with a message that holds all of the comma-separated words. */
static void refused(bytes b, const char *what, const char *says)
{
    oct_pickle p;
    oct_error err;
    if (parse(b, &p, &err) == OCT_OK)
        fail_msg("%s: accepted", what);
    if (!strstr(err.text, says) || strncmp(err.text, "file: ", 6) != 0)
        fail_msg("%s: expected \"%s\" in the message, found: %s", what, says, err.text);
}

/* ---- good files ------------------------------------------------------------------------------ */

static void test_shipped_files(void **state)
{
    (void)state;
    static const struct {
        int file;
        bool quantised;
        int rank;
        int64_t shape[3], scales[3];
        size_t at, scales_at;
    } known[] = {
        {0, false, 2, {4096, 256}, {0}, 149, 0},
        {1, false, 1, {256}, {0}, 146, 0},
        {2, true, 3, {8, 256, 256}, {8, 1, 256}, 201, 524595},
        {3, true, 3, {8, 256, 256}, {8, 8, 256}, 201, 524595},
        {5, true, 2, {256, 128}, {1, 128}, 198, 33060},
        {6, true, 2, {256, 256}, {8, 256}, 199, 65839},
        {13, false, 2, {256, 8}, {0}, 148, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char path[4096];
        oct_pickle p;
        oct_error err;
        snprintf(path, sizeof path, OCT_TEST_TINY "/ckpt-0/tensor%05d_000", known[i].file);
        bytes b = read_file(path);
        if (parse(b, &p, &err) != OCT_OK)
            fail_msg("%s", err.text);
        assert_int_equal(p.quantised, known[i].quantised);
        assert_int_equal(p.weight.rank, known[i].rank);
        assert_memory_equal(p.weight.shape, known[i].shape,
                            sizeof(int64_t) * (size_t)known[i].rank);
        assert_int_equal(p.weight.at, known[i].at);
        assert_int_equal(p.weight.dtype, known[i].quantised ? OCT_PICKLE_I8 : OCT_PICKLE_F32);
        if (known[i].quantised) {
            assert_int_equal(p.scales.rank, known[i].rank);
            assert_memory_equal(p.scales.shape, known[i].scales,
                                sizeof(int64_t) * (size_t)known[i].rank);
            assert_int_equal(p.scales.at, known[i].scales_at);
            assert_int_equal(p.scales.dtype, OCT_PICKLE_BF16);
        }
        free(b.data);
    }
}

/* Payloads around the sizes at which the framing changes. */
static void test_framing_sizes(void **state)
{
    (void)state;
    static const int64_t columns[] = {1, 63, 64, 127, 128, 129, 8191, 8192, 16384, 40000, 70000};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int64_t rows = 1; rows <= 8; rows *= 2) {
            bytes b = good(MK_INT8, 2, rows, columns[i], rows);
            oct_pickle p;
            oct_error err;
            if (parse(b, &p, &err) != OCT_OK)
                fail_msg("%lld x %lld: %s", (long long)rows, (long long)columns[i], err.text);
            assert_int_equal(p.weight.n, rows * columns[i]);
            assert_int_equal(p.scales.n, rows * columns[i]);
            assert_int_equal(p.scales.bytes, 2 * rows * columns[i]);
            free(b.data);
        }
}

/* ---- bad files ------------------------------------------------------------------------------- */

/* Place of the k-th occurrence of a pattern. */
static size_t find(bytes b, const char *pattern, size_t n, int k)
{
    for (size_t i = 0; i + n <= b.n; i++)
        if (memcmp(b.data + i, pattern, n) == 0 && k-- == 0)
            return i;
    fail_msg("pattern not found");
    return 0;
}

#define S(literal) literal, sizeof(literal) - 1

/* One place of a good file changed: the k-th occurrence of `from` becomes `to`, of the same
 * length. */
typedef struct change {
    const char *what;
    mk_kind kind;
    const char *from;
    size_t n;
    int k;
    const char *to;
    const char *says;
} change;

static const change changes[] = {
    {"protocol", MK_F32, S("\x80\x04"), 0, "\x80\x02", "protocol 2"},
    {"second protocol", MK_F32, S("K\0\x85"), 0, "\x80\x04\x85", "second protocol"},
    {"module", MK_F32, S("multiarray"), 0, "multiarraz", "numpy.core.multiarraz._reconstruct"},
    {"function", MK_F32, S("_reconstruct"), 0, "_reconstrucx", "_reconstrucx"},
    {"class", MK_F32, S("ndarray"), 0, "ndarraz", "numpy.ndarraz"},
    {"quantised class", MK_INT8, S("QuantizedWeight8bit"), 0, "QuantizedWeight4bit",
     "__main__.QuantizedWeight4bit"},
    {"element type", MK_F32, S("f4"), 0, "f8", "element type f8"},
    {"integer type", MK_INT8, S("i1"), 0, "u1", "element type u1"},
    {"byte order", MK_F32, S("\x8c\x01<"), 0, "\x8c\x01>", "byte order '>'"},
    {"dtype version", MK_F32, S("(K\x03"), 0, "(K\x04", "state"},
    {"structured dtype", MK_F32, S("NNNJ"), 0, "NN\x88J", "structured"},
    {"element size", MK_BF16, S("NNNK\x02"), 0, "NNNK\x04", "element size 4 of a bf16"},
    {"Fortran order", MK_F32,
     S("t\x94"
       "b\x89"),
     0,
     "t\x94"
     "b\x88",
     "Fortran order"},
    {"array version", MK_F32, S("(K\x01"), 0, "(K\x02", "(1, shape, dtype, bool, bytes)"},
    {"rows", MK_F32, S("K\x06K\x07"), 0, "K\x05K\x07", "the shape has 35 elements"},
    {"zero rows", MK_F32, S("K\x06K\x07"), 0, "K\0K\x07", "not a positive integer"},
    {"a shape of strings", MK_F32, S("K\x06K\x07\x86\x94"), 0, "K\x06N\x94\x86\x94",
     "not a positive integer"},
    {"opcode", MK_F32, S("\x87\x94R"), 0, "\x87\x94o", "OBJ"},
    {"persistent id", MK_F32, S("\x87\x94R"), 0, "\x87\x94Q", "BINPERSID"},
    {"extension", MK_F32, S("\x87\x94R"), 0, "\x87\x94\x82", "EXT1"},
    {"unknown opcode", MK_F32, S("\x87\x94R"), 0, "\x87\x94\xff", "0xff"},
    {"NEWOBJ of a function", MK_F32, S("\x87\x94R"), 0, "\x87\x94\x81", "QuantizedWeight8bit"},
    {"memo", MK_F32, S("h\x03\x8c\x05"), 0, "h\x63\x8c\x05", "memo entry 99"},
    {"one key twice", MK_INT8, S("scales"), 0, "weight", "set twice"},
    {"another key", MK_INT8, S("scales"), 0, "scalez", "other than weight and scales"},
    {"state twice", MK_F32,
     S("\x94"
       "b."),
     0, "bb.", "empty"},
    {"no end", MK_F32,
     S("\x94"
       "b."),
     0,
     "\x94"
     "bN",
     "without STOP"},
    {"too much left", MK_F32,
     S("\x94"
       "b."),
     0, "bN.", "values are left"},
    {"no state", MK_F32,
     S("t\x94"
       "b."),
     0,
     "t\x94"
     "0.",
     "POP"},
};

static void test_changes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const change *c = &changes[i];
        bytes b = good(c->kind, 2, 6, 7, 2);
        size_t at = find(b, c->from, c->n, c->k);
        memcpy(b.data + at, c->to, c->n);
        /* "state twice": the memo entry becomes a second BUILD with nothing to take. */
        refused(b, c->what, strcmp(c->says, "empty") ? c->says : "offset");
        free(b.data);
    }
}

static void set_le(char *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (char)(v >> (8 * i));
}

static void test_lengths(void **state)
{
    (void)state;
    bytes b = good(MK_F32, 2, 20, 30, 0);
    size_t length = find(b, S("B\x60\x09\0\0"), 0) + 1; /* 2400 */
    set_le(b.data + length, 2401, 4);
    refused(b, "a longer payload", "");
    set_le(b.data + length, UINT32_MAX, 4);
    refused(b, "4 GiB", "payload of 4294967295 bytes");
    set_le(b.data + length, 2399, 4);
    refused(b, "a shorter payload", "");
    set_le(b.data + length, 2400, 4);
    set_le(b.data + 3, b.n - 10, 8);
    refused(b, "a frame beyond the file", "FRAME");
    set_le(b.data + 3, UINT64_MAX, 8);
    refused(b, "a frame of 2^64 bytes", "18446744073709551615");
    set_le(b.data + 3, 0, 8);
    refused(b, "an empty frame", "FRAME");
    set_le(b.data + 3, 15, 8);
    refused(b, "a frame that ends inside a string", "crosses the frame's end");
    set_le(b.data + 3, b.n - 11, 8);
    oct_pickle p;
    oct_error err;
    assert_int_equal(parse(b, &p, &err), OCT_OK);

    bytes longer = copy(b.data, b.n);
    longer.data = realloc(longer.data, b.n + 1);
    longer.data[longer.n++] = '.';
    refused(longer, "a byte behind the end", "1 bytes follow");
    free(longer.data);
    for (size_t n = 0; n < b.n; n++) {
        bytes part = copy(b.data, n);
        assert_int_equal(parse(part, &p, &err), OCT_ERR_FORMAT);
        free(part.data);
    }
    free(b.data);
}

/* A pickle that asks Python to run a command. */
static void test_command_is_not_run(void **state)
{
    (void)state;
    char dir[] = "pickle-XXXXXX", command[128], flag[64];
    assert_non_null(mkdtemp(dir));
    snprintf(flag, sizeof flag, "%s/ran", dir);
    snprintf(command, sizeof command, "touch %s", flag);
    char four[256] = "\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c";
    size_t n = strlen(four);
    four[n++] = (char)strlen(command);
    n += (size_t)snprintf(four + n, sizeof four - n, "%s\x94\x85\x94R\x94.", command);
    bytes b = copy(four, n);
    refused(b, "posix.system", "global posix.system");
    free(b.data);
    char old[256];
    n = (size_t)snprintf(old, sizeof old,
                         "\x80\x04"
                         "cos\nsystem\n(S'%s'\ntR.",
                         command);
    b = copy(old, n);
    refused(b, "os.system", "global os.system");
    free(b.data);
    assert_int_not_equal(access(flag, F_OK), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* Files that would grow without end. */
static void test_bombs(void **state)
{
    (void)state;
    static const struct {
        const char *what, *first, *again;
        int times;
        const char *says;
    } bombs[] = {{"memo", "N", "\x94", 5000, "memo entries"},
                 {"marks", "", "(", 5000, "on the stack"},
                 {"nested tuples", "N", "\x85", 5000, "tuple items"},
                 {"doubling", "N\x94", "h\001\x86\x94", 5000, "memo entry"},
                 {"empty dicts", "}", "(u", 5000, "opcodes"},
                 {"objects", "", "}", 5000, "arrays and types"},
                 {"strings", "", "\x8c\001a", 5000, "on the stack"}};
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        size_t first = strlen(bombs[i].first), again = strlen(bombs[i].again);
        bytes b = {malloc(2 + first + again * (size_t)bombs[i].times), 0};
        assert_non_null(b.data);
        memcpy(b.data, "\x80\x04", 2);
        memcpy(b.data + 2, bombs[i].first, first);
        b.n = 2 + first;
        for (int k = 0; k < bombs[i].times; k++, b.n += again)
            memcpy(b.data + b.n, bombs[i].again, again);
        refused(b, bombs[i].what, bombs[i].says);
        free(b.data);
    }
}

static void test_not_pickles(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        size_t n;
        const char *says;
    } files[] = {{S(""), "empty"},
                 {S("<!DOCTYPE html><html>"), "HTML"},
                 {S("version https://git-lfs.github.com/spec/v1\n"), "Git LFS"},
                 {S("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), "zeros"},
                 {S("PK\003\004..."), "zip"},
                 {S("GGUF\003\0\0\0"), "GGUF"},
                 {S("\x80"), "short"},
                 {S("Not found"), "not a pickle"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        bytes b = copy(files[i].data, files[i].n);
        refused(b, files[i].says, files[i].says);
        free(b.data);
    }
}

/* Any byte outside the payloads changed: no step outside the file, no array outside it. */
static void test_any_byte(void **state)
{
    (void)state;
    static const mk_kind kinds[] = {MK_INT8, MK_F32, MK_BF16};
    for (int k = 0; k < 3; k++) {
        bytes b = good(kinds[k], 2, 6, 7, 2);
        for (size_t i = 0; i < b.n; i++)
            for (int v = 1; v < 256; v++) {
                char was = b.data[i];
                oct_pickle p;
                oct_error err;
                b.data[i] = (char)(was ^ v);
                if (parse(b, &p, &err) == OCT_OK) {
                    assert_true(p.weight.at + p.weight.bytes <= b.n);
                    assert_int_equal((size_t)p.weight.n * oct_pickle_dtype_bytes(p.weight.dtype),
                                     p.weight.bytes);
                    if (p.quantised)
                        assert_true(p.scales.at + p.scales.bytes <= b.n);
                } else {
                    assert_int_equal(err.status, OCT_ERR_FORMAT);
                    assert_true(strlen(err.text) > 6);
                }
                b.data[i] = was;
            }
        free(b.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped_files),
        cmocka_unit_test(test_framing_sizes),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_command_is_not_run),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_not_pickles),
        cmocka_unit_test(test_any_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
