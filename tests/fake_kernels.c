/* INTERIM, to be removed: kernels of the fake driver computed by the CPU's rows, until those of
 * ggml-like/cuda/ run under emulation. */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "kernels.h"
#include "kernels_cuda.h"
#include "kv_cache.h"

static const oct_kernels *row(void)
{
    static const oct_kernels *k;
    if (!k)
        (void)!oct_kernels_choose(NULL, oct_isa_detect(), &k, NULL);
    return k;
}

static void do_embed(const oct_cuda_embed_args *a)
{
    for (int64_t r = 0; r < a->n_rows; r++) {
        int64_t t = a->token[r];
        memset(a->out + r * a->cols, 0, (size_t)a->cols * 4);
        if (t >= a->first && t < a->end)
            row()->embed(a->table +
                             (t / a->slice_rows * a->slice_rows_pad + t % a->slice_rows) * a->cols,
                         a->cols, a->scale, a->out + r * a->cols);
    }
}

static void do_norm(const oct_cuda_norm_args *a)
{
    if (a->n_parts != 1 || a->n_slots)
        abort();
    for (int64_t r = 0; r < a->n_rows; r++)
        row()->rms_norm(a->x + r * a->n, a->gamma, a->n, a->eps, a->add, a->y + r * a->n);
}

static void do_quantise(const oct_cuda_quantise_args *a)
{
    int64_t n = a->n_used ? *a->n_used : a->n_rows;
    for (int64_t r = 0; r < n; r++)
        row()->act_quantise(&a->act, a->x + r * a->act.n_in, a->to + (size_t)r * a->act.bytes);
}

static void do_rows(const oct_cuda_linear_args *a, int64_t expert, int64_t first, int64_t n)
{
    oct_weight_layout w = {.type = (oct_weight_type)a->type,
                           .group_in = a->group_in,
                           .group_quads = a->group_quads,
                           .unit_groups = a->unit_groups,
                           .panel_bytes = a->panel_bytes,
                           .group_bytes = a->group_bytes,
                           .n_panels = a->n_panels,
                           .unit_out = a->unit_out};
    float *y = aligned_alloc(64, OCT_PANEL * 4);
    for (int64_t i = first; i < first + n; i++)
        for (int64_t s = a->first_slice; s < a->end_slice; s++)
            for (int64_t p = 0; p < a->n_panels; p++) {
                int64_t xr = a->x_row ? a->x_row[i] : i, yr = a->y_row ? a->y_row[i] : i;
                const void *rows[1] = {a->x + (size_t)xr * a->act.bytes};
                uint64_t at = (uint64_t)s * a->slice_stride + (uint64_t)expert * a->expert_stride;
                uint64_t sc =
                    (uint64_t)s * a->scale_slice_stride + (uint64_t)expert * a->scale_expert_stride;
                oct_linear_args l = {.w = &w,
                                     .n_panels = 1,
                                     .panel = a->weights + at + (uint64_t)p * a->panel_bytes,
                                     .scales = (const uint16_t *)(const void *)(a->scales + sc) +
                                               p * a->unit_groups * OCT_PANEL,
                                     .act = &a->act,
                                     .rows = rows,
                                     .n_rows = 1,
                                     .first_group = a->split_in ? s * a->unit_groups : 0,
                                     .y = y};
                row()->linear_q8(&l);
                if (a->gelu) {
                    int64_t c = p * 32, left = a->unit_out / 2 - c;
                    row()->gelu_mul(y, y + 32, left < 32 ? left : 32,
                                    a->y + yr * a->y_cols + s * (a->unit_out / 2) + c);
                } else {
                    int64_t c = p * 64, left = a->unit_out - c;
                    float *to = a->split_in ? a->y + (s - a->first_slice) * a->part_stride
                                            : a->y + s * a->unit_out;
                    memcpy(to + yr * a->y_cols + c, y, (size_t)(left < 64 ? left : 64) * 4);
                }
            }
    free(y);
}

static void do_linear(const oct_cuda_linear_args *a)
{
    if (!a->tiles)
        do_rows(a, 0, 0, a->n_rows);
    for (int32_t t = 0; a->tiles && t < a->n_tiles; t++)
        if (a->tiles[t].n > 0)
            do_rows(a, a->tiles[t].expert, a->tiles[t].first, a->tiles[t].n);
}

static void do_fold(const oct_cuda_fold_args *a)
{
    for (int64_t r = 0; r < a->n_rows; r++) {
        float levels[4 * 8192];
        if (a->n > 8192)
            abort();
        oct_fold f;
        const int32_t *expert =
            a->routes ? (const void *)(a->routes + r / a->n_used * a->route_bytes) : NULL;
        int32_t e = expert ? expert[r % a->n_used] : 0;
        if (a->n_used > 0 && (e < a->first_expert || e >= a->end_expert)) {
            memset(a->out + r * a->n, 0, (size_t)a->n * 4);
            continue;
        }
        oct_fold_begin(&f, levels, a->n, row()->add);
        for (int32_t s = 0; s < a->n_parts; s++) {
            memcpy(oct_fold_next(&f), a->parts + s * a->part_stride + r * a->n, (size_t)a->n * 4);
            oct_fold_push(&f);
        }
        memcpy(a->out + r * a->n, oct_fold_end(&f), (size_t)a->n * 4);
    }
}

