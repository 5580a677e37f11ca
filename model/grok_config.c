/* grok_config.c: hyper-parameters and what follows from them, see grok.h. */
#include "grok.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define KEY_FORMAT "octet.format"

enum { FILE_ALIGN = 4096, LARGE_ALIGN = 2 << 20, LARGE_UNIT = 16 << 20, ABSENT = -1 };

/* Ranges of the integers, wide enough for any model and narrow enough that products of three of
 * them stay below 2^63. A field of grok_keys.inc without a row here does not compile. */
#define LIMITS_n_layers 1, OCT_GROK_MAX_LAYERS
#define LIMITS_n_vocab 1, 1 << 24
#define LIMITS_n_ctx 1, 1 << 24 /* a position is exact in f32 */
#define LIMITS_d_model 1, 1 << 18
#define LIMITS_n_q_heads 1, 1 << 12
#define LIMITS_n_kv_heads 1, 1 << 12
#define LIMITS_head_dim 2, 1 << 12
#define LIMITS_d_ff 1, 1 << 22
#define LIMITS_n_experts 1, OCT_WEIGHT_MAX_EXPERTS
#define LIMITS_n_used 1, OCT_WEIGHT_MAX_EXPERTS
#define LIMITS_n_slices 1, OCT_WEIGHT_MAX_SLICES
#define LIMITS_qkv_groups 1, 1 << 18
#define LIMITS_attn_out_groups 1, 1 << 24
#define LIMITS_gate_up_groups 1, 1 << 18
#define LIMITS_down_groups 1, 1 << 22
#define LIMITS_pad_id ABSENT, 1 << 24
#define LIMITS_eos_id ABSENT, 1 << 24

static const struct int_field {
    const char *name, *key;
    size_t at;
    int64_t lo, hi;
} int_fields[] = {
#define OCT_GROK_INT(field, key) {#field, key, offsetof(oct_grok_config, field), LIMITS_##field},
#define OCT_GROK_FLOAT(field, key)
#include "grok_keys.inc"
};

static const struct float_field {
    const char *name, *key;
    size_t at;
} float_fields[] = {
#define OCT_GROK_INT(field, key)
#define OCT_GROK_FLOAT(field, key) {#field, key, offsetof(oct_grok_config, field)},
#include "grok_keys.inc"
};

enum {
    N_INTS = sizeof int_fields / sizeof int_fields[0],
    N_FLOATS = sizeof float_fields / sizeof float_fields[0]
};

static int64_t get_int(const oct_grok_config *c, const struct int_field *f)
{
    int64_t v;

    memcpy(&v, (const char *)c + f->at, sizeof v);
    return v;
}

static float get_float(const oct_grok_config *c, const struct float_field *f)
{
    float v;

    memcpy(&v, (const char *)c + f->at, sizeof v);
    return v;
}

/* ---- checks --------------------------------------------------------------------------------- */

static oct_status check_divides(const char *part, int64_t n, const char *whole, int64_t m,
                                oct_error *err)
{
    if (m % n)
        return oct_fail(err, OCT_ERR_SHAPE,
                        "%s: expected a divisor of %s = %" PRId64 ", found %" PRId64, part, whole,
                        m, n);
    return OCT_OK;
}

