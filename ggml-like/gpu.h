/* gpu.h: the GPUs of this machine, and how much of them a session may take. */
#ifndef OCT_GPU_H
#define OCT_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OCT_MAX_GPUS = 15, OCT_GPU_TEXT = 96, OCT_GPU_LINE = 384 };

typedef struct oct_gpu {
    char name[OCT_GPU_TEXT]; /* "NVIDIA GeForce RTX 4090" */
    int index;               /* the driver's number of it */
    int major, minor;        /* compute capability */
    int n_sms;
    uint64_t total, free; /* bytes of its memory; free: when this was read */
    /* Of it a session may take so much: free less a reserve for what others come to need. The
     * caller may lower it; a GPU with 0 is left alone. */
    uint64_t budget;
    double link;            /* bytes per second from pinned memory of the host; 0: not known */
    char why[OCT_GPU_TEXT]; /* "", or why it cannot be used */
    int shared;             /* bytes of shared memory that a block of threads may have */
    bool divided;           /* other ranks of the job use it too */
} oct_gpu;

typedef struct oct_gpus {
    int n;
    oct_gpu gpu[OCT_MAX_GPUS];
    int driver;  /* CUDA's version of the driver, 1000 major + 10 minor; 0: there is none to be used
                 */
    bool absent; /* there is no driver, no GPU, or nothing for them in this build */
    char why[OCT_ERROR_TEXT]; /* "" if there is one that can be used, else why not */
} oct_gpus;

/* What the user allows. Zero: no GPU is used. on, n 0: as far as budgets go; else the first n GPUs,
 * each as far as its bytes go and are free. */
typedef struct oct_gpu_use {
    bool on;
    int n;
    uint64_t bytes[OCT_MAX_GPUS];
} oct_gpu_use;

/* What a session places on a GPU: a run of layers is its, of which it takes as many as fit. */
typedef struct oct_gpu_share {
    int gpu;           /* the index in oct_gpus */
    int64_t attention; /* layers whose attention, keys and values are there */
    int64_t experts;   /* layers whose experts are there */
    int64_t n_layers;  /* of the run */
    bool embed, head;
    bool streams; /* experts of the other layers are brought there for long prompts */
    uint64_t weights, kv, buffers; /* bytes */
} oct_gpu_share;

/* Asks the driver, which is loaded if there is one. A process that computes on none needs no other
 * call; nothing can fail but what out->why then says. Thread-safe. */
OCT_API void oct_gpus_get(oct_gpus *out);
/* What a GPU does, per second: at best, bytes from its own memory and from pinned memory of the
 * host, operations of int8 tensor cores (a multiplication and an addition are two); of a matrix,
 * the bytes for one token, the operations for n_rows rows in 16 bits, which are two products of
 * int8 and counted as both, and those of cuBLAS for as many rows in 8 bits. */
typedef struct oct_gpu_speed {
    double read, link, peak;
    double gemv, gemm;
    double blas; /* 0: there is none */
    int64_t n_out, n_in, n_rows;
} oct_gpu_speed;
/* Measures it for some milliseconds. OCT_ERR_DEVICE, OCT_ERR_MEMORY: it cannot. */
OCT_API OCT_MUST_CHECK oct_status oct_gpu_measure(const oct_gpu *g, oct_gpu_speed *out,
                                                  oct_error *err);

/* "GPU 0 (name): attention of 64 layers, head, experts of 3 of 64 layers; weights 6.4 GiB, ..."
 * into out; returns out. */
OCT_API const char *oct_gpu_share_text(const oct_gpus *g, const oct_gpu_share *s,
                                       char out[OCT_GPU_LINE]);
/* Lowers budgets to what is allowed. Pure. */
OCT_API void oct_gpus_limit(oct_gpus *g, const oct_gpu_use *use);

#ifdef __cplusplus
}
#endif
#endif
