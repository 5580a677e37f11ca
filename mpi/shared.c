/* shared.c: the two rounds of a fold, with memory in the place of messages. Every rank has two
 * slots, used by turns. It writes its vector into its slot, adds its own part of all ranks' slots
 * into its slot, and copies the others' sums out of theirs. Vectors longer than a slot go in
 * pieces.
 *
 * Order. A rank counts its steps in its own cache line: one when its vector is in the slot, one
 * when its sums are. The count is stored with release after the data, and loaded with acquire
 * before them, so who sees the count sees the data. A slot is written again two vectors later:
 * between, its owner has seen all ranks at the first step of the vector in between, which they take
 * after their last look at the old one.
 *
 * Sleep. Who sleeps adds itself to `sleepers`, then looks at the counts once more, then sleeps
 * until `bell` changes. Who takes a step stores its count, then looks at `sleepers`; if there are
 * some and all ranks have come, it rings. A sequentially consistent fence is between the two
 * accesses of either, so of a late sleeper and the last rank at least one sees the other. */
#include "shared.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

enum { LINE = 128, PAGE = 4096 };                     /* bytes */
enum { SLOT = 1 << 16, BLOCK = 512, TYPICAL = 6144 }; /* floats */
enum { LOOKS = 20, TRIALS = 8, TRY_EVERY = 1024 };
static const double AWAKE = 0.0005; /* seconds */

typedef struct line {
    _Alignas(LINE) _Atomic uint32_t step;
} line;

typedef struct head {
    _Alignas(LINE) _Atomic uint32_t sleepers;
    _Atomic uint32_t bell;
    line ranks[];
} head;

/* How data are written to a slot. Its lines are in the caches of those who read it last. To take a
 * line from there takes longer than to write past the caches, four times as long between cores that
 * share no cache; but then the readers fetch it from memory. Threads may move to other cores, so
 * the ways are tried again from time to time. */
enum { CACHED, STREAM_VECTORS, STREAM_ALL, N_WAYS };

struct oct_shared {
    int rank, size;
    MPI_Comm comm;
    head *head; /* the mapping */
    size_t bytes;
    int way; /* to write */
    int64_t folds;
    uint32_t step; /* that this rank has taken; may wrap */
    int came;      /* ranks 0..came-1 have taken it too */
    const float *in[];
};

/* ---- the memory ----------------------------------------------------------------------------- */

static size_t head_bytes(int size)
{
    return (sizeof(head) + (size_t)size * sizeof(line) + PAGE - 1) / PAGE * PAGE;
}

/* Byte offset of a rank's slots. */
static size_t slots_at(int rank, int size)
{
    return head_bytes(size) + (size_t)rank * 2 * SLOT * sizeof(float);
}

static void name_of(uint64_t key, char name[32])
{
    snprintf(name, 32, "octet-%016llx", (unsigned long long)key);
}

oct_shared_offer oct_shared_make(int size)
{
    oct_shared_offer o = {.pid = getpid(), .fd = -1};
    char name[32];
    if (getrandom(&o.key, sizeof o.key, 0) == sizeof o.key) {
        name_of(o.key, name);
        o.fd = memfd_create(name, MFD_CLOEXEC);
    }
    if (o.fd < 0 || ftruncate(o.fd, (off_t)slots_at(size, size)) != 0 ||
        fallocate(o.fd, 0, 0, (off_t)head_bytes(size)) != 0)
        o.key = 0;
    return o;
}

/* The name that the kernel shows has the key in it: no other file is opened, whatever that process
 * is here. Each rank takes the memory of its own slots, from its own NUMA node. */
