/* cuda_emulator.cpp: threads of a block as fibers, a shadow of its shared memory; the kernels. */
#undef _FORTIFY_SOURCE /* its longjmp takes another stack for an error */
#include "cuda_emulator.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define OCT_CUDA_EMULATED
#include "octet_cuda.cu"

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

emu_dim emu_thread_index, emu_block_index, emu_block_size, emu_grid_size;
unsigned char *emu_shared;

namespace
{

enum { MAX_THREADS = 1024, WARP = 32, STACK = 256 * 1024, MAX_SITES = 1024, MAX_COPIES = 64 };
enum state { READY, AT_BARRIER, IN_EXCHANGE, DONE };

/* What a lane brings to an exchange and takes from it. */
struct exchange {
    emu_op op;
    uint32_t v, by;
    const uint32_t *a;
    uint32_t b0, b1;
    int32_t *d;
};

struct copy {
    void *to;
    const void *from;
    bool ok;
    int group;
};

struct fiber {
    ucontext_t context;
    jmp_buf jump;
    unsigned char *stack;
    void *fake_stack;
    bool begun, left; /* left: in the middle, by a launch that failed */
    state where;
    emu_place at;
    exchange x;
    copy copies[MAX_COPIES]; /* under way */
    int n_copies, group;
};

/* Who touched a word of shared memory. Times are counted in barriers of the block and exchanges of
 * the warp. */
enum { NOBODY = -1, SEVERAL = -2, ATOMIC = -3 };
struct touch {
    int thread; /* SEVERAL: of one warp if warp >= 0 */
    int warp;
    uint32_t epoch, warp_epoch;
};
struct shadow {
    touch write, read;
    bool written, copying;
};

struct machine {
    fiber fibers[MAX_THREADS];
    shadow *words;
    size_t shared_bytes;
    uint32_t epoch, warp_epoch[MAX_THREADS / WARP];
    unsigned n_threads;
    bool thread_less; /* the last one's index is one less */
    int self;
    void (*call)(const void *);
    const void *args;
    ucontext_t home;
    jmp_buf home_jump;
    const void *home_bottom;
    size_t home_size;
    uint64_t seed, random;
    char error[256];
    oct_emulated_fault fault;
    int fault_site;
    struct {
        bool passed[EMU_KINDS];
        emu_place at;
    } sites[MAX_SITES];
};
machine m;

uint64_t draw()
{
    uint64_t z = m.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* 0 .. n - 1, or in an order of the seed. */
void order(int *v, int n)
{
    for (int i = 0; i < n; i++) {
        int j = m.seed ? (int)(draw() % (uint64_t)(i + 1)) : i;
        v[i] = v[j];
        v[j] = i;
    }
}

/* The first error of a launch. */
void fail(emu_place at, const char *what)
{
    if (m.error[0])
        return;
    const char *file = strrchr(at.file, '/');
    snprintf(m.error, sizeof m.error, "%s:%d: block %u,%u,%u, thread %d: %s",
             file ? file + 1 : at.file, at.line, emu_block_index.x, emu_block_index.y,
             emu_block_index.z, m.self, what);
}

bool spoiled(oct_emulated_fault fault, emu_kind kind, emu_place at)
{
    if (at.site < MAX_SITES) {
        m.sites[at.site].passed[kind] = true;
        m.sites[at.site].at = at;
    }
    return m.fault == fault && (m.fault_site < 0 || m.fault_site == at.site);
}

/* ---- fibers ---- */

void leave_to_home()
{
    fiber &f = m.fibers[m.self];
#ifdef EMU_ASAN
    bool last = f.where == DONE;
    __sanitizer_start_switch_fiber(last ? nullptr : &f.fake_stack, m.home_bottom, m.home_size);
    swapcontext(&f.context, &m.home);
    __sanitizer_finish_switch_fiber(f.fake_stack, &m.home_bottom, &m.home_size);
#else
    if (_setjmp(f.jump) == 0)
        _longjmp(m.home_jump, 1);
#endif
}

/* After what a thread has done wrong it is not gone on with, nor is its block: it would compute,
 * and find places of memory, from what nobody has written. */
void stop_if_failed()
{
    if (m.error[0])
        leave_to_home();
}

void fiber_main()
{
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &m.home_bottom, &m.home_size);
#endif
    m.call(m.args);
    m.fibers[m.self].where = DONE;
    leave_to_home();
    abort();
}

/* Goes on with a thread until it waits. */
__attribute__((noinline)) void resume(int thread)
{
    fiber &f = m.fibers[thread];
    m.self = thread;
    emu_thread_index = {(unsigned)thread - (m.thread_less && thread == (int)m.n_threads - 1), 0, 0};
    bool begin = !f.begun;
    if (begin) {
        f.begun = true;
#ifdef EMU_ASAN
        if (f.left)
            __asan_unpoison_memory_region(f.stack, STACK);
#endif
        f.left = false;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        makecontext(&f.context, fiber_main, 0);
    }
#ifdef EMU_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f.stack, STACK);
    swapcontext(&m.home, &f.context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    if (_setjmp(m.home_jump) == 0) {
        if (begin)
            setcontext(&f.context);
        _longjmp(f.jump, 1);
    }
#endif
}

/* ---- shared memory ---- */

bool ordered(const touch &t, int thread)
{
    if (t.thread == NOBODY || t.epoch != m.epoch || t.thread == thread)
        return true;
    int warp = thread / WARP;
    return t.warp == warp && t.warp_epoch != m.warp_epoch[warp];
}

void note(touch *t, int thread)
{
    int warp = thread / WARP;
    bool fresh = t->thread == NOBODY || t->epoch != m.epoch ||
                 (t->warp == warp && t->warp_epoch != m.warp_epoch[warp]);
    if (!fresh && t->thread != thread) {
        t->warp = t->warp == warp ? warp : NOBODY;
        t->thread = SEVERAL;
        return;
    }
    *t = {thread, warp, m.epoch, m.warp_epoch[warp]};
}

void watch_read(shadow *w, emu_place at)
{
    if (w->copying)
        fail(at, "reads shared memory while a copy to it is under way");
    if (!w->written)
        fail(at, "reads shared memory that nobody has written");
    if (!ordered(w->write, m.self))
        fail(at, "race: reads what another thread writes");
    note(&w->read, m.self);
}

void watch_write(shadow *w, emu_place at)
{
    if (w->copying)
        fail(at, "writes shared memory while a copy to it is under way");
    if (!ordered(w->write, m.self))
        fail(at, "race: writes what another thread writes");
    if (!ordered(w->read, m.self))
        fail(at, "race: writes what another thread reads");
    note(&w->write, m.self);
    w->written = true;
}

/* The words of an access; NULL: it is not one to shared memory. */
shadow *words_of(const void *p, unsigned bytes, emu_place at)
{
    uintptr_t offset = (uintptr_t)p - (uintptr_t)emu_shared;
    if (offset > m.shared_bytes || m.shared_bytes - offset < bytes) {
        fail(at, "beyond the end of shared memory");
        return nullptr;
    }
    if (offset % bytes != 0 || bytes < 4) {
        fail(at, "an access to shared memory that is not aligned, or below a word");
        return nullptr;
    }
    return m.words + offset / 4;
}

/* ---- what ends a wait ---- */

void multiply(int first)
{
    uint8_t a[16][32];
    int8_t b[32][8];
    int32_t d[16][8];
    bool swap_a = m.fault == OCT_FAULT_FRAGMENT_A, swap_b = m.fault == OCT_FAULT_FRAGMENT_B;
    /* PTX ISA, "Matrix Fragments for mma.m16n8k32": group = lane / 4, thread in it = lane % 4.
     * a: byte i of 0..15 is in row group + 8 for i in 4..7 and 12..15, else group; in column
     *    4 thread + i % 4, + 16 from i = 8 on.
     * b: byte i of 0..7 is in row 4 thread + i % 4, + 16 from i = 4 on; column group.
     * d: i of 0..3 is in row group, + 8 from i = 2 on; column 2 thread + i % 2. */
    for (int lane = 0; lane < WARP; lane++) {
        const exchange &x = m.fibers[first + lane].x;
        int group = lane / 4, thread = lane % 4;
        for (int i = 0; i < 16; i++) {
            int reg = swap_a && (i / 4 == 1 || i / 4 == 2) ? 3 - i / 4 : i / 4;
            bool below = (i >= 4 && i < 8) || i >= 12;
            a[group + (below ? 8 : 0)][4 * thread + i % 4 + (i >= 8 ? 16 : 0)] =
                (uint8_t)(x.a[reg] >> 8 * (i % 4));
        }
        for (int i = 0; i < 8; i++)
            b[4 * thread + i % 4 + (i >= 4 ? 16 : 0)][group] =
                (int8_t)(((i >= 4) != swap_b ? x.b1 : x.b0) >> 8 * (i % 4));
    }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            int32_t sum = 0;
            for (int k = 0; k < 32; k++)
                sum += (m.fault == OCT_FAULT_SIGN ? (int)(int8_t)a[i][k] : (int)a[i][k]) * b[k][j];
            d[i][j] = sum;
        }
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            int reg = m.fault == OCT_FAULT_FRAGMENT_D && (i == 1 || i == 2) ? 3 - i : i;
            int32_t *to = &m.fibers[first + lane].x.d[reg];
            *to = (int32_t)((uint32_t)*to +
                            (uint32_t)d[lane / 4 + (i >= 2 ? 8 : 0)][2 * (lane % 4) + i % 2]);
        }
}

