/* bench_parts.c: single operations of a model, alone: one expert's matrices, attention. */
#include "bench.h"

enum { KV_BYTES = 1 << 30 };

typedef struct part {
    oct_operation *operation;
    double passes; /* of the instruction, for each multiplication and addition */
} part;

static oct_session_params params_of(const oct_bench_rig *r)
{
    return (oct_session_params){.n_threads = r->n_threads,
                                .kv = (oct_kv_type)r->b->kv,
                                .act = (oct_act)r->b->act,
                                .isa = r->b->kernels,
                                .cancel = oct_cli_cancel_flag()};
}

static oct_status once(void *ctx, oct_bench_run *run, oct_error *err)
{
    const part *p = ctx;
    oct_operation_run done;
    OCT_TRY(oct_operation_do(p->operation, &done, err));
    *run = (oct_bench_run){.seconds = done.seconds,
                           .tokens = done.rows,
                           .bytes = done.bytes,
                           .ops = done.ops * p->passes,
                           .waited = done.waited};
    return OCT_OK;
}

static oct_status measure(oct_bench_rig *r, part *p, int arithmetic, json_t *row, oct_error *err)
{
    oct_status status = oct_bench_measure(r, arithmetic, once, p, row, err);
    if (status == OCT_OK)
        json_array_append(r->b->rows, row);
    json_decref(row);
    oct_operation_free(p->operation);
    return status;
}

oct_status oct_bench_expert(oct_bench_rig *r, int64_t n_rows, oct_error *err)
{
    const oct_session_params params = params_of(r);
    part p = {.passes = oct_bench_passes(r)};
    OCT_TRY(oct_operation_experts(r->b->model, &params, n_rows, r->b->seed, &p.operation, err));
    return measure(r, &p, r->integer, oct_bench_row(r, "expert", n_rows, 0, n_rows, n_rows), err);
}

oct_status oct_bench_attention(oct_bench_rig *r, int64_t batch, oct_error *err)
{
    const oct_session_params params = params_of(r);
    const int64_t n_ctx = oct_model_get_info(r->b->model)->n_ctx;
    part p = {.passes = 1};
    int64_t n_seqs;
    OCT_TRY(oct_operation_attention(r->b->model, &params, batch, KV_BYTES, r->b->seed, &n_seqs,
                                    &p.operation, err));
    r->attention = p.operation;
    oct_status status =
        measure(r, &p, r->f32, oct_bench_row(r, "attention", n_seqs, n_ctx, batch, batch), err);
    r->attention = NULL;
    return status;
}
