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

float *oct_cpu_row(const oct_cpu_run *c, const oct_tensor *t, int64_t row)
{
    return (float *)oct_cpu_data(c, t) + row * t->cols;
}

static void my_range(const oct_cpu_run *c, int64_t n, int64_t *first, int64_t *end)
{
    oct_team_range(n, c->thread, c->n_threads, first, end);
}

int64_t oct_cpu_panel_run(const oct_cpu_run *c, const oct_weight_layout *l, int64_t n_units,
                          int64_t n_rows)
{
    enum { MANY_ROWS = 16, TASKS_PER_THREAD = 4 };
    int64_t enough = n_units * l->n_panels / (TASKS_PER_THREAD * c->domain_threads);
    int64_t run = n_rows < MANY_ROWS ? 1 : c->cpu->k->panels;
    run = run < enough ? run : enough;
    return run > 1 ? run : 1;
}

static size_t tile_floats(const oct_cpu *cpu)
{
    return (size_t)(OCT_FOLD_LEVELS * OCT_ROW_BLOCK * OCT_PANEL * cpu->k->panels);
}

size_t oct_cpu_tiles_bytes(const oct_cpu *cpu)
{
    return tile_floats(cpu) * sizeof(float) + OCT_ROW_BLOCK * sizeof(void *);
}

oct_cpu_tiles oct_cpu_tiles_at(const oct_cpu_run *c)
{
    float *y = (float *)(void *)c->scratch;
    return (oct_cpu_tiles){y, (const void **)(void *)(y + tile_floats(c->cpu))};
}

float *oct_cpu_panels(const oct_cpu_run *c, const oct_weight *w, const oct_act_layout *act,
                      int64_t expert, int64_t slice, int64_t panel, int64_t n_panels,
                      int64_t n_rows)
{
    const oct_weight_layout *l = &w->layout;
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    oct_linear_args a = {.w = l,
                         .n_panels = n_panels,
                         .ahead = c->cpu->stream_ahead,
                         .act = act,
                         .rows = tiles.rows,
                         .n_rows = n_rows};
    const unsigned char *data = (const unsigned char *)w->data + (size_t)panel * l->panel_bytes;
    const uint16_t *scales = w->scales + panel * l->unit_groups * OCT_PANEL;
    if (l->split == OCT_SPLIT_OUT) {
        a.panel = data + oct_weight_unit_offset(l, expert, slice);
        a.scales = scales + oct_weight_scale_offset(l, expert, slice) / sizeof *scales;
        a.y = tiles.y;
        c->cpu->k->linear(&a);
        return tiles.y;
    }
    oct_fold fold;
    oct_fold_begin(&fold, tiles.y, n_panels * n_rows * OCT_PANEL, c->cpu->k->add);
    int64_t first = oct_cpu_first_slice(c, w->kind, c->domain);
    int64_t end = oct_cpu_first_slice(c, w->kind, c->domain + 1);
    for (int64_t s = first; s < end; s++) {
        bool last = s + 1 == end; /* then the first slice of the next panel is likely to follow */
        a.panel = data + oct_weight_unit_offset(l, expert, s);
        a.next = data + oct_weight_unit_offset(l, expert, last ? first : s + 1) +
                 (last ? (size_t)n_panels * l->panel_bytes : 0);
        a.scales = scales + oct_weight_scale_offset(l, expert, s) / sizeof *scales;
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

/* Rows of the vocabulary in the slices of domains lo..hi-1. */
static void table_rows(const oct_cpu_run *c, const oct_table *t, int lo, int hi, int64_t *first,
                       int64_t *end)
{
    *first = oct_cpu_first_slice(c, OCT_SHARD_OF_VOCABULARY, lo) * t->slice_rows;
    *end = oct_cpu_first_slice(c, OCT_SHARD_OF_VOCABULARY, hi) * t->slice_rows;
    *first = *first < t->n_rows ? *first : t->n_rows;
    *end = *end < t->n_rows ? *end : t->n_rows;
}

static void op_embed(oct_cpu_run *c, const oct_node *n)
{
    int64_t lo, hi, first, end;
    table_rows(c, n->table, 0, c->cpu->n_domains, &first, &end);
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        float *out = oct_cpu_row(c, n->out, r);
        int64_t token = c->run->token[r];
        if (token >= first && token < end)
            c->cpu->k->embed(table_row(n->table, token), n->out->cols, n->scale, out);
        else /* another rank has it */
            memset(out, 0, (size_t)n->out->cols * sizeof *out);
    }
}

/* NORM and ADD_NORM */
static void op_norm(oct_cpu_run *c, const oct_node *n)
{
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++)
        c->cpu->k->rms_norm(oct_cpu_row(c, n->in[0], r), n->plain->data, n->out->cols, n->eps,
                            n->op == OCT_OP_ADD_NORM, oct_cpu_row(c, n->out, r));
}

