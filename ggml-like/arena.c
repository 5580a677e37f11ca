#include "arena.h"

#include <stdlib.h>

enum { BLOCK_BYTES = 64 * 1024 };

struct oct_arena_block {
    oct_arena_block *before;
    size_t used, bytes;
    _Alignas(16) unsigned char data[];
};

void *oct_arena_alloc(oct_arena *a, size_t bytes)
{
    if (bytes > (size_t)1 << 40)
        return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->last || a->last->bytes - a->last->used < bytes) {
        size_t n = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        oct_arena_block *b = calloc(1, sizeof *b + n);
        if (!b)
            return NULL;
        b->bytes = n;
        b->before = a->last;
        a->last = b;
    }
    void *p = a->last->data + a->last->used;
    a->last->used += bytes;
    return p;
}

void oct_arena_free(oct_arena *a)
{
    while (a->last) {
        oct_arena_block *before = a->last->before;
        free(a->last);
        a->last = before;
    }
}