oct_shared *oct_shared_map(const oct_shared_offer *offer, int rank, int size, MPI_Comm comm)
{
    char path[64], name[32], want[64], is[64] = "";
    snprintf(path, sizeof path, "/proc/%d/fd/%d", offer->pid, offer->fd);
    name_of(offer->key, name);
    snprintf(want, sizeof want, "/memfd:%s (deleted)", name);
    if (offer->key == 0 || readlink(path, is, sizeof is - 1) < 0 || strcmp(is, want) != 0)
        return NULL;
    oct_shared *s = calloc(1, sizeof *s + (size_t)size * sizeof *s->in);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    size_t at = slots_at(rank, size), end = slots_at(rank + 1, size);
    void *map = MAP_FAILED;
    if (s && fd >= 0 && fallocate(fd, 0, (off_t)at, (off_t)(end - at)) == 0)
        map = mmap(NULL, slots_at(size, size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED) {
        free(s);
        return NULL;
    }
    s->rank = rank;
    s->size = size;
    s->comm = comm;
    s->head = map;
    s->bytes = slots_at(size, size);
    return s;
}

void oct_shared_free(oct_shared *s)
{
    if (s)
        munmap(s->head, s->bytes);
    free(s);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Whether all ranks have taken this rank's last step. */
static bool all_came(oct_shared *s)
{
    for (; s->came < s->size; s->came++) {
        uint32_t step = atomic_load_explicit(&s->head->ranks[s->came].step, memory_order_acquire);
        if ((int32_t)(step - s->step) < 0)
            return false;
    }
    return true;
}

static void take_step(oct_shared *s)
{
    head *h = s->head;
    s->came = 0;
#ifdef __SSE2__
    _mm_sfence(); /* streaming stores are not in order with others */
#endif
    atomic_store_explicit(&h->ranks[s->rank].step, ++s->step, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&h->sleepers, memory_order_relaxed) > 0 && all_came(s)) {
        atomic_fetch_add_explicit(&h->bell, 1, memory_order_release);
        futex(&h->bell, FUTEX_WAKE, INT_MAX, NULL);
    }
}

/* For a millisecond at most: messages have to move on. */
static void sleep_until_bell(oct_shared *s)
{
    head *h = s->head;
    atomic_fetch_add_explicit(&h->sleepers, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    uint32_t bell = atomic_load_explicit(&h->bell, memory_order_acquire);
    if (!all_came(s))
        futex(&h->bell, FUTEX_WAIT, bell, &(struct timespec){.tv_nsec = 1000000});
    atomic_fetch_sub_explicit(&h->sleepers, 1, memory_order_relaxed);
}

/* Looks, then gives up the core between looks, then sleeps. */
static bool wait_for_all(oct_shared *s, double deadline)
{
    double start = 0;
    bool asleep = false;
    for (int looks = 1; !all_came(s); looks++) {
        if (looks <= LOOKS) {
            pause_cpu();
            continue;
        }
        sched_yield();
        if (looks % 8 != 0 && !asleep)
            continue;
        /* A rank may still wait for a message of this one that MPI has not delivered. */
        int any;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, s->comm, &any, MPI_STATUS_IGNORE);
        double t = oct_seconds();
        start = start > 0 ? start : t;
        if (t - start > deadline)
            return false;
        asleep = t - start > AWAKE;
        if (asleep)
            sleep_until_bell(s);
    }
    return true;
}

/* ---- fold ----------------------------------------------------------------------------------- */

static void add_block(const float *const *in, int size, int64_t at, int64_t n, float *restrict sum)
{
    float right[BLOCK];
    if (size == 1) {
        memcpy(sum, in[0] + at, (size_t)n * sizeof *sum);
        return;
    }
    if (size == 2) {
        const float *restrict a = in[0] + at, *restrict b = in[1] + at;
        for (int64_t i = 0; i < n; i++)
            sum[i] = a[i] + b[i];
        return;
    }
    int left = 2;
    while (2 * left < size)
        left *= 2;
    add_block(in, left, at, n, sum);
    add_block(in + left, size - left, at, n, right);
    for (int64_t i = 0; i < n; i++)
        sum[i] += right[i];
}

void oct_part_add(const float *const *in, int size, int64_t n, float *sum)
{
    for (int64_t at = 0; at < n; at += BLOCK)
        add_block(in, size, at, n - at < BLOCK ? n - at : BLOCK, sum + at);
}

/* Into a slot, for others to read; streamed: past the caches. */
static void publish(float *to, const float *from, int64_t n, bool streamed)
{
#ifdef __SSE2__
    if (streamed) {
        for (; (uintptr_t)to % 16 != 0 && n > 0; n--)
            *to++ = *from++;
        for (; n >= 4; n -= 4, to += 4, from += 4)
            _mm_stream_ps(to, _mm_loadu_ps(from));
    }
#else
    (void)streamed;
#endif
    memcpy(to, from, (size_t)n * sizeof *to);
}

/* n <= SLOT. */
static bool fold_piece(oct_shared *s, float *x, int64_t n, double deadline)
{
    float *slots = (float *)(void *)((char *)s->head + slots_at(0, s->size));
    slots += s->step / 2 % 2 * SLOT;
    float *mine = slots + (int64_t)s->rank * 2 * SLOT, sums[BLOCK];
    int64_t begin = oct_part_at(n, s->rank, s->size);
    int64_t end = oct_part_at(n, s->rank + 1, s->size);
    publish(mine, x, begin, s->way >= STREAM_VECTORS);
    publish(mine + end, x + end, n - end, s->way >= STREAM_VECTORS);
    take_step(s);
    if (!wait_for_all(s, deadline))
        return false;
    for (int r = 0; r < s->size; r++)
        s->in[r] = r == s->rank ? x : slots + (int64_t)r * 2 * SLOT;
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t count = end - at < BLOCK ? end - at : BLOCK;
        float *to = s->way == STREAM_ALL ? sums : mine + at;
        add_block(s->in, s->size, at, count, to);
        if (to == sums)
            publish(mine + at, sums, count, true);
    }
    take_step(s);
    if (!wait_for_all(s, deadline))
        return false;
    for (int r = 0; r < s->size; r++) {
        int64_t from = oct_part_at(n, r, s->size), to = oct_part_at(n, r + 1, s->size);
        memcpy(x + from, slots + (int64_t)r * 2 * SLOT + from, (size_t)(to - from) * sizeof *x);
    }
    return true;
}

