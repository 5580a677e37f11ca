/* cpu_experts.c: the experts of a layer. Rows are sorted by expert, and experts are taken in waves
 * that fit the temporary memory; in decode that is one wave of all. Every wave has three phases:
 *   1. panels of gate and up -> gelu(gate) * up, f32
 *   2. its rows are quantised
 *   3. panels of down -> slots, the slices folded; with several domains, one partial sum each
 * The next wave's first phase may run beside the third: they share no memory. */
#include <string.h>

#include "cpu_impl.h"

enum {
    MIN_WAVE_ROWS = 64,
    ROW_COST = 16 /* rows that cost as much as reading the weights of a panel once */
};

/* Temporary memory of the node. */
typedef struct expert_temp {
    unsigned char *x;  /* [T] activation rows for gate and up */
    int32_t *first;    /* [E + 1] where each expert's rows begin in order */
    int32_t *order;    /* [T * K] row * K + slot, sorted by expert */
    float *h;          /* [wave rows][F] */
    unsigned char *hq; /* [wave rows] activation rows for down */
    float *parts;      /* several domains: [n_domains][T * K][D], else none */
    size_t bytes;
} expert_temp;

static size_t wave_rows(const oct_node *n, int64_t rows)
{
    int64_t all = rows * n->n_used, cap = rows > MIN_WAVE_ROWS ? rows : MIN_WAVE_ROWS;
    return (size_t)(all < cap ? all : cap);
}

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static expert_temp temp_at(const oct_cpu_numbers *numbers, unsigned char *base, const oct_node *n,
                           int64_t rows)
{
    const oct_weight_layout *down = &n->w[1]->layout;
    const oct_act_layout act = oct_cpu_act(n, 1);
    size_t wave = wave_rows(n, rows), slots = (size_t)(rows * n->n_used);
    size_t first_at = (size_t)rows * oct_cpu_act(n, 0).bytes;
    size_t order_at = first_at + align64((size_t)(down->n_experts + 1) * sizeof(int32_t));
    size_t h_at = order_at + align64(slots * sizeof(int32_t));
    size_t hq_at = h_at + align64(wave * (size_t)down->n_in * sizeof(float));
    size_t parts_at = hq_at + align64(wave * act.bytes);
    size_t parts =
        numbers->n_domains > 1 ? (size_t)numbers->n_domains * slots * (size_t)down->n_out : 0;
    expert_temp t = {.bytes = parts_at + parts * sizeof(float)};
    if (base) {
        t.x = base;
        t.first = (int32_t *)(void *)(base + first_at);
        t.order = (int32_t *)(void *)(base + order_at);
        t.h = (float *)(void *)(base + h_at);
        t.hq = base + hq_at;
        t.parts = (float *)(void *)(base + parts_at);
    }
    return t;
}

size_t oct_cpu_experts_temp(const oct_cpu_numbers *numbers, const oct_node *n, int64_t rows)
{
    return temp_at(numbers, NULL, n, rows).bytes;
}

/* Counting sort of (row, slot) by expert; stable, so a sequence's rows keep their order. */
static void sort_rows(const oct_node *n, const oct_cpu_run *c, const expert_temp *t)
{
    int64_t n_experts = n->w[1]->layout.n_experts, rows = oct_cpu_rows(c, n->in[0]), k = n->n_used;
    memset(t->first, 0, (size_t)(n_experts + 1) * sizeof *t->first);
    const unsigned char *routes = n->in[1] ? oct_cpu_data(c, n->in[1]) : NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t r = 0; r < rows; r++) {
            const int32_t *expert =
                routes ? (const int32_t *)(const void *)(routes + (size_t)r * n->in[1]->row_bytes)
                       : NULL;
            for (int64_t s = 0; s < k; s++) {
                int64_t e = expert ? expert[s] : 0;
                if (pass == 0)
                    t->first[e + 1]++;
                else
                    t->order[t->first[e]++] = (int32_t)(r * k + s);
            }
        }
        if (pass == 0)
            for (int64_t e = 0; e < n_experts; e++)
                t->first[e + 1] += t->first[e];
    }
    for (int64_t e = n_experts; e > 0; e--) /* the second pass moved each start to its end */
        t->first[e] = t->first[e - 1];
    t->first[0] = 0;
}

/* The experts first..end-1 of a wave. */
typedef struct wave {
    const oct_step *s;
    const oct_node *n;
    const expert_temp *t;
    int64_t first, end;
} wave;

/* Runs of panels that an expert's rows are multiplied with: task i is panels first .. first + n - 1
 * of unit i / per_unit of this domain. */
typedef struct panel_run {
    int64_t length, per_unit;
} panel_run;

