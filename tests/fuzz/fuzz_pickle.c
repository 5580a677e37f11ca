/* fuzz_pickle.c: files of an xAI checkpoint. Payloads that are told lie in the file. */
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "pickle.h"

static void check_array(const oct_pickle_array *a, size_t n)
{
    int64_t elements = 1;
    FUZZ_CHECK(a->rank >= 1 && a->rank <= OCT_PICKLE_MAX_RANK);
    for (int i = 0; i < a->rank; i++) {
        FUZZ_CHECK(a->shape[i] >= 1);
        elements *= a->shape[i];
    }
    FUZZ_CHECK(elements == a->n && a->bytes == (size_t)elements * oct_pickle_dtype_bytes(a->dtype));
    FUZZ_CHECK(a->at <= n && a->bytes <= n - a->at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oct_pickle p;
    oct_error err = {0};
    uint8_t *file = malloc(n ? n : 1); /* reading beyond it is seen */
    memcpy(file, data, n);
    if (oct_pickle_read("input", file, n, &p, &err) == OCT_OK) {
        check_array(&p.weight, n);
        if (p.quantised)
            check_array(&p.scales, n);
    } else {
        FUZZ_CHECK(err.text[0]);
    }
    free(file);
    return 0;
}