oct_status oct_grok_config_check(const oct_grok_config *c, oct_error *err)
{
    for (int i = 0; i < N_INTS; i++) {
        const struct int_field *f = &int_fields[i];
        int64_t v = get_int(c, f);
        if (v < f->lo || v > f->hi)
            return oct_fail(err, OCT_ERR_SHAPE,
                            "%s: expected a number in %" PRId64 "..%" PRId64 ", found %" PRId64,
                            f->name, f->lo, f->hi, v);
    }
    for (int i = 0; i < N_FLOATS; i++) {
        float v = get_float(c, &float_fields[i]);
        if (!isfinite(v) || v <= 0)
            return oct_fail(err, OCT_ERR_SHAPE, "%s: expected a positive number, found %g",
                            float_fields[i].name, (double)v);
    }
    if (c->head_dim % 2)
        return oct_fail(err, OCT_ERR_SHAPE,
                        "head_dim: expected an even number (RoPE turns pairs), found %" PRId64,
                        c->head_dim);
    if (c->n_used > c->n_experts)
        return oct_fail(err, OCT_ERR_SHAPE,
                        "n_used: expected at most n_experts = %" PRId64 ", found %" PRId64,
                        c->n_experts, c->n_used);
    if (c->pad_id >= c->n_vocab || c->eos_id >= c->n_vocab)
        return oct_fail(err, OCT_ERR_SHAPE,
                        "pad_id and eos_id: expected less than n_vocab = %" PRId64
                        ", found %" PRId64 " and %" PRId64,
                        c->n_vocab, c->pad_id, c->eos_id);
    OCT_TRY(check_divides("n_kv_heads", c->n_kv_heads, "n_q_heads", c->n_q_heads, err));
    OCT_TRY(check_divides("qkv_groups", c->qkv_groups, "d_model", c->d_model, err));
    OCT_TRY(check_divides("attn_out_groups", c->attn_out_groups, "n_q_heads * head_dim",
                          c->n_q_heads * c->head_dim, err));
    OCT_TRY(check_divides("gate_up_groups", c->gate_up_groups, "d_model", c->d_model, err));
    OCT_TRY(check_divides("down_groups", c->down_groups, "d_ff", c->d_ff, err));
    OCT_TRY(check_divides("n_slices", c->n_slices, "n_kv_heads", c->n_kv_heads, err));
    OCT_TRY(check_divides("n_slices", c->n_slices, "attn_out_groups", c->attn_out_groups, err));
    return check_divides("n_slices", c->n_slices, "down_groups", c->down_groups, err);
}

oct_grok_config oct_grok1_config(int64_t n_layers, int64_t n_vocab)
{
    return (oct_grok_config){.n_layers = n_layers,
                             .n_vocab = n_vocab,
                             .n_ctx = 8192,
                             .d_model = 6144,
                             .n_q_heads = 48,
                             .n_kv_heads = 8,
                             .head_dim = 128,
                             .d_ff = 32768,
                             .n_experts = 8,
                             .n_used = 2,
                             .n_slices = 8,
                             .qkv_groups = 1,
                             .attn_out_groups = 8,
                             .gate_up_groups = 1,
                             .down_groups = 8,
                             .pad_id = 0,
                             .eos_id = 2,
                             .embedding_scale = 78.38367176906169f,
                             .output_scale = 0.5773502691896257f,
                             .attn_scale = 0.08838834764831845f,
                             .attn_cap = 30,
                             .rope_base = 10000,
                             .norm_eps = 1e-5f};
}

int64_t oct_grok_slices(int64_t n_kv_heads, int64_t attn_out_groups, int64_t down_groups)
{
    int64_t n = OCT_WEIGHT_MAX_SLICES;

    while (n > 1 && (n_kv_heads % n || attn_out_groups % n || down_groups % n))
        n--;
    return n;
}

int64_t oct_grok_ffn_size(int64_t d_model, double widening_factor)
{
    double wide = widening_factor * (double)d_model;
    int64_t n;

    if (!(wide >= 1 && wide < (double)(1LL << 40)))
        return 0;
    n = (int64_t)wide * 2 / 3;
    return (n + 7) / 8 * 8;
}

/* ---- kinds of tensors ----------------------------------------------------------------------- */

/* Names, and of packed weights and their scales the former. */
#define PACKED(stem, kind) .name = stem ".weight", .weights = (kind)
#define SCALES(stem, kind) .name = stem ".scales", .weights = (kind), .scales = true
#define PLAIN(full) .name = (full), .weights = OCT_GROK_KINDS
static const struct {
    const char *name;
    oct_grok_kind weights;
    bool scales;
} kinds[OCT_GROK_KINDS] = {
    [OCT_GROK_GATE_UP] = {PACKED("ffn_gate_up", OCT_GROK_GATE_UP)},
    [OCT_GROK_GATE_UP_SCALES] = {SCALES("ffn_gate_up", OCT_GROK_GATE_UP)},
    [OCT_GROK_DOWN] = {PACKED("ffn_down", OCT_GROK_DOWN)},
    [OCT_GROK_DOWN_SCALES] = {SCALES("ffn_down", OCT_GROK_DOWN)},
    [OCT_GROK_QKV] = {PACKED("attn_qkv", OCT_GROK_QKV)},
    [OCT_GROK_QKV_SCALES] = {SCALES("attn_qkv", OCT_GROK_QKV)},
    [OCT_GROK_ATTN_OUT] = {PACKED("attn_output", OCT_GROK_ATTN_OUT)},
    [OCT_GROK_ATTN_OUT_SCALES] = {SCALES("attn_output", OCT_GROK_ATTN_OUT)},
    [OCT_GROK_EMBEDDING] = {PLAIN("token_embd.weight")},
    [OCT_GROK_ROUTER] = {PLAIN("ffn_gate_inp.weight")},
    [OCT_GROK_NORM_ATTN_IN] = {PLAIN("attn_norm.weight")},
    [OCT_GROK_NORM_ATTN_OUT] = {PLAIN("attn_output_norm.weight")},
    [OCT_GROK_NORM_FFN_IN] = {PLAIN("ffn_norm.weight")},
    [OCT_GROK_NORM_FFN_OUT] = {PLAIN("layer_output_norm.weight")},
    [OCT_GROK_NORM_FINAL] = {PLAIN("output_norm.weight")},
};
#undef PACKED
#undef SCALES
#undef PLAIN

