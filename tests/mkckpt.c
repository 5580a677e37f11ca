#include "mkckpt.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "f16.h"

enum { FRAME_TARGET = 64 << 10, CHUNK = 1 << 20 };

/* ---- pickler --------------------------------------------------------------------------------- */

/* What is written goes into the current frame; large payloads stand between frames. */
typedef struct pickler {
    FILE *f;
    uint8_t frame[2 * FRAME_TARGET + 4096];
    size_t n;
} pickler;

static void put(pickler *p, const void *data, size_t n)
{
    memcpy(p->frame + p->n, data, n);
    p->n += n;
}

/* Opcodes spelt as a string literal. */
#define RAW(p, literal) put(p, literal, sizeof(literal) - 1)

static void op(pickler *p, uint8_t code)
{
    put(p, &code, 1);
}

static void op_le(pickler *p, uint8_t code, uint64_t v, int bytes)
{
    uint8_t b[9] = {code};
    for (int i = 0; i < bytes; i++)
        b[1 + i] = (uint8_t)(v >> (8 * i));
    put(p, b, 1 + (size_t)bytes);
}

static void end_frame(pickler *p)
{
    uint8_t head[9] = {0x95};
    for (int i = 0; i < 8; i++)
        head[1 + i] = (uint8_t)((uint64_t)p->n >> (8 * i));
    if (p->n) {
        fwrite(head, 1, sizeof head, p->f);
        fwrite(p->frame, 1, p->n, p->f);
    }
    p->n = 0;
}

static void text(pickler *p, const char *s)
{
    op_le(p, 0x8c, strlen(s), 1);
    put(p, s, strlen(s));
    op(p, 0x94);
}

static void integer(pickler *p, int64_t v)
{
    if (v >= 0 && v < 256)
        op_le(p, 'K', (uint64_t)v, 1);
    else if (v >= 0 && v < 65536)
        op_le(p, 'M', (uint64_t)v, 2);
    else
        op_le(p, 'J', (uint64_t)v, 4);
}

static void global(pickler *p, const char *module, const char *name)
{
    text(p, module);
    text(p, name);
    RAW(p, "\x93\x94");
}

static size_t width(mk_kind k)
{
    return k == MK_INT8 ? 1 : k == MK_BF16 ? 2 : 4;
}

static void payload(pickler *p, mk_kind kind, int64_t n, bool scales, mk_fill *fill, void *ctx)
{
    static uint64_t chunk[CHUNK / 8];
    size_t w = width(kind);
    int64_t step = (int64_t)(CHUNK / w);
    uint64_t bytes = (uint64_t)n * w;
    uint8_t head[5] = {'B', (uint8_t)bytes, (uint8_t)(bytes >> 8), (uint8_t)(bytes >> 16),
                       (uint8_t)(bytes >> 24)};
    bool large = bytes >= FRAME_TARGET;
    if (large) {
        end_frame(p);
        fwrite(head, 1, sizeof head, p->f);
    } else if (bytes < 256) {
        op_le(p, 'C', bytes, 1);
    } else {
        put(p, head, sizeof head);
    }
    for (int64_t i = 0; i < n; i += step) {
        int64_t k = n - i < step ? n - i : step;
        fill(ctx, scales, i, k, chunk);
        if (large)
            fwrite(chunk, w, (size_t)k, p->f);
        else
            put(p, chunk, w * (size_t)k);
    }
    op(p, 0x94);
    if (p->n >= FRAME_TARGET)
        end_frame(p);
}

/* dtype('i1', False, True), the class bfloat16 in its place, with its state. */
static void dtype(pickler *p, mk_kind kind)
{
    if (kind == MK_BF16)
        global(p, "ml_dtypes", "bfloat16");
    else
        text(p, kind == MK_INT8 ? "i1" : "f4");
    RAW(p, "\x89\x88\x87\x94R\x94(K\x03");
    text(p, kind == MK_INT8 ? "|" : "<");
    RAW(p, "NNN");
    if (kind == MK_BF16)
        RAW(p, "K\002K\002K@");
    else
        RAW(p, "J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0");
    RAW(p, "t\x94"
           "b");
}

/* memo: entries of _reconstruct, ndarray, b'b' and dtype, which a second array takes from there;
 * -1: the first one. */
static void array(pickler *p, mk_kind kind, int rank, const int64_t *shape, bool second,
                  mk_fill *fill, void *ctx)
{
    int64_t n = 1;
    if (second) {
        RAW(p, "h\010h\013K\0\x85\x94h\015\x87\x94R\x94(K\001");
    } else {
        global(p, "numpy.core.multiarray", "_reconstruct");
        global(p, "numpy", "ndarray");
        RAW(p, "K\0\x85\x94"
               "C\001b\x94\x87\x94R\x94(K\001");
    }
    for (int i = 0; i < rank; i++) {
        integer(p, shape[i]);
        n *= shape[i];
    }
    op(p, (uint8_t)(0x84 + rank)); /* TUPLE1, 2, 3 */
    op(p, 0x94);
    if (second) {
        RAW(p, "h\022");
    } else {
        /* The string "numpy" is remembered: entry 3, or 9 behind the class. */
        op_le(p, 'h', kind == MK_INT8 ? 9 : 3, 1);
        text(p, "dtype");
        RAW(p, "\x93\x94");
    }
    dtype(p, kind);
    op(p, 0x89);
    payload(p, kind, n, second, fill, ctx);
    RAW(p, "t\x94"
           "b");
}

