/* session_gpu.h: which nodes of a session's graph the GPUs compute. Decided from numbers alone,
 * before anything is loaded: attention with its keys and values first, then the head, then room for
 * experts that are streamed, then whole layers' experts, as far as budgets go. */
#ifndef OCT_SESSION_GPU_H
#define OCT_SESSION_GPU_H

#include "cuda.h"
#include "plan.h"

/* Places 1 .. n, a GPU each. */
typedef struct oct_gpu_deal {
    int n;
    oct_gpu_share share[OCT_MAX_GPUS];
    int64_t first[OCT_MAX_GPUS]; /* layer of each one's run */
    oct_cuda_numbers numbers[OCT_MAX_GPUS];
} oct_gpu_deal;

/* What there is to place, beside the graph. */
typedef struct oct_gpu_task {
    const oct_gpus *gpus;
    const oct_kv_cache *kv; /* of all layers */
    int64_t n_layers;
    bool streams;             /* experts may be streamed */
    oct_cuda_numbers numbers; /* of any device */
} oct_gpu_task;

/* Makes the plan p of g, with spec's place 0, in room (see oct_plan_make), and fills *deal: what
 * fits. spec's other places point into *deal and into g's arena. */
OCT_MUST_CHECK oct_status oct_gpu_deal_make(const oct_gpu_task *task, oct_graph *g,
                                            oct_plan_spec *spec, void *room, size_t room_bytes,
                                            oct_gpu_deal *deal, oct_plan *p, oct_error *err);

#endif
