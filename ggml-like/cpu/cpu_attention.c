/* cpu_attention.c: rotating and storing, and attention over the cache. A KV head belongs to the
 * domain of its slice, so its part of the cache is written and read by the same threads.
 *
 * Sums are formed over fixed blocks of positions and folded in ascending order, each from zero. Who
 * computes them does not matter: one thread walks all blocks of a (token, KV head), or, when there
 * are too few of those for the threads (decode), blocks are shared and their sums stored and folded
 * behind a barrier. Both give the same bits. */
#include <string.h>

#include "cpu_impl.h"

enum {
    SPLIT_ROWS = 4,  /* tokens of a run whose blocks may be shared: bounds the temporary memory */
    COST_GROUPS = 16 /* runs of tokens that count as equally long */
};

/* Where a KV head's queries, key and value lie in a row of the fused projection. */
typedef struct head_place {
    int64_t q, k, v, n_q; /* offsets in floats; query heads that share the KV head */
} head_place;

static head_place place_of(const oct_attn_shape *a, int64_t kv_head)
{
    int64_t q_heads = a->n_q_heads / a->n_slices, kv_heads = a->n_kv_heads / a->n_slices;
    int64_t slice = kv_head / kv_heads, local = kv_head % kv_heads, n_q = q_heads / kv_heads;
    int64_t base = slice * (q_heads + 2 * kv_heads) * a->head_dim;
    return (head_place){base + local * n_q * a->head_dim, base + (q_heads + local) * a->head_dim,
                        base + (q_heads + kv_heads + local) * a->head_dim, n_q};
}

/* The rank's cache holds the heads of its slices only. */
static int64_t cache_head(const oct_cpu_run *c, const oct_attn_shape *a, int64_t head)
{
    return head - oct_cpu_first_slice(c, OCT_SHARD_OF_ATTENTION, 0) * (a->n_kv_heads / a->n_slices);
}

/* KV heads first..first+n-1 belong to the domain's slices. */
static int64_t domain_heads(const oct_cpu_run *c, const oct_attn_shape *a, int64_t *first)
{
    int64_t each = a->n_kv_heads / a->n_slices;
    *first = oct_cpu_first_slice(c, OCT_SHARD_OF_ATTENTION, c->domain) * each;
    return oct_cpu_first_slice(c, OCT_SHARD_OF_ATTENTION, c->domain + 1) * each - *first;
}

/* Pages that the run's sequences need copies of, each head by a thread of its domain. New positions
 * may be stored at the same time. */
static void copy_pages(oct_cpu_run *c, const oct_step *s)
{
    const oct_kv_cache *kv = &c->run->kv[c->place];
    int64_t lo, hi, first, heads = domain_heads(c, s->node->attn, &first);
    oct_team_range(kv->pages->n_copies * heads, c->domain_thread, c->domain_threads, &lo, &hi);
    for (int64_t task = lo; task < hi; task++)
        oct_kv_cache_copy(kv, s->kv_layer, cache_head(c, s->node->attn, first + task % heads),
                          &kv->pages->copies[task / heads]);
}

void oct_cpu_rope_store(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    const oct_attn_shape *a = n->attn;
    const float *all_cos = s->at[0], *all_sin = all_cos + a->n_ctx * (a->head_dim / 2);
    const oct_kernels *k = c->cpu->k;
    oct_kv_cache *kv = &c->run->kv[c->place];
    int64_t lo, hi, P = a->head_dim, saturated = 0, first, heads = domain_heads(c, a, &first);
    copy_pages(c, s);
    oct_team_range(oct_cpu_rows(c, n->out) * heads, c->domain_thread, c->domain_threads, &lo, &hi);
    for (int64_t task = lo; task < hi; task++) {
        int64_t r = task / heads, head = first + task % heads;
        int64_t pos = c->run->pos[r], seq = c->run->seq[r];
        const float *cos = all_cos + pos * (P / 2), *sin = all_sin + pos * (P / 2);
        head_place at = place_of(a, head);
        float *row = oct_cpu_row(c, n->out, r);
        for (int64_t j = 0; j < at.n_q; j++)
            k->rope(row + at.q + j * P, cos, sin, P);
        k->rope(row + at.k, cos, sin, P);
        unsigned char *key = oct_kv_cache_k(kv, s->kv_layer, seq, cache_head(c, a, head), pos) +
                             (size_t)(pos % OCT_KV_LANES) * kv->elem_bytes;
        saturated += k->kv_store(row + at.k, P, kv->type, key, OCT_KV_LANES);
        saturated +=
            k->kv_store(row + at.v, P, kv->type,
                        oct_kv_cache_v(kv, s->kv_layer, seq, cache_head(c, a, head), pos), 1);
    }
    if (saturated)
        kv->saturated += saturated;
}

