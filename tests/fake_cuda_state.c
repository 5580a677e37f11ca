#include "fake_cuda_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, ALIGN = 256, MAX_BLOCKS = 4096, MAX_CONTEXTS = 16, POISON = 0xff };

void fake_wrong(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "fake CUDA: wrong use: ");
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

static void *must(void *p)
{
    if (!p)
        fake_wrong("no memory for the fake itself");
    return p;
}

/* ---- devices --------------------------------------------------------------------------------- */

static fake_device devices[FAKE_DEVICES];
static _Thread_local fake_device *current[MAX_CONTEXTS];
static _Thread_local int n_current;

fake_device *fake_device_at(int i)
{
    return &devices[i];
}

void fake_push(fake_device *d)
{
    if (d < devices || d >= devices + FAKE_DEVICES || d->retained == 0)
        fake_wrong("a context that is none, or released");
    if (n_current == MAX_CONTEXTS)
        fake_wrong("%d contexts on a thread: pushed, never popped", n_current);
    current[n_current++] = d;
}

fake_device *fake_pop(void)
{
    if (n_current == 0)
        fake_wrong("a context is popped that was not pushed");
    return current[--n_current];
}

fake_device *fake_current(void)
{
    if (n_current == 0)
        fake_wrong("no context is current on this thread");
    fake_device *d = current[n_current - 1];
    if (d->retained == 0)
        fake_wrong("the current context has been released");
    return d;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory of a device, without rights while nothing runs, and pages that never have any around it;
 * its end is as near to the next page as alignment allows. */
typedef struct block {
    fake_device *device;
    unsigned char *map, *p;
    size_t map_bytes, bytes;
} block;

typedef struct pinned {
    const fake_device *device;
    unsigned char *p;
    size_t bytes;
    bool own; /* the driver's memory */
} pinned;

static block blocks[MAX_BLOCKS];
static pinned pins[MAX_BLOCKS];
static int n_blocks, n_pins;

static void allow(bool on)
{
    for (int i = 0; i < n_blocks; i++)
        if (mprotect(blocks[i].map + PAGE, blocks[i].map_bytes - 2 * PAGE,
                     on ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            fake_wrong("mprotect");
}

uint64_t fake_alloc(fake_device *d, size_t bytes)
{
    size_t inner = (bytes + ALIGN - 1) / ALIGN * ALIGN, pages = (inner + PAGE - 1) / PAGE * PAGE;
    block b = {.device = d, .map_bytes = pages + 2 * PAGE, .bytes = bytes};
    b.map = mmap(NULL, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.map == MAP_FAILED || n_blocks == MAX_BLOCKS)
        fake_wrong("no memory for a device");
    b.p = b.map + PAGE + (pages - inner);
    if (mprotect(b.map + PAGE, pages, PROT_READ | PROT_WRITE) != 0)
        fake_wrong("mprotect");
    memset(b.p, POISON, bytes);
    if (mprotect(b.map + PAGE, pages, PROT_NONE) != 0)
        fake_wrong("mprotect");
    blocks[n_blocks++] = b;
    d->used += bytes;
    return (uintptr_t)b.p;
}

static const block *block_of(const fake_device *d, uint64_t p, size_t bytes, const char *what)
{
    for (int i = 0; i < n_blocks; i++) {
        const block *b = &blocks[i];
        if (p >= (uintptr_t)b->p && p < (uintptr_t)b->p + b->bytes) {
            if (b->device != d)
                fake_wrong("%s: memory of another device", what);
            if (bytes > (uintptr_t)b->p + b->bytes - p)
                fake_wrong("%s: %zu bytes at %zu of a block of %zu", what, bytes,
                           (size_t)(p - (uintptr_t)b->p), b->bytes);
            return b;
        }
    }
    fake_wrong("%s: %#llx is no memory of a device", what, (unsigned long long)p);
}

void fake_pin(void *p, size_t bytes, bool own)
{
    for (int i = 0; i < n_pins; i++)
        if (pins[i].p < (unsigned char *)p + bytes &&
            (unsigned char *)p < pins[i].p + pins[i].bytes)
            fake_wrong("memory is pinned twice");
    if (n_pins == MAX_BLOCKS || bytes == 0)
        fake_wrong("pinned: %zu bytes", bytes);
    pins[n_pins++] = (pinned){fake_current(), p, bytes, own};
}

void fake_unpin(void *p)
{
    for (int i = 0; i < n_pins; i++)
        if (pins[i].p == p) {
            pins[i] = pins[--n_pins];
            return;
        }
    fake_wrong("%p was not pinned, or is not any more", p);
}

static bool is_pinned(const void *p, size_t bytes)
{
    const unsigned char *at = p;
    for (int i = 0; i < n_pins; i++)
        if (at >= pins[i].p && at + bytes <= pins[i].p + pins[i].bytes)
            return true;
    return false;
}

/* ---- streams --------------------------------------------------------------------------------- */

typedef struct operation {
    enum { UPLOAD, DOWNLOAD, FILL, LAUNCH, CALL, RECORD, WAIT, WAIT_VALUE } what;
    uint64_t device; /* address */
    void *host;      /* of a copy */
    void *held;      /* UPLOAD: what was pageable when it was given; LAUNCH, CALL: the arguments */
    void (*call)(const void *args);
    size_t bytes;
    unsigned char value;
    const oct_emulated_kernel *kernel;
    unsigned grid[3], block[3], shared_bytes;
    fake_event *event;
    uint64_t serial; /* of the event; WAIT_VALUE: the value */
    struct operation *next;
} operation;

struct fake_stream {
    fake_device *device;
    operation *first, **last;
    bool running;
    fake_stream *next;
};

struct fake_event {
    fake_device *device;
    fake_stream *stream; /* where it was recorded last */
    uint64_t recorded, done;
    double at; /* seconds */
    int n_waiting;
    fake_event *next;
};

struct fake_module {
    fake_device *device;
    fake_module *next;
};

static fake_stream *streams;
static fake_event *events;
static fake_module *modules;
static char how = 'l';
static uint64_t random_state;

void fake_order(char order, uint64_t seed)
{
    how = order;
    random_state = seed * 2 + 1;
}

static unsigned draw(unsigned n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % n;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void finish_event(fake_event *e, uint64_t serial);

static void do_operation(fake_stream *s, operation *o)
{
    void *host = o->held ? o->held : o->host, *device = (void *)(uintptr_t)o->device;
    if (o->what == WAIT_VALUE)
        return;
    if (o->what == WAIT) {
        finish_event(o->event, o->serial);
        o->event->n_waiting--;
        return;
    }
    if (o->what == RECORD) {
        o->event->done = o->serial;
        o->event->at = seconds();
        o->event->n_waiting--;
        return;
    }
    if (o->what != LAUNCH && o->what != CALL)
        (void)block_of(s->device, o->device, o->bytes, "a copy that was waiting");
    allow(true);
    switch (o->what) {
    case UPLOAD: memcpy(device, host, o->bytes); break;
    case DOWNLOAD: memcpy(host, device, o->bytes); break;
    case FILL: memset(device, o->value, o->bytes); break;
    case CALL: o->call(o->held); break;
    default:
        if (oct_emulated_launch(o->kernel, o->grid, o->block, o->shared_bytes, o->held) != 0)
            fake_wrong("%s: %s", o->kernel->name, oct_emulated_error());
    }
    allow(false);
}

/* Whether a stream waits for the host. */
static bool is_held(const fake_stream *s)
{
    const operation *o = s->first;
    if (!o || o->what != WAIT_VALUE)
        return false;
    const uint32_t now = __atomic_load_n((const uint32_t *)o->host, __ATOMIC_ACQUIRE);
    return (int32_t)(now - (uint32_t)o->serial) < 0;
}

/* The oldest operation of a stream. */
static void step(fake_stream *s)
{
    operation *o = s->first;
    if (is_held(s))
        fake_wrong("the host waits for a stream that waits for the host");
    if (s->running)
        fake_wrong("streams that wait for each other");
    s->running = true;
    do_operation(s, o);
    s->running = false;
    s->first = o->next;
    if (!s->first)
        s->last = &s->first;
    free(o->held);
    free(o);
}

static void finish_event(fake_event *e, uint64_t serial)
{
    while (e->done < serial)
        step(e->stream);
}

void fake_stream_finish(fake_stream *s)
{
    while (s->first)
        step(s);
}

static void finish_device(const fake_device *d)
{
    for (fake_stream *s = streams; s; s = s->next)
        if (s->device == d)
            fake_stream_finish(s);
}

void fake_some_time(void)
{
    if (how != 'r')
        return;
    for (fake_stream *s = streams; s; s = s->next)
        for (unsigned n = draw(4); n > 0 && s->first && !is_held(s); n--)
            step(s);
}

static operation *enqueue(fake_stream *s, operation o)
{
    operation *kept = must(malloc(sizeof *kept));
    *kept = o;
    kept->next = NULL;
    *s->last = kept;
    s->last = &kept->next;
    return kept;
}

static void given(fake_stream *s)
{
    while (how == 'e' && s->first && !is_held(s))
        step(s);
}

fake_stream *fake_stream_new(fake_device *d)
{
    fake_stream *s = must(calloc(1, sizeof *s));
    s->device = d;
    s->last = &s->first;
    s->next = streams;
    streams = s;
    return s;
}

fake_stream *fake_stream_check(void *stream)
{
    const fake_device *d = fake_current();
    for (fake_stream *s = streams; s; s = s->next)
        if ((void *)s == stream) {
            if (s->device != d)
                fake_wrong("a stream of another context than the current");
            return s;
        }
    fake_wrong("a stream that is none");
}

void fake_stream_free(fake_stream *s)
{
    fake_stream_finish(s);
    for (fake_stream **at = &streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    for (fake_event *e = events; e; e = e->next)
        e->stream = e->stream == s ? NULL : e->stream;
    free(s);
}

static void check_event(const fake_event *event)
{
    for (fake_event *e = events; e; e = e->next)
        if (e == event)
            return;
    fake_wrong("an event that is none");
}

fake_event *fake_event_new(fake_device *d)
{
    fake_event *e = must(calloc(1, sizeof *e));
    e->device = d;
    e->next = events;
    events = e;
    return e;
}

void fake_event_free(fake_event *event)
{
    check_event(event);
    while (event->n_waiting > 0) {
        for (fake_stream *s = streams; s; s = s->next)
            fake_stream_finish(s);
    }
    for (fake_event **at = &events; *at; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    free(event);
}

void fake_event_record(fake_event *e, fake_stream *s)
{
    check_event(e);
    if (e->device != s->device)
        fake_wrong("an event is recorded in a stream of another device");
    e->stream = s;
    e->n_waiting++;
    enqueue(s, (operation){.what = RECORD, .event = e, .serial = ++e->recorded});
    given(s);
}

void fake_event_finish(fake_event *e)
{
    check_event(e);
    finish_event(e, e->recorded);
}

void fake_stream_wait(fake_stream *s, fake_event *e)
{
    check_event(e);
    e->n_waiting++;
    enqueue(s, (operation){.what = WAIT, .event = e, .serial = e->recorded});
    given(s);
}

void fake_stream_wait_value(fake_stream *s, uint64_t at, uint32_t value)
{
    void *word = (void *)(uintptr_t)at;
    if (at % sizeof value != 0 || !is_pinned(word, sizeof value))
        fake_wrong("a stream waits for a word that is not pinned");
    enqueue(s, (operation){.what = WAIT_VALUE, .host = word, .serial = value});
    given(s);
}

float fake_event_elapsed(fake_event *from, fake_event *to)
{
    check_event(from);
    check_event(to);
    if (from->done == 0 || to->done == 0)
        fake_wrong("the time between events that have not happened");
    return (float)(1e3 * (to->at - from->at));
}

/* Pageable memory is read before the call returns. */
void fake_upload(fake_stream *s, uint64_t to, const void *from, size_t bytes)
{
    operation o = {.what = UPLOAD, .device = to, .bytes = bytes};
    (void)block_of(s->device, to, bytes, "upload");
    if (!is_pinned(from, bytes)) {
        o.held = must(malloc(bytes + 1));
        memcpy(o.held, from, bytes);
    }
    memcpy(&o.host, &from, sizeof from);
    enqueue(s, o);
    given(s);
}

/* Pageable memory is written before the call returns. */
void fake_download(fake_stream *s, void *to, uint64_t from, size_t bytes)
{
    (void)block_of(s->device, from, bytes, "download");
    enqueue(s, (operation){.what = DOWNLOAD, .device = from, .host = to, .bytes = bytes});
    if (is_pinned(to, bytes))
        given(s);
    else
        fake_stream_finish(s);
}

void fake_fill(fake_stream *s, uint64_t p, unsigned char value, size_t bytes)
{
    (void)block_of(s->device, p, bytes, "fill");
    enqueue(s, (operation){.what = FILL, .device = p, .value = value, .bytes = bytes});
    given(s);
}

void fake_launch(fake_stream *s, const oct_emulated_kernel *k, const unsigned grid[3],
                 const unsigned threads[3], unsigned shared_bytes, void **arguments)
{
    operation o = {.what = LAUNCH, .kernel = k, .shared_bytes = shared_bytes};
    const size_t bytes = k->args_bytes;
    memcpy(o.grid, grid, sizeof o.grid);
    memcpy(o.block, threads, sizeof o.block);
    o.held = must(malloc(bytes));
    memcpy(o.held, arguments[0], bytes);
    enqueue(s, o);
    given(s);
}

void fake_call(fake_stream *s, void (*call)(const void *args), const void *args, size_t bytes)
{
    operation o = {.what = CALL, .call = call, .held = must(malloc(bytes))};
    memcpy(o.held, args, bytes);
    enqueue(s, o);
    given(s);
}

/* Stops the device, as the real one does. */
void fake_release(fake_device *d, uint64_t p)
{
    finish_device(d);
    for (int i = 0; i < n_blocks; i++)
        if ((uintptr_t)blocks[i].p == p) {
            if (blocks[i].device != d)
                fake_wrong("memory of another device is freed");
            d->used -= blocks[i].bytes;
            munmap(blocks[i].map, blocks[i].map_bytes);
            blocks[i] = blocks[--n_blocks];
            return;
        }
    fake_wrong("%#llx is freed, which is no memory of a device", (unsigned long long)p);
}

fake_module *fake_module_new(fake_device *d)
{
    fake_module *m = must(calloc(1, sizeof *m));
    m->device = d;
    m->next = modules;
    modules = m;
    return m;
}

void fake_module_check(fake_module *module)
{
    for (fake_module *m = modules; m; m = m->next)
        if (m == module)
            return;
    fake_wrong("a module that is none");
}

void fake_module_free(fake_module *module)
{
    fake_module_check(module);
    finish_device(module->device);
    for (fake_module **at = &modules; *at; at = &(*at)->next)
        if (*at == module) {
            *at = module->next;
            break;
        }
    free(module);
}

void fake_sweep(fake_device *d, bool allowed)
{
    int n = 0;
    for (fake_module *m = modules, *next; m; m = next) {
        next = m->next;
        if (m->device == d) {
            fake_module_free(m);
            n++;
        }
    }
    for (fake_event *e = events, *next; e; e = next) {
        next = e->next;
        if (e->device == d) {
            fake_event_free(e);
            n++;
        }
    }
    for (fake_stream *s = streams, *next; s; s = next) {
        next = s->next;
        if (s->device == d) {
            fake_stream_free(s);
            n++;
        }
    }
    for (int i = n_blocks - 1; i >= 0; i--)
        if (blocks[i].device == d) {
            fake_release(d, (uintptr_t)blocks[i].p);
            n++;
        }
    for (int i = n_pins - 1; i >= 0; i--)
        if (pins[i].device == d) {
            if (pins[i].own)
                free(pins[i].p);
            pins[i] = pins[--n_pins];
            n++;
        }
    if (n > 0 && !allowed)
        fake_wrong("a context ends with %d things left in it", n);
}

bool fake_left(char *text, size_t room)
{
    int retained = 0, n_streams = 0, n_events = 0, n_modules = 0;
    for (int i = 0; i < FAKE_DEVICES; i++)
        retained += devices[i].retained;
    for (fake_stream *s = streams; s; s = s->next)
        n_streams++;
    for (fake_event *e = events; e; e = e->next)
        n_events++;
    for (fake_module *m = modules; m; m = m->next)
        n_modules++;
    snprintf(text, room,
             "%d blocks of memory, %d pinned, %d streams, %d events, %d modules, %d contexts",
             n_blocks, n_pins, n_streams, n_events, n_modules, retained);
    return n_blocks + n_pins + n_streams + n_events + n_modules + retained > 0;
}
