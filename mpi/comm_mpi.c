/* comm_mpi.c: two rounds per fold. Rank j owns the j-th part of the vector: it receives that part
 * from everybody, adds the parts as the fixed tree, and sends the sums to everybody. Each rank
 * sends 2 (n-1)/n of the vector, and the order of additions does not depend on how messages
 * arrive. Ranks that are all on one host do the same through shared memory. */
#include "comm_mpi.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
#include "shared.h"
#include "machine.h"
#include "watch.h"

enum { TAG_HELLO = 1, TAG_PARTIAL, TAG_SUM, TAG_GATHER, TAG_COLLECT, TAG_BROADCAST };
enum { PIECE_BYTES = 1 << 30 /* of one message */ };
/* Seconds. A dead rank is found by the watch, long before; these are for ranks that live but do not
 * answer: no way between them, or a disk that is gone. */
static const double HELLO_DEADLINE = 30, EXCHANGE_DEADLINE = 600, NO_DEADLINE = 1e30;
static const double START_DEADLINE = 60, END_DEADLINE = 30; /* of MPI's own waiting, see guard.h */

/* What goes to a rank and comes from it in one round. Bytes. */
typedef struct message {
    void *in;
    const void *out;
    size_t n_in, n_out;
} message;

typedef struct mpi_comm {
    oct_comm base;
    MPI_Comm comm;
    bool finalise;
    oct_watch *watch;
    oct_comm_say_fn *say;
    void *ctx;
    MPI_Request *requests; /* [2 * size] */
    MPI_Status *statuses;  /* [2 * size] of them, when they were last done */
    int *peer;             /* [2 * size] of each request */
    message *messages;     /* [size] */
    float *parts;          /* [size][room] */
    const float **in;      /* [size] */
    int64_t room;
    oct_shared *shared; /* NULL: messages */
} mpi_comm;

static mpi_comm *mpi_of(oct_comm *c)
{
    return (mpi_comm *)(void *)c;
}

/* ---- waiting -------------------------------------------------------------------------------- */

static oct_status failed(mpi_comm *m, oct_error *err, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    MPI_Error_string(code, text, &n);
    m->base.broken = true;
    return oct_fail(err, OCT_ERR_COMM, "MPI: %s: %s", what, text);
}

static oct_status earlier(oct_error *err, const char *what)
{
    return oct_fail(err, OCT_ERR_COMM, "MPI: %s: an earlier operation has failed", what);
}

static oct_status too_late(mpi_comm *m, int missing, const char *what, double deadline,
                           oct_error *err)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    m->base.broken = true;
    return oct_fail(
        err, OCT_ERR_COMM, "MPI: %s: rank %d on %s has no answer from rank %d for %.0f s%s", what,
        m->base.rank, host, missing, deadline,
        deadline < EXCHANGE_DEADLINE
            ? "; if hosts have networks that the others cannot reach (docker0, virbr0), "
              "name the right one: mpirun --mca btl_tcp_if_include NET --mca "
              "oob_tcp_if_include NET, NET like eth0 or 10.0.0.0/24"
            : "");
}