bool mk_pickle_write(FILE *f, const mk_pickle *s, mk_fill *fill, void *ctx)
{
    static pickler p;
    p = (pickler){.f = f};
    fwrite("\x80\x04", 1, 2, f);
    if (s->kind == MK_INT8) {
        int64_t scales[3];
        memcpy(scales, s->shape, sizeof scales);
        scales[s->rank - 2] = s->groups;
        global(&p, "__main__", "QuantizedWeight8bit");
        RAW(&p, ")\x81\x94}\x94(");
        text(&p, "weight");
        array(&p, MK_INT8, s->rank, s->shape, false, fill, ctx);
        text(&p, "scales");
        array(&p, MK_BF16, s->rank, scales, true, fill, ctx);
        RAW(&p, "ub");
    } else {
        array(&p, s->kind, s->rank, s->shape, false, fill, ctx);
    }
    op(&p, '.');
    end_frame(&p);
    return !ferror(f);
}

/* ---- the tree -------------------------------------------------------------------------------- */

static const char *const paths[MK_LEAVES] = {"moe/linear",
                                             "moe/linear_1",
                                             "moe/linear_v",
                                             "multi_head_attention/key",
                                             "multi_head_attention/linear",
                                             "multi_head_attention/query",
                                             "multi_head_attention/value",
                                             "rms_norm",
                                             "rms_norm_1",
                                             "rms_norm_2",
                                             "rms_norm_3",
                                             "router",
                                             "language_model/in_out_embed",
                                             "language_model/rms_norm"};

typedef struct entry {
    char path[96];
    mk_leaf leaf;
    int64_t layer;
} entry;

static int by_path(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->path, ((const entry *)b)->path);
}

int64_t mk_n_files(const mk_spec *s)
{
    return 2 + s->layers * (s->experts > 1 ? 12 : 11);
}

/* All leaves, sorted by their whole paths. malloc'd. */
static entry *list_files(const mk_spec *s)
{
    entry *e = calloc((size_t)mk_n_files(s), sizeof *e);
    int64_t n = 0;
    if (!e)
        return NULL;
    for (int leaf = 0; leaf < MK_LEAVES; leaf++)
        for (int64_t l = 0; l < (leaf < MK_EMBEDDING ? s->layers : 1); l++) {
            const char *p = paths[leaf];
            if (s->experts == 1 && leaf == MK_ROUTER)
                continue;
            if (s->experts == 1 && strncmp(p, "moe/", 4) == 0)
                p += 4;
            if (leaf < MK_EMBEDDING)
                snprintf(e[n].path, sizeof e[n].path, "transformer/decoder_layer_%" PRId64 "/%s", l,
                         p);
            else
                snprintf(e[n].path, sizeof e[n].path, "%s", p);
            e[n].layer = leaf < MK_EMBEDDING ? l : -1;
            e[n++].leaf = (mk_leaf)leaf;
        }
    qsort(e, (size_t)n, sizeof *e, by_path);
    return e;
}

void mk_file_name(int64_t i, char out[32])
{
    snprintf(out, 32, "tensor%05" PRId64 "_000", i);
}

void mk_file_leaf(const mk_spec *s, int64_t i, mk_leaf *leaf, int64_t *layer)
{
    entry *e = list_files(s);
    *leaf = e ? e[i].leaf : MK_LEAVES;
    *layer = e ? e[i].layer : -1;
    free(e);
}

int mk_shape(const mk_spec *s, mk_leaf leaf, int64_t shape[3])
{
    int64_t q = s->q_heads * s->head, kv = s->kv_heads * s->head;
    int64_t in = s->d, out = 0;
    switch (leaf) {
    case MK_GATE:
    case MK_UP: out = s->ffn; break;
    case MK_DOWN:
        in = s->ffn;
        out = s->d;
        break;
    case MK_KEY:
    case MK_VALUE: out = kv; break;
    case MK_QUERY: out = q; break;
    case MK_ATTN_OUT:
        in = q;
        out = s->d;
        break;
    case MK_ROUTER: out = s->experts; break;
    case MK_EMBEDDING:
        in = s->vocab;
        out = s->d;
        break;
    default: shape[0] = s->d; return 1;
    }
    int rank = leaf <= MK_UP && s->experts > 1 ? 3 : 2;
    shape[0] = s->experts;
    shape[rank - 2] = in;
    shape[rank - 1] = out;
    return rank;
}

