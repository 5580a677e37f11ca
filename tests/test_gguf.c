/* test_gguf.c: GGUF files, good and bad. Bad files are a good one with one field
 * changed; the table below names the field, its new value, and what the message has to say. */
#include "gguf.h"
#include "gguf_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- a good file ---------------------------------------------------------------------------- */

/* Places in the good file that tests change. */
enum mark {
    AT_MAGIC,
    AT_VERSION,
    AT_N_TENSORS,
    AT_N_KV,
    AT_ARCH_KEY_LEN,
    AT_ARCH_KEY,
    AT_ARCH_TYPE,
    AT_ARCH_LEN,
    AT_ARCH,
    AT_ALIGN_KEY,
    AT_ALIGN_TYPE,
    AT_ALIGN,
    AT_SMALL_KEY,
    AT_BOOL,
    AT_WORDS_TYPE,
    AT_WORDS_N,
    AT_WORD_LEN,
    AT_WORD,
    AT_NUMBERS_TYPE,
    AT_NUMBERS_N,
    AT_FLAGS,
    AT_T0_NAME_LEN,
    AT_T0_NAME,
    AT_T0_RANK,
    AT_T0_NE0,
    AT_T0_NE1,
    AT_T0_TYPE,
    AT_T0_OFFSET,
    AT_T1_NAME,
    AT_T1_NE0,
    AT_T1_TYPE,
    AT_T1_OFFSET,
    AT_T2_NE0,
    AT_T2_OFFSET,
    AT_T3_NE0,
    AT_T3_OFFSET,
    AT_DATA,
    N_MARKS
};

typedef struct image {
    uint8_t b[4096];
    size_t n, mark[N_MARKS];
} image;

static void put(image *f, const void *p, size_t n)
{
    assert_true(f->n + n <= sizeof f->b);
    memcpy(f->b + f->n, p, n);
    f->n += n;
}

static void put32(image *f, uint32_t v)
{
    put(f, &v, 4);
}

static void put64(image *f, uint64_t v)
{
    put(f, &v, 8);
}

static void put_text(image *f, const char *s)
{
    put64(f, strlen(s));
    put(f, s, strlen(s));
}

static void put_pair(image *f, const char *key, uint32_t type)
{
    put_text(f, key);
    put32(f, type);
}

#define MARK(m) (f->mark[m] = f->n)

static void put_pairs(image *f)
{
    MARK(AT_ARCH_KEY_LEN);
    f->mark[AT_ARCH_KEY] = f->n + 8;
    put_text(f, "general.architecture");
    MARK(AT_ARCH_TYPE), put32(f, OCT_GGUF_STRING);
    MARK(AT_ARCH_LEN);
    f->mark[AT_ARCH] = f->n + 8;
    put_text(f, "nonesuch");
    f->mark[AT_ALIGN_KEY] = f->n + 8;
    put_text(f, "general.alignment");
    MARK(AT_ALIGN_TYPE), put32(f, OCT_GGUF_U32);
    MARK(AT_ALIGN), put32(f, 32);
    f->mark[AT_SMALL_KEY] = f->n + 8;
    put_pair(f, "small_a", OCT_GGUF_U8), put(f, "\x07", 1);
    put_pair(f, "small_b", OCT_GGUF_I16), put(f, "\xfe\xff", 2);
    put_pair(f, "small_c", OCT_GGUF_I64), put64(f, 1234567890123);
    put_pair(f, "small_d", OCT_GGUF_F32), put(f, &(float){0.5f}, 4);
    put_pair(f, "small_e", OCT_GGUF_BOOL), MARK(AT_BOOL), put(f, "\x01", 1);
    put_pair(f, "words", OCT_GGUF_ARRAY);
    MARK(AT_WORDS_TYPE), put32(f, OCT_GGUF_STRING);
    MARK(AT_WORDS_N), put64(f, 2);
    put_text(f, "one");
    MARK(AT_WORD_LEN), f->mark[AT_WORD] = f->n + 8;
    put_text(f, "three");
    put_pair(f, "numbers", OCT_GGUF_ARRAY);
    MARK(AT_NUMBERS_TYPE), put32(f, OCT_GGUF_U64);
    MARK(AT_NUMBERS_N), put64(f, 3);
    put64(f, 1), put64(f, 2), put64(f, UINT64_MAX);
    put_pair(f, "flags", OCT_GGUF_ARRAY), put32(f, OCT_GGUF_BOOL), put64(f, 3);
    MARK(AT_FLAGS), put(f, "\x01\x00\x01", 3);
}

