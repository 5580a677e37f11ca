/* mksafetensors CKPT DIR [scheme=0|1] [shards=N] [f32=1] [head=1]: see mksafetensors.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mksafetensors.h"

int main(int argc, char **argv)
{
    mks_spec s = {0};
    for (int a = 3; a < argc; a++) {
        const char *value = strchr(argv[a], '=');
        const int v = value ? atoi(value + 1) : 0;
        if (strncmp(argv[a], "scheme=", 7) == 0)
            s.scheme = v;
        else if (strncmp(argv[a], "shards=", 7) == 0)
            s.shards = v;
        else if (strncmp(argv[a], "f32=", 4) == 0)
            s.f32 = v;
        else if (strncmp(argv[a], "head=", 5) == 0)
            s.head = v;
        else
            argc = 0;
    }
    if (argc < 3 || s.scheme < 0 || s.scheme > 1 || s.shards < 0 || s.shards > 60) {
        fprintf(stderr,
                "usage: mksafetensors CKPT DIR [scheme=0|1] [shards=0..60] [f32=1] [head=1]\n");
        return 2;
    }
    return mks_write(argv[1], &s, argv[2]) ? 0 : 1;
}
