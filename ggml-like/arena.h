/* arena.h: memory for many small objects that die together. Not thread-safe. */
#ifndef OCT_ARENA_H
#define OCT_ARENA_H

#include <stddef.h>

typedef struct oct_arena_block oct_arena_block;
typedef struct oct_arena {
    oct_arena_block *last;
} oct_arena; /* start from zero */

/* Memory of the caller (16-byte aligned, of any contents) that a fresh arena takes first. */
void oct_arena_lend(oct_arena *a, void *room, size_t bytes);

/* Zeroed, 16-byte aligned; NULL when memory is out. Freed by oct_arena_free only. */
void *oct_arena_alloc(oct_arena *a, size_t bytes);
void oct_arena_free(oct_arena *a);

#endif
