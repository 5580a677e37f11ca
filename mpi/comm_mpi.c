/* comm_mpi.c: two rounds per fold. Rank j owns the j-th part of the vector: it receives that part
 * from everybody, adds the parts as the fixed tree, and sends the sums to everybody. Each rank
 * sends 2 (n-1)/n of the vector, and the order of additions does not depend on how messages
 * arrive. */
#include "comm_mpi.h"

#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG_PARTIAL = 1, TAG_SUM = 2 };

typedef struct mpi_comm {
    oct_comm base;
    MPI_Comm comm;
    bool finalise;
    MPI_Request *requests; /* [2 * size] */
    float *parts;          /* [size][room] */
    int64_t room;
} mpi_comm;

static oct_status failed(oct_error *err, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    MPI_Error_string(code, text, &n);
    return oct_fail(err, OCT_ERR_COMM, "MPI: %s: %s", what, text);
}

/* First element of rank r's part of n. */
static int64_t part_at(int64_t n, int r, int size)
{
    return n / size * r + (r < n % size ? r : n % size);
}

static int part_count(int64_t n, int r, int size)
{
    return (int)(part_at(n, r + 1, size) - part_at(n, r, size));
}

static oct_status make_room(mpi_comm *m, int64_t n, oct_error *err)
{
    if (n <= m->room)
        return OCT_OK;
    float *parts = realloc(m->parts, (size_t)n * (size_t)m->base.size * sizeof *parts);
    if (!parts)
        return oct_fail(err, OCT_ERR_MEMORY, "MPI: out of memory for %lld floats of %d ranks",
                        (long long)n, m->base.size);
    m->parts = parts;
    m->room = n;
    return OCT_OK;
}

/* parts[0] = the tree ((0+1)+(2+3))...: neighbours are added, an odd last one moves up. */
static void add_as_tree(float *parts, int64_t n, int64_t stride, int size)
{
    for (int step = 1; step < size; step *= 2)
        for (int r = 0; r + step < size; r += 2 * step)
            for (int64_t i = 0; i < n; i++)
                parts[r * stride + i] += parts[(r + step) * stride + i];
}

/* Receives count_in(r) floats from and sends count_out(r) floats to every other rank. */
static oct_status exchange(mpi_comm *m, int tag, float *const *in, const int *n_in,
                           float *const *out, const int *n_out, oct_error *err)
{
    int n = 0, code = MPI_SUCCESS;
    for (int r = 0; r < m->base.size && code == MPI_SUCCESS; r++)
        if (r != m->base.rank)
            code = MPI_Irecv(in[r], n_in[r], MPI_FLOAT, r, tag, m->comm, &m->requests[n++]);
    for (int r = 0; r < m->base.size && code == MPI_SUCCESS; r++)
        if (r != m->base.rank)
            code = MPI_Isend(out[r], n_out[r], MPI_FLOAT, r, tag, m->comm, &m->requests[n++]);
    if (code == MPI_SUCCESS)
        code = MPI_Waitall(n, m->requests, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS ? OCT_OK : failed(err, "exchange", code);
}

static oct_status mpi_fold(oct_comm *c, float *x, int64_t n, oct_error *err)
{
    mpi_comm *m = (mpi_comm *)(void *)c;
    int size = c->size, rank = c->rank;
    if (n / size >= INT_MAX)
        return oct_fail(err, OCT_ERR_ARG,
                        "MPI: fold of %lld floats, expected less than 2^31 per rank", (long long)n);
    int mine = part_count(n, rank, size);
    OCT_TRY(make_room(m, n / size + 1, err));
    float **place = malloc((size_t)size * 2 * sizeof *place);
    int *count = malloc((size_t)size * 2 * sizeof *count);
    oct_status status =
        place && count ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "MPI: out of memory");
    if (status == OCT_OK) {
        for (int r = 0; r < size; r++) {
            place[r] = m->parts + r * m->room; /* my part, from r */
            count[r] = mine;
            place[size + r] = x + part_at(n, r, size); /* r's part */
            count[size + r] = part_count(n, r, size);
        }
        memcpy(place[rank], place[size + rank], (size_t)mine * sizeof *x);
        status = exchange(m, TAG_PARTIAL, place, count, place + size, count + size, err);
    }
    if (status == OCT_OK) {
        add_as_tree(m->parts, mine, m->room, size);
        memcpy(place[size + rank], m->parts, (size_t)mine * sizeof *x);
        for (int r = 0; r < size; r++)
            place[r] = place[size + rank];
        status = exchange(m, TAG_SUM, place + size, count + size, place, count, err);
    }
    free(place);
    free(count);
    return status;
}

/* The others wait for rank 0, perhaps until somebody types: they look, then sleep, at most 1 ms. */
static oct_status mpi_broadcast(oct_comm *c, void *data, size_t bytes, oct_error *err)
{
    mpi_comm *m = (mpi_comm *)(void *)c;
    MPI_Request request;
    int done = 0;
    if (bytes > INT_MAX)
        return oct_fail(err, OCT_ERR_ARG, "MPI: broadcast of %zu bytes, expected at most %d", bytes,
                        INT_MAX);
    int code = MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, m->comm, &request);
    for (int looks = 0; code == MPI_SUCCESS && !done; looks++) {
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done && looks > 10000)
            nanosleep(&(struct timespec){.tv_nsec = looks > 20000 ? 1000000 : 50000}, NULL);
    }
    return code == MPI_SUCCESS ? OCT_OK : failed(err, "broadcast", code);
}

static oct_status mpi_gather(oct_comm *c, const void *mine, size_t bytes, void *all, oct_error *err)
{
    mpi_comm *m = (mpi_comm *)(void *)c;
    if (bytes > INT_MAX)
        return oct_fail(err, OCT_ERR_ARG, "MPI: gather of %zu bytes, expected at most %d", bytes,
                        INT_MAX);
    int code = MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, m->comm);
    return code == MPI_SUCCESS ? OCT_OK : failed(err, "gather", code);
}

static void mpi_free(oct_comm *c)
{
    mpi_comm *m = (mpi_comm *)(void *)c;
    MPI_Comm_free(&m->comm);
    if (m->finalise)
        MPI_Finalize();
    free(m->requests);
    free(m->parts);
    free(m);
}

oct_status oct_comm_mpi_open(oct_comm **out, oct_error *err)
{
    *out = NULL;
    int ready = 0, provided = 0, code = MPI_Initialized(&ready);
    if (code == MPI_SUCCESS && !ready)
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS)
        return failed(err, "initialisation", code);
    mpi_comm *m = calloc(1, sizeof *m);
    if (!m)
        return oct_fail(err, OCT_ERR_MEMORY, "MPI: out of memory");
    code = MPI_Comm_dup(MPI_COMM_WORLD, &m->comm);
    if (code == MPI_SUCCESS) {
        MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
        MPI_Comm_rank(m->comm, &m->base.rank);
        MPI_Comm_size(m->comm, &m->base.size);
        m->requests = malloc((size_t)m->base.size * 2 * sizeof *m->requests);
    }
    if (!m->requests) {
        free(m);
        return code == MPI_SUCCESS ? oct_fail(err, OCT_ERR_MEMORY, "MPI: out of memory")
                                   : failed(err, "communicator", code);
    }
    m->base.fold = mpi_fold;
    m->base.broadcast = mpi_broadcast;
    m->base.gather = mpi_gather;
    m->base.free = mpi_free;
    m->finalise = !ready;
    *out = &m->base;
    return OCT_OK;
}
