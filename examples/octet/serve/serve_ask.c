#include "serve_ask.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { DEPTH_MAX = 64, VALUES_MAX = 1 << 20 };

bool oct_serve_refuse(oct_serve_fault *f, int status, const char *code, const char *param,
                      const char *fmt, ...)
{
    va_list ap;
    f->status = status;
    f->type = status == 401   ? "authentication_error"
              : status == 403 ? "permission_error"
              : status == 429 ? "rate_limit_error"
              : status >= 500 ? "server_error"
                              : "invalid_request_error";
    f->code = code;
    snprintf(f->param, sizeof f->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    return false;
}

static bool no_memory(oct_serve_fault *f)
{
    return oct_serve_refuse(f, 500, NULL, "", "out of memory");
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* Before anything is allocated or recursed into: brackets outside strings, and values. */
static bool check_size(const char *body, size_t n, oct_serve_fault *f)
{
    int depth = 0;
    size_t n_values = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        const char c = body[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        n_values += c == ',' || c == '[' || c == '{';
        if (depth > DEPTH_MAX)
            return oct_serve_refuse(f, 400, NULL, "", "the body is nested deeper than %d levels",
                                    DEPTH_MAX);
        if (n_values > VALUES_MAX)
            return oct_serve_refuse(f, 400, NULL, "", "the body holds more than %d values",
                                    VALUES_MAX);
    }
    return true;
}

json_t *oct_serve_json(const char *body, size_t n, oct_serve_fault *f)
{
    json_error_t e;
    if (!check_size(body, n, f))
        return NULL;
    json_t *json = json_loadb(body, n, JSON_ALLOW_NUL, &e);
    if (!json)
        oct_serve_refuse(f, 400, NULL, "", "the body is not JSON: line %d, column %d: %s", e.line,
                         e.column, e.text);
    else if (!json_is_object(json))
        oct_serve_refuse(f, 400, NULL, "", "the body is not a JSON object");
    else
        return json;
    json_decref(json);
    return NULL;
}

json_t *oct_serve_get(const json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* ---- fields --------------------------------------------------------------------------------- */

typedef struct field {
    const char *name;
    enum { REAL, WHOLE, FLAG, KNOWN, TEXT_ONLY, EMPTY_ONLY } kind;
    double lo, hi; /* of numbers */
} field;

/* Read elsewhere or without meaning here: KNOWN. What is asked for and cannot be given must be empty,
 * or the one thing that is given anyway. */
static const field fields[] = {
    {"temperature", REAL, 0, 100},
    {"top_p", REAL, 0, 1},
    {"min_p", REAL, 0, 1},
    {"top_k", WHOLE, -1, 1 << 30},
    {"frequency_penalty", REAL, -100, 100},
    {"presence_penalty", REAL, -100, 100},
    {"repetition_penalty", REAL, 0.01, 100},
    {"seed", WHOLE, -0x1p63, 0x1.fffffffffffffp62},
    {"n", WHOLE, 1, OCT_SERVE_N_MAX},
    {"best_of", WHOLE, 1, OCT_SERVE_N_MAX},
    {"max_tokens", WHOLE, -1, 0x1p53},
    {"max_completion_tokens", WHOLE, -1, 0x1p53},
    {"top_logprobs", WHOLE, 0, OCT_SERVE_TOP_MAX},
    {"stream", FLAG, 0, 0},
    {"echo", FLAG, 0, 0},
    {"ignore_eos", FLAG, 0, 0},
    {"return_progress", FLAG, 0, 0},
    {"logprobs", KNOWN, 0, 0},
    {"logit_bias", KNOWN, 0, 0},
    {"stop", KNOWN, 0, 0},
    {"prompt", KNOWN, 0, 0},
    {"messages", KNOWN, 0, 0},
    {"model", KNOWN, 0, 0},
    {"stream_options", KNOWN, 0, 0},
    {"user", KNOWN, 0, 0},
    {"response_format", TEXT_ONLY, 0, 0},
    {"modalities", TEXT_ONLY, 0, 0},
    {"tools", EMPTY_ONLY, 0, 0},
    {"functions", EMPTY_ONLY, 0, 0},
    {"suffix", EMPTY_ONLY, 0, 0},
    {"audio", EMPTY_ONLY, 0, 0},
    {"web_search_options", EMPTY_ONLY, 0, 0},
    {"grammar", EMPTY_ONLY, 0, 0},
    {"guided_json", EMPTY_ONLY, 0, 0},
    {"guided_regex", EMPTY_ONLY, 0, 0},
    {"guided_choice", EMPTY_ONLY, 0, 0},
    {"guided_grammar", EMPTY_ONLY, 0, 0},
    {"structured_outputs", EMPTY_ONLY, 0, 0},
    {"json_schema", EMPTY_ONLY, 0, 0},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static const field *find_field(const char *name)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static bool is_empty(const json_t *v)
{
    return json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static bool is_text(const json_t *v)
{
    const json_t *is = json_is_object(v) ? json_object_get(v, "type") : json_array_get(v, 0);
    return (json_is_object(v) || json_array_size(v) == 1) && json_is_string(is) &&
           strcmp(json_string_value(is), "text") == 0;
}

static bool check_field(const field *d, const json_t *v, oct_serve_fault *f)
{
    const double number = json_number_value(v);
    switch (d->kind) {
    case WHOLE:
        /* Whole numbers are also what clients write as 1.0. */
        if (!json_is_number(v) || number != floor(number))
            return oct_serve_refuse(f, 400, NULL, d->name, "%s: expected a whole number", d->name);
        /* fall through */
    case REAL:
        if (!json_is_number(v) || !(number >= d->lo && number <= d->hi))
            return oct_serve_refuse(f, 400, NULL, d->name, "%s: expected a number from %g to %g",
                                    d->name, d->lo, d->hi);
        return true;
    case FLAG:
        return json_is_boolean(v) ||
               oct_serve_refuse(f, 400, NULL, d->name, "%s: expected true or false", d->name);
    case TEXT_ONLY:
        return is_text(v) ||
               oct_serve_refuse(f, 400, NULL, d->name,
                                "%s: only text is supported, not other formats", d->name);
    case EMPTY_ONLY:
        return is_empty(v) || oct_serve_refuse(f, 400, NULL, d->name,
                                               "%s is not supported by this server", d->name);
    default: return true;
    }
}

static void note_ignored(oct_serve_ask *a, const char *key)
{
    const size_t n = strlen(a->ignored);
    snprintf(a->ignored + n, sizeof a->ignored - n, "%s%.24s", n > 0 ? " " : "", key);
}

/* null is absent, whatever the field. */
static bool check_fields(const json_t *body, oct_serve_ask *a, oct_serve_fault *f)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, key, v)
    {
        const field *d = find_field(key);
        if (json_is_null(v))
            continue;
        if (!d)
            note_ignored(a, key);
        else if (!check_field(d, v, f))
            return false;
    }
    return true;
}

static double real_of(const json_t *body, const char *key, double otherwise)
{
    const json_t *v = oct_serve_get(body, key);
    return v ? json_number_value(v) : otherwise;
}

static int64_t whole_of(const json_t *body, const char *key, int64_t otherwise)
{
    const json_t *v = oct_serve_get(body, key);
    return !v                   ? otherwise
           : json_is_integer(v) ? json_integer_value(v)
                                : (int64_t)json_number_value(v);
}

static bool flag_of(const json_t *body, const char *key)
{
    return json_is_true(oct_serve_get(body, key));
}

/* ---- what is more than a number ------------------------------------------------------------- */

static bool add_stop(oct_serve_stops *s, const json_t *v, oct_serve_fault *f)
{
    if (!json_is_string(v))
        return oct_serve_refuse(f, 400, NULL, "stop", "stop: expected a string or strings");
    const size_t n = json_string_length(v);
    if (n == 0)
        return true; /* every text has it everywhere: some clients send it for none */
    if (s->count == OCT_SERVE_STOPS - 2)
        return oct_serve_refuse(f, 400, NULL, "stop", "stop: more than %d strings",
                                OCT_SERVE_STOPS - 2);
    char *copy = malloc(n);
    if (!copy)
        return no_memory(f);
    memcpy(copy, json_string_value(v), n);
    s->text[s->count] = copy;
    s->n[s->count++] = n;
    return true;
}

static bool parse_stops(const json_t *body, oct_serve_stops *s, oct_serve_fault *f)
{
    const json_t *v = oct_serve_get(body, "stop");
    if (!v)
        return true;
    if (!json_is_array(v))
        return add_stop(s, v, f);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!add_stop(s, json_array_get(v, i), f))
            return false;
    return true;
}

static bool parse_bias(const oct_serve_config *c, const json_t *body, oct_serve_ask *a,
                       oct_serve_fault *f)
{
    const int64_t n_vocab = oct_model_get_info(c->model)->n_vocab;
    json_t *map = oct_serve_get(body, "logit_bias"), *v;
    const char *key;
    if (!map)
        return true;
    if (!json_is_object(map))
        return oct_serve_refuse(f, 400, NULL, "logit_bias",
                                "logit_bias: expected an object from token ids to numbers");
    a->bias = malloc((json_object_size(map) + 1) * sizeof *a->bias);
    if (!a->bias)
        return no_memory(f);
    json_object_foreach(map, key, v)
    {
        char *end;
        const long long id = strtoll(key, &end, 10);
        if (end == key || *end || id < 0 || id >= n_vocab)
            return oct_serve_refuse(f, 400, NULL, "logit_bias",
                                    "logit_bias: '%.24s' is no token id, expected 0..%lld", key,
                                    (long long)n_vocab - 1);
        const double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= -100 && x <= 100))
            return oct_serve_refuse(f, 400, NULL, "logit_bias",
                                    "logit_bias: expected numbers from -100 to 100");
        /* -100 bans in OpenAI's interface; a logit is far from as large. */
        a->bias[a->sampler.n_bias++] =
            (oct_logit_bias){(int32_t)id, x == -100 ? -INFINITY : (float)x};
    }
    a->sampler.bias = a->bias;
    return true;
}

