/* test_delay.c: what a slow network costs is what Octet predicts. Ranks are threads; a message of
 * theirs is there only after a latency, and after the bytes before it have left, and come in. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include <cmocka.h>

#include "comm.h"
#include "machine.h"
#include "measure.h"
#include "model_impl.h"
#include "threads.h"

enum { RANKS = 4, LETTERS = 64, TOKENS = 17 };
/* Two ranks take one round less than predicted: the second stays behind by the order's way to it,
 * so that both gatherings at the end of a token wait only once. */
static const double TOLERANCE = 0.15;

/* ---- a network in memory ---- */

typedef struct letter {
    double there; /* when it can be read */
    double per_byte;
    size_t bytes;
    void *data;
} letter;

/* From one rank to another. */
typedef struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    letter ring[LETTERS];
    uint64_t n_sent, n_read;
} mailbox;

typedef struct slow_net {
    pthread_mutex_t lock;
    oct_network speed; /* rank 0 sets it before it gives an order */
    mailbox box[RANKS][RANKS];
} slow_net;

typedef struct slow_comm {
    oct_comm base;
    slow_net *net;
    double late;   /* seconds by which its clock is behind: those that it woke too late */
    double leaves; /* when all that was sent has left, by that clock */
    double taken;  /* when all that was read has come in */
} slow_comm;

static oct_network speed_of(slow_net *net, const oct_network *set)
{
    pthread_mutex_lock(&net->lock);
    if (set)
        net->speed = *set;
    const oct_network speed = net->speed;
    pthread_mutex_unlock(&net->lock);
    return speed;
}

static void send_to(slow_comm *c, int to, const void *data, size_t bytes)
{
    mailbox *m = &c->net->box[c->base.rank][to];
    double start = fmax(oct_seconds() - c->late, c->leaves);
    const oct_network speed = speed_of(c->net, NULL);
    c->leaves = start + (double)bytes * speed.per_byte;
    letter l = {c->leaves + speed.latency, speed.per_byte, bytes, malloc(bytes + 1)};
    memcpy(l.data, data, bytes);
    pthread_mutex_lock(&m->lock);
    if (m->n_sent - m->n_read == LETTERS)
        abort(); /* cmocka cannot fail on this thread */
    m->ring[m->n_sent++ % LETTERS] = l;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
}

static void sleep_until(double t)
{
    double whole = floor(t);
    const struct timespec until = {(time_t)whole, (long)(1e9 * (t - whole))};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        ;
}

/* A sleeper wakes some time after it asked to, and one that waits some time after it is called,
 * more on a busy machine. That is no property of the network: by the rank's clock it is then the
 * time at which the message was there, or that at which the rank asked for it. */
static size_t receive_some(slow_comm *c, int from, void *data, size_t room)
{
    mailbox *m = &c->net->box[from][c->base.rank];
    double asked = oct_seconds() - c->late;
    pthread_mutex_lock(&m->lock);
    while (m->n_read == m->n_sent)
        pthread_cond_wait(&m->filled, &m->lock);
    letter l = m->ring[m->n_read++ % LETTERS];
    pthread_mutex_unlock(&m->lock);
    if (l.bytes > room)
        abort();
    memcpy(data, l.data, l.bytes);
    free(l.data);
    l.there = fmax(l.there, c->taken + (double)l.bytes * l.per_byte);
    c->taken = l.there;
    sleep_until(l.there);
    c->late = oct_seconds() - fmax(asked, l.there);
    return l.bytes;
}

static void receive(slow_comm *c, int from, void *data, size_t bytes)
{
    if (receive_some(c, from, data, bytes) != bytes)
        abort();
}

static slow_comm *slow_of(oct_comm *c)
{
    return (slow_comm *)(void *)c;
}

static int64_t part_at(int64_t n, int r, int size)
{
    return n * r / size;
}

