/* kernels.c: the table of kernel rows, made from kernels.inc. */
#include "kernels.h"

#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__ref;
#include "kernels.inc"
#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__avx2;
#include "kernels.inc"
#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__avx512;
#include "kernels.inc"
#define OCT_KERNEL_SLOT(slot)
#define OCT_KERNEL_AMX_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__amx;
#include "kernels.inc"

const oct_kernels oct_kernel_rows[OCT_ISA_COUNT] = {
    {
        .isa = OCT_ISA_REF,
        .name = "ref",
        .panels = 1,
        .chunk = 512,
#define OCT_KERNEL_SLOT(slot) .slot = oct_k_##slot##__ref,
#include "kernels.inc"
    },
    {
        .isa = OCT_ISA_AVX2,
        .name = "avx2",
        .panels = 1,
        .chunk = 512,
#define OCT_KERNEL_SLOT(slot) .slot = oct_k_##slot##__avx2,
#include "kernels.inc"
    },
    {
        .isa = OCT_ISA_AVX512,
        .name = "avx512",
        .panels = 1,
        .chunk = 512,
#define OCT_KERNEL_SLOT(slot) .slot = oct_k_##slot##__avx512,
#include "kernels.inc"
    },
    {
        .isa = OCT_ISA_AMX,
        .name = "amx",
        .panels = 4,
        .chunk = 2048,
#define OCT_KERNEL_SLOT(slot) .slot = oct_k_##slot##__avx512,
#define OCT_KERNEL_AMX_SLOT(slot) .slot = oct_k_##slot##__amx,
#include "kernels.inc"
    },
};