static panel_run panel_run_of(const oct_cpu_run *c, const wave *w, int64_t e,
                              const oct_weight_layout *l, int64_t n_units)
{
    int64_t n = oct_cpu_panel_run(c, l, n_units, w->t->first[e + 1] - w->t->first[e]);
    return (panel_run){n, (l->n_panels + n - 1) / n};
}

/* Units of gate and up in this thread's domain. */
static int64_t gate_up_units(const oct_cpu_run *c, const oct_weight *w)
{
    return oct_cpu_first_slice(c, w->kind, c->domain + 1) -
           oct_cpu_first_slice(c, w->kind, c->domain);
}

/* Shares a phase's tasks, all panels of n_units units for every expert that has rows; groups are
 * the wave's experts. */
static void share_tasks(oct_cpu_run *c, const wave *w, const oct_weight_layout *l, int64_t n_units,
                        oct_cpu_task_fn *fn)
{
    oct_cpu_work groups[OCT_WEIGHT_MAX_EXPERTS];
    for (int64_t e = w->first; e < w->end; e++) {
        int64_t rows = w->t->first[e + 1] - w->t->first[e];
        panel_run run = panel_run_of(c, w, e, l, n_units);
        groups[e - w->first] =
            (oct_cpu_work){rows > 0 ? n_units * run.per_unit : 0, (rows + ROW_COST) * run.length};
    }
    oct_cpu_share(c, groups, w->end - w->first, fn, w);
}

static void gate_up_task(oct_cpu_run *c, const void *job, int64_t group, int64_t task)
{
    const wave *w = job;
    int64_t e = w->first + group;
    const oct_weight *weight = w->n->w[0];
    const oct_act_layout act = oct_cpu_act(w->n, 0);
    const oct_weight_layout *l = &weight->layout;
    const panel_run run = panel_run_of(c, w, e, l, gate_up_units(c, weight));
    int64_t slice = oct_cpu_first_slice(c, weight->kind, c->domain) + task / run.per_unit;
    int64_t panel = task % run.per_unit * run.length;
    int64_t n_panels = l->n_panels - panel < run.length ? l->n_panels - panel : run.length;
    int64_t slice_ff = l->unit_out / 2;
    int64_t d_ff = w->n->w[1]->layout.n_in, wave_first = w->t->first[w->first];
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    for (int64_t i = w->t->first[e]; i < w->t->first[e + 1]; i += OCT_ROW_BLOCK) {
        int64_t rows =
            w->t->first[e + 1] - i < OCT_ROW_BLOCK ? w->t->first[e + 1] - i : OCT_ROW_BLOCK;
        for (int64_t r = 0; r < rows; r++)
            tiles.rows[r] = w->t->x + (size_t)(w->t->order[i + r] / w->n->n_used) * act.bytes;
        const float *y = oct_cpu_panels(c, w->s, 0, &act, e, slice, panel, n_panels, rows);
        for (int64_t j = 0; j < n_panels * rows; j++, y += OCT_PANEL) {
            int64_t at = (panel + j / rows) * (OCT_PANEL / 2), left = slice_ff - at;
            c->cpu->k->gelu_mul(y, y + OCT_PANEL / 2, left < OCT_PANEL / 2 ? left : OCT_PANEL / 2,
                                w->t->h + (i + j % rows - wave_first) * d_ff + slice * slice_ff +
                                    at);
        }
    }
}

static void down_task(oct_cpu_run *c, const void *job, int64_t group, int64_t task)
{
    const wave *w = job;
    int64_t e = w->first + group;
    const oct_weight *weight = w->n->w[1];
    const oct_tensor *out = w->n->out;
    const panel_run run = panel_run_of(c, w, e, &weight->layout, 1);
    int64_t panel = task * run.length, left = weight->layout.n_panels - panel;
    int64_t n_panels = left < run.length ? left : run.length;
    const oct_act_layout act = oct_cpu_act(w->n, 1);
    float *slots = c->cpu->n.n_domains > 1 ? w->t->parts + c->domain * out->rows * out->cols
                                           : oct_cpu_data(c, out);
    int64_t wave_first = w->t->first[w->first];
    oct_cpu_tiles tiles = oct_cpu_tiles_at(c);
    for (int64_t i = w->t->first[e]; i < w->t->first[e + 1]; i += OCT_ROW_BLOCK) {
        int64_t rows =
            w->t->first[e + 1] - i < OCT_ROW_BLOCK ? w->t->first[e + 1] - i : OCT_ROW_BLOCK;
        for (int64_t r = 0; r < rows; r++)
            tiles.rows[r] = w->t->hq + (size_t)(i + r - wave_first) * act.bytes;
        const float *y = oct_cpu_panels(c, w->s, 1, &act, e, 0, panel, n_panels, rows);
        for (int64_t j = 0; j < n_panels * rows; j++, y += OCT_PANEL) {
            int64_t at = (panel + j / rows) * OCT_PANEL, n = out->cols - at;
            memcpy(slots + w->t->order[i + j % rows] * out->cols + at, y,
                   (size_t)(n < OCT_PANEL ? n : OCT_PANEL) * sizeof *y);
        }
    }
}

