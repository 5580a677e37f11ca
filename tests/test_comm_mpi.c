/* test_comm_mpi.c: the communicator on MPI, run by mpirun with 1, 2, 4 and 8 ranks (3 too): a fold
 * over ranks must give the bits of the fixed tree over slices in one process, through shared memory
 * and by messages. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm_mpi.h"
#include "kernels.h"

enum {
    MAX_RANKS = 16,
    VECTOR = 6144,
    LONG = 100003,
    FOLDS = 600,
    TURNS = 301,
    TRIES = 40,
    LATE = 14
};

/* The same vectors on every rank, from the rank's number. */
static void fill(float *x, int64_t n, int rank)
{
    uint64_t z = 88172645463325252u + (uint64_t)rank * 1000003u;
    for (int64_t i = 0; i < n; i++) {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        x[i] = ldexpf((float)(int32_t)z, (int)(z >> 40) % 40 - 50);
    }
}

/* What one process computes: slices 0..size-1 through oct_fold. */
static int expect(float *want, int64_t n, int size)
{
    float *levels = aligned_alloc(64, ((size_t)n * 5 * sizeof *levels + 63) / 64 * 64);
    if (!levels)
        return 0;
    oct_fold f;
    oct_fold_begin(&f, levels, n, oct_kernel_rows[OCT_KERNELS_REF].add);
    for (int r = 0; r < size; r++) {
        fill(oct_fold_next(&f), n, r);
        oct_fold_push(&f);
    }
    memcpy(want, oct_fold_end(&f), (size_t)n * sizeof *want);
    free(levels);
    return 1;
}

static int check_fold(oct_comm *c, int64_t n, oct_error *err)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x), *want = malloc((size_t)(n + 1) * sizeof *want);
    int ok = x && want && (c->size > 8 || expect(want, n, c->size));
    if (ok) {
        fill(x, n, c->rank);
        ok = c->fold(c, x, n, err) == OCT_OK && memcmp(x, want, (size_t)n * sizeof *x) == 0;
    }
    if (!ok)
        fprintf(stderr, "rank %d of %d: fold of %lld floats differs: %s\n", c->rank, c->size,
                (long long)n, err->text);
    free(x);
    free(want);
    return ok;
}

/* One after the other, of changing lengths, with a rank that comes late now and then, and other
 * operations between. Small integers: any order of additions gives the same. */
static int check_many(oct_comm *c, oct_error *err)
{
    static float x[3 * LONG];
    int64_t differ = 0;
    int ok = 1;
    for (int i = 0; i < FOLDS && ok; i++) {
        int64_t n = i % 100 == 99 ? 3 * LONG : i * 37 % 1000;
        for (int64_t j = 0; j < n; j++)
            x[j] = (float)((j + i) % 1000 * (c->rank + 1));
        if (i % 60 == c->rank)
            nanosleep(&(struct timespec){.tv_nsec = i % 7 * 500000}, NULL);
        ok = c->fold(c, x, n, err) == OCT_OK;
        for (int64_t j = 0; j < n; j++)
            differ += x[j] != (float)((j + i) % 1000 * (c->size * (c->size + 1) / 2));
        int64_t all[MAX_RANKS];
        if (i % 50 == 7)
            ok &= c->gather(c, &differ, sizeof differ, all, err) == OCT_OK;
        if (i % 50 == 8)
            ok &= c->broadcast(c, all, sizeof *all, err) == OCT_OK;
    }
    if (!ok || differ)
        fprintf(stderr, "rank %d of %d: %lld sums differ in %d folds: %s\n", c->rank, c->size,
                (long long)differ, FOLDS, err->text);
    return ok && differ == 0;
}

