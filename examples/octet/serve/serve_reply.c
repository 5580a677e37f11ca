/* serve_reply.c: answers as OpenAI's clients read them. Fields come in one order, numbers in one
 * form: the same texts are the same bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <octet/utf8.h>

#include "serve_answer.h"

/* ---- tokens --------------------------------------------------------------------------------- */

/* A token's bytes as a string. They may be a part of a character: then each is U+FFFD in chats, and
 * in completions, where a token's name has to tell it from others, \xNN as OpenAI writes it. */
static json_t *token_text(const oct_model *m, int32_t id, bool chat)
{
    enum { SHOWN = 256 };
    size_t n = 0;
    const char *bytes = oct_token_bytes(m, id, &n);
    char text[OCT_UTF8_ROOM(SHOWN) + 8 + 4 * SHOWN];
    if (!bytes || n == 0)
        return json_string("");
    if (oct_utf8_valid(bytes, n) == n)
        return json_stringn(bytes, n);
    n = n < SHOWN ? n : SHOWN;
    size_t k = 0;
    if (chat) {
        oct_utf8 u = {0};
        k = oct_utf8_feed(&u, bytes, n, text);
        k += oct_utf8_end(&u, text + k);
        return json_stringn(text, k);
    }
    k = (size_t)snprintf(text, sizeof text, "bytes:");
    for (size_t i = 0; i < n; i++)
        k += (size_t)snprintf(text + k, sizeof text - k, "\\x%02x", (unsigned char)bytes[i]);
    return json_stringn(text, k);
}

static json_t *token_bytes(const oct_model *m, int32_t id)
{
    size_t n = 0;
    const char *bytes = oct_token_bytes(m, id, &n);
    json_t *list = json_array();
    for (size_t i = 0; bytes && i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

/* No JSON number is -Inf: what cannot be drawn at all is as unlikely as this. */
static json_t *probability(double logprob)
{
    return json_real(logprob > -9999 ? logprob : -9999);
}

static int64_t n_chars(const char *bytes, size_t n)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return count;
}

static json_t *chat_logprobs(const oct_model *m, const oct_serve_text *t, int64_t from, int64_t to)
{
    json_t *content = json_array();
    for (int64_t i = from; i < to; i++) {
        const oct_serve_token *k = &t->tokens[i];
        json_t *top = json_array();
        for (int32_t j = 0; j < k->n_top; j++) {
            const oct_token_logprob *p = &t->tops[k->top + (size_t)j];
            json_array_append_new(
                top, json_pack("{s:o, s:o, s:o}", "token", token_text(m, p->id, true), "logprob",
                               probability(p->logprob), "bytes", token_bytes(m, p->id)));
        }
        json_array_append_new(content,
                              json_pack("{s:o, s:o, s:o, s:o}", "token", token_text(m, k->id, true),
                                        "logprob", probability(k->logprob), "bytes",
                                        token_bytes(m, k->id), "top_logprobs", top));
    }
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

/* The likeliest tokens by name, and the token itself where it is none of them. */
static json_t *top_map(const oct_model *m, const oct_serve_text *t, const oct_serve_token *k)
{
    json_t *map = json_object();
    for (int32_t j = 0; j <= k->n_top; j++) {
        const oct_token_logprob own = {k->id, k->logprob},
                                *p = j < k->n_top ? &t->tops[k->top + (size_t)j] : &own;
        json_t *name = token_text(m, p->id, false);
        if (json_is_string(name) &&
            !json_object_getn(map, json_string_value(name), json_string_length(name)))
            json_object_setn_new(map, json_string_value(name), json_string_length(name),
                                 probability(p->logprob));
        json_decref(name);
    }
    return map;
}

typedef struct token_lists {
    json_t *tokens, *logprobs, *tops, *offsets;
} token_lists;

/* Tokens from..to; offset: characters of the answer before from. first_unknown: the first token of a
 * prompt, which nothing is before, has no probability. */
static void list_tokens(token_lists *l, const oct_model *m, const oct_serve_text *t, int64_t from,
                        int64_t to, int64_t offset, bool with_tops, bool first_unknown)
{
    size_t at = from > 0 ? t->tokens[from - 1].end : 0;
    for (int64_t i = from; i < to; i++) {
        const oct_serve_token *k = &t->tokens[i];
        const bool unknown = first_unknown && i == 0;
        json_array_append_new(l->tokens, token_text(m, k->id, false));
        json_array_append_new(l->offsets, json_integer(offset > 0 ? offset : 0));
        json_array_append_new(l->logprobs, unknown ? json_null() : probability(k->logprob));
        if (with_tops)
            json_array_append_new(l->tops, unknown ? json_null() : top_map(m, t, k));
        offset += n_chars(t->bytes + at, k->end - at);
        at = k->end;
    }
}

static token_lists new_lists(void)
{
    return (token_lists){json_array(), json_array(), json_array(), json_array()};
}

static json_t *pack_lists(const token_lists *l, bool with_tops)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", l->tokens, "token_logprobs", l->logprobs,
                     "top_logprobs", with_tops ? l->tops : (json_decref(l->tops), json_null()),
                     "text_offset", l->offsets);
}