/* The peer of the first of n requests that is not done; -1: all are. */
static int first_missing(const mpi_comm *m, int n)
{
    for (int i = 0; i < n; i++) {
        int done = 0;
        if (MPI_Request_get_status(m->requests[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
            !done)
            return m->peer[i];
    }
    return -1;
}

/* The first n requests. Backs off: spins, then yields, then sleeps. */
static oct_status wait_all(mpi_comm *m, int n, const char *what, double deadline, oct_error *err)
{
    double start = 0;
    for (int looks = 1;; looks++) {
        int done = 0;
        int code = MPI_Testall(n, m->requests, &done, m->statuses);
        if (code != MPI_SUCCESS)
            return failed(m, err, what, code);
        if (done)
            return OCT_OK;
        if (looks % 64 != 0)
            continue;
        double t = oct_seconds();
        start = start > 0 ? start : t;
        double waited = t - start;
        if (waited > deadline)
            return too_late(m, first_missing(m, n), what, deadline, err);
        if (waited > 0.02)
            nanosleep(&(struct timespec){.tv_nsec = waited > 0.5 ? 1000000 : 50000}, NULL);
        else if (waited > 0.0005)
            sched_yield();
        looks = waited > 0.02 ? 63 : 0;
    }
}

/* One round: m->messages, of PIECE_BYTES at most, between all pairs of ranks. */
static oct_status exchange(mpi_comm *m, MPI_Comm comm, int tag, const char *what, double deadline,
                           oct_error *err)
{
    int n = 0, code = MPI_SUCCESS, size = m->base.size;
    if (m->base.broken)
        return earlier(err, what);
    for (int i = 1; i < size && code == MPI_SUCCESS; i++) {
        int r = (m->base.rank + size - i) % size;
        const message *g = &m->messages[r];
        if (g->n_in == 0)
            continue;
        m->peer[n] = r;
        code = MPI_Irecv(g->in, (int)g->n_in, MPI_BYTE, r, tag, comm, &m->requests[n++]);
    }
    for (int i = 1; i < size && code == MPI_SUCCESS; i++) {
        int r = (m->base.rank + i) % size; /* not everybody to rank 0 first */
        const message *g = &m->messages[r];
        if (g->n_out == 0)
            continue;
        m->peer[n] = r;
        m->base.stats.bytes_sent += g->n_out;
        code = MPI_Isend(g->out, (int)g->n_out, MPI_BYTE, r, tag, comm, &m->requests[n++]);
    }
    m->base.stats.rounds++;
    if (code != MPI_SUCCESS)
        return failed(m, err, what, code);
    return wait_all(m, n, what, deadline, err);
}

/* ---- fold ----------------------------------------------------------------------------------- */

static size_t part_bytes(int64_t n, int r, int size)
{
    return (size_t)(oct_part_at(n, r + 1, size) - oct_part_at(n, r, size)) * sizeof(float);
}

static oct_status make_room(mpi_comm *m, int64_t n, oct_error *err)
{
    if (n <= m->room)
        return OCT_OK;
    float *parts = realloc(m->parts, (size_t)n * (size_t)m->base.size * sizeof *parts);
    if (!parts) {
        m->base.broken = true; /* the others send their parts by now */
        return oct_fail(err, OCT_ERR_MEMORY, "MPI: out of memory for %lld floats of %d ranks",
                        (long long)n, m->base.size);
    }
    m->parts = parts;
    m->room = n;
    return OCT_OK;
}

static oct_status fold_by_messages(mpi_comm *m, float *x, int64_t n, oct_error *err)
{
    int size = m->base.size, rank = m->base.rank;
    size_t mine = part_bytes(n, rank, size);
    OCT_TRY(make_room(m, n / size + 1, err));
    for (int r = 0; r < size; r++) {
        float *part = m->parts + r * m->room;
        m->messages[r] = (message){.in = part,
                                   .n_in = mine, /* my part, from r */
                                   .out = x + oct_part_at(n, r, size),
                                   .n_out = part_bytes(n, r, size)};
        m->in[r] = r == rank ? x + oct_part_at(n, rank, size) : part;
    }
    OCT_TRY(exchange(m, m->comm, TAG_PARTIAL, "fold", EXCHANGE_DEADLINE, err));
    float *sum = m->parts + rank * m->room;
    oct_part_add(m->in, size, (int64_t)(mine / sizeof *x), sum);
    for (int r = 0; r < size; r++)
        m->messages[r] = (message){.in = x + oct_part_at(n, r, size),
                                   .n_in = part_bytes(n, r, size),
                                   .out = sum,
                                   .n_out = mine};
    OCT_TRY(exchange(m, m->comm, TAG_SUM, "fold", EXCHANGE_DEADLINE, err));
    memcpy(x + oct_part_at(n, rank, size), sum, mine);
    return OCT_OK;
}

static oct_status fold_by_memory(mpi_comm *m, float *x, int64_t n, oct_error *err)
{
    int missing = 0;
    if (m->base.broken)
        return earlier(err, "fold");
    if (oct_shared_fold(m->shared, x, n, EXCHANGE_DEADLINE, &m->base.stats, &missing) == OCT_OK)
        return OCT_OK;
    return too_late(m, missing, "fold", EXCHANGE_DEADLINE, err);
}

/* Long vectors in pieces that MPI can count: sums do not depend on how they are cut. */
static oct_status mpi_fold(oct_comm *c, float *x, int64_t n, oct_error *err)
{
    const int64_t max_piece = PIECE_BYTES / (int64_t)sizeof *x;
    mpi_comm *m = mpi_of(c);
    double start = oct_seconds();
    for (int64_t at = 0; at == 0 || at < n; at += max_piece) {
        int64_t piece = n - at < max_piece ? n - at : max_piece;
        OCT_TRY(m->shared ? fold_by_memory(m, x + at, piece, err)
                          : fold_by_messages(m, x + at, piece, err));
    }
    c->stats.seconds += oct_seconds() - start;
    return OCT_OK;
}

/* ---- gather, broadcast ---------------------------------------------------------------------- */

/* In pieces that MPI can count. */
static oct_status gather_over(mpi_comm *m, MPI_Comm comm, int tag, const void *mine, size_t bytes,
                              void *all, double deadline, oct_error *err)
{
    char *to = all;
    memmove(to + (size_t)m->base.rank * bytes, mine, bytes);
    for (size_t at = 0; at == 0 || at < bytes; at += PIECE_BYTES) {
        const size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        for (int r = 0; r < m->base.size; r++)
            m->messages[r] = (message){.in = to + (size_t)r * bytes + at,
                                       .n_in = piece,
                                       .out = to + (size_t)m->base.rank * bytes + at,
                                       .n_out = piece};
        OCT_TRY(exchange(m, comm, tag, tag == TAG_HELLO ? "start-up" : "gather", deadline, err));
    }
    return OCT_OK;
}

static oct_status mpi_gather(oct_comm *c, const void *mine, size_t bytes, void *all, oct_error *err)
{
    mpi_comm *m = mpi_of(c);
    double start = oct_seconds();
    OCT_TRY(gather_over(m, m->comm, TAG_GATHER, mine, bytes, all, EXCHANGE_DEADLINE, err));
    c->stats.seconds += oct_seconds() - start;
    return OCT_OK;
}

/* The others wait for rank 0 without end: perhaps somebody types. If it dies, the watch tells. */
static oct_status mpi_announce(oct_comm *c, void *data, size_t *bytes, oct_error *err)
{
    mpi_comm *m = mpi_of(c);
    int n = 0, code = MPI_SUCCESS, came = 0;
    if (*bytes > INT_MAX)
        return oct_fail(err, OCT_ERR_ARG, "MPI: broadcast of %zu bytes, expected at most %d",
                        *bytes, INT_MAX);
    if (c->broken)
        return earlier(err, "broadcast");
    if (c->rank != 0)
        code = MPI_Irecv(data, (int)*bytes, MPI_BYTE, 0, TAG_BROADCAST, m->comm, &m->requests[n++]);
    for (int r = 1; r < c->size && c->rank == 0 && code == MPI_SUCCESS; r++) {
        m->peer[n] = r;
        c->stats.bytes_sent += *bytes;
        code = MPI_Isend(data, (int)*bytes, MPI_BYTE, r, TAG_BROADCAST, m->comm, &m->requests[n++]);
    }
    if (code != MPI_SUCCESS)
        return failed(m, err, "broadcast", code);
    OCT_TRY(wait_all(m, n, "broadcast", c->rank == 0 ? EXCHANGE_DEADLINE : NO_DEADLINE, err));
    if (c->rank != 0 && MPI_Get_count(&m->statuses[0], MPI_BYTE, &came) == MPI_SUCCESS)
        *bytes = (size_t)came;
    return OCT_OK;
}

/* In pieces that MPI can count. */
static oct_status mpi_broadcast(oct_comm *c, void *data, size_t bytes, oct_error *err)
{
    for (size_t at = 0; at == 0 || at < bytes; at += PIECE_BYTES) {
        const size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        size_t came = piece;
        OCT_TRY(mpi_announce(c, (char *)data + at, &came, err));
        if (came != piece) {
            c->broken = true;
            return oct_fail(err, OCT_ERR_COMM, "MPI: broadcast: expected %zu bytes, %zu came",
                            piece, came);
        }
    }
    return OCT_OK;
}

/* Everybody to rank 0, in pieces that MPI can count. */
static oct_status mpi_collect(oct_comm *c, const void *mine, size_t bytes, void *all,
                              oct_error *err)
{
    mpi_comm *m = mpi_of(c);
    double start = oct_seconds();
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        for (int r = 0; r < c->size; r++)
            m->messages[r] =
                (message){.in = c->rank == 0 ? (char *)all + (size_t)r * bytes + at : NULL,
                          .n_in = c->rank == 0 ? piece : 0,
                          .out = c->rank == 0 ? NULL : (const char *)mine + at,
                          .n_out = c->rank != 0 && r == 0 ? piece : 0};
        if (c->rank == 0 && mine)
            memmove((char *)all + at, (const char *)mine + at, piece);
        OCT_TRY(exchange(m, m->comm, TAG_COLLECT, "logits", EXCHANGE_DEADLINE, err));
    }
    c->stats.seconds += oct_seconds() - start;
    return OCT_OK;
}

/* ---- start and end -------------------------------------------------------------------------- */

/* On the watching thread. MPI was not promised calls of two threads, but the job is over. */
static void lost(void *ctx, bool fatal, const char *text)
{
    mpi_comm *m = ctx;
    if (m->say)
        m->say(m->ctx, fatal, text);
    if (fatal)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

/* On a guard's thread. MPI may not even have started; its launcher ends the others. */
static void waited(void *ctx, const char *text)
{
    const mpi_comm *m = ctx;
    if (m->say)
        m->say(m->ctx, true, text);
}

static oct_guard *guard(mpi_comm *m, const char *what, double seconds)
{
    return oct_guard_begin(what, seconds, waited, m);
}

static void mpi_free(oct_comm *c)
{
    mpi_comm *m = mpi_of(c);
    if (c->broken) {
        if (c->rank != 0) /* rank 0 shall have time for its message */
            nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    oct_guard *g = guard(m, "MPI_Finalize", END_DEADLINE);
    if (m->watch)
        oct_watch_leave(m->watch);
    if (m->comm != MPI_COMM_NULL)
        MPI_Comm_free(&m->comm);
    if (m->finalise)
        MPI_Finalize();
    oct_guard_end(g);
    oct_watch_free(m->watch);
    oct_shared_free(m->shared);
    free(m->in);
    free(m->requests);
    free(m->statuses);
    free(m->peer);
    free(m->messages);
    free(m->parts);
    free(m);
}

/* Shared memory for the folds, if all ranks can have it: the launcher has put them on one host, and
 * each has mapped what rank 0 has made. */
static oct_status share(mpi_comm *m, oct_error *err)
{
    int size = m->base.size, n_host = 0, n_mapped = 0;
    MPI_Comm host = MPI_COMM_NULL;
    oct_guard *g = guard(m, "MPI_Comm_split_type", START_DEADLINE);
    int code = MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(host, &n_host);
    if (code != MPI_SUCCESS) {
        oct_guard_end(g);
        return failed(m, err, "communicator of a host", code);
    }
    MPI_Comm_free(&host);
    oct_guard_end(g);
    const char *wish = getenv("OCTET_MPI_SHARED");
    bool may = n_host == size && !(wish && strcmp(wish, "0") == 0);
    oct_shared_offer mine = {.fd = -1}, *offers = calloc((size_t)size, sizeof *offers);
    int32_t mapped, *all = calloc((size_t)size, sizeof *all);
    oct_status status =
        offers && all ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "MPI: out of memory");
    if (may && m->base.rank == 0)
        mine = oct_shared_make(size);
    if (status == OCT_OK)
        status = mpi_gather(&m->base, &mine, sizeof mine, offers, err);
    if (status == OCT_OK && may)
        m->shared = oct_shared_map(&offers[0], m->base.rank, size, m->comm);
    mapped = m->shared != NULL;
    if (status == OCT_OK)
        status = mpi_gather(&m->base, &mapped, sizeof mapped, all, err);
    for (int r = 0; r < size && status == OCT_OK; r++)
        n_mapped += all[r];
    m->base.shared_memory = n_mapped == size;
    if (!m->base.shared_memory) {
        oct_shared_free(m->shared);
        m->shared = NULL;
    }
    if (mine.fd >= 0)
        close(mine.fd);
    free(offers);
    free(all);
    return status;
}

/* Every pair of ranks talks for the first time, with a deadline; they exchange where they can be
 * watched. */
static oct_status meet(mpi_comm *m, oct_error *err)
{
    size_t size = (size_t)m->base.size;
    m->requests = malloc(size * 2 * sizeof *m->requests);
    m->statuses = malloc(size * 2 * sizeof *m->statuses);
    m->peer = calloc(size * 2, sizeof *m->peer);
    m->messages = malloc(size * sizeof *m->messages);
    m->in = malloc(size * sizeof *m->in);
    oct_watch_address mine, *all = calloc(size, sizeof *all);
    oct_status status = m->requests && m->statuses && m->peer && m->messages && m->in && all
                            ? oct_watch_new(m->base.rank, m->base.size, &m->watch, &mine, err)
                            : oct_fail(err, OCT_ERR_MEMORY, "MPI: out of memory");
    if (status == OCT_OK)
        status =
            gather_over(m, MPI_COMM_WORLD, TAG_HELLO, &mine, sizeof mine, all, HELLO_DEADLINE, err);
    if (status == OCT_OK) {
        oct_guard *g = guard(m, "MPI_Comm_dup", START_DEADLINE);
        int code = MPI_Comm_dup(MPI_COMM_WORLD, &m->comm);
        oct_guard_end(g);
        status = code == MPI_SUCCESS ? OCT_OK : failed(m, err, "communicator", code);
    }
    if (status == OCT_OK && size > 1)
        status = oct_watch_start(m->watch, all, &m->base.layer, lost, m, err);
    if (status == OCT_OK && size > 1)
        status = share(m, err);
    free(all);
    m->base.stats = (oct_comm_stats){0};
    return status;
}

oct_status oct_comm_mpi_open(oct_comm_say_fn *say, void *ctx, oct_comm **out, oct_error *err)
{
    *out = NULL;
    int ready = 0, provided = 0, code;
    mpi_comm *m = calloc(1, sizeof *m);
    if (!m)
        return oct_fail(err, OCT_ERR_MEMORY, "MPI: out of memory");
    /* On one host Open MPI sends up to so many bytes at once; by default (4096) a vector's part
     * takes two more messages, which more than doubles the time of a fold. The user's choice goes
     * first. */
    setenv("OMPI_MCA_btl_vader_eager_limit", "32768", 0);
    m->say = say;
    m->ctx = ctx;
    code = MPI_Initialized(&ready);
    if (code == MPI_SUCCESS && !ready) {
        oct_guard *g = guard(m, "MPI_Init", START_DEADLINE);
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
        oct_guard_end(g);
    }
    if (code != MPI_SUCCESS) {
        oct_status status = failed(m, err, "initialisation", code);
        free(m);
        return status;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &m->base.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m->base.size);
    m->base.fold = mpi_fold;
    m->base.broadcast = mpi_broadcast;
    m->base.announce = mpi_announce;
    m->base.gather = mpi_gather;
    m->base.collect = mpi_collect;
    m->base.free = mpi_free;
    m->base.layer = -1;
    m->comm = MPI_COMM_NULL;
    m->finalise = !ready;
    *out = &m->base;
    oct_status status = meet(m, err);
    if (status != OCT_OK)
        m->base.broken = true; /* the caller tells why and frees it, which ends the job */
    return status;
}