/* An empty vector takes two rounds as well, as it does by messages. */
static bool fold_all(oct_shared *s, float *x, int64_t n, double deadline, oct_comm_stats *stats)
{
    for (int64_t at = 0; at == 0 || at < n; at += SLOT) {
        int64_t count = n - at < SLOT ? n - at : SLOT;
        int64_t mine =
            oct_part_at(count, s->rank + 1, s->size) - oct_part_at(count, s->rank, s->size);
        if (!fold_piece(s, x + at, count, deadline))
            return false;
        stats->rounds += 2;
        stats->bytes_sent += (uint64_t)(count - mine + (s->size - 1) * mine) * sizeof *x;
    }
    return true;
}

/* Takes the way that is fastest now, for all ranks together. */
static bool choose_way(oct_shared *s, double deadline)
{
    float x[TYPICAL] = {0}, fastest[N_WAYS] = {1, 1, 1}; /* seconds */
    oct_comm_stats ignored = {0};
    for (int i = 0; i < N_WAYS * TRIALS; i++) {
        s->way = i / TRIALS;
        double start = oct_seconds();
        if (!fold_all(s, x, TYPICAL, deadline, &ignored))
            return false;
        fastest[s->way] = fminf(fastest[s->way], (float)(oct_seconds() - start));
    }
    if (!fold_all(s, fastest, N_WAYS, deadline, &ignored))
        return false;
    s->way = CACHED;
    for (int way = 0; way < N_WAYS; way++)
        if (fastest[way] < fastest[s->way])
            s->way = way;
    return true;
}

oct_status oct_shared_fold(oct_shared *s, float *x, int64_t n, double deadline,
                           oct_comm_stats *stats, int *missing)
{
    if ((s->folds++ % TRY_EVERY != 0 || choose_way(s, deadline)) &&
        fold_all(s, x, n, deadline, stats))
        return OCT_OK;
    *missing = s->came;
    return OCT_ERR_COMM;
}
