/* fold.c: the binary tree in which the slices of an inputs-split product are summed. */
#include "kernels.h"

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