/* ---- parts of an answer --------------------------------------------------------------------- */

static json_t *usage(const oct_serve_answer *a)
{
    json_int_t n_prompt = 0, n_cached = 0, n_text = 0;
    for (int64_t i = 0; i < a->ask.n_prompts; i++) {
        n_prompt += (json_int_t)a->ask.prompts[i].n_ids;
        n_cached += a->parts[i].n_cached;
    }
    for (int64_t i = 0; i < oct_serve_n_choices(a); i++)
        n_text += a->choices[i].n_generated;
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", n_prompt, "completion_tokens",
                     n_text, "total_tokens", n_prompt + n_text, "prompt_tokens_details",
                     "cached_tokens", n_cached);
}

/* What an answer and all chunks of a stream have in common. choices is taken. */
static json_t *envelope(const oct_serve_answer *a, json_t *choices)
{
    const oct_serve_config *c = a->server->config;
    const char *object = !a->ask.chat    ? "text_completion"
                         : a->ask.stream ? "chat.completion.chunk"
                                         : "chat.completion";
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", a->id, "object", object, "created",
                     (json_int_t)a->created, "model", c->name, "system_fingerprint", c->fingerprint,
                     "choices", choices);
}

/* The tokens of a prompt that is echoed, all of which are scored. */
static void list_prompt(token_lists *l, const oct_serve_answer *a, int64_t part)
{
    const oct_model *m = a->server->config->model;
    oct_serve_part *p = &a->parts[part];
    const oct_serve_prompt *q = &a->ask.prompts[part];
    if (p->scores.n_tokens == 0) { /* a prompt of one token: nothing was scored */
        size_t n = 0;
        const char *bytes = oct_token_bytes(m, q->ids[0], &n);
        if (!oct_serve_text_add(&p->scores, q->ids[0], bytes, n, 0, NULL, 0))
            return;
    }
    oct_serve_text_end(&p->scores);
    /* The first token says a blank that the text does not have. */
    const int64_t more = n_chars(p->scores.bytes, p->scores.n) - n_chars(q->text, q->n);
    list_tokens(l, m, &p->scores, 0, p->scores.n_tokens, -more, a->ask.n_top > 0, true);
}

static int64_t echo_chars(const oct_serve_answer *a, int64_t i)
{
    const oct_serve_prompt *q = &a->ask.prompts[i / a->ask.n];
    return a->ask.echo ? n_chars(q->text, q->n) : 0;
}

/* The prompt, if it is echoed, and n bytes of the text from `from` on. */
static json_t *completion_text(const oct_serve_answer *a, int64_t i, bool echo, size_t from,
                               size_t n)
{
    const oct_serve_prompt *q = &a->ask.prompts[i / a->ask.n];
    const size_t n_echo = echo ? q->n : 0;
    char *text = malloc(n_echo + n + 1);
    json_t *json = NULL;
    if (text) {
        if (n_echo > 0)
            memcpy(text, q->text, n_echo);
        if (n > 0)
            memcpy(text + n_echo, a->choices[i].text.bytes + from, n);
        json = json_stringn(text, n_echo + n);
    }
    free(text);
    return json;
}

static json_t *completion_logprobs(const oct_serve_answer *a, int64_t i, bool echo, int64_t from,
                                   int64_t to, int64_t offset)
{
    token_lists l = new_lists();
    if (!a->ask.logprobs) {
        json_decref(l.tokens);
        json_decref(l.logprobs);
        json_decref(l.tops);
        json_decref(l.offsets);
        return json_null();
    }
    if (echo)
        list_prompt(&l, a, i / a->ask.n);
    list_tokens(&l, a->server->config->model, &a->choices[i].text, from, to, offset,
                a->ask.n_top > 0, false);
    return pack_lists(&l, a->ask.n_top > 0);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static json_t *whole_choice(const oct_serve_answer *a, int64_t i)
{
    const oct_serve_choice *c = &a->choices[i];
    const oct_serve_text *t = &c->text;
    if (!a->ask.chat)
        return json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)i, "text",
                         completion_text(a, i, a->ask.echo, 0, t->n), "logprobs",
                         completion_logprobs(a, i, a->ask.echo, 0, t->n_tokens, echo_chars(a, i)),
                         "finish_reason", c->finish);
    return json_pack(
        "{s:I, s:{s:s, s:o, s:n}, s:o, s:s}", "index", (json_int_t)i, "message", "role",
        "assistant", "content", json_stringn(t->bytes ? t->bytes : "", t->n), "refusal", "logprobs",
        a->ask.logprobs ? chat_logprobs(a->server->config->model, t, 0, t->n_tokens) : json_null(),
        "finish_reason", c->finish);
}