static void put_infos(image *f)
{
    MARK(AT_T0_NAME_LEN), f->mark[AT_T0_NAME] = f->n + 8;
    put_text(f, "t0");
    MARK(AT_T0_RANK), put32(f, 2);
    MARK(AT_T0_NE0), put64(f, 5);
    MARK(AT_T0_NE1), put64(f, 2);
    MARK(AT_T0_TYPE), put32(f, OCT_GGUF_T_F32);
    MARK(AT_T0_OFFSET), put64(f, 0); /* 40 bytes, padded to 64 */
    f->mark[AT_T1_NAME] = f->n + 8;
    put_text(f, "t1"), put32(f, 1);
    MARK(AT_T1_NE0), put64(f, 5);
    MARK(AT_T1_TYPE), put32(f, OCT_GGUF_T_I8);
    MARK(AT_T1_OFFSET), put64(f, 64);
    put_text(f, "t2"), put32(f, 1);
    MARK(AT_T2_NE0), put64(f, 64), put32(f, OCT_GGUF_T_Q8_0);
    MARK(AT_T2_OFFSET), put64(f, 96); /* 68 bytes, padded to 96 */
    put_text(f, "t3"), put32(f, 4);
    MARK(AT_T3_NE0), put64(f, 3), put64(f, 1), put64(f, 2), put64(f, 1), put32(f, OCT_GGUF_T_BF16);
    MARK(AT_T3_OFFSET), put64(f, 192); /* 12 bytes */
}

static void make_good(image *f)
{
    memset(f, 0, sizeof *f);
    MARK(AT_MAGIC), put(f, "GGUF", 4);
    MARK(AT_VERSION), put32(f, 3);
    MARK(AT_N_TENSORS), put64(f, 4);
    MARK(AT_N_KV), put64(f, 10);
    put_pairs(f);
    put_infos(f);
    f->n = (f->n + 31) / 32 * 32;
    MARK(AT_DATA);
    for (int i = 0; i < 192 + 12; i++)
        put(f, &(uint8_t){(uint8_t)i}, 1);
}

/* ---- helpers -------------------------------------------------------------------------------- */

static char folder[] = "/tmp/octet-gguf-XXXXXX";
static char path[64];

