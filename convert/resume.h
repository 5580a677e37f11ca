/* resume.h: going on with a conversion whose process was killed. Behind the new file's bytes its
 * temporary file has a list: of each piece that has been written, the checksum. A later run of the
 * same work (the same checkpoint, cut alike) takes over the file, reads back what the list names,
 * and makes only what is not there or is not what the list says. The list is cut off at the end. */
#ifndef OCT_RESUME_H
#define OCT_RESUME_H

#include "convert_impl.h"

typedef struct oct_resume {
    const oct_output *out;
    uint64_t key, file_bytes;
    int64_t n;      /* pieces */
    uint64_t *sums; /* [n] of those that are there; 0: not yet */
    bool resumed;
} oct_resume;

/* What tells one work from another: the new file's header, how the work is cut, and names, sizes and
 * times of the files in the source's folder. */
uint64_t oct_resume_key(const oct_source *s, const void *header, size_t n, const oct_cut *cut);

/* Creates the output's temporary file, or takes one over. Free with oct_resume_free in any case. */
OCT_MUST_CHECK oct_status oct_resume_create(oct_resume *r, oct_output *o, const char *path,
                                            uint64_t file_bytes, int64_t n_pieces, uint64_t key,
                                            oct_lines *warnings, oct_error *err);
void oct_resume_free(oct_resume *r);

/* Whether piece i is in the file; reads it into data, which has p->bytes. Thread-safe for different
 * pieces, as the next one is. */
bool oct_resume_take(oct_resume *r, int64_t i, const oct_piece *p, void *data);
/* To be called when piece i has been written. */
OCT_MUST_CHECK oct_status oct_resume_mark(oct_resume *r, int64_t i, const oct_piece *p,
                                          const void *data, oct_error *err);
/* Cuts the list off, when the file has been verified. */
OCT_MUST_CHECK oct_status oct_resume_end(const oct_output *o, uint64_t file_bytes, oct_error *err);

#endif
