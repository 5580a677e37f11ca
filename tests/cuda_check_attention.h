/* cuda_check_attention.h: checks of attention.cuh, experts.cuh and head.cuh. */
#ifndef OCT_TEST_CUDA_CHECK_ATTENTION_H
#define OCT_TEST_CUDA_CHECK_ATTENTION_H

#include "cuda_check_rows.h"
#include "kv_cache.h"

typedef struct cuda_kv_shape {
    int64_t q_heads, kv_heads, head_dim, slices, first_head, heads; /* heads: of the cache */
} cuda_kv_shape;

static const cuda_kv_shape cuda_kv_shapes[] = {
    {6, 1, 16, 1, 0, 1},  {12, 2, 100, 2, 1, 1}, {4, 4, 27 * 2, 2, 0, 4}, {16, 2, 8, 1, 0, 2},
    {30, 1, 34, 1, 0, 1}, {48, 8, 128, 8, 6, 2}, {6, 3, 144, 1, 0, 3}};
enum { CUDA_KV_SHAPES = 7, CUDA_SEQS = 3, CUDA_SEQ_PAGES = 4, CUDA_KV_PAGES = 11 };

/* A cache of two layers, its pages taken by sequences in no order; on the host it would be the
 * same. */
typedef struct cuda_kv_case {
    const cuda_kv_shape *s;
    oct_kv_type type;
    oct_cuda_kv kv;
    oct_cuda_heads heads;
    oct_kv_pages pages; /* only what finding needs */
    oct_kv_cache host;
    int64_t cols;
} cuda_kv_case;

static inline void cuda_kv_make(const cuda_kv_shape *s, oct_kv_type type, cuda_kv_case *c)
{
    oct_error err;
    int32_t table[CUDA_SEQS * CUDA_SEQ_PAGES];
    for (int i = 0; i < CUDA_SEQS * CUDA_SEQ_PAGES; i++)
        table[i] = (int32_t)((i * 7 + 3) % CUDA_KV_PAGES);
    *c = (cuda_kv_case){.s = s, .type = type, .cols = (s->q_heads + 2 * s->kv_heads) * s->head_dim};
    c->host = (oct_kv_cache){.type = type,
                             .n_layers = 2,
                             .n_heads = s->heads,
                             .head_dim = s->head_dim,
                             .n_domains = 1,
                             .n_seqs = 1,
                             .n_ctx = CUDA_KV_PAGES * OCT_KV_PAGE};
    if (oct_kv_cache_plan(&c->host, &err) != OCT_OK)
        abort();
    c->pages = (oct_kv_pages){.seq_pages = CUDA_SEQ_PAGES, .table = cuda_copy(table, sizeof table)};
    c->host.pages = &c->pages;
    c->host.data = cuda_room(c->host.bytes);
    c->kv = (oct_cuda_kv){c->host.data,     c->pages.table,
                          CUDA_SEQ_PAGES,   CUDA_KV_PAGES,
                          s->heads,         s->head_dim,
                          c->host.v_stride, c->host.head_bytes,
                          (int32_t)type,    (int32_t)c->host.elem_bytes};
    c->heads = (oct_cuda_heads){s->q_heads, s->kv_heads, s->slices, s->first_head};
    if (c->kv.n_pages != c->host.n_pages)
        abort();
}

/* Where slice, heads and kinds lie in a row, written apart: walks the row. kind: 0 q, 1 k, 2 v. */
static inline int64_t cuda_head_at(const cuda_kv_shape *s, int kind, int64_t head)
{
    int64_t at = 0,
            n[3] = {s->q_heads / s->slices, s->kv_heads / s->slices, s->kv_heads / s->slices},
            seen[3] = {0, 0, 0};
    for (int64_t slice = 0; slice < s->slices; slice++)
        for (int k = 0; k < 3; k++)
            for (int64_t h = 0; h < n[k]; h++, at += s->head_dim)
                if (seen[k]++ == head && k == kind)
                    return at;
    abort();
}

