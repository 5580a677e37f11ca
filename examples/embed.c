/* embed.c: the whole of liboctet in sixty lines: open a model, feed it a prompt, sample, print.
 *
 *     cc embed.c $(pkg-config --cflags --libs octet) -o embed
 *     ./embed model.gguf "The king said" 40
 */
#include <octet/octet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int generate(const oct_model *model, oct_session *session, const char *prompt, long n_max,
                    oct_error *err)
{
    int64_t n_vocab = oct_model_get_info(model)->n_vocab;
    int32_t eos = oct_model_get_info(model)->eos_id, *ids = NULL;
    size_t n_ids = 0;
    float *logits = calloc((size_t)n_vocab, 3 * sizeof *logits); /* one row, and scratch of two */
    int ok = logits && oct_encode(model, prompt, strlen(prompt), &ids, &n_ids, err) == OCT_OK;
    oct_batch batch = {.n = (int64_t)n_ids, .token = ids};
    ok = ok && oct_eval(session, &batch, logits, err) == OCT_OK;
    oct_sampler sampler = {.temperature = 0.7f, .top_p = 0.95f, .rng = 42};
    for (long i = 0; ok && i < n_max; i++) {
        int32_t id = oct_sample(&sampler, logits, n_vocab, logits + n_vocab);
        if (id < 0 || id == eos)
            break;
        size_t n = 0;
        const char *bytes = oct_token_bytes(model, id, &n);
        fwrite(bytes, 1, n, stdout);
        fflush(stdout);
        batch = (oct_batch){.n = 1, .token = &id};
        ok = oct_eval(session, &batch, logits, err) == OCT_OK;
    }
    putchar('\n');
    free(ids);
    free(logits);
    return ok;
}

int main(int argc, char **argv)
{
    oct_error err = {0};
    oct_model *model = NULL;
    oct_session *session = NULL;
    if (argc != 4) {
        fprintf(stderr, "usage: embed MODEL PROMPT TOKENS\n");
        return 2;
    }
    oct_session_params params = {0}; /* everything by default: context, threads, kernels */
    int ok = oct_model_open(argv[1], &model, &err) == OCT_OK &&
             oct_session_new(model, &params, &session, &err) == OCT_OK &&
             generate(model, session, argv[2], strtol(argv[3], NULL, 10), &err);
    if (!ok)
        fprintf(stderr, "embed: %s\n", err.text);
    oct_session_free(session);
    oct_model_close(model);
    return ok ? 0 : 1;
}