/* In the order in which a layer is computed. */
static const oct_grok_kind layer_kinds[] = {
    OCT_GROK_NORM_ATTN_IN,
    OCT_GROK_QKV,
    OCT_GROK_QKV_SCALES,
    OCT_GROK_ATTN_OUT,
    OCT_GROK_ATTN_OUT_SCALES,
    OCT_GROK_NORM_ATTN_OUT,
    OCT_GROK_NORM_FFN_IN,
    OCT_GROK_ROUTER,
    OCT_GROK_GATE_UP,
    OCT_GROK_GATE_UP_SCALES,
    OCT_GROK_DOWN,
    OCT_GROK_DOWN_SCALES,
    OCT_GROK_NORM_FFN_OUT,
};

enum { N_LAYER_KINDS = sizeof layer_kinds / sizeof layer_kinds[0] };

bool oct_grok_is_scales(oct_grok_kind kind)
{
    return kind < OCT_GROK_KINDS && kinds[kind].scales;
}

oct_grok_kind oct_grok_weights_of(oct_grok_kind kind)
{
    return kind < OCT_GROK_KINDS ? kinds[kind].weights : OCT_GROK_KINDS;
}

oct_shard_kind oct_grok_shard_kind(oct_grok_kind kind)
{
    return kind == OCT_GROK_GATE_UP || kind == OCT_GROK_DOWN ? OCT_SHARD_OF_EXPERTS
                                                             : OCT_SHARD_OF_ATTENTION;
}

/* The full name of a kind's tensor; layer -1: of none. */
static void name_of(oct_grok_kind kind, int64_t layer, char *name, size_t n)
{
    if (layer < 0)
        snprintf(name, n, "%s", kinds[kind].name);
    else
        snprintf(name, n, "blk.%" PRId64 ".%s", layer, kinds[kind].name);
}

/* ---- layouts -------------------------------------------------------------------------------- */

static void init_embedding(const oct_grok_config *c, oct_grok_embedding *e)
{
    size_t row = 2 * (size_t)c->d_model, step;

    e->slice_rows = (c->n_vocab + c->n_slices - 1) / c->n_slices;
    e->align = (size_t)e->slice_rows * row > LARGE_UNIT ? LARGE_ALIGN : FILE_ALIGN;
    /* The alignment is a power of two: rows per aligned step = align / gcd(align, row). */
    step = e->align / (row & -row) ? e->align / (row & -row) : 1;
    e->slice_rows_pad = (e->slice_rows + (int64_t)step - 1) / (int64_t)step * (int64_t)step;
}

static const char *const packed_names[OCT_GROK_PACKED] = {
    [OCT_GROK_GATE_UP] = "FFN gate and up",
    [OCT_GROK_DOWN] = "FFN down",
    [OCT_GROK_QKV] = "query, key, value",
    [OCT_GROK_ATTN_OUT] = "attention output",
};

