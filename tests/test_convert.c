/* test_convert.c: the numbers in a converted file are the checkpoint's. The file is unpacked here
 * from its description (convert/FORMAT.md), without the library's packing code; what the checkpoint
 * holds is known from the generator's formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ckpt_rig.h"
#include "f16.h"
#include "gguf.h"

static const mk_spec dense = {.layers = 2,
                              .vocab = 50,
                              .d = 42,
                              .ffn = 81,
                              .q_heads = 6,
                              .kv_heads = 3,
                              .head = 10,
                              .experts = 1,
                              .used = 1,
                              .context = 64,
                              .groups = 3,
                              .seed = 9};
/* Units of more than 16 MiB (2 MiB alignment) that are made in several pieces; one slice. */
static const mk_spec wide = {.layers = 1,
                             .vocab = 3000,
                             .d = 2048,
                             .ffn = 4160,
                             .q_heads = 12,
                             .kv_heads = 1,
                             .head = 160,
                             .experts = 1,
                             .used = 1,
                             .context = 64,
                             .groups = 8,
                             .seed = 11};

/* ---- unpacking ------------------------------------------------------------------------------- */

/* A packed tensor as FORMAT.md describes it. */
typedef struct packed {
    uint8_t *at, *scales;
    size_t stride, scale_stride; /* of a unit */
    int64_t slices;
    int64_t groups; /* of a unit */
    int64_t group;  /* inputs of a group */
    bool split_in;
    int64_t n_parts;
    bool interleaved;
    int64_t part[3]; /* channels of a part in a unit */
} packed;

static int64_t quads(const packed *p)
{
    return (p->group + 3) / 4;
}

static size_t panel_bytes(const packed *p)
{
    return (size_t)(p->groups * quads(p) * 256);
}

/* Panel and lane of channel c of a part, within a unit. */
static int64_t panel_of(const packed *p, int part, int64_t c, int64_t *lane)
{
    int64_t panel;
    if (p->interleaved) {
        panel = c / 32;
        *lane = c % 32 + 32 * part;
    } else {
        for (int i = 0; i < part; i++)
            c += p->part[i];
        panel = c / 64;
        *lane = c % 64;
    }
    return panel;
}

/* Where input i (of the whole matrix) and channel c (of the whole part) lie. */
static uint8_t *weight_at(const packed *p, int64_t expert, int part, int64_t i, int64_t c)
{
    int64_t lane, slice = p->split_in ? i / (p->groups * p->group) : c / p->part[part];
    int64_t panel = panel_of(p, part, p->split_in ? c : c % p->part[part], &lane);
    int64_t g = i / p->group % p->groups;
    return p->at + p->stride * (size_t)(expert * p->slices + slice) +
           (size_t)panel * panel_bytes(p) + (g * quads(p) + i % p->group / 4) * 256 + lane * 4 +
           i % p->group % 4;
}

static uint8_t *scale_at(const packed *p, int64_t expert, int part, int64_t group, int64_t c)
{
    int64_t lane, slice = p->split_in ? group / p->groups : c / p->part[part];
    int64_t panel = panel_of(p, part, p->split_in ? c : c % p->part[part], &lane);
    return p->scales + p->scale_stride * (size_t)(expert * p->slices + slice) +
           ((panel * p->groups + group % p->groups) * 64 + lane) * 2;
}

/* ---- a file and its checkpoint --------------------------------------------------------------- */

typedef struct file {
    const mk_spec *spec;
    rig_map map;
    oct_gguf *g;
    int64_t slices;
} file;

static file open_file(const mk_spec *s, const char *path)
{
    oct_error err = {0};
    file f = {.spec = s, .map = rig_map_file(path)};
    uint64_t slices = 0;
    if (oct_gguf_open(path, &f.g, &err) != OCT_OK ||
        oct_gguf_get_u64(f.g, "octet.slice_count", &slices, &err) != OCT_OK)
        fail_msg("%s", err.text);
    f.slices = (int64_t)slices;
    return f;
}

static void close_file(file *f)
{
    oct_gguf_close(f->g);
    rig_unmap(f->map);
}