/* One number of the cache, by kind, or its place. */
static inline unsigned char *cuda_kv_at(const cuda_kv_case *c, int kind, int64_t layer, int64_t seq,
                                        int64_t head, int64_t pos, int64_t i)
{
    size_t e = c->host.elem_bytes;
    if (kind == 1)
        return oct_kv_cache_k(&c->host, layer, seq, head, pos) +
               (size_t)(i * OCT_KV_LANES + pos % OCT_KV_LANES) * e;
    return oct_kv_cache_v(&c->host, layer, seq, head, pos) + (size_t)i * e;
}

static inline const char *rope_case(const cuda_kv_shape *s, oct_kv_type type, cuda_pattern p)
{
    enum { ROWS = 5, CTX = CUDA_SEQ_PAGES * OCT_KV_PAGE };
    static const int32_t pos[ROWS] = {0, 127, 128, 129, 383}, seq[ROWS] = {0, 1, 2, 1, 0};
    cuda_kv_case c;
    cuda_kv_make(s, type, &c);
    memset(c.host.data, 0x11, c.host.bytes);
    int64_t half = s->head_dim / 2, n = ROWS * c.cols, beyond = 0;
    float *qkv = cuda_room((size_t)n * 4), *want = malloc((size_t)n * sizeof *want);
    unsigned char *cache = malloc(c.host.bytes);
    unsigned long long count = 5;
    cuda_fill(qkv, n, p);
    memcpy(want, qkv, (size_t)n * 4);
    memcpy(cache, c.host.data, c.host.bytes);
    float *rope = cuda_floats(2 * CTX * half, CUDA_NORMAL);
    oct_cuda_rope_args a = {.kv = c.kv,
                            .heads = c.heads,
                            .qkv = qkv,
                            .rope = rope,
                            .pos = cuda_copy(pos, sizeof pos),
                            .seq = cuda_copy(seq, sizeof seq),
                            .saturated = &count,
                            .n_rows = ROWS,
                            .n_ctx = CTX,
                            .layer = 1};
    const char *wrong = cuda_run(oct_cuda_rope_launch(&a), &a);
    for (int64_t i = 0; i < ROWS * s->heads && !wrong; i++) {
        int64_t r = i / s->heads, local = i % s->heads, head = s->first_head + local;
        int64_t n_q = s->q_heads / s->kv_heads;
        const float *cos = rope + pos[r] * half, *sin = cos + CTX * half;
        for (int64_t h = 0; h < n_q; h++)
            oracle_rope(want + r * c.cols + cuda_head_at(s, 0, head * n_q + h), cos, sin,
                        s->head_dim);
        float *k = want + r * c.cols + cuda_head_at(s, 1, head);
        oracle_rope(k, cos, sin, s->head_dim);
        for (int kind = 1; kind <= 2; kind++)
            for (int64_t d = 0; d < s->head_dim; d++) {
                float x = want[r * c.cols + cuda_head_at(s, kind, head) + d];
                bool saturated;
                uint32_t bits = oracle_kv_bits(type, x, &saturated);
                size_t at =
                    (size_t)(cuda_kv_at(&c, kind, 1, seq[r], local, pos[r], d) - c.host.data);
                memcpy(cache + at, &bits, c.host.elem_bytes);
                beyond += saturated;
            }
    }
    if (!wrong)
        wrong = cuda_equal("rope", qkv, want, n);
    if (!wrong && memcmp(cache, c.host.data, c.host.bytes) != 0)
        wrong = "rope: the cache is not what it should be";
    if (!wrong && count != 5 + (unsigned long long)beyond)
        wrong = "rope: saturated values are counted wrongly";
    free(want);
    free(cache);
    if (wrong)
        return cuda_note(wrong, " (%d heads of %d, type %d, pattern %d)", (int)s->heads,
                         (int)s->head_dim, type, p);
    return cuda_case_ends("rope");
}