static oct_status init_type(const oct_grok_config *c, oct_weight_type type,
                            oct_weight_layout l[OCT_GROK_PACKED], oct_error *err)
{
    const int64_t q = c->n_q_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const oct_weight_layout shapes[OCT_GROK_PACKED] = {
        [OCT_GROK_QKV] = {.n_experts = 1,
                          .n_in = c->d_model,
                          .n_groups = c->qkv_groups,
                          .part_out = {q, kv, kv},
                          .n_parts = 3,
                          .split = OCT_SPLIT_OUT},
        [OCT_GROK_ATTN_OUT] = {.n_experts = 1,
                               .n_in = q,
                               .n_groups = c->attn_out_groups,
                               .part_out = {c->d_model},
                               .n_parts = 1,
                               .split = OCT_SPLIT_IN},
        [OCT_GROK_GATE_UP] = {.n_experts = c->n_experts,
                              .n_in = c->d_model,
                              .n_groups = c->gate_up_groups,
                              .part_out = {c->d_ff, c->d_ff},
                              .n_parts = 2,
                              .interleave = true,
                              .split = OCT_SPLIT_OUT},
        [OCT_GROK_DOWN] = {.n_experts = c->n_experts,
                           .n_in = c->d_ff,
                           .n_groups = c->down_groups,
                           .part_out = {c->d_model},
                           .n_parts = 1,
                           .split = OCT_SPLIT_IN},
    };
    for (int k = 0; k < OCT_GROK_PACKED; k++) {
        l[k] = shapes[k];
        l[k].type = type;
        l[k].n_slices = c->n_slices;
        const char *wrong = oct_weight_layout_init(&l[k]);
        if (wrong)
            return oct_fail(err, OCT_ERR_SHAPE, "%s as %s: %s", packed_names[k],
                            oct_weight_types[type].name, wrong);
    }
    return OCT_OK;
}

oct_status oct_grok_layouts_init(const oct_grok_config *c, const oct_grok_types *types,
                                 oct_grok_layouts *l, oct_error *err)
{
    bool used[OCT_WEIGHT_TYPES] = {[OCT_WEIGHT_Q8] = types == NULL};

    *l = (oct_grok_layouts){.types = types};
    init_embedding(c, &l->embedding);
    for (int64_t i = 0; types && i < c->n_layers; i++)
        for (int k = 0; k < OCT_GROK_PACKED; k++) {
            if (types[i].of[k] >= OCT_WEIGHT_TYPES)
                return oct_fail(err, OCT_ERR_ARG, "layer %" PRId64 ", %s: no weight type %d", i,
                                packed_names[k], types[i].of[k]);
            used[types[i].of[k]] = true;
        }
    for (int t = 0; t < OCT_WEIGHT_TYPES; t++)
        if (used[t])
            OCT_TRY(init_type(c, (oct_weight_type)t, l->of[t], err));
    return OCT_OK;
}

const oct_weight_layout *oct_grok_layout_of(const oct_grok_layouts *l, oct_grok_kind kind,
                                            int64_t layer)
{
    oct_grok_kind packed = oct_grok_weights_of(kind);

    if (packed == OCT_GROK_KINDS)
        return NULL;
    return &l->of[l->types ? l->types[layer].of[packed] : OCT_WEIGHT_Q8][packed];
}

/* ---- manifest ------------------------------------------------------------------------------- */

static void describe_packed(oct_grok_tensor *t, const oct_weight_layout *l)
{
    bool scales = oct_grok_is_scales(t->kind);

    t->dtype = scales ? OCT_GGUF_T_BF16 : OCT_GGUF_T_I8;
    t->packing = scales ? 0 : oct_weight_types[l->type].number;
    t->rank = 3;
    t->ne[0] = scales ? l->scale_stride / 2 : l->unit_stride;
    t->ne[1] = (uint64_t)l->n_slices;
    t->ne[2] = (uint64_t)l->n_experts;
    t->align = scales ? FILE_ALIGN : l->unit_align;
}

static oct_grok_tensor describe(const oct_grok_config *c, const oct_grok_layouts *l,
                                oct_grok_kind kind, int64_t layer)
{
    const oct_weight_layout *packed = oct_grok_layout_of(l, kind, layer);
    oct_grok_tensor t = {.kind = kind,
                         .layer = layer,
                         .dtype = OCT_GGUF_T_F32,
                         .rank = 1,
                         .ne = {(uint64_t)c->d_model, 1, 1, 1},
                         .align = FILE_ALIGN};

    name_of(kind, layer, t.name, sizeof t.name);
    if (packed) {
        describe_packed(&t, packed);
    } else if (kind == OCT_GROK_EMBEDDING) {
        t.dtype = OCT_GGUF_T_BF16;
        t.rank = 3;
        t.ne[1] = (uint64_t)l->embedding.slice_rows_pad;
        t.ne[2] = (uint64_t)c->n_slices;
        t.align = l->embedding.align;
    } else if (kind == OCT_GROK_ROUTER) {
        t.rank = 2;
        t.ne[1] = (uint64_t)c->n_experts;
    } /* the others are norms */
    return t;
}

