/* q4_best.h: the fastest way of this CPU to quantise to q4. */
#ifndef OCT_Q4_BEST_H
#define OCT_Q4_BEST_H

#include "q4.h"

typedef struct oct_q4_kernels {
    oct_q4_choose16_fn *choose16;
    oct_q4_nearest_fn *nearest;
} oct_q4_kernels;

/* Static. */
const oct_q4_kernels *oct_q4_kernels_best(void);

/* On x86-64. */
oct_q4_choose16_fn oct_q4_choose16_vbmi;
oct_q4_nearest_fn oct_q4_nearest_vbmi;

#endif