typedef struct attention_job {
    const oct_node *n;
    const oct_kv_cache *kv;
    int64_t layer;                   /* in the cache */
    int64_t rows, first_head, heads; /* of the domain */
    int64_t group_rows;              /* rows of a cost group */
    int64_t max_blocks;              /* of any row of the run */
    float *sums;                     /* split: [rows][n_kv_heads][max_blocks][n_q][v_stride + 1] */
} attention_job;

static int64_t row_token(const oct_cpu_run *c, const attention_job *j, int64_t row)
{
    return j->n->in[0]->selected ? c->run->out_row[row] : row;
}

static int64_t row_positions(const oct_cpu_run *c, const attention_job *j, int64_t row)
{
    return c->run->pos[row_token(c, j, row)] + 1;
}

/* Adds block after block to o [n_q][v_stride] and l [n_q]. */
static void add_blocks(oct_cpu_run *c, const attention_job *j, int64_t row, int64_t head,
                       int64_t first, int64_t end, float *o, float *l)
{
    const oct_attn_shape *a = j->n->attn;
    head_place at = place_of(a, head);
    oct_attn_args args = {.q = oct_cpu_row(c, j->n->in[0], row) + at.q,
                          .type = j->kv->type,
                          .n_heads = at.n_q,
                          .head_dim = a->head_dim,
                          .v_stride = j->kv->v_stride,
                          .scale = a->scale,
                          .cap = a->cap,
                          .o = o,
                          .l = l};
    int64_t n_pos = row_positions(c, j, row), seq = c->run->seq[row_token(c, j, row)];
    for (int64_t p = first * OCT_ATTN_BLOCK; p < n_pos && p < end * OCT_ATTN_BLOCK;
         p += OCT_ATTN_BLOCK) {
        int64_t next = p + OCT_ATTN_BLOCK, kv_head = cache_head(c, a, head);
        args.k = oct_kv_cache_k(j->kv, j->layer, seq, kv_head, p);
        args.v = oct_kv_cache_v(j->kv, j->layer, seq, kv_head, p);
        args.next_k = next < n_pos ? oct_kv_cache_k(j->kv, j->layer, seq, kv_head, next) : args.k;
        args.n_pos = next < n_pos ? OCT_ATTN_BLOCK : n_pos - p;
        c->cpu->k->attn(&args);
    }
}

static void divide(oct_cpu_run *c, const attention_job *j, int64_t row, int64_t head,
                   const float *o, const float *l)
{
    const oct_attn_shape *a = j->n->attn;
    int64_t n_q = a->n_q_heads / a->n_kv_heads, P = a->head_dim;
    float *out = oct_cpu_row(c, j->n->out, row) + head * n_q * P;
    for (int64_t h = 0; h < n_q; h++)
        for (int64_t i = 0; i < P; i++)
            out[h * P + i] = o[h * j->kv->v_stride + i] / l[h];
}

/* All blocks of one token and KV head. Neighbouring tasks have the same head: its keys and values
 * stay in the cache. */
static void whole_task(oct_cpu_run *c, const void *job, int64_t group, int64_t task)
{
    const attention_job *j = job;
    int64_t first = group * j->group_rows, left = j->rows - first;
    int64_t group_rows = left < j->group_rows ? left : j->group_rows;
    int64_t row = first + task % group_rows, head = j->first_head + task / group_rows;
    int64_t n_q = j->n->attn->n_q_heads / j->n->attn->n_kv_heads;
    float *o = (float *)(void *)c->scratch, *l = o + n_q * j->kv->v_stride;
    memset(o, 0, (size_t)(n_q * (j->kv->v_stride + 1)) * sizeof *o);
    add_blocks(c, j, row, head, 0, j->max_blocks, o, l);
    divide(c, j, row, head, o, l);
}

static void attend_whole(oct_cpu_run *c, attention_job *j)
{
    oct_cpu_work groups[COST_GROUPS];
    int64_t n = 0;
    j->group_rows = (j->rows + COST_GROUPS - 1) / COST_GROUPS;
    for (int64_t r = 0; r < j->rows; r += j->group_rows) {
        int64_t rows = j->rows - r < j->group_rows ? j->rows - r : j->group_rows;
        groups[n++] = (oct_cpu_work){rows * j->heads, 16 + row_positions(c, j, r + rows / 2)};
    }
    oct_cpu_share(c, groups, n, whole_task, j);
}

