/* synthetic.c: model files with random weights, see convert.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "convert_impl.h"
#include "f16.h"
#include "hparams.h"
#include "q4.h"
#include "threads.h"

enum { CHUNK = 4 << 20 };

typedef struct job {
    const oct_synthetic_params *p;
    oct_grok_config config;
    oct_output out;        /* the caller's fd, or a file of our own */
    oct_grok_types *types; /* [n_layers]; NULL: q8 */
    oct_grok_layouts layouts;
    const oct_grok_tensor **tensors;
    uint64_t *sums, *offsets;
    int64_t n;
    uint64_t rng, done, total;
    unsigned char *chunk; /* [CHUNK] */
    XXH3_state_t *hash;
} job;

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
}

/* Uniform with standard deviation 1. */
static float noise(job *j)
{
    return ((float)(next(&j->rng) >> 40) * 0x1p-24f - 0.5f) * 3.4641016f;
}

static void tell(const job *j, oct_convert_phase phase)
{
    const bool counted = phase != OCT_CONVERT_SYNC;
    if (j->p->progress)
        j->p->progress(j->p->progress_ctx,
                       &(oct_convert_progress){phase, counted ? j->done : 0, counted ? j->total : 0,
                                               j->out.temp});
}

static oct_status put(const job *j, const void *data, size_t n, uint64_t at, oct_error *err)
{
    static char memory[] = "a model in memory";
    oct_output o = j->out;
    o.temp = o.temp ? o.temp : memory;
    return oct_output_write(&o, data, n, at, err);
}

static oct_status emit(job *j, uint64_t at, size_t n, oct_error *err)
{
    XXH3_64bits_update(j->hash, j->chunk, n);
    OCT_TRY(put(j, j->chunk, n, at, err));
    j->done += n;
    tell(j, OCT_CONVERT_WRITE);
    if (oct_cancelled(j->p->cancel))
        return oct_fail(err, OCT_ERR_CANCELLED, "synthetic model: cancelled");
    return OCT_OK;
}

/* One panel of a unit: every byte random, padding channels and inputs with weight zero. */
static void fill_q8(job *j, const oct_weight_layout *l, int64_t slice, int64_t panel,
                    unsigned char *out)
{
    size_t quads = (size_t)(l->unit_groups * l->group_quads);
    for (size_t i = 0; i < quads * OCT_Q8_QUAD_BYTES; i += 8) {
        uint64_t r = next(&j->rng);
        memcpy(out + i, &r, 8);
    }
    int part;
    int64_t channel;
    for (int lane = 0; lane < OCT_PANEL; lane++) {
        bool real = oct_weight_lane(l, slice, panel, lane, &part, &channel);
        for (size_t q = 0; q < quads; q++) {
            int64_t left = l->group_in - (int64_t)(q % (size_t)l->group_quads) * OCT_QUAD;
            for (int64_t k = real ? left : 0; k < OCT_QUAD; k++)
                out[q * OCT_Q8_QUAD_BYTES + (size_t)lane * OCT_QUAD + (size_t)k] = 0x80;
        }
    }
}

/* Random tables and random values of them. */
static void fill_q4(job *j, const oct_weight_layout *l, int64_t slice, int64_t panel,
                    unsigned char *out)
{
    const int64_t share = OCT_Q4_STEP / oct_q4_groups(l->type), end = l->unit_groups * l->group_in;
    int part;
    int64_t channel;
    memset(out, 0, l->panel_bytes);
    for (int lane = 0; lane < OCT_PANEL; lane++) {
        if (!oct_weight_lane(l, slice, panel, lane, &part, &channel))
            continue;
        for (int64_t i = 0, n; i < end; i += n) {
            const int64_t in_group = i % l->group_in, left = l->group_in - in_group;
            uint8_t nibble[OCT_Q4_STEP];
            uint64_t bits = 0;
            n = left < share ? left : share;
            for (int64_t k = 0; k < n; k++, bits >>= 4) {
                bits = k % 16 ? bits : next(&j->rng);
                nibble[k] = bits & 15;
            }
            oct_q4_put(l, out, 0, lane, i, (int)n, (uint8_t)next(&j->rng), nibble);
        }
    }
}

static void fill_panel(job *j, const oct_weight_layout *l, int64_t slice, int64_t panel,
                       unsigned char *out)
{
    (l->type == OCT_WEIGHT_Q8 ? fill_q8 : fill_q4)(j, l, slice, panel, out);
}

/* The standard deviation of a type's integers. */
static float spread_of(oct_weight_type type)
{
    const float of_q8 = 74.0f;
    double sum = 0;
    if (type == OCT_WEIGHT_Q8)
        return of_q8;
    for (int t = 0; t < OCT_Q4_TABLES; t++)
        for (int v = 0; v < OCT_Q4_VALUES; v++) {
            const double q = oct_q4_table[t][v] - 128;
            sum += q * q;
        }
    return (float)sqrt(sum / (OCT_Q4_TABLES * OCT_Q4_VALUES));
}

