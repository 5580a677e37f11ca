/* ids.h: token ids as text: a sequence a line, separated by spaces, tabs or commas. */
#ifndef OCT_IDS_H
#define OCT_IDS_H

#include <octet/octet.h>

typedef struct oct_ids {
    int32_t *token, *seq; /* [n] ids; the sequence of each, from 0 on */
    int64_t n, room;
    int64_t n_seqs, n_longest; /* sequences; tokens of the longest */
} oct_ids;

enum { OCT_IDS_BYTES_MAX = 1 << 30 }; /* of such a file */

/* "-" as it is called in messages. */
const char *oct_ids_name(const char *path);

/* Parses text[n], which ends with a NUL: every number must be an id of the vocabulary, and there
 * must be one. Errors name `name` and the line. Free with oct_ids_free in any case. */
OCT_MUST_CHECK oct_status oct_ids_parse(const char *name, const char *text, size_t n,
                                        int64_t n_vocab, oct_ids *out, oct_error *err);
void oct_ids_free(oct_ids *ids);

#endif
