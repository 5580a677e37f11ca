/* session_kv.c: what sequences hold, on one process or on all ranks of a job. */
#include <string.h>

#include "session_impl.h"

static bool is_seq(const oct_session *s, int64_t seq)
{
    return seq >= 0 && seq < s->p.n_seqs;
}

int64_t oct_session_pos(const oct_session *s, int32_t seq)
{
    return is_seq(s, seq) ? s->pages.len[seq] : 0;
}

void oct_session_truncate(oct_session *s, int32_t seq, int64_t n)
{
    oct_error err = {0};
    if (n < 0 || n >= oct_session_pos(s, seq))
        return;
    oct_kv_pages_truncate(&s->pages, seq, n);
    if (s->comm->rank == 0)
        s->comm_status = oct_eval_order(s, OCT_ORDER_TRUNCATE, seq, n, 0, &err);
}

static oct_status check_empty(const oct_session *s, int64_t seq, oct_error *err)
{
    if (!is_seq(s, seq))
        return oct_fail(err, OCT_ERR_ARG, "sequence %lld, expected 0..%lld", (long long)seq,
                        (long long)s->p.n_seqs - 1);
    if (s->pages.len[seq] > 0)
        return oct_fail(err, OCT_ERR_ARG, "sequence %lld: holds %lld tokens, expected none",
                        (long long)seq, (long long)s->pages.len[seq]);
    return OCT_OK;
}

oct_status oct_session_fork(oct_session *s, int32_t from, int32_t to, oct_error *err)
{
    if (!is_seq(s, from))
        return oct_fail(err, OCT_ERR_ARG, "sequence %d, expected 0..%lld", from,
                        (long long)s->p.n_seqs - 1);
    OCT_TRY(check_empty(s, to, err));
    if (s->comm->rank == 0)
        OCT_TRY(oct_eval_order(s, OCT_ORDER_FORK, from, to, 0, err));
    oct_kv_pages_fork(&s->pages, from, to);
    return OCT_OK;
}

/* Rank 0 has found the positions: the others must find as many. */
static oct_status share_reuse(oct_session *s, int32_t seq, const int32_t *ids, int64_t n,
                              oct_error *err)
{
    memcpy(s->order->rows, ids, (size_t)n * sizeof *ids);
    return oct_eval_order(s, OCT_ORDER_REUSE, seq, n, n, err);
}

oct_status oct_session_reuse(oct_session *s, int32_t seq, const int32_t *ids, int64_t n,
                             int64_t *held, oct_error *err)
{
    *held = 0;
    OCT_TRY(check_empty(s, seq, err));
    if (n < 1)
        return oct_fail(err, OCT_ERR_ARG, "reuse: %lld ids, expected at least 1", (long long)n);
    int64_t found = oct_kv_pages_reuse(&s->pages, seq, ids, n - 1);
    oct_status status = found > 0 ? share_reuse(s, seq, ids, found, err) : OCT_OK;
    if (status != OCT_OK)
        oct_kv_pages_truncate(&s->pages, seq, 0);
    else
        *held = found;
    return status;
}

static oct_status obey_reuse(oct_session *s, int64_t n_rows, oct_error *err)
{
    const oct_rank_order *o = s->order;
    OCT_TRY(check_empty(s, o->a, err));
    int64_t found = o->b == n_rows ? oct_kv_pages_reuse(&s->pages, o->a, o->rows, n_rows) : -1;
    if (found != o->b)
        return oct_fail(err, OCT_ERR_ARG,
                        "rank %d: rank 0 reuses %lld positions, expected as many here, found %lld",
                        s->comm->rank, (long long)o->b, (long long)found);
    return OCT_OK;
}

oct_status oct_session_obey_kv(oct_session *s, int64_t n_rows, oct_error *err)
{
    const oct_rank_order *o = s->order;
    if (o->what == OCT_ORDER_TRUNCATE)
        oct_session_truncate(s, (int32_t)o->a, o->b);
    else if (o->what == OCT_ORDER_FORK)
        return oct_session_fork(s, (int32_t)o->a, (int32_t)o->b, err);
    else if (o->what == OCT_ORDER_REUSE)
        return obey_reuse(s, n_rows, err);
    else if (o->what == OCT_ORDER_SAVE || o->what == OCT_ORDER_RESTORE)
        return oct_session_obey_saving(s, n_rows, err);
    return OCT_OK;
}

void oct_session_get_kv(const oct_session *s, oct_kv_usage *usage)
{
    const oct_kv_pages *p = &s->pages;
    *usage = (oct_kv_usage){.pages = p->n_pages,
                            .used = p->n_pages - p->n_fresh - p->n_free - p->n_cached,
                            .cached = p->n_cached,
                            .page_positions = OCT_KV_PAGE,
                            .page_bytes = s->p.kv.page_bytes,
                            .copied = p->n_copied};
}