static void quantise_rows(const oct_cpu_run *c, const wave *w)
{
    const oct_weight_layout *down = &w->n->w[1]->layout;
    const oct_act_layout act = oct_cpu_act(w->n, 1);
    int64_t lo, hi, rows = w->t->first[w->end] - w->t->first[w->first];
    oct_team_range(rows, c->thread, c->n_threads, &lo, &hi);
    for (int64_t r = lo; r < hi; r++)
        c->cpu->k->act_quantise(&act, w->t->h + r * down->n_in, w->t->hq + (size_t)r * act.bytes);
}

static bool is_elsewhere(const oct_cpu_run *c, int64_t e)
{
    return (c->run->elsewhere >> e & 1) != 0;
}

/* Slots of experts that other ranks or a device compute are zero, so that the sum over ranks is the
 * one's value. */
static void clear_other_slots(const oct_cpu_run *c, const oct_node *n, const expert_temp *t)
{
    const oct_shard *s = &c->cpu->n.shard;
    int64_t lo, hi, e = 0, rows = oct_cpu_rows(c, n->in[0]) * n->n_used;
    if (s->experts.first == 0 && s->experts.end == n->w[1]->layout.n_experts &&
        c->run->elsewhere == 0)
        return;
    oct_team_range(rows, c->thread, c->n_threads, &lo, &hi);
    size_t bytes = (size_t)n->out->cols * sizeof(float);
    for (int64_t i = lo; i < hi; i++) {
        while (i >= t->first[e + 1])
            e++;
        if (e >= s->experts.first && e < s->experts.end && !is_elsewhere(c, e))
            continue;
        memset(oct_cpu_row(c, n->out, t->order[i]), 0, bytes);
        for (int d = 0; d < c->cpu->n.n_domains && c->cpu->n.n_domains > 1; d++)
            memset(t->parts + (d * n->out->rows + t->order[i]) * n->out->cols, 0, bytes);
    }
}

void oct_cpu_experts(oct_cpu_run *c, const oct_step *s)
{
    const oct_node *n = s->node;
    const oct_act_layout act = oct_cpu_act(n, 0);
    const oct_weight *gate_up = n->w[0], *down = n->w[1];
    expert_temp t = temp_at(&c->cpu->n, oct_cpu_temp(c, s), n, c->plan->graph->rows);
    oct_cpu_quantise(c, n->in[0], &act, t.x);
    if (c->thread == 0)
        sort_rows(n, c, &t);
    oct_team_barrier(c->cpu->team);

    int64_t cap = (int64_t)wave_rows(n, c->plan->graph->rows);
    const oct_shard_range mine = c->cpu->n.shard.experts;
    clear_other_slots(c, n, &t);
    for (int64_t e = mine.first; e < mine.end;) {
        wave w = {s, n, &t, e, e};
        if (is_elsewhere(c, e++))
            continue;
        w.end = e; /* the rows of one fit always */
        while (w.end < mine.end && t.first[w.end + 1] - t.first[w.first] <= cap &&
               !is_elsewhere(c, w.end))
            w.end++;
        e = w.end;
        if (t.first[w.end] == t.first[w.first])
            continue;
        share_tasks(c, &w, &gate_up->layout, gate_up_units(c, gate_up), gate_up_task);
        oct_team_barrier(c->cpu->team);
        quantise_rows(c, &w);
        oct_team_barrier(c->cpu->team);
        share_tasks(c, &w, &down->layout, 1, down_task);
    }
    if (c->cpu->n.n_domains > 1) {
        oct_team_barrier(c->cpu->team);
        oct_cpu_join(c, t.parts, n->out->rows * n->out->cols, oct_cpu_rows(c, n->in[0]) * n->n_used,
                     n->out->cols, oct_cpu_data(c, n->out));
    }
    if (c->thread == 0)
        for (int64_t e = mine.first; e < mine.end; e++)
            if (t.first[e + 1] > t.first[e] && !is_elsewhere(c, e))
                c->run->bytes_read += oct_shard_read_bytes(&c->cpu->n.shard, gate_up) +
                                      oct_shard_read_bytes(&c->cpu->n.shard, down);
}