static const oct_gguf_tensor *find(const file *f, int64_t layer, const char *name,
                                   const char *suffix)
{
    char full[64];
    if (layer < 0)
        snprintf(full, sizeof full, "%s.%s", name, suffix);
    else
        snprintf(full, sizeof full, "blk.%lld.%s.%s", (long long)layer, name, suffix);
    const oct_gguf_tensor *t = oct_gguf_find(f->g, full);
    if (!t)
        fail_msg("no tensor %s", full);
    assert_int_equal(t->offset % 4096, 0);
    return t;
}

static uint8_t *tensor(const file *f, int64_t layer, const char *name)
{
    return f->map.data + find(f, layer, name, "weight")->offset;
}

/* The tensors with packed units, and which leaves they hold. */
enum { N_PACKED = 4 };
static const struct {
    const char *name;
    mk_leaf leaf[3];
    int n;
    bool split_in, interleaved;
} matrices[N_PACKED] = {{"attn_qkv", {MK_QUERY, MK_KEY, MK_VALUE}, 3, false, false},
                        {"attn_output", {MK_ATTN_OUT}, 1, true, false},
                        {"ffn_gate_up", {MK_GATE, MK_UP}, 2, false, true},
                        {"ffn_down", {MK_DOWN}, 1, true, false}};

static packed find_packed(const file *f, int64_t layer, int m)
{
    const oct_gguf_tensor *t = find(f, layer, matrices[m].name, "weight"),
                          *s = find(f, layer, matrices[m].name, "scales");
    packed p = {.at = f->map.data + t->offset,
                .scales = f->map.data + s->offset,
                .stride = (size_t)t->ne[0],
                .scale_stride = 2 * (size_t)s->ne[0],
                .slices = f->slices,
                .split_in = matrices[m].split_in,
                .interleaved = matrices[m].interleaved,
                .n_parts = matrices[m].n};
    int64_t shape[3];
    int rank = mk_shape(f->spec, matrices[m].leaf[0], shape);
    int64_t groups = mk_groups(f->spec, matrices[m].leaf[0]);
    p.group = shape[rank - 2] / groups;
    p.groups = p.split_in ? groups / f->slices : groups;
    for (int i = 0; i < p.n_parts; i++) {
        rank = mk_shape(f->spec, matrices[m].leaf[i], shape);
        p.part[i] = p.split_in ? shape[rank - 1] : shape[rank - 1] / f->slices;
    }
    assert_memory_equal(t->ne + 1, s->ne + 1, sizeof s->ne - sizeof s->ne[0]);
    return p;
}

/* Integers and scales of one matrix that are not the checkpoint's. */
static int64_t count_matrix(const file *f, const packed *p, int64_t layer, int m)
{
    const mk_spec *s = f->spec;
    int64_t wrong = 0;
    for (int part = 0; part < p->n_parts; part++) {
        mk_leaf leaf = matrices[m].leaf[part];
        int64_t shape[3], groups = mk_groups(s, leaf);
        int rank = mk_shape(s, leaf, shape);
        int64_t experts = rank == 3 ? shape[0] : 1, n_in = shape[rank - 2], n_out = shape[rank - 1];
        for (int64_t e = 0; e < experts; e++) {
            for (int64_t i = 0; i < n_in; i++)
                for (int64_t c = 0; c < n_out; c++)
                    wrong += (int8_t)(*weight_at(p, e, part, i, c) ^ 0x80) !=
                             mk_weight(s, layer, leaf, (e * n_in + i) * n_out + c);
            for (int64_t g = 0; g < groups; g++)
                for (int64_t c = 0; c < n_out; c++) {
                    uint16_t b;
                    memcpy(&b, scale_at(p, e, part, g, c), 2);
                    wrong += b != mk_scale(s, layer, leaf, (e * groups + g) * n_out + c);
                }
        }
    }
    return wrong;
}

static int64_t count_vector(const file *f, int64_t layer, const char *name, mk_leaf leaf)
{
    const uint8_t *at = tensor(f, layer, name);
    int64_t wrong = 0, d = f->spec->d, rows = leaf == MK_ROUTER ? f->spec->experts : 1;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) {
            float v;
            memcpy(&v, at + 4 * (r * d + i), 4);
            wrong += v != mk_number(f->spec, layer, leaf, leaf == MK_ROUTER ? i * rows + r : i);
        }
    return wrong;
}

