/* forecast.h: whether a model fits on hosts, and how fast it will be there, before anything is
 * loaded: from its header (that of a file without weights will do, see oct_outline_open in
 * convert.h), the plan that sessions are made by, and a few numbers of each host. */
#ifndef OCT_FORECAST_H
#define OCT_FORECAST_H

#include "machine.h"
#include "measure.h"
#include "octet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oct_bounds {
    double min, max;
} oct_bounds;

/* A host. Rates are of all its threads together; max 0: unknown. */
typedef struct oct_host {
    uint64_t memory;            /* bytes that a process may take there */
    const oct_machine *machine; /* borrowed: threads and NUMA nodes; NULL: those of this one */
    oct_bounds read;            /* bytes per second from memory, as oct_measure_read has them */
    oct_bounds ops;             /* per second, of the kernels' integer instruction */
    double flops;               /* f32 multiplications and additions per second; 0: unknown */
} oct_host;

/* This machine: its memory now, and its rates, measured for about a second on p->n_threads threads
 * (0: as many as a session takes) with the kernels that p->isa chooses. A rate that cannot be
 * measured stays unknown. p->machine is borrowed by the host. One caller at a time. */
OCT_API OCT_MUST_CHECK oct_status oct_host_measure(const oct_session_params *p, oct_host *out,
                                                   oct_error *err);

/* A GPU beside each host's processor, which is given what sessions give it (gpu.h). */
typedef struct oct_card {
    uint64_t memory; /* bytes, all of them: some are left to others */
    double read;     /* bytes per second from its memory */
} oct_card;

typedef struct oct_forecast_params {
    const oct_host *hosts; /* [n_hosts] borrowed; one rank on each */
    int n_hosts;           /* 1: one process */
    oct_network network;   /* between hosts */
    const oct_card *card;  /* borrowed; NULL: none */
    unsigned layouts;      /* that may be chosen, bit k: oct_shard_layout k; 0: all */
    /* n_ctx, n_seqs, chunk, n_threads, kv, act, kv_bytes and isa, as for a session; the rest does
     * not count. */
    oct_session_params session;
    int64_t n_prompt; /* tokens of the prompt, 1 or more: the first token comes after it, and the
                         tokens whose rate is told come behind it */
    uint64_t extra;   /* bytes that the caller takes beside the session, on rank 0 */
} oct_forecast_params;

/* What a rank takes on its host. */
typedef struct oct_forecast_rank {
    oct_session_need need; /* as oct_session_estimate has it, less what the card takes */
    uint64_t total;        /* of need and extra */
    uint64_t on_card;      /* bytes */
    bool fits;
} oct_forecast_rank;

typedef enum oct_limit {
    OCT_LIMIT_READ,    /* reading weights, keys and values from memory */
    OCT_LIMIT_OPS,     /* arithmetic */
    OCT_LIMIT_EXCHANGE /* between ranks */
} oct_limit;

/* Seconds of some work. max 0: a rate is not known. */
typedef struct oct_forecast_time {
    oct_bounds seconds;
    oct_limit limit;
    double bytes; /* read by the rank that reads most */
} oct_forecast_time;

typedef struct oct_forecast {
    bool fits; /* every rank on its host */
    oct_shard_layout layout;
    oct_forecast_time step;   /* a token for each of n_seqs sequences */
    oct_forecast_time prompt; /* n_prompt tokens of one sequence */
    int64_t chunk;            /* tokens of it that are evaluated together */
    double exchange;          /* seconds of a step */
} oct_forecast;

/* What shares of their bounds `octet bench` has measured: seconds are bound / max .. bound / min.
 * Constants. */
OCT_API oct_bounds oct_forecast_step_share(void);
OCT_API oct_bounds oct_forecast_prompt_share(void);

/* Of the layouts allowed the one that fits and gives tokens fastest; if none fits, the one that
 * lacks least. ranks: [n_hosts] of the caller. OCT_ERR_ARG: no host, no prompt, a prompt beyond
 * the context; OCT_ERR_UNSUPPORTED: so many ranks cannot share the model; else errors of
 * oct_session_estimate. Thread-safe. */
OCT_API OCT_MUST_CHECK oct_status oct_forecast_make(const oct_model *m,
                                                    const oct_forecast_params *p,
                                                    oct_forecast_rank *ranks, oct_forecast *out,
                                                    oct_error *err);
/* The longest context, at most the model's, with which it fits; 0: with none. A multiple of 128,
 * or the model's. The prompt is cut to it. Errors as above. */
OCT_API OCT_MUST_CHECK oct_status oct_forecast_context(const oct_model *m,
                                                       const oct_forecast_params *p, int64_t *n_ctx,
                                                       oct_error *err);
/* The fewest hosts that are all as the first one, and more than n_hosts, on which it fits; 0: no
 * number of ranks does. Errors as above. */
OCT_API OCT_MUST_CHECK oct_status oct_forecast_hosts(const oct_model *m,
                                                     const oct_forecast_params *p, int *n_hosts,
                                                     oct_error *err);

#ifdef __cplusplus
}
#endif
#endif