void exchange_all(int first)
{
    uint32_t v[WARP], ballot = 0;
    emu_op op = m.fibers[first].x.op;
    for (int i = 0; i < WARP; i++) {
        v[i] = m.fibers[first + i].x.v;
        ballot |= (v[i] & 1u) << i;
    }
    if (op == EMU_MMA)
        multiply(first);
    bool spoil = op != EMU_MMA && spoiled(OCT_FAULT_EXCHANGE, EMU_EXCHANGE, m.fibers[first].at);
    ballot = spoil ? ballot & ~1u : ballot;
    for (int i = 0; i < WARP; i++) {
        int lane = spoil && i < 2 ? 1 - i : i;
        exchange &x = m.fibers[first + lane].x;
        int from = op == EMU_XOR ? lane ^ (int)x.by : lane + (int)x.by;
        m.fibers[first + i].x.v = op == EMU_BALLOT ? ballot : v[from < WARP ? from : lane];
        m.fibers[first + i].where = READY;
    }
    m.warp_epoch[first / WARP]++;
}

/* Threads of a warp until all of them wait for the block, or have ended. */
void run_warp(int first, int n)
{
    int lanes[WARP];
    for (;;) {
        order(lanes, n);
        int waiting = 0;
        for (int i = 0; i < n && !m.error[0]; i++)
            if (m.fibers[first + lanes[i]].where == READY)
                resume(first + lanes[i]);
        if (m.error[0])
            return;
        for (int i = 0; i < n; i++)
            waiting += m.fibers[first + i].where == IN_EXCHANGE;
        if (waiting == 0)
            return;
        for (int i = 0; i < n; i++) {
            const fiber &f = m.fibers[first + i];
            if (waiting < WARP || f.at.site != m.fibers[first].at.site) {
                fail(f.at, "an exchange that not all lanes of the warp reach");
                return;
            }
        }
        exchange_all(first);
        if (m.error[0])
            return;
    }
}

