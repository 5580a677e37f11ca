/* mkckpt DIR [name=value ...]: writes a synthetic checkpoint, see mkckpt.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mkckpt.h"

int main(int argc, char **argv)
{
    /* Grok-1's shapes with one layer. */
    mk_spec s = {.layers = 1,
                 .vocab = 131072,
                 .d = 6144,
                 .ffn = 32768,
                 .q_heads = 48,
                 .kv_heads = 8,
                 .head = 128,
                 .experts = 8,
                 .used = 2,
                 .context = 8192,
                 .groups = 8,
                 .seed = 1};
    const struct {
        const char *name;
        int64_t *value;
    } fields[] = {{"layers", &s.layers},   {"vocab", &s.vocab},     {"d", &s.d},
                  {"ffn", &s.ffn},         {"q_heads", &s.q_heads}, {"kv_heads", &s.kv_heads},
                  {"head", &s.head},       {"experts", &s.experts}, {"used", &s.used},
                  {"context", &s.context}, {"groups", &s.groups}};
    if (argc < 2) {
        fprintf(stderr, "usage: mkckpt DIR [kind=int8|f32|bf16] [seed=N]");
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            fprintf(stderr, " [%s=%lld]", fields[i].name, (long long)*fields[i].value);
        fprintf(stderr, "\n");
        return 2;
    }
    for (int a = 2; a < argc; a++) {
        char *value = strchr(argv[a], '=');
        bool known = value && strncmp(argv[a], "seed=", 5) == 0;
        if (known)
            s.seed = strtoull(value + 1, NULL, 10);
        for (size_t i = 0; value && i < sizeof fields / sizeof *fields; i++)
            if (strncmp(argv[a], fields[i].name, (size_t)(value - argv[a])) == 0 &&
                fields[i].name[value - argv[a]] == 0) {
                *fields[i].value = strtoll(value + 1, NULL, 10);
                known = true;
            }
        if (value && strncmp(argv[a], "kind=", 5) == 0) {
            known = true;
            s.kind = !strcmp(value, "=f32") ? MK_F32 : !strcmp(value, "=bf16") ? MK_BF16 : MK_INT8;
        }
        if (!known) {
            fprintf(stderr, "mkckpt: %s: not known\n", argv[a]);
            return 2;
        }
    }
    return mk_write(&s, argv[1]) ? 0 : 1;
}
