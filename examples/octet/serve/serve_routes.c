/* serve_routes.c: what there is at which path. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "serve_answer.h"
#include "serve_page.h"

typedef struct route {
    const char *path;
    unsigned methods; /* of evhttp */
    bool open;        /* no key is asked for */
    bool prefix;      /* anything may follow */
    void (*run)(oct_serve_server *s, struct evhttp_request *req);
} route;

/* ---- what is there -------------------------------------------------------------------------- */

static void show_health(oct_serve_server *s, struct evhttp_request *req)
{
    oct_error err;
    const oct_serve_state state = oct_serve_engine_state(&s->engine, &err);
    const char *word = s->stopping                  ? "stopping"
                       : state == OCT_SERVE_READY   ? "ok"
                       : state == OCT_SERVE_LOADING ? "loading"
                                                    : "failed";
    json_t *json = json_pack("{s:s}", "status", word);
    if (state == OCT_SERVE_FAILED)
        json_object_set_new(json, "error", json_string(err.text));
    oct_serve_reply_json(s, req, state == OCT_SERVE_READY && !s->stopping ? 200 : 503, json);
}

static void show_metrics(oct_serve_server *s, struct evhttp_request *req)
{
    oct_serve_figures f;
    size_t n = 0;
    oct_serve_engine_figures(&s->engine, &f);
    char *text = oct_serve_metrics_text(&s->metrics, &f,
                                        oct_serve_engine_state(&s->engine, NULL) == OCT_SERVE_READY,
                                        s->n_conns, s->n_answers, &n);
    oct_serve_reply(s, req, text ? 200 : 500, "text/plain; version=0.0.4; charset=utf-8",
                    text ? text : "", n);
    free(text);
}

static json_t *model_json(const oct_serve_server *s)
{
    const oct_serve_config *c = s->config;
    const oct_model_info *i = oct_model_get_info(c->model);
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:I, s:{s:I, s:I, s:I, s:s, s:s?}}", "id", c->name,
                     "object", "model", "created", (json_int_t)c->started, "owned_by", "octet",
                     "max_model_len", (json_int_t)c->n_ctx, "context_length", (json_int_t)c->n_ctx,
                     "meta", "n_ctx", (json_int_t)c->n_ctx, "n_ctx_train", (json_int_t)i->n_ctx,
                     "n_vocab", (json_int_t)i->n_vocab, "fingerprint", c->fingerprint, "template",
                     c->template);
}

/* All models, or the one whose name follows. */
static void show_models(oct_serve_server *s, struct evhttp_request *req)
{
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    const char *name = path + strlen("/v1/models");
    if (*name == 0 || strcmp(name, "/") == 0) {
        oct_serve_reply_json(s, req, 200,
                             json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(s)));
        return;
    }
    char *id = evhttp_uridecode(name + 1, 0, NULL);
    oct_serve_fault f = {0};
    if (id && strcmp(id, s->config->name) == 0)
        oct_serve_reply_json(s, req, 200, model_json(s));
    else {
        oct_serve_refuse(&f, 404, "model_not_found", "model", "The model '%.200s' does not exist",
                         id ? id : "");
        oct_serve_reply_fault(s, req, &f);
    }
    free(id);
}

static void show_page(oct_serve_server *s, struct evhttp_request *req)
{
    oct_serve_reply(s, req, 200, "text/html; charset=utf-8", (const char *)oct_serve_page,
                    sizeof oct_serve_page);
}

/* vLLM's: evaluation harnesses take it for the sign that they may tokenize here. There are no
 * special tokens that a text could name. */
static void show_tokenizer(oct_serve_server *s, struct evhttp_request *req)
{
    oct_serve_reply_json(s, req, 200,
                         json_pack("{s:s, s:n, s:n, s:n, s:I}", "tokenizer_class", "sentencepiece",
                                   "bos_token", "eos_token", "pad_token", "model_max_length",
                                   (json_int_t)s->config->n_ctx));
}

/* ---- answers -------------------------------------------------------------------------------- */

static void complete(oct_serve_server *s, struct evhttp_request *req)
{
    oct_serve_answer_begin(s, req, NULL, false);
}

static void chat(oct_serve_server *s, struct evhttp_request *req)
{
    oct_serve_answer_begin(s, req, NULL, true);
}

/* ---- text and tokens: errands for the worker ------------------------------------------------- */

static bool tokenize(const oct_serve_config *c, const json_t *body, json_t **out,
                     oct_serve_fault *f)
{
    const json_t *text = oct_serve_get(body, "prompt"), *other = oct_serve_get(body, "content");
    oct_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    text = text ? text : other;
    if (!json_is_string(text))
        return oct_serve_refuse(f, 400, NULL, "prompt", "prompt: expected a string");
    if (oct_encode(c->model, json_string_value(text), json_string_length(text), &ids, &n, &err) !=
        OCT_OK)
        return oct_serve_refuse(f, 400, NULL, "prompt", "%s", err.text);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    *out = json_pack("{s:I, s:I, s:o}", "count", (json_int_t)n, "max_model_len",
                     (json_int_t)c->n_ctx, "tokens", list);
    return true;
}

