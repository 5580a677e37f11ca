/* recovery.h: bf16 matrices of a checkpoint read as the int8 and scales that they were made of
 * (quant/q8_recover.h). Scales are found once, when a channel is first read, and kept for the rest
 * of the conversion, since a new file holds them far from their weights: 2 bytes for each channel
 * and group, 125 MB for Grok-1. */
#ifndef OCT_RECOVERY_H
#define OCT_RECOVERY_H

#include "convert.h"
#include "source.h"
#include "status.h"

typedef struct oct_recovery oct_recovery;

/* For n_scales scales of all matrices together. Reading may be done by any number of threads. */
OCT_MUST_CHECK oct_status oct_recovery_new(int64_t n_scales, oct_recovery **out, oct_error *err);
void oct_recovery_free(oct_recovery *r); /* NULL is fine */
size_t oct_recovery_bytes(const oct_recovery *r);

/* One expert's matrix, bf16 [n_out][n_in]. */
typedef struct oct_bf16_matrix {
    int64_t n_in, n_groups;
    int64_t first_scale; /* its place among all scales: [n_out][n_groups] */
    /* Reads n numbers of a row, and names one for messages. */
    oct_status (*read)(const void *ctx, int64_t row, int64_t column, int64_t n, uint16_t *out,
                       oct_error *err);
    void (*where)(const void *ctx, int64_t row, int64_t column, char text[OCT_SOURCE_WHERE]);
    const void *ctx;
} oct_bf16_matrix;

/* A block of its int8, without gaps. Takes memory for b->n_columns and two groups. Every number of a
 * channel whose scale is exact is compared again; one that has changed is an error. */
OCT_MUST_CHECK oct_status oct_recovery_read_i8(oct_recovery *r, const oct_bf16_matrix *m,
                                               const oct_block *b, int8_t *out, oct_error *err);
/* Of its scales, bf16 bits; columns count groups. */
OCT_MUST_CHECK oct_status oct_recovery_read_scales(oct_recovery *r, const oct_bf16_matrix *m,
                                                   const oct_block *b, uint16_t *out,
                                                   oct_error *err);

/* How all that has been read came back, and lines that name the numbers that did not (at most 20,
 * in the order of their texts). */
void oct_recovery_tell(const oct_recovery *r, oct_convert_recovered *out, oct_lines *warnings);

#endif