static inline const char *check_rope(void)
{
    for (int i = 0; i < CUDA_KV_SHAPES * 3; i++) {
        cuda_pattern p = (cuda_pattern)((i + i / 7) % CUDA_PATTERNS);
        CUDA_TRY(
            rope_case(&cuda_kv_shapes[i % CUDA_KV_SHAPES], (oct_kv_type)(i / CUDA_KV_SHAPES), p));
    }
    return NULL;
}

static inline const char *check_kv_copy(void)
{
    for (int i = 0; i < CUDA_KV_SHAPES * 3; i++) {
        cuda_kv_case c;
        cuda_kv_make(&cuda_kv_shapes[i % CUDA_KV_SHAPES], (oct_kv_type)(i / CUDA_KV_SHAPES), &c);
        for (size_t k = 0; k < c.host.bytes; k++)
            c.host.data[k] = (unsigned char)rig_int(&cuda_rng, 0, 255);
        unsigned char *want = malloc(c.host.bytes);
        oct_cuda_page_copy copies[2] = {{0, 1, 9, 0, rig_int(&cuda_rng, 1, 127)},
                                        {1, 4, 10, 0, i % 2 ? 16 : 5}};
        oct_cuda_kv_copy_args a = {c.kv, cuda_copy(copies, sizeof copies), 2, 1};
        memcpy(want, c.host.data, c.host.bytes);
        const char *wrong = cuda_run(oct_cuda_kv_copy_launch(&a), &a);
        if (!wrong) {
            unsigned char *got = c.host.data;
            c.host.data = want;
            for (int64_t k = 0; k < 2 * c.s->heads; k++)
                oct_kv_cache_copy(
                    &c.host, 1, k / 2,
                    &(oct_kv_copy){0, copies[k % 2].from, copies[k % 2].to, copies[k % 2].n_pos});
            if (memcmp(got, want, c.host.bytes) != 0)
                wrong = "kv_copy: the cache is not what it should be";
        }
        free(want);
        CUDA_TRY(wrong);
        CUDA_TRY(cuda_case_ends("kv_copy"));
    }
    return NULL;
}

/* Attention of rows of several sequences: what the oracle says of each block, added in order. */
static inline void attention_want(const cuda_kv_case *c, const oct_cuda_attention_args *a,
                                  float scale, float *out)
{
    const cuda_kv_shape *s = c->s;
    int64_t P = s->head_dim, n_q = s->q_heads / s->kv_heads, stride = c->host.v_stride;
    float o[16 * 160], l[32], *q = malloc((size_t)(n_q * P) * sizeof *q);
    for (int64_t i = 0; i < a->n_rows * s->heads; i++) {
        int64_t r = i / s->heads, local = i % s->heads, head = s->first_head + local;
        int64_t token = a->out_row ? a->out_row[r] : r, n_pos = a->pos[token] + 1;
        for (int64_t h = 0; h < n_q; h++) {
            memcpy(q, a->qkv + r * c->cols + cuda_head_at(s, 0, head * n_q + h), (size_t)P * 4);
            memset(o, 0, (size_t)stride * sizeof *o);
            l[0] = 0.0f;
            for (int64_t p = 0; p < n_pos; p += OCT_ATTN_BLOCK) {
                oct_attn_args t = {.q = q,
                                   .k = oct_kv_cache_k(&c->host, a->layer, a->seq[token], local, p),
                                   .v = oct_kv_cache_v(&c->host, a->layer, a->seq[token], local, p),
                                   .type = c->type,
                                   .n_heads = 1,
                                   .head_dim = P,
                                   .v_stride = stride,
                                   .n_pos = n_pos - p < OCT_ATTN_BLOCK ? n_pos - p : OCT_ATTN_BLOCK,
                                   .scale = scale,
                                   .cap = a->cap,
                                   .o = o,
                                   .l = l};
                oracle_attn(&t);
            }
            for (int64_t d = 0; d < P; d++)
                out[(r * s->q_heads + head * n_q + h) * P + d] = o[d] / l[0];
        }
    }
    free(q);
}

