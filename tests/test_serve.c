/* test_serve.c: what clients of `octet serve` send and need, request by request: what users of
 * other servers had issues with. Where each of these cases is (net: test_serve_net.c):
 *
 *      nulls, parts, developer         test_nulls, test_parts, test_developer
 *      max_completion_tokens, reasons  test_finish, test_stream
 *      usage that nobody asked for     test_stream
 *      stop strings over tokens        test_stops, test_serve_text.c
 *      emoji over tokens               test_emoji, test_serve_text.c
 *      probabilities, also of prompts  test_logprobs, test_echo, serve_clients.py (lm-eval)
 *      clients that are gone           net: test_gone
 *      preflight, keys, foreign hosts  net: test_keys, test_hosts
 *      the size of the context         test_models, test_too_long
 *      a seed alone, among others      net: test_among_others; serve_load.c
 *      huge, nested, wrong JSON        net: test_bodies, test_noise; fuzz_ask.c
 *      slow writers, slow readers      net: test_slowloris, test_slow_reader, test_late_reader;
 *                                      test_serve_limits.c
 *      raw bytes                       net: test_framing; fuzz_http.c
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"
#include "serve_api_rig.h"

#define CHAT "/v1/chat/completions"
#define GREEDY "'prompt':'In the beginning','temperature':0,'max_tokens':25"
static const char greedy_text[] =
    " of the reign of Darius, in the days of his reign reign.\nAnd the reign of Darius";

/* ---- requests ------------------------------------------------------------------------------- */

/* null is absent, in every field that is optional; what is unknown is ignored, and logged. */
static void test_nulls(void **state)
{
    static const char *const names[] = {"best_of",
                                        "echo",
                                        "frequency_penalty",
                                        "logit_bias",
                                        "logprobs",
                                        "n",
                                        "presence_penalty",
                                        "seed",
                                        "stop",
                                        "stream",
                                        "stream_options",
                                        "suffix",
                                        "top_p",
                                        "user",
                                        "top_k",
                                        "min_p",
                                        "repetition_penalty",
                                        "max_completion_tokens",
                                        "model",
                                        "tools",
                                        "response_format",
                                        "modalities",
                                        "ignore_eos",
                                        "return_progress",
                                        "something_else"};
    char nulls[1024] = "";
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        snprintf(nulls + strlen(nulls), sizeof nulls - strlen(nulls), ",'%s':null", names[i]);
    json_t *a = post(200, COMPLETE, "{" GREEDY "}");
    json_t *b = post(200, COMPLETE, "{" GREEDY "%s,'unheard_of':7}", nulls);
    assert_string_equal(text_at(a, "choices.0.text"), greedy_text);
    assert_string_equal(text_at(b, "choices.0.text"), greedy_text);
    json_decref(a);
    json_decref(b);
    char *found = rig_await(&server, "ignored: unheard_of", 5);
    assert_non_null(found);
    free(found);
    a = post(200, CHAT,
             "{'messages':[{'role':'user','content':'x'},{'role':'assistant','content':null,"
             "'tool_calls':null},{'role':'user','content':'y'}],'max_tokens':null,"
             "'max_completion_tokens':1,'temperature':null,'top_logprobs':null,'tools':[],"
             "'tool_choice':'none','functions':null}");
    assert_int_equal(int_at(a, "usage.completion_tokens"), 1);
    json_decref(a);
}

/* Parts of type text, in any message; others are refused by name. */
static void test_parts(void **state)
{
    (void)state;
    json_t *a = post(200, "/apply-template",
                     "{'messages':[{'role':'user','content':'a\\nb'},{'role':'assistant',"
                     "'content':'so'}]}");
    json_t *b = post(200, "/apply-template",
                     "{'messages':[{'role':'user','content':[{'type':'text','text':'a'},"
                     "{'type':'text','text':'b'}]},{'role':'assistant','content':[{'type':'text',"
                     "'text':'so'}]}]}");
    assert_string_equal(text_at(a, "prompt"), "User: a\nb\n\nAssistant: so");
    assert_string_equal(text_at(b, "prompt"), text_at(a, "prompt"));
    json_decref(a);
    json_decref(b);
    a = post(400, CHAT,
             "{'messages':[{'role':'user','content':[{'type':'image_url','image_url':{}}]}]}");
    assert_non_null(strstr(text_at(a, "error.message"), "image_url"));
    json_decref(a);
    a = post(400, CHAT, "{'messages':[{'role':'tool','content':'x'}]}");
    assert_string_equal(text_at(a, "error.param"), "messages");
    json_decref(a);
}