static void write_file(const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Opens the file at `path`; a failure must leave nothing, be quick, and tell in one line. */
static oct_status try_open(oct_gguf **g, oct_error *err)
{
    struct timespec a, b;

    memset(err, 0, sizeof *err);
    clock_gettime(CLOCK_MONOTONIC, &a);
    oct_status s = oct_gguf_open(path, g, err);
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true((double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec) < 1.0);
    assert_int_equal(s, err->status);
    if (s != OCT_OK) {
        assert_null(*g);
        assert_non_null(strstr(err->text, path));
        assert_null(strchr(err->text, '\n'));
    }
    return s;
}

static void assert_bad(const char *what, oct_status status, const char *fragment)
{
    oct_gguf *g;
    oct_error err;

    if (try_open(&g, &err) != status)
        fail_msg("%s: expected %s, got %s: %s", what, oct_status_name(status),
                 oct_status_name(err.status), err.text);
    if (!strstr(err.text, fragment))
        fail_msg("%s: expected a message with \"%s\", got: %s", what, fragment, err.text);
    if (status == OCT_ERR_FORMAT && (!strstr(err.text, "expected") || !strstr(err.text, "found")))
        fail_msg("%s: no 'expected ..., found ...' in: %s", what, err.text);
}

/* ---- good files ----------------------------------------------------------------------------- */

static void test_values(void **state)
{
    (void)state;
    image f;
    oct_gguf *g;
    oct_error err;
    uint64_t u, n;
    uint32_t type, elem_type;
    float x;
    const char *s;
    const void *p;

    make_good(&f);
    write_file(f.b, f.n);
    if (try_open(&g, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(oct_gguf_file_bytes(g), f.n);
    assert_int_equal(oct_gguf_data_offset(g), f.mark[AT_DATA]);
    assert_memory_equal(oct_gguf_bytes(g), f.b, f.n);
    assert_string_equal(oct_gguf_path(g), path);
    assert_int_equal(oct_gguf_n_kv(g), 10);
    assert_string_equal(oct_gguf_key_at(g, 8, &type, &elem_type, &n), "numbers");
    assert_int_equal(type, OCT_GGUF_ARRAY);
    assert_int_equal(elem_type, OCT_GGUF_U64);
    assert_int_equal(n, 3);
    assert_int_equal(oct_gguf_get_str(g, "general.architecture", &s, &err), OCT_OK);
    assert_string_equal(s, "nonesuch");
    assert_int_equal(oct_gguf_get_u64(g, "small_a", &u, &err), OCT_OK);
    assert_int_equal(u, 7);
    assert_int_equal(oct_gguf_get_u64(g, "small_c", &u, &err), OCT_OK);
    assert_int_equal(u, 1234567890123);
    assert_int_equal(oct_gguf_get_f32(g, "small_d", &x, &err), OCT_OK);
    assert_true(x == 0.5f);
    assert_int_equal(oct_gguf_get_array(g, "numbers", OCT_GGUF_U64, &p, &n, &err), OCT_OK);
    assert_int_equal(n, 3);
    memcpy(&u, (const uint8_t *)p + 16, 8);
    assert_true(u == UINT64_MAX);
    assert_int_equal(oct_gguf_value_offset(g, "general.alignment"), f.mark[AT_ALIGN]);
    assert_int_equal(oct_gguf_value_offset(g, "flags"), f.mark[AT_FLAGS]);
    assert_int_equal(oct_gguf_value_offset(g, "absent"), 0);
    assert_true(oct_gguf_has(g, "small_e"));
    assert_false(oct_gguf_has(g, "small_f"));
    oct_gguf_close(g);
}

static void test_lookup_errors(void **state)
{
    (void)state;
    image f;
    oct_gguf *g;
    oct_error err;
    uint64_t u, n;
    float x;
    const char *s;
    const void *p;

    make_good(&f);
    write_file(f.b, f.n);
    assert_int_equal(try_open(&g, &err), OCT_OK);
#define BAD_LOOKUP(call, part)                                  \
    do {                                                        \
        err.status = OCT_OK;                                    \
        assert_int_equal(call, OCT_ERR_FORMAT);                 \
        assert_non_null(strstr(err.text, path));                \
        if (!strstr(err.text, part))                            \
            fail_msg("expected \"%s\" in: %s", part, err.text); \
    } while (0)
    BAD_LOOKUP(oct_gguf_get_u64(g, "absent", &u, &err), "'absent': expected an integer, found no");
    BAD_LOOKUP(oct_gguf_get_u64(g, "small_b", &u, &err),
               "expected an integer >= 0, found a negative");
    BAD_LOOKUP(oct_gguf_get_u64(g, "small_d", &u, &err), "expected an integer, found a f32");
    BAD_LOOKUP(oct_gguf_get_u64(g, "small_e", &u, &err), "expected an integer, found a bool");
    BAD_LOOKUP(oct_gguf_get_u64(g, "numbers", &u, &err), "found an array of 3 u64");
    BAD_LOOKUP(oct_gguf_get_f32(g, "small_a", &x, &err), "expected an f32, found a u8");
    BAD_LOOKUP(oct_gguf_get_str(g, "small_a", &s, &err), "expected a string, found a u8");
    BAD_LOOKUP(oct_gguf_get_str(g, "words", &s, &err), "found an array of 2 string");
    BAD_LOOKUP(oct_gguf_get_array(g, "numbers", OCT_GGUF_U32, &p, &n, &err),
               "an array of u32, found");
    BAD_LOOKUP(oct_gguf_get_array(g, "small_a", OCT_GGUF_U32, &p, &n, &err), "found a u8");
#undef BAD_LOOKUP
    err.status = OCT_OK;
    assert_int_equal(oct_gguf_get_array(g, "words", OCT_GGUF_STRING, &p, &n, &err), OCT_ERR_ARG);
    oct_gguf_close(g);
}

static void test_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t dtype;
        int rank;
        uint64_t ne[4], at, bytes;
    } want[] = {{"t0", OCT_GGUF_T_F32, 2, {5, 2, 1, 1}, 0, 40},
                {"t1", OCT_GGUF_T_I8, 1, {5, 1, 1, 1}, 64, 5},
                {"t2", OCT_GGUF_T_Q8_0, 1, {64, 1, 1, 1}, 96, 68},
                {"t3", OCT_GGUF_T_BF16, 4, {3, 1, 2, 1}, 192, 12}};
    image f;
    oct_gguf *g;
    oct_error err;

    make_good(&f);
    write_file(f.b, f.n);
    assert_int_equal(try_open(&g, &err), OCT_OK);
    assert_int_equal(oct_gguf_n_tensors(g), 4);
    for (int i = 0; i < 4; i++) {
        const oct_gguf_tensor *t = oct_gguf_tensor_at(g, i);
        assert_string_equal(t->name, want[i].name);
        assert_int_equal(t->dtype, want[i].dtype);
        assert_int_equal(t->rank, want[i].rank);
        assert_memory_equal(t->ne, want[i].ne, sizeof t->ne);
        assert_int_equal(t->offset, f.mark[AT_DATA] + want[i].at);
        assert_int_equal(t->bytes, want[i].bytes);
        assert_memory_equal(t->data, f.b + t->offset, t->bytes);
        assert_ptr_equal(oct_gguf_find(g, want[i].name), t);
    }
    assert_null(oct_gguf_find(g, "t4"));
    assert_null(oct_gguf_find(g, ""));
    oct_gguf_close(g);
}

/* ---- bad files ------------------------------------------------------------------------------ */

static const struct bad_field {
    const char *what;
    enum mark at;
    int width;
    uint64_t value;
    oct_status status;
    const char *fragment;
} bad_fields[] = {
    {"version 0", AT_VERSION, 4, 0, OCT_ERR_UNSUPPORTED, "expected GGUF version 3, found 0"},
    {"version 1", AT_VERSION, 4, 1, OCT_ERR_UNSUPPORTED, "expected GGUF version 3, found 1"},
    {"version 2", AT_VERSION, 4, 2, OCT_ERR_UNSUPPORTED, "expected GGUF version 3, found 2"},
    {"version 4", AT_VERSION, 4, 4, OCT_ERR_UNSUPPORTED, "expected GGUF version 3, found 4"},
    {"big-endian", AT_VERSION, 4, 0x03000000, OCT_ERR_UNSUPPORTED, "found 3 of a big-endian file"},
    {"tensors 2^64-1", AT_N_TENSORS, 8, UINT64_MAX, OCT_ERR_FORMAT, "found 18446744073709551615"},
    {"tensors 2^60", AT_N_TENSORS, 8, 1ull << 60, OCT_ERR_FORMAT, "found 1152921504606846976"},
    {"tensors 100000", AT_N_TENSORS, 8, 100000, OCT_ERR_FORMAT, "for 100000 tensors"},
    {"one tensor more", AT_N_TENSORS, 8, 5, OCT_ERR_FORMAT, "tensor 5 of 5"},
    {"keys 2^64-1", AT_N_KV, 8, UINT64_MAX, OCT_ERR_FORMAT, "found 4 and 18446744073709551615"},
    {"keys 2^63", AT_N_KV, 8, 1ull << 63, OCT_ERR_FORMAT, "found 4 and 9223372036854775808"},
    {"keys 60000", AT_N_KV, 8, 60000, OCT_ERR_FORMAT, "60000 keys, found a file of"},
    {"one key more", AT_N_KV, 8, 11, OCT_ERR_FORMAT, "tensor 1 of 4"},
    {"one key less", AT_N_KV, 8, 9, OCT_ERR_FORMAT, "tensor"},
    {"key length 0", AT_ARCH_KEY_LEN, 8, 0, OCT_ERR_FORMAT, "key 1 of 10"},
    {"key length 2^64-1", AT_ARCH_KEY_LEN, 8, UINT64_MAX, OCT_ERR_FORMAT,
     "found a length of 18446744073709551615"},
    {"key length 2^32", AT_ARCH_KEY_LEN, 8, 1ull << 32, OCT_ERR_FORMAT,
     "found a length of 4294967296"},
    {"key longer than the file", AT_ARCH_KEY_LEN, 8, 60000, OCT_ERR_FORMAT, "truncated?"},
    {"NUL in a key", AT_ARCH_KEY, 1, 0, OCT_ERR_FORMAT, "expected a key without NUL"},
    {"value type 13", AT_ARCH_TYPE, 4, 13, OCT_ERR_FORMAT, "found 13"},
    {"value type 2^32-1", AT_ARCH_TYPE, 4, UINT32_MAX, OCT_ERR_FORMAT, "found 4294967295"},
    {"string length 2^64-1", AT_ARCH_LEN, 8, UINT64_MAX, OCT_ERR_FORMAT, "'general.architecture'"},
    {"string length 2^63", AT_ARCH_LEN, 8, 1ull << 63, OCT_ERR_FORMAT, "9223372036854775808"},
    {"string length 1 GiB", AT_ARCH_LEN, 8, 1u << 30, OCT_ERR_FORMAT, "1073741824"},
    {"string longer than the file", AT_ARCH_LEN, 8, 5000, OCT_ERR_FORMAT, "truncated?"},
    {"NUL in a string", AT_ARCH, 1, 0, OCT_ERR_FORMAT, "expected a string without NUL"},
    {"alignment 0", AT_ALIGN, 4, 0, OCT_ERR_FORMAT,
     "expected a power of two in 8..2097152, found 0"},
    {"alignment 1", AT_ALIGN, 4, 1, OCT_ERR_FORMAT, "expected a power of two"},
    {"alignment 13", AT_ALIGN, 4, 13, OCT_ERR_FORMAT, "expected a power of two"},
    {"alignment 48", AT_ALIGN, 4, 48, OCT_ERR_FORMAT, "expected a power of two"},
    {"alignment 2^30", AT_ALIGN, 4, 1u << 30, OCT_ERR_FORMAT, "found 1073741824"},
    {"alignment 2^31", AT_ALIGN, 4, 1u << 31, OCT_ERR_FORMAT, "found 2147483648"},
    {"alignment 64", AT_ALIGN, 4, 64, OCT_ERR_FORMAT, "tensor 't2'"},
    {"alignment f32", AT_ALIGN_TYPE, 4, OCT_GGUF_F32, OCT_ERR_FORMAT,
     "'general.alignment': expected a u32, found a f32"},
    {"alignment i32", AT_ALIGN_TYPE, 4, OCT_GGUF_I32, OCT_ERR_FORMAT,
     "'general.alignment': expected a u32, found a i32"},
    {"bool 2", AT_BOOL, 1, 2, OCT_ERR_FORMAT, "'small_e'"},
    {"bool 255 in an array", AT_FLAGS, 1, 255, OCT_ERR_FORMAT, "'flags'"},
    {"array of arrays", AT_WORDS_TYPE, 4, OCT_GGUF_ARRAY, OCT_ERR_FORMAT, "found element type 9"},
    {"array of unknown type", AT_WORDS_TYPE, 4, 77, OCT_ERR_FORMAT, "found element type 77"},
    {"2^64-1 strings", AT_WORDS_N, 8, UINT64_MAX, OCT_ERR_FORMAT,
     "found an array of 18446744073709551615"},
    {"2^61 strings", AT_WORDS_N, 8, 1ull << 61, OCT_ERR_FORMAT, "'words'"},
    {"string length 2^64-1 in an array", AT_WORD_LEN, 8, UINT64_MAX, OCT_ERR_FORMAT, "'words'"},
    {"NUL in an array's string", AT_WORD, 1, 0, OCT_ERR_FORMAT, "'words'"},
    {"2^64-1 numbers", AT_NUMBERS_N, 8, UINT64_MAX, OCT_ERR_FORMAT, "'numbers'"},
    {"2^61 numbers: wraps to 0 bytes", AT_NUMBERS_N, 8, 1ull << 61, OCT_ERR_FORMAT, "'numbers'"},
    {"more numbers than the file holds", AT_NUMBERS_N, 8, 1000, OCT_ERR_FORMAT, "array of 1000"},
    {"tensor name length 0", AT_T0_NAME_LEN, 8, 0, OCT_ERR_FORMAT, "tensor 1 of 4"},
    {"tensor name length 64", AT_T0_NAME_LEN, 8, 64, OCT_ERR_FORMAT,
     "at most 63 bytes, found a length of 64"},
    {"tensor name length 2^64-1", AT_T0_NAME_LEN, 8, UINT64_MAX, OCT_ERR_FORMAT, "tensor 1 of 4"},
    {"NUL in a tensor name", AT_T0_NAME, 1, 0, OCT_ERR_FORMAT, "tensor name without NUL"},
    {"rank 0", AT_T0_RANK, 4, 0, OCT_ERR_FORMAT, "expected 1 to 4 dimensions, found 0"},
    {"rank 5", AT_T0_RANK, 4, 5, OCT_ERR_FORMAT, "expected 1 to 4 dimensions, found 5"},
    {"rank 2^32-1", AT_T0_RANK, 4, UINT32_MAX, OCT_ERR_FORMAT, "found 4294967295"},
    {"dimension 0", AT_T0_NE0, 8, 0, OCT_ERR_FORMAT, "expected dimension 0 in"},
    {"second dimension 0", AT_T0_NE1, 8, 0, OCT_ERR_FORMAT, "expected dimension 1 in"},
    {"dimension -1", AT_T0_NE0, 8, UINT64_MAX, OCT_ERR_FORMAT, "found 18446744073709551615"},
    {"dimensions overflow", AT_T0_NE1, 8, 1ull << 62, OCT_ERR_FORMAT, "below 2^63 bytes"},
    {"bytes overflow", AT_T0_NE1, 8, 1ull << 60, OCT_ERR_FORMAT, "below 2^63 bytes"},
    {"offset + size wraps", AT_T1_NE0, 8, 0x7fffffffffffffc0, OCT_ERR_FORMAT,
     "expected 9223372036854775744 bytes at 64"},
    {"tensor larger than the file", AT_T1_NE0, 8, 1u << 30, OCT_ERR_FORMAT, "truncated?"},
    {"tensor type 2", AT_T1_TYPE, 4, 2, OCT_ERR_UNSUPPORTED,
     "found 2; the file's architecture is 'nonesuch'"},
    {"tensor type 2^32-1", AT_T1_TYPE, 4, UINT32_MAX, OCT_ERR_UNSUPPORTED, "found 4294967295"},
    {"half a block", AT_T2_NE0, 8, 48, OCT_ERR_FORMAT,
     "rows of whole blocks, found type 8 with dimensions 48"},
    {"overlap", AT_T1_OFFSET, 8, 32, OCT_ERR_FORMAT, "a place behind tensor 't0', which ends"},
    {"overlap: same place", AT_T1_OFFSET, 8, 0, OCT_ERR_FORMAT, "expected a place behind tensor"},
    {"overlap: out of order", AT_T3_OFFSET, 8, 32, OCT_ERR_FORMAT, "tensor 't3'"},
    {"misaligned", AT_T1_OFFSET, 8, 65, OCT_ERR_FORMAT, "multiple of 32, found 65"},
    {"outside the file", AT_T3_OFFSET, 8, 224, OCT_ERR_FORMAT, "expected 12 bytes at 224"},
    {"offset out of range", AT_T2_OFFSET, 8, 1 << 20, OCT_ERR_FORMAT, "at 1048576 of the data"},
    {"offset 2^64-1", AT_T3_OFFSET, 8, UINT64_MAX, OCT_ERR_FORMAT, "found 18446744073709551615"},
    {"offset wraps", AT_T0_OFFSET, 8, UINT64_MAX - 31, OCT_ERR_FORMAT, "tensor 't0'"},
    {"duplicate tensor", AT_T1_NAME, 2, 0x3074, OCT_ERR_FORMAT, "found 't0' twice"},
};

static void test_bad_fields(void **state)
{
    (void)state;
    struct rusage before, after;

    getrusage(RUSAGE_SELF, &before);
    for (size_t i = 0; i < sizeof bad_fields / sizeof bad_fields[0]; i++) {
        const struct bad_field *b = &bad_fields[i];
        image f;
        make_good(&f);
        memcpy(f.b + f.mark[b->at], &b->value, (size_t)b->width);
        write_file(f.b, f.n);
        assert_bad(b->what, b->status, b->fragment);
    }
    getrusage(RUSAGE_SELF, &after);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory for a while */
    assert_true(after.ru_maxrss - before.ru_maxrss < 100 * 1024);
#endif
    print_message("%zu malformed fields refused\n", sizeof bad_fields / sizeof bad_fields[0]);
}

/* Two tensors whose sizes are fine one by one but whose sum wraps. */
static void test_wrapping_sum(void **state)
{
    (void)state;
    image f;
    const uint64_t ne = 0x7fffffffffffffc0;

    make_good(&f);
    memcpy(f.b + f.mark[AT_T1_NE0], &ne, 8);
    memcpy(f.b + f.mark[AT_T2_OFFSET], &(uint64_t){ne + 64}, 8);
    memcpy(f.b + f.mark[AT_T2_NE0], &(uint64_t){ne}, 8);
    memcpy(f.b + f.mark[AT_T2_NE0] + 8, &(uint32_t){OCT_GGUF_T_I8}, 4);
    write_file(f.b, f.n);
    assert_bad("wrapping sum", OCT_ERR_FORMAT, "tensor 't1'");
}

static void test_bad_keys(void **state)
{
    (void)state;
    image f;

    make_good(&f);
    f.b[f.mark[AT_SMALL_KEY] + 6] = 'b';
    write_file(f.b, f.n);
    assert_bad("duplicate key", OCT_ERR_FORMAT, "found 'small_b' twice");

    /* A part of a split model says so. */
    make_good(&f);
    memcpy(f.b + f.mark[AT_ALIGN_KEY], "split.count\0\0\0\0\0", 11);
    size_t tail = f.n - f.mark[AT_ALIGN_TYPE];
    memmove(f.b + f.mark[AT_ALIGN_KEY] + 11, f.b + f.mark[AT_ALIGN_TYPE], tail);
    memcpy(f.b + f.mark[AT_ALIGN_KEY] - 8, &(uint64_t){11}, 8);
    write_file(f.b, f.n);
    assert_bad("split file", OCT_ERR_UNSUPPORTED, "split into 32 files");
}

static void test_not_gguf(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *fragment;
    } files[] = {{"", "empty file"},
                 {"G", "found the end of the file (1 bytes)"},
                 {"GGUF", "found the end of the file (4 bytes)"},
                 {"GGUF\3", "found the end of the file (5 bytes)"},
                 {"<!DOCTYPE html><html>", "HTML page"},
                 {"\n\n <!doctype HTML>", "HTML page"},
                 {"\xef\xbb\xbf<html>", "HTML page"},
                 {"<?xml version=\"1.0\"?><Error>", "XML"},
                 {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
                 {"{\"error\": \"not found\"}", "JSON"},
                 {"Not found", "found 4e 6f 74 20"},
                 {"\x80\x04\x95", "pickle"},
                 {"PK\x03\x04", "zip"},
                 {"GGMLxxxx", "older format"},
                 {"FUGG\3", "found 46 55 47 47"}};

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_file(files[i].bytes, strlen(files[i].bytes));
        assert_bad(files[i].bytes, OCT_ERR_FORMAT, files[i].fragment);
    }
}