/* Elements of V beyond the head are zero. */
static inline void attention_fill(cuda_kv_case *c, cuda_pattern p)
{
    int64_t n = (int64_t)(c->host.bytes / c->host.elem_bytes);
    for (int64_t i = 0; i < n; i++) {
        float v = rig_normal(&cuda_rng);
        v *= p == CUDA_HEAVY && i % 37 == 0 ? 100.0f : p == CUDA_TINY ? 1e-6f : 1.0f;
        bool saturated;
        uint32_t bits = oracle_kv_bits(c->type, v, &saturated);
        memcpy(c->host.data + (size_t)i * c->host.elem_bytes, &bits, c->host.elem_bytes);
    }
    for (int64_t seq = 0; seq < CUDA_SEQS; seq++)
        for (int64_t i = 0; i < c->s->heads * c->host.v_stride * OCT_KV_PAGE; i++) {
            int64_t head = i % c->s->heads, pos = i / c->s->heads % OCT_KV_PAGE;
            int64_t e = i / c->s->heads / OCT_KV_PAGE;
            if (e >= c->s->head_dim) /* of every page: padding is zero */
                for (int64_t b = 0; b < CUDA_SEQ_PAGES; b++)
                    memset(cuda_kv_at(c, 2, 1, seq, head, b * OCT_KV_PAGE + pos, e), 0,
                           c->host.elem_bytes);
        }
}

/* Positions beyond a sequence's last are NaN, to the end of its last page. */
static inline void attention_bound(const cuda_kv_case *c, const int32_t *pos, const int32_t *seq,
                                   int n)
{
    const uint32_t bits = c->type == OCT_KV_F32 ? 0x7fc00000u : 0x7fc07fc0u;
    for (int32_t s = 0; s < CUDA_SEQS; s++) {
        int64_t last = -1;
        for (int i = 0; i < n; i++)
            last = seq[i] == s && pos[i] > last ? pos[i] : last;
        for (int64_t p = last + 1; last >= 0 && p % OCT_KV_PAGE != 0; p++)
            for (int64_t i = 0; i < c->s->heads * c->s->head_dim * 2; i++)
                memcpy(cuda_kv_at(c, 1 + i % 2, 1, s, i / 2 % c->s->heads, p, i / 2 / c->s->heads),
                       &bits, c->host.elem_bytes);
    }
}

static inline const char *attention_case(const cuda_kv_shape *s, oct_kv_type type, cuda_pattern p,
                                         int form)
{
    enum { TOKENS = 7 };
    static const int32_t pos[][TOKENS] = {{125, 126, 127, 128, 129, 130, 131},
                                          {0, 1, 15, 16, 17, 255, 256},
                                          {300, 2, 3, 260, 261, 5, 127}};
    static const int32_t seq[][TOKENS] = {{0}, {1, 1, 1, 1, 1, 2, 2}, {0, 1, 1, 2, 2, 0, 1}};
    static const int32_t out_row[] = {1, 4, 6};
    bool parts = form % 2, selected = form / 2 % 2;
    int set = form / 4 % 3;
    cuda_kv_case c;
    cuda_kv_make(s, type, &c);
    attention_fill(&c, p);
    attention_bound(&c, pos[set], seq[set], TOKENS);
    int64_t rows = selected ? 3 : TOKENS, n_q = s->q_heads / s->kv_heads, P = s->head_dim;
    float scale = 1.0f / sqrtf((float)P), cap = 30.0f;
    oct_cuda_attention_args a = {.kv = c.kv,
                                 .heads = c.heads,
                                 .qkv =
                                     cuda_floats(rows * c.cols, p == CUDA_TINY ? CUDA_NORMAL : p),
                                 .pos = cuda_copy(pos[set], sizeof pos[set]),
                                 .seq = cuda_copy(seq[set], sizeof seq[set]),
                                 .out = cuda_room((size_t)(rows * s->q_heads * P) * 4),
                                 .n_rows = rows,
                                 .max_blocks = set == 1 ? 3 : CUDA_SEQ_PAGES, /* as few as may be */
                                 .layer = 1,
                                 .factor = 2.0f * scale / cap,
                                 .cap = cap};
    if (selected)
        a.out_row = cuda_copy(out_row, sizeof out_row);
    if (parts)
        a.sums = cuda_room(
            (size_t)oct_cuda_attention_sums(rows, s->heads * n_q, a.max_blocks, c.host.v_stride) *
            4);
    size_t bytes = (size_t)(rows * s->q_heads * P) * sizeof(float);
    float *want = malloc(bytes);
    memset(a.out, 0, bytes);
    memset(want, 0, bytes);
    const char *wrong = cuda_run(oct_cuda_attention_launch(&a), &a);
    a.fold = 1;
    if (!wrong && parts)
        wrong = cuda_run(oct_cuda_attention_launch(&a), &a);
    if (!wrong)
        attention_want(&c, &a, scale, want);
    if (!wrong)
        wrong = cuda_equal("attention", a.out, want, rows * s->q_heads * P);
    free(want);
    if (wrong)
        return cuda_note(wrong, " (heads %d of %d, %d dimensions, type %d, pattern %d, form %d)",
                         (int)s->q_heads, (int)s->kv_heads, (int)P, type, p, form);
    return cuda_case_ends("attention");
}

