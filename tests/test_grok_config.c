/* test_grok_config.c: hyper-parameters, the layouts and the tensor list that follow from them, and
 * their way to a file and back. */
#include "grok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static oct_grok_config grok1; /* set in main */

static const oct_grok_config odd = {.n_layers = 12,
                                    .n_vocab = 521,
                                    .n_ctx = 100,
                                    .d_model = 96,
                                    .n_q_heads = 24,
                                    .n_kv_heads = 8,
                                    .head_dim = 8,
                                    .d_ff = 216,
                                    .n_experts = 5,
                                    .n_used = 3,
                                    .n_slices = 4,
                                    .qkv_groups = 2,
                                    .attn_out_groups = 4,
                                    .gate_up_groups = 3,
                                    .down_groups = 8,
                                    .pad_id = -1,
                                    .eos_id = -1,
                                    .embedding_scale = 9,
                                    .output_scale = 1,
                                    .attn_scale = 0.3f,
                                    .attn_cap = 50,
                                    .rope_base = 1e6f,
                                    .norm_eps = 1e-6f};

static oct_grok_config dense(void)
{
    oct_grok_config c = odd;
    c.n_experts = c.n_used = 1;
    return c;
}

/* ---- checks --------------------------------------------------------------------------------- */

static void expect_refused(const oct_grok_config *c, const char *field)
{
    oct_error err = {0};

    if (oct_grok_config_check(c, &err) != OCT_ERR_SHAPE)
        fail_msg("accepted with a wrong %s", field);
    if (!strstr(err.text, field) || !strstr(err.text, "expected") || !strstr(err.text, "found"))
        fail_msg("%s: %s", field, err.text);
}

static void test_check(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_grok_config c = dense();

    assert_int_equal(oct_grok_config_check(&grok1, &err), OCT_OK);
    assert_int_equal(oct_grok_config_check(&odd, &err), OCT_OK);
    assert_int_equal(oct_grok_config_check(&c, &err), OCT_OK);
    /* Every number, far off in either direction. */
#define OCT_GROK_INT(field, key)                                               \
    for (int i = 0; i < 4; i++) {                                              \
        c = grok1;                                                             \
        c.field = ((const int64_t[]){-2, INT64_MIN, INT64_MAX, 1ll << 40})[i]; \
        expect_refused(&c, #field);                                            \
    }
#define OCT_GROK_FLOAT(field, key)                            \
    for (int i = 0; i < 4; i++) {                             \
        c = grok1;                                            \
        c.field = ((const float[]){0, -1, NAN, INFINITY})[i]; \
        expect_refused(&c, #field);                           \
    }
#include "grok_keys.inc"
#define REFUSED(field, value)       \
    do {                            \
        c = grok1;                  \
        c.field = value;            \
        expect_refused(&c, #field); \
    } while (0)
    REFUSED(n_layers, 0);
    REFUSED(d_model, 0);
    REFUSED(n_used, 0);
    REFUSED(n_used, 9);
    REFUSED(n_experts, 1); /* fewer than n_used */
    REFUSED(n_kv_heads, 5);
    REFUSED(head_dim, 127);
    REFUSED(pad_id, 131072);
    REFUSED(eos_id, 131072);
    REFUSED(n_slices, 3);
    REFUSED(n_slices, 9);
    REFUSED(qkv_groups, 5);
    REFUSED(gate_up_groups, 7);
    REFUSED(attn_out_groups, 7);
    REFUSED(down_groups, 3);
    REFUSED(attn_out_groups, 4); /* n_slices = 8 does not divide it */
    REFUSED(down_groups, 4);
#undef REFUSED
}

static void test_slices(void **state)
{
    (void)state;
    static const int64_t want[][4] = {{8, 8, 8, 8},    {8, 1, 8, 1},    {8, 8, 4, 4},
                                      {1, 8, 8, 1},    {6, 12, 18, 6},  {16, 16, 16, 8},
                                      {7, 14, 7, 7},   {10, 20, 30, 5}, {9, 9, 9, 3},
                                      {11, 11, 11, 1}, {12, 8, 4, 4}};

    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_int_equal(oct_grok_slices(want[i][0], want[i][1], want[i][2]), want[i][3]);
}

static void test_ffn_size(void **state)
{
    (void)state;
    assert_int_equal(oct_grok_ffn_size(6144, 8), 32768);
    assert_int_equal(oct_grok_ffn_size(128, 8), 688);
    assert_int_equal(oct_grok_ffn_size(256, 1.5), 256);
    assert_int_equal(oct_grok_ffn_size(96, 2.51), 160); /* floor(240.96) = 240 */
    assert_int_equal(oct_grok_ffn_size(1, 1), 0);
    assert_int_equal(oct_grok_ffn_size(256, NAN), 0);
    assert_int_equal(oct_grok_ffn_size(256, INFINITY), 0);
    assert_int_equal(oct_grok_ffn_size(256, -1), 0);
    assert_int_equal(oct_grok_ffn_size(INT64_MAX, 1e300), 0);
}

/* ---- layouts and tensors -------------------------------------------------------------------- */

static void test_layouts_of_grok1(void **state)
{
    (void)state;
    const size_t mib = 1 << 20;
    oct_grok_layouts l;
    oct_error err = {0};

    assert_int_equal(oct_grok_layouts_init(&grok1, NULL, &l, &err), OCT_OK);
    /* Panels of 64 channels: a byte an input; elsewhere a bf16 scale a group. */
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_QKV].unit_out, (48 + 8 + 8) * 128 / 8);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_QKV].unit_bytes, 16 * 64 * 6144);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_QKV].scale_bytes, 16 * 128);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_QKV].scale_stride, 4096);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_QKV].unit_align, 4096);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_ATTN_OUT].unit_bytes, 96 * 64 * 768);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_ATTN_OUT].unit_groups, 1);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_GATE_UP].unit_align, 2 * mib);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_GATE_UP].unit_bytes, 48 * mib);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_GATE_UP].unit_stride, 48 * mib);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_GATE_UP].scale_stride, 128 * 128);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_DOWN].unit_bytes, 24 * mib);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_DOWN].unit_stride, 24 * mib);
    assert_int_equal(l.of[OCT_WEIGHT_Q8][OCT_GROK_DOWN].scale_stride, 96 * 128);
    assert_int_equal(l.embedding.slice_rows, 16384);
    assert_int_equal(l.embedding.slice_rows_pad, 16384);
    assert_int_equal(l.embedding.align, 2 * mib);
}