static void test_odd_places(void **state)
{
    (void)state;
    char file[sizeof path];

    strcpy(file, path);
    strcpy(path, folder);
    assert_bad("directory", OCT_ERR_IO, "found a directory");
    strcpy(path, "/dev/zero");
    assert_bad("device", OCT_ERR_IO, "found a device");
    snprintf(path, sizeof path, "%s/none", folder);
    assert_bad("missing", OCT_ERR_IO, "No such file");
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_bad("pipe", OCT_ERR_IO, "pipe");
    unlink(path);
    strcpy(path, file);
}

/* A file of 1 TB made of holes: nothing but the header is touched. */
static void test_sparse(void **state)
{
    (void)state;
    image f;

    make_good(&f);
    write_file(f.b, f.n);
    if (truncate(path, 1ll << 40))
        skip();
    oct_gguf *g;
    oct_error err;
    assert_int_equal(try_open(&g, &err), OCT_OK);
    oct_gguf_close(g);
    memset(f.b + 4, 0, sizeof f.b - 4);
    write_file(f.b, 4);
    assert_int_equal(truncate(path, 1ll << 40), 0);
    assert_bad("sparse zeros", OCT_ERR_UNSUPPORTED, "found 0");
}

/* Cut anywhere, the file is refused; the bytes after the cut are not looked at (the copy is as long
 * as the cut file, so that a sanitizer sees any look). */
