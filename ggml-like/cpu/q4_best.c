#include "q4_best.h"

oct_q4_choose16_fn *oct_q4_choose16_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512bw"))
        return oct_q4_choose16_vbmi;
#endif
    return oct_q4_choose16;
}
