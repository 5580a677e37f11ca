/* watch.h: whether the other ranks of a job are alive, and where they are.
 *
 * A thread of every rank sends a small UDP packet to every other rank five times a second. It does
 * nothing else, so a rank that computes, or waits for a slow disk, is alive; a rank that was killed
 * or stopped is not. What the packets carry besides: the layer that the rank is in. */
#ifndef OCT_WATCH_H
#define OCT_WATCH_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum { OCT_WATCH_HOST = 64, OCT_WATCH_ADDRESSES = 24 };

typedef union oct_watch_place {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} oct_watch_place;

/* How a rank can be reached; ranks exchange these before the watch starts. */
typedef struct oct_watch_address {
    char host[OCT_WATCH_HOST];
    uint64_t key; /* packets to this rank carry it; random */
    uint64_t net; /* of the kernel's network that it is in, the same for all in it; 0: unknown */
    uint32_t n_places;
    oct_watch_place place[OCT_WATCH_ADDRESSES];
} oct_watch_address;

typedef struct oct_watch oct_watch;

/* fatal: a rank is lost, the job must end; text names it; called on the watching thread, by the lowest
 * rank that is left alone, or by others if that one does not do it. If the function returns, the
 * process ends. Else a warning, on a thread of its own, so that it may block. */
typedef void oct_watch_say(void *ctx, bool fatal, const char *text);

/* Opens the socket and fills *mine. Free with oct_watch_free in any state. */
OCT_MUST_CHECK oct_status oct_watch_new(int rank, int size, oct_watch **out,
                                        oct_watch_address *mine, oct_error *err);
/* Starts the thread. all [size] is copied; layer: this rank's, read until the watch is freed. */
OCT_MUST_CHECK oct_status oct_watch_start(oct_watch *w, const oct_watch_address *all,
                                          const _Atomic int64_t *layer, oct_watch_say *say,
                                          void *ctx, oct_error *err);
/* This rank is about to end in order: the others must not miss it. */
void oct_watch_leave(oct_watch *w);
void oct_watch_free(oct_watch *w);

#endif