static void test_developer(void **state)
{
    (void)state;
    json_t *a = post(200, "/apply-template",
                     "{'messages':[{'role':'developer','content':'Be brief.'},{'role':'user',"
                     "'content':' x '}]}");
    json_t *b = post(200, "/apply-template",
                     "{'messages':[{'role':'system','content':'Be brief.'},{'role':'user',"
                     "'content':'x'}]}");
    assert_string_equal(text_at(a, "prompt"), "Be brief.\n\nUser: x\n\nAssistant:");
    assert_string_equal(text_at(a, "prompt"), text_at(b, "prompt"));
    json_decref(a);
    json_decref(b);
}

/* max_completion_tokens is max_tokens; a text that reaches them says so, one that is stopped says
 * that. */
static void test_finish(void **state)
{
    static const char *const names[] = {"max_tokens", "max_completion_tokens"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        json_t *a =
            post(200, COMPLETE, "{'prompt':'In the beginning','temperature':0,'%s':3}", names[i]);
        assert_int_equal(int_at(a, "usage.completion_tokens"), 3);
        assert_string_equal(text_at(a, "choices.0.finish_reason"), "length");
        json_decref(a);
    }
    json_t *a = post(200, COMPLETE, "{" GREEDY ",'stop':','}");
    assert_string_equal(text_at(a, "choices.0.text"), " of the reign of Darius");
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
    json_decref(a);
    a = post(200, COMPLETE, "{'prompt':'x','max_tokens':5,'logit_bias':{'2':100}}"); /* eos */
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
    assert_string_equal(text_at(a, "choices.0.text"), "");
    json_decref(a);
    /* at the end of the context */
    a = post(200, CHAT,
             "{'messages':[{'role':'user','content':'x'}],'ignore_eos':true,"
             "'temperature':0,'stop':[]}");
    const bool stopped = strcmp(text_at(a, "choices.0.finish_reason"), "stop") == 0;
    assert_true(stopped || int_at(a, "usage.total_tokens") == 256 + 1);
    json_decref(a);
}

static void test_stream(void **state)
{
    (void)state;
    heard h = stream(COMPLETE, "{" GREEDY ",'stream':true}");
    assert_string_equal(h.text, greedy_text);
    assert_true(h.n_finish == 1 && h.n_done == 1 && h.n_usage == 0 && h.n_chunks > 1);
    assert_string_equal(h.finish, "length");
    assert_non_null(strstr(h.head, "Content-Type: text/event-stream; charset=utf-8\r\n"));
    heard_free(&h);
    h = stream(COMPLETE, "{" GREEDY ",'stream':true,'stream_options':{'include_usage':true}}");
    assert_true(h.n_usage == 1 && int_at(h.usage, "completion_tokens") == 25);
    assert_non_null(strstr(h.body, "\"choices\":[],\"usage\":{"));
    heard_free(&h);
    /* The role is in the first chunk alone; one id and time throughout. */
    h = stream(CHAT, "{'messages':[{'role':'user','content':'x'}],'max_tokens':4,'stream':true,"
                     "'temperature':0}");
    assert_true(h.n_roles == 1 && h.n_finish == 1 && h.n_done == 1);
    const char *first = strstr(h.body, "\"role\":\"assistant\"");
    assert_true(first && first < strstr(h.body, "\n\n"));
    char id[64];
    assert_int_equal(sscanf(h.body, "data: {\"id\":\"%60[^\"]", id), 1);
    int n = 0;
    for (const char *p = h.body; (p = strstr(p, id)) != NULL; p++)
        n++;
    assert_int_equal(n, h.n_chunks);
    heard_free(&h);
}

