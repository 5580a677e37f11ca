/* serve_api_rig.h: requests in JSON to one server that the tests of a program share. After
 * cmocka.h. */
#ifndef OCT_TEST_SERVE_API_RIG_H
#define OCT_TEST_SERVE_API_RIG_H

#include "serve_rig.h"

#define COMPLETE "/v1/completions"

static rig_server server;

static const char *const model_path = OCT_TEST_MODELS "/tiny-grok.gguf";

static inline rig_server start_server(const char *more)
{
    rig_server s = rig_server_start_as(OCT_TEST_OCTET, model_path, more);
    if (s.port == 0) {
        char *log = rig_read_file(s.log);
        fail_msg("octet serve %s: %s", more, log);
    }
    assert_true(rig_ready(s.port));
    return s;
}

static inline rig_reply post_to(int port, const char *path, const char *fmt, va_list ap)
{
    char *body = NULL;
    assert_true(vasprintf(&body, fmt, ap) >= 0);
    /* single quotes are shorter to write */
    for (char *at = body; *at; at++)
        *at = *at == '\'' ? '"' : *at;
    rig_reply r = rig_ask(port, "POST", path, "", body);
    free(body);
    return r;
}

/* The JSON of a reply with this status; fails the test if it has another. */
static inline json_t *post(int status, const char *path, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    rig_reply r = post_to(server.port, path, fmt, ap);
    va_end(ap);
    if (r.status != status || !r.json)
        fail_msg("%s: %d, expected %d: %s", path, r.status, status, r.body ? r.body : "nothing");
    json_t *json = json_incref(r.json);
    rig_reply_free(&r);
    return json;
}

/* A value by a path such as choices.0.text; NULL: it is not there. */
static inline const json_t *at(const json_t *json, const char *path)
{
    char words[200];
    snprintf(words, sizeof words, "%s", path);
    for (char *w = strtok(words, "."); w && json; w = strtok(NULL, "."))
        json =
            json_is_array(json) ? json_array_get(json, (size_t)atoi(w)) : json_object_get(json, w);
    return json;
}

static inline const char *text_at(const json_t *json, const char *path)
{
    const char *text = json_string_value(at(json, path));
    if (!text)
        fail_msg("no string at %s: %s", path, json_dumps(json, 0));
    return text;
}

static inline int64_t int_at(const json_t *json, const char *path)
{
    if (!json_is_integer(at(json, path)))
        fail_msg("no whole number at %s: %s", path, json_dumps(json, 0));
    return json_integer_value(at(json, path));
}

/* A stream, as a client puts it together. */
typedef struct heard {
    char *text;       /* of choice 0, pieces together */
    json_t *logprobs; /* of choice 0: content of chats, token_logprobs of completions */
    char *finish;     /* of choice 0 */
    int n_finish, n_chunks, n_usage, n_roles, n_done;
    json_t *usage; /* of the last chunk that has one */
    json_t *error;
    char *head, *body;
} heard;

static inline void heard_free(heard *h)
{
    free(h->text);
    free(h->finish);
    free(h->head);
    free(h->body);
    json_decref(h->logprobs);
    json_decref(h->usage);
    json_decref(h->error);
}

static inline void hear_choice(heard *h, const json_t *c)
{
    const json_t *delta = json_object_get(c, "delta");
    const char *piece =
        json_string_value(json_object_get(delta ? delta : c, delta ? "content" : "text"));
    const json_t *lp = json_object_get(c, "logprobs"), *v;
    size_t i;
    h->n_roles += json_object_get(delta, "role") != NULL;
    if (piece) {
        h->text = realloc(h->text, strlen(h->text) + strlen(piece) + 1);
        strcat(h->text, piece);
    }
    const json_t *list = json_object_get(lp, delta ? "content" : "token_logprobs");
    json_array_foreach(list, i, v) json_array_append(h->logprobs, (json_t *)(uintptr_t)v);
    if (json_is_string(json_object_get(c, "finish_reason"))) {
        free(h->finish);
        h->finish = strdup(json_string_value(json_object_get(c, "finish_reason")));
        h->n_finish++;
    }
}

static inline void hear_event(heard *h, const char *data)
{
    if (strcmp(data, "[DONE]") == 0) {
        h->n_done++;
        return;
    }
    json_t *json = json_loads(data, 0, NULL), *c;
    size_t i;
    if (!json)
        fail_msg("an event that is no JSON: %s", data);
    assert_int_equal(h->n_done, 0);
    h->n_chunks++;
    if (json_object_get(json, "error"))
        h->error = json_incref(json);
    json_array_foreach(json_object_get(json, "choices"), i, c)
    {
        if (json_integer_value(json_object_get(c, "index")) == 0)
            hear_choice(h, c);
    }
    if (json_is_object(json_object_get(json, "usage"))) {
        h->n_usage++;
        json_decref(h->usage);
        h->usage = json_incref(json_object_get(json, "usage"));
    }
    json_decref(json);
}

static inline heard hear(const rig_reply *r)
{
    heard h = {.text = strdup(""),
               .finish = strdup(""),
               .logprobs = json_array(),
               .head = strdup(r->head ? r->head : ""),
               .body = strdup(r->body ? r->body : "")};
    char *copy = strdup(h.body), *rest = copy;
    for (char *event; (event = strstr(rest, "\n\n")) != NULL; rest = event + 2) {
        *event = 0;
        if (strncmp(rest, "data: ", 6) == 0)
            hear_event(&h, rest + 6);
        else
            assert_int_equal(*rest, ':');
    }
    assert_int_equal(*rest, 0);
    free(copy);
    return h;
}

static inline heard stream(const char *path, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    rig_reply r = post_to(server.port, path, fmt, ap);
    va_end(ap);
    if (r.status != 200 || !r.complete)
        fail_msg("%s: %d: %s", path, r.status, r.body ? r.body : "nothing");
    heard h = hear(&r);
    rig_reply_free(&r);
    return h;
}

/* ---- connections ---------------------------------------------------------------------------- */

static inline rig_stream open_stream(int port, const char *headers, const char *body)
{
    rig_stream s = {.fd = rig_connect(port)};
    assert_true(s.fd >= 0);
    char *text = rig_request("POST", COMPLETE, headers, body);
    assert_true(rig_send(s.fd, text, strlen(text)));
    free(text);
    return s;
}

static inline void close_stream(rig_stream *s)
{
    close(s->fd);
    free(s->text);
    *s = (rig_stream){0};
}

static inline bool read_until(rig_stream *s, const char *words)
{
    while (!s->text || !strstr(s->text, words))
        if (!rig_more(s))
            return false;
    return true;
}

static inline int status_of(int port, const char *method, const char *path, const char *headers)
{
    rig_reply r = rig_ask(port, method, path, headers, NULL);
    const int status = r.status;
    rig_reply_free(&r);
    return status;
}

static inline void nothing_left(int port)
{
    assert_true(rig_metric_becomes(port, "requests_active", 0, 20));
    assert_true(rig_metric_becomes(port, "texts_running", 0, 20));
    assert_true(rig_metric_becomes(port, "requests_waiting", 0, 20));
    assert_true(rig_metric_becomes(port, "kv_pages{state=\"used\"}", 0, 20));
}

#endif