static void op_quantise(oct_cpu_run *c, const oct_node *n)
{
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    unsigned char *out = oct_cpu_data(c, n->out);
    for (int64_t r = lo; r < hi; r++)
        c->cpu->k->act_quantise(&n->out->act, oct_cpu_row(c, n->in[0], r),
                                out + (size_t)r * n->out->row_bytes);
}

typedef struct linear_job {
    const oct_node *n;
    int64_t n_rows;
    int64_t run;    /* panels of a task */
    float *parts;   /* several domains and inputs split: see oct_cpu_join; else the output */
    int64_t stride; /* from one domain's part to the next; else 0 */
} linear_job;

/* A run of panels. Outputs split: group is a slice of the domain. */
static void linear_task(oct_cpu_run *c, const void *job, int64_t group, int64_t task)
{
    const linear_job *j = job;
    const oct_tensor *act = j->n->in[0];
    const oct_weight *w = j->n->w[0];
    const oct_weight_layout *l = &w->layout;
    const unsigned char *x = oct_cpu_data(c, act);
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    int64_t slice = oct_cpu_first_slice(c, w->kind, c->domain) + group, panel = task * j->run;
    int64_t n_panels = l->n_panels - panel < j->run ? l->n_panels - panel : j->run;
    int64_t at = panel * OCT_PANEL;
    float *out = j->parts + c->domain * j->stride + at +
                 (l->split == OCT_SPLIT_OUT ? slice * l->unit_out : 0);
    for (int64_t r0 = 0; r0 < j->n_rows; r0 += OCT_ROW_BLOCK) {
        int64_t rows = j->n_rows - r0 < OCT_ROW_BLOCK ? j->n_rows - r0 : OCT_ROW_BLOCK;
        for (int64_t r = 0; r < rows; r++)
            tiles.rows[r] = x + (size_t)(r0 + r) * act->row_bytes;
        const float *y = oct_cpu_panels(c, w, &act->act, 0, slice, panel, n_panels, rows);
        for (int64_t i = 0; i < n_panels * rows; i++) {
            int64_t first = i / rows * OCT_PANEL, left = l->unit_out - at - first;
            memcpy(out + (r0 + i % rows) * l->n_out + first, y + i * OCT_PANEL,
                   (size_t)(left < OCT_PANEL ? left : OCT_PANEL) * sizeof *y);
        }
    }
}

static void op_linear(oct_cpu_run *c, const oct_node *n)
{
    const oct_weight *w = n->w[0];
    const oct_weight_layout *l = &w->layout;
    linear_job j = {.n = n, .n_rows = oct_cpu_rows(c, n->in[0]), .parts = oct_cpu_data(c, n->out)};
    bool join = l->split == OCT_SPLIT_IN && c->cpu->n_domains > 1;
    if (join) {
        j.parts = (float *)(void *)(c->plan->buffer + n->temp_offset);
        j.stride = n->out->rows * l->n_out;
    }
    oct_cpu_work groups[OCT_WEIGHT_MAX_SLICES];
    int64_t n_groups = l->split == OCT_SPLIT_OUT ? oct_cpu_first_slice(c, w->kind, c->domain + 1) -
                                                       oct_cpu_first_slice(c, w->kind, c->domain)
                                                 : 1;
    j.run = oct_cpu_panel_run(c, l, n_groups, j.n_rows);
    for (int64_t g = 0; g < n_groups; g++)
        groups[g] = (oct_cpu_work){j.n_rows > 0 ? (l->n_panels + j.run - 1) / j.run : 0, 1};
    oct_cpu_share(c, groups, n_groups, linear_task, &j);
    if (join) {
        oct_team_barrier(c->cpu->team);
        oct_cpu_join(c, j.parts, j.stride, j.n_rows, l->n_out, oct_cpu_data(c, n->out));
    }
    if (c->thread == 0 && j.n_rows > 0)
        c->run->bytes_read += oct_cpu_read_bytes(c, w);
}

static void op_route(oct_cpu_run *c, const oct_node *n)
{
    const oct_tensor *w = n->plain;
    float *logits = (float *)(void *)c->scratch;
    unsigned char *out = oct_cpu_data(c, n->out);
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        const float *x = oct_cpu_row(c, n->in[0], r);
        oct_dot_args dot = {.w = w->data,
                            .w_stride = w->cols,
                            .rows = &x,
                            .n_rows = 1,
                            .n_out = w->rows,
                            .n_in = w->cols,
                            .scale = 1.0f,
                            .y = logits,
                            .y_stride = w->rows};
        c->cpu->k->dot_f32(&dot);
        int32_t *expert = (int32_t *)(void *)(out + (size_t)r * n->out->row_bytes);
        oct_route(logits, w->rows, n->n_used, expert, (float *)(void *)(expert + n->n_used));
    }
}

