/* fuzz.h: what the fuzz targets share. A target is one fuzz_NAME.c with the entry point that
 * libFuzzer calls; its seeds are the files in tests/data/fuzz/NAME. Built with OCTET_FUZZ (./dev
 * fuzz) it is a fuzzer; else, with fuzz_main.c, a program that runs its seeds, and as many mutations
 * of them as it is told. */
#ifndef OCT_FUZZ_H
#define OCT_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What must hold whatever the input is. */
#define FUZZ_CHECK(x)                                                              \
    do {                                                                           \
        if (!(x)) {                                                                \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #x); \
            abort();                                                               \
        }                                                                          \
    } while (0)

#endif
