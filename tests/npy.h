/* npy.h: reads .npy arrays (format 1.0 to 3.0, little-endian, C order) for tests. */
#ifndef OCT_TEST_NPY_H
#define OCT_TEST_NPY_H

#include <stddef.h>
#include <stdint.h>

enum { OCT_NPY_MAX_DIM = 8 };

typedef struct oct_npy {
    char kind; /* 'f', 'i', 'u' or 'b' (bool), as in the file */
    int size;  /* bytes of an element */
    int ndim;
    int64_t shape[OCT_NPY_MAX_DIM]; /* 1 beyond ndim */
    int64_t n;                      /* elements */
    void *data;                     /* malloc'd, owned by this struct */
} oct_npy;

/* Fills *out. Returns 0, or -1 after a line on stderr that says what is wrong; *out is
 * then empty. */
int oct_npy_load(const char *path, oct_npy *out);

/* Loads dir/name.npy and checks kind and size of its elements ('f', 4 for float32). */
int oct_npy_load_as(const char *dir, const char *name, char kind, int size, oct_npy *out);

void oct_npy_free(oct_npy *a); /* an empty one is fine */

#endif
