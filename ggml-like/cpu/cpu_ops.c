/* cpu_ops.c: one function per operation. Every thread of the team calls it with the same node; each
 * computes outputs that no other touches, so that results never depend on how work was shared. The
 * backend puts a barrier behind every node. */
#include <string.h>

#include "cpu_impl.h"
#include "f16.h"

void *oct_cpu_data(const oct_cpu_run *c, const oct_tensor *t)
{
    return c->buffer + oct_plan_offset(c->plan, c->place, t);
}

void *oct_cpu_temp(const oct_cpu_run *c, const oct_step *s)
{
    return c->buffer + s->temp_offset;
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
    enum { MANY_ROWS = 3, TASKS_PER_THREAD = 4 };
    int64_t enough = n_units * l->n_panels / (TASKS_PER_THREAD * c->domain_threads);
    int64_t run = n_rows < MANY_ROWS ? 1 : c->cpu->k->panels;
    run = run < enough ? run : enough;
    return run > 1 ? run : 1;
}

static size_t tile_floats(const oct_cpu_numbers *n)
{
    return (size_t)n->k->panels * OCT_FOLD_LEVELS * OCT_ROW_BLOCK * OCT_PANEL;
}

size_t oct_cpu_tiles_bytes(const oct_cpu_numbers *n)
{
    return tile_floats(n) * sizeof(float) + OCT_ROW_BLOCK * sizeof(void *);
}

oct_cpu_tiles oct_cpu_tiles_at(const oct_cpu_run *c)
{
    float *y = (float *)(void *)c->scratch;
    return (oct_cpu_tiles){y, (const void **)(void *)(y + tile_floats(&c->cpu->n))};
}

oct_act_layout oct_cpu_act(const oct_node *n, int which)
{
    oct_act_layout act;
    const oct_weight_layout *l = &n->w[which]->layout;
    oct_act_layout_init(&act, l->n_in, l->n_groups, n->digits);
    return act;
}

void oct_cpu_quantise(const oct_cpu_run *c, const oct_tensor *x, const oct_act_layout *act,
                      unsigned char *to)
{
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, x), &lo, &hi);
    for (int64_t r = lo; r < hi; r++)
        c->cpu->k->act_quantise(act, oct_cpu_row(c, x, r), to + (size_t)r * act->bytes);
}

float *oct_cpu_panels(const oct_cpu_run *c, const oct_step *s, int which, const oct_act_layout *act,
                      int64_t expert, int64_t slice, int64_t panel, int64_t n_panels,
                      int64_t n_rows)
{
    const oct_weight *w = s->node->w[which];
    const oct_weight_layout *l = &w->layout;
    oct_k_linear_fn *linear = oct_kernels_linear(c->cpu->k, l->type);
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    oct_linear_args a = {.w = l,
                         .n_panels = n_panels,
                         .ahead = c->cpu->stream_ahead,
                         .act = act,
                         .rows = tiles.rows,
                         .n_rows = n_rows};
    const unsigned char *data = s->at[2 * which];
    const uint16_t *scales = s->at[2 * which + 1];
    data += (size_t)panel * l->panel_bytes;
    scales += panel * l->unit_groups * OCT_PANEL;
    if (l->split == OCT_SPLIT_OUT) {
        a.panel = data + oct_weight_unit_offset(l, expert, slice);
        a.scales = scales + oct_weight_scale_offset(l, expert, slice) / sizeof *scales;
        a.y = tiles.y;
        linear(&a);
        return tiles.y;
    }
    oct_fold fold;
    oct_fold_begin(&fold, tiles.y, n_panels * n_rows * OCT_PANEL, c->cpu->k->add);
    int64_t first = oct_cpu_first_slice(c, w->kind, c->domain);
    int64_t end = oct_cpu_first_slice(c, w->kind, c->domain + 1);
    for (slice = first; slice < end; slice++) {
        bool last =
            slice + 1 == end; /* then the first slice of the next panel is likely to follow */
        a.panel = data + oct_weight_unit_offset(l, expert, slice);
        a.next = data + oct_weight_unit_offset(l, expert, last ? first : slice + 1) +
                 (last ? (size_t)n_panels * l->panel_bytes : 0);
        a.scales = scales + oct_weight_scale_offset(l, expert, slice) / sizeof *scales;
        a.first_group = slice * l->unit_groups;
        a.y = oct_fold_next(&fold);
        linear(&a);
        oct_fold_push(&fold);
    }
    return oct_fold_end(&fold);
}