static float *sums_of(const attention_job *j, int64_t row, int64_t head, int64_t block)
{
    const oct_attn_shape *a = j->n->attn;
    int64_t size = a->n_q_heads / a->n_kv_heads * (j->kv->v_stride + 1);
    return j->sums + ((row * a->n_kv_heads + head) * j->max_blocks + block) * size;
}

/* One block of one token and KV head into its own place. */
static void block_task(oct_cpu_run *c, const void *job, int64_t group, int64_t task)
{
    const attention_job *j = job;
    int64_t block = task % j->max_blocks, row = task / j->max_blocks % j->rows;
    int64_t head = j->first_head + task / j->max_blocks / j->rows;
    int64_t n_q = j->n->attn->n_q_heads / j->n->attn->n_kv_heads;
    float *o = sums_of(j, row, head, block);
    (void)group;
    if (block * OCT_ATTN_BLOCK >= row_positions(c, j, row))
        return;
    memset(o, 0, (size_t)(n_q * (j->kv->v_stride + 1)) * sizeof *o);
    add_blocks(c, j, row, head, block, block + 1, o, o + n_q * j->kv->v_stride);
}

static void attend_split(oct_cpu_run *c, attention_job *j)
{
    int64_t size = j->n->attn->n_q_heads / j->n->attn->n_kv_heads * (j->kv->v_stride + 1);
    oct_cpu_work all = {j->heads * j->rows * j->max_blocks, 1};
    oct_cpu_share(c, &all, 1, block_task, j);
    oct_team_barrier(c->cpu->team);
    int64_t lo, hi;
    oct_team_range(j->heads * j->rows, c->domain_thread, c->domain_threads, &lo, &hi);
    for (int64_t t = lo; t < hi; t++) {
        int64_t row = t % j->rows, head = j->first_head + t / j->rows,
                n_pos = row_positions(c, j, row);
        float *sum = sums_of(j, row, head, 0);
        for (int64_t b = 1; b * OCT_ATTN_BLOCK < n_pos; b++)
            c->cpu->k->add(sum, sums_of(j, row, head, b), size, sum);
        divide(c, j, row, head, sum, sum + size - size / (j->kv->v_stride + 1));
    }
}

/* Whether blocks are shared, as there are few of the rank's heads: the same answer on every thread
 * and in every domain. */
static bool is_split(const oct_cpu_numbers *numbers, const oct_node *n, int64_t rows)
{
    const oct_attn_shape *a = n->attn;
    int64_t slices = oct_shard_n_slices(&numbers->shard, OCT_SHARD_OF_ATTENTION);
    return rows <= SPLIT_ROWS &&
           rows * (a->n_kv_heads / a->n_slices) * slices < 2 * numbers->n_threads;
}

size_t oct_cpu_attention_temp(const oct_cpu_numbers *numbers, const oct_node *n, int64_t rows)
{
    const oct_attn_shape *a = n->attn;
    rows = rows < SPLIT_ROWS ? rows : SPLIT_ROWS;
    if (!is_split(numbers, n, 1))
        return 0;
    int64_t v_stride = oct_kv_v_stride(a->head_dim),
            blocks = (a->n_ctx + OCT_ATTN_BLOCK - 1) / OCT_ATTN_BLOCK;
    return (size_t)(rows * a->n_q_heads * blocks * (v_stride + 1)) * sizeof(float);
}

size_t oct_cpu_attention_scratch(const oct_node *n)
{
    const oct_attn_shape *a = n->attn;
    return (size_t)(a->n_q_heads / a->n_kv_heads * (a->head_dim + 16 + 1)) * sizeof(float);
}

void oct_cpu_attention(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    attention_job j = {.n = n,
                       .kv = &c->run->kv[c->place],
                       .layer = s->kv_layer,
                       .rows = oct_cpu_rows(c, n->in[0]),
                       .sums = oct_cpu_temp(c, s)};
    j.heads = domain_heads(c, n->attn, &j.first_head);
    for (int64_t r = 0; r < j.rows; r++) {
        int64_t blocks = (row_positions(c, &j, r) + OCT_ATTN_BLOCK - 1) / OCT_ATTN_BLOCK;
        j.max_blocks = blocks > j.max_blocks ? blocks : j.max_blocks;
    }
    if (is_split(&c->cpu->n, n, j.rows))
        attend_split(c, &j);
    else
        attend_whole(c, &j);
    if (c->thread == 0)
        for (int64_t r = 0; r < j.rows; r++)
            c->run->kv_read +=
                (uint64_t)(row_positions(c, &j, r) * j.kv->n_heads * n->attn->head_dim * 2) *
                j.kv->elem_bytes;
}
