/* backend.h: what computes nodes. A backend is a folder of its own and one oct_backend_kind: the
 * pure part, which plans ask, and an oct_backend that is opened by whoever executes a plan. */
#ifndef OCT_BACKEND_H
#define OCT_BACKEND_H

#include "graph.h"
#include "kv_cache.h"
#include "threads.h"

struct oct_plan;

/* Who looks on at the inputs of experts' matrices: see is called by every thread of the CPU with
 * the same rows, n of them at most OCT_TAP_ROWS, [n_in] each: the input of gate and up (which 0),
 * or of down (1). A row is seen once; those of one expert in the order of the batch. */
enum { OCT_TAP_ROWS = 16 };
typedef struct oct_tap {
    void (*see)(void *ctx, int thread, int n_threads, int64_t layer, int64_t expert, int which,
                const float *const *row, int n);
    void *ctx;
} oct_tap;

/* What of a run the backends need: n_rows <= the graph's capacity tokens. */
typedef struct oct_run {
    int64_t n_rows;
    const int32_t *token, *seq; /* [n_rows] */
    const int32_t *pos;         /* [n_rows] absolute positions */
    int64_t n_out;
    const int32_t *out_row; /* [n_out] rows whose logits are wanted, ascending */
    /* In host memory. Row i of logits begins at logits + i * logits_stride, with the id
     * first_logit. */
    float *logits;
    int64_t logits_stride, first_logit;
    oct_kv_cache *kv;           /* [places of the plan] */
    const volatile int *cancel; /* NULL: never; read atomically, see oct_cancelled */
    const oct_tap *tap;         /* NULL: nobody */
    uint64_t bytes_read;        /* added to: weights and scales */
    uint64_t kv_read;           /* added to: keys and values */
    uint64_t streamed;          /* added to: the part of bytes_read that was brought to a device */
    /* Of EXPERTS and COMBINE, by bits: those that a device computes for the host just now. The
     * host's slots of them are zero; all_elsewhere: there are none of the host. The runner's. */
    uint64_t elsewhere;
    bool all_elsewhere;
} oct_run;

/* Pure functions of a backend's numbers (threads, tiles, the shard ...): no memory is taken, no
 * system asked, so that a plan is a matter of microseconds. */
typedef struct oct_backend_kind {
    const char *name;
    bool host; /* its memory is the process's: weights are read where the placement has them */
    /* Of a matrix or the table it is given the units that the rank computes and no others, one
     * behind the other; else the whole, as in the file. See oct_array. */
    bool packed;
    bool (*supports)(const void *numbers, const oct_node *n);
    /* Of a node, for a capacity of rows: temporary memory that all of the backend shares while the
     * node runs; and scratch, of which the largest of any node is kept. */
    size_t (*temp_bytes)(const void *numbers, const oct_node *n, int64_t rows);
    size_t (*scratch_bytes)(const void *numbers, const oct_node *n, int64_t rows);
    /* As temp_bytes, of EXPERTS whose weights are brought while it computes. NULL: it cannot. */
    size_t (*stream_bytes)(const void *numbers, const oct_node *n, int64_t rows);
} oct_backend_kind;

/* An open backend. One thread of the caller at a time. Memory it gives is its own: host code
 * reaches it by upload and download only, unless kind->host. */
typedef struct oct_backend oct_backend;
struct oct_backend {
    const oct_backend_kind *kind;
    oct_status (*alloc)(oct_backend *b, size_t bytes, void **p, oct_error *err);
    void (*release)(oct_backend *b, void *p, size_t bytes);
    /* Copies and run are done in the order of the calls, but may be done later: until wait returns
     * the host's side of a copy is neither changed nor, of a download, read. What fails meanwhile
     * is told by wait or any later call. wait NULL: calls return when all is done. */
    oct_status (*upload)(oct_backend *b, void *to, const void *from, size_t bytes, oct_error *err);
    oct_status (*download)(oct_backend *b, void *to, const void *from, size_t bytes,
                           oct_error *err);
    oct_status (*wait)(oct_backend *b, oct_error *err);
    /* Memory of the host that copies will often use, until unpin: they may become faster, and need
     * not. NULL: nothing is gained. pin: whether all copies of it are late. */
    bool (*pin)(oct_backend *b, void *p, size_t bytes);
    void (*unpin)(oct_backend *b, void *p);
    /* Nothing given behind hold is begun before go, which the caller calls whatever happens: so a
     * device can be given what comes next while the host still computes what it begins with.
     * Between the two there are copies of pinned memory and run without logits only, no wait.
     * false: it cannot now, and nothing is held. NULL: never. */
    bool (*hold)(oct_backend *b);
    void (*go)(oct_backend *b);
    /* Around the calls that make one evaluation. end comes when all is done. */
    void (*begin)(oct_backend *b);
    void (*end)(oct_backend *b);
    /* Runs steps first..end-1 of a plan, all of them this backend's, with its buffer of that plan.
     * OCT_ERR_CANCELLED leaves outputs undefined. A backend with wait does not add the experts that
     * it read to bytes_read: the runner knows the choices when all is done. */
    oct_status (*run)(oct_backend *b, const struct oct_plan *p, unsigned char *buffer, int first,
                      int end, oct_run *r, oct_error *err);
    /* Begins step `step` (streamed) for the experts of r->elsewhere, with weights of the host, and
     * returns: the host's threads are free meanwhile. Any call of this backend but free comes
     * behind it. NULL: see stream_bytes. */
    oct_status (*stream)(oct_backend *b, const struct oct_plan *p, unsigned char *buffer, int step,
                         oct_run *r, oct_error *err);
    void (*free)(oct_backend *b);
};

#endif