/* Every piece of the text as a stop string: the same text in a stream and at once, and nothing of
 * it. */
static void test_stops(void **state)
{
    (void)state;
    rig_rng rng = {rig_seed()};
    for (int round = 0; round < 40; round++) {
        char stop[32], want[200];
        const size_t n = (size_t)rig_int(&rng, 1, 20),
                     from = (size_t)rig_int(&rng, 0, (int64_t)(sizeof greedy_text - 1 - n));
        memcpy(stop, greedy_text + from, n);
        stop[n] = 0;
        if (strchr(stop, '\n'))
            continue;
        memcpy(want, greedy_text, sizeof greedy_text);
        *strstr(want, stop) = 0;
        json_t *a = post(200, COMPLETE, "{" GREEDY ",'stop':['%s','never']}", stop);
        assert_string_equal(text_at(a, "choices.0.text"), want);
        assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
        json_decref(a);
        heard h = stream(COMPLETE, "{" GREEDY ",'stream':true,'stop':'%s'}", stop);
        assert_string_equal(h.text, want);
        assert_string_equal(h.finish, "stop");
        heard_free(&h);
    }
    /* What might have become one is given out at the end. */
    heard h = stream(COMPLETE, "{" GREEDY ",'stream':true,'stop':'Darius!'}");
    assert_string_equal(h.text, greedy_text);
    heard_free(&h);
}

/* Token ids of the bytes of U+1F600, drawn one after the other by bias and penalty. */
static void emoji_request(char out[400], int n_tokens, const char *more)
{
    json_t *t = post(200, "/tokenize", "{'prompt':'\xf0\x9f\x98\x80'}");
    const int64_t n = (int64_t)json_array_size(at(t, "tokens"));
    assert_true(n >= 4);
    int64_t id[4];
    for (int i = 0; i < 4; i++)
        id[i] = json_integer_value(json_array_get(at(t, "tokens"), (size_t)(n - 4 + i)));
    json_decref(t);
    snprintf(out, 400,
             "{'prompt':'x','temperature':0,'max_tokens':%d,'presence_penalty':100,"
             "'logit_bias':{'%lld':100,'%lld':80,'%lld':60,'%lld':40}%s}",
             n_tokens, (long long)id[0], (long long)id[1], (long long)id[2], (long long)id[3],
             more);
}

static void test_emoji(void **state)
{
    char request[400];
    (void)state;
    emoji_request(request, 4, "");
    json_t *a = post(200, COMPLETE, request, 0);
    assert_string_equal(text_at(a, "choices.0.text"), "\xf0\x9f\x98\x80");
    json_decref(a);
    emoji_request(request, 4, ",'stream':true,'logprobs':0");
    heard h = stream(COMPLETE, request, 0);
    assert_string_equal(h.text, "\xf0\x9f\x98\x80");
    assert_int_equal(json_array_size(h.logprobs), 4);
    assert_int_equal(h.n_chunks, 2); /* one with the character, one with the end */
    heard_free(&h);
    /* A part of one is no text, but U+FFFD. */
    emoji_request(request, 3, ",'stream':true");
    h = stream(COMPLETE, request, 0);
    assert_string_equal(h.text, "\xef\xbf\xbd");
    heard_free(&h);
}

/* ---- probabilities -------------------------------------------------------------------------- */

/* As many in a stream as at once, the same, each with its bytes, none of them null. */
static void test_logprobs(void **state)
{
    (void)state;
    const char *ask = "'messages':[{'role':'user','content':'In the beginning'}],'max_tokens':9,"
                      "'seed':5,'logprobs':true,'top_logprobs':3";
    json_t *a = post(200, CHAT, "{%s}", ask);
    heard h = stream(CHAT, "{%s,'stream':true}", ask);
    const json_t *content = at(a, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(content), int_at(a, "usage.completion_tokens"));
    assert_true(json_equal(content, h.logprobs));
    assert_null(strstr(h.body, "\"logprobs\":null"));
    char text[400] = "";
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *k = json_array_get(content, i);
        assert_int_equal(json_array_size(at(k, "top_logprobs")), 3);
        assert_true(json_number_value(at(k, "logprob")) <= 0);
        const size_t n = strlen(text);
        for (size_t j = 0; j < json_array_size(at(k, "bytes")); j++) {
            text[n + j] = (char)json_integer_value(json_array_get(at(k, "bytes"), j));
            text[n + j + 1] = 0;
        }
    }
    assert_string_equal(text, text_at(a, "choices.0.message.content"));
    json_decref(a);
    heard_free(&h);
}