/* The scales of a panel, about 1 / (spread sqrt(inputs)). */
static void fill_scales(job *j, const oct_weight_layout *l, int64_t slice, int64_t panel,
                        unsigned char *out)
{
    float scale = 1.0f / (spread_of(l->type) * sqrtf((float)l->n_in));
    uint16_t *scales = (uint16_t *)(void *)out;
    int part;
    int64_t channel;
    for (int lane = 0; lane < OCT_PANEL; lane++) {
        bool real = oct_weight_lane(l, slice, panel, lane, &part, &channel);
        for (int64_t g = 0; g < l->unit_groups; g++) {
            float spread = 0.75f + 0.5f * (float)(next(&j->rng) >> 40) * 0x1p-24f;
            scales[g * OCT_PANEL + lane] = real ? oct_bf16_of_f32(scale * spread) : 0;
        }
    }
}

/* The units of a tensor, or their scales. */
static oct_status write_packed(job *j, const oct_weight_layout *l, bool scales, uint64_t at,
                               oct_error *err)
{
    const size_t panel_bytes = scales ? l->scale_bytes / (size_t)l->n_panels : l->panel_bytes;
    const size_t pad = scales ? l->scale_stride - l->scale_bytes : l->unit_stride - l->unit_bytes;
    int64_t per_chunk = (int64_t)(CHUNK / panel_bytes);
    if (per_chunk < 1)
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "synthetic model: panels of %zu bytes, at most %d", panel_bytes, CHUNK);
    for (int64_t unit = 0; unit < l->n_experts * l->n_slices; unit++) {
        for (int64_t p = 0; p < l->n_panels; p += per_chunk) {
            int64_t n = l->n_panels - p < per_chunk ? l->n_panels - p : per_chunk;
            for (int64_t i = 0; i < n; i++)
                (scales ? fill_scales : fill_panel)(j, l, unit % l->n_slices, p + i,
                                                    j->chunk + (size_t)i * panel_bytes);
            OCT_TRY(emit(j, at, (size_t)n * panel_bytes, err));
            at += (uint64_t)n * panel_bytes;
        }
        memset(j->chunk, 0, pad < CHUNK ? pad : CHUNK);
        for (size_t left = pad; left > 0;) {
            size_t n = left < CHUNK ? left : CHUNK;
            OCT_TRY(emit(j, at, n, err));
            at += n;
            left -= n;
        }
    }
    return OCT_OK;
}

/* Embedding (padding rows too: nobody reads them), router and norms. */
static oct_status write_plain(job *j, const oct_grok_tensor *t, uint64_t at, oct_error *err)
{
    uint64_t bytes;
    if (!oct_gguf_tensor_bytes(t->dtype, t->rank, t->ne, &bytes))
        return oct_fail(err, OCT_ERR_SHAPE, "synthetic model: %s is too large", t->name);
    float small = 1.0f / sqrtf((float)j->config.d_model);
    for (uint64_t end = at + bytes; at < end;) {
        size_t n = end - at < CHUNK ? (size_t)(end - at) : CHUNK;
        if (t->kind == OCT_GROK_EMBEDDING)
            for (size_t i = 0; i < n / 2; i++)
                ((uint16_t *)(void *)j->chunk)[i] = oct_bf16_of_f32(noise(j) * small);
        else
            for (size_t i = 0; i < n / 4; i++)
                ((float *)(void *)j->chunk)[i] =
                    t->kind == OCT_GROK_ROUTER ? noise(j) * small * 2 : 1.0f + 0.1f * noise(j);
        OCT_TRY(emit(j, at, n, err));
        at += n;
    }
    return OCT_OK;
}

static oct_status write_header(job *j, size_t *n, oct_error *err)
{
    void *header = NULL;
    OCT_TRY(oct_new_header(&j->config, j->tensors, j->sums, j->n, j->offsets, &header, n, err));
    oct_status s = put(j, header, *n, 0, err);
    free(header);
    return s;
}

static oct_status write_all(job *j, const oct_grok_tensor *list, oct_error *err)
{
    size_t header_bytes;
    OCT_TRY(write_header(j, &header_bytes, err));
    uint64_t end = header_bytes;
    for (int64_t i = 0; i < j->n; i++) {
        const oct_weight_layout *l = oct_grok_layout_of(&j->layouts, list[i].kind, list[i].layer);
        uint64_t bytes = 0;
        XXH3_64bits_reset(j->hash);
        if (!j->p->hollow)
            OCT_TRY(l ? write_packed(j, l, oct_grok_is_scales(list[i].kind), j->offsets[i], err)
                      : write_plain(j, &list[i], j->offsets[i], err));
        j->sums[i] = XXH3_64bits_digest(j->hash);
        (void)oct_gguf_tensor_bytes(list[i].dtype, list[i].rank, list[i].ne, &bytes);
        end = j->offsets[i] + bytes;
    }
    OCT_TRY(write_header(j, &header_bytes, err));
    if (ftruncate(j->out.fd, (off_t)((end + OCT_FILE_ALIGN - 1) / OCT_FILE_ALIGN * OCT_FILE_ALIGN)))
        return oct_fail(err, OCT_ERR_IO, "synthetic model: its end cannot be padded: %s",
                        strerror(errno));
    return OCT_OK;
}

