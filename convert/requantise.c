/* requantise.c: rows of a matrix into another weight type.
 *
 * A row is one output channel with all its inputs, over the slices if these cut the inputs. Without
 * feedback every group of 32 or 16 inputs is stored as near to its integers as tables allow. With
 * second moments H of the inputs an error that was made is taken back, as far as it goes, by the
 * inputs after it: when input i is stored with an error d, those after it in the block move by
 * -d U[i][j] / U[i][i], U the upper Cholesky factor of the inverse of H (optimal brain surgeon in
 * the order of inputs: Frantar et al. 2022, GPTQ). H gets a hundredth of its mean diagonal on
 * top. */
#include "requantise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "f16.h"
#include "q4_best.h"
#include "q8.h"

enum { BLOCK = OCT_MOMENT_BLOCK, GROUP_MAX = 32 };

/* ---- feedback -------------------------------------------------------------------------------- */

size_t oct_feedback_floats(int64_t n_in)
{
    return (size_t)((n_in + BLOCK - 1) / BLOCK) * BLOCK * BLOCK;
}

/* a[n][n] symmetric positive, lower triangle: in place to L with a = L L'. */
static bool cholesky(double *a, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (int64_t k = 0; k < j; k++)
                sum -= a[i * n + k] * a[j * n + k];
            if (j < i)
                a[i * n + j] = sum / a[j * n + j];
            else if (sum > 0 && isfinite(sum))
                a[i * n + i] = sqrt(sum);
            else
                return false;
        }
    return true;
}

/* The inverse of L in place, then L^-T L^-1 = H^-1 into b, both lower triangles. */
static void invert(double *l, double *b, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        l[j * n + j] = 1 / l[j * n + j];
        for (int64_t i = j + 1; i < n; i++) {
            double sum = 0;
            for (int64_t k = j; k < i; k++)
                sum -= l[i * n + k] * l[k * n + j];
            l[i * n + j] = sum / l[i * n + i];
        }
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t k = i; k < n; k++)
                sum += l[k * n + i] * l[k * n + j];
            b[i * n + j] = sum;
        }
}

/* One block: u[n][n] from the sums, rows of a triangle; a, b: room for n * n each. */
static bool feedback_block(const float *h, int64_t n, double *a, double *b, float *u)
{
    double mean = 0;
    for (int64_t i = 0; i < n; i++)
        mean += (double)h[i * (i + 3) / 2] / (double)n;
    if (!(mean > 0) || !isfinite(mean))
        return false;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++)
            a[i * n + j] = (double)h[i * (i + 1) / 2 + j] / mean + (i == j ? 0.01 : 0);
    if (!cholesky(a, n))
        return false;
    invert(a, b, n);
    if (!cholesky(b, n))
        return false;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            u[i * n + j] = j < i ? 0 : (float)b[j * n + i];
    return true;
}

typedef struct feedback_job {
    const oct_moments *m;
    int64_t layer, expert, n_in;
    int which;
    float *u;
    int useless, no_memory;
} feedback_job;

static void feedback_thread(void *ctx, int thread, int n_threads)
{
    feedback_job *f = ctx;
    double *room = malloc(2 * BLOCK * BLOCK * sizeof *room);
    bool good = true;
    for (int64_t b = thread; room && good && b * BLOCK < f->n_in; b += n_threads) {
        const int64_t left = f->n_in - b * BLOCK;
        good = feedback_block(oct_moments_block(f->m, f->layer, f->expert, f->which, b),
                              left < BLOCK ? left : BLOCK, room, room + BLOCK * BLOCK,
                              f->u + b * BLOCK * BLOCK);
    }
    if (!room)
        __atomic_store_n(&f->no_memory, 1, __ATOMIC_RELAXED);
    if (!good)
        __atomic_store_n(&f->useless, 1, __ATOMIC_RELAXED);
    free(room);
}

