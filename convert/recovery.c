/* recovery.c: see recovery.h. A scale is written once into a table of 16-bit words by whichever
 * thread finds it first; all threads find the same. */
#include "recovery.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "f16.h"
#include "q8.h"
#include "q8_recover.h"

enum {
    UNKNOWN = 0,      /* in the table; a known scale of 0 is INEXACT alone */
    INEXACT = 0x8000, /* not all of its weights are q x scale */
    MAX_LINES = 20,   /* that name numbers */
    MAX_NAMED = 4     /* of one channel */
};

struct oct_recovery {
    uint16_t *scale; /* [n] */
    int64_t n;
    pthread_mutex_t lock; /* of what follows */
    int64_t groups[OCT_RECOVERED_KINDS];
    int64_t n_odd;
    oct_q8_error error; /* of groups that were quantised, or have odd weights */
    oct_lines lines;
};

oct_status oct_recovery_new(int64_t n_scales, oct_recovery **out, oct_error *err)
{
    *out = calloc(1, sizeof **out);
    if (*out && ((*out)->scale = calloc((size_t)n_scales + 1, sizeof *(*out)->scale))) {
        (*out)->n = n_scales;
        pthread_mutex_init(&(*out)->lock, NULL);
        return OCT_OK;
    }
    free(*out);
    *out = NULL;
    return oct_fail(err, OCT_ERR_MEMORY, "out of memory for %" PRId64 " scales", n_scales);
}

void oct_recovery_free(oct_recovery *r)
{
    if (!r)
        return;
    pthread_mutex_destroy(&r->lock);
    oct_lines_free(&r->lines);
    free(r->scale);
    free(r);
}

size_t oct_recovery_bytes(const oct_recovery *r)
{
    return (size_t)r->n * sizeof *r->scale;
}

/* ---- one group ------------------------------------------------------------------------------ */

/* A group of a row. */
typedef struct group {
    const oct_bf16_matrix *m;
    const uint16_t *w; /* [n] */
    int8_t *q;         /* [n], filled here */
    int64_t row, column, n;
} group;

static void name_odd(oct_recovery *r, const group *g, int64_t i, int64_t n_odd, uint16_t scale)
{
    char where[OCT_SOURCE_WHERE];
    const double s = (double)oct_f32_of_bf16(scale);
    g->m->where(g->m->ctx, g->row, g->column + i, where);
    oct_lines_add(&r->lines,
                  "%s is %.6g (0x%04x): not bf16(q x %.6g) for an int8 q, as all but %" PRId64
                  " of the %" PRId64
                  " weights with its scale are; it became %d x %.6g: is the file "
                  "damaged?",
                  where, (double)oct_f32_of_bf16(g->w[i]), g->w[i], s, n_odd, g->n, g->q[i], s);
}

/* With the lock held: a group's kind, its error, and what is to be said of it. */
static void count_group(oct_recovery *r, const group *g, oct_recovered kind, uint16_t scale)
{
    r->groups[kind]++;
    if (kind != OCT_RECOVERED_ODD && kind != OCT_RECOVERED_NOT)
        return;
    const float s = oct_f32_of_bf16(scale);
    int64_t n_odd = 0, named = 0;
    for (int64_t i = 0; i < g->n; i++)
        n_odd += oct_bf16_of_f32((float)g->q[i] * s) != g->w[i];
    for (int64_t i = 0; i < g->n; i++) {
        const float ref = oct_f32_of_bf16(g->w[i]), v = (float)g->q[i] * s;
        oct_q8_error_add(&r->error, &ref, &v, 1);
        if (kind == OCT_RECOVERED_NOT || oct_bf16_of_f32(v) == g->w[i])
            continue;
        r->n_odd++;
        if (named++ < MAX_NAMED && r->lines.n < MAX_LINES)
            name_odd(r, g, i, n_odd, scale);
    }
}

