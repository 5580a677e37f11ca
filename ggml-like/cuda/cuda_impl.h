/* cuda_impl.h: what the files of the backend of GPUs share. */
#ifndef OCT_CUDA_IMPL_H
#define OCT_CUDA_IMPL_H

#include <sys/types.h>

#include "cuda.h"
#include "cuda_blas.h"
#include "cuda_driver.h"
#include "kernels_cuda.h"
#include "plan.h"

/* Rows that matrices with temporary memory take at a time, and the head. Changes no bit. */
enum { OCT_CUDA_PIECE = 512, OCT_CUDA_HEAD_ROWS = 64 };
enum { OCT_CUDA_BLAS_ROWS = 8 }; /* from which cuBLAS is worth it */

/* What a run brings to the device in one copy: offsets in bytes. */
typedef struct oct_cuda_inputs {
    size_t token, seq, pos, out_row; /* [rows] int32 */
    size_t table;                    /* [sequences of the run][seq_pages] int32 */
    size_t copies;                   /* [sequences of the run] oct_cuda_kv_copy */
    size_t bytes;
} oct_cuda_inputs;

/* Where the next bytes of a device's memory begin; they end where any type may. */
static inline size_t oct_cuda_take(size_t *used, size_t bytes)
{
    const size_t at = *used;
    *used += (bytes + 255) / 256 * 256;
    return at;
}

typedef struct oct_cuda_streamer oct_cuda_streamer; /* see cuda_stream.c */

typedef struct oct_cuda {
    oct_backend base;
    oct_cuda_numbers n;
    const oct_cuda_api *api;
    oct_cuda_context context; /* NULL: not retained */
    pid_t process;            /* that has the context and the threads; one forked off has neither */
    oct_cuda_stream stream;
    oct_cuda_module module;
    oct_cuda_function function[OCT_CUDA_N_ENTRIES];
    uint32_t shared[OCT_CUDA_N_ENTRIES]; /* bytes that a function has been allowed */
    oct_cuda_inputs at;
    unsigned char *inputs; /* [at.bytes] */
    bool inputs_pinned;
    oct_cuda_address device;     /* the same there; then the counter of saturated values */
    uint64_t *saturated;         /* pinned: the counter as it was when the last run ended */
    uint32_t *gate, turn;        /* pinned, behind it: the stream waits for its turn, see hold */
    uint64_t seen;               /* of it, told to caches */
    int32_t *row_of;             /* [n_seqs] a sequence's row of the table in a run, -1: none */
    oct_cuda_streamer *streamer; /* NULL: nothing is streamed */
    oct_cuda_blas *blas; /* NULL: not asked for; its workspace is behind the rest of device */
    void *pinned;        /* memory of the runner's; NULL: none */
    /* Of the evaluation that runs. */
    bool fresh; /* nothing of it has been brought */
    oct_kv_cache *kv;
} oct_cuda;

/* One run. */
typedef struct oct_cuda_run {
    oct_cuda *cuda;
    const oct_plan *plan;
    unsigned char *buffer;
    int place;
    oct_run *run;
} oct_cuda_run;

/* What a run reads from the device's memory. */
const void *oct_cuda_input(const oct_cuda *c, size_t at);
unsigned long long *oct_cuda_saturated(const oct_cuda *c);

/* OCT_OK for 0; else what failed on which GPU. */
OCT_MUST_CHECK oct_status oct_cuda_check(const oct_cuda *c, int result, const char *what,
                                         oct_error *err);

OCT_MUST_CHECK oct_status oct_cuda_launch_kernel(oct_cuda_run *c, const oct_cuda_launch *l,
                                                 const void *args, oct_error *err);

/* Pieces of nodes. */
/* Slices of a rank whose products are kept apart before they are folded; 1: nothing to fold. */
int64_t oct_cuda_parts(const oct_shard *s, const oct_weight *w);
void *oct_cuda_data(const oct_cuda_run *c, const oct_tensor *t);
oct_act_layout oct_cuda_act(const oct_node *n, int which);
/* The step's matrix w[which]; whose rows it takes and gives is the caller's to add. */
oct_cuda_linear_args oct_cuda_linear(const oct_cuda_run *c, const oct_step *s, int which);
/* What gate and up, and down, have of the sorted rows that they are given, n_rows at most. */
void oct_cuda_link_experts(oct_cuda_linear_args *up, oct_cuda_linear_args *down,
                           const oct_cuda_sort_args *sort, int64_t n_rows);
OCT_MUST_CHECK oct_status oct_cuda_quantise(oct_cuda_run *c, const float *x, unsigned char *to,
                                            const oct_act_layout *act, int64_t rows,
                                            const int32_t *n_used, oct_error *err);

/* Bytes per second from pinned memory; 0 if it cannot be measured. A context is current. */
double oct_cuda_measure_link(const oct_cuda_api *api);

/* Streaming. Until join returns, the device's streams are the streamer's; it tells what failed. */
size_t oct_cuda_stream_bytes(const void *numbers, const oct_node *n, int64_t rows);
OCT_MUST_CHECK oct_status oct_cuda_stream_begin(oct_backend *b, const oct_plan *p,
                                                unsigned char *buffer, int step, oct_run *r,
                                                oct_error *err);
OCT_MUST_CHECK oct_status oct_cuda_streamer_join(oct_cuda *c, oct_error *err);
OCT_MUST_CHECK oct_status oct_cuda_streamer_open(oct_cuda *c, oct_error *err);
/* entered: the context is current; else what is left ends with it. */
void oct_cuda_streamer_free(oct_cuda *c, bool entered);

typedef oct_status oct_cuda_op_fn(oct_cuda_run *c, const oct_step *s, oct_error *err);
extern oct_cuda_op_fn *const oct_cuda_ops[OCT_OP_COUNT];
size_t oct_cuda_temp_bytes(const void *numbers, const oct_node *n, int64_t rows);

#endif