/* The probabilities of a prompt are those that its tokens had when they were drawn: to the bit. */
static void test_echo(void **state)
{
    (void)state;
    json_t *a = post(200, COMPLETE,
                     "{'prompt':'In the beginning','max_tokens':40,'seed':11,"
                     "'logprobs':2}");
    json_t *t = post(200, "/tokenize", "{'prompt':'In the beginning'}");
    json_t *ids = json_copy((json_t *)(uintptr_t)at(t, "tokens"));
    /* the tokens drawn, by what they say: pieces of the vocabulary are unique but for bytes */
    char *whole = NULL;
    assert_true(asprintf(&whole, "In the beginning%s", text_at(a, "choices.0.text")) > 0);
    json_t *text = json_string(whole);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    json_t *all = post(200, "/tokenize", "{'prompt':%s}", quoted);
    const size_t n_drawn = json_array_size(at(a, "choices.0.logprobs.token_logprobs"));
    if (json_array_size(at(all, "tokens")) == json_array_size(ids) + n_drawn) {
        char *list = json_dumps(at(all, "tokens"), JSON_COMPACT);
        json_t *b =
            post(200, COMPLETE, "{'prompt':%s,'max_tokens':0,'echo':true,'logprobs':2}", list);
        assert_string_equal(text_at(b, "choices.0.text"), whole);
        assert_string_equal(text_at(b, "choices.0.finish_reason"), "length");
        const json_t *x = at(a, "choices.0.logprobs.token_logprobs"),
                     *y = at(b, "choices.0.logprobs.token_logprobs");
        assert_true(json_is_null(json_array_get(y, 0)));
        for (size_t i = 0; i < n_drawn; i++)
            assert_true(
                json_equal(json_array_get(x, i), json_array_get(y, i + json_array_size(ids))));
        const json_t *offsets = at(b, "choices.0.logprobs.text_offset");
        assert_int_equal(json_integer_value(json_array_get(offsets, 0)), 0);
        assert_int_equal(json_integer_value(json_array_get(offsets, json_array_size(ids))),
                         sizeof "In the beginning" - 1);
        heard h = stream(COMPLETE,
                         "{'prompt':%s,'max_tokens':1,'echo':true,'logprobs':2,'stream':true,"
                         "'temperature':0}",
                         list);
        assert_true(json_array_size(h.logprobs) > json_array_size(y));
        for (size_t i = 0; i < json_array_size(y); i++)
            assert_true(json_equal(json_array_get(h.logprobs, i), json_array_get(y, i)));
        assert_true(strncmp(h.text, whole, strlen(whole)) == 0);
        heard_free(&h);
        json_decref(b);
        free(list);
    } else {
        fail_msg("the text has other tokens than were drawn: choose another seed");
    }
    free(whole);
    free(quoted);
    json_decref(text);
    json_decref(a);
    json_decref(t);
    json_decref(all);
    json_decref(ids);
}

/* ---- how tokens are drawn ------------------------------------------------------------------- */

static char *text_of(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    rig_reply r = post_to(server.port, COMPLETE, fmt, ap);
    va_end(ap);
    assert_int_equal(r.status, 200);
    char *text = strdup(text_at(r.json, "choices.0.text"));
    rig_reply_free(&r);
    return text;
}