static void test_embedding_slices(void **state)
{
    (void)state;
    oct_grok_layouts l;
    oct_error err = {0};
    oct_grok_config c = odd;

    assert_int_equal(oct_grok_layouts_init(&c, NULL, &l, &err), OCT_OK);
    assert_int_equal(l.embedding.slice_rows, 131);     /* 521 / 4, rounded up */
    assert_int_equal(l.embedding.slice_rows_pad, 192); /* 64 rows of 192 bytes are 3 pages */
    assert_int_equal(l.embedding.align, 4096);
    for (c.d_model = 6; c.d_model < 400; c.d_model += 6) {
        assert_int_equal(oct_grok_layouts_init(&c, NULL, &l, &err), OCT_OK);
        size_t row = 2 * (size_t)c.d_model, rows = (size_t)l.embedding.slice_rows_pad;
        assert_int_equal(rows * row % 4096, 0);
        assert_true(rows >= 131);
        for (size_t fewer = 131; fewer < rows; fewer++) /* the least that does */
            assert_int_not_equal(fewer * row % 4096, 0);
    }
}

/* Layers of all weight types, every matrix of a layer of another. */
static const oct_grok_types *mixed(const oct_grok_config *c)
{
    static oct_grok_types types[OCT_GROK_MAX_LAYERS];
    for (int64_t i = 0; i < c->n_layers; i++)
        for (int k = 0; k < OCT_GROK_PACKED; k++)
            types[i].of[k] = (uint8_t)((i + k) % OCT_WEIGHT_TYPES);
    return types;
}

static int64_t packing_lacks; /* numbers that are left out at the end */

