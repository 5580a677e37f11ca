/* gguf_part.h: parts of a GGUF file. A part holds some runs of pages of another file, the whole,
 * its header among them; mapped, every run appears where it is in the whole and nothing is mapped
 * between. The layout in the file is described in convert/FORMAT.md. */
#ifndef OCT_GGUF_PART_H
#define OCT_GGUF_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard.h"
#include "status.h"

typedef struct oct_part_run {
    uint64_t at;    /* in the whole; a multiple of 4096, as every number but bytes and sum */
    uint64_t place; /* in the part */
    uint64_t bytes; /* only of the last one not a multiple of 4096 */
    uint64_t sum;   /* XXH3 of the bytes */
} oct_part_run;

typedef struct oct_part {
    oct_shard_layout layout;
    int rank, size;
    uint64_t whole_bytes, file_bytes; /* of the whole, and of the part */
    int64_t n_runs;
    oct_part_run *run; /* ascending, the first at 0 */
} oct_part;

void oct_part_free(oct_part *p); /* NULL is fine */

/* Gives every run its place, and the part its size. Runs of 16 MiB and more that begin at a
 * multiple of 2 MiB in the whole do so in the part, so that both can lie in huge pages. */
void oct_part_place(oct_part *p);

/* The table that ends a part (malloc'd, the caller frees): *n bytes, ending at file_bytes. NULL: no
 * memory. */
void *oct_part_table(const oct_part *p, size_t *n);

/* Maps an open file that is not empty. A part (*part, freed by the caller in any case) is mapped as
 * the whole that it is of: *n bytes, to be unmapped as one, of which those it does not hold cannot
 * be touched; its table is checked: the runs lie in the file and in the whole, in order, without
 * overlaps. Any other file is mapped as it is, *part is NULL. */
OCT_MUST_CHECK oct_status oct_part_map(int fd, const char *path, uint64_t file_bytes,
                                       const void **map, size_t *n, oct_part **part,
                                       oct_error *err);

/* Whether bytes at an offset in the whole are all held. */
bool oct_part_holds(const oct_part *p, uint64_t at, uint64_t bytes);

/* "rank 3 of 8 by slice" */
enum { OCT_PART_NAME_MAX = 64 };
const char *oct_part_name(oct_shard_layout layout, int rank, int size, char out[OCT_PART_NAME_MAX]);

#endif