oct_status oct_grok_manifest(const oct_grok_config *c, const oct_grok_layouts *l,
                             oct_grok_tensor **out, int64_t *n, oct_error *err)
{
    int64_t n_max = c->n_layers * N_LAYER_KINDS + 2, n_all = 0, n_sorted = 0;
    oct_grok_tensor *all = malloc((size_t)n_max * sizeof *all);
    oct_grok_tensor *sorted = malloc((size_t)n_max * sizeof *sorted);

    *out = NULL;
    *n = 0;
    if (!all || !sorted) {
        free(all);
        free(sorted);
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory for a list of %" PRId64 " tensors",
                        n_max);
    }
    all[n_all++] = describe(c, l, OCT_GROK_EMBEDDING, -1);
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        for (int k = 0; k < N_LAYER_KINDS; k++)
            if (layer_kinds[k] != OCT_GROK_ROUTER || c->n_experts > 1)
                all[n_all++] = describe(c, l, layer_kinds[k], layer);
    all[n_all++] = describe(c, l, OCT_GROK_NORM_FINAL, -1);
    /* GGUF knows one alignment per file and no gaps: what needs more than that one comes first, in
     * multiples of its own alignment. */
    for (int64_t i = 0; i < n_all; i++)
        if (all[i].align > FILE_ALIGN)
            sorted[n_sorted++] = all[i];
    for (int64_t i = 0; i < n_all; i++)
        if (all[i].align <= FILE_ALIGN)
            sorted[n_sorted++] = all[i];
    free(all);
    *out = sorted;
    *n = n_sorted;
    return OCT_OK;
}

/* ---- keys ----------------------------------------------------------------------------------- */

void oct_grok_config_put(const oct_grok_config *c, oct_gguf_writer *w)
{
    oct_gguf_put_str(w, "general.architecture", OCT_GROK_ARCH);
    oct_gguf_put_u32(w, KEY_FORMAT, OCT_GROK_FORMAT);
    for (int i = 0; i < N_INTS; i++)
        oct_gguf_put_u32(w, int_fields[i].key, (uint32_t)get_int(c, &int_fields[i]));
    for (int i = 0; i < N_FLOATS; i++)
        oct_gguf_put_f32(w, float_fields[i].key, get_float(c, &float_fields[i]));
}

static oct_status check_identity(const oct_gguf *g, oct_error *err)
{
    const char *path = oct_gguf_path(g), *arch;
    uint64_t format, sum, found;

    OCT_TRY(oct_gguf_get_str(g, "general.architecture", &arch, err));
    if (strcmp(arch, OCT_GROK_ARCH))
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "%s: key 'general.architecture': expected '%s' (a file made by octet "
                        "convert), found '%.80s'",
                        path, OCT_GROK_ARCH, arch);
    OCT_TRY(oct_gguf_get_u64(g, KEY_FORMAT, &format, err));
    if (format < OCT_GROK_FORMAT_OLDEST || format > OCT_GROK_FORMAT)
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "%s: key '%s': expected file format version %d to %d, found %" PRIu64
                        "; convert the checkpoint again with this version of Octet",
                        path, KEY_FORMAT, OCT_GROK_FORMAT_OLDEST, OCT_GROK_FORMAT, format);
    OCT_TRY(oct_gguf_get_u64(g, OCT_GROK_KEY_HEADER_SUM, &sum, err));
    found = oct_grok_header_sum(oct_gguf_bytes(g), (size_t)oct_gguf_data_offset(g),
                                (size_t)oct_gguf_value_offset(g, OCT_GROK_KEY_HEADER_SUM));
    if (sum != found)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: header: expected checksum %016" PRIx64 ", found %016" PRIx64
                        ": the file is damaged",
                        path, sum, found);
    return OCT_OK;
}

static void set_field(oct_grok_config *c, size_t at, const void *v, size_t n)
{
    memcpy((char *)c + at, v, n);
}

oct_status oct_grok_config_get(const oct_gguf *g, oct_grok_config *c, oct_error *err)
{
    oct_error why = {0};
    oct_status status;

    *c = (oct_grok_config){0};
    OCT_TRY(check_identity(g, err));
    OCT_TRY(oct_grok_check_placement(g, err));
    for (int i = 0; i < N_INTS; i++) {
        uint64_t u;
        OCT_TRY(oct_gguf_get_u64(g, int_fields[i].key, &u, err));
        int64_t v = u == UINT32_MAX && int_fields[i].lo == ABSENT ? ABSENT
                    : u > INT64_MAX                               ? INT64_MAX
                                                                  : (int64_t)u;
        set_field(c, int_fields[i].at, &v, sizeof v);
    }
    for (int i = 0; i < N_FLOATS; i++) {
        float v;
        OCT_TRY(oct_gguf_get_f32(g, float_fields[i].key, &v, err));
        set_field(c, float_fields[i].at, &v, sizeof v);
    }
    status = oct_grok_config_check(c, &why);
    if (status != OCT_OK)
        return oct_fail(err, status, "%s: %s", oct_gguf_path(g), why.text);
    return OCT_OK;
}