static bool detokenize(const oct_serve_config *c, const json_t *body, json_t **out,
                       oct_serve_fault *f)
{
    const json_t *list = oct_serve_get(body, "tokens");
    oct_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0, n_text = 0;
    char *text = NULL;
    if (!json_is_array(list))
        return oct_serve_refuse(f, 400, NULL, "tokens", "tokens: expected a list of ids");
    bool good = oct_serve_ids(c, list, "tokens", &ids, &n, f);
    if (good && oct_decode(c->model, ids, n, &text, &n_text, &err) != OCT_OK)
        good = oct_serve_refuse(f, 400, NULL, "tokens", "%s", err.text);
    if (good) {
        oct_utf8 u = {0};
        char *valid = malloc(OCT_UTF8_ROOM(n_text) + 4);
        size_t k = valid ? oct_utf8_feed(&u, text, n_text, valid) : 0;
        k += valid ? oct_utf8_end(&u, valid + k) : 0;
        *out = valid ? json_pack("{s:s%, s:s%}", "prompt", valid, k, "content", valid, k) : NULL;
        free(valid);
    }
    free(text);
    free(ids);
    return good;
}

static bool apply_template(const oct_serve_config *c, const json_t *body, json_t **out,
                           oct_serve_fault *f)
{
    char *text = NULL;
    size_t n = 0;
    if (!c->template)
        return oct_serve_refuse(f, 400, "no_template", "messages",
                                "This server was started without a chat template (--template)");
    if (!oct_serve_template_apply(c->template, oct_serve_get(body, "messages"), &text, &n, NULL, f))
        return false;
    *out = json_pack("{s:s%}", "prompt", text, n);
    free(text);
    return true;
}

static void run_tokenize(oct_serve_server *s, struct evhttp_request *req)
{
    oct_serve_answer_begin(s, req, tokenize, false);
}

static void run_detokenize(oct_serve_server *s, struct evhttp_request *req)
{
    oct_serve_answer_begin(s, req, detokenize, false);
}

static void run_template(oct_serve_server *s, struct evhttp_request *req)
{
    oct_serve_answer_begin(s, req, apply_template, false);
}

/* ---- the table ------------------------------------------------------------------------------ */

enum { GET = EVHTTP_REQ_GET | EVHTTP_REQ_HEAD, POST = EVHTTP_REQ_POST };

static const route routes[] = {
    {"/", GET, true, false, show_page},
    {"/health", GET, true, false, show_health},
    {"/metrics", GET, false, false, show_metrics},
    {"/v1/models", GET, false, true, show_models},
    {"/v1/completions", POST, false, false, complete},
    {"/v1/chat/completions", POST, false, false, chat},
    {"/tokenize", POST, false, false, run_tokenize},
    {"/detokenize", POST, false, false, run_detokenize},
    {"/tokenizer_info", GET, false, false, show_tokenizer},
    {"/apply-template", POST, false, false, run_template},
};
enum { N_ROUTES = sizeof routes / sizeof *routes };

static const route *find_route(const char *path)
{
    for (int i = 0; i < N_ROUTES; i++) {
        const size_t n = strlen(routes[i].path);
        if (routes[i].prefix
                ? strncmp(path, routes[i].path, n) == 0 && (path[n] == 0 || path[n] == '/')
                : strcmp(path, routes[i].path) == 0)
            return &routes[i];
    }
    return NULL;
}

/* A browser asks, without a key, whether a page of another origin may ask. */
static void preflight(oct_serve_server *s, struct evhttp_request *req)
{
    struct evkeyvalq *out = evhttp_request_get_output_headers(req);
    if (oct_serve_origin(s, req)) {
        evhttp_add_header(out, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        evhttp_add_header(out, "Access-Control-Allow-Headers", "authorization, content-type");
        evhttp_add_header(out, "Access-Control-Max-Age", "600");
    }
    evhttp_add_header(out, "Allow", "GET, POST, OPTIONS");
    oct_serve_reply(s, req, 204, NULL, "", 0);
}

void oct_serve_route(struct evhttp_request *req, void *server)
{
    oct_serve_server *s = server;
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    const route *r = path ? find_route(path) : NULL;
    const unsigned method = evhttp_request_get_command(req);
    oct_serve_fault f = {0};
    const bool options = method == EVHTTP_REQ_OPTIONS;
    if (!oct_serve_guard(s, req, !options && !(r && r->open), &f)) {
        oct_serve_reply_fault(s, req, &f);
    } else if (options) {
        preflight(s, req);
    } else if (!r) {
        oct_serve_refuse(&f, 404, "not_found", "", "there is nothing at %.200s",
                         path ? path : "this path");
        oct_serve_reply_fault(s, req, &f);
    } else if (!(r->methods & method)) {
        evhttp_add_header(evhttp_request_get_output_headers(req), "Allow",
                          r->methods & POST ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
        oct_serve_refuse(&f, 405, "method_not_allowed", "", "%s takes %s", r->path,
                         r->methods & POST ? "POST" : "GET");
        oct_serve_reply_fault(s, req, &f);
    } else {
        r->run(s, req);
    }
}