/* A bool and a number in chats, the number alone in completions. */
static bool parse_logprobs(const json_t *body, oct_serve_ask *a, oct_serve_fault *f)
{
    const json_t *v = oct_serve_get(body, "logprobs");
    const int64_t top = whole_of(body, "top_logprobs", 0);
    if (a->chat) {
        if (v && !json_is_boolean(v))
            return oct_serve_refuse(f, 400, NULL, "logprobs", "logprobs: expected true or false");
        a->logprobs = json_is_true(v);
        if (top > 0 && !a->logprobs)
            return oct_serve_refuse(f, 400, NULL, "top_logprobs",
                                    "top_logprobs needs logprobs to be true");
        a->n_top = (int32_t)top;
        return true;
    }
    if (v && json_is_boolean(v)) {
        a->logprobs = json_is_true(v);
        return true;
    }
    if (v && (!json_is_integer(v) || json_integer_value(v) < 0 ||
              json_integer_value(v) > OCT_SERVE_TOP_MAX))
        return oct_serve_refuse(f, 400, NULL, "logprobs",
                                "logprobs: expected a whole number from 0 to %d",
                                OCT_SERVE_TOP_MAX);
    a->logprobs = v != NULL;
    a->n_top = (int32_t)(v ? json_integer_value(v) : 0);
    return true;
}