bool oct_feedback_make(oct_team *team, const oct_moments *m, int64_t layer, int64_t expert,
                       int which, float *u, bool *good)
{
    feedback_job f = {m, layer, expert, oct_moments_inputs(m, which), which, u, 0, 0};
    oct_team_run(team, feedback_thread, &f);
    *good = !f.useless;
    return !f.no_memory;
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct job {
    const oct_weight *from;
    int64_t expert;
    const oct_weight_layout *to;
    const oct_q4_chooser *chooser;
    const oct_q4_kernels *kernels;
    const oct_feedback *feedback;
    const volatile int *cancel;
    uint8_t *out;
    int64_t n_tasks;
    oct_requantise_error *error; /* [n_tasks] */
    int64_t next;                /* task that is taken next */
    int failed;
} job;

/* A row being stored. */
typedef struct row {
    /* NULL, or tables chosen for the panel: [slices][groups of a unit][64] */
    const uint8_t *chosen;
    int64_t n_in;     /* of all slices that it goes over */
    int64_t group_in; /* of a scale */
    int8_t *q;        /* [n_in] its integers */
    float *scale;     /* [n_in] with feedback, else NULL */
    float *target;    /* [n_in] with feedback: what is to be stored, in steps */
} row;

/* How far what was stored is from the integers of up to 32 inputs. */
typedef struct distance {
    uint32_t sum_sq, most_sq;
} distance;

static int64_t unit_inputs(const oct_weight_layout *l)
{
    return l->unit_groups * l->group_in;
}

static void add_square(distance *d, uint32_t square)
{
    d->sum_sq += square;
    d->most_sq = square > d->most_sq ? square : d->most_sq;
}

static void subtract(float *restrict t, const float *restrict u, float times, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        t[i] -= times * u[i];
}

/* Moves the targets of inputs i + 1 .. of i's block, for an error that was stored. Targets are in
 * steps of their scales, of which each group of inputs has one. */
static void feed_back(const oct_feedback *f, const row *r, int64_t i, float stored)
{
    const int64_t block = i / BLOCK, first = block * BLOCK, left = f->n_in - first;
    const int64_t n = left < BLOCK ? left : BLOCK, end = first + n;
    const float *u = f->u + block * BLOCK * BLOCK + (i - first) * n;
    const float off = (r->target[i] - stored) / u[i - first];
    for (int64_t j = i + 1, stop; j < end; j = stop) {
        const float from = r->scale[i], to = r->scale[j];
        stop = (j / r->group_in + 1) * r->group_in;
        stop = stop < end ? stop : end;
        subtract(r->target + j, u + (j - first),
                 from == to ? off
                 : to != 0  ? off * (from / to)
                            : 0,
                 stop - j);
    }
}

/* The table value nearest to x: its number. */
static uint8_t nearest(const oct_q4_chooser *c, int table, float x)
{
    const float bounded = x < -128 ? -128 : x > 127 ? 127 : x;
    int k = c->nibble[table][(int)lrintf(bounded) + 128];
    const uint8_t *v = oct_q4_table[table];
    while (k + 1 < OCT_Q4_VALUES &&
           fabsf((float)(v[k + 1] - 128) - x) < fabsf((float)(v[k] - 128) - x))
        k++;
    while (k > 0 && fabsf((float)(v[k - 1] - 128) - x) < fabsf((float)(v[k] - 128) - x))
        k--;
    return (uint8_t)k;
}

static uint8_t group_fed(const job *j, const row *r, int64_t first, int n, uint8_t *nibble,
                         distance *d)
{
    int8_t rounded[GROUP_MAX];
    for (int i = 0; i < n; i++) {
        const float x = r->target[first + i];
        rounded[i] = (int8_t)lrintf(x < -128 ? -128 : x > 127 ? 127 : x);
    }
    const uint8_t table = oct_q4_choose(j->chooser, rounded, n, nibble);
    for (int i = 0; i < n; i++) {
        nibble[i] = nearest(j->chooser, table, r->target[first + i]);
        const int stored = oct_q4_table[table][nibble[i]] - 128, off = stored - r->q[first + i];
        feed_back(j->feedback, r, first + i, (float)stored);
        add_square(d, (uint32_t)(off * off));
    }
    return table;
}

/* Without feedback: the nearest values of a table, the panel's if it was chosen for all. */
static uint8_t group_nearest(const job *j, const row *r, int64_t first, int n,
                             const uint8_t *chosen, uint8_t *nibble, distance *d)
{
    const int8_t *q = r->q + first;
    const uint8_t table = chosen ? *chosen : oct_q4_choose(j->chooser, q, n, nibble);
    d->sum_sq = j->kernels->nearest(j->chooser, table, q, n, nibble, &d->most_sq);
    return table;
}

/* Inputs at .. at + n - 1 of a unit, which have one scale, as 4 bits; the unit's first input is
 * number `first` of the row. Returns the sum of squared distances. */
static double store_q4(const job *j, const row *r, int64_t first, int64_t at, int64_t n,
                       uint8_t *unit, int64_t panel, int lane, uint32_t *most_sq)
{
    const int64_t size = OCT_Q4_STEP / oct_q4_groups(j->to->type);
    double sum_sq = 0;
    for (const int64_t end = at + n; at < end; at += size) {
        const int m = (int)(end - at < size ? end - at : size);
        const uint8_t *chosen =
            r->chosen ? r->chosen + (first + at) / size * OCT_PANEL + lane : NULL;
        uint8_t nibble[GROUP_MAX];
        distance d = {0};
        const uint8_t table = j->feedback ? group_fed(j, r, first + at, m, nibble, &d)
                                          : group_nearest(j, r, first + at, m, chosen, nibble, &d);
        oct_q4_put(j->to, unit, panel, lane, at, m, table, nibble);
        sum_sq += d.sum_sq;
        *most_sq = d.most_sq > *most_sq ? d.most_sq : *most_sq;
    }
    return sum_sq;
}

static double sum_of_squares(const int8_t *q, int64_t n)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += q[i] * q[i];
    return (double)sum;
}

