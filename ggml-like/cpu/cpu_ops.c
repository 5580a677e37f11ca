/* cpu_ops.c: one function per operation. Every thread of the team calls it with the same node; each
 * computes outputs that no other touches, so that results never depend on how work was shared. The
 * backend puts a barrier behind every node. */
#include <string.h>

#include "cpu_impl.h"
#include "f16.h"
#include "route.h"

void *oct_cpu_data(const oct_cpu_run *c, const oct_tensor *t)
{
    return c->plan->buffer + t->offset;
}

int64_t oct_cpu_rows(const oct_cpu_run *c, const oct_tensor *t)
{
    return t->selected ? c->run->n_out : c->run->n_rows;
}

/* The token of the run that row r of t belongs to. */
static int64_t token_of(const oct_cpu_run *c, const oct_tensor *t, int64_t r)
{
    return t->selected ? c->run->out_row[r] : r;
}

static float *row_of(const oct_cpu_run *c, const oct_tensor *t, int64_t row)
{
    return (float *)oct_cpu_data(c, t) + row * t->cols;
}

static void my_range(const oct_cpu_run *c, int64_t n, int64_t *first, int64_t *end)
{
    oct_team_range(n, c->thread, c->n_threads, first, end);
}

size_t oct_cpu_tiles_bytes(void)
{
    return OCT_ROW_BLOCK * (OCT_FOLD_LEVELS * OCT_Q8_PANEL * sizeof(float) + sizeof(void *));
}

oct_cpu_tiles oct_cpu_tiles_at(const oct_cpu_run *c)
{
    float *y = (float *)(void *)c->scratch;
    return (oct_cpu_tiles){
        y, (const void **)(void *)(y + OCT_FOLD_LEVELS * OCT_ROW_BLOCK * OCT_Q8_PANEL)};
}

float *oct_cpu_panel(const oct_cpu_run *c, const oct_tensor *w, const oct_act_layout *act,
                     int64_t expert, int64_t slice, int64_t panel, int64_t n_rows)
{
    const oct_q8_layout *l = w->q8;
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    oct_linear_args a = {.w = l, .act = act, .rows = tiles.rows, .n_rows = n_rows};
    const unsigned char *data = (const unsigned char *)w->data + (size_t)panel * l->panel_bytes;
    const size_t scales_at = (size_t)(l->unit_groups * l->group_quads) * OCT_Q8_PANEL * OCT_Q8_QUAD;
    if (l->split == OCT_SPLIT_OUT) {
        a.panel = data + oct_q8_unit_offset(l, expert, slice);
        a.scales = (const uint16_t *)(const void *)(a.panel + scales_at);
        a.y = tiles.y;
        c->cpu->k->linear(&a);
        return tiles.y;
    }
    oct_fold fold;
    oct_fold_begin(&fold, tiles.y, n_rows * OCT_Q8_PANEL, c->cpu->k->add);
    for (int64_t s = 0; s < l->n_slices; s++) {
        a.panel = data + oct_q8_unit_offset(l, expert, s);
        a.scales = (const uint16_t *)(const void *)(a.panel + scales_at);
        a.first_group = s * l->unit_groups;
        a.y = oct_fold_next(&fold);
        c->cpu->k->linear(&a);
        oct_fold_push(&fold);
    }
    return oct_fold_end(&fold);
}

static const uint16_t *table_row(const oct_table *t, int64_t row)
{
    int64_t slice = row / t->slice_rows;
    return t->data + (slice * t->slice_rows_pad + row % t->slice_rows) * t->cols;
}

static void op_embed(const oct_cpu_run *c, const oct_node *n)
{
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++)
        c->cpu->k->embed(table_row(n->table, c->run->token[r]), n->out->cols, n->scale,
                         row_of(c, n->out, r));
}

/* NORM and ADD_NORM */
static void op_norm(const oct_cpu_run *c, const oct_node *n)
{
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++)
        c->cpu->k->rms_norm(row_of(c, n->in[0], r), n->w[0]->data, n->out->cols, n->eps,
                            n->op == OCT_OP_ADD_NORM, row_of(c, n->out, r));
}

static void op_quantise(const oct_cpu_run *c, const oct_node *n)
{
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    unsigned char *out = oct_cpu_data(c, n->out);
    for (int64_t r = lo; r < hi; r++)
        c->cpu->k->act_quantise(&n->out->act, row_of(c, n->in[0], r),
                                out + (size_t)r * n->out->row_bytes);
}