typedef struct cache {
    oct_kv_pages pages;
    oct_kv_cache kv;
} cache;

static void cache_of(const oct_cuda_kv *k, int64_t n_layers, cache *c)
{
    memset(c, 0, sizeof *c);
    c->pages.seq_pages = k->seq_pages;
    memcpy(&c->pages.table, &k->table, sizeof k->table);
    c->kv.type = (oct_kv_type)k->type;
    c->kv.n_layers = n_layers;
    c->kv.n_heads = k->n_heads;
    c->kv.head_dim = k->head_dim;
    c->kv.n_domains = 1;
    c->kv.n_pages = k->n_pages;
    c->kv.v_stride = k->v_stride;
    c->kv.elem_bytes = (size_t)k->elem_bytes;
    c->kv.head_bytes = k->head_bytes;
    c->kv.pages = &c->pages;
    c->kv.data = k->data;
}

static void do_kv_copy(const oct_cuda_kv_copy_args *a)
{
    cache c;
    cache_of(&a->kv, a->layer + 1, &c);
    for (int64_t i = 0; i < a->n_copies; i++)
        for (int64_t h = 0; h < a->kv.n_heads; h++) {
            oct_kv_copy k = {a->copies[i].seq, a->copies[i].from, a->copies[i].to,
                             a->copies[i].n_pos};
            oct_kv_cache_copy(&c.kv, a->layer, h, &k);
        }
}

static void places(const oct_cuda_heads *h, int64_t P, int64_t head, int64_t at[4])
{
    int64_t qh = h->n_q_heads / h->n_slices, kh = h->n_kv_heads / h->n_slices;
    int64_t slice = head / kh, local = head % kh, nq = qh / kh, base = slice * (qh + 2 * kh) * P;
    at[0] = base + local * nq * P;
    at[1] = base + (qh + local) * P;
    at[2] = base + (qh + kh + local) * P;
    at[3] = nq;
}

static void do_rope(const oct_cuda_rope_args *a)
{
    cache c;
    cache_of(&a->kv, a->layer + 1, &c);
    int64_t P = a->kv.head_dim, width = (a->heads.n_q_heads + 2 * a->heads.n_kv_heads) * P, at[4];
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->kv.n_heads; h++) {
            places(&a->heads, P, a->heads.first_head + h, at);
            const float *cos = a->rope + a->pos[r] * (P / 2), *sin = cos + a->n_ctx * (P / 2);
            float *x = a->qkv + r * width;
            for (int64_t j = 0; j < at[3]; j++)
                row()->rope(x + at[0] + j * P, cos, sin, P);
            row()->rope(x + at[1], cos, sin, P);
            int64_t pos = a->pos[r], seq = a->seq[r];
            *a->saturated += (unsigned long long)row()->kv_store(
                x + at[1], P, (oct_kv_type)a->kv.type,
                oct_kv_cache_k(&c.kv, a->layer, seq, h, pos) + (size_t)(pos % 16) * c.kv.elem_bytes,
                16);
            *a->saturated += (unsigned long long)row()->kv_store(
                x + at[2], P, (oct_kv_type)a->kv.type, oct_kv_cache_v(&c.kv, a->layer, seq, h, pos),
                1);
        }
}

static void do_attention(const oct_cuda_attention_args *a)
{
    cache c;
    cache_of(&a->kv, a->layer + 1, &c);
    int64_t P = a->kv.head_dim, vs = a->kv.v_stride,
            width = (a->heads.n_q_heads + 2 * a->heads.n_kv_heads) * P, at[4];
    if (a->sums && !a->fold)
        return;
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->kv.n_heads; h++) {
            float o[64 * 256], l[64];
            int64_t t = a->out_row ? a->out_row[r] : r, n_pos = a->pos[t] + 1, head;
            head = a->heads.first_head + h;
            places(&a->heads, P, head, at);
            memset(o, 0, sizeof o);
            memset(l, 0, sizeof l);
            for (int64_t p = 0; p < n_pos; p += 128) {
                oct_attn_args args = {.q = a->qkv + r * width + at[0],
                                      .k = oct_kv_cache_k(&c.kv, a->layer, a->seq[t], h, p),
                                      .v = oct_kv_cache_v(&c.kv, a->layer, a->seq[t], h, p),
                                      .type = (oct_kv_type)a->kv.type,
                                      .n_heads = at[3],
                                      .head_dim = P,
                                      .v_stride = vs,
                                      .n_pos = n_pos - p < 128 ? n_pos - p : 128,
                                      .scale = a->factor * a->cap / 2,
                                      .cap = a->cap,
                                      .o = o,
                                      .l = l};
                args.next_k = args.k;
                row()->attn(&args);
            }
            for (int64_t j = 0; j < at[3]; j++)
                for (int64_t i = 0; i < P; i++)
                    a->out[r * a->heads.n_q_heads * P + (head * at[3] + j) * P + i] =
                        o[j * vs + i] / l[j];
        }
}

