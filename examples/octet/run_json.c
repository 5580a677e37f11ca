#include "run_json.h"

#include <jansson.h>
#include <math.h>

/* Prints and frees. Without memory for a line there is nothing to go on with. */
static bool line(json_t *json)
{
    bool open = oct_cli_out_json(json, JSON_COMPACT) == OCT_EXIT_OK && oct_cli_out("", 0);
    json_decref(json);
    return open;
}

/* -inf has no number in JSON. */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

bool oct_run_json_token(const oct_model *m, int64_t prompt, const oct_event *e, oct_run_piece piece,
                        bool logprobs)
{
    json_t *o = json_pack("{s:I, s:i, s:s%}", "prompt", (json_int_t)prompt + 1, "token", e->token,
                          "text", piece.text, piece.n);
    if (o && logprobs) {
        json_t *top = json_array();
        json_object_set_new(o, "logprob", number(e->logprob));
        for (int64_t i = 0; i < e->n_top; i++) {
            size_t n = 0;
            const char *bytes = oct_token_bytes(m, e->top[i].id, &n);
            json_array_append_new(top, json_pack("{s:i, s:o, s:o}", "token", e->top[i].id, "text",
                                                 oct_cli_json_bytes(bytes, n), "logprob",
                                                 number(e->top[i].logprob)));
        }
        json_object_set_new(o, "top", top);
    }
    return line(o);
}

bool oct_run_json_end(int64_t prompt, const oct_gen_text *t, size_t n_prompt, oct_run_piece rest,
                      oct_run_piece all)
{
    static const char *const why[] = {[OCT_END_EOS] = "eos",
                                      [OCT_END_LENGTH] = "length",
                                      [OCT_END_CONTEXT] = "context",
                                      [OCT_END_CANCELLED] = "interrupted",
                                      [OCT_END_ERROR] = "error"};
    return line(json_pack("{s:I, s:s, s:I, s:I, s:s%, s:s%}", "prompt", (json_int_t)prompt + 1,
                          "end", why[t->end], "prompt_tokens", (json_int_t)n_prompt, "tokens",
                          (json_int_t)t->n - (json_int_t)n_prompt, "rest", rest.text, rest.n,
                          "text", all.text, all.n));
}

static json_t *work_json(const oct_work *w)
{
    return json_pack("{s:I, s:f, s:I}", "tokens", (json_int_t)w->tokens, "seconds", w->seconds,
                     "bytes_read", (json_int_t)w->bytes_read);
}

bool oct_run_json_work(const oct_scheduler_stats *work, uint64_t seed, bool drawn)
{
    json_t *o = json_pack("{s:{s:o, s:o}}", "timings", "prompt", work_json(&work->prompt), "text",
                          work_json(&work->text));
    if (o && drawn)
        json_object_set_new(o, "seed",
                            seed <= INT64_MAX ? json_integer((json_int_t)seed)
                                              : json_sprintf("%llu", (unsigned long long)seed));
    return line(o);
}
