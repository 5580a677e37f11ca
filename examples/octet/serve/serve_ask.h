/* serve_ask.h: what a client asks for, from the body of its request. Pure, for the worker. */
#ifndef OCT_SERVE_ASK_H
#define OCT_SERVE_ASK_H

#include <jansson.h>

#include "serve.h"
#include "serve_text.h"

enum { OCT_SERVE_TOP_MAX = 20, OCT_SERVE_TEXTS_MAX = 1024, OCT_SERVE_N_MAX = 128 };

typedef struct oct_serve_prompt {
    char *text; /* [n] as given, or what the ids say; malloc'd */
    size_t n;
    int32_t *ids; /* [n_ids] */
    size_t n_ids;
} oct_serve_prompt;

typedef struct oct_serve_ask {
    bool chat, stream, usage, progress; /* usage, progress: wanted in the stream */
    bool echo, logprobs, ignore_eos;
    int32_t n_top, n; /* n: texts for each prompt */
    int64_t n_max;    /* -1: as many tokens as fit */
    oct_sampler sampler;
    oct_logit_bias *bias; /* what sampler.bias is */
    oct_serve_stops stops;
    oct_serve_prompt *prompts; /* [n_prompts] */
    int64_t n_prompts;
    char ignored[128]; /* names of fields that mean nothing here, for the log */
} oct_serve_ask;

/* A whole request. False: *f says why. oct_serve_ask_free follows in any case. */
bool oct_serve_ask_parse(const oct_serve_config *c, bool chat, const char *body, size_t n,
                         oct_serve_ask *out, oct_serve_fault *f);
void oct_serve_ask_free(oct_serve_ask *a);

/* A JSON object, not too deep and of not too many values; NULL: *f says why. */
json_t *oct_serve_json(const char *body, size_t n, oct_serve_fault *f);
/* The value of a key; NULL: it is absent, or null. */
json_t *oct_serve_get(const json_t *object, const char *key);
/* Text to tokens of a prompt; false: *f says why. */
bool oct_serve_encode(const oct_serve_config *c, oct_serve_prompt *p, oct_serve_fault *f);
/* An array of ids of the vocabulary; *ids is malloc'd. */
bool oct_serve_ids(const oct_serve_config *c, const json_t *array, const char *key, int32_t **ids,
                   size_t *n_ids, oct_serve_fault *f);

/* ---- serve_template.c ----------------------------------------------------------------------- */

/* Whether there is a template of that name; *names: a list of all. */
bool oct_serve_template_known(const char *name, const char **names);
/* messages of a chat as a prompt; *text is malloc'd. stops receives what ends a turn. */
bool oct_serve_template_apply(const char *name, const json_t *messages, char **text, size_t *n,
                              oct_serve_stops *stops, oct_serve_fault *f);

#endif
