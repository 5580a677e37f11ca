/* sniff.h: what a file seems to be, told by its first bytes. */
#ifndef OCT_SNIFF_H
#define OCT_SNIFF_H

#include <stddef.h>

/* "an HTML page, saved in place of the file"; NULL: unknown. n bytes of the file's start, 64 are
 * enough; any bytes are fine. Thread-safe. */
const char *oct_sniff(const void *bytes, size_t n);

#endif