/* Whether the block goes on. */
bool pass_barrier()
{
    int waiting = -1, ended = -1;
    for (unsigned i = 0; i < m.n_threads; i++) {
        const fiber &f = m.fibers[i];
        if (f.where == DONE)
            ended = (int)i;
        else if (waiting >= 0 && m.fibers[waiting].at.site != f.at.site)
            fail(f.at, "threads of a block at different barriers");
        else
            waiting = (int)i;
    }
    if (waiting >= 0 && ended >= 0)
        fail(m.fibers[waiting].at, "a barrier that not all threads reach");
    if (waiting < 0 || m.error[0])
        return false;
    m.epoch++;
    for (unsigned i = 0; i < m.n_threads; i++)
        m.fibers[i].where = READY;
    return true;
}

void run_block()
{
    int warps[MAX_THREADS / WARP], n_warps = (int)(m.n_threads + WARP - 1) / WARP;
    m.epoch++;
    for (size_t i = 0; i < m.shared_bytes / 4; i++)
        m.words[i] = {{NOBODY, NOBODY, 0, 0}, {NOBODY, NOBODY, 0, 0}, false, false};
    memset(emu_shared, 0xa5, m.shared_bytes);
    for (unsigned i = 0; i < m.n_threads; i++) {
        fiber &f = m.fibers[i];
        f.left |= f.begun && f.where != DONE;
        f.begun = false;
        f.where = READY;
        f.n_copies = f.group = 0;
    }
    do {
        order(warps, n_warps);
        for (int i = 0; i < n_warps && !m.error[0]; i++) {
            int first = warps[i] * WARP, left = (int)m.n_threads - first;
            run_warp(first, left < WARP ? left : WARP);
        }
    } while (!m.error[0] && pass_barrier());
}

} // namespace

