/* kernels.c: the table of kernel rows, made from kernels.inc; the choice of one; the fold of
 * slices. */
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

/* ---- the table ------------------------------------------------------------------------------- */

#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__ref;
#include "kernels.inc"
#if defined(__x86_64__)
#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__avx2;
#include "kernels.inc"
#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__avx512;
#include "kernels.inc"
#define OCT_KERNEL_SLOT(slot)
#define OCT_KERNEL_AMX_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__amx;
#include "kernels.inc"

enum {
    NEEDS_AVX2 = OCT_ISA_AVX2 | OCT_ISA_FMA | OCT_ISA_F16C,
    NEEDS_AVX512 = NEEDS_AVX2 | OCT_ISA_AVX512F | OCT_ISA_AVX512DQ | OCT_ISA_AVX512BW |
                   OCT_ISA_AVX512VL | OCT_ISA_AVX512_VNNI,
    NEEDS_AMX = NEEDS_AVX512 | OCT_ISA_AMX_TILE | OCT_ISA_AMX_INT8
};
#endif

const oct_kernels oct_kernel_rows[] = {
    {
        .name = "ref",
        .needs = 0,
        .preference = 0,
        .panels = 1,
        .chunk = 512,
        .probes = &oct_probes__ref,
#define OCT_KERNEL_SLOT(slot) .slot = oct_k_##slot##__ref,
#include "kernels.inc"
    },
#if defined(__x86_64__)
    {
        .name = "avx2",
        .needs = NEEDS_AVX2,
        .preference = 20,
        .panels = 1,
        .chunk = 512,
        .probes = &oct_probes__avx2,
#define OCT_KERNEL_SLOT(slot) .slot = oct_k_##slot##__avx2,
#include "kernels.inc"
    },
    {
        .name = "avx512",
        .needs = NEEDS_AVX512,
        .preference = 40,
        .panels = 1,
        .chunk = 512,
        .probes = &oct_probes__avx512,
#define OCT_KERNEL_SLOT(slot) .slot = oct_k_##slot##__avx512,
#include "kernels.inc"
    },
    {
        .name = "amx",
        .needs = NEEDS_AMX,
        .preference = 60,
        .panels = 8,
        .chunk = 2048,
        .probes = &oct_probes__amx,
#define OCT_KERNEL_SLOT(slot) .slot = oct_k_##slot##__avx512,
#define OCT_KERNEL_AMX_SLOT(slot) .slot = oct_k_##slot##__amx,
#include "kernels.inc"
    },
#endif
};
const int oct_n_kernel_rows = sizeof oct_kernel_rows / sizeof *oct_kernel_rows;
_Static_assert(sizeof oct_kernel_rows / sizeof *oct_kernel_rows <= OCT_MAX_KERNEL_ROWS,
               "ranks report rows as bits of 32");

/* ---- the choice ------------------------------------------------------------------------------ */

static const oct_kernels *find(const oct_kernels *rows, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static bool runs(const oct_kernels *row, oct_isa have)
{
    return (row->needs & ~have) == 0;
}

/* Names of rows, those that a CPU can run or all, for messages: "ref, avx2". */
enum { NAMES = 96 };
static void list_names(const oct_kernels *rows, int n, oct_isa have, char out[NAMES])
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < n && used < NAMES; i++)
        if (runs(&rows[i], have))
            used +=
                (size_t)snprintf(out + used, NAMES - used, "%s%s", used ? ", " : "", rows[i].name);
}

static const oct_kernels *best_of(const oct_kernels *rows, int n, oct_isa have)
{
    const oct_kernels *best = NULL;
    for (int i = 0; i < n; i++)
        if (runs(&rows[i], have) && (!best || rows[i].preference > best->preference))
            best = &rows[i];
    return best;
}

oct_status oct_kernels_pick(const oct_kernels *rows, int n, oct_isa have, const char *source,
                            const char *name, const oct_kernels **row, oct_error *err)
{
    char names[NAMES], missing[OCT_ISA_NAMES];
    if (!name || !*name) {
        *row = best_of(rows, n, have);
        return OCT_OK;
    }
    const oct_kernels *found = find(rows, n, name);
    if (!found) {
        list_names(rows, n, ~(oct_isa)0, names);
        return oct_fail(err, OCT_ERR_ARG, "%s: '%s', expected one of %s", source, name, names);
    }
    if (runs(found, have)) {
        *row = found;
        return OCT_OK;
    }
    list_names(rows, n, have, names);
    return oct_fail(err, OCT_ERR_UNSUPPORTED,
                    "%s: %s needs %s, which this CPU lacks; it can run %s", source, name,
                    oct_isa_names(found->needs & ~have, missing), names);
}

const oct_kernels *oct_kernels_find(const char *name)
{
    return find(oct_kernel_rows, oct_n_kernel_rows, name);
}

bool oct_kernels_usable(const oct_kernels *row)
{
    return runs(row, oct_isa_detect());
}

const oct_kernels *oct_kernels_best(void)
{
    return best_of(oct_kernel_rows, oct_n_kernel_rows, oct_isa_detect());
}

oct_status oct_kernels_choose(const char *name, oct_isa have, const oct_kernels **row,
                              oct_error *err)
{
    return oct_kernels_pick(oct_kernel_rows, oct_n_kernel_rows, have, name ? "isa" : "OCTET_ISA",
                            name ? name : getenv("OCTET_ISA"), row, err);
}

/* ---- the fold of slices ---------------------------------------------------------------------- */

void oct_fold_begin(oct_fold *f, float *levels, int64_t n, oct_k_add_fn *add)
{
    *f = (oct_fold){.levels = levels, .n = n, .add = add};
}

float *oct_fold_next(oct_fold *f)
{
    return f->levels + f->depth * f->n;
}

/* Adds the last pending tile into the one before it. */
static void join(oct_fold *f)
{
    f->depth--;
    float *left = f->levels + (f->depth - 1) * f->n;
    f->add(left, left + f->n, f->n, left);
    f->size[f->depth - 1] += f->size[f->depth];
}

void oct_fold_push(oct_fold *f)
{
    f->size[f->depth++] = 1;
    while (f->depth > 1 && f->size[f->depth - 1] == f->size[f->depth - 2])
        join(f);
}

float *oct_fold_end(oct_fold *f)
{
    while (f->depth > 1)
        join(f);
    return f->levels;
}