/* Writes the header of a model's file, as the converter does; returns the tensors' offsets. */
static uint64_t *make_header(const oct_grok_config *c, const oct_grok_types *types,
                             oct_grok_tensor **t, int64_t *n, void **header, size_t *header_bytes,
                             size_t *sum_at)
{
    oct_gguf_writer *w = oct_gguf_writer_new(4096);
    oct_grok_layouts l;
    oct_error err = {0};

    assert_non_null(w);
    assert_int_equal(oct_grok_layouts_init(c, types, &l, &err), OCT_OK);
    assert_int_equal(oct_grok_manifest(c, &l, t, n, &err), OCT_OK);
    oct_grok_config_put(c, w);
    uint32_t *packing = calloc((size_t)*n, sizeof *packing);
    assert_non_null(packing);
    for (int64_t i = 0; i < *n; i++)
        packing[i] = (*t)[i].packing;
    oct_gguf_put_array(w, OCT_GROK_KEY_TENSOR_PACKING, OCT_GGUF_U32, packing,
                       (uint64_t)(*n - packing_lacks));
    free(packing);
    oct_gguf_put_u64(w, OCT_GROK_KEY_HEADER_SUM, 0);
    *sum_at = (size_t)oct_gguf_writer_value_offset(w, OCT_GROK_KEY_HEADER_SUM);
    for (int64_t i = 0; i < *n; i++)
        oct_gguf_put_tensor(w, (*t)[i].name, (*t)[i].dtype, (*t)[i].rank, (*t)[i].ne);
    uint64_t *at = calloc((size_t)*n, sizeof *at);
    assert_non_null(at);
    if (oct_gguf_writer_header(w, 2 << 20, header, header_bytes, at, &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_gguf_writer_free(w);
    return at;
}

/* Each layer's tensors are packed as its types say. */
static void check_packing(const oct_grok_tensor *t, const oct_grok_layouts *l,
                          const oct_grok_types *types)
{
    const oct_grok_kind kind = oct_grok_weights_of(t->kind);
    const oct_weight_layout *at = oct_grok_layout_of(l, t->kind, t->layer);
    if (kind == OCT_GROK_KINDS) {
        assert_null(at);
        assert_int_equal(t->packing, 0);
        return;
    }
    const uint8_t type = types[t->layer].of[kind];
    assert_int_equal(at->type, type);
    assert_int_equal(t->packing, oct_grok_is_scales(t->kind) ? 0 : oct_weight_types[type].number);
    assert_int_equal(t->ne[0],
                     oct_grok_is_scales(t->kind) ? at->scale_stride / 2 : at->unit_stride);
    assert_int_equal(at->group_bytes, oct_weight_types[type].group_bytes(at->group_in));
}

static void check_manifest(const oct_grok_config *c)
{
    const oct_grok_types *types = mixed(c);
    oct_grok_tensor *t;
    int64_t n, of_kind[OCT_GROK_KINDS] = {0};
    void *header;
    size_t header_bytes, sum_at;
    uint64_t *at = make_header(c, types, &t, &n, &header, &header_bytes, &sum_at);
    oct_grok_layouts l;
    oct_error err = {0};
    bool small = false;
    int64_t n_scales = 0;

    assert_int_equal(oct_grok_layouts_init(c, types, &l, &err), OCT_OK);
    for (int64_t i = 0; i < n; i++) {
        of_kind[t[i].kind]++;
        check_packing(&t[i], &l, types);
        assert_int_equal(at[i] % t[i].align, 0);
        assert_true(t[i].align == 4096 || t[i].align == 2 << 20);
        small |= t[i].align == 4096;
        assert_true(small == (t[i].align == 4096)); /* large ones first */
        if (i > 0 && t[i].align == t[i - 1].align && t[i].layer >= 0)
            assert_true(t[i].layer >= t[i - 1].layer);
        if (!oct_grok_is_scales(t[i].kind))
            continue;
        /* Scales have the layout, the layer and the name of weights before them. */
        n_scales++;
        char name[sizeof t[i].name];
        size_t stem = strlen(t[i].name) - strlen("scales");
        assert_string_equal(t[i].name + stem, "scales");
        snprintf(name, sizeof name, "%.*sweight", (int)stem, t[i].name);
        int64_t j = i - 1;
        while (j >= 0 && strcmp(t[j].name, name))
            j--;
        assert_true(j >= 0 && !oct_grok_is_scales(t[j].kind) && t[j].layer == t[i].layer);
        assert_non_null(oct_grok_layout_of(&l, t[i].kind, t[i].layer));
        assert_ptr_equal(oct_grok_layout_of(&l, t[j].kind, t[j].layer),
                         oct_grok_layout_of(&l, t[i].kind, t[i].layer));
    }
    assert_int_equal(n_scales, 4 * c->n_layers);
    for (int k = 0; k < OCT_GROK_KINDS; k++) {
        bool once = k == OCT_GROK_EMBEDDING || k == OCT_GROK_NORM_FINAL;
        bool none = k == OCT_GROK_ROUTER && c->n_experts == 1;
        assert_int_equal(of_kind[k], once ? 1 : none ? 0 : c->n_layers);
    }
    free(at);
    free(header);
    free(t);
}

/* All of Grok-1: what the header, the tensors and the gaps between them take. */
static void test_size_of_grok1(void **state)
{
    (void)state;
    oct_grok_tensor *t;
    int64_t n;
    void *header;
    size_t header_bytes, sum_at;
    uint64_t *at = make_header(&grok1, NULL, &t, &n, &header, &header_bytes, &sum_at), bytes;

    assert_true(oct_gguf_tensor_bytes(t[n - 1].dtype, t[n - 1].rank, t[n - 1].ne, &bytes));
    bytes += at[n - 1];
    print_message("%" PRIu64 " bytes\n", bytes);
    assert_true(bytes > UINT64_C(316000000000) && bytes < UINT64_C(317000000000));
    free(at);
    free(header);
    free(t);
}

static void test_manifest(void **state)
{
    (void)state;
    oct_grok_config c = dense();

    check_manifest(&grok1);
    check_manifest(&odd);
    check_manifest(&c);
    c = grok1;
    c.n_layers = OCT_GROK_MAX_LAYERS;
    check_manifest(&c);
}

static void test_tensor_shapes(void **state)
{
    (void)state;
    oct_grok_layouts l;
    oct_grok_tensor *t;
    int64_t n;
    oct_error err = {0};
    const struct {
        oct_grok_kind weights, scales;
        const oct_weight_layout *layout;
    } packed[] = {
        {OCT_GROK_QKV, OCT_GROK_QKV_SCALES, &l.of[OCT_WEIGHT_Q8][OCT_GROK_QKV]},
        {OCT_GROK_ATTN_OUT, OCT_GROK_ATTN_OUT_SCALES, &l.of[OCT_WEIGHT_Q8][OCT_GROK_ATTN_OUT]},
        {OCT_GROK_GATE_UP, OCT_GROK_GATE_UP_SCALES, &l.of[OCT_WEIGHT_Q8][OCT_GROK_GATE_UP]},
        {OCT_GROK_DOWN, OCT_GROK_DOWN_SCALES, &l.of[OCT_WEIGHT_Q8][OCT_GROK_DOWN]}};

    assert_int_equal(oct_grok_layouts_init(&odd, NULL, &l, &err), OCT_OK);
    assert_int_equal(oct_grok_manifest(&odd, &l, &t, &n, &err), OCT_OK);
    for (int64_t i = 0; i < n; i++) {
        const oct_weight_layout *q = NULL;
        bool scales = false;
        for (size_t k = 0; k < sizeof packed / sizeof packed[0]; k++)
            if (t[i].kind == packed[k].weights || t[i].kind == packed[k].scales) {
                q = packed[k].layout;
                scales = t[i].kind == packed[k].scales;
            }
        assert_ptr_equal(oct_grok_layout_of(&l, t[i].kind, t[i].layer), q);
        assert_int_equal(oct_grok_is_scales(t[i].kind), scales);
        if (q) {
            const uint64_t ne[4] = {scales ? q->scale_stride / 2 : q->unit_stride, 4,
                                    (uint64_t)q->n_experts, 1};
            assert_int_equal(t[i].dtype, scales ? OCT_GGUF_T_BF16 : OCT_GGUF_T_I8);
            assert_memory_equal(t[i].ne, ne, sizeof ne);
            assert_true(!scales || t[i].align == 4096);
        } else if (t[i].kind == OCT_GROK_EMBEDDING) {
            const uint64_t ne[4] = {96, 192, 4, 1};
            assert_int_equal(t[i].dtype, OCT_GGUF_T_BF16);
            assert_memory_equal(t[i].ne, ne, sizeof ne);
        } else {
            const uint64_t ne[4] = {96, t[i].kind == OCT_GROK_ROUTER ? 5 : 1, 1, 1};
            assert_int_equal(t[i].dtype, OCT_GGUF_T_F32);
            assert_memory_equal(t[i].ne, ne, sizeof ne);
        }
    }
    free(t);
}

/* ---- files ---------------------------------------------------------------------------------- */

static char folder[] = "/tmp/octet-config-XXXXXX";
static char path[64];

/* A model file without content: the header, changed by edit and summed again, and a hole. */
static void write_model(const oct_grok_config *c, const char *old, const char *new_bytes, bool sum)
{
    oct_grok_tensor *t;
    int64_t n;
    void *header;
    size_t header_bytes, sum_at, k = old ? strlen(old) : 0;
    uint64_t *at = make_header(c, mixed(c), &t, &n, &header, &header_bytes, &sum_at), bytes;

    if (sum) {
        uint64_t v = oct_grok_header_sum(header, header_bytes, sum_at);
        memcpy((uint8_t *)header + sum_at, &v, 8);
    }
    if (old) {
        uint8_t *p = memmem(header, header_bytes, old, k);
        assert_non_null(p);
        memcpy(p, new_bytes, k);
    }
    if (sum && old) {
        uint64_t v = oct_grok_header_sum(header, header_bytes, sum_at);
        memcpy((uint8_t *)header + sum_at, &v, 8);
    }
    assert_true(oct_gguf_tensor_bytes(t[n - 1].dtype, t[n - 1].rank, t[n - 1].ne, &bytes));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, 1, header_bytes, f), header_bytes);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(truncate(path, (off_t)((at[n - 1] + bytes + 4095) / 4096 * 4096)), 0);
    free(at);
    free(header);
    free(t);
}