static void test_sampling(void **state)
{
    (void)state;
    const char *prompt = "'prompt':'In the beginning','max_tokens':25";
    char *a = text_of("{%s,'seed':-7}", prompt), *b = text_of("{%s,'seed':-7}", prompt),
         *c = text_of("{%s,'seed':8}", prompt), *d = text_of("{%s}", prompt),
         *e = text_of("{%s}", prompt);
    assert_string_equal(a, b);
    assert_true(strcmp(a, c) != 0 && strcmp(d, e) != 0);
    free(a), free(b), free(c), free(d), free(e);
    /* Each of these leaves only the likeliest token. */
    static const char *const greedy[] = {"'min_p':1", "'top_k':1", "'top_p':0", "'temperature':0"};
    for (size_t i = 0; i < 4; i++) {
        a = text_of("{%s,%s}", prompt, greedy[i]);
        assert_string_equal(a, greedy_text);
        free(a);
    }
    static const char *const other[] = {"'frequency_penalty':1", "'presence_penalty':1",
                                        "'repetition_penalty':1.3", "'logit_bias':{'263':-100}"};
    for (size_t i = 0; i < 4; i++) {
        a = text_of("{%s,'temperature':0,%s}", prompt, other[i]);
        assert_true(strcmp(a, greedy_text) != 0);
        assert_true(i < 3 || !strstr(a, " the "));
        free(a);
    }
}

/* n texts are drawn with seed, seed + 1, ... as if alone; lists of prompts likewise. */
static void test_many(void **state)
{
    (void)state;
    json_t *a = post(200, COMPLETE,
                     "{'prompt':['In the beginning',[677,263,2224],'And the king'],'n':3,"
                     "'max_tokens':8,'seed':40}");
    assert_int_equal(json_array_size(at(a, "choices")), 9);
    for (int64_t i = 0; i < 9; i++) {
        char path[40];
        snprintf(path, sizeof path, "choices.%lld.index", (long long)i);
        assert_int_equal(int_at(a, path), i);
        char *alone = text_of("{'prompt':'%s','max_tokens':8,'seed':%lld}",
                              i < 6 ? "In the beginning" : "And the king", (long long)(40 + i % 3));
        snprintf(path, sizeof path, "choices.%lld.text", (long long)i);
        assert_string_equal(text_at(a, path), alone);
        free(alone);
    }
    assert_int_equal(int_at(a, "usage.completion_tokens"), 72);
    json_decref(a);
    /* One of them is stopped, the others go on. */
    a = post(200, COMPLETE,
             "{'prompt':'In the beginning','n':4,'max_tokens':30,'seed':1,"
             "'stop':' the'}");
    int64_t n_length = 0;
    for (int i = 0; i < 4; i++) {
        char path[40];
        snprintf(path, sizeof path, "choices.%d.finish_reason", i);
        n_length += strcmp(text_at(a, path), "length") == 0;
        snprintf(path, sizeof path, "choices.%d.text", i);
        assert_null(strstr(text_at(a, path), " the"));
        char *alone = text_of("{'prompt':'In the beginning','max_tokens':30,'seed':%d,"
                              "'stop':' the'}",
                              1 + i);
        assert_string_equal(text_at(a, path), alone);
        free(alone);
    }
    assert_in_range(n_length, 1, 3);
    json_decref(a);
    /* More prompts than may run and wait at once. */
    char prompts[4000] = "";
    for (int i = 0; i < 100; i++)
        snprintf(prompts + strlen(prompts), sizeof prompts - strlen(prompts), "%s[%d]",
                 i ? "," : "", 300 + i);
    a = post(200, COMPLETE, "{'prompt':[%s],'max_tokens':2,'temperature':0}", prompts);
    assert_int_equal(json_array_size(at(a, "choices")), 100);
    json_decref(a);
}