/* A header that was read without all of its padding: of a part that says so. */
static void test_held_header(void **state)
{
    (void)state;
    image f;
    oct_gguf *g = NULL;
    oct_error err = {0};
    make_good(&f);
    assert_int_equal(oct_gguf_parse("held", f.b, f.mark[AT_DATA], f.n, &g, &err), OCT_OK);
    oct_gguf_close(g);
    assert_int_not_equal(oct_gguf_parse("held", f.b, f.mark[AT_DATA] - 1, f.n, &g, &err), OCT_OK);
    assert_non_null(strstr(err.text, "of it are held"));
}

static void test_truncation(void **state)
{
    (void)state;
    image f;
    oct_gguf *g;
    oct_error err;

    make_good(&f);
    for (size_t n = 0; n < f.n; n++) {
        uint8_t *copy = malloc(n + !n);
        assert_non_null(copy);
        memcpy(copy, f.b, n);
        memset(&err, 0, sizeof err);
        if (oct_gguf_parse("cut", copy, n, n, &g, &err) != OCT_ERR_FORMAT)
            fail_msg("cut at %zu of %zu: %s", n, f.n, err.text);
        if (!strstr(err.text, "truncated?") && n > 0)
            fail_msg("cut at %zu of %zu: %s", n, f.n, err.text);
        free(copy);
    }
    for (size_t i = 1; i < 20; i++) {
        write_file(f.b, f.n * i / 20);
        assert_bad("cut file", OCT_ERR_FORMAT, "truncated?");
    }
}

