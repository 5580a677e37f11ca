/* part.h: pages of the model's file by the slice they belong to. */
#ifndef OCT_PART_H
#define OCT_PART_H

#include "model_impl.h"

/* A run of pages of the file that belongs to one slice. */
typedef struct oct_span {
    uint64_t at, bytes; /* in the file */
    int64_t expert, slice;
    oct_shard_kind kind;
} oct_span;

typedef struct oct_span_list {
    oct_span *v; /* malloc'd: the caller frees it */
    int64_t n;
} oct_span_list;

OCT_MUST_CHECK oct_status oct_model_spans(const oct_model *m, oct_span_list *out, oct_error *err);
bool oct_span_is_of(const oct_span *s, const oct_shard *shard);
/* Not where the file is another rank's part, or the span was given up by oct_model_keep_part. */
bool oct_model_has_span(const oct_model *m, const oct_span *s);

#endif