/* The type asked for where experts are, q8 elsewhere. */
static oct_status choose_types(job *j, oct_error *err)
{
    const int64_t n = j->config.n_layers;
    oct_weight_type type;
    if (!j->p->experts)
        return OCT_OK;
    OCT_TRY(oct_weight_type_named(j->p->experts, &type, err));
    j->types = calloc((size_t)n, sizeof *j->types);
    if (!j->types)
        return oct_fail(err, OCT_ERR_MEMORY, "synthetic model: out of memory");
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < OCT_GROK_PACKED; k++)
            if (oct_grok_shard_kind((oct_grok_kind)k) == OCT_SHARD_OF_EXPERTS)
                j->types[i].of[k] = (uint8_t)type;
    return OCT_OK;
}

/* The configuration and the tensors that follow from it; *list is malloc'd. */
static oct_status plan(job *j, oct_grok_tensor **list, oct_error *err)
{
    const oct_synthetic_params *p = j->p;
    j->config = p->config ? *p->config : oct_grok1_config(64, 131072);
    if (!p->config && p->n_layers)
        j->config.n_layers = p->n_layers;
    if (!p->config && p->n_vocab)
        j->config.n_vocab = p->n_vocab;
    OCT_TRY(oct_grok_config_check(&j->config, err));
    OCT_TRY(choose_types(j, err));
    OCT_TRY(oct_grok_layouts_init(&j->config, j->types, &j->layouts, err));
    OCT_TRY(oct_grok_manifest(&j->config, &j->layouts, list, &j->n, err));
    for (int64_t i = 0; i < j->n; i++) {
        uint64_t bytes = 0;
        if (!oct_gguf_tensor_bytes((*list)[i].dtype, (*list)[i].rank, (*list)[i].ne, &bytes) ||
            __builtin_add_overflow(j->total, bytes, &j->total))
            return oct_fail(err, OCT_ERR_SHAPE, "synthetic model: %s is too large",
                            (*list)[i].name);
    }
    return OCT_OK;
}

oct_status oct_synthetic_bytes(const oct_synthetic_params *p, uint64_t *bytes, oct_error *err)
{
    job j = {.p = p};
    oct_grok_tensor *list = NULL;
    oct_status s = plan(&j, &list, err);
    free(list);
    free(j.types);
    *bytes = j.total;
    return s;
}

static oct_status write_model(job *j, const oct_grok_tensor *list, oct_error *err)
{
    j->tensors = calloc((size_t)j->n, sizeof *j->tensors);
    j->sums = calloc((size_t)j->n, sizeof *j->sums);
    j->offsets = calloc((size_t)j->n, sizeof *j->offsets);
    j->chunk = aligned_alloc(64, CHUNK);
    j->hash = XXH3_createState();
    oct_status s = OCT_OK;
    if (!j->tensors || !j->sums || !j->offsets || !j->chunk || !j->hash)
        s = oct_fail(err, OCT_ERR_MEMORY, "synthetic model: out of memory");
    for (int64_t i = 0; i < j->n && s == OCT_OK; i++)
        j->tensors[i] = &list[i];
    if (s == OCT_OK)
        s = write_all(j, list, err);
    XXH3_freeState(j->hash);
    free(j->chunk);
    free(j->offsets);
    free(j->sums);
    free(j->tensors);
    return s;
}

/* Into a file of its own, which gets its name at the end. */
static oct_status write_named(job *j, const oct_grok_tensor *list, oct_error *err)
{
    const char *out = j->p->out;
    OCT_TRY(oct_output_create(&j->out, out, j->total, NULL, err));
    OCT_TRY(write_model(j, list, err));
    tell(j, OCT_CONVERT_SYNC);
    OCT_TRY(oct_output_sync(&j->out, err));
    OCT_TRY(oct_output_publish(&j->out, err));
    tell(j, OCT_CONVERT_DONE);
    return OCT_OK;
}

oct_status oct_synthetic_write(const oct_synthetic_params *p, oct_error *err)
{
    job j = {.p = p, .rng = p->seed, .out.fd = -1};
    oct_grok_tensor *list = NULL;
    oct_status s = plan(&j, &list, err);
    if (s == OCT_OK && p->out) {
        s = write_named(&j, list, err);
        oct_output_close(&j.out);
    } else if (s == OCT_OK) {
        j.out.fd = p->fd;
        s = write_model(&j, list, err);
    }
    free(list);
    free(j.types);
    return s;
}