static void op_combine(oct_cpu_run *c, const oct_node *n)
{
    const unsigned char *routes = oct_cpu_data(c, n->in[1]);
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        float *out = oct_cpu_row(c, n->out, r);
        const int32_t *expert =
            (const int32_t *)(const void *)(routes + (size_t)r * n->in[1]->row_bytes);
        const float *gate = (const float *)(const void *)(expert + n->n_used);
        memset(out, 0, (size_t)n->out->cols * sizeof *out);
        for (int64_t s = 0; s < n->n_used; s++)
            c->cpu->k->add_scaled(oct_cpu_row(c, n->in[0], r * n->n_used + s), gate[s],
                                  n->out->cols, out);
    }
}

static void op_select(oct_cpu_run *c, const oct_node *n)
{
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t i = lo; i < hi; i++)
        memcpy(oct_cpu_row(c, n->out, i), oct_cpu_row(c, n->in[0], c->run->out_row[i]),
               (size_t)n->out->cols * sizeof(float));
}

enum { HEAD_ROWS = 64 /* rows of the table that one task takes */ };

static void head_blas(const oct_cpu_run *c, const oct_node *n, int64_t v, int64_t count, float *y)
{
    int64_t d = n->table->cols;
    float *w = (float *)(void *)(c->scratch + oct_cpu_tiles_bytes(c->cpu));
    const uint16_t *rows = table_row(n->table, v);
    for (int64_t i = 0; i < count * d; i++)
        w[i] = oct_f32_of_bf16(rows[i]);
    oct_blas_gemm_nt(c->cpu->blas, (int)c->run->n_out, (int)count, (int)d, n->scale,
                     oct_cpu_row(c, n->in[0], 0), w, y, (int)n->table->n_rows);
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
    oct_dot_args dot = {.w = table_row(t, v),
                        .w_stride = t->cols,
                        .rows = (const float *const *)tiles.rows,
                        .n_out = count,
                        .n_in = t->cols,
                        .scale = n->scale,
                        .y_stride = t->n_rows};
    for (int64_t r0 = 0; r0 < c->run->n_out; r0 += OCT_ROW_BLOCK) {
        dot.n_rows = c->run->n_out - r0 < OCT_ROW_BLOCK ? c->run->n_out - r0 : OCT_ROW_BLOCK;
        for (int64_t r = 0; r < dot.n_rows; r++)
            tiles.rows[r] = oct_cpu_row(c, n->in[0], r0 + r);
        dot.y = y + r0 * t->n_rows;
        c->cpu->k->dot_bf16(&dot);
    }
}

/* Vocabulary rows are shared within the domain that has their slices. */
static void op_head(oct_cpu_run *c, const oct_node *n)
{
    const oct_table *t = n->table;
    if (c->run->n_out == 0)
        return;
    int64_t lo, hi, first, end;
    table_rows(c, t, c->domain, c->domain + 1, &first, &end);
    oct_team_range(end - first, c->domain_thread, c->domain_threads, &lo, &hi);
    for (int64_t v = first + lo; v < first + hi;) {
        int64_t count = HEAD_ROWS, slice_left = t->slice_rows - v % t->slice_rows;
        count = count < first + hi - v ? count : first + hi - v;
        count = count < slice_left ? count : slice_left;
        head_rows(c, n, v, count);
        v += count;
    }
    table_rows(c, t, 0, c->cpu->n_domains, &first, &end);
    if (c->thread == 0)
        c->run->bytes_read += (uint64_t)((end - first) * t->cols) * sizeof(uint16_t);
}

oct_cpu_op_fn *const oct_cpu_ops[OCT_OP_COUNT] = {
    [OCT_OP_EMBED] = op_embed,
    [OCT_OP_NORM] = op_norm,
    [OCT_OP_ADD_NORM] = op_norm,
    [OCT_OP_QUANTISE] = op_quantise,
    [OCT_OP_LINEAR] = op_linear,
    [OCT_OP_ROPE_STORE] = oct_cpu_rope_store,
    [OCT_OP_ATTENTION] = oct_cpu_attention,
    [OCT_OP_ROUTE] = op_route,
    [OCT_OP_EXPERTS] = oct_cpu_experts,
    [OCT_OP_COMBINE] = op_combine,
    [OCT_OP_SELECT] = op_select,
    [OCT_OP_HEAD] = op_head,
};