static int64_t count_embedding(const file *f)
{
    const mk_spec *s = f->spec;
    const uint8_t *at = tensor(f, -1, "token_embd");
    const oct_gguf_tensor *t = oct_gguf_find(f->g, "token_embd.weight");
    int64_t pad = (int64_t)t->ne[1], rows = (s->vocab + f->slices - 1) / f->slices, wrong = 0;
    assert_int_equal(t->ne[2], f->slices);
    for (int64_t k = 0; k < f->slices; k++)
        for (int64_t r = 0; r < pad; r++)
            for (int64_t i = 0; i < s->d; i++) {
                int64_t v = k * rows + r;
                bool real = r < rows && v < s->vocab;
                uint16_t b,
                    want = real ? oct_bf16_of_f32(mk_number(s, -1, MK_EMBEDDING, v * s->d + i)) : 0;
                memcpy(&b, at + 2 * ((k * pad + r) * s->d + i), 2);
                wrong += b != want;
            }
    return wrong;
}

static int64_t count_rest(const file *f)
{
    static const struct {
        const char *name;
        mk_leaf leaf;
    } vectors[] = {{"attn_norm", MK_NORM0},
                   {"attn_output_norm", MK_NORM1},
                   {"ffn_norm", MK_NORM2},
                   {"layer_output_norm", MK_NORM3},
                   {"ffn_gate_inp", MK_ROUTER}};
    int64_t wrong = count_embedding(f) + count_vector(f, -1, "output_norm", MK_NORM_FINAL);
    for (int64_t l = 0; l < f->spec->layers; l++)
        for (int v = 0; v < 5; v++)
            if (vectors[v].leaf != MK_ROUTER || f->spec->experts > 1)
                wrong += count_vector(f, l, vectors[v].name, vectors[v].leaf);
    return wrong;
}

static int64_t count_wrong(const file *f)
{
    int64_t wrong = 0;
    for (int64_t l = 0; l < f->spec->layers; l++)
        for (int m = 0; m < N_PACKED; m++) {
            packed p = find_packed(f, l, m);
            wrong += count_matrix(f, &p, l, m);
        }
    return wrong + count_rest(f);
}