/* One vector of Grok-1: two rounds, 2 (n-1)/n of its bytes sent by every rank. */
static int check_counts(oct_comm *c, oct_error *err)
{
    float x[VECTOR] = {0};
    oct_comm_stats was = c->stats;
    int ok = c->fold(c, x, VECTOR, err) == OCT_OK;
    int64_t rounds = c->stats.rounds - was.rounds;
    uint64_t sent = c->stats.bytes_sent - was.bytes_sent, n = (uint64_t)c->size;
    uint64_t want = 2 * (n - 1) * sizeof x / n;
    if (VECTOR % c->size != 0) /* parts differ by an element, of which a rank sends n - 1 */
        ok &= sent + 4 * n >= want && sent <= want + 4 * n;
    else
        ok &= sent == want;
    ok &= rounds == (c->size > 1 ? 2 : rounds);
    if (!ok)
        fprintf(stderr, "rank %d of %d: %llu bytes in %lld rounds, expected %llu in 2\n", c->rank,
                c->size, (unsigned long long)sent, (long long)rounds, (unsigned long long)want);
    return ok;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The same vector folded and reduced by the library, by turns: medians of rank 0. */
static int compare_speed(oct_comm *c, double *ratio, oct_error *err)
{
    static double fold[TURNS], reduce[TURNS];
    float x[VECTOR] = {0}, y[VECTOR];
    for (int i = 0; i < TURNS; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double t0 = MPI_Wtime();
        if (c->fold(c, x, VECTOR, err) != OCT_OK)
            return 0;
        fold[i] = MPI_Wtime() - t0;
        MPI_Barrier(MPI_COMM_WORLD);
        t0 = MPI_Wtime();
        MPI_Allreduce(x, y, VECTOR, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        reduce[i] = MPI_Wtime() - t0;
    }
    qsort(fold, TURNS, sizeof *fold, by_value);
    qsort(reduce, TURNS, sizeof *reduce, by_value);
    *ratio = fold[TURNS / 2] / reduce[TURNS / 2];
    if (c->rank == 0)
        printf("%d ranks, %zu bytes: fold %.1f us (fastest %.1f), MPI_Allreduce %.1f us (fastest "
               "%.1f), ratio %.2f\n",
               c->size, sizeof x, 1e6 * fold[TURNS / 2], 1e6 * fold[0], 1e6 * reduce[TURNS / 2],
               1e6 * reduce[0], *ratio);
    return c->broadcast(c, ratio, sizeof *ratio, err) == OCT_OK;
}

/* Other work on the machine can spoil a try, and what the communicator learns from its own trials.
 * It repeats these within as many folds as lie between two tries here, and some time passes. */
static int check_speed(oct_comm *c, oct_error *err)
{
    double ratio, limit = c->size == 2 ? 0.8 : 1.0;
    for (int i = 0; i < TRIES; i++) {
        if (!compare_speed(c, &ratio, err))
            return 0;
        if (c->size == 1 || ratio <= limit)
            return 1;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        float x[64] = {0};
        for (int j = 0; j < 1024; j++)
            if (c->fold(c, x, 64, err) != OCT_OK)
                return 0;
    }
    fprintf(stderr, "rank %d: a fold takes longer than %.1f of MPI_Allreduce\n", c->rank, limit);
    return 0;
}

/* Rank 1 is away for longer than a dead rank is waited for: in a disk's queue, and computing. */
static int check_late(oct_comm *c, oct_error *err)
{
    float x[64] = {0};
    double start = MPI_Wtime();
    if (c->rank == 1) {
        nanosleep(&(struct timespec){.tv_sec = LATE / 2}, NULL);
        while (MPI_Wtime() - start < LATE)
            ;
    }
    return c->fold(c, x, 64, err) == OCT_OK && (c->size == 1 || MPI_Wtime() - start >= LATE - 1);
}

/* "speed": also measures; "late": a rank lets the others wait; "messages": not by shared memory. */
int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    oct_error err = {0};
    oct_comm *c;
    if (oct_comm_mpi_open(NULL, NULL, &c, &err) != OCT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    static const int64_t sizes[] = {0, 1, 2, 7, 64, 6144, 6145, LONG};
    int ok = c->shared_memory == (c->size > 1 && strcmp(mode, "messages") != 0);
    if (!ok)
        fprintf(stderr, "rank %d of %d: shared memory: %d\n", c->rank, c->size, c->shared_memory);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ok &= check_fold(c, sizes[i], &err);

    int32_t mine = 100 + c->rank, all[MAX_RANKS] = {0};
    ok &= c->size <= MAX_RANKS && c->gather(c, &mine, sizeof mine, all, &err) == OCT_OK;
    for (int r = 0; r < c->size && ok; r++)
        ok = all[r] == 100 + r;
    int64_t word = c->rank == 0 ? 4711 : 0;
    ok &= c->broadcast(c, &word, sizeof word, &err) == OCT_OK && word == 4711;
    ok &= check_counts(c, &err) && check_many(c, &err);
    if (ok && strcmp(mode, "speed") == 0)
        ok = check_speed(c, &err);
    if (ok && strcmp(mode, "late") == 0)
        ok = check_late(c, &err);
    if (c->rank == 0)
        printf("%d ranks: %s\n", c->size, ok ? "ok" : "FAILED");
    c->free(c);
    return ok ? 0 : 1;
}
