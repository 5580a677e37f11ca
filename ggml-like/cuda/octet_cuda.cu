/* octet_cuda.cu: all kernels of CUDA devices, one module. Compile with -fmad=false: no product may
 * be fused with a sum behind our back. */
#include "attention.cuh"
#include "experts.cuh"
#include "gemm.cuh"
#include "gemv.cuh"
#include "head.cuh"
#include "probe.cuh"
#include "vectors.cuh"
