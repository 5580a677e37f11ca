/* mksafetensors.h: writes what Hugging Face has of Grok-1 from a checkpoint of xAI's format: every
 * int8 weight times its scale, rounded to bf16, matrices [out][in], in safetensors. */
#ifndef MKSAFETENSORS_H
#define MKSAFETENSORS_H

#include <stdbool.h>

typedef struct mks_spec {
    int scheme;         /* of names: 0: transformer.decoder_layer.N ..., 1: model.layers.N ... */
    int shards;         /* 0: model.safetensors alone, without an index */
    bool f32;           /* norms and routers stay f32, else they are rounded to bf16 */
    bool head;          /* the embedding a second time, as lm_head.weight */
    bool weights_named; /* scheme 1: norms end in "weight" */
} mks_spec;

/* Makes dir with the files and config.json. Prints what failed and returns false. */
bool mks_write(const char *ckpt, const mks_spec *s, const char *dir);

#endif