/* Of one packed tensor, whose number is taken away. */
static oct_status type_of(const oct_gguf *g, const oct_gguf_tensor *t, uint32_t *number,
                          uint8_t *type, oct_error *err)
{
    oct_weight_type found;
    char known[160] = "";
    size_t n = 0;

    if (!oct_weight_type_find(*number, &found)) {
        for (int i = 0; i < OCT_WEIGHT_TYPES && n < sizeof known; i++)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%" PRIu32 " (%s)", i ? ", " : "",
                                  oct_weight_types[i].number, oct_weight_types[i].name);
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "%s: tensor %s: expected packing %s, found %" PRIu32, oct_gguf_path(g),
                        t->name, known, *number);
    }
    *type = (uint8_t)found;
    *number = 0;
    return OCT_OK;
}

/* numbers[n_tensors] is used up. */
static oct_status types_of(const oct_gguf *g, const oct_grok_config *c, uint32_t *numbers,
                           oct_grok_types *types, oct_error *err)
{
    char name[sizeof((oct_grok_tensor *)0)->name];

    for (int64_t i = 0; i < c->n_layers; i++)
        for (int k = 0; k < OCT_GROK_PACKED; k++) {
            name_of((oct_grok_kind)k, i, name, sizeof name);
            const oct_gguf_tensor *t = oct_gguf_find(g, name);
            if (t)
                OCT_TRY(
                    type_of(g, t, &numbers[t - oct_gguf_tensor_at(g, 0)], &types[i].of[k], err));
        }
    for (int64_t i = 0; i < oct_gguf_n_tensors(g); i++)
        if (numbers[i])
            return oct_fail(err, OCT_ERR_FORMAT,
                            "%s: tensor %s: expected packing 0 (plain), found %" PRIu32,
                            oct_gguf_path(g), oct_gguf_tensor_at(g, i)->name, numbers[i]);
    return OCT_OK;
}

oct_status oct_grok_types_get(const oct_gguf *g, const oct_grok_config *c, oct_grok_types **out,
                              oct_error *err)
{
    uint64_t format, n = 0, n_tensors = (uint64_t)oct_gguf_n_tensors(g);
    const void *stored = NULL;

    *out = NULL;
    OCT_TRY(oct_gguf_get_u64(g, KEY_FORMAT, &format, err));
    if (format > 1)
        OCT_TRY(oct_gguf_get_array(g, OCT_GROK_KEY_TENSOR_PACKING, OCT_GGUF_U32, &stored, &n, err));
    if (stored && n != n_tensors)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: key '%s': expected %" PRIu64
                        " numbers, one for each tensor, found %" PRIu64,
                        oct_gguf_path(g), OCT_GROK_KEY_TENSOR_PACKING, n_tensors, n);
    oct_grok_types *types = calloc((size_t)c->n_layers, sizeof *types); /* OCT_WEIGHT_Q8 is 0 */
    uint32_t *numbers = calloc((size_t)n_tensors + 1, sizeof *numbers);
    oct_status status =
        types && numbers ? OCT_OK
                         : oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory for %" PRId64 " layers",
                                    oct_gguf_path(g), c->n_layers);
    if (status == OCT_OK && stored) {
        memcpy(numbers, stored, (size_t)n * sizeof *numbers);
        status = types_of(g, c, numbers, types, err);
    }
    free(numbers);
    if (status == OCT_OK)
        *out = types;
    else
        free(types);
    return status;
}

uint64_t oct_grok_header_sum(const void *header, size_t n, size_t sum_at)
{
    static const uint8_t zeros[8];
    const uint8_t *p = header;
    XXH3_state_t *state = XXH3_createState();
    uint64_t sum = 0;

    if (!state)
        return 0; /* out of memory: equal to no checksum that matters, so it is noticed */
    if (n < sizeof zeros || sum_at > n - sizeof zeros)
        sum_at = n;
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, p, sum_at);
    if (sum_at < n) {
        XXH3_64bits_update(state, zeros, sizeof zeros);
        XXH3_64bits_update(state, p + sum_at + 8, n - sum_at - 8);
    }
    sum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return sum;
}
