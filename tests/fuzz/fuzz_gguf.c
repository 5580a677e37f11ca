/* fuzz_gguf.c: headers of GGUF files. The first two bytes are the size of what follows the input in
 * the file. What is accepted can be asked for everything. */
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "gguf.h"
#include "grok.h"

static void ask_key(const oct_gguf *g, int64_t i)
{
    uint32_t type, element;
    uint64_t n, u;
    float f;
    const char *text;
    const void *data;
    oct_error err = {0};
    const char *key = oct_gguf_key_at(g, i, &type, &element, &n);
    FUZZ_CHECK(key && oct_gguf_has(g, key));
    (void)!(oct_gguf_get_u64(g, key, &u, &err) == OCT_OK);
    (void)!(oct_gguf_get_f32(g, key, &f, &err) == OCT_OK);
    if (oct_gguf_get_str(g, key, &text, &err) == OCT_OK)
        (void)strlen(text);
    if (type == OCT_GGUF_ARRAY && element != OCT_GGUF_STRING &&
        oct_gguf_get_array(g, key, element, &data, &n, &err) == OCT_OK && n) {
        volatile uint8_t first = *(const uint8_t *)data;
        (void)first;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oct_gguf *g = NULL;
    oct_error err = {0};
    if (n < 2)
        return 0;
    const uint64_t more = data[0] | (uint64_t)data[1] << 8;
    uint8_t *header = malloc(n - 2 ? n - 2 : 1); /* reading beyond it is seen */
    memcpy(header, data + 2, n - 2);
    if (oct_gguf_parse("input", header, n - 2, n - 2 + more, &g, &err) == OCT_OK) {
        oct_grok_config c;
        oct_grok_types *types = NULL;
        for (int64_t i = 0; i < oct_gguf_n_kv(g); i++)
            ask_key(g, i);
        for (int64_t i = 0; i < oct_gguf_n_tensors(g); i++) {
            const oct_gguf_tensor *t = oct_gguf_tensor_at(g, i);
            FUZZ_CHECK(oct_gguf_find(g, t->name) == t);
            FUZZ_CHECK(t->bytes <= n - 2 + more && t->offset <= n - 2 + more - t->bytes);
        }
        (void)!(oct_grok_check_placement(g, &err) == OCT_OK);
        if (oct_grok_config_get(g, &c, &err) == OCT_OK &&
            oct_grok_types_get(g, &c, &types, &err) == OCT_OK)
            free(types);
    } else {
        FUZZ_CHECK(err.text[0]);
    }
    oct_gguf_close(g);
    free(header);
    return 0;
}