static void op_linear(const oct_cpu_run *c, const oct_node *n)
{
    const oct_tensor *act = n->in[0], *w = n->w[0];
    const oct_q8_layout *l = w->q8;
    const unsigned char *x = oct_cpu_data(c, act);
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    int64_t n_rows = oct_cpu_rows(c, act);
    int64_t lo, hi, slices = l->split == OCT_SPLIT_OUT ? l->n_slices : 1;
    my_range(c, slices * l->n_panels, &lo, &hi);
    for (int64_t task = lo; task < hi; task++) {
        int64_t slice = task / l->n_panels, panel = task % l->n_panels;
        int64_t at = panel * OCT_Q8_PANEL;
        int64_t valid = l->unit_out - at < OCT_Q8_PANEL ? l->unit_out - at : OCT_Q8_PANEL;
        for (int64_t r0 = 0; r0 < n_rows; r0 += OCT_ROW_BLOCK) {
            int64_t rows = n_rows - r0 < OCT_ROW_BLOCK ? n_rows - r0 : OCT_ROW_BLOCK;
            for (int64_t r = 0; r < rows; r++)
                tiles.rows[r] = x + (size_t)(r0 + r) * act->row_bytes;
            const float *y = oct_cpu_panel(c, w, &act->act, 0, slice, panel, rows);
            for (int64_t r = 0; r < rows; r++)
                memcpy(row_of(c, n->out, r0 + r) + slice * l->unit_out + at, y + r * OCT_Q8_PANEL,
                       (size_t)valid * sizeof *y);
        }
    }
    if (c->thread == 0 && n_rows > 0)
        c->run->bytes_read += (uint64_t)l->n_slices * l->unit_bytes;
}

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

static void op_rope_store(const oct_cpu_run *c, const oct_node *n)
{
    const oct_attn_shape *a = n->attn;
    const oct_kernels *k = c->cpu->k;
    oct_kv_cache *kv = c->run->kv;
    int64_t lo, hi, P = a->head_dim, saturated = 0;
    my_range(c, oct_cpu_rows(c, n->out) * a->n_kv_heads, &lo, &hi);
    for (int64_t task = lo; task < hi; task++) {
        int64_t r = task / a->n_kv_heads, head = task % a->n_kv_heads;
        int64_t pos = c->run->pos[r], seq = c->run->seq[r];
        const float *cos = a->cos + pos * (P / 2), *sin = a->sin + pos * (P / 2);
        head_place at = place_of(a, head);
        float *row = row_of(c, n->out, r);
        for (int64_t j = 0; j < at.n_q; j++)
            k->rope(row + at.q + j * P, cos, sin, P);
        k->rope(row + at.k, cos, sin, P);
        unsigned char *key = oct_kv_cache_k(kv, n->layer, seq, head, pos) +
                             (size_t)(pos % OCT_KV_LANES) * kv->elem_bytes;
        saturated += k->kv_store(row + at.k, P, kv->type, key, OCT_KV_LANES);
        saturated += k->kv_store(row + at.v, P, kv->type,
                                 oct_kv_cache_v(kv, n->layer, seq, head, pos), 1);
    }
    if (saturated)
        kv->saturated += saturated;
}

/* One token against one KV head: blocks of positions in ascending order. */
static void attend(const oct_cpu_run *c, const oct_node *n, int64_t row, int64_t head)
{
    const oct_attn_shape *a = n->attn;
    const oct_kv_cache *kv = c->run->kv;
    head_place at = place_of(a, head);
    float *o = (float *)(void *)c->scratch, *l = o + at.n_q * kv->v_stride;
    memset(o, 0, (size_t)(at.n_q * (kv->v_stride + 1)) * sizeof *o);
    oct_attn_args args = {.q = row_of(c, n->in[0], row) + at.q,
                          .type = kv->type,
                          .n_heads = at.n_q,
                          .head_dim = a->head_dim,
                          .v_stride = kv->v_stride,
                          .scale = a->scale,
                          .cap = a->cap,
                          .o = o,
                          .l = l};
    int64_t token = token_of(c, n->in[0], row), n_pos = c->run->pos[token] + 1;
    int64_t seq = c->run->seq[token];
    for (int64_t p = 0; p < n_pos; p += OCT_ATTN_BLOCK) {
        args.k = oct_kv_cache_k(kv, n->layer, seq, head, p);
        args.v = oct_kv_cache_v(kv, n->layer, seq, head, p);
        args.n_pos = n_pos - p < OCT_ATTN_BLOCK ? n_pos - p : OCT_ATTN_BLOCK;
        c->cpu->k->attn(&args);
    }
    float *out = row_of(c, n->out, row) + head * at.n_q * a->head_dim;
    for (int64_t h = 0; h < at.n_q; h++)
        for (int64_t i = 0; i < a->head_dim; i++)
            out[h * a->head_dim + i] = o[h * kv->v_stride + i] / l[h];
}

static void op_attention(const oct_cpu_run *c, const oct_node *n)
{
    int64_t rows = oct_cpu_rows(c, n->in[0]), tasks = rows * n->attn->n_kv_heads;
    for (int64_t t = c->thread; t < tasks; t += c->n_threads)
        attend(c, n, t / n->attn->n_kv_heads, t % n->attn->n_kv_heads);
    if (c->thread == 0)
        for (int64_t r = 0; r < rows; r++)
            c->run->bytes_read += (uint64_t)((c->run->pos[token_of(c, n->in[0], r)] + 1) * n->attn->n_kv_heads *
                                             n->attn->head_dim * 2) * c->run->kv->elem_bytes;
}

