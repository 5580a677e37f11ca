/* thread_ranks.h: jobs whose ranks are threads, with a communicator made of a barrier and shared
 * memory: what is tested is who computes what, and the orders that rank 0 gives. To be included
 * after cmocka.h. */
#ifndef OCT_TEST_THREAD_RANKS_H
#define OCT_TEST_THREAD_RANKS_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "kernels.h"
#include "octet.h"
#include "session_impl.h"

enum { MAX_RANKS = 8 };

/* ---- ranks as threads ---- */

typedef struct hub {
    pthread_barrier_t barrier;
    const void *place[MAX_RANKS]; /* what each rank shows to the others */
    int64_t folds, floats;        /* rank 0's */
    int64_t cancel_at;            /* the fold in which rank cancel_rank is cancelled; 0: none */
    int cancel_rank;
    volatile int *cancel; /* its flag */
} hub;

typedef struct thread_comm {
    oct_comm base;
    hub *hub;
} thread_comm;

static void show(oct_comm *c, const void *p)
{
    hub *h = ((thread_comm *)(void *)c)->hub;
    h->place[c->rank] = p;
    pthread_barrier_wait(&h->barrier);
}

static void done(oct_comm *c)
{
    pthread_barrier_wait(&((thread_comm *)(void *)c)->hub->barrier);
}

static oct_status thread_fold(oct_comm *c, float *x, int64_t n, oct_error *err)
{
    hub *h = ((thread_comm *)(void *)c)->hub;
    float *levels = aligned_alloc(64, ((size_t)n * 4 * sizeof *levels + 64) / 64 * 64);
    (void)err;
    if (c->rank == 0) {
        h->folds++;
        h->floats += n;
    }
    show(c, x);
    if (h->cancel && c->rank == h->cancel_rank && h->folds == h->cancel_at)
        __atomic_store_n(h->cancel, 1, __ATOMIC_RELAXED);
    oct_fold f;
    oct_fold_begin(&f, levels, n, oct_kernel_rows[OCT_KERNELS_REF].add);
    for (int r = 0; r < c->size; r++) {
        memcpy(oct_fold_next(&f), h->place[r], (size_t)n * sizeof *x);
        oct_fold_push(&f);
    }
    const float *sum = oct_fold_end(&f);
    done(c); /* all have read */
    memcpy(x, sum, (size_t)n * sizeof *x);
    free(levels);
    return OCT_OK;
}

static oct_status thread_broadcast(oct_comm *c, void *data, size_t bytes, oct_error *err)
{
    (void)err;
    show(c, data);
    if (c->rank != 0)
        memcpy(data, ((thread_comm *)(void *)c)->hub->place[0], bytes);
    done(c);
    return OCT_OK;
}

static oct_status thread_gather(oct_comm *c, const void *mine, size_t bytes, void *all,
                                oct_error *err)
{
    (void)err;
    show(c, mine);
    for (int r = 0; r < c->size; r++)
        memcpy((char *)all + (size_t)r * bytes, ((thread_comm *)(void *)c)->hub->place[r], bytes);
    done(c);
    return OCT_OK;
}

static oct_status thread_announce(oct_comm *c, void *data, size_t *bytes, oct_error *err)
{
    size_t room = *bytes;
    OCT_TRY(thread_broadcast(c, bytes, sizeof *bytes, err));
    if (*bytes > room)
        return oct_fail(err, OCT_ERR_COMM, "%zu bytes for a room of %zu", *bytes, room);
    return thread_broadcast(c, data, *bytes, err);
}

static oct_status thread_collect(oct_comm *c, const void *mine, size_t bytes, void *all,
                                 oct_error *err)
{
    (void)err;
    show(c, mine);
    for (int r = 0; c->rank == 0 && r < c->size; r++) {
        const void *from = ((thread_comm *)(void *)c)->hub->place[r];
        if (from)
            memcpy((char *)all + (size_t)r * bytes, from, bytes);
    }
    done(c);
    return OCT_OK;
}

/* ---- a job ---- */

