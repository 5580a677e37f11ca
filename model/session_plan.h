/* session_plan.h: what a session is made of, before anything of it exists. One plan is printed,
 * compared, refused and, by oct_session_new, carried out. */
#ifndef OCT_SESSION_PLAN_H
#define OCT_SESSION_PLAN_H

#include "cpu.h"
#include "model_impl.h"
#include "plan.h"
#include "session_gpu.h"

/* Places beside the host, and what they compute. */
typedef struct oct_devices {
    int n;
    struct {
        const oct_backend_kind *kind;
        const void *numbers;
        oct_status (*open)(const void *numbers, oct_backend **out, oct_error *err);
    } device[OCT_MAX_PLACES - 1];
    /* Gives every node its place: 0 the host, k the device k - 1. Attention is where its ROPE_STORE
     * is, exchanges are the host's, whatever it says. */
    void (*deal)(void *ctx, const oct_graph *g, uint8_t *where);
    void *ctx;
} oct_devices;

typedef struct oct_session_plan {
    int64_t n_ctx, n_seqs, chunk;
    const char *threads_why;
    bool bind;
    oct_shard shard;
    oct_cpu_numbers cpu;
    oct_attn_shape attn;
    oct_plain rope;  /* data: NULL, the session's to make */
    oct_kv_cache kv; /* of all layers */
    oct_graph graph;
    oct_plan plan;
    oct_gpu_deal gpus; /* places 1 .. gpus.n of the plan, unless others were given */
} oct_session_plan;

/* Bytes on the stack in which a plan of Grok-1's 64 layers has room. */
enum { OCT_SESSION_PLAN_ROOM = 384 << 10 };

/* *s must not move afterwards: it points into itself. d NULL: the GPUs of p take what fits. room,
 * if not NULL: memory for it, so that none is asked of the system. Free in any state with
 * oct_session_plan_free. */
OCT_MUST_CHECK oct_status oct_session_plan_make(const oct_model *m, const oct_session_params *p,
                                                const oct_machine *machine, const oct_devices *d,
                                                void *room, size_t room_bytes, oct_session_plan *s,
                                                oct_error *err);
void oct_session_plan_free(oct_session_plan *s);

/* The plan of one token on a rank, for what the ranks exchange: memory and threads are of no
 * machine. */
OCT_MUST_CHECK oct_status oct_session_plan_ranks(const oct_model *m, const oct_shard *shard,
                                                 void *room, size_t room_bytes,
                                                 oct_session_plan *s);

/* Bytes of the table of rotations. */
static inline size_t oct_session_rope_bytes(const oct_session_plan *s)
{
    return (size_t)(s->rope.rows * s->rope.cols) * sizeof(float);
}

#endif
