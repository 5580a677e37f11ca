/* hub.h: a model in safetensors as Hugging Face's Hub has it: a folder of shards with an index, or
 * a single file; and which tensor is in which. */
#ifndef OCT_HUB_H
#define OCT_HUB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "convert.h"
#include "safetensors.h"
#include "status.h"

enum { OCT_HUB_MAX_SHARDS = 4096 };

typedef struct oct_hub_shard {
    char *file; /* its name in the folder */
    oct_safetensors content;
    uint64_t n; /* bytes; 0: missing or unreadable */
    dev_t device;
    ino_t inode;
} oct_hub_shard;

typedef struct oct_hub_entry {
    const oct_hub_shard *shard;
    const oct_st_tensor *tensor;
} oct_hub_entry;

/* Immutable once open. */
typedef struct oct_hub {
    char *dir;
    oct_hub_shard *shard;
    int64_t n_shards;
    oct_hub_entry *entry; /* [n_entries], sorted by the tensors' names */
    int64_t n_entries;
} oct_hub;

/* Looks at names only: *root (malloc'd) is path if that is a folder with safetensors, or such a
 * file; or the snapshot that is meant, if path is a model's folder in the Hub's cache (refs/main).
 * NULL: none of these. */
OCT_MUST_CHECK oct_status oct_hub_find(const char *path, char **root, oct_error *err);

/* Reads the index, if there is one, and all headers. Every shard that is missing (also a link into
 * the cache whose file is not there), unfinished or odd, and every tensor that is not where the
 * index says, adds a line to problems; then the status is OCT_ERR_FORMAT and err sums up. Names of
 * files that leave the folder are refused. Safe for untrusted input. *out: oct_hub_free. */
OCT_MUST_CHECK oct_status oct_hub_open(const char *root, oct_hub **out, oct_lines *problems,
                                       oct_error *err);
void oct_hub_free(oct_hub *h); /* NULL is fine */

/* The tensor of a name; NULL: none. */
const oct_hub_entry *oct_hub_find_tensor(const oct_hub *h, const char *name);

/* Opens a shard for reading; it must still be the file that was checked. */
OCT_MUST_CHECK oct_status oct_hub_open_shard(const oct_hub *h, const oct_hub_shard *s, int *fd,
                                             oct_error *err);

#endif