/* Two rounds, as comm_mpi.c: parts to their owners, sums to all. */
static oct_status slow_fold(oct_comm *c, float *x, int64_t n, oct_error *err)
{
    (void)err;
    slow_comm *s = slow_of(c);
    int me = c->rank, size = c->size;
    int64_t at = part_at(n, me, size), mine = part_at(n, me + 1, size) - at;
    float *part[RANKS] = {0};
    for (int i = 1; i < size; i++) {
        int r = (me + i) % size;
        int64_t first = part_at(n, r, size);
        send_to(s, r, x + first, (size_t)(part_at(n, r + 1, size) - first) * sizeof *x);
    }
    for (int r = 0; r < size; r++) {
        part[r] = malloc((size_t)(mine + 1) * sizeof *x);
        if (r == me)
            memcpy(part[r], x + at, (size_t)mine * sizeof *x);
        else
            receive(s, r, part[r], (size_t)mine * sizeof *x);
    }
    for (int step = 1; step < size; step *= 2)
        for (int r = 0; r + step < size; r += 2 * step)
            for (int64_t i = 0; i < mine; i++)
                part[r][i] += part[r + step][i];
    memcpy(x + at, part[0], (size_t)mine * sizeof *x);
    for (int i = 1; i < size; i++)
        send_to(s, (me + i) % size, x + at, (size_t)mine * sizeof *x);
    for (int r = 0; r < size; r++) {
        int64_t first = part_at(n, r, size);
        if (r != me)
            receive(s, r, x + first, (size_t)(part_at(n, r + 1, size) - first) * sizeof *x);
        free(part[r]);
    }
    return OCT_OK;
}

static oct_status slow_broadcast(oct_comm *c, void *data, size_t bytes, oct_error *err)
{
    (void)err;
    for (int r = 1; r < c->size && c->rank == 0; r++)
        send_to(slow_of(c), r, data, bytes);
    if (c->rank != 0)
        receive(slow_of(c), 0, data, bytes);
    return OCT_OK;
}

static oct_status slow_announce(oct_comm *c, void *data, size_t *bytes, oct_error *err)
{
    if (c->rank == 0)
        return slow_broadcast(c, data, *bytes, err);
    *bytes = receive_some(slow_of(c), 0, data, *bytes);
    return OCT_OK;
}

static oct_status slow_collect(oct_comm *c, const void *mine, size_t bytes, void *all,
                               oct_error *err)
{
    (void)err;
    if (c->rank != 0)
        send_to(slow_of(c), 0, mine, bytes);
    for (int r = 1; r < c->size && c->rank == 0; r++)
        receive(slow_of(c), r, (char *)all + (size_t)r * bytes, bytes);
    return OCT_OK;
}

static oct_status slow_gather(oct_comm *c, const void *mine, size_t bytes, void *all,
                              oct_error *err)
{
    (void)err;
    for (int i = 1; i < c->size; i++)
        send_to(slow_of(c), (c->rank + i) % c->size, mine, bytes);
    for (int r = 0; r < c->size; r++) {
        char *to = (char *)all + (size_t)r * bytes;
        r == c->rank ? (void)memmove(to, mine, bytes) : receive(slow_of(c), r, to, bytes);
    }
    return OCT_OK;
}

/* ---- tokens over it ---- */

typedef struct rank_job {
    slow_comm comm;
    const oct_model *model;
    oct_shard_layout by;
    oct_network speed;
    double *without,
        *with;        /* rank 0: [TOKENS] its seconds of a token over a fast and the slow network */
    float *logits[2]; /* rank 0: [V] of the last one */
    oct_status status;
    oct_error error;
} rank_job;

/* The same token in the same place over both, in turn. */
static oct_status decode(rank_job *j, oct_session *s)
{
    static const int32_t text[TOKENS] = {677, 263,  2224, 272,  263, 1252, 272, 485, 832,
                                         396, 1020, 292,  1263, 761, 272,  339, 21};
    for (int i = 0; i < TOKENS; i++)
        for (int slow = 0; slow < 2; slow++) {
            const oct_batch b = {.n = 1, .token = &text[i]};
            /* until the others have ended the token before, else it counts as part of this one */
            sleep_until(j->comm.leaves + speed_of(j->comm.net, NULL).latency);
            speed_of(j->comm.net, slow ? &j->speed : &(oct_network){0});
            j->comm.late = 0;
            double start = oct_seconds();
            OCT_TRY(oct_eval(s, &b, j->logits[slow], &j->error));
            (slow ? j->with : j->without)[i] = oct_seconds() - j->comm.late - start;
            if (!slow)
                oct_session_truncate(s, 0, i);
        }
    return OCT_OK;
}

