/* linear_tiles.h: what the vector rows' `linear` are made of: a strip of a panel, up to
 * OCT_ACT_BLOCK inputs of one group, against some rows. For the kernel files alone. */
#ifndef OCT_LINEAR_TILES_H
#define OCT_LINEAR_TILES_H

#include "kernels.h"
#include "q4.h"

/* How far ahead of its use a stream's line is fetched into L1, where it was fetched into L2 before.
 * Kernels with much to do for each line cannot keep enough loads from memory in flight otherwise;
 * the lines that L1 waits for are few. */
enum { LINEAR_NEAR = 1024 };

/* Block by block: t[r][lane] = fma(isum, s, t[r][lane]) */
typedef struct linear_tiles {
    const oct_act_layout *act;
    const uint8_t *weights; /* as q8 has them, [n_quads][64][4]; or those of the type */
    const void *const *rows;
    int64_t n_rows, n_quads, group, start; /* first input of the strip in its group */
    float *t;                              /* [n_rows][64] */
    int64_t n_bytes;                       /* of a strip like this one in the panel */
    const char *next;                      /* the strip that is read after this one */
    const char *stream_end;                /* of the panel, and */
    int64_t jump;                          /* from there to what is read next */
    int64_t stream_ahead;                  /* bytes that are fetched ahead */
} linear_tiles;

/* The strip's steps of 64 inputs, as q4 has them. */
static inline int64_t linear_steps(const linear_tiles *k)
{
    return (k->n_quads * OCT_QUAD + OCT_Q4_STEP - 1) / OCT_Q4_STEP;
}

static inline int64_t linear_near(const linear_tiles *k)
{
    return k->stream_ahead < LINEAR_NEAR ? k->stream_ahead : LINEAR_NEAR;
}

/* Whether q8's stream is fetched in two steps too. */
static inline bool linear_two_steps(const linear_tiles *k)
{
    return k->stream_ahead >= OCT_STREAM_FAR;
}

/* The place in the stream so many bytes after p. */
static inline const char *linear_stream(const linear_tiles *k, const void *p, int64_t ahead)
{
    const char *at = (const char *)p + ahead;
    return at + (at >= k->stream_end ? k->jump : 0);
}

#endif
