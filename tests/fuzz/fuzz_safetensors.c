/* fuzz_safetensors.c: headers of safetensors files. The first two bytes are the size of the data
 * behind the header. What is accepted fills the data, and each tensor is found by its name. */
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oct_safetensors s;
    oct_error err = {0};
    if (n < 2)
        return 0;
    const uint64_t bytes = data[0] | (uint64_t)data[1] << 8;
    const uint64_t first = 8 + (uint64_t)(n - 2);
    const oct_status status =
        oct_safetensors_parse("input", (const char *)data + 2, n - 2, first + bytes, &s, &err);
    FUZZ_CHECK((status == OCT_OK) == (err.text[0] == 0));
    uint64_t sum = 0;
    for (int64_t i = 0; i < s.n; i++) {
        const oct_st_tensor *t = &s.tensor[i];
        char text[120];
        uint64_t elements = 1;
        FUZZ_CHECK(t->at >= first && t->bytes <= bytes && t->at - first <= bytes - t->bytes);
        FUZZ_CHECK(oct_safetensors_find(&s, t->name) == t);
        for (int k = 0; k < t->rank; k++)
            elements *= (uint64_t)t->shape[k];
        FUZZ_CHECK(elements ? t->bytes % elements == 0 && t->bytes / elements <= 8 : !t->bytes);
        oct_st_shape_text(t, text);
        sum += t->bytes;
    }
    FUZZ_CHECK(status != OCT_OK || sum == bytes);
    oct_safetensors_free(&s);
    return 0;
}
