/* read_block.h: memory of its own to measure reading with, where no weights are at hand. Inside
 * model/ only. */
#ifndef OCT_READ_BLOCK_H
#define OCT_READ_BLOCK_H

#include "probe.h"

/* Up to `bytes`, in huge pages where the system gives them, at most the given share of what is
 * available (32: a 32nd). span->data NULL: there is none; else free it with oct_read_block_free. */
void oct_read_block_new(size_t bytes, uint64_t share, oct_probe_span *span);
void oct_read_block_free(oct_probe_span *span); /* NULL data is fine */

/* First touch: each thread's part comes to lie near it, and not in a cache. */
void oct_read_block_touch(oct_team *team, oct_probe_span *span);

#endif