typedef struct job job;
struct job {
    const oct_model *model;
    oct_model *const *parts; /* [n_ranks] models that the ranks use instead; NULL: all use model */
    oct_session_params params;
    const oct_placement *placement[MAX_RANKS]; /* of each rank's weights */
    const oct_devices *devices[MAX_RANKS];     /* and beside its CPU */
    const oct_gpus *gpus[MAX_RANKS];           /* likewise, instead of those of params */
    oct_stream_rates rates;                    /* instead of what a rank has measured; zero: that */
    uint64_t streamed[MAX_RANKS];              /* bytes, when it has ended */
    const int32_t *tokens;                     /* [B][T] */
    int64_t B, T;
    int n_ranks;
    /* What rank 0 does with its session; NULL: `lead` */
    oct_status (*lead)(job *j, oct_session *s, oct_error *err);
    hub hub;
    float *logits; /* rank 0's: [B * T][V] */
    oct_status status[MAX_RANKS];
    oct_error error[MAX_RANKS];
};

typedef struct rank_arg {
    job *j;
    int rank;
} rank_arg;

/* Rank 0: every sequence in two parts, the second one evaluated twice, with a truncation
 * between. */
static oct_status lead(job *j, oct_session *s, oct_error *err)
{
    int64_t V = oct_model_get_info(j->model)->n_vocab, half = j->T / 2;
    int64_t n = j->B * j->T;
    uint8_t *want = malloc((size_t)n);
    memset(want, 1, (size_t)n);
    oct_status status = OCT_OK;
    for (int64_t b = 0; b < j->B && status == OCT_OK; b++) {
        const int32_t *t = j->tokens + b * j->T;
        float *out = j->logits + b * j->T * V;
        int32_t *seq = malloc((size_t)j->T * sizeof *seq);
        for (int64_t i = 0; i < j->T; i++)
            seq[i] = (int32_t)b;
        oct_batch first = {half, t, seq, want}, second = {j->T - half, t + half, seq, want};
        status = oct_eval(s, &first, out, err);
        if (status == OCT_OK)
            status = oct_eval(s, &second, out + half * V, err);
        oct_session_truncate(s, (int32_t)b, half);
        if (status == OCT_OK)
            status = oct_eval(s, &second, out + half * V, err);
        free(seq);
    }
    free(want);
    return status;
}

static void *run_rank(void *arg)
{
    rank_arg *a = arg;
    job *j = a->j;
    oct_error *err = &j->error[a->rank];
    thread_comm comm = {{.rank = a->rank,
                         .size = j->n_ranks,
                         .fold = thread_fold,
                         .broadcast = thread_broadcast,
                         .announce = thread_announce,
                         .collect = thread_collect,
                         .gather = thread_gather},
                        &j->hub};
    oct_session_params p = j->params;
    p.comm = j->n_ranks > 1 ? &comm.base : NULL;
    if (j->hub.cancel && a->rank == j->hub.cancel_rank)
        p.cancel = j->hub.cancel;
    p.n_seqs = p.n_seqs ? p.n_seqs : j->B;
    p.placement = j->placement[a->rank];
    p.gpus = j->gpus[a->rank] ? j->gpus[a->rank] : p.gpus;
    oct_session *s;
    oct_status status = oct_session_new_on(j->parts ? j->parts[a->rank] : j->model, &p,
                                           j->devices[a->rank], &s, err);
    if (status == OCT_OK) {
        oct_session_stats stats;
        if (j->rates.link > 0)
            s->runner.rates = j->rates;
        status = a->rank > 0 ? oct_session_serve(s, err) : (j->lead ? j->lead : lead)(j, s, err);
        oct_session_get_stats(s, &stats);
        j->streamed[a->rank] = stats.streamed;
        oct_session_free(s);
    }
    j->status[a->rank] = status;
    return NULL;
}

/* Fills logits (the caller frees them) and how each rank ended. */
static inline void run_ranks(job *j)
{
    pthread_t thread[MAX_RANKS];
    rank_arg arg[MAX_RANKS];
    j->logits =
        malloc((size_t)(j->B * j->T * oct_model_get_info(j->model)->n_vocab) * sizeof *j->logits);
    pthread_barrier_init(&j->hub.barrier, NULL, (unsigned)j->n_ranks);
    for (int r = 0; r < j->n_ranks; r++) {
        arg[r] = (rank_arg){j, r};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &arg[r]), 0);
    }
    for (int r = 0; r < j->n_ranks; r++)
        pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&j->hub.barrier);
}

/* The logits of all tokens, of ranks that all end well; the caller frees them. */
static inline float *run_job(job *j)
{
    run_ranks(j);
    for (int r = 0; r < j->n_ranks; r++)
        if (j->status[r] != OCT_OK)
            fail_msg("rank %d: %s", r, j->error[r].text);
    return j->logits;
}

#endif