static void convert(const rig_dir *d, oct_convert_report *r)
{
    oct_error err;
    if (rig_convert(d, r, &err) != OCT_OK)
        fail_msg("%s", err.text);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_equal(const mk_spec *s, int64_t slices)
{
    rig_dir d = rig_new(s);
    oct_convert_report r;
    convert(&d, &r);
    file f = open_file(s, d.out);
    assert_int_equal(f.slices, slices);
    assert_int_equal(count_wrong(&f), 0);
    assert_int_equal(r.n_files, mk_n_files(s));
    assert_int_equal(r.n_quantised, 0);
    close_file(&f);
    oct_convert_report_free(&r);
    rig_free(&d);
}

static void test_experts(void **state)
{
    (void)state;
    check_equal(&rig_small, 8);
}

static void test_dense(void **state)
{
    (void)state;
    check_equal(&dense, 3);
}

static void test_pieces(void **state)
{
    (void)state;
    check_equal(&wide, 1);
}

static void swap(uint8_t *a, uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

/* The comparison sees what it is there to see: two scale groups exchanged, gate and up exchanged,
 * query and output exchanged, two layers, two experts, one bit. */
static void test_swaps_are_seen(void **state)
{
    (void)state;
    rig_dir d = rig_new(&rig_small);
    oct_convert_report r;
    convert(&d, &r);
    file f = open_file(&rig_small, d.out);

    packed down = find_packed(&f, 5, 3);
    assert_int_equal(count_matrix(&f, &down, 5, 3), 0);
    swap(scale_at(&down, 1, 0, 2, 10), scale_at(&down, 1, 0, 3, 10), 2);
    assert_int_equal(count_matrix(&f, &down, 5, 3), 2);
    for (int64_t c = 0; c < rig_small.d; c++)
        if (c != 10)
            swap(scale_at(&down, 1, 0, 2, c), scale_at(&down, 1, 0, 3, c), 2);
    assert_true(count_matrix(&f, &down, 5, 3) > rig_small.d);

    packed gate_up = find_packed(&f, 0, 2);
    for (int64_t i = 0; i < rig_small.d; i++)
        for (int64_t c = 0; c < rig_small.ffn; c++)
            swap(weight_at(&gate_up, 0, 0, i, c), weight_at(&gate_up, 0, 1, i, c), 1);
    assert_true(count_matrix(&f, &gate_up, 0, 2) > rig_small.d * rig_small.ffn);

    packed one = find_packed(&f, 10, 1), other = find_packed(&f, 2, 1);
    assert_int_equal(count_matrix(&f, &one, 10, 1), 0);
    assert_true(count_matrix(&f, &one, 2, 1) > 0);
    assert_true(count_matrix(&f, &other, 10, 1) > 0);
    *weight_at(&one, 0, 0, 3, 4) ^= 1;
    assert_int_equal(count_matrix(&f, &one, 10, 1), 1);
    close_file(&f);

    /* The same for a checkpoint whose files are exchanged: shapes cannot tell gate from up. */
    char gate[160], up[160], spare[160];
    snprintf(spare, sizeof spare, "%s/spare", d.path);
    rig_file(&d, 2, gate);
    rig_file(&d, 4, up);
    assert_int_equal(rename(gate, spare) | rename(up, gate) | rename(spare, up), 0);
    oct_convert_report_free(&r);
    convert(&d, &r);
    f = open_file(&rig_small, d.out);
    assert_true(count_wrong(&f) > rig_small.d * rig_small.ffn);
    close_file(&f);
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* The released framing with real weights: payloads at the places that are known from xAI's
 * files. */
static void test_shipped_model(void **state)
{
    (void)state;
    static const mk_spec tiny = {.layers = 6,
                                 .vocab = 4096,
                                 .d = 256,
                                 .ffn = 256,
                                 .q_heads = 16,
                                 .kv_heads = 8,
                                 .head = 16,
                                 .experts = 8,
                                 .used = 2,
                                 .groups = 8};
    static const struct {
        int slot, m, part;
        size_t at, scales_at;
    } known[] = {{0, 2, 0, 201, 524595}, {1, 3, 0, 201, 524595}, {2, 2, 1, 201, 524595},
                 {3, 0, 1, 198, 33060},  {4, 1, 0, 199, 65839},  {5, 0, 0, 199, 65839},
                 {6, 0, 2, 198, 33060}};
    rig_dir d = rig_new(NULL);
    oct_convert_report r;
    oct_error err;
    oct_convert_params p = {.checkpoint = OCT_TEST_TINY "/ckpt-0", .out = d.out};
    if (rig_convert_with(&p, &r, &err) != OCT_OK)
        fail_msg("%s", err.text);
    file f = open_file(&tiny, d.out);
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        for (int64_t layer = 0; layer < 6; layer++) {
            mk_leaf leaf = matrices[known[k].m].leaf[known[k].part];
            char path[4096];
            int64_t shape[3], groups = mk_groups(&tiny, leaf), wrong = 0;
            int rank = mk_shape(&tiny, leaf, shape);
            int64_t experts = rank == 3 ? 8 : 1, n_in = shape[rank - 2], n_out = shape[rank - 1];
            snprintf(path, sizeof path, OCT_TEST_TINY "/ckpt-0/tensor%05d_000",
                     (int)(2 + 12 * layer + known[k].slot));
            rig_map source = rig_map_file(path);
            packed q = find_packed(&f, layer, known[k].m);
            for (int64_t e = 0; e < experts; e++) {
                const uint8_t *w = source.data + known[k].at + e * n_in * n_out;
                const uint8_t *scales = source.data + known[k].scales_at + 2 * e * groups * n_out;
                for (int64_t i = 0; i < n_in * n_out; i++)
                    wrong +=
                        (*weight_at(&q, e, known[k].part, i / n_out, i % n_out) ^ 0x80) != w[i];
                for (int64_t i = 0; i < groups * n_out; i++)
                    wrong += memcmp(scale_at(&q, e, known[k].part, i / n_out, i % n_out),
                                    scales + 2 * i, 2) != 0;
            }
            assert_int_equal(wrong, 0);
            rig_unmap(source);
        }
    /* The tokenizer's bytes, found above ckpt-0. */
    rig_map spm = rig_map_file(OCT_TEST_TINY "/tokenizer.model");
    const oct_gguf_tensor *t = oct_gguf_find(f.g, "tokenizer.sentencepiece");
    assert_non_null(t);
    assert_int_equal(t->bytes, spm.n);
    assert_memory_equal(t->data, spm.data, spm.n);
    rig_unmap(spm);
    close_file(&f);
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* Plain matrices: every weight within half a step, the largest of each group at the end of the
 * scale; everything else as for int8. */
static void check_quantised(mk_kind kind)
{
    mk_spec s = rig_small;
    s.kind = kind;
    s.layers = 2;
    rig_dir d = rig_new(&s);
    oct_convert_report r;
    convert(&d, &r);
    assert_int_equal(r.n_quantised, 2 * N_PACKED);
    /* Uniform weights of 127 steps: an error of 1 / (127 * 2) in units of the largest. */
    assert_true(r.q8_error > 1e-3 && r.q8_error < 6e-3);
    file f = open_file(&s, d.out);
    assert_int_equal(f.slices, 8); /* as many groups as KV heads */
    assert_int_equal(count_rest(&f), 0);
    for (int m = 0; m < N_PACKED; m++) {
        packed p = find_packed(&f, 1, m);
        for (int part = 0; part < p.n_parts; part++) {
            mk_leaf leaf = matrices[m].leaf[part];
            int64_t shape[3];
            int rank = mk_shape(&s, leaf, shape);
            int64_t n_in = shape[rank - 2], n_out = shape[rank - 1],
                    e = rank == 3 ? shape[0] - 1 : 0;
            for (int64_t c = 0; c < n_out; c++)
                for (int64_t i = 0; i < n_in; i++) {
                    float w = mk_number(&s, 1, leaf, (e * n_in + i) * n_out + c);
                    int q = (int8_t)(*weight_at(&p, e, part, i, c) ^ 0x80);
                    uint16_t b;
                    memcpy(&b, scale_at(&p, e, part, i / p.group, c), 2);
                    float step = oct_f32_of_bf16(b);
                    assert_true(q >= -127);
                    assert_true(fabsf(w - step * (float)q) <= 0.501f * step);
                    assert_true(step < 1.8f * sqrtf(3.0f / (float)n_in) / 127);
                }
        }
    }
    close_file(&f);
    oct_convert_report_free(&r);
    rig_free(&d);
}

static void test_quantise_f32(void **state)
{
    (void)state;
    check_quantised(MK_F32);
}

static void test_quantise_bf16(void **state)
{
    (void)state;
    check_quantised(MK_BF16);
}

/* The same file for any number of threads, and checksums that are those of its bytes. */
static void test_threads_and_sums(void **state)
{
    (void)state;
    rig_dir d = rig_new(&wide);
    uint64_t whole = 0;
    for (int threads = 1; threads <= 5; threads += 2) {
        oct_convert_report r;
        oct_error err = {0};
        oct_convert_params p = {
            .checkpoint = d.ckpt, .out = d.out, .no_tokenizer = true, .n_threads = threads};
        if (rig_convert_with(&p, &r, &err) != OCT_OK)
            fail_msg("%s", err.text);
        oct_convert_report_free(&r);
        rig_map m = rig_map_file(d.out);
        uint64_t sum = XXH3_64bits(m.data, m.n);
        if (threads == 1)
            whole = sum;
        assert_true(sum == whole);
        rig_unmap(m);
    }
    oct_gguf *g = NULL;
    oct_error err = {0};
    const void *sums = NULL;
    uint64_t n = 0;
    assert_int_equal(oct_gguf_open(d.out, &g, &err), OCT_OK);
    assert_int_equal(oct_gguf_get_array(g, "octet.tensor_xxh3", OCT_GGUF_U64, &sums, &n, &err),
                     OCT_OK);
    assert_int_equal(n, oct_gguf_n_tensors(g));
    for (int64_t i = 0; i < (int64_t)n; i++) {
        const oct_gguf_tensor *t = oct_gguf_tensor_at(g, i);
        uint64_t sum;
        memcpy(&sum, (const uint8_t *)sums + 8 * i, 8);
        assert_true(sum == XXH3_64bits(t->data, t->bytes));
    }
    const oct_gguf_tensor *t = oct_gguf_find(g, "blk.0.ffn_gate_up.weight");
    assert_true(t->bytes > 16 << 20);
    assert_int_equal(t->offset % (2 << 20), 0);
    oct_gguf_close(g);
    rig_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),       cmocka_unit_test(test_dense),
        cmocka_unit_test(test_pieces),        cmocka_unit_test(test_swaps_are_seen),
        cmocka_unit_test(test_shipped_model), cmocka_unit_test(test_quantise_f32),
        cmocka_unit_test(test_quantise_bf16), cmocka_unit_test(test_threads_and_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