/* ---- what kernels call ---- */

void *emu_access(emu_kind kind, const void *p, unsigned bytes, emu_place at)
{
    bool put = kind == EMU_PUT;
    if (spoiled(put ? OCT_FAULT_PUT : OCT_FAULT_GET, kind, at))
        p = (const char *)p + bytes;
    shadow *w = words_of(p, bytes, at);
    for (unsigned i = 0; w && i < bytes / 4; i++)
        put ? watch_write(w + i, at) : watch_read(w + i, at);
    stop_if_failed();
    return const_cast<void *>(p);
}

/* Atomic operations do not race with each other. */
void *emu_atomic(const void *p, emu_place at)
{
    if (spoiled(OCT_FAULT_PUT, EMU_PUT, at))
        p = (const char *)p + 4;
    shadow *w = words_of(p, 4, at);
    stop_if_failed();
    if (!w->written)
        fail(at, "adds to shared memory that nobody has written");
    if (!(w->write.thread == ATOMIC && w->write.epoch == m.epoch) && !ordered(w->write, m.self))
        fail(at, "race: adds to what another thread writes");
    if (!ordered(w->read, m.self))
        fail(at, "race: adds to what another thread reads");
    stop_if_failed();
    w->write = {ATOMIC, NOBODY, m.epoch, 0};
    return const_cast<void *>(p);
}

void emu_barrier(emu_place at)
{
    if (spoiled(OCT_FAULT_BARRIER, EMU_BARRIER, at))
        return;
    fiber &f = m.fibers[m.self];
    f.where = AT_BARRIER;
    f.at = at;
    leave_to_home();
}

void emu_copy16(void *to, const void *from, bool ok, emu_place at)
{
    fiber &f = m.fibers[m.self];
    if (spoiled(OCT_FAULT_COPY, EMU_COPY, at))
        to = (char *)to + 16;
    shadow *w = words_of(to, 16, at);
    for (int i = 0; w && i < 4; i++) {
        watch_write(w + i, at);
        w[i].copying = true;
    }
    if (f.n_copies == MAX_COPIES)
        fail(at, "more copies than this emulation keeps");
    stop_if_failed();
    f.copies[f.n_copies++] = {to, from, ok, f.group};
}

void emu_copies_commit(void)
{
    m.fibers[m.self].group++;
}

void emu_copies_wait(int pending, emu_place at)
{
    fiber &f = m.fibers[m.self];
    int n = 0;
    if (spoiled(OCT_FAULT_WAIT, EMU_WAIT, at))
        return;
    for (int i = 0; i < f.n_copies; i++) {
        const copy &c = f.copies[i];
        if (c.group >= f.group - pending) {
            f.copies[n++] = c;
            continue;
        }
        shadow *w = words_of(c.to, 16, at);
        for (int j = 0; w && j < 4; j++) {
            w[j].copying = false;
            watch_write(w + j, at);
        }
        stop_if_failed();
        if (c.ok)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    }
    f.n_copies = n;
}

uint32_t emu_exchange(emu_op op, uint32_t v, uint32_t by, emu_place at)
{
    fiber &f = m.fibers[m.self];
    f.x.op = op;
    f.x.v = v;
    f.x.by = by;
    f.where = IN_EXCHANGE;
    f.at = at;
    leave_to_home();
    return f.x.v;
}

void emu_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, emu_place at)
{
    exchange &x = m.fibers[m.self].x;
    x.a = a;
    x.b0 = b0;
    x.b1 = b1;
    x.d = d;
    emu_exchange(EMU_MMA, 0, 0, at);
}

/* ---- launches ---- */

#define OCT_CUDA_ENTRY(name, args, threads, blocks)                       \
    static void call_##name(const void *p)                                \
    {                                                                     \
        oct_cuda_##name(*static_cast<const oct_cuda_##args##_args *>(p)); \
    }
OCT_CUDA_ENTRIES(OCT_CUDA_ENTRY)
#undef OCT_CUDA_ENTRY