/* Every byte of the header set to several values: accepted or refused, never worse. */
static void test_every_byte(void **state)
{
    (void)state;
    static const uint8_t masks[] = {0x01, 0x02, 0x10, 0x20, 0x7f, 0x80, 0xff};
    image f;
    int accepted = 0, refused = 0;

    make_good(&f);
    for (size_t i = 0; i < f.mark[AT_DATA]; i++)
        for (size_t m = 0; m < sizeof masks; m++) {
            uint8_t *copy = malloc(f.n);
            oct_gguf *g;
            oct_error err = {0};
            assert_non_null(copy);
            memcpy(copy, f.b, f.n);
            copy[i] ^= masks[m];
            if (oct_gguf_parse("x", copy, f.n, f.n, &g, &err) == OCT_OK) {
                accepted++;
                oct_gguf_close(g);
            } else {
                refused++;
                assert_true(strlen(err.text) > 10);
            }
            free(copy);
        }
    assert_true(accepted > 100 && refused > 1000); /* values and letters; structure */
}

/* ---- writing -------------------------------------------------------------------------------- */

static oct_gguf_writer *sample_writer(uint64_t alignment)
{
    static const char *const words[] = {"a", "", "\xe2\x96\x81x"};
    static const size_t lengths[] = {1, 0, 4};
    oct_gguf_writer *w = oct_gguf_writer_new(alignment);

    assert_non_null(w);
    oct_gguf_put_str(w, "general.architecture", "test");
    oct_gguf_put_u32(w, "a.u32", UINT32_MAX);
    oct_gguf_put_u64(w, "a.u64", UINT64_MAX - 1);
    oct_gguf_put_f32(w, "a.f32", -1.5f);
    oct_gguf_put_bool(w, "a.bool", true);
    oct_gguf_put_str(w, "a.str", "");
    oct_gguf_put_strs(w, "a.strs", words, lengths, 3);
    oct_gguf_put_array(w, "a.array", OCT_GGUF_I16, (const int16_t[]){1, -2, 3}, 3);
    oct_gguf_put_tensor(w, "x", OCT_GGUF_T_I8, 3, (const uint64_t[]){7, 11, 13});
    oct_gguf_put_tensor(w, "y", OCT_GGUF_T_F32, 1, (const uint64_t[]){1});
    oct_gguf_put_tensor(w, "z", OCT_GGUF_T_Q8_0, 2, (const uint64_t[]){64, 3});
    return w;
}

