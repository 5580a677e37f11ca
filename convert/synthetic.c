#include "synthetic.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "f16.h"
#include "new_header.h"

enum { CHUNK = 4 << 20 };

typedef struct job {
    const oct_synthetic_params *p;
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

static oct_status emit(job *j, uint64_t at, size_t n, oct_error *err)
{
    XXH3_64bits_update(j->hash, j->chunk, n);
    for (size_t put = 0; put < n;) {
        ssize_t got = pwrite(j->p->fd, j->chunk + put, n - put, (off_t)(at + put));
        if (got < 0 && errno != EINTR)
            return oct_fail(err, OCT_ERR_IO, "synthetic model: cannot write %zu bytes: %s", n,
                            strerror(errno));
        put += got > 0 ? (size_t)got : 0;
    }
    j->done += n;
    if (j->p->progress)
        j->p->progress(j->p->progress_ctx, j->done, j->total);
    if (j->p->cancel && *j->p->cancel)
        return oct_fail(err, OCT_ERR_CANCELLED, "synthetic model: cancelled");
    return OCT_OK;
}

/* One panel of a unit: every byte random, padding channels and inputs with weight zero. */
static void fill_panel(job *j, const oct_weight_layout *l, int64_t slice, int64_t panel,
                       unsigned char *out)
{
    size_t quads = (size_t)(l->unit_groups * l->group_quads);
    for (size_t i = 0; i < quads * 256; i += 8) {
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
                out[q * 256 + (size_t)lane * OCT_QUAD + (size_t)k] = 0x80;
        }
    }
}

/* The scales of a panel, about 1 / (74 sqrt(inputs)): 74 is the standard deviation of the
 * integers. */
static void fill_scales(job *j, const oct_weight_layout *l, int64_t slice, int64_t panel,
                        unsigned char *out)
{
    float scale = 1.0f / (74.0f * sqrtf((float)l->n_in));
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
    float small = 1.0f / sqrtf((float)j->p->config.d_model);
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
    OCT_TRY(oct_new_header(&j->p->config, j->tensors, j->sums, j->n, j->offsets, &header, n, err));
    ssize_t put = pwrite(j->p->fd, header, *n, 0);
    free(header);
    return put == (ssize_t)*n
               ? OCT_OK
               : oct_fail(err, OCT_ERR_IO, "synthetic model: cannot write the header: %s",
                          put < 0 ? strerror(errno) : "short write");
}

static oct_status write_all(job *j, const oct_grok_tensor *list, oct_error *err)
{
    size_t header_bytes;
    for (int64_t i = 0; i < j->n; i++)
        j->tensors[i] = &list[i];
    OCT_TRY(write_header(j, &header_bytes, err));
    for (int64_t i = 0; i < j->n; i++) {
        uint64_t bytes = 0;
        (void)oct_gguf_tensor_bytes(list[i].dtype, list[i].rank, list[i].ne, &bytes);
        j->total += bytes;
    }
    for (int64_t i = 0; i < j->n; i++) {
        const oct_weight_layout *l = oct_grok_layout_of(&j->layouts, list[i].kind);
        XXH3_64bits_reset(j->hash);
        if (!j->p->hollow)
            OCT_TRY(l ? write_packed(j, l, oct_grok_is_scales(list[i].kind), j->offsets[i], err)
                      : write_plain(j, &list[i], j->offsets[i], err));
        j->sums[i] = XXH3_64bits_digest(j->hash);
    }
    const oct_grok_tensor *last = &list[j->n - 1];
    uint64_t bytes = 0;
    (void)oct_gguf_tensor_bytes(last->dtype, last->rank, last->ne, &bytes);
    if (ftruncate(j->p->fd, (off_t)(j->offsets[j->n - 1] + bytes)) != 0)
        return oct_fail(err, OCT_ERR_IO, "synthetic model: cannot set its size: %s",
                        strerror(errno));
    return write_header(j, &header_bytes, err);
}

oct_status oct_synthetic_write(const oct_synthetic_params *p, oct_error *err)
{
    job j = {.p = p, .rng = p->seed};
    oct_grok_tensor *list = NULL;
    OCT_TRY(oct_grok_config_check(&p->config, err));
    OCT_TRY(oct_grok_layouts_init(&p->config, &j.layouts, err));
    OCT_TRY(oct_grok_manifest(&p->config, &j.layouts, &list, &j.n, err));
    j.tensors = calloc((size_t)j.n, sizeof *j.tensors);
    j.sums = calloc((size_t)j.n, sizeof *j.sums);
    j.offsets = calloc((size_t)j.n, sizeof *j.offsets);
    j.chunk = aligned_alloc(64, CHUNK);
    j.hash = XXH3_createState();
    oct_status s = j.tensors && j.sums && j.offsets && j.chunk && j.hash
                       ? write_all(&j, list, err)
                       : oct_fail(err, OCT_ERR_MEMORY, "synthetic model: out of memory");
    XXH3_freeState(j.hash);
    free(j.chunk);
    free(j.offsets);
    free(j.sums);
    free(j.tensors);
    free(list);
    return s;
}

oct_grok_config oct_synthetic_grok1(int64_t n_layers, int64_t n_vocab)
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