static const uint16_t *table_row(const oct_step *s, int64_t row)
{
    const oct_table *t = s->node->table;
    const uint16_t *data = s->at[0];
    int64_t slice = row / t->slice_rows;
    return data + (slice * t->slice_rows_pad + row % t->slice_rows) * t->cols;
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

static void op_embed(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    int64_t lo, hi, first, end;
    table_rows(c, n->table, 0, c->cpu->n.n_domains, &first, &end);
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        float *out = oct_cpu_row(c, n->out, r);
        int64_t token = c->run->token[r];
        if (token >= first && token < end)
            c->cpu->k->embed(table_row(s, token), n->out->cols, n->scale, out);
        else /* another rank has it */
            memset(out, 0, (size_t)n->out->cols * sizeof *out);
    }
}

/* NORM and ADD_NORM */
static void op_norm(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++)
        c->cpu->k->rms_norm(oct_cpu_row(c, n->in[0], r), s->at[0], n->out->cols, n->eps,
                            n->op == OCT_OP_ADD_NORM, oct_cpu_row(c, n->out, r));
}

typedef struct linear_job {
    const oct_step *s;
    oct_act_layout act;
    const unsigned char *x; /* [n_rows] rounded inputs */
    int64_t n_rows;
    int64_t run;    /* panels of a task */
    float *parts;   /* several domains and inputs split: see oct_cpu_join; else the output */
    int64_t stride; /* from one domain's part to the next; else 0 */
} linear_job;

/* A run of panels. Outputs split: group is a slice of the domain. */
static void linear_task(oct_cpu_run *c, const void *job, int64_t group, int64_t task)
{
    const linear_job *j = job;
    const oct_weight *w = j->s->node->w[0];
    const oct_weight_layout *l = &w->layout;
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    int64_t slice = oct_cpu_first_slice(c, w->kind, c->domain) + group, panel = task * j->run;
    int64_t n_panels = l->n_panels - panel < j->run ? l->n_panels - panel : j->run;
    int64_t at = panel * OCT_PANEL;
    float *out = j->parts + c->domain * j->stride + at +
                 (l->split == OCT_SPLIT_OUT ? slice * l->unit_out : 0);
    for (int64_t r0 = 0; r0 < j->n_rows; r0 += OCT_ROW_BLOCK) {
        int64_t rows = j->n_rows - r0 < OCT_ROW_BLOCK ? j->n_rows - r0 : OCT_ROW_BLOCK;
        for (int64_t r = 0; r < rows; r++)
            tiles.rows[r] = j->x + (size_t)(r0 + r) * j->act.bytes;
        const float *y = oct_cpu_panels(c, j->s, 0, &j->act, 0, slice, panel, n_panels, rows);
        for (int64_t i = 0; i < n_panels * rows; i++) {
            int64_t first = i / rows * OCT_PANEL, left = l->unit_out - at - first;
            memcpy(out + (r0 + i % rows) * l->n_out + first, y + i * OCT_PANEL,
                   (size_t)(left < OCT_PANEL ? left : OCT_PANEL) * sizeof *y);
        }
    }
}

/* Temporary memory of LINEAR: rounded rows; behind them, with several domains, partial sums. */
static size_t linear_rows_bytes(const oct_node *n, int64_t rows)
{
    return (size_t)rows * oct_cpu_act(n, 0).bytes;
}

static bool has_parts(const oct_cpu_numbers *numbers, const oct_node *n)
{
    return n->w[0]->layout.split == OCT_SPLIT_IN && numbers->n_domains > 1;
}

size_t oct_cpu_linear_temp(const oct_cpu_numbers *numbers, const oct_node *n, int64_t rows)
{
    size_t parts = has_parts(numbers, n) ? (size_t)(numbers->n_domains * rows) : 0;
    return linear_rows_bytes(n, rows) + parts * (size_t)n->w[0]->layout.n_out * sizeof(float);
}

static void op_linear(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    const oct_weight *w = n->w[0];
    const oct_weight_layout *l = &w->layout;
    unsigned char *rows = oct_cpu_temp(c, s);
    linear_job j = {.s = s,
                    .act = oct_cpu_act(n, 0),
                    .x = rows,
                    .n_rows = oct_cpu_rows(c, n->in[0]),
                    .parts = oct_cpu_data(c, n->out)};
    bool join = has_parts(&c->cpu->n, n);
    if (join) {
        j.parts = (float *)(void *)(rows + linear_rows_bytes(n, c->plan->graph->rows));
        j.stride = n->out->rows * l->n_out;
    }
    oct_cpu_quantise(c, n->in[0], &j.act, rows);
    oct_team_barrier(c->cpu->team);
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
        c->run->bytes_read += oct_shard_read_bytes(&c->cpu->n.shard, w);
}