/* ---- what is told --------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    static const struct {
        const char *path, *body, *param;
    } bad[] = {
        {COMPLETE, "{'max_tokens':3}", "prompt"},
        {COMPLETE, "{'prompt':''}", "prompt"},
        {COMPLETE, "{'prompt':[]}", "prompt"},
        {COMPLETE, "{'prompt':[[]]}", "prompt"},
        {COMPLETE, "{'prompt':[1,'x']}", "prompt"},
        {COMPLETE, "{'prompt':[4096]}", "prompt"},
        {COMPLETE, "{'prompt':[-1]}", "prompt"},
        {COMPLETE, "{'prompt':[0]}", "prompt"},
        {COMPLETE, "{'prompt':{}}", "prompt"},
        {COMPLETE, "{'prompt':'x','temperature':-1}", "temperature"},
        {COMPLETE, "{'prompt':'x','temperature':'hot'}", "temperature"},
        {COMPLETE, "{'prompt':'x','top_p':1.5}", "top_p"},
        {COMPLETE, "{'prompt':'x','n':0}", "n"},
        {COMPLETE, "{'prompt':'x','n':1000000}", "n"},
        {COMPLETE, "{'prompt':'x','n':1.5}", "n"},
        {COMPLETE, "{'prompt':'x','best_of':3}", "best_of"},
        {COMPLETE, "{'prompt':'x','max_tokens':0}", "max_tokens"},
        {COMPLETE, "{'prompt':'x','max_tokens':-2}", "max_tokens"},
        {COMPLETE, "{'prompt':'x','logprobs':21}", "logprobs"},
        {COMPLETE, "{'prompt':'x','logprobs':'3'}", "logprobs"},
        {COMPLETE, "{'prompt':'x','stop':3}", "stop"},
        {COMPLETE, "{'prompt':'x','stop':[[]]}", "stop"},
        {COMPLETE, "{'prompt':'x','logit_bias':{'x':1}}", "logit_bias"},
        {COMPLETE, "{'prompt':'x','logit_bias':{'5':1000}}", "logit_bias"},
        {COMPLETE, "{'prompt':'x','logit_bias':[]}", "logit_bias"},
        {COMPLETE, "{'prompt':'x','stream':1}", "stream"},
        {COMPLETE, "{'prompt':'x','suffix':'y'}", "suffix"},
        {COMPLETE, "{'prompt':'x','model':3}", "model"},
        {COMPLETE, "{'prompt':'x','stream_options':true}", "stream_options"},
        {COMPLETE, "{'prompt':'x','grammar':'root'}", "grammar"},
        {CHAT, "{'messages':[]}", "messages"},
        {CHAT, "{'messages':'x'}", "messages"},
        {CHAT, "{'messages':[{'content':'x'}]}", "messages"},
        {CHAT, "{'messages':[{'role':'user','content':3}]}", "messages"},
        {CHAT, "{'messages':[{'role':'user','content':'x'}],'top_logprobs':2}", "top_logprobs"},
        {CHAT, "{'messages':[{'role':'user','content':'x'}],'logprobs':3}", "logprobs"},
        {CHAT, "{'messages':[{'role':'user','content':'x'}],'tools':[{'type':'function'}]}",
         "tools"},
        {CHAT,
         "{'messages':[{'role':'user','content':'x'}],'response_format':{'type':'json_object'}}",
         "response_format"},
        {CHAT, "{'messages':[{'role':'user','content':'x'}],'modalities':['text','audio']}",
         "modalities"},
        {"/tokenize", "{}", "prompt"},
        {"/detokenize", "{'tokens':[99999]}", "tokens"},
        {"/apply-template", "{}", "messages"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *a = post(400, bad[i].path, bad[i].body, 0);
        assert_string_equal(text_at(a, "error.param"), bad[i].param);
        assert_string_equal(text_at(a, "error.type"), "invalid_request_error");
        assert_true(json_object_get(at(a, "error"), "code") != NULL);
        json_decref(a);
    }
    json_t *a = post(200, CHAT,
                     "{'messages':[{'role':'user','content':'x'}],'max_tokens':1,"
                     "'tools':[],'response_format':{'type':'text'},"
                     "'modalities':['text'],'suffix':''}");
    json_decref(a);
}

/* A prompt that is too long, by tokens and by bytes that no number of tokens within the context
 * could say. */
static void test_too_long(void **state)
{
    (void)state;
    static char text[300000];
    for (size_t n = 2000; n < sizeof text; n = n * 100) {
        for (size_t i = 0; i < n; i++)
            text[i] = "ab "[i % 3];
        text[n] = 0;
        json_t *a = post(400, COMPLETE, "{'prompt':'%s'}", text);
        assert_string_equal(text_at(a, "error.code"), "context_length_exceeded");
        assert_non_null(strstr(text_at(a, "error.message"), "256"));
        json_decref(a);
    }
}