static inline const char *check_attention(void)
{
    for (int i = 0; i < CUDA_KV_SHAPES * 12; i += 1 + i % 2)
        CUDA_TRY(attention_case(&cuda_kv_shapes[i % CUDA_KV_SHAPES], (oct_kv_type)(i / 2 % 3),
                                (cuda_pattern)(i / 3 % 4), i / CUDA_KV_SHAPES));
    return NULL;
}

static inline const char *check_route(void)
{
    enum { ROWS = 3 };
    static const int32_t numbers[][2] = {{2, 1}, {8, 2}, {20, 4}, {64, 6}};
    for (int i = 0; i < 4 * CUDA_PATTERNS; i++) {
        int64_t n = cuda_widths[i % CUDA_WIDTHS], e = numbers[i % 4][0], k = numbers[i % 4][1];
        const float *x = cuda_floats(ROWS * n, (cuda_pattern)(i / 4)),
                    *router = cuda_floats(e * n, i % 3 ? CUDA_NORMAL : CUDA_ZEROS);
        oct_cuda_route_args a = {
            x, router, cuda_room((size_t)(ROWS * k) * 8), n, ROWS, k * 8, (int32_t)e, (int32_t)k};
        CUDA_RUN(route, a);
        for (int64_t r = 0; r < ROWS; r++) {
            float logits[64], gate[6];
            int32_t expert[6];
            for (int64_t j = 0; j < e; j++)
                logits[j] = oracle_dot(x + r * n, router + j * n, n);
            oct_route(logits, e, k, expert, gate);
            if (memcmp(a.routes + r * k * 8, expert, (size_t)k * 4) != 0)
                CUDA_FAILS("route: other experts, %d of %d, width %d", (int)k, (int)e, (int)n);
            CUDA_TRY(cuda_equal(
                "gates", (const float *)(const void *)(a.routes + r * k * 8 + k * 4), gate, k));
        }
        CUDA_TRY(cuda_case_ends("route"));
    }
    return NULL;
}

/* Sorting by experts of which only some are here; all rows to the last lane's expert; and a dense
 * model. */
