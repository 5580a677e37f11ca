#include "arena.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 * 1024 };

struct oct_arena_block {
    oct_arena_block *before;
    size_t used, bytes;
    bool lent;
    _Alignas(16) unsigned char data[];
};

void oct_arena_lend(oct_arena *a, void *room, size_t bytes)
{
    if (bytes < sizeof(oct_arena_block))
        return;
    oct_arena_block *b = room;
    *b = (oct_arena_block){.before = a->last, .bytes = bytes - sizeof *b, .lent = true};
    a->last = b;
}

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
    return a->last->lent ? memset(p, 0, bytes) : p;
}

void oct_arena_free(oct_arena *a)
{
    while (a->last) {
        oct_arena_block *before = a->last->before;
        if (!a->last->lent)
            free(a->last);
        a->last = before;
    }
}