json_t *oct_serve_answer_json(const oct_serve_answer *a)
{
    json_t *choices = json_array();
    for (int64_t i = 0; i < oct_serve_n_choices(a); i++)
        json_array_append_new(choices, whole_choice(a, i));
    json_t *json = envelope(a, choices);
    json_object_set_new(json, "usage", usage(a));
    return json;
}

/* ---- the stream ----------------------------------------------------------------------------- */

static json_t *chunk(const oct_serve_answer *a, json_t *choice)
{
    json_t *choices = json_array();
    if (choice)
        json_array_append_new(choices, choice);
    json_t *json = envelope(a, choices);
    if (a->ask.usage)
        json_object_set_new(json, "usage", json_null());
    return json;
}

json_t *oct_serve_chunk_usage(const oct_serve_answer *a)
{
    json_t *json = chunk(a, NULL);
    json_object_set_new(json, "usage", usage(a));
    return json;
}

json_t *oct_serve_chunk_progress(const oct_serve_answer *a, double now)
{
    json_int_t n = 0, n_cached = 0, n_done = 0;
    for (int64_t i = 0; i < a->ask.n_prompts; i++) {
        n += (json_int_t)a->ask.prompts[i].n_ids;
        n_cached += a->parts[i].n_cached;
        n_done += a->parts[i].n_done;
    }
    json_t *json = chunk(a, NULL);
    json_object_set_new(json, "prompt_progress",
                        json_pack("{s:I, s:I, s:I, s:I}", "total", n, "cache", n_cached,
                                  "processed", n_done, "time_ms",
                                  (json_int_t)((now - a->arrived) * 1000)));
    return json;
}

/* What a chunk says: n bytes of the text, tokens up to n_tokens; the end, if nothing is left. */
static json_t *chunk_choice(oct_serve_answer *a, int64_t i, size_t n, int64_t n_tokens,
                            const char *finish)
{
    oct_serve_choice *c = &a->choices[i];
    const oct_serve_text *t = &c->text;
    const char *bytes = t->bytes ? t->bytes + c->n_sent : "";
    const size_t n_new = n - c->n_sent;
    json_t *logprobs, *json;
    if (!a->ask.chat) {
        const bool echo = a->ask.echo && !c->opened;
        logprobs = completion_logprobs(a, i, echo, c->n_tokens_sent, n_tokens,
                                       echo_chars(a, i) + c->n_chars_sent);
        json = json_pack("{s:I, s:o, s:o, s:s?}", "index", (json_int_t)i, "text",
                         completion_text(a, i, echo, c->n_sent, n_new), "logprobs", logprobs,
                         "finish_reason", finish);
    } else {
        logprobs = a->ask.logprobs
                       ? chat_logprobs(a->server->config->model, t, c->n_tokens_sent, n_tokens)
                       : json_null();
        json_t *delta = json_object();
        if (!c->opened)
            json_object_set_new(delta, "role", json_string("assistant"));
        if (!c->opened || n_new > 0)
            json_object_set_new(delta, "content", json_stringn(bytes, n_new));
        json = json_pack("{s:I, s:o, s:o, s:s?}", "index", (json_int_t)i, "delta", delta,
                         "logprobs", logprobs, "finish_reason", finish);
    }
    c->n_chars_sent += n_chars(bytes, n_new);
    return json;
}

/* The first chunk of a chat, of an echo (once its probabilities are known): before any token. */
static bool opening_due(const oct_serve_answer *a, int64_t i)
{
    const oct_serve_part *p = &a->parts[i / a->ask.n];
    const oct_serve_prompt *q = &a->ask.prompts[i / a->ask.n];
    if (a->choices[i].opened)
        return false;
    if (!a->ask.echo || !a->ask.logprobs)
        return a->ask.chat || a->ask.echo;
    return q->n_ids == 1 || p->scores.n_tokens == (int64_t)q->n_ids;
}

json_t *oct_serve_chunk_next(oct_serve_answer *a, int64_t i)
{
    oct_serve_choice *c = &a->choices[i];
    size_t n;
    int64_t n_tokens;
    json_t *json = NULL;
    if (opening_due(a, i)) {
        json = chunk_choice(a, i, c->n_sent, c->n_tokens_sent, NULL);
        c->opened = true;
        return json ? chunk(a, json) : NULL;
    }
    oct_serve_text_ready(&c->text, &n, &n_tokens);
    n = n > c->n_sent ? n : c->n_sent;
    n_tokens = n_tokens > c->n_tokens_sent ? n_tokens : c->n_tokens_sent;
    if (n > c->n_sent || (a->ask.logprobs && n_tokens > c->n_tokens_sent)) {
        json = chunk_choice(a, i, n, n_tokens, NULL);
        c->opened = true;
        c->n_sent = n;
        c->n_tokens_sent = n_tokens;
    } else if (c->finish) {
        json = chunk_choice(a, i, n, n_tokens, c->finish);
        c->opened = c->closed = true;
    }
    return json ? chunk(a, json) : NULL;
}
