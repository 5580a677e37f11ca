#include "q4_best.h"

const oct_q4_kernels *oct_q4_kernels_best(void)
{
    static const oct_q4_kernels plain = {oct_q4_choose16, oct_q4_nearest};
#if defined(__x86_64__)
    static const oct_q4_kernels vbmi = {oct_q4_choose16_vbmi, oct_q4_nearest_vbmi};
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return &vbmi;
#endif
    return &plain;
}