static void *run_rank(void *arg)
{
    rank_job *j = arg;
    /* Sleeps end within a microsecond, not 50; and before others' work, where that is allowed. */
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    const oct_session_params p = {
        .n_ctx = 64, .n_threads = 1, .no_bind = true, .comm = &j->comm.base, .shard = j->by};
    oct_session *s;
    j->status = oct_session_new(j->model, &p, &s, &j->error);
    if (j->status != OCT_OK)
        return NULL;
    j->status = j->comm.base.rank == 0 ? decode(j, s) : oct_session_serve(s, &j->error);
    oct_session_free(s);
    return NULL;
}

static double fastest(const double *v)
{
    double least = v[0];
    for (int i = 1; i < TOKENS; i++)
        least = fmin(least, v[i]);
    return least;
}

/* Seconds that the slow network adds to a token. Whatever else a machine does makes tokens slower,
 * never faster, so the fastest ones tell. */
static double measure(const oct_model *m, int size, oct_shard_layout by, const oct_network *speed)
{
    static slow_net net;
    rank_job j[RANKS];
    pthread_t thread[RANKS];
    double with[TOKENS], without[TOKENS];
    size_t row = (size_t)oct_model_get_info(m)->n_vocab * sizeof(float);
    memset(&net, 0, sizeof net);
    pthread_mutex_init(&net.lock, NULL);
    for (int i = 0; i < RANKS * RANKS; i++) {
        pthread_mutex_init(&net.box[i / RANKS][i % RANKS].lock, NULL);
        pthread_cond_init(&net.box[i / RANKS][i % RANKS].filled, NULL);
    }
    for (int r = 0; r < size; r++) {
        j[r] = (rank_job){.comm = {.base = {.rank = r,
                                            .size = size,
                                            .fold = slow_fold,
                                            .broadcast = slow_broadcast,
                                            .announce = slow_announce,
                                            .collect = slow_collect,
                                            .gather = slow_gather},
                                   .net = &net},
                          .model = m,
                          .by = by,
                          .speed = *speed,
                          .with = with,
                          .without = without,
                          .logits = {malloc(row), malloc(row)}};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &j[r]), 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(thread[r], NULL);
    for (int r = 0; r < size; r++)
        if (j[r].status != OCT_OK)
            fail_msg("rank %d: %s", r, j[r].error.text);
    assert_memory_equal(j[0].logits[0], j[0].logits[1], row);
    for (int r = 0; r < size; r++) {
        free(j[r].logits[0]);
        free(j[r].logits[1]);
    }
    pthread_mutex_destroy(&net.lock);
    for (int i = 0; i < RANKS * RANKS; i++) {
        pthread_mutex_destroy(&net.box[i / RANKS][i % RANKS].lock);
        pthread_cond_destroy(&net.box[i / RANKS][i % RANKS].filled);
    }
    return fastest(with) - fastest(without);
}

static void check(const oct_network *speed)
{
    oct_error err = {0};
    oct_model *m;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &m, &err), OCT_OK);
    for (int size = 2; size <= RANKS; size *= 2)
        for (int by = 0; by < OCT_SHARD_LAYOUTS; by++) {
            oct_step_cost cost;
            const oct_step_shape step = {1, 1, 0, OCT_KV_F16};
            assert_null(oct_predict_step(m, (oct_shard_layout)by, size, &step, speed, &cost));
            double found = 0, off = 1;
            for (int tries = 0; tries < 5 && fabs(off) > TOLERANCE; tries++) {
                found = measure(m, size, (oct_shard_layout)by, speed);
                off = found / cost.exchange - 1;
            }
            printf("  %d ranks by %s: %.2f ms slower, %.2f predicted (%.0f rounds): %+.1f %%\n",
                   size, oct_shard_name((oct_shard_layout)by), 1e3 * found, 1e3 * cost.exchange,
                   cost.rounds, 100 * off);
            assert_true(fabs(off) <= TOLERANCE);
        }
    oct_model_close(m);
}

static void test_latency(void **state)
{
    (void)state;
    check(&(oct_network){1e-3, 0});
}

static void test_bandwidth(void **state)
{
    (void)state;
    check(&(oct_network){1e-3, 1 / 2e6});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latency),
        cmocka_unit_test(test_bandwidth),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