static void op_route(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    const oct_plain *w = n->plain;
    float *logits = (float *)(void *)c->scratch;
    unsigned char *out = oct_cpu_data(c, n->out);
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        const float *x = oct_cpu_row(c, n->in[0], r);
        oct_dot_args dot = {.w = s->at[0],
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

static void op_combine(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    const unsigned char *routes = oct_cpu_data(c, n->in[1]);
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        float *out = oct_cpu_row(c, n->out, r);
        const int32_t *expert =
            (const int32_t *)(const void *)(routes + (size_t)r * n->in[1]->row_bytes);
        const float *gate = (const float *)(const void *)(expert + n->n_used);
        memset(out, 0, (size_t)n->out->cols * sizeof *out);
        for (int64_t k = 0; k < n->n_used; k++)
            c->cpu->k->add_scaled(oct_cpu_row(c, n->in[0], r * n->n_used + k), gate[k],
                                  n->out->cols, out);
    }
}

static void op_select(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    int64_t lo, hi;
    my_range(c, oct_cpu_rows(c, n->out), &lo, &hi);
    for (int64_t i = lo; i < hi; i++)
        memcpy(oct_cpu_row(c, n->out, i), oct_cpu_row(c, n->in[0], c->run->out_row[i]),
               (size_t)n->out->cols * sizeof(float));
}

static void head_blas(const oct_cpu_run *c, const oct_step *s, int64_t v, int64_t count, float *y)
{
    int64_t d = s->node->table->cols;
    float *w = (float *)(void *)(c->scratch + oct_cpu_tiles_bytes(&c->cpu->n));
    const uint16_t *rows = table_row(s, v);
    for (int64_t i = 0; i < count * d; i++)
        w[i] = oct_f32_of_bf16(rows[i]);
    oct_blas_gemm_nt(c->cpu->blas, (int)c->run->n_out, (int)count, (int)d, s->node->scale,
                     oct_cpu_row(c, s->node->in[0], 0), w, y, (int)c->run->logits_stride);
}

static void head_rows(const oct_cpu_run *c, const oct_step *s, int64_t v, int64_t count)
{
    const oct_node *n = s->node;
    float *y = c->run->logits + v - c->run->first_logit;
    if (c->cpu->blas && c->run->n_out >= 8) {
        head_blas(c, s, v, count, y);
        return;
    }
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    oct_dot_args dot = {.w = table_row(s, v),
                        .w_stride = n->table->cols,
                        .rows = (const float *const *)tiles.rows,
                        .n_out = count,
                        .n_in = n->table->cols,
                        .scale = n->scale,
                        .y_stride = c->run->logits_stride};
    for (int64_t r0 = 0; r0 < c->run->n_out; r0 += OCT_ROW_BLOCK) {
        dot.n_rows = c->run->n_out - r0 < OCT_ROW_BLOCK ? c->run->n_out - r0 : OCT_ROW_BLOCK;
        for (int64_t r = 0; r < dot.n_rows; r++)
            tiles.rows[r] = oct_cpu_row(c, n->in[0], r0 + r);
        dot.y = y + r0 * c->run->logits_stride;
        c->cpu->k->dot_bf16(&dot);
    }
}

/* Vocabulary rows are shared within the domain that has their slices. */
static void op_head(oct_cpu_run *c, const oct_step *s)
{
    const oct_table *t = s->node->table;
    if (c->run->n_out == 0)
        return;
    int64_t lo, hi, first, end;
    table_rows(c, t, c->domain, c->domain + 1, &first, &end);
    oct_team_range(end - first, c->domain_thread, c->domain_threads, &lo, &hi);
    for (int64_t v = first + lo; v < first + hi;) {
        int64_t count = OCT_HEAD_ROWS, slice_left = t->slice_rows - v % t->slice_rows;
        count = count < first + hi - v ? count : first + hi - v;
        count = count < slice_left ? count : slice_left;
        head_rows(c, s, v, count);
        v += count;
    }
    table_rows(c, t, 0, c->cpu->n.n_domains, &first, &end);
    if (c->thread == 0)
        c->run->bytes_read += (uint64_t)((end - first) * t->cols) * sizeof(uint16_t);
}

oct_cpu_op_fn *const oct_cpu_ops[OCT_OP_COUNT] = {
    [OCT_OP_EMBED] = op_embed,
    [OCT_OP_NORM] = op_norm,
    [OCT_OP_ADD_NORM] = op_norm,
    [OCT_OP_LINEAR] = op_linear,
    [OCT_OP_ROPE_STORE] = oct_cpu_rope_store,
    [OCT_OP_ATTENTION] = oct_cpu_attention,
    [OCT_OP_ROUTE] = op_route,
    [OCT_OP_EXPERTS] = oct_cpu_experts,
    [OCT_OP_COMBINE] = op_combine,
    [OCT_OP_SELECT] = op_select,
    [OCT_OP_HEAD] = op_head,
};
