/* runner.h: executes a plan. Everything that is not arithmetic of one backend is done here, once
 * for all of them: segments of steps for each, copies between places, the exchange between ranks,
 * counting, cancelling. */
#ifndef OCT_RUNNER_H
#define OCT_RUNNER_H

#include "comm.h"
#include "plan.h"
#include "stream.h"

/* What a run is added to; NULL: not wanted. */
typedef struct oct_tally {
    oct_node_time *layer_time; /* [layers] */
    /* Both or none. [E] rows sent to each expert, over all layers; [layers] changed by the choices
     * of each layer's router. */
    uint64_t *expert_rows, *route_hash;
} oct_tally;

typedef struct oct_runner {
    const oct_plan *plan;                  /* borrowed, as the communicator */
    oct_comm *comm;                        /* of plan->shard->size ranks */
    oct_backend *backend[OCT_MAX_PLACES];  /* owned, one for each place of the plan */
    unsigned char *buffer[OCT_MAX_PLACES]; /* of the plan, in each place */
    void *weights[OCT_MAX_PLACES];         /* uploaded copies; NULL: the host's are used */
    bool pinned;                           /* the host's buffer: see oct_backend.hold */
    oct_stream_rates rates;                /* for plans that stream; zero: nothing is */
    int failed; /* after an error of oct_runner_open: the place that failed */
} oct_runner;

/* Where the host's weights are: p inside the model as it was opened. */
typedef const void *oct_place_fn(const void *placement, const void *p);

/* Allocates what the plan needs in every place, tells every step where its weights are and uploads
 * them where a place has a memory of its own. r->plan, comm and backend are set; the rest is zero.
 * Frees with oct_runner_free in any state. */
OCT_MUST_CHECK oct_status oct_runner_open(oct_runner *r, oct_plan *plan, oct_place_fn *where,
                                          const void *placement, oct_error *err);
void oct_runner_free(oct_runner *r);

/* One evaluation. On ranks all of them call it with runs of the same rows; logits reach rank 0, the
 * others' run->logits is not used. With several ranks run->cancel is agreed upon in every fold, so
 * that all of them return OCT_ERR_CANCELLED together, within half a layer. Any other error of one
 * of several ranks breaks the communicator. */
OCT_MUST_CHECK oct_status oct_runner_run(oct_runner *r, oct_run *run, const oct_tally *tally,
                                         oct_error *err);

#endif