static bool parse_numbers(const json_t *body, oct_serve_ask *a, oct_serve_fault *f)
{
    const int64_t top_k = whole_of(body, "top_k", 0);
    const json_t *options = oct_serve_get(body, "stream_options");
    a->sampler =
        (oct_sampler){.temperature = (float)real_of(body, "temperature", 1),
                      .top_p = (float)real_of(body, "top_p", 1),
                      .min_p = (float)real_of(body, "min_p", 0),
                      .top_k = (int32_t)(top_k > 0 ? top_k : 0),
                      .repetition_penalty = (float)real_of(body, "repetition_penalty", 1),
                      .frequency_penalty = (float)real_of(body, "frequency_penalty", 0),
                      .presence_penalty = (float)real_of(body, "presence_penalty", 0),
                      .rng = oct_serve_get(body, "seed") ? (uint64_t)whole_of(body, "seed", 0)
                                                         : oct_cli_random()};
    a->stream = flag_of(body, "stream");
    a->echo = flag_of(body, "echo");
    a->ignore_eos = flag_of(body, "ignore_eos");
    a->progress = flag_of(body, "return_progress");
    if (options && !json_is_object(options))
        return oct_serve_refuse(f, 400, NULL, "stream_options",
                                "stream_options: expected an object");
    a->usage = flag_of(options, "include_usage");
    a->n = (int32_t)whole_of(body, "n", 1);
    if (whole_of(body, "best_of", a->n) != a->n)
        return oct_serve_refuse(f, 400, NULL, "best_of",
                                "best_of: only as many texts as n are drawn");
    a->n_max =
        whole_of(body, "max_completion_tokens", whole_of(body, "max_tokens", a->chat ? -1 : 16));
    if (a->n_max == 0 && !a->echo)
        return oct_serve_refuse(f, 400, NULL, "max_tokens",
                                "max_tokens: 0 tokens make sense with echo only");
    if (a->echo && a->chat)
        return oct_serve_refuse(f, 400, NULL, "echo", "echo is of completions, not of chats");
    return true;
}