int64_t mk_groups(const mk_spec *s, mk_leaf leaf)
{
    return leaf == MK_DOWN || leaf == MK_ATTN_OUT ? s->groups : 1;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* splitmix64 of all that names an element. */
static uint64_t mix(const mk_spec *s, int64_t layer, int leaf, int64_t i)
{
    uint64_t x = s->seed * 0x9e3779b97f4a7c15u + (uint64_t)(layer + 1) * 0xd1342543de82ef95u +
                 (uint64_t)leaf * 0xaf251af3b0f025b5u + (uint64_t)i * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* -1..1 */
static float uniform(uint64_t x)
{
    return (float)(int32_t)(x >> 32) * 0x1p-31f;
}

static int64_t inputs(const mk_spec *s, mk_leaf leaf)
{
    int64_t shape[3];
    int rank = mk_shape(s, leaf, shape);
    return rank > 1 ? shape[rank - 2] : 1;
}

int8_t mk_weight(const mk_spec *s, int64_t layer, mk_leaf leaf, int64_t i)
{
    return (int8_t)(mix(s, layer, leaf, i / 8) >> (i % 8 * 8));
}

uint16_t mk_scale(const mk_spec *s, int64_t layer, mk_leaf leaf, int64_t i)
{
    /* Bytes have a deviation of 74; the product's outputs shall be of size one. */
    float scale = 1.0f / (74.0f * sqrtf((float)inputs(s, leaf)));
    return oct_bf16_of_f32(scale * (1 + 0.5f * uniform(mix(s, layer, leaf + MK_LEAVES, i))));
}

float mk_number(const mk_spec *s, int64_t layer, mk_leaf leaf, int64_t i)
{
    float u = uniform(mix(s, layer, leaf, i)), v;
    if (leaf == MK_EMBEDDING)
        v = u * 1.7f;
    else if (leaf <= MK_VALUE || leaf == MK_ROUTER)
        v = u * sqrtf(3.0f / (float)inputs(s, leaf));
    else
        v = 1 + 0.2f * u;
    return s->kind == MK_BF16 ? oct_f32_of_bf16(oct_bf16_of_f32(v)) : v;
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct source {
    const mk_spec *spec;
    mk_leaf leaf;
    int64_t layer;
} source;

static void fill_leaf(void *ctx, bool scales, int64_t first, int64_t n, void *out)
{
    const source *c = ctx;
    const mk_spec *s = c->spec;
    bool matrix = c->leaf <= MK_VALUE;
    int8_t *q = out;
    uint16_t *b = out;
    float *f = out;
    for (int64_t i = 0; i < n; i++) {
        if (scales)
            b[i] = mk_scale(s, c->layer, c->leaf, first + i);
        else if (matrix && s->kind == MK_INT8)
            q[i] = mk_weight(s, c->layer, c->leaf, first + i);
        else if (s->kind == MK_BF16)
            b[i] = oct_bf16_of_f32(mk_number(s, c->layer, c->leaf, first + i));
        else
            f[i] = mk_number(s, c->layer, c->leaf, first + i);
    }
}

static bool failed(const char *path)
{
    fprintf(stderr, "mkckpt: %s: %s\n", path, strerror(errno));
    return false;
}

static bool write_config(const mk_spec *s, const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return failed(path);
    fprintf(f,
            "{\n \"vocab_size\": %" PRId64 ",\n \"pad_token\": 0,\n \"eos_token\": 2,\n"
            " \"sequence_len\": %" PRId64 ",\n \"embedding_multiplier_scale\": %.17g,\n"
            " \"output_multiplier_scale\": 0.5773502691896257,\n \"emb_size\": %" PRId64 ",\n"
            " \"key_size\": %" PRId64 ",\n \"num_q_heads\": %" PRId64
            ",\n \"num_kv_heads\": %" PRId64 ",\n \"num_layers\": %" PRId64
            ",\n \"attn_output_multiplier\": %.17g,\n"
            " \"num_experts\": %" PRId64 ",\n \"num_selected_experts\": %" PRId64 "\n}\n",
            s->vocab, s->context, sqrt((double)s->d), s->d, s->head, s->q_heads, s->kv_heads,
            s->layers, 1 / sqrt((double)s->head), s->experts, s->used);
    return fclose(f) == 0 || failed(path);
}

bool mk_write(const mk_spec *s, const char *dir)
{
    char path[4096], name[32];
    snprintf(path, sizeof path, "%s/ckpt-0", dir);
    if ((mkdir(dir, 0777) != 0 && errno != EEXIST) || (mkdir(path, 0777) != 0 && errno != EEXIST))
        return failed(path);
    entry *e = list_files(s);
    bool good = e != NULL;
    for (int64_t i = 0; good && i < mk_n_files(s); i++) {
        source c = {s, e[i].leaf, e[i].layer};
        mk_pickle p = {.kind = e[i].leaf > MK_VALUE && s->kind == MK_INT8 ? MK_F32 : s->kind,
                       .groups = mk_groups(s, e[i].leaf)};
        p.rank = mk_shape(s, e[i].leaf, p.shape);
        mk_file_name(i, name);
        snprintf(path, sizeof path, "%s/ckpt-0/%s", dir, name);
        FILE *f = fopen(path, "wb");
        good = f && mk_pickle_write(f, &p, fill_leaf, &c);
        if (f && fclose(f) != 0)
            good = false;
        if (!good)
            failed(path);
    }
    free(e);
    snprintf(path, sizeof path, "%s/config.json", dir);
    return good && write_config(s, path);
}
