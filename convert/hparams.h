/* hparams.h: the numbers of a model that shapes cannot tell. Grok-1's are known; other checkpoints
 * bring a config.json with the names of xAI's run script. */
#ifndef OCT_HPARAMS_H
#define OCT_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint.h"
#include "grok.h"
#include "source.h"
#include "status.h"

/* Keys of config.json, in the order of the table in hparams.c. */
typedef enum oct_hparam {
    OCT_HP_VOCAB_SIZE,
    OCT_HP_EMB_SIZE,
    OCT_HP_NUM_LAYERS,
    OCT_HP_NUM_EXPERTS,
    OCT_HP_NUM_Q_HEADS,
    OCT_HP_NUM_KV_HEADS,
    OCT_HP_KEY_SIZE,
    OCT_HP_WIDENING_FACTOR,
    OCT_HP_NUM_SELECTED_EXPERTS,
    OCT_HP_SEQUENCE_LEN,
    OCT_HP_PAD_TOKEN,
    OCT_HP_EOS_TOKEN,
    OCT_HP_EMBEDDING_MULTIPLIER_SCALE,
    OCT_HP_OUTPUT_MULTIPLIER_SCALE,
    OCT_HP_ATTN_OUTPUT_MULTIPLIER,
    OCT_HP_FFN_SIZE, /* from here on: Hugging Face's files only */
    OCT_HP_ATTN_CAP,
    OCT_HP_ROPE_BASE,
    OCT_HP_NORM_EPS,
    OCT_HPARAMS
} oct_hparam;

/* Whose names the keys have. EITHER: Hugging Face's if the file has its name of the model's width,
 * else xAI's; what was read says which. */
typedef enum oct_hparam_names {
    OCT_HPARAM_XAI,
    OCT_HPARAM_HUGGING_FACE,
    OCT_HPARAM_EITHER
} oct_hparam_names;

typedef struct oct_hparams {
    oct_hparam_names names;
    bool given[OCT_HPARAMS];
    double value[OCT_HPARAMS]; /* integers up to 2^31 are exact */
    /* What in the file is no Grok-1's, whatever the sizes are, for who has nothing else to go by:
     * "model_type \"mixtral\""; empty: nothing. */
    char foreign[120];
} oct_hparams;

/* The key as the file that was read spells it, or would. Static. */
const char *oct_hparams_key(const oct_hparams *h, oct_hparam p);

/* Reads a config.json: one object, numbers within their ranges. Of xAI's names, keys that are not
 * known are named in a warning; a file of Hugging Face's has many that no model needs. Two keys for
 * one number have to agree. Errors name the file and the key. Safe for untrusted input. */
OCT_MUST_CHECK oct_status oct_hparams_read(const char *path, oct_hparam_names names, oct_hparams *h,
                                           oct_lines *warnings, oct_error *err);

/* If the shapes are Grok-1's: takes Grok-1's numbers for all that shapes do not tell, with a
 * warning where the file has others (published conversions have defaults of other models there). */
void oct_hparams_prefer_grok1(const oct_ckpt *ckpt, const char *path, oct_hparams *h,
                              oct_lines *warnings);

/* Whether every shape, and the number of layers, is Grok-1's. If not, why (may be NULL) says what
 * differs: "emb_size is 256 (Grok-1: 6144)". */
bool oct_hparams_is_grok1(const oct_ckpt *ckpt, char why[128]);

/* The model's configuration from the shapes, the file h read from path (both NULL: none), and
 * Grok-1's numbers if the shapes are Grok-1's. A number of the file that contradicts a shape is an
 * error that names both; so is a number that nobody gives. looked_in says where a file was sought.
 * The result has passed oct_grok_config_check. */
OCT_MUST_CHECK oct_status oct_hparams_resolve(const oct_ckpt *ckpt, const oct_hparams *h,
                                              const char *path, const char *looked_in,
                                              oct_grok_config *out, oct_error *err);

#endif