/* ---- prompts -------------------------------------------------------------------------------- */

static bool too_long(const oct_serve_config *c, const char *key, long long n, const char *what,
                     oct_serve_fault *f)
{
    return oct_serve_refuse(f, 400, "context_length_exceeded", key,
                            "This model's maximum context length is %lld tokens, but the prompt "
                            "has %lld %s",
                            (long long)c->n_ctx, n, what);
}

bool oct_serve_encode(const oct_serve_config *c, oct_serve_prompt *p, oct_serve_fault *f)
{
    oct_error err = {0};
    if ((int64_t)p->n > c->n_ids_bytes_max)
        return too_long(c, "prompt", (long long)p->n, "bytes, more than so many tokens can say", f);
    if (oct_encode(c->model, p->text, p->n, &p->ids, &p->n_ids, &err) != OCT_OK)
        return oct_serve_refuse(f, err.status == OCT_ERR_MEMORY ? 500 : 400, NULL, "prompt", "%s",
                                err.text);
    return true;
}

bool oct_serve_ids(const oct_serve_config *c, const json_t *array, const char *key, int32_t **ids,
                   size_t *n_ids, oct_serve_fault *f)
{
    const oct_model_info *info = oct_model_get_info(c->model);
    const size_t n = json_array_size(array);
    *n_ids = 0;
    *ids = malloc((n + 1) * sizeof **ids);
    if (!*ids)
        return no_memory(f);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= info->n_vocab || id == info->pad_id)
            return oct_serve_refuse(f, 400, NULL, key,
                                    "%s: token %zu: expected an id of 0..%lld, and not that of "
                                    "padding",
                                    key, i, (long long)info->n_vocab - 1);
        (*ids)[(*n_ids)++] = (int32_t)id;
    }
    return true;
}

static bool text_prompt(const oct_serve_config *c, const json_t *v, oct_serve_prompt *p,
                        oct_serve_fault *f)
{
    p->n = json_string_length(v);
    p->text = malloc(p->n + 1);
    if (!p->text)
        return no_memory(f);
    memcpy(p->text, json_string_value(v), p->n);
    return oct_serve_encode(c, p, f);
}

static bool ids_prompt(const oct_serve_config *c, const json_t *v, oct_serve_prompt *p,
                       oct_serve_fault *f)
{
    oct_error err = {0};
    if (!oct_serve_ids(c, v, "prompt", &p->ids, &p->n_ids, f))
        return false;
    if (oct_decode(c->model, p->ids, p->n_ids, &p->text, &p->n, &err) != OCT_OK)
        return oct_serve_refuse(f, 400, NULL, "prompt", "%s", err.text);
    return true;
}