static inline const char *check_sort(void)
{
    for (int i = 0; i < 13; i++) {
        const bool one = i == 12;
        int64_t rows = one ? 64 : rig_int(&cuda_rng, 1, 70);
        int n_used = one || i % 4 == 3 ? 1 : 1 + i % 3;
        int experts = one ? 32 : i % 4 == 3 ? 1 : i % 2 ? 64 : 5;
        int32_t tile = i % 3 ? 8 : 64, first = i % 5 == 0 ? 1 : 0, end = experts - i % 2, at = 0;
        if (experts == 1)
            first = 0, end = 1;
        const unsigned char *routes = experts > 1 ? cuda_routes(rows, n_used, experts) : NULL;
        if (one) {
            int32_t all[64 * 2] = {0};
            for (int k = 0; k < 64; k++)
                all[2 * k] = experts - 1;
            routes = cuda_copy(all, sizeof all);
        }
        int64_t slots = rows * n_used;
        int32_t n_tiles = oct_cuda_tiles(slots, experts, tile), t = 0;
        oct_cuda_sort_args a = {routes,
                                n_used * 8,
                                rows,
                                n_used,
                                experts,
                                first,
                                end,
                                tile,
                                cuda_room((size_t)slots * 4),
                                cuda_room((size_t)slots * 4),
                                cuda_room(4),
                                cuda_room((size_t)n_tiles * sizeof(oct_cuda_tile)),
                                n_tiles};
        CUDA_RUN(sort, a);
        for (int32_t e = first; e < end; e++) {
            int32_t begin = at;
            for (int64_t s = 0; s < slots; s++) {
                int32_t of = routes
                                 ? ((const int32_t *)(const void *)(routes + s / n_used * n_used *
                                                                                 8))[s % n_used]
                                 : 0;
                if (of != e)
                    continue;
                if (a.order[at] != s || a.x_row[at] != s / n_used)
                    CUDA_FAILS("sort: place %d has slot %d, expected %d", at, a.order[at], (int)s);
                at++;
            }
            for (; begin < at; begin += tile, t++)
                if (t >= n_tiles || a.tiles[t].expert != e || a.tiles[t].first != begin ||
                    a.tiles[t].n != (at - begin < tile ? at - begin : tile))
                    CUDA_FAILS("sort: tile %d is wrong", t);
        }
        for (; t < n_tiles; t++)
            if (a.tiles[t].n != 0)
                CUDA_FAILS("sort: tile %d should be empty", t);
        if (*a.n_sorted != at)
            CUDA_FAILS("sort: %d slots, expected %d", *a.n_sorted, at);
        CUDA_TRY(cuda_case_ends("sort"));
    }
    return NULL;
}

static inline const char *check_head(void)
{
    static const int64_t widths[] = {1, 8, 27, 64, 72, 200, 128};
    for (int i = 0; i < 14; i++) {
        int64_t n = widths[i % 7], rows = 1 + i % 6, slice = 50, pad = 64, first = i % 2 ? 7 : 0;
        int64_t end = i % 3 ? 149 : 131, count = end - first;
        uint16_t *table = cuda_room((size_t)(3 * pad * n) * 2);
        for (int64_t k = 0; k < 3 * pad * n; k++)
            table[k] = oct_bf16_of_f32(rig_normal(&cuda_rng));
        rig_seal(&cuda_pool);
        float *x = cuda_room((size_t)(rows * n) * 4);
        cuda_fill(x, rows * n, (cuda_pattern)(i % CUDA_PATTERNS));
        rig_seal(&cuda_pool);
        oct_cuda_head_args a = {x,         table,   cuda_room((size_t)(rows * (count + 3)) * 4),
                                n,         slice,   pad,
                                first,     end,     rows,
                                count + 3, 0.57735f};
        float *want = malloc((size_t)count * sizeof *want), *w = malloc((size_t)n * sizeof *w);
        const char *wrong = cuda_run(oct_cuda_head_launch(&a), &a);
        for (int64_t r = 0; r < rows && !wrong; r++) {
            for (int64_t v = first; v < end; v++) {
                for (int64_t k = 0; k < n; k++)
                    w[k] = oct_f32_of_bf16(table[(v / slice * pad + v % slice) * n + k]);
                want[v - first] = a.scale * oracle_dot(x + r * n, w, n);
            }
            wrong = cuda_equal("head", a.y + r * a.y_stride, want, count);
        }
        free(want);
        free(w);
        CUDA_TRY(wrong);
        CUDA_TRY(cuda_case_ends("head"));
    }
    return NULL;
}

#endif