/* Finds the scale of a group that has none yet. */
static oct_status find_scale(oct_recovery *r, const group *g, uint16_t *entry, oct_error *err)
{
    uint16_t scale, unknown = UNKNOWN;
    const oct_recovered kind = oct_q8_recover(g->w, g->n, &scale, g->q);
    if (kind == OCT_RECOVERED_NOT_FINITE) {
        char where[OCT_SOURCE_WHERE];
        int64_t i = 0;
        while ((g->w[i] & 0x7f80) != 0x7f80)
            i++;
        g->m->where(g->m->ctx, g->row, g->column + i, where);
        return oct_fail(err, OCT_ERR_NUMERIC, "%s is %s; expected a finite number", where,
                        g->w[i] & 0x7f ? "NaN" : "infinite");
    }
    const bool exact = kind == OCT_RECOVERED_UNIQUE || kind == OCT_RECOVERED_SEVERAL;
    const uint16_t value = exact ? scale : (uint16_t)(scale | INEXACT);
    if (!__atomic_compare_exchange_n(entry, &unknown, value, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return OCT_OK; /* another thread has counted it */
    pthread_mutex_lock(&r->lock);
    count_group(r, g, kind, scale);
    pthread_mutex_unlock(&r->lock);
    return OCT_OK;
}

static uint16_t known(const uint16_t *entry)
{
    return __atomic_load_n(entry, __ATOMIC_RELAXED);
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* The columns of a row that are read for a block, in whole groups if a scale is not known. */
typedef struct span {
    int64_t from, to;
} span;

static span span_of(const uint16_t *entry, const oct_bf16_matrix *m, const oct_block *b)
{
    const int64_t n = m->n_in / m->n_groups;
    const int64_t first = b->column / n, last = (b->column + b->n_columns - 1) / n;
    for (int64_t g = first; g <= last; g++)
        if (known(&entry[g]) == UNKNOWN)
            return (span){first * n, (last + 1) * n};
    return (span){b->column, b->column + b->n_columns};
}

/* One row of a block: w has room for its span, q for a group. */
static oct_status read_row(oct_recovery *r, const oct_bf16_matrix *m, const oct_block *b,
                           int64_t row, uint16_t *w, int8_t *q, int8_t *out, oct_error *err)
{
    uint16_t *entry = r->scale + m->first_scale + row * m->n_groups;
    const int64_t n = m->n_in / m->n_groups, end = b->column + b->n_columns;
    const span s = span_of(entry, m, b);
    OCT_TRY(m->read(m->ctx, row, s.from, s.to - s.from, w, err));
    for (int64_t g = b->column / n; g * n < end; g++) {
        const int64_t from = g * n > b->column ? g * n : b->column;
        const int64_t to = (g + 1) * n < end ? (g + 1) * n : end;
        int64_t first;
        if (known(&entry[g]) == UNKNOWN) {
            const group it = {m, w + (g * n - s.from), q, row, g * n, n};
            OCT_TRY(find_scale(r, &it, &entry[g], err));
            memcpy(out + (from - b->column), q + (from - g * n), (size_t)(to - from));
            continue;
        }
        const uint16_t scale = known(&entry[g]);
        if (!oct_q8_of_bf16(w + (from - s.from), to - from, scale & (INEXACT - 1),
                            out + (from - b->column), &first) ||
            scale & INEXACT)
            continue;
        char where[OCT_SOURCE_WHERE];
        m->where(m->ctx, row, from + first, where);
        return oct_fail(err, OCT_ERR_IO, "%s has changed since it was first read", where);
    }
    return OCT_OK;
}

oct_status oct_recovery_read_i8(oct_recovery *r, const oct_bf16_matrix *m, const oct_block *b,
                                int8_t *out, oct_error *err)
{
    const size_t n = (size_t)(m->n_in / m->n_groups), room = (size_t)b->n_columns + 2 * n;
    uint16_t *w = malloc(room * sizeof *w);
    int8_t *q = malloc(n);
    oct_status s = w && q ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; i < b->n_rows && s == OCT_OK; i++)
        s = read_row(r, m, b, b->row + i, w, q, out + i * b->n_columns, err);
    free(q);
    free(w);
    return s;
}

oct_status oct_recovery_read_scales(oct_recovery *r, const oct_bf16_matrix *m, const oct_block *b,
                                    uint16_t *out, oct_error *err)
{
    const int64_t n = m->n_in / m->n_groups;
    uint16_t *w = NULL;
    int8_t *q = NULL;
    oct_status s = OCT_OK;
    for (int64_t i = 0; i < b->n_rows * b->n_columns && s == OCT_OK; i++) {
        const int64_t row = b->row + i / b->n_columns, g = b->column + i % b->n_columns;
        uint16_t *entry = r->scale + m->first_scale + row * m->n_groups + g;
        if (known(entry) == UNKNOWN) {
            w = w ? w : malloc((size_t)n * sizeof *w);
            q = q ? q : malloc((size_t)n);
            s = w && q ? m->read(m->ctx, row, g * n, n, w, err)
                       : oct_fail(err, OCT_ERR_MEMORY, "out of memory");
            if (s == OCT_OK)
                s = find_scale(r, &(group){m, w, q, row, g * n, n}, entry, err);
        }
        out[i] = known(entry) & (INEXACT - 1);
    }
    free(q);
    free(w);
    return s;
}

/* ---- what is told --------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void oct_recovery_tell(const oct_recovery *r, oct_convert_recovered *out, oct_lines *warnings)
{
    const int64_t *n = r->groups;
    *out = (oct_convert_recovered){.n_unique = n[OCT_RECOVERED_UNIQUE],
                                   .n_several = n[OCT_RECOVERED_SEVERAL],
                                   .n_zero = n[OCT_RECOVERED_ZERO],
                                   .n_odd = n[OCT_RECOVERED_ODD],
                                   .n_quantised = n[OCT_RECOVERED_NOT],
                                   .n_odd_weights = r->n_odd,
                                   .error = oct_q8_error_rel(&r->error),
                                   .error_largest = r->error.max_abs};
    for (int i = 0; i < OCT_RECOVERED_KINDS; i++)
        out->n += n[i];
    if (r->lines.n)
        qsort(r->lines.line, r->lines.n, sizeof *r->lines.line, by_text);
    for (size_t i = 0; i < r->lines.n; i++)
        oct_lines_add(warnings, "%s", r->lines.line[i]);
    warnings->failed = warnings->failed || r->lines.failed;
}
