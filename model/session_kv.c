/* session_kv.c: what sequences hold, on one process or on all ranks of a job. */
#include <stdlib.h>
#include <string.h>

#include "session_impl.h"

static bool is_seq(const oct_session *s, int64_t seq)
{
    return seq >= 0 && seq < s->n_seqs;
}

int64_t oct_session_pos(const oct_session *s, int32_t seq)
{
    return is_seq(s, seq) ? s->kv.pages.len[seq] : 0;
}

void oct_session_truncate(oct_session *s, int32_t seq, int64_t n)
{
    oct_error err = {0};
    if (n < 0 || n >= oct_session_pos(s, seq))
        return;
    oct_kv_pages_truncate(&s->kv.pages, seq, n);
    if (s->comm->rank == 0)
        s->comm_status = oct_eval_order(s, OCT_ORDER_TRUNCATE, seq, n, &err);
}

static oct_status check_empty(const oct_session *s, int64_t seq, oct_error *err)
{
    if (!is_seq(s, seq))
        return oct_fail(err, OCT_ERR_ARG, "sequence %lld, expected 0..%lld", (long long)seq,
                        (long long)s->n_seqs - 1);
    if (s->kv.pages.len[seq] > 0)
        return oct_fail(err, OCT_ERR_ARG, "sequence %lld: holds %lld tokens, expected none",
                        (long long)seq, (long long)s->kv.pages.len[seq]);
    return OCT_OK;
}

oct_status oct_session_fork(oct_session *s, int32_t from, int32_t to, oct_error *err)
{
    if (!is_seq(s, from))
        return oct_fail(err, OCT_ERR_ARG, "sequence %d, expected 0..%lld", from,
                        (long long)s->n_seqs - 1);
    OCT_TRY(check_empty(s, to, err));
    if (s->comm->rank == 0)
        OCT_TRY(oct_eval_order(s, OCT_ORDER_FORK, from, to, err));
    oct_kv_pages_fork(&s->kv.pages, from, to);
    return OCT_OK;
}

/* Rank 0 has found the positions: the others must find as many. */
static oct_status share_reuse(oct_session *s, int32_t seq, const int32_t *ids, int64_t n,
                              oct_error *err)
{
    if (s->comm->size == 1)
        return OCT_OK;
    size_t bytes = (size_t)n * sizeof *ids;
    int32_t *message = malloc(bytes);
    if (!message)
        return oct_fail(err, OCT_ERR_MEMORY, "session: out of memory for %lld ids", (long long)n);
    memcpy(message, ids, bytes);
    oct_status status = oct_eval_order(s, OCT_ORDER_REUSE, seq, n, err);
    if (status == OCT_OK)
        status = s->comm->broadcast(s->comm, message, bytes, err);
    free(message);
    return status;
}

oct_status oct_session_reuse(oct_session *s, int32_t seq, const int32_t *ids, int64_t n,
                             int64_t *held, oct_error *err)
{
    *held = 0;
    OCT_TRY(check_empty(s, seq, err));
    if (n < 1)
        return oct_fail(err, OCT_ERR_ARG, "reuse: %lld ids, expected at least 1", (long long)n);
    int64_t found = oct_kv_pages_reuse(&s->kv.pages, seq, ids, n - 1);
    oct_status status = found > 0 ? share_reuse(s, seq, ids, found, err) : OCT_OK;
    if (status != OCT_OK)
        oct_kv_pages_truncate(&s->kv.pages, seq, 0);
    else
        *held = found;
    return status;
}

static oct_status obey_reuse(oct_session *s, const oct_order *o, oct_error *err)
{
    OCT_TRY(check_empty(s, o->a, err));
    if (o->b < 1 || o->b > s->n_ctx)
        return oct_fail(err, OCT_ERR_COMM, "rank %d: rank 0 reuses %lld positions of %lld",
                        s->comm->rank, (long long)o->b, (long long)s->n_ctx);
    int32_t *ids = malloc((size_t)o->b * sizeof *ids);
    if (!ids)
        return oct_fail(err, OCT_ERR_MEMORY, "rank %d: out of memory for ids", s->comm->rank);
    oct_status status = s->comm->broadcast(s->comm, ids, (size_t)o->b * sizeof *ids, err);
    int64_t found = 0;
    if (status == OCT_OK)
        found = oct_kv_pages_reuse(&s->kv.pages, o->a, ids, o->b);
    free(ids);
    if (status == OCT_OK && found != o->b)
        return oct_fail(err, OCT_ERR_COMM,
                        "rank %d: rank 0 reuses %lld positions, expected as many here, found %lld",
                        s->comm->rank, (long long)o->b, (long long)found);
    return status;
}

oct_status oct_session_obey_kv(oct_session *s, const oct_order *o, oct_error *err)
{
    if (o->what == OCT_ORDER_TRUNCATE)
        oct_session_truncate(s, (int32_t)o->a, o->b);
    else if (o->what == OCT_ORDER_FORK)
        return oct_session_fork(s, (int32_t)o->a, (int32_t)o->b, err);
    else if (o->what == OCT_ORDER_REUSE)
        return obey_reuse(s, o, err);
    return OCT_OK;
}

void oct_session_get_kv(const oct_session *s, oct_kv_usage *usage)
{
    const oct_kv_pages *p = &s->kv.pages;
    *usage = (oct_kv_usage){.pages = p->n_pages,
                            .used = p->n_pages - p->n_fresh - p->n_free - p->n_cached,
                            .cached = p->n_cached,
                            .page_positions = OCT_KV_PAGE,
                            .page_bytes = s->kv.page_bytes,
                            .copied = p->n_copied};
}