static void test_models(void **state)
{
    (void)state;
    rig_reply r = rig_ask(server.port, "GET", "/v1/models", "", NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(text_at(r.json, "data.0.id"), "tiny+grok");
    assert_int_equal(int_at(r.json, "data.0.max_model_len"), 256);
    assert_int_equal(int_at(r.json, "data.0.context_length"), 256);
    assert_int_equal(int_at(r.json, "data.0.meta.n_ctx"), 256);
    assert_true(int_at(r.json, "data.0.created") > 1600000000);
    assert_string_equal(text_at(r.json, "data.0.owned_by"), "octet");
    rig_reply_free(&r);
    r = rig_ask(server.port, "GET", "/v1/models/tiny%2Bgrok", "", NULL);
    assert_string_equal(text_at(r.json, "id"), "tiny+grok");
    rig_reply_free(&r);
    r = rig_ask(server.port, "GET", "/v1/models/other", "", NULL);
    assert_int_equal(r.status, 404);
    assert_string_equal(text_at(r.json, "error.code"), "model_not_found");
    rig_reply_free(&r);
}

static void test_tokens(void **state)
{
    (void)state;
    json_t *a = post(200, "/tokenize", "{'prompt':'In the beginning \xf0\x9f\x98\x80 \\u0000.'}");
    char *list = json_dumps(at(a, "tokens"), JSON_COMPACT);
    assert_int_equal(int_at(a, "count"), (int64_t)json_array_size(at(a, "tokens")));
    json_t *b = post(200, "/detokenize", "{'tokens':%s}", list);
    const json_t *text = at(b, "prompt");
    assert_int_equal(json_string_length(text), 24);
    assert_memory_equal(json_string_value(text), "In the beginning \xf0\x9f\x98\x80 \0.", 24);
    free(list);
    json_decref(a);
    json_decref(b);
}

/* A later request finds the pages of an earlier one, says so, and gets the same bytes. */
static void test_reuse(void **state)
{
    (void)state;
    char prompt[1200] = "";
    for (int i = 0; i < 150; i++)
        snprintf(prompt + strlen(prompt), sizeof prompt - strlen(prompt), "%s%d", i ? "," : "",
                 500 + i * 7 % 900);
    json_t *a = post(200, COMPLETE, "{'prompt':[%s],'max_tokens':20,'seed':3}", prompt);
    json_t *b = post(200, COMPLETE, "{'prompt':[%s],'max_tokens':20,'seed':3}", prompt);
    assert_int_equal(int_at(a, "usage.prompt_tokens_details.cached_tokens"), 0);
    assert_int_equal(int_at(b, "usage.prompt_tokens_details.cached_tokens"), 128);
    assert_true(json_equal(at(a, "choices"), at(b, "choices")));
    assert_string_equal(text_at(a, "system_fingerprint"), text_at(b, "system_fingerprint"));
    json_decref(a);
    json_decref(b);
    /* Probabilities of the prompt are there all the same. */
    a = post(200, COMPLETE, "{'prompt':[%s],'max_tokens':0,'echo':true,'logprobs':0}", prompt);
    assert_int_equal(json_array_size(at(a, "choices.0.logprobs.token_logprobs")), 150);
    json_decref(a);
}

static int setup(void **state)
{
    (void)state;
    server =
        rig_server_start_as(OCT_TEST_OCTET, model_path,
                            "-c 256 --template plain --parallel 16 --queue 20 --name tiny+grok");
    return server.port == 0 || !rig_ready(server.port);
}

static int teardown(void **state)
{
    (void)state;
    return rig_server_end(&server, SIGTERM) != 143;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nulls),     cmocka_unit_test(test_parts),
        cmocka_unit_test(test_developer), cmocka_unit_test(test_finish),
        cmocka_unit_test(test_stream),    cmocka_unit_test(test_stops),
        cmocka_unit_test(test_emoji),     cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_echo),      cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_many),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_too_long),  cmocka_unit_test(test_models),
        cmocka_unit_test(test_tokens),    cmocka_unit_test(test_reuse),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, setup, teardown);
}