static void check_written(uint64_t alignment, uint64_t data_alignment)
{
    static const uint64_t bytes[] = {7 * 11 * 13, 4, 2 * 34 * 3};
    oct_gguf_writer *w = sample_writer(alignment);
    void *header;
    size_t n;
    uint64_t at[3], u, sum = 0;
    oct_error err = {0};
    oct_gguf *g;
    const void *p;
    float x;
    const char *s;

    if (oct_gguf_writer_header(w, data_alignment, &header, &n, at, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(n % data_alignment, 0);
    write_file(header, n);
    assert_int_equal(truncate(path, (off_t)(at[2] + bytes[2])), 0);
    if (try_open(&g, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(oct_gguf_data_offset(g), n);
    for (int i = 0; i < 3; i++) { /* no gaps but the padding, as other readers require */
        const oct_gguf_tensor *t = oct_gguf_tensor_at(g, i);
        assert_int_equal(t->offset, at[i]);
        assert_int_equal(t->bytes, bytes[i]);
        assert_int_equal(at[i], n + sum);
        sum += (bytes[i] + alignment - 1) / alignment * alignment;
    }
    assert_int_equal(oct_gguf_get_u64(g, "a.u32", &u, &err), OCT_OK);
    assert_true(u == UINT32_MAX);
    assert_int_equal(oct_gguf_get_u64(g, "a.u64", &u, &err), OCT_OK);
    assert_true(u == UINT64_MAX - 1);
    assert_int_equal(oct_gguf_get_f32(g, "a.f32", &x, &err), OCT_OK);
    assert_true(x == -1.5f);
    assert_int_equal(oct_gguf_get_str(g, "a.str", &s, &err), OCT_OK);
    assert_string_equal(s, "");
    assert_int_equal(oct_gguf_get_array(g, "a.array", OCT_GGUF_I16, &p, &u, &err), OCT_OK);
    assert_int_equal(u, 3);
    assert_memory_equal(p, ((const int16_t[]){1, -2, 3}), 6);
    static const char *const keys[] = {"a.u32", "a.f32", "a.str", "a.strs", "a.array", "nonesuch"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_int_equal(oct_gguf_writer_value_offset(w, keys[i]),
                         oct_gguf_value_offset(g, keys[i]));
    assert_true(oct_gguf_value_offset(g, "a.u64") > 0);
    oct_gguf_close(g);
    free(header);
    oct_gguf_writer_free(w);
}

static void test_writing(void **state)
{
    (void)state;
    check_written(32, 32);
    check_written(4096, 4096);
    check_written(4096, 2 << 20);
    check_written(8, 16);
}

static void assert_writer_fails(oct_gguf_writer *w, uint64_t data_alignment, oct_status status,
                                const char *fragment)
{
    void *header;
    size_t n;
    uint64_t at[8];
    oct_error err = {0};

    assert_non_null(w);
    assert_int_equal(oct_gguf_writer_header(w, data_alignment, &header, &n, at, &err), status);
    assert_null(header);
    if (!strstr(err.text, fragment))
        fail_msg("expected \"%s\" in: %s", fragment, err.text);
    oct_gguf_writer_free(w);
}

static void test_writer_errors(void **state)
{
    (void)state;
    oct_gguf_writer *w = sample_writer(32);
    oct_gguf_put_u32(w, "a.u32", 1);
    assert_writer_fails(w, 32, OCT_ERR_FORMAT, "found 'a.u32' twice");
    w = sample_writer(32);
    oct_gguf_put_tensor(w, "x", OCT_GGUF_T_I8, 1, (const uint64_t[]){1});
    assert_writer_fails(w, 32, OCT_ERR_FORMAT, "found 'x' twice");
    w = sample_writer(32);
    oct_gguf_put_tensor(w, "q", OCT_GGUF_T_Q8_0, 1, (const uint64_t[]){33});
    assert_writer_fails(w, 32, OCT_ERR_SHAPE, "tensor 'q'");
    w = sample_writer(32);
    oct_gguf_put_tensor(w, "q", 12, 1, (const uint64_t[]){256});
    assert_writer_fails(w, 32, OCT_ERR_SHAPE, "tensor 'q'");
    w = sample_writer(32);
    oct_gguf_put_tensor(w, "q", OCT_GGUF_T_I8, 5, (const uint64_t[]){1, 1, 1, 1, 1});
    oct_gguf_put_tensor(w, "r", OCT_GGUF_T_I8, 1, (const uint64_t[]){1});
    assert_writer_fails(w, 32, OCT_ERR_SHAPE, "tensor 'q'"); /* the first error stays */
    w = sample_writer(32);
    oct_gguf_put_tensor(w, "q", OCT_GGUF_T_I8, 2, (const uint64_t[]){1ull << 32, 1ull << 32});
    assert_writer_fails(w, 32, OCT_ERR_SHAPE, "tensor 'q'");
    w = sample_writer(32);
    oct_gguf_put_array(w, "q", OCT_GGUF_STRING, "", 1);
    assert_writer_fails(w, 32, OCT_ERR_ARG, "key 'q'");
    assert_writer_fails(sample_writer(32), 16, OCT_ERR_ARG, "data alignment");
    assert_writer_fails(sample_writer(32), 96, OCT_ERR_ARG, "data alignment");
    assert_writer_fails(oct_gguf_writer_new(0), 32, OCT_ERR_ARG, "alignment");
    assert_writer_fails(oct_gguf_writer_new(48), 64, OCT_ERR_ARG, "alignment");
}

static void test_tensor_bytes(void **state)
{
    (void)state;
    uint64_t n = 0;

    assert_true(oct_gguf_tensor_bytes(OCT_GGUF_T_BF16, 2, (const uint64_t[]){3, 5}, &n));
    assert_int_equal(n, 30);
    assert_true(oct_gguf_tensor_bytes(OCT_GGUF_T_Q8_0, 2, (const uint64_t[]){64, 5}, &n));
    assert_int_equal(n, 340);
    assert_false(oct_gguf_tensor_bytes(OCT_GGUF_T_Q8_0, 1, (const uint64_t[]){16}, &n));
    assert_false(
        oct_gguf_tensor_bytes(OCT_GGUF_T_F16, 2, (const uint64_t[]){1ull << 40, 1ull << 24}, &n));
    assert_false(oct_gguf_tensor_bytes(OCT_GGUF_T_F32, 1, (const uint64_t[]){1ull << 61}, &n));
    assert_false(oct_gguf_tensor_bytes(3, 1, (const uint64_t[]){32}, &n));
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held_header),   cmocka_unit_test(test_values),
        cmocka_unit_test(test_lookup_errors), cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_bad_fields),    cmocka_unit_test(test_wrapping_sum),
        cmocka_unit_test(test_bad_keys),      cmocka_unit_test(test_not_gguf),
        cmocka_unit_test(test_odd_places),    cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_truncation),    cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_tensor_bytes),  cmocka_unit_test(test_writing),
        cmocka_unit_test(test_writer_errors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