/* A prompt, or a list of them: strings or lists of ids. */
static bool parse_prompts(const oct_serve_config *c, const json_t *body, oct_serve_ask *a,
                          oct_serve_fault *f)
{
    json_t *v = oct_serve_get(body, "prompt");
    const json_t *first = json_array_get(v, 0);
    const bool list = json_is_array(v) && !json_is_integer(first);
    const size_t n = list ? json_array_size(v) : 1;
    if (!v || n == 0)
        return oct_serve_refuse(f, 400, NULL, "prompt", "prompt is missing");
    if (n * (size_t)a->n > OCT_SERVE_TEXTS_MAX)
        return oct_serve_refuse(f, 400, NULL, "prompt", "prompt: more than %d texts at once",
                                OCT_SERVE_TEXTS_MAX);
    a->prompts = calloc(n, sizeof *a->prompts);
    if (!a->prompts)
        return no_memory(f);
    for (a->n_prompts = 0; a->n_prompts < (int64_t)n;) {
        const json_t *one = list ? json_array_get(v, (size_t)a->n_prompts) : v;
        oct_serve_prompt *p = &a->prompts[a->n_prompts++];
        if (json_is_string(one) ? !text_prompt(c, one, p, f)
                                : json_is_array(one) && !ids_prompt(c, one, p, f))
            return false;
        if (!json_is_string(one) && !json_is_array(one))
            return oct_serve_refuse(f, 400, NULL, "prompt",
                                    "prompt: expected a string, token ids, or a list of these");
    }
    return true;
}

static bool parse_messages(const oct_serve_config *c, const json_t *body, oct_serve_ask *a,
                           oct_serve_fault *f)
{
    if (!c->template)
        return oct_serve_refuse(f, 400, "no_template", "messages",
                                "This server was started without a chat template (--template): "
                                "the model continues text, use /v1/completions");
    a->prompts = calloc(1, sizeof *a->prompts);
    if (!a->prompts)
        return no_memory(f);
    a->n_prompts = 1;
    return oct_serve_template_apply(c->template, oct_serve_get(body, "messages"), &a->prompts->text,
                                    &a->prompts->n, &a->stops, f) &&
           oct_serve_encode(c, a->prompts, f);
}

static bool check_lengths(const oct_serve_config *c, const oct_serve_ask *a, oct_serve_fault *f)
{
    const char *key = a->chat ? "messages" : "prompt";
    for (int64_t i = 0; i < a->n_prompts; i++) {
        const int64_t n = (int64_t)a->prompts[i].n_ids;
        if (n < 1)
            return oct_serve_refuse(f, 400, NULL, key,
                                    "%s: is empty, and the model has no token to start from", key);
        if (n > c->n_ctx)
            return too_long(c, key, n, "tokens", f);
    }
    return true;
}

bool oct_serve_ask_parse(const oct_serve_config *c, bool chat, const char *text, size_t n,
                         oct_serve_ask *a, oct_serve_fault *f)
{
    json_t *body = oct_serve_json(text, n, f);
    *a = (oct_serve_ask){.chat = chat};
    if (!body)
        return false;
    const json_t *model = oct_serve_get(body, "model");
    bool good = check_fields(body, a, f) && parse_numbers(body, a, f) &&
                parse_logprobs(body, a, f) && parse_stops(body, &a->stops, f) &&
                parse_bias(c, body, a, f) &&
                (chat ? parse_messages(c, body, a, f) : parse_prompts(c, body, a, f)) &&
                check_lengths(c, a, f);
    if (good && model && !json_is_string(model))
        good = oct_serve_refuse(f, 400, NULL, "model", "model: expected a string");
    json_decref(body);
    return good;
}

void oct_serve_ask_free(oct_serve_ask *a)
{
    for (int i = 0; i < a->stops.count; i++)
        free(a->stops.text[i]);
    for (int64_t i = 0; i < a->n_prompts; i++) {
        free(a->prompts[i].text);
        free(a->prompts[i].ids);
    }
    free(a->prompts);
    free(a->bias);
    *a = (oct_serve_ask){0};
}
