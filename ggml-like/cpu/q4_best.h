/* q4_best.h: the fastest way of this CPU to choose tables of q4 for sixteen channels. */
#ifndef OCT_Q4_BEST_H
#define OCT_Q4_BEST_H

#include "q4.h"

oct_q4_choose16_fn *oct_q4_choose16_best(void);

oct_q4_choose16_fn oct_q4_choose16_vbmi; /* on x86-64 */

#endif