static oct_status load(oct_grok_config *c, oct_error *err)
{
    oct_gguf *g;

    memset(err, 0, sizeof *err);
    if (oct_gguf_open(path, &g, err) != OCT_OK)
        fail_msg("%s", err->text);
    oct_status s = oct_grok_config_get(g, c, err);
    oct_gguf_close(g);
    if (s != OCT_OK)
        assert_non_null(strstr(err->text, path));
    return s;
}

/* The file's weight types; NULL: refused, in a line that names the file. */
static oct_grok_types *load_types(const oct_grok_config *c, oct_error *err)
{
    oct_grok_types *types;
    oct_gguf *g;

    memset(err, 0, sizeof *err);
    if (oct_gguf_open(path, &g, err) != OCT_OK)
        fail_msg("%s", err->text);
    if (oct_grok_types_get(g, c, &types, err) != OCT_OK) {
        assert_null(types);
        assert_non_null(strstr(err->text, path));
    }
    oct_gguf_close(g);
    return types;
}

static void round_trip(const oct_grok_config *c)
{
    oct_grok_config back;
    oct_error err;

    write_model(c, NULL, NULL, true);
    if (load(&back, &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_grok_types *types = load_types(c, &err);
    if (!types)
        fail_msg("%s", err.text);
    assert_memory_equal(types, mixed(c), (size_t)c->n_layers * sizeof *types);
    free(types);
#define OCT_GROK_INT(field, key) assert_int_equal(back.field, c->field);
#define OCT_GROK_FLOAT(field, key) assert_memory_equal(&back.field, &c->field, sizeof c->field);
#include "grok_keys.inc"
}

static void test_round_trip(void **state)
{
    (void)state;
    const oct_grok_config c = dense();

    round_trip(&grok1);
    round_trip(&odd);
    round_trip(&c);
}

static void refused_file(const char *old, const char *new_bytes, oct_status status,
                         const char *part)
{
    oct_grok_config c;
    oct_error err;

    write_model(&odd, old, new_bytes, true);
    assert_int_equal(load(&c, &err), status);
    if (!strstr(err.text, part))
        fail_msg("expected \"%s\" in: %s", part, err.text);
}

static void test_bad_files(void **state)
{
    (void)state;
    oct_grok_config c;
    oct_error err;
    char bent[64];

    /* Every key missing: its first letter is another. */
#define MISSING(key)                               \
    snprintf(bent, sizeof bent, "x%s", &(key)[1]); \
    refused_file(key, bent, OCT_ERR_FORMAT, "'" key "': expected");
#define OCT_GROK_INT(field, key) MISSING(key)
#define OCT_GROK_FLOAT(field, key) MISSING(key)
#include "grok_keys.inc"
    MISSING("octet.format")
    MISSING("general.architecture")
#undef MISSING
    write_model(&odd, NULL, NULL, false);
    assert_int_equal(load(&c, &err), OCT_ERR_FORMAT);
    assert_non_null(strstr(err.text, "header: expected checksum"));
}

static void test_bad_types(void **state)
{
    (void)state;
    oct_error err;
    oct_grok_layouts l;
    oct_grok_types types[12] = {{{0}}};

    packing_lacks = 1;
    write_model(&odd, NULL, NULL, true);
    packing_lacks = 0;
    assert_null(load_types(&odd, &err));
    if (!strstr(err.text, "'octet.tensor_packing': expected ") ||
        !strstr(err.text, "numbers, one for each tensor, found "))
        fail_msg("%s", err.text);
    write_model(&odd, "octet.tensor_packing", "octet.tensor_pakcing", true);
    assert_null(load_types(&odd, &err));
    assert_non_null(strstr(err.text, "'octet.tensor_packing': expected an array of"));
    err = (oct_error){0}; /* of the types that a caller gives too */
    types[1].of[OCT_GROK_QKV] = OCT_WEIGHT_TYPES;
    assert_true(odd.n_layers > 1 && odd.n_layers <= 12);
    assert_int_equal(oct_grok_layouts_init(&odd, types, &l, &err), OCT_ERR_ARG);
    assert_non_null(strstr(err.text, "layer 1, query, key, value: no weight type"));
}

/* What a rank holds and reads, from the list of tensors. */
static void check_bytes(const oct_grok_config *c, const oct_shard *s)
{
    const oct_grok_types *types = mixed(c);
    oct_grok_layouts l;
    oct_grok_tensor *t;
    oct_error err = {0};
    int64_t n;
    uint64_t held = 0, common = 0, expert = 0, bytes;

    assert_int_equal(oct_grok_layouts_init(c, types, &l, &err), OCT_OK);
    assert_int_equal(oct_grok_manifest(c, &l, &t, &n, &err), OCT_OK);
    for (int64_t i = 0; i < n; i++) {
        const oct_weight_layout *w = oct_grok_layout_of(&l, t[i].kind, t[i].layer);
        bool experts = strstr(t[i].name, "ffn_gate_up") || strstr(t[i].name, "ffn_down");
        oct_shard_kind kind = t[i].kind == OCT_GROK_EMBEDDING ? OCT_SHARD_OF_VOCABULARY
                              : experts                       ? OCT_SHARD_OF_EXPERTS
                                                              : OCT_SHARD_OF_ATTENTION;
        assert_true(oct_gguf_tensor_bytes(t[i].dtype, t[i].rank, t[i].ne, &bytes));
        uint64_t slices = (uint64_t)oct_shard_n_slices(s, kind);
        if (w) {
            uint64_t unit = bytes / (uint64_t)(w->n_experts * w->n_slices);
            uint64_t full = oct_grok_is_scales(t[i].kind) ? w->scale_bytes : w->unit_bytes;
            uint64_t mine = experts ? (uint64_t)(s->experts.end - s->experts.first) : 1;
            held += unit * slices * mine;
            *(experts ? &expert : &common) += full * slices;
        } else if (kind == OCT_SHARD_OF_VOCABULARY) {
            held += bytes / (uint64_t)c->n_slices * slices;
            for (int64_t row = 0; row < c->n_vocab; row++) {
                int64_t slice = row / l.embedding.slice_rows;
                if (slice >= s->slices[kind].first && slice < s->slices[kind].end)
                    common += 2 * (uint64_t)c->d_model;
            }
        } else {
            held += bytes;
            common += bytes;
        }
    }
    free(t);
    const oct_grok_bytes got = oct_grok_weight_bytes(c, &l, s);
    assert_int_equal(got.held, held);
    assert_int_equal(got.common, common);
    assert_int_equal(got.expert, expert);
    if (s->size == 1) {
        const oct_grok_bytes all = oct_grok_weight_bytes(c, &l, NULL);
        assert_memory_equal(&all, &got, sizeof all);
    }
}

static void test_weight_bytes(void **state)
{
    (void)state;
    const oct_grok_config one = dense(), *const configs[] = {&grok1, &odd, &one};

    for (int i = 0; i < 3; i++)
        for (int by = 0; by < OCT_SHARD_LAYOUTS; by++)
            for (int size = 1; size <= 8; size++)
                for (int rank = 0; rank < size; rank++) {
                    oct_shard s;
                    if (!oct_shard_make((oct_shard_layout)by, rank, size, configs[i]->n_slices,
                                        configs[i]->n_experts, &s))
                        check_bytes(configs[i], &s);
                }
}

/* A number changed behind the checksum's back is found; with the checksum it is judged. */
static void test_checksum(void **state)
{
    (void)state;
    oct_grok_config c;
    oct_error err;
    oct_gguf *g;
    FILE *f;

    write_model(&odd, NULL, NULL, true);
    assert_int_equal(oct_gguf_open(path, &g, &err), OCT_OK);
    size_t n = (size_t)oct_gguf_data_offset(g);
    size_t sum_at = (size_t)oct_gguf_value_offset(g, OCT_GROK_KEY_HEADER_SUM);
    const long at[] = {(long)oct_gguf_value_offset(g, "octet.expert_used_count"),
                       (long)oct_gguf_value_offset(g, "octet.format"),
                       (long)oct_gguf_value_offset(g, "general.architecture"),
                       (long)oct_gguf_value_offset(g, "octet.rope.freq_base")};
    uint8_t *copy = malloc(n);
    assert_non_null(copy);
    memcpy(copy, oct_gguf_bytes(g), n);
    memset(copy + sum_at, 0, 8);
    assert_true(oct_grok_header_sum(oct_gguf_bytes(g), n, sum_at) == XXH3_64bits(copy, n));
    free(copy);
    oct_gguf_close(g);
    static const struct {
        char value;
        oct_status status;
        const char *part;
    } want[] = {
        {4, OCT_ERR_FORMAT, "header: expected checksum"},
        {3, OCT_ERR_UNSUPPORTED, "expected file format version 1 to 2, found 3"},
        {'a', OCT_ERR_UNSUPPORTED, "expected 'octet' (a file made by octet convert), found"},
        {'x', OCT_ERR_FORMAT, "header: expected checksum"}};
    for (int i = 0; i < 4; i++) {
        write_model(&odd, NULL, NULL, true);
        f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, at[i], SEEK_SET), 0);
        assert_int_not_equal(fgetc(f), want[i].value);
        assert_int_equal(fseek(f, at[i], SEEK_SET), 0);
        fputc(want[i].value, f);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(load(&c, &err), want[i].status);
        if (!strstr(err.text, want[i].part))
            fail_msg("expected \"%s\" in: %s", want[i].part, err.text);
    }
    c = odd;
    c.n_used = 6;
    write_model(&c, NULL, NULL, true);
    assert_int_equal(load(&c, &err), OCT_ERR_SHAPE);
    assert_non_null(strstr(err.text, "n_used: expected at most n_experts = 5, found 6"));
}

static void test_header_sum_bounds(void **state)
{
    (void)state;
    uint8_t b[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

    /* A place outside the header: everything counts. */
    assert_true(oct_grok_header_sum(b, 16, 9) == XXH3_64bits(b, 16));
    assert_true(oct_grok_header_sum(b, 16, SIZE_MAX) == XXH3_64bits(b, 16));
    assert_true(oct_grok_header_sum(b, 4, 0) == XXH3_64bits(b, 4));
    assert_true(oct_grok_header_sum(b, 16, 8) != XXH3_64bits(b, 16));
    b[8] = 0;
    assert_true(oct_grok_header_sum(b, 16, 8) == XXH3_64bits(b, 16));
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
    grok1 = oct_grok1_config(64, 131072);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_ffn_size),
        cmocka_unit_test(test_layouts_of_grok1),
        cmocka_unit_test(test_embedding_slices),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_size_of_grok1),
        cmocka_unit_test(test_tensor_shapes),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_types),
        cmocka_unit_test(test_weight_bytes),
        cmocka_unit_test(test_checksum),
        cmocka_unit_test(test_header_sum_bounds),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
