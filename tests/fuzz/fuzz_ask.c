/* fuzz_ask.c: bodies of requests to `octet serve`. The first byte says whether it is a chat.
 * What is accepted is within the limits that the server has; what is not is a fault with a
 * message. */
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "convert.h"
#include "fuzz.h"
#include "serve_ask.h"

enum { CONTEXT = 256 };

static oct_serve_config config = {.name = "tiny", .template = "plain", .n_ctx = CONTEXT};

/* In place of that of cli.c: the same input, the same run. */
uint64_t oct_cli_random(void)
{
    return 4;
}

/* The shipped model, converted once. */
static void open_model(void)
{
    static char path[] = "/tmp/fuzz-ask-XXXXXX";
    oct_model *m = NULL;
    oct_convert_report report = {0};
    oct_error err = {0};
    const int fd = mkstemp(path);
    const oct_convert_params p = {.checkpoint = FUZZ_TINY, .out = path, .n_threads = 1};
    if (fd < 0 || oct_convert(&p, &report, &err) != OCT_OK ||
        oct_model_open(path, &m, &err) != OCT_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    oct_convert_report_free(&report);
    close(fd);
    unlink(path);
    config.model = m;
    for (int32_t id = 0; id < oct_model_get_info(m)->n_vocab; id++) {
        size_t n;
        (void)oct_token_bytes(m, id, &n);
        if ((int64_t)n * CONTEXT > config.n_ids_bytes_max)
            config.n_ids_bytes_max = (int64_t)n * CONTEXT;
    }
}

static void check(const oct_serve_ask *a)
{
    const int64_t n_vocab = oct_model_get_info(config.model)->n_vocab;
    FUZZ_CHECK(a->n_prompts >= 1 && a->n_prompts * a->n <= OCT_SERVE_TEXTS_MAX);
    FUZZ_CHECK(a->n >= 1 && a->n <= OCT_SERVE_N_MAX && a->n_top >= 0);
    FUZZ_CHECK(a->n_top <= OCT_SERVE_TOP_MAX && a->n_max >= -1);
    FUZZ_CHECK(isfinite(a->sampler.temperature) && a->sampler.temperature >= 0);
    for (int64_t i = 0; i < a->n_prompts; i++) {
        FUZZ_CHECK((int64_t)a->prompts[i].n_ids <= CONTEXT);
        for (size_t k = 0; k < a->prompts[i].n_ids; k++)
            FUZZ_CHECK(a->prompts[i].ids[k] >= 0 && a->prompts[i].ids[k] < n_vocab);
    }
    for (int i = 0; i < a->stops.count; i++)
        FUZZ_CHECK(a->stops.text[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oct_serve_ask a;
    oct_serve_fault f = {0};
    if (!config.model)
        open_model();
    if (n < 1)
        return 0;
    char *body = malloc(n); /* reading beyond it is seen */
    memcpy(body, data + 1, n - 1);
    if (oct_serve_ask_parse(&config, data[0] & 1, body, n - 1, &a, &f))
        check(&a);
    else
        FUZZ_CHECK(f.status >= 400 && f.status < 600 && f.message[0]);
    oct_serve_ask_free(&a);
    free(body);
    return 0;
}
