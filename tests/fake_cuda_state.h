/* fake_cuda_state.h: devices, memory, streams and events of the fake driver; not thread-safe: the
 * caller (fake_cuda.c) has the lock. */
#ifndef OCT_FAKE_CUDA_STATE_H
#define OCT_FAKE_CUDA_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_emulator.h"

enum { FAKE_DEVICES = 16 };

typedef struct fake_device {
    size_t memory, used;
    int retained; /* contexts */
} fake_device;
typedef struct fake_stream fake_stream;
typedef struct fake_event fake_event;
typedef struct fake_module fake_module;

/* Wrong use: a line on stderr, and the end. */
_Noreturn void fake_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

fake_device *fake_device_at(int i);
void fake_push(fake_device *d);
fake_device *fake_pop(void);
fake_device *fake_current(void); /* wrong if there is none */

uint64_t fake_alloc(fake_device *d, size_t bytes);
void fake_release(fake_device *d, uint64_t p);
void fake_pin(void *p, size_t bytes, bool own);
void fake_unpin(void *p);

/* 'l'azy, 'e'ager, 'r'andom. */
void fake_order(char order, uint64_t seed);
void fake_some_time(void); /* passes at every call */

fake_stream *fake_stream_new(fake_device *d);
void fake_stream_free(fake_stream *s);
fake_stream *fake_stream_check(void *stream);
void fake_stream_finish(fake_stream *s);
void fake_stream_wait(fake_stream *s, fake_event *e);
/* Until a word of pinned memory is the value, or beyond it. */
void fake_stream_wait_value(fake_stream *s, uint64_t at, uint32_t value);
fake_event *fake_event_new(fake_device *d);
void fake_event_free(fake_event *e);
void fake_event_record(fake_event *e, fake_stream *s);
void fake_event_finish(fake_event *e);
float fake_event_elapsed(fake_event *from, fake_event *to);

void fake_upload(fake_stream *s, uint64_t to, const void *from, size_t bytes);
void fake_download(fake_stream *s, void *to, uint64_t from, size_t bytes);
void fake_fill(fake_stream *s, uint64_t p, unsigned char value, size_t bytes);
void fake_launch(fake_stream *s, const oct_emulated_kernel *k, const unsigned grid[3],
                 const unsigned block[3], unsigned shared_bytes, void **arguments);

/* A kernel that is not Octet's. */
void fake_call(fake_stream *s, void (*call)(const void *args), const void *args, size_t bytes);

fake_module *fake_module_new(fake_device *d);
void fake_module_check(fake_module *m);
void fake_module_free(fake_module *m);

/* The end of a context, which takes all that is left in it; wrong if there is any, unless allowed.
 */
void fake_sweep(fake_device *d, bool allowed);

/* What has not been given back, in words; false: nothing. */
bool fake_left(char *text, size_t room);

#endif
