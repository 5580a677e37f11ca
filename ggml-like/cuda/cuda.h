/* cuda.h: the backend of GPUs of NVIDIA's. Its numbers say all that a plan needs; opening it takes
 * the device. The bits are those of the CPU's integer rows (kernels_cuda.h). */
#ifndef OCT_CUDA_H
#define OCT_CUDA_H

#include "backend.h"
#include "gpu.h"
#include "shard.h"

typedef struct oct_cuda_numbers {
    int device; /* the driver's number */
    int n_sms;
    int shared; /* bytes of shared memory that a block may have; 0: not known, the least is taken */
    bool divided;    /* among ranks: it is not held while they wait for each other */
    bool streams;    /* experts of the host will be streamed to it */
    bool blas;       /* cuBLAS for the head of many rows: other last bits */
    oct_shard shard; /* of one process: size 1, everything */
    int64_t rows, n_seqs, seq_pages; /* of a run at most: tokens; sequences and pages of each */
} oct_cuda_numbers;

extern const oct_backend_kind oct_cuda_kind; /* its numbers: oct_cuda_numbers */

/* What a session may take of total and free bytes: a reserve is left. Pure. */
uint64_t oct_gpu_budget(const oct_gpu *g);

/* For rank `local` of the n_local on a machine: leaves it the budgets of its GPUs. With more ranks
 * than GPUs some share one, and its link, evenly: it is divided. */
void oct_gpus_divide(oct_gpus *g, int local, int n_local);

/* What it takes of the device for itself, beside what a plan says. */
size_t oct_cuda_own_bytes(const oct_cuda_numbers *n);

/* numbers: oct_cuda_numbers. OCT_ERR_DEVICE: the driver refuses; OCT_ERR_MEMORY: no memory there.
 */
OCT_MUST_CHECK oct_status oct_cuda_open(const void *numbers, oct_backend **out, oct_error *err);

#endif