static void do_route(const oct_cuda_route_args *a)
{
    for (int64_t r = 0; r < a->n_rows; r++) {
        float logits[OCT_WEIGHT_MAX_EXPERTS];
        const float *x = a->x + r * a->n;
        oct_dot_args d = {.w = a->router,
                          .w_stride = a->n,
                          .rows = &x,
                          .n_rows = 1,
                          .n_out = a->n_experts,
                          .n_in = a->n,
                          .scale = 1,
                          .y = logits,
                          .y_stride = a->n_experts};
        row()->dot_f32(&d);
        int32_t *e = (int32_t *)(void *)(a->routes + r * a->route_bytes);
        oct_route(logits, a->n_experts, a->n_used, e, (float *)(void *)(e + a->n_used));
    }
}

static void do_sort(const oct_cuda_sort_args *a)
{
    int32_t n = 0, tile = 0;
    for (int32_t e = a->first_expert; e < a->end_expert; e++) {
        int32_t first = n;
        for (int32_t i = 0; i < a->n_rows * a->n_used; i++) {
            const int32_t *x =
                a->routes ? (const void *)(a->routes + i / a->n_used * a->route_bytes) : NULL;
            if ((x ? x[i % a->n_used] : 0) != e)
                continue;
            a->order[n] = i;
            a->x_row[n++] = i / a->n_used;
        }
        for (; first < n; first += a->tile_rows)
            a->tiles[tile++] =
                (oct_cuda_tile){e, first, n - first < a->tile_rows ? n - first : a->tile_rows};
    }
    *a->n_sorted = n;
    if (tile > a->n_tiles)
        abort();
    while (tile < a->n_tiles)
        a->tiles[tile++].n = 0;
}

static void do_combine(const oct_cuda_combine_args *a)
{
    if (a->n_parts != 1)
        abort();
    for (int64_t r = 0; r < a->n_rows; r++) {
        const int32_t *e = (const void *)(a->routes + r * a->route_bytes);
        const float *gate = (const void *)(e + a->n_used);
        memset(a->out + r * a->n, 0, (size_t)a->n * 4);
        for (int32_t k = 0; k < a->n_used; k++)
            row()->add_scaled(a->slots + (r * a->n_used + k) * a->n, gate[k], a->n,
                              a->out + r * a->n);
    }
}

static void do_select(const oct_cuda_select_args *a)
{
    for (int64_t r = 0; r < a->n_rows; r++)
        memcpy(a->out + r * a->n, a->x + a->out_row[r] * a->n, (size_t)a->n * 4);
}

static void do_head(const oct_cuda_head_args *a)
{
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t v = a->first; v < a->end; v++) {
            const float *x = a->x + r * a->cols;
            oct_dot_args d = {.w = a->table +
                                   (v / a->slice_rows * a->slice_rows_pad + v % a->slice_rows) *
                                       a->cols,
                              .w_stride = a->cols,
                              .rows = &x,
                              .n_rows = 1,
                              .n_out = 1,
                              .n_in = a->cols,
                              .scale = a->scale,
                              .y = a->y + r * a->y_stride + v - a->first,
                              .y_stride = 1};
            row()->dot_bf16(&d);
        }
}

struct fake_kernel {
    const char *name;
    unsigned bytes;
    void (*run)(const void *args);
};
#define WRAP(name)                           \
    static void run_##name(const void *args) \
    {                                        \
        do_##name(args);                     \
    }
WRAP(embed)
WRAP(norm) WRAP(quantise) WRAP(linear) WRAP(fold) WRAP(kv_copy) WRAP(rope) WRAP(attention)
    WRAP(route) WRAP(sort) WRAP(combine) WRAP(select) WRAP(head)

#define KERNEL(name, args, threads, blocks) \
    {"oct_cuda_" #name, sizeof(oct_cuda_##args##_args), run_##args},
        static const fake_kernel kernels[] = {OCT_CUDA_ENTRIES(KERNEL)};

const fake_kernel *fake_kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}

unsigned fake_kernel_args_bytes(const fake_kernel *k)
{
    return k->bytes;
}

int fake_kernel_run(const fake_kernel *k, const unsigned grid[3], const unsigned block[3],
                    unsigned shared_bytes, void **args)
{
    (void)grid, (void)block, (void)shared_bytes;
    k->run(args[0]);
    return 0;
}
