/* test_ranks.c: models divided over ranks give the bits of one process. The ranks are threads here,
 * with a communicator made of a barrier and shared memory: what is tested is who computes what, and
 * the orders that rank 0 gives. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm.h"
#include "kernels.h"
#include "npy.h"
#include "octet.h"
#include "shard.h"

enum { MAX_RANKS = 8 };

/* ---- ranks as threads ---- */

typedef struct hub {
    pthread_barrier_t barrier;
    const void *place[MAX_RANKS]; /* what each rank shows to the others */
    int64_t folds;                /* rank 0's */
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
    if (c->rank == 0)
        h->folds++;
    show(c, x);
    oct_fold f;
    oct_fold_begin(&f, levels, n, oct_kernel_rows[OCT_ISA_REF].add);
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

/* ---- a job ---- */

typedef struct job {
    const oct_model *model;
    oct_session_params params;
    const int32_t *tokens; /* [B][T] */
    int64_t B, T;
    int n_ranks;
    hub hub;
    float *logits; /* rank 0's: [B * T][V] */
    oct_status status[MAX_RANKS];
    oct_error error[MAX_RANKS];
} job;

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
    thread_comm comm = {{a->rank, j->n_ranks, thread_fold, thread_broadcast, thread_gather, NULL},
                        &j->hub};
    oct_session_params p = j->params;
    p.comm = j->n_ranks > 1 ? &comm.base : NULL;
    p.n_seqs = j->B;
    oct_session *s;
    oct_status status = oct_session_new(j->model, &p, &s, err);
    if (status == OCT_OK) {
        status = a->rank == 0 ? lead(j, s, err) : oct_session_serve(s, err);
        oct_session_free(s);
    }
    j->status[a->rank] = status;
    return NULL;
}

static float *run_job(job *j)
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
    for (int r = 0; r < j->n_ranks; r++)
        if (j->status[r] != OCT_OK)
            fail_msg("rank %d: %s", r, j->error[r].text);
    return j->logits;
}

static void check_model(const char *name, const char *isa)
{
    char path[512];
    oct_error err = {0};
    oct_model *m;
    oct_npy tokens;
    snprintf(path, sizeof path, "%s/%s.gguf", OCT_TEST_MODELS, name);
    assert_int_equal(oct_model_open(path, &m, &err), OCT_OK);
    snprintf(path, sizeof path, "%s/golden/%s/tokens.npy", OCT_TEST_DATA, name);
    assert_int_equal(oct_npy_load(path, &tokens), 0);
    int64_t V = oct_model_get_info(m)->n_vocab;
    job one = {.model = m,
               .params = {.isa = isa, .n_threads = 1, .chunk = 16},
               .tokens = tokens.data,
               .B = tokens.shape[0],
               .T = tokens.shape[1],
               .n_ranks = 1};
    size_t bytes = (size_t)(one.B * one.T * V) * sizeof(float);
    float *want = run_job(&one);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int by = OCT_SHARD_BY_SLICE; by <= OCT_SHARD_BY_EXPERT; by++) {
            job many = one;
            many.n_ranks = ranks;
            many.params.shard = (oct_shard_by)by;
            float *got = run_job(&many);
            bool same = memcmp(want, got, bytes) == 0;
            printf("  %s, %s, %d ranks by %s: %s, %lld folds\n", name, isa, ranks,
                   by == OCT_SHARD_BY_EXPERT ? "expert" : "slice", same ? "same bits" : "DIFFER",
                   (long long)many.hub.folds);
            assert_true(same);
            assert_true(many.hub.folds > 0);
            free(got);
        }
    free(want);
    oct_npy_free(&tokens);
    oct_model_close(m);
}

static void test_models(void **state)
{
    (void)state;
    const char *isa = oct_kernel_rows[oct_isa_detect()].name;
    check_model("tiny-grok", isa);
    check_model("odd", isa);
    check_model("dense", isa);
    check_model("dense", "ref");
}

/* NUMA domains inside ranks. */
static void test_domains(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_model *m;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/dense.gguf", &m, &err), OCT_OK);
    static const int32_t tokens[12] = {5, 9, 200, 31, 4, 4, 77, 8, 90, 3, 6, 100};
    job one = {
        .model = m, .params = {.n_threads = 1}, .tokens = tokens, .B = 1, .T = 12, .n_ranks = 1};
    float *want = run_job(&one);
    job many = one;
    many.n_ranks = 2;
    many.params.topology = "numa:2 core:2 pu:1";
    many.params.n_threads = 4;
    float *got = run_job(&many);
    assert_memory_equal(want, got, (size_t)(12 * oct_model_get_info(m)->n_vocab) * sizeof(float));
    free(want);
    free(got);
    oct_model_close(m);
}

/* The parts of all ranks are the whole, once. */
static void test_shards(void **state)
{
    (void)state;
    oct_shard s;
    for (int layout = OCT_SHARD_EXPERT; layout <= OCT_SHARD_SLICE; layout++)
        for (int size = 1; size <= 8; size *= 2) {
            int64_t slice = 0, expert = 0;
            for (int r = 0; r < size; r++) {
                assert_null(oct_shard_make((oct_shard_layout)layout, r, size, 8, 8, &s));
                assert_int_equal(s.first_slice, slice);
                slice = s.end_slice;
                if (layout == OCT_SHARD_EXPERT) {
                    assert_int_equal(s.first_expert, expert);
                    expert = s.end_expert;
                }
            }
            assert_int_equal(slice, 8);
            assert_int_equal(s.end_expert, 8);
        }
    static const int wrong[] = {0, 3, 5, 9, 16};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 0, wrong[i], 8, 8, &s));
    assert_non_null(oct_shard_make(OCT_SHARD_EXPERT, 0, 4, 8, 6, &s)); /* 6 experts on 4 ranks */
    assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 0, 2, 6, 8, &s));  /* 3 slices: no subtree */
    assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 2, 2, 8, 8, &s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_domains),
        cmocka_unit_test(test_models),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