static void op_route(const oct_cpu_run *c, const oct_node *n)
{
    const oct_tensor *w = n->w[0];
    float *logits = (float *)(void *)c->scratch;
    unsigned char *out = oct_cpu_data(c, n->out);
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        const float *x = row_of(c, n->in[0], r);
        oct_dot_args dot = {.w = w->data, .w_stride = w->cols, .rows = &x, .n_rows = 1,
                            .n_out = w->rows, .n_in = w->cols, .scale = 1.0f, .y = logits,
                            .y_stride = w->rows};
        c->cpu->k->dot_f32(&dot);
        int32_t *expert = (int32_t *)(void *)(out + (size_t)r * n->out->row_bytes);
        oct_route(logits, w->rows, n->n_used, expert, (float *)(void *)(expert + n->n_used));
    }
}

static void op_combine(const oct_cpu_run *c, const oct_node *n)
{
    const unsigned char *routes = oct_cpu_data(c, n->in[1]);
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        float *out = row_of(c, n->out, r);
        const int32_t *expert = (const int32_t *)(const void *)(routes + (size_t)r * n->in[1]->row_bytes);
        const float *gate = (const float *)(const void *)(expert + n->n_used);
        memset(out, 0, (size_t)n->out->cols * sizeof *out);
        for (int64_t s = 0; s < n->n_used; s++)
            c->cpu->k->add_scaled(row_of(c, n->in[0], r * n->n_used + s), gate[s], n->out->cols, out);
    }
}

static void op_select(const oct_cpu_run *c, const oct_node *n)
{
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t i = lo; i < hi; i++)
        memcpy(row_of(c, n->out, i), row_of(c, n->in[0], c->run->out_row[i]),
               (size_t)n->out->cols * sizeof(float));
}

enum { HEAD_ROWS = 64 /* rows of the table that one task takes */ };

static void head_blas(const oct_cpu_run *c, const oct_node *n, int64_t v, int64_t count, float *y)
{
    int64_t d = n->table->cols;
    float *w = (float *)(void *)(c->scratch + oct_cpu_tiles_bytes());
    const uint16_t *rows = table_row(n->table, v);
    for (int64_t i = 0; i < count * d; i++)
        w[i] = oct_f32_of_bf16(rows[i]);
    oct_blas_gemm_nt(c->cpu->blas, (int)c->run->n_out, (int)count, (int)d, n->scale,
                     row_of(c, n->in[0], 0), w, y, (int)n->table->n_rows);
}

static void head_rows(const oct_cpu_run *c, const oct_node *n, int64_t v, int64_t count)
{
    const oct_table *t = n->table;
    float *y = c->run->logits + v;
    if (c->cpu->blas && c->run->n_out >= 8) {
        head_blas(c, n, v, count, y);
        return;
    }
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    oct_dot_args dot = {.w = table_row(t, v), .w_stride = t->cols,
                        .rows = (const float *const *)tiles.rows, .n_out = count, .n_in = t->cols,
                        .scale = n->scale, .y_stride = t->n_rows};
    for (int64_t r0 = 0; r0 < c->run->n_out; r0 += OCT_ROW_BLOCK) {
        dot.n_rows = c->run->n_out - r0 < OCT_ROW_BLOCK ? c->run->n_out - r0 : OCT_ROW_BLOCK;
        for (int64_t r = 0; r < dot.n_rows; r++)
            tiles.rows[r] = row_of(c, n->in[0], r0 + r);
        dot.y = y + r0 * t->n_rows;
        c->cpu->k->dot_bf16(&dot);
    }
}

static void op_head(const oct_cpu_run *c, const oct_node *n)
{
    const oct_table *t = n->table;
    int64_t lo, hi;
    if (c->run->n_out == 0)
        return;
    my_range(c, t->n_rows, &lo, &hi);
    for (int64_t v = lo; v < hi;) {
        int64_t count = HEAD_ROWS, slice_left = t->slice_rows - v % t->slice_rows;
        count = count < hi - v ? count : hi - v;
        count = count < slice_left ? count : slice_left;
        head_rows(c, n, v, count);
        v += count;
    }
    if (c->thread == 0)
        c->run->bytes_read += (uint64_t)(t->n_rows * t->cols) * sizeof(uint16_t);
}

oct_cpu_op_fn *const oct_cpu_ops[OCT_OP_COUNT] = {
    [OCT_OP_EMBED] = op_embed,         [OCT_OP_NORM] = op_norm,
    [OCT_OP_ADD_NORM] = op_norm,       [OCT_OP_QUANTISE] = op_quantise,
    [OCT_OP_LINEAR] = op_linear,       [OCT_OP_ROPE_STORE] = op_rope_store,
    [OCT_OP_ATTENTION] = op_attention, [OCT_OP_ROUTE] = op_route,
    [OCT_OP_EXPERTS] = oct_cpu_experts, [OCT_OP_COMBINE] = op_combine,
    [OCT_OP_SELECT] = op_select,       [OCT_OP_HEAD] = op_head,
};