static float scale_of(const job *j, int64_t slice, int64_t panel, int lane, int64_t group)
{
    const oct_weight_layout *l = &j->from->layout;
    const uint16_t *scales =
        j->from->scales + oct_weight_scale_offset(l, j->expert, slice) / sizeof *scales;
    return oct_f32_of_bf16(oct_weight_scale(l, scales, panel, lane, group));
}

/* A lane of a panel: of slice, or of all slices if these cut inputs. */
static void store_lane(const job *j, const row *r, int64_t slice, int64_t panel, int lane,
                       oct_requantise_error *e)
{
    const oct_weight_layout *from = &j->from->layout, *to = j->to;
    const bool split_in = from->split == OCT_SPLIT_IN, q4 = oct_q4_groups(to->type) != 0;
    const int64_t s0 = split_in ? 0 : slice, s1 = split_in ? from->n_slices : slice + 1;
    const int64_t unit_in = unit_inputs(from), group_in = from->group_in;
    uint32_t most_sq = 0;
    int part;
    int64_t channel;
    if (!oct_weight_lane(from, s0, panel, lane, &part, &channel))
        return;
    for (int64_t s = s0, first = 0; s < s1; s++, first += unit_in) {
        const uint8_t *weights =
            (const uint8_t *)j->from->data + oct_weight_unit_offset(from, j->expert, s);
        oct_weight_unpack(from, weights, panel, lane, 0, unit_in, r->q + first);
        for (int64_t i = first; j->feedback && i < first + unit_in; i++) {
            r->target[i] = (float)r->q[i];
            r->scale[i] = scale_of(j, s, panel, lane, (i - first) / group_in);
        }
    }
    for (int64_t s = s0, first = 0; s < s1; s++, first += unit_in) {
        uint8_t *unit = j->out + oct_weight_unit_offset(to, 0, s);
        for (int64_t g = 0; g < from->unit_groups; g++) {
            const double scale = (double)scale_of(j, s, panel, lane, g), sq = scale * scale;
            const int8_t *q = r->q + first + g * group_in;
            e->sum_sq_ref += sq * sum_of_squares(q, group_in);
            if (q4)
                e->sum_sq_err +=
                    sq * store_q4(j, r, first, g * group_in, group_in, unit, panel, lane, &most_sq);
        }
        if (!q4)
            oct_q8_put(to, unit, panel, lane, r->q + first);
    }
    e->largest = fmax(e->largest, sqrt(most_sq));
}