static const oct_emulated_kernel kernels[] = {
#define OCT_CUDA_ENTRY(name, args, threads, blocks) \
    {"oct_cuda_" #name, sizeof(oct_cuda_##args##_args), threads, call_##name},
    OCT_CUDA_ENTRIES(OCT_CUDA_ENTRY)
#undef OCT_CUDA_ENTRY
};

enum { N_KERNELS = sizeof kernels / sizeof *kernels };
static bool launched[N_KERNELS];

const oct_emulated_kernel *oct_emulated_find(const char *name)
{
    for (const oct_emulated_kernel &k : kernels)
        if (strcmp(k.name, name) == 0)
            return &k;
    return nullptr;
}

static bool take_memory(unsigned n_threads, unsigned shared_bytes)
{
    for (unsigned i = 0; i < n_threads; i++)
        if (!m.fibers[i].stack && !(m.fibers[i].stack = (unsigned char *)malloc(STACK)))
            return false;
    emu_shared = (unsigned char *)aligned_alloc(16, (shared_bytes + 15) / 16 * 16 + 16);
    m.words = (shadow *)malloc((shared_bytes / 4 + 1) * sizeof *m.words);
    return emu_shared && m.words;
}

int oct_emulated_launch(const oct_emulated_kernel *k, const unsigned grid[3],
                        const unsigned block[3], unsigned shared_bytes, const void *args)
{
    m.error[0] = '\0';
    m.random = m.seed;
    m.n_threads = block[0];
    m.shared_bytes = shared_bytes;
    m.call = k->call;
    m.args = args;
    emu_grid_size = {grid[0], grid[1], grid[2]};
    emu_block_size = {block[0], 1, 1};
    if (block[0] < 1 || block[0] > k->most_threads || block[1] != 1 || block[2] != 1 ||
        grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[1] > 65535 || grid[2] > 65535) {
        snprintf(m.error, sizeof m.error, "%s: a grid or block that cannot be launched", k->name);
        return 1;
    }
    if (!take_memory(block[0], shared_bytes))
        snprintf(m.error, sizeof m.error, "%s: out of memory", k->name);
    uint64_t n = (uint64_t)grid[0] * grid[1] * grid[2];
    uint64_t start = m.seed ? draw() % n : 0;
    const bool spoil = m.fault_site == k - kernels;
    launched[k - kernels] = true;
    m.thread_less = spoil && m.fault == OCT_FAULT_THREAD;
    for (uint64_t i = 0; i < n && !m.error[0]; i++) {
        uint64_t at = (start + i) % n;
        if (spoil && m.fault == OCT_FAULT_BLOCK && at == n - 1)
            continue;
        emu_block_index = {(unsigned)(at % grid[0]), (unsigned)(at / grid[0] % grid[1]),
                           (unsigned)(at / grid[0] / grid[1])};
        run_block();
    }
    free(emu_shared);
    free(m.words);
    emu_shared = nullptr;
    m.words = nullptr;
    return m.error[0] != '\0';
}

const char *oct_emulated_error(void)
{
    return m.error;
}

void oct_emulated_seed(uint64_t seed)
{
    m.seed = seed;
}

void oct_emulated_spoil(oct_emulated_fault fault, int site)
{
    m.fault = fault;
    m.fault_site = site;
}

int oct_emulated_sites(oct_emulated_fault fault, int *site, int n)
{
    static const emu_kind kinds[] = {EMU_KINDS, EMU_BARRIER, EMU_GET,     EMU_PUT,
                                     EMU_COPY,  EMU_WAIT,    EMU_EXCHANGE};
    int count = 0;
    if (fault == OCT_FAULT_THREAD || fault == OCT_FAULT_BLOCK) {
        for (int i = 0; i < N_KERNELS && count < n; i++)
            if (launched[i])
                site[count++] = i;
        return count;
    }
    if ((size_t)fault >= sizeof kinds / sizeof *kinds || kinds[fault] == EMU_KINDS)
        return 0;
    for (int i = 0; i < MAX_SITES && count < n; i++)
        if (m.sites[i].passed[kinds[fault]])
            site[count++] = i;
    return count;
}

void oct_emulated_forget(void)
{
    for (auto &s : m.sites)
        memset(s.passed, 0, sizeof s.passed);
    memset(launched, 0, sizeof launched);
}

const char *oct_emulated_place(oct_emulated_fault fault, int site)
{
    static char text[128];
    if (fault == OCT_FAULT_THREAD || fault == OCT_FAULT_BLOCK)
        return kernels[site].name;
    const emu_place &at = m.sites[site].at;
    const char *file = strrchr(at.file, '/');
    snprintf(text, sizeof text, "%s:%d", file ? file + 1 : at.file, at.line);
    return text;
}