/* Whether a panel's tables are chosen for its channels together: whole groups, straight from q8. */
static bool panel_wise(const job *j)
{
    const int groups = oct_q4_groups(j->to->type);
    return !j->feedback && groups && j->from->layout.type == OCT_WEIGHT_Q8 &&
           j->to->group_in % (OCT_Q4_STEP / groups) == 0;
}

static void choose_panel(const job *j, int64_t slice, int64_t panel, uint8_t *chosen)
{
    const oct_weight_layout *l = &j->from->layout;
    const bool split_in = l->split == OCT_SPLIT_IN;
    const int n_quads = OCT_Q4_STEP / oct_q4_groups(j->to->type) / OCT_QUAD;
    const int64_t quads = l->unit_groups * l->group_quads;
    for (int64_t s = split_in ? 0 : slice; s < (split_in ? l->n_slices : slice + 1); s++) {
        const uint8_t *at = (const uint8_t *)j->from->data +
                            oct_weight_unit_offset(l, j->expert, s) +
                            (size_t)panel * l->panel_bytes;
        for (int64_t q = 0; q < quads; q += n_quads, at += n_quads * OCT_Q8_QUAD_BYTES)
            for (int lane = 0; lane < OCT_PANEL; lane += 16, chosen += 16)
                j->kernels->choose16(j->chooser, at + lane * OCT_QUAD, n_quads, chosen);
    }
}

static void requantise_thread(void *ctx, int thread, int n_threads)
{
    job *j = ctx;
    const oct_weight_layout *l = &j->from->layout;
    row r = {.n_in = l->split == OCT_SPLIT_IN ? l->n_in : unit_inputs(l), .group_in = l->group_in};
    (void)thread;
    (void)n_threads;
    const size_t n = (size_t)r.n_in;
    uint8_t *chosen = panel_wise(j) ? malloc(n * OCT_PANEL / 16) : NULL;
    float *room = j->feedback ? malloc(2 * n * sizeof *room) : NULL;
    r.q = malloc(n);
    if (!r.q || (j->feedback && !room) || (panel_wise(j) && !chosen))
        __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
    r.chosen = chosen;
    r.scale = room;
    r.target = room ? room + n : NULL;
    for (;;) {
        const int64_t task = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (task >= j->n_tasks || oct_cancelled(j->cancel) ||
            __atomic_load_n(&j->failed, __ATOMIC_RELAXED))
            break;
        if (chosen)
            choose_panel(j, task / l->n_panels, task % l->n_panels, chosen);
        oct_requantise_error e = {0}; /* not where other threads write beside it */
        for (int lane = 0; lane < OCT_PANEL; lane++)
            store_lane(j, &r, task / l->n_panels, task % l->n_panels, lane, &e);
        j->error[task] = e;
    }
    free(chosen);
    free(room);
    free(r.q);
}

bool oct_requantise(oct_team *team, const oct_weight *from, int64_t expert,
                    const oct_weight_layout *to, const oct_q4_chooser *chooser,
                    const oct_feedback *feedback, const volatile int *cancel, uint8_t *out,
                    oct_requantise_error *error)
{
    const oct_weight_layout *l = &from->layout;
    job j = {.from = from,
             .expert = expert,
             .to = to,
             .chooser = chooser,
             .kernels = oct_q4_kernels_best(),
             .feedback = feedback,
             .cancel = cancel,
             .out = out,
             .n_tasks = (l->split == OCT_SPLIT_IN ? 1 : l->n_slices) * l->n_panels};
    j.error = calloc((size_t)j.n_tasks, sizeof *j.error);
    if (!j.error)
        return false;
    if (!oct_q4_groups(to->type))
        for (int64_t s = 0; s < to->n_slices; s++)
            oct_q8_clear(to, out + oct_weight_unit_offset(to, 0, s));
    oct_team_run(team, requantise_thread, &j);
    for (int64_t i = 0; i < j.n_tasks; i++) {
        error->sum_sq_err += j.error[i].sum_sq_err;
        error->sum_sq_ref += j.error[i].sum_sq_ref;
        error->largest = j.error[i].largest > error->largest ? j.error[i].largest : error->largest;
    }
    free(j.error);
    return !j.failed;
}
